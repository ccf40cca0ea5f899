"""The commands for data sets: `butfor data`, `score`, `curate`, `augment`, `demo`, one file each."""

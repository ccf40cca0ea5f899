"""The commands for data sets: `butfor data`, `score`, `curate`, `demo`, one file each."""

"""The commands for data sets: `butfor data`, `score`, `curate`, one file each."""

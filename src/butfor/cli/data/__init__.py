"""The commands for data sets: `butfor data`, `score`, one file each."""

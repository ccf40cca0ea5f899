"""`python -m butfor.cli` is the command `butfor`, also where only the source is at hand."""

from butfor.cli import main

main()

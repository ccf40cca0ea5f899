"""`python -m butfor.cli` is the command `butfor`."""

from butfor.cli import main

main()

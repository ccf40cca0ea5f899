"""`python -m butfor` is the command `butfor`."""

from butfor.cli import main

main()

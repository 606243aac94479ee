"""`python -m headwater.cli` is the program `headwater`."""

from headwater.cli.app import main

main()

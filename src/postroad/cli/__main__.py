"""`python -m postroad.cli` is the `postroad` command."""

from postroad.cli import main

main()

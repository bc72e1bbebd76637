"""`python -m postroad`: the command, where no script is installed."""

from postroad.cli import main

main()

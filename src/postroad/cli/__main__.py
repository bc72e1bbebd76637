"""`python -m postroad.cli`: the command, where no script is installed."""

from postroad.cli import main

main()

"""`python -m tests.mutants`: hunt the planted bugs."""

from __future__ import annotations

from tests.mutants.hunting import main

if __name__ == "__main__":
    raise SystemExit(main())

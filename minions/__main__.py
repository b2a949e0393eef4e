"""`python -m minions`, and the `minions` command."""

from __future__ import annotations

import gc
import sys
from typing import Final

__all__ = ["main"]

_OBJECTS_BETWEEN_SEARCHES: Final = 200_000
"""Importing makes a hundred thousand objects and no garbage: one search would take 30 ms."""


def main() -> None:
    """Run the command line and leave with its exit code."""
    gc.set_threshold(_OBJECTS_BETWEEN_SEARCHES)
    try:
        from minions.interfaces.cli.main import run_command_line

        code = run_command_line(sys.argv[1:])
    except KeyboardInterrupt:  # while modules were still being imported
        code = 130
    gc.freeze()  # all of it goes with the process: no last search, which takes 50 ms
    sys.exit(code)


if __name__ == "__main__":
    main()

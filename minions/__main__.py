"""`python -m minions`, and the `minions` command."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line and leave with its exit code."""
    try:
        from minions.interfaces.cli.main import run_command_line

        code = run_command_line(sys.argv[1:])
    except KeyboardInterrupt:  # while modules were still being imported
        code = 130
    sys.exit(code)


if __name__ == "__main__":
    main()

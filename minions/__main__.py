"""`python -m minions`, and the `minions` command."""

from __future__ import annotations

import gc
import os
import sys
import threading
from typing import Final

__all__ = ["main"]

_LONGEST_IMPORT_S: Final = 10.0
"""Seconds to wait for imports at the end of the process; then it exits without cleaning up."""

_OBJECTS_BETWEEN_SEARCHES: Final = 200_000
"""Importing creates a hundred thousand objects and no garbage: one collection would take 30 ms."""


def main() -> None:
    """Run the command line and leave with its exit code."""
    gc.set_threshold(_OBJECTS_BETWEEN_SEARCHES)
    try:
        from minions.interfaces.cli.main import run_command_line

        code = run_command_line(sys.argv[1:])
    except KeyboardInterrupt:  # while modules were still being imported
        code = 130
    gc.freeze()  # all of it goes with the process: no last search, which takes 50 ms
    if not _imports_ended():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def _imports_ended() -> bool:
    """Whether no thread is inside an import, during which exiting the interpreter would crash."""
    daemons = sys.modules.get("minions.adapters.daemon_thread")
    if daemons is None:  # a command that needed no thread
        return True
    prefix: str = daemons.IMPORTING
    try:
        importing = [each for each in threading.enumerate() if each.name.startswith(prefix)]
        for thread in importing:
            thread.join(_LONGEST_IMPORT_S)
        return not any(thread.is_alive() for thread in importing)
    except KeyboardInterrupt:
        return False


if __name__ == "__main__":
    main()

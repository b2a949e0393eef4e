"""Of `python -m minions`, the working folder is taken off the path, on which it is first.

A `json.py` in a stranger's folder would be imported instead of Python's. This happens while this
module is imported, before any other; so it imports only what the interpreter has loaded.
"""

import os
import sys

__all__ = ["leave_out_working_folder"]


def leave_out_working_folder(package: str) -> None:
    """Take the folder off the path if the process was started as `python -m PACKAGE`.

    Nothing is changed where another application is started by `-m` and imports the library, nor
    where Python was told (`-P`, `-I`) to leave the folder out.
    """
    words = sys.orig_argv
    is_command = sys.argv[:1] == ["-m"] and any(
        flag.startswith("-") and flag.endswith("m") and name.partition(".")[0] == package
        for flag, name in zip(words, words[1:], strict=False)  # noqa: RUF007  # itertools may be theirs
    )
    if not is_command or sys.flags.safe_path:
        return
    try:
        folder = os.getcwd()  # noqa: PTH109  # pathlib may be theirs
    except OSError:
        return
    if sys.path[0] in ("", folder):
        del sys.path[0]


leave_out_working_folder("minions")

"""The file of a batch's results: one JSON line for each input, in the order of the inputs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Self, TextIO

from minions.data.bounded_files import open_regular
from minions.data.errors import EnvironmentRefusedError, UsageError
from minions.engine.batches.result import BatchResult
from minions.interfaces.cli.console.console import json_text, say

_LONGEST_FIRST: Final = 64 * 1_048_576
"""Bytes of the first line that are looked at."""


class ResultFile:
    """Writes result lines. A file is written whole each time: recorded results come first."""

    def __init__(self, stream: TextIO, path: Path | None) -> None:
        """Write to that stream.

        Args:
            path: The stream's path; None: it is standard output.
        """
        self._stream = stream
        self._path = path

    @classmethod
    @contextmanager
    def opened(cls, path: str | None, out: TextIO, is_own: Callable[[str], bool]) -> Iterator[Self]:
        """Open the file of that path, or take `out` where there is none.

        Args:
            is_own: Whether a run with that id is one of the batch.
        Raises:
            UsageError: `already-there`; the file holds something else than results of the batch.
            EnvironmentRefusedError: It cannot be written.
        """
        if path is None:
            yield cls(out, None)
            return
        target = Path(path)
        _refuse_foreign(target, is_own)
        try:
            stream = target.open("w", encoding="utf-8", newline="\n")
        except OSError as error:
            raise _not_written(target, error, _NOTHING) from error
        with stream:
            yield cls(stream, target)

    def write(self, result: BatchResult) -> None:
        """Write one line; whoever reads the file sees it at once.

        Raises:
            EnvironmentRefusedError: It cannot be written.
        """
        if self._path is None:
            say(json_text(result.to_json()), self._stream)
            return
        text = json.dumps(result.to_json(), ensure_ascii=False)
        text = text.encode("utf-8", "backslashreplace").decode()  # half a character
        try:
            self._stream.write(f"{text}\n")
            self._stream.flush()
        except OSError as error:
            raise _not_written(self._path, error, _RECORDED) from error


def _refuse_foreign(path: Path, is_own: Callable[[str], bool]) -> None:
    """Refuse to write over a file that is not of this batch."""
    if path.exists() and not path.is_file():  # a device or a pipe, from which nothing is read
        return
    try:
        with open_regular(path) as file:
            first = file.readline(_LONGEST_FIRST)
    except FileNotFoundError:
        return
    except OSError as error:
        raise _not_written(path, error, _NOTHING) from error
    if not first.strip() or _is_result(first, is_own):
        return
    raise UsageError(
        f"-o {path}: the file exists and holds no results of this batch; it was not changed. "
        "Choose another name, or move it away.",
        code="already-there",
    )


def _is_result(line: bytes, is_own: Callable[[str], bool]) -> bool:
    try:
        value = json.loads(line)
    except RecursionError:
        return False
    except ValueError:  # also a line that was cut off by a kill
        return line.startswith(b'{"index": 0, "run_id": ') and not line.endswith(b"\n")
    if not isinstance(value, dict) or "index" not in value:
        return False
    run_id = value.get("run_id")
    return run_id is None or (isinstance(run_id, str) and is_own(run_id))


_NOTHING: Final = "Nothing was started."
_RECORDED: Final = "What has ended is in the journal, if there is one."


def _not_written(path: Path, error: OSError, kept: str) -> EnvironmentRefusedError:
    return EnvironmentRefusedError(
        f"-o {path}: it cannot be written: {error.strerror}. {kept}", code="no-output"
    )

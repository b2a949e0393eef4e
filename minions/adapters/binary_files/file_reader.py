"""Rows of Parquet files and pages of PDF files, as strangers make them: within bounds of time and
memory, in a process that may be killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from time import monotonic
from typing import BinaryIO, Final

from attrs import Factory, field, frozen

from minions.adapters.binary_files.reader_program import ReadOrder
from minions.data.errors import EnvironmentRefusedError
from minions.data.field_repr import FieldsRepr
from minions.data.json_values import JsonValue, as_object, parse_json

_PROGRAM: Final = str(Path(__file__).with_name("reader_program.py"))
_MEMORY_BYTES: Final = 1_536 * 1_048_576
"""That the process may take; 300 MiB of it are the library."""
_LONGEST_HEAD: Final = 4 * 1_048_576
"""Bytes of what the file is: the names of its columns."""
_PIECE: Final = 65_536
_PACKAGES: Final = {"parquet": "pyarrow", "pdf": "pypdf"}
NAMES: Final = {"parquet": "Parquet", "pdf": "PDF"}
"""How messages call a format."""


class UnreadableFileError(Exception):
    """A file of a stranger cannot be read as asked; the text says why, as a part of a sentence."""

    def __init__(self, code: str, text: str) -> None:
        """Say why.

        Args:
            code: `bad-parquet`, `bad-pdf`, `encrypted-pdf`, `no-such-column` (the text is the
                column's name), `slow-file` or `file-too-large`.
            text: What is wrong.
        """
        super().__init__(text)
        self.code = code


@frozen(kw_only=True)
class PartRange(FieldsRepr):
    """Which rows or pages are read, and how much of them."""

    first: int = 0
    """From 0."""
    most: int
    most_bytes: int
    """Of all of them as JSON; what comes then is left out."""
    most_of_one: int = field(default=Factory(lambda self: self.most_bytes, takes_self=True))
    """Bytes of one of them as JSON, at most `most_bytes`; one that has more is a fault."""
    columns: Sequence[str] | None = None
    """Of Parquet; None: all."""
    timeout_s: float = 30.0
    """How long the process is waited for."""
    each_part: bool = False
    """Whether it is waited for so long for each row: the whole may take any time."""


class FileParts:
    """A file that is being read."""

    def __init__(self, format_: str, lines: Iterator[bytes]) -> None:
        """Read what the file is.

        Args:
            lines: What the process writes.
        Raises:
            UnreadableFileError: It cannot be read.
            EnvironmentRefusedError: `missing-package`.
        """
        self._format = format_
        self._lines = lines
        head = json.loads(self._next()[1:])  # our own program wrote it
        self.total: int = head["total"]
        """Rows or pages, as the file says."""
        self.columns: Sequence[str] = head.get("columns", ())
        self.is_cut = False
        """Whether parts of the range were left out, as they have too many bytes; known at the end
        of the parts."""

    def json_texts(self) -> Iterator[bytes]:
        """The rows or pages, in order, each as JSON.

        Raises:
            UnreadableFileError: The file is damaged further on, or cannot be read within the
                bounds.
        """
        while (line := self._next()).startswith(b"R"):
            yield line[1:]
        self.is_cut = json.loads(line[1:])["is_cut"]

    def values(self) -> Iterator[Mapping[str, JsonValue]]:
        """The rows or pages, in order, as values.

        Raises:
            UnreadableFileError: As `json_texts`.
        """
        for text in self.json_texts():
            try:
                yield as_object(parse_json(text.decode()))
            except ValueError as error:
                raise self._damage(f"a value is no JSON: {error}") from error

    def _next(self) -> bytes:
        line = next(self._lines, b"")
        if line.startswith(b"F"):
            fault = json.loads(line[1:])
            if fault["code"] == "missing-package":
                raise _missing_package(self._format, fault["text"])
            raise UnreadableFileError(fault["code"], fault["text"])
        if not line.endswith(b"\n"):
            raise self._damage("the process that reads it crashed, or was ended")
        return line

    def _damage(self, text: str) -> UnreadableFileError:
        code = "bad-pdf" if self._format == "pdf" else "bad-parquet"
        return UnreadableFileError(code, text)


@contextlib.contextmanager
def open_parts(file: BinaryIO, format_: str, wanted: PartRange) -> Iterator[FileParts]:
    """Read a file in a process of its own, which ends with the block.

    Args:
        file: At any position; the process gets the open file, and nothing else.
        format_: `parquet` or `pdf`.
    Raises:
        UnreadableFileError: It is none, or cannot be read within the bounds.
        EnvironmentRefusedError: `missing-package`.
    """
    order: ReadOrder = {
        "format": format_,
        "columns": wanted.columns,
        "first": wanted.first,
        "most": wanted.most,
        "most_bytes": wanted.most_bytes,
        "most_of_one": wanted.most_of_one,
        "memory_bytes": _MEMORY_BYTES,
        "cpu_s": 86_400 if wanted.each_part else round(wanted.timeout_s) + 1,
        "packages": [each for each in sys.path if each],
    }
    file.seek(0)
    process = subprocess.Popen(  # noqa: S603  # our own program
        [sys.executable, "-I", "-S", _PROGRAM, json.dumps(order)],
        stdin=file,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        # One arena and the system's allocator: others reserve addresses, which count.
        env={"ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "1", "PYTHONUTF8": "1"},
        start_new_session=True,  # a signal to the terminal's group is not meant for it
    )
    try:
        yield FileParts(format_, _answer_lines(process, wanted))
    finally:
        process.kill()
        process.communicate()


def require_package(format_: str) -> None:
    """Load the library of a format.

    Raises:
        EnvironmentRefusedError: `missing-package`; it is not installed.
    """
    try:
        import_module(_PACKAGES[format_])
    except ImportError as error:
        raise _missing_package(format_, str(error)) from error


_INSTALL: Final = {
    "parquet": "pip install 'minions-engine[parquet]'",
    "pdf": "pip install 'minions-engine[pdf]'",
}


def _missing_package(format_: str, words: str) -> EnvironmentRefusedError:
    install = _INSTALL[format_]
    return EnvironmentRefusedError(
        f"{NAMES[format_]} files need {_PACKAGES[format_]}, which cannot be loaded ({words}). "
        f"Install it: {install}",
        code="missing-package",
        suggestions=[install],
    )


def _answer_lines(process: subprocess.Popen[bytes], wanted: PartRange) -> Iterator[bytes]:
    """The lines that the process writes, each with its end; a last one without is what it wrote
    when it crashed.

    Raises:
        UnreadableFileError: One does not come in time, or is longer than the program may write.
    """
    output = process.stdout
    assert output is not None  # noqa: S101  # a pipe was asked for
    ready = select.poll()
    ready.register(output, select.POLLIN)
    left_s, rest = wanted.timeout_s, bytearray()
    while True:
        begin = monotonic()
        if not ready.poll(max(0.0, left_s) * 1_000):
            seconds = f"{wanted.timeout_s:g} s"
            raise UnreadableFileError("slow-file", f"it was not read within {seconds}")
        piece = os.read(output.fileno(), _PIECE)
        left_s -= monotonic() - begin
        lines = []
        if b"\n" in piece:
            *lines, rest = (rest + piece).split(b"\n")
        else:
            rest += piece  # in place: a line may have many pieces
        if len(rest) > max(wanted.most_of_one, _LONGEST_HEAD):
            raise UnreadableFileError("file-too-large", "the names of its columns are too long")
        for line in lines:
            yield bytes(line) + b"\n"
        if lines and wanted.each_part:
            left_s = wanted.timeout_s
        if not piece:
            if rest:
                yield bytes(rest)
            return

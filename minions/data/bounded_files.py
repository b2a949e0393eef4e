"""Files and streams that strangers may have made, read within a bound."""

from __future__ import annotations

import errno
import io
import os
import stat
from collections.abc import Iterator
from os import PathLike
from typing import BinaryIO, Final

_KINDS: Final = (
    (stat.S_ISCHR, "it is a device, not a file"),
    (stat.S_ISBLK, "it is a device, not a file"),
    (stat.S_ISFIFO, "it is a pipe, not a file"),
    (stat.S_ISSOCK, "it is a socket, not a file"),
)


def open_regular(path: str | PathLike[str]) -> BinaryIO:
    """The file, opened to be read. It is looked at after it was opened, so that none takes its
    place meanwhile.

    Raises:
        OSError: It cannot be opened, or is a device, a pipe or a folder; `strerror` says which. A
            pipe is refused at once, where `open` would wait for somebody who writes to it.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(mode):
            words = next((words for holds, words in _KINDS if holds(mode)), "it is not a file")
            raise OSError(errno.EINVAL, words, str(path))
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_regular(path: str | PathLike[str], most: int) -> bytes:
    """The bytes of the file; of one that is longer than `most`, one byte more.

    Raises:
        OSError: As `open_regular`.
    """
    with open_regular(path) as file:
        return file.read(most + 1)


_PIECE: Final = 65_536
"""Bytes that are read at once."""


class LongLineError(Exception):
    """A line, or what is read as one, is longer than allowed."""

    def __init__(self, line: int, most: int) -> None:
        """Describe it.

        Args:
            line: Its number, from 1.
            most: Bytes that it may have.
        """
        super().__init__(f"it has more than {most // 1_048_576} MiB in one line")
        self.line = line


class BoundedLines(io.RawIOBase):
    """A stream whose lines have a bound: one without an end takes no memory."""

    def __init__(self, file: BinaryIO, most: int) -> None:
        """Read `file`, whose lines may have `most` bytes each, without their ends."""
        self._file = file
        self._most = most
        self._line = 1
        self._length = 0
        """Bytes since the last end of a line."""

    def readable(self) -> bool:
        """It can be read."""
        return True

    def readinto(self, buffer: bytearray | memoryview, /) -> int:  # type: ignore[override]  # typeshed has any buffer
        """Read some bytes.

        Raises:
            LongLineError: A line is too long.
        """
        data = self._file.read(min(len(buffer), _PIECE))
        buffer[: len(data)] = data
        end, last = data.find(b"\n"), data.rfind(b"\n")
        if self._length + (len(data) if end < 0 else end) > self._most:
            raise LongLineError(self._line, self._most)
        if end < 0:
            self._length += len(data)
        else:
            self._line += data.count(b"\n")
            self._length = len(data) - last - 1
        return len(data)

    def lines(self) -> Iterator[bytes]:
        """Each line with its end.

        Raises:
            LongLineError: A line is too long.
        """
        return iter(io.BufferedReader(self, _PIECE))

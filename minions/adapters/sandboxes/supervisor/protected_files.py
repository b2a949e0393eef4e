"""Files that are put back as they were: what a program outside would execute, such as git hooks.

Nothing here follows a link: whoever changed the files may have put links in their place.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

__all__ = ["ProtectedFiles"]

_MOST_BYTES: Final = 4 * 1024 * 1024
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class _Entry(NamedTuple):
    """A file, link or folder as it was."""

    mode: int
    content: bytes | str | Mapping[str, _Entry]
    """Of a file its bytes, of a link its target, of a folder its entries."""


class ProtectedFiles:
    """The present state of some files below a folder.

    Args:
        folder: What the paths start from.
        paths: Relative ones, with `/`.
    Raises:
        OSError: They cannot be read, or are too large to be kept in memory.
    """

    def __init__(self, folder: str, paths: list[str]) -> None:
        self._folder = folder
        self._left = _MOST_BYTES
        self._before = {path: self._present(path) for path in paths}

    def restore(self) -> list[str]:
        """Put back what has changed since; its paths."""
        self._left = _MOST_BYTES
        return [path for path, before in self._before.items() if self._put_back(path, before)]

    def _put_back(self, path: str, before: _Entry | None) -> bool:
        try:
            is_same = self._present(path) == before
        except OSError:
            is_same = False
        if is_same and (before is not None or not self._is_hidden(path)):
            return False
        *above, name = path.split("/")
        with _opened(self._folder, above, mend=True) as folder:
            _remove(folder, name)
            if before is not None:
                _write(folder, name, before)
        return True

    def _is_hidden(self, path: str) -> bool:
        """Whether a link or a file stands where a folder above the path would be."""
        *above, _ = path.split("/")
        for count in range(1, len(above) + 1):
            with _opened(self._folder, above[: count - 1]) as folder:
                mode = _mode(folder, above[count - 1])
            if mode is None:
                return False
            if not stat.S_ISDIR(mode):
                return True
        return False

    def _present(self, path: str) -> _Entry | None:
        *above, name = path.split("/")
        try:
            with _opened(self._folder, above) as folder:
                return self._entry(folder, name)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            if error.errno == errno.ELOOP:
                return None
            raise

    def _entry(self, folder: int, name: str) -> _Entry | None:
        mode = _mode(folder, name)
        if mode is None:
            return None
        if stat.S_ISLNK(mode):
            return _Entry(0, os.readlink(name, dir_fd=folder))
        if stat.S_ISDIR(mode):
            with _opened_in(folder, name) as below:
                names = sorted(os.listdir(below))  # noqa: PTH208  # of a descriptor, not of a path
                found = {each: self._entry(below, each) for each in names}
            return _Entry(mode, {key: each for key, each in found.items() if each is not None})
        if not stat.S_ISREG(mode):
            return _Entry(mode, b"")
        return _Entry(mode, self._bytes(folder, name))

    def _bytes(self, folder: int, name: str) -> bytes:
        with os.fdopen(os.open(name, _READ, dir_fd=folder), "rb") as file:
            data = file.read(self._left + 1)
        self._left -= len(data) + 1
        if self._left < 0:
            raise OSError(f"{name}: too large to be protected")
        return data


@contextlib.contextmanager
def _opened(root: str, names: list[str], *, mend: bool = False) -> Iterator[int]:
    """A folder, opened name by name.

    Args:
        mend: Remove what is no folder on the way, and make what is missing.
    """
    current = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for name in names:
            if mend:
                mode = _mode(current, name)
                if mode is not None and not stat.S_ISDIR(mode):
                    os.unlink(name, dir_fd=current)
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, dir_fd=current)
            below = os.open(name, _FOLDER, dir_fd=current)
            os.close(current)
            current = below
        yield current
    finally:
        os.close(current)


@contextlib.contextmanager
def _opened_in(folder: int, name: str) -> Iterator[int]:
    below = os.open(name, _FOLDER, dir_fd=folder)
    try:
        yield below
    finally:
        os.close(below)


def _mode(folder: int, name: str) -> int | None:
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return None


def _remove(folder: int, name: str) -> None:
    mode = _mode(folder, name)
    if mode is not None and stat.S_ISDIR(mode):
        shutil.rmtree(name, dir_fd=folder)
    elif mode is not None:
        os.unlink(name, dir_fd=folder)


def _write(folder: int, name: str, entry: _Entry) -> None:
    content = entry.content
    if isinstance(content, str):
        os.symlink(content, name, dir_fd=folder)
    elif isinstance(content, bytes):
        with os.fdopen(os.open(name, _NEW, 0o600, dir_fd=folder), "wb") as file:
            file.write(content)
            os.fchmod(file.fileno(), stat.S_IMODE(entry.mode))
    else:
        os.mkdir(name, dir_fd=folder)
        with _opened_in(folder, name) as below:
            for each, inner in content.items():
                _write(below, each, inner)
            os.fchmod(below, stat.S_IMODE(entry.mode))

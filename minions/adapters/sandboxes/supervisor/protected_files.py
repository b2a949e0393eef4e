"""Files that are put back as they were: what a program outside would execute, such as git hooks."""

from __future__ import annotations

import shutil
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

__all__ = ["ProtectedFiles"]

_MOST_BYTES = 4 * 1024 * 1024


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
        self._folder = Path(folder)
        self._left = _MOST_BYTES
        self._before = {path: self._entry(self._folder / path) for path in paths}

    def restore(self) -> list[str]:
        """Put back what has changed since; its paths."""
        self._left = _MOST_BYTES
        return [path for path, entry in self._before.items() if self._put_back(path, entry)]

    def _put_back(self, path: str, before: _Entry | None) -> bool:
        place = self._folder / path
        is_changed = self._without_links_above(path)
        try:
            is_same = not is_changed and self._entry(place) == before
        except OSError:
            is_same = False
        if is_same:
            return False
        _remove(place)
        if before is not None:
            place.parent.mkdir(parents=True, exist_ok=True)
            _write(place, before)
        return True

    def _without_links_above(self, path: str) -> bool:
        """Remove a link or file that stands where a folder above `path` was; whether there was
        one.
        """
        for folder in reversed(Path(path).parents[:-1]):
            above = self._folder / folder
            if above.is_symlink() or (above.exists() and not above.is_dir()):
                above.unlink()
                return True
        return False

    def _entry(self, place: Path) -> _Entry | None:
        if any((self._folder / each).is_symlink() for each in _parents(place, self._folder)):
            return None
        try:
            mode = place.lstat().st_mode
        except (FileNotFoundError, NotADirectoryError):
            return None
        if stat.S_ISLNK(mode):
            return _Entry(0, str(place.readlink()))
        if stat.S_ISDIR(mode):
            found = {each.name: self._entry(each) for each in sorted(place.iterdir())}
            return _Entry(mode, {name: each for name, each in found.items() if each is not None})
        if not stat.S_ISREG(mode):
            return _Entry(mode, b"")
        self._left -= place.stat().st_size + 1
        if self._left < 0:
            raise OSError(f"{place}: too large to be protected")
        return _Entry(mode, place.read_bytes())


def _parents(place: Path, folder: Path) -> list[Path]:
    return [each for each in place.relative_to(folder).parents if each != Path()]


def _remove(place: Path) -> None:
    if place.is_symlink() or place.is_file():
        place.unlink()
    elif place.is_dir():
        shutil.rmtree(place)
    elif place.exists():
        place.unlink()


def _write(place: Path, entry: _Entry) -> None:
    content = entry.content
    if isinstance(content, str):
        place.symlink_to(content)
    elif isinstance(content, bytes):
        place.write_bytes(content)
        place.chmod(stat.S_IMODE(entry.mode))
    else:
        place.mkdir(exist_ok=True)
        for name, each in content.items():
            _write(place / name, each)
        place.chmod(stat.S_IMODE(entry.mode))

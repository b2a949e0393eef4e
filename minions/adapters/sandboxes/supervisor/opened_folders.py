"""Changes of files below a folder that is opened name by name, so that no link is followed."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator, Sequence
from typing import Final

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_RIGHTS: Final = 0o777


@contextlib.contextmanager
def opened(root: str, names: Sequence[str], *, mend: bool = False) -> Iterator[int]:
    """A folder below the root.

    Args:
        mend: Remove what is no folder on the way, and make what is missing.
    Raises:
        OSError: One of the names is no folder.
    """
    current = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for name in names:
            if mend:
                status = status_of(current, name)
                if status is not None and not stat.S_ISDIR(status.st_mode):
                    os.unlink(name, dir_fd=current)
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, 0o755, dir_fd=current)
            below = os.open(name, _FOLDER, dir_fd=current)
            os.close(current)
            current = below
        yield current
    finally:
        os.close(current)


@contextlib.contextmanager
def opened_in(folder: int, name: str) -> Iterator[int]:
    """A folder in an opened one."""
    below = os.open(name, _FOLDER, dir_fd=folder)
    try:
        yield below
    finally:
        os.close(below)


def status_of(folder: int, name: str) -> os.stat_result | None:
    """The status of an entry; None: there is none."""
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None


def change_mode(folder: int, mode: int) -> None:
    """Change the rights of a folder that was opened with `O_PATH`: by its name it would be what
    somebody put in its place meanwhile, also a link.
    """
    os.chmod(f"/proc/self/fd/{folder}", mode)  # noqa: PTH101  # not a path


def remove(folder: int, name: str) -> None:
    """Remove an entry, whatever it is and however deep; one that is not there is removed already.

    Raises:
        OSError: It cannot be removed.
    """
    status = status_of(folder, name)
    if status is None:
        return
    if not stat.S_ISDIR(status.st_mode):
        os.unlink(name, dir_fd=folder)
        return
    current = _entered(folder, name)
    try:
        left = [_emptied(current)]
        names: list[str] = []
        while left:
            if left[-1]:
                names.append(left[-1].pop())
                below = _entered(current, names[-1])
                left.append(_emptied(below))
            else:
                left.pop()
                if not names:
                    break
                below = os.open("..", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=current)
                os.rmdir(names.pop(), dir_fd=below)
            os.close(current)
            current = below
    finally:
        os.close(current)
    os.rmdir(name, dir_fd=folder)


def _entered(folder: int, name: str) -> int:
    found = os.open(name, _FOLDER | os.O_PATH, dir_fd=folder)
    try:
        with contextlib.suppress(OSError):
            change_mode(found, 0o700)  # it is about to be removed
        return os.open(f"/proc/self/fd/{found}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    finally:
        os.close(found)


def _emptied(folder: int) -> list[str]:
    """The folders in it, after everything else in it was removed."""
    with os.scandir(folder) as found:
        entries = list(found)
    for each in entries:
        if not each.is_dir(follow_symlinks=False):
            os.unlink(each.name, dir_fd=folder)
    return [each.name for each in entries if each.is_dir(follow_symlinks=False)]


def write_file(folder: int, name: str, content: bytes | str, mode: int) -> None:
    """Write a new file, or a link to a text, with its rights."""
    if isinstance(content, str):
        os.symlink(content, name, dir_fd=folder)
        return
    with os.fdopen(os.open(name, _NEW, 0o600, dir_fd=folder), "wb") as file:
        file.write(content)
        os.fchmod(file.fileno(), stat.S_IMODE(mode) & _RIGHTS)

"""Folders as descriptors that are opened name by name, so that a link swapped in is refused."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import secrets
from collections.abc import Iterator, Sequence
from typing import Final

_FOLDER_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@contextlib.contextmanager
def opened_folder(root: str, parts: Sequence[str], *, create: bool = False) -> Iterator[int]:
    """A descriptor of root/parts.

    Raises:
        OSError: There is no such folder, or one of the names is a link.
    """
    with _opened_root(root) as above, folder_below(above, parts, create=create) as folder:
        yield folder


@contextlib.contextmanager
def deepest_folder(root: str, parts: Sequence[str]) -> Iterator[tuple[int, int]]:
    """A descriptor of the deepest folder on the way to root/parts that exists, and how many of the
    names lead to it.

    Raises:
        OSError: The root does not exist, or one of the names is something else than a folder.
    """
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(_opened_root(root))
        depth = 0
        for part in parts:
            try:
                folder = stack.enter_context(folder_below(folder, [part]))
            except FileNotFoundError:
                break
            depth += 1
        yield folder, depth


@contextlib.contextmanager
def _opened_root(root: str) -> Iterator[int]:
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def folder_below(folder: int, parts: Sequence[str], *, create: bool = False) -> Iterator[int]:
    """A descriptor of the folder that the names lead to from an opened one."""
    descriptor = os.dup(folder) if not parts else folder
    try:
        for part in parts:
            if create:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(part, dir_fd=descriptor)
            below = os.open(part, _FOLDER_FLAGS, dir_fd=descriptor)
            if descriptor != folder:
                os.close(descriptor)
            descriptor = below
        yield descriptor
    finally:
        if descriptor != folder:
            os.close(descriptor)


_UNLOCKABLE: Final = frozenset(
    {errno.EBADF, errno.EINVAL, errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP}
)


@contextlib.contextmanager
def locked(folder: int) -> Iterator[None]:
    """Hold an exclusive lock on the entries of `folder`; the end of the process releases it.

    The folder, not the file: a rename replaces the file, and a waiter would hold the old one. File
    systems without such locks are used without waiting. Whoever holds two locks took that of the
    outer folder first.
    """
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
    except OSError as error:
        if error.errno not in _UNLOCKABLE:
            raise
    try:
        yield
    finally:
        # Unlocked explicitly: a process that was forked meanwhile keeps the descriptor open.
        with contextlib.suppress(OSError):
            fcntl.flock(folder, fcntl.LOCK_UN)


def recorded_temporary(name: str, digest: str) -> str:
    """The temporary name under which a file with that content is written, where a rollback must
    find it: the process may be killed before it renames it.
    """
    return f".{hashlib.sha256(f'{name}/{digest}'.encode()).hexdigest()[:16]}.tmp"


def write_and_rename(
    folder: int, name: str, data: bytes, mode: int | None, *, temporary: str | None = None
) -> None:
    """Write a file atomically.

    Args:
        mode: Permission bits; None: those of a new file.
        temporary: The name under which it is written; one that a killed process left is removed.
            None: a random one.
    """
    if temporary is not None:
        remove_file(folder, temporary)
    temporary = temporary or f".{secrets.token_hex(8)}.tmp"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(temporary, flags, 0o666, dir_fd=folder)
    try:
        with os.fdopen(descriptor, "wb") as file:
            if mode is not None:
                os.fchmod(file.fileno(), mode)
            file.write(data)
        os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary, dir_fd=folder)
        raise


def remove_file(folder: int, name: str) -> None:
    """Remove a file; one that does not exist is removed already."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)

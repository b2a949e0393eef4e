"""Restores files on this machine for rollbacks, as confined to their root as the file tools are."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from attrs import frozen

from minions.contracts.file_changes import (
    FileOutcome,
    FileRestorer,
    FileTarget,
    RolledBackFile,
    digest_of,
)
from minions.data.field_repr import FieldsRepr

_FILE_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_PIECE: Final = 1024 * 1024
_CHANGED: Final = "somebody else changed it after the run; it is left as it is"


class _RefusedError(Exception):
    """The path cannot be used; the text says why."""


@frozen
class LocalFileRestorer(FieldsRepr, FileRestorer):
    """Opens folders name by name from the root, so that links are refused, holds the lock of a
    file's folder, and replaces the file by renaming.
    """

    def restore(self, target: FileTarget, *, dry_run: bool) -> RolledBackFile:
        """Restore one file atomically."""
        try:
            outcome, reason = _restore(target, dry_run=dry_run)
        except (OSError, _RefusedError) as error:
            outcome, reason = FileOutcome.REFUSED, _words(error)
        return RolledBackFile(root=target.root, path=target.path, outcome=outcome, reason=reason)

    def remove_folder(
        self, root: str, path: str, *, gone: Collection[str] = (), dry_run: bool
    ) -> RolledBackFile:
        """Remove a folder if it is empty."""
        try:
            outcome, reason = _remove(root, _parts(root, path), gone, dry_run=dry_run)
        except (OSError, _RefusedError) as error:
            outcome, reason = FileOutcome.REFUSED, _words(error)
        return RolledBackFile(root=root, path=f"{path}/", outcome=outcome, reason=reason)


def _words(error: OSError | _RefusedError) -> str:
    if isinstance(error, OSError) and error.errno in (errno.ELOOP, errno.ENOTDIR):
        return "a link, or no folder, is on the way to it by now"
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _parts(root: str, path: str) -> Sequence[str]:
    """The names that lead from the root to the path.

    Raises:
        _RefusedError: They lead elsewhere, or the root has become a link.
    """
    parts = path.split("/")
    if not Path(root).is_absolute() or "\0" in path or not {"", ".", ".."}.isdisjoint(parts):
        raise _RefusedError("it is no path below its root")
    if os.path.realpath(root) != root:
        raise _RefusedError(f"the root '{root}' is a link by now")
    return parts


def _restore(target: FileTarget, *, dry_run: bool) -> tuple[FileOutcome, str | None]:
    from minions.adapters.tools.confined_paths import (
        recorded_temporary,
        remove_file,
        write_and_rename,
    )

    parts = _parts(target.root, target.path)
    name = parts[-1]
    with _folder_of(target.root, parts[:-1]) as folder:
        if folder is not None and not dry_run:
            for digest in target.written:
                remove_file(folder, recorded_temporary(name, digest))
        now = None if folder is None else _digest(folder, name)
        wanted = digest_of(target.content)
        if now == wanted:
            return FileOutcome.UNCHANGED, None
        if now not in target.left or folder is None:
            return FileOutcome.CHANGED_SINCE, _CHANGED
        if target.content is None or wanted is None:
            if not dry_run:
                remove_file(folder, name)
            return FileOutcome.REMOVED, None
        if not dry_run:
            temporary = recorded_temporary(name, wanted)
            write_and_rename(folder, name, target.content, target.mode, temporary=temporary)
        return FileOutcome.RESTORED, None


@contextmanager
def _folder_of(root: str, parents: Sequence[str]) -> Iterator[int | None]:
    """The folder, locked; None: there is none, and nobody makes it while this is held."""
    from minions.adapters.tools.confined_paths import deepest_folder, locked

    if not Path(root).exists():
        yield None
        return
    while True:
        with deepest_folder(root, parents) as (folder, depth), locked(folder):
            if depth == len(parents):
                yield folder
                return
            try:
                os.stat(parents[depth], dir_fd=folder, follow_symlinks=False)
            except FileNotFoundError:
                yield None
                return


def _digest(folder: int, name: str) -> str | None:
    """The digest of a file's content; None: there is none.

    Raises:
        _RefusedError: It is no regular file.
    """
    try:
        descriptor = os.open(name, _FILE_FLAGS, dir_fd=folder)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            raise _RefusedError("it is a link, a device or a socket by now") from error
        raise
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise _RefusedError("it is no file by now")
        digest = hashlib.sha256()
        while piece := file.read(_PIECE):
            digest.update(piece)
    return digest.hexdigest()


def _remove(
    root: str, parts: Sequence[str], gone: Collection[str], *, dry_run: bool
) -> tuple[FileOutcome, str | None]:
    from minions.adapters.tools.confined_paths import locked, opened_folder

    try:
        with opened_folder(root, parts[:-1]) as above, locked(above):
            if dry_run:
                with opened_folder(root, parts) as folder:
                    if not set(os.listdir(folder)) <= set(gone):  # noqa: PTH208  # of a descriptor
                        raise OSError(errno.ENOTEMPTY, "")
            else:
                os.rmdir(parts[-1], dir_fd=above)
    except FileNotFoundError:
        return FileOutcome.UNCHANGED, None
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        return FileOutcome.CHANGED_SINCE, "it is not empty"
    return FileOutcome.REMOVED, None

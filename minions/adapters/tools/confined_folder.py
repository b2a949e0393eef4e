"""Access to files below one root only: paths are resolved, links that lead out are refused.

A change of a file holds the lock of its folder, so that threads and processes wait for each other.
The content of files is the caller's concern.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Final, TypeAlias

from attrs import frozen

from minions.adapters.tools.confined_paths import (
    Place,
    deepest_folder,
    folder_below,
    is_encodable,
    locked,
    opened_folder,
    recorded_temporary,
    refuse_long,
    shown_name,
    write_and_rename,
)
from minions.contracts.file_changes import FileChange, digest_of
from minions.contracts.protected_files import (
    configures,
    entry_configures,
    entry_is_secret,
    folded_name,
    is_git_name,
    is_opened,
    is_secret,
    matches_any,
)
from minions.data.errors import ToolError, UsageError, near_hint, near_names
from minions.data.field_repr import FieldsRepr

# Without O_NONBLOCK, opening a FIFO would block until somebody opens its other end.
_FILE_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@frozen(kw_only=True)
class FolderEntry(FieldsRepr):
    """An entry of a folder."""

    name: str
    type: str
    """`file`, `directory`, `link` or `other`."""
    size_bytes: int | None
    """Size of a file; None for anything else."""


@frozen(kw_only=True)
class ConfinedFolder(FieldsRepr):
    """A folder whose files may be used. Creating the object accesses nothing."""

    root: str
    create: bool = False
    """Whether a missing root is created at its first use."""
    can_create: bool = True
    """Whether the toolset has an option `create`; for messages."""
    exclude: tuple[str, ...] = ()
    """Glob patterns of names, or of paths below the root; the content of
    an excluded folder is excluded too.
    """
    protect: tuple[str, ...] = ()
    """Glob patterns as in `exclude`, of what can be read and not written, besides what configures
    tools outside.
    """
    allow_config: tuple[str, ...] = ()
    """Patterns of what may be written although it configures tools outside."""
    allow_secrets: tuple[str, ...] = ()
    """Patterns of what may be used although it is taken for a secret."""

    def place(self, path: str, *, is_changed: bool = False) -> Place:
        """Resolve `path`: relative to the root, or absolute inside it.

        Args:
            is_changed: Whether it is to be written: then it is checked as by `check_writable`.
        Raises:
            ToolError: It leads out of the root, is excluded, or is taken for a secret.
            UsageError: The root does not exist.
        """
        refuse_long(path)
        root = self._resolved_root()
        if "\0" in path or not is_encodable(path):
            raise ToolError(
                f"The path {path!r} holds characters that no file name has. Give the name of a "
                f"file below '{self.root}'.",
                code="bad-path",
            )
        asked = Path(root, path)
        resolved = Path(os.path.realpath(asked))
        if not resolved.is_relative_to(root):
            raise ToolError(
                f"'{path}' leads out of '{self.root}'. Only files below that root can be used; "
                "give a path relative to it.",
                code="outside-root",
            )
        parts = resolved.relative_to(root).parts
        lexical = Path(os.path.relpath(asked, root)).parts
        if self.is_excluded(parts) or self.is_excluded(lexical):
            raise ToolError(
                f"'{path}' is excluded. Excluded below '{self.root}' are: "
                f"{', '.join(self.exclude)}.",
                code="excluded-path",
            )
        place = Place(root, parts, lexical)
        if is_changed:
            self.check_writable(place)
        is_folder = os.path.isdir(resolved)  # noqa: PTH112  # a path may be too long for `is_dir`
        if any(self._is_secret(root, each, is_folder=is_folder) for each in (parts, lexical)):
            raise ToolError(
                f"'{path}' is taken for a secret, so it is neither read nor written. Whoever wrote "
                "the recipe can open it by name: the toolset's option `allow_secrets`.",
                code="secret-file",
            )
        return place

    def _is_secret(self, root: str, parts: Sequence[str], *, is_folder: bool) -> bool:
        above = _names_of(root)
        return is_secret(
            (*above, *parts), self.allow_secrets, above=len(above), is_folder=is_folder
        )

    def _resolved_root(self) -> str:
        root = os.path.realpath(self.root)
        reason = "is not a directory"
        if self.create:
            try:
                Path(root).mkdir(parents=True, exist_ok=True)
            except OSError as error:
                reason = f"cannot be made: {error.strerror}"
        if not Path(root).is_dir():
            ways = "Create it, or set the toolset's option `root` to one that exists."
            if self.can_create and not self.create:
                ways = f"{ways[:-1]}, or set `create: true`."
            raise UsageError(
                f"The root '{self.root}' ({root}) {reason}. {ways}", code="no-such-root"
            )
        return root

    def is_excluded(self, parts: Sequence[str]) -> bool:
        """Whether a pattern matches the path or a folder above it; case is ignored."""
        return matches_any(parts, self.exclude)

    def check_writable(self, place: Place) -> None:
        """Refuse what configures tools outside or is protected, also below such a folder, and what
        a link of such a name leads to.

        Raises:
            ToolError: `protected-path`.
        """
        own = _names_of(place.root)
        above = own[-2:]  # farther above, a folder of that name holds whole projects
        for parts in (place.parts, place.asked):
            if configures((*above, *parts), self.allow_config, above=len(above)) or any(
                map(is_git_name, own)
            ):
                raise self._configuring(place)
            if matches_any(parts, self.protect):
                raise ToolError(
                    f"'{place.relative}' is protected, so it is not written; the toolset's option "
                    f"`protect` decides. Protected below '{self.root}' are: "
                    f"{', '.join(self.protect)}.",
                    code="protected-path",
                )
        if self._is_led_to(place):
            raise self._configuring(place)

    def _configuring(self, place: Place) -> ToolError:
        ways = "Whoever wrote the recipe can open it by name: the toolset's option `allow_config`."
        if any(map(is_git_name, place.parts)):
            ways = "What Git trusts is changed by the tools of `git` only."
        return ToolError(
            f"'{place.relative}' configures tools that run outside of this work, so it is not "
            f"written. {ways}",
            code="protected-path",
        )

    def _is_led_to(self, place: Place) -> bool:
        """Whether a link that configures tools, in the root or beside, leads to the file."""
        for parts in {(), place.parts[:-1]}:
            names = self._names_above(place.root, parts)
            with contextlib.suppress(OSError), os.scandir(Path(place.root, *parts)) as found:
                for entry in found:
                    if (
                        entry.is_symlink()
                        and entry_configures(names, folded_name(entry.name), is_folder=False)
                        and not is_opened((*parts, entry.name), self.allow_config)
                        and place.path.is_relative_to(os.path.realpath(entry.path))
                    ):
                        return True
        return False

    @contextlib.contextmanager
    def opened(self, place: Place) -> Iterator[BinaryIO]:
        """Open a regular file for reading.

        Raises:
            ToolError: It does not exist; the text suggests similar names.
        """
        with self._failures_told(place), opened_folder(place.root, place.parts[:-1]) as folder:
            name = place.parts[-1] if place.parts else "."
            descriptor = os.open(name, _FILE_FLAGS, dir_fd=folder)
            mode = os.fstat(descriptor).st_mode
            if not stat.S_ISREG(mode):
                os.close(descriptor)
                raise self._not_regular(place, mode)
            with os.fdopen(descriptor, "rb") as file:
                yield file

    def entries(self, place: Place) -> list[FolderEntry]:
        """The entries of a folder without excluded ones, sorted by name.

        Raises:
            ToolError: It does not exist.
        """
        names = self._names_above(place.root, place.parts)
        with (
            self._failures_told(place),
            opened_folder(place.root, place.parts) as folder,
            os.scandir(folder) as found,
        ):
            entries = [
                _entry(entry)
                for entry in found
                if not self.is_excluded(parts := (*place.parts, entry.name))
                and not self._hides(names, parts, is_folder=entry.is_dir(follow_symlinks=False))
            ]
        return sorted(entries, key=lambda entry: entry.name)

    def replace(
        self, place: Place, data: bytes, *, overwrite: bool, record: RecordChange | None = None
    ) -> None:
        """Write a file atomically; missing folders are created, an existing file keeps its
        mode.

        Args:
            record: Called before anything is changed; None: nothing is recorded.
        Raises:
            ToolError: It is not a regular file, has other content and `overwrite` is False, or
                cannot be recorded.
        """
        if not place.parts:
            raise ToolError(f"'.' is the folder '{self.root}' itself; a file name is needed.")
        self.check_writable(place)
        name, temporary = place.parts[-1], None
        with (
            self._failures_told(place),
            self._folder_of(place, data, record) as (folder, is_recorded),
        ):
            mode = self._mode_of_present(place, folder)
            if mode is not None and not overwrite:
                with self.opened(place) as file:
                    if _holds(file, data):
                        return  # a repeated write
                raise ToolError(
                    f"'{place.relative}' exists already. Use overwrite=true, edit it, or choose "
                    "another name.",
                    code="file-exists",
                )
            if record is not None:
                temporary = recorded_temporary(name, digest_of(data) or "")
                if mode is not None or not is_recorded:
                    self._record(place, folder, mode, data, record)
            write_and_rename(folder, name, data, mode, temporary=temporary)

    @contextlib.contextmanager
    def _folder_of(
        self, place: Place, data: bytes, record: RecordChange | None
    ) -> Iterator[tuple[int, bool]]:
        """The folder of a file, locked, and whether the change is recorded already: one that makes
        folders is, before the first of them is made.
        """
        parents = place.parts[:-1]
        if record is None:
            with opened_folder(place.root, parents, create=True) as folder, locked(folder):
                yield folder, False
            return
        while True:
            with deepest_folder(place.root, parents) as (above, depth), locked(above):
                missing = parents[depth:]
                if not missing:
                    yield above, False
                    return
                if _exists(above, missing[0]):  # made before the lock was held
                    continue
                record(change_of(place, None, None, data, folders=len(missing)))
                with folder_below(above, missing, create=True) as folder, locked(folder):
                    yield folder, True
                return

    def _record(
        self, place: Place, folder: int, mode: int | None, data: bytes, record: RecordChange
    ) -> None:
        before = None if mode is None else self._content(place, folder)
        if before != data:
            record(change_of(place, before, mode, data))

    def _content(self, place: Place, folder: int) -> bytes:
        descriptor = os.open(place.parts[-1], _FILE_FLAGS, dir_fd=folder)
        with os.fdopen(descriptor, "rb") as file:
            return recordable(place, file)

    @contextlib.contextmanager
    def changing(
        self, place: Place, record: RecordChange | None = None
    ) -> Iterator[tuple[BinaryIO, Callable[[bytes], None]]]:
        """Open a regular file for a change; yields the file and a function that replaces its
        content.

        Others that change the file through this class wait.

        Args:
            record: Called before the content is replaced; None: nothing is recorded.
        Raises:
            ToolError: It does not exist, cannot be recorded, or another program changed it
                meanwhile.
        """
        self.check_writable(place)
        with (
            self._failures_told(place),
            opened_folder(place.root, place.parts[:-1]) as folder,
            locked(folder),
            self.opened(place) as file,
        ):
            before = os.fstat(file.fileno())
            name, mode = place.parts[-1], stat.S_IMODE(before.st_mode)

            def replace(data: bytes) -> None:
                temporary = None
                if record is not None:
                    temporary = recorded_temporary(name, digest_of(data) or "")
                    self._record(place, folder, mode, data, record)
                now = os.stat(name, dir_fd=folder, follow_symlinks=False)
                if _version(now) != _version(before):  # editors change files without the lock
                    raise ToolError(
                        f"'{place.relative}' was changed by another program meanwhile. Read it "
                        "again. Nothing was changed.",
                        code="file-changed",
                    )
                write_and_rename(folder, name, data, mode, temporary=temporary)

            yield file, replace

    def _mode_of_present(self, place: Place, folder: int) -> int | None:
        try:
            found = os.stat(place.parts[-1], dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            return None
        if not stat.S_ISREG(found.st_mode):
            raise self._not_regular(place, found.st_mode)
        return stat.S_IMODE(found.st_mode)

    def files(self, place: Place) -> Iterator[Place]:
        """Every regular file below a folder, in no particular order; links are not followed."""
        for folder, folders, names in os.walk(place.path):
            above = Path(folder).relative_to(place.root).parts
            last = self._names_above(place.root, above)
            folders[:] = [
                name
                for name in folders
                if not self.is_excluded(parts := (*above, name))
                and not self._hides(last, parts, is_folder=True)
            ]
            for name in names:
                found = Place(place.root, (*above, name))
                if (
                    not self.is_excluded(found.parts)
                    and not self._hides(last, found.parts, is_folder=False)
                    and _is_regular(found.path)
                ):
                    yield found

    def _names_above(self, root: str, parts: Sequence[str]) -> list[str]:
        """The last two of the folded names that lead to a folder."""
        return [folded_name(each) for each in (*_names_of(root)[-2:], *parts)[-2:]]

    def _hides(self, above: Sequence[str], parts: Sequence[str], *, is_folder: bool) -> bool:
        """Whether an entry is taken for a secret; the folders above it are not."""
        name = folded_name(parts[-1])
        return entry_is_secret(above, name, is_folder=is_folder) and not is_opened(
            parts, self.allow_secrets
        )

    def _not_regular(self, place: Place, mode: int) -> ToolError:
        kind = "a folder" if stat.S_ISDIR(mode) else "a device, pipe, socket or link"
        return ToolError(
            f"'{place.relative}' below '{self.root}' is {kind}, not a file.", code="not-a-file"
        )

    @contextlib.contextmanager
    def _failures_told(self, place: Place) -> Iterator[None]:
        """Convert errors that the model can correct to ToolError;
        a full disk is not one of them.
        """
        try:
            yield
        except FileNotFoundError as error:
            raise self._not_found(place) from error
        except OSError as error:
            if error.errno not in _MENDABLE:
                raise
            raise ToolError(
                f"'{place.relative}' below '{self.root}' cannot be used: {error.strerror}.",
                code="file-refused",
            ) from error

    def _not_found(self, place: Place) -> ToolError:
        missing, folder = "", place
        # Not `Path.is_dir`, which raises where a path is too long for the system.
        while folder.parts and not os.path.isdir(folder.path):  # noqa: PTH112
            missing, folder = folder.parts[-1], Place(folder.root, folder.parts[:-1])
        names = [entry.name for entry in self.entries(folder)]
        # Compared as shown: a name that is not UTF-8 looks like the requested one, but is another.
        is_shown = "�" in missing and missing in names
        near = () if is_shown else near_names(missing, names)
        hint = near_hint(near)
        if is_shown:
            hint = f" The name of '{missing}' is not UTF-8, so it cannot be given; rename the file."
        return ToolError(
            f"There is no '{place.relative}' below '{self.root}'.{hint} "
            f"In '{folder.relative}' there are: {', '.join(names[:10]) or 'no files'}"
            f"{' …' if len(names) > 10 else ''}.",
            code="no-such-file",
            suggestions=near,
        )


_MENDABLE: Final = frozenset(
    {
        errno.EACCES,
        errno.EPERM,
        errno.ENOTDIR,
        errno.EISDIR,
        errno.ELOOP,  # a link that was created after the path was resolved
        errno.ENAMETOOLONG,
        errno.ENXIO,
        errno.EROFS,
        errno.EEXIST,
    }
)


_PIECE: Final = 64 * 1024


def _holds(file: BinaryIO, data: bytes) -> bool:
    """Whether this is the file's content. One of another size is not read."""
    if os.fstat(file.fileno()).st_size != len(data):
        return False
    at = 0
    while piece := file.read(_PIECE):
        if piece != data[at : at + len(piece)]:
            return False
        at += len(piece)
    return at == len(data)


def _names_of(root: str) -> tuple[str, ...]:
    """The names of the root's own path: who works within `.ssh` works with secrets."""
    return tuple(each for each in root.split("/") if each)


def _exists(folder: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _version(found: os.stat_result) -> tuple[int, int, int, int]:
    """A version of the file, which changes with its identity or content."""
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _is_regular(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False  # deleted, or not readable


def _entry(entry: os.DirEntry[str]) -> FolderEntry:
    name = shown_name(entry.name)
    if entry.is_symlink():
        return FolderEntry(name=name, type="link", size_bytes=None)
    if entry.is_dir(follow_symlinks=False):
        return FolderEntry(name=name, type="directory", size_bytes=None)
    if not entry.is_file(follow_symlinks=False):
        return FolderEntry(name=name, type="other", size_bytes=None)
    return FolderEntry(name=name, type="file", size_bytes=_size(entry))


def _size(entry: os.DirEntry[str]) -> int | None:
    try:
        return entry.stat(follow_symlinks=False).st_size
    except FileNotFoundError:
        return None  # deleted after it was listed


# --- what is recorded of a change of a file, before it is made, so that it can be undone ---------


RecordChange: TypeAlias = Callable[[FileChange], None]
"""Stores what is needed to undo a change, before it is made. An error of it prevents the change."""


MOST_RECORDED: Final = 8 * 1024 * 1024
"""Bytes of the largest file whose content is recorded before a change."""


def recordable(place: Place, file: BinaryIO) -> bytes:
    """The content of the file.

    Raises:
        ToolError: `file-too-large`; it has more than `MOST_RECORDED` bytes.
    """
    data = file.read(MOST_RECORDED + 1)
    if len(data) > MOST_RECORDED:
        raise ToolError(
            f"'{place.relative}' has more than {MOST_RECORDED} bytes, the most that is recorded "
            "for a rollback (`undo: true`). Nothing was changed.",
            code="file-too-large",
        )
    return data


def change_of(
    place: Place, before: bytes | None, mode: int | None, data: bytes, *, folders: int = 0
) -> FileChange:
    """What is recorded of a change that makes the last `folders` folders above the file.

    Raises:
        ToolError: The path is not UTF-8, so that no record can hold it.
    """
    path = "/".join(place.parts)
    try:
        f"{place.root}/{path}".encode()
    except UnicodeEncodeError as error:
        raise ToolError(
            f"The name of '{place.relative}' is not UTF-8, so its change cannot be recorded for a "
            "rollback. Rename it. Nothing was changed.",
            code="bad-path",
        ) from error
    parents = place.parts[:-1]
    made = range(len(parents) - folders + 1, len(parents) + 1)
    return FileChange(
        root=place.root,
        path=path,
        content=before,
        mode=mode,
        after=digest_of(data) or "",
        folders=tuple("/".join(parents[:end]) for end in made),
    )

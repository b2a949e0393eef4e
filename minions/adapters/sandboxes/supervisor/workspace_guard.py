"""What tools outside trust in a workspace: named before a command, checked after it.

Git's folders, and folders that configure tools, cannot be changed meanwhile: that is the sandbox's
part, which is told their paths. What of that kind is new afterwards is removed, and files that
configure tools are put back. Nothing here follows a link.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from minions.adapters.sandboxes.supervisor.git_trust import (
    GIT_PARTS,
    WRITTEN_BY_GIT,
    is_repository,
    trusted_by_git,
)
from minions.adapters.sandboxes.supervisor.workspace_folders import (
    WalkedFolder,
    opened,
    opened_in,
    remove,
    status_of,
    walk,
    write_file,
)
from minions.contracts.protected_files import (
    GIT_NAMES,
    REFUSED_ENDING,
    entry_configures,
    folded_name,
    is_git_name,
    is_opened,
)

_MOST_BYTES: Final = 64 * 1024 * 1024
_MOST_PROTECTED: Final = 300
_MOST_TOLD: Final = 100
_MOST_KEPT: Final = 2_000
_TRIALS: Final = 6
_CACHES: Final = (".pyc", ".pyo")
_PACKAGES: Final = re.compile(r"(^|/)(node_modules|bower_components|vendor|third_party)(/|$)")
"""In such a folder are packages of others: their names are theirs, and they are code anyway."""
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_OF_OTHER_OBJECTS: Final = ("alternates", "http-alternates")
_BREAKING: Final = ("head", "commondir", "refs", "objects")
"""Parts of a repository, in the order in which they are taken away."""


class ProtectedPath(NamedTuple):
    """A path that a command must not change."""

    path: str
    """Relative to the workspace."""
    is_pinned: bool
    """Whether no folder above it may be renamed: what it means depends on where it is."""


def mounts_of(workspace: str, protected: Iterable[ProtectedPath]) -> list[str]:
    """Arguments of bubblewrap by which the paths can only be read. What is mounted cannot be
    renamed, so the folders above one that is pinned are mounted as they are.

    Links cannot be mounted: they are put back afterwards.
    """
    shown = [each for each in protected if not os.path.islink(f"{workspace}/{each.path}")]  # noqa: PTH114
    above = {
        "/".join(parts[:count])
        for parts in (each.path.split("/") for each in shown if each.is_pinned)
        for count in range(1, len(parts))
    }
    # All folders above before what is in them: a later mount hides those beneath it.
    argv = [("--bind", each) for each in sorted(above)]
    argv += [("--ro-bind", each.path) for each in shown]
    return [part for way, each in argv for part in (way, *[f"{workspace}/{each}"] * 2)]


class _File(NamedTuple):
    """A file that is trusted, as it was."""

    mode: int
    content: bytes | str | None
    """Of a file its bytes, of a link its target; None: it was not read."""
    state: tuple[int, ...] = ()
    """Of a file that was not read: what changes whenever it does."""


_Inode = tuple[int, int]


class _Before:
    """What was trusted in the workspace before the command, by relative path."""

    def __init__(self) -> None:
        self.repositories: set[str] = set()
        """Entries named `.git`, and folders that Git takes for a repository's."""
        self.parts: dict[str, frozenset[str]] = {}
        """Folders with names that a repository's folder has, and these names."""
        self.folders: dict[str, _Inode] = {}
        """Folders that configure tools."""
        self.files: dict[str, _File] = {}
        """Files that configure tools, and pointers to repositories."""
        self.caches: set[tuple[int, ...]] = set()
        """Compiled files: what changes whenever they do."""


class WorkspaceGuard:
    """The state of a workspace before a command."""

    def __init__(
        self, workspace: str, open_names: Sequence[str], kept: Iterable[str], *, is_git: bool
    ) -> None:
        """Look at the workspace.

        Args:
            workspace: Without links.
            open_names: Patterns of what may be changed all the same; never what Git trusts.
            kept: Further paths that the command must not change.
            is_git: Whether the command is one of the project's own for Git: those write the
                repository of the workspace.
        Raises:
            OSError: It cannot be looked through, or there is too much to protect.
        """
        self._workspace = workspace
        self._open_names = tuple(open_names)
        self._name = folded_name(os.path.basename(workspace))  # noqa: PTH119
        self._before = before = _Before()
        self._files_before, self._parts_before = before.files, before.parts
        self._room = _MOST_BYTES
        for folder in walk(workspace):
            self._note(folder)
        if "" in before.repositories or any(map(is_git_name, workspace.split("/"))):
            raise OSError("it is a repository's own folder: name the folder with the files")
        trust = trusted_by_git(workspace, before.repositories)
        self._named = trust.folders | trust.files
        """What pointers and configurations of Git name; it need not exist."""
        for path in self._named:
            self._note_named(path)
        self.writable = self._of_workspace() if is_git else frozenset[str]()
        """Folders of repositories in which the command writes data."""
        self._entries = {each: self._names_in(each) for each in self.writable}
        self.protected = self._protected(frozenset(kept))
        """What the sandbox has to keep from being changed."""
        self._known_folders = frozenset(before.folders.values())
        self._longest: dict[str, int] = {}
        """By folded name, the bytes of the longest file that is known: of no other one more is
        read."""
        for path, each in before.files.items():
            name = folded_name(path.rpartition("/")[2])
            self._longest[name] = max(self._longest.get(name, 0), len(each.content or b""))
        self._known_files = {
            (folded_name(path.rpartition("/")[2]), each.content)
            for path, each in before.files.items()
            if stat.S_ISREG(each.mode) and each.content is not None
        }
        self._done: list[str] = []
        self._count = 0
        self._failure: OSError | None = None

    def restore(self) -> list[str]:
        """Remove what is trusted and was not there, and put back what configures tools.

        Returns:
            The paths; of very many the first.
        Raises:
            OSError: It cannot be done for something, after it was done for all else; what was left
                must not be trusted.
        """
        for _ in range(_TRIALS):
            before = self._count
            self._failure = None
            with self._continuing():
                self._remove_what_is_new()
            if self._count == before and self._failure is None:
                return outermost(self._done)
        raise self._failure or OSError("it is changed whenever it is looked at")

    @contextlib.contextmanager
    def _continuing(self) -> Iterator[None]:
        """Keep a failure for the end: who could cause one would keep all else from being done."""
        try:
            yield
        except OSError as error:  # such as a file that somebody removed meanwhile
            self._failure = error

    # --- before -----------------------------------------------------------------------------------

    def _note(self, folder: WalkedFolder) -> None:
        """Note what is trusted in a folder; what is protected as a whole is not walked."""
        before, path = self._before, folder.path
        parts = _parts_of_repository(folder)
        if parts:
            before.parts[path] = parts
            if is_repository(parts):
                before.repositories.add(path)
                folder.below = []
        left_out: set[str] = set()
        for entry in self._find_trusted(folder):
            below = f"{path}/{entry.name}".lstrip("/")
            is_git = is_git_name(entry.name)
            if is_git:
                before.repositories.add(below)
            if entry.is_dir(follow_symlinks=False):
                left_out.add(entry.name)
                if not is_git:
                    status = entry.stat(follow_symlinks=False)
                    before.folders[below] = (status.st_dev, status.st_ino)
            elif _is_cache(entry.name):
                before.caches.add(_state_of(entry.stat(follow_symlinks=False)))
            else:
                before.files[below] = self._file_before(folder.descriptor, entry.name)
        folder.below = [each for each in folder.below if each not in left_out]

    def _note_named(self, path: str) -> None:
        for folder, name, where, status in self._way(path):
            if not stat.S_ISDIR(status.st_mode):
                self._files_before[where] = self._file_before(folder, name)
            elif where == path:
                self._before.folders[path] = (status.st_dev, status.st_ino)

    def _protected(self, kept: frozenset[str]) -> tuple[ProtectedPath, ...]:
        pinned = {*self._before.repositories, *self._named, *kept} - self.writable
        for folder, names in self._entries.items():
            pinned |= {f"{folder}/{each}" for each in names if not WRITTEN_BY_GIT.fullmatch(each)}
            pinned.add(f"{folder}/objects/info")
        there = {each for each in pinned if self._mode(each) is not None}
        found = {path: path in there for path in {*self._before.folders, *there} - self.writable}
        if len(found) > _MOST_PROTECTED:
            raise OSError(
                f"{len(found)} repositories and folders that configure tools are more than "
                f"{_MOST_PROTECTED}: name a smaller folder as `root`, or open some by name"
            )
        return tuple(ProtectedPath(*each) for each in sorted(found.items()))

    def _of_workspace(self) -> frozenset[str]:
        """The folders of the repository that Git finds in the workspace itself."""
        own = frozenset(each for each in self._before.repositories if is_git_name(each))
        shared = trusted_by_git(self._workspace, own).folders
        return frozenset(each for each in (*own, *shared) if stat.S_ISDIR(self._mode(each) or 0))

    # --- after ------------------------------------------------------------------------------------

    def _remove_what_is_new(self) -> None:
        """Once through all of the workspace."""
        for path in self._named:
            with self._continuing():
                self._check_named(path)
        for walked in walk(self._workspace):
            with self._continuing():
                self._check(walked)
        for path, before in self._files_before.items():
            if is_git_name(path.rpartition("/")[2]) or path in self._named:
                with self._continuing():
                    self._put_back_pointer(path, before)
        for path, names in self._entries.items():
            with self._continuing():
                self._check_repository(path, names)

    def _check_named(self, path: str) -> None:
        for folder, name, where, status in self._way(path):
            if not stat.S_ISDIR(status.st_mode):
                self._check_file(folder, name, where)
            elif where == path:
                self._check_folder(folder, name, where, status)

    def _check(self, folder: WalkedFolder) -> None:
        """Remove from a folder what is trusted and new, and put back what was changed."""
        path = folder.path
        if path in self._before.repositories:
            folder.below = []  # it could not be changed
            return
        left_out = self._break_repository(folder, path)
        added: list[str] = []
        for entry in self._find_trusted(folder):
            left_out.add(entry.name)
            with self._continuing():
                added += self._check_entry(folder.descriptor, entry, path)
        folder.below = [each for each in folder.below if each not in left_out] + added

    def _tell(self, path: str) -> None:
        self._count += 1
        if len(self._done) < _MOST_KEPT:
            # What lies in a folder that was put aside is told by the name that it had.
            self._done.append(path.replace(f"{REFUSED_ENDING}/", "/"))

    def _check_entry(self, folder: int, entry: os.DirEntry[str], above: str) -> list[str]:
        """Remove or put back one entry; the name of a folder that has to be walked now."""
        name = entry.name
        path = f"{above}/{name}".lstrip("/")
        if is_git_name(name):
            if path not in self._before.repositories:
                self._remove(folder, name, path)
        elif entry.is_dir(follow_symlinks=False):
            aside = self._check_folder(folder, name, path, entry.stat(follow_symlinks=False))
            return [aside] if aside else []
        elif not _is_cache(name):
            self._check_file(folder, name, path)
        elif _state_of(entry.stat(follow_symlinks=False)) not in self._before.caches:
            self._remove(folder, name, path)
        return []

    def _remove(self, folder: int, name: str, path: str) -> None:
        remove(folder, name)
        self._tell(path)

    def _break_repository(self, folder: WalkedFolder, path: str) -> set[str]:
        """Put parts aside that make the folder one of a repository; the names that are gone."""
        parts = _parts_of_repository(folder)
        gone: set[str] = set()
        new = parts - self._parts_before.get(path, frozenset())
        for part in sorted(new, key=lambda each: _BREAKING.index(folded_name(each))):
            if is_repository(parts - gone):
                _put_aside(folder.descriptor, part)
                gone.add(part)
                self._tell(f"{path}/{part}".lstrip("/"))
        return gone

    def _check_folder(
        self, folder: int, name: str, path: str, status: os.stat_result
    ) -> str | None:
        """Put a folder that is new aside; its name then."""
        if (status.st_dev, status.st_ino) in self._known_folders:
            return None
        self._tell(path)
        return _put_aside(folder, name)

    def _check_file(self, folder: int, name: str, path: str) -> None:
        """Put a file that is new or changed aside, and write what was there."""
        before = self._files_before.get(path)
        now = self._file_now(folder, name)
        if before is not None and _is_same(before, now):
            return
        is_file, is_named = stat.S_ISREG(now.mode), path in self._named
        if is_file and not is_named and (folded_name(name), now.content) in self._known_files:
            return  # it was copied or moved
        if is_file:
            _put_aside(folder, name)
        else:
            remove(folder, name)
        if before is not None and before.content is not None:
            write_file(folder, name, before.content, before.mode)
        self._tell(path)

    def _put_back_pointer(self, path: str, before: _File) -> None:
        """Put back a pointer or link that Git follows, whatever is there in its place."""
        *above, name = path.split("/")
        if before.content is None and self._mode(path) is None:
            return  # what it was is not known
        with opened(self._workspace, above, mend=True) as folder:
            if status_of(folder, name) is not None:
                if _is_same(before, self._file_now(folder, name)):
                    return
                remove(folder, name)
            if before.content is not None:
                write_file(folder, name, before.content, before.mode)
        self._tell(path)

    def _check_repository(self, path: str, before: frozenset[str]) -> None:
        """Of a repository that was written: remove what holds more than data."""
        new = self._names_in(path) - before
        found = [f"{path}/{each}" for each in new if not WRITTEN_BY_GIT.fullmatch(each)]
        if not any(each.path == f"{path}/objects/info" for each in self.protected):
            found += [f"{path}/objects/info/{each}" for each in _OF_OTHER_OBJECTS]
        for each in found:
            *above, name = each.split("/")
            if self._mode(each) is not None:
                with opened(self._workspace, above) as folder:
                    remove(folder, name)
                self._tell(each)

    # --- looking ----------------------------------------------------------------------------------

    def _find_trusted(self, folder: WalkedFolder) -> list[os.DirEntry[str]]:
        """The entries that Git or other tools trust by their names."""
        path = folder.path
        above = [
            folded_name(each) for each in f"{self._name}/{path}".rstrip("/").rsplit("/", 2)[-2:]
        ]
        is_open = _PACKAGES.search(path) is not None
        found: list[os.DirEntry[str]] = []
        for entry in folder.entries:
            plain = folded_name(entry.name)
            if plain not in GIT_NAMES and (
                is_open
                or not entry_configures(above, plain, is_folder=entry.is_dir(follow_symlinks=False))
                or is_opened(f"{path}/{entry.name}".lstrip("/").split("/"), self._open_names)
            ):
                continue
            found.append(entry)
        return found

    def _file_before(self, folder: int, name: str) -> _File:
        """A file as it is before the command.

        Raises:
            OSError: All of them together are too large to be kept in memory.
        """
        found = _file(folder, name, self._room)
        if found.content is None and not found.state:
            raise OSError(
                f"files that configure tools, such as '{name}', have more than "
                f"{_MOST_BYTES // 1024 // 1024} MiB: open them by name, or name a smaller folder"
            )
        self._room -= len(found.content or b"")
        return found

    def _file_now(self, folder: int, name: str) -> _File:
        return _file(folder, name, self._longest.get(folded_name(name), 0))

    def _way(self, path: str) -> Iterator[tuple[int, str, str, os.stat_result]]:
        """What there is on the way to a path: the folder, opened, name, path and status of each."""
        parts = path.split("/")
        for count, name in enumerate(parts):
            with opened(self._workspace, parts[:count]) as folder:
                status = status_of(folder, name)
                if status is None:
                    return
                yield folder, name, "/".join(parts[: count + 1]), status
                if not stat.S_ISDIR(status.st_mode):
                    return

    def _mode(self, path: str) -> int | None:
        """Kind and mode of a path; None: it does not exist."""
        return next((each.st_mode for _, _, where, each in self._way(path) if where == path), None)

    def _names_in(self, path: str) -> frozenset[str]:
        with opened(self._workspace, path.split("/")) as folder:
            return frozenset(os.listdir(folder))  # noqa: PTH208  # of a descriptor, not of a path


def outermost(paths: Iterable[str]) -> list[str]:
    """The paths that are not below another one, as text; of very many the first."""
    outer: list[str] = []
    for each in sorted({*paths}, key=lambda path: f"{path}/"):
        if not outer or not each.startswith(f"{outer[-1]}/"):
            outer.append(each)
    more = len(outer) - _MOST_TOLD
    told = [os.fsencode(each).decode("utf-8", "replace") for each in outer[:_MOST_TOLD]]
    return [*told, "… and more"] if more > 0 else told


def _parts_of_repository(folder: WalkedFolder) -> frozenset[str]:
    return frozenset(each.name for each in folder.entries if folded_name(each.name) in GIT_PARTS)


def _is_cache(name: str) -> bool:
    return folded_name(name).endswith(_CACHES)


def _state_of(status: os.stat_result) -> tuple[int, ...]:
    times = (status.st_mtime_ns, status.st_ctime_ns)
    return (status.st_dev, status.st_ino, status.st_size, *times)


def _file(folder: int, name: str, most: int) -> _File:
    """A file as it is; of one that is larger, or may not be read, without its content."""
    status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    if stat.S_ISLNK(status.st_mode):
        return _File(status.st_mode, os.readlink(name, dir_fd=folder))
    if not stat.S_ISREG(status.st_mode):
        return _File(status.st_mode, b"")
    try:
        descriptor = os.open(name, _READ, dir_fd=folder)
    except PermissionError:
        return _File(status.st_mode, None, _state_of(status))
    with os.fdopen(descriptor, "rb") as file:
        content = file.read(most + 1)
    return _File(status.st_mode, content if len(content) <= most else None)


def _is_same(before: _File, now: _File) -> bool:
    """What was not read is told by its state; one that is only longer than known has neither."""
    return (stat.S_IFMT(before.mode), before.content, before.state) == (
        *(stat.S_IFMT(now.mode), now.content, now.state),
    )


def _put_aside(folder: int, name: str) -> str | None:
    """Rename it to what no tool reads; None: such a name would be too long, so it is removed."""
    aside = f"{name}{REFUSED_ENDING}"
    try:
        remove(folder, aside)
        os.rename(name, aside, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError:
        remove(folder, name)
        return None
    return aside


# --- files that are put back as they were --------------------------------------------------------


_MOST_KEPT_BYTES: Final = 4 * 1024 * 1024
"""Of all files; each entry counts with one byte besides."""
_DEEPEST: Final = 100
"""Folders in each other: a command may leave any number of them."""


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
        self._left = _MOST_KEPT_BYTES
        self._before = {path: self._present(path) for path in paths}

    def restore(self) -> list[str]:
        """Put back what has changed since; its paths."""
        self._left = _MOST_KEPT_BYTES
        return [path for path, before in self._before.items() if self._put_back(path, before)]

    def _put_back(self, path: str, before: _Entry | None) -> bool:
        try:
            is_same = self._present(path) == before
        except OSError:
            is_same = False
        if is_same and (before is not None or not self._is_hidden(path)):
            return False
        *above, name = path.split("/")
        with opened(self._folder, above, mend=True) as folder:
            remove(folder, name)
            if before is not None:
                _write(folder, name, before)
        return True

    def _is_hidden(self, path: str) -> bool:
        """Whether a link or a file stands where a folder above the path would be."""
        *above, _ = path.split("/")
        for count in range(1, len(above) + 1):
            with opened(self._folder, above[: count - 1]) as folder:
                status = status_of(folder, above[count - 1])
            if status is None:
                return False
            if not stat.S_ISDIR(status.st_mode):
                return True
        return False

    def _present(self, path: str) -> _Entry | None:
        *above, name = path.split("/")
        try:
            with opened(self._folder, above) as folder:
                return self._entry(folder, name)
        except (FileNotFoundError, NotADirectoryError):  # the latter also for a link
            return None

    def _entry(self, folder: int, name: str, depth: int = 0) -> _Entry | None:
        status = status_of(folder, name)
        if status is None:
            return None
        self._left -= 1
        if self._left < 0 or depth > _DEEPEST:
            raise OSError(f"{name}: too large to be protected")
        mode = status.st_mode
        if stat.S_ISLNK(mode):
            return _Entry(0, os.readlink(name, dir_fd=folder))
        if stat.S_ISDIR(mode):
            with opened_in(folder, name) as below:
                names = sorted(os.listdir(below))  # noqa: PTH208  # of a descriptor, not of a path
                found = {each: self._entry(below, each, depth + 1) for each in names}
            return _Entry(mode, {key: each for key, each in found.items() if each is not None})
        if not stat.S_ISREG(mode):
            return _Entry(mode, b"")
        return _Entry(mode, self._bytes(folder, name))

    def _bytes(self, folder: int, name: str) -> bytes:
        with os.fdopen(os.open(name, _READ, dir_fd=folder), "rb") as file:
            data = file.read(self._left + 1)
        self._left -= len(data)
        if self._left < 0:
            raise OSError(f"{name}: too large to be protected")
        return data


def _write(folder: int, name: str, entry: _Entry) -> None:
    content = entry.content
    if isinstance(content, bytes | str):
        write_file(folder, name, content, entry.mode)
        return
    os.mkdir(name, 0o700, dir_fd=folder)
    with opened_in(folder, name) as below:
        for each, inner in content.items():
            _write(below, each, inner)
        os.fchmod(below, stat.S_IMODE(entry.mode))

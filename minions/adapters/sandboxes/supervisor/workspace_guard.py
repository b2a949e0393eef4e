"""What tools outside trust in a workspace: named before a command, checked after it.

Git's folders, and folders that configure tools, cannot be changed meanwhile: that is the sandbox's
part, which is told their paths. What of that kind is new afterwards is removed, and files that
configure tools are put back. Nothing here follows a link.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from minions.adapters.sandboxes.supervisor.git_trust import (
    GIT_PARTS,
    WRITTEN_BY_GIT,
    is_repository,
    trusted_by_git,
)
from minions.adapters.sandboxes.supervisor.opened_folders import (
    mode_of,
    opened,
    remove,
    write_file,
)
from minions.adapters.sandboxes.supervisor.workspace_walk import MovedError, WalkedFolder, walk
from minions.contracts.protected_files import (
    GIT_NAMES,
    REFUSED,
    entry_configures,
    folded_name,
    is_git_name,
    is_opened,
)

__all__ = ["ProtectedPath", "WorkspaceGuard", "mounts_of"]

_MOST_BYTES: Final = 64 * 1024 * 1024
_MOST_PROTECTED: Final = 300
_TRIALS: Final = 6
_CACHES: Final = (".pyc", ".pyo")
_PACKAGES: Final = "node_modules"
"""In such a folder are installed packages: their names are theirs, and they are code anyway."""
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
    """Of a file its bytes, of a link its target; None: it was not read, and is like no other."""


_Inode = tuple[int, int]


class _Found:
    """What is trusted in a workspace at one moment, by relative path."""

    def __init__(self, *, must_fit: bool) -> None:
        self.repositories: set[str] = set()
        """Entries named `.git`, and folders that Git takes for a repository's."""
        self.parts: dict[str, frozenset[str]] = {}
        """Folders with names that a repository's folder has, and these names."""
        self.folders: dict[str, _Inode] = {}
        """Folders that configure tools."""
        self.files: dict[str, _File] = {}
        """Files that configure tools, and entries named `.git` that are no folders."""
        self.caches: dict[str, tuple[int, ...]] = {}
        """Compiled files: what changes whenever they do."""
        self._left = _MOST_BYTES
        self._must_fit = must_fit

    def add_folder(self, folder: int, name: str, path: str) -> None:
        """Note a folder that configures tools."""
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        self.folders[path] = (status.st_dev, status.st_ino)

    def add_file(self, folder: int, name: str, path: str) -> None:
        """Note a file that is trusted.

        Raises:
            OSError: All of them together are too large to be kept in memory.
        """
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        content: bytes | str | None = b""
        if stat.S_ISLNK(status.st_mode):
            content = os.readlink(name, dir_fd=folder)
        elif stat.S_ISREG(status.st_mode):
            with os.fdopen(os.open(name, _READ, dir_fd=folder), "rb") as file:
                content = file.read(self._left + 1)
            if len(content) > self._left:
                content = None
            self._left -= len(content or b"")
        if content is None and self._must_fit:
            raise OSError(
                f"files that configure tools, such as '{path}', have more than "
                f"{_MOST_BYTES // 1024 // 1024} MiB: open them by name, or name a smaller folder"
            )
        self.files[path] = _File(status.st_mode, content)

    def add_cache(self, status: os.stat_result, path: str) -> None:
        """Note a compiled file."""
        times = (status.st_mtime_ns, status.st_ctime_ns)
        self.caches[path] = (status.st_dev, status.st_ino, status.st_size, *times)


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
        self._named: frozenset[str] = frozenset()
        before = self._look(None)
        if "" in before.repositories or any(map(is_git_name, workspace.split("/"))):
            raise OSError("it is a repository's own folder: name the folder with the files")
        trust = trusted_by_git(workspace, before.repositories)
        self._named = trust.folders | trust.files
        self._kept = frozenset(kept)
        self._add_named(before)
        self._before = before
        self._known = frozenset(before.folders.values())
        self.writable = self._of_workspace() if is_git else frozenset[str]()
        """Folders of repositories in which the command writes data."""
        self._entries = {each: self._names_in(each) for each in self.writable}
        self.protected = self._protected()
        """What the sandbox has to keep from being changed."""

    def restore(self) -> list[str]:
        """Remove what is trusted and was not there, and put back what configures tools.

        Returns:
            The paths.
        Raises:
            OSError: It cannot be done; what was left must not be trusted.
        """
        done: list[str] = []
        for _ in range(_TRIALS):
            try:
                found = self._removed()
            except (MovedError, FileNotFoundError):
                continue  # somebody else works here
            if not found:
                return sorted(set(done))
            done += found
        what = f"'{done[0]}' is there again" if done else "it is changed"
        raise OSError(f"{what} whenever it is looked at")

    # --- before -----------------------------------------------------------------------------------

    def _protected(self) -> tuple[ProtectedPath, ...]:
        pinned = {*self._before.repositories, *self._named, *self._kept} - self.writable
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

    # --- looking ----------------------------------------------------------------------------------

    def _look(self, known: frozenset[_Inode] | None) -> _Found:
        """What is trusted now.

        Args:
            known: Folders that configure tools and were there before: they were not changed. None:
                all that are there.
        """
        found = _Found(must_fit=known is None)

        def enter(above: tuple[str, ...], name: str) -> bool:
            path = "/".join((*above, name))
            if is_git_name(name) or "/".join(above) in found.repositories:
                return False
            inode = found.folders.get(path)
            return inode is None or (known is not None and inode not in known)

        for folder in walk(self._workspace, enter):
            self._add(folder, found)
        return found

    def _add(self, folder: WalkedFolder, found: _Found) -> None:
        """Look at the entries of one folder."""
        path = "/".join(folder.parts)
        names = {entry.name: folded_name(entry.name) for entry in folder.entries}
        of_git = frozenset(name for name, plain in names.items() if plain in GIT_PARTS)
        if of_git:
            found.parts[path] = of_git
            if is_repository(of_git):
                found.repositories.add(path)
        above = [self._name, *(folded_name(each) for each in folder.parts)][-2:]
        is_open = _PACKAGES in folder.parts or is_opened(folder.parts, self._open_names)
        for entry in folder.entries:
            plain = names[entry.name]
            is_folder = entry.is_dir(follow_symlinks=False)
            below = f"{path}/{entry.name}" if path else entry.name
            if plain in GIT_NAMES:
                found.repositories.add(below)
                if not is_folder:
                    found.add_file(folder.descriptor, entry.name, below)
                continue
            if is_open or not entry_configures(above, plain, is_folder=is_folder):
                continue
            if is_opened((*folder.parts, entry.name), self._open_names):
                continue
            if is_folder:
                found.add_folder(folder.descriptor, entry.name, below)
            elif plain.endswith(_CACHES):
                found.add_cache(entry.stat(follow_symlinks=False), below)
            else:
                found.add_file(folder.descriptor, entry.name, below)

    def _add_named(self, found: _Found) -> None:
        """Look at what Git's pointers and configurations name."""
        for path in self._named:
            parts = path.split("/")
            for count, name in enumerate(parts):
                with opened(self._workspace, parts[:count]) as folder:
                    mode = mode_of(folder, name)
                    if mode is None:
                        break
                    if not stat.S_ISDIR(mode):  # a link on the way leads elsewhere
                        found.add_file(folder, name, "/".join(parts[: count + 1]))
                        break
                    if count + 1 == len(parts):
                        found.add_folder(folder, name, path)

    def _mode(self, path: str) -> int | None:
        """Kind and mode of a path; None: it does not exist."""
        parts = path.split("/")
        for count, name in enumerate(parts):
            with opened(self._workspace, parts[:count]) as folder:
                mode = mode_of(folder, name)
            if mode is None or count + 1 == len(parts):
                return mode
            if not stat.S_ISDIR(mode):
                return None
        return None

    def _names_in(self, path: str) -> frozenset[str]:
        with opened(self._workspace, path.split("/")) as folder:
            return frozenset(os.listdir(folder))  # noqa: PTH208  # of a descriptor, not of a path

    # --- after ------------------------------------------------------------------------------------

    def _removed(self) -> list[str]:
        """Remove and put back what has to be once; its paths."""
        now = self._look(self._known)
        self._add_named(now)
        return [
            *self._repositories_removed(now),
            *self._files_put_back(now),
            *self._links_put_back(now),
            *self._caches_removed(now),
            *self._folders_put_aside(now),
            *self._entries_removed(),
        ]

    def _repositories_removed(self, now: _Found) -> Iterator[str]:
        for path in sorted(now.repositories - self._before.repositories, reverse=True):
            *above, name = path.split("/")
            if is_git_name(name):
                self._remove(above, name)
                yield path
                continue
            new = now.parts[path] - self._before.parts.get(path, frozenset())
            by_part = {folded_name(each): each for each in new}
            part = next(by_part[each] for each in _BREAKING if each in by_part)
            with opened(self._workspace, [each for each in (*above, name) if each]) as folder:
                _put_aside(folder, part)
            yield f"{path}/{part}".lstrip("/")

    def _files_put_back(self, now: _Found) -> Iterator[str]:
        known = {
            (folded_name(path.rpartition("/")[2]), each.content)
            for path, each in self._before.files.items()
            if stat.S_ISREG(each.mode)
        }
        for path, file in sorted(now.files.items()):
            before = self._before.files.get(path)
            *above, name = path.split("/")
            if before is not None and _is_same(before, file):
                continue
            is_named = is_git_name(name) or path in self._named
            is_file = stat.S_ISREG(file.mode)
            if is_file and not is_named and (folded_name(name), file.content) in known:
                continue  # it was copied or moved
            with opened(self._workspace, above) as folder:
                if is_file and not is_git_name(name):
                    _put_aside(folder, name)
                else:
                    remove(folder, name)
                if before is not None and before.content is not None:
                    write_file(folder, name, before.content, before.mode)
            yield path

    def _links_put_back(self, now: _Found) -> Iterator[str]:
        """Put back pointers and links to repositories that are gone, or are folders now."""
        for path, before in self._before.files.items():
            *above, name = path.split("/")
            is_git = is_git_name(name) or path in self._named
            if is_git and path not in now.files and before.content is not None:
                with opened(self._workspace, above, mend=True) as folder:
                    remove(folder, name)
                    write_file(folder, name, before.content, before.mode)
                yield path

    def _caches_removed(self, now: _Found) -> Iterator[str]:
        known = set(self._before.caches.values())
        for path, state in now.caches.items():
            if state not in known:
                *above, name = path.split("/")
                self._remove(above, name)
                yield path

    def _folders_put_aside(self, now: _Found) -> Iterator[str]:
        for path, inode in sorted(now.folders.items(), reverse=True):
            if inode not in self._known:
                *above, name = path.split("/")
                with opened(self._workspace, above) as folder:
                    _put_aside(folder, name)
                yield path

    def _entries_removed(self) -> Iterator[str]:
        """Of a repository that was written: what holds more than data."""
        for folder, before in self._entries.items():
            for name in self._names_in(folder) - before:
                if not WRITTEN_BY_GIT.fullmatch(name):
                    self._remove(folder.split("/"), name)
                    yield f"{folder}/{name}"
            if any(each.path == f"{folder}/objects/info" for each in self.protected):
                continue  # it could not be changed
            for name in _OF_OTHER_OBJECTS:
                path = f"{folder}/objects/info/{name}"
                if self._mode(path) is not None:
                    self._remove(path.split("/")[:-1], name)
                    yield path

    def _remove(self, above: Iterable[str], name: str) -> None:
        with opened(self._workspace, list(above)) as folder:
            remove(folder, name)


def _is_same(before: _File, now: _File) -> bool:
    if now.content is None:
        return False
    return (stat.S_IFMT(before.mode), before.content) == (stat.S_IFMT(now.mode), now.content)


def _put_aside(folder: int, name: str) -> None:
    """Rename it to what no tool reads; a name that would be too long is removed."""
    aside = f"{name}{REFUSED}"
    try:
        remove(folder, aside)
        os.rename(name, aside, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError:
        remove(folder, name)

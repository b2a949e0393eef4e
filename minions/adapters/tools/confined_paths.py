"""Paths below a root: as a model gives them, resolved, matched by patterns, opened name by name."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import fnmatch
import hashlib
import os
import re
import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from attrs import field, frozen

from minions.data.errors import ToolError
from minions.data.field_repr import FieldsRepr


@frozen
class Place(FieldsRepr):
    """A resolved path, without links."""

    root: str
    """The root, absolute and resolved."""
    parts: tuple[str, ...]
    """Names below the root; empty: the root itself."""
    asked: tuple[str, ...] = field(default=(), eq=False)
    """The names as they were asked for, which may be those of links."""

    @property
    def relative(self) -> str:
        """The path below the root with `/`; `.` for the root."""
        return shown_name("/".join(self.parts) or ".")

    @property
    def path(self) -> Path:
        """The absolute path. Only for looking: it may have become a link since."""
        return Path(self.root, *self.parts)


def shown_name(name: str) -> str:
    """A file name as text: bytes that are not UTF-8 become `�`."""
    return os.fsencode(name).decode("utf-8", "replace")


_LONGEST_PATH: Final = 4_096
"""Bytes of a path: Linux opens none that is longer."""


_MOST_PARTS: Final = 256
"""Names in a path: each is looked up for links, and compared with the patterns of `exclude`."""


def refuse_long(path: str) -> None:
    """Refuse a path that no system opens, before anything is looked up.

    Raises:
        ToolError: `bad-path`.
    """
    parts = path.count("/") + 1
    if len(path) <= _LONGEST_PATH and parts <= _MOST_PARTS:
        return
    raise ToolError(
        f"The path '{path[:60]}…' has {len(path):,} characters and {parts:,} parts; at most "
        f"{_LONGEST_PATH:,} and {_MOST_PARTS} are allowed.",
        code="bad-path",
    )


def is_encodable(path: str) -> bool:
    """Whether the path can be given to the system."""
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        return False
    return True


# --- glob patterns over the parts of a path ------------------------------------------------------


_LONGEST: Final = 1_000
"""Characters of a pattern: models write them, and matching must be quick."""
_CLASS: Final = re.compile(r"\[!?+\]?+[^\]]*\]")


class GlobPattern:
    """One compiled pattern. Case matters; names with a leading dot match too."""

    def __init__(self, pattern: str) -> None:
        """Compile the pattern.

        Raises:
            ToolError: It is empty, too long, or can match nothing below a root.
        """
        if len(pattern) > _LONGEST:
            raise ToolError(
                f"The pattern {pattern[:40]!r}… has {len(pattern)} characters; at most {_LONGEST} "
                "are allowed. Use '*' and '**' for names, or ask several times.",
                code="bad-pattern",
            )
        segments = [segment for segment in pattern.split("/") if segment not in ("", ".")]
        if not segments or pattern.startswith("/") or ".." in segments:
            raise ToolError(
                f"The pattern {pattern!r} must be relative to the root and stay below it, "
                "such as '**/*.py'.",
                code="bad-pattern",
            )
        if _has_choice(pattern):
            raise ToolError(
                f"The pattern {pattern!r} uses braces, which are not known here. Ask once for "
                "each choice.",
                code="bad-pattern",
            )
        if any("[" in _CLASS.sub("", segment) for segment in segments):
            raise ToolError(
                f"The pattern {pattern!r} opens a '[' that is not closed in the same name. Write "
                "'[[]' for the character itself.",
                code="bad-pattern",
            )
        self._segments = [
            None if segment == "**" else re.compile(fnmatch.translate(segment))
            for segment in segments
        ]

    def matches(self, parts: Sequence[str]) -> bool:
        """Whether the whole path matches. The time is proportional to names
        times segments of the pattern.
        """
        reached = self._with_skipped({0})
        for part in parts:
            reached = self._with_skipped(
                {next_at for at in reached for next_at in self._after(at, part)}
            )
        return len(self._segments) in reached

    def _after(self, at: int, part: str) -> Sequence[int]:
        if at == len(self._segments):
            return ()
        segment = self._segments[at]
        if segment is None:
            return (at,)
        return (at + 1,) if segment.match(part) else ()

    def _with_skipped(self, reached: set[int]) -> set[int]:
        """The positions reached when `**` matches no folder."""
        result = set(reached)
        for at, segment in enumerate(self._segments):
            if at in result and segment is None:
                result.add(at + 1)
        return result


def _has_choice(pattern: str) -> bool:
    """Whether braces contain a comma. Linear in the length of the pattern."""
    return any("," in piece.partition("{")[2] for piece in pattern.split("}")[:-1])


# --- folders as descriptors that are opened name by name, so that a link swapped in is refused ---


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

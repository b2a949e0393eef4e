"""What is recorded of a change of a file, before it is made, so that it can be undone."""

from __future__ import annotations

from collections.abc import Callable
from typing import BinaryIO, Final, TypeAlias

from minions.adapters.tools.confined_paths import Place
from minions.contracts.file_changes import FileChange, digest_of
from minions.data.errors import ToolError

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

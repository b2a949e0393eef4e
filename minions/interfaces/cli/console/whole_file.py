"""Files that are written as a whole, so that no reader finds a part of one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from minions.data.errors import EnvironmentRefusedError


def write_whole(path: Path, content: bytes) -> None:
    """Write the file whole or not at all; a link is followed, and the rights of a file stay.

    Raises:
        OSError: It cannot be written; what was there is unchanged.
    """
    target = path.resolve()
    if target.exists() and not target.is_file():  # such as /dev/stdout: nothing can take its place
        target.write_bytes(content)
        return
    with _part_of(target) as (part, stream):
        stream.write(content)
        stream.close()
        if target.exists():
            part.chmod(target.stat().st_mode & 0o777)
        part.replace(target)


@contextmanager
def _part_of(target: Path) -> Iterator[tuple[Path, BinaryIO]]:
    """A new file beside the target, which is gone at the end unless it was moved."""
    part = target.with_name(f".{target.name[:100]}.part-{os.getpid()}")
    opened = os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
    try:
        with os.fdopen(opened, "wb") as stream:
            yield part, stream
    finally:
        part.unlink(missing_ok=True)


def check_writable(path: Path, option: str, *, code: str) -> None:
    """Refuse a file that could not be written later; nothing of it changes.

    Args:
        option: How the user named it, for the message.
    Raises:
        EnvironmentRefusedError: With that code.
    """
    try:
        _try(path)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise EnvironmentRefusedError(
            f"{option} {path}: it cannot be written: {reason}. Nothing was started.", code=code
        ) from error


def _try(path: Path) -> None:
    target = path.resolve()
    if target.is_dir():
        raise IsADirectoryError(0, "it is a folder")
    if target.exists() and not os.access(target, os.W_OK):
        raise PermissionError(0, "it may not be changed")
    if target.is_file() or not target.exists():
        with _part_of(target):
            pass

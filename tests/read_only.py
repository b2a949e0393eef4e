"""Files and folders that a test may read and not write, also where it runs as root."""

from __future__ import annotations

import contextlib
import importlib
import os
import pkgutil
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import minions

__all__ = ["IS_ROOT", "contents_of", "open_folder", "without_rights"]

IS_ROOT: Final = os.geteuid() == 0
_NOBODY: Final = 65534


@contextlib.contextmanager
def open_folder() -> Iterator[Path]:
    """Where anybody may write; folders of the tests are closed to others."""
    folder = Path(tempfile.mkdtemp(prefix="minions-"))
    folder.chmod(0o777)
    try:
        yield folder
    finally:
        folder.chmod(0o777)
        shutil.rmtree(folder)


@contextlib.contextmanager
def without_rights() -> Iterator[None]:
    """As nobody, where this process is root, which may do anything."""
    if not IS_ROOT:
        yield
        return
    _load_package()
    os.seteuid(_NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


def contents_of(folder: Path) -> dict[str, bytes]:
    """What each file there holds."""
    return {each.name: each.read_bytes() for each in folder.iterdir()}


def _load_package() -> None:
    """Import what is imported when it is first used: nobody may not read a folder of root's."""
    for module in pkgutil.walk_packages(minions.__path__, "minions."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)

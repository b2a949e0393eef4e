"""A SQLite file of ours that cannot be written: read as it is, with nothing made beside it.

How a file that can be written is opened is in `sqlite_database`.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final, TypeAlias, TypeVar

from minions.adapters.stores.sqlite_database import (
    applied_migrations,
    apply_missing,
    check_applied,
    is_refused_write,
    transaction,
)

T = TypeVar("T")

_BESIDE: Final = ("-wal", "-shm")
_BUSY_MS: Final = 5

_State: TypeAlias = tuple[tuple[int, int, int] | None, ...]
"""Inode, size and time of change of the file and of its log."""


def may_be_written(path: Path) -> bool:
    """Whether SQLite can write the file: also what it needs beside it, there or to be made.

    A file that is not there yet is left to whoever creates it.
    """
    if not path.is_file():
        return True
    beside = [path.with_name(path.name + end) for end in _BESIDE]
    there = [each for each in beside if each.exists()]
    needed = [path, *there] if there == beside else [path, *there, path.parent]
    return all(_is_writable(each) for each in needed)


def _is_writable(path: Path) -> bool:
    return os.access(path, os.W_OK, effective_ids=os.access in os.supports_effective_ids)


class ReadOnlyDatabase:
    """A connection that reads a file which this process cannot write.

    Where the file holds everything, SQLite reads it without locks and without files beside it.
    That is right as long as nobody changes it, which is seen by its state; so somebody else may
    write it meanwhile. Where a log beside it holds the newest rows, SQLite reads both under its
    locks. What must be written to be read (migrations, rows that are made of others) is written to
    a copy, which is this process's own and is gone with it.
    """

    def __init__(self, path: Path, migrations: Mapping[str, str]) -> None:
        """Open it.

        Args:
            migrations: SQL by name, oldest first.
        Raises:
            JournalError: It cannot be read, is newer than `migrations`, or holds something else.
            sqlite3.Error: SQLite refuses it.
        """
        self._path = path
        self._state = _state(path)
        self._is_copy = False
        self._has_log = _has_log(self._state)
        self.connection = _reading(path, has_log=self._has_log)
        try:
            self._migrate(migrations)
        except BaseException:
            self.connection.close()
            raise

    @property
    def is_current(self) -> bool:
        """Whether what was read since it was opened is what the file held."""
        if self._has_log and not self._is_copy:  # locks see to it
            return True
        return _state(self._path) == self._state

    def do(self, work: Callable[[sqlite3.Connection], T], *, is_derived: bool) -> T:
        """`work`, with the file or with the copy.

        Args:
            is_derived: It writes only what can be made again of the rest; it may write to a copy.
        """
        try:
            return work(self.connection)
        except sqlite3.Error as error:
            if not (is_derived and is_refused_write(error)):
                raise
        with self._writing_a_copy() as copy:
            return work(copy)

    @contextlib.contextmanager
    def _writing_a_copy(self) -> Iterator[sqlite3.Connection]:
        if not self._is_copy:
            copy = _copy_of(self.connection)
            self.connection.close()
            self.connection, self._is_copy = copy, True
        self.connection.execute("PRAGMA query_only = OFF")
        try:
            yield self.connection
        finally:
            self.connection.execute("PRAGMA query_only = ON")

    def _migrate(self, migrations: Mapping[str, str]) -> None:
        applied = applied_migrations(self.connection, self._path)
        if check_applied(applied, self._path, migrations):
            return
        with self._writing_a_copy() as copy, transaction(copy):
            apply_missing(copy, applied, migrations)


def _reading(path: Path, *, has_log: bool) -> sqlite3.Connection:
    if not has_log:
        return _connected(path, "mode=ro&immutable=1")
    connection = _connected(path, "mode=ro&readonly_shm=1")
    try:
        connection.execute("SELECT 1 FROM sqlite_master").fetchone()
    except sqlite3.OperationalError:  # without a -shm nobody has it open: the two files are whole
        connection.close()
        if path.with_name(f"{path.name}-shm").exists():
            raise
        return _with_its_log(path)
    return connection


def _connected(path: Path, options: str) -> sqlite3.Connection:
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?{options}",
        uri=True,
        isolation_level=None,
        check_same_thread=False,
    )
    connection.execute(f"PRAGMA busy_timeout = {_BUSY_MS}")
    return connection


def _with_its_log(path: Path) -> sqlite3.Connection:
    """A copy of the file with what its log holds."""
    import shutil  # with `tempfile` a mebibyte, which every run would hold
    import tempfile

    with tempfile.TemporaryDirectory(prefix="minions-") as folder:
        for end in ("", "-wal"):
            shutil.copyfile(path.with_name(path.name + end), Path(folder) / f"copy{end}")
        with contextlib.closing(sqlite3.connect(Path(folder) / "copy")) as source:
            return _copy_of(source)


def _copy_of(source: sqlite3.Connection) -> sqlite3.Connection:
    """In memory, and in an unnamed file where it is large."""
    copy = sqlite3.connect("", isolation_level=None, check_same_thread=False)
    source.backup(copy)
    copy.execute("PRAGMA query_only = ON")
    return copy


def _state(path: Path) -> _State:
    return tuple(_state_of(path.with_name(path.name + end)) for end in ("", "-wal"))


def _state_of(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def _has_log(state: _State) -> bool:
    return state[1] is not None and state[1][1] > 0

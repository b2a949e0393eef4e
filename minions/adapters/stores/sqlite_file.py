"""One SQLite file of ours in use: opened at its first use, waited for, faults put in words.

What is stored in it is not known here; how it is opened and migrated is in `sqlite_database`.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias, TypeVar

from minions.adapters.daemon_thread import OneThread
from minions.adapters.stores.migrations import missing_migrations
from minions.adapters.stores.sqlite_database import (
    FileIdentity,
    applied_migrations,
    apply_migrations,
    bundled_migrations,
    damaged,
    identity_of,
    is_busy,
    is_refused_write,
    journal_error,
    journal_gone,
    open_again,
    open_database,
    transaction,
)
from minions.contracts.runtime import Sleep, WorkSlices
from minions.data.errors import JournalError

T = TypeVar("T")

_LONGEST_PAUSE_S: Final = 0.05
_OPERATIONS: Final = 50_000
"""Instructions of SQLite's machine in a moment: some two milliseconds."""
_UNITS: Final = 4
"""Usual calls that a look-up counts as."""
_CALLS: Final = 16
"""Calls in a turn: some milliseconds of work, with what is done between them."""
_LEAST_S: Final = 0.25
"""How long a call waits when the time of all calls is used up: the lock may just have gone."""


class DamageError(Exception):
    """A row holds what was never written to it; the text says what."""


class _LongReadError(Exception):
    """A query takes longer than a moment."""


def _within_a_moment(work: Callable[[sqlite3.Connection], T], db: sqlite3.Connection) -> T:
    """What `work` gives.

    Raises:
        _LongReadError: It takes longer.
    """
    db.set_progress_handler(lambda: 1, _OPERATIONS)
    try:
        return work(db)
    except sqlite3.OperationalError as error:
        if error.sqlite_errorname == "SQLITE_INTERRUPT":
            raise _LongReadError from error
        raise
    finally:
        db.set_progress_handler(None, 0)


class SqliteFile:
    """One connection to a database that other processes use, too."""

    def __init__(
        self,
        path: Path,
        *,
        busy_timeout_s: float,
        sleep: Sleep,
        monotonic: Callable[[], float] = time.monotonic,
        migrations: Mapping[str, str] | None = None,
    ) -> None:
        """No I/O here.

        Args:
            path: Of the database; created 0600, its missing directories 0700. One that cannot be
                written is read as it is.
            busy_timeout_s: How long calls wait for a lock of another process, all calls together:
                what is called after that waits a quarter of a second, until the lock is gone.
            migrations: SQL by name, oldest first; None: those of this package.
        """
        self.path = path
        self._place = str(path)
        self._patience = _Patience(busy_timeout_s, monotonic)
        self._sleep = sleep
        self._migrations = migrations
        self._connection: sqlite3.Connection | None = None
        self._read_only: ReadOnlyDatabase | None = None
        """That of the connection, of a file that cannot be written."""
        self.openings = 0
        """How often it was opened: versions of two connections cannot be compared."""
        self._file: FileIdentity | None = None
        """Of the open file."""
        self._is_gone = False
        """Whether something else, or nothing, stood in its place when it was last looked for."""
        # It may serve the event loops of several threads; a transaction is never split.
        self._lock = threading.Lock()
        self._slices = WorkSlices(_CALLS)
        self._beside = OneThread("minions-sqlite")
        self._other: tuple[int, sqlite3.Connection] | None = None
        """The connection of the thread, and which opening of the file it belongs to."""
        self._other_lock = threading.Lock()

    def close(self) -> None:
        """Close the file; a later call opens it again."""
        with self._lock:
            self._close_other()
            self._close()  # last: an interrupted connection leaves its log behind

    def close_beside(self) -> None:
        """Close the connection of the thread, for work that wants the file alone."""
        with self._lock:
            self._close_other()

    def _close_other(self) -> None:
        other = self._other
        if other is None:
            return
        other[1].interrupt()  # nobody waits for a long reading
        with self._other_lock:
            other[1].close()
            if self._other is other:
                self._other = None

    def _close(self) -> None:
        reading = self._read_only
        if self._connection is not None:
            (self._connection if reading is None else reading.connection).close()
            self._connection = self._read_only = None

    async def run(
        self,
        work: Callable[[sqlite3.Connection], T],
        *,
        is_landmark: bool = False,
        is_derived: bool = False,
        is_at_once: bool = False,
        units: int = 1,
    ) -> T:
        """`work` in this thread; again after a pause while another process is in the way.

        Many calls are made in turns with other work of the event loop.

        Args:
            is_landmark: Make sure before that the file still stands where it was opened.
            is_derived: It writes only what can be made again of the rest. Where the file cannot be
                written, it works on a copy, which later calls read.
            is_at_once: It is done before later calls: whoever makes many of them takes turns.
            units: How much work it is, in usual calls.
        Raises:
            JournalError: The file cannot be used, is gone, or stayed busy.
        """
        if not is_at_once and self._slices.is_over(units):
            await asyncio.sleep(0)  # before anything is stored: this may be cancelled
        pauses = None
        while True:
            try:
                done = self._attempt(work, is_landmark=is_landmark, is_derived=is_derived)
            except sqlite3.OperationalError as error:  # busy: _attempt lets no other of these out
                pauses = pauses or self._patience.pauses(self._changes)
                pause_s = self._pause(pauses, error)
            else:
                if self._patience.since is not None and (
                    pauses or self._patience.changes != self._changes
                ):
                    self._patience.restore()
                return done
            await self._sleep(pause_s)

    async def read(
        self,
        *,
        few: Callable[[sqlite3.Connection], T | None],
        all: Callable[[sqlite3.Connection], T],  # noqa: A002  # as against a few
    ) -> T:
        """What one of these gives, which only read.

        Args:
            few: Called at once, for what takes a moment; None: it would take longer.
            all: Called in a thread if that is not enough.
        Raises:
            JournalError: As `run`.
        """
        with contextlib.suppress(_LongReadError):
            found = await self.run(partial(_within_a_moment, few), units=_UNITS)
            if found is not None:
                return found
        return await self.beside(all)

    async def beside(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """`work` in a thread, with a connection of its own: it may take long.

        Raises:
            JournalError: As `run`.
        """
        if self._connection is None or self._read_only is not None:
            return await self.run(work)
        pauses = None
        while True:
            try:
                return await self._beside.run(lambda: self._attempt_beside(work))
            except sqlite3.OperationalError as error:  # as above
                pauses = pauses or self._patience.pauses(self._changes)
                pause_s = self._pause(pauses, error)
            await self._sleep(pause_s)

    async def compute(self, work: Callable[[], T]) -> T:
        """`work()` in that thread, without a connection."""
        return await self._beside.run(work)

    def _pause(self, pauses: Iterator[float], error: sqlite3.OperationalError) -> float:
        pause_s = next(pauses, None)
        if pause_s is None:
            raise journal_error(self.path, error) from error
        return pause_s

    @property
    def _changes(self) -> int:
        """Rows that the open connection has written."""
        return self._connection.total_changes if self._connection is not None else 0

    def _attempt(
        self, work: Callable[[sqlite3.Connection], T], *, is_landmark: bool, is_derived: bool
    ) -> T:
        with self._lock:
            try:
                connection = self._connection
                is_plain = connection is not None and self._read_only is None
                if connection is not None and is_plain and not (is_landmark or self._is_gone):
                    return work(connection)
                return self._finish(work, is_landmark=is_landmark, is_derived=is_derived)
            except (sqlite3.Error, UnicodeError, DamageError) as error:
                if isinstance(error, sqlite3.Error) and is_busy(error):
                    raise
                raise self._told(error) from error

    def _attempt_beside(self, work: Callable[[sqlite3.Connection], T]) -> T:
        with self._other_lock:
            try:
                other = self._other
                if other is None or other[0] != self.openings:
                    if other is not None:
                        other[1].close()
                    other = self._other = (self.openings, open_again(self.path))
                return work(other[1])
            except (sqlite3.Error, UnicodeError, DamageError) as error:
                if isinstance(error, sqlite3.Error) and is_busy(error):
                    raise
                raise self._told(error) from error

    def _told(self, error: sqlite3.Error | UnicodeError | DamageError) -> JournalError:
        """The fault as an error of ours."""
        if isinstance(error, sqlite3.Error):
            if is_refused_write(error):
                self._close()  # it may be writable at the next call
            return journal_error(self.path, error)
        if isinstance(error, UnicodeEncodeError):
            return JournalError(
                f"A name of {error.object!r} cannot be stored in {self.path}: {error.reason}. "
                "Keys and ids are plain Unicode text; odd text belongs in the body.",
                code="bad-text",
            )
        # sqlite3's own message of a damaged text quotes all of it
        is_text = isinstance(error, UnicodeError)
        return damaged(self.path, "a text in it is no UTF-8" if is_text else str(error))

    def _finish(
        self, work: Callable[[sqlite3.Connection], T], *, is_landmark: bool, is_derived: bool
    ) -> T:
        """Where only others may write the file: again if one of them did so meanwhile."""
        while True:
            connection = self._open(is_landmark=is_landmark)
            reading = self._read_only
            if reading is None:
                return work(connection)
            try:
                done = reading.do(work, is_derived=is_derived)
            except (sqlite3.Error, DamageError, UnicodeDecodeError):
                if reading.is_current:
                    raise
            else:
                if reading.is_current:
                    return done

    def _open(self, *, is_landmark: bool) -> sqlite3.Connection:
        if self._read_only is not None and not self._read_only.is_current:
            self._close()
        if self._connection is None:
            self._connection = self._opened()
            self.openings += 1
            self._file = identity_of(self._place)
            self._is_gone = self._file is None
        elif is_landmark or self._is_gone:  # it may have been put back
            self._is_gone = self._file is None or identity_of(self._place) != self._file
        if self._is_gone:  # nothing is written that nobody would find
            raise journal_gone(self.path)
        return self._connection

    def _opened(self) -> sqlite3.Connection:
        migrations = self._migrations or bundled_migrations()
        if may_be_written(self.path):
            return open_database(self.path, migrations)
        self._read_only = ReadOnlyDatabase(self.path, migrations)
        return self._read_only.connection


class _Patience:
    """How long calls wait while another process has a lock, all of them together.

    A run whose fact cannot be stored stores its failure next, and gives back its lease: with a
    time of its own for each call it would say three times too late that the database is busy.
    """

    def __init__(self, total_s: float, monotonic: Callable[[], float]) -> None:
        self._total_s = total_s
        self._monotonic = monotonic
        self.since: float | None = None
        """When a call first met the lock; None: none did since the last write."""
        self._last = 0.0
        """When a call last met it."""
        self.changes = 0
        """Rows that had been written when it was first met."""

    def restore(self) -> None:
        """The lock is gone."""
        self.since = None

    def pauses(self, changes: int) -> Iterator[float]:
        """Short ones first; they end with the time that is left to the call."""
        begin = self._monotonic()
        if self.since is None or begin - self._last > self._total_s:
            self.since, self.changes = begin, changes
        left_s = max(self.since + self._total_s - begin, min(_LEAST_S, self._total_s))
        spent = 0.0
        for attempt in itertools.count(1):
            self._last = self._monotonic()
            pause_s = min(_LONGEST_PAUSE_S, 0.002 * attempt)
            spent = max(spent, self._last - begin) + pause_s
            if spent > left_s:
                return
            yield pause_s


# --- a SQLite file of ours that cannot be written ------------------------------------------------


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
        missing = missing_migrations(applied, migrations, str(self._path))
        if not missing:
            return
        with self._writing_a_copy() as copy, transaction(copy):
            apply_migrations(copy, missing, migrations)


def _reading(path: Path, *, has_log: bool) -> sqlite3.Connection:
    if not has_log:
        return _connect(path, "mode=ro&immutable=1")
    connection = _connect(path, "mode=ro&readonly_shm=1")
    try:
        connection.execute("SELECT 1 FROM sqlite_master").fetchone()
    except sqlite3.OperationalError:  # without a -shm nobody has it open: the two files are whole
        connection.close()
        if path.with_name(f"{path.name}-shm").exists():
            raise
        return _with_its_log(path)
    return connection


def _connect(path: Path, options: str) -> sqlite3.Connection:
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

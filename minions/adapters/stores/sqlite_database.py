"""A SQLite file of ours: created private, migrated with a backup, errors put in words.

What is stored in it is not known here.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

from minions.adapters.stores.migrations import missing_migrations
from minions.data.errors import JournalError

SqliteRow: TypeAlias = tuple[Any, ...]  # Any: SQLite keeps values of any kind in any column

FileIdentity: TypeAlias = tuple[int, int]
"""Device and inode: the same file, whatever its name."""

_INLINE_BUSY_MS: Final = 5
"""How long a call may block the event loop; longer waits are the caller's, between calls."""

_CHECKPOINT_PAGES: Final = 4_000
"""16 MiB: the file itself is written a quarter as often as by default."""


@functools.cache
def bundled_migrations() -> Mapping[str, str]:
    """The SQL of each migration by its name (`0001_journal`), oldest first; read once."""
    scripts = sorted(Path(__file__).with_name("sqlite_migrations").glob("*.sql"))
    return {script.stem: script.read_text("utf-8") for script in scripts}


def open_database(path: Path, migrations: Mapping[str, str]) -> sqlite3.Connection:
    """The database at `path`, created or migrated as needed; in WAL mode, autocommit.

    Args:
        migrations: SQL by name, oldest first.
    Raises:
        JournalError: It cannot be opened, is newer than `migrations`, or holds something else.
        sqlite3.OperationalError: It is busy just now (`is_busy`); try again.
    """
    try:
        _create_private(path)
    except OSError as error:
        raise _os_error(path, error) from error
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    try:
        connection.execute(f"PRAGMA busy_timeout = {_INLINE_BUSY_MS}")
        _prepare(connection, path, migrations)
    except BaseException as error:
        connection.close()
        if isinstance(error, sqlite3.Error) and not is_busy(error):
            raise journal_error(path, error) from error
        raise
    return connection


def open_again(path: Path) -> sqlite3.Connection:
    """A further connection to a database that `open_database` has opened."""
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    try:
        connection.execute(f"PRAGMA busy_timeout = {_INLINE_BUSY_MS}")
        connection.execute("PRAGMA synchronous = NORMAL")
    except BaseException:
        connection.close()
        raise
    return connection


def _create_private(path: Path) -> None:
    """SQLite gives its -wal and -shm files the mode of the file itself."""
    for folder in reversed(path.parents):
        if not folder.exists():
            folder.mkdir(mode=0o700, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))


def _prepare(connection: sqlite3.Connection, path: Path, migrations: Mapping[str, str]) -> None:
    # Looked at first: a file of somebody else is left exactly as it is.
    missing = missing_migrations(applied_migrations(connection, path), migrations, str(path))
    (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        raise JournalError(
            f"{path}: this file system gives SQLite no write-ahead log (mode '{mode}'). "
            "Put the database on a local disk.",
            code="no-wal",
        )
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute(f"PRAGMA wal_autocheckpoint = {_CHECKPOINT_PAGES}")
    if missing:
        _migrate(connection, path, migrations)


def applied_migrations(connection: sqlite3.Connection, path: Path) -> Sequence[str]:
    """The names of the migrations that made the database, oldest first; none: it is new.

    Raises:
        JournalError: `not-a-journal`; it is a database of another program.
    """
    tables = {
        name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type='table'")
    }
    if "applied_migrations" in tables:
        rows = connection.execute("SELECT name FROM applied_migrations ORDER BY name")
        return [name for (name,) in rows]
    if tables:
        raise JournalError(
            f"{path} is a SQLite database of another program (it has the table "
            f"'{min(tables)}'). Give the journal a file of its own.",
            code="not-a-journal",
        )
    return []


def _migrate(connection: sqlite3.Connection, path: Path, migrations: Mapping[str, str]) -> None:
    with transaction(connection):
        # Read again: another process may have migrated while this one waited for the lock.
        applied = applied_migrations(connection, path)
        missing = missing_migrations(applied, migrations, str(path))
        if not missing:
            return
        if applied:
            _back_up(path, version=applied[-1].partition("_")[0])
        apply_migrations(connection, missing, migrations)


def apply_migrations(
    connection: sqlite3.Connection, names: Sequence[str], migrations: Mapping[str, str]
) -> None:
    """Apply the migrations of these names, and note them; begins no transaction."""
    connection.execute(
        "CREATE TABLE IF NOT EXISTS applied_migrations "
        "(name TEXT PRIMARY KEY, applied_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP)"
    )
    for name in names:
        for statement in _statements(migrations[name]):
            connection.execute(statement)
        connection.execute("INSERT INTO applied_migrations (name) VALUES (?)", (name,))


def _back_up(path: Path, *, version: str) -> None:
    """Through a connection of its own: it sees what was committed before this migration."""
    target = path.with_name(f"{path.name}.bak-{version}")
    target.unlink(missing_ok=True)
    os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    with (
        contextlib.closing(sqlite3.connect(path)) as source,
        contextlib.closing(sqlite3.connect(target)) as copy,
    ):
        source.backup(copy)


def _statements(script: str) -> Iterator[str]:
    """One at a time: `executescript` would commit the transaction it runs in."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
    if statement.strip():
        yield statement


class transaction:  # noqa: N801  # it is used as the function that it would be with a generator
    """All or nothing; takes the right to write at once, so it cannot fail half-way for it."""

    __slots__ = ("_connection",)

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def __enter__(self) -> None:
        self._connection.execute("BEGIN IMMEDIATE")

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        connection = self._connection
        try:
            if kind is None:
                connection.execute("COMMIT")
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")


def is_busy(error: sqlite3.Error) -> bool:
    """Whether another connection is in the way, so that trying again can help."""
    return _cause(error) in ("SQLITE_BUSY", "SQLITE_LOCKED")


def is_refused_write(error: sqlite3.Error) -> bool:
    """Whether it is refused only because it would write."""
    return _cause(error) == "SQLITE_READONLY"


def _cause(error: sqlite3.Error) -> str:
    """`SQLITE_FULL`, without what SQLite adds behind it (`SQLITE_IOERR_READ`)."""
    name = getattr(error, "sqlite_errorname", None) or ""
    return "_".join(name.split("_")[:2])


_REMEDIES: Final[Mapping[str, tuple[str, str]]] = {
    "SQLITE_NOTADB": (
        "not-a-database",
        "The file is no SQLite database. Give the journal a file of its own.",
    ),
    "SQLITE_CORRUPT": (
        "corrupt-database",
        "The file is damaged. Restore a backup, or move it away to start with an empty one.",
    ),
    "SQLITE_READONLY": (
        "read-only",
        (
            "The file, a -wal or -shm beside it, or its directory is read-only. Make all writable. "
            "Until then its runs can be listed, shown, compared and exported; to run something, "
            "name another database with --db."
        ),
    ),
    "SQLITE_BUSY": (
        "database-busy",
        "Another process keeps it locked. End that process, or wait and try again.",
    ),
    "SQLITE_FULL": ("disk-full", "The disk is full. Free some space and resume the run."),
    "SQLITE_CANTOPEN": (
        "cannot-open",
        "Check that its directory exists and is writable and that the path is a file.",
    ),
    "SQLITE_IOERR": (
        "io-error",
        "The disk failed to read or write. Check the disk and its free space.",
    ),
}
_SYNONYMS: Final[Mapping[str, str]] = {
    "SQLITE_LOCKED": "SQLITE_BUSY",
    "SQLITE_PERM": "SQLITE_CANTOPEN",
    "SQLITE_AUTH": "SQLITE_CANTOPEN",
}


def journal_error(path: Path, error: sqlite3.Error) -> JournalError:
    """What went wrong with the file, as a person can use it."""
    cause = _cause(error)
    # Of damaged text sqlite3 quotes all; a damaged schema lacks what the version says is there.
    if _is_about_text(error):
        return damaged(path, "a text in it is no UTF-8")
    if cause == "SQLITE_ERROR" and any(words in str(error) for words in _OF_LOST_SCHEMAS):
        return damaged(path, str(error))
    code, remedy = _REMEDIES.get(
        _SYNONYMS.get(cause, cause), ("journal", "Restore a backup, or use another file.")
    )
    return JournalError(
        f"The journal {path} cannot be used: {error}. {remedy}", code=code, where=str(path)
    )


_OF_LOST_SCHEMAS: Final = ("no such table", "no such column", "has no column", "malformed")


def damaged(path: Path, what: str) -> JournalError:
    """The file holds what was never written to it."""
    code, remedy = _REMEDIES["SQLITE_CORRUPT"]
    return JournalError(
        f"The journal {path} cannot be used: {what}. {remedy}", code=code, where=str(path)
    )


def identity_of(path: Path | str) -> FileIdentity | None:
    """Which file stands at `path` (2 µs); None where none can be seen.

    SQLite goes on writing to a file that was unlinked, without a word.
    """
    try:
        found = os.stat(path)  # noqa: PTH116  # it stands at each start of a run: a `Path` is slow
    except OSError:
        return None
    return found.st_dev, found.st_ino


def journal_gone(path: Path) -> JournalError:
    """The file is not the one that was opened."""
    return JournalError(
        f"The journal {path} was deleted, moved or replaced while it was in use: what is written "
        "now would be lost. Put the file back, or start with another one, and leave it alone "
        "while something runs.",
        code="database-gone",
        where=str(path),
    )


_OS_CAUSES: Final[Mapping[int, str]] = {
    errno.ENOSPC: "SQLITE_FULL",
    errno.EDQUOT: "SQLITE_FULL",
    errno.EROFS: "SQLITE_READONLY",
    errno.EIO: "SQLITE_IOERR",
}


def _os_error(path: Path, error: OSError) -> JournalError:
    code, remedy = _REMEDIES[_OS_CAUSES.get(error.errno or 0, "SQLITE_CANTOPEN")]
    reason = error.strerror or str(error)
    return JournalError(
        f"The journal {path} cannot be created: {reason} ({error.filename}). {remedy}",
        code=code,
        where=str(path),
    )


def readable_rows(
    db: sqlite3.Connection, sql: str, parameters: tuple[str | int, ...]
) -> list[SqliteRow]:
    """All rows; a text that is no UTF-8 is bytes, so that it harms no other row."""
    try:
        return db.execute(sql, parameters).fetchall()
    except (sqlite3.OperationalError, UnicodeDecodeError) as error:
        if not _is_about_text(error):
            raise
    db.text_factory = _text_or_bytes  # not at first: it costs a call for each text
    try:
        return db.execute(sql, parameters).fetchall()
    finally:
        db.text_factory = str


def some_rows(
    db: sqlite3.Connection, sql: str, parameters: tuple[str | int, ...], most: int, most_bytes: int
) -> list[SqliteRow] | None:
    """All rows; None: there are more than so many rows or bytes, or one has a damaged text."""
    rows: list[SqliteRow] = []
    size = 0
    try:
        for row in db.execute(sql, parameters):
            rows.append(row)
            size += sum(len(value) for value in row if type(value) is bytes)
            if len(rows) > most or size > most_bytes:
                return None
    except (sqlite3.OperationalError, UnicodeDecodeError) as error:
        if not _is_about_text(error):
            raise
        return None
    return rows


def _is_about_text(error: Exception) -> bool:
    """sqlite3 says it with either class, whichever way the damaged text fits its message."""
    return isinstance(error, UnicodeDecodeError) or "Could not decode to UTF-8" in str(error)


def _text_or_bytes(stored: bytes) -> str | bytes:
    try:
        return stored.decode()
    except UnicodeDecodeError:
        return stored

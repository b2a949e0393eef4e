"""A full-text index of the documents below one folder, in SQLite (FTS5)."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Final

from attrs import frozen

from minions.adapters.tools.confined_folder import ConfinedFolder
from minions.adapters.tools.confined_paths import Place
from minions.adapters.tools.document_passages import Passage, passages_of
from minions.adapters.tools.glob_pattern import GlobPattern
from minions.data.errors import EnvironmentRefusedError, ToolError

_FORM: Final = 2
"""The version of the tables; an index of another version is made again."""
_SCHEMA: Final = """
CREATE TABLE files (
  id INTEGER PRIMARY KEY, path TEXT NOT NULL UNIQUE, state TEXT NOT NULL,
  read_ns INTEGER NOT NULL, digest TEXT NOT NULL, reason TEXT
);
CREATE TABLE passages (
  id INTEGER PRIMARY KEY, file INTEGER NOT NULL, first INTEGER NOT NULL, last INTEGER NOT NULL
);
CREATE INDEX passages_of_file ON passages (file);
CREATE VIRTUAL TABLE texts USING fts5 (
  text, path, tokenize = 'porter unicode61 remove_diacritics 2'
);
"""
_DROPS: Final = tuple(f"DROP TABLE IF EXISTS {name}" for name in ("files", "passages", "texts"))
_FIND: Final = """
SELECT files.path, passages.first, texts.text, bm25(texts, 1.0, 0.5) AS fit FROM texts
JOIN passages ON passages.id = texts.rowid JOIN files ON files.id = passages.file
WHERE texts MATCH ? ORDER BY fit, files.path, passages.first LIMIT ?
"""
_LEAST_FIT: Final = 0.2
"""Passages that fit by a smaller share of what the best one does are left out: they have only words
that many passages have.
"""
_MOST_LISTED: Final = 200_000
"""Files that are looked at in all, however few of them are documents."""
_STEPS: Final = 1_000_000
_MOST_STEPS: Final = 2_000
"""How often a query may use up `_STEPS` of the database's machine: some ten seconds."""
_AT_A_TIME: Final = 100
"""Files after which what was read is kept, also if the call is cut off then."""
_UNSURE_NS: Final = 2_000_000_000
"""A file that was written so shortly before it was read may have changed since at the same time."""


@frozen(kw_only=True)
class IndexBounds:
    """How much is indexed."""

    max_files: int
    max_file_bytes: int
    max_bytes: int
    """Bytes of all files together."""


@frozen(kw_only=True)
class FoundPassage:
    """A passage that a query found."""

    file: str
    first: int
    """The number of its first line, from 1."""
    lines: tuple[str, ...]


@frozen(kw_only=True)
class SearchOutcome:
    """What a search found, and in how many documents it looked."""

    passages: Sequence[FoundPassage]
    """Best first."""
    documents: int
    left_out: Mapping[str, int]
    """Why files are not in the index, and how many."""


class DocumentIndex:
    """The documents below one folder. It is brought up to date before each answer.

    Threads wait for one another. What is known of a file is kept by its inode, its size and the
    times of its last change; where they say nothing certain, its content is read and compared.
    """

    def __init__(
        self,
        folder: ConfinedFolder,
        include: Sequence[GlobPattern],
        bounds: IndexBounds,
        *,
        now: Callable[[], datetime],
        file: Path | None = None,
    ) -> None:
        """Open nothing yet.

        Args:
            include: Which files are documents: those that any of the patterns matches.
            now: The time of day.
            file: Where the index is kept for later processes; None: in memory.
        """
        self._folder = folder
        self._include = tuple(include)
        self._bounds = bounds
        self._now = now
        self._file = file
        self._connection: sqlite3.Connection | None = None
        self._lock = threading.Lock()
        self._beyond = 0
        """Documents that are beyond the bounds, when it was last brought up to date."""

    def search(self, query: str, limit: int) -> SearchOutcome:
        """The passages that fit best.

        Args:
            query: As `fts_query` makes it.
        Raises:
            ToolError: `slow-search`; the query takes too long.
            EnvironmentRefusedError: `no-full-text`; this SQLite has no FTS5.
        """
        with self._lock:
            try:
                return self._found(query, limit)
            except sqlite3.DatabaseError as error:
                # An index in the user's cache is made again, unless it is only locked.
                if self._file is None or "locked" in str(error):
                    raise
                self._discard()
                return self._found(query, limit)

    def close(self) -> None:
        """Close the index; one in memory is gone then."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _found(self, query: str, limit: int) -> SearchOutcome:
        database = self._open()
        self._update(database)
        rows = _bounded(database, query, limit)
        counts = database.execute("SELECT reason, count(*) FROM files GROUP BY reason")
        others = dict(counts.fetchall())
        indexed = others.pop(None, 0)
        if self._beyond:
            others["beyond the limits"] = self._beyond
        passages = [
            FoundPassage(file=path, first=first, lines=tuple(text.split("\n")))
            for path, first, text, fit in rows
            if fit <= _LEAST_FIT * rows[0][3]  # the better it fits, the lower it is
        ]
        return SearchOutcome(passages=passages, documents=indexed, left_out=others)

    # --- keeping up to date -----------------------------------------------------------------------

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            if self._file is not None:
                self._file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                os.close(os.open(self._file, os.O_CREAT | os.O_CLOEXEC, 0o600))
            name = ":memory:" if self._file is None else str(self._file)
            self._connection = sqlite3.connect(
                name, timeout=30, check_same_thread=False, isolation_level=None
            )
        return self._connection

    def _discard(self) -> None:
        assert self._connection is not None  # noqa: S101  # it was open
        assert self._file is not None  # noqa: S101  # only a file is discarded
        self._connection.close()
        self._connection = None
        self._file.unlink(missing_ok=True)

    def _update(self, database: sqlite3.Connection) -> None:
        _make_tables(database)
        found = self._documents()
        rows = database.execute("SELECT path, state, read_ns FROM files")
        known = {path: (state, read_ns) for path, state, read_ns in rows}
        with _transaction(database):
            for path in known.keys() - found.keys():
                _forget(database, path)
        changed = [
            (path, place)
            for path, place in sorted(found.items())
            if _has_changed(place, known.get(path))
        ]
        for begin in range(0, len(changed), _AT_A_TIME):
            with _transaction(database):
                for path, place in changed[begin : begin + _AT_A_TIME]:
                    self._read(database, path, place)

    def _documents(self) -> dict[str, Place]:
        """The documents by path, as many as are indexed: the first in order of their paths."""
        places = itertools.islice(self._folder.files(self._folder.place(".")), _MOST_LISTED)
        all_ = sorted(
            (place for place in places if any(each.matches(place.parts) for each in self._include)),
            key=lambda place: place.relative,
        )
        kept: dict[str, Place] = {}
        left = self._bounds.max_bytes
        for place in all_:
            size = _size(place)
            if len(kept) < self._bounds.max_files and size <= left:
                left -= size if size <= self._bounds.max_file_bytes else 0
                kept[place.relative] = place
        self._beyond = len(all_) - len(kept)
        return kept

    def _read(self, database: sqlite3.Connection, path: str, place: Place) -> None:
        """Take over one file as it is now."""
        read_ns = int(self._now().timestamp() * 1e9)
        try:
            with self._folder.opened(place) as file:
                stat = os.fstat(file.fileno())
                data = file.read(self._bounds.max_file_bytes + 1)
        except ToolError:
            _forget(database, path)  # deleted, or made unreadable, after it was listed
            return
        text, reason = _text_of(data, self._bounds.max_file_bytes)
        digest = hashlib.sha256(data).hexdigest()
        state = _state(stat)
        row = database.execute("SELECT digest FROM files WHERE path = ?", (path,)).fetchone()
        if row is not None and row[0] == digest:
            database.execute(
                "UPDATE files SET state = ?, read_ns = ? WHERE path = ?", (state, read_ns, path)
            )
            return
        _forget(database, path)
        file_id = database.execute(
            "INSERT INTO files (path, state, read_ns, digest, reason) VALUES (?, ?, ?, ?, ?)",
            (path, state, read_ns, digest, reason),
        ).lastrowid
        for passage in passages_of(text):
            _add(database, file_id, path, passage)


@contextlib.contextmanager
def _transaction(database: sqlite3.Connection) -> Iterator[None]:
    database.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        database.execute("ROLLBACK")
        raise
    database.execute("COMMIT")


def _is_current(database: sqlite3.Connection) -> bool:
    (version,) = database.execute("PRAGMA user_version").fetchone()
    return bool(version == _FORM)


def _make_tables(database: sqlite3.Connection) -> None:
    """Make the tables where they are missing, or of another version.

    Raises:
        EnvironmentRefusedError: `no-full-text`.
    """
    if _is_current(database):
        return
    try:
        with _transaction(database):
            if _is_current(database):  # another process made them meanwhile
                return
            for statement in (*_DROPS, *_SCHEMA.split(";"), f"PRAGMA user_version = {_FORM}"):
                database.execute(statement)
    except sqlite3.OperationalError as error:
        if "fts5" not in str(error):
            raise
        raise EnvironmentRefusedError(
            "The SQLite of this Python has no full-text search (FTS5), which the toolset "
            "'documents' needs. Use a Python whose SQLite has it, or the toolset 'files'.",
            code="no-full-text",
        ) from error


def _has_changed(place: Place, known: tuple[str, int] | None) -> bool:
    """Whether the file has to be read: it is not known, or may be another one by now."""
    if known is None:
        return True
    state, read_ns = known
    try:
        stat = place.path.lstat()
    except OSError:
        return True
    changed_ns = max(stat.st_mtime_ns, stat.st_ctime_ns)
    return _state(stat) != state or changed_ns > read_ns - _UNSURE_NS


def _state(stat: os.stat_result) -> str:
    """What differs when a file was changed, also by programs that set its time back."""
    return f"{stat.st_ino} {stat.st_size} {stat.st_mtime_ns} {stat.st_ctime_ns}"


def _size(place: Place) -> int:
    try:
        return place.path.lstat().st_size
    except OSError:
        return 0  # deleted since


def _text_of(data: bytes, most: int) -> tuple[str, str | None]:
    """The text of a document, and why it has none; None: it has."""
    if len(data) > most:
        return "", "too large"
    if b"\0" in data:
        return "", "not text"
    try:
        return data.decode("utf-8-sig").replace("\r\n", "\n"), None
    except UnicodeDecodeError:
        return "", "not UTF-8"


def _forget(database: sqlite3.Connection, path: str) -> None:
    row = database.execute("SELECT id FROM files WHERE path = ?", (path,)).fetchone()
    if row is None:
        return
    ids = database.execute("SELECT id FROM passages WHERE file = ?", row).fetchall()
    database.executemany("DELETE FROM texts WHERE rowid = ?", ids)
    database.execute("DELETE FROM passages WHERE file = ?", row)
    database.execute("DELETE FROM files WHERE id = ?", row)


def _add(database: sqlite3.Connection, file_id: int | None, path: str, passage: Passage) -> None:
    row = database.execute(
        "INSERT INTO passages (file, first, last) VALUES (?, ?, ?)",
        (file_id, passage.first, passage.last),
    ).lastrowid
    database.execute(
        "INSERT INTO texts (rowid, text, path) VALUES (?, ?, ?)", (row, passage.text, path)
    )


def _bounded(
    database: sqlite3.Connection, query: str, limit: int
) -> list[tuple[str, int, str, float]]:
    """The rows of a search, which ends after a bounded amount of work."""
    steps = itertools.count()
    database.set_progress_handler(lambda: next(steps) > _MOST_STEPS, _STEPS)
    try:
        return database.execute(_FIND, (query, limit)).fetchall()
    except sqlite3.OperationalError as error:
        if "interrupted" not in str(error):
            raise
        raise ToolError(
            "The search takes too long. Ask with fewer, rarer words.", code="slow-search"
        ) from error
    finally:
        database.set_progress_handler(None, 0)

"""The toolset `documents`: full-text search over the files of one folder, with citations."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import re
import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated, Final

import attrs
from attrs import Factory, field, frozen

from minions.adapters.tools.confined_folder import ConfinedFolder
from minions.adapters.tools.confined_paths import GlobPattern, Place
from minions.adapters.tools.function_tool import tool
from minions.adapters.tools.text_files import FileOptions, TextFiles, as_text
from minions.contracts.protected_files import ALLOW_SECRETS, OPENING_OPTIONS
from minions.contracts.tools import Effect, Reads, Tool, Toolset
from minions.data.codec import decode
from minions.data.errors import EnvironmentRefusedError, ToolError
from minions.data.hint_schemas import schema_of
from minions.data.json_values import JsonValue, as_object_of_objects

_MOST_INDEXES: Final = 8
"""Indexes that a process keeps open; of more the one that was used longest ago is closed."""
_COUNT: Final = {"type": "integer", "minimum": 1}
_PATTERNS: Final = {"type": "array", "items": {"type": "string", "maxLength": 1_000}}


def documents_toolset(now: Callable[[], datetime], cache_folder: Path | None = None) -> Toolset:
    """The tools `search` and `read`, both pure. Recipes with the same options share an index.

    Args:
        now: The time of day.
        cache_folder: Where `keep: true` keeps indexes; None: in memory, too.
    """
    indexes = _Indexes(now, cache_folder)

    def open_tools(options: Mapping[str, JsonValue], prefix: str) -> Sequence[Tool]:
        documents = _Documents(decode(options, DocumentOptions), indexes)
        return _tools(documents, prefix=f"{prefix}__" if prefix else "")

    unopened = _tools(_Documents(DocumentOptions(), indexes), prefix="")
    return Toolset(
        name="documents",
        description="Find passages in the text files below one folder, with file and line.",
        options=_options_schema(),
        specs=tuple(made.spec for made in unopened),
        open=open_tools,
        fixed_options=OPENING_OPTIONS,
    )


def _all_files() -> list[str]:
    return ["**/*"]


def _excluded_by_default() -> list[str]:
    return [".*", "node_modules", "__pycache__"]


@frozen(kw_only=True)
class DocumentOptions:
    """The options that a recipe may set."""

    root: str = field(
        default=".", metadata={"description": "The folder; nothing outside of it can be used."}
    )
    include: list[str] = field(
        default=Factory(_all_files),
        metadata={"schema": _PATTERNS, "description": "Glob patterns of the files to index."},
    )
    exclude: list[str] = field(
        default=Factory(_excluded_by_default),
        metadata={
            "schema": _PATTERNS,
            "description": "Glob patterns of names or paths that cannot be used.",
        },
    )
    max_files: int = field(
        default=10_000,
        metadata={"schema": _COUNT, "description": "Files that are indexed."},
    )
    max_file_bytes: int = field(
        default=1024 * 1024,
        metadata={"schema": _COUNT, "description": "The largest file that is indexed."},
    )
    max_bytes: int = field(
        default=256 * 1024 * 1024,
        metadata={"schema": _COUNT, "description": "Of all files that are indexed."},
    )
    keep: bool = field(
        default=False,
        metadata={
            "description": "Keep the index, which holds the texts, in the user's cache for later "
            "runs; else it is made in memory."
        },
    )
    allow_secrets: list[str] = field(factory=list, metadata=ALLOW_SECRETS)


def _options_schema() -> dict[str, JsonValue]:
    defaults = attrs.asdict(DocumentOptions())
    fields = as_object_of_objects(schema_of(DocumentOptions)["properties"])
    return {
        "type": "object",
        "properties": {
            name: {**schema, "default": defaults[name]} for name, schema in fields.items()
        },
        "additionalProperties": False,
    }


def _tools(documents: _Documents, *, prefix: str) -> Sequence[Tool]:
    return [
        tool(name=f"{prefix}{name}", effect=Effect.PURE, reads=Reads.PRIVATE)(function)
        for name, function in (("search", documents.search), ("read", documents.read))
    ]


class _Indexes:
    """The indexes of a process, which its runs share."""

    def __init__(self, now: Callable[[], datetime], cache_folder: Path | None) -> None:
        self._now = now
        self._cache_folder = cache_folder
        self._made: dict[str, DocumentIndex] = {}
        self._lock = threading.Lock()

    def get(self, options: DocumentOptions, folder: ConfinedFolder) -> DocumentIndex:
        """The index for these options.

        Raises:
            UsageError: The root does not exist.
        """
        key = _key(options, folder.place(".").root)
        with self._lock:
            index = self._made.pop(key, None) or self._new(key, options, folder)
            self._made[key] = index  # at the end: it was used last
            surplus = [self._made.pop(each) for each in list(self._made)[:-_MOST_INDEXES]]
        for each in surplus:
            each.close()
        return index

    def _new(self, key: str, options: DocumentOptions, folder: ConfinedFolder) -> DocumentIndex:
        is_kept = options.keep and self._cache_folder is not None
        return DocumentIndex(
            folder,
            [GlobPattern(each) for each in options.include],
            IndexBounds(
                max_files=options.max_files,
                max_file_bytes=options.max_file_bytes,
                max_bytes=options.max_bytes,
            ),
            now=self._now,
            file=self._cache_folder / f"{key}.sqlite" if is_kept and self._cache_folder else None,
        )


def _key(options: DocumentOptions, root: str) -> str:
    """Names an index: the folder that it is of, and all that decides what is in it."""
    text = json.dumps([root, attrs.asdict(options)], sort_keys=True)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


# --- results ---------------------------------------------------------------------------------


@frozen
class DocumentPassage:
    """A passage that `search` found."""

    file: str
    line: int
    """The number of its first line, from 1."""
    text: str
    """Its lines, each behind its number."""


@frozen
class PassagesFound:
    """The result of `search`."""

    passages: list[DocumentPassage]
    """Best first."""
    documents: int
    """Number of files that were searched."""
    left_out: str
    """How many files were not, and why; empty: none."""


@frozen
class DocumentLines:
    """The result of `read`."""

    file: str
    line: int
    text: str
    """The lines, each behind its number."""


# --- the tools -------------------------------------------------------------------------------

_AT_LEAST_ONE: Final = {"minimum": 1}


@frozen
class _Documents:
    """The tools' functions. The first paragraph of each docstring is shown to the model."""

    options: DocumentOptions
    indexes: _Indexes

    @property
    def files(self) -> TextFiles:
        options = self.options
        chosen = FileOptions(
            root=options.root, exclude=options.exclude, allow_secrets=options.allow_secrets
        )
        return TextFiles(chosen, can_create=False)

    def search(
        self,
        query: Annotated[str, "Words; any of them counts. A phrase stands in double quotes."],
        limit: Annotated[int, "Most passages given.", {"minimum": 1, "maximum": 50}] = 6,
    ) -> PassagesFound:
        """Find passages in the documents, best first, with file and line numbers to cite."""
        wanted = fts_query(query)
        if wanted is None:
            raise ToolError(
                f"The query {query[:60]!r} has no word. Ask with words that the documents may use.",
                code="bad-pattern",
            )
        index = self.indexes.get(self.options, self.files.folder)
        found = index.search(wanted, limit)
        return PassagesFound(
            [
                DocumentPassage(each.file, each.first, numbered(each.first, each.lines))
                for each in found.passages
            ],
            found.documents,
            ", ".join(f"{count} {reason}" for reason, count in sorted(found.left_out.items())),
        )

    def read(
        self,
        file: Annotated[str, "As `search` gives it."],
        line: Annotated[int, "The first line to read, from 1.", _AT_LEAST_ONE] = 1,
        lines: Annotated[int, "How many lines.", {"minimum": 1, "maximum": 1_000}] = 40,
    ) -> DocumentLines:
        """Read lines of a document, around a passage that was found."""
        files = self.files
        place = files.folder.place(file)
        if not any(GlobPattern(each).matches(place.parts) for each in self.options.include):
            raise ToolError(
                f"'{file}' is no document here. Documents are: {', '.join(self.options.include)}.",
                code="excluded-path",
            )
        with files.folder.opened(place) as opened:
            data = files.lines(place, opened, line, line + lines - 1)
        text = as_text(place, data)
        text = text.removeprefix("\ufeff") if line == 1 else text
        rows = text.replace("\r\n", "\n").removesuffix("\r").split("\n")
        return DocumentLines(
            place.relative, line, numbered(line, rows[:-1] if text.endswith("\n") else rows)
        )


# --- documents as passages of lines, and what a person or model asks as a query of the index -----


_ENOUGH: Final = 400
"""Characters from which on a blank line ends a passage."""
_SHORT: Final = 120
"""Characters below which a heading does not end a passage: a title, or comments in code."""
_MOST: Final = 1_200
"""Characters at which a passage ends."""
_MOST_WORDS: Final = 32
_WORD: Final = re.compile(r"\w+")
_PHRASE: Final = re.compile(r'"[^"]*"')


@frozen(kw_only=True)
class Passage:
    """Consecutive lines of a document."""

    first: int
    """The number of its first line, from 1."""
    lines: tuple[str, ...]

    @property
    def last(self) -> int:
        """The number of its last line."""
        return self.first + len(self.lines) - 1

    @property
    def text(self) -> str:
        """Its lines, without numbers."""
        return "\n".join(self.lines)


def passages_of(text: str) -> Iterator[Passage]:
    """The passages of a document, in order. A heading begins one, and blank lines end one that is
    long enough; lines around a passage that are blank are in none. A line that is longer than a
    passage is several, each with the number of the line; any other line is in one.
    """
    begin, size = 0, 0
    lines = text.split("\n")
    for at, line in enumerate(lines):
        if len(line) > _MOST and line.strip():
            yield from _trim(lines[begin:at], begin)
            yield from (Passage(first=at + 1, lines=(part,)) for part in _parts(line))
            begin, size = at + 1, 0
            continue
        is_heading = line.startswith("#") and size >= _SHORT
        is_break = not line.strip() and size >= _ENOUGH
        if is_heading or is_break or (size and size + len(line) > _MOST):
            yield from _trim(lines[begin:at], begin)
            begin, size = at, 0
        size += len(line) + 1
    yield from _trim(lines[begin:], begin)


def _trim(lines: Sequence[str], begin: int) -> Iterator[Passage]:
    """The lines without blank ones around them; nothing if all are."""
    filled = [at for at, line in enumerate(lines) if line.strip()]
    if filled:
        first, last = filled[0], filled[-1]
        yield Passage(first=begin + first + 1, lines=tuple(lines[first : last + 1]))


def numbered(first: int, lines: Sequence[str]) -> str:
    """The lines with their numbers, to cite them by."""
    return "\n".join(f"{first + at}: {line}" for at, line in enumerate(lines))


def _parts(line: str) -> Iterator[str]:
    """A long line, split at blanks where it has some."""
    begin = 0
    while len(line) - begin > _MOST:
        blank = line.rfind(" ", begin + _MOST // 2, begin + _MOST)
        end = blank + 1 if blank >= 0 else begin + _MOST
        yield line[begin:end]
        begin = end
    yield line[begin:]


def fts_query(text: str) -> str | None:
    """What was asked as a query of SQLite: passages with any of the words, or with a phrase that
    stands in quotes. None: it has no word.

    Every word stands in quotes, so that no sign of it is an operator.
    """
    phrases = [" ".join(_WORD.findall(each)) for each in _PHRASE.findall(text)]
    words = _WORD.findall(_PHRASE.sub(" ", text))
    asked = list(dict.fromkeys(each for each in (*phrases, *words) if each))[:_MOST_WORDS]
    return " OR ".join(f'"{each}"' for each in asked) or None


# --- a full-text index of the documents below one folder, in SQLite (FTS5) -----------------------


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
                return self._find_passages(query, limit)
            except sqlite3.DatabaseError as error:
                # An index in the user's cache is made again, unless it is only locked.
                if self._file is None or "locked" in str(error):
                    raise
                self._discard()
                return self._find_passages(query, limit)

    def close(self) -> None:
        """Close the index; one in memory is gone then."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _find_passages(self, query: str, limit: int) -> SearchOutcome:
        database = self._open()
        self._update(database)
        rows = _search_bounded(database, query, limit)
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
                folder = self._file.parent
                folder.mkdir(parents=True, exist_ok=True, mode=0o700)
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


def _search_bounded(
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

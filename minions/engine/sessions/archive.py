"""Exports a session as lines of text, with the rows and blobs that it needs, and imports it."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import BinaryIO, Final, NoReturn, cast

from attrs import field, frozen, mutable

from minions.contracts.journal.chain import GENESIS, ChainedRow, chained, link_of, verify_chain
from minions.contracts.journal.facts import SessionForked, UnreadableFact, fact_of
from minions.contracts.journal.journal import Journal, JournalEntry, digests_in, row_of
from minions.data.bounded_files import BoundedLines, LongLineError
from minions.data.codec import decode, encode
from minions.data.errors import JournalError, NotFoundError, UsageError, words_of
from minions.data.json_values import JsonValue, most_values, parse_json
from minions.data.texts import one_line, shell_word
from minions.engine.history.entry_checks import origin_of, too_deep
from minions.engine.history.imported_entries import imported_entry
from minions.engine.run.recorded_run import load_recorded_run
from minions.engine.services.run_services import Services
from minions.engine.sessions.store import StepRepository
from minions.engine.views.lookup import REJECTED, list_runs
from minions.engine.views.run_detail import show_run

_FORMAT: Final = "minions-session"
_ID: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:@=,+/-]{0,199}")
"""The id of a session or run: ids stand in commands that are printed to be copied, and in names of
files, so that they hold no blank, quote or sign of a shell, and begin as no option does."""
_NAMES: Final = ("agent", "next_step_id", "recipe", "step_id", "tool")
"""Fields of facts that name something, and are shown in lines of other texts."""
_VERSION: Final = 2
_KNOWN_VERSIONS: Final = (1, 2)
"""Rows of the first one have no chain values."""
_LARGEST_COUNT: Final = 2**31 - 1
"""The largest count in a file: a resumed run counts further, and every journal must store that."""
_LONGEST_LINE: Final = 64 * 1_048_576
"""Bytes of one line of a file: of one row, or of one blob in base64."""
_MOST_VALUES: Final = 5_000_000
"""Values in one row: more than any result of a loop has."""
_LARGEST_FILE: Final = 2**30
"""Bytes of a whole file: all of it is checked in memory before anything is stored."""
_LONGEST_KEY: Final = 2_000
"""The longest key in characters: keys are indexed, and PostgreSQL's index takes no long values."""


@frozen(kw_only=True)
class ArchivedSession:
    """The rows of one session, from the first on."""

    session_id: str
    entries: tuple[JournalEntry, ...]
    values: tuple[str | None, ...] = ()
    """Their values in the chain of the journal that they come from, in hex; None: of a row that a
    version without chains wrote. Empty: none of them has one."""
    texts: Mapping[int, str] = field(factory=dict)
    """By position, the bodies that were hashed in other words than this version writes."""

    @property
    def head(self) -> str | None:
        """The last value, which covers the rows before it."""
        return self.values[-1] if self.values else None

    @property
    def uncovered(self) -> int:
        """So many rows have no value, so that nothing shows whether they are as exported."""
        return len(self.entries) - sum(each is not None for each in self.values)


@frozen(kw_only=True)
class HeadSignature:
    """Who vouches for the heads of a session file, by Ed25519."""

    public_key: str
    """32 bytes in hex."""
    signature: str
    """64 bytes in hex, of `signed_bytes`."""


@frozen(kw_only=True)
class Archive:
    """An exported session, which can be imported into another journal."""

    session_id: str
    sessions: tuple[ArchivedSession, ...]
    """Parents first, each up to the last row that its fork reads; the session itself last."""
    blobs: Mapping[str, bytes]
    """The blobs that rows name, and those that these blobs name, by their hash."""
    signature: HeadSignature | None = None
    """As the file holds it: nobody here has compared it with anything."""


def signed_bytes(archive: Archive) -> bytes:
    """What a signature is of: the ids, the number of rows and the heads of the sessions.

    Raises:
        UsageError: `bad-archive`; a session has no chain, which could be signed.
    """
    for each in archive.sessions:
        if each.head is None:
            raise UsageError(
                f"Session '{each.session_id}' was written by a version without chains: there is "
                "nothing that a signature could be of.",
                code="bad-archive",
            )
    heads = [[each.session_id, len(each.entries), each.head] for each in archive.sessions]
    return json.dumps([_FORMAT, archive.session_id, heads], separators=(",", ":")).encode()


# --- out of a journal --------------------------------------------------------------------------


async def load_archive(journal: Journal, session_id: str) -> Archive:
    """Read a session from the journal, with the rows and blobs of its parents that it needs.

    Raises:
        NotFoundError: There is no such session, or a parent was deleted.
        JournalError: `corrupt-entry`; it is a fork of itself, or an entry cannot be read.
            `broken-chain`; a row is not the one that was stored.
    """
    sessions: dict[str, ArchivedSession] = {}
    found: str | None = session_id
    until: int | None = None
    while found is not None:
        entries = tuple(await journal.entries(found, until=until))
        if not entries:
            raise NotFoundError(f"There is no session '{found}'.", code="unknown-session")
        sessions[found] = await _with_chain(journal, found, entries)
        found, until = origin_of(entries, sessions)
    rows = [entry for session in sessions.values() for entry in session.entries]
    blobs = await _blobs(journal, digests_in(*(json.dumps(encode(row.body)) for row in rows)))
    return Archive(session_id=session_id, sessions=tuple(reversed(sessions.values())), blobs=blobs)


async def _with_chain(
    journal: Journal, session_id: str, entries: tuple[JournalEntry, ...]
) -> ArchivedSession:
    stored = await journal.stored_chain(session_id)
    report = verify_chain(session_id, stored)
    if (fault := report.fault) is not None:
        raise JournalError(
            f"Session '{session_id}' is not as it was stored: entry {fault.position} ({fault.what}"
            f"): {fault.words}. Nothing was exported. Restore a backup; all that is wrong is "
            f"listed by: minions sessions verify {shell_word(session_id)}",
            code="broken-chain",
        )
    if len(stored.rows) < len(entries):
        raise NotFoundError(f"Session '{session_id}' was just removed.", code="unknown-session")
    if any(_is_encrypted(row) for row in stored.rows[: len(entries)]):
        # The file holds the text in clear: its own chain is of that.
        clear = chained(row_of(entry) for entry in entries)
        own = tuple(None if row.chain is None else row.chain.hex() for row in clear)
        return ArchivedSession(session_id=session_id, entries=entries, values=own)
    texts = dict[int, str]()
    for entry, row in zip(entries, stored.rows, strict=False):  # there may be more meanwhile
        written = row_of(entry)
        if (written.body, written.body_digest) != (row.body, row.body_digest):
            body = row.body
            if body is None:
                body = (row.raw or b"").decode("utf-8", "surrogatepass")
            texts[entry.position] = body
    values = tuple(report.values[: len(entries)])
    return ArchivedSession(session_id=session_id, entries=entries, values=values, texts=texts)


def _is_encrypted(row: ChainedRow) -> bool:
    """Whether its body is a text, which no fact is."""
    return row.body.startswith('"') if row.body is not None else (row.raw or b"").startswith(b'"')


async def _blobs(journal: Journal, digests: set[str]) -> Mapping[str, bytes]:
    """The blobs with these digests, and those that they name; a digest may name no blob."""
    found: dict[str, bytes] = {}
    rest, looked_for = digests, set[str]()
    while rest:
        for digest in sorted(rest):
            try:
                found[digest] = await journal.get_blob(digest)
            except NotFoundError:
                continue
        looked_for |= rest
        rest = digests_in(*(found[digest] for digest in rest if digest in found)) - looked_for
    return found


def archive_lines(archive: Archive) -> Iterator[str]:
    """The lines of a session file, one JSON object in ASCII each, without line ends.

    The first one lists the contents; blobs and rows follow it.
    """
    sizes = [
        {"id": each.session_id, "rows": len(each.entries), "head": each.head}
        for each in archive.sessions
    ]
    head: dict[str, object] = {
        "format": _FORMAT,
        "version": _VERSION,
        "session": archive.session_id,
        "sessions": sizes,
        "blobs": len(archive.blobs),
    }
    if archive.signature is not None:
        head["signature"] = encode(archive.signature)
    yield json.dumps(head)
    for digest, data in archive.blobs.items():
        yield json.dumps({"blob": digest, "data": base64.b64encode(data).decode()})
    for session in archive.sessions:
        for number, entry in enumerate(session.entries):
            line: dict[str, JsonValue] = {"row": _row(entry)}
            if session.values and session.values[number] is not None:
                line["chain"] = session.values[number]
            if entry.position in session.texts:
                line["text"] = session.texts[entry.position]
            yield json.dumps(line)


def _row(entry: JournalEntry) -> JsonValue:
    return encode(
        _Row(
            session_id=entry.session_id,
            position=entry.position,
            run_id=entry.run_id,
            generation=entry.generation,
            key=entry.key,
            kind=entry.kind,
            state=entry.state,
            body=entry.body,
            epoch=entry.epoch,
            at=entry.at,
        )
    )


# --- out of a file -----------------------------------------------------------------------------


@frozen(kw_only=True)
class _Size:
    id: str
    rows: int
    head: str | None = None


@frozen(kw_only=True)
class _Head:
    format: str
    version: int
    session: str
    sessions: tuple[_Size, ...]
    blobs: int
    signature: HeadSignature | None = None


@frozen(kw_only=True)
class _BlobLine:
    blob: str
    data: bytes


@frozen(kw_only=True)
class _Row:
    """A `JournalEntry` whose body is not checked yet."""

    session_id: str
    position: int
    run_id: str
    generation: int
    key: str
    kind: str
    state: str
    body: Mapping[str, object]
    epoch: int
    at: datetime


@frozen(kw_only=True)
class _RowLine:
    row: _Row
    chain: str | None = None
    """Its value in the chain, in hex."""
    text: str | None = None
    """The body that was hashed, where it is not what this version writes of `row`."""


def read_archive(lines: Iterable[bytes], *, name: str = "<archive>") -> Archive:
    """Read the lines that `archive_lines` wrote, checked to the last one.

    Args:
        name: The name of the file, for messages.
    Raises:
        UsageError: The file is something else, broken, or cut off; `where` is `name:line`.
    """
    reader = _Reader(name)
    for line in lines:
        reader.read(line)
    return reader.end()


def read_archive_file(file: BinaryIO, *, name: str) -> Archive:
    """As `read_archive`, of a stream that may have no end: a line has a bound, and the whole.

    Raises:
        UsageError: As `read_archive`; or it is too long.
    """
    reader, size = _Reader(name), 0
    try:
        for line in BoundedLines(file, _LONGEST_LINE).lines():
            size += len(line)
            reader.read(line)
            if size > _LARGEST_FILE:
                reader.refuse(f"the file has more than {_LARGEST_FILE // 2**30} GiB")
    except LongLineError as error:
        reader.line += 1
        reader.refuse(f"{error}")
    return reader.end()


@mutable
class _Reader:
    """Reads a session file line by line."""

    name: str
    line: int = 0
    head: _Head | None = None
    blobs: dict[str, bytes] = field(factory=dict)
    rows: dict[str, list[JournalEntry]] = field(factory=dict)
    values: dict[str, list[str | None]] = field(factory=dict)
    texts: dict[str, dict[int, str]] = field(factory=dict)

    def read(self, line: bytes) -> None:
        self.line += 1
        value = self._value(line)
        try:
            if self.head is None:
                self._begin(value)
            elif "blob" in value:
                self._take_blob(decode(value, _BlobLine))
            else:
                self._take_row(decode(value, _RowLine))
        except ValueError as error:
            self.refuse(f"{error}")

    def end(self) -> Archive:
        self.line += 1
        if self.head is None:
            self.refuse("the file is empty")
        for size in self.head.sessions:
            if (count := len(self.rows[size.id])) < size.rows:
                self.refuse(
                    f"the file is cut off: {count} of {size.rows} rows of session '{size.id}' "
                    "are there"
                )
            if (last := self.values[size.id][-1] if count else None) != size.head:
                self.refuse(
                    f"the chain of session '{size.id}' ends with {last}, not with {size.head} as "
                    "its first line says: it is not as it was exported"
                )
        if len(self.blobs) < self.head.blobs:
            self.refuse(f"{len(self.blobs)} of {self.head.blobs} blobs are there")
        return Archive(
            session_id=self.head.session,
            sessions=tuple(
                ArchivedSession(
                    session_id=session_id,
                    entries=tuple(entries),
                    values=tuple(self.values[session_id]),
                    texts=self.texts[session_id],
                )
                for session_id, entries in self.rows.items()
            ),
            blobs=self.blobs,
            signature=self.head.signature,
        )

    def _value(self, line: bytes) -> dict[str, JsonValue]:
        if most_values(line) > _MOST_VALUES:
            self.refuse(f"it has more than {_MOST_VALUES:,} values")
        try:
            value = json.loads(line.decode(), parse_constant=_no_number)
        except (ValueError, RecursionError) as error:
            whole = "" if line.endswith(b"\n") else "; it ends in the middle of a line"
            self.refuse(f"no JSON ({error}){whole}")
        if not isinstance(value, dict):
            self.refuse("no JSON object")
        return value

    def _begin(self, value: dict[str, JsonValue]) -> None:
        if value.get("format") != _FORMAT:
            self.refuse("it was not written by `minions sessions export`")
        if value.get("version") not in _KNOWN_VERSIONS:
            raise UsageError(
                f"{self.name} is of version {value.get('version')!r}; this program reads versions "
                f"up to {_VERSION}. Use a newer one.",
                code="newer-archive",
                where=f"{self.name}:1",
            )
        self.head = decode(value, _Head)
        self.rows = {size.id: [] for size in self.head.sessions}
        self.values = {size.id: [] for size in self.head.sessions}
        self.texts = {size.id: {} for size in self.head.sessions}
        self._check_ids(*self.rows)
        if len(self.rows) < len(self.head.sessions):
            self.refuse("a session is there twice")
        if not self.rows or self.head.session != list(self.rows)[-1]:
            self.refuse("the session itself is not the last of its sessions")

    def _take_blob(self, line: _BlobLine) -> None:
        if hashlib.sha256(line.data).hexdigest() != line.blob:
            self.refuse(f"the data of blob {line.blob} are not those that were exported")
        self.blobs[line.blob] = line.data

    def _check_ids(self, *ids: str) -> None:
        for each in ids:
            if _ID.fullmatch(each) is None:
                self.refuse(
                    f"'{one_line(each)[:60]}' is no id of a session or run: 1 to 200 letters, "
                    "digits and signs of _.:@=,+/- are, and the first is no sign but _"
                )

    def _check_names(self, entry: JournalEntry) -> None:
        named = {name: getattr(entry.fact, name, None) for name in _NAMES}
        for name, value in (("key", entry.key), *named.items()):
            if isinstance(value, str) and one_line(value) != value:
                self.refuse(
                    f"the {name} '{one_line(value)[:60]}' of run '{entry.run_id}' has signs that "
                    "end a line, or that are not seen"
                )

    def _take_row(self, line: _RowLine) -> None:
        row = line.row
        self._check_ids(row.run_id)
        head = cast(_Head, self.head)
        rows = self.rows.get(row.session_id)
        if rows is None:
            self.refuse(f"session '{row.session_id}' is not among those of the first line")
        limit = next(size.rows for size in head.sessions if size.id == row.session_id)
        if row.position != len(rows) + 1 or row.position > limit:
            self.refuse(
                f"row {row.position} of session '{row.session_id}' comes where row "
                f"{len(rows) + 1} of {limit} is expected"
            )
        if (problem := _bad_value(row)) is not None:
            self.refuse(problem)
        entry = _entry(row)
        if isinstance(fact := entry.fact, UnreadableFact):
            self.refuse(f"{entry.kind} {entry.state} of run '{entry.run_id}': {fact.problem}")
        self._check_names(entry)
        self._check_origin(entry)
        self._check_chain(entry, line)
        rows.append(entry)

    def _check_chain(self, entry: JournalEntry, line: _RowLine) -> None:
        """Refuse a row that is not the one whose value the file holds."""
        values = self.values[entry.session_id]
        last = values[-1] if values else None
        if line.chain is None:
            if last is not None:
                self.refuse(f"row {entry.position} has no chain value, unlike the one before it")
        else:
            if line.text is not None:
                self.texts[entry.session_id][entry.position] = line.text
                body = parse_json(line.text)
                if (
                    not isinstance(body, dict)
                    or fact_of(entry.kind, entry.state, body) != entry.fact
                ):
                    self.refuse("its text does not say what its row says")
            before = GENESIS if last is None else bytes.fromhex(last)
            value = link_of(before, row_of(entry, text=line.text)).hex()
            if value != line.chain:
                self.refuse(
                    f"row {entry.position} of session '{entry.session_id}' is not the one that was "
                    "exported: it does not fit its chain value, or one before it was removed"
                )
        values.append(line.chain)

    def _check_origin(self, entry: JournalEntry) -> None:
        """Refuse a session that is no fork of the one before it in the file, so that none is a
        cycle.
        """
        parent = entry.fact.parent if isinstance(entry.fact, SessionForked) else None
        if entry.position > 1:
            if parent is not None:
                self.refuse(f"session '{entry.session_id}' is forked behind its first row")
            return
        sessions = list(self.rows)
        at = sessions.index(entry.session_id)
        if at == 0 and parent is not None:
            self.refuse(f"the first session, '{entry.session_id}', must be no fork")
        if at > 0 and parent != sessions[at - 1]:
            self.refuse(
                f"session '{entry.session_id}' must begin as a fork of '{sessions[at - 1]}', the "
                "session before it in the file"
            )

    def refuse(self, why: str) -> NoReturn:
        """Raise the error of this line."""
        raise UsageError(
            f"{self.name}, line {self.line}: {why}. Nothing was stored. Export the session again.",
            code="bad-archive",
            where=f"{self.name}:{self.line}",
        )


def _bad_value(row: _Row) -> str | None:
    """Why a journal could not store the row, or could not read it again; None: it can."""
    for name, number in (("generation", row.generation), ("epoch", row.epoch)):
        if not 1 <= number <= _LARGEST_COUNT:
            return f"{name} {number} is not from 1 to {_LARGEST_COUNT}"
    if len(row.key) > _LONGEST_KEY:
        return f"the key has {len(row.key)} characters; at most {_LONGEST_KEY} are possible"
    if row.at.tzinfo is None:
        return f"the time {row.at.isoformat()} has no zone"
    if not _is_time(row.at):
        return f"the time {row.at.isoformat()} is not from 1970 on, up to the year 9999 in UTC"
    return too_deep(row.body)


def _is_time(at: datetime) -> bool:
    try:
        return at.astimezone(UTC).year >= 1970
    except OverflowError:
        return False


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no JSON number")


def _entry(row: _Row) -> JournalEntry:
    return JournalEntry(
        session_id=row.session_id,
        position=row.position,
        run_id=row.run_id,
        generation=row.generation,
        key=row.key,
        fact=fact_of(row.kind, row.state, cast("Mapping[str, JsonValue]", row.body)),
        epoch=row.epoch,
        at=row.at,
    )


# --- into a journal ----------------------------------------------------------------------------


async def store_archive(
    journal: Journal, archive: Archive, *, project: str | None = None
) -> tuple[str, ...]:
    """Import the sessions with their ids, and return the ids of those that were stored.

    A parent that exists already with the same rows is not changed. Approvals, decisions, folders
    and limits of the file do not count here: see `imported_entry`.

    Args:
        project: The folder of the project to which they belong here; None: none.
    Raises:
        UsageError: The session exists, or one of its runs, or another parent with its id; or the
            file cannot be read as sessions and runs. Nothing was stored.
        JournalError: The store refuses; what was stored of the archive is removed again.
    """
    await _read_all(archive)
    wanted = [each for each in archive.sessions if not await _is_here(journal, archive, each)]
    for session in wanted:
        await _refuse_known_runs(journal, session.entries)
    for data in archive.blobs.values():
        await journal.put_blob(data)
    stored: list[str] = []
    try:
        for session in wanted:
            entries = [imported_entry(entry, project) for entry in session.entries]
            await journal.adopt(session.session_id, entries)
            stored.append(session.session_id)
    except BaseException:
        for session_id in reversed(stored):
            await journal.remove_session(session_id)
        raise
    return tuple(stored)


async def _read_all(archive: Archive) -> None:
    """Read everything as the commands would, in a temporary journal.

    Raises:
        UsageError: `bad-archive`; an entry cannot be read.
    """
    services = Services()
    journal = services.journal
    for data in archive.blobs.values():
        await journal.put_blob(data)
    what = "a session"
    try:
        for session in archive.sessions:
            what = f"session '{session.session_id}'"
            await journal.adopt(session.session_id, session.entries)
            await StepRepository(services).get_steps(session.session_id)
        for run in await list_runs(journal):
            what = f"run '{run.run_id}'"
            await show_run(journal, run)
            if run.status != REJECTED:
                await load_recorded_run(journal, run.run_id)
    except Exception as error:  # a stranger's file may hold anything
        raise UsageError(
            f"What the file says of {what} cannot be read: {words_of(error)}. Nothing was stored. "
            "Export the session again.",
            code="bad-archive",
        ) from error


async def _is_here(journal: Journal, archive: Archive, session: ArchivedSession) -> bool:
    """Whether the session is a parent that exists already and need not be stored.

    Raises:
        UsageError: The session to import exists, or a parent exists with other rows.
    """
    session_id, count = session.session_id, len(session.entries)
    known = tuple(await journal.entries(session_id, until=count))
    if known and session_id == archive.session_id:
        raise UsageError(
            f"Session '{session_id}' is here already. Nothing was stored. To put the exported one "
            f"in its place, remove it first: minions sessions rm {shell_word(session_id)}",
            code="session-exists",
        )
    projects = (getattr(row.fact, "project", None) for row in known)
    project = next((each for each in projects if each is not None), None)  # that imported it
    as_imported = tuple(imported_entry(entry, project) for entry in session.entries)
    if known and known not in (session.entries, as_imported):
        raise UsageError(
            f"Session '{session_id}', from which '{archive.session_id}' was forked, is here, but "
            "not as it was exported. Nothing was stored. Import into another database (--db).",
            code="session-differs",
        )
    return bool(known)


async def _refuse_known_runs(journal: Journal, entries: Sequence[JournalEntry]) -> None:
    for run_id in sorted({entry.run_id for entry in entries}):
        for known in await journal.entries(run_id=run_id, limit=1, with_damaged=True):
            raise UsageError(
                f"Run '{run_id}' of session '{entries[0].session_id}' is here already, in session "
                f"'{known.session_id}'. Nothing was stored.",
                code="run-exists",
            )

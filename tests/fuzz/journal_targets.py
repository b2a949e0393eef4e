"""What databases and session files hold, which anybody may have changed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from crash.played import Death, PlayedRun
from fuzz.target import Target
from minions.adapters.stores.stored_rows import read_fact
from minions.contracts.journal.facts import UnreadableFact
from minions.contracts.journal.journal import EntryDraft, JournalEntry, body_text
from minions.data.errors import MinionsError, UsageError
from minions.data.json_values import JsonValue
from minions.engine.run.recorded_run import load_recorded_run
from minions.engine.services.memory_journal import MemoryJournal
from minions.engine.services.run_services import Services
from minions.engine.sessions.archive import archive_lines, load_archive, read_archive, store_archive
from minions.engine.sessions.store import StepRepository
from minions.engine.views.lookup import REJECTED, list_runs
from minions.engine.views.run_detail import show_run
from minions.testing.virtual_time import FakeClock

__all__ = ["journal_targets"]

_GOLDEN: Final = Path(__file__).resolve().parents[1] / "contracts" / "golden_facts.jsonl"


def journal_targets() -> Sequence[Target]:
    """The targets."""
    return (
        Target(
            name="row",
            is_json=True,
            check=check_row,
            seeds=lambda: _GOLDEN.read_bytes().splitlines(),
            words=_WORDS,
            few=900,
        ),
        Target(
            name="journal",
            is_json=True,
            check=check_journal,
            seeds=_journals,
            words=_WORDS,
            most_bytes=65_536,
            few=180,
        ),
        Target(
            name="archive",
            check=check_archive,
            seeds=_archives,
            words=(
                *_WORDS,
                '{"row": ',
                '{"blob": ',
                '"position"',
                '"session_id"',
                '"epoch"',
                '"at"',
            ),
            most_bytes=65_536,
            few=120,
        ),
    )


_WORDS: Final = (
    *("run", "step", "model_call", "tool_call", "message", "decision", "session", "conversation"),
    *("started", "finished", "failed", "recorded", "waiting", "opened", "forked", "cut", "resumed"),
    *("step_id", "status", "completed", "output", "error", "document", "steps", "recipe", "word"),
    *("sequence", "call", "parent", "usage", "attempts", "path", "key", "generation", "approve:"),
)


def check_row(data: bytes) -> None:
    """A fact that is written as it was read, or what was expected."""
    kind, state, stored = "step", "finished", data
    row = _object(data)
    if row is not None:
        kind, state = str(row.get("kind")), str(row.get("state"))
        stored = json.dumps(row.get("body"), ensure_ascii=False).encode("utf-8", "surrogatepass")
    fact = read_fact(kind, state, stored)
    if isinstance(fact, UnreadableFact):
        assert fact.problem
        return
    text = body_text(EntryDraft(key="k", fact=fact))
    assert read_fact(kind, state, text.encode("utf-8", "surrogatepass")) == fact


def _object(data: bytes) -> dict[str, JsonValue] | None:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


# --- whole journals -----------------------------------------------------------------------------


def _journals() -> Sequence[bytes]:
    """Lists of rows: golden ones, and those of random runs."""
    golden = [json.loads(line) for line in _GOLDEN.read_bytes().splitlines()]
    begin = next(each for each in golden if (each["kind"], each["state"]) == ("run", "started"))
    some = [[begin, *golden[at : at + 8]] for at in range(0, len(golden), 8)]
    played = [
        [
            {"kind": each.kind, "state": each.state, "key": each.key, "body": each.body}
            for each in _played(seed).entries()
        ]
        for seed in range(4)
    ]
    return [json.dumps(each).encode() for each in (*some, *played)]


def _played(seed: int) -> PlayedRun:
    """A random run that died once."""
    played = PlayedRun(seed)
    played.play(Death(at=9))
    return played


def check_journal(data: bytes) -> None:
    """Whatever the rows are, what reads them raises nothing but errors that name the row."""
    try:
        rows = json.loads(data)
    except (ValueError, RecursionError):
        return
    if not isinstance(rows, list):
        return
    entries = [
        _entry(each, position)
        for position, each in enumerate((e for e in rows if isinstance(e, dict)), start=1)
    ]
    if entries:
        asyncio.run(_replay(entries))


def _entry(row: dict[str, JsonValue], position: int) -> JournalEntry:
    kind, state = str(row.get("kind")), str(row.get("state"))
    stored = json.dumps(row.get("body"), ensure_ascii=False).encode("utf-8", "surrogatepass")
    return JournalEntry(
        session_id="ses_1",
        position=position,
        run_id="run_1",
        generation=1,
        key=str(row.get("key", position)),
        fact=read_fact(kind, state, stored),
        epoch=1,
        at=FakeClock().now(),
    )


async def _replay(entries: Sequence[JournalEntry]) -> None:
    journal = MemoryJournal(FakeClock())
    try:
        await journal.adopt("ses_1", entries)
    except MinionsError:
        return  # a database refuses them, too
    services = Services(journal=journal)
    runs = await list_runs(journal)
    for run in runs:
        try:
            await show_run(journal, run)
            if run.status != REJECTED:
                await load_recorded_run(journal, run.run_id)
        except MinionsError:
            continue
    repository = StepRepository(services)
    for session in await repository.list_sessions():
        try:
            await repository.get_steps(session.id)
            await repository.get_last_step(session.id)
        except MinionsError:
            continue


# --- session files ------------------------------------------------------------------------------


def _archives() -> Sequence[bytes]:
    return [_archive(seed) for seed in range(6)]


def _archive(seed: int) -> bytes:
    played = _played(seed)
    session_id = played.entries()[0].session_id
    archive = asyncio.run(load_archive(played.journal, session_id))
    return "".join(f"{line}\n" for line in archive_lines(archive)).encode()


def check_archive(data: bytes) -> None:
    """A usage error, or a session that can be read."""
    try:
        archive = read_archive(data.splitlines(keepends=True))
    except UsageError as error:
        assert error.error_code in ("bad-archive", "newer-archive")
        return
    asyncio.run(_import(archive))


async def _import(archive: object) -> None:
    services = Services()
    try:
        await store_archive(services.journal, archive)  # type: ignore[arg-type]  # as it was read
    except UsageError:
        return
    for run in await list_runs(services.journal):
        await show_run(services.journal, run)
        if run.status != REJECTED:
            await load_recorded_run(services.journal, run.run_id)
    repository = StepRepository(services)
    for session in await repository.list_sessions():
        await repository.get_steps(session.id)

"""What must hold of a run that was killed again and again, judged by the files that it left."""

from __future__ import annotations

import json
import sqlite3
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import aclosing, closing
from pathlib import Path
from typing import Any, Final, cast

from attrs import field, frozen

from crash.legs import acknowledgement, journal_at
from crash.random_runs import (
    CHOOSERS,
    EFFECTS,
    Deed,
    choice_of,
    result_of,
    tail_of,
    without_words_of_failure,
)
from minions.contracts.journal.journal import Journal, JournalEntry
from minions.contracts.runtime import SystemClock
from minions.contracts.tools import Effect
from minions.data.codec import decode
from minions.data.json_values import JsonValue, dumps
from minions.engine.services.run_services import is_worker_gone
from minions.engine.views.lookup import list_runs
from minions.engine.views.run_detail import show_run
from minions.engine.views.run_summary import RunSummary

__all__ = [
    "Files",
    "Seen",
    "World",
    "differences_of",
    "faults_of",
    "open_calls",
    "outline_of",
    "recorded_questions",
    "repeated_questions",
    "repeated_work",
    "word_for",
    "world_of",
    "wrong_effects",
]

_EFFECTS: Final = {**EFFECTS, **CHOOSERS}
_REPEATABLE: Final = (Effect.PURE, Effect.IDEMPOTENT)
_ENDS: Final = ("finished", "failed", "recorded")


@frozen
class Files:
    """Where a run leaves what it does."""

    folder: Path
    url: str | None = None
    """Of the journal's database on a server; None: it is a file like the others."""

    @property
    def database(self) -> str:
        return self.url or str(self.folder / "journal.db")

    @property
    def has_database(self) -> bool:
        """Whether somebody made one; on a server nobody is at work in it any more."""
        if self.url is None:
            return Path(self.database).exists()
        # What was sent before a process died is still carried out.
        while self.rows(
            "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() "
            "AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
        ):
            time.sleep(0.001)
        return bool(
            self.rows("SELECT 1 WHERE to_regclass('minions.applied_migrations') IS NOT NULL")
        )

    def rows(self, sql: str) -> Sequence[tuple[Any, ...]]:  # Any: whatever was selected
        """Of one statement."""
        if self.url is None:
            with closing(sqlite3.connect(self.database)) as file:
                return file.execute(sql).fetchall()
        import psycopg

        with closing(psycopg.connect(self.url)) as server:
            return server.execute(sql.encode()).fetchall()

    @property
    def world(self) -> Path:
        return self.folder / "world"

    @property
    def acknowledged(self) -> Path:
        return self.folder / "acknowledged"

    async def entries(self) -> Sequence[JournalEntry]:
        """All facts; none where there is no database yet."""
        if not self.has_database:
            return ()
        async with _journal(self) as journal:
            return await journal.entries()

    async def runs(self) -> Sequence[RunSummary]:
        """Those that began."""
        if not self.has_database:
            return ()
        async with _journal(self) as journal:
            return await list_runs(journal)


def _journal(files: Files) -> aclosing[Journal]:
    """For one look."""
    return aclosing(journal_at(files.database, SystemClock()))


# --- the world ----------------------------------------------------------------------------------


@frozen
class World:
    """What really happened."""

    deeds: Sequence[Deed]
    asked: Mapping[int, Counter[str]]
    """Questions put to the model, by leg."""

    def of(self, key: str) -> Sequence[Deed]:
        """The effects of one call."""
        return [deed for deed in self.deeds if deed.key == key]


def world_of(files: Files) -> World:
    """As its file tells."""
    deeds: list[Deed] = []
    asked: dict[int, Counter[str]] = {}
    for line in _lines(files.world):
        if "deed" in line:
            deeds.append(decode(line["deed"], Deed))
        else:
            asked.setdefault(cast(int, line["leg"]), Counter())[cast(str, line["question"])] += 1
    return World(deeds, asked)


def _lines(path: Path) -> Sequence[Mapping[str, JsonValue]]:
    """Those that are whole: of half a line its writer never knew."""
    if not path.exists():
        return ()
    return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]


def word_for(deeds: Sequence[Deed]) -> str:
    """What a person says of a call in doubt who has looked whether its effect is there."""
    if not deeds:
        return "redo"
    deed = deeds[-1]
    if deed.has_failed:
        return "fail"
    if deed.tool in CHOOSERS:
        return f"done:{dumps(choice_of(deed.key, deed.arguments))}"
    return f"done:{dumps(result_of(deed.tool, deed.arguments))}"


# --- the journal --------------------------------------------------------------------------------


def open_calls(entries: Iterable[JournalEntry]) -> set[str]:
    """Tool calls that began and did not end."""
    opened: set[str] = set()
    for entry in entries:
        if entry.kind == "tool_call" and entry.state == "started":
            opened.add(entry.key)
        elif entry.kind == "tool_call" and entry.state in _ENDS:
            opened.discard(entry.key)
    return opened


def recorded_questions(
    entries: Iterable[JournalEntry], questions: Mapping[str, str]
) -> Counter[str]:
    """Questions whose answers are recorded.

    Args:
        questions: By the key of the model call.
    """
    return Counter(
        questions[entry.key]
        for entry in entries
        if entry.kind == "model_call" and entry.state in _ENDS and entry.key in questions
    )


async def outline_of(journal: Journal) -> Mapping[str, object]:
    """How the one run of a journal ended."""
    (summary,) = await list_runs(journal)
    detail = await show_run(journal, summary)
    return {
        "status": summary.status,
        "output": detail.output,
        "usage": dict(summary.usage),
        "steps": sorted(
            (
                step.step_id,
                step.status,
                # A call that a person counted as failed says so in other words.
                None if step.status == "failed" else step.reason,
                repr(step.output) if step.status != "failed" else None,
            )
            for step in detail.steps
        ),
        "messages": sorted(
            (step_id, str(message["role"]), str(without_words_of_failure(message)))
            for step_id, message in detail.messages
        ),
        "facts": _facts(await journal.entries()),
    }


def _facts(entries: Sequence[JournalEntry]) -> Sequence[tuple[str, str, str]]:
    """What is recorded, once each; not what is decided anew in each leg."""
    return sorted(
        {
            (entry.kind, entry.key, entry.state)
            for entry in entries
            if entry.kind != "run" and entry.state not in ("in_doubt", "skipped")
        }
    )


# --- what must hold -----------------------------------------------------------------------------


@frozen(kw_only=True)
class Seen:
    """What was noticed on the way."""

    recorded_before: Mapping[int, Counter[str]] = field(factory=dict)
    """Questions whose answers were recorded before a leg began."""
    open_at_kills: Counter[str] = field(factory=Counter)
    """Kills while a tool call was open, by its key."""


async def faults_of(
    files: Files, quiet: Files, questions: Mapping[str, str], seen: Seen
) -> list[str]:
    """All that does not hold.

    Args:
        quiet: Of the same run without a kill.
        questions: By the key of each model call of it.
    """
    entries = await files.entries()
    world, calm = world_of(files), world_of(quiet)
    async with _journal(files) as journal, _journal(quiet) as quiet_journal:
        differences = differences_of(await outline_of(journal), await outline_of(quiet_journal))
        reports = [await journal.verify(each) for each in await journal.chained_sessions()]
    return [
        *(f"the chain is broken: {each.fault}" for each in reports if each.fault is not None),
        *_integrity(files),
        *_lost_facts(entries, _lines(files.acknowledged)),
        *repeated_work(entries),
        *repeated_questions(world, Counter(questions.values()), seen),
        *wrong_effects(world, calm, seen),
        *differences,
        *_leases(files),
    ]


def _integrity(files: Files) -> Iterable[str]:
    if files.url is not None:
        return  # a server is not what was killed
    found = [row[0] for row in files.rows("PRAGMA integrity_check")]
    if found != ["ok"]:
        yield f"the database is damaged: {found}"


def _lost_facts(
    entries: Sequence[JournalEntry], acknowledged: Sequence[Mapping[str, JsonValue]]
) -> Iterable[str]:
    stored = {
        (entry.session_id, entry.position): json.loads(json.dumps(acknowledgement(entry)))
        for entry in entries
    }
    for fact in acknowledged:
        if stored.get((cast(str, fact["session"]), cast(int, fact["position"]))) != fact:
            yield f"an acknowledged fact is not in the journal: {str(fact)[:300]}"


def _gaps(entries: Sequence[JournalEntry]) -> Iterable[str]:
    positions = [entry.position for entry in entries]
    if positions != list(range(1, len(entries) + 1)):
        yield f"positions have gaps: {positions}"


_DECIDED_EACH_TIME: Final = {
    ("tool_call", "started"),
    ("tool_call", "in_doubt"),
    ("step", "skipped"),
    ("tool_call", "interrupted"),
    ("model_call", "interrupted"),
    ("step", "interrupted"),
}
"""Facts of what is not over: a resumed run may come to them again."""


def repeated_work(entries: Sequence[JournalEntry]) -> Iterable[str]:
    """Each fact once in all generations, without gaps; nothing of a call after its end."""
    yield from _gaps(entries)
    ended: set[tuple[str, str]] = set()
    known: set[tuple[str, str, str]] = set()
    for entry in entries:
        if entry.kind == "run":
            continue
        name, fact = (entry.kind, entry.key), (entry.kind, entry.key, entry.state)
        if name in ended:
            yield f"{fact} at {entry.position}: that work had ended"
        if fact in known and fact[::2] not in _DECIDED_EACH_TIME:
            yield f"{fact} at {entry.position}: that was recorded before"
        known.add(fact)
        if entry.state in _ENDS:
            ended.add(name)


def repeated_questions(world: World, quiet: Counter[str], seen: Seen) -> Iterable[str]:
    """No question whose answer is recorded is put to the model again."""
    for leg, asked in world.asked.items():
        for question, count in asked.items():
            left = quiet[question] - seen.recorded_before.get(leg, Counter())[question]
            if count > left:
                yield f"leg {leg} asked {question} {count} times, {left} answers were missing"


def wrong_effects(world: World, calm: World, seen: Seen) -> Iterable[str]:
    done, expected = _by_tail(world), _by_tail(calm)
    if odd := set(done) ^ set(expected):
        yield f"effects differ: {sorted(odd)}"
    if len({deed.key.partition("/")[0] for deed in world.deeds}) > 1:
        yield "effects of more than one run"
    for tail in set(done) & set(expected):
        deeds, (wanted,) = done[tail], expected[tail]
        effect = _EFFECTS[wanted.tool]
        most = 1 + seen.open_at_kills[tail] if effect in _REPEATABLE else 1
        if len(deeds) > most:
            yield f"{effect.value} {tail} happened {len(deeds)} times, at most {most} were due"
        if {(deed.tool, deed.arguments) for deed in deeds} != {(wanted.tool, wanted.arguments)}:
            yield f"{tail} is not the same work each time: {deeds}"


def _by_tail(world: World) -> Mapping[str, Sequence[Deed]]:
    found: dict[str, list[Deed]] = {}
    for deed in world.deeds:
        found.setdefault(tail_of(deed.key), []).append(deed)
    return found


def differences_of(found: Mapping[str, object], wanted: Mapping[str, object]) -> Iterable[str]:
    for name, value in wanted.items():
        if found[name] != value:
            yield f"{name} is\n    {found[name]}\n  and without kills\n    {value}"


def _leases(files: Files) -> Iterable[str]:
    """What is held is held by the dead, from whom it is taken at once."""
    schema = "" if files.url is None else "minions."
    held = files.rows(f"SELECT worker_id FROM {schema}leases WHERE deadline IS NOT NULL")
    for (worker_id,) in held:
        if not is_worker_gone(worker_id):
            yield f"{worker_id} lives and holds a lease"

"""Every fact comes out of every journal as it went in; a row that is none harms only its run."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from builders import entry_of
from minions.adapters.stores.postgres_journal import PostgresJournal
from minions.adapters.stores.sqlite_journal import SqliteJournal
from minions.contracts.journal.facts import (
    FACTS,
    Fact,
    RunFinished,
    RunStarted,
    StepFinished,
    UnreadableFact,
    body_of,
    fact_of,
)
from minions.contracts.journal.journal import EntryDraft, Journal
from minions.data.errors import JournalError
from minions.engine.run.recorded_run import load_recorded_run
from minions.engine.services.memory_journal import MemoryJournal
from minions.engine.services.run_services import Services
from minions.engine.sessions.store import StepRepository
from minions.engine.views.lookup import UNREADABLE, list_runs
from minions.engine.views.run_detail import show_run
from minions.testing.virtual_time import FakeClock

T = TypeVar("T")
JOURNALS: Final = ("memory", "sqlite", "postgres")
GOLDEN: Final[list[dict[str, Any]]] = [  # Any: rows as they stand in databases
    json.loads(line)
    for line in (Path(__file__).parent.parent / "contracts" / "golden_facts.jsonl")
    .read_text("utf-8")
    .splitlines()
]

_TEXTS: Final = st.text(st.characters(), max_size=6)  # with halves of characters
_JSON: st.SearchStrategy[Any] = st.recursive(  # Any: JSON of any shape
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | _TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXTS, inner, max_size=3),
    max_leaves=6,
)


@st.composite
def facts(draw: st.DrawFn) -> Fact:
    """One of each class, with other values in it than were ever written."""
    row = draw(st.sampled_from(GOLDEN))
    free = [
        name
        for name in ("output", "value", "default", "inputs", "note")
        # The output of a route is a step's id, the note of a mark a text, a score a number.
        if name in row["body"] and row["kind"] not in ("route", "mark", "score")
    ]
    for name in free:
        is_object = name in ("inputs", "note")
        change = {name: draw(st.dictionaries(_TEXTS, _JSON, max_size=3) if is_object else _JSON)}
        row = {**row, "body": {**row["body"], **change}}
    fact = fact_of(**row)
    assert not isinstance(fact, UnreadableFact), fact.problem
    return fact


@asynccontextmanager
async def opened(kind: str, request: pytest.FixtureRequest) -> AsyncIterator[Journal]:
    clock = FakeClock()
    with tempfile.TemporaryDirectory() as folder:
        journal: Journal = MemoryJournal(clock)
        if kind == "sqlite":
            journal = SqliteJournal(Path(folder) / "journal.db", clock)
        elif kind == "postgres":
            url = request.getfixturevalue("postgres_url")
            journal = PostgresJournal(url, clock, lease_clock=clock)
        yield journal
        await journal.aclose()


def run_with(
    kind: str, request: pytest.FixtureRequest, work: Callable[[Journal], Awaitable[T]]
) -> T:
    async def run() -> T:
        async with opened(kind, request) as journal:
            return await work(journal)

    return asyncio.run(run())


@pytest.mark.parametrize("kind", JOURNALS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(some=st.lists(facts(), min_size=1, max_size=8))
def test_every_fact_comes_back_as_itself(
    request: pytest.FixtureRequest, kind: str, some: list[Fact]
) -> None:
    async def work(journal: Journal) -> None:
        session = "ses_1"
        await journal.remove_session(session)  # one database serves all examples
        lease = await journal.acquire(session, "run_1", "w", 60)
        stored = [
            await journal.append(lease, EntryDraft(key=f"{lease.epoch}/{number}", fact=fact))
            for number, fact in enumerate(some)
        ]
        await journal.release(lease)
        read = await journal.entries(session)
        assert read == stored
        assert [entry.fact for entry in read] == some
        assert [body_of(entry.fact) for entry in read] == [body_of(fact) for fact in some]

    run_with(kind, request, work)


def test_every_class_of_fact_is_among_those_that_are_tried() -> None:
    assert {(row["kind"], row["state"]) for row in GOLDEN} == {
        (each.kind, each.state) for each in FACTS
    }


# --- rows that are none --------------------------------------------------------------------------


async def with_a_bad_row(journal: Journal, bad: UnreadableFact) -> None:
    """Two sessions with a run each; one of the runs has a row that is no fact."""
    for number in (1, 2):
        rows: list[Fact | UnreadableFact] = [
            RunStarted(recipe="r", steps={"a": "1"}),
            StepFinished(step_id="a", status="completed", output=number),
            RunFinished(status="completed", output=number),
        ]
        if number == 2:
            rows.insert(2, bad)
        entries = [
            replace(
                entry_of("step", "started", {}, key=f"a/{at}/0", position=at),
                session_id=f"ses_{number}",
                run_id=f"run_{number}",
                fact=fact,
            )
            for at, fact in enumerate(rows, 1)
        ]
        await journal.adopt(f"ses_{number}", entries)


@pytest.mark.parametrize("kind", JOURNALS)
async def test_a_row_that_is_no_fact_harms_only_its_run(
    request: pytest.FixtureRequest, kind: str
) -> None:
    """A-123: it is named, with what was expected; all else is listed and shown."""
    async with opened(kind, request) as journal:
        for each in FACTS:
            bad = fact_of(each.kind, each.state, dict.fromkeys(each.__struct_fields__, 7.5))
            assert isinstance(bad, UnreadableFact)
            await _check_bad_row(journal, bad)
            for number in (1, 2):
                await journal.remove_session(f"ses_{number}")


async def _check_bad_row(journal: Journal, bad: UnreadableFact) -> None:
    await with_a_bad_row(journal, bad)
    runs = {run.run_id: run for run in await list_runs(journal)}
    assert runs["run_1"].status == "completed"
    assert (await show_run(journal, runs["run_1"])).output == 1
    assert (await load_recorded_run(journal, "run_1")).run_id == "run_1"
    sessions = await StepRepository(Services(journal=journal)).list_sessions()
    assert {session.id for session in sessions} == {"ses_1", "ses_2"}
    is_listed_so = bad.kind == "run"  # lists are made of these rows alone
    assert (runs["run_2"].status == UNREADABLE) == is_listed_so
    with pytest.raises(JournalError) as caught:
        await load_recorded_run(journal, "run_2")
    assert caught.value.error_code == "corrupt-entry"
    told = caught.value.message
    assert f"Entry 3 of session 'ses_2' ({bad.kind} {bad.state} of run 'run_2')" in told
    assert bad.problem in told
    (entry,) = await journal.entries("ses_2", after=2, until=3, with_damaged=True)
    assert entry.fact == bad

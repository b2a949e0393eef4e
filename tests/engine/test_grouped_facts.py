"""Facts that share a transaction: nothing is shown or done before its own is acknowledged."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from contextlib import aclosing, closing

from hypothesis import given, settings
from hypothesis import strategies as st

from builders import deterministic_services, executor_of, fake_tool, recipe_of
from minions.adapters.models.scripted import ScriptedModel
from minions.adapters.stores.postgres_journal import PostgresJournal
from minions.contracts.executions import RunStatus
from minions.contracts.journal.facts import StepStarted
from minions.contracts.journal.journal import EntryDraft, JournalEntry, Lease
from minions.contracts.run_events import RunEvent
from minions.data.errors import JournalError
from minions.data.json_values import JsonValue
from minions.engine.history.event_stream import EventStream
from minions.engine.history.recorder import Recorder
from minions.engine.services.memory_journal import MemoryJournal
from minions.recipe.kinds.tool_kind import ToolSpecStep
from minions.recipe.model import AgentRecipe, ExecutionMode
from minions.testing.virtual_time import FakeClock
from patience import HANG_S


class LateJournal(MemoryJournal):
    """Commits what came together after a while, and then says so in any order."""

    groups_appends = True

    def __init__(self, seed: int) -> None:
        super().__init__(FakeClock())
        self._random = random.Random(seed)
        self.refused: str | None = None
        """The key of a fact that is not stored."""
        self._uncommitted: list[asyncio.Future[None]] = []
        self._committing: asyncio.Task[None] | None = None
        self.acknowledged: set[tuple[str, int]] = set()
        self.started: set[str] = set()
        """Keys of the tool calls whose beginning is acknowledged."""
        self.largest_group = 0

    async def append(self, lease: Lease, draft: EntryDraft) -> JournalEntry:
        if draft.key == self.refused:
            raise JournalError("the disk is full")
        entry = await super().append(lease, draft)
        committed = asyncio.get_running_loop().create_future()
        self._uncommitted.append(committed)
        if self._committing is None:
            self._committing = asyncio.create_task(self._commit())
        await committed
        self.acknowledged.add((entry.session_id, entry.position))
        if (entry.kind, entry.state) == ("tool_call", "started"):
            self.started.add(entry.key)
        return entry

    async def _commit(self) -> None:
        while self._uncommitted:
            for _ in range(self._random.randrange(6)):
                await asyncio.sleep(0)
            group, self._uncommitted = self._uncommitted, []
            self.largest_group = max(self.largest_group, len(group))
            self._random.shuffle(group)
            for each in group:
                each.set_result(None)
                for _ in range(self._random.randrange(2)):
                    await asyncio.sleep(0)
        self._committing = None


WIDTH = 6


def parallel_recipe() -> AgentRecipe:
    steps = [
        ToolSpecStep(id=f"s{number}", tool="look", params={"step": f"s{number}"})
        for number in range(WIDTH)
    ]
    return recipe_of(steps, execution_mode=ExecutionMode.PARALLEL)


@given(seed=st.integers(0, 10_000), runs=st.integers(1, 3))
@settings(max_examples=40)
def test_events_and_tools_wait_for_the_word_that_their_fact_is_stored(seed: int, runs: int) -> None:
    """A-145."""

    async def check() -> None:
        journal = LateJournal(seed)
        early: list[object] = []
        positions: dict[str, list[int]] = {}

        def look(arguments: Mapping[str, JsonValue]) -> str:
            if not any(key.startswith(f"{arguments['step']}/") for key in journal.started):
                early.append(arguments)
            return "seen"

        def watch(event: RunEvent) -> None:
            if event.position is not None:
                positions.setdefault(event.session_id, []).append(event.position)
                if (event.session_id, event.position) not in journal.acknowledged:
                    early.append(event)

        executor = executor_of(
            ScriptedModel([]),
            tools=[fake_tool(work=look)],
            services=deterministic_services(journal, seed=seed),
        )
        prepared = [executor.prepare(parallel_recipe()) for _ in range(runs)]
        for run in prepared:
            run.listen(watch)
        results = await asyncio.gather(*(run.execute() for run in prepared))
        assert {result.status for result in results} == {RunStatus.COMPLETED}
        assert early == []
        assert len(positions) == runs
        assert all(shown == sorted(shown) for shown in positions.values())
        assert journal.largest_group >= WIDTH

    asyncio.run(check())


async def test_a_fact_that_is_refused_holds_up_no_event_of_the_others() -> None:
    journal = LateJournal(1)
    events, shown = EventStream(), list[RunEvent]()
    events.listen(shown.append)
    recorder = Recorder(deterministic_services(journal), events, session_id="ses_1", run_id="run_1")
    await recorder.open()
    facts = [StepStarted(step_id=step_id) for step_id in "abc"]
    journal.refused = "b/1/0"
    ended = await asyncio.gather(
        *(recorder.record(f"{fact.step_id}/1/0", fact) for fact in facts), return_exceptions=True
    )
    assert [type(each) for each in ended] == [JournalEntry, JournalError, JournalEntry]
    assert [event.position for event in shown] == [1, 2]
    assert recorder.stored == 2
    await recorder.close()


async def test_on_a_server_nothing_is_shown_or_done_before_the_commit(postgres_url: str) -> None:
    """A-145. A lock keeps the server from storing the beginning of a tool call."""
    import psycopg

    called, shown = list[object](), list[str]()
    async with aclosing(PostgresJournal(postgres_url, FakeClock())) as journal:
        tool = fake_tool(work=called.append)
        services = deterministic_services(journal)
        executor = executor_of(ScriptedModel([]), tools=[tool], services=services)
        run = executor.prepare(recipe_of([ToolSpecStep(id="s", tool="look")]))

        with closing(psycopg.connect(postgres_url, autocommit=False)) as db:

            def watch(event: RunEvent) -> None:
                shown.append(event.type)
                if event.type == "step_started":
                    db.execute("SELECT 1 FROM minions.leases FOR UPDATE")

            run.listen(watch)
            executing = asyncio.create_task(run.execute())
            async with asyncio.timeout(HANG_S):
                while not waits_for_a_lock(postgres_url):  # noqa: ASYNC110  # the server tells nobody
                    await asyncio.sleep(0.01)
            assert (shown, called) == (["run_started", "step_started"], [])
            db.rollback()
        result = await executing
    assert result.status is RunStatus.COMPLETED
    assert len(called) == 1
    assert shown[-1] == "run_completed"


def waits_for_a_lock(url: str) -> bool:
    import psycopg

    with closing(psycopg.connect(url, autocommit=True)) as db:
        found = db.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
            "AND wait_event_type = 'Lock'"
        ).fetchone()
    return found != (0,)

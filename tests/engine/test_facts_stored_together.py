"""Which facts of a run are stored by one statement, and which before anything else happens."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from attrs import evolve, frozen

from builders import deterministic_services, executor_of, fake_tool, recipe_of, text_step
from minions.adapters.models.script_items import Answer, tool_request
from minions.adapters.models.scripted import ScriptedModel
from minions.adapters.stores.memory_stores import MemoryStepCache
from minions.contracts.completion import CompletionLink
from minions.contracts.executions import Completion, RunStatus, StepExecution
from minions.contracts.instructions import OutputInstructions
from minions.contracts.journal.journal import EntryDraft, JournalEntry, Lease, OpenedRun
from minions.contracts.run_events import RunCompleted
from minions.contracts.steps import CachedStep, Step
from minions.contracts.tools import Tool
from minions.data.errors import JournalError, LeaseHeldError
from minions.engine.compile.completion_links import DefaultStepCompletionChain
from minions.engine.services.memory_journal import MemoryJournal
from minions.recipe.kinds.set_kind import SetSpec
from minions.recipe.model_config import ModelConfig
from minions.testing.virtual_time import FakeClock


class Statements(MemoryJournal):
    """Stores several facts at once, and remembers what came together."""

    stores_together = True

    def __init__(self) -> None:
        super().__init__(FakeClock())
        self.stored: list[str] = []
        """Kind and state of each fact, those of one statement joined."""
        self.calls: list[str] = []
        """What a lease was acquired by, and with which facts."""

    async def acquire(
        self,
        session_id: str,
        run_id: str,
        worker_id: str,
        ttl_s: float,
        *,
        next_generation: bool = False,
        takes_over: str | None = None,
    ) -> Lease:
        self.calls.append("acquire")
        return await super().acquire(session_id, run_id, worker_id, ttl_s)

    async def open_run(
        self,
        session_id: str,
        run_id: str,
        worker_id: str,
        ttl_s: float,
        drafts: Sequence[EntryDraft],
        *,
        next_generation: bool = False,
        takes_over: str | None = None,
    ) -> OpenedRun:
        kinds = " + ".join(f"{each.kind} {each.fact.state}" for each in drafts)
        self.calls.append(f"open_run {kinds}")
        return await super().open_run(session_id, run_id, worker_id, ttl_s, drafts)

    async def append(self, lease: Lease, draft: EntryDraft) -> JournalEntry:
        (entry,) = await self.append_all(lease, [draft])
        return entry

    async def append_all(
        self, lease: Lease, drafts: Sequence[EntryDraft]
    ) -> Sequence[JournalEntry]:
        self.stored.append(" + ".join(f"{each.kind} {each.fact.state}" for each in drafts))
        return [await MemoryJournal.append(self, lease, draft) for draft in drafts]


async def run_of(
    step: Step[object], journal: Statements, answers: Sequence[Answer], tools: Sequence[Tool] = ()
) -> None:
    services = deterministic_services(journal=journal)
    executor = executor_of(ScriptedModel(answers), services=services, tools=tools)
    result = await executor.execute(recipe_of([step]))
    assert result.status is RunStatus.COMPLETED, result.error


async def test_an_answer_of_text_is_stored_with_the_ends_of_its_step_and_run() -> None:
    journal = Statements()
    await run_of(text_step("ask"), journal, ["All is well."])
    assert journal.stored == [
        "run started + step started",
        "model_call finished + step finished + run finished",
    ]


class Refusing(Statements):
    """Gives no lease."""

    async def acquire(
        self,
        session_id: str,
        run_id: str,
        worker_id: str,
        ttl_s: float,
        *,
        next_generation: bool = False,
        takes_over: str | None = None,
    ) -> Lease:
        raise JournalError("the disk is full")


@pytest.mark.parametrize("step", [text_step("ask"), SetSpec(id="bind", set={"n": 1})])
async def test_a_run_that_cannot_be_opened_raises_and_asks_no_model(
    step: Step[object] | SetSpec,
) -> None:
    journal, model = Refusing(), ScriptedModel(["All is well."])
    executor = executor_of(model, services=deterministic_services(journal=journal))
    with pytest.raises(JournalError, match="disk is full"):
        await executor.execute(recipe_of([step]))
    assert (len(model.prompts), journal.stored, executor.services.executing) == (0, [], set())


async def test_a_run_in_a_session_with_a_name_is_refused_before_anything_is_done() -> None:
    journal, model = Statements(), ScriptedModel(["All is well."])
    await journal.acquire("ses_1", "run_0", "other", 60)
    executor = executor_of(model, services=deterministic_services(journal=journal))
    with pytest.raises(LeaseHeldError, match="run_0"):
        await executor.prepare(recipe_of([text_step("ask")]), session_id="ses_1").execute()
    assert (len(model.prompts), journal.stored) == (0, [])


@pytest.mark.parametrize(
    ("session_id", "first"), [(None, "open_run run started + step started"), ("ses_1", "acquire")]
)
async def test_a_session_that_was_there_is_held_before_anything_of_it_is_read(
    session_id: str | None, first: str
) -> None:
    journal = Statements()
    executor = executor_of(
        ScriptedModel(["All is well."]), services=deterministic_services(journal=journal)
    )
    await executor.prepare(recipe_of([text_step("ask")]), session_id=session_id).execute()
    assert journal.calls[0] == first


async def test_a_run_that_is_heard_to_be_over_has_released_its_session() -> None:
    """Whoever hears it may begin the next run at once."""
    journal, held = Statements(), list[object]()
    executor = executor_of(
        ScriptedModel(["All is well."]), services=deterministic_services(journal=journal)
    )
    run = executor.prepare(recipe_of([text_step("ask")]))
    sessions = journal._sessions
    run.listen(
        lambda event: held.append(
            isinstance(event, RunCompleted) and sessions[run.session_id].holding.deadline  # type: ignore[union-attr]  # it has one
        )
    )
    await run.execute()
    assert held[-1] is None


@frozen
class Watching(CompletionLink):
    """Notes what is stored when it is asked."""

    journal: Statements
    seen: list[str]

    def check(self, execution: StepExecution[object]) -> Completion:
        self.seen.append(self.journal.stored[-1])
        return Completion.UNDECIDED


async def test_an_answer_is_stored_before_a_link_of_the_application_sees_it() -> None:
    journal, seen = Statements(), list[str]()
    chain = DefaultStepCompletionChain().prepend(Watching(journal, seen))
    await run_of(text_step("ask", chain=chain), journal, ["All is well."])
    assert [each.split(" + ")[-1] for each in seen] == ["model_call finished"]


@frozen
class Shout:
    """The output of a step; whoever reads it runs code of the application."""

    text: str


async def test_an_answer_is_stored_before_it_is_read_as_a_declared_output() -> None:
    journal = Statements()
    step = text_step("ask", output=OutputInstructions(output_class=Shout))
    await run_of(step, journal, ['{"text": "hey"}'])
    assert journal.stored[-2].endswith("model_call finished")


class WatchingCache(MemoryStepCache):
    """Notes what is stored when something is put into it."""

    def __init__(self, journal: Statements, seen: list[str]) -> None:
        super().__init__()
        self._journal = journal
        self._seen = seen

    async def put(self, key: str, entry: CachedStep) -> None:
        self._seen.append(self._journal.stored[-1])
        await super().put(key, entry)


async def test_an_answer_is_stored_before_the_cache_gives_it_to_others() -> None:
    journal, seen = Statements(), list[str]()
    services = evolve(deterministic_services(journal=journal), cache=WatchingCache(journal, seen))
    recipe = recipe_of([text_step("ask")], model=ModelConfig(cache=True))
    await executor_of(ScriptedModel(["All is well."]), services=services).execute(recipe)
    assert [each.split(" + ")[-1] for each in seen] == ["model_call finished"]


async def test_an_answer_that_calls_a_tool_is_stored_before_the_call() -> None:
    journal, seen = Statements(), list[str]()
    tool = fake_tool("look", lambda _: seen.extend(journal.stored))
    step = text_step("ask", tools=["look"])
    await run_of(step, journal, [tool_request("look"), "All is well."], [tool])
    assert [each for each in seen if "model_call" in each] == ["model_call finished"]

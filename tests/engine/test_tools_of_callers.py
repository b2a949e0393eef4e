"""Tools that the caller of a run brings: each call waits for the caller's result."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence

import pytest
from attrs import evolve, frozen

from builders import deterministic_services, executor_of
from minions.adapters.models.script_items import Answer, AnswerFunction, tool_request
from minions.adapters.models.scripted import ScriptedModel
from minions.contracts.calls import Prompt
from minions.contracts.decision_types import ApprovalRequest, Decider, Verdict
from minions.contracts.executions import AgentResult, RunStatus
from minions.contracts.journal.start_note import CallerChoice, CallerTool, StartNote
from minions.contracts.messages import MessageRole, ToolCallRequest
from minions.contracts.tools import Effect, Reads, Tool, ToolScope, ToolSpec
from minions.data.errors import UsageError
from minions.data.json_values import JsonValue
from minions.engine.calls.inbox import ItemKind, list_inbox
from minions.engine.calls.pending_decisions import PendingDecision, pending_decisions
from minions.engine.history.replay import Replay
from minions.engine.run.agent_executor import AgentExecutor
from minions.engine.services.memory_journal import MemoryJournal
from minions.engine.views.run_waits import new_wait
from minions.recipe.catalog import Catalog
from minions.recipe.model import AgentRecipe
from minions.recipe.reading.load import recipe_from_document
from minions.testing.virtual_time import FakeClock
from mortal import KilledError, MortalJournal

WEATHER = CallerTool(
    name="weather",
    description="The weather of a town.",
    parameters={
        "type": "object",
        "properties": {"town": {"type": "string"}},
        "required": ["town"],
    },
)
STEP: Mapping[str, JsonValue] = {"id": "a", "goal": "Look.", "tools": {"caller": True}}

BOTH: Mapping[str, JsonValue] = {**STEP, "tools": {"names": ["own"], "caller": True}}


def recipe_with(step: Mapping[str, JsonValue] = STEP, **more: JsonValue) -> AgentRecipe:
    document: dict[str, JsonValue] = {"id": "recipe", "steps": [dict(step)], **more}
    return recipe_from_document(document, Catalog(tools={"own": OWN.spec}))


@frozen
class Own(Tool):
    """A tool of the recipe, which reads private data."""

    @property
    def spec(self) -> ToolSpec:
        return ToolSpec(name="own", effect=Effect.PURE, reads=Reads.PRIVATE)

    async def invoke(self, arguments: Mapping[str, JsonValue], scope: ToolScope) -> object:
        return "of the recipe"


OWN = Own()


@frozen
class Later(Decider):
    """Nobody can decide now."""

    async def approve(self, request: ApprovalRequest) -> Verdict:
        return Verdict.LATER


def asking(*calls: ToolCallRequest) -> AnswerFunction:
    """A model that makes these calls first, and then tells all results."""

    def answer(prompt: Prompt) -> Answer:
        said = [each for each in prompt.messages if each.role is MessageRole.TOOL]
        if not said:
            return list(calls)
        return " | ".join(f"{each.content}" for each in said)

    return answer


def executor_for(
    journal: MemoryJournal, *calls: ToolCallRequest, tools: Sequence[Tool] = (OWN,)
) -> AgentExecutor:
    services = deterministic_services(journal)
    return executor_of(ScriptedModel(asking(*calls)), tools=tools, services=services)


async def begun(
    executor: AgentExecutor, recipe: AgentRecipe, *brought: CallerTool
) -> AgentResult[object]:
    note = StartNote(caller_tools=brought or (WEATHER,)).to_json()
    return await executor.prepare(recipe, note=note).execute()


async def waiting(journal: MemoryJournal) -> dict[str, PendingDecision]:
    """What waits, by the arguments of the call."""
    rows = await journal.entries()
    replay = Replay(rows, max(row.generation for row in rows) + 1)
    return {f"{each.fact.arguments}": each for each in pending_decisions(replay)}


def look(town: str) -> ToolCallRequest:
    return tool_request("weather", {"town": town})


async def test_a_call_waits_for_the_caller_and_continues_with_its_result() -> None:
    journal = MemoryJournal(FakeClock())
    executor = executor_for(journal, look("Bern"))
    first = await begun(executor, recipe_with())
    assert first.status is RunStatus.NEEDS_DECISION
    [pending] = (await waiting(journal)).values()
    assert (pending.what, pending.tool, pending.is_of_caller) == ("answer", "weather", True)
    assert pending.words == """weather({"town":"Bern"}) in step 'a' waits for its caller"""
    done = await executor.resume(first.run_id, decisions={pending.key: "answer:sunny"})
    assert done.output == "sunny"


async def test_several_calls_of_one_answer_wait_together_and_beside_tools_of_the_recipe() -> None:
    journal = MemoryJournal(FakeClock())
    calls = (look("Bern"), tool_request("own", {}), look("Basel"))
    executor = executor_for(journal, *calls)
    recipe = recipe_with(BOTH, tools=["own"])
    first = await begun(executor, recipe)
    found = await waiting(journal)
    assert list(found) == ['{"town":"Bern"}', '{"town":"Basel"}']
    given = {each.key: f"answer:{at}" for at, each in enumerate(found.values())}
    done = await executor.resume(first.run_id, decisions=given)
    assert done.output == "0 | of the recipe | 1"


async def test_a_call_that_does_not_fit_the_caller_s_schema_is_mended_by_the_model() -> None:
    journal = MemoryJournal(FakeClock())
    executor = executor_for(journal, tool_request("weather", {"place": 3}))
    done = await begun(executor, recipe_with())
    assert done.status is RunStatus.COMPLETED
    assert "do not fit the tool 'weather'" in f"{done.output}"
    assert not await waiting(journal)


async def test_a_step_that_does_not_offer_them_does_not_see_them() -> None:
    seen: list[object] = []

    def answer(prompt: Prompt) -> Answer:
        seen.append([spec.name for spec in prompt.tools])
        return "done"

    services = deterministic_services(MemoryJournal(FakeClock()))
    executor = executor_of(ScriptedModel(answer), tools=[OWN], services=services)
    steps: list[JsonValue] = [
        {"id": "a", "goal": "Look.", "tools": ["own"]},
        {"id": "b", "goal": "Look.", "tools": {"names": ["own"], "caller": True}},
        {"id": "c", "goal": "Look."},
    ]
    await begun(executor, recipe_with(tools=["own"], steps=steps))
    assert seen == [["own"], ["own", "weather"], []]


async def test_a_resumed_run_and_a_retried_one_have_the_same_tools() -> None:
    journal = MemoryJournal(FakeClock())
    first = await begun(executor_for(journal, look("Bern")), recipe_with())
    [before] = await waiting(journal)
    await executor_for(journal, look("Bern")).resume(first.run_id)
    assert list(await waiting(journal)) == [before]
    key = (await waiting(journal))[before].key
    await executor_for(journal, look("Bern")).resume(first.run_id, decisions={key: "answer:sunny"})
    await executor_for(journal, look("Basel")).retry(first.run_id, from_step="a")
    assert list(await waiting(journal)) == ['{"town":"Basel"}']


async def test_a_name_that_the_recipe_has_is_refused_before_the_run() -> None:
    executor = executor_for(MemoryJournal(FakeClock()), look("Bern"))
    with pytest.raises(UsageError, match="Two tools are called 'own'"):
        await begun(executor, recipe_with(tools=["own"]), CallerTool(name="own"))


async def test_a_person_may_give_the_result_or_decline_in_the_caller_s_place() -> None:
    journal = MemoryJournal(FakeClock())
    executor = executor_for(journal, look("Bern"))
    first = await begun(executor, recipe_with())
    [item] = await list_inbox(journal)
    assert (item.kind, item.to_json()["tool"]) == (ItemKind.CALL, "weather")
    assert first.error is not None
    assert f"minions reject {first.run_id}" in first.error.message
    done = await executor.resume(first.run_id, decisions={item.key: "reject::not now"})
    assert "declined to answer" in f"{done.output or done.error}"


async def test_nobody_is_told_of_a_run_that_waits_for_its_caller_alone() -> None:
    journal = MemoryJournal(FakeClock())
    first = await begun(executor_for(journal, look("Bern")), recipe_with())
    assert await new_wait(journal, first.run_id) is None


async def test_a_caller_that_does_not_come_back_in_time_fails_the_step() -> None:
    clock = FakeClock()
    journal = MemoryJournal(clock)
    services = deterministic_services(journal, clock)
    model = ScriptedModel(asking(look("Bern")))
    executor = executor_of(model, tools=[OWN], services=services)
    recipe = recipe_with(permissions={"approval_timeout_s": 60})
    first = await begun(executor, recipe)
    assert (await executor.resume(first.run_id)).status is RunStatus.NEEDS_DECISION
    clock.advance(61)
    late = await executor.resume(first.run_id)
    assert late.error is not None
    assert late.error.code == "ask-timeout"


async def test_private_data_goes_to_the_caller_s_tool_after_approval_alone() -> None:
    journal = MemoryJournal(FakeClock())

    def answer(prompt: Prompt) -> Answer:
        said = sum(each.role is MessageRole.TOOL for each in prompt.messages)
        return "done" if said == 2 else tool_request(["own", "own__send"][said])

    services = evolve(deterministic_services(journal), decider=Later())
    executor = executor_of(ScriptedModel(answer), tools=[OWN], services=services)
    first = await begun(executor, recipe_with(BOTH, tools=["own"]), CallerTool(name="own__send"))
    [pending] = (await waiting(journal)).values()
    assert (pending.what, pending.fact.words_of) == ("approval", ("own (step a)",))
    second = await executor.resume(first.run_id, decisions={pending.key: "approve"})
    assert second.status is RunStatus.NEEDS_DECISION
    [pending] = (await waiting(journal)).values()
    done = await executor.resume(first.run_id, decisions={pending.key: "answer:sunny"})
    assert done.output == "done"


async def test_a_process_that_dies_at_any_fact_asks_the_caller_once_and_the_model_no_more() -> None:
    found = [await _killed_at(fact) for fact in range(1, 12)]
    assert set(found) == {"sunny"}


async def _killed_at(fact: int) -> object:
    journal = MortalJournal(FakeClock())
    journal.dies_at = fact
    with contextlib.suppress(KilledError):
        await begun(executor_for(journal, look("Bern")), recipe_with())
    journal.revive()
    rows = await journal.entries()
    if not rows:
        return "sunny"  # nothing was begun
    run_id = rows[0].run_id
    if not await waiting(journal):
        await executor_for(journal, look("Bern")).resume(run_id)
    [pending] = (await waiting(journal)).values()
    done = await executor_for(journal).resume(run_id, decisions={pending.key: "answer:sunny"})
    return done.output


# --- what the caller wants of calls ---------------------------------------------------------------


TIME = CallerTool(name="time", description="The time.", parameters={"type": "object"})


class Choosing:
    """A model that says words unless it is told to choose, and what it was shown each time."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.seen: list[Prompt] = []

    def __call__(self, prompt: Prompt) -> Answer:
        self.seen.append(prompt)
        return self.answers.pop(0)

    def shown(self) -> list[tuple[list[str], JsonValue]]:
        """By call of the model the tools, and whether it has to call one."""
        bodies = [each.output_request.body if each.output_request else {} for each in self.seen]
        return [
            ([tool.name for tool in each.tools], body.get("tool_choice"))
            for each, body in zip(self.seen, bodies, strict=True)
        ]


async def chosen_run(
    model: Choosing, choice: CallerChoice, step: Mapping[str, JsonValue] = BOTH
) -> tuple[AgentExecutor, AgentResult[object], MemoryJournal]:
    journal = MemoryJournal(FakeClock())
    services = deterministic_services(journal)
    executor = executor_of(ScriptedModel(model), tools=[OWN], services=services)
    note = StartNote(caller_tools=(WEATHER, TIME), caller_choice=choice).to_json()
    recipe = recipe_with(step, tools=["own"])
    return executor, await executor.prepare(recipe, note=note).execute(), journal


@pytest.mark.parametrize("names", [("weather", "time"), ("weather",)])
async def test_a_demanded_call_is_of_the_caller_s_tools_and_demanded_once(
    names: tuple[str, ...],
) -> None:
    model = Choosing([look("Bern")], "sunny, I hear")
    executor, first, journal = await chosen_run(model, CallerChoice(must_call=names))
    assert first.status is RunStatus.NEEDS_DECISION
    [pending] = (await waiting(journal)).values()
    done = await executor.resume(first.run_id, decisions={pending.key: "answer:sunny"})
    assert done.output == "sunny, I hear"
    assert model.shown() == [([*names], "required"), (["own", "weather", "time"], None)]


async def test_a_model_that_only_talks_is_asked_which_tool_and_for_its_arguments() -> None:
    model = Choosing("words", '{"tool": "weather"}', '{"town": "Bern"}', "done")
    executor, first, journal = await chosen_run(model, CallerChoice(must_call=("weather", "time")))
    assert [*await waiting(journal)] == ['{"town": "Bern"}']
    assert "none" not in str(model.seen[1].messages[0].content)
    [pending] = (await waiting(journal)).values()
    done = await executor.resume(first.run_id, decisions={pending.key: "answer:sunny"})
    assert done.output == "done"


async def test_of_one_demanded_tool_only_the_arguments_are_asked() -> None:
    model = Choosing("words", '{"town": "Bern"}')
    _, _, journal = await chosen_run(model, CallerChoice(must_call=("weather",)))
    assert [*await waiting(journal)] == ['{"town": "Bern"}']


async def test_a_model_that_names_no_tool_fails_the_step_by_name() -> None:
    model = Choosing("words", '{"tool": "none"}')
    _, result, _ = await chosen_run(model, CallerChoice(must_call=("weather", "time")))
    assert result.status is RunStatus.FAILED
    assert result.error is not None
    assert result.error.code == "no-tool-call"


async def test_a_step_that_offers_no_tools_of_the_caller_decides_itself() -> None:
    model = Choosing("words")
    step = {**STEP, "tools": {"names": ["own"]}}
    _, result, _ = await chosen_run(model, CallerChoice(must_call=("weather",)), step)
    assert (result.output, model.shown()) == ("words", [(["own"], None)])


async def test_of_several_calls_the_first_is_made_where_the_caller_wants_one_at_a_time() -> None:
    model = Choosing([look("Bern"), look("Basel")], [look("Basel"), look("Chur")], "done")
    executor, result, journal = await chosen_run(model, CallerChoice(is_single=True))
    for town in ("Bern", "Basel"):
        [[arguments, pending]] = (await waiting(journal)).items()
        assert arguments == f'{{"town":"{town}"}}'
        result = await executor.resume(result.run_id, decisions={pending.key: "answer:sunny"})
    assert result.output == "done"
    calls = [each.tool_calls for each in model.seen[-1].messages if each.tool_calls]
    assert [len(each) for each in calls] == [1, 1]


def test_what_a_caller_wants_is_noted_and_other_notes_want_nothing() -> None:
    choice = CallerChoice(must_call=("weather",), is_single=True)
    note = StartNote(caller_choice=choice).to_json()
    assert StartNote.of(note).caller_choice == choice
    assert StartNote().to_json() == {}
    others: tuple[JsonValue, ...] = (3, "x", {"must_call": "weather", "single": 1}, {"single": []})
    for wrong in (None, *others, {"must_call": [1]}):
        assert StartNote.of({"caller_choice": wrong, "a": 1}).caller_choice == CallerChoice()

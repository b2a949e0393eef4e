"""What a person decides is recorded: it counts for what was asked, and nobody is asked again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import pytest
from attrs import evolve, field, frozen

from builders import FakeTool, deterministic_services, draft_of, entry_of, executor_of, fake_tool
from minions.adapters.models.script_items import tool_request
from minions.adapters.models.scripted import ScriptedModel
from minions.contracts.calls import CallStatus, ToolCall
from minions.contracts.decision_types import (
    Answer,
    ApprovalRequest,
    Decider,
    Done,
    Fail,
    NoAnswer,
    Question,
    Redo,
    Verdict,
    parse_decision,
)
from minions.contracts.executions import RunStatus
from minions.contracts.journal.journal import JournalEntry
from minions.contracts.tools import Effect, Tool, Toolbox
from minions.data.errors import UsageError
from minions.data.json_values import JsonValue
from minions.engine.calls.resume_decisions import calls_in_doubt, checked_decisions, decided_call
from minions.engine.compile.completion_links import FINAL_ANSWER
from minions.engine.history.replay import Replay
from minions.engine.run.agent_executor import AgentExecutor
from minions.engine.services.memory_journal import MemoryJournal
from minions.recipe.kinds.ask_kind import AskSpec
from minions.recipe.kinds.goal_kind import GoalSpec
from minions.recipe.kinds.tool_kind import ToolSpecStep
from minions.recipe.model import AgentRecipe, Permissions
from minions.testing.virtual_time import FakeClock
from mortal import KilledError, MortalJournal

PERMISSIONS = Permissions(allow_write=True, requires_approval=("write",))
WRITES = AgentRecipe(
    id="recipe",
    permissions=PERMISSIONS,
    steps=(ToolSpecStep(id="do", tool="write", params={"x": 1}),),
)
KEY = "do/1/0/tool/1/0/approval"


@frozen
class Says(Decider):
    """Always the same; keeps what it was asked."""

    verdict: Verdict = Verdict.LATER
    word: object = NoAnswer.LATER
    asked: list[str] = field(factory=list)

    async def approve(self, request: ApprovalRequest) -> Verdict:
        self.asked.append(request.arguments)
        return self.verdict

    async def answer(self, question: Question) -> JsonValue | NoAnswer:
        self.asked.append(question.text)
        return cast("JsonValue | NoAnswer", self.word)


def writer() -> FakeTool:
    return fake_tool("write", dict, effect=Effect.ONCE)


def executor_for(
    journal: MemoryJournal,
    decider: Decider,
    tools: Sequence[Tool] = (),
    model: ScriptedModel | None = None,
    clock: FakeClock | None = None,
) -> AgentExecutor:
    services = evolve(deterministic_services(journal, clock), decider=decider)
    return executor_of(model or ScriptedModel(()), tools=tools, services=services)


def asking(**fields: object) -> AgentRecipe:
    step = AskSpec(id="ask", ask="How many?", **fields)  # type: ignore[arg-type]  # as each test says
    return AgentRecipe(id="recipe", steps=(step,))


async def decisions_of(journal: MemoryJournal) -> list[JournalEntry]:
    return list(await journal.entries(kinds={"decision"}))


async def words_of(journal: MemoryJournal) -> list[tuple[str, str, object]]:
    """Key, state and word of each."""
    return [(each.key, each.state, each.body.get("word")) for each in await decisions_of(journal)]


# --- approvals -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("verdict", "word"), [(Verdict.APPROVED, "approve"), (Verdict.REJECTED, "reject")]
)
async def test_a_verdict_given_at_once_is_recorded_for_this_very_call(
    verdict: Verdict, word: str
) -> None:
    journal = MemoryJournal(FakeClock())
    await executor_for(journal, Says(verdict), [writer()]).execute(WRITES)
    (entry,) = await decisions_of(journal)
    assert entry.state == "recorded"
    assert entry.body["word"] == f"{word}:{entry.body['digest']}"


@pytest.mark.parametrize("word", ["approve", "reject"])
async def test_a_decision_given_with_a_resume_is_recorded_after_what_waited(word: str) -> None:
    journal = MemoryJournal(FakeClock())
    executor = executor_for(journal, Says(), [writer()])
    first = await executor.execute(WRITES)
    await executor.resume(first.run_id, recipe=WRITES, decisions={"do": word})
    waiting, recorded = await decisions_of(journal)
    digest = waiting.body["digest"]
    assert (waiting.state, recorded.state) == ("waiting", "recorded")
    assert recorded.body["word"] == f"{word}:{digest}"


@pytest.mark.parametrize("verdict", [Verdict.APPROVED, Verdict.REJECTED])
async def test_a_verdict_that_a_crash_followed_is_not_asked_for_again(verdict: Verdict) -> None:
    journal, tool = MortalJournal(FakeClock()), writer()
    journal.dies_at = 3  # the run and the step have begun; the verdict is stored
    with pytest.raises(KilledError):
        await executor_for(journal, Says(verdict), [tool]).execute(WRITES)
    journal.revive()
    assert [state for _, state, _ in await words_of(journal)] == ["recorded"]
    later = Says(Verdict.LATER)
    result = await executor_for(journal, later, [tool]).resume("run_1", recipe=WRITES)
    assert later.asked == []
    assert len(tool.asked) == (verdict is Verdict.APPROVED)
    assert result.status is (
        RunStatus.COMPLETED if verdict is Verdict.APPROVED else RunStatus.FAILED
    )


async def test_consent_is_to_arguments_however_they_are_spelled() -> None:
    spelled = ['{"x": 1}', '{"x":1}', '{"x": 2}', "", "{}"]
    calls = [evolve(tool_request("write"), arguments=each) for each in spelled]
    each_its_own = fake_tool("write", dict, effect=Effect.UNDECLARED)
    journal = MemoryJournal(FakeClock())
    recipe = AgentRecipe(
        id="recipe",
        permissions=PERMISSIONS,
        steps=(GoalSpec(id="work", goal="Work.", tools=("write",)),),
    )
    await executor_for(journal, Says(), [each_its_own], ScriptedModel([calls])).execute(recipe)
    by_key = {each.key: each.body["digest"] for each in await decisions_of(journal)}
    one, same, other, empty, nothing = (by_key[f"work/1/0/tool/1/{at}/approval"] for at in range(5))
    assert one == same
    assert empty == nothing
    assert len({one, other, empty}) == 3


# --- answers -------------------------------------------------------------------------------------


async def test_an_answer_given_at_once_is_recorded_with_its_question() -> None:
    journal = MemoryJournal(FakeClock())
    form = {"type": "integer"}
    recipe = asking(form=form, default=7, has_default=True, waits_s=60.0)
    await executor_for(journal, Says(word=3)).execute(recipe)
    (entry,) = await decisions_of(journal)
    assert (entry.key, entry.state) == ("ask/1/0/ask", "recorded")
    assert entry.body == {
        "what": "answer",
        "step_id": "ask",
        "question": "How many?",
        "form": form,
        "default": 7,
        "timeout_s": 60.0,
        "word": "answer:3",
    }


async def test_what_a_question_does_not_say_is_not_recorded() -> None:
    journal = MemoryJournal(FakeClock())
    await executor_for(journal, Says()).execute(asking())
    (entry,) = await decisions_of(journal)
    assert entry.body == {"what": "answer", "step_id": "ask", "question": "How many?"}


async def test_an_answer_given_with_a_resume_is_recorded() -> None:
    journal = MemoryJournal(FakeClock())
    executor = executor_for(journal, Says())
    first = await executor.execute(recipe := asking())
    await executor.resume(first.run_id, recipe=recipe, decisions={"ask": "answer:many"})
    assert await words_of(journal) == [
        ("ask/1/0/ask", "waiting", None),
        ("ask/1/0/ask", "recorded", 'answer:"many"'),
    ]


async def test_the_default_is_recorded_as_one() -> None:
    clock = FakeClock()
    journal = MemoryJournal(clock)
    executor = executor_for(journal, Says(), clock=clock)
    recipe = asking(default="few", has_default=True, waits_s=60.0)
    first = await executor.execute(recipe)
    clock.advance(60)
    assert (await executor.resume(first.run_id, recipe=recipe)).output == "few"
    _, recorded = await decisions_of(journal)
    assert (recorded.body["word"], recorded.body["is_default"]) == ('answer:"few"', True)


async def test_a_question_without_a_time_waits_as_long_as_it_takes() -> None:
    clock = FakeClock()
    journal, decider = MemoryJournal(clock), Says()
    executor = executor_for(journal, decider, clock=clock)
    recipe = asking(default="few", has_default=True)
    first = await executor.execute(recipe)
    clock.advance(10 * 365 * 86_400)
    again = await executor.resume(first.run_id, recipe=recipe)
    assert again.status is RunStatus.NEEDS_DECISION
    assert decider.asked == ["How many?"] * 2
    assert [state for _, state, _ in await words_of(journal)] == ["waiting"]


async def test_an_answer_from_another_journal_does_not_begin_the_time_of_the_question() -> None:
    """What was imported decides nothing, and nobody has been asked here."""
    clock = FakeClock()
    journal = MemoryJournal(clock)
    executor = executor_for(journal, Says(), clock=clock)
    recipe = asking(default="few", has_default=True, waits_s=60.0)
    first = await executor.execute(recipe)
    (waiting,) = await decisions_of(journal)
    lease = await journal.acquire(first.session_id, first.run_id, "w", 60, next_generation=True)
    body = {**waiting.body, "word": 'answer:"x"'}
    draft = draft_of("decision", "imported", body, key=waiting.key)
    await journal.append(lease, draft)
    await journal.release(lease)
    clock.advance(61)
    again = await executor.resume(first.run_id, recipe=recipe)
    assert again.status is RunStatus.NEEDS_DECISION


def deep_list() -> object:
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    return deep


@pytest.mark.parametrize("answer", [float("nan"), deep_list()], ids=["nan", "deep"])
async def test_an_answer_that_is_no_json_is_not_taken(answer: object) -> None:
    journal = MemoryJournal(FakeClock())
    done = await executor_for(journal, Says(word=answer)).execute(asking())
    assert done.error is not None
    assert done.error.code == "bad-answer"
    assert await words_of(journal) == []


@pytest.mark.parametrize(
    ("form", "said"), [({"type": "integer"}, '{"type":"integer"}'), (None, '{"type":"string"}')]
)
async def test_who_gave_no_answer_is_told_what_fits(form: JsonValue, said: str) -> None:
    journal = MemoryJournal(FakeClock())
    done = await executor_for(journal, Says(word=2.5)).execute(asking(form=form))
    assert done.error is not None
    assert f"It takes what fits {said}." in done.error.message


# --- who is meant --------------------------------------------------------------------------------


def replay_of(*entries: JournalEntry) -> Replay:
    return Replay(entries, 2)


def open_call(position: int, key: str, tool: str, step_id: str = "work") -> JournalEntry:
    body: dict[str, JsonValue] = {"step_id": step_id, "tool": tool, "arguments": "{}"}
    return entry_of("tool_call", "started", body, key=key, position=position)


def started(position: int, key: str) -> JournalEntry:
    body: dict[str, JsonValue] = {"step_id": key.partition("/")[0]}
    return entry_of("step", "started", body, key=key, position=position)


IN_DOUBT = (
    started(1, "work/1/0"),
    open_call(2, "work/1/0/tool/1/0", "write"),
    open_call(3, "work/1/0/tool/1/1", "send"),
)


def test_the_answer_that_ends_a_step_is_never_in_doubt() -> None:
    """No tool stands behind it; a tool that is not known may have had its effect."""
    replay = replay_of(
        started(1, "work/1/0"),
        open_call(2, "work/1/0/tool/1/0", FINAL_ANSWER),
        open_call(3, "work/1/0/tool/1/1", "gone"),
    )
    assert [call.tool for call in calls_in_doubt(replay, Toolbox())] == ["gone"]


@pytest.mark.parametrize("name", ["work/1/0/tool/1/1", "send"])
def test_a_call_in_doubt_is_meant_by_its_key_and_by_its_tool(name: str) -> None:
    assert checked_decisions({name: "fail"}, replay_of(*IN_DOUBT)) == {"work/1/0/tool/1/1": Fail()}


@pytest.mark.parametrize("name", ["work", "work/1", "work/1/0/tool"])
def test_the_only_call_in_doubt_is_meant_by_all_that_it_is_within(name: str) -> None:
    replay = replay_of(*IN_DOUBT[:2])
    assert checked_decisions({name: "done"}, replay) == {"work/1/0/tool/1/0": Done()}


def test_a_call_in_doubt_is_meant_by_its_step_in_a_recipe_within() -> None:
    call = open_call(2, "outer/1/0/work/1/0/tool/1/0", "write", step_id="outer/work")
    replay = replay_of(started(1, "outer/1/0/work/1/0"), call)
    assert checked_decisions({"outer/work": "done"}, replay) == {call.key: Done()}


def test_a_name_that_means_several_calls_is_refused() -> None:
    with pytest.raises(UsageError, match="'work' means 2 decisions"):
        checked_decisions({"work": "done"}, replay_of(*IN_DOUBT))


def test_a_call_that_was_decided_is_decided_anew_by_its_key_only() -> None:
    replay = replay_of(*IN_DOUBT)
    key = IN_DOUBT[1].key
    replay.decisions[key] = Done()
    assert checked_decisions({key: "redo"}, replay) == {key: Redo()}
    with pytest.raises(UsageError, match="'write' does not wait for a decision"):
        checked_decisions({"write": "redo"}, replay)


def waiting(what: str) -> Replay:
    body: dict[str, JsonValue] = {"what": what, "step_id": "do", "tool": "write", "digest": "d"}
    return replay_of(
        started(1, "do/1/0"), entry_of("decision", "waiting", body, key="do/1/0/x", position=2)
    )


@pytest.mark.parametrize(
    ("what", "word"),
    [
        ("answer", "approve"),
        ("answer", "reject"),
        ("answer", "answer"),
        ("answer", "other:1"),
        ("approval", "answer:1"),
        ("approval", "answer"),
        ("approval", "approve:"),
        ("approval", "a:b"),
    ],
)
def test_a_word_decides_only_what_it_is_for(what: str, word: str) -> None:
    with pytest.raises(UsageError, match="decides nothing here") as caught:
        checked_decisions({"do": word}, waiting(what))
    assert caught.value.error_code == "bad-decision"


def test_an_answer_may_be_empty_and_may_hold_colons() -> None:
    assert checked_decisions({"do": "answer:"}, waiting("answer")) == {"do/1/0/x": Answer('""')}
    assert checked_decisions({"do": "answer:a:b"}, waiting("answer")) == {
        "do/1/0/x": Answer('"a:b"')
    }


@pytest.mark.parametrize("word", ["fail:1", "redo:1", "gone:1", "done:{"])
def test_only_done_takes_a_result_and_only_json(word: str) -> None:
    with pytest.raises(UsageError) as caught:
        checked_decisions({"write": word}, replay_of(*IN_DOUBT))
    assert caught.value.error_code == "bad-decision"


def test_two_decisions_about_one_call_are_refused() -> None:
    with pytest.raises(UsageError, match="Two decisions about work/1/0/tool/1/0"):
        checked_decisions({"write": "done", IN_DOUBT[1].key: "fail"}, replay_of(*IN_DOUBT))
    same = {"write": "done", IN_DOUBT[1].key: "done"}
    assert checked_decisions(same, replay_of(*IN_DOUBT)) == {IN_DOUBT[1].key: Done()}


# --- a call as it was decided --------------------------------------------------------------------


CALL = ToolCall(key="work/1/0/tool/1/0", request=tool_request("write"))


@pytest.mark.parametrize(
    ("word", "content", "value"),
    [
        ("done", "The call was made; what it gave is not known.", None),
        ('done:"a text"', "a text", "a text"),
        ('done:{"a": 1}', '{"a": 1}', {"a": 1}),
        ("done:null", "null", None),
    ],
)
def test_a_call_that_was_made_gives_what_the_person_says(
    word: str, content: str, value: JsonValue
) -> None:
    call = decided_call(CALL, parse_decision(word))
    assert (call.status, call.failure, call.attempts) == (CallStatus.COMPLETED, None, 1)
    assert call.response is not None
    assert (call.response.content, call.response.value) == (content, value)
    assert not call.response.is_error


def test_a_call_that_counts_as_failed_is_an_error_to_the_model() -> None:
    call = decided_call(CALL, Fail())
    assert call.status is CallStatus.FAILED
    assert call.failure is not None
    assert call.failure.code == "decided-failed"
    assert call.response is not None
    assert call.response.is_error
    assert call.response.content == f"Error: {call.failure.message}"

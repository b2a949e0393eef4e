"""Questions that tool calls ask a person: a call is made again once its answers are there."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import cast

import pytest
from attrs import evolve, field, frozen

from builders import deterministic_services, executor_of
from minions.adapters.models.script_items import Answer, tool_request
from minions.adapters.models.scripted import ScriptedModel
from minions.contracts.calls import Prompt
from minions.contracts.decision_types import ApprovalRequest, Decider, NoAnswer, Question, Verdict
from minions.contracts.executions import AgentResult, RunStatus
from minions.contracts.journal.facts import DecisionRecorded
from minions.contracts.messages import MessageRole
from minions.contracts.tools import DECLINED, Effect, Tool, ToolQuestions, ToolScope, ToolSpec
from minions.data.errors import FailureInfo, ToolError, ToolServerError, UsageError
from minions.data.json_values import JsonValue, dumps
from minions.data.schema import JsonSchema
from minions.engine.calls.pending_decisions import pending_decisions
from minions.engine.history.replay import Replay
from minions.engine.run.agent_executor import AgentExecutor
from minions.engine.services.memory_journal import MemoryJournal
from minions.recipe.catalog import Catalog
from minions.recipe.model import AgentRecipe
from minions.recipe.reading.load import recipe_from_document
from minions.testing.virtual_time import FakeClock
from mortal import KilledError, MortalJournal

LOOP: Mapping[str, JsonValue] = {
    "id": "a",
    "loop": ["x", "y"],
    "tool": "order",
    "params": {"item": "{{ loop.item }}"},
}
ONE: Mapping[str, JsonValue] = {**LOOP, "loop": ["x"]}
GOAL: Mapping[str, JsonValue] = {"id": "a", "goal": "Order both.", "tools": ["order"]}


@frozen
class Orders(Tool):
    """Asks for colours before it orders; counts its calls."""

    colours: int = 1
    breaks: list[ToolServerError] = field(factory=list)
    """Raised by a call each, after its answers."""
    called: list[str] = field(factory=list)
    declined: str | None = None
    """What counts as the answer where a person declines; None: the call fails."""
    effect: Effect = Effect.ONCE

    @property
    def spec(self) -> ToolSpec:
        return ToolSpec(name="order", effect=self.effect, parameters={"type": "object"})

    async def invoke(self, arguments: Mapping[str, JsonValue], scope: ToolScope) -> object:
        item = f"{arguments['item']}"
        self.called.append(item)
        assert scope.questions is not None
        said = [await self._ask(scope.questions, f"{item} {n}?") for n in range(self.colours)]
        if self.breaks:
            raise self.breaks.pop()
        return f"{item}: {', '.join(map(str, said))}"

    async def _ask(self, questions: ToolQuestions, text: str) -> JsonValue:
        try:
            return await questions.ask(text)
        except ToolError as error:
            if error.error_code != DECLINED or self.declined is None:
                raise
            return self.declined


@frozen
class AsksAgain(Tool):
    """Asks for two sizes with the same words, and then for a colour with a form."""

    form: JsonSchema = field(factory=lambda: {"type": "string"})

    @property
    def spec(self) -> ToolSpec:
        return ToolSpec(name="order", effect=Effect.ONCE, parameters={"type": "object"})

    async def invoke(self, arguments: Mapping[str, JsonValue], scope: ToolScope) -> object:
        assert scope.questions is not None
        sizes = [await scope.questions.ask("size?") for _ in range(2)]
        return f"{sizes} {await scope.questions.ask('colour?', self.form)}"


@frozen
class Person(Decider):
    """Answers what it knows."""

    answers: Mapping[str, JsonValue | NoAnswer]
    asked: list[str] = field(factory=list)

    async def approve(self, request: ApprovalRequest) -> Verdict:
        return Verdict.REJECTED

    async def answer(self, question: Question) -> JsonValue | NoAnswer:
        self.asked.append(question.text)
        return self.answers.get(question.text, NoAnswer.LATER)


def recipe_with(tool: Tool, step: Mapping[str, JsonValue]) -> AgentRecipe:
    document: dict[str, JsonValue] = {
        "id": "recipe",
        "tools": ["order"],
        "permissions": {"allow_write": True},
        "steps": [dict(step)],
    }
    return recipe_from_document(document, Catalog(tools={"order": tool.spec}))


def executor_for(
    journal: MemoryJournal, tool: Tool, decider: Decider | None = None
) -> AgentExecutor:
    def answer(prompt: Prompt) -> Answer:
        if prompt.messages[-1].role is MessageRole.TOOL:
            return "done"
        return [tool_request("order", {"item": each}) for each in "xy"]

    services = evolve(deterministic_services(journal), decider=decider or Person({}))
    return executor_of(ScriptedModel(answer), tools=[tool], services=services)


def results(done: AgentResult[object]) -> JsonValue:
    """What the items of the loop gave."""
    return cast("dict[str, JsonValue]", done.output)["results"]


def _failures(done: AgentResult[object]) -> list[FailureInfo]:
    return [
        call.failure.info() for step in done.executions for call in step.tool_calls if call.failure
    ]


async def waiting(journal: MemoryJournal) -> dict[str, str]:
    """The keys of what waits, by the words of the question."""
    rows = await journal.entries()
    replay = Replay(rows, max(row.generation for row in rows) + 1)
    return {f"{each.fact.question}": each.key for each in pending_decisions(replay)}


@pytest.mark.parametrize("step", [LOOP, GOAL], ids=["loop", "goal"])
async def test_only_the_call_whose_question_was_answered_is_made_again(
    step: Mapping[str, JsonValue],
) -> None:
    """A-135."""
    journal, tool = MemoryJournal(FakeClock()), Orders()
    executor = executor_for(journal, tool)
    first = await executor.execute(recipe_with(tool, step))
    assert first.status is RunStatus.NEEDS_DECISION
    assert sorted(tool.called) == ["x", "y"]
    keys = await waiting(journal)
    assert sorted(keys) == ["x 0?", "y 0?"]
    second = await executor.resume(first.run_id, decisions={keys["x 0?"]: "answer:red"})
    assert second.status is RunStatus.NEEDS_DECISION
    assert second.error is not None
    assert "y 0?" in second.error.message
    third = await executor.resume(first.run_id)  # with nothing new
    assert third.status is RunStatus.NEEDS_DECISION
    assert sorted(tool.called) == ["x", "x", "y"]
    last = await executor.resume(first.run_id, decisions={keys["y 0?"]: "answer:blue"})
    assert last.status is RunStatus.COMPLETED, last.error
    assert sorted(tool.called) == ["x", "x", "y", "y"]


async def test_a_call_with_several_questions_is_made_once_for_each_answer() -> None:
    """A-135."""
    journal, tool = MemoryJournal(FakeClock()), Orders(colours=2)
    executor = executor_for(journal, tool)
    first = await executor.execute(recipe_with(tool, ONE))
    for number in (0, 1):
        keys = await waiting(journal)
        assert list(keys) == [f"x {number}?"]
        done = await executor.resume(first.run_id, decisions={keys[f"x {number}?"]: "answer:red"})
    assert (done.status, len(tool.called)) == (RunStatus.COMPLETED, 3)
    assert results(done) == ["x: red, red"]


@pytest.mark.parametrize("word", ["reject", "reject::none is left"])
async def test_a_tool_is_told_that_a_person_declined_to_answer(word: str) -> None:
    """A-135."""
    journal, tool = MemoryJournal(FakeClock()), Orders(declined="no colour")
    executor = executor_for(journal, tool)
    first = await executor.execute(recipe_with(tool, ONE))
    assert first.error is not None
    assert f"minions reject {first.run_id}  (declines to answer)" in first.error.message
    done = await executor.resume(first.run_id, decisions={(await waiting(journal))["x 0?"]: word})
    assert results(done) == ["x: no colour"]
    [row] = [each for each in await journal.entries() if isinstance(each.fact, DecisionRecorded)]
    assert (row.body["word"], row.body.get("reason")) == ("reject", word.partition("::")[2] or None)


async def test_a_tool_that_needs_the_answer_fails_and_says_so() -> None:
    """A-135."""
    journal, tool = MemoryJournal(FakeClock()), Orders()
    person = Person({"x 0?": NoAnswer.DECLINED})
    done = await executor_for(journal, tool, person).execute(recipe_with(tool, ONE))
    assert done.status is RunStatus.FAILED
    assert "question-declined" in dumps([each.to_json() for each in _failures(done)])


async def test_the_question_of_a_step_cannot_be_declined() -> None:
    """A-135."""
    journal, tool = MemoryJournal(FakeClock()), Orders()
    executor = executor_for(journal, tool, Person({"Who?": NoAnswer.DECLINED}))
    first = await executor.execute(recipe_with(tool, {"id": "a", "ask": "Who?"}))
    assert first.status is RunStatus.NEEDS_DECISION
    with pytest.raises(UsageError, match="Say answer:VALUE"):
        await executor.resume(first.run_id, decisions={"a": "reject"})


async def test_a_person_at_the_terminal_is_asked_before_the_call_and_only_once() -> None:
    """A-135."""
    journal, tool = MemoryJournal(FakeClock()), Orders()
    first = await executor_for(journal, tool).execute(recipe_with(tool, LOOP))
    person = Person({"x 0?": "red", "y 0?": "blue"})
    done = await executor_for(journal, tool, person).resume(first.run_id)
    assert results(done) == ["x: red", "y: blue"]
    assert sorted(person.asked) == ["x 0?", "y 0?"]
    assert len(tool.called) == 4


async def test_the_same_words_asked_twice_are_two_questions_and_so_are_other_forms() -> None:
    journal, tool = MemoryJournal(FakeClock()), AsksAgain()
    recipe = recipe_with(tool, ONE)
    done = await executor_for(journal, tool).execute(recipe)
    keys: list[str] = []
    for word in ("1", "2", "red"):
        rows = await journal.entries()
        replay = Replay(rows, max(row.generation for row in rows) + 1)
        [pending] = pending_decisions(replay)
        keys.append(pending.key)
        executor = executor_for(journal, tool)
        done = await executor.resume(done.run_id, decisions={pending.key: f"answer:{word}"})
    assert results(done) == ["['1', '2'] red"]
    assert len({*keys}) == 3
    other = MemoryJournal(FakeClock())
    tool = AsksAgain(form={"type": "string", "minLength": 2})
    person = Person({"size?": "1"})
    await executor_for(other, tool, person).execute(recipe)
    rows = await other.entries()
    [pending] = pending_decisions(Replay(rows, max(row.generation for row in rows) + 1))
    assert pending.key != keys[-1]
    assert pending.key.rpartition("-")[0] == keys[-1].rpartition("-")[0]


async def test_an_answer_counts_for_each_attempt_at_the_call() -> None:
    """A-135."""
    broken = ToolServerError("gone", code="mcp-server-ended", is_transient=True)
    tool = Orders(effect=Effect.IDEMPOTENT, breaks=[broken])
    person = Person({"x 0?": "red"})
    journal = MemoryJournal(FakeClock())
    done = await executor_for(journal, tool, person).execute(recipe_with(tool, ONE))
    assert results(done) == ["x: red"]
    assert (person.asked, len(tool.called)) == (["x 0?"], 2)


async def test_a_call_is_in_doubt_from_its_second_start_to_its_end_and_never_made_unasked() -> None:
    """A-135: a process dies at each fact of the resumed run."""
    found = [await _killed_at(fact) for fact in range(1, 8)]
    made = ("completed", ["x", "x"])
    # The resume and the recorded answer; the start of the call; its end and what follows.
    assert found == [made, made, ("in-doubt", ["x"]), made, made, made, made]


async def _killed_at(fact: int) -> tuple[str | None, list[str]]:
    """How a run ends whose resume died at that fact, and the calls that were made."""
    journal, tool = MortalJournal(FakeClock()), Orders()
    first = await executor_for(journal, tool).execute(recipe_with(tool, ONE))
    decisions = {(await waiting(journal))["x 0?"]: "answer:red"}
    journal.dies_at = journal.count + fact
    with contextlib.suppress(KilledError):
        await executor_for(journal, tool).resume(first.run_id, decisions=decisions)
    journal.revive()
    done = await executor_for(journal, tool).resume(first.run_id)
    return done.error.code if done.error is not None else done.status.value, tool.called

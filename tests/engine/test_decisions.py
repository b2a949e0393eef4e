"""Calls that need somebody's consent, and questions to a person: the run waits, and goes on."""

from __future__ import annotations

from datetime import timedelta
from typing import cast

import pytest
from attrs import evolve, field, frozen

from builders import FakeTool, Ran, deterministic_services, draft_of, executor_of, fake_tool, run_of
from minions.adapters.models.script_items import Answer, tool_request
from minions.adapters.models.scripted import ScriptedModel
from minions.contracts.calls import Prompt
from minions.contracts.decision_types import ApprovalRequest, Decider, NoAnswer, Question, Verdict
from minions.contracts.executions import AgentResult, RunStatus, StepStatus
from minions.contracts.journal.facts import DecisionRecorded
from minions.contracts.messages import MessageRole
from minions.contracts.run_events import RunEvent, RunWaiting, event_to_json
from minions.contracts.tools import Effect, Tool
from minions.data.errors import RecipeError, UsageError
from minions.data.json_values import JsonValue
from minions.engine.calls.pending_decisions import consent_digest
from minions.engine.run.agent_executor import AgentExecutor
from minions.engine.run.recorded_run import load_recorded_run
from minions.engine.services.memory_journal import MemoryJournal
from minions.recipe.catalog import Catalog
from minions.recipe.model import AgentRecipe
from minions.recipe.reading.load import recipe_from_document
from minions.testing.virtual_time import FakeClock
from mortal import KilledError, MortalJournal

Document = dict[str, JsonValue]


@frozen
class Says(Decider):
    """Always the same; keeps what it was asked."""

    verdict: Verdict = Verdict.LATER
    word: JsonValue | NoAnswer = NoAnswer.LATER
    asked: list[str] = field(factory=list)

    async def approve(self, request: ApprovalRequest) -> Verdict:
        """The verdict."""
        self.asked.append(f"{request.step_id}: {request.tool}({request.arguments})")
        return self.verdict

    async def answer(self, question: Question) -> JsonValue | NoAnswer:
        """The word."""
        self.asked.append(f"{question.step_id}: {question.text}")
        return self.word


def writer(name: str = "write") -> FakeTool:
    return fake_tool(name, lambda arguments: dict(arguments), effect=Effect.ONCE)


def recipe_with(document: Document, tools: list[Tool]) -> AgentRecipe:
    catalog = Catalog(tools={tool.spec.name: tool.spec for tool in tools})
    whole: Document = {"id": "recipe", "tools": [tool.spec.name for tool in tools], **document}
    return recipe_from_document(whole, catalog)


async def ran(document: Document, tools: list[Tool], decider: Decider | None = None) -> Ran:
    services = deterministic_services()
    if decider is not None:
        services = evolve(services, decider=decider)
    return await run_of(recipe_with(document, tools), silent, tools=tools, services=services)


def silent(_: Prompt) -> Answer:
    return "done"


def executor_for(
    journal: MemoryJournal, tools: list[Tool], decider: Decider, model: ScriptedModel | None = None
) -> AgentExecutor:
    services = evolve(deterministic_services(journal), decider=decider)
    return executor_of(model or ScriptedModel(silent), tools=tools, services=services)


def code_of(result: AgentResult[object]) -> str | None:
    return result.error.code if result.error else None


# --- rights ------------------------------------------------------------------------------------

WRITES: Document = {
    "permissions": {"allow_write": True, "requires_approval": ["write"]},
    "steps": [
        {"id": "do", "tool": "write", "params": {"x": 1}},
        {"id": "after", "set": {"did": "{{ do }}"}},
    ],
}


@pytest.mark.parametrize(
    ("permissions", "is_allowed"),
    [
        ({}, False),
        ({"allow_write": True}, True),
        ({"allow_write": True, "allow_write_it": False}, False),
        ({"allow_write_it": True}, True),
        ({"allow_WRITE_IT": True}, True),
    ],
)
async def test_a_right_to_one_tool_counts_over_the_right_to_write(
    permissions: Document, is_allowed: bool
) -> None:
    """A-71: without the right the tool is not called, and the step says why."""
    tool = writer("write_it")
    done = await ran(
        {"permissions": permissions, "steps": [{"id": "do", "tool": "write_it"}]}, [tool]
    )
    assert len(tool.asked) == is_allowed
    assert code_of(done.result) == (None if is_allowed else "permission-denied")


def test_rights_and_approvals_name_tools_that_exist() -> None:
    with pytest.raises(RecipeError) as caught:
        recipe_with({**WRITES, "permissions": {"allow_fetch": True, "allow_read": 1}}, [writer()])
    assert [fault.code for fault in caught.value.faults] == ["unknown-tool", "unknown-tool"]


# --- approvals ---------------------------------------------------------------------------------


async def test_without_consent_the_tool_is_not_called_and_the_step_fails() -> None:
    """A-71: nobody is there to consent."""
    tool = writer()
    done = await ran(WRITES, [tool])
    assert tool.asked == []
    assert code_of(done.result) == "approval-denied"
    assert done.statuses == {"do": "failed", "after": "skipped"}


async def test_with_consent_it_is_called_once() -> None:
    tool, decider = writer(), Says(Verdict.APPROVED)
    done = await ran(WRITES, [tool], decider)
    assert (done.result.status, len(tool.asked)) == (RunStatus.COMPLETED, 1)
    assert decider.asked == ['do: write({"x":1})']


async def test_a_run_waits_and_goes_on_after_the_decision() -> None:
    """A-71: under `wait` the run needs a decision and continues after it."""
    journal, tool = MemoryJournal(FakeClock()), writer()
    first = await executor_for(journal, [tool], Says()).execute(recipe_with(WRITES, [tool]))
    assert (first.status, code_of(first)) == (RunStatus.NEEDS_DECISION, "needs-decision")
    assert first.step("do").status is StepStatus.IN_PROGRESS
    assert tool.asked == []
    decider = Says()
    again = await executor_for(journal, [tool], decider).resume(
        first.run_id, decisions={"do": "approve"}
    )
    assert (again.status, again.output) == (RunStatus.COMPLETED, {"did": {"x": 1}})
    assert (len(tool.asked), decider.asked) == (1, [])


async def test_who_watches_is_told_what_is_waited_for() -> None:
    """the stream ends with it, and not with a failure."""
    tool = writer()
    executor = executor_for(MemoryJournal(FakeClock()), [tool], Says())
    events = [event async for event in executor.stream(recipe_with(WRITES, [tool]))]
    (waiting,) = [event_to_json(event) for event in events if event.type == "waiting"]
    told = {name: cast("dict[str, str]", waiting[name]) for name in ("step_id", "what", "data")}
    assert told == {
        "step_id": "do",
        "what": "approval",
        "data": {
            "tool": "write",
            "arguments": '{"x":1}',
            "digest": cast("dict[str, str]", waiting["data"])["digest"],
        },
    }
    last = events[-1]
    assert isinstance(last, RunWaiting)
    assert (last.status, last.data["decisions"]) == (
        "needs_decision",
        [
            {
                "key": waiting["key"],
                "step_id": "do",
                "address": "do",
                "what": "approval",
                "tool": "write",
                "digest": told["data"]["digest"],
            }
        ],
    )


async def test_the_end_of_a_run_that_waits_again_tells_what_waits_now() -> None:
    """also what waits since an earlier execution of the run."""
    executor = executor_for(MemoryJournal(FakeClock()), [], Says())
    recipe = recipe_with(TWO_QUESTIONS, [])
    first = await executor.execute(recipe)
    run = executor.prepare_resume(
        await load_recorded_run(executor.services.journal, first.run_id),
        decisions={"a": "answer:yes"},
    )
    told: list[RunEvent] = []
    run.listen(told.append)
    await run.execute()
    last = told[-1]
    assert isinstance(last, RunWaiting)
    assert last.data["decisions"] == [
        {"key": "b/1/0/ask", "step_id": "b", "address": "b", "what": "answer", "question": "And B?"}
    ]


TWO_QUESTIONS: Document = {
    "execution_mode": "parallel",
    "steps": [{"id": "a", "ask": "A?"}, {"id": "b", "ask": "And B?"}],
}


async def test_a_rejected_call_fails_its_step() -> None:
    journal, tool = MemoryJournal(FakeClock()), writer()
    executor = executor_for(journal, [tool], Says())
    first = await executor.execute(recipe_with(WRITES, [tool]))
    again = await executor.resume(first.run_id, decisions={"write": "reject"})
    assert (again.status, code_of(again)) == (RunStatus.FAILED, "approval-denied")
    assert tool.asked == []


async def test_a_rejected_call_takes_nothing_from_the_steps_that_ended_before() -> None:
    document: Document = {
        **WRITES,
        "execution_mode": "parallel",
        "steps": [
            {"id": "first", "set": {"n": 1}, "timeout_s": 5, "loop": [1]},
            {"id": "second", "set": {"n": "{{ first }}"}},
            {"id": "write", "tool": "write", "params": {"x": 1}},
        ],
    }
    journal, tool = MemoryJournal(FakeClock()), writer()
    executor = executor_for(journal, [tool], Says())
    first = await executor.execute(recipe_with(document, [tool]))
    assert first.step("second").is_complete
    again = await executor.resume(first.run_id, decisions={"write": "reject"})
    assert again.status is RunStatus.FAILED
    assert again.step("second") == first.step("second")


async def test_an_approval_with_edited_arguments_calls_exactly_these() -> None:
    """A-118: the digest of what was shown and that of the edit are recorded."""
    journal, tool = MemoryJournal(FakeClock()), writer()
    executor = executor_for(journal, [tool], Says())
    first = await executor.execute(recipe_with(WRITES, [tool]))
    again = await executor.resume(first.run_id, decisions={"do": 'approve::{"x": 2}'})
    assert (again.output, tool.asked) == ({"did": {"x": 2}}, [{"x": 2}])
    waiting, recorded = await journal.entries(kinds={"decision"})
    assert recorded.body["word"] == f"approve:{waiting.body['digest']}"
    assert recorded.body["arguments"] == '{"x":1}'
    assert recorded.body["edited_arguments"] == '{"x":2}'
    assert recorded.body["edited_digest"] == consent_digest("write", '{"x":2}')
    replayed = await executor.resume(first.run_id)
    assert (replayed.output, len(tool.asked)) == ({"did": {"x": 2}}, 1)


async def test_a_crash_after_the_edit_does_not_lose_it() -> None:
    """A-118."""
    journal, tool = MortalJournal(FakeClock()), writer()
    first = await executor_for(journal, [tool], Says()).execute(recipe_with(WRITES, [tool]))
    journal.dies_at = len(await journal.entries()) + 1  # the resume is stored, and no decision
    with pytest.raises(KilledError):
        await executor_for(journal, [tool], Says()).resume(
            first.run_id, decisions={"do": 'approve::{"x": 2}'}
        )
    journal.revive()
    again = await executor_for(journal, [tool], Says()).resume(first.run_id)
    assert (again.status, tool.asked) == (RunStatus.COMPLETED, [{"x": 2}])


@pytest.mark.parametrize(
    ("edit", "problem"),
    [
        ('{"x": "many"}', r"do not fit the tool 'write': \$\.x"),
        ("[1]", "are a JSON array, not an object"),
        ("{", "are not JSON"),
    ],
)
async def test_an_edit_that_does_not_fit_the_tool_is_refused_before_anything_is_recorded(
    edit: str, problem: str
) -> None:
    """A-118."""
    journal, tool = MemoryJournal(FakeClock()), writer()
    tool = evolve(tool, spec=evolve(tool.spec, parameters=NUMBER))
    executor = executor_for(journal, [tool], Says())
    first = await executor.execute(recipe_with(WRITES, [tool]))
    before = await journal.entries()
    with pytest.raises(UsageError, match=problem) as caught:
        await executor.resume(first.run_id, decisions={"do": f"approve::{edit}"})
    assert caught.value.error_code == "bad-arguments"
    assert await journal.entries() == before
    assert tool.asked == []


NUMBER: Document = {"type": "object", "properties": {"x": {"type": "integer"}}}


async def test_the_model_is_told_of_the_edit_and_its_message_stays() -> None:
    """A-118."""
    journal, tool = MemoryJournal(FakeClock()), writer()
    document: Document = {
        "permissions": {"allow_write": True, "requires_approval": ["write"]},
        "steps": [{"id": "work", "goal": "Work.", "tools": ["write"]}],
    }
    call = tool_request("write", {"x": 1})
    model = ScriptedModel([call, call, "done"])  # the replayed answer uses one up
    executor = executor_for(journal, [tool], Says(), model)
    first = await executor.execute(recipe_with(document, [tool]))
    await executor.resume(first.run_id, decisions={"work": 'approve::{"x": 2}'})
    said, answer = model.prompts[-1].messages[-2:]
    assert [each.arguments for each in said.tool_calls] == ['{"x":1}']
    assert answer.content == '(A person edited the arguments to {"x":2}.)\n{"x":2}'


async def test_the_failure_of_a_rejected_call_says_the_reason() -> None:
    """A-118."""
    journal, tool = MemoryJournal(FakeClock()), writer()
    executor = executor_for(journal, [tool], Says())
    first = await executor.execute(recipe_with(WRITES, [tool]))
    again = await executor.resume(first.run_id, decisions={"write": "reject::too many: 1."})
    assert again.error is not None
    assert again.error.message == (
        "The tool 'write' needs approval, and it was rejected: too many: 1. It was not called."
    )


async def test_what_does_not_depend_on_the_decision_goes_on() -> None:
    journal, tool = MemoryJournal(FakeClock()), writer()
    document: Document = {
        **WRITES,
        "execution_mode": "parallel",
        "steps": [
            {"id": "do", "tool": "write", "params": {"x": 1}},
            {"id": "other", "set": {"x": 2}},
            {"id": "after", "set": {"did": "{{ do }}"}},
        ],
    }
    first = await executor_for(journal, [tool], Says()).execute(recipe_with(document, [tool]))
    statuses = {each.step_id: each.status.value for each in first.executions}
    assert statuses == {"do": "in_progress", "other": "completed", "after": "skipped"}


async def test_calls_of_a_model_wait_one_by_one_and_are_not_asked_for_again() -> None:
    journal = MemoryJournal(FakeClock())
    read, write = fake_tool("read", lambda _: "seen", effect=Effect.PURE), writer()
    tools: list[Tool] = [read, write]

    def answer(prompt: Prompt) -> Answer:
        if prompt.messages[-1].role is MessageRole.TOOL:
            return "done"
        return [
            tool_request("read"),
            tool_request("write", {"x": 1}),
            tool_request("write", {"x": 2}),
        ]

    document: Document = {
        "permissions": {"allow_write": True, "requires_approval": ["write"]},
        "steps": [{"id": "work", "goal": "Work.", "tools": ["read", "write"]}],
    }
    model = ScriptedModel(answer)
    executor = executor_for(journal, tools, Says(), model)
    first = await executor.execute(recipe_with(document, tools))
    assert first.status is RunStatus.NEEDS_DECISION
    keys = [f"work/1/0/tool/1/{at}/approval" for at in (1, 2)]
    second = await executor.resume(first.run_id, decisions={keys[1]: "approve"})
    assert second.status is RunStatus.NEEDS_DECISION
    assert write.asked == [{"x": 2}]
    third = await executor.resume(first.run_id, decisions={keys[0]: "approve"})
    assert (third.status, third.output) == (RunStatus.COMPLETED, "done")
    assert (len(read.asked), write.asked) == (1, [{"x": 2}, {"x": 1}])
    assert len(model.prompts) == 2


async def test_consent_is_to_these_arguments_and_no_others() -> None:
    """An edited recipe asks for something else: the old word does not count."""
    journal, tool = MemoryJournal(FakeClock()), writer()
    executor = executor_for(journal, [tool], Says())
    document: Document = {**WRITES, "inputs": {"x": 1}}
    document["steps"] = [
        {"id": "do", "tool": "write", "params": {"x": "{{ inputs.x }}"}},
        {"id": "fail", "assert": "false", "depends_on": ["do"]},
    ]
    first = await executor.execute(recipe_with(document, [tool]))
    await executor.resume(first.run_id, decisions={"do": "approve"})
    assert tool.asked == [{"x": 1}]
    edited = recipe_with({**document, "inputs": {"x": 2}}, [tool])
    again = await executor.retry(first.run_id, recipe=edited)
    assert again.status is RunStatus.NEEDS_DECISION
    assert tool.asked == [{"x": 1}]


async def test_a_recorded_consent_to_other_arguments_is_none() -> None:
    """As an older version may have left it, or a hand in the journal: the person is asked."""
    journal, tool = MemoryJournal(FakeClock()), writer()
    first = await executor_for(journal, [tool], Says()).execute(recipe_with(WRITES, [tool]))
    (waiting,) = await journal.entries(first.session_id, kinds={"decision"})
    body = {**waiting.body, "word": "approve:0123456789abcdef"}
    lease = await journal.acquire(first.session_id, first.run_id, "w", 60, next_generation=True)
    await journal.append(lease, draft_of("decision", "recorded", body, key=waiting.key))
    await journal.release(lease)
    decider = Says()
    again = await executor_for(journal, [tool], decider).resume(first.run_id)
    assert again.status is RunStatus.NEEDS_DECISION
    assert (tool.asked, decider.asked) == ([], ['do: write({"x":1})'])


async def test_items_of_a_loop_and_recipes_within_wait_too() -> None:
    journal, tool = MemoryJournal(FakeClock()), writer()
    document: Document = {
        **WRITES,
        "steps": [
            {
                "id": "each",
                "tool": "write",
                "params": {"x": "{{ loop.item }}"},
                "loop": [1, 2],
                "aggregate": True,
            }
        ],
    }
    executor = executor_for(journal, [tool], Says())
    first = await executor.execute(recipe_with(document, [tool]))
    assert first.status is RunStatus.NEEDS_DECISION
    decisions = {"each/1/1": "approve", "each/1/2": "approve"}
    again = await executor.resume(first.run_id, decisions=decisions)
    assert again.output == [{"x": 1}, {"x": 2}]


async def test_a_decision_about_nothing_that_waits_is_refused() -> None:
    journal, tool = MemoryJournal(FakeClock()), writer()
    executor = executor_for(journal, [tool], Says())
    first = await executor.execute(recipe_with(WRITES, [tool]))
    with pytest.raises(UsageError, match="'later' does not wait for a decision"):
        await executor.resume(first.run_id, decisions={"later": "approve"})
    with pytest.raises(UsageError, match=r"decides nothing here: .*Say approve or reject"):
        await executor.resume(first.run_id, decisions={"do": "redo"})


# --- questions -----------------------------------------------------------------------------------


def asks(**more: JsonValue) -> Document:
    return {
        "inputs": {"who": "Ada"},
        "steps": [
            {"id": "confirm", "ask": "Shall we, {{ inputs.who }}?", **more},
            {"id": "after", "set": {"said": "{{ confirm }}"}},
        ],
    }


async def test_an_answer_is_the_output_of_its_step() -> None:
    decider = Says(word="yes")
    done = await ran(asks(), [], decider)
    assert done.result.output == {"said": "yes"}
    assert decider.asked == ["confirm: Shall we, Ada?"]


async def test_a_run_waits_for_its_answer_and_asks_only_once() -> None:
    journal = MemoryJournal(FakeClock())
    executor = executor_for(journal, [], Says())
    first = await executor.execute(recipe_with(asks(), []))
    assert first.status is RunStatus.NEEDS_DECISION
    assert first.error is not None
    assert "confirm" in first.error.message
    assert "Shall we, Ada?" in first.error.message
    again = await executor.resume(first.run_id, decisions={"confirm": "answer:of course"})
    assert again.output == {"said": "of course"}
    told = await executor.resume(first.run_id)
    assert told.output == {"said": "of course"}


async def test_an_answer_fits_the_form_or_is_refused() -> None:
    form: Document = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    executor = executor_for(MemoryJournal(FakeClock()), [], Says())
    first = await executor.execute(recipe_with(asks(form=form), []))
    with pytest.raises(UsageError, match="is no answer to that question"):
        await executor.resume(first.run_id, decisions={"confirm": 'answer:{"n": "x"}'})
    again = await executor.resume(first.run_id, decisions={"confirm": 'answer:{"n": 3}'})
    assert again.output == {"said": {"n": 3}}


async def test_after_its_time_the_default_counts() -> None:
    clock = FakeClock()
    journal = MemoryJournal(clock)
    services = evolve(deterministic_services(journal), decider=Says(), clock=clock)
    executor = executor_of(ScriptedModel(silent), services=services)
    recipe = recipe_with(asks(timeout="2h", default="no"), [])
    first = await executor.execute(recipe)
    assert first.status is RunStatus.NEEDS_DECISION
    assert (await executor.resume(first.run_id)).status is RunStatus.NEEDS_DECISION
    clock.advance(timedelta(hours=2).total_seconds())
    assert (await executor.resume(first.run_id)).output == {"said": "no"}


async def test_after_its_time_a_question_without_default_fails_its_step() -> None:
    clock = FakeClock()
    services = evolve(deterministic_services(MemoryJournal(clock)), decider=Says(), clock=clock)
    executor = executor_of(ScriptedModel(silent), services=services)
    first = await executor.execute(recipe_with(asks(timeout=60), []))
    clock.advance(61)
    assert code_of(await executor.resume(first.run_id)) == "ask-timeout"


def test_a_default_that_is_no_answer_and_a_time_that_is_none_are_faults() -> None:
    with pytest.raises(RecipeError) as caught:
        recipe_with(asks(default=7, timeout="soon"), [])
    assert [fault.message for fault in caught.value.faults] == [
        "'soon' is not a duration. Write seconds or 90s, 10m, 2h",
        "the default does not fit: $: 7 is not of type 'string'",
    ]


# --- approvals that expire -----------------------------------------------------------------------


@pytest.mark.parametrize(("passed_s", "is_over"), [(59, False), (60, True), (3_600, True)])
async def test_a_call_that_nobody_approves_in_time_counts_as_rejected(
    passed_s: float, is_over: bool
) -> None:
    """A-169: whatever process comes then, and however often one came before."""
    tool, clock = writer(), FakeClock()
    journal = MemoryJournal(clock)
    recipe = recipe_with(
        {
            "permissions": {
                "allow_write": True,
                "requires_approval": ["write"],
                "approval_timeout_s": 60,
            },
            "steps": [{"id": "do", "tool": "write", "params": {"x": 1}}],
        },
        [tool],
    )

    def executor(decider: Decider) -> AgentExecutor:
        services = evolve(deterministic_services(journal), clock=clock, decider=decider)
        return executor_of(ScriptedModel(silent), tools=[tool], services=services)

    first = await executor(Says()).execute(recipe)
    assert first.status is RunStatus.NEEDS_DECISION
    clock.advance(30)
    assert (await executor(Says()).resume(first.run_id)).status is RunStatus.NEEDS_DECISION
    clock.advance(passed_s - 30)
    last = await executor(Says(Verdict.APPROVED)).resume(first.run_id)
    assert last.status is (RunStatus.FAILED if is_over else RunStatus.COMPLETED)
    assert bool(tool.asked) is not is_over
    if is_over:
        assert last.error is not None
        assert "nobody decided within 60 s" in last.error.message
        entries = await journal.entries(first.session_id, kinds=["decision"])
        assert isinstance(entries[-1].fact, DecisionRecorded)
        assert entries[-1].fact.is_default

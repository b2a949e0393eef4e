"""The tool calls of one answer: what is recorded of each, and which wait for a person."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

import pytest
from attrs import evolve, field, frozen
from msgspec import UNSET

from builders import (
    FakeTool,
    Ran,
    deterministic_services,
    executor_of,
    fake_tool,
    flaky_tool,
    python_step,
    recipe_of,
    run_of,
    text_step,
)
from minions.adapters.models.script_items import tool_request
from minions.adapters.models.scripted import ScriptedModel
from minions.contracts.calls import CallOrigin, CallStatus, ToolCall, ToolCallResponse, ToolFailure
from minions.contracts.decision_types import ApprovalRequest, Decider, Rejection, Verdict
from minions.contracts.executions import RunStatus
from minions.contracts.run_events import AttemptFailed
from minions.contracts.steps import StepScope
from minions.contracts.tools import Effect
from minions.data.errors import StepFailedError
from minions.data.json_values import JsonValue
from minions.engine.calls.tool_batch import _CUT_OFF, _outcome_class, _result, _told_failure
from minions.engine.services.memory_journal import MemoryJournal
from minions.recipe.catalog import Catalog
from minions.recipe.model import Permissions
from minions.recipe.reading.load import recipe_from_document
from minions.testing.virtual_time import FakeClock

CALL = ToolCall(key="a/1/0/tool/1/0", request=tool_request("write"))
FAILURE = ToolFailure(code="tool-failed", message="It broke.")
ERROR = dict(FAILURE.info().to_json())


# --- what is recorded of a call ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("response", "failure", "recorded"),
    [
        (None, None, (None, UNSET)),
        (None, FAILURE, (None, UNSET)),
        (
            ToolCallResponse(content="Error: It broke.", is_error=True),
            FAILURE,
            ("Error: It broke.", UNSET),
        ),
        (ToolCallResponse(content="text", value="text"), None, ("text", UNSET)),
        (ToolCallResponse(content='{"a":1}', value={"a": 1}), None, (None, {"a": 1})),
        (ToolCallResponse(content="1", value=1), None, (None, 1)),
        (ToolCallResponse(content="one", value=1), None, ("one", 1)),
    ],
)
def test_a_result_is_recorded_once_as_value_or_as_words(
    response: ToolCallResponse | None,
    failure: ToolFailure | None,
    recorded: tuple[str | None, object],
) -> None:
    assert _result(evolve(CALL, response=response, failure=failure)) == recorded


@pytest.mark.parametrize(
    ("status", "failure", "state"),
    [
        (CallStatus.COMPLETED, None, "finished"),
        (CallStatus.COMPLETED, FAILURE, "finished"),
        (CallStatus.FAILED, FAILURE, "failed"),
        (CallStatus.FAILED, _CUT_OFF, "interrupted"),
    ],
)
def test_a_call_that_was_cut_off_has_not_ended(
    status: CallStatus, failure: ToolFailure | None, state: str
) -> None:
    assert _outcome_class(evolve(CALL, status=status, failure=failure)).state == state


def test_a_conversation_is_told_of_a_failure_without_an_answer() -> None:
    assert _told_failure(evolve(CALL, failure=FAILURE)) == "Error: It broke."
    assert _told_failure(CALL) == ""


# --- consent -------------------------------------------------------------------------------------


@frozen
class Says(Decider):
    """Always the same; keeps what it was asked."""

    verdict: Verdict | Rejection
    asked: list[str] = field(factory=list)

    async def approve(self, request: ApprovalRequest) -> Verdict | Rejection:
        self.asked.append(request.arguments)
        return self.verdict


def writer() -> FakeTool:
    return fake_tool("write", dict, effect=Effect.ONCE)


async def ran(decider: Decider, tool: FakeTool, **limits: JsonValue) -> Ran:
    """A step whose model asks for two writes, one after the other in one answer."""
    recipe = recipe_of(
        [text_step(tools=["write"])],
        limits=limits,
        permissions=Permissions(allow_write=True, requires_approval=("write",)),
    )
    calls = [tool_request("write", {"x": 1}), tool_request("write", {"x": 2})]
    services = evolve(deterministic_services(), decider=decider)
    return await run_of(recipe, [calls, "done"], tools=[tool], services=services)


@pytest.mark.parametrize(
    ("is_sequential", "asked"), [(True, ['{"x":1}']), (False, ['{"x":1}', '{"x":2}'])]
)
async def test_calls_after_one_that_waits_are_asked_about_only_where_they_are_parallel(
    is_sequential: bool, asked: list[str]
) -> None:
    decider, tool = Says(Verdict.LATER), writer()
    done = await ran(decider, tool, sequential_tool_calls=is_sequential)
    assert done.result.status is RunStatus.NEEDS_DECISION
    assert (decider.asked, tool.asked) == (asked, [])
    assert [kind for kind, _, _ in done.facts if kind == "tool_call"] == []


async def test_sequential_calls_that_may_be_made_are_all_made_in_order() -> None:
    decider, tool = Says(Verdict.APPROVED), writer()
    done = await ran(decider, tool, sequential_tool_calls=True)
    assert done.result.status is RunStatus.COMPLETED
    assert tool.asked == [{"x": 1}, {"x": 2}]
    assert [call.attempts for call in done.only.tool_calls] == [1, 1]
    assert {call.origin for call in done.only.tool_calls} == {CallOrigin.MODEL}


async def test_code_that_handles_everything_does_not_go_on_without_the_decision() -> None:
    async def work(scope: StepScope) -> object:
        with contextlib.suppress(StepFailedError):
            await scope.call_tool("write", {"x": 1})
        return "went on"

    recipe = recipe_of(
        [python_step(work)],
        permissions=Permissions(allow_write=True, requires_approval=("write",)),
    )
    services = evolve(deterministic_services(), decider=Says(Verdict.LATER))
    done = await run_of(recipe, tools=[writer()], services=services)
    assert (done.result.status, done.result.output) == (RunStatus.NEEDS_DECISION, None)
    approved = evolve(deterministic_services(), decider=Says(Verdict.APPROVED))
    done = await run_of(recipe, tools=[writer()], services=approved)
    assert done.result.output == "went on"
    assert [call.origin for call in done.only.tool_calls] == [CallOrigin.STEP]


async def test_a_call_that_was_rejected_is_recorded_with_its_arguments_and_never_begun() -> None:
    tool = writer()
    done = await ran(Says(Verdict.REJECTED), tool)
    rows = [entry for entry in done.entries if entry.kind == "tool_call"]
    assert [(row.state, row.body["arguments"]) for row in rows] == [
        ("failed", '{"x":1}'),
        ("failed", '{"x":2}'),
    ]
    for row in rows:
        error = row.body["error"]
        assert isinstance(error, Mapping)
        assert error["code"] == "approval-denied"
    assert tool.asked == []


REPORTS: dict[str, JsonValue] = {
    "id": "recipe",
    "tools": ["write"],
    "permissions": {"allow_write": True, "requires_approval": ["write"]},
    "steps": [{"id": "work", "goal": "Work.", "tools": ["write"], "tool_failure": "report"}],
}


@pytest.mark.parametrize(
    ("decider", "answer"),
    [
        (Says(Rejection("not on a Friday.")), "and it was rejected: not on a Friday. It was not"),
        (Says(Verdict.REJECTED), "the decider of this run rejects it"),
    ],
)
async def test_the_model_reads_why_its_call_was_rejected_and_the_same_turn_continues(
    decider: Says, answer: str
) -> None:
    """A-118: under the policy `report`."""
    tool, model = writer(), ScriptedModel([tool_request("write", {"x": 1}), "Tomorrow, then."])
    services = evolve(deterministic_services(), decider=decider)
    recipe = recipe_from_document(REPORTS, Catalog(tools={"write": tool.spec}))
    done = await run_of(recipe, model, tools=[tool], services=services)
    assert (done.result.status, done.result.output) == (RunStatus.COMPLETED, "Tomorrow, then.")
    assert tool.asked == []
    assert answer in (model.prompts[1].messages[-1].content or "")


async def test_a_reason_given_with_a_resume_is_kept_with_the_decision_and_replayed() -> None:
    """A-118."""
    call = tool_request("write", {"x": 1})
    tool, model = (
        writer(),
        ScriptedModel([call, call, "Tomorrow, then."]),
    )  # the replayed one counts
    journal = MemoryJournal(FakeClock())
    services = evolve(deterministic_services(journal), decider=Says(Verdict.LATER))
    executor = executor_of(model, tools=[tool], services=services)
    recipe = recipe_from_document(REPORTS, Catalog(tools={"write": tool.spec}))
    first = await executor.execute(recipe)
    again = await executor.resume(first.run_id, decisions={"work": "reject::not on a Friday"})
    assert (again.status, again.output) == (RunStatus.COMPLETED, "Tomorrow, then.")
    waiting, recorded = await journal.entries(kinds={"decision"})
    assert "reason" not in waiting.body
    assert recorded.body["word"] == f"reject:{waiting.body['digest']}"
    assert recorded.body["reason"] == "not on a Friday"
    (made,) = await journal.entries(kinds={"tool_call"})
    assert "rejected: not on a Friday. It was not called." in str(made.body["content"])
    replayed = await executor.resume(first.run_id)
    assert (replayed.output, len(model.prompts)) == ("Tomorrow, then.", 2)


async def test_nobody_is_asked_about_a_call_that_is_not_allowed() -> None:
    decider, tool = Says(Verdict.APPROVED), writer()
    recipe = recipe_of(
        [text_step(tools=["write"])], permissions=Permissions(requires_approval=("write",))
    )
    services = evolve(deterministic_services(), decider=decider)
    call = [tool_request("write", {"x": 1})]
    done = await run_of(recipe, [call, "done"], tools=[tool], services=services)
    assert (decider.asked, tool.asked) == ([], [])
    assert [call.failure and call.failure.code for call in done.only.tool_calls] != [None]


async def test_nobody_is_asked_about_a_call_of_code_that_is_not_allowed() -> None:
    async def work(scope: StepScope) -> object:
        return await scope.call_tool("write", {"x": 1})

    decider, tool = Says(Verdict.APPROVED), writer()
    recipe = recipe_of([python_step(work)], permissions=Permissions(requires_approval=("write",)))
    services = evolve(deterministic_services(), decider=decider)
    done = await run_of(recipe, tools=[tool], services=services)
    assert done.result.error is not None
    assert done.result.error.code == "permission-denied"
    assert (decider.asked, tool.asked) == ([], [])


async def test_the_time_of_a_call_is_recorded_in_milliseconds() -> None:
    clock = FakeClock()
    clock.advance(100)

    def work(_: Mapping[str, JsonValue]) -> object:
        clock.advance(2.5)
        return "seen"

    recipe = recipe_of([text_step(tools=["look"])])
    done = await run_of(
        recipe,
        [[tool_request("look")], "done"],
        tools=[fake_tool("look", work)],
        services=deterministic_services(clock=clock),
    )
    (row,) = [e for e in done.entries if e.kind == "tool_call" and e.state == "finished"]
    assert (row.body["duration_ms"], row.body["attempts"]) == (2500.0, 1)


async def test_a_failure_that_the_model_is_told_of_is_an_error_to_it_and_to_who_watches() -> None:
    tool = flaky_tool("look", failures=2)
    executor = executor_of(
        ScriptedModel([[tool_request("look")], "done"]),
        tools=[tool],
        services=deterministic_services(),
    )
    recipe = recipe_of(
        [text_step(tools=["look"], tool_failure="report")], limits={"max_tool_call_retries": 1}
    )
    events = [event async for event in executor.stream(recipe)]
    retried = [event for event in events if isinstance(event, AttemptFailed)]
    assert [(each.what, each.attempt, each.error["code"]) for each in retried] == [
        ("look", 1, "tool-failed")
    ]
    done = await run_of(recipe, [[tool_request("look")], "done"], tools=[flaky_tool(failures=9)])
    (call,) = done.only.tool_calls
    assert (call.status, call.attempts) == (CallStatus.COMPLETED, 2)
    assert call.response is not None
    assert call.response.is_error

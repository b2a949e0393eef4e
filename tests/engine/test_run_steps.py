"""Steps of a run: what is told again, what is bound at once, and what is done anew."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from attrs import evolve, frozen

from builders import FakeTool, deterministic_services, executor_of, fake_tool, python_step, run_of
from minions.adapters.models.scripted import ScriptedModel
from minions.contracts.decisions import ApprovalRequest, Decider, Verdict
from minions.contracts.executions import AgentResult, RunStatus
from minions.contracts.journal import Journal
from minions.contracts.json_values import JsonValue
from minions.contracts.steps import StepScope
from minions.contracts.tools import Effect, Tool
from minions.engine.compile.selection import RunPart
from minions.engine.run.agent_executor import AgentExecutor
from minions.engine.services.memory_journal import MemoryJournal
from minions.recipe.catalog import Catalog
from minions.recipe.model import AgentRecipe
from minions.recipe.reading.load import recipe_from_document
from minions.testing.clock import FakeClock

Document = dict[str, JsonValue]


@frozen
class Says(Decider):
    """Always the same."""

    verdict: Verdict

    async def approve(self, request: ApprovalRequest) -> Verdict:
        return self.verdict


def loaded(document: Document, tools: list[Tool] | None = None) -> AgentRecipe:
    catalog = Catalog(tools={tool.spec.name: tool.spec for tool in tools or []})
    names: list[JsonValue] = [tool.spec.name for tool in tools or []]
    return recipe_from_document({"id": "recipe", "tools": names, **document}, catalog)


def executor_for(
    journal: Journal, tools: list[Tool] | None = None, verdict: Verdict = Verdict.LATER
) -> AgentExecutor:
    services = evolve(deterministic_services(journal), decider=Says(verdict))
    return executor_of(ScriptedModel(()), tools=tools or [], services=services)


def payer() -> FakeTool:
    return fake_tool("pay", lambda arguments: dict(arguments), effect=Effect.ONCE)


def outputs(result: AgentResult[object]) -> Mapping[str, object]:
    return {each.step_id: each.output for each in result.executions}


# --- what waited when the run went back ----------------------------------------------------------

PAYS: Document = {
    "permissions": {"allow_write": True, "requires_approval": ["pay"]},
    "steps": [
        {"id": "a", "set": {"n": "{{ feedback.attempt if feedback else 0 }}"}},
        {"id": "p", "tool": "pay", "params": {"amount": "{{ a.n + 10 }}"}},
        {"id": "c", "assert": "a.n > 0", "on_error": {"goto": "a"}},
    ],
}


@pytest.mark.parametrize("mode", ["sequential", "parallel"])
async def test_a_call_that_waited_when_the_run_went_back_is_never_made(mode: str) -> None:
    """Also where somebody who consents to everything is there at the resume."""
    journal, tool = MemoryJournal(FakeClock()), payer()
    recipe = loaded({**PAYS, "execution_mode": mode}, [tool])
    first = await executor_for(journal, [tool]).execute(recipe)
    assert first.status is RunStatus.NEEDS_DECISION
    again = await executor_for(journal, [tool], Verdict.APPROVED).resume(first.run_id)
    assert again.status is RunStatus.COMPLETED
    assert tool.asked == [{"amount": 11}]


async def test_a_run_that_waits_withdraws_what_waited_once() -> None:
    journal, tool = MemoryJournal(FakeClock()), payer()
    executor = executor_for(journal, [tool])
    first = await executor.execute(loaded(PAYS, [tool]))
    for _ in range(2):
        assert (await executor.resume(first.run_id)).status is RunStatus.NEEDS_DECISION
    rows = await journal.entries()
    withdrawn = [(row.key, row.body["status"]) for row in rows if row.state == "withdrawn"]
    assert withdrawn == [("p/1/0", "skipped")]
    assert [row.key for row in rows if row.kind == "goto"] == ["c/1/0/goto"]


# --- bound at once -------------------------------------------------------------------------------


async def test_values_of_a_loop_are_bound_once_for_each_item() -> None:
    step: Document = {"id": "a", "set": {"x": 1}, "loop": [1, 2], "aggregate": True}
    done = await run_of(loaded({"steps": [step]}))
    assert done.result.output == [{"x": 1}, {"x": 1}]


async def test_a_step_that_binds_values_counts_as_one_step() -> None:
    steps: list[JsonValue] = [{"id": each, "set": {"x": 1}} for each in "abc"]
    done = await run_of(loaded({"steps": steps, "limits": {"max_steps": 2}}))
    assert done.statuses == {"a": "completed", "b": "completed", "c": "skipped"}
    assert done.result.step("c").reason == "the run's limit max_steps is reached"
    assert done.context.ledger.steps == 2


async def test_values_that_cannot_be_bound_fail_their_step() -> None:
    steps: list[JsonValue] = [{"id": "a", "set": {"x": "{{ inputs.gone.away }}"}}]
    done = await run_of(loaded({"inputs": {"gone": {}}, "steps": steps}), inputs={"gone": {}})
    assert done.statuses == {"a": "failed"}
    assert [state for kind, _, state in done.facts if kind == "step"] == ["failed"]


async def test_what_is_bound_can_be_read_under_the_name_it_was_saved_as() -> None:
    steps: list[JsonValue] = [
        {"id": "a", "set": {"x": 1}, "save_as": "first"},
        {"id": "b", "set": {"y": "{{ first.x }}"}},
    ]
    done = await run_of(loaded({"steps": steps}))
    assert done.result.output == {"y": 1}
    assert done.facts[1:3] == [("step", "a/1/0", "finished"), ("step", "b/1/0", "finished")]


# --- conditions ----------------------------------------------------------------------------------


async def test_a_step_whose_condition_is_false_is_passed_over_once() -> None:
    done = await run_of(loaded({"steps": [{"id": "a", "set": {"x": 1}, "when": "false"}]}))
    assert done.statuses == {"a": "skipped"}
    assert [state for kind, _, state in done.facts if kind == "step"] == ["skipped"]
    assert done.result.step("a").reason == "its condition `when` is false"


async def test_a_failed_condition_of_an_optional_step_fails_no_run() -> None:
    step: Document = {"id": "a", "set": {"x": 1}, "when": "inputs.gone.away", "optional": True}
    steps: list[JsonValue] = [step, {"id": "b", "set": {"x": 1}}]
    done = await run_of(loaded({"inputs": {"gone": {}}, "steps": steps}), inputs={"gone": {}})
    assert done.statuses == {"a": "failed", "b": "completed"}
    assert done.result.status is RunStatus.PARTIAL
    (row,) = [entry for entry in done.entries if entry.state == "failed"]
    assert isinstance(row.body["error"], Mapping)
    assert row.body["reason"] == done.result.step("a").reason


# --- parts ---------------------------------------------------------------------------------------


async def test_what_is_pinned_is_recorded_under_its_own_key_with_where_it_is_from() -> None:
    journal, clock = MemoryJournal(FakeClock()), FakeClock()
    steps: list[JsonValue] = [
        {"id": "a", "set": {"x": 1}},
        {"id": "b", "set": {"y": "{{ a.x }}"}},
        {"id": "c", "set": {"z": 3}},
    ]
    recipe = loaded({"steps": steps})
    executor = executor_for(journal)
    first = await executor.execute(recipe)
    clock.advance(1)
    second = await executor.execute(recipe, part=RunPart(first="b", until="b"))
    rows = await journal.entries(run_id=second.run_id)
    steps_of = [(row.key, row.state, row.body.get("pinned_from")) for row in rows]
    assert [row for row in steps_of if row[0] != "run"] == [
        ("a/1/0", "finished", first.run_id),
        ("b/1/0", "finished", None),
        ("c/1/0", "skipped", None),
    ]
    assert second.step("b").output == {"y": 1}


# --- going back ----------------------------------------------------------------------------------


async def test_each_way_back_is_recorded_with_its_number_and_up_to_its_most() -> None:
    document: Document = {
        "steps": [
            {"id": "a", "set": {"n": "{{ feedback.attempt if feedback else 0 }}"}},
            {"id": "c", "assert": "a.n > 9", "on_error": {"goto": "a", "max": 2}},
        ],
    }
    done = await run_of(loaded(document))
    assert done.result.status is RunStatus.FAILED
    ways = [entry for entry in done.entries if entry.kind == "goto"]
    assert [(each.key, each.body["attempt"], each.body["to"]) for each in ways] == [
        ("c/1/0/goto", 1, "a"),
        ("c/2/0/goto", 2, "a"),
    ]
    assert done.context.feedback is None
    assert done.result.step("a").output == {"n": 2}


async def test_feedback_ends_with_the_step_that_gave_it() -> None:
    document: Document = {
        "steps": [
            {"id": "a", "set": {"n": "{{ feedback.attempt if feedback else 0 }}"}},
            {"id": "c", "assert": "a.n == 1", "on_error": {"goto": "a"}},
            {"id": "d", "set": {"is_over": "{{ not feedback }}"}, "depends_on": ["c"]},
        ],
    }
    done = await run_of(loaded(document))
    assert done.result.output == {"is_over": True}


# --- retries -------------------------------------------------------------------------------------


async def test_code_that_cannot_tell_its_inputs_is_done_anew_only_after_something_else_was() -> (
    None
):
    counts = {"a": 0, "c": 0}
    is_broken = True

    async def a(_: StepScope) -> object:
        counts["a"] += 1
        return counts["a"]

    async def b(_: StepScope) -> object:
        if is_broken:
            raise RuntimeError("not now")
        return "b"

    async def c(_: StepScope) -> object:
        counts["c"] += 1
        if counts["c"] == 1:
            raise RuntimeError("not yet")
        return "c"

    recipe = AgentRecipe(
        id="recipe", steps=(python_step(a, "a"), python_step(b, "b"), python_step(c, "c"))
    )
    executor = executor_for(MemoryJournal(FakeClock()))
    first = await executor.execute(recipe)
    assert first.status is RunStatus.FAILED
    is_broken = False
    second = await executor.retry(first.run_id, recipe=recipe)
    assert (second.status, counts) == (RunStatus.FAILED, {"a": 1, "c": 1})
    third = await executor.retry(first.run_id, recipe=recipe)
    assert (third.status, counts) == (RunStatus.COMPLETED, {"a": 1, "c": 2})
    assert outputs(third) == {"a": 1, "b": "b", "c": "c"}

"""The same seed, clock and answers give the same journal, whole: entries, times, positions."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import (
    answer_of,
    deterministic_services,
    fake_tool,
    flaky_tool,
    python_step,
    recipe_of,
    run_of,
    text_step,
)
from crash.played import Death, PlayedRun
from minions.adapters.models.script_items import Answer, tool_request
from minions.adapters.models.scripted import ScriptedModel
from minions.contracts.calls import Prompt
from minions.contracts.journal.journal import JournalEntry
from minions.contracts.messages import MessageRole
from minions.contracts.steps import StepScope
from minions.contracts.tools import Effect, Tool
from minions.data.errors import StepFailedError
from minions.data.json_values import JsonValue
from minions.recipe.catalog import Catalog
from minions.recipe.reading.load import recipe_from_document
from minions.testing.virtual_time import FakeClock

DOCUMENT: Mapping[str, JsonValue] = {
    "id": "recipe",
    "execution_mode": "parallel",
    "on_failure": "continue",
    "tools": ["slow", "flaky", "broken"],
    "steps": [
        {"id": "a", "tool": "slow", "params": {"n": 3}},
        {"id": "b", "tool": "flaky"},
        {"id": "c", "goal": "Call three at once.", "tools": ["slow", "flaky"]},
        {"id": "d", "goal": "Fail, then try again.", "output": {"good": "boolean"}},
        {"id": "e", "tool": "broken", "optional": True},
        {"id": "f", "set": {"all": "{{ a }} {{ b }} {{ c }} {{ d.good }}"}},
    ],
}


def tools_with(clock: FakeClock) -> list[Tool]:
    """One takes its time, one works at the third attempt, one never."""

    async def slow(arguments: Mapping[str, JsonValue]) -> object:
        await clock.sleep(float(str(arguments.get("n", 1))))
        return arguments

    def broken(arguments: Mapping[str, JsonValue]) -> object:
        raise TypeError("broken")

    return [
        fake_tool("slow", slow, effect=Effect.PURE),
        flaky_tool("flaky", failures=2, effect=Effect.PURE),
        fake_tool("broken", broken, effect=Effect.PURE),
    ]


def model_with(clock: FakeClock) -> ScriptedModel:
    """Loses the line twice, is wrong once, and takes longer for some than for others."""
    lost = iter([True, True])

    async def answer(prompt: Prompt) -> Answer:
        await clock.sleep(len(prompt.messages) / 10)
        text = prompt.messages[-1].content or ""
        if next(lost, False):
            return ConnectionError("the line is dead")
        if text == "Call three at once.":
            return [tool_request("slow", {"n": n}) for n in (3, 1)] + [tool_request("flaky")]
        if text == "Fail, then try again.":
            return '{"good": 3}'
        if prompt.messages[-1].role is MessageRole.TOOL:
            return "three"
        return answer_of('{"good": true}')

    return ScriptedModel(answer)


def journal_of_document(seed: int) -> Sequence[JournalEntry]:
    clock = FakeClock()
    tools = tools_with(clock)
    recipe = recipe_from_document(
        DOCUMENT, Catalog(tools={tool.spec.name: tool.spec for tool in tools})
    )
    services = deterministic_services(clock=clock, seed=seed)
    ran = asyncio.run(run_of(recipe, model_with(clock), tools=tools, services=services))
    assert ran.statuses == dict.fromkeys("abcdf", "completed") | {"e": "failed"}
    return ran.entries


def test_parallel_steps_retries_with_jitter_and_repairs_leave_the_same_journal() -> None:
    assert journal_of_document(seed=1) == journal_of_document(seed=1)


def test_another_seed_moves_the_times_and_nothing_else_of_a_call() -> None:
    """Else the test above would compare nothing: chance is in the delays."""
    one, other = journal_of_document(seed=1), journal_of_document(seed=2)
    assert [entry.at for entry in one] != [entry.at for entry in other]
    assert {entry.key for entry in one} == {entry.key for entry in other}


def journal_of_code() -> Sequence[JournalEntry]:
    clock = FakeClock()

    async def ask(scope: StepScope) -> object:
        async def one(name: str) -> object:
            try:
                return await scope.call_tool(name, {"n": len(name)})
            except StepFailedError as error:
                return error.error_code

        words = asyncio.gather(*[scope.call_model(f"word {n}") for n in range(3)])
        found = asyncio.gather(*[one(name) for name in ("slow", "flaky", "broken")])
        return [await words, await found]

    recipe = recipe_of([python_step(ask), text_step("after")])
    services = deterministic_services(clock=clock)
    ran = asyncio.run(run_of(recipe, model_with(clock), tools=tools_with(clock), services=services))
    assert ran.statuses == {"code": "completed", "after": "completed"}
    return ran.entries


def test_steps_of_code_leave_the_same_journal() -> None:
    assert journal_of_code() == journal_of_code()


# --- random runs ---------------------------------------------------------------------------------

DEATHS = st.lists(
    st.builds(Death, at=st.integers(2, 30), loses_last=st.booleans()), min_size=1, max_size=2
)


def journal_of(seed: int, deaths: Sequence[Death]) -> Sequence[JournalEntry]:
    run = PlayedRun(seed)
    run.play(*deaths)
    return run.entries()


@given(seed=st.integers(0, 10_000))
@settings(max_examples=25, deadline=None)
def test_any_run_leaves_the_same_journal(seed: int) -> None:
    assert journal_of(seed, ()) == journal_of(seed, ())


@given(seed=st.integers(0, 10_000), deaths=DEATHS)
@settings(max_examples=25, deadline=None)
def test_any_run_that_dies_at_the_same_facts_leaves_the_same_journal(
    seed: int, deaths: Sequence[Death]
) -> None:
    assert journal_of(seed, deaths) == journal_of(seed, deaths)


@pytest.mark.parametrize("seed", range(3))
def test_what_a_death_loses_differs_and_what_it_keeps_does_not(seed: int) -> None:
    """A resumed run begins with the very facts of the quiet one."""
    quiet = journal_of(seed, ())
    at = len(quiet) // 2
    assert journal_of(seed, [Death(at=at)])[:at] == quiet[:at]

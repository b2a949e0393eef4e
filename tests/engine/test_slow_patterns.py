"""Patterns of strangers: what takes longer than a callback may is matched in a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest
from attrs import evolve

from builders import answer_of, deterministic_services, executor_of, fake_tool
from minions.adapters.models.script_items import Answer, tool_request
from minions.adapters.models.scripted import ScriptedModel
from minions.contracts.decision_types import ApprovalRequest, Decider, Question, Verdict
from minions.contracts.tools import Effect
from minions.data.json_values import JsonValue, dumps
from minions.data.patterns import AT_ONCE_S
from minions.recipe.catalog import Catalog
from minions.recipe.reading.load import load_recipe_text

PATTERN = "(a|b|ab)*$"
"""Stands for one that takes long; whether it does, the tests say."""
TEXT = "ab" * 60
"""What it matches, once it has the time."""
LOOK = fake_tool(
    "look",
    effect=Effect.PURE,
    parameters={"type": "object", "properties": {"a": {"type": "string", "pattern": PATTERN}}},
)
RECIPES = {
    "input": "inputs: {a: {type: string, pattern: '%'}}\nsteps: [{id: s, set: {n: 1}}]",
    "output": "steps: [{id: s, goal: go, output: {properties: {a: {type: string, pattern: '%'}}}}]",
    "fields": """
model: {output_ladder: [md_json, fields]}
steps:
  - id: s
    goal: go
    output:
      properties:
        a: {type: string, pattern: '%'}
        b: {type: string, pattern: '%'}
        c: {type: integer}
      required: [a, b, c]
""",
    "completion": "steps: [{id: s, goal: go, completion: {mode: signal, patterns: ['%']}}]",
    "arguments": "steps: [{id: s, goal: go, tools: [look]}]",
    "approval": "permissions: {requires_approval: [look]}\n"
    "steps: [{id: s, goal: go, tools: [look]}]",
    "answer": "steps: [{id: s, ask: why, form: {type: string, pattern: '%'}}]",
    "nested": "steps: [{id: s, recipe: inner, with: {a: %s}}]",
}


class Person(Decider):
    async def approve(self, request: ApprovalRequest) -> Verdict:
        return Verdict.APPROVED

    async def answer(self, question: Question) -> JsonValue:
        return TEXT


@pytest.fixture
def matched(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each match whether it was on the event loop, where none is given more than its time and
    none ends.
    """
    found: list[bool] = []
    now = [0.0]

    class Slow:
        def search(self, text: str, *, timeout: float) -> Mapping[int, str]:
            is_on_loop = asyncio._get_running_loop() is not None
            found.append(is_on_loop)
            now[0] += timeout
            if is_on_loop:
                assert timeout <= AT_ONCE_S <= 0.02
                raise TimeoutError
            return {0: text}

    monkeypatch.setattr("minions.data.patterns.compiled_pattern", lambda _: Slow())
    monkeypatch.setattr("minions.data.patterns.thread_time", lambda: now[0])
    return found


def answers(name: str) -> list[Answer]:
    if name in ("arguments", "approval"):
        return [tool_request("look", {"a": TEXT}), answer_of("done")]
    if name == "output":
        return [answer_of(dumps({"a": TEXT}))]
    if name == "fields":
        return [answer_of(dumps({"a": TEXT, "b": TEXT})), answer_of(dumps({"c": 1}))]
    return [answer_of(TEXT)]


@pytest.mark.parametrize("name", RECIPES)
async def test_a_pattern_that_needs_time_has_it_and_the_event_loop_does_not_wait(
    name: str, matched: list[bool]
) -> None:
    """Wherever a pattern of a recipe or a tool is matched."""
    inner = load_recipe_text(
        f"id: inner\n{RECIPES['input'].replace('%', PATTERN)}", "inner.yaml", Catalog()
    )
    catalog = Catalog(tools={"look": LOOK.spec}, recipes={"inner": inner})
    text = RECIPES[name].replace("%s", TEXT).replace("%", PATTERN)
    recipe = load_recipe_text(f"id: r\n{text}", "r.yaml", catalog)
    matched.clear()
    executor = executor_of(
        ScriptedModel(answers(name)),
        tools=[LOOK],
        services=evolve(deterministic_services(), decider=Person()),
        recipes={"inner": inner},
    )
    result = await executor.execute(recipe, {"a": TEXT} if name == "input" else {})
    assert result.error is None
    assert matched[:2] == [True, False]  # tried at once, and then in a thread
    assert matched.count(False) >= matched.count(True)

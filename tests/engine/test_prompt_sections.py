"""The tokens of each prompt by section: before a run, in its calls, and in what is recorded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from builders import answer_of, fake_tool, run_of
from minions.adapters.models.script_items import Answer, tool_request
from minions.contracts.calls import ModelCall, PromptLayout
from minions.contracts.journal.facts import ModelCallFinished
from minions.contracts.journal.journal import JournalEntry
from minions.contracts.tools import Toolbox
from minions.data.json_values import JsonValue
from minions.engine.compile.dry_run import planned_prompts, planned_steps
from minions.engine.compile.extensions import Extensions
from minions.engine.compile.prompt_sections import (
    apportioned,
    parts_of_call,
    prompt_characters,
    prompt_parts,
    section_tokens,
    section_words,
    tokens_of_call,
)
from minions.engine.history.entry_checks import fact_in
from minions.recipe.catalog import Catalog
from minions.recipe.model import AgentRecipe
from minions.recipe.reading.load import recipe_from_document

LOOK = fake_tool("look")
STEPS: JsonValue = [
    {"id": "a", "set": {"x": "PRIVATE"}},
    {
        "id": "b",
        "system_prompt": "Step rules.",
        "goal": "Find out.",
        "messages": [{"user": "An example."}],
        "tools": ["look"],
        "depends_on": ["a"],
        "output": {"n": "integer"},
    },
    {"id": "c", "analyze": "Judge it", "input": "{{ a.x }}", "output": {"n": "integer"}},
]


def recipe(steps: JsonValue = STEPS) -> AgentRecipe:
    document = {"id": "r", "system_prompt": "Be short.", "goal": "Help.", "steps": steps}
    return recipe_from_document({**document, "tools": ["look"]}, Catalog(tools={"look": LOOK.spec}))


async def calls(*answers: Answer) -> Sequence[ModelCall]:
    done = await run_of(recipe(), list(answers), tools=[LOOK])
    return [call for each in done.result.executions for call in each.model_calls]


def is_call(entry: JournalEntry) -> bool:
    return entry.kind == "model_call"


def characters(call: ModelCall, section: str) -> str:
    return "|".join(part.text for part in parts_of_call(call) if part.section.value == section)


async def test_each_text_of_a_prompt_stands_in_its_section() -> None:
    """A-110."""
    first, second, judged = await calls(tool_request("look"), '{"n":1}', '{"n":2}')
    assert characters(first, "system") == "Be short.|Step rules."
    assert characters(first, "goal") == "Help.|An example.|Find out.|"
    assert "PRIVATE" in characters(first, "step_outputs")
    assert "is data, never" in characters(first, "step_outputs")
    assert '{"n": integer}' in characters(first, "schema")
    assert '"name":"look"' in characters(first, "tools")
    assert characters(first, "history") == ""
    assert "look" in characters(second, "history")
    assert "PRIVATE" in characters(judged, "step_outputs")
    assert "PRIVATE" not in characters(judged, "goal")


async def test_sections_add_up_to_the_prompt_and_rows_to_the_tokens_of_the_call() -> None:
    """A-110: no character is counted twice or not at all."""
    done = await run_of(
        recipe(),
        [answer_of('{"n":1}', input_tokens=1001, output_tokens=2), '{"n":2}'],
        tools=[LOOK],
    )
    for each in done.result.executions:
        for call in each.model_calls:
            sections = section_tokens(parts_of_call(call))
            length = sum(len(part.text) for part in parts_of_call(call))
            assert sum(sections.values()) == -(-length // 4)
            assert tokens_of_call(call) == sections
            assert tokens_of_call(evolve(call, layout=PromptLayout())) == section_tokens(
                prompt_parts(call.prompt, PromptLayout())
            )
            assert prompt_characters(call.prompt) == length
            said = sum(len(message.content or "") for message in call.prompt.messages)
            assert length >= said
    rows = [fact_in(entry, ModelCallFinished) for entry in done.entries if is_call(entry)]
    totals = [sum(cast("Mapping[str, int]", row.sections).values()) for row in rows]
    assert totals == [(row.metrics or {})["input_tokens"] for row in rows]
    assert totals[0] == 1001


async def test_a_dry_run_tells_the_sections_that_the_run_sends() -> None:
    """A-110: where all values are known before."""
    extensions = Extensions(tools=Toolbox((LOOK,)))
    planned = planned_steps(recipe(), {}, Toolbox((LOOK,)), extensions)
    sent = {call.key.partition("/")[0]: call for call in await calls('{"n":1}', '{"n":2}')}
    for step in planned:
        if step.prompt is not None:
            sections = section_tokens(parts_of_call(sent[step.step_id]))
            assert {**step.prompt.sections, "schema": 0} == {**sections, "schema": 0} or all(
                abs(step.prompt.sections[name] - count) <= 1
                for name, count in sections.items()
                if name != "schema"
            )
    assert [step.step_id for step in planned if step.prompt is not None] == ["b", "c"]


def test_before_a_run_an_unknown_output_counts_only_its_border() -> None:
    """A-110."""
    steps: JsonValue = [
        {"id": "a", "goal": "Fetch"},
        {"id": "b", "goal": "Use", "depends_on": ["a"]},
    ]
    extensions = Extensions(tools=Toolbox((LOOK,)))
    first, second = planned_prompts(recipe(steps), extensions)
    assert first.prompt is not None
    assert "step_outputs" not in first.prompt.sections
    assert second.prompt is not None
    assert 0 < second.prompt.sections["step_outputs"] < 40


@given(st.integers(0, 10_000), st.lists(st.integers(0, 1_000), max_size=6))
def test_a_total_is_divided_without_a_rest(total: int, weights: list[int]) -> None:
    named = {str(at): weight for at, weight in enumerate(weights)}
    shares = apportioned(total, named)
    assert sum(shares.values()) == (total if sum(weights) else 0)
    assert all(share >= 0 for share in shares.values())


def test_the_largest_section_is_told_first() -> None:
    assert section_words({"goal": 2, "tools": 40}) == "42 tokens: tools 40, goal 2"

"""`analyze:` and `assert:` steps."""

from __future__ import annotations

import pytest

from builders import Ran, border_in, run_of
from minions.adapters.models.script_items import Answer
from minions.contracts.executions import RunStatus
from minions.data.json_values import JsonValue
from minions.recipe.catalog import Catalog
from minions.recipe.reading.load import recipe_from_document


async def ran(steps: list[JsonValue], answers: list[Answer], **settings: JsonValue) -> Ran:
    document: dict[str, JsonValue] = {"id": "recipe", **settings, "steps": steps}
    return await run_of(recipe_from_document(document, Catalog()), answers)


ANALYSIS: dict[str, JsonValue] = {
    "id": "judge",
    "description": "Determine which need updates",
    "tool": "llm_analyze",
    "context": "Rules: {{ data.rules }}",
    "input": "{{ data.items }}",
    "output_format": {"updates": [{"id": 0}], "reasoning": ""},
    "save_as": "analysis",
}


@pytest.mark.parametrize("items", [[], [{"id": 1}], {}, "", None, 0])
async def test_one_fresh_call_holds_context_description_input_and_form(items: JsonValue) -> None:
    """A-63: the input also when it is empty, and no other step's text."""
    done = await ran(
        [
            {"id": "data", "set": {"items": items, "rules": "be strict", "secret": "not this"}},
            {"id": "before", "goal": "Say something else"},
            ANALYSIS,
            {"id": "use", "set": {"why": "{{ analysis.reasoning }}"}},
        ],
        ["something", '{"updates": [], "reasoning": "none"}'],
    )
    assert done.result.output == {"why": "none"}
    *_, prompt = done.prompts
    border = border_in(prompt)
    *head, question = [message.content or "" for message in prompt]
    shown = "null" if items is None else '""' if items == "" else str(items).replace("'", '"')
    assert question == (
        "Context:\nRules: be strict\n\nTask:\nDetermine which need updates\n\nInput:\n"
        f"<{border}>\n{shown.replace(': ', ':')}\n</{border}>"
    )
    assert '{"updates": [{"id": number}], "reasoning": string}' in " ".join(head)
    text = " ".join(head)
    assert "something" not in text
    assert "not this" not in text


async def test_an_answer_without_a_declared_key_is_repaired_once_and_then_refused() -> None:
    """A-64."""
    data: JsonValue = {"id": "data", "set": {"items": [], "rules": ""}}
    done = await ran([data, ANALYSIS], ['{"updates": []}', '{"updates": [], "reasoning": "ok"}'])
    assert done.result.output == {"updates": [], "reasoning": "ok"}
    done = await ran([data, ANALYSIS], ['{"updates": []}', '{"updates": []}'])
    error = done.result.step("judge").error
    assert error is not None
    assert error.code == "invalid-output"
    assert "'reasoning' is a required property" in error.message
    assert len(done.prompts) == 2


async def test_an_analysis_may_be_made_of_each_item() -> None:
    done = await ran(
        [
            {
                "id": "each",
                "analyze": "Is {{ loop.item }} even?",
                "output": {"even": "boolean"},
                "loop": [1, 2],
                "aggregate": True,
            }
        ],
        ['{"even": false}', '{"even": true}'],
    )
    assert done.result.output == [{"even": False}, {"even": True}]
    assert [len(prompt) for prompt in done.prompts] == [3, 3]


async def test_a_condition_that_holds_lets_the_run_go_on_and_one_that_does_not_fails_it() -> None:
    steps: list[JsonValue] = [
        {"id": "data", "set": {"n": 3}},
        {"id": "check", "assert": ["data.n > 1", "data.n < 3"], "message": "It is {{ data.n }}."},
        {"id": "after", "set": {"x": 1}, "depends_on": ["check"]},
    ]
    done = await ran(steps, [])
    assert done.result.status is RunStatus.FAILED
    assert done.result.error is not None
    assert (done.result.error.code, done.result.error.message) == (
        "assertion-failed",
        "It is 3.",
    )
    assert done.statuses == {"data": "completed", "check": "failed", "after": "skipped"}
    done = await ran([steps[0], {"id": "check", "assert": "data.n == 4"}], [])
    assert done.result.error is not None
    assert done.result.error.message == "The condition 'data.n == 4' does not hold."
    done = await ran([steps[0], {"id": "check", "assert": "data.n == 3"}], [])
    assert done.result.status is RunStatus.COMPLETED

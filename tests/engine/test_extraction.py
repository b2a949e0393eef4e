"""Parameters that templates leave open: one focused question, and what is known always wins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from builders import FakeTool, Ran, border_in, fake_tool, run_of
from minions.adapters.models.script_items import Answer
from minions.adapters.models.scripted import ScriptedModel
from minions.contracts.executions import AgentExecutionError, RunStatus
from minions.contracts.json_values import JsonValue
from minions.recipe.catalog import Catalog
from minions.recipe.reading.load import recipe_from_document
from minions.recipes import analyze_data, extract_params

PARAMETERS: dict[str, JsonValue] = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "note": {"type": ["string", "null"]},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}


def look_up(arguments: Mapping[str, JsonValue]) -> object:
    """What it was asked."""
    return dict(arguments)


async def ran(
    params: Mapping[str, JsonValue],
    answers: list[Answer],
    before: Sequence[JsonValue] = (),
    **step: JsonValue,
) -> tuple[Ran, FakeTool]:
    """A tool step after one that knows a little."""
    tool = fake_tool("weather", look_up, parameters=PARAMETERS)
    plain = fake_tool("data", lambda _: {"city": "Bern", "none": None, "list": [1, 2, 3, 4, 5]})
    document: dict[str, JsonValue] = {
        "id": "recipe",
        "tools": ["weather", "data"],
        "steps": [
            *before,
            {"id": "known", "tool": "data", "params": {}},
            {
                "id": "ask",
                "description": "How will it be?",
                "tool": "weather",
                "params": dict(params),
                "depends_on": ["known"],
                **step,
            },
        ],
    }
    catalog = Catalog(tools={"weather": tool.spec, "data": plain.spec})
    recipe = recipe_from_document(document, catalog)
    return await run_of(recipe, answers, tools=[tool, plain]), tool


async def test_what_is_there_needs_no_model_also_when_it_is_null() -> None:
    """A-52: null is a value."""
    done, _ = await ran({"city": "{{ known.city }}", "days": 2, "note": "{{ known.none }}"}, [])
    assert done.result.output == {"city": "Bern", "days": 2, "note": None}
    assert done.prompts == []


@pytest.mark.parametrize("params", [{"days": "{{ known.days }}"}, {}], ids=["missing", "left out"])
async def test_what_is_missing_is_asked_for_in_one_call(params: Mapping[str, JsonValue]) -> None:
    """A-52: exactly one extraction call, with the step, the tool and the data, summarised."""
    given = {"city": "{{ known.city }}", **params}
    done, _ = await ran(given, ['{"params": {"days": 3}}'])
    assert done.result.output == {"city": "Bern", "days": 3}
    (prompt,) = done.prompts
    text = prompt[-1].content or ""
    assert "Step: How will it be?" in text
    assert "Tool: weather" in text
    assert "To be found: days" in text
    assert '"list":[1,2,3,"… and 2 more, 5 in all"]' in text


async def test_what_templates_gave_is_never_changed_by_the_answer() -> None:
    """A-53."""
    answer = '{"params": {"city": "Rome", "days": 3, "note": "x"}}'
    done, _ = await ran({"city": "{{ known.city }}", "days": "{{ known.days }}"}, [answer])
    assert done.result.output == {"city": "Bern", "days": 3, "note": "x"}


@pytest.mark.parametrize(
    "answer",
    ["I do not know", '{"params": {}}', '{"params": {"days": 3, "wind": 1}}', '{"days": 3}'],
)
async def test_an_answer_that_does_not_fit_is_repaired_once_and_then_fails_the_step(
    answer: str,
) -> None:
    """A-53, A-54: the tool is not called."""
    done, tool = await ran({"city": "Bern"}, [answer, answer])
    assert done.result.status is RunStatus.FAILED
    error = done.result.step("ask").error
    assert error is not None
    assert error.code == "invalid-output"
    assert tool.asked == []
    assert len(done.prompts) == 2
    done, tool = await ran({"city": "Bern"}, [answer, '{"params": {"days": 1}}'])
    assert done.result.output == {"city": "Bern", "days": 1}


async def test_a_value_that_is_missing_inside_a_text_fails_the_step() -> None:
    done, tool = await ran({"city": "In {{ known.town }}", "days": 1}, [])
    error = done.result.step("ask").error
    assert error is not None
    assert error.code == "missing-value"
    assert "known.town" in error.message
    assert (tool.asked, done.prompts) == ([], [])


async def test_each_item_of_a_loop_is_asked_for_on_its_own() -> None:
    done, _ = await ran(
        {"city": "{{ loop.item }}"},
        ['{"params": {"days": 1}}', '{"params": {"days": 2}}'],
        loop=["Bern", "Rome"],
        aggregate=True,
    )
    assert done.result.output == [{"city": "Bern", "days": 1}, {"city": "Rome", "days": 2}]
    assert 'loop: {"item":"Rome","index":1}' in (done.prompts[1][-1].content or "")


async def test_the_list_that_a_loop_goes_through_is_not_in_each_question() -> None:
    """A-107: the item is; what a parameter reads is data for the question."""
    done, _ = await ran(
        {"city": "{{ loop.item }}", "days": "{{ known.days }}"},
        ['{"params": {"days": 1}}', '{"params": {"days": 2}}'],
        loop="{{ data.list[:2] }}",
        when="{{ listed.n == 1 }}",
        before=[
            {"id": "data", "set": {"list": ["Bern", "Rome", "Oslo"]}},
            {"id": "listed", "set": {"n": 1}},
        ],
    )
    data = (done.prompts[1][-1].content or "").partition("Data:\n")[2]
    assert data == (
        'known: {"city":"Bern","none":null,"list":[1,2,3,"… and 2 more, 5 in all"]}\n'
        'loop: {"item":"Rome","index":1}'
    )


async def test_programs_ask_the_same_question_by_name() -> None:
    model = ScriptedModel(['{"params": {"city": "Bern", "days": 1}}'])
    found = await extract_params(
        model,
        step_description="How will it be?",
        tool_name="weather",
        tool_params=PARAMETERS,
        context_data={"home": "Bern"},
    )
    assert found == {"params": {"city": "Bern", "days": 1}}
    assert 'home: "Bern"' in (model.prompts[0].messages[-1].content or "")
    with pytest.raises(AgentExecutionError, match="No valid output came"):
        await extract_params(
            ScriptedModel(["no", "no"]),
            step_description="",
            tool_name="weather",
            tool_params=PARAMETERS,
            context_data={},
        )


async def test_programs_analyse_data_by_the_same_step() -> None:
    model = ScriptedModel(['{"updates": [1], "reasoning": "odd"}'])
    found = await analyze_data(
        model,
        task_description="Which are odd?",
        input_data=[1, 2],
        output_format={"updates": [], "reasoning": ""},
        context="Be exact.",
    )
    assert found == {"updates": [1], "reasoning": "odd"}
    text, border = model.prompts[0].messages[-1].content, border_in(model.prompts[0].messages)
    assert text == (
        f"Context:\nBe exact.\n\nTask:\nWhich are odd?\n\nInput:\n<{border}>\n[1,2]\n</{border}>"
    )

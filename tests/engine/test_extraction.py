"""Parameters that templates leave open: one focused question, and what is known always wins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import pytest

from builders import FakeTool, Ran, border_in, fake_tool, run_of
from minions.adapters.models.script_items import Answer
from minions.adapters.models.scripted import ScriptedModel
from minions.contracts.executions import AgentExecutionError, RunStatus
from minions.contracts.journal.facts import ToolCallStarted
from minions.contracts.tools import Effect, Toolbox
from minions.data.json_values import JsonValue
from minions.engine.compile.extensions import Extensions
from minions.engine.compile.kinds.tool import ToolCallStep
from minions.engine.run.agent_executor import AgentExecutor
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
    effect: Effect = Effect.PURE,
    **step: JsonValue,
) -> tuple[Ran, FakeTool]:
    """A tool step after one that knows a little."""
    tool = fake_tool("weather", look_up, effect=effect, parameters=PARAMETERS)
    plain = fake_tool("data", lambda _: {"city": "Bern", "none": None, "list": [1, 2, 3, 4, 5]})
    document: dict[str, JsonValue] = {
        "id": "recipe",
        "tools": ["weather", "data"],
        "permissions": {"allow_write": True},
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


OLDER: Final[dict[str, Any]] = {"params_template": {"days": "{{ known.days }}"}}  # Any: keywords
FILLS: Final[dict[str, Any]] = {"fill": ["days"]}  # Any: likewise


@pytest.mark.parametrize(
    ("effect", "more"),
    [
        (Effect.PURE, {}),
        (Effect.PURE, OLDER),
        (Effect.PURE, FILLS),
        (Effect.UNDECLARED, FILLS),
        (Effect.ONCE, FILLS),
        (Effect.ONCE, OLDER),
        (Effect.ONCE, {"params_template": {}}),
    ],
)
async def test_what_is_missing_is_asked_for_in_one_call(
    effect: Effect,
    more: dict[str, Any],  # Any: keywords
) -> None:
    """A-52, A-155: one extraction call, with the step, the tool and the data, summarised."""
    given = {"city": "{{ known.city }}"}
    done, _ = await ran(given, ['{"params": {"days": 3}}'], effect=effect, **more)
    assert done.result.output == {"city": "Bern", "days": 3}
    (prompt,) = done.prompts
    text = prompt[-1].content or ""
    assert "Step: How will it be?" in text
    assert "Tool: weather" in text
    assert "To be found: days" in text
    assert '"days"' not in text  # the form of the answer tells the parameters, once
    assert '"list":[1,2,3,"… and 2 more, 5 in all"]' in text


async def test_what_templates_gave_is_never_changed_by_the_answer() -> None:
    """A-53."""
    answer = '{"params": {"city": "Rome", "days": 3, "note": "x"}}'
    done, _ = await ran({"city": "{{ known.city }}"}, [answer], **OLDER)
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


@pytest.mark.parametrize("effect", [Effect.PURE, Effect.ONCE, Effect.UNDECLARED])
@pytest.mark.parametrize("more", [{}, {"optional": True}])
async def test_no_model_invents_a_value_that_a_template_names_and_that_is_not_there(
    effect: Effect,
    more: dict[str, Any],  # Any: keywords
) -> None:
    """A-155."""
    given: dict[str, JsonValue] = {"city": "{{ known.citty }}", "days": 1}
    done, tool = await ran(given, ['{"params": {"city": "Rome"}}'], effect=effect, **more)
    error = done.result.step("ask").error
    assert error is not None
    assert (error.code, "'city'" in error.message) == ("missing-value", True)  # the nearest name
    assert "known.citty" in error.message
    assert (tool.asked, done.prompts) == ([], [])


@pytest.mark.parametrize("effect", [Effect.ONCE, Effect.IDEMPOTENT, Effect.UNDECLARED])
async def test_no_model_fills_in_unasked_what_a_tool_with_an_effect_is_given(
    effect: Effect,
) -> None:
    """A-155. Plain data, such as the recipe of a stored run, is no error before the run."""
    done, tool = await ran({"city": "Bern"}, ['{"params": {"days": 3}}'], effect=effect)
    error = done.result.step("ask").error
    assert error is not None
    assert (error.code, "days" in error.message) == ("missing-param", True)
    assert (tool.asked, done.prompts) == ([], [])


async def test_the_result_and_the_journal_name_what_a_model_filled_in() -> None:
    """A-155."""
    done, _ = await ran({"city": "Bern"}, ['{"params": {"days": 3}}'], effect=Effect.ONCE, **FILLS)
    (call,) = done.result.step("ask").tool_calls
    assert call.filled == ("days",)
    started = [e.fact for e in done.entries if isinstance(e.fact, ToolCallStarted)]
    assert [each.filled for each in started] == [None, ("days",)]


async def test_a_model_fills_in_what_is_listed_and_nothing_else_of_a_tool_with_an_effect() -> None:
    """A-155."""
    more, fine = '{"params": {"days": 3, "note": "x"}}', '{"params": {"days": 3}}'
    done, tool = await ran({"city": "Bern"}, [more, more], effect=Effect.ONCE, **FILLS)
    assert (done.result.status, tool.asked) == (RunStatus.FAILED, [])
    done, _ = await ran({"city": "Bern"}, [more, fine], effect=Effect.ONCE, **FILLS)
    assert done.result.output == {"city": "Bern", "days": 3}
    done, _ = await ran({"city": "Bern"}, [more])  # it changes nothing
    assert done.result.output == {"city": "Bern", "days": 3, "note": "x"}


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
        {"city": "{{ loop.item }}"},
        ['{"params": {"days": 1}}', '{"params": {"days": 2}}'],
        params_template={"days": "{{ known.days }}"},
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


async def test_a_retry_repeats_no_step_whose_model_was_shown_the_parameters_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tool = fake_tool("weather", look_up, effect=Effect.PURE, parameters=PARAMETERS)
    steps: JsonValue = [
        {"id": "ask", "tool": "weather", "params": {"city": "Bern"}},
        {"id": "check", "assert": "{{ ask.days == 4 }}"},
    ]
    catalog = Catalog(tools={"weather": tool.spec})
    recipe = recipe_from_document({"id": "r", "tools": ["weather"], "steps": steps}, catalog)
    model = ScriptedModel(lambda prompt: '{"params": {"days": 3}}')
    executor = AgentExecutor(model, extensions=Extensions(tools=Toolbox([tool])))
    ask = ToolCallStep._question
    with monkeypatch.context() as earlier:
        earlier.setattr(
            ToolCallStep,
            "_question",
            lambda self, view, missing: ask(self, view, missing, shows_parameters=True),
        )
        failed = await executor.execute(recipe)
    (prompt,) = model.prompts
    assert "Parameters: {" in (prompt.messages[-1].content or "")
    again = await executor.retry(failed.run_id)
    assert (again.status, len(model.prompts)) == (RunStatus.FAILED, 1)

"""Examples of a step stand as earlier turns before its question, in one order."""

from __future__ import annotations

import json
from pathlib import Path
from typing import cast

import pytest

from builders import run_of
from minions.adapters.models.chat_request import _message_dict
from minions.contracts.calls import Prompt
from minions.contracts.executions import RunStatus
from minions.contracts.messages import EXAMPLE, Message
from minions.data.errors import RecipeError
from minions.data.json_values import JsonValue
from minions.recipe.catalog import Catalog
from minions.recipe.kinds.goal_kind import GoalSpec
from minions.recipe.model import AgentRecipe
from minions.recipe.reading.load import recipe_from_document

SCHEMA: JsonValue = {"category": {"type": "string", "enum": ["bill", "other"]}, "urgent": "boolean"}
EXAMPLES: list[JsonValue] = [
    {"input": {"text": "Pay me!"}, "output": {"category": "bill", "urgent": True}},
    {"input": {"text": "Hello."}, "output": {"category": "other", "urgent": False}},
]


def recipe_with(examples: JsonValue, **step: JsonValue) -> AgentRecipe:
    return recipe_from_document(
        {
            "id": "recipe",
            "inputs": {"text": "string"},
            "steps": [
                {
                    "id": "sort",
                    "goal": "Sort this message: {{ inputs.text }}",
                    "output": SCHEMA,
                    "examples": examples,
                    **step,
                }
            ],
        },
        Catalog(),
    )


async def prompts_of(recipe: AgentRecipe, **inputs: JsonValue) -> list[Prompt]:
    seen: list[Prompt] = []

    def answer(prompt: Prompt) -> dict[str, JsonValue]:
        seen.append(prompt)
        return {"category": "other", "urgent": False}

    done = await run_of(recipe, answer, inputs=inputs)
    assert done.result.status is RunStatus.COMPLETED
    return seen


def turns(prompt: Prompt) -> list[tuple[str, str | None]]:
    return [
        (each.role.value, each.content) for each in prompt.messages if each.role.value != "system"
    ]


async def test_examples_stand_as_turns_before_the_question_and_look_like_it() -> None:
    """A-147."""
    (prompt,) = await prompts_of(recipe_with(EXAMPLES), text="Where is it?")
    assert turns(prompt) == [
        ("user", "Sort this message: Pay me!"),
        ("assistant", '{"category":"bill","urgent":true}'),
        ("user", "Sort this message: Hello."),
        ("assistant", '{"category":"other","urgent":false}'),
        ("goal", "Sort this message: Where is it?"),
    ]


async def test_the_start_of_the_prompt_is_the_same_from_call_to_call() -> None:
    """A-147: a server's prefix cache holds."""
    (first,) = await prompts_of(recipe_with(EXAMPLES), text="One")
    (second,) = await prompts_of(recipe_with(EXAMPLES), text="Two")
    assert first.messages[:-1] == second.messages[:-1]
    assert first.messages[-1] != second.messages[-1]


async def test_a_question_may_be_a_text_and_an_answer_too() -> None:
    recipe = recipe_from_document(
        {
            "id": "r",
            "steps": [
                {"id": "a", "goal": "Say b", "examples": [{"input": "Say a", "output": "a"}]}
            ],
        },
        Catalog(),
    )
    done = await run_of(recipe, lambda prompt: turns(prompt)[-2][1] or "")
    assert done.result.output == "a"


async def test_what_earlier_steps_give_is_named_by_their_ids() -> None:
    document: JsonValue = {
        "id": "r",
        "steps": [
            {"id": "page", "set": {"text": "today"}},
            {
                "id": "a",
                "goal": "Of {{ page.text }} and {{ steps.page.output.text }}: {{ loop.item }}",
                "loop": [7],
                "examples": [{"input": {"page": {"text": "then"}, "item": 3}, "output": "x"}],
            },
        ],
    }
    assert isinstance(document, dict)
    asked: list[Prompt] = []

    def answer(prompt: Prompt) -> str:
        asked.append(prompt)
        return "y"

    await run_of(recipe_from_document(document, Catalog()), answer)
    assert [text for role, text in turns(asked[0])] == [
        "Of then and then: 3",
        "x",
        "Of today and today: 7",
    ]


def test_no_server_gets_the_names_of_turns() -> None:
    for role in ("user", "assistant"):
        assert _message_dict(Message(role=role, content="x", name=EXAMPLE)) == {
            "role": role,
            "content": "x",
        }


@pytest.mark.parametrize(
    ("example", "words"),
    [
        ({"input": {"text": "x"}, "output": {"category": "bil", "urgent": True}}, "does not fit"),
        ({"input": {"text": "x"}, "output": {"category": "bill"}}, "'urgent' is a required"),
        ({"input": {"txt": "x"}, "output": {"category": "bill", "urgent": True}}, "reads no 'txt'"),
        ({"input": {}, "output": {"category": "bill", "urgent": True}}, "cannot be rendered"),
        ({"input": {"text": "x"}}, "needs the key 'output'"),
        ({"in": "x", "output": 1}, "unknown key 'in'"),
        ("text", "an example is a mapping"),
    ],
)
def test_an_example_that_does_not_fit_is_a_fault_before_the_run(
    example: JsonValue, words: str
) -> None:
    """A-147: `validate` names it."""
    with pytest.raises(RecipeError) as refused:
        recipe_with([example])
    assert words in str(refused.value), str(refused.value)


def test_a_conversation_takes_no_examples() -> None:
    with pytest.raises(RecipeError, match="a conversation has turns of its own"):
        recipe_with(EXAMPLES, memory="conversation")


def test_a_step_that_answers_with_text_has_examples_of_text() -> None:
    with pytest.raises(RecipeError, match="answers with a text"):
        recipe_from_document(
            {
                "id": "r",
                "steps": [{"id": "a", "goal": "b", "examples": [{"input": "c", "output": 1}]}],
            },
            Catalog(),
        )


# --- from a file ----------------------------------------------------------------------------------


def _write(folder: Path, *lines: str) -> None:
    (folder / "labels.jsonl").write_text("\n".join(lines) + "\n")


def _line(text: str) -> str:
    return json.dumps({"input": {"text": text}, "output": {"category": "bill", "urgent": True}})


def _from(folder: Path, **more: JsonValue) -> AgentRecipe:
    document = recipe_with([]).document or {}
    (step,) = cast("list[dict[str, JsonValue]]", document["steps"])
    changed = {**document, "steps": [{**step, "examples": {"from": "labels.jsonl", **more}}]}
    return recipe_from_document(changed, Catalog(), directory=str(folder))


def _questions(recipe: AgentRecipe) -> list[str]:
    (step,) = recipe.steps
    assert isinstance(step, GoalSpec)
    return [each.question.removeprefix("Sort this message: ") for each in step.examples]


def test_examples_of_a_file_are_the_first_that_fit(tmp_path: Path) -> None:
    """A-147: within their limits, in the order of the file."""
    _write(tmp_path, _line("a"), "", _line("b" * 2_000), *map(_line, "cdef"))
    assert _questions(_from(tmp_path)) == ["a", "c", "d", "e"]
    assert _questions(_from(tmp_path, max=1)) == ["a"]
    assert _questions(_from(tmp_path, max_tokens=20)) == ["a"]
    assert len(_questions(_from(tmp_path, max=9, max_tokens=9_000))) == 6


def test_examples_of_a_file_travel_with_the_recipe(tmp_path: Path) -> None:
    _write(tmp_path, _line("a"))
    document = _from(tmp_path).document
    (tmp_path / "labels.jsonl").unlink()
    assert document is not None
    assert _questions(recipe_from_document(document, Catalog())) == ["a"]


def test_a_fault_in_the_file_has_its_line(tmp_path: Path) -> None:
    wrong = json.dumps({"input": {"text": "x"}, "output": {"category": "bil", "urgent": True}})
    _write(tmp_path, _line("a"), "{", wrong)
    with pytest.raises(RecipeError) as refused:
        _from(tmp_path)
    assert [f"{each.file}:{each.line} {each.code}" for each in refused.value.faults] == [
        "labels.jsonl:2 bad-example",
        "labels.jsonl:3 bad-example",
    ]


def test_a_file_that_is_not_there_or_outside_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"there is no file 'labels.jsonl' beside"):
        _from(tmp_path)
    (tmp_path / "inner").mkdir()
    _write(tmp_path, _line("a"))
    with pytest.raises(RecipeError, match="outside of the project"):
        _from(tmp_path / "inner", **{"from": "../labels.jsonl"})


@pytest.mark.parametrize("is_link", [False, True])
def test_a_secret_is_no_file_of_examples(tmp_path: Path, is_link: bool) -> None:
    (tmp_path / ".env").write_text("TOKEN=sesame\n")
    if is_link:
        (tmp_path / "labels.jsonl").symlink_to(".env")
    with pytest.raises(RecipeError, match="taken for a secret") as refused:
        _from(tmp_path, **({} if is_link else {"from": ".env"}))
    assert "sesame" not in str(refused.value)


def test_a_template_of_steps_may_name_a_file(tmp_path: Path) -> None:
    _write(tmp_path, _line("a"))
    document: dict[str, JsonValue] = {
        "id": "r",
        "inputs": {"text": "string"},
        "templates": {"sorting": {"output": SCHEMA, "examples": {"from": "labels.jsonl"}}},
        "steps": [
            {"id": "s", "extends": "sorting", "goal": "Sort this message: {{ inputs.text }}"}
        ],
    }
    assert _questions(recipe_from_document(document, Catalog(), directory=str(tmp_path))) == ["a"]

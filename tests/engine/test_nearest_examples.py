"""Examples that are chosen for each question by its words (`choose: nearest`)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import deterministic_services, executor_of, run_of
from minions.adapters.models.scripted import ScriptedModel
from minions.contracts.calls import Prompt
from minions.contracts.executions import RunStatus
from minions.contracts.messages import NEAR_EXAMPLE
from minions.data.errors import RecipeError
from minions.data.json_values import JsonValue
from minions.engine.compile.nearest_examples import NearestExamples
from minions.recipe.catalog import Catalog
from minions.recipe.examples import CHARACTERS_PER_TOKEN, Example, listed_values
from minions.recipe.kinds.goal_kind import GoalSpec
from minions.recipe.model import AgentRecipe
from minions.recipe.reading.load import recipe_from_document
from minions.recipe.reading.tested_examples import without_cases

CATEGORIES = ("bill", "parcel", "login")
TEXTS = {
    "I was charged twice on my invoice": "bill",
    "The invoice shows a wrong sum": "bill",
    "My parcel has not arrived": "parcel",
    "The courier left the parcel with a neighbour": "parcel",
    "I forgot my password": "login",
}


def labelled(text: str, category: str) -> JsonValue:
    return {"input": {"text": text}, "output": {"category": category}}


ITEMS: list[JsonValue] = [labelled(*each) for each in TEXTS.items()]


def recipe_with(
    examples: JsonValue = None,
    *,
    folder: Path | None = None,
    tests: JsonValue = None,
    most: int = 4,
    **step: JsonValue,
) -> AgentRecipe:
    document: dict[str, JsonValue] = {
        "id": "recipe",
        "inputs": {"text": "string"},
        "steps": [
            {
                "id": "sort",
                "goal": "Sort this message of a customer: {{ inputs.text }}",
                "output": {"category": {"type": "string", "enum": list(CATEGORIES)}},
                "examples": examples or {"choose": "nearest", "items": ITEMS, "max": most},
                **step,
            }
        ],
        "tests": tests or [],
    }
    return recipe_from_document(document, Catalog(), directory=str(folder) if folder else None)


async def prompt_of(recipe: AgentRecipe, text: str) -> Prompt:
    seen: list[Prompt] = []

    def answer(prompt: Prompt) -> dict[str, JsonValue]:
        seen.append(prompt)
        return {"category": "bill"}

    done = await run_of(recipe, answer, inputs={"text": text})
    assert done.result.status is RunStatus.COMPLETED, done.result.error
    return seen[0]


async def shown(recipe: AgentRecipe, text: str) -> list[str]:
    """The texts of the examples that the model sees with that question, in order."""
    messages = (await prompt_of(recipe, text)).messages
    users = [each for each in messages if each.is_example and each.role.value == "user"]
    return [(each.content or "").rpartition(": ")[2] for each in users]


async def test_the_nearest_example_stands_last_right_before_the_question() -> None:
    assert await shown(recipe_with(most=2), "Is the sum of the invoice right?") == [
        "My parcel has not arrived",
        "The invoice shows a wrong sum",
    ]
    assert await shown(recipe_with(most=2), "A neighbour has the parcel?") == [
        "I was charged twice on my invoice",
        "The courier left the parcel with a neighbour",
    ]


async def test_each_value_that_the_output_lists_has_its_nearest_example_first() -> None:
    question = "The sum of the invoice is wrong"
    assert await shown(recipe_with(most=3), question) == [
        "I forgot my password",
        "My parcel has not arrived",
        "The invoice shows a wrong sum",
    ]
    (*_, second, nearest) = await shown(recipe_with(most=4), question)
    assert {second, nearest} == {each for each in TEXTS if "invoice" in each}


async def test_examples_stand_behind_all_that_other_questions_have_as_well() -> None:
    recipe = recipe_with(
        system_prompt="You sort.",
        context=[{"text": "The rules."}],
        messages=[{"user": "Think well."}],
    )
    first = await prompt_of(recipe, "My invoice")
    second = await prompt_of(recipe, "My parcel")
    equal = [one == other for one, other in zip(first.messages, second.messages, strict=True)]
    (at,) = [at for at, each in enumerate(first.messages) if (each.content or "") == "Think well."]
    assert all(equal[: at + 1])
    rest = first.messages[at + 1 :]
    assert [each.name for each in rest] == [NEAR_EXAMPLE] * 8 + [None]
    texts = [each.content or "" for each in first.messages[: at + 1]]
    assert any("category" in each for each in texts), "the form of the output"


async def test_the_question_of_an_analysis_is_compared_with_its_input() -> None:
    recipe = recipe_from_document(
        {
            "id": "r",
            "inputs": {"text": "string"},
            "steps": [
                {
                    "id": "a",
                    "analyze": "Which category?",
                    "input": {"said": "{{ inputs.text }}"},
                    "output": {"category": {"enum": list(CATEGORIES)}},
                    "examples": {"choose": "nearest", "items": ITEMS, "max": 1},
                }
            ],
        },
        Catalog(),
    )
    for text, wanted in (("parcel", "not arrived"), ("password", "forgot")):
        messages = (await prompt_of(recipe, f"the {text}")).messages
        (question, answer) = [each for each in messages if each.is_example]
        assert wanted in (question.content or "")
        assert answer.role.value == "assistant"
        assert messages[-1].role.value == "goal"


async def test_an_example_that_answers_the_question_itself_is_shown_in_an_ordinary_run() -> None:
    assert (await shown(recipe_with(most=1), "I forgot my password")) == ["I forgot my password"]


async def test_a_goal_without_values_has_no_more_than_its_bounds() -> None:
    items: list[JsonValue] = [{"input": each, "output": {"category": "bill"}} for each in TEXTS]
    recipe = recipe_with({"choose": "nearest", "items": items, "max": 1}, goal="Make one up")
    assert await shown(recipe, "x") == [next(iter(TEXTS))]


async def test_one_without_room_is_left_out_and_a_shorter_one_takes_its_place() -> None:
    long = labelled("invoice " * 300, "bill")
    recipe = recipe_with({"choose": "nearest", "items": [long, *ITEMS], "max": 1})
    assert await shown(recipe, "invoice") == ["I was charged twice on my invoice"]


async def test_a_retry_takes_the_recorded_prompt_and_asks_again_with_the_same_examples() -> None:
    services, seen = deterministic_services(), list[list[str]]()
    document = recipe_with(most=2).document
    assert document is not None
    (step,) = cast("list[dict[str, JsonValue]]", document["steps"])
    recipe = recipe_from_document({**document, "steps": [step, {**step, "id": "b"}]}, Catalog())
    fails = ScriptedModel([{"category": "bill"}, RuntimeError("lost")])
    failed = await executor_of(fails, services=services).execute(recipe, {"text": "my parcel"})
    assert failed.status is RunStatus.FAILED

    def answer(prompt: Prompt) -> dict[str, JsonValue]:
        seen.append([each.content or "" for each in prompt.messages if each.is_example])
        return {"category": "parcel"}

    executor = executor_of(ScriptedModel(answer), services=services)
    done = await executor.retry(failed.run_id)
    assert done.status is RunStatus.COMPLETED
    assert len(seen) == 1, "the step that was done is replayed"
    assert (await executor.retry(failed.run_id, from_step="sort")).status is RunStatus.COMPLETED
    assert seen[1:] == [seen[0]]


# --- where they come from -------------------------------------------------------------------------


def _write(folder: Path, *lines: JsonValue) -> None:
    (folder / "labels.jsonl").write_text(
        "".join(f"{json.dumps(each, ensure_ascii=False)}\n" for each in lines)
    )


async def test_all_examples_of_a_file_travel_with_the_recipe(tmp_path: Path) -> None:
    _write(tmp_path, *ITEMS)
    named = {"from": "labels.jsonl", "choose": "nearest", "max": 1, "max_tokens": 50}
    document = recipe_with(cast("JsonValue", named), folder=tmp_path).document
    (tmp_path / "labels.jsonl").unlink()
    assert document is not None
    again = recipe_from_document(document, Catalog())
    assert again.document == document
    assert await shown(again, "password") == ["I forgot my password"]
    assert await shown(again, "courier") == ["The courier left the parcel with a neighbour"]


async def test_a_thousand_examples_of_a_mebibyte_are_the_most(tmp_path: Path) -> None:
    nearest: JsonValue = {"from": "labels.jsonl", "choose": "nearest"}
    many = [labelled(f"number {at} {'x' * 960}", "bill") for at in range(1_000)]
    _write(tmp_path, *many)
    recipe = recipe_with(nearest, folder=tmp_path)
    services = deterministic_services()
    lost = ScriptedModel([RuntimeError("lost")])
    failed = await executor_of(lost, services=services).execute(recipe, {"text": "number 700"})
    executor = executor_of(ScriptedModel([{"category": "bill"}]), services=services)
    assert (await executor.retry(failed.run_id)).status is RunStatus.COMPLETED

    _write(tmp_path, *many, labelled("one more", "bill"))
    with pytest.raises(RecipeError, match="among 1,000 examples at the most") as refused:
        recipe_with(nearest, folder=tmp_path)
    assert [each.code for each in refused.value.faults] == ["no-examples"]
    _write(tmp_path, *many[:999], labelled("\u00e4" * 20_000, "bill"))
    with pytest.raises(RecipeError, match="among 1,048,576 bytes of examples at the most"):
        recipe_with(nearest, folder=tmp_path)


def test_no_more_than_a_thousand_are_taken_from_the_recipe_or_its_tests() -> None:
    items = [labelled(str(at), "bill") for at in range(1_001)]
    with pytest.raises(RecipeError, match="among 1,000 examples at the most"):
        recipe_with({"choose": "nearest", "items": items})
    tests: list[JsonValue] = [
        {"inputs": {"text": f"{at}"}, "expect": {"output": {"category": "bill"}}}
        for at in range(1_001)
    ]
    with pytest.raises(RecipeError, match="among 1,000 examples at the most"):
        recipe_with({"from": "tests", "choose": "nearest"}, tests=tests)


TESTS: list[JsonValue] = [
    {"inputs": {"text": text}, "expect": {"output": {"category": category}}}
    for text, category in TEXTS.items()
]


async def test_of_tests_and_lists_none_that_is_evaluated_is_chosen() -> None:
    for examples in ({"from": "tests", "choose": "nearest"}, None):
        recipe = recipe_with(cast("JsonValue", examples), tests=TESTS)
        assert (await shown(recipe, "I forgot my password"))[-1] == "I forgot my password"
        for text in TEXTS:
            held = without_cases(recipe, [{"text": text}])
            assert text not in await shown(held, text)
            assert held.document is not None
            again = recipe_from_document(held.document, Catalog())
            assert await shown(again, text) == await shown(held, text)
        assert await shown(without_cases(recipe, [{"text": each} for each in TEXTS]), "x") == []


async def test_a_question_that_inputs_do_not_say_is_not_answered_in_an_evaluation() -> None:
    recipe = recipe_from_document(
        {
            "id": "r",
            "inputs": {"text": "string"},
            "steps": [
                {"id": "page", "set": {"text": "{{ inputs.text | lower }}"}},
                {
                    "id": "sort",
                    "goal": "Sort: {{ page.text }}",
                    "output": {"category": "string"},
                    "examples": {
                        "choose": "nearest",
                        "max": 1,
                        "items": [
                            {"input": {"page": {"text": text}}, "output": {"category": "bill"}}
                            for text in ("pay me now", "pay me later")
                        ],
                    },
                },
            ],
        },
        Catalog(),
    )
    assert await shown(recipe, "Pay me NOW") == ["pay me now"]
    assert await shown(without_cases(recipe, [{"text": "Pay me NOW"}]), "Pay me NOW") == [
        "pay me later"
    ]


@pytest.mark.parametrize(
    ("examples", "words"),
    [
        ({"choose": "nearest"}, "needs the key 'from', or 'items'"),
        ({"from": "tests", "items": ITEMS, "choose": "nearest"}, "here are 'from' and 'items'"),
        ({"items": ITEMS}, "nothing to choose"),
        ({"items": ITEMS, "choose": "fixed"}, "nothing to choose"),
        ({"items": ITEMS, "choose": "near"}, "cannot be 'near'"),
        ({"items": [labelled("x", "bil")], "choose": "nearest"}, "'bil' is not one of"),
    ],
)
def test_what_cannot_be_chosen_from_is_one_fault(examples: JsonValue, words: str) -> None:
    with pytest.raises(RecipeError) as refused:
        recipe_with(examples)
    assert [words in str(each) for each in refused.value.faults] == [True], refused.value


# --- what holds for all ---------------------------------------------------------------------------


SOME_WORDS = ["pay", "parcel", "invoice", "log", "in", "lost", "\u00fcber", "12"]
WORDS = st.lists(
    st.sampled_from(["pay", "parcel", "invoice", "log", "in", "lost", "über", "12"]), max_size=8
)
LABELS = st.lists(st.tuples(WORDS.map(" ".join), st.sampled_from(CATEGORIES)), max_size=12)


def _choice(
    pairs: list[tuple[str, str]], most: int, max_tokens: int
) -> tuple[NearestExamples, GoalSpec]:
    items = [labelled(*each) for each in pairs]
    examples: JsonValue = {
        "choose": "nearest", "items": items, "max": most, "max_tokens": max_tokens
    }  # fmt: skip
    recipe = recipe_with(examples)
    (step,) = recipe.steps
    assert isinstance(step, GoalSpec)
    assert step.nearest is not None
    return NearestExamples(step, step.nearest, recipe.templates), step


@given(pairs=LABELS, question=WORDS.map(" ".join), most=st.integers(1, 6), room=st.integers(1, 80))
def test_no_choice_exceeds_its_bounds_and_all_values_are_covered_where_there_is_room(
    pairs: list[tuple[str, str]], question: str, most: int, room: int
) -> None:
    chooser, step = _choice(pairs, most, room)
    values: dict[str, JsonValue] = {"inputs": {"text": question}}
    chosen = chooser.choose(values)
    assert len(chosen) <= most
    assert sum(each.size for each in chosen) <= room * CHARACTERS_PER_TOKEN
    assert len({each.question for each in chosen}) == len(chosen)
    assert chosen == chooser.choose(values) == _choice(pairs, most, room)[0].choose(values)

    known = {each.question: each for each in step.examples}.values()  # the last one counts

    def labels(examples: tuple[Example, ...]) -> set[tuple[str, str]]:
        return {each for one in examples for each in listed_values(one.answer, step.output)}

    all_room = sum(each.size for each in known) <= room * CHARACTERS_PER_TOKEN
    if all_room:
        assert len(chosen) == min(most, len(known))
        assert len(labels(chosen)) == min(most, len(labels(tuple(known))))


def test_examples_may_fill_their_room_to_the_last_character() -> None:
    pairs = [("invoice", "bill"), ("invoice again", "bill")]
    _, step = _choice(pairs, 2, 400)
    missing = -sum(each.size for each in step.examples) % CHARACTERS_PER_TOKEN
    pairs[1] = ("invoice again" + "." * missing, "bill")
    _, step = _choice(pairs, 2, 400)
    room = sum(each.size for each in step.examples) // CHARACTERS_PER_TOKEN
    values: dict[str, JsonValue] = {"inputs": {"text": "invoice"}}
    assert len(_choice(pairs, 2, room)[0].choose(values)) == 2
    assert len(_choice(pairs, 2, room - 1)[0].choose(values)) == 1

"""`Minions.batch`: one run for each of many inputs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

import pytest

from minions import Minions, Prompt, ScriptedModel, UsageError
from minions.contracts.calls import ModelFailure
from minions.data.errors import UNREACHABLE
from minions.engine.batches.result import BatchResult
from minions.testing import Answer

RECIPE: Final = """
id: words
inputs: {text: string}
steps:
  - {id: look, goal: "{{ inputs.text }}"}
"""


def model(calls: list[str], failing: str = "") -> ScriptedModel:
    def answer(prompt: Prompt) -> Answer:
        text = (prompt.messages[-1].content or "").splitlines()[-1]
        calls.append(text)
        if text == failing:
            return ModelFailure(code=UNREACHABLE, message="nobody is there")
        return f"seen: {text}"

    return ScriptedModel(answer)


def items(*texts: str) -> list[dict[str, str]]:
    return [{"text": text} for text in texts]


async def test_results_come_in_the_order_of_the_items(tmp_path: Path) -> None:
    """A-116."""
    calls: list[str] = []
    async with Minions(model=model(calls), journal=tmp_path / "j.sqlite") as app:
        batch = app.batch(RECIPE, items("a", "b", "c"), concurrency=3)
        results = [line async for line in batch]
    assert [(line.index, line.status, line.output) for line in results] == [
        (0, "completed", "seen: a"),
        (1, "completed", "seen: b"),
        (2, "completed", "seen: c"),
    ]


async def test_a_batch_of_the_same_name_is_not_run_again(tmp_path: Path) -> None:
    """A-116."""
    calls: list[str] = []
    for _ in range(2):
        async with Minions(model=model(calls), journal=tmp_path / "j.sqlite") as app:
            results = [line async for line in app.batch(RECIPE, items("a", "b"), name="mine")]
        assert [line.output for line in results] == ["seen: a", "seen: b"]
    assert [line.is_recorded for line in results] == [True, True]
    assert sorted(calls) == ["a", "b"]


async def test_a_dead_server_is_asked_for_the_first_lines_only() -> None:
    calls: list[str] = []
    async with Minions(model=model(calls, failing="b")) as app:
        batch = app.batch(RECIPE, items("a", "b", "c", "d"), concurrency=1)
        results = [line async for line in batch]
    assert [line.status for line in results] == [
        "completed",
        "failed",
        "not_started",
        "not_started",
    ]
    assert batch.stopped_by is not None
    assert set(calls) == {"a", "b"}


async def test_a_model_without_room_in_memory_ends_the_batch_at_its_first_line() -> None:
    calls: list[str] = []

    def answer(prompt: Prompt) -> Answer:
        calls.append(prompt.messages[-1].content or "")
        return ModelFailure(code="resource-limit", message="It needs 9 MiB; 1 MiB are free.")

    async with Minions(model=ScriptedModel(answer)) as app:
        batch = app.batch(RECIPE, items("a", "b", "c"), concurrency=1)
        results = [line async for line in batch]
    assert [line.status for line in results] == ["failed", "not_started", "not_started"]
    assert batch.stopped_by is not None
    assert batch.stopped_by.code == "resource-limit"
    assert len(calls) == 1


async def test_a_bad_item_is_named_before_anything_begins() -> None:
    async with Minions(model=model([])) as app:
        with pytest.raises(UsageError, match="item 1: There is no input 'txet'"):
            app.batch(RECIPE, [{"text": "a"}, {"txet": "b"}])


async def test_leaving_the_loop_early_starts_no_further_item() -> None:
    calls: list[str] = []
    async with Minions(model=model(calls)) as app:
        batch = app.batch(RECIPE, items(*"abcdefgh"), concurrency=1)
        async for line in batch:
            assert isinstance(line, BatchResult)
            break
        await asyncio.sleep(0)
    assert len(calls) < 8


async def test_inputs_come_from_fields_of_other_names_and_some_stand_beside_the_result() -> None:
    calls: list[str] = []
    rows = [{"body": {"parts": ["a", "b"]}, "id": n, "more": "x"} for n in (1, 2)]
    async with Minions(model=model(calls)) as app:
        batch = app.batch(
            RECIPE, rows, map={"text": ".body.parts[1]"}, keep=["id"], ignore_extra=True
        )
        results = [line async for line in batch]
    assert [(line.output, dict(line.kept)) for line in results] == [
        ("seen: b", {"id": 1}),
        ("seen: b", {"id": 2}),
    ]


@pytest.mark.parametrize(
    ("map_", "keep", "says"),
    [
        ({"txet": ".body"}, [], "map txet=.body: the recipe has no input 'txet'. Did you mean"),
        ({"text": "body"}, [], "map has for 'text' a path such as .body"),
        ({"text": ".body"}, ["id", "id"], "keep takes names of fields, each once"),
        ({"text": ".body"}, [""], "keep takes names of fields, each once"),
        ({"text": ".bdy"}, [], "it has nothing at .bdy, which map names"),
        ({"text": ".body"}, ["name"], "it has no 'name', which keep names"),
        ({"text": ".body"}, [], "id"),
    ],
)
async def test_a_choice_of_fields_that_does_not_fit_is_refused_before_anything_begins(
    map_: dict[str, str], keep: list[str], says: str
) -> None:
    async with Minions(model=model([])) as app:
        with pytest.raises(UsageError) as refused:
            app.batch(RECIPE, [{"body": "a", "id": 1}], map=map_, keep=keep)
    assert says.lower() in str(refused.value).lower()
    assert "--" not in str(refused.value)

"""A-124: costly expressions let the timeout of their step, and of the run, come to its end."""

from __future__ import annotations

import asyncio

import pytest

from builders import executor_of, recipe_of
from minions.adapters.models.scripted import ScriptedModel
from minions.recipe.kinds.assertion_kind import AssertSpec
from minions.recipe.kinds.set_kind import SetSpec
from minions.recipe.model import LoopSpec, StepSpec

COSTLY = "many.items|map('string')|join|length"
"""Some hundred thousand operations."""


def making() -> SetSpec:
    return SetSpec(id="many", set={"items": list(range(10_000))})


@pytest.mark.parametrize(
    "steps",
    [
        [
            SetSpec(
                id="each",
                set={"x": f"{{{{ {COSTLY} }}}}"},
                loop=LoopSpec(over=[0] * 500),
                depends_on=("many",),
            )
        ],
        [
            AssertSpec(id=f"a{n}", conditions=(f"{COSTLY} > 0",), depends_on=("many",))
            for n in range(200)
        ],
        [
            SetSpec(id=f"s{n}", set={}, when=f"{COSTLY} < 0", depends_on=("many",))
            for n in range(200)
        ],
    ],
    ids=["loop", "assertions", "conditions"],
)
async def test_work_that_only_computes_can_be_cancelled_at_any_step(
    steps: list[StepSpec],
) -> None:
    """What a timeout does when its time comes, told by the turns of the event loop."""
    recipe = recipe_of([making(), *steps])
    running = asyncio.ensure_future(executor_of(ScriptedModel([])).execute(recipe))
    for _ in range(30):
        await asyncio.sleep(0)
    assert not running.done()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running

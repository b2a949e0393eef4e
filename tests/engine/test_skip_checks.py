"""What the checks of skips promise, against what runs do."""

from __future__ import annotations

import asyncio
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minions.adapters.models.scripted import ScriptedModel
from minions.contracts.executions import AgentResult, RunStatus
from minions.data.json_values import JsonValue
from minions.engine.run.agent_executor import AgentExecutor
from minions.recipe.catalog import Catalog
from minions.recipe.model import AgentRecipe
from minions.recipe.reading.load import check_recipe_text

HEAD = "inputs: {a: {type: boolean}, b: {type: boolean}}\n"
LEFT = "  - {id: left, when: inputs.a, set: {x: 1}}\n"
RIGHT = "  - {id: right, when: not inputs.a, set: {x: 2}}\n"


async def run(recipe: AgentRecipe, a: bool, b: bool) -> AgentResult[JsonValue]:
    return await AgentExecutor(ScriptedModel([])).execute(recipe, inputs={"a": a, "b": b})


@pytest.mark.parametrize(
    "reading",
    [
        "{{ left.x | default(right.x) }}",
        "{{ left.x if left is defined else right.x }}",
        "{{ left.x if steps.left.status == 'completed' else right.x }}",
    ],
)
@pytest.mark.parametrize("a", [True, False])
async def test_a_join_reads_the_branch_that_was_taken(reading: str, a: bool) -> None:
    text = f'{HEAD}steps:\n{LEFT}{RIGHT}  - {{id: join, set: {{x: "{reading}"}}}}\n'
    recipe = check_recipe_text(f'{text}output: "{{{{ join.x }}}}"\n', "r.yaml", Catalog()).unwrap()
    result = await run(recipe, a, b=True)
    assert (result.status, result.output) == (RunStatus.COMPLETED, 1 if a else 2)


conditions = st.sampled_from(
    ("", "inputs.a", "not inputs.a", "inputs.b", "inputs.a and inputs.b", "inputs.a or inputs.b")
)


@st.composite
def steps_of(draw: st.DrawFn) -> str:
    """Steps that read and stand in for one another, and wait for one.

    A join of several conditional steps is left out: that one of them always runs is its author's
    to know.
    """
    lines = []
    for at in range(draw(st.integers(2, 6))):
        before = st.lists(st.integers(0, at - 1), max_size=2, unique=True) if at else st.just([])
        when, reads, waits = draw(conditions), draw(before), draw(before)[:1]
        default = draw(st.sampled_from(("", " | default(0)")))
        values = ", ".join(f"v{other}: '{{{{ s{other}.n{default} }}}}'" for other in reads)
        depends = ", ".join(f"s{other}" for other in waits)
        condition = f"when: {when}, " if when else ""
        lines.append(
            f"  - {{id: s{at}, {condition}depends_on: [{depends}], set: {{n: 1, {values}}}}}"
        )
    return "\n".join(lines) + "\n"


@settings(max_examples=40, deadline=None)
@given(steps_of(), st.data())
def test_an_output_that_nobody_warned_of_is_there_in_every_run(
    steps: str, data: st.DataObject
) -> None:
    read = data.draw(st.integers(0, steps.count("id:") - 1))
    text = f"{HEAD}steps:\n{steps}output: '{{{{ s{read}.n }}}}'\n"
    loaded = check_recipe_text(text, "r.yaml", Catalog())
    assert {fault.code for fault in loaded.faults} <= {"may-be-skipped", "unreachable-step"}
    is_warned = any("the output reads" in fault.message for fault in loaded.faults)
    if loaded.recipe is not None and not is_warned:
        for a, b in itertools.product((True, False), repeat=2):
            result = asyncio.run(run(loaded.recipe, a, b))
            assert (result.status, result.output) == (RunStatus.COMPLETED, 1)

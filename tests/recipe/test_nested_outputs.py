"""What a recipe step gives is known from the recipe that it runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from minions.recipe.catalog import Catalog
from minions.recipe.reading.load import LoadedRecipe, check_recipe_text

INNER = """
id: inner
steps:
  - {id: s, goal: X, output: {verdict: {enum: [good, bad]}, count: integer}}
output: {v: "{{ s.verdict }}", count: "{{ s.count }}"}
"""


def checked(folder: Path, steps: str) -> LoadedRecipe:
    """A recipe with these steps, checked beside the recipe `inner`."""
    (folder / "inner.yaml").write_text(INNER)
    file = str(folder / "outer.yaml")
    return check_recipe_text(f"id: outer\nsteps: {steps}\n", file, Catalog())


VERDICT = {"enum": ["good", "bad"]}
COUNT = {"type": "integer"}


def test_the_output_of_a_recipe_step_is_that_of_its_recipe(tmp_path: Path) -> None:
    known = checked(tmp_path, "[{id: k, recipe: inner.yaml}]")
    assert known.output == {
        "type": "object",
        "properties": {"v": VERDICT, "count": COUNT},
        "required": ["v", "count"],
        "additionalProperties": False,
    }
    assert known.step_outputs == {"k": known.output}


def test_a_recipe_step_with_a_loop_gives_a_list(tmp_path: Path) -> None:
    one = checked(tmp_path, "[{id: k, recipe: inner.yaml}]").output
    loop = "loop: [1, 2], aggregate: true"
    steps = f"[{{id: k, recipe: inner.yaml, {loop}}}, {{id: z, set: {{f: '{{{{ k[0].v }}}}'}}}}]"
    known = checked(tmp_path, steps)
    assert known.step_outputs["k"] == {"type": "array", "items": one}
    assert known.output["properties"] == {"f": VERDICT}


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("k.verdict", "it has no 'verdict'"),
        ("k.v.words", "it is text, which has no members"),
        ("k.count | default(1)", None),
        ("k.other | default(1)", "it has no 'other'"),
    ],
)
def test_a_part_that_a_recipe_step_cannot_give_is_a_fault(
    tmp_path: Path, path: str, told: str | None
) -> None:
    steps = f"[{{id: k, recipe: inner.yaml}}, {{id: z, goal: 'Tell {{{{ {path} }}}}.'}}]"
    faults = [fault.message for fault in checked(tmp_path, steps).errors]
    assert (faults == []) if told is None else (len(faults) == 1 and told in str(faults)), faults

"""`templates` and `extends`."""

from __future__ import annotations

from minions.recipe.kinds.goal_kind import GoalSpec
from minions.recipe.kinds.set_kind import SetSpec
from minions.recipe.reading.load import check_recipe_text
from recipe.sample_catalog import CATALOG

TEXT = """
id: extending
templates:
  base: {optional: true, timeout_s: 5}
  asks: {extends: base, goal: "Say {{ loop.item }}", limits: {max_model_calls_per_step: 2}}
steps:
  - {id: a, extends: asks, loop: [1, 2]}
  - {id: b, extends: asks, goal: "Say no", optional: false, limits: {tool_timeout_s: 1}}
  - {id: c, extends: base, set: {x: 1}}
"""


def test_a_step_takes_from_its_template_what_it_does_not_say() -> None:
    a, b, c = check_recipe_text(TEXT, "r.yaml", CATALOG).unwrap().steps
    assert isinstance(a, GoalSpec)
    assert isinstance(b, GoalSpec)
    assert isinstance(c, SetSpec)
    assert (a.goal, a.optional, a.timeout_s) == ("Say {{ loop.item }}", True, 5)
    assert a.limits == {"max_model_calls_per_step": 2}
    assert (b.goal, b.optional, b.timeout_s) == ("Say no", False, 5)
    assert b.limits == {"tool_timeout_s": 1}
    assert (c.optional, c.timeout_s) == (True, 5)


def test_a_stored_recipe_is_read_again_with_its_templates() -> None:
    from minions.recipe.reading.load import recipe_from_document

    recipe = check_recipe_text(TEXT, "r.yaml", CATALOG).unwrap()
    assert recipe.document is not None
    assert recipe_from_document(recipe.document, CATALOG).steps == recipe.steps

"""What a recipe says of retries and of servers that are down."""

from __future__ import annotations

import pytest

from minions.contracts.retry_config import CircuitPolicy, RetryConfig
from minions.data.errors import RecipeError
from minions.recipe.catalog import Catalog
from minions.recipe.reading.load import load_recipe_text


def test_what_calls_do_while_a_server_is_down_is_said_by_recipe_and_step() -> None:
    """`circuit: wait | fail` (A-156)."""
    recipe = load_recipe_text(
        "id: r\nretry: {circuit: wait}\nsteps:\n"
        "  - {id: a, goal: Go.}\n  - {id: b, goal: Go., retry: {circuit: fail}}\n",
        "r.yaml",
        Catalog(),
    )
    assert recipe.retry == RetryConfig(circuit=CircuitPolicy.WAIT)
    a, b = recipe.steps
    assert (a.retry, b.retry) == (None, RetryConfig(circuit=CircuitPolicy.FAIL))


def test_another_word_for_it_is_refused() -> None:
    with pytest.raises(RecipeError) as caught:
        load_recipe_text(
            "id: r\nretry: {circuit: hang}\nsteps: [{id: a, goal: Go.}]\n", "r.yaml", Catalog()
        )
    assert "'circuit' cannot be 'hang'" in str(caught.value)

"""Which arguments of tool steps a model may make, as the check of a recipe tells it."""

from __future__ import annotations

import pytest

from builders import fake_tool
from minions.contracts.tools import Effect
from minions.data.json_values import JsonValue
from minions.recipe.catalog import Catalog
from minions.recipe.reading.load import check_recipe_text

PARAMETERS: dict[str, JsonValue] = {
    "type": "object",
    "properties": {"to": {"type": "string"}, "amount": {"type": "number"}},
    "required": ["to", "amount"],
    "additionalProperties": False,
}


def faults(step: str, effect: Effect = Effect.ONCE) -> list[tuple[str, bool, str]]:
    """Code, whether it is a warning, and the message of each."""
    tool = fake_tool("pay", effect=effect, parameters=PARAMETERS)
    text = f"id: r\npermissions: {{allow_write: true}}\nsteps:\n  - {{id: a, tool: pay, {step}}}\n"
    checked = check_recipe_text(text, "r.yaml", Catalog(tools={"pay": tool.spec}))
    found = checked.faults
    return [(each.code, each.is_warning, each.message) for each in found]


@pytest.mark.parametrize("effect", [Effect.ONCE, Effect.IDEMPOTENT, Effect.UNDECLARED])
def test_what_a_tool_with_an_effect_needs_is_written_or_listed(effect: Effect) -> None:
    """A-155."""
    ((code, is_warning, message),) = faults("params: {to: Ada}", effect)
    assert (code, is_warning) == ("missing-param", False)
    assert "'amount'" in message
    assert faults("params: {to: Ada}, fill: [amount]", effect) == []
    assert faults("params: {to: Ada, amount: 1}", effect) == []


def test_a_pure_tool_is_filled_in_with_a_warning() -> None:
    ((code, is_warning, message),) = faults("params: {to: Ada}", Effect.PURE)
    assert (code, is_warning) == ("missing-param", True)
    assert "a model call will fill that in" in message


def test_an_older_recipe_keeps_its_rule() -> None:
    """A-155."""
    ((code, is_warning, _),) = faults("params_template: {to: Ada}")
    assert (code, is_warning) == ("missing-param", True)


def test_fill_lists_parameters_of_the_tool_that_have_no_argument() -> None:
    ((code, _, message),) = faults("params: {to: Ada, amount: 1}, fill: [amuont]")
    assert (code, "'amuont'" in message) == ("unknown-key", True)
    ((code, _, message),) = faults("params: {to: Ada, amount: 1}, fill: [amount]")
    assert (code, "has an argument" in message) == ("bad-value", True)
    ((code, _, _),) = faults("params: {to: Ada, amount: 1}, fill: amount")
    assert code == "wrong-type"

"""Results of agents against an expected format, field by field."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import pytest

from minions.engine.agents.response_validator import ResponseValidator

GOOD: Mapping[str, Any] = {"next_action": "go", "plan": ["a"], "more": {"n": 1}, "rate": 1}


@pytest.mark.parametrize(
    ("expected", "errors"),
    [
        ({"next_action": str, "plan": list}, []),
        ({"plan": list[str], "more": {"n": int}, "rate": float}, []),
        ({"plan": list[int]}, ["plan[0]: int was expected, not string 'a'"]),
        ({"plan": str, "next_action": list}, ["plan: str", "next_action: list"]),
        ({"gone": str}, ["gone: it is missing; str was expected"]),
        (
            {"more": {"n": str, "m": int}},
            ["more.n: str was expected", "more.m: it is missing"],
        ),
        ({"plan": {"x": int}}, ["plan: a mapping was expected"]),
        ({"next_action": str | None, "rate": int | str}, []),
        ({"next_action": int | None}, ["next_action: int | None was expected"]),
        ({"next_action": Literal["go", "stop"]}, []),
        ({"next_action": Literal["stop"]}, ["next_action: one of 'stop' was expected, not 'go'"]),
        ({"more": dict[str, int]}, []),
        ({"more": dict[str, str]}, ["more.n: str"]),
        ({"more": Mapping}, []),
        ({"next_action": Any, "plan": object}, []),
    ],
)
async def test_each_wrong_field_is_named(expected: dict[str, object], errors: list[str]) -> None:
    """A-102."""
    found = await ResponseValidator().validate(GOOD, expected_format=expected)
    assert found.is_valid is (not errors)
    assert len(found.errors) == len(errors), found.errors
    assert all(text.startswith(start) for text, start in zip(found.errors, errors, strict=True))


@pytest.mark.parametrize("value", [True, "1"])
async def test_a_truth_value_or_a_text_is_no_number(value: object) -> None:
    """A-102."""
    assert not await ResponseValidator().validate({"n": value}, expected_format={"n": int})
    assert not await ResponseValidator().validate({"n": value}, expected_format={"n": float})


async def test_the_output_of_a_recipe_is_looked_at_too() -> None:
    """A-102."""
    result = {"content": '{"plan":["a"]}', "output": {"plan": ["a"]}, "run_id": "r"}
    assert await ResponseValidator().validate(result, {"plan": list, "run_id": str})


async def test_an_error_result_is_never_valid() -> None:
    """A-102."""
    found = await ResponseValidator().validate({"error": "no such agent"}, {})
    assert found.errors == ("error: the step failed: no such agent",)

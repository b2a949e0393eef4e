"""The tool that reads, checks and compiles a plan: A-92."""

from __future__ import annotations

import json
from typing import Final, cast

import pytest

from builders import result_of
from minions.app.wiring.built_in_extensions import built_in_toolsets
from minions.contracts.tools import ToolScope
from minions.data.json_values import JsonValue
from minions.planning.plan_tools import plans_toolset
from minions.recipe.catalog import Catalog

SCOPE: Final = ToolScope(run_id="r", step_id="s", call_id="c", idempotency_key="k")
LARGEST: Final = 1_048_576
"""Bytes of a tool's result that are taken."""


async def checked(steps: list[JsonValue], **arguments: JsonValue) -> dict[str, JsonValue]:
    catalog = Catalog(toolsets=built_in_toolsets())
    [check] = plans_toolset(lambda: catalog).open({}, "")
    answer: JsonValue = {"name": "P", "steps": steps}
    found = await result_of(check, {"answer": answer, "task": "T", **arguments}, SCOPE)
    assert isinstance(found, dict)
    return found


def step(step_id: str, **keys: JsonValue) -> JsonValue:
    return {"id": step_id, "type": "generate", "goal": "g", **keys}


ALL: Final[list[JsonValue]] = [f"f{number}.py" for number in range(100)]


@pytest.mark.parametrize(
    "steps",
    [
        pytest.param([step(f"s{number}") for number in range(10_000)], id="10,000 steps"),
        pytest.param([step("s", goal="x" * 5_000_000)], id="a long goal"),
        pytest.param([step("s", artifacts=["x" * 5_000_000])], id="a long name"),
    ],
)
async def test_a_plan_that_is_too_large_has_a_fault_that_can_be_recorded(
    steps: list[JsonValue],
) -> None:
    found = await checked(steps)
    assert found["ok"] is False
    assert len(json.dumps(found)) < LARGEST / 2


@pytest.mark.parametrize("text", ["1e0", "0o17", "1E5"])
async def test_a_text_that_yaml_takes_for_a_number_stays_a_text(text: str) -> None:
    found = await checked([step("s", goal=text, name=text, description=text, artifacts=[text])])
    assert found["faults"] == []
    assert text in str(found["recipe"])


async def test_the_largest_plan_can_be_recorded() -> None:
    found = await checked([step(f"s{at}", artifacts=ALL, files=ALL) for at in range(50)])
    assert len(json.dumps(found)) < LARGEST
    each_after_all = [
        step(
            f"s{at}",
            artifacts=[f"{at}/f{number}.py" for number in range(30)],
            dependencies=[f"s{before}" for before in range(at)],
        )
        for at in range(50)
    ]
    found = await checked(each_after_all)
    [fault] = cast("list[str]", found["faults"])
    assert "; at most 500000. Name fewer files and dependencies." in fault


async def test_a_plan_has_no_characters_that_hide_what_a_person_approves() -> None:
    turned = "rm \u202egnp.sh\u2069 \x1b[2Jx\x00 \ud800"
    test = {"id": "t", "type": "validate", "goal": turned, "command": turned}
    found = await checked([test, step("a", goal="a\tb\nc")])
    assert found["faults"] == []
    assert "COMMAND: rm gnp.sh [2Jx\n" in str(found["text"])
    assert "\u202e" not in str(found["recipe"])
    assert "GOAL: a\tb\n" in str(found["text"])


async def test_a_command_of_the_user_with_such_characters_makes_a_recipe() -> None:
    test = {"id": "t", "type": "validate", "goal": "g"}
    found = await checked([test], command="printf '\x1b[1m'")
    assert found["faults"] == []

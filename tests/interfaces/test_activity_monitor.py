"""The twelve-step monitor against a service in memory."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import cast

import pytest

import minions
from command_line import Cli
from minions import AgentResult, ScriptedModel
from minions.data.json_values import JsonValue

RECIPES = Path(__file__).parent.parent.parent / "recipes"


@pytest.fixture
def service_module() -> ModuleType:
    """The file that stands in for the service."""
    spec = importlib.util.spec_from_file_location(
        "activity_service", RECIPES / "activity_service.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(
    module: ModuleType, activities: tuple[object, ...]
) -> tuple[object, AgentResult[JsonValue]]:
    service = module.Service(activities=activities)
    model = ScriptedModel(module.judge)
    result = minions.run(RECIPES / "activity_monitor.yaml", model=model, tools=service.tools())
    return service, result


def test_two_activities_get_two_updates_each_and_all_givers_are_kept_once(
    service_module: ModuleType,
) -> None:
    """A-67."""
    service, result = run(service_module, service_module.SAMPLE)
    assert result.unwrap() == {
        "activities": 5,
        "made_public": [1, 4],
        "kudos_givers": ["Ada", "Bo", "Cy", "Dee"],
        "why": "2 of 5 qualify",
    }
    updates = cast("list[dict[str, JsonValue]]", service.updates)  # type: ignore[attr-defined]  # of the recipe's own file
    assert updates == [
        {"id": 1, "visibility": "everyone", "hide_heart_rate": None},
        {"id": 4, "visibility": "everyone", "hide_heart_rate": None},
        {"id": 1, "visibility": None, "hide_heart_rate": True},
        {"id": 4, "visibility": None, "hide_heart_rate": True},
    ]
    assert service.asked_for_kudos == [1, 2, 3, 4, 5]  # type: ignore[attr-defined]  # likewise
    assert len(result.executions) == 12
    saved = [result.step(name).output for name in ("save_givers", "save_last_run")]
    assert [cast("dict[str, JsonValue]", each)["success"] for each in saved] == [True, True]
    assert sum(len(each.model_calls) for each in result.executions) == 1


def test_without_activities_nothing_is_written(service_module: ModuleType) -> None:
    """A-68."""
    service, result = run(service_module, ())
    assert result.status.value == "completed"
    assert service.updates == []  # type: ignore[attr-defined]  # of the recipe's own file
    assert result.step("save_givers").status.value == "skipped"
    assert result.step("save_last_run").status.value == "skipped"


def test_a_dry_run_tells_all_twelve_steps(cli: Cli, here: Path) -> None:
    """A-66."""
    done = cli(
        *("run", str(RECIPES / "activity_monitor.yaml"), "--dry-run", "--db", "j.db", "--json"),
        *("--extensions", str(RECIPES / "activity_service.py")),
        *("-m", "scripted/activity_monitor"),
    )
    assert done.code == 0, done.err
    planned = cast("list[dict[str, JsonValue]]", done.json["planned"])
    assert len(planned) == 12
    assert [each["step_id"] for each in planned][:4] == [
        "current_time",
        "get_24h_ago",
        "load_givers",
        "fetch_activities",
    ]
    assert planned[5]["loop"] == "each item of <analysis.activities_to_update>"
    assert [each["step_id"] for each in planned if each["writes"]] == [
        "make_public",
        "hide_heart_rate",
        "save_givers",
        "save_last_run",
    ]
    assert not (here / "j.db").exists()


def test_who_gave_kudos_is_remembered_from_run_to_run(cli: Cli) -> None:
    words = (
        *("run", str(RECIPES / "activity_monitor.yaml"), "--db", "j.db"),
        *("--extensions", str(RECIPES / "activity_service.py")),
        *("-m", "scripted/activity_monitor", "--json"),
    )
    assert cli(*words).code == 0
    again = json.loads(cli(*words).out)
    steps = {each["id"]: each for each in again["steps"]}
    assert steps["load_givers"]["output"]["found"] is True
    assert steps["load_givers"]["output"]["value"] == ["Ada", "Bo", "Cy", "Dee"]

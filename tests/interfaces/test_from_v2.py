"""Files of the older step format run as they are: each of its documented examples, with fakes."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, cast

import pytest
from attrs import Factory, define

import minions
from command_line import Cli, Write
from designs.design_document import design_blocks
from minions import AgentResult, Prompt, ScriptedModel, Tool, tool
from minions.adapters.models.script_items import Answer
from minions.data.json_values import JsonValue
from minions.recipe.catalog import Catalog
from minions.recipe.reading.load import load_recipe

BLOCKS: Final = design_blocks("step_by_step_execution")
STEP_FORM: Final = BLOCKS["2 2. Instruction Parser V2 (`agent/instruction_parser_v2.py`)"].text
TEMPLATE_SYNTAX: Final = BLOCKS["1 1. Template Engine (`agent/template_engine.py`)"].text
GET_TIME, FETCH, UPDATE, ANALYZE = (
    BLOCKS[f"{number} Writing V2 Instructions"].text for number in range(6, 10)
)
DAY_AGO: Final = """\
- id: "get_24h_ago"
  tool: "getDateTimeHoursAgo"
  params: {hours: 24}
  save_as: "time_24h_ago"
"""
ACTIVITIES: Final[JsonValue] = [{"id": 7, "type": "Run"}, {"id": 9, "type": "Walk"}]


@define
class Service:
    """What was asked of it, in order."""

    calls: list[tuple[str, Mapping[str, object]]] = Factory(list)
    fails: bool = False

    def tools(self) -> Sequence[Tool]:
        @tool(name="getMyActivities", effect="pure")
        def get_my_activities(after_unix: int) -> dict[str, JsonValue]:
            """Activities since then."""
            self.calls.append(("getMyActivities", {"after_unix": after_unix}))
            return {"list": ACTIVITIES}

        @tool(name="updateActivity", effect="idempotent")
        def update_activity(activity_id: int, visibility: str) -> dict[str, JsonValue]:
            """Change one."""
            given = {"activity_id": activity_id, "visibility": visibility}
            self.calls.append(("updateActivity", given))
            return {"success": not self.fails, "message": "The service is closed."}

        @tool(name="toolName", effect="pure")
        def tool_name(param: str) -> str:
            """Say it back."""
            self.calls.append(("toolName", {"param": param}))
            return param.upper()

        @tool(name="previous", effect="pure")
        def previous() -> dict[str, JsonValue]:
            """A result."""
            return {"result": "abc"}

        @tool(name="numbers", effect="pure")
        def numbers() -> list[JsonValue]:
            """A list."""
            return [1, 2]

        @tool(name="since", effect="pure")
        def since(after_unix: int, activity_id: int) -> list[JsonValue]:
            """Both, back."""
            return [after_unix, activity_id]

        return get_my_activities, update_activity, tool_name, previous, numbers, since


def run(
    folder: Path, text: str, service: Service, answers: Sequence[Answer] = ()
) -> AgentResult[JsonValue]:
    path = folder / "strava_monitor_v2.yaml"
    path.write_text(text, "utf-8")
    return minions.run(path, model=ScriptedModel(answers), tools=service.tools())


def file_of(*steps: str, head: str = "permissions: {allow_write: true}\n") -> str:
    return f"{head}steps:\n{textwrap.indent(''.join(steps), '  ')}"


def test_the_basic_step_gives_the_time(tmp_path: Path) -> None:
    result = run(tmp_path, file_of(GET_TIME), Service())
    shown = cast("Mapping[str, Mapping[str, JsonValue]]", result.unwrap())
    assert set(shown["datetime"]) == {"unix_timestamp", "iso", "timezone", "weekday"}
    assert result.recipe_id == "strava_monitor_v2"  # no name: that of the file


def test_a_dependency_is_named_by_what_it_is_saved_as(tmp_path: Path) -> None:
    service = Service()
    result = run(tmp_path, file_of(GET_TIME, DAY_AGO, FETCH), service)
    assert result.unwrap() == {"list": ACTIVITIES}
    day_ago = cast("Mapping[str, Mapping[str, int]]", result.step("get_24h_ago").output)
    after = day_ago["datetime"]["unix_timestamp"]
    assert service.calls == [("getMyActivities", {"after_unix": after})]


def test_a_loop_updates_each_activity(tmp_path: Path) -> None:
    service = Service()
    result = run(tmp_path, file_of(DAY_AGO, FETCH, UPDATE), service)
    done = {"success": True, "message": "The service is closed."}
    assert result.unwrap() == {
        "results": [done, done],
        "errors": [],
        "total": 2,
        "successful": 2,
        "failed": 0,
    }
    assert service.calls[1:] == [
        ("updateActivity", {"activity_id": 7, "visibility": "everyone"}),
        ("updateActivity", {"activity_id": 9, "visibility": "everyone"}),
    ]


def test_an_analysis_sees_its_rules_and_its_input(tmp_path: Path) -> None:
    prompts: list[Prompt] = []

    def model(prompt: Prompt) -> Answer:
        prompts.append(prompt)
        return {"activities_to_update": [7], "reasoning": "The other one is a walk."}

    path = tmp_path / "old.yaml"
    path.write_text(file_of(DAY_AGO, FETCH, ANALYZE), "utf-8")
    result = minions.run(path, model=ScriptedModel(model), tools=Service().tools())
    assert result.unwrap() == {
        "activities_to_update": [7],
        "reasoning": "The other one is a walk.",
    }
    [prompt] = prompts
    text = "\n".join(message.content or "" for message in prompt.messages)
    assert "2. Keep private if walk or < 10km ride" in text
    assert "Determine which activities need updates" in text
    assert '[{"id":7,"type":"Run"},{"id":9,"type":"Walk"}]' in text
    assert "unix_timestamp" not in text


def test_every_example_in_one_file_runs_from_end_to_end(tmp_path: Path) -> None:
    service = Service()
    head = "name: strava_monitor_v2\nexecution_mode: planned\npermissions: {allow_write: true}\n"
    chosen: Answer = {"activities_to_update": [7], "reasoning": "Public."}
    steps = (UPDATE, ANALYZE, FETCH, DAY_AGO, GET_TIME)
    result = run(tmp_path, file_of(*steps, head=head), service, [chosen])
    assert result.status.value == "completed"
    assert [name for name, _ in service.calls] == [
        "getMyActivities",
        "updateActivity",
        "updateActivity",
    ]


def test_the_form_of_a_step_is_a_step(tmp_path: Path) -> None:
    service = Service()
    before = (
        "steps:\n"
        "  - {id: previous_step, tool: previous}\n"
        "  - {id: array, tool: numbers, save_as: array_var}\n"
    )
    result = run(tmp_path, STEP_FORM.replace("steps:\n", before), service)
    assert result.unwrap() == {
        "results": ["ABC", "ABC"],
        "errors": [],
        "total": 2,
        "successful": 2,
        "failed": 0,
    }
    assert service.calls == [("toolName", {"param": "abc"})] * 2


def test_whole_templates_keep_their_type(tmp_path: Path) -> None:
    head = '- id: "each"\n  tool: "since"\n  loop: "{{activities.list}}"\n  aggregate: true\n'
    step = head + textwrap.indent(TEMPLATE_SYNTAX, "  ")
    result = run(tmp_path, file_of(DAY_AGO, FETCH, step), Service())
    day_ago = cast("Mapping[str, Mapping[str, int]]", result.step("get_24h_ago").output)
    after = day_ago["datetime"]["unix_timestamp"]
    assert result.unwrap() == [[after, 7], [after, 9]]


def test_a_tool_that_says_success_false_fails_the_step(tmp_path: Path) -> None:
    """A-70."""
    step = UPDATE.replace('  loop: "{{activities.list}}"\n', "")
    step = step.replace('"{{loop.item.id}}"', "7")
    result = run(tmp_path, file_of(DAY_AGO, FETCH, step), Service(fails=True))
    assert result.status.value == "failed"
    failed = result.step("update_activities")
    assert failed.status.value == "failed"
    assert "The service is closed." in str(failed.reason)


OLDER: Final = (
    'name: "Day Watch"  # for people\nschedule: {cron: 0 8 * * *}\nenabled: false\n'
    "steps: [{id: a, set: {n: 1}}]\noutput: '{{ a.n }}'\n"
)


def test_a_display_name_and_a_schedule_are_kept(cli: Cli, write: Write) -> None:
    """The older format's `name` is any text: the id is made of it. A runner reads the schedule."""
    write("recipes/morning.yaml", OLDER)
    recipe = load_recipe("recipes/morning.yaml", Catalog())
    assert (recipe.id, recipe.name) == ("day-watch", "Day Watch")
    assert (recipe.schedule, recipe.enabled) == ({"cron": "0 8 * * *"}, False)
    assert cli("validate", "recipes/morning.yaml").out == "recipes/morning.yaml: ok\n"
    assert cli("run", "day-watch", "--db", "j.db").out == "1\n"
    assert cli("explain", "day-watch").out.startswith("day-watch (Day Watch)\n")
    done = cli("migrate", "recipes/morning.yaml")
    assert (done.code, "is a recipe already, and it is valid" in done.err) == (0, True)


def test_a_new_schedule_or_name_changes_no_recorded_run(cli: Cli, write: Write) -> None:
    write("r.yaml", OLDER.replace("set: {n: 1}", "ask: Fine?").replace("a.n", "a"))
    assert cli("run", "r.yaml", "--db", "j.db").code == 3
    write("r.yaml", OLDER.replace("Day Watch", "day watch").replace("0 8", "0 9"))
    assert cli("answer", "run_", "yes", "--db", "j.db").out == "yes\n"


def test_without_the_right_nothing_is_written(tmp_path: Path) -> None:
    service = Service()
    result = run(tmp_path, file_of(DAY_AGO, FETCH, UPDATE, head=""), service)
    assert result.status.value == "failed"
    assert [name for name, _ in service.calls] == ["getMyActivities"]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('["time_24h_ago"]', '["time_48h_ago"]', "time_48h_ago"),
        ("permissions", "execution_mode: clever\npermissions", "clever"),
    ],
    ids=["dependency", "mode"],
)
def test_what_was_passed_over_in_silence_is_a_fault(
    tmp_path: Path, old: str, new: str, words: str
) -> None:
    text = file_of(DAY_AGO, FETCH).replace(old, new, 1)
    with pytest.raises(minions.RecipeError) as caught:
        run(tmp_path, text, Service())
    assert words in str(caught.value)

"""`minions sessions list`: what it shows of runs, and which runs it selects."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final, cast

import pytest

from command_line import Cli, Write
from minions import Minions, ScriptedModel
from minions.data.json_values import JsonValue
from minions.engine.views.lookup import list_runs
from minions.interfaces.cli.commands.session_lists import run_lines

RECIPE: Final = """
id: %s
inputs: {question: {type: string, default: Who?}, times: {type: integer, default: 1}}
steps:
  - {id: fine, assert: [inputs.times < 3]}
"""
COLUMNS: Final = "minions.interfaces.cli.commands.session_lists.list_width"


@pytest.fixture
def three(cli: Cli, write: Write) -> list[str]:
    """The ids of three runs: two of `news`, of which one failed, and one of `notes`."""
    write("news.yaml", RECIPE % "news")
    write("notes.yaml", RECIPE % "notes")
    return [
        str(cli("run", *words, "--db", "j.sqlite", "--json").json["run_id"])
        for words in (
            ("news.yaml", "-p", "question=Where is\nthe station?"),
            ("news.yaml", "-p", "times=5"),
            ("notes.yaml",),
        )
    ]


def test_the_head_line_names_the_columns_and_each_run_is_a_line(cli: Cli, three: list[str]) -> None:
    lines = cli("sessions", "list", "--db", "j.sqlite").out.splitlines()
    assert lines[0].split() == [
        "RUN", "SESSION", "STARTED", "STATUS", "TIME", "TOKENS", "COST", "RECIPE", "INPUTS",
    ]  # fmt: skip
    assert [line.split()[0] for line in lines[1:]] == three[::-1]
    oldest = lines[3].split()
    assert oldest[1].startswith("ses_")
    assert oldest[4] == "completed"
    assert "question: Where is the station? · times: 1" in lines[3]


def test_tokens_cost_and_duration_are_shown(cli: Cli, write: Write) -> None:
    write("talk.yaml", "id: talk\nsteps:\n  - {id: say, goal: Say something.}\n")
    write("s.yaml", '{"answers": ["A word."]}')
    write("minions.toml", '[prices."scripted/s.yaml"]\ninput_per_mtok = 1\noutput_per_mtok = 1\n')
    cli("run", "talk.yaml", "-m", "scripted/s.yaml", "--db", "j.sqlite")
    head, line = cli("sessions", "list", "--db", "j.sqlite").out.splitlines()
    *_, duration, tokens, cost, recipe = re.split(r"  +", line)
    assert head.split()[5:8] == ["TOKENS", "COST", "RECIPE"]
    assert (tokens.isdecimal(), cost[:6], recipe) == (True, "$0.000", "talk")
    assert duration.endswith("s")


def test_runs_are_selected_by_status_recipe_text_and_time(cli: Cli, three: list[str]) -> None:
    def found(*words: str) -> list[str]:
        lines = cli("sessions", "list", "--db", "j.sqlite", *words).out.splitlines()
        return [line.split()[0] for line in lines[1:]]

    assert found("--status", "failed") == [three[1]]
    assert found("--status", "failed", "--status", "completed") == three[::-1]
    assert found("--recipe", "news") == [three[1], three[0]]
    assert found("--search", "STATION") == [three[0]]
    assert found("--search", "news failed") == [three[1]]
    assert found("--since", "1h") == three[::-1]
    assert found("--since", "2020-01-01") == three[::-1]
    assert found("--since", "2999-01-01T12:00") == []
    assert found("--recipe", "news", "--limit", "1") == [three[1]]


def test_older_runs_are_told(cli: Cli, three: list[str]) -> None:
    assert len(three) == 3
    assert (
        "there are older runs: --limit 4"
        in cli("sessions", "list", "--db", "j.sqlite", "--limit", "2").err
    )
    assert cli("sessions", "list", "--db", "j.sqlite", "--limit", "3").err == ""


def test_where_no_run_fits_that_is_told(cli: Cli, three: list[str]) -> None:
    assert three
    done = cli("sessions", "list", "--db", "j.sqlite", "--recipe", "nwes")
    assert (done.code, done.out) == (0, "")
    assert "No run fits." in done.err


def test_an_unknown_status_or_time_is_refused(cli: Cli) -> None:
    done = cli("sessions", "list", "--status", "done")
    assert done.code == 2
    assert "needs_decision" in done.err
    done = cli("sessions", "list", "--since", "yesterday")
    assert done.code == 2
    assert "--since yesterday: write how long ago (90m, 2h, 7d) or a time" in done.err


def test_json_has_every_field(cli: Cli, three: list[str]) -> None:
    done = cli("sessions", "list", "--db", "j.sqlite", "--json", "--recipe", "news")
    runs = cast("list[Mapping[str, JsonValue]]", json.loads(done.out))
    assert [run["run_id"] for run in runs] == [three[1], three[0]]
    assert runs[1]["input_words"] == "question: Where is the station? · times: 1"
    assert {"session_id", "recipe", "status", "started_at", "finished_at", "usage"} <= set(runs[1])


def test_a_terminal_of_40_columns_is_not_exceeded(
    cli: Cli, three: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(COLUMNS, lambda: 40)
    lines = cli("sessions", "list", "--db", "j.sqlite").out.splitlines()
    assert max(map(len, lines)) <= 40
    assert [line.split()[0] for line in lines if line.startswith("run_")] == three[::-1]
    assert any("question: Where" in line for line in lines)


def test_a_terminal_of_100_columns_has_one_line_for_each_run(
    cli: Cli, three: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(COLUMNS, lambda: 100)
    lines = cli("sessions", "list", "--db", "j.sqlite").out.splitlines()
    assert len(lines) == 1 + len(three)
    assert max(map(len, lines)) <= 100
    assert "SESSION" not in lines[0]


async def test_no_escape_sequence_of_a_name_or_an_input_is_printed(tmp_path: Path) -> None:
    async with Minions(model=ScriptedModel(["a"]), journal=tmp_path / "j.sqlite") as app:
        recipe = app.load("id: x\ninputs: {q: string}\nsteps:\n  - {id: a, set: {n: 1}}\n")
        await app.arun(recipe, {"q": "\x1b[2Jgone"})
        (run,) = await app.services.journal.runs()
    async with Minions(journal=tmp_path / "j.sqlite") as app:
        runs = await list_runs(app.services.journal)
    text = "\n".join(run_lines(runs, None))
    assert "\x1b" not in text
    assert "\\x1b[2Jgone" in text
    assert run.run_id in text


def test_a_run_that_was_retried_with_other_inputs_is_listed_with_those(
    cli: Cli, three: list[str]
) -> None:
    flags = ("--db", "j.sqlite")
    assert cli("retry", three[1], "-p", "times=2", "-p", "question=When?", *flags).code == 0
    listed = cli("sessions", "list", "--search", "When?", *flags).out
    assert "question: When? · times: 2" in listed
    assert three[1] in listed


@pytest.mark.parametrize("ago", ["99999999999999d", "9" * 400 + "d"], ids=["long", "endless"])
def test_a_time_before_all_calendars_selects_every_run(
    cli: Cli, three: list[str], ago: str
) -> None:
    done = cli("sessions", "list", "--since", ago, "--db", "j.sqlite", "--json")
    assert done.code == 0, done.err
    assert len(json.loads(done.out)) == len(three)

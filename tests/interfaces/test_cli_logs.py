"""`--log-format`: the log of a command on standard error."""

from __future__ import annotations

import json

import pytest

from command_line import Cli, Write

RECIPE = "id: bind\nsteps: [{id: one, set: {x: 1}}]\n"


def test_the_log_is_one_json_object_per_line_on_standard_error(cli: Cli, write: Write) -> None:
    write("bind.yaml", RECIPE)
    done = cli("run", "bind.yaml", "--log-format", "json", "--json")
    assert done.code == 0
    lines = [json.loads(line) for line in done.err.splitlines() if line.startswith("{")]
    assert [(each["event"], each["level"]) for each in lines] == [
        ("run_started", "info"),
        ("step_finished", "info"),
        ("run_finished", "info"),
    ]
    assert {each["run_id"] for each in lines} == {done.json["run_id"]}
    assert lines[1]["step_id"] == "one"


def test_the_log_is_text_with_debug_or_where_text_is_asked_for(cli: Cli, write: Write) -> None:
    write("bind.yaml", RECIPE)
    for flags in (["--debug"], ["--log-format", "text"]):
        assert "level=info event=run_started run_id=" in cli("run", "bind.yaml", *flags).err
    assert "event=" not in cli("run", "bind.yaml").err


def test_the_format_can_be_set_in_a_file_and_in_the_environment(
    cli: Cli, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("bind.yaml", RECIPE)
    write("minions.toml", 'log_format = "json"\n')
    assert '"event": "run_started"' in cli("run", "bind.yaml").err
    monkeypatch.setenv("MINIONS_LOG_FORMAT", "text")
    assert "event=run_started" in cli("run", "bind.yaml").err


def test_another_format_is_refused(cli: Cli, write: Write) -> None:
    write("bind.yaml", RECIPE)
    done = cli("run", "bind.yaml", "--log-format", "xml")
    assert done.code == 2
    assert "xml" in done.err

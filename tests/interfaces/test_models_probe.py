"""`minions models probe`: what it prints, keeps and refuses. A-133."""

from __future__ import annotations

from typing import cast

import pytest

from chat_servers import served_models
from command_line import Cli, Write
from minions.contracts.model_profiles import Support
from minions.testing.endpoint import Behaviour, error_body, status
from minions.testing.server_behaviours import ServerHabits, model_server


def configured(write: Write, base_url: str) -> None:
    write("minions.toml", f'[providers.lab]\nbase_url = "{base_url}"\n')


def test_the_table_says_what_the_server_does_and_what_the_probe_took(
    cli: Cli, write: Write
) -> None:
    """A-133."""
    with served_models(model_server(ServerHabits(schema=Support.IGNORES))) as server:
        configured(write, server.base_url)
        done = cli("models", "probe", "lab/m")
    assert done.code == 0
    assert "at most 14 requests" in done.err
    lines = [line.strip() for line in done.out.splitlines()]
    assert lines[0].startswith("lab/m at http://127.0.0.1:")
    assert "answer by schema        ignores" in lines
    assert "forced call           binds" in lines
    assert lines[-1] == "7 requests, 98 tokens."


def test_a_profile_is_measured_once_and_again_with_fresh(cli: Cli, write: Write) -> None:
    """A-133."""
    with served_models(model_server()) as server:
        configured(write, server.base_url)
        first = cli("models", "probe", "lab/m", "--json").json
        asked = len(server.requests)
        second = cli("models", "probe", "lab/m", "--json").json
        assert len(server.requests) == asked
        third = cli("models", "probe", "lab/m", "--json", "--fresh").json
    assert [each["cached"] for each in (first, second, third)] == [False, True, False]
    assert first["profile"] == second["profile"]
    assert cast("int", third["requests"]) > 0


RECIPE = """
id: book
model: lab/m
steps:
  - id: s
    goal: Describe a book.
    output: {type: object, required: [n], properties: {n: {type: integer}}}
"""


def test_it_shows_how_answers_of_recorded_runs_were_valid(cli: Cli, write: Write) -> None:
    """A-133: and a run uses what the probe found out."""
    write("book.yaml", RECIPE)
    habits = ServerHabits(schema=Support.REFUSES, json_object=Support.REFUSES)
    with served_models(model_server(habits)) as server:
        configured(write, server.base_url)
        assert cli("models", "probe", "lab/m").code == 0
        probed = len(server.requests)
        assert cli("run", "book.yaml").code == 0
        (asked,) = server.requests[probed:]
        again = cli("models", "probe", "lab/m", "--json").json
        shown = cli("models", "probe", "lab/m").out
    assert asked.body["tool_choice"] == "required"
    assert again["runs"] == [{"rung": "tools", "calls": 1, "valid": 1}]
    assert "tools 1 of 1 valid (14 tokens)" in shown


def test_what_a_run_learned_is_there_for_the_next_process(cli: Cli, write: Write) -> None:
    """A-133: without any probe; a run that stores nothing knows nothing."""
    write("book.yaml", RECIPE)
    habits = ServerHabits(schema=Support.REFUSES, json_object=Support.REFUSES)
    with served_models(model_server(habits)) as server:
        configured(write, server.base_url)
        counts: list[int] = []
        told: list[str] = []
        for flags in ((), (), (), (), ("--no-store",)):
            before = len(server.requests)
            done = cli("run", "book.yaml", *flags)
            assert done.code == 0
            told.append(done.err)
            counts.append(len(server.requests) - before)
        probed = cli("doctor").out
    assert counts == [3, 3, 3, 1, 3]
    line = "'json_schema' was refused in 3 of 3 answers: it is not asked for in this project until"
    assert [line in " ".join(each.split()) for each in told] == [False, False, True, False, False]
    assert line in " ".join(probed.split())


@pytest.mark.parametrize(
    ("behaviour", "code"),
    [
        (status(401, error_body("no such key")), "auth-rejected"),
        (status(404, error_body("no such model")), "model-not-found"),
        (status(400, error_body("model 'm' not found")), "model-not-found"),
    ],
)
def test_a_server_that_refuses_is_one_clear_error(
    cli: Cli, write: Write, behaviour: Behaviour, code: str
) -> None:
    """A-133."""
    with served_models(behaviour) as server:
        configured(write, server.base_url)
        done = cli("models", "probe", "lab/m")
    assert (done.code, done.out) == (4, "")
    assert f"error[{code}]" in done.err


def test_a_server_that_is_down_is_one_clear_error(cli: Cli, write: Write) -> None:
    """A-133."""
    configured(write, "http://127.0.0.1:9/v1")
    done = cli("models", "probe", "lab/m")
    assert done.code == 4
    assert "error[model-unreachable]" in done.err


def test_a_model_without_a_server_is_a_usage_error(cli: Cli, write: Write) -> None:
    write("answers.yaml", "answers: [hello]\n")
    done = cli("models", "probe", "scripted/answers.yaml")
    assert done.code == 2
    assert "error[no-server]" in done.err

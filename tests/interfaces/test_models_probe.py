"""`minions models probe`: what it prints, keeps and refuses. A-133."""

from __future__ import annotations

from typing import cast

import pytest

from chat_servers import served_models
from command_line import Cli, Write
from minions.contracts.model_profiles import Support
from minions.testing.endpoint import Behaviour, error_body, status
from minions.testing.model_servers import ServerHabits, model_server


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

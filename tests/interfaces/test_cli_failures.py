"""How errors are told: by flags, and by configuration, also before there is a run."""

from __future__ import annotations

import pytest

from command_line import Cli, Write

WRONG = "id: wrong\nsteps: [{id: a, gaol: x}]\n"


@pytest.mark.parametrize("command", ["run", "validate"])
def test_json_set_by_the_environment_reaches_errors_before_the_run(
    cli: Cli, write: Write, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    write("wrong.yaml", WRONG)
    monkeypatch.setenv("MINIONS_JSON", "true")
    by_environment = cli(command, "wrong.yaml")
    monkeypatch.delenv("MINIONS_JSON")
    assert by_environment.json == cli(command, "wrong.yaml", "--json").json
    assert by_environment.code == 2


def test_json_set_by_a_file_reaches_errors_before_the_run(cli: Cli, write: Write) -> None:
    write("minions.toml", "json = true\n")
    outcome = cli("run", "nowhere.yaml")
    assert outcome.code == 2
    assert outcome.json["error"] == cli("run", "nowhere.yaml", "--json").json["error"]


def test_json_set_by_a_file_reaches_a_wrong_use_of_flags(cli: Cli, write: Write) -> None:
    write("minions.toml", "json = true\n")
    outcome = cli("run", "r.yaml", "--jsn")
    assert outcome.code == 2
    assert "'--jsn'" in str(outcome.json["error"])


@pytest.mark.parametrize("value", ["1", "true", "yes", "True"])
def test_debug_set_by_the_environment_shows_the_traceback_of_errors_before_the_run(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    assert "Traceback" not in cli("run", "nowhere.yaml").err
    monkeypatch.setenv("MINIONS_DEBUG", value)
    assert "Traceback" in cli("run", "nowhere.yaml").err


def test_debug_set_by_a_file_shows_the_traceback_of_errors_before_the_run(
    cli: Cli, write: Write
) -> None:
    write("minions.toml", "debug = true\n")
    assert "Traceback" in cli("run", "nowhere.yaml").err


def test_a_wrong_configuration_is_told_as_the_environment_wants(
    cli: Cli, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("minions.toml", "jsn = true\n")
    monkeypatch.setenv("MINIONS_JSON", "1")
    outcome = cli("run", "nowhere.yaml")
    assert outcome.code == 2
    assert "unknown-key" in str(outcome.json["error"])


def test_an_extension_that_ends_the_program_is_broken(cli: Cli, write: Write) -> None:
    write("ends.py", "import sys\nsys.exit(3)\n")
    write("r.yaml", "steps: [{id: a, set: {x: 1}}]\n")
    outcome = cli("run", "r.yaml", "--extensions", "ends.py")
    assert outcome.code == 2
    assert (
        "error[broken-extension]: The extension 'ends.py' failed while it was loaded: SystemExit: 3"
        in outcome.err
    )


class _OddError(BaseException):
    """Of a library that means to pass every `except Exception`."""


@pytest.mark.parametrize(
    ("error", "code", "told"),
    [
        (_OddError("odd"), 70, "error[internal]: _OddError: odd"),
        (KeyboardInterrupt(), 130, "Interrupted."),
    ],
)
def test_whatever_reaches_the_rim_ends_in_one_line(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, told: str
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("minions.interfaces.cli.main.command.main", fails)
    outcome = cli("run", "r.yaml")
    assert (outcome.code, outcome.err.splitlines()[0]) == (code, told)
    assert "Traceback" not in outcome.err


def test_debug_shows_the_traceback_of_what_is_no_exception(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise _OddError("odd")

    monkeypatch.setattr("minions.interfaces.cli.main.command.main", fails)
    assert "Traceback" in cli("run", "r.yaml", "--debug").err


def test_with_json_an_internal_error_is_one_object_too(
    cli: Cli, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise _OddError("odd")

    monkeypatch.setattr("minions.interfaces.cli.main.command.main", fails)
    write("minions.toml", "json = true\n")
    outcome = cli("run", "r.yaml")
    assert outcome.code == 70
    assert outcome.json == {
        "error": {
            "code": "internal",
            "message": "_OddError: odd",
            "where": None,
            "category": "internal",
        }
    }

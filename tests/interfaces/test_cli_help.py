"""What `minions --help` and `minions help` show."""

from __future__ import annotations

import re

import click
import pytest

from command_line import Cli
from minions.interfaces.cli.main import command


def names(text: str) -> list[str]:
    return re.findall(r"^  ([a-z]+)  +\S", text, re.MULTILINE)


def every_command() -> list[str]:
    return command.list_commands(click.Context(command))


def test_the_help_has_groups_and_fits_on_a_screen(cli: Cli) -> None:
    done = cli("--help")
    assert done.code == 0
    heads = re.findall(r"^(\w[\w ]*):$", done.out, re.MULTILINE)
    assert heads == [
        *("Options", "Start", "Run again", "Many", "Look", "Decide", "Serve", "Project"),
    ]
    assert len(done.out.splitlines()) <= 62
    left_out = set(every_command()) - set(names(done.out))
    assert f"{len(left_out)} more: minions help --all" in done.out
    assert {"run", "batch", "inbox", "serve", "help"}.isdisjoint(left_out)


def test_all_commands_are_shown_where_that_is_asked_for(cli: Cli) -> None:
    done = cli("help", "--all")
    assert sorted(names(done.out)) == sorted(every_command())
    assert "more:" not in done.out


def test_the_help_of_a_command_names_common_options_in_one_line(cli: Cli) -> None:
    done = cli("validate", "--help")
    assert done.out.count("--debug") == 1
    assert "--extensions, --json, --debug, --log-format, --trust" in done.out
    assert "minions help options" in done.out
    assert "Show logs and tracebacks." not in done.out
    assert cli("help", "validate").out.rstrip() == done.out.rstrip()
    whole = cli("help", "validate", "--all").out
    assert "Show logs and tracebacks." in whole
    assert "minions help options" not in whole


def test_common_options_have_a_help_of_their_own(cli: Cli) -> None:
    done = cli("help", "options")
    assert done.code == 0
    for flag in ("--extensions", "--db", "--no-store", "--json", "--debug", "--trust"):
        assert re.search(rf"^  {flag}\b.*\S", done.out, re.MULTILINE)


def test_the_help_of_commands_within_a_group_is_shown(cli: Cli) -> None:
    assert cli("help", "sessions", "show").out == cli("sessions", "show", "--help").out
    assert "Usage: minions sessions " in cli("help", "sessions").out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("rum",), "No such command 'rum'. Did you mean 'run'?"),
        (("sessions", "shwo"), "No such command 'shwo'. Did you mean 'show'?"),
        (("run", "now"), "'minions run' has no commands of its own."),
    ],
)
def test_help_of_what_does_not_exist_says_so(cli: Cli, words: tuple[str, ...], told: str) -> None:
    done = cli("help", *words)
    assert (done.code, told in done.err) == (2, True), done.err

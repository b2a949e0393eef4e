"""Untrusted text on the command line: what is warned of, refused and explained."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from command_line import Cli, Write

RECIPE = """
id: forward
tools: [{http: {allow: [a.example]}}]
permissions: {allow_write: true}
steps:
  - {id: fetch, tool: http__get, params: {url: "https://a.example"}}
  - {id: post, tool: http__post, params: {url: "https://a.example", body: "{{ fetch.body }}"}}
"""
PATH = "fetch (http__get) -> post (http__post)"


@pytest.fixture(autouse=True)
def recipe(write: Write) -> None:
    write("forward.yaml", RECIPE)


def test_validate_warns_and_names_the_path(cli: Cli) -> None:
    """A-143."""
    done = cli("validate", "forward.yaml")
    assert (done.code, "warning[untrusted-flow]" in done.err) == (0, True)
    assert PATH in " ".join(done.err.split())


@pytest.mark.parametrize("command", [("validate",), ("run", "--no-store")])
def test_strict_refuses_the_recipe(cli: Cli, command: tuple[str, ...]) -> None:
    """A-143: before any call."""
    done = cli(*command, "forward.yaml", "--strict")
    assert (done.code, "error[untrusted-flow]" in done.err) == (2, True)


def test_a_recipe_can_ask_for_it_and_so_can_the_configuration(cli: Cli, write: Write) -> None:
    write("own.yaml", f"strict: true\n{RECIPE}")
    assert cli("run", "own.yaml", "--no-store").code == 2
    write("minions.toml", "strict = true\n")
    assert cli("validate", "forward.yaml").code == 2


ASKED = RECIPE.replace(
    "  - {id: post,",
    "  - {id: ok, ask: 'Send {{ fetch.body }}?', form: {yes: boolean}}\n"
    "  - {id: post, when: 'ok.yes',",
)


def test_an_operator_may_let_nothing_count_that_the_recipe_says_itself(
    cli: Cli, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("asked.yaml", ASKED)
    assert cli("validate", "asked.yaml", "--strict").code == 0
    write("minions.toml", 'strict = "full"\n')
    for more in ((), ("--strict",)):  # the flag asks for less, and takes nothing back
        refused = cli("validate", "asked.yaml", *more)
        assert (refused.code, "strict in full" in " ".join(refused.err.split())) == (2, True)
    assert cli("config", "--json").json["strict"] == {
        "value": "full",
        "origin": str(Path.cwd() / "minions.toml"),
    }
    write("minions.toml", "")
    monkeypatch.setenv("MINIONS_STRICT", "full")
    assert cli("run", "asked.yaml", "--no-store").code == 2
    monkeypatch.setenv("MINIONS_STRICT", "fully")
    assert "expected true, false or full" in cli("validate", "asked.yaml").err


def test_explain_lists_the_paths(cli: Cli) -> None:
    """A-143."""
    words = " ".join(cli("explain", "forward.yaml").out.split())
    assert (
        f"untrusted text: reaches http__post, where each such call waits for an approval: {PATH}"
        in words
    )
    (flow,) = json.loads(cli("explain", "forward.yaml", "--json").out)["untrusted_flows"]
    assert flow == {
        "tool": "http__post",
        "path": [{"step": "fetch", "what": "http__get"}, {"step": "post", "what": "http__post"}],
        "private": [],
        "rule": "ask",
    }

"""`minions tools`: what steps can call, with types and effects."""

from __future__ import annotations

import json

from command_line import Cli, Write

OWN = """
from minions import tool

@tool(effect="once")
def send(to: str, text: str = "hi") -> str:
    \"\"\"Send a text.\"\"\"
    return text
"""


def test_toolsets_and_their_tools_are_listed_with_effects(cli: Cli) -> None:
    done = cli("tools")
    assert done.code == 0
    lines = done.out.splitlines()
    at = lines.index("files: Read, find, write and edit text files below one folder.")
    assert lines[at + 1].startswith("  files__read(path, start_line?, end_line?): changes nothing")
    assert "  files__edit(path, old, new, replace_all?): writes once" in lines
    assert "  http__get(url, headers?, query?): changes nothing; results untrusted" in lines


def test_tools_of_the_operators_code_are_listed(cli: Cli, write: Write) -> None:
    write("own.py", OWN)
    done = cli("tools", "send", "--extensions", "own.py", "--trust")
    assert done.out.splitlines() == [
        "extensions: Registered by themselves.",
        "  send(to, text?): writes once",
        "      Send a text.",
        "      to: string",
        "      text: string (default hi)",
    ]
    assert "send" not in cli("tools").out


def test_tools_that_every_recipe_has_stand_apart_from_the_operators(cli: Cli, write: Write) -> None:
    write("own.py", OWN)
    lines = cli("tools", "--extensions", "own.py", "--trust").out.splitlines()
    own, ours = (
        lines.index("extensions: Registered by themselves."),
        lines.index("built in: Every recipe has them."),
    )
    names = [line.strip().partition("(")[0] for line in lines]
    assert own < names.index("send") < ours < names.index("saveState")
    assert "extensions: " not in cli("tools").out


def test_a_toolset_is_shown_by_its_name_with_parameters(cli: Cli) -> None:
    done = cli("tools", "data")
    assert done.out.startswith("data: Read and write CSV and JSON texts.\n")
    assert "files__" not in done.out
    assert "      text: string" in done.out


def test_programs_read_the_schemas(cli: Cli) -> None:
    (found,) = json.loads(cli("tools", "files__read", "--json").out)
    (tool,) = found["tools"]
    assert (found["name"], found["problem"]) == ("files", None)
    assert (tool["name"], tool["effect"], tool["reads"]) == ("files__read", "pure", "private")
    assert tool["parameters"]["properties"]["path"]["type"] == "string"


def test_an_unknown_name_is_told_with_what_is_near(cli: Cli) -> None:
    done = cli("tools", "files__reed")
    assert (done.code, "Did you mean 'files__read'?" in done.err) == (2, True), done.err


def test_the_tools_of_a_caller_are_named_though_only_a_request_knows_them(cli: Cli) -> None:
    lines = cli("tools", "caller").out.splitlines()
    assert " ".join(map(str.strip, lines)) == (
        "caller: What whoever asks over HTTP brings, for steps with `tools: {caller: true}`; "
        "`minions explain RECIPE` names these steps."
    )

"""No view of a run shows a secret, wherever in arguments, results or errors it stands."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from command_line import Cli, Write

VALUE = 'sk-"\\live/123'
MARKER = "${secret:env:API_TOKEN}"
RECIPE = """
id: call
inputs:
  token: {type: string, secret: true}
  way: {type: string}
limits: {max_tool_call_retries: 0}
steps:
  - id: fetch
    tool: fetch
    params:
      way: "{{ inputs.way }}"
      auth: {deep: ["{{ inputs.token }}", {more: "{{ inputs.token }}"}]}
  - {id: after, set: {got: "{{ fetch }}"}}
"""
TOOLS = '''
import json
from urllib.parse import quote

from minions import ToolError, tool


class Odd(Exception):
    """Shows what it holds by its repr alone."""

    def __init__(self, value):
        super().__init__({"headers": {value: [value]}})


def chained(value):
    try:
        raise KeyError(value)
    except KeyError as error:
        raise RuntimeError("outer") from error


def caught(value):
    try:
        raise KeyError(value)
    except KeyError:
        raise ValueError(f"while handling {value}")


def grouped(value):
    inner = ExceptionGroup("inner", [OSError(5, value)])
    raise ExceptionGroup(f"several {value}", [ValueError(value), inner])


def noted(value):
    error = RuntimeError(f"see {value!r}")
    error.add_note(f"with {value}")
    raise error


def told(value):
    raise ToolError(f"no such {value}", suggestions=[value])


def odd(value):
    raise Odd(value)


def keyed(value):
    return {value: {f"x{value}y": [value]}, "text": json.dumps({value: value}), "url": quote(value)}


def unsuccessful(value):
    return {"success": False, "error": {"why": [value]}, value: value}


FUNCTIONS = (chained, caught, grouped, noted, told, odd, keyed, unsuccessful)
WAYS = {each.__name__: each for each in FUNCTIONS}


@tool
def fetch(way: str, auth: dict[str, object]) -> object:
    """Tells what it was given."""
    return WAYS[way](auth["deep"][0])
'''
WAYS = ("chained", "caught", "grouped", "noted", "told", "odd", "keyed", "unsuccessful")
DATABASE = ("--extensions", "own.py", "--db", "j.sqlite")
GIVEN = ("-p", "token=env:API_TOKEN")
EXPORTED = ("--db", "j.sqlite", "--html", "run.html")
VIEWS = {
    "run": ("run", "call.yaml", *DATABASE, *GIVEN),
    "run --json": ("run", "call.yaml", *DATABASE, *GIVEN, "--json"),
    "run --events": ("run", "call.yaml", *DATABASE, *GIVEN, "--events"),
    "run --debug": ("run", "call.yaml", *DATABASE, *GIVEN, "--debug"),
    "sessions list": ("sessions", "list", "--db", "j.sqlite"),
    "sessions list --json": ("sessions", "list", "--db", "j.sqlite", "--json"),
    "sessions show": ("sessions", "show", "RUN", "--db", "j.sqlite", "--messages"),
    "sessions show --json": ("sessions", "show", "RUN", "--db", "j.sqlite", "--json"),
    "sessions diff": ("sessions", "diff", "RUN", "OTHER", "--db", "j.sqlite"),
    "sessions diff --json": ("sessions", "diff", "RUN", "OTHER", "--db", "j.sqlite", "--json"),
    "sessions export": ("sessions", "export", "RUN", "--db", "j.sqlite"),
    "sessions export --html": ("sessions", "export", "RUN", *EXPORTED),
    "retry": ("retry", "RUN", *DATABASE),
    "batch": ("batch", "call.yaml", "items.jsonl", "-o", "out.jsonl", *DATABASE, *GIVEN),
}


def forms(value: str) -> list[str]:
    """The secret as it is and as texts hold it."""
    return [value, json.dumps(value)[1:-1], repr(value)[1:-1], json.dumps(json.dumps(value))[3:-3]]


@pytest.fixture
def project(here: Path, write: Write, monkeypatch: pytest.MonkeyPatch) -> Path:
    write("call.yaml", RECIPE)
    write("own.py", TOOLS)
    monkeypatch.setenv("API_TOKEN", VALUE)
    return here


def runs_of(cli: Cli, way: str) -> dict[str, str]:
    """Two runs that the other views show."""
    run = ("run", "call.yaml", *DATABASE, *GIVEN, "-p", f"way={way}", "--json")
    return {name: json.loads(cli(*run).out)["run_id"] for name in ("RUN", "OTHER")}


@pytest.mark.parametrize("way", WAYS)
def test_no_view_shows_a_secret(cli: Cli, project: Path, write: Write, way: str) -> None:
    """A-105, A-143: screens, files and the database hold its marker at most."""
    write("items.jsonl", json.dumps({"way": way}) + "\n")
    ids = runs_of(cli, way)
    for view, arguments in VIEWS.items():
        given = ("-p", f"way={way}") if arguments[0] == "run" else ()
        outcome = cli(*(ids.get(each, each) for each in arguments), *given)
        assert outcome.code in (0, 1, 2), (view, outcome.err)  # 2: there is nothing to retry
        texts = {"out": outcome.out, "err": outcome.err}
        made = [path for path in project.rglob("*") if path.is_file()]
        texts |= {path.name: path.read_bytes().decode("latin-1") for path in made}
        found = [name for name, text in texts.items() for form in forms(VALUE) if form in text]
        assert (view, found) == (view, [])
        for path in (project / "out.jsonl", project / "run.html"):
            path.unlink(missing_ok=True)

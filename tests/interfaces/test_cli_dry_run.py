"""`minions run --dry-run`: what would be done, and nothing done."""

from __future__ import annotations

from pathlib import Path

from command_line import Cli, Write

OWN = """
from minions import tool

@tool(effect="once")
def send(to: str, text: str) -> str:
    '''Never called here.'''
    raise SystemExit("called")

@tool(effect="pure")
def look() -> list[int]:
    '''Never called here.'''
    raise SystemExit("called")
"""
RECIPE = """
id: plan
permissions: {allow_write: true}
inputs: {to: {type: string}, key: {type: string, secret: true, default: "env:NOT_SET_ANYWHERE"}}
execution_mode: planned
steps:
  - {id: post, tool: send, params: {to: "{{ inputs.to }}"}, loop: "{{ found.updates }}"}
  - id: found
    analyze: "Which of {{ seen }}?"
    input: "{{ seen }}"
    output_format: {updates: []}
  - {id: seen, tool: look, params: {}}
  - {id: names, set: {all: [a, b]}}
  - {id: each, goal: "Greet {{ loop.item }}", tools: [look], loop: "{{ names.all }}"}
  - {id: never, set: {x: 1}, when: "names.all | length > 2"}
  - {id: maybe, set: {x: 1}, when: "seen | length > 2"}
  - {id: sure, assert: "names.all[0] == 'a'"}
"""


def test_every_planned_call_is_told_in_order_and_none_is_made(
    cli: Cli, write: Write, here: Path
) -> None:
    """A-66: no tool runs, no model call is made, no state is written; no key is needed."""
    write("own.py", OWN)
    write("plan.yaml", RECIPE)
    done = cli(
        "run", "plan.yaml", "-p", "to=Ada", "--dry-run", "--extensions", "own.py", "--db", "j.db"
    )
    assert done.code == 0, done.err
    assert done.out.splitlines() == [
        "  1 seen: tool look {}",
        '  2 found: analysis (no model is configured) {"task":"Which of <seen>?","input":"<seen>"}',
        (
            '  3 post: tool send (writes) {"to":"Ada"} · a model call fills in text · '
            "for each item of <found.updates>"
        ),
        '  4 names: set {"all":["a","b"]}',
        "  5 each: model (no model is configured) Greet <loop.item> · may call look · for 2 items",
        '  6 never: set {"x":1} · when false: skipped',
        '  7 maybe: set {"x":1} · when seen | length > 2',
        "  8 sure: assert [\"names.all[0] == 'a'\"]",
    ]
    assert "nothing is written" in done.err
    assert not (here / "j.db").exists()


def test_programs_get_one_object(cli: Cli, write: Write) -> None:
    write("r.yaml", "id: r\nsteps: [{id: a, set: {x: '{{ run.id }}'}}]\n")
    done = cli("run", "r.yaml", "--dry-run", "--json")
    (planned,) = done.json["planned"]  # type: ignore[misc, str-unpack]  # a list of one
    assert planned == {
        "step_id": "a",
        "kind": "set",
        "target": None,
        "shown": {"x": "<run.id>"},
        "tools": [],
        "writes": False,
        "asks_for": [],
        "loop": None,
        "when": None,
        "next": None,
        "next_by": None,
    }


def test_what_is_wrong_is_still_refused(cli: Cli, write: Write) -> None:
    write("r.yaml", "id: r\ninputs: {n: {type: integer}}\nsteps: [{id: a, set: {x: 1}}]\n")
    assert cli("run", "r.yaml", "--dry-run", "-p", "n=x").code == 2

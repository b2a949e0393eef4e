"""`minions run --dry-run`: what would be done, and nothing done."""

from __future__ import annotations

from pathlib import Path

import pytest

from command_line import Cli, Write
from minions.adapters.sandboxes.python_sandboxes import MontySandbox
from minions.adapters.sandboxes.workspaces import BubblewrapSandbox, LandlockSandbox
from minions.contracts.sandbox import SandboxProbe

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
  - {id: post, tool: send, fill: [text], params: {to: "{{ inputs.to }}"},
     loop: "{{ found.updates }}"}
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
        (
            "  2 found: analysis (no model is configured) "
            '{"task":"Which of <seen>?","input":"<seen>"}'
            " · prompt of 90 tokens: system 34, step_outputs 26, schema 22, goal 8"
        ),
        (
            '  3 post: tool send (writes) {"to":"Ada"} · a model call fills in text · '
            "for each item of <found.updates>"
        ),
        '  4 names: set {"all":["a","b"]}',
        (
            "  5 each: model (no model is configured) Greet <loop.item> · may call look · "
            "prompt of 44 tokens: tools 40, goal 4 · for 2 items"
        ),
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
        "hidden_tools": None,
        "writes": False,
        "asks_for": [],
        "loop": None,
        "items": None,
        "when": None,
        "next": None,
        "next_by": None,
        "depth": 0,
        "model": None,
        "repeats_while": None,
        "max_iterations": None,
        "on_error": "fail",
        "goto": None,
        "max_returns": None,
        "memory": None,
        "needs_approval": [],
        "denied": [],
        "prompt": None,
        "refused": None,
    }


def test_what_is_wrong_is_still_refused(cli: Cli, write: Write) -> None:
    write("r.yaml", "id: r\ninputs: {n: {type: integer}}\nsteps: [{id: a, set: {x: 1}}]\n")
    assert cli("run", "r.yaml", "--dry-run", "-p", "n=x").code == 2


# --- recipes in recipes, repetition, persons ------------------------------------------------------

STEPS = """
from attrs import frozen
from minions import DefaultStep, PythonStep

@frozen(kw_only=True)
class Shift(PythonStep[int]):
    id: str
    by: int

    async def run(self, scope):
        raise SystemExit("called")

class Writer(DefaultStep):
    pass

STEPS = [Shift, Writer]
"""
GREET = """
id: greet
inputs: {name: {type: string}, mark: "!"}
steps:
  - {id: say, set: {text: "Hello {{ inputs.name }}{{ inputs.mark }}"}}
  - {id: post, tool: send, params: {to: "{{ inputs.name }}", text: "{{ say.text }}"}}
permissions: {allow_send: true}
output: "{{ say.text }}"
"""
OUTER = """
id: outer
permissions: {allow_write: true, allow_look: false, requires_approval: [send]}
inputs: {who: {type: string, default: Ada}}
steps:
  - {id: hello, recipe: greet, with: {name: "{{ inputs.who }}"}}
  - {id: look, tool: look, on_error: continue}
  - {id: copy, set: {text: "{{ hello }}"}}
  - {id: never, recipe: greet, with: {name: x}, when: "copy.text == ''"}
  - {id: rest, set: {is: "{{ look | default(0) }} {{ never | default('none') }}"}}
  - {id: each, recipe: greet, with: {name: "Dr. {{ loop.item }} {{ inputs.who }}"}, loop: [a, b]}
  - id: draft
    goal: "Write about {{ copy.text }}. {{ feedback.message | default('') }}"
    tools: [send, look]
    memory: conversation
    while: "'good' not in loop.last"
    max_iterations: 4
  - {id: check, assert: "draft | length > 3", on_error: {goto: draft, max: 1}}
  - {id: fine, ask: "Send {{ copy.text }}?", form: {type: boolean}, default: false, timeout: 10m}
  - {id: whom, ask: To whom?}
  - {id: moved, uses: Shift, with: {by: 3}}
"""


def test_what_is_in_a_step_and_around_it_is_told(cli: Cli, write: Write) -> None:
    """A-66: in recipes that are steps values flow as far as they are known."""
    write("own.py", OWN + STEPS)
    write("greet.yaml", GREET)
    write("outer.yaml", OUTER)
    done = cli("run", "outer.yaml", "--dry-run", "--extensions", "own.py")
    assert done.code == 0, done.err
    assert done.out.splitlines() == [
        '  1 hello: recipe greet {"name":"Ada"}',
        '  2   hello/say: set {"text":"Hello Ada!"}',
        ('  3   hello/post: tool send (writes) {"to":"Ada","text":"Hello Ada!"} · needs approval'),
        "  4 look: tool look {} · denied · the run continues if it fails",
        '  5 copy: set {"text":"Hello Ada!"}',
        '  6 never: recipe greet {"name":"x"} · when false: skipped',
        '  7 rest: set {"is":"<look | default(0)> none"}',
        '  8 each: recipe greet {"name":"Dr. <loop.item> Ada"} · for 2 items',
        '  9   each/say: set {"text":"Hello <inputs.name>!"}',
        (
            ' 10   each/post: tool send (writes) {"to":"<inputs.name>","text":"<say.text>"} · '
            "needs approval"
        ),
        (
            " 11 draft: model (no model is configured) Write about Hello Ada!. "
            "<feedback.message | default('')> · may call send, look · "
            "prompt of 72 tokens: tools 58, goal 14 · sees the conversation so far"
            " · needs approval: send · denied: look · again while 'good' not in loop.last, "
            "at most 4 times"
        ),
        ' 12 check: assert ["draft | length > 3"] · back to draft on failure, at most once',
        (
            ' 13 fine: ask Send Hello Ada!? · answer: {"type":"boolean"} · default false · '
            "waits 10 min 0 s"
        ),
        " 14 whom: ask To whom? · answer: any text",
        ' 15 moved: uses Shift {"by":3}',
    ]


def test_inputs_that_a_recipe_does_not_take_are_told(cli: Cli, write: Write) -> None:
    write("inner.yaml", "inputs: {n: {type: integer}}\nsteps: [{id: a, set: {x: 1}}]\n")
    write(
        "outer.yaml",
        "steps:\n"
        "  - {id: n, set: {n: [x]}}\n"
        "  - {id: call, recipe: inner, with: {n: '{{ n.n[0] }}'}}\n",
    )
    done = cli("run", "outer.yaml", "--dry-run", "--json")
    planned = done.json["planned"]
    assert isinstance(planned, list)
    call = planned[1]
    assert isinstance(call, dict)
    assert "'x'" in str(call["refused"])
    assert len(planned) == 2


def test_code_is_planned_and_said_to_be_refused(
    cli: Cli, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    probe = SandboxProbe(name="a socket", ok=False, detail="was possible")
    monkeypatch.setattr(MontySandbox, "probe", lambda _: (probe,))
    write("inner.yaml", "steps: [{id: c, code: x + 1, with: {x: 1}}]\n")
    write("outer.yaml", "steps: [{id: call, recipe: inner}]\n")
    done = cli("run", "outer.yaml", "--dry-run")
    assert (done.code, done.out.splitlines()) == (
        0,
        [
            "  1 call: recipe inner {}",
            (
                "  2   call/c: code monty {\"x\":1} · Step 'c' is Python code, and no sandbox "
                "holds here; nothing weaker is used instead. monty: a socket NOT OK (was "
                "possible). `monty` needs the extra: pip install 'minions-engine[sandbox]'."
            ),
        ],
    )
    refused = cli("run", "outer.yaml", "--no-store")
    assert (refused.code, "error[no-sandbox]" in refused.err) == (4, True)


def test_commands_are_shown_where_no_sandbox_holds(
    cli: Cli, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is executed, so nothing is missing; the run itself is refused, and names why."""
    probe = SandboxProbe(name="a socket", ok=False, detail="was possible")
    for kind in (BubblewrapSandbox, LandlockSandbox):
        monkeypatch.setattr(kind, "probe", lambda _: (probe,))
    write(
        "sh.yaml",
        "tools: [shell]\npermissions: {allow_write: true}\n"
        "steps: [{id: s, tool: shell__run, params: {command: ls}}]\n",
    )
    done = cli("run", "sh.yaml", "--dry-run")
    assert (done.code, done.out.splitlines()) == (
        0,
        ['  1 s: tool shell__run (writes) {"command":"ls"}'],
    )
    refused = cli("run", "sh.yaml", "--no-store")
    assert refused.code == 4
    assert "error[no-sandbox]: The toolset 'shell' runs commands. " in refused.err

"""`minions sessions show`: what happened in a run, in its order."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import cast

import pytest

from command_line import Cli, Write
from minions.data.json_values import JsonValue

OWN = """
from minions import ScriptedModel, tool

@tool(effect="once")
def send(to: str) -> str:
    '''Sends.'''
    return f"sent to {to}"

class Counting(ScriptedModel):
    name = "scripted/counting"

said = []

def answer(prompt):
    said.append(prompt)
    return f"draft {len(said)}"

counting = Counting(answer)
"""
GREET = """
id: greet
inputs: {name: {type: string}}
steps:
  - {id: say, set: {text: "Hello {{ inputs.name }}"}}
output: "{{ say.text }}"
"""
RECIPE = """
id: letters
model: scripted/counting
permissions: {allow_write: true, requires_approval: [send]}
steps:
  - {id: hello, recipe: greet, with: {name: Ada}}
  - {id: draft, goal: Write., while: "loop.last not in ['draft 2', 'draft 3']"}
  - id: check
    assert: "draft == 'draft 3'"
    message: "The draft is too short, and it has to say far more: examples, numbers."
    on_error: {goto: draft, max: 2}
  - {id: who, ask: "To   whom?", form: {type: string}, depends_on: [check]}
  - {id: each, recipe: greet, with: {name: "{{ loop.item }}"}, loop: ["{{ who }}", y]}
  - {id: mail, tool: send, params: {to: "{{ who }}"}}
"""
CACHED = """
id: cached
model: {name: scripted/answers.yaml, cache: true}
steps:
  - {id: a, goal: Say a word., completion: text}
"""
STORE = ("--db", "j.db", "--extensions", "own.py")


@pytest.fixture(autouse=True)
def _run(cli: Cli, write: Write) -> None:
    """A run that went back once and waits for an answer."""
    write("own.py", OWN)
    write("greet.yaml", GREET)
    write("letters.yaml", RECIPE)
    assert cli("run", "letters.yaml", "--approve", "wait", *STORE).code == 3


def told(cli: Cli, db: str = "j.db") -> list[str]:
    """What is between the head and the output, without times."""
    whole = cli("sessions", "show", "run_", "--db", db).out
    whole = whole.partition("\noutput:")[0].partition("\nprompts:")[0]
    lines = whole.partition("\nerror[")[0].splitlines()
    return [re.sub(r" · [\d.]+ m?s", "", line) for line in lines if line.startswith("  ")]


BEFORE = [
    "  hello: completed",
    "    hello/say: completed",
    "  draft: completed",
    "    draft[0]: completed",
    "    draft[1]: completed",
    "  check: failed · The draft is too short, and it has to say far more:",
    "      examples, numbers.",
    "  - check failed: back to draft (1)",
    "  draft: completed",
    "    draft[0]: completed",
    "  check: completed",
]


def test_recipes_attempts_and_ways_back_are_told_in_order(cli: Cli) -> None:
    assert told(cli) == [
        *BEFORE,
        "  who: waits",
        "  - who: asks: To whom?",
        "  each: skipped · the run waits for a person",
        "  mail: skipped · the run waits for a person",
    ]


def test_what_a_person_said_stands_where_it_was_said(cli: Cli) -> None:
    assert cli("answer", "run_", "who", "Ada", *STORE).code == 3
    assert cli("approve", "run_", "send", *STORE).code == 0
    assert told(cli) == [
        *BEFORE,
        "  who: completed",
        "  - who: asks: To whom?",
        '  - who: answered "Ada"',
        "  each: completed",
        "    2/2",
        "    each[0]: completed",
        "    each[1]: completed",
        "    each[0]/say: completed",
        "    each[1]/say: completed",
        "  mail: completed",
        '  - mail: needs approval: send({"to":"Ada"})',
        '  - mail: approved: send({"to":"Ada"})',
    ]


def test_programs_get_the_same(cli: Cli) -> None:
    cli("answer", "run_", "who", "Ada", *STORE)
    cli("reject", "run_", *STORE)
    notes = cast(
        "list[dict[str, JsonValue]]",
        cli("sessions", "show", "run_", "--db", "j.db", "--json").json["notes"],
    )
    assert [(note["kind"], note["step_id"], note["state"]) for note in notes] == [
        ("goto", "check", "recorded"),
        ("decision", "who", "waiting"),
        ("decision", "who", "answer"),
        ("decision", "mail", "waiting"),
        ("decision", "mail", "reject"),
    ]
    assert cast("dict[str, JsonValue]", notes[2]["facts"])["answer"] == "Ada"


def test_an_answer_that_never_came_is_told(cli: Cli, write: Write) -> None:
    write(
        "ask.yaml",
        "id: ask\nsteps: [{id: fine, ask: Fine?, default: maybe, timeout: 1ms}]\n",
    )
    assert cli("run", "ask.yaml", "--approve", "wait", "--db", "k.db").code == 3
    assert cli("resume", "run_", "--db", "k.db").code == 0
    lines = cli("sessions", "show", "run_", "--db", "k.db").out.splitlines()
    assert [line for line in lines if line.startswith("  -")] == [
        "  - fine: asks: Fine?",
        '  - fine: no answer in time; the default is "maybe"',
    ]


def test_what_a_retry_threw_away_is_not_told(cli: Cli, write: Write) -> None:
    """Neither the visits to which the run did not come again, nor the ways back between them."""
    write(
        "ask.yaml",
        "id: ask\n"
        "steps:\n"
        "  - {id: zero, set: {x: 1}}\n"
        "  - {id: size, ask: Size?, form: {type: integer}}\n"
        "  - {id: check, assert: size == 3, message: wrong, on_error: {goto: size, max: 3}}\n"
        "  - {id: last, set: {x: '{{ size }}'}}\n",
    )
    db = ("--db", "k.db")
    assert cli("run", "ask.yaml", "--approve", "wait", *db).code == 3
    for answer, code in (("1", 3), ("2", 3), ("3", 0)):
        assert cli("answer", "run_", "size", answer, *db).code == code
    assert cli("retry", "run_", "--from", "size", "--approve", "wait", *db).code == 3
    assert told(cli, "k.db") == [
        "  zero: completed",
        "  size: waits",
        "  - size: asks: Size?",
        "  check: skipped · the run waits for a person",
        "  last: skipped · the run waits for a person",
    ]
    assert cli("answer", "run_", "size", "1", *db).code == 3
    assert told(cli, "k.db") == [
        "  zero: completed",
        "  size: completed",
        "  - size: asks: Size?",
        "  - size: answered 1",
        "  check: failed · wrong",
        "  - check failed: back to size (1)",
        "  size: waits",
        "  - size: asks: Size?",
        "  last: skipped · the run waits for a person",
    ]
    assert cli("answer", "run_", "size", "3", *db).code == 0
    assert told(cli, "k.db")[-4:] == [
        "  - size: asks: Size?",
        "  - size: answered 3",
        "  check: completed",
        "  last: completed",
    ]


def test_the_tokens_of_sent_prompts_are_told_by_section(cli: Cli) -> None:
    """A-110: of each step, in all its calls."""
    shown = cli("sessions", "show", "run_", "--db", "j.db").out
    lines = shown.partition("\nprompts:\n")[2].splitlines()
    assert lines[0] == "  draft in 3 calls: 50 tokens: goal 50"
    detail = cli("sessions", "show", "run_", "--db", "j.db", "--json").json
    prompts = cast("list[dict[str, JsonValue]]", detail["prompts"])
    assert [each["step_id"] for each in prompts][:3] == ["draft"] * 3


NESTED = """
id: outer
steps:
  - id: sub
    recipe: inner
    with: {name: "{{ loop.item }}"}
    loop: [Ada, Bob]
"""
INNER = """
id: inner
inputs: {name: string}
steps:
  - {id: each, goal: "{{ loop.item }} {{ inputs.name }}", loop: [Hello, Bye]}
"""


def test_one_execution_is_shown_by_its_address(cli: Cli, write: Write, here: Path) -> None:
    """A-115: an item within an item, with its prompt and answer."""
    write("outer.yaml", NESTED)
    write("inner.yaml", INNER)
    write("says.yaml", "answers: [one, two, three, four]\n")
    ran = cli("run", "outer.yaml", "-m", "scripted/says.yaml", "--db", "nested.db")
    assert "sub[1]/each" in ran.err
    shown = cli("sessions", "show", "run_", "sub[1]/each[0]", "--db", "nested.db")
    assert shown.out.startswith("sub[1]/each[0]: completed")
    assert "[sub[1]/each[0]] goal:\n  Hello Bob\n" in shown.out
    assert shown.out.endswith("output:\nthree\n")
    whole = cli("sessions", "show", "run_", "sub[1]", "--db", "nested.db", "--json")
    assert json.loads(whole.out)["summary"]["step_id"] == "sub[1]"
    wrong = cli("sessions", "show", "run_", "sub[1]/eech[0]", "--db", "nested.db")
    assert wrong.code == 2
    assert "Nothing with the address 'sub[1]/eech[0]' was executed in this run" in wrong.err
    assert "sub[1]/each[0]" in wrong.err
    again = cli("retry", "run_", "--from", "sub[1]/each[0]", "-m", "scripted/says.yaml",
                "--db", "nested.db")  # fmt: skip
    assert again.code == 0, again.err


def test_an_answer_from_the_cache_names_its_run(cli: Cli, write: Write) -> None:
    """Nothing was sent for it: its prompt has no tokens to be told."""
    write("cached.yaml", CACHED)
    write("answers.yaml", "answers: [fine]\n")
    runs = [
        json.loads(cli("run", "cached.yaml", "--json", "--db", "c.db").out)["run_id"]
        for _ in range(2)
    ]
    shown = [cli("sessions", "show", run, "--db", "c.db").out for run in runs]
    assert "  a: 2 tokens: goal 2" in shown[0]
    assert f"  a: answer from the cache, of {runs[0]}" in shown[1]
    assert "tokens:" not in shown[1]

"""`minions graph`: a recipe's steps as a picture, nothing run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import cast
from xml.etree import ElementTree as ET

from command_line import Cli, Write
from minions.data.json_values import JsonValue

OWN = """
from minions import tool

@tool(effect="once")
def send(text: str) -> str:
    '''Never called here.'''
    raise SystemExit("called")
"""
RECIPE = """
id: letters
permissions: {allow_write: true}
steps:
  - {id: names, set: {all: [a, b], more: [c]}}
  - {id: greet, goal: "Greet {{ loop.item }}", loop: "{{ names.all }}", aggregate: true}
  - {id: sure, assert: "names.all | length > 0"}
  - {id: best, analyze: "Which is best?", input: "{{ greet }}", when: "names.more", optional: true}
  - {id: post, tool: send, params: {text: "{{ best | default('none') }}"}, depends_on: [sure]}
"""


def test_the_tree_names_each_step_once_and_what_it_waits_for(cli: Cli, write: Write) -> None:
    write("own.py", OWN)
    write("letters.yaml", RECIPE)
    done = cli("graph", "letters.yaml", "--extensions", "own.py")
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines() == [
        "1 names: set all, more",
        " |- 2 greet: goal Greet {{ loop.item }}; for each names.all",
        " |   v",
        " |  4 best: analyze Which is best?; also after 1; optional; when names.more",
        " |   v",
        " |  5 post: tool send; also after 3; however 4 ended; writes",
        " `- 3 sure: assert names.all | length > 0",
    ]


def test_mermaid_text_is_a_flowchart_that_no_id_can_break(cli: Cli, write: Write) -> None:
    write("own.py", OWN)
    write("letters.yaml", RECIPE)
    done = cli("graph", "letters.yaml", "--extensions", "own.py", "-f", "mermaid")
    assert done.out.splitlines() == [
        "flowchart TD",
        '  n1[/"1 · names<br/>set: all, more"/]:::set',
        '  n2("2 · greet<br/>goal: Greet {{ loop.item }}<br/>for each names.all"):::goal',
        '  n3{{"3 · sure<br/>assert: names.all | length #62; 0"}}:::assert',
        (
            '  n4(["4 · best<br/>analyze: Which is best?<br/>optional<br/>when names.more"])'
            ":::analyze"
        ),
        '  n5["5 · post<br/>tool: send<br/>writes"]:::tool',
        "  n1 --> n2",
        "  n1 --> n3",
        "  n1 --> n4",
        "  n2 --> n4",
        "  n3 --> n5",
        "  n4 -.-> n5",
        "  classDef goal stroke:#7c3aed,stroke-width:2px",
        "  classDef tool stroke:#0284c7,stroke-width:2px",
        "  classDef analyze stroke:#c026d3,stroke-width:2px",
        "  classDef set stroke:#64748b,stroke-width:2px",
        "  classDef assert stroke:#d97706,stroke-width:2px",
    ]


def test_json_has_nodes_edges_and_layers(cli: Cli, write: Write) -> None:
    write("two.yaml", 'steps:\n  - {id: a, set: {x: 1}}\n  - {id: b, set: {y: "{{ a.x }}"}}\n')
    expected = {
        "recipe": "two",
        "nodes": [
            {"id": "a", "kind": "set", "label": "x", "notes": [], "status": None},
            {"id": "b", "kind": "set", "label": "y", "notes": [], "status": None},
        ],
        "edges": [{"from": "a", "to": "b", "dashed": False, "back": None}],
        "layers": [["a"], ["b"]],
    }
    assert cli("graph", "two.yaml", "-f", "json").json == expected
    assert cli("graph", "two.yaml", "--json").json == expected


def test_the_name_of_the_file_tells_the_format(cli: Cli, write: Write, here: Path) -> None:
    write("two.yaml", "steps:\n  - {id: a, set: {x: 1}}\n")
    done = cli("graph", "two.yaml", "-o", "two.svg")
    assert (done.code, done.out, done.err) == (0, "", "two.svg: 1 step\n")
    root = ET.fromstring((here / "two.svg").read_text("utf-8"))
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    cli("graph", "two.yaml", "-o", "two.json")
    assert json.loads((here / "two.json").read_text("utf-8"))["layers"] == [["a"]]
    cli("graph", "two.yaml", "-o", "two.svg", "-f", "ascii")
    assert (here / "two.svg").read_text("utf-8") == "1 a: set x\n"


def test_a_file_that_cannot_be_written_is_told_in_one_line(cli: Cli, write: Write) -> None:
    write("two.yaml", "steps:\n  - {id: a, set: {x: 1}}\n")
    done = cli("graph", "two.yaml", "-o", "nowhere/two.svg")
    assert (done.code, done.out) == (2, "")
    assert done.err == (
        "error[unwritable-file]: The picture cannot be written to nowhere/two.svg: "
        "No such file or directory.\n"
    )


def test_a_faulty_recipe_ends_with_the_errors_that_validate_tells(cli: Cli, write: Write) -> None:
    write("bad.yaml", "steps:\n  - {id: a, set: {x: 1}, depends_on: [b]}\n  - {id: c, sett: 1}\n")
    checked = cli("validate", "bad.yaml")
    done = cli("graph", "bad.yaml")
    assert (done.code, done.out) == (2, "")
    assert done.err == checked.err


def test_drawing_loads_neither_engine_nor_journal(here: Path, write: Write) -> None:
    write("two.yaml", "steps:\n  - {id: a, set: {x: 1}}\n")
    code = (
        "import sys\n"
        "from minions.interfaces.cli.main import run_command_line\n"
        "run_command_line(['graph', 'two.yaml', '-o', 'two.svg'])\n"
        "heavy = {'minions.engine.run.agent_executor', 'sqlite3', 'cattrs',"
        " 'jsonschema', 'openai'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=here, capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


# --- recipes in recipes, repetition, persons ------------------------------------------------------

INNER = """
id: inner
inputs: {name: {type: string}}
steps: [{id: say, set: {text: "Hello {{ inputs.name }}"}}]
"""
ROUNDS = """
id: rounds
execution_mode: planned
steps:
  - {id: check, assert: "draft.n > 0", on_error: {goto: draft, max: 1}, depends_on: [hello]}
  - {id: draft, set: {n: "{{ loop.index }}"}, while: "loop.last.n < 1", max_iterations: 4}
  - {id: hello, recipe: inner, with: {name: Ada}, depends_on: [draft]}
  - {id: who, ask: To whom?, depends_on: [check]}
  - {id: never, set: {x: "{{ who }}"}, on_error: continue}
"""


def test_what_leads_back_is_drawn_beside_what_leads_on(cli: Cli, write: Write) -> None:
    write("inner.yaml", INNER)
    write("rounds.yaml", ROUNDS)
    assert cli("graph", "rounds.yaml").out.splitlines() == [
        "2 draft: set n; up to 4 times while loop.last.n < 1",
        " v",
        "3 hello: recipe inner",
        " v",
        "1 check: assert draft.n > 0; also after 2; once back to draft if it fails",
        " v",
        "4 who: ask To whom?",
        " v",
        "5 never: set x; optional",
    ]
    assert cli("graph", "rounds.yaml", "-f", "mermaid").out.splitlines() == [
        "flowchart TD",
        (
            '  n1{{"1 · check<br/>assert: draft.n #62; 0<br/>once back to draft if it fails"}}'
            ":::assert"
        ),
        '  n2[/"2 · draft<br/>set: n<br/>up to 4 times while loop.last.n #60; 1"/]:::set',
        '  n3[/"3 · hello<br/>recipe: inner"\\]:::recipe',
        '  n4>"4 · who<br/>ask: To whom?"]:::ask',
        '  n5[/"5 · never<br/>set: x<br/>optional"/]:::set',
        "  n2 --> n1",
        "  n3 --> n1",
        "  n2 --> n3",
        "  n1 --> n4",
        "  n4 --> n5",
        "  n2 -. while .-> n2",
        "  n1 -. on failure .-> n2",
        "  classDef set stroke:#64748b,stroke-width:2px",
        "  classDef assert stroke:#d97706,stroke-width:2px",
        "  classDef recipe stroke:#4f46e5,stroke-width:2px",
        "  classDef ask stroke:#e11d48,stroke-width:2px",
    ]
    drawn = cli("graph", "rounds.yaml", "--json").json
    assert drawn["layers"] == [["draft"], ["hello"], ["check"], ["who"], ["never"]]
    assert [
        edge for edge in cast("list[dict[str, JsonValue]]", drawn["edges"]) if edge["back"]
    ] == [
        {"from": "draft", "to": "draft", "dashed": False, "back": "while"},
        {"from": "check", "to": "draft", "dashed": False, "back": "goto"},
    ]


def test_registered_steps_and_code_are_drawn(cli: Cli, write: Write) -> None:
    write(
        "own.py",
        "from minions import DefaultStep\n\nclass Writer(DefaultStep):\n    pass\n",
    )
    write("two.yaml", "steps: [{id: a, uses: Writer}, {id: b, code: x + 1, with: {x: 1}}]\n")
    done = cli("graph", "two.yaml", "--extensions", "own.py")
    assert done.out == "1 a: uses Writer\n2 b: code x + 1\n"


def test_a_run_shows_how_each_step_ended(cli: Cli, write: Write) -> None:
    write("inner.yaml", INNER)
    write("rounds.yaml", ROUNDS)
    assert cli("run", "rounds.yaml", "--approve", "wait", "--db", "j.db").code == 3
    shown = ("rounds.yaml", "--run", "run_", "--db", "j.db")
    assert cli("graph", *shown).out.splitlines()[::2] == [
        "2 draft: [completed] set n; up to 4 times while loop.last.n < 1",
        "3 hello: [completed] recipe inner",
        "1 check: [completed] assert draft.n > 0; also after 2; once back to draft if it fails",
        "4 who: [waits] ask To whom?",
        "5 never: [skipped] set x; optional",
    ]
    lines = cli("graph", *shown, "-f", "mermaid").out.splitlines()
    assert lines[4] == '  n4>"4 · who: waits<br/>ask: To whom?"]:::ask'
    assert lines[-6:] == [
        "  class n1,n2,n3 has-completed",
        "  classDef has-completed fill:#16a34a33",
        "  class n4 is-waiting",
        "  classDef is-waiting fill:#f59e0b44",
        "  class n5 has-not-run",
        "  classDef has-not-run fill:transparent",
    ]
    nodes = cast("list[dict[str, JsonValue]]", cli("graph", *shown, "--json").json["nodes"])
    assert [node["status"] for node in nodes] == [
        "completed",
        "completed",
        "completed",
        "waits",
        "skipped",
    ]
    root = ET.fromstring(cli("graph", *shown, "-f", "svg").out)
    groups = root.findall("{http://www.w3.org/2000/svg}g")
    assert [group.get("class") for group in groups] == [
        "assert has-completed",
        "set has-completed",
        "recipe has-completed",
        "ask is-waiting",
        "set has-not-run",
    ]


def test_a_run_of_another_recipe_is_refused(cli: Cli, write: Write) -> None:
    write("one.yaml", "id: one\nsteps: [{id: a, set: {x: 1}}]\n")
    write("two.yaml", "id: two\nsteps: [{id: a, set: {x: 1}}]\n")
    assert cli("run", "one.yaml", "--db", "j.db").code == 0
    done = cli("graph", "two.yaml", "--run", "run_", "--db", "j.db")
    assert done.code == 2
    assert "is one of 'one', not of 'two'" in done.err
    missing = cli("graph", "two.yaml", "--run", "run_x", "--db", "j.db")
    assert (missing.code, "error[unknown-session]" in missing.err) == (2, True)

"""`minions explain`: what a recipe needs, may do and costs at most."""

from __future__ import annotations

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
BOUNDED = """
id: letters
description: Write to a few people.
inputs:
  to: {type: string, description: Who gets them.}
  tries: {type: integer, default: 3}
  key: {type: string, secret: true}
model: ollama/small
limits: {max_tool_call_retries: 1, max_steps: 20}
steps:
  - {id: seen, tool: look, params: {}}
  - {id: greet, goal: "Greet {{ loop.item }}", loop: [Ada, Bob], limits: {maxModelCallsPerStep: 4}}
  - {id: best, analyze: "Which is best?", input: "{{ greet }}", model: ollama/large}
  - {id: post, tool: send, params: {to: "{{ inputs.to }}"}, limits: {max_tool_call_retries: 0}}
  - {id: log, tool: send, params: {to: "{{ inputs.to }}", text: "{{ seen }}"}, loop: [1, 2, 3]}
  - {id: sure, assert: "inputs.tries > 0"}
"""


def test_a_bounded_recipe_is_told_whole(cli: Cli, write: Write) -> None:
    """4 x 2 for the loop, 10 for the analysis, 10 for the text that `post` leaves open."""
    write("own.py", OWN)
    write("letters.yaml", BOUNDED)
    done = cli("explain", "letters.yaml", "--extensions", "own.py")
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines() == [
        "letters: Write to a few people.",
        "inputs:",
        "  to (string, required): Who gets them.",
        "  tries (integer, default 3)",
        "  key (secret string, required)",
        "tools:",
        "  look (pure), used by seen",
        "  send (once, writes), used by post, log",
        "permissions: may not write; refused: send",
        "models:",
        "  ollama/small: asked by greet; fills in what is missing in post",
        "  ollama/large: asked by best",
        "limits of the run:",
        "  max_tool_call_retries: 1",
        "  max_steps: 20",
        "at most:",
        "  model calls: 28",
        "    (each sent up to 3 times when it fails)",
        "  tool calls, with retries: 9",
    ]


def test_what_has_no_bound_says_why(cli: Cli, write: Write) -> None:
    write("own.py", OWN)
    write(
        "open.yaml",
        "steps:\n"
        "  - {id: seen, tool: look, params: {}}\n"
        '  - {id: each, tool: look, params: {}, loop: "{{ seen }}"}\n'
        "  - {id: free, goal: Look around, tools: [look]}\n",
    )
    done = cli("explain", "open.yaml", "--extensions", "own.py")
    assert done.out.splitlines()[-4:] == [
        "at most:",
        "  model calls: 10",
        "    (each sent up to 3 times when it fails)",
        (
            "  tool calls, with retries: unbounded because the loop of 'each' goes over {{ seen }}"
            "; the model of 'free' may ask for any number of tools in one answer"
        ),
    ]


def test_json_says_the_same(cli: Cli, write: Write) -> None:
    write("own.py", OWN)
    write(
        "small.yaml",
        "inputs: {who: world}\n"
        "permissions: {allow_write: true}\n"
        "steps:\n"
        '  - {id: post, tool: send, params: {to: "{{ inputs.who }}"}}\n'
        '  - {id: each, set: {x: "{{ loop.item }}"}, loop: "{{ post }}"}\n'
        '  - {id: all, tool: look, params: {}, loop: "{{ post }}"}\n',
    )
    ten = {"at_most": 10, "unbounded_because": []}
    none = {"at_most": 0, "unbounded_because": []}
    reason = ["the loop of 'all' goes over {{ post }}"]
    unbounded = {"at_most": None, "unbounded_because": reason}
    assert cli("explain", "small.yaml", "--extensions", "own.py", "--json").json == {
        "recipe": "small",
        "description": "",
        "inputs": [
            {
                "name": "who",
                "type": "string",
                "required": False,
                "secret": False,
                "description": "",
                "default": "world",
            }
        ],
        "tools": [
            {"name": "send", "effect": "once", "writes": True, "steps": ["post"]},
            {"name": "look", "effect": "pure", "writes": False, "steps": ["all"]},
        ],
        "permissions": {"allow_write": True},
        "models": [{"name": None, "steps": [], "fills_in": ["post"]}],
        "limits": {},
        "attempts_per_model_call": 3,
        "model_calls": ten,
        "tool_calls": unbounded,
        "steps": [
            {
                "id": "post",
                "model_calls": ten,
                "tool_calls": {"at_most": 3, "unbounded_because": []},
            },
            {"id": "each", "model_calls": none, "tool_calls": none},
            {"id": "all", "model_calls": none, "tool_calls": unbounded},
        ],
    }


def test_a_part_of_an_output_may_be_missing_and_then_a_model_is_asked(
    cli: Cli, write: Write
) -> None:
    write("own.py", OWN)
    write(
        "part.yaml",
        "steps:\n"
        "  - {id: who, set: {name: Ada}}\n"
        '  - {id: part, tool: send, params: {to: "{{ who.name }}", text: hi}}\n'
        "  - {id: sure, tool: send, params: {to: \"{{ who.name | default('Bob') }}\", text: hi}}\n",
    )
    done = cli("explain", "part.yaml", "--extensions", "own.py", "--json")
    assert done.json["models"] == [{"name": None, "steps": [], "fills_in": ["part"]}]


def test_a_faulty_recipe_is_not_explained(cli: Cli, write: Write) -> None:
    write("bad.yaml", "steps:\n  - {id: c, sett: 1}\n")
    done = cli("explain", "bad.yaml")
    assert (done.code, done.out) == (2, "")
    assert done.err == cli("validate", "bad.yaml").err

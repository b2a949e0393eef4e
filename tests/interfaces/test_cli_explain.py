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
        "  tokens: unbounded because",
        "    ollama/small has no max_output_tokens and no known context",
        "    ollama/large has no max_output_tokens and no known context",
        "  cost: unknown because",
        "    the price of ollama/small is not known",
        "    the price of ollama/large is not known",
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
    assert done.out.splitlines()[-8:] == [
        "at most:",
        "  model calls: 10",
        "    (each sent up to 3 times when it fails)",
        (
            "  tool calls, with retries: unbounded because the loop of 'each' goes over {{ seen }}"
            "; the model of 'free' may ask for any number of tools in one answer"
        ),
        "  tokens: unbounded because",
        "    the configured model has no max_output_tokens and no known context",
        "  cost: unknown because",
        "    the price of the configured model is not known",
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
    unknown = "the configured model has no max_output_tokens and no known context"
    unpriced = "the price of the configured model is not known"
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
        "tokens": {"at_most": None, "unbounded_because": [unknown], "limit": None},
        "cost_usd": {"at_most": None, "unbounded_because": [unpriced, unknown], "limit": None},
        "calls_in_flight": 1,
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


# --- tokens and dollars -------------------------------------------------------------------------

PRICED = """
id: priced
model: {{name: openai/gpt-4.1-mini, max_output_tokens: 1000}}
retry: {{maxAttempts: 2}}
{more}
steps:
  - {{id: first, analyze: One?, input: 1}}
  - {{id: each, analyze: Two?, input: "{{{{ loop.item }}}}", loop: [1, 2]}}
"""
CALL = 1_001_000 * 2
"""Tokens of one call: the model's context and its longest answer, sent twice."""


def tail(text: str) -> list[str]:
    lines = text.splitlines()
    return lines[lines.index("at most:") + 3 :]


def test_where_answers_context_and_price_are_known_there_is_a_worst_case(
    cli: Cli, write: Write
) -> None:
    """30 calls at 1,000,000 tokens in ($0.40 a million) and 1,000 out ($1.60), each twice."""
    write("priced.yaml", PRICED.format(more=""))
    done = cli("explain", "priced.yaml")
    assert tail(done.out)[1:] == [f"  tokens: {30 * CALL}", "  cost: $24.10"]


def test_a_limit_bounds_the_run_with_what_is_in_flight_then(cli: Cli, write: Write) -> None:
    write("priced.yaml", PRICED.format(more="limits: {max_tokens: 5000, max_cost_usd: 0.5}"))
    done = cli("explain", "priced.yaml", "--json").json
    assert done["tokens"] == {"at_most": 5000 + CALL, "unbounded_because": [], "limit": 5000}
    assert done["cost_usd"] == {"at_most": 1.3032, "unbounded_because": [], "limit": 0.5}
    assert done["calls_in_flight"] == 1
    assert tail(cli("explain", "priced.yaml").out)[1:] == [
        f"  tokens: {5000 + CALL} (limit 5000)",
        "  cost: $1.30 (limit $0.50)",
    ]


def test_calls_that_run_together_are_in_flight_together(cli: Cli, write: Write) -> None:
    write(
        "wide.yaml",
        "model: local/some\n"
        "execution_mode: parallel\n"
        "max_parallel: 2\n"
        "limits: {max_tokens: 900}\n"
        "inputs: {xs: {type: array}}\n"
        "steps:\n"
        "  - {id: a, analyze: A?, input: 1}\n"
        "  - {id: b, analyze: B?, input: 1}\n"
        '  - {id: c, analyze: C?, input: 1, loop: "{{ inputs.xs }}", max_parallel: 4}\n',
    )
    done = cli("explain", "wide.yaml")
    assert tail(done.out)[-3:] == [
        "  tokens: 900, and what 5 calls under way then may use",
        "  cost: unknown because",
        "    the price of local/some is not known",
    ]


def test_an_own_price_counts_and_a_loop_of_unknown_length_has_no_bound(
    cli: Cli, write: Write
) -> None:
    write("minions.toml", PRICES)
    write(
        "open.yaml",
        "model: {name: local/some, max_output_tokens: 10}\n"
        'steps: [{id: c, analyze: C?, input: 1, loop: "{{ inputs.xs }}"}]\n'
        "inputs: {xs: {type: array}}\n",
    )
    done = cli("explain", "open.yaml")
    assert tail(done.out)[-3:] == [
        "    the loop of 'c' goes over {{ inputs.xs }}",
        "    local/some has no known context",
        "  cost: unbounded, as the tokens are",
    ]


PRICES = """
[prices."local/some"]
input_per_mtok = 1
output_per_mtok = 2
"""


def test_a_recipe_without_models_costs_nothing(cli: Cli, write: Write) -> None:
    write("plain.yaml", "steps: [{id: a, set: {n: 1}}]\n")
    done = cli("explain", "plain.yaml")
    assert done.out.splitlines()[-2:] == ["  tokens: 0", "  cost: $0"]

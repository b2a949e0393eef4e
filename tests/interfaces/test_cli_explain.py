"""`minions explain`: what a recipe needs, may do and costs at most."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from command_line import Cli, Write
from minions.data.json_values import JsonValue

OWN = """
from minions import tool

@tool(effect="once")
def send(to: str, text: str) -> list[str]:
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
  - id: post
    tool: send
    fill: [text]
    params: {to: "{{ inputs.to }}"}
    limits: {max_tool_call_retries: 0}
    optional: true
  - {id: log, tool: send, params: {to: "{{ inputs.to }}", text: "{{ seen | join }}"},
     loop: [1, 2, 3]}
  - {id: sure, assert: "inputs.tries > 0"}
"""


def besides_prompts(out: str) -> list[str]:
    """The lines, without those about prompts."""
    head, _, rest = out.partition("first prompts,")
    return [*head.splitlines(), *f"at most:{rest.partition('at most:')[2]}".splitlines()]


def test_a_bounded_recipe_is_told_whole(cli: Cli, write: Write) -> None:
    """4 x 2 for the loop, 10 for the analysis, 10 for the text that `post` leaves open."""
    write("own.py", OWN)
    write("letters.yaml", BOUNDED)
    done = cli("explain", "letters.yaml", "--extensions", "own.py")
    assert (done.code, done.err) == (0, "")
    assert besides_prompts(done.out) == [
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
        "  ollama/small: asked by greet; fills in text of post",
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
    assert done.out.splitlines()[-9:] == [
        "at most:",
        "  model calls: 10",
        "    (each sent up to 3 times when it fails)",
        "  tool calls, with retries: unbounded because the loop of 'each' goes over {{",
        "      seen }}",
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
        '  - {id: post, tool: send, fill: [text], params: {to: "{{ inputs.who }}"}}\n'
        '  - {id: each, set: {x: "{{ loop.item }}"}, loop: "{{ post }}"}\n'
        '  - {id: all, tool: look, params: {}, loop: "{{ post }}"}\n',
    )
    ten = {"at_most": 10, "unbounded_because": []}
    none = {"at_most": 0, "unbounded_because": []}
    once = {"at_most": 1, "unbounded_because": []}
    reason = ["the loop of 'all' goes over {{ post }}"]
    unbounded = {"at_most": None, "unbounded_because": reason}
    unknown = "the configured model has no max_output_tokens and no known context"
    unpriced = "the price of the configured model is not known"
    assert cli("explain", "small.yaml", "--extensions", "own.py", "--json").json == {
        "recipe": "small",
        "name": "",
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
            {
                "name": "send",
                "effect": "once",
                "writes": True,
                "steps": ["post"],
                "denied_in": [],
                "needs_approval_in": [],
            },
            {
                "name": "look",
                "effect": "pure",
                "writes": False,
                "steps": ["all"],
                "denied_in": [],
                "needs_approval_in": [],
            },
        ],
        "permissions": {"allow_write": True, "allowed": [], "refused": [], "needs_approval": []},
        "recipes": [],
        "registered_steps": [],
        "untrusted_flows": [],
        "endorsed": [],
        "code": [],
        "caller_tools": [],
        "models": [{"name": None, "steps": [], "fills_in": {"post": ["text"]}}],
        "questions": [],
        "limits": {},
        "attempts_per_model_call": 3,
        "model_calls": ten,
        "tool_calls": unbounded,
        "tokens": {"at_most": None, "unbounded_because": [unknown], "limit": None},
        "cost_usd": {"at_most": None, "unbounded_because": [unpriced, unknown], "limit": None},
        "prompts": [],
        "prompt_starts": [],
        "caches": [],
        "calls_in_flight": 1,
        "steps": [
            {
                "id": "post",
                "model_calls": ten,
                "tool_calls": {"at_most": 3, "unbounded_because": []},
                "visits": 1,
                "turns": once,
            },
            {
                "id": "each",
                "model_calls": none,
                "tool_calls": none,
                "visits": 1,
                "turns": {
                    "at_most": None,
                    "unbounded_because": ["the loop of 'each' goes over {{ post }}"],
                },
            },
            {
                "id": "all",
                "model_calls": none,
                "tool_calls": unbounded,
                "visits": 1,
                "turns": unbounded,
            },
        ],
    }


def test_a_part_of_an_output_that_may_be_missing_is_made_by_a_model_in_the_older_format_alone(
    cli: Cli, write: Write
) -> None:
    """A-155."""
    write("own.py", OWN)
    part = (
        "permissions: {allow_write: true}\n"
        "steps:\n"
        "  - {id: who, set: {name: Ada}}\n"
        '  - {id: part, tool: send, params: {to: "{{ who.name }}", text: hi}}\n'
        "  - {id: sure, tool: send, params: {to: \"{{ who.name | default('Bob') }}\", text: hi}}\n"
    )
    write("part.yaml", part)
    done = cli("explain", "part.yaml", "--extensions", "own.py", "--json")
    assert done.json["models"] == []
    write("older.yaml", part.replace("params:", "params_template:"))
    done = cli("explain", "older.yaml", "--extensions", "own.py", "--json")
    assert done.json["models"] == [{"name": None, "steps": [], "fills_in": {"part": []}}]


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
    assert tail(done.out)[1:] == [
        f"  tokens: {30 * CALL}",
        "  cost: $24.10",
        "  in batches (--by, --patience), where nothing is late: $12.05",
    ]


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
        "model: lab/some\n"
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
        "    the price of lab/some is not known",
    ]


def test_an_own_price_counts_and_a_loop_of_unknown_length_has_no_bound(
    cli: Cli, write: Write
) -> None:
    write("minions.toml", PRICES)
    write(
        "open.yaml",
        "model: {name: lab/some, max_output_tokens: 10}\n"
        'steps: [{id: c, analyze: C?, input: 1, loop: "{{ inputs.xs }}"}]\n'
        "inputs: {xs: {type: array}}\n",
    )
    done = cli("explain", "open.yaml")
    assert tail(done.out)[-3:] == [
        "    the loop of 'c' goes over {{ inputs.xs }}",
        "    lab/some has no known context",
        "  cost: unbounded, as the tokens are",
    ]


PRICES = """
[prices."lab/some"]
input_per_mtok = 1
output_per_mtok = 2
"""


def test_a_recipe_without_models_costs_nothing(cli: Cli, write: Write) -> None:
    write("plain.yaml", "steps: [{id: a, set: {n: 1}}]\n")
    done = cli("explain", "plain.yaml")
    assert done.out.splitlines()[-2:] == ["  tokens: 0", "  cost: $0"]


# --- recipes in recipes, repetition, persons ------------------------------------------------------

STEPS = """
from attrs import frozen
from minions import DefaultStep, PythonStep

@frozen(kw_only=True)
class Shift(PythonStep[int]):
    id: str

    async def run(self, scope):
        raise SystemExit("called")

@frozen(kw_only=True)
class Writer(DefaultStep):
    pass
"""
INNER = """
id: inner
model: lab/large
permissions: {allow_write: true, allow_look: false}
retry: {max_attempts: 5}
steps:
  - {id: two, analyze: Two?, input: 1, loop: [1, 2], limits: {max_model_calls_per_step: 3}}
  - {id: seen, tool: look}
  - {id: fine, ask: "Is that  fine?", form: {type: boolean}, timeout: 10m, default: true}
"""
MIDDLE = """
id: middle
permissions: {allow_write: true}
steps:
  - {id: deep, recipe: inner, loop: [a, b]}
  - {id: post, tool: send, params: {to: x, text: y}}
"""
OUTER = """
id: outer
permissions: {allow_send: true, requires_approval: [send]}
steps:
  - {id: call, recipe: middle, while: "loop.index < 9", max_iterations: 3}
  - {id: draft, goal: Write., limits: {max_model_calls_per_step: 2}}
  - {id: check, assert: draft, on_error: {goto: draft, max: 2}}
  - {id: whom, ask: To whom?}
"""


def test_what_is_in_a_recipe_counts_as_often_as_that_is_run(cli: Cli, write: Write) -> None:
    """3 attempts x 2 items x (2 items x 3 calls) = 36, and 3 x 2 of `draft`, which runs thrice.
    Tools: 3 x (2 x 3 + 3)."""
    write("own.py", OWN)
    write("inner.yaml", INNER)
    write("middle.yaml", MIDDLE)
    write("outer.yaml", OUTER)
    done = cli("explain", "outer.yaml", "--extensions", "own.py")
    assert (done.code, done.err) == (0, "")
    assert besides_prompts(done.out) == [
        "outer",
        "inputs: none",
        "tools:",
        "  send (once, writes), used by call/post",
        "  look (pure), used by call/deep/seen",
        "permissions: may not write",
        "recipes:",
        "  call: middle; may not write, except send; needs approval: send",
        "  call/deep: inner; may not write; refused: look",
        "models:",
        "  the configured one: asked by draft",
        "  lab/large: asked by call/deep/two",
        "questions to a person:",
        "  whom: To whom?; waits as long as it takes",
        ('  call/deep/fine: Is that fine?; an answer that fits {"type":"boolean"}; waits'),
        "      10 min 0 s, then true",
        "limits of the run: none",
        "at most:",
        "  model calls: 42",
        "    (each sent up to 5 times when it fails)",
        "  tool calls, with retries: 27",
        "  tokens: unbounded because",
        "    lab/large has no max_output_tokens and no known context",
        "    the configured model has no max_output_tokens and no known context",
        "  cost: unknown because",
        "    the price of lab/large is not known",
        "    the price of the configured model is not known",
    ]


def bounds(cli: Cli, *flags: str) -> list[tuple[str, object, object]]:
    """Of each step: visits and model calls."""
    steps = cast(
        "list[dict[str, JsonValue]]", cli("explain", "r.yaml", "--json", *flags).json["steps"]
    )
    return [
        (str(step["id"]), step["visits"], cast("dict[str, object]", step["model_calls"])["at_most"])
        for step in steps
    ]


def test_failures_that_lead_back_add_up_where_they_overlap(cli: Cli, write: Write) -> None:
    """`b` and `c` run again whenever `c` or `d` fails; `e` begins only when both have passed."""
    write(
        "r.yaml",
        "limits: {max_model_calls_per_step: 1}\n"
        "steps:\n"
        "  - {id: a, goal: A}\n"
        '  - {id: b, goal: "B {{ a }}"}\n'
        '  - {id: c, goal: "C {{ b }}", on_error: {goto: b, max: 2}}\n'
        '  - {id: d, goal: "D {{ c }}", on_error: {goto: a, max: 3}}\n'
        '  - {id: e, goal: "E {{ d }}", on_error: {goto: e, max: 1}}\n'
        '  - {id: beside, goal: "F {{ a }}"}\n',
    )
    assert bounds(cli) == [
        ("a", 4, 4),
        ("b", 6, 6),
        ("c", 6, 6),
        ("d", 4, 4),
        ("e", 2, 2),
        ("beside", 4, 4),
    ]


def test_in_a_graph_a_failure_repeats_the_way_to_it(cli: Cli, write: Write) -> None:
    steps = (
        "steps:\n"
        "  - {id: a, goal: A}\n"
        "  - {id: b, goal: B, on_error: {goto: a, max: 2}}\n"
        "  - {id: c, goal: C}\n"
    )
    write("r.yaml", f"graph: {{a: b, b: c}}\nlimits: {{max_model_calls_per_step: 1}}\n{steps}")
    assert bounds(cli) == [("a", 3, 3), ("b", 3, 3), ("c", 1, 1)]


REVIEWER = (
    "id: limits\ninputs: {arguments: {type: object, untrusted: true}}\nlimits: {max_tokens: 300}\n"
    "steps:\n  - {id: look, goal: 'Fine? {{ inputs.arguments }}', "
    "output: {verdict: [reject, pass]}}\noutput: '{{ look }}'\n"
)


def test_recipes_that_review_calls_count_as_often_as_calls_may_be_made(
    cli: Cli, write: Write
) -> None:
    """A-169: a review has 5 model calls where its recipe says nothing else; each call has one."""
    write("own.py", OWN)
    write("limits.yaml", REVIEWER)
    head = (
        "id: r\npermissions:\n  allow_write: true\n"
        "  requires_approval: [{tool: send, reviewer: limits.yaml}]\n"
    )
    call = "tool: send, params: {to: a, text: b}"
    offered = "goal: Go, tools: [send], limits: {max_tool_calls_per_step: 3}"
    for steps, calls in (
        (f"  - {{id: one, {call}}}\n", 5),
        (f"  - {{id: each, {call}, loop: [1, 2, 3]}}\n", 15),
        (f"  - {{id: go, {offered}}}\n", 10 + 3 * 5),
        ("  - {id: look, tool: look, params: {}}\n", 0),
    ):
        write("r.yaml", f"{head}steps:\n{steps}  - {{id: last, {call}, when: 'false'}}\n")
        found = cast("Any", cli("explain", "r.yaml", "--extensions", "own.py", "--json").json)
        assert found["model_calls"]["at_most"] == calls + 5
    nested = f"{head}steps:\n  - {{id: deep, recipe: inner.yaml}}\n"
    write(
        "inner.yaml",
        f"id: inner\npermissions: {{allow_write: true}}\nsteps:\n  - {{id: one, {call}}}\n",
    )
    write("r.yaml", nested)
    found = cast("Any", cli("explain", "r.yaml", "--extensions", "own.py", "--json").json)
    assert found["model_calls"] == {"at_most": 5, "unbounded_because": []}
    assert found["models"] == [{"name": None, "steps": ["deep/one/look"], "fills_in": {}}]


def test_a_limit_on_steps_bounds_the_run(cli: Cli, write: Write) -> None:
    """Of two steps the dearest come: 10 calls and 4 of one item."""
    write(
        "r.yaml",
        "limits: {max_steps: 2}\n"
        "steps:\n"
        "  - {id: a, goal: A, limits: {max_model_calls_per_step: 3}}\n"
        "  - {id: b, goal: B}\n"
        "  - {id: c, goal: C, loop: [1, 2], limits: {max_model_calls_per_step: 2}}\n",
    )
    assert cli("explain", "r.yaml", "--json").json["model_calls"] == {
        "at_most": 14,
        "unbounded_because": [],
    }


def test_a_limit_on_model_calls_bounds_the_run_and_an_answer_at_the_limit_is_one_more(
    cli: Cli, write: Write
) -> None:
    text = "limits: {max_model_calls: 7}\nsteps:\n  - {id: a, goal: Go.}\n"
    known: list[object] = []
    for goal in ("goal: Go.", "goal: Go., at_limit: answer"):
        write("r.yaml", text.replace("goal: Go.", goal))
        bound = cli("explain", "r.yaml", "--json").json["model_calls"]
        known.append(cast("Mapping[str, object]", bound)["at_most"])
    assert known == [7, 11]


def test_a_recipe_with_a_limit_of_its_own_is_bounded_by_it(cli: Cli, write: Write) -> None:
    """Each of two runs: 100 tokens, and what the one call under way may use."""
    write("minions.toml", PRICES)
    write(
        "inner.yaml",
        "model: {name: openai/gpt-4.1-mini, max_output_tokens: 1000}\n"
        "limits: {max_tokens: 100}\n"
        "retry: {max_attempts: 2}\n"
        'steps: [{id: q, analyze: Q?, input: 1, loop: "{{ inputs.xs }}"}]\n'
        "inputs: {xs: {type: array}}\n",
    )
    write(
        "r.yaml",
        "steps: [{id: call, recipe: inner, with: {xs: [1]}, loop: [1, 2]}]\n",
    )
    done = cli("explain", "r.yaml", "--json").json
    assert done["tokens"] == {
        "at_most": 2 * (100 + CALL),
        "unbounded_because": [],
        "limit": None,
    }


def test_registered_classes_and_code_are_told(cli: Cli, write: Write) -> None:
    write("own.py", STEPS)
    write(
        "r.yaml",
        "steps:\n"
        "  - {id: moved, uses: Shift}\n"
        "  - {id: text, uses: Writer}\n"
        "  - {id: sum, code: x + 1, with: {x: 1}}\n",
    )
    done = cli("explain", "r.yaml", "--extensions", "own.py")
    assert done.out.splitlines()[3:] == [
        "permissions: may not write",
        "registered steps:",
        "  Shift (its code decides what it calls), used by moved",
        "  Writer (asks a model), used by text",
        "code (runs in a sandbox):",
        "  sum",
        "models:",
        "  the configured one: asked by moved, text",
        "limits of the run: none",
        "at most:",
        "  model calls: unbounded because the code of 'moved' decides",
        "    (each sent up to 3 times when it fails)",
        "  tool calls, with retries: unbounded because the code of 'moved' decides",
        "  tokens: unbounded because",
        "    the code of 'moved' decides",
        "    the configured model has no max_output_tokens and no known context",
        "  cost: unknown because",
        "    the price of the configured model is not known",
    ]


def test_steps_that_offer_the_caller_s_tools_are_told(cli: Cli, write: Write) -> None:
    write("r.yaml", "id: r\nsteps:\n  - {id: help, goal: Help., tools: {caller: true}}\n")
    done = cli("explain", "r.yaml")
    assert "tool calls, with retries: 0" not in done.out
    assert done.out.splitlines()[1:5] == [
        "inputs: none",
        "tools: none",
        "tools of the caller (may be called in):",
        "  help",
    ]
    assert cli("explain", "r.yaml", "--json").json["caller_tools"] == ["help"]


def test_the_tokens_of_each_prompt_are_told_by_section_with_the_reason(
    cli: Cli, write: Write
) -> None:
    """A-110: what only a run knows counts nothing."""
    write(
        "p.yaml",
        "id: p\nsystem_prompt: Be short.\ninputs: {x: {type: string}}\nsteps:\n"
        "  - {id: a, goal: 'Look at {{ inputs.x }}', output: {n: integer}}\n"
        "  - {id: b, goal: Use it, depends_on: [a]}\n",
    )
    shown = cli("explain", "p.yaml")
    assert (shown.code, shown.err) == (0, "")
    lines = shown.out.splitlines()
    at = lines.index("first prompts, without what only a run knows:")
    assert lines[at + 1].startswith("  a: ")
    assert "step_outputs" in lines[at + 2]
    assert "(system: system texts of the recipe" in lines[at + 3]
    as_json = cli("explain", "p.yaml", "--json").json["prompts"]
    for prompt in cast("list[dict[str, Any]]", as_json):  # Any: JSON that was read
        assert sum(each["tokens"] for each in prompt["sections"]) == prompt["tokens"]
        assert all(each["reason"] for each in prompt["sections"])


OPENING = """
id: build
permissions: {allow_write: true}
tools:
  - files: {allow_config: [Makefile, .vscode], allow_secrets: [.env.test], as: work}
  - shell: {allow_config: [Makefile]}
steps:
  - {id: write, tool: work__write, params: {path: Makefile, text: x}}
  - {id: more, plan: Do it, allow_config: [setup.py]}
"""


def test_what_a_recipe_opens_by_name_is_one_of_its_rights(cli: Cli, write: Write) -> None:
    write("build.yaml", OPENING)
    said = " ".join(cli("explain", "build.yaml").out.split())
    assert (
        "permissions: may write; may write what configures tools: work: Makefile, work: .vscode, "
        "shell: Makefile, more: setup.py; may use secrets: work: .env.test"
    ) in said
    rights = cast("Any", cli("explain", "build.yaml", "--json").json)["permissions"]
    assert rights["opens_config"] == [
        "work: Makefile",
        "work: .vscode",
        "shell: Makefile",
        "more: setup.py",
    ]
    assert rights["opens_secrets"] == ["work: .env.test"]


def test_what_the_operator_says_of_strangers_words_is_told(
    cli: Cli, write: Write, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A-167: only what is about a tool of the recipe, by whatever name it opens it."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "minions").mkdir()
    (tmp_path / "minions" / "minions.toml").write_text(
        "untrusted = 'refuse'\n[policies]\n"
        "http__post = \"args.json.to == 'ann'\"\nhttp__delete = 'false'\n",
        "utf-8",
    )
    write(
        "post.yaml",
        "inputs: {mail: {type: string, untrusted: true}}\n"
        "tools: [{http: {allow: [h.example], as: web}}]\n"
        "permissions: {allow_write: true, untrusted: allow}\n"
        "steps:\n"
        "  - id: post\n"
        "    tool: web__post\n"
        '    params: {url: "https://h.example/", json: {text: "{{ inputs.mail }}"}}\n',
    )
    told = cli("explain", "post.yaml")
    said = " ".join(told.out.split())
    assert told.err == ""
    assert (
        "operator: calls with strangers' words in them: refuse; made without asking, if the recipe "
        "agrees: web__post when args.json.to == 'ann' untrusted text: reaches web__post, where "
        "each such call is refused"
    ) in said
    found = cast("Any", cli("explain", "post.yaml", "--json").json)
    assert found["operator"] == {
        "untrusted": "refuse",
        "policies": ["web__post when args.json.to == 'ann'"],
    }


def test_no_value_of_a_run_decides_what_is_opened(cli: Cli, write: Write) -> None:
    for toolset, option in (
        ("files", "allow_config"),
        ("files", "allow_secrets"),
        ("shell", "allow_config"),
        ("git", "allow_secrets"),
        ("documents", "allow_secrets"),
    ):
        for value in ("[Makefile, '{{ inputs.x }}']", "'{{ inputs.x }}'"):
            recipe = OPENING.partition("tools:")[0] + (
                f"inputs: {{x: {{type: string, default: a}}}}\n"
                f"tools: [{{{toolset}: {{{option}: {value}}}}}]\n"
                "steps: [{id: a, set: {n: 1}}]\n"
            )
            write("open.yaml", recipe)
            done = cli("validate", "open.yaml")
            assert (done.code, f"'{option}' says what is opened" in done.err) == (2, True), recipe


def test_tools_of_the_step_for_surprises_are_listed_apart(cli: Cli, write: Write) -> None:
    write(
        "open.yaml",
        "id: open\non_surprise: agent\nsteps:\n  - {id: now, tool: getCurrentDateTime}\n"
        "  - {id: agent, goal: Help., tools: [getCurrentDateTime, listStateKeys]}\n",
    )
    out = cli("explain", "open.yaml").out
    assert "getCurrentDateTime (pure), used by now; after a surprise by agent" in out
    assert "listStateKeys (pure), after a surprise by agent" in out

"""`minions test`: a recipe's own tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TypeAlias, cast
from xml.etree import ElementTree

import pytest

from builders import deterministic_services
from command_line import Cli, Write
from minions.adapters.models.scripted import ScriptedModel
from minions.app.evaluating.recipe_tests import run_test
from minions.app.wiring.configured_runtime import Runtime
from minions.contracts.calls import ChatModel
from minions.data.json_values import JsonValue
from minions.engine.compile.extensions import Extensions
from minions.recipe.kinds.goal_kind import GoalSpec
from minions.recipe.model import AgentRecipe, RecipeTest
from minions.recipe.model_config import ModelConfig

Told: TypeAlias = dict[str, dict[str, list[dict[str, JsonValue]]]]

TOOLS = """
from minions import tool

@tool(effect="once")
def send(to: str) -> str:
    '''Never called here.'''
    raise SystemExit("called")

@tool(effect="pure")
def look() -> str:
    '''Really called.'''
    return "seen"
"""
RECIPE = """
id: party
permissions: {allow_write: true, requires_approval: [send]}
inputs: {n: 1}
steps:
  - {id: q, goal: "How many are {{ inputs.n }}?", output: {count: integer}}
  - {id: see, tool: look}
  - {id: mail, tool: send, params: {to: "{{ q.count }} people"}}
  - {id: who, ask: "Who?"}
output: {count: "{{ q.count }}", mail: "{{ mail }}", who: "{{ who }}"}
tests:
"""
GOOD = """
  - name: counts
    inputs: {n: 3}
    answers: [{json: {count: 3}}]
    tools: {send: sent}
    decisions: {mail: approve, who: "answer:Ada"}
    expect:
      output: {count: 3, mail: sent, who: Ada}
      holds: ["q.count == inputs.n", "steps.see.output == 'seen'", "output.who != 'Bob'"]
  - name: consent
    answers: [{json: {count: 3}}]
    tools: {send: sent}
    decisions: {mail: reject}
    expect: {status: failed, error: approval-denied}
  - name: nobody consents
    answers: [{json: {count: 3}}]
    tools: {send: sent}
    expect: {status: needs_decision}
  - name: nobody answers
    answers: [{json: {count: 3}}]
    tools: {send: sent}
    decisions: {mail: approve}
    expect: {status: needs_decision}
"""


@pytest.fixture(autouse=True)
def _tools(write: Write) -> None:
    write("own.py", TOOLS)


def test_tests_run_with_scripted_answers_and_faked_tools(
    cli: Cli, write: Write, here: Path
) -> None:
    write("party.yaml", RECIPE + GOOD)
    done = cli("test", "party.yaml", "--extensions", "own.py")
    assert (done.code, done.out) == (0, "4 of 4 passed\n"), done.err
    assert [line.partition(" (")[0] for line in done.err.splitlines()] == [
        "✓ party.yaml: counts",
        "✓ party.yaml: consent",
        "✓ party.yaml: nobody consents",
        "✓ party.yaml: nobody answers",
    ]
    one = cli("test", "party.yaml", "--extensions", "own.py", "-k", "consent", "--json")
    told = cast("Told", one.json)["recipes"]["party.yaml"][0]
    assert (told["name"], told["passed"], told["faults"]) == ("consent", True, [])


def test_a_test_that_fails_is_annotated_in_a_workflow(
    cli: Cli, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = """
  - name: "20, or more"
    tools: {send: sent}
    answers: [{json: {count: 3}}]
    expect: {output: 4}
"""
    write("party.yaml", RECIPE + bad)
    tested = ("test", "party.yaml", "--extensions", "own.py")
    assert "::" not in cli(*tested).out
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    count, line = cli(*tested).out.splitlines()
    assert count == "0 of 1 passed"
    begin = "::error file=party.yaml,line=13,title=test-failed::test '20, or more' of "
    assert line.startswith(begin)
    told = cli(*tested, "--json")
    assert cast("Told", told.json)["recipes"]["party.yaml"][0]["passed"] is False
    assert begin in told.err
    assert "::" not in cli(*tested, "--no-annotations").out


def test_outcomes_are_written_as_junit(cli: Cli, write: Write, here: Path) -> None:
    """A CI server shows them: a suite for each recipe, a case for each test."""
    bad = """
  - name: "wrong \\u0085 <one> \\uFFFF"
    tools: {send: sent}
    answers: [{json: {count: 3}}]
    expect: {output: 4}
"""
    write("party.yaml", RECIPE + GOOD + bad)
    done = cli("test", "party.yaml", "--extensions", "own.py", "--junit", "report.xml")
    assert done.code == 1, done.err
    (suite,) = ElementTree.parse(here / "report.xml").getroot()
    assert suite.attrib.items() >= {"name": "party.yaml", "tests": "5", "failures": "1"}.items()
    cases = {case.attrib["name"]: case.find("failure") for case in suite}
    failure = cases.pop("wrong \u0085 <one> \ufffd")
    assert failure is not None
    assert "--> party.yaml:" in (failure.text or "")
    assert list(cases.values()) == [None] * 4
    refused = cli("test", "party.yaml", "--extensions", "own.py", "--junit", "none/report.xml")
    assert (refused.code, "cannot be written" in refused.err) == (4, True)


def test_what_is_not_as_expected_is_told(cli: Cli, write: Write, here: Path) -> None:
    wrong = """
  - name: wrong
    answers: [{json: {count: 3}}]
    tools: {send: sent}
    decisions: {mail: approve, who: "answer:Ada"}
    expect: {output: {count: 4}, holds: ["q.count == 4", "q.size == 1"]}
  - name: not faked
    answers: [{json: {count: 3}}]
    decisions: {mail: approve}
  - name: too few answers
    tools: {send: sent}
"""
    write("party.yaml", RECIPE + wrong)
    done = cli("test", "party.yaml", "--extensions", "own.py")
    assert (done.code, done.out) == (1, "0 of 3 passed\n")
    assert 'the output is {"count":3,"mail":"sent","who":"Ada"}, not {"count":4}' in done.err
    assert "'q.count == 4' does not hold" in done.err
    assert "q.size" in done.err
    assert "the run is failed, not completed (not-faked: " in done.err
    assert "--> party.yaml:13:5" in done.err


def test_tests_are_checked_with_the_recipe(cli: Cli, write: Write, here: Path) -> None:
    wrong = """
  - name: wrong
    inputs: {m: 3}
    tools: {sned: sent}
    decisions: {mial: approve}
    expect: {stauts: failed, holds: "q.count =="}
"""
    write("party.yaml", RECIPE + wrong)
    done = cli("validate", "party.yaml", "--extensions", "own.py")
    assert done.code == 2
    for words in (
        "unknown input 'm' in a test",
        "unknown tool 'sned' in a test",
        "unknown step 'mial' in a test",
        "unknown key 'stauts' in expect",
        "error[bad-template]",
    ):
        assert words in done.err


def test_a_recipe_without_tests_is_a_usage_error(cli: Cli, write: Write, here: Path) -> None:
    write("bare.yaml", "steps: [{id: a, set: {x: 1}}]")
    done = cli("test", "bare.yaml")
    assert done.code == 2
    assert "error[no-tests]: No tests in bare.yaml. Write them under `tests:`." in done.err


def test_a_test_asks_no_real_model(cli: Cli, write: Write, here: Path) -> None:
    write("party.yaml", RECIPE + "  - {name: dear, model: openai/gpt-4o}\n")
    done = cli("test", "party.yaml", "--extensions", "own.py")
    assert done.code == 2
    assert "error[real-model]: a test calls no real model, but this is 'openai/gpt-4o'" in done.err


async def test_the_runner_asks_no_real_model_of_a_recipe_made_by_code() -> None:
    asked: list[ModelConfig] = []

    def source(config: ModelConfig) -> ChatModel:
        asked.append(config)
        return ScriptedModel(["Hello."])

    test = RecipeTest(name="dear", model="openai/gpt-4o")
    recipe = AgentRecipe(id="r", steps=[GoalSpec(id="a", goal="Say hello.")], tests=(test,))
    runtime = Runtime(
        models=lambda _recipe, _choice: source,
        extensions=Extensions(),
        services=deterministic_services(),
    )
    tested = await run_test(recipe, test, runtime)
    (fault,) = tested.faults
    assert fault == (
        "real-model: The test 'dear' must not call a real model, but names 'openai/gpt-4o'. Name "
        "scripted/FILE.yaml, replay/FILE or a registered model, or write `answers`."
    )
    assert asked == []


def test_answers_that_nobody_asked_for_are_told(cli: Cli, write: Write, here: Path) -> None:
    write(
        "one.yaml",
        """
steps: [{id: a, goal: Say hello.}]
tests:
  - {name: one too many, answers: [Hello., Again.]}
  - {name: two too many, answers: [Hello., Again., And again.]}
  - {name: just right, answers: [Hello.]}
""",
    )
    done = cli("test", "one.yaml")
    assert (done.code, done.out) == (1, "1 of 3 passed\n")
    assert "    1 answer was not used" in done.err.splitlines()
    assert "    2 answers were not used" in done.err.splitlines()


NESTED = """
id: inner
permissions: {allow_write: true, requires_approval: [send]}
steps:
  - {id: q, ask: "Who?"}
  - {id: mail, tool: send, params: {to: "{{ q }}"}}
"""
OUTER = """
id: outer
permissions: {allow_write: true}
steps:
  - {id: g, recipe: inner.yaml}
  - {id: s, set: {x: 1}}
tests:
"""


def test_decisions_reach_the_steps_of_a_nested_recipe(cli: Cli, write: Write, here: Path) -> None:
    write("inner.yaml", NESTED)
    write(
        "outer.yaml",
        OUTER
        + """
  - {name: each, tools: {send: sent}, decisions: {g/q: "answer:Ada", g/mail: approve}}
  - {name: all, tools: {send: sent}, decisions: {g/q: "answer:Ada", g: approve}}
  - name: none
    tools: {send: sent}
    decisions: {g/q: "answer:Ada", g: approve, g/mail: reject}
    expect: {status: failed, error: approval-denied}
  - {name: waits, expect: {status: needs_decision}}
""",
    )
    done = cli("test", "outer.yaml", "--extensions", "own.py")
    assert (done.code, done.out) == (0, "4 of 4 passed\n"), done.err


def test_decisions_are_checked_with_the_steps_they_are_about(
    cli: Cli, write: Write, here: Path
) -> None:
    write("inner.yaml", NESTED)
    write(
        "outer.yaml",
        OUTER
        + """
  - name: wrong
    decisions:
      g/qq: "answer:Ada"
      s/q: "answer:Ada"
      g/q: approve
      g/mail: "answer:yes"
      s: approve
      g: "answer:yes"
      g/q/x: approve
  - {name: words, decisions: {g: aprove, g/q: Ada}}
""",
    )
    done = cli("validate", "outer.yaml", "--extensions", "own.py")
    told = [line for line in done.err.splitlines() if line.startswith("error")]
    assert told == [
        "error[unknown-step]: unknown step 'g/qq' in a test",
        "error[unknown-step]: unknown step 's/q' in a test",
        "error[bad-decision]: step 'g/q' asks a question; 'approve' is not an answer",
        "error[bad-decision]: step 'g/mail' asks no question",
        "error[bad-decision]: step 's' calls no tool that needs approval",
        "error[bad-decision]: step 'g' asks no question",
        "error[unknown-step]: unknown step 'g/q/x' in a test",
        "error[bad-decision]: 'aprove' is not a decision",
        "error[bad-decision]: 'Ada' is not a decision",
    ]
    assert "did you mean 'g/q'?" in done.err


PROMPTS = """
id: prompts
system_prompt: Be short.
steps:
  - {id: a, set: {x: "A SECRET", more: "of it"}}
  - {id: b, goal: Use it, depends_on: [a]}
tests:
  - name: fits
    answers: [ok]
    expect:
      prompt_tokens_max: 100
      prompt_contains: {b: ["Be short.", '"more":"of it"']}
      prompt_excludes: {b: PRIVATE}
  - name: breaks
    answers: [ok]
    expect:
      prompt_tokens_max: {b: 20}
      prompt_contains: {b: PRIVATE, a: x}
      prompt_excludes: {b: [A SECRET, "Be short."]}
"""


def test_a_test_of_a_recipe_bounds_its_prompts_and_names_the_section_that_broke_it(
    cli: Cli, write: Write
) -> None:
    """A-110."""
    write("prompts.yaml", PROMPTS)
    done = cli("test", "prompts.yaml", "--json")
    assert done.code == 1
    fits, breaks = cast("Told", done.json)["recipes"]["prompts.yaml"]
    assert fits["passed"]
    faults = cast("list[str]", breaks["faults"])
    assert faults[0].startswith("a prompt of 'b' has ")
    assert "tokens: step_outputs" in faults[0]
    assert faults[0].endswith("; at most 20 are expected")
    assert faults[1:] == [
        "no section of the prompt of 'b' (system, goal, step_outputs) holds 'PRIVATE'",
        "step 'a' sent no prompt",
        "the section step_outputs of a prompt of 'b' holds 'A SECRET'",
        "the section system of a prompt of 'b' holds 'Be short.'",
    ]


def test_a_test_that_bounds_the_prompt_of_no_step_is_refused(cli: Cli, write: Write) -> None:
    write(
        "prompts.yaml", PROMPTS.replace("prompt_excludes: {b: PRIVATE}", "prompt_excludes: {z: x}")
    )
    done = cli("validate", "prompts.yaml")
    assert done.code != 0
    assert "unknown step 'z' in a test" in done.out + done.err


def test_two_tests_that_name_one_script_both_start_at_its_beginning(
    cli: Cli, write: Write, here: Path
) -> None:
    write("says.yaml", "answers: [Hello]\n")
    write(
        "talk.yaml",
        "id: talk\nsteps: [{id: a, goal: Greet}]\ntests:\n"
        "  - {name: one, model: scripted/says.yaml, expect: {output: Hello}}\n"
        "  - {name: two, model: scripted/says.yaml, expect: {output: Hello}}\n",
    )
    done = cli("test", "talk.yaml")
    assert done.code == 0, done.err


def test_fields_of_the_output_are_compared_and_others_do_no_harm(cli: Cli, write: Write) -> None:
    write(
        "fields.yaml",
        "id: fields\nsteps:\n"
        "  - {id: q, set: {kind: bug, parts: [{name: a}, {name: b}], left: null}}\n"
        "tests:\n"
        "  - {name: right, expect: {fields: {kind: bug, parts.1.name: b, left: null}}}\n"
        "  - {name: wrong, expect: {fields: {kind: task, parts.2.name: c}}}\n",
    )
    done = cli("test", "fields.yaml")
    assert (done.code, done.out) == (1, "1 of 2 passed\n")
    assert '\'kind\' of the output is "bug", not "task"' in done.err
    assert "the output has no 'parts.2.name'" in done.err


# --- `--crash` -----------------------------------------------------------------------------------

CRASHED = """
id: shop
permissions: {allow_write: true}
steps:
  - {id: seen, tool: look}
  - {id: mail, tool: send, params: {to: "{{ seen }}"}}
"""


def test_what_a_crash_can_do_is_told_with_its_story_which_replays(
    cli: Cli, write: Write, here: Path
) -> None:
    """A-183."""
    write("shop.yaml", CRASHED)
    own = ("--extensions", "own.py")
    done = cli("test", "shop.yaml", *own, "--crash", "100", "--write-stories", "found")
    assert done.code == 1, done.err
    assert done.out.startswith("shop.yaml: 100 stories (seed 0), 2 findings\n")
    assert "effect-in-doubt: step 'mail', tool 'send'\n" in done.out
    path = here / "found" / "shop-effect-doubled-mail-send.crash.json"
    assert f"story: {path.relative_to(here)}" in done.err
    replayed = cli("test", "shop.yaml", *own, "--crash-story", str(path), "--json")
    assert replayed.code == 1
    (told,) = cast("dict[str, dict[str, list[JsonValue]]]", replayed.json["recipes"])["shop.yaml"][
        "findings"
    ][:1]
    written = json.loads(path.read_text("utf-8"))
    assert isinstance(told, dict)
    assert {**told, "recipe": "shop", "test": None, "real_tools": False} == written


def test_a_report_is_the_same_in_each_process(write: Write, here: Path) -> None:
    """Byte for byte, whatever seeds the hashes of the process."""
    write("shop.yaml", CRASHED)
    command = [sys.executable, "-m", "minions", "test", "shop.yaml", "--crash", "40", "--json"]
    told = {
        subprocess.run(
            [*command, "--extensions", "own.py"],
            capture_output=True,
            check=False,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    }
    assert len(told) == 1
    assert b"effect-in-doubt" in told.pop()


def test_a_file_that_holds_no_story_is_refused(cli: Cli, write: Write) -> None:
    write("shop.yaml", CRASHED)
    write("other.json", '{"story": 7}')
    done = cli("test", "shop.yaml", "--extensions", "own.py", "--crash-story", "other.json")
    assert done.code == 2
    assert 'expected an object with a `story` such as "kill@7"' in done.err


def test_a_story_of_another_recipe_is_refused_and_no_sign_that_all_is_well(
    cli: Cli, write: Write
) -> None:
    write("shop.yaml", CRASHED)
    write("other.json", '{"recipe": "store", "story": "kill@1"}')
    done = cli("test", "shop.yaml", "--extensions", "own.py", "--crash-story", "other.json")
    assert done.code == 2
    assert "other.json is a story of the recipe 'store', not of 'shop'" in done.err
    assert "findings" not in done.out


@pytest.mark.parametrize(
    "options",
    [
        ("--crash", "9", "--junit", "report.xml"),
        ("--crash", "9", "--crash-story", "story.json"),
        ("--real-tools",),
        ("--seed", "7"),
    ],
)
def test_options_that_would_count_for_nothing_are_refused(
    cli: Cli, write: Write, options: tuple[str, ...]
) -> None:
    write("shop.yaml", CRASHED)
    done = cli("test", "shop.yaml", "--extensions", "own.py", *options)
    assert done.code == 2
    assert "crash test" in done.err


def test_a_story_is_played_again_with_the_test_that_it_was_found_with(
    cli: Cli, write: Write, here: Path
) -> None:
    tests = """
tests:
  - {name: plain, tools: {look: seen, send: sent}, expect: {status: completed}}
  - {name: other, tools: {look: else, send: sent}, expect: {status: completed}}
"""
    write("shop.yaml", CRASHED + tests)
    own = ("--extensions", "own.py")
    cli("test", "shop.yaml", *own, "--crash", "40", "-k", "other", "--write-stories", "found")
    path = here / "found" / "shop-effect-in-doubt-mail-send.crash.json"
    done = cli("test", "shop.yaml", *own, "--crash-story", str(path))
    assert done.out.startswith("shop.yaml: one story of test 'other', 1 finding\n"), done.err


def test_a_recipe_that_limits_its_cost_is_tested_without_a_price(cli: Cli, write: Write) -> None:
    write(
        "limited.yaml",
        "id: limited\nlimits: {max_cost_usd: 0.5}\nsteps: [{id: a, goal: Say it.}]\n"
        "tests: [{name: says it, answers: [It.], expect: {output: It.}}]\n",
    )
    done = cli("test", "limited.yaml")
    assert (done.code, "1 of 1 passed" in done.out) == (0, True), done.out

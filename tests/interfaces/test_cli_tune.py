"""`minions tune`: the cheapest configuration that passes, within a budget, and resumable."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

import pytest

from command_line import Cli, Outcome, Write
from forked_commands import PROGRAM, ForkedCommand, run_forked
from minions.app.evaluating.learning import TestComparison
from minions.interfaces.cli.commands.tune_command import refusal_of
from patience import HANG_S

MODELS: Final = '''
import asyncio
from pathlib import Path
from minions import Message, ModelCallResponse, ModelFailure, ScriptedModel
from minions.guide import TokenUsage

def made(name, cost, wrong, pause=0.0):
    """wrong: by the number of examples, the last digits of questions that it gets wrong."""
    async def answer(prompt):
        text = prompt.messages[-1].content.splitlines()[0]
        shown = [each.content for each in prompt.messages if each.name == "example"]
        count = len(shown) // 2
        with Path("calls.txt").open("a") as file:
            file.write("|".join([name, str(count), text, *shown[::2]]) + chr(10))
        await asyncio.sleep(pause)
        if name == "gone":
            return ModelFailure(code="model-unreachable", message="The server does not answer.")
        if name == "shaky" and Path("down.txt").exists() and text[-1] == "3":
            return ModelFailure(code="model-unavailable", message="HTTP 503, try later.")
        right = "bug" if "page" in text else "other"
        digits = "" if text.startswith("Think") else wrong.get(count, wrong[max(wrong)])
        kind = {"bug": "other", "other": "bug"}[right] if text[-1] in digits else right
        tokens = 100 + 20 * count + len(text)
        usage = TokenUsage(input_tokens=tokens, output_tokens=5, cost_usd=cost * tokens / 100)
        content = '{"kind": "%s"}' % kind
        return ModelCallResponse(message=Message(role="assistant", content=content), usage=usage)
    return ScriptedModel(answer, name="scripted/" + name)

large = made("large", 0.01, {0: ""})
small = made("small", 0.001, {0: "1357", 2: ""})
poor = made("poor", 0.0005, {0: "123456"})
dear = made("dear", 0.1, {0: ""})
gone = made("gone", 0.0001, {0: ""})
slow = made("slow", 0.01, {0: ""}, 0.01)
quick = made("quick", 0.001, {0: ""}, 0.01)
free = made("free", 0.0, {0: ""})
shaky = made("shaky", 0.01, {0: ""})
'''
RECIPE: Final = """\
# sorts tickets
id: triage
inputs: {text: string}
steps:
  - id: label  # one word
    goal: "{{ inputs.text }}"
    output: {kind: {enum: [bug, other]}}
    model: scripted/large  # dear
output: "{{ label }}"
"""
PRICES: Final = "\n".join(
    f'[prices."scripted/{name}"]\ninput_per_mtok = {price}\noutput_per_mtok = {price}'
    for name, price in {
        "large": 100,
        "small": 10,
        "poor": 5,
        "quick": 10,
        "dear": 1000,
        "gone": 1,
    }.items()
)
COUNT: Final = 25


def case(number: int) -> str:
    kind = "bug" if number % 2 else "other"
    text = f"{'page' if number % 2 else 'hello'} {number}"
    return json.dumps({"text": text, "expected": {"kind": kind}})


@pytest.fixture(autouse=True)
def _files(write: Write) -> None:
    write("own.py", MODELS)
    write("triage.yaml", RECIPE)
    write("cases.jsonl", "\n".join(map(case, range(COUNT))))
    write("minions.toml", PRICES)


@pytest.fixture
def run(cli: Cli) -> Cli:
    def tune(*arguments: str) -> Outcome:
        return cli("tune", *arguments, "--extensions", "own.py", "--db", "j.sqlite", "--trust")

    return tune


ASKED: Final = ("triage.yaml", "cases.jsonl", "-m", "scripted/small", "-m", "scripted/poor")
MODEL_AND_EXAMPLES: Final = (*ASKED, "--over", "model,examples")


def calls(here: Path) -> list[list[str]]:
    path = here / "calls.txt"
    lines = path.read_text("utf-8").splitlines() if path.exists() else []
    return [line.split("|") for line in lines]


def questions(here: Path) -> tuple[set[str], set[str]]:
    """Those that were asked, and those that were shown as examples."""
    asked = {question for _, _, question, *_ in calls(here)}
    return asked, {question for _, _, _, *shown in calls(here) for question in shown}


def read(outcome: Outcome) -> Any:  # Any: what the tests expect of it is compared
    return json.loads(outcome.out)


def test_the_cheapest_configuration_that_passes_is_printed_as_a_diff(run: Cli, here: Path) -> None:
    """A-142."""
    outcome = run(*MODEL_AND_EXAMPLES)
    assert outcome.code == 0, outcome.err
    assert "5 for examples, 12 to search, 8 held out to confirm (seed 0)" in outcome.out
    assert "cheapest that passes: label: scripted/small, examples 1" in outcome.out
    assert "cannot reach the bar" in outcome.out
    diff = outcome.out[outcome.out.index("--- triage.yaml") :].splitlines()
    assert [line for line in diff[2:] if line[0] in "+-"] == [
        "-    model: scripted/large  # dear",
        "+    examples:",
        '+      - {input: {text: "page 1"}, output: {kind: "bug"}}',
        "+    model: scripted/small  # dear",
    ]
    assert "form: nothing" not in outcome.err  # it was not asked for
    assert "nothing was written · minions tune triage.yaml … --write" in outcome.err
    assert (here / "triage.yaml").read_text("utf-8") == RECIPE
    assert len(calls(here)) < COUNT * 5
    asked, shown = questions(here)
    assert shown
    assert len(asked) == 20
    assert not asked & shown


def test_the_figures_are_those_of_cases_that_the_search_has_not_seen(run: Cli, here: Path) -> None:
    """A-142."""
    report = read(run(*MODEL_AND_EXAMPLES, "--json"))
    base, chosen = report["confirmation"]
    assert (base["label"], base["cases"]) == ("as it is", 8)
    assert (chosen["label"], chosen["pass_rate"]) == ("label: scripted/small, examples 1", 1.0)
    assert chosen["low"] < 1 == chosen["high"]
    assert chosen["cost_usd"] < base["cost_usd"] / 5
    assert report["cases"] == {"all": 25, "examples": 5, "search": 12, "confirmation": 8}
    assert report["passed"]
    trials = {each["label"]: each for each in report["trials"]}
    assert trials["label: scripted/small"]["verdict"] == "cannot reach the bar"
    assert trials["label: scripted/small"]["cases"] == 4
    assert report["chosen"]["configuration"] == [
        {"step": "label", "dimension": "examples", "value": "1"},
        {"step": "label", "dimension": "model", "value": "scripted/small"},
    ]


def test_an_example_of_the_recipes_own_that_is_a_case_is_not_shown(
    run: Cli, here: Path, write: Write
) -> None:
    examples = "".join(
        f"      - {{input: {{text: {text}}}, output: {{kind: {kind}}}}}\n"
        for number in range(1, 30, 4)
        for text, kind in [(f"page {number}", "bug"), (f"hello {number + 1}", "other")]
    )
    write("triage.yaml", RECIPE.replace("    model:", f"    examples:\n{examples}    model:"))
    run(*MODEL_AND_EXAMPLES)
    asked, shown = questions(here)
    assert shown
    assert not asked & shown


def test_what_is_recorded_is_not_asked_again_and_no_cache_is_used(
    run: Cli, here: Path, write: Write
) -> None:
    """A-142."""
    write("triage.yaml", RECIPE.replace("    model:", "    cache: true\n    model:"))
    first = read(run(*MODEL_AND_EXAMPLES, "--json"))
    before = len(calls(here))
    again = read(run(*MODEL_AND_EXAMPLES, "--json"))
    assert len(calls(here)) == before
    for each in (
        *first["trials"],
        *first["confirmation"],
        *again["trials"],
        *again["confirmation"],
    ):
        each.pop("duration_ms")
    assert again == first
    run(*MODEL_AND_EXAMPLES, "-m", "scripted/dear")
    assert {name for name, *_ in calls(here)[before:]} == {"dear"}
    total = len(calls(here))
    run(*MODEL_AND_EXAMPLES, "--name", "again")
    assert len(calls(here)) - total == before


def test_a_search_that_was_killed_continues_and_repeats_nothing(here: Path, write: Write) -> None:
    """A-142."""
    write("triage.yaml", RECIPE.replace("scripted/large", "scripted/slow"))
    words = [
        *(*PROGRAM, "tune", "triage.yaml", "cases.jsonl", "-j", "4"),
        *("-m", "scripted/quick", "--over", "model,examples", "--json", "--trust"),
        *("--extensions", "own.py", "--db", "j.sqlite"),
    ]
    process = ForkedCommand(words, cwd=here, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    end = time.monotonic() + HANG_S
    while len(calls(here)) < 20 and time.monotonic() < end:
        assert process.poll() is None
        time.sleep(0.002)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait(HANG_S) == -signal.SIGKILL
    done = run_forked(words, cwd=here, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["chosen"]["label"] == "label: scripted/quick"
    asked = Counter(map(tuple, calls(here)))
    assert asked.total() - len(asked) <= 4  # those under way when it was killed


def test_the_budget_is_never_exceeded_and_the_best_so_far_is_told(run: Cli, here: Path) -> None:
    """A-142."""
    outcome = run(
        *MODEL_AND_EXAMPLES, "-m", "scripted/dear", "--budget", "0.25", "--json", "-j", "1"
    )
    report = read(outcome)
    assert outcome.code == 1
    price = {"large": 0.01, "small": 0.001, "poor": 0.0005, "dear": 0.1}
    spent = sum(
        price[name] * (100 + 20 * int(count) + len(text)) / 100
        for name, count, text, *_ in calls(here)
    )
    assert spent == pytest.approx(report["cost_usd"])
    assert spent <= 0.25
    assert "are spent" in report["stopped"]
    assert "to confirm what was found" in report["stopped"]
    told = run(*MODEL_AND_EXAMPLES, "-m", "scripted/dear", "--budget", "0.25", "-j", "1")
    assert "the search was cut: $0.1" in told.err


def test_options_of_the_model_are_measured_and_written_and_what_is_left_out_is_told(
    run: Cli, here: Path, write: Write
) -> None:
    """A-142."""
    options = "{name: scripted/large, temperature: 0, seed: 7, fallbacks: [scripted/dear]}"
    write("triage.yaml", RECIPE.replace("scripted/large", options))
    words = ("triage.yaml", "cases.jsonl", "-m", "scripted/small", "--over", "model")
    outcome = run(*words, "--at-least", "0.5")
    assert outcome.code == 0, outcome.err
    assert "+    model: {name: scripted/small, temperature: 0, seed: 7}  # dear" in outcome.out
    note = "label: scripted/small: `fallbacks` of scripted/large left out: it is tried alone"
    assert f"cheapest that passes: label: scripted/small\n  {note}\n" in outcome.out
    assert note in " ".join(outcome.err.split())
    assert note in run(*words, "--dry-run").out


def test_what_is_chosen_can_be_named_together_or_one_by_one(run: Cli) -> None:
    words = ("triage.yaml", "cases.jsonl", "-m", "scripted/small", "--dry-run", "--json")
    together = read(run(*words, "--over", "examples, model"))
    apart = read(run(*words, "--over", "model", "--over", "examples", "--over", "model"))
    assert together == apart
    assert list(apart["space"][0]["options"]) == ["model", "examples"]


def test_a_small_budget_is_spent_on_models_that_save_something(run: Cli, here: Path) -> None:
    """A-142."""
    models = ("-m", "scripted/dear", "-m", "scripted/quick", "-m", "scripted/poor")
    report = read(run("triage.yaml", "cases.jsonl", *models, "--max-cost", "0.26", "--json"))
    assert report["chosen"] == {
        "configuration": [{"step": "label", "dimension": "model", "value": "scripted/quick"}],
        "label": "label: scripted/quick",
        "is_confirmed": True,
    }
    labels = [each["label"] for each in report["trials"]]
    assert labels[:3] == ["as it is", "label: scripted/poor", "label: scripted/quick"]
    assert all("scripted/" in label for label in labels[1:])  # none of the recipe's own model


def test_a_budget_below_what_the_recipe_costs_asks_no_more_than_that(run: Cli, here: Path) -> None:
    outcome = run(*ASKED, "--max-cost", "0.05", "-j", "1", "--json")
    assert outcome.code == 1
    assert len(calls(here)) <= 5
    report = read(outcome)
    assert not report["passed"]
    assert report["diff"] == ""


def test_where_nothing_passes_it_says_by_how_much_and_leaves_the_recipe(
    run: Cli, here: Path, write: Write
) -> None:
    """A-142."""
    write("triage.yaml", RECIPE.replace("scripted/large", "scripted/poor"))
    outcome = run(
        *("triage.yaml", "cases.jsonl", "-m", "scripted/small", "--over", "model"),
        *("--at-least", "0.95", "--write"),
    )
    assert outcome.code == 1
    assert "nothing passes; the best is: " in outcome.out
    assert "it misses the 95% that are wanted by" in outcome.out
    assert "nothing was written" in outcome.err
    assert "poor" in (here / "triage.yaml").read_text("utf-8")


TESTS: Final = """
tests:
  - {inputs: {text: page 2}, answers: [{kind: bug}], expect: {output: {kind: bug}}}
"""


def test_write_changes_the_recipe_after_its_tests_were_run(
    run: Cli, here: Path, write: Write
) -> None:
    write("triage.yaml", RECIPE + TESTS)
    outcome = run(*ASKED, "--over", "model", "--at-least", "0.5", "--write")
    assert outcome.code == 0, outcome.err
    assert "tests as it is:   1 of 1 passed" in outcome.err
    assert "written: triage.yaml" in outcome.err
    wanted = RECIPE.replace("scripted/large  # dear", "scripted/small  # dear") + TESTS
    assert (here / "triage.yaml").read_text("utf-8") == wanted


def test_a_change_by_which_a_test_fails_is_not_written(run: Cli, here: Path, write: Write) -> None:
    text = RECIPE + TESTS.replace("page 2", "page 3")
    write("triage.yaml", text)
    outcome = run(*ASKED, "--over", "model", "--at-least", "0.5", "--write")
    assert outcome.code == 1
    assert "passes as it is and not as changed" in outcome.err
    assert (here / "triage.yaml").read_text("utf-8") == text


def test_a_recipe_that_was_edited_meanwhile_is_not_written(
    run: Cli, here: Path, write: Write
) -> None:
    edit = 'Path("triage.yaml").write_text(Path("triage.yaml").read_text() + "# mine")'
    edits = f"        {edit}\n        right ="
    write("own.py", MODELS.replace("        right =", edits, 1))
    outcome = run(*ASKED, "--over", "model", "--at-least", "0.5", "--write", "-j", "1")
    assert outcome.code == 1
    assert "nothing was written: triage.yaml was edited meanwhile" in outcome.err
    assert (here / "triage.yaml").read_text("utf-8").startswith(RECIPE + "# mine")


def test_tests_that_were_not_all_run_are_no_reason_to_write() -> None:
    assert refusal_of(TestComparison(before=(), after=())) is None
    refusal = refusal_of(TestComparison(before=(), after=(), is_cut=True))
    assert refusal == "not all of its tests were run"


def test_prompts_of_another_version_are_tried(run: Cli, here: Path, write: Write) -> None:
    write("small.yaml", RECIPE.replace("scripted/large", "scripted/small"))
    write("thinking.yaml", RECIPE.replace('"{{', '"Think: {{').replace("scripted/large", "x/y"))
    outcome = run(
        *("small.yaml", "cases.jsonl", "--over", "form", "--at-least", "1"),
        *("--against", "thinking.yaml"),
    )
    assert outcome.code == 0, outcome.err
    assert "cheapest that passes: label: thinking.yaml" in outcome.out
    assert '+    goal: "Think: {{ inputs.text }}"' in outcome.out


def test_a_model_whose_server_is_gone_harms_only_itself(run: Cli) -> None:
    outcome = run(*MODEL_AND_EXAMPLES, "-m", "scripted/gone", "--json")
    assert outcome.code == 0, outcome.err
    report = read(outcome)
    assert report["chosen"]["label"] == "label: scripted/small, examples 1"
    trials = {each["label"]: each["verdict"] for each in report["trials"]}
    assert trials["label: scripted/gone"] == "not measured"
    assert "label: scripted/gone, examples 1" not in trials


def test_runs_that_failed_by_an_outage_set_no_bar_and_are_repeated_by_the_same_command(
    run: Cli, here: Path, write: Write
) -> None:
    """A-142."""
    write("triage.yaml", RECIPE.replace("scripted/large", "scripted/shaky"))
    write("down.txt", "")
    words = ("triage.yaml", "cases.jsonl", "-m", "scripted/small", "--over", "model")
    outcome = run(*words, "--write")
    assert outcome.code == 1
    told = " ".join(outcome.err.split())
    assert "the recipe as it is was not measured: 2 of 15 runs have no answer of the model" in told
    assert "started again, it repeats them" in told
    assert "model-unavailable: HTTP 503, try later." in told
    assert "wanted: what the recipe passes as it is, which is not known" in outcome.out
    assert "ranked by tokens" not in outcome.out
    (here / "down.txt").unlink()
    before = len(calls(here))
    again = run(*words)
    assert again.code == 0, again.err
    assert "wanted: 100% of the cases, as the recipe is" in again.out
    repeated = [text for name, _, text in calls(here)[before:] if name == "shaky"]
    assert len(repeated) == 2 + 10  # those cases, and the cases held out


def test_without_prices_tokens_are_compared_and_it_says_so(run: Cli, write: Write) -> None:
    free = MODELS.replace("cost_usd=cost * tokens / 100", "cost_usd=cost * tokens / 100 or None")
    write("own.py", free)
    outcome = run("triage.yaml", "cases.jsonl", "-m", "scripted/free", "--over", "model")
    assert outcome.code == 0, outcome.err
    assert "ranked by tokens: the price of a model is not known" in outcome.out
    assert "the recipe stays as it is" in outcome.err


def test_a_dry_run_shows_what_is_tried_and_asks_nothing(run: Cli, here: Path) -> None:
    outcome = run(*ASKED, "--dry-run", "--max-cost", "2")
    assert outcome.code == 0, outcome.err
    assert "  model: scripted/poor, scripted/small" in outcome.out
    assert "  output: json, md_json, tools" in outcome.out
    assert "  examples: 1, 2, 4" in outcome.out
    assert "form: nothing to choose for label: no other version is given" in outcome.out
    assert "at most 48 configurations in 608 runs" in outcome.out
    assert "cost: at most $2" in outcome.out
    report = read(run(*ASKED, "--dry-run", "--json"))
    assert report["bound"]["cost_usd"] is None
    assert "scripted/large has no max_output_tokens" in report["bound"]["unbounded_because"][0]
    assert calls(here) == []


def test_a_suite_names_recipe_cases_models_and_scorers(run: Cli, write: Write) -> None:
    write(
        "suite/all.eval.yaml",
        "recipe: ../triage.yaml\ndata: ../cases.jsonl\nmodels: [scripted/small]\n"
        "scorers: [exact]\nat_least: 0.5\n",
    )
    report = read(run("suite/all.eval.yaml", "--over", "model", "--json"))
    assert (report["bar"], report["chosen"]["label"]) == (0.5, "label: scripted/small")


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        (("--over", "modle"), 2, "'modle' is nothing to choose. Did you mean 'model'?"),
        (("--over", "model", "--over", "modle"), 2, "'modle' is nothing to choose."),
        (("--over", "model,"), 2, "'' is nothing to choose."),
        (
            ("-m", "scripted/small", "--over", "examples"),
            2,
            "-m is of no use: --over leaves out 'model'. Leave -m out, or add --over model.",
        ),
        (
            ("--against", "triage.yaml", "--over", "model,output", "--over", "examples"),
            2,
            "--against is of no use: --over leaves out 'form'.",
        ),
        (("--step", "lable"), 2, "no step 'lable' that a model answers"),
        (("-m", "small"), 2, "unknown model 'small'"),
        (("-m", "openai/gpt-5-mini"), 4, "OPENAI_API_KEY"),
        (("-m", "scripted/free", "--budget", "1"), 4, "price of the model 'scripted/free'"),
        (("--score", "regex"), 2, "need more words"),
    ],
)
def test_wrong_input_is_told_before_anything_is_asked(
    run: Cli, here: Path, arguments: tuple[str, ...], code: int, expected: str
) -> None:
    outcome = run("triage.yaml", "cases.jsonl", *arguments)
    assert outcome.code == code, outcome.err
    assert expected in outcome.err.replace("\n", " ")
    assert calls(here) == []


def test_a_limit_of_each_run_needs_prices_before_anything_is_asked(
    run: Cli, here: Path, write: Write
) -> None:
    write("triage.yaml", RECIPE.replace("steps:", "limits: {max_cost_usd: 0.5}\nsteps:"))
    outcome = run("triage.yaml", "cases.jsonl", "-m", "scripted/free")
    assert outcome.code == 4
    assert "price of the model 'scripted/free'" in outcome.err.replace("\n", " ")
    assert calls(here) == []


def test_too_few_cases_are_refused(run: Cli, here: Path, write: Write) -> None:
    write("cases.jsonl", "\n".join([*map(case, range(5)), case(0)]))
    outcome = run("triage.yaml", "cases.jsonl", "-m", "scripted/small")
    assert outcome.code == 2
    assert "5 distinct cases are too few" in outcome.err
    assert calls(here) == []

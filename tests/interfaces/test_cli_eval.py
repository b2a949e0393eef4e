"""`minions eval`: models and recipes side by side on cases with known answers."""

from __future__ import annotations

import io
import json
import os
import signal
import sqlite3
import subprocess
import time
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree

import pytest

from command_line import Cli, Outcome, Write
from forked_commands import PROGRAM, ForkedCommand, run_forked
from patience import HANG_S

MODELS: Final = """
import asyncio
from pathlib import Path
from minions import Effect, Message, ModelCallResponse, ModelFailure, ScriptedModel, tool
from minions.guide import TokenUsage

def made(name, wrong, pause=0.0):
    async def answer(prompt):
        text = prompt.messages[-1].content
        with Path("calls.txt").open("a") as file:
            file.write(name + " " + text.splitlines()[-1] + chr(10))
        await asyncio.sleep(pause)
        if "Grade the answer" in text:
            right = text.endswith('"answer":{"kind":"bug"}}\\n</' + text.rpartition("</")[2])
            said = '{"reason": "short", "grade": %s}' % (0.9 if right else 0.2)
        elif "broken" in text:
            return ModelFailure(code="refused", message="I will not.")
        else:
            kind = "bug" if "page" in text and not wrong else "other"
            said = '{"kind": "%s"}' % kind
        usage = TokenUsage(input_tokens=10, output_tokens=5, cost_usd=0.01)
        return ModelCallResponse(message=Message(role="assistant", content=said), usage=usage)
    return ScriptedModel(answer, name="scripted/" + name)

good, poor, slow = made("good", False), made("poor", True), made("slow", False, 0.05)

@tool(effect=Effect.PURE)
def short(output: dict, expected: dict) -> dict:
    '''Whether it is short.'''
    return {"score": 1 if len(output["kind"]) < 4 else 0.5, "reason": "too long"}

@tool(effect=Effect.ONCE)
def sends(output: dict) -> bool:
    '''Sends.'''
    return True
"""
RECIPE: Final = """
id: triage
inputs: {text: string}
steps:
  - {id: label, goal: "{{ inputs.text }}", output: {kind: {enum: [bug, other]}}}
output: "{{ label }}"
"""
CASES: Final = """\
{"text": "the page is white", "expected": {"kind": "bug"}, "name": "white"}
{"text": "hello", "expected": {"kind": "other"}, "name": "greeting"}
{"text": "page 3 is gone", "expected": {"kind": "bug"}}
"""


@pytest.fixture(autouse=True)
def _files(write: Write) -> None:
    write("own.py", MODELS)
    write("triage.yaml", RECIPE)
    write("cases.jsonl", CASES)


@pytest.fixture
def run(cli: Cli) -> Cli:
    def evaluate(*arguments: str) -> Outcome:
        return cli("eval", *arguments, "--extensions", "own.py", "--db", "j.sqlite")

    return evaluate


def calls(here: Path) -> int:
    path = here / "calls.txt"
    return len(path.read_text("utf-8").splitlines()) if path.exists() else 0


def read(outcome: Outcome) -> Any:  # Any: what the tests expect of it is compared
    return json.loads(outcome.out)


def test_cases_that_do_not_pass_are_annotated_at_their_lines(run: Cli) -> None:
    """Errors where fewer pass than are wanted; warnings where nothing is wanted, or enough pass."""
    asked = ("triage.yaml", "cases.jsonl", "-m", "scripted/poor", "--annotations")
    lines = [line for line in run(*asked).out.splitlines() if line.startswith("::")]
    assert [line.partition("::case")[0] for line in lines[:2]] == [
        f"::warning file=cases.jsonl,line={line},title=eval scripted/poor" for line in (1, 3)
    ]
    assert "case 'white': fields: " in lines[0]
    assert lines[2:] == ["::warning title=eval scripted/poor::33%25 of the cases pass"]
    strict = run(*asked, "--at-least", "0.9")
    lines = [line for line in strict.out.splitlines() if line.startswith("::")]
    assert (strict.code, {line.partition(" ")[0] for line in lines}) == (1, {"::error"})
    assert lines[-1].endswith("::33%25 of the cases pass, 90%25 are wanted")
    passed = run("triage.yaml", "cases.jsonl", "-m", "scripted/good", "--annotations")
    assert "::" not in passed.out


def test_two_models_stand_side_by_side_with_intervals_cost_and_time(run: Cli, here: Path) -> None:
    """A-138."""
    asked = ("triage.yaml", "cases.jsonl", "-m", "scripted/good", "-m", "scripted/poor")
    report = read(run(*asked, "--json"))
    good, poor = report["variants"]
    assert (good["label"], good["pass_rate"], good["score"]) == ("scripted/good", 1.0, 1.0)
    assert (poor["label"], poor["pass_rate"]) == ("scripted/poor", pytest.approx(1 / 3))
    assert good["low"] < 1 == good["high"]
    assert good["usage"]["cost_usd"] == pytest.approx(0.03)
    assert good["duration_ms"]["median"] is not None
    (case, *_) = poor["cases"]
    assert (case["name"], case["samples"][0]["output"]) == ("white", {"kind": "other"})
    assert case["samples"][0]["cost_usd"] == pytest.approx(0.01)
    assert case["samples"][0]["scores"]["fields"]["reason"] == 'kind: "other" is not "bug"'
    (compared,) = report["comparisons"]
    assert (compared["worse"], compared["better"]) == (["white", "case 3"], [])
    table = run(*asked)
    assert table.code == 0
    assert "scripted/good    100%  44% to 100%" in table.out
    assert "0 cases better, 2 worse" in table.out
    assert "✗ white: fields: kind" in table.err


def test_what_a_model_lacks_is_found_before_another_one_is_paid_for(run: Cli, here: Path) -> None:
    """A variant is checked as a whole before the first one is asked."""
    both = ("triage.yaml", "cases.jsonl", "-m", "scripted/good", "-m", "openai/gpt-5")
    refused = run(*both)
    assert refused.code == 4
    assert "OPENAI_API_KEY" in refused.err
    assert calls(here) == 0


def test_what_is_recorded_is_not_asked_again_until_something_changes(
    run: Cli, here: Path, write: Write
) -> None:
    """A-138."""
    asked = ("triage.yaml", "cases.jsonl", "-m", "scripted/good", "--json")
    first = read(run(*asked))
    assert calls(here) == 3
    assert read(run(*asked))["variants"] == first["variants"] or calls(here) == 3
    assert calls(here) == 3
    run(*asked, "--samples", "3")
    assert calls(here) == 9  # the first sample is there
    write("cases.jsonl", CASES.replace("hello", "good day"))
    run(*asked)
    assert calls(here) == 10
    write("triage.yaml", RECIPE.replace("{{ inputs.text }}", "Look: {{ inputs.text }}"))
    run(*asked)
    assert calls(here) == 13
    run(*asked, "--name", "again")
    assert calls(here) == 16


def test_an_evaluation_that_was_killed_continues_and_repeats_nothing(
    here: Path, write: Write
) -> None:
    """A-138."""
    rows = [f'{{"text": "page {number}", "expected": {{"kind": "bug"}}}}' for number in range(60)]
    write("many.jsonl", "\n".join(rows))
    words = [
        *(*PROGRAM, "eval", "triage.yaml", "many.jsonl"),
        *("-m", "scripted/slow", "-j", "4", "--extensions", "own.py", "--db", "j.sqlite"),
    ]
    process = ForkedCommand(words, cwd=here, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    end = time.monotonic() + HANG_S
    while calls(here) < 20 and time.monotonic() < end:
        assert process.poll() is None
        time.sleep(0.002)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait(HANG_S) == -signal.SIGKILL
    done = run_forked(
        [*words, "--json"], cwd=here, capture_output=True, text=True, timeout=HANG_S, check=False
    )
    assert done.returncode == 0, done.stderr
    (variant,) = json.loads(done.stdout)["variants"]
    assert (variant["samples"], variant["pass_rate"]) == (60, 1.0)
    asked = Counter((here / "calls.txt").read_text("utf-8").splitlines())
    assert len(asked) == 60
    assert asked.total() <= 64  # those under way when it was killed


def test_a_file_has_recipe_cases_models_and_scorers(run: Cli, write: Write, here: Path) -> None:
    write(
        "suite/all.eval.yaml",
        """
recipe: ../triage.yaml
models: [scripted/good, scripted/poor]
cases:
  - {text: the page is white, expected: {kind: bug}, name: white}
  - {text: hello, expected: {kind: other}}
scorers:
  - fields
  - {regex: "^[a-z]+$", of: kind}
  - {tool: short}
  - {graded: "Is it the right kind?", model: scripted/good}
samples: 2
at_least: 0.5
""",
    )
    outcome = run("suite/all.eval.yaml", "--json")
    assert outcome.code == 1, outcome.err
    report = read(outcome)
    good, poor = report["variants"]
    assert report["samples"] == 2
    assert (good["pass_rate"], poor["pass_rate"]) == (0.5, 0.0)
    scores = good["cases"][1]["samples"][0]["scores"]
    assert scores["tool short"] == {"value": 0.5, "passed": False, "reason": "too long"}
    graded = scores["graded Is it the right kind?"]
    assert (graded["value"], graded["reason"]) == (0.2, "0.2: short")
    assert good["grading"]["total_tokens"] == 60
    assert not report["passed"]
    before = calls(here)
    run("suite/all.eval.yaml", "--json")
    assert calls(here) == before  # grades are recorded, too


JUDGES: Final = """
from pathlib import Path
from minions import Message, ModelCallResponse, ModelFailure, ScriptedModel
from minions.guide import TokenUsage

def answer(prompt):
    text = prompt.messages[-1].content
    if Path("down").exists() and "white" in text:
        return ModelFailure(code="refused", message="I am no judge.")
    usage = TokenUsage(input_tokens=10, output_tokens=5, cost_usd=0.01)
    said = '{"reason": "fine", "grade": %s}' % (0.2 if "page 3" in text else 0.9)
    return ModelCallResponse(message=Message(role="assistant", content=said), usage=usage)

judge = ScriptedModel(answer, name="scripted/judge")
"""


@pytest.fixture
def graded(run: Cli, write: Write) -> Cli:
    write("judges.py", JUDGES)
    write("down", "")
    write(
        "graded.eval.yaml",
        "recipe: triage.yaml\ndata: cases.jsonl\nmodels: [scripted/good]\n"
        "scorers: [fields, {graded: Is it right?, model: scripted/judge}]\n",
    )
    return lambda *more: run("graded.eval.yaml", "--extensions", "judges.py", *more)


def test_an_answer_without_a_grade_does_not_count_and_is_told(graded: Cli, here: Path) -> None:
    """A-138."""
    outcome = graded("--at-least", "0.5", "--junit", "out.xml", "--page", "out.html")
    assert outcome.code == 1
    assert "score  failed  ungraded  tokens" in outcome.out
    assert "scripted/good     50%  9% to 91%   0.77       0         1" in outcome.out
    assert "--retry-failed" in outcome.out
    assert "wanted: 50% of the cases · not all is graded" in outcome.out
    assert "? white: not graded: refused: I am no judge." in outcome.err
    (suite,) = ElementTree.parse(here / "out.xml").getroot()
    assert (suite.get("errors"), suite.get("failures")) == ("1", "1")
    page = (here / "out.html").read_text("utf-8")
    assert "not graded: refused: I am no judge." in page
    assert "<dt>ungraded, not counted</dt><dd>1</dd>" in page


def test_an_answer_without_a_grade_is_graded_when_it_is_asked_for(graded: Cli, here: Path) -> None:
    """A-138."""
    (variant,) = read(graded("--json"))["variants"]
    assert (variant["ungraded"], variant["failed"], variant["pass_rate"]) == (1, 0, 0.5)
    sample = variant["cases"][0]["samples"][0]
    assert (sample["passed"], sample["score"]) == (None, None)
    assert sample["ungraded"] == "refused: I am no judge."
    assert variant["cases"][0]["passed"] is None
    (here / "down").unlink()
    (variant,) = read(graded("--json"))["variants"]
    assert variant["ungraded"] == 1
    asked = calls(here)
    (variant,) = read(graded("--json", "--retry-failed"))["variants"]
    assert (variant["ungraded"], variant["pass_rate"]) == (0, pytest.approx(2 / 3))
    assert calls(here) == asked  # no answer was asked for again


@pytest.mark.parametrize(("cost", "answers"), [("0.045", 3), ("0.025", 2)])
def test_an_answer_that_no_budget_was_left_to_grade_does_not_pass(
    graded: Cli, write: Write, here: Path, cost: str, answers: int
) -> None:
    """A-138."""
    (here / "down").unlink()
    price = "input_per_mtok = 1.0\noutput_per_mtok = 1.0"
    write(
        "minions.toml", f'[prices."scripted/good"]\n{price}\n[prices."scripted/judge"]\n{price}\n'
    )
    outcome = graded("--max-cost", cost, "-j", "1", "--json")
    report = read(outcome)
    (variant,) = report["variants"]
    assert (outcome.code, report["passed"]) == (1, False)
    assert variant["samples"] >= answers
    assert variant["ungraded"] >= 1
    outcomes = [each["samples"][0] for each in variant["cases"]]
    no_grade = [each for each in outcomes if each["output"] and len(each["scores"]) < 2]
    assert {each["passed"] for each in no_grade} == {None}


def test_recorded_runs_are_cases_of_a_changed_recipe(run: Cli, cli: Cli, write: Write) -> None:
    for text in ("the page is white", "hello"):
        common = ("-m", "scripted/good", "--extensions", "own.py", "--db", "j.sqlite")
        assert cli("run", "triage.yaml", "-p", f"text={text}", *common).code == 0
    write("triage.yaml", RECIPE.replace("inputs.text }}", "inputs.text | replace('page', 'x') }}"))
    report = read(run("triage.yaml", "--recorded", "9", "-m", "scripted/good", "--json"))
    assert report["cases"] == 2
    assert report["variants"][0]["pass_rate"] == 0.5
    assert report["variants"][0]["cases"][1]["name"].startswith("run_")
    again = read(run("triage.yaml", "--recorded", "9", "-m", "scripted/good", "--json"))
    assert again["cases"] == 2  # runs of evaluations are no cases


def one_run(cli: Cli, *, text: str = "hello", db: str = "j.sqlite") -> str:
    """The id of a recorded run of the recipe."""
    common = ("-m", "scripted/good", "--extensions", "own.py", "--db", db, "--json")
    return str(cli("run", "triage.yaml", "-p", f"text={text}", *common).json["run_id"])


def test_a_run_that_was_imported_is_no_case(run: Cli, cli: Cli, write: Write) -> None:
    taken = one_run(cli, text="ours", db="theirs.sqlite")
    write("s.jsonl", cli("sessions", "export", taken, "--db", "theirs.sqlite").out)
    assert cli("sessions", "import", "s.jsonl", "--db", "j.sqlite").code == 0
    own = one_run(cli)
    report = read(run("triage.yaml", "--recorded", "9", "-m", "scripted/good", "--json"))
    assert [each["name"] for each in report["variants"][0]["cases"]] == [own]


def test_a_damaged_run_is_no_case_and_is_named(run: Cli, cli: Cli) -> None:
    """A-123: also if it is a later entry that cannot be read."""
    bad, good = one_run(cli), one_run(cli)
    with closing(sqlite3.connect("j.sqlite")) as db, db:
        db.execute(
            "UPDATE entries SET body = '[]', body_digest = NULL WHERE run_id = ? AND kind = 'step'",
            (bad,),
        )
    outcome = run("triage.yaml", "--recorded", "9", "-m", "scripted/good", "--json")
    assert [each["name"] for each in read(outcome)["variants"][0]["cases"]] == [good]
    assert f"warning: 1 run cannot be read and is no case: {bad}" in outcome.err


def test_cases_come_from_standard_input(run: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    cases = '{"text": "the page is white", "expected": {"kind": "bug"}}\n'
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(cases.encode())))
    outcome = run("triage.yaml", "-", "-m", "scripted/good")
    assert outcome.code == 0, outcome.err
    assert "triage.yaml on stdin: 1 case\n" in outcome.out
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"{text}\n")))
    assert "stdin:1: " in run("triage.yaml", "-", "-m", "scripted/good").err


def test_a_command_that_is_proposed_names_the_cases(run: Cli) -> None:
    refused = run("triage.yaml", "cases.jsonl")
    assert "error[no-model]" in refused.err
    assert "minions eval triage.yaml cases.jsonl" in " ".join(refused.err.split())


AS_DECLARED: Final = """
id: typed
inputs: {text: string, limit: {type: integer, default: 3}}
steps:
  - id: label
    goal: "{{ inputs.text }}"
    output:
      urgent: boolean
      count: integer
      kind: {enum: [bug, other]}
      near: {id: string, more: string}
      note: {type: [string, "null"]}
output: "{{ label }}"
"""
TYPED_ANSWERS: Final = """
answers:
  - json: {urgent: true, count: 2, kind: bug, near: {id: "7", more: x}, note: null}
  - json: {urgent: true, count: 2, kind: bug, near: {id: "7", more: x}, note: null}
"""


def test_a_cell_is_the_value_that_it_stands_for_to_every_scorer(
    run: Cli, write: Write, here: Path
) -> None:
    """A-138."""
    write("typed.yaml", AS_DECLARED)
    write("answers.yaml", TYPED_ANSWERS)
    head = "text,limit,expected.urgent,expected.count,expected.kind,expected.near.id,expected.note"
    write("typed.csv", f"{head}\na,2,yes,2,bug,7,null\nb,,TRUE,2.0,bug,7,\n")
    write(
        "same.py",
        """
from minions import Effect, tool

@tool(effect=Effect.PURE)
def same(output: dict, expected: dict, inputs: dict) -> bool:
    '''Whether values and their types are those of the output.'''
    return all(repr(output[name]) == repr(expected[name]) for name in ("urgent", "count"))
""",
    )
    write(
        "typed.eval.yaml",
        """
recipe: typed.yaml
data: typed.csv
scorers:
  - fields
  - {holds: "output.urgent == expected.urgent and output.near.id == expected.near.id"}
  - {holds: "output.count <= inputs.limit"}
  - {tool: same}
""",
    )
    asked = ("typed.eval.yaml", "-m", "scripted/answers.yaml", "--json")
    outcome = run(*asked, "--extensions", "same.py")
    assert outcome.code == 0, outcome.err
    (variant,) = read(outcome)["variants"]
    assert variant["pass_rate"] == 1.0, outcome.out
    first, second = (case["expected"] for case in variant["cases"])
    assert first == {"urgent": True, "count": 2, "kind": "bug", "near": {"id": "7"}, "note": None}
    assert second == {"urgent": True, "count": 2, "kind": "bug", "near": {"id": "7"}}


@pytest.mark.parametrize(
    ("table", "told"),
    [
        ("text,expected.urgent\na,true\nb,perhaps\n", "t.csv:3: the column 'expected.urgent'"),
        ("text,expected.count\na,2.5\n", '"2.5" was read, and the output has a whole number'),
        ("text,expected.near\na,7\n", "and the output has a mapping there"),
        ("text,expected\na,7\n", "the column 'expected': \"7\" was read"),
        ("text,expected.kind\na,bgu\n", "Did you mean 'bug'?"),
        ("text,expected.near.id,expected.near\na,7,{}\n", "say it twice"),
        ("text,expected.kind\na,bug\nb,\n", "t.csv:3: the scorer 'fields' compares with what"),
        ("text,expected.kind,expected.urgent\na,,\n", "its cells are empty"),
        ("text,expected\na,\n", "t.csv:2: the scorer 'fields' compares with what is expected"),
    ],
)
def test_a_cell_that_stands_for_nothing_is_told_before_anything_is_asked(
    run: Cli, write: Write, here: Path, table: str, told: str
) -> None:
    """A-138."""
    write("typed.yaml", AS_DECLARED)
    write("t.csv", table)
    outcome = run("typed.yaml", "t.csv", "-m", "scripted/good")
    assert (outcome.code, calls(here)) == (2, 0), outcome.err
    assert told in " ".join(outcome.err.split())


def test_two_versions_of_a_recipe_are_compared(run: Cli, write: Write) -> None:
    write("new.yaml", RECIPE.replace("inputs.text }}", "inputs.text | replace('page', 'x') }}"))
    outcome = run(
        "triage.yaml", "cases.jsonl", "--against", "new.yaml", "-m", "scripted/good", "--json"
    )
    report = read(outcome)
    assert [each["label"] for each in report["variants"]] == [
        "triage.yaml · scripted/good",
        "new.yaml · scripted/good",
    ]
    assert report["comparisons"][0]["worse"] == ["white", "case 3"]


def test_a_case_without_an_output_does_not_pass_and_says_why(run: Cli, write: Write) -> None:
    write("cases.jsonl", CASES + '{"text": "broken", "expected": {"kind": "bug"}}\n')
    outcome = run("triage.yaml", "cases.jsonl", "-m", "scripted/good", "--at-least", "0.8")
    assert outcome.code == 1
    assert "✗ case 4: refused: I will not." in outcome.err
    assert "wanted: 80% of the cases · missed" in outcome.out


def test_reports_are_written_for_people_and_for_ci(run: Cli, write: Write, here: Path) -> None:
    write("cases.jsonl", CASES.replace('"white"', '"page: white"'))
    asked = ("triage.yaml", "cases.jsonl", "-m", "scripted/good", "-m", "scripted/poor")
    outcome = run(*asked, "--junit", "out.xml", "--page", "out.html")
    assert outcome.code == 0
    first, second = ElementTree.parse(here / "out.xml").getroot()
    assert (first.get("name"), first.get("failures")) == ("scripted/good", "0")
    assert (second.get("failures"), second.get("tests")) == ("2", "3")
    took = [float(case.get("time", "0")) for case in first]
    assert float(first.get("time", "0")) == pytest.approx(sum(took), abs=0.002) != 0
    failure = second.find("testcase/failure")
    assert failure is not None
    assert failure.get("message") == 'fields: kind: "other" is not "bug"'
    page = (here / "out.html").read_text("utf-8")
    assert "<h2>scripted/good</h2>" in page
    assert "<h2>scripted/poor</h2>" in page
    assert "default-src 'none'" in page
    assert "<script" not in page


def test_the_page_shows_what_strangers_say_as_text(run: Cli, write: Write, here: Path) -> None:
    row = {"text": "<img src=x>", "name": "<b>\u202ex", "expected": {"kind": "<i>"}}
    write("cases.jsonl", json.dumps(row))
    write("free.yaml", RECIPE.replace("{enum: [bug, other]}", "string"))
    run("free.yaml", "cases.jsonl", "-m", "scripted/good", "--page", "out.html")
    page = (here / "out.html").read_text("utf-8")
    assert "<img" not in page
    assert "<b>\u202e" not in page
    assert "<i>" not in page


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("triage.yaml",), "Name a file of cases"),
        (("triage.yaml", "none.jsonl"), "none.jsonl: No such file"),
        (
            ("triage.yaml", "bad.jsonl"),
            "bad.jsonl:1: There is no input 'txt'. Did you mean 'text'?",
        ),
        (
            ("triage.yaml", "odd.jsonl"),
            "odd.jsonl:1: it expects 'kin', and the output has only 'kind'. Did you mean 'kind'?",
        ),
        (("triage.yaml", "open.jsonl", "--score", "exact"), "open.jsonl:1: the scorer 'exact'"),
        (("triage.yaml", "cases.jsonl", "--score", "regex"), "need more words"),
        (("triage.yaml", "--recorded", "3"), "No completed run of 'triage'"),
        (
            ("tool.eval.yaml",),
            "No tool 'shrt' is registered that could score. Did you mean 'short'",
        ),
        (("sends.eval.yaml",), "may change something"),
        (("path.eval.yaml",), "The scorer 'exact kin' reads 'kin', and the output has only 'kind'"),
        (("holds.eval.yaml",), "reads 'kin', and the output has only 'kind'. Did you mean 'kind'?"),
        (("root.eval.yaml",), "unknown name 'outptu'"),
        (("empty.jsonl.eval.yaml",), "names no `recipe`"),
        (("triage.yaml", "cases.jsonl", "-m", "scripted/none.yaml"), "error[bad-script]"),
    ],
)
def test_wrong_input_is_told_before_anything_is_asked(
    run: Cli, write: Write, here: Path, arguments: tuple[str, ...], expected: str
) -> None:
    write("bad.jsonl", '{"txt": "x"}\n')
    write("open.jsonl", '{"text": "x"}\n')
    write("odd.jsonl", '{"text": "x", "expected": {"kin": "bug"}}\n')
    write("tool.eval.yaml", "recipe: triage.yaml\ndata: cases.jsonl\nscorers: [{tool: shrt}]\n")
    write("sends.eval.yaml", "recipe: triage.yaml\ndata: cases.jsonl\nscorers: [{tool: sends}]\n")
    for name, scorer in (
        ("path", "{exact: , of: kin}"),
        ("holds", "{holds: 'output.kin == 1'}"),
        ("root", "{holds: 'outptu.kind'}"),
    ):
        suite = f"recipe: triage.yaml\ndata: cases.jsonl\nscorers: [fields, {scorer}]\n"
        write(f"{name}.eval.yaml", suite)
    write("empty.jsonl.eval.yaml", "data: cases.jsonl\n")
    outcome = run(*arguments, "-m", "scripted/good")
    assert outcome.code == 2, outcome.err
    assert expected in outcome.err.replace("\n", " ")
    assert calls(here) == 0


def test_the_cost_of_all_variants_together_is_bounded(run: Cli, write: Write, here: Path) -> None:
    price = "input_per_mtok = 1.0\noutput_per_mtok = 1.0"
    write("minions.toml", f'[prices."scripted/good"]\n{price}\n[prices."scripted/poor"]\n{price}\n')
    outcome = run(
        *("triage.yaml", "cases.jsonl", "-m", "scripted/good", "-m", "scripted/poor"),
        *("--max-cost", "0.04", "-j", "1", "--json"),
    )
    assert outcome.code == 1
    assert calls(here) <= 4
    report = read(outcome)
    assert "of the batch's" in report["stopped"] or "spent" in report["stopped"]
    assert report["variants"][1]["samples"] < 3
    again = run(
        *("triage.yaml", "cases.jsonl", "-m", "scripted/good", "-m", "scripted/poor"),
        *("--max-cost", "0.04", "-j", "1"),
    )
    assert "of 6 answers are there; the figures are of these." in again.out


def test_a_run_that_waits_for_a_person_is_told_and_counts_when_it_was_answered(
    cli: Cli, write: Write
) -> None:
    """A-137."""
    write("w.yaml", "id: w\ninputs: {x: integer}\nsteps: [{id: q, ask: 'sure?'}]\n")
    write("w.jsonl", '{"x": 1, "expected": "yes"}\n')
    asked = cli("eval", "w.yaml", "w.jsonl", "--db", "w.sqlite")
    assert "1 run waits for a person: minions sessions show run_" in asked.out
    assert " --db w.sqlite says for what." in asked.out
    run_id = asked.out.partition("sessions show ")[2].partition(" ")[0]
    assert cli("answer", run_id, "yes", "--db", "w.sqlite").code == 0
    again = cli("eval", "w.yaml", "w.jsonl", "--db", "w.sqlite")
    assert (again.code, "100%" in again.out) == (0, True)

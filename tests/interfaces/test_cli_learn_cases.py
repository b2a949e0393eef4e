"""`minions learn --cases`: what persons corrected becomes cases for `minions eval`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from command_line import Cli, Write
from minions import SqliteJournal
from minions.contracts.executions import RunState
from minions.contracts.journal.run_rows import RunFilter
from minions.contracts.runtime import SystemClock
from minions.engine.views.run_waits import new_wait

RECIPE = """
id: sort
inputs: {text: {type: string}, note: {type: string, default: none}}
model: smart
permissions: {allow_write: true, requires_approval: [file]}
steps:
  - {id: sort, goal: "Sort: {{ inputs.text }}", output: {category: string, why: string}}
  - {id: put, tool: file, params: {as: "{{ sort }}"}}
output: %s
"""
TOOL = """
from minions import Effect, Extensions, ScriptedModel, Tool, ToolSpec
from minions.guide import Toolbox


class File(Tool):
    spec = ToolSpec(
        name="file",
        parameters={"type": "object", "properties": {"as": {}}, "required": ["as"]},
        effect=Effect.ONCE,
    )

    async def invoke(self, arguments, scope):
        return "filed"


model = ScriptedModel(lambda _prompt: {"category": "bill", "why": "It asks for money."})
extensions = Extensions(models={"smart": model}, tools=Toolbox((File(),)))
"""
FLAGS = ("--db", "j.sqlite", "--extensions", "own.py")
SPAM = '{"as": {"category": "spam", "why": "It asks for money."}}'


class Desk:
    """Runs of which a person decides the call that holds the output."""

    def __init__(self, cli: Cli, write: Write) -> None:
        self.cli = cli
        self.write = write
        write("own.py", TOOL)
        self.recipe('"{{ sort }}"')

    def recipe(self, output: str) -> None:
        self.write("sort.yaml", RECIPE % output)

    def decide(self, text: str, *words: str) -> str:
        """The id of the run."""
        done = self.cli(
            "run", "sort.yaml", "-p", f"text={text}", "--approve", "wait", "--json", *FLAGS
        )
        run_id = str(done.json["run_id"])
        word, *more = words
        decided = self.cli(word, run_id, *more, *FLAGS)
        assert decided.code in (0, 1), decided.err
        return run_id

    def cases(self, code: int = 0, *more: str) -> list[Mapping[str, object]]:
        Path("out.jsonl").unlink(missing_ok=True)
        done = self.cli("learn", "sort.yaml", "--cases", "out.jsonl", *FLAGS, *more)
        assert done.code == code, done.err
        self.said = done.err
        if not Path("out.jsonl").exists():
            return []
        return [json.loads(line) for line in Path("out.jsonl").read_text("utf-8").splitlines()]

    def pass_rate(self, *more: str) -> float | None:
        """What the recipe passes of `cases.jsonl`."""
        done = self.cli("eval", "sort.yaml", "cases.jsonl", "--json", *more)
        assert done.code == 0, done.err
        return found_rate(done.out)


def found_rate(text: str) -> float | None:
    (variant,) = json.loads(text)["variants"]
    rate: float | None = variant["pass_rate"]
    return rate


@pytest.fixture
def desk(cli: Cli, write: Write) -> Desk:
    return Desk(cli, write)


def test_a_correction_is_a_case_that_an_evaluation_takes(desk: Desk) -> None:
    run_id = desk.decide("Win!", "approve", "--arguments", SPAM)
    desk.decide("Pay!", "approve")
    (case,) = desk.cases()
    assert case == {
        "name": run_id,
        "inputs": {"text": "Win!", "note": "none"},
        "expected": {"category": "spam", "why": "It asks for money."},
    }
    for category, passed in (("bill", 0), ("spam", 1)):
        desk.write(f"{category}.py", TOOL.replace('"bill"', repr(category)))
        done = desk.cli(
            *("eval", "sort.yaml", "out.jsonl", "--json", "--db", f"{category}.sqlite"),
            *("--extensions", f"{category}.py"),
        )
        assert done.code == 0, done.err
        assert found_rate(done.out) == passed


@pytest.mark.parametrize(
    ("output", "expected", "scorer", "rate"),
    [
        ('{kind: "{{ sort.category }}", filed: "{{ put }}"}', {"kind": "bill"}, "fields", 1.0),
        ('{kind: "{{ sort.category }}", filed: "{{ put }}"}', {"filed": "x"}, "fields", None),
        ('{kind: "{{ sort.category }}", filed: "{{ put }}"}', {"kind": "bill"}, "exact", None),
        ('{kind: "{{ sort.category }}"}', {"kind": "bill"}, "exact", 1.0),
        ('"{{ sort.category }}"', "bill", "exact", 1.0),
        ('"{{ put }}"', "bill", "exact", None),
    ],
)
def test_a_run_that_waits_counts_where_what_waits_has_no_part_in_its_output(
    desk: Desk, write: Write, output: str, expected: object, scorer: str, rate: float | None
) -> None:
    desk.recipe(output)
    write("cases.jsonl", json.dumps({"inputs": {"text": "a"}, "expected": expected}) + "\n")
    assert desk.pass_rate("--score", scorer, *FLAGS) == rate


def test_a_case_that_waits_is_in_nobodys_inbox(desk: Desk, write: Write) -> None:
    """To approve it would make the call."""
    case = {"inputs": {"text": "a"}, "expected": {"category": "bill"}}
    write("cases.jsonl", json.dumps(case) + "\n")
    assert desk.pass_rate(*FLAGS) == 1.0
    assert json.loads(desk.cli("sessions", "list", "--json", *FLAGS[:2]).out)[0]["status"] == (
        "needs_decision"
    )
    assert json.loads(desk.cli("inbox", "--json", *FLAGS[:2]).out) == {"items": []}


def test_no_hook_is_told_of_a_case_that_waits(desk: Desk, write: Write, here: Path) -> None:
    case = {"inputs": {"text": "a"}, "expected": {"category": "bill"}}
    write("cases.jsonl", json.dumps(case) + "\n")
    assert desk.pass_rate(*FLAGS) == 1.0
    done = desk.cli("run", "sort.yaml", "-p", "text=b", "--approve", "wait", "--json", *FLAGS)

    async def told() -> list[str]:
        journal = SqliteJournal(here / "j.sqlite", SystemClock())
        rows = await journal.runs(RunFilter(statuses={RunState.NEEDS_DECISION}))
        assert len(rows) == 2
        waits = [await new_wait(journal, row.run_id) for row in rows]
        await journal.aclose()
        return [each.run_id for each in waits if each is not None]

    assert asyncio.run(told()) == [done.json["run_id"]]


def test_a_minus_is_no_name_of_a_file(desk: Desk, here: Path) -> None:
    desk.decide("Win!", "approve", "--arguments", SPAM)
    for words in (("learn", "sort.yaml", "-o", "-"), ("learn", "sort.yaml", "--cases", "-")):
        done = desk.cli(*words, *FLAGS)
        assert (done.code, "Name a file" in done.err) == (2, True), done.err
    assert not (here / "-").exists()


def test_a_file_that_exists_is_kept_and_no_option_is_named_that_there_is_not(desk: Desk) -> None:
    desk.decide("Win!", "approve", "--arguments", SPAM)
    assert desk.cases()
    done = desk.cli("learn", "sort.yaml", "--cases", "out.jsonl", *FLAGS)
    assert (done.code, "Name another file." in done.err) == (2, True)


@pytest.mark.parametrize(("graph", "rate"), [("", 1.0), ("graph: {sort: put}", None)])
def test_steps_that_may_run_again_say_nothing_while_a_run_waits(
    desk: Desk, write: Write, graph: str, rate: float | None
) -> None:
    desk.recipe(f'"{{{{ sort }}}}"\n{graph}')
    case = {"inputs": {"text": "a"}, "expected": {"category": "bill"}}
    write("cases.jsonl", json.dumps(case) + "\n")
    assert desk.pass_rate(*FLAGS) == rate


def test_what_waits_is_told_from_what_is_done_by_steps_of_the_recipe_itself(
    desk: Desk, write: Write
) -> None:
    """Under the names that they save their outputs as, too; nobody is asked to decide."""
    write("inner.yaml", "id: inner\nsteps: [{id: sort, set: {category: inner}}]\n")
    desk.recipe('"{{ kind.category }}: {{ sort.category }}"')
    text = Path("sort.yaml").read_text("utf-8")
    inner = "  - {id: within, recipe: inner.yaml}\n  - {id: put"
    saved = text.replace("{id: sort, ", "{id: sort, save_as: kind, ").replace("  - {id: put", inner)
    write("sort.yaml", saved)
    write("cases.jsonl", '{"inputs": {"text": "a"}, "expected": "bill: bill"}\n')
    assert desk.pass_rate(*FLAGS) == 1.0
    done = desk.cli("eval", "sort.yaml", "cases.jsonl", *FLAGS)
    assert "for a person" not in done.out + done.err


def test_only_what_a_person_spoke_of_is_expected(desk: Desk) -> None:
    desk.recipe('{kind: "{{ sort.category }}", filed: "{{ put }}", about: "{{ inputs.text }}"}')
    desk.decide("Win!", "approve", "--arguments", SPAM)
    (case,) = desk.cases()
    assert case["expected"] == {"kind": "spam", "about": "Win!"}


def test_an_output_made_of_other_steps_gives_no_case(desk: Desk) -> None:
    desk.recipe('"{{ put }}: {{ sort.category }}"')
    desk.decide("Win!", "approve", "--arguments", SPAM)
    assert desk.cases() == []
    assert "1 left out: the output is made of more than what a person corrected" in desk.said


def test_a_rejection_alone_does_not_say_what_is_right(desk: Desk) -> None:
    desk.decide("Win!", "reject")
    assert desk.cases() == []
    assert "1 left out: rejected, and what is right is not known" in desk.said
    assert "nothing was written" in desk.said


def test_what_was_approved_after_a_rejection_is_a_case(desk: Desk) -> None:
    run_id = desk.decide("Win!", "reject")
    again = desk.cli("retry", run_id, "--from", "sort", "--approve", "wait", *FLAGS)
    assert "approve" in again.err, again.err
    assert desk.cli("approve", run_id, *FLAGS).code == 0
    (case,) = desk.cases()
    assert case["expected"] == {"category": "bill", "why": "It asks for money."}


def test_no_key_is_written_into_a_file(desk: Desk) -> None:
    key = "sk-" + "a1B2c3D4e5F6g7H8" * 2
    desk.decide(f"The key is {key}", "approve", "--arguments", SPAM)
    assert desk.cases() == []
    assert "holds what looks like a key" in desk.said


def test_nothing_is_overwritten_and_other_changes_are_refused(desk: Desk, write: Write) -> None:
    write("kept.jsonl", "mine")
    taken = desk.cli("learn", "sort.yaml", "--cases", "kept.jsonl", *FLAGS)
    assert (taken.code, Path("kept.jsonl").read_text("utf-8")) == (2, "mine")
    assert "exists already" in taken.err
    both = desk.cli("learn", "sort.yaml", "--cases", "x.jsonl", "--write", *FLAGS)
    assert (both.code, "--cases excludes" in both.err) == (2, True)

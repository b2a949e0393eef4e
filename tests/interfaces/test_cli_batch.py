"""`minions batch`: one run and one result line for each line of a file."""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Final, cast

import pytest

from command_line import Cli, Outcome, Write
from minions.contracts.messages import TokenUsage
from minions.data.json_values import JsonValue
from minions.engine.batches.result import BatchResult
from minions.interfaces.cli.console.batch_progress import BatchTally

MODEL: Final = """
import os, signal
from pathlib import Path
from minions import Message, ModelCallResponse, ModelFailure, ScriptedModel
from minions.guide import TokenUsage

calls = Path("calls.txt")

def answer(prompt):
    text = prompt.messages[-1].content
    with calls.open("a") as file:
        file.write(text.splitlines()[-1] + chr(10))
    if "interrupt" in text:
        os.kill(os.getpid(), signal.SIGINT)
    if "bad" in text and not Path("mended").exists():
        return ModelFailure(code="refused", message="I will not.")
    dollars = 0.03 if "dear" in text else 0.01
    usage = TokenUsage(input_tokens=10, output_tokens=1, cost_usd=dollars)
    message = Message(role="assistant", content="seen: " + text.splitlines()[-1])
    return ModelCallResponse(message=message, usage=usage)

words = ScriptedModel(answer, name="scripted/words")
"""
RECIPE: Final = """
id: words
inputs: {text: string, times: {type: integer, default: 1}}
steps:
  - {id: look, goal: "{{ inputs.text }} {{ inputs.times }}"}
output: "{{ look }}"
"""
PRICES: Final = '[prices."scripted/words"]\ninput_per_mtok = 1.0\noutput_per_mtok = 1.0\n'


class Folder:
    """A folder with a recipe, its model and items."""

    def __init__(self, cli: Cli, write: Write, here: Path) -> None:
        self._cli = cli
        self.write = write
        self.here = here
        write("own.py", MODEL)
        write("words.yaml", RECIPE)
        write("minions.toml", PRICES)

    def items(self, *texts: str) -> None:
        self.write("items.jsonl", "".join(json.dumps({"text": text}) + "\n" for text in texts))

    def batch(self, *more: str, items: str = "items.jsonl", model: bool = True) -> Outcome:
        own = ("-m", "scripted/words", "--extensions", "own.py") if model else ()
        return self._cli("batch", "words.yaml", items, *own, "--db", "j.sqlite", *more)

    @property
    def results(self) -> list[Mapping[str, JsonValue]]:
        return [json.loads(line) for line in (self.here / "out.jsonl").read_text().splitlines()]

    @property
    def statuses(self) -> list[JsonValue]:
        return [result["status"] for result in self.results]

    @property
    def calls(self) -> list[str]:
        path = self.here / "calls.txt"
        return path.read_text("utf-8").splitlines() if path.exists() else []


@pytest.fixture
def folder(cli: Cli, write: Write, here: Path) -> Folder:
    return Folder(cli, write, here)


def test_results_go_to_standard_output_in_the_order_of_the_lines(folder: Folder) -> None:
    """A-116."""
    folder.items("a", "b", "c")
    done = folder.batch()
    assert done.code == 0, done.err
    results = [json.loads(line) for line in done.out.splitlines()]
    assert [result.pop("run_id")[:4] for result in results] == ["run_"] * 3
    assert results == [
        {
            "index": index,
            "status": "completed",
            "output": f"seen: {text} 1",
            "error": None,
            "cost_usd": 0.01,
            "tokens": 11,
        }
        for index, text in enumerate("abc")
    ]
    assert "3 lines: 3 completed" in done.err
    assert "cost $0.03" in done.err


def test_a_second_start_makes_no_call_and_writes_the_same_lines(folder: Folder) -> None:
    """A-116."""
    folder.items("a", "bad", "c")
    assert folder.batch("-o", "out.jsonl").code == 1
    first = folder.results
    done = folder.batch("-o", "out.jsonl")
    assert done.code == 1
    assert folder.results == first
    assert len(folder.calls) == 3
    assert "--retry-failed" in done.err
    assert "-o out.jsonl" in done.err


def test_retry_failed_calls_for_the_failed_lines_alone(folder: Folder) -> None:
    """A-116."""
    folder.items("a", "bad", "c")
    folder.batch("-o", "out.jsonl")
    folder.write("mended", "")
    done = folder.batch("-o", "out.jsonl", "--retry-failed")
    assert (done.code, folder.statuses) == (0, ["completed"] * 3)
    assert sorted(folder.calls) == ["a 1", "bad 1", "bad 1", "c 1"]


def test_a_failed_line_tells_its_code_and_the_retry_uses_an_edited_recipe(folder: Folder) -> None:
    folder.items("a", "bad")
    done = folder.batch("-o", "out.jsonl")
    assert "index 1 failed: refused (run_" in done.err
    folder.write("words.yaml", RECIPE.replace("{{ inputs.text }} {{", "now good {{"))
    done = folder.batch("-o", "out.jsonl", "--retry-failed")
    assert "the recipe was edited" in done.err
    assert [result["output"] for result in folder.results] == ["seen: a 1", "seen: now good 1"]


@pytest.mark.parametrize("text", ['[{"text": "a"}]', '[\n  {"text": "a"}\n]', "\ufeff [\n]"])
def test_a_json_list_as_items_is_told_once_with_the_command(folder: Folder, text: str) -> None:
    folder.write("items.jsonl", text)
    done = folder.batch()
    assert (done.code, done.out, folder.calls) == (2, "", [])
    assert "items.jsonl:1: the file is one JSON list" in done.err
    assert "jq -c '.[]' items.jsonl > items.jsonl" not in done.err
    assert "not JSON" not in done.err


def test_every_bad_line_is_named_before_anything_is_paid(folder: Folder) -> None:
    lines = ['{"text": "a"}', "", "{no json", "[1]", '{"text": 1}', '{"txet": "a"}']
    folder.write("items.jsonl", "\n".join(lines))
    done = folder.batch()
    assert (done.code, done.out, folder.calls) == (2, "", [])
    assert "error[bad-items]: items.jsonl:3: not JSON" in done.err
    assert "items.jsonl:4: an object of inputs was expected, not a" in done.err
    assert "items.jsonl:5: The input 'text' does not fit" in done.err
    assert "items.jsonl:6: There is no input 'txet'. Did you mean 'text'?" in done.err
    assert "Nothing was started." in done.err


def test_the_cells_of_a_csv_file_become_what_the_inputs_declare(folder: Folder) -> None:
    folder.write("items.csv", 'text,times\r\n"a, and\nb",2\r\n007,\r\n')
    done = folder.batch("-o", "out.jsonl", items="items.csv")
    assert done.code == 0, done.err
    assert [result["output"] for result in folder.results] == ["seen: b 2", "seen: 007 1"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("text,times\na,x\n", "items.csv:2: The input 'times' does not fit"),
        ('text,times\n"a\nb",1\na\n', "items.csv:4: it has 1 cells, and the head line has 2."),
        ("text,text\na,b\n", "items.csv:1: the head line has the column 'text' twice."),
        ("", "items.csv:1: the head line names no column."),
        (
            "\xef\xbb\xbftext;times\na;1\n",
            (
                "items.csv:1: the head line is one column, 'text;times': the file seems to be "
                "separated by ';'. Save it separated by commas."
            ),
        ),
        ("text\ttimes\na\t1\n", "the file seems to be separated by tabs."),
        ("text\n\xff\n", "not UTF-8"),
    ],
)
def test_a_bad_csv_file_is_told_with_its_line(
    folder: Folder, here: Path, text: str, expected: str
) -> None:
    (here / "items.csv").write_bytes(text.encode("latin-1"))
    done = folder.batch(items="items.csv")
    assert done.code == 2
    assert expected in done.err
    assert folder.calls == []


def test_an_input_of_the_command_holds_for_every_line(folder: Folder) -> None:
    folder.write("items.jsonl", '{"text": "a"}\n{"text": "b", "times": 5}\n')
    folder.batch("-o", "out.jsonl", "-p", "times=3")
    assert [result["output"] for result in folder.results] == ["seen: a 3", "seen: b 5"]


def test_a_changed_line_runs_and_is_told(folder: Folder) -> None:
    folder.items("a", "b", "c")
    folder.batch("-o", "out.jsonl")
    folder.items("a", "x", "c", "d")
    done = folder.batch("-o", "out.jsonl")
    assert "lines that had other inputs before ran again: 1 (by index)" in done.err
    assert sorted(folder.calls[3:]) == ["d 1", "x 1"]
    assert [result["output"] for result in folder.results][1] == "seen: x 1"


def test_another_name_or_model_is_another_batch(folder: Folder) -> None:
    folder.items("a")
    folder.batch()
    folder.batch("--name", "second")
    assert len(folder.calls) == 2
    folder.batch("--name", "second")
    assert len(folder.calls) == 2


def test_a_file_that_is_not_of_the_batch_is_not_written_over(folder: Folder) -> None:
    folder.items("a")
    folder.write("out.jsonl", "my notes\n")
    done = folder.batch("-o", "out.jsonl")
    assert (done.code, folder.calls) == (2, [])
    assert (folder.here / "out.jsonl").read_text() == "my notes\n"


def test_the_cost_limit_stops_before_it_is_exceeded_and_the_rest_is_not_started(
    folder: Folder,
) -> None:
    """A-116."""
    folder.items(*(f"text {n}" for n in range(20)))
    done = folder.batch("-o", "out.jsonl", "--max-cost", "0.055", "-j", "4")
    assert done.code == 5
    assert len(folder.calls) == 5
    assert folder.statuses.count("completed") == 5
    assert folder.statuses.count("not_started") == 15
    assert len(folder.results) == 20
    assert "stopped[limit-reached]: $0.05 of the batch's $0.055 are spent" in done.err
    again = folder.batch("-o", "out.jsonl", "--max-cost", "0.055", "-j", "4")
    assert (again.code, len(folder.calls)) == (5, 5)  # what was spent before counts
    assert folder.batch("-o", "out.jsonl", "--max-cost", "1").code == 0
    assert len(folder.calls) == 20


def test_the_cost_limit_counts_with_the_dearest_line_so_far(folder: Folder) -> None:
    """A-116."""
    folder.items("dear", *(f"text {n}" for n in range(20)))
    folder.batch("-o", "out.jsonl", "--max-cost", "0.1", "-j", "20")
    spent = sum(cast("float", result["cost_usd"] or 0) for result in folder.results)
    assert 0.06 < spent <= 0.1 + 1e-9


def test_lines_that_are_dearer_than_those_before_exceed_the_limit_by_one_call_at_most(
    folder: Folder,
) -> None:
    """A-116."""
    slow = "async def answer(prompt):\n    await asyncio.sleep(0.05)"
    own = MODEL.replace("def answer(prompt):", slow).replace("import os", "import asyncio, os")
    folder.write("own.py", own)
    folder.items("cheap", *(f"dear {n}" for n in range(20)))
    folder.batch("-o", "out.jsonl", "--max-cost", "0.08", "-j", "20")
    spent = sum(cast("float", result["cost_usd"] or 0) for result in folder.results)
    assert 0.07 <= spent <= 0.08 + 0.03 + 1e-9
    assert len(folder.calls) <= 4


def test_under_a_cost_limit_a_model_without_a_price_is_refused(folder: Folder) -> None:
    folder.write("minions.toml", "")
    folder.items("a", "b")
    done = folder.batch("--max-cost", "1")
    assert (done.code, folder.calls) == (4, [])
    assert "error[unknown-price]" in done.err


@pytest.mark.parametrize(
    ("model", "code"),
    [
        ("scripted/none.yaml", "bad-script"),
        ("scripted/wrods", "unknown-model"),
        ("nobody/m", "unknown-provider"),
    ],
)
def test_a_model_that_there_is_not_is_refused_once_and_not_for_each_line(
    folder: Folder, model: str, code: str
) -> None:
    folder.items("a", "b")
    done = folder.batch("-m", model, "--extensions", "own.py", "-o", "out.jsonl", model=False)
    assert (done.code, folder.calls) == (2, [])
    assert done.err.count(f"error[{code}]") == 1


def test_a_waiting_run_is_a_result_line(folder: Folder) -> None:
    folder.write(
        "words.yaml",
        "id: words\ninputs: {text: string}\nsteps:\n"
        "  - {id: sure, ask: 'Is {{ inputs.text }} right?'}\n",
    )
    folder.items("a", "b")
    done = folder.batch("-o", "out.jsonl")
    assert done.code == 3, done.err
    assert (done.code, folder.statuses) == (3, ["needs_decision"] * 2)
    error = cast("Mapping[str, str]", folder.results[0]["error"])
    assert error["code"] == "needs-decision"
    assert "minions sessions list --status needs_decision" in done.err


def test_an_interrupt_ends_in_order_and_says_how_to_continue(folder: Folder) -> None:
    folder.items("a", "interrupt", *(f"text {n}" for n in range(10)))
    before = signal.getsignal(signal.SIGINT)
    done = folder.batch("-o", "out.jsonl", "-j", "1")
    assert done.code == 130
    assert signal.getsignal(signal.SIGINT) == before
    assert len(folder.results) == 12
    assert folder.statuses[0] == "completed"
    assert set(folder.statuses[2:]) == {"not_started"}
    assert "continue: minions batch words.yaml items.jsonl -j 1 -o out.jsonl" in done.err


def test_the_printed_command_has_the_limits_that_were_given(folder: Folder) -> None:
    """A-116: whoever pastes it is not charged without a limit."""
    limits = ("--max-cost", "0.5", "--timeout", "9m", "--max-parallel", "2", "--no-cache")
    folder.items("a", "bad")
    done = folder.batch("-o", "out.jsonl", *limits)
    assert "retry what failed: minions batch words.yaml items.jsonl" in done.err
    assert "--timeout 9m --max-parallel 2 --no-cache --max-cost 0.5 --retry-failed" in done.err
    folder.items("a", "b", "c")
    raised = folder.batch("--max-cost", "0.02", "--name", "other")
    assert raised.err.count("--max-cost") == 1
    assert "--max-cost USD" in raised.err


@pytest.mark.parametrize("approve", [False, True], ids=["completed", "waiting"])
def test_the_printed_list_is_that_of_the_journal(folder: Folder, *, approve: bool) -> None:
    if approve:
        steps = 'steps: [{id: look, ask: "{{ inputs.text }}?"}]'
        folder.write("words.yaml", f"id: words\ninputs: {{text: string}}\n{steps}\n")
    folder.items("a")
    done = folder.batch()
    listed = "sessions list --status needs_decision" if approve else "sessions list"
    assert f"minions {listed} --db j.sqlite\n" in done.err


def test_json_prints_a_summary(folder: Folder) -> None:
    folder.items("a", "bad")
    done = folder.batch("--json", "-o", "out.jsonl")
    assert done.json["lines"] == 2
    assert done.json["statuses"] == {"completed": 1, "failed": 1}
    assert folder.batch("--json").code == 2


def test_in_another_folder_it_is_not_continued(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.items("a")
    folder.batch("--name", "mine")
    inner = folder.here / "inner"
    inner.mkdir()
    database = str(folder.here / "j.sqlite")
    monkeypatch.chdir(inner)
    done = folder._cli(
        "batch", "../words.yaml", "../items.jsonl", "-m", "scripted/words", "--extensions",
        "../own.py", "--name", "mine", "--db", database,
    )  # fmt: skip
    assert done.code == 2
    assert f"was started in {folder.here}" in done.err


def test_the_progress_tells_rate_time_left_and_cost() -> None:
    tally = BatchTally(total=200)
    usage = TokenUsage(input_tokens=1, cost_usd=0.25)
    for index in range(50):
        status = "failed" if index in (3, 4) else "completed"
        tally.add(BatchResult(index=index, run_id="run_1", status=status, usage=usage))
    assert tally.words(10.0) == "50/200 · 2 failed · 5/s · 30.0 s left · $12.50"


def test_recorded_lines_do_not_count_for_the_rate() -> None:
    tally = BatchTally(total=200)
    for index in range(100):
        tally.add(BatchResult(index=index, run_id="r", status="completed", is_recorded=index < 90))
    assert tally.words(10.0) == "100/200 · 1/s · 1 min 40 s left"


def test_no_item_is_no_run(folder: Folder) -> None:
    folder.write("items.jsonl", "\n")
    assert folder.batch("-o", "out.jsonl").code == 0
    assert folder.results == []


def test_a_missing_file_is_told(folder: Folder) -> None:
    done = folder.batch(items="nothing.jsonl")
    assert done.code == 2
    assert "nothing.jsonl: No such file or directory." in done.err


def test_a_result_file_that_cannot_be_written_starts_nothing(cli: Cli, write: Write) -> None:
    """Nor does it send anybody to a journal that holds no result."""
    write("one.yaml", "id: one\nsteps:\n  - {id: a, set: {x: 1}}\n")
    write("items.jsonl", "{}\n")
    done = cli("batch", "one.yaml", "items.jsonl", "-o", "no-folder/out.jsonl", "--no-store")
    assert done.code == 4
    assert "No such file or directory. Nothing was started." in done.err

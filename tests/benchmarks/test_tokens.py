"""The token benchmark: the same work in all forms, with an estimate in place of the tokenizer."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from attrs import evolve

from benchmarks.token_counting import (
    Request,
    TokenizerMissingError,
    cl100k,
    counted,
    estimate,
    prefixes_read,
)
from benchmarks.token_forms import Form, requests_of
from benchmarks.token_parts import chat_requests, parts, rows
from benchmarks.token_workloads import Edit, Mistake, NotDoneError, Workload, edits_between
from benchmarks.tokens import WORKLOADS, goals, measured, page
from minions.adapters.sandboxes.workspaces import command_sandbox
from minions.data.errors import EnvironmentRefusedError


@pytest.fixture
def sandbox() -> None:
    """Tests of workspaces run in a sandbox for commands."""
    try:
        command_sandbox()
    except EnvironmentRefusedError as error:
        pytest.skip(f"no sandbox for commands holds here: {error}")


@pytest.mark.usefixtures("sandbox")
async def test_plans_send_far_fewer_tokens_for_the_same_work() -> None:
    """A-97, A-141."""
    table = await measured("users", estimated=True)
    text = page([table], [], [0.95], estimated=True)
    print(text)  # noqa: T201  # the numbers are part of the statement
    assert set(table.counts) == set(Form)
    assert all(form.value in text for form in Form if form is not Form.ALONE)
    assert len(table.work.steps) == 6
    assert table.counts[Form.PLANNED].input <= 4_000
    assert table.fewer(Form.PLANNED) >= 0.93
    assert table.fewer(Form.PLANNED_WHOLE) >= 0.85
    assert table.cheaper(Form.PLANNED) >= 0.6
    assert table.cheaper(Form.AGENTS) > 0 > table.cheaper(Form.ALONE)
    assert table.again[Form.AGENTS].share_read >= 0.7
    assert [goal.words for goal in goals(table) if not goal.is_met] == []


@pytest.mark.usefixtures("sandbox")
async def test_a_turn_of_a_chat_reads_nine_tenths_of_the_turn_before_it_from_the_cache() -> None:
    """A-176."""
    requests = await chat_requests()
    turns = prefixes_read(requests, estimate)
    assert len(turns) > 40
    assert min(turns) >= 0.9
    other = [evolve(each, sent=(f"now {at}", *each.sent)) for at, each in enumerate(requests)]
    assert max(prefixes_read(other, estimate)) == 0


@pytest.mark.usefixtures("sandbox")
async def test_whatever_is_left_out_of_prompts_is_measured_by_itself() -> None:
    """A-178."""
    found = await parts(estimate, [Workload.read("users")])
    print("\n".join(rows(found)))  # noqa: T201  # the numbers are part of the statement
    saved = {
        each.name.partition(" (")[0]: 1 - each.used.input / each.without.input for each in found
    }
    assert saved["tools that a step does not call"] >= 0.2
    assert saved["tools that are not found"] >= 0.85
    assert saved["examples that are far from the question"] >= 0.5
    assert saved["what JSON Schema writes around fields"] >= 0.4
    enough, all_of_it = [each for each in found if "result__read" in each.name]
    assert enough.used.input <= 0.4 * enough.without.input
    assert all_of_it.used.input > all_of_it.without.input, "where it loses, the page says so"


async def test_a_form_that_does_not_do_the_work_gives_no_figure() -> None:
    work = Workload.read("users")
    more = evolve(work, after={**work.after, "docs.md": "Nobody writes it."})
    with pytest.raises(NotDoneError, match=r"not as expected: docs\.md"):
        await requests_of(more, Form.PLANNED)


@pytest.mark.parametrize("name", WORKLOADS)
def test_the_end_of_a_workload_passes_its_tests_and_the_mistake_does_not(
    name: str, tmp_path: Path
) -> None:
    work = Workload.read(name)
    evolve(work, before=work.after).put(tmp_path)
    work.check(tmp_path)
    wrong = work.after[work.mistake.path].replace(work.mistake.right, work.mistake.wrong)
    (tmp_path / work.mistake.path).write_text(wrong, "utf-8")
    with pytest.raises(NotDoneError, match="not as expected"):
        work.check(tmp_path)
    with pytest.raises(NotDoneError, match="the tests fail"):
        evolve(work, after={**work.after, work.mistake.path: wrong}).check(tmp_path)


def test_a_prefix_that_was_sent_before_costs_a_tenth() -> None:
    first = Request(sent=("a" * 4 * 1_100, "b"), answer=("c" * 8,))
    second = Request(sent=("a" * 4 * 1_100, "d" * 4), answer=())
    short = Request(sent=("a" * 4 * 1_000,), answer=())
    counts = counted([first, second, short], estimate)
    assert (counts.calls, counts.input, counts.largest, counts.output) == (3, 3_202, 1_101, 2)
    assert counts.price == pytest.approx(3_202 - 0.9 * 1_024)


def test_edits_make_one_text_of_another() -> None:
    before = "".join(f"line {number}\n" for number in range(20)) + "same\n" * 9
    after = before.replace("line 4\n", "new\n").replace("line 15\n", "")
    edits = edits_between("a.py", before, after)
    assert len(edits) == 2
    text = before
    for each in edits:
        assert text.count(each.old) == 1
        text = text.replace(each.old, each.new)
    assert text == after
    assert edits_between("a.py", "x\n" * 9, "x\n" * 8) == [
        Edit(path="a.py", old="x\n" * 9, new="x\n" * 8)
    ]


def test_a_missing_vocabulary_is_named_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    with pytest.raises(TokenizerMissingError, match=r"TIKTOKEN_CACHE_DIR.*--estimate"):
        cl100k()


async def test_a_model_that_changes_what_it_did_not_see_gives_no_figure() -> None:
    work = Workload.read("users")
    blind = evolve(
        work,
        steps=tuple(evolve(each, reads=()) for each in work.steps),
        mistake=Mistake(path="README.md", right="# Accounts", wrong="# Accounts"),
    )
    with pytest.raises(NotDoneError, match="what it was not shown"):
        await requests_of(blind, Form.HISTORY)


def test_the_figures_in_the_documents_are_those_of_the_table() -> None:
    root = Path(__file__).parents[2]
    table = (root / "benchmarks" / "tokens.md").read_text("utf-8")
    assert f"#{table.rstrip()}\n" in (root / "benchmarks" / "RESULTS.md").read_text("utf-8")
    said = (root / "docs" / "why.md").read_text("utf-8")
    [history] = re.findall(r"user management system \| one agent[^|]*\|[^|]*\| ([\d,]+) \|", table)
    [planned] = re.findall(r"user management system \| planned recipe \|[^|]*\| ([\d,]+) \|", table)
    assert f"a planned recipe sends {planned} tokens" in said
    assert f"whole history sends {history}." in said

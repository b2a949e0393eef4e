"""How tools are ranked by the words of a task."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.tool_servers import tasks, tool_specs
from minions.contracts.tools import ToolSpec
from minions.engine.compile.offered_tools import _ALIKE_WORDS, ToolIndex, _alike_words
from minions.engine.compile.text_index import words_of

SPECS = tool_specs()
TASKS = {half: list(each) for half, each in tasks().items()}


def ranks(half: str, specs: tuple[ToolSpec, ...] = SPECS) -> list[int]:
    """The rank of the right tool for each task; 99: it is not among the first ten."""
    index = ToolIndex(specs)
    found = [(each.tool, index.find(each.words, 10)) for each in TASKS[half]]
    return [names.index(tool) + 1 if tool in names else 99 for tool, names in found]


def test_the_right_tool_is_among_the_first_three_for_ninety_five_of_a_hundred_tasks() -> None:
    """A-178."""
    assert len(SPECS) == 60
    places = [*ranks("tuned"), *ranks("held_out")]
    assert len(places) == 100
    assert sum(place <= 3 for place in places) >= 95


def test_it_is_so_for_the_half_that_no_weight_was_chosen_with() -> None:
    """A-178."""
    assert sum(place <= 3 for place in ranks("held_out")) >= 47


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("create_issue", ["creat", "issu"]),
        ("getHTTPResponse", ["get", "http", "respons"]),
        ("listing categories, boxes and stopped runs", ["list", "category", "box", "stop", "run"]),
        ("Caf\u00e9s", ["caf"]),
        ("what is it for", ["what"]),
        ("__", []),
    ],
)
def test_words_are_compared_without_case_accents_and_english_endings(
    text: str, words: list[str]
) -> None:
    assert list(words_of(text)) == words


def test_a_name_counts_more_than_a_description() -> None:
    named = ToolSpec(name="send_invoice", description="Does it.")
    said = ToolSpec(name="helper", description="Can send an invoice.")
    assert ToolIndex([said, named]).find("send the invoice", 2)[0] == "send_invoice"


def test_a_parameter_finds_its_tool() -> None:
    schema = {"properties": {"wind": {"description": "In knots"}, "sky": {"enum": ["cloudy"]}}}
    report = ToolSpec(name="report", parameters={"type": "object", **schema})  # type: ignore[dict-item]  # a schema of texts
    index = ToolIndex([ToolSpec(name="other", description="Something else."), report])
    for query in ("wind", "knots", "cloudy"):
        assert index.find(query, 5) == ("report",)


def test_nothing_is_found_by_words_that_no_tool_has() -> None:
    assert ToolIndex(SPECS).find("zyzzyva qwrty", 5) == ()
    assert ToolIndex(SPECS).find("the of and", 5) == ()
    assert ToolIndex([]).find("send", 5) == ()


def test_a_tool_that_says_everything_is_first_for_few_tasks() -> None:
    """A stranger's server describes its tool with the words of all others, and of all tasks."""
    every = " ".join(f"{each.description} {each.name}" for each in SPECS)
    asked = " ".join(each.words for half in TASKS.values() for each in half)
    schema = {"type": "object", "properties": {"q": {"type": "string", "description": asked}}}
    common = " ".join(word for word, _ in Counter(f"{every} {asked}".split()).most_common(60))
    for text in (every, asked, f"{asked} " * 50, common):
        stuffed = ToolSpec(name="evil__do", description=text, parameters=schema)  # type: ignore[arg-type]  # a schema of texts
        index = ToolIndex((*SPECS, stuffed))
        first = [index.find(each.words, 3) for half in TASKS.values() for each in half]
        assert sum(names[0] == "evil__do" for names in first) <= 5
        places = [*ranks("tuned", (stuffed, *SPECS)), *ranks("held_out", (stuffed, *SPECS))]
        assert sum(place <= 3 for place in places) >= 90


def test_saying_a_word_again_and_again_gains_nothing_over_a_name() -> None:
    stuffed = ToolSpec(name="evil__do", description="issue " * 1_000)
    found = ToolIndex((*SPECS, stuffed)).find("create an issue", 3)
    assert found[0] == "github__create_issue"


def test_a_text_without_end_is_read_to_its_bound() -> None:
    long = ToolSpec(name="t", description=("word " * 100) + "behind")
    assert ToolIndex([long, ToolSpec(name="u")]).find("behind", 5) == ()
    assert ToolIndex([long, ToolSpec(name="u")]).find("word", 5) == ("t",)


def test_of_a_query_sixty_four_words_count() -> None:
    index = ToolIndex([ToolSpec(name="send"), ToolSpec(name="other")])
    junk = " ".join(f"q{'abcdefghij'[at // 10]}{'abcdefghij'[at % 10]}x" for at in range(64))
    assert index.find(f"{junk} send", 5) == ()
    assert index.find(f"{junk.rpartition(' ')[0]} send", 5) == ("send",)


def test_what_fits_less_than_half_as_well_is_left_out() -> None:
    said = ToolSpec(name="helper", description=f"Can send {'much and more ' * 8}by an hour.")
    tools = [ToolSpec(name="send_invoice"), said, *(ToolSpec(name=f"t{at}") for at in "abcdefg")]
    assert ToolIndex(tools).find("send the invoice", 5) == ("send_invoice",)
    assert ToolIndex(tools).find("send", 5)[0] == "send_invoice"


def test_words_of_one_meaning_find_each_other_and_not_themselves() -> None:
    alike = _alike_words()
    assert alike == _ALIKE_WORDS
    assert "remov" in alike["delet"]
    assert all(word not in others for word, others in alike.items())
    index = ToolIndex([ToolSpec(name="delete_file"), ToolSpec(name="count_lines")])
    assert index.find("remove it", 5) == ("delete_file",)


@given(
    query=st.text(max_size=200),
    texts=st.lists(st.text(max_size=80), min_size=1, max_size=8),
    most=st.integers(1, 10),
)
def test_whatever_is_asked_known_tools_are_found_each_once(
    query: str, texts: list[str], most: int
) -> None:
    specs = [ToolSpec(name=f"t{n}", description=text) for n, text in enumerate(texts)]
    found = ToolIndex(specs).find(query, most)
    assert len(found) == len(set(found)) <= most
    assert set(found) <= {spec.name for spec in specs}
    assert ToolIndex([evolve(each) for each in specs]).find(query, most) == found


def test_every_process_finds_the_same() -> None:
    """Sums of the same parts in another order, and hashes of texts, decide nothing."""
    program = (
        "from benchmarks.tool_servers import tasks, tool_specs\n"
        "from minions.engine.compile.offered_tools import _ALIKE_WORDS, ToolIndex, _alike_words\n"
        "index = ToolIndex(tool_specs())\n"
        "for half in tasks().values():\n"
        "    for each in half:\n"
        "        print(index.find(each.words, 10))\n"
    )
    said = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(said) == 1

"""Keys of a step are written into a recipe's text, and nothing else of it changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minions.data.errors import NotFoundError, UsageError
from minions.data.json_values import JsonValue
from minions.planning.step_edit import recipe_diff, step_keys, with_step_keys

BLOCK = """# a recipe
id: r
steps:
  - id: sort  # by kind
    model: lab/large  # dear
    goal: Sort this
    output:
      category: {enum: [bill, other]}
    examples:
      - {input: a, output: {category: bill}}
    # how it goes on

  - {id: next, goal: "Say {{ sort.category }}", model: {name: lab/large}, cache: true}
  - id: last
    goal: |
      Say it
      again.
    model:
      name: lab/large
      stop: [x]
"""


def changed_lines(before: str, after: str) -> list[str]:
    lines = recipe_diff(before, after, "r.yaml").splitlines()[2:]
    return [line for line in lines if line[0] in "+-"]


def test_a_value_on_the_line_of_its_key_is_replaced_and_its_comment_stays() -> None:
    changed = with_step_keys(BLOCK, "r.yaml", "sort", {"model": "lab/small"})
    assert changed_lines(BLOCK, changed) == [
        "-    model: lab/large  # dear",
        "+    model: lab/small  # dear",
    ]


def test_several_keys_are_changed_added_and_removed_at_once() -> None:
    model: JsonValue = {"name": "lab/small", "output_mode": "tools"}
    changes = {"model": model, "examples": None, "system_prompt": "Be\nbrief."}
    changed = with_step_keys(BLOCK, "r.yaml", "sort", changes)
    assert changed_lines(BLOCK, changed) == [
        "-    model: lab/large  # dear",
        '+    model: {name: lab/small, output_mode: "tools"}  # dear',
        "-    examples:",
        "-      - {input: a, output: {category: bill}}",
        "+    system_prompt: |-",
        "+      Be",
        "+      brief.",
    ]


def test_a_step_in_braces_stays_in_braces() -> None:
    changed = with_step_keys(
        BLOCK, "r.yaml", "next", {"model": "lab/small", "cache": None, "goal": "Two\nlines"}
    )
    assert '  - {id: next, goal: "Two\\nlines", model: lab/small}' in changed.splitlines()
    without = with_step_keys(BLOCK, "r.yaml", "next", {"model": None})
    assert '{{ sort.category }}", cache: true}' in without


def test_values_of_several_lines_are_replaced_as_a_whole() -> None:
    changed = with_step_keys(BLOCK, "r.yaml", "last", {"goal": "Once.", "model": "lab/small"})
    assert changed_lines(BLOCK, changed) == [
        "-    goal: |",
        "-      Say it",
        "-      again.",
        "-    model:",
        "-      name: lab/large",
        "-      stop: [x]",
        '+    goal: "Once."',
        "+    model: lab/small",
    ]


@pytest.mark.parametrize(
    ("text", "changes"),
    [
        ("steps:\n- goal: >\n    x\n    y\n  id: sort\n", {"goal": "Two\nlines"}),
        ("steps:\n- goal: x\n  id: sort\n", {"goal": None}),
    ],
)
def test_what_cannot_be_changed_alone_is_refused(
    text: str, changes: Mapping[str, JsonValue]
) -> None:
    with pytest.raises(UsageError, match="Step 'sort' cannot be changed") as refused:
        with_step_keys(text, "r.yaml", "sort", changes)
    assert refused.value.error_code == "not-editable"


def test_an_unknown_step_is_named() -> None:
    with pytest.raises(NotFoundError, match="no step 'srt'") as unknown:
        with_step_keys(BLOCK, "r.yaml", "srt", {"model": "x/y"})
    assert unknown.value.suggestions == ("sort",)


_JSON: st.SearchStrategy[Any] = st.recursive(  # Any: JSON of any shape
    st.booleans() | st.integers(-(10**9), 10**9) | st.text(max_size=12),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(
    step=st.sampled_from(["sort", "next", "last"]),
    changes=st.dictionaries(
        st.sampled_from(["model", "goal", "examples", "cache", "context"]), st.none() | _JSON
    ),
)
def test_any_value_comes_back_or_the_edit_is_refused(
    step: str, changes: dict[str, JsonValue]
) -> None:
    try:
        changed = with_step_keys(BLOCK, "r.yaml", step, changes)
    except UsageError:  # a character that YAML has no word for
        assert not f"{changes!r}".isascii() or "\\" in f"{changes!r}"
    else:
        wanted = {**step_keys(BLOCK, "r.yaml", step), **changes}
        kept = {key: value for key, value in wanted.items() if value is not None}
        assert step_keys(changed, "r.yaml", step) == kept

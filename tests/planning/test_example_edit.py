"""Examples are written into a recipe's text, and nothing else of it changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minions.data.errors import NotFoundError, UsageError
from minions.data.json_values import JsonValue
from minions.planning.step_edit import examples_in, recipe_diff, with_examples

BLOCK = """# a recipe
id: r
inputs: {text: {type: string}}
steps:
  - id: sort  # by kind
    goal: |
      Sort this:
        {{ inputs.text }}

    output:
      category: {enum: [bill, other]}
    # how it goes on

  - {id: next, goal: "Say {{ sort.category }}"}
output: "{{ next }}"
"""
ONE: dict[str, JsonValue] = {"input": {"text": "Pay: now # {!}"}, "output": {"category": "bill"}}
TWO: dict[str, JsonValue] = {"input": "What?\nNow?", "output": {"on": [1, None, True, "no"]}}


def test_they_stand_behind_the_output_and_the_rest_stays_as_it_was() -> None:
    changed = with_examples(BLOCK, "r.yaml", "sort", [ONE])
    assert recipe_diff(BLOCK, changed, "r.yaml").splitlines()[2:] == [
        "@@ -9,6 +9,8 @@",
        " ",
        "     output:",
        "       category: {enum: [bill, other]}",
        "+    examples:",
        '+      - {input: {text: "Pay: now # {!}"}, output: {category: "bill"}}',
        "     # how it goes on",
        " ",
        '   - {id: next, goal: "Say {{ sort.category }}"}',
    ]
    assert examples_in(changed, "r.yaml", "sort") == [ONE]


def test_examples_that_are_there_are_replaced() -> None:
    once = with_examples(BLOCK, "r.yaml", "sort", [ONE, TWO])
    again = with_examples(once, "r.yaml", "sort", [TWO])
    assert examples_in(again, "r.yaml", "sort") == [TWO]
    assert with_examples(again, "r.yaml", "sort", [ONE, TWO]) == once
    assert with_examples(once, "r.yaml", "sort", [ONE]) == with_examples(
        BLOCK, "r.yaml", "sort", [ONE]
    )


def test_a_step_in_braces_stays_in_braces() -> None:
    changed = with_examples(BLOCK, "r.yaml", "next", [ONE])
    assert '{{ sort.category }}", examples: [{input: {text: "Pay' in changed
    assert examples_in(changed, "r.yaml", "next") == [ONE]
    assert examples_in(with_examples(changed, "r", "next", [TWO]), "r", "next") == [TWO]


@pytest.mark.parametrize(
    "text",
    [
        "steps:\n- id: sort\n  goal: x",
        "steps:\n- id: sort\n  examples:\n  - {input: a, output: b}\n  # why\n  goal: x\n",
        "steps:\n- goal: >-\n    x\n\n    y\n  id: sort\n  tools:\n  - a\n  - b\n",
        "steps: [{id: sort, goal: x,}]\n",
        "steps:\n- {goal: x, examples: [{input: a, output: b}], id: sort}\nname: y\n",
        "steps:\r\n- id: sort\r\n  goal: x\r\n  save_as: y\r\n",
        "steps:\n- id: sort\n  goal: x\n  output:\n  - not a schema\n  when: y\n",
        "id: ä\nsteps:\n- id: sort\n  goal: 'ü'\n  examples:\n    - {input: ä, output: b}\n\n",
    ],
)
def test_any_layout_of_a_step_is_kept(text: str) -> None:
    changed = with_examples(text, "r.yaml", "sort", [ONE, TWO])
    assert examples_in(changed, "r.yaml", "sort") == [ONE, TWO]
    kept = [line for line in text.splitlines() if "examples" not in line and "input: a" not in line]
    lines = [line.rstrip() for line in changed.splitlines()]
    if "[{" not in text:
        assert all(line in lines for line in kept if "input: ä" not in line)


def test_what_would_change_more_is_refused() -> None:
    text = "x: &it\n  - {input: a, output: b}\nsteps:\n- id: sort\n  goal: x\n  <<: {goal: y}\n"
    with pytest.raises((UsageError, Exception)):
        with_examples(text, "r.yaml", "sort", [ONE])
    with pytest.raises(NotFoundError, match="no step 'srt'") as unknown:
        with_examples(BLOCK, "r.yaml", "srt", [ONE])
    assert unknown.value.suggestions == ("sort",)


_JSON: st.SearchStrategy[Any] = st.recursive(  # Any: JSON of any shape
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.text(max_size=12),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(asked=_JSON, answer=_JSON)
def test_any_value_comes_back_or_the_edit_is_refused(asked: JsonValue, answer: JsonValue) -> None:
    example: Mapping[str, JsonValue] = {"input": asked, "output": answer}
    try:
        changed = with_examples(BLOCK, "r.yaml", "sort", [example])
    except UsageError:  # a character that YAML has no word for
        assert not f"{asked!r}{answer!r}".isascii() or "\\" in f"{asked!r}{answer!r}"
    else:
        assert examples_in(changed, "r.yaml", "sort") == [dict(example)]

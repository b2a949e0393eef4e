"""`formatted` changes blanks alone: comments, quotes and the meaning stay."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minions.data.errors import RecipeError
from minions.recipe.text.nodes import to_plain
from minions.recipe.text.recipe_format import formatted
from minions.recipe.text.yaml_reader import read_document, yaml_text

ROOT = Path(__file__).resolve().parents[2]
WIDE = """\
# top
inputs:
    name:   "text"   # why
    # deep
    other: {a:
      b}
steps:
-   id: one\x20\x20
    # of the goal
    goal: |
        Hello\x20\x20
          there

        # no comment
    output:
        items:
        - a
        -   b: 1
            c:
            - - x
              - 'y'
#   two
- id: two
  goal: >-
     x
     y
  when: "a
     b"
  # last


"""
USUAL = """\
# top
inputs:
  name:   "text"   # why
  # deep
  other: {a:
    b}
steps:
  - id: one
    # of the goal
    goal: |
        Hello\x20\x20
          there

        # no comment
    output:
      items:
        - a
        - b: 1
          c:
            - - x
              - 'y'
  #   two
  - id: two
    goal: >-
       x
       y
    when: "a
       b"
    # last
"""


def _recipes() -> list[Path]:
    folders = ("recipes", "tests/bad_recipes", "minions")
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.yaml"))


def _meaning(text: str) -> object:
    return to_plain(read_document(text))


def test_blocks_get_the_usual_indentation_and_texts_stay() -> None:
    """Formatting (A-165)."""
    assert formatted(WIDE) == USUAL


def test_formatting_again_changes_nothing() -> None:
    assert formatted(USUAL) == USUAL


def test_shipped_recipes_are_formatted() -> None:
    for path in sorted((ROOT / "recipes").rglob("*.yaml")):
        text = path.read_text("utf-8")
        assert formatted(text) == text, path.name


@pytest.mark.parametrize("width", [1, 3, 4])
def test_recipes_of_any_indentation_come_to_one_form(width: int) -> None:
    for path in _recipes():
        text = path.read_bytes().decode("utf-8", "replace")
        lines = text.split("\n")
        wide = "\n".join(
            " " * ((len(line) - len(line.lstrip(" "))) * width) + line.lstrip(" ") + " " * width
            for line in lines
        )
        try:
            meaning = _meaning(wide)
        except RecipeError:
            continue
        found = formatted(wide)
        assert _meaning(found) == meaning, path.name
        assert formatted(found) == found, path.name


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=20),
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
        ),
        max_leaves=15,
    )
)
def test_any_document_keeps_its_meaning(value: object) -> None:
    text = yaml_text({"a": value})  # type: ignore[dict-item]  # JSON
    try:
        meaning = _meaning(text)
    except RecipeError:
        return
    found = formatted(text)
    assert _meaning(found) == meaning
    assert formatted(found) == found


@pytest.mark.parametrize(
    "text",
    [
        "a: &x\n    b: 1\nc: *x\n",
        "a:\n    -\n        b: 1\n",
        "? a\n: b\n",
        "a: !!str\n    1\n",
        "{a: [1,\n    2]}\n",
        "- a\n",
        "a: |2\n    two\n   one\n",
        "a: |+\n    text\n\n\n",
        '"a b":\n    1\n',
        "a:\n   b: 1\n   # c\n# d\n",
        "a: x # 1\n     # 2\n",
        "\ufeffa:\n    b: 1\n",
        "a:\r\n    b: 1   \r\n",
        "a: 'x\u2028 y'\n",
        "a:\n    b:\n\n    c: 1\n",
        "---\na:\n    b: 1\n...\n",
    ],
)
def test_unusual_forms_keep_their_meaning(text: str) -> None:
    found = formatted(text)
    assert _meaning(found) == _meaning(text)
    assert formatted(found) == found


def test_ends_of_lines_stay_as_they_are() -> None:
    assert formatted("a:\r\n    b: 1   \r\n") == "a:\r\n  b: 1\r\n"


def test_what_is_not_yaml_is_refused() -> None:
    with pytest.raises(RecipeError):
        formatted("a: [\n")

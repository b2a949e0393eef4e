"""The one JSON value in what a model wrote: A-37."""

from __future__ import annotations

import json

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from minions.data.json_values import JsonValue, dumps, find_json_value, parse_json

leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
)
values = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
containers = st.lists(values, max_size=4) | st.dictionaries(st.text(), values, max_size=4)
prose = st.text(st.characters(exclude_characters="{}[]"))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": 1}', {"a": 1}),
        (" \n[1, 2]\t", [1, 2]),
        ("42", 42),
        ("null", None),
        ('"text"', "text"),
        ("false", False),
        ('```json\n{"a": 1}\n```', {"a": 1}),
        ("```\n[1]\n```", [1]),
        ('Here:\n```json\n{"a": "```"}\n```\nDone.', {"a": "```"}),
        ('The answer is {"a": 1}. Enjoy!', {"a": 1}),
        ('Result: [{"a": "}"}, "]"] and so on', [{"a": "}"}, "]"]),
        ('{"text": "a } b { c ] [", "n": [1]}', {"text": "a } b { c ] [", "n": [1]}),
        ('{"quote": "\\"{"} trailing', {"quote": '"{'}),
        ('Use {} or {name}; I chose {"name": "x", "n": 1}', {"name": "x", "n": 1}),
        ("[see note] [1, 2, 3]", [1, 2, 3]),
        ('{"a": 1} {"a": 1, "b": 2} {"c": 3}', {"a": 1, "b": 2}),
        ('{broken {"a": 1}', {"a": 1}),
        ('{"ключ": "значение 🦉"}', {"ключ": "значение 🦉"}),
        ('<think>{"draft": 1}</think>{"final": true, "n": 2}', {"final": True, "n": 2}),
    ],
)
def test_the_value_is_found_in_fences_and_prose(text: str, value: JsonValue) -> None:
    """A-37."""
    assert find_json_value(text) == value


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "the text is empty"),
        ("  \n ", "the text is empty"),
        ("no JSON here", "no JSON object or array in the text that starts with 'no JSON here'"),
        ("{'a': 1}", "no JSON object or array"),
        ('{"a": 1', "no JSON object or array"),
        ("The number is 42", "no JSON object or array"),
        ('so: {"a": 1e999}', "1e999 is not a number that JSON can express"),
        ("NaN", "no JSON object or array"),
        ('{"a": NaN}', "NaN is not a number that JSON can express"),
        ('{"a": -Infinity}', "-Infinity is not a number that JSON can express"),
        ('so {"a": 1e999} it is', "1e999 is not a number that JSON can express"),
    ],
)
def test_where_there_is_none_the_error_says_what_stands_there(text: str, words: str) -> None:
    """A-37."""
    with pytest.raises(ValueError, match="JSON") as caught:
        find_json_value(text)
    assert words in str(caught.value)


@given(value=values)
def test_the_whole_text_wins_whatever_it_is(value: JsonValue) -> None:
    """A-37: bare scalars too."""
    assert find_json_value(json.dumps(value, indent=2)) == value
    assert find_json_value(f" {dumps(value)}\n") == value


@given(before=prose, value=containers, after=prose)
def test_an_object_or_array_in_prose_is_found(before: str, value: JsonValue, after: str) -> None:
    """A-37."""
    assume(not before.strip().startswith('"'))  # a text in quotes may be one JSON string
    assert find_json_value(f"{before} {dumps(value)} {after}") == value


@given(value=containers)
def test_an_object_or_array_in_a_fence_is_found(value: JsonValue) -> None:
    """A-37."""
    assert find_json_value(f"Sure:\n```json\n{json.dumps(value, indent=1)}\n```\nBye.") == value


@given(text=st.text(st.sampled_from('{}[]",:a1\\ \n')))
def test_any_text_gives_a_value_or_a_value_error(text: str) -> None:
    """A-37."""
    try:
        value = find_json_value(text)
    except ValueError:
        return
    assert find_json_value(dumps(value)) == value


@pytest.mark.parametrize("text", ["{" * 200_000, "[" * 200_000, '{"a":' * 50_000, "[1," * 100_000])
def test_a_text_full_of_openings_is_given_up(text: str) -> None:
    """A-37: a search that begins anew at each of them would take hours."""
    with pytest.raises(ValueError, match="no JSON object or array"):
        find_json_value(text)


@given(value=values)
def test_compact_text_is_read_back(value: JsonValue) -> None:
    assert json.loads(dumps(value)) == value


def test_compact_text_refuses_what_json_cannot_say() -> None:
    with pytest.raises(ValueError, match="Out of range float"):
        dumps(float("nan"))


@pytest.mark.parametrize("depth", [301, 700, 100_000])
@pytest.mark.parametrize("ends", [("[", "]"), ('{"a":', "}"), ('[1, {"b": "]", "a": ', "}]")])
def test_a_value_that_nobody_could_work_with_is_refused(depth: int, ends: tuple[str, str]) -> None:
    text = f"{ends[0] * depth}1{ends[1] * depth}"
    for read in (parse_json, find_json_value):
        with pytest.raises(ValueError, match=r"nested too deep|no JSON object"):
            read(text)


def test_many_values_beside_each_other_are_not_deep() -> None:
    value: JsonValue = [[{"a": []}] * 500] * 3
    assert parse_json(dumps(value)) == value
    deepest: JsonValue = 1
    for _ in range(300):
        deepest = [deepest]
    assert find_json_value(f"Here: {dumps(deepest)} it is.") == deepest

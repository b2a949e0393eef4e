"""Between contracts and JSON: strict, closed, and there and back again."""

from __future__ import annotations

import datetime
import enum
import json
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

import pytest
from attrs import frozen
from hypothesis import given
from hypothesis import strategies as st

from minions.contracts.messages import Message, MessageRole, ToolCallRequest
from minions.contracts.steps import StepScope
from minions.data.codec import decode, encode
from minions.data.json_values import JsonValue


class Colour(enum.StrEnum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 2


@frozen
class Box:
    size: int
    names: tuple[str, ...] = ()


class Pair(NamedTuple):
    left: int
    right: str


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def kinds_of(value: object) -> object:
    """The value with the type of each part."""
    if isinstance(value, dict):
        return dict, {(type(key), key): kinds_of(item) for key, item in value.items()}
    if isinstance(value, list):
        return list, [kinds_of(item) for item in value]
    return type(value), value


# --- writing -----------------------------------------------------------------------------------


@given(value=json_values)
def test_json_is_written_as_it_is(value: JsonValue) -> None:
    assert kinds_of(encode(value)) == kinds_of(value)
    assert kinds_of(decode(value, object)) == kinds_of(value)


@given(value=json_values)
def test_what_was_written_is_a_copy(value: JsonValue) -> None:
    written = encode([value])
    assert json.loads(json.dumps(written)) == [value]
    if isinstance(value, list | dict):
        assert isinstance(written, list)
        assert written[0] is not value


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (Box(1, ("a",)), {"size": 1, "names": ["a"]}),
        ({"box": [Box(1)]}, {"box": [{"size": 1, "names": []}]}),
        (Colour.RED, "red"),
        (Level.HIGH, 2),
        ({Colour.RED: Level.HIGH}, {"red": 2}),
        ([Colour.RED, {"role": MessageRole.USER}], ["red", {"role": "user"}]),
        ((1, 2), [1, 2]),
        (Pair(1, "x"), [1, "x"]),
        ({3, 1, 2}, [1, 2, 3]),
        (frozenset(["b", "a"]), ["a", "b"]),
        (b"\x00\xff", "AP8="),
        ({Box(2), Box(1)}, [{"size": 1, "names": []}, {"size": 2, "names": []}]),
        ({"a": [frozenset([(2, 1), (1, 2)])]}, {"a": [[[1, 2], [2, 1]]]}),
        (pathlib.Path("a/b"), "a/b"),
        (datetime.date(2026, 1, 2), "2026-01-02"),
        (datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC), "2026-01-02T00:00:00+00:00"),
        (-0.0, -0.0),
        (2**70, 2**70),
    ],
)
def test_python_values_become_plain_json(value: object, written: JsonValue) -> None:
    assert kinds_of(encode(value)) == kinds_of(written)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (float("nan"), "nan is not a JSON number"),
        ([float("inf")], "inf is not a JSON number"),
        ({"a": -float("inf")}, "-inf is not a JSON number"),
        ({1: "a"}, "1 is not a string; JSON object keys are"),
        ({None: 1}, "None is not a string"),
        (object(), "builtins.object is not JSON"),
        ([{"a": {1, object}}], "is not JSON"),
        (lambda: 0, "function is not JSON"),
        (1j, "complex is not JSON"),
        (StepScope, "is not JSON"),
    ],
)
def test_what_json_cannot_say_is_refused_by_name(value: object, words: str) -> None:
    with pytest.raises(TypeError) as caught:
        encode(value)
    assert words in str(caught.value)


# --- reading -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "hint", "read"),
    [
        ({"size": 1}, Box, Box(1)),
        ({"size": 1, "names": ["a"]}, Box, Box(1, ("a",))),
        (1, float, 1.0),
        ("red", Colour, Colour.RED),
        (2, Level, Level.HIGH),
        (None, int | None, None),
        ("5", int | str, "5"),
        (5, int | str, 5),
        ([1], Sequence[int], (1,)),
        ({"a": {"size": 1}}, Mapping[str, Box], {"a": Box(1)}),
        ("AP8=", bytes, b"\x00\xff"),
        ("a/b", pathlib.Path, pathlib.Path("a/b")),
        ("b", Literal["a", "b"], "b"),
        ([1, "x"], tuple[int, str], (1, "x")),
    ],
)
def test_json_becomes_what_was_asked_for(
    value: JsonValue, hint: type[object], read: object
) -> None:
    found = decode(value, hint)
    assert (type(found), found) == (type(read), read)


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        ("1", int),
        (1.0, int),
        (True, int),
        (1, str),
        (None, str),
        (1, bool),
        ("true", bool),
        ("1.5", float),
        (True, float),
        (["1"], list[int]),
        ([1.5], tuple[int, ...]),
        ([1], set[str]),
        ({"n": "1"}, dict[str, int]),
        ({"n": 1}, dict[str, bool]),
        ({"n": "1"}, Mapping[str, float]),
        ("1", int | None),
        ("blue", Colour),
        ("2", Level),
        ("c", Literal["a", "b"]),
        ("?", bytes),
        (5, pathlib.Path),
        (5, datetime.datetime),
        ("yesterday", datetime.date),
        ({}, Box),
        ({"size": 1, "colour": "red"}, Box),
        ({"size": "1"}, Box),
        ([1], Box),
        (None, Box),
        ({"a": 1}, int | str),
        ("ab", tuple[str, ...]),
        ("ab", list[str]),
        ({"a": 1}, list[str]),
        ({"a": 1}, Sequence[str]),
        ("ab", Iterable[str]),
        ({"size": 1, "names": "ab"}, Box),
        ("ab", set[str]),
        ({"a": 1}, frozenset[str]),
    ],
)
def test_nothing_is_coerced_and_nothing_is_added(value: JsonValue, hint: type[object]) -> None:
    with pytest.raises(ValueError, match=r"\$") as caught:
        decode(value, hint)
    assert "unknown error" not in str(caught.value) or hint is not int


def test_every_place_that_does_not_fit_has_its_line() -> None:
    with pytest.raises(ValueError, match="expected") as caught:
        decode([{"size": "1"}, {"size": 2, "names": [3]}], list[Box])
    assert str(caught.value).split("; ") == [
        "expected integer, got string '1' @ $[0].size",
        "expected string, got number 3 @ $[1].names[0]",
    ]


texts = st.text()
requests = st.builds(ToolCallRequest, id=texts, name=texts, arguments=texts)
messages = st.builds(
    Message,
    role=st.sampled_from(MessageRole),
    content=st.none() | texts,
    tool_calls=st.lists(requests, max_size=3).map(tuple),
    tool_call_id=st.none() | texts,
    name=st.none() | texts,
)


@given(message=messages)
def test_a_message_is_read_back_as_it_was_written(message: Message) -> None:
    written = encode(message)
    assert decode(json.loads(json.dumps(written)), Message) == message
    assert kinds_of(written) == kinds_of(json.loads(json.dumps(written)))

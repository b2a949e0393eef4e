"""JSON in parts is JSON as a whole, in texts, values and errors."""

from __future__ import annotations

import json
import random

import pytest
from attrs import frozen
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from minions.data import json_parts
from minions.data.json_parts import decode_in_parts, encoded_parts, is_large
from minions.data.json_values import JsonValue, dumps, parse_json
from patience import counted_work


def some_value(chance: random.Random, depth: int = 4) -> JsonValue:
    kind = chance.randrange(8 if depth else 5)
    if kind >= 5:
        count = chance.choice((0, 1, 3, 50))
        items = [some_value(chance, depth - 1) for _ in range(count)]
        return items if kind > 5 else {f'k{at}\u2028"': each for at, each in enumerate(items)}
    texts = ("", "é\ud800x", 'a"b\\\n', "x" * 500)
    return (None, True, -7, 1.5e300, chance.choice(texts))[kind]


@pytest.mark.parametrize("part", [16, 64, 1_000])
def test_the_parts_are_the_text_of_the_whole(part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_parts, "_PART", part)
    chance = random.Random(part)
    for _ in range(200):
        value = some_value(chance)
        assert "".join(encoded_parts(value, dumps)) == dumps(value)
    odd: list[JsonValue] = [
        [],
        {},
        [[]] * 40,
        list(range(40)),
        [list(range(40)), 1, [2]],
        ["x" * 9_999] * 3,
    ]
    for value in odd:
        assert "".join(encoded_parts(value, dumps)) == dumps(value)


def test_no_part_is_longer_than_allowed() -> None:
    value: JsonValue = {
        "numbers": [1] * 50_000,
        "rows": [{"a": [1, 2, 3], "b": "x"} for _ in range(20_000)],
        "lists": [[]] * 50_000,
        "deep": [[[1] * 30_000]],
    }
    parts = list(encoded_parts(value, dumps))
    assert max(part.count(",") + part.count("[") for part in parts) < 3 * 4_096
    assert len(parts) < 2_000


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=8) | st.dictionaries(st.text(), inner, max_size=8),
    max_leaves=40,
)


@given(
    value=JSON_VALUES,
    window=st.integers(1, 80),
    indent=st.sampled_from((None, 1)),
    is_ascii=st.booleans(),
)
def test_a_text_is_decoded_in_parts_as_in_one(
    value: JsonValue, window: int, indent: int | None, is_ascii: bool
) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=is_ascii)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_parts, "_WINDOW", window)
        patch.setattr(json_parts, "LONG_TEXT", 0)
        assert decode_in_parts(f" {text}\n", json.JSONDecoder()) == json.loads(text)


@given(
    value=JSON_VALUES,
    window=st.integers(1, 80),
    at=st.integers(0, 200),
    mark=st.sampled_from('{}[],:"1\\ '),
)
def test_a_damaged_text_is_refused_or_read_in_parts_as_in_one(
    value: JsonValue, window: int, at: int, mark: str
) -> None:
    text = json.dumps(value)
    text = text[: at % len(text)] + mark + text[at % len(text) + 1 :]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_parts, "_WINDOW", window)
        patch.setattr(json_parts, "LONG_TEXT", 0)
        try:
            expected = json.loads(text)
        except ValueError:
            with pytest.raises(ValueError):  # noqa: PT011  # any refusal
                decode_in_parts(text, json.JSONDecoder())
        else:
            assert decode_in_parts(text, json.JSONDecoder()) == expected


@pytest.mark.parametrize("text", ["word " * 60_000, "a, b " * 60_000, "}, " * 90_000])
def test_one_long_text_within_an_object_is_read(text: str) -> None:
    for value in ({"output": text}, {"output": text, "facts": [1, 2]}, [text], [[text], {}]):
        assert parse_json(json.dumps(value), in_parts=True) == value


LONG = "[" + "1," * 100_000


@pytest.mark.parametrize(
    "text",
    [
        LONG,
        LONG + "]",
        LONG + "2] x",
        LONG + "nul]",
        LONG + "2}",
        '{"a": ' + LONG + "1], }",
        '{"a": ' + LONG + '1] "b": 1}',
        " " * 200_000,
        "x" * 200_000,
        '"' + "x" * 200_000,
        LONG + "NaN]",
        LONG + "1e999]",
        "[" * 200_000,
        "[" * 400 + LONG + "1]" + "]" * 400,
    ],
    ids=lambda text: text[-12:],
)
def test_a_long_text_that_is_no_json_has_the_error_of_a_short_one(text: str) -> None:
    found = []
    for in_parts in (True, False):
        with pytest.raises(ValueError) as refused:  # noqa: PT011  # the words are compared
            parse_json(text, in_parts=in_parts)
        found.append(str(refused.value))
    assert found[0] == found[1]


def test_names_that_are_there_twice_are_found_in_long_texts() -> None:
    with pytest.raises(ValueError, match="'a' is given twice"):
        parse_json('{"a": ' + LONG + '1], "a": 1}', unique_keys=True, in_parts=True)


@frozen
class Held:
    inner: object


class Row(Struct):
    inner: object


@pytest.mark.parametrize(
    ("value", "is_so"),
    [
        (None, False),
        (1, False),
        ("x" * 640, False),
        ("x" * 641, True),
        (["x" * 641], True),
        ([1] * 10, False),
        ([1] * 11, True),
        ([[1] * 4] * 2, False),
        ([[1] * 5] * 2, True),
        ({"a": 1, "b": {"c": [1] * 8}}, True),
        (Held([1] * 11), True),
        (Held((1,) * 9), False),
        (Row(inner={"a": [1] * 11}), True),
        (Row(inner=Held(1)), False),
        (len, False),
    ],
    ids=str,
)
def test_what_is_large(value: object, is_so: bool) -> None:
    assert is_large(value, 10) is is_so


def test_to_see_that_a_value_is_large_costs_no_more_than_the_limit() -> None:
    counts = []
    for size in (10_000, 100_000):
        value = [[number] for number in range(size)]
        with counted_work() as work:
            assert is_large(value)
        counts.append(work.calls)
    assert counts[0] == counts[1]


@pytest.mark.parametrize("behind", ['], "more": [1, 2]}', ']}, {"a": "x"}]', "]}"])
@pytest.mark.parametrize("size", [40_000, 60_000, 90_000, 100_000])
def test_the_end_of_a_long_list_is_read_at_once(size: int, behind: str) -> None:
    """Wherever it stands in its window, and whatever follows."""
    text = '{"a": [' + "0, " * size + f"0{behind}"
    text = f"[{text}" if behind.endswith("]") else text
    with counted_work() as work:
        assert parse_json(text, in_parts=True) == json.loads(text)
    assert work.calls < 2_000

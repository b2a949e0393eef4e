"""JSON Schemas from hints, the checks on schemas from strangers, and patterns that could hang."""

from __future__ import annotations

import asyncio
import datetime
import enum
import math
import pathlib
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypedDict

import pytest
from attrs import define, field, frozen, make_class
from hypothesis import given
from hypothesis import strategies as st

from minions.contracts.instructions import OutputInstructions
from minions.contracts.messages import TokenUsage
from minions.data.codec import decode, encode
from minions.data.errors import SchemaError
from minions.data.hint_schemas import schema_of
from minions.data.json_values import JsonValue, dumps
from minions.data.patterns import (
    AT_ONCE_S,
    IN_ALL_S,
    PATTERN_TIME_S,
    MatchTime,
    compiled_pattern,
    match_beside_loop,
    search,
)
from minions.data.schema import JsonSchema, SchemaValidator, check_schema


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


@frozen
class Point:
    """Where it is.

    More that a model does not need.
    """

    x: int
    y: float = 0.0


@frozen
class Tree:
    name: str
    children: tuple[Tree, ...] = ()


@dataclass
class Plain:
    name: str
    tags: list[str] | None = None


class Typed(TypedDict, total=False):
    name: str


@define
class Described:
    size: int = field(metadata={"description": "In metres."})
    shape: object = field(default=None, metadata={"schema": {"enum": ["round", "flat"]}})
    hidden: int = field(init=False, default=3)


TEXT: dict[str, JsonValue] = {"type": "string"}
SHORT: dict[str, JsonValue] = {"maxLength": 9}
POINT: dict[str, JsonValue] = {
    "type": "object",
    "properties": {"x": {"type": "integer"}, "y": {"type": "number"}},
    "required": ["x"],
    "additionalProperties": False,
    "description": "Where it is.",
}


# --- from hints --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hint", "schema"),
    [
        (str, {"type": "string"}),
        (bool, {"type": "boolean"}),
        (int, {"type": "integer"}),
        (float, {"type": "number"}),
        (type(None), {"type": "null"}),
        (object, {}),
        (Any, {}),
        (bytes, {"type": "string", "contentEncoding": "base64"}),
        (pathlib.Path, {"type": "string"}),
        (datetime.date, {"type": "string", "format": "date"}),
        (datetime.datetime, {"type": "string", "format": "date-time"}),
        (int | None, {"type": ["integer", "null"]}),
        (int | str | None, {"type": ["integer", "string", "null"]}),
        (int | object, {}),
        (list | None, {"type": ["array", "null"]}),
        (list[str] | None, {"anyOf": [{"type": "array", "items": TEXT}, {"type": "null"}]}),
        (list, {"type": "array"}),
        (Sequence[str], {"type": "array", "items": {"type": "string"}}),
        (Iterable[str], {"type": "array", "items": {"type": "string"}}),
        (tuple[int, ...], {"type": "array", "items": {"type": "integer"}}),
        (
            tuple[int, str],
            {
                "type": "array",
                "prefixItems": [{"type": "integer"}, {"type": "string"}],
                "minItems": 2,
                "items": False,
            },
        ),
        (set[int], {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}),
        (dict, {"type": "object"}),
        (dict[str, object], {"type": "object"}),
        (Mapping[str, bool], {"type": "object", "additionalProperties": {"type": "boolean"}}),
        (Literal["a", 1, None], {"enum": ["a", 1, None]}),
        (Colour, {"enum": ["red", "blue"]}),
        (Level, {"enum": [1, 2]}),
        (Annotated[str, "What.", {"maxLength": 9}], {**TEXT, "description": "What.", **SHORT}),
        (Point, POINT),
        (
            list[Point],
            {"type": "array", "items": {"$ref": "#/$defs/Point"}, "$defs": {"Point": POINT}},
        ),
    ],
)
def test_a_hint_has_its_schema(hint: object, schema: Mapping[str, JsonValue]) -> None:
    assert schema_of(hint) == schema
    check_schema(schema_of(hint))


def test_a_class_that_holds_itself_points_to_itself() -> None:
    schema = schema_of(Tree)
    validator = SchemaValidator(schema)
    assert schema["properties"] == {
        "name": {"type": "string"},
        "children": {"type": "array", "items": {"$ref": "#/$defs/Tree"}},
    }
    grown = encode(Tree("oak", (Tree("twig", (Tree("leaf"),)),)))
    assert validator.errors(grown) == ()
    assert validator.errors({"name": "oak", "children": [{"name": 1}]}) == (
        "$.children[0].name: 1 is not of type 'string'",
    )


def test_fields_are_described_and_replaced_by_their_metadata() -> None:
    properties = schema_of(Described)["properties"]
    assert properties == {
        "size": {"type": "integer", "description": "In metres."},
        "shape": {"enum": ["round", "flat"]},
    }


def test_dataclasses_and_typed_dicts_are_objects() -> None:
    assert schema_of(Plain)["required"] == ["name"]
    assert schema_of(Typed) == {
        "type": "object",
        "properties": {"name": {"type": "string"}},
        "required": [],
        "additionalProperties": False,
    }


@pytest.mark.parametrize("hint", [complex, Callable[[], int], type, Tree | complex])
def test_what_json_cannot_say_is_refused_by_name(hint: object) -> None:
    with pytest.raises(SchemaError, match="No JSON Schema for the type"):
        schema_of(hint)


@frozen(kw_only=True)
class Everything:
    """One field of each kind."""

    text: str
    number: float
    count: int
    flag: bool
    maybe: int | None
    either: int | str
    when: datetime.datetime
    day: datetime.date
    raw: bytes
    colour: Colour
    level: Level
    word: Literal["a", "b"]
    point: Point
    points: tuple[Point, ...]
    pair: tuple[int, str]
    names: list[str]
    unique: frozenset[int]
    table: dict[str, Point]
    tree: Tree


points = st.builds(Point, st.integers(), st.floats(allow_nan=False, allow_infinity=False))
trees = st.recursive(
    st.builds(Tree, st.text()),
    lambda inner: st.builds(Tree, st.text(), st.lists(inner, max_size=2).map(tuple)),
    max_leaves=4,
)
everything = st.builds(
    Everything,
    text=st.text(),
    number=st.floats(allow_nan=False, allow_infinity=False),
    count=st.integers(),
    flag=st.booleans(),
    maybe=st.none() | st.integers(),
    either=st.integers() | st.text(),
    when=st.datetimes(timezones=st.just(datetime.UTC)),
    day=st.dates(),
    raw=st.binary(),
    colour=st.sampled_from(Colour),
    level=st.sampled_from(Level),
    word=st.sampled_from(["a", "b"]),
    point=points,
    points=st.lists(points, max_size=3).map(tuple),
    pair=st.tuples(st.integers(), st.text()),
    names=st.lists(st.text()),
    unique=st.frozensets(st.integers()),
    table=st.dictionaries(st.text(), points, max_size=3),
    tree=trees,
)


@given(value=everything)
def test_what_is_encoded_fits_the_schema_of_its_class_and_decodes_to_itself(
    value: Everything,
) -> None:
    written = encode(value)
    assert SchemaValidator(schema_of(Everything)).errors(written) == ()
    assert decode(written, Everything) == value


# --- validators --------------------------------------------------------------------------------


def test_a_validator_names_each_place_and_stops_at_its_limit() -> None:
    validator = SchemaValidator({"type": "array", "items": {"type": "integer"}})
    assert validator.errors([1, 2]) == ()
    assert validator.errors([1, "two", [3]]) == (
        "$[1]: 'two' is not of type 'integer'",
        "$[2]: [3] is not of type 'integer'",
    )
    assert len(validator.errors(["x"] * 50)) == 5
    (only,) = validator.errors(["y" * 10_000], limit=1)
    assert len(only) < 350


def _doubling(lines: int) -> dict[str, JsonValue]:
    """Each definition refers twice to the next one."""
    definitions: dict[str, JsonValue] = {
        f"d{at}": {"allOf": [{"$ref": f"#/$defs/d{at + 1}"}, {"$ref": f"#/$defs/d{at + 1}"}]}
        for at in range(lines)
    }
    return {"$ref": "#/$defs/d0", "$defs": {**definitions, f"d{lines}": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "strnig"}, "$.type: 'strnig' is not valid"),
        ({"properties": {"a": {"minimum": "1"}}}, "$.properties.a.minimum"),
        ({"$ref": "https://example.invalid/x.json"}, "points outside the schema"),
        ({"$ref": "other.json#/a"}, "points outside the schema"),
        ({"$ref": "#/$defs/Nope"}, "points to nothing in this schema"),
        ({"$ref": "#Nope"}, "points to no '$anchor' of this schema"),
        ({"$ref": "#a", "unknown": {"$anchor": "a"}}, "points to no '$anchor' of this schema"),
        ({"$ref": "#a", "const": {"$anchor": "a"}}, "points to no '$anchor' of this schema"),
        (
            {"properties": {"a": {"$id": "http://x/y", "$ref": "#/$defs/B"}}, "$defs": {"B": {}}},
            "$.properties.a.$id: ",
        ),
        ({"items": {"$dynamicRef": "file:///etc/passwd"}}, "$.items.$dynamicRef"),
        ({"pattern": "("}, "$.pattern: not a regular expression: '('"),
        ({"pattern": "a" * 4001}, "it has 4001 characters; at most 4000"),
        ({"allOf": [{"anyOf": [{"pattern": "("}]}]}, "$.allOf[0].anyOf[0].pattern"),
        ({"patternProperties": {"(": {}}}, "$.patternProperties: not a regular expression: '('"),
        ({"$ref": "#/"}, "points to nothing"),
        ({"$ref": "#/$defs/a/", "$defs": {"a": {}}}, "points to nothing"),
        ({"$ref": "#%2F$defs%2Fa", "$defs": {"a": {}}}, "points to no '$anchor'"),
        ({"$ref": "#/$defs", "$defs": {"a": {}}}, "is no schema"),
        ({"$ref": "#/title", "title": "t"}, "is no schema"),
        ({"$ref": "#/const", "const": {"$ref": "http://127.0.0.1:9/x"}}, "points to nothing"),
        ({"$ref": "#/$defs/e/enum/0", "$defs": {"e": {"enum": [{}]}}}, "points to nothing"),
        ({"$ref": "#/x/y", "x": {"y": {"type": "thing"}}}, "what a reference points to.type"),
        ({"pattern": "a{99999999999}"}, "$.pattern: not a regular expression: 'a{99999999999}'"),
        ({"pattern": "a{4000000000}"}, "with its repetitions written out"),
        ({"pattern": "((ab{100}){100}){100}"}, "with its repetitions written out"),
        ({"pattern": "(" * 400 + ")" * 400}, "nested too deep"),
        ({"pattern": "(?i:" * 60 + "a" + ")" * 60}, "nested too deep"),
        ({"items": {"anyOf": [{}], "$ref": f"#/anyOf/{'9' * 5000}"}}, "points to nothing"),
        ({"anyOf": [{}], "$ref": "#/anyOf/²"}, "points to nothing"),
        ({"$ref": "#"}, "$: its references form a cycle for the same value"),
        ({"allOf": [{"not": {"$ref": "#"}}]}, "form a cycle"),
        ({"properties": {"a": {"anyOf": [{"$ref": "#/properties/a"}]}}}, "$.properties.a: its"),
        (_doubling(15), "more than 5000 schemas apply to one value"),
        (_doubling(60), "in each other"),
    ],
)
def test_a_schema_that_is_broken_or_unsafe_is_refused_with_its_place(
    schema: Mapping[str, JsonValue], words: str
) -> None:
    with pytest.raises(SchemaError) as caught:
        check_schema(schema)
    assert words in caught.value.message


@pytest.mark.parametrize("keyword", ["not", "items"])
@pytest.mark.parametrize("depth", [150, 900])
def test_a_schema_that_is_nested_too_deep_is_refused(keyword: str, depth: int) -> None:
    schema: dict[str, JsonValue] = {}
    for _ in range(depth):
        schema = {keyword: schema}
    with pytest.raises(SchemaError, match="nested too deep"):
        check_schema(schema)


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"$defs": {"A": {"type": "string"}}, "$ref": "#/$defs/A"},
        {"$defs": {"a/b~c": {}}, "$ref": "#/$defs/a~1b~0c"},
        {"properties": {"inner": {"$ref": "#"}}, "items": {"anyOf": [{"$ref": "#"}]}},
        _doubling(8),
        {"pattern": "^[a-z]{1,10000}(?:-[a-z]{2,500})?$"},
        {"pattern": "(?:" * 40 + "a" + ")" * 40},
        {"allOf": [{}, {"$ref": "#/allOf/0"}]},
        {"properties": {"$ref": {"type": "string"}, "pattern": {"type": "string"}}},
        {"const": {"pattern": "(", "$ref": "x"}},
        {"enum": [{"pattern": "(a+)+"}]},
    ],
)
def test_a_schema_that_only_looks_unsafe_is_taken(schema: Mapping[str, JsonValue]) -> None:
    check_schema(schema)


# --- patterns that take exponential time -------------------------------------------------------


EXPLOSIVE = [
    ("(a+)+$", "a" * 40 + "!"),
    ("(a*)*$", "a" * 40 + "!"),
    ("(a+)*b", "a" * 40 + "!"),
    ("((a+)?)+$", "a" * 40 + "!"),
    ("(a|a)*$", "a" * 40 + "!"),
    ("(a|aa)+$", "a" * 60 + "!"),
    ("(a|b|ab)*$", "ab" * 40 + "!"),
    ("([a-z]+)*$", "a" * 40 + "!"),
    ("(.*)*$", "a" * 40 + "!\n"),
    (r"(\w+\s?)*$", "a" * 40 + "!"),
    ("(x+x+)+y", "x" * 40),
    ("(?=(a+)+$)b", "a" * 40 + "!"),
    ("(?i)(ab|Ab)*$", "ab" * 40 + "!"),
    ("(?i)(aA*)*$", "a" * 40 + "!"),
    ("(?:a{0,99}){0,99}b", "a" * 40),
    ("(?:a{1,2})*b", "a" * 60),
    ("(?:aa?)*b", "a" * 60),
    ("(?:[a-z]{1,3}){1,40}!", "a" * 60),
    ("((a|b|ab){1,2}){1,30}!", "ab" * 30),
    ("(?:[a-z]+ ?){1,9}!", "a" * 90),
    ("(?>(a+)+b)", "a" * 40),
    ("(?i)([a-z][A-Z]?)*!", "a" * 60),
    (r"(?:\w[^\s]?)*!", "a" * 60),
    ("(?:(?:b{0,20}){1,3}a){0,20}!", "ab" * 20),
    ("(?:a(?:A?){1,3})+!", "a" * 40),
    ("(?:-[a-z]*[a-z]*)+!", "-aa" * 20),
    ("(?:-[a-z]*(?>[a-z]*))+!", "-aa" * 20),
    ("(x)?(?(1)(a+)+b|c)", "x" + "a" * 40),
]

SEMVER = (
    r"^(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(?:-((?:0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)"
    r"(?:\.(?:0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*))*))?(?:\+([0-9a-zA-Z-]+(?:\.[0-9a-zA-Z-]+)*))?$"
)
SLOW = ("(a|b|ab)*$", "ab" * 60 + "!")
"""A pattern on a text that takes longer than anything may."""


@pytest.mark.parametrize(("pattern", "text"), EXPLOSIVE)
def test_no_pattern_is_refused_for_its_form_and_each_ends(
    pattern: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What may take exponential time is taken, and ends by itself or by its time."""
    monkeypatch.setattr("minions.data.patterns.PATTERN_TIME_S", 0.05)
    found = SchemaValidator({"pattern": pattern}).errors(text)
    assert all("does not match" in each or each.endswith("takes too long") for each in found)


def test_a_pattern_of_the_largest_size_is_taken() -> None:
    check_schema({"pattern": "a" * 4_000})
    check_schema({"pattern": "a{4999}"})
    for too_large in ("a" * 4_001, "a{5000}"):
        with pytest.raises(SchemaError, match=r"4001 characters|over 10000 parts"):
            check_schema({"pattern": too_large})


def test_no_text_is_matched_when_the_time_is_over() -> None:
    compiled_pattern.cache_clear()
    for left_s in (0.0, -0.1, -2.0):
        with pytest.raises(TimeoutError):
            MatchTime(left_s).search("a", "a")
    assert compiled_pattern.cache_info().misses == 0
    short = MatchTime(0.0001)
    with pytest.raises(TimeoutError):
        short.search(SLOW[0] + "|" + "b" * 2_000, SLOW[1])
    assert short.left_s > -PATTERN_TIME_S  # compiling took it all; the pattern gets little more
    time = MatchTime(1.0)
    assert time.search("a+", "baab") == "aa"
    assert 0 < time.left_s < 1.0


@pytest.mark.parametrize(
    ("pattern", "right", "wrong"),
    [
        (SEMVER, "1.0.0-alpha.1+b", "1.0"),
        (r"^(?<year>\d{4})-\d\d$", "2024-05", "2024"),
        (r"^\p{L}+$", "Łódź", "a1"),
        (r"^(?:[a-z0-9]+[._-]?)+$", "a.b-c", "a..b"),
        (r"^(([a-z]+)+\.)+[a-z]{2,}$", "a.example.org", "example"),
        (r"^(?:\s*\w+\s*)*$", "any words", "a!"),
    ],
)
def test_patterns_of_real_schemas_are_taken(pattern: str, right: str, wrong: str) -> None:
    validator = SchemaValidator({"type": "string", "pattern": pattern})
    assert validator.errors(right) == ()
    assert "does not match" in validator.errors(wrong)[0]


@pytest.mark.parametrize("tail", ["1" * 24_000, "a-" * 12_000, "1.a" * 8_000])
async def test_a_pattern_that_ends_counts_on_an_event_loop_too(tail: str) -> None:
    """What takes longer than a callback may is matched in a thread."""
    validator = SchemaValidator({"type": "string", "pattern": SEMVER})
    (found,) = await match_beside_loop(lambda: validator.errors(f"1.1.1-{tail}!"))
    assert found.startswith("$: '1.1.1-")
    assert await match_beside_loop(lambda: validator.errors(f"1.1.1-x{tail}")) == ()


@pytest.mark.parametrize("pattern", ["[[a]", "[!--b]", "[a||b]", "[a&&b]", "[a~~b]"])
def test_a_pattern_that_may_mean_something_else_some_day_warns_nobody(pattern: str) -> None:
    """Who runs the process did not write it; warnings are errors in this suite."""
    compiled_pattern.cache_clear()
    compiled_pattern(pattern)


# --- output instructions -----------------------------------------------------------------------


def test_instructions_give_their_schema_from_text_mapping_or_class() -> None:
    """A-36."""
    text = '{"type": "object"}'
    assert OutputInstructions[object](schema=text).json_schema() == {"type": "object"}
    assert OutputInstructions[object](schema={"type": "array"}).json_schema() == {"type": "array"}
    assert OutputInstructions(output_class=Point).json_schema() == POINT
    both = OutputInstructions(schema=text, output_class=Point)
    assert both.json_schema() == {"type": "object"}
    assert both.convert({"x": 1}) == Point(1)


def test_instructions_convert_to_the_class_or_leave_the_value() -> None:
    """A-36."""
    assert OutputInstructions(output_class=list[Point]).convert([{"x": 1, "y": 2}]) == [Point(1, 2)]
    assert OutputInstructions[object](schema={}).convert([1]) == [1]
    with pytest.raises(ValueError, match=r"expected integer, got string 'one' @ \$\.x"):
        OutputInstructions(output_class=Point).convert({"x": "one"})


def test_usage_adds_up_and_an_unknown_cost_makes_the_sum_unknown() -> None:
    known = TokenUsage(input_tokens=1, output_tokens=2, cached_tokens=1, cost_usd=0.5)
    unknown = TokenUsage(input_tokens=1)
    assert known + known == TokenUsage(
        input_tokens=2, output_tokens=4, cached_tokens=2, cost_usd=1.0
    )
    assert (known + unknown).cost_usd is None
    assert (TokenUsage() + known, known + TokenUsage()) == (known, known)
    assert known.to_json()["total_tokens"] == 3


def _watched(monkeypatch: pytest.MonkeyPatch, *, takes_s: float | None = None) -> list[float]:
    """The seconds that each match is given.

    Args:
        takes_s: How long each seems to take; None: for ever.
    """
    given: list[float] = []
    now = [0.0]

    class Pattern:
        def search(self, _text: str, *, timeout: float) -> None:
            given.append(timeout)
            now[0] += timeout if takes_s is None else min(takes_s, timeout)
            if takes_s is None or takes_s > timeout:
                raise TimeoutError

    monkeypatch.setattr("minions.data.patterns.compiled_pattern", lambda _: Pattern())
    monkeypatch.setattr("minions.data.patterns.thread_time", lambda: now[0])
    return given


def test_a_pattern_is_given_only_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which patterns explode cannot be told for sure beforehand."""
    validator = SchemaValidator({"type": "string", "pattern": "^a+$"})
    assert validator.errors("aaa") == ()
    assert validator.errors("b") == ("$: 'b' does not match '^a+$'",)
    given = _watched(monkeypatch)
    assert validator.errors("aaa") == ("$: matching '^a+$' takes too long",)
    assert given == [PATTERN_TIME_S]


@pytest.mark.parametrize(
    "schema",
    [
        {"items": {"pattern": "a"}},
        {"items": {"anyOf": [{"pattern": "a"}, {"type": "string"}]}},
        {"items": {"not": {"pattern": "a"}}},
    ],
)
def test_many_texts_are_matched_within_one_time(
    schema: JsonSchema, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of 10,000 texts may take nearly all of the time of one."""
    given = _watched(monkeypatch, takes_s=0.9 * PATTERN_TIME_S)
    texts: JsonValue = [f"n{at}" for at in range(10_000)]
    assert "takes too long" in SchemaValidator(schema).errors(texts, limit=20_000)[-1]
    assert len(given) == math.ceil(IN_ALL_S / (0.9 * PATTERN_TIME_S))


@pytest.mark.parametrize(
    "schema",
    [
        {"not": {"pattern": SLOW[0]}},
        {"oneOf": [{"pattern": SLOW[0]}, {"type": "string"}]},
        {"if": {"pattern": SLOW[0]}, "then": False},
        {"anyOf": [{"not": {"pattern": SLOW[0]}}, False]},
        {"not": {"type": "string", "pattern": SLOW[0]}},
    ],
)
def test_what_could_not_be_matched_takes_no_value(schema: JsonSchema) -> None:
    """A match that was given up must not count as none where that would let the value pass."""
    (found,) = SchemaValidator(schema).errors(SLOW[1])
    assert found == f"$: matching {SLOW[0]!r} takes too long"


async def test_an_event_loop_waits_for_no_pattern(monkeypatch: pytest.MonkeyPatch) -> None:
    validator = SchemaValidator({"items": {"pattern": "a"}})
    given = _watched(monkeypatch, takes_s=0.9 * AT_ONCE_S)
    texts: JsonValue = [f"n{at}" for at in range(10_000)]
    found = validator.errors(texts, limit=20_000)
    assert "takes too long" in found[-1]
    assert sum(given) <= 2 * AT_ONCE_S <= 0.02


async def test_a_piece_of_work_that_needs_a_thread_has_one_small_time_before() -> None:
    """Several checks of one callback share it."""
    tried: list[bool] = []

    def work() -> str | None:
        tried.append(threading.current_thread() is threading.main_thread())
        for _ in range(2):
            try:
                search(*SLOW)
            except TimeoutError:
                return "for ever"
        return None

    assert await match_beside_loop(work) == "for ever"
    assert tried == [True, False]


async def test_a_validator_checks_in_several_threads_at_a_time() -> None:
    validator = SchemaValidator({"items": {"type": "integer"}, "maxItems": 3})
    values: list[JsonValue] = [[1] * 3, [1] * 4, ["x"]] * 20
    found = await asyncio.gather(*(asyncio.to_thread(validator.errors, each) for each in values))
    assert [bool(each) for each in found] == [False, True, True] * 20


def test_a_pattern_that_only_one_of_the_engines_takes_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Checked with the one, matched with the other."""
    import regex

    def refusing(*_: object) -> None:
        raise RecursionError

    monkeypatch.setattr(regex, "compile", refusing)
    with pytest.raises(SchemaError, match="RecursionError"):
        check_schema({"pattern": "only here"})


def test_a_value_that_is_nested_too_deep_does_not_fit() -> None:
    value: JsonValue = []
    for _ in range(900):
        value = [value]
    validator = SchemaValidator({"type": "array", "items": {"$ref": "#"}})
    assert validator.errors(value) == ("$: it is nested too deep to be checked",)


@pytest.mark.parametrize(
    ("items", "is_distinct"),
    [
        ([1, 2], True),
        ([1, 1.0], False),
        ([1, True], True),
        ([0, False, None, "", [], {}], True),
        ([{"a": 1, "b": [2.0]}, {"b": [2], "a": 1}], False),
        ([{"a": 1}, {"a": True}], True),
        ([[1], [1]], False),
        (["1", 1], True),
    ],
)
def test_distinct_items_are_told_as_json_schema_says(
    items: list[JsonValue], is_distinct: bool
) -> None:
    from jsonschema import Draft202012Validator

    schema: dict[str, JsonValue] = {"type": "array", "uniqueItems": True}
    assert (SchemaValidator(schema).errors(items) == ()) is is_distinct
    assert Draft202012Validator(schema).is_valid(items) is is_distinct
    assert SchemaValidator({"uniqueItems": False}).errors(items) == ()


def test_each_of_many_items_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Comparing each object with each other one holds the whole process up."""
    seen: list[JsonValue] = []

    def counting(value: JsonValue) -> str:
        seen.append(value)
        return dumps(value)

    monkeypatch.setattr("minions.data.schema_keywords.dumps", counting)
    items: list[JsonValue] = [{"n": at} for at in range(200)]
    assert SchemaValidator({"uniqueItems": True}).errors(items) == ()
    assert seen == items


def test_two_classes_of_one_name_are_refused() -> None:
    def item(kind: type[object]) -> type[object]:
        return make_class("Item", {"value": field(type=kind)})

    with pytest.raises(SchemaError, match="Two different classes in one schema are called 'Item'"):
        schema_of(tuple[item(int), item(str)])  # type: ignore[misc]  # made at run time


@pytest.mark.parametrize(
    ("schema", "value", "error"),
    [
        ({"type": "string"}, None, "$: null is not of type 'string'"),
        ({"type": "string"}, [True, False, None], "$: [true, false, null] is not of type 'string'"),
        (
            {"enum": ["None", None, True]},
            "a None",
            "$: 'a None' is not one of ['None', null, true]",
        ),
        ({"const": False}, "it's None", "$: false was expected"),
        ({"type": "null"}, "it's True, None", "$: \"it's True, None\" is not of type 'null'"),
        (
            {"type": "integer"},
            {"a": "x \\' None", "None": None},
            "$: {'a': \"x \\\\' None\", 'None': null} is not of type 'integer'",
        ),
        (
            {"additionalProperties": {"not": {}}},
            {"b": True},
            "$.b: true should not be valid under {}",
        ),
    ],
)
def test_errors_say_null_and_true_as_json_does(
    schema: JsonSchema, value: JsonValue, error: str
) -> None:
    assert SchemaValidator(schema).errors(value) == (error,)


# --- checks that would take long, or raise -----------------------------------------------------


def _deep(levels: int) -> JsonValue:
    value: JsonValue = 1
    for _ in range(levels):
        value = {"a": value}
    return value


TOO_LONG = "$: checking it takes too long: the schema applies to it more than 200,000 times"
_BOTH: JsonValue = [{"properties": {"a": {"$ref": "#"}}}, {"properties": {"a": {"$ref": "#"}}}]

_AGAIN: JsonValue = {"properties": {"a": {"$ref": "#/properties/const"}}}
_OF_ANOTHER_DIALECT: JsonValue = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "allOf": [_AGAIN, _AGAIN],
}


@pytest.mark.parametrize(
    "schema",
    [
        {"oneOf": _BOTH, "type": "object"},
        {"anyOf": _BOTH, "type": "object"},
        {"allOf": _BOTH},
        {"unevaluatedProperties": False, "allOf": _BOTH},
        {"$schema": "https://json-schema.org/draft/2020-12/schema", "allOf": _BOTH},
        {"allOf": [{"$ref": "#/properties/const"}], "properties": {"const": _OF_ANOTHER_DIALECT}},
    ],
)
def test_a_check_that_doubles_with_each_level_of_the_value_ends(schema: JsonSchema) -> None:
    validator = SchemaValidator(schema)
    assert TOO_LONG in validator.errors(_deep(60))
    assert TOO_LONG not in validator.errors(_deep(3))


@pytest.mark.parametrize(
    ("value", "error"),
    [
        ("a", "$: 'a' is not of type 'array', 'null'"),
        (["a", 1], "$[1]: 1 is not of type 'string'"),
        ([], "$: [] should be non-empty"),
    ],
)
def test_where_no_alternative_fits_it_is_said_what_was_expected(
    value: JsonValue, error: str
) -> None:
    schema: JsonSchema = {
        "anyOf": [{"type": "array", "items": TEXT, "minItems": 1}, {"type": "null"}]
    }
    assert SchemaValidator(schema).errors(value) == (error,)


def test_several_alternatives_of_the_right_type_are_not_chosen_among() -> None:
    schema: JsonSchema = {"anyOf": [{"required": ["a"]}, {"required": ["b"]}]}
    (error,) = SchemaValidator(schema).errors({})
    assert error == "$: {} is not valid under any of the given schemas"


@pytest.mark.parametrize("keyword", ["anyOf", "oneOf"])
def test_an_alternative_that_nothing_fits_is_told(keyword: str) -> None:
    (error,) = SchemaValidator({keyword: [False]}).errors(1)
    assert error == "$: false schema does not allow 1"
    (error,) = SchemaValidator({keyword: [False, {"type": "string"}, {"minimum": 2}]}).errors(1)
    assert error == "$: 1 is not valid under any of the given schemas"


def test_an_error_that_shows_a_long_value_costs_more() -> None:
    """Each choice that fails keeps its text: few levels would fill the memory."""
    number: JsonValue = {"type": "integer"}
    (error,) = SchemaValidator({"anyOf": [number] * 30}).errors("x" * 1_000_000)
    assert error.startswith("$: 'xxx")
    assert SchemaValidator({"anyOf": [number] * 300}).errors("x" * 1_000_000) == (TOO_LONG,)


def test_a_large_value_is_checked_to_its_end() -> None:
    rows: list[JsonValue] = [{"n": 1, "m": 2}] * 50_000
    properties: JsonValue = {"n": {"type": "integer"}, "m": {"type": "integer"}}
    row: JsonValue = {"type": "object", "properties": properties, "required": ["n", "m"]}
    validator = SchemaValidator({"type": "array", "items": row})
    assert validator.errors(rows) == ()
    assert validator.errors([*rows, {"n": 1}]) == ("$[50000]: 'm' is a required property",)


def test_each_check_has_its_own_budget() -> None:
    validator = SchemaValidator({"type": "object", "anyOf": _BOTH})
    for _ in range(2):
        assert TOO_LONG in validator.errors(_deep(60))
        assert validator.errors({"a": {}}) == ()


def test_names_are_matched_within_a_time_too(monkeypatch: pytest.MonkeyPatch) -> None:
    patterns: JsonValue = {"^[a-z]+[a-z0-9]*_id$": {"type": "integer"}}
    plain: JsonSchema = {"properties": {"n": {}}, "patternProperties": patterns}
    schemas: list[JsonSchema] = [
        plain,
        {**plain, "additionalProperties": False},
        {**plain, "unevaluatedProperties": False},
    ]
    for schema in schemas:
        assert SchemaValidator(schema).errors({"n": 1, "a_id": 1}) == ()
        assert SchemaValidator(schema).errors({"a_id": "x"}) == (
            "$.a_id: 'x' is not of type 'integer'",
        )
    _watched(monkeypatch)
    for schema in schemas:
        assert SchemaValidator(schema).errors({"a": 1}) == (
            "$: matching '^[a-z]+[a-z0-9]*_id$' takes too long",
        )


def test_a_property_that_no_pattern_matches_is_told_by_name() -> None:
    patterns: JsonValue = {"^a": {}, "b$": {}}
    schema: JsonSchema = {"properties": {"n": {}}, "patternProperties": patterns}
    value: JsonValue = {"n": 1, "ax": 1, "xb": 1, "c": "x"}
    assert SchemaValidator({**schema, "additionalProperties": True}).errors(value) == ()
    assert SchemaValidator({**schema, "additionalProperties": {"type": "integer"}}).errors(
        value
    ) == ("$.c: 'x' is not of type 'integer'",)
    assert SchemaValidator({**schema, "additionalProperties": False}).errors(value) == (
        "$: 'c' does not match any of the regexes: '^a', 'b$'",
    )


def test_what_nothing_else_describes_is_found_with_patterns_beside_it() -> None:
    """The library would match the names itself, without a time."""
    schema: JsonSchema = {
        "$defs": {"d": {"properties": {"d": {}}}},
        "patternProperties": {"^a": {}},
        "allOf": [{"properties": {"b": {"type": "integer"}}}, {"$ref": "#/$defs/d"}],
        "anyOf": [{"required": ["c"], "properties": {"c": {}}}, {}],
        "if": {"required": ["t"]},
        "then": {"properties": {"t": {}}},
        "else": {"properties": {"e": {}}},
        "dependentSchemas": {"d": {"properties": {"f": {}}}},
        "unevaluatedProperties": False,
    }
    validator = SchemaValidator(schema)
    assert validator.errors({"ax": 1, "b": 1, "c": 1, "d": 1, "t": 1, "f": 1}) == ()
    assert validator.errors({"e": 1}) == ()
    what = "properties that nothing else describes are not allowed"
    assert validator.errors({"t": 1, "e": 1, "f": 1, "z": 1}) == (f"$: {what}: 'e', 'f', 'z'",)
    slow: JsonSchema = {"patternProperties": {SLOW[0]: {}}, "unevaluatedProperties": False}
    assert validator.errors({"a" * 3_000: 1}) == ()
    assert "takes too long" in SchemaValidator(slow).errors({SLOW[1]: 1})[0]


@pytest.mark.parametrize(
    "described",
    [
        {"allOf": [True]},
        {"allOf": [{"additionalProperties": {"type": "integer"}}]},
        {"allOf": [{"unevaluatedProperties": {"type": "integer"}}]},
        {"if": {"properties": {"n": {}}}},
        {"if": {"properties": {"n": {}}, "required": ["m"]}},
        {"if": {"properties": {"n": {}}}, "then": {}, "else": {"properties": {"m": {}}}},
        {"anyOf": [{"properties": {"n": False}}, {"properties": {"m": {}}}]},
        {"properties": {"n": {}, "absent": {}}},
    ],
)
@pytest.mark.parametrize("wanted", [False, {"type": "string"}])
def test_what_nothing_else_describes_is_what_the_library_says(
    described: JsonSchema, wanted: JsonValue
) -> None:
    from jsonschema import Draft202012Validator

    schema: dict[str, JsonValue] = {**described, "unevaluatedProperties": wanted}
    with_patterns = SchemaValidator({**schema, "patternProperties": {"^never$": {}}})
    values: list[JsonValue] = [{}, {"n": 1}, {"n": "x"}, {"m": 1}, {"n": 1, "m": "x"}, [], 1]
    for value in values:
        expected = Draft202012Validator(schema).is_valid(value)
        assert (with_patterns.errors(value) == ()) == expected, value


def test_the_names_are_bounded_by_their_number_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is matched in no time at all; all of them, with each pattern, are not."""
    patterns: JsonValue = {f"^x{n}": {} for n in range(50)}
    names: JsonValue = {f"a{n}": 1 for n in range(50)}
    unevaluated: JsonSchema = {"unevaluatedProperties": {}}
    most: int
    for most, more in ((2_000, {}), (4_000, {"additionalProperties": {}}), (4_000, unevaluated)):
        monkeypatch.setattr("minions.data.schema_keywords._MOST", most)
        schema: dict[str, JsonValue] = {**more, "patternProperties": patterns}
        error = TOO_LONG.replace("200,000", f"{most:,}")
        assert SchemaValidator(schema).errors(names) == (error,)


def test_the_schemas_for_the_same_value_are_bounded_by_its_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("minions.data.schema_keywords._MOST", 2_000)
    names: JsonValue = {f"a{n}": 1 for n in range(50)}
    schema: dict[str, JsonValue] = {"unevaluatedProperties": {}, "patternProperties": {"b": {}}}
    for count, expected in ((5, ()), (50, (TOO_LONG.replace("200", "2"),))):
        assert SchemaValidator({**schema, "allOf": [{}] * count}).errors(names) == expected


def test_each_pattern_is_compiled_once_for_all_names() -> None:
    """More patterns than are kept compiled: in the other order each were compiled for each name."""
    patterns: JsonValue = {f"^x{n}": {} for n in range(250)}
    names: JsonValue = {f"a{n}": 1 for n in range(20)}
    for keyword in ("additionalProperties", "unevaluatedProperties"):
        schema: JsonSchema = {keyword: {}, "patternProperties": patterns}
        validator = SchemaValidator(schema)
        compiled_pattern.cache_clear()
        assert validator.errors(names) == ()
        assert compiled_pattern.cache_info().misses == 500  # once for each of both keywords


def test_compiling_counts_as_matching_does(monkeypatch: pytest.MonkeyPatch) -> None:
    patterns: JsonValue = {f"^x{n}{'a' * 3_000}": {} for n in range(30)}
    validator = SchemaValidator({"patternProperties": patterns})
    monkeypatch.setattr("minions.data.schema.compile_time", lambda: MatchTime(0.05))
    compiled_pattern.cache_clear()
    with pytest.raises(SchemaError, match="the patterns of this schema take too long to be"):
        check_schema({"patternProperties": patterns})
    assert compiled_pattern.cache_info().misses < 30
    monkeypatch.setattr("minions.data.patterns.IN_ALL_S", 0.05)
    compiled_pattern.cache_clear()
    (error,) = validator.errors({"a": 1})
    assert error.endswith("takes too long")


def test_a_long_pattern_is_not_compiled_where_a_loop_waits() -> None:
    threads: list[int] = []

    def work(pattern: str) -> None:
        compiled_pattern.cache_clear()
        check_schema({"pattern": pattern})
        threads.append(threading.get_ident())

    asyncio.run(match_beside_loop(lambda: work("a" * 1_000)))
    asyncio.run(match_beside_loop(lambda: work("a" * 1_001)))
    here = threading.get_ident()
    assert [each == here for each in threads] == [True, False]


def test_properties_without_patterns_beside_them_are_left_to_the_library() -> None:
    inner: JsonValue = {"properties": {"n": {}}, "additionalProperties": False}
    schema: JsonSchema = {"properties": {"in": inner}, "patternProperties": {"^a": {}}}
    validator = SchemaValidator(schema)
    assert validator.errors({"in": {"n": 1}}) == ()
    assert validator.errors({"in": {"m": 1}}) == (
        "$.in: Additional properties are not allowed ('m' was unexpected)",
    )
    both: JsonSchema = {"additionalProperties": False, "patternProperties": {"^a": {}}}
    assert SchemaValidator(both).errors([1]) == ()
    slow: JsonSchema = {"additionalProperties": False, "patternProperties": {SLOW[0]: {}}}
    assert "takes too long" in SchemaValidator(slow).errors({SLOW[1]: 1})[0]


def test_only_texts_are_matched() -> None:
    schema: JsonSchema = {"pattern": "^a", "not": {"const": "ab"}}
    values: list[JsonValue] = [1, None, ["b"], {"b": 1}, "a"]
    assert [SchemaValidator(schema).errors(value) for value in values] == [()] * 5


@pytest.mark.parametrize("number", [10**400, float("nan")])
@pytest.mark.parametrize("keyword", ["not", "oneOf", "if", "contains"])
def test_a_number_that_cannot_be_checked_is_not_taken_for_it(
    number: JsonValue, keyword: str
) -> None:
    unclear: JsonSchema = {"multipleOf": 0.1}
    schema: dict[str, JsonSchema] = {
        "not": {"not": unclear},
        "oneOf": {"oneOf": [unclear, {"type": "number"}]},
        "if": {"if": unclear, "then": False},
        "contains": {"contains": unclear, "minContains": 0, "maxContains": 0},
    }
    value: JsonValue = [number] if keyword == "contains" else number
    (found,) = SchemaValidator(schema[keyword]).errors(value)
    assert found == f"$: '{keyword}' cannot be checked, since a part of it cannot"


@pytest.mark.parametrize(
    ("schema", "value", "error"),
    [
        ({"multipleOf": 0.1}, 10**400, "'multipleOf' cannot be checked"),
        ({"multipleOf": 0.1}, float("nan"), "'multipleOf' cannot be checked"),
        ({"type": "string"}, 10**5_000, "'type' cannot be checked"),
        ({"maximum": 1.5}, 10**5_000, "'maximum' cannot be checked"),
        ({"multipleOf": 7}, float("inf"), "inf is not a multiple of 7"),
    ],
    ids=["no float", "NaN", "too long to show", "too long to show again", "inf"],
)
def test_a_number_that_cannot_be_checked_does_not_fit(
    schema: JsonSchema, value: JsonValue, error: str
) -> None:
    (found,) = SchemaValidator({"properties": {"n": schema}}).errors({"n": value})
    assert found.startswith(f"$.n: {error}")
    assert SchemaValidator({"anyOf": [schema, {"type": "number"}]}).errors(value) == ()


def test_a_property_may_be_called_like_a_keyword_that_holds_data() -> None:
    """Its schema is one like any other."""
    for name in ("default", "enum", "const", "examples"):
        with pytest.raises(SchemaError, match="points outside the schema"):
            check_schema({"properties": {name: {"$ref": "http://127.0.0.1:9/x"}}})
    for name in ("default", "const"):
        check_schema({"properties": {"properties": {name: {"$ref": "http://127.0.0.1:9/x"}}}})


@pytest.mark.parametrize("keyword", ["const", "enum"])
def test_a_value_that_names_a_dialect_is_compared_whole(keyword: str) -> None:
    wanted: JsonValue = {"$schema": "https://a.example/b", "name": "x"}
    validator = SchemaValidator({keyword: wanted if keyword == "const" else [wanted]})
    assert validator.errors(wanted) == ()
    assert validator.errors({"name": "x"}) != ()


@pytest.mark.parametrize(
    ("reference", "place"),
    [
        ("#city", {"$defs": {"x": {"$anchor": "city", "type": "integer"}}}),
        ("#/$defs/a%20b", {"$defs": {"a b": {"type": "integer"}}}),
        ("#/$defs/a~1b", {"$defs": {"a/b": {"type": "integer"}}}),
        ("#/$defs/100%25", {"$defs": {"100%": {"type": "integer"}}}),
    ],
)
def test_anchors_and_encoded_references_are_followed(
    reference: str, place: dict[str, JsonValue]
) -> None:
    """As JSON Schema has them: a fragment is a name, or an encoded JSON pointer."""
    schema: dict[str, JsonValue] = {"properties": {"n": {"$ref": reference}}, **place}
    check_schema(schema)
    validator = SchemaValidator(schema)
    assert validator.errors({"n": 1}) == ()
    assert validator.errors({"n": "one"})

"""The types of tool results, as return annotations say them: what a value becomes fits."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import typing
from collections.abc import Awaitable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal, NewType, NotRequired, TypedDict

import attrs
import msgspec
import pydantic
import pytest

from minions.adapters.tools.agents_toolset import built_in_agents
from minions.adapters.tools.data_toolset import built_in_data
from minions.adapters.tools.documents_toolset import documents_toolset
from minions.adapters.tools.files_toolset import files_toolset
from minions.adapters.tools.function_tool import tool
from minions.adapters.tools.http_toolset import built_in_http
from minions.adapters.tools.mcp.mcp_toolsets import returned_by
from minions.adapters.tools.time_toolset import built_in_time
from minions.adapters.tools.workspace_toolsets import built_in_git, built_in_shell
from minions.data.codec import encode
from minions.data.json_values import JsonValue
from minions.data.schema import JsonSchema, SchemaValidator
from minions.recipe.checks.shapes import Shape, find_dead_end


class Colour(enum.Enum):
    RED = "red"


@attrs.frozen
class Point:
    x: int
    y: int = 0
    hidden: int = attrs.field(default=1, init=False)


@dataclasses.dataclass
class Box:
    corner: Point
    colours: list[Colour]


class Invoice(TypedDict):
    amount: float
    note: NotRequired[str]


class Tree(TypedDict):
    name: str
    inner: list[Tree]


class Person(pydantic.BaseModel):
    name: str = pydantic.Field(alias="fullName")
    born: datetime.date | None = None

    @pydantic.computed_field
    def initial(self) -> str:
        return self.name[:1]


class Row(msgspec.Struct, rename="camel"):
    first_name: str
    age: int = 0


UserId = NewType("UserId", str)
INSTANT = datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (str, "a"),
        (None, None),
        (float, 1),
        (UserId, "u"),
        (Colour, Colour.RED),
        (Literal["a", 1], 1),
        (list[Point], [Point(1)]),
        (Point | None, None),
        (Point | None, Point(1, 2)),
        (Box, Box(Point(1), [Colour.RED])),
        (Invoice, {"amount": 1.5}),
        (Invoice, {"amount": 1, "note": "n"}),
        (Tree, {"name": "a", "inner": [{"name": "b", "inner": []}]}),
        (Person, Person.model_validate({"fullName": "Ada"})),
        (list[Person], [Person.model_validate({"fullName": "Ada", "born": INSTANT.date()})]),
        (Row, Row("Ada")),
        (list[Row] | None, [Row("Ada", 3)]),
        (dict[str, Point], {"a": Point(1)}),
        (tuple[int, str], (1, "a")),
        (set[str], {"b", "a"}),
        (datetime.datetime, INSTANT),
        (Path, Path("a")),
        (bytes, b"a"),
        (Sequence[Mapping[str, int]], [{"a": 1}]),
        (Annotated[dict[str, int], {"required": ["a"]}], {"a": 1}),
    ],
)
def test_what_a_value_becomes_fits_the_type_of_its_annotation(hint: object, value: object) -> None:
    schema = returns_of(hint)
    assert schema is not None
    assert SchemaValidator(schema).errors(encode(value)) == ()
    assert SchemaValidator(schema).errors({"no": "such"}) != () or hint == dict[str, Point]


def returns_of(hint: object) -> JsonSchema | None:
    def give() -> object:
        return None

    give.__annotations__["return"] = hint
    return tool(give).spec.returns


class Unreadable:
    """A class that JSON cannot express."""


class Lost(TypedDict):
    a: NoSuchName  # type: ignore[name-defined]  # noqa: F821  # a class whose fields cannot be read


@pytest.mark.parametrize(
    "hint", [object, typing.Any, JsonValue, Unreadable, list[Unreadable], typing.TypeVar("T"), Lost]
)
def test_an_annotation_that_says_nothing_leaves_the_type_unknown(hint: object) -> None:
    assert returns_of(hint) is None


def test_what_is_awaited_is_the_result() -> None:
    async def plain() -> int:
        return 1

    def indirect() -> Awaitable[list[int]]:
        raise NotImplementedError

    assert tool(plain).spec.returns == {"type": "integer"}
    assert tool(indirect).spec.returns == {"type": "array", "items": {"type": "integer"}}


def test_all_fields_of_a_result_are_there_also_those_with_a_default() -> None:
    assert (returns_of(Point) or {})["required"] == ["x", "y"]
    schema = returns_of(Person)
    assert schema is not None
    assert find_dead_end(Shape.of(schema), ("fullName",)) is not None  # it is written by its name
    rows = returns_of(Row)
    assert rows is not None
    assert find_dead_end(Shape.of(rows), ("first_name",)) is not None
    assert find_dead_end(Shape.of(rows), ("firstName",)) is None


# --- built-in toolsets -----------------------------------------------------------------------


def now() -> datetime.datetime:
    return INSTANT


BUILT_IN = {
    f"{toolset.name}__{spec.name}": spec
    for toolset in (
        files_toolset(),
        documents_toolset(now),
        built_in_data(now),
        built_in_time(now),
        built_in_http(now),
        built_in_shell(now),
        built_in_git(now),
        built_in_agents(now),
    )
    for spec in toolset.specs
}
_ANY_JSON = {"data__parse_json", "agents__run_agent"}


def test_every_built_in_tool_declares_what_it_returns() -> None:
    """A-164."""
    unknown = {name for name, spec in BUILT_IN.items() if spec.returns is None}
    assert unknown == _ANY_JSON
    for name, spec in BUILT_IN.items():
        if name not in _ANY_JSON | {"data__to_csv"}:
            assert find_dead_end(Shape.of(spec.returns or {}), ("no_such",)) is not None, name


# --- MCP -------------------------------------------------------------------------------------


DECLARED: JsonSchema = {
    "type": "object",
    "properties": {"degrees": {"$ref": "#/$defs/Degrees"}},
    "required": ["degrees"],
    "additionalProperties": False,
    "$defs": {"Degrees": {"type": "number"}},
}


def test_a_result_of_a_server_may_come_with_images() -> None:
    schema = returned_by(DECLARED)
    assert schema is not None
    check = SchemaValidator(schema)
    assert check.errors({"degrees": 1.5}) == ()
    assert check.errors({"value": {"degrees": 1}, "images": [{"size": 1}]}) == ()
    assert check.errors({"degrees": "warm"}) != ()
    assert find_dead_end(Shape.of(schema), ("degrees",)) is None
    assert find_dead_end(Shape.of(schema), ("value", "degrees")) is None
    assert find_dead_end(Shape.of(schema), ("degree",)) is not None
    assert find_dead_end(Shape.of(schema), ("value", "degree")) is not None


def test_a_schema_that_refers_to_its_whole_is_taken_for_unknown() -> None:
    refers: JsonSchema = {"type": "object", "properties": {"inner": {"$ref": "#"}}}
    assert (returned_by(refers), returned_by(None)) == (None, None)

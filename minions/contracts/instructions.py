"""The output a step declares, and how a request asks for it. Reading answers is `output`'s."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Generic, TypeVar, cast

from attrs import field, frozen

from minions.contracts.errors import FailureInfo, SchemaError
from minions.contracts.json_values import JsonValue, json_type, parse_json
from minions.contracts.messages import Message
from minions.contracts.schema import JsonSchema, schema_of

__all__ = ["OutputFailure", "OutputInstructions", "OutputMode", "OutputRequest", "T_co"]

if TYPE_CHECKING:
    from typing_extensions import TypeVar as TypeVarWithDefault

    T_co = TypeVarWithDefault("T_co", covariant=True, default=object)
else:
    T_co = TypeVar("T_co", covariant=True)
"""The type of an output. Only checkers need the default: a bare `Step` is a `Step[object]`."""


class OutputMode(StrEnum):
    """How a schema is put to a server (instructor's names)."""

    JSON_SCHEMA = "json_schema"
    JSON = "json"
    MD_JSON = "md_json"
    TOOLS = "tools"


def _as_texts(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(texts)


@frozen(kw_only=True)
class OutputInstructions(Generic[T_co]):
    """What the output of a step must look like. Subclass to define your own.

    Give `output_class` (attrs class or type hint), or `schema`, or both: the schema
    is what the model sees, the class is what the caller gets.
    """

    instructions: tuple[str, ...] = field(default=(), converter=_as_texts)
    """System messages that go with the schema."""
    schema: JsonSchema | str | None = None
    """A JSON Schema, as mapping or JSON text; None: made from `output_class`."""
    output_class: type[T_co] | None = None
    name: str = "output"
    """How the schema is called in the request."""
    _read: dict[str, JsonSchema] = field(factory=dict, init=False, eq=False, repr=False)
    """The schema once it was made: it is asked for at every call."""

    def json_schema(self) -> JsonSchema:
        """The schema the output is checked against.

        Raises:
            SchemaError: Neither schema nor class, broken JSON, or an unsafe schema.
        """
        known = self._read.get("schema")
        if known is None:
            known = self._read["schema"] = _schema_of(self)
        return known

    def convert(self, value: JsonValue) -> T_co:
        """A value that fits the schema, as the caller's type. Override for your own.

        Raises:
            ValueError: The class refuses the value; the text goes to the model for repair.
        """
        if self.output_class is None:
            return cast("T_co", value)  # no class: T is JSON
        from minions.contracts.codec import decode

        return decode(value, self.output_class)


def _schema_of(instructions: OutputInstructions[object]) -> JsonSchema:
    """From its text, itself or the class."""
    schema = instructions.schema
    if schema is None:
        if instructions.output_class is None:
            raise SchemaError("OutputInstructions need a schema or an output_class.")
        return schema_of(instructions.output_class)
    if not isinstance(schema, str):
        return schema
    try:
        parsed = parse_json(schema)
    except ValueError as error:
        raise SchemaError(f"The output schema is not JSON: {error}.") from error
    if not isinstance(parsed, Mapping):
        raise SchemaError(f"The output schema is a JSON {json_type(parsed)}, not an object.")
    return parsed


@frozen(kw_only=True)
class OutputRequest:
    """The part of a request that constrains the answer, from the structured-output library."""

    mode: OutputMode
    body: Mapping[str, JsonValue] = field(factory=dict)
    """Merged into the request body: `response_format`, or `tools` and `tool_choice`."""
    messages: tuple[Message, ...] = ()
    """Appended to the prompt's messages."""


@frozen(kw_only=True)
class OutputFailure:
    """Why an answer is not the declared output."""

    message: str
    errors: tuple[str, ...] = ()
    """The validator's, one line per place."""

    def info(self) -> FailureInfo:
        """The reportable form."""
        return FailureInfo(code="invalid-output", message=self.message)

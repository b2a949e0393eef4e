"""The output that a step declares, and how a request asks for
it. Parsing of answers is in `output`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Final, Generic, TypeVar, cast

from attrs import Factory, evolve, field, frozen
from attrs.validators import ge
from msgspec import Struct

from minions.contracts.messages import Message
from minions.data.errors import FailureInfo, SchemaError
from minions.data.failure_categories import FailureCategory
from minions.data.field_repr import FieldsRepr
from minions.data.hint_schemas import schema_of
from minions.data.json_values import JsonValue, json_type, parse_json
from minions.data.schema import JsonSchema

if TYPE_CHECKING:
    from typing_extensions import TypeVar as TypeVarWithDefault

    T_co = TypeVarWithDefault("T_co", covariant=True, default=object)
else:
    T_co = TypeVar("T_co", covariant=True)
"""The type of an output. The default is for type checkers: a bare `Step` is a `Step[object]`."""


SENT_ITEMS: Final = 1_000
"""The bound of items that is sent for a list whose schema sets none: a model that repeats itself
comes to an end."""
SENT_TEXT: Final = 2_000
"""The bound of characters that is sent for a text within a list; engines that make a grammar of the
schema take no more."""


QUOTED: Final = "x-quoted"
"""The key of a schema that says how many words of the question a value has at most."""


class OutputMode(StrEnum):
    """How a schema is sent to a server; the values are instructor's names."""

    JSON_SCHEMA = "json_schema"
    JSON = "json"
    MD_JSON = "md_json"
    TOOLS = "tools"


class OutputRung(StrEnum):
    """What is done with an answer that is not the declared output, in this order."""

    REPAIR = "repair"
    """The model is shown the errors and asked again."""
    FIELDS = "fields"
    """What is right of an object is kept, and the model is asked for the other fields."""
    SPLIT = "split"
    """The model is asked for the fields of an object in groups."""


def _as_texts(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(texts)


@frozen(kw_only=True)
class OutputInstructions(FieldsRepr, Generic[T_co]):
    """The output that a step has to produce. Subclass it for an output of your own.

    Give `output_class` (attrs class or type hint), or `schema`, or both: the model is shown the
    schema, the caller gets an instance of the class.
    """

    instructions: tuple[str, ...] = field(default=(), converter=_as_texts)
    """System messages that are sent with the schema."""
    schema: JsonSchema | str | None = None
    """A JSON Schema, as mapping or JSON text; None: made from `output_class`."""
    output_class: type[T_co] | None = None
    name: str = "output"
    """The schema's name in the request."""
    takes_text: bool = False
    """Whether the text of an answer that does not fit the schema is given to `convert` instead: no
    further call asks for another answer."""
    _read: dict[str, JsonSchema] = field(factory=dict, init=False, eq=False, repr=False)
    """The schema after it was made once: every call asks for it."""
    texts: dict[str, str] = field(factory=dict, init=False, eq=False, repr=False)
    """A cache of texts made from the schema; every call counts their tokens."""

    def json_schema(self) -> JsonSchema:
        """The schema that outputs are checked against.

        Raises:
            SchemaError: Neither schema nor class is given, the JSON is invalid, or the schema is
                unsafe.
        """
        known = self._read.get("schema")
        if known is None:
            known = self._read["schema"] = _schema_of(self)
        return known

    @property
    def is_quoted(self) -> bool:
        """Whether a value has to stand in the question (`x-quoted`); found out once.

        Raises:
            SchemaError: As `json_schema`; or such a mark is no number of words.
        """
        known = self.texts.get(QUOTED)
        if known is None:
            known = self.texts[QUOTED] = "yes" if any(_quote_marks(self.json_schema())) else ""
        return bool(known)

    def convert(self, value: JsonValue) -> T_co:
        """Convert a value that fits the schema to the caller's type. Override it for a type of
        your own.

        Raises:
            ValueError: The class refuses the value; the model reads the message in a repair.
        """
        if self.output_class is None:
            return cast("T_co", value)  # no class: T is JSON
        from minions.data.codec import decode

        return decode(value, self.output_class)


def _quote_marks(schema: JsonValue) -> Iterator[bool]:
    if isinstance(schema, Mapping):
        most = schema.get(QUOTED)
        if QUOTED in schema and not isinstance(most, Mapping):  # else a property of that name
            if type(most) is not int or most < 1:
                raise SchemaError(
                    f"'{QUOTED}' is {most!r:.80} and has to be how many words of the question a "
                    "value has at most: a whole number from 1."
                )
            yield True
        for each in schema.values():
            yield from _quote_marks(each)
    elif isinstance(schema, list | tuple):
        for each in schema:
            yield from _quote_marks(each)


def _schema_of(instructions: OutputInstructions[object]) -> JsonSchema:
    """The declared schema, parsed if it is a text, else the schema of the class."""
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
class OutputRequest(FieldsRepr):
    """The part of a request that constrains the answer, made by the structured-output library."""

    mode: OutputMode
    body: Mapping[str, JsonValue] = field(factory=dict)
    """Merged into the request body: `response_format`, or `tools` and `tool_choice`."""
    messages: tuple[Message, ...] = ()
    """Appended to the prompt's messages."""
    unbounded: Mapping[str, JsonValue] | None = None
    """The body without bounds that the declared schema does not have; None: there are none."""

    is_strict: bool = field(
        init=False,
        eq=False,
        repr=False,
        default=Factory(
            lambda self: any(part.get("strict") is True for part in _strict_parts(self.body)),
            takes_self=True,
        ),
    )
    """Whether `strict` is sent beside the schema."""

    def without_strict(self) -> OutputRequest:
        """The same request without `strict`, for servers that refuse it."""
        unbounded = None if self.unbounded is None else _without_strict(self.unbounded)
        return evolve(self, body=_without_strict(self.body), unbounded=unbounded)

    def without_bounds(self) -> OutputRequest:
        """The same request with the lengths of lists and texts as they were declared."""
        return self if self.unbounded is None else evolve(self, body=self.unbounded, unbounded=None)


def _strict_parts(body: Mapping[str, JsonValue]) -> Iterable[Mapping[str, JsonValue]]:
    """The objects of a body in which `strict` may stand."""
    form, tools = body.get("response_format"), body.get("tools")
    places = [form.get("json_schema")] if isinstance(form, Mapping) else []
    if isinstance(tools, list | tuple):
        places += [tool.get("function") for tool in tools if isinstance(tool, Mapping)]
    return [each for each in places if isinstance(each, Mapping)]


def _without_strict(value: Mapping[str, JsonValue]) -> Mapping[str, JsonValue]:
    parts = [id(part) for part in _strict_parts(value)]

    def copied(each: JsonValue) -> JsonValue:
        if isinstance(each, Mapping):
            kept = {name: item for name, item in each.items() if name != "strict"}
            return kept if id(each) in parts else {name: copied(each[name]) for name in each}
        return [copied(item) for item in each] if isinstance(each, list | tuple) else each

    return {
        name: copied(item) if name in ("response_format", "tools") else item
        for name, item in value.items()
    }


class OutputFailure(Struct, frozen=True, kw_only=True):
    """Why an answer is not the declared output."""

    message: str
    errors: tuple[str, ...] = ()
    """The validator's errors, one line per place."""
    value: JsonValue = None
    """The JSON of the answer that does not fit the schema; None: it holds none."""

    @property
    def category(self) -> FailureCategory:
        """What kind of failure it is."""
        return self.info().category

    def info(self) -> FailureInfo:
        """The failure as results and rows hold it."""
        return FailureInfo(code="invalid-output", message=self.message)


# --- the window of a conversation ----------------------------------------------------------------


class HistoryStrategy(StrEnum):
    """What becomes of the oldest messages of a conversation that no longer fits its window."""

    DROP = "drop"
    """They are left out of the prompt; the session keeps them."""
    SUMMARISE = "summarise"
    """A model call summarises them; the summary stands in the prompt in their place."""


@frozen(kw_only=True)
class HistoryWindow(FieldsRepr):
    """The bound of the prompts of a step that shares a conversation."""

    max_tokens: int = field(validator=ge(1))
    """The most tokens of a prompt, estimated at four characters each: system texts, tools, schema
    and messages together."""
    strategy: HistoryStrategy = field(default=HistoryStrategy.DROP, converter=HistoryStrategy)

"""`InstructorParser`: requests that constrain an answer, and answers parsed by the schema.

`instructor` writes the requests with a tool; the others hold nothing but the schema, and without it
half a second of imports is saved. The prompt describes the schema in every mode, so no request does
so again. Finding the answer in a text and validating it is in `contracts.output`, for every mode.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from attrs import define, field
from msgspec import Struct
from returns.pipeline import is_successful
from returns.result import Failure, Result

from minions.adapters.daemon_thread import import_in_daemon_thread
from minions.contracts.calls import ModelCallResponse, OutputParser
from minions.contracts.instructions import (
    OutputFailure,
    OutputInstructions,
    OutputMode,
    OutputRequest,
)
from minions.contracts.messages import assistant, system
from minions.contracts.output import bare_text, checked_output, parse_text
from minions.data.json_values import JsonValue, find_json_value
from minions.data.schema import JsonSchema, SchemaValidator

if TYPE_CHECKING:
    from instructor.v2.core.function_calls import ResponseSchema


T = TypeVar("T")


class InstructorParser(OutputParser):
    """Builds requests with `instructor` and validates every answer.

    What is computed for an `OutputInstructions` object is cached as long as that object lives.
    """

    def __init__(self) -> None:
        self._kept: dict[int, _RequestParts[Any]] = {}  # Any: each entry has a T of its own
        self._loaded: set[OutputMode] = set()

    async def warm_up(self, mode: OutputMode | None = None) -> None:
        """Load what requests and validation need, once, in a thread.

        Args:
            mode: How answers will be constrained; None: in any way.
        """
        # Any mode of instructor fills its registry, which is the slow part.
        loaded = OutputMode.TOOLS if mode is None else mode
        if loaded not in self._loaded:
            await import_in_daemon_thread(_load, loaded)
            self._loaded.add(loaded)

    def request(self, instructions: OutputInstructions[T], mode: OutputMode) -> OutputRequest:
        """The constraining part of a request; the same object at every call.

        Raises:
            SchemaError: The instructions hold no valid schema.
        """
        kept = self._kept_for(instructions)
        if mode not in kept.plans:
            kept.plans[mode] = _new_plan(kept, mode)
        return kept.plans[mode].request

    def parse(
        self,
        instructions: OutputInstructions[T],
        response: ModelCallResponse,
        mode: OutputMode | None,
    ) -> Result[T, OutputFailure]:
        """The answer as the declared type. Only cancellation raises."""
        try:
            kept = self._kept_for(instructions)
            if mode is None:
                return parse_text(instructions, kept.validator(), response.text or "")
            if mode not in kept.plans:
                kept.plans[mode] = _new_plan(kept, mode)
            return _parse(kept, kept.plans[mode], response)
        except Exception as error:  # noqa: BLE001  # whatever breaks, the answer is not the output
            text = f"{type(error).__name__}: {error}"
            return Failure(OutputFailure(message=f"The answer could not be read: {text}"))

    def _kept_for(self, instructions: OutputInstructions[T]) -> _RequestParts[T]:
        """The cache entry of the instructions. By identity: they hold a
        mapping, so they have no hash.
        """
        key = id(instructions)
        kept: _RequestParts[T] | None = self._kept.get(key)
        if kept is None or kept.owner() is not instructions:
            everything = self._kept
            # Removed together with its owner, before another object can have its id.
            owner = weakref.ref(instructions, lambda _: everything.pop(key, None))
            kept = everything[key] = _RequestParts(owner=owner)
        return kept


@define(eq=False, repr=False)
class _RequestParts(Generic[T]):
    """The cached values of one `OutputInstructions` object."""

    owner: Callable[[], OutputInstructions[T] | None]
    """A weak reference: a strong one would keep the object alive for ever."""
    plans: dict[OutputMode, _Plan] = field(factory=dict)
    _validator: SchemaValidator | None = None

    def instructions(self) -> OutputInstructions[T]:
        """The instructions, which the caller holds a reference to."""
        owner = self.owner()
        assert owner is not None  # noqa: S101  # see above
        return owner

    def validator(self) -> SchemaValidator:
        """The validator of the schema, compiled once."""
        if self._validator is None:
            self._validator = SchemaValidator(self.instructions().json_schema())
        return self._validator


class _Plan(Struct, frozen=True, kw_only=True):
    """How one schema is sent to a server in one mode."""

    name: str
    """The schema's name in the request."""
    request: OutputRequest
    is_wrapped: bool
    """Whether the answer is requested as the `value` of an object."""


def _load(mode: OutputMode) -> None:
    example: OutputInstructions[object] = OutputInstructions(schema={"type": "object"})
    answer = ModelCallResponse(message=assistant("{}"))
    InstructorParser().parse(example, answer, mode)


# --- the request -------------------------------------------------------------------------------


def _new_plan(kept: _RequestParts[T], mode: OutputMode) -> _Plan:
    instructions = kept.instructions()
    schema: JsonSchema = instructions.json_schema()
    # Servers require an object wherever the schema is sent; only free text may be another type.
    is_wrapped = mode is not OutputMode.MD_JSON and not _is_object(schema)
    if is_wrapped:
        schema = _wrap_schema(schema)
    name = re.sub(r"[^A-Za-z0-9_-]", "_", instructions.name)[:64] or "output"
    return _Plan(name=name, request=_request(name, schema, mode, is_wrapped), is_wrapped=is_wrapped)


def _request(name: str, schema: JsonSchema, mode: OutputMode, is_wrapped: bool) -> OutputRequest:
    match mode:
        case OutputMode.JSON_SCHEMA:
            return _schema_request(name, schema)
        case OutputMode.TOOLS:
            return _tool_request(name, schema)
        case OutputMode.JSON:
            body: JsonSchema = {"response_format": {"type": "json_object"}}
            messages = (system(_WRAPPER_WORDS),) if is_wrapped else ()
            return OutputRequest(mode=mode, body=body, messages=messages)
        case OutputMode.MD_JSON:
            return OutputRequest(mode=mode)


def _schema_request(name: str, schema: JsonSchema) -> OutputRequest:
    """The request that holds only the schema and its name; `instructor` adds nothing to it."""
    from minions.adapters.models.strict_schema import bounded_schema, is_strict_schema

    named: dict[str, JsonValue] = {"name": name, "schema": dict(schema)}
    if is_strict_schema(schema):
        named["strict"] = True
    bounded = bounded_schema(schema)
    return OutputRequest(
        mode=OutputMode.JSON_SCHEMA,
        body=_schema_body(named if bounded == schema else {**named, "schema": bounded}),
        unbounded=None if bounded == schema else _schema_body(named),
    )


def _schema_body(named: JsonSchema) -> JsonSchema:
    return {"response_format": {"type": "json_schema", "json_schema": named}}


def _tool_request(name: str, schema: JsonSchema) -> OutputRequest:
    """The request in `instructor`'s form: a tool that takes the answer as its arguments."""
    from instructor.mode import Mode
    from instructor.processing.response import handle_response_model

    from minions.adapters.models.strict_schema import bounded_schema, is_strict_schema
    from minions.contracts.tool_parameters import sent_parameters

    # instructor uses the title as the tool's name
    answer = _response_class(name, {**schema, "title": name})
    _, patch = handle_response_model(answer, mode=Mode.TOOLS, messages=[])
    del patch["messages"]
    # Not forced by name, which llama.cpp ignores: it is the only tool of the request.
    patch["tool_choice"] = "required"
    bounded_tools: list[JsonValue] = []
    for tool in patch["tools"]:
        function = tool["function"]
        function["parameters"] = sent = sent_parameters(function["parameters"])
        if is_strict_schema(sent):
            function["strict"] = True
        bounded_tools.append({**tool, "function": {**function, "parameters": bounded_schema(sent)}})
    if bounded_tools == patch["tools"]:
        return OutputRequest(mode=OutputMode.TOOLS, body=patch)
    body = {**patch, "tools": bounded_tools}
    return OutputRequest(mode=OutputMode.TOOLS, body=body, unbounded=patch)


def _response_class(name: str, schema: JsonSchema) -> type[ResponseSchema]:
    from instructor.v2.core.function_calls import ResponseSchema

    class Answer(ResponseSchema):
        @classmethod
        def model_json_schema(cls, *_: object, **__: object) -> dict[str, JsonValue]:
            return dict(schema)  # a copy, because instructor modifies it

    Answer.__name__ = Answer.__qualname__ = name
    return Answer


def _is_object(schema: JsonSchema) -> bool:
    return schema.get("type") == "object" or ("type" not in schema and "properties" in schema)


_WRAPPER: Final = "value"
_WRAPPER_WORDS: Final = 'Put it into an object: {"value": …}.'
_DEFINITIONS: Final = ("$defs", "definitions")


def _wrap_schema(schema: JsonSchema) -> dict[str, JsonValue]:
    """A schema of an object with `value` as its only property; definitions stay at the root."""
    inner = {
        key: _move_references(item)
        for key, item in schema.items()
        if key not in (*_DEFINITIONS, "$schema", "$id")
    }
    definitions = {key: _move_references(schema[key]) for key in _DEFINITIONS if key in schema}
    return {
        "type": "object",
        "properties": {_WRAPPER: inner},
        "required": [_WRAPPER],
        "additionalProperties": False,
        **definitions,
    }


def _move_references(schema: JsonValue) -> JsonValue:
    """The schema with its references adjusted to the move below `value`."""
    if isinstance(schema, Mapping):
        return {
            key: _moved_reference(item)
            if key == "$ref" and isinstance(item, str)
            else _move_references(item)
            for key, item in schema.items()
        }
    if isinstance(schema, list | tuple):
        return [_move_references(item) for item in schema]
    return schema


def _moved_reference(reference: str) -> str:
    if not reference.startswith("#") or reference.startswith(("#/$defs/", "#/definitions/")):
        return reference
    return f"#/properties/{_WRAPPER}{reference[1:]}"


# --- the answer -----------------------------------------------------------------------------------


_CUT_OFF: Final = (
    "The answer could not be read: The output is incomplete due to a max_tokens length limit."
)


def _parse(
    kept: _RequestParts[T], plan: _Plan, response: ModelCallResponse
) -> Result[T, OutputFailure]:
    called = None
    if plan.request.mode is OutputMode.TOOLS:
        called = next((call for call in response.tool_calls if call.name == plan.name), None)
    if called is None and response.text is None and response.tool_calls:
        names = ", ".join(call.name for call in response.tool_calls)
        return Failure(OutputFailure(message=f"The answer only calls {names}; it holds no JSON."))
    if response.finish_reason == "length":
        return Failure(OutputFailure(message=_CUT_OFF))
    text = response.text or "" if called is None else called.arguments
    return _check(kept, text, plan.is_wrapped)


def _check(kept: _RequestParts[T], text: str, is_wrapped: bool) -> Result[T, OutputFailure]:
    instructions, validator = kept.instructions(), kept.validator()
    try:
        value = find_json_value(text)
    except ValueError as error:
        refusal = OutputFailure(message=f"The answer holds no JSON: {error}.")
        if text.lstrip().startswith(("{", "[", "```")):  # it was meant as JSON and is invalid
            return Failure(refusal)
        return bare_text(instructions, validator, text, Failure(refusal))
    if not (is_wrapped and isinstance(value, dict) and set(value) == {_WRAPPER}):
        return checked_output(instructions, validator, value)
    inner = checked_output(instructions, validator, value[_WRAPPER])
    # The prompt shows the schema without the wrapper, and a model may follow the prompt.
    whole = inner if is_successful(inner) else checked_output(instructions, validator, value)
    return whole if is_successful(whole) else inner

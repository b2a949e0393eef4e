"""`InstructorParser`: requests that constrain an answer, and answers read against the schema.

`instructor` writes the request and finds the answer in the response; the check itself is
`contracts.output`'s, the same in every mode. Its retry loop and its hooks are not used.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, cast

from attrs import define, field, frozen
from returns.pipeline import is_successful
from returns.result import Failure, Result

from minions.adapters.daemon_thread import run_in_daemon_thread
from minions.contracts.calls import (
    ModelCallResponse,
    OutputFailure,
    OutputInstructions,
    OutputMode,
    OutputParser,
    OutputRequest,
)
from minions.contracts.json_values import JsonValue, find_json_value
from minions.contracts.messages import Message, MessageRole, ToolCallRequest
from minions.contracts.output import bare_text, checked_output, parse_text
from minions.contracts.schema import JsonSchema, SchemaValidator

if TYPE_CHECKING:
    from instructor.v2.core.function_calls import ResponseSchema
    from openai.types.chat import ChatCompletion

__all__ = ["InstructorParser"]

T = TypeVar("T")


class InstructorParser(OutputParser):
    """Builds requests with `instructor` and checks every answer on this side.

    What is made for an `OutputInstructions` object is kept as long as that object lives.
    """

    def __init__(self) -> None:
        self._kept: dict[int, _Kept[Any]] = {}  # Any: each entry has a T of its own

    async def warm_up(self) -> None:
        """Import `instructor` and fill its registry: about half a second, in a thread."""
        example: OutputInstructions[object] = OutputInstructions(schema={"type": "object"})
        await run_in_daemon_thread(InstructorParser().request, example, OutputMode.JSON_SCHEMA)

    def request(self, instructions: OutputInstructions[T], mode: OutputMode) -> OutputRequest:
        """The constraining part of a request; the same object at every call.

        Raises:
            SchemaError: The instructions hold no usable schema.
        """
        return self._plan(instructions, mode).request

    def parse(
        self,
        instructions: OutputInstructions[T],
        response: ModelCallResponse,
        mode: OutputMode | None,
    ) -> Result[T, OutputFailure]:
        """The answer as the declared type. Never raises but for cancellation."""
        try:
            if mode is None:
                validator = self._kept_for(instructions).validator()
                return parse_text(instructions, validator, response.text or "")
            return _parse(self._plan(instructions, mode), response)
        except Exception as error:  # noqa: BLE001  # whatever breaks, the answer is not the output
            text = f"{type(error).__name__}: {error}"
            return Failure(OutputFailure(message=f"The answer could not be read: {text}"))

    def _plan(self, instructions: OutputInstructions[T], mode: OutputMode) -> _Plan[T]:
        kept = self._kept_for(instructions)
        if mode not in kept.plans:
            kept.plans[mode] = _new_plan(kept, mode)
        return kept.plans[mode]

    def _kept_for(self, instructions: OutputInstructions[T]) -> _Kept[T]:
        """By identity: the schema is a mapping, so instructions have no hash."""
        key = id(instructions)
        kept: _Kept[T] | None = self._kept.get(key)
        if kept is None or kept.owner() is not instructions:
            everything = self._kept
            # Gone with its owner, before another object can get the same id.
            owner = weakref.ref(instructions, lambda _: everything.pop(key, None))
            kept = everything[key] = _Kept(owner=owner)
        return kept


@define
class _Kept(Generic[T]):
    """What was made for one `OutputInstructions` object."""

    owner: Callable[[], OutputInstructions[T] | None]
    """Weak, or the object would never go."""
    plans: dict[OutputMode, _Plan[T]] = field(factory=dict)
    _validator: SchemaValidator | None = None

    def instructions(self) -> OutputInstructions[T]:
        """The object; every caller holds it while it asks."""
        owner = self.owner()
        assert owner is not None  # noqa: S101  # see above
        return owner

    def validator(self) -> SchemaValidator:
        """Compiled once."""
        if self._validator is None:
            self._validator = SchemaValidator(self.instructions().json_schema())
        return self._validator


@frozen(kw_only=True)
class _Plan(Generic[T]):
    """How one schema is put to a server in one mode."""

    name: str
    """The schema's in the request."""
    response_class: type[ResponseSchema]
    """Its `model_validate_json` gives a `_Checked`."""
    request: OutputRequest


@frozen
class _Checked(Generic[T]):
    """A result that passes through `instructor` untouched."""

    result: Result[T, OutputFailure]


# --- the request -------------------------------------------------------------------------------


def _new_plan(kept: _Kept[T], mode: OutputMode) -> _Plan[T]:
    from instructor.mode import Mode
    from instructor.processing.response import handle_response_model

    instructions = kept.instructions()
    schema: Mapping[str, JsonValue] = instructions.json_schema()
    # Only a text can be an array or a number as a whole; elsewhere servers want an object.
    is_wrapped = mode is not OutputMode.MD_JSON and not _is_object(schema)
    if is_wrapped:
        schema = _wrapped(schema)
    name = re.sub(r"[^A-Za-z0-9_-]", "_", instructions.name)[:64] or "output"
    if mode is OutputMode.TOOLS:
        schema = {**schema, "title": name}  # instructor calls the tool by it
    response_class = _response_class(name, schema, lambda text: _check(kept, text, is_wrapped))
    _, patch = handle_response_model(response_class, mode=Mode[mode.name], messages=[])
    messages = tuple(_message(item) for item in patch.pop("messages"))
    return _Plan(
        name=name,
        response_class=response_class,
        request=OutputRequest(mode=mode, body=patch, messages=messages),
    )


def _response_class(
    name: str, schema: Mapping[str, JsonValue], check: Callable[[str], _Checked[T]]
) -> type[ResponseSchema]:
    from instructor.v2.core.function_calls import ResponseSchema

    class Answer(ResponseSchema):
        @classmethod
        def model_json_schema(cls, *_: object, **__: object) -> dict[str, JsonValue]:
            return dict(schema)  # a new one: instructor writes into it

        @classmethod
        def model_validate_json(  # type: ignore[override]  # what comes out is our result
            cls, json_data: str, *_: object, **__: object
        ) -> _Checked[T]:
            return check(json_data)

    Answer.__name__ = Answer.__qualname__ = name
    return Answer


def _message(item: Mapping[str, str]) -> Message:
    return Message(role=MessageRole(item["role"]), content=item["content"].strip())


def _is_object(schema: JsonSchema) -> bool:
    return schema.get("type") == "object" or ("type" not in schema and "properties" in schema)


_WRAPPER: Final = "value"
_DEFINITIONS: Final = ("$defs", "definitions")


def _wrapped(schema: JsonSchema) -> dict[str, JsonValue]:
    """An object with `value` as its only property; definitions stay at the root."""
    inner = {
        key: _moved(item)
        for key, item in schema.items()
        if key not in (*_DEFINITIONS, "$schema", "$id")
    }
    definitions = {key: _moved(schema[key]) for key in _DEFINITIONS if key in schema}
    return {
        "type": "object",
        "properties": {_WRAPPER: inner},
        "required": [_WRAPPER],
        "additionalProperties": False,
        **definitions,
    }


def _moved(schema: JsonValue) -> JsonValue:
    """The same with references to what has moved under `value`."""
    if isinstance(schema, Mapping):
        return {
            key: _moved_reference(item) if key == "$ref" and isinstance(item, str) else _moved(item)
            for key, item in schema.items()
        }
    if isinstance(schema, list | tuple):
        return [_moved(item) for item in schema]
    return schema


def _moved_reference(reference: str) -> str:
    if not reference.startswith("#") or reference.startswith(("#/$defs/", "#/definitions/")):
        return reference
    return f"#/properties/{_WRAPPER}{reference[1:]}"


# --- the answer -----------------------------------------------------------------------------------


def _parse(plan: _Plan[T], response: ModelCallResponse) -> Result[T, OutputFailure]:
    from instructor.mode import Mode
    from instructor.processing.response import process_response

    call = next((call for call in response.tool_calls if call.name == plan.name), None)
    is_called = plan.request.mode is OutputMode.TOOLS and call is not None
    if not is_called and response.text is None and response.tool_calls:
        names = ", ".join(call.name for call in response.tool_calls)
        return Failure(OutputFailure(message=f"The answer only calls {names}; it holds no JSON."))
    checked = process_response(
        _completion(response, call if is_called else None),
        response_model=plan.response_class,
        stream=False,
        # MD_JSON would hand over the last JSON in the text; ours is the largest, in every mode.
        mode=Mode.TOOLS if is_called else Mode.JSON,
    )
    return cast("_Checked[T]", checked).result  # from our own response class


def _completion(response: ModelCallResponse, call: ToolCallRequest | None) -> ChatCompletion:
    """What `process_response` looks at; constructed without validation, which costs 50 µs."""
    from openai.types.chat import ChatCompletion, ChatCompletionMessage
    from openai.types.chat.chat_completion import Choice

    calls = None if call is None else [_tool_call(call)]
    message = ChatCompletionMessage.model_construct(
        role="assistant", content=response.text, tool_calls=calls, refusal=None
    )
    reason = response.finish_reason or "stop"
    choice = Choice.model_construct(index=0, finish_reason=reason, message=message)
    return ChatCompletion.model_construct(choices=[choice])


def _tool_call(call: ToolCallRequest) -> object:
    from openai.types.chat import ChatCompletionMessageFunctionToolCall
    from openai.types.chat.chat_completion_message_function_tool_call import Function

    function = Function.model_construct(name=call.name, arguments=call.arguments)
    return ChatCompletionMessageFunctionToolCall.model_construct(
        id=call.id, type="function", function=function
    )


def _check(kept: _Kept[T], text: str, is_wrapped: bool) -> _Checked[T]:
    instructions, validator = kept.instructions(), kept.validator()
    try:
        value = find_json_value(text)
    except ValueError as error:
        refusal = OutputFailure(message=f"The answer holds no JSON: {error}.")
        if text.lstrip().startswith(("{", "[", "```")):  # JSON it was to be, and is broken
            return _Checked(Failure(refusal))
        return _Checked(bare_text(instructions, validator, text, Failure(refusal)))
    if not (is_wrapped and isinstance(value, dict) and set(value) == {_WRAPPER}):
        return _Checked(checked_output(instructions, validator, value))
    inner = checked_output(instructions, validator, value[_WRAPPER])
    # The words in the prompt show the schema unwrapped, and a model may follow those.
    whole = inner if is_successful(inner) else checked_output(instructions, validator, value)
    return _Checked(whole if is_successful(whole) else inner)

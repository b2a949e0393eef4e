"""Bodies of requests and answers under `/v1`, in the form of OpenAI's API, as classes.

Source: OpenAI's API reference, chat completions and responses. What is not read is listed here by
name: a parameter is either taken, told as passed over, or refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from http import HTTPStatus
from typing import ClassVar, Final, Literal

import attrs
from attrs import field, frozen

from minions.contracts.journal.start_note import CallerTool
from minions.contracts.messages import (
    Message,
    MessageRole,
    ToolCallRequest,
    assistant,
    tool_result,
    user,
)
from minions.data.errors import UsageError
from minions.data.json_parts import is_large
from minions.data.json_values import JsonValue, as_object, parse_json
from minions.data.schema import check_schema
from minions.interfaces.http.http_answers import RefusedError
from minions.interfaces.server.documents.caller_tool_documents import CallResult, paired
from minions.interfaces.server.documents.shared_documents import (
    MAYBE_TEXT,
    USER,
    JsonObject,
    text_schema,
    unsupported,
    wrong,
)
from minions.recipe.checks.shapes import Shape, excesses
from minions.recipe.model import MESSAGE_INPUT, AgentRecipe, InputSpec

_MODEL: Final = text_schema(200)
_METADATA: Final[Mapping[str, JsonObject]] = {
    "schema": {"type": ["object", "null"], "additionalProperties": {"type": "string"}}
}
_MAYBE_BOOLEAN: Final[Mapping[str, JsonObject]] = {"schema": {"type": ["boolean", "null"]}}
_STREAM: Final = _MAYBE_BOOLEAN
_STREAM_OPTIONS: Final[Mapping[str, JsonObject]] = {
    "schema": {
        "type": ["object", "null"],
        "properties": {
            "include_usage": {"type": ["boolean", "null"]},
            "include_obfuscation": {"type": ["boolean", "null"]},
        },
        "additionalProperties": False,
    }
}
_OBJECT: Final[Mapping[str, JsonObject]] = {"schema": {"type": ["object", "null"]}}
_TOOLS: Final[Mapping[str, JsonObject]] = {
    "schema": {"type": ["array", "null"], "items": {"type": "object"}}
}
_MESSAGES: Final[Mapping[str, JsonObject]] = {
    "schema": {"type": "array", "items": {"type": "object"}, "minItems": 1}
}
_INPUT: Final[Mapping[str, JsonObject]] = {
    "schema": {"type": ["string", "array"], "items": {"type": "object"}, "minLength": 1}
}

_NOTHING: Final[tuple[JsonValue, ...]] = (None, [], {}, "")
"""Values with which a refused parameter says that nothing is wanted."""


def _refuse_unless(*neutral: JsonValue) -> Mapping[str, tuple[JsonValue, ...]]:
    """The metadata of a parameter that is refused unless it has one of these values."""
    return {"neutral": (*_NOTHING, *neutral)}


@frozen(kw_only=True)
class _Parameters:
    """What both operations share."""

    reader: ClassVar[frozenset[str]]
    """Names of the parameters that are read."""

    def check(self) -> tuple[str, ...]:
        """The names of parameters that are given and have no effect.

        Raises:
            UsageError: `unsupported-parameter`; one asks for what a recipe cannot do.
        """
        passed_over: list[str] = []
        for each in attrs.fields(type(self)):
            value = getattr(self, each.name)
            neutral = each.metadata.get("neutral")
            if neutral is not None and value not in neutral:
                raise unsupported(each.name, _WHY.get(each.name, "Recipes do not take it."))
            if neutral is None and each.name not in self.reader and value is not None:
                passed_over.append(each.name)
        return tuple(passed_over)


_WHY: Final[Mapping[str, str]] = {
    "functions": "Tools of a caller are taken as `tools`, where the recipe offers them.",
    "function_call": "Tools of a caller are taken as `tools`, where the recipe offers them.",
    "n": "A run gives one answer.",
    "background": "POST /api/v1/runs starts a run in the background.",
    "conversation": "Name a session by the header X-Minions-Session, or `previous_response_id`.",
}


@frozen(kw_only=True)
class ChatRequest(_Parameters):
    """A request for a chat completion."""

    reader: ClassVar[frozenset[str]] = frozenset(
        {
            *("model", "messages", "stream", "stream_options", "metadata", "user"),
            *("response_format", "tools", "tool_choice", "parallel_tool_calls"),
        }
    )

    model: str = field(metadata=_MODEL)
    """The id of a recipe."""
    messages: tuple[JsonObject, ...] = field(metadata=_MESSAGES)
    """The conversation; the last message is the user's, or the last ones are results of tools."""
    stream: bool | None = field(default=None, metadata=_STREAM)
    stream_options: JsonObject | None = field(default=None, metadata=_STREAM_OPTIONS)
    metadata: Mapping[str, str] | None = field(default=None, metadata=_METADATA)
    """Further inputs of the recipe, by name."""
    user: str | None = field(default=None, metadata=USER)
    """The label of the user for whom it runs; null: none."""
    response_format: JsonObject | None = field(default=None, metadata=_OBJECT)
    tools: tuple[JsonObject, ...] | None = field(default=None, metadata=_TOOLS)
    """Functions of the caller, where the recipe offers them: a call of one ends the answer, and the
    next request brings its result."""
    tool_choice: JsonValue = None
    """`auto`, `none`, `required`, a function by its name, or `allowed_tools`: some functions, of
    which one may or, by its `mode`, has to be called."""
    parallel_tool_calls: bool | None = field(default=None, metadata=_MAYBE_BOOLEAN)
    """Whether an answer may call several functions of the caller; null: it may."""

    frequency_penalty: JsonValue = None
    logit_bias: JsonValue = None
    max_completion_tokens: JsonValue = None
    max_tokens: JsonValue = None
    moderation: JsonValue = None
    prediction: JsonValue = None
    presence_penalty: JsonValue = None
    prompt_cache_key: JsonValue = None
    prompt_cache_options: JsonValue = None
    prompt_cache_retention: JsonValue = None
    reasoning_effort: JsonValue = None
    safety_identifier: JsonValue = None
    seed: JsonValue = None
    service_tier: JsonValue = None
    store: JsonValue = None
    temperature: JsonValue = None
    top_p: JsonValue = None
    verbosity: JsonValue = None

    audio: JsonValue = field(default=None, metadata=_refuse_unless())
    function_call: JsonValue = field(default=None, metadata=_refuse_unless("none", "auto"))
    functions: JsonValue = field(default=None, metadata=_refuse_unless())
    logprobs: JsonValue = field(default=None, metadata=_refuse_unless(False))
    modalities: JsonValue = field(default=None, metadata=_refuse_unless(["text"]))
    n: JsonValue = field(default=None, metadata=_refuse_unless(1))
    stop: JsonValue = field(default=None, metadata=_refuse_unless())
    top_logprobs: JsonValue = field(default=None, metadata=_refuse_unless(0))
    web_search_options: JsonValue = field(default=None, metadata=_refuse_unless())

    @property
    def includes_usage(self) -> bool:
        """Whether a stream ends with a chunk that has the usage."""
        return bool((self.stream_options or {}).get("include_usage"))


@frozen(kw_only=True)
class ResponseRequest(_Parameters):
    """A request for a response."""

    reader: ClassVar[frozenset[str]] = frozenset(
        {
            *("model", "input", "stream", "stream_options", "metadata", "user"),
            *("previous_response_id", "text", "tools", "tool_choice", "parallel_tool_calls"),
        }
    )

    model: str = field(metadata=_MODEL)
    """The id of a recipe."""
    input: str | tuple[JsonObject, ...] = field(metadata=_INPUT)
    """What the user says, or the conversation, whose last message is the user's."""
    stream: bool | None = field(default=None, metadata=_STREAM)
    stream_options: JsonObject | None = field(default=None, metadata=_STREAM_OPTIONS)
    metadata: Mapping[str, str] | None = field(default=None, metadata=_METADATA)
    """Further inputs of the recipe, by name."""
    user: str | None = field(default=None, metadata=USER)
    """The label of the user for whom it runs; null: none."""
    previous_response_id: str | None = field(default=None, metadata=MAYBE_TEXT)
    """The response whose conversation is continued; null: a new one begins."""
    text: JsonObject | None = field(default=None, metadata=_OBJECT)
    """`format`: the form of the answer."""
    tools: tuple[JsonObject, ...] | None = field(default=None, metadata=_TOOLS)
    """Functions of the caller, where the recipe offers them: a call of one ends the response, and
    the next request brings its result."""
    tool_choice: JsonValue = None
    """`auto`, `none`, `required`, a function by its name, or `allowed_tools`: some functions, of
    which one may or, by its `mode`, has to be called."""
    parallel_tool_calls: bool | None = field(default=None, metadata=_MAYBE_BOOLEAN)
    """Whether an answer may call several functions of the caller; null: it may."""

    include: JsonValue = None
    instructions: JsonValue = None
    max_output_tokens: JsonValue = None
    max_tool_calls: JsonValue = None
    moderation: JsonValue = None
    prompt_cache_key: JsonValue = None
    prompt_cache_options: JsonValue = None
    prompt_cache_retention: JsonValue = None
    reasoning: JsonValue = None
    safety_identifier: JsonValue = None
    service_tier: JsonValue = None
    store: JsonValue = None
    temperature: JsonValue = None
    top_p: JsonValue = None
    truncation: JsonValue = None

    background: JsonValue = field(default=None, metadata=_refuse_unless(False))
    context_management: JsonValue = field(default=None, metadata=_refuse_unless())
    conversation: JsonValue = field(default=None, metadata=_refuse_unless())
    prompt: JsonValue = field(default=None, metadata=_refuse_unless())
    top_logprobs: JsonValue = field(default=None, metadata=_refuse_unless(0))


# --- messages ------------------------------------------------------------------------------------


@frozen(kw_only=True)
class ChatTurn:
    """A conversation as a request brings it."""

    text: str
    """What the user says now; empty where it is results that the request brings."""
    said: tuple[tuple[Message, str], ...] = ()
    """The messages before it, each with its place in the request."""
    results: tuple[CallResult, ...] = ()
    """What the caller's tools gave, for calls that an earlier answer asked for."""
    passed_over: tuple[str, ...] = ()
    """The places of what has no effect."""
    of_tools: str | None = None
    """The place of the first message that has to do with tools; None: there is none."""

    def earlier(self, tools: Iterable[CallerTool]) -> Iterator[tuple[Message, str]]:
        """The messages before what the user says now, and calls of these tools with their results;
        others are left out.
        """
        return paired(self.said, frozenset(each.name for each in tools))


_INSTRUCTIONS: Final = ("system", "developer")
_KEYS: Final = frozenset({"role", "content", "type", "tool_calls", "tool_call_id"})
_CALL_KEYS: Final = frozenset({"type", "call_id", "name", "arguments", "output", "id", "status"})


def read_messages(messages: str | tuple[JsonObject, ...], name: str) -> ChatTurn:
    """The conversation, oldest message first.

    Args:
        name: Of the parameter.
    Raises:
        UsageError: A message has another form, holds what recipes do not take, or the last one is
            neither the user's nor a tool's.
    """
    if isinstance(messages, str):
        return ChatTurn(text=messages)
    said: list[tuple[Message, str]] = []
    passed_over: list[str] = []
    of_tools: str | None = None
    for at, given in enumerate(messages):
        where = f"{name}[{at}]"
        if given.get("type") == "reasoning" or given.get("role") in _INSTRUCTIONS:
            passed_over.append(
                where
            )  # the recipe has its own words, which a caller does not replace
            continue
        message = _message(given, where)
        if of_tools is None and (message.tool_calls or message.role is MessageRole.TOOL):
            of_tools = where
        is_item = given.get("type", "message") != "message"
        passed_over += [
            f"{where}.{key[:80]}"
            for key, value in given.items()
            if key not in (_CALL_KEYS if is_item else _KEYS) and value not in _NOTHING
        ]
        if message.tool_calls and message.content is None and said and _is_answer(said[-1][0]):
            answer, where = said.pop()  # each call of an answer is an item of its own
            message = attrs.evolve(answer, tool_calls=(*answer.tool_calls, *message.tool_calls))
        said.append((message, where))
    results: list[CallResult] = []
    while said and said[-1][0].role is MessageRole.TOOL:
        message, where = said.pop()
        text = message.content or ""
        results.insert(0, CallResult(id=message.tool_call_id or "", text=text, where=where))
    text = ""
    if not results:
        last = said.pop()[0] if said else None
        if last is None or last.role is not MessageRole.USER or not last.content:
            raise wrong(name, "is to end with a message of the user that is not empty.")
        text = last.content
    return ChatTurn(
        text=text,
        said=tuple(said),
        results=tuple(results),
        passed_over=tuple(passed_over),
        of_tools=of_tools,
    )


def _message(given: JsonObject, where: str) -> Message:
    """A message, an item of a call, or one of its result.

    Raises:
        UsageError: It is none.
    """
    kind, role = given.get("type", "message"), given.get("role")
    if kind == "function_call":
        return assistant(tool_calls=[_call(given.get("call_id"), given, where)])
    if kind == "function_call_output":
        text = _text_of(given.get("output"), f"{where}.output")
        return tool_result(text, tool_call_id=_text(given.get("call_id"), f"{where}.call_id"))
    if kind != "message":
        raise unsupported(f"{where}.type", f"Items of type '{str(kind)[:40]}' are not taken.")
    if role not in ("user", "assistant", "tool"):
        raise wrong(
            f"{where}.role", "is to be 'user', 'assistant', 'tool', 'system' or 'developer'."
        )
    text = _text_of(given.get("content"), f"{where}.content")
    if role == "tool":
        answered = _text(given.get("tool_call_id"), f"{where}.tool_call_id")
        return tool_result(text, tool_call_id=answered)
    calls = given.get("tool_calls") or ()
    if role == "user" or not calls:
        return user(text) if role == "user" else assistant(text)
    if not isinstance(calls, list | tuple):
        raise wrong(f"{where}.tool_calls", "is to be a list.")
    made: list[ToolCallRequest] = []
    for at, each in enumerate(calls):
        place, call = f"{where}.tool_calls[{at}]", _object(each)
        named = call.get("function")
        made.append(_call(call.get("id"), _object(named), place))
    return assistant(text or None, tool_calls=made)


def _call(call_id: JsonValue, given: JsonObject, where: str) -> ToolCallRequest:
    return ToolCallRequest(
        id=_text(call_id, f"{where}.{'call_id' if 'call_id' in given else 'id'}"),
        name=_text(given.get("name"), f"{where}.name"),
        arguments=_text(given.get("arguments"), f"{where}.arguments"),
    )


def _object(value: JsonValue) -> JsonObject:
    return as_object(value) if isinstance(value, Mapping) else {}


def _is_answer(message: Message) -> bool:
    return message.role is MessageRole.ASSISTANT


def _text(value: JsonValue, where: str) -> str:
    if not isinstance(value, str) or not value:
        raise wrong(where, "is to be a text that is not empty.")
    return value


def _text_of(content: JsonValue, where: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise wrong(where, "is to be a text, or a list of parts.")
    texts: list[str] = []
    for at, part in enumerate(content):
        kind = part.get("type") if isinstance(part, Mapping) else None
        text = as_object(part).get("text") if isinstance(part, Mapping) else None
        if kind not in ("text", "input_text", "output_text"):
            raise unsupported(
                f"{where}[{at}]",
                f"Parts of type '{str(kind)[:40]}' are not taken: recipes get text.",
            )
        if not isinstance(text, str):
            raise wrong(f"{where}[{at}].text", "is to be a text.")
        texts.append(text)
    return "\n".join(texts)


# --- what a recipe takes and promises ------------------------------------------------------------


def text_input(recipe: AgentRecipe) -> str | None:
    """The input that takes what the user says: `message`, `question`, the only text that is
    required, or the only text. None: the recipe takes none.
    """
    texts = [name for name, spec in recipe.inputs.items() if _takes_text(spec)]
    for name in (MESSAGE_INPUT, "question"):
        if name in texts:
            return name
    required = [name for name in texts if not recipe.inputs[name].has_default]
    found = required or texts
    return found[0] if len(found) == 1 else None


def _takes_text(spec: InputSpec) -> bool:
    kinds = spec.schema.get("type", "string")
    is_text = kinds == "string" or (isinstance(kinds, list) and "string" in kinds)
    return is_text and not spec.is_secret and spec.schema.get("format") != "path"


def no_model(recipe_id: str) -> RefusedError:
    """The refusal of a recipe that cannot be asked with a text."""
    return RefusedError(
        HTTPStatus.NOT_FOUND,
        "recipe-not-found",
        f"The recipe '{recipe_id}' is no model: none of its inputs alone takes a text. Start it "
        "with POST /api/v1/runs, or name one of its inputs `message`.",
    )


def inputs_in(
    recipe: AgentRecipe, metadata: Mapping[str, str] | None
) -> Iterator[tuple[str, JsonValue]]:
    """The inputs that `metadata` gives: texts, and JSON where an input takes no text.

    Raises:
        UsageError: `bad-body`; there is no such input, or it is the one that takes the message.
    """
    taken = text_input(recipe)
    for name, text in (metadata or {}).items():
        where = f"metadata.{name[:80]}"
        spec = recipe.inputs.get(name)
        if spec is None or name == taken:
            others = ", ".join(each for each in recipe.inputs if each != taken)
            raise wrong(
                where,
                f"names no further input of the recipe '{recipe.id}'. Those are: "
                f"{others or 'none'}.",
            )
        if spec.is_secret or _takes_text(spec) or spec.schema.get("format") == "path":
            yield name, text
            continue
        try:
            yield name, parse_json(text, unique_keys=True)
        except ValueError as error:
            raise wrong(where, f"is to be JSON, as its input takes no text: {error}.") from error


def check_format(recipe: AgentRecipe, wanted: JsonValue, where: str) -> None:
    """Refuse a form of the answer that the recipe does not promise: it is not changed by a caller.

    Args:
        wanted: `{"type": "text"}`, `json_object`, or `json_schema` with a schema.
        where: The name of the parameter.
    Raises:
        UsageError: `unsupported-parameter`, `bad-body`.
    """
    form = as_object(wanted) if isinstance(wanted, Mapping) else {}
    match form.get("type"):
        case "text":
            return
        case "json_object":
            schema: JsonValue = {"type": "object"}
        case "json_schema":
            named = form.get("json_schema")
            schema = as_object(named if isinstance(named, Mapping) else form).get("schema")
        case _:
            raise wrong(f"{where}.type", "is to be 'text', 'json_object' or 'json_schema'.")
    if not isinstance(schema, Mapping) or is_large(schema):
        raise wrong(where, "is to hold a JSON Schema under `schema`.")
    try:
        check_schema(schema)
    except UsageError as error:
        raise wrong(where, f"holds no JSON Schema: {error.message}") from error
    missing = excesses(Shape.of(recipe.known_output), Shape.of(schema))
    if missing:
        at = ".".join(missing[0].path)
        raise unsupported(
            where,
            f"The recipe '{recipe.id}' decides the form of its answer, and does not promise this "
            f"one{f' (at {at})' if at else ''}: {missing[0].reason}.",
        )


# --- answers --------------------------------------------------------------------------------------


@frozen(kw_only=True)
class ErrorDetail:
    """Why a request was refused, or its run failed."""

    message: str
    """What was read, what was expected, and what to try."""
    type: str
    """`invalid_request_error`, `rate_limit_error` or `server_error`."""
    param: str | None
    """The parameter at fault; null: none alone is."""
    code: str
    """The code that `/api/v1` and the command line say, or OpenAI's own where it has one."""


@frozen(kw_only=True)
class ErrorAnswer:
    """A refusal in OpenAI's form."""

    error: ErrorDetail


@frozen(kw_only=True)
class ModelView:
    """A recipe as a model."""

    id: str
    object: Literal["model"] = "model"
    created: int
    """When the server began to offer it, in seconds since 1970."""
    owned_by: str = "minions"
    supported_parameters: tuple[str, ...]
    """Parameters of requests that have an effect, beside the model and the conversation; `tools`
    where it takes the caller's."""


@frozen(kw_only=True)
class ModelList:
    """All recipes that can be asked with a text, ordered by id."""

    object: Literal["list"] = "list"
    data: tuple[ModelView, ...]


@frozen(kw_only=True)
class ChatCompletion:
    """The answer of a run as a chat completion."""

    id: str
    """`chatcmpl-` and the id of the run."""
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: tuple[JsonObject, ...]
    """The only one: `message` and `finish_reason`: `stop`, or `tool_calls` where the run waits for
    results of the caller's tools."""
    usage: JsonObject
    """The tokens of all model calls of the run."""


@frozen(kw_only=True)
class ResponseAnswer:
    """The answer of a run as a response."""

    id: str
    """`resp_` and the id of the run."""
    object: Literal["response"] = "response"
    created_at: int
    status: Literal["in_progress", "completed", "failed"]
    error: JsonObject | None
    incomplete_details: None = None
    instructions: None = None
    metadata: Mapping[str, str]
    model: str
    output: tuple[JsonObject, ...]
    parallel_tool_calls: bool = False
    """Whether an answer of the run may call several functions of the caller."""
    previous_response_id: str | None
    temperature: None = None
    tool_choice: Literal["none", "auto", "required"] = "none"
    """`required`: the first answer calls a function of the caller, or the one that was named."""
    tools: tuple[JsonObject, ...] = ()
    """The functions of the caller that the run may call."""
    top_p: None = None
    usage: JsonObject | None

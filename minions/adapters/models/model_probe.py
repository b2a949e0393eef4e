"""`probe_model`: finds out by a few small requests what a server does with a model.

Whether something binds is told from answers that the words of the prompt contradict: a model that
is asked for `blue` says `blue`, unless the server holds it to `k7` or `q3`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Final, TypeAlias

from attrs import define, field, frozen
from returns.pipeline import is_successful
from returns.result import Failure, Result, Success

from minions.contracts.calls import ChatModel, ModelCallResponse, ModelFailure, ModelOptions, Prompt
from minions.contracts.instructions import OutputMode, OutputRequest
from minions.contracts.messages import Message, TokenUsage, system, user
from minions.contracts.model_profiles import Feature, ModelProfile, Support
from minions.contracts.tools import ToolSpec
from minions.data.errors import OUTPUT_TRUNCATED
from minions.data.json_values import JsonValue, find_json_value

MOST_REQUESTS: Final = 14
"""Requests of one probe at most; about ten are usual."""

_GIVEN_UP: Final = frozenset(
    {
        "auth-rejected",
        "model-not-found",
        "model-unreachable",
        "redirected",
        "quota-exhausted",
        "circuit-open",
        "malformed-response",
    }
)
"""Failures after which a server need not be asked again."""


@frozen(kw_only=True)
class ProbeOptions:
    """How much a probe may ask for."""

    max_output_tokens: int = 256
    """Tokens of one answer; a model that thinks aloud needs more than the ten of the answer."""
    timeout_s: float = 30.0
    """Seconds for one answer."""


@frozen(kw_only=True)
class ProbeOutcome:
    """What a probe found out, and what it took."""

    profile: ModelProfile
    requests: int
    usage: TokenUsage
    """Tokens as the server counted them."""


async def probe_model(
    model: ChatModel,
    *,
    now: Callable[[], datetime],
    options: ProbeOptions | None = None,
    on_request: Callable[[str], None] | None = None,
) -> Result[ProbeOutcome, ModelFailure]:
    """Ask the server at most `MOST_REQUESTS` times; nothing is retried.

    Args:
        on_request: Called before each request with what it finds out.
    Returns:
        The profile without version and context, which no answer tells; the failure where the
        server does not answer the plainest request.
    """
    asking = _Probe(model=model, options=options or ProbeOptions(), on_request=on_request)
    failure = await _plain(asking)
    if failure is None:
        failure = await _features(asking)
    if failure is not None:
        return Failure(failure)
    profile = ModelProfile(
        base_url=model.base_url or "",
        model=model.name,
        measured_at=now(),
        features=asking.found,
        schema_depth=asking.depth,
    )
    return Success(ProbeOutcome(profile=profile, requests=asking.requests, usage=asking.usage))


_Answer: TypeAlias = Result[ModelCallResponse, ModelFailure]


@define
class _Probe:
    """One probe: what was asked, and what is known by now."""

    model: ChatModel
    options: ProbeOptions
    on_request: Callable[[str], None] | None
    requests: int = 0
    usage: TokenUsage = field(factory=TokenUsage)
    found: dict[Feature, Support] = field(factory=dict)
    depth: int | None = None

    async def ask(
        self,
        what: str,
        words: str,
        *,
        body: Mapping[str, JsonValue] | None = None,
        mode: OutputMode = OutputMode.JSON,
        tools: tuple[ToolSpec, ...] = (),
        before: tuple[Message, ...] = (),
        is_streamed: bool = False,
    ) -> _Answer:
        """One request, counted."""
        if self.on_request is not None:
            self.on_request(what)
        self.requests += 1
        prompt = Prompt(
            (*before, user(words)),
            ModelOptions(
                max_output_tokens=self.options.max_output_tokens,
                timeout_s=self.options.timeout_s,
                idle_timeout_s=self.options.timeout_s,
            ),
            tools=tools,
            output_request=None if body is None else OutputRequest(mode=mode, body=body),
        )
        outcome = await self.model.complete(prompt, _ignore if is_streamed else None)
        ended = outcome.unwrap() if is_successful(outcome) else outcome.failure()
        self.usage += ended.usage
        return outcome

    def note(self, feature: Feature, support: Support | None) -> None:
        """Keep what was found; None: the answer does not tell."""
        if support is not None:
            self.found[feature] = support


def _ignore(_: object) -> None:
    """Fragments of a stream are not shown."""


# --- the plainest request ------------------------------------------------------------------------

_OK: Final = "Answer exactly: ok"


async def _plain(asking: _Probe) -> ModelFailure | None:
    """Whether there is an answer at all, system messages are taken, and streams are counted."""
    told = system("You answer exactly as you are asked.")
    answer = await asking.ask("a plain answer", _OK, before=(told,), is_streamed=True)
    if _refusal(answer) is not None:
        again = await asking.ask("an answer without system message", _OK, is_streamed=True)
        if not _is_answered(again):
            return answer.failure()
        asking.note(Feature.SYSTEM_ROLE, Support.REFUSES)
        answer = again
    elif not _is_answered(answer):
        return answer.failure()
    else:
        asking.note(Feature.SYSTEM_ROLE, Support.BINDS)
    if is_successful(answer):
        is_counted = answer.unwrap().usage.total_tokens > 0
        asking.note(Feature.STREAMED_USAGE, Support.BINDS if is_counted else Support.IGNORES)
    return None


def _is_answered(answer: _Answer) -> bool:
    """Whether the server answered, be it cut off at the few tokens of a probe."""
    return is_successful(answer) or answer.failure().code in (OUTPUT_TRUNCATED, "empty-response")


def _refusal(answer: _Answer) -> ModelFailure | None:
    """The failure of a request that the server refused; None: it was not refused."""
    if is_successful(answer) or answer.failure().code not in _REFUSALS:
        return None
    return answer.failure()


_REFUSALS: Final = frozenset({"bad-request", "template-refused"})


# --- its features --------------------------------------------------------------------------------


async def _features(asking: _Probe) -> ModelFailure | None:
    """Everything else; the failure where the server stopped to answer."""
    for find in (
        _schema,
        _json_object,
        _probe_forced_call,
        _several,
        _probe_named_tool,
        _type_lists,
        _together,
        _depth,
    ):
        failure = await find(asking)
        if failure is not None and failure.code in _GIVEN_UP:
            return failure
    return None


def _support(answer: _Answer, is_held: Callable[[ModelCallResponse], bool]) -> Support | None:
    """What an answer tells; None: nothing, since it was cut off or the server is overloaded."""
    if is_successful(answer):
        return Support.BINDS if is_held(answer.unwrap()) else Support.IGNORES
    failure = answer.failure()
    if failure.code in _REFUSALS:
        return Support.REFUSES
    return Support.FAILS if failure.code in _FAILS else None


_FAILS: Final = frozenset({"output-rejected", "empty-response", "model-unavailable"})


def _of(answer: _Answer) -> ModelFailure | None:
    return None if is_successful(answer) else answer.failure()


_BLUE: Final = 'Answer exactly this JSON and nothing else: {"word": "blue"}'
_ENUM: Final = ("k7", "q3")


def _word_schema() -> dict[str, JsonValue]:
    return _object({"word": {"type": "string", "enum": list(_ENUM)}})


def _object(properties: dict[str, JsonValue]) -> dict[str, JsonValue]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _form(schema: dict[str, JsonValue], *, strict: bool) -> dict[str, JsonValue]:
    named: dict[str, JsonValue] = {"name": "probe", "schema": schema}
    if strict:
        named["strict"] = True
    return {"response_format": {"type": "json_schema", "json_schema": named}}


def _is_in_enum(response: ModelCallResponse) -> bool:
    value = _json_of(response)
    return isinstance(value, dict) and value.get("word") in _ENUM


def _json_of(response: ModelCallResponse) -> JsonValue:
    try:
        return find_json_value(response.text or "")
    except ValueError:
        return None


async def _schema(asking: _Probe) -> ModelFailure | None:
    async def tried(*, strict: bool) -> _Answer:
        what = "a schema, strict" if strict else "a schema"
        body = _form(_word_schema(), strict=strict)
        return await asking.ask(what, _BLUE, body=body, mode=OutputMode.JSON_SCHEMA)

    answer = await tried(strict=True)
    support = _support(answer, _is_in_enum)
    if support in (Support.REFUSES, Support.FAILS):
        answer = await tried(strict=False)
        without = _support(answer, _is_in_enum)
        if without is not None and without is not support:
            asking.note(Feature.STRICT, support)
            support = without
    elif support is not None:
        asking.note(Feature.STRICT, support)
    asking.note(Feature.JSON_SCHEMA, support)
    return _of(answer)


async def _json_object(asking: _Probe) -> ModelFailure | None:
    body: dict[str, JsonValue] = {"response_format": {"type": "json_object"}}
    words = "Answer exactly: hello\nWrite the bare word, no JSON."
    answer = await asking.ask("any JSON object", words, body=body)
    asking.note(
        Feature.JSON_OBJECT, _support(answer, lambda said: isinstance(_json_of(said), dict))
    )
    return _of(answer)


_NOTE: Final = ToolSpec(
    name="note", description="Notes a text.", parameters=_object({"text": {"type": "string"}})
)
_WEATHER: Final = ToolSpec(
    name="weather",
    description="Tells the weather of a city.",
    parameters=_object({"city": {"type": "string"}}),
)


def _has_calls(response: ModelCallResponse) -> bool:
    return bool(response.tool_calls)


async def _probe_forced_call(asking: _Probe) -> ModelFailure | None:
    answer = await asking.ask(
        "a forced tool call",
        "Answer exactly: hello\nCall no function.",
        tools=(_NOTE,),
        body={"tool_choice": "required"},
        mode=OutputMode.TOOLS,
    )
    support = _support(answer, _has_calls)
    if not is_successful(answer) and answer.failure().code == OUTPUT_TRUNCATED:
        support = Support.FAILS if not answer.failure().has_begun_call else None
    asking.note(Feature.FORCED_TOOL, support)
    if support is Support.BINDS:
        asking.note(Feature.TOOLS, support)
    if support is Support.REFUSES:
        free = await asking.ask(
            "tools", "Call the function note with the text hello.", tools=(_NOTE,)
        )
        asking.note(Feature.TOOLS, _support(free, _has_calls))
        return _of(free)
    return _of(answer)


def _takes_tools(asking: _Probe) -> bool:
    return asking.found.get(Feature.TOOLS) is not Support.REFUSES


async def _several(asking: _Probe) -> ModelFailure | None:
    if not _takes_tools(asking):
        return None
    words = "Call the function weather twice in one answer: for the city Oslo, for the city Rome."
    answer = await asking.ask("parallel tool calls", words, tools=(_WEATHER,))
    support = _support(answer, lambda said: len(said.tool_calls) > 1)
    asking.note(Feature.PARALLEL_CALLS, support)
    if Feature.TOOLS not in asking.found:
        asking.note(Feature.TOOLS, _support(answer, _has_calls))
    return _of(answer)


async def _probe_named_tool(asking: _Probe) -> ModelFailure | None:
    if not _takes_tools(asking):
        return None
    answer = await asking.ask(
        "a tool call by name",
        "Call the function weather for the city Oslo.",
        tools=(_NOTE, _WEATHER),
        body={"tool_choice": {"type": "function", "function": {"name": "note"}}},
        mode=OutputMode.TOOLS,
    )
    asking.note(
        Feature.NAMED_TOOL,
        _support(answer, lambda said: [each.name for each in said.tool_calls][:1] == ["note"]),
    )
    return _of(answer)


async def _type_lists(asking: _Probe) -> ModelFailure | None:
    if not _takes_tools(asking):
        return None
    parameters = _object({"text": {"type": ["string", "null"]}})
    function: JsonValue = {"name": "note", "description": "Notes.", "parameters": parameters}
    answer = await asking.ask(
        "type lists in tools",
        "Call the function note with the text hello.",
        body={"tools": [{"type": "function", "function": function}]},  # as it is: a spec is adapted
        mode=OutputMode.TOOLS,
    )
    asking.note(Feature.TYPE_LISTS, _support(answer, lambda _: True))
    return _of(answer)


async def _together(asking: _Probe) -> ModelFailure | None:
    """A schema beside tools: the calls have to come, and the answer has to keep to the schema."""
    if asking.found.get(Feature.JSON_SCHEMA) is not Support.BINDS or not _takes_tools(asking):
        return None
    form = _form(_word_schema(), strict=_is_strict(asking))
    called = await asking.ask(
        "a tool call beside a schema",
        "Call the function weather for the city Oslo.",
        tools=(_WEATHER,),
        body=form,
        mode=OutputMode.JSON_SCHEMA,
    )
    support = _support(called, _has_calls)
    if support is Support.BINDS:
        said = await asking.ask(
            "a schema beside tools",
            f"{_BLUE}\nCall no function.",
            tools=(_WEATHER,),
            body=form,
            mode=OutputMode.JSON_SCHEMA,
        )
        support = _support(said, _is_in_enum)
    asking.note(Feature.SCHEMA_WITH_TOOLS, support)
    return _of(called)


def _is_strict(asking: _Probe) -> bool:
    return asking.found.get(Feature.STRICT) is Support.BINDS


_DEPTHS: Final = (10, 5)


async def _depth(asking: _Probe) -> ModelFailure | None:
    """How many levels of a schema are taken."""
    if asking.found.get(Feature.JSON_SCHEMA) is not Support.BINDS:
        return None
    for depth in _DEPTHS:
        schema = _word_schema()
        for _ in range(depth - 1):
            schema = _object({"inner": schema})
        body = _form(schema, strict=_is_strict(asking))
        words = "Answer with JSON."
        answer = await asking.ask(
            f"a schema of {depth} levels", words, body=body, mode=OutputMode.JSON_SCHEMA
        )
        if is_successful(answer):
            asking.depth = depth
            return None
        if _refusal(answer) is None:
            return answer.failure()
    asking.depth = 1
    return None

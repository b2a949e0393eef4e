"""`OpenTelemetryTracer`: spans of runs, steps, model requests and tool calls for OpenTelemetry.

Needs the package `opentelemetry-api`; where its spans go is decided by the tracer provider.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import lru_cache
from types import TracebackType
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from minions.contracts.calls import (
    ChatModel,
    ModelCall,
    ModelCallResponse,
    ModelOptions,
    Prompt,
    ToolCall,
)
from minions.contracts.messages import Message, TokenUsage
from minions.contracts.metrics import Metrics
from minions.contracts.tools import ToolSpec
from minions.contracts.tracing import TRACE_HEADERS, RunSubject, Span, StepSubject, Tracer
from minions.data.errors import NEEDS_DECISION, FailureInfo
from minions.data.json_values import JsonValue, dumps

if TYPE_CHECKING:
    from contextvars import Token

    from opentelemetry import trace
    from opentelemetry.context import Context
    from opentelemetry.metrics import MeterProvider

_SCHEMA: Final = "https://opentelemetry.io/schemas/1.41.0"
_NO_ERRORS: Final = frozenset((NEEDS_DECISION, "cancelled"))
"""Codes of ends that are no errors of what was done."""
_USUAL_END: Final = "completed"
_USUAL_HEADERS: Final = frozenset(("traceparent", "tracestate", "baggage"))
"""What the propagators write that OpenTelemetry has unless OTEL_PROPAGATORS says otherwise."""


class OpenTelemetryTracer(Tracer):
    """Spans with the attributes of the GenAI semantic conventions; no texts unless asked for."""

    def __init__(
        self,
        provider: trace.TracerProvider | None = None,
        *,
        has_content: bool = False,
        parent: Mapping[str, str] | None = None,
    ) -> None:
        """Nothing is opened.

        Args:
            provider: Decides where spans go; None: the application's, as `opentelemetry` knows it.
            has_content: Whether prompts, answers, arguments, results and messages of errors are
                attributes of spans, with their secrets masked.
            parent: `traceparent` and `tracestate` of whoever started the process: runs that it
                executes or queues belong to their trace where there is no current span. None: such
                runs begin a trace.
        Raises:
            ImportError: The package `opentelemetry-api` is not installed.
        """
        from opentelemetry import baggage, context, propagate, trace
        from opentelemetry.context import Context

        self._baggage = baggage
        self._propagate = propagate
        # What its spans need. With the key of the span in a context they look it up themselves:
        # the functions of `trace` that do so take ten times as long.
        self.trace, self.context, self.new_context = trace, context, Context
        [self.span_key] = trace.set_span_in_context(trace.INVALID_SPAN, Context())
        tracer = trace.get_tracer("minions", None, provider, schema_url=_SCHEMA)
        self.start_span = tracer.start_span
        self.internal, self.client = trace.SpanKind.INTERNAL, trace.SpanKind.CLIENT
        self._error = trace.StatusCode.ERROR
        self._has_usual_headers = propagate.get_global_textmap().fields == _USUAL_HEADERS
        self.has_content = has_content
        """Whether texts are attributes of spans."""
        self._parent = propagate.extract(_carry(parent)) if parent else None

    def run(self, subject: RunSubject) -> AbstractContextManager[Span]:
        name = f"invoke_workflow {subject.recipe}"
        parent = self._parent
        links: list[trace.Link] = []
        if subject.queued_by:
            parent = self._propagate.extract(_carry(subject.queued_by))
        if parent is not None and self.trace.get_current_span().get_span_context().is_valid:
            parent = None
        if subject.earlier:
            around = self._propagate.extract(_carry(subject.earlier), self.new_context())
            earlier = self.trace.get_current_span(around).get_span_context()
            if earlier.is_valid:
                links.append(self.trace.Link(earlier))
        attributes = run_attributes(subject)
        return _OpenSpan(self, name, attributes, kind="run", parent=parent, links=links)

    def step(self, subject: StepSubject) -> AbstractContextManager[Span]:
        operation = "invoke_agent" if subject.is_agent else "step"
        name = f"{operation} {subject.step_id}"
        return _OpenSpan(self, name, step_attributes(subject), kind="step")

    def model_request(
        self, call: ModelCall, model: ChatModel | None, subject: StepSubject, attempt: int
    ) -> AbstractContextManager[Span]:
        attributes = request_attributes(call, model, subject, attempt)
        if self.has_content:
            attributes |= prompt_texts(call.prompt)
        name = f"chat {attributes['gen_ai.request.model']}"
        return _OpenSpan(self, name, attributes, kind="call", is_client=True)

    def tool_call(
        self, call: ToolCall, spec: ToolSpec | None, subject: StepSubject
    ) -> AbstractContextManager[Span]:
        attributes = tool_attributes(call, subject)
        if self.has_content:
            attributes["gen_ai.tool.call.arguments"] = shortened_text(call.request.arguments)
        return _OpenSpan(self, f"execute_tool {tool_name(spec)}", attributes, kind="call")

    def headers(self) -> Mapping[str, str]:
        around = self.context.get_current()
        span = around.get(self.span_key)
        known = getattr(span, "traceparent", None) if self._has_usual_headers else None
        if isinstance(known, str) and (len(around) == 1 or not self._baggage.get_all(around)):
            return {"traceparent": known}
        if span is None and self._parent is not None:
            around = self._parent
        carrier: dict[str, str] = {}
        self._propagate.inject(carrier, around)
        return carrier

    @contextlib.contextmanager
    def caller(self, headers: Mapping[str, str]) -> Iterator[None]:
        token = self.context.attach(self._propagate.extract(_carry(headers)))
        try:
            yield
        finally:
            self.context.detach(token)

    def mark_failed(self, span: trace.Span, kind: str, message: str | None) -> None:
        """Mark a span as one of an error."""
        span.set_attribute("error.type", kind)
        text = shortened_text(message) if message is not None and self.has_content else None
        span.set_status(self.trace.Status(self._error, text))


class _OpenSpan(Span, AbstractContextManager[Span]):
    """A span that is the current one while its block runs."""

    _span: trace.Span
    _token: Token[Context]

    def __init__(
        self,
        tracer: OpenTelemetryTracer,
        name: str,
        attributes: Attributes,
        *,
        kind: str,
        is_client: bool = False,
        parent: Context | None = None,
        links: Sequence[trace.Link] = (),
    ) -> None:
        """Nothing is begun.

        Args:
            kind: What its status is one of: `run`, `step` or `call`.
            parent: None: the current span.
            links: Spans of other traces.
        """
        self._tracer = tracer
        self._context = tracer.context
        self._name = name
        self._attributes = attributes
        self._kind = kind
        self._is_client = is_client
        self._parent = parent
        self._links = links
        self._is_told = False

    def __enter__(self) -> Span:
        tracer = self._tracer
        around = self._context.get_current()
        above = self._parent if self._parent is not None else around
        span_kind = tracer.client if self._is_client else tracer.internal
        self._span = tracer.start_span(self._name, above, span_kind, self._attributes, self._links)
        within = tracer.new_context({**around, tracer.span_key: self._span})
        self._token = self._context.attach(within)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace_: TracebackType | None,
    ) -> None:
        if error is not None and not self._is_told:
            if isinstance(error, asyncio.CancelledError):
                self._span.set_attribute(f"minions.{self._kind}.status", "cancelled")
            else:
                self._tracer.mark_failed(self._span, type(error).__name__, str(error))
        self._context.detach(self._token)
        self._span.end()

    def end(self, status: str, failure: FailureInfo | None = None) -> None:
        self._is_told = True
        if status != _USUAL_END:
            self._span.set_attribute(f"minions.{self._kind}.status", str(status))
        if failure is not None and failure.code not in _NO_ERRORS:
            self._tracer.mark_failed(self._span, failure.code, failure.message)

    def answered(self, response: ModelCallResponse, usage: TokenUsage) -> None:
        attributes = response_attributes(response, usage)
        if self._tracer.has_content:
            attributes |= response_texts(response)
        self._is_told = True
        self._span.set_attributes(attributes)

    def returned(self, content: str) -> None:
        if self._tracer.has_content:
            self._span.set_attribute("gen_ai.tool.call.result", shortened_text(content))


def _carry(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: headers[name] for name in TRACE_HEADERS if name in headers}


# --- attributes of spans as the GenAI semantic conventions of OpenTelemetry name them ------------


Attributes = dict[str, str | bool | int | float | tuple[str, ...]]

_PROVIDERS: Final[Mapping[str, str]] = {
    "azure": "azure.ai.openai",
    "bedrock": "aws.bedrock",
    "gemini": "gcp.gemini",
    "mistral": "mistral_ai",
    "vertex": "gcp.vertex_ai",
    "vertex_ai": "gcp.vertex_ai",
    "xai": "x_ai",
}
"""Names of providers that the conventions call something else."""
_MOST_CHARACTERS: Final = 16_384
"""Characters of one text in a span."""
_MOST_MESSAGES: Final = 64
"""Messages of one prompt in a span: the newest."""
_USUAL_PHASE: Final = "model"
_LONGEST_NAME: Final = 200
_UNKNOWN: Final = "unknown"


def run_attributes(subject: RunSubject) -> Attributes:
    """What is known of a run when it begins."""
    attributes: Attributes = {
        "gen_ai.operation.name": "invoke_workflow",
        "gen_ai.workflow.name": subject.recipe,
        "gen_ai.agent.name": subject.recipe,
        "gen_ai.conversation.id": subject.session_id,
        "minions.run.id": subject.run_id,
    }
    if subject.is_resumed:
        attributes["minions.run.resumed"] = True
    return attributes


def step_attributes(subject: StepSubject) -> Attributes:
    """What is known of a step when it begins."""
    attributes: Attributes = {}
    if subject.is_agent:
        attributes["gen_ai.operation.name"] = "invoke_agent"
        attributes["gen_ai.agent.name"] = subject.step_id
        attributes["gen_ai.conversation.id"] = subject.session_id
    if subject.address != subject.step_id:
        attributes["minions.step.address"] = subject.address
    return attributes


def provider_name(provider: str) -> str:
    """A provider as the conventions call it."""
    return _PROVIDERS.get(provider, provider)


def model_parts(model: ChatModel | None) -> tuple[str, str]:
    """The provider as the conventions call it, and the model's name at its server."""
    if model is None:
        return _UNKNOWN, "own"
    provider, _, name = model.name.partition("/")
    return _PROVIDERS.get(provider, provider), name or provider


def request_attributes(
    call: ModelCall, model: ChatModel | None, subject: StepSubject, attempt: int
) -> Attributes:
    """What is known of a model request before it is sent."""
    provider, name = model_parts(model)
    attributes: Attributes = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": provider,
        "gen_ai.request.model": name,
        "gen_ai.conversation.id": subject.session_id,
    }
    if call.prompt.output_request is not None:
        attributes["gen_ai.output.type"] = "json"
    if call.phase != _USUAL_PHASE:
        attributes["minions.call.phase"] = call.phase
    if call.output_mode is not None:
        attributes["minions.output.mode"] = call.output_mode
    if attempt > 1:
        attributes["minions.call.attempt"] = attempt
    base_url = None if model is None else model.base_url
    if base_url is not None:
        attributes.update(_server(base_url))
    _add_options(attributes, call.prompt.options)
    return attributes


def _add_options(attributes: Attributes, options: ModelOptions) -> None:
    if options.temperature is not None:
        attributes["gen_ai.request.temperature"] = options.temperature
    if options.top_p is not None:
        attributes["gen_ai.request.top_p"] = options.top_p
    if options.max_output_tokens is not None:
        attributes["gen_ai.request.max_tokens"] = options.max_output_tokens
    if options.seed is not None:
        attributes["gen_ai.request.seed"] = options.seed
    if options.stop:
        attributes["gen_ai.request.stop_sequences"] = options.stop


def response_attributes(response: ModelCallResponse, usage: TokenUsage) -> Attributes:
    """What an answer says of itself."""
    attributes: Attributes = {
        "gen_ai.usage.input_tokens": usage.input_tokens,
        "gen_ai.usage.output_tokens": usage.output_tokens,
    }
    if usage.cached_tokens:
        attributes["gen_ai.usage.cache_read.input_tokens"] = usage.cached_tokens
    if usage.cost_usd is not None:
        attributes["minions.usage.cost_usd"] = usage.cost_usd
    if response.model_name is not None:
        attributes["gen_ai.response.model"] = response.model_name
    if response.finish_reason is not None:
        attributes["gen_ai.response.finish_reasons"] = (response.finish_reason,)
    if response.first_token_latency_ms is not None:
        seconds = response.first_token_latency_ms / 1000
        attributes["gen_ai.response.time_to_first_chunk"] = seconds
    return attributes


def tool_name(spec: ToolSpec | None) -> str:
    """The tool's name in the name of a span: never one that only a model says."""
    return _UNKNOWN if spec is None else spec.name


def tool_attributes(call: ToolCall, subject: StepSubject) -> Attributes:
    """What is known of a tool call before it is made."""
    return {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": call.name[:_LONGEST_NAME],
        "gen_ai.tool.type": "function",
        "gen_ai.tool.call.id": call.request.id[:_LONGEST_NAME],
        "gen_ai.conversation.id": subject.session_id,
    }


# --- texts, for those who ask for them -----------------------------------------------------------


def prompt_texts(prompt: Prompt) -> Attributes:
    """The newest 64 messages of a prompt, each text cut at 16,384 characters."""
    messages = [_message(each) for each in prompt.messages[-_MOST_MESSAGES:]]
    return {"gen_ai.input.messages": dumps(messages)}


def response_texts(response: ModelCallResponse) -> Attributes:
    """The answer's message."""
    message = {**_message(response.message), "finish_reason": response.finish_reason or "stop"}
    return {"gen_ai.output.messages": dumps([message])}


def shortened_text(text: str) -> str:
    """A text of at most 16,384 characters; a cut one ends with `…`."""
    return text if len(text) <= _MOST_CHARACTERS else f"{text[: _MOST_CHARACTERS - 1]}…"


def _message(message: Message) -> dict[str, JsonValue]:
    role = "user" if message.role == "goal" else message.role.value
    return {"role": role, "parts": list(_parts(message))}


def _parts(message: Message) -> Iterable[JsonValue]:
    content = message.content
    if message.tool_call_id is not None:
        response = shortened_text(content or "")
        yield {"type": "tool_call_response", "id": message.tool_call_id, "response": response}
        return
    if message.reasoning:
        yield {"type": "reasoning", "content": shortened_text(message.reasoning)}
    if content:
        yield {"type": "text", "content": shortened_text(content)}
    for attached in message.attachments:
        yield {"type": "blob", "mime_type": attached.media_type, "digest": attached.digest}
    for call in message.tool_calls:
        arguments = shortened_text(call.arguments)
        yield {"type": "tool_call", "id": call.id, "name": call.name, "arguments": arguments}


@lru_cache(maxsize=256)
def _server(base_url: str) -> Mapping[str, str | int]:
    place = urlsplit(base_url)
    port = place.port or (443 if place.scheme == "https" else 80)
    return {"server.address": place.hostname or "", "server.port": port}


# --- `OpenTelemetryMetrics` ----------------------------------------------------------------------


_TOKENS: Final = (1, 4, 16, 64, 256, 1_024, 4_096, 16_384, 65_536, 262_144, 1_048_576, 4_194_304)
"""Upper bounds of buckets, in tokens; those of the GenAI conventions, as those of seconds are."""
_SECONDS: Final = (
    0.01,
    0.02,
    0.04,
    0.08,
    0.16,
    0.32,
    0.64,
    1.28,
    2.56,
    5.12,
    10.24,
    20.48,
    40.96,
    81.92,
)
_LONGEST: Final = 120
"""Characters of an attribute: names come from recipes and servers."""


class OpenTelemetryMetrics(Metrics):
    """Instruments of a meter; where their values go is decided by the meter provider."""

    def __init__(self, provider: MeterProvider | None = None) -> None:
        """Nothing was counted.

        Args:
            provider: None: the application's, as `opentelemetry` knows it.
        Raises:
            ImportError: The package `opentelemetry-api` is not installed.
        """
        from opentelemetry.metrics import get_meter

        meter = get_meter("minions", meter_provider=provider)
        self._token_usage = meter.create_histogram(
            "gen_ai.client.token.usage",
            unit="{token}",
            description="Tokens of model calls.",
            explicit_bucket_boundaries_advisory=_TOKENS,
        )
        self._request_s = meter.create_histogram(
            "gen_ai.client.operation.duration",
            unit="s",
            description="Time of a model request, without its wait.",
            explicit_bucket_boundaries_advisory=_SECONDS,
        )
        self._cost = meter.create_counter(
            "minions.model.cost", unit="{USD}", description="Known cost of model calls."
        )
        self._cache = meter.create_counter(
            "minions.model.cache",
            unit="{token}",
            description="Input tokens that a server's cache of prompts read, or was to read.",
        )
        self._wait_s = meter.create_histogram(
            "minions.model.wait", unit="s", description="Time that a request waited for its turn."
        )
        self._active = meter.create_up_down_counter(
            "minions.runs.active", unit="{run}", description="Runs that are executed now."
        )
        self._run_s = meter.create_histogram(
            "minions.run.duration", unit="s", description="Time of an execution of a run."
        )
        self._step_s = meter.create_histogram(
            "minions.step.duration", unit="s", description="Time of a step."
        )
        self._tool_s = meter.create_histogram(
            "minions.tool.duration", unit="s", description="Time of a tool call, all attempts."
        )
        self._checked = meter.create_counter(
            "minions.output.checked",
            unit="{answer}",
            description="Answers checked against a declared output, by how they were asked for.",
        )
        self._retries = meter.create_counter(
            "minions.retries", unit="{attempt}", description="Attempts beyond the first."
        )
        self._refusals = meter.create_counter(
            "minions.budget.refusals", unit="{call}", description="Calls that a limit refused."
        )

    def run_began(self) -> None:
        self._active.add(1)

    def run_ended(self, status: str, seconds: float) -> None:
        self._active.add(-1)
        self._run_s.record(seconds, {"minions.run.status": status})

    def step_ended(self, status: str, code: str | None, seconds: float) -> None:
        self._step_s.record(seconds, _with_error({"minions.step.status": status}, code))

    def model_attempt_ended(self, model: str, code: str | None, seconds: float) -> None:
        self._request_s.record(seconds, _with_error(_of_model(model), code))

    def model_call_waited(self, model: str, seconds: float) -> None:
        self._wait_s.record(seconds, _of_model(model))

    def model_tokens(
        self, model: str, input_tokens: int, output_tokens: int, cost_usd: float | None
    ) -> None:
        of_model = _of_model(model)
        self._token_usage.record(input_tokens, {**of_model, "gen_ai.token.type": "input"})
        self._token_usage.record(output_tokens, {**of_model, "gen_ai.token.type": "output"})
        if cost_usd is not None:
            self._cost.add(cost_usd, of_model)

    def model_cache(self, model: str, kind: str, tokens: int) -> None:
        self._cache.add(tokens, {**_of_model(model), "minions.cache.kind": kind})

    def output_checked(
        self, model: str, rung: str, cost_usd: float | None, *, is_valid: bool
    ) -> None:
        told = {"minions.output.rung": rung, "minions.output.valid": "yes" if is_valid else "no"}
        self._checked.add(1, {**_of_model(model), **told})

    def tool_call_ended(self, tool: str, code: str | None, seconds: float) -> None:
        self._tool_s.record(seconds, _with_error({"gen_ai.tool.name": tool[:_LONGEST]}, code))

    def retried(self, what: str) -> None:
        self._retries.add(1, {"minions.what": what})

    def budget_refused(self, limit: str) -> None:
        self._refusals.add(1, {"minions.limit": limit[:_LONGEST]})


def _of_model(model: str) -> dict[str, str]:
    provider, _, name = model.partition("/")
    return {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": provider_name(provider)[:_LONGEST],
        "gen_ai.request.model": (name or provider)[:_LONGEST],
    }


def _with_error(attributes: dict[str, str], code: str | None) -> dict[str, str]:
    return attributes if code is None else {**attributes, "error.type": code[:_LONGEST]}

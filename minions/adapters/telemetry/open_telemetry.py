"""`OpenTelemetryTracer`: spans of runs, steps, model requests and tool calls for OpenTelemetry.

Needs the package `opentelemetry-api`; where its spans go is decided by the tracer provider.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Final

from minions.adapters.telemetry.genai_attributes import (
    Attributes,
    prompt_texts,
    request_attributes,
    response_attributes,
    response_texts,
    run_attributes,
    shortened_text,
    step_attributes,
    tool_attributes,
    tool_name,
)
from minions.contracts.calls import ChatModel, ModelCall, ModelCallResponse, ToolCall
from minions.contracts.messages import TokenUsage
from minions.contracts.tools import ToolSpec
from minions.contracts.tracing import RunSubject, Span, StepSubject, Tracer
from minions.data.errors import NEEDS_DECISION, FailureInfo

if TYPE_CHECKING:
    from contextvars import Token

    from opentelemetry import trace
    from opentelemetry.context import Context


_SCHEMA: Final = "https://opentelemetry.io/schemas/1.41.0"
_NO_ERRORS: Final = frozenset((NEEDS_DECISION, "cancelled"))
"""Codes of ends that are no errors of what was done."""
_USUAL_END: Final = "completed"
_USUAL_HEADERS: Final = frozenset(("traceparent", "tracestate", "baggage"))
"""What the propagators write that OpenTelemetry has unless OTEL_PROPAGATORS says otherwise."""
_CARRIED: Final = ("traceparent", "tracestate")
"""Headers of a caller that are read: not its baggage."""


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
            parent: `traceparent` and `tracestate` of whoever started the process: runs belong to
                their trace where there is no current span. None: such runs begin a trace.
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
        self._has_usual_headers = propagate.get_global_textmap().fields == _USUAL_HEADERS
        self.has_content = has_content
        """Whether texts are attributes of spans."""
        self._parent = propagate.extract(_carried(parent)) if parent else None

    def run(self, subject: RunSubject) -> AbstractContextManager[Span]:
        name = f"invoke_workflow {subject.recipe}"
        parent = self._parent
        if parent is not None and self.trace.get_current_span().get_span_context().is_valid:
            parent = None
        return _OpenSpan(self, name, run_attributes(subject), kind="run", parent=parent)

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
        carrier: dict[str, str] = {}
        self._propagate.inject(carrier, around)
        return carrier

    @contextlib.contextmanager
    def caller(self, headers: Mapping[str, str]) -> Iterator[None]:
        token = self.context.attach(self._propagate.extract(_carried(headers)))
        try:
            yield
        finally:
            self.context.detach(token)

    def mark_failed(self, span: trace.Span, kind: str, message: str | None) -> None:
        """Mark a span as one of an error."""
        span.set_attribute("error.type", kind)
        text = shortened_text(message) if message is not None and self.has_content else None
        span.set_status(self.trace.Status(self.trace.StatusCode.ERROR, text))


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
    ) -> None:
        """Nothing is begun.

        Args:
            kind: What its status is one of: `run`, `step` or `call`.
            parent: None: the current span.
        """
        self._tracer = tracer
        self._name = name
        self._attributes = attributes
        self._kind = kind
        self._is_client = is_client
        self._parent = parent
        self._is_told = False

    def __enter__(self) -> Span:
        tracer = self._tracer
        around = tracer.context.get_current()
        above = self._parent if self._parent is not None else around
        span_kind = tracer.client if self._is_client else tracer.internal
        self._span = tracer.start_span(self._name, above, span_kind, self._attributes)
        within = tracer.new_context({**around, tracer.span_key: self._span})
        self._token = tracer.context.attach(within)
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
        self._tracer.context.detach(self._token)
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


def _carried(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: headers[name] for name in _CARRIED if name in headers}

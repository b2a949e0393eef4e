"""Spans around runs, steps, model requests and tool calls; an implementation decides where they go.

A span is the current one while its block runs, also in the tasks that the block starts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Final

from attrs import field, frozen

if TYPE_CHECKING:
    from minions.contracts.calls import ChatModel, ModelCall, ModelCallResponse, ToolCall
    from minions.contracts.messages import TokenUsage
    from minions.contracts.tools import ToolSpec
    from minions.data.errors import FailureInfo

TRACE_HEADERS: Final = ("traceparent", "tracestate")
"""Names of the headers of W3C's Trace Context: a span's ids, and what vendors add."""


@frozen(kw_only=True)
class RunSubject:
    """A run that is executed."""

    run_id: str
    session_id: str
    recipe: str
    """The recipe's id."""
    is_resumed: bool
    """Whether an earlier execution of the run is continued."""
    queued_by: Mapping[str, str] = field(factory=dict)
    """Headers of the span of whoever queued it, named as `TRACE_HEADERS`; empty: nobody did."""
    earlier: Mapping[str, str] = field(factory=dict)
    """Those of the span of its execution before; empty: there is none."""


@frozen(kw_only=True)
class StepSubject:
    """A step, or one item of a loop, that is executed."""

    run_id: str
    session_id: str
    step_id: str
    address: str
    """The step with its item or attempt, and the steps around it: `sub[1]/each[2]`."""
    is_agent: bool = False
    """Whether a model carries it out."""


class Span(ABC):
    """What is told of something while it happens. Each method returns at once and raises nothing.

    Where nothing is told, it ended well, or with what its block raised.
    """

    @abstractmethod
    def end(self, status: str, failure: FailureInfo | None = None) -> None:
        """It ended with that status: of a run, a step, or a call.

        Args:
            failure: Why it failed, or waits; None: neither.
        """

    @abstractmethod
    def answered(self, response: ModelCallResponse, usage: TokenUsage) -> None:
        """A model request was answered.

        Args:
            usage: Its tokens, with their cost where that is known.
        """

    @abstractmethod
    def returned(self, content: str) -> None:
        """A tool call gave a result, as the model reads it."""


class Tracer(ABC):
    """Opens a span around each run, step, model request and tool call."""

    @abstractmethod
    def run(self, subject: RunSubject) -> AbstractContextManager[Span]:
        """A span around an execution of a run.

        It belongs to the trace of whoever queued the run where there is no current span, and names
        the span of the execution before.
        """

    @abstractmethod
    def step(self, subject: StepSubject) -> AbstractContextManager[Span]:
        """A span around a step, below the current one."""

    @abstractmethod
    def model_request(
        self, call: ModelCall, model: ChatModel | None, subject: StepSubject, attempt: int
    ) -> AbstractContextManager[Span]:
        """A span around one request to a model.

        Args:
            model: None: an application carries out the calls.
            attempt: Its number in the call, from 1.
        """

    @abstractmethod
    def tool_call(
        self, call: ToolCall, spec: ToolSpec | None, subject: StepSubject
    ) -> AbstractContextManager[Span]:
        """A span around one tool call with all its attempts.

        Args:
            spec: None: there is no tool of that name.
        """

    @abstractmethod
    def headers(self) -> Mapping[str, str]:
        """Headers that join what another process does to the current span or, where there is none,
        to the trace that this process belongs to; empty: there is neither.
        """

    @abstractmethod
    def caller(self, headers: Mapping[str, str]) -> AbstractContextManager[None]:
        """A block whose spans are joined to the trace of a caller who sent these headers.

        Args:
            headers: By lower-case name; others, and ones that cannot be read, are ignored.
        """

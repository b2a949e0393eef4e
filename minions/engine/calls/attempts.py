"""The attempts of one model call on their way through flow control, timed and counted."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TYPE_CHECKING, TypeAlias

from returns.result import Failure, Result, Success

from minions.contracts.calls import (
    CallStatus,
    ChatModel,
    ModelCall,
    ModelCallResponse,
    ModelFailure,
)
from minions.contracts.events import ServerWait
from minions.contracts.flow import Admission, CallAsk, CallHistory, Priority
from minions.contracts.model_endpoints import ModelEndpoint
from minions.contracts.retry_config import CircuitPolicy
from minions.engine.compile.prompt_sections import CHARACTERS_PER_TOKEN, prompt_characters
from minions.engine.context.step_view import StepView
from minions.engine.services.pricing import with_cost

if TYPE_CHECKING:
    from minions.contracts.tracing import Span, Tracer

Execute: TypeAlias = Callable[[], Awaitable[Result[ModelCallResponse, ModelFailure]]]


def priority_of(view: StepView) -> Priority:
    """Who goes first: as the run's services say, else a turn of a conversation before others."""
    chosen = view.context.scope.services.priority
    if chosen is not None:
        return chosen
    return Priority.NORMAL if view.live_conversation is None else Priority.INTERACTIVE


class CallAttempts:
    """Lets each attempt in when its server may be asked. An application's own way to carry out
    calls, and a model without a server, never wait.
    """

    def __init__(
        self,
        view: StepView,
        model: ChatModel | None,
        call: ModelCall,
        *,
        circuit: CircuitPolicy | None = None,
        longest_hold_s: float | None = None,
    ) -> None:
        """Nothing was sent yet.

        Args:
            circuit: As for `CallAsk`.
            longest_hold_s: As for `CallAsk`.
        """
        self._circuit = circuit
        self._longest_hold_s = longest_hold_s
        is_watched = view.context.scope.events.is_watched
        self._endpoint = endpoint = model.endpoint if model is not None else None
        self._on_wait = self._publish_wait if is_watched and endpoint is not None else None
        self._view = view
        self._model = model
        self._name = model.name if model is not None else "own"
        self._call = call
        self._services = view.context.scope.services
        self._history = CallHistory()
        self._requests = 0
        self.made = 0
        """Attempts so far: requests that were sent, without those made again as no attempt."""
        self.was_sent = False
        """Whether the last one was let in; else nothing was sent and it is no attempt."""
        self.again_s: float | None = None
        """Seconds after which the last attempt is to be made again without being one more; None:
        its outcome counts."""
        self.waited_s = 0.0
        """Seconds that the attempts waited for their turn."""

    @property
    def has_sent(self) -> bool:
        """Whether any was let in: only then may something have been paid for."""
        return self._requests > 0

    async def attempt(self, execute: Execute) -> Result[ModelCallResponse, ModelFailure]:
        """What `execute` gives, or why it was not called: let in by flow control, timed and traced,
        as far as they are there. What it raises passes through.
        """
        self.again_s, self.was_sent = None, False
        admission: Admission | None = None
        ended: ModelCallResponse | ModelFailure | None = None
        services, endpoint, name = self._services, self._endpoint, self._name
        if services.flow is not None and endpoint is not None:
            admitted = await services.flow.admit(self._ask(endpoint, name))
            if not isinstance(admitted, Success):
                failure = admitted.failure()
                services.metrics.model_attempt_ended(name, failure.code, 0.0)
                return Failure(failure)
            admission = admitted.unwrap()
            if admission.waited_s:
                self._note_wait(admission.waited_s)
        self.was_sent = True
        self._requests += 1
        self.made += 1
        begin = services.clock.monotonic()
        label: str | None = "cancelled"
        try:
            if services.tracer is None:
                outcome = await execute()
            else:
                outcome = await self._traced(execute, services.tracer)
            if isinstance(outcome, Success):
                ended, label = outcome.unwrap(), None
            elif isinstance(outcome, Result):  # else an application's own executor is told later
                ended = outcome.failure()
                label = str(ended.code)
        except Exception:
            label = "raised"
            raise
        finally:
            services.metrics.model_attempt_ended(name, label, services.clock.monotonic() - begin)
            if admission is not None:
                self.again_s = admission.end(ended)
                if self.again_s is not None:
                    self.made -= 1
            if self.made > 1 and self.again_s is None:
                services.metrics.retried("model")
                self._view.context.progress.count_retry()
        return outcome

    def _ask(self, endpoint: ModelEndpoint, name: str) -> CallAsk:
        return CallAsk(
            endpoint=endpoint,
            model=name,
            priority=priority_of(self._view),
            history=self._history,
            circuit=self._circuit,
            time_left_s=self._view.time_left_s,
            longest_hold_s=self._longest_hold_s,
            tokens=self._tokens,
            on_wait=self._on_wait,
        )

    async def _traced(
        self, execute: Execute, tracer: Tracer
    ) -> Result[ModelCallResponse, ModelFailure]:
        subject = self._view.subject
        with tracer.model_request(self._call, self._model, subject, self._requests) as span:
            outcome = await execute()
            self._tell(span, outcome)
        return outcome

    def _tell(self, span: Span, outcome: object) -> None:
        if not isinstance(outcome, Result):  # of an application's own executor; told later
            return
        if isinstance(outcome, Success):
            response = outcome.unwrap()
            span.answered(response, with_cost(response.usage, self._model, self._services))
        else:
            span.end(CallStatus.FAILED, outcome.failure().info())

    async def wait(self, seconds: float) -> None:
        """Let that time pass before the attempt is made again."""
        self.waited_s += seconds
        self.tell_wait(seconds)
        await self._services.sleep(seconds)

    def tell_wait(self, seconds: float) -> None:
        """Say to whoever watches the run that the server is not asked for so long."""
        if seconds >= 1 and self._on_wait is not None:
            self._on_wait(seconds)

    def _publish_wait(self, seconds: float) -> None:
        """Say to whoever watches the run until when the server is not asked."""
        view, endpoint = self._view, self._endpoint
        now = self._services.clock.now()
        view.context.scope.events.publish(
            ServerWait(
                run_id=view.run_id,
                session_id=view.session_id,
                timestamp=now,
                step_id=view.step_id,
                address=view.address,
                model=self._name,
                server=endpoint.origin if endpoint is not None else "",
                until=now + timedelta(seconds=seconds),
            )
        )

    def _note_wait(self, seconds: float) -> None:
        self.waited_s += seconds
        self._services.metrics.model_call_waited(self._name, seconds)
        if self._services.has_log:
            self._view.log.info(
                "model_call_waited", model=self._name, waited_ms=round(seconds * 1000, 3)
            )

    def _tokens(self) -> int:
        """An estimate: the characters of the prompt, and the most that the answer may have."""
        prompt = self._call.prompt
        characters = prompt_characters(prompt)
        return -(-characters // CHARACTERS_PER_TOKEN) + (prompt.options.max_output_tokens or 0)

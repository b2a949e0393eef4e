"""The executors of model calls over a `ChatModel`, what the engine asks of a factory's model, and
the attempts of one call on their way through flow control, timed and counted.

How a logical call is made of attempts stands in `model_calls`.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, TypeAlias

from attrs import evolve
from returns.result import Failure, Result, Success

from minions.contracts.calls import (
    CallStatus,
    ChatModel,
    ModelCall,
    ModelCallResponse,
    ModelFailure,
    ModelOptions,
    OutputParser,
    Prompt,
    StepCompletionInstruction,
)
from minions.contracts.context import (
    ModelCallExecutor,
    ModelCallExecutorFactory,
    RunContext,
    snake_case,
)
from minions.contracts.flow import Admission, CallAsk, CallHistory, Priority
from minions.contracts.instructions import OutputMode
from minions.contracts.journal.facts import (
    BatchCallExpired,
    BatchCallFact,
    BatchCallQueued,
    BatchCallSubmitted,
)
from minions.contracts.messages import MessageRole, user
from minions.contracts.model_endpoints import ModelEndpoint
from minions.contracts.output import output_words
from minions.contracts.retry_config import CircuitPolicy
from minions.contracts.run_events import ServerWait
from minions.data.errors import NEEDS_DECISION, OUTPUT_TRUNCATED
from minions.engine.compile.prompt_sections import CHARACTERS_PER_TOKEN, prompt_characters
from minions.engine.context.step_view import StepView
from minions.engine.context.time_limits import suspended_time
from minions.engine.history.entry_checks import fact_in
from minions.engine.services.pricing import with_cost
from minions.engine.services.retry import checked_result
from minions.recipe.model import UntrustedRule

if TYPE_CHECKING:
    from minions.contracts.batch_apis import BatchApi
    from minions.contracts.tracing import Span, Tracer
    from minions.engine.history.replay import Replay


class ModelCallExecutors:
    """The `ModelCallExecutorFactory` for one model; knows what its server can be trusted with."""

    def __init__(
        self,
        model: ChatModel | Callable[[], ChatModel],
        *,
        options: ModelOptions | None = None,
        tiers: Sequence[ModelCallExecutors] = (),
        is_fallback: bool = False,
        cooldown_s: float | None = None,
        private: UntrustedRule = UntrustedRule.ALLOW,
    ) -> None:
        """Take the model, or a way to it that is asked at the first call.

        Args:
            options: Of its calls, where it is the tier of another; None: those of the step.
            tiers: The models that are asked after it where its output does not fit or its server
                fails.
            is_fallback: Whether it takes the place of the one before it, where that one's server
                fails, and is no larger model.
            cooldown_s: Seconds for which it is not asked after its server failed; None: as usual.
            private: What becomes of its calls with private data in their prompts.
        """
        self._source = model
        self.options = options
        self.tiers = tuple(tiers)
        self.is_fallback = is_fallback
        self.cooldown_s = cooldown_s
        self.private = private
        self._executor: DefaultModelCallExecutor | None = None

    @property
    def model(self) -> ChatModel:
        """The model; looked up now if that was put off."""
        executor = self._executor
        return executor.model if executor is not None else self._open().model

    def __call__(self, call: ModelCall, context: RunContext) -> ModelCallExecutor:
        """The same executor for every call: it holds no state."""
        return self._executor or self._open()

    def _open(self) -> DefaultModelCallExecutor:
        if self._executor is None:
            source = self._source
            model = source if isinstance(source, ChatModel) else source()
            self._executor = DefaultModelCallExecutor(model)
        return self._executor


async def warm_up(
    factory: ModelCallExecutorFactory, parser: OutputParser, *, constrains: bool
) -> None:
    """Load libraries now: no step's time shall go into imports."""
    if not isinstance(factory, ModelCallExecutors):
        return
    model = factory.model
    await model.warm_up()
    mode = model.capabilities.output_mode
    if constrains and mode is not None:
        await parser.warm_up(mode)


def recall(factory: ModelCallExecutorFactory, prompt: Prompt) -> None:
    """Let a scripted model skip the answer of a call that is replayed."""
    if isinstance(factory, ModelCallExecutors):
        factory.model.recall(prompt)


def model_of(factory: ModelCallExecutorFactory) -> ChatModel | None:
    """The model that is asked; None where an application carries out calls in its own way."""
    return factory.model if isinstance(factory, ModelCallExecutors) else None


class DefaultModelCallExecutor(ModelCallExecutor):
    """Puts the prompt to a `ChatModel` and reads a completion instruction out of its answer."""

    def __init__(self, model: ChatModel) -> None:
        self.model = model

    async def execute(
        self, call: ModelCall, context: RunContext
    ) -> Result[ModelCallResponse, ModelFailure]:
        """Send the prompt once."""
        prompt = without_form(call.prompt) if call.prompt.leaves_out_form else call.prompt
        prompt = folded(prompt) if prompt.folds_system else prompt
        later = context.answer_later
        if later is not None:
            outcome = await later(self.model, prompt)
        else:
            outcome = await self.model.complete(prompt, context.delta_sink)
        if not isinstance(outcome, Success):
            checked_result(self.model.complete, outcome)
            return outcome.lash(lambda failure: Failure(_of_forced_call(call.prompt, failure)))
        response = outcome.unwrap()
        text = response.message.content
        if response.completion_instruction is None and text and may_instruct(text):
            instruction = instruction_in(text, besides=_declared(call.prompt))
            if instruction is not None:
                return Success(evolve(response, completion_instruction=instruction))
        return outcome


def without_form(prompt: Prompt) -> Prompt:
    """The prompt without the words about the form of its output."""
    words = None if prompt.instructions is None else output_words(prompt.instructions)
    kept = [
        each
        for each in prompt.messages
        if each.role is not MessageRole.SYSTEM or each.content != words
    ]
    return evolve(prompt, messages=kept)


def folded(prompt: Prompt) -> Prompt:
    """The prompt without system messages: their text begins the first message of the user."""
    is_system = [each.role is MessageRole.SYSTEM for each in prompt.messages]
    told = [each.content for each in prompt.messages if each.role is MessageRole.SYSTEM]
    others = [each for each, is_told in zip(prompt.messages, is_system, strict=True) if not is_told]
    text = "\n\n".join(filter(None, told))
    if not text:
        return prompt
    if others and others[0].role is MessageRole.USER:
        said = others.pop(0)
        first = evolve(said, content=f"{text}\n\n{said.content or ''}")
    else:
        first = user(text)
    return evolve(prompt, messages=(first, *others))


def _of_forced_call(prompt: Prompt, failure: ModelFailure) -> ModelFailure:
    """The failure; where a call was to be forced and none had begun before the cut, named so."""
    request = prompt.output_request
    is_forced = request is not None and request.mode is OutputMode.TOOLS
    if not is_forced or failure.code != OUTPUT_TRUNCATED or failure.has_begun_call:
        return failure
    return evolve(failure, code="no-tool-call", text=None)


def _declared(prompt: Prompt) -> Collection[str]:
    """Fields of the declared output: they are data, whatever they are called."""
    if prompt.instructions is None:
        return ()
    properties = prompt.instructions.json_schema().get("properties")
    return tuple(properties) if isinstance(properties, Mapping) else ()


# --- completion instructions in the text of an answer --------------------------------------------


_FLAGS = ("is_complete", "is_more_calls_needed", "is_non_recoverable")
_TEXTS = ("next_step_id", "failure_reason")


def may_instruct(text: str) -> bool:
    """Whether the text may be an object with a flag."""
    has_flag = "omplete" in text or "ecoverable" in text or "eeded" in text
    return has_flag and text.lstrip().startswith("{")


def instruction_in(text: str, *, besides: Collection[str] = ()) -> StepCompletionInstruction | None:
    """The instruction that a whole-text JSON object gives: at least one of its flags, as a bool.

    Both spellings count (`is_complete`, `isComplete`). JSON inside prose does not: what a model
    quotes is not what it says.

    Args:
        besides: Keys that mean something else here.
    """
    if not may_instruct(text):
        return None
    try:
        parsed = json.loads(text.strip())
    except (ValueError, RecursionError):
        return None
    if not isinstance(parsed, dict):
        return None
    values = {snake_case(key): value for key, value in parsed.items() if key not in besides}
    flags = {name: values[name] for name in _FLAGS if isinstance(values.get(name), bool)}
    texts = {name: values[name] for name in _TEXTS if isinstance(values.get(name), str)}
    return StepCompletionInstruction(**flags, **texts) if flags else None


Execute: TypeAlias = Callable[[StepView], Awaitable[Result[ModelCallResponse, ModelFailure]]]
"""Carries out an attempt for a step."""


def _newest_request(replay: Replay, requests: str) -> BatchCallFact | None:
    """The newest fact of a call's newest request in a batch; None: it has none."""
    found: BatchCallFact | None = None
    number = 1
    while (entry := replay.newest(BatchCallFact.kind, f"{requests}/{number}")) is not None:
        found = fact_in(entry, BatchCallFact)
        number += 1
    return found


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
        may_park: bool = False,
    ) -> None:
        """Nothing was sent yet.

        Args:
            circuit: As for `CallAsk`.
            longest_hold_s: As for `CallAsk`.
            may_park: Whether the run may end its execution while an attempt waits for a batch.
        """
        self._may_park = may_park
        self.wave: str | None = None
        """The wave for whose answers the run is to end its execution; None: it is not."""
        self._circuit = circuit
        self._longest_hold_s = longest_hold_s
        self._scope = scope = view.context.scope
        self._events = scope.events
        is_watched = scope.events.is_watched
        self._endpoint = endpoint = model.endpoint if model is not None else None
        self._on_wait = self._publish_wait if is_watched and endpoint is not None else None
        self._view = view
        self._model = model
        self._name = model.name if model is not None else "own"
        self._call = call
        self._progress = view.context.progress
        self._services = services = scope.services
        self._clock = services.clock
        self._metrics = services.metrics
        self._batches: BatchApi | None = None
        """Where attempts may wait; None: they are made at once."""
        if services.patience is not None and model is not None:
            from minions.contracts.batch_apis import batch_api_of

            self._batches = batch_api_of(model)
            if self._batches is None:
                services.patience.calls.note_without_batches(model.name)
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
        if self._batches is not None:
            found = await self._in_batch(self._batches, execute)
            if found is not None:
                return found
            self._batches = None  # there is no time to wait any more
        admission: Admission | None = None
        ended: ModelCallResponse | ModelFailure | None = None
        services, endpoint, name = self._services, self._endpoint, self._name
        if services.flow is not None and endpoint is not None:
            admitted = await services.flow.admit(self._ask(endpoint, name))
            if not isinstance(admitted, Success):
                failure = admitted.failure()
                self._metrics.model_attempt_ended(name, failure.code, 0.0)
                return Failure(failure)
            admission = admitted.unwrap()
            if admission.waited_s:
                self._note_wait(admission.waited_s)
        self.was_sent = True
        self._requests += 1
        self.made += 1
        begin = self._clock.monotonic()
        label: str | None = "cancelled"
        try:
            if services.tracer is None:
                outcome = await execute(self._view)
            else:
                outcome = await self._traced(execute, services.tracer, self._view)
            if isinstance(outcome, Success):
                ended, label = outcome.unwrap(), None
            elif isinstance(outcome, Result):  # else an application's own executor is told later
                ended = outcome.failure()
                label = str(ended.code)
        except Exception:
            label = "raised"
            raise
        finally:
            took_s = self._clock.monotonic() - begin
            self._metrics.model_attempt_ended(name, label, took_s)
            if services.patience is not None and label is None:
                services.patience.calls.note_live(took_s)
            if admission is not None:
                self.again_s = admission.end(ended)
                if self.again_s is not None:
                    self.made -= 1
            if self.made > 1 and self.again_s is None:
                self._metrics.retried("model")
                self._progress.count_retry()
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

    async def _in_batch(
        self, api: BatchApi, execute: Execute
    ) -> Result[ModelCallResponse, ModelFailure] | None:
        """What `execute` gives where the answer comes in a batch of the provider; None: there is no
        time to wait. The wait is no time of the step, nor of the run.
        """
        from minions.contracts.batch_apis import NO_BATCH_API
        from minions.contracts.patience import LateError, ParkedError, PatientCall

        view, services, name = self._view, self._services, self._name
        patience, scope = services.patience, self._scope
        assert patience is not None  # noqa: S101  # else there was no `api`
        requests = f"{self._call.key}/batch"

        async def record(fact: BatchCallQueued | BatchCallSubmitted | BatchCallExpired) -> None:
            await scope.recorder.record(f"{requests}/{fact.attempt}", fact)

        call = PatientCall(
            run_id=view.run_id,
            key=self._call.key,
            step_id=view.step_id,
            by=patience.by,
            recorded=_newest_request(scope.replay, requests) if scope.replay is not None else None,
            record=record,
            may_park=self._may_park,
        )

        def later(
            model: ChatModel, prompt: Prompt
        ) -> Awaitable[Result[ModelCallResponse, ModelFailure]]:
            return patience.calls.answer(model, api, prompt, call)

        begin = self._clock.monotonic()
        waiting = view.answering(later)
        try:
            with suspended_time():
                if services.tracer is None:
                    outcome = await execute(waiting)
                else:
                    outcome = await self._traced(execute, services.tracer, waiting)
        except LateError:
            return None
        except ParkedError as parked:
            self.wave = parked.wave
            what = "The answer comes with a batch of the provider."
            return Failure(ModelFailure(code=NEEDS_DECISION, message=what))
        code = None if isinstance(outcome, Success) else outcome.failure().code
        if code == NO_BATCH_API and not patience.is_required:
            patience.calls.note_without_batches(name)
            return None
        self._note_wait(self._clock.monotonic() - begin)
        self.was_sent = True
        self._requests += 1
        self.made += 1
        if isinstance(outcome, Success):
            response = outcome.unwrap()
            usage = with_cost(response.usage, self._model, services, in_batch=True)
            label, outcome = None, Success(evolve(response, usage=usage))
        else:
            failure = outcome.failure()
            usage = with_cost(failure.usage, self._model, services, in_batch=True)
            label, outcome = failure.code, Failure(evolve(failure, usage=usage))
        self._metrics.model_attempt_ended(name, label, 0.0)
        if self.made > 1:
            self._metrics.retried("model")
            self._progress.count_retry()
        return outcome

    async def _traced(
        self, execute: Execute, tracer: Tracer, view: StepView
    ) -> Result[ModelCallResponse, ModelFailure]:
        subject = view.subject
        with tracer.model_request(self._call, self._model, subject, self._requests) as span:
            outcome = await execute(view)
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
        now = self._clock.now()
        self._events.publish(
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
        self._metrics.model_call_waited(self._name, seconds)
        if self._services.has_log:
            self._view.log_info(
                "model_call_waited", model=self._name, waited_ms=round(seconds * 1000, 3)
            )

    def _tokens(self) -> int:
        """An estimate: the characters of the prompt, and the most that the answer may have."""
        prompt = self._call.prompt
        characters = prompt_characters(prompt)
        return -(-characters // CHARACTERS_PER_TOKEN) + (prompt.options.max_output_tokens or 0)

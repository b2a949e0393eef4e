"""Logical model calls of one step: attempts under its budget, recorded and remembered.

`call_usage` estimates what a call uses, `call_records` makes it known.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Never

from attrs import evolve
from returns.result import Failure, Result, Success

from minions.contracts.calls import (
    CallStatus,
    ChatModel,
    ModelCall,
    ModelCallResponse,
    ModelFailure,
    Prompt,
    context_exceeded,
)
from minions.contracts.context import ModelCallExecutor, ModelCallExecutorFactory, RunContext
from minions.contracts.instructions import OutputMode
from minions.contracts.journal.facts import ModelCallFact
from minions.contracts.journal.journal import JournalEntry
from minions.contracts.messages import (
    CHARACTERS_PER_IMAGE,
    CUT_AT_LIMIT,
    NO_USAGE,
    TokenUsage,
    assistant,
    attachments_of,
)
from minions.contracts.retry_config import CircuitPolicy, RetryConfig
from minions.contracts.runtime import Clock
from minions.data.errors import (
    NEEDS_DECISION,
    OUTPUT_TRUNCATED,
    FailureInfo,
    JournalError,
    MinionsError,
    StepFailedError,
    words_of,
)
from minions.data.failure_categories import RESOURCE_LIMIT
from minions.data.json_parts import is_large
from minions.engine.calls.call_records import (
    CUT_OFF,
    count_tokens,
    model_place,
    publish_retry,
    record_call,
    with_attachments,
)
from minions.engine.calls.model_executors import CallAttempts, ModelCallExecutors, model_of, recall
from minions.engine.calls.trace import StepTrace
from minions.engine.compile.prompt_sections import CHARACTERS_PER_TOKEN, prompt_characters
from minions.engine.context.agent_context import AgentContext
from minions.engine.context.step_view import StepView
from minions.engine.history.entry_checks import fact_in
from minions.engine.services.budget import CallReservation, ThresholdReachedError
from minions.engine.services.event_loop import beside
from minions.engine.services.pricing import (
    context_tokens_of,
    expect_price,
    own_context_tokens,
    with_cost,
)
from minions.engine.services.retry import checked_result, is_retryable_error, with_retries
from minions.engine.services.run_services import Services
from minions.engine.services.spending import CallEstimate, Spending
from minions.recipe.model import UntrustedRule

if TYPE_CHECKING:
    from minions.contracts.prompt_caches import PromptCache
    from minions.engine.calls.call_prefix import CallPrefix
    from minions.engine.calls.tool_choices import ToolChoice
    from minions.engine.context.run_progress import RunPrefix
    from minions.engine.context.strangers_words import StrangersWords
    from minions.engine.services.run_pause import RunPause


def _with(
    call: ModelCall,
    status: CallStatus,
    *,
    response: ModelCallResponse | None = None,
    failure: ModelFailure | None = None,
    attempts: int = 0,
    wasted: Sequence[TokenUsage] = (),
    started_at: datetime | None = None,
    completed_at: datetime | None = None,
) -> ModelCall:
    """The same call in another state. Spelled out: `evolve` takes ten times as long."""
    return ModelCall(
        key=call.key,
        prompt=call.prompt,
        phase=call.phase,
        summarises=call.summarises,
        is_of_session=call.is_of_session,
        output_mode=call.output_mode,
        tier=call.tier,
        layout=call.layout,
        status=status,
        response=response,
        failure=failure,
        retried_usage=sum(wasted, NO_USAGE) if wasted else NO_USAGE,
        attempts=attempts,
        started_at=started_at or call.started_at,
        completed_at=completed_at,
    )


def _elapsed_ms(clock: Clock, begin: float) -> float:
    return round((clock.monotonic() - begin) * 1000, 3)


class ModelCalls:
    """Carries out logical model calls for one step: attempts, ledger, journal, memory."""

    def __init__(
        self,
        *,
        view: StepView,
        factory: ModelCallExecutorFactory,
        trace: StepTrace,
        keeps_cut_text: bool = False,
        keeps_cut_lists: bool = False,
        refuses: bool = True,
        may_pause: bool = False,
        choice: ToolChoice | None = None,
        ends_with_text: bool = False,
    ) -> None:
        """Nothing is asked yet.

        Args:
            trace: Also holds calls that were cut off: they may have been paid for.
            keeps_cut_text: Whether a text that was cut off at its token limit is an answer, marked
                so.
            keeps_cut_lists: Whether a declared output that was cut off inside a list is an answer,
                marked so: whoever reads it keeps what is whole.
            refuses: Whether the run is `limit_reached` when its budget keeps a call from starting.
            may_pause: Whether the run may pause for the model's server, where its services say so:
                no other model can be asked.
            choice: How calls are got where the server gives none; None: no tools are offered.
            ends_with_text: Whether only the engine's own chain judges an answer without tool calls:
                nothing acts upon it before the end of the step, or the next call.
        """
        self.view = view
        self._memory = view.memory
        self._retry = view.retry
        self._context = context = view.context
        self._progress = context.progress
        self._budget = context.progress.budget
        self._scope = context.scope
        self._recorder = context.scope.recorder
        self._services = context.scope.services
        self._clock = context.scope.services.clock
        self.factory = factory
        self.trace = trace
        self.keeps_cut_text = keeps_cut_text
        self.keeps_cut_lists = keeps_cut_lists
        self.refuses = refuses
        self.may_pause = may_pause
        self.choice = choice
        self.ends_with_text = ends_with_text

    async def carry_out(
        self, call: ModelCall, *, remember: bool = True, is_last: bool = False
    ) -> ModelCall:
        """The call, COMPLETED with a response or FAILED with a failure.

        Each attempt starts from the same mark in memory, so it sees an identical prompt and a
        failed one leaves no trace.

        Args:
            remember: Whether the answer joins the step's conversation.
            is_last: Whether it is made although the budget is spent: nothing follows it.
        Raises:
            StepFailedError: The run's ledger is spent, or its cost is limited and the price of
                the model is not known; no call was made. Or the run pauses for the server.
        """
        scope, services, budget = self._scope, self._services, self._budget
        recorded = None if scope.replay is None else scope.recorded("model_call", call.key)
        if recorded is not None:
            done = self._fed_back(call, recorded, remember=remember)
            await self._tell_overrun()
            return done
        model = model_of(self.factory)
        if (failure := prompt_too_long(call, model, self.view)) is not None:
            now = self._clock.now()
            done = _with(call, CallStatus.FAILED, failure=failure, completed_at=now)
            await record_call(self.view, done, 0.0, remember=False)
            return done
        words = self._context.words
        if words is not None and (words.private or self.view.live_conversation is not None):
            await self._ask_for_private_data(words, model)
        self._progress.check_time()
        is_cached = call.prompt.options.cache
        if is_cached and (cached := await self._cached(call, model)) is not None:
            await record_call(self.view, cached, 0.0, remember=remember)
            if remember:
                self._remember(cached)
            return cached
        unlimited = None
        if not is_last and services.budgets is None:
            unlimited = budget.reserve_unlimited(refuses=self.refuses)
        if unlimited is not None:
            if services.prices is not None:
                expect_price(model, budget, services)
            return await self._answered_call(call, model, unlimited, remember=remember)
        expect_price(model, budget, services)
        while is_last and (asking := budget.asking) is not None:
            await self._ask_for_more(call, asking)
        if is_last:
            last = budget.last_call()
            done = await self._answered_call(call, model, last, remember=remember)
            await self._tell_overrun()
            return done
        done = await self._within_budget(call, model, remember=remember)
        await self._tell_overrun()
        return done

    async def _ask_for_private_data(self, words: StrangersWords, model: ChatModel | None) -> None:
        """Ask a person, once in an execution of a step, whether private data may be in prompts of
        a model of another party; returns where it may.

        Raises:
            StepFailedError: The decision is pending (`needs-decision`), or it may not be.
        """
        factory, view = self.factory, self.view
        rule = factory.private if isinstance(factory, ModelCallExecutors) else UntrustedRule.ALLOW
        if model is None or rule is UntrustedRule.ALLOW or model.name in view.private_models:
            return
        live = view.live_conversation
        has_history = live is not None and live.has_session_history
        reaching = words.reaching(view.own_id, has_history=has_history)
        private = words.all_private_among(reaching)
        if not private:
            return
        from minions.engine.calls.call_approvals import approve_private_data

        try:
            await approve_private_data(view, model.name, private, rule)
        except StepFailedError as failed:
            if failed.failure.code == NEEDS_DECISION:
                self.trace.wait(failed.failure)
            raise
        view.private_models.add(model.name)

    async def _within_budget(
        self, call: ModelCall, model: ChatModel | None, *, remember: bool
    ) -> ModelCall:
        """The call, as soon as there is room for it in all budgets.

        Raises:
            StepFailedError: A limit is reached, or a person is asked at a threshold.
        """
        budget, services = self._budget, self._services
        while True:
            try:
                reservation = await budget.reserve(
                    lambda: call_estimate(call, model, services, self.view.run_id),
                    refuses=self.refuses,
                )
                try:
                    if self._scope.replay is not None and services.budgets is not None:
                        from minions.engine.calls.pending_decisions import (
                            record_that_none_is_needed,
                        )

                        await record_that_none_is_needed(self.view, call.key)
                    return await self._answered_call(call, model, reservation, remember=remember)
                finally:
                    await reservation.release()
            except ThresholdReachedError as reached:
                await self._ask_for_more(call, reached.spending)
            except StepFailedError:
                if budget.is_spent:
                    services.metrics.budget_refused(budget.reached or "limit")
                raise

    async def _ask_for_more(self, call: ModelCall, spending: Spending) -> None:
        """Ask a person whether more of a budget may be spent; returns where that is answered.

        Raises:
            StepFailedError: The decision is pending (`needs-decision`).
        """
        from minions.engine.calls.pending_decisions import wait_for_budget

        budgets = self._services.budgets
        if budgets is None:
            return
        asked = await budgets.question(spending, self.view.run_id, self._clock.now())
        if asked is None:
            return
        question, is_first = asked
        info = await wait_for_budget(self.view, call.key, question, is_first=is_first)
        self.trace.wait(info)
        raise StepFailedError(info)

    async def _tell_overrun(self) -> None:
        """Warn of an exceeded limit, once; an earlier execution may have died before it did."""
        warn, progress = self._context.warn, self._progress
        if self._services.budgets is not None:
            for text in self._budget.warnings:
                if not any(each.message == text for each in progress.warnings):
                    await warn("budget-threshold", text)
        overrun = self._budget.overrun
        if overrun is None:
            return
        if not any(each.code == "limit-exceeded" for each in progress.warnings):
            await warn("limit-exceeded", f"The last model call exceeded {overrun}.")

    async def _cached(self, call: ModelCall, model: ChatModel | None) -> ModelCall | None:
        """The call with the answer that was given to the same request before; it costs nothing."""
        from minions.engine.calls.answer_cache import AnswerCache

        cache = AnswerCache.of(call.prompt, model, self.view)
        response = await cache.find(call.prompt) if cache is not None else None
        if response is None:
            return None
        now = self._clock.now()
        return _with(
            call, CallStatus.COMPLETED, response=response, started_at=now, completed_at=now
        )

    def _answered_call(
        self,
        call: ModelCall,
        model: ChatModel | None,
        reservation: CallReservation,
        *,
        remember: bool,
    ) -> Awaitable[ModelCall]:
        cache = None if model is None else model.prompt_cache
        prefixes = self._services.prefixes
        if (
            model is None
            or cache is None
            or not (cache.is_known or (prefixes and model_place(model) in prefixes))
        ):
            return self._attempt_call(call, model, reservation, remember=remember)
        return self._with_prefix(call, model, cache, reservation, remember=remember)

    async def _with_prefix(
        self,
        call: ModelCall,
        model: ChatModel,
        cache: PromptCache,
        reservation: CallReservation,
        *,
        remember: bool,
    ) -> ModelCall:
        """The attempts of a call whose prompt begins with what the server may hold."""
        from minions.engine.calls.call_prefix import CallPrefix

        prefix = await CallPrefix.of(call, model, cache, self.view, self.trace.model_calls)
        try:
            if cache.storage_usd_per_mtok_hour is not None:
                from minions.engine.calls.stored_prefix_use import with_stored_prefix

                call, prefix.stored = await with_stored_prefix(call, model, self.view)
            return await self._attempt_call(call, model, reservation, prefix, remember=remember)
        finally:
            prefix.end()

    async def _attempt_call(
        self,
        call: ModelCall,
        model: ChatModel | None,
        reservation: CallReservation,
        prefix: CallPrefix | None = None,
        *,
        remember: bool,
    ) -> ModelCall:
        view, services, clock = self.view, self._services, self._clock
        begin = clock.monotonic()
        prompt = call.prompt
        has_parts = prompt.messages.attached
        prompt = await with_attachments(services.journal, prompt) if has_parts else prompt
        call = call if prompt is call.prompt else evolve(call, prompt=prompt)
        running = _with(call, CallStatus.EXECUTING, started_at=clock.now())
        redaction = self._scope.redaction
        factory = self.factory if redaction is None else redaction.around(self.factory)
        executor = factory(running, view)
        ask = executor.execute if self.choice is None else partial(self._ask, executor)
        memory = self._memory
        mark = memory.take_snapshot(view.conversation_id)
        wasted: list[TokenUsage] = []
        pause = services.pause if self.may_pause else None
        attempts, longest_wait_s = self._attempts(model, call, pause)

        def on_retry(_: int, delay_s: float, failure: ModelFailure) -> None:
            usage = with_cost(failure.usage, model, services)
            wasted.append(usage)
            reservation.spend(usage)
            if attempts.was_sent:
                publish_retry(self.view, attempts.made, delay_s, failure)
                delay_s = failure.retry_after_s or 0.0
            attempts.tell_wait(delay_s)

        async def attempt() -> Result[ModelCallResponse, ModelFailure]:
            if wasted:
                memory.restore_snapshot(mark)
                if self._budget.is_spent:
                    return Failure(self._spent_between())
            while True:  # again while flow control says so
                try:
                    outcome = await attempts.attempt(partial(ask, running))
                    is_answer = isinstance(outcome, Success)
                    outcome = outcome if is_answer else checked_result(executor.execute, outcome)
                except JournalError:
                    raise
                except Exception as error:  # noqa: BLE001  # the rim of a model call: an application's model raises anything
                    return Failure(_raised(error, self._retry))
                if attempts.again_s is None:
                    return (
                        outcome
                        if is_answer or prefix is None or prefix.stored is None
                        else await self._without_stored(running, prefix.stored, outcome, attempts)
                    )
                memory.restore_snapshot(mark)
                await attempts.wait(attempts.again_s)

        try:
            attempted = await with_retries(
                attempt,
                most=self._retry.max_attempts,
                config=self._retry,
                services=services,
                on_retry=on_retry,
                longest_wait_s=longest_wait_s,
            )
        except asyncio.CancelledError:
            if attempts.has_sent:  # else it only waited for its turn
                ms = _elapsed_ms(clock, begin)
                await self._record_cut_off(running, attempts.made, wasted, ms)
            raise
        duration_ms = _elapsed_ms(clock, begin + attempts.waited_s)
        made = attempts.made
        done = await self._ended(running, attempted.outcome, made, wasted, reservation, model)
        if done.response is None:
            memory.restore_snapshot(mark)
        until = self._pause_for(pause, attempts, done, attempted.attempts)
        if until is not None:
            await self._paused(done, duration_ms, until, has_sent=attempts.has_sent)
        remember = remember and done.response is not None
        response = done.response
        facts = None if prefix is None or response is None else prefix.take_answer(response)
        waited_s = attempts.waited_s if prefix is None else attempts.waited_s + prefix.waited_s
        await record_call(
            self.view,
            done,
            duration_ms,
            remember=remember,
            waited_s=waited_s,
            prefix=facts,
            may_wait=(
                self.ends_with_text
                and response is not None
                and not response.tool_calls
                and not prompt.options.cache
            ),
        )
        count_tokens(self.view, model, done.usage, facts)
        if remember:
            self._remember(done)
        return done

    async def _ask(
        self, executor: ModelCallExecutor, call: ModelCall, view: RunContext
    ) -> Result[ModelCallResponse, ModelFailure]:
        """One attempt; where the server gives no calls, those in the text of its answer, or those
        that are asked for by choice.
        """
        choice, own = self.choice, self.view
        if choice is None or view.answer_later is not None:
            return await executor.execute(call, view)
        answer: ModelCallResponse | None = None
        if not choice.is_needed:
            outcome = await executor.execute(call, view)
            if not isinstance(outcome, Success):
                return outcome
            answer = outcome.unwrap()
            if not choice.is_suspicious(call.prompt, answer):
                return outcome
        from minions.engine.calls.tool_choices import answer_with_tools

        async def ask(said: Prompt) -> Result[ModelCallResponse, ModelFailure]:
            return await executor.execute(evolve(call, prompt=said), own.without_deltas())

        model = model_of(self.factory)
        name = model.name if model is not None else "own"
        return await answer_with_tools(
            call.prompt, choice, ask, answer, name=name, warn=self._context.warn
        )

    async def _without_stored(
        self,
        running: ModelCall,
        stored: RunPrefix,
        outcome: Result[ModelCallResponse, ModelFailure],
        attempts: CallAttempts,
    ) -> Result[ModelCallResponse, ModelFailure]:
        """The outcome of the attempt; where the provider does not have the stored beginning of the
        prompt any more, that of one with the whole prompt.
        """
        from minions.engine.calls.stored_prefix_use import without_stored_prefix

        whole = await without_stored_prefix(running, stored, outcome.failure(), self.view)
        if whole is None:
            return outcome
        executor = self.factory(whole, self.view)
        return await attempts.attempt(partial(executor.execute, whole))

    def _attempts(
        self, model: ChatModel | None, call: ModelCall, pause: RunPause | None
    ) -> tuple[CallAttempts, float | None]:
        """The attempts, and the longest time in seconds between two of them; None: the usual."""
        longest_wait_s = pause.longest_wait_s if pause is not None else None
        # Where another model can be asked instead, it is asked at once.
        circuit = self._retry.circuit or (None if self.may_pause else CircuitPolicy.FAIL)
        attempts = CallAttempts(
            self.view,
            model,
            call,
            circuit=circuit,
            longest_hold_s=longest_wait_s,
            may_park=pause is not None and pause.parks,
        )
        left_s = self.view.time_left_s
        if left_s is not None:  # a longer wait would end with the step's time
            longest_wait_s = left_s if longest_wait_s is None else min(left_s, longest_wait_s)
        return attempts, longest_wait_s

    def _pause_for(
        self, pause: RunPause | None, attempts: CallAttempts, done: ModelCall, tried: int
    ) -> str | None:
        """Note that the run pauses where the call waits for a batch, or failed because its server
        wants to be left alone for long; until when, in words. None: it does not.
        """
        if pause is None:
            return None
        failure, now = done.failure, self._clock.now()
        if attempts.wave is not None:
            pause.add_wave(attempts.wave, now)
            return "for a batch"
        if failure is None or not failure.is_retryable or tried >= self._retry.max_attempts:
            return None
        delay_s = failure.retry_after_s
        if delay_s is None or not pause.is_needed(delay_s):
            return None
        return f"until {pause.add(now, delay_s):%Y-%m-%d %H:%M:%S} UTC"

    async def _paused(
        self, done: ModelCall, duration_ms: float, until: str, *, has_sent: bool
    ) -> Never:
        """End the step for that time; the resumed run makes the call then."""
        failure = done.failure
        assert failure is not None  # noqa: S101  # as `_pause_for` says
        if has_sent:
            self.trace.add_model_call(done)
            await record_call(self.view, done, duration_ms, remember=False, is_cut_off=True)
        info = FailureInfo(
            code=NEEDS_DECISION,
            message=f"Step '{self.view.address}' waits {until}: {failure.message}",
            where=self.view.address,
        )
        self.trace.wait(info)
        raise StepFailedError(info)

    def _remember(self, done: ModelCall) -> None:
        """The answer joins the step's conversation."""
        if done.response is not None:
            self._memory.save_chat_response(self.view.conversation_id, done.response.message)

    async def _record_cut_off(
        self, running: ModelCall, attempts: int, wasted: Sequence[TokenUsage], duration_ms: float
    ) -> None:
        """Record a call that was cancelled on its way."""
        cut = _with(
            running,
            CallStatus.FAILED,
            failure=CUT_OFF,
            attempts=attempts,
            wasted=wasted,
            completed_at=self._clock.now(),
        )
        self.trace.add_model_call(cut)
        await record_call(self.view, cut, duration_ms, remember=False, is_cut_off=True)

    async def _ended(
        self,
        running: ModelCall,
        outcome: Result[ModelCallResponse, ModelFailure],
        attempts: int,
        wasted: Sequence[TokenUsage],
        reservation: CallReservation,
        model: ChatModel | None,
    ) -> ModelCall:
        """The call with its outcome; its usage is spent from the budget."""
        services = self._services
        response = failure = None
        if not isinstance(outcome, Success):
            outcome = await self._kept_text(running.prompt, outcome)
        if isinstance(outcome, Success):
            response = outcome.unwrap()
            usage = response.usage
            if not (usage.input_tokens or usage.output_tokens):
                estimate = await estimated_usage(running.prompt, response, self._context)
                usage = evolve(estimate, cost_usd=usage.cost_usd)
            if services.prices is not None:
                in_batch = response.batch is not None
                usage = with_cost(usage, model, services, in_batch=in_batch)
            if usage is not response.usage:
                response = evolve(response, usage=usage)
            reservation.spend(usage)
        else:
            failure = outcome.failure()
            usage = with_cost(failure.usage, model, services)
            failure = evolve(failure, usage=usage)
            reservation.spend(usage)
        return _with(
            running,
            CallStatus.COMPLETED if failure is None else CallStatus.FAILED,
            response=response,
            failure=failure,
            attempts=attempts,
            wasted=wasted,
            completed_at=self._clock.now(),
        )

    def _spent_between(self) -> ModelFailure:
        """The failure of a call whose failed attempts used up the budget."""
        if self.refuses:
            self._budget.refuse()
        info = self._budget.failure()
        return ModelFailure(code=info.code, message=info.message)

    async def _kept_text(
        self, prompt: Prompt, outcome: Result[ModelCallResponse, ModelFailure]
    ) -> Result[ModelCallResponse, ModelFailure]:
        """In a conversation a text that was cut off at its token limit is an answer, marked so.

        It was paid for, and the user may ask for the rest. Where a declared output is due, half
        of it is none, unless whole items of a list came before the cut, or all of it: models that
        are held to a schema may write blanks behind a value until they are cut off.
        """
        from minions.engine.calls.cut_answers import closed_answer, whole_answer

        failure = outcome.failure()
        call, text = failure.begun_call, failure.text
        if failure.code != OUTPUT_TRUNCATED or (text is None and call is None):
            return outcome
        message = assistant(text, tool_calls=() if call is None else (call,))
        cut = ModelCallResponse(message=message, usage=failure.usage, finish_reason=CUT_AT_LIMIT)
        if prompt.instructions is None:
            return Success(cut) if self.keeps_cut_text and text is not None else outcome
        request = prompt.output_request
        is_answer = call is None or (request is not None and request.mode is OutputMode.TOOLS)
        if not self.keeps_cut_lists or not is_answer:
            return outcome
        threads = self._services.beside
        if not prompt.instructions.takes_text:
            whole = await beside(threads, is_large(message), lambda: whole_answer(failure))
            if whole is not None:
                return Success(whole)
        closed = await beside(threads, is_large(message), lambda: closed_answer(cut))
        return outcome if closed is None else Success(cut)

    def _fed_back(self, call: ModelCall, entry: JournalEntry, *, remember: bool) -> ModelCall:
        """The call as an earlier execution of the run recorded it; no request is made."""
        from minions.engine.history.recorded_calls import recorded_model_call

        live = self.view.live_conversation
        done = recorded_model_call(call, fact_in(entry, ModelCallFact), entry.at)
        self._recorder.note_replayed(entry)
        self._budget.spend_replayed(call.key, done.usage)
        if live is not None:
            live.follow((entry,))
        recall(self.factory, call.prompt)
        if call.prompt.options.cache:
            from minions.engine.calls.answer_cache import AnswerCache

            cache = AnswerCache.of(call.prompt, model_of(self.factory), self.view)
            if cache is not None:
                cache.note_replayed(call.prompt)
        if remember:
            self._remember(done)
        return done


def _raised(error: Exception, retry: RetryConfig) -> ModelFailure:
    if isinstance(error, MinionsError):
        return ModelFailure(
            code=error.error_code, message=error.message, suggestions=error.suggestions
        )
    return ModelFailure(
        code=RESOURCE_LIMIT if isinstance(error, MemoryError) else "model-raised",
        message=f"The model call raised {words_of(error)}",
        is_retryable=is_retryable_error(
            error, unless_known=False, retryable=retry.retryable_exceptions
        ),
    )


# --- estimates of what a model call uses ---------------------------------------------------------


_SHORTEST_CONTEXT = 4000
"""Tokens of a prompt that every listed model takes: it is not looked up."""


def prompt_too_long(
    call: ModelCall, model: ChatModel | None, view: StepView
) -> ModelFailure | None:
    """The failure of a prompt that the server would refuse; None: nothing speaks against it."""
    prompt, services = call.prompt, view.context.scope.services
    own = own_context_tokens(model, services)
    characters = prompt.messages.texts
    is_short = characters < _SHORTEST_CONTEXT * CHARACTERS_PER_TOKEN
    if is_short and prompt.options.context_tokens is None and own is None:
        return None
    most = context_tokens_of(model, prompt.options, services)
    tokens = -(-prompt_characters(prompt) // CHARACTERS_PER_TOKEN)
    if most is None or tokens <= most:
        return None
    name = model.name if model is not None else "the model"
    return context_exceeded(
        f"The prompt of step '{view.address}' has about {tokens} tokens, and '{name}' "
        f"takes {most}. It was not sent."
    )


def call_estimate(
    call: ModelCall, model: ChatModel | None, services: Services, run_id: str = ""
) -> CallEstimate:
    """What the call of that run may use at most."""
    return CallEstimate(
        run_id=run_id,
        characters=prompt_characters(call.prompt)
        + CHARACTERS_PER_IMAGE * len(attachments_of(call.prompt.messages)),
        max_output_tokens=call.prompt.options.max_output_tokens,
        cost_usd=lambda usage: with_cost(usage, model, services).cost_usd,
    )


async def estimated_usage(
    prompt: Prompt, response: ModelCallResponse, context: AgentContext
) -> TokenUsage:
    """The usage of a call whose server counts none, with one warning per run."""
    if not any(warned.code == "usage-unknown" for warned in context.progress.warnings):
        await context.warn(
            "usage-unknown",
            f"The model '{response.model_name}' reports no token usage: the run's tokens are "
            "estimated from characters.",
        )
    asked = prompt.messages.texts
    said = len(response.text or "") + sum(len(c.arguments) for c in response.tool_calls)
    return TokenUsage(input_tokens=asked // 4 + 1, output_tokens=said // 4 + 1)

"""The loop of a model step: call, tools, chain, until a link decides or the budget is spent."""

from __future__ import annotations

from typing import Final

from attrs import Factory, evolve, field, frozen
from returns.pipeline import is_successful
from returns.result import Failure, Result, Success

from minions.contracts.call_executors import ModelCallExecutorFactory, ToolCallExecutorFactory
from minions.contracts.calls import (
    CallStatus,
    ModelCall,
    ModelCallResponse,
    ModelCapabilities,
    ModelOptions,
    OutputFailure,
    OutputInstructions,
    OutputMode,
    OutputRequest,
    Prompt,
    PromptLayout,
)
from minions.contracts.completion import UNDECLARED, StepCompletionChain
from minions.contracts.errors import (
    LIMIT_REACHED,
    MAX_MODEL_CALLS,
    OUTPUT_TRUNCATED,
    FailureInfo,
    StepFailedError,
)
from minions.contracts.events import ModelReplaced, OutputChecked
from minions.contracts.facts import MessageRecorded, ModelCallFact, Rollback
from minions.contracts.json_values import JsonValue
from minions.contracts.memory import MemorySnapshot
from minions.contracts.messages import (
    CUT_AT_LIMIT,
    Message,
    TokenUsage,
    assistant,
    tool_result,
    user,
)
from minions.contracts.steps import Step
from minions.contracts.tools import ToolSpec
from minions.contracts.verdicts import Completion, CompletionMode, Verdict
from minions.engine.calls.answer_cache import AnswerCache
from minions.engine.calls.model_calls import ModelCalls
from minions.engine.calls.model_executors import model_of
from minions.engine.calls.model_tiers import ModelTiers, Replacement
from minions.engine.calls.output_ladder import Answer, OutputLadder
from minions.engine.calls.output_modes import OutputModes
from minions.engine.calls.result_reader import ResultReader, has_long_result
from minions.engine.calls.tool_batch import ToolBatch
from minions.engine.calls.trace import StepTrace
from minions.engine.compile.completion import FINAL_ANSWER, DefaultStepCompletionChain, budget_spent
from minions.engine.context.step_view import StepView
from minions.engine.history.conversation import SUMMARY
from minions.engine.services.pricing import with_cost
from minions.engine.step.conversation_window import ConversationWindow
from minions.engine.step.ending import Ending

__all__ = ["ModelLoop"]

_DEFAULT_CHAIN: Final = DefaultStepCompletionChain()
_TRUNCATED: Final = (
    "An answer of step '{}' was cut off at its token limit. It is kept as it is; raise "
    "max_output_tokens, or ask for the rest."
)
_ANSWER_NOW: Final = (
    "A limit is reached: no further call is possible. Answer now from what you have, and call no "
    "tool."
)
_GO_ON: Final = "The step is not complete yet. Continue; when it is complete, say `status: done`."


INVALID_OUTPUT: Final = "invalid-output"

_ENDLESS: Final = 4096
"""Tokens of an answer that was cut off, from which on more room would not bring it to an end."""


@frozen(kw_only=True)
class _LostCall:
    """A model call without an answer."""

    info: FailureInfo
    usage: TokenUsage = field(factory=TokenUsage)
    request: OutputRequest | None = None
    """How the answer was to be constrained."""
    has_images: bool = False
    """Whether the prompt has images or files."""
    is_replayed: bool = False
    """Whether it failed in an earlier execution of the run."""


@frozen(kw_only=True)
class ModelLoop:
    """One step's conversation with its model."""

    step: Step[object]
    view: StepView
    trace: StepTrace
    output: OutputInstructions[object] | None
    options: ModelOptions
    capabilities: ModelCapabilities
    model_call_executor_factory: ModelCallExecutorFactory
    tool_call_executor_factory: ToolCallExecutorFactory
    layout: PromptLayout = field(factory=PromptLayout)
    """What the prompts of the conversation begin with."""
    window: ConversationWindow | None = None
    """Cuts each prompt to the bound of the step; None: there is no bound."""
    tiers: ModelTiers = field(
        init=False, default=Factory(lambda self: self._open_tiers(), takes_self=True)
    )
    """Which of its models is asked, and how."""

    def _open_tiers(self) -> ModelTiers:
        services = self.view.context.scope.services
        factory = self.model_call_executor_factory
        return ModelTiers.of(factory, self.options, self.capabilities, services)

    @property
    def modes(self) -> OutputModes:
        """How output is asked for, as far as is known of the present model's server."""
        return self.tiers.current.modes

    async def run(self) -> Ending:
        """Until a link decides, the budget is spent, or a call fails for good."""
        try:
            ending = await self._until_end()
        except StepFailedError as error:
            ending = Ending(error=error.failure)
        if ending.error is None:
            await self._keep_answers()
            return ending
        if not self._may_answer(ending.error):
            return ending
        return await self._answered_at_limit(ending)

    async def _keep_answers(self) -> None:
        """Store the answers of the step that succeeded, where the model says `cache: true`."""
        if self.tiers.index:  # the answers are not the first model's alone
            return
        calls = [call for call in self.trace.model_calls if call.prompt.options.cache]
        model = model_of(self.model_call_executor_factory)
        cache = AnswerCache.of(calls[0].prompt, model, self.view) if calls else None
        if cache is not None:
            await cache.keep(calls)

    def _may_answer(self, error: FailureInfo) -> bool:
        """Whether the step answers from what there is: a limit is why it has no output."""
        if self.step.at_limit != "answer" or self.trace.waits_for is not None:
            return False
        if error.code != LIMIT_REACHED:
            return error.code == MAX_MODEL_CALLS
        return self.view.context.progress.budget.reached != "timeout_s"

    async def _answered_at_limit(self, ending: Ending) -> Ending:
        """The output of one more call, without tools; the ending as it was if that gives none."""
        await self._say(user(_ANSWER_NOW))
        asked = await self._ask("last", self.output, is_last=True)
        if not is_successful(asked):
            return self._given_up(ending, asked.failure().message)
        answer = asked.unwrap()
        if self.output is None:
            output: object = answer.response.text
        else:
            parser = self.view.context.scope.services.parser
            read = parser.parse(self.output, answer.raw, answer.mode)
            if not is_successful(read):
                return self._given_up(ending, read.failure().message)
            output = read.unwrap()
        self.trace.is_partial = True
        reason = "It answered from what there was when a limit was reached."
        return Ending(
            output=output,
            completion=Completion(Verdict.COMPLETE, reason=reason, decided_by="AtLimit"),
        )

    def _given_up(self, ending: Ending, why: str) -> Ending:
        """The failure by the limit, with the words why the last call gave no output either."""
        assert ending.error is not None  # noqa: S101  # asked only then
        if ending.error.code == LIMIT_REACHED:
            self.view.context.progress.budget.refuse()
        message = f"{ending.error.message} The last call gave no output either: {why}"
        return evolve(ending, error=evolve(ending.error, message=message))

    async def _until_end(self) -> Ending:
        chain = self.step.completion_chain or _DEFAULT_CHAIN
        first = self.output if self._constrains_every_call(self.modes.tools_with_schema) else None
        if (problem := await self._take_up()) is not None:
            return Ending(error=problem)
        while True:
            asked = await self._ask("model", first)
            if not is_successful(asked):
                return Ending(error=asked.failure())
            answer = asked.unwrap()
            problem = await self._run_tools(answer)
            if problem is not None:
                return Ending(error=problem)
            verdict = self._judge(chain)
            if verdict.verdict is Verdict.COMPLETE:
                return await self._finish(answer, verdict)
            if verdict.verdict is Verdict.FAILED:
                return Ending(error=_failure_of(verdict), completion=verdict)
            if self._only_answers():
                return Ending(error=_never_signals(self.view.step_id))
            if not answer.response.tool_calls:
                await self._say(user(_GO_ON))

    def _judge(self, chain: StepCompletionChain) -> Completion:
        """The chain's word; without one the budget still holds, whatever the links are."""
        picture = self.trace.picture()
        verdict = chain.check(picture)
        if verdict.verdict is Verdict.UNDECIDED and self.trace.calls_left < 1:
            return budget_spent(picture)
        return verdict

    def _only_answers(self) -> bool:
        """Whether a step without criteria of its own was answered twice in a row by plain text: it
        would use up all its calls.
        """
        step = self.step
        if step.completion_chain is not None or step.completion_criteria is not UNDECLARED:
            return False
        calls = [call for call in self.trace.picture().model_calls if call.phase != SUMMARY]
        last = [call.response for call in calls[-2:]]
        return len(last) == 2 and all(
            each is not None and _is_plain(each) for each in last
        )  # twice

    # --- calls ----------------------------------------------------------------------------

    def _request(
        self, form: OutputInstructions[object] | None, mode: OutputMode | None
    ) -> OutputRequest | None:
        """What constrains an answer to that form; None: nothing does."""
        if form is None or mode is None:
            return None
        request = self.view.context.scope.services.parser.request(form, mode)
        if request is None or self.modes.is_strict or not request.is_strict:
            return request
        return request.without_strict()

    def _usual_mode(self, phase: str) -> OutputMode | None:
        """How the call would be constrained if nothing was measured: what its row need not say."""
        declared = self.tiers.current.capabilities
        if phase == "model" and not self._constrains_every_call(declared.tools_with_schema):
            return None
        request = self._request(self.output, declared.output_mode)
        return None if request is None else request.mode

    def _recorded(self, key: str) -> ModelCallFact | None:
        """The call as an earlier execution of the run recorded it; None: it did not."""
        entry = self.view.context.scope.recorded("model_call", key)
        return entry.fact if entry and isinstance(entry.fact, ModelCallFact) else None

    def _mode_of(self, recorded: ModelCallFact, phase: str) -> OutputMode | None:
        """How the recorded answer was constrained."""
        said = recorded.output_mode
        if said is None:
            return self._usual_mode(phase)
        return next((mode for mode in OutputMode if mode.value == said), None)

    def _constrains_every_call(self, takes_both: bool) -> bool:
        """At once where no tools could be lost; with tools first the free answer, then the rest."""
        if self.step.completion_criteria.mode is CompletionMode.SIGNAL:
            return False
        return takes_both or not self.view.tools.names

    def _specs(self) -> tuple[ToolSpec, ...]:
        return tuple(tool.spec for tool in self._reading_view().tools)

    def _reading_view(self) -> StepView:
        """The step, with a tool that reads long results as soon as there is one."""
        most = self.view.limits.max_tool_result_characters
        if not has_long_result(self.trace.tool_calls, most):
            return self.view
        return self.view.with_own_tool(ResultReader(lambda: self.trace.tool_calls, most))

    async def _ask(
        self,
        phase: str,
        form: OutputInstructions[object] | None,
        *,
        is_last: bool = False,
        max_output_tokens: int | None = None,
    ) -> Result[Answer, FailureInfo]:
        """One answer to the conversation so far; asked for in the next way where the server refuses
        one, and once more where it had too little room.
        """
        room, first = max_output_tokens, None
        while True:
            request = self._request(form, self.modes.mode)
            asked = await self._asked(phase, form, request, is_last=is_last, room=room)
            if is_successful(asked):
                self.modes.note_answer()
                return Success(asked.unwrap())
            lost = asked.failure()
            first = first or lost.info
            can_ask = not is_last and self.trace.calls_left > 0
            if can_ask and self.output is not None and room is None:
                room = self._more_room(lost)
                if room is not None:
                    continue
            if can_ask and await self._fell_back(lost):
                first = None
                continue
            if not can_ask or not self.modes.give_up(lost.info, lost.request):
                is_guess = lost.info.code == "bad-request" == first.code
                return Failure(first if is_guess else lost.info)

    async def _fell_back(self, lost: _LostCall) -> bool:
        """Whether another model is asked the same, because the server of the present one failed."""
        replaced = self.tiers.fall_back(
            lost.info.code, has_images=lost.has_images, is_replayed=lost.is_replayed
        )
        if replaced is not None and not lost.is_replayed:
            await self._tell_replacement(replaced)
        if replaced is None and (unfit := self.tiers.unfit(lost.info.code)) and lost.has_images:
            words = f"{', '.join(unfit)} takes no images, and was not asked instead of "
            await self.view.context.warn("images-not-taken", f"{words}{self.tiers.current.name}")
        return replaced is not None

    async def _tell_replacement(self, replaced: Replacement) -> None:
        """Record it once in a run, and show it each time."""
        context, view = self.view.context, self.view
        await context.warn("model-replaced", replaced.words)
        context.scope.events.publish(
            ModelReplaced(
                run_id=context.run_id,
                session_id=context.session_id,
                timestamp=context.scope.services.clock.now(),
                step_id=view.step_id,
                address=view.address,
                failed=replaced.failed,
                instead=replaced.instead,
                code=replaced.code,
                cooldown_s=replaced.cooldown_s,
            )
        )

    def _more_room(self, lost: _LostCall) -> int | None:
        """Tokens for another try at an answer that was cut off where the recipe says no limit.

        None: it has a limit, or the model does not come to an end.
        """
        used = lost.usage.output_tokens
        is_cut = lost.info.code == OUTPUT_TRUNCATED
        has_limit = self.tiers.current.options.max_output_tokens is not None
        if not is_cut or has_limit or used >= _ENDLESS:
            return None
        return 4 * max(used, 256)

    async def _asked(
        self,
        phase: str,
        form: OutputInstructions[object] | None,
        request: OutputRequest | None,
        *,
        is_last: bool,
        room: int | None,
    ) -> Result[Answer, _LostCall]:
        """One logical model call with the conversation so far."""
        view = self.view
        prompt = self._prompt(phase, form, request, room)
        layout = self.layout
        if self.window is not None:
            fitted = await self.window.fit(prompt, layout)
            if not is_successful(fitted):
                return Failure(_LostCall(info=fitted.failure()))
            prompt, layout = fitted.unwrap()
        if not is_last and self.trace.calls_left < 1:  # used up by another conversation
            spent = budget_spent(self.trace.picture())
            return Failure(_LostCall(info=FailureInfo(code=spent.code, message=spent.reason)))
        mark = view.memory.take_snapshot(view.conversation_id)
        if view.live_conversation is not None:
            view.live_conversation.mark(mark.position)
        key = self.trace.reserve_model_key(phase)
        recorded = self._recorded(key)
        if recorded is not None:
            self.tiers.index = recorded.tier or 0
        if recorded is not None and self.output is not None:
            request = self._request(form or self.output, self._mode_of(recorded, phase))
            prompt = evolve(prompt, output_request=request)
        call = ModelCall(
            key=key,
            prompt=prompt,
            phase=phase,
            layout=layout,
            output_mode=self._unusual_mode(phase, request),
            tier=self.tiers.index or None,
        )
        calls = ModelCalls(
            view=view,
            factory=self.tiers.current.factory,
            trace=self.trace,
            keeps_cut_text=view.live_conversation is not None,
            refuses=self.step.at_limit != "answer",
        )
        is_call_for_schema = request is not None and request.mode is OutputMode.TOOLS
        done = await calls.carry_out(call, remember=not is_call_for_schema, is_last=is_last)
        if done.status is CallStatus.FAILED or done.response is None:
            self.trace.add_model_call(done)
            assert done.failure is not None  # noqa: S101  # FAILED carries its failure
            lost = _LostCall(
                info=done.failure.info(),
                usage=done.failure.usage,
                request=request,
                has_images=any(each.attachments for each in prompt.messages),
                is_replayed=recorded is not None,
            )
            return Failure(lost)
        answer = Answer(
            raw=done.response,
            response=done.response,
            mark=mark,
            phase=phase,
            mode=request.mode if request else None,
            is_strict=request is not None and request.is_strict,
            usage=done.usage,
        )
        if is_call_for_schema:
            answer = evolve(answer, response=await self._as_text(done.response))
            done = evolve(done, response=answer.response)
        self.trace.add_model_call(done)
        if answer.raw.finish_reason == CUT_AT_LIMIT and view.live_conversation is not None:
            await view.context.warn(OUTPUT_TRUNCATED, _TRUNCATED.format(view.address))
        return Success(answer)

    def _prompt(
        self,
        phase: str,
        form: OutputInstructions[object] | None,
        request: OutputRequest | None,
        room: int | None,
    ) -> Prompt:
        keeps_tools = phase == "model" and not (request and request.mode is OutputMode.TOOLS)
        options = self.tiers.current.options
        return Prompt(
            self.view.memory.prompt_messages(self.view.conversation_id),
            options if room is None else evolve(options, max_output_tokens=room),
            self.output if form is None else form,
            tools=self._specs() if keeps_tools else (),
            output_request=request,
            folds_system=not self.modes.takes_system,
        )

    def _unusual_mode(self, phase: str, request: OutputRequest | None) -> str | None:
        """How the call is constrained, where its row has to say so."""
        if self.output is None:
            return None
        mode = None if request is None else request.mode
        if mode is self._usual_mode(phase):
            return None
        return "text" if mode is None else mode.value

    async def _as_text(self, response: ModelCallResponse) -> ModelCallResponse:
        """The call of the output tool as text: no tool ever answers it."""
        text = response.tool_calls[0].arguments if response.tool_calls else response.text
        message = assistant(text)
        await self._say(message, is_of_session=True)
        return evolve(response, message=message)

    async def _run_tools(self, answer: Answer) -> FailureInfo | None:
        """The answer's tool calls; the first failure that is not the model's to mend."""
        requests = answer.response.tool_calls
        if not requests:
            return None
        instruction = answer.response.completion_instruction
        if instruction is not None and instruction.is_non_recoverable:
            return None
        done = await self._batch().run(requests, self.trace.reserve_tool_key())
        for call in done:
            if call.status is CallStatus.FAILED and call.failure is not None:
                return call.failure.info()
        return None

    def _batch(self, view: StepView | None = None) -> ToolBatch:
        return ToolBatch(
            view=view or self._reading_view(),
            factory=self.tool_call_executor_factory,
            trace=self.trace,
            reports_failures=self.step.tool_failure == "report",
        )

    # --- the conversation -------------------------------------------------------------------

    async def _take_up(self) -> FailureInfo | None:
        """What the session's conversation waits for: open tool calls, then the user's message."""
        live_conversation = self.view.live_conversation
        if live_conversation is None:
            return None
        for pending in live_conversation.pending:
            if pending.content is not None:
                request = pending.request
                answer = tool_result(pending.content, tool_call_id=request.id, name=request.name)
                await self._say(answer, is_of_session=True)
        open_calls = [pending for pending in live_conversation.pending if pending.content is None]
        if open_calls:
            done = await self._batch(self.view.with_tools(live_conversation.pending_tools)).run(
                [pending.request for pending in open_calls],
                self.trace.reserve_tool_key(),
                pending=open_calls,
            )
            for call in done if live_conversation.message is None else ():  # else the model is told
                if call.status is CallStatus.FAILED and call.failure is not None:
                    return call.failure.info()
        if live_conversation.message is not None:
            await self._say(user(live_conversation.message), is_of_session=True)
        return None

    async def _say(self, message: Message, *, is_of_session: bool = False) -> None:
        """Add a message; words of the engine's own are no part of the session's conversation."""
        view = self.view
        key = self.trace.reserve_note_key()
        sequence = None
        if is_of_session and view.live_conversation is not None:
            view.live_conversation.count += 1
            sequence = view.live_conversation.count
        said = MessageRecorded(
            step_id=view.step_id,
            conversation=view.conversation_id,
            message=message,
            sequence=sequence,
        )
        await view.context.scope.recorder.record(key, said)
        view.memory.save_prompt(view.conversation_id, [message])

    async def _take_back(self, mark: MemorySnapshot) -> None:
        view = self.view
        key = self.trace.reserve_note_key()
        sequence = None
        if view.live_conversation is not None:
            view.live_conversation.count = sequence = view.live_conversation.at_mark(mark.position)
        taken_back = Rollback(
            step_id=view.step_id,
            conversation=view.conversation_id,
            position=mark.position,
            sequence=sequence,
        )
        await view.context.scope.recorder.record(key, taken_back)
        view.memory.restore_snapshot(mark)

    # --- the end ------------------------------------------------------------------------------

    async def _finish(self, answer: Answer, verdict: Completion) -> Ending:
        """Validated output, or none: a COMPLETE verdict only opens this door."""
        final = self._final_arguments()
        if self.output is None:
            output = final if final is not None else self._plain_output(answer)
            return Ending(output=output, completion=verdict)
        if final is not None:
            answer = evolve(answer, mode=None, raw=evolve(answer.raw, message=assistant(final)))
        climbed = await self._ladder(self.output).climb(answer)
        while _is_of_output(climbed) and self.trace.calls_left > 0:
            if not self._can_pay_next(answer) or not self.tiers.advance():
                break
            await self._take_back(answer.mark)
            asked = await self._ask("tier", self.output)
            if not is_successful(asked):
                climbed = Failure(asked.failure())
                break
            climbed = await self._ladder(self.output).climb(asked.unwrap())
        if not is_successful(climbed):
            if (
                self.view.live_conversation is not None
            ):  # later turns must not read what was refused
                await self._take_back(answer.mark)
            return Ending(error=climbed.failure(), completion=verdict)
        return Ending(output=climbed.unwrap(), completion=verdict)

    def _can_pay_next(self, answer: Answer) -> bool:
        """Whether the next model may be asked: an answer as long as this one has to fit what is
        left of the run's money.
        """
        context, model = self.view.context, self.tiers.next_model
        most = context.progress.budget.max_cost_usd
        if most is None or model is None:
            return True
        alike = with_cost(evolve(answer.raw.usage, cost_usd=None), model, context.scope.services)
        spent = context.progress.budget.usage.cost_usd or 0.0
        return spent + (alike.cost_usd or 0.0) <= most

    def _ladder(self, output: OutputInstructions[object]) -> OutputLadder:
        return OutputLadder(
            instructions=output,
            parser=self.view.context.scope.services.parser,
            modes=self.modes,
            constrains=self._request(output, self.modes.mode) is not None,
            has_own_room=self.tiers.current.options.max_output_tokens is not None,
            ask=self._ask,
            say=self._say,
            take_back=self._take_back,
            calls_left=lambda: self.trace.calls_left,
            tell=self._tell_checked,
        )

    def _tell_checked(self, rung: str, answer: Answer, failure: OutputFailure | None) -> None:
        """Count and show what a rung gave."""
        context, usage = self.view.context, answer.usage
        model = model_of(self.tiers.current.factory)
        name = model.name if model is not None else "own"
        services = context.scope.services
        services.metrics.output_checked(name, rung, usage.cost_usd, is_valid=failure is None)
        if not context.scope.events.is_watched:
            return
        context.scope.events.publish(
            OutputChecked(
                run_id=context.run_id,
                session_id=context.session_id,
                timestamp=services.clock.now(),
                step_id=self.view.step_id,
                address=self.view.address,
                rung=rung,
                model=name,
                is_valid=failure is None,
                reason=failure.message if failure is not None else None,
                usage=usage.to_json(),
            )
        )

    def _final_arguments(self) -> str | None:
        """What a `final_Answer` call in the newest batch was given."""
        if not self.trace.tool_calls:
            return None
        for call in self.trace.picture().last_tool_calls:
            if call.name == FINAL_ANSWER:
                return _answer_text(call.request.arguments)
        return None

    def _plain_output(self, answer: Answer) -> JsonValue:
        """The text; where the model only called tools, the last result."""
        text = answer.response.text
        if text or not answer.response.tool_calls:
            return text
        calls = self.trace.picture().last_tool_calls
        response = calls[-1].response if calls else None
        if response is None:
            return None
        return response.value if response.value is not None else response.content


def _answer_text(arguments: str) -> str:
    """The text in `{"answer": "…"}`; any other answer unchanged."""
    import json

    try:
        parsed = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    if isinstance(parsed, dict) and len(parsed) == 1:
        value = next(iter(parsed.values()))
        if isinstance(value, str):
            return value
    return arguments


def _is_plain(response: ModelCallResponse) -> bool:
    """Whether the model only answered: no tool call, and no word that it needs more calls."""
    instruction = response.completion_instruction
    return not response.tool_calls and not (instruction and instruction.is_more_calls_needed)


def _never_signals(step_id: str) -> FailureInfo:
    return FailureInfo(
        code="not-complete",
        message=f"The model answered step '{step_id}' twice without the line `status: done`, which "
        "completes a step that declares nothing else. If its first answer is the result, give the "
        'step completion_criteria=CompletionCriteria(mode="text"); if it works in several turns, '
        'CompletionCriteria(mode="signal").',
    )


def _is_of_output(climbed: Result[object, FailureInfo]) -> bool:
    """Whether the model answered, and its answer is not the declared output."""
    return not is_successful(climbed) and climbed.failure().code == INVALID_OUTPUT


def _failure_of(verdict: Completion) -> FailureInfo:
    by = f" (decided by {verdict.decided_by})" if verdict.code == "not-complete" else ""
    return FailureInfo(
        code=verdict.code, message=f"{verdict.reason or 'The step was not complete.'}{by}"
    )

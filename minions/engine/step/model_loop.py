"""The loop of a model step: call, tools, chain, until a link decides or the budget is spent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from attrs import evolve
from returns.pipeline import is_successful
from returns.result import Failure, Result, Success

from minions.contracts.calls import (
    CallStatus,
    ModelCallResponse,
    PromptLayout,
)
from minions.contracts.completion import UNDECLARED, StepCompletionChain
from minions.contracts.events import OutputChecked
from minions.contracts.executions import Completion, Verdict
from minions.contracts.instructions import OutputFailure, OutputInstructions
from minions.contracts.messages import (
    assistant,
    tool_result,
    user,
)
from minions.contracts.steps import Step
from minions.data.errors import (
    LIMIT_REACHED,
    MAX_MODEL_CALLS,
    OUTPUT_TRUNCATED,
    FailureInfo,
    StepFailedError,
)
from minions.data.json_values import JsonValue
from minions.data.patterns import match_beside_loop
from minions.engine.calls.model_executors import model_of
from minions.engine.calls.model_tiers import Answer
from minions.engine.compile.completion import FINAL_ANSWER, DefaultStepCompletionChain, budget_spent
from minions.engine.context.step_view import StepView
from minions.engine.history.conversation import SUMMARY
from minions.engine.services.budget import with_cost
from minions.engine.step.model_answers import ModelAnswers, StepConversation
from minions.engine.step.work import Ending, WorkParts

if TYPE_CHECKING:
    from minions.engine.calls.output_ladder import OutputLadder
    from minions.engine.calls.tool_batch import ToolBatch
    from minions.engine.step.conversation_window import ConversationWindow

_DEFAULT_CHAIN: Final = DefaultStepCompletionChain()
_ANSWER_NOW: Final = (
    "A limit is reached: no further call is possible. Answer now from what you have, and call no "
    "tool."
)
_GO_ON: Final = "The step is not complete yet. Continue; when it is complete, say `status: done`."
_ADVICE: Final = (
    "It declares no criteria, so that only `status: done` or an instruction completes it; if its "
    'first answer is the result, give it completion_criteria=CompletionCriteria(mode="text").'
)


INVALID_OUTPUT: Final = "invalid-output"


class ModelLoop:
    """One step's conversation with its model."""

    def __init__(
        self,
        step: Step[object],
        parts: WorkParts,
        *,
        layout: PromptLayout,
        window: ConversationWindow | None = None,
    ) -> None:
        """Nothing is asked yet.

        Args:
            layout: What the prompts of the conversation begin with.
            window: Cuts each prompt to the bound of the step; None: there is no bound.
        """
        self.step = step
        self.view = parts.view
        self.trace = parts.trace
        self.output = parts.output
        self.model_call_executor_factory = parts.models
        self.tool_call_executor_factory = parts.tools
        self.conversation = StepConversation(view=parts.view, trace=parts.trace)
        self.answers = ModelAnswers(step, parts, self.conversation, layout, window)

    async def run(self) -> Ending:
        """Until a link decides, the budget is spent, or a call fails for good."""
        chain = self.step.completion_chain or _DEFAULT_CHAIN
        problem: FailureInfo | None = None
        ending: Ending | None = None
        try:
            first = self.output
            if first is not None:
                takes_both = self.answers.modes.tools_with_schema
                first = first if self.answers.constrains_every_call(takes_both) else None
            if self.view.live_conversation is not None:
                problem = await self._take_up()
            while problem is None and ending is None:
                asked = await self.answers.ask("model", first)
                if isinstance(asked, Success):
                    ending = await self._ending_after(asked.unwrap(), chain)
                else:
                    problem = asked.failure()
        except StepFailedError as error:
            problem = error.failure
        if ending is None:
            ending = Ending(error=problem)
        if ending.error is None:
            await self._keep_answers()
            return ending
        if not self._may_answer(ending.error):
            return ending
        return await self._answered_at_limit(ending)

    async def _ending_after(self, answer: Answer, chain: StepCompletionChain) -> Ending | None:
        """How the step ends with that answer; None: the model is asked again."""
        if answer.response.message.tool_calls:
            problem = await self._run_tools(answer)
            if problem is not None:
                return Ending(error=problem)
        verdict = await self._judge(chain)
        if verdict.verdict is Verdict.COMPLETE:
            return await self._finish(answer, verdict)
        if verdict.verdict is Verdict.FAILED:
            return Ending(error=self._advised(_failure_of(verdict)), completion=verdict)
        if not answer.response.tool_calls:
            await self.conversation.say(user(_GO_ON))
        return None

    async def _keep_answers(self) -> None:
        """Store the answers of the step that succeeded, where the model says `cache: true`."""
        if self.answers.tiers.index:  # the answers are not the first model's alone
            return
        calls = [call for call in self.trace.model_calls if call.prompt.options.cache]
        if not calls:
            return
        from minions.engine.calls.answer_cache import AnswerCache

        model = model_of(self.model_call_executor_factory)
        cache = AnswerCache.of(calls[0].prompt, model, self.view)
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
        await self.conversation.say(user(_ANSWER_NOW))
        asked = await self.answers.ask("last", self.output, is_last=True)
        if not is_successful(asked):
            return self._given_up(ending, asked.failure().message)
        answer = asked.unwrap()
        if self.output is None:
            output: object = answer.response.text
        else:
            parser = self.view.context.scope.services.parser
            form = self.output
            read = await match_beside_loop(lambda: parser.parse(form, answer.raw, answer.mode))
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

    async def _judge(self, chain: StepCompletionChain) -> Completion:
        """The chain's word; without one the budget still holds, whatever the links are."""
        picture = self.trace.picture()
        if chain is _DEFAULT_CHAIN and not picture.completion_patterns:
            verdict = chain.check(picture)
        else:
            verdict = await match_beside_loop(lambda: chain.check(picture))
        if verdict.verdict is Verdict.UNDECIDED and self.trace.calls_left < 1:
            return budget_spent(picture)
        return verdict

    def _advised(self, error: FailureInfo) -> FailureInfo:
        """The failure; of a step that declares no criteria and spent its calls on plain answers
        with what it may declare.
        """
        step = self.step
        if error.code != MAX_MODEL_CALLS or step.completion_chain is not None:
            return error
        calls = [call for call in self.trace.picture().model_calls if call.phase != SUMMARY]
        plain = all(call.response is None or _is_plain(call.response) for call in calls)
        if step.completion_criteria is not UNDECLARED or not plain:
            return error
        return evolve(error, message=f"{error.message} {_ADVICE}")

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
        from minions.engine.calls.tool_batch import ToolBatch

        return ToolBatch(
            view=view or self.answers.reading_view(),
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
                await self.conversation.say(answer, is_of_session=True)
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
            await self.conversation.say(user(live_conversation.message), is_of_session=True)
        return None

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
            if not self._can_pay_next(answer) or not self.answers.tiers.advance():
                break
            await self.conversation.take_back(answer.mark)
            asked = await self.answers.ask("tier", self.output)
            if not is_successful(asked):
                climbed = Failure(asked.failure())
                break
            climbed = await self._ladder(self.output).climb(asked.unwrap())
        if not is_successful(climbed):
            if (
                self.view.live_conversation is not None
            ):  # later turns must not read what was refused
                await self.conversation.take_back(answer.mark)
            return Ending(error=climbed.failure(), completion=verdict)
        return Ending(output=climbed.unwrap(), completion=verdict)

    def _can_pay_next(self, answer: Answer) -> bool:
        """Whether the next model may be asked: an answer as long as this one has to fit what is
        left of the run's money.
        """
        context, model = self.view.context, self.answers.tiers.next_model
        most = context.progress.budget.max_cost_usd
        if most is None or model is None:
            return True
        alike = with_cost(evolve(answer.raw.usage, cost_usd=None), model, context.scope.services)
        spent = context.progress.budget.usage.cost_usd or 0.0
        return spent + (alike.cost_usd or 0.0) <= most

    def _ladder(self, output: OutputInstructions[object]) -> OutputLadder:
        from minions.engine.calls.output_ladder import OutputLadder

        return OutputLadder(
            instructions=output,
            parser=self.view.context.scope.services.parser,
            modes=self.answers.modes,
            constrains=self.answers.request(output, self.answers.modes.mode) is not None,
            has_own_room=self.answers.tiers.current.options.max_output_tokens is not None,
            ask=self.answers.ask,
            say=self.conversation.say,
            take_back=self.conversation.take_back,
            calls_left=lambda: self.trace.calls_left,
            tell=self._tell_checked,
            warn=self._warn_of_cut,
            threads=self.view.context.scope.services.beside,
        )

    async def _warn_of_cut(self, what: str) -> None:
        """Say in the journal and in the result that an answer was cut off, and what was kept."""
        message = (
            f"An answer of step '{self.view.address}' was cut off {what}. "
            "Raise max_output_tokens, or ask for less, if there is more to list."
        )
        await self.view.context.warn(OUTPUT_TRUNCATED, message)

    def _tell_checked(self, rung: str, answer: Answer, failure: OutputFailure | None) -> None:
        """Count and show what a rung gave."""
        context, usage = self.view.context, answer.usage
        model = model_of(self.answers.tiers.current.factory)
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


def _is_of_output(climbed: Result[object, FailureInfo]) -> bool:
    """Whether the model answered, and its answer is not the declared output."""
    return not is_successful(climbed) and climbed.failure().code == INVALID_OUTPUT


def _failure_of(verdict: Completion) -> FailureInfo:
    by = f" (decided by {verdict.decided_by})" if verdict.code == "not-complete" else ""
    return FailureInfo(
        code=verdict.code, message=f"{verdict.reason or 'The step was not complete.'}{by}"
    )

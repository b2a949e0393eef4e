"""A step that asks a model: its opening prompt, the loop, and the conversation that it leaves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from attrs import evolve
from msgspec import Struct
from msgspec.structs import replace
from returns.pipeline import is_successful
from returns.result import Failure, Result, Success

from minions.contracts.calls import (
    CallStatus,
    Confidence,
    ModelCallResponse,
    ModelOptions,
    PromptLayout,
)
from minions.contracts.completion import UNDECLARED, StepCompletionChain
from minions.contracts.executions import Completion, StepExecution, Verdict
from minions.contracts.instructions import OutputFailure, OutputInstructions
from minions.contracts.journal.facts import StepFinished, StepStarted
from minions.contracts.messages import (
    Message,
    MessageRole,
    assistant,
    tool_result,
    user,
    without_border_names,
)
from minions.contracts.output import older_output_words, output_words
from minions.contracts.run_events import OutputChecked
from minions.contracts.steps import Step
from minions.contracts.tools import NO_TOOLS, Toolbox
from minions.data.errors import (
    LIMIT_REACHED,
    MAX_MODEL_CALLS,
    OUTPUT_TRUNCATED,
    FailureInfo,
    MinionsError,
    StepFailedError,
)
from minions.data.json_values import JsonValue
from minions.data.patterns import match_beside_loop
from minions.engine.calls.model_executors import model_of
from minions.engine.calls.model_tiers import Answer
from minions.engine.compile.completion_links import (
    FINAL_ANSWER,
    DefaultStepCompletionChain,
    budget_spent,
)
from minions.engine.compile.kinds.goal import GoalStep
from minions.engine.compile.recipe_step import Fingerprint, WrittenStep
from minions.engine.context.agent_context import AgentContext
from minions.engine.context.step_view import StepView
from minions.engine.history.conversation import SUMMARY, ConversationSummary, LiveConversation
from minions.engine.services.pricing import with_cost
from minions.engine.step.model_answers import ModelAnswers, StepConversation
from minions.engine.step.work import (
    Describe,
    Ending,
    Opening,
    RecordStart,
    StepWork,
    WorkParts,
    opening_of,
)

if TYPE_CHECKING:
    from minions.engine.calls.output_ladder import OutputLadder
    from minions.engine.calls.tool_batch import ToolBatch
    from minions.engine.history.step_rows import StepRows
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
LOW_CONFIDENCE: Final = "low-confidence"
_PARTS: Final = ("fields", "split")
"""Phases of calls for a part of an output, whose other parts are of the calls before."""


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
        self._context = context = parts.view.context
        self._services = context.scope.services
        self._budget = context.progress.budget
        self.trace = parts.trace
        self.output = parts.output
        self.model_call_executor_factory = parts.models
        self.tool_call_executor_factory = parts.tools
        self.conversation = StepConversation(view=parts.view, trace=parts.trace)
        self.answers = ModelAnswers(step, parts, self.conversation, layout, window)
        self._tiers = self.answers.tiers

    async def run(self) -> Ending:
        """Until a link decides, the budget is spent, or a call fails for good."""
        chain = self.step.completion_chain or _DEFAULT_CHAIN
        problem: FailureInfo | None = None
        ending: Ending | None = None
        try:
            first = self.output
            if first is not None:
                first = first if self.answers.constrains_every_call() else None
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
        if self._tiers.index:  # the answers are not the first model's alone
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
        return self._budget.reached != "timeout_s"

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
            parser = self.answers.parser
            form = self.output
            read = await match_beside_loop(lambda: parser.parse(form, answer.raw, answer.mode))
            if not is_successful(read):
                return self._given_up(ending, read.failure().message)
            if (doubt := self._doubt(form, read)) is not None:
                return self._given_up(ending, doubt.message)
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
            self._budget.refuse()
        message = f"{ending.error.message} The last call gave no output either: {why}"
        return replace(ending, error=evolve(ending.error, message=message))

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
            wider = self.view.with_tools(live_conversation.pending_tools)
            done = await self._batch(self.answers.reading_view(wider)).run(
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
            answer = replace(answer, mode=None, raw=evolve(answer.raw, message=assistant(final)))
        climbed = await self._ladder(self.output).climb(answer)
        while self.trace.calls_left > 0 and (
            _is_of_output(climbed) or self._doubt(self.output, climbed)
        ):
            if not self._can_pay_next(answer) or not self._tiers.advance():
                break
            await self.conversation.take_back(answer.mark)
            asked = await self.answers.ask("tier", self.output)
            if not is_successful(asked):
                climbed = Failure(asked.failure())
                break
            climbed = await self._ladder(self.output).climb(asked.unwrap())
        if (doubt := self._doubt(self.output, climbed)) is not None:
            climbed = Failure(doubt)
        if not is_successful(climbed):
            if (
                self.view.live_conversation is not None
            ):  # later turns must not read what was refused
                await self.conversation.take_back(answer.mark)
            return Ending(error=climbed.failure(), completion=verdict)
        return Ending(output=climbed.unwrap(), completion=verdict)

    def _doubt(
        self, output: OutputInstructions[object], read: Result[object, object]
    ) -> FailureInfo | None:
        """Why the output is not taken although it fits; None: the model is sure enough of it, or
        does not have to be.
        """
        tier = self._tiers.current
        least = tier.options.min_confidence
        if least is None or output.takes_text or not is_successful(read):
            return None
        confidence = self._confidence()
        if confidence is not None and confidence.probability >= least:
            return None
        what = (
            f"The output fits, but {tier.name} is not sure enough of it: min_confidence is "
            f"{least:g}"
        )
        if confidence is None:
            found = "the server told no probabilities of values that can be judged"
        else:
            found = f"{confidence.at} has the probability {confidence.probability:.3g}"
        return FailureInfo(code=LOW_CONFIDENCE, message=f"{what}, and {found}.")

    def _confidence(self) -> Confidence | None:
        """How sure the model was of the answers that the output was made of; None: of one of them
        it is not known.
        """
        found: Confidence | None = None
        for call in reversed(self.trace.model_calls):
            confidence = call.response.confidence if call.response is not None else None
            if confidence is None:
                return None
            if found is None or confidence.probability < found.probability:
                found = confidence
            if call.phase not in _PARTS:
                break
        return found

    def _can_pay_next(self, answer: Answer) -> bool:
        """Whether the next model may be asked: an answer as long as this one has to fit what is
        left of the run's money.
        """
        budget, model = self._budget, self._tiers.next_model
        most = budget.max_cost_usd
        if most is None or model is None:
            return True
        alike = with_cost(evolve(answer.raw.usage, cost_usd=None), model, self._services)
        spent = budget.usage.cost_usd or 0.0
        return spent + (alike.cost_usd or 0.0) <= most

    def _ladder(self, output: OutputInstructions[object]) -> OutputLadder:
        from minions.engine.calls.output_ladder import OutputLadder

        modes = self._tiers.modes
        return OutputLadder(
            instructions=output,
            parser=self.answers.parser,
            modes=modes,
            constrains=self.answers.request(output, modes.mode) is not None,
            has_own_room=self._tiers.has_own_room,
            ask=self.answers.ask,
            say=self.conversation.say,
            take_back=self.conversation.take_back,
            calls_left=lambda: self.trace.calls_left,
            tell=self._tell_checked,
            warn=self._warn_of_cut,
            threads=self._services.beside,
        )

    async def _warn_of_cut(self, what: str) -> None:
        """Say in the journal and in the result that an answer was cut off, and what was kept."""
        message = (
            f"An answer of step '{self.view.address}' was cut off {what}. "
            "Raise max_output_tokens, or ask for less, if there is more to list."
        )
        await self._context.warn(OUTPUT_TRUNCATED, message)

    def _tell_checked(self, rung: str, answer: Answer, failure: OutputFailure | None) -> None:
        """Count and show what a rung gave."""
        context, usage, sure = self._context, answer.usage, answer.raw.confidence
        name, services = self._tiers.name, self._services
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
                confidence=None if sure is None else sure.probability,
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


_MOST_OPENINGS: Final = 16
"""Of one step: a recipe's prompts are the same in most runs."""


class _Beginning(Struct, frozen=True, kw_only=True):
    """What a step's conversation begins with."""

    opening: Opening
    said: Sequence[Message]
    """The messages of earlier steps of the run."""
    layout: PromptLayout


class ModelWork(StepWork):
    """A question to a model, with tools and a declared output."""

    is_code = False

    def __init__(self, step: Step[object], parts: WorkParts) -> None:
        self._step = step
        self._parts = parts
        self._view = parts.view
        self._output = parts.output
        self._progress = parts.view.context.progress
        self._begun_with: Opening | None = None

    @staticmethod
    def tools_of(step: Step[object], context: AgentContext) -> Toolbox:
        """Those that the step names and the run allows.

        To offer a tool that will be refused costs a call, or the run.
        """
        names = step.available_tools
        if context.scope.caller_tools and step.tool_search.caller:
            names = names.union(each.spec.name for each in context.scope.caller_tools)
        if not names:
            return NO_TOOLS
        named = context.tools.subset(names)
        return Toolbox(tuple(tool for tool in named.tools if context.refusal(tool.spec) is None))

    @staticmethod
    def conversation_of(step: Step[object], context: AgentContext) -> LiveConversation | None:
        """The run's, if the step shares it."""
        return context.progress.live_conversation if step.shares_conversation else None

    @staticmethod
    def output_of(step: Step[object]) -> OutputInstructions[object] | None:
        """The output that the step declares."""
        return step.output

    async def run(self, record_start: RecordStart) -> Ending:
        """Ask until a link of the completion chain decides."""
        view = self._view
        if view.live_conversation is not None:
            view.live_conversation.begin_step()
        begin = self._begin()
        opening = self._begun_with = begin.opening
        await record_start(opening)
        view.memory.save_prompt(view.conversation_id, opening.messages)
        window = None if self._step.history is None else self._window(opening, begin.said)
        loop = ModelLoop(self._step, self._parts, layout=begin.layout, window=window)
        return await loop.run()

    def _begin(self) -> _Beginning:
        """The first prompt: as it was recorded, or made now; once for all runs of a recipe, where
        nothing in it is of a run.
        """
        step, view = self._step, self._view
        if self._parts.recorded is not None and (known := self._recorded_opening()) is not None:
            return self._begin_with(known)
        own = step.messages(view)
        is_fixed = isinstance(step, GoalStep) and own is step.fixed and not step.shares_conversation
        if not is_fixed or not isinstance(step, GoalStep):
            return self._begin_with(self._opening_with(view, own, output_words))
        agent = view.context.agent
        place = (agent.system_prompt, agent.goal)
        found = step.openings.get(place)
        if isinstance(found, _Beginning):
            return found
        if len(step.openings) >= _MOST_OPENINGS:
            step.openings.clear()
        begin = self._begin_with(self._opening_with(view, own, output_words))
        step.openings[place] = begin
        return begin

    def _begin_with(self, opening: Opening) -> _Beginning:
        shares = self._step.shares_conversation
        said = self._progress.conversation if shares else ()
        layout = PromptLayout(
            opening=len(opening.messages), history=frozenset((*opening.history, *said))
        )
        return _Beginning(opening=opening, said=said, layout=layout)

    def is_unchanged(self, rows: StepRows) -> bool:
        """Whether it would ask the same, and the recorded output still fits."""
        return rows.start is not None and self._opens_as(rows.start) and self._still_fits(rows)

    def is_begun_otherwise(self, rows: StepRows) -> bool:
        """Whether its opening prompt is another one."""
        return rows.start is not None and not self._opens_as(rows.start)

    def fingerprint(self) -> Fingerprint:
        """The opening prompt, and what has to come out."""
        from minions.engine.step.cache import question_fingerprint

        opening = self._opening(self._view.without_border_seed())
        return question_fingerprint(self._step, opening.messages, self._output)

    def keep_conversation(self, execution: StepExecution[object]) -> None:
        """Share the conversation with the steps that continue it."""
        view = self._view
        for call in execution.model_calls:
            if (summary := ConversationSummary.of(call)) is not None:
                self._progress.note_summary(summary)
        if execution.is_complete and self._step.shares_conversation:
            self._progress.share_conversation(self._said_in(execution))
            if view.live_conversation is not None:
                view.live_conversation.end_step()

    def _said_in(self, execution: StepExecution[object]) -> tuple[Message, ...]:
        """What the step said, whole: prompts within a window are not."""
        view, opening = self._view, self._begun_with
        if opening is not None and self._step.history is not None:
            return opening.said(view.memory.prompt_messages(view.conversation_id))
        return (opening or self._recorded_opening() or Opening()).said_in(execution)

    def _opens_as(self, started: StepStarted) -> bool:
        try:
            older = self._view.with_older_borders()
            openings = [
                self._opening(),
                self._opening(older),
                self._unmarked_opening(),
                self._older_opening(),
            ]
        except MinionsError:  # what it reads is not there any more
            return False
        # Names of borders differ between installations, and mean the same.
        recorded = without_border_names(started.messages or ())
        return any(
            recorded == without_border_names(each.own) and started.history == each.history_place
            for each in openings
        )

    def _still_fits(self, rows: StepRows) -> bool:
        """Whether the recorded output is one of those that the step declares."""
        if not isinstance(rows.end, StepFinished) or self._output is None:
            return True
        try:
            self._output.convert(rows.output)
        except Exception:  # noqa: BLE001  # an application's class raises anything
            return False
        return True

    def _opening(self, view: StepView | None = None) -> Opening:
        view = view or self._view
        return self._opening_with(view, self._step.messages(view), output_words)

    def _opening_with(self, view: StepView, own: Sequence[Message], describe: Describe) -> Opening:
        step = self._step
        shares = step.shares_conversation
        said = self._progress.conversation if shares else ()
        mode = step.completion_criteria.mode
        output = self._output
        return opening_of(view, own, output, mode, said=said, shares=shares, describe=describe)

    def _unmarked_opening(self) -> Opening:
        step, view = self._step, self._view.with_older_borders()
        own = step.unmarked_messages(view) if isinstance(step, WrittenStep) else step.messages(view)
        return self._opening_with(view, own, output_words)

    def _older_opening(self) -> Opening:
        """The opening in the words of earlier versions: what they recorded is not asked again."""
        step, view = self._step, self._view.with_older_borders()
        own = step.older_messages(view) if isinstance(step, WrittenStep) else step.messages(view)
        return self._opening_with(view, own, older_output_words)

    def _recorded_opening(self) -> Opening | None:
        """What an earlier execution of the run began with: its conversation is continued."""
        recorded, view = self._parts.recorded, self._view
        started = recorded.start if recorded is not None else None
        if started is None:
            return None
        messages = started.messages or ()
        if started.history is not None and view.live_conversation is not None:
            at, count = started.history
            history = view.live_conversation.history[:count]
            return Opening(before=messages[:at], history=history, after=messages[at:])
        return Opening.split(messages)

    def _window(self, opening: Opening, said: Sequence[Message]) -> ConversationWindow | None:
        """The bound of the prompts. Of a turn its question, and what follows it, is not cut.

        Args:
            said: The messages of earlier steps of the run.
        """
        from minions.engine.step.conversation_window import ConversationWindow

        parts, window = self._parts, self._step.history
        if window is None or not self._step.shares_conversation:
            return None
        history = opening.history
        count = len(history) + sum(each.role is not MessageRole.SYSTEM for each in said)
        live = self._view.live_conversation
        if live is not None and live.is_turn:
            asked = [at for at, each in enumerate(history) if each.role is MessageRole.USER]
            count = asked[-1] if asked else len(history)
        return ConversationWindow(
            window=window,
            view=self._view,
            progress=self._progress,
            trace=parts.trace,
            factory=parts.models,
            options=parts.options or ModelOptions(),
            first=len(opening.before),
            count=count,
            stored=min(count, len(history)),
        )

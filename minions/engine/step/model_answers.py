"""One answer of a step's models to its conversation: how it is asked for, and whom."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from attrs import evolve, field, frozen
from msgspec import Struct
from msgspec import field as struct_field
from msgspec.structs import replace
from returns.pipeline import is_successful
from returns.result import Failure, Result, Success

from minions.contracts.calls import (
    CallStatus,
    ModelCall,
    ModelCallResponse,
    ModelCapabilities,
    ModelOptions,
    Prompt,
    PromptLayout,
    ToolCall,
)
from minions.contracts.executions import CompletionMode
from minions.contracts.instructions import OutputInstructions, OutputMode, OutputRequest
from minions.contracts.journal.facts import MessageRecorded, ModelCallFact, Rollback
from minions.contracts.journal.start_note import NO_CHOICE
from minions.contracts.messages import CUT_AT_LIMIT, Message, MessageRole, TokenUsage, assistant
from minions.contracts.run_events import ModelReplaced
from minions.contracts.session_views import MemorySnapshot
from minions.contracts.steps import Step
from minions.contracts.tool_search import FEWEST_TOOLS
from minions.contracts.tools import Effect, Tool, ToolScope, ToolSpec
from minions.data.errors import OUTPUT_TRUNCATED, FailureInfo, ToolError
from minions.data.json_values import JsonValue
from minions.engine.calls.model_calls import ModelCalls
from minions.engine.calls.model_tiers import (
    ENDLESS_TOKENS,
    Answer,
    ModelTiers,
    OutputModes,
    Replacement,
)
from minions.engine.calls.trace import StepTrace
from minions.engine.compile.completion_links import budget_spent
from minions.engine.context.step_view import StepView
from minions.engine.history.memory import READ_RESULT, piece_of

if TYPE_CHECKING:
    from minions.engine.calls.quoted_values import QuotedParser
    from minions.engine.calls.tool_choices import ToolChoice
    from minions.engine.compile.offered_tools import SearchedTools
    from minions.engine.step.conversation_window import ConversationWindow
    from minions.engine.step.work import WorkParts


class StepConversation(Struct, frozen=True, kw_only=True):
    """The messages of one step, recorded before they count."""

    view: StepView
    trace: StepTrace

    async def say(self, message: Message, *, is_of_session: bool = False) -> None:
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

    async def take_back(self, mark: MemorySnapshot) -> None:
        """Go back to where the conversation stood."""
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


_SPEC: Final = ToolSpec(
    name=READ_RESULT,
    description="Read a further piece of a tool result that was cut.",
    parameters={
        "type": "object",
        "properties": {
            "call": {"type": "string", "description": "The id of the call, as the cut says it."},
            "start": {"type": "integer", "minimum": 0},
        },
        "required": ["call", "start"],
        "additionalProperties": False,
    },
    effect=Effect.PURE,
)


def _content(call: ToolCall) -> str:
    return call.response.content if call.response is not None else ""


@frozen(eq=False, repr=False)
class ResultReader(Tool):
    """Reads the results of a step's own calls."""

    calls: Callable[[], Sequence[ToolCall]]
    """The calls of the step so far."""
    characters: int
    """The most characters of one piece."""
    spec: ToolSpec = field(default=_SPEC, init=False)

    async def invoke(self, arguments: Mapping[str, JsonValue], scope: ToolScope) -> object:
        """The piece that begins at `start`.

        Raises:
            ToolError: There is no such call, or its result ends before `start`.
        """
        wanted, start = arguments["call"], arguments["start"]
        assert isinstance(start, int | float)  # noqa: S101  # 300.0 is an integer to the schema
        start = int(start)
        readable = [call for call in self.calls() if call.name != READ_RESULT]
        found = next((call for call in reversed(readable) if call.request.id == wanted), None)
        if found is None:
            names = ", ".join(call.request.id for call in readable)
            raise ToolError(f"This step has no call '{wanted}'. Its calls are: {names}.")
        content = _content(found)
        if start >= len(content):
            raise ToolError(f"The result has {len(content)} characters; {start} is behind its end.")
        return piece_of(content, start, self.characters)


_TRUNCATED: Final = (
    "An answer of step '{}' was cut off at its token limit. It is kept as it is; raise "
    "max_output_tokens, or ask for the rest."
)


_CALL: Final = OutputRequest(mode=OutputMode.TOOLS, body={"tool_choice": "required"})
"""How an answer is asked for that has to call one of the tools of its prompt."""


class _LostCall(Struct, frozen=True, kw_only=True):
    """A model call without an answer."""

    info: FailureInfo
    usage: TokenUsage = struct_field(default_factory=TokenUsage)
    request: OutputRequest | None = None
    """How the answer was to be constrained."""
    has_images: bool = False
    """Whether the prompt has images or files."""
    is_replayed: bool = False
    """Whether it failed in an earlier execution of the run."""


def _search_of(step: Step[object], view: StepView) -> SearchedTools | None:
    """The tools of the step, where its model finds them; None: it is offered all."""
    search, tools = step.tool_search, view.tools
    if search.is_on is None and len(tools.tools) < FEWEST_TOOLS:
        return None
    from minions.engine.compile.offered_tools import SearchedTools, searches

    specs = [tool.spec for tool in tools]
    if not searches(search, specs):
        return None
    return SearchedTools(search, tools, view.context.tools.memo)


class ModelAnswers:
    """Asks the models of one step, in turn where one of them fails."""

    def __init__(
        self,
        step: Step[object],
        parts: WorkParts,
        conversation: StepConversation,
        layout: PromptLayout,
        window: ConversationWindow | None,
    ) -> None:
        """Begin with the first model that did not fail a short time ago.

        Args:
            layout: What the prompts of the conversation begin with.
            window: Cuts each prompt to the bound of the step; None: there is no bound.
        """
        self.step = step
        self.view = view = parts.view
        self._tools = view.tools
        self._limits = view.limits
        self._memory = view.memory
        self._context = view.context
        self._scope = scope = view.context.scope
        self.trace = parts.trace
        self.conversation = conversation
        self.output = parts.output
        self.layout = layout
        self.window = window
        options = parts.options or ModelOptions()
        self.tiers = ModelTiers(parts.models, options, scope.services)
        """Which of its models is asked, and how."""
        has_tools = bool(view.tools.tools)
        self.search = _search_of(step, view) if has_tools else None
        """Its tools, where the model finds them; None: it is offered all."""
        offers_callers = has_tools and step.tool_search.caller
        self._caller_choice = scope.caller_choice if offers_callers else NO_CHOICE
        self.parser = scope.services.parser
        """Reads its answers."""
        self._quotes: QuotedParser | None = None
        if self.output is not None and self.output.is_quoted:
            self.parser = self._quotes = self._quoted_parser()
        self._choice: tuple[OutputModes, ToolChoice] | None = None
        """How the present model is got to call tools; None: it was not asked yet."""

    def _quoted_parser(self) -> QuotedParser:
        from minions.engine.calls.quoted_values import QuotedParser

        redaction = self._scope.redaction
        shown = None if redaction is None else lambda text: redaction.replaced(text)[0]
        return QuotedParser(self.parser, shown)

    @property
    def modes(self) -> OutputModes:
        """How output is asked for, as far as is known of the present model's server."""
        return self.tiers.modes

    def request(
        self, form: OutputInstructions[object] | None, mode: OutputMode | None
    ) -> OutputRequest | None:
        """What constrains an answer to that form; None: nothing does."""
        if form is None or mode is None:
            return None
        request = self.parser.request(form, mode)
        if request is None:
            return None
        modes = self.tiers.modes
        if not modes.takes_bounds:
            request = request.without_bounds()
        return request if modes.is_strict or not request.is_strict else request.without_strict()

    def _usual_mode(self, phase: str) -> OutputMode | None:
        """How the call would be constrained if nothing was measured: what its row need not say."""
        modes = self.tiers.modes
        declared = modes.declared
        if phase == "model" and not self.constrains_every_call(declared):
            return None
        request = self.request(self.output, declared.output_mode)
        return None if request is None else request.mode

    def _recorded(self, key: str) -> ModelCallFact | None:
        """The call as an earlier execution of the run recorded it; None: it did not."""
        entry = self._scope.recorded("model_call", key)
        return entry.fact if entry and isinstance(entry.fact, ModelCallFact) else None

    def _mode_of(self, recorded: ModelCallFact, phase: str) -> OutputMode | None:
        """How the recorded answer was constrained."""
        said = recorded.output_mode
        if said is None:
            return self._usual_mode(phase)
        return next((mode for mode in OutputMode if mode.value == said), None)

    def constrains_every_call(self, known: ModelCapabilities | OutputModes | None = None) -> bool:
        """At once where no tools could be lost; with tools first the free answer, then the rest.

        Args:
            known: Of the model; None: what is known now of the present one.
        """
        criteria = self.step.completion_criteria
        if criteria.mode is CompletionMode.SIGNAL:
            return False
        return (known or self.modes).tools_with_schema or not self._tools.names

    def _specs(self, messages: Sequence[Message]) -> tuple[ToolSpec, ...]:
        """The tools that a request with these messages offers."""
        tools = self.reading_view().tools.tools
        search = self.search
        if search is None:
            return tuple([tool.spec for tool in tools]) if tools else ()
        offered = search.offered(messages)
        has_reader = len(tools) > len(search.toolbox.tools)
        return (*offered, tools[-1].spec) if has_reader else offered

    def reading_view(self, view: StepView | None = None) -> StepView:
        """The step, or this view of it, with the engine's own tools: one that finds tools where the
        model is not offered all, and one that reads long results as soon as there is one.
        """
        view = view or self.view
        if self.search is not None:
            tools = self.search.toolbox
            if view is not self.view:
                tools = tools.plus(each for each in view.tools if each.spec.name not in tools)
            view = view.with_toolbox(tools)
        most = self._limits.max_tool_result_characters
        if not self.trace.tool_calls or self.trace.longest_result <= most:
            return view
        return view.with_own_tool(ResultReader(lambda: self.trace.tool_calls, most))

    async def ask(
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
        if self._quotes is not None:
            self._quotes.read(self._memory.prompt_messages(self.view.conversation_id))
        while True:
            modes = self.tiers.modes
            request = None if form is None else self.request(form, modes.mode)
            asked = await self._asked(phase, form, request, is_last=is_last, room=room)
            if isinstance(asked, Success):
                modes.note_answer()
                return asked
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
            await self._context.warn("images-not-taken", f"{words}{self.tiers.name}")
        return replaced is not None

    async def _tell_replacement(self, replaced: Replacement) -> None:
        """Record it once in a run, and show it each time."""
        context, view = self._context, self.view
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
        if not is_cut or self.tiers.has_own_room or used >= ENDLESS_TOKENS:
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
        recorded = None if self._scope.replay is None else self._recorded(key)
        if recorded is not None:
            self.tiers.move_to(recorded.tier or 0)
        tier = self.tiers.current
        if recorded is not None and self.output is not None:
            request = self.request(form or self.output, self._mode_of(recorded, phase))
            prompt = evolve(prompt, output_request=request)
        call = ModelCall(
            key=key,
            prompt=prompt,
            phase=phase,
            layout=layout,
            output_mode=None if self.output is None else self._unusual_mode(phase, request),
            tier=self.tiers.index or None,
        )
        has_images = prompt.messages.attached > 0
        must_call = prompt.output_request is _CALL
        choice = self._tool_choice(must_call=must_call) if prompt.tools else None
        calls = ModelCalls(
            view=view,
            factory=tier.factory,
            trace=self.trace,
            keeps_cut_text=view.live_conversation is not None,
            keeps_cut_lists=self.output is not None,
            refuses=self.step.at_limit != "answer",
            may_pause=not self.tiers.has_other(has_images=has_images),
            ends_with_text=self.output is None and self.step.completion_chain is None,
            choice=choice,
        )
        is_call_for_schema = request is not None and request.mode is OutputMode.TOOLS
        done = await calls.carry_out(call, remember=not is_call_for_schema, is_last=is_last)
        if choice is not None and choice.has_shown is not None:
            tier.modes.note_tools(are_shown=choice.has_shown)
            self._choice = None
        if done.status is CallStatus.FAILED or done.response is None:
            self.trace.add_model_call(done)
            assert done.failure is not None  # noqa: S101  # FAILED carries its failure
            lost = _LostCall(
                info=done.failure.info(),
                usage=done.failure.usage,
                request=request or (choice.asked if choice is not None else None),
                has_images=has_images,
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
            is_bounded=request is not None and request.unbounded is not None,
            usage=done.usage,
        )
        if is_call_for_schema:
            answer = replace(answer, response=await self._as_text(done.response))
            done = evolve(done, response=answer.response)
        self.trace.add_model_call(done)
        is_cut = answer.raw.finish_reason == CUT_AT_LIMIT
        if is_cut and self.output is None and view.live_conversation is not None:
            await view.context.warn(OUTPUT_TRUNCATED, _TRUNCATED.format(view.address))
        return Success(answer)

    def _tool_choice(self, *, must_call: bool) -> ToolChoice:
        modes = self.tiers.modes
        if self._choice is not None and self._choice[0] is modes:
            choice = self._choice[1]
            choice.asked, choice.must_call = None, must_call
            return choice
        from minions.engine.calls.tool_choices import ToolChoice

        choice = ToolChoice(
            must_call=must_call,
            is_single=self._caller_choice.is_single,
            bind=self._bound_choice,
            seed=self.view.run_id,
            is_needed=not modes.takes_tools,
            may_be_text=modes.may_leave_calls,
            is_doubted=modes.doubts_tools,
        )
        self._choice = modes, choice
        return choice

    def _bound_choice(self, form: OutputInstructions[object]) -> OutputRequest | None:
        """What holds an answer to a form, but a call that has to be made: that is a tool, too."""
        mode = self.modes.mode
        return self.request(form, None if mode is OutputMode.TOOLS else mode)

    def _prompt(
        self,
        phase: str,
        form: OutputInstructions[object] | None,
        request: OutputRequest | None,
        room: int | None,
    ) -> Prompt:
        keeps_tools = phase == "model" and not (request and request.mode is OutputMode.TOOLS)
        tier = self.tiers.current
        options, modes = tier.options, tier.modes
        messages = self._memory.prompt_messages(self.view.conversation_id)
        names = self._caller_choice.must_call if keeps_tools else ()
        demanded = self._demanded(names, messages) if names else ()
        tools = demanded or (self._specs(messages) if keeps_tools else ())
        return Prompt(
            messages,
            options if room is None else evolve(options, max_output_tokens=room),
            self.output if form is None else form,
            tools=tools,
            searches_tools=keeps_tools and not demanded and self.search is not None,
            output_request=_CALL if demanded else request,
            folds_system=not modes.takes_system,
            leaves_out_form=(
                request is not None
                and modes.binds is True
                and request.mode is OutputMode.JSON_SCHEMA
                and self._shows_form(phase, messages)
            ),
        )

    def _shows_form(self, phase: str, messages: Sequence[Message]) -> bool:
        """Whether examples show how the output looks: small models follow them better alone. A
        repair is told in words.
        """
        is_first = phase == "model" and not self.trace.model_calls
        if not is_first or self.step.shares_conversation or self.view.live_conversation is not None:
            return False
        return any(each.role is MessageRole.ASSISTANT for each in messages)

    def _demanded(self, names: Sequence[str], messages: Sequence[Message]) -> tuple[ToolSpec, ...]:
        """The caller's tools by these names, one of which this answer has to call; empty: the
        model decides, as it does once a tool has answered.
        """
        if not messages or messages[-1].role is MessageRole.TOOL:
            return ()
        return tuple(each.spec for each in self.view.tools if each.spec.name in names)

    def _unusual_mode(self, phase: str, request: OutputRequest | None) -> str | None:
        """How the call is constrained, where its row has to say so."""
        mode = None if request is None else request.mode
        if mode is self._usual_mode(phase):
            return None
        return "text" if mode is None else mode.value

    async def _as_text(self, response: ModelCallResponse) -> ModelCallResponse:
        """The call of the output tool as text: no tool ever answers it."""
        text = response.tool_calls[0].arguments if response.tool_calls else response.text
        message = assistant(text)
        await self.conversation.say(message, is_of_session=True)
        return evolve(response, message=message)

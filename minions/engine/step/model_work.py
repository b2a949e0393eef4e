"""A step that asks a model: its opening prompt, the loop, and the conversation that it leaves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from minions.contracts.calls import ModelOptions, PromptLayout
from minions.contracts.executions import StepExecution
from minions.contracts.instructions import OutputInstructions
from minions.contracts.journal.facts import StepFinished, StepStarted
from minions.contracts.messages import Message, MessageRole, without_border_names
from minions.contracts.output import older_output_words, output_words
from minions.contracts.steps import Step
from minions.contracts.tools import NO_TOOLS, Toolbox
from minions.data.errors import MinionsError
from minions.engine.compile.kinds.goal import GoalStep
from minions.engine.compile.recipe_step import Fingerprint, WrittenStep
from minions.engine.context.agent_context import AgentContext
from minions.engine.context.step_view import StepView
from minions.engine.history.conversation import ConversationSummary, LiveConversation
from minions.engine.step.model_loop import ModelLoop
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
    from minions.engine.history.step_rows import StepRows
    from minions.engine.step.conversation_window import ConversationWindow

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
        self._begun_with: Opening | None = None

    @staticmethod
    def tools_of(step: Step[object], context: AgentContext) -> Toolbox:
        """Those that the step names and the run allows.

        To offer a tool that will be refused costs a call, or the run.
        """
        if not step.available_tools:
            return NO_TOOLS
        named = context.tools.subset(step.available_tools)
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
        view = self._parts.view
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
        step, view = self._step, self._parts.view
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
        said = self._parts.view.context.progress.conversation if shares else ()
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

        opening = self._opening(self._parts.view.without_border_seed())
        return question_fingerprint(self._step, opening.messages, self._parts.output)

    def keep_conversation(self, execution: StepExecution[object]) -> None:
        """Share the conversation with the steps that continue it."""
        view = self._parts.view
        for call in execution.model_calls:
            if (summary := ConversationSummary.of(call)) is not None:
                view.context.progress.note_summary(summary)
        if execution.is_complete and self._step.shares_conversation:
            view.context.progress.share_conversation(self._said_in(execution))
            if view.live_conversation is not None:
                view.live_conversation.end_step()

    def _said_in(self, execution: StepExecution[object]) -> tuple[Message, ...]:
        """What the step said, whole: prompts within a window are not."""
        view, opening = self._parts.view, self._begun_with
        if opening is not None and self._step.history is not None:
            return opening.said(view.memory.prompt_messages(view.conversation_id))
        return (opening or self._recorded_opening() or Opening()).said_in(execution)

    def _opens_as(self, started: StepStarted) -> bool:
        try:
            older = self._parts.view.with_older_borders()
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
        if not isinstance(rows.end, StepFinished) or self._parts.output is None:
            return True
        try:
            self._parts.output.convert(rows.output)
        except Exception:  # noqa: BLE001  # an application's class raises anything
            return False
        return True

    def _opening(self, view: StepView | None = None) -> Opening:
        view = view or self._parts.view
        return self._opening_with(view, self._step.messages(view), output_words)

    def _opening_with(self, view: StepView, own: Sequence[Message], describe: Describe) -> Opening:
        step = self._step
        said = view.context.progress.conversation if step.shares_conversation else ()
        mode = step.completion_criteria.mode
        return opening_of(view, own, self._parts.output, mode, said=said, describe=describe)

    def _unmarked_opening(self) -> Opening:
        step, view = self._step, self._parts.view.with_older_borders()
        own = step.unmarked_messages(view) if isinstance(step, WrittenStep) else step.messages(view)
        return self._opening_with(view, own, output_words)

    def _older_opening(self) -> Opening:
        """The opening in the words of earlier versions: what they recorded is not asked again."""
        step, view = self._step, self._parts.view.with_older_borders()
        own = step.older_messages(view) if isinstance(step, WrittenStep) else step.messages(view)
        return self._opening_with(view, own, older_output_words)

    def _recorded_opening(self) -> Opening | None:
        """What an earlier execution of the run began with: its conversation is continued."""
        recorded, view = self._parts.recorded, self._parts.view
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
        live = parts.view.live_conversation
        if live is not None and live.is_turn:
            asked = [at for at, each in enumerate(history) if each.role is MessageRole.USER]
            count = asked[-1] if asked else len(history)
        return ConversationWindow(
            window=window,
            view=parts.view,
            trace=parts.trace,
            factory=parts.models,
            options=parts.options or ModelOptions(),
            first=len(opening.before),
            count=count,
            stored=min(count, len(history)),
        )

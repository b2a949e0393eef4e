"""A step that is Python code."""

from __future__ import annotations

from typing import cast

from minions.contracts.executions import StepExecution
from minions.contracts.instructions import OutputInstructions
from minions.contracts.steps import PythonStep, Step
from minions.contracts.tools import Toolbox
from minions.data.codec import decode
from minions.data.errors import MinionsError, UsageError
from minions.data.json_values import JsonValue
from minions.engine.compile.fingerprint import Fingerprint, Fingerprinted
from minions.engine.compile.recipe_step import WrittenStep
from minions.engine.context.agent_context import AgentContext
from minions.engine.history.conversation import LiveConversation
from minions.engine.history.replayable_steps import Replayable
from minions.engine.history.step_rows import StepRows
from minions.engine.step.code_scope import JournalledScope
from minions.engine.step.ending import Ending
from minions.engine.step.work import RecordStart, StepWork, WorkParts


class CodeWork(StepWork):
    """A Python step: its code decides what is called."""

    is_code = True

    def __init__(self, step: PythonStep[object], parts: WorkParts) -> None:
        self._step = step
        self._parts = parts

    @staticmethod
    def tools_of(step: Step[object], context: AgentContext) -> Toolbox:
        """All tools of the run: code calls what it likes."""
        return context.tools

    @staticmethod
    def conversation_of(step: Step[object], context: AgentContext) -> LiveConversation | None:
        """Never: what code asks a model has conversations of its own."""
        return None

    @staticmethod
    def output_of(step: Step[object]) -> OutputInstructions[object] | None:
        """Never: what the code returns is the output."""
        return None

    async def run(self, record_start: RecordStart) -> Ending:
        """Run the code; of a step that takes no time its end is the only row."""
        if not self._step.is_instant:
            await record_start(None)
        parts = self._parts
        scope = JournalledScope(
            parts.view,
            parts.trace,
            options=parts.options,
            model_call_executor_factory=parts.models,
            tool_call_executor_factory=parts.tools,
        )
        return Ending(output=await self._step.run(scope))

    def typed(self, value: JsonValue) -> object:
        """Converted to what the code returns; JSON where it says no type that JSON converts to."""
        hint = None if isinstance(self._step, WrittenStep) else self._step.returned_type
        if value is None or hint is None or hint is object:
            return value
        try:
            return decode(value, cast("type[object]", hint))
        except ValueError:
            return value

    def is_unchanged(self, rows: StepRows) -> bool:
        """Whether its fingerprint is the recorded one; code without one is never unchanged."""
        step = self._step
        try:
            return isinstance(step, Replayable) and step.would_repeat(self._parts.view, rows)
        except MinionsError:  # what it reads is not there any more
            return False

    def is_begun_otherwise(self, rows: StepRows) -> bool:
        """Never: its calls are known by what they ask, so it is run again in any case."""
        return False

    def fingerprint(self) -> Fingerprint:
        """The fingerprint that the step itself gives.

        Raises:
            UsageError: It does not.
        """
        if not isinstance(self._step, Fingerprinted):
            raise UsageError(
                f"Step '{self._step.id}' has no fingerprint: it does not say what it depends on."
            )
        return self._step.fingerprint(self._parts.view)

    def keep_conversation(self, execution: StepExecution[object]) -> None:
        """Code has no conversation of its own."""

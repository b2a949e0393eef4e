"""What a step does when it is executed: it asks a model, or it runs code."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from attrs import frozen

from minions.contracts.call_executors import ModelCallExecutorFactory, ToolCallExecutorFactory
from minions.contracts.calls import ModelOptions
from minions.contracts.executions import StepExecution
from minions.contracts.instructions import OutputInstructions
from minions.contracts.steps import Step
from minions.contracts.tools import Toolbox
from minions.data.json_values import JsonValue
from minions.engine.calls.trace import StepTrace
from minions.engine.compile.fingerprint import Fingerprint
from minions.engine.context.agent_context import AgentContext
from minions.engine.context.step_view import StepView
from minions.engine.history.conversation import LiveConversation
from minions.engine.history.step_rows import StepRows
from minions.engine.step.ending import Ending
from minions.engine.step.opening import Opening

RecordStart: TypeAlias = Callable[[Opening | None], Awaitable[None]]
"""Records that the step begins, with what a model is asked first; None: no model is."""


@frozen(kw_only=True)
class WorkParts:
    """What the work of one execution is done with."""

    view: StepView
    trace: StepTrace
    recorded: StepRows | None
    """The entries that an earlier execution recorded of it; None: there are none."""
    output: OutputInstructions[object] | None
    options: ModelOptions | None
    models: ModelCallExecutorFactory
    tools: ToolCallExecutorFactory


class StepWork(ABC):
    """The work of one execution of a step. `CodeWork` and `ModelWork` are the two kinds."""

    is_code: bool
    """Whether Python code, not a model, decides what is called."""

    @abstractmethod
    def __init__(self, step: Step[object], parts: WorkParts) -> None:
        """Take the step; nothing is done."""

    @property
    def sandbox_name(self) -> str | None:
        """The sandbox that holds its code; None: there is none."""
        return None

    @staticmethod
    @abstractmethod
    def tools_of(step: Step[object], context: AgentContext) -> Toolbox:
        """The tools that the step may call."""

    @staticmethod
    @abstractmethod
    def conversation_of(step: Step[object], context: AgentContext) -> LiveConversation | None:
        """The session's conversation, where the step has part in it."""

    @staticmethod
    @abstractmethod
    def output_of(step: Step[object]) -> OutputInstructions[object] | None:
        """The output that a model has to give; None: none is declared."""

    def typed(self, value: JsonValue) -> object:
        """A recorded output without a declared form, as the step returned it."""
        return value

    @abstractmethod
    async def run(self, record_start: RecordStart) -> Ending:
        """Do it; what an earlier execution left in the middle is continued.

        Raises:
            Exception: Whatever the step's own code raises.
        """

    @abstractmethod
    def is_unchanged(self, rows: StepRows) -> bool:
        """Whether it would do now what these rows say it did. What cannot be known is False."""

    @abstractmethod
    def is_begun_otherwise(self, rows: StepRows) -> bool:
        """Whether it would begin otherwise than these rows do, which have no end."""

    @abstractmethod
    def fingerprint(self) -> Fingerprint:
        """What its output depends on, as far as it can tell.

        Raises:
            MinionsError: It cannot tell.
        """

    @abstractmethod
    def keep_conversation(self, execution: StepExecution[object]) -> None:
        """Share its conversation with later steps, if it shares one."""

"""Executors of one attempt at a model call or a tool call; applications may replace both."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from minions.contracts.calls import (
    ModelCall,
    ModelCallResponse,
    ModelFailure,
    ToolCall,
    ToolCallResponse,
    ToolFailure,
)
from minions.contracts.context import RunContext

if TYPE_CHECKING:
    from returns.result import Result


class ModelCallExecutor(ABC):
    """Executes one attempt at a model call."""

    @abstractmethod
    async def execute(
        self, call: ModelCall, context: RunContext
    ) -> Result[ModelCallResponse, ModelFailure]:
        """Execute one attempt. Retries, memory and the journal are the caller's task.

        Memory is as it was before the first attempt, so every attempt sends an identical prompt.

        Returns:
            The answer, or a failure as a value; only cancellation raises.
        """


class ToolCallExecutor(ABC):
    """Executes one attempt at a tool call."""

    @abstractmethod
    async def execute(
        self, call: ToolCall, context: RunContext
    ) -> Result[ToolCallResponse, ToolFailure]:
        """Execute one attempt. Never raises for an error of the tool;
        cancellation passes through.
        """


ModelCallExecutorFactory: TypeAlias = Callable[[ModelCall, "RunContext"], ModelCallExecutor]
"""Makes the executor of one model call, given the context of the run that it belongs to."""
ToolCallExecutorFactory: TypeAlias = Callable[[ToolCall, "RunContext"], ToolCallExecutor]
"""Makes the executor of one tool call, given the context of the run that it belongs to."""

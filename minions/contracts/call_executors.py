"""Who carries out one attempt at a model call or a tool call: the two that applications replace."""

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

__all__ = [
    "ModelCallExecutor",
    "ModelCallExecutorFactory",
    "ToolCallExecutor",
    "ToolCallExecutorFactory",
]


class ModelCallExecutor(ABC):
    """Carries out one attempt at a model call."""

    @abstractmethod
    async def execute(
        self, call: ModelCall, context: RunContext
    ) -> Result[ModelCallResponse, ModelFailure]:
        """One attempt. Retries, memory and the journal are the caller's.

        Memory is as it was before the first attempt, so every attempt sees an identical prompt.
        """


class ToolCallExecutor(ABC):
    """Carries out one attempt at a tool call."""

    @abstractmethod
    async def execute(
        self, call: ToolCall, context: RunContext
    ) -> Result[ToolCallResponse, ToolFailure]:
        """One attempt. Never raises for what the tool does; cancellation passes through."""


ModelCallExecutorFactory: TypeAlias = Callable[[ModelCall, "RunContext"], ModelCallExecutor]
"""The executor of one model call, in the run that it belongs to."""
ToolCallExecutorFactory: TypeAlias = Callable[[ToolCall, "RunContext"], ToolCallExecutor]
"""The executor of one tool call, in the run that it belongs to."""

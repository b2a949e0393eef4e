"""Errors of agent steps: an unknown agent, a refused request, and a step that failed.

A step that fails gives an error result, a mapping; `AgentStepError` carries it where it is raised.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from minions.data.errors import MinionsError, NotFoundError, UsageError

StepResult: TypeAlias = dict[str, Any]  # Any: an agent's own mapping is its result as it stands
"""The result of an agent step or of a tool call by name: see `AgentStepExecutor`."""


class AgentNotFoundError(NotFoundError):
    """No agent of the registry has this name; `suggestions` holds similar ones."""

    code = "agent-not-found"


class SecurityError(UsageError):
    """A request that must reach no agent: it is too large, or the injection check refused it."""

    code = "request-refused"


class ValidationError(UsageError):
    """A request or arguments that do not fit their schema."""

    code = "bad-request-value"


class AgentStepError(MinionsError):
    """An agent step failed; `result` is its error result.

    `execute_agent_step` raises it with `raise_on_error`, and always to a subclass that calls it
    through `super()`.
    """

    code = "agent-step-failed"

    def __init__(self, result: Mapping[str, object]) -> None:
        super().__init__(str(result.get("error") or "The agent step failed."))
        self.result: StepResult = dict(result)
        """The error result: `error`, `error_type` and the fields of that type."""

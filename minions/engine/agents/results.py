"""Results of agent steps and tool calls as mappings: what agents return, and what failed."""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Final

import attrs

from minions.contracts.agent_errors import (
    AgentNotFoundError,
    AgentStepError,
    SecurityError,
    StepResult,
)
from minions.contracts.executions import AgentExecutionError, RunStatus
from minions.contracts.messages import Message
from minions.data.codec import encode
from minions.data.errors import (
    EnvironmentRefusedError,
    MinionsError,
    ToolError,
    UsageError,
    words_of,
)
from minions.data.failure_categories import FailureCategory
from minions.engine.context.agent_memory import AgentMessage
from minions.engine.services.retry import http_status_of, is_retryable_error


def as_result(value: object) -> StepResult:
    """What an agent returned as a result.

    A mapping as it is; of a message its content, role and metadata; what an object's `dict()` or
    `model_dump()` gives; the fields of an attrs value; of anything else its text as `content`.
    """
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Message):
        metadata = dict(value.metadata) if isinstance(value, AgentMessage) else {}
        return {"content": value.content, "role": value.role.value, "metadata": metadata}
    for name in ("model_dump", "dict"):
        if callable(method := getattr(value, name, None)) and not isinstance(value, type):
            shown = method()
            return dict(shown) if isinstance(shown, Mapping) else {"content": str(shown)}
    if attrs.has(type(value)) and isinstance(fields := encode(value), Mapping):
        return dict(fields)
    return {"content": str(value)}


# --- failures --------------------------------------------------------------------------------

_RUN_ENDS: Final[Mapping[RunStatus, str]] = {
    RunStatus.LIMIT_REACHED: "resource_limit",
    RunStatus.NEEDS_DECISION: "needs_decision",
    RunStatus.CANCELLED: "cancelled",
}
_CATEGORIES: Final[Mapping[str, FailureCategory]] = {
    "agent_not_found": FailureCategory.CONTRACT,
    "tool_not_found": FailureCategory.CONTRACT,
    "tool_error": FailureCategory.TOOL,
    "timeout": FailureCategory.TIMEOUT,
    "resource_limit": FailureCategory.RESOURCE,
    "validation_error": FailureCategory.CONTRACT,
    "security_error": FailureCategory.PERMISSION,
    "needs_decision": FailureCategory.PERMISSION,
    "cancelled": FailureCategory.TERMINAL,
    "environment": FailureCategory.TERMINAL,
    "agent_failed": FailureCategory.TERMINAL,
    "unknown_step": FailureCategory.CONTRACT,
}


_OF_THE_FAILURE: Final = frozenset({"agent_failed", "environment"})
"""Types of errors whose category is that of the failure, where it has one."""


def error_result(
    error: BaseException, agent_name: str, context: Mapping[str, object], *, debug: bool
) -> StepResult:
    """The error result of an agent step that raised.

    Args:
        context: Has the step's `timeout` in seconds.
        debug: Whether the text of an unexpected error is shown.
    """
    for kinds, make in _TABLE:
        if isinstance(error, kinds):
            result = make(error, agent_name, context)
            break
    else:
        result = _internal(error, debug=debug)
    result.setdefault("category", category_of(result, error))
    return result


def category_of(result: Mapping[str, object], error: BaseException | None = None) -> str:
    """The category of a failure: what can be done about it, whatever failed.

    Args:
        error: What was raised; None: nothing, or it is not known.
    """
    kind = str(result.get("error_type"))
    if kind in _OF_THE_FAILURE and (own := _own_category(error)) is not None:
        return own
    return _listed_category(kind, error).value


def _listed_category(kind: str, error: BaseException | None) -> FailureCategory:
    known = _CATEGORIES.get(kind)
    if known is not None or error is None:
        return known or FailureCategory.INTERNAL
    status = http_status_of(error)
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        return FailureCategory.RATE_LIMIT
    if is_retryable_error(error, unless_known=False):
        return FailureCategory.TRANSIENT
    return FailureCategory.INTERNAL if status is None else FailureCategory.TERMINAL


def _own_category(error: BaseException | None) -> str | None:
    """The category that the failure itself has; None: it has none."""
    info = error.result.error if isinstance(error, AgentExecutionError) else None
    found = getattr(info if info is not None else error, "category", None)
    return str(getattr(found, "value", found)) if found is not None else None


def cancelled_result(text: str) -> StepResult:
    """The result of a step that was cancelled because its result is not needed."""
    return {"error": text, "error_type": "cancelled", "category": _CATEGORIES["cancelled"].value}


def _not_found(error: BaseException, agent_name: str, _: Mapping[str, object]) -> StepResult:
    near = list(error.suggestions) if isinstance(error, MinionsError) else []
    return {
        "error": f"Agent '{agent_name}' not found",
        "error_type": "agent_not_found",
        "suggestions": near,
    }


def _timeout(_: BaseException, agent_name: str, context: Mapping[str, object]) -> StepResult:
    return {
        "error": f"Agent '{agent_name}' timed out",
        "error_type": "timeout",
        "timeout_seconds": context.get("timeout", 30),
    }


def _memory(_: BaseException, __: str, ___: Mapping[str, object]) -> StepResult:
    return {
        "error": "Memory limit exceeded",
        "error_type": "resource_limit",
        "memory_usage": peak_memory_bytes(),
    }


def _refusal_result(error: BaseException, _: str, __: Mapping[str, object]) -> StepResult:
    return {"error": _text_of(error), "error_type": "security_error"}


def _run_end(error: BaseException, _: str, __: Mapping[str, object]) -> StepResult:
    """The error of a recipe's run, with what is needed to find it in the journal."""
    if not isinstance(error, AgentExecutionError):
        return _internal(error, debug=False)
    run = error.result
    info = run.error
    return {
        "error": error.message,
        "error_type": _RUN_ENDS.get(run.status, "agent_failed"),
        "code": error.error_code,
        "where": info.where if info is not None else None,
        "suggestions": list(error.suggestions or (info.suggestions if info is not None else ())),
        "run_id": run.run_id,
        "session_id": run.session_id,
        "usage": run.usage.to_json(),
    }


def _environment(error: BaseException, _: str, __: Mapping[str, object]) -> StepResult:
    return {"error": _text_of(error), "error_type": "environment", "code": _code_of(error)}


def _failure_result(error: BaseException, _: str, __: Mapping[str, object]) -> StepResult:
    return {"error": _text_of(error), "error_type": "agent_failed", "code": _code_of(error)}


def _inner(error: BaseException, _: str, __: Mapping[str, object]) -> StepResult:
    """The error result of a step that the agent executed itself."""
    return dict(error.result) if isinstance(error, AgentStepError) else {}


def _invalid(error: BaseException, _: str, __: Mapping[str, object]) -> StepResult:
    return {"error": _text_of(error), "error_type": "validation_error"}


def _tool(error: BaseException, _: str, __: Mapping[str, object]) -> StepResult:
    return {"error": _text_of(error), "error_type": "tool_error"}


def _internal(error: BaseException, *, debug: bool) -> StepResult:
    if type(error).__name__ == "ValidationError":  # of whichever library
        return _invalid(error, "", {})
    return {
        "error": "Internal execution error",
        "error_type": "internal_error",
        "details": words_of(error) if debug else None,
    }


_TABLE: Final[
    Sequence[
        tuple[type[BaseException], Callable[[BaseException, str, Mapping[str, object]], StepResult]]
    ]
] = (
    (AgentNotFoundError, _not_found),
    (SecurityError, _refusal_result),
    (AgentExecutionError, _run_end),
    (UsageError, _invalid),
    (ToolError, _tool),
    (EnvironmentRefusedError, _environment),
    (AgentStepError, _inner),
    (MinionsError, _failure_result),
    (TimeoutError, _timeout),
    (MemoryError, _memory),
)
"""The first class that fits decides; the order is from the narrowest on."""


def _code_of(error: BaseException) -> str | None:
    return error.error_code if isinstance(error, MinionsError) else None


def _text_of(error: BaseException) -> str:
    return error.message if isinstance(error, MinionsError) else words_of(error)


def peak_memory_bytes() -> int:
    """The most memory that the process had so far, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024

"""Conversations: their messages, branches, hooks and what a model is shown of them.

Each name is imported when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from minions._lazy import home_of, lazy_names

if TYPE_CHECKING:
    from minions.contracts.instructions import HistoryStrategy, HistoryWindow
    from minions.contracts.session_views import AgentHooks, Session, SessionStep, StepMetrics
    from minions.engine.sessions.runner import fork_session, retry_from_sequence
    from minions.engine.sessions.session_context import (
        build_context_from_sequence_range,
        build_context_from_steps,
        get_context_summary,
        messages_from_context,
        validate_context,
    )


__all__ = [
    "AgentHooks",
    "HistoryStrategy",
    "HistoryWindow",
    "Session",
    "SessionStep",
    "StepMetrics",
    "build_context_from_sequence_range",
    "build_context_from_steps",
    "fork_session",
    "get_context_summary",
    "messages_from_context",
    "retry_from_sequence",
    "validate_context",
]

_HOMES: Final = {
    "minions.contracts.instructions": (
        "HistoryStrategy",
        "HistoryWindow",
    ),
    "minions.contracts.session_views": (
        "AgentHooks",
        "Session",
        "SessionStep",
        "StepMetrics",
    ),
    "minions.engine.sessions.session_context": (
        "build_context_from_sequence_range",
        "build_context_from_steps",
        "get_context_summary",
        "messages_from_context",
        "validate_context",
    ),
    "minions.engine.sessions.runner": (
        "fork_session",
        "retry_from_sequence",
    ),
}
_HOME_OF: Final = home_of(_HOMES)

if not TYPE_CHECKING:  # a checker shall find a misspelled name
    __getattr__, __dir__ = lazy_names(__name__, _HOME_OF)

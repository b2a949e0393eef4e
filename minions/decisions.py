"""Decisions of a person about a waiting run: approvals, answers, calls in doubt.

Each name is imported when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from minions._lazy import home_of, lazy_names

if TYPE_CHECKING:
    from minions.contracts.decision_types import (
        ApprovalClass,
        ApprovalRequest,
        Decider,
        Deny,
        NoAnswer,
        Question,
        Rejection,
        Verdict,
    )
    from minions.contracts.plan_diffs import PlanDiff, PlanProposal
    from minions.contracts.waiting import OnWaiting, RunWait
    from minions.engine.calls.inbox import InboxItem, ItemKind
    from minions.engine.calls.pending_decisions import PendingDecision


__all__ = [
    "ApprovalClass",
    "ApprovalRequest",
    "Decider",
    "Deny",
    "InboxItem",
    "ItemKind",
    "NoAnswer",
    "OnWaiting",
    "PendingDecision",
    "PlanDiff",
    "PlanProposal",
    "Question",
    "Rejection",
    "RunWait",
    "Verdict",
]

_HOMES: Final = {
    "minions.contracts.decision_types": (
        "ApprovalClass",
        "ApprovalRequest",
        "Decider",
        "Deny",
        "Question",
        "NoAnswer",
        "Rejection",
        "Verdict",
    ),
    "minions.contracts.plan_diffs": ("PlanDiff", "PlanProposal"),
    "minions.contracts.waiting": ("OnWaiting", "RunWait"),
    "minions.engine.calls.inbox": ("InboxItem", "ItemKind"),
    "minions.engine.calls.pending_decisions": ("PendingDecision",),
}
_HOME_OF: Final = home_of(_HOMES)

if not TYPE_CHECKING:  # a checker shall find a misspelled name
    __getattr__, __dir__ = lazy_names(__name__, _HOME_OF)

"""What a person is shown of a decision that waits."""

from __future__ import annotations

import pytest

from minions.contracts.journal.facts import DecisionWaiting
from minions.engine.calls.pending_decisions import PendingDecision, shortened


@pytest.mark.parametrize(
    ("length", "shown"),
    [(0, ""), (200, "x" * 200), (201, f"{'x' * 200}… 1 more characters")],
)
def test_arguments_are_shown_up_to_200_characters(length: int, shown: str) -> None:
    assert shortened("x" * length) == shown


def test_only_an_approval_has_a_digest() -> None:
    question = DecisionWaiting(step_id="q", what="answer", question="How?")
    approval = DecisionWaiting(step_id="p", what="approval", tool="pay", arguments="{}")
    assert PendingDecision(key="q/1/0/ask", fact=question).digest is None
    assert PendingDecision(key="p/1/0/tool/1/0", fact=approval).digest is not None

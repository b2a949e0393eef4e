"""How a step that did not complete ended, and whether a resume begins it again."""

from __future__ import annotations

import pytest

from minions.contracts.executions import StepStatus
from minions.data.errors import FailureInfo
from minions.engine.step.work import all_waiting, end_status, step_over


@pytest.mark.parametrize(
    ("code", "state", "status"),
    [
        (None, "finished", StepStatus.COMPLETED),
        ("tool-failed", "failed", StepStatus.FAILED),
        ("cancelled", "interrupted", StepStatus.FAILED),
        ("limit-reached", "interrupted", StepStatus.FAILED),
        ("needs-decision", "interrupted", StepStatus.IN_PROGRESS),
    ],
)
def test_what_was_cut_off_from_outside_has_no_end_of_its_own(
    code: str | None, state: str, status: StepStatus
) -> None:
    error = None if code is None else FailureInfo(code=code, message="It was.")
    fact = step_over(error, step_id="a", duration_ms=1.0)
    assert (fact.state, fact.status) == (state, status.value)
    assert end_status(error) is status


def test_what_several_steps_wait_for_is_a_line_and_a_command_each() -> None:
    errors = [
        FailureInfo(code="needs-decision", message=name, suggestions=(f"approve {name}",))
        for name in "ab"
    ]
    assert all_waiting(errors) == FailureInfo(
        code="needs-decision", message="a\nb", suggestions=("approve a", "approve b")
    )

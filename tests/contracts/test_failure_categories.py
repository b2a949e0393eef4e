"""The category of a failure."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from minions.contracts.calls import ModelFailure, ToolFailure
from minions.contracts.instructions import OutputFailure
from minions.data.errors import FailureInfo
from minions.data.failure_categories import (
    CATEGORY_OF,
    FailureCategory,
    category_of,
    is_outage,
)
from minions.engine.history.event_stream import error_document
from minions.engine.history.recorded_calls import recorded_error

WORDS = Path(__file__).parents[2] / "docs" / "reference" / "errors.yaml"


def test_every_code_of_a_failure_has_one_category() -> None:
    """If this fails: add the code to `data/failure_categories.py`."""
    groups: dict[str, dict[str, str]] = yaml.safe_load(WORDS.read_text("utf-8"))
    codes = [
        code
        for group in groups.values()
        for code, words in group.items()
        if not words.startswith("Warning:")
    ]
    assert sorted(CATEGORY_OF) == sorted(codes)


@pytest.mark.parametrize(
    ("code", "category"),
    [
        ("model-unreachable", "transient"),
        ("rate-limited", "rate_limit"),
        ("step-timeout", "timeout"),
        ("resource-limit", "resource"),
        ("invalid-output", "contract"),
        ("http-503", "tool"),
        ("approval-denied", "permission"),
        ("refused", "refusal"),
        ("no-key", "terminal"),
        ("step-raised", "internal"),
    ],
)
def test_a_code_says_its_category(code: str, category: str) -> None:
    assert FailureInfo(code=code, message="").category == category
    assert category_of(code) == category


def test_a_code_of_ones_own_has_the_category_of_its_value_for_good() -> None:
    tool = ToolFailure(code="no-stock", message="None left.")
    model = ModelFailure(code="warming-up", message="Soon.", is_retryable=True)
    broken = ModelFailure(code="broken", message="Never.")
    assert tool.category == FailureCategory.TOOL
    assert model.category == FailureCategory.TRANSIENT
    assert broken.category == FailureCategory.TERMINAL
    for failure in (tool, model, broken):
        info = failure.info()
        assert info.category == failure.category
        assert recorded_error(info.to_json()).category == failure.category


def test_rows_hold_a_category_only_where_the_code_does_not_say_it() -> None:
    listed = ToolFailure(code="tool-failed", message="It broke.").info()
    assert listed.to_json() == {"code": "tool-failed", "message": "It broke.", "where": None}
    assert listed.to_document()["category"] == "tool"
    own = ToolFailure(code="no-stock", message="None left.").info()
    assert own.to_json()["category"] == "tool"


def test_a_category_of_a_newer_version_is_none_of_ours() -> None:
    row = {"code": "odd", "message": "Odd.", "category": "cosmic"}
    assert recorded_error(row).category == FailureCategory.TERMINAL


def test_a_mismatch_of_the_output_is_about_the_contract() -> None:
    assert OutputFailure(message="No.").category == FailureCategory.CONTRACT


def test_events_carry_the_category() -> None:
    error = error_document({"code": "tool-timeout", "message": "Late.", "where": None})
    assert error is not None
    assert error["category"] == "timeout"
    assert error_document(None) is None


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        *((code, True) for code in ("model-unavailable", "rate-limited", "model-timeout")),
        *((code, True) for code in ("quota-exhausted", "auth-rejected", "malformed-response")),
        *((code, False) for code in ("invalid-output", "refused", "output-truncated")),
        *((code, False) for code in ("tool-failed", "bad-request", "assertion-failed")),
    ],
)
def test_failures_of_a_server_are_told_from_those_of_an_answer(code: str, expected: bool) -> None:
    """A-142."""
    assert is_outage(code, category_of(code)) is expected
    assert is_outage("of-an-application", FailureCategory.TRANSIENT)

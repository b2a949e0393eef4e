"""How much a server may send before its connection ends."""

from __future__ import annotations

import pytest

from minions.adapters.tools.mcp.mcp_failures import (
    Inflow,
    count_signs,
    too_many_parts,
    too_many_values,
)
from minions.testing.virtual_time import FakeClock

MIB = 1_048_576


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def inflow(clock: FakeClock) -> Inflow:
    return Inflow(clock.monotonic)


def taken(inflow: Inflow, most: int = 10_000) -> int:
    """How many messages are taken now, one after the other."""
    for number in range(most):
        if (said := inflow.message()) is not None:
            assert said == "sent more than 2,000 messages, and more than 500 a second"
            inflow.asked()  # the one that was too many
            return number
    return most


def test_many_messages_may_come_at_once_and_fewer_for_long(
    inflow: Inflow, clock: FakeClock
) -> None:
    assert taken(inflow) == 2_000
    clock.advance(1)
    assert taken(inflow) == 500
    assert taken(inflow) == 0
    clock.advance(0.5)
    assert taken(inflow) == 250
    clock.advance(3_600)
    assert taken(inflow) == 2_000


def test_what_was_asked_for_counts_with_no_other(inflow: Inflow) -> None:
    for _ in range(100):
        inflow.asked()
    assert taken(inflow) == 2_000  # nothing is saved up
    for _ in range(100):
        inflow.asked()
    assert taken(inflow) == 100


def test_lines_that_are_no_messages_are_borne_twenty_times(inflow: Inflow) -> None:
    assert inflow.told_garbage() is None
    assert [inflow.garbage(f"line {number}") for number in range(20)] == [None] * 20
    words = "wrote what is no message of the protocol to its standard output: 'line 0'"
    assert inflow.told_garbage() == words
    assert inflow.garbage("line 20") == words


def test_a_large_message_holds_few_values() -> None:
    assert count_signs(b'[{"a": [1, 2]}, 3]') == 5
    assert too_many_values(MIB, 1_000_000) is None
    assert too_many_values(MIB + 1, 60_000) is None
    assert too_many_values(2 * MIB, 60_001) is not None
    assert too_many_values(MIB + 1, 60_001) is not None


@pytest.mark.parametrize("key", ["content", "tools"])
def test_a_result_has_few_parts(key: str) -> None:
    assert too_many_parts({key: [1] * 500}) is None
    assert too_many_parts({key: [1] * 501}) == f"sent a message with more than 500 items of '{key}'"
    assert too_many_parts({key: "x" * 501, "other": [1] * 501}) is None

from __future__ import annotations

from typing import Final

from hypothesis import given
from hypothesis import strategies as st

from minions.contracts.flow import CircuitState
from minions.engine.services.flow.endpoint_limiter import CircuitBreaker, CircuitConfig

CONFIG: Final = CircuitConfig(failures=3, first_s=5.0, longest_s=20.0)


def opened(now: float = 0.0) -> CircuitBreaker:
    circuit = CircuitBreaker(CONFIG)
    for _ in range(CONFIG.failures):
        circuit.failed(now, is_probe=False)
    return circuit


def test_failures_in_a_row_open_it_and_an_answer_begins_the_count_again() -> None:
    circuit = CircuitBreaker(CONFIG)
    for _ in range(10):
        circuit.failed(0.0, is_probe=False)
        circuit.failed(0.0, is_probe=False)
        circuit.answered()
    assert circuit.state(0.0) is CircuitState.CLOSED
    assert opened().state(0.0) is CircuitState.OPEN
    assert not opened().may_begin(4.9)


def test_after_a_while_one_call_and_no_second_one_may_try() -> None:
    circuit = opened()
    assert circuit.state(5.0) is CircuitState.HALF_OPEN
    assert circuit.may_begin(5.0)
    assert circuit.begin()
    assert not circuit.may_begin(1_000.0)


def test_an_answer_closes_it_and_the_next_pause_is_the_first_one_again() -> None:
    circuit = opened()
    circuit.begin()
    circuit.answered()
    assert circuit.state(5.0) is CircuitState.CLOSED
    for _ in range(3):
        circuit.failed(6.0, is_probe=False)
    assert circuit.open_for_s(6.0) == 5.0


def test_each_probe_that_fails_doubles_the_pause_up_to_the_longest() -> None:
    circuit, now, pauses = opened(), 5.0, []
    for _ in range(4):
        circuit.begin()
        circuit.failed(now, is_probe=True)
        pauses.append(circuit.open_for_s(now))
        now += pauses[-1]
    assert pauses == [10.0, 20.0, 20.0, 20.0]


def test_where_the_probe_was_cut_off_another_call_is_the_probe() -> None:
    circuit = opened()
    circuit.begin()
    circuit.abandoned(is_probe=True)
    assert circuit.may_begin(5.0)


def test_failures_of_calls_that_were_under_way_do_not_make_the_pause_longer() -> None:
    circuit = opened()
    circuit.failed(3.0, is_probe=False)
    assert circuit.open_for_s(3.0) == 2.0


EVENTS: Final = st.lists(
    st.tuples(st.sampled_from(("begin", "answered", "failed", "cut")), st.floats(0, 9)),
    max_size=200,
)


@given(EVENTS)
def test_there_is_never_more_than_one_probe_and_never_a_call_while_it_is_open(
    events: list[tuple[str, float]],
) -> None:
    circuit, now = CircuitBreaker(CONFIG), 0.0
    in_flight: list[bool] = []
    for event, gap in events:
        now += gap
        if event == "begin":
            if circuit.may_begin(now):
                assert circuit.state(now) is not CircuitState.OPEN
                in_flight.append(circuit.begin())
        elif in_flight:
            is_probe = in_flight.pop()
            if event == "answered":
                circuit.answered()
                in_flight = [False] * len(in_flight)  # closed: nobody is a probe any more
            elif event == "failed":
                circuit.failed(now, is_probe=is_probe)
            else:
                circuit.abandoned(is_probe=is_probe)
        assert sum(in_flight) <= 1
        assert circuit.open_for_s(now) <= CONFIG.longest_s + 1e-9  # sums of seconds are rounded

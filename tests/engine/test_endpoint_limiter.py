from __future__ import annotations

import math
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minions.contracts.calls import ModelCallResponse, ModelFailure
from minions.contracts.errors import UNREACHABLE
from minions.contracts.flow import CircuitState
from minions.contracts.messages import TokenUsage, assistant
from minions.contracts.model_endpoints import Allowance, EndpointLimits, RateLimits
from minions.engine.services.flow.circuit import CircuitConfig
from minions.engine.services.flow.endpoint_limiter import (
    CallEnd,
    EndpointLimiter,
    Judgement,
    Ticket,
    end_of,
)

ANSWERED: Final = CallEnd(judgement=Judgement.ANSWERED)
FAILED: Final = CallEnd(judgement=Judgement.FAILED)
LIMITED: Final = CallEnd(judgement=Judgement.LIMITED)


def limiter_of(
    concurrency: int | None = None,
    *,
    requests: int | None = None,
    tokens: int | None = None,
    failures: int = 3,
) -> EndpointLimiter:
    limits = EndpointLimits(
        max_concurrency=concurrency, requests_per_minute=requests, tokens_per_minute=tokens
    )
    return EndpointLimiter(limits, CircuitConfig(failures=failures))


def begun(limiter: EndpointLimiter, count: int, now: float = 0.0) -> list[Ticket]:
    return [limiter.begin(now, 0) for _ in range(count)]


def remaining(left: int, reset_s: float) -> CallEnd:
    limits = RateLimits(requests=Allowance(left, reset_s))
    return CallEnd(judgement=Judgement.ANSWERED, rate_limits=limits)


def test_the_last_place_is_free_again_when_a_call_has_ended() -> None:
    limiter = limiter_of(2)
    first, _ = begun(limiter, 2)
    assert limiter.free_at(0.0, 0) == math.inf
    limiter.end(first, 1.0, ANSWERED, 0.0)
    assert limiter.free_at(1.0, 0) == 1.0


def test_of_two_models_of_one_server_the_stricter_limits_count() -> None:
    limiter = limiter_of(8)
    limiter.tighten(EndpointLimits(max_concurrency=1))
    limiter.tighten(EndpointLimits(max_concurrency=5, requests_per_minute=9))
    begun(limiter, 1)
    assert limiter.free_at(0.0, 0) == math.inf
    assert limiter.limits == EndpointLimits(max_concurrency=1, requests_per_minute=9)


def test_a_429_holds_back_every_call_for_as_long_as_it_asks_and_a_little_more() -> None:
    limiter = limiter_of()
    (ticket,) = begun(limiter, 1)
    limiter.end(ticket, 10.0, CallEnd(judgement=Judgement.LIMITED, retry_after_s=4.0), 0.5)
    assert limiter.held_s(10.0) == pytest.approx(4.2)
    assert limiter.free_at(10.0, 0) == pytest.approx(14.2)


def test_429s_without_a_time_hold_back_for_longer_each_time_they_come_in_a_row() -> None:
    limiter, now, pauses = limiter_of(), 0.0, []
    for _ in range(8):
        (ticket,) = begun(limiter, 1, now)
        limiter.end(ticket, now, LIMITED, 0.5)
        pauses.append(limiter.held_s(now))
        now += pauses[-1]
    assert pauses == pytest.approx([1, 2, 4, 8, 16, 32, 60, 60])


def test_429s_of_calls_that_were_sent_together_count_once() -> None:
    limiter = limiter_of()
    for ticket in begun(limiter, 20):
        limiter.end(ticket, 1.0, LIMITED, 0.5)
    assert limiter.held_s(1.0) == pytest.approx(1.0)


def test_after_a_429_half_as_many_calls_begin_together_and_then_more_with_each_answer() -> None:
    limiter, together = limiter_of(), []
    for ticket in begun(limiter, 16):
        limiter.end(ticket, 0.0, LIMITED, 0.0)
    now = 100.0
    for _ in range(4):
        tickets: list[Ticket] = []
        while limiter.free_at(now, 0) == now and len(tickets) < 40:
            tickets += begun(limiter, 1, now)
        together.append(len(tickets))
        for ticket in tickets:
            limiter.end(ticket, now, ANSWERED, 0.0)
    assert together == [8, 40, 40, 40]  # 8 answers: as many as ever were together, so no limit


def test_a_server_that_says_it_takes_no_more_is_left_alone_until_it_does() -> None:
    limiter = limiter_of()
    (ticket,) = begun(limiter, 1)
    limiter.end(ticket, 10.0, remaining(0, 7.0), 0.0)
    assert limiter.free_at(10.0, 0) == 17.0
    assert limiter.free_at(17.0, 0) == 17.0


def test_what_is_left_of_an_allowance_is_used_up_by_calls_that_it_did_not_count() -> None:
    limiter = limiter_of()
    first, *_ = begun(limiter, 3)
    limiter.end(first, 10.0, remaining(4, 7.0), 0.0)  # two others are under way
    begun(limiter, 2, 10.0)
    assert limiter.free_at(10.0, 0) == 17.0


def test_a_header_about_a_whole_day_holds_for_a_minute_at_most() -> None:
    limiter = limiter_of()
    (ticket,) = begun(limiter, 1)
    limiter.end(ticket, 0.0, remaining(0, 86_400.0), 0.0)
    assert limiter.free_at(0.0, 0) == 60.0


def test_tokens_are_set_aside_by_estimate_and_counted_by_what_was_used() -> None:
    limiter = limiter_of(tokens=1_000)
    ticket = limiter.begin(0.0, 900)
    assert limiter.free_at(1.0, 200) > 60
    limiter.end(ticket, 1.0, CallEnd(judgement=Judgement.ANSWERED, tokens=100), 0.0)
    assert limiter.free_at(1.0, 200) == 1.0


@pytest.mark.parametrize(
    ("failure", "judgement"),
    [
        (ModelFailure(code=UNREACHABLE, message=""), Judgement.FAILED),
        (ModelFailure(code="stream-interrupted", message=""), Judgement.FAILED),
        (ModelFailure(code="model-unavailable", message="", status=503), Judgement.FAILED),
        (ModelFailure(code="model-unavailable", message=""), Judgement.FAILED),
        (ModelFailure(code="model-unavailable", message="", status=409), Judgement.ANSWERED),
        (ModelFailure(code="rate-limited", message="", status=429), Judgement.LIMITED),
        (ModelFailure(code="auth-rejected", message="", status=401), Judgement.ANSWERED),
        (ModelFailure(code="refused", message=""), Judgement.ANSWERED),
        (ModelFailure(code="model-timeout", message=""), Judgement.UNKNOWN),
    ],
)
def test_only_what_is_the_servers_own_fault_counts_as_its_failure(
    failure: ModelFailure, judgement: Judgement
) -> None:
    assert end_of(failure).judgement is judgement


def test_an_answer_tells_its_tokens_and_a_cut_off_call_tells_nothing() -> None:
    usage = TokenUsage(input_tokens=3, output_tokens=4)
    end = end_of(ModelCallResponse(message=assistant("yes"), usage=usage))
    assert (end.judgement, end.tokens) == (Judgement.ANSWERED, 7)
    assert end_of(None).judgement is Judgement.UNKNOWN


def test_a_rate_limit_closes_the_circuit_for_the_server_answers() -> None:
    limiter = limiter_of(failures=2)
    for ticket in begun(limiter, 2):
        limiter.end(ticket, 0.0, FAILED, 0.0)
    assert limiter.circuit.state(0.0) is CircuitState.OPEN
    (probe,) = begun(limiter, 1, 5.0)
    limiter.end(probe, 5.0, LIMITED, 0.0)
    assert limiter.circuit.state(5.0) is CircuitState.CLOSED


ENDS: Final = st.sampled_from(
    (
        ANSWERED,
        FAILED,
        LIMITED,
        CallEnd(judgement=Judgement.UNKNOWN),
        CallEnd(judgement=Judgement.LIMITED, retry_after_s=3.0),
        CallEnd(judgement=Judgement.FAILED, retry_after_s=2.0),
        remaining(0, 5.0),
        remaining(2, 5.0),
    )
)
STORY: Final = st.lists(
    st.tuples(st.booleans(), st.floats(0, 5), ENDS, st.floats(0, 0.99)), max_size=150
)


@given(most=st.integers(1, 6), rate=st.integers(1, 20), story=STORY)
def test_its_limits_hold_in_every_story_and_after_all_calls_have_ended_it_is_free_in_the_end(
    most: int, rate: int, story: list[tuple[bool, float, CallEnd, float]]
) -> None:
    limiter, now = limiter_of(most, requests=rate), 0.0
    in_flight: list[Ticket] = []
    begins: list[float] = []
    for starts, gap, end, random in story:
        now += gap
        if starts and limiter.free_at(now, 1) <= now:
            in_flight.append(limiter.begin(now, 1))
            begins.append(now)
        elif in_flight:
            limiter.end(in_flight.pop(0), now, end, random)
        assert limiter.in_flight == len(in_flight) <= most
    for begin in begins:
        assert sum(begin <= other < begin + 60 for other in begins) <= rate
    for ticket in in_flight:
        limiter.end(ticket, now, ANSWERED, 0.0)
    free_at = limiter.free_at(now, 1)
    assert free_at < now + 200
    while free_at > now:  # one reason to wait may follow another
        now, free_at = free_at, limiter.free_at(free_at, 1)

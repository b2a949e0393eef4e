from __future__ import annotations

import itertools
import math
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minions.contracts.calls import ModelCallResponse, ModelFailure
from minions.contracts.flow import CallAsk, CircuitState
from minions.contracts.messages import TokenUsage, assistant
from minions.contracts.model_endpoints import Allowance, EndpointLimits, ModelEndpoint, RateLimits
from minions.data.errors import UNREACHABLE
from minions.engine.services.flow.endpoint_limiter import (
    CallEnd,
    CircuitConfig,
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


ENDPOINT: Final = ModelEndpoint(origin="http://h")


def begin_at(limiter: EndpointLimiter, now: float, tokens: int = 0) -> Ticket:
    asked = CallAsk(endpoint=ENDPOINT, model="p/m")
    return limiter.begin(now, limiter.pace("p/m", now), asked, tokens)


def free_at(limiter: EndpointLimiter, now: float, tokens: int = 0) -> float:
    pace = limiter.pace("p/m", now)
    return max(limiter.free_at(now, tokens), pace.free_at(now, tokens))


def begun(limiter: EndpointLimiter, count: int, now: float = 0.0) -> list[Ticket]:
    return [begin_at(limiter, now) for _ in range(count)]


def remaining(left: int, reset_s: float) -> CallEnd:
    limits = RateLimits(requests=Allowance(left, reset_s))
    return CallEnd(judgement=Judgement.ANSWERED, rate_limits=limits)


def test_the_last_place_is_free_again_when_a_call_has_ended() -> None:
    limiter = limiter_of(2)
    first, _ = begun(limiter, 2)
    assert free_at(limiter, 0.0) == math.inf
    limiter.end(first, 1.0, ANSWERED, 0.0)
    assert free_at(limiter, 1.0) == 1.0


def test_of_two_models_of_one_server_the_stricter_limits_count() -> None:
    limiter = limiter_of(8)
    limiter.tighten(EndpointLimits(max_concurrency=1))
    limiter.tighten(EndpointLimits(max_concurrency=5, requests_per_minute=9))
    begun(limiter, 1)
    assert free_at(limiter, 0.0) == math.inf
    assert limiter.limits == EndpointLimits(max_concurrency=1, requests_per_minute=9)


def test_a_429_holds_back_every_call_for_as_long_as_it_asks_and_a_little_more() -> None:
    limiter = limiter_of()
    (ticket,) = begun(limiter, 1)
    limiter.end(ticket, 10.0, CallEnd(judgement=Judgement.LIMITED, retry_after_s=4.0), 0.5)
    assert limiter.held_s(10.0) == pytest.approx(4.2)
    assert free_at(limiter, 10.0) == pytest.approx(14.2)


def test_a_server_that_refuses_everything_is_asked_by_one_call_and_less_often_with_time() -> None:
    limiter, now, pauses = limiter_of(), 0.0, []
    for number in range(200):
        (ticket,) = begun(limiter, 1, now)
        assert number == 0 or free_at(limiter, now) > now
        limiter.end(ticket, now + 0.01, LIMITED, 0.5)
        pauses.append(limiter.held_s(now + 0.01))
        now = free_at(limiter, now + 0.01)
    assert pauses[0] == pytest.approx(0.5)
    assert all(after > before - 0.001 for before, after in itertools.pairwise(pauses))
    assert pauses[-1] == pytest.approx(30.0)


def test_a_429_beside_other_calls_leaves_a_tenth_fewer_and_holds_back_nobody() -> None:
    limiter = limiter_of()
    first, *others = begun(limiter, 20)
    limiter.end(first, 1.0, LIMITED, 0.5)
    assert limiter.held_s(1.0) == 0.0
    for ticket in others[:2]:
        limiter.end(ticket, 1.0, CallEnd(judgement=Judgement.UNKNOWN), 0.0)
    begun(limiter, 1, 1.0)
    assert free_at(limiter, 1.0) > 1.0  # eighteen


def test_as_many_calls_go_together_as_were_not_refused_and_then_one_more_now_and_then() -> None:
    limiter = limiter_of()
    tickets = begun(limiter, 60)
    for ticket in tickets[4:]:
        limiter.end(ticket, 0.1, LIMITED, 0.0)
    tried = []
    for now in range(1, 60):  # each second four answers, and four places
        for ticket in tickets[:4]:
            limiter.end(ticket, now, ANSWERED, 0.0)
        tickets = [begin_at(limiter, now) for _ in range(4)]
        at = free_at(limiter, now)
        if now <= at < now + 1:
            tried.append(now)
            limiter.end(begin_at(limiter, at), at + 0.01, LIMITED, 0.0)
    assert 3 <= len(tried) <= 20
    gaps = [after - before for before, after in itertools.pairwise(tried)]
    assert gaps[-1] >= 2 * gaps[0]


def test_calls_after_a_429_that_others_of_ours_explain_cost_no_attempt() -> None:
    limiter = limiter_of()
    alone = begin_at(limiter, 0.0)
    assert limiter.end(alone, 0.1, LIMITED, 0.0) is None
    first, _ = begun(limiter, 2, 200.0)
    assert limiter.end(first, 200.1, LIMITED, 0.0) == pytest.approx(0.25)
    asks_for_time = CallEnd(judgement=Judgement.LIMITED, retry_after_s=7.0)
    assert limiter.end(begin_at(limiter, 200.2), 200.3, asks_for_time, 0.0) == 7.0
    never = CallEnd(judgement=Judgement.LIMITED, may_pass=False)
    assert limiter.end(begin_at(limiter, 210.0), 210.1, never, 0.0) is None


def test_a_call_that_is_refused_while_others_are_taken_is_refused_for_a_reason_of_its_own() -> None:
    limiter = limiter_of()
    pace = limiter.pace("p/m", 0.0)
    asked = CallAsk(endpoint=ENDPOINT, model="p/m")
    others = begun(limiter, 3)
    assert limiter.end(limiter.begin(0.0, pace, asked, 0), 0.1, LIMITED, 0.0) is not None
    for ticket in (*others, *begun(limiter, 30, 1.0)):
        limiter.end(ticket, 2.0, ANSWERED, 0.0)
    width_before = pace.free_at(2.0, 0)
    assert limiter.end(limiter.begin(2.0, pace, asked, 0), 2.1, LIMITED, 0.0) is None
    assert (pace.free_at(2.0, 0), limiter.held_s(2.1)) == (width_before, 0.0)


def test_retry_after_wins_over_what_the_headers_say_is_left() -> None:
    limiter = limiter_of()
    ends = RateLimits(requests=Allowance(0, 60.0))
    both = CallEnd(judgement=Judgement.LIMITED, retry_after_s=1.0, rate_limits=ends)
    limiter.end(begin_at(limiter, 0.0), 0.0, both, 0.0)
    assert free_at(limiter, 0.0) == free_at(limiter, 1.0) == 1.0


def test_an_allowance_that_fills_up_gives_one_call_after_another() -> None:
    limiter = limiter_of()
    limits = RateLimits(requests=Allowance(0, 60.0, 0.5))
    end = CallEnd(judgement=Judgement.ANSWERED, rate_limits=limits)
    limiter.end(begin_at(limiter, 0.0), 0.0, end, 0.0)
    assert free_at(limiter, 0.0) == 2.0
    begin_at(limiter, 2.0)
    assert free_at(limiter, 2.0) == 4.0


def test_a_server_that_says_it_takes_no_more_is_left_alone_until_it_does() -> None:
    limiter = limiter_of()
    (ticket,) = begun(limiter, 1)
    limiter.end(ticket, 10.0, remaining(0, 7.0), 0.0)
    assert free_at(limiter, 10.0) == 17.0
    assert free_at(limiter, 17.0) == 17.0


def test_what_is_left_of_an_allowance_is_used_up_by_calls_that_it_did_not_count() -> None:
    limiter = limiter_of()
    first, *_ = begun(limiter, 3)
    limiter.end(first, 10.0, remaining(4, 7.0), 0.0)  # two others are under way
    begun(limiter, 2, 10.0)
    assert free_at(limiter, 10.0) == 17.0


def test_a_header_about_a_whole_day_holds_for_a_minute_at_most() -> None:
    limiter = limiter_of()
    (ticket,) = begun(limiter, 1)
    limiter.end(ticket, 0.0, remaining(0, 86_400.0), 0.0)
    assert free_at(limiter, 0.0) == 60.0


def test_tokens_are_set_aside_by_estimate_and_counted_by_what_was_used() -> None:
    limiter = limiter_of(tokens=1_000)
    ticket = begin_at(limiter, 0.0, 900)
    assert free_at(limiter, 1.0, 200) > 60
    limiter.end(ticket, 1.0, CallEnd(judgement=Judgement.ANSWERED, tokens=100), 0.0)
    assert free_at(limiter, 1.0, 200) == 1.0


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
        if starts and free_at(limiter, now, 1) <= now:
            in_flight.append(begin_at(limiter, now, 1))
            begins.append(now)
        elif in_flight:
            limiter.end(in_flight.pop(0), now, end, random)
        assert limiter.in_flight == len(in_flight) <= most
    for begin in begins:
        assert sum(begin <= other < begin + 60 for other in begins) <= rate
    for ticket in in_flight:
        limiter.end(ticket, now, ANSWERED, 0.0)
    until = free_at(limiter, now, 1)
    assert until < now + 200
    while until > now:  # one reason to wait may follow another
        now, until = until, free_at(limiter, until, 1)

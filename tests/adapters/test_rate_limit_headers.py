from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minions.adapters.models.rate_limit_headers import rate_limits_of
from minions.contracts.model_endpoints import Allowance, RateLimits

NOW: Final = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def read(**headers: str) -> RateLimits | None:
    return rate_limits_of(
        {name.replace("_", "-"): text for name, text in headers.items()}, lambda: NOW
    )


def test_openais_headers_are_read() -> None:
    assert read(
        x_ratelimit_limit_requests="60",
        x_ratelimit_remaining_requests="59",
        x_ratelimit_reset_requests="1s",
        x_ratelimit_limit_tokens="150344",
        x_ratelimit_remaining_tokens="149984",
        x_ratelimit_reset_tokens="6m0s",
    ) == RateLimits(requests=Allowance(59, 1.0, 1.0), tokens=Allowance(149_984, 360.0, 1.0))


def test_anthropics_headers_are_read() -> None:
    assert read(
        anthropic_ratelimit_requests_limit="50",
        anthropic_ratelimit_requests_remaining="0",
        anthropic_ratelimit_requests_reset="2026-01-02T03:04:15Z",
        anthropic_ratelimit_input_tokens_limit="2400",
        anthropic_ratelimit_input_tokens_remaining="2000",
        anthropic_ratelimit_input_tokens_reset="2026-01-02T03:04:06Z",
    ) == RateLimits(requests=Allowance(0, 10.0, 5.0), tokens=Allowance(2_000, 1.0, 400.0))


def test_the_time_to_a_full_bucket_is_not_the_time_to_the_next_request() -> None:
    """A bucket of 60 that is full in a minute gives one request each second (A-156)."""
    said = {"x_ratelimit_remaining_requests": "0", "x_ratelimit_reset_requests": "1m0s"}
    assert read(**said, x_ratelimit_limit_requests="60") == RateLimits(
        requests=Allowance(0, 60.0, 1.0)
    )
    assert read(**said) is None


@pytest.mark.parametrize(
    ("said", "seconds"),
    [
        ("120ms", 0.12),
        ("1h2m3.5s", 3_723.5),
        ("12", 12.0),
        ("12.5", 12.5),
        (str(int(NOW.timestamp()) + 7), 7.0),
        (str((int(NOW.timestamp()) + 7) * 1000), 7.0),
        ("2026-01-02T03:04:12+00:00", 7.0),
        ("2026-01-02T03:04:12", 7.0),
        ("2020-01-01T00:00:00Z", 0.0),
    ],
)
def test_the_time_until_there_is_more_is_read_in_each_spelling(said: str, seconds: float) -> None:
    limits = read(x_ratelimit_remaining="3", x_ratelimit_reset=said)
    assert limits is not None
    assert limits.requests is not None
    assert limits.requests.left == 3
    assert limits.requests.reset_s == pytest.approx(seconds)


@pytest.mark.parametrize("said", ["", "soon", "1x", "-5", "nan", "inf", "9" * 400, "1s!", "s"])
def test_what_cannot_be_read_says_nothing(said: str) -> None:
    assert read(x_ratelimit_remaining_requests="3", x_ratelimit_reset_requests=said) is None
    if said != "9" * 400:
        assert read(x_ratelimit_remaining_requests=said, x_ratelimit_reset_requests="1s") is None


def test_an_answer_without_such_headers_says_nothing() -> None:
    assert read(content_type="application/json") is None


@given(left=st.text(max_size=80), reset=st.text(max_size=80))
def test_no_text_makes_the_reader_fail(left: str, reset: str) -> None:
    limits = read(x_ratelimit_remaining_tokens=left, x_ratelimit_reset_tokens=reset)
    assert limits is None or (limits.tokens is not None and limits.tokens.reset_s >= 0)

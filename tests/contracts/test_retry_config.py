"""Delays between attempts: A-32."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minions.contracts.retry_config import RetryConfig


def test_delays_grow_by_the_base_up_to_the_cap() -> None:
    """A-32."""
    config = RetryConfig(initial_delay=1, exponential_base=2, max_delay=60, jitter=False)
    delays = [config.delay_s(failures, 0.99) for failures in range(1, 10)]
    assert delays == [1, 2, 4, 8, 16, 32, 60, 60, 60]


@given(
    failures=st.integers(1, 5_000),
    random=st.floats(0, 1, exclude_max=True),
    initial=st.floats(0, 100),
    base=st.floats(1, 10),
    most=st.floats(0, 1000),
)
def test_jitter_multiplies_within_its_range_and_never_passes_the_cap(
    failures: int, random: float, initial: float, base: float, most: float
) -> None:
    """A-32: however many failures there were."""

    def config(*, jitter: bool) -> RetryConfig:
        return RetryConfig(
            initial_delay=initial, exponential_base=base, max_delay=most, jitter=jitter
        )

    plain = config(jitter=False).delay_s(failures, random)
    shaken = config(jitter=True).delay_s(failures, random)
    assert 0 <= plain <= most
    assert plain * 0.5 <= shaken <= min(most, plain * 1.5)


def test_the_defaults_are_three_attempts_with_jitter() -> None:
    """A-31, A-32."""
    assert RetryConfig() == RetryConfig(
        max_attempts=3, initial_delay=1.0, max_delay=60.0, exponential_base=2.0, jitter=True
    )


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_attempts": 0},
        {"initial_delay": -1},
        {"max_delay": -1},
        {"exponential_base": 0.5},
        {"retryable_exceptions": [KeyboardInterrupt]},
    ],
)
def test_what_makes_no_sense_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        RetryConfig(**wrong)  # type: ignore[arg-type]  # the point of the test

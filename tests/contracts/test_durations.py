"""Times as people write them."""

from __future__ import annotations

import pytest

from minions.data.errors import UsageError
from minions.data.texts import seconds_of, spoken


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90.0),
        ("1.5s", 1.5),
        ("250 ms", 0.25),
        ("10m", 600.0),
        (" 2h ", 7_200.0),
        ("1d", 86_400.0),
        ("9" * 400, 1e12),
        (f"{'9' * 308}d", 1e12),
    ],
)
def test_a_number_with_its_unit_is_a_duration(text: str, seconds: float) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "0", "-1", "1 week", "1e3", "inf"])
def test_what_is_none_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not a duration"):
        seconds_of(text)


@pytest.mark.parametrize(
    ("duration_ms", "words"),
    [
        (12.4, "12 ms"),
        (999.6, "1.0 s"),
        (59_949, "59.9 s"),
        (59_960, "1 min 0 s"),
        (119_600, "2 min 0 s"),
        (185_000, "3 min 5 s"),
        (7_199_990, "120 min 0 s"),
    ],
)
def test_a_duration_is_told_without_1000_milliseconds_or_60_seconds(
    duration_ms: float, words: str
) -> None:
    assert spoken(duration_ms) == words

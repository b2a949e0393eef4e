"""Limits out of free metadata: A-14."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from minions.contracts.context import Limits
from minions.data.errors import MetadataError


def test_the_defaults_are_the_guides() -> None:
    """A-14."""
    limits = Limits.from_metadata({})
    assert limits == Limits()
    assert (
        limits.max_model_calls_per_step,
        limits.max_tool_call_retries,
        limits.sequential_tool_calls,
        limits.allow_repeated_steps,
    ) == (10, 2, False, False)


@pytest.mark.parametrize(
    ("metadata", "limits"),
    [
        ({"maxModelCallsPerStep": 5}, Limits(max_model_calls_per_step=5)),
        ({"max_model_calls_per_step": 5}, Limits(max_model_calls_per_step=5)),
        ({"maxToolCallRetries": 0}, Limits(max_tool_call_retries=0)),
        ({"sequentialToolCalls": True}, Limits(sequential_tool_calls=True)),
        ({"timeout_s": 1, "timeoutS": None}, None),
        ({"timeoutS": 1.5}, Limits(timeout_s=1.5)),
        ({"max_steps": None}, Limits()),
        ({"colour": "red", "maximum": 3, "step": "x"}, Limits()),
    ],
)
def test_both_spellings_count_and_other_keys_are_left(
    metadata: Mapping[str, object], limits: Limits | None
) -> None:
    """A-14: one limit in both spellings is an error."""
    if limits is None:
        with pytest.raises(MetadataError, match="gives 'timeout_s' twice"):
            Limits.from_metadata(metadata)
    else:
        assert Limits.from_metadata(metadata) == limits


def test_equal_values_of_other_types_are_not_taken_for_those_read_before() -> None:
    assert Limits.from_metadata({"max_steps": 1, "timeout_s": 1}).max_steps == 1
    with pytest.raises(MetadataError, match="is True"):
        Limits.from_metadata({"max_steps": True, "timeout_s": 1})
    assert type(Limits.from_metadata({"max_steps": 1, "timeout_s": 1.0}).timeout_s) is float


def test_the_more_specific_wins_and_the_rest_stays() -> None:
    """A-14."""
    base = Limits.from_metadata({"maxModelCallsPerStep": 3, "maxToolCallRetries": 7})
    assert Limits.from_metadata({"max_model_calls_per_step": 5}, base=base) == Limits(
        max_model_calls_per_step=5, max_tool_call_retries=7
    )


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ({"maxModelCallsPerStep": "5"}, "metadata['maxModelCallsPerStep'] is '5' (str); a whole"),
        ({"max_model_calls_per_step": 5.0}, "is 5.0 (float); a whole number was expected"),
        ({"max_model_calls_per_step": True}, "is True (bool); a whole number was expected"),
        ({"max_model_calls_per_step": None}, "is None (NoneType); a whole number was expected"),
        ({"max_model_calls_per_step": 0}, "must be >= 1"),
        ({"max_tool_call_retries": -1}, "must be >= 0"),
        ({"sequential_tool_calls": 1}, "is 1 (int); true or false was expected"),
        ({"timeout_s": "1"}, "is '1' (str); a number of seconds was expected"),
        ({"timeout_s": 0}, "must be > 0"),
        ({"tool_timeout_s": None}, "is None (NoneType); a number of seconds was expected"),
        ({"max_model_call_per_step": 5}, "Did you mean 'max_model_calls_per_step'?"),
        ({"maxToolCallRetrys": 5}, "Did you mean 'max_tool_call_retries'?"),
    ],
)
def test_a_limit_of_a_wrong_type_range_or_name_is_an_error(
    metadata: Mapping[str, object], words: str
) -> None:
    """A-14."""
    with pytest.raises(MetadataError) as caught:
        Limits.from_metadata(metadata)
    assert words in caught.value.message

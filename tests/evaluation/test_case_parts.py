"""Cases are divided into parts that share nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minions.data.errors import UsageError
from minions.data.json_values import dumps
from minions.evaluation.cases import FEWEST_CASES, Case, CaseParts, Part, parts_of


def cases(*texts: str) -> list[Case]:
    return [Case(index=at, name=text, inputs={"text": text}) for at, text in enumerate(texts)]


def inputs(part: tuple[Case, ...]) -> set[str]:
    return {dumps(dict(each.plain_inputs)) for each in part}


def names(parts: CaseParts) -> list[list[str]]:
    return [[each.name for each in part] for part in (parts.shown, *map(parts.of, Part))]


@given(
    texts=st.lists(st.sampled_from([*"abcdefghijklmnopqrstuvwxyz"]), min_size=6),
    seed=st.integers(),
    has_shown=st.booleans(),
)
def test_every_case_is_in_one_part_and_equal_inputs_in_the_same(
    texts: list[str], seed: int, has_shown: bool
) -> None:
    if len(set(texts)) < FEWEST_CASES:
        return
    parts = parts_of(cases(*texts), seed=seed, has_shown=has_shown)
    all_ = [*parts.shown, *parts.search, *parts.confirmation]
    assert sorted(each.index for each in all_) == list(range(len(texts)))
    sets = [inputs(part) for part in (parts.shown, parts.search, parts.confirmation)]
    assert sum(map(len, sets)) == len(set.union(*sets))
    assert len(sets[1]) >= 3
    assert len(sets[2]) >= 2
    assert bool(parts.shown) <= has_shown
    again = parts_of(cases(*reversed(texts)), seed=seed, has_shown=has_shown)
    assert [set(part) for part in names(again)] == [set(part) for part in names(parts)]


def test_another_seed_divides_otherwise() -> None:
    many = cases(*map(str, range(30)))
    one, two = (parts_of(many, seed=seed, has_shown=True) for seed in (0, 1))
    assert inputs(one.search) != inputs(two.search)
    assert (len(one.shown), len(one.search), len(one.confirmation)) == (6, 15, 9)


def test_too_few_distinct_cases_are_refused() -> None:
    with pytest.raises(UsageError, match="2 distinct cases are too few") as refused:
        parts_of(cases("a", "b", *["a"] * 20), seed=0, has_shown=False)
    assert refused.value.error_code == "bad-items"
    assert "22 cases, of which some have the same inputs" in refused.value.message
    with pytest.raises(UsageError, match=r"what was found\. Give at least"):
        parts_of(cases("a", "b"), seed=0, has_shown=False)

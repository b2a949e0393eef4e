"""Which calls are carried out together: each once, in order, within bounds."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from minions.adapters.stores.call_groups import GroupTerms, WaitingCall, take_group

Call = WaitingCall[int, None]

TERMS = st.builds(
    GroupTerms,
    sequence=st.sampled_from("abc"),
    name=st.none() | st.integers(1, 4),
    size=st.integers(0, 40),
    variety=st.sampled_from(["", "", "listed"]),
)


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    made = asyncio.new_event_loop()
    yield made
    made.close()


def calls_of(loop: asyncio.AbstractEventLoop, terms: Sequence[GroupTerms]) -> deque[Call]:
    return deque(Call(number, each, loop.create_future()) for number, each in enumerate(terms))


def groups_of(waiting: deque[Call]) -> list[list[Call]]:
    groups = []
    while waiting:
        groups.append(take_group(waiting, most_calls=5, most_bytes=60))
    return groups


def test_each_call_is_in_one_group_and_in_the_order_of_its_sequence(
    loop: asyncio.AbstractEventLoop,
) -> None:
    @given(st.lists(TERMS, max_size=30))
    def check(terms: Sequence[GroupTerms]) -> None:
        carried_out = [call for group in groups_of(calls_of(loop, terms)) for call in group]
        assert sorted(call.argument for call in carried_out) == list(range(len(terms)))
        for sequence in "abc":
            own = [call.argument for call in carried_out if call.terms.sequence == sequence]
            assert own == sorted(own)

    check()


def test_the_oldest_call_is_in_the_next_group_whatever_waits(
    loop: asyncio.AbstractEventLoop,
) -> None:
    @given(st.lists(TERMS, min_size=1, max_size=30))
    def check(terms: Sequence[GroupTerms]) -> None:
        waiting = calls_of(loop, terms)
        while waiting:
            oldest = waiting[0]
            assert take_group(waiting)[0] is oldest
            assert [each.argument for each in waiting] == sorted(each.argument for each in waiting)

    check()


def test_a_group_is_bounded_and_holds_no_name_twice(loop: asyncio.AbstractEventLoop) -> None:
    @given(st.lists(TERMS, max_size=30))
    def check(terms: Sequence[GroupTerms]) -> None:
        for group in groups_of(calls_of(loop, terms)):
            names = [call.terms.name for call in group if call.terms.name is not None]
            assert len(names) == len(set(names))
            assert len(group) <= 5
            assert len(group) == 1 or sum(call.terms.size for call in group) <= 60
            assert len({call.terms.variety for call in group}) == 1

    check()


def test_calls_that_have_nothing_to_do_with_each_other_are_one_group(
    loop: asyncio.AbstractEventLoop,
) -> None:
    terms = [GroupTerms(sequence=f"s{number}", name=number, size=10) for number in range(6)]
    waiting = calls_of(loop, terms)
    assert len(take_group(waiting, most_calls=6, most_bytes=60)) == 6
    waiting = calls_of(loop, [*terms[:3], evolve(terms[3], variety="listed"), *terms[4:]])
    assert [call.argument for call in take_group(waiting)] == [0, 1, 2, 4, 5]
    assert [call.argument for call in waiting] == [3]

"""Which calls that wait for one connection are carried out together.

No database is known here: `postgres_groups` carries the groups out.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Hashable
from typing import Final, Generic, TypeVar

from attrs import frozen

A = TypeVar("A")
R = TypeVar("R")

_MOST_CALLS: Final = 64
"""Calls of a group. Twice as many gain 5 %, and everybody waits for the last of them."""
_MOST_BYTES: Final = 1_048_576
"""Bytes of a group, unless one call alone has more: none of them waits for megabytes."""


@frozen
class GroupTerms:
    """With which other calls a call may be in a group."""

    sequence: str
    """Calls of one sequence are carried out in the order in which they came."""
    name: Hashable
    """No two calls of a group have the same name; None: it has none."""
    size: int = 0
    """Bytes that it sends, about."""
    variety: str = ""
    """Calls of a group have the same one."""


@frozen(eq=False)
class WaitingCall(Generic[A, R]):
    """A call and the future of its result."""

    argument: A
    terms: GroupTerms
    outcome: asyncio.Future[R]


def take_group(
    waiting: deque[WaitingCall[A, R]],
    *,
    most_calls: int = _MOST_CALLS,
    most_bytes: int = _MOST_BYTES,
) -> list[WaitingCall[A, R]]:
    """Remove the next group from the calls that wait; those that stay keep their order.

    The first call is always in it, so that none is passed over twice.

    Args:
        waiting: At least one call, oldest first.
    """
    first = waiting.popleft()
    group, passed = [first], list[WaitingCall[A, R]]()
    names, size = {first.terms.name} - {None}, first.terms.size
    held_back = set[str]()
    while waiting and len(group) + len(passed) < most_calls:
        call = waiting.popleft()
        terms = call.terms
        if (
            terms.variety != first.terms.variety
            or terms.name in names
            or terms.sequence in held_back
            or size + terms.size > most_bytes
        ):
            held_back.add(terms.sequence)
            passed.append(call)
            continue
        group.append(call)
        if terms.name is not None:
            names.add(terms.name)
        size += terms.size
    waiting.extendleft(reversed(passed))
    return group

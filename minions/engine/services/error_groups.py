"""The error to report of a group: parallel work raises several at once, a person reads one."""

from __future__ import annotations

from collections.abc import Iterator

from minions.data.errors import JournalError, MinionsError


def leading_error(error: BaseException) -> BaseException:
    """The error itself; of a group a journal error, else one of Minions' own, else the first."""
    found = list(_leaves(error))
    for kind in (JournalError, MinionsError):
        for leaf in found:
            if isinstance(leaf, kind):
                return leaf
    return found[0]


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error

"""How many streams there may be at a time, of all callers and of one."""

from __future__ import annotations

from collections import Counter
from http import HTTPStatus
from typing import Final

from minions.interfaces.http.problems import RefusedError

_LEFT: Final = 4
"""Of the connections one in so many is left for requests that are no streams."""
_SHARE: Final = 2
"""One of several tokens may have one in so many of the places."""


class StreamPlaces:
    """Who has the streams that are open."""

    def __init__(self, most: int) -> None:
        """No stream is open yet."""
        self._most = most
        self._taken: Counter[str] = Counter()

    def __len__(self) -> int:
        return self._taken.total()

    def keep_room(self, most_connections: int) -> None:
        """Leave some of so many connections for other requests."""
        self._most = min(self._most, max(1, most_connections - most_connections // _LEFT))

    def take(self, name: str | None) -> None:
        """Take a place, until `give`.

        Args:
            name: Of the caller's token; None: it is the only one of the server.
        Raises:
            RefusedError: `too-many-followers`.
        """
        most = self._most if name is None else max(1, self._most // _SHARE)
        own = self._taken[name or ""]
        if len(self) >= self._most:
            raise no_more_streams(f"{len(self)} streams are open")
        if own >= most:
            raise no_more_streams(f"{own} streams of the token '{name}' are open")
        self._taken[name or ""] = own + 1

    def give(self, name: str | None) -> None:
        """Give a place back."""
        self._taken[name or ""] -= 1
        self._taken += Counter()  # without callers that have none


def no_more_streams(count: str) -> RefusedError:
    """The refusal of a stream.

    Args:
        count: How many are open, in words.
    """
    return RefusedError(
        HTTPStatus.SERVICE_UNAVAILABLE,
        "too-many-followers",
        f"{count}; no more at a time.",
        headers={"retry-after": "5"},
    )

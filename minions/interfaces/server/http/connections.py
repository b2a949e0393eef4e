"""How long, and by how many connections, clients may keep the server waiting for bytes. No I/O.

A connection waits for its client before and in the head of a request, in its body, and between
requests. One that is being answered does not, however long its stream is.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Iterator, Mapping
from enum import Enum
from functools import lru_cache
from typing import Final, Protocol

from attrs import frozen

__all__ = ["Awaited", "Connection", "ConnectionLimits", "Connections", "client_of"]


class Awaited(Enum):
    """What a connection waits for."""

    HEAD = "head"
    """The head of a request, its first one or one whose first byte has come."""
    BODY = "body"
    """The rest of a request's body."""
    REST = "rest"
    """The rest of a body whose request was answered already."""
    REQUEST = "request"
    """The next request, of which nothing has come."""


class Connection(Protocol):
    """One open connection, as the protocol that serves it tells of it."""

    owner: str
    """Whose it is, from `client_of`."""
    awaited: Awaited | None
    """What it waits for; None: its request is being answered."""
    since: float
    """When this wait began, by the clock of the loop."""

    def drop(self) -> None:
        """Close the connection at once; where a head has begun, say why."""


@frozen(kw_only=True)
class ConnectionLimits:
    """How long and how many."""

    most_open: int
    """All connections at a time."""
    most_late_heads: int = 100
    """Connections of one client that may wait for a head longer than `PROMPT_S`."""
    head_s: float = 5.0
    """Seconds for the head of a request, from its first byte or the connection's opening."""
    body_s: float = 60.0
    rest_s: float = 30.0
    """Seconds for what still comes of a body whose request was answered."""
    request_s: float = 30.0
    """Seconds between two requests."""

    @property
    def seconds(self) -> Mapping[Awaited, float]:
        """The most seconds of each kind of wait."""
        return {
            Awaited.HEAD: self.head_s,
            Awaited.BODY: self.body_s,
            Awaited.REST: self.rest_s,
            Awaited.REQUEST: self.request_s,
        }


PROMPT_S: Final = 1.0
"""Seconds in which the heads of a burst of new connections are read; younger ones are spared."""
_PART: Final = 16
"""At the limit one of so many connections is closed at once: each search costs as many steps."""


def client_of(address: object) -> str:
    """Whose connection it is: the IPv4 address, or the /64 of the IPv6 address, which one client
    has all of. Empty: it is no network address.
    """
    return _client_of(str(address[0]) if isinstance(address, tuple) and address else "")


@lru_cache(maxsize=1_024)
def _client_of(host: str) -> str:
    try:
        found = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(found, ipaddress.IPv4Address):
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(found) >> 64 << 64, 64)))


class Connections:
    """All open connections of the server. No lock: one event loop owns them."""

    def __init__(self, limits: ConnectionLimits) -> None:
        """None is open yet."""
        self.limits = limits
        self._open: dict[Connection, None] = {}  # a dict: in the order of their opening
        self._seconds = limits.seconds

    def __len__(self) -> int:
        return len(self._open)

    def add(self, connection: Connection, now: float) -> bool:
        """Admit a new connection; False: there is no room, and it has to be closed.

        At the limit those are closed that have waited longest, of the client that has most of them.
        """
        if len(self._open) >= self.limits.most_open and not self._make_room(connection, now):
            return False
        self._open[connection] = None
        return True

    def remove(self, connection: Connection) -> None:
        """Forget a connection that was closed; an unknown one is none."""
        self._open.pop(connection, None)

    def drop_late(self, now: float) -> None:
        """Close connections that have waited too long, and those of a client that are too many."""
        for connection in [*self._late(now), *self._surplus(now)]:
            self._drop(connection)

    def _late(self, now: float) -> Iterator[Connection]:
        for each in self._open:
            if each.awaited is not None and now - each.since >= self._seconds[each.awaited]:
                yield each

    def _surplus(self, now: float) -> Iterator[Connection]:
        """The heads that have been awaited longest, of clients with too many of them."""
        heads: dict[str, list[Connection]] = {}
        for each in self._open:
            if each.awaited is Awaited.HEAD and now - each.since >= PROMPT_S:
                heads.setdefault(each.owner, []).append(each)
        for late in heads.values():
            late.sort(key=lambda each: each.since)
            yield from late[: max(0, len(late) - self.limits.most_late_heads)]

    def _make_room(self, new: Connection, now: float) -> bool:
        waiting = [each for each in self._open if each.awaited is not None]
        if not waiting:
            return False
        ((client, _),) = Counter(each.owner for each in waiting).most_common(1)
        # A client's own burst does not close connections that have had no time to say anything.
        spared = PROMPT_S if client == new.owner else 0.0
        found = [each for each in waiting if each.owner == client and now - each.since >= spared]
        found.sort(key=lambda each: each.since)
        for each in found[: len(waiting) // _PART + 1]:
            self._drop(each)
        return bool(found)

    def _drop(self, connection: Connection) -> None:
        self.remove(connection)
        connection.drop()

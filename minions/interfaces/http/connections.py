"""How long, and by how many connections, clients may keep the server waiting for bytes. No I/O.

A connection waits for its client before and in the head of a request, in its body, between
requests, and where the client does not take what it is sent. One that is being answered does not
otherwise, however long its stream is.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import os
import socket
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from functools import lru_cache
from itertools import chain, islice
from typing import Final, Protocol

from attrs import frozen

from minions.contracts.runtime import Log


class ConnectionWait(Enum):
    """What a connection waits for."""

    HEAD = "head"
    """The head of a request, its first one or one whose first byte has come."""
    BODY = "body"
    """The rest of a request's body."""
    REST = "rest"
    """The rest of a body whose request was answered already."""
    REQUEST = "request"
    """The next request, of which nothing has come."""
    READER = "reader"
    """That its client takes what was sent."""


class Connection(Protocol):
    """One open connection, as the protocol that serves it tells of it."""

    owner: str
    """Whose it is, from `client_of`."""
    awaited: ConnectionWait | None
    """What it waits for; None: its request is being answered."""
    since: float
    """When this wait began, by the clock of the loop."""

    def look(self) -> None:
        """Note whether the client has taken something meanwhile: then the wait begins again."""

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
    reader_s: float = 30.0
    """Seconds in which a client takes nothing of what waits for it."""

    @property
    def seconds(self) -> Mapping[ConnectionWait, float]:
        """The most seconds of each kind of wait."""
        return {
            ConnectionWait.HEAD: self.head_s,
            ConnectionWait.BODY: self.body_s,
            ConnectionWait.REST: self.rest_s,
            ConnectionWait.REQUEST: self.request_s,
            ConnectionWait.READER: self.reader_s,
        }


PROMPT_S: Final = 1.0
"""Seconds in which the heads of a burst of new connections are read; younger ones are spared."""
SPARED_S: Final = 0.25
"""The same, at the limit, where a client's new connections push out its own."""
_PART: Final = 16
"""At the limit one of so many connections is closed at once: each search costs as many steps."""
_SEARCH_S: Final = 0.02
"""Seconds until there is another search for room for a client that found none."""
_DROPPED: Final = 200
"""Connections that are closed at once; then others of the event loop have their turn."""


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
        self._without_room: tuple[str, float] = ("", 0.0)
        """The client that found no room last, and until when there is no other search for it."""
        self.failure: Exception | None = None
        """Why a connection could not be closed; None: each one could."""

    def __len__(self) -> int:
        return len(self._open)

    def has_room(self, owner: str, now: float, *, coming: int = 0) -> bool:
        """Whether a new connection of that client may be added; False: it has to be closed.

        At the limit those are closed that have waited longest, of the client that has most of them.

        Args:
            coming: Connections that were told so, and were not added yet.
        """
        if len(self._open) + coming < self.limits.most_open:
            return True
        client, until = self._without_room
        if owner == client and now < until:
            return False
        if self._make_room(owner, now):
            return True
        self._without_room = owner, now + _SEARCH_S
        return False

    def add(self, connection: Connection) -> None:
        """Add a connection for which there is room."""
        self._open[connection] = None

    def remove(self, connection: Connection) -> None:
        """Forget a connection that was closed; an unknown one is none."""
        self._open.pop(connection, None)

    def drop_late(self, now: float) -> bool:
        """Close connections that have waited too long, and those of a client that are too many;
        whether there may be more of them.
        """
        found = list(islice(chain(self._late(now), self._surplus(now)), _DROPPED))
        closed = [self._drop(connection) for connection in found]
        return len(found) == _DROPPED and any(closed)

    def _late(self, now: float) -> Iterator[Connection]:
        for each in self._open:
            if each.awaited is None:
                continue
            if each.awaited is ConnectionWait.READER:
                each.look()
            if now - each.since >= self._seconds[each.awaited]:
                yield each

    def _surplus(self, now: float) -> Iterator[Connection]:
        """The heads that have been awaited longest, of clients with too many of them."""
        heads: dict[str, list[Connection]] = {}
        for each in self._open:
            if each.awaited is ConnectionWait.HEAD and now - each.since >= PROMPT_S:
                heads.setdefault(each.owner, []).append(each)
        for late in heads.values():
            late.sort(key=lambda each: each.since)
            yield from late[: max(0, len(late) - self.limits.most_late_heads)]

    def _make_room(self, owner: str, now: float) -> bool:
        waiting = [each for each in self._open if each.awaited is not None]
        if not waiting:
            return False
        ((client, _),) = Counter(each.owner for each in waiting).most_common(1)
        # A client's own burst does not close connections that have had no time to say anything.
        spared = SPARED_S if client == owner else 0.0
        found = [each for each in waiting if each.owner == client and now - each.since >= spared]
        found.sort(key=lambda each: each.since)
        closed = [self._drop(each) for each in found[: len(waiting) // _PART + 1]]
        return any(closed)

    def _drop(self, connection: Connection) -> bool:
        """Close it; False: it failed, and is tried again. One must not keep the others open."""
        try:
            connection.drop()
        except Exception as error:  # noqa: BLE001  # see above; whoever asks logs it
            self.failure = error
            return False
        self.remove(connection)
        return True


# --- accepts the connections of a listening socket -----------------------------------------------


_AT_ONCE: Final = 32
"""Connections of one round; then others of the event loop have their turn."""
_REST_S: Final = 0.1
"""Seconds without accepting where not even the descriptor in reserve helps."""
_NO_ROOM: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_EVERY_S: Final = 60.0


class Rarely:
    """Counts what happens often, and says when it is time to log it: once a minute."""

    def __init__(self, now: Callable[[], float]) -> None:
        """Nothing has happened yet.

        Args:
            now: A clock that never goes back, in seconds.
        """
        self._now = now
        self._next = float("-inf")
        self._count = 0

    def count(self) -> int | None:
        """Count it once more; how often it has happened since it was logged, None: it is not time
        to log it.
        """
        self._count += 1
        if (now := self._now()) < self._next:
            return None
        count, self._count, self._next = self._count, 0, now + _EVERY_S
        return count


class Acceptor:
    """Accepts connections from `start` to `close`. One descriptor is kept in reserve: with it a
    connection is refused where there is no other.
    """

    def __init__(
        self,
        sock: socket.socket,
        make_protocol: Callable[[], asyncio.Protocol],
        *,
        admits: Callable[[object, int], bool],
        refusal: bytes,
        log: Log,
    ) -> None:
        """Nothing is accepted yet.

        Args:
            sock: It listens; the acceptor closes it at the end.
            make_protocol: Makes the protocol of one connection.
            admits: Whether a connection from that address is taken; it gets the number of those
                that were taken and whose protocol does not know of it yet.
            refusal: What any other connection is sent before it is closed.
        """
        self._sock = sock
        self._make_protocol = make_protocol
        self._admits = admits
        self._refusal = refusal
        self._log = log
        self._coming: set[asyncio.Task[None]] = set()
        self._reserve: int | None = None
        self._resting: asyncio.TimerHandle | None = None
        self._is_closed = False

    def start(self) -> None:
        """Accept from now on, in the running event loop."""
        self._loop = asyncio.get_running_loop()
        self._failures = Rarely(self._loop.time)
        self._sock.setblocking(False)
        self._reserve = _descriptor()
        self._loop.add_reader(self._sock.fileno(), self._accept_some)

    def close(self) -> None:
        """Accept nothing more. Connections that were accepted stay."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._resting is not None:
            self._resting.cancel()
        self._loop.remove_reader(self._sock.fileno())
        self._sock.close()
        if self._reserve is not None:
            os.close(self._reserve)

    async def wait_closed(self) -> None:
        """Wait for connections that were accepted just before."""
        while self._coming:
            await asyncio.wait(self._coming)

    def _accept_some(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                connection, address = self._sock.accept()
            except BlockingIOError:
                return
            except ConnectionError:  # the client was quicker
                continue
            except OSError as error:
                if not self._shed(error):
                    self._rest()
                    return
                continue
            if self._admits(address, len(self._coming)):
                self._take(connection)
            else:
                self._refuse(connection)

    def _take(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        task = self._loop.create_task(self._connect(connection))
        self._coming.add(task)
        task.add_done_callback(self._coming.discard)

    async def _connect(self, connection: socket.socket) -> None:
        is_taken = False
        try:
            await self._loop.connect_accepted_socket(self._make_protocol, connection)
            is_taken = True
        except Exception as error:  # noqa: BLE001  # no connection ends the accepting
            self._note(f"{type(error).__name__}: {error}")
        finally:
            if not is_taken:
                connection.close()

    def _refuse(self, connection: socket.socket) -> None:
        """Say why, as far as that can be said at once, and close it."""
        try:
            connection.setblocking(False)
            with contextlib.suppress(OSError):
                connection.send(self._refusal)
        finally:
            connection.close()

    def _shed(self, error: OSError) -> bool:
        """Refuse the next connection with the descriptor in reserve; False: there is none."""
        self._note(os.strerror(error.errno or 0))
        if error.errno not in _NO_ROOM or self._reserve is None:
            return False
        os.close(self._reserve)
        self._reserve = None
        try:
            connection, _ = self._sock.accept()
            self._refuse(connection)
        except OSError:
            return False
        finally:
            self._reserve = _descriptor()
        return True

    def _rest(self) -> None:
        self._loop.remove_reader(self._sock.fileno())
        self._resting = self._loop.call_later(_REST_S, self._go_on)

    def _go_on(self) -> None:
        self._reserve = self._reserve if self._reserve is not None else _descriptor()
        self._loop.add_reader(self._sock.fileno(), self._accept_some)

    def _note(self, reason: str) -> None:
        if (count := self._failures.count()) is not None:
            self._log.warning("connections_not_accepted", reason=reason, count=count)


def _descriptor() -> int | None:
    """A descriptor of nothing; None: there is none left."""
    try:
        return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None

"""Accepts the connections of a listening socket: a few at a time, also where files run out.

asyncio's own accepting takes as many connections a round as its backlog has, logs each failure,
and rests for a second after one.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
from collections.abc import Callable
from typing import Final

from minions.contracts.runtime import Log

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
        task = self._loop.create_task(self._connected(connection))
        self._coming.add(task)
        task.add_done_callback(self._coming.discard)

    async def _connected(self, connection: socket.socket) -> None:
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

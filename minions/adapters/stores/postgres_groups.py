"""Calls to PostgreSQL that are carried out together: one transaction for many runs.

Which calls form a group is decided in `call_groups`; what they do is not known here.
"""

from __future__ import annotations

import asyncio
import copy
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, Generic, TypeAlias, TypeVar

from attrs import field, frozen, mutable

from minions.adapters.stores.call_groups import GroupTerms, WaitingCall, take_group
from minions.adapters.stores.postgres_database import is_connection_lost
from minions.adapters.stores.postgres_link import Attempt, carried_through
from minions.data.errors import EnvironmentRefusedError

if TYPE_CHECKING:
    from minions.adapters.stores.postgres_database import Connection
    from minions.adapters.stores.postgres_link import PostgresLink


A = TypeVar("A")
R = TypeVar("R")

_LOOP_ITERATIONS: Final = 3
"""Iterations of the event loop between a result and the caller's next call."""
_NOBODY_ANSWERS: Final = ("database-lost", "database-unreachable")


@frozen(kw_only=True)
class CallKind(Generic[A, R]):
    """How calls of one kind are carried out."""

    alone: Callable[[Attempt, A], Awaitable[R]]
    """One call, in a transaction of its own."""
    together: Callable[[Connection, Sequence[A]], Awaitable[Mapping[int, R]]]
    """Several calls in one transaction.

    Gives results by the index of the call. A call without one changed nothing; it is carried out
    alone afterwards. So is each of them where this raises: then none changed anything.
    """
    terms: Callable[[A], GroupTerms]


@mutable(eq=False)
class _Queue(Generic[A, R]):
    """The calls of one event loop."""

    waiting: deque[WaitingCall[A, R]] = field(factory=deque)
    worker: asyncio.Task[None] | None = None
    """Carries them out; None: there are none."""


@mutable(eq=False)
class _Group(Generic[A, R]):
    """Calls that are carried out; empty while the connection is not free."""

    calls: list[WaitingCall[A, R]] = field(factory=list)
    may_be_done: bool = False
    """Whether the connection was lost while they were carried out."""

    @property
    def left(self) -> list[WaitingCall[A, R]]:
        return [call for call in self.calls if not call.outcome.done()]


_Queues: TypeAlias = "dict[asyncio.AbstractEventLoop, _Queue[A, R]]"


class GroupedCalls(Generic[A, R]):
    """Carries calls out in groups: those that wait when the connection becomes free.

    Nothing waits for company. A call that finds the connection free is carried out at once,
    together with those that were made in the same turn of the event loop.
    """

    def __init__(self, link: PostgresLink, kind: CallKind[A, R]) -> None:
        """No I/O here."""
        self._link = link
        self._kind = kind
        self._queues: _Queues[A, R] = {}
        self._guard = threading.Lock()  # of the dictionary: loops may run in several threads

    async def call(self, argument: A) -> R:
        """The result of one call, once its transaction is committed.

        A call that was made is carried through: a cancellation arrives at the caller's next
        `await`.

        Raises:
            JournalError: As the call says, or the database cannot be used.
        """
        loop, queue = asyncio.get_running_loop(), self._queue()
        call = WaitingCall[A, R](argument, self._kind.terms(argument), loop.create_future())
        queue.waiting.append(call)
        if queue.worker is None:
            queue.worker = loop.create_task(self._work(queue))
        return await carried_through(call.outcome)

    def _queue(self) -> _Queue[A, R]:
        loop = asyncio.get_running_loop()
        queue = self._queues.get(loop)
        if queue is None:
            with self._guard:
                for ended in [each for each in self._queues if each.is_closed()]:
                    del self._queues[ended]
                queue = self._queues[loop] = _Queue[A, R]()
        return queue

    async def _work(self, queue: _Queue[A, R]) -> None:
        group = _Group[A, R]()
        try:
            while queue.waiting:
                group = _Group[A, R]()
                await self._settle(queue, group)
                if queue.waiting or len(group.calls) > 1:  # a run that is alone never waits here
                    await _let_callers_continue()
        finally:
            queue.worker = None
            for call in (*group.left, *queue.waiting):  # only where this task was cancelled
                call.outcome.cancel()
            queue.waiting.clear()

    async def _settle(self, queue: _Queue[A, R], group: _Group[A, R]) -> None:
        """Give each call of the next group its outcome."""
        try:
            await self._link.in_turn(partial(self._try, queue, group))
        except Exception as error:  # noqa: BLE001  # each caller gets it
            if not group.calls:  # there is no connection
                group.calls = [*queue.waiting]
                queue.waiting.clear()
            _fail(group.left, error)
        for call in group.left:
            if not call.outcome.done():
                await self._settle_alone(group, call)

    async def _try(self, queue: _Queue[A, R], group: _Group[A, R], attempt: Attempt) -> None:
        if not group.calls:
            group.calls = take_group(queue.waiting)
        if len(group.calls) == 1:
            call = group.calls[0]
            call.outcome.set_result(await self._kind.alone(attempt, call.argument))
        elif attempt.is_again:
            group.may_be_done = True  # or in part, as a statement of the server was under way
        else:
            await self._try_together(attempt.connection, group)

    async def _try_together(self, connection: Connection, group: _Group[A, R]) -> None:
        import psycopg

        arguments = [call.argument for call in group.calls]
        try:
            results = await self._kind.together(connection, arguments)
        except UnicodeEncodeError:
            return  # carried out alone, each call tells whether it is at fault
        except psycopg.Error as error:
            if connection.closed or is_connection_lost(error):
                raise
            return
        for index, result in results.items():
            group.calls[index].outcome.set_result(result)

    async def _settle_alone(self, group: _Group[A, R], call: WaitingCall[A, R]) -> None:
        async def work(attempt: Attempt) -> R:
            again = Attempt(attempt.connection, attempt.is_again or group.may_be_done)
            return await self._kind.alone(again, call.argument)

        try:
            call.outcome.set_result(await self._link.in_turn(work))
        except Exception as error:  # noqa: BLE001  # the caller gets it
            call.outcome.set_exception(error)
            if isinstance(error, EnvironmentRefusedError) and error.error_code in _NOBODY_ANSWERS:
                _fail(group.left, error)  # to wait for the server as often would help nobody


async def _let_callers_continue() -> None:
    """Let callers that have just got their results make their next calls.

    Two groups of four that take turns would cost twice as much as one of eight.
    """
    for _ in range(_LOOP_ITERATIONS):
        await asyncio.sleep(0)


def _fail(calls: Sequence[WaitingCall[A, R]], error: Exception) -> None:
    """Each caller gets an error of its own: raising one adds to its traceback."""
    for number, call in enumerate(calls):
        own = error if number == 0 else copy.copy(error)
        own.__cause__ = error.__cause__
        call.outcome.set_exception(own)

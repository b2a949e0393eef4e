"""One stream for lists: says that runs or pending decisions have changed, whoever changed them.

The journal is looked at once a second for all readers together, and only while there are any.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

from attrs import frozen
from msgspec.structs import replace

from minions.contracts.executions import RunState
from minions.contracts.journal.journal import Journal
from minions.contracts.journal.run_rows import RunFilter
from minions.data.errors import MinionsError
from minions.data.json_values import JsonValue
from minions.engine.calls.inbox import CallsInDoubt, list_inbox
from minions.engine.views.lookup import count_runs, list_runs
from minions.interfaces.http.http_answers import EVENT_STREAM, Receive, Scope, Send, json_bytes
from minions.interfaces.http.tokens import EXPIRED
from minions.interfaces.server.live.channels import (
    HEARTBEAT,
    StreamPlaces,
    error_event,
    no_more_streams,
)

_HEADERS: Final = [(b"content-type", EVENT_STREAM.encode()), (b"x-accel-buffering", b"no")]
_NEWEST: Final = 200
"""Runs at the head of the list in which every change is noticed."""
_MOST_COUNTED: Final = 1_000
"""Where there are more, the removal of a run behind the newest is not noticed."""
_OPEN: Final = frozenset(
    (RunState.RUNNING.value, RunState.INTERRUPTED.value, RunState.NEEDS_DECISION.value)
)
"""States whose runs are noticed wherever in the list they stand."""


@frozen
class _Seen:
    """What lists were told last."""

    runs: tuple[object, ...]
    waiting: tuple[object, ...]
    """The runs that wait."""
    total: int
    """Their pending decisions."""


class Changes:
    """Looks for changes as long as somebody reads them."""

    def __init__(
        self,
        journal: Journal,
        in_doubt: CallsInDoubt,
        *,
        places: StreamPlaces,
        heartbeat_s: float,
        look_s: float = 1.0,
    ) -> None:
        """Start without readers.

        Args:
            in_doubt: The calls in doubt of interrupted runs.
            places: How many streams there may be, and whose they are.
            look_s: Seconds between two looks at the journal.
        """
        self._journal = journal
        self._in_doubt = in_doubt
        self._places = places
        self._heartbeat_s = heartbeat_s
        self._look_s = look_s
        self._readers: set[ChangeStream] = set()
        self._watch: asyncio.Task[None] | None = None
        self._seen: dict[str | None, _Seen] = {}
        """What the readers of each user were told last; under None of those who see all."""
        self._is_closed = False

    def follow(self, caller: str | None = None, owner: str | None = None) -> ChangeStream:
        """A stream that begins with the number of pending decisions.

        Args:
            caller: The name of the caller's token; None: it has none.
            owner: The user whose runs alone it tells of; None: of all.
        Raises:
            RefusedError: There are too many.
        """
        if self._is_closed:
            raise no_more_streams(f"{len(self._readers)} streams are open")
        self._places.take(caller)
        reader = ChangeStream(self, self._heartbeat_s, caller, owner)
        self._readers.add(reader)
        if self._watch is None:
            self._seen = {}
            self._watch = asyncio.ensure_future(self._look_again_and_again())
        elif (seen := self._seen.get(owner)) is not None:
            reader.tell("approvals_changed", total=seen.total)
        return reader

    @property
    def is_looking(self) -> bool:
        """Whether the journal is being looked at: somebody reads."""
        return self._watch is not None

    def leave(self, reader: ChangeStream) -> None:
        """Forget a reader; the last one ends the looking."""
        if reader in self._readers:
            self._readers.remove(reader)
            self._places.give(reader.caller)
        if not self._readers and self._watch is not None:
            self._watch.cancel()
            self._watch = None

    async def aclose(self) -> None:
        """End all streams, and refuse new ones."""
        self._is_closed = True
        self._close_all()
        if (watch := self._watch) is not None:
            watch.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watch

    def _close_all(self) -> None:
        for reader in tuple(self._readers):
            reader.close()

    async def _look_again_and_again(self) -> None:
        try:
            while True:
                for owner in {reader.owner for reader in self._readers}:
                    await self._look(owner)
                await asyncio.sleep(self._look_s)
        except Exception:  # noqa: BLE001  # readers come again, and the next look may succeed
            self._watch = None
            self._close_all()

    async def _look(self, owner: str | None) -> None:
        """What the readers of that user see."""
        whose = RunFilter(user=owner)
        newest = await list_runs(self._journal, wanted=whose, limit=_NEWEST)
        open_runs = await list_runs(self._journal, wanted=replace(whose, statuses=_OPEN))
        total = await count_runs(self._journal, whose, at_most=_MOST_COUNTED)
        runs = (total, *((run.run_id, run.status, run.finished_at) for run in newest + open_runs))
        waiting = tuple(
            (run.run_id, run.finished_at)
            for run in open_runs
            if run.status in (RunState.NEEDS_DECISION, RunState.INTERRUPTED)
        )
        seen = self._seen.get(owner)
        pending = seen.total if seen is not None else 0
        if seen is None or waiting != seen.waiting:
            found = await list_inbox(self._journal, self._in_doubt, user=owner) if waiting else ()
            pending = len(found)
        self._seen[owner] = _Seen(runs, waiting, pending)
        if seen is not None and runs != seen.runs:
            self._tell(owner, "runs_changed")
        if seen is None or waiting != seen.waiting:
            self._tell(owner, "approvals_changed", total=pending)

    def _tell(self, owner: str | None, kind: str, **more: JsonValue) -> None:
        for reader in self._readers:
            if reader.owner == owner:
                reader.tell(kind, **more)


class ChangeStream:
    """The response to one reader. What it has not taken yet is told once, in its newest form."""

    def __init__(
        self,
        changes: Changes,
        heartbeat_s: float,
        caller: str | None = None,
        owner: str | None = None,
    ) -> None:
        """The stream is one of `changes`, and of the caller whose token has that name.

        Args:
            owner: As for `Changes.follow`.
        """
        self.caller = caller
        self.owner = owner
        self._changes = changes
        self._heartbeat_s = heartbeat_s
        self._pending: dict[str, bytes] = {}
        self._wake = asyncio.Event()
        self._is_closed = False
        self._expired: MinionsError | None = None

    def tell(self, kind: str, **more: JsonValue) -> None:
        """Add an event; returns at once."""
        data = json_bytes({"type": kind, **more})
        self._pending[kind] = b"event: " + kind.encode() + b"\ndata: " + data + b"\n\n"
        self._wake.set()

    def close(self) -> None:
        """End the stream."""
        self._is_closed = True
        self._wake.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send events until the reader leaves or the server stops."""
        leaving = asyncio.ensure_future(self._notice_leaving(receive))
        try:
            await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
            while (data := await self._next()) is not None:
                await send({"type": "http.response.body", "body": data, "more_body": True})
            words = b"" if self._expired is None else error_event(self._expired)
            await send({"type": "http.response.body", "body": words, "more_body": False})
        finally:
            leaving.cancel()
            self._changes.leave(self)

    async def _next(self) -> bytes | None:
        """What is to be sent next; None: the stream is over."""
        try:
            async with asyncio.timeout(self._heartbeat_s):
                await self._wake.wait()
        except TimeoutError:
            return HEARTBEAT.data
        self._wake.clear()
        data, self._pending = b"".join(self._pending.values()), {}
        return None if self._is_closed else data

    async def _notice_leaving(self, receive: Receive) -> None:
        while (message := await receive())["type"] != "http.disconnect":
            pass
        self._expired = message.get(EXPIRED)
        self.close()

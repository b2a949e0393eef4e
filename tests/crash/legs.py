"""One leg of a run in a process of its own: it begins or resumes, and dies where it is told to.

Everything a leg leaves is a file: the world, the facts that were acknowledged and, where it is not
on a server, the journal.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final, TypeVar

from attrs import field, frozen

from crash.random_runs import Deed, Outside, RandomRun, question_of
from journals import JournalInFront
from minions.adapters.stores import postgres_database, postgres_link
from minions.adapters.stores.postgres_journal import PostgresJournal
from minions.adapters.stores.postgres_url import is_postgres_url
from minions.adapters.stores.sqlite_journal import SqliteJournal
from minions.contracts.executions import AgentResult
from minions.contracts.journal.journal import (
    EntryDraft,
    Journal,
    JournalEntry,
    Lease,
    OpenedRun,
)
from minions.contracts.runtime import Clock, SystemClock
from minions.contracts.tools import Toolbox
from minions.data.codec import encode
from minions.data.errors import MinionsError
from minions.data.json_values import JsonValue, dumps
from minions.engine.compile.extensions import Extensions
from minions.engine.run.agent_executor import AgentExecutor
from minions.engine.services.run_services import Services

__all__ = ["OPERATIONS", "Failpoint", "Order", "acknowledgement", "carry_out", "journal_at"]

T = TypeVar("T")

OPERATIONS: Final = ("append", "acquire", "renew", "release", "put_blob", "read")
"""What a journal does; a process may die before, inside and after each."""


@frozen(kw_only=True)
class Failpoint:
    """Where a process kills itself."""

    place: str
    """`append.before`, `append.inside` …, `create.inside`, `tool.before`, `tool.after`, `model`."""
    nth: int = 1
    """At which time that it comes by."""
    instructions: int = 1
    """Of SQLite's machine, that it still carries out `inside`; of a server: some µs each."""


@frozen(kw_only=True)
class Order:
    """What a leg is to do."""

    seed: int
    database: str
    """A file's path or a server's URL."""
    world: str
    acknowledged: str
    leg: int = 1
    run_id: str | None = None
    """None: begin."""
    decisions: Mapping[str, str] = field(factory=dict)
    failpoint: Failpoint | None = None
    lease_ttl_s: float = 60.0
    pause_s: float = 0.0
    """How long models and tools take."""
    clock_jumps_s: float = 0.0
    """How far the time of day is off, from the first tool or model call on."""
    dies_after_s: float | None = None
    """Whoever started it kills it then."""


class Fate:
    """Counts the places that a process comes by, and ends it at one of them."""

    def __init__(self, failpoint: Failpoint | None, *, is_on_a_server: bool = False) -> None:
        self._failpoint = failpoint
        self._is_on_a_server = is_on_a_server
        self._visits: Counter[str] = Counter()
        self._connection: sqlite3.Connection | None = None
        self._left: int | None = None

    def reach(self, place: str) -> None:
        """Perhaps the end."""
        if self._is_at(place):
            self.die()

    def enter(self, operation: str) -> None:
        """Perhaps the beginning of the end: some instructions later."""
        self.reach(f"{operation}.before")
        if self._is_at(f"{operation}.inside"):
            self._begin_countdown()

    def leave(self, operation: str) -> None:
        """It is done; whoever asked for it does not know yet."""
        self.reach(f"{operation}.after")

    def connect(self, *arguments: Any, **options: Any) -> sqlite3.Connection:  # Any: sqlite3's own
        """As `sqlite3.connect`, watched from its first statement."""
        self._connection = _connect(*arguments, **options)
        if self._is_at("create.inside"):
            self._begin_countdown()
        elif self._left is not None:
            self._watch()
        return self._connection

    async def connect_to_server(self, *arguments: Any, **options: Any) -> Any:  # Any: handed on
        """As `postgres_link.connect`, with the end perhaps in the middle."""
        if self._is_at("create.inside"):
            self._begin_countdown()
        return await _connect_to_server(*arguments, **options)

    def die(self) -> None:
        """As `kill -9`."""
        os.kill(os.getpid(), signal.SIGKILL)

    def _is_at(self, place: str) -> bool:
        self._visits[place] += 1
        point = self._failpoint
        return point is not None and (point.place, point.nth) == (place, self._visits[place])

    def _begin_countdown(self) -> None:
        assert self._failpoint is not None
        if self._is_on_a_server:
            later_s = self._failpoint.instructions * _INSTRUCTION_OF_A_SERVER_S
            asyncio.get_running_loop().call_later(later_s, self.die)
            return
        self._left = self._failpoint.instructions
        if self._connection is not None:
            self._watch()

    def _watch(self) -> None:
        assert self._connection is not None
        self._connection.set_progress_handler(self._count_down, 1)

    def _count_down(self) -> int:
        assert self._left is not None
        self._left -= 1
        if self._left <= 0:
            self.die()
        return 0


_connect = sqlite3.connect
_connect_to_server = postgres_database.connect
_INSTRUCTION_OF_A_SERVER_S: Final = 5e-6


class JumpingClock(SystemClock):
    """The machine's, until somebody sets it."""

    jump = timedelta()

    def now(self) -> datetime:
        return super().now() + self.jump


class WatchedJournal(JournalInFront):
    """A real one; each fact that it acknowledged is noted."""

    def __init__(self, order: Order, fate: Fate, clock: Clock) -> None:
        super().__init__(journal_at(order.database, clock))
        self._fate = fate
        self._acknowledged = _opened(order.acknowledged)

    async def append(self, lease: Lease, draft: EntryDraft) -> JournalEntry:
        entry = await super().append(lease, draft)
        self._note([entry])
        return entry

    async def append_all(
        self, lease: Lease, drafts: Sequence[EntryDraft]
    ) -> Sequence[JournalEntry]:
        return self._note(await super().append_all(lease, drafts))

    async def open_run(
        self,
        session_id: str,
        run_id: str,
        worker_id: str,
        ttl_s: float,
        drafts: Sequence[EntryDraft],
        *,
        next_generation: bool = False,
        takes_over: str | None = None,
    ) -> OpenedRun:
        opened = await super().open_run(
            session_id,
            run_id,
            worker_id,
            ttl_s,
            drafts,
            next_generation=next_generation,
            takes_over=takes_over,
        )
        self._note(opened.entries)
        return opened

    async def close_run(self, lease: Lease, drafts: Sequence[EntryDraft]) -> Sequence[JournalEntry]:
        return self._note(await super().close_run(lease, drafts))

    def _note(self, entries: Sequence[JournalEntry]) -> Sequence[JournalEntry]:
        for entry in entries:
            _write(self._acknowledged, acknowledgement(entry))
        return entries

    async def through(self, operation: str, work: Callable[[], Awaitable[T]]) -> T:
        place = _PLACES.get(operation)
        if place is None:
            return await work()
        self._fate.enter(place)
        done = await work()
        self._fate.leave(place)
        return done

    async def aclose(self) -> None:
        await super().aclose()
        os.close(self._acknowledged)


_PLACES: Final = {
    "acquire": "acquire",
    "renew": "renew",
    "release": "release",
    "open_run": "acquire",
    "close_run": "release",
    "append": "append",
    "append_all": "append",
    "adopt": "append",
    "remove_session": "append",
    "put_blob": "put_blob",
    "entries": "read",
    "runs": "read",
    "sessions": "read",
    "get_blob": "read",
}
"""Which of `OPERATIONS` a method is; of the others nothing is watched."""


def journal_at(database: str, clock: Clock) -> Journal:
    """That of a file or of a server's URL."""
    if is_postgres_url(database):
        return PostgresJournal(database, clock)
    return SqliteJournal(database, clock)


def acknowledgement(entry: JournalEntry) -> Mapping[str, JsonValue]:
    """A fact as one line, to the microsecond."""
    return {
        "session": entry.session_id,
        "position": entry.position,
        "run": entry.run_id,
        "generation": entry.generation,
        "kind": entry.kind,
        "key": entry.key,
        "state": entry.state,
        "body": dict(entry.body),
        "epoch": entry.epoch,
        "at": entry.at.isoformat(),
    }


class FileWorld(Outside):
    """Each effect is one line of a file, written at once."""

    def __init__(self, order: Order, fate: Fate, clock: JumpingClock) -> None:
        self._clock = clock
        self._jump = timedelta(seconds=order.clock_jumps_s)
        self._file = _opened(order.world)
        self._leg = order.leg
        self._pause_s = order.pause_s
        self._fate = fate
        self._met: set[str] = set()

    def is_first(self, what: str) -> bool:
        is_first = what not in self._met
        self._met.add(what)
        return is_first

    async def approach(self) -> None:
        self._clock.jump = self._jump
        await asyncio.sleep(self._pause_s)
        self._fate.reach("tool.before")

    async def act(self, deed: Deed) -> None:
        _write(self._file, {"leg": self._leg, "deed": encode(deed)})
        self._fate.reach("tool.after")
        await asyncio.sleep(self._pause_s)

    async def ask(self, question: str) -> None:
        self._clock.jump = self._jump
        _write(self._file, {"leg": self._leg, "question": question})
        self._fate.reach("model")
        await asyncio.sleep(self._pause_s)

    async def aclose(self) -> None:
        """Give the file back."""
        os.close(self._file)


def _opened(name: str) -> int:
    """A file of lines to append to; half a line of a process that was killed is taken away."""
    path = Path(name)
    left = path.read_bytes() if path.exists() else b""
    if not left.endswith(b"\n"):
        path.write_bytes(left[: left.rfind(b"\n") + 1])
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


def _write(file: int, line: Mapping[str, JsonValue]) -> None:
    """At once; a process may be killed between two pages of it."""
    os.write(file, dumps(line).encode() + b"\n")


# --- the leg -----------------------------------------------------------------------------------


def carry_out(order: Order) -> Mapping[str, JsonValue]:
    """What came out: an outline of the result, or the error that refused it."""
    fate = Fate(order.failpoint, is_on_a_server=is_postgres_url(order.database))
    sqlite3.connect = fate.connect  # type: ignore[assignment]  # the process is the leg's alone
    postgres_link.connect = fate.connect_to_server  # type: ignore[attr-defined]  # likewise
    try:
        return {"result": outline(asyncio.run(_run(order, fate)))}
    except MinionsError as error:
        return {"error": {"code": error.error_code, "message": error.message}}


async def _run(order: Order, fate: Fate) -> AgentResult[object]:
    random_run = RandomRun(order.seed)
    clock = JumpingClock()
    async with (
        aclosing(FileWorld(order, fate, clock)) as outside,
        aclosing(WatchedJournal(order, fate, clock)) as journal,
    ):
        services = Services(
            journal=journal,
            clock=clock,
            parser=random_run.parser(),
            lease_ttl_s=order.lease_ttl_s,
        )
        executor = AgentExecutor(
            random_run.model(outside),
            extensions=Extensions(tools=Toolbox(random_run.tools(outside))),
            services=services,
        )
        recipe = random_run.recipe()
        if order.run_id is None:
            return await executor.execute(recipe)
        own = recipe if recipe.document is None else None  # a document travels with the run
        return await executor.resume(order.run_id, recipe=own, decisions=order.decisions)


def outline(result: AgentResult[object]) -> Mapping[str, JsonValue]:
    """What a result says, without what differs from run to run."""
    return {
        "run_id": result.run_id,
        "status": result.status.value,
        "output": encode(result.output),
        "usage": result.usage.to_json(),
        "warnings": [warned.code for warned in result.warnings],
        "steps": [
            [each.step_id, each.status.value, encode(each.output), each.usage.to_json()]
            for each in result.executions
        ],
        "questions": {
            call.key: question_of(call.prompt)
            for each in result.executions
            for call in each.model_calls
        },
    }

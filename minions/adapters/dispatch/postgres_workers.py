"""The workers of a database and their heartbeats, by the clock of the server."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from attrs import frozen

from minions.adapters.dispatch.job_server import QueueLook, WaitingQueue
from minions.adapters.dispatch.postgres_claims import (
    BEGIN_DUE,
    COUNT_STARTS,
    END,
    FORGET_LAST_CLAIMS,
    LOOK,
    NEEDS,
    NOTE_BEGIN,
    RUN_ID,
    SCHEMA,
    SET_SHARES,
    SHARES,
    TABLES,
    WORKFLOW,
    Claim,
    ClaimedJobs,
)
from minions.adapters.dispatch.postgres_news import HAS_TRIGGERS, MAKE_TRIGGERS
from minions.contracts.dispatch import FairShares, QueueLimits, RateLimit, WorkerPlan, WorkerView

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    import psycopg
    from psycopg.rows import TupleRow

    from minions.adapters.dispatch.left_jobs import LeftJobs

_TABLE: Final = f"""
CREATE SCHEMA IF NOT EXISTS {SCHEMA};
CREATE TABLE IF NOT EXISTS {SCHEMA}.minions_workers (
    name text PRIMARY KEY,
    queues text[] NOT NULL,
    slots integer NOT NULL,
    taken integer NOT NULL,
    started_at timestamptz NOT NULL,
    seen_at timestamptz NOT NULL
)
"""
_HAS_COLUMNS: Final = f"""
SELECT count(*) = 3 FROM pg_attribute
WHERE attrelid = '{SCHEMA}.minions_workers'::regclass
    AND attname IN ('stream_url', 'dead_after_s', 'clock_ahead_s')
"""  # noqa: S608  # the schema is a constant
_ADD_COLUMNS: Final = f"""
ALTER TABLE {SCHEMA}.minions_workers ADD COLUMN IF NOT EXISTS stream_url text,
    ADD COLUMN IF NOT EXISTS dead_after_s float8, ADD COLUMN IF NOT EXISTS clock_ahead_s float8
"""
"""Of a table that an earlier version made. Its workers, which may still be alive, leave them NULL.
"""
_IS_ALIVE: Final = "seen_at > clock_timestamp() - make_interval(secs => coalesce(dead_after_s, %s))"
_STREAM_URL: Final = f"""
SELECT stream_url FROM {SCHEMA}.minions_workers
WHERE name = %s AND {_IS_ALIVE}
"""  # noqa: S608
_MAKING: Final = 7_316_082_145
"""Of the advisory lock under which the table is made."""
_BEAT: Final = f"""
WITH beat AS (
    INSERT INTO {SCHEMA}.minions_workers AS known
        (name, queues, slots, taken, started_at, seen_at, stream_url, dead_after_s, clock_ahead_s)
    VALUES (%(name)s, %(queues)s, %(slots)s, %(taken)s, clock_timestamp(), clock_timestamp(),
        %(url)s, %(dead_after_s)s,
        %(clock_s)s::float8 - extract(epoch FROM clock_timestamp())::float8)
    ON CONFLICT (name) DO UPDATE SET taken = excluded.taken, seen_at = excluded.seen_at,
        clock_ahead_s = excluded.clock_ahead_s
), known AS (
    SELECT name, {_IS_ALIVE.replace("%s", "%(usual_s)s")} OR name = %(name)s AS is_alive
    FROM {SCHEMA}.minions_workers
)
SELECT name, is_alive, NULL, (SELECT count(*) FROM known WHERE is_alive) FROM known
WHERE NOT is_alive OR split_part(name, ':', 1) = split_part(%(name)s, ':', 1)
UNION ALL
SELECT executor_id, NULL, workflow_uuid, NULL FROM {SCHEMA}.workflow_status
WHERE status = 'PENDING' AND name = '{WORKFLOW}' AND (
    executor_id = %(name)s
    OR NOT EXISTS (SELECT FROM known WHERE known.name = executor_id AND is_alive))
"""  # noqa: S608  # the schema is a constant
"""All that a worker does with each heartbeat: it tells that it is alive, and learns who else is,
and which jobs it or nobody alive has. Of the living only those of its machine are named, for of
them alone it may know that they have died."""
_TAKEN: Final = f"""
SELECT workflow_uuid FROM {SCHEMA}.workflow_status
WHERE status = 'PENDING' AND name = '{WORKFLOW}' AND executor_id = ANY (%s)
"""  # noqa: S608
_FORGET_OLD: Final = f"""
DELETE FROM {SCHEMA}.minions_workers WHERE seen_at < clock_timestamp() - interval '1 day'
"""  # noqa: S608
_VIEWS: Final = f"""
SELECT name, queues, slots, taken, started_at, seen_at,
    {_IS_ALIVE}, stream_url, clock_ahead_s
FROM {SCHEMA}.minions_workers ORDER BY name
"""  # noqa: S608
_COUNTS: Final = f"""
SELECT queue_name, status, count(*) FROM {SCHEMA}.workflow_status
WHERE status IN ('ENQUEUED', 'DELAYED', 'PENDING') AND name = %s AND queue_name IS NOT NULL
GROUP BY queue_name, status
"""  # noqa: S608
_TO_DO: Final = f"""
SELECT EXISTS (
    SELECT 1 FROM {SCHEMA}.workflow_status WHERE name = %(name)s AND (
        (status = 'ENQUEUED' AND queue_name = ANY (%(queues)s)
            AND {NEEDS} <> ALL (%(needs)s) AND {RUN_ID} <> ALL (%(runs)s))
        OR (status = 'PENDING' AND executor_id = %(worker)s)
    )
)
"""  # noqa: S608
_SERVER_S: Final = "SELECT extract(epoch FROM clock_timestamp())::float8"
_CONNECT_S: Final = 4
_STATEMENT_MS: Final = 10_000


@frozen(kw_only=True)
class Heartbeat:
    """What a worker learns with its heartbeat."""

    living: int
    """How many workers are alive."""
    nearby: frozenset[str]
    """The names of the living on the same machine."""
    dead: frozenset[str]
    """The names of those that were not heard of for too long."""
    own: Sequence[str]
    """Jobs that it has, by what is stored."""
    abandoned: Sequence[str]
    """Jobs of workers that are not alive."""
    look: QueueLook
    """What waits in its queues."""


class PostgresWorkers:
    """One row for each worker. A connection that is lost is opened again at the next call."""

    def __init__(self, url: str, *, dead_after_s: float) -> None:
        """No I/O here.

        Args:
            dead_after_s: Seconds without a heartbeat after which a worker counts as dead that does
                not say it itself.
        """
        self._url = url
        self._dead_after_s = dead_after_s
        self._connection: psycopg.AsyncConnection[TupleRow] | None = None
        self._lock = asyncio.Lock()

    async def make_table(self) -> None:
        """Make the table where there is none.

        Raises:
            psycopg.Error: It cannot be made.
        """
        async with self._lock:
            db = await self._connect()
            async with db.transaction():
                await db.execute("SELECT pg_advisory_xact_lock(%s)", [_MAKING])
                await db.execute(_TABLE)
                await db.execute(TABLES)
                found = await (await db.execute(_HAS_COLUMNS)).fetchone()
                if found is None or not found[0]:
                    await db.execute(_ADD_COLUMNS)

    async def make_triggers(self) -> None:
        """Let the server tell of jobs from now on; the tables of jobs have to be there.

        Raises:
            psycopg.Error: They are not, or it may not be done.
        """
        async with self._lock:
            db = await self._connect()
            async with db.transaction():
                found = await (await db.execute(HAS_TRIGGERS)).fetchone()
                if found is None or not found[0]:
                    await db.execute("SELECT pg_advisory_xact_lock(%s)", [_MAKING])
                    await db.execute(MAKE_TRIGGERS)

    async def beat(
        self,
        plan: WorkerPlan,
        taken: int,
        left: LeftJobs,
        dead_after_s: float | None = None,
        clock_s: float | None = None,
    ) -> Heartbeat:
        """Say that a worker is alive, learn who else is, and look for jobs: two statements in one
        round trip, and one transaction.

        Args:
            dead_after_s: Seconds without a further heartbeat after which others take it for dead;
                None: as they do where nothing is said.
            clock_s: The worker's clock, in seconds since 1970; None: it is not said.
        Raises:
            psycopg.Error: The server cannot be reached.
        """
        values = {
            "name": plan.name,
            "queues": list(plan.queues),
            "slots": plan.slots,
            "taken": taken,
            "url": plan.stream_url,
            "dead_after_s": dead_after_s,
            "clock_s": clock_s,
            "usual_s": self._dead_after_s,
        }
        async with self._lock:
            db = await self._connect()
            async with db.pipeline():
                beaten = await db.execute(_BEAT, values)
                looked = await db.execute(LOOK, _look_values(plan.queues, left))
                rows, found = await beaten.fetchall(), await looked.fetchall()
        workers = {name: is_alive for name, is_alive, job, _ in rows if job is None}
        living = max((count for *_, count in rows if count is not None), default=0)
        nearby = frozenset(name for name, is_alive in workers.items() if is_alive) | {plan.name}
        jobs = [(name, job) for name, _, job, _ in rows if job is not None]
        return Heartbeat(
            living=max(1, living),
            nearby=nearby,
            dead=frozenset(workers) - nearby,
            own=[job for name, job in jobs if name == plan.name],
            abandoned=[job for name, job in jobs if name != plan.name],
            look=_look_of(found),
        )

    async def taken_by(self, workers: Collection[str]) -> Sequence[str]:
        """The names of the jobs that these workers have.

        Raises:
            psycopg.Error: The server cannot be reached.
        """
        async with self._lock:
            db = await self._connect()
            rows = await (await db.execute(_TAKEN, [sorted(workers)])).fetchall()
        return [name for (name,) in rows]

    async def look(self, queues: Sequence[str], left: LeftJobs) -> QueueLook:
        """What waits in these queues, but for what a worker leaves to others; one statement.

        Raises:
            psycopg.Error: The server cannot be reached.
        """
        async with self._lock:
            db = await self._connect()
            return _look_of(await (await db.execute(LOOK, _look_values(queues, left))).fetchall())

    async def claim(self, wanted: Claim) -> ClaimedJobs:
        """Take the jobs that may begin now.

        Raises:
            psycopg.Error: The server cannot be reached. Whether jobs were taken is not known then.
        """
        async with self._lock:
            db = await self._connect()
            async with db.transaction():
                asking = wanted.statements()
                sql, values = next(asking)
                while True:
                    rows = await (await db.execute(sql.encode(), values)).fetchall()
                    try:
                        sql, values = asking.send(rows)
                    except StopIteration as end:
                        found: ClaimedJobs = end.value
                        break
        return found

    async def end(self, worker: str, words: Mapping[str, str]) -> None:
        """Store that jobs of a worker have ended; one that it no longer has stays as it is.

        Args:
            words: What became of each, in JSON, by its name.
        Raises:
            psycopg.Error: The server cannot be reached.
        """
        values = {"worker": worker, "names": list(words), "words": list(words.values())}
        async with self._lock:
            await (await self._connect()).execute(END, values)

    async def job_counts(self) -> Mapping[tuple[str, str], int]:
        """How many jobs have not ended, by queue and the engine's word for their state.

        Raises:
            psycopg.Error: The server cannot be reached.
        """
        async with self._lock:
            db = await self._connect()
            rows = await (await db.execute(_COUNTS, [WORKFLOW])).fetchall()
        return {(queue, status): count for queue, status, count in rows}

    async def has_work(
        self, plan: WorkerPlan, left_needs: Sequence[str], left_runs: Sequence[str]
    ) -> bool:
        """Whether a job waits in the worker's queues, or the worker has one.

        Args:
            left_needs: Keys of needs whose jobs it does not take.
            left_runs: Ids of runs whose jobs it does not take.
        Raises:
            psycopg.Error: The server cannot be reached.
        """
        asked = {
            "name": WORKFLOW,
            "queues": list(plan.queues),
            "worker": plan.name,
            "needs": list(left_needs),
            "runs": list(left_runs),
        }
        async with self._lock:
            db = await self._connect()
            row = await (await db.execute(_TO_DO, asked)).fetchone()
        return row is not None and bool(row[0])

    async def server_s(self) -> float:
        """The clock of the server, in seconds since 1970.

        Raises:
            psycopg.Error: The server cannot be reached.
        """
        async with self._lock:
            db = await self._connect()
            row = await (await db.execute(_SERVER_S)).fetchone()
        return 0.0 if row is None else float(row[0])

    async def begin_due(self) -> None:
        """Let delayed jobs wait for a worker whose time has come by the clock of the server.

        Raises:
            psycopg.Error: The server cannot be reached.
        """
        async with self._lock:
            db = await self._connect()
            await db.execute(BEGIN_DUE)

    async def note_begin(self, jobs: Sequence[str]) -> None:
        """Store that jobs have begun which a limit counts from then on.

        Args:
            jobs: Their names.
        Raises:
            psycopg.Error: The server cannot be reached.
        """
        async with self._lock:
            db = await self._connect()
            await db.execute(NOTE_BEGIN, {"jobs": list(jobs), "now_ms": None})

    async def count_starts(self, queue: str, period_s: float) -> None:
        """Let a limit on rate count the jobs that began before it was set.

        Raises:
            psycopg.Error: The server cannot be reached.
        """
        async with self._lock:
            db = await self._connect()
            asked = {"queue": queue, "period_ms": period_s * 1000, "now_ms": None}
            await db.execute(COUNT_STARTS, asked)

    async def set_shares(self, limits: QueueLimits) -> None:
        """Store whose jobs of a queue take turns.

        Raises:
            psycopg.Error: The server cannot be reached.
        """
        shares = limits.shares
        rate = None if shares is None else shares.rate
        values = {
            "queue": limits.name,
            "by": None if shares is None else shares.by,
            "per_key": None if shares is None else shares.per_key,
            "key_starts": None if rate is None else rate.starts,
            "key_period_s": None if rate is None else rate.period_s,
            "age_s": limits.age_s,
        }
        async with self._lock:
            await (await self._connect()).execute(SET_SHARES, values)

    async def shares(self, queue: str | None = None) -> Mapping[str, QueueLimits]:
        """The queues that take turns, by name; of their limits no others are said.

        Args:
            queue: The only one that is looked up; None: all.
        Raises:
            psycopg.Error: The server cannot be reached.
        """
        wanted, values = (SHARES, []) if queue is None else (f"{SHARES} WHERE name = %s", [queue])
        async with self._lock:
            rows = await (await (await self._connect()).execute(wanted, values)).fetchall()
        return {
            name: QueueLimits(
                name=name,
                shares=None
                if by is None
                else FairShares(
                    by=by,
                    per_key=per_key,
                    rate=None if starts is None else RateLimit(starts=starts, period_s=period_s),
                ),
                age_s=age_s,
            )
            for name, by, per_key, starts, period_s, age_s in rows
            if (by, age_s) != (None, None)
        }

    async def forget_queue(self, name: str) -> None:
        """Forget whose jobs of a queue take turns.

        Raises:
            psycopg.Error: The server cannot be reached.
        """
        async with self._lock:
            db = await self._connect()
            await db.execute(
                f"DELETE FROM {SCHEMA}.minions_queues WHERE name = %s",  # noqa: S608
                [name],
            )

    async def forget_old(self) -> None:
        """Forget workers that were not heard of for a day, and the last claims of keys of which
        nothing was claimed for as long.

        Raises:
            psycopg.Error: The server cannot be reached.
        """
        async with self._lock:
            db = await self._connect()
            await db.execute(_FORGET_OLD)
            await db.execute(FORGET_LAST_CLAIMS)

    async def forget(self, name: str) -> None:
        """Remove a worker that has ended.

        Raises:
            psycopg.Error: The server cannot be reached.
        """
        async with self._lock:
            db = await self._connect()
            await db.execute(
                f"DELETE FROM {SCHEMA}.minions_workers WHERE name = %s",  # noqa: S608
                [name],
            )

    async def views(self) -> Sequence[WorkerView]:
        """All workers that were heard of within a day, by name.

        Raises:
            psycopg.Error: The server cannot be reached.
        """
        async with self._lock:
            db = await self._connect()
            rows = await (await db.execute(_VIEWS, [self._dead_after_s])).fetchall()
        return [
            WorkerView(
                name=name,
                queues=tuple(queues),
                slots=slots,
                taken=taken,
                started_at=started_at,
                seen_at=seen_at,
                is_alive=is_alive,
                stream_url=url,
                clock_ahead_s=ahead_s,
            )
            for name, queues, slots, taken, started_at, seen_at, is_alive, url, ahead_s in rows
        ]

    async def stream_url(self, name: str) -> str | None:
        """Where a worker that is alive offers the pieces of answers; None: nowhere.

        It only reads: a database without workers, or with those of an earlier version, has none.

        Raises:
            psycopg.Error: The server cannot be reached.
        """
        import psycopg

        async with self._lock:
            db = await self._connect()
            try:
                found = await db.execute(_STREAM_URL, [name, self._dead_after_s])
                row = await found.fetchone()
            except (psycopg.errors.UndefinedTable, psycopg.errors.UndefinedColumn):
                return None
        return None if row is None else row[0]

    async def aclose(self) -> None:
        """Close the connection; a later call connects again."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def _connect(self) -> psycopg.AsyncConnection[TupleRow]:
        import psycopg

        if self._connection is not None and not self._connection.closed:
            return self._connection
        self._connection = await psycopg.AsyncConnection.connect(
            self._url,
            autocommit=True,
            connect_timeout=_CONNECT_S,
            options=f"-c statement_timeout={_STATEMENT_MS}",
        )
        return self._connection


def _look_values(queues: Sequence[str], left: LeftJobs) -> Mapping[str, object]:
    return {"queues": list(queues), "needs": left.needs, "runs": left.runs}


def _look_of(rows: Sequence[TupleRow]) -> QueueLook:
    found = [
        WaitingQueue(
            name=name,
            waits=waits,
            concurrency=concurrency,
            per_worker=per_worker,
            starts=starts,
            period_s=period_s or 0.0,
        )
        for name, concurrency, per_worker, starts, period_s, waits, _, _ in rows
    ]
    key, due_s = rows[0][6:] if rows else (None, None)
    return QueueLook(queues=found, next_key=key or "", next_s=due_s)

"""Jobs as rows of PostgreSQL, and claims of them with a clock that is handed in."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

from minions.adapters.dispatch.postgres_claims import SCHEMA, Claim, ClaimedJobs
from minions.adapters.dispatch.postgres_workers import PostgresWorkers
from minions.contracts.dispatch import QueueLimits
from postgres import PostgresServer

if TYPE_CHECKING:
    import psycopg

__all__ = ["carry_out", "claim", "connected", "end", "insert", "rows_of", "set_limits", "take"]

Query: TypeAlias = Callable[[str, Mapping[str, object]], Sequence[Sequence[object]]]


@contextmanager
def connected(server: PostgresServer) -> Iterator[Sequence[psycopg.Connection[Any]]]:
    """Two connections to a database with the tables of queues."""
    import psycopg

    from minions.adapters.dispatch.dbos_dispatch import make_job_tables

    with server.database() as url:
        make_job_tables(url)
        asyncio.run(_make_tables(url))
        first, second = (psycopg.connect(url, autocommit=True) for _ in range(2))
        with first, second:
            yield first, second


async def _make_tables(url: str) -> None:
    workers = PostgresWorkers(url, dead_after_s=60)
    await workers.make_table()
    await workers.make_triggers()
    await workers.aclose()


def set_limits(db: psycopg.Connection[Any], limits: QueueLimits) -> None:
    """Store how the queue shares, and forget all jobs and turns."""
    for table in ("workflow_status", "minions_last_claims", "minions_queues"):
        db.execute(f"DELETE FROM {SCHEMA}.{table}".encode())

    async def store() -> None:
        workers = PostgresWorkers(db.info.dsn, dead_after_s=60)
        await workers.set_shares(limits)
        await workers.aclose()

    asyncio.run(store())


def insert(
    db: psycopg.Connection[Any],
    jobs: Sequence[tuple[str, int, str, float]],
) -> None:
    """Let jobs wait: their names, priorities, keys, and times of submission in seconds."""
    with db.cursor() as cursor:
        cursor.executemany(
            f"INSERT INTO {SCHEMA}.workflow_status (workflow_uuid, status, name, queue_name, "
            "priority, queue_partition_key, application_name, application_version, created_at, "
            "updated_at) VALUES (%s, 'ENQUEUED', 'minions.execute', 'work', %s, %s, 'minions', "
            "'v', %s, 0)",
            [(name, 2 * priority + 2, key, at_s * 1000) for name, priority, key, at_s in jobs],
        )


def claim(most: int = 1, **changes: Any) -> Claim:
    """Of a worker of the queue `work`."""
    return Claim(
        **{
            "queue": "work",
            "worker": "w",
            "owner": "w",
            "application": "minions",
            "version": "v",
            "most": most,
            **changes,
        }
    )


def take(db: psycopg.Connection[Any], wanted: Claim, now_s: float) -> ClaimedJobs:
    """What it takes at that time."""
    with db.transaction():
        return carry_out(db, wanted, now_s)


def carry_out(
    db: psycopg.Connection[Any], wanted: Claim, now_s: float, query: Query | None = None
) -> ClaimedJobs:
    """The same within a transaction that is open.

    Args:
        query: Gives the rows of a statement; None: those of the database.
    """
    asked = query or rows_of(db)
    asking = wanted.statements(now_s * 1000)
    sql, values = next(asking)
    while True:
        try:
            sql, values = asking.send(asked(sql, values))
        except StopIteration as end:
            found: ClaimedJobs = end.value
            return found


def rows_of(db: psycopg.Connection[Any]) -> Query:
    """What gives the rows of a statement."""

    def query(sql: str, values: Mapping[str, object]) -> Sequence[Sequence[object]]:
        return db.execute(sql.encode(), values).fetchall()

    return query


def end(db: psycopg.Connection[Any], names: Sequence[str]) -> None:
    """Let jobs have ended."""
    db.execute(
        f"UPDATE {SCHEMA}.workflow_status SET status = 'SUCCESS' WHERE workflow_uuid = ANY (%s)",
        [list(names)],
    )

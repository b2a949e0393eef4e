"""The table of workers in PostgreSQL, also one that an earlier version made."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import closing

import pytest

from minions.adapters.dispatch.dbos_dispatch import make_job_tables
from minions.adapters.dispatch.left_jobs import LeftJobs
from minions.adapters.dispatch.postgres_workers import PostgresWorkers
from minions.contracts.dispatch import WorkerPlan

pytest.importorskip("dbos", reason="dbos is not installed: pip install 'minions-engine[dbos]'")

OLD_TABLE = """
CREATE SCHEMA minions_dispatch;
CREATE TABLE minions_dispatch.minions_workers (
    name text PRIMARY KEY, queues text[] NOT NULL, slots integer NOT NULL,
    taken integer NOT NULL, started_at timestamptz NOT NULL, seen_at timestamptz NOT NULL
)
"""
OLD_BEAT = """
INSERT INTO minions_dispatch.minions_workers AS known
    (name, queues, slots, taken, started_at, seen_at)
VALUES ('old', '{a}', 1, 0, clock_timestamp(), clock_timestamp())
ON CONFLICT (name) DO UPDATE SET taken = excluded.taken, seen_at = excluded.seen_at
"""
LEFT = LeftJobs(lambda: 0.0)
OPEN = WorkerPlan(name="open", stream_url="http://worker.example:8650")


@pytest.fixture
async def workers(empty_postgres_url: str) -> AsyncIterator[PostgresWorkers]:
    made = PostgresWorkers(empty_postgres_url, dead_after_s=30)
    yield made
    await made.aclose()


def execute(url: str, sql: str) -> None:
    import psycopg

    with closing(psycopg.connect(url, autocommit=True)) as db:
        db.execute(sql.encode())


async def test_a_worker_says_where_its_stream_is(
    workers: PostgresWorkers, empty_postgres_url: str
) -> None:
    await workers.make_table()
    await asyncio.to_thread(make_job_tables, empty_postgres_url)
    await workers.beat(OPEN, 0, LEFT)
    await workers.beat(OPEN, 1, LEFT)
    await workers.beat(WorkerPlan(name="silent"), 0, LEFT)
    assert {each.name: each.stream_url for each in await workers.views()} == {
        "open": "http://worker.example:8650",
        "silent": None,
    }
    assert await workers.stream_url("open") == "http://worker.example:8650"
    assert await workers.stream_url("silent") is None
    assert await workers.stream_url("nobody") is None


async def test_a_dead_worker_has_no_stream(
    workers: PostgresWorkers, empty_postgres_url: str
) -> None:
    await workers.make_table()
    await asyncio.to_thread(make_job_tables, empty_postgres_url)
    await workers.beat(OPEN, 0, LEFT)
    execute(
        empty_postgres_url,
        "UPDATE minions_dispatch.minions_workers SET seen_at = now() - interval '31 seconds'",
    )
    assert await workers.stream_url("open") is None


async def test_a_table_of_an_earlier_version_gets_the_column_while_its_workers_live(
    workers: PostgresWorkers, empty_postgres_url: str
) -> None:
    execute(empty_postgres_url, OLD_TABLE)
    execute(empty_postgres_url, OLD_BEAT)
    others = [PostgresWorkers(empty_postgres_url, dead_after_s=30) for _ in range(4)]
    await asyncio.gather(*(each.make_table() for each in (workers, *others)))
    for each in others:
        await each.aclose()
    await asyncio.to_thread(make_job_tables, empty_postgres_url)
    await workers.beat(OPEN, 0, LEFT)
    execute(empty_postgres_url, OLD_BEAT)
    found = {each.name: each.stream_url for each in await workers.views()}
    assert found == {"old": None, "open": OPEN.stream_url}


async def test_who_only_reads_makes_no_table(
    workers: PostgresWorkers, empty_postgres_url: str
) -> None:
    assert await workers.stream_url("open") is None
    execute(empty_postgres_url, OLD_TABLE)  # which would fail if there was one
    assert await workers.stream_url("open") is None

"""A claim costs the same whether a thousand jobs wait or ten thousand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from claiming import claim, connected, insert, set_limits, take
from minions.adapters.dispatch.postgres_claims import SCHEMA
from minions.contracts.dispatch import FairShares, QueueLimits
from postgres import PostgresServer

if TYPE_CHECKING:
    import psycopg

_BLOCKS = f"""
SELECT coalesce(sum(heap_blks_read + heap_blks_hit + idx_blks_read + idx_blks_hit), 0)::bigint
FROM pg_statio_user_tables WHERE schemaname = '{SCHEMA}' AND relname = 'workflow_status'
"""


def blocks_of_a_claim(db: psycopg.Connection[Any], waiting: int, **limits: Any) -> int:
    """Touched by a claim of eight jobs where so many wait; of three claims the least."""
    set_limits(db, QueueLimits(name="work", **limits))
    keys = [f"user_{number % 5}" for number in range(waiting)]
    insert(db, [(f"run_{at}@1", at % 3, key, at / 1000) for at, key in enumerate(keys)])
    db.execute(f"VACUUM ANALYZE {SCHEMA}.workflow_status".encode())
    touched = []
    for number in range(4):
        before = _read(db)
        found = take(db, claim(most=8, concurrency=limits.get("concurrency")), 10_000 + number)
        assert len(found.names) == 8
        touched.append(_read(db) - before)
    return min(touched[1:])


def _read(db: psycopg.Connection[Any]) -> int:
    db.execute("SELECT pg_stat_force_next_flush()")
    row = db.execute(_BLOCKS.encode()).fetchone()
    return 0 if row is None else int(row[0])


@pytest.mark.parametrize(
    "limits", [{}, {"concurrency": 100}, {"shares": FairShares(by="user")}], ids=str
)
def test_a_claim_touches_no_more_blocks_where_more_jobs_wait(
    postgres: PostgresServer, limits: dict[str, Any]
) -> None:
    """In a queue as it is, with a limit over all workers, and with fair shares."""
    with connected(postgres) as (db, _):
        few = blocks_of_a_claim(db, 1_000, **limits)
        many = blocks_of_a_claim(db, 10_000, **limits)
    assert many <= 1.2 * few, (few, many)

"""What is done all the time costs the same in a database of many runs as in one of few.

`python -m benchmarks.postgres_growth` does it with a million, in six minutes.
"""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from benchmarks.postgres_growth import FEW, fill, measure
from minions import Minions, ScriptedModel
from minions.adapters.stores.postgres_journal import remove_session
from minions.contracts.runtime import SystemClock
from minions.services import PostgresJournal
from postgres import PostgresServer

psycopg = pytest.importorskip("psycopg", reason="psycopg is not installed")

_MORE = 30
"""Blocks: an index of a hundred times as many rows has a level more, and the plan of a statement
looks at both ends of large ones, some 15 blocks. A count up to a thousand reads rows from the index
or from their pages, 9 blocks or 38, as the server likes."""


@pytest.mark.parametrize("many", [10_000, pytest.param(100_000, marks=pytest.mark.long)])
async def test_operations_touch_no_more_blocks_where_more_runs_are_stored(
    postgres: PostgresServer, many: int
) -> None:
    """A-127, A-184: lists, filters, counts, resume, a new run and a removed one."""
    counts = []
    for runs in (FEW, many):
        with postgres.database() as url:
            await fill(url, runs)
            counts.append(await measure(url))
    few, more = counts
    grown = {name: (few[name], more[name]) for name in few if more[name] > 1.2 * few[name] + _MORE}
    assert grown == {}


async def test_a_session_is_removed_without_holding_anybody_up(postgres_url: str) -> None:
    """A-184: while its transaction is open, lists, runs and removals of other sessions go on."""
    journal = PostgresJournal(postgres_url, SystemClock(), statement_timeout_s=2.0)
    async with (
        Minions(model=ScriptedModel([]), journal=journal) as app,
        await psycopg.AsyncConnection.connect(postgres_url, autocommit=True) as db,
    ):
        old, other, third = [await app.arun(_chain(2), {}) for _ in range(3)]
        async with db.transaction():
            now = datetime.now(UTC)
            assert await remove_session(db, old.session_id, None, now, None)
            assert await journal.remove_session(other.session_id)
            again = await app.arun(_chain(2), {}, session=third.session_id)
            new = await app.arun(_chain(2), {})
            listed = {row.run_id for row in await journal.runs()}
            assert listed == {old.run_id, third.run_id, again.run_id, new.run_id}
        listed = {row.run_id for row in await journal.runs()}
        assert listed == {third.run_id, again.run_id, new.run_id}
    await journal.aclose()


async def test_a_step_is_one_transaction_of_little_log(postgres_url: str) -> None:
    """Of a run that is alone; runs beside each other share transactions."""
    async with (
        Minions(model=ScriptedModel([]), journal=postgres_url) as app,
        await psycopg.AsyncConnection.connect(postgres_url, autocommit=True) as db,
    ):

        async def written(steps: int) -> tuple[int, int]:
            """By a run: its transactions, and bytes of the server's log."""
            before = await (await db.execute(_WRITTEN)).fetchone()
            await app.arun(_chain(steps), {})
            after = await (await db.execute(_WRITTEN)).fetchone()
            assert before is not None
            assert after is not None
            return after[0] - before[0], after[1] - before[1]

        await written(60)
        few, many = await written(10), await written(60)
    assert many[0] - few[0] == 50
    assert (many[1] - few[1]) / 50 <= 1_200


_WRITTEN = """
SELECT txid_snapshot_xmax(txid_current_snapshot()),
    (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint
"""


def _chain(steps: int) -> str:
    """A recipe of so many steps, one after the other."""
    lines = [
        f"  - {{id: s{at}, set: {{n: 1}}{f', depends_on: [s{at - 1}]' if at else ''}}}"
        for at in range(steps)
    ]
    return "\n".join(["id: chain", "steps:", *lines])

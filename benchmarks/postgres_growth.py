"""How many blocks of PostgreSQL an operation touches, with a million runs against a thousand.

`python -m benchmarks.postgres_growth 1000000` prints the table of docs/scale.md. Blocks are counted
by the server and do not depend on the machine. The server is started for it.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import closing
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Final

from attrs import frozen

from minions import Minions, ScriptedModel
from minions.contracts.executions import RunState
from minions.contracts.journal.facts import Fact, UnreadableFact
from minions.contracts.journal.journal import EntryDraft
from minions.contracts.journal.run_rows import Expiry, RunFilter, RunRow, SessionFilter
from minions.contracts.runtime import SystemClock
from minions.services import PostgresJournal

if TYPE_CHECKING:
    from minions.adapters.stores.postgres_link import Attempt

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

FEW: Final = 1_000
_WAITING: Final = 10
"""Runs that wait for a person, however many there are in all."""
_USERS, _RECIPES, _PROJECTS = 10, 4, 3
_DONE: Final = "id: done\nsteps: [{id: a, set: {n: 1}}, {id: b, set: {n: 2}}]\n"
_ASKS: Final = "id: asks\nsteps: [{id: who, ask: 'Fine?'}]\n"

# Copies of the one run that was recorded, in every table as they would be stored: of ten users,
# four recipes and three projects, spread over 23 days. User 1 and recipe 1 have no failed run.
_COPY: Final = (
    "SET session_replication_role = replica",  # no triggers: the rows are made here, too
    "SET synchronous_commit = off",
    # What vacuum has looked at must not depend on when it comes by itself.
    """
DO $$ DECLARE name regclass; BEGIN
    FOR name IN SELECT oid FROM pg_class WHERE relnamespace = 'minions'::regnamespace
        AND relkind = 'r'
    LOOP EXECUTE format('ALTER TABLE %%s SET (autovacuum_enabled = false)', name); END LOOP;
END $$
""",
    f"""
CREATE TEMP TABLE copies AS SELECT number, 'ses_' || lpad(number::text, 8, '0') AS session_id,
    'run_' || lpad(number::text, 8, '0') AS run_id, 'user_' || number %% {_USERS} AS user_name,
    'project_' || number %% {_PROJECTS} AS project, 'recipe_' || number %% {_RECIPES} AS recipe,
    CASE WHEN number %% 4 = 0 THEN 'failed' ELSE 'completed' END AS status,
    make_interval(secs => 2000000.0 / %(count)s * number) AS ago
FROM generate_series(1, %(count)s) AS number
""",
    """
INSERT INTO minions.entries (session_id, position, run_id, generation, key, kind, state, body,
    epoch, at, chain)
SELECT c.session_id, position, c.run_id, generation, key, kind, state, body, epoch, at - ago, chain
FROM copies c, minions.entries e WHERE e.session_id = %(session)s
""",
    """
INSERT INTO minions.leases (session_id, run_id, worker_id, epoch, generation, deadline,
    last_position, chain)
SELECT c.session_id, c.run_id, worker_id, epoch, generation, deadline, last_position, chain
FROM copies c, minions.leases l WHERE l.session_id = %(session)s
""",
    """
INSERT INTO minions.runs SELECT (jsonb_populate_record(one, jsonb_build_object(
    'run_id', c.run_id, 'session_id', c.session_id, 'started_at', one.started_at - ago,
    'recipe', c.recipe, 'status', c.status, 'user_name', c.user_name, 'project', c.project))).*
FROM copies c, minions.runs one WHERE one.session_id = %(session)s
""",
    """
INSERT INTO minions.sessions SELECT (jsonb_populate_record(one, jsonb_build_object(
    'session_id', c.session_id, 'updated_at', one.updated_at - ago, 'user_name', c.user_name,
    'project', c.project))).*
FROM copies c, minions.sessions one WHERE one.session_id = %(session)s
""",
    "VACUUM ANALYZE",
)

_BLOCKS: Final = """
SELECT coalesce(sum(heap_blks_read + heap_blks_hit + coalesce(idx_blks_read + idx_blks_hit, 0)
    + coalesce(toast_blks_read + toast_blks_hit + tidx_blks_read + tidx_blks_hit, 0)), 0)::bigint
FROM pg_statio_user_tables WHERE schemaname = 'minions'
"""


async def fill(url: str, runs: int) -> None:
    """Record a run, copy it so many times, and record some that wait for a person."""
    import psycopg

    async with Minions(model=ScriptedModel([]), journal=url) as app:
        session = (await app.arun(_DONE, {})).session_id
        for _ in range(_WAITING):
            await app.arun(_ASKS, {})
        await app.services.journal.count_runs()  # their rows are made
    with closing(psycopg.connect(url, autocommit=True)) as db:
        cursor = psycopg.ClientCursor(db)
        for statement in _COPY:
            cursor.execute(statement.encode(), {"count": runs, "session": session})


class CountedJournal(PostgresJournal):
    """Says how many blocks its tables and indexes were touched."""

    async def read_blocks(self) -> int:
        """Since the database was made, by this connection and all that are closed."""

        async def read(attempt: Attempt) -> int:
            db = attempt.connection
            await db.execute("SELECT pg_stat_force_next_flush()")  # PostgreSQL 15
            found = await (await db.execute(_BLOCKS)).fetchone()
            return 0 if found is None else int(found[0])

        return await self._link.run(read)


@frozen(kw_only=True)
class Place:
    """A journal, and what is looked for in it."""

    journal: CountedJournal
    page: Sequence[RunRow]
    """The newest runs."""
    key: str
    start: Fact
    """With which one of them began, and its key."""
    numbers: count[int]

    async def store_run(self, session_id: str, run_id: str) -> None:
        """A lease, the fact of a start, and the lease given back."""
        lease = await self.journal.acquire(session_id, run_id, "w", 60.0, next_generation=True)
        await self.journal.append(lease, EntryDraft(key=self.key, fact=self.start))
        await self.journal.release(lease)

    async def resume(self) -> None:
        """What a resume reads, and its first fact."""
        row = self.page[next(self.numbers)]
        await self.journal.runs(RunFilter(id_start=row.run_id), limit=3)
        await self.journal.entries(row.session_id)
        await self.store_run(row.session_id, row.run_id)


Work = Callable[[Place], Awaitable[object]]


def _runs(**fields: object) -> Work:
    wanted = RunFilter(**fields)  # type: ignore[arg-type]  # names and values of its fields
    return lambda at: at.journal.runs(wanted, limit=50)


def _too_old(at: Place, days: int) -> SessionFilter:
    now = at.page[0].started_at
    return SessionFilter(expiry=Expiry(now=now, ended_by=now - timedelta(days=days)))


_FAILED, _WAITS = [RunState.FAILED], [RunState.NEEDS_DECISION]
OPERATIONS: Final[Mapping[str, Work]] = {
    "the newest runs": _runs(),
    "the runs behind one": lambda at: at.journal.runs(limit=50, after=at.page[150]),
    "completed runs": _runs(statuses=[RunState.COMPLETED]),
    "runs that wait for a person": _runs(statuses=_WAITS),
    "runs of a recipe": _runs(recipe="recipe_1"),
    "runs of a user": _runs(user="user_1"),
    "runs of a project": _runs(project="project_1"),
    "runs of an unknown recipe": _runs(recipe="none"),
    "failed runs of a user who has none": _runs(user="user_1", statuses=_FAILED),
    "failed runs of a recipe that has none": _runs(recipe="recipe_1", statuses=_FAILED),
    "completed runs of a user behind one": lambda at: at.journal.runs(
        RunFilter(user="user_1", statuses=[RunState.COMPLETED]), limit=50, after=at.page[150]
    ),
    "waiting runs of a project that has none": _runs(project="project_1", statuses=_WAITS),
    "the run of an id": lambda at: at.journal.runs(RunFilter(run_ids=[at.page[100].run_id])),
    "runs whose id starts so": lambda at: at.journal.runs(
        RunFilter(id_start=at.page[100].run_id[:-1]), limit=3
    ),
    "whether a start of an id is ambiguous": lambda at: at.journal.is_ambiguous("run_0"),
    "a frequent text": _runs(text="recipe_1"),
    "the newest sessions": lambda at: at.journal.sessions(limit=50),
    "sessions of a user": lambda at: at.journal.sessions(SessionFilter(user="user_1"), limit=50),
    "sessions that are too old, a page": lambda at: at.journal.sessions(_too_old(at, 1), limit=50),
    "sessions that are too old, of none": lambda at: at.journal.sessions(
        _too_old(at, 60), limit=50
    ),
    "how many runs, up to 1,000": lambda at: at.journal.count_runs(at_most=1_000),
    "how many sessions, up to 1,000": lambda at: at.journal.count_sessions(at_most=1_000),
    "the facts of a run": lambda at: at.journal.entries(run_id=at.page[100].run_id),
    "leases that are held": lambda at: at.journal.held_leases(),
    "a new run": lambda at: at.store_run(f"new_{next(at.numbers)}", f"run_{next(at.numbers)}_new"),
    "a resumed run": lambda at: at.resume(),
    "a removed session": lambda at: at.journal.remove_session(
        at.page[100 + next(at.numbers)].session_id
    ),
}
"""What is done all the time, of which nothing may depend on what is stored."""


async def measure(url: str) -> dict[str, int]:
    """Blocks that each operation touches, the least of three times after a first one."""
    journal = CountedJournal(url, SystemClock())
    found: dict[str, int] = {}
    try:
        page = await journal.runs(limit=300)
        (start, *_) = await journal.entries(page[250].session_id, kinds=["run"])
        assert not isinstance(start.fact, UnreadableFact)
        place = Place(journal=journal, page=page, key=start.key, start=start.fact, numbers=count(1))
        for name, work in OPERATIONS.items():
            await work(place)
            touched = []
            for _ in range(3):
                before = await journal.read_blocks()
                await work(place)
                touched.append(await journal.read_blocks() - before)
            found[name] = min(touched)
    finally:
        await journal.aclose()
    return found


async def compare(many: int) -> dict[str, tuple[int, int]]:
    """Blocks of each operation with few runs and with many."""
    from postgres import postgres_server

    found = []
    with postgres_server() as server:
        for runs in (FEW, many):
            url = server.url(server.new_database())
            await fill(url, runs)
            found.append(await measure(url))
    few, more = found
    return {name: (few[name], more[name]) for name in few}


def main() -> None:
    """Print the table."""
    many = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    print(f"| blocks touched | {FEW:,} runs | {many:,} runs |")  # the result
    print("|---|---|---|")
    for name, (few, more) in asyncio.run(compare(many)).items():
        print(f"| {name} | {few} | {more} |")


if __name__ == "__main__":
    main()

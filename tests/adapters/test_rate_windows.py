"""No window of the length of a queue's limit on rate has more starts than the limit says."""

from __future__ import annotations

import asyncio
import bisect
import random
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pytest
from attrs import field, mutable
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from claiming import carry_out, connected
from minions.adapters.dispatch.local_dispatch import LocalDispatch
from minions.adapters.dispatch.postgres_claims import NOTE_BEGIN, SCHEMA, Claim
from minions.contracts.dispatch import Job, JobEnd, QueueLimits, RateLimit
from minions.testing.dispatch_suite import job, plan
from minions.testing.virtual_time import VirtualTime
from postgres import PostgresServer

if TYPE_CHECKING:
    import psycopg

STARTS = st.integers(1, 6)
PERIOD_S = st.integers(1, 20)
ARRIVALS_S = st.lists(st.integers(0, 60), min_size=1, max_size=40)
SEEDS = st.integers(0, 2**32 - 1)


def most_in_a_window(begun: Sequence[float], period_s: float) -> int:
    """The most starts in any window that is open at its end."""
    times = sorted(begun)
    return max(
        (bisect.bisect_left(times, at + period_s) - index for index, at in enumerate(times)),
        default=0,
    )


@given(starts=STARTS, period_s=PERIOD_S, arrivals_s=ARRIVALS_S, seed=SEEDS)
def test_in_one_process(starts: int, period_s: int, arrivals_s: list[int], seed: int) -> None:
    """With three workers, and a limit that is set when some jobs have begun."""
    time, choices = VirtualTime(), random.Random(seed)  # of a test
    begun: list[float] = []
    dispatch = LocalDispatch(time, time.sleep)

    async def execute(_job: Job) -> JobEnd:
        begun.append(time.monotonic())
        await time.sleep(choices.choice([0, 0, 1, 7]))
        return JobEnd()

    async def arrive(number: int, at_s: int) -> None:
        await time.sleep(at_s)
        await dispatch.submit(job(f"run_{number}"))

    async def work() -> None:
        stop = asyncio.Event()
        workers = [
            asyncio.ensure_future(
                dispatch.serve(
                    execute, plan(name=f"host:{each}:1+w", ends_when_idle=False, slots=4), stop
                )
            )
            for each in range(3)
        ]
        arriving = [asyncio.ensure_future(arrive(*each)) for each in enumerate(arrivals_s)]
        await time.sleep(choices.choice([0, 5]))
        set_at, before = time.monotonic(), len(begun)
        rate = RateLimit(starts=starts, period_s=period_s)
        await dispatch.set_queue(QueueLimits(name="work", rate=rate, per_worker=4))
        await asyncio.gather(*arriving)
        await time.sleep(period_s * (len(arrivals_s) + before + 1) + 60)
        stop.set()
        await asyncio.gather(*workers)
        assert len(begun) == len(arrivals_s)
        late = [each for each in begun if each >= set_at] if before > starts else begun
        assert most_in_a_window(late, period_s) <= starts

    time.run(work())


# --- PostgreSQL: the statements of several workers, with a clock that is handed in ----------------


@mutable(kw_only=True)
class Fleet:
    """Workers that claim, begin later, end, and die; the truth is when jobs began."""

    db: psycopg.Connection[Any]
    other: psycopg.Connection[Any]
    rate: RateLimit
    choices: random.Random
    begun: list[float] = field(factory=list)
    waiting: list[tuple[float, str]] = field(factory=list)
    """Jobs that were claimed, and when they will begin."""
    unnoted: list[tuple[float, str]] = field(factory=list)
    running: list[tuple[float, str]] = field(factory=list)

    def arrive(self, number: int) -> None:
        needs = self.choices.choice(["a", "b"])
        self.db.execute(
            f"INSERT INTO {SCHEMA}.workflow_status (workflow_uuid, status, name, queue_name, "
            "priority, application_name, application_version, created_at, updated_at) VALUES "
            "(%s, 'ENQUEUED', 'minions.execute', 'work', %s, 'minions', 'v', %s, 0)",
            [f"run_{number}@1-{needs}", self.choices.choice([1, 1, 3]), number],
        )

    def poll(self, db: psycopg.Connection[Any], now_s: float) -> None:
        worker = self.choices.choice(["w1", "w2", "w3"])
        wanted = Claim(
            queue="work",
            worker=worker,
            owner=worker,
            application="minions",
            version="v",
            most=self.choices.choice([1, 4, 20]),
            starts=self.rate.starts,
            period_s=self.rate.period_s,
            needs=self.choices.choice([[], ["a"], ["b"]]),
        )
        with db.transaction():
            found = carry_out(db, wanted, now_s).names
            if db is self.db and self.choices.random() < 0.3:
                self.poll(self.other, now_s)  # before the first one has committed
        for each in found:
            self.waiting.append((now_s + self.choices.choice([0, 0.25, 3, 11]), each))

    def pass_to(self, now_s: float) -> None:
        """Let begin, be noted, end or die what has come to it."""
        for at, name in [each for each in self.waiting if each[0] <= now_s]:
            self.waiting.remove((at, name))
            self.begun.append(at)
            self.unnoted.append((now_s + self.choices.choice([0, 0.5, 2]), name))
        for at, name in [each for each in self.unnoted if each[0] <= now_s]:
            self.unnoted.remove((at, name))
            with self.db.transaction():
                values = {"jobs": [name], "now_ms": now_s * 1000}
                self.db.execute(NOTE_BEGIN.encode(), values)
            self.running.append((now_s + self.choices.choice([0, 2, 9]), name))
        for at, name in [each for each in self.running if each[0] <= now_s]:
            self.running.remove((at, name))
            status = self.choices.choice(["SUCCESS", "CANCELLED"])
            self.db.execute(
                f"UPDATE {SCHEMA}.workflow_status SET status = %s WHERE workflow_uuid = %s",
                [status, name],
            )


@pytest.fixture(scope="module")
def connections(postgres: PostgresServer) -> Iterator[Sequence[psycopg.Connection[Any]]]:
    pytest.importorskip("dbos")
    with connected(postgres) as found:
        yield found


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(starts=STARTS, period_s=PERIOD_S, arrivals_s=ARRIVALS_S, seed=SEEDS)
def test_in_postgres(
    connections: Sequence[psycopg.Connection[Any]],
    starts: int,
    period_s: int,
    arrivals_s: list[int],
    seed: int,
) -> None:
    """Workers that take unlike jobs, at the same moment, and begin with some of them late."""
    db, more = connections
    db.execute(f"DELETE FROM {SCHEMA}.workflow_status".encode())
    fleet = Fleet(
        db=db,
        other=more,
        rate=RateLimit(starts=starts, period_s=period_s),
        choices=random.Random(seed),  # of a test
    )
    now_s, arrivals = 0.0, sorted(enumerate(arrivals_s), key=lambda each: each[1])
    while len(fleet.begun) < len(arrivals_s):
        while arrivals and arrivals[0][1] <= now_s:
            fleet.arrive(arrivals.pop(0)[0])
        fleet.poll(db, now_s)
        fleet.pass_to(now_s)
        now_s += fleet.choices.choice([0.25, 0.5, 1, 5])
        assert now_s < 20_000, "jobs are never claimed"
    assert most_in_a_window(fleet.begun, period_s) <= starts

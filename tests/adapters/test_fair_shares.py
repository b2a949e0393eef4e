"""No key of a queue that shares keeps another one waiting, and nothing waits for ever."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from claiming import carry_out, claim, connected, end, insert, rows_of, set_limits, take
from minions.adapters.dispatch.local_dispatch import LocalDispatch
from minions.contracts.dispatch import FairShares, Job, JobEnd, QueueLimits, RateLimit
from minions.testing.dispatch_suite import job, plan
from minions.testing.virtual_time import VirtualTime
from postgres import PostgresServer

if TYPE_CHECKING:
    import psycopg

SHARES = FairShares(by="user")
ARRIVALS = st.lists(
    st.tuples(st.integers(0, 20), st.sampled_from("abcde"), st.integers(1, 12)),
    min_size=1,
    max_size=12,
)
"""At which second which user submits how many jobs."""
SEEDS = st.integers(0, 2**32 - 1)


def most_between_begins(
    arrived: Mapping[str, Sequence[float]], begun: Sequence[tuple[float, str]]
) -> int:
    """How often at most another key began while a job of a key waited for its turn: from the begin
    before it, or from its arrival where that was later.

    Args:
        arrived: When the jobs of each key arrived, the first one first.
        begun: When a job of which key began, in order; of each key the oldest first.
    """
    most, numbers, since = 0, Counter[str](), dict[str, int]()
    for index, (_, key) in enumerate(begun):
        arrived_at = arrived[key][numbers[key]]
        numbers[key] += 1
        before = [
            other
            for at, other in begun[since.get(key, 0) : index]
            if other != key and at >= arrived_at
        ]
        most = max(most, *Counter(before).values(), 0)
        since[key] = index + 1
    return most


@pytest.fixture(scope="module")
def connections(postgres: PostgresServer) -> Iterator[Sequence[psycopg.Connection[Any]]]:
    pytest.importorskip("dbos")
    with connected(postgres) as found:
        yield found


@given(arrivals=ARRIVALS, slots=st.integers(1, 4))
def test_keys_alternate_in_one_process(arrivals: list[tuple[int, str, int]], slots: int) -> None:
    """Whatever the users submit, between two turns of one each other has at most one, and its
    first jobs begin at the latest when all others had one turn for each of them.
    """
    time = VirtualTime()
    dispatch = LocalDispatch(time, time.sleep)
    begun: list[tuple[float, str]] = []
    arrived = dict[str, list[float]]()
    for at_s, user, number in sorted(arrivals):
        arrived.setdefault(user, []).extend([float(at_s)] * number)
    total = sum(map(len, arrived.values()))

    async def execute(taken: Job) -> JobEnd:
        begun.append((time.monotonic(), taken.labels["user"]))
        await time.sleep(1)
        return JobEnd()

    async def arrive() -> None:
        for index, (at_s, user, number) in enumerate(sorted(arrivals)):
            await time.sleep(max(0, at_s - time.monotonic()))
            for each in range(number):
                await dispatch.submit(job(f"run_{index}_{each}", labels={"user": user}))

    async def work() -> None:
        await dispatch.set_queue(QueueLimits(name="work", shares=SHARES, per_worker=slots))
        stop, own = asyncio.Event(), plan(ends_when_idle=False, slots=slots)
        working = asyncio.ensure_future(dispatch.serve(execute, own, stop))
        await arrive()
        await time.sleep(total + 1)
        stop.set()
        await working

    time.run(work())
    assert len(begun) == total
    assert most_between_begins(arrived, begun) <= 1
    for user, times in arrived.items():
        own = [at for at, other in begun if other == user]
        for number, (arrived_at, began_at) in enumerate(zip(times, own, strict=True), start=1):
            assert began_at - arrived_at <= number * len(arrived) + 1


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(arrivals=ARRIVALS, seed=SEEDS, is_single=st.booleans())
def test_keys_alternate_in_postgres(
    connections: Sequence[psycopg.Connection[Any]],
    arrivals: list[tuple[int, str, int]],
    seed: int,
    is_single: bool,
) -> None:
    """Also where a worker takes several jobs at once."""
    db, choices = connections[0], random.Random(seed)  # of a test
    set_limits(db, QueueLimits(name="work", shares=SHARES))
    arrived, users = dict[str, list[float]](), dict[str, str]()
    coming, begun, now_s = sorted(arrivals), list[tuple[float, str]](), 0.0
    total = sum(number for _, _, number in arrivals)
    while len(begun) < total:
        while coming and coming[0][0] <= now_s:
            _, user, number = coming.pop(0)
            names = [f"run_{len(users) + each:04}@1" for each in range(number)]
            users |= dict.fromkeys(names, user)
            arrived.setdefault(user, []).extend([now_s] * number)
            insert(db, [(name, 0, user, now_s) for name in names])
        taken = take(db, claim(1 if is_single else choices.randint(1, 5)), now_s + 0.01).names
        begun += [(now_s + 0.01, users[name]) for name in taken]
        end(db, taken)
        now_s += 0.25
        assert now_s < 1_000
    assert most_between_begins(arrived, begun) <= 1


def test_a_stream_of_new_keys_keeps_no_old_one_waiting(
    connections: Sequence[psycopg.Connection[Any]],
) -> None:
    """Two new users come each second, and one job is executed."""
    db = connections[0]
    set_limits(db, QueueLimits(name="work", shares=SHARES))
    insert(db, [(f"run_old{each}@1", 0, "old", 0) for each in range(2)])
    begun: list[str] = []
    for now_s in range(1, 10):
        insert(db, [(f"run_{now_s}{each}@1", 0, f"new{now_s}{each}", now_s) for each in "ab"])
        begun += take(db, claim(), now_s + 0.5).names
    assert begun[:3] == ["run_old0@1", "run_1a@1", "run_1b@1"]
    assert begun[3] == "run_old1@1"


def test_quotas_and_rates_of_keys_hold_for_jobs_that_are_taken_at_once(
    connections: Sequence[psycopg.Connection[Any]],
) -> None:
    db = connections[0]
    shares = FairShares(by="user", per_key=3, rate=RateLimit(starts=4, period_s=10))
    set_limits(db, QueueLimits(name="work", shares=shares))
    insert(db, [(f"run_{user}{each}@1", each % 3, user, 0) for user in "ab" for each in range(9)])
    first = take(db, claim(20), 1)
    assert first.is_counted
    assert Counter(name[4] for name in first.names) == {"a": 3, "b": 3}
    assert take(db, claim(20), 2).names == []
    end(db, [name for name in first.names if name[4] == "a"])
    assert len(take(db, claim(20), 3).names) == 3  # they ended and never were said to have begun


@pytest.mark.parametrize(("age_s", "begins_at"), [(10, 50), (None, 100)])
@pytest.mark.parametrize("shares", [None, SHARES])
def test_a_job_of_a_low_priority_begins_at_last_where_jobs_age(
    connections: Sequence[psycopg.Connection[Any]],
    age_s: float | None,
    begins_at: int,
    shares: FairShares | None,
) -> None:
    """One job of priority 0 comes each second, and one is executed."""
    db = connections[0]
    set_limits(db, QueueLimits(name="work", shares=shares, age_s=age_s))
    insert(db, [("run_low@1", 5, "a", 0)])
    for now_s in range(101):
        if now_s < 100:
            insert(db, [(f"run_{now_s}@1", 0, "b", now_s)])
        (name,) = take(db, claim(), now_s + 0.5).names
        end(db, [name])
        if name == "run_low@1":
            assert begins_at <= now_s <= begins_at + 1
            return
    pytest.fail("it never began")


@pytest.mark.parametrize(("age_s", "begins_at"), [(10, 50), (None, 100)])
def test_so_it_does_in_one_process(age_s: float | None, begins_at: int) -> None:
    time, begun = VirtualTime(), dict[str, float]()
    dispatch = LocalDispatch(time, time.sleep)

    async def execute(taken: Job) -> JobEnd:
        begun[taken.run_id] = time.monotonic()
        await time.sleep(1)
        return JobEnd()

    async def work() -> None:
        await dispatch.set_queue(QueueLimits(name="work", age_s=age_s))
        stop, own = asyncio.Event(), plan(ends_when_idle=False, slots=1)
        await dispatch.submit(job("urgent"))
        await dispatch.submit(job("low", priority=5))
        working = asyncio.ensure_future(dispatch.serve(execute, own, stop))
        for number in range(99):
            await time.sleep(0.5)
            await dispatch.submit(job(f"run_{number}"))
            await time.sleep(0.5)
        await time.sleep(10)
        stop.set()
        await working

    time.run(work())
    assert begins_at <= begun["low"] <= begins_at + 1


@pytest.mark.parametrize("shares", [None, SHARES])
def test_a_claim_is_two_statements_and_reads_no_more_of_a_long_queue(
    connections: Sequence[psycopg.Connection[Any]], shares: FairShares | None
) -> None:
    db, read = connections[0], list[int]()

    def explained(sql: str, values: Mapping[str, object]) -> Sequence[Sequence[object]]:
        if "UPDATE" not in sql:
            return list(rows_of(db)(sql, values))
        ((plans,),) = db.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {sql}".encode(), values)
        read.append(rows_read(plans[0]["Plan"]))
        return []

    for number in (5_000, 10_000):
        set_limits(db, QueueLimits(name="work", shares=shares))
        jobs = [(f"run_{each}@1", each % 2, f"user{each % 20}", each) for each in range(number)]
        insert(db, jobs)
        db.execute(b"ANALYZE minions_dispatch.workflow_status")
        query = Mock(side_effect=explained)
        with db.transaction():
            carry_out(db, claim(4, concurrency=100), 20_000, query)
        assert query.call_count == 2
    assert read[1] == read[0] <= (20 if shares is None else 500)


def rows_read(node: Mapping[str, Any]) -> int:
    """The rows of jobs that a plan looked at; none may be found by reading all of them."""
    read = 0
    if node.get("Relation Name") == "workflow_status" and "Scan" in node["Node Type"]:
        assert node["Node Type"] != "Seq Scan", json.dumps(node, indent=1)
        seen = node["Actual Rows"] + node.get("Rows Removed by Filter", 0)
        read = round(seen * node["Actual Loops"])
    return read + sum(rows_read(each) for each in node.get("Plans", ()))

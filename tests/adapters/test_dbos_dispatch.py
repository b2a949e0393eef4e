"""What holds of the queues in PostgreSQL beyond the conformance suite."""

from __future__ import annotations

import asyncio
import base64
import os
import pickle
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from pathlib import Path

import pytest

from minions.adapters.dispatch import dbos_dispatch
from minions.adapters.dispatch.dbos_dispatch import DbosDispatch
from minions.contracts.dispatch import Job, JobState, QueueLimits
from minions.data.errors import EnvironmentRefusedError
from minions.engine.services.run_services import NullLog
from minions.testing.dispatch_suite import JobRecorder, job, opened, plan, serve, serving, until
from patience import HANG_S

pytest.importorskip("dbos", reason="dbos is not installed: pip install 'minions-engine[dbos]'")


@pytest.fixture
async def engine(postgres_url: str) -> AsyncIterator[DbosDispatch]:
    made = DbosDispatch(postgres_url, NullLog(), heartbeat_s=0.1, dead_after_s=30, poll_s=0.05)
    yield made
    await made.aclose()


def executed(url: str, sql: str) -> list[tuple[object, ...]]:
    """The rows of a statement."""
    import psycopg

    with closing(psycopg.connect(url, autocommit=True)) as db:
        found = db.execute(sql.encode())
        return list(found.fetchall()) if found.description else []


class RecordingLog(NullLog):
    """Remembers the names of warnings."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def warning(self, event: str, /, **facts: object) -> None:
        self.events.append(event)


def taken_by(url: str, worker: str, key: str) -> None:
    """Let it look as if a worker had taken the job."""
    executed(
        url,
        "UPDATE minions_dispatch.workflow_status SET status = 'PENDING', "
        f"executor_id = '{worker}' WHERE workflow_uuid = '{key}'",
    )


def seen(url: str, worker: str, seconds_ago: int) -> None:
    """Let a worker have been heard of so long ago."""
    executed(
        url,
        "INSERT INTO minions_dispatch.minions_workers VALUES "
        f"('{worker}', '{{work}}', 1, 1, now(), now() - interval '{seconds_ago} seconds')",
    )


async def test_a_job_of_a_dead_worker_is_given_to_another_one(
    engine: DbosDispatch, postgres_url: str
) -> None:
    await engine.submit(job())
    taken_by(postgres_url, "host:9:9+dead", "run_1@1")
    seen(postgres_url, "host:9:9+dead", 31)
    worked = opened()
    await serve(engine, worked)
    assert [(each.number, each.tries) for each in worked.jobs] == [(1, 1)]
    assert engine.is_worker_gone("host:9:9+dead.4")
    assert not engine.is_worker_gone("host:9:9+deadly.4")
    assert await engine.jobs(["run_1"]) == []


async def test_a_job_of_a_living_worker_is_left_to_it(
    engine: DbosDispatch, postgres_url: str
) -> None:
    await engine.submit(job())
    taken_by(postgres_url, "host:8:8+busy", "run_1@1")
    seen(postgres_url, "host:8:8+busy", 5)
    worked = opened()
    await serve(engine, worked)
    assert worked.runs == []
    assert not engine.is_worker_gone("host:8:8+busy.1")


@pytest.mark.parametrize(
    ("limits", "may_begin"),
    [
        (QueueLimits(name="work", concurrency=1), False),
        (QueueLimits(name="work", concurrency=2), True),
        (QueueLimits(name="work", per_worker=1), True),
    ],
)
async def test_a_job_of_another_worker_counts_where_all_of_them_are_limited(
    engine: DbosDispatch, postgres_url: str, limits: QueueLimits, may_begin: bool
) -> None:
    await engine.set_queue(limits)
    await engine.submit(job("run_1"))
    taken_by(postgres_url, "host:8:8+busy", "run_1@1")
    seen(postgres_url, "host:8:8+busy", 0)
    await engine.submit(job("run_2"))
    worked = opened()
    async with serving(engine, worked, slots=3):
        if may_begin:
            await until(lambda: worked.runs == ["run_2"])
            return
        await asyncio.sleep(0.3)
        assert worked.runs == []
        executed(
            postgres_url,
            "UPDATE minions_dispatch.workflow_status SET status = 'SUCCESS' "
            "WHERE workflow_uuid = 'run_1@1'",
        )
        await until(lambda: worked.runs == ["run_2"])


async def test_a_worker_of_this_machine_whose_process_has_ended_is_not_waited_for(
    postgres_url: str,
) -> None:
    dead = "host:9:9+dead"
    engine = DbosDispatch(
        postgres_url, NullLog(), is_gone=dead.__eq__, heartbeat_s=0.1, poll_s=0.05
    )
    await engine.submit(job())
    taken_by(postgres_url, dead, "run_1@1")
    seen(postgres_url, dead, 0)
    worked = opened()
    await serve(engine, worked)
    assert [(each.number, each.tries) for each in worked.jobs] == [(1, 1)]
    assert engine.is_worker_gone(f"{dead}.4")
    await engine.aclose()


@pytest.mark.parametrize(("silent_s", "is_alive"), [(4, True), (8, False)])
async def test_a_worker_is_dead_after_three_of_its_own_heartbeats(
    postgres_url: str, silent_s: int, is_alive: bool
) -> None:
    engine = DbosDispatch(postgres_url, NullLog(), poll_s=0.05)
    async with serving(engine, opened(), heartbeat_s=2.0):
        while not await engine.workers():  # noqa: ASYNC110  # of another task
            await asyncio.sleep(0.01)
        executed(
            postgres_url,
            "UPDATE minions_dispatch.minions_workers "
            f"SET seen_at = now() - interval '{silent_s} seconds'",
        )
        (worker,) = await engine.workers()
    assert worker.is_alive is is_alive
    await engine.aclose()


async def test_a_worker_knows_that_others_took_it_for_dead(postgres_url: str) -> None:
    now_s = [100.0]
    engine = DbosDispatch(
        postgres_url, NullLog(), heartbeat_s=0.02, dead_after_s=30, monotonic=lambda: now_s[0]
    )
    async with serving(engine, opened()):
        for gone_s, silences in ((29.0, 0), (31.0, 1), (1.0, 1), (40.0, 2)):
            now_s[0] += gone_s
            await until(lambda: engine.beaten_at == now_s[0])
            assert engine.silences == silences
    await engine.aclose()


async def test_rows_hold_ids_and_numbers_as_json(engine: DbosDispatch, postgres_url: str) -> None:
    """And the value of the label by which the queue shares, where it does."""
    await engine.submit(job(priority=4, labels={"user": "ann"}))
    await serve(engine, opened())
    [(serialization, inputs)] = executed(
        postgres_url,
        "SELECT s.serialization, i.inputs FROM minions_dispatch.workflow_status s "
        "JOIN minions_dispatch.workflow_input i USING (workflow_uuid)",
    )
    assert serialization == "portable_json"
    assert {*Job.__annotations__} == {
        *("run_id", "session_id", "submission", "queue", "priority", "delay_s", "number", "tries"),
        "labels",
    }
    assert '"run_id":"run_1"' in str(inputs)
    assert "labels" not in str(inputs)  # workers of an earlier version could not read it
    outputs = executed(postgres_url, "SELECT output, error FROM minions_dispatch.workflow_output")
    assert outputs == [('"done"', None)]


async def test_jobs_that_ended_long_ago_are_forgotten(
    engine: DbosDispatch, postgres_url: str
) -> None:
    await engine.submit(job("run_1"))
    await serve(engine, opened())
    executed(
        postgres_url,
        "UPDATE minions_dispatch.workflow_status SET completed_at = completed_at - 8 * 86400000",
    )
    await engine.submit(job("run_2"))
    worked = opened()

    def left() -> list[tuple[object, ...]]:
        return executed(postgres_url, "SELECT workflow_uuid FROM minions_dispatch.workflow_status")

    async with serving(engine, worked):
        await until(lambda: left() == [("run_2@1",)] and worked.runs == ["run_2"])


async def test_what_a_worker_claimed_in_its_last_moment_is_put_back(
    engine: DbosDispatch, postgres_url: str
) -> None:
    """It was not begun, which is no failed try, and no other worker has to find it silent."""
    await engine.submit(job("run_1"))
    await engine.submit(job("run_2", queue="other"))
    worked = opened()
    async with serving(engine, worked, queues=("other",)):
        await until(lambda: worked.runs == ["run_2"])
        taken_by(postgres_url, plan().name, "run_1@1")
    (view,) = await engine.jobs(["run_1"])
    assert (view.state, view.worker, view.job) == (
        JobState.WAITING,
        None,
        job("run_1").put_back(is_failed_try=False),
    )
    await serve(engine, worked)
    assert worked.runs == ["run_2", "run_1"]


async def test_what_a_living_worker_claimed_and_never_began_is_put_back(
    engine: DbosDispatch, postgres_url: str
) -> None:
    """As when the database went away between the two. It was not begun, which is no failed try."""
    await engine.submit(job("run_1"))
    await engine.submit(job("run_2", delay_s=3600))
    worked = JobRecorder()
    async with serving(engine, worked):
        await until(lambda: worked.runs == ["run_1"])
        taken_by(postgres_url, plan().name, "run_2@1")
        await until(lambda: worked.runs == ["run_1", "run_2"])
        worked.opened.set()
    assert [(each.number, each.tries) for each in worked.jobs] == [(0, 0), (1, 0)]


@pytest.mark.parametrize("wrong_s", [-3_600.0, 3_600.0])
async def test_a_delay_ends_by_the_clock_of_the_server(
    engine: DbosDispatch, monkeypatch: pytest.MonkeyPatch, wrong_s: float
) -> None:
    """Whoever's clock is wrong: that of the one who submits it, or that of a worker."""
    right = time.time
    worked = opened()
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(time, "time", lambda: right() + wrong_s)
        await engine.submit(job("run_1", delay_s=0.1))
    await engine.submit(job("run_2", delay_s=1_800))
    async with serving(engine, worked):
        await until(lambda: worked.runs == ["run_1"])
    monkeypatch.setattr(time, "time", lambda: right() + wrong_s)
    await engine.submit(job("run_3", delay_s=0.1))
    async with serving(engine, worked):
        await until(lambda: worked.runs == ["run_1", "run_3"])
        assert [each.state for each in await engine.jobs(["run_2"])] == [JobState.DELAYED]


async def test_a_row_that_is_no_job_is_logged_and_ended(postgres_url: str) -> None:
    """Else the heartbeats of the worker that reads it would stop, and its jobs be taken away."""
    log = RecordingLog()
    engine = DbosDispatch(postgres_url, log, heartbeat_s=0.1, dead_after_s=30, poll_s=0.05)
    await engine.submit(job("run_1"))
    stored = '{"args": [7]}'
    executed(postgres_url, f"UPDATE minions_dispatch.workflow_input SET inputs = '{stored}'")
    taken_by(postgres_url, "host:9:9+dead", "run_1@1")
    worked = opened()
    async with serving(engine, worked):
        await until(lambda: "job_not_read" in log.events)
        await engine.submit(job("run_2"))
        await until(lambda: worked.runs == ["run_2"])
    assert await engine.jobs(["run_1"]) == []
    assert log.events.count("job_not_read") == 1
    await engine.aclose()


class _Payload:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return eval, ("open('pickled', 'w').close()",)


async def test_a_row_that_is_a_pickle_is_not_read(
    engine: DbosDispatch, postgres_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    await engine.submit(job("run_1"))
    payload = base64.b64encode(pickle.dumps({"args": (_Payload(),), "kwargs": {}})).decode()
    executed(
        postgres_url,
        f"UPDATE minions_dispatch.workflow_input SET inputs = '{payload}'; "
        "UPDATE minions_dispatch.workflow_status SET serialization = 'py_pickle'",
    )
    await engine.submit(job("run_2"))
    worked = opened()
    async with serving(engine, worked):
        await until(lambda: worked.runs == ["run_2"])
    assert os.listdir(tmp_path) == []  # noqa: PTH208


@pytest.mark.parametrize("reader", ["deserialize_args", "deserialize_value", "gone"])
async def test_a_version_that_would_read_pickles_is_not_used(
    monkeypatch: pytest.MonkeyPatch, reader: str
) -> None:
    """What another version does is tried, not believed."""
    from dbos import _serialization

    if reader == "gone":
        monkeypatch.delattr(_serialization, "deserialize_exception")
    else:
        monkeypatch.setattr(_serialization, reader, lambda *_: "read")
    engine = DbosDispatch("postgresql://nobody@/none", NullLog())
    with pytest.raises(EnvironmentRefusedError, match=r"dbos<3\.5") as caught:
        await engine.submit(job())
    assert caught.value.error_code == "unknown-dbos"


async def test_a_version_with_other_tables_takes_no_jobs(
    engine: DbosDispatch, postgres_url: str
) -> None:
    await engine.submit(job())
    executed(
        postgres_url,
        "ALTER TABLE minions_dispatch.workflow_status RENAME delay_until_epoch_ms TO delay_until",
    )
    with pytest.raises(EnvironmentRefusedError, match=r"dbos<3\.5") as caught:
        async with asyncio.timeout(HANG_S):
            await engine.serve(opened().execute, plan(), asyncio.Event())
    assert caught.value.error_code == "unknown-dbos"


async def test_without_the_package_it_is_said_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "dbos", None)
    engine = DbosDispatch("postgresql://nobody@/none", NullLog())
    with pytest.raises(EnvironmentRefusedError, match=r"minions-engine\[dbos\]"):
        await engine.submit(job())


async def test_a_server_that_cannot_be_reached_is_named_without_the_password(
    tmp_path: Path,
) -> None:
    engine = DbosDispatch(f"postgresql://me:s3cret@/none?host={tmp_path}", NullLog())
    with pytest.raises(EnvironmentRefusedError) as refused:
        await engine.submit(job())
    assert refused.value.error_code == "dispatch-unreachable"
    assert "s3cret" not in str(refused.value)
    await engine.aclose()


async def test_a_worker_that_was_cut_off_waits_before_it_calls_others_dead(
    engine: DbosDispatch, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the database is away all workers are silent."""
    beats: list[bool] = []
    beat = engine._beat  # its decision is not seen from outside

    async def failing(server: object, *, is_steady: bool = True) -> None:
        beats.append(is_steady)
        if len(beats) == 2:
            raise EnvironmentRefusedError("away", code="dispatch-unreachable")
        await beat(server, is_steady=is_steady)  # type: ignore[arg-type]  # of the engine's own

    monkeypatch.setattr(engine, "_beat", failing)
    worked = opened()
    async with serving(engine, worked):
        await until(lambda: len(beats) >= 4)
        await asyncio.sleep(0)
    assert beats[:4] == [True, True, False, False]
    assert dbos_dispatch.DbosDispatch.is_shared


# --- what an idle worker asks the server for, and what it is told --------------------------------


@pytest.fixture
async def patient(postgres_url: str) -> AsyncIterator[DbosDispatch]:
    """One that looks for nothing within the time of a test unless it is told to."""
    made = DbosDispatch(postgres_url, NullLog(), heartbeat_s=3_600, poll_s=3_600)
    yield made
    await made.aclose()


def listeners(url: str) -> list[int]:
    """The processes of the server that listen for jobs."""
    found = executed(
        url,
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database() "
        "AND query LIKE 'LISTEN minions_jobs%'",
    )
    return [int(str(pid)) for (pid,) in found]


async def test_a_job_begins_because_the_server_tells_of_it(
    patient: DbosDispatch, postgres_url: str
) -> None:
    worked = opened()
    async with serving(patient, worked):
        await until(lambda: bool(listeners(postgres_url)))
        await patient.submit(job("run_1"))
        await until(lambda: worked.runs == ["run_1"])
        await patient.submit(job("run_2", delay_s=0.2))
        await until(lambda: worked.runs == ["run_1", "run_2"])
        await patient.submit(job("run_3", delay_s=3_600))
        await patient.wake("run_3")
        await until(lambda: worked.runs == ["run_1", "run_2", "run_3"])


async def test_a_job_that_another_program_stored_is_told_of_too(
    patient: DbosDispatch, postgres_url: str
) -> None:
    """Such as one of an earlier version: a trigger tells, and not who submits."""
    await patient.submit(job("run_1", delay_s=3_600))
    worked = opened()
    async with serving(patient, worked):
        await until(lambda: bool(listeners(postgres_url)))
        executed(postgres_url, "UPDATE minions_dispatch.workflow_status SET status = 'ENQUEUED'")
        await until(lambda: worked.runs == ["run_1"])


async def test_a_job_of_which_nothing_was_told_begins_with_a_heartbeat(
    engine: DbosDispatch, postgres_url: str
) -> None:
    worked = opened()
    async with serving(engine, worked):
        await until(lambda: bool(listeners(postgres_url)))
        executed(
            postgres_url,
            "ALTER TABLE minions_dispatch.workflow_status DISABLE TRIGGER minions_job_stored",
        )
        await engine.submit(job("run_1"))
        await until(lambda: worked.runs == ["run_1"])


async def test_a_worker_that_is_no_longer_told_says_so_and_polls_until_it_is(
    postgres_url: str,
) -> None:
    log = RecordingLog()
    engine = DbosDispatch(postgres_url, log, heartbeat_s=3_600, poll_s=0.05)
    worked = opened()
    async with serving(engine, worked):
        await until(lambda: bool(listeners(postgres_url)))
        (pid,) = listeners(postgres_url)
        executed(postgres_url, f"SELECT pg_terminate_backend({pid})")
        await until(lambda: "job_news_lost" in log.events)
        await engine.submit(job("run_1"))
        await until(lambda: worked.runs == ["run_1"])
        await until(lambda: bool(listeners(postgres_url)))
    await engine.aclose()


async def test_an_idle_worker_asks_for_two_things_a_heartbeat_and_keeps_two_connections(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one round trip: it tells that it lives and learns who else does, and looks for jobs."""
    import psycopg

    asked: list[str] = []

    def counted(execute: Callable[..., object]) -> Callable[..., object]:
        def count(cursor: object, query: object, *more: object, **named: object) -> object:
            asked.append(str(query).split()[0])
            return execute(cursor, query, *more, **named)

        return count

    for cursor in (psycopg.AsyncCursor, psycopg.Cursor):
        monkeypatch.setattr(cursor, "execute", counted(cursor.execute))
    engine = DbosDispatch(postgres_url, NullLog(), heartbeat_s=0.1)
    async with serving(engine, opened()):
        await until(lambda: asked.count("WITH") >= 4)  # the client is closed by then
        asked.clear()
        await until(lambda: asked.count("WITH") >= 10)
        beats = asked[: 2 * 10]
        count = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
        connections = executed(postgres_url, f"{count} AND pid <> pg_backend_pid()")
    await engine.aclose()
    assert beats == ["WITH", "SELECT"] * 10
    assert connections == [(2,)]

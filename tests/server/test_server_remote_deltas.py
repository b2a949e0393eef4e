"""Streams of a server: pieces of answers of a run that a worker executes elsewhere."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from asgi_client import Client
from minions.adapters.dispatch.dbos_dispatch import make_job_tables
from minions.adapters.dispatch.left_jobs import LeftJobs
from minions.adapters.dispatch.postgres_workers import PostgresWorkers
from minions.adapters.stores.postgres_journal import PostgresJournal
from minions.app.settings.settings import Settings
from minions.contracts.dispatch import WorkerPlan
from minions.contracts.runtime import SystemClock
from patience import HANG_S
from served import MakeApp
from typed_answers import TOKEN, TypedAnswers

pytest.importorskip("dbos", reason="dbos is not installed: pip install 'minions-engine[dbos]'")


async def published(url: str, plan: WorkerPlan) -> None:
    """Let the table of workers say where the worker is."""
    workers = PostgresWorkers(url, dead_after_s=20)
    await workers.make_table()
    await asyncio.to_thread(make_job_tables, url)
    await workers.beat(plan, 1, LeftJobs(lambda: 0.0))
    await workers.aclose()


@pytest.mark.parametrize("is_reachable", [True, False])
async def test_a_stream_has_the_pieces_of_a_run_at_a_worker_if_it_can_be_reached(
    make_app: MakeApp,
    tmp_path: Path,
    postgres_url: str,
    monkeypatch: pytest.MonkeyPatch,
    is_reachable: bool,
) -> None:
    (tmp_path / "token").write_text(TOKEN)
    settings = Settings(db=postgres_url, worker_token=f"file:{tmp_path / 'token'}")
    answers = TypedAnswers(tmp_path, journal=PostgresJournal(postgres_url, SystemClock()))
    app = make_app(settings=settings, journal=PostgresJournal(postgres_url, SystemClock()))
    _, run_id = await answers.queued()
    async with answers.working() as worker:
        if not is_reachable:
            worker.publish_stream("http://127.0.0.1:1")
        await published(postgres_url, worker.plan)
        await answers.asked()
        async with Client(app).follow(f"/runs/{run_id}/events") as stream:
            events = stream.events()
            seen = [await asyncio.wait_for(anext(events), HANG_S)]
            if is_reachable:
                await answers.followers(1)
                answers.model.say("Good", " day")
            answers.model.say(None)
            async with asyncio.timeout(HANG_S):
                seen += [event async for event in events]
        await answers.followers(0)
    types = [event.type for event in seen]
    texts = [event.data["delta"] for event in seen if event.type == "step_delta"]
    assert texts == ([{"content": "Good"}, {"content": " day"}] if is_reachable else [])
    if is_reachable:
        begin = types.index("step_delta")
        assert types[begin - 1 : begin + 2] == ["step_started", "step_delta", "step_delta"]
    assert types[-1] == "run_completed"
    stored = [event.id or 0 for event in seen if event.type != "step_delta"]
    assert stored == sorted(set(stored))
    await answers.journal.aclose()

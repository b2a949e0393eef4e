"""A run that somebody else ends: its worker stops at the next fact, and says why."""

from __future__ import annotations

import asyncio

import pytest
from attrs import evolve

from builders import deterministic_services, executor_of, fake_tool, recipe_of, text_step
from minions.adapters.models.script_items import tool_request
from minions.adapters.models.scripted import ScriptedModel
from minions.contracts.executions import RunStatus
from minions.data.errors import UsageError
from minions.engine.sessions.cancellation import cancel_run


async def test_its_worker_says_that_it_was_cancelled() -> None:
    services = deterministic_services()
    begun, go = asyncio.Event(), asyncio.Event()

    async def wait(arguments: object) -> object:
        begun.set()
        await go.wait()
        return 1

    model = ScriptedModel([tool_request("wait"), "done"])
    executor = executor_of(model, tools=[fake_tool("wait", wait)], services=services)
    run = executor.prepare(recipe_of([text_step(tools=["wait"])]))
    task = asyncio.ensure_future(run.execute())
    await begun.wait()
    other = evolve(services, worker_id="other")
    assert (await cancel_run(other, run.run_id)).status == "cancelled"
    go.set()
    result = await task
    assert (result.status, result.error and result.error.code) == (
        RunStatus.CANCELLED,
        "cancelled",
    )
    with pytest.raises(UsageError) as caught:
        await cancel_run(other, run.run_id)
    assert caught.value.error_code == "run-ended"
    resumed = await executor_of(
        ScriptedModel(lambda _: "done"), tools=[fake_tool("wait")], services=services
    ).resume(run.run_id, recipe=recipe_of([text_step(tools=["wait"])]))
    assert resumed.status in (RunStatus.COMPLETED, RunStatus.NEEDS_DECISION)

"""What `minions.run` costs beside an executor that is kept, in a process without an event loop."""

from __future__ import annotations

import asyncio
import gc
import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import minions
from benchmarks.endpoint import Endpoint
from benchmarks.measuring import Effort, Row, ratio_row
from minions import (
    AgentExecutor,
    AgentRecipe,
    CompletionCriteria,
    CompletionMode,
    DefaultStep,
    MessageBundle,
    ScriptedModel,
    Services,
)
from minions.adapters.models.structured_output import InstructorParser
from minions.app.settings.settings import Settings
from minions.app.wiring.built_in_extensions import built_in_extensions
from minions.app.wiring.configured_prices import make_prices


async def measure(effort: Effort, _: Endpoint) -> list[Row]:
    """A run of one step by the front door, against one by an executor."""
    runs = effort.count(400)
    door_s, executor_s = _in_a_process(runs, effort.rounds)
    return [
        ratio_row(
            "front-door",
            "`minions.run` of one step with one model call, against an executor that is kept",
            ratio=door_s / executor_s,
            most=1.3,
            of="the executor's time",
            absolute=f"{door_s / runs * 1e6:.0f} µs; {executor_s / runs * 1e6:.0f} µs",
        )
    ]


def _in_a_process(runs: int, rounds: int) -> Sequence[float]:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.front_door", str(runs), str(rounds)],
        cwd=Path(__file__).parents[1],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    seconds: list[float] = json.loads(done.stdout)
    return seconds


def _recipe() -> AgentRecipe:
    step: DefaultStep[object] = DefaultStep(
        id="say",
        messages=MessageBundle.of(goal="Speak."),
        completion_criteria=CompletionCriteria(mode=CompletionMode.TEXT),
    )
    return AgentRecipe(id="one", steps=[step])


def _by_door(runs: int) -> None:
    recipe, model = _recipe(), ScriptedModel(["Words."] * runs)
    for _ in range(runs):
        minions.run(recipe, model=model).unwrap()


def _by_executor(runs: int) -> None:
    """With the services and tools of the front door."""
    recipe, model = _recipe(), ScriptedModel(["Words."] * runs)

    async def work() -> None:
        services = Services(parser=InstructorParser(), prices=make_prices(Settings()))
        executor = AgentExecutor(model, extensions=built_in_extensions(), services=services)
        for _ in range(runs):
            (await executor.execute(recipe)).unwrap()

    asyncio.run(work())


def _least(rounds: int, runs: int) -> list[float]:
    works: tuple[Callable[[int], None], ...] = (_by_door, _by_executor)
    best = [float("inf")] * len(works)
    for work in works:
        work(2)
    for _ in range(rounds):
        for at, work in enumerate(works):
            gc.collect()
            begin = time.process_time()
            work(runs)
            best[at] = min(best[at], time.process_time() - begin)
    return best


if __name__ == "__main__":
    print(json.dumps(_least(int(sys.argv[2]), int(sys.argv[1]))))

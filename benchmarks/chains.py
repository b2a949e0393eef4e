"""What a step costs that does nothing: `set` and Python steps in a row, in memory and on SQLite."""

from __future__ import annotations

import tempfile
from pathlib import Path

from attrs import frozen

from benchmarks.endpoint import Endpoint
from benchmarks.measuring import Effort, Row, absolute_row, least_cpu_s, ratio_row
from minions import (
    AgentExecutor,
    AgentRecipe,
    PythonStep,
    ScriptedModel,
    Services,
    SqliteJournal,
    StepScope,
)
from minions.contracts.runtime import SystemClock
from minions.recipe.kinds.set_kind import SetSpec


async def measure(effort: Effort, _: Endpoint) -> list[Row]:
    """Time per step in memory and on SQLite, its growth, and bytes per step on SQLite."""
    short, long = effort.count(1_000), effort.count(10_000)
    taken = await least_cpu_s(
        effort,
        {
            "short": lambda: _run(short),
            "long": lambda: _run(long),
            "stored": lambda: _bytes_stored(short),
            "code": lambda: _run_code(short),
        },
    )
    per_step = {name: taken[name] / short * 1e6 for name in ("short", "stored", "code")}
    per_step["long"] = taken["long"] / long * 1e6
    few = effort.count(100)
    few_bytes, many_bytes = await _bytes_stored(few) / few, await _bytes_stored(long) / long
    return [
        absolute_row(
            "chain", f"a `set` step of {short:,}", value=per_step["short"], most=25, unit="µs"
        ),
        absolute_row(
            "code",
            f"a Python step of {short:,} that does nothing",
            value=per_step["code"],
            most=100,
            unit="µs",
        ),
        ratio_row(
            "chain-growth",
            f"a `set` step of {long:,}, against one of {short:,}",
            ratio=per_step["long"] / per_step["short"],
            most=1.2,
            of=f"a step of {short:,}",
            absolute=f"{per_step['long']:.0f} µs; {per_step['short']:.0f} µs",
        ),
        absolute_row(
            "stored",
            f"a step of {short:,} on SQLite",
            value=per_step["stored"] / 1e3,
            most=0.3,
            unit="ms",
        ),
        ratio_row(
            "stored-bytes",
            f"bytes stored per step of {long:,}, against {few:,}",
            ratio=many_bytes / few_bytes,
            most=1.1,
            of=f"a step of {few:,}",
            absolute=f"{many_bytes:.0f} B; {few_bytes:.0f} B",
        ),
    ]


def _chain(steps: int) -> AgentRecipe:
    return AgentRecipe(
        id="chain", steps=[SetSpec(id=f"s{at}", set={"n": at}) for at in range(steps)]
    )


async def _run(steps: int, services: Services | None = None) -> None:
    result = await AgentExecutor(ScriptedModel([]), services=services).execute(_chain(steps))
    assert result.output == {"n": steps - 1}, result.error


@frozen
class _Nothing(PythonStep[int]):
    id: str

    async def run(self, scope: StepScope) -> int:
        return 1


async def _run_code(steps: int) -> None:
    recipe = AgentRecipe(id="code", steps=[_Nothing(f"s{at}") for at in range(steps)])
    result = await AgentExecutor(ScriptedModel([])).execute(recipe)
    assert result.output == 1, result.error


async def _bytes_stored(steps: int) -> int:
    """Run on SQLite; the size of the file once its log is in it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "journal.sqlite"
        journal = SqliteJournal(path, SystemClock())
        await _run(steps, Services(journal=journal))
        await journal.aclose()
        return path.stat().st_size

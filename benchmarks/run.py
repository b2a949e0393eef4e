"""What the engine itself costs, as ratios within one run; writes RESULTS.md beside this file.

Each figure is CPU time of this process, the best of several rounds, so that a busy machine
changes it little. No network: models are scripted.
"""

from __future__ import annotations

import asyncio
import platform
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from minions import AgentExecutor, AgentRecipe, DefaultStep, MessageBundle, ScriptedModel, Services
from minions.adapters.function_tool import tool
from minions.adapters.scripted_model import tool_request
from minions.adapters.sqlite_journal import SqliteJournal
from minions.contracts.completion import CompletionCriteria, CompletionMode
from minions.contracts.tools import Toolbox
from minions.engine.context import Extensions
from minions.engine.services import SystemClock
from minions.recipe.model import SetSpec

ROUNDS = 3
TEXT = CompletionCriteria(mode=CompletionMode.TEXT)


@tool(effect="pure")
async def echo(n: int) -> int:
    """The number."""
    return n


def cpu_s(work: Callable[[], Awaitable[object]]) -> float:
    """Least CPU seconds of several rounds."""

    def once() -> float:
        begin = time.process_time()
        asyncio.run(_awaited(work))
        return time.process_time() - begin

    return min(once() for _ in range(ROUNDS))


async def _awaited(work: Callable[[], Awaitable[object]]) -> None:
    await work()


def chain(steps: int, services: Services | None = None) -> Callable[[], Awaitable[object]]:
    """That many `set` steps in a row."""
    specs = [SetSpec(id=f"s{at}", set={"n": at}) for at in range(steps)]
    recipe = AgentRecipe(id="chain", steps=specs)
    return lambda: AgentExecutor(ScriptedModel([]), services=services).execute(recipe)


def loop(turns: int) -> Callable[[], Awaitable[object]]:
    """One step whose model calls a tool that many times, then answers."""
    step = DefaultStep[object](
        id="loop",
        messages=MessageBundle.of(goal="count"),
        available_tools={"echo"},
        completion_criteria=TEXT,
        metadata={"max_model_calls_per_step": turns + 1},
    )
    recipe = AgentRecipe(id="loop", steps=[step])

    def run() -> Awaitable[object]:
        answers = [*(tool_request("echo", {"n": at}) for at in range(turns)), "done"]
        executor = AgentExecutor(
            ScriptedModel(answers), extensions=Extensions(tools=Toolbox((echo,)))
        )
        return executor.execute(recipe)

    return run


def main() -> None:
    """Measure and write."""
    short, long = cpu_s(chain(200)) / 200, cpu_s(chain(2_000)) / 2_000
    with tempfile.TemporaryDirectory() as folder:
        journal = SqliteJournal(Path(folder) / "j.sqlite", SystemClock())
        stored = cpu_s(chain(1_000, Services(journal=journal))) / 1_000
    few, many = cpu_s(loop(50)) / 50, cpu_s(loop(200)) / 200
    rows = [
        ("no-op step in a chain of 200", f"{short * 1e6:.0f} µs", "1.00"),
        ("no-op step in a chain of 2,000", f"{long * 1e6:.0f} µs", f"{long / short:.2f}"),
        ("no-op step, journal on SQLite", f"{stored * 1e6:.0f} µs", f"{stored / short:.2f}"),
        ("turn of a 50-turn tool loop", f"{few * 1e6:.0f} µs", "1.00"),
        ("turn of a 200-turn tool loop", f"{many * 1e6:.0f} µs", f"{many / few:.2f}"),
    ]
    lines = [
        "# Results",
        "",
        f"CPU time, Python {platform.python_version()}, best of {ROUNDS} rounds. Ratios are to the",
        "first row of their pair, within the same run; absolute times belong to one machine.",
        "",
        "| work | CPU | ratio |",
        "|---|---|---|",
        *(f"| {work} | {took} | {ratio} |" for work, took, ratio in rows),
        "",
    ]
    text = "\n".join(lines)
    (Path(__file__).parent / "RESULTS.md").write_text(text, "utf-8")
    print(text)


if __name__ == "__main__":
    main()

"""Sessions in SQLite: a fork of a long one, a list of many, the bytes of a turn."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Coroutine
from pathlib import Path

from benchmarks.endpoint import Endpoint
from benchmarks.measuring import Effort, Row, absolute_row, ratio_row
from minions import (
    ChatAgent,
    MessageRole,
    ScriptedModel,
    Services,
    SqliteJournal,
    StepRepository,
    StepRunner,
)
from minions.contracts.journal.facts import RunFinished, RunStarted
from minions.contracts.journal.journal import EntryDraft
from minions.contracts.runtime import SystemClock
from minions.engine.views.lookup import list_runs
from minions.sessions import SessionStep

FORK_MS = 5.0
LIST_MS = 200.0


async def measure(effort: Effort, _: Endpoint) -> list[Row]:
    """In one file each."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        return [
            *await _forks(effort, home / "forks.sqlite"),
            await _lists(effort, home / "lists.sqlite"),
            await _turns(effort, home / "turns.sqlite"),
        ]


async def _forks(effort: Effort, path: Path) -> list[Row]:
    journal = SqliteJournal(path, SystemClock())
    repository = StepRepository(Services(journal=journal))
    short, long = 100, max(200, effort.count(10_000))
    for length in (short, long):
        steps = [
            SessionStep(session_id=f"s{length}", role=MessageRole.USER, content=f"message {n}")
            for n in range(length)
        ]
        await repository.save_steps_batch(steps)
    least = {
        length: await _least_s(effort, lambda n=length: repository.fork(f"s{n}", n))  # type: ignore[misc]  # bound now
        for length in (short, long)
    }
    await journal.aclose()
    absolute = f"{least[long] * 1e3:.2f} ms; {least[short] * 1e3:.2f} ms"
    return [
        absolute_row(
            "fork",
            f"fork of a session of {long:,} messages",
            value=least[long] * 1e3,
            most=FORK_MS,
            unit="ms",
        ),
        ratio_row(
            "fork-growth",
            f"fork of {long:,} messages, against {short}",
            ratio=least[long] / least[short],
            most=1.5,
            of=f"fork of {short}",
            absolute=absolute,
        ),
    ]


async def _lists(effort: Effort, path: Path) -> Row:
    journal = SqliteJournal(path, SystemClock())
    count = max(10, effort.count(10_000))
    for number in range(count):
        lease = await journal.acquire(f"ses_{number}", f"run_{number}", "worker", 60.0)
        begun = RunStarted(recipe="talk", inputs={"message": "Hello"}, model="any", steps={})
        ended = RunFinished(status="completed", output="x" * 100, usage={"input_tokens": 5})
        for fact in (begun, ended):
            await journal.append(lease, EntryDraft(key="run", fact=fact))
        await journal.release(lease)
    taken = await _least_s(effort, lambda: list_runs(journal))
    assert len(await list_runs(journal)) == count
    await journal.aclose()
    return absolute_row(
        "list", f"a list of {count:,} sessions", value=taken * 1e3, most=LIST_MS, unit="ms"
    )


async def _turns(effort: Effort, path: Path) -> Row:
    """The file grows by as much with the last turn as with the first ones."""
    journal = SqliteJournal(path, SystemClock())
    repository = StepRepository(Services(journal=journal))
    model = ScriptedModel(lambda _: "An answer of some length, as answers are.")
    runner = StepRunner(ChatAgent(model=model), repository=repository)
    turns = max(8, effort.count(400))
    sizes = [0]
    for turn in range(turns):
        run = await runner.prepare_turn("s", "A question of some length, as questions are.")
        await run.execute()
        if turn + 1 in (turns // 4, turns // 2, turns):
            rows = await journal.entries("s")
            sizes.append(sum(len(str(row.body)) for row in rows))
    await journal.aclose()
    early = (sizes[2] - sizes[1]) / (turns // 2 - turns // 4)
    late = (sizes[3] - sizes[2]) / (turns - turns // 2)
    return ratio_row(
        "turn-bytes",
        f"bytes of a turn in the second half of {turns}, against the second quarter",
        ratio=late / early,
        most=1.05,
        of="an earlier turn",
        absolute=f"{late:.0f} bytes; {early:.0f} bytes",
    )


async def _least_s(effort: Effort, work: Callable[[], Coroutine[None, None, object]]) -> float:
    """Wall seconds: what somebody waits for."""
    least = float("inf")
    for _ in range(5 * effort.rounds):
        begin = time.perf_counter()
        await work()
        least = min(least, time.perf_counter() - begin)
    return least

"""`minions batch` as a process that is killed with SIGKILL and started again."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import Final

from command_line import Write
from forked_commands import PROGRAM, ForkedCommand, run_forked
from minions import SqliteJournal
from minions.contracts.executions import RunState
from minions.contracts.journal.run_rows import RunFilter
from minions.services import SystemClock
from patience import HANG_S

LINES: Final = 300
AT_ONCE: Final = 8
FAILING: Final = frozenset(range(3, LINES, 7)) - {3, 10, 17}
"""40 lines."""

MODEL: Final = """
import asyncio, re
from pathlib import Path
from minions import ModelFailure, ScriptedModel

calls = Path("calls.txt")

async def answer(prompt):
    number = int(re.search(r"number (\\d+)", prompt.messages[-1].content)[1])
    with calls.open("a") as file:
        file.write(f"{number}\\n")
    await asyncio.sleep(0.004)
    failing = number % 7 == 3 and number > 17 and not Path("mended").exists()
    if failing:
        return ModelFailure(code="refused", message=f"not number {number}")
    return f"number {number} is fine"

numbers = ScriptedModel(answer, name="scripted/numbers")
"""
RECIPE: Final = """
id: numbers
inputs: {n: integer}
steps:
  - {id: look, goal: "Look at number {{ inputs.n }}."}
"""
COMMAND: Final = (
    "batch", "numbers.yaml", "items.jsonl", "-j", str(AT_ONCE), "-o", "out.jsonl",
    "-m", "scripted/numbers", "--extensions", "own.py", "--db", "j.sqlite",
)  # fmt: skip


def test_a_batch_killed_three_times_pays_nothing_twice_and_has_a_line_for_each_input(
    here: Path, write: Write
) -> None:
    """A-116."""
    assert len(FAILING) == 40
    write("own.py", MODEL)
    write("numbers.yaml", RECIPE)
    write("items.jsonl", "".join(f'{{"n": {n}}}\n' for n in range(LINES)))
    kills = []
    for kill in (1, 2, 3):
        killed_after(here, calls=60 * kill)
        kills.append((ended_lines(here), calls_of(here)))
    assert finished(here).returncode == 1
    for ended, before in kills:
        assert len(ended) > 20
        assert not ended & set(calls_of(here) - before)
    total = calls_of(here)
    assert set(total) == set(range(LINES))
    assert total.total() <= LINES + 3 * AT_ONCE  # those under way when it was killed
    assert_results(here, failed=FAILING)

    settled = calls_of(here)
    assert finished(here).returncode == 1  # everything is recorded
    assert calls_of(here) == settled
    assert_results(here, failed=FAILING)

    write("mended", "")
    assert finished(here, "--retry-failed").returncode == 0
    assert calls_of(here) - settled == Counter(dict.fromkeys(FAILING, 1))
    assert_results(here, failed=frozenset())


def killed_after(here: Path, *, calls: int) -> None:
    process = ForkedCommand(
        [*PROGRAM, *COMMAND],
        cwd=here,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    end = time.monotonic() + HANG_S
    while calls_of(here).total() < calls and time.monotonic() < end:
        assert process.poll() is None
        time.sleep(0.002)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait(HANG_S) == -signal.SIGKILL


def finished(here: Path, *more: str) -> subprocess.CompletedProcess[str]:
    return run_forked(
        [*PROGRAM, *COMMAND, *more],
        cwd=here,
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )


def calls_of(here: Path) -> Counter[int]:
    path = here / "calls.txt"
    return Counter(map(int, path.read_text("utf-8").split())) if path.exists() else Counter()


def ended_lines(here: Path) -> set[int]:
    """The lines whose end is recorded."""

    async def read() -> set[int]:
        journal = SqliteJournal(here / "j.sqlite", SystemClock())
        try:
            wanted = RunFilter(statuses=[RunState.COMPLETED, RunState.FAILED])
            rows = await journal.runs(wanted)
            starts = [await journal.entries(row.session_id, limit=1) for row in rows]
            return {int(entry.body["inputs"]["n"]) for (entry,) in starts}  # type: ignore[index,call-overload,arg-type]  # JSON
        finally:
            await journal.aclose()

    return asyncio.run(read())


def assert_results(here: Path, *, failed: frozenset[int]) -> None:
    lines = (here / "out.jsonl").read_text("utf-8").splitlines()
    results = [json.loads(line) for line in lines]
    assert [result["index"] for result in results] == list(range(LINES))
    for index, result in enumerate(results):
        assert result["run_id"].startswith("run_")
        if index in failed:
            assert (result["status"], result["output"]) == ("failed", None)
            assert result["error"]["code"] == "refused"
            assert f"not number {index}" in result["error"]["message"]
        else:
            assert result["status"] == "completed"
            assert (result["output"], result["error"]) == (f"number {index} is fine", None)
            assert result["tokens"] > 0

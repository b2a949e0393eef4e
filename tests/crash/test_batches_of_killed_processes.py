"""Processes with calls in batches that are killed at any moment lose and pay nothing twice."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from batch_worlds import ITEMS
from forked_commands import ForkedCommand
from minions.testing.batch_endpoint import BatchEndpoint, BatchForm
from patience import HANG_S

PROGRAM: Final = Path(__file__).parents[1] / "batch_program.py"
CALLS: Final = 2 * len(ITEMS)


class Process:
    """A batch in a process of its own, which may be killed and started again."""

    def __init__(self, form: BatchForm, server: BatchEndpoint, database: Path) -> None:
        self.form, self.server, self.database = form, server, database
        self.process: ForkedCommand[bytes] | None = None
        self.lines: list[Any] = []  # Any: JSON of results

    async def run(self, writes: int = 0) -> int:
        """Run until the end, or until it dies at that write; the exit code."""
        paths = os.pathsep.join((str(PROGRAM.parent), str(PROGRAM.parents[1])))
        place = (self.server.base_url, str(self.database))
        with ForkedCommand[bytes](
            [sys.executable, str(PROGRAM), str(self.form), *place, str(writes)],
            env={**os.environ, "PYTHONPATH": paths},
            stdout=subprocess.PIPE,
        ) as self.process:
            said, _ = await asyncio.to_thread(self.process.communicate, timeout=HANG_S)
            self.lines = [json.loads(line) for line in said.splitlines()]
            return self.process.returncode

    def kill(self) -> None:
        """Kill it now."""
        if self.process is not None:
            self.process.kill()

    def expect_all_answered_once(self) -> None:
        """Every line has its result, and each call was answered, and paid, in one batch."""
        assert [each["status"] for each in self.lines] == ["completed"] * len(ITEMS)
        assert [each["cost_usd"] for each in self.lines] == pytest.approx([0.14] * len(ITEMS))
        self.server.settle()
        assert self.server.paid.total() == CALLS
        assert set(self.server.submitted.values()) == {1}
        assert sum(self.server.submitted.values()) == CALLS
        assert not self.server.live


@pytest.mark.parametrize(
    ("form", "kind"),
    [
        *((form, "create") for form in BatchForm),
        (BatchForm.OPENAI, "upload"),
        (BatchForm.OPENAI, "status"),
        (BatchForm.ANTHROPIC, "results"),
    ],
)
async def test_a_process_killed_between_a_request_and_its_answer_pays_once(
    form: BatchForm, kind: str, tmp_path: Path
) -> None:
    """A-177: also where the batch was created and nobody heard of it."""
    killed: list[str] = []

    def on_request(asked: str) -> None:
        if asked == kind and not killed:
            killed.append(asked)
            process.kill()

    async with BatchEndpoint(form, takes_s=0.2, on_request=on_request) as server:
        process = Process(form, server, tmp_path / "j.sqlite")
        assert await process.run() == -signal.SIGKILL
        assert await process.run() == 0
        process.expect_all_answered_once()


@pytest.mark.long
@pytest.mark.parametrize("form", [BatchForm.OPENAI, BatchForm.ANTHROPIC])
async def test_a_process_killed_again_and_again_at_its_writes_pays_once(
    form: BatchForm, tmp_path: Path
) -> None:
    """A-177: each process dies some writes later than the one before."""
    async with BatchEndpoint(form, takes_s=0.2) as server:
        process = Process(form, server, tmp_path / "j.sqlite")
        kills, code = 0, -signal.SIGKILL
        while code == -signal.SIGKILL and kills < 60:
            kills += 1
            code = await process.run(writes=5 * kills)
        assert code == 0
        assert kills > 4
        process.expect_all_answered_once()

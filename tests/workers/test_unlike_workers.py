"""Workers that differ: a run waits for one that can execute it, and is failed by none."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import pytest

from forked_commands import PROGRAM, ForkedCommand, run_forked
from minions.contracts.executions import RunState
from minions.contracts.journal.run_rows import RunFilter
from patience import HANG_S
from workers.fleet import journal_of

_RUNS: Final = 60
_TOOLS: Final = '''
from minions import tool

@tool(effect="pure")
def work(n: int) -> int:
    """Doubles."""
    return n * 2
'''
_RECIPE: Final = """
id: parts
inputs: {n: integer}
steps:
  - {id: first, tool: work, params: {n: "{{ inputs.n }}"}}
output: {n: "{{ first }}"}
"""
_OLD_PACKAGE: Final = """
import minions

minions.__version__ = "0.0.1"

@minions.tool(effect="pure")
def other() -> int:
    'One.'
    return 1
"""
_UNLIKE: Final = (
    "without the extension",
    "in another folder",
    "whose folder was removed",
    "with a changed tool",
    "with an older package",
)


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return str(tmp_path / "journal.sqlite")
    if importlib.util.find_spec("dbos") is None:
        pytest.skip("dbos is not installed: pip install 'minions-engine[dbos]'")
    return str(request.getfixturevalue("postgres_url"))


class Fleet:
    """Commands and workers over one database."""

    def __init__(self, folder: Path, database: str) -> None:
        self.folder = folder
        self.database = database
        self._workers: list[subprocess.Popen[str]] = []
        (folder / "tools.py").write_text(_TOOLS, "utf-8")
        (folder / "parts.yaml").write_text(_RECIPE, "utf-8")

    def _words(self, arguments: Sequence[str]) -> list[str]:
        return [*PROGRAM, *arguments, "--db", self.database]

    def run(self, *arguments: str) -> str:
        """What a command printed."""
        done = run_forked(
            self._words(arguments),
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=10 * HANG_S,
            check=False,
            env={**os.environ, "MINIONS_TRUST": "1"},
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def queue(self, count: int) -> None:
        items = "".join(f"{json.dumps({'n': n})}\n" for n in range(count))
        (self.folder / "items.jsonl").write_text(items, "utf-8")
        self.run(
            *("batch", "parts.yaml", "items.jsonl", "--detach", "--name", "all", "-o", "out"),
            *("--extensions", "tools.py"),
        )

    def worker(self, *arguments: str, folder: Path | None = None) -> subprocess.Popen[str]:
        """A worker that has told that it is there."""
        with (self.folder / "workers.log").open("a", encoding="utf-8") as log:
            made: subprocess.Popen[str] = ForkedCommand(
                self._words(("worker", *arguments)),
                cwd=folder or self.folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, "MINIONS_TRUST": "1"},
            )
        self._workers.append(made)
        assert made.stdout is not None
        assert made.stdout.readline().startswith("worker ")
        return made

    def unlike(self, how: str) -> subprocess.Popen[str]:
        """A worker that cannot execute the runs."""
        elsewhere = self.folder.parent / f"{self.folder.name}-elsewhere"
        elsewhere.mkdir(exist_ok=True)
        shutil.copy(self.folder / "tools.py", elsewhere)
        match how:
            case "without the extension":
                return self.worker()
            case "in another folder":
                return self.worker("--extensions", "tools.py", folder=elsewhere)
            case "whose folder was removed":
                made = self.worker("--extensions", "tools.py", "--any-folder", folder=elsewhere)
                shutil.rmtree(elsewhere)
                return made
            case "with a changed tool":
                changed = elsewhere / "changed.py"
                changed.write_text(_TOOLS.replace("n * 2", "n * 3"), "utf-8")
                return self.worker("--extensions", str(changed))
            case _:
                old = elsewhere / "old.py"
                old.write_text(_OLD_PACKAGE, "utf-8")
                return self.worker("--extensions", "tools.py", "--extensions", str(old))

    def statuses(self) -> list[str]:
        found = json.loads(self.run("sessions", "list", "--json", "--limit", "1000"))
        return [each["status"] for each in found]

    async def until_log(self, word: str) -> str:
        """The log of the workers, as soon as it has a word."""
        async with asyncio.timeout(HANG_S):
            while word not in (text := (self.folder / "workers.log").read_text("utf-8")):  # noqa: ASYNC110  # of other processes
                await asyncio.sleep(0.05)
        return text

    def end(self) -> None:
        for each in self._workers:
            with contextlib.suppress(ProcessLookupError):
                each.send_signal(signal.SIGTERM)
        for each in self._workers:
            each.wait(HANG_S)
            assert each.stdout is not None
            each.stdout.close()


@pytest.fixture
def fleet(tmp_path: Path, database: str) -> Iterator[Fleet]:
    made = Fleet(tmp_path, database)
    try:
        yield made
    finally:
        made.end()


async def until_all_ended(fleet: Fleet, count: int = _RUNS) -> list[str]:
    """What the list of runs says of them. They are waited for in the journal: a command for each
    look would take more of the processor than the workers.
    """
    async with journal_of(fleet.database) as journal, asyncio.timeout(2 * HANG_S):
        open_ones = RunFilter(statuses={RunState.QUEUED, RunState.INTERRUPTED})
        while await journal.count_runs(open_ones) or await journal.count_runs() < count:  # noqa: ASYNC110  # of other processes
            await asyncio.sleep(0.05)
    return await asyncio.to_thread(fleet.statuses)


@pytest.mark.parametrize(
    ("database", "how"),
    # What a worker lacks is found in the record, whatever the queue is.
    [*(("sqlite", how) for how in _UNLIKE), ("postgres", "in another folder")],
    indirect=["database"],
)
async def test_a_worker_that_cannot_execute_runs_leaves_them_to_one_that_can(
    fleet: Fleet, how: str
) -> None:
    """A-181. It is there first, so that it meets them first."""
    await asyncio.to_thread(fleet.unlike, how)
    await asyncio.to_thread(fleet.queue, _RUNS)
    await fleet.until_log("run_left")
    await asyncio.to_thread(fleet.worker, "--extensions", "tools.py")
    assert await until_all_ended(fleet) == ["completed"] * _RUNS


async def test_a_run_that_no_worker_can_execute_waits_and_the_missing_part_is_named(
    fleet: Fleet,
) -> None:
    """A-181: in the list of workers, of the run, and to the hook; it waits until one can."""
    await asyncio.to_thread(fleet.unlike, "without the extension")
    await asyncio.to_thread(fleet.queue, 3)
    await fleet.until_log("run_waits_for_worker")
    listed = json.loads(await asyncio.to_thread(fleet.run, "workers", "list", "--json"))
    (worker,) = listed["workers"]
    assert worker["is_alive"]
    assert [each["queue"] for each in listed["left"]] == ["default"] * 3
    words = await asyncio.to_thread(fleet.run, "workers", "list")
    assert words.split()[:5] == ["WORKER", "STATE", "RUNS", "QUEUES", "SEEN"]
    assert "3 runs wait in default: no worker has the tool 'work'  (" in words
    run_id = listed["left"][0]["run_id"]
    shown = await asyncio.to_thread(fleet.run, "sessions", "show", run_id)
    assert "no worker can execute it: none has the tool 'work'" in shown
    assert await asyncio.to_thread(fleet.statuses) == ["queued"] * 3
    await asyncio.to_thread(fleet.worker, "--extensions", "tools.py", "--once")
    assert await until_all_ended(fleet, 3) == ["completed"] * 3


async def test_a_worker_takes_runs_of_other_versions_where_it_is_told_to(fleet: Fleet) -> None:
    """After a deploy that changed a tool, what was queued before waits until somebody says so."""
    await asyncio.to_thread(fleet.queue, 3)
    tools = fleet.folder / "tools.py"
    tools.write_text(tools.read_text("utf-8").replace("n * 2", "2 * n"), "utf-8")
    await asyncio.to_thread(fleet.worker, "--extensions", "tools.py")
    log = await fleet.until_log("run_left")
    assert "of the tool 'work'" in log
    await asyncio.to_thread(fleet.worker, "--extensions", "tools.py", "--any-version")
    assert await until_all_ended(fleet, 3) == ["completed"] * 3

"""`minions serve` in a process of its own, over a project that a test can watch in a browser."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, cast

from builders import draft_of
from forked_commands import PROGRAM, ForkedCommand
from minions.adapters.stores.sqlite_journal import SqliteJournal
from minions.contracts.runtime import SystemClock
from page_project import write_project

__all__ = ["TOKEN", "Served"]

TOKEN = "the-token-of-the-tests-0123456789"
_ROOT = Path(__file__).parents[1]


class Served:
    """`minions serve` over a project; it can be killed and started again at the same address."""

    def __init__(self, folder: Path) -> None:
        self.folder = write_project(folder)
        token = folder / "token"
        token.write_text(TOKEN, "utf-8")
        token.chmod(0o600)
        self.port = "0"
        self.url = ""
        self.process: ForkedCommand[str] | None = None

    def start(self) -> None:
        """Return as soon as it listens."""
        flags = ("--port", self.port, "--db", "j.db", "--token-file", "token", "--resume")
        self.process = ForkedCommand(
            [*PROGRAM, "serve", *flags],
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": str(_ROOT)},
            stdout=subprocess.PIPE,
            text=True,
        )
        line = cast("IO[str]", self.process.stdout).readline()
        found = re.search(r"http://127\.0\.0\.1:(\d+)", line)
        assert found is not None, line
        self.url, self.port = found[0], found[1]

    def kill(self) -> None:
        """As `kill -9` does."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            cast("IO[str]", self.process.stdout).close()
        self.process = None

    def let(self, word: str) -> None:
        """A story of `slow x` goes on behind `one`: `x.one`."""
        (self.folder / word).write_text("", "utf-8")

    def begin(self, recipe: str, inputs: str = "{}") -> str:
        """The id of a new run."""
        body = f'{{"recipe": "{recipe}", "inputs": {inputs}}}'.encode()
        headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.url}/api/v1/runs", body, headers)
        with urllib.request.urlopen(request) as reply:
            return str(json.loads(reply.read())["run_id"])

    def decide(self, run: str, answer: str, *, by: str) -> None:
        """Answer the question that a run waits for, as somebody else."""
        body = json.dumps({"decision": "answer", "value": answer, "by": by}).encode()
        headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
        address = f"{self.url}/api/v1/runs/{run}/decisions"
        with urllib.request.urlopen(urllib.request.Request(address, body, headers)):
            pass

    def record(self, recipe: str, status: str, count: int) -> None:
        """So many runs that have ended, each in a session of its own."""
        # In a thread, because a browser's test has an event loop in this one.
        with ThreadPoolExecutor(1) as threads:
            threads.submit(asyncio.run, self._record(recipe, status, count)).result()

    async def _record(self, recipe: str, status: str, count: int) -> None:
        journal = SqliteJournal(self.folder / "j.db", SystemClock())
        for number in range(count):
            run = f"{recipe}_{number:03}"
            lease = await journal.acquire(f"ses_{run}", f"run_{run}", "w", ttl_s=60)
            for state, body in (("started", {"recipe": recipe}), ("finished", {"status": status})):
                await journal.append(lease, draft_of("run", state, {**body}, key="run"))
            await journal.release(lease)
        await journal.aclose()

    def at(self, place: str) -> str:
        """The address of a place of the page, with the token."""
        return f"{self.url}/#token={TOKEN}&{place}"

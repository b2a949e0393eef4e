"""Runs and rollbacks that die at a chosen step of their work on files and journal.

`python -m crash.rollbacks`: one order as JSON per line in, how it ended per line out. Each order is
carried out by a child; this process has one thread and no event loop, so that forking it is safe.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from attrs import frozen

from minions.adapters.models.scripted import ScriptedModel
from minions.adapters.stores.sqlite_journal import SqliteJournal
from minions.adapters.tools.file_restorer import LocalFileRestorer
from minions.adapters.tools.files_toolset import files_toolset
from minions.contracts.journal.journal import EntryDraft, JournalEntry, Lease
from minions.contracts.runtime import SystemClock
from minions.data.codec import decode
from minions.engine.compile.extensions import Extensions
from minions.engine.run.agent_executor import AgentExecutor
from minions.engine.services.run_services import Services
from minions.engine.sessions.rollback import roll_back_run
from minions.recipe.catalog import Catalog
from minions.recipe.reading.load import load_recipe_text

__all__ = ["DONE", "KILLED", "RUN_ID", "Order"]

KILLED: Final = "killed"
DONE: Final = "done"
RUN_ID: Final = "run_0123456789abcdef"
RECIPE: Final = """
id: changes
permissions: {allow_write: true}
tools: [{files: {root: ROOT, undo: true}}]
steps:
  - {id: a, tool: files__write, params: {path: a, text: first}}
  - {id: b, tool: files__write, params: {path: new/deep/b, text: one}}
  - {id: each, loop: [1, 2, 3], max_parallel: 3, tool: files__write,
     params: {path: "new/{{ loop.item }}/c", text: "c{{ loop.item }}"}}
  - {id: shared, loop: [1, 2, 3], max_parallel: 3, tool: files__write,
     params: {path: b, text: "by {{ loop.item }}"}, depends_on: each}
  - {id: again, tool: files__write_many, depends_on: shared,
     params: {files: [{path: a, text: second}, {path: new/deep/b, text: two}]}}
"""


@frozen(kw_only=True)
class Order:
    """What a child does, and where it dies."""

    what: str
    """`run`, `resume` or `rollback`."""
    root: str
    database: str
    dies_at: int | None = None
    """The number of the step of work at which it is killed, from 1; None: it lives."""


def main() -> None:
    """Until there are no more orders."""
    _warm_up()
    for line in sys.stdin:
        order = decode(json.loads(line), Order)
        child = os.fork()
        if child == 0:
            _carry_out(order)
        _, status = os.waitpid(child, 0)
        is_killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        ended = KILLED if is_killed else DONE if status == 0 else f"failed: {status}"
        sys.stdout.write(f"{ended}\n")
        sys.stdout.flush()


def _warm_up() -> None:
    """Do each kind of work once, so that no child has to import or build anything."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder, "root")
        root.mkdir()
        for what in ("run", "resume", "rollback"):
            order = Order(what=what, root=str(root), database=f"{folder}/j.db")
            asyncio.run(_work(order, _Steps(None)))
    gc.collect()
    gc.freeze()


def _carry_out(order: Order) -> None:
    """Do the work and end the process."""
    try:
        steps = _Steps(order.dies_at)
        steps.watch()
        asyncio.run(_work(order, steps))
        os._exit(0)
    except BaseException as error:  # noqa: BLE001  # a forked child must not go on as its parent
        sys.stderr.write(f"{error!r}\n")
        sys.stderr.flush()
        os._exit(1)


class _Steps:
    """Counts the steps of the work, and kills the process at the chosen one."""

    def __init__(self, dies_at: int | None) -> None:
        self._left = dies_at

    def watch(self) -> None:
        """Count also what is done to files, until the process ends."""
        for name in ("open", "rename", "unlink", "mkdir", "rmdir"):
            setattr(os, name, self._counted(getattr(os, name)))

    def step(self) -> None:
        """Count one step."""
        if self._left is not None:
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    def _counted(self, function: Callable[..., Any]) -> Callable[..., Any]:  # Any: of any function
        def counted(*args: object, **keywords: object) -> object:
            if not {"dir_fd", "src_dir_fd"}.isdisjoint(keywords):
                self.step()
            return function(*args, **keywords)

        return counted


class _DyingJournal(SqliteJournal):
    steps: _Steps

    async def append(self, lease: Lease, draft: EntryDraft) -> JournalEntry:
        if draft.kind.startswith("file_"):
            self.steps.step()
        entry = await super().append(lease, draft)
        if draft.kind.startswith("file_"):
            self.steps.step()
        return entry


async def _work(order: Order, steps: _Steps) -> None:
    journal = _DyingJournal(Path(order.database), SystemClock())
    journal.steps = steps
    services = Services(journal=journal, file_restorer=LocalFileRestorer())
    if order.what == "rollback":
        report = await roll_back_run(services, RUN_ID)
        assert report.is_complete, report
        return
    toolsets = {"files": files_toolset()}
    executor = AgentExecutor(
        ScriptedModel([]), extensions=Extensions(toolsets=toolsets), services=services
    )
    if order.what == "resume":
        result = await executor.resume(RUN_ID)
    else:
        text = RECIPE.replace("ROOT", order.root)
        recipe = load_recipe_text(text, "r.yaml", Catalog(toolsets=toolsets))
        result = await executor.prepare(recipe, run_id=RUN_ID).execute()
    assert result.error is None, result.error


if __name__ == "__main__":
    main()

"""An append to the SQLite journal, in a short session and in a long one."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from benchmarks.endpoint import Endpoint
from benchmarks.measuring import Effort, Row, ratio_row
from minions import SqliteJournal
from minions.contracts.journal.facts import Fact, StepFinished
from minions.contracts.journal.journal import EntryDraft, Lease
from minions.contracts.runtime import SystemClock

WINDOW = 50
"""Entries before and after the place that is looked at."""


async def measure(effort: Effort, _: Endpoint) -> list[Row]:
    """Around entry 100 and around entry 20,000, in the same file."""
    early, late = 100, max(300, effort.count(20_000))
    least = {early: float("inf"), late: float("inf")}
    for _round in range(effort.rounds):
        for place, taken in (await _append_times(early, late)).items():
            least[place] = min(least[place], taken)
    return [
        ratio_row(
            "append",
            f"append at entry {late:,}, against entry {early}",
            ratio=least[late] / least[early],
            most=1.3,
            of=f"append at {early}",
            absolute=f"{least[late] * 1e6:.0f} µs; {least[early] * 1e6:.0f} µs",
        )
    ]


async def _append_times(early: int, late: int) -> dict[int, float]:
    """CPU seconds per entry around each place."""
    taken = {}
    with tempfile.TemporaryDirectory() as folder:
        journal = SqliteJournal(Path(folder) / "journal.sqlite", SystemClock())
        lease = await journal.acquire("ses", "run", "worker", 600.0)
        at = 0
        for place in (early, late):
            at = await _append(journal, lease, at, place - WINDOW)
            begin = time.process_time()
            at = await _append(journal, lease, at, place + WINDOW)
            taken[place] = (time.process_time() - begin) / (2 * WINDOW)
        await journal.aclose()
    return taken


async def _append(journal: SqliteJournal, lease: Lease, begin: int, end: int) -> int:
    for at in range(begin, end):
        draft = EntryDraft(key=f"s{at}", fact=_fact(at))
        await journal.append(lease, draft)
    return end


def _fact(at: int) -> Fact:
    return StepFinished(step_id=f"s{at}", status="completed", output={"text": "x" * 100})

"""Takes random runs to their ends through many kills, as a person with a shell would."""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self, cast

from attrs import evolve, field, mutable

from crash.inspection import (
    Files,
    Seen,
    faults_of,
    open_calls,
    recorded_questions,
    word_for,
    world_of,
)
from crash.kennel import Report
from crash.legs import OPERATIONS, Failpoint, Order
from minions.contracts.journal.journal import JournalEntry
from minions.data.codec import decode, encode
from minions.data.json_values import JsonValue, dumps

__all__ = ["PLACES", "Deck", "Figures", "Journey", "Kennel"]

_TESTS: Final = Path(__file__).parent.parent
_OUTSIDE: Final = "from outside"
"""The kill that comes at any time."""
PLACES: Final = (
    *(f"{each}.{when}" for each in OPERATIONS for when in ("before", "inside", "after")),
    "create.inside", "tool.before", "tool.after", "model", _OUTSIDE,
)  # fmt: skip
"""All kinds of kills."""
_DAY_S: Final = 24 * 60 * 60.0
_WEIGHTS: Final = {
    "append.before": 4, "append.inside": 5, "append.after": 5, "tool.before": 2, "tool.after": 5,
    "model": 3, _OUTSIDE: 5,
}  # fmt: skip
"""How often a place is drawn, where it is not once in a deck."""
_AT_THE_END: Final = ("release.before", "release.inside", "release.after")


class Kennel:
    """The process that has the legs as children."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> Self:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "crash.kennel",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": f"{_TESTS}{os.pathsep}{_TESTS.parent}"},
            limit=2**24,
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        if error is not None and process.returncode is None:
            process.kill()
        process.stdin.close()
        await process.wait()
        assert error is not None or process.returncode == 0, "a child was left behind"

    async def run(self, order: Order) -> Report:
        """One leg."""
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(dumps(encode(order)).encode() + b"\n")
        await process.stdin.drain()
        line = await process.stdout.readline()
        assert line, "the kennel has died"
        return decode(json.loads(line), Report)


class Deck:
    """Kinds of kills, each in its turn, shuffled."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._cards: list[str] = []

    def draw(self, *, is_begun: bool) -> str:
        """One that can happen in the next leg."""
        for at in range(len(self._cards)):
            if self._can_be(self._cards[at], is_begun=is_begun):
                return self._cards.pop(at)
        self._cards += [
            place
            for place in PLACES
            if place not in _AT_THE_END
            for _ in range(_WEIGHTS.get(place, 1))
        ]
        self._rng.shuffle(self._cards)
        return self.draw(is_begun=is_begun)

    @staticmethod
    def _can_be(place: str, *, is_begun: bool) -> bool:
        if place.startswith("read"):
            return is_begun
        return is_begun or not place.startswith("renew")


@mutable
class Figures:
    """What happened in all."""

    kills: Counter[str] = field(factory=Counter)
    """By kind."""
    kills_of_resumed: int = 0
    """Those of a leg that had resumed a run."""
    runs: Counter[str] = field(factory=Counter)
    """By status at the end."""
    legs: int = 0
    facts: int = 0
    effects: int = 0
    """Of tools, repeated ones too."""
    decisions: Counter[str] = field(factory=Counter)
    """Of calls in doubt, by word."""

    def __str__(self) -> str:
        return (
            f"{self.kills.total():,} kills ({self.kills_of_resumed:,} of them in a resumed run), "
            f"{self.runs.total():,} runs, {self.legs:,} executions, {self.facts:,} facts, "
            f"{self.effects:,} effects, {self.decisions.total():,} decisions"
        )

    def page(self, *, seconds: float) -> str:
        """As a table for people."""
        ends = ", ".join(f"{count:,} {status}" for status, count in sorted(self.runs.items()))
        words = ", ".join(f"{count:,} {word}" for word, count in sorted(self.decisions.items()))
        rows = [f"| {place} | {self.kills[place]:,} |" for place in PLACES]
        summary = f"{self} in {seconds:.0f} s. Ends: {ends}. Decided of calls in doubt: {words}."
        return "\n".join([_HEAD, summary, "", "| killed | times |", "|---|---|", *rows, ""])


_HEAD: Final = """# Crashes

Random runs, killed with SIGKILL at random places and resumed until they came to their end. After
each: no acknowledged fact lost, no recorded work repeated, no keyed effect doubled, the same end as
without kills, no process left. `make crash` writes this page.
"""


@mutable(kw_only=True)
class Journey:
    """One random run, from its start to its end."""

    seed: int
    kennel: Kennel
    folder: Path
    deck: Deck
    figures: Figures
    most_kills: int
    urls: tuple[str | None, str | None] = (None, None)
    """Of two empty databases on a server; None: it makes files."""
    _rng: random.Random = field(init=False)
    _seen: Seen = field(factory=Seen, init=False)
    _legs: list[str] = field(factory=list, init=False)
    """What was done, for whoever looks into a failure."""
    _questions: Mapping[str, str] = field(factory=dict, init=False)
    _facts: int = field(default=0, init=False)
    """Of the run without kills."""
    _kills: int = field(default=0, init=False)
    _quiet_s: float = field(default=0.0, init=False)

    def __attrs_post_init__(self) -> None:
        self._rng = random.Random(f"journey {self.seed}")

    @property
    def files(self) -> Files:
        return Files(self.folder / "killed", self.urls[0])

    @property
    def quiet(self) -> Files:
        return Files(self.folder / "quiet", self.urls[1])

    async def travel(self) -> None:
        """To the end.

        Raises:
            AssertionError: With everything that does not hold, and what had been done.
        """
        for files in (self.files, self.quiet):
            files.folder.mkdir(parents=True)
        await self._run_quietly()
        await self._run_and_kill()
        faults = await faults_of(self.files, self.quiet, self._questions, self._seen)
        assert not faults, self._told(faults)
        entries = await self.files.entries()
        await self._ask_again(entries)
        self.figures.facts += len(entries)
        self.figures.effects += len(world_of(self.files).deeds)
        (summary,) = await self.files.runs()
        self.figures.runs[summary.status] += 1

    async def _run_quietly(self) -> None:
        order = self._order(self.quiet)
        report = await self.kennel.run(order)
        self.figures.legs += 1
        result = self._result(report)
        status = result["status"]
        assert status != "needs_decision"
        self._questions = cast("Mapping[str, str]", result["questions"])
        self._facts = len(await self.quiet.entries())
        self._quiet_s = report.duration_ms / 1000

    def _order(self, files: Files) -> Order:
        return Order(
            seed=self.seed,
            database=files.database,
            world=str(files.world),
            acknowledged=str(files.acknowledged),
            pause_s=self._rng.choice((0.0, 0.0, 0.001)),
            clock_jumps_s=self._rng.choice((0, 0, 0, _DAY_S, -_DAY_S)),
        )

    async def _run_and_kill(self) -> None:
        decisions: Mapping[str, str] = {}
        is_told = False
        for leg in range(1, 100):
            entries = await self.files.entries()
            runs = await self.files.runs()
            status = runs[0].status if runs else None
            if status == "failed" or is_told:
                return
            self._seen.recorded_before[leg] = recorded_questions(entries, self._questions)  # type: ignore[index]  # ours
            order = evolve(
                self._order(self.files),
                leg=leg,
                run_id=runs[0].run_id if runs else None,
                decisions=decisions,
            )
            order = self._with_a_kill(order)
            report = await self.kennel.run(order)
            self.figures.legs += 1
            self._legs.append(
                f"{order.run_id} {order.failpoint} {order.decisions} → {report}"[:600]
            )
            decisions = {}
            if report.is_killed:
                self._note_kill(order, report, await self.files.entries())
                continue
            result = self._result(report)
            if result["status"] == "needs_decision":
                decisions = self._decided(await self.files.entries())
            else:
                is_told = True
        raise AssertionError(self._told(["it comes to no end"]))

    async def _ask_again(self, entries: Sequence[JournalEntry]) -> None:
        """A run that came to its output tells it again, and does nothing."""
        (summary,) = await self.files.runs()
        if summary.status not in ("completed", "partial") or self._rng.random() < 0.7:
            return
        order = evolve(self._order(self.files), leg=100, run_id=summary.run_id)
        self.figures.legs += 1
        assert self._result(await self.kennel.run(order))["status"] == summary.status
        assert await self.files.entries() == entries, self._told(["it did something again"])

    # --- kills ------------------------------------------------------------------------------------

    def _with_a_kill(self, order: Order) -> Order:
        rng, is_begun = self._rng, order.run_id is not None
        if self._kills >= self.most_kills:
            return order
        is_last = self._kills == self.most_kills - 1
        place = rng.choice(_AT_THE_END) if is_last else self.deck.draw(is_begun=is_begun)
        if place == _OUTSIDE:
            return evolve(order, dies_after_s=rng.uniform(0.1, 1.1) * self._quiet_s)
        if place.startswith("renew"):
            order = evolve(order, lease_ttl_s=0.006, pause_s=0.002)
        return evolve(order, failpoint=self._failpoint(place))

    def _failpoint(self, place: str) -> Failpoint:
        rng = self._rng
        operation = place.partition(".")[0]
        often = max(2, 2 * self._facts // self.most_kills)
        nth = {
            "append": rng.randint(1, often),
            "tool": rng.randint(1, 3),
            "model": rng.randint(1, 3),
            "read": rng.randint(1, 3),
            "acquire": rng.choice((1, 1, 2)),
        }.get(operation, 1)
        most = {"create": 1500, "read": 300, "release": 25, "renew": 40}.get(operation, 120)
        return Failpoint(place=place, nth=nth, instructions=rng.randint(1, most))

    def _note_kill(self, order: Order, report: Report, entries: Sequence[JournalEntry]) -> None:
        point = order.failpoint
        self._kills += 1
        self.figures.kills[point.place if point is not None else _OUTSIDE] += 1
        self.figures.kills_of_resumed += order.run_id is not None
        self._seen.open_at_kills.update(open_calls(entries))

    # --- decisions --------------------------------------------------------------------------------

    def _decided(self, entries: Sequence[JournalEntry]) -> Mapping[str, str]:
        """What a person finds out: whether the effect is there. Perhaps of one call only."""
        newest = max(entry.generation for entry in entries)
        doubtful = [e for e in entries if e.state == "in_doubt" and e.generation == newest]
        assert doubtful, self._told(["the run waits for a decision about nothing"])
        some = doubtful if self._rng.random() < 0.7 else [self._rng.choice(doubtful)]
        world = world_of(self.files)
        words = {e.key: word_for(world.of(f"{e.run_id}/{e.key}")) for e in some}
        self.figures.decisions.update(word.partition(":")[0] for word in words.values())
        return words

    # --- words ------------------------------------------------------------------------------------

    def _result(self, report: Report) -> Mapping[str, JsonValue]:
        said = cast("Mapping[str, Mapping[str, JsonValue]]", report.said or {})
        assert "result" in said, self._told([f"{report}", str(said.get("traceback"))])
        return said["result"]

    def _told(self, faults: Sequence[str]) -> str:
        return "\n".join([f"seed {self.seed} in {self.folder}", *self._legs, *faults])

"""Random runs that die and go on inside one process, with a clock and chance that repeat."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence

from attrs import evolve, field, frozen, mutable

from builders import deterministic_services
from crash.inspection import World, open_calls, word_for
from crash.random_runs import Deed, Outside, RandomRun
from minions.contracts.executions import AgentResult, RunStatus
from minions.contracts.journal.journal import JournalEntry
from minions.contracts.tools import Toolbox
from minions.engine.compile.extensions import Extensions
from minions.engine.run.agent_executor import AgentExecutor
from minions.testing.virtual_time import FakeClock
from mortal import KilledError, MortalJournal

__all__ = ["Death", "PlayedRun"]

_RUN = "run_1"


@frozen(kw_only=True)
class Death:
    """At which fact of a leg its process dies."""

    at: int
    loses_last: bool = False


@mutable
class _Process(Outside):
    """What the tools and the model of one process share; it may be dead."""

    run: PlayedRun
    leg: int
    met: set[str] = field(factory=set)

    def is_first(self, what: str) -> bool:
        is_first = what not in self.met
        self.met.add(what)
        return is_first

    async def approach(self) -> None:
        await self._pause("approach")

    async def act(self, deed: Deed) -> None:
        self._check()
        self.run.deeds.append(deed)
        await self._pause(deed.key)

    async def ask(self, question: str) -> None:
        self._check()
        self.run.asked.setdefault(self.leg, Counter())[question] += 1
        await self._pause(question)

    async def _pause(self, what: str) -> None:
        """Longer for some than for others, so that parallel work comes to its end out of order."""
        await self.run.clock.sleep(sum(what.encode()) % 7 / 1000)

    def _check(self) -> None:
        if self.run.journal.is_dead:
            raise KilledError


@frozen
class PlayedRun:
    """A random run with its journal and its world, which outlive its processes."""

    seed: int
    clock: FakeClock = field(factory=FakeClock, init=False)
    journal: MortalJournal = field(init=False)
    deeds: list[Deed] = field(factory=list, init=False)
    asked: dict[int, Counter[str]] = field(factory=dict, init=False)
    open_at_kills: Counter[str] = field(factory=Counter, init=False)

    @journal.default
    def _mortal(self) -> MortalJournal:
        return MortalJournal(self.clock)

    @property
    def world(self) -> World:
        return World(self.deeds, self.asked)

    def entries(self) -> Sequence[JournalEntry]:
        """All facts."""
        return asyncio.run(self.journal.entries())

    def play(self, *deaths: Death) -> None:
        """To the end, with those deaths on the way and decisions where they are needed."""
        waiting, decisions = list(deaths), dict[str, str]()
        for leg in range(1, 60):
            death = waiting.pop(0) if waiting else None
            result = self._leg(leg, death, decisions)
            decisions = {}
            if result is None:
                self.open_at_kills.update(open_calls(self.entries()))
            elif result.status is RunStatus.NEEDS_DECISION:
                decisions = self._decisions()
            else:
                return
            if self._has_failed():
                return
        raise AssertionError("it comes to no end")

    def _leg(
        self, leg: int, death: Death | None, decisions: Mapping[str, str]
    ) -> AgentResult[object] | None:
        """None: it died. Each has a loop of its own: nothing of a dead process goes on."""
        journal = self.journal
        if death is not None:
            journal.dies_at = journal.count + death.at
            journal.loses_last = death.loses_last
        try:
            return asyncio.run(self._run(leg, decisions))
        except KilledError:
            return None
        finally:
            journal.revive()

    async def _run(self, leg: int, decisions: Mapping[str, str]) -> AgentResult[object]:
        random_run = RandomRun(self.seed)
        process = _Process(self, leg)
        services = deterministic_services(self.journal, self.clock)
        executor = AgentExecutor(
            random_run.model(process),
            extensions=Extensions(tools=Toolbox(random_run.tools(process))),
            services=evolve(services, parser=random_run.parser()),
        )
        recipe = random_run.recipe()
        if not await self.journal.entries():
            return await executor.execute(recipe)
        own = recipe if recipe.document is None else None
        return await executor.resume(_RUN, recipe=own, decisions=decisions)

    def _decisions(self) -> dict[str, str]:
        entries = self.entries()
        newest = max(entry.generation for entry in entries)
        return {
            entry.key: word_for(self.world.of(f"{_RUN}/{entry.key}"))
            for entry in entries
            if entry.state == "in_doubt" and entry.generation == newest
        }

    def _has_failed(self) -> bool:
        ends = [e for e in self.entries() if (e.kind, e.state) == ("run", "finished")]
        return bool(ends) and ends[-1].body["status"] == "failed"

"""Scores live runs beside a server or a worker: what `minions watch` does, at intervals; then it
decides about canaries.

A run that has ended makes its recipe due, where that has a `watch`; nothing is read or written for
any other. All processes of a database share one look at a recipe at a time, and what it found:
that stands beside the journal, for metrics and pages.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

from attrs import evolve, field, frozen, mutable

from minions.adapters.stores.memory_stores import RESERVED, StateStore
from minions.adapters.telemetry.prometheus import Gauge
from minions.app.evaluating.canary_decisions import CanaryDecisions
from minions.app.evaluating.live_scores import Watch, WatchedScorer, WatchReport, is_foreign
from minions.app.runs.unattended_runtime import UnattendedRuntime
from minions.contracts.flow import Priority
from minions.contracts.journal.start_note import StartNote
from minions.contracts.runtime import Log
from minions.contracts.waiting import RunWait
from minions.data.codec import decode, encode
from minions.data.errors import MinionsError, UsageError, words_of
from minions.data.json_values import JsonValue, dumps, parse_json
from minions.recipe.model import AgentRecipe

_WATCHES: Final = f"{RESERVED}watch:"
LOOK_AT_RUNS_S: Final = 30.0
"""Seconds between two looks at the runs of a recipe, of all processes together."""
_MOST_RUNS: Final = 50
"""Runs that one look scores."""
_LONGEST_LOOK_S: Final = 300.0
"""Seconds after which a look begins with no further run."""
_CLAIM_S: Final = 1_200.0
"""Seconds for which a look is left to the process that began it; a dead one's is taken over."""
_KEPT: Final = timedelta(days=7)
"""How long it is shown what a look found."""
_PUT_OFF_S: Final = 600.0
"""Seconds until the next look after one that could score nothing, as where a bound is reached."""


@frozen(kw_only=True)
class StoredWatch:
    """What the last look at the runs of a recipe found."""

    recipe: str
    project: str | None = None
    """The folder of the project whose runs are judged; None: all runs of the recipe."""
    looked_at: datetime
    """When the last look began."""
    worker: str
    """The process that looked, or looks."""
    until: datetime | None = None
    """Until when the look is left to that process; None: it has ended."""
    report: WatchReport | None = None
    """None: no look has ended yet."""
    alarms: Mapping[str, datetime] = field(factory=dict)
    """Since when scorers say that runs got worse, by the scorer's name."""


async def stored_watches(
    state: StateStore, now: datetime, project: str | None = None
) -> Sequence[StoredWatch]:
    """What is known of watches, in the order of recipes. One that cannot be read is left out, and
    so is one of which no run was looked at for a week: its recipe may be gone.

    Args:
        project: The folder of the project whose runs are judged; None: all.
    Raises:
        JournalError: The database cannot be used.
    """
    texts = [await state.get(key) for key in await state.keys(_WATCHES)]
    found = [
        each
        for text in texts
        if (each := _read_watch(text)) is not None
        and now - each.looked_at < _KEPT
        and project in (None, each.project)
    ]
    return sorted(found, key=lambda each: (each.recipe, each.project or ""))


def _read_watch(text: str | None) -> StoredWatch | None:
    try:
        return None if text is None else decode(parse_json(text), StoredWatch)
    except (MinionsError, ValueError):  # of another version: the next look replaces it
        return None


def watch_gauges(reports: Sequence[tuple[str | None, WatchReport]]) -> Iterator[Gauge]:
    """What watches found, for Prometheus, by project, recipe and scorer; none where there is none.

    Args:
        reports: Each with the folder of the project whose runs are judged; None: all.
    """
    for name, words, value_of in _GAUGES if reports else ():
        values: dict[tuple[str, ...], float] = {
            (project or "", report.recipe, each.scorer): float(value)
            for project, report in reports
            for each in report.scorers
            if (value := value_of(each)) is not None
        }
        yield Gauge(f"minions_watch_{name}", words, values, ("project", "recipe", "scorer"))


_GAUGES: Final[Sequence[tuple[str, str, Callable[[WatchedScorer], float | None]]]] = (
    ("scored_runs", "Sampled runs that have a score.", lambda each: each.scored),
    ("unscored_runs", "Sampled runs whose scorer failed.", lambda each: each.failed),
    (
        "pass_rate",
        "The share of the newest scored runs that pass.",
        lambda each: None if each.recent is None else each.recent.value,
    ),
    (
        "pass_rate_low",
        "The lower end of its interval at 95 %.",
        lambda each: None if each.recent is None else each.recent.low,
    ),
    (
        "pass_rate_high",
        "The upper end of its interval at 95 %.",
        lambda each: None if each.recent is None else each.recent.high,
    ),
    ("alarm", "1 where runs got worse.", lambda each: each.is_alarm),
)


@mutable(kw_only=True)
class _Due:
    """A recipe whose runs are to be looked at."""

    recipe: AgentRecipe
    project: str | None
    at: datetime


class LiveScores:
    """Scores the runs of the recipes that end in this process."""

    def __init__(
        self,
        runtime: UnattendedRuntime,
        state: StateStore,
        log: Log,
        on_alarm: Callable[[RunWait], Awaitable[None]],
    ) -> None:
        """Nothing is read yet.

        Args:
            state: What is found stands there; closed by its owner.
            on_alarm: Tells of runs that got worse, each alarm once.
        """
        self._runtime = runtime
        self._shared = runtime.shared
        self._clock = runtime.services.clock
        self._state = state
        self._log = log
        self._on_alarm = on_alarm
        self._due: dict[str, _Due] = {}
        self._watches: dict[str, tuple[AgentRecipe, Watch]] = {}
        """By key: the recipe of the last look with what it has read."""
        self._canaries = CanaryDecisions(runtime, state, log)
        self._looking = asyncio.Lock()
        self._problems: dict[str, str] = {}
        """Why the runs of a recipe are not scored, so that it is logged once."""

    def run_ended(
        self, recipe: AgentRecipe, note: Mapping[str, JsonValue] | None, project: str | None
    ) -> None:
        """Note that a run of a recipe has ended here; returns at once.

        Args:
            note: The run's note: a recipe that its caller brought judges nothing.
            project: The folder of the run's project; None: of none.
        """
        self._canaries.run_ended(note)
        if recipe.watch is None or is_foreign(StartNote.of(note)):
            return
        now, key = self._clock.now(), _key(recipe.id, project)
        self._due[key] = _Due(recipe=recipe, project=project, at=now)

    async def look(self) -> int:
        """Score runs of the recipes that are due, then decide about canaries; how many scores were
        given.

        Raises:
            JournalError: The database cannot be used.
        """
        async with self._looking:
            new = await self._look()
            await self._canaries.look()
            return new

    async def _look(self) -> int:
        now = self._clock.now()
        due = {key: each for key, each in self._due.items() if each.at <= now}
        new = 0
        for key, each in due.items():
            del self._due[key]
            try:
                report = await self._look_at(key, each)
            except UsageError as error:  # as where a recorded recipe names a tool that is gone
                self._tell(each.recipe.id, error.message)
                continue
            except BaseException:
                self._due.setdefault(key, each)
                raise
            if report is None:  # another process looks, or has just done so
                self._again(key, each, LOOK_AT_RUNS_S)
                continue
            new += report.new
            if report.left is not None:
                self._tell(each.recipe.id, report.left)
            else:
                self._problems.pop(each.recipe.id, None)
            if report.has_more or report.left is not None:
                self._again(key, each, LOOK_AT_RUNS_S if report.new else _PUT_OFF_S)
        return new

    async def look_at_intervals(self) -> None:
        """Look until cancelled; what goes wrong is logged."""
        while True:
            await asyncio.sleep(LOOK_AT_RUNS_S)
            try:
                await self.look()
            except Exception as error:  # noqa: BLE001  # one odd run must not end the others' scores
                self._tell("", words_of(error))

    def _again(self, key: str, due: _Due, pause_s: float) -> None:
        at = self._clock.now() + timedelta(seconds=pause_s)
        self._due.setdefault(key, evolve(due, at=at))

    def _tell(self, recipe: str, problem: str) -> None:
        if self._problems.get(recipe) != problem:
            self._problems[recipe] = problem
            self._log.warning("runs_not_scored", recipe=recipe, reason=problem)

    async def _look_at(self, key: str, due: _Due) -> WatchReport | None:
        """Score runs of one recipe; None: that is left to another process now.

        Raises:
            UsageError: The watch is wrong.
            JournalError: The database cannot be used.
        """
        clock, own_name = self._clock, self._runtime.name
        watch = self._watch_of(key, due)
        text, now = await self._state.get(key), clock.now()
        known = _read_watch(text)
        if known is not None and known.worker != own_name:
            is_left = known.until is not None and known.until > now
            if is_left and not self._runtime.is_worker_gone(known.worker):
                return None
            if (now - known.looked_at).total_seconds() < LOOK_AT_RUNS_S:
                return None
        claim = StoredWatch(
            recipe=due.recipe.id,
            project=due.project,
            looked_at=now,
            worker=own_name,
            until=now + timedelta(seconds=_CLAIM_S),
            report=None if known is None else known.report,
            alarms={} if known is None else known.alarms,
        )
        claimed = dumps(encode(claim))
        if not await self._state.replace(key, text, claimed):
            return None
        report = await watch.report(most=_MOST_RUNS, until=now + timedelta(seconds=_LONGEST_LOOK_S))
        alarms = {
            each.scorer: claim.alarms.get(each.scorer, now)
            for each in report.scorers
            if each.is_alarm
        }
        found = evolve(claim, until=None, report=report, alarms=alarms)
        if await self._state.replace(key, claimed, dumps(encode(found))):
            for each in report.scorers:
                if each.is_alarm and each.scorer not in claim.alarms:
                    await self._tell_alarm(found, each)
        return report

    def _watch_of(self, key: str, due: _Due) -> Watch:
        known = self._watches.get(key)
        if known is not None and known[0] == due.recipe:
            return known[1]
        runtime = self._shared.evolve(priority=Priority.BACKGROUND)
        watch = Watch(runtime, due.recipe, project=due.project)
        self._watches[key] = due.recipe, watch
        return watch

    async def _tell_alarm(self, found: StoredWatch, scorer: WatchedScorer) -> None:
        since = found.alarms[scorer.scorer]
        self._log.warning("runs_got_worse", recipe=found.recipe, scorer=scorer.scorer)
        digest = hashlib.sha256(dumps([found.project, found.recipe, scorer.scorer]).encode())
        if scorer.worse_run is None or scorer.worse_session is None:
            return  # for types: where runs got worse, some did not pass
        try:
            await self._on_alarm(
                RunWait(
                    id=f"watch_{digest.hexdigest()[:16]}_{since:%Y%m%dT%H%M%S%f}",
                    run_id=scorer.worse_run,
                    session_id=scorer.worse_session,
                    recipe=found.recipe,
                    since=since,
                    decisions=(),
                    alarm=scorer.to_json(),
                )
            )
        except MinionsError as error:
            self._log.warning("alarm_not_told", recipe=found.recipe, reason=words_of(error))


def _key(recipe: str, project: str | None) -> str:
    """The key of what is known of a recipe's watch."""
    named = dumps([project, recipe])
    return _WATCHES + hashlib.sha256(named.encode("utf-8", "surrogatepass")).hexdigest()[:32]

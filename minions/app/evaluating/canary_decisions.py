"""Decides about canaries: measures the runs of a deployment's versions, and compares with its bars.

It reads rows and scores of runs that have ended, at intervals, beside a server or a worker; nothing
of it stands on the path of a run. Only runs that the deployment itself began count: neither those
of an evaluation nor those that somebody started from the file.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

from attrs import field, frozen, mutable

from minions.adapters.stores.memory_stores import StateStore
from minions.app.runs.deployments import (
    Canary,
    Deployment,
    DeploymentEvent,
    DeploymentStore,
    deployment_noted,
)
from minions.app.runs.unattended_runtime import UnattendedRuntime
from minions.contracts.executions import RunState
from minions.contracts.journal.facts import RunBeginning, ScoreFact, ScoreRecorded
from minions.contracts.journal.journal import Journal
from minions.contracts.journal.run_rows import RunFilter, RunRow
from minions.contracts.runtime import Clock, Log
from minions.data.errors import MinionsError, UsageError, near_hint, near_names
from minions.data.json_values import JsonValue
from minions.engine.services.event_loop import breathe
from minions.evaluation.statistics import Interval, rate_interval
from minions.recipe.expressions.template import Condition, compile_condition
from minions.recipe.expressions.values import Meter, TemplateError, type_name
from minions.recipe.model import AgentRecipe

FIGURES: Final = (
    "runs",
    "pass_rate",
    "error_rate",
    "mean_cost_usd",
    "mean_tokens",
    "mean_duration_s",
)
"""What a bar may read of the canary, and below `before` of the live version in the same time."""
_BEFORE: Final = "before"
_SAMPLE: Final[Mapping[str, JsonValue]] = dict(
    zip(FIGURES, (200, 0.97, 0.03, 0.013, 1234.5, 1.7), strict=True)
)
"""Figures with which a bar is tried before anything is measured."""
_FEWEST: Final = 20
"""Runs that ended before a canary is withdrawn early."""
_MOST_RUNS: Final = 10_000
"""Runs that one look reads; of more the newest count."""
_PAGE: Final = 200
_ENDED: Final = (RunState.COMPLETED, RunState.FAILED, RunState.LIMIT_REACHED)
"""States of runs that count: a run that somebody cancelled says nothing about its version."""
_SETTLED: Final = timedelta(hours=1)
"""After that time a run that has ended is scored, or never will be."""
_LOOKS_AFTER: Final = 20
"""Looks at a deployment after a run of it ended here: its scores come later."""


@frozen(kw_only=True)
class RunFigures:
    """What is known of one run that has ended."""

    is_completed: bool
    passed: bool | None
    """Whether all its scores pass; None: it has none."""
    cost_usd: float | None
    tokens: int
    duration_s: float


@frozen(kw_only=True)
class VersionFigures:
    """What was measured of the runs of one version."""

    runs: int = 0
    scored: int = 0
    """How many of them have scores."""
    passes: Interval | None = None
    errors: Interval | None = None
    mean_cost_usd: float | None = None
    """None: of no run the cost is known."""
    mean_tokens: float | None = None
    mean_duration_s: float | None = None

    @classmethod
    def of(cls, runs: Sequence[RunFigures]) -> VersionFigures:
        """Figures of these runs."""
        passed = [float(each.passed) for each in runs if each.passed is not None]
        costs = [each.cost_usd for each in runs if each.cost_usd is not None]
        return cls(
            runs=len(runs),
            scored=len(passed),
            passes=rate_interval(passed),
            errors=rate_interval([float(not each.is_completed) for each in runs]),
            mean_cost_usd=_mean(costs),
            mean_tokens=_mean([float(each.tokens) for each in runs]),
            mean_duration_s=_mean([each.duration_s for each in runs]),
        )

    def values(self, *, at_best: bool = False) -> dict[str, JsonValue]:
        """By the names that bars read; what is not known is missing.

        Args:
            at_best: Rates at the better end of their interval.
        """
        passes, errors = self.passes, self.errors
        known: dict[str, JsonValue] = {
            "runs": self.runs,
            "pass_rate": None if passes is None else passes.high if at_best else passes.value,
            "error_rate": None if errors is None else errors.low if at_best else errors.value,
            "mean_cost_usd": self.mean_cost_usd,
            "mean_tokens": self.mean_tokens,
            "mean_duration_s": self.mean_duration_s,
        }
        return {name: value for name, value in known.items() if value is not None}

    def to_json(self) -> dict[str, JsonValue]:
        """The figures as `deployments list --json` shows them, with the intervals of rates."""
        ends = {"pass_rate": self.passes, "error_rate": self.errors}
        intervals: dict[str, JsonValue] = {
            f"{name}_interval": [each.low, each.high]
            for name, each in ends.items()
            if each is not None
        }
        return {**self.values(), "scored": self.scored, **intervals}


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


# --- bars ----------------------------------------------------------------------------------------


@frozen(kw_only=True)
class Bar:
    """A condition that the runs of a canary have to fulfil."""

    text: str
    condition: Condition = field(repr=False, eq=False)

    @classmethod
    def of(cls, text: str) -> Bar:
        """The bar of that text, such as `pass_rate >= 0.95`.

        Raises:
            UsageError: `bad-bar`; it is no condition, or reads what is not measured.
        """
        try:
            condition = compile_condition(text)
        except TemplateError as error:
            raise _bad_bar(text, f"{error.problem}. {error.hint or ''}".strip()) from error
        for each in condition.references:
            name = ".".join(map(str, each.path)).removeprefix(f"{_BEFORE}.")
            if name not in FIGURES:
                hint = near_hint(near_names(name, FIGURES))
                raise _bad_bar(text, f"'{name:.60}' is not measured.{hint}")
        if not condition.references:
            raise _bad_bar(text, "it reads nothing that is measured.")
        return cls(text=text, condition=condition)

    @property
    def reads_scores(self) -> bool:
        """Whether it is about the scores of runs."""
        return any("pass_rate" in map(str, each.path) for each in self.condition.references)

    @property
    def counts_runs(self) -> bool:
        """Whether it is about how many of the canary's runs there are."""
        return any(each.path[0] == "runs" for each in self.condition.references)

    def holds(self, values: Mapping[str, JsonValue]) -> bool | None:
        """Whether it does; None: something that it reads is not known yet."""
        try:
            return self.condition.holds(values)
        except MinionsError:
            return None


def _bad_bar(text: str, problem: str) -> UsageError:
    return UsageError(
        f"--bar '{text:.200}': {problem} A bar is a condition over {', '.join(FIGURES)}, and the "
        "same of the live version below `before`, such as 'pass_rate >= 0.95' or "
        "'mean_cost_usd <= 1.1 * before.mean_cost_usd'.",
        code="bad-bar",
    )


@frozen(kw_only=True)
class CanaryFindings:
    """What was measured of a canary beside the live version, and what follows from it."""

    canary: VersionFigures
    before: VersionFigures
    decision: str | None
    """`promoted` or `withdrawn`; None: it stays."""
    reason: str

    def to_json(self) -> dict[str, JsonValue]:
        """The findings as `deployments list --json` shows them."""
        return {
            "canary": self.canary.to_json(),
            _BEFORE: self.before.to_json(),
            "decision": self.decision,
            "reason": self.reason,
        }


def findings_of(canary: Canary, measured: VersionFigures, before: VersionFigures) -> CanaryFindings:
    """What follows from these figures.

    With as many runs as the canary is to have, all its bars have to hold. With fewer, but at least
    20, it is withdrawn as soon as a bar does not hold even at the better end of the 95 % intervals;
    bars that count runs are left until then. Without a bar a person decides.
    """
    bars = [Bar.of(each) for each in canary.bars]
    counted = measured.scored if any(each.reads_scores for each in bars) else measured.runs
    words = "scored runs" if any(each.reads_scores for each in bars) else "runs"
    is_full = canary.runs is not None and counted >= canary.runs
    values = {**measured.values(at_best=not is_full), _BEFORE: before.values()}
    held = [(bar, bar.holds(values)) for bar in bars if is_full or not bar.counts_runs]
    failed = [bar.text for bar, holds in held if holds is False]
    decision: str | None = None
    if failed and (is_full or counted >= _FEWEST):
        decision = "withdrawn"
        reason = f"{counted} {words}: {'; '.join(failed)} does not hold"
        reason += "" if is_full else " at the better end of its interval"
    elif is_full and (unknown := [bar.text for bar, holds in held if holds is None]):
        reason = f"{counted} {words}: not known yet: {'; '.join(unknown)}"
    elif is_full and bars:
        decision = "promoted"
        reason = f"{counted} {words}: {'; '.join(canary.bars)}"
    elif canary.runs is None or is_full:
        reason = f"{counted} {words}; a person decides"
    else:
        reason = f"{counted} of {canary.runs} {words}"
    return CanaryFindings(canary=measured, before=before, decision=decision, reason=reason)


# --- measuring -----------------------------------------------------------------------------------


class CanaryMeasurement:
    """Reads the runs of a deployment since its canary began. Called again, it reads what is new."""

    def __init__(self, journal: Journal, clock: Clock) -> None:
        """Nothing is read yet."""
        self._journal = journal
        self._clock = clock
        self._numbers: dict[str, int | None] = {}
        """By run, the number of the version that it got; None: it is none of the deployment's."""
        self._settled: dict[str, RunFigures] = {}
        """Runs that ended so long ago that no score is to come: they are read once."""

    async def findings(self, deployment: Deployment, canary: Canary) -> CanaryFindings:
        """What was measured so far.

        Raises:
            JournalError: The journal cannot be read.
        """
        measured: dict[int, list[RunFigures]] = {canary.number: [], deployment.live: []}
        seen: set[str] = set()
        wanted = RunFilter(recipe=deployment.recipe, since=canary.since, statuses=_ENDED)
        after: RunRow | None = None
        for _ in range(_MOST_RUNS // _PAGE):
            page = await self._journal.runs(wanted, limit=_PAGE, after=after)
            for row in page:
                seen.add(row.run_id)
                number = await self._number_of(row, deployment.name)
                if number in measured:
                    measured[number].append(await self._figures(row))
                await breathe()
            if len(page) < _PAGE:
                break
            after = page[-1]
        for known in (self._numbers, self._settled):
            for run_id in [each for each in known if each not in seen]:
                del known[run_id]
        return findings_of(
            canary,
            VersionFigures.of(measured[canary.number]),
            VersionFigures.of(measured[deployment.live]),
        )

    async def _number_of(self, row: RunRow, name: str) -> int | None:
        if row.run_id not in self._numbers:
            starts = await self._journal.entries(
                row.session_id, run_id=row.run_id, kinds={"run"}, limit=1, with_damaged=True
            )
            fact = starts[0].fact if starts else None
            note = fact.note if isinstance(fact, RunBeginning) else None
            noted = None if note is None else deployment_noted(note)
            number = noted[1] if noted is not None and noted[0] == name else None
            self._numbers[row.run_id] = number
        return self._numbers[row.run_id]

    async def _figures(self, row: RunRow) -> RunFigures:
        if (known := self._settled.get(row.run_id)) is not None:
            return known
        rows = await self._journal.entries(
            row.session_id, run_id=row.run_id, kinds={ScoreFact.kind}, with_damaged=True
        )
        scores = [
            each.fact.is_passed
            for each in rows
            if isinstance(each.fact, ScoreRecorded) and each.fact.value is not None
        ]
        cost = row.usage.get("cost_usd")
        ended = row.ended_at or row.started_at
        found = RunFigures(
            is_completed=row.status == RunState.COMPLETED,
            passed=all(scores) if scores else None,
            cost_usd=None if cost is None else float(cost),
            tokens=row.spent.tokens,
            duration_s=(ended - row.started_at).total_seconds(),
        )
        if self._clock.now() - ended > _SETTLED:
            self._settled[row.run_id] = found
        return found


# --- deciding ------------------------------------------------------------------------------------


@mutable
class _Due:
    looks: int = _LOOKS_AFTER
    """Further looks, unless another run ends."""


class CanaryDecisions:
    """Decides about the canaries of the deployments whose runs end in this process."""

    def __init__(self, runtime: UnattendedRuntime, state: StateStore, log: Log) -> None:
        """Nothing is read yet.

        Args:
            state: Where deployments stand; closed by its owner.
        """
        self._runtime = runtime
        self._store = DeploymentStore(state)
        self._log = log
        self._due: dict[str, _Due] = {}
        self._measuring: dict[str, tuple[datetime, CanaryMeasurement]] = {}
        """By name: of the canary that began then."""

    def run_ended(self, note: Mapping[str, JsonValue] | None) -> None:
        """Note that a run has ended here; returns at once."""
        if note and (noted := deployment_noted(note)) is not None:
            self._due[noted[0]] = _Due()

    async def look(self) -> None:
        """Decide where there is enough to decide."""
        for name, due in list(self._due.items()):
            due.looks -= 1
            if due.looks <= 0:
                self._due.pop(name, None)
            try:
                await self._decide(name)
            except MinionsError as error:  # one damaged deployment must not hold up the others
                self._log.warning("canary_not_decided", deployment=name, reason=error.message)

    async def _decide(self, name: str) -> None:
        deployment = await self._store.find(name)
        canary = None if deployment is None else deployment.canary
        if deployment is None or canary is None:
            self._due.pop(name, None)
            self._measuring.pop(name, None)
            return
        known = self._measuring.get(name)
        if known is None or known[0] != canary.since:
            services = self._runtime.services
            known = canary.since, CanaryMeasurement(services.journal, services.clock)
            self._measuring[name] = known
        found = await known[1].findings(deployment, canary)
        if found.decision is None:
            return
        change = _change_of(canary, found, self._runtime)
        if await self._store.change(name, change) is not None:  # else another one was faster
            self._log.info(
                f"canary_{found.decision}",
                deployment=name,
                version=canary.number,
                reason=found.reason,
            )


def _change_of(
    canary: Canary, found: CanaryFindings, runtime: UnattendedRuntime
) -> Callable[[Deployment | None], Deployment | None]:
    event = DeploymentEvent(
        at=runtime.services.clock.now(),
        what=found.decision or "",
        number=canary.number,
        reason=found.reason,
        figures=found.to_json(),
    )

    def changed(deployment: Deployment | None) -> Deployment | None:
        if deployment is None or deployment.canary != canary:
            return None
        if found.decision == "promoted":
            return deployment.promoted(canary.number, event)
        return deployment.withdrawn(event)

    return changed


def check_bars(recipe: AgentRecipe, bars: Sequence[str]) -> None:
    """Check the bars of a canary of that recipe.

    Raises:
        UsageError: `bad-bar`; one is no bar, could not decide, or reads scores that nothing
            gives.
    """
    for text in bars:
        bar = Bar.of(text)
        try:
            value = bar.condition.term.value({**_SAMPLE, _BEFORE: _SAMPLE}, Meter())
        except MinionsError as error:
            raise _bad_bar(text, f"it cannot be evaluated: {error.message}") from error
        if not isinstance(value, bool):
            what = f"its value is of the type {type_name(value)}, and has to be true or false."
            raise _bad_bar(text, what)
        if bar.reads_scores and recipe.watch is None:
            raise UsageError(
                f"--bar '{text:.200}': nothing scores the runs of '{recipe.id}'. Give it a "
                'watch: {sample: 100%, scorers: [{holds: "output is not none"}]}.',
                code="bad-bar",
            )

"""Searches for the cheapest configuration that passes a bar. It asks nobody: who measures is handed
in.

Each model of each step is tried with the recipe's other settings, then each other dimension with
each model; what is expected to cost least comes first, so that a small budget is spent where
something can be saved. A configuration is measured over more and more cases, and is dropped as soon
as it cannot reach the bar or is dearer than the best one that does. What was found is then
confirmed on cases that no part of the search has seen.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Final

from attrs import evolve, field, frozen

from minions.data.json_values import JsonValue
from minions.evaluation.cases import Part
from minions.evaluation.tuning import (
    USUAL_DIMENSIONS,
    Configuration,
    Dimension,
    Measurement,
    Setting,
    StepSpace,
    is_dearer,
)

_FEWEST_FIRST: Final = 4
"""Cases that each configuration is asked at first, where there are so many."""
_MOST_SWEEPS: Final = 2
"""Passes over several steps: what one of them needs may depend on a later one."""
_MOST_CONFIRMED: Final = 3
"""Configurations that are asked the cases held out: each further one says less."""
_FAR: Final = 2.0
"""Times the cost of what passes from which other settings of a model are not tried: they rarely
save half."""
_AS_IT_IS: Final = Configuration()
_NO_BAR: Final = "the recipe as it is passes no case: say which pass rate is wanted, at least 0.9"


def most_configurations(steps: Sequence[StepSpace]) -> int:
    """How many configurations a search measures at most, as a rule far fewer."""
    fixed = [1 + len(each.of(dimension)) for each in steps for dimension in USUAL_DIMENSIONS]
    all_ = math.prod((*fixed, *(1 + each.most_words for each in steps)))
    passes = _sweeps(steps) * (1 + _MOST_CONFIRMED)
    screened = sum(1 + len(each.of(Dimension.MODEL)) for each in steps)
    return min(all_, 1 + passes * (screened + sum(each.most for each in steps)))


def most_reflections(steps: Sequence[StepSpace]) -> int:
    """How often other words are written at most."""
    return sum(each.most_words for each in steps)


def most_confirmed() -> int:
    """How many configurations are asked the cases held out at most."""
    return 1 + _MOST_CONFIRMED


def _sweeps(steps: Sequence[StepSpace]) -> int:
    return _MOST_SWEEPS if len(steps) > 1 else 1


class TrialVerdict(StrEnum):
    """What the search made of a configuration."""

    PASSED = "passed"
    """All cases were asked, and it reaches the bar."""
    MISSED = "missed"
    """All cases were asked, and it does not."""
    OUT_OF_REACH = "cannot reach the bar"
    """It was dropped before all were asked: it cannot reach the bar."""
    DEARER = "dearer"
    """It was dropped before all were asked: another one passes for less."""
    REJECTED = "not confirmed"
    """It reaches the bar on the cases of the search, and not for less on those held out."""
    NOT_MEASURED = "not measured"
    """Its cases could not all be asked."""


@frozen(kw_only=True)
class Trial:
    """One configuration with what was measured of it in the search."""

    configuration: Configuration
    measured: Measurement
    verdict: TrialVerdict


class Measures(ABC):
    """Asks a configuration the cases of a part."""

    @abstractmethod
    async def measure(
        self,
        configuration: Configuration,
        part: Part,
        count: int,
        *,
        runs_kept: Mapping[Configuration, int],
    ) -> Measurement:
        """The measurement over the first `count` cases of the part. What was asked is not asked
        again.

        Args:
            runs_kept: Runs of configurations that were measured for which budget is to be left.
        """

    async def other_words(
        self, step: str, parent: Configuration, *, runs_kept: Mapping[Configuration, int]
    ) -> Setting | None:
        """Other words for the prompt of a step, written from what went wrong with a configuration
        that was measured; None: none can be had.

        Args:
            runs_kept: As of `measure`.
        """
        return None

    def expected_cost_usd(self, configuration: Configuration) -> float | None:
        """US dollars of one run by the prices of its models and the tokens of the recipe as it is,
        which was measured before; None: not known. It decides the order in which models are tried.
        """
        return None


@frozen(kw_only=True)
class SearchResult:
    """What was found."""

    bar: float
    """The pass rate that was wanted, from 0 to 1."""
    trials: tuple[Trial, ...]
    """In the order in which they were measured; the first is the recipe as it is."""
    chosen: Configuration
    """The cheapest configuration that passes; where none does, the one with the highest rate."""
    is_passed: bool
    """Whether it passes: on the cases held out where it was asked them, else in the search."""
    confirmation: Mapping[Configuration, Measurement] = field(factory=dict)
    """On the cases held out; the recipe as it is among them, where the budget was enough."""
    confirmation_bar: float | None = None
    """The bar on the cases held out; None: it is not known."""
    by_cost: bool = True
    """Whether configurations were ranked by US dollars; else by tokens."""
    is_cut: bool = False
    """Whether not all could be asked."""
    problem: str | None = None
    """Why not."""

    def confirmed(self, configuration: Configuration) -> Measurement | None:
        """A configuration on the cases held out; None: it was not asked them."""
        return self.confirmation.get(configuration)

    @property
    def is_confirmed(self) -> bool:
        """Whether the chosen configuration passes on the cases held out."""
        measured = self.confirmed(self.chosen)
        if measured is None or self.confirmation_bar is None:
            return False
        return measured.reaches(self.confirmation_bar)


class Search:
    """One search; deterministic in what it measures."""

    def __init__(
        self,
        steps: Sequence[StepSpace],
        measures: Measures,
        *,
        cases: int,
        confirming: int,
        at_least: float | None = None,
    ) -> None:
        """Nothing is measured yet.

        Args:
            cases: How many the search has.
            confirming: How many are held out to confirm it.
            at_least: The bar, from 0 to 1; None: the pass rate of the recipe as it is, on each
                part.
        """
        self._steps = steps
        self._measures = measures
        self._cases = cases
        self._confirming = confirming
        self._at_least = at_least
        self._bar = at_least or 0.0
        self._measured: dict[Configuration, Measurement] = {}
        self._dropped: dict[Configuration, TrialVerdict] = {}
        self._rejected: set[Configuration] = set()
        """What passed in the search, and not on the cases held out."""
        self._asked: dict[Configuration, Measurement] = {}
        """What was measured on the cases held out."""
        self._held_out_bar = self._bar
        self._stopped: Measurement | None = None
        self._words: dict[str, list[Setting]] = {}
        """By step, the words that were written for it."""
        self._rounds: Counter[tuple[str, Setting | None]] = Counter()
        """How often words were written, by step and its model."""

    async def result(self) -> SearchResult:
        """Search, and confirm what was found."""
        base = await self._ask(_AS_IT_IS, self._cases)
        if self._at_least is None:
            self._bar = 0.0 if base.rate is None else base.rate.value
            if base.problem is not None or not self._bar:
                self._stopped = evolve(base, problem=_base_problem(base) or _NO_BAR)
                return evolve(self._find_result(), is_passed=False)
        for _ in range(_MOST_CONFIRMED):
            await self._sweep()
            found = await self._confirm(self._best)
            if found is not None:
                return found
            self._reject(self._best)
        return await self._confirm(_AS_IT_IS) or self._none_confirmed()

    async def _sweep(self) -> None:
        """Try all choices of all steps, until a pass over them changes nothing."""
        current = self._best
        for _ in range(_sweeps(self._steps)):
            before = current
            for space in self._steps:
                current = await self._with_best_model(space, current)
            for space in self._steps:
                current = await self._tune(space, current)
            if current == before or self._stopped is not None:
                return

    def _reject(self, configuration: Configuration) -> None:
        """Pass over a configuration that does not do on the cases held out, and try again what was
        dropped because of it.
        """
        self._rejected.add(configuration)
        for each, verdict in list(self._dropped.items()):
            if verdict is TrialVerdict.DEARER:
                del self._dropped[each], self._measured[each]

    def _find_result(self) -> SearchResult:
        problem = _base_problem(self._measured[_AS_IT_IS])
        if self._stopped is not None:
            problem = self._stopped.problem
        return SearchResult(
            bar=self._bar,
            trials=tuple(self._trials()),
            chosen=self._best,
            is_passed=self._passes(self._best),
            by_cost=self._by_cost,
            is_cut=problem is not None,
            problem=problem,
        )

    # --- one step ---------------------------------------------------------------------------------

    async def _with_best_model(self, space: StepSpace, current: Configuration) -> Configuration:
        """The best configuration after the models of one step were tried with the other settings of
        the current one. What is expected to be dearer than what passes is left for later.
        """
        for each in self._with_models(space, current):
            if not self._is_expected_dearer(each):
                await self._race(each)
        return self._best

    async def _tune(self, space: StepSpace, current: Configuration) -> Configuration:
        """The best configuration after all choices of one step were tried from the current one."""
        for start in self._with_models(space, current):
            await self._race(start)
            if self._is_given_up(start):
                continue
            here = start
            for dimension in USUAL_DIMENSIONS:
                if dimension is Dimension.MODEL:
                    continue
                others = [here.plus(each) for each in space.of(dimension)]
                for each in (here.without(space.step, dimension), *others):
                    await self._race(each)
                here = self._best_of([here, here.without(space.step, dimension), *others])
            if space.rounds:
                await self._reword(space, here.without(space.step, Dimension.WORDS))
        return self._best

    async def _reword(self, space: StepSpace, start: Configuration) -> None:
        """Try other words with a configuration that misses the bar, until they reach it.

        After Agrawal et al., "GEPA: Reflective Prompt Evolution" (arXiv 2507.19457): each is
        written from the failures of one that no other surpasses on every case.
        """
        await self._race(start)
        turns = Counter[Configuration]()
        pool, own = [start], (space.step, start.of_step(space.step).get(Dimension.MODEL))
        for words in list(self._words.get(space.step, ())):  # those of another model may do
            if self._is_done(pool):
                return
            pool.append(start.plus(words))
            await self._race(pool[-1])
        while not self._is_done(pool) and self._rounds[own] < space.rounds:
            parent = self._parent(pool, turns)
            self._rounds[own] += 1
            turns[parent] += 1
            kept = self._runs_to_keep(start)
            setting = await self._measures.other_words(space.step, parent, runs_kept=kept)
            if setting is not None:
                self._words.setdefault(space.step, []).append(setting)
                pool.append(start.plus(setting))
                await self._race(pool[-1])

    def _is_done(self, pool: Sequence[Configuration]) -> bool:
        """Whether other words are of no use: some pass, or nothing more may be asked."""
        known = [each for each in pool if each in self._measured]
        return self._stopped is not None or any(self._passes(each) for each in known)

    def _parent(
        self, pool: Sequence[Configuration], turns: Mapping[Configuration, int]
    ) -> Configuration:
        """The one whose failures are told next: those that no other surpasses take turns, the one
        first that is best on the most cases.
        """
        known = [each for each in pool if self._measured[each].counted]
        wins = Counter[Configuration]()
        for case in range(self._cases):
            shares = {each: self._share(each, case) for each in known}
            most = max(shares.values(), default=-1.0)
            wins.update(each for each, share in shares.items() if share == most >= 0)
        front = [each for each in known if not self._is_surpassed(each, wins)] or [pool[0]]
        return min(front, key=lambda each: (turns[each], -wins[each], -pool.index(each)))

    def _is_surpassed(self, one: Configuration, wins: Mapping[Configuration, int]) -> bool:
        """Whether another one is as good on each case that both were asked, and better on one."""
        for other in wins:
            pairs = [
                (self._share(one, case), self._share(other, case)) for case in range(self._cases)
            ]
            both = [(mine, theirs) for mine, theirs in pairs if mine >= 0 and theirs >= 0]
            if any(mine < theirs for mine, theirs in both) and all(
                mine <= theirs for mine, theirs in both
            ):
                return True
        return False

    def _share(self, configuration: Configuration, case: int) -> float:
        """The share of its answers to a case that passed; -1: it is not known."""
        shares = self._measured[configuration].shares
        share = shares[case] if case < len(shares) else None
        return -1.0 if share is None else share

    def _is_given_up(self, start: Configuration) -> bool:
        """Whether other settings with that model are not tried: it is dearer, or not reached."""
        measured = self._measured.get(start)
        if measured is None or measured.problem is not None:
            return True
        is_dropped = self._dropped.get(start) is TrialVerdict.DEARER
        return is_dropped or self._is_far_dearer(measured)

    def _is_far_dearer(self, measured: Measurement) -> bool:
        """Whether it costs so much more than what passes that no other setting makes up for it."""
        best = self._best
        if not self._passes(best):
            return False
        ours, theirs = (self._measure_used(each) for each in (measured, self._measured[best]))
        return ours > _FAR * theirs

    def _with_models(self, space: StepSpace, current: Configuration) -> Sequence[Configuration]:
        """The current configuration with each model of the step, the cheapest first; those whose
        price is not known last, the present one before others.
        """
        own = current.without(space.step, Dimension.MODEL)
        others = [own.plus(each) for each in space.of(Dimension.MODEL)]
        return sorted(dict.fromkeys((current, own, *others)), key=self._expected_value)

    def _expected_value(self, configuration: Configuration) -> float:
        expected = self._measures.expected_cost_usd(configuration)
        return math.inf if expected is None else expected

    def _is_expected_dearer(self, configuration: Configuration) -> bool:
        best = self._best
        if not self._passes(best):
            return False
        expected = self._measures.expected_cost_usd(configuration)
        return expected is not None and expected > self._expected_value(best)

    # --- measuring --------------------------------------------------------------------------------

    async def _race(self, configuration: Configuration) -> None:
        """Measure the configuration over more and more cases, until it is dropped or all count."""
        if configuration in self._measured or self._stopped is not None:
            return
        for count in self._rungs():
            measured = await self._ask(configuration, count)
            if measured.problem is not None or count == self._cases:
                return
            if not measured.can_reach(self._bar, self._cases):
                self._dropped[configuration] = TrialVerdict.OUT_OF_REACH
                return
            best = self._best
            if self._passes(best) and is_dearer(
                measured, self._measured[best], by_cost=self._by_cost
            ):
                self._dropped[configuration] = TrialVerdict.DEARER
                return

    async def _ask(self, configuration: Configuration, count: int) -> Measurement:
        kept = self._runs_to_keep(configuration)
        measured = await self._measures.measure(configuration, Part.SEARCH, count, runs_kept=kept)
        self._measured[configuration] = measured
        if measured.is_stopped:
            self._stopped = measured
        return measured

    def _runs_to_keep(self, configuration: Configuration) -> Mapping[Configuration, int]:
        """The runs that confirm what is found, while that configuration is asked."""
        if not self._measured:
            return {}
        # What is asked now takes the place of what is best, for less, or is confirmed itself.
        other = configuration if self._best == _AS_IT_IS else self._best
        return dict.fromkeys((_AS_IT_IS, other), self._confirming)

    def _rungs(self) -> Iterator[int]:
        first = max(_FEWEST_FIRST, math.ceil(self._cases / 4))
        for count in (first, 2 * first):
            if count < self._cases:
                yield count
        yield self._cases

    # --- ranking ----------------------------------------------------------------------------------

    @property
    def _by_cost(self) -> bool:
        """Whether the cost of all that was measured is known; what nothing was asked of aside."""
        asked = [each for each in self._measured.values() if any(each.tokens)]
        return all(each.cost_usd is not None for each in asked)

    @property
    def _best(self) -> Configuration:
        return self._best_of(list(self._measured))

    def _best_of(self, configurations: Sequence[Configuration]) -> Configuration:
        known = [each for each in configurations if each in self._measured]
        return min(known, key=self._rank, default=configurations[0])

    def _rank(
        self, configuration: Configuration
    ) -> tuple[bool, bool, float, float, float, int, str]:
        """Less is better: what passes first, by its cost; then what has the highest rate; last
        what could not be measured.
        """
        measured = self._measured[configuration]
        is_passed = self._passes(configuration)
        rate = 0.0 if measured.rate is None else measured.rate.value
        return (
            not is_passed,
            measured.problem is not None,
            0.0 if is_passed else -rate,
            self._measure_used(measured),
            measured.tokens_each,
            len(configuration.settings),
            configuration.label,
        )

    def _measure_used(self, measured: Measurement) -> float:
        """What one run used: US dollars, or tokens where configurations are ranked by these."""
        return (measured.cost_usd or 0.0) if self._by_cost else measured.tokens_each

    def _passes(self, configuration: Configuration) -> bool:
        measured = self._measured[configuration]
        is_all = measured.count == self._cases and configuration not in self._dropped
        return is_all and configuration not in self._rejected and measured.reaches(self._bar)

    def _trials(self) -> Iterator[Trial]:
        for configuration, measured in self._measured.items():
            yield Trial(
                configuration=configuration,
                measured=measured,
                verdict=self._verdict(configuration, measured),
            )

    def _verdict(self, configuration: Configuration, measured: Measurement) -> TrialVerdict:
        if measured.problem is not None or not measured.is_whole:
            return TrialVerdict.NOT_MEASURED
        dropped = self._dropped.get(configuration)
        if dropped is not None or configuration in self._rejected:
            return dropped or TrialVerdict.REJECTED
        return TrialVerdict.PASSED if self._passes(configuration) else TrialVerdict.MISSED

    # --- confirmation -----------------------------------------------------------------------------

    async def _confirm(self, chosen: Configuration) -> SearchResult | None:
        """The result with that configuration; None: it does not do on the cases held out."""
        found = evolve(self._find_result(), chosen=chosen, is_passed=self._passes(chosen))
        if not found.is_passed:
            return found if not self._rejected else self._none_confirmed()
        base = await self._held_out(_AS_IT_IS) if self._at_least is None else None
        if base is not None and base.problem is not None:
            problem = _base_problem(base)
            return evolve(found, confirmation=self._whole(), is_cut=True, problem=problem)
        measured = await self._held_out(chosen)
        if measured.problem is not None:
            problem = measured.problem
            return evolve(found, confirmation=self._whole(), is_cut=True, problem=problem)
        bar = self._at_least
        if bar is None:
            bar = 0.0 if base is None or base.rate is None else base.rate.value
        self._held_out_bar = bar
        if not measured.reaches(bar):
            return None
        base = await self._held_out(_AS_IT_IS)  # it shows what is saved
        if self._is_dearer_than_base(measured, bar):
            return None
        problem = found.problem
        if problem is None and self._passes(_AS_IT_IS):  # else it is no alternative
            problem = _base_problem(base)
        return evolve(
            found,
            confirmation=self._whole(),
            confirmation_bar=bar,
            is_cut=problem is not None,
            problem=problem,
        )

    def _none_confirmed(self) -> SearchResult:
        """What has the highest rate on the cases held out, where nothing passes."""
        best = max(self._asked, key=lambda each: _value(self._asked[each]))
        found = evolve(
            self._find_result(), chosen=best, is_passed=False, confirmation=self._whole()
        )
        return evolve(found, confirmation_bar=self._held_out_bar)

    def _whole(self) -> Mapping[Configuration, Measurement]:
        asked = self._asked.items()
        return {each: measured for each, measured in asked if measured.problem is None}

    async def _held_out(self, configuration: Configuration) -> Measurement:
        if configuration not in self._asked:
            self._asked[configuration] = await self._measures.measure(
                configuration, Part.CONFIRMATION, self._confirming, runs_kept={}
            )
        return self._asked[configuration]

    def _is_dearer_than_base(self, measured: Measurement, bar: float) -> bool:
        """Whether what the recipe has already passes for less on the cases held out."""
        base = self._asked.get(_AS_IT_IS)
        if base is None or base is measured or not base.reaches(bar):
            return False
        ours, theirs = measured.tokens_each, base.tokens_each
        if self._by_cost and measured.cost_usd is not None and base.cost_usd is not None:
            ours, theirs = measured.cost_usd, base.cost_usd
        return ours > theirs


def _base_problem(base: Measurement) -> str | None:
    """Why the recipe as it is was not measured; None: it was."""
    if base.problem is None or base.is_stopped:
        return base.problem
    return f"the recipe as it is was not measured: {base.problem}"


def _value(measured: Measurement) -> float:
    return -1.0 if measured.rate is None else measured.rate.value


# --- what came out of a tuning -------------------------------------------------------------------


@frozen(kw_only=True)
class TuningReport:
    """A whole tuning."""

    name: str
    """What was tuned on what: `triage.yaml on tickets.jsonl`."""
    steps: tuple[StepSpace, ...]
    """What there was to choose."""
    cases: int
    """Their number, that of all parts."""
    shown: int
    """Those that were held out for examples."""
    searched: int
    """Those that the search asked."""
    confirming: int
    """Those that the search never saw."""
    seed: int
    """What the parts were divided by."""
    samples: int
    """How often each case was asked."""
    at_least: float | None
    """The pass rate that was asked for; None: that of the recipe as it is."""
    result: SearchResult
    text: str
    """The recipe with the chosen configuration; where nothing passes, as it was."""
    diff: str
    """The change as a unified diff; empty: there is none."""
    refused: tuple[str, ...]
    """Why words that a model wrote were not tried, of each."""
    spent_usd: float
    """US dollars of all that was asked, grading and earlier executions included."""

    @property
    def is_passed(self) -> bool:
        """Whether the chosen configuration passes on the cases held out, and all could be asked."""
        return self.result.is_passed and self.result.is_confirmed and not self.result.is_cut

    @property
    def base(self) -> Measurement | None:
        """The recipe as it is, on the cases held out; None: it was not asked them."""
        return self.result.confirmed(Configuration())

    @property
    def chosen(self) -> Measurement | None:
        """The chosen configuration on the cases held out; None: it was not asked them."""
        return self.result.confirmed(self.result.chosen)

    def to_json(self) -> dict[str, JsonValue]:
        """The report as JSON."""
        result = self.result
        return {
            "name": self.name,
            "passed": self.is_passed,
            "stopped": result.problem,
            "at_least": self.at_least,
            "bar": result.bar,
            "confirmation_bar": result.confirmation_bar,
            "ranked_by": "cost" if result.by_cost else "tokens",
            "cases": {
                "all": self.cases,
                "examples": self.shown,
                "search": self.searched,
                "confirmation": self.confirming,
            },
            "seed": self.seed,
            "samples": self.samples,
            "cost_usd": self.spent_usd,
            "space": [each.to_json() for each in self.steps],
            "trials": [
                {
                    "configuration": each.configuration.to_json(),
                    "label": each.configuration.label,
                    "verdict": each.verdict.value,
                    **each.measured.to_json(),
                }
                for each in result.trials
            ],
            "chosen": {
                "configuration": result.chosen.to_json(),
                "label": result.chosen.label,
                "is_confirmed": result.is_confirmed,
            },
            "confirmation": [
                {"label": each.label, **measured.to_json()}
                for each, measured in result.confirmation.items()
            ],
            "refused_words": list(self.refused),
            "diff": self.diff,
        }

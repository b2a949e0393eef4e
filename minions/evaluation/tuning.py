"""What a tuner chooses among: settings of steps, configurations, and what was measured of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Final

from attrs import field, frozen

from minions.data.json_values import JsonValue
from minions.evaluation.report import SampleOutcome, VariantOutcome
from minions.evaluation.statistics import Interval, mean_interval, percentile, rate_interval


class Dimension(StrEnum):
    """What is chosen for a step, in the order in which it is tried."""

    MODEL = "model"
    FORM = "form"
    """The prompt's words, of another version of the recipe."""
    OUTPUT = "output"
    """How the output is asked for."""
    EXAMPLES = "examples"
    WORDS = "words"
    """The prompt's words, which a model writes from what went wrong."""


USUAL_DIMENSIONS: Final = tuple(each for each in Dimension if each is not Dimension.WORDS)
"""What is chosen unless something else is said: words ask a further model."""


@frozen(kw_only=True, order=True)
class Setting:
    """One choice for one step."""

    step: str
    dimension: Dimension
    value: str
    """Unique in its dimension, for people: a model's name, a mode, a number of examples."""

    def __str__(self) -> str:
        noun = _NOUNS.get(self.dimension)
        return f"{noun} {self.value}" if noun is not None else self.value


_NOUNS: Final = {each: each.value for each in Dimension if each not in ("model", "form")}


@frozen
class Configuration:
    """What differs from the recipe as it is: at most one setting of each dimension of a step."""

    settings: frozenset[Setting] = frozenset()

    def plus(self, setting: Setting) -> Configuration:
        """The configuration with that setting, in place of another of its dimension and step."""
        place = (setting.step, setting.dimension)
        kept = (each for each in self.settings if (each.step, each.dimension) != place)
        return Configuration(frozenset((*kept, setting)))

    def without(self, step: str, dimension: Dimension) -> Configuration:
        """The configuration in which the recipe says that dimension of the step."""
        place = (step, dimension)
        kept = (each for each in self.settings if (each.step, each.dimension) != place)
        return Configuration(frozenset(kept))

    def of_step(self, step: str) -> Mapping[Dimension, Setting]:
        """What it says of one step."""
        return {each.dimension: each for each in self.settings if each.step == step}

    @property
    def label(self) -> str:
        """The configuration for people: `label: openai/gpt-5-nano, examples 2`."""
        order = list(Dimension)
        by_step: dict[str, list[Setting]] = {}
        for each in sorted(
            self.settings, key=lambda each: (each.step, order.index(each.dimension))
        ):
            by_step.setdefault(each.step, []).append(each)
        told = [f"{step}: {', '.join(map(str, own))}" for step, own in by_step.items()]
        return "; ".join(told) or "as it is"

    def to_json(self) -> list[JsonValue]:
        """Its settings, `{step, dimension, value}` each."""
        return [
            {"step": each.step, "dimension": each.dimension.value, "value": each.value}
            for each in sorted(self.settings)
        ]


@frozen(kw_only=True)
class StepSpace:
    """What can be chosen for one step."""

    step: str
    options: Mapping[Dimension, tuple[Setting, ...]] = field(factory=dict)
    """What is tried, beside what the recipe says, in this order."""
    closed: Mapping[Dimension, str] = field(factory=dict)
    """Why there is nothing to choose, or not all."""
    notes: Mapping[Setting, str] = field(factory=dict)
    """What a setting leaves out of what the recipe says, beside what it is for."""
    rounds: int = 0
    """How often other words of its prompt are written for each configuration that misses."""

    def of(self, dimension: Dimension) -> tuple[Setting, ...]:
        """The settings of a dimension; empty: there is nothing to choose."""
        return self.options.get(dimension, ())

    @property
    def most(self) -> int:
        """Configurations that one pass over the step measures at most, the present one included."""
        fixed = [each for each in USUAL_DIMENSIONS if each is not Dimension.MODEL]
        others = sum(1 + len(self.of(each)) for each in fixed) + self.most_words
        return (1 + len(self.of(Dimension.MODEL))) * (1 + others)

    @property
    def most_words(self) -> int:
        """Configurations with other words that are measured with one model at most."""
        return self.rounds * (1 + len(self.of(Dimension.MODEL)))

    def to_json(self) -> dict[str, JsonValue]:
        """The choices as JSON."""
        return {
            "step": self.step,
            "options": {
                each.value: [setting.value for setting in self.of(each)]
                for each in Dimension
                if self.of(each)
            },
            "rounds": self.rounds,
            "closed": {each.value: why for each, why in self.closed.items()},
            "notes": {each.value: note for each, note in self.notes.items()},
        }


@frozen(kw_only=True)
class Measurement:
    """What is known of one configuration over the first cases of a part."""

    shares: tuple[float | None, ...] = ()
    """By case, the share of its answers that passed; None: none counts, or it was not asked."""
    costs: tuple[float | None, ...] = ()
    """By case, the US dollars of one run; None: not known."""
    tokens: tuple[float, ...] = ()
    """By case, those of one run."""
    duration_ms: float | None = None
    """Median of one run."""
    failed: int = 0
    """Runs that count and have no output."""
    failure: str | None = None
    """Code and message of the first of these; None: there is none."""
    problem: str | None = None
    """Why not all cases were asked; None: all were."""
    is_stopped: bool = False
    """Whether nothing more may be asked of any configuration: the budget, or a person."""

    @classmethod
    def of_outcome(
        cls, outcome: VariantOutcome, *, problem: str | None = None, is_stopped: bool = False
    ) -> Measurement:
        """The measurement of an evaluated variant, of the runs that tell what its models answer."""
        by_case = [[each for each in case.samples if each.is_measured] for case in outcome.cases]
        all_ = [each for own in by_case for each in own]
        took = [each.duration_ms for each in all_]
        failures = [each.problem or each.status for each in all_ if not each.has_output]
        return cls(
            shares=tuple(_mean([float(each.is_passed) for each in own]) for own in by_case),
            costs=tuple(_mean([_cost_usd(each) for each in own]) for own in by_case),
            tokens=tuple(
                _mean([float(each.usage.total_tokens) for each in own]) or 0.0 for own in by_case
            ),
            duration_ms=percentile([each for each in took if each is not None], 0.5),
            failed=len(failures),
            failure=next(iter(failures), None),
            problem=problem,
            is_stopped=is_stopped,
        )

    @property
    def count(self) -> int:
        """Cases that it is about."""
        return len(self.shares)

    @property
    def counted(self) -> int:
        """Those of them that count."""
        return sum(share is not None for share in self.shares)

    @property
    def is_whole(self) -> bool:
        """Whether each of these cases counts."""
        return bool(self.shares) and None not in self.shares

    @property
    def rate(self) -> Interval | None:
        """The pass rate with its interval at 95 %; None: nothing counts."""
        return rate_interval([share for share in self.shares if share is not None])

    @property
    def cost_usd(self) -> float | None:
        """US dollars of one run, the mean of the cases that count; None: not known of each."""
        pairs = zip(self.costs, self.shares, strict=False)  # without costs nothing is known
        return _mean([cost for cost, share in pairs if share is not None])

    @property
    def tokens_each(self) -> float:
        """Tokens of one run, the mean of the cases that count."""
        pairs = zip(self.tokens, self.shares, strict=False)
        return _mean([used for used, share in pairs if share is not None]) or 0.0

    def reaches(self, bar: float) -> bool:
        """Whether all cases count and the pass rate is at least that, from 0 to 1."""
        rate = self.rate
        return self.is_whole and rate is not None and rate.value >= bar - _ROUNDING

    def can_reach(self, bar: float, cases: int) -> bool:
        """Whether the rate over so many cases may still be that: neither what is left nor the
        interval at 95 % rules it out.
        """
        rate = self.rate
        if rate is None:
            return True
        passed = sum(share for share in self.shares if share is not None)
        most = (passed + cases - self.count) / cases
        return most >= bar - _ROUNDING and rate.high >= bar - _ROUNDING

    def to_json(self) -> dict[str, JsonValue]:
        """The figures as JSON."""
        rate = self.rate
        return {
            "cases": self.count,
            "pass_rate": None if rate is None else rate.value,
            "low": None if rate is None else rate.low,
            "high": None if rate is None else rate.high,
            "cost_usd": self.cost_usd,
            "tokens": self.tokens_each,
            "duration_ms": self.duration_ms,
            "failed": self.failed,
            "failure": self.failure,
            "problem": self.problem,
        }


_ROUNDING: Final = 1e-9
_FEWEST_PAIRS: Final = 5
"""Cases from which a difference in cost is believed before all were asked."""


def is_dearer(one: Measurement, other: Measurement, *, by_cost: bool) -> bool:
    """Whether the first will certainly use more than the second over the same cases.

    It does where it has already used more than the second in all, or where the mean difference by
    case is above 0 at 95 %.

    Args:
        one: Over the first of the cases of the other.
        by_cost: Whether US dollars are compared; else tokens.
    """
    ours, theirs = _spent_amounts(one, by_cost=by_cost), _spent_amounts(other, by_cost=by_cost)
    if ours is None or theirs is None:
        return False
    if sum(ours) > sum(theirs) + _ROUNDING:
        return True
    pairs = [mine - yours for mine, yours in zip(ours, theirs, strict=False)]
    found = mean_interval(pairs) if len(pairs) >= _FEWEST_PAIRS else None
    return found is not None and found.low > _ROUNDING


def _spent_amounts(measured: Measurement, *, by_cost: bool) -> Sequence[float] | None:
    if not by_cost:
        return measured.tokens
    known = [each for each in measured.costs if each is not None]
    return known if len(known) == len(measured.costs) else None


def _mean(values: Sequence[float | None]) -> float | None:
    known = [each for each in values if each is not None]
    return math.fsum(known) / len(known) if known and len(known) == len(values) else None


def _cost_usd(sample: SampleOutcome) -> float | None:
    """What the run cost; one that failed before a model used anything cost nothing."""
    is_free = not sample.has_output and not sample.usage.total_tokens
    return 0.0 if is_free else sample.usage.cost_usd

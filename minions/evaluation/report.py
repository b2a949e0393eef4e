"""What came out of an evaluation: outcomes of samples, cases and variants, and comparisons."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

from attrs import field, frozen

from minions.contracts.executions import RunState
from minions.contracts.messages import TokenUsage
from minions.data.json_values import JsonValue
from minions.evaluation.cases import Case
from minions.evaluation.scorers import Score
from minions.evaluation.statistics import Interval, difference, percentile, rate_interval, sign_test

_ENDED_WELL = frozenset((RunState.COMPLETED.value, RunState.PARTIAL.value))


@frozen(kw_only=True)
class Variant:
    """A recipe with the model that answers it."""

    recipe: str
    """How the recipe is named: a path or an id."""
    model: str | None
    """None: the recipe's own models."""
    label: str
    """Unique in the evaluation."""


@frozen(kw_only=True)
class SampleOutcome:
    """One answer to one case."""

    run_id: str | None
    """None: no run was started."""
    status: str
    """The state of the run, or `not_started`."""
    output: JsonValue = None
    is_early: bool = False
    """Whether the run waits for a person, who has no part in its output: it is made already."""
    problem: str | None = None
    """Why there is no output: code and message of the run's error."""
    scores: tuple[Score, ...] = ()
    ungraded: str | None = None
    """Why a model that grades gave no grade; None: each did."""
    outage: str | None = None
    """Code and message of a failure of a server, an account or a limit of time, because of which
    the run does not tell what its model answers; None: there was none."""
    usage: TokenUsage = field(factory=TokenUsage)
    grading: TokenUsage = field(factory=TokenUsage)
    """What the models that grade used."""
    duration_ms: float | None = None

    @property
    def has_ended(self) -> bool:
        """Whether the run ended: one that was not started, or waits, says nothing."""
        return self.has_output or self.status == RunState.FAILED.value

    @property
    def counts(self) -> bool:
        """Whether it is known if it passes: it has ended, and was graded."""
        return self.has_ended and self.ungraded is None

    @property
    def is_measured(self) -> bool:
        """Whether it counts, and no failure of a server or the like kept its model from answering.

        An evaluation takes such a failure for an answer that did not pass; a tuner must not.
        """
        return self.counts and self.outage is None

    @property
    def has_output(self) -> bool:
        """Whether the run completed, at least in part, or waits with its output made."""
        return self.is_early or self.status in _ENDED_WELL

    @property
    def is_passed(self) -> bool:
        """Whether there is an output and each scorer passes it; not, if one gave no score."""
        return (
            self.has_output
            and self.ungraded is None
            and all(score.is_passed for score in self.scores)
        )

    @property
    def value(self) -> float:
        """The mean of the scores, from 0 to 1; without a scorer 1 for an output."""
        if not self.has_output:
            return 0.0
        return sum(each.value for each in self.scores) / len(self.scores) if self.scores else 1.0

    @property
    def reason(self) -> str | None:
        """Why it did not pass; None: it did."""
        if not self.has_output:
            return self.problem or self.status
        if self.ungraded is not None:
            return f"not graded: {self.ungraded}"
        missed = next((each for each in self.scores if not each.is_passed), None)
        return None if missed is None else f"{missed.scorer}: {missed.reason or 'it did not pass'}"

    def to_json(self) -> dict[str, JsonValue]:
        """The outcome as JSON."""
        return {
            "run_id": self.run_id,
            "status": self.status,
            "passed": None if self.ungraded is not None else self.is_passed,
            "score": None if self.ungraded is not None else round(self.value, 6),
            "scores": {each.scorer: each.to_json() for each in self.scores},
            "output": self.output,
            "error": self.problem,
            "ungraded": self.ungraded,
            "tokens": self.usage.total_tokens,
            "cost_usd": self.usage.cost_usd,
            "duration_ms": self.duration_ms,
        }


@frozen(kw_only=True)
class CaseOutcome:
    """All answers to one case."""

    case: Case
    samples: tuple[SampleOutcome, ...]

    @property
    def ended(self) -> Sequence[SampleOutcome]:
        """The samples whose runs have ended."""
        return [each for each in self.samples if each.has_ended]

    @property
    def counted(self) -> Sequence[SampleOutcome]:
        """The samples that count."""
        return [each for each in self.samples if each.counts]

    @property
    def share(self) -> float | None:
        """The share of the samples that passed; None: none counts."""
        counted = self.counted
        return sum(each.is_passed for each in counted) / len(counted) if counted else None

    @property
    def reason(self) -> str | None:
        """Why the first answer that did not pass did not; None: all passed, or none counts."""
        missed = next((each for each in self.counted if not each.is_passed), None)
        return None if missed is None else missed.reason

    @property
    def ungraded(self) -> str | None:
        """Why the first answer that has no grade has none; None: all have, or none counts."""
        return next((each.ungraded for each in self.ended if each.ungraded is not None), None)

    def to_json(self) -> dict[str, JsonValue]:
        """The case as JSON."""
        return {
            "name": self.case.name,
            "index": self.case.index,
            "inputs": dict(self.case.plain_inputs),
            "expected": self.case.wanted,
            "passed": self.share,
            "samples": [each.to_json() for each in self.samples],
        }


@frozen(kw_only=True)
class VariantOutcome:
    """How one variant did."""

    variant: Variant
    cases: tuple[CaseOutcome, ...]

    @cached_property
    def samples(self) -> Sequence[SampleOutcome]:
        """The samples whose runs have ended, of all cases."""
        return [sample for case in self.cases for sample in case.ended]

    @property
    def rate(self) -> Interval | None:
        """The pass rate with its interval at 95 %; None: nothing counts."""
        return rate_interval([each.share for each in self.cases if each.share is not None])

    @property
    def score(self) -> float | None:
        """The mean score; None: nothing counts."""
        counted = [each for each in self.samples if each.counts]
        return sum(each.value for each in counted) / len(counted) if counted else None

    @property
    def usage(self) -> TokenUsage:
        """What its runs used."""
        return sum((each.usage for each in self.samples), TokenUsage())

    @property
    def grading(self) -> TokenUsage:
        """What grading it used."""
        return sum((each.grading for each in self.samples), TokenUsage())

    @property
    def waiting(self) -> Sequence[str]:
        """The runs that say nothing, since they wait for a person."""
        found = (sample for case in self.cases for sample in case.samples if not sample.is_early)
        waits = RunState.NEEDS_DECISION.value
        return [each.run_id for each in found if each.status == waits and each.run_id is not None]

    @property
    def failed(self) -> int:
        """Samples without an output."""
        return sum(not each.has_output for each in self.samples)

    @property
    def ungraded(self) -> int:
        """Samples that do not count: a model that should grade them gave no grade."""
        return sum(each.ungraded is not None for each in self.samples)

    def duration_ms(self, share: float) -> float | None:
        """The time that at least that share of the runs did not exceed."""
        return percentile(
            [each.duration_ms for each in self.samples if each.duration_ms is not None], share
        )

    @property
    def rates_by_scorer(self) -> Mapping[str, float]:
        """The share of samples with an output that each scorer passes."""
        scored: dict[str, list[bool]] = {}
        for each in self.samples:
            for score in each.scores:
                scored.setdefault(score.scorer, []).append(score.is_passed)
        return {name: sum(passed) / len(passed) for name, passed in scored.items()}

    def to_json(self) -> dict[str, JsonValue]:
        """The outcome as JSON."""
        rate, usage = self.rate, self.usage
        return {
            "label": self.variant.label,
            "recipe": self.variant.recipe,
            "model": self.variant.model,
            "pass_rate": None if rate is None else rate.value,
            "low": None if rate is None else rate.low,
            "high": None if rate is None else rate.high,
            "score": self.score,
            "scorers": dict(self.rates_by_scorer),
            "samples": len(self.samples),
            "failed": self.failed,
            "ungraded": self.ungraded,
            "usage": usage.to_json(),
            "grading": self.grading.to_json(),
            "duration_ms": {"median": self.duration_ms(0.5), "p95": self.duration_ms(0.95)},
            "cases": [each.to_json() for each in self.cases],
        }


@frozen(kw_only=True)
class Comparison:
    """A variant beside the first one, case by case."""

    base: str
    label: str
    difference: Interval
    """Of the pass rates, with its interval at 95 %."""
    better: tuple[str, ...]
    """Names of cases that it answers better."""
    worse: tuple[str, ...]
    probability: float
    """That as uneven a split comes about by chance."""

    @property
    def is_clear(self) -> bool:
        """Whether chance explains the difference with less than 5 %."""
        return self.probability < 0.05

    def to_json(self) -> dict[str, JsonValue]:
        """The comparison as JSON."""
        return {
            "base": self.base,
            "label": self.label,
            "difference": self.difference.value,
            "low": self.difference.low,
            "high": self.difference.high,
            "better": list(self.better),
            "worse": list(self.worse),
            "p": self.probability,
        }


def compare(base: VariantOutcome, other: VariantOutcome) -> Comparison | None:
    """The second beside the first, over the cases that both answered; None: there is none."""
    pairs = [
        (one.case.name, one.share, two.share)
        for one, two in zip(base.cases, other.cases, strict=True)
        if one.share is not None and two.share is not None
    ]
    found = difference([one for _, one, _ in pairs], [two for _, _, two in pairs])
    if found is None:
        return None
    better = tuple(name for name, one, two in pairs if two > one)
    worse = tuple(name for name, one, two in pairs if two < one)
    return Comparison(
        base=base.variant.label,
        label=other.variant.label,
        difference=found,
        better=better,
        worse=worse,
        probability=sign_test(len(better), len(worse)),
    )


@frozen(kw_only=True)
class EvaluationReport:
    """A whole evaluation."""

    name: str
    """What was evaluated on what: `triage on tickets.jsonl`."""
    cases: int
    samples: int
    """How often each case was asked."""
    variants: tuple[VariantOutcome, ...]
    at_least: float | None = None
    """The pass rate that each variant should reach."""
    stopped: str | None = None
    """Why not all was asked; None: all was."""

    @property
    def comparisons(self) -> Sequence[Comparison]:
        """Each further variant beside the first."""
        return list(self._comparisons())

    def _comparisons(self) -> Iterator[Comparison]:
        for other in self.variants[1:]:
            if (found := compare(self.variants[0], other)) is not None:
                yield found

    @property
    def is_passed(self) -> bool:
        """Whether all was asked and graded, and each variant has the pass rate that was wanted."""
        is_whole = self.stopped is None and not any(each.ungraded for each in self.variants)
        return is_whole and self.is_reached

    @property
    def is_reached(self) -> bool:
        """Whether each variant has the pass rate that was wanted, as far as answers count."""
        if self.at_least is None:
            return True
        rates = [each.rate for each in self.variants]
        return all(rate is not None and rate.value >= self.at_least - 1e-12 for rate in rates)

    def to_json(self) -> dict[str, JsonValue]:
        """The report as JSON; these keys are stable."""
        return {
            "name": self.name,
            "cases": self.cases,
            "samples": self.samples,
            "passed": self.is_passed,
            "at_least": self.at_least,
            "stopped": self.stopped,
            "variants": [each.to_json() for each in self.variants],
            "comparisons": [each.to_json() for each in self.comparisons],
        }

"""What came out of a tuning: the search, its cases, and the change of the recipe."""

from __future__ import annotations

from attrs import frozen

from minions.data.json_values import JsonValue
from minions.evaluation.tuning import Configuration, Measurement, StepSpace
from minions.evaluation.tuning_search import SearchResult


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
    spent_usd: float
    """US dollars of all that was asked, grading and earlier executions included."""

    @property
    def is_passed(self) -> bool:
        """Whether the chosen configuration passes on the cases held out, and all could be asked."""
        return self.result.is_passed and self.result.is_confirmed and not self.result.is_cut

    @property
    def base(self) -> Measurement | None:
        """The recipe as it is, on the cases held out; None: it was not asked them."""
        return self.result.confirmation.get(Configuration())

    @property
    def chosen(self) -> Measurement | None:
        """The chosen configuration on the cases held out; None: it was not asked them."""
        return self.result.confirmation.get(self.result.chosen)

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
            "diff": self.diff,
        }

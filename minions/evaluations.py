"""Evaluations: what `Minions.evaluate` and `Minions.tune` take and give, and the scorers.

Each name is imported when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from minions._lazy import home_of, lazy_names

if TYPE_CHECKING:
    from minions.evaluation.cases import Case
    from minions.evaluation.report import (
        CaseOutcome,
        Comparison,
        EvaluationReport,
        SampleOutcome,
        Variant,
        VariantOutcome,
    )
    from minions.evaluation.scorers import (
        Exact,
        Fields,
        GradedBy,
        Matches,
        Near,
        Score,
        Scorer,
        ToolScorer,
    )
    from minions.evaluation.statistics import Interval
    from minions.evaluation.tuning import Configuration, Dimension, Measurement, Setting, StepSpace
    from minions.evaluation.tuning_search import SearchResult, Trial, TrialVerdict, TuningReport


__all__ = [
    "Case",
    "CaseOutcome",
    "Comparison",
    "Configuration",
    "Dimension",
    "EvaluationReport",
    "Exact",
    "Fields",
    "GradedBy",
    "Interval",
    "Matches",
    "Measurement",
    "Near",
    "SampleOutcome",
    "Score",
    "Scorer",
    "SearchResult",
    "Setting",
    "StepSpace",
    "ToolScorer",
    "Trial",
    "TrialVerdict",
    "TuningReport",
    "Variant",
    "VariantOutcome",
]

_HOMES: Final = {
    "minions.evaluation.cases": ("Case",),
    "minions.evaluation.report": (
        "CaseOutcome",
        "Comparison",
        "EvaluationReport",
        "SampleOutcome",
        "Variant",
        "VariantOutcome",
    ),
    "minions.evaluation.scorers": (
        "Exact",
        "Fields",
        "GradedBy",
        "Matches",
        "Near",
        "Score",
        "Scorer",
        "ToolScorer",
    ),
    "minions.evaluation.statistics": ("Interval",),
    "minions.evaluation.tuning": (
        "Configuration",
        "Dimension",
        "Measurement",
        "Setting",
        "StepSpace",
    ),
    "minions.evaluation.tuning_search": (
        "SearchResult",
        "Trial",
        "TrialVerdict",
        "TuningReport",
    ),
}
_HOME_OF: Final = home_of(_HOMES)

if not TYPE_CHECKING:  # a checker shall find a misspelled name
    __getattr__, __dir__ = lazy_names(__name__, _HOME_OF)

"""Evaluation suites: which recipe is asked what, by which models, and how answers are scored."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

from attrs import field, frozen

from minions.data.json_values import JsonValue
from minions.evaluation.cases import CaseRow
from minions.evaluation.scorers import Scorer


@frozen(kw_only=True)
class GradedBy:
    """A model grades the output by a rubric, from 0 to 1."""

    rubric: str
    """What a good output is, in words."""
    model: str | None = None
    """`provider/name`; None: the configured one."""
    at_least: float = 0.7
    """The grade from which it passes."""

    @property
    def name(self) -> str:
        """Unique in an evaluation."""
        return f"graded {self.rubric}"[:80]


@frozen(kw_only=True)
class ToolScorer:
    """A registered tool scores the output: Python of the operator's.

    It is called with `output`, `expected` and `inputs`, and returns true or false, a number from 0
    to 1, or `{score, reason}`.
    """

    tool: str

    @property
    def name(self) -> str:
        """Unique in an evaluation."""
        return f"tool {self.tool}"


AnyScorer: TypeAlias = Scorer | GradedBy | ToolScorer


@frozen(kw_only=True)
class Suite:
    """An evaluation as its author wrote it; what a command says wins."""

    file: str
    """Where it was read; for messages."""
    folder: Path
    """Where its relative paths start."""
    recipe: str | None = None
    """Path or id of the recipe; None: the command names it."""
    against: tuple[str, ...] = ()
    """Further recipes, or versions of it, that are asked the same."""
    data: str | None = None
    """A file of cases; None: `rows` has them."""
    rows: tuple[CaseRow, ...] = ()
    models: tuple[str, ...] = ()
    """`provider/name` each; empty: the recipe's own."""
    samples: int = 1
    """How often each case is asked."""
    inputs: Mapping[str, JsonValue] = field(factory=dict)
    """Inputs of every case that does not give them itself."""
    scorers: tuple[AnyScorer, ...] = ()
    """Empty: the expected fields must be right."""
    at_least: float | None = None
    """The pass rate that each variant must reach; None: any will do."""

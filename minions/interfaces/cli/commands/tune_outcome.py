"""What `minions tune` has to say at its end."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from attrs import frozen

from minions.app.evaluating.learning import TestComparison
from minions.app.evaluating.tuning_runs import Tuning
from minions.data.json_values import JsonValue
from minions.data.words import shell_word
from minions.evaluation.tuning_report import TuningReport
from minions.interfaces.cli.console.console import hanging, say, tell
from minions.interfaces.cli.console.money import dollars
from minions.interfaces.cli.console.test_comparison import comparison_lines
from minions.interfaces.cli.console.tuning_table import space_lines, tuning_lines

if TYPE_CHECKING:
    from minions.app.evaluating.tuning_bound import TuningBound


_ANY_WIDTH: Final = 1_000_000
"""Columns where the output is no terminal: no line is wrapped."""


def refusal_of(tests: TestComparison | None) -> str | None:
    """Why the recipe is not written after its tests; None: it may be."""
    if tests is None:
        return None
    if tests.is_cut:
        return "not all of its tests were run"
    before = {each.test.name for each in tests.before if each.faults}
    worse = [each.test.name for each in tests.after if each.faults and each.test.name not in before]
    return f"its test '{worse[0]}' passes as it is and not as changed" if worse else None


@frozen(kw_only=True)
class TuneOutcome:
    """The report of a tuning and what became of the recipe; or of a dry run the bound."""

    tuning: Tuning
    bound: TuningBound | None = None
    """None: it is no dry run."""
    report: TuningReport | None = None
    """None: it is a dry run."""
    tests: TestComparison | None = None
    """None: they were not run."""
    written: Path | None = None
    refusal: str | None = None
    """Why the recipe was not written although that was asked for."""

    @property
    def is_passed(self) -> bool:
        """Whether the command did what it was asked for."""
        return self.refusal is None and (self.report is None or self.report.is_passed)

    def to_json(self) -> dict[str, JsonValue]:
        """The outcome as `--json` prints it."""
        if self.report is None:
            return {
                "space": [each.to_json() for each in self.tuning.space.steps],
                "bound": None if self.bound is None else self.bound.to_json(),
            }
        return {
            **self.report.to_json(),
            "tests": None if self.tests is None else self.tests.to_json(),
            "written": None if self.written is None else str(self.written),
            "not_written_because": self.refusal,
        }

    def print(self, named: str) -> None:
        """Print it for people.

        Args:
            named: How the recipe was named, for commands.
        """
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else _ANY_WIDTH
        if self.report is None:
            for line in self._dry_lines():
                say(hanging(line, width))
            return
        for line in tuning_lines(self.report, width):
            say(hanging(line, width))
        if self.report.diff:
            say(self.report.diff)
        for line in self._last_lines(self.report, named):
            tell(hanging(line))

    def _dry_lines(self) -> Iterator[str]:
        parts = self.tuning.parts
        shown = f"{len(parts.shown)} cases for examples, " if parts.shown else ""
        yield (
            f"{shown}{len(parts.search)} to search, {len(parts.confirmation)} held out to confirm "
            f"(seed {parts.seed})"
        )
        yield from space_lines(self.tuning.space.steps)
        if self.bound is None:
            return
        yield f"at most {self.bound.configurations} configurations in {self.bound.runs} runs"
        if self.bound.cost_usd is not None:
            yield f"cost: at most {dollars(self.bound.cost_usd)}"
        else:
            why = "; ".join(self.bound.unbounded)
            yield f"cost: unbounded because {why} (--max-cost USD is a bound)"
        yield "nothing was asked"

    def _last_lines(self, report: TuningReport, named: str) -> Iterator[str]:
        if self.tests is not None:
            yield from comparison_lines(self.tests, ("as it is", "as changed"))
        if report.result.problem is not None:
            yield f"the search was cut: {report.result.problem}"
        if not report.diff:
            yield "the recipe stays as it is" if report.is_passed else "nothing was written"
        elif self.written is not None:
            yield f"written: {self.written}"
        elif self.refusal is not None:
            yield f"nothing was written: {self.refusal}"
        else:
            tune = f"minions tune {shell_word(named)} … --write"
            yield f"nothing was written · {tune} changes the recipe"

"""A run's result for continuous integration: JUnit XML, and annotations of a workflow.

`RunReports` needs nothing but an `AgentResult`: whatever command ran it can report it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from attrs import frozen

from minions.contracts.executions import AgentResult
from minions.data.errors import FailureInfo, Fault
from minions.interfaces.cli.console.console import say

if TYPE_CHECKING:
    from minions.recipe.model import AgentRecipe


@frozen(kw_only=True)
class RunReports:
    """Where the end of a run is reported beside the console."""

    junit: Path | None = None
    """The file for JUnit XML; None: none is written."""
    annotations: TextIO | None = None
    """The stream for annotations of a workflow; None: none are printed."""

    def check(self) -> None:
        """Refuse a file that could not be written at the end of the run.

        Raises:
            EnvironmentRefusedError: `junit-file`.
        """
        if self.junit is not None:
            from minions.interfaces.cli.console.junit_reports import check_junit

            check_junit(self.junit)

    def tell_faults(self, faults: Sequence[Fault]) -> None:
        """Annotate the faults of a recipe that was refused."""
        if self.annotations is not None:
            from minions.interfaces.cli.console.fault_reports import annotation

            for fault in faults:
                say(annotation(fault), self.annotations)

    def annotate(self, result: AgentResult[object], recipe: AgentRecipe) -> None:
        """Print an annotation for each failure of the run."""
        if self.annotations is not None:
            from minions.interfaces.cli.console.junit_reports import run_annotations

            for line in run_annotations(result, recipe):
                say(line, self.annotations)

    def write(self, result: AgentResult[object]) -> None:
        """Write the file, however the run ended.

        Raises:
            EnvironmentRefusedError: It cannot be written (`junit-file`).
        """
        if self.junit is not None:
            from minions.interfaces.cli.console.junit_reports import write_run

            write_run(self.junit, result)

    def write_break(self, recipe_id: str, error: FailureInfo) -> None:
        """Write the file of a run that has no result, since its journal failed.

        Raises:
            EnvironmentRefusedError: It cannot be written (`junit-file`).
        """
        if self.junit is not None:
            from minions.interfaces.cli.console.junit_reports import write_break

            write_break(self.junit, recipe_id, error)


def annotations_wanted(environ: Mapping[str, str], *, asked: bool | None) -> bool:
    """Whether annotations are printed: as asked, else within a workflow of GitHub."""
    return environ.get("GITHUB_ACTIONS") == "true" if asked is None else asked

"""Checks of templates in a transition graph: which steps have run before they are rendered."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from msgspec import Struct

from minions.data.errors import Fault
from minions.recipe.checks.sources import Sources
from minions.recipe.drafts import RecipeDraft, StepDraft, TemplateUse
from minions.recipe.expressions.values import Reference
from minions.recipe.graph_paths import GraphPaths
from minions.recipe.text.sections import Report

_ROOTS: Final = ("inputs", "run", "loop", "env", "feedback")


def check_graph_readings(
    draft: RecipeDraft, sources: Sources, paths: GraphPaths, report: Report
) -> None:
    """Report templates that read a step which can never have run, or may not have run.

    Args:
        paths: The paths through the graph, including back edges of failing steps.
    """
    readers = _Readers(draft, sources, paths, report)
    for step in draft.steps:
        readers.step(step)
    for use in draft.output_templates:
        readers.output(use)


class _ReadPlace(Struct, frozen=True):
    """A place where a template reads a step."""

    use: TemplateUse
    reference: Reference
    producers: tuple[StepDraft, ...]
    """The step of that id; several steps may share a `save_as` name."""

    @property
    def is_output(self) -> bool:
        """Whether the value exists only if the step has completed."""
        path = self.reference.path
        return not (path[0] == "steps" and path[2:3] in (("status",), ("error",)))

    def fault(self, code: str, message: str, *, label: str | None = None) -> Fault:
        help_text = f"add a default: {{{{ {self.reference.text} | default('…') }}}}"
        return self.use.place_of(self.reference).fault(
            code, message, label=label, help=help_text if code == "may-not-have-run" else None
        )


class _Readers(Struct, frozen=True):
    """Checks templates by which steps have certainly or possibly run before them."""

    draft: RecipeDraft
    sources: Sources
    paths: GraphPaths
    report: Report

    @property
    def ends(self) -> frozenset[int]:
        """The reachable steps after which the run ends."""
        assert self.draft.paths is not None  # noqa: S101  # only called for a graph without faults
        return self.draft.paths.ends & self.paths.reached

    def step(self, step: StepDraft) -> None:
        """Check all templates of a step, if the step can be reached."""
        if step.index not in self.paths.reached:
            return
        for use in (*step.outer_templates, *step.templates):
            for reading in self._readings(use):
                self._check(reading, step, has_run=False)
        for use in (*step.repeat_templates, *step.route_templates):
            for reading in self._readings(use):
                self._check(reading, step, has_run=True)

    def output(self, use: TemplateUse) -> None:
        """Check a template of the recipe's `output`, which is rendered after
        each step that ends the run.
        """
        for reading in self._readings(use):
            sure = self._sure(reading)
            ends = self.ends - sure
            way = self.paths.way(ends, sure) if not _is_guarded(reading.reference) else None
            if way is not None:
                self._report_missing("the output", reading, way)

    def _readings(self, use: TemplateUse) -> Iterator[_ReadPlace]:
        for reference in use.references:
            root = str(reference.path[0])
            if root in _ROOTS and root not in self.sources.ids:
                continue
            producers = tuple(self._producers(root, reference))
            if any(step.index in self.paths.reached for step in producers):
                yield _ReadPlace(use, reference, producers)

    def _producers(self, root: str, reference: Reference) -> Sequence[StepDraft]:
        if root != "steps":
            return self.sources.named(root)
        found = self.sources.ids.get(reference.step_name)
        return [found] if found is not None else []

    def _check(self, reading: _ReadPlace, reader: StepDraft, *, has_run: bool) -> None:
        """Report the reading if the step can never have run, or may not have run.

        Args:
            has_run: Whether the template is rendered after the reading step has run.
        """
        producers = {step.index for step in reading.producers}
        at, is_itself = reader.index, reader.index in producers
        is_sure_of_itself = has_run and at in self._sure(reading)
        can_be = any(at in self.paths.after(step) for step in producers)
        if not can_be and not (has_run and is_itself):
            self._report_never(reading, reader)
        elif not is_sure_of_itself and not _is_guarded(reading.reference):
            way = self.paths.way([at], self._sure(reading))
            if way is not None:
                self._report_missing(reader.title, reading, way, is_itself=is_itself)

    def _sure(self, reading: _ReadPlace) -> frozenset[int]:
        """The producers that always leave the value when they run."""
        return frozenset(
            step.index
            for step in reading.producers
            if not (reading.is_output and _may_leave_nothing(step))
        )

    def _report_never(self, reading: _ReadPlace, reader: StepDraft) -> None:
        name = reading.reference.step_name
        if reading.producers == (reader,):
            message = f"{reader.title} reads its own output, and never runs a second time"
        else:
            message = f"{reader.title} reads '{name}', which can never have run before it"
        self.report(reading.fault("never-run", message))

    def _report_missing(
        self,
        reader: str,
        reading: _ReadPlace,
        way: Sequence[int],
        *,
        is_itself: bool = False,
    ) -> None:
        name = reading.reference.step_name
        shown = " → ".join(self.draft.steps[step].id for step in way)
        passed = [step for step in reading.producers if step.index in way and reading.is_output]
        label = f"it does not on the path {shown}"
        if is_itself and len(reading.producers) == 1:
            message = f"{reader} reads its own output, which is not there the first time"
            label = f"on the path {shown}"
        else:
            message = f"{reader} reads '{name}', which may not have run"
            if passed:
                label = f"on the path {shown} '{passed[0].id}' {_why(passed[0])}"
        self.report(reading.fault("may-not-have-run", message, label=label))


def _is_guarded(reference: Reference) -> bool:
    return reference.is_guarded or reference.is_conditional


def _may_leave_nothing(step: StepDraft) -> bool:
    section = step.section
    may_fail = section.plain("optional") is True or section.plain("on_error") == "continue"
    return may_fail or section.node("when") is not None


def _why(step: StepDraft) -> str:
    if step.section.node("when") is not None:
        return f"may be skipped: it has a condition at line {step.section.place_of('when').line}"
    return "may fail: it is optional"

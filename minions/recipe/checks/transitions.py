"""Checks of transition graphs: edges and routing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from msgspec import Struct

from minions.contracts.executions import CompletionMode
from minions.data.errors import Fault, MinionsError
from minions.recipe.checks.shapes import kind_names
from minions.recipe.checks.sources import Sources
from minions.recipe.drafts import GraphPaths, RecipeDraft, StepDraft, TemplateUse
from minions.recipe.expressions.template import Templates
from minions.recipe.expressions.terms import Path
from minions.recipe.expressions.values import Reference, as_text, is_list, path_text
from minions.recipe.model import ExecutionMode, OnFailure
from minions.recipe.text.nodes import MappingNode, Node, ScalarNode
from minions.recipe.text.sections import Report, Texts, read_texts, suggestion


def check_transitions(draft: RecipeDraft, sources: Sources, report: Report) -> None:
    """Read the graph of a recipe that has one; report faults in it, and templates that
    read a step which may not have run.
    """
    for fault in _conflicts(draft):
        report(fault)
    graph = draft.section.mapping("graph")
    if graph is None:
        return
    edges = _Edges(draft, sources, report)
    edges.read(graph)
    if not edges.is_complete or not draft.steps or not draft.steps[0].is_named:
        return  # faults that only follow from an unknown name are not reported
    draft.paths = paths = GraphPaths(edges.following)
    _check_ways(draft, paths, edges, report)
    for step in draft.steps:
        _check_choice(draft, step, sources, report)
    check_graph_readings(draft, sources, _with_returns(draft, paths, sources, report), report)


# --- what does not go together --------------------------------------------------------------------


def _conflicts(draft: RecipeDraft) -> Iterator[Fault]:
    """Report keys of dependency graphs, which do not apply to transition graphs."""
    if draft.mode is not ExecutionMode.SEQUENTIAL:
        yield draft.section.place_of("execution_mode").fault(
            "kind-conflict",
            f"'graph' says what runs next, 'execution_mode: {draft.mode}' says it, too",
            help="steps of a graph run one at a time; remove one of the two",
        )
    if draft.section.text("on_failure") == OnFailure.CONTINUE:
        yield draft.section.place_of("on_failure").fault(
            "kind-conflict",
            "'on_failure: continue' continues with steps that do not need the failed one, and in a "
            "graph each comes after another",
            help="set 'optional: true' on steps whose failure does not end the run",
        )
    for step in draft.steps:
        if (entry := step.section.entries.get("depends_on")) is not None:
            yield entry.key_node.place.fault(
                "kind-conflict",
                "'depends_on' and 'graph' both say what runs when",
                help="keep one of the two; with 'graph', name the step where it comes next",
            )


# --- edges ----------------------------------------------------------------------------------------


class _Edges:
    """The edges while they are read from the text."""

    def __init__(self, draft: RecipeDraft, sources: Sources, report: Report) -> None:
        self._draft = draft
        self.ids = sources.ids
        self._report = report
        self.following: list[tuple[int, ...]] = [() for _ in draft.steps]
        self.places: dict[tuple[int, int], ScalarNode] = {}
        self.is_complete = "steps" not in draft.section.refused

    def read(self, graph: MappingNode) -> None:
        for entry in graph.entries:
            step = self._step(entry.key, entry.key_node)
            names = self._names(entry.value)
            if step is not None:
                self.following[step.index] = tuple(self._targets(step, names))
            else:
                for text in names:
                    self._step(text.text, text.node)

    def _names(self, node: Node) -> tuple[Texts, ...]:
        is_one = isinstance(node, ScalarNode) and isinstance(node.value, str)
        if not is_one and (isinstance(node, ScalarNode | MappingNode)):
            self.is_complete = False
            fault = node.place.fault(
                "wrong-type",
                "what comes next is a step's id or a list of them",
                help="write [] where the run ends",
            )
            self._report(fault)
            return ()
        return read_texts((node,) if is_one else _items(node), "a step's id", self._refuse)

    def _refuse(self, fault: Fault) -> None:
        self.is_complete = False
        self._report(fault)

    def _targets(self, step: StepDraft, names: Sequence[Texts]) -> Iterator[int]:
        seen: set[str] = set()
        for text in names:
            if text.text in seen:
                message = f"'{text.text}' comes next after '{step.id}' twice"
                self._report(text.node.place.fault("duplicate-successor", message))
                continue
            seen.add(text.text)
            other = self._step(text.text, text.node)
            if other is not None:
                self.places.setdefault((step.index, other.index), text.node)
                yield other.index

    def _step(self, name: str, node: ScalarNode) -> StepDraft | None:
        found = self.ids.get(name)
        if found is not None:
            return found
        self.is_complete = False
        if any(name in step.lost_names for step in self._draft.steps):
            return None
        known = tuple(self.ids)
        self._report(
            node.place.fault(
                "unknown-step",
                f"unknown step '{name:.60}' in graph",
                label=suggestion(name, known),
                help=f"steps are: {', '.join(known)}",
            )
        )
        return None


def _items(node: Node) -> tuple[Node, ...]:
    return () if isinstance(node, ScalarNode | MappingNode) else node.items


def _check_ways(draft: RecipeDraft, paths: GraphPaths, edges: _Edges, report: Report) -> None:
    """Report steps that cannot be reached, and cycles without a limit."""
    first = draft.steps[0]
    for step in draft.steps:
        if step.index not in paths.reached and edges.ids.get(step.id) is step:
            report(
                step.place.fault(
                    "unreachable-step",
                    f"{step.title} never runs: no path leads to it from '{first.id}', "
                    "where the run starts",
                    help=f"let it come next after another step in 'graph', or remove {step.title}",
                )
            )
    if (circle := paths.circle) is None:
        return
    missing = [
        words
        for name, words in (
            ("allow_repeated_steps", "allow_repeated_steps: true"),
            ("max_steps", "max_steps: 20"),
        )
        if not draft.limits.get(name)
    ]
    place = edges.places[circle[-2], circle[-1]].place
    names = " → ".join(draft.steps[step].id for step in circle)
    if missing and "limits" not in draft.section.refused:
        report(
            place.fault(
                "cycle",
                f"these steps form a cycle: {names}",
                help=f"where that is meant, set limits: {{{', '.join(missing)}}}",
            )
        )
    elif not paths.ends & paths.reached:
        report(
            place.fault(
                "no-end",
                f"no path leads out of {names}: the run always ends at its limit max_steps",
                help="add a next step outside of the cycle to one of its steps",
                is_warning=True,
            )
        )


def _with_returns(
    draft: RecipeDraft, paths: GraphPaths, sources: Sources, report: Report
) -> GraphPaths:
    """The paths with the back edges of failing steps added."""
    following = list(paths.following)
    for step in draft.steps:
        if step.goto is None or (target := sources.ids.get(str(step.goto.value))) is None:
            continue
        if target is not step and step.index not in paths.after(target.index):
            report(
                step.goto.place.fault(
                    "bad-goto",
                    f"no path leads from '{target.id}' to {step.title}: "
                    "running it again would change nothing",
                    help="take a step that comes before it in graph",
                )
            )
        following[step.index] = (*following[step.index], target.index)
    return GraphPaths(following)


# --- what decides ---------------------------------------------------------------------------------


def _check_choice(draft: RecipeDraft, step: StepDraft, sources: Sources, report: Report) -> None:
    """Report a `route` without alternatives, and alternatives without a `route`."""
    assert draft.paths is not None  # noqa: S101  # only called for a graph without faults
    nexts = tuple(draft.steps[other].id for other in draft.paths.following[step.index])
    name = next((key for key in ("route", "decision_tool") if key in step.section.entries), None)
    if name is not None and len(nexts) < 2:
        what = f"only '{nexts[0]}' comes" if nexts else "nothing comes"
        report(
            step.section.entries[name].key_node.place.fault(
                "no-choice",
                f"'{name}' chooses among several next steps, but {what} after {step.title}",
                help=f"name the steps to choose from in graph, or remove '{name}'",
            )
        )
    elif name == "route":
        _check_route(step, nexts, sources, report)
    elif name is None and len(nexts) > 1 and not _asks_for_signal(step):
        report(
            step.place.fault(
                "undecided-branch",
                f"nothing chooses the step after {step.title}: it will always be '{nexts[0]}'",
                label=f"others are: {', '.join(nexts[1:])}",
                help="add 'route': a template that gives an id, or a question to the model",
                is_warning=True,
            )
        )


def _asks_for_signal(step: StepDraft) -> bool:
    """Whether the answer of the step's model may name the next step."""
    completion = step.goal.completion
    return completion is not None and completion.mode is CompletionMode.SIGNAL


def _check_route(step: StepDraft, nexts: tuple[str, ...], sources: Sources, report: Report) -> None:
    """Report routes that name a step which may not come next,
    as far as that is known beforehand.
    """
    node = step.section.scalar("route")
    if node is None:
        return
    text = str(node.value).strip()
    if text in sources.ids:
        report(
            node.place.fault(
                "bad-route",
                f"'route' is a question or a template, and '{text}' is the id of a step",
                help=f"to go there always, let only '{text}' come next in graph",
            )
        )
        return
    use = next((use for use in step.route_templates if use.node is node), None)
    is_constant = use is None or not use.references
    if is_constant and (fault := _constant_route(node, step, nexts, sources.templates)) is not None:
        report(fault)
    if use is None or not isinstance(use.term, Path):
        return
    known = sources.known(use.term.reference)
    if known is None:
        return
    said = path_text(use.term.reference.path)
    choices = known.shape.node.get("enum") if isinstance(known.shape.node, Mapping) else None
    wrong = [str(one) for one in choices if one not in nexts] if is_list(choices) else []
    kinds = known.shape.kinds()
    if wrong:
        message = f"'{said}' may be '{wrong[0]}', which does not come after {step.title} in graph"
        label = suggestion(wrong[0], nexts)
    elif kinds is not None and "string" not in kinds:
        message, label = f"'route' takes a step's id, but '{said}' is {kind_names(kinds)}", None
    else:
        return
    help_text = f"what comes next is one of: {', '.join(nexts)}"
    report(node.place.fault("bad-route", message, label=label, help=help_text))


def _constant_route(
    node: ScalarNode, step: StepDraft, nexts: tuple[str, ...], compiled: Templates
) -> Fault | None:
    """The fault of a template that always names the same wrong step; None: it has none."""
    text = str(node.value)
    if "{{" not in text:
        return None
    try:
        always = compiled.compile(text).render({})
    except MinionsError:
        return None  # reported where it is parsed, or raised when it runs
    if always in nexts:
        return None
    return node.place.fault(
        "bad-route",
        f"'route' always gives '{as_text(always):.60}', which does not come after {step.title} "
        "in graph",
        label=suggestion(always, nexts) if isinstance(always, str) else None,
        help=f"what comes next is one of: {', '.join(nexts)}",
    )


# --- checks of templates in a transition graph ---------------------------------------------------


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
        own = self.draft.paths
        assert own is not None  # noqa: S101  # only called for a graph without faults
        return own.ends & self.paths.reached

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
        found = self.sources.find(reference.step_name)
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

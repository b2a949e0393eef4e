"""Checks of references in templates: unknown names and paths, and which steps they depend on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import pairwise
from typing import Final, TypeAlias

from msgspec import Struct, field

from minions.contracts.executions import StepStatus
from minions.data.errors import Fault
from minions.data.json_values import JsonValue
from minions.recipe.checks.shapes import ANYTHING, Shape, find_dead_end, find_unchecked
from minions.recipe.checks.sources import Sources, member_path
from minions.recipe.checks.step_rules import surprise_step
from minions.recipe.drafts import TEXT_OUTPUT, RecipeDraft, StepDraft, TemplateUse, is_lost_name
from minions.recipe.expressions.terms import (
    Comparison,
    FilterTerm,
    ListTerm,
    Literal,
    Path,
    Subscript,
    Term,
)
from minions.recipe.expressions.values import Reference, nearest, path_text
from minions.recipe.model import ExecutionMode
from minions.recipe.text.nodes import Place, ScalarNode
from minions.recipe.text.sections import (
    NAME_WORDS,
    SIZE_WORDS,
    Report,
    Texts,
    later,
    read_texts,
    suggestion,
)

RUN_KEYS: Final = ("id", "session_id")
LOOP_KEYS: Final = ("item", "index")
ATTEMPT_KEYS: Final = ("index", "last", "attempts")
STEP_KEYS: Final = ("output", "status", "error", "artifacts")
FEEDBACK_KEYS: Final = ("step", "code", "message", "attempt")


class RequiredOutput(Struct, frozen=True):
    """A reference to a step's output that has no default for a missing one."""

    use: TemplateUse
    reference: Reference

    @property
    def place(self) -> Place:
        """The place of the reference in the text."""
        return self.use.place_of(self.reference)


class Readings(Struct, kw_only=True, eq=False):
    """Which steps the templates of one step read."""

    values: dict[int, TemplateUse] = field(default_factory=dict)
    """Producers whose output is needed, by index, each with the first template that needs it."""
    states: dict[int, TemplateUse] = field(default_factory=dict)
    """Producers that only have to end, by index, with the first template that reads their state."""
    places: dict[int, Reference] = field(default_factory=dict)
    declared: frozenset[int] = frozenset()
    """Producers that `depends_on` names."""
    needed: dict[int, RequiredOutput] = field(default_factory=dict)
    """Producers without whose output the step cannot run: read by a name that no other step has."""


class AllReadings(Struct, frozen=True, kw_only=True):
    """The readings of the whole recipe."""

    steps: tuple[Readings, ...]
    """The readings of each step, in the order of the steps."""
    output: Readings
    """The readings of the recipe's `output`."""


def check_references(draft: RecipeDraft, sources: Sources, report: Report) -> AllReadings:
    """Report references that can never be resolved; returns what each step reads of the others."""
    checker = _Checker(draft, sources, report)
    readings = tuple(checker.step(step) for step in draft.steps)
    output = Readings()
    for use in draft.output_templates:
        checker.use(use, None, output)
    for use in draft.prompt_templates:
        checker.inputs_only(use)
    return AllReadings(steps=readings, output=output)


def _names(step: StepDraft) -> tuple[str, ...]:
    return (step.id,) if step.save_as is None else (step.id, step.save_as)


class _Checker:
    def __init__(self, draft: RecipeDraft, sources: Sources, report: Report) -> None:
        self._draft = draft
        self._section = draft.section
        self._sources = sources
        self._templates = sources.templates
        self._report = report
        self._ids = sources.ids
        self._saved = sources.saved
        is_free = "feedback" not in (*self._ids, *self._saved)
        self._has_feedback = is_free and (
            any(step.goto is not None for step in draft.steps) or surprise_step(draft) is not None
        )

    def step(self, step: StepDraft) -> Readings:
        readings = Readings()
        for use in step.outer_templates:
            self.use(use, step, readings)
        has_iterations = step.has_loop or step.has_while
        for use in step.templates:
            self.use(use, step, readings, has_item=has_iterations)
        for (
            use
        ) in step.route_templates:  # rendered when the step has ended: there is no item any more
            self.use(use, step, readings)
        for use in step.repeat_templates:  # rendered after an attempt: its output exists
            self.use(use, step, readings, has_item=True, may_read_itself=True)
        return readings

    def use(
        self,
        use: TemplateUse,
        reader: StepDraft | None,
        readings: Readings,
        *,
        has_item: bool = False,
        may_read_itself: bool = False,
    ) -> None:
        check_statuses(use, self._report)
        self._check_members(use, reader)
        for reference in use.references:
            root = str(reference.path[0])
            if may_read_itself and reader is not None and reference.step_name in _names(reader):
                self._itself(use, reference, reader)
                continue
            if root == "inputs":
                self._input(use, reference)
            elif root == "run":
                self._run(use, reference)
            elif root == "loop" and has_item:
                self._loop(use, reference, reader)
            elif root == "feedback" and self._has_feedback:
                self._feedback(use, reference)
            elif root == "env":
                self._report(later(use.place_of(reference), root))
            elif root == "steps":
                self._steps(use, reference, reader, readings)
            else:
                self._name(use, reference, root, reader, readings)

    def inputs_only(self, use: TemplateUse) -> None:
        for reference in use.references:
            root = reference.path[0]
            if root == "inputs":
                self._input(use, reference)
            elif root == "run":
                self._run(use, reference)
            else:
                message = "only 'inputs' and 'run' can be read here"
                self._unknown(use, reference, message, ("inputs", "run"), str(root))

    # --- roots ---------------------------------------------------------------------------

    def _input(self, use: TemplateUse, reference: Reference) -> None:
        if len(reference.path) < 2:
            return
        name, declared = str(reference.path[1]), tuple(self._draft.inputs)
        if name not in declared:
            if "inputs" in self._section.refused:
                return
            known = f"inputs are: {', '.join(declared)}" if declared else "no inputs are declared"
            place = use.place_of(reference)
            self._report(
                place.fault(
                    "unknown-reference",
                    f"unknown input '{name:.60}'",
                    label=suggestion(name, declared),
                    help=known,
                )
            )
            return
        self._shape(use, reference, Shape.of(self._draft.inputs[name].schema), 2)

    def _run(self, use: TemplateUse, reference: Reference) -> None:
        if len(reference.path) > 1 and reference.path[1] not in RUN_KEYS:
            name = str(reference.path[1])
            self._unknown(use, reference, f"'run' has no '{name}'", RUN_KEYS, name)

    def _itself(self, use: TemplateUse, reference: Reference, reader: StepDraft) -> None:
        """Check a reference of a step to its own output: that of the previous attempt."""
        start = 3 if reference.path[0] == "steps" else 1
        self._shape(use, reference, Shape.of(reader.output), start)

    def _feedback(self, use: TemplateUse, reference: Reference) -> None:
        if len(reference.path) > 1 and reference.path[1] not in FEEDBACK_KEYS:
            name = str(reference.path[1])
            self._unknown(use, reference, f"'feedback' has no '{name}'", FEEDBACK_KEYS, name)

    def _loop(self, use: TemplateUse, reference: Reference, reader: StepDraft | None) -> None:
        keys = ATTEMPT_KEYS if reader is not None and reader.has_while else LOOP_KEYS
        if len(reference.path) > 1 and reference.path[1] not in keys:
            name = str(reference.path[1])
            self._unknown(use, reference, f"'loop' has no '{name}'", keys, name)
        elif len(reference.path) > 2:
            is_new = reference.path[1] in ("last", "attempts")
            if is_new and not self._draft.is_text:  # a stored run's recipe has to load as it did
                return
            found = self._sources.rooted(reference, reader)
            shape = found[0].shape if found is not None else ANYTHING
            looping = reader if reference.path[1] == "item" else None
            self._shape(use, reference, shape, 2, looping)

    def _steps(
        self, use: TemplateUse, reference: Reference, reader: StepDraft | None, readings: Readings
    ) -> None:
        if len(reference.path) < 2:
            self._unknown(use, reference, "'steps' needs the id of a step", ())
            return
        name = str(reference.path[1])
        if (producer := self._ids.get(name)) is None:
            if is_lost_name(self._draft, name):
                return
            self._unknown(use, reference, f"unknown step '{name:.60}'", tuple(self._ids), name)
            return
        member = reference.path[2] if len(reference.path) > 2 else None
        if member is not None and member not in STEP_KEYS:
            message = f"a step has no '{member}'"
            self._unknown(use, reference, message, STEP_KEYS, str(member))
            return
        if member == "output":
            self._shape(use, reference, Shape.of(producer.output), 3)
        if member == "artifacts":
            self._shape(use, reference, Shape.of(producer.artifacts), 3)
        is_state = member in ("status", "error")
        self._read(use, reference, producer, reader, readings, is_state=is_state)

    def _name(
        self,
        use: TemplateUse,
        reference: Reference,
        root: str,
        reader: StepDraft | None,
        readings: Readings,
    ) -> None:
        producers = self._sources.named(root)
        if not producers and is_lost_name(self._draft, root):
            return
        if not producers:
            self._unknown_root(use, reference, root)
            return
        if len(producers) == 1:
            self._shape(use, reference, Shape.of(producers[0].output), 1)
        elif self._draft.mode is not ExecutionMode.SEQUENTIAL:
            self._ambiguous(use, reference, root, producers)
            return
        else:  # the last step before the reader, in the order of the file, owns the name
            before = [step for step in producers if reader is None or step.index < reader.index]
            producers = before or producers[:1]
        is_sole = len(producers) == 1
        for producer in producers:
            self._read(use, reference, producer, reader, readings, is_state=False, is_sole=is_sole)

    # --- members of values that an expression makes -------------------------------------------

    def _check_members(self, use: TemplateUse, reader: StepDraft | None) -> None:
        """Check what filters read of each item, and what is read of their results."""
        text = use.node.value
        if not use.references or not isinstance(text, str):
            return
        if "{{" not in text and use.term is None:
            return
        if "|" not in text and "(" not in text and "[" not in text:
            return
        terms = (use.term,) if use.term is not None else self._templates.compile(text).terms()
        for term in terms:
            for found in _list_member_reads(term):
                self._check_member(use, found, reader)

    def _check_member(
        self, use: TemplateUse, term: Subscript | FilterTerm, reader: StepDraft | None
    ) -> None:
        base, path = self._sources.shape_of_term(term.base, reader), member_path(term)
        told = "this value"
        if isinstance(term, FilterTerm):
            base, told = base.items(), f"the items that '{term.name}' reads"
        dead_end = find_dead_end(base, path)
        reference = next(iter(term.references()), None)
        if dead_end is None or reference is None:
            return
        wanted = str(path[dead_end.depth])
        self._report(
            use.place_of(reference).fault(
                "unknown-reference",
                f"{told} can never have '{wanted:.60}': {dead_end.reason}",
                label=suggestion(wanted, dead_end.names),
                help=f"there is: {', '.join(dead_end.names)}" if dead_end.names else None,
            )
        )

    # --- what follows ------------------------------------------------------------------------

    def _read(
        self,
        use: TemplateUse,
        reference: Reference,
        producer: StepDraft,
        reader: StepDraft | None,
        readings: Readings,
        *,
        is_state: bool,
        is_sole: bool = True,
    ) -> None:
        if producer is reader and not self._draft.has_graph:
            self._report(
                use.place_of(reference).fault(
                    "cycle", f"the step '{producer.id}' reads its own output"
                )
            )
            return
        kind = readings.states if is_state or reference.is_guarded else readings.values
        kind.setdefault(producer.index, use)
        readings.places.setdefault(producer.index, reference)
        if kind is readings.values and is_sole:
            known = readings.needed.get(producer.index)
            if known is None or (known.reference.is_conditional > reference.is_conditional):
                readings.needed[producer.index] = RequiredOutput(use, reference)

    def _shape(
        self,
        use: TemplateUse,
        reference: Reference,
        shape: Shape,
        start: int,
        looping: StepDraft | None = None,
    ) -> None:
        dead_end = find_dead_end(shape, reference.path[start:])
        if dead_end is None:
            depth = find_unchecked(shape, reference.path[start:])
            if depth is not None:
                here = shape.at(reference.path[start : start + depth])
                self._note_unchecked(use, reference, start + depth, looping, here)
            return
        depth = start + dead_end.depth
        known = path_text(reference.path[:depth])
        wanted = str(reference.path[depth])
        help_text = None
        if dead_end.names:
            help_text = f"'{known}' has: {', '.join(dead_end.names)}"
        elif shape.node is TEXT_OUTPUT:
            help_text = "declare 'output:' on that step to get fields"
        has_size = "list" in dead_end.reason or "text" in dead_end.reason or bool(dead_end.names)
        if wanted in SIZE_WORDS and has_size:
            help_text = f"write {known} | length"
        self._report(
            use.place_of(reference).fault(
                "unknown-reference",
                f"'{known}' can never have '{wanted:.60}': {dead_end.reason}",
                label=suggestion(wanted, dead_end.names)
                or _deeper(known, wanted, shape.at(reference.path[start:depth])),
                help=help_text,
            )
        )

    def _note_unchecked(
        self,
        use: TemplateUse,
        reference: Reference,
        depth: int,
        looping: StepDraft | None,
        shape: Shape,
    ) -> None:
        """Note that nothing is known of a value of which a field is read."""
        name = path_text(reference.path[:depth])
        key = name if looping is None else f"{name} of {looping.id}"
        read = reference
        if looping is not None:
            over = [use for use in looping.outer_templates if isinstance(use.term, Path)]
            read = next((each for use in over for each in use.references), reference)
        producer = self._ids.get(read.step_name or "")
        help_text = "say of what it is made what its fields are"
        if producer is not None and producer.kind == "tool":
            tool = producer.section.text("tool")
            help_text = f"write what '{tool}' gives: returns: {{field: type}} in {producer.title}"
        elif read.path[0] == "inputs":
            help_text = "declare the fields of the input"
        fault = use.place_of(reference).fault(
            "unknown-type",
            f"'{name}' has no known type, so '{reference.path[depth]!s:.60}' of it is not checked",
            help=help_text,
        )
        names = shape.open_names()
        if producer is not None and producer.kind == "tool" and names:
            # The type of the result allows any other name, but most say so without meaning it.
            wanted = str(reference.path[depth])
            if wanted in names:
                return  # another of the types that the value may have names it
            fault = use.place_of(reference).fault(
                "unknown-reference",
                f"'{name}' may have no '{wanted:.60}': its type does not name that",
                label=suggestion(wanted, names),
                help=f"it names: {', '.join(names)}",
                is_warning=True,
            )
            self._report(fault)
            return
        self._draft.note_unchecked(key, fault)

    def _unknown_root(self, use: TemplateUse, reference: Reference, root: str) -> None:
        names = (*self._ids, *self._saved)
        iterates = any(step.has_loop or step.has_while for step in self._draft.steps)
        label = suggestion(root, (*names, "inputs", "steps", "run", *(["loop"] * iterates)))
        if root == "loop":
            label = "'loop' is known in steps that have one, in every key but 'loop' and 'when'"
        dashed = [name for name in self._ids if "-" in name and name.split("-")[0] == root]
        if root in self._draft.inputs:
            label = f"did you mean 'inputs.{root}'?"
        elif root in NAME_WORDS and (
            label is None or any(step.has_loop for step in self._draft.steps)
        ):
            label = f"write {NAME_WORDS[root]}, in a step with 'loop'"
        elif dashed:
            label = f"did you mean steps['{dashed[0]}'].output?"
        self._report(
            use.place_of(reference).fault(
                "unknown-reference",
                f"unknown name '{root:.60}'",
                label=label,
                help=f"names are: {', '.join(('inputs', 'steps', 'run', *names))}",
            )
        )

    def _unknown(
        self,
        use: TemplateUse,
        reference: Reference,
        message: str,
        names: tuple[str, ...],
        wanted: str = "",
    ) -> None:
        code = "unknown-step" if message.startswith("unknown step") else "unknown-reference"
        self._report(
            use.place_of(reference).fault(
                code,
                message,
                label=suggestion(wanted, names),
                help=f"there are: {', '.join(names)}" if names else None,
            )
        )

    def _ambiguous(
        self, use: TemplateUse, reference: Reference, root: str, producers: list[StepDraft]
    ) -> None:
        self._report(
            use.place_of(reference).fault(
                "ambiguous-name",
                f"'{root}' is the save_as name of several steps",
                help=f"name one of them: {', '.join(f'steps.{step.id}' for step in producers)}",
            )
        )


def _deeper(known: str, wanted: str, shape: Shape) -> str | None:
    """Where the name is found one level below what was read: in the items of a list, or in a
    member.
    """
    found = nearest(wanted, shape.items().names())
    if found is not None:
        return f"did you mean '{known}[0].{found}'?"
    for name in shape.names():
        inner = shape.at((name,))
        if wanted in inner.names():
            return f"did you mean '{known}.{name}.{wanted}'?"
        if wanted in inner.items().names():
            return f"did you mean '{known}.{name}[0].{wanted}'?"
    return None


def _list_member_reads(term: Term) -> Iterator[Subscript | FilterTerm]:
    """The parts that read a member of what another expression gives."""
    is_made = isinstance(term, Subscript) and not isinstance(term.base, Path)
    if isinstance(term, FilterTerm) or is_made:
        assert isinstance(term, Subscript | FilterTerm)  # noqa: S101  # as was just seen
        if member_path(term):
            yield term
    for part in term.parts():
        yield from _list_member_reads(part)


# --- checks of comparisons with a step's status, which is one of a few words ---------------------


STATUSES: Final = tuple(
    status.value for status in (StepStatus.COMPLETED, StepStatus.FAILED, StepStatus.SKIPPED)
)
"""The statuses that a template can read: those of steps that ended."""
_TESTS: Final = ("==", "!=", "in", "not in")


def check_statuses(use: TemplateUse, report: Report) -> None:
    """Report comparisons of a step's status with anything that no status is: they never hold."""
    if use.term is None or not any(_is_status(reference) for reference in use.references):
        return
    for reference, value in _list_comparisons(use.term):
        if value in STATUSES:
            continue
        report(
            use.place_of(reference).fault(
                "bad-value",
                f"no step has the status {value!r:.60}",
                label=suggestion(str(value).lower().replace(" ", "_"), STATUSES),
                help=f"statuses are: {', '.join(STATUSES)}",
            )
        )


def _is_status(reference: Reference) -> bool:
    return reference.path[0] == "steps" and reference.path[2:] == ("status",)


def _list_comparisons(term: Term) -> Iterator[tuple[Reference, JsonValue]]:
    """Each status with each constant that it is compared with, in the whole expression."""
    if isinstance(term, Comparison):
        sides = (term.first, *(side for _, side in term.others))
        for (left, right), (name, _) in zip(pairwise(sides), term.others, strict=True):
            if name in _TESTS:
                yield from _of_sides(left, right)
                yield from _of_sides(right, left)
    for part in term.parts():
        yield from _list_comparisons(part)


def _of_sides(one: Term, other: Term) -> Iterator[tuple[Reference, JsonValue]]:
    if not isinstance(one, Path) or not _is_status(one.reference):
        return
    for each in other.items if isinstance(other, ListTerm) else (other,):
        if isinstance(each, Literal):
            yield one.reference, each.literal


# --- dependencies between steps ------------------------------------------------------------------


Edges: TypeAlias = Mapping[tuple[int, int], Callable[[], Place]]
"""Consumer and producer of each dependency, with a function that locates it in the text:
places are computed only for faults.
"""


def link_steps(
    draft: RecipeDraft, readings: tuple[Readings, ...], report: Report
) -> frozenset[str]:
    """Set `depends_on` and `after` of every step; report dependencies that allow no order.

    Returns:
        The names that `depends_on` mentions.
    """
    used: set[str] = set()
    names = _Names(draft)
    edges: dict[tuple[int, int], Callable[[], Place]] = {}
    talker: int | None = None
    for step, reading in zip(draft.steps, readings, strict=True):
        declared = []
        for text in _declared(step, report):
            used.add(text.text)
            producer = names.find(step, text, report)
            if producer is not None:
                declared.append(producer.index)
                edges.setdefault((step.index, producer.index), partial(_place_of, text))
        implied = [index for index in reading.values if index not in declared]
        step.depends_on = tuple(dict.fromkeys((*declared, *implied)))
        step.declared = tuple(dict.fromkeys(declared))
        reading.declared = frozenset(declared)
        step.after = tuple(index for index in reading.states if index not in step.depends_on)
        is_conversation = step.section.text("memory") == "conversation"
        if is_conversation and draft.mode is ExecutionMode.SEQUENTIAL and not draft.has_graph:
            if talker is not None and talker not in (*step.depends_on, *step.after):
                step.after = (
                    *step.after,
                    talker,
                )  # a conversation has one step at a time, also while that step waits for a person
            talker = step.index
        for index, use in (*reading.values.items(), *reading.states.items()):
            edges.setdefault((step.index, index), partial(use.place_of, reading.places[index]))
    on_cycles = _report_cycles(draft, edges, report)
    if draft.mode is ExecutionMode.SEQUENTIAL:
        _report_forward(draft, edges, on_cycles, report)
    return frozenset(used)


def _declared(step: StepDraft, report: Report) -> tuple[Texts, ...]:
    node = step.section.node("depends_on")
    if isinstance(node, ScalarNode):
        return read_texts((node,), "a step's name", report)
    return read_texts(step.section.items("depends_on"), "a step's name", report)


def _place_of(text: Texts) -> Place:
    return text.node.place


class _Names:
    """Steps by the names that `depends_on` may use."""

    def __init__(self, draft: RecipeDraft) -> None:
        self._draft = draft
        self._ids: dict[str, StepDraft] = {}
        self._saved: dict[str, list[StepDraft]] = {}
        for step in draft.steps:
            if step.is_named:
                self._ids.setdefault(step.id, step)
            if step.save_as is not None:
                self._saved.setdefault(step.save_as, []).append(step)

    def find(self, step: StepDraft, name: Texts, report: Report) -> StepDraft | None:
        """The step that `name` refers to in `step`; None: a fault was reported."""
        own = self._ids.get(name.text)
        found = [own] if own is not None else self._saved.get(name.text, [])
        if not found and is_lost_name(self._draft, name.text):
            return None
        if not found:
            report(self._unknown(name))
        elif len(found) > 1:
            report(
                name.node.place.fault(
                    "ambiguous-name",
                    f"'{name.text}' is the save_as name of several steps",
                    help=f"name one of them: {', '.join(other.id for other in found)}",
                )
            )
        elif found[0] is step:
            report(name.node.place.fault("cycle", f"the step '{step.id}' depends on itself"))
        else:
            return found[0]
        return None

    def _unknown(self, name: Texts) -> Fault:
        return name.node.place.fault(
            "unknown-step",
            f"unknown step '{name.text:.60}' in depends_on",
            label=suggestion(name.text, (*self._ids, *self._saved)),
            help=f"steps are: {', '.join(self._ids)}",
        )


def _report_cycles(draft: RecipeDraft, edges: Edges, report: Report) -> set[tuple[int, int]]:
    """Report one fault per cycle; returns the edges that lie on a cycle."""
    following: dict[int, list[int]] = {}
    for consumer, producer in edges:
        following.setdefault(consumer, []).append(producer)
    on_cycles: set[tuple[int, int]] = set()
    for cycle in _cycles(following, len(draft.steps)):
        pairs = list(zip(cycle, (*cycle[1:], cycle[0]), strict=True))
        on_cycles.update(pairs)
        ids = [draft.steps[index].id for index in (*cycle, cycle[0])]
        report(
            edges[pairs[0]]().fault(
                "cycle",
                f"these steps wait for each other: {' → '.join(ids)}",
                help="remove one of these dependencies",
            )
        )
    return on_cycles


def _cycles(following: Mapping[int, list[int]], count: int) -> Iterator[tuple[int, ...]]:
    """Cycles by a depth-first search without recursion: a chain may be as long as the recipe."""
    done: set[int] = set()
    for start in range(count):
        path: list[int] = [start]
        on_path = {start: 0}
        pending = [iter(following.get(start, ()))] if start not in done else []
        while pending:
            step = next(pending[-1], None)
            if step is None:
                pending.pop()
                left = path.pop()
                del on_path[left]
                done.add(left)
            elif step in on_path:
                yield tuple(path[on_path[step] :])
            elif step not in done:
                on_path[step] = len(path)
                path.append(step)
                pending.append(iter(following.get(step, ())))


def _report_forward(
    draft: RecipeDraft,
    edges: Edges,
    on_cycles: set[tuple[int, int]],
    report: Report,
) -> None:
    for (consumer, producer), place in edges.items():
        if producer > consumer and (consumer, producer) not in on_cycles:
            names = f"{draft.steps[consumer].title} needs '{draft.steps[producer].id}'"
            report(
                place().fault(
                    "forward-dependency",
                    f"{names}, which comes later",
                    help="move that step up, or set execution_mode: planned",
                )
            )

"""Checks of skips: steps that read what may be skipped, and steps that can never run.

What a run does with skipped steps is in the engine's scheduling; docs/design/joins-and-skips.md has
the reasons.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Final, TypeAlias

from attrs import define, field
from msgspec import Struct

from minions.data.field_repr import FieldsRepr
from minions.recipe.checks.references import AllReadings, Readings, RequiredOutput
from minions.recipe.checks.sources import Sources
from minions.recipe.drafts import RecipeDraft, StepDraft
from minions.recipe.expressions.terms import Comparison, DefinedTest, Literal, Logic, Not, Term
from minions.recipe.expressions.values import (
    EvaluationError,
    Meter,
    MissingValueError,
    Reference,
    is_number,
    short_path,
)
from minions.recipe.model import OnError
from minions.recipe.text.sections import Report


def check_skips(
    draft: RecipeDraft, sources: Sources, readings: AllReadings, report: Report
) -> None:
    """Report steps that never run, and steps that are skipped unexpectedly because of another.

    A recipe with transitions is not checked: a step may run again there.
    """
    if draft.section.node("graph") is not None:
        return
    skips = _Skips(draft, sources, readings.steps)
    never = _report_never(skips, report)
    for step, reading in zip(draft.steps, readings.steps, strict=True):
        if step.index not in never and not skips.may_skip_itself(step):
            _check_reader(step, reading, skips, never, report)
    _check_output(readings.output, skips, never, report)


def _check_reader(
    step: StepDraft, reading: Readings, skips: _Skips, never: set[int], report: Report
) -> None:
    """Warn where a step without a condition is skipped together with a step that it reads."""
    known: Facts | None = None
    for index, needed in reading.needed.items():
        producer = skips.steps[index]
        if needed.reference.is_conditional or index in reading.declared or index in never:
            continue
        if not skips.may_skip_itself(producer):
            continue
        if known is None:
            known = skips.known_by_waiting(reading)
        if not skips.has_run(producer, known):
            report(
                needed.place.fault(
                    "may-be-skipped",
                    f"{step.title} is skipped whenever '{producer.id}' is: it reads its output",
                    label=f"'{producer.id}' {_why(producer)}",
                    help=f"where that is meant, list '{producer.id}' under depends_on; else "
                    f"add a default: {_describe_default(needed)}",
                    is_warning=True,
                )
            )


def _check_output(output: Readings, skips: _Skips, never: set[int], report: Report) -> None:
    """Report outputs of the recipe that read a step which may be skipped: the run would fail at
    its end.

    Only a warning where the step has no condition of its own: how likely that is, only its author
    knows.
    """
    for index, needed in output.needed.items():
        root = index if index in never else skips.roots.get(index)
        if root is None or needed.reference.is_conditional:
            continue
        producer, cause = skips.steps[index], skips.steps[root]
        what = "never runs" if index in never else "may be skipped"
        it = "it" if cause is producer else f"it needs '{cause.id}', which"
        report(
            needed.place.fault(
                "may-be-skipped",
                f"the output reads '{producer.id}', which {what}",
                label=f"{it} {_why(cause)}" if root not in never else None,
                help=f"add a default: {_describe_default(needed)}",
                is_warning=cause is not producer,
            )
        )


def _why(step: StepDraft) -> str:
    if step.section.node("when") is not None:
        return f"has a condition at line {step.section.place_of('when').line}"
    return "may fail without ending the run"


def _describe_default(needed: RequiredOutput) -> str:
    return f"{{{{ {needed.reference.text} | default('…') }}}}"


# --- what never runs -----------------------------------------------------------------------------


def _report_never(skips: _Skips, report: Report) -> set[int]:
    """Report steps that can never run, and those that need one; returns their indices.

    Two conditions that exclude each other are a mistake; `when: false` is intended.
    """
    never = [step.index for step in skips.steps if skips.is_never_true(step)]
    for index in never:
        report(
            skips.steps[index]
            .section.place_of("when")
            .fault(
                "unreachable-step",
                f"{skips.steps[index].title} never runs: its condition is always false",
                is_warning=True,
            )
        )
    found = set(never)
    for step, cause in skips.lost_with(never):
        found.add(step.index)
        report(
            step.place.fault(
                "unreachable-step",
                f"{step.title} never runs: it needs '{cause.id}', which never does",
                is_warning=True,
            )
        )
    for clash in skips.clashes:
        if clash.step.index not in found:
            found.add(clash.step.index)
            report(
                clash.needed.place.fault(
                    "unreachable-step",
                    f"{clash.step.title} can never run: {clash.reason}",
                    help=f"read it with a default: {_describe_default(clash.needed)}",
                )
            )
    return found


class _Clash(Struct, frozen=True):
    """Two requirements of one step that exclude each other."""

    step: StepDraft
    needed: RequiredOutput
    reason: str


# --- what is known -------------------------------------------------------------------------------


@define(slots=False)
class _Skips(FieldsRepr):
    """What is certain about the recipe's steps, and which of them may be skipped."""

    draft: RecipeDraft
    sources: Sources
    readings: Sequence[Readings]
    own: dict[int, Facts] = field(factory=dict)
    """Steps with a condition and optional steps: the facts that hold once they have completed."""
    certain: list[Facts] = field(factory=list)
    """For each step the facts that hold when it runs: by its own condition
    and those of the steps it needs.
    """
    clashes: list[_Clash] = field(factory=list)

    def __attrs_post_init__(self) -> None:
        self._by_text: dict[str, Facts] = {}
        self._changing = {*self.sources.shared_names, "feedback"}
        for step, reading in zip(self.steps, self.readings, strict=True):
            self.certain.append(self._certain_of(step, reading))

    @property
    def steps(self) -> tuple[StepDraft, ...]:
        """All steps of the recipe."""
        return self.draft.steps

    def may_skip_itself(self, step: StepDraft) -> bool:
        """Whether the step has a condition that may be false, or is optional and may fail."""
        return step.index in self.own

    def is_never_true(self, step: StepDraft) -> bool:
        """Whether the step has a condition that is false as written."""
        term = step.condition
        if term is None:
            return step.section.plain("when") is False
        return next(term.references(), None) is None and _constant(term) is False

    def known_by_waiting(self, reading: Readings) -> Facts:
        """The facts that hold where every declared dependency of the step has run."""
        known = dict(self._asserted)
        for index in reading.declared:
            known.update(self.certain[index])
        return known

    def lost_with(self, never: Sequence[int]) -> Iterator[tuple[StepDraft, StepDraft]]:
        """Steps that need a step which never runs, each with one such step."""
        waiting = [len(step.depends_on) for step in self.steps]
        found, pending = set(never), list(never)
        while pending:
            index = pending.pop()
            for other in self._dependents[index]:
                waiting[other] -= 1
                is_lost = index in self.readings[other].needed or waiting[other] == 0
                if is_lost and other not in found:
                    found.add(other)
                    pending.append(other)
                    yield self.steps[other], self.steps[index]

    @cached_property
    def roots(self) -> dict[int, int]:
        """Every step that may be without output, mapped to the step whose condition
        or failure is the cause.
        """
        found = {index: index for index in self.own if not self._is_asserted(index)}
        waiting = [len(step.depends_on) for step in self.steps]
        pending = list(found)
        while pending:
            index = pending.pop()
            root = found[index]
            is_failure = self.steps[root].section.plain("optional") is True
            for other in self._dependents[index]:
                waiting[other] -= 1
                if other in found:
                    continue
                # After `on_error: continue` only its readers are lost, as after a skip.
                is_lost = is_failure or index in self.readings[other].needed
                if is_lost or (waiting[other] == 0 and self._are_skipped_together(other)):
                    found[other] = root
                    pending.append(other)
        return found

    # --- facts ---------------------------------------------------------------------------------

    def _certain_of(self, step: StepDraft, reading: Readings) -> Facts:
        own = self._own_facts(step)
        needed = [(index, self._known_of(index)) for index in reading.needed]
        declared = step.depends_on
        if len(declared) == 1 and declared[0] not in reading.needed:
            needed.append((declared[0], self._known_of(declared[0])))
        if len(needed) + bool(own) > 1:
            self._find_clash(step, reading, own, needed)
        return merged(own, [facts for _, facts in needed])

    def _known_of(self, index: int) -> Facts:
        """The facts certain of a step; none yet for a step that comes later in the text."""
        return self.certain[index] if index < len(self.certain) else NO_FACTS

    def _own_facts(self, step: StepDraft) -> Facts:
        facts = self._condition_facts(step)
        if facts is None and not self._is_optional(step.index):
            return NO_FACTS
        self.own[step.index] = {**(facts or {}), ("ran", step.index): True}
        return self.own[step.index]

    def _condition_facts(self, step: StepDraft) -> Facts | None:
        """The facts of the step's condition; None: there is no condition,
        or one that is always true.
        """
        term = step.condition
        if term is None:
            return {} if step.section.plain("when") is False else None
        text = step.section.text("when") or ""
        if text not in self._by_text:
            references = list(term.references())
            if not references and _constant(term) is True:
                return None
            is_steady = not any(ref.step_name in self._changing for ref in references)
            self._by_text[text] = facts_of(term) if is_steady else NO_FACTS
        return self._by_text[text]

    def _is_optional(self, index: int) -> bool:
        """Whether the step may fail and leave nothing to read. The results of a loop are read."""
        section = self.steps[index].section
        may_fail = section.plain("optional") is True or section.text("on_error") == OnError.CONTINUE
        return may_fail and not self.steps[index].has_loop

    def has_run(self, producer: StepDraft, known: Facts) -> bool:
        """Whether the step cannot have been skipped where these facts hold."""
        if ("ran", producer.index) in known:
            return True
        facts = self._condition_facts(producer)
        is_known = bool(facts) and not self._is_optional(producer.index)
        return is_known and _follows(facts or NO_FACTS, known)

    def _is_asserted(self, index: int) -> bool:
        return bool(self._asserted) and self.has_run(self.steps[index], self._asserted)

    @cached_property
    def _asserted(self) -> Facts:
        """Facts that hold in every run that does not fail: conditions of
        `assert` steps that always run.
        """
        facts: dict[Hashable, Hashable] = {}
        for step in self.steps:
            if step.kind == "assert" and not step.has_loop and self._always_runs(step):
                for term in step.asserted:
                    references = term.references()
                    if not any(ref.step_name in self._changing for ref in references):
                        facts.update(facts_of(term))
        return facts

    def _always_runs(self, step: StepDraft) -> bool:
        is_free = not any(other in self.own for other in step.depends_on)
        return is_free and not self.certain[step.index]

    def _are_skipped_together(self, index: int) -> bool:
        """Whether one false condition skips every dependency of the step."""
        all_facts = [self.certain[other] for other in self.steps[index].depends_on]
        common = {key for key in all_facts[0] if not _is_of_a_run(key)}
        return any(all(_agree(key, facts, all_facts[0]) for facts in all_facts) for key in common)

    def _find_clash(
        self,
        step: StepDraft,
        reading: Readings,
        own: Facts,
        needed: Sequence[tuple[int, Facts]],
    ) -> None:
        known = dict(own)
        for at, (index, facts) in enumerate(needed):
            for key in known.keys() & facts.keys() if index in reading.needed else ():
                if known[key] != facts[key]:
                    others = (self.steps[other] for other, has in needed[:at] if key in has)
                    reason = _reason(self.steps[index], None if key in own else next(others))
                    self.clashes.append(_Clash(step, reading.needed[index], reason))
                    return
            known.update(facts)

    @cached_property
    def _dependents(self) -> list[list[int]]:
        dependents: list[list[int]] = [[] for _ in self.steps]
        for step in self.steps:
            for other in step.depends_on:
                dependents[other].append(step.index)
        return dependents


_NOT_THERE: Final = object()


def _agree(key: Hashable, facts: Facts, others: Facts) -> bool:
    return facts.get(key, _NOT_THERE) == others[key]


def _follows(facts: Facts, known: Facts) -> bool:
    return all(_agree(key, known, facts) for key in facts)


def _is_of_a_run(key: Hashable) -> bool:
    return isinstance(key, tuple) and key[0] == "ran"


def _reason(producer: StepDraft, other: StepDraft | None) -> str:
    if other is None:
        return f"it reads '{producer.id}', which is skipped where its own condition holds"
    return f"it reads both '{producer.id}' and '{other.id}', and one of the two is always skipped"


def _constant(term: Term) -> bool | None:
    """The value of a condition without references; None where it cannot be evaluated."""
    try:
        return bool(term.value({}, Meter()))
    except (EvaluationError, MissingValueError):
        return None


# --- what a condition implies --------------------------------------------------------------------


Facts: TypeAlias = Mapping[Hashable, Hashable]
"""Expressions that are known to be true or false, or to have a certain value. Two sets with
different values for one key exclude each other.
"""
NO_FACTS: Final[Facts] = {}

_OPPOSITES: Final = {"!=": "==", ">=": "<", "<=": ">", "not in": "in"}
_NEVER: Final = ("never",)
"""The key of a contradiction: no step ever knows it, so that nothing implies it."""
_MOST: Final = 32
"""Facts that are passed on from step to step: their number must not grow with the recipe."""


def facts_of(term: Term, *, is_true: bool = True) -> Facts:
    """The facts that follow from a condition being true, or false."""
    if isinstance(term, Not):
        return facts_of(term.operand, is_true=not is_true)
    if isinstance(term, Logic) and term.is_and is is_true:
        facts: dict[Hashable, Hashable] = {}
        for operand in term.operands:
            for key, value in facts_of(operand, is_true=is_true).items():
                if facts.setdefault(key, value) != value:
                    facts[_NEVER] = True
        return facts
    if isinstance(term, DefinedTest):
        return {("defined", _key(term.base)): term.is_wanted is is_true}
    if isinstance(term, Comparison) and len(term.others) == 1:
        return _of_comparison(term.first, *term.others[0], is_true=is_true)
    return {_key(term): is_true}


def merged(own: Facts, inherited: Iterable[Facts]) -> Facts:
    """All known facts; only the step's own where they exceed the limit."""
    others = [facts for facts in inherited if facts]
    if len(others) + bool(own) < 2:
        return others[0] if others else own
    known = dict(own)
    for facts in others:
        known.update(facts)
        if len(known) > _MOST:
            return own
    return known


def _of_comparison(left: Term, operator: str, right: Term, *, is_true: bool) -> Facts:
    name = _OPPOSITES.get(operator, operator)
    holds = is_true is (name == operator)
    facts: dict[Hashable, Hashable] = {(name, _key(left), _key(right)): holds}
    if name == "==" and holds and isinstance(right, Literal):
        facts["value", _key(left)] = _key(right)
    return facts


def _key(part: object) -> Hashable:
    """A key that is equal for equivalent expressions, wherever they are written."""
    if isinstance(part, Literal):
        value = part.literal
        return ("number", value) if is_number(value) else ("literal", repr(value))
    if isinstance(part, Reference):
        return short_path(part.path)
    if isinstance(part, tuple):
        return tuple(map(_key, part))
    if isinstance(part, Struct):
        return (
            type(part).__name__,
            *(_key(getattr(part, name)) for name in part.__struct_fields__),
        )
    return repr(part)

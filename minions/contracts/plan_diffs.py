"""What differs between two plans: the plan that failed, and the one that takes its place."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Final

from attrs import frozen

from minions.contracts.plans import Plan, PlanStep, PlanStepType, json_object
from minions.data.field_repr import FieldsRepr
from minions.data.json_values import JsonValue

_COMPLETED: Final = "completed"
_ORDER: Final = "order"


class PlanStepChange(StrEnum):
    """What became of a step from one plan to the next."""

    KEPT = "kept"
    """It stands in both plans, with equal keys."""
    DONE = "done"
    """The next plan lacks it because it is done: steps of the next plan may depend on it."""
    ADDED = "added"
    REMOVED = "removed"
    """The next plan lacks it, and it is not done."""
    CHANGED = "changed"
    """It stands in both plans, and some of its keys differ."""

    @property
    def stays(self) -> bool:
        """Whether it stands in both plans."""
        return self in (PlanStepChange.KEPT, PlanStepChange.CHANGED)


@frozen(kw_only=True)
class KeyChange(FieldsRepr):
    """One key of a plan or of a step that has another value."""

    key: str
    """As the plan has it in JSON: `goal`, `files`. `order` of a plan: the ids of the steps that
    stand in both, in their order."""
    before: JsonValue
    """None: the key was not there."""
    after: JsonValue
    """None: the key is not there any more."""

    def to_json(self) -> dict[str, JsonValue]:
        """As journal and HTTP write it."""
        return {"key": self.key, "before": self.before, "after": self.after}

    @classmethod
    def from_json(cls, told: Mapping[str, JsonValue]) -> KeyChange:
        """What `to_json` wrote.

        Raises:
            KeyError: It is something else.
        """
        return cls(key=str(told["key"]), before=told["before"], after=told["after"])


@frozen(kw_only=True)
class PlanStepDiff(FieldsRepr):
    """What became of one step."""

    id: str
    type: PlanStepType
    """Its type in the next plan; of a step that is not in it, in the plan before."""
    change: PlanStepChange
    status: str | None = None
    """How it ended in the plan before: `completed`, `failed` or `skipped`; None: it is added, or
    not known."""
    changes: tuple[KeyChange, ...] = ()
    """The keys that differ, of a step that is changed."""
    step: PlanStep | None = None
    """The whole step where it is added; None: the plan before has it."""

    def to_json(self) -> dict[str, JsonValue]:
        """As journal and HTTP write it."""
        told: dict[str, JsonValue] = {
            "id": self.id,
            "type": self.type.value,
            "change": self.change.value,
            "status": self.status,
            "changes": [each.to_json() for each in self.changes],
        }
        return told if self.step is None else {**told, "step": self.step.to_json()}

    @classmethod
    def from_json(cls, told: Mapping[str, JsonValue]) -> PlanStepDiff:
        """What `to_json` wrote.

        Raises:
            KeyError, ValueError: It is something else.
        """
        status, step = told["status"], told.get("step")
        return cls(
            id=str(told["id"]),
            type=PlanStepType(str(told["type"])),
            change=PlanStepChange(str(told["change"])),
            status=None if status is None else str(status),
            changes=tuple(map(KeyChange.from_json, _objects(told["changes"]))),
            step=None if step is None else PlanStep.from_json(json_object(step)),
        )


@frozen(kw_only=True)
class PlanDiff(FieldsRepr):
    """What differs from one plan to the next."""

    name: str
    """The name of the next plan; its id where it has none."""
    steps: tuple[PlanStepDiff, ...]
    """The steps of the next plan in its order; one that it lacks follows the step that it
    followed."""
    changes: tuple[KeyChange, ...] = ()
    """Keys of the plan itself that differ, and the `order` of its steps."""

    @property
    def is_empty(self) -> bool:
        """Whether the plans are equal."""
        return not self.changes and all(each.change is PlanStepChange.KEPT for each in self.steps)

    def applied_to(self, before: Plan) -> Plan:
        """The next plan.

        Args:
            before: The plan before, of which this is the diff.
        """
        known: dict[str, deque[PlanStep]] = {}
        for old in before.steps:
            known.setdefault(old.id, deque()).append(old)
        steps: list[JsonValue] = []
        for each in self.steps:
            if each.step is not None:
                steps.append(each.step.to_json())
            elif each.change.stays:
                steps.append(_apply_changes(known[each.id].popleft().to_json(), each.changes))
        own = [each for each in self.changes if each.key != _ORDER]
        return Plan.from_json({**_apply_changes(_head(before), own), "steps": steps})

    def to_json(self) -> dict[str, JsonValue]:
        """As journal and HTTP write it."""
        return {
            "name": self.name,
            "changes": [each.to_json() for each in self.changes],
            "steps": [each.to_json() for each in self.steps],
        }

    @classmethod
    def from_json(cls, told: Mapping[str, JsonValue]) -> PlanDiff:
        """What `to_json` wrote.

        Raises:
            KeyError, ValueError: It is something else.
        """
        return cls(
            name=str(told["name"]),
            changes=tuple(map(KeyChange.from_json, _objects(told["changes"]))),
            steps=tuple(map(PlanStepDiff.from_json, _objects(told["steps"]))),
        )

    def to_text(self) -> str:
        """The diff for people: one line a step, and below it, indented, the keys that differ.

        No line of a value can be taken for another step.
        """
        lines = [f"NEW PLAN: {' '.join(self.name.split())}", f"  {_count_steps(self.steps)}"]
        for change in self.changes:
            if change.key not in _UNTOLD:
                lines += _change_lines(change)
        for each in self.steps:
            lines += _lines_of(each)
        return "\n".join(lines)


@frozen(kw_only=True)
class PlanProposal(FieldsRepr):
    """A plan that a person is asked about."""

    text: str
    """The whole plan as text, as it may be edited and given as the answer."""
    notes: tuple[str, ...] = ()
    """What was added to it, for people."""
    faults: tuple[str, ...] = ()
    """Why it cannot be carried out as it is; empty: it can."""
    diff: PlanDiff | None = None
    """What differs from the plan that failed; None: no plan was carried out before it."""


def diff_plans(before: Plan, after: Plan, statuses: Mapping[str, str] | None = None) -> PlanDiff:
    """What differs from one plan to the next.

    Args:
        statuses: How steps of the plan before ended, by id: `completed`, `failed` or `skipped`;
            None: it was not carried out.
    """
    pairs = _pairs(before, after)
    return PlanDiff(
        name=after.name or after.id,
        steps=tuple(_place_diffs(before, pairs, statuses or {})),
        changes=(*_key_changes(_head(before), _head(after)), *_order_change(before, pairs)),
    )


# --- comparing ----------------------------------------------------------------------------------


@frozen
class _Pair(FieldsRepr):
    """A step of the next plan, with the step of the plan before that has its id."""

    after: PlanStep
    at: int | None
    """The position of the step in the plan before; None: it is added."""


def _pairs(before: Plan, after: Plan) -> list[_Pair]:
    """The steps of the next plan; of several with one id the first goes with the first."""
    places: dict[str, deque[int]] = {}
    for at, each in enumerate(before.steps):
        places.setdefault(each.id, deque()).append(at)
    return [
        _Pair(each, places[each.id].popleft() if places.get(each.id) else None)
        for each in after.steps
    ]


def _diff_of(pair: _Pair, before: Plan, statuses: Mapping[str, str]) -> PlanStepDiff:
    new = pair.after
    if pair.at is None:
        return PlanStepDiff(id=new.id, type=new.type, change=PlanStepChange.ADDED, step=new)
    changes = _key_changes(before.steps[pair.at].to_json(), new.to_json())
    return PlanStepDiff(
        id=new.id,
        type=new.type,
        change=PlanStepChange.CHANGED if changes else PlanStepChange.KEPT,
        status=statuses.get(new.id),
        changes=changes,
    )


def _diff_of_missing(old: PlanStep, statuses: Mapping[str, str]) -> PlanStepDiff:
    status = statuses.get(old.id)
    change = PlanStepChange.DONE if status == _COMPLETED else PlanStepChange.REMOVED
    return PlanStepDiff(id=old.id, type=old.type, change=change, status=status)


def _place_diffs(
    before: Plan, pairs: Sequence[_Pair], statuses: Mapping[str, str]
) -> list[PlanStepDiff]:
    """The diffs of all steps; one that is missing follows the step that it followed."""
    found = [(each.at, _diff_of(each, before, statuses)) for each in pairs]
    known = {at for at, _ in found}
    for at, old in enumerate(before.steps):
        if at not in known:
            place = next((n for n, each in enumerate(found, 1) if each[0] == at - 1), 0)
            found.insert(place, (at, _diff_of_missing(old, statuses)))
    return [each for _, each in found]


def _key_changes(
    before: Mapping[str, JsonValue], after: Mapping[str, JsonValue]
) -> tuple[KeyChange, ...]:
    keys = dict.fromkeys((*after, *before))
    return tuple(
        KeyChange(key=key, before=before.get(key), after=after.get(key))
        for key in keys
        if before.get(key) != after.get(key)
    )


def _order_change(before: Plan, pairs: Sequence[_Pair]) -> tuple[KeyChange, ...]:
    now = [each.at for each in pairs if each.at is not None]
    if now == sorted(now):
        return ()
    old: list[JsonValue] = [before.steps[at].id for at in sorted(now)]
    new: list[JsonValue] = [before.steps[at].id for at in now]
    return (KeyChange(key=_ORDER, before=old, after=new),)


def _head(plan: Plan) -> dict[str, JsonValue]:
    """The keys of the plan itself."""
    return {key: value for key, value in plan.to_json().items() if key != "steps"}


def _apply_changes(
    told: Mapping[str, JsonValue], changes: Iterable[KeyChange]
) -> dict[str, JsonValue]:
    """The keys and values with the changes made."""
    values = {**told, **{each.key: each.after for each in changes}}
    return {key: value for key, value in values.items() if value is not None}


def _objects(value: JsonValue) -> list[Mapping[str, JsonValue]]:
    if not isinstance(value, list | tuple):
        raise ValueError(f"{value!r:.80} is no list")
    return [json_object(each) for each in value]


# --- text ---------------------------------------------------------------------------------------

_SIGNS: Final = {
    PlanStepChange.KEPT: "=",
    PlanStepChange.DONE: "✓",
    PlanStepChange.ADDED: "+",
    PlanStepChange.REMOVED: "-",
    PlanStepChange.CHANGED: "~",
}
_ENDS: Final = {
    _COMPLETED: ", it had completed",
    "failed": ", it failed",
    "skipped": ", it was skipped",
}
_UNTOLD: Final = ("id", "name")
"""Keys of the plan itself that the text does not compare: each plan has a name of its own."""


def _count_steps(steps: Sequence[PlanStepDiff]) -> str:
    """How many steps there are of each change."""
    counts = Counter(each.change for each in steps)
    return ", ".join(f"{counts[each]} {each.value}" for each in PlanStepChange if counts[each])


def _lines_of(step: PlanStepDiff) -> Iterator[str]:
    end = "" if step.change is PlanStepChange.DONE else _ENDS.get(step.status or "", "")
    yield f"{_SIGNS[step.change]} {step.id} ({step.type.value}): {step.change.value}{end}"
    for each in step.changes:
        yield from _change_lines(each)
    if step.step is not None:
        for line in step.step.to_lines():
            yield f"    {line}"


def _change_lines(change: KeyChange) -> Iterator[str]:
    yield f"    {change.key.upper()}:"
    for sign, value in (("-", change.before), ("+", change.after)):
        for line in _text(value).splitlines():
            yield f"    {sign} {line}"


def _text(value: JsonValue) -> str:
    if value is None:
        return ""
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)

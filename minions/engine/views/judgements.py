"""Whether an output of a recorded run counts as good: a person's word, or a check that it passed.

Marks and approvals that came with an imported file are nobody's here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum, StrEnum
from typing import Final

from attrs import frozen

from minions.contracts.decision_types import Approve, Reject
from minions.contracts.executions import address_of, is_within
from minions.contracts.journal.facts import (
    DecisionFact,
    DecisionRecorded,
    MarkRecorded,
    RunBeginning,
    RunResumed,
    given,
)
from minions.contracts.journal.journal import JournalEntry
from minions.contracts.journal.start_note import StartNote
from minions.data.json_values import JsonValue, parse_json, texts_in
from minions.engine.views.step_outputs import StepOutputs, finished_in
from minions.recipe.expressions.values import is_same
from minions.recipe.model import AgentRecipe, StepSpec

_SHORTEST: Final = 8
"""Characters of a text that is looked for in what was approved: a shorter one is found by
chance."""


class ExampleReason(StrEnum):
    """Why an output counts as good."""

    MARKED = "marked good"
    APPROVED = "approved"
    """A person approved, unchanged, a call whose arguments hold all of the output."""
    CORRECTED = "corrected"
    """A person changed a call whose arguments hold all of the output, and approved it: what stands
    there since is the output that should have been."""
    TESTED = "tested"
    """A step of the recipe that checks it (`assert`) completed after it."""


@frozen(kw_only=True)
class Judgement:
    """What makes an output count as good."""

    at: str
    """When, as ISO 8601."""
    reason: ExampleReason
    output: JsonValue
    """The output, or what a person put in its place."""


class Judgements:
    """What is said of the outputs of one step in one run."""

    def __init__(
        self,
        recipe: AgentRecipe,
        step_id: str,
        rows: Sequence[JournalEntry],
        outputs: StepOutputs,
        reasons: frozenset[ExampleReason],
    ) -> None:
        """Read the rows of the run.

        Args:
            recipe: As it is now.
            rows: All of the kinds `run`, `step`, `mark` and `decision`, oldest first.
            outputs: Those of the step, of the same rows.
            reasons: What makes an output count as good, besides a mark.
        """
        self._recipe = recipe
        self._step_id = step_id
        self._rows = rows
        self._outputs = outputs
        self._reasons = reasons
        self._marks = marks_in(rows)
        starts = [row.fact for row in rows if isinstance(row.fact, RunBeginning)]
        self._noted = StartNote.of(starts[0].note if starts else None)

    def judgement(self, row: JournalEntry) -> Judgement | None:
        """Why the output counts as good, or another one in its place; None: it does not.

        A mark wins. An output that a person changed or rejected, in the arguments of a call, is not
        good, whatever a check says of it.
        """
        ended_at, output = self._outputs.ended_at(row), given(finished_in(row).output)
        mark = mark_of(self._marks, address_of(row.key), ended_at)
        if mark is not None:
            at = next(each.at for each in self._rows if each.position == mark.position).isoformat()
            is_good, reason = mark.is_good, ExampleReason.MARKED
            return Judgement(at=at, reason=reason, output=output) if is_good else None
        for decided in self._decisions(output, ended_at):
            at, fact = decided.at.isoformat(), decided.fact
            assert isinstance(fact, DecisionRecorded)  # noqa: S101  # `_decisions` gives no other
            if not isinstance(fact.decision, Approve):
                return None
            if fact.edited_arguments is not None:
                better = _find_correction(
                    _arguments_of(fact), _parse_arguments(fact.edited_arguments), output
                )
                if isinstance(better, _Lost) or ExampleReason.CORRECTED not in self._reasons:
                    return None
                return Judgement(at=at, reason=ExampleReason.CORRECTED, output=better)
            if ExampleReason.APPROVED in self._reasons:
                return Judgement(at=at, reason=ExampleReason.APPROVED, output=output)
        if ExampleReason.TESTED in self._reasons and self._is_checked(ended_at):
            at = row.at.isoformat()
            return Judgement(at=at, reason=ExampleReason.TESTED, output=output)
        return None

    def _decisions(self, output: JsonValue, ended_at: int) -> Iterator[JournalEntry]:
        """Decisions of persons on calls whose arguments hold the output, the oldest first."""
        for row in self._rows:
            fact = row.fact
            if row.position < ended_at or not isinstance(fact, DecisionRecorded):
                continue
            if self._is_persons(row, fact) and _holds(_arguments_of(fact), output):
                yield row

    def _is_persons(self, row: JournalEntry, fact: DecisionRecorded) -> bool:
        """Whether a person approved or rejected the call; a policy, or a time, is nobody."""
        if not isinstance(fact.decision, Approve | Reject) or fact.is_default:
            return False
        resumed = (each.fact for each in self._rows if isinstance(each.fact, RunResumed))
        return any(row.key in each.decided for each in resumed) or self._noted.approve == "ask"

    def _is_checked(self, ended_at: int) -> bool:
        """Whether an `assert` of the recipe that reads the step completed after the output."""
        ended = self._outputs.ends()
        return any(
            isinstance(step, StepSpec)
            and step.checks
            and self._step_id in step.depends_on
            and ended.get(step.id, 0) > ended_at
            for step in self._recipe.steps
        )


def _arguments_of(fact: DecisionFact) -> JsonValue:
    return _parse_arguments(fact.arguments or "null")


def _parse_arguments(text: str) -> JsonValue:
    try:
        return parse_json(text)
    except ValueError:
        return None


class _Lost(Enum):
    """What became of an output is not known."""

    LOST = "lost"


def _find_correction(before: JsonValue, after: JsonValue, output: JsonValue) -> JsonValue | _Lost:
    """What stands after an edit where the output stood; LOST: that is not certain.

    An output within a longer text is lost: what of the text was it is not known any more.

    Args:
        before: The arguments that held the output.
        after: Those that a person put in their place.
    """
    if is_same(before, output) and not isinstance(output, Mapping):
        return after
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        if isinstance(output, Mapping) and all(
            name in before and is_same(before[name], value) for name, value in output.items()
        ):
            has_all = all(name in after for name in output)
            return {name: after[name] for name in output} if has_all else _Lost.LOST
        found = [
            _find_correction(each, after[name], output)
            for name, each in before.items()
            if name in after
        ]
    elif isinstance(before, list | tuple) and isinstance(after, list | tuple):
        if len(before) != len(after):
            return _Lost.LOST
        pairs = zip(before, after, strict=True)
        found = [_find_correction(one, other, output) for one, other in pairs]
    else:
        return _Lost.LOST
    certain = [each for each in found if not isinstance(each, _Lost)]
    return certain[0] if len(certain) == 1 else _Lost.LOST


def _holds(arguments: JsonValue, output: JsonValue) -> bool:
    """Whether the approved arguments show all of the output: as a value, or within a text."""
    if isinstance(output, str):
        return len(output.strip()) >= _SHORTEST and any(
            output.strip() in text for text in texts_in(arguments)
        )
    if not isinstance(output, Mapping | list | tuple) or not output:
        return False
    if is_same(arguments, output):
        return True
    if isinstance(arguments, Mapping):
        if isinstance(output, Mapping) and all(
            name in arguments and is_same(arguments[name], value) for name, value in output.items()
        ):
            return True
        return any(_holds(each, output) for each in arguments.values())
    if isinstance(arguments, list | tuple):
        return any(_holds(each, output) for each in arguments)
    return False


# --- marks ---------------------------------------------------------------------------------------


@frozen(kw_only=True)
class Mark:
    """One mark that was set in this journal."""

    position: int
    """The position of its row in the session: it is about what was recorded before."""
    fact: MarkRecorded

    @property
    def is_good(self) -> bool:
        """Whether it says that the work is good."""
        return self.fact.verdict == "good"

    def covers(self, address: str) -> bool:
        """Whether it is about the step or item with that address: of the whole run, all are."""
        return self.fact.address is None or is_within(address, self.fact.address)


def marks_in(rows: Sequence[JournalEntry]) -> tuple[Mark, ...]:
    """The marks of a run that count, oldest first: a mark of an imported file is none of them."""
    return tuple(
        Mark(position=row.position, fact=row.fact)
        for row in rows
        if isinstance(row.fact, MarkRecorded)
    )


def mark_of(marks: Sequence[Mark], address: str, ended_at: int) -> Mark | None:
    """The mark that counts for an output: the last one that covers it; None: there is none.

    Args:
        address: Of the step or item that gave the output.
        ended_at: The position of the row with the output. A mark before it is of another output,
            which a retry replaced.
    """
    found = (each for each in marks if each.position > ended_at and each.covers(address))
    return max(found, key=lambda each: each.position, default=None)

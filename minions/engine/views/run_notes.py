"""What happened between the steps of a run: decisions, back edges, marks, warnings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from attrs import field, frozen

from minions.contracts.decision_types import Answer, Decision, name_of
from minions.contracts.journal.facts import (
    BackEdge,
    DecisionTaken,
    DecisionWaiting,
    ExamplesPinned,
    FileRollbackFact,
    MarkFact,
    PlanLookup,
    PlanReplaced,
    RecipeFact,
    RouteFailed,
    RunResumed,
    ScoreFact,
    StoredPrefixFact,
    ToolCallStarted,
    WarningRecorded,
    body_of,
)
from minions.contracts.journal.journal import JournalEntry
from minions.data.json_values import JsonValue


@frozen(kw_only=True)
class RunNote:
    """An event between the steps of a run: a back edge, a decision, a mark, or a failed choice of
    route.
    """

    kind: str
    """`goto`: a back edge after a failure; `decision`: asked for or made by a person; `route`: no
    next step could be chosen; `file_rollback`: files that the run changed were restored;
    `plan`: a plan took the place of one that failed (`replaced`), or a plan of an earlier run was
    looked for (`looked_up`); `mark`: a person said that an output is good
    or bad; `score`: a scorer of the recipe's `watch` said how good the output is;
    `prompt_cache`: a beginning of prompts was stored at a provider, renewed, deleted or lost;
    `recipe`: the run was moved to another version of its recipe, moved back, or is to stay with
    its version; `examples`: those from recorded runs were chosen for a step; `warning`:
    something odd that stopped nothing."""
    step_id: str
    """Of a mark the address that is meant; empty: the run as a whole."""
    state: str
    """Of a decision `waiting`, or its word: `approve`, `reject`, `answer`, `default`, or the
    decision on a call in doubt. Of other kinds the state of the row: a mark that is `imported` was
    set elsewhere and counts for nothing here."""
    facts: Mapping[str, JsonValue] = field(factory=dict)
    """The recorded body; of an answer also `answer`; of a decision, a mark and a rollback also
    `at`, its time, and of a decision `by`, who made it, where that is known."""
    position: int
    """The position of its row, in the same order as those of steps."""


def notes_in(entries: Sequence[JournalEntry]) -> Iterator[RunNote]:
    """The notes of a run but those of rollbacks, in the order of recording."""
    called: dict[str, ToolCallStarted] = {}
    origins: dict[str, Mapping[str, JsonValue]] = {}
    for entry in entries:
        match fact := entry.fact:
            case BackEdge() | RouteFailed() | DecisionWaiting() | PlanLookup() | PlanReplaced():
                yield _note(entry, fact.step_id, fact.state, entry.body)
            case RunResumed():
                for key, decision in fact.decided.items():
                    origins[key] = _origin(entry, fact.by)
                    if key in called:  # other decisions than those of calls have their own rows
                        yield _decision_note(entry, decision, called[key], origins[key])
            case DecisionTaken():
                origin = origins.get(entry.key) or _origin(entry, None)
                yield _decision_note(entry, fact.decision, fact, origin)
            case ToolCallStarted():
                called[entry.key] = fact
            case (
                WarningRecorded() | ExamplesPinned() | MarkFact() | ScoreFact() | StoredPrefixFact()
            ):
                yield _said_note(entry, fact)
            case RecipeFact():
                yield _note(entry, "", entry.state, {**entry.body, "at": entry.at.isoformat()})
            case _:
                pass  # it belongs to a step


def _said_note(
    entry: JournalEntry,
    fact: WarningRecorded | ExamplesPinned | MarkFact | ScoreFact | StoredPrefixFact,
) -> RunNote:
    if isinstance(fact, MarkFact):
        facts: Mapping[str, JsonValue] = {**entry.body, "at": entry.at.isoformat()}
        return _note(entry, fact.address or "", entry.state, facts)
    if isinstance(fact, ScoreFact):
        return _note(entry, "", entry.state, {**entry.body, "at": entry.at.isoformat()})
    step_id = fact.step if isinstance(fact, ExamplesPinned) else ""
    return _note(entry, step_id, entry.state, entry.body)


def rollback_notes_in(entries: Sequence[JournalEntry]) -> Iterator[RunNote]:
    """The rollbacks of files; one without an end, in the state `started`, was killed."""
    newest = {entry.key: entry for entry in entries if isinstance(entry.fact, FileRollbackFact)}
    for entry in newest.values():
        yield _note(entry, "", entry.state, {**entry.body, "at": entry.at.isoformat()})


def _origin(entry: JournalEntry, by: str | None) -> Mapping[str, JsonValue]:
    """When a decision was made, and by whom where that is known."""
    at: JsonValue = entry.at.isoformat()
    return {"at": at} if by is None else {"at": at, "by": by}


def _decision_note(
    entry: JournalEntry,
    decision: Decision,
    about: ToolCallStarted | DecisionTaken,
    origin: Mapping[str, JsonValue],
) -> RunNote:
    """A decision of a person, or the default that counted after the time for one."""
    facts = {**body_of(about), **origin}
    if not isinstance(decision, Answer):
        return _note(entry, about.step_id, name_of(decision), facts)
    is_default = isinstance(about, DecisionTaken) and about.is_default
    state = "default" if is_default else name_of(decision)
    return _note(entry, about.step_id, state, {**facts, "answer": decision.value})


def _note(entry: JournalEntry, step_id: str, state: str, facts: Mapping[str, JsonValue]) -> RunNote:
    kind = "decision" if entry.kind == "run" else entry.kind
    return RunNote(kind=kind, step_id=step_id, state=state, facts=facts, position=entry.position)

"""Calls that were approved together: an approval covers later calls that are like the one shown.

A class ends with its run. It is bound to the tool, the step and the recipe, and covers no call in
which words of others may be than were shown.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from minions.contracts.approvals import ApprovalRule
from minions.contracts.decision_types import ApprovalClass
from minions.contracts.journal.facts import DecisionFact, DecisionRecorded, RecordedClass
from minions.contracts.tools import ToolSpec
from minions.data.errors import MinionsError, UsageError
from minions.data.json_values import JsonValue, dumps, parse_json
from minions.data.texts import write_duration
from minions.recipe.expressions.template import Templates
from minions.recipe.model import AgentRecipe

if TYPE_CHECKING:
    from minions.engine.history.replay import Replay

_BEFORE: Final = "args."
_MISSING: Final = object()


def checked_class(like: ApprovalClass, about: DecisionFact) -> ApprovalClass:
    """The class with its places as they are stored, if the call that is shown belongs to it.

    Raises:
        UsageError: `bad-class`; a place is not among the arguments, the condition is none or is not
            true of the call, nothing is said, or those who were asked first let their time go by.
    """
    args = _object(f"{about.arguments}")
    places = tuple(dict.fromkeys(each.removeprefix(_BEFORE) for each in like.same))
    if not places and like.when is None:
        raise _bad("say in which arguments they are equal, or a condition that is true of them")
    for place in places:
        if _value_at(args, place) is _MISSING:
            known = ", ".join(sorted(args)) or "none"
            raise _bad(f"the call has no argument '{place:.60}'; it has: {known}")
    if like.when is not None and not _holds(like.when, args):
        raise _bad(f"the condition '{like.when:.100}' is not true of the call that is shown")
    if like.count is not None and like.count < 1:
        raise _bad("the number of later calls is at least 1")
    if like.expires_s is not None and like.expires_s <= 0:
        raise _bad("the time is above 0 seconds")
    if any(each.stage > 0 for each in about.rules or ()):
        raise _bad("only this call can be approved: of others those who were asked first decide")
    return replace(like, same=places)


def _bad(problem: str) -> UsageError:
    return UsageError(f"These calls cannot be approved together: {problem}.", code="bad-class")


def class_words(like: ApprovalClass, about: DecisionFact) -> str:
    """The calls that an approval would cover, in words for a person."""
    args = _object(f"{about.arguments}")
    equal = [
        f"{place.removeprefix(_BEFORE)} = {_show_argument(args, place.removeprefix(_BEFORE))}"
        for place in like.same
    ]
    conditions = [*equal, *([like.when] if like.when is not None else [])]
    words = f"all calls of {about.tool} in step '{about.step_id}' with {' and '.join(conditions)}"
    whose = ", ".join(about.words_of or ())
    words += f", with words of nobody but {whose}" if whose else ", with no stranger's words"
    if like.count is not None:
        words += f", {like.count} at the most"
    if like.expires_s is not None:
        words += f", for {write_duration(like.expires_s)}"
    words += ", until the run ends"
    rules = about.rules or ()
    if len(rules) > 1 or any(each.present.quorum > 1 for each in rules):
        words += ", if all who approve this one say the same"
    return words


def _show_argument(args: Mapping[str, JsonValue], place: str) -> str:
    found = _value_at(args, place)
    return "?" if found is _MISSING else dumps(found)[:100]  # type: ignore[arg-type]  # it is JSON


class ApprovalClasses:
    """The classes of calls that were approved in a run, and how many calls each covered."""

    def __init__(self, replay: Replay | None = None) -> None:
        """Take what earlier executions recorded.

        Args:
            replay: None: the run is new.
        """
        self._decisions: dict[str, DecisionRecorded] = {}
        self._used: Counter[str] = Counter()
        for key, fact in replay.recorded_decisions() if replay is not None else ():
            self.add(key, fact)

    def add(self, key: str, fact: DecisionRecorded) -> None:
        """Add what was decided in this run."""
        if fact.like is not None:
            self._decisions[key] = fact
        if fact.by_class is not None:
            self._used[fact.by_class] += 1

    def has(self, key: str) -> bool:
        """Whether the decision with that key was recorded with a class."""
        return key in self._decisions

    def take(
        self, asked: DecisionFact, spec: ToolSpec, recipe: AgentRecipe, now: datetime
    ) -> str | None:
        """The key of the decision that covers a call, which counts from now on; None: none does.

        Args:
            asked: What would be asked about the call.
        """
        for key, fact in self._decisions.items():
            like = fact.like
            if like is None or not _is_covered(asked, like, spec, now):
                continue
            if _definitions(fact) != _definitions(asked) or like.recipe_digest != digest_of(recipe):
                continue
            if like.count is None or self._used[key] < like.count:
                self._used[key] += 1
                return key
        return None

    def give_back(self, key: str) -> None:
        """The covered call was not recorded."""
        self._used[key] -= 1


def recorded_class(
    like: ApprovalClass,
    asked: DecisionFact,
    spec: ToolSpec,
    recipe: AgentRecipe,
    now: datetime,
) -> RecordedClass:
    """The class as it is stored, with all that it is bound to."""
    args = _object(f"{asked.arguments}")
    until = now + timedelta(seconds=like.expires_s) if like.expires_s is not None else None
    return RecordedClass(
        tool=f"{asked.tool}",
        step_id=asked.step_id,
        same=dict(_values(args, like.same)),
        when=like.when,
        words_of=tuple(asked.words_of or ()),
        count=like.count,
        until=until.isoformat() if until is not None else None,
        tool_digest=tool_digest(spec),
        recipe_digest=digest_of(recipe),
    )


def _is_covered(asked: DecisionFact, like: RecordedClass, spec: ToolSpec, now: datetime) -> bool:
    if (asked.tool, asked.step_id) != (like.tool, like.step_id):
        return False
    if not set(asked.words_of or ()) <= set(like.words_of) or like.tool_digest != tool_digest(spec):
        return False
    if like.until is not None and now >= datetime.fromisoformat(like.until):
        return False
    args = _object(f"{asked.arguments}")
    known = {place: dumps(value) for place, value in like.same.items()}
    if known != {place: dumps(value) for place, value in _values(args, like.same)}:
        return False
    return like.when is None or _holds(like.when, args)


def _values(
    args: Mapping[str, JsonValue], places: Sequence[str] | Mapping[str, JsonValue]
) -> Iterator[tuple[str, JsonValue]]:
    for place in places:
        found = _value_at(args, place)
        if found is not _MISSING:
            yield place, found  # type: ignore[misc]  # a value of JSON


def _value_at(args: Mapping[str, JsonValue], place: str) -> object:
    found: object = args
    for name in place.split("."):
        if not isinstance(found, Mapping) or name not in found:
            return _MISSING
        found = found[name]
    return found


def _object(arguments: str) -> Mapping[str, JsonValue]:
    try:
        found = parse_json(arguments or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, Mapping) else {}


def _holds(condition: str, args: Mapping[str, JsonValue]) -> bool:
    """Whether the condition is true; False where that cannot be told."""
    try:
        return Templates().compile_condition(condition).holds({"args": dict(args)})
    except (MinionsError, ValueError):
        return False


def _definitions(fact: DecisionFact) -> tuple[ApprovalRule, ...]:
    return tuple(each.rule for each in fact.rules or ())


def tool_digest(spec: ToolSpec) -> str:
    """Fingerprint of what a tool is and declares."""
    parts: JsonValue = [
        spec.name,
        spec.origin,
        spec.description,
        dict(spec.parameters),
        spec.effect.value,
        spec.reads.value,
    ]
    return _digest(parts)


def digest_of(recipe: AgentRecipe) -> str:
    """Fingerprint of a recipe; of one made by code of its id and version."""
    document = recipe.document
    return _digest([recipe.id, recipe.version] if document is None else dict(document))


def _digest(value: JsonValue) -> str:
    text = dumps(value).encode("utf-8", "surrogatepass")
    return hashlib.sha256(text).hexdigest()[:16]

"""An answer that was cut off inside a list: closed after its last whole item, with the fields that
are then missing. Nothing is guessed: what was not whole is left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

from attrs import define, evolve, frozen

from minions.contracts.calls import ModelCallResponse, ModelFailure
from minions.contracts.instructions import SENT_ITEMS, SENT_TEXT, OutputInstructions
from minions.contracts.messages import assistant
from minions.data.errors import OUTPUT_TRUNCATED
from minions.data.field_repr import FieldsRepr
from minions.data.json_values import JsonValue, dumps, parse_json
from minions.engine.calls.output_parts import ObjectParts

_TOKEN: Final = re.compile(
    r"""[ \t\r\n]*(?:
    (?P<text>"(?:[^"\\]|\\.)*")
    |(?P<mark>[{}\[\],:])
    |(?P<atom>true|false|null|-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)(?=[\s,\]}])
    )""",
    re.VERBOSE | re.DOTALL,
)
_REPEATED: Final = 4
"""How often objects have to follow each other unchanged, to be a list that does not end."""
_REPEATED_TEXTS: Final = 16
"""The same of texts, which may be labels."""
_LONGEST_CYCLE: Final = 8
"""Items that may repeat in turn."""

Place: TypeAlias = tuple[str | int, ...]
"""Keys and indices on the way to a value."""


@frozen(kw_only=True)
class ClosedAnswer(FieldsRepr):
    """What is whole of an answer that was cut off inside a list."""

    response: ModelCallResponse
    """The answer as if it had ended there."""
    text: str
    """Its JSON."""
    place: Place
    """Where the list stands in the JSON."""
    item_count: int
    """Whole items that are kept."""
    repeated: int
    """Whole items that only repeated those before them; they are left out."""

    @property
    def words(self) -> str:
        """What was done, in words."""
        steps = (f"[{each}]" if isinstance(each, int) else f".{each}" for each in self.place)
        count = self.item_count
        kept = "1 whole item of it was" if count == 1 else f"{count} whole items of it were"
        left_out = f" ({self.repeated} more only repeated them)" if self.repeated else ""
        return f"inside the list ${''.join(steps)}; {kept} kept{left_out}"

    def missing(self, form: OutputInstructions[object], value: JsonValue) -> JsonValue:
        """The schema of the required fields that are not there; None: none is missing, or more
        than that is wrong, so that nothing would help.

        Args:
            value: The closed answer, as the form describes it.
        """
        if not isinstance(value, Mapping):
            return None
        place = self.place
        if place[:1] == ("value",) and "value" not in value:  # it came in an object around it
            place = place[1:]
        return _missing(form, value, place)


def closed_answer(response: ModelCallResponse) -> ClosedAnswer | None:
    """The answer, closed after the last whole item of the outermost list that has one; None: it
    does not stop inside a list, or no item of it is whole.
    """
    calls = response.tool_calls
    text = calls[0].arguments if calls else response.text or ""
    begin = _begin_of_json(text)
    if begin is None or (found := _cut_in(text, begin)) is None:
        return None
    closed, place = found
    try:
        value = parse_json(closed)
    except (ValueError, RecursionError):
        return None
    items = _at(value, place)
    assert isinstance(items, list)  # noqa: S101  # the list that was closed
    repeated = _repeated(items)
    if repeated:
        del items[-repeated:]
        closed = dumps(value)
    message = (
        assistant(None, tool_calls=(evolve(calls[0], arguments=closed),))
        if calls
        else assistant(closed)
    )
    return ClosedAnswer(
        response=evolve(response, message=message, finish_reason="stop"),
        text=closed,
        place=place,
        item_count=len(items),
        repeated=repeated,
    )


def whole_answer(failure: ModelFailure) -> ModelCallResponse | None:
    """The answer of a call that was cut off at its limit behind an object or a list that had ended:
    models that are held to a schema may write blanks behind it. None: something may be missing.
    """
    call = failure.begun_call
    text = (failure.text if call is None else call.arguments) or ""
    if failure.code != OUTPUT_TRUNCATED or not text.lstrip().startswith(("{", "[")):
        return None
    try:
        parse_json(text)
    except (ValueError, RecursionError):
        return None
    message = assistant(failure.text, tool_calls=() if call is None else (call,))
    return ModelCallResponse(message=message, usage=failure.usage, finish_reason="stop")


def is_at_bound(response: ModelCallResponse) -> bool:
    """Whether a list or a text in the answer ends where the bounds are that are added to requests,
    so that it may have been shortened there.
    """
    calls = response.tool_calls
    text = calls[0].arguments if calls else response.text or ""
    if len(text) < SENT_TEXT:
        return False
    try:
        rest = [parse_json(text[_begin_of_json(text) or 0 :])]
    except (ValueError, RecursionError):
        return False
    while rest:
        each = rest.pop()
        if isinstance(each, Mapping):
            rest += each.values()
        elif isinstance(each, list):
            rest += each
            if len(each) == SENT_ITEMS:
                return True
        elif isinstance(each, str) and len(each) == SENT_TEXT:
            return True
    return False


def merged_parts(
    value: Mapping[str, JsonValue], more: Mapping[str, JsonValue]
) -> dict[str, JsonValue]:
    """The object with the fields of another; objects that both have are merged in the same way,
    and nothing that is there is replaced.
    """
    merged = dict(value)
    for name, each in more.items():
        own = merged.get(name)
        if name not in merged:
            merged[name] = each
        elif isinstance(own, Mapping) and isinstance(each, Mapping):
            merged[name] = merged_parts(own, each)
    return merged


# --- where it was cut ----------------------------------------------------------------------------


@define
class _Open(FieldsRepr):
    """A list or object that has not ended."""

    is_list: bool
    key: str | int = 0
    """The member of an object that is being read."""
    count: int = 0
    """Whole items of a list."""
    end: int = 0
    """Where the last of them ends."""
    has_key: bool = False
    is_filled: bool = False
    """Whether the member that is being read has its value."""

    @property
    def takes_value(self) -> bool:
        return not self.is_filled and (self.is_list or self.has_key)

    def fill(self, at: int) -> None:
        """Take a value that ends there."""
        self.is_filled = True
        if self.is_list:
            self.count += 1
            self.end = at

    def take(self, found: re.Match[str]) -> bool:
        """Take a text, number, comma and so on; False: it cannot stand there."""
        mark, text = found["mark"], found["text"]
        if mark == ",":
            is_due = self.is_filled
            self.is_filled = self.has_key = False
            return is_due
        if mark == ":":
            return self.has_key and not self.is_filled
        if self.takes_value:
            self.fill(found.end())
            return True
        if self.is_list or self.has_key or text is None:
            return False
        try:
            self.key = f"{parse_json(text)}"
        except (ValueError, RecursionError):
            return False
        self.has_key = True
        return True


def _begin_of_json(text: str) -> int | None:
    """Where an object or list begins, also in a code fence; None: the text begins otherwise."""
    start = text.lstrip()
    if start.startswith("```"):
        start = start.partition("\n")[2].lstrip()
    return len(text) - len(start) if start.startswith(("{", "[")) else None


def _cut_in(text: str, begin: int) -> tuple[str, Place] | None:
    """The closed text and the place of its list; None: there is nothing to close."""
    stack: list[_Open] = []
    at = begin
    while (found := _TOKEN.match(text, at)) is not None:
        at, mark = found.end(), found["mark"]
        if mark is not None and mark in "{[":
            if stack and not stack[-1].takes_value:
                return None
            stack.append(_Open(is_list=mark == "["))
        elif mark is not None and mark in "}]":
            ended = stack.pop()
            if ended.is_list is not (mark == "]") or not stack:
                return None  # no JSON, or all of it
            stack[-1].fill(at)
        elif not stack[-1].take(found):
            return None
    for depth, each in enumerate(stack):
        if each.is_list and each.count:
            marks = "".join("]" if one.is_list else "}" for one in reversed(stack[: depth + 1]))
            place = tuple(one.count if one.is_list else one.key for one in stack[:depth])
            return text[begin : each.end] + marks, place
    return None


def _at(value: JsonValue, place: Place) -> JsonValue:
    for each in place:
        if isinstance(value, Mapping):
            value = value[f"{each}"]
        elif isinstance(value, list):
            value = value[int(each)]
    return value


def _repeated(items: Sequence[JsonValue]) -> int:
    """How many items at the end only repeat those before them, again and again. Numbers and words
    of logic may well be equal in a list that is right.
    """
    if not isinstance(items[-1], str | Mapping | list):
        return 0
    times = _REPEATED_TEXTS if isinstance(items[-1], str) else _REPEATED
    for cycle in range(1, min(_LONGEST_CYCLE, len(items) // times) + 1):
        alike = 0
        while alike + cycle < len(items) and items[-1 - alike] == items[-1 - alike - cycle]:
            alike += 1
        if alike >= (times - 1) * cycle:
            return alike
    return 0


# --- what is missing -----------------------------------------------------------------------------


def _missing(
    form: OutputInstructions[object], value: Mapping[str, JsonValue], place: Place
) -> JsonValue:
    """As `ClosedAnswer.missing`; an empty mapping where nothing is missing in here."""
    parts = ObjectParts.of(form)
    if parts is None:
        return None
    key = place[0] if len(place) > 1 and isinstance(place[0], str) else None
    wrong = parts.wrong_fields(value)
    if any(name in value and name != key for name in wrong):
        return None
    asked = {name: parts.properties[name] for name in wrong if name not in value}
    if key is not None and key in wrong:
        inner, own = parts.instructions_of(key), value[key]
        if inner is None or not isinstance(own, Mapping):
            return None
        more = _missing(inner, own, place[1:])
        if more is None:
            return None
        asked[key] = more
    return parts.only_with(asked).json_schema() if asked else None

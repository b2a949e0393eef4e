"""Which calls of traces count, which belong to one loop, and which are the same step in each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attrs import evolve, frozen

from minions.capture.json_places import is_equal
from minions.capture.traces import Trace, TracedCall, is_effect
from minions.contracts.tools import Effect, ToolSpec
from minions.data.json_values import JsonValue


@frozen(kw_only=True)
class LeftOut:
    """A call that the recipe does not make."""

    call: TracedCall
    reason: str


@frozen(kw_only=True)
class Cursor:
    """How a call for a page follows from the one before it."""

    parameter: str
    path: tuple[str, ...] | None
    """Where the result before names the next page; None: the parameter grows by one."""


@frozen(kw_only=True)
class Group:
    """Calls of one tool that were made one after another, or for one item after another."""

    tool: str
    calls: tuple[TracedCall, ...]
    polls: tuple[TracedCall, ...] = ()
    """Earlier equal calls with other results: it was asked until the last one came."""
    cursor: Cursor | None = None
    """How each call follows the one before it, where together they read a list in pages."""
    attempts: int = 1
    """The most attempts of a call, those that the model made again included."""


@frozen(kw_only=True)
class Column:
    """What is one step of the recipe: its calls in each trace."""

    tool: str
    groups: tuple[Group | None, ...]
    """By trace; None: that one did not make it."""

    @property
    def present(self) -> frozenset[int]:
        """The traces that made it."""
        return frozenset(at for at, each in enumerate(self.groups) if each is not None)

    @property
    def calls(self) -> tuple[TracedCall, ...]:
        """All calls, over all traces."""
        return tuple(call for each in self.groups if each is not None for call in each.calls)

    @property
    def repeats(self) -> bool:
        """Whether a trace made it several times."""
        return any(
            each is not None and len(each.calls) > 1 and each.cursor is None for each in self.groups
        )

    @property
    def cursor(self) -> Cursor | None:
        """How each of its calls follows the one before; None: it reads no pages."""
        found = (each.cursor for each in self.groups if each is not None)
        return next((each for each in found if each is not None), None)


# --- which calls count ---------------------------------------------------------------------------


def choose_calls(trace: Trace, specs: Mapping[str, ToolSpec]) -> tuple[list[Group], list[LeftOut]]:
    """The calls that count, each a group of its own, and those that led nowhere, with the reason.

    A call with an effect that was made is never left out, unless a later one did the same again.
    """
    kept: list[Group] = []
    left: list[LeftOut] = []
    for at, call in enumerate(trace.calls):
        later = trace.calls[at + 1 :]
        reason = _why_not(call, later, trace, at, specs)
        if reason is not None:
            left.append(LeftOut(call=call, reason=reason))
            continue
        failed = [
            each.call for each in left if each.call.error is not None and _is_same(each.call, call)
        ]
        attempts = call.attempts + sum(each.attempts for each in failed)
        before = kept[-1] if kept else None
        cursor = _cursor(before, call, specs) if before is not None else None
        if before is not None and cursor is not None:
            kept[-1] = evolve(
                before,
                calls=(*before.calls, call),
                cursor=cursor,
                attempts=max(before.attempts, attempts),
            )
        elif before is not None and _polls(before, call, specs):
            kept[-1] = evolve(
                before, calls=(call,), polls=(*before.polls, before.calls[0]), attempts=attempts
            )
        else:
            kept.append(Group(tool=call.tool, calls=(call,), attempts=attempts))
    return kept, left


def _is_same(one: TracedCall, other: TracedCall) -> bool:
    return one.tool == other.tool and is_equal(one.arguments, other.arguments)


def _polls(before: Group, call: TracedCall, specs: Mapping[str, ToolSpec]) -> bool:
    """Whether a call asks again what the one before it asked: with the same result it would not
    count. Of a list that was read in pages the last one is asked for again, not the list.
    """
    last = before.calls[-1]
    return (
        len(before.calls) == 1
        and not is_effect(specs.get(call.tool))
        and _is_same(last, call)
        and last.answer < call.answer
    )


def _cursor(before: Group, call: TracedCall, specs: Mapping[str, ToolSpec]) -> Cursor | None:
    """How the call asks for the page after the last one of the group; None: it does not."""
    last = before.calls[-1]
    if before.polls or call.tool != last.tool or call.answer <= last.answer:
        return None
    if is_effect(specs.get(call.tool)) or not isinstance(last.result, Mapping):
        return None
    changed = [
        name
        for name in dict.fromkeys((*last.arguments, *call.arguments))
        if not is_equal(last.arguments.get(name), call.arguments.get(name))
    ]
    if len(changed) != 1 or not any(isinstance(each, list) for each in last.result.values()):
        return None
    name, value = changed[0], call.arguments.get(changed[0])
    known = before.cursor
    for key, part in last.result.items():
        if value is not None and is_equal(part, value) and not isinstance(value, bool):
            found = Cursor(parameter=name, path=(key,))
            return found if known is None or known == found else None
    one = last.arguments.get(name, 1)
    if not isinstance(one, int) or not is_equal(one + 1, value):
        return None
    found = Cursor(parameter=name, path=None)
    return found if known is None or known == found else None


def _why_not(
    call: TracedCall,
    later: Sequence[TracedCall],
    trace: Trace,
    at: int,
    specs: Mapping[str, ToolSpec],
) -> str | None:
    if call.is_rejected:
        return "it was not allowed"
    if call.error is not None:
        again = any(_is_same(call, each) and each.error is None for each in later)
        return f"it failed{', and was made again' if again else ''}: {call.error}"
    spec = specs.get(call.tool)
    if is_effect(spec):
        return _why_superseded(call, later, trace, at) if _is_repeatable(spec) else None
    for number, before in enumerate(trace.calls[:at]):
        between = trace.calls[number + 1 : at]
        if (
            before.error is None
            and _is_same(before, call)
            and is_equal(before.result, call.result)
            and not any(is_effect(specs.get(each.tool)) for each in between)
        ):
            return "it was asked before, with the same result"
    after = later[0] if later else None
    if (
        after is not None
        and after.tool == call.tool
        and after.answer > call.answer
        and not after.is_rejected
        and _is_empty(call.result)
    ):
        return "it found nothing, and was asked again in another way"
    return None


def _is_repeatable(spec: ToolSpec | None) -> bool:
    return spec is not None and spec.effect is Effect.IDEMPOTENT


def _why_superseded(
    call: TracedCall, later: Sequence[TracedCall], trace: Trace, at: int
) -> str | None:
    """Why a repeatable write does not count: a later one wrote the same thing, as it was told."""
    for offset, each in enumerate(later, start=at + 1):
        if each.tool != call.tool or each.error is not None or each.is_rejected:
            continue
        told = any(at < text.before <= offset for text in trace.task)
        if told and _writes_same_thing(call.arguments, each.arguments):
            return "a person corrected it, and it was written again"
    return None


def _writes_same_thing(one: Mapping[str, JsonValue], other: Mapping[str, JsonValue]) -> bool:
    """Whether two calls differ only in longer texts and values: the first plain one names what is
    written.
    """
    if one.keys() != other.keys() or is_equal(one, other):
        return one.keys() == other.keys()
    first = next(iter(one))
    return isinstance(one[first], str) and one[first] == other[first]


def _is_empty(value: JsonValue) -> bool:
    """Whether a result holds nothing: no item, no text, no number but zeros."""
    if isinstance(value, Mapping):
        lists = [part for part in value.values() if isinstance(part, list | tuple)]
        return bool(lists) and not any(lists) if value else True
    return value is None or value == "" or (isinstance(value, list | tuple) and not value)


# --- loops ---------------------------------------------------------------------------------------


def group_calls(groups: Sequence[Group], specs: Mapping[str, ToolSpec]) -> list[Group]:
    """Calls of one tool in a row as one group; also of several tools that take turns, where at most
    one of them has an effect, so that their order does not count.
    """
    found: list[Group] = []
    at = 0
    while at < len(groups):
        period = _period(groups[at:], specs)
        if period == 0:
            found.append(groups[at])
            at += 1
            continue
        rounds = _rounds(groups[at:], period)
        part = groups[at : at + rounds * period]
        for place in range(period):
            same = part[place::period]
            found.append(
                Group(
                    tool=same[0].tool,
                    calls=tuple(call for each in same for call in each.calls),
                    attempts=max(each.attempts for each in same),
                )
            )
        at += rounds * period
    return found


_LONGEST_PERIOD = 6


def _period(groups: Sequence[Group], specs: Mapping[str, ToolSpec]) -> int:
    """How many tools take turns from the first group on; 0: it is not repeated."""
    for period in range(1, _LONGEST_PERIOD + 1):
        tools = [each.tool for each in groups[:period]]
        if len(set(tools)) < len(tools) or sum(is_effect(specs.get(each)) for each in tools) > 1:
            return 0
        if _rounds(groups, period) > 1:
            return period
    return 0


def _rounds(groups: Sequence[Group], period: int) -> int:
    tools = [each.tool for each in groups[:period]]
    if any(each.polls or each.cursor for each in groups[:period]):
        return 1
    count = 0
    while [each.tool for each in groups[count * period : (count + 1) * period]] == tools:
        count += 1
    return count


# --- the same steps in several traces ------------------------------------------------------------


def align(traces: Sequence[Sequence[Group]]) -> list[Column]:
    """The groups of several traces side by side, in an order that each trace keeps."""
    columns = [Column(tool=each.tool, groups=(each,)) for each in traces[0]]
    for number, groups in enumerate(traces[1:], start=1):
        columns = _merge(columns, list(groups), number)
    return columns


def _merge(columns: Sequence[Column], groups: Sequence[Group], number: int) -> list[Column]:
    """The columns with one more trace, by the longest common sequence of tools."""
    rows, width = len(columns), len(groups)
    best = [[0] * (width + 1) for _ in range(rows + 1)]
    for row in reversed(range(rows)):
        for at in reversed(range(width)):
            best[row][at] = (
                best[row + 1][at + 1] + 1
                if columns[row].tool == groups[at].tool
                else max(best[row + 1][at], best[row][at + 1])
            )
    merged: list[Column] = []
    row = at = 0
    while row < rows or at < width:
        if row < rows and at < width and columns[row].tool == groups[at].tool:
            merged.append(evolve(columns[row], groups=(*columns[row].groups, groups[at])))
            row, at = row + 1, at + 1
        elif at == width or (row < rows and best[row + 1][at] >= best[row][at + 1]):
            merged.append(evolve(columns[row], groups=(*columns[row].groups, None)))
            row += 1
        else:
            group = groups[at]
            merged.append(Column(tool=group.tool, groups=(*(None,) * number, group)))
            at += 1
    return merged

"""Steps that call a tool several times: for each item of a list, page by page, until a state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from minions.capture.alignment import Column, Cursor, Group
from minions.capture.captured_program import LoopOver
from minions.capture.json_places import is_equal, keys_of, part_of, plain_leaves, value_at
from minions.capture.known_runs import KnownRuns
from minions.capture.known_values import STATES, Known, has_words
from minions.capture.seen_types import schema_at
from minions.capture.template_writing import literal, member, quoted
from minions.capture.traces import TracedCall, is_effect
from minions.contracts.tools import ToolSpec
from minions.data.json_values import JsonValue

# --- for each item of a list ---------------------------------------------------------------------


def find_loop(column: Column, runs: KnownRuns) -> LoopOver | None:
    """The list over whose items the calls of a column were made; None: there is none."""
    run, group = max(
        ((run, g) for run, g in zip(runs.runs, column.groups, strict=True) if g is not None),
        key=lambda each: len(each[1].calls),
    )
    late = run.late_after(min(call.answer for call in group.calls))
    sources = [each.source for each in runs.loops.values()]
    for known in run.known.values:
        if known.root in late or known.is_picked or not isinstance(known.value, list | tuple):
            continue
        if len(known.value) >= len(group.calls):
            sources.append(f"{{{{ {known.text} }}}}")
            sources += _choices_of_items(known, known.value, group)
    for source in dict.fromkeys(sources):
        if _has_item_for_each_call(source, column, runs):
            return LoopOver(source=source, by_effect=is_effect(runs.specs.get(column.tool)))
    return None


def _has_item_for_each_call(source: str, column: Column, runs: KnownRuns) -> bool:
    """Whether in each trace each call is about the item in its place."""
    for run, group in zip(runs.runs, column.groups, strict=True):
        items = runs.values.give(source, run.scope)
        if not isinstance(items, list | tuple):
            items = ()
        calls = group.calls if group is not None else ()
        if len(items) != len(calls) or not all(map(_is_about, calls, items)):
            return False
    return True


def _choices_of_items(known: Known, items: Sequence[JsonValue], group: Group) -> Iterator[str]:
    """Choices of a list's items by one of their fields, as many as there are calls."""
    if len(items) == len(group.calls) or not all(isinstance(each, Mapping) for each in items):
        return
    chosen = [any(_is_about(call, item) for call in group.calls) for item in items]
    if sum(chosen) != len(group.calls):
        return
    for key in sorted(keys_of(items[0]), key=lambda key: key.lower() not in STATES):
        parts = [part_of(each, key) for each in items]
        if "." in key or any(isinstance(part, Mapping | list | tuple) for part in parts):
            continue
        is_kind = key.lower() in STATES or all(isinstance(part, bool) for part in parts)
        if not is_kind and len({literal(part) for part in parts}) == len(parts):
            continue  # a name of each item's own says nothing of what kind it is
        inside = [part for part, is_in in zip(parts, chosen, strict=True) if is_in]
        outside = [part for part, is_in in zip(parts, chosen, strict=True) if not is_in]
        for form, same, others in (
            ("selectattr", inside, outside),
            ("rejectattr", outside, inside),
        ):
            if all(is_equal(same[0], each) for each in same) and not any(
                is_equal(same[0], each) for each in others
            ):
                test = f"{quoted(key)}, 'eq', {literal(same[0])}"
                yield f"{{{{ {known.text} | {form}({test}) | list }}}}"
                break


def _is_about(call: TracedCall, item: JsonValue) -> bool:
    """Whether an argument of the call holds a telling part of the item."""
    given = [part for _, part in plain_leaves(call.arguments)]
    for _, part in plain_leaves(item):
        if part is None or isinstance(part, bool):
            continue
        if any(is_equal(part, each) for each in given):
            return True
        held = (each for each in given if isinstance(each, str))
        if isinstance(part, str) and len(part) >= 3 and any(has_words(each, part) for each in held):
            return True
    return False


def split_column(column: Column) -> Iterator[Column]:
    """The calls of a column that is no loop, one column for each."""
    most = max(len(each.calls) for each in column.groups if each is not None)
    for at in range(most):
        groups = [
            Group(tool=each.tool, calls=(each.calls[at],), attempts=each.attempts)
            if each is not None and at < len(each.calls)
            else None
            for each in column.groups
        ]
        yield Column(tool=column.tool, groups=tuple(groups))


# --- until a state is reached --------------------------------------------------------------------


def find_until(column: Column) -> tuple[str | None, int]:
    """The condition under which a call was repeated, with the most calls of a trace."""
    polled = [each for each in column.groups if each is not None and each.polls]
    if not polled:
        return None, 0
    most = max(len(each.polls) + 1 for each in polled)
    last = [each.calls[-1].result for each in column.groups if each is not None]
    before = [call.result for each in polled for call in each.polls]
    for path, value in plain_leaves(last[0]):
        ends = [value_at(each, path) for each in last]
        if not all(is_equal(value, each) for each in ends):
            continue
        if any(is_equal(value_at(each, path), value) for each in before):
            continue
        expression = "loop.last"
        for key in path:
            expression = member(expression, key) if isinstance(key, str) else f"{expression}[{key}]"
        return f"{expression} != {literal(value)}", most
    return None, most


# --- page by page --------------------------------------------------------------------------------


def page_template(column: Column, cursor: Cursor, spec: ToolSpec | None) -> str:
    """The template of the parameter that names the page."""
    firsts = [
        each.calls[0].arguments.get(cursor.parameter) for each in column.groups if each is not None
    ]
    begin: JsonValue = next((each for each in firsts if each is not None), None)
    if begin is None:
        default = 1 if cursor.path is None else None
        begin = schema_at(spec, (cursor.parameter,)).get("default", default)
    if cursor.path is None:
        return f"{{{{ loop.index + {literal(begin)} }}}}"
    return f"{{{{ {_next_page(cursor.path)} if loop.index > 0 else {literal(begin)} }}}}"


def page_condition(column: Column, cursor: Cursor) -> str | None:
    """The condition under which there is another page; None: nothing tells it."""
    groups = [each for each in column.groups if each is not None]
    lasts = [each.calls[-1].result for each in groups]
    if cursor.path is not None:
        text, path = _next_page(cursor.path), cursor.path
        is_there = all(value_at(each, path) is not None for each in lasts)
        return text if is_there else f"{text} is defined and {text}"
    before = [call.result for each in groups for call in each.calls[:-1]]
    for key in keys_of(lasts[0]):
        ends = [part_of(each, key) for each in lasts]
        goes = [part_of(each, key) for each in before]
        if all(each in (False, []) for each in ends) and all(bool(each) for each in goes):
            return member("loop.last", key)
    return None


def _next_page(path: Sequence[str]) -> str:
    """The expression of what the page before says of the next one."""
    text = "loop.last"
    for key in path:
        text = member(text, key)
    return text

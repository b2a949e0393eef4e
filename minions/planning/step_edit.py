"""Writes keys of a step into the text of a recipe: the rest, its comments and layout stay."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from minions.data.errors import NotFoundError, RecipeError, UsageError, near_names
from minions.data.json_values import JsonValue
from minions.recipe.text.nodes import (
    Entry,
    MappingNode,
    Node,
    ScalarNode,
    SequenceNode,
    Span,
    to_plain,
)
from minions.recipe.text.yaml_reader import read_document

if TYPE_CHECKING:
    import yaml

_AFTER: Final = ("output", "goal", "analyze")
"""Keys of a step behind which new ones are written."""
_PLAIN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*/[A-Za-z0-9_./:-]*[A-Za-z0-9_]")
"""`provider/name`, which needs no quotes anywhere."""


def step_keys(text: str, file: str, step_id: str) -> Mapping[str, JsonValue]:
    """What the step's own text says, by key.

    Raises:
        RecipeError: The text is no YAML.
        NotFoundError: It has no such step.
    """
    found = to_plain(_step(read_document(text, file), step_id))
    assert isinstance(found, Mapping)  # noqa: S101  # of a mapping
    return found


def with_step_keys(
    text: str, file: str, step_id: str, changes: Mapping[str, JsonValue | None]
) -> str:
    """The recipe's text with these values of a step's keys, in place of those that it has.

    Args:
        changes: By key; None: the step is to have no such key.
    Raises:
        RecipeError: The text is no YAML.
        NotFoundError: It has no such step.
        UsageError: `not-editable`; the step is written in a way that would change otherwise.
    """
    changed = text
    for key, value in changes.items():
        document = read_document(changed, file)
        changed = _with_key(changed, _step(document, step_id), key, value)
        _check(document, changed, file, step_id, {key: value})
    return changed


def _with_key(text: str, step: MappingNode, key: str, value: JsonValue | None) -> str:
    lines = text.splitlines(keepends=True)
    row, column = step.span[:2]
    known = step.find(key)
    is_flow = lines[row][column : column + 1] == "{"
    if value is None:
        if known is None:
            return text
        return _without_in_flow(lines, step, known) if is_flow else _without(lines, step, known)
    if known is not None and (is_flow or _is_inline(lines, known, value)):
        return _replace(lines, _span_of(lines, known.value), _flow(value))
    write = _added_in_flow if is_flow else _in_block
    return write(lines, step, key, value)


def _step(document: Node, step_id: str) -> MappingNode:
    entry = document.find("steps") if isinstance(document, MappingNode) else None
    items = entry.value.items if entry and isinstance(entry.value, SequenceNode) else ()
    steps = {_id_of(item): item for item in items if isinstance(item, MappingNode)}
    if step_id not in steps:
        names = [name for name in steps if name]
        raise NotFoundError(
            f"The recipe has no step '{step_id}'. Steps are: {', '.join(names) or 'none'}.",
            code="unknown-step",
            suggestions=near_names(step_id, names),
        )
    return steps[step_id]


def _id_of(step: MappingNode) -> str:
    entry = step.find("id")
    return str(to_plain(entry.value)) if entry is not None else ""


# --- a step in braces -----------------------------------------------------------------------------


def _added_in_flow(lines: list[str], step: MappingNode, key: str, value: JsonValue) -> str:
    row, column = whole_span("".join(lines), step)[2:]
    column -= 1  # before the closing brace
    before = "".join(lines[: row + 1])[: -(len(lines[row]) - column) or None].rstrip()
    comma = "" if before.endswith((",", "{")) else ","
    return _replace(lines, (row, column, row, column), f"{comma} {key}: {_flow(value)}")


def _without_in_flow(lines: list[str], step: MappingNode, known: Entry) -> str:
    """The text without a key and the comma before it, or behind it where it is the first."""
    at = step.entries.index(known)
    start, end = known.span[:2], _span_of(lines, known.value)[2:]
    if at > 0:
        start = _span_of(lines, step.entries[at - 1].value)[2:]
    elif len(step.entries) > 1:
        end = step.entries[1].span[:2]
    return _replace(lines, (*start, *end), "")


def _replace(lines: list[str], span: Span, text: str) -> str:
    row, column, end_row, end_column = span
    head = "".join(lines[:row]) + lines[row][:column]
    return head + text + lines[end_row][end_column:] + "".join(lines[end_row + 1 :])


def _span_of(lines: list[str], node: Node) -> Span:
    return node.span if isinstance(node, ScalarNode) else whole_span("".join(lines), node)


# --- a step whose keys stand on lines of their own ------------------------------------------------


def _is_inline(lines: list[str], known: Entry, value: JsonValue) -> bool:
    """Whether the value stands on one line, behind its key, and the new one can, too."""
    row, column, end_row, _ = _span_of(lines, known.value)
    is_here = row == end_row == known.span[0]
    if not is_here or len(_value_lines(value, "")) > 1:
        return False
    return isinstance(known.value, ScalarNode) or lines[row][column : column + 1] in ("[", "{")


def _in_block(lines: list[str], step: MappingNode, key: str, value: JsonValue) -> str:
    known = step.find(key)
    named = (step.find(name) for name in _AFTER)
    after = next((entry for entry in named if entry is not None), step.entries[-1])
    indent = " " * step.entries[0].span[1]
    end = "\r\n" if lines[0].endswith("\r\n") else "\n"
    own = [f"{line}{end}" for line in _key_lines(key, value, indent)]
    if known is not None and known is not step.entries[0]:
        first, last = known.span[0], _end_of(lines, known)
    else:
        first = last = _end_of(lines, after)
    head = lines[:first]
    if head and not head[-1].endswith(("\n", "\r")):
        head[-1] += end
    return "".join([*head, *own, *lines[last:]])


def _without(lines: list[str], step: MappingNode, known: Entry) -> str:
    if known is step.entries[0]:  # it stands behind the dash
        raise _not_editable(_id_of(step))
    return "".join([*lines[: known.span[0]], *lines[_end_of(lines, known) :]])


def _end_of(lines: list[str], entry: Entry) -> int:
    """The number of the line behind the entry, by indentation: blank lines are behind it."""
    row, column = entry.span[:2]
    end = row + 1
    for number in range(row + 1, len(lines)):
        line = lines[number].rstrip()
        depth = len(line) - len(line.lstrip(" "))
        is_item = depth == column and line[depth:].startswith(("- ", "-")) and len(line) > depth
        is_within = depth > column or (is_item and isinstance(entry.value, SequenceNode))
        if line and not is_within:
            break
        if line:
            end = number + 1
    return end


# --- values ---------------------------------------------------------------------------------------


def _key_lines(key: str, value: JsonValue, indent: str) -> list[str]:
    first, *others = _value_lines(value, indent)
    return [f"{indent}{_key(key)}:{f' {first}' if first else ''}", *others]


def _value_lines(value: JsonValue, indent: str) -> list[str]:
    """What stands behind the key, and the lines below it."""
    if isinstance(value, list | tuple) and any(isinstance(each, Mapping) for each in value):
        return ["", *(f"{indent}  - {_flow(each)}" for each in value)]
    if isinstance(value, str) and _is_literal(value):
        chomp = "" if value.endswith("\n") else "-"
        return [f"|{chomp}", *(f"{indent}  {line}".rstrip() for line in value.splitlines())]
    return [_flow(value)]


def _is_literal(text: str) -> bool:
    """Whether a text of several lines can stand as it is, indented."""
    lines = text.split("\n")
    is_plain = all(line.isprintable() and line == line.rstrip() for line in lines)
    return is_plain and len(lines) > 1 and not text.startswith((" ", "\n")) and text[-2:] != "\n\n"


def _flow(value: JsonValue) -> str:
    """The value on one line, as JSON whose simple keys have no quotes."""
    if isinstance(value, Mapping):
        pairs = (f"{_key(name)}: {_flow(each)}" for name, each in value.items())
        return f"{{{', '.join(pairs)}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_flow, value))}]"
    if isinstance(value, str) and _NAME.fullmatch(value):
        return value
    return json.dumps(value, ensure_ascii=not str(value).isprintable())


def _key(name: str) -> str:
    is_word = name.lower() in ("true", "false", "null", "yes", "no", "on", "off", "y", "n")
    return name if _PLAIN.fullmatch(name) and not is_word else json.dumps(name)


# --- the check ------------------------------------------------------------------------------------


def _check(
    before: Node,
    changed: str,
    file: str,
    step_id: str,
    changes: Mapping[str, JsonValue | None],
) -> None:
    """Refuse an edit that changed anything else, or what it was to write.

    Raises:
        UsageError: `not-editable`.
    """
    wanted = _plain_with(to_plain(before), step_id, changes)
    try:
        is_same = _text(to_plain(read_document(changed, file))) == _text(wanted)
    except RecipeError as error:
        raise _not_editable(step_id) from error
    if not is_same:
        raise _not_editable(step_id)


def _not_editable(step_id: str) -> UsageError:
    return UsageError(
        f"Step '{step_id}' cannot be changed in the recipe's text without changing more of it. "
        "Write the step in lines of its own (id, goal, output), without anchors, and repeat the "
        "command.",
        code="not-editable",
    )


def _plain_with(
    document: JsonValue, step_id: str, changes: Mapping[str, JsonValue | None]
) -> JsonValue:
    assert isinstance(document, Mapping)  # noqa: S101  # it has steps
    steps = document["steps"]
    assert isinstance(steps, list | tuple)  # noqa: S101  # likewise
    changed = [
        _merge_changes(step, changes)
        if isinstance(step, Mapping) and step.get("id") == step_id
        else step
        for step in steps
    ]
    return {**document, "steps": changed}


def _merge_changes(
    step: Mapping[str, JsonValue], changes: Mapping[str, JsonValue | None]
) -> dict[str, JsonValue]:
    merged = {**step, **changes}
    return {key: value for key, value in merged.items() if changes.get(key, "") is not None}


def _text(value: JsonValue) -> str:
    return json.dumps(value, sort_keys=True, default=list)


# --- the change of a recipe's text, as people read it and as `patch` and `git apply` take it -----


_NO_NEWLINE: Final = "\n\\ No newline at end of file\n"
_QUOTED: Final = re.compile(r'[\x00-\x1f"\\\x7f]')
"""Characters for which a name is written in quotes, as by Git and GNU diff."""


def recipe_diff(before: str, after: str, name: str) -> str:
    """The change as a unified diff, without a newline at its end; empty: there is none.

    Line ends are those of the texts: a diff of a file with CRLF has them, too.

    Args:
        before: The text of a recipe.
        name: The name of the file.
    """
    header = _file_name(name)
    lines = difflib.unified_diff(_lines(before), _lines(after), header, header)
    whole = (line if line.endswith("\n") else line + _NO_NEWLINE for line in lines)
    return "".join(whole).removesuffix("\n")


def _lines(text: str) -> list[str]:
    """The lines with their ends. Only a newline ends one, as in programs that apply diffs."""
    found = text.split("\n")
    last = found.pop()
    return [*(f"{line}\n" for line in found), *([last] if last else [])]


def _file_name(name: str) -> str:
    """The name as it stands in a header: what follows a tab is not part of it."""
    if _QUOTED.search(name):
        return f'"{"".join(_escape(name))}"'
    return f"{name}\t" if " " in name else name


def _escape(name: str) -> Iterator[str]:
    for letter in name:
        if not _QUOTED.match(letter):
            yield letter
        elif letter in '"\\':
            yield f"\\{letter}"
        else:
            yield f"\\{ord(letter):03o}"


# --- writes examples into the text of a recipe ---------------------------------------------------


def examples_in(text: str, file: str, step_id: str) -> JsonValue:
    """What stands under `examples` of that step; None: nothing.

    Raises:
        RecipeError: The text is no YAML.
        NotFoundError: It has no such step.
    """
    return step_keys(text, file, step_id).get("examples")


def with_examples(
    text: str, file: str, step_id: str, examples: Sequence[Mapping[str, JsonValue]]
) -> str:
    """The recipe's text with these examples of a step, in place of those that it has.

    Args:
        examples: `{input, output}` each; none: the key is left out.
    Raises:
        RecipeError: The text is no YAML.
        NotFoundError: It has no such step.
        UsageError: `not-editable`; the step is written in a way that would change otherwise.
    """
    return with_step_keys(text, file, step_id, {"examples": list(examples) or None})


# --- where a list or mapping in brackets ends ----------------------------------------------------


def whole_span(text: str, node: Node) -> Span:
    """The lines and columns of a node in that text, its closing bracket included.

    Args:
        text: What the node was read from. Where the library does not read all of it, such as half
            a character, it is the span that the node has.
    """
    import yaml

    try:
        return _whole_span(text, node)
    except yaml.YAMLError:  # the recipe reader takes more than the library
        return node.span


def _whole_span(text: str, node: Node) -> Span:
    import yaml

    start, depth = node.span[:2], 0
    for event in yaml.parse(text, Loader=yaml.CBaseLoader):
        if depth == 0 and not _begins(event, start):
            continue
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth == 0 and (end := event.end_mark) is not None:
            return (*start, end.line, end.column)
    return node.span


def _begins(event: yaml.Event, start: tuple[int, int]) -> bool:
    import yaml

    if not isinstance(event, yaml.CollectionStartEvent | yaml.ScalarEvent):
        return False
    mark = event.start_mark
    return mark is not None and (mark.line, mark.column) == start

"""Writes examples into the text of a recipe: one step changes, comments and layout stay."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Final

from minions.contracts.errors import NotFoundError, RecipeError, UsageError, near_names
from minions.contracts.json_values import JsonValue
from minions.recipe.text.flow_spans import whole_span
from minions.recipe.text.nodes import Entry, MappingNode, Node, SequenceNode, to_plain
from minions.recipe.text.yaml_reader import read_document

__all__ = ["examples_in", "with_examples"]

_AFTER: Final = ("output", "goal")
"""Keys of a step behind which examples are written, where it has none so far."""
_PLAIN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def examples_in(text: str, file: str, step_id: str) -> JsonValue:
    """What stands under `examples` of that step; None: nothing.

    Raises:
        RecipeError: The text is no YAML.
        NotFoundError: It has no such step.
    """
    entry = _step(read_document(text, file), step_id).find("examples")
    return to_plain(entry.value) if entry is not None else None


def with_examples(
    text: str, file: str, step_id: str, examples: Sequence[Mapping[str, JsonValue]]
) -> str:
    """The recipe's text with these examples of a step, in place of those that it has.

    Args:
        examples: `{input, output}` each.
    Raises:
        RecipeError: The text is no YAML.
        NotFoundError: It has no such step.
        UsageError: `not-editable`; the step is written in a way that would change otherwise.
    """
    document = read_document(text, file)
    step = _step(document, step_id)
    lines = text.splitlines(keepends=True)
    row, column = step.span[:2]
    is_flow = lines[row][column : column + 1] == "{"
    write = _in_flow if is_flow else _in_block
    changed = write(lines, step, examples)
    _check(document, changed, file, step_id, examples)
    return changed


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


# --- the two forms of a step ----------------------------------------------------------------------


def _in_flow(
    lines: list[str], step: MappingNode, examples: Sequence[Mapping[str, JsonValue]]
) -> str:
    """The text with the examples of a step that stands in braces."""
    shown = f"[{', '.join(map(_shown, examples))}]"
    known = step.find("examples")
    if known is not None:
        return _replaced(lines, whole_span("".join(lines), known.value), shown)
    row, column = whole_span("".join(lines), step)[2:]
    column -= 1  # before the closing brace
    before = "".join(lines[: row + 1])[: -(len(lines[row]) - column) or None].rstrip()
    comma = "" if before.endswith((",", "{")) else ","
    return _replaced(lines, (row, column, row, column), f"{comma} examples: {shown}")


def _replaced(lines: list[str], span: tuple[int, int, int, int], text: str) -> str:
    row, column, end_row, end_column = span
    head = "".join(lines[:row]) + lines[row][:column]
    return head + text + lines[end_row][end_column:] + "".join(lines[end_row + 1 :])


def _in_block(
    lines: list[str], step: MappingNode, examples: Sequence[Mapping[str, JsonValue]]
) -> str:
    """The text with the examples of a step whose keys stand on lines of their own."""
    known = step.find("examples")
    named = (step.find(name) for name in _AFTER)
    after = next((entry for entry in named if entry is not None), step.entries[-1])
    indent = " " * step.entries[0].span[1]
    end = "\r\n" if lines[0].endswith("\r\n") else "\n"
    own = [f"{indent}examples:{end}"]
    own += [f"{indent}  - {_shown(example)}{end}" for example in examples]
    if known is not None and known is not step.entries[0]:
        first, last = known.span[0], _end_of(lines, known)
    else:
        first = last = _end_of(lines, after)
    head = lines[:first]
    if head and not head[-1].endswith(("\n", "\r")):
        head[-1] += end
    return "".join([*head, *own, *lines[last:]])


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


def _shown(example: Mapping[str, JsonValue]) -> str:
    pairs = (f"{name}: {_flow(value)}" for name, value in example.items())
    return f"{{{', '.join(pairs)}}}"


def _flow(value: JsonValue) -> str:
    """The value on one line, as JSON whose simple keys have no quotes."""
    if isinstance(value, Mapping):
        pairs = (f"{_key(name)}: {_flow(each)}" for name, each in value.items())
        return f"{{{', '.join(pairs)}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_flow, value))}]"
    return json.dumps(value, ensure_ascii=not str(value).isprintable())


def _key(name: str) -> str:
    is_word = name.lower() in ("true", "false", "null", "yes", "no", "on", "off", "y", "n")
    return name if _PLAIN.fullmatch(name) and not is_word else json.dumps(name)


def _check(
    before: Node,
    changed: str,
    file: str,
    step_id: str,
    examples: Sequence[Mapping[str, JsonValue]],
) -> None:
    """Refuse an edit that changed anything else, or what it was to write.

    Raises:
        UsageError: `not-editable`.
    """
    wanted = _plain_with(to_plain(before), step_id, examples)
    try:
        is_same = _text(to_plain(read_document(changed, file))) == _text(wanted)
    except RecipeError as error:
        raise _not_editable(step_id) from error
    if not is_same:
        raise _not_editable(step_id)


def _not_editable(step_id: str) -> UsageError:
    return UsageError(
        f"The examples of step '{step_id}' cannot be written into the recipe's text without "
        "changing more of it. Write the step in lines of its own (id, goal, output), without "
        "anchors, and repeat the command.",
        code="not-editable",
    )


def _plain_with(
    document: JsonValue, step_id: str, examples: Sequence[Mapping[str, JsonValue]]
) -> JsonValue:
    assert isinstance(document, Mapping)  # noqa: S101  # it has steps
    steps = document["steps"]
    assert isinstance(steps, list | tuple)  # noqa: S101  # likewise
    changed = [
        {**step, "examples": list(examples)}
        if isinstance(step, Mapping) and step.get("id") == step_id
        else step
        for step in steps
    ]
    return {**document, "steps": changed}


def _text(value: JsonValue) -> str:
    return json.dumps(value, sort_keys=True, default=list)

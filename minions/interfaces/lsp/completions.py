"""What may be written at the cursor: keys, names of steps, inputs, tools and recipes, and the
fields of values.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from attrs import evolve, frozen

from minions.data.json_values import JsonValue
from minions.interfaces.lsp.checked_text import CheckedText, Spot, check_text
from minions.interfaces.lsp.cursor import Cursor, cursor_at
from minions.interfaces.lsp.type_words import description_of, type_words
from minions.recipe.checks.references import (
    ATTEMPT_KEYS,
    FEEDBACK_KEYS,
    LOOP_KEYS,
    RUN_KEYS,
    STATUSES,
    STEP_KEYS,
)
from minions.recipe.checks.shapes import Shape
from minions.recipe.checks.sources import Sources
from minions.recipe.drafts import RecipeDraft, StepDraft
from minions.recipe.editor_schema import recipe_schema
from minions.recipe.expressions.filters import FILTER_TYPES, TESTS
from minions.recipe.expressions.syntax import parse_expression
from minions.recipe.expressions.terms import Path as ValuePath
from minions.recipe.expressions.values import Reference, TemplateError
from minions.recipe.recipe_files import USUAL_FOLDER, NamedFiles, recipe_ids, recipe_ids_beside


@frozen(kw_only=True)
class Completion:
    """Something that may be written."""

    label: str
    kind: str
    """`key`, `step`, `input`, `field`, `value`, `tool`, `filter` or `recipe`."""
    text: str
    """What is inserted in the place of the word that the cursor ends."""
    word: str = ""
    """That word."""
    detail: str = ""
    about: str = ""


def completions_at(checked: CheckedText, spot: Spot) -> list[Completion]:
    """What may be written there, without doubles."""
    cursor = cursor_at(checked.lines, spot)
    if checked.draft is None:
        checked = _without_line(checked, spot.line)
    if cursor.expression is not None:
        found = _in_expression(checked, spot, cursor.expression)
    else:
        has_colon = checked.line(spot.line)[spot.column :].lstrip().startswith(":")
        found = (
            evolve(each, word=cursor.word, text=each.label if has_colon else each.text)
            for each in (*_keys(checked, cursor), *_values(checked, cursor))
        )
    return list({each.label: each for each in reversed(list(found))}.values())[::-1]


def _without_line(checked: CheckedText, number: int) -> CheckedText:
    """The same text without the line being written, which may keep all of it from being read."""
    lines = list(checked.lines)
    if number < len(lines):
        lines[number] = ""
    return check_text("\n".join(lines), checked.path, checked.project, checked)


# --- in expressions ------------------------------------------------------------------------------


_FILTER: Final = re.compile(r"(?<!\|)\|\s*(\w*)$")
_TEST: Final = re.compile(r"\bis\s+(?:not\s+)?(\w*)$")
_MEMBER: Final = re.compile(
    r"((?:[A-Za-z_]\w*)(?:\.\w+|\[\d+\]|\['[^'\]]*'\]|\[\"[^\"\]]*\"\])*)\.(\w*)$"
)
_STATUS: Final = re.compile(r"\.status\s*[=!]=\s*(['\"])(\w*)$")
_WORD: Final = re.compile(r"(\w*)$")
_LONGEST: Final = 500
"""Characters before the cursor that are looked at."""


def _in_expression(checked: CheckedText, spot: Spot, text: str) -> Iterator[Completion]:
    is_quoted = any(text.count(quote) % 2 for quote in "'\"")
    text = text[-_LONGEST:]
    if (status := _STATUS.search(text)) is not None:
        yield from (_named_completion(name, "value", status[2]) for name in STATUSES)
        return
    if is_quoted:
        return
    if (filtered := _FILTER.search(text)) is not None:
        for name in sorted((*FILTER_TYPES, "default")):
            types = FILTER_TYPES.get(name)
            given = types.gives if types is not None else None
            detail = f"gives {type_words(Shape.of({'type': given}))}" if given else ""
            yield _named_completion(name, "filter", filtered[1], detail)
        return
    if (tested := _TEST.search(text)) is not None:
        yield from (
            _named_completion(name, "filter", tested[1]) for name in sorted((*TESTS, "defined"))
        )
        return
    draft, sources = checked.known, checked.sources()
    if draft is None or sources is None:
        return
    step = _step_around(checked, draft, spot)
    if (member := _MEMBER.search(text)) is not None:
        yield from _members(draft, sources, step, member[1], member[2])
        return
    word = _WORD.search(text)
    yield from _roots(draft, sources, step, word[1] if word is not None else "")


def _step_around(checked: CheckedText, draft: RecipeDraft, spot: Spot) -> StepDraft | None:
    """The step that the line belongs to, by its id: places of an older version have moved."""
    for number in range(spot.line, -1, -1):
        found = re.match(r"\s*-\s+(?:\w+:.*)?$", checked.line(number))
        if found is not None:
            cursor = cursor_at(checked.lines, Spot(number, len(checked.line(number))))
            level = next((each for each in cursor.path[2:3]), None)
            names = level.siblings if level is not None else {}
            own = re.search(r"\bid:\s*([\w-]+)", checked.line(number))
            name = own[1] if own is not None else names.get("id", "")
            step = next((each for each in draft.steps if each.id == name), None)
            if step is not None:
                return step
    return None


def _members(
    draft: RecipeDraft, sources: Sources, step: StepDraft | None, path: str, word: str
) -> Iterator[Completion]:
    reference = _reference(path)
    if reference is None:
        return
    parts = reference.path
    if parts == ("inputs",):
        yield from _inputs(draft, word)
    elif parts == ("steps",):
        yield from (
            _of_step(each, each.id, word) for each in sources.ids.values() if _bare(each.id)
        )
    elif parts == ("run",):
        yield from (_named_completion(name, "field", word) for name in RUN_KEYS)
    elif parts == ("feedback",):
        yield from (_named_completion(name, "field", word) for name in FEEDBACK_KEYS)
    elif parts == ("loop",):
        keys = ATTEMPT_KEYS if step is not None and step.has_while else LOOP_KEYS
        yield from (_named_completion(name, "field", word) for name in keys)
    elif parts[0] == "steps" and len(parts) == 2:
        yield from (_named_completion(name, "field", word) for name in STEP_KEYS)
    elif (known := sources.known(reference, step)) is not None:
        yield from _fields(known.shape, word)


def _reference(path: str) -> Reference | None:
    try:
        term = parse_expression(path).term
    except TemplateError:
        return None
    return term.reference if isinstance(term, ValuePath) else None


def _fields(shape: Shape, word: str) -> Iterator[Completion]:
    for name in shape.names():
        inner = shape.at((name,))
        about = description_of(inner.node)
        yield evolve(_named_completion(name, "field", word, type_words(inner)), about=about)


def _roots(
    draft: RecipeDraft, sources: Sources, step: StepDraft | None, word: str
) -> Iterator[Completion]:
    for each in sources.ids.values():
        if each is step and not (each.has_while or draft.has_graph):
            continue
        text = each.id if _bare(each.id) else f"steps['{each.id}'].output"
        yield evolve(_of_step(each, each.id, word), text=text)
    for name, steps in sources.saved.items():
        yield _of_step(steps[-1], name, word)
    for name in draft.inputs:
        yield evolve(
            _named_completion(f"inputs.{name}", "input", word), detail=_type_of(draft, name)
        )
    yield _named_completion("inputs", "value", word, "the inputs of the run")
    yield _named_completion("steps", "value", word, "the steps with output, status and error")
    yield _named_completion("run", "value", word, "id and session_id of the run")
    if step is not None and (step.has_loop or step.has_while):
        item = sources.item(step)
        detail = type_words(item.shape) if item is not None else "the iteration"
        yield _named_completion("loop", "value", word, detail)
    yield from (_named_completion(name, "value", word) for name in ("true", "false", "null"))


def _bare(name: str) -> bool:
    return name.isidentifier()


def _of_step(step: StepDraft, name: str, word: str) -> Completion:
    words = type_words(Shape.of(step.output))
    about = step.section.text("description") or ""
    return evolve(_named_completion(name, "step", word, words), about=about)


def _inputs(draft: RecipeDraft, word: str) -> Iterator[Completion]:
    for name, spec in draft.inputs.items():
        yield evolve(
            _named_completion(name, "input", word, _type_of(draft, name)), about=spec.description
        )


def _type_of(draft: RecipeDraft, name: str) -> str:
    return type_words(Shape.of(draft.inputs[name].schema))


def _named_completion(name: str, kind: str, word: str = "", detail: str = "") -> Completion:
    return Completion(label=name, kind=kind, text=name, word=word, detail=detail)


# --- keys and values -----------------------------------------------------------------------------


def _keys(checked: CheckedText, cursor: Cursor) -> Iterator[Completion]:
    if not cursor.is_key:
        return
    for name, schema in known_keys(cursor).items():
        if name not in cursor.siblings or name == cursor.word:
            yield _key(name, _words_of(schema), description_of(schema))
    draft = checked.known
    last = cursor.keys[-1] if cursor.path else None
    if draft is None or last is None:
        return
    outer = cursor.path[-1].siblings
    if last in ("params", "params_template"):
        yield from _parameters(draft, outer.get("tool", ""), cursor.siblings)
    elif last == "with" and "recipe" in outer:
        yield from _inner_inputs(draft, outer["recipe"], cursor.siblings)
    elif last == "inputs" and cursor.keys[0] in ("tests", "schedule"):
        for name in draft.inputs:
            yield _key(name, _type_of(draft, name), draft.inputs[name].description)
    elif last in ("graph", "decisions", "prompt_contains", "prompt_excludes"):
        yield from (_key(step.id) for step in draft.steps if step.is_named)


def _key(name: str, detail: str = "", about: str = "") -> Completion:
    return Completion(label=name, kind="key", text=f"{name}: ", detail=detail, about=about)


def _parameters(draft: RecipeDraft, tool: str, written: Iterable[str]) -> Iterator[Completion]:
    spec = draft.find_tool(tool.strip("\"'"))
    properties = spec.parameters.get("properties") if spec is not None else None
    if spec is None or not isinstance(properties, Mapping):
        return
    required = spec.parameters.get("required", ())
    for name, schema in properties.items():
        if name not in written:
            is_due = isinstance(required, list | tuple) and name in required
            words = type_words(Shape(schema, spec.parameters))
            yield _key(name, f"{words}{', required' if is_due else ''}", description_of(schema))


def _inner_inputs(draft: RecipeDraft, recipe: str, written: Iterable[str]) -> Iterator[Completion]:
    name = recipe.strip("\"'")
    for step in draft.steps:
        if step.recipe is not None and step.section.text("recipe") == name:
            for key, spec in step.recipe.inputs.items():
                if key not in written:
                    yield _key(key, type_words(Shape.of(spec.schema)), spec.description)
            return


def known_keys(cursor: Cursor) -> Mapping[str, JsonValue]:
    """The keys of the mapping at the cursor, by the tables that the loader reads it with."""
    root = recipe_schema()
    found: dict[str, JsonValue] = {}
    for schema in _fitting(list(_schemas(root, cursor)), cursor.siblings):
        properties = schema.get("properties")
        if isinstance(properties, Mapping):
            for name, each in properties.items():
                found.setdefault(name, each)
    return found


def _schemas(root: Mapping[str, JsonValue], cursor: Cursor) -> Iterator[Mapping[str, JsonValue]]:
    """The schemas that the place may be of."""
    current = list(_alternatives(root, root))
    for level in cursor.path:
        inner: list[JsonValue] = []
        for schema in _fitting(current, {**level.siblings, level.key: ""} if level.key else {}):
            if level.key is None:
                inner.append(schema.get("items"))
                continue
            properties = schema.get("properties")
            if isinstance(properties, Mapping) and level.key in properties:
                inner.append(properties[level.key])
            else:
                inner.append(schema.get("additionalProperties"))
        current = [each for one in inner for each in _alternatives(one, root)]
    yield from current


def _alternatives(
    schema: JsonValue, root: Mapping[str, JsonValue], depth: int = 0
) -> Iterator[Mapping[str, JsonValue]]:
    if not isinstance(schema, Mapping) or depth > 8:  # deeper than any table
        return
    reference = schema.get("$ref")
    if isinstance(reference, str):
        tables = root.get("$defs")
        name = reference.rpartition("/")[2]
        if isinstance(tables, Mapping):
            yield from _alternatives(tables.get(name), root, depth + 1)
    for word in ("oneOf", "anyOf"):
        each = schema.get(word)
        for one in each if isinstance(each, list | tuple) else ():
            yield from _alternatives(one, root, depth + 1)
    yield schema


def _fitting(
    schemas: Sequence[Mapping[str, JsonValue]], written: Mapping[str, str]
) -> Sequence[Mapping[str, JsonValue]]:
    """The schemas that have all keys that are written; all of them, if none has."""

    def knows(schema: Mapping[str, JsonValue]) -> bool:
        properties = schema.get("properties")
        if not isinstance(properties, Mapping):
            return "properties" not in schema
        required = schema.get("required", ())
        is_extending = isinstance(required, list | tuple) and "extends" in required
        if is_extending and "extends" not in written:
            return False
        return all(name in properties for name in written if name)

    return [each for each in schemas if knows(each)] or schemas


def _words_of(schema: JsonValue) -> str:
    return type_words(Shape(schema, {})) if isinstance(schema, Mapping) else ""


def _values(checked: CheckedText, cursor: Cursor) -> Iterator[Completion]:
    if not cursor.is_value:
        return
    named = [key for key in cursor.keys if key is not None]
    last = named[-1] if named else ""
    for schema in _schemas(recipe_schema(), cursor):
        choices = schema.get("enum")
        for choice in choices if isinstance(choices, list | tuple) else ():
            yield _named_completion(str(choice), "value")
        if schema.get("type") == "boolean":
            yield from (_named_completion(word, "value") for word in ("true", "false"))
    if last == "recipe":
        yield from _recipes(checked)
    elif last in ("model", "fallbacks") or (last == "name" and named[-2:-1] == ["model"]):
        yield from (
            _named_completion(name, "value") for name in sorted(checked.project.catalog.models)
        )
    elif last in ("tool", "tools", "requires_approval") or named[-2:] in _TOOL_LISTS:
        yield from _tools(checked, named)
    if checked.known is not None:
        yield from _names_of(checked.known, cursor, named, last)


_TOOL_LISTS: Final = (["tools", "names"], ["tools", "always"])


def _tools(checked: CheckedText, named: Sequence[str]) -> Iterator[Completion]:
    catalog, draft = checked.project.catalog, checked.known
    if named == ["tools"]:
        yield from (
            _named_completion(name, "tool", "", "a toolset") for name in sorted(catalog.toolsets)
        )
        for name, tool in sorted(catalog.tools.items()):
            yield evolve(_named_completion(name, "tool"), about=tool.description)
        return
    if draft is None:
        return
    if named[-1] != "tool":
        yield from (
            _named_completion(name, "tool", "", "a toolset") for name in draft.tools.prefixes
        )
    for name, tool in draft.tools.specs.items():
        yield evolve(_named_completion(name, "tool", "", tool.effect.value), about=tool.description)


def _names_of(
    draft: RecipeDraft, cursor: Cursor, named: Sequence[str], last: str
) -> Iterator[Completion]:
    """The names of the recipe itself that the key takes."""
    if last == "fill":
        outer = cursor.path[-2].siblings if len(cursor.path) > 1 else {}
        for each in _parameters(draft, outer.get("tool", ""), ()):
            yield evolve(each, text=each.label, kind="value")
    elif last in ("depends_on", "goto") or named[:1] == ["graph"]:
        yield from (_of_step(step, step.id, "") for step in draft.steps if step.is_named)
    elif last == "extends":
        templates = draft.section.mapping("templates")
        for entry in templates.entries if templates is not None else ():
            yield _named_completion(entry.key, "value")


def _recipes(checked: CheckedText) -> Iterator[Completion]:
    """The recipes that a step may name: beside this one, under `recipes`, and registered ones.

    Only files that a recipe here may name are read for their id.
    """
    catalog = checked.project.catalog
    home = checked.path.absolute().parent
    files = NamedFiles(home, catalog.recipe_folders)
    for paths in (recipe_ids_beside(home, files.hold), recipe_ids([USUAL_FOLDER], files.hold)):
        for name, path in paths.items():
            if path.absolute() != checked.path.absolute():
                yield _named_completion(name, "recipe", "", str(path.name))
    yield from (
        _named_completion(name, "recipe", "", "registered") for name in sorted(catalog.recipes)
    )

"""The names of a recipe, and every place that mentions them: for definition, references, rename."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from attrs import evolve, frozen

from minions.data.errors import MinionsError
from minions.interfaces.lsp.checked_text import CheckedText, Spot, Stretch, check_text
from minions.recipe.checks.narrowing import terms_of
from minions.recipe.checks.sources import KEEPING_ITEMS, member_path
from minions.recipe.drafts import RecipeDraft, StepDraft, TemplateUse
from minions.recipe.expressions.syntax import RESERVED_WORDS
from minions.recipe.expressions.terms import FilterTerm, Term
from minions.recipe.expressions.terms import Path as ValuePath
from minions.recipe.expressions.values import Reference, TemplateError
from minions.recipe.reading.load import check_recipe_text
from minions.recipe.reading.sub_recipes import recipe_files
from minions.recipe.recipe_files import USUAL_FOLDER, NamedFiles, recipe_ids, recipe_ids_beside
from minions.recipe.text.key_types import STEP_PATTERN
from minions.recipe.text.nodes import Entry, MappingNode, Node, Place, ScalarNode, SequenceNode
from minions.recipe.text.yaml_reader import read_document, read_source

STEP: Final = "step"
SAVED: Final = "saved"
INPUT: Final = "input"
FIELD: Final = "field"
TEMPLATE: Final = "template"
RECIPE: Final = "recipe"


class Name(NamedTuple):
    """Something that has a name in a recipe."""

    kind: str
    path: tuple[str, ...]
    """Its name; of a field: `step` or `input`, the name there, and the keys down to it."""


@frozen(kw_only=True)
class Mention:
    """One place that mentions a name."""

    name: Name
    stretch: Stretch
    is_definition: bool = False
    reference: Reference | None = None
    """The path of which it is a part, if it stands in a template."""
    parts: int = 0
    """How many parts of that path end with it."""
    reader: StepDraft | None = None
    """The step whose template it is."""


class Target(NamedTuple):
    """A place in this file or another one."""

    path: Path
    stretch: Stretch


def mentions_of(checked: CheckedText) -> tuple[Mention, ...]:
    """All mentions, in the order of the text; none where nothing could be read."""
    draft = checked.draft
    if draft is None:
        return ()
    found: dict[tuple[Stretch, str], Mention] = {}
    declared = tuple(_declared_mentions(draft))
    fields = frozenset(each.name for each in declared if each.name.kind == FIELD)
    for each in (*declared, *_listed_mentions(draft), *_given_values(draft, fields), *_read(draft)):
        found.setdefault((each.stretch, each.name.kind), each)
    return tuple(sorted(found.values(), key=lambda each: each.stretch))


def mention_at(checked: CheckedText, spot: Spot) -> Mention | None:
    """The mention that the cursor is in; the shortest, if there are several."""
    at = [each for each in mentions_of(checked) if each.stretch.holds(spot)]
    return min(at, key=lambda each: each.stretch.length, default=None)


# --- what is declared ----------------------------------------------------------------------------


def _declared_mentions(draft: RecipeDraft) -> Iterator[Mention]:
    for step in draft.steps:
        for key, kind in (("id", STEP), ("save_as", SAVED)):
            node = step.section.scalar(key)
            if node is not None and isinstance(node.value, str):
                yield from _of_scalar(node, Name(kind, (node.value,)), is_definition=True)
        for key in ("output", "set"):
            node_of_key = step.section.node(key)
            if node_of_key is not None and step.is_named:
                yield from _fields(node_of_key, (STEP, step.id))
    inputs = draft.section.mapping("inputs")
    for entry in inputs.entries if inputs is not None else ():
        yield from _of_scalar(entry.key_node, Name(INPUT, (entry.key,)), is_definition=True)
        yield from _fields(entry.value, (INPUT, entry.key))
    templates = draft.section.mapping("templates")
    for entry in templates.entries if templates is not None else ():
        yield from _of_scalar(entry.key_node, Name(TEMPLATE, (entry.key,)), is_definition=True)


_OF_SCHEMA: Final = frozenset({"properties", "items", "type"})


def _fields(node: Node, path: tuple[str, ...]) -> Iterator[Mention]:
    """The fields that an output or input declares, in the short form or as a JSON Schema."""
    if isinstance(node, SequenceNode):
        for item in node.items[:1]:
            yield from _fields(item, path)
        return
    if not isinstance(node, MappingNode):
        return
    keys = {entry.key for entry in node.entries}
    for name in ("properties", "items"):
        entry = node.find(name)
        if entry is not None and keys & (_OF_SCHEMA - {name}):
            yield from _fields(entry.value, path)
    if keys & _OF_SCHEMA and not keys.isdisjoint({"type", "properties"}):
        required = node.find("required")
        for item in _items(required):
            if isinstance(item, ScalarNode) and isinstance(item.value, str):
                yield from _of_scalar(item, Name(FIELD, (*path, item.value)))
        return
    for entry in node.entries:
        inner = (*path, entry.key)
        yield from _of_scalar(entry.key_node, Name(FIELD, inner), is_definition=True)
        yield from _fields(entry.value, inner)


# --- what lists names ----------------------------------------------------------------------------


def _listed_mentions(draft: RecipeDraft) -> Iterator[Mention]:
    for step in draft.steps:
        yield from _step_names(draft, step.section.node("depends_on"))
        yield from _step_names(draft, step.goto)
        yield from _routes(draft, step)
        for text, kind in (("extends", TEMPLATE), ("recipe", RECIPE)):
            node = step.section.scalar(text)
            if node is None and isinstance(step.section.whole, MappingNode):
                entry = step.section.whole.find(text)
                node = entry.value if entry and isinstance(entry.value, ScalarNode) else None
            if node is not None and isinstance(node.value, str):
                yield from _of_scalar(node, Name(kind, (node.value,)))
    graph = draft.section.mapping("graph")
    for entry in graph.entries if graph is not None else ():
        yield from _of_scalar(entry.key_node, Name(STEP, (entry.key,)))
        yield from _step_names(draft, entry.value)
    steps = draft.section.node("steps")
    for item in steps.items if isinstance(steps, SequenceNode) else ():
        # What the loader resolved before it reads a step.
        entry = item.find("extends") if isinstance(item, MappingNode) else None
        if entry is not None and isinstance(entry.value, ScalarNode):
            yield from _of_scalar(entry.value, Name(TEMPLATE, (str(entry.value.value),)))
    for test in draft.section.items("tests"):
        yield from _in_test(draft, test)
    schedule = draft.section.node("schedule")
    for each in schedule.items if isinstance(schedule, SequenceNode) else (schedule,):
        yield from _keys_of(each, "inputs", INPUT)


def _step_names(draft: RecipeDraft, node: Node | None) -> Iterator[Mention]:
    ids = {step.id for step in draft.steps}
    for each in node.items if isinstance(node, SequenceNode) else (node,):
        if isinstance(each, ScalarNode) and isinstance(each.value, str):
            kind = STEP if each.value in ids else SAVED
            yield from _of_scalar(each, Name(kind, (each.value,)))


_LITERAL: Final = re.compile(r"'([^']*)'|\"([^\"]*)\"")


def _routes(draft: RecipeDraft, step: StepDraft) -> Iterator[Mention]:
    """Names of steps that a `route` chooses by a text in its expression."""
    node = step.section.scalar("route")
    ids = {each.id for each in draft.steps if each.is_named}
    if node is None or not isinstance(node.value, str):
        return
    if node.value in ids:
        yield from _of_scalar(node, Name(STEP, (node.value,)))
    for found in _LITERAL.finditer(node.value):
        name = found[1] if found[1] is not None else found[2]
        if name in ids:
            place = node.part(found.start(), len(found.group()))
            yield from _within(
                place,
                found.group(),
                1,
                Mention(name=Name(STEP, (name,)), stretch=Stretch(0, 0, len(name))),
            )


def _in_test(draft: RecipeDraft, test: Node) -> Iterator[Mention]:
    yield from _keys_of(test, "inputs", INPUT)
    yield from _keys_of(test, "decisions", STEP)
    entry = test.find("expect") if isinstance(test, MappingNode) else None
    if entry is None:
        return
    for key in ("prompt_tokens_max", "prompt_contains", "prompt_excludes"):
        yield from _keys_of(entry.value, key, STEP)
    holds = entry.value.find("holds") if isinstance(entry.value, MappingNode) else None
    node = holds.value if holds is not None else None
    for each in node.items if isinstance(node, SequenceNode) else (node,):
        if isinstance(each, ScalarNode) and isinstance(each.value, str):
            try:
                references = draft.templates.compile_condition(each.value).references
            except TemplateError:
                continue
            for reference in references:
                yield from _of_reference(draft, TemplateUse(node=each, references=()), reference)


def _keys_of(node: Node | None, name: str, kind: str) -> Iterator[Mention]:
    entry = node.find(name) if isinstance(node, MappingNode) else None
    if entry is not None and isinstance(entry.value, MappingNode):
        for each in entry.value.entries:
            yield from _of_scalar(each.key_node, Name(kind, (each.key,)))


# --- fields of values that are written down ------------------------------------------------------


def _given_values(draft: RecipeDraft, fields: frozenset[Name]) -> Iterator[Mention]:
    """The declared fields in defaults and inputs of tests, in examples, and in answers of tests
    that only one step can take.
    """
    inputs = draft.section.mapping("inputs")
    for entry in inputs.entries if inputs is not None else ():
        default = entry.value.find("default") if isinstance(entry.value, MappingNode) else None
        if default is not None:
            yield from _keys_in(default.value, (INPUT, entry.key), fields)
    for step in draft.steps:
        written = step.section.mapping("examples")
        listed = written.find("items") if written is not None else None
        for each in (*step.section.items("examples"), *_items(listed)):
            for entry in each.entries if isinstance(each, MappingNode) else ():
                if entry.key == "input":
                    yield from _in_question(draft, step, entry.value, fields)
                elif entry.key == "output" and step.is_named:
                    yield from _keys_in(entry.value, (STEP, step.id), fields)
    for test in draft.section.items("tests"):
        given = test.find("inputs") if isinstance(test, MappingNode) else None
        values = given.value if given is not None else None
        for entry in values.entries if isinstance(values, MappingNode) else ():
            yield from _keys_in(entry.value, (INPUT, entry.key), fields)
        answers = test.find("answers") if isinstance(test, MappingNode) else None
        for each in _items(answers):
            answer = each.find("json") if isinstance(each, MappingNode) else None
            if answer is not None:
                yield from _in_answer(draft, answer.value, fields)


def _in_question(
    draft: RecipeDraft, step: StepDraft, question: Node, fields: frozenset[Name]
) -> Iterator[Mention]:
    """The names of what a step reads in one of its examples: of inputs, steps and its item."""
    inputs = draft.section.mapping("inputs")
    for entry in question.entries if isinstance(question, MappingNode) else ():
        whole = _list_of(step) if entry.key == "item" else None
        name = _whole(draft, whole, None) if whole is not None else None
        if name is None:
            is_input = inputs is not None and inputs.find(entry.key) is not None
            name = Name(INPUT if is_input else STEP, (entry.key,))
            yield from _of_scalar(entry.key_node, name)
        yield from _keys_in(entry.value, _owner(draft, name), fields)


def _in_answer(draft: RecipeDraft, answer: Node, fields: frozenset[Name]) -> Iterator[Mention]:
    if not isinstance(answer, MappingNode):
        return
    keys = {entry.key for entry in answer.entries}
    takers = [
        step.id
        for step in draft.steps
        if step.is_named
        and keys
        and all(Name(FIELD, (STEP, step.id, key)) in fields for key in keys)
    ]
    if len(takers) == 1:
        yield from _keys_in(answer, (STEP, takers[0]), fields)


def _items(entry: Entry | None) -> tuple[Node, ...]:
    return tuple(entry.value.items) if entry and isinstance(entry.value, SequenceNode) else ()


def _keys_in(node: Node, path: tuple[str, ...], fields: frozenset[Name]) -> Iterator[Mention]:
    for item in node.items if isinstance(node, SequenceNode) else ():
        yield from _keys_in(item, path, fields)
    for entry in node.entries if isinstance(node, MappingNode) else ():
        name = Name(FIELD, (*path, entry.key))
        if name in fields:
            yield from _of_scalar(entry.key_node, name)
            yield from _keys_in(entry.value, name.path, fields)


# --- what templates read -------------------------------------------------------------------------


def _read(draft: RecipeDraft) -> Iterator[Mention]:
    for step in draft.steps:
        for use in step.all_templates:
            for reference in use.references:
                yield from _of_reference(draft, use, reference, step)
            yield from _of_attributes(draft, use, step)
    for use in (*draft.output_templates, *draft.prompt_templates):
        for reference in use.references:
            yield from _of_reference(draft, use, reference)
        yield from _of_attributes(draft, use, None)


def _of_attributes(
    draft: RecipeDraft, use: TemplateUse, reader: StepDraft | None
) -> Iterator[Mention]:
    """The fields that filters of lists name by a text, as in `map(attribute='size')`."""
    terms: list[Term] = [*terms_of(use, draft.templates)]
    while terms:
        term = terms.pop()
        terms += term.parts()
        named = member_path(term) if isinstance(term, FilterTerm) else ()
        if not isinstance(term, FilterTerm) or not named:
            continue
        owner, text = _list_before(draft, term.base, reader), str(named[0])
        for found in _ATTRIBUTE.finditer(str(use.node.value)):
            if owner is None or found[1].split(".")[0] != text:
                continue
            mention = Mention(
                name=Name(FIELD, (*owner, text)), stretch=Stretch(0, 0, len(text)), reader=reader
            )
            yield from _within(use.node.part(found.start(1), len(text)), text, 0, mention)


_ATTRIBUTE: Final = re.compile(
    r"(?:\battribute\s{0,9}=|\b(?:select|reject)attr\()\s{0,9}['\"]([^'\"]{1,200})['\"]"
)


def _list_before(
    draft: RecipeDraft, term: Term, reader: StepDraft | None
) -> tuple[str, ...] | None:
    """The path of the list whose items a filter reads, through filters that keep its items."""
    while isinstance(term, FilterTerm) and (term.name in KEEPING_ITEMS or member_path(term)):
        if term.name == "map":
            return None
        term = term.base
    name = _whole(draft, term.reference, reader) if isinstance(term, ValuePath) else None
    return _owner(draft, name) if name is not None else None


def _of_reference(
    draft: RecipeDraft, use: TemplateUse, reference: Reference, reader: StepDraft | None = None
) -> Iterator[Mention]:
    """The names along one path, each with the characters of its part."""
    place = use.place_of(reference)
    named = _name_of(draft, reference, reader)
    if named is None:
        return
    name, count = named
    is_item = reference.path[0] == "loop"
    is_full = reference.path[0] == "steps"
    at = 0
    for number, part in enumerate(reference.path, start=1):
        text = str(part)
        at = reference.text.find(text, at)
        if at < 0:
            return
        if number > count and is_full and number == count + 1:
            if part != "output":
                return  # a status or an error is no name
        elif number >= count + is_item and isinstance(part, str):
            if number > count:
                name = Name(FIELD, (*_owner(draft, name), text))
            mention = Mention(
                name=name,
                stretch=Stretch(0, 0, len(text)),
                reference=reference,
                parts=number,
                reader=reader,
            )
            yield from _within(place, reference.text, at, mention)
        at += len(text)


def _owner(draft: RecipeDraft, name: Name) -> tuple[str, ...]:
    """The beginning of the path of a field of that value."""
    if name.kind == SAVED:
        owners = [step.id for step in draft.steps if step.save_as == name.path[0]]
        return (STEP, owners[-1] if owners else "")
    return name.path if name.kind == FIELD else (name.kind, *name.path)


def _name_of(
    draft: RecipeDraft, reference: Reference, reader: StepDraft | None
) -> tuple[Name, int] | None:
    """The first name on the path, and how many parts it takes; of `loop.item` that of the list."""
    path = reference.path
    if path[:2] == ("loop", "item"):
        whole = _list_of(reader)
        name = _whole(draft, whole, None) if whole is not None else None
        return (name, 2) if name is not None else None
    if path[0] in ("inputs", "steps"):
        kind = INPUT if path[0] == "inputs" else STEP
        return (Name(kind, (str(path[1]),)), 2) if len(path) > 1 else None
    root = str(path[0])
    if any(step.is_named and step.id == root for step in draft.steps):
        return Name(STEP, (root,)), 1
    if any(step.save_as == root for step in draft.steps):
        return Name(SAVED, (root,)), 1
    return None


def _whole(draft: RecipeDraft, reference: Reference, reader: StepDraft | None) -> Name | None:
    """The name of the value that the reference reads."""
    named = _name_of(draft, reference, reader)
    if named is None:
        return None
    name, count = named
    for part in reference.path[count + (reference.path[0] == "steps") :]:
        if isinstance(part, str):
            name = Name(FIELD, (*_owner(draft, name), part))
    return name


def _list_of(step: StepDraft | None) -> Reference | None:
    """The path of the list that the step loops over, if it is one."""
    node = step.section.node("loop") if step is not None else None
    for use in step.outer_templates if step is not None else ():
        if use.node is node and isinstance(use.term, ValuePath):
            return use.term.reference
    return None


# --- places --------------------------------------------------------------------------------------


def _of_scalar(node: ScalarNode, name: Name, *, is_definition: bool = False) -> Iterator[Mention]:
    place = node.part(0, len(name.path[-1]))
    yield from _within(
        place,
        name.path[-1],
        0,
        Mention(name=name, stretch=Stretch(0, 0, len(name.path[-1])), is_definition=is_definition),
    )


def _within(place: Place, text: str, at: int, mention: Mention) -> Iterator[Mention]:
    """The mention at that offset of the text; none where the text is written in another way."""
    line, column = place.line - 1, place.column - 1
    written = place.source.line(place.line) or ""
    if not written.startswith(text, column):
        return
    stretch = Stretch(line, column + at, mention.stretch.length)
    yield evolve(mention, stretch=stretch)


# --- definition, references ----------------------------------------------------------------------


def targets_of(checked: CheckedText, spot: Spot) -> list[Target]:
    """Where what the cursor is at is declared, in this file or in that of a nested recipe."""
    mention = mention_at(checked, spot)
    if mention is None:
        return []
    everything = mentions_of(checked)
    own = [
        Target(checked.path, each.stretch)
        for each in everything
        if each.is_definition and each.name == mention.name
    ]
    if own or checked.draft is None:
        return own
    if mention.name.kind == RECIPE:
        path = _file_of(checked.path, mention.name.path[0])
        return [Target(path, Stretch(0, 0, 0))] if path is not None else []
    if mention.name.kind == FIELD and mention.name.path[0] == STEP:
        return _in_nested(checked, checked.draft, mention.name.path)
    return []


def _in_nested(checked: CheckedText, draft: RecipeDraft, path: Sequence[str]) -> list[Target]:
    """Where the recipe of a recipe step declares a field of its output."""
    step = next((each for each in draft.steps if each.id == path[1]), None)
    name = step.section.text("recipe") if step is not None else None
    file = _file_of(checked.path, name) if name is not None else None
    if file is None:
        return []
    try:
        node = read_document(read_source(file), str(file))
    except MinionsError:
        return []
    output = node.find("output") if isinstance(node, MappingNode) else None
    if output is None:
        return [Target(file, Stretch(0, 0, 0))]
    wanted = Name(FIELD, tuple(path))
    found = [each for each in _fields(output.value, (STEP, path[1])) if each.name == wanted]
    return [Target(file, each.stretch) for each in found]


def _file_of(namer: Path, name: str) -> Path | None:
    """The file of a recipe that another names; None: it has none, or may not be named there."""
    home = namer.absolute().parent
    try:
        return Path(recipe_files(name, str(home), NamedFiles(home)).file)
    except MinionsError:
        return None


def references_of(checked: CheckedText, spot: Spot, *, with_definition: bool) -> list[Stretch]:
    """Every mention of what the cursor is at."""
    mention = mention_at(checked, spot)
    if mention is None:
        return []
    return [
        each.stretch
        for each in mentions_of(checked)
        if each.name == mention.name and (with_definition or not each.is_definition)
    ]


# --- rename --------------------------------------------------------------------------------------


class RenameRefusedError(Exception):
    """A name that cannot be changed so; its text says why."""


_RENAMED: Final = (STEP, SAVED, INPUT, TEMPLATE)
"""What is renamed wherever it is declared; a field only where this recipe declares it."""


def renamable_at(checked: CheckedText, spot: Spot) -> Mention | None:
    """The name at the cursor that can be changed; None: there is none."""
    mention = mention_at(checked, spot)
    if mention is None or mention.name.kind in _RENAMED:
        return mention
    everything = mentions_of(checked)
    is_own = any(each.is_definition and each.name == mention.name for each in everything)
    return mention if is_own else None


def renamed(checked: CheckedText, spot: Spot, name: str) -> list[Stretch]:
    """The places at which the new name is to stand instead of the old one.

    Raises:
        RenameRefusedError: The name is none, is taken, or the recipe would have faults by it.
    """
    mention = renamable_at(checked, spot)
    if mention is None:
        raise RenameRefusedError(
            "Only steps, inputs, templates, `save_as` names and fields that this recipe declares "
            "are renamed."
        )
    if not re.fullmatch(STEP_PATTERN, name) or name in RESERVED_WORDS:
        raise RenameRefusedError(f"'{name:.60}' is no name: it must match {STEP_PATTERN}.")
    old, everything = mention.name, mentions_of(checked)
    wanted = Name(old.kind, (*old.path[:-1], name))
    if any(each.is_definition and each.name == wanted for each in everything):
        raise RenameRefusedError(f"There is a {old.kind} '{name:.60}' already.")
    places = [each for each in everything if each.name == old]
    lines = list(checked.lines)
    for each in reversed(places):
        line, column, length = each.stretch
        lines[line] = lines[line][:column] + name + lines[line][column + length :]
    after = check_text("\n".join(lines), checked.path, checked.project)
    new = [each for each in mentions_of(after) if each.name == wanted]
    known = {
        (fault.code, fault.message.replace(old.path[-1], name)) for fault in checked.loaded.errors
    }
    worse = [
        fault
        for fault in after.loaded.errors
        if (fault.code, fault.message.replace(old.path[-1], name)) not in known
    ]
    if worse:
        raise RenameRefusedError(f"The recipe would have a fault then: {worse[0].message}.")
    if len(new) != len(places):
        raise RenameRefusedError(f"'{name:.60}' would be taken for something else.")
    return [each.stretch for each in places]


class Caller(NamedTuple):
    """A recipe of the folder that gives an input to another one."""

    path: Path
    text: str
    stretches: tuple[Stretch, ...]
    """Where it names the input."""


def callers_of(
    checked: CheckedText, name: str, open_text: Callable[[Path], str | None]
) -> Iterator[Caller]:
    """The recipes beside this one, or under `recipes`, whose steps give it the input `name`.

    Args:
        open_text: The text of a file that is open in the editor; None: that of the disk counts.
    """
    catalog = checked.project.catalog
    own = checked.path.resolve()
    files = NamedFiles(own.parent, catalog.recipe_folders)
    beside = recipe_ids_beside(own.parent, files.hold)
    paths = {*beside.values(), *recipe_ids([USUAL_FOLDER], files.hold).values()}
    for path in sorted({each.resolve() for each in paths} - {own}):
        try:
            text = open_text(path)
            text = read_source(path).decode() if text is None else text
        except (MinionsError, UnicodeDecodeError):
            continue
        if "recipe" not in text or name not in text:
            continue
        draft = check_recipe_text(text, str(path), catalog).draft
        found = [] if draft is None else list(_given_stretches(draft, path, own, name))
        if found:
            yield Caller(path, text, tuple(found))


def _given_stretches(draft: RecipeDraft, path: Path, callee: Path, name: str) -> Iterator[Stretch]:
    for step in draft.steps:
        recipe, given = step.section.text("recipe"), step.section.mapping("with")
        entry = given.find(name) if given is not None else None
        if recipe is None or entry is None:
            continue
        file = _file_of(path, recipe)
        if file is not None and file.resolve() == callee:
            named = _of_scalar(entry.key_node, Name(INPUT, (name,)))
            yield from (each.stretch for each in named)

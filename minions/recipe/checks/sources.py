"""The sources of values: which step or input a name refers to, the known schema of its value, and
which text a template takes over from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from minions.data.json_values import JsonValue
from minions.data.schema import JsonSchema
from minions.recipe.checks.shapes import ANYTHING, Shape, kind_of
from minions.recipe.drafts import RecipeDraft, StepDraft, TemplateUse
from minions.recipe.expressions.template import Templates
from minions.recipe.expressions.terms import (
    Binary,
    Choice,
    Comparison,
    DefaultFilter,
    DefinedTest,
    DictTerm,
    FilterTerm,
    ListTerm,
    Literal,
    Logic,
    Negation,
    Not,
    Path,
    Slice,
    Subscript,
    Term,
)
from minions.recipe.expressions.values import PathPart, Reference, TemplateError, is_list
from minions.recipe.model import ExecutionMode
from minions.recipe.text.nodes import Place, ScalarNode
from minions.recipe.text.schemas import shape_of_values

if TYPE_CHECKING:
    from minions.recipe.expressions.filters import Filter

TEXT: Final = Shape.of({"type": "string"})


class KnownShape(Struct, frozen=True, kw_only=True):
    """The shape of what a reference reads, and where the recipe declares it."""

    shape: Shape
    place: Place


class Sources:
    """The names of a recipe: steps by id and by `save_as`, inputs, a loop's item."""

    def __init__(self, draft: RecipeDraft) -> None:
        """Collect the names; also derives the shapes of `set` steps
        from the values that they copy.
        """
        self._draft = draft
        self._inputs = draft.inputs
        self._section = draft.section
        self.ids: dict[str, StepDraft] = {}
        self.saved: dict[str, list[StepDraft]] = {}
        for step in draft.steps:
            if step.is_named:
                self.ids.setdefault(step.id, step)
            if step.save_as is not None:
                self.saved.setdefault(step.save_as, []).append(step)
        self._shapes: dict[tuple[int, int | None], tuple[Term, Shape]] = {}
        self._movable_roots: dict[int, tuple[JsonSchema, bool]] = {}
        """By id of a root schema: a self-contained form of it, and whether it has no references."""
        for step in draft.steps:
            if step.kind == "set":
                self._see_through(step)
        self._shapes.clear()  # a `set` step may have read one whose shape was not known yet

    @property
    def templates(self) -> Templates:
        """Compiles the texts of the recipe."""
        return self._draft.templates

    def find(self, step_id: str) -> StepDraft | None:
        """The step of that id; None: there is none."""
        return self.ids.get(step_id)

    @property
    def shared_names(self) -> Sequence[str]:
        """The names under which several steps save what they give."""
        return [name for name, steps in self.saved.items() if len(steps) > 1]

    def named(self, name: str) -> list[StepDraft]:
        """The steps that the name refers to: one by id, one or more by `save_as`."""
        return [self.ids[name]] if name in self.ids else self.saved.get(name, [])

    def known(self, reference: Reference, reader: StepDraft | None = None) -> KnownShape | None:
        """The shape of what a reference reads, if that is the value of one step, an input, or a
        loop's item.

        Args:
            reader: The step whose item `loop.item` is.
        """
        found = self.rooted(reference, reader)
        if found is None:
            return None
        base, start = found
        return KnownShape(shape=base.shape.at(reference.path[start:]), place=base.place)

    def rooted(
        self, reference: Reference, reader: StepDraft | None = None
    ) -> tuple[KnownShape, int] | None:
        """The value that a reference goes into, and how many parts of its path lead there."""
        path = reference.path
        if path[0] == "loop":
            found = self._of_loop(path[1] if len(path) > 1 else None, reader)
            return (found, 2) if found is not None else None
        if path[0] == "inputs":
            found = self._input(str(path[1])) if len(path) > 1 else None
            return (found, 2) if found is not None else None
        if path[0] == "steps" and path[2:3] not in (("output",), ("artifacts",)):
            return None
        steps = self.named(reference.step_name)
        if path[0] == "steps":
            steps = [step for step in steps if step.id == reference.step_name]
        if len(steps) != 1:
            return None
        is_artifact = path[0] == "steps" and path[2] == "artifacts"
        [step] = steps
        schema = step.artifacts if is_artifact else step.output
        known = KnownShape(shape=Shape(schema, schema), place=_place(step))
        return known, 3 if path[0] == "steps" else 1

    def shape_of(self, use: TemplateUse, reader: StepDraft | None = None) -> Shape:
        """The shape of a rendered template; `{{ 'text' }}` deliberately avoids the checks."""
        if use.term is None:
            return TEXT
        return ANYTHING if isinstance(use.term, Literal) else self.shape_of_term(use.term, reader)

    def shape_of_term(self, term: Term, reader: StepDraft | None = None) -> Shape:
        """The shape of the value of an expression; any value where it is not known."""
        key = (id(term), reader.index if reader is not None else None)
        if key not in self._shapes:  # with the expression, so that no other one gets its id
            self._shapes[key] = (term, self._shape_of_term(term, reader))
        return self._shapes[key][1]

    def _shape_of_term(self, term: Term, reader: StepDraft | None) -> Shape:
        if isinstance(term, Path):
            found = self.known(term.reference, reader)
            return found.shape if found is not None else ANYTHING
        if isinstance(term, Literal):
            return _of_kinds(kind_of(term.literal))
        if isinstance(term, Comparison | Not | DefinedTest):
            return _of_kinds("boolean")
        if isinstance(term, FilterTerm):
            return self._of_filter(term, reader)
        if isinstance(term, Subscript):
            base, path = self.shape_of_term(term.base, reader), member_path(term)
            if not path and not isinstance(term.key, Literal):  # computed: the index of a list
                return base.items() if base.kinds() == _LIST_KIND else ANYTHING
            return base.at(path) if path else ANYTHING
        if isinstance(term, Slice):
            base = self.shape_of_term(term.base, reader)
            return TEXT if base.kinds() == _TEXT_KIND else _as_list(base)
        if isinstance(term, ListTerm):
            items = [self.shape_of_term(each, reader) for each in term.items]
            return _list_of(self._any_of(items)) if items else _of_kinds("array")
        if isinstance(term, DictTerm):
            return self._of_entries(term, reader)
        if isinstance(term, Negation):
            return _of_kinds("number")
        if isinstance(term, Binary):
            return self._of_binary(term, reader)
        if isinstance(term, DefaultFilter):
            return self._of_default(term, reader)
        if isinstance(term, Choice | Logic):
            sides = term.operands if isinstance(term, Logic) else (term.yes, term.no)
            shapes = [self.shape_of_term(side, reader) for side in sides]
            if isinstance(term, Logic) and not term.is_and:  # null is passed over but at the end
                shapes[:-1] = [each.without_null() for each in shapes[:-1]]
            return self._any_of(shapes)
        return ANYTHING

    def _any_of(self, shapes: Sequence[Shape]) -> Shape:
        """The shape of a value that is of one of these."""
        if any(each.kinds() is None for each in shapes):
            return ANYTHING
        whole = [self._movable(each) for each in shapes]
        unequal = [each for at, each in enumerate(whole) if each not in whole[:at]]
        if all(unequal):
            return Shape.of(unequal[0] if len(unequal) == 1 else {"anyOf": unequal})
        return _of_kinds(*(kind for each in shapes for kind in each.kinds() or ()))

    def _of_entries(self, term: DictTerm, reader: StepDraft | None) -> Shape:
        members = {
            name: self._movable(self.shape_of_term(each, reader)) for name, each in term.entries
        }
        return Shape.of(
            {
                "type": "object",
                "properties": members,
                "required": list(members),
                "additionalProperties": False,
            }
        )

    def _of_binary(self, term: Binary, reader: StepDraft | None) -> Shape:
        names = {name for name, _ in term.others}
        if names == {"~"}:
            return TEXT
        if not names & {"+", "~"}:
            return _of_kinds("number")
        shapes = [self.shape_of_term(term.first, reader)]
        shapes += [self.shape_of_term(each, reader) for _, each in term.others]
        kinds = {each.kinds() for each in shapes}
        if names != {"+"} or None in kinds:
            return ANYTHING
        if kinds == {_TEXT_KIND}:
            return TEXT
        if kinds == {_LIST_KIND}:
            return _list_of(self._any_of([each.items() for each in shapes]))
        return _of_kinds("number") if kinds <= _NUMBER_KINDS else ANYTHING

    def _of_default(self, term: DefaultFilter, reader: StepDraft | None) -> Shape:
        base = self.shape_of_term(term.base, reader)
        if isinstance(term.also_empty, Literal) and term.also_empty.literal:
            base = base.without_null()
        return self._any_of([base, self.shape_of_term(term.other, reader)])

    def _of_filter(self, term: FilterTerm, reader: StepDraft | None) -> Shape:
        """The shape of what a filter gives, where that of its value says it."""
        if term.is_test:
            return _of_kinds("boolean")
        if (types := term.built_in) is None:
            return ANYTHING
        base = self.shape_of_term(term.base, reader)
        kinds, path = base.kinds(), member_path(term)
        if kinds == _LIST_KIND:
            if term.name in ("first", "last", "min", "max"):
                return base.items()
            if term.name in KEEPING_ITEMS:
                drops_null = _drops_null(term)
                return _list_of(base.items().without_null()) if drops_null else _as_list(base)
            if term.name == "flatten" and base.items().kinds() == _LIST_KIND:
                return _list_of(base.items().items())
            if term.name == "map" and path:
                return _list_of(base.items().at(path))
        if term.name in ("first", "last", "reverse") and kinds == _TEXT_KIND:
            return TEXT
        is_letters = term.name == "list" and kinds == _TEXT_KIND
        if is_letters or term.name in ("split", "lines", "keys"):
            return _list_of(TEXT)
        if term.name == "items":
            return _list_of(_of_kinds("array"))
        if (applied := applied_filter(term)) is not None and applied.gives is not None:
            return _list_of(_of_kinds(applied.gives))
        return _of_kinds(types.gives) if types.gives is not None else ANYTHING

    def item(self, step: StepDraft | None) -> KnownShape | None:
        """The shape of one item of the step's loop."""
        node = step.section.node("loop") if step is not None else None
        use = (
            next((use for use in step.outer_templates if use.node is node), None) if step else None
        )
        if step is None or node is None:
            return None
        if use is None or use.term is None:
            # A list that is written there.
            shape, place = Shape.of(shape_of_values(node)), node.place
        elif isinstance(use.term, Path):
            found = self.known(use.term.reference)
            if found is None:
                return None
            shape, place = found.shape, found.place
        else:
            shape, place = self.shape_of_term(use.term), node.place
        return KnownShape(shape=shape.items(), place=place)

    def _of_loop(self, key: PathPart | None, reader: StepDraft | None) -> KnownShape | None:
        """The shape of a member of `loop` in a step."""
        if key == "item":
            return self.item(reader)
        if reader is None or not (reader.has_while or reader.has_loop):
            return None
        if key == "index":
            return KnownShape(shape=_of_kinds("integer"), place=reader.place)
        if not reader.has_while or key not in ("last", "attempts"):
            return None
        output = reader.output if reader.attempt_output is None else reader.attempt_output
        attempt = Shape(output, output)
        whole = self._any_of([attempt, _of_kinds("null")]) if key == "last" else _list_of(attempt)
        return KnownShape(shape=whole, place=reader.place)

    def _input(self, name: str) -> KnownShape | None:
        spec, inputs = self._inputs.get(name), self._section.mapping("inputs")
        entry = inputs.find(name) if inputs is not None else None
        if spec is None or entry is None:
            return None
        return KnownShape(shape=Shape(spec.schema, spec.schema), place=entry.key_node.place)

    def known_output(self) -> JsonSchema:
        """What is known of the run's output, as JSON Schema; {}: nothing."""
        node = self._section.node("output")
        uses = {id(use.node): use for use in self._draft.output_templates}
        if node is None:
            return self._last_output()
        if isinstance(node, ScalarNode) and (whole := uses.get(id(node))) is not None:
            shape = self.shape_of(whole)
            return shape.root if shape.node is shape.root else self._movable(shape)

        def schema_of(part: ScalarNode) -> JsonSchema:
            use = uses.get(id(part))
            return self._movable(self.shape_of(use)) if use is not None else {}

        return shape_of_values(node, schema_of)

    def _last_output(self) -> JsonSchema:
        """That of the last completed step, where it is certain which one that is."""
        steps = self._draft.steps
        is_in_order = self._draft.mode is ExecutionMode.SEQUENTIAL and not self._draft.has_graph
        if not steps or not (is_in_order or len(steps) == 1):
            return {}
        last = steps[-1]
        may_be_another = last.condition is not None or any(
            last.section.plain(key) not in (None, False, "fail") for key in ("optional", "on_error")
        )
        return {} if may_be_another else last.output

    # --- what `set` copies -------------------------------------------------------------------

    def _see_through(self, step: StepDraft) -> None:
        uses = {id(use.node): use for use in step.templates}
        values = step.section.mapping("set")
        if not uses or values is None:
            return

        def schema_of(node: ScalarNode) -> JsonSchema:
            use = uses.get(id(node))
            return self._movable(self.shape_of(use, step)) if use is not None else {}

        copied = shape_of_values(values, schema_of)
        if step.has_loop:
            step.output = _with_items(step.output, copied)
            return
        step.output = copied
        self._movable_roots[id(step.output)] = (
            step.output,
            True,
        )  # its parts are self-contained, so it is too

    def _movable(self, shape: Shape) -> JsonSchema:
        """The schema in a self-contained form: without references to what is around it."""
        key, node = id(shape.root), shape.node
        if key not in self._movable_roots:
            self._movable_roots[key] = (shape.root, not _has_references(shape.root))
        if not isinstance(node, Mapping):
            return {}
        if self._movable_roots[key][1] or not _has_references(node):
            return node
        whole = _Inliner(shape.root).inlined(node, ())
        return whole if isinstance(whole, Mapping) else {}


_LIST_KIND: Final = frozenset({"array"})
_TEXT_KIND: Final = frozenset({"string"})
_NUMBER_KINDS: Final = {
    frozenset(each) for each in ({"integer"}, {"number"}, {"integer", "number"})
}
KEEPING_ITEMS: Final = frozenset(
    ("list", "reject", "rejectattr", "reverse", "select", "selectattr", "sort", "unique")
)
_BY_ATTRIBUTE: Final = frozenset({"selectattr", "rejectattr"})
"""Filters whose first argument is the name of a member of each item."""


def member_path(term: FilterTerm | Subscript) -> tuple[str | int, ...]:
    """The constant path that is read: by a filter of lists in each item, or in the value before
    the brackets; (): none, or a computed one.
    """
    if isinstance(term, Subscript):
        key = term.key.literal if isinstance(term.key, Literal) else None
        return (key,) if isinstance(key, str | int) and not isinstance(key, bool) else ()
    named = dict(term.keywords).get("attribute")
    if named is None and term.name in _BY_ATTRIBUTE and term.arguments:
        named = term.arguments[0]
    name = named.literal if isinstance(named, Literal) else None
    return tuple(name.split(".")) if isinstance(name, str) else ()


def applied_filter(term: FilterTerm) -> Filter | None:
    """The filter that `map` applies to each item, if it names one."""
    named = [*term.arguments[:1], *(each for key, each in term.keywords if key == "filter")]
    name = named[0].literal if named and isinstance(named[0], Literal) else None
    from minions.recipe.expressions.filters import FILTER_TYPES

    return FILTER_TYPES.get(name) if term.name == "map" and isinstance(name, str) else None


def _drops_null(term: FilterTerm) -> bool:
    """Whether a `select` or `reject` leaves no null."""
    tests = [each.literal for each in term.arguments[:1] if isinstance(each, Literal)]
    if term.name == "reject":
        return bool(tests) and tests[0] in ("none", "null")
    return term.name == "select" and (not term.arguments or tests[0] in _TESTS_OF_A_TYPE)


_TESTS_OF_A_TYPE: Final = ("mapping", "sequence", "string", "number", "integer", "float", "boolean")


def _as_list(base: Shape) -> Shape:
    """A list of the items of that list, in any number and order."""
    return _list_of(base.items()) if base.kinds() == _LIST_KIND else ANYTHING


def _list_of(items: Shape) -> Shape:
    return Shape({"type": "array", "items": items.node}, items.root)


def _with_items(output: JsonSchema, item: JsonSchema) -> JsonSchema:
    """The output of a loop, with what is now known of each of its items."""
    if output.get("type") == "array":
        known = output.get("items")
        has_gaps = isinstance(known, Mapping) and "anyOf" in known
        return {**output, "items": {"anyOf": [item, {"type": "null"}]} if has_gaps else item}
    members = output.get("properties")
    results = members.get("results") if isinstance(members, Mapping) else None
    if not isinstance(results, Mapping) or not isinstance(members, Mapping):
        return output
    return {**output, "properties": {**members, "results": _with_items(results, item)}}


def _of_kinds(*kinds: str) -> Shape:
    return Shape.of({"type": sorted(set(kinds))}) if kinds else ANYTHING


def _has_references(schema: JsonValue) -> bool:
    pending = [schema]
    seen: set[int] = set()  # recipes within recipes repeat one schema many times over
    while pending:
        node = pending.pop()
        if id(node) in seen:
            continue
        if isinstance(node, Mapping):
            if "$ref" in node or "$dynamicRef" in node:
                return True
            pending.extend(node.values())
        elif isinstance(node, list | tuple):
            pending.extend(node)
        else:
            continue
        seen.add(id(node))
    return False


class _Inliner:
    """Puts what references point to in their places; a recursive or very large part is unknown."""

    def __init__(self, root: JsonSchema) -> None:
        self._root = root
        self._parts = 0

    def inlined(self, node: JsonValue, trail: tuple[str, ...]) -> JsonValue:
        """The part without references.

        Args:
            trail: The references that led to it.
        """
        self._parts += 1
        if self._parts > _MOST_PARTS:
            return {}
        if is_list(node):
            return [self.inlined(each, trail) for each in node]
        if not isinstance(node, Mapping):
            return node
        if "$dynamicRef" in node:
            return {}
        reference = node.get("$ref")
        if not isinstance(reference, str):
            return {
                name: self.inlined(each, trail)
                for name, each in node.items()
                if name not in ("$defs", "definitions")
            }
        if reference in trail:
            return {}
        target = Shape(node, self._root).followed()
        return self.inlined(target, (*trail, reference)) if target is not None else {}


_MOST_PARTS: Final = 2_000


def _place(step: StepDraft) -> Place:
    """Where the step declares its output."""
    for name in ("output", "output_format", "set", "returns"):
        if (entry := step.section.entries.get(name)) is not None:
            return entry.key_node.place
    return step.place


# --- which text a template takes over from what it reads -----------------------------------------


_WITHOUT_TEXT: Final = frozenset({"integer", "number", "boolean", "null"})
_DEEPEST: Final = 20


def carried_references(value: JsonValue, compiled: Templates) -> Iterator[Reference]:
    """The references of all templates in `value` whose text ends up in the rendered value.

    Args:
        compiled: Compiles the texts of the recipe.
    """
    try:
        terms = compiled.compile(value).terms()
    except TemplateError:  # reported where the recipe was read
        return
    for term in terms:
        yield from carried_by(term)


def carried_by(term: Term) -> Iterator[Reference]:
    """The references of one expression whose text ends up in its value."""
    if isinstance(term, Path):
        yield term.reference
    elif isinstance(term, Comparison | Not | DefinedTest) or (
        isinstance(term, FilterTerm) and _gives_no_text(term)
    ):
        return
    else:
        parts = (term.yes, term.no) if isinstance(term, Choice) else term.parts()
        for part in parts:
            yield from carried_by(part)


def _gives_no_text(term: FilterTerm) -> bool:
    if (types := term.built_in) is not None:
        return types.gives in _WITHOUT_TEXT
    return term.is_test


def may_hold_text(schema: JsonValue, depth: int = 0) -> bool:
    """Whether a value of that schema may hold text other than what the schema lists."""
    if not isinstance(schema, Mapping) or depth > _DEEPEST:
        return True
    if "enum" in schema or "const" in schema:
        return False
    kind = schema.get("type")
    kinds = set(kind) if isinstance(kind, list | tuple) else {kind}
    if not kinds <= _WITHOUT_TEXT | {"array", "object"}:
        return True
    if "array" in kinds and (
        "prefixItems" in schema or may_hold_text(schema.get("items"), depth + 1)
    ):
        return True
    return "object" in kinds and _has_open_member(
        schema, lambda each: may_hold_text(each, depth + 1)
    )


MOST_ENDORSED_NUMBERS: Final = 1_000_000
"""Values of an integer that is a closed answer."""


def is_closed(schema: JsonValue, depth: int = 0) -> bool:
    """Whether a value of that schema is one of few that the schema lists: a truth value, null, one
    of listed values, an integer between two bounds; or an object of these.
    """
    if not isinstance(schema, Mapping) or depth > _DEEPEST:
        return False
    if "enum" in schema or "const" in schema:
        return True
    if isinstance(parts := schema.get("anyOf"), list | tuple):
        return bool(parts) and all(is_closed(each, depth + 1) for each in parts)
    kind = schema.get("type")
    kinds = set(kind) if isinstance(kind, list | tuple) else {kind}
    if not kinds <= {"boolean", "null", "integer", "object"}:
        return False
    if "integer" in kinds and not _is_bounded(schema):
        return False
    return "object" not in kinds or not _has_open_member(
        schema, lambda each: not is_closed(each, depth + 1)
    )


def _is_bounded(schema: Mapping[str, JsonValue]) -> bool:
    low, high = schema.get("minimum"), schema.get("maximum")
    if not isinstance(low, int | float) or not isinstance(high, int | float):
        return False
    return high - low < MOST_ENDORSED_NUMBERS


def _has_open_member(schema: Mapping[str, JsonValue], is_open: Callable[[JsonValue], bool]) -> bool:
    members = schema.get("properties")
    if schema.get("additionalProperties") is not False or "patternProperties" in schema:
        return True
    known = members.values() if isinstance(members, Mapping) else ()
    return any(map(is_open, known))

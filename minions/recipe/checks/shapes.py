"""What a schema tells about a value beforehand: which paths can exist and which types they can
have.

Only certainties count: where a schema says little, everything is possible.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from msgspec import Struct

from minions.data.json_values import JsonValue
from minions.data.schema import JsonSchema
from minions.recipe.expressions.values import PathPart, is_list

_OPEN_KEYWORDS: Final = ("allOf", "if", "not", "$dynamicRef", "patternProperties")
_CHOICES: Final = ("anyOf", "oneOf")
_FOLLOWED: Final = frozenset((*_OPEN_KEYWORDS, *_CHOICES, "$ref"))
_STRUCTURE: Final = frozenset({"type", "properties", "items", "prefixItems", "enum", "const"})
_MOST_ALTERNATIVES: Final = 60
_LEAVES = frozenset({"string", "number", "integer", "boolean", "null"})
_NAMES: Final = {
    "array": "a list",
    "object": "a mapping",
    "string": "text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "null": "null",
}
_MOST_LEVELS: Final = 20
_MOST_NAMES: Final = 6
_LIST: Final = frozenset({"array"})
_NULL: Final = frozenset({"null"})
_NUMBERED: Final = "whose items have numbers"
_A_LIST: Final = f"it is a list, {_NUMBERED}"


class DeadEnd(Struct, frozen=True, kw_only=True):
    """The place where a path leaves what the schema allows."""

    depth: int
    """Number of parts of the path that exist."""
    reason: str
    names: tuple[str, ...] = ()
    """The keys that exist at that place."""


class Gap(Struct, frozen=True, kw_only=True):
    """The place on a path where there may be no value, or null."""

    depth: int
    """Number of parts of the path that lead to it."""
    is_null: bool
    """Whether null may stand there; else there may be nothing."""
    is_told: bool = True
    """Whether the schema says so; else it says of none of its members that it is required."""


class Mismatch(Struct, frozen=True, kw_only=True):
    """Why no value of one schema can be a value of another."""

    path: tuple[str, ...]
    """The place inside the value; () is the whole value."""
    given: str
    """The type of the value at that place, such as "text"."""
    wanted: str


class Shape(Struct, frozen=True):
    """A part of a schema, together with the whole schema that its references point into."""

    node: JsonValue
    root: JsonSchema

    @classmethod
    def of(cls, schema: JsonSchema) -> Shape:
        """The shape of a whole schema."""
        return cls(schema, schema)

    def at(self, path: tuple[PathPart, ...]) -> Shape:
        """The shape of what the path leads to; any value where it is not known."""
        nodes: list[JsonValue] = [self.node]
        for part in path:
            alternatives = _alternatives(nodes, self.root)
            if alternatives is None:
                return ANYTHING
            steps = (_step(node, part) for node in _without_null(alternatives))
            nodes = [step for step in steps if not isinstance(step, str)]
            if not nodes:
                return ANYTHING
        return Shape(nodes[0] if len(nodes) == 1 else {"anyOf": nodes}, self.root)

    def followed(self) -> JsonValue:
        """The part itself, where it refers to another; None: there is no such part."""
        return _followed(self.node, self.root)

    def kinds(self) -> frozenset[str] | None:
        """The JSON types that the value can have; None: any."""
        alternatives = _alternatives([self.node], self.root, is_whole=True)
        if not alternatives:
            return None
        known = [_kinds(node) for node in alternatives]
        return None if None in known else frozenset[str]().union(*filter(None, known))

    def choices(self) -> tuple[JsonValue, ...] | None:
        """The values of which it is one; None: it may be another."""
        node = _followed(self.node, self.root)
        values = node.get("enum") if isinstance(node, Mapping) else None
        return tuple(values) if is_list(values) else None

    def without_null(self) -> Shape:
        """The shape of the value where it is not null."""
        kinds = self.kinds()
        if kinds is None or "null" not in kinds or kinds == _NULL:
            return self
        nodes = [
            {**node, "type": sorted(rest)} if (rest := (_kinds(node) or _NULL) - _NULL) else None
            for node in _alternatives([self.node], self.root, is_whole=True) or ()
        ]
        known = [node for node in nodes if node is not None]
        return Shape(known[0] if len(known) == 1 else {"anyOf": known}, self.root)

    def items(self) -> Shape:
        """The shape of each item, if the value is a list."""
        alternatives = _alternatives([self.node], self.root)
        lists = [node for node in alternatives or () if (_kinds(node) or _LIST) >= _LIST]
        nodes: list[JsonValue] = []
        for node in lists:
            first = node.get("prefixItems", ())
            rest = node.get("items", {})
            wanted = [*(first if is_list(first) else ()), *([rest] if rest is not False else [])]
            nodes += [each for each in wanted if each not in nodes]
            if len(nodes) > _MOST_ALTERNATIVES:
                return ANYTHING
        if not nodes:
            return ANYTHING
        return Shape(nodes[0] if len(nodes) == 1 else {"anyOf": nodes}, self.root)

    def names(self) -> tuple[str, ...]:
        """The keys that the value is known to have."""
        return _names_of(_alternatives([self.node], self.root) or ())

    def open_names(self) -> tuple[str, ...]:
        """The keys that it names, if it does not forbid others nor says that there may be some."""
        nodes = _alternatives([self.node], self.root) or ()
        says = any(node.get("additionalProperties", False) is not False for node in nodes)
        return () if says or any("properties" not in node for node in nodes) else _names_of(nodes)

    def in_words(self) -> str:
        """The type for messages: "a list of {path, size}"."""
        if names := self.names():
            more = ", …" if len(names) > _MOST_NAMES else ""
            return f"{{{', '.join(names[:_MOST_NAMES])}{more}}}"
        kinds = self.kinds()
        if kinds != _LIST:
            return kind_names(kinds) if kinds is not None else "any value"
        items = self.items()
        return f"a list of {items.in_words()}" if items.kinds() not in (None, _LIST) else "a list"

    def mismatch(self, wanted: Shape) -> Mismatch | None:
        """Why no value of this shape can be of the `wanted` one; None where one might."""
        return _mismatch(self, wanted, ())


ANYTHING: Final = Shape({}, {})


def kind_names(kinds: frozenset[str]) -> str:
    """The types in words for messages: "text or null"."""
    return " or ".join(name for kind, name in _NAMES.items() if kind in kinds)


def find_dead_end(shape: Shape, path: tuple[PathPart, ...]) -> DeadEnd | None:
    """The first part of `path` that can never exist in a value of that
    shape; None: all parts may exist.
    """
    nodes: list[JsonValue] = [shape.node]
    for depth, part in enumerate(path):
        alternatives = _alternatives(nodes, shape.root)
        if alternatives is None:
            return None
        alternatives = _without_null(alternatives)
        steps = [_step(node, part) for node in alternatives]
        nodes = [step for step in steps if not isinstance(step, str)]
        if not nodes:
            here = Shape({"anyOf": list(alternatives)}, shape.root)
            reasons = dict.fromkeys(step for step in steps if isinstance(step, str))
            reason = ", or ".join(reasons)
            if _A_LIST in reasons:
                reason = reason.replace(_A_LIST, f"it is {here.in_words()}, {_NUMBERED}")
            return DeadEnd(
                depth=depth,
                reason=reason,
                names=here.names(),
            )
    return None


def find_unchecked(shape: Shape, path: tuple[PathPart, ...]) -> int | None:
    """How many parts of `path` lead to a value of which the next one may or may not exist; None:
    all parts are known.
    """
    nodes: list[JsonValue] = [shape.node]
    for depth, part in enumerate(path):
        alternatives = _alternatives(nodes, shape.root)
        if alternatives is None:
            return depth
        alternatives = _without_null(alternatives)
        if not all(_is_told(node, part) for node in alternatives):
            return depth
        nodes = [step for node in alternatives if not isinstance(step := _step(node, part), str)]
    return None


def find_gaps(shape: Shape, path: tuple[PathPart, ...]) -> Iterator[Gap]:
    """Where a value of that shape may have nothing on the way, or null, as its schema says."""
    nodes: list[JsonValue] = [shape.node]
    for depth, part in enumerate(path):
        alternatives = _alternatives(nodes, shape.root)
        if alternatives is None:
            return
        if any("null" in (_kinds(node) or ()) for node in alternatives):
            yield Gap(depth=depth, is_null=True)
        alternatives = _without_null(alternatives)
        steps = [_step(node, part) for node in alternatives]
        nodes = [step for step in steps if not isinstance(step, str)]
        if not nodes:
            return
        if _index(part) is None and not all(_is_required(node, part) for node in alternatives):
            is_told = len(nodes) < len(steps) or any("required" in node for node in alternatives)
            yield Gap(depth=depth + 1, is_null=False, is_told=is_told)


def _is_required(node: Mapping[str, JsonValue], part: PathPart) -> bool:
    """Whether the member exists in each value, or the schema does not name it."""
    properties, required = node.get("properties"), node.get("required", ())
    if isinstance(properties, Mapping) and part in properties:
        return is_list(required) and part in required
    return not isinstance(_step(node, part), str)


def _is_told(node: Mapping[str, JsonValue], part: PathPart) -> bool:
    """Whether the schema says something about that member."""
    kinds = _kinds(node)
    if kinds is None or not kinds - _LEAVES:
        return kinds is not None
    if "object" not in kinds:
        return True
    properties, others = node.get("properties"), node.get("additionalProperties", True)
    is_named = isinstance(properties, Mapping) and str(part) in properties
    return is_named or others not in (True, {})


def _alternatives(
    nodes: list[JsonValue], root: JsonSchema, *, is_whole: bool = False
) -> tuple[Mapping[str, JsonValue], ...] | None:
    """The schemas of which one holds, with references followed; None: everything is possible.

    Args:
        is_whole: Only the types of the value are wanted, not what is in it.
    """
    if len(nodes) == 1 and isinstance(nodes[0], Mapping) and _FOLLOWED.isdisjoint(nodes[0]):
        return (nodes[0],)  # the usual case
    pending, found = list(nodes), list[Mapping[str, JsonValue]]()
    for _ in range(_MOST_ALTERNATIVES):
        if not pending:
            return tuple(found)
        node = _followed(pending.pop(0), root)
        if not isinstance(node, Mapping):
            return None
        if not is_whole and any(key in node for key in _OPEN_KEYWORDS):
            return None
        choice = next((node[key] for key in _CHOICES if key in node), None)
        if choice is None or not _STRUCTURE.isdisjoint(node):
            found.append(node)  # what stands beside a choice holds whatever is chosen
        elif is_list(choice):
            pending.extend(choice)
        else:
            return None
    return None


def _without_null(
    nodes: tuple[Mapping[str, JsonValue], ...],
) -> tuple[Mapping[str, JsonValue], ...]:
    """Those that may have members, where there are such: a value may be missing."""
    return tuple(node for node in nodes if _kinds(node) != _NULL) or nodes


def _names_of(nodes: tuple[Mapping[str, JsonValue], ...]) -> tuple[str, ...]:
    known = (node.get("properties") for node in nodes)
    return tuple(
        dict.fromkeys(name for each in known if isinstance(each, Mapping) for name in each)
    )


def _followed(node: JsonValue, root: JsonSchema) -> JsonValue:
    """The target of local references; a chain that is too long counts as unknown."""
    for _ in range(_MOST_LEVELS):
        reference = node.get("$ref") if isinstance(node, Mapping) else None
        if not isinstance(reference, str):
            return node
        node = root
        for part in reference.removeprefix("#").strip("/").split("/"):
            if part:
                node = node.get(part) if isinstance(node, Mapping) else None
    return None


def _step(node: Mapping[str, JsonValue], part: PathPart) -> JsonValue:
    """The schema of that member, or a text that says why there is none."""
    kinds = _kinds(node)
    if kinds is not None and kinds <= _LEAVES:
        return f"it is {kind_names(kinds)}, which has no members"
    holders = set() if kinds is None else set(kinds - _LEAVES)
    if holders == {"array"}:
        return _item(node, part)
    if holders == {"object"}:
        return _member(node, part)
    if _index(part) is None and "properties" in node and node.get("additionalProperties") is False:
        return _member(node, part)  # a name is no member of a list
    return {}


def _index(part: PathPart) -> int | None:
    if isinstance(part, int):
        return part
    return int(part) if part.isascii() and part.isdigit() else None


def _item(node: Mapping[str, JsonValue], part: PathPart) -> JsonValue:
    index = _index(part)
    if index is None:
        return _A_LIST
    first = node.get("prefixItems", ())
    count = len(first) if is_list(first) else 0
    if 0 <= index < count and is_list(first):
        return first[index]
    if node.get("items") is False and not -count <= index < count:
        return f"it has {count} item{'' if count == 1 else 's'}"
    return node.get("items", {}) if not count or index >= 0 else {}


def _member(node: Mapping[str, JsonValue], part: PathPart) -> JsonValue:
    properties = node.get("properties")
    if isinstance(properties, Mapping) and str(part) in properties:
        return properties[str(part)]
    others = node.get("additionalProperties", {})
    return f"it has no '{part!s:.60}'" if others is False else others


def _kinds(node: Mapping[str, JsonValue]) -> frozenset[str] | None:
    kind = node.get("type")
    if isinstance(kind, str):
        return frozenset((kind,))
    if is_list(kind):
        return frozenset(map(str, kind))
    if "const" in node:
        return frozenset((kind_of(node["const"]),))
    choices = node.get("enum")
    return frozenset(map(kind_of, choices)) if is_list(choices) else None


def kind_of(value: JsonValue) -> str:
    """The narrowest JSON type of the value."""
    if isinstance(value, Mapping):
        return "object"
    if value is None or is_list(value):
        return "null" if value is None else "array"
    names = {bool: "boolean", int: "integer", float: "number", str: "string"}
    return names[type(value)]


def _mismatch(given: Shape, wanted: Shape, path: tuple[str, ...]) -> Mismatch | None:
    kinds, others = given.kinds(), wanted.kinds()
    if kinds is None or others is None or len(path) > _MOST_LEVELS:
        return None
    # A number may be whole, so neither type excludes the other.
    if not (_widen(kinds) & _widen(others)):
        return Mismatch(path=path, given=kind_names(kinds), wanted=kind_names(others))
    if kinds == others == {"object"}:
        return _mismatch_inside(given, wanted, path)
    return None


def _widen(kinds: frozenset[str]) -> frozenset[str]:
    return kinds | {"number"} if "integer" in kinds else kinds


def _mismatch_inside(given: Shape, wanted: Shape, path: tuple[str, ...]) -> Mismatch | None:
    """The first mismatch of members that are always present."""
    one, other = _followed(given.node, given.root), _followed(wanted.node, wanted.root)
    if not isinstance(one, Mapping) or not isinstance(other, Mapping):
        return None
    sure, known = one.get("required", ()), other.get("properties", {})
    for name in sure if is_list(sure) else ():
        if isinstance(name, str) and isinstance(known, Mapping) and name in known:
            inner = Shape(known[name], wanted.root)
            found = _mismatch(given.at((name,)), inner, (*path, name))
            if found is not None:
                return found
    return None


# --- whether one type is within another ----------------------------------------------------------


class Excess(Struct, frozen=True, kw_only=True):
    """Why a value of one schema may be none of another."""

    path: tuple[str, ...]
    """The place inside the value, `[]` for the items of a list; () is the whole value."""
    reason: str
    is_more_fields: bool = False
    """Whether the value has fields that the other schema does not name: readers pass them over."""
    is_unclear: bool = False
    """Whether the schemas say it in a way that cannot be compared."""


_LEAST: Final = (("minimum", 1), ("exclusiveMinimum", 1), ("minLength", 1), ("minItems", 1))
_MOST: Final = (("maximum", -1), ("exclusiveMaximum", -1), ("maxLength", -1), ("maxItems", -1))
_EXACT: Final = ("pattern", "format", "multipleOf", "uniqueItems", "minProperties", "maxProperties")
_ALL_KINDS: Final = frozenset(_NAMES) - {"integer"}


def excesses(given: Shape, taken: Shape, path: tuple[str, ...] = ()) -> list[Excess]:
    """All reasons why a value of `given` may be none of `taken`; none where each value is one."""
    one, other = _followed(given.node, given.root), _followed(taken.node, taken.root)
    if one == other and given.root == taken.root:
        return []
    if other is True or other == {}:
        return []
    if not isinstance(one, Mapping) or not isinstance(other, Mapping) or len(path) > _MOST_LEVELS:
        return [Excess(path=path, reason="the schemas are of different forms", is_unclear=True)]
    parts = {key: (one.get(key), other.get(key)) for key in (*_OPEN_KEYWORDS, *_CHOICES)}
    if any(left != right for left, right in parts.values()):
        words = ", ".join(key for key, (left, right) in parts.items() if left != right)
        return [Excess(path=path, reason=f"{words} changed", is_unclear=True)]
    if (wrong := _excess_of_kind(given, taken, path)) is not None:
        return [wrong]
    found = [Excess(path=path, reason=reason) for reason in _tighter(one, other)]
    kinds = given.kinds()
    if kinds is None or "object" in kinds:
        found += _excess_of_fields(given, taken, path)
    if "array" in (kinds or _ALL_KINDS) and "items" in other:
        found += excesses(given.items(), taken.items(), (*path, "[]"))
    return found


def _excess_of_kind(given: Shape, taken: Shape, path: tuple[str, ...]) -> Excess | None:
    kinds, others = given.kinds(), taken.kinds()
    if others is not None:
        wide = others | {"integer"} if "number" in others else others
        more = (kinds if kinds is not None else _ALL_KINDS) - wide
        if more:
            words = f"it may be {kind_names(frozenset(more))}, and has to be {kind_names(others)}"
            return Excess(path=path, reason=words)
    values, allowed = _values_of(given), _values_of(taken)
    if allowed is None:
        return None
    if values is None:
        return Excess(path=path, reason="it may be any value, and has to be one of a few")
    extra = [each for each in values if each not in allowed]
    words = ", ".join(repr(each) for each in extra[:5])
    return Excess(path=path, reason=f"it may be {words}") if extra else None


def _values_of(shape: Shape) -> tuple[JsonValue, ...] | None:
    node = _followed(shape.node, shape.root)
    if isinstance(node, Mapping) and "const" in node:
        return (node["const"],)
    return shape.choices()


def _tighter(given: Mapping[str, JsonValue], taken: Mapping[str, JsonValue]) -> list[str]:
    """Bounds that the second schema has and the first one does not keep to."""
    reasons = []
    for name, sign in (*_LEAST, *_MOST):
        bound, own = taken.get(name), given.get(name)
        if not isinstance(bound, int | float) or isinstance(bound, bool):
            continue
        is_kept = isinstance(own, int | float) and sign * own >= sign * bound
        if not is_kept:
            now = "none" if own is None else own
            reasons.append(f"its {name} is {now}, and has to be {bound}")
    reasons += [
        f"its {name} has to be {taken[name]!r:.60}"
        for name in _EXACT
        if name in taken and taken[name] not in (False, given.get(name))
    ]
    return reasons


def _excess_of_fields(given: Shape, taken: Shape, path: tuple[str, ...]) -> list[Excess]:
    one, other = _followed(given.node, given.root), _followed(taken.node, taken.root)
    assert isinstance(one, Mapping) and isinstance(other, Mapping)  # noqa: S101, PT018  # looked before
    sure, needed = _required(one), _required(other)
    found = [
        Excess(path=(*path, name), reason="it may be missing")
        for name in needed
        if name not in sure
    ]
    known, wanted = given.names(), taken.names()
    for name in known:
        if name in wanted:
            found += excesses(given.at((name,)), taken.at((name,)), (*path, name))
        elif other.get("additionalProperties") is False:
            found.append(
                Excess(path=(*path, name), reason="it is a field more", is_more_fields=True)
            )
    is_open = one.get("additionalProperties", True) is not False and bool(known or wanted)
    if is_open and other.get("additionalProperties") is False:
        found.append(Excess(path=path, reason="it may have further fields", is_more_fields=True))
    return found


def _required(node: Mapping[str, JsonValue]) -> tuple[str, ...]:
    names = node.get("required", ())
    return tuple(each for each in names if isinstance(each, str)) if is_list(names) else ()

"""Python types for the values of JSON Schemas: classes of `TypedDict`, and hints that name them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from attrs import field, frozen

from minions.analysis.stubs.names import class_name, doc_text, is_field_name, unique
from minions.data.json_values import JsonValue
from minions.data.schema import JsonSchema

ANY_JSON: Final = "JsonValue"
"""The hint for a value of which nothing is known."""
_LEAVES: Final[Mapping[str, str]] = {
    "string": "str",
    "integer": "int",
    "number": "float",
    "boolean": "bool",
    "null": "None",
}
_MOST_LEVELS: Final = 40
"""Levels of a schema; deeper values are any JSON."""
_MOST_CLASSES: Final = 1_000
_MOST_PARTS: Final = 20_000
"""Parts of all schemas together: what recipes within recipes give may repeat one many times over.
"""
_LONGEST_UNION: Final = 200
"""Members of a union or of an enumeration."""


@frozen(kw_only=True)
class TypeField:
    """A member of an object."""

    name: str
    hint: str
    is_required: bool
    doc: str = ""
    """One line on its meaning; empty: none."""


@frozen(kw_only=True)
class TypedClass:
    """A class of `TypedDict`."""

    name: str
    fields: tuple[TypeField, ...]
    doc: str = ""

    def lines(self) -> Iterator[str]:
        """The class as Python text."""
        if all(is_field_name(each.name) for each in self.fields):
            yield f"class {self.name}(TypedDict):"
            yield f'    """{self.doc or "A JSON object."}"""'
            yield ""
            for each in self.fields:
                yield f"    {each.name}: {_of_field(each)}"
                if each.doc:
                    yield f'    """{each.doc}"""'
            return
        yield f"{self.name} = TypedDict("
        yield f'    "{self.name}",'
        yield "    {"
        for each in self.fields:
            yield f"        {each.name!r}: {_of_field(each)!r},"
        yield "    },"
        yield ")"
        yield f'"""{self.doc or "A JSON object, some of whose keys are no names in Python."}"""'


def _of_field(each: TypeField) -> str:
    return each.hint if each.is_required else f"NotRequired[{each.hint}]"


@frozen
class SchemaTypes:
    """Collects the classes that hints need. Names are unique, and the same for the same schemas."""

    classes: dict[str, TypedClass] = field(factory=dict)
    """By name, in the order in which they were needed first."""
    _taken: set[str] = field(factory=set)
    referred: dict[tuple[int, str], tuple[str, ...]] = field(factory=dict)
    """What references lead to, by their whole schema: it may contain itself."""
    _numbers: Iterator[int] = field(factory=itertools.count)
    """Numbers the parts that are read."""

    def reserve(self, *names: str) -> None:
        """Keep names from being given to classes."""
        self._taken.update(names)

    def hint(self, schema: JsonSchema, name: str, *, is_input: bool = False) -> str:
        """The hint for values of the schema.

        Args:
            name: What they are, for names of classes.
            is_input: Whether callers give them: lists may then be any sequence.
        """
        return _joined(_Reader(self, schema, is_input=is_input).parts(schema, name, 0))

    def add(self, name: str, fields: Sequence[TypeField], doc: str = "") -> None:
        """Add a class under a name that was reserved or made for it."""
        self.classes[name] = TypedClass(name=name, fields=tuple(fields), doc=doc)

    def is_full(self) -> bool:
        """Whether so many parts were read that the others are any JSON; counts one more."""
        return next(self._numbers) >= _MOST_PARTS

    def new_name(self, words: str) -> str:
        """A name that no other class has."""
        name = unique(class_name(words), self._taken)
        self._taken.add(name)
        return name


@frozen
class _Reader:
    """Reads one whole schema, into which its references point. Hints are the members of a union."""

    types: SchemaTypes
    root: JsonSchema
    is_input: bool = field(kw_only=True)

    def parts(self, node: JsonValue, name: str, level: int) -> tuple[str, ...]:
        """The hint for a part of the schema."""
        if not isinstance(node, Mapping) or level > _MOST_LEVELS or self.types.is_full():
            return (ANY_JSON,)
        if "$ref" in node:
            return self._referred(node["$ref"], name, level)
        if "const" in node:
            return _literals([node["const"]])
        if isinstance(choices := node.get("enum"), list | tuple):
            return _literals(choices)
        for key in ("anyOf", "oneOf"):
            if isinstance(sides := node.get(key), list | tuple):
                return self._any_of(sides, name, level)
        return self._of_kinds(node, name, level)

    def _any_of(self, sides: Sequence[JsonValue], name: str, level: int) -> tuple[str, ...]:
        if len(sides) > _LONGEST_UNION:
            return (ANY_JSON,)
        return tuple(part for side in sides for part in self.parts(side, name, level + 1))

    def _of_kinds(self, node: Mapping[str, JsonValue], name: str, level: int) -> tuple[str, ...]:
        kind = node.get("type")
        if kind is None and "properties" in node:
            kind = "object"
        kinds = [kind] if isinstance(kind, str) else kind
        if not isinstance(kinds, list | tuple):
            return (ANY_JSON,)
        return tuple(self._of_kind(str(each), node, name, level) for each in kinds)

    def _of_kind(self, kind: str, node: Mapping[str, JsonValue], name: str, level: int) -> str:
        if kind == "array":
            return self._list(node, name, level)
        if kind == "object":
            return self._object(node, name, level)
        return _LEAVES.get(kind, ANY_JSON)

    def _list(self, node: Mapping[str, JsonValue], name: str, level: int) -> str:
        first = node.get("prefixItems")
        sides = list(first) if isinstance(first, list | tuple) else []
        rest = node.get("items", {})
        sides += [rest] if rest is not False else []
        item = _joined(self._any_of(sides, f"{name} item", level))
        return f"Sequence[{item}]" if self.is_input else f"list[{item}]"

    def _object(self, node: Mapping[str, JsonValue], name: str, level: int) -> str:
        properties = node.get("properties")
        if isinstance(properties, Mapping) and properties:
            if len(self.types.classes) < _MOST_CLASSES:
                return self._class(node, properties, self.types.new_name(name), level)
            node = {}
        others = node.get("additionalProperties", {})
        value = _joined(self.parts(others, f"{name} value", level + 1))
        return f"Mapping[str, {value}]" if self.is_input else f"dict[str, {value}]"

    def _class(
        self,
        node: Mapping[str, JsonValue],
        properties: Mapping[str, JsonValue],
        name: str,
        level: int,
    ) -> str:
        required = node.get("required")
        sure = required if isinstance(required, list | tuple) else ()
        fields = [
            TypeField(
                name=key,
                hint=_joined(self.parts(value, f"{name} {key}", level + 1)),
                is_required=key in sure,
                doc=_doc(value),
            )
            for key, value in properties.items()
        ]
        self.types.add(name, fields, _doc(node))
        return name

    def _referred(self, reference: JsonValue, name: str, level: int) -> tuple[str, ...]:
        """The hint of what a local reference leads to; a class that contains itself by its name."""
        known, key = self.types.referred, (id(self.root), str(reference))
        if key in known:
            return known[key]
        target = _target(reference, self.root)
        properties = target.get("properties") if isinstance(target, Mapping) else None
        if isinstance(target, Mapping) and isinstance(properties, Mapping) and properties:
            made = self.types.new_name(str(reference).rpartition("/")[2] or name)
            known[key] = (made,)
            self._class(target, properties, made, level)
            return known[key]
        known[key] = (ANY_JSON,)  # while it is read: what contains itself without a class
        known[key] = self.parts(target, name, level + 1)
        return known[key]


def _target(reference: JsonValue, root: JsonSchema) -> JsonValue:
    """What a reference within the schema leads to; None: nothing."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        return None
    node: JsonValue = root
    for part in reference.removeprefix("#").strip("/").split("/"):
        name = part.replace("~1", "/").replace("~0", "~")
        if name:
            node = node.get(name) if isinstance(node, Mapping) else None
    return node


def _literals(values: Sequence[JsonValue]) -> tuple[str, ...]:
    """The values that a hint can say; for any other the type."""
    if len(values) > _LONGEST_UNION or any(isinstance(each, Mapping | list) for each in values):
        return (ANY_JSON,)
    plain = [repr(each) for each in values if isinstance(each, str | int)]
    return (
        *([f"Literal[{', '.join(dict.fromkeys(plain))}]"] if plain else []),
        *(["float"] if any(isinstance(each, float) for each in values) else []),
        *(["None"] if None in values else []),
    )


def _joined(parts: Sequence[str]) -> str:
    """The members as one hint, each once; any JSON takes all others in."""
    found = dict.fromkeys(parts)
    if not found or ANY_JSON in found:
        return ANY_JSON
    others = [part for part in found if part != "None"]
    return " | ".join([*others, *(["None"] if "None" in found else [])])


def _doc(node: JsonValue) -> str:
    text = node.get("description") if isinstance(node, Mapping) else None
    return doc_text(text) if isinstance(text, str) else ""

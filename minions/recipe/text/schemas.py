"""JSON Schemas in a recipe, in full or in short form, and their faults with places."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from minions.data.errors import Fault, SchemaError
from minions.data.json_values import JsonValue
from minions.data.schema import JsonSchema, check_schema
from minions.recipe.expressions.values import nearest
from minions.recipe.text.nodes import MappingNode, Node, Place, ScalarNode, SequenceNode, to_plain
from minions.recipe.text.sections import (
    DESCRIBING_STARTS,
    DESCRIBING_WORDS,
    SCHEMA_WORDS,
    TYPE_NAMES,
    TYPE_WORDS,
    Report,
    enum_hint,
    suggestion,
    type_hint,
    type_of,
)

TYPES: Final = ("string", "number", "integer", "boolean", "object", "array", "null")
_MOST_VALUES: Final = 100
"""Values of a choice in short form."""
_LONGEST_VALUE: Final = 80
"""Characters of each."""

_OF_SCHEMAS: Final = frozenset(
    """
    items contains additionalProperties unevaluatedItems unevaluatedProperties
    propertyNames not if then else contentSchema
    """.split()  # noqa: SIM905  # fifty quotes would hide the words
)
_OF_NAMED_SCHEMAS: Final = frozenset(
    ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
)
_OF_SCHEMA_LISTS: Final = frozenset(("anyOf", "oneOf", "allOf", "prefixItems"))
_OF_PARTS: Final = ("items", "properties", "patternProperties", "additionalProperties")
"""Keywords with a mapping that tell a full schema from the short form even when misspelt."""
_PLAIN: Final = frozenset(
    """
    $ref $schema $id $anchor $comment $dynamicRef $dynamicAnchor $vocabulary type
    enum const default description title examples deprecated readOnly writeOnly
    format pattern multipleOf minimum maximum exclusiveMinimum exclusiveMaximum
    minLength maxLength minItems maxItems uniqueItems minContains maxContains
    minProperties maxProperties required dependentRequired contentEncoding
    contentMediaType
    """.split()  # noqa: SIM905  # fifty quotes would hide the words
)
KEYWORDS: Final = _OF_SCHEMAS | _OF_NAMED_SCHEMAS | _OF_SCHEMA_LISTS | _PLAIN
"""The keywords of JSON Schema."""
_TELLING: Final = frozenset(
    """
    properties items $ref anyOf oneOf allOf enum const $defs additionalProperties
    """.split()  # noqa: SIM905  # fifty quotes would hide the words
)
"""Keywords of which each makes a mapping a full schema, whatever else is in it."""


def read_output_schema(node: MappingNode, report: Report) -> JsonSchema | None:
    """A full schema, or the short form `{title: string, tags: [string]}` of an object with just
    these keys.

    Returns:
        None if a fault was reported.
    """
    if _is_in_full(node):
        return read_schema(node, report)
    return _from_short(node, report)


def schema_of_example(value: JsonValue) -> JsonSchema:
    """The schema of values like `{done: false, names: [""], note: ""}`: the same keys and
    types.

    Items of an empty list and a null may be of any type.
    """
    if isinstance(value, Mapping):
        properties = {name: schema_of_example(item) for name, item in value.items()}
        if not properties:
            return {"type": "object"}
        return {
            "type": "object",
            "properties": properties,
            "required": list(properties),
            "additionalProperties": False,
        }
    if isinstance(value, list | tuple):
        return (
            {"type": "array", "items": schema_of_example(value[0])} if value else {"type": "array"}
        )
    names = {bool: "boolean", int: "number", float: "number", str: "string"}
    name = names.get(type(value))
    return {"type": name} if name is not None else {}


def _nothing_known(_: ScalarNode) -> JsonSchema:
    return {}


def shape_of_values(
    node: Node, of_template: Callable[[ScalarNode], JsonSchema] = _nothing_known
) -> JsonSchema:
    """What is known of a written value: its keys, items and types.

    Args:
        of_template: The schema of a text with templates in it.
    """
    if isinstance(node, MappingNode):
        properties = {
            entry.key: shape_of_values(entry.value, of_template) for entry in node.entries
        }
        return {
            "type": "object",
            "properties": properties,
            "required": list(properties),
            "additionalProperties": False,
        }
    if isinstance(node, SequenceNode):
        items = [shape_of_values(item, of_template) for item in node.items]
        return {"type": "array", "prefixItems": items, "items": False}
    if isinstance(node.value, str) and "{{" in node.value:
        return of_template(node)
    names = {bool: "boolean", int: "integer", float: "number", str: "string"}
    return {"type": names.get(type(node.value), "null")}


def read_schema(node: MappingNode, report: Report) -> JsonSchema | None:
    """A full schema.

    Returns:
        None if a fault was reported.
    """
    faults: list[Fault] = []
    _walk(node, faults.append)
    for fault in faults:
        report(fault)
    if not all(fault.is_warning for fault in faults):
        return None
    schema = {entry.key: to_plain(entry.value) for entry in node.entries}
    if faults:
        schema = _without_foreign(schema)
    if not _is_simple(schema):  # the full check takes a millisecond
        try:
            check_schema(schema)
        except SchemaError as error:
            report(_schema_fault(node, error))
            return None
    return schema


def _without_foreign(schema: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """The schema without the keywords of other tools that only describe."""
    kept: dict[str, JsonValue] = {}
    for key, value in schema.items():
        if key in DESCRIBING_WORDS or key.startswith(DESCRIBING_STARTS):
            continue
        if key in _OF_SCHEMAS and isinstance(value, Mapping):
            kept[key] = _without_foreign(value)
        elif key in _OF_NAMED_SCHEMAS and isinstance(value, Mapping):
            kept[key] = {name: _schema_or_value(each) for name, each in value.items()}
        elif key in _OF_SCHEMA_LISTS and isinstance(value, list | tuple):
            kept[key] = [_schema_or_value(each) for each in value]
        else:
            kept[key] = value
    return kept


def _schema_or_value(value: JsonValue) -> JsonValue:
    return _without_foreign(value) if isinstance(value, Mapping) else value


def _is_in_full(node: MappingNode) -> bool:
    keys = {entry.key for entry in node.entries}
    properties = node.find("properties")
    if properties is not None and isinstance(properties.value, MappingNode):
        return True
    if not keys <= KEYWORDS:
        return _has_misspelt_keyword(node)
    kind = node.find("type")
    if kind is not None and _says_types(kind.value):
        return True
    return not keys.isdisjoint(_TELLING)


def _has_misspelt_keyword(node: MappingNode) -> bool:
    """Whether it is a full schema with a keyword such as `propertis:`, not a field of that name."""
    kind = node.find("type")
    if kind is None or to_plain(kind.value) not in ("object", "array"):
        return False
    return any(
        nearest(entry.key, _OF_PARTS) is not None
        for entry in node.entries
        if entry.key not in KEYWORDS and isinstance(entry.value, MappingNode)
    )


def _says_types(node: Node) -> bool:
    """Whether it is the value of a `type` keyword: one type or several; a list of one is a
    field named `type` in the short form.
    """
    if isinstance(node, ScalarNode):
        return node.value in TYPES
    return (
        isinstance(node, SequenceNode)
        and len(node.items) > 1
        and all(isinstance(item, ScalarNode) for item in node.items)
    )


def _from_short(node: MappingNode, report: Report) -> JsonSchema | None:
    properties: dict[str, JsonSchema | None] = {}
    required: list[str] = []
    for entry in node.entries:
        name, value = entry.key.removesuffix("?"), entry.value
        is_optional = name != entry.key
        if isinstance(value, ScalarNode) and isinstance(value.value, str):
            text = value.value.removesuffix("?")
            is_optional = is_optional or text != value.value
            properties[name] = _type_of_text(value, text, report)
        else:
            properties[name] = _short_type(value, report)
        if not is_optional:
            required.append(name)
    if None in properties.values():
        return None
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


def short_type(node: SequenceNode | ScalarNode, report: Report) -> JsonSchema | None:
    """The schema of a type in short form: `string`, `integer | null`, `0..10`, `bug | feature`, or
    `[string]` for a list and `[bug, feature]` for a choice.

    Returns:
        None if a fault was reported.
    """
    return _short_type(node, report)


def _short_type(node: Node, report: Report) -> JsonSchema | None:
    if isinstance(node, MappingNode):
        return read_output_schema(node, report)
    if isinstance(node, SequenceNode):
        if len(node.items) == 1:
            items = _short_type(node.items[0], report)
            return None if items is None else {"type": "array", "items": items}
        return _of_list(node, report)
    if node.value in TYPES:
        return {"type": node.value}
    if isinstance(node.value, str):
        return _type_of_text(node, node.value, report)
    report(_unknown_type(node))
    return None


def _of_list(node: SequenceNode, report: Report) -> JsonSchema | None:
    """Several types, of which the value has one, or the values of which it is one."""
    values = [to_plain(item) for item in node.items]
    if not all(isinstance(item, ScalarNode) for item in node.items) or not values:
        message = "a list type holds the one type of its items, or the values of a choice"
        report(node.place.fault("bad-schema", message, help="such as [string], or [bug, feature]"))
        return None
    words = [each for each in values if isinstance(each, str)]
    if len(words) == len(values) and any(_type_named(each) for each in words):
        return _one_of(node, words, report)
    return _choice(node, values, report)


def _type_of_text(node: ScalarNode, text: str, report: Report) -> JsonSchema | None:
    """The schema of a type that is written as a text, without what says that it may be left out."""
    inner = text.strip()
    if inner.startswith("(") and inner.endswith(")"):
        inner = inner[1:-1].strip()
    if inner.endswith("[]"):
        items = _type_of_text(node, inner.removesuffix("[]"), report)
        return None if items is None else {"type": "array", "items": items}
    words = [word.strip() for word in inner.split("|")]
    if len(words) > 1 and all(words):
        return _one_of(node, words, report)
    if (found := _range(inner) or _type_named(inner)) is not None:
        return found
    report(_unknown_type(node))
    return None


def _one_of(node: Node, words: Sequence[str], report: Report) -> JsonSchema | None:
    """Types of which the value has one, or words of which it is one, and perhaps null."""
    bare = [word.strip("'\"") for word in words]
    types = [_range(word) or _type_named(word) for word in words]
    known = [each for each in types if each is not None]
    others = [word for word, each in zip(bare, types, strict=True) if each is None]
    is_nullable = {"type": "null"} in known
    if not others:
        return _unite_types(node, known, report)
    near = {each: nearest(each, TYPES) for each in others}
    if len(known) == is_nullable and not any(near.values()):
        return _choice(node, [*others, *([None] if is_nullable else [])], report)
    for word in others:
        label = f"did you mean '{near[word]}'?" if near[word] else suggestion(word, TYPES)
        fault = node.place.fault(
            "bad-schema",
            f"'{word:.40}' is no type, and stands among types",
            label=label,
            help="a choice of values has no type among them but null; in full: {enum: [a, b]}",
        )
        report(fault)
    return None


def _unite_types(node: Node, types: Sequence[JsonSchema], report: Report) -> JsonSchema | None:
    names = [str(each["type"]) for each in types]
    bounds = [each for each in types if len(each) > 1]
    if len(bounds) > 1 or len(set(names)) < len(names):
        message = "one type stands twice, or two have bounds"
        report(node.place.fault("bad-schema", message, help="write the schema in full: anyOf"))
        return None
    return {**(bounds[0] if bounds else {}), "type": names}


def _choice(node: Node, values: Sequence[JsonValue], report: Report) -> JsonSchema | None:
    if len(values) > _MOST_VALUES or any(
        isinstance(each, bool) or len(str(each)) > _LONGEST_VALUE for each in values
    ):
        message = "these are no values of a choice"
        report(node.place.fault("bad-schema", message, label=enum_hint(list(values))))
        return None
    twice = next((each for each in values if list(values).count(each) > 1), None)
    if twice is not None:
        report(node.place.fault("bad-schema", f"the choice has '{twice}' twice"))
        return None
    return {"enum": list(values)}


def _type_named(word: str) -> JsonSchema | None:
    name = word if word in TYPES else TYPE_NAMES.get(word.casefold())
    return None if name is None else {"type": name}


_RANGE: Final = re.compile(r"(-?\d+(?:\.\d+)?)?\.\.(-?\d+(?:\.\d+)?)?")


def _range(text: str) -> JsonSchema | None:
    """`0..10` is a whole number, `0.0..1.0` a number, within these bounds; `1..` has one."""
    found = _RANGE.fullmatch(text)
    if found is None or not any(found.groups()):
        return None
    is_whole = not any("." in each for each in found.groups() if each is not None)
    least, most = (None if each is None else _number(each) for each in found.groups())
    if least is not None and most is not None and least > most:
        return None
    schema: dict[str, JsonValue] = {"type": "integer" if is_whole else "number"}
    if least is not None:
        schema["minimum"] = least
    if most is not None:
        schema["maximum"] = most
    return schema


def _number(text: str) -> int | float:
    return float(text) if "." in text else int(text)


def _unknown_type(node: ScalarNode) -> Fault:
    text = node.value if isinstance(node.value, str) else None
    if text is not None and text.casefold() in TYPE_WORDS:
        return node.place.fault(
            "bad-schema", f"unknown type '{text}'", label=TYPE_WORDS[text.casefold()]
        )
    if text is not None and (hint := type_hint(text)) is not None:
        more = ". A field that may be left out needs the schema in full, with `required`"
        return node.place.fault(
            "bad-schema", f"unknown type '{text:.40}'", label=hint + (more * text.endswith("?"))
        )
    return node.place.fault(
        "bad-schema",
        f"unknown type '{text:.40}'" if text else f"a type is text, but this is {type_of(node)}",
        label=suggestion(text, TYPES) if text else None,
        help='write "null" in quotes' if node.value is None else f"types are: {', '.join(TYPES)}",
    )


def _check_quoted(node: Node, report: Report) -> None:
    most = node.value if isinstance(node, ScalarNode) else None
    if not isinstance(most, int) or isinstance(most, bool) or most < 1:
        report(
            node.place.fault(
                "bad-schema", "'x-quoted' is how many words of the text a value has at most, from 1"
            )
        )


def _walk(node: Node, report: Report, *, is_whole: bool = True) -> None:
    """Report unknown keywords and types, each at its own place."""
    if isinstance(node, ScalarNode) and isinstance(node.value, bool):
        return
    if not isinstance(node, MappingNode):
        report(
            node.place.fault("bad-schema", f"a schema is a mapping, but this is {type_of(node)}")
        )
        return
    for entry in node.entries:
        if entry.key in DESCRIBING_WORDS or entry.key.startswith(DESCRIBING_STARTS):
            report(
                entry.key_node.place.fault(
                    "bad-schema",
                    f"'{entry.key}' is not a keyword of JSON Schema, and only describes",
                    help="it is left out: a model does not see it",
                    is_warning=True,
                )
            )
        elif entry.key not in KEYWORDS and not entry.key.startswith("x-"):
            report(
                entry.key_node.place.fault(
                    "bad-schema",
                    f"'{entry.key}' is not a keyword of JSON Schema",
                    label=SCHEMA_WORDS.get(entry.key)
                    or suggestion(entry.key, tuple(sorted(KEYWORDS))),
                    help="fields of an object stand under 'properties'",
                )
            )
        elif entry.key == "x-quoted":
            _check_quoted(entry.value, report)
        elif entry.key == "type":
            _check_types(entry.value, report)
        elif entry.key == "format":
            _check_format(entry.value, report)
        for inner in _schemas_in(entry.key, entry.value):
            _walk(inner, report, is_whole=entry.key in _OF_WHOLE_VALUES)
    if is_whole:
        _check_required(node, report)


_OF_WHOLE_VALUES: Final = frozenset(
    ("items", "contains", "additionalProperties", "properties", "patternProperties", "prefixItems")
) | {"$defs", "definitions"}
"""Keywords whose schemas describe a value of their own, not one more rule for the same value."""
_COMBINED: Final = ("$ref", "$dynamicRef", "allOf", "anyOf", "oneOf", "if", "patternProperties")
FORMATS: Final = tuple(
    """
    path date-time date time duration email idn-email hostname idn-hostname ipv4 ipv6 uri
    uri-reference iri iri-reference uuid uri-template json-pointer relative-json-pointer regex
    int32 int64 float double byte binary password
    """.split()  # noqa: SIM905  # thirty quotes would hide the words
)
"""`path`, which Minions reads; the formats of JSON Schema and OpenAPI, which only describe."""


def _check_format(node: Node, report: Report) -> None:
    name = node.value if isinstance(node, ScalarNode) else None
    if not isinstance(name, str) or name in FORMATS or not node.source.lines:
        return  # plain data may be the recipe of a stored run, which has to load as it did
    report(
        node.place.fault(
            "bad-schema",
            f"unknown format '{name:.60}'",
            label=suggestion(name, FORMATS),
            help=f"formats are: {', '.join(FORMATS)}; say any other in the description",
        )
    )


def _check_required(node: MappingNode, report: Report) -> None:
    """Report names in `required` that no value has a property for."""
    listed, declared = node.find("required"), node.find("properties")
    if listed is None or declared is None or not node.source.lines:
        return
    properties = declared.value
    if not isinstance(listed.value, SequenceNode) or not isinstance(properties, MappingNode):
        return
    names = tuple(entry.key for entry in properties.entries)
    others = node.find("additionalProperties")
    takes_others = others is not None and to_plain(others.value) is not False
    takes_others = takes_others or any(node.find(key) is not None for key in _COMBINED)
    for item in listed.value.items:
        name = item.value if isinstance(item, ScalarNode) else None
        if not isinstance(name, str) or name in names:
            continue
        near = suggestion(name, tuple(each for each in names))
        if near is not None or not takes_others:
            report(
                item.place.fault(
                    "bad-schema",
                    f"'{name:.60}' is required, but it is no property",
                    label=near,
                    help=f"properties are: {', '.join(names) or 'none'}",
                )
            )


def _check_types(node: Node, report: Report) -> None:
    for item in node.items if isinstance(node, SequenceNode) else (node,):
        if not isinstance(item, ScalarNode):
            report(item.place.fault("bad-schema", f"a type is text, but this is {type_of(item)}"))
        elif item.value not in TYPES:
            report(_unknown_type(item))


def _schemas_in(keyword: str, node: Node) -> Iterable[Node]:
    if keyword in _OF_SCHEMAS:
        return (node,)
    if keyword in _OF_NAMED_SCHEMAS and isinstance(node, MappingNode):
        return [entry.value for entry in node.entries]
    if keyword in _OF_SCHEMA_LISTS and isinstance(node, SequenceNode):
        return node.items
    return ()


def _is_simple(schema: JsonValue) -> bool:
    """Whether nothing in the schema can be faulty any more, so
    that the full check is not needed.
    """
    if not isinstance(schema, dict):
        return False
    return all(_is_simple_keyword(key, value) for key, value in schema.items())


def _is_simple_keyword(key: str, value: JsonValue) -> bool:
    if key == "type":
        return isinstance(value, str)
    if key in ("description", "title", "format"):
        return isinstance(value, str)
    if key == "properties":
        return isinstance(value, dict) and all(map(_is_simple, value.values()))
    if key == "items":
        return _is_simple(value)
    if key == "required":
        return isinstance(value, list) and all(isinstance(name, str) for name in value)
    if key == "additionalProperties":
        return isinstance(value, bool)
    return key == "default"


def _schema_fault(node: MappingNode, error: SchemaError) -> Fault:
    path, _, message = error.message.partition(": ")
    return _deepest(node, path).fault("bad-schema", message or error.message)


def _deepest(node: MappingNode, path: str) -> Place:
    """The place of the deepest key on a JSON path such as `$.a.b[0]`."""
    place = node.place
    current: Node = node
    for part in path.removeprefix("$").replace("[", ".[").split(".")[1:]:
        if isinstance(current, MappingNode) and (entry := current.find(part)) is not None:
            place, current = entry.key_node.place, entry.value
        elif isinstance(current, SequenceNode) and part.strip("[]").isdigit():
            current = current.items[min(int(part.strip("[]")), len(current.items) - 1)]
            place = current.place
        else:
            break
    return place

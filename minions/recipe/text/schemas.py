"""JSON Schemas in a recipe, in full or in short form, and their faults with places."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from minions.data.errors import Fault, SchemaError
from minions.data.json_values import JsonValue
from minions.data.schema import JsonSchema, check_schema
from minions.recipe.expressions.values import nearest
from minions.recipe.text.foreign_words import SCHEMA_WORDS, TYPE_WORDS, enum_hint, type_hint
from minions.recipe.text.nodes import MappingNode, Node, Place, ScalarNode, SequenceNode, to_plain
from minions.recipe.text.sections import Report, suggestion, type_of

TYPES: Final = ("string", "number", "integer", "boolean", "object", "array", "null")

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
    if faults:
        return None
    schema = {entry.key: to_plain(entry.value) for entry in node.entries}
    if not _is_simple(schema):  # the full check takes a millisecond
        try:
            check_schema(schema)
        except SchemaError as error:
            report(_schema_fault(node, error))
            return None
    return schema


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
    properties = {entry.key: _short_type(entry.value, report) for entry in node.entries}
    if None in properties.values():
        return None
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def short_type(node: SequenceNode | ScalarNode, report: Report) -> JsonSchema | None:
    """The schema of a type in short form: `string`, or `[string]` for a list.

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
        message = "a list type holds the one type of its items, such as [string]"
        values = [to_plain(item) for item in node.items]
        report(node.place.fault("bad-schema", message, label=_values_hint(values)))
        return None
    if node.value in TYPES:
        return {"type": node.value}
    report(_unknown_type(node))
    return None


def _values_hint(values: list[JsonValue]) -> str | None:
    """What to write for a list of types, or of allowed values; None: it is neither."""
    texts = [each for each in values if isinstance(each, str)]
    if values and all(each in TYPES or each in TYPE_WORDS for each in texts):
        return type_hint(" | ".join(texts)) if len(texts) == len(values) else enum_hint(values)
    return enum_hint(values)


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
        if entry.key not in KEYWORDS and not entry.key.startswith("x-"):
            report(
                entry.key_node.place.fault(
                    "bad-schema",
                    f"'{entry.key}' is not a keyword of JSON Schema",
                    label=SCHEMA_WORDS.get(entry.key)
                    or suggestion(entry.key, tuple(sorted(KEYWORDS))),
                    help="fields of an object stand under 'properties'",
                )
            )
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

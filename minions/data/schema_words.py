"""A JSON Schema as a compact list of fields: what a model reads in place of the schema.

The list says all that the schema says, in about half of its tokens, and small models follow it
better than a schema.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from attrs import frozen

from minions.data.field_repr import FieldsRepr
from minions.data.json_values import JsonValue, dumps
from minions.data.schema import JsonSchema

_DEFINITIONS: Final = ("$defs", "definitions")
_SILENT: Final = frozenset(
    ("$schema", "$id", "$comment", "title", "deprecated", "readOnly", "writeOnly", *_DEFINITIONS)
)
"""Keywords that say nothing about a value."""
_SHAPES: Final = frozenset(
    ("type", "properties", "required", "additionalProperties", "items", "description")
)
"""Keywords of the list itself; any other one is a note in parentheses if its value is plain."""
_CHOICES: Final = ("$ref", "enum", "const", "anyOf", "oneOf")
_ANY: Final = "any"


def schema_words(schema: JsonSchema) -> str:
    """The form of a value: `{"name": string, "age"?: integer (minimum 0), "tags": [string]}`.

    A question mark means that the field may be left out. Definitions follow, a line each:
    `Address = {"street": string}`. What the notation has no words for stands as JSON Schema in
    its place.
    """
    lines = [_form(schema)]
    for keyword in _DEFINITIONS:
        named = schema.get(keyword)
        for name, each in named.items() if isinstance(named, Mapping) else ():
            lines.append(f"{name} = {_form(each)}")
    return "\n".join(lines)


def _form(schema: JsonValue) -> str:
    if not isinstance(schema, Mapping):
        return "nothing" if schema is False else _ANY
    node = _Node({key: each for key, each in schema.items() if key not in _SILENT})
    form = node.form()
    if form is None:
        return f"(fits JSON Schema {dumps(node.schema)})"
    notes = ", ".join(node.notes())
    return f"{form} ({notes})" if notes else form


@frozen
class _Node(FieldsRepr):
    """One schema, without what says nothing."""

    schema: JsonSchema

    def form(self) -> str | None:
        """The type in words; None: there are none."""
        if not self._is_plain():
            return None
        choices = [key for key in _CHOICES if key in self.schema]
        if not choices:
            return self._type_words()
        said = {"description", "type"} if choices[0] in ("enum", "const") else {"description"}
        is_alone = len(choices) == 1 and not (_SHAPES - said) & set(self.schema)
        return self._choice_words(choices[0]) if is_alone else None

    def notes(self) -> Iterator[str]:
        """The description, and limits of the value."""
        if text := self.schema.get("description"):
            yield " ".join(str(text).split())
        for key, value in self.schema.items():
            if key == "x-quoted":
                yield f"words of the text, at most {dumps(value)}"
            elif key not in _SHAPES and key not in _CHOICES:
                yield f"{key} {value if isinstance(value, str) else dumps(value)}"

    def _is_plain(self) -> bool:
        """Whether all keywords without words of their own have plain values."""
        return not any(
            isinstance(value, Mapping | list | tuple)
            for key, value in self.schema.items()
            if key not in _SHAPES and key not in _CHOICES and key not in ("default", "examples")
        )

    def _choice_words(self, keyword: str) -> str | None:
        value = self.schema[keyword]
        if keyword == "const":
            return dumps(value)
        if keyword == "$ref":
            start, _, name = str(value).rpartition("/")
            return name if start in ("#/$defs", "#/definitions") else None
        if not isinstance(value, list | tuple) or not value:
            return None
        return " | ".join(dumps(each) if keyword == "enum" else _form(each) for each in value)

    def _type_words(self) -> str | None:
        kinds = self.schema.get("type")
        if kinds is None:
            kinds = "object" if "properties" in self.schema else _ANY
        several = kinds if isinstance(kinds, list | tuple) else (kinds,)
        forms = [self._of_type(str(kind)) for kind in several]
        return None if None in forms else " | ".join(each for each in forms if each is not None)

    def _of_type(self, kind: str) -> str | None:
        if kind == "array":
            items = self.schema.get("items", True)
            return None if isinstance(items, list | tuple) else f"[{_form(items)}]"
        return self._object() if kind == "object" else kind

    def _object(self) -> str | None:
        properties, more = self.schema.get("properties"), self.schema.get("additionalProperties")
        required = self.schema.get("required") or ()
        if not isinstance(properties, Mapping | None) or not isinstance(required, list | tuple):
            return None
        own = properties or {}
        if not set(map(str, required)) <= set(own):
            return None
        fields = [
            f"{dumps(name)}{'' if name in required else '?'}: {_form(each)}"
            for name, each in own.items()
        ]
        if isinstance(more, Mapping) or (not own and more is not False):
            fields.append(f"any name: {_form(more)}" if isinstance(more, Mapping) else "…")
        return f"{{{', '.join(fields)}}}"

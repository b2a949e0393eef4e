"""Parts of an object: which of its top-level fields are right, and the schema of the others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from attrs import frozen

from minions.contracts.instructions import OutputInstructions
from minions.data.field_repr import FieldsRepr
from minions.data.json_values import JsonValue
from minions.data.schema import JsonSchema, SchemaValidator

_SHARED: Final = ("$defs", "definitions", "$schema", "$id")
_MOST_GROUPS: Final = 3
_MOST_REFERENCES: Final = 8
"""References that lead from one to the next."""
_FEWEST_FIELDS: Final = 3
"""Fields from which on an object is worth being asked for in groups."""


@frozen(kw_only=True)
class ObjectParts(FieldsRepr):
    """The top-level fields of the object that a step declares."""

    schema: JsonSchema
    properties: Mapping[str, JsonValue]
    name: str

    @classmethod
    def of(cls, instructions: OutputInstructions[object]) -> ObjectParts | None:
        """The fields of a declared object; None: something else is declared, or no fields."""
        schema = instructions.json_schema()
        properties = schema.get("properties")
        if not isinstance(properties, Mapping) or schema.get("type", "object") != "object":
            return None
        return cls(schema=schema, properties=properties, name=instructions.name)

    def right_fields(self, value: JsonValue) -> dict[str, JsonValue]:
        """The declared fields of the value that fit their schema; empty where it is no object."""
        if not isinstance(value, Mapping):
            return {}
        return {
            name: value[name]
            for name in self.properties
            if name in value and not self._errors(name, value[name])
        }

    def wrong_fields(self, value: Mapping[str, JsonValue]) -> tuple[str, ...]:
        """Fields that are missing although they have to be there, or do not fit."""
        required = self.schema.get("required")
        needed = required if isinstance(required, list | tuple) else ()
        right = self.right_fields(value)
        return tuple(
            name
            for name in self.properties
            if name not in right and (name in value or name in needed)
        )

    def only(self, names: Iterable[str]) -> OutputInstructions[object]:
        """The instructions for an object of these fields alone."""
        return self.only_with({name: self.properties[name] for name in names})

    def only_with(self, chosen: Mapping[str, JsonValue]) -> OutputInstructions[object]:
        """The instructions for an object of fields with these schemas."""
        shared = {key: self.schema[key] for key in _SHARED if key in self.schema}
        schema: dict[str, JsonValue] = {
            **shared,
            "type": "object",
            "properties": dict(chosen),
            "required": list(chosen),
            "additionalProperties": False,
        }
        return OutputInstructions(schema=schema, name=self.name)

    def instructions_of(self, name: str) -> OutputInstructions[object] | None:
        """The instructions for the object that a field holds; None: it is not declared as one."""
        schema = self.properties.get(name)
        for _ in range(_MOST_REFERENCES):
            reference = schema.get("$ref") if isinstance(schema, Mapping) else None
            if not isinstance(reference, str):
                break
            place, _, key = reference.rpartition("/")
            known = self.schema.get(place.removeprefix("#/"))
            schema = known.get(key) if isinstance(known, Mapping) else None
        if not isinstance(schema, Mapping) or schema.get("type") != "object":
            return None
        shared = {key: self.schema[key] for key in _SHARED if key in self.schema}
        return OutputInstructions(schema={**shared, **schema}, name=self.name)

    def groups(self) -> Sequence[tuple[str, ...]]:
        """The fields in at most three groups; empty where there are too few of them."""
        names = tuple(self.properties)
        if len(names) < _FEWEST_FIELDS:
            return ()
        size = -(-len(names) // _MOST_GROUPS)
        return tuple(names[at : at + size] for at in range(0, len(names), size))

    def merged(self, *values: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
        """The object of several parts, in the order of its schema; later parts win."""
        found = {name: item for value in values for name, item in value.items()}
        return {name: found[name] for name in self.properties if name in found}

    def _errors(self, name: str, item: JsonValue) -> Sequence[str]:
        field: dict[str, JsonValue] = {
            **{key: self.schema[key] for key in _SHARED if key in self.schema},
            "properties": {name: self.properties[name]},
        }
        return SchemaValidator(field).errors({name: item})

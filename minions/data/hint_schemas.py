"""JSON Schemas of attrs classes and type hints."""

from __future__ import annotations

import collections.abc
import dataclasses
import datetime
import enum
import inspect
import pathlib
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Final

import attrs

from minions.data.errors import SchemaError
from minions.data.json_values import JsonValue

_PLAIN: Final[Mapping[object, Mapping[str, JsonValue]]] = {
    str: {"type": "string"},
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    type(None): {"type": "null"},
    bytes: {"type": "string", "contentEncoding": "base64"},
    datetime.datetime: {"type": "string", "format": "date-time"},
    datetime.date: {"type": "string", "format": "date"},
    pathlib.Path: {"type": "string"},
    object: {},
    typing.Any: {},
}


def schema_of(hint: object) -> dict[str, JsonValue]:
    """The JSON Schema (2020-12) of a type hint or attrs class.

    Fields of attrs classes and dataclasses become properties, and no others are allowed. A field
    without a default is required; `metadata={"description": …}` describes it, `metadata={"schema":
    {…}}` replaces its schema. Nested classes go to `$defs`, so that they may be recursive.

    Raises:
        SchemaError: JSON cannot express the hint; the message names it.
    """
    definitions = _Definitions()
    schema = _of(hint, definitions)
    if (name := _sole_reference(schema)) is not None:
        body = typing.cast("dict[str, JsonValue]", definitions[name])
        if f"#/$defs/{name}" not in str(definitions):
            del definitions[name]
        schema = dict(body)
    if definitions:
        schema["$defs"] = dict(definitions)
    return schema


class _Definitions(dict[str, JsonValue]):
    """The `$defs` that are being built, with the class that each name stands for."""

    def __init__(self) -> None:
        super().__init__()
        self.classes: dict[str, type[object]] = {}


def _sole_reference(schema: Mapping[str, JsonValue]) -> str | None:
    reference = schema.get("$ref")
    return reference.removeprefix("#/$defs/") if isinstance(reference, str) else None


def _of(hint: object, definitions: _Definitions) -> dict[str, JsonValue]:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    # Only plain hints are looked up: `Annotated[int, {…}]` and what holds it cannot be hashed.
    if origin is None and hint in _PLAIN:
        return dict(_PLAIN[hint])
    if isinstance(hint, typing.TypeVar | str | typing.ForwardRef):
        return {}  # recursive aliases such as JsonValue: any JSON
    if origin is typing.Annotated:
        return _annotated(arguments, definitions)
    if origin is typing.Literal:
        return {"enum": [item.value if isinstance(item, enum.Enum) else item for item in arguments]}
    if origin in (typing.Union, types.UnionType):
        return _union(arguments, definitions)
    container = _container(origin or hint, arguments, definitions)
    if container is not None:
        return container
    if isinstance(hint, type) and (found := _of_class(hint, definitions)) is not None:
        return found
    raise SchemaError(
        f"No JSON Schema for the type {hint!r}. Use str, int, float, bool, list, dict, Literal, "
        "Enum, a union of these, an attrs class, a dataclass or a Pydantic model."
    )


def _of_class(hint: type[object], definitions: _Definitions) -> dict[str, JsonValue] | None:
    if issubclass(hint, enum.Enum):
        return {"enum": [item.value for item in hint]}
    if attrs.has(hint) or dataclasses.is_dataclass(hint):
        return _object(hint, definitions)
    if is_pydantic_model(hint):
        return _pydantic(typing.cast("_PydanticClass", hint), definitions)
    return _typed_dict(hint, definitions) if typing.is_typeddict(hint) else None


def _annotated(arguments: tuple[object, ...], definitions: _Definitions) -> dict[str, JsonValue]:
    """`Annotated[int, "text"]` adds a description, `Annotated[int,
    {"minimum": 1}]` adds keywords.
    """
    schema = _of(arguments[0], definitions)
    for extra in arguments[1:]:
        if isinstance(extra, str):
            schema["description"] = extra
        elif isinstance(extra, Mapping):
            schema.update(extra)
    return schema


def _union(arguments: tuple[object, ...], definitions: _Definitions) -> dict[str, JsonValue]:
    options = [_of(argument, definitions) for argument in arguments]
    if {} in options:
        return {}
    kinds = [option["type"] for option in options if set(option) == {"type"}]
    if len(kinds) == len(options):
        return {"type": kinds}
    return {"anyOf": options}


_SEQUENCES: Final = (
    list,
    tuple,
    set,
    frozenset,
    collections.abc.Sequence,
    collections.abc.Iterable,
)
_MAPPINGS: Final = (dict, collections.abc.Mapping, collections.abc.MutableMapping)


def _container(
    origin: object, arguments: tuple[object, ...], definitions: _Definitions
) -> dict[str, JsonValue] | None:
    if origin in _MAPPINGS:
        values = _of(arguments[1], definitions) if len(arguments) == 2 else {}
        return {"type": "object", "additionalProperties": values} if values else {"type": "object"}
    if origin not in _SEQUENCES:
        return None
    if origin is tuple and arguments and arguments[-1] is not Ellipsis:
        items: list[JsonValue] = [_of(argument, definitions) for argument in arguments]
        return {"type": "array", "prefixItems": items, "minItems": len(items), "items": False}
    item = _of(arguments[0], definitions) if arguments else {}
    schema: dict[str, JsonValue] = {"type": "array"}
    if item:
        schema["items"] = item
    if origin in (set, frozenset):
        schema["uniqueItems"] = True
    return schema


def _object(hint: type[object], definitions: _Definitions) -> dict[str, JsonValue]:
    name = hint.__name__
    if definitions.classes.setdefault(name, hint) is not hint:
        raise SchemaError(
            f"Two different classes in one schema are called '{name}': "
            f"{definitions.classes[name].__module__}.{definitions.classes[name].__qualname__} and "
            f"{hint.__module__}.{hint.__qualname__}. Rename one."
        )
    if name not in definitions:
        definitions[name] = {}  # reserved first: a field may point back here
        definitions[name] = _object_body(hint, definitions)
    return {"$ref": f"#/$defs/{name}"}


def _object_body(hint: type[object], definitions: _Definitions) -> dict[str, JsonValue]:
    hints = typing.get_type_hints(hint, include_extras=True)
    properties: dict[str, JsonValue] = {}
    required: list[JsonValue] = []
    for name, metadata, has_default in _fields(hint):
        override = metadata.get("schema")
        schema = dict(override) if isinstance(override, Mapping) else _of(hints[name], definitions)
        if isinstance(description := metadata.get("description"), str):
            schema["description"] = description
        properties[name] = schema
        if not has_default:
            required.append(name)
    body: dict[str, JsonValue] = {"type": "object", "properties": properties}
    if required:
        body["required"] = required
    body["additionalProperties"] = False
    if (text := own_docstring(hint)) is not None:
        body["description"] = text
    return body


def own_docstring(hint: type[object]) -> str | None:
    """The first paragraph of a class's own docstring; None where attrs generated it."""
    text = inspect.cleandoc(hint.__dict__.get("__doc__") or "")
    if not text or text.startswith((f"{hint.__name__}(", "Method generated by attrs")):
        return None
    return text.split("\n\n")[0].replace("\n", " ")


class _PydanticClass(typing.Protocol):
    __name__: str

    def model_json_schema(self) -> dict[str, JsonValue]: ...


def is_pydantic_model(hint: object) -> bool:
    """Whether it is a class of Pydantic's, by what it offers: nothing of it is imported here."""
    return isinstance(hint, type) and all(
        callable(getattr(hint, name, None))
        for name in ("model_json_schema", "model_validate", "model_dump_json")
    )


def _pydantic(hint: _PydanticClass, definitions: _Definitions) -> dict[str, JsonValue]:
    """Its own schema; what that refers to stands beside the others.

    Raises:
        SchemaError: Two different classes have the same name.
    """
    body = hint.model_json_schema()
    within = body.pop("$defs", {})
    named = dict(within) if isinstance(within, Mapping) else {}
    named.setdefault(hint.__name__, body)  # else it is recursive, and stands there
    for name, schema in named.items():
        if definitions.setdefault(name, schema) != schema:
            raise SchemaError(f"Two different classes in one schema are called '{name}'.")
    return {"$ref": f"#/$defs/{hint.__name__}"}


def _fields(hint: type[object]) -> Iterator[tuple[str, Mapping[str, object], bool]]:
    if attrs.has(hint):
        for attribute in attrs.fields(hint):
            if attribute.init:
                yield attribute.name, attribute.metadata, attribute.default is not attrs.NOTHING
    elif dataclasses.is_dataclass(hint):
        for item in dataclasses.fields(hint):
            plain = item.default is dataclasses.MISSING
            yield (
                item.name,
                item.metadata,
                not (plain and item.default_factory is dataclasses.MISSING),
            )


def _typed_dict(hint: type[object], definitions: _Definitions) -> dict[str, JsonValue]:
    hints = typing.get_type_hints(hint, include_extras=True)
    required: frozenset[str] = getattr(hint, "__required_keys__", frozenset())
    return {
        "type": "object",
        "properties": {name: _of(value, definitions) for name, value in hints.items()},
        "required": sorted(required),
        "additionalProperties": False,
    }

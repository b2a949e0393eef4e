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
from collections.abc import Callable, Iterator, Mapping
from typing import Final

import attrs

from minions.data.errors import SchemaError
from minions.data.json_values import JsonValue, as_object

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
    return _whole(hint, _Definitions())


def _whole(hint: object, definitions: _Definitions) -> dict[str, JsonValue]:
    schema = _of(hint, definitions)
    if (name := _sole_reference(schema)) is not None:
        body = as_object(definitions[name])
        if f"#/$defs/{name}" not in str(definitions):
            del definitions[name]
        schema = dict(body)
    if definitions:
        schema["$defs"] = dict(definitions)
    return schema


def result_schema_of(hint: object) -> dict[str, JsonValue] | None:
    """The JSON Schema of what `codec.encode` makes of the values of a type hint: all fields of a
    class are there, also those with a default.

    Returns:
        None: nothing is known of them, as of `object`, or of a type that JSON cannot express.
    """
    try:
        schema = _whole(hint, _Definitions(of_results=True))
    except (SchemaError, NameError, AttributeError, TypeError, RecursionError):
        return None  # a class whose fields cannot be read says nothing; values are still encoded
    return schema or None


class _Definitions(dict[str, JsonValue]):
    """The `$defs` that are being built, with the class that each name stands for."""

    def __init__(self, *, of_results: bool = False) -> None:
        super().__init__()
        self.classes: dict[str, type[object]] = {}
        self.of_results = of_results
        """Whether it is of what values become, rather than of what they are made of."""


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
    if isinstance(hint, typing.NewType):
        return _of(hint.__supertype__, definitions)
    if origin is typing.Annotated:
        return _annotated_schema(arguments, definitions)
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
    if is_msgspec_struct(hint):
        return _msgspec(hint, definitions)
    if not typing.is_typeddict(hint):
        return None
    if not definitions.of_results:
        return _typed_dict(hint, definitions)
    return _define_class(hint, definitions, _typed_dict)


def _annotated_schema(
    arguments: tuple[object, ...], definitions: _Definitions
) -> dict[str, JsonValue]:
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
    return _define_class(hint, definitions, _object_body)


def _define_class(
    hint: type[object],
    definitions: _Definitions,
    make: Callable[[type[object], _Definitions], dict[str, JsonValue]],
) -> dict[str, JsonValue]:
    """A reference to the schema of the class, which `make` makes once."""
    name = hint.__name__
    if definitions.classes.setdefault(name, hint) is not hint:
        raise SchemaError(
            f"Two different classes in one schema are called '{name}': "
            f"{definitions.classes[name].__module__}.{definitions.classes[name].__qualname__} and "
            f"{hint.__module__}.{hint.__qualname__}. Rename one."
        )
    if name not in definitions:
        definitions[name] = {}  # reserved first: a field may point back here
        definitions[name] = make(hint, definitions)
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
        if definitions.of_results or not has_default:
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
    model_config: Mapping[str, object]

    def model_json_schema(
        self, *, by_alias: bool = True, mode: str = "validation"
    ) -> dict[str, JsonValue]: ...


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
    if definitions.of_results:
        by_alias = bool(hint.model_config.get("serialize_by_alias"))
        body = hint.model_json_schema(mode="serialization", by_alias=by_alias)
        _close(body)
    else:
        body = hint.model_json_schema()
    within = body.pop("$defs", {})
    named = dict(within) if isinstance(within, Mapping) else {}
    named.setdefault(hint.__name__, body)  # else it is recursive, and stands there
    for name, schema in named.items():
        if definitions.setdefault(name, schema) != schema:
            raise SchemaError(f"Two different classes in one schema are called '{name}'.")
    return {"$ref": f"#/$defs/{hint.__name__}"}


def _close(node: JsonValue) -> None:
    """Say of all objects with named members that they have these, also those with a default, and
    no others where nothing else is said: so it is when a class is written as JSON.
    """
    if isinstance(node, dict):
        if isinstance(node.get("properties"), Mapping) and node.get("type") == "object":
            node.setdefault("additionalProperties", False)
            node["required"] = list(node["properties"])
        for value in node.values():
            _close(value)
    elif isinstance(node, list):
        for value in node:
            _close(value)


def is_msgspec_struct(hint: object) -> bool:
    """Whether it is a class of msgspec's, by what it offers."""
    return isinstance(hint, type) and hasattr(hint, "__struct_config__")


def _msgspec(hint: type[object], definitions: _Definitions) -> dict[str, JsonValue]:
    """Its own schema; what that refers to stands beside the others.

    Raises:
        SchemaError: It is none of JSON; or two different classes have the same name.
    """
    import msgspec

    try:
        (body,), named = msgspec.json.schema_components([hint], ref_template="#/$defs/{name}")
    except (TypeError, NameError) as error:
        raise SchemaError(f"No JSON Schema for the type {hint!r}: {error}.") from error
    for name, schema in named.items():
        _close(schema)  # JSON is taken without unknown members here, and written without any
        if definitions.setdefault(name, schema) != schema:
            raise SchemaError(f"Two different classes in one schema are called '{name}'.")
    return dict(body)


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
    required = set(getattr(hint, "__required_keys__", frozenset()))
    properties: dict[str, JsonValue] = {}
    for name, value in hints.items():
        # With hints as texts, Python does not know which keys these words are about.
        inner: object = value
        while (word := typing.get_origin(inner)) in (typing.Required, typing.NotRequired):
            required = required | {name} if word is typing.Required else required - {name}
            inner = typing.get_args(inner)[0]
        properties[name] = _of(inner, definitions)
    return {
        "type": "object",
        "properties": properties,
        "required": sorted(required),
        "additionalProperties": False,
    }

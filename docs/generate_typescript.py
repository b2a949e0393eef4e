"""Writes `clients/typescript/src/api.ts`: the types and operations of the HTTP API.

`python docs/generate_typescript.py` rewrites the file from the OpenAPI document. Left out are the
operations for clients of other protocols (`/v1`, AG-UI, A2A), which have libraries of their own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias

from minions.contracts.executions import RUN_STATE_SCHEMA
from minions.interfaces.server.app import api_document

FILE: Final = Path(__file__).parent / "clients" / "typescript" / "src" / "api.ts"
_OTHER_PROTOCOLS: Final = ("openai", "a2a")
_OTHER_OPERATIONS: Final = ("runAgUi",)
_EVENTS: Final = "text/event-stream"
_NAME: Final = re.compile(r"[A-Za-z_$][\w$]*")
_WIDTH: Final = 100
_Json: TypeAlias = Mapping[str, Any]  # Any: JSON of any form, taken apart here

_HEAD: Final = """\
// Made by `python docs/generate_typescript.py` from the OpenAPI document; do not edit.

/** What JSON can say. */
export type JsonValue =
  | string
  | number
  | boolean
  | null
  | readonly JsonValue[]
  | { readonly [key: string]: JsonValue };

/** What every operation takes beside its own arguments. */
export type CallOptions = { readonly signal?: AbortSignal | undefined };

/** A request as an operation describes it. */
export type Call = {
  readonly method: string;
  readonly path: string;
  readonly query?: { readonly [name: string]: string | number | boolean | undefined };
  readonly headers?: { readonly [name: string]: string | undefined };
  readonly body?: unknown;
  readonly signal: AbortSignal | undefined;
};
"""
_CLASS: Final = """\
const part = (value: string | number): string => encodeURIComponent(value);

/** The operations of the server; how they are sent is the subclass's. */
export abstract class Operations {
  /** Send a call and read its answer: JSON, a text, or nothing. */
  protected abstract send<T>(call: Call): Promise<T>;

  /** Send a call and read the events of its answer as they come. */
  protected abstract stream(call: Call): AsyncGenerator<RunEvent, void, undefined>;
"""


def text() -> str:
    """The whole file."""
    document: _Json = api_document()
    schemas: _Json = document["components"]["schemas"]
    operations = list(_operations(document))
    methods = [_method(*each) for each in operations]
    found: set[str] = set()
    _collect([each for *_, each in operations], schemas, found)
    _collect({"$ref": "/RunEvent"}, schemas, found)
    _collect({"$ref": "/Problem"}, schemas, found)
    state = {"RunState": {"description": "The state of a run.", "enum": RUN_STATE_SCHEMA["enum"]}}
    parts = [_HEAD]
    for name, schema in sorted({**state, **{each: schemas[each] for each in found}}.items()):
        kind = _union(schema["enum"]) if name == "RunState" else _type(schema)
        lines = f"{_comment(schema.get('description'))}export type {name} = {kind};\n"
        parts.append(lines)
    return "\n".join([*parts, "\n".join([_CLASS, *methods]) + "}\n"])


def _operations(document: _Json) -> Iterator[tuple[str, str, _Json]]:
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            others = (*operation["tags"], operation["operationId"])
            if not {*_OTHER_PROTOCOLS, *_OTHER_OPERATIONS} & set(others):
                yield method.upper(), path, operation


def _collect(value: object, schemas: _Json, found: set[str]) -> None:
    """Add the names of all schemas that the value refers to, refusals and streams apart."""
    if isinstance(value, list):
        for each in value:
            _collect(each, schemas, found)
    elif isinstance(value, dict):
        if isinstance(reference := value.get("$ref"), str):
            name = reference.rpartition("/")[2]
            if name not in found:
                found.add(name)
                _collect(schemas[name], schemas, found)
        for key, each in value.items():
            if key not in (_EVENTS, "discriminator") and not re.fullmatch("[45][0-9][0-9]", key):
                _collect(each, schemas, found)


def _type(schema: _Json, indent: str = "") -> str:
    """The type of a schema; its bounds (lengths, patterns) have none."""
    if reference := schema.get("$ref"):
        return str(reference).rpartition("/")[2]
    if "const" in schema:
        return json.dumps(schema["const"])
    if "enum" in schema:
        is_state = schema["enum"] == RUN_STATE_SCHEMA["enum"]
        return "RunState" if is_state else _union(schema["enum"])
    if several := schema.get("oneOf") or schema.get("anyOf"):
        return " | ".join(_type(each, indent) for each in several)
    kinds = schema.get("type", "any")
    kinds = kinds if isinstance(kinds, list) else [kinds]
    return " | ".join(_type_of_kind(kind, schema, indent) for kind in kinds)


def _type_of_kind(kind: str, schema: _Json, indent: str) -> str:
    match kind:
        case "array":
            each = _type(schema.get("items", {}), indent)
            return f"readonly ({each})[]" if " " in each else f"readonly {each}[]"
        case "object" if "properties" in schema:
            return _object_type(schema, indent)
        case "object":
            values = schema.get("additionalProperties")
            each = _type(values, indent) if isinstance(values, dict) else "JsonValue"
            return f"{{ readonly [key: string]: {each} }}"
        case "integer":
            return "number"
        case "string" | "number" | "boolean" | "null":
            return kind
        case "any":
            return "JsonValue"
    raise ValueError(f"The OpenAPI document has the type {kind!r}, which has none in TypeScript.")


def _object_type(schema: _Json, indent: str) -> str:
    inner = f"{indent}  "
    required = schema.get("required", ())
    lines = []
    for name, each in schema["properties"].items():
        key = name if _NAME.fullmatch(name) else json.dumps(name)
        mark = "" if name in required else "?"
        kind = _type(each, inner)
        about = each.get("description") if kind != "RunState" else None
        lines.append(f"{_comment(about, inner)}{inner}readonly {key}{mark}: {kind};\n")
    return f"{{\n{''.join(lines)}{indent}}}"


def _union(values: list[Any]) -> str:  # Any: as above
    return " | ".join(json.dumps(value) for value in values)


def _comment(about: str | None, indent: str = "") -> str:
    return f"{indent}/** {' '.join(about.split())} */\n" if about else ""


def _method(method: str, path: str, operation: _Json) -> str:
    """The method of an operation: the parts of its path, its body, then what may be left out."""
    by_place: dict[str, list[_Json]] = {"path": [], "query": [], "header": []}
    for each in operation["parameters"]:
        if each["name"] != "last-event-id":  # `after` says the same
            by_place[each["in"]].append(each)
    arguments = [f"{_camel(each['name'])}: {_type(each['schema'])}" for each in by_place["path"]]
    body = operation.get("requestBody")
    if body is not None:
        kind = _type(body["content"]["application/json"]["schema"])
        arguments.append(f"body: {kind}" + ("" if body["required"] else " = {}"))
    options = [*by_place["query"], *by_place["header"]]
    fields = [
        f"readonly {_option(each)}{'' if each['required'] else '?'}: {_type(each['schema'])}"
        for each in options
    ]
    kinds = f"{{ {'; '.join(fields)} }} & CallOptions" if fields else "CallOptions"
    is_needed = any(each["required"] for each in options)
    arguments.append(f"options: {kinds}" + ("" if is_needed else " = {}"))
    answer, sender = _answer(operation)
    place = re.sub(r"\{(\w+)\}", lambda found: f"${{part({_camel(found[1])})}}", path)
    call = [f'method: "{method}"', f"path: `{place}`" if "$" in place else f'path: "{place}"']
    for key, each in (("query", by_place["query"]), ("headers", by_place["header"])):
        if each:
            values = ", ".join(f"{_key(one['name'])}: options.{_option(one)}" for one in each)
            call.append(f"{key}: {{ {values} }}")
    call += [*(["body"] if body is not None else []), "signal: options.signal"]
    name = operation["operationId"]
    head = f"  {name}({', '.join(arguments)}): {answer} {{"
    if len(head) > _WIDTH:
        lines = "".join(f"    {each},\n" for each in arguments)
        head = f"  {name}(\n{lines}  ): {answer} {{"
    lines = "".join(f"      {each},\n" for each in call)
    sent = f"    return this.{sender}({{\n{lines}    }});\n"
    return f"{_comment(operation['summary'], '  ')}{head}\n{sent}  }}\n"


def _answer(operation: _Json) -> tuple[str, str]:
    """The type of a successful answer, and the method that reads it."""
    responses: _Json = operation["responses"]
    content: _Json = responses[min(responses)].get("content", {})
    if _EVENTS in content:
        return "AsyncGenerator<RunEvent, void, undefined>", "stream"
    kinds = [_type(each["schema"]) for each in content.values()] or ["void"]
    return f"Promise<{' | '.join(dict.fromkeys(kinds))}>", "send"


def _option(parameter: _Json) -> str:
    """The key of an option: queries are spelt as the API has them, headers as names."""
    name: str = parameter["name"]
    return name if parameter["in"] == "query" else _camel(name.replace("-", "_"))


def _key(name: str) -> str:
    return name if _NAME.fullmatch(name) else json.dumps(name)


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


if __name__ == "__main__":
    FILE.write_text(text(), "utf-8")

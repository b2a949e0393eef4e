"""Correct answers to chat requests that nobody wrote: tool calls, values that fit a schema, text.

Which one it is depends on the request and on the random numbers that are handed in.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

from minions.data.json_values import JsonValue, as_count, as_object, as_objects, as_texts, dumps
from minions.testing.exchange import RecordedRequest, call, completion

__all__ = ["MakeAnswer", "plausible_answer", "plausible_value"]

MakeAnswer: TypeAlias = Callable[[RecordedRequest, random.Random], dict[str, JsonValue]]
"""Gives the document of a correct answer to a request (`endpoint.completion(…)`)."""

_Object: TypeAlias = Mapping[str, JsonValue]
_DEEPEST: Final = 8
"""Levels of a value below which nothing is added that need not be there."""
_WORDS: Final = ("rain", "sea", "window", "comes", "writes", "from", "on", "the", "nobody")


def plausible_answer(request: RecordedRequest, rng: random.Random) -> dict[str, JsonValue]:
    """A correct answer with a usage: a value for a schema, some tool calls at first, else text."""
    body = request.body
    usage = _usage(request, rng)
    schema = _schema_of(body)
    if schema is not None:
        return completion(dumps(plausible_value(schema, rng)), usage=usage)
    tools = as_objects(body.get("tools") or ())
    if tools and (_is_forced(body) or rng.random() < _chance_of_calls(request)):
        return completion(tool_calls=_calls(tools, rng), usage=usage)
    return completion(_text(rng), usage=usage)


def _usage(request: RecordedRequest, rng: random.Random) -> dict[str, JsonValue]:
    asked, said = len(request.raw) // 8 + 1, rng.randint(1, 60)
    return {"prompt_tokens": asked, "completion_tokens": said, "total_tokens": asked + said}


def _schema_of(body: _Object) -> _Object | None:
    """The schema that the answer is constrained to; None: there is none."""
    form = body.get("response_format")
    if not isinstance(form, dict):
        return None
    named = form.get("json_schema")
    schema = named.get("schema") if isinstance(named, dict) else None
    return schema if isinstance(schema, dict) else {"type": "object"}


def _is_forced(body: _Object) -> bool:
    return body.get("tool_choice") not in (None, "auto", "none")


def _chance_of_calls(request: RecordedRequest) -> float:
    """Fewer and fewer, so that every conversation comes to an end."""
    called = sum(1 for message in request.messages if message.get("tool_calls"))
    return 0.7 * 0.6**called


def _calls(tools: Sequence[_Object], rng: random.Random) -> list[dict[str, JsonValue]]:
    count = rng.choice((1, 1, 2, 3))
    return [_call(rng.choice(tools), f"call_{n}_{rng.randrange(10**6)}", rng) for n in range(count)]


def _call(tool: _Object, call_id: str, rng: random.Random) -> dict[str, JsonValue]:
    function = as_object(tool["function"])
    parameters = as_object(function.get("parameters") or {"type": "object"})
    arguments = dumps(plausible_value(parameters, rng))
    return call(str(function["name"]), arguments, call_id=call_id)


def _text(rng: random.Random) -> str:
    if rng.random() < 0.15:
        return '{"is_complete": true}'
    words = " ".join(rng.choice(_WORDS) for _ in range(rng.randint(1, 12)))
    return f"{words}\nstatus: done" if rng.random() < 0.5 else words


# --- values for schemas --------------------------------------------------------------------------


def plausible_value(schema: _Object, rng: random.Random) -> JsonValue:
    """A value that fits a JSON Schema of the usual words; others are ignored."""
    return _Values(schema, rng).value(schema, 0)


class _Values:
    """Draws values for parts of one schema."""

    def __init__(self, root: _Object, rng: random.Random) -> None:
        self._root = root
        self._rng = rng

    def value(self, schema: JsonValue, depth: int) -> JsonValue:
        if not isinstance(schema, Mapping):
            return "anything"
        if "const" in schema:
            return schema["const"]
        if isinstance(choices := schema.get("enum"), list):
            chosen: JsonValue = self._rng.choice(choices)
            return chosen
        if isinstance(pointer := schema.get("$ref"), str):
            return self.value(self._target(pointer), depth + 1)
        for word in ("anyOf", "oneOf", "allOf"):
            if isinstance(parts := schema.get(word), list) and parts:
                return self.value(parts[-1] if depth > _DEEPEST else self._rng.choice(parts), depth)
        return self._of_type(schema, depth)

    def _target(self, pointer: str) -> JsonValue:
        found: JsonValue = self._root
        for name in pointer.removeprefix("#").split("/")[1:]:
            found = found.get(name) if isinstance(found, dict) else None
        return found

    def _of_type(self, schema: _Object, depth: int) -> JsonValue:
        kind = schema.get("type")
        if isinstance(kind, list):
            kind = self._rng.choice(kind)
        match kind or ("object" if "properties" in schema else None):
            case "object":
                return self._object(schema, depth)
            case "array":
                return self._array(schema, depth)
            case "integer" | "number":
                return self._number(schema)
            case "boolean":
                return self._rng.random() < 0.6
            case "null":
                return None
        return self._string(schema)

    def _object(self, schema: _Object, depth: int) -> JsonValue:
        properties = as_object(schema.get("properties") or {})
        required = as_texts(schema.get("required") or ())
        return {
            name: self.value(part, depth + 1)
            for name, part in properties.items()
            if name in required or (depth < _DEEPEST and self._rng.random() < 0.5)
        }

    def _array(self, schema: _Object, depth: int) -> JsonValue:
        least = as_count(schema.get("minItems", 0))
        most = as_count(schema.get("maxItems", least + 3))
        count = least if depth > _DEEPEST else self._rng.randint(least, max(least, most))
        return [self.value(schema.get("items"), depth + 1) for _ in range(count)]

    def _number(self, schema: _Object) -> JsonValue:
        least = as_count(schema.get("minimum", 0))
        most = as_count(schema.get("maximum", least + 99))
        return self._rng.randint(int(least), int(most))

    def _string(self, schema: _Object) -> JsonValue:
        text = " ".join(self._rng.choice(_WORDS) for _ in range(self._rng.randint(1, 5)))
        text = text.ljust(as_count(schema.get("minLength", 0)), ".")
        return text[: as_count(schema.get("maxLength", len(text)))]

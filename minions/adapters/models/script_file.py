"""Script files of `ScriptedModel`: read and validated; all mistakes are reported together.

answers:
  - plain text
  - json: {city: Bern}
    match: part of the prompt this is for
  - tool_calls: [{name: weather, arguments: {city: Bern}}]
  - fail: rate-limited
    retryable: true
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from minions.adapters.models.script_items import Answer, ScriptItem, tool_request
from minions.contracts.calls import Confidence, ModelCallResponse, ModelFailure
from minions.contracts.messages import TokenUsage, ToolCallRequest, assistant
from minions.data.bounded_files import read_regular
from minions.data.errors import UsageError, did_you_mean
from minions.data.json_values import JsonValue, as_count, as_object, as_objects, as_text, dumps

_MOST_BYTES: Final = 1_048_576


def read_script(path: Path) -> tuple[ScriptItem, ...]:
    """The items of a script file, in file order.

    Raises:
        UsageError: `bad-script`: the file cannot be read, or has mistakes, which the message lists.
    """
    document = _read(path)
    answers = document.get("answers") if isinstance(document, dict) else None
    if not isinstance(document, dict) or not isinstance(answers, list) or not answers:
        raise _bad(path, "it needs a list under `answers:`, with at least one answer")
    if others := [str(key) for key in document if key != "answers"]:
        raise _bad(path, f"it holds {', '.join(others)}; only `answers` is known")
    try:
        return script_items(answers)
    except UsageError as error:
        raise _bad(path, error.message) from error


def script_items(answers: Sequence[object]) -> tuple[ScriptItem, ...]:
    """The items of answers in the form of a script file.

    Raises:
        UsageError: `bad-script`; the message lists all mistakes.
    """
    faults: list[str] = []
    items: list[ScriptItem] = []
    for number, raw in enumerate(answers, start=1):
        found = list(_faults(raw))
        faults += [f"answers[{number}]: {fault}" for fault in found]
        if not found:
            items.append(_item(raw))
    if faults:
        raise UsageError("; ".join(faults), code="bad-script")
    return tuple(items)


def _bad(path: Path, what: str) -> UsageError:
    return UsageError(
        f"The script {path} cannot be used: {what}.", code="bad-script", where=str(path)
    )


def _read(path: Path) -> object:
    import yaml

    try:
        raw = read_regular(path, _MOST_BYTES)
    except OSError as error:
        raise _bad(path, f"it cannot be read ({error.strerror or error})") from error
    if len(raw) > _MOST_BYTES:
        raise _bad(path, f"it is larger than {_MOST_BYTES // 1_048_576} MiB")
    try:
        return _check_size(path, yaml.safe_load(raw))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        text = " ".join(str(error).split()) or type(error).__name__
        raise _bad(path, f"it is not YAML ({text})") from error


_MOST_VALUES: Final = 1_048_576


def _check_size(path: Path, document: object) -> object:
    """Refuse a document that aliases make too large: a short file may expand without end.

    Raises:
        UsageError: It is larger than a file of this size could be without aliases.
    """
    left, count = [document], 0
    while left:
        value = left.pop()
        count += 1
        if count > _MOST_VALUES:
            raise _bad(path, f"with its aliases followed it holds over {_MOST_VALUES} values")
        if isinstance(value, dict):
            left += value.values()
        elif isinstance(value, list):
            left += value
    return document


# --- checking one item -----------------------------------------------------------------------

_CONTENT: Final = ("text", "json", "tool_calls", "fail")
_OF_FAIL: Final = ("message", "retryable", "retry_after_s")
_KEYS: Final = (*_CONTENT, *_OF_FAIL, "confidence", "match", "usage")
_USAGE_KEYS: Final = ("input_tokens", "output_tokens")


def _faults(raw: object) -> Iterator[str]:
    """The mistakes in an item; none: it is valid."""
    if isinstance(raw, str):
        return
    if not isinstance(raw, dict):
        kinds = ", ".join(_CONTENT)
        yield f"{raw!r:.60} is neither text (put it in quotes) nor a mapping with one of {kinds}"
        return
    item: dict[object, object] = raw
    yield from _key_faults(item)
    if "text" in item and not isinstance(item["text"], str):
        yield "`text` must be text; put it in quotes"
    if "json" in item:
        yield from _json_faults("json", item["json"])
    if "tool_calls" in item:
        yield from _call_faults(item["tool_calls"])
    if "match" in item and not _is_words(item["match"]):
        yield "`match` must be text that is not empty"
    if "usage" in item:
        yield from _usage_faults(item["usage"])
    sure = item.get("confidence", 0)
    if isinstance(sure, bool) or not isinstance(sure, int | float) or not 0 <= sure <= 1:
        yield "`confidence` must be a probability, from 0 to 1"
    yield from _fail_faults(item)


def _key_faults(item: Mapping[object, object]) -> Iterator[str]:
    for key in item:
        if key not in _KEYS:
            yield f"there is no key `{key}`.{did_you_mean(str(key), _KEYS)}"
    given = [key for key in _CONTENT if key in item]
    if not given:
        yield f"it needs one of {', '.join(_CONTENT)}"
    # An answer may have text beside tool calls; no other keys can be combined.
    if len(given) > 1 and given != ["text", "tool_calls"]:
        yield f"{' and '.join(given)} do not go together"


def _json_faults(place: str, value: object) -> Iterator[str]:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        yield f"`{place}` is not JSON ({error}); put dates in quotes"


def _call_faults(calls: object) -> Iterator[str]:
    if not isinstance(calls, list) or not calls:
        yield "`tool_calls` must be a list of {name, arguments}"
        return
    for position, call in enumerate(calls, start=1):
        place = f"tool_calls[{position}]"
        if not isinstance(call, dict) or not _is_words(call.get("name")):
            yield f"`{place}` needs a name"
            continue
        if others := sorted(str(key) for key in call if key not in ("name", "arguments", "id")):
            yield f"`{place}` holds {', '.join(others)}; name, arguments and id are known"
        if not isinstance(call.get("arguments", {}), dict | str):
            yield f"`{place}.arguments` must be a mapping, or JSON text"
        elif "arguments" in call:
            yield from _json_faults(f"{place}.arguments", call["arguments"])
        if "id" in call and not _is_words(call["id"]):
            yield f"`{place}.id` must be text"


def _usage_faults(usage: object) -> Iterator[str]:
    if not isinstance(usage, dict) or not usage:
        yield f"`usage` must be a mapping of {' and '.join(_USAGE_KEYS)}"
        return
    for key, value in usage.items():
        if key not in _USAGE_KEYS:
            yield f"`usage` knows no `{key}`.{did_you_mean(str(key), _USAGE_KEYS)}"
        elif not isinstance(value, int) or isinstance(value, bool) or value < 0:
            yield f"`usage.{key}` must be a whole number, 0 or more"


def _fail_faults(item: Mapping[object, object]) -> Iterator[str]:
    if "fail" not in item:
        if lone := [key for key in _OF_FAIL if key in item]:
            yield f"{', '.join(lone)} go with `fail` only"
        return
    if not _is_words(item["fail"]):
        yield "`fail` must be a code such as rate-limited"
    if "message" in item and not isinstance(item["message"], str):
        yield "`message` must be text"
    if not isinstance(item.get("retryable", False), bool):
        yield "`retryable` must be true or false"
    wait = item.get("retry_after_s", 0)
    if isinstance(wait, bool) or not isinstance(wait, int | float) or not 0 <= wait < _FOREVER:
        yield "`retry_after_s` must be a number of seconds, 0 or more"


_FOREVER: Final = 1e9


def _is_words(value: object) -> bool:
    return isinstance(value, str) and bool(value)


# --- making one item ---------------------------------------------------------------------------


def _item(raw: object) -> ScriptItem:
    """The item of a valid entry."""
    if isinstance(raw, str):
        return ScriptItem(answer=raw)
    item = as_object(raw)
    return ScriptItem(answer=_answer(item), match=_text_in(item, "match"))


def _answer(item: Mapping[str, JsonValue]) -> Answer:
    counts = as_object(item.get("usage", {}))
    usage = TokenUsage(**{name: as_count(count) for name, count in counts.items()})
    if "fail" in item:
        return _failure(item, usage)
    text = dumps(item["json"]) if "json" in item else _text_in(item, "text")
    raw_calls = as_objects(item.get("tool_calls", []))
    message = assistant(text, tool_calls=[_call(call) for call in raw_calls])
    sure = item.get("confidence")
    if usage == TokenUsage() and sure is None:
        return message
    confidence = Confidence(sure, "$") if isinstance(sure, int | float) else None
    return ModelCallResponse(message=message, usage=usage, confidence=confidence)


def _call(call: Mapping[str, JsonValue]) -> ToolCallRequest:
    given = call.get("arguments")
    arguments = given if given is None or isinstance(given, str) else as_object(given)
    return tool_request(as_text(call["name"]), arguments, id=_text_in(call, "id"))


def _text_in(item: Mapping[str, JsonValue], key: str) -> str | None:
    return as_text(item[key]) if key in item else None


def _failure(item: Mapping[str, JsonValue], usage: TokenUsage) -> ModelFailure:
    code, wait_s = as_text(item["fail"]), item.get("retry_after_s")
    return ModelFailure(
        code=code,
        message=as_text(item.get("message", f"The script says: {code}.")),
        is_retryable=bool(item.get("retryable", False)),
        retry_after_s=float(wait_s) if isinstance(wait_s, int | float) else None,
        usage=usage,
    )

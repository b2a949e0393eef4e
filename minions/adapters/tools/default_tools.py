"""The tools that every recipe has: `saveState`, `loadState`, `listStateKeys`, and the time of day
under the names that older recipes use.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, TypeAlias

from msgspec import Struct

from minions.adapters.stores.memory_stores import RESERVED, StateStore
from minions.contracts.tools import Effect, Reads, Tool, ToolScope, ToolSpec
from minions.data.errors import ToolError
from minions.data.json_values import JsonValue, as_text, parse_json
from minions.data.schema import JsonSchema

_KEY: Final[Mapping[str, JsonValue]] = {
    "type": "string",
    "minLength": 1,
    "maxLength": 500,
    "description": "Its name.",
}


def _object(**members: JsonSchema) -> JsonSchema:
    """The schema of a result with just these members."""
    return {
        "type": "object",
        "properties": members,
        "required": list(members),
        "additionalProperties": False,
    }


_TEXT: Final[JsonSchema] = {"type": "string"}
_YES: Final[JsonSchema] = {"type": "boolean"}
_SAVE: Final = ToolSpec(
    name="saveState",
    description="Keep a value under a key, for later runs. What the key held before is replaced.",
    parameters={
        "type": "object",
        "properties": {"key": _KEY, "value": {"description": "Any JSON value."}},
        "required": ["key", "value"],
        "additionalProperties": False,
    },
    returns=_object(success=_YES, key=_TEXT, message=_TEXT),
    effect=Effect.IDEMPOTENT,
    is_contained=True,  # loadState brings it back as untrusted
)
_LOAD: Final = ToolSpec(
    name="loadState",
    description="The value that was kept under a key, or the default where nothing was.",
    parameters={
        "type": "object",
        "properties": {
            "key": _KEY,
            "default": {"description": "The value where nothing was kept.", "default": None},
        },
        "required": ["key"],
        "additionalProperties": False,
    },
    returns=_object(success=_YES, key=_TEXT, value={}, found=_YES),
    effect=Effect.PURE,
    reads=Reads.PRIVATE,
)
_LIST: Final = ToolSpec(
    name="listStateKeys",
    description="The keys under which values are kept, sorted.",
    parameters={"type": "object", "properties": {}, "additionalProperties": False},
    returns=_object(
        success=_YES, keys={"type": "array", "items": _TEXT}, count={"type": "integer"}
    ),
    effect=Effect.PURE,
    reads=Reads.PRIVATE,
)


def state_tools(store: StateStore) -> Sequence[Tool]:
    """The three tools over `store`, which is not accessed yet."""
    tools = _StateTools(store)
    return (
        DeclaredTool(_SAVE, tools.save),
        DeclaredTool(_LOAD, tools.load),
        DeclaredTool(_LIST, tools.list_keys),
    )


class _StateTools(Struct, frozen=True):
    store: StateStore

    async def save(self, arguments: Mapping[str, JsonValue]) -> JsonValue:
        key = _own(as_text(arguments["key"]))
        await self.store.put(key, _as_text(key, arguments["value"]))
        return {"success": True, "key": key, "message": f"Saved '{key}'."}

    async def load(self, arguments: Mapping[str, JsonValue]) -> JsonValue:
        key = _own(as_text(arguments["key"]))
        text = await self.store.get(key)
        found = text is not None
        value = arguments.get("default") if text is None else _as_value(key, text)
        return {"success": True, "key": key, "value": value, "found": found}

    async def list_keys(self, _: Mapping[str, JsonValue]) -> JsonValue:
        keys = [key for key in await self.store.keys() if not key.startswith(RESERVED)]
        return {"success": True, "keys": keys, "count": len(keys)}


def _own(key: str) -> str:
    if key.startswith(RESERVED):
        raise ToolError(
            f"Keys that begin with '{RESERVED}' belong to Minions itself. Take another key.",
            code="reserved-key",
        )
    return key


def _as_text(key: str, value: JsonValue) -> str:
    """The value as ASCII JSON, which every store can hold, even with unpaired surrogates in it."""
    try:
        return json.dumps(value, allow_nan=False, separators=(",", ":"), default=_plain)
    except (TypeError, ValueError, RecursionError) as error:
        raise ToolError(
            f"The value for '{key}' is not JSON: {error}. Nothing was saved.",
            code="state-not-json",
        ) from error


def _plain(value: object) -> object:
    """Mappings and sequences of other classes as dict and list."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return list(value)
    raise TypeError(f"{type(value).__qualname__} is not a JSON value")


def _as_value(key: str, text: str) -> JsonValue:
    try:
        return parse_json(text)
    except ValueError as error:
        raise ToolError(
            f"The value stored under '{key}' is damaged: it is not JSON ({error}). "
            "Save a value to replace it.",
            code="damaged-state",
        ) from error


# --- tools with an explicit spec -----------------------------------------------------------------


_Call: TypeAlias = Callable[[Mapping[str, JsonValue]], Awaitable[JsonValue]]


class DeclaredTool(Tool):
    """A tool made of a spec and a function."""

    def __init__(self, spec: ToolSpec, call: _Call) -> None:
        self._spec = spec
        self._call = call

    def __repr__(self) -> str:
        return f"<tool {self._spec.name!r}>"

    @property
    def spec(self) -> ToolSpec:
        return self._spec

    async def invoke(self, arguments: Mapping[str, JsonValue], scope: ToolScope) -> object:
        return await self._call(arguments)


# --- `getCurrentDateTime` and `getDateTimeHoursAgo` ----------------------------------------------


_ZONE: Final[Mapping[str, JsonValue]] = {
    "type": "string",
    "description": "IANA name such as 'Europe/Zurich', or 'UTC'.",
    "default": "UTC",
}
_MOMENT: Final = _object(
    datetime=_object(unix_timestamp={"type": "integer"}, iso=_TEXT, timezone=_TEXT, weekday=_TEXT)
)
_NOW: Final = ToolSpec(
    name="getCurrentDateTime",
    description="Tell the time of day in a time zone.",
    parameters={
        "type": "object",
        "properties": {"timezone": _ZONE},
        "additionalProperties": False,
    },
    returns=_MOMENT,
    effect=Effect.PURE,
    reads=Reads.TRUSTED,
)
_HOURS_AGO: Final = ToolSpec(
    name="getDateTimeHoursAgo",
    description="Tell the time some hours ago.",
    parameters={
        "type": "object",
        "properties": {
            "hours": {"type": "number", "description": "May be a fraction, or negative."},
            "timezone": _ZONE,
        },
        "required": ["hours"],
        "additionalProperties": False,
    },
    returns=_MOMENT,
    effect=Effect.PURE,
    reads=Reads.TRUSTED,
)


def date_time_tools(now: Callable[[], datetime]) -> Sequence[Tool]:
    """Both tools.

    Args:
        now: Returns the time of day, with its zone.
    """
    tools = _DateTimeTools(now)
    return DeclaredTool(_NOW, tools.current), DeclaredTool(_HOURS_AGO, tools.hours_ago)


class _DateTimeTools(Struct, frozen=True):
    now: Callable[[], datetime]

    async def current(self, arguments: Mapping[str, JsonValue]) -> JsonValue:
        return _formatted_moment(self.now(), arguments)

    async def hours_ago(self, arguments: Mapping[str, JsonValue]) -> JsonValue:
        hours = arguments["hours"]
        assert isinstance(hours, int | float)  # noqa: S101  # the declaration says so
        try:
            # In UTC: an hour ago is 60 minutes ago, also where the clocks were changed.
            then = self.now().astimezone(UTC) - timedelta(hours=hours)
        except OverflowError as error:
            raise ToolError(
                f"{hours} hours ago is beyond the years 1 to 9999. Ask for fewer.", code="bad-time"
            ) from error
        return _formatted_moment(then, arguments)


def _formatted_moment(time: datetime, arguments: Mapping[str, JsonValue]) -> JsonValue:
    from minions.adapters.tools.time_toolset import moment_in

    shown = moment_in(time, as_text(arguments.get("timezone", "UTC")))
    return {
        "datetime": {
            "unix_timestamp": int(shown.unix_timestamp // 1),
            "iso": shown.iso,
            "timezone": shown.timezone,
            "weekday": shown.weekday,
        }
    }

"""Functions as tools: their schema, their arguments, their threads."""

from __future__ import annotations

import asyncio
import contextvars
import datetime
import enum
import inspect
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import attrs
import pytest

import minions
from minions.adapters.daemon_thread import run_in_daemon_thread
from minions.adapters.tools.function_tool import FunctionTool, tool
from minions.contracts.tools import Effect, Tool, ToolScope, ToolSpec
from minions.data.errors import ToolError, UsageError
from minions.data.json_values import JsonValue
from minions.data.schema import check_schema
from patience import HANG_S

SCOPE = ToolScope(run_id="run_1", step_id="fetch", call_id="call_1", idempotency_key="key_1")


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@attrs.frozen
class Point:
    x: int
    y: int = 0


@dataclass
class Box:
    corner: Point
    colours: list[Colour]


@tool
def weather(city: str, days: int = 3, unit: Literal["C", "F"] | None = None) -> str:
    """Tell the weather of a city,
    some days ahead.

    It is never sure.

    Args:
        city: As on a map,
            in English.
        days: How far ahead.
    """
    return f"{city} {days} {unit}"


# --- the schema ------------------------------------------------------------------------------


def test_signature_and_docstring_become_the_spec() -> None:
    assert weather.spec == ToolSpec(
        name="weather",
        description="Tell the weather of a city, some days ahead.",
        parameters={
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "As on a map, in English."},
                "days": {"type": "integer", "description": "How far ahead.", "default": 3},
                "unit": {"anyOf": [{"enum": ["C", "F"]}, {"type": "null"}], "default": None},
            },
            "required": ["city"],
            "additionalProperties": False,
        },
        returns={"type": "string"},
        effect=Effect.UNDECLARED,
    )
    check_schema(weather.spec.parameters)


def test_a_tool_still_is_the_function() -> None:
    assert weather("Bern", days=1) == "Bern 1 None"
    assert weather.__name__ == "weather"
    assert list(inspect.signature(weather).parameters) == ["city", "days", "unit"]
    assert isinstance(weather, Tool)


def test_the_decorator_takes_arguments() -> None:
    @tool(
        name="put-file",
        description="Puts.",
        effect="idempotent",
        timeout_s=5,
        success_key=False,
    )
    async def put(path: str) -> None:
        """Not this."""

    assert put.spec == ToolSpec(
        name="put-file",
        description="Puts.",
        parameters={
            "type": "object",
            "properties": {"path": {"type": "string"}},
            "required": ["path"],
            "additionalProperties": False,
        },
        returns={"type": "null"},
        effect=Effect.IDEMPOTENT,
        timeout_s=5,
        success_key=False,
    )


def test_annotations_describe_and_refine_and_win_over_the_docstring() -> None:
    @tool
    def pick(count: Annotated[int, "How many.", {"minimum": 1}], point: Point) -> None:
        """Pick.

        Args:
            count: Something else.
            point: Where.
        """

    properties = pick.spec.parameters["properties"]
    assert isinstance(properties, Mapping)
    assert properties["count"] == {"type": "integer", "description": "How many.", "minimum": 1}
    assert properties["point"] == {
        "type": "object",
        "properties": {"x": {"type": "integer"}, "y": {"type": "integer"}},
        "required": ["x"],
        "additionalProperties": False,
        "description": "Where.",
    }


def test_classes_of_several_parameters_share_their_definitions() -> None:
    @tool
    def pack(boxes: list[Box], points: list[Point], first: Point = Point(0)) -> None: ...

    parameters = pack.spec.parameters
    check_schema(parameters)
    definitions, properties = parameters["$defs"], parameters["properties"]
    assert isinstance(definitions, Mapping)
    assert isinstance(properties, Mapping)
    assert sorted(definitions) == ["Box", "Point"]
    assert properties["points"] == {"type": "array", "items": {"$ref": "#/$defs/Point"}}
    assert isinstance(properties["first"], Mapping)
    assert properties["first"]["default"] == {"x": 0, "y": 0}


def test_a_function_without_parameters_or_docstring_is_a_tool() -> None:
    @tool
    def ping() -> None: ...

    assert ping.spec.parameters == {
        "type": "object",
        "properties": {},
        "additionalProperties": False,
    }
    assert ping.spec.description == ""


def test_the_scope_is_not_part_of_the_schema() -> None:
    @tool
    def save(text: str, *, scope: ToolScope) -> None: ...

    assert save.spec.parameters["properties"] == {"text": {"type": "string"}}
    assert save.spec.parameters["required"] == ["text"]


def test_a_bound_method_can_be_a_tool() -> None:
    class Shop:
        def price(self, item: str) -> str:
            """Say the price."""
            return f"1 {item}"

    price = tool(Shop().price)
    assert (price.spec.name, price.spec.description) == ("price", "Say the price.")
    assert price("nut") == "1 nut"


# --- what cannot be a tool -------------------------------------------------------------------


def takes_all(first: int, /, *rest: int, **more: int) -> None: ...


def untyped(a: int, b, c=1):  # type: ignore[no-untyped-def]  # what is refused
    return a


def odd_types(a: int, b: threading.Lock, c: Callable[[], None]) -> None: ...


@pytest.mark.parametrize(
    ("function", "named"),
    [
        (takes_all, ("takes_all", "'first'", "'rest'", "'more'")),
        (untyped, ("untyped", "'b'", "'c'")),
        (odd_types, ("odd_types", "'b'", "'c'")),
    ],
)
def test_every_parameter_that_json_cannot_fill_is_named(
    function: Callable[..., object], named: tuple[str, ...]
) -> None:
    with pytest.raises(UsageError) as caught:
        tool(function)
    assert [name for name in named if name not in str(caught.value)] == []
    assert "'a'" not in str(caught.value)


@pytest.mark.parametrize("name", ["", "a b", "x" * 65, "naïve", "a.b", "a\n"])
def test_names_that_providers_refuse_are_refused(name: str) -> None:
    with pytest.raises(UsageError) as caught:
        tool(name=name)(weather.__wrapped__)
    assert caught.value.error_code == "bad-tool-name"


def test_an_unknown_effect_is_refused() -> None:
    with pytest.raises(UsageError, match="pure, idempotent, once, undeclared"):
        tool(effect="pur")(weather.__wrapped__)  # type: ignore[call-overload]  # what is refused


def test_hints_that_cannot_be_read_are_explained() -> None:
    def broken(a: Unknown) -> None: ...  # type: ignore[name-defined]  # noqa: F821  # what is refused

    with pytest.raises(UsageError, match="'Unknown' is not defined"):
        tool(broken)


# --- calls -----------------------------------------------------------------------------------


async def test_invoking_gives_what_the_function_returns() -> None:
    @tool
    async def double(n: int) -> Point:
        await asyncio.sleep(0)
        return Point(n, n)

    assert await weather.invoke({"city": "Bern"}, SCOPE) == "Bern 3 None"
    assert await double.invoke({"n": 2}, SCOPE) == Point(2, 2)


async def test_arguments_are_structured_as_their_types() -> None:
    got: list[object] = []

    @tool
    def take(
        box: Box,
        when: datetime.datetime,
        day: datetime.date,
        path: Path,
        either: int | str,
        maybe: Point | None,
        pair: tuple[int, str],
        names: Annotated[list[Annotated[str, {"minLength": 1}]], "All."],
        extra: Mapping[str, JsonValue],
    ) -> None:
        got.extend((box, when, day, path, either, maybe, pair, names, extra))

    arguments: Mapping[str, JsonValue] = {
        "box": {"corner": {"x": 1}, "colours": ["red"]},
        "when": "2026-01-01T00:00:00+00:00",
        "day": "2026-01-02",
        "path": "a/b",
        "either": "x",
        "maybe": None,
        "pair": [1, "a"],
        "names": ["n"],
        "extra": {"a": [1, {}]},
    }
    await take.invoke(arguments, SCOPE)
    assert got == [
        Box(corner=Point(1), colours=[Colour.RED]),
        datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC),
        datetime.date(2026, 1, 2),
        Path("a/b"),
        "x",
        None,
        (1, "a"),
        ["n"],
        {"a": [1, {}]},
    ]


async def test_arguments_that_do_not_fit_are_told_to_the_model_all_at_once() -> None:
    with pytest.raises(ToolError) as caught:
        await weather.invoke({"days": "many", "citi": "Bern"}, SCOPE)
    assert caught.value.error_code == "bad-arguments"
    for part in ("'city' is missing", "'days': ", "no 'citi' (did you mean 'city'?)"):
        assert part in str(caught.value)


async def test_the_scope_is_handed_in() -> None:
    @tool
    def key(*, prefix: str = "k", scope: ToolScope) -> str:
        return f"{prefix} {scope.idempotency_key}"

    assert await key.invoke({}, SCOPE) == "k key_1"


async def test_what_a_function_raises_comes_out_unchanged() -> None:
    @tool
    def fail(kind: str) -> None:
        raise KeyError(kind) if kind == "key" else ToolError("mend it")

    with pytest.raises(KeyError):
        await fail.invoke({"kind": "key"}, SCOPE)
    with pytest.raises(ToolError, match="mend it"):
        await fail.invoke({"kind": "tool"}, SCOPE)


# --- threads ---------------------------------------------------------------------------------

_WHO: contextvars.ContextVar[str] = contextvars.ContextVar("who")


async def test_a_sync_function_runs_in_a_daemon_thread_with_the_callers_context() -> None:
    @tool
    def look() -> tuple[bool, bool, str]:
        thread = threading.current_thread()
        return thread is threading.main_thread(), thread.daemon, _WHO.get()

    _WHO.set("caller")
    assert await look.invoke({}, SCOPE) == (False, True, "caller")


async def test_a_cancelled_thread_is_left_to_itself() -> None:
    started, let_go = threading.Event(), threading.Event()

    def hang() -> str:
        started.set()
        let_go.wait(10)
        return "too late"

    task = asyncio.ensure_future(run_in_daemon_thread(hang))
    await run_in_daemon_thread(started.wait, 10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    let_go.set()


@pytest.mark.parametrize("error", [SystemExit(3), StopIteration("end")])
async def test_what_a_future_cannot_carry_becomes_a_runtime_error(error: BaseException) -> None:
    def leave() -> None:
        raise error

    with pytest.raises(RuntimeError, match=type(error).__name__):
        await run_in_daemon_thread(leave)


def test_exit_does_not_wait_for_a_hung_tool() -> None:
    script = (
        "import asyncio, time\n"
        "from minions.adapters.daemon_thread import run_in_daemon_thread\n"
        "async def main():\n"
        "    await asyncio.wait_for(run_in_daemon_thread(time.sleep, 3600), 0.05)\n"
        "asyncio.run(main())\n"
    )
    root = Path(minions.__file__).parent.parent
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=root, timeout=HANG_S, capture_output=True, check=False
    )
    assert b"TimeoutError" in done.stderr


async def test_a_tool_is_typed_like_its_function() -> None:
    async def add(a: int, b: int = 1) -> int:
        return a + b

    made: FunctionTool[..., object] = tool(effect="pure")(add)
    total: int = await tool(add)(1, b=2)
    assert (made.spec.effect, total) == (Effect.PURE, 3)

"""Large values of callers: no callback of the event loop processes much, so others are served."""

from __future__ import annotations

import asyncio
import gc
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Final, cast

import pytest
from attrs import mutable

from asgi_client import Client
from builders import fake_tool
from minions.contracts.tools import Effect
from minions.engine.services.event_loop import FEW_ROWS
from served import MakeApp

MOST: Final = 40_000
"""Calls, values that are encoded and 8 characters that are decoded, of one callback: they take
some milliseconds."""
VALUES: Final = 60_000
ROWS: Final = 15_000
ITEMS: Final = 1_000
"""Of a loop: each takes a hundred calls and more, so that they are far too many for a callback."""
STEPS: Final = 1_500
_CHARACTERS: Final = 8
"""Of JSON that count as one value: `0,` would be two, a long text far less."""

RECIPES: Final[Mapping[str, str]] = {
    "loops": """
id: loops
inputs: {a: {type: array}}
steps:
  - {id: each, loop: "{{ inputs.a }}", set: {twice: "{{ loop.item * 2 }}"}}
output: "{{ each | length }}"
""",
    "many": """
id: many
steps:
  - {id: values, tool: values}
output: "{{ [values, values] }}"
""",
    "rows": """
id: rows
inputs:
  rows:
    type: array
    items: {type: object, required: [n], properties: {n: {type: integer}}}
steps:
  - id: kept
    goal: Say them all again.
    output:
      type: object
      required: [rows]
      properties:
        rows:
          type: array
          items: {type: object, required: [n], properties: {n: {type: integer, minimum: 0}}}
output: "{{ kept.rows }}"
""",
    "filters": """
id: filters
inputs: {a: {type: array}}
steps:
  - {id: sorts, set: {all: "{{ inputs.a | sort }}"}}
  - {id: uniques, set: {all: "{{ inputs.a | unique | list }}"}}
  - {id: maps, set: {all: "{{ inputs.a | map('string') | list }}"}}
  - {id: joins, set: {all: "{{ inputs.a | join(',') }}"}}
output: "{{ joins.all | length }}"
""",
    "long": "id: long\nsteps:\n"
    + "".join(f"  - {{id: s{n}, set: {{n: {n}}}}}\n" for n in range(STEPS)),
}

GETS: Final = (
    "/runs",
    "/runs/{}",
    "/runs/{}?cut=200",
    "/runs/{}/value?at=/output",
    "/runs/{}/journal",
    "/runs/{}/search?text=199",
    "/runs/{}/items?step=each",
    "/runs/{}/steps?address={step}",
    "/runs/{}/value?at=/step/output&address={step}",
    "/runs/{}/graph",
    "/runs/{}/export.html",
    "/runs/{}/events",
)
"""All that a run is read with; of the events from the first."""


_ANSWER: Final = json.dumps({"rows": [{"n": n} for n in range(ROWS)]}, separators=(",", ":"))


@mutable
class Callbacks:
    """What each callback of an event loop processed: the same on every machine."""

    units: int = 0
    """Of the callback that runs."""
    most: int = 0
    of: str = ""
    """The callback with the most."""
    count: int = 0
    """Of callbacks."""

    def note(self, handle: asyncio.Handle) -> None:
        """A callback has ended."""
        self.count += 1
        if self.units > self.most:
            self.most, self.of = self.units, _described(handle)

    def tell(self, frame: FrameType, event: str, _: object) -> None:
        """One call of the thread, as `sys.setprofile` tells it."""
        if event == "c_call":
            self.units += 1
        elif event == "call":
            self.units += 1
            if (size := _SIZES.get(frame.f_code)) is not None:
                self.units += size(frame.f_locals)


def _values_in(value: object) -> int:
    found, rest = 0, [value]
    while rest and found <= 2 * MOST:
        each = rest.pop()
        found += 1
        if isinstance(each, str):
            found += len(each) // 64
        elif isinstance(each, dict):
            rest += each.values()
        elif isinstance(each, list | tuple):
            rest += each
    return found


def _characters(found: Mapping[str, object]) -> int:
    return len(cast("str", found["s"])) // _CHARACTERS


_SIZES: Final[Mapping[CodeType, Callable[[Mapping[str, object]], int]]] = {
    json.JSONEncoder.encode.__code__: lambda found: _values_in(found["o"]),
    json.JSONDecoder.decode.__code__: _characters,
    json.JSONDecoder.raw_decode.__code__: _characters,
}
"""Functions that hand a whole value to C code, and how much that processes."""


def _task_of(handle: asyncio.Handle) -> object:
    """The task that the callback lets work; of another callback what it is a method of."""
    return getattr(getattr(handle, "_callback", None), "__self__", None)


def _described(handle: asyncio.Handle) -> str:
    task = _task_of(handle)
    return repr(task.get_coro() if isinstance(task, asyncio.Task) else handle)


@contextmanager
def counted_callbacks() -> Iterator[Callbacks]:
    """What the event loop of this thread does while the block waits."""
    callbacks, original, own = Callbacks(), asyncio.Handle._run, asyncio.current_task()

    def run(handle: asyncio.Handle) -> None:
        if _task_of(handle) is own:  # the test: it reads whole answers at once
            original(handle)
            return
        callbacks.units = 0
        sys.setprofile(callbacks.tell)
        try:
            original(handle)
        finally:
            sys.setprofile(None)
            callbacks.note(handle)

    gc.disable()  # what it finalizes belongs to somebody else
    asyncio.Handle._run = run  # type: ignore[method-assign, assignment]  # as long as this
    try:
        yield callbacks
    finally:
        asyncio.Handle._run = original  # type: ignore[method-assign]  # as it was
        gc.enable()


# --- what is tried ----------------------------------------------------------------------------


@pytest.fixture
def large(
    request: pytest.FixtureRequest, recipes: Path, make_app: MakeApp, tmp_path: Path
) -> Client:
    """Of a server whose model and tool give much."""
    for name, text in RECIPES.items():
        (recipes / f"{name}.yaml").write_text(text, "utf-8")
    return Client(
        make_app(
            journal=tmp_path / "journal.sqlite" if request.param == "sqlite" else None,
            answers=lambda _: _ANSWER,
            tools=[fake_tool("values", lambda _: [0] * VALUES, effect=Effect.PURE)],
        )
    )


@pytest.mark.parametrize(
    ("recipe", "step", "inputs", "large"),
    [
        ("loops", "each", {"a": [*range(ITEMS)]}, "sqlite"),
        ("loops", "each", {"a": [*range(FEW_ROWS - 10)]}, "sqlite"),  # all at once, but for the run
        ("many", "values", {}, "sqlite"),
        ("many", "values", {}, "memory"),
        ("rows", "kept", {"rows": [{"n": n} for n in range(ROWS)]}, "sqlite"),
        ("rows", "kept", {"rows": [{"n": n} for n in range(ROWS)]}, "memory"),
        ("filters", "sorts", {"a": [*range(20_000)]}, "sqlite"),
        ("long", "s7", {}, "sqlite"),
    ],
    indirect=["large"],
    ids=lambda each: each if isinstance(each, str) else "",
)
async def test_large_values_of_callers_let_others_work(
    recipe: str, step: str, inputs: Mapping[str, object], large: Client
) -> None:
    """A run, and then all that it is read with (A-151)."""
    with counted_callbacks() as callbacks:
        reply = await large.post("/runs", {"recipe": recipe, "inputs": inputs})
        assert reply.status == 202, reply.json
        run = await large.ended(run_id := str(reply.json["run_id"]))
    assert run["status"] == "completed", run["error"]
    assert 0 < callbacks.most <= MOST, f"the run: {callbacks}"
    for path in GETS:
        with counted_callbacks() as callbacks:
            reply = await large.get(path.format(run_id, step=step))
        assert reply.status == 200, (path, reply.body)
        assert 0 < callbacks.most <= MOST, f"{path}: {callbacks}"


async def test_what_is_counted_is_the_calls_and_the_json_of_a_callback() -> None:
    """The measure itself: of calls in Python and C, and of values handed to C at once."""
    works: list[Callable[[], object]] = [
        lambda: [repr(n) for n in range(2 * MOST)],
        lambda: json.JSONEncoder().encode([0] * 2 * MOST),
        lambda: json.JSONDecoder().decode(f"[{'0,' * 8 * MOST}0]"),
    ]
    for work in works:
        with counted_callbacks() as callbacks:
            asyncio.get_running_loop().call_soon(work)
            await asyncio.sleep(0)
        assert callbacks.most >= 2 * MOST, callbacks

"""Large values of callers, in a server: how long the longest callback holds the event loop."""

from __future__ import annotations

import asyncio
import gc
import json
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from attrs import mutable

from benchmarks.endpoint import Endpoint
from benchmarks.lookups import TOKEN, Caller
from benchmarks.measuring import Effort, Row, absolute_row
from minions import Services, SqliteJournal, tool
from minions.app.settings.settings import Settings
from minions.contracts.runtime import SystemClock
from minions.contracts.tools import Toolbox
from minions.engine.compile.extensions import Extensions
from minions.interfaces.server.app import App, create_app
from minions.interfaces.server.process import short_holds
from minions.interfaces.server.server_options import ServerOptions

HELD_MS: Final = 20.0
ITEMS, VALUES, ROWS, STEPS, SORTED = 100_000, 300_000, 40_000, 1_500, 20_000
_ROW: Final = "{type: object, required: [n], properties: {n: {type: integer}}}"


def _recipes(effort: Effort) -> Mapping[str, tuple[str, Mapping[str, object], str]]:
    """What is run: what it is called, with which inputs, and a step of it."""
    items, rows, steps, sorted_items = (
        max(20, effort.count(each)) for each in (ITEMS, ROWS, STEPS, SORTED)
    )
    many = "{{ [values, values, values] }}"
    listed = "inputs: {a: {type: array}}"
    return {
        f"id: loops\n{listed}\nsteps:\n"
        "  - {id: each, loop: '{{ inputs.a }}', set: {twice: '{{ loop.item * 2 }}'}}\n": (
            f"a loop over {items:,} items",
            {"a": [*range(items)]},
            "each",
        ),
        f"id: many\nsteps: [{{id: values, tool: values}}]\noutput: '{many}'\n": (
            f"an output of {3 * effort.count(VALUES):,} values",
            {},
            "values",
        ),
        f"id: rows\ninputs: {{rows: {{type: array, items: {_ROW}}}}}\n"
        "steps: [{id: kept, set: {rows: '{{ inputs.rows }}'}}]\noutput: '{{ kept.rows }}'\n": (
            f"{rows:,} rows with a schema",
            {"rows": [{"n": n} for n in range(rows)]},
            "kept",
        ),
        f"id: filters\n{listed}\nsteps:\n"
        "  - {id: sorts, set: {all: '{{ inputs.a | sort }}'}}\n"
        "  - {id: joins, set: {all: \"{{ inputs.a | unique | join(',') }}\"}}\n": (
            f"filters over {sorted_items:,} items",
            {"a": [*range(sorted_items)]},
            "sorts",
        ),
        "id: long\nsteps:\n"
        + "".join(f"  - {{id: s{n}, set: {{n: {n}}}}}\n" for n in range(steps)): (
            f"{steps:,} steps",
            {},
            "s7",
        ),
    }


PATHS: Final = (
    "/runs/{}/events",
    "/runs/{}",
    "/runs/{}?cut=200",
    "/runs/{}/value?at=/output",
    "/runs/{}/journal",
    "/runs/{}/search?text=199",
    "/runs/{}/items?step={step}",
    "/runs/{}/steps?address={step}",
    "/runs/{}/graph",
    "/runs/{}/export.html",
)


@mutable
class Held:
    """The longest callback of an event loop."""

    longest_s: float = 0.0
    """CPU time of its thread: what others did meanwhile is not its own. Garbage is searched for as
    where a server serves."""


@contextmanager
def _measured() -> Iterator[Held]:
    held, original = Held(), asyncio.Handle._run  # noqa: SLF001  # asyncio tells it nowhere

    def run(handle: asyncio.Handle) -> None:
        begin = time.thread_time()
        original(handle)
        held.longest_s = max(held.longest_s, time.thread_time() - begin)

    asyncio.Handle._run = run  # type: ignore[method-assign, assignment]  # noqa: SLF001
    try:
        yield held
    finally:
        asyncio.Handle._run = original  # type: ignore[method-assign]  # noqa: SLF001


async def measure(effort: Effort, _: Endpoint) -> list[Row]:
    """Each recipe once, and all that its run is read with: thousands of callbacks are a measure."""
    with tempfile.TemporaryDirectory() as folder:
        return [_row(*found) for found in (await _held(effort, Path(folder))).items()]


def _row(name: str, held: Mapping[str, float]) -> Row:
    longest = max(held, key=lambda each: held[each])
    return absolute_row(
        f"large-{name}",
        f"the longest callback of a server, {name}: `{longest}`",
        value=held[longest] * 1e3,
        most=HELD_MS,
        unit="ms CPU",
    )


async def _held(effort: Effort, folder: Path) -> dict[str, dict[str, float]]:
    """Seconds of the longest callback by recipe and path; the path of the run itself is empty."""
    recipes = _recipes(effort)
    for number, text in enumerate(recipes):
        (folder / f"{number}.yaml").write_text(text, "utf-8")
    journal = SqliteJournal(folder / "journal.sqlite", SystemClock())

    @tool(effect="pure")
    def values() -> list[int]:
        """Many numbers."""
        return [0] * effort.count(VALUES)

    app = create_app(
        ServerOptions(token=TOKEN, max_body_bytes=8_000_000),
        recipes=[folder],
        settings=Settings(no_store=True),
        services=Services(journal=journal),
        extensions=Extensions(tools=Toolbox((values,))),
    )
    app.at_end(journal.aclose)
    found = {}
    try:
        for text, (name, inputs, step) in recipes.items():
            gc.collect()
            async with short_holds():
                found[name] = await _of_recipe(app, text.split()[1], inputs, step)
    finally:
        await app.aclose()
    return found


async def _of_recipe(
    app: App, recipe: str, inputs: Mapping[str, object], step: str
) -> dict[str, float]:
    body = json.dumps({"recipe": recipe, "inputs": inputs}).encode()
    caller = Caller(app)
    found: dict[str, float] = {}
    with _measured() as held:
        assert await caller.ask("POST", "/runs", body) == 202, caller.sent
        run_id = json.loads(caller.body)["run_id"]
        while (await _summary(app, run_id))["is_active"]:  # noqa: ASYNC110  # no event tells it
            await asyncio.sleep(0.05)
    found["POST /runs"] = held.longest_s
    for path in PATHS:
        with _measured() as held:
            # In a task of its own, whose last callback is measured, too.
            asked = asyncio.create_task(caller.ask("GET", path.format(run_id, step=step)))
            status = await asked
            assert status == 200, (recipe, path, caller.body)
        found[path] = held.longest_s
    return found


async def _summary(app: App, run_id: str) -> Any:  # Any: JSON
    caller = Caller(app)
    assert await caller.ask("GET", "/runs?limit=5") == 200
    (run,) = (each for each in json.loads(caller.body)["runs"] if each["run_id"] == run_id)
    return run

"""Units of work, and what each of them costs: Python calls, SQL statements, rows, bytes."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Final

from attrs import frozen

from asgi_client import TOKEN, Client
from benchmarks.clients import GOAL, SYSTEM, executor_of, model_at, recipe_of
from benchmarks.endpoint import Endpoint
from benchmarks.structured import Settlement
from minions import (
    AgentExecutor,
    AgentRecipe,
    DefaultStep,
    MessageBundle,
    OpenAIModel,
    OutputInstructions,
    PythonStep,
    RunStatus,
    ScriptedModel,
    Services,
    SqliteJournal,
    StepScope,
    tool,
)
from minions.app.settings.settings import Settings
from minions.contracts.runtime import SystemClock
from minions.engine.run.recorded_run import load_recorded_run
from minions.interfaces.server.app import create_app
from minions.interfaces.server.server_options import ServerOptions
from minions.services import InstructorParser
from patience import counted_work

__all__ = ["UNITS", "Unit", "start_up", "units_measured"]

ROOT: Final = Path(__file__).parents[2]
ONE: Final = recipe_of(f"id: one\nsteps: [{{id: ask, system_prompt: {SYSTEM}, goal: {GOAL}}}]\n")


@frozen(kw_only=True)
class Unit:
    """A row of the table."""

    words: str
    goal: float
    """The most that it should cost."""
    others: str = ""
    """What others need for the same."""


UNITS: Final[Mapping[str, Unit]] = {
    "model-call": Unit(
        words="one step, one model call, journal in memory",
        goal=900,
        others="async SDK alone 8,306; Pydantic AI 17,700",
    ),
    "model-call-sqlite": Unit(words="the same, journal on SQLite", goal=1_100),
    "model-call-statements": Unit(words="SQL statements of it", goal=4),
    "model-call-transactions": Unit(words="transactions of it", goal=2),
    "model-call-rows": Unit(words="rows that it stores", goal=5),
    "model-call-bytes": Unit(words="bytes of their bodies", goal=2_000),
    "structured-call": Unit(words="structured call (attrs class)", goal=1_100),
    "turn-50": Unit(words="turn of a tool loop of 50", goal=800),
    "turn-growth": Unit(words="turn of 400, against a turn of 50, in per cent", goal=105),
    "python-step": Unit(
        words="`PythonStep` in a chain that does nothing",
        goal=120,
        others="Burr 244, LangGraph 928",
    ),
    "set-step": Unit(words="`set` step in a chain", goal=60),
    "set-step-sqlite": Unit(words="`set` step in a chain on SQLite", goal=120),
    "prepared-step": Unit(words="`set` step of a recipe that is prepared for a run", goal=60),
    "loop-item": Unit(words="item of a parallel loop of 200", goal=600),
    "resumed-step": Unit(words="`set` step that a resumed run replays", goal=60),
    "event-per-delta": Unit(words="delta of a streamed answer that somebody watches", goal=60),
    "post-run": Unit(
        words="`POST /runs` up to its answer, with what its run does meanwhile", goal=2_500
    ),
    "modules": Unit(words="own modules loaded for a one-step `minions run`", goal=220),
    "compiled-reprs": Unit(words="own classes for which attrs compiles a repr in it", goal=0),
    "frames": Unit(words="own frames from `minions run` to the HTTP call", goal=24),
    "frame-modules": Unit(words="modules of these frames", goal=10),
}


async def _difference(run: Callable[[int], Awaitable[None]], few: int, many: int) -> float:
    """Calls of one more: between a run of `few` and one of `many`."""
    await run(few)
    counts = list[int]()
    for number in (few, many):
        with counted_work() as work:
            await run(number)
        counts.append(work.calls)
    return (counts[1] - counts[0]) / (many - few)


@contextmanager
def seen_statements() -> Iterator[list[str]]:
    """The SQL statements of all connections that are opened within."""
    seen = list[str]()
    connect = sqlite3.connect

    def traced(*arguments: object, **options: object) -> sqlite3.Connection:
        connection = connect(*arguments, **options)  # type: ignore[call-overload]  # handed on
        connection.set_trace_callback(seen.append)
        return connection  # type: ignore[no-any-return]  # as above

    sqlite3.connect = traced  # type: ignore[assignment]  # of the same use
    try:
        yield seen
    finally:
        sqlite3.connect = connect


def _does(statement: str) -> bool:
    """Whether it reads or writes; what begins and ends a transaction does neither."""
    return statement not in ("BEGIN IMMEDIATE", "COMMIT")


def _transactions(statements: list[str]) -> int:
    """How many they are; a statement that stands between no others is one of its own."""
    count, is_within = 0, False
    for each in statements:
        count += _does(each) and not is_within
        count += each == "COMMIT"
        is_within = each != "COMMIT" and (is_within or not _does(each))
    return count


@asynccontextmanager
async def _on_sqlite() -> AsyncIterator[Services]:
    with tempfile.TemporaryDirectory() as folder:
        journal = SqliteJournal(Path(folder) / "journal.sqlite", SystemClock())
        try:
            yield Services(journal=journal)
        finally:
            await journal.aclose()


async def _model_calls(endpoint: Endpoint) -> AsyncIterator[tuple[str, float]]:
    async with model_at(endpoint.base_url("plain")) as model:

        async def ask(count: int, services: Services | None = None) -> None:
            executor = executor_of(model, services)
            for _ in range(count):
                assert (await executor.execute(ONE)).output == "All is well."

        yield "model-call", await _difference(ask, 10, 40)
        async with _on_sqlite() as services:
            of_sqlite = await _difference(lambda count: ask(count, services), 10, 40)
            yield "model-call-sqlite", of_sqlite
        with seen_statements() as seen:
            async with _on_sqlite() as services:
                await ask(3, services)
                seen.clear()
                await ask(1, services)
                yield "model-call-statements", float(len([each for each in seen if _does(each)]))
                yield "model-call-transactions", float(_transactions(seen))
                rows = await services.journal.entries()
                last = [row for row in rows if row.run_id == rows[-1].run_id]
                yield "model-call-rows", float(len(last))
                db = sqlite3.connect(services.journal.path)  # type: ignore[attr-defined]  # it is a SqliteJournal
                (length,) = db.execute(
                    "SELECT sum(length(body)) FROM entries WHERE run_id = ?", (rows[-1].run_id,)
                ).fetchone()
                db.close()
                yield "model-call-bytes", round(length, -2)


async def _structured_call(endpoint: Endpoint) -> AsyncIterator[tuple[str, float]]:
    step = DefaultStep(
        id="ask",
        messages=MessageBundle.of(system=SYSTEM, goal=GOAL),
        output=OutputInstructions(output_class=Settlement),
    )
    recipe = AgentRecipe(id="structured", steps=[step])
    async with model_at(endpoint.base_url("structured")) as model:
        executor = AgentExecutor(model, services=Services(parser=InstructorParser()))

        async def ask(count: int) -> None:
            for _ in range(count):
                result = await executor.execute(recipe)
                assert result.status is RunStatus.COMPLETED, result.error

        yield "structured-call", await _difference(ask, 5, 25)


@tool(effect="pure")
async def echo(n: int) -> int:
    """The number.

    Args:
        n: Any number.
    """
    return n


async def _tool_loops(endpoint: Endpoint) -> AsyncIterator[tuple[str, float]]:
    def loop_of(turns: int) -> AgentRecipe:
        return recipe_of(
            f"id: loop\nlimits: {{max_model_calls_per_step: {turns + 1}}}\n"
            f"steps: [{{id: ask, system_prompt: {SYSTEM}, goal: {GOAL}, tools: [echo]}}]\n",
            [echo],
        )

    async def turns_of(turns: int, model: OpenAIModel) -> float:
        recipe = loop_of(turns)
        executor = executor_of(model, tools=[echo])

        async def run(count: int) -> None:
            for _ in range(count):
                assert (await executor.execute(recipe)).output == "All is well."

        return await _difference(run, 1, 2) / turns

    per_turn = {}
    for turns in (50, 400):
        async with model_at(endpoint.base_url(f"loop-{turns}")) as model:
            per_turn[turns] = await turns_of(turns, model)
    yield "turn-50", per_turn[50]
    yield "turn-growth", per_turn[400] / per_turn[50] * 100


@frozen
class _Nothing(PythonStep[int]):
    id: str

    async def run(self, scope: StepScope) -> int:
        return 1


def _set_chain(steps: int) -> AgentRecipe:
    return recipe_of(
        "id: chain\nsteps:\n"
        + "".join(f"- {{id: s{at}, set: {{n: {at}}}}}\n" for at in range(steps))
    )


async def _chains(_: Endpoint) -> AsyncIterator[tuple[str, float]]:
    set_chains = {steps: _set_chain(steps) for steps in (100, 400)}
    code_chains = {
        steps: AgentRecipe(id="code", steps=[_Nothing(f"s{at}") for at in range(steps)])
        for steps in (100, 400)
    }

    async def executed(recipe: AgentRecipe, services: Services | None = None) -> int:
        run = AgentExecutor(ScriptedModel([]), services=services).prepare(recipe)
        with counted_work() as work:
            result = await run.execute()
        assert result.status is RunStatus.COMPLETED, result.error
        return work.calls

    async def per_step(
        chains: Mapping[int, AgentRecipe], services: Services | None = None
    ) -> float:
        counts = [await executed(chains[steps], services) for steps in (100, 100, 400)]
        return (counts[2] - counts[1]) / 300

    async def prepare(steps: int) -> None:
        AgentExecutor(ScriptedModel([])).prepare(set_chains[steps])

    yield "prepared-step", await _difference(prepare, 100, 400)
    yield "python-step", await per_step(code_chains)
    yield "set-step", await per_step(set_chains)
    async with _on_sqlite() as services:
        yield "set-step-sqlite", await per_step(set_chains, services)

    async def resumed(steps: int) -> None:
        executor = AgentExecutor(ScriptedModel([]))
        recipe = recipe_of(
            "id: chain\nsteps:\n"
            + "".join(f"- {{id: s{at}, set: {{n: {at}}}}}\n" for at in range(steps))
            + "- {id: last, set: {n: '{{ inputs.n + 1 }}'}}\n"
            + "inputs: {n: {type: integer, default: 1}}\n"
        )
        result = await executor.execute(recipe)
        recorded = await load_recorded_run(executor.services.journal, result.run_id)
        retried = executor.prepare_retry(recorded, from_step="last")
        with counted_work() as work:
            await retried.execute()
        counts[steps] = work.calls

    counts = dict[int, int]()
    for steps in (100, 100, 400):  # the first one loads what only a retry needs
        await resumed(steps)
    yield "resumed-step", (counts[400] - counts[100]) / 300


async def _loop_items(endpoint: Endpoint) -> AsyncIterator[tuple[str, float]]:
    async with model_at(endpoint.base_url("plain")) as model:
        executor = executor_of(model)
        recipes = {
            items: recipe_of(
                f"id: each\nsteps: [{{id: ask, goal: 'Item {{{{ loop.item }}}}', loop: "
                f"{list(range(items))}, max_parallel: 16}}]\n"
            )
            for items in (50, 200)
        }

        async def run(items: int) -> None:
            result = await executor.execute(recipes[items])
            assert result.status is RunStatus.COMPLETED, result.error

        yield "loop-item", await _difference(run, 50, 200)


async def _deltas(endpoint: Endpoint) -> AsyncIterator[tuple[str, float]]:
    counts = dict[int, int]()
    for deltas in (500, 2_000):
        async with model_at(endpoint.base_url(f"stream-{deltas}")) as model:
            executor = executor_of(model)
            for _ in range(2):
                with counted_work() as work:
                    async for _ in executor.stream(ONE):
                        pass
                counts[deltas] = work.calls
    yield "event-per-delta", (counts[2_000] - counts[500]) / 1_500


async def _requests(_endpoint: Endpoint) -> AsyncIterator[tuple[str, float]]:
    with tempfile.TemporaryDirectory() as folder:
        recipe = Path(folder) / "adds.yaml"
        recipe.write_text("id: adds\ninputs: {a: {type: integer}}\nsteps: [{id: b, set: {n: 1}}]\n")
        app = create_app(
            ServerOptions(token=TOKEN),
            recipes=[Path(folder)],
            settings=Settings(no_store=True),
            models=ScriptedModel([]),
        )
        client, counts = Client(app), list[int]()
        for _ in range(8):
            with counted_work() as work:
                reply = await client.post("/runs", {"recipe": "adds", "inputs": {"a": 2}})
            assert reply.status == 202
            await client.ended(reply.json["run_id"])
            counts.append(work.calls)
        await app.aclose()
    yield "post-run", min(counts)  # the first ones load what the others find


_WATCHED_RUN: Final = """
import atexit, json, os, sys
import minions
from minions.adapters.http.http_pool import HttpPool

seen = []
own_files = os.path.dirname(minions.__file__) + os.sep
post = HttpPool.post

async def watched(*arguments, **options):
    frame, own = sys._getframe(1), []
    while frame is not None:
        if frame.f_code.co_filename.startswith(own_files):
            own.append(frame.f_code.co_filename)
        frame = frame.f_back
    seen.append((len(own), len(set(own))))
    return await post(*arguments, **options)

HttpPool.post = watched

@atexit.register
def tell():
    modules = [name for name in sys.modules if name == "minions" or name.startswith("minions.")]
    classes = {each for name in modules for each in vars(sys.modules[name]).values()
               if isinstance(each, type) and each.__module__.startswith("minions.")}
    reprs = [each for each in classes if "__attrs_attrs__" in vars(each)
             and "<attrs generated" in repr(getattr(each.__repr__, "__code__", ""))]
    print(json.dumps([len(modules), len(reprs), *seen[0]]), file=sys.stderr)

from minions.__main__ import main
sys.argv = ["minions", "run", sys.argv[1], "--db", sys.argv[2]]
main()
"""


def start_up(endpoint: Endpoint) -> dict[str, float]:
    """What a process of `minions run` loads, and how deep its HTTP call is."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / ".git").mkdir()  # the search for minions.toml ends here
        recipe = folder / "one.yaml"
        recipe.write_text(
            f"id: one\nmodel: {{name: ollama/fake, base_url: '{endpoint.base_url('plain')}'}}\n"
            "steps: [{id: ask, goal: Say something.}]\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", _WATCHED_RUN, str(recipe), str(folder / "runs.sqlite")],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT), "HOME": name},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        modules, reprs, frames, frame_modules = json.loads(done.stderr.splitlines()[-1])
    return {
        "modules": modules,
        "compiled-reprs": reprs,
        "frames": frames,
        "frame-modules": frame_modules,
    }


async def units_measured(endpoint: Endpoint) -> dict[str, float]:
    """What each unit costs now, in the order of the table."""
    measures: tuple[Callable[[Endpoint], AsyncIterator[tuple[str, float]]], ...] = (
        _model_calls,
        _structured_call,
        _tool_loops,
        _chains,
        _loop_items,
        _deltas,
        _requests,
    )
    found = start_up(endpoint)
    for measure in measures:
        async for name, cost in measure(endpoint):
            found[name] = cost
    return {name: round(found[name]) for name in UNITS}

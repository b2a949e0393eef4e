"""Whole processes, from the interpreter's start to its end."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.endpoint import Endpoint
from benchmarks.loading import big_recipe
from benchmarks.measuring import Effort, ProcessCost, Row, absolute_row, process_costs

STEPS = 10


async def measure(effort: Effort, endpoint: Endpoint) -> list[Row]:
    """Importing, helping, checking, running."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / ".git").mkdir()  # the search for minions.toml ends here
        commands = {
            "bare": ("-c", "pass"),
            "import": ("-c", "import minions"),
            "help": ("-m", "minions", "--help"),
            "validate": ("-m", "minions", "validate", _file(folder, "big", big_recipe(200))),
        }
        for kind, recipe in _recipes(endpoint.base_url("plain")):
            database = str(folder / f"{kind}.sqlite")
            path = _file(folder, kind, recipe)
            commands[kind] = ("-m", "minions", "run", path, "--db", database)
        measured = process_costs(effort, list(commands.values()), folder)
    return list(_rows(dict(zip(commands, measured, strict=True)), big=200))


def _recipes(base_url: str) -> Iterator[tuple[str, str]]:
    model = f"model: {{name: ollama/fake, base_url: '{base_url}'}}\n"
    yield "one", f"id: one\n{model}steps: [{{id: ask, goal: Say something.}}]\n"
    steps = ["  - {id: s0, goal: Say something.}\n"]
    steps += [f"  - {{id: s{at}, goal: 'Go on: {{{{ s{at - 1} }}}}'}}\n" for at in range(1, STEPS)]
    yield "chain", f"id: chain\n{model}steps:\n{''.join(steps)}"
    steps = [f"  - {{id: s{at}, goal: Say something.}}\n" for at in range(STEPS)]
    yield "wide", f"id: wide\nexecution_mode: parallel\n{model}steps:\n{''.join(steps)}"


def _file(folder: Path, name: str, text: str) -> str:
    path = folder / f"{name}.yaml"
    path.write_text(text, "utf-8")
    return str(path)


def _rows(costs: dict[str, ProcessCost], *, big: int) -> Iterator[Row]:
    bare = costs["bare"]
    for key, work in (("import", "`import minions`"), ("help", "`minions --help`")):
        cost = costs[key]
        yield Row(
            key=f"start-{key}",
            work=f"{work}, whole process",
            goal="≤ 100 ms CPU, ≤ 150 ms",
            measured=f"{cost.cpu_s * 1e3:.0f} ms CPU, {cost.wall_s * 1e3:.0f} ms",
            absolute=f"{cost}; bare Python {bare}",
            is_met=cost.cpu_s <= 0.1 and cost.wall_s <= 0.15,
        )
    one = costs["one"]
    yield Row(
        key="run-one",
        work="`minions run`, one step, one model call, whole process",
        goal="≤ 300 ms CPU, ≤ 45 MiB",
        measured=f"{one.cpu_s * 1e3:.0f} ms CPU, {one.peak_mib:.0f} MiB",
        absolute=str(one),
        is_met=one.cpu_s <= 0.3 and one.peak_mib <= 45,
    )
    for key, work in (("chain", "in a chain"), ("wide", "in parallel")):
        more_ms = (costs[key].cpu_s - one.cpu_s) * 1e3 / (STEPS - 1)
        yield absolute_row(
            f"run-{key}",
            f"`minions run`, each further step {work}",
            value=more_ms,
            most=10,
            unit="ms CPU",
        )
    yield absolute_row(
        "validate",
        f"`minions validate`, {big} steps, whole process",
        value=costs["validate"].cpu_s * 1e3,
        most=400,
        unit="ms CPU",
    )

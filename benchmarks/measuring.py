"""How work is measured, and what a figure looks like in the table."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from attrs import frozen

Work: TypeAlias = Callable[[], Awaitable[object]]


@frozen(kw_only=True)
class Effort:
    """How often things are done."""

    rounds: int
    scale: float = 1.0
    warms_up: bool = True
    """Do everything once before it counts: imports, connections, caches."""

    def count(self, full: int) -> int:
        """`full`, or a small part of it where a look at whether it works will do."""
        return max(2, int(full * self.scale))


FULL = Effort(rounds=5)
QUICK = Effort(rounds=1, scale=0.01, warms_up=False)


@frozen(kw_only=True)
class Row:
    """One line of the table."""

    key: str
    """Stable; `reasons.toml` is keyed by it."""
    work: str
    goal: str
    measured: str
    absolute: str
    is_met: bool


def ratio_row(key: str, work: str, *, ratio: float, most: float, of: str, absolute: str) -> Row:
    """A row whose figure is relative to something measured in the same rounds."""
    return Row(
        key=key,
        work=work,
        goal=f"≤ {most:g} × {of}",
        measured=f"{ratio:.3f}" if ratio < 0.1 else f"{ratio:.2f}",
        absolute=absolute,
        is_met=ratio <= most,
    )


def absolute_row(key: str, work: str, *, value: float, most: float, unit: str) -> Row:
    """A row with a figure of this machine."""
    shown = f"{value:.0f}" if value >= 100 else f"{value:.3g}"
    return Row(
        key=key,
        work=work,
        goal=f"≤ {most:g} {unit}",
        measured=f"{shown} {unit}",
        absolute=f"{shown} {unit}",
        is_met=value <= most,
    )


async def least_cpu_s(effort: Effort, works: Mapping[str, Work]) -> dict[str, float]:
    """CPU seconds of this process for each work: the least of several rounds, taken in turns."""
    for work in works.values() if effort.warms_up else ():
        await work()
    best = dict.fromkeys(works, float("inf"))
    for _ in range(effort.rounds):
        for name, work in works.items():
            gc.collect()
            begin = time.process_time()
            await work()
            best[name] = min(best[name], time.process_time() - begin)
    return best


@frozen(kw_only=True)
class ProcessCost:
    """What a whole process took, from the interpreter's start to its end."""

    cpu_s: float
    wall_s: float
    peak_mib: float

    def __str__(self) -> str:
        return f"{self.cpu_s * 1e3:.0f} ms CPU, {self.wall_s * 1e3:.0f} ms, {self.peak_mib:.0f} MiB"


def process_costs(
    effort: Effort, commands: Sequence[Sequence[str]], folder: Path
) -> list[ProcessCost]:
    """Of each command of the interpreter (`("-c", "pass")`), the least of several rounds.

    Byte code is cached, as it is wherever a package was installed with pip. The commands run in
    `folder`: this checkout's own configuration loads the models of the shipped examples.
    """
    with tempfile.TemporaryDirectory() as cache:
        own, others = str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH")
        environ = {**os.environ, "PYTHONPATH": f"{own}{os.pathsep}{others}" if others else own}
        if effort.warms_up:
            environ["PYTHONPYCACHEPREFIX"] = cache
            environ.pop("PYTHONDONTWRITEBYTECODE", None)
        done = subprocess.run(
            [sys.executable, "-S", str(Path(__file__).with_name("launcher.py"))],
            input=json.dumps(
                {
                    "rounds": effort.rounds,
                    "warms_up": effort.warms_up,
                    "commands": [[sys.executable, *command] for command in commands],
                }
            ),
            env=environ,
            cwd=folder,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    return [
        ProcessCost(cpu_s=cpu_s, wall_s=wall_s, peak_mib=peak_mib)
        for cpu_s, wall_s, peak_mib in json.loads(done.stdout)
    ]

"""Measures everything and writes RESULTS.md beside this file.

python benchmarks/run.py                   all of it: some three minutes
python benchmarks/run.py --only streaming  one subject, printed only; repeatable
python benchmarks/run.py --quick           a look at whether it works, printed only
"""

from __future__ import annotations

import argparse
import asyncio
import platform
import sys
import tomllib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from benchmarks import (
    chains,
    chaos,
    evaluating,
    flow,
    front_door,
    group_commit,
    journal,
    large_values,
    loading,
    lookups,
    mcp_call,
    model_call,
    parallel,
    server,
    sessions,
    start_up,
    streaming,
    structured,
    tool_loop,
    tracing,
)
from benchmarks.endpoint import Endpoint
from benchmarks.measuring import FULL, QUICK, Effort, Row

SUBJECTS: Final[Mapping[str, Callable[[Effort, Endpoint], Awaitable[list[Row]]]]] = {
    "model-call": model_call.measure,
    "tool-loop": tool_loop.measure,
    "mcp-call": mcp_call.measure,
    "structured": structured.measure,
    "streaming": streaming.measure,
    "parallel": parallel.measure,
    "flow": flow.measure,
    "tracing": tracing.measure,
    "chains": chains.measure,
    "chaos": chaos.measure,
    "evaluation": evaluating.measure,
    "front-door": front_door.measure,
    "journal": journal.measure,
    "group-commit": group_commit.measure,
    "sessions": sessions.measure,
    "lookups": lookups.measure,
    "server": server.measure,
    "large-values": large_values.measure,
    "loading": loading.measure,
    "start-up": start_up.measure,
}
_HERE: Final = Path(__file__).parent


def main(arguments: Sequence[str]) -> None:
    """Measure and print; write only what is whole."""
    options = _options(arguments)
    effort = QUICK if options.quick else FULL
    rows = asyncio.run(_measured(options.only or list(SUBJECTS), effort))
    text = _page(rows, effort)
    print(text)
    if not options.quick and not options.only:
        (_HERE / "RESULTS.md").write_text(text, "utf-8")


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="What Minions costs.")
    parser.add_argument("--only", action="append", choices=list(SUBJECTS), metavar="NAME")
    parser.add_argument("--quick", action="store_true", help="few repetitions")
    return parser.parse_args(arguments)


async def _measured(names: Sequence[str], effort: Effort) -> list[Row]:
    rows = []
    with Endpoint() as endpoint:
        for name in names:
            print(f"{name} …", file=sys.stderr)
            rows += await SUBJECTS[name](effort, endpoint)
    return rows


def _page(rows: Sequence[Row], effort: Effort) -> str:
    reasons: Mapping[str, str] = tomllib.loads((_HERE / "reasons.toml").read_text("utf-8"))
    missed = [row for row in rows if not row.is_met and row.key in reasons]
    machine = f"Python {platform.python_version()}, {platform.machine()}"
    lines = [
        "# Results",
        "",
        "CPU time of the worker, the least of several rounds taken in turns; the model is a server",
        "on this machine, in a process of its own. Ratios hold within one run; absolute values",
        f"belong to one machine: {machine}, {effort.rounds} rounds. `make bench` writes this page.",
        "Goals in seconds were set on a machine on which the SDK's call takes 1.4 ms of CPU time:",
        "its time in the first row says how much slower this one was just then.",
        "",
        "| work | goal | measured | absolute | met |",
        "|---|---|---|---|---|",
        *(_line(row) for row in rows),
        *(("", "Why a goal is missed:", "") if missed else ()),
        *(f"- {row.work}: {reasons[row.key]}" for row in missed),
        "",
        f"#{(_HERE / 'crash.md').read_text('utf-8').rstrip()}",
        "",
        f"#{(_HERE / 'workers.md').read_text('utf-8').rstrip()}",
        "",
        f"#{(_HERE / 'tokens.md').read_text('utf-8').rstrip()}",
        "",
    ]
    return "\n".join(lines)


def _line(row: Row) -> str:
    met = "yes" if row.is_met else "**no**"
    return f"| {row.work} | {row.goal} | {row.measured} | {row.absolute} | {met} |"


if __name__ == "__main__":
    main(sys.argv[1:])

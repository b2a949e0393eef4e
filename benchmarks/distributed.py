"""What distributing a loop costs: a worker's processor time and memory, for 1,000 and 10,000 items.

`python -m benchmarks.distributed [ITEMS …]` prints the table of docs/scale.md. Each item holds a
kilobyte and asks for next to nothing, so that what is left is the cost of its run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from attrs import frozen

_ITEMS: Final = (1_000, 10_000)
_ITEM_BYTES: Final = 1_000
_RECIPE: Final = """
id: items
inputs: {items: {type: array, items: {type: string}}}
steps:
  - {id: each, distribute: true, loop: "{{ inputs.items }}", set: {n: "{{ loop.item | length }}"}}
output: {count: "{{ each.successful }}"}
"""
_COMMAND: Final = (sys.executable, "-m", "minions")


@frozen(kw_only=True)
class Measured:
    """What one process took."""

    seconds: float
    """Of a processor, so that what else the machine does counts less."""
    mebibytes: float
    """The most memory that it had."""


def measured(folder: Path, *arguments: str) -> Measured:
    """Run a command to its end.

    Raises:
        RuntimeError: It failed.
    """
    nowhere = subprocess.DEVNULL
    process = subprocess.Popen([*_COMMAND, *arguments], cwd=folder, stdout=nowhere, stderr=nowhere)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = code = os.waitstatus_to_exitcode(status)
    if code:
        raise RuntimeError(f"{arguments[0]} ended with {code}")
    return Measured(seconds=usage.ru_utime + usage.ru_stime, mebibytes=usage.ru_maxrss / 1024)


def distributed(count: int) -> tuple[Measured, Measured]:
    """A worker that executes all items as runs, and one that executes them within the run."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        items = [f"{number:>{_ITEM_BYTES}}" for number in range(count)]
        (folder / "items.json").write_text(json.dumps({"items": items}), "utf-8")
        results: list[Measured] = []
        for recipe in (_RECIPE, _RECIPE.replace("distribute: true, ", "")):
            database = ("--db", f"{len(results)}.sqlite")
            (folder / "items.yaml").write_text(recipe, "utf-8")
            measured(folder, "run", "items.yaml", "--params", "items.json", "--detach", *database)
            results.append(measured(folder, "worker", "--once", "--slots", "8", *database))
    first, second = results
    return first, second


def main() -> None:
    """Print the table."""
    print("| items | as child runs | memory | within the run | memory |")  # the result
    print("|---|---|---|---|---|")
    for count in [int(each) for each in sys.argv[1:]] or _ITEMS:
        apart, within = distributed(count)
        print(
            f"| {count:,} | {apart.seconds:.1f} s | {apart.mebibytes:.0f} MiB "
            f"| {within.seconds:.1f} s | {within.mebibytes:.0f} MiB |"
        )


if __name__ == "__main__":
    main()

"""Runs the pipeline on a file: `python3 -m pipeline.run data/sample.jsonl`."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from pipeline.config import DEFAULT, Limits
from pipeline.monitoring import Monitor, TooManyFaultsError
from pipeline.processing import Daily, daily, read_lines


def run(path: Path, monitor: Monitor, limits: Limits = DEFAULT) -> list[Daily]:
    """The daily figures of a file; raises OSError or TooManyFaultsError."""
    with monitor.part("read"), path.open(encoding="utf-8") as file:
        batch = read_lines(file, limits)
    monitor.saw(batch)
    monitor.check(limits)
    with monitor.part("figures"):
        return daily(batch.readings)


def as_text(figures: Sequence[Daily]) -> str:
    """One JSON object a line."""
    return "".join(f"{json.dumps(asdict(each), default=str)}\n" for each in figures)


def main(arguments: Sequence[str]) -> int:
    """Print the figures; the report and what went wrong go to standard error."""
    if len(arguments) != 1:
        print("usage: python3 -m pipeline.run FILE", file=sys.stderr)
        return 2
    monitor = Monitor()
    try:
        figures = run(Path(arguments[0]), monitor)
    except (OSError, TooManyFaultsError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    finally:
        print(monitor.report(), file=sys.stderr)
    sys.stdout.write(as_text(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""`make bench` works: each subject once, with few repetitions; no figure is looked at."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from patience import HANG_S

ROOT = Path(__file__).parents[2]


@pytest.mark.long
def test_every_row_of_the_benchmarks_can_be_measured() -> None:
    before = (ROOT / "benchmarks" / "RESULTS.md").read_bytes()
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.run", "--quick"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=5 * HANG_S,
        env={**os.environ, "MINIONS_BENCHMARK_PAUSE_S": "0.03"},  # its figure is not looked at
    )
    assert done.returncode == 0, done.stderr
    measured, *sections = done.stdout.split("\n## ")
    rows = [line for line in measured.splitlines() if line.endswith(("| yes |", "| **no** |"))]
    assert len(rows) == 77
    assert [each.partition("\n")[0] for each in sections] == [
        "Crashes",
        "Runs that outlive their workers",
        "Tokens",
    ]
    assert (ROOT / "benchmarks" / "RESULTS.md").read_bytes() == before

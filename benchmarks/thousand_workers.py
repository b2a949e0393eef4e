"""What a thousand workers ask of their database, on a fake clock.

`python -m benchmarks.thousand_workers [WORKERS]` prints figures of docs/scale.md: the workers,
their looks, heartbeats and claims are the real ones, the database is rows in memory that counts
what it is asked (`tests/workers/crowd.py`). They do not depend on the machine, only on the seed.
Two minutes for 1,000.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from attrs import evolve

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from workers.crowd import Crowd, crowded

if TYPE_CHECKING:
    from workers.crowd import CrowdOutcome

_WORKERS: Final = 1_000
_JOBS_PER_S: Final = 12.0
_SEED: Final = 1


def main() -> None:
    """Print the table."""
    workers = int(sys.argv[1]) if len(sys.argv) > 1 else _WORKERS
    idle = Crowd(workers=workers)
    print("| | transactions/s | statements/s | heartbeats/s | busiest second | told/s | taken |")
    print("|---|---|---|---|---|---|---|")
    for words, crowd in (
        ("1 idle", Crowd(workers=1)),
        (f"{workers:,} idle", idle),
        (f"{workers:,} idle, started in one moment", evolve(idle, started_within_s=0.0)),
        (f"{workers:,}, {_JOBS_PER_S:g} jobs a second", evolve(idle, jobs_per_s=_JOBS_PER_S)),
    ):
        print(_row(words, crowded(crowd, _SEED)), flush=True)


def _row(words: str, outcome: CrowdOutcome) -> str:
    if outcome.faults:
        sys.exit("\n".join(outcome.faults[:10]))
    seconds = outcome.crowd.counted_s
    taken = "–"
    if outcome.taken_s:
        claims, looks = (outcome.calls[kind] / outcome.executed for kind in ("claim", "look"))
        taken = "{:.1f} ms; {:.1f} ms".format(*outcome.taken_ms)
        taken += f" ({looks:.1f} looks and {claims:.1f} claims a job)"
    return (
        f"| {words} | {outcome.idle_per_s:,.2f} | {outcome.statements_per_s:,.2f} "
        f"| {outcome.per_s('heartbeat'):,.1f} | {outcome.busiest:,} "
        f"| {outcome.told / seconds:,.0f} | {taken} |"
    )


if __name__ == "__main__":
    main()

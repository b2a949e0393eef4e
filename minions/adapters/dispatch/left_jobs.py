"""The jobs that one worker leaves to others, for it lacks what they need."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from minions.contracts.dispatch import Job, Lack

_MOST: Final = 1_000
"""Needs, and runs, that are remembered; the oldest are forgotten, and may be taken once more."""


class LeftJobs:
    """What a worker takes no more. Read by the threads of an engine, changed by its loop."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        """It takes everything yet."""
        self._monotonic = monotonic
        self._needs: dict[str, float | None] = {}
        """When it may take jobs of these needs again; None: never."""
        self._runs: dict[str, float | None] = {}

    def leave(self, job: Job, lack: Lack) -> None:
        """Take no more jobs like that one."""
        until = None if lack.again_s is None else self._monotonic() + lack.again_s
        is_of_kind = not lack.is_of_run and bool(job.needs)
        left, name = (self._needs, job.needs) if is_of_kind else (self._runs, job.run_id)
        left.pop(name, None)  # it is the newest one again
        left[name] = until
        if len(left) > _MOST:
            left.pop(next(iter(left)))

    def takes(self, job: Job) -> bool:
        """Whether the worker may take it."""
        if not self._needs and not self._runs:
            return True
        return self._is_over(self._needs, job.needs) and self._is_over(self._runs, job.run_id)

    def _is_over(self, left: dict[str, float | None], name: str) -> bool:
        until = left.get(name, 0.0)  # one look: the loop may forget it meanwhile
        return until is not None and until <= self._monotonic()

    @property
    def needs(self) -> list[str]:
        """The keys of needs whose jobs it leaves now."""
        return [each for each in tuple(self._needs) if not self._is_over(self._needs, each)]

    @property
    def runs(self) -> list[str]:
        """The ids of runs that it leaves now."""
        return [each for each in tuple(self._runs) if not self._is_over(self._runs, each)]

    def next_s(self) -> float | None:
        """Seconds until it may take something again; None: no time changes that."""
        now = self._monotonic()
        times = [*self._needs.values(), *self._runs.values()]
        return min((at - now for at in times if at is not None and at > now), default=None)

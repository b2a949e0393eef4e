"""Counts of executed agent steps."""

from __future__ import annotations

import threading

from attrs import evolve, field, frozen, mutable


@frozen(kw_only=True)
class ExecutionMetrics:
    """The counts of all agent steps that an executor has ended so far."""

    total_executions: int = 0
    """Successful and failed ones; answers of the cache count as successful."""
    successful_executions: int = 0
    failed_executions: int = 0
    """Error results, refused requests and cancelled steps."""
    retry_count: int = 0
    """Attempts beyond the first one of each step, and of each call of a model or tool in its run,
    however the step ended."""
    total_execution_time: float = 0.0
    """Seconds, from the call to the result of each step."""


@mutable(eq=False)
class ExecutionCounts:
    """The metrics of an executor while it works."""

    metrics: ExecutionMetrics = field(factory=ExecutionMetrics)
    _lock: threading.Lock = field(factory=threading.Lock, init=False)

    def add(self, *, is_success: bool, retries: int, seconds: float) -> None:
        """Count a step that has ended."""
        with self._lock:
            now = self.metrics
            self.metrics = evolve(
                now,
                total_executions=now.total_executions + 1,
                successful_executions=now.successful_executions + is_success,
                failed_executions=now.failed_executions + (not is_success),
                retry_count=now.retry_count + retries,
                total_execution_time=now.total_execution_time + seconds,
            )

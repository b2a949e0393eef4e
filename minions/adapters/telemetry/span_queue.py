"""`SpanQueue`: spans that ended, until a thread has sent them in batches.

The queue is bounded in spans and in bytes: what comes when it is full is dropped, and counted.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from attrs import frozen

from minions.adapters.telemetry.otlp_encoding import SpanRecord, rough_size
from minions.data.errors import EnvironmentRefusedError

__all__ = ["BatchLimits", "SpanQueue"]

_MOST_BYTES: Final = 64 << 20
"""Bytes of all spans that wait: texts of prompts may be among them."""
_MOST_BYTES_SENT: Final = 4 << 20
"""Bytes of one request, as long as it has more than one span: collectors refuse large ones."""


@frozen(kw_only=True)
class BatchLimits:
    """How spans are put together. The defaults are OpenTelemetry's."""

    most_waiting: int = 2_048
    """Spans of the queue."""
    most_sent: int = 512
    """Spans of one request. So many are sent at once, fewer after `delay_s`."""
    delay_s: float = 5.0

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> BatchLimits:
        """As the variables OTEL_BSP_* say.

        Raises:
            EnvironmentRefusedError: `bad-telemetry`; one of them is no number above 0, or a
                request is to have more spans than the queue.
        """
        usual = cls()
        most_waiting = _number(environ, "OTEL_BSP_MAX_QUEUE_SIZE", usual.most_waiting)
        usual_sent = min(usual.most_sent, most_waiting)
        limits = cls(
            most_waiting=most_waiting,
            most_sent=_number(environ, "OTEL_BSP_MAX_EXPORT_BATCH_SIZE", usual_sent),
            delay_s=_number(environ, "OTEL_BSP_SCHEDULE_DELAY", int(usual.delay_s * 1000)) / 1000,
        )
        if limits.most_sent > limits.most_waiting:
            raise EnvironmentRefusedError(
                f"OTEL_BSP_MAX_EXPORT_BATCH_SIZE is {limits.most_sent}, and the queue has room "
                f"for {limits.most_waiting}: OTEL_BSP_MAX_QUEUE_SIZE={limits.most_sent}, or more.",
                code="bad-telemetry",
            )
        return limits


class SpanQueue:
    """Takes spans from any thread. The thread that sends begins with the first span."""

    def __init__(
        self,
        send: Callable[[Sequence[SpanRecord]], None],
        limits: BatchLimits,
        warn: Callable[[str], None],
    ) -> None:
        """No thread runs.

        Args:
            send: Sends some spans, in the thread; raises nothing.
            warn: Called, from the thread, with one line when spans are first dropped, and at the
                end with their number.
        """
        self._send = send
        self._limits = limits
        self._warn = warn
        self._dropped = 0
        self._is_closed = False
        self._begin()
        if hasattr(os, "register_at_fork"):
            begin = weakref.WeakMethod(self._begin)
            os.register_at_fork(after_in_child=lambda: (again := begin()) and again())

    def _begin(self) -> None:
        """Nothing waits; also in a process that was forked: its parent sends what waited."""
        self._waiting: deque[tuple[SpanRecord, int]] = deque()
        """Spans with their rough sizes."""
        self._bytes = 0
        self._lock = threading.Lock()
        self._wakes = threading.Event()
        self._worker: threading.Thread | None = None

    @property
    def dropped(self) -> int:
        """Spans that were not sent because the queue was full."""
        return self._dropped

    def add(self, span: SpanRecord) -> None:
        """Let a span wait. Returns at once; a span that finds no room, or comes late, is lost."""
        size = rough_size(span)
        with self._lock:
            count = len(self._waiting)
            is_full = count >= self._limits.most_waiting or self._bytes + size > _MOST_BYTES
            if is_full or self._is_closed:
                self._dropped += 1
                return
            self._waiting.append((span, size))
            self._bytes += size
            if self._worker is None:
                self._start()
        if count + 1 == self._limits.most_sent:
            self._wakes.set()

    def close(self) -> None:
        """Send what waits, which takes as long as it takes. A second call does nothing."""
        with self._lock:
            self._is_closed = True
            thread = self._worker
        self._wakes.set()
        if thread is not None:
            thread.join()

    def _start(self) -> None:
        self._worker = threading.Thread(target=self._work, name="minions-spans", daemon=True)
        self._worker.start()

    def _work(self) -> None:
        is_told = False
        while not self._is_closed:
            is_woken = self._wakes.wait(self._limits.delay_s)
            self._wakes.clear()
            self._send_all(least=self._limits.most_sent if is_woken else 1)
            if self._dropped and not is_told:
                is_told = True
                self._warn(f"Spans are dropped: {self._reason()}")
        self._send_all(least=1)
        if self._dropped:
            self._warn(f"{self._dropped:,} spans were dropped: {self._reason()}")

    def _send_all(self, least: int) -> None:
        while len(self._waiting) >= least:
            self._send(self._taken())

    def _taken(self) -> list[SpanRecord]:
        """The oldest spans that one request has room for: one at least."""
        taken: list[SpanRecord] = []
        size = 0
        with self._lock:
            while self._waiting and len(taken) < self._limits.most_sent:
                span, own = self._waiting[0]
                if taken and size + own > _MOST_BYTES_SENT:
                    break
                size += own
                self._waiting.popleft()
                taken.append(span)
            self._bytes -= size
        return taken

    def _reason(self) -> str:
        return (
            f"more than {self._limits.most_waiting:,} (OTEL_BSP_MAX_QUEUE_SIZE), or 64 MiB of "
            "them, were waiting for the collector."
        )


def _number(environ: Mapping[str, str], name: str, usual: int) -> int:
    said = environ.get(name, "").strip()
    if not said:
        return usual
    if said.isascii() and said.isdigit() and len(said) < 10 and int(said):
        return int(said)
    raise EnvironmentRefusedError(
        f"{name} is '{said:.40}', which is no whole number above 0: {name}={usual}, or unset it.",
        code="bad-telemetry",
    )

"""Shows the progress of a batch: one line that changes on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from minions.contracts.executions import RunState
from minions.contracts.messages import TokenUsage
from minions.contracts.runtime import Clock
from minions.data.texts import spoken
from minions.engine.batches.result import NOT_STARTED, BatchResult
from minions.interfaces.cli.console.console import tell
from minions.interfaces.cli.console.render import dollars, plain, wants_color

if TYPE_CHECKING:
    from rich.live import Live
    from rich.text import Text


_EVERY_S: Final = 5.0
"""Seconds between two lines where the output is no terminal."""
_MOST_FAILURES: Final = 5
"""Failed lines that are named; all are in the results."""
_MOST_CHANGED: Final = 5
_NAMED: Final = frozenset((RunState.FAILED.value, RunState.LIMIT_REACHED.value))


class BatchTally:
    """Counts of results."""

    def __init__(self, total: int) -> None:
        """Nothing is counted yet.

        Args:
            total: The number of lines.
        """
        self.total = total
        self.by_status: Counter[str] = Counter()
        self.usage = TokenUsage()
        self.recorded = 0
        """Lines that had ended before this execution."""
        self.changed: list[int] = []
        """The first lines that had other inputs before, by index."""
        self.changed_count = 0

    @property
    def done(self) -> int:
        """The number of results."""
        return self.by_status.total()

    @property
    def others(self) -> int:
        """Lines in a state that needs a look: another process runs them, or they are damaged."""
        return sum(
            self.by_status[state]
            for state in (RunState.RUNNING, RunState.UNREADABLE, RunState.REJECTED)
        )

    def add(self, result: BatchResult) -> None:
        """Count a result."""
        self.by_status[str(result.status)] += 1
        self.usage += result.usage
        self.recorded += result.is_recorded
        if result.is_changed:
            self.changed_count += 1
            self.changed = sorted([*self.changed, result.index])[:_MOST_CHANGED]

    def words(self, seconds: float) -> str:
        """`57/200 · 2 failed · 4.1/s · 35 s left · $0.02`."""
        failed, waiting = (
            self.by_status[state] for state in (RunState.FAILED, RunState.NEEDS_DECISION)
        )
        parts = [f"{self.done}/{self.total}"]
        parts += [f"{failed} failed"] if failed else []
        parts += [f"{waiting} waiting"] if waiting else []
        new = self.done - self.recorded - self.by_status[NOT_STARTED]
        if new > 0 and seconds > 0:
            rate = new / seconds
            left = (self.total - self.done) / rate
            parts.append(f"{rate:.3g}/s")
            parts += [f"{spoken(left * 1_000)} left"] if self.done < self.total else []
        if self.usage.cost_usd is not None:
            parts.append(dollars(self.usage.cost_usd))
        return " · ".join(parts)


class BatchProgress:
    """Prints a line now and then, and one for each of the first failures."""

    def __init__(self, total: int, clock: Clock, write: Callable[[str], None]) -> None:
        """The time begins now."""
        self.tally = BatchTally(total)
        self._clock = clock
        self._begin = clock.monotonic()
        self._last = self._begin
        self._failures = 0
        self._write = write

    @property
    def seconds(self) -> float:
        """Seconds since the beginning."""
        return self._clock.monotonic() - self._begin

    def on_result(self, result: BatchResult) -> None:
        """Count the result, and print what is due."""
        self.tally.add(result)
        if result.status in _NAMED and not result.is_recorded:
            self._failures += 1
            if self._failures <= _MOST_FAILURES:
                code = result.error.code if result.error is not None else result.status
                self._write(f"  index {result.index} {result.status}: {code} ({result.run_id})")
            if self._failures == _MOST_FAILURES:
                self._write("  … further failures are in the results")
        self._show()

    def _show(self) -> None:
        """Print the line that is due."""
        now = self._clock.monotonic()
        if now - self._last >= _EVERY_S:
            self._last = now
            self._write(f"  {self.tally.words(now - self._begin)}")

    def close(self) -> None:
        """End the output."""


class LiveBatchProgress(BatchProgress):
    """A line at the bottom of the terminal, drawn twice a second."""

    def __init__(self, total: int, clock: Clock, environ: Mapping[str, str]) -> None:
        """Begin to draw."""
        from rich.console import Console
        from rich.live import Live

        console = Console(stderr=True, no_color=not wants_color(sys.stderr, environ))
        super().__init__(
            total, clock, lambda line: console.print(plain(line), markup=False, highlight=False)
        )
        self._live: Live = Live(
            get_renderable=self._line, console=console, refresh_per_second=2, transient=True
        )
        self._live.start()

    def _line(self) -> Text:
        from rich.text import Text

        return Text(self.tally.words(self.seconds), no_wrap=True, overflow="ellipsis")

    def _show(self) -> None:
        """The line is drawn by itself."""

    def close(self) -> None:
        """Remove the line."""
        self._live.stop()


def batch_progress(environ: Mapping[str, str], clock: Clock, total: int) -> BatchProgress:
    """The progress of a batch of so many lines, live if a person looks at standard error."""
    is_live = (
        sys.stderr is not None
        and sys.stderr.isatty()
        and environ.get("TERM") != "dumb"
        and not environ.get("CI")
    )
    return (
        LiveBatchProgress(total, clock, environ) if is_live else BatchProgress(total, clock, tell)
    )

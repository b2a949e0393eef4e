"""The live list on a terminal: what it draws, also of a run that goes on in the middle."""

from __future__ import annotations

import io
from datetime import UTC, datetime

from rich.console import Console

from minions.contracts.events import RunStarted, StepFinished, StepStarted
from minions.interfaces.cli.console.progress import LiveProgress

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def drawn(progress: LiveProgress, stream: io.StringIO) -> str:
    progress.close()
    return stream.getvalue()


def on_screen() -> tuple[LiveProgress, io.StringIO]:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=60, height=20, no_color=True)
    progress = LiveProgress(console)
    progress.on_event(
        RunStarted(run_id="run_1", session_id="ses_1", timestamp=NOW, recipe="r", model_name=None)
    )
    return progress, stream


def started(step_id: str, index: int | None = None) -> StepStarted:
    return StepStarted(
        run_id="run_1", session_id="ses_1", timestamp=NOW, step_id=step_id, index=index
    )


def finished(step_id: str, index: int | None = None, status: str = "completed") -> StepFinished:
    return StepFinished(
        run_id="run_1",
        session_id="ses_1",
        timestamp=NOW,
        step_id=step_id,
        status=status,
        index=index,
        usage={},
        duration_ms=1.0,
    )


def test_items_are_shown_also_when_their_loop_began_in_an_earlier_leg() -> None:
    progress, stream = on_screen()
    progress.on_event(started("each", 3))
    progress.on_event(finished("each", 3))
    assert "each" in drawn(progress, stream)


def test_a_step_that_waits_for_a_person_is_shown_as_that() -> None:
    progress, stream = on_screen()
    progress.on_event(started("ask"))
    progress.on_event(finished("ask", status="in_progress"))
    assert "? ask" in drawn(progress, stream)


def test_it_stands_still_while_somebody_else_has_the_screen() -> None:
    progress, stream = on_screen()
    with progress.paused():
        before = stream.getvalue()
        progress.on_event(started("a"))
        assert stream.getvalue() == before
    progress.on_event(finished("a"))
    assert "✓ a" in drawn(progress, stream)

"""The live list on a terminal: what it draws, also of a run that goes on in the middle."""

from __future__ import annotations

import io
from collections.abc import Mapping
from datetime import UTC, datetime

from attrs import evolve
from rich.console import Console

from minions.contracts.journal.facts import StepFinished as Ended
from minions.contracts.journal.facts import StepStarted as Begun
from minions.contracts.run_events import (
    PlanReplaced,
    RunStarted,
    ServerWait,
    StepFinished,
    StepStarted,
)
from minions.data.json_values import JsonValue
from minions.interfaces.cli.console.live_progress import LiveProgress, PlainProgress
from minions.interfaces.cli.console.render import (
    painter,
)

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


def started(step_id: str, index: int | None = None, total: int | None = None) -> StepStarted:
    return StepStarted(
        run_id="run_1", session_id="ses_1", timestamp=NOW, step_id=step_id, index=index, total=total
    )


def finished(
    step_id: str,
    index: int | None = None,
    status: str = "completed",
    usage: Mapping[str, JsonValue] | None = None,
) -> StepFinished:
    return StepFinished(
        run_id="run_1",
        session_id="ses_1",
        timestamp=NOW,
        step_id=step_id,
        status=status,
        index=index,
        usage=usage or {},
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


def executed_again(progress: PlainProgress | LiveProgress, model: str | None = None) -> None:
    progress.on_event(
        RunStarted(run_id="run_1", session_id="ses_1", timestamp=NOW, recipe="r", model_name=model)
    )


def waits_for_runs() -> StepFinished:
    error = {"code": "waits-for-runs", "message": "Step 'each' waits for child runs."}
    return evolve(finished("each", status="in_progress"), error=error)


def test_executions_of_one_run_repeat_no_line_on_its_recipe_and_model() -> None:
    lines: list[str] = []
    progress = PlainProgress(lines.append, painter(is_on=False))
    for model in (None, None, "other", "other"):
        executed_again(progress, model)
    assert lines == ["recipe r · no model needed", "recipe r · model other"]
    live, stream = on_screen()
    executed_again(live)
    assert drawn(live, stream).count("recipe r") == 1


def test_a_step_that_waits_for_its_child_runs_has_not_ended() -> None:
    lines: list[str] = []
    progress = PlainProgress(lines.append, painter(is_on=False))
    for event in (started("each"), waits_for_runs(), waits_for_runs(), finished("each")):
        progress.on_event(event)
    assert lines == ["  ▸ each", "  ✓ each (1 ms)"]
    live, stream = on_screen()
    live.on_event(started("each", total=3))
    live.on_event(waits_for_runs())
    assert "waits for child runs" in drawn(live, stream)


def test_it_stands_still_while_somebody_else_has_the_screen() -> None:
    progress, stream = on_screen()
    with progress.paused():
        before = stream.getvalue()
        progress.on_event(started("a"))
        assert stream.getvalue() == before
    progress.on_event(finished("a"))
    assert "✓ a" in drawn(progress, stream)


def test_it_does_not_draw_over_what_somebody_else_showed_meanwhile() -> None:
    progress, stream = on_screen()
    progress.on_event(started("a"))
    progress.on_event(started("b"))
    with progress.paused():
        stream.write("Carry out this plan?\n")
    shown = drawn(progress, stream).partition("Carry out this plan?\n")[2]
    up = "\x1b[1A"
    assert up not in shown.partition("▸ a")[0]
    assert "▸ b" in shown


USED: Mapping[str, JsonValue] = {"input_tokens": 400, "output_tokens": 150, "cost_usd": 0.01}


def test_a_running_loop_tells_how_far_it_has_come_and_what_it_cost() -> None:
    progress, stream = on_screen()
    progress.on_event(started("each", total=200))
    for index in range(3):
        progress.on_event(started("each", index))
    progress.on_event(finished("each", 0, usage=USED))
    progress.on_event(finished("each", 2, "failed", usage=USED))
    assert "2/200, 1 failed, 1.1k tokens, $0.02" in drawn(progress, stream)


def test_a_resumed_loop_counts_the_items_that_were_recorded_before() -> None:
    progress, stream = on_screen()
    recorded = [Ended(step_id="each", status="completed", index=at) for at in range(5)]
    progress.recall([Begun(step_id="each", total=9), *recorded])
    progress.on_event(started("each", 4))
    progress.on_event(finished("each", 5))
    assert "5/9" in drawn(progress, stream)


def test_a_loop_that_runs_a_second_time_starts_to_count_anew() -> None:
    progress, stream = on_screen()
    for _ in range(2):
        progress.on_event(started("each", total=2))
        progress.on_event(finished("each", 0))
        progress.on_event(finished("each"))
    progress.on_event(started("each", total=3))
    progress.on_event(finished("each", 1))
    assert "1/3" in drawn(progress, stream)


def test_without_a_terminal_a_long_loop_tells_a_line_for_each_tenth() -> None:
    lines: list[str] = []
    progress = PlainProgress(lines.append, painter(is_on=False))
    progress.on_event(started("each", total=40))
    for index in range(40):
        progress.on_event(finished("each", index))
    assert [line.strip() for line in lines[1:3]] == ["each: 4/40", "each: 8/40"]
    assert len(lines) == 10


def test_a_new_plan_is_drawn_above_the_list_and_cannot_draw_itself() -> None:
    progress, stream = on_screen()
    progress.on_event(
        PlanReplaced(
            run_id="run_1",
            session_id="ses_1",
            timestamp=NOW,
            step_id="work",
            text="NEW PLAN: Rest\n+ use (modify): added\n    GOAL: [bold]a[/bold] \x1b[2J"
            + " word" * 20,
            diff={},
        )
    )
    shown = drawn(progress, stream)
    assert "work is planned again:" in shown
    assert "+ use (modify): added" in shown
    assert "GOAL: [bold]a[/bold]" in shown
    assert "\x1b[2J" not in shown
    assert "\n        word word" in shown.replace("\r", "")


def test_a_call_that_waits_for_its_server_says_until_when() -> None:
    """... on the terminal and in plain lines (A-156)."""
    wait = ServerWait(
        run_id="run_1",
        session_id="ses_1",
        timestamp=NOW,
        step_id="ask",
        model="openai/m",
        server="https://h:443",
        until=NOW,
    )
    at = f"{NOW.astimezone():%H:%M:%S}"
    lines: list[str] = []
    PlainProgress(lines.append, painter(is_on=False)).on_event(wait)
    assert lines == [f"    ask: waits for https://h:443 until {at} (openai/m)"]
    progress, stream = on_screen()
    progress.on_event(started("ask"))
    progress.on_event(wait)
    assert f"waits for https://h:443 until {at}" in drawn(progress, stream)

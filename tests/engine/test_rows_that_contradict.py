"""Rows that are JSON of the right kind and still tell nothing: the run is refused, with the row."""

from __future__ import annotations

import pytest

from builders import draft_of, recipe_of
from minions.data.errors import JournalError
from minions.data.json_values import JsonValue
from minions.engine.compile.selection import RunPart
from minions.engine.run.pins import find_pins
from minions.engine.services.memory_journal import MemoryJournal
from minions.engine.services.run_services import Services
from minions.engine.sessions.deletion import find_session, remove_sessions
from minions.engine.views.lookup import find_run, list_runs
from minions.engine.views.run_detail import show_run
from minions.recipe.kinds.set_kind import SetSpec
from minions.testing.virtual_time import FakeClock


@pytest.mark.parametrize(
    ("kind", "state", "body", "problem"),
    [
        ("model_call", "finished", {"message": {}}, "missing required field `role` - at `$.mess"),
        ("message", "recorded", {"call": "k"}, "no end of the tool call 'k' is recorded before it"),
        ("message", "recorded", {"call": "k", "sequence": 1}, "no end of the tool call 'k'"),
        ("decision", "recorded", {"word": "answer:{"}, "`answer:{` holds no JSON"),
        ("decision", "recorded", {"word": "perhaps"}, "`perhaps` is not a decision"),
        ("message", "recorded", {"message": {"role": "nobody"}}, "Invalid enum value 'nobody'"),
        ("step", "started", {"history": [1]}, "Expected `array` of length 2"),
    ],
)
async def test_a_run_with_such_a_row_names_it_and_hides_no_other(
    kind: str, state: str, body: dict[str, JsonValue], problem: str
) -> None:
    """A-123."""
    journal = MemoryJournal(FakeClock())
    for number in (1, 2):
        lease = await journal.acquire(f"ses_{number}", f"run_{number}", "w", 60)
        await journal.append(lease, draft_of("run", "started", {"steps": {"a": "1"}}, key="run"))
        if number == 1:
            await journal.append(lease, draft_of(kind, state, body, key="a/1/0"))
        await journal.release(lease)
    assert {run.run_id for run in await list_runs(journal)} == {"run_1", "run_2"}
    await show_run(journal, await find_run(journal, "run_2"))
    with pytest.raises(JournalError) as caught:
        await show_run(journal, await find_run(journal, "run_1"))
    assert caught.value.error_code == "corrupt-entry"
    assert "Entry 2 of session 'ses_1'" in caught.value.message
    assert problem in caught.value.message


async def test_a_run_that_names_no_steps_can_be_shown() -> None:
    """A-123: it may have rows of the run as a whole."""
    journal = MemoryJournal(FakeClock())
    lease = await journal.acquire("ses_1", "run_1", "w", 60)
    await journal.append(lease, draft_of("run", "started", {"recipe": "r", "steps": {}}, key="run"))
    ended: dict[str, JsonValue] = {"status": "completed"}
    await journal.append(lease, draft_of("run", "finished", ended, key="run"))
    shown = await show_run(journal, await find_run(journal, "run_1"))
    assert shown.steps == ()


async def test_a_session_that_holds_nothing_readable_can_be_removed() -> None:
    """A-123: what the message about such a row says to do is possible."""
    journal = MemoryJournal(FakeClock())
    lease = await journal.acquire("ses_1", "run_1", "w", 60)
    await journal.append(lease, draft_of("message", "recorded", {}))
    await journal.release(lease)
    assert await find_session(journal, "ses_1") == "ses_1"
    assert await remove_sessions(Services(journal=journal), ["ses_1"]) == ("ses_1",)
    assert await journal.entries(with_damaged=True) == []


SETS = (SetSpec(id="a", set={}), SetSpec(id="b", set={}, depends_on=("a",)))


async def test_a_part_takes_what_it_needs_of_the_newest_run_that_can_be_read() -> None:
    """A-123: a damaged run keeps nobody from those before it."""
    clock, recipe = FakeClock(), recipe_of(SETS)
    journal = MemoryJournal(clock)
    for number, ends in ((1, {"output": "sound"}), (2, {"output": "bad", "attempts": "many"})):
        lease = await journal.acquire(f"ses_{number}", f"run_{number}", "w", 60)
        begun: dict[str, JsonValue] = {"recipe": recipe.id, "steps": {"a": "1", "b": "1"}}
        await journal.append(lease, draft_of("run", "started", begun, key="run"))
        await journal.append(lease, draft_of("step", "finished", {**ends}, key="a/1/0"))
        await journal.append(lease, draft_of("run", "finished", {"status": "completed"}, key="run"))
        await journal.release(lease)
        clock.advance(1)
    found = await find_pins(
        journal, recipe, RunPart(first="b"), run=None, asked_as="r", own_recipe=lambda _: None
    )
    assert (found.run_id, found.part.pinned) == ("run_1", {"a": "sound"})

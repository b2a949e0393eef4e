"""Marks of outputs: recorded in order, the last one counts, and only for what it was set on."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from builders import Ran, deterministic_services, executor_of, fake_tool, run_of
from minions.adapters.models.scripted import ScriptedModel
from minions.contracts.executions import RunStatus
from minions.contracts.journal.facts import MarkRecorded, StepFinished
from minions.data.errors import LeaseHeldError, NotFoundError, UsageError
from minions.data.json_values import JsonValue
from minions.engine.run.recorded_run import load_recorded_run
from minions.engine.services.run_services import Services
from minions.engine.sessions.marking import LONGEST_NOTE, mark_run
from minions.engine.views.judgements import Mark, mark_of, marks_in
from minions.engine.views.lookup import find_run
from minions.engine.views.run_detail import show_run
from minions.engine.views.step_details import row_address
from minions.recipe.catalog import Catalog
from minions.recipe.model import AgentRecipe
from minions.recipe.reading.load import recipe_from_document

STEPS: JsonValue = [
    {"id": "each", "loop": [1, 2], "goal": "Say {{ loop.item }}"},
    {"id": "last", "goal": "Sum {{ each }}"},
    {"id": "never", "when": "false", "set": {"x": 1}},
]


def recipe(steps: JsonValue = STEPS) -> AgentRecipe:
    return recipe_from_document({"id": "r", "steps": steps}, Catalog())


async def ran(services: Services) -> Ran:
    done = await run_of(recipe(), ["one", "two", "three"], services=services)
    assert done.result.status is RunStatus.COMPLETED
    return done


async def verdicts(services: Services, run_id: str) -> dict[str, str | None]:
    """What is said of each output of the run."""
    run = await find_run(services.journal, run_id)
    rows = await services.journal.entries(run.session_id, run_id=run.run_id)
    marks = marks_in(rows)
    ended = {row_address(row): row.position for row in rows if isinstance(row.fact, StepFinished)}
    found = {str(at): mark_of(marks, str(at), position) for at, position in ended.items()}
    return {at: mark.fact.verdict if mark is not None else None for at, mark in found.items()}


async def test_a_mark_of_a_run_is_one_of_all_its_outputs_and_the_last_one_counts() -> None:
    services = deterministic_services()
    run_id = (await ran(services)).result.run_id
    await mark_run(services, run_id, "good", note="Fine.", by="ada")
    assert set((await verdicts(services, run_id)).values()) == {"good"}
    await mark_run(services, run_id, "bad", address="each[1]")
    assert await verdicts(services, run_id) == {
        "each[0]": "good",
        "each[1]": "bad",
        "each": "good",
        "last": "good",
    }
    await mark_run(services, run_id, "bad", address="each")
    assert await verdicts(services, run_id) == {
        "each[0]": "bad",
        "each[1]": "bad",
        "each": "bad",
        "last": "good",
    }
    await mark_run(services, run_id, "good")
    assert set((await verdicts(services, run_id)).values()) == {"good"}


async def test_all_marks_stay_on_record_and_are_shown() -> None:
    services = deterministic_services()
    run_id = (await ran(services)).result.run_id
    await mark_run(services, run_id, "bad", address="last", note="Wrong sum.", by="ada")
    await mark_run(services, run_id, "good", address="last")
    detail = await show_run(services.journal, await find_run(services.journal, run_id))
    shown = [(note.step_id, note.state, note.facts["verdict"]) for note in detail.notes]
    assert shown == [("last", "recorded", "bad"), ("last", "recorded", "good")]
    assert detail.notes[0].facts["note"] == "Wrong sum."
    assert detail.notes[0].facts["by"] == "ada"
    assert detail.summary.status == "completed"


async def test_a_mark_does_not_pass_to_the_output_of_a_retry() -> None:
    services = deterministic_services()
    run_id = (await ran(services)).result.run_id
    await mark_run(services, run_id, "good")
    again = executor_of(ScriptedModel(lambda _prompt: "four"), services=services)
    await again.retry(run_id, from_step="last")
    assert await verdicts(services, run_id) == {
        "each[0]": "good",
        "each[1]": "good",
        "each": "good",
        "last": None,
    }


async def test_a_marked_run_is_resumed_as_any_other() -> None:
    services = deterministic_services()
    calls = [True, False]

    async def fails_once(_arguments: Mapping[str, JsonValue]) -> str:
        if calls.pop(0):
            raise RuntimeError("lost")
        return "found"

    tool = fake_tool("look", fails_once)
    document: JsonValue = [{"id": "a", "goal": "Say"}, {"id": "b", "tool": "look"}]
    executor = executor_of(ScriptedModel(lambda _prompt: "one"), tools=[tool], services=services)
    failed = await executor.execute(
        recipe_from_document(
            {"id": "r", "limits": {"max_tool_call_retries": 0}, "steps": document},
            Catalog(tools={"look": tool.spec}),
        )
    )
    assert failed.status is RunStatus.FAILED
    await mark_run(services, failed.run_id, "good", address="a")
    done = await executor.retry(failed.run_id)
    assert (done.status, done.output) == (RunStatus.COMPLETED, "found")
    recorded = await load_recorded_run(services.journal, failed.run_id)
    assert [mark.fact.address for mark in marks_in(recorded.entries)] == ["a"]


async def test_what_gave_no_output_is_not_marked() -> None:
    services = deterministic_services()
    run_id = (await ran(services)).result.run_id
    with pytest.raises(NotFoundError) as unknown:
        await mark_run(services, run_id, "good", address="lst")
    assert unknown.value.error_code == "unknown-step"
    assert unknown.value.suggestions == ("last",)
    with pytest.raises(UsageError, match=r"Step 'never' of run .* gave no output") as skipped:
        await mark_run(services, run_id, "good", address="never")
    assert skipped.value.error_code == "nothing-to-mark"
    empty = await run_of(recipe([{"id": "a", "goal": "Say"}]), [RuntimeError("x")] * 9)
    with pytest.raises(UsageError, match=r"^Run '.*' gave no output"):
        await mark_run(empty.context.scope.services, empty.result.run_id, "good")
    assert marks_in(await services.journal.entries(kinds={"mark"})) == ()


@pytest.mark.parametrize("note", ["", "  \n", "x" * (LONGEST_NOTE + 1)])
async def test_a_note_has_words_and_an_end(note: str) -> None:
    services = deterministic_services()
    run_id = (await ran(services)).result.run_id
    with pytest.raises(UsageError) as refused:
        await mark_run(services, run_id, "good", note=note)
    assert refused.value.error_code == "bad-note"
    await mark_run(services, run_id, "good", note="x" * LONGEST_NOTE)


async def test_a_run_that_is_being_executed_is_not_marked() -> None:
    services = deterministic_services()
    run_id = (await ran(services)).result.run_id
    services.executing.add(run_id)
    with pytest.raises(LeaseHeldError, match="is being executed"):
        await mark_run(services, run_id, "good")
    services.executing.discard(run_id)
    held = await services.journal.acquire("ses_1", run_id, "somebody", 60)
    with pytest.raises(LeaseHeldError):
        await mark_run(services, run_id, "good")
    await services.journal.release(held)
    await mark_run(services, run_id, "good")


def test_a_mark_before_an_output_is_not_of_it() -> None:
    mark = Mark(position=5, fact=MarkRecorded(verdict="good"))
    assert mark_of([mark], "a", 4) is mark
    assert mark_of([mark], "a", 5) is None

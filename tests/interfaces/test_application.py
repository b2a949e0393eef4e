"""The front door for applications: `run`, `arun`, `astream`, `load` and a kept `Minions`."""

from __future__ import annotations

import asyncio
import contextvars
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest
from attrs import frozen

import minions as m
from minions.adapters.models.script_items import tool_request
from minions.contracts.calls import ChatModel
from minions.contracts.decision_types import Verdict
from minions.contracts.run_events import RunCompleted, RunStarted, StepDeltaEvent
from minions.contracts.runtime import SystemClock
from minions.contracts.waiting import RunWait
from minions.data.errors import LeaseHeldError, NotFoundError
from minions.data.json_values import JsonValue
from minions.engine.services.memory_journal import MemoryJournal
from minions.testing.virtual_time import FakeClock

RECIPE = """\
id: judge
inputs: {text: string}
steps:
  - id: verdict
    goal: "Is this spam? {{ inputs.text }}"
    output: {spam: boolean}
"""
SPAM: dict[str, JsonValue] = {"spam": True}


@frozen
class Judged:
    """What the application wants to have."""

    spam: bool


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "judge.yaml"
    file.write_text(RECIPE, "utf-8")
    return file


def _write(path: Path, text: str) -> None:
    path.write_text(text, "utf-8")


# --- one run ---------------------------------------------------------------------------------


async def test_a_recipe_runs_by_its_path_inside_a_running_loop(path: Path) -> None:
    """A-129."""
    model = m.ScriptedModel([SPAM])
    result = await m.arun(path, {"text": "You won"}, model=model, output_class=Judged)
    assert result.unwrap() == Judged(spam=True)


def test_a_recipe_is_loaded_from_its_text() -> None:
    assert m.load(RECIPE).id == "judge"


def test_text_with_faults_names_them_all() -> None:
    with pytest.raises(m.RecipeError) as caught:
        m.load("id: x\nsteps:\n  - {id: a, gaol: Go.}\n  - {id: b, goal: '{{ nobody }}'}\n")
    assert {fault.code for fault in caught.value.faults} >= {"unknown-key", "unknown-reference"}


async def test_each_function_says_for_whom_a_run_is() -> None:
    journal = MemoryJournal(FakeClock())
    services = m.Services(journal=journal)

    def model() -> m.ChatModel:
        return m.ScriptedModel([SPAM])

    inputs = {"text": "x"}
    m.run(RECIPE, inputs, model=model(), services=services, user="ann")
    await m.arun(RECIPE, inputs, model=model(), services=services, user="bob")
    await m.astream(RECIPE, inputs, model=model(), services=services, user="eve")
    assert {row.user for row in await journal.runs()} == {"ann", "bob", "eve"}
    assert m.run(RECIPE, inputs, model=model(), user="ann").status is m.RunStatus.COMPLETED
    with pytest.raises(m.UsageError, match="user"):
        m.run(RECIPE, inputs, model=model(), user=" ")


async def test_a_stream_gives_every_event_and_its_end_the_result() -> None:
    """A-129."""
    stream = m.astream(RECIPE, {"text": "x"}, model=m.ScriptedModel([SPAM]), output_class=Judged)
    with pytest.raises(m.MinionsError, match="not over"):
        _ = stream.result
    events = [event async for event in stream]
    assert isinstance(events[0], RunStarted)
    assert isinstance(events[-1], RunCompleted)
    assert stream.result.unwrap() == Judged(spam=True)
    assert await stream is stream.result


async def test_a_run_that_was_asked_for_begins_once() -> None:
    async with m.Minions(model=m.ScriptedModel([SPAM])) as app:
        stream = app.astream(RECIPE, {"text": "x"})
        await stream
        with pytest.raises(m.MinionsError, match="begun already"):
            async for _ in stream:
                pass


async def test_leaving_a_stream_early_cancels_its_run() -> None:
    journal = MemoryJournal(SystemClock())
    model = m.ScriptedModel([SPAM])
    async with m.Minions(model=model, journal=journal) as app:
        async with app.astream(RECIPE, {"text": "x"}) as stream:
            async for event in stream:
                run_id = event.run_id
                break
        rows = await journal.entries(run_id=run_id, kinds={"run"})
    assert rows[-1].body["status"] == "cancelled"


# --- a kept application ------------------------------------------------------------------------


async def test_a_kept_application_reads_a_file_once_and_again_when_it_changed(path: Path) -> None:
    """A-129."""
    async with m.Minions(model=m.ScriptedModel([SPAM, {"spam": False}])) as app:
        first = app.load(path)
        assert app.load(str(path)) is first
        _write(path, RECIPE.replace("Is this spam?", "Is it unwanted mail?"))
        again = app.load(path)
        assert again is not first
        assert (await app.arun(path, {"text": "x"})).unwrap() == SPAM


async def test_a_change_in_a_recipe_that_it_runs_is_seen(tmp_path: Path) -> None:
    (tmp_path / "inner.yaml").write_text("id: inner\nsteps: [{id: a, set: {n: 1}}]\n", "utf-8")
    outer = tmp_path / "outer.yaml"
    outer.write_text("id: outer\nsteps: [{id: b, recipe: inner.yaml}]\n", "utf-8")
    async with m.Minions() as app:
        assert (await app.arun(outer)).unwrap() == {"n": 1}
        (tmp_path / "inner.yaml").write_text("id: inner\nsteps: [{id: a, set: {n: 22}}]\n", "utf-8")
        assert (await app.arun(outer)).unwrap() == {"n": 22}


async def test_every_listener_hears_every_run() -> None:
    heard: list[str] = []
    app = m.Minions(
        model=m.ScriptedModel([SPAM, SPAM]), listeners=[lambda event: heard.append(event.type)]
    )
    await app.arun(RECIPE, {"text": "x"})
    assert (heard[0], heard[-1]) == ("run_started", "run_completed")
    more: list[str] = []
    end = app.listen(lambda event: more.append(event.run_id))
    await app.arun(RECIPE, {"text": "x"})
    end()
    assert more
    await app.aclose()


async def test_a_closed_application_says_so() -> None:
    app = m.Minions(model=m.ScriptedModel([]))
    await app.aclose()
    with pytest.raises(m.MinionsError, match="closed"):
        await app.arun(RECIPE, {"text": "x"})


async def test_the_model_of_one_run_takes_the_place_of_the_applications() -> None:
    usual, other = m.ScriptedModel([]), m.ScriptedModel([SPAM])
    async with m.Minions(model=usual) as app:
        assert (await app.arun(RECIPE, {"text": "x"}, model=other)).unwrap() == SPAM
    assert not usual.prompts


async def test_a_key_that_appears_later_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    async with m.Minions() as app:
        with pytest.raises(m.MinionsError, match="none is configured"):
            app.prepare(RECIPE, {"text": "x"})
        monkeypatch.setenv("OPENAI_API_KEY", "sk-later")
        assert app.prepare(RECIPE, {"text": "x"}).model_name == "openai/gpt-5-mini"


# --- decisions, resume and retry -----------------------------------------------------------------


def _deleting(deleted: list[str]) -> tuple[m.Tool, m.AgentRecipe]:
    @m.tool(effect="once")
    def delete(name: str) -> str:
        """Delete a file."""
        deleted.append(name)
        return f"deleted {name}"

    step = m.DefaultStep(
        id="clean", messages=m.MessageBundle.of(goal="Clean up."), available_tools={"delete"},
        completion_criteria=m.CompletionCriteria(mode=m.CompletionMode.TEXT),
    )  # fmt: skip
    rights = m.Permissions(allow_write=True, requires_approval=("delete",))
    return delete, m.AgentRecipe(id="clean", steps=[step], permissions=rights)


def _model() -> ChatModel:
    """Going on takes the recorded answer out of the script once more."""
    call = tool_request("delete", {"name": "a.txt"})
    return m.ScriptedModel([call, call, "Done."])


async def test_a_run_that_waits_goes_on_after_the_decision_with_its_reason() -> None:
    """A-129."""
    deleted: list[str] = []
    tool, recipe = _deleting(deleted)
    async with m.Minions(model=_model(), tools=[tool], journal=MemoryJournal(SystemClock())) as app:
        result = await app.arun(recipe)
        assert (result.status, deleted) == (m.RunStatus.NEEDS_DECISION, [])
        (waiting,) = await app.waiting(result.run_id)
        assert waiting.tool == "delete"
        decided = await app.decide(
            result.run_id, waiting.key, Verdict.APPROVED, reason="Ann said so", output_class=str
        )
        rows = await app.services.journal.entries(run_id=result.run_id, kinds={"run"})
    assert (decided.unwrap(), deleted) == ("Done.", ["a.txt"])
    resumed = [row.body for row in rows if row.state == "resumed"]
    assert resumed[0]["note"] == {"decision_reasons": {waiting.key: "Ann said so"}}


async def test_the_stream_of_a_run_that_waits_ends_so_and_the_decision_streams_the_rest() -> None:
    """A-119."""
    tool, recipe = _deleting([])
    async with m.Minions(model=_model(), tools=[tool], journal=MemoryJournal(SystemClock())) as app:
        first = app.astream(recipe)
        types = [event.type async for event in first]
        assert types[-2:] == ["step_finished", "run_waiting"]
        decided = app.decide(first.result.run_id, "delete", Verdict.APPROVED)
        assert [event.type async for event in decided][-1] == "run_completed"


async def test_a_hook_is_told_once_of_a_run_that_waits() -> None:
    """A-119: a resume that decides nothing tells nothing; a hook that fails harms nothing."""
    told: list[RunWait] = []

    def on_waiting(wait: RunWait) -> None:
        told.append(wait)
        raise RuntimeError("a hook that fails")

    recipe = "id: asks\nsteps:\n  - {id: city, ask: Which city?}\n"
    journal = MemoryJournal(SystemClock())
    async with m.Minions(journal=journal, on_waiting=on_waiting) as app:
        result = await app.arun(recipe)
        assert [wait.run_id for wait in told] == [result.run_id]
        assert [each["question"] for each in told[0].decisions] == ["Which city?"]
        assert (told[0].recipe, told[0].address) == ("asks", None)
        await app.resume(result.run_id)
        assert len(told) == 1
        (waiting,) = await app.waiting(result.run_id)
        assert (await app.answer(result.run_id, waiting.key, "Rome")).unwrap() == "Rome"
    assert len(told) == 1


async def test_a_hook_that_takes_its_time_holds_no_run() -> None:
    """A-119: it is awaited when the application ends."""
    begun, ended = asyncio.Event(), asyncio.Event()

    async def on_waiting(_wait: RunWait) -> None:
        begun.set()
        await asyncio.sleep(0.01)
        ended.set()

    async with m.Minions(on_waiting=on_waiting) as app:
        await app.arun("id: asks\nsteps:\n  - {id: city, ask: Which city?}\n")
        assert begun.is_set()
        assert not ended.is_set()
    assert ended.is_set()


async def test_an_approval_may_edit_the_arguments() -> None:
    """A-118."""
    deleted: list[str] = []
    tool, recipe = _deleting(deleted)
    async with m.Minions(model=_model(), tools=[tool], journal=MemoryJournal(SystemClock())) as app:
        run_id = (await app.arun(recipe)).run_id
        await app.decide(run_id, "delete", Verdict.APPROVED, arguments={"name": "b.txt"})
        with pytest.raises(m.MinionsError, match=r"belong to Verdict\.APPROVED"):
            app.decide(run_id, "delete", Verdict.REJECTED, arguments={"name": "b.txt"})
    assert deleted == ["b.txt"]


async def test_the_reason_of_a_rejection_is_part_of_the_decision() -> None:
    """A-118."""
    deleted: list[str] = []
    tool, recipe = _deleting(deleted)
    async with m.Minions(model=_model(), tools=[tool], journal=MemoryJournal(SystemClock())) as app:
        result = await app.arun(recipe)
        done = await app.decide(result.run_id, "delete", Verdict.REJECTED, reason="still in use")
        rows = await app.services.journal.entries(run_id=result.run_id, kinds={"decision"})
    assert rows[-1].body["reason"] == "still in use"
    assert done.error is not None
    assert "it was rejected: still in use." in done.error.message
    assert deleted == []


async def test_what_follows_a_decision_can_be_watched() -> None:
    tool, recipe = _deleting([])
    async with m.Minions(model=_model(), tools=[tool]) as app:
        result = await app.arun(recipe)
        stream = app.decide(result.run_id, "delete", Verdict.REJECTED)
        types = [event.type async for event in stream]
    assert types[-1] in ("run_completed", "run_failed")
    assert stream.result.run_id == result.run_id


async def test_to_decide_later_is_no_decision() -> None:
    async with m.Minions(model=_model()) as app:
        with pytest.raises(m.MinionsError, match="is no decision"):
            app.decide("run_1", "delete", Verdict.LATER)


async def test_a_question_is_answered_and_the_run_goes_on() -> None:
    recipe = "id: asks\nsteps:\n  - {id: city, ask: Which city?}\n"
    async with m.Minions() as app:
        result = await app.arun(recipe)
        (waiting,) = await app.waiting(result.run_id)
        assert (await app.answer(result.run_id, waiting.key, "Rome")).unwrap() == "Rome"


async def test_a_failed_run_is_retried_by_the_application() -> None:
    model = m.ScriptedModel(["no JSON", "nor this", SPAM])
    async with m.Minions(model=model) as app:
        failed = await app.arun(RECIPE, {"text": "x"})
        assert failed.status is m.RunStatus.FAILED
        assert (await app.retry(failed.run_id, output_class=Judged)).unwrap() == Judged(spam=True)


async def test_a_retry_takes_other_inputs() -> None:
    recipe = 'id: adds\ninputs: {a: 1}\nsteps: [{id: s, set: {n: "{{ inputs.a + 1 }}"}}]\n'
    async with m.Minions() as app:
        run_id = (await app.arun(f"{recipe}output: '{{{{ s.n }}}}'\n")).run_id
        assert (await app.retry(run_id, inputs={"a": 5}, output_class=int)).unwrap() == 6


async def test_a_run_survives_its_application(tmp_path: Path) -> None:
    recipe = "id: asks\nsteps:\n  - {id: city, ask: Which city?}\n"
    place = tmp_path / "journal.sqlite"
    async with m.Minions(journal=place) as app:
        run_id = (await app.arun(recipe)).run_id
    async with m.Minions(journal=place) as app:
        (waiting,) = await app.waiting(run_id)
        assert (await app.answer(run_id, waiting.key, "Rome")).unwrap() == "Rome"


async def test_a_run_that_goes_on_is_not_resumed_beside_itself() -> None:
    begun, released = asyncio.Event(), asyncio.Event()

    @m.tool(effect="pure")
    async def wait() -> str:
        """Wait until it is released."""
        begun.set()
        await released.wait()
        return "released"

    async with m.Minions(tools=[wait]) as app:
        run = app.prepare("id: waits\nsteps:\n  - {id: a, tool: wait}\n")
        going = asyncio.ensure_future(app.execute(run))
        await begun.wait()
        with pytest.raises(LeaseHeldError):
            await app.resume(run.run_id)
        released.set()
        assert (await going).unwrap() == "released"


async def test_an_unknown_run_is_not_found() -> None:
    async with m.Minions() as app:
        with pytest.raises(NotFoundError):
            await app.resume("run_nowhere")


# --- the synchronous door ------------------------------------------------------------------------

WHO: contextvars.ContextVar[str] = contextvars.ContextVar("WHO", default="nobody")


def _whoami() -> m.Tool:
    @m.tool(effect="pure")
    async def whoami() -> str:
        """Say on whose behalf this runs."""
        return f"{WHO.get()} on {threading.current_thread().name}"

    return whoami


CALLS = "id: calls\nsteps:\n  - {id: who, tool: whoami}\n"


@pytest.fixture
def signed_in() -> Iterator[None]:
    token = WHO.set("Ann")
    yield
    WHO.reset(token)


def test_run_sees_the_context_variables_of_each_call() -> None:
    for name in ("Ann", "Bob"):
        token = WHO.set(name)
        said = m.run(CALLS, tools=[_whoami()]).unwrap()
        WHO.reset(token)
        assert said == f"{name} on MainThread"


async def test_run_inside_a_running_loop_works_on_a_thread_of_its_own() -> None:
    """A-129."""
    token = WHO.set("Ann")
    assert m.run(CALLS, tools=[_whoami()]).unwrap() == "Ann on minions.run"
    assert m.run(RECIPE, {"text": "x"}, model=m.ScriptedModel([SPAM])).unwrap() == SPAM
    WHO.reset(token)


async def test_run_inside_a_running_loop_raises_what_refuses_it() -> None:
    with pytest.raises(m.RecipeError):
        m.run("id: x\nsteps: []\n")


@pytest.mark.parametrize("what", [None, 3, b"id: x", ["a.yaml"]])
def test_what_is_no_recipe_is_refused_by_name(what: object) -> None:
    with pytest.raises(m.UsageError, match="is no recipe: give an AgentRecipe, a path"):
        m.run(cast("str", what))
    with pytest.raises(m.UsageError, match="is no recipe"):
        m.load(cast("str", what))


async def test_a_task_that_is_cancelled_stops_the_run_that_it_waits_for() -> None:
    """As Ctrl-C does in `asyncio.run`: it cancels the main task."""
    ended: list[str] = []
    begun = threading.Event()

    async def work() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.append("recorded")
            raise

    async def caller() -> None:
        m.run(work())

    task = asyncio.ensure_future(caller())
    canceller = threading.Thread(target=lambda: (begun.wait(), task.cancel()))
    canceller.start()
    with pytest.raises(asyncio.CancelledError):
        await task
    canceller.join()
    assert ended == ["recorded"]


@pytest.mark.parametrize("is_before", [True, False])
async def test_a_request_to_stop_that_comes_as_the_work_begins_is_not_lost(
    monkeypatch: pytest.MonkeyPatch, is_before: bool
) -> None:
    begun = threading.Event()

    async def work() -> None:
        begun.set()
        await asyncio.Event().wait()

    class Starts(threading.Thread):
        def start(self) -> None:
            if is_before:
                task.cancel()
            super().start()
            if not is_before:
                begun.wait()
                task.cancel()

    async def caller() -> None:
        monkeypatch.setattr("minions.app.application.synchronous_run.threading.Thread", Starts)
        m.run(work())

    task = asyncio.ensure_future(caller())
    with pytest.raises(asyncio.CancelledError):
        await task


def test_run_works_in_a_thread_that_is_not_the_main_one() -> None:
    said: list[object] = []
    thread = threading.Thread(target=lambda: said.append(m.run(CALLS, tools=[_whoami()]).unwrap()))
    thread.start()
    thread.join()
    assert len(said) == 1


def test_tasks_that_a_run_leaves_behind_end_with_it() -> None:
    tasks: list[asyncio.Task[None]] = []

    async def work() -> int:
        tasks.append(asyncio.ensure_future(asyncio.sleep(3600)))
        await asyncio.sleep(0)
        return 1

    assert m.run(work()) == 1
    assert tasks[0].cancelled()


def test_a_listener_makes_models_stream() -> None:
    pieces: list[str | None] = []

    async def go() -> None:
        async with m.Minions(model=m.ScriptedModel(["one two"])) as app:
            app.listen(
                lambda event: (
                    pieces.append(event.delta.content)
                    if isinstance(event, StepDeltaEvent)
                    else None
                )
            )
            await app.arun("id: t\nsteps:\n  - {id: a, goal: Talk., completion: text}\n")

    m.run(go())
    assert "".join(piece or "" for piece in pieces) == "one two"


def test_ctrl_c_stops_the_run_and_the_next_one_begins_anew() -> None:
    ended: list[str] = []

    async def work() -> None:
        signal.raise_signal(signal.SIGINT)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.append("recorded")
            raise

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    with pytest.raises(KeyboardInterrupt):
        m.run(work())
    signal.signal(signal.SIGINT, before)
    assert ended == ["recorded"]
    assert m.run(CALLS, tools=[_whoami()]).unwrap() == "nobody on MainThread"

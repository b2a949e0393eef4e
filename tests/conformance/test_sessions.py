"""Conversations on every journal: turns, resume, retry, fork, ranges, contexts: A-73 to A-90."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import cast

import pytest
from attrs import evolve

from builders import answer_of, deterministic_services, fake_tool
from minions.adapters.models.script_items import Answer, AnswerFunction, tool_request
from minions.adapters.models.scripted import ScriptedModel
from minions.adapters.stores.postgres_journal import PostgresJournal
from minions.adapters.stores.sqlite_journal import SqliteJournal
from minions.app.runs.event_schema import events_schema
from minions.contracts.calls import ModelDelta, ModelFailure, Prompt
from minions.contracts.journal.journal import Journal
from minions.contracts.messages import MessageRole, ToolCallRequest
from minions.contracts.run_events import (
    RunCompleted,
    RunEvent,
    RunFailed,
    RunStarted,
    StepCompleted,
    StepDeltaEvent,
    StepEventType,
    event_to_json,
)
from minions.contracts.session_views import AgentHooks, SessionStep, StepMetrics
from minions.contracts.tools import Tool, Toolbox
from minions.data.errors import LeaseHeldError, NotFoundError, UsageError
from minions.data.json_values import JsonValue
from minions.data.schema import SchemaValidator
from minions.engine.compile.extensions import Extensions
from minions.engine.run.agent_executor import AgentExecutor
from minions.engine.services.memory_journal import MemoryJournal
from minions.engine.services.run_services import Services
from minions.engine.sessions.runner import ChatAgent, StepRunner, fork_session, retry_from_sequence
from minions.engine.sessions.session_context import (
    build_context_from_sequence_range,
    build_context_from_steps,
    get_context_summary,
)
from minions.engine.sessions.store import StepRepository
from minions.recipe.catalog import Catalog
from minions.recipe.reading.load import load_recipe_text
from minions.testing.virtual_time import FakeClock

LOOK: list[Answer] = [
    [tool_request("look", {"n": 1}, id="c1"), tool_request("look", {"n": 2}, id="c2")],
    "both seen",
]


@pytest.fixture(params=["memory", "sqlite", "postgres"])
async def services(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Services]:
    clock = FakeClock()
    journal: Journal
    if request.param == "memory":
        journal = MemoryJournal(clock)
    elif request.param == "sqlite":
        journal = SqliteJournal(tmp_path / "journal.db", clock)
    else:
        url = request.getfixturevalue("postgres_url")
        journal = PostgresJournal(url, clock, lease_clock=clock)
    yield deterministic_services(journal, clock)
    await journal.aclose()


@pytest.fixture
def repository(services: Services) -> StepRepository:
    return StepRepository(services)


Talk = Callable[..., StepRunner]


@pytest.fixture
def talk(repository: StepRepository) -> Talk:
    """A runner whose model says this."""

    def make(
        answers: Iterable[Answer] | AnswerFunction, *tools: Tool, prompt: str = "Be kind."
    ) -> StepRunner:
        agent = ChatAgent(model=ScriptedModel(answers), system_prompt=prompt, tools=tools)
        return StepRunner(agent, repository=repository)

    return make


async def all_of(events: AsyncIterator[RunEvent]) -> list[RunEvent]:
    return [event async for event in events]


async def into(events: list[RunEvent], stream: AsyncIterator[RunEvent]) -> None:
    async for event in stream:
        events.append(event)  # noqa: PERF401  # what came before an error is looked at


async def shown(repository: StepRepository, session: str = "s") -> list[tuple[str, str | None]]:
    return [(step.role.value, step.content) for step in await repository.get_steps(session)]


def looking(seen: list[JsonValue] | None = None) -> Tool:
    def look(arguments: dict[str, JsonValue]) -> object:
        if seen is not None:
            seen.append(arguments["n"])
        return f"saw {arguments['n']}"

    return fake_tool("look", look)  # type: ignore[arg-type]  # a dict is a mapping


# --- turns ----------------------------------------------------------------------------------------


async def test_a_turn_with_two_calls_is_stored_and_told_in_order(
    talk: Talk, repository: StepRepository
) -> None:
    """A-73: five steps with one run; deltas, then completions in the order of their sequence."""
    events = await all_of(talk(LOOK, looking()).run_stream("s", "Look!"))
    steps = await repository.get_steps("s")
    assert [(step.sequence, step.role.value, step.content) for step in steps] == [
        (1, "user", "Look!"),
        (2, "assistant", None),
        (3, "tool", "saw 1"),
        (4, "tool", "saw 2"),
        (5, "assistant", "both seen"),
    ]
    assert {step.run_id for step in steps} == {"run_1"}
    assert len({step.id for step in steps}) == 5
    types = [event.type for event in events]
    assert types[0] == StepEventType.RUN_STARTED
    assert types[-1] == StepEventType.RUN_COMPLETED
    completed = [event for event in events if isinstance(event, StepCompleted)]
    assert [event.snapshot for event in completed] == steps[1:]
    first, *_, last = events
    assert isinstance(first, RunStarted)
    assert first.data == {"query": "Look!"}
    assert isinstance(last, RunCompleted)
    assert last.data["response"] == "both seen"
    assert types.index("step_delta") < types.index("step_completed")
    positions = [event.position for event in events if event.position is not None]
    assert positions == sorted(positions)


async def test_deltas_add_up_to_the_snapshot_that_follows(talk: Talk) -> None:
    """A-74: also fragments of arguments, by index."""
    text, calls, seen = "", dict[int, str](), 0
    async for event in talk(LOOK, looking()).run_stream("s", "Look!"):
        if isinstance(event, StepDeltaEvent):
            text += event.delta.content or ""
            for fragment in event.delta.tool_calls:
                function = fragment["function"]
                assert isinstance(function, dict)
                index = fragment["index"]
                assert isinstance(index, int)
                calls[index] = calls.get(index, "") + str(function.get("arguments", ""))
        elif isinstance(event, StepCompleted) and event.snapshot.is_assistant_step():
            assert text == (event.snapshot.content or "")
            assert list(calls.values()) == [call.arguments for call in event.snapshot.tool_calls]
            text, calls, seen = "", {}, seen + 1
    assert seen == 2


async def test_messages_go_to_the_model_as_they_are_stored(
    talk: Talk, repository: StepRepository
) -> None:
    """A-75: no metadata, nothing that is None; the system prompt first, and not stored."""
    model = ScriptedModel([*LOOK, "You are welcome."])
    agent = ChatAgent(model=model, system_prompt="Be kind.", tools=[looking()])
    runner = StepRunner(agent, repository=repository)
    await all_of(runner.run_stream("s", "Look!"))
    await all_of(runner.run_stream("s", "Thanks."))
    context = await build_context_from_steps("s", repository, system_prompt="Be kind.")
    assert context[:-1] == [message.to_message_dict() for message in model.prompts[-1].messages]
    assert context[0] == {"role": "system", "content": "Be kind."}
    assert context[1] == {"role": "user", "content": "Look!"}
    assert set(context[2]) == {"role", "tool_calls"}
    assert context[3] == {
        "role": "tool",
        "content": "saw 1",
        "tool_call_id": "c1",
        "name": "look",
    }
    part = await build_context_from_sequence_range("s", repository, 6, 7)
    assert part == [
        {"role": "user", "content": "Thanks."},
        {"role": "assistant", "content": "You are welcome."},
    ]
    assert all(step.role is not MessageRole.SYSTEM for step in await repository.get_steps("s"))


async def test_two_turns_at_once_never_share_a_sequence(
    talk: Talk, repository: StepRepository
) -> None:
    """A-76: one of them is refused while the other goes on."""
    begun, go = asyncio.Event(), asyncio.Event()

    async def slow(prompt: Prompt) -> Answer:
        begun.set()
        await go.wait()
        return "slow"

    first = asyncio.ensure_future(all_of(talk(slow).run_stream("s", "one")))
    await begun.wait()
    with pytest.raises(LeaseHeldError):
        await all_of(talk(["quick"]).run_stream("s", "two"))
    go.set()
    await first
    await all_of(talk(["quick"]).run_stream("s", "two"))
    assert await shown(repository) == [
        ("user", "one"),
        ("assistant", "slow"),
        ("user", "two"),
        ("assistant", "quick"),
    ]


async def test_metrics_tell_what_a_message_took(
    services: Services, repository: StepRepository
) -> None:
    """A-77: usage 10/5/15, model, provider, duration and the first token's latency."""
    clock = cast(FakeClock, services.clock)

    class Slow(ScriptedModel):
        async def complete(self, prompt, on_delta=None):  # type: ignore[no-untyped-def]  # as its base
            await clock.sleep(0.25)
            return await super().complete(prompt, on_delta)

    answers = [
        evolve(answer_of(tool_calls=[tool_request("look", {"n": 1})]), provider="acme"),
        evolve(answer_of("done"), model_name="small", provider="acme", first_token_latency_ms=25.0),
    ]
    agent = ChatAgent(model=Slow(answers), tools=[looking()])
    await all_of(StepRunner(agent, repository=repository).run_stream("s", "Look!"))
    _, _, tool, last = await repository.get_steps("s")
    metrics = last.metrics
    assert (metrics.input_tokens, metrics.output_tokens, metrics.total_tokens) == (10, 5, 15)
    assert (metrics.model_name, metrics.provider) == ("small", "acme")
    assert metrics.duration_ms == 250.0
    assert metrics.first_token_latency_ms == 25.0
    assert tool.metrics.tool_exec_time_ms is not None
    assert tool.metrics.input_tokens is None


# --- the repository -------------------------------------------------------------------------------


def said(text: str, session: str = "s", **fields: object) -> SessionStep:
    return SessionStep(session_id=session, role=MessageRole.USER, content=text, **fields)  # type: ignore[arg-type]  # fields exist


async def test_ranges_include_both_ends_and_what_is_deleted_is_counted(
    repository: StepRepository,
) -> None:
    """A-78: the next sequence follows the last one."""
    await repository.save_steps_batch([said(f"m{n}") for n in range(1, 11)])
    steps = await repository.get_steps("s", start_seq=5, end_seq=7)
    assert [step.sequence for step in steps] == [5, 6, 7]
    assert [s.sequence for s in await repository.get_steps("s", 3, limit=2)] == [3, 4]
    assert await repository.get_step_count("s") == 10
    assert await repository.delete_steps("s", start_seq=8) == 3
    assert await repository.delete_steps("s", start_seq=8) == 0
    last = await repository.get_last_step("s")
    assert last is not None
    assert (last.sequence, last.content) == (7, "m7")
    again = await repository.save_step(said("new"))
    assert again.sequence == 8
    assert await repository.get_step_count("s") == 8
    assert (await repository.get_step("s", 8)).content == "new"
    with pytest.raises(NotFoundError) as caught:
        await repository.get_step("s", 9)
    assert caught.value.error_code == "unknown-step"


async def test_a_stored_step_is_what_was_saved(repository: StepRepository) -> None:
    step = SessionStep(
        id="step_123",
        session_id="s",
        run_id="run_789",
        role=MessageRole.ASSISTANT,
        content="Hello",
        tool_calls=({"id": "c", "type": "function", "function": {"name": "look"}},),
        metrics=StepMetrics(duration_ms=150.5, input_tokens=100, model_name="small"),
    )
    stored = await repository.save_step(step)
    assert stored == (await repository.get_steps("s"))[0]
    assert stored.created_at is not None
    assert stored.tool_calls == (ToolCallRequest(id="c", name="look", arguments="{}"),)
    assert (stored.id, stored.run_id, stored.sequence) == ("step_123", "run_789", 1)
    assert stored.metrics == step.metrics


async def test_a_sequence_is_taken_by_one_id_and_may_be_saved_anew(
    repository: StepRepository,
) -> None:
    first = await repository.save_step(said("one", id="a"))
    with pytest.raises(UsageError) as caught:
        await repository.save_step(said("other", id="b", sequence=1))
    assert caught.value.error_code == "sequence-taken"
    with pytest.raises(UsageError) as caught:
        await repository.save_steps_batch([said("two"), said("gap", sequence=7)])
    assert caught.value.error_code == "sequence-out-of-range"
    assert await shown(repository) == [("user", "one")]
    await repository.save_step(said("one, edited", id="a", sequence=1))
    (step,) = await repository.get_steps("s")
    assert (step.content, step.id, step.created_at) == ("one, edited", "a", first.created_at)


async def test_a_step_that_could_not_be_read_again_is_not_stored(
    repository: StepRepository, services: Services
) -> None:
    odd: list[dict[str, object]] = [
        {"content": 5},
        {"content": [{"type": "text"}]},
        {"sequence": -1},
        {"sequence": "1"},
        {"sequence": 1.0},
        {"session_id": ""},
        {"id": 7},
    ]
    for fields in odd:
        step = said("x")
        for name, value in fields.items():
            object.__setattr__(step, name, value)
        with pytest.raises(UsageError) as caught:
            await repository.save_steps_batch([said("good"), step])
        assert caught.value.error_code == "bad-step"
    taken = await repository.save_step(said("one", session="other", id="a"))
    with pytest.raises(UsageError):
        await repository.save_steps_batch([said("good"), said("no", "other", id="b", sequence=1)])
    assert await repository.get_steps("s") == []
    assert await repository.get_steps("other") == [taken]


async def test_saved_steps_make_a_session_and_keep_their_time_and_identity(
    repository: StepRepository,
) -> None:
    then = datetime(2024, 2, 3, tzinfo=UTC)
    await repository.save_step(said("old", id="a", created_at=then))
    await repository.save_step(said("older", id="a"))
    (step,) = await repository.get_steps("s")
    assert (step.content, step.created_at) == ("older", then)
    (session,) = await repository.list_sessions()
    assert (session.id, session.status) == ("s", None)
    await repository.delete_steps("s", 1)
    session = await repository.get_session("s")
    assert (session.parent_session_id, session.forked_at_sequence) == (None, None)


async def test_a_stored_system_prompt_is_the_only_one(repository: StepRepository) -> None:
    stored = SessionStep(session_id="s", role=MessageRole.SYSTEM, content="STORED")
    await repository.save_steps_batch([stored, said("q")])
    model = ScriptedModel(["a"])
    agent = ChatAgent(model=model, system_prompt="OTHER")
    await all_of(StepRunner(agent, repository=repository).resume("s"))
    (prompt,) = model.prompts
    assert [message.content for message in prompt.messages] == ["STORED", "q"]


async def test_hooks_are_told_of_every_end_and_hide_none(
    talk: Talk, repository: StepRepository
) -> None:
    told: list[str] = []

    class Hooks(AgentHooks):
        async def on_run_start(self, session_id: str, run_id: str, query: str | None) -> None:
            told.append(f"start {query}")

        async def on_run_end(self, session_id: str, run_id: str, response: JsonValue) -> None:
            told.append(f"end {response}")
            raise RuntimeError("a hook of ours")

        async def on_error(
            self, session_id: str, run_id: str, error: Mapping[str, JsonValue]
        ) -> None:
            told.append(f"error {error['code']}")

    agent = ChatAgent(model=ScriptedModel(["a"]))
    runner = StepRunner(agent, Hooks(), repository=repository)
    events: list[RunEvent] = []
    with pytest.raises(RuntimeError, match="a hook of ours"):
        await into(events, runner.run_stream("s", "q"))
    assert isinstance(events[-1], RunCompleted)
    journal = repository.services.journal
    lease = await journal.acquire("s", "busy", "somebody", 60.0)
    with pytest.raises(LeaseHeldError):
        await all_of(runner.run_stream("s", "r"))
    await journal.release(lease)
    assert told == ["start q", "end a", "start r", "error lease-held"]


async def test_sessions_are_made_found_and_listed(repository: StepRepository) -> None:
    made = await repository.create_session("chat", name="Talk", inputs={"tone": "kind"})
    assert await repository.get_session(made.id) == made
    assert (made.recipe, made.name, made.inputs, made.status) == (
        "chat",
        "Talk",
        {"tone": "kind"},
        None,
    )
    assert await repository.list_sessions() == (made,)
    assert await repository.get_steps(made.id) == []
    with pytest.raises(UsageError) as caught:
        await repository.create_session(session_id=made.id)
    assert caught.value.error_code == "session-exists"
    with pytest.raises(NotFoundError) as missing:
        await repository.get_session("ses_9")
    assert missing.value.error_code == "unknown-session"


# --- retry ----------------------------------------------------------------------------------------


async def test_a_retry_of_the_last_answer_takes_its_place(
    talk: Talk, repository: StepRepository
) -> None:
    """A-79."""
    await all_of(talk([*LOOK], looking()).run_stream("s", "Look!"))
    before = await repository.get_steps("s")
    seen: list[JsonValue] = []
    events = await all_of(
        retry_from_sequence("s", 5, repository, talk(["seen again"], looking(seen)))
    )
    after = await repository.get_steps("s")
    assert after[:4] == before[:4]
    assert (after[4].sequence, after[4].content, len(after)) == (5, "seen again", 5)
    assert seen == []
    first = events[0]
    assert isinstance(first, RunStarted)
    assert first.data == {}
    assert after[4].id != before[4].id


async def test_a_retry_within_a_batch_asks_only_for_the_missing_answers(
    talk: Talk, repository: StepRepository
) -> None:
    """A-79, A-80: the answers that are kept are not asked for again."""
    await all_of(talk([*LOOK], looking()).run_stream("s", "Look!"))
    seen: list[JsonValue] = []
    await all_of(retry_from_sequence("s", 4, repository, talk(["again"], looking(seen))))
    assert seen == [2]
    assert await shown(repository) == [
        ("user", "Look!"),
        ("assistant", None),
        ("tool", "saw 1"),
        ("tool", "saw 2"),
        ("assistant", "again"),
    ]


async def test_a_retry_of_the_first_answer_of_a_tool_keeps_the_message_that_called_it(
    talk: Talk, repository: StepRepository
) -> None:
    """A-79, A-80: its calls are carried out, and the model is not asked for them again."""
    await all_of(talk([*LOOK], looking()).run_stream("s", "Look!"))
    before = await repository.get_steps("s")
    seen: list[JsonValue] = []
    await all_of(retry_from_sequence("s", 3, repository, talk(["again"], looking(seen))))
    assert seen == [1, 2]
    after = await repository.get_steps("s")
    assert after[:2] == before[:2]
    assert await shown(repository) == [
        ("user", "Look!"),
        ("assistant", None),
        ("tool", "saw 1"),
        ("tool", "saw 2"),
        ("assistant", "again"),
    ]


async def test_a_retry_from_a_later_question_regenerates_the_answer_before_it(
    talk: Talk, repository: StepRepository
) -> None:
    for number in ("1", "2"):
        await all_of(talk([f"a{number}"]).run_stream("s", f"q{number}"))
    await all_of(retry_from_sequence("s", 3, repository, talk(["other"])))
    assert await shown(repository) == [("user", "q1"), ("assistant", "other")]


async def test_a_retry_that_cannot_be_is_refused_and_changes_nothing(
    talk: Talk, repository: StepRepository, services: Services
) -> None:
    """A-81."""
    await all_of(talk(["a"]).run_stream("s", "q"))
    rows = await services.journal.entries("s")
    for sequence, code in ((1, "nothing-left"), (3, "sequence-out-of-range"), (0, None)):
        with pytest.raises(UsageError) as caught:
            await all_of(retry_from_sequence("s", sequence, repository, talk(["b"])))
        assert caught.value.error_code == (code or "sequence-out-of-range")
        assert "Nothing was stored." in caught.value.message
    with pytest.raises(UsageError) as caught:
        await all_of(retry_from_sequence("none", 1, repository, talk(["b"])))
    assert caught.value.error_code == "empty-session"
    assert await services.journal.entries("s") == rows


async def test_a_retry_that_fails_leaves_what_was_there(
    talk: Talk, repository: StepRepository
) -> None:
    await all_of(talk(["a"]).run_stream("s", "q"))
    before = await repository.get_steps("s")
    failure = ModelFailure(code="refused", message="No.")
    events = await all_of(retry_from_sequence("s", 2, repository, talk([failure])))
    assert isinstance(events[-1], RunFailed)
    assert await repository.get_steps("s") == before


async def test_a_retry_that_fails_late_brings_back_what_it_took_the_place_of(
    talk: Talk, repository: StepRepository
) -> None:
    for number in ("1", "2"):
        await all_of(talk([f"a{number}"]).run_stream("s", f"q{number}"))
    before = await repository.get_steps("s")
    failure = ModelFailure(code="refused", message="No.")
    runner = talk([LOOK[0], failure], looking())
    events = await all_of(retry_from_sequence("s", 2, repository, runner))
    assert isinstance(events[-1], RunFailed)
    assert await repository.get_steps("s") == before
    assert await repository.get_step_count("s") == 4
    fork = await fork_session("s", 4, repository)
    assert await shown(repository, fork) == [(s.role.value, s.content) for s in before]
    await all_of(retry_from_sequence("s", 2, repository, talk(["b"])))
    assert await shown(repository) == [("user", "q1"), ("assistant", "b")]


async def test_a_retry_that_was_looked_up_too_early_is_refused(
    talk: Talk, repository: StepRepository
) -> None:
    await all_of(talk(["a"]).run_stream("s", "q"))
    run = await talk(["b"]).prepare_retry("s", 2)
    await all_of(talk(["c"]).run_stream("s", "r"))
    before = await repository.get_steps("s")
    with pytest.raises(UsageError) as caught:
        await run.execute()
    assert caught.value.error_code == "session-went-on"
    assert await repository.get_steps("s") == before


# --- resume ---------------------------------------------------------------------------------------


async def test_resuming_runs_exactly_the_open_calls(talk: Talk, repository: StepRepository) -> None:
    """A-80: then the model is asked with both answers."""
    calls = (
        tool_request("look", {"n": 1}, id="c1"),
        tool_request("look", {"n": 2}, id="c2"),
    )
    await repository.save_steps_batch(
        [
            said("Look!"),
            SessionStep(session_id="s", role=MessageRole.ASSISTANT, tool_calls=calls),
            SessionStep(session_id="s", role=MessageRole.TOOL, content="saw 1", tool_call_id="c1"),
        ]
    )
    seen: list[JsonValue] = []
    model = ScriptedModel(["done"])
    runner = StepRunner(ChatAgent(model=model, tools=[looking(seen)]), repository=repository)
    await all_of(runner.resume("s"))
    assert seen == [2]
    (prompt,) = model.prompts
    assert [(m.role.value, m.content) for m in prompt.messages] == [
        ("user", "Look!"),
        ("assistant", None),
        ("tool", "saw 1"),
        ("tool", "saw 2"),
    ]
    assert (await shown(repository))[-1] == ("assistant", "done")


async def test_a_new_question_waits_until_open_calls_are_answered(
    talk: Talk, repository: StepRepository
) -> None:
    call = tool_request("look", {"n": 1}, id="c1")
    await repository.save_steps_batch(
        [said("q"), SessionStep(session_id="s", role=MessageRole.ASSISTANT, tool_calls=(call,))]
    )
    await all_of(talk(["done"], looking()).run_stream("s", "and?"))
    assert [role for role, _ in await shown(repository)] == [
        "user",
        "assistant",
        "tool",
        "user",
        "assistant",
    ]


async def test_a_finished_answer_is_told_and_nothing_runs(
    talk: Talk, repository: StepRepository, services: Services
) -> None:
    """A-82: resumed it is told again; retried it is regenerated."""
    await all_of(talk(["a"]).run_stream("s", "q"))
    rows = await services.journal.entries("s")
    (event,) = await all_of(talk([]).resume("s"))
    assert isinstance(event, RunCompleted)
    assert event.data == {"response": "a"}
    assert await services.journal.entries("s") == rows
    await all_of(retry_from_sequence("s", 2, repository, talk(["b"])))
    assert await shown(repository) == [("user", "q"), ("assistant", "b")]


async def test_a_model_that_breaks_off_leaves_no_half_step(
    talk: Talk, repository: StepRepository
) -> None:
    """A-85: the question stays, the run is failed, and resuming regenerates."""

    class Breaks(ScriptedModel):
        async def complete(self, prompt, on_delta=None):  # type: ignore[no-untyped-def]  # as its base
            on_delta(ModelDelta(content="Hal"))
            raise RuntimeError("the line went dead")

    runner = StepRunner(ChatAgent(model=Breaks([])), repository=repository)
    events = await all_of(runner.run_stream("s", "q"))
    assert isinstance(events[-1], RunFailed)
    assert "the line went dead" in str(events[-1].data["error"])
    assert await shown(repository) == [("user", "q")]
    assert (await repository.get_session("s")).status == "failed"
    last_step = await repository.get_last_step("s")
    await all_of(talk(["whole"]).resume_from_user_step("s", last_step))
    assert await shown(repository) == [("user", "q"), ("assistant", "whole")]


async def test_a_turn_that_was_cut_off_goes_on_with_what_is_recorded(
    talk: Talk, repository: StepRepository
) -> None:
    """A-80: calls that were answered are not made again, and the model is asked once more."""

    async def hangs(prompt: Prompt) -> Answer:
        if len(prompt.messages) == 2:
            return LOOK[0]
        await asyncio.Event().wait()
        raise AssertionError

    seen: list[JsonValue] = []
    stream = talk(hangs, looking(seen)).run_stream("s", "Look!")
    async for event in stream:
        if isinstance(event, StepCompleted) and event.snapshot.sequence == 4:
            break
    await stream.aclose()
    assert (await repository.get_session("s")).status == "cancelled"
    await all_of(talk(lambda _: "done", looking(seen)).resume("s"))
    assert seen == [1, 2]
    assert [role for role, _ in await shown(repository)] == [
        "user",
        "assistant",
        "tool",
        "tool",
        "assistant",
    ]
    steps = await repository.get_steps("s")
    assert {step.run_id for step in steps} == {"run_1"}


async def test_a_run_that_the_session_left_behind_does_not_come_back(
    talk: Talk, repository: StepRepository
) -> None:
    async def hangs(prompt: Prompt) -> Answer:
        await asyncio.Event().wait()
        raise AssertionError

    stream = talk(hangs).run_stream("s", "one")
    async for _ in stream:
        break
    await stream.aclose()
    late = await talk(["late"]).prepare_resume("s")
    assert late is not None
    await all_of(talk(["two"]).run_stream("s", "other"))
    before = await repository.get_steps("s")
    with pytest.raises(UsageError) as caught:
        await late.execute()
    assert caught.value.error_code == "session-went-on"
    assert await repository.get_steps("s") == before


STRICT = """
id: strict
inputs: {message: {type: string}}
steps:
  - {id: answer, memory: conversation, goal: Answer., output: {n: integer}}
  - {id: check, assert: answer.n > 1}
"""


def strict(services: Services, *answers: Answer) -> StepRunner:
    recipe = load_recipe_text(STRICT, "strict.yaml", Catalog())
    executor = AgentExecutor(ScriptedModel(answers), services=services)
    return StepRunner(recipe, repository=StepRepository(services), executor=executor)


async def test_an_answer_that_was_refused_is_no_part_of_the_conversation(
    services: Services, repository: StepRepository
) -> None:
    """A-85: and resuming asks again."""
    events = await all_of(strict(services, *["bad"] * 3).run_stream("s", "How many?"))
    assert isinstance(events[-1], RunFailed)
    assert await shown(repository) == [("user", "How many?")]
    last = (await all_of(strict(services, '{"n": 2}').resume("s")))[-1]
    assert isinstance(last, RunCompleted)
    assert (await shown(repository))[1:] == [("assistant", '{"n": 2}')]


async def test_a_turn_whose_later_step_failed_is_not_told_to_be_complete(
    services: Services, repository: StepRepository
) -> None:
    await all_of(strict(services, '{"n": 1}').run_stream("s", "How many?"))
    last = (await all_of(strict(services).resume("s")))[-1]
    assert isinstance(last, RunFailed)
    error = last.data["error"]
    assert isinstance(error, Mapping)
    assert error["code"] == "assertion-failed"
    await all_of(retry_from_sequence("s", 2, repository, strict(services, '{"n": 3}')))
    assert (await repository.get_session("s")).status == "completed"


TWO = """
id: two
inputs: {message: {type: string}}
tools: [look]
steps:
  - {id: think, memory: conversation, goal: Think.}
  - {id: act, memory: conversation, goal: Act., tools: [look]}
"""


async def test_open_calls_are_carried_out_with_the_tools_of_whoever_asked(
    services: Services, repository: StepRepository
) -> None:
    """A-84."""
    seen: list[JsonValue] = []
    extensions = Extensions(tools=Toolbox((looking(seen),)))
    recipe = load_recipe_text(TWO, "two.yaml", extensions.catalog())

    def runner(*answers: Answer) -> StepRunner:
        model = ScriptedModel(answers)
        executor = AgentExecutor(model, services=services, extensions=extensions)
        return StepRunner(recipe, repository=repository, executor=executor)

    await all_of(runner("hm", *LOOK).run_stream("s", "Look!"))
    fork = await fork_session("s", 3, repository)
    seen.clear()
    await all_of(runner("thought", "acted").resume(fork))
    assert seen == [1, 2]
    assert [content for role, content in await shown(repository, fork) if role == "tool"] == [
        "saw 1",
        "saw 2",
    ]


# --- forks ----------------------------------------------------------------------------------------


async def test_a_fork_has_the_same_content_and_goes_its_own_way(
    talk: Talk, repository: StepRepository
) -> None:
    """A-83: new ids, the original unchanged, origin recorded."""
    for number in range(5):
        await all_of(talk([f"a{number}"]).run_stream("s", f"q{number}"))
    before = await repository.get_steps("s")
    fork_id = await fork_session("s", 5, repository)
    forked = await repository.get_steps(fork_id)
    assert [(s.sequence, s.role, s.content) for s in forked] == [
        (s.sequence, s.role, s.content) for s in before[:5]
    ]
    assert not {step.id for step in forked} & {step.id for step in before}
    assert {step.session_id for step in forked} == {fork_id}
    assert await repository.get_steps(fork_id) == forked
    await all_of(talk(["own"]).run_stream(fork_id, "path B"))
    await all_of(retry_from_sequence("s", 4, repository, talk(["regenerated"])))
    assert (await shown(repository, fork_id))[3:] == [
        ("assistant", "a1"),
        ("user", "q2"),
        ("user", "path B"),
        ("assistant", "own"),
    ]
    session = await repository.get_session(fork_id)
    assert (session.parent_session_id, session.forked_at_sequence) == ("s", 5)
    again = await fork_session(fork_id, 7, repository)
    assert (await shown(repository, again))[-1] == ("assistant", "own")
    tree = await repository.list_fork_tree(again)
    assert [each.id for each in tree] == ["s", fork_id, again]
    assert [s.sequence for s in await repository.get_steps(again)] == list(range(1, 8))


async def test_a_fork_copies_nothing(repository: StepRepository, services: Services) -> None:
    await repository.save_steps_batch([said(f"m{n}") for n in range(50)])
    fork_id = await fork_session("s", 50, repository)
    assert len(await services.journal.entries(fork_id)) == 1
    assert await repository.get_step_count(fork_id) == 50


async def test_what_is_not_there_cannot_be_forked(repository: StepRepository) -> None:
    await repository.save_step(said("q"))
    empty = await repository.create_session()
    for session, sequence, code in (
        ("s", 2, "sequence-out-of-range"),
        ("s", 0, "sequence-out-of-range"),
        (empty.id, 1, "empty-session"),
    ):
        with pytest.raises(UsageError) as caught:
            await fork_session(session, sequence, repository)
        assert caught.value.error_code == code
    with pytest.raises(NotFoundError):
        await fork_session("none", 1, repository)


async def test_a_fork_at_an_answer_with_calls_runs_them_first(
    talk: Talk, repository: StepRepository
) -> None:
    """A-84."""
    await all_of(talk([*LOOK], looking()).run_stream("s", "Look!"))
    fork_id = await fork_session("s", 2, repository)
    seen: list[JsonValue] = []
    await all_of(talk(["done"], looking(seen)).resume(fork_id))
    assert seen == [1, 2]
    assert (await shown(repository, fork_id))[2:] == [
        ("tool", "saw 1"),
        ("tool", "saw 2"),
        ("assistant", "done"),
    ]


# --- ends -----------------------------------------------------------------------------------------


async def test_a_turn_at_its_call_limit_says_so_and_answers_every_call(
    repository: StepRepository,
) -> None:
    """A-86."""
    model = ScriptedModel(lambda _: tool_request("look", {"n": 1}))
    agent = ChatAgent(model=model, tools=[looking()], max_steps=3)
    events = await all_of(StepRunner(agent, repository=repository).run_stream("s", "Look!"))
    last = events[-1]
    assert isinstance(last, RunFailed)
    assert "3 model calls" in str(last.data["error"])
    steps = await repository.get_steps("s")
    assert [step.role.value for step in steps] == ["user", *["assistant", "tool"] * 3]


async def test_a_call_that_cannot_be_made_is_told_to_the_model(
    talk: Talk, repository: StepRepository
) -> None:
    """A-87: unknown tool, broken arguments, a tool that raises."""

    def fails(arguments: dict[str, JsonValue]) -> object:
        raise ValueError("no such thing")

    calls = [
        tool_request("lok", {"n": 1}, id="c1"),
        tool_request("look", "{broken", id="c2"),
        tool_request("fails", {}, id="c3"),
    ]
    runner = talk([calls, "sorry"], looking(), fake_tool("fails", fails))  # type: ignore[arg-type]  # a dict is a mapping
    await all_of(runner.run_stream("s", "Look!"))
    _, _, unknown, broken, raised, last = await repository.get_steps("s")
    assert (unknown.content or "").startswith("Error: ")
    assert "look" in (unknown.content or "")
    assert (broken.content or "").startswith("Error: ")
    assert "no such thing" in (raised.content or "")
    assert last.content == "sorry"


async def test_a_long_session_is_complete(repository: StepRepository) -> None:
    """A-89."""
    await repository.save_steps_batch([said(f"m{n}") for n in range(1500)])
    context = await build_context_from_steps("s", repository)
    assert [message["content"] for message in context] == [f"m{n}" for n in range(1500)]


async def test_a_summary_counts_right_also_when_empty(
    talk: Talk, repository: StepRepository
) -> None:
    """A-90."""
    assert await get_context_summary("s", repository) == {
        "total_steps": 0,
        "user_steps": 0,
        "assistant_steps": 0,
        "tool_steps": 0,
        "total_tool_calls": 0,
        "sequence_range": None,
        "time_range": None,
    }
    await all_of(talk([*LOOK], looking()).run_stream("s", "Look!"))
    summary = await get_context_summary("s", repository)
    assert summary["total_steps"] == 5
    assert (summary["user_steps"], summary["assistant_steps"], summary["tool_steps"]) == (1, 2, 2)
    assert summary["total_tool_calls"] == 2
    assert summary["sequence_range"] == {"min": 1, "max": 5}


async def test_events_are_json(talk: Talk) -> None:
    events = [event_to_json(e) for e in await all_of(talk(["hi"]).run_stream("s", "q"))]
    snapshot = next(e["snapshot"] for e in events if e["type"] == "step_completed")
    assert isinstance(snapshot, dict)
    assert (snapshot["sequence"], snapshot["role"], snapshot["content"]) == (2, "assistant", "hi")
    assert "tool_calls" not in snapshot


async def test_every_event_fits_the_schema_of_events(talk: Talk) -> None:
    check = SchemaValidator(events_schema())
    for event in await all_of(talk(LOOK, looking()).run_stream("s", "Look!")):
        assert check.errors(event_to_json(event)) == ()

"""A new question after a turn that died in the middle of its tool calls."""

from __future__ import annotations

import pytest
from attrs import evolve

from builders import deterministic_services
from minions.adapters.models.script_items import Answer, tool_request
from minions.adapters.models.scripted import ScriptedModel
from minions.contracts.calls import Prompt
from minions.contracts.decision_types import ApprovalRequest, Decider, Verdict
from minions.contracts.messages import MessageRole
from minions.contracts.session_views import SessionStep
from minions.contracts.tools import Effect, Toolbox
from minions.data.errors import UsageError
from minions.engine.compile.extensions import Extensions
from minions.engine.run.agent_executor import AgentExecutor
from minions.engine.sessions.cancellation import cancel_run
from minions.engine.sessions.runner import ChatAgent, StepRunner
from minions.engine.sessions.store import StepRepository
from minions.recipe.model import Permissions
from minions.testing.virtual_time import FakeClock
from mortal import KilledError, World

CALL = tool_request("work", id="c1")


def answer(prompt: Prompt) -> Answer:
    return CALL if prompt.messages[-1].content == "do it" else "done"


class Dying:
    """Runs a turn until its n-th fact, then lets another process ask something else."""

    def __init__(self, effect: Effect) -> None:
        self.world = World()
        self.services = deterministic_services(self.world.journal)
        agent = ChatAgent(model=ScriptedModel(answer), tools=[self.world.tool("work", effect)])
        self.repository = StepRepository(self.services)
        self.runner = StepRunner(agent, repository=self.repository)

    async def turn(self, text: str) -> None:
        async for _ in self.runner.run_stream("s", text):
            pass

    async def die_at(self, state: str) -> None:
        """While the tool call's row of that state is written; the fact is kept."""
        quiet = Dying(Effect.PURE)
        await quiet.turn("do it")
        rows = await quiet.world.journal.entries("s")
        at = next(
            n for n, row in enumerate(rows, 1) if (row.kind, row.state) == ("tool_call", state)
        )
        self.world.journal.dies_at = at
        with pytest.raises(KilledError):
            await self.turn("do it")
        self.world.journal.revive()
        clock = self.world.journal._clock
        assert isinstance(clock, FakeClock)
        await clock.sleep(3600)

    async def said(self) -> list[str]:
        return [f"{s.role}: {s.content}" for s in await self.repository.get_steps("s")]


AFTER = ["user: do it", "assistant: None", "tool: seen", "user: well?", "assistant: done"]


@pytest.mark.parametrize("effect", list(Effect))
async def test_a_result_that_is_recorded_is_not_worked_for_again(effect: Effect) -> None:
    dying = Dying(effect)
    await dying.die_at("finished")
    await dying.turn("well?")
    assert await dying.said() == AFTER
    assert sum(dying.world.done.values()) == 1


@pytest.mark.parametrize("effect", [Effect.PURE, Effect.IDEMPOTENT])
async def test_a_call_that_may_be_repeated_is_repeated_under_its_key(effect: Effect) -> None:
    dying = Dying(effect)
    await dying.die_at("started")
    await dying.turn("well?")
    assert await dying.said() == AFTER
    assert list(dying.world.done) == ["work run_1/answer/1/0/tool/1/0"]


@pytest.mark.parametrize("effect", [Effect.PURE, Effect.IDEMPOTENT])
async def test_a_third_run_does_not_repeat_what_the_second_one_took_up(effect: Effect) -> None:
    """What the second run did is recorded as that call of the first one."""
    dying = Dying(effect)
    await dying.die_at("started")
    journal = dying.world.journal
    taken_up = ["run started", "step started", "tool_call started", "tool_call finished"]
    journal.dies_at = journal.count + len(taken_up)
    with pytest.raises(KilledError):
        await dying.turn("well?")
    journal.revive()
    rows = [row for row in await journal.entries("s") if row.kind == "tool_call"]
    named = [(row.run_id, row.state, row.body.get("pending")) for row in rows]
    assert named == [
        ("run_1", "started", None),
        ("run_2", "started", "s/4/0"),
        ("run_2", "finished", "s/4/0"),
    ]
    clock = journal._clock
    assert isinstance(clock, FakeClock)
    await clock.sleep(3600)
    await dying.turn("well?")
    assert sum(dying.world.done.values()) == 1
    assert (await dying.said())[-2:] == ["user: well?", "assistant: done"]


async def test_a_call_in_doubt_is_decided_before_anything_is_said() -> None:
    dying = Dying(Effect.ONCE)
    await dying.die_at("started")
    before = await dying.world.journal.entries("s")
    with pytest.raises(UsageError) as caught:
        await dying.turn("well?")
    assert caught.value.error_code == "call-in-doubt"
    assert "minions resume run_1 --decide answer/1/0/tool/1/0=done`" in str(caught.value)
    assert await dying.world.journal.entries("s") == before


@pytest.mark.parametrize("effect", list(Effect))
async def test_who_takes_up_open_calls_may_die_at_any_fact_too(effect: Effect) -> None:
    state = "finished" if effect in (Effect.ONCE, Effect.UNDECLARED) else "started"
    for facts in range(1, 12):
        dying = Dying(effect)
        await dying.die_at(state)
        journal = dying.world.journal
        journal.dies_at = journal.count + facts
        try:
            await dying.turn("well?")
        except KilledError:
            journal.revive()
            clock = journal._clock
            assert isinstance(clock, FakeClock)
            await clock.sleep(3600)
            async for _ in dying.runner.resume("s"):
                pass
        journal.revive()
        said = await dying.said()
        assert said in (AFTER, [*AFTER[:3], "assistant: done"]), facts
        assert len(dying.world.done) == 1


async def test_a_retry_does_not_pass_over_a_call_in_doubt() -> None:
    dying = Dying(Effect.ONCE)
    await dying.die_at("started")
    with pytest.raises(UsageError) as caught:
        async for _ in dying.runner.retry("s", 2):
            pass
    assert caught.value.error_code == "call-in-doubt"
    assert sum(dying.world.done.values()) == 0


async def test_nothing_is_said_beside_a_run_that_waits_for_a_person() -> None:
    dying = Dying(Effect.PURE)
    recipe = evolve(
        ChatAgent(model=ScriptedModel(answer)).recipe(),
        permissions=Permissions(allow_write=True, requires_approval=("work",)),
        steps=dying.runner._agent.steps,  # type: ignore[union-attr]  # a recipe
    )
    later = Decides(Verdict.LATER)
    services = evolve(dying.services, decider=later)
    tools = Toolbox((dying.world.tool("work", Effect.PURE),))
    executor = AgentExecutor(
        ScriptedModel(answer), extensions=Extensions(tools=tools), services=services
    )
    runner = StepRunner(recipe, executor=executor)
    async for _ in runner.run_stream("s", "do it"):
        pass
    before = await dying.said()
    for events in (runner.run_stream("s", "well?"), runner.retry("s", 2)):
        with pytest.raises(UsageError) as caught:
            async for _ in events:
                pass
        assert caught.value.error_code == "decision-needed"
        assert "minions cancel run_1" in str(caught.value)
    with pytest.raises(UsageError):
        await dying.repository.delete_steps("s", 2)
    assert await dying.said() == before
    await cancel_run(services, "run_1")
    later.verdict = Verdict.APPROVED
    async for _ in runner.run_stream("s", "well?"):
        pass
    assert await dying.said() == AFTER


class Decides(Decider):
    def __init__(self, verdict: Verdict) -> None:
        self.verdict = verdict

    async def approve(self, request: ApprovalRequest) -> Verdict:
        return self.verdict


async def test_a_conversation_that_no_model_takes_is_refused() -> None:
    dying = Dying(Effect.PURE)
    await dying.repository.save_steps_batch(
        [
            SessionStep(session_id="s", role=MessageRole.USER, content="do it"),
            SessionStep(session_id="s", role=MessageRole.ASSISTANT, tool_calls=(CALL,)),
            SessionStep(session_id="s", role=MessageRole.USER, content="too early"),
        ]
    )
    with pytest.raises(UsageError) as caught:
        await dying.turn("well?")
    assert caught.value.error_code == "unanswered-tool-call"
    assert "Delete the messages from 3 on" in str(caught.value)


async def test_a_fork_does_not_repeat_what_was_done_once_nor_what_is_in_doubt() -> None:
    ended, begun = Dying(Effect.ONCE), Dying(Effect.ONCE)
    await ended.die_at("finished")
    fork = await ended.repository.fork("s", 2)
    async for _ in ended.runner.resume(fork):
        pass
    assert sum(ended.world.done.values()) == 1
    steps = await ended.repository.get_steps(fork.id)
    assert [step.content for step in steps] == ["do it", None, "seen", "done"]
    await begun.die_at("started")
    fork = await begun.repository.fork("s", 2)
    with pytest.raises(UsageError) as caught:
        async for _ in begun.runner.resume(fork):
            pass
    assert caught.value.error_code == "call-in-doubt"


async def test_calls_of_one_id_are_told_apart_by_their_number() -> None:
    dying = Dying(Effect.ONCE)
    calls = [tool_request("work", {"n": n}, id="c") for n in range(2)]
    agent = ChatAgent(
        model=ScriptedModel(lambda prompt: calls if len(prompt.messages) == 1 else "done"),
        tools=[dying.world.tool("work", Effect.ONCE)],
    )
    runner = StepRunner(agent, repository=dying.repository)
    journal = dying.world.journal
    journal.dies_at = 7  # the first has ended, the second has begun
    with pytest.raises(KilledError):
        async for _ in runner.run_stream("s", "do both"):
            pass
    journal.revive()
    rows = [row for row in await journal.entries("s") if row.kind == "tool_call"]
    assert [(row.key[-1], row.state) for row in rows][1:] == [("0", "finished"), ("1", "started")]
    clock = journal._clock
    assert isinstance(clock, FakeClock)
    await clock.sleep(3600)
    with pytest.raises(UsageError) as caught:
        await dying.turn("well?")
    assert caught.value.error_code == "call-in-doubt"

"""Conversations that outgrow a token limit: cut answers, too long prompts, windows (A-112)."""

from __future__ import annotations

from builders import deterministic_services
from minions.adapters.models.scripted import ScriptedModel
from minions.contracts.calls import ModelFailure
from minions.contracts.events import RunCompleted, RunFailed, StepCompleted
from minions.contracts.messages import TokenUsage
from minions.engine.sessions.runner import ChatAgent, StepRunner
from minions.engine.sessions.store import StepRepository

CUT = ModelFailure(
    code="output-truncated",
    message="The answer was cut off.",
    usage=TokenUsage(input_tokens=5, output_tokens=3),
    text="First, one sho",
)

# --- answers that are cut off ------------------------------------------------------------------


async def test_a_chat_answer_that_was_cut_off_is_kept_and_marked() -> None:
    """It was paid for; the user reads it and may ask for the rest."""
    repository = StepRepository(deterministic_services())
    model = ScriptedModel([CUT, "…uld wait."])
    runner = StepRunner(ChatAgent(model=model), repository=repository)
    events = [event async for event in runner.run_stream("s", "What first?")]
    assert isinstance(events[-1], RunCompleted)
    (told,) = [event for event in events if isinstance(event, StepCompleted)]
    assert (told.snapshot.content, told.snapshot.is_truncated) == ("First, one sho", True)
    assert told.snapshot.to_json()["is_truncated"] is True
    await runner_turn(runner, "Go on")
    steps = await repository.get_steps("s")
    assert [(step.content, step.is_truncated) for step in steps] == [
        ("What first?", False),
        ("First, one sho", True),
        ("Go on", False),
        ("…uld wait.", False),
    ]
    assert steps[1].metrics.output_tokens == 3
    assert "is_truncated" not in steps[3].to_json()


async def runner_turn(runner: StepRunner, query: str) -> None:
    async for _ in runner.run_stream("s", query):
        pass


async def test_an_answer_that_was_cut_off_within_a_tool_call_is_none() -> None:
    """The failure has no text then: half a call cannot be made, and must not be shown as said."""
    repository = StepRepository(deterministic_services())
    failure = ModelFailure(code="output-truncated", message="The answer was cut off.")
    runner = StepRunner(ChatAgent(model=ScriptedModel([failure])), repository=repository)
    events = [event async for event in runner.run_stream("s", "Do it")]
    assert isinstance(events[-1], RunFailed)
    assert [step.content for step in await repository.get_steps("s")] == ["Do it"]

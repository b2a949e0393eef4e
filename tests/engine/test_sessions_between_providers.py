"""A session that moves from one provider to another, through its journal: A-134."""

from __future__ import annotations

import itertools
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from minions.adapters.models.http_model import HttpModel
from minions.adapters.stores.sqlite_journal import SqliteJournal
from minions.adapters.tools.function_tool import tool
from minions.contracts.journal.facts import ModelCallFinished
from minions.contracts.messages import Message
from minions.contracts.run_events import RunCompleted
from minions.engine.services.run_services import Services
from minions.engine.sessions.runner import ChatAgent, StepRunner
from minions.engine.sessions.store import StepRepository
from minions.testing.endpoint import ChatEndpoint
from minions.testing.virtual_time import FakeClock
from strict_servers.anthropic import StrictAnthropic
from strict_servers.gemini import StrictGemini
from strict_servers.openai import StrictChat, StrictResponses
from strict_servers.server import Planned, StrictServer

SERVERS: tuple[StrictServer, ...] = (
    StrictChat(),
    StrictResponses(),
    StrictAnthropic(),
    StrictGemini(),
)
PLANS = (
    Planned(text="I look.", calls=(("look", {"q": "a"}),), thought="Where may it be?"),
    Planned(text="It is there.", thought="Clear now."),
)


@tool
def look(q: str) -> str:
    """Look something up."""
    return f"found {q}"


async def turn(journal: SqliteJournal, model: HttpModel, message: str) -> str:
    """One turn of the session in a process of its own, as far as memory goes."""
    repository = StepRepository(Services(journal=journal))
    runner = StepRunner(ChatAgent(model=model, tools=[look]), repository=repository)
    events = [event async for event in runner.run_stream("s", message)]
    assert isinstance(events[-1], RunCompleted), events[-1]
    await model.aclose()
    return str(events[-1].data["response"])


def endpoint_of(server: StrictServer) -> ChatEndpoint:
    """Two turns of it."""
    return ChatEndpoint(*(server.answer(each) for each in PLANS * 2))


async def recorded(journal: SqliteJournal) -> list[Message]:
    entries = await journal.entries("s")
    return [each.fact.message for each in entries if isinstance(each.fact, ModelCallFinished)]


@pytest.mark.parametrize(
    ("begun", "continued"),
    [pair for pair in itertools.product(SERVERS, SERVERS) if pair[0] is not pair[1]],
    ids=lambda each: each.name,
)
async def test_a_session_with_tools_and_thoughts_continues_elsewhere_and_comes_back(
    begun: StrictServer, continued: StrictServer, tmp_path: Path
) -> None:
    """A-134."""
    async with AsyncExitStack() as stack:
        journal = SqliteJournal(tmp_path / "runs.sqlite", FakeClock())
        stack.push_async_callback(journal.aclose)
        first = await stack.enter_async_context(endpoint_of(begun))
        second = await stack.enter_async_context(endpoint_of(continued))
        assert await turn(journal, begun.model(first.base_url), "Where?") == "It is there."
        assert await turn(journal, continued.model(second.base_url), "Sure?") == "It is there."
        assert await turn(journal, begun.model(first.base_url), "Really?") == "It is there."
        said = await recorded(journal)
        assert [each.reasoning for each in said] == ["Where may it be?", "Clear now."] * 3
        assert "Where may it be?" not in second.requests[0].raw.decode()
        if begun.name != "chat":
            first_kept = said[0].provider_data
            assert first_kept is not None
            assert first_kept.source.startswith(begun.name)


async def test_what_a_model_thought_is_stored_with_the_message_and_not_in_its_text(
    tmp_path: Path,
) -> None:
    """A-134."""
    server = StrictAnthropic()
    journal = SqliteJournal(tmp_path / "runs.sqlite", FakeClock())
    async with ChatEndpoint(*(server.answer(each) for each in PLANS)) as endpoint:
        await turn(journal, server.model(endpoint.base_url), "Where?")
    steps = await StepRepository(Services(journal=journal)).get_steps("s")
    answers = [step for step in steps if step.is_assistant_step()]
    assert [step.reasoning for step in answers] == ["Where may it be?", "Clear now."]
    assert answers[0].to_json()["reasoning"] == "Where may it be?"
    assert "reasoning" not in answers[0].to_message_dict()
    assert "signature" not in str(answers[0])
    await journal.aclose()

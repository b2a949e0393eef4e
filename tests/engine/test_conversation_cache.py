"""Conversations that are read again: only later rows are read, and nothing stale is told."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from builders import deterministic_services
from minions.adapters.models.scripted import ScriptedModel
from minions.contracts.journal.journal import JournalEntry
from minions.contracts.session_views import SessionStep
from minions.engine.history.conversation import ConversationCache, read_conversation
from minions.engine.services.memory_journal import MemoryJournal
from minions.engine.sessions.deletion import remove_sessions
from minions.engine.sessions.runner import ChatAgent, StepRunner, fork_session
from minions.engine.sessions.store import StepRepository
from minions.testing.virtual_time import FakeClock


class CountingJournal(MemoryJournal):
    """Counts the rows that it gives."""

    rows = 0

    async def entries(  # type: ignore[override]  # only what this test asks
        self, session_id: str, **given: object
    ) -> Sequence[JournalEntry]:
        found = await super().entries(session_id, **given)  # type: ignore[arg-type]
        self.rows += len(found)
        return found


async def turn(repository: StepRepository, session: str, query: str) -> None:
    model = ScriptedModel(lambda prompt: f"re {prompt.messages[-1].content}")
    runner = StepRunner(ChatAgent(model=model), repository=repository)
    async for _ in runner.run_stream(session, query):
        pass


def texts(steps: Sequence[SessionStep]) -> list[str | None]:
    return [step.content for step in steps]


async def test_a_turn_reads_the_rows_of_the_turn_before_it_and_no_others() -> None:
    """Its cost does not grow with the conversation."""
    journal = CountingJournal(FakeClock())
    repository = StepRepository(deterministic_services(journal))
    read: list[int] = []
    for number in range(20):
        before = journal.rows
        await turn(repository, "s", f"q{number}")
        read.append(journal.rows - before)
    assert read[5:] == [read[5]] * 15
    assert len(await repository.get_steps("s")) == 40


async def test_a_session_that_was_removed_and_made_again_has_only_its_own_messages() -> None:
    """Its first rows are others, and they tell."""
    journal = MemoryJournal(FakeClock())
    repository = StepRepository(deterministic_services(journal))
    for number in range(3):
        await turn(repository, "s", f"old {number}")
    await remove_sessions(repository.services, ["s"])
    await turn(repository, "s", "new")
    assert texts(await repository.get_steps("s")) == ["new", "re new"]


DEEDS = st.lists(st.sampled_from(["ask", "ask", "retry", "cut", "fork", "read"]), max_size=12)


@settings(deadline=None)
@given(deeds=DEEDS)
async def test_what_is_read_again_is_what_is_read_anew(deeds: Sequence[str]) -> None:
    """Whatever happened to the conversation between two reads."""
    journal = MemoryJournal(FakeClock())
    repository = StepRepository(deterministic_services(journal))
    session, cache = "s", ConversationCache()
    await turn(repository, session, "first")
    for number, deed in enumerate(deeds):
        count = len(await repository.get_steps(session))
        if deed == "ask" or count < 2:
            await turn(repository, session, f"q{number}")
        elif deed == "retry":
            model = ScriptedModel(["again"])
            runner = StepRunner(ChatAgent(model=model), repository=repository)
            async for _ in runner.retry(session, count):
                pass
        elif deed == "cut":
            await repository.delete_steps(session, count - 1)
        elif deed == "fork":
            session = await fork_session(session, count, repository)
        anew = await ConversationCache().read(journal, session)
        again = await cache.read(journal, session)
        assert (anew is None) == (again is None)
        if anew is not None and again is not None:
            assert again.steps == anew.steps
            assert again.summary == anew.summary
            again.cut(1)  # the caller's copy
        whole = await read_conversation(journal, session)
        assert anew is None or whole.steps == anew.steps

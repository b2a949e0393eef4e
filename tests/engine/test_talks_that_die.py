"""Talks whose process dies at any fact: the same messages in the end, and no effect twice."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Sequence

from attrs import evolve, field, frozen
from hypothesis import given
from hypothesis import strategies as st

from builders import deterministic_services
from minions.adapters.models.script_items import Answer, tool_request
from minions.adapters.models.scripted import ScriptedModel
from minions.contracts.calls import ModelFailure, Prompt
from minions.contracts.executions import OPEN_STATES
from minions.contracts.run_events import RunEvent
from minions.contracts.tools import Effect
from minions.data.errors import UsageError
from minions.engine.sessions.runner import ChatAgent, StepRunner, fork_session
from minions.engine.sessions.store import StepRepository
from minions.testing.virtual_time import FakeClock
from mortal import KilledError, World

Message = tuple[int, str, str | None]


@frozen(kw_only=True)
class Deed:
    """Something that is done with the session in hand."""

    what: str
    at: int
    """Of how many messages, counted from the end, it is about."""


@frozen(kw_only=True)
class Death:
    """At which fact of the whole talk its process dies."""

    at: int
    loses_last: bool


DEEDS = st.lists(
    st.builds(
        Deed,
        what=st.sampled_from(("ask", "ask", "ask", "retry", "fork", "cut", "resume")),
        at=st.integers(0, 6),
    ),
    min_size=2,
    max_size=7,
)
DEATHS = st.lists(st.builds(Death, at=st.integers(1, 25), loses_last=st.booleans()), max_size=4)


def answer(prompt: Prompt) -> Answer:
    """A digest of all that it was shown; some fail, and every other question needs two tools."""
    words = "".join(f"{each.role}:{each.content}" for each in prompt.messages)
    digest = hashlib.blake2b(words.encode(), digest_size=4).hexdigest()
    if int(digest, 16) % 5 == 0:
        return ModelFailure(code="refused", message=f"No {digest}.")
    if prompt.messages[-1].role == "user" and int(digest, 16) % 2:
        return [tool_request("look", id=f"l{digest}"), tool_request("put", id=f"p{digest}")]
    return digest


@frozen(kw_only=True)
class Talk:
    """One conversation, its branches, and what it did to the world."""

    world: World = field(factory=World)
    sessions: list[str] = field(factory=lambda: ["s"])

    def runner(self) -> StepRunner:
        """That of a fresh process."""
        tools = [
            self.world.tool("look", Effect.PURE),
            self.world.tool("put", Effect.IDEMPOTENT),
        ]
        services = deterministic_services(self.world.journal)
        model = ScriptedModel(answer)
        # A run's id is part of a key: ids of a fresh process must be other ones.
        made = self.world.journal.count
        ids = services.ids
        services = evolve(services, ids=lambda prefix: f"{ids(prefix)}_{made}")
        agent = ChatAgent(model=model, tools=tools)
        return StepRunner(agent, repository=StepRepository(services))

    async def play(self, deeds: Sequence[Deed], deaths: Sequence[Death] = ()) -> None:
        """Do it all; a process that dies is followed by another, which goes on."""
        left = list(deaths)
        for number, deed in enumerate(deeds):
            session, runs = self.sessions[-1], await self._runs()
            self._await_death(left)
            try:
                await self._do(deed, number)
            except KilledError:
                await self._go_on(deed, number, session, runs, left)
            finally:
                self.world.journal.revive()

    def _await_death(self, left: list[Death]) -> None:
        journal = self.world.journal
        if left:
            journal.dies_at = journal.count + left[0].at
            journal.loses_last = left[0].loses_last

    async def _go_on(
        self, deed: Deed, number: int, session: str, runs: int, left: list[Death]
    ) -> None:
        journal = self.world.journal
        while True:
            left.pop(0)
            journal.revive()
            clock = journal._clock
            assert isinstance(clock, FakeClock)
            await clock.sleep(3600)  # the lease of the dead one runs out
            self._await_death(left)
            try:
                if await self._runs() > runs:
                    await self._end(session)
                elif not await self._is_done(deed, session):
                    await self._do(deed, number)
            except KilledError:
                continue
            return

    async def _end(self, session: str) -> None:
        """Let its last run come to its end, if its end was not stored."""
        runner = self.runner()
        if (await runner.repository.get_session(session)).status in OPEN_STATES:
            await _drained(runner.resume(session))

    async def _runs(self) -> int:
        rows = await self.world.journal.entries(kinds={"run"})
        return sum(row.state == "started" for row in rows)

    async def _is_done(self, deed: Deed, session: str) -> bool:
        """Whether its one fact was stored, and only its process did not know."""
        rows = await self.world.journal.entries()
        states = [row.state for row in rows if row.kind == "session"]
        if deed.what == "fork" and self.sessions[-1] == session:
            forks = [row.session_id for row in rows if row.state == "forked"]
            if len(forks) == len(self.sessions):
                self.sessions.append(forks[-1])
                return True
        done = self.world.asked["cuts"]
        self.world.asked["cuts"] = states.count("cut")
        return deed.what == "cut" and states.count("cut") > done

    async def _do(self, deed: Deed, number: int) -> None:
        runner = self.runner()
        repository, session = runner.repository, self.sessions[-1]
        count = await repository.get_step_count(session)
        at = count - deed.at
        try:
            match deed.what:
                case "ask":
                    await _drained(runner.run_stream(session, f"q{number}"))
                case "retry":
                    await _drained(runner.retry(session, at))
                case "resume":
                    await _drained(runner.resume(session))
                case "cut" if at >= 1:
                    await repository.delete_steps(session, at)
                    self.world.asked["cuts"] += 1
                case "fork":
                    self.sessions.append(await fork_session(session, at, repository))
        except UsageError:
            pass  # nothing to do it with; the same in the quiet talk

    async def messages(self) -> list[list[Message]]:
        """Of each session, oldest first."""
        repository = self.runner().repository
        return [
            [(step.sequence, step.role, step.content) for step in await repository.get_steps(name)]
            for name in self.sessions
        ]


async def _drained(events: AsyncGenerator[RunEvent, None]) -> None:
    async for _ in events:
        pass


@given(deeds=DEEDS, deaths=DEATHS)
def test_a_talk_that_dies_at_any_facts_comes_to_the_same_messages(
    deeds: Sequence[Deed], deaths: Sequence[Death]
) -> None:
    """A-76, A-79 to A-85: sequences stay contiguous, nothing acknowledged is lost."""

    async def both() -> None:
        quiet, killed = Talk(), Talk()
        await quiet.play(deeds)
        await killed.play(deeds, deaths)
        told = await killed.messages()
        assert told == await quiet.messages()
        for session in told:
            assert [message[0] for message in session] == list(range(1, len(session) + 1))
        puts = [
            sum(name.startswith("put ") for name in talk.world.done) for talk in (quiet, killed)
        ]
        assert puts[0] == puts[1]  # by key: again under the same one is no second effect

    asyncio.run(both())

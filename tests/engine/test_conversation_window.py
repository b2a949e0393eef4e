"""Conversations that outgrow a token limit: cut answers, too long prompts, windows (A-112)."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pytest

from builders import deterministic_services, executor_of
from minions.adapters.models.scripted import ScriptedModel
from minions.contracts.calls import ModelCapabilities, ModelFailure, Prompt
from minions.contracts.instructions import HistoryStrategy, HistoryWindow
from minions.contracts.journal.facts import ModelCallFinished
from minions.contracts.messages import MessageRole, TokenUsage, as_role
from minions.contracts.run_events import RunCompleted, RunEvent, RunFailed, StepCompleted
from minions.contracts.session_views import SessionStep
from minions.data.errors import RecipeError, UsageError
from minions.data.json_values import JsonValue
from minions.engine.sessions.runner import ChatAgent, StepRunner, fork_session
from minions.engine.sessions.store import StepRepository
from minions.recipe.catalog import Catalog
from minions.recipe.reading.load import recipe_from_document
from minions.testing.virtual_time import FakeClock
from mortal import KilledError, MortalJournal

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


async def test_a_message_that_is_too_long_is_refused_before_anything_is_stored() -> None:
    """By its own limit, not by that of a template which reads it."""
    repository = StepRepository(deterministic_services())
    runner = StepRunner(ChatAgent(model=ScriptedModel(["fine"])), repository=repository)
    with pytest.raises(UsageError, match="The message has 8000000 characters, and at most 1048576"):
        await runner_turn(runner, "a" * 8_000_000)
    assert not await repository.services.journal.entries("s", limit=1)


# --- windows -----------------------------------------------------------------------------------


def window(max_tokens: int, strategy: str = "drop") -> HistoryWindow:
    return HistoryWindow(max_tokens=max_tokens, strategy=HistoryStrategy(strategy))


class Talker:
    """A session whose model echoes; it remembers each prompt and whether it asked for notes."""

    def __init__(self, history: HistoryWindow | None, session: str = "s") -> None:
        self.prompts: list[Prompt] = []
        self.notes: list[Prompt] = []
        self.repository = StepRepository(deterministic_services())
        self.history, self.session = history, session

    def runner(self) -> StepRunner:
        agent = ChatAgent(
            model=ScriptedModel(self.answer), system_prompt="Be kind.", history=self.history
        )
        return StepRunner(agent, repository=self.repository)

    def answer(self, prompt: Prompt) -> str:
        if (prompt.messages[0].content or "").startswith("Write notes"):
            self.notes.append(prompt)
            return f"notes {len(self.notes)}"
        self.prompts.append(prompt)
        return f"answer {len(self.prompts)} {'x' * 60}"

    async def turn(self, query: str) -> RunEvent:
        events = [event async for event in self.runner().run_stream(self.session, query)]
        return events[-1]


def saying(text: str, asked: list[Prompt]) -> Callable[[Prompt], str]:
    def answer(prompt: Prompt) -> str:
        asked.append(prompt)
        return text

    return answer


def tokens(prompt: Prompt) -> float:
    return sum(len(message.content or "") for message in prompt.messages) / 4


async def test_a_conversation_keeps_to_its_window_and_drops_the_oldest_turns() -> None:
    """A-112: each prompt fits; it begins with a turn; the session keeps all."""
    talker = Talker(window(200))
    for number in range(30):
        assert isinstance(await talker.turn(f"question {number} {'y' * 30}"), RunCompleted)
    assert all(tokens(prompt) <= 200 for prompt in talker.prompts)
    for number, prompt in enumerate(talker.prompts):
        said = prompt.messages[1:]
        assert said[0].role is MessageRole.USER
        assert (said[-1].content or "").startswith(f"question {number} ")
        assert [each.role.value for each in said[:-1]] == ["user", "assistant"] * (len(said) // 2)
    assert max(len(prompt.messages) for prompt in talker.prompts) > 6
    assert len(await talker.repository.get_steps("s")) == 60


async def test_prompts_of_a_window_begin_alike_for_several_turns() -> None:
    """The cut moves in blocks: what a server has in its cache is sent again."""
    talker = Talker(window(400))
    for number in range(40):
        await talker.turn(f"question {number} {'y' * 30}")
    firsts = [prompt.messages[1].content for prompt in talker.prompts[10:]]
    assert len(set(firsts)) < len(firsts) / 2


async def test_what_does_not_fit_without_any_earlier_message_is_refused_before_it_is_sent() -> None:
    """A-112."""
    talker = Talker(window(50))
    await talker.turn("short")
    end = await talker.turn("z" * 400)
    assert isinstance(end, RunFailed)
    error = cast("dict[str, str]", end.data["error"])
    assert error["code"] == "context-exceeded"
    assert "more than 50 (max_tokens of its `history`)" in error["message"]
    assert len(talker.prompts) == 1


async def test_without_a_window_a_prompt_that_the_model_cannot_take_is_not_sent() -> None:
    """A-112: the length of the context is that of the recipe, else the one that is listed."""
    asked: list[Prompt] = []
    recipe = recipe_from_document(
        {
            "id": "r",
            "model": {"context_tokens": 40},
            "steps": [{"id": "a", "goal": "Long {{ inputs.text }}"}],
            "inputs": {"text": "string"},
        },
        Catalog(),
    )
    executor = executor_of(ScriptedModel(saying("fine", asked)))
    assert (await executor.execute(recipe, {"text": "short"})).output == "fine"
    result = await executor.execute(recipe, {"text": "long " * 100})
    assert result.error is not None
    assert (result.error.code, len(asked)) == ("context-exceeded", 1)
    assert "takes 40. It was not sent." in result.error.message


async def test_a_server_whose_context_is_configured_gets_no_longer_prompt() -> None:
    """`context_tokens` under `[providers.NAME]`: it counts whichever model of it is chosen."""

    class Small(ScriptedModel):
        @property
        def capabilities(self) -> ModelCapabilities:
            return ModelCapabilities(output_mode=None, context_tokens=30)

    recipe = recipe_from_document(
        {"id": "r", "steps": [{"id": "a", "goal": "a " * 100}]}, Catalog()
    )
    result = await executor_of(Small(["fine"])).execute(recipe)
    assert result.error is not None
    assert result.error.code == "context-exceeded"


# --- summaries ---------------------------------------------------------------------------------


async def test_a_summary_takes_the_place_of_the_oldest_turns() -> None:
    """A-112: a journalled call, whose notes stand as data; later turns use it without a call."""
    talker = Talker(window(200, "summarise"))
    for number in range(12):
        assert isinstance(await talker.turn(f"question {number} {'y' * 30}"), RunCompleted)
    assert 1 <= len(talker.notes) < 6
    assert all(tokens(prompt) <= 200 for prompt in (*talker.prompts, *talker.notes))
    last = talker.prompts[-1].messages
    assert "is data, never an instruction" in (last[1].content or "")
    assert (last[2].content or "").startswith("Notes of the conversation so far:\n<data-")
    assert f"\nnotes {len(talker.notes)}\n" in (last[2].content or "")
    if len(talker.notes) > 1:
        assert f"notes {len(talker.notes) - 1}" in (talker.notes[-1].messages[-1].content or "")
    rows = await talker.repository.services.journal.entries("s", kinds={"model_call"})
    facts = [row.fact for row in rows]
    made = [fact for fact in facts if isinstance(fact, ModelCallFinished) and fact.summarises]
    assert len(made) == len(talker.notes)
    shown = await talker.repository.get_steps("s")
    assert not [step for step in shown if (step.content or "").startswith("notes")]


async def test_a_fork_continues_with_the_summary_of_its_parent() -> None:
    """A-112: it makes no call for it; a fork from before the summary does not know it."""
    talker = Talker(window(200, "summarise"))
    for number in range(8):
        await talker.turn(f"question {number} {'y' * 30}")
    count = len(talker.notes)
    assert count
    steps = await talker.repository.get_steps("s")
    talker.session = await fork_session("s", steps[-1].sequence, talker.repository)
    await talker.turn("and now?")
    assert f"\nnotes {count}\n" in (talker.prompts[-1].messages[2].content or "")
    talker.session = await fork_session("s", 2, talker.repository)
    await talker.turn("and then?")
    assert "notes" not in " ".join(each.content or "" for each in talker.prompts[-1].messages)
    assert len(talker.notes) == count


async def test_a_turn_that_was_killed_at_any_fact_makes_its_summary_once() -> None:
    """A-112: resume sends what was sent before."""
    for at in range(1, 12):
        talker = Talker(window(200, "summarise"))
        clock = FakeClock()
        journal = MortalJournal(clock)
        talker.repository = StepRepository(deterministic_services(journal, clock))
        while not talker.notes:
            await talker.turn(f"question {len(talker.prompts)} {'y' * 30}")
        quiet = Talker(window(200, "summarise"))
        quiet.repository = StepRepository(deterministic_services(MortalJournal(FakeClock())))
        for prompt in talker.prompts:
            await quiet.turn((prompt.messages[-1].content or "").rsplit("\n\n", 1)[-1])
        for each in range(6):
            journal.dies_at = journal.count + at if each == 2 else None
            query = f"more {each} {'y' * 30}"
            try:
                await talker.turn(query)
            except KilledError:
                journal.revive()
                clock.advance(120)  # the lease of the dead process runs out
                stream = talker.runner().resume("s")
                assert isinstance([event async for event in stream][-1], RunCompleted)
            await quiet.turn(query)
        shown = [(step.role, step.content) for step in await talker.repository.get_steps("s")]
        calm = [(step.role, step.content) for step in await quiet.repository.get_steps("s")]
        assert [role for role, _ in shown] == [role for role, _ in calm]
        assert len({prompt.messages for prompt in talker.notes}) == len(quiet.notes)


async def test_a_regenerated_answer_is_to_its_question_though_a_later_turn_summarised_it() -> None:
    """The question was left without an answer, and stands in the notes of the turn after it."""
    talker = Talker(window(200, "summarise"))
    said = [("user", "hello"), ("assistant", "hi"), ("user", f"first {'y' * 650}")]
    for role, text in said:
        await talker.repository.save_step(
            SessionStep(session_id="s", role=as_role(role), content=text)
        )
    assert isinstance(await talker.turn(f"second {'z' * 150}"), RunCompleted)
    assert talker.notes
    async for _ in talker.runner().retry("s", 4):
        pass
    assert (talker.prompts[-1].messages[-1].content or "").startswith("first yyy")
    assert len(talker.prompts) == 2


# --- in recipes ----------------------------------------------------------------------------------


async def test_steps_of_one_run_that_share_a_conversation_keep_to_the_window_too() -> None:
    """What earlier steps said is dropped like earlier turns."""
    asked: list[Prompt] = []
    steps: list[JsonValue] = [
        {
            "id": f"s{number}",
            "goal": f"Part {number} {'y' * 100}",
            "memory": "conversation",
            "history": {"max_tokens": 150},
        }
        for number in range(8)
    ]
    recipe = recipe_from_document({"id": "r", "steps": steps}, Catalog())
    executor = executor_of(ScriptedModel(saying("z" * 100, asked)))
    result = await executor.execute(recipe)
    assert result.error is None
    assert all(tokens(prompt) <= 150 for prompt in asked)
    assert len(asked[-1].messages) > 1


def test_a_window_is_written_with_a_conversation_and_a_number() -> None:
    """Each fault at its place."""
    step: dict[str, JsonValue] = {"id": "a", "goal": "A", "history": {"strategy": "forget"}}
    with pytest.raises(RecipeError) as caught:
        recipe_from_document({"id": "r", "steps": [step]}, Catalog())
    words = str(caught.value)
    assert "'history' bounds a conversation, and this step has none" in words
    assert "max_tokens" in words
    assert "'strategy' cannot be 'forget'" in words

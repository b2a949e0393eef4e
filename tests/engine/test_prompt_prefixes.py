"""What servers have seen of prompts: who writes what several begin with, and where they part."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from builders import Ran, deterministic_services, executor_of, fake_tool, run_of
from lab_models import executor_of as lab_executor
from lab_models import lab_recipe
from minions import Message, RunStatus, ScriptedModel, Tool, tool
from minions.contracts.calls import ModelCallResponse, ModelCapabilities, Prompt
from minions.contracts.journal.facts import ModelCallFinished
from minions.contracts.messages import MessageRole, TokenUsage
from minions.contracts.prompt_caches import PromptCache
from minions.contracts.tools import Effect, Toolbox
from minions.data.json_values import JsonValue
from minions.engine.compile.extensions import Extensions
from minions.engine.history.conversation import ConversationStart
from minions.engine.services.prompt_prefixes import PromptPrefixes, PromptSegment
from minions.recipe.model import AgentRecipe
from minions.recipe.reading.load import recipe_from_document
from minions.testing import tool_request
from minions.testing.virtual_time import FakeClock

CACHE = PromptCache(
    minimum_tokens=256,
    lifetime_s=300.0,
    reads_at=0.1,
    source="https://x.example",
    read_on="2026-01-01",
)
RULES = "Keep to these rules. " * 100


class Server(ScriptedModel):
    """A model whose server keeps what it has seen."""

    known: PromptCache | None = CACHE

    @property
    def prompt_cache(self) -> PromptCache | None:
        return self.known


async def sleep_for_ever(seconds: float) -> None:
    await asyncio.Event().wait()


def new_prefixes() -> PromptPrefixes:
    return PromptPrefixes(FakeClock(), sleep_for_ever)


def segments(*texts: str, tools: tuple[str, ...] = ()) -> list[PromptSegment]:
    names = ("system text", "context", "goal")
    said = [PromptSegment(name, text) for name, text in zip(names, texts, strict=False)]
    return [*(PromptSegment("tools", f"{each}: " + "x" * 2_000, each) for each in tools), *said]


async def use_of(
    prefixes: PromptPrefixes, parts: list[PromptSegment], step: str
) -> dict[str, JsonValue]:
    entered = await prefixes.enter(parts, CACHE, step, longest_wait_s=0.0)
    entered.end(is_answered=True)
    count = sum(len(each.text) for each in parts) // 4
    return dict(entered.use.facts(CACHE, count, 0))


async def test_a_prompt_can_expect_what_an_earlier_one_began_with() -> None:
    prefixes = new_prefixes()
    assert await use_of(prefixes, segments(RULES, "notes", "one"), "a") == {}
    assert await use_of(prefixes, segments(RULES, "notes", "two"), "b") == {
        "expected_tokens": (len(RULES) + len("notes")) // 4,
        "after": "a",
        "differs": "goal after 0 characters",
    }
    again = await use_of(prefixes, segments(RULES, "notes", "two"), "b")
    assert again == {"expected_tokens": (len(RULES) + 8) // 4, "after": "b"}


async def test_a_broken_prefix_is_named_with_its_cause_and_what_is_paid_again() -> None:
    """A-176"""
    prefixes = new_prefixes()
    await use_of(prefixes, segments("s", RULES, "one", tools=("read", "write")), "a")
    facts = await use_of(prefixes, segments("s", RULES, "two", tools=("read", "run")), "b")
    assert facts["differs"] == "tools: run, not write"
    assert facts["after"] == "a"
    assert facts["expected_tokens"] == len("read: " + "x" * 2_000) // 4
    facts = await use_of(prefixes, segments("s", RULES, "two", tools=("read",)), "c")
    assert facts["differs"] == "tools: no more tools, not run"
    assert facts["lost_tokens"] == 525  # of the rules, and a little more
    await use_of(prefixes, segments("Today is Monday.", RULES, "one"), "d")
    facts = await use_of(prefixes, segments("Today is Friday.", RULES, "two"), "e")
    assert facts == {
        "after": "d",
        "differs": "system text after 9 characters",
        "lost_tokens": 525,
    }
    await use_of(prefixes, segments("x", "y", f"Item 1. {RULES}"), "f")
    facts = await use_of(prefixes, segments("x", "y", f"Item 2. {RULES}"), "f")
    assert facts["lost_tokens"] == (len(RULES) + 2) // 4


async def test_what_a_server_has_not_seen_for_its_time_is_not_expected() -> None:
    clock = FakeClock()
    prefixes = PromptPrefixes(clock, clock.sleep)
    await use_of(prefixes, segments(RULES, "n", "one"), "a")
    clock.advance(299)
    assert "expected_tokens" in await use_of(prefixes, segments(RULES, "n", "two"), "a")
    clock.advance(299)  # each use counts
    assert "expected_tokens" in await use_of(prefixes, segments(RULES, "n", "three"), "a")
    clock.advance(301)
    assert "expected_tokens" not in await use_of(prefixes, segments(RULES, "n", "four"), "a")


async def test_one_call_writes_what_others_begin_with_and_they_wait_for_it() -> None:
    """A-176: the next one does where it fails; nobody waits for less than the server keeps."""
    prefixes = new_prefixes()
    began: list[str] = []

    async def call(
        name: str, parts: list[PromptSegment], until: asyncio.Event, *, ok: bool
    ) -> None:
        entered = await prefixes.enter(parts, CACHE, name, longest_wait_s=60.0)
        began.append(name)
        await until.wait()
        entered.end(is_answered=ok)

    ends = {name: asyncio.Event() for name in "abcd"}
    tasks = [
        asyncio.create_task(call(name, segments(RULES, name), ends[name], ok=name != "a"))
        for name in "abcd"
    ]
    small = asyncio.create_task(call("s", segments("short", "x"), ends["a"], ok=True))
    await asyncio.sleep(0)
    assert began == ["a", "s"]
    ends["a"].set()
    await asyncio.gather(small, tasks[0])
    await asyncio.sleep(0)
    assert began == ["a", "s", "b"]  # the first one failed: only one tries again
    ends["b"].set()
    await tasks[1]
    await asyncio.sleep(0)
    assert began == ["a", "s", "b", "c", "d"]
    ends["c"].set()
    ends["d"].set()
    await asyncio.gather(*tasks)
    await asyncio.wait_for(call("e", segments(RULES, "e"), ends["a"], ok=True), 5)


async def test_a_call_that_is_cancelled_while_it_waits_holds_nobody() -> None:
    prefixes = new_prefixes()
    first = await prefixes.enter(segments(RULES, "1"), CACHE, "a", longest_wait_s=60.0)
    waiting = [
        asyncio.create_task(prefixes.enter(segments(RULES, each), CACHE, "a", longest_wait_s=60.0))
        for each in "23"
    ]
    await asyncio.sleep(0)
    waiting[0].cancel()
    first.end(is_answered=True)
    assert (await waiting[1]).use.differs == "context after 0 characters"


async def test_nobody_waits_longer_than_he_may() -> None:
    """A step with a time limit has its time left for its own answer."""
    clock = FakeClock()
    prefixes = PromptPrefixes(clock, clock.sleep)
    await prefixes.enter(segments(RULES, "1"), CACHE, "a", longest_wait_s=60.0)
    await prefixes.enter(segments(RULES, "2"), CACHE, "a", longest_wait_s=5.0)
    assert clock.monotonic() == 5.0
    await prefixes.enter(segments(RULES, "3"), CACHE, "a", longest_wait_s=0.0)
    assert clock.monotonic() == 5.0


@given(st.lists(st.lists(st.sampled_from(["a", "ab", "b", ""]), max_size=4), max_size=8))
def test_the_shared_part_is_the_longest_beginning_of_any_prompt(prompts: list[list[str]]) -> None:
    async def play() -> None:
        prefixes = new_prefixes()
        seen: list[list[str]] = []
        for texts in prompts:
            parts = [PromptSegment("goal", text) for text in texts]
            entered = await prefixes.enter(parts, CACHE, "s", longest_wait_s=0.0)
            entered.end(is_answered=True)
            whole = max((len(_common(texts, each)) for each in seen), default=0)
            shared = sum(map(len, texts[:whole]))
            assert entered.use.shared >= shared
            assert entered.use.shared <= entered.use.characters == sum(map(len, texts))
            seen.append(texts)

    asyncio.run(play())


def _common(one: list[str], other: list[str]) -> list[str]:
    count = 0
    while count < min(len(one), len(other)) and one[count] == other[count]:
        count += 1
    return one[:count]


# --- in runs -------------------------------------------------------------------------------------


def answer(count: int = 1_000, cached: int = 0, text: str = "ok") -> ModelCallResponse:
    usage = TokenUsage(input_tokens=count, output_tokens=2, cached_tokens=cached)
    return ModelCallResponse(message=Message(role=MessageRole.ASSISTANT, content=text), usage=usage)


def recipe(*steps: JsonValue, tools: Iterable[Tool] = (), **more: JsonValue) -> AgentRecipe:
    extensions = Extensions(tools=Toolbox(tuple(tools)))
    document = {"id": "r", "system_prompt": RULES, "steps": list(steps), **more}
    return recipe_from_document(document, extensions.catalog())


def facts_of(ran: Ran) -> list[tuple[str, object]]:
    """By call what is recorded of its prefix."""
    assert ran.result.status is RunStatus.COMPLETED, ran.result.error
    facts = [(each.key, each.fact) for each in ran.entries]
    return [
        (key, (fact.metrics or {}).get("prefix"))
        for key, fact in facts
        if isinstance(fact, ModelCallFinished)
    ]


async def test_of_a_loop_one_item_is_asked_first_and_the_rest_in_parallel() -> None:
    """A-176: so that the prefix is written once. Each row says what was to be expected."""
    running = most = 0
    first: list[int] = []

    async def ask(prompt: Prompt) -> ModelCallResponse:
        nonlocal running, most
        running += 1
        most = max(most, running)
        first.append(running)
        for _ in range(20):
            await asyncio.sleep(0)
        running -= 1
        return answer()

    loop: JsonValue = {
        "id": "each",
        "loop": [1, 2, 3, 4],
        "max_parallel": 4,
        "goal": "Item {{ loop.item }}",
    }
    services = evolve(deterministic_services(), sleep=sleep_for_ever)
    ran = await run_of(recipe(loop), Server(ask), services=services)
    assert first == [1, 1, 2, 3]
    assert most == 3
    (_, none), *others = facts_of(ran)
    assert none is None
    expected = 1_000 * (len(RULES) + len("Item ")) // (len(RULES) + len("Item 1"))
    whole = 1_000 * len(RULES) // (len(RULES) + len("Item 1"))  # of goals that nobody has answered
    assert [each for _, each in others] == [
        {"expected_tokens": count, "after": f"each[{at}]", "differs": "goal after 5 characters"}
        for at, count in enumerate((expected, whole, whole))
    ]


async def test_without_a_known_cache_nobody_waits_and_nothing_is_recorded() -> None:
    running = most = 0

    async def ask(prompt: Prompt) -> ModelCallResponse:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return answer()

    loop: JsonValue = {
        "id": "each",
        "loop": [1, 2, 3],
        "max_parallel": 3,
        "goal": "{{ loop.item }}",
    }
    model = Server(ask)
    model.known = replace(CACHE, minimum_tokens=1, is_known=False, asks_one_first=False)
    ran = await run_of(recipe(loop), model)
    assert most == 3
    assert [each for _, each in facts_of(ran)] == [None, None, None]


async def test_a_server_that_counts_cached_tokens_is_one_with_a_cache_from_then_on() -> None:
    model = Server([answer(cached=500), answer(), answer()])
    model.known = replace(CACHE, minimum_tokens=1, is_known=False, asks_one_first=False)
    loop: JsonValue = {"id": "each", "loop": [1, 2, 3], "goal": "{{ loop.item }}"}
    ran = await run_of(recipe(loop), model)
    assert [each is None for _, each in facts_of(ran)] == [True, True, False]


async def test_a_call_of_a_step_continues_the_prompt_of_the_one_before() -> None:
    """A-176: what it had is to be expected; a call without the tools begins otherwise."""

    @tool(effect="pure", reads="trusted")
    def look(q: str) -> str:
        """Look it up."""
        return q

    call = evolve(
        answer(700),
        message=Message(role=MessageRole.ASSISTANT, tool_calls=(tool_request("look", {"q": "a"}),)),
    )
    step: JsonValue = {"id": "one", "goal": "Look.", "tools": ["look"], "output": {"a": "string"}}
    model = Server([call, call, answer(900, text="found"), answer(950, text='{"a": "x"}')])
    ran = await run_of(recipe(step, tools=[look]), model, tools=[look])
    facts = [each for _, each in facts_of(ran)]
    assert facts[:3] == [None, {"expected_tokens": 700}, {"expected_tokens": 700}]
    assert facts[3:] in ([], [{"differs": "tools: without look"}])


async def test_after_a_long_tool_call_nothing_is_expected_of_the_call_before() -> None:
    services = deterministic_services()

    @tool(effect="pure", reads="trusted")
    async def think() -> str:
        """Take an hour."""
        await services.sleep(3_600)
        return "done"

    call = evolve(
        answer(700),
        message=Message(role=MessageRole.ASSISTANT, tool_calls=(tool_request("think", {}),)),
    )
    step: JsonValue = {"id": "one", "goal": "Go.", "tools": ["think"]}
    model = Server([call, answer(900)])
    ran = await run_of(recipe(step, tools=[think]), model, tools=[think], services=services)
    assert [each for _, each in facts_of(ran)] == [None, None]


async def test_another_model_continues_no_prompt_of_the_one_before() -> None:
    """The server of the larger model has seen nothing yet."""

    class Large(Server):
        @property
        def name(self) -> str:
            return "lab/large"

    models = {
        "small": Server([answer(text="no"), answer(text="no")]),
        "large": Large([answer(text='{"n": 1}')]),
    }
    services = deterministic_services()
    run = lab_executor(services, models).prepare(lab_recipe(["lab/small", "lab/large"]))
    assert (await run.execute()).output == {"n": 1}
    rows = await services.journal.entries(run.session_id, kinds={"model_call"})
    facts = [each.fact for each in rows if isinstance(each.fact, ModelCallFinished)]
    assert [fact.tier for fact in facts] == [None, None, 1]
    prefixes = [(fact.metrics or {}).get("prefix") for fact in facts]
    assert prefixes == [None, {"expected_tokens": 1_000}, None]


@pytest.mark.parametrize(("limit", "waited"), [({}, 60.0), ({"timeout_s": 8}, 2.0)])
async def test_a_step_waits_for_a_quarter_of_its_time_and_a_minute_at_most(
    limit: dict[str, JsonValue], waited: float
) -> None:
    """The server hangs at the first item: the others are asked nevertheless."""
    services = deterministic_services()
    clock = services.clock
    began: list[float] = []
    second = asyncio.Event()

    async def ask(prompt: Prompt) -> ModelCallResponse:
        began.append(clock.monotonic())
        if len(began) == 2:
            second.set()
        await second.wait()
        return answer()

    loop: JsonValue = {
        "id": "each",
        "loop": [1, 2],
        "max_parallel": 2,
        "goal": "Item {{ loop.item }}",
        **limit,
    }
    ran = await run_of(recipe(loop), Server(ask), services=services)
    assert ran.result.status is RunStatus.COMPLETED, ran.result.error
    assert began == [0.0, pytest.approx(waited, abs=0.1)]


async def test_a_turn_waits_for_nobody() -> None:
    """A person is there: the answer counts more than the price."""
    gate = asyncio.Event()
    asked: list[str] = []

    async def ask(prompt: Prompt) -> ModelCallResponse:
        asked.append(prompt.messages[-1].content or "")
        await gate.wait()
        return answer()

    model = Server(ask)
    services = deterministic_services()
    executor = executor_of(model, services=services)
    talk = recipe(
        {"id": "say", "goal": "Talk.", "memory": "conversation"}, inputs={"message": "string"}
    )
    runs = [
        executor.prepare(
            talk,
            {"message": text},
            session_id=f"ses_{text}",
            live_conversation=ConversationStart(),
        )
        for text in ("a", "b")
    ]
    tasks = [asyncio.create_task(each.execute()) for each in runs]
    for _ in range(200):
        await asyncio.sleep(0)
    assert asked == ["a", "b"]
    gate.set()
    await asyncio.gather(*tasks)


class Deferring(Server):
    """A model whose server loads tools where they were found."""

    @property
    def capabilities(self) -> ModelCapabilities:
        return ModelCapabilities(defers_tools=True)


@pytest.mark.parametrize(
    ("server", "second"),
    [(Server, {"differs": "tools: with t7"}), (Deferring, {"expected_tokens": 1_000})],
)
async def test_a_found_tool_breaks_the_prefix_unless_the_server_loads_it_where_it_was_found(
    server: type[Server], second: JsonValue
) -> None:
    tools = [fake_tool(f"t{number}", effect=Effect.PURE) for number in range(20)]
    names: list[JsonValue] = [each.spec.name for each in tools]
    search = tool_request("find_tools", {"query": "t7", "most": 1})
    message = Message(role=MessageRole.ASSISTANT, tool_calls=(search,))
    model = server([evolve(answer(), message=message), answer(1_100)])
    step: JsonValue = {"id": "one", "goal": "Look.", "tools": names}
    ran = await run_of(recipe(step, tools=tools), model, tools=tools)
    assert ran.offered == [["find_tools"], ["find_tools", "t7"]]
    assert [each for _, each in facts_of(ran)] == [None, second]

"""The toolset `agents`: a model lists agents, and gives one of them work within its own run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime

import pytest
from attrs import evolve

from builders import FakeTool, deterministic_services, fake_tool
from minions.adapters.models.script_items import Answer, tool_request
from minions.adapters.models.scripted import ScriptedModel
from minions.adapters.tools.agents_toolset import built_in_agents
from minions.contracts.calls import Prompt
from minions.contracts.decision_types import ApprovalRequest, Decider, Verdict
from minions.contracts.executions import AgentResult, RunStatus
from minions.contracts.journal.journal import EntryDraft, JournalEntry, Lease
from minions.contracts.messages import ToolCallRequest
from minions.contracts.tools import Effect, Toolbox
from minions.data.errors import JournalError
from minions.data.json_values import JsonValue
from minions.engine.agents.registry import AgentRegistry
from minions.engine.compile.extensions import Extensions
from minions.engine.run.agent_executor import AgentExecutor
from minions.engine.services.memory_journal import MemoryJournal
from minions.engine.services.run_services import Services
from minions.recipe.catalog import Catalog
from minions.recipe.model import AgentRecipe
from minions.recipe.reading.load import check_recipe_text, recipe_from_document
from minions.testing.virtual_time import FakeClock
from mortal import KilledError, World

TOOLSET = built_in_agents(lambda: datetime.now(UTC))
Document = dict[str, JsonValue]

WRITER: Document = {
    "id": "writer",
    "description": "Writes a text.",
    "inputs": {"requirements": {"type": "string", "description": "What to write."}},
    "steps": [{"id": "draft", "goal": "Write: {{ inputs.requirements }}"}],
}
OUTER: Document = {
    "id": "outer",
    "tools": ["agents"],
    "inputs": {"message": "string"},
    "steps": [{"id": "talk", "goal": "{{ inputs.message }}", "tools": ["agents"]}],
}


def read(document: Document, tools: Sequence[FakeTool] = ()) -> AgentRecipe:
    catalog = Catalog(
        toolsets={"agents": TOOLSET}, tools={tool.spec.name: tool.spec for tool in tools}
    )
    return recipe_from_document(document, catalog)


def executor(
    model: Callable[[Prompt], Answer],
    agents: Mapping[str, AgentRecipe],
    *,
    tools: Sequence[FakeTool] = (),
    services: Services | None = None,
) -> AgentExecutor:
    extensions = Extensions(
        toolsets={"agents": TOOLSET}, recipes=agents, tools=Toolbox(tuple(tools))
    )
    return AgentExecutor(
        ScriptedModel(model), extensions=extensions, services=services or deterministic_services()
    )


def last_words(prompt: Prompt) -> str:
    return prompt.messages[-1].content or ""


def run_agent(name: str, requirements: str = "a poem") -> ToolCallRequest:
    return tool_request("agents__run_agent", {"name": name, "requirements": requirements})


class Talk:
    """Answers `talk` with these items in turn, and any other step by `worker`."""

    def __init__(self, *items: Answer, worker: Callable[[Prompt], Answer] | None = None) -> None:
        self.items = list(items)
        self.read: list[str] = []
        """What the model of `talk` was shown last, at each call."""
        self.worker = worker or (lambda prompt: f"done: {last_words(prompt)}")

    def __call__(self, prompt: Prompt) -> Answer:
        if not any(tool.name == "agents__run_agent" for tool in prompt.tools):
            return self.worker(prompt)
        self.read.append(prompt.messages[-1].content or "")
        return self.items.pop(0)


async def talked(
    talk: Talk,
    agents: Mapping[str, AgentRecipe],
    *,
    outer: Document = OUTER,
    tools: Sequence[FakeTool] = (),
    services: Services | None = None,
) -> AgentResult[JsonValue]:
    runs = executor(talk, agents, tools=tools, services=services)
    return await runs.execute(read(outer, tools), {"message": "Hello"})


async def test_the_agents_are_listed_with_description_and_inputs() -> None:
    talk = Talk(tool_request("agents__list_agents"), "listed")
    result = await talked(talk, {"writer": read(WRITER)})
    (call,) = result.step("talk").tool_calls
    assert call.response is not None
    assert call.response.value == {
        "agents": [
            {
                "name": "writer",
                "description": "Writes a text.",
                "inputs": {"requirements": {"type": "string", "description": "What to write."}},
            }
        ]
    }


async def test_an_agent_is_run_with_the_text_and_the_model_reads_its_output() -> None:
    talk = Talk(run_agent("writer"), "Here it is.")
    result = await talked(talk, {"writer": read(WRITER)})
    assert result.output == "Here it is."
    assert talk.read[-1] == "done: Write: a poem"


async def test_what_an_agent_did_stands_in_the_step_and_counts_in_the_run() -> None:
    talk = Talk(run_agent("writer"), "Here it is.")
    result = await talked(talk, {"writer": read(WRITER)})
    step = result.step("talk")
    assert [each.address for each in step.steps] == ["talk/draft"]
    assert len(step.model_calls) == 3
    assert result.usage == step.usage
    assert step.last_text == "Here it is."


async def test_a_step_is_judged_by_its_own_answers_not_by_those_of_its_agents() -> None:
    step: Document = {
        "id": "talk",
        "goal": "{{ inputs.message }}",
        "tools": ["agents"],
        "completion": {"mode": "signal"},
    }
    talk = Talk(
        run_agent("writer"), "It is here.\nstatus: done", worker=lambda _: "a\nstatus: done"
    )
    result = await talked(talk, {"writer": read(WRITER)}, outer={**OUTER, "steps": [step]})
    assert len(talk.read) == 2
    assert result.status is RunStatus.COMPLETED


@pytest.mark.parametrize(
    ("inputs", "takes"),
    [
        ({"topic": "string"}, "topic"),
        ({"topic": "string", "n": {"type": "integer", "default": 1}}, "topic"),
        (
            {"n": {"type": "integer", "default": 1}, "task": {"type": "string", "default": ""}},
            "task",
        ),
        ({"message": {"type": "string", "default": ""}}, "message"),
    ],
)
async def test_the_text_is_the_one_required_input_or_one_of_the_usual_names(
    inputs: dict[str, JsonValue], takes: str
) -> None:
    agent = read(
        {
            "id": "a",
            "inputs": inputs,
            "steps": [{"id": "s", "set": {"got": f"{{{{ inputs.{takes} }}}}"}}],
        }
    )
    talk = Talk(run_agent("a", "the text"), "ok")
    await talked(talk, {"a": agent})
    assert talk.read[-1] == '{"got":"the text"}'


@pytest.mark.parametrize(
    "inputs",
    [{}, {"a": "string", "b": "string"}, {"n": "integer"}, {"task": "string", "n": "integer"}],
)
async def test_an_agent_that_takes_no_text_is_listed_and_refused_with_its_inputs(
    inputs: dict[str, JsonValue],
) -> None:
    agent = read({"id": "a", "inputs": inputs, "steps": [{"id": "s", "set": {"n": 1}}]})
    talk = Talk(tool_request("agents__list_agents"), run_agent("a"), "ok")
    result = await talked(talk, {"a": agent})
    listed, run = result.step("talk").tool_calls
    assert listed.response is not None
    assert '"name":"a"' in listed.response.content
    assert run.failure is not None
    assert run.failure.code == "no-request-input"
    assert all(name in run.failure.message for name in inputs)


async def test_a_wrong_name_is_answered_with_near_names() -> None:
    talk = Talk(run_agent("writr"), "ok")
    result = await talked(talk, {"writer": read(WRITER)})
    (call,) = result.step("talk").tool_calls
    assert call.failure is not None
    assert call.failure.code == "agent-not-found"
    assert "Did you mean 'writer'?" in call.failure.message


async def test_an_agent_that_runs_around_the_call_is_refused_and_not_listed() -> None:
    outer = read(OUTER)
    talk = Talk(tool_request("agents__list_agents"), run_agent("outer"), "ok")
    result = await talked(talk, {"outer": outer})
    listed, run = result.step("talk").tool_calls
    assert listed.response is not None
    assert listed.response.value == {"agents": []}
    assert run.failure is not None
    assert run.failure.code == "recipe-cycle"
    assert "outer → outer" in run.failure.message


async def test_a_circle_of_agents_is_refused() -> None:
    other = read(
        {**OUTER, "id": "other", "steps": [{"id": "talk", "goal": "x", "tools": ["agents"]}]}
    )
    talk = Talk(run_agent("other"), run_agent("outer"), "inner gives up", "ok")
    result = await talked(talk, {"outer": read(OUTER), "other": other})
    assert result.output == "ok"
    assert "outer → other → outer" in talk.read[2]


async def test_only_the_agents_that_the_recipe_names_can_be_run() -> None:
    outer: Document = {**OUTER, "tools": [{"agents": {"only": ["writer"]}}]}
    agents = {"writer": read(WRITER), "other": read({**WRITER, "id": "other"})}
    talk = Talk(tool_request("agents__list_agents"), run_agent("other"), run_agent("writer"), "ok")
    result = await talked(talk, agents, outer=outer)
    listed, refused, done = result.step("talk").tool_calls
    assert listed.response is not None
    assert "other" not in listed.response.content
    assert refused.failure is not None
    assert refused.failure.code == "agent-not-found"
    assert done.failure is None


# --- rights, limits, decisions --------------------------------------------------------------------


class Waits(Decider):
    """Nobody is there to decide."""

    async def approve(self, request: ApprovalRequest) -> Verdict:
        return Verdict.LATER


SENDER: Document = {
    "id": "sender",
    "tools": ["send"],
    "permissions": {"allow_write": True},
    "inputs": {"task": "string"},
    "steps": [{"id": "mail", "tool": "send", "params": {"to": "{{ inputs.task }}"}}],
}


async def test_an_agent_may_write_only_where_the_recipe_that_offers_it_may() -> None:
    send = fake_tool("send", effect=Effect.ONCE)
    agents = {"sender": read(SENDER, [send])}
    talk = Talk(run_agent("sender"), "refused")
    await talked(talk, agents, tools=[send])
    assert send.asked == []
    assert "does not allow" in talk.read[-1]
    talk = Talk(run_agent("sender"), "sent")
    outer = {**OUTER, "permissions": {"allow_write": True}}
    await talked(talk, agents, tools=[send], outer=outer)
    assert len(send.asked) == 1


FLOW = """
id: o
strict: true
tools: [agents]
permissions: {allow_write: WRITES}
inputs: {message: {type: string, untrusted: true}}
steps: [{id: talk, goal: "{{ inputs.message }}", tools: [agents]}]
"""


@pytest.mark.parametrize(("writes", "codes"), [("true", ["untrusted-flow"]), ("false", [])])
def test_untrusted_text_that_reaches_agents_which_may_write_is_refused_if_strict(
    writes: str, codes: list[str]
) -> None:
    catalog = Catalog(toolsets={"agents": TOOLSET})
    checked = check_recipe_text(FLOW.replace("WRITES", writes), "o.yaml", catalog)
    assert [fault.code for fault in checked.errors] == codes


async def test_an_approval_within_an_agent_makes_the_run_wait_and_is_asked_once() -> None:
    send = fake_tool("send", effect=Effect.ONCE)
    permissions: Document = {"allow_write": True, "requires_approval": ["send"]}
    document: Document = {**SENDER, "permissions": permissions}
    agents = {"sender": read(document, [send])}
    outer = read({**OUTER, "permissions": {"allow_write": True}}, [send])
    talk = Talk(run_agent("sender"), "sent")
    services = evolve(deterministic_services(), decider=Waits())
    runs = executor(talk, agents, tools=[send], services=services)
    result = await runs.execute(outer, {"message": "Hello"})
    assert result.status is RunStatus.NEEDS_DECISION
    assert send.asked == []
    resumed = await runs.resume(result.run_id, recipe=outer, decisions={"send": "approve"})
    assert (resumed.status, resumed.output) == (RunStatus.COMPLETED, "sent")
    assert len(send.asked) == 1


@pytest.mark.parametrize("text", ["${secret:env:API_TOKEN}", "a-secret-of-the-run"])
async def test_no_text_for_an_agent_names_or_holds_a_secret_of_the_run(text: str) -> None:
    """A model that prints the name of a secret would have a tool of the agent send it."""
    send = fake_tool("send", effect=Effect.ONCE)
    outer: Document = {
        **OUTER,
        "inputs": {"message": "string", "token": {"type": "string", "secret": True}},
        "permissions": {"allow_write": True},
    }
    services = evolve(deterministic_services(), secrets=lambda _: "a-secret-of-the-run")
    runs = executor(
        Talk(run_agent("sender", text), "ok"),
        {"sender": read(SENDER, [send])},
        tools=[send],
        services=services,
    )
    await runs.execute(read(outer, [send]), {"message": "Hello", "token": "env:API_TOKEN"})
    assert [dict(asked) for asked in send.asked] == [{"to": "$(secret:env:API_TOKEN)"}]


async def test_while_one_agent_waits_another_of_the_same_answer_works_and_is_not_repeated() -> None:
    send = fake_tool("send", effect=Effect.ONCE)
    permissions: Document = {"allow_write": True, "requires_approval": ["send"]}
    sender = read({**SENDER, "permissions": permissions}, [send])
    agents = {"sender": sender, "writer": read(WRITER)}
    outer = read({**OUTER, "permissions": {"allow_write": True}}, [send])
    written: list[str] = []

    def write(prompt: Prompt) -> Answer:
        written.append(last_words(prompt))
        return "a poem"

    talk = Talk([run_agent("sender"), run_agent("writer")], "both", worker=write)
    services = evolve(deterministic_services(), decider=Waits())
    runs = executor(talk, agents, tools=[send], services=services)
    waiting = await runs.execute(outer, {"message": "Hello"})
    assert (waiting.status, len(written)) == (RunStatus.NEEDS_DECISION, 1)
    result = await runs.resume(waiting.run_id, recipe=outer, decisions={"send": "approve"})
    assert (result.output, len(written), len(send.asked)) == ("both", 1, 1)


async def test_a_limit_of_the_run_that_an_agent_reaches_ends_the_run() -> None:
    talk = Talk(run_agent("writer"), "never said")
    outer = {**OUTER, "limits": {"max_model_calls": 1}}
    result = await talked(talk, {"writer": read(WRITER)}, outer=outer)
    assert result.status is RunStatus.LIMIT_REACHED
    assert talk.items == ["never said"]


async def test_a_limit_of_the_agents_own_is_told_to_the_model() -> None:
    agent = read(
        {
            **WRITER,
            "limits": {"max_model_calls": 1},
            "steps": [
                {"id": "one", "goal": "x"},
                {"id": "two", "goal": "{{ one }}"},
            ],
        }
    )
    talk = Talk(run_agent("writer"), "It could not.")
    result = await talked(talk, {"writer": agent})
    (call,) = result.step("talk").tool_calls[-1:]
    assert result.output == "It could not."
    assert call.failure is not None
    assert call.failure.code == "recipe-limit-reached"


async def test_an_agent_is_not_cut_off_by_the_time_of_a_tool_call() -> None:
    async def slow(_: object) -> str:
        await asyncio.sleep(0.15)
        return "slept"

    tool = fake_tool("wait", slow, timeout_s=5.0)
    work: Document = {"id": "w", "tool": "wait"}
    agent = read(
        {"id": "a", "tools": ["wait"], "inputs": {"task": "string"}, "steps": [work]}, [tool]
    )
    step: Document = {"id": "talk", "goal": "x", "tools": ["agents"]}
    outer: Document = {**OUTER, "steps": [{**step, "limits": {"tool_timeout_s": 0.05}}]}
    talk = Talk(run_agent("a"), "ok")
    await talked(talk, {"a": agent}, tools=[tool], outer=outer)
    assert talk.read[-1] == "slept"


# --- a process that dies --------------------------------------------------------------------------


MAILER: Document = {
    "id": "mailer",
    "tools": ["send"],
    "permissions": {"allow_write": True},
    "inputs": {"task": "string"},
    "steps": [
        {"id": "draft", "goal": "Write: {{ inputs.task }}"},
        {"id": "mail", "tool": "send", "params": {"to": "{{ draft }}"}},
        {"id": "check", "goal": "Check: {{ draft }}"},
    ],
}


def two_mails(prompt: Prompt) -> Answer:
    """Has two mails written, one after the other."""
    if not prompt.tools:
        return f"re({last_words(prompt)})"
    done = sum(message.role == "tool" for message in prompt.messages)
    answers: list[Answer] = [run_agent("mailer", "one"), run_agent("mailer", "two"), "ok"]
    return answers[done]


def two_mails_at_once(prompt: Prompt) -> Answer:
    """Has two mails written by one answer."""
    if not prompt.tools:
        return f"re({last_words(prompt)})"
    if any(message.role == "tool" for message in prompt.messages):
        return "ok"
    return [run_agent("mailer", "one"), run_agent("mailer", "two")]


async def outcome_if_killed_at(
    fact: int, model: Callable[[Prompt], Answer], *, loses_last: bool
) -> tuple[bool, AgentResult[JsonValue], World]:
    """Whether it was killed at that fact, how it ended, and what happened outside."""
    world = World()
    send = world.tool("send", Effect.IDEMPOTENT)
    outer = read({**OUTER, "permissions": {"allow_write": True}}, [send])
    extensions = Extensions(
        toolsets={"agents": TOOLSET},
        recipes={"mailer": read(MAILER, [send])},
        tools=Toolbox((send,)),
    )

    def process() -> AgentExecutor:
        services = deterministic_services(world.journal)
        return AgentExecutor(world.model(model), extensions=extensions, services=services)

    world.journal.dies_at, world.journal.loses_last = fact, loses_last
    try:
        return False, await process().execute(outer, {"message": "Hello"}), world
    except (KilledError, BaseExceptionGroup):
        world.journal.revive()
        return True, await process().resume("run_1", recipe=outer), world


@pytest.mark.parametrize("loses_last", [False, True])
@pytest.mark.parametrize(("model", "at_once"), [(two_mails, 1), (two_mails_at_once, 2)])
async def test_wherever_a_process_dies_recorded_work_of_agents_is_not_repeated(
    model: Callable[[Prompt], Answer], at_once: int, loses_last: bool
) -> None:
    """Only calls whose end was not recorded are made again, their tools under the same keys."""
    fact, is_killed = 2, True
    while is_killed:
        is_killed, result, world = await outcome_if_killed_at(fact, model, loses_last=loses_last)
        assert (result.status, result.output) == (RunStatus.COMPLETED, "ok"), fact
        assert sum(count - 1 for count in world.asked.values()) <= at_once, (fact, world.asked)
        assert len(world.done) == 2, fact
        fact += 1
    assert fact > 30


class BreakingJournal(MemoryJournal):
    """Refuses every fact from the n-th on."""

    breaks_at: int | None = 8
    count: int = 0

    async def append(self, lease: Lease, draft: EntryDraft) -> JournalEntry:
        self.count += 1
        if self.breaks_at is not None and self.count >= self.breaks_at:
            raise JournalError("The disk is full.", code="disk-full")
        return await super().append(lease, draft)


async def test_a_journal_that_fails_within_an_agent_ends_the_run_and_tells_no_model() -> None:
    journal = BreakingJournal(FakeClock())
    services = deterministic_services(journal)
    agents = {"writer": read(WRITER)}
    talk = Talk(run_agent("writer"), "told")
    runs = executor(talk, agents, services=services)
    result = await runs.execute(read(OUTER), {"message": "Hello"})
    assert result.error is not None
    assert result.error.code == "disk-full"
    assert talk.items == ["told"]
    journal.breaks_at = None
    resumed = await runs.resume(result.run_id, recipe=read(OUTER))
    assert (resumed.status, resumed.output) == (RunStatus.COMPLETED, "told")


# --- a registry of agents -------------------------------------------------------------------------


async def with_registry(
    registry: AgentRegistry, *items: Answer
) -> tuple[Talk, AgentResult[JsonValue]]:
    talk = Talk(*items)
    extensions = Extensions(toolsets={"agents": TOOLSET}, agents=registry.named())
    runs = AgentExecutor(
        ScriptedModel(talk), extensions=extensions, services=deterministic_services()
    )
    return talk, await runs.execute(read(OUTER), {"message": "Hello"})


async def test_a_function_of_a_registry_is_an_agent_and_a_step_of_the_run() -> None:
    def shout(request: str) -> str:
        """Says it loudly."""
        return request.upper()

    registry = AgentRegistry(None, {"shout": shout})
    listing = tool_request("agents__list_agents")
    talk, result = await with_registry(registry, listing, run_agent("shout"), "ok")
    assert "Says it loudly." in talk.read[1]
    assert talk.read[2] == "A POEM"
    assert [each.address for each in result.step("talk").steps] == ["talk/answer"]


async def test_a_recipe_of_a_registry_runs_within_the_run() -> None:
    other = executor(Talk(), {})
    registry = AgentRegistry(other, {"poet": read(WRITER)})
    talk, result = await with_registry(registry, run_agent("poet"), "ok")
    assert talk.read[1] == "done: Write: a poem"
    assert [each.address for each in result.step("talk").steps] == ["talk/draft"]


async def test_an_agent_of_a_registry_that_raises_tells_the_model_why() -> None:
    def broken(request: str) -> str:
        raise ValueError(f"no {request}")

    talk, _ = await with_registry(
        AgentRegistry(None, {"broken": broken}), run_agent("broken"), "ok"
    )
    assert "no a poem" in talk.read[1]

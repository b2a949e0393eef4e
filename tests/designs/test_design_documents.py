"""Every block of the documents whose designs this one continues is run, or left out for a reason.

Only names are adapted: imports, the spelling of Java, and what a document leaves out as `...`.
"""

from __future__ import annotations

import inspect
import json
import re
import textwrap
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TypeAlias, cast

import pytest

import minions
from asgi_client import TOKEN, Client
from builders import deterministic_services, fake_tool
from designs.design_document import DesignBlock, design_blocks, documents
from designs.module_examples import class_of, names, variables_of, with_method
from minions import (
    AgentRecipe,
    ChatAgent,
    DefaultStep,
    Message,
    MessageBundle,
    MessageRole,
    OutputInstructions,
    Prompt,
    ScriptedModel,
    StepRepository,
    StepRunner,
    events,
    guide,
    recipes,
    sessions,
    tool,
)
from minions.adapters.sandboxes.python_sandboxes import ProcessSandbox
from minions.app.settings.settings import Settings
from minions.data.json_values import JsonValue
from minions.guide import AgentMemory, AgentStepExecutor, ExecutionStep, Plan, PlanGenerator
from minions.interfaces.server.app import create_app
from minions.interfaces.server.server_options import ServerOptions

Run: TypeAlias = Callable[[DesignBlock, Path], Awaitable[None]]

# --- the agent of the step executor ---------------------------------------------------------------


def _plans(steps: list[dict[str, JsonValue]]) -> ScriptedModel:
    """Plans these steps, and does what each of them asks for."""

    def answer(prompt: Prompt) -> str:
        text = "\n".join(message.content or "" for message in prompt.messages)
        if "You plan work" in text:
            return json.dumps({"name": "Plan", "steps": cast("JsonValue", steps)})
        if "VERDICT" in text:
            return "VERDICT: PASS"
        if "nothing to change" in text:
            return "nothing to change"
        made = re.search(r"Write: (\S+)", text)
        return f"{made[1]}\n```\nx = 1\n```" if made else "There is nothing yet."

    return ScriptedModel(answer)


_SMALL: Final[list[dict[str, JsonValue]]] = [
    {"id": "users", "type": "generate", "goal": "Users", "artifacts": ["users.py"]}
]


def _ours(code: str) -> str:
    """The code with our module in its imports."""
    return re.sub(r"from (?:streetrace|agio)\.[\w.]+ import", "from minions.guide import", code)


async def as_an_agent(block: DesignBlock, folder: Path) -> None:
    found = await variables_of(
        _ours(block.text).replace("StepExecutorAgent()", "StepExecutorAgent(**given)"),
        given={"model_factory": _plans(_SMALL), "workspace": folder},
    )
    agent = found["agent"]
    executor = AgentStepExecutor(guide.AgentRegistry(agents={agent.name: agent}))
    done = await executor.execute_agent_step(agent.name, "Users", AgentMemory())
    assert done["content"] == "users (generate): completed"


async def direct_execution(block: DesignBlock, folder: Path) -> None:
    code = _ours(block.text).replace("tools=tools,", "tools=tools,\n    workspace=folder,")
    model = _plans(_SMALL)
    found = await variables_of(
        code,
        model_factory=lambda: model,
        system_context="Standard library only.",
        tools=[fake_tool("look")],
        folder=folder,
    )
    assert str(found["result"]) == "users (generate): completed"
    assert (folder / "users.py").exists()


async def through_the_command_line(block: DesignBlock, folder: Path) -> None:
    called = re.search(r'> run_agent\("(\w+)", "(.+)"\)', block.text)
    assert called is not None
    assert "> list_agents()" in block.text
    agent = guide.StepExecutorAgent(model_factory=_plans(_SMALL), workspace=folder)
    registry = guide.AgentRegistry(agents={agent.name: agent})
    assert called[1] in registry.list()
    done = await AgentStepExecutor(registry).execute_agent_step(called[1], called[2], AgentMemory())
    assert done["content"] == "users (generate): completed"


async def an_example_workflow(block: DesignBlock, folder: Path) -> None:
    listed = re.findall(
        r"^(\d+)\. \*\*(\w+)\*\*: (.+?)(?: \(\d+ tokens\))?$", block.text, re.MULTILINE
    )
    assert len(listed) == len(block.text.splitlines())
    steps: list[dict[str, JsonValue]] = []
    for number, kind, goal in listed:
        made = {"artifacts": [f"part_{number}.py"]} if kind == "GENERATE" else {}
        before = [str(steps[-1]["id"])] if steps else []
        step: dict[str, JsonValue] = {"id": f"s{number}", "type": kind.lower(), "goal": goal}
        steps.append({**step, "dependencies": cast("JsonValue", before), **made})
    done = await guide.run_step_executor(
        requirements=block.heading, model_factory=_plans(steps), workspace=folder
    )
    assert [each["type"] for each in done.steps] == [kind.lower() for _, kind, _ in listed]
    assert {each["status"] for each in done.steps} == {"completed"}


async def a_written_plan(block: DesignBlock, folder: Path) -> None:
    plan = PlanGenerator.read(block.text)
    assert isinstance(plan, Plan)
    assert [(each.id, each.type.value, each.dependencies) for each in plan.steps] == [
        ("analyze_requirements", "analyze", ()),
        ("create_user_model", "generate", ("analyze_requirements",)),
    ]
    model = ScriptedModel(["The project is empty.", "users.py\n```\nx = 1\n```"])
    done = await PlanGenerator(model_factory=model, workspace=folder).run(plan)
    assert [each["status"] for each in done.steps] == ["completed", "completed"]


# --- the module of the step executor --------------------------------------------------------------


async def _say(request: object, memory: AgentMemory, metadata: object = None) -> str:
    return "fine"


def _made(kind: type[Any]) -> Any:  # Any: the examples have no types
    return kind({"Planner": _say}, services=deterministic_services())


async def _asked(kind: type[Any]) -> Any:
    """An executor of that kind, after a step."""
    executor = _made(kind)
    done = await executor.execute_agent_step("Planner", "Go.", AgentMemory(), {})
    assert done["content"] == "fine"
    return executor


async def its_class(block: DesignBlock, folder: Path) -> None:
    known = names() | {"RetryConfig": recipes.RetryConfig}
    exec(block.text, known)
    theirs = cast("type[Any]", known["StepExecutor"])
    registry = guide.AgentRegistry()
    ours = AgentStepExecutor(registry).retry_config
    assert theirs(registry).retry_config.max_attempts == ours.max_attempts == 3
    _first_parameters(theirs.__init__, AgentStepExecutor.__init__)


async def its_configuration(block: DesignBlock, folder: Path) -> None:
    known = names() | {"dataclass": dataclass, "Tuple": tuple, "Type": type, "HTTPError": OSError}
    exec(block.text, known)
    ours = AgentStepExecutor({}).retry_config
    theirs = cast("Any", known["RetryConfig"])()
    compared = [each.name for each in fields(theirs) if each.name != "retryable_exceptions"]
    assert len(compared) == 5
    assert all(getattr(ours, each) == getattr(theirs, each) for each in compared)
    assert set(ours.retryable_exceptions or ()) <= set(theirs.retryable_exceptions)


async def its_signature(block: DesignBlock, folder: Path) -> None:
    known = names()
    exec(block.text, known)
    theirs = cast("Callable[..., object]", known["execute_agent_step"])
    _first_parameters(theirs, AgentStepExecutor.execute_agent_step)
    await _asked(AgentStepExecutor)


def _first_parameters(theirs: Callable[..., object], ours: Callable[..., object]) -> None:
    """Whether ours takes what theirs takes, in the same order."""
    wanted = list(inspect.signature(theirs).parameters)
    assert list(inspect.signature(ours).parameters)[: len(wanted)] == wanted


async def its_method(block: DesignBlock, folder: Path) -> None:
    await _asked(with_method(block.text))


async def its_tools(block: DesignBlock, folder: Path) -> None:
    executor = _made(with_method(block.text))
    executor.register_tool("double", lambda n: 2 * n)
    [done] = await executor.execute_tool_calls([{"name": "double", "arguments": {"n": 2}}])
    assert done["result"] == 4


async def its_parallel_steps(block: DesignBlock, folder: Path) -> None:
    executor = _made(with_method(block.text))
    step = ExecutionStep(step_type="agent", agent_name="Planner", request="Go.")
    done = await executor.execute_parallel_steps([step, step], AgentMemory(), {})
    assert [each["content"] for each in done] == ["fine", "fine"]


async def its_errors(block: DesignBlock, folder: Path) -> None:
    done = await _made(with_method(block.text)).execute_agent_step("x", "Go.", AgentMemory())
    assert done["error_type"] == "agent_not_found"


async def its_call_by_a_branch(block: DesignBlock, folder: Path) -> None:
    class Branch:
        id = "b"
        step_executor = _made(AgentStepExecutor)

    found = await variables_of(
        block.text,
        self=Branch(),
        branch=Branch(),
        current_agent="Planner",
        request="Go.",
        branch_memory=AgentMemory(),
        step_count=1,
        previous_agent="Boss",
    )
    assert found["step_result"]["branch_id"] == "b"


async def its_validation(block: DesignBlock, folder: Path) -> None:
    async def plan(request: object, memory: AgentMemory) -> dict[str, object]:
        return {"next_action": "write", "plan": []}

    found = await variables_of(
        block.text,
        step_executor=AgentStepExecutor({"Planner": plan}),
        memory=AgentMemory(),
        validator=guide.ResponseValidator(),
    )
    assert found["validation_result"]


async def its_subclass(block: DesignBlock, folder: Path) -> None:
    name = re.search(r"class (\w+)\(StepExecutor\)", block.text)
    assert name is not None
    executor = await _asked(class_of(block.text, name[1]))
    if name[1] == "PooledStepExecutor":
        assert await executor.execute_blocking_tool(max, 1, 2) == 2
        executor._executor_pool.shutdown()


async def its_sandbox(block: DesignBlock, folder: Path) -> None:
    kind = with_method(block.text)
    if not all(probe.ok for probe in ProcessSandbox().probe()):
        pytest.skip("this machine confines no code")
    assert await _made(kind).execute_sandboxed("1 + 1") == 2


# --- the steps of files ---------------------------------------------------------------------------


@tool(name="getMyActivities", effect="pure")
def _activities(after_unix: int) -> dict[str, JsonValue]:
    """Activities since then."""
    return {"list": [{"id": 7}, {"id": 9}]}


@tool(name="updateActivity", effect="idempotent")
def _update(activity_id: int, visibility: str) -> dict[str, JsonValue]:
    """Change one."""
    return {"success": True, "id": activity_id, "visibility": visibility}


@tool(name="toolName", effect="pure")
def _tool_name(param: JsonValue = None, after_unix: int = 0, activity_id: int = 0) -> JsonValue:
    """Say it back."""
    return [param, activity_id]


_BEFORE: Final = {
    "time_24h_ago": "  - {id: time_24h_ago, tool: getDateTimeHoursAgo, params: {hours: 24}}\n",
    "activities": "  - {id: activities, tool: getMyActivities, params: {after_unix: 1}}\n",
    "previous_step": "  - {id: previous_step, set: {result: abc}}\n",
    "array_var": "  - {id: array_var, tool: toolName, params: {param: 1}}\n",
}
"""Steps whose results the examples read."""


async def _ran(block: DesignBlock, folder: Path, steps: str) -> JsonValue:
    """The output of these steps, after those that they read."""
    read = "".join(text for name, text in _BEFORE.items() if re.search(rf"\b{name}\b(?!\")", steps))
    path = folder / "monitor.yaml"
    path.write_text(f"permissions: {{allow_write: true}}\nsteps:\n{read}{steps}")
    answer: JsonValue = {"activities_to_update": [7], "reasoning": "The other one is a walk."}
    model = ScriptedModel([json.dumps(answer)])
    result = await minions.arun(path, model=model, tools=[_activities, _update, _tool_name])
    output: JsonValue = result.unwrap()
    return output


async def a_step_of_a_file(block: DesignBlock, folder: Path) -> None:
    text = block.text if block.text.startswith("steps:") else f"steps:\n{block.text}"
    body = textwrap.indent(textwrap.dedent(text.removeprefix("steps:\n")), "  ")
    output = await _ran(block, folder, body)
    assert isinstance(output, dict)
    wanted = {
        "get_time": "datetime",
        "fetch_activities": "list",
        "update_activities": "successful",
        "analyze": "reasoning",
        "step_name": "successful",
    }
    found = re.search(r'id: "(\w+)"', body)
    assert found is not None
    assert wanted[found[1]] in output
    assert output.get("failed", 0) == 0


async def a_template(block: DesignBlock, folder: Path) -> None:
    head = '- id: "each"\n  tool: "toolName"\n  loop: "{{activities.list}}"\n'
    step = textwrap.indent(head + textwrap.indent(block.text, "  "), "  ")
    output = await _ran(block, folder, step)
    assert isinstance(output, dict)
    assert output["results"] == [[None, 7], [None, 9]]


async def a_question_of_its_client(block: DesignBlock, folder: Path) -> None:
    code = re.sub(r"ollama\.(\w+)\(", r"await \1(model, ", block.text)
    code = code.replace("{...}", "{}").replace("[...activities...]", "[]")
    answers: list[JsonValue] = [{"params": {}}]
    if "analyze_data" in code:
        answers = [{"activities_to_update": [], "reasoning": "None."}]
    model = ScriptedModel([json.dumps(each) for each in answers])
    found = await variables_of(
        code,
        model=model,
        extract_params=recipes.extract_params,
        analyze_data=recipes.analyze_data,
    )
    assert set(found["result"]) in ({"params"}, {"activities_to_update", "reasoning"})


# --- the steps of sessions ------------------------------------------------------------------------


class _Talk:
    """What the examples of sessions have at hand."""

    def __init__(self) -> None:
        self.repo = StepRepository(deterministic_services())
        model = ScriptedModel(lambda prompt: f"Answer to {prompt.messages[-1].content}")
        self.agent = ChatAgent(model=model, system_prompt="Be brief.")
        self.runner = StepRunner(self.agent, repository=self.repo)
        self.model = model

    async def run(self, code: str, turns: int = 5, **known: object) -> Mapping[str, Any]:
        """What the variables of an example are at its end, in a session of some turns."""
        session = await self.repo.create_session()
        for number in range(turns):
            async for _ in self.runner.run_stream(session, f"turn {number}"):
                pass
        code = re.sub(r"from agio\.\S+ import \w+\n", "", code)
        code = re.sub(r"(\w)\(\.\.\.\)", r"\1()", code).replace(", ...)", ")")
        space: dict[str, object] = {
            **{name: getattr(sessions, name) for name in sessions.__all__},
            "Step": sessions.SessionStep,
            "MessageRole": MessageRole,
            "StepRunner": StepRunner,
            "StepEvent": _event,
            "StepEventType": events.StepEventType,
            "StepDelta": events.StepDelta,
            "datetime": datetime,
            "repo": self.repo,
            "agent": self.agent,
            "hooks": sessions.AgentHooks(),
            "runner": self.runner,
            "session": session,
            "session_id": session.id,
            "new_session": session,
            "original_session": session,
            **known,
        }
        return await variables_of(code, **space)


def _event(*, type: events.StepEventType, **values: Any) -> object:  # noqa: A002  # their name
    """One class for each type."""
    kinds = {
        "step_delta": events.StepDeltaEvent,
        "step_completed": events.StepCompleted,
        "run_started": events.RunStarted,
        "run_completed": events.RunCompleted,
    }
    kind = kinds[type.value]
    if "snapshot" in values:
        values["snapshot"] = sessions.SessionStep(session_id="s", role="user", content="x")
    known = inspect.signature(kind).parameters
    place: dict[str, Any] = {
        "session_id": "s",
        "run_id": "r",
        "timestamp": datetime.now(UTC),
        "recipe": "a",
        "model_name": None,
        "status": "completed",
    }
    missing = {name: each for name, each in place.items() if name in known and name not in values}
    event = cast("Callable[..., Any]", kind)(
        **{name: each for name, each in values.items() if name in known}, **missing
    )
    assert event.type == type
    return event


async def a_step_is_a_message(block: DesignBlock, folder: Path) -> None:
    found = await _Talk().run(f"made = {block.text}")
    assert found["made"].to_message_dict() == {"role": "user", "content": "Hello"}


async def a_context_without_conversion(block: DesignBlock, folder: Path) -> None:
    # The first half shows what the document does away with.
    found = await _Talk().run(block.text.partition("# New way (simple)\n")[2], turns=1)
    assert [each["role"] for each in found["messages"]] == ["user", "assistant"]


async def a_run(block: DesignBlock, folder: Path) -> None:
    code = block.text.replace("print(event", "shown.append(event").replace(', end=""', "")
    shown: list[str] = []
    await _Talk().run(code, shown=shown)
    assert "".join(shown) == "Answer to Hello"


async def steps_of_a_session(block: DesignBlock, folder: Path) -> None:
    found = await _Talk().run(block.text)
    assert [each.sequence for each in found["steps"]] == [5, 6, 7, 8, 9, 10]
    assert found["last"].sequence == 10


async def a_context(block: DesignBlock, folder: Path) -> None:
    class Chat:
        async def chat(self, messages: list[dict[str, Any]]) -> object:
            prompt = Prompt(sessions.messages_from_context(messages))
            return (await ScriptedModel(["fine"]).complete(prompt)).unwrap()

    found = await _Talk().run(block.text, turns=1, llm=Chat())
    assert [each["role"] for each in found["messages"]] == ["system", "user", "assistant"]
    assert found["response"].text == "fine"


async def a_retry(block: DesignBlock, folder: Path) -> None:
    talk = _Talk()
    found = await talk.run(block.text.replace("print(event)", "last = event"))
    assert found["last"].type == "run_completed"


async def a_fork(block: DesignBlock, folder: Path) -> None:
    talk = _Talk()
    found = await talk.run(block.text.replace("new_session, ", "new_session_id, "))
    steps = await talk.repo.get_steps(found["new_session_id"])
    assert len(steps) >= 6


async def a_summary(block: DesignBlock, folder: Path) -> None:
    found = await _Talk().run(block.text)
    wanted = re.findall(r'^#   "(\w+)": ', block.text, re.MULTILINE)
    assert len(wanted) == 5
    assert set(wanted) <= set(found["summary"])


async def its_events(block: DesignBlock, folder: Path) -> None:
    calls = [each for each in re.split(r"^# .*\n", block.text, flags=re.MULTILINE) if each.strip()]
    made = "".join(calls).replace("\nStepEvent(", "\nmade += 1; StepEvent(")
    found = await _Talk().run(f"made = 0\n\n{made}".replace("snapshot=Step(...)", "snapshot=None"))
    assert found["made"] >= 3


async def its_repository(block: DesignBlock, folder: Path) -> None:
    talk = _Talk()
    opened = await talk.repo.create_session()
    one, *batch = (
        sessions.SessionStep(session_id=opened.id, role="user", content=str(number))
        for number in range(6)
    )
    given = dict(zip(("step1", "step2", "step3"), batch[:3], strict=True))
    code = f"step = given\n{block.text}"
    found = await talk.run(code, turns=0, session_id=opened.id, given=one, **given)
    assert (found["step"].sequence, found["count"], found["deleted"]) == (4, 4, 0)
    for step in batch[3:]:
        await talk.repo.save_step(step)
    assert await talk.repo.delete_steps(opened.id, start_seq=5) == 2


async def its_interface(block: DesignBlock, folder: Path) -> None:
    (folder / "recipes").mkdir()
    chat = "id: chat\nsteps:\n  - {id: a, goal: '{{ inputs.message }}', memory: conversation}\n"
    chat = chat.replace("steps:", "inputs: {message: {type: string}}\nsteps:")
    (folder / "recipes" / "chat.yaml").write_text(chat)
    model = ScriptedModel(lambda prompt: "said")
    client = Client(_app(model, folder))
    session = (await client.post("/sessions", {"recipe": "chat"})).json["id"]
    for number in range(5):
        await client.post(f"/sessions/{session}/messages", {"content": str(number)})
    body = iter(re.findall(r"^\{.*\}$", block.text, re.MULTILINE))
    requests = re.findall(r"^(GET|POST|DELETE) (\S+)", block.text, re.MULTILINE)
    assert len(requests) == 5
    for method, path in sorted(requests, key=lambda each: each[0] == "DELETE"):
        place = path.replace("{session_id}", session).replace("{sequence}", "5")
        given = json.loads(next(body)) if method == "POST" else None
        reply = await client.ask(method, f"/api/v1{place}", given, {})
        assert reply.status in (200, 201), (method, place, reply.body)


def _app(model: ScriptedModel, folder: Path) -> Any:
    return create_app(
        ServerOptions(token=TOKEN),
        recipes=[folder / "recipes"],
        settings=Settings(no_store=True),
        models=model,
        services=deterministic_services(),
    )


async def its_roles(block: DesignBlock, folder: Path) -> None:
    found = await _Talk().run(f"roles = [\n{re.sub(r' +#', ',  #', block.text)}]\n")
    assert [each.value for each in found["roles"]] == ["user", "assistant", "tool", "system"]


async def its_helpers(block: DesignBlock, folder: Path) -> None:
    code = re.sub(r"^(step\.\w+\(\))", r"found.append(\1)", block.text, flags=re.MULTILINE)
    step = sessions.SessionStep(session_id="s", role="user", content="Hello")
    found: list[object] = []
    await _Talk().run(code, turns=0, step=step, found=found)
    assert found == [True, False, False, False, {"role": "user", "content": "Hello"}]


async def its_metrics(block: DesignBlock, folder: Path) -> None:
    class Bare:
        metrics: object = None

    step = Bare()
    await _Talk().run(block.text, turns=0, step=step)
    assert isinstance(step.metrics, sessions.StepMetrics)
    assert step.metrics.tool_exec_time_ms == 500.0


async def a_talk(block: DesignBlock, folder: Path) -> None:
    talk = _Talk()
    session = await talk.repo.create_session()
    await talk.run(f"session = given\n{block.text}", turns=0, given=session)
    steps = await talk.repo.get_steps(session.id)
    assert [each.content for each in steps][::2] == ["Hello", "Tell me more"]
    assert len(steps) == 4


async def another_answer(block: DesignBlock, folder: Path) -> None:
    seen: list[events.StepEvent] = []
    await _Talk().run(block.text.replace("print(event)", "seen.append(event)"), seen=seen)
    assert seen[-1].type == "run_completed"


async def a_branch(block: DesignBlock, folder: Path) -> None:
    talk = _Talk()
    code = block.text.replace("run_stream(new_session,", "run_stream(new_session_id,")
    found = await talk.run(code)
    last = await talk.repo.get_last_step(found["new_session_id"])
    assert last is not None
    assert last.content == "Answer to Path B"


# --- the guide ------------------------------------------------------------------------------------


def python_of(java: str) -> str:
    """Java as Python: the same names, the other language's spelling."""
    code = re.sub(r"[ \t]*//.*", "", java)
    code = re.sub(r"^\w+ \w+ = \.\.\.;\n", "", code, flags=re.MULTILINE)
    code = re.sub(r"^[A-Z]\w* (\w+) = ", r"\1 = ", code, flags=re.MULTILINE)
    code = code.replace(", ...)", ")").replace("new ", "").replace(";", "")
    code = re.sub(r"\bSet\.of\((.*?)\)", r"{\1}", code)
    code = re.sub(r"\bList\.of\((.*?)\)", r"[\1]", code)
    code = re.sub(r"(\w+)\.getMetadata\(\)\.put\((.+?), (.+)\)", r"\1.metadata[\2] = \3", code)
    code = code.replace(".executeAsync().join()", ".execute()").replace(
        "= executor", "= await executor"
    )
    return code.replace(".class", "")


def _default_step(id: str, messages: MessageBundle, tools: set[str]) -> DefaultStep[object]:  # noqa: A002
    return DefaultStep(id=id, messages=messages, available_tools=tools)


def _instructions(texts: list[str], schema: str, kind: type[object]) -> OutputInstructions[object]:
    return OutputInstructions(instructions=texts, schema=schema, output_class=kind)


@dataclass
class MyOutputClass:
    """What the guide calls so."""

    name: str = ""


class _Guide:
    """What the examples of the guide have at hand."""

    def __init__(self, *answers: str) -> None:
        bundle = MessageBundle.of(goal="Search.")
        self.step1 = DefaultStep[object](id="step1", messages=bundle)
        self.step2 = DefaultStep[object](id="step2", messages=bundle)
        self.agent = guide.Agent(AgentRecipe(id="agent", steps=[self.step1, self.step2]))
        self.manager = guide.StepManager(guide.DefaultStepGraph([self.step1, self.step2]))
        self.context = guide.AgentContext(self.agent, self.manager, guide.ConversationMemory())
        self.model = ScriptedModel(answers)
        self.tools = guide.tool_call_executors()
        self.models = guide.ModelCallExecutors(self.model)

    async def run(self, java: str, **known: object) -> Mapping[str, Any]:
        """What the variables are at the end."""
        return await variables_of(
            python_of(java),
            **{
                "DefaultStep": _default_step,
                "OutputInstructions": _instructions,
                "Prompt": Prompt,
                "StepExecutor": guide.StepExecutor,
                "MyOutputClass": MyOutputClass,
                "step": self.step1,
                "step1": self.step1,
                "step2": self.step2,
                "agent": self.agent,
                "agentContext": self.context,
                "messageBundle": MessageBundle.of(system="Be brief.", goal="Search."),
                "modelMemory": guide.ConversationMemory(),
                "modelCallExecutorFactory": self.models,
                "toolCallExecutorFactory": self.tools,
                **known,
            },
        )


async def its_step(block: DesignBlock, folder: Path) -> None:
    step = (await _Guide().run(block.text))["step"]
    assert (step.id, step.available_tools) == ("step1", {"searchTool", "mathTool"})
    model = ScriptedModel(["one", "two", "three. status: done"])
    tools = [fake_tool("searchTool"), fake_tool("mathTool")]
    result = await minions.arun(AgentRecipe(id="a", steps=[step]), model=model, tools=tools)
    assert (result.unwrap(), len(model.prompts)) == ("three. status: done", 3)


async def its_executor(block: DesignBlock, folder: Path) -> None:
    executor = (await _Guide("status: done").run(block.text))["executor"]
    assert (await executor.execute()).is_complete


async def its_execution(block: DesignBlock, folder: Path) -> None:
    at_hand = _Guide("status: done")
    executor = guide.StepExecutor(at_hand.step1, at_hand.context, at_hand.models, at_hand.tools)
    assert (await at_hand.run(block.text, executor=executor))["result"].is_complete


async def its_option(block: DesignBlock, folder: Path) -> None:
    at_hand = _Guide(*(["not yet"] * 10))
    await at_hand.run(block.text)
    executor = guide.StepExecutor(at_hand.step1, at_hand.context, at_hand.models, at_hand.tools)
    execution = await executor.execute()
    assert len(execution.model_calls) == 5
    assert execution.error is not None
    assert execution.error.code == "max-model-calls"


async def its_structured_output(block: DesignBlock, folder: Path) -> None:
    given = {"messages": [Message(role="user", content="Who?")], "options": guide.ModelOptions()}
    found = await _Guide().run(block.text, **given)
    instructions = found["instructions"]
    assert found["prompt"].instructions == instructions
    step = DefaultStep[object](id="a", messages=MessageBundle.of(goal="Who?"), output=instructions)
    model = ScriptedModel(['status: done {"name": "Ada"}'])
    result = await minions.arun(AgentRecipe(id="a", steps=[step]), model=model)
    output: object = result.unwrap()
    assert output == MyOutputClass(name="Ada")


async def its_workflow(block: DesignBlock, folder: Path) -> None:
    names_of_guide = ("DefaultStepGraph", "StepManager", "AgentContext", "StepExecutor")
    at_hand = _Guide("not yet", "status: done")
    parts = {name: getattr(guide, name) for name in names_of_guide}
    found = await at_hand.run(block.text, **parts)
    assert found["result"].is_complete
    assert len(found["result"].model_calls) == 2
    assert found["stepManager"].current_step is at_hand.step1


# --- all of them ----------------------------------------------------------------------------------

_PICTURE: Final = (
    "It is a picture of how parts call each other; docs/reference/from-java.md lists their names."
)
HOW: Final[Mapping[str, Mapping[str, Run | str]]] = {
    "step_executor_agent": {
        "1 As an Agent": as_an_agent,
        "2 Direct Execution": direct_execution,
        "3 Through StreetRace CLI": through_the_command_line,
        "4 1. User Management System": an_example_workflow,
        "5 2. Data Processing Pipeline": an_example_workflow,
        "6 Plan Generation": a_written_plan,
    },
    "step_executor_module": {
        "1 Architecture": "It is a picture: a tree of what the executor does, without code.",
        "2 StepExecutor Class": its_class,
        "3 Retry Configuration": its_configuration,
        "4 Execute Agent Step": its_signature,
        "5 Memory Preparation": its_method,
        "6 Response Extraction": its_method,
        "7 Execute Tool Calls": its_tools,
        "8 Tool Registry": its_tools,
        "9 Exponential Backoff": its_method,
        "10 Intelligent Retry Strategies": its_method,
        "11 Execute Parallel Steps": its_parallel_steps,
        "12 Categorized Error Handling": its_errors,
        "13 With BranchExecutor": its_call_by_a_branch,
        "14 With Validation": its_validation,
        "15 Caching": its_subclass,
        "16 Resource Pooling": its_subclass,
        "17 Execution Metrics": its_subclass,
        "18 Input Validation": its_method,
        "19 Sandboxed Execution": its_sandbox,
    },
    "step_by_step_execution": {
        "1 1. Template Engine (`agent/template_engine.py`)": a_template,
        "2 2. Instruction Parser V2 (`agent/instruction_parser_v2.py`)": a_step_of_a_file,
        "3 4. Enhanced Ollama Client (`agent/ollama_client.py`)": a_question_of_its_client,
        "4 4. Enhanced Ollama Client (`agent/ollama_client.py`)": a_question_of_its_client,
        "5 Running V2 Execution": "They start a container and scripts of that project; "
        "docs/reference/from-v2.md says by `minions run` what became of each option.",
        **{f"{number} Writing V2 Instructions": a_step_of_a_file for number in range(6, 10)},
    },
    "step_architecture": {
        "1 Step = Native LLM Message + Metadata": a_step_is_a_message,
        "2 Zero-Conversion Context Building": a_context_without_conversion,
        "3 1. Run Agent with Steps": a_run,
        "4 2. Get Steps for a Session": steps_of_a_session,
        "5 3. Build Context": a_context,
        "6 4. Retry from Sequence": a_retry,
        "7 5. Fork Session": a_fork,
        "8 6. Get Context Summary": a_summary,
        "9 StepEvent": its_events,
        "10 Repository Operations": its_repository,
        "11 API Endpoints": its_interface,
        "12 Step Roles": its_roles,
        "13 Helper Methods": its_helpers,
        "14 Metrics": its_metrics,
        "15 Testing": "They run the tests and a demo of that project; ours are this suite and "
        "recipes/sessions_demo.py.",
        "16 Pattern 1: Multi-turn Conversation": a_talk,
        "17 Pattern 2: Regenerate Last Response": another_answer,
        "18 Pattern 3: Branch Conversation": a_branch,
    },
    "step_execution_guide": {
        "1 High-Level Execution Flow": _PICTURE,
        "2 Step Definition": its_step,
        "3 Instantiating StepExecutor": its_executor,
        "4 Executing a Step": its_execution,
        "5 Configuration Options": its_option,
        "6 Structured Output & Output Instructions": its_structured_output,
        "7 Example: Custom Workflow": its_workflow,
        "8 Step Execution Flow": _PICTURE,
        "9 Step Completion Chain": _PICTURE,
        "10 Full Agent Execution Sequence Diagram": _PICTURE,
    },
}
"""By document and block what runs it, or why nothing does."""
BLOCKS: Final = [
    pytest.param(name, block, id=f"{name}-{block.number}")
    for name in documents()
    for block in design_blocks(name).values()
]


@pytest.mark.parametrize(("name", "block"), BLOCKS)
async def test_every_block_of_a_document_is_run_or_left_out_for_a_reason(
    name: str, block: DesignBlock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A-103, A-159."""
    monkeypatch.chdir(tmp_path)
    how = HOW[name].get(block.key)
    assert how is not None, f"{name}: block {block.key!r} is neither run nor left out"
    if isinstance(how, str):
        assert len(how.split()) > 5, f"{name}: why is block {block.key!r} left out?"
        return
    await how(block, tmp_path)


def test_each_document_is_known_and_no_block_that_is_gone_is_listed() -> None:
    """A-159."""
    assert set(HOW) == set(documents())
    assert len(HOW) == 5
    for name, blocks in HOW.items():
        assert set(blocks) == set(design_blocks(name)), name


def test_blocks_are_found_in_whatever_dress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A-159: a fence of any kind, a list of an example, and none of other sections."""
    text = (
        "# T\n1. no example\n## Example Workflows\n### One\n1. a\n2. b\n\n~~~sh\nls\n~~~\n"
        "## Other\n1. no\n````\n```\ninner\n```\n````\n"
    )
    monkeypatch.setattr("designs.design_document.FOLDER", tmp_path)
    (tmp_path / "made_up.md").write_text(text)
    found = [(each.kind, each.text) for each in design_blocks("made_up").values()]
    assert found == [("example", "1. a\n2. b\n"), ("sh", "ls\n"), ("text", "```\ninner\n```\n")]

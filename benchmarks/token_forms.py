"""The same work in several forms, each played by a scripted model that writes the same files."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Final, TypeAlias

import yaml

from benchmarks.token_counting import Request
from benchmarks.token_workloads import Edit, NotDoneError, PlannedWork, Workload
from minions import Minions, ScriptedModel, Services
from minions.contracts.calls import Prompt
from minions.contracts.messages import MessageRole, ToolCallRequest
from minions.data.json_values import JsonValue
from minions.guide import run_step_executor
from minions.planning.plan_json import Sharing
from minions.testing import tool_request
from minions.testing.virtual_time import counting_ids

__all__ = ["Form", "offered_requests", "requests_of"]


class Form(StrEnum):
    """How the work is split, and what each model call is told."""

    HISTORY = "one agent with full history"
    BATCHED = "the same, several calls in a turn"
    ALONE = "each step an agent with tools, alone"
    AGENTS = "each step an agent with tools, shared context"
    PLANNED = "planned recipe"
    PLANNED_OUTLINE = "planned recipe, outlines passed along"
    PLANNED_WHOLE = "planned recipe, code passed along"


Call: TypeAlias = str | ToolCallRequest
"""A text, or one tool call."""
Action: TypeAlias = Call | list[ToolCallRequest]
_Run: TypeAlias = Callable[[Workload, Path, ScriptedModel], Awaitable[None]]
TOOLS: Final = ("files__list", "files__read", "files__write", "files__edit", "shell__run")
SYSTEM: Final = (
    "You are a careful software engineer. You work with tools on a folder of files. Keep to the "
    "names, the style and the interfaces that are there. When you are done, say in a few words "
    "what you did."
)
"""What an agent with tools is told; as short as what a step of a plan is told."""


async def requests_of(work: Workload, form: Form) -> list[Request]:
    """The requests of one form, which did the work.

    Raises:
        NotDoneError: It did not.
    """
    return await _done(work, form.value, _ANSWERS[form](work), _RUNS[form])


async def offered_requests(work: Workload, *, all_of_toolsets: bool) -> list[Request]:
    """The requests of agents step by step: each is offered all tools of the toolsets that the
    recipe has, or those that it calls.

    Raises:
        NotDoneError: The work was not done.
    """

    def offered(step: PlannedWork) -> Sequence[str]:
        if all_of_toolsets:
            return ("files", "shell")
        called = {call.name for call in _taken_in(work, step) if not isinstance(call, str)}
        return [name for name in TOOLS if name in called]

    async def run(work: Workload, folder: Path, model: ScriptedModel) -> None:
        await _run_agents(_steps_of(work, offered), folder, model)

    return await _done(work, "tools", _of_agents(work), run)


async def _done(
    work: Workload, name: str, answer: Callable[[Prompt], Action], run: _Run
) -> list[Request]:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(os.path.realpath(place), "work")  # noqa: ASYNC240  # nothing else runs
        work.put(folder)
        script = _Script(answer, str(folder))
        try:
            await run(work, folder, ScriptedModel(script.answer))
        except Exception as error:
            raise NotDoneError(f"{work.title}, {name}: {error}") from error
        work.check(folder)
        return script.requests


class _Script:
    """A model's answers, and the requests to which it gave them."""

    def __init__(self, answer: Callable[[Prompt], Action], folder: str) -> None:
        self._answer = answer
        self._folder = folder
        self.requests: list[Request] = []

    def answer(self, prompt: Prompt) -> Action:
        answer = self._answer(prompt)
        self._see(prompt, answer)
        self.requests.append(Request.of(prompt, _texts(answer), self._folder))
        return answer

    def _see(self, prompt: Prompt, answer: Action) -> None:
        """A model can only change lines that it was shown."""
        texts = [each.content or "" for each in prompt.messages]
        texts += [call.arguments for each in prompt.messages for call in each.tool_calls]
        shown = "\n".join(texts)
        for old in _changed(answer):
            if old not in shown and json.dumps(old, ensure_ascii=False)[1:-1] not in shown:
                raise NotDoneError(f"The model changes what it was not shown:\n{old}")


def _calls(answer: Action) -> list[ToolCallRequest]:
    return answer if isinstance(answer, list) else [answer] if not isinstance(answer, str) else []


def _texts(answer: Action) -> list[str]:
    """What the model wrote."""
    if isinstance(answer, str):
        return [answer]
    return [text for call in _calls(answer) for text in (call.name, call.arguments)]


def _changed(answer: Action) -> list[str]:
    """The pieces of files that an answer replaces."""
    if isinstance(answer, str):
        return re.findall(r"<<<<<<< SEARCH\n(.*?)=======\n", answer, re.DOTALL)
    edits = (call for call in _calls(answer) if call.name == "files__edit")
    return [json.loads(call.arguments)["old"] for call in edits]


# --- agents with tools ------------------------------------------------------------------------


def _agent(prompt: Prompt, actions: Mapping[str, Sequence[Action]]) -> Action:
    """The next action of the agent whose goal the prompt has."""
    goal = next(each.content or "" for each in prompt.messages if each.role is MessageRole.GOAL)
    [own] = [taken for text, taken in actions.items() if text in goal]
    said = sum(each.role is MessageRole.ASSISTANT for each in prompt.messages)
    return own[said]


def _of_history(work: Workload) -> Callable[[Prompt], Action]:
    taken = list(_taken_at_once(work))
    return lambda prompt: _agent(prompt, {work.task: taken})


def _of_batches(work: Workload) -> Callable[[Prompt], Action]:
    taken = list(_batched(_taken_at_once(work)))
    return lambda prompt: _agent(prompt, {work.task: taken})


def _batched(actions: Iterable[Call]) -> Iterator[Action]:
    """Neighbouring calls of one tool in one turn: each file once, three writes at most."""
    batch: list[ToolCallRequest] = []
    for each in actions:
        if batch and not _fits(batch, each):
            yield batch
            batch = []
        if isinstance(each, str):
            yield each
        else:
            batch.append(each)


def _fits(batch: Sequence[ToolCallRequest], call: Call) -> bool:
    if isinstance(call, str) or call.name != batch[0].name or call.name == "shell__run":
        return False
    paths = [json.loads(each.arguments)["path"] for each in (*batch, call)]
    return len(set(paths)) == len(paths) and (call.name != "files__write" or len(batch) < 3)


def _of_agents(work: Workload) -> Callable[[Prompt], Action]:
    actions = {step.goal: list(_taken_in(work, step)) for step in work.steps}
    return lambda prompt: _agent(prompt, actions)


def _of_shared(work: Workload) -> Callable[[Prompt], Action]:
    known = {*_files_before(work), *_written_once(work)}
    actions = {step.goal: list(_taken_in(work, step, known)) for step in work.steps}
    return lambda prompt: _agent(prompt, actions)


def _files_before(work: Workload) -> list[str]:
    """The files that were there before, that several steps read and none after it was changed."""
    found = []
    for path in work.before:
        readers = [at for at, step in enumerate(work.steps) if path in step.reads]
        changers = [at for at, step in enumerate(work.steps) if path in step.artifacts]
        if len(readers) > 1 and readers[-1] <= min(changers, default=len(work.steps)):
            found.append(path)
    return found


def _written_once(work: Workload) -> list[str]:
    """The files that one step writes, and later ones read."""
    written = [path for step in work.steps for path in step.artifacts]
    read = {path for step in work.steps for path in step.reads}
    return [
        path
        for path in written
        if written.count(path) == 1 and path in read and path not in work.before
    ]


def _taken_at_once(work: Workload) -> Iterator[Call]:
    """What one agent does that remembers all it has read."""
    for folder in work.looks:
        yield tool_request("files__list", {"path": folder})
    seen: set[str] = set()
    for step in work.steps:
        for path in step.reads:
            if path not in seen:
                yield tool_request("files__read", {"path": path})
        seen.update(step.reads, step.artifacts)
        yield from _changes(work, step)
        if not step.is_tested:
            continue
        yield _tests(work)
        if step.type == "validate":
            yield from map(_edit, work.repair())
            yield _tests(work)
    yield f"Done: {', '.join(each for step in work.steps for each in step.artifacts)}."


def _taken_in(work: Workload, step: PlannedWork, known: Collection[str] = ()) -> Iterator[Call]:
    """What an agent does in one step, of which it knows the goal and the earlier answers.

    Args:
        known: Files that stand in its prompt.
    """
    for path in step.reads:
        if path in known:
            continue
        yield tool_request("files__read", {"path": path})
    yield from _changes(work, step)
    if step.type == "validate":
        yield _tests(work)
        yield tool_request("files__read", {"path": work.mistake.path})
        yield from map(_edit, work.repair())
        yield _tests(work)
        yield f"Repaired {work.mistake.path}; all tests succeed."
    else:
        yield f"Wrote {', '.join(step.artifacts)}." if step.artifacts else work.found


def _changes(work: Workload, step: PlannedWork) -> Iterator[Call]:
    for path, text in work.drafts(step).items():
        if path not in work.before:
            yield tool_request("files__write", {"path": path, "text": text})
    yield from map(_edit, work.edits(step))


def _edit(edit: Edit) -> Call:
    return tool_request("files__edit", {"path": edit.path, "old": edit.old, "new": edit.new})


def _tests(work: Workload) -> Call:
    return tool_request("shell__run", {"command": work.command})


async def _run_history(work: Workload, folder: Path, model: ScriptedModel) -> None:
    step: JsonValue = {"id": "work", "goal": work.task, "tools": list(TOOLS)}
    await _run_agents([step], folder, model)


async def _run_shared(work: Workload, folder: Path, model: ScriptedModel) -> None:
    """Files that were there stand in the context of the recipe; each one that a step has written is
    read by a step without a model, and stands behind them in all later prompts.
    """
    steps: list[JsonValue] = []
    written = _written_once(work)
    context: list[JsonValue] = []
    for step in work.steps:
        asked: dict[str, JsonValue] = {
            "id": step.id,
            "goal": step.goal,
            "tools": list(TOOLS),
            **({"context": [*context]} if context else {}),
        }
        steps.append(asked)
        for path in step.artifacts:
            if path in written:
                name = f"text_{len(context)}"
                steps.append({"id": name, "tool": "files__read", "params": {"path": path}})
                context.append({"text": f"{path}:\n{{{{ {name}.text }}}}"})
    await _run_agents(steps, folder, model, _files_before(work))


async def _run_steps(work: Workload, folder: Path, model: ScriptedModel) -> None:
    await _run_agents(_steps_of(work, lambda _: TOOLS), folder, model)


def _steps_of(work: Workload, offered: Callable[[PlannedWork], Sequence[str]]) -> list[JsonValue]:
    return [
        {
            "id": step.id,
            "goal": step.goal,
            "depends_on": list(step.dependencies),
            "tools": list(offered(step)),
        }
        for step in work.steps
    ]


async def _run_agents(
    steps: list[JsonValue], folder: Path, model: ScriptedModel, shared: Sequence[str] = ()
) -> None:
    document: dict[str, JsonValue] = {
        "id": "agents",
        "system_prompt": SYSTEM,
        "tools": [{"files": {"root": str(folder)}}, {"shell": {"root": str(folder)}}],
        "permissions": {"allow_write": True, "untrusted": "allow"},
        "limits": {"max_model_calls_per_step": 200},
        "steps": steps,
    }
    if shared:
        document["context"] = [{"file": f"{folder.name}/{path}"} for path in shared]
    recipe = folder.with_name("agents.yaml")
    recipe.write_text(yaml.safe_dump(document, sort_keys=False), "utf-8")
    async with Minions(model=model, services=_services()) as minions:
        (await minions.arun(recipe)).unwrap()


# --- plans --------------------------------------------------------------------------------------


def _of_plan(work: Workload) -> Callable[[Prompt], Action]:
    """Plans, and writes in each step what the step asks for."""

    def answer(prompt: Prompt) -> Action:
        text = "\n".join(message.content or "" for message in prompt.messages)
        if "You plan work" in text:
            return json.dumps(work.plan)
        if "It failed:" in text:
            is_seen = all(each.old in text for each in work.repair())
            return _blocks(work.repair()) if is_seen else "nothing to change"
        [step] = [each for each in work.steps if each.goal in text]
        return _written(work, step) if step.changes else work.found

    return answer


def _written(work: Workload, step: PlannedWork) -> str:
    """The answer of a step that writes: new files whole, changes of others as edits."""
    made = [
        f"{path}\n```\n{text}```"
        for path, text in work.drafts(step).items()
        if path not in work.before
    ]
    return "\n".join([*made, _blocks(work.edits(step))]).strip()


def _blocks(edits: Sequence[Edit]) -> str:
    return "\n".join(
        f"{each.path}\n<<<<<<< SEARCH\n{each.old}=======\n{each.new}>>>>>>> REPLACE"
        for each in edits
    )


def _planned(share: Sharing) -> _Run:
    """Plans the work and carries the plan out; steps see what earlier ones made in that form."""

    async def run(work: Workload, folder: Path, model: ScriptedModel) -> None:
        await run_step_executor(
            requirements=work.task,
            model_factory=model,
            workspace=folder,
            share=share,
            max_replans=0,
            services=_services(),
        )

    return run


def _services() -> Services:
    """Real ones, with ids that count: borders of data are digests of them."""
    return Services(ids=counting_ids())


_ANSWERS: Final[Mapping[Form, Callable[[Workload], Callable[[Prompt], Action]]]] = {
    Form.HISTORY: _of_history,
    Form.BATCHED: _of_batches,
    Form.ALONE: _of_agents,
    Form.AGENTS: _of_shared,
    Form.PLANNED: _of_plan,
    Form.PLANNED_OUTLINE: _of_plan,
    Form.PLANNED_WHOLE: _of_plan,
}
_RUNS: Final[Mapping[Form, _Run]] = {
    Form.HISTORY: _run_history,
    Form.BATCHED: _run_history,
    Form.ALONE: _run_steps,
    Form.AGENTS: _run_shared,
    Form.PLANNED: _planned(Sharing.NAMES),
    Form.PLANNED_OUTLINE: _planned(Sharing.OUTLINE),
    Form.PLANNED_WHOLE: _planned(Sharing.WHOLE),
}

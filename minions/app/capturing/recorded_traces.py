"""Reads the traces of recorded runs and sessions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from attrs import evolve, frozen

from minions.app.evaluating.recipe_tests import read_calls
from minions.capture.recipe_writing import CAPTURED
from minions.capture.task_inputs import inputs_of_task
from minions.capture.traces import Trace, TracedAnswer, TracedCall, TracedText
from minions.contracts.decision_types import Answer
from minions.contracts.executions import address_of
from minions.contracts.journal.facts import (
    DecisionTaken,
    ModelCallFinished,
    RunFinished,
    StepFinished,
    ToolCallFailed,
    ToolCallFinished,
    ToolCallOutcome,
    ToolCallStarted,
    given,
)
from minions.contracts.journal.journal import Journal, JournalEntry
from minions.contracts.journal.run_rows import RunFilter
from minions.contracts.messages import TokenUsage
from minions.contracts.tool_search import FIND_TOOLS
from minions.contracts.tools import ToolSpec
from minions.data.errors import UsageError
from minions.data.json_values import JsonValue, as_text, parse_json
from minions.engine.history.current_rows import current_rows
from minions.engine.history.keys import execution_key
from minions.engine.run.recorded_run import RecordedRun, load_recorded_run
from minions.engine.views.run_items import usage_of
from minions.engine.views.run_names import meaning_of
from minions.recipe.catalog import Catalog
from minions.recipe.kinds.goal_kind import GoalSpec
from minions.recipe.kinds.plan_kind import PlanSpec
from minions.recipe.model import MESSAGE_INPUT, AgentRecipe, StepSpec
from minions.recipe.nested_recipes import all_steps
from minions.recipe.permissions import tool_specs

MOST_CALLS: Final = 2_000
"""Tool calls of one trace."""
_WHOLE: Final = re.compile(r"\s*\{\{\s*inputs\.([A-Za-z_][A-Za-z0-9_]*)\s*\}\}\s*\Z")
_NOT_MADE: Final = frozenset(
    {"approval-denied", "permission-denied", "unknown-tool", "bad-arguments"}
)
"""Codes of failures of calls whose tool was not called."""


@frozen(kw_only=True)
class RecordedTrace:
    """A trace, and the recipe of the agent that made it."""

    trace: Trace
    recorded: RecordedRun
    """Its last run."""
    recipe: AgentRecipe
    specs: Mapping[str, ToolSpec]
    """The tools that the agent had, by full name."""
    task_input: str | None = None
    """The input of its recipe that is the task; None: the task is in the recipe."""


async def read_trace(
    journal: Journal, name: str, catalog: Catalog, captured: AgentRecipe | None = None
) -> RecordedTrace:
    """The trace of a run, or of all runs of a session.

    Args:
        name: Id of a run or session, or a unique start of one.
        catalog: What recipes may name here.
        captured: The captured recipe whose task it was, too; None: there is none yet.
    Raises:
        NotFoundError, UsageError: There is no such run, it did not come to an end, was imported, or
            carried out a plan; or its recipe was made by code.
        JournalError: It cannot be read.
    """
    meaning = await meaning_of(journal, name)
    if meaning.session is not None:
        rows = await journal.runs(RunFilter(session_id=meaning.session), limit=1_000)
        names = [row.run_id for row in reversed(rows) if row.status != "rejected"]
    else:
        names = [name]
    runs = [await load_recorded_run(journal, each) for each in names or [name]]
    finished = [each for each in runs if each.is_over]
    if not finished or not runs[-1].is_over:
        last = runs[-1]
        raise UsageError(
            f"Run '{last.run_id}' did not come to its output (it is {last.summary.status}), and a "
            "recipe is captured from what worked. Resume or retry it first.",
            code="not-finished",
        )
    for each in finished:
        if each.noted.is_strangers:
            raise UsageError(
                f"Run '{each.run_id}' was imported: what its recipe and its task say are a "
                "stranger's words, and would become those of your recipe. Run the task here, and "
                "capture that run.",
                code="imported-run",
            )
    recipe = finished[-1].recipe(catalog)
    if any(isinstance(each, PlanSpec) for each in recipe.steps):
        raise UsageError(
            f"Run '{finished[-1].run_id}' carried out a plan, and a plan is a recipe already: "
            "`minions plan TASK -o FILE` writes one that runs as often as you like. Captured are "
            "steps in which a model chooses its tool calls.",
            code="plan-run",
        )
    for step in all_steps(recipe):
        if isinstance(step, StepSpec) and step.needs_sandbox and step.offered_tools:
            raise UsageError(
                f"In run '{finished[-1].run_id}' a program called the tools of step '{step.id}', "
                "and captured are steps in which a model chooses its tool calls. A program needs "
                "no model: put it into a `code` step with the same `tools`.",
                code="program-run",
            )
    specs = tool_specs(recipe, catalog)
    reader = _Reader(finished, recipe, specs, captured)
    return RecordedTrace(
        task_input=reader.task_input,
        trace=reader.read(),
        recorded=finished[-1],
        recipe=recipe,
        specs=specs,
    )


@frozen
class _Reader:
    """Folds the runs of one trace."""

    runs: Sequence[RecordedRun]
    recipe: AgentRecipe
    specs: Mapping[str, ToolSpec]
    captured: AgentRecipe | None = None

    def read(self) -> Trace:
        task: list[TracedText] = []
        calls: list[TracedCall] = []
        answers: list[TracedAnswer] = []
        usage = TokenUsage()
        model_calls = 0
        asked = 0
        judged: list[JsonValue] = []
        output: JsonValue = None
        step = self._agent_step()
        task_input = self.task_input
        for number, run in enumerate(self.runs, start=1):
            rows = current_rows(run.entries)
            if task_input is not None and isinstance(said := run.inputs.get(task_input), str):
                several = len(self.runs) > 1
                place = f"message {number}" if several else f"input '{task_input}'"
                task.append(TracedText(text=said, before=len(calls), place=place))
            fold = _Calls(run.run_id, asked)
            for row in rows:
                fold.add(row)
            asked = fold.asked
            answers += (evolve(each, before=len(calls) + each.before) for each in fold.answers)
            calls += fold.own_calls(self.specs)
            model_calls += fold.model_calls
            for row in rows:
                if isinstance(row.fact, StepFinished) and row.fact.model_calls:
                    judged.append(given(row.fact.output))
                if isinstance(row.fact, RunFinished):
                    output = given(row.fact.output)
                    usage += usage_of(row.fact.usage)
        if len(calls) > MOST_CALLS:
            raise UsageError(
                f"The trace has {len(calls)} tool calls, and at most {MOST_CALLS} can be captured.",
                code="trace-too-long",
            )
        inputs = {name: value for name, value in self.runs[-1].inputs.items() if name != task_input}
        goal = "" if step is None or task_input is not None else step.goal
        known = self.captured or (self.recipe if CAPTURED in self.recipe.metadata else None)
        if known is not None:
            goal, inputs = self._of_captured(known, task, inputs)
            task, step = [], None
        return Trace(
            runs=tuple(each.run_id for each in self.runs),
            task=tuple(task),
            inputs=inputs,
            goal=goal or (self.recipe.goal or "" if task_input is None else ""),
            system=self._system(step, known),
            calls=tuple(calls),
            answers=tuple(answers),
            judged=tuple(judged),
            output=output,
            usage=usage,
            model_calls=model_calls,
        )

    def _system(self, step: GoalSpec | None, known: AgentRecipe | None) -> str:
        if known is not None:
            return as_text(captured_of(known).get("system", ""))
        own = step.system_prompt if step is not None else None
        return own or self.recipe.system_prompt or ""

    def _of_captured(
        self, known: AgentRecipe, task: Sequence[TracedText], inputs: Mapping[str, JsonValue]
    ) -> tuple[str, dict[str, JsonValue]]:
        """The task of a captured recipe, and its inputs in this trace.

        Raises:
            UsageError: `other-task`; it was another task.
        """
        goal = as_text(captured_of(known).get("task", ""))
        if set(known.inputs) <= set(inputs):
            return goal, {name: inputs[name] for name in known.inputs}
        schemas = {name: spec.schema for name, spec in known.inputs.items()}
        text = "\n".join(each.text for each in task)
        found = inputs_of_task(goal, text, schemas)
        if found is None or not set(known.inputs) <= {*found, *inputs}:
            raise UsageError(
                f"The task of run '{self.runs[-1].run_id}' is no task of '{known.id}', which is: "
                f"{goal:.200}",
                code="other-task",
            )
        return goal, {**inputs, **found}

    def _agent_step(self) -> GoalSpec | None:
        """The step in which a model works with tools, or the only one in which it works."""
        goals = [each for each in self.recipe.steps if isinstance(each, GoalSpec)]
        with_tools = [each for each in goals if each.offered_tools]
        return next(iter(with_tools or goals), None)

    @property
    def task_input(self) -> str | None:
        """The input that is the task: the goal of the agent, or the message of a turn."""
        step = self._agent_step()
        inputs = self.recipe.inputs
        if MESSAGE_INPUT in inputs and (
            len(self.runs) > 1 or (step is not None and step.shares_conversation)
        ):
            name: str | None = MESSAGE_INPUT
        else:
            text = step.goal if step is not None else self.recipe.goal or ""
            match = _WHOLE.match(text)
            name = match.group(1) if match else None
        spec = inputs.get(name or "")
        return None if spec is None or spec.is_untrusted or spec.is_secret else name


class _Calls:
    """Tool calls of one run."""

    def __init__(self, run_id: str, first_answer: int) -> None:
        self.calls: list[TracedCall] = []
        """In the order in which they ended: those of one answer may end in another order."""
        self.answers: list[TracedAnswer] = []
        self.model_calls = 0
        self.asked = first_answer
        """How many answers of models asked for calls until now."""
        self._run_id = run_id
        self._begun: dict[str, tuple[str | None, int]] = {}
        """By key of a call, its arguments as JSON and the answer that asked for it."""

    def add(self, row: JournalEntry) -> None:
        """Take in one row."""
        fact = row.fact
        if isinstance(fact, ModelCallFinished):
            self.model_calls += 1
            self.asked += 1
        elif isinstance(fact, ToolCallStarted):
            self._begin(row.key, fact.arguments, is_asked=fact.call_id is not None)
        elif isinstance(fact, DecisionTaken):
            self._answer(fact)
        elif isinstance(fact, ToolCallFinished | ToolCallFailed):
            self._end(row.key, fact)

    def _begin(self, key: str, arguments: str | None, *, is_asked: bool) -> None:
        if not is_asked:
            self.asked += 1  # a step of the recipe makes it, after all that it reads
        self._begun[key] = (arguments, self.asked)

    def _answer(self, fact: DecisionTaken) -> None:
        match fact.decision:
            case Answer(text):
                value: JsonValue = _json_or_text(text)
            case _:
                return
        self.answers.append(
            TracedAnswer(
                step_id=fact.step_id,
                question=fact.question or "",
                value=value,
                before=len(self.calls),
            )
        )

    def _end(self, key: str, fact: ToolCallOutcome) -> None:
        if key not in self._begun:
            self._begin(key, fact.arguments, is_asked=fact.call_id is not None)
        text, answer = self._begun[key]
        arguments = parse_json(fact.arguments or text or "{}")
        error = fact.error
        code = str(error.get("code")) if error is not None else ""
        message = str(error.get("message")) if error is not None else ""
        value = given(fact.value)
        self.calls.append(
            TracedCall(
                tool=fact.tool,
                arguments=arguments if isinstance(arguments, Mapping) else {},
                result=fact.content if value is None and fact.content else value,
                error=f"{code}: {message}" if error is not None else None,
                place=f"{self._run_id} {address_of(key)}",
                key=key,
                answer=answer,
                attempts=fact.attempts or 1,
                is_rejected=code in _NOT_MADE,
            )
        )

    def own_calls(self, specs: Mapping[str, ToolSpec]) -> Iterator[TracedCall]:
        """The calls in the order in which they began, without those that found tools, and those
        that ran an agent, whose own calls are there.
        """
        began = {key: number for number, key in enumerate(self._begun)}
        within = {each.key.partition("#")[0] for each in self.calls if "#" in each.key}
        for each in sorted(self.calls, key=lambda call: began[call.key]):
            spec = specs.get(each.tool)
            if spec is None and each.tool == FIND_TOOLS:
                continue
            is_agent = spec is not None and spec.is_resumable
            if not is_agent or execution_key(each.key).replace("/", "~") not in within:
                yield each


def captured_of(recipe: AgentRecipe) -> Mapping[str, JsonValue]:
    """What the recipe says of how it was captured; {}: it was not."""
    found = recipe.metadata.get(CAPTURED)
    return found if isinstance(found, Mapping) else {}


def traces_of_tests(recipe: AgentRecipe) -> tuple[Trace, ...]:
    """The traces from which a recipe was captured, as its tests hold them.

    Raises:
        UsageError: `not-captured`; it was not captured, or its tests hold no recorded calls.
    """
    captured = captured_of(recipe)
    tests = [
        each if each.calls_file is None else evolve(each, calls=read_calls(recipe, each.calls_file))
        for each in recipe.tests
        if each.calls or each.calls_file is not None
    ]
    if "task" not in captured or not tests:
        raise UsageError(
            f"The recipe '{recipe.id}' has no `metadata: {{{CAPTURED}: …}}` and no test with "
            "recorded `calls`: only a captured recipe can be extended.",
            code="not-captured",
        )
    return tuple(
        Trace(
            runs=(test.name.removeprefix("as in "),),
            task=(),
            inputs=dict(test.inputs),
            goal=as_text(captured["task"]),
            system=as_text(captured.get("system", "")),
            calls=tuple(
                TracedCall(
                    tool=call.tool,
                    arguments=call.arguments,
                    result=call.result,
                    error=call.error,
                    place=test.name,
                    key=f"{test.name}/{number}",
                    answer=number,
                )
                for number, call in enumerate(test.calls, start=1)
            ),
            output=test.output,
        )
        for test in tests
    )


def _json_or_text(text: str) -> JsonValue:
    try:
        return parse_json(text)
    except ValueError:
        return text

"""What a run would do, without doing any of it: every planned call in order.

No tool, no model, no journal. What is known now is filled in; what only a run can know is shown by
its name, as `<path>`.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from attrs import frozen

from minions.contracts.errors import EnvironmentRefusedError, MinionsError
from minions.contracts.json_values import JsonValue, dumps
from minions.contracts.steps import PythonStep, Step
from minions.contracts.tools import Toolbox
from minions.engine.build import BuiltRecipe, LoopControl, build_recipe
from minions.engine.context import Extensions, ModelSource
from minions.engine.graph import DependencyStepGraph
from minions.engine.run_parts import ChosenSteps
from minions.recipe.expressions import MissingValueError, compile_condition, compile_template
from minions.recipe.model import (
    AgentRecipe,
    AnalyzeSpec,
    AssertSpec,
    GoalSpec,
    ModelConfig,
    SetSpec,
    StepSpec,
    ToolSpecStep,
)

__all__ = ["PlannedStep", "planned_steps"]


@frozen(kw_only=True)
class PlannedStep:
    """One step as far as it is known before the run."""

    step_id: str
    kind: str
    """`model`, `tool`, `analysis`, `set`, `assert` or `code`."""
    target: str | None = None
    """The tool, or the model that would be asked."""
    shown: JsonValue = None
    """Arguments, goal or values, filled in as far as may be."""
    tools: tuple[str, ...] = ()
    """That the model may call."""
    writes: bool = False
    """Whether the call changes something."""
    asks_for: tuple[str, ...] = ()
    """Parameters that a model call would fill in."""
    loop: str | None = None
    """`3 items`, or over what."""
    when: str | None = None
    """`false: skipped`, or the condition as it stands."""
    next: tuple[str, ...] | None = None
    """In a transition graph: what may come next; empty at an end. None: it is no such graph."""
    next_by: str | None = None
    """What decides between them: the template or the question, or a tool."""


def planned_steps(
    recipe: AgentRecipe,
    inputs: Mapping[str, JsonValue],
    tools: Toolbox,
    extensions: Extensions,
    models: ModelSource | None = None,
    chosen: ChosenSteps | None = None,
) -> tuple[PlannedStep, ...]:
    """All steps that would run, in their order, each once.

    Args:
        inputs: Checked.
        models: Names the models that would be asked; None: they are not looked for.
        chosen: The steps that would run, with what the others gave; None: all.
    Raises:
        GraphError, UsageError: As before a run.
    """
    built = build_recipe(recipe, tools, extensions)
    plan = _Plan(recipe, built, inputs, tools, models)
    if chosen is None:
        return tuple(plan.step(step) for step in _in_order(built))
    for step_id, output in chosen.pinned.items():
        plan.know(step_id, output)
    return tuple(plan.step(step) for step in _in_order(built) if step.id in chosen.runs)


def _in_order(built: BuiltRecipe) -> Iterator[Step[object]]:
    """Dependencies first, else as written: as a run does them one at a time."""
    graph = built.graph
    if not isinstance(graph, DependencyStepGraph):
        yield from graph.steps
        return
    counts = graph.wait_counts()
    ready = [at for at, count in enumerate(counts) if count == 0]
    while ready:
        at = heapq.heappop(ready)
        yield graph.steps[at]
        for other in graph.dependents(at):
            counts[other] -= 1
            if counts[other] == 0:
                heapq.heappush(ready, other)


class _Plan:
    """Walks the steps and remembers what is known for sure."""

    def __init__(
        self,
        recipe: AgentRecipe,
        built: BuiltRecipe,
        inputs: Mapping[str, JsonValue],
        tools: Toolbox,
        models: ModelSource | None,
    ) -> None:
        self._recipe = recipe
        self._built = built
        self._tools = tools
        self._models = models
        self._steps: dict[str, JsonValue] = {}
        self._values: dict[str, JsonValue] = {
            "inputs": dict(inputs),
            "steps": self._steps,
            "run": {"id": "<run.id>", "session_id": "<run.session_id>"},
        }
        self._specs = {spec.id: spec for spec in recipe.steps if isinstance(spec, StepSpec)}

    def know(self, step_id: str, output: JsonValue) -> None:
        """That output is there."""
        self._steps[step_id] = {"status": "completed", "output": output, "error": None}
        self._values[step_id] = output
        spec = self._specs.get(step_id)
        if spec is not None and spec.save_as is not None:
            self._values[spec.save_as] = output

    def step(self, step: Step[object]) -> PlannedStep:
        spec = self._specs.get(step.id)
        if spec is None:
            kind = "code" if isinstance(step, PythonStep) else "model"
            return PlannedStep(
                step_id=step.id, kind=kind, tools=tuple(sorted(step.available_tools))
            )
        control = self._built.control(step.id)
        when = self._when(spec.when) if spec.when is not None else None
        planned = self._of_kind(spec)
        return PlannedStep(
            step_id=planned.step_id,
            kind=planned.kind,
            target=planned.target,
            shown=planned.shown,
            tools=planned.tools,
            writes=planned.writes,
            asks_for=planned.asks_for,
            loop=self._loop(control.loop, spec) if control.loop is not None else None,
            when=when,
            next=self._next(step),
            next_by=_decided_by(spec),
        )

    def _next(self, step: Step[object]) -> tuple[str, ...] | None:
        if self._recipe.graph is None:
            return None
        return tuple(other.id for other in self._built.graph.possible_next_steps(step))

    def _of_kind(self, spec: StepSpec) -> PlannedStep:
        if isinstance(spec, ToolSpecStep):
            return self._tool(spec)
        if isinstance(spec, GoalSpec):
            return PlannedStep(
                step_id=spec.id,
                kind="model",
                target=self._model(spec.model),
                shown=self._shown(spec.goal),
                tools=spec.tools,
            )
        if isinstance(spec, AnalyzeSpec):
            shown: dict[str, JsonValue] = {"task": self._shown(spec.task)}
            if spec.has_input:
                shown["input"] = self._shown(spec.input)
            target = self._model(spec.model)
            return PlannedStep(step_id=spec.id, kind="analysis", target=target, shown=shown)
        if isinstance(spec, AssertSpec):
            return PlannedStep(step_id=spec.id, kind="assert", shown=list(spec.conditions))
        if isinstance(spec, SetSpec):
            return self._set(spec)
        return PlannedStep(step_id=spec.id, kind=type(spec).__name__)

    def _tool(self, spec: ToolSpecStep) -> PlannedStep:
        given = {**spec.params, **spec.params_template}
        tool = self._tools.get(spec.tool).spec
        required = tool.parameters.get("required")
        missing = [
            str(name)
            for name in (required if isinstance(required, list | tuple) else ())
            if name not in given
        ]
        return PlannedStep(
            step_id=spec.id,
            kind="tool",
            target=spec.tool,
            shown=self._shown(given),
            writes=tool.is_write,
            asks_for=tuple(missing),
        )

    def _set(self, spec: SetSpec) -> PlannedStep:
        shown = self._shown(spec.set)
        is_plain = spec.loop is None and spec.when is None and not self._may_be_another(spec)
        if is_plain and self._is_known(spec.set):
            self.know(spec.id, shown)
        return PlannedStep(step_id=spec.id, kind="set", shown=shown)

    def _may_be_another(self, spec: SetSpec) -> bool:
        """In a transition graph: what is not there yet may be there when the run comes back."""
        if self._recipe.graph is None:
            return False
        return any(reference.is_guarded for reference in compile_template(spec.set).references)

    # --- what is known ------------------------------------------------------------------------

    def _is_known(self, value: JsonValue) -> bool:
        try:
            compile_template(value).render(self._values)
        except MinionsError:
            return False
        return True

    def _shown(self, value: JsonValue) -> JsonValue:
        """Filled in where everything it names is known; else with the names."""
        if isinstance(value, Mapping):
            return {name: self._shown(item) for name, item in value.items()}
        if isinstance(value, list | tuple):
            return [self._shown(item) for item in value]
        if not isinstance(value, str):
            return value
        try:
            return compile_template(value).render(self._values)
        except MissingValueError:
            return _EXPRESSION.sub(lambda found: f"<{found[1].strip()}>", value)
        except MinionsError as error:
            return f"<{error.message}>"

    def _when(self, condition: str) -> str:
        try:
            holds = compile_condition(condition).holds(self._values)
        except MinionsError:
            return condition
        return "true" if holds else "false: skipped"

    def _loop(self, loop: LoopControl, spec: StepSpec) -> str:
        try:
            items = loop.over.render(self._values)
        except MinionsError:
            over = spec.loop.over if spec.loop is not None else ""
            return f"each item of {self._shown(over)}"
        return f"{len(items)} items" if isinstance(items, Sequence) else dumps(items)

    def _model(self, own: ModelConfig | None) -> str | None:
        config = self._recipe.model.overlaid(own) if own is not None else self._recipe.model
        if self._models is None:
            return config.name
        try:
            return self._models(config).name
        except EnvironmentRefusedError:
            return "(no model is configured)"


def _decided_by(spec: StepSpec) -> str | None:
    return spec.decision_tool.tool if spec.decision_tool is not None else spec.route


_EXPRESSION: Final = re.compile(r"\{\{(.*?)\}\}", re.DOTALL)

"""From a recipe to a graph of steps: templates and schemas are compiled here, once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypeAlias, cast

from attrs import evolve, field, frozen

from minions.contracts.completion import (
    CompletionLink,
)
from minions.contracts.errors import (
    GraphError,
    UsageError,
)
from minions.contracts.graph import StepGraph
from minions.contracts.json_values import dumps
from minions.contracts.steps import PythonStep, Step
from minions.contracts.tools import Toolbox
from minions.engine.code_steps import AssertStep, SetStep, ToolCallStep, assert_step
from minions.engine.graph import DefaultStepGraph, DependencyStepGraph
from minions.engine.model_steps import AnalyzeStep, GoalStep, analyze_step, goal_step
from minions.engine.written_step import step_named
from minions.recipe.expressions import (
    Condition,
    Reference,
    Template,
    compile_condition,
    compile_template,
)
from minions.recipe.model import (
    AgentRecipe,
    AnalyzeSpec,
    AssertSpec,
    GoalSpec,
    LoopSpec,
    ModelConfig,
    SetSpec,
    StepSpec,
    ToolSpecStep,
)

__all__ = ["BuiltRecipe", "StepControl", "build_recipe"]


@frozen(kw_only=True)
class LoopControl:
    """For which items a step is done, and what becomes of their outputs."""

    over: Template
    aggregate: bool
    max_parallel: int


@frozen(kw_only=True)
class StepControl:
    """What decides around a step, not in it."""

    when: Condition | None = None
    loop: LoopControl | None = None
    save_as: str | None = None
    model: ModelConfig | None = None


_NO_CONTROL: Final = StepControl()


@frozen(kw_only=True)
class BuiltRecipe:
    """A recipe ready to run; immutable, so many runs may share it."""

    graph: StepGraph
    controls: Mapping[str, StepControl] = field(factory=dict)
    output: Template | None = None
    system_prompt: Template | None = None
    goal: Template | None = None
    document: bytes | None = None
    """The recipe as it travels with its runs."""
    asking: tuple[tuple[str, ModelConfig], ...] = ()
    """Each way in which steps are put to a model, with the first step that is."""

    def model_config(self, recipe: AgentRecipe, step_id: str) -> ModelConfig:
        """The step's own settings over the recipe's."""
        own = self.control(step_id).model
        return recipe.model.overlaid(own) if own else recipe.model

    def control(self, step_id: str) -> StepControl:
        """Of that step."""
        return self.controls.get(step_id, _NO_CONTROL)


def build_recipe(
    recipe: AgentRecipe, tools: Toolbox, links: Mapping[str, CompletionLink]
) -> BuiltRecipe:
    """Steps and graph of a recipe.

    Raises:
        GraphError: Ids, edges or dependencies that make no graph.
        UsageError: A template, link or tool name that is wrong.
    """
    built = _built(recipe, tools, links)
    asking: dict[ModelConfig, str] = {}
    for step in built.graph.steps:
        if not isinstance(step, PythonStep):
            asking.setdefault(built.model_config(recipe, step.id), step.id)
    is_read = recipe.document is not None  # a recipe made by code has texts, not templates
    return evolve(
        built,
        output=compile_template(recipe.output) if recipe.output is not None else None,
        system_prompt=_text_template(recipe.system_prompt, is_read=is_read),
        goal=_text_template(recipe.goal, is_read=is_read),
        document=dumps(recipe.document).encode() if is_read else None,
        asking=tuple((step_id, config) for config, step_id in asking.items()),
    )


def _text_template(text: str | None, *, is_read: bool) -> Template | None:
    return compile_template(text) if text is not None and is_read else None


def _built(recipe: AgentRecipe, tools: Toolbox, links: Mapping[str, CompletionLink]) -> BuiltRecipe:
    specs = [step for step in recipe.steps if isinstance(step, StepSpec)]
    if not specs:
        return BuiltRecipe(graph=_transitions(recipe))
    if len(specs) < len(recipe.steps) or recipe.graph is not None:
        raise GraphError(
            "Steps from YAML and Step objects cannot be mixed in one recipe, and `graph` belongs "
            "to Step objects. Register a Step and name it, or write all steps in Python."
        )
    saved = {spec.save_as: spec.id for spec in specs if spec.save_as}
    steps = [_build_step(spec, saved, tools, links) for spec in specs]
    controls = {spec.id: _control(spec) for spec in specs}
    graph = DependencyStepGraph(
        steps,
        {spec.id: spec.depends_on for spec in specs},
        {spec.id: spec.after for spec in specs},
        reads={step.id: _steps_read(step, controls[step.id], saved) for step in steps},
    )
    return BuiltRecipe(graph=graph, controls=controls)


def _transitions(recipe: AgentRecipe) -> StepGraph:
    if isinstance(recipe.graph, StepGraph):
        return recipe.graph
    return DefaultStepGraph(cast("Iterable[Step[object]]", recipe.steps), recipe.graph)


def _control(spec: StepSpec) -> StepControl:
    own_model = spec.model if isinstance(spec, GoalSpec | AnalyzeSpec) else None
    if (spec.when, spec.loop, spec.save_as, own_model) == (None, None, None, None):
        return _NO_CONTROL
    return StepControl(
        when=compile_condition(spec.when) if spec.when is not None else None,
        loop=_loop(spec.loop) if spec.loop is not None else None,
        save_as=spec.save_as,
        model=own_model,
    )


def _loop(spec: LoopSpec) -> LoopControl:
    return LoopControl(
        over=compile_template(spec.over), aggregate=spec.aggregate, max_parallel=spec.max_parallel
    )


def _steps_read(step: BuiltStep, control: StepControl, saved: Mapping[str, str]) -> Sequence[str]:
    """Dependencies whose output some template of the step names without a default."""
    own = [reference for template in step.templates for reference in template.references]
    references = (
        *own,
        *(step.references if isinstance(step, AssertStep) else ()),
        *(control.when.references if control.when is not None else ()),
        *(control.loop.over.references if control.loop is not None else ()),
    )
    named = {
        step_named(reference, saved)
        for reference in references
        if not reference.is_guarded and not _is_status(reference)
    }
    return [step_id for step_id in step.spec.depends_on if step_id in named]


def _is_status(reference: Reference) -> bool:
    path = reference.path
    return path[0] == "steps" and len(path) > 2 and path[2] == "status"


def _build_step(
    spec: StepSpec,
    saved: Mapping[str, str],
    tools: Toolbox,
    links: Mapping[str, CompletionLink],
) -> BuiltStep:
    if isinstance(spec, GoalSpec):
        return goal_step(spec, saved, tools, links)
    if isinstance(spec, ToolSpecStep):
        tools.get(spec.tool)
        given = {**spec.params, **spec.params_template}
        params = {name: compile_template(value) for name, value in given.items()}
        return ToolCallStep(id=spec.id, spec=spec, params=params)
    if isinstance(spec, SetSpec):
        return SetStep(id=spec.id, spec=spec, values=compile_template(spec.set))
    if isinstance(spec, AnalyzeSpec):
        return analyze_step(spec)
    if isinstance(spec, AssertSpec):
        return assert_step(spec)
    raise UsageError(f"Step '{spec.id}' is of a kind that is not known: {type(spec).__name__}.")


BuiltStep: TypeAlias = GoalStep | ToolCallStep | SetStep | AnalyzeStep | AssertStep
"""A step of a recipe that was read."""

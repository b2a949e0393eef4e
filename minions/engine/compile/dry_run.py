"""A dry run: the steps and calls that a run would do, in order, without doing any of them.

It uses no tool, no model and no journal. Known values are filled in; a value that only a run can
know is shown by its name, as `<path>`.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from attrs import evolve, frozen

from minions.contracts.calls import ModelCapabilities
from minions.contracts.instructions import OutputMode
from minions.contracts.messages import MessageRole, border_words
from minions.contracts.steps import PythonStep, Step
from minions.contracts.tools import Tool, Toolbox, ToolScope, ToolSpec
from minions.data.errors import EnvironmentRefusedError, MinionsError, UsageError
from minions.data.json_values import JsonValue, dumps
from minions.engine.compile.borders import as_data, border_of, several_within
from minions.engine.compile.build import BuiltRecipe, LoopControl, build_recipe
from minions.engine.compile.completion_links import SIGNAL_WORDS
from minions.engine.compile.extensions import Extensions, ModelSource
from minions.engine.compile.kinds.compiler import Planner, PromptUse, compiler_of
from minions.engine.compile.offered_tools import first_specs, searches
from minions.engine.compile.planned_step import HiddenTools, PlannedPrompt, PlannedStep
from minions.engine.compile.prompt_sections import (
    CHARACTERS_PER_TOKEN,
    PromptPart,
    PromptSection,
    schema_parts,
    schema_text,
    section_tokens,
    tool_characters,
    tool_parts,
)
from minions.engine.compile.recipe_step import as_text, bounded
from minions.engine.compile.selection import ChosenSteps, DependencyStepGraph
from minions.recipe.artifacts import artifacts_of
from minions.recipe.expressions.template import Template, Templates
from minions.recipe.expressions.values import MissingValueError, Reference
from minions.recipe.inputs import resolve_inputs
from minions.recipe.model import AgentRecipe, OnError, StepSpec
from minions.recipe.model_config import ModelConfig
from minions.recipe.permissions import Rights


def planned_steps(
    recipe: AgentRecipe,
    inputs: Mapping[str, JsonValue],
    tools: Toolbox,
    extensions: Extensions,
    models: ModelSource | None = None,
    chosen: ChosenSteps | None = None,
) -> tuple[PlannedStep, ...]:
    """The steps that would run, in order, each once; those of a recipe step follow it.

    Args:
        inputs: Checked inputs.
        models: Finds the models, whose names are shown; None: configured names are shown.
        chosen: The steps that would run, with the outputs of the others; None: all steps.
    Raises:
        GraphError, UsageError: The recipe cannot be run, as before a run.
    """
    plan = _Plan(
        recipe,
        inputs,
        tools,
        extensions,
        models,
        rights=Rights.of(recipe),
        base_model=recipe.model,
    )
    return tuple(plan.steps(chosen))


def planned_prompts(recipe: AgentRecipe, extensions: Extensions) -> tuple[PlannedStep, ...]:
    """The steps that ask a model, with the tokens of their first prompts; inputs are not known.

    Raises:
        GraphError, UsageError: The recipe cannot be run.
    """
    plan = _Plan(
        recipe,
        {},
        _named_tools(recipe, extensions),
        extensions,
        None,
        rights=Rights.of(recipe),
        base_model=recipe.model,
        open_inputs=tuple(recipe.inputs),
    )
    return tuple(step for step in plan.steps() if step.prompt is not None)


class _Plan(Planner):
    """Plans the steps of one recipe, and collects the values that are known before a run."""

    def __init__(
        self,
        recipe: AgentRecipe,
        inputs: Mapping[str, JsonValue],
        tools: Toolbox,
        extensions: Extensions,
        models: ModelSource | None,
        *,
        rights: Rights,
        base_model: ModelConfig,
        open_inputs: Sequence[str] = (),
        path: str = "",
    ) -> None:
        self._recipe = recipe
        self._built = build_recipe(recipe, tools, extensions)
        self._graph = self._built.graph
        self.tools = tools
        self._extensions = extensions
        self._models = models
        self._rights = rights
        self._base_model = base_model
        self._path = path
        may_pass_by = not isinstance(self._graph, DependencyStepGraph)
        self._known = KnownValues(
            inputs, open_inputs, may_pass_by=may_pass_by, templates=recipe.templates
        )
        self._specs = {spec.id: spec for spec in recipe.steps if isinstance(spec, StepSpec)}

    def steps(self, chosen: ChosenSteps | None = None) -> Iterator[PlannedStep]:
        for step_id, output in chosen.pinned.items() if chosen is not None else ():
            spec = self._specs.get(step_id)
            self._known.know(step_id, output, spec.save_as if spec is not None else None)
        for step in _in_order(self._built):
            if chosen is None or step.id in chosen.runs:
                yield from self._step(step)

    def output(self) -> tuple[JsonValue, ...] | None:
        """The output of the recipe, after all its steps; None: only a run can know it."""
        if self._built.output is not None:
            try:
                return (self._known.render(self._built.output),)
            except (LookupError, MinionsError):
                return None
        if not isinstance(self._graph, DependencyStepGraph):
            return None
        last = (self._known.find(step.id) for step in reversed(self._graph.steps))
        return next((found for found in last if found != ()), None)

    def _step(self, step: Step[object]) -> Iterator[PlannedStep]:
        path, depth = f"{self._path}{step.id}", self._path.count("/")
        spec = self._specs.get(step.id)
        if spec is None:
            kind = "code" if isinstance(step, PythonStep) else "model"
            tools = tuple(sorted(step.available_tools))
            yield PlannedStep(step_id=path, kind=kind, tools=tools, depth=depth)
            return
        when = self._when(spec.when) if spec.when is not None else None
        planned = evolve(self._with_control(spec, step), step_id=path, depth=depth, when=when)
        if when == _SKIPPED:
            self._known.pass_over(spec.id, spec.save_as)
            yield planned
            return
        inner: _Plan | None = None
        if spec.inner is not None:
            try:
                inner = self._inner(spec, spec.inner)
            except UsageError as error:
                planned = evolve(planned, refused=error.message)
        yield planned
        if inner is not None:
            yield from inner.steps()
        is_plain = spec.loop is None and spec.repeat is None and when in (None, "true")
        output = self._output_of(spec, inner) if is_plain else None
        if output:
            self._known.know(spec.id, output[0], spec.save_as)

    def _with_control(self, spec: StepSpec, step: Step[object]) -> PlannedStep:
        """The planned step with its loop, conditions, errors, next steps and rights."""
        loop, repeat, on_error = self._built.control(step.id).loop, spec.repeat, spec.on_error
        is_goto = on_error.action is OnError.GOTO
        denied, asked = self._rights_of(spec, step)
        return evolve(
            compiler_of(spec).plan(spec, step, self),
            loop=self._loop(loop, spec) if loop is not None else None,
            items=self._count_items(loop) if loop is not None else None,
            repeats_while=repeat.condition if repeat is not None else None,
            max_iterations=repeat.max_iterations if repeat is not None else None,
            on_error=on_error.action.value,
            goto=f"{self._path}{on_error.goto}" if is_goto else None,
            max_returns=on_error.max_times if is_goto else None,
            next=self._next(step),
            next_by=_decided_by(spec),
            denied=denied,
            needs_approval=asked,
        )

    def _next(self, step: Step[object]) -> tuple[str, ...] | None:
        if self._recipe.graph is None:
            return None
        return tuple(other.id for other in self._graph.possible_next_steps(step))

    def _rights_of(
        self, spec: StepSpec, step: Step[object]
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The step's tools that are denied, and those that need approval."""
        named = [*(spec.called_tools or sorted(step.available_tools))]
        if spec.decision_tool is not None:
            named.append(spec.decision_tool.tool)
        tools = [tool for name in dict.fromkeys(named) if (tool := self.tools.find(name))]
        specs = [tool.spec for tool in tools]
        denied = tuple(tool.name for tool in specs if not self._rights.allows(tool))
        allowed = [tool for tool in specs if tool.name not in denied]
        return denied, tuple(t.name for t in allowed if self._rights.needs_approval(t))

    def _inner(self, spec: StepSpec, recipe: AgentRecipe) -> _Plan:
        """The plan of a recipe step.

        Raises:
            UsageError: It gets an input that it does not take.
        """
        known = dict[str, JsonValue]()
        for name, value in spec.inner_inputs.items():
            if self._known.is_known(value):
                known[name] = self._known.shown(value)
        unknown = [name for name in spec.inner_inputs if name not in known]
        inputs = {name: one for name, one in recipe.inputs.items() if name not in unknown}
        checked = resolve_inputs(
            evolve(recipe, inputs=inputs), known, from_text=False, base=Path.cwd()
        )
        return _Plan(
            recipe,
            checked,
            _named_tools(recipe, self._extensions),
            self._extensions,
            self._models,
            rights=self._rights.within(recipe),
            base_model=self._base_model.overlaid(recipe.model),
            open_inputs=unknown,
            path=f"{self._path}{spec.id}/",
        )

    def _output_of(self, spec: StepSpec, inner: _Plan | None) -> tuple[JsonValue, ...] | None:
        """The output of the step, or () if it never has one; None: only a run can know it."""
        if inner is not None:
            return inner.output()
        return compiler_of(spec).known_output(spec, self) or None

    # --- what is known ------------------------------------------------------------------------

    def _when(self, condition: str) -> str:
        holds = self._known.holds(condition)
        if holds is None:
            return condition
        return "true" if holds else _SKIPPED

    def _count_items(self, loop: LoopControl) -> int | None:
        try:
            items = self._known.render(loop.over)
        except (LookupError, MinionsError):
            return None
        return len(items) if isinstance(items, Sequence) and not isinstance(items, str) else None

    def _loop(self, loop: LoopControl, spec: StepSpec) -> str:
        try:
            items = self._known.render(loop.over)
        except (LookupError, MinionsError):
            over = spec.loop.over if spec.loop is not None else ""
            return f"each item of {self._known.shown(over)}"
        return f"{len(items)} items" if isinstance(items, Sequence) else dumps(items)

    def shown(self, value: JsonValue) -> JsonValue:
        """See `Planner.shown`."""
        return self._known.shown(value)

    def is_known(self, value: JsonValue) -> bool:
        """See `Planner.is_known`."""
        return self._known.is_known(value)

    def prompt(self, own: Sequence[PromptPart], use: PromptUse) -> PlannedPrompt:
        """As `Planner.prompt`."""
        offered = self._list_allowed(use)
        is_bound = self._binds(use.model, has_tools=bool(offered))
        signal = [PromptPart(PromptSection.SYSTEM, SIGNAL_WORDS)] if use.waits_for_signal else []
        schema = schema_parts(use.output, is_bound=is_bound and not use.waits_for_signal)
        agents = list(self._agent_parts())
        context = [each for each in own if each.section is PromptSection.CONTEXT]
        step = [each for each in own if each.section is PromptSection.SYSTEM]
        head = [each for each in agents if each.section is PromptSection.SYSTEM]
        aims = [each for each in agents if each.section is not PromptSection.SYSTEM]
        rest = [each for each in own if each not in context and each not in step]
        form = [*step, *schema, *signal]
        parts = [
            *tool_parts(self._offered_first(use, offered)),
            *head,
            *([*context, *aims, *form] if context else [*form, *aims]),
            *rest,
            *self._output_parts(use.shown),
        ]
        config = self._base_model.overlaid(use.model) if use.model else self._base_model
        return PlannedPrompt(
            sections=section_tokens(parts),
            parts=tuple(parts),
            form=schema_text(use.output) if use.output is not None else "",
            config=config,
        )

    def hidden_tools(self, use: PromptUse) -> HiddenTools | None:
        """As `Planner.hidden_tools`."""
        allowed = self._list_allowed(use)
        first = self._offered_first(use, allowed)
        if first is allowed:
            return None
        count = sum(each not in first for each in allowed)
        more = tool_characters(allowed) - tool_characters(first)
        return HiddenTools(count=count, tokens=-(-more // CHARACTERS_PER_TOKEN))

    def _list_allowed(self, use: PromptUse) -> Sequence[ToolSpec]:
        tools = [each.spec for each in self.tools.subset(use.tools).tools]
        return [each for each in tools if self._rights.allows(each)]

    @staticmethod
    def _offered_first(use: PromptUse, allowed: Sequence[ToolSpec]) -> Sequence[ToolSpec]:
        """What the first request offers: all, unless the model finds them."""
        if not allowed or not searches(use.search, allowed):
            return allowed
        return first_specs(use.search, allowed)

    def _agent_parts(self) -> Iterator[PromptPart]:
        """The recipe's own texts."""
        recipe = self._recipe
        if recipe.system_prompt:
            yield PromptPart(PromptSection.SYSTEM, as_text(self.shown(recipe.system_prompt)))
        if recipe.goal:
            yield PromptPart(PromptSection.GOAL, as_text(self.shown(recipe.goal)))
        for message in recipe.messages.messages:
            is_system = message.role is MessageRole.SYSTEM
            section = PromptSection.SYSTEM if is_system else PromptSection.GOAL
            yield PromptPart(section, message.content or "")

    def _output_parts(self, shown: Sequence[str]) -> Iterator[PromptPart]:
        """Appended outputs as far as they are known; of others the border alone."""
        border = border_of("", [])
        if shown:
            yield PromptPart(PromptSection.OUTPUTS, border_words(border).content or "")
        texts: dict[str, str] = {}
        for step_id in shown:
            known = self._known.find(step_id)
            texts[step_id] = bounded(as_data(known[0])) if known else ""
        data = several_within(border, texts) if texts else ""
        yield PromptPart(PromptSection.OUTPUTS, data)

    def _binds(self, own: ModelConfig | None, *, has_tools: bool) -> bool:
        """Whether the schema of a declared output is among what the model reads: as arguments of
        a tool. Where a server binds answers by it, the model reads its form alone.
        """
        config = self._base_model.overlaid(own) if own is not None else self._base_model
        try:
            can = self._models(config).capabilities if self._models else ModelCapabilities()
        except EnvironmentRefusedError:
            can = ModelCapabilities()
        if has_tools and not can.tools_with_schema:
            return False
        return can.output_mode is OutputMode.TOOLS

    def model(self, own: ModelConfig | None) -> str | None:
        """See `Planner.model`."""
        config = self._base_model.overlaid(own) if own is not None else self._base_model
        if self._models is None:
            return config.name
        try:
            return self._models(config).name
        except EnvironmentRefusedError:
            return "(no model is configured)"


_SKIPPED: Final = "false: skipped"


def _in_order(built: BuiltRecipe) -> Iterator[Step[object]]:
    """The steps in the order in which a run with one step at a time would do them."""
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


def _decided_by(spec: StepSpec) -> str | None:
    return spec.decision_tool.tool if spec.decision_tool is not None else spec.route


# --- tools that are only named ------------------------------------------------------------------


@frozen
class _NamedTool(Tool):
    """A tool of a toolset that is not opened: its options may be known only in the run."""

    _spec: ToolSpec

    @property
    def spec(self) -> ToolSpec:
        """The declaration of the tool in its toolset."""
        return self._spec

    async def invoke(self, arguments: Mapping[str, JsonValue], scope: ToolScope) -> object:
        """Never called.

        Raises:
            UsageError: Always.
        """
        raise UsageError(
            f"The tool '{self._spec.name}' cannot be called in a dry run.",
            code="only-planned",
        )


def _named_tools(recipe: AgentRecipe, extensions: Extensions) -> Toolbox:
    """The tools that a recipe step may name, none of them opened."""
    named: list[Tool] = []
    for use in recipe.tools:
        toolset = extensions.toolsets.get(use.name)
        specs = toolset.specs_under(use.prefix) if toolset is not None else ()
        named += [_NamedTool(spec) for spec in specs]
    return Toolbox((*named, *extensions.tools))


# --- the values of a recipe that are known before it runs; others have no value here -------------


_EXPRESSION: Final = re.compile(r"\{\{(.*?)\}\}", re.DOTALL)


class KnownValues:
    """The known values of one recipe; a dry run adds outputs step by step."""

    def __init__(
        self,
        inputs: Mapping[str, JsonValue],
        open_inputs: Collection[str] = (),
        *,
        may_pass_by: bool,
        templates: Templates,
    ) -> None:
        """Start with the inputs.

        Args:
            inputs: Checked inputs.
            open_inputs: Names of the inputs whose values only the run knows.
            may_pass_by: Whether a run may leave out steps: the recipe is a transition graph.
            templates: Compiles the texts of the recipe.
        """
        self._templates = templates
        self._steps: dict[str, JsonValue] = {}
        self._values: dict[str, JsonValue] = {"inputs": dict(inputs), "steps": self._steps}
        self._open_inputs = frozenset(open_inputs)
        self._may_pass_by = may_pass_by
        self._settled: set[str] = set()

    def know(self, step_id: str, output: JsonValue, save_as: str | None = None) -> None:
        """Add the output of a step."""
        self._steps[step_id] = {
            "status": "completed",
            "output": output,
            "error": None,
            "artifacts": artifacts_of(output),
        }
        for name in (step_id, save_as):
            if name is not None:
                self._values[name] = output
                self._settled.add(name)

    def pass_over(self, step_id: str, save_as: str | None = None) -> None:
        """Note that a step is skipped and never has an output."""
        self._steps[step_id] = {"status": "skipped", "error": None}
        self._settled.update(name for name in (step_id, save_as) if name is not None)

    def find(self, step_id: str) -> tuple[JsonValue, ...] | None:
        """The output, or () for a step that never has one; None: only a run can know it."""
        if step_id not in self._settled:
            return None
        return (self._values[step_id],) if step_id in self._values else ()

    def render(self, template: Template) -> JsonValue:
        """Fill in a template as a run would.

        Raises:
            LookupError: It reads a value that only a run can know.
            MinionsError: It cannot be rendered.
        """
        if not self._are_certain(template.references):
            raise LookupError
        return template.render(self._values)

    def holds(self, condition: str) -> bool | None:
        """Whether the condition holds; None: only a run can know it."""
        compiled = self._templates.compile_condition(condition)
        if not self._are_certain(compiled.references):
            return None
        try:
            return compiled.holds(self._values)
        except MinionsError:
            return None

    def is_known(self, value: JsonValue) -> bool:
        """Whether the value can be filled in now."""
        try:
            self.render(self._templates.compile(value))
        except (LookupError, MinionsError):
            return False
        return True

    def shown(self, value: JsonValue) -> JsonValue:
        """The value with its templates filled in as far as possible; the rest as `<path>`."""
        if isinstance(value, Mapping):
            return {name: self.shown(item) for name, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.shown(item) for item in value]
        if not isinstance(value, str):
            return value
        try:
            return self.render(self._templates.compile(value))
        except (LookupError, MissingValueError):
            return _EXPRESSION.sub(lambda found: self._piece(found[0], found[1]), value)
        except MinionsError as error:
            return f"<{error.message}>"

    def _piece(self, template: str, expression: str) -> str:
        try:
            return as_text(self.render(self._templates.compile(template)))
        except (LookupError, MinionsError):
            return f"<{expression.strip()}>"

    def _are_certain(self, references: Iterable[Reference]) -> bool:
        return all(map(self._is_certain, references))

    def _is_certain(self, reference: Reference) -> bool:
        root, *rest = reference.path
        if root == "inputs":
            return rest[0] not in self._open_inputs if rest else not self._open_inputs
        if reference.is_guarded and self._may_pass_by:
            return False
        name = rest[0] if root == "steps" and rest else root
        return name in self._settled

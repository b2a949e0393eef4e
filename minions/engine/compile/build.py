"""Builds the graph of steps of a recipe: templates and conditions are compiled here, once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final, cast

import msgspec
from attrs import evolve, field, frozen
from msgspec import Struct
from msgspec.structs import replace

from minions.contracts.steps import PythonStep, Step, StepGraph
from minions.contracts.tools import Toolbox
from minions.data.errors import GraphError
from minions.data.field_repr import FieldsRepr
from minions.data.json_values import dumps
from minions.engine.compile.extensions import Extensions
from minions.engine.compile.kinds.compiler import BuildParts, StepCompiler, compiler_of
from minions.engine.compile.recipe_step import WrittenStep, step_named
from minions.engine.compile.selection import DefaultStepGraph, DependencyStepGraph
from minions.recipe.checks.flows import UntrustedText, WordPaths
from minions.recipe.examples import ExampleStepSpec
from minions.recipe.expressions.template import Condition, Template, Templates
from minions.recipe.expressions.values import Reference
from minions.recipe.kinds.tool_kind import ToolSpecStep
from minions.recipe.model import (
    AgentRecipe,
    LoopSpec,
    OnError,
    OnErrorSpec,
    OnItemError,
    StepSpec,
    WhileSpec,
)
from minions.recipe.model_config import ModelConfig
from minions.recipe.nested_recipes import all_steps, bundle_of, needs_sandbox


class LoopControl(Struct, frozen=True, kw_only=True):
    """The loop of a step: its items, and how their outputs are combined."""

    over: Template
    aggregate: bool
    max_parallel: int
    collects: bool
    """Whether it completes although items failed."""
    min_successful: int
    """Items that have to succeed then, where there are any."""
    most_queued: int | None = None
    """Items of a distributed loop that wait or run as child runs at the same time; None: as many as
    are usual."""


class WhileControl(Struct, frozen=True, kw_only=True):
    """The `while` of a step: the condition, and how often it may repeat."""

    condition: Condition
    text: str
    """The condition as the author wrote it."""
    max_iterations: int
    allow_repeats: bool
    aggregate: bool = False


class StepControl(Struct, frozen=True, kw_only=True):
    """What the engine decides about a step from outside: condition, loop, errors, route, model."""

    when: Condition | None = None
    loop: LoopControl | None = None
    repeat: WhileControl | None = None
    on_error: OnErrorSpec = msgspec.field(default_factory=OnErrorSpec)
    route: Template | None = None
    """Chooses the next step: a template of its id, or a question to a model."""
    save_as: str | None = None
    model: ModelConfig | None = None
    gives_artifacts: bool = False
    """Whether templates read `steps.ID.artifacts` of the step."""
    distribute: bool = False
    """Whether workers execute each item, or the step itself, as a run of its own."""

    @property
    def has_iterations(self) -> bool:
        """Whether the step has iterations: a loop or a `while`."""
        return self.loop is not None or self.repeat is not None

    @property
    def references(self) -> tuple[Reference, ...]:
        """The values that `when`, `loop` and `while` read."""
        read = (
            self.when,
            None if self.loop is None else self.loop.over,
            None if self.repeat is None else self.repeat.condition,
        )
        return tuple(found for each in read if each is not None for found in each.references)

    @property
    def asks_where_to_go(self) -> bool:
        """Whether a model chooses the next step."""
        return self.route is not None and not self.route.is_whole


_NO_CONTROL: Final = StepControl()


@frozen(kw_only=True)
class BuiltRecipe(FieldsRepr):
    """A recipe that is ready to run; immutable, so that many runs share it."""

    graph: StepGraph
    controls: Mapping[str, StepControl] = field(factory=dict)
    output: Template | None = None
    system_prompt: Template | None = None
    goal: Template | None = None
    document: bytes | None = None
    """The recipe as JSON, as it is stored with its runs; None: it was made by code."""
    recipes_within: bytes | None = None
    """The recipes of its steps as JSON, stored with its runs as well; None: it has none."""
    asking: tuple[tuple[str, ModelConfig], ...] = ()
    """Each model configuration that steps use, with the first step that uses it."""
    has_code: bool = False
    """Whether it, or a recipe within it, has code for a sandbox, which has to hold each time."""
    has_pinned_examples: bool = False
    """Whether recorded runs give its steps, or those of recipes within it, examples."""
    word_paths: WordPaths | None = None
    """The ways that strangers' words can take through it; None: nothing that it reads is said to
    hold any."""
    has_conversation: bool = False
    """Whether a step of it shares the conversation of its session."""
    used: frozenset[str] = frozenset()
    """Ids of its steps whose class an operator registered."""
    _models: dict[str, tuple[ModelConfig, ModelConfig]] = field(
        factory=dict, init=False, eq=False, repr=False
    )
    """By step: the settings of a recipe that were asked for last, and what they make with its own.
    All runs of a recipe ask with the same."""

    def model_config(self, base: ModelConfig, step_id: str) -> ModelConfig:
        """The step's own model settings over those of the recipe."""
        control = self.controls.get(step_id)
        own = control.model if control is not None else None
        if own is None:
            return base
        known = self._models.get(step_id)
        if known is None or known[0] is not base:
            known = self._models[step_id] = (base, base.overlaid(own))
        return known[1]

    def control(self, step_id: str) -> StepControl:
        """What the engine decides about that step from outside."""
        controls = self.controls
        return controls[step_id] if step_id in controls else _NO_CONTROL  # noqa: SIM401  # a call less


def build_recipe(recipe: AgentRecipe, tools: Toolbox, extensions: Extensions) -> BuiltRecipe:
    """Build the steps and the graph of a recipe.

    Raises:
        GraphError: The ids, edges or dependencies make no graph.
        UsageError: A template, link or tool name is wrong.
    """
    built = _build_steps(recipe, tools, extensions)
    has_code = has_pinned_examples = False
    for step in all_steps(recipe):
        has_code = has_code or needs_sandbox(step)
        if isinstance(step, ExampleStepSpec) and step.recorded_examples is not None:
            has_pinned_examples = True
    output = recipe.templates.compile(recipe.output) if recipe.output is not None else None
    return evolve(
        built,
        controls=_with_artifacts(built, output),
        output=output,
        system_prompt=_text_template(recipe, recipe.system_prompt),
        goal=_text_template(recipe, recipe.goal),
        document=dumps(recipe.document).encode() if recipe.document is not None else None,
        recipes_within=dumps(bundle).encode() if (bundle := bundle_of(recipe)) else None,
        asking=_asking(built, recipe.model, built.graph.steps),
        has_code=has_code,
        has_pinned_examples=has_pinned_examples,
        has_conversation=_share_conversation(built.graph.steps),
    )


def part_of(built: BuiltRecipe, recipe: AgentRecipe, among: Collection[str]) -> BuiltRecipe:
    """The same steps; those that are not in `among` wait for nothing and need no model.

    Args:
        recipe: The recipe that `built` was made of; its steps are a dependency graph.
    """
    assert isinstance(built.graph, DependencyStepGraph)  # noqa: S101  # as said
    graph = built.graph.only(among)
    steps = [step for step in graph.steps if step.id in among]
    return evolve(
        built,
        graph=graph,
        asking=_asking(built, recipe.model, steps),
        has_conversation=_share_conversation(graph.steps),
    )


def child_of(built: BuiltRecipe, recipe: AgentRecipe, step_id: str) -> BuiltRecipe:
    """The recipe of a child run: one step, without what the run around it decides about it."""
    steps = [step for step in built.graph.steps if step.id == step_id]
    control = replace(
        built.control(step_id),
        when=None,
        loop=None,
        on_error=OnErrorSpec(),
        route=None,
        distribute=False,
    )
    return evolve(
        built,
        graph=DependencyStepGraph(steps, {}),
        controls={**built.controls, step_id: control},
        asking=_asking(built, recipe.model, steps),
        has_conversation=_share_conversation(steps),
        output=None,  # it reads the results of all items, of which there is one here
    )


def _share_conversation(steps: Iterable[Step[object]]) -> bool:
    return any(not step.is_code and step.shares_conversation for step in steps)


def _asking(
    built: BuiltRecipe, base: ModelConfig, steps: Iterable[Step[object]]
) -> tuple[tuple[str, ModelConfig], ...]:
    """Each model configuration that the steps use, with the first step that uses it."""
    asking: dict[ModelConfig, str] = {}
    if not built.controls:  # steps by code
        for each in steps:
            if not each.is_code:
                asking.setdefault(base, each.id)
        steps = ()
    for step in _written_steps(steps):
        is_asking = not step.is_code or step.asks_model
        if is_asking or built.control(step.id).asks_where_to_go:
            asking.setdefault(built.model_config(base, step.id), step.id)
        inner = step.spec.inner
        for config in asking_within(inner, base) if inner is not None else ():
            asking.setdefault(config, step.id)
    return tuple((step_id, config) for config, step_id in asking.items())


def _written_steps(steps: Iterable[Step[object]]) -> Iterable[WrittenStep[object]]:
    """Steps of a recipe with controls, which is made of text."""
    return cast("Iterable[WrittenStep[object]]", steps)


def asking_within(recipe: AgentRecipe, base: ModelConfig) -> Iterator[ModelConfig]:
    """Each model configuration that the steps of a recipe step use."""
    own = base.overlaid(recipe.model)
    for step in recipe.steps:
        if isinstance(step, StepSpec) and step.inner is not None:
            yield from asking_within(step.inner, own)
        fills = isinstance(step, ToolSpecStep) and step.fill
        if isinstance(step, StepSpec) and (step.asks_model or fills):
            yield own.overlaid(step.own_model) if step.own_model is not None else own
        elif isinstance(step, StepSpec):
            if step.route is not None and not recipe.templates.compile(step.route).is_whole:
                yield own
        elif not isinstance(step, PythonStep):
            yield own


def _text_template(recipe: AgentRecipe, text: str | None) -> Template | None:
    # A recipe made by code has texts, not templates.
    is_template = text is not None and recipe.document is not None
    return recipe.templates.compile(text) if is_template else None


def _build_steps(recipe: AgentRecipe, tools: Toolbox, extensions: Extensions) -> BuiltRecipe:
    specs = [step for step in recipe.steps if isinstance(step, StepSpec)]
    if not specs:
        graph_of_code = _transitions(recipe)
        known = (tool.spec for tool in tools.tools)
        paths = WordPaths.of_code(len(graph_of_code.steps), known)
        return BuiltRecipe(graph=graph_of_code, word_paths=paths)
    if len(specs) < len(recipe.steps) or isinstance(recipe.graph, StepGraph):
        raise GraphError(
            "Steps from YAML and Step objects cannot be mixed in one recipe, nor in one graph. "
            "Register a Step and name it, or write all steps in Python."
        )
    saved = {spec.save_as: spec.id for spec in specs if spec.save_as}
    counts = Counter(spec.save_as for spec in specs)
    # A name that several steps save under may come from any of them: no single one is needed.
    sole = {name: step_id for name, step_id in saved.items() if counts[name] == 1}
    controls = {spec.id: _control(spec, recipe.templates) for spec in specs}
    used = frozenset(spec.id for spec in specs if spec.registered_class is not None)
    untrusted = UntrustedText(recipe, extensions.catalog())
    steps: list[WrittenStep[object]] = []
    compilers: dict[tuple[str, type[StepSpec]], StepCompiler[StepSpec]] = {}
    for spec in specs:
        control, kind = controls[spec.id], (spec.kind, type(spec))
        read_by_control = frozenset[str]()
        if control is not _NO_CONTROL:
            read_by_control = _read_by(control, saved)
        if kind not in compilers:
            compilers[kind] = compiler_of(spec)
        parts = BuildParts(
            saved=saved,
            tools=tools,
            extensions=extensions,
            read_by_control=read_by_control,
            untrusted=untrusted,
            templates=recipe.templates,
            directory=recipe.directory,
        )
        steps.append(compilers[kind].build(spec, parts))
    if recipe.graph is not None:
        graph_of_ids = DefaultStepGraph(steps, recipe.graph)
        return BuiltRecipe(
            graph=graph_of_ids, controls=controls, word_paths=untrusted.paths, used=used
        )
    graph = DependencyStepGraph(
        steps,
        {spec.id: spec.depends_on for spec in specs},
        {spec.id: spec.after for spec in specs},
        reads={step.id: _steps_read(step, controls[step.id], sole) for step in steps},
    )
    return BuiltRecipe(graph=graph, controls=controls, word_paths=untrusted.paths, used=used)


def _with_artifacts(built: BuiltRecipe, output: Template | None) -> Mapping[str, StepControl]:
    """The controls, with those marked whose step's artifacts a template reads."""
    if not built.controls:
        return built.controls  # steps by code have no templates
    references = list(output.references if output is not None else ())
    for step in _written_steps(built.graph.steps):
        references += step.references
    for control in built.controls.values():
        if control is _NO_CONTROL:
            continue
        references += (*control.references, *(control.route.references if control.route else ()))
    read = {
        str(path[1])
        for path in (each.path for each in references)
        if path[0] == "steps" and path[2:3] == ("artifacts",)
    }
    if not read:
        return built.controls
    marked = {each: replace(built.control(each), gives_artifacts=True) for each in read}
    return {**built.controls, **marked}


def _transitions(recipe: AgentRecipe) -> StepGraph:
    if isinstance(recipe.graph, StepGraph):
        return recipe.graph
    return DefaultStepGraph(cast("Iterable[Step[object]]", recipe.steps), recipe.graph)


def _control(spec: StepSpec, compiled: Templates) -> StepControl:
    own_model = spec.own_model
    if spec.idle_timeout_s is not None:
        own_model = evolve(own_model or ModelConfig(), idle_timeout_s=spec.idle_timeout_s)
    plain = (spec.when, spec.loop, spec.repeat, spec.save_as, spec.route, own_model)
    if plain == (None,) * 6 and spec.on_error.action is OnError.FAIL and not spec.distribute:
        return _NO_CONTROL
    return StepControl(
        when=compiled.compile_condition(spec.when) if spec.when is not None else None,
        loop=_loop(spec.loop, compiled) if spec.loop is not None else None,
        repeat=_repeat(spec.repeat, compiled) if spec.repeat is not None else None,
        on_error=spec.on_error,
        route=compiled.compile(spec.route) if spec.route is not None else None,
        save_as=spec.save_as,
        model=own_model,
        distribute=spec.distribute,
    )


def _loop(spec: LoopSpec, compiled: Templates) -> LoopControl:
    return LoopControl(
        over=compiled.compile(spec.over),
        aggregate=spec.aggregate,
        max_parallel=spec.max_parallel,
        collects=spec.on_item_error is OnItemError.COLLECT,
        min_successful=spec.min_successful,
        most_queued=spec.most_queued,
    )


def _repeat(spec: WhileSpec, compiled: Templates) -> WhileControl:
    return WhileControl(
        condition=compiled.compile_condition(spec.condition),
        text=spec.condition,
        max_iterations=spec.max_iterations,
        allow_repeats=spec.allow_repeats,
        aggregate=spec.aggregate,
    )


def _steps_read(
    step: WrittenStep[object], control: StepControl, saved: Mapping[str, str]
) -> Sequence[str]:
    """The dependencies whose output a template of the step reads without a default."""
    if not step.spec.depends_on:
        return ()
    references = (*step.references, *control.references)
    named = {
        step_named(reference, saved)
        for reference in references
        if not reference.is_guarded and not reference.is_status
    }
    return [step_id for step_id in step.spec.depends_on if step_id in named]


def _read_by(control: StepControl, saved: Mapping[str, str]) -> frozenset[str]:
    """The steps whose output, not only status, the control reads."""
    references = [each for each in control.references if not each.is_status]
    return frozenset(step_named(each, saved) for each in references)

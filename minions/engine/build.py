"""From a recipe to a graph of steps: templates and schemas are compiled here, once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypeAlias, cast

from attrs import evolve, field, frozen

from minions.contracts.calls import OutputInstructions
from minions.contracts.completion import (
    CompletionCriteria,
    CompletionLink,
    CompletionMode,
    StepCompletionChain,
)
from minions.contracts.context import RunContext
from minions.contracts.errors import (
    FailureInfo,
    GraphError,
    StepFailedError,
    UsageError,
    near_names,
)
from minions.contracts.graph import StepGraph
from minions.contracts.json_values import JsonValue, dumps, parse_json
from minions.contracts.messages import Message, MessageRole, message_to_json, system, user
from minions.contracts.steps import PythonStep, Step, StepScope
from minions.contracts.tools import Toolbox
from minions.engine.completion import DefaultStepCompletionChain
from minions.engine.extraction import extraction_question
from minions.engine.graph import DefaultStepGraph, DependencyStepGraph
from minions.engine.replay import KnowsItsInputs, StepRows
from minions.recipe.expressions import (
    Condition,
    MissingValueError,
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
        _step_named(reference, saved)
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
        return _goal_step(spec, saved, tools, links)
    if isinstance(spec, ToolSpecStep):
        tools.get(spec.tool)
        given = {**spec.params, **spec.params_template}
        params = {name: compile_template(value) for name, value in given.items()}
        return ToolCallStep(id=spec.id, spec=spec, params=params)
    if isinstance(spec, SetSpec):
        return SetStep(id=spec.id, spec=spec, values=compile_template(spec.set))
    if isinstance(spec, AnalyzeSpec):
        return _analyze_step(spec)
    if isinstance(spec, AssertSpec):
        return _assert_step(spec)
    raise UsageError(f"Step '{spec.id}' is of a kind that is not known: {type(spec).__name__}.")


class _Written:
    """What every step of a recipe has from its spec."""

    spec: StepSpec

    @property
    def description(self) -> str:
        """As written."""
        return self.spec.description

    @property
    def is_optional(self) -> bool:
        """As written."""
        return self.spec.optional

    @property
    def metadata(self) -> Mapping[str, object]:
        """The step's metadata and limits, which the executor reads as one."""
        spec = self.spec
        times = {"timeout_s": spec.timeout_s} if spec.timeout_s is not None else {}
        return {**spec.metadata, **spec.limits, **times}


# --- goal ------------------------------------------------------------------------------------


_MOST_OF_A_DEPENDENCY: Final = 4_000
"""Characters of a dependency's output at the end of a prompt."""


@frozen(kw_only=True)
class GoalStep(_Written, Step[object]):
    """A `goal:` step of a recipe."""

    id: str
    spec: GoalSpec
    texts: tuple[tuple[MessageRole, Template], ...]
    """Role and template of each message, in prompt order."""
    shown: tuple[str, ...]
    """Dependencies that no template names: their outputs stand at the end of the prompt."""
    available_tools: frozenset[str]
    completion_criteria: CompletionCriteria
    completion_chain: StepCompletionChain | None
    output: OutputInstructions[object] | None

    @property
    def templates(self) -> Sequence[Template]:
        """All that it renders."""
        return [template for _, template in self.texts]

    @property
    def tool_failure(self) -> str:
        """As written."""
        return self.spec.tool_failure

    def messages(self, view: RunContext) -> Sequence[Message]:
        """Rendered with what is known now.

        Raises:
            MissingValueError: A template names a value that is not there.
        """
        messages = [
            Message(role=role, content=_as_text(template.render(view.values)))
            for role, template in self.texts
        ]
        if results := _results(self.shown, view.values):
            messages.append(user(results))
        return messages


def _goal_step(
    spec: GoalSpec,
    saved: Mapping[str, str],
    tools: Toolbox,
    links: Mapping[str, CompletionLink],
) -> GoalStep:
    texts: list[tuple[MessageRole, Template]] = []
    if spec.system_prompt is not None:
        texts.append((MessageRole.SYSTEM, compile_template(spec.system_prompt)))
    texts += [
        (MessageRole(message.role), compile_template(message.content)) for message in spec.messages
    ]
    texts.append((MessageRole.GOAL, compile_template(spec.goal)))
    named = {_step_named(ref, saved) for _, template in texts for ref in template.references}
    criteria = spec.completion or CompletionCriteria(
        mode=CompletionMode.STRUCTURED if spec.output is not None else CompletionMode.TEXT
    )
    return GoalStep(
        id=spec.id,
        spec=spec,
        texts=tuple(texts),
        shown=tuple(step_id for step_id in spec.depends_on if step_id not in named),
        available_tools=frozenset(_tool_names(spec, tools)),
        completion_criteria=criteria,
        completion_chain=_chain(spec, links),
        output=OutputInstructions(schema=spec.output, name=spec.id) if spec.output else None,
    )


def _step_named(reference: Reference, saved: Mapping[str, str]) -> str:
    """The id of the step that a reference reads."""
    path = reference.path
    root = str(path[1]) if path[0] == "steps" and len(path) > 1 else str(path[0])
    return saved.get(root, root)


def _tool_names(spec: GoalSpec, tools: Toolbox) -> Iterable[str]:
    """Names as they are; a toolset's prefix stands for all its tools."""
    for name in spec.tools:
        family = [other for other in tools.names if other.startswith(f"{name}__")]
        if family and name not in tools:
            yield from family
        else:
            yield tools.get(name).spec.name


def _chain(spec: GoalSpec, links: Mapping[str, CompletionLink]) -> StepCompletionChain | None:
    if not spec.completion_links:
        return None
    for name in spec.completion_links:
        if name not in links:
            raise UsageError(
                f"Step '{spec.id}' names the completion link '{name}', which is not registered. "
                f"Registered links: {', '.join(links) or 'none'}.",
                code="unknown-link",
                suggestions=near_names(name, links),
            )
    return DefaultStepCompletionChain().prepend(*(links[name] for name in spec.completion_links))


def _as_text(value: JsonValue) -> str:
    return value if isinstance(value, str) else dumps(value)


def _results(step_ids: Sequence[str], values: Mapping[str, JsonValue]) -> str:
    parts = [
        f"Result of step '{step_id}':\n{_bounded(_as_text(values[step_id]))}"
        for step_id in step_ids
        if step_id in values
    ]
    return "\n\n".join(parts)


def _bounded(text: str) -> str:
    left_out = len(text) - _MOST_OF_A_DEPENDENCY
    if left_out <= 0:
        return text
    return f"{text[:_MOST_OF_A_DEPENDENCY]}\n… ({left_out} more characters left out)"


# --- tool and set ------------------------------------------------------------------------------


@frozen(kw_only=True)
class ToolCallStep(_Written, PythonStep[JsonValue], KnowsItsInputs):
    """A `tool:` step of a recipe: one call."""

    id: str
    spec: ToolSpecStep
    params: Mapping[str, Template]

    @property
    def templates(self) -> Sequence[Template]:
        """All that it renders."""
        return list(self.params.values())

    async def run(self, scope: StepScope) -> JsonValue:
        """Render, ask for what the templates leave open, then call.

        Raises:
            MissingValueError: A value inside a longer text is not there.
            StepFailedError: No answer filled the gaps; the tool was not called.
        """
        arguments, missing = self._rendered(scope.context)
        if missing:
            messages, output = self._question(scope.context, missing)
            answer = await scope.ask_model(messages, output)
            found = cast("Mapping[str, Mapping[str, JsonValue]]", answer)["params"]
            arguments = {**found, **arguments}  # what is known wins
        return await scope.call_tool(self.spec.tool, arguments)

    def _rendered(self, view: RunContext) -> tuple[dict[str, JsonValue], list[str]]:
        """What is known, and the names of parameters that are not."""
        known: dict[str, JsonValue] = {}
        missing: list[str] = []
        for name, template in self.params.items():
            try:
                known[name] = template.render(view.values)
            except MissingValueError:
                if not template.is_whole:
                    raise
                missing.append(name)
        tool = view.tools.find(self.spec.tool)
        required = tool.spec.parameters.get("required") if tool is not None else None
        if isinstance(required, list | tuple):
            missing += [str(name) for name in required if name not in self.params]
        return known, missing

    def _question(
        self, view: RunContext, missing: Sequence[str]
    ) -> tuple[tuple[Message, ...], OutputInstructions[JsonValue]]:
        tool = view.tools.get(self.spec.tool)
        needed = {name: view.values[name] for name in self.spec.depends_on if name in view.values}
        if "loop" in view.values:
            needed["loop"] = view.values["loop"]
        return extraction_question(
            step_description=self.spec.description or tool.spec.description or self.id,
            tool_name=tool.spec.name,
            tool_params=tool.spec.parameters,
            context_data=needed,
            missing=missing,
        )

    def would_repeat(self, view: RunContext, recorded: StepRows) -> bool:
        """Whether the arguments are the same, and what would be asked for the rest."""
        starts = [row.body for row in recorded.rows if row.kind == "tool_call"]
        if not starts:
            return False
        known, missing = self._rendered(view)
        if not missing:
            return starts[0].get("arguments") == dumps(known)
        asked = [row.body.get("messages") for row in recorded.rows if row.kind == "conversation"]
        question = message_to_json(self._question(view, missing)[0][-1])
        was_asked = any(isinstance(said, list) and question in said for said in asked)
        before = parse_json(str(starts[0].get("arguments")))
        return was_asked and isinstance(before, dict) and before == {**before, **known}


@frozen(kw_only=True)
class SetStep(_Written, PythonStep[JsonValue], KnowsItsInputs):
    """A `set:` step of a recipe: binds values."""

    id: str
    spec: SetSpec
    values: Template
    has_limits: bool = field(init=False)
    """Whether it says anything of its own that an executor would have to read."""

    @has_limits.default
    def _has_limits(self) -> bool:
        return bool(self.metadata)

    @property
    def is_instant(self) -> bool:
        """One row is enough."""
        return True

    @property
    def templates(self) -> Sequence[Template]:
        """All that it renders."""
        return [self.values]

    async def run(self, scope: StepScope) -> JsonValue:
        """Render."""
        return self.values.render(scope.context.values)

    def bind(self, values: Mapping[str, JsonValue]) -> JsonValue:
        """The same, from the values alone."""
        return self.values.render(values)

    def would_repeat(self, view: RunContext, recorded: StepRows) -> bool:
        """Whether the values are the same."""
        ended = recorded.ended
        if ended is None:
            return False
        return dumps(ended.body.get("output")) == dumps(self.values.render(view.values))


# --- analyze and assert -----------------------------------------------------------------------


_ANALYST: Final = (
    "You answer one question about data. Use only what is given here, and invent nothing: where "
    "the input is empty, so is what was found in it."
)


@frozen(kw_only=True)
class AnalyzeStep(_Written, Step[object]):
    """An `analyze:` step of a recipe: one fresh call, its output declared."""

    id: str
    spec: AnalyzeSpec
    task: Template
    context: Template | None
    input: Template | None
    completion_criteria: CompletionCriteria
    output: OutputInstructions[object] | None

    @property
    def templates(self) -> Sequence[Template]:
        """All that it renders."""
        return [part for part in (self.context, self.task, self.input) if part is not None]

    def messages(self, view: RunContext) -> Sequence[Message]:
        """Context, task and input in one message.

        Raises:
            MissingValueError: A template names a value that is not there.
        """
        values = view.values
        parts = [f"Task:\n{_as_text(self.task.render(values))}"]
        if self.context is not None:
            parts.insert(0, f"Context:\n{_as_text(self.context.render(values)).strip()}")
        if self.input is not None:
            parts.append(f"Input, as JSON:\n{dumps(self.input.render(values))}")
        return [system(_ANALYST), Message(role=MessageRole.GOAL, content="\n\n".join(parts))]


def _analyze_step(spec: AnalyzeSpec) -> AnalyzeStep:
    mode = CompletionMode.TEXT if spec.output is None else CompletionMode.STRUCTURED
    return AnalyzeStep(
        id=spec.id,
        spec=spec,
        task=compile_template(spec.task),
        context=compile_template(spec.context) if spec.context is not None else None,
        input=compile_template(spec.input) if spec.has_input else None,
        completion_criteria=CompletionCriteria(mode=mode),
        output=OutputInstructions(schema=spec.output, name=spec.id) if spec.output else None,
    )


@frozen(kw_only=True)
class AssertStep(_Written, PythonStep[None], KnowsItsInputs):
    """An `assert:` step of a recipe."""

    id: str
    spec: AssertSpec
    conditions: tuple[Condition, ...]
    message: Template | None

    @property
    def is_instant(self) -> bool:
        """One row is enough."""
        return True

    @property
    def templates(self) -> Sequence[Template]:
        """All that it renders, apart from its conditions."""
        return [self.message] if self.message is not None else []

    @property
    def references(self) -> Sequence[Reference]:
        """What the conditions read."""
        return [reference for condition in self.conditions for reference in condition.references]

    async def run(self, scope: StepScope) -> None:
        """Look.

        Raises:
            StepFailedError: A condition does not hold.
        """
        values = scope.context.values
        for text, condition in zip(self.spec.conditions, self.conditions, strict=True):
            if not condition.holds(values):
                raise StepFailedError(
                    FailureInfo(code="assertion-failed", message=self._words(text, values))
                )

    def _words(self, text: str, values: Mapping[str, JsonValue]) -> str:
        if self.message is not None:
            return _as_text(self.message.render(values))
        return f"The condition '{text}' does not hold."

    def would_repeat(self, view: RunContext, recorded: StepRows) -> bool:
        """Looking again costs nothing."""
        return False


def _assert_step(spec: AssertSpec) -> AssertStep:
    return AssertStep(
        id=spec.id,
        spec=spec,
        conditions=tuple(compile_condition(text) for text in spec.conditions),
        message=compile_template(spec.message) if spec.message is not None else None,
    )


BuiltStep: TypeAlias = GoalStep | ToolCallStep | SetStep | AnalyzeStep | AssertStep
"""A step of a recipe that was read."""

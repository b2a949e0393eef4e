"""Steps of a recipe that are plain work: `tool`, `set`, `assert`, `ask`, `recipe`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import cast

from attrs import field, frozen

from minions.contracts.calls import OutputInstructions
from minions.contracts.context import RunContext
from minions.contracts.errors import (
    FailureInfo,
    StepFailedError,
    UsageError,
)
from minions.contracts.json_values import JsonValue, dumps, parse_json
from minions.contracts.messages import Message, message_to_json
from minions.contracts.steps import PythonStep, StepScope
from minions.engine.compile.engine_scope import Default, EngineScope
from minions.engine.compile.extraction import extraction_question
from minions.engine.compile.fingerprint import Fingerprint, Fingerprinted
from minions.engine.compile.recipe_step import WrittenStep, as_text, step_named
from minions.engine.history.replay import KnowsItsInputs, StepRows, TellsItself
from minions.recipe.bundles import bundle_of
from minions.recipe.expressions.template import (
    Condition,
    MissingValueError,
    Reference,
    Template,
    compile_condition,
    compile_template,
)
from minions.recipe.kinds.ask import AskSpec
from minions.recipe.kinds.assertion import AssertSpec
from minions.recipe.kinds.goal import GoalSpec
from minions.recipe.kinds.recipe import RecipeSpec
from minions.recipe.kinds.set import SetSpec
from minions.recipe.kinds.tool import ToolSpecStep
from minions.recipe.model import AgentRecipe

__all__ = [
    "AskStep",
    "AssertStep",
    "RecipeStep",
    "SetStep",
    "ToolCallStep",
    "ask_step",
    "assert_step",
    "recipe_step",
    "tool_call_step",
]


@frozen(kw_only=True)
class ToolCallStep(WrittenStep, PythonStep[JsonValue], KnowsItsInputs, Fingerprinted):
    """A `tool:` step of a recipe: one call."""

    id: str
    spec: ToolSpecStep
    params: Mapping[str, Template]
    shown: tuple[str, ...]
    """Steps whose outputs are the data of a question for what the parameters leave open."""

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
        needed = {name: view.values[name] for name in self.shown if name in view.values}
        if "loop" in view.values:
            needed["loop"] = view.values["loop"]
        return extraction_question(
            step_description=self.spec.description or tool.spec.description or self.id,
            tool_name=tool.spec.name,
            tool_params=tool.spec.parameters,
            context_data=needed,
            missing=missing,
        )

    def basis(self, view: RunContext) -> Fingerprint:
        """The arguments, and what would be asked for the rest."""
        known, missing = self._rendered(view)
        asked: dict[str, JsonValue] = {"tool": self.spec.tool, "arguments": known}
        if missing:
            messages, output = self._question(view, missing)
            asked["question"] = [message_to_json(message) for message in messages]
            asked["answer"] = output.json_schema()
        return Fingerprint(asked=asked, tools=[self.spec.tool], asks_model=bool(missing))

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
class SetStep(WrittenStep, PythonStep[JsonValue], KnowsItsInputs):
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


@frozen(kw_only=True)
class AssertStep(WrittenStep, PythonStep[None], KnowsItsInputs):
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
            return as_text(self.message.render(values))
        return f"The condition '{text}' does not hold."

    def would_repeat(self, view: RunContext, recorded: StepRows) -> bool:
        """Looking again costs nothing."""
        return False


def assert_step(spec: AssertSpec) -> AssertStep:
    """The step of that spec."""
    return AssertStep(
        id=spec.id,
        spec=spec,
        conditions=tuple(compile_condition(text) for text in spec.conditions),
        message=compile_template(spec.message) if spec.message is not None else None,
    )


def tool_call_step(
    spec: ToolSpecStep,
    saved: Mapping[str, str],
    params: Mapping[str, Template],
    read_by_control: Collection[str],
) -> ToolCallStep:
    """The step of that spec.

    Args:
        saved: `save_as` names to the ids of their steps.
        params: By name, compiled.
        read_by_control: Steps whose output `when`, `loop` or `while` reads.
    """
    read = {step_named(each, saved) for value in params.values() for each in value.references}
    listed = set(spec.declared).difference(read_by_control)
    shown = tuple(each for each in spec.depends_on if each in read or each in listed)
    return ToolCallStep(id=spec.id, spec=spec, params=params, shown=shown)


# --- ask ----------------------------------------------------------------------------------------


@frozen(kw_only=True)
class AskStep(WrittenStep, PythonStep[JsonValue], TellsItself):
    """An `ask:` step of a recipe: a person answers."""

    id: str
    spec: AskSpec
    question: Template

    @property
    def templates(self) -> Sequence[Template]:
        """All that it renders."""
        return [self.question]

    async def run(self, scope: StepScope) -> JsonValue:
        """Ask; the same question is asked once, however often the run goes on.

        Raises:
            StepFailedError: There is no answer yet, or there was none in time.
        """
        spec = self.spec
        return await cast(EngineScope, scope).ask_person(
            as_text(self.question.render(scope.context.values)),
            form=spec.form,
            default=Default(spec.default, spec.has_default),
            timeout_s=spec.waits_s,
        )


def ask_step(spec: AskSpec) -> AskStep:
    """The step of that spec."""
    return AskStep(id=spec.id, spec=spec, question=compile_template(spec.ask))


# --- recipe -------------------------------------------------------------------------------------


@frozen(kw_only=True)
class RecipeStep(WrittenStep, PythonStep[object], TellsItself, Fingerprinted):
    """A `recipe:` step of a recipe: another one, with inputs of its own."""

    id: str
    spec: RecipeSpec
    given: Mapping[str, Template]

    @property
    def recipe(self) -> AgentRecipe:
        """What is run."""
        return self.spec.recipe

    @property
    def templates(self) -> Sequence[Template]:
        """All that it renders."""
        return list(self.given.values())

    async def run(self, scope: StepScope) -> object:
        """Render the inputs, then run it.

        Raises:
            MissingValueError: A template names a value that is not there.
            StepFailedError: The recipe failed.
        """
        values = scope.context.values
        inputs = {name: template.render(values) for name, template in self.given.items()}
        return await cast(EngineScope, scope).run_recipe(self.recipe, inputs)

    def basis(self, view: RunContext) -> Fingerprint:
        """The recipe's text, those of the recipes in it, and what it is given.

        Raises:
            UsageError: It was made by code.
        """
        recipe = self.recipe
        if recipe.document is None:
            raise UsageError(f"The recipe '{recipe.id}' was made by code.", code="recipe-needed")
        asked: dict[str, JsonValue] = {
            "recipe": [recipe.document, recipe.directory, bundle_of(recipe)],
            "inputs": {name: template.render(view.values) for name, template in self.given.items()},
        }
        return Fingerprint(asked=asked, tools=sorted(_tools_in(recipe)))


def _tools_in(recipe: AgentRecipe) -> set[str]:
    """Names of all tools that its steps may call."""
    names: set[str] = set()
    for step in recipe.steps:
        if isinstance(step, ToolSpecStep):
            names.add(step.tool)
        elif isinstance(step, GoalSpec):
            names.update(step.tools)
        elif isinstance(step, RecipeSpec):
            names |= _tools_in(step.recipe)
    return names


def recipe_step(spec: RecipeSpec) -> RecipeStep:
    """The step of that spec."""
    given = {name: compile_template(value) for name, value in spec.given.items()}
    return RecipeStep(id=spec.id, spec=spec, given=given)

"""How the parts of one run are put together: the whole of a run, and a recipe within it, alike."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from attrs import evolve, field, frozen
from msgspec import Struct

from minions.contracts.calls import ChatModel, ModelOptions
from minions.contracts.context import ModelCallExecutorFactory, ToolCallExecutorFactory
from minions.contracts.journal.start_note import StartNote
from minions.contracts.tools import Tool, Toolbox
from minions.data.json_values import JsonValue, as_object, dumps
from minions.engine.compile.build import BuiltRecipe, child_of, part_of
from minions.engine.compile.extensions import ModelSource
from minions.engine.compile.preparation import Preparation
from minions.engine.compile.selection import ChosenSteps, specs_of_parts
from minions.engine.context.agent_context import Agent, AgentContext, RecipeRunner
from minions.engine.context.run_progress import RunProgress
from minions.engine.context.scope import RunScope
from minions.engine.history.memory import ConversationMemory
from minions.engine.run.agent_run import AgentRun
from minions.engine.run.run_models import RunModels
from minions.engine.run.run_record import RunOutput
from minions.engine.run.run_start import RunStart
from minions.engine.run.run_steps import RunSteps
from minions.engine.run.walk import RecipeWalk, Routes
from minions.engine.services.run_services import Services
from minions.engine.step.next_step import NextStepChain, StepManager
from minions.recipe.expressions.template import Template
from minions.recipe.model import AgentRecipe
from minions.recipe.model_config import ModelConfig

if TYPE_CHECKING:
    from minions.engine.run.child_runs import ChildRuns


class OpenedRecipe(Struct, frozen=True, kw_only=True):
    """A recipe with its inputs, compiled, with its toolsets open."""

    built: BuiltRecipe
    tools: Toolbox
    system_prompt: str | None
    """Rendered; None: it stands in the recipe as the model reads it."""
    goal: str | None
    """Rendered; None: it stands in the recipe as the model reads it."""

    def agent(self, recipe: AgentRecipe) -> Agent:
        """The recipe with its prompts as this run reads them."""
        prompt, goal = self.system_prompt, self.goal
        return Agent(
            recipe,
            system_prompt=recipe.system_prompt if prompt is None else prompt,
            goal=recipe.goal if goal is None else goal,
        )


@frozen(kw_only=True, eq=False, repr=False)
class RunWiring:
    """What an executor hands to each of its runs, and to each recipe within them."""

    preparation: Preparation
    models: ModelSource
    loaded: dict[tuple[int, bool], ChatModel]
    """Models that were warmed up, by identity and whether answers are constrained."""
    options: dict[ModelConfig, ModelOptions] = field(factory=dict, init=False)
    """What goes with the calls of a configuration: the same objects in all runs, whose encoding
    models remember."""
    model_call_executor_factory: ModelCallExecutorFactory | None
    """An application's own way to carry out model calls; None: `models`."""
    tool_call_executor_factory: ToolCallExecutorFactory
    next_step_chain: NextStepChain | None = None
    """Chooses among several next steps; None: the usual rules do."""

    def redacting(self, scope: RunScope, recipe: AgentRecipe) -> RunScope:
        """The scope in which what the recipe names is replaced, too.

        Raises:
            UsageError: `unknown-redactor`; nothing finds such a kind here.
        """
        from minions.engine.services.prompt_redaction import run_redaction

        known = scope.services.redact if scope.redaction is None else scope.redaction.kinds
        kinds = tuple(dict.fromkeys((*known, *recipe.redact)))
        if scope.redaction is not None and kinds == known:
            return scope
        redactors, restores = self.preparation.redactors, scope.recipes[0].restore
        redaction = run_redaction(kinds, redactors, scope.run_id, restores=restores)
        return evolve(scope, redaction=redaction)

    def run(
        self,
        start: RunStart,
        services: Services,
        recipe_runner: RecipeRunner,
        output_class: type[object] | None,
    ) -> AgentRun[Any]:  # Any: the overloads of whoever calls this carry the type
        """Assemble a run that is ready to execute; nothing is stored.

        Args:
            output_class: What its output shall be; None: JSON as it comes.
        Raises:
            UsageError, EnvironmentRefusedError: Of `opened`; or a step's model is missing.
        """
        recipe, chosen, noted = start.recipe, start.chosen, StartNote.of(start.note)
        caller_tools: tuple[Tool, ...] = ()
        if noted.caller_tools:
            from minions.engine.calls.questions_of_call import ToolOfCaller

            caller_tools = tuple(map(ToolOfCaller, noted.caller_tools))
        scope = RunScope.of_run(
            recipe,
            services,
            inputs=start.inputs,
            run_id=start.run_id,
            session_id=start.session_id,
            replay=start.replay,
            offer=noted.offer,
            caller_tools=caller_tools,
            caller_choice=noted.caller_choice,
            user=start.user,
            starters=start.starters,
        )
        if services.redact or recipe.redact:
            scope = self.redacting(scope, recipe)
        opened = self.opened(
            recipe, start.inputs, scope, chosen.runs if chosen is not None else None
        )
        if start.resume_plan is not None:
            start = start.with_doubt(opened.tools, self.preparation.planned_effects(recipe))
        plan, built = start.resume_plan, opened.built
        if chosen is not None:
            specs_of_parts(recipe)
            built = _chosen_part(built, recipe, chosen)
        manager = StepManager(built.graph, next_step_chain=self.next_step_chain)
        context = AgentContext(
            opened.agent(recipe),
            manager,
            ConversationMemory(),
            tools=opened.tools,
            inputs=start.inputs,
            scope=scope,
            progress=RunProgress(
                recipe.limits,
                open_calls=plan.doubt if plan is not None else (),
                warnings=start.replay.warnings if start.replay is not None else (),
                earlier=start.earlier,
            ),
            recipe_runner=recipe_runner,
        )
        if chosen is not None and chosen.item is not None:
            for step_id, record in chosen.pinned.items():
                saved = opened.built.control(step_id).save_as
                context.run_values.restore(step_id, as_object(record), saved)
        if built.word_paths is not None:
            from minions.engine.context.strangers_words import StrangersWords

            inputs = recipe.inputs.items()
            context.words = words = StrangersWords(
                recipe.steps or built.graph.steps,
                built.word_paths,
                context.run_values.gives,
                private={f"input {name}": "" for name, spec in inputs if spec.is_private},
            )
            if chosen is not None and chosen.item is not None:
                words.assume_all("the run of the loop")
        models = self.models_of(context, built)
        walk = self.walk(context, manager, built, models, chosen)
        check = self.preparation.output_check(output_class)
        output = RunOutput(context, built, output_class, check, is_part=chosen is not None)
        run: AgentRun[object] = AgentRun(context, built, models, walk, output, start)
        for _, config in built.asking:
            models.require(config)
        models.require_batches(config for _, config in built.asking)
        return run

    def opened(
        self,
        recipe: AgentRecipe,
        inputs: Mapping[str, JsonValue],
        scope: RunScope,
        runs: Collection[str] | None = None,
    ) -> OpenedRecipe:
        """Compile a recipe and open its toolsets.

        Args:
            inputs: Checked. Its prompts and the options of its toolsets may name them, and `run`.
            scope: Of the recipe.
            runs: Ids of the steps that run; None: all of them.
        Raises:
            UsageError, EnvironmentRefusedError: As of `Preparation.open_tools` and `built`; a tool
                of the caller has the name of one of these.
        """
        known: dict[str, JsonValue] = {"inputs": dict(inputs), "run": scope.ids}
        tools = self.preparation.open_tools(recipe, known, scope.secrets, rights=scope.opening)
        built = self.preparation.built(recipe, tools, runs)
        return OpenedRecipe(
            built=built,
            tools=tools.plus(scope.caller_tools) if scope.caller_tools else tools,
            system_prompt=_rendered(built.system_prompt, known) if built.system_prompt else None,
            goal=_rendered(built.goal, known) if built.goal else None,
        )

    def models_of(self, context: AgentContext, built: BuiltRecipe) -> RunModels:
        """The models of the recipe of that context."""
        return RunModels(
            context,
            built,
            self.models,
            self.model_call_executor_factory,
            self.loaded,
            self.options,
        )

    def walk(
        self,
        context: AgentContext,
        manager: StepManager,
        built: BuiltRecipe,
        models: RunModels,
        chosen: ChosenSteps | None = None,
    ) -> RecipeWalk:
        """What runs the recipe of that context.

        Args:
            chosen: The steps that run; None: all.
        """
        tools = self.tool_call_executor_factory
        children = partial(self._children, context, built)
        steps = RunSteps(context, built, models, tools, chosen=chosen, children=children)
        routes = Routes(context, built, models, tools)
        return RecipeWalk(context, manager, built, steps, routes, tools)

    def _children(self, context: AgentContext, built: BuiltRecipe) -> ChildRuns:
        """What prepares the runs of items of distributed steps."""
        from minions.engine.run.child_runs import ChildRuns

        return ChildRuns(context, built, partial(self._child, context))

    def _child(self, context: AgentContext, start: RunStart) -> AgentRun[object]:
        """A child run of that context's run, prepared; nothing is stored."""
        runner = context.recipe_runner
        assert runner is not None  # noqa: S101  # `run` gives every run one
        return self.run(start, context.scope.services, runner, None)


def _rendered(prompt: Template, known: Mapping[str, JsonValue]) -> str:
    value = prompt.render(known)
    return value if isinstance(value, str) else dumps(value)


def _chosen_part(built: BuiltRecipe, recipe: AgentRecipe, chosen: ChosenSteps) -> BuiltRecipe:
    if chosen.item is None:
        return part_of(built, recipe, chosen.runs)
    (step_id,) = chosen.runs
    return child_of(built, recipe, step_id)

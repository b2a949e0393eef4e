"""Prepares runs: everything that can be refused is refused here, before anything has begun."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from attrs import evolve

from minions.contracts.approvals import DecisionMaker
from minions.contracts.budgets import checked_user
from minions.contracts.calls import ChatModel, ToolCall
from minions.contracts.context import (
    ModelCallExecutorFactory,
    RunContext,
    ToolCallExecutor,
    ToolCallExecutorFactory,
)
from minions.contracts.executions import OutputT, RunStatus
from minions.contracts.journal.start_note import starters_of
from minions.contracts.retry_config import RetryConfig
from minions.contracts.secrets import InputValue, Secrets
from minions.data.errors import NEEDS_DECISION, FailureInfo, MinionsError, NotFoundError, UsageError
from minions.data.json_values import JsonValue
from minions.data.patterns import match_beside_loop
from minions.engine.compile.build import BuiltRecipe
from minions.engine.compile.extensions import Extensions, ModelSource, NamedAgents
from minions.engine.compile.opening_rights import MadeOf
from minions.engine.compile.preparation import Preparation
from minions.engine.compile.selection import ChosenSteps, RunPart, choose_steps, with_pins
from minions.engine.context.agent_context import AgentContext, NestedResult, RecipeRunner, TellSteps
from minions.engine.context.time_limits import TimeLimit
from minions.engine.history.conversation import ConversationStart
from minions.engine.history.keys import scope_of
from minions.engine.history.memory import ConversationMemory
from minions.engine.run.agent_run import AgentRun
from minions.engine.run.assembly import RunWiring
from minions.engine.run.run_record import RunOutput
from minions.engine.run.run_start import RunStart, resume_start, retry_start
from minions.engine.run.walk import RecipeWalk, WalkEnd
from minions.engine.services.run_services import Services, TextOutputParser
from minions.engine.step.next_step import NextStepChain, StepManager
from minions.recipe.catalog import Catalog
from minions.recipe.inputs import resolve_inputs
from minions.recipe.model import AgentRecipe, UntrustedRule
from minions.recipe.model_config import ModelConfig
from minions.recipe.permissions import stricter

if TYPE_CHECKING:
    from minions.engine.compile.planned_step import PlannedStep
    from minions.engine.context.strangers_words import StrangersWords, WordsOf
    from minions.engine.run.recorded_run import RecordedRun

RecipeSource = Callable[[str], AgentRecipe]
"""An id to its recipe; raises NotFoundError."""


class RunFactory:
    """Prepares runs of recipes. Holds configuration and compiled recipes: two runs share nothing
    else.
    """

    def __init__(
        self,
        models: ModelSource | ChatModel,
        *,
        extensions: Extensions | None = None,
        services: Services | None = None,
        recipes: RecipeSource | None = None,
        model_call_executor_factory: ModelCallExecutorFactory | None = None,
        tool_call_executor_factory: ToolCallExecutorFactory | None = None,
        next_step_chain: NextStepChain | None = None,
        preparation: Preparation | None = None,
        agents: NamedAgents | None = None,
    ) -> None:
        """Configure.

        Args:
            models: Gives the model of each step that needs one; or the one model for all, whose
                `output_parser` is taken where `services` name none.
            recipes: Finds recipes that are named by id.
            model_call_executor_factory: Your own way to carry out model calls; None: `models`.
            tool_call_executor_factory: Your own way to carry out tool calls; None: the
                run's toolbox.
            next_step_chain: Chooses among several next steps, where a recipe has no `route`; None:
                the model's wish, then the decision tool, then the first.
            preparation: Compiled recipes of the same extensions, shared with other executors.
            agents: What the toolset `agents` runs by name; None: what the extensions register.
        """
        self._models = _as_source(models)
        self._extensions = extensions or Extensions()
        self._services = _with_parser(services or Services(), models)
        self._clock = self._services.clock
        self._recipes = recipes
        self._preparation = preparation or Preparation(self._extensions)
        self._wiring = RunWiring(
            preparation=self._preparation,
            models=self._models,
            loaded={},
            model_call_executor_factory=model_call_executor_factory,
            tool_call_executor_factory=tool_call_executor_factory or tool_call_executors(),
            next_step_chain=next_step_chain,
        )
        agents = agents or self._extensions.named_agents()
        self._nested_runs = NestedRuns(self._wiring, self._find, agents)

    def prepare(
        self,
        recipe: AgentRecipe | str,
        inputs: Mapping[str, InputValue] | None = None,
        *,
        output_class: type[OutputT] | None = None,
        run_id: str | None = None,
        session_id: str | None = None,
        note: Mapping[str, JsonValue] | None = None,
        part: RunPart | None = None,
        user: str | None = None,
        project: str | None = None,
        live_conversation: ConversationStart | None = None,
    ) -> AgentRun[OutputT]:
        """Check everything that can be refused before a run; nothing has begun, nothing is stored.

        Args:
            run_id: A new id of the caller's; None: one of the services' ids.
            note: Stored with the run's start, for the caller to find when it is resumed.
            part: With the outputs that it needs: nothing is looked up here.
            user: The label of the user for whom it runs, whose daily budget it spends from.
            project: The folder of the project to which it belongs; None: that of the services.
            live_conversation: Where it continues the session's conversation; None: at its end.
        Raises:
            As `execute`.
        """
        found = recipe if isinstance(recipe, AgentRecipe) else self._find(recipe)
        checked: Mapping[str, JsonValue] = {}
        if inputs or found.inputs:
            checked = resolve_inputs(found, inputs or {}, from_text=False, base=Path.cwd())
        ids = self._services.ids
        start = RunStart(
            recipe=found,
            inputs=checked,
            run_id=run_id or ids("run"),
            session_id=session_id or ids("ses"),
            note=note or {},
            user=checked_user(user) if user is not None else None,
            project=project or self._services.project,
            starters=starters_of(user, note or {}),
            chosen=None if part is None else _chosen(found, part),
            makes_session=run_id is None and session_id is None,
            live_conversation=live_conversation or _FROM_END,
        )
        return self._wiring.run(start, self._services, self._nested_runs, output_class)

    def prepare_resume(
        self,
        recorded: RecordedRun,
        *,
        output_class: type[OutputT] | None = None,
        recipe: AgentRecipe | None = None,
        decisions: Mapping[str, str] | None = None,
        note: Mapping[str, JsonValue] | None = None,
        decided_by: DecisionMaker | None = None,
    ) -> AgentRun[OutputT]:
        """Prepare to resume a run; it has not begun.

        Args:
            recipe: The run's own, perhaps with other limits.
            note: What stands there from now on; None: what stood there before.
            decided_by: Who made the decisions; None: it is not known.
        """
        catalog = self._extensions.catalog()
        start = resume_start(
            recorded,
            catalog,
            recipe=recipe,
            decisions=decisions,
            note=note,
            now=self._clock.now(),
            decided_by=decided_by,
        )
        return self._wiring.run(start, self._services, self._nested_runs, output_class)

    def prepare_retry(
        self,
        recorded: RecordedRun,
        *,
        output_class: type[OutputT] | None = None,
        recipe: AgentRecipe | None = None,
        is_edited: bool = True,
        from_step: str | None = None,
        note: Mapping[str, JsonValue] | None = None,
        inputs: Mapping[str, InputValue] | None = None,
    ) -> AgentRun[OutputT]:
        """Prepare to retry a run; it has not begun.

        Args:
            is_edited: Whether `recipe`, where one is given, is another than the run's own.
            note: As in `prepare_resume`.
            inputs: Inputs that replace those of the run: steps that read them run again.
        """
        start = retry_start(
            recorded,
            self._extensions.catalog(),
            recipe=recipe,
            is_edited=is_edited,
            from_step=from_step,
            note=note,
            inputs=inputs,
        )
        return self._wiring.run(start, self._services, self._nested_runs, output_class)

    def plan(
        self,
        recipe: AgentRecipe | str,
        inputs: Mapping[str, InputValue] | None = None,
        *,
        part: RunPart | None = None,
    ) -> tuple[PlannedStep, ...]:
        """The steps that a run would do, in order. Calls no tool and no model, writes nothing.

        Args:
            part: As in `prepare`.
        Raises:
            As `execute`.
        """
        from minions.engine.compile.dry_run import planned_steps

        found = self._find(recipe)
        checked = resolve_inputs(found, inputs or {}, from_text=False, base=Path.cwd())
        known: dict[str, JsonValue] = {"inputs": checked, "run": {"id": "", "session_id": ""}}
        tools = self._preparation.open_tools(found, known, Secrets(), are_called=False)
        chosen = None if part is None else _chosen(found, part)
        return planned_steps(found, checked, tools, self._extensions, self._models, chosen)

    @property
    def services(self) -> Services:
        """The services of all its runs: journal, clock, prices, decider and others."""
        return self._services

    @property
    def catalog(self) -> Catalog:
        """Everything that its recipes may name."""
        return self._extensions.catalog()

    def find(self, recipe: AgentRecipe | str) -> AgentRecipe:
        """The recipe of that id; a recipe is itself.

        Raises:
            NotFoundError: There is none.
        """
        return self._find(recipe)

    def _find(self, recipe: AgentRecipe | str) -> AgentRecipe:
        if isinstance(recipe, AgentRecipe):
            return recipe
        if (registered := self._extensions.find_recipe(recipe)) is not None:
            return registered
        if self._recipes is None:
            raise NotFoundError(
                f"No recipe '{recipe}': this executor was given no recipes to look among.",
                code="recipe-not-found",
            )
        found = self._recipes(recipe)
        if isinstance(found, AgentRecipe):
            return found
        raise UsageError(
            f"`recipes` gave {type(found).__name__} for '{recipe}'. It has to return an "
            "AgentRecipe, such as load_recipe(path), or to raise NotFoundError.",
            code="bad-recipe-source",
        )


_FROM_END: Final = ConversationStart()


def tool_call_executors() -> ToolCallExecutorFactory:
    """The factory for tools in the run's own toolbox."""
    executor: ToolCallExecutor | None = None

    def factory(_call: ToolCall, _context: RunContext) -> ToolCallExecutor:
        nonlocal executor
        if executor is None:
            from minions.engine.calls.tool_calls import DefaultToolCallExecutor

            executor = DefaultToolCallExecutor()
        return executor

    return factory


def _chosen(recipe: AgentRecipe, part: RunPart) -> ChosenSteps:
    return with_pins(recipe, choose_steps(recipe, part), part)


def _with_parser(services: Services, models: ModelSource | ChatModel) -> Services:
    """The services with the parser of the one model, where nobody chose another one."""
    is_chosen = type(services.parser) is not TextOutputParser
    own = models.output_parser if isinstance(models, ChatModel) and not is_chosen else None
    return services if own is None else evolve(services, parser=own)


def _as_source(models: ModelSource | ChatModel) -> ModelSource:
    if not isinstance(models, ChatModel):
        return models
    model = models

    def only(_config: ModelConfig) -> ChatModel:
        return model

    return only


# --- a recipe as a step of a run -----------------------------------------------------------------


class NestedRuns(RecipeRunner):
    """Runs the nested recipes of one executor; it holds no state of a run."""

    def __init__(
        self, wiring: RunWiring, find: Callable[[str], AgentRecipe], agents: NamedAgents
    ) -> None:
        """Take what the executor's own runs have.

        Args:
            find: An id to its recipe; raises NotFoundError.
            agents: What tools may run by name.
        """
        self._wiring = wiring
        self._find = find
        self._agents = agents

    @property
    def agents(self) -> NamedAgents:
        """The agents of the executor."""
        return self._agents

    def find(self, name: str) -> AgentRecipe:
        """The recipe that the executor knows by that name."""
        return self._find(name)

    async def run(
        self,
        recipe: AgentRecipe,
        inputs: Mapping[str, InputValue],
        context: AgentContext,
        path: str,
        key: str,
        tell: TellSteps,
        made_of: MadeOf | None = None,
        *,
        retry: RetryConfig | None = None,
    ) -> NestedResult:
        """To its end; what failed in it is the error of the result."""
        await context.scope.examples.pin(recipe)  # else of a recipe that is made in the run
        checked = await match_beside_loop(
            lambda: resolve_inputs(recipe, inputs, from_text=False, base=Path.cwd())
        )
        inner, manager, built = self._context(recipe, checked, context, path, key, made_of, retry)
        try:
            return await self._run(inner, manager, built)
        finally:
            tell(manager.step_executions)
            if inner.words is not None and context.words is not None:
                context.words.add(_own_id(context, path), inner.words.in_output())

    async def _run(
        self, context: AgentContext, manager: StepManager, built: BuiltRecipe
    ) -> NestedResult:
        recipe = context.recipe
        models = self._wiring.models_of(context, built)
        walk = self._wiring.walk(context, manager, built, models)
        end, output = await _walked(walk, context), None
        if end.error is None:
            try:
                output = RunOutput(context, built, None, None).get()
            except MinionsError as problem:
                info = evolve(problem.info(), message=f"The recipe's output: {problem}")
                end = WalkEnd(status=RunStatus.FAILED, error=info)
        manager.set_workflow_complete()
        await walk.record_what_never_started(end)
        return NestedResult(
            output=output,
            error=_failure(recipe, context, end),
            is_partial=end.status is RunStatus.PARTIAL,
            words_of=context.words.in_output() if context.words is not None else (),
        )

    def _context(
        self,
        recipe: AgentRecipe,
        checked: Mapping[str, JsonValue],
        outer: AgentContext,
        path: str,
        key: str,
        made_of: MadeOf | None,
        retry: RetryConfig | None,
    ) -> tuple[AgentContext, StepManager, BuiltRecipe]:
        scope = outer.scope.within(
            recipe,
            keys=scope_of(key),
            path=f"{path}/",
            retry=retry,
            inputs=checked,
            made_of=made_of,
        )
        if recipe.redact:
            scope = self._wiring.redacting(scope, recipe)
        opened = self._wiring.opened(recipe, checked, scope)
        chain = self._wiring.next_step_chain
        manager = StepManager(opened.built.graph, next_step_chain=chain)
        inner = outer.nested(
            opened.agent(recipe),
            manager,
            ConversationMemory(),
            tools=opened.tools,
            inputs=checked,
            scope=scope,
        )
        inner.words = _words_within(outer, inner, opened.built, path)
        return inner, manager, opened.built


def _words_within(
    outer: AgentContext, inner: AgentContext, built: BuiltRecipe, path: str
) -> StrangersWords | None:
    """Those of a recipe that is the work of the step at `path`, or of a call that it makes."""
    if outer.words is None and built.word_paths is None:
        return None
    from minions.engine.context.strangers_words import NO_PATHS, StrangersWords, may_bring_words

    step_id, recipe = _own_id(outer, path), inner.recipe
    given: Mapping[str, WordsOf] | None = None
    everywhere: WordsOf = ()
    rule, private = UntrustedRule.ALLOW, None
    if outer.words is not None:
        given = outer.words.given_to(step_id, recipe.inputs)
        everywhere, private = outer.words.deciding(step_id), outer.words.private
        if given is None:
            everywhere, offered = outer.words.making(step_id)
            brings = any(
                may_bring_words(each.spec) for each in map(outer.tools.find, offered) if each
            )
            if everywhere or brings:  # what a plan reads in its workspace, it may write there
                rule = outer.scope.rights.untrusted
    if built.word_paths is None and not everywhere:
        return None
    return StrangersWords(
        recipe.steps or built.graph.steps,
        built.word_paths if built.word_paths is not None else NO_PATHS,
        inner.run_values.gives,
        path=inner.scope.path,
        given=given,
        everywhere=everywhere,
        private=private,
        rule=rule if outer.words is None else stricter(rule, outer.words.rule),
    )


def _own_id(context: AgentContext, path: str) -> str:
    """The id of the step at that address, as the recipe of the context knows it."""
    return path.removeprefix(context.scope.path).partition("[")[0]


async def _walked(walk: RecipeWalk, context: AgentContext) -> WalkEnd:
    """Within the recipe's own time, if it has one."""
    timeout_s = context.limits.timeout_s
    try:
        async with TimeLimit(asyncio.timeout(timeout_s)) as deadline:
            await walk.walk()
    except TimeoutError:
        if not deadline.expired():
            raise
        message = f"It did not end within {timeout_s:g} s (its limit timeout_s)."
        info = FailureInfo(code="recipe-limit-reached", message=message)
        return WalkEnd(status=RunStatus.FAILED, error=info)
    return walk.end()


def _failure(recipe: AgentRecipe, context: AgentContext, end: WalkEnd) -> FailureInfo | None:
    """What went wrong, as the failure of the step that the recipe is."""
    error = end.error
    if error is None:
        return None
    if error.code == NEEDS_DECISION:
        return error
    if end.status is RunStatus.LIMIT_REACHED:
        if not context.progress.budget.is_own:
            return error  # the run's own limit: the step is cut off, not failed
        return evolve(error, code="recipe-limit-reached", where=None)
    where = error.where
    if where is not None and "/" not in where:  # else from further within, and whole already
        where = context.scope.path_of(where)
    return evolve(error, message=f"In the recipe '{recipe.id}': {error.message}", where=where)

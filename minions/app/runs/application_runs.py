"""The part that new and recorded runs of one application share: runtime, recipes, executors."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterable
from datetime import datetime
from pathlib import Path
from typing import Final, TypeAlias, TypedDict, TypeVar

from minions.app.runs.waiting_hooks import tell_hook
from minions.app.wiring.configured_models import ModelChoice
from minions.app.wiring.configured_runtime import Runtime
from minions.app.wiring.patient_runtime import open_patient_calls
from minions.contracts.calls import ChatModel
from minions.contracts.executions import AgentResult, RunStatus
from minions.contracts.flow import Priority
from minions.contracts.patience import Patience, PatientCalls
from minions.contracts.tools import Tool
from minions.contracts.waiting import OnWaiting
from minions.data.errors import JournalError, LeaseHeldError, UsageError
from minions.engine.compile.extensions import Extensions
from minions.engine.history.event_stream import Listener
from minions.engine.run.agent_executor import AgentExecutor
from minions.engine.run.agent_run import AgentRun
from minions.engine.services.run_services import Services
from minions.engine.views.run_waits import new_wait
from minions.recipe.model import AgentRecipe

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., object])

RecipeLike: TypeAlias = AgentRecipe | str | Path
"""A recipe, its path, its id under ./recipes, or its YAML text."""


class RunOptions(TypedDict, total=False):
    """What a new run may be given besides its recipe, inputs and class of output."""

    model: ChatModel | str | None
    """Answers instead of the models that the recipe names; a name is `provider/model`."""
    user: str | None
    """The label of the user for whom it runs, whose daily budget it spends from."""


class SingleRunOptions(RunOptions, total=False):
    """What a run without an application object may be given."""

    tools: Iterable[Tool]
    """Tools of the caller, beside the recipe's toolsets."""
    extensions: Extensions | None
    """Named tools, models, recipes and steps that the recipe may use."""
    services: Services | None
    """Clock, journal and others."""


class SessionRunOptions(RunOptions, total=False):
    """What a run of an application may be given."""

    session: str | None
    """The id of the session whose conversation it continues."""


def shows_options(options: type) -> Callable[[F], F]:
    """Let `help`, editors and `inspect` show each of the options that a function hands on.

    Args:
        options: The `TypedDict` of its keyword arguments. None is the default of each that the
            function does not name itself.
    """

    def show(function: F) -> F:
        signature = inspect.signature(function)
        known = {
            name: each
            for name, each in signature.parameters.items()
            if each.kind is not each.VAR_KEYWORD
        }
        written = options.__annotations__
        own = [each for name, each in known.items() if name not in written]
        handed_on = [
            known.get(name)
            or inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=None,
                annotation=getattr(hint, "__forward_arg__", hint),
            )
            for name, hint in written.items()
        ]
        shown = signature.replace(parameters=[*own, *handed_on])
        function.__signature__ = shown  # type: ignore[attr-defined]  # every function takes one
        return function

    return show


_TELLING_S: Final = 10.0
"""Seconds that `aclose` waits for hooks that still tell somebody of a waiting run."""
_MOST_OF_CODE: Final = 64
"""How many recipes of Step objects are kept for runs that are resumed."""
_MOST_MODELS: Final = 8
"""For how many model objects executors are kept; further ones are made for each run."""


class ApplicationRuns:
    """The runs of one application, with their shared runtime and executors."""

    def __init__(
        self,
        runtime: Runtime,
        model: ChatModel | str | None,
        listeners: Iterable[Listener],
        on_waiting: OnWaiting | None = None,
    ) -> None:
        """Nothing is opened yet.

        Args:
            model: Answers instead of the models that recipes name; None: each recipe's own.
            listeners: Called with every event of every run.
            on_waiting: Called with each run that begins to wait for a person.
        """
        self._on_waiting = on_waiting
        self._runtime = runtime
        self._recipes = runtime.recipes
        self._clock = runtime.services.clock
        self._log = runtime.services.log
        self._model = model
        self._listeners = list(listeners)
        self._executors: dict[int, AgentExecutor] = {}
        self._of_code: dict[str, AgentRecipe] = {}
        """Recipes of Step objects by id: a journal cannot store them, and a resume needs them."""
        self._active: set[str] = set()
        self._telling: set[asyncio.Task[None]] = set()
        self._is_closed = False
        self._patient_calls: PatientCalls | None = None

    @property
    def services(self) -> Services:
        """The services of its runs: journal, clock, decider and others."""
        return self._runtime.services

    @property
    def extensions(self) -> Extensions:
        """Everything that its recipes may name."""
        return self._runtime.extensions

    def load(self, recipe: RecipeLike) -> AgentRecipe:
        """The checked recipe of that path, id or YAML text.

        A file is read once, and again when it or a recipe that it runs has changed.

        Raises:
            RecipeError: Has every fault that was found.
            NotFoundError: There is no such file and no such id.
            UsageError: It cannot be read.
        """
        return recipe if isinstance(recipe, AgentRecipe) else self._recipes.get(recipe)

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Call `listener` with every event of the runs that begin from now on; it must return at
        once.

        Returns:
            A function that removes the listener, for runs that begin later.
        """
        self._listeners.append(listener)

        def end() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)

        return end

    async def execute(self, run: AgentRun[T]) -> AgentResult[T]:
        """Execute a run that was prepared here.

        Raises:
            LeaseHeldError, JournalError: The journal refused before anything was done.
        """
        self._refuse_active(run.run_id)
        for listener in self._listeners:
            run.listen(listener)
        self._active.add(run.run_id)
        try:
            result = await run.execute()
        finally:
            self._active.discard(run.run_id)
        if result.status is RunStatus.NEEDS_DECISION:
            await self._tell_waiting(run.run_id)
        return result

    async def _tell_waiting(self, run_id: str) -> None:
        if self._on_waiting is None:
            return
        try:
            wait = await new_wait(self.services.journal, run_id)
        except JournalError as error:
            self._log.warning("waiting_run_not_told", run_id=run_id, reason=error.message)
            return
        if wait is not None:
            task = asyncio.ensure_future(tell_hook(self._on_waiting, wait, self._log))
            self._telling.add(task)
            task.add_done_callback(self._telling.discard)
            await asyncio.sleep(0)  # a function that is not async is called before the run returns

    async def aclose(self) -> None:
        """Close what was opened here: connections, and a journal that was given by its place."""
        self._is_closed = True
        if self._telling:
            await asyncio.wait(self._telling, timeout=_TELLING_S)
        if self._patient_calls is not None:
            await self._patient_calls.aclose()
        await self._runtime.aclose()
        self._executors.clear()

    # --- for both kinds of runs -------------------------------------------------------------------

    def _refuse_active(self, run_id: str) -> None:
        # The journal lets one worker acquire its own run again; two tasks here are one worker.
        if run_id in self._active:
            raise LeaseHeldError(
                f"Run '{run_id}' is being executed by this application.",
                worker_id=self.services.worker_id,
                run_id=run_id,
            )

    def _remember(self, recipe: AgentRecipe) -> None:
        """Keep a recipe of Step objects for a resume; of too many the oldest is dropped."""
        self._of_code.pop(recipe.id, None)
        if len(self._of_code) >= _MOST_OF_CODE:
            del self._of_code[next(iter(self._of_code))]
        self._of_code[recipe.id] = recipe

    def _executor(self, recipe: AgentRecipe, model: ChatModel | str | None) -> AgentExecutor:
        if self._is_closed:
            raise UsageError("This Minions object is closed.", code="closed")
        if isinstance(model, ChatModel):
            return self._executor_of(recipe, model)
        return self._runtime.executor(recipe, ModelChoice(override=model))

    def _background_executor(
        self, recipe: AgentRecipe, model: ChatModel | str | None, by: datetime | None = None
    ) -> AgentExecutor:
        """As `_executor`, for runs that let others go first where they wait for a server.

        Args:
            by: Until when their model calls may wait for batches; None: they do not.
        """
        self._executor(recipe, model)
        runtime = self._runtime.evolve(priority=Priority.BACKGROUND)
        if by is not None:
            if self._patient_calls is None:
                self._patient_calls = open_patient_calls(self._runtime)
            runtime = runtime.evolve(patience=Patience(calls=self._patient_calls, by=by))
        if isinstance(model, ChatModel):
            return runtime.evolve(models=model).executor(recipe)
        return runtime.executor(recipe, ModelChoice(override=model))

    def _executor_of(self, recipe: AgentRecipe, model: ChatModel) -> AgentExecutor:
        """The executor that uses that model for all steps; one is kept for each model."""
        executor = self._executors.get(id(model))
        if executor is None:
            if len(self._executors) >= _MOST_MODELS:
                del self._executors[next(iter(self._executors))]
            executor = self._runtime.evolve(models=model).executor(recipe)
            self._executors[id(model)] = executor
        return executor

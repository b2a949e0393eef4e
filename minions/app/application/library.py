"""The functions `run`, `arun`, `astream` and `load`, for use without an application object."""

from __future__ import annotations

from collections.abc import Coroutine, Iterable
from typing import Never, TypeVar, Unpack, overload

from minions.app.application.application import Approve, Minions
from minions.app.application.synchronous_run import shared_application, wait_for
from minions.app.runs.application_runs import (
    RecipeLike,
    RunOptions,
    SingleRunOptions,
    shows_options,
)
from minions.app.runs.run_stream import RunStream
from minions.contracts.calls import ChatModel
from minions.contracts.executions import AgentResult, OutputT
from minions.contracts.secrets import GivenInputs
from minions.contracts.tools import Tool
from minions.data.json_values import JsonValue
from minions.engine.compile.extensions import Extensions
from minions.engine.run.agent_run import AgentRun
from minions.engine.services.run_services import Services
from minions.recipe.model import AgentRecipe

T = TypeVar("T")


def load(recipe: RecipeLike, *, extensions: Extensions | None = None) -> AgentRecipe:
    """The checked recipe of that path, id under ./recipes, or YAML text.

    Args:
        extensions: Named tools, models, recipes and steps that it may use.
    Raises:
        RecipeError: Has every fault that was found.
        NotFoundError: There is no such file and no such id.
        UsageError: It cannot be read.
    """
    return Minions(extensions=extensions).load(recipe)


@overload
def run(work: Coroutine[object, Never, T]) -> T: ...


@overload
def run(
    work: RecipeLike,
    inputs: GivenInputs | None = None,
    *,
    output_class: type[T],
    **options: Unpack[SingleRunOptions],
) -> AgentResult[T]: ...


@overload
def run(
    work: RecipeLike,
    inputs: GivenInputs | None = None,
    *,
    output_class: None = None,
    **options: Unpack[SingleRunOptions],
) -> AgentResult[JsonValue]: ...


def run(
    work: RecipeLike | Coroutine[object, Never, object],
    inputs: GivenInputs | None = None,
    *,
    output_class: type[object] | None = None,
    model: ChatModel | str | None = None,
    user: str | None = None,
    tools: Iterable[Tool] = (),
    extensions: Extensions | None = None,
    services: Services | None = None,
) -> object:
    """Run a recipe, or any coroutine of this library, and wait for it.

    The main thread keeps an event loop, connections and compiled recipes from call to call. Inside
    a running event loop (a notebook, an async program) the work is done on a thread of its own,
    with its own loop and a copy of the context variables, and the caller's loop is blocked; `await
    arun(...)` does not block it. Ctrl-C cancels the run, which is recorded.

    Args:
        work: A recipe, its path, its id under ./recipes, its YAML text, or a coroutine such as
            `StepExecutor(…).execute()`.
        inputs: Values by name; for a secret its `SecretRef`, or that as text (`env:NAME`).
        output_class: The class of the result's `output`; None: plain JSON.
        model: Answers instead of the models that the recipe names; a name is `provider/model`.
            None: the recipe's own, or the one that a key in the environment stands for.
        user: The label of the user for whom it runs; None: it is for no particular one.
        tools: Your own tools, beside the recipe's toolsets.
        extensions: Named tools, models, recipes and steps that the recipe may use.
        services: Clock, journal and others; None: real ones, with a journal in memory. The store of
            `saveState` is in the journal's database.
    Raises:
        UsageError: Recipe, inputs or limits are wrong.
        EnvironmentRefusedError: No model is configured, or its key or a secret is missing.
    """
    if isinstance(work, Coroutine):
        return wait_for(work)
    options: RunOptions = {"model": model, "user": user}
    tools = tuple(tools)
    application = None if tools or extensions or services else shared_application()
    if application is not None:
        return wait_for(application.arun(work, inputs, output_class=output_class, **options))
    once = arun(
        work,
        inputs,
        output_class=output_class,
        tools=tools,
        extensions=extensions,
        services=services,
        **options,
    )
    return wait_for(once)


@shows_options(SingleRunOptions)
async def arun(
    recipe: RecipeLike,
    inputs: GivenInputs | None = None,
    *,
    output_class: type[OutputT] | None = None,
    tools: Iterable[Tool] = (),
    extensions: Extensions | None = None,
    services: Services | None = None,
    **options: Unpack[RunOptions],
) -> AgentResult[OutputT]:
    """Run a recipe once, and close its connections. For several runs keep a `Minions` object.

    It takes what `run` takes, and raises what that raises.
    """
    async with _for_one_run(tools, extensions, services) as application:
        return await application.arun(recipe, inputs, output_class=output_class, **options)


@shows_options(SingleRunOptions)
def astream(
    recipe: RecipeLike,
    inputs: GivenInputs | None = None,
    *,
    output_class: type[OutputT] | None = None,
    tools: Iterable[Tool] = (),
    extensions: Extensions | None = None,
    services: Services | None = None,
    **options: Unpack[RunOptions],
) -> RunStream[OutputT]:
    """Run a recipe once, and yield its events; `stream.result` is its result at the end.

    It takes what `run` takes, and raises what that raises, before the first event is asked for.
    """
    application = _for_one_run(tools, extensions, services)
    run = application.prepare(recipe, inputs, output_class=output_class, **options)

    async def begin() -> AgentRun[OutputT]:
        return run

    async def execute(prepared: AgentRun[OutputT]) -> AgentResult[OutputT]:
        async with application:
            return await application.execute(prepared)

    return RunStream(begin, execute)


def _for_one_run(
    tools: Iterable[Tool], extensions: Extensions | None, services: Services | None
) -> Minions:
    """An application for a single run: no decision can be made later, so approvals are denied."""
    approve: Approve | None = "deny" if services is None else None
    return Minions(tools=tools, extensions=extensions, services=services, approve=approve)

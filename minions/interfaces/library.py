"""`minions.run`: the one synchronous door of the library."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar, overload

from attrs import evolve

from minions.adapters.stores.state_store import MemoryState, StateStore
from minions.contracts.calls import ChatModel
from minions.contracts.errors import UsageError
from minions.contracts.executions import AgentResult
from minions.contracts.json_values import JsonValue
from minions.contracts.secrets import InputValue
from minions.contracts.tools import Tool
from minions.engine.compile.extensions import Extensions, ModelSource
from minions.engine.run.agent_executor import AgentExecutor
from minions.engine.services.memory_journal import MemoryJournal
from minions.engine.services.services import Services
from minions.interfaces.settings import Settings
from minions.interfaces.wiring import (
    Models,
    built_in_extensions,
    catalog_of,
    environment,
    extended,
    make_prices,
)
from minions.recipe.library import find_recipe
from minions.recipe.model import AgentRecipe
from minions.recipe.reading.load import load_recipe

__all__ = ["run"]

T = TypeVar("T")


@overload
def run(work: Coroutine[Any, Any, T]) -> T: ...  # Any: what a coroutine yields is asyncio's


@overload
def run(
    work: AgentRecipe | str | Path,
    inputs: Mapping[str, InputValue] | None = None,
    *,
    output_class: type[T],
    model: ChatModel | str | None = None,
    tools: Iterable[Tool] = (),
    extensions: Extensions | None = None,
    services: Services | None = None,
) -> AgentResult[T]: ...


@overload
def run(
    work: AgentRecipe | str | Path,
    inputs: Mapping[str, InputValue] | None = None,
    *,
    model: ChatModel | str | None = None,
    tools: Iterable[Tool] = (),
    extensions: Extensions | None = None,
    services: Services | None = None,
) -> AgentResult[JsonValue]: ...


def run(
    work: AgentRecipe | str | Path | Coroutine[Any, Any, Any],  # Any: see the overloads
    inputs: Mapping[str, InputValue] | None = None,
    *,
    output_class: type[Any] | None = None,  # Any: see the overloads
    model: ChatModel | str | None = None,
    tools: Iterable[Tool] = (),
    extensions: Extensions | None = None,
    services: Services | None = None,
) -> Any:  # Any: see the overloads
    """Run a recipe, or any coroutine of this library, and wait for it.

    Args:
        work: A recipe, its path, its id under ./recipes, or a coroutine such as
            `StepExecutor(…).execute()`.
        inputs: By name; of a secret its `SecretRef`, or that as text (`env:NAME`).
        output_class: What the result's `output` shall be.
        model: Answers whatever the recipe names; a name is `provider/model`. None: the recipe's
            own, or the one that a key in the environment stands for.
        tools: Your own, beside the recipe's toolsets.
        services: Clock, journal and the like; None: real, with the journal in memory. What
            `saveState` keeps is where the journal is.
    Raises:
        UsageError: Recipe, inputs or limits are wrong, or an event loop is running already.
        EnvironmentRefusedError: No model is configured, or its key or a secret is missing.
    """
    if isinstance(work, Coroutine):
        return _wait_for(work)
    return _wait_for(
        _run_recipe(
            work,
            inputs or {},
            output_class=output_class,
            model=model,
            extensions=extensions,
            tools=tools,
            services=services,
        )
    )


def _wait_for(work: Coroutine[Any, Any, T]) -> T:  # Any: as above
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    work.close()
    raise UsageError(
        "minions.run was called inside a running event loop. Await there instead: "
        "`await AgentExecutor(model).execute(recipe, inputs)`.",
        code="loop-is-running",
    )


def _state(services: Services | None) -> StateStore:
    """Beside the journal."""
    if services is None or isinstance(services.journal, MemoryJournal):
        return MemoryState()
    from minions.adapters.stores.postgres_journal import PostgresJournal
    from minions.adapters.stores.postgres_state import PostgresState
    from minions.adapters.stores.sqlite_journal import SqliteJournal
    from minions.adapters.stores.sqlite_state import SqliteState

    journal = services.journal
    if isinstance(journal, PostgresJournal):
        return PostgresState(journal.url)
    return SqliteState(journal.path) if isinstance(journal, SqliteJournal) else MemoryState()


def _with_tools(
    extensions: Extensions | None, tools: Iterable[Tool], state: StateStore
) -> Extensions:
    own = extensions or Extensions()
    own = evolve(own, tools=own.tools.plus(tools))
    return extended(built_in_extensions(state), own)


async def _run_recipe(
    work: AgentRecipe | str | Path,
    inputs: Mapping[str, InputValue],
    *,
    output_class: type[Any] | None,  # Any: as above
    model: ChatModel | str | None,
    extensions: Extensions | None,
    tools: Iterable[Tool],
    services: Services | None,
) -> Any:  # Any: as above
    state = _state(services)
    extensions = _with_tools(extensions, tools, state)
    recipe = work
    if not isinstance(recipe, AgentRecipe):
        path = find_recipe(str(recipe), [Path("recipes")])
        recipe = load_recipe(path, catalog_of(extensions))
    models = Models(
        Settings(),
        extensions,
        environ=environment(),
        override=model if isinstance(model, str) else None,
    )
    source: ModelSource | ChatModel = models.source(recipe, lambda _: Path.cwd())
    if isinstance(model, ChatModel):
        source = model
    if services is None:
        from minions.adapters.models.structured_output import InstructorParser

        services = Services(parser=InstructorParser(), prices=make_prices(Settings()))
    executor = AgentExecutor(source, extensions=extensions, services=services)
    try:
        if output_class is None:
            return await executor.execute(recipe, inputs)
        return await executor.execute(recipe, inputs, output_class=output_class)
    finally:
        await models.aclose()
        await state.aclose()

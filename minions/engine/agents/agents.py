"""What can be an agent, and how it is called."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Protocol, TypeAlias, runtime_checkable

from attrs import frozen

from minions.data.codec import encode
from minions.data.errors import UsageError
from minions.data.json_values import JsonValue
from minions.data.schema import JsonSchema
from minions.engine.context.agent_context import Agent
from minions.engine.context.agent_memory import AgentMemory
from minions.engine.services.run_services import Services
from minions.engine.sessions.recipe_agent import ExecutorHost, RecipeAgent, RecipeHost
from minions.engine.sessions.runner import ChatAgent
from minions.recipe.model import AgentRecipe


@runtime_checkable
class StepAgent(Protocol):
    """An object that answers requests; `run_step` may take fewer arguments, and may block."""

    @property
    def run_step(self) -> Callable[..., object]:
        """Called as `run_step(request, memory, metadata=metadata)`, with as many of these as it
        takes; its parameters may also be called `memory`, `metadata` or `context`.
        """


class Sandbox(Protocol):
    """Executes code that is not trusted."""

    async def execute(self, code: str, timeout: float) -> object:  # noqa: ASYNC109  # as the contract has it
        """Execute the code within so many seconds, and return its result."""


AgentLike: TypeAlias = StepAgent | AgentRecipe | Agent | Callable[..., object] | str | Path
"""An agent: a recipe, its path or id, an object with `run_step`, or a function."""

CallBlocking: TypeAlias = Callable[[Callable[[], object]], Awaitable[object]]
"""Calls a function that blocks beside the event loop."""


@frozen
class FunctionAgent:
    """A function, async or not, as an agent."""

    function: Callable[..., object]

    @property
    def run_step(self) -> Callable[..., object]:
        """The function itself."""
        return self.function


def as_agent(agent: object, host: RecipeHost | None, services: Services) -> StepAgent:
    """The agent as an object with `run_step`.

    Args:
        host: Runs recipes; None: there is none, and only other agents can be registered.
    Raises:
        UsageError: It is no agent, or a recipe without a host.
    """
    if isinstance(agent, ChatAgent):
        return RecipeAgent(recipe=agent.recipe(), host=ExecutorHost(agent.executor(services)))
    if isinstance(agent, Agent):
        agent = agent.recipe
    if isinstance(agent, AgentRecipe | str | Path):
        if host is None:
            raise UsageError(
                "To run recipes, an AgentRegistry needs what runs them: AgentRegistry(Minions(…)), "
                "or AgentRegistry(AgentExecutor(model)).",
                code="no-recipe-host",
            )
        return RecipeAgent(recipe=agent, host=host)
    if isinstance(agent, StepAgent) and not isinstance(agent, type):
        return agent
    if callable(agent) and not isinstance(agent, type):
        return FunctionAgent(agent)
    raise UsageError(
        f"{agent!r} is no agent: it has no method `run_step(request, memory)`, and is neither a "
        "recipe nor a function.",
        code="bad-agent",
    )


async def call_agent(
    agent: StepAgent,
    request: object,
    memory: AgentMemory,
    metadata: Mapping[str, object],
    blocking: CallBlocking,
) -> object:
    """What the agent returns for the request.

    Args:
        blocking: Calls an agent that is not async, so that it does not stop the event loop.
    """
    function = agent.run_step
    positional, named = _arguments(function, memory, metadata)
    call = functools.partial(function, request, *positional, **named)
    result = call() if _is_async(function) else await blocking(call)
    return await result if inspect.isawaitable(result) else result


def _arguments(
    function: Callable[..., object], memory: AgentMemory, metadata: Mapping[str, object]
) -> tuple[list[object], dict[str, object]]:
    """The positional and the named arguments behind the request.

    Parameters are known by their names; required ones of other names get the memory, then the
    metadata.
    """
    parameters = _parameters(function)[1:]
    values: dict[str, object] = {"memory": memory, "metadata": metadata, "context": metadata}
    names = {each.name for each in parameters}
    rest: dict[str, object] = {} if "memory" in names else {"memory": memory}
    rest |= {} if names & {"metadata", "context"} else {"metadata": metadata}
    positional: list[object] = []
    named: dict[str, object] = {}
    for each in parameters:
        if each.kind is each.VAR_KEYWORD:
            named |= rest
        elif each.name in values or (each.default is each.empty and rest):
            value = values[each.name] if each.name in values else rest.pop(next(iter(rest)))
            if each.kind is each.POSITIONAL_ONLY:
                positional.append(value)
            elif each.kind is not each.VAR_POSITIONAL:
                named[each.name] = value
    return positional, named


def _parameters(function: Callable[..., object]) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # a function of an extension module tells nothing
        return []


def _is_async(function: object) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004  # the method is wanted, not whether it is
    )


def fingerprint_of(agent: object) -> JsonValue:
    """What the answers of the agent depend on, as its `fingerprint()` tells; None: it is not known,
    and answers hold for this object alone.
    """
    tell = getattr(agent, "fingerprint", None)
    return encode(tell()) if callable(tell) else None


def schema_of_agent(agent: object) -> JsonSchema | None:
    """The JSON Schema of requests that the agent declares as `request_schema`; None: none."""
    schema = getattr(agent, "request_schema", None)
    return schema if isinstance(schema, Mapping) else None

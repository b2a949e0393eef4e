"""The toolset `agents`: a model lists the agents of the process, and gives one of them work.

What an agent is and how it runs is not known here: the run offers that to the tool
(`ToolScope.agents`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Final

from attrs import evolve, frozen

from minions.contracts.tools import (
    AgentCalls,
    AgentInfo,
    Effect,
    Reads,
    Tool,
    ToolScope,
    Toolset,
    ToolSpec,
)
from minions.data.errors import ToolError, near_hint, near_names
from minions.data.json_values import JsonValue, as_text

_OPTIONS: Final[Mapping[str, JsonValue]] = {
    "type": "object",
    "properties": {
        "only": {
            "type": "array",
            "items": {"type": "string"},
            "description": "Names of the agents that may be run; else all.",
        }
    },
    "additionalProperties": False,
}
_LIST: Final = ToolSpec(
    name="list_agents",
    description="The agents that can be given work by name, each with what it does and takes.",
    parameters={"type": "object", "properties": {}, "additionalProperties": False},
    returns={
        "type": "object",
        "properties": {
            "agents": {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {
                        "name": {"type": "string"},
                        "description": {"type": "string"},
                        "inputs": {"type": "object"},
                    },
                    "required": ["name", "description", "inputs"],
                    "additionalProperties": False,
                },
            }
        },
        "required": ["agents"],
        "additionalProperties": False,
    },
    effect=Effect.PURE,
    reads=Reads.TRUSTED,
)
_RUN: Final = ToolSpec(
    name="run_agent",
    description="Give an agent a task in words, wait for it, and read its result.",
    parameters={
        "type": "object",
        "properties": {
            "name": {"type": "string", "description": "As list_agents gives it."},
            "requirements": {
                "type": "string",
                "description": "The whole task: the agent knows nothing of this conversation.",
            },
        },
        "required": ["name", "requirements"],
        "additionalProperties": False,
    },
    # What an agent writes is written by tools of its own, which its rights are about.
    effect=Effect.UNDECLARED,
    is_resumable=True,
    reads=Reads.UNTRUSTED,
    success_key=False,  # what the agent gives is its output, whatever it says
)


def built_in_agents(_now: Callable[[], datetime]) -> Toolset:
    """The toolset; it accesses nothing."""
    return Toolset(
        name="agents",
        description="List the agents of this process, and run one by name with a text.",
        options=_OPTIONS,
        specs=(_LIST, _RUN),
        open=_open,
    )


def _open(options: Mapping[str, JsonValue], prefix: str) -> Sequence[Tool]:
    only = options.get("only")
    allowed = tuple(map(str, only)) if isinstance(only, list | tuple) else None
    return [
        kind(evolve(spec, name=f"{prefix}__{spec.name}"), allowed)
        for kind, spec in ((_ListAgents, _LIST), (_RunAgent, _RUN))
    ]


@frozen
class _AgentTool(Tool):
    """What both tools share."""

    _spec: ToolSpec
    allowed: tuple[str, ...] | None
    """The names that the recipe allows; None: all."""

    @property
    def spec(self) -> ToolSpec:
        return self._spec

    def _is_allowed(self, name: str) -> bool:
        return self.allowed is None or name in self.allowed


@frozen
class _ListAgents(_AgentTool):
    """Lists the agents."""

    async def invoke(self, arguments: Mapping[str, JsonValue], scope: ToolScope) -> object:
        """Returns `{agents: [{name, description, inputs}]}`."""
        known = _agents(scope).agents()
        return {"agents": [_describe_agent(each) for each in known if self._is_allowed(each.name)]}


@frozen
class _RunAgent(_AgentTool):
    """Runs one agent."""

    async def invoke(self, arguments: Mapping[str, JsonValue], scope: ToolScope) -> object:
        """The output of the agent.

        Raises:
            ToolError: As of `AgentCalls.run_agent`; or the recipe does not allow the agent.
        """
        name = as_text(arguments["name"])
        if not self._is_allowed(name):
            allowed = self.allowed or ()
            near = near_names(name, allowed)
            raise ToolError(
                f"There is no agent '{name:.100}' here.{near_hint(near)} Agents are: "
                f"{', '.join(allowed) or 'none'}.",
                code="agent-not-found",
                suggestions=near,
            )
        return await _agents(scope).run_agent(name, as_text(arguments["requirements"]))


def _agents(scope: ToolScope) -> AgentCalls:
    if scope.agents is None:
        raise ToolError("No agents can be run here: there is no run.", code="no-executor")
    return scope.agents


def _describe_agent(agent: AgentInfo) -> JsonValue:
    return {"name": agent.name, "description": agent.description, "inputs": dict(agent.inputs)}

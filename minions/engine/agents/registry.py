"""The registry of agents: recipes, objects and functions by name."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from attrs import field, frozen

from minions.contracts.agent_errors import AgentNotFoundError
from minions.contracts.steps import PythonStep, StepScope
from minions.data.errors import UsageError, near_hint, near_names
from minions.data.schema import JsonSchema
from minions.engine.agents.agents import AgentLike, StepAgent, as_agent, call_agent, schema_of_agent
from minions.engine.compile.extensions import NamedAgents
from minions.engine.context.agent_memory import AgentMemory
from minions.engine.run.agent_executor import AgentExecutor
from minions.engine.services.run_services import Services
from minions.engine.sessions.recipe_agent import ExecutorHost, RecipeAgent, RecipeHost
from minions.recipe.model import AgentRecipe, InputSpec


@frozen(kw_only=True)
class RegisteredAgent:
    """An agent under its name."""

    name: str
    agent: StepAgent
    schema: JsonSchema | None = None
    """JSON Schema of its requests; None: it takes any."""
    revision: int = 0
    """Grows with each registration, so that answers of an earlier agent of the name are not taken
    for those of this one."""


class AgentRegistry:
    """Agents by name. Recipes are looked up and run by the application that it was given.

    It stores no recipes: a path or an id is found among those of the application. Only what was
    registered can be run by name.
    """

    def __init__(
        self,
        application: RecipeHost | AgentExecutor | None = None,
        agents: Mapping[str, AgentLike] | None = None,
        *,
        services: Services | None = None,
    ) -> None:
        """Configure.

        Args:
            application: Runs recipes: a `Minions` object or an `AgentExecutor`; None: only other
                agents can be registered.
            agents: Agents to begin with, by name.
            services: Clock, journal and others of the agents; None: those of the application.
        """
        host = ExecutorHost(application) if isinstance(application, AgentExecutor) else application
        self._host: RecipeHost | None = host
        self._services = services or (host.services if host is not None else Services())
        self._agents: dict[str, RegisteredAgent] = {}
        self._revisions = itertools.count(1)
        for name, agent in (agents or {}).items():
            self.register(name, agent)

    @classmethod
    def of(
        cls, agents: AgentRegistry | Mapping[str, AgentLike], services: Services | None
    ) -> AgentRegistry:
        """The registry itself, or one of a mapping of agents."""
        if isinstance(agents, AgentRegistry):
            return agents
        return cls(None, dict(agents), services=services)

    @property
    def services(self) -> Services:
        """The services that its agents share."""
        return self._services

    def register(
        self, name: str, agent: AgentLike | None = None, *, schema: JsonSchema | None = None
    ) -> None:
        """Register an agent; one of the same name is replaced.

        Args:
            agent: An object with `run_step`, a `ChatAgent`, a recipe, the path or id of one, or a
                function; None: the recipe whose id is `name`.
            schema: JSON Schema of its requests; None: the agent's `request_schema`, if it has one.
        Raises:
            UsageError: It is no agent, or a recipe while there is no application that runs it.
        """
        if not name:
            raise UsageError("The name of an agent must not be empty.", code="bad-agent")
        found = as_agent(name if agent is None else agent, self._host, self._services)
        self._agents[name] = RegisteredAgent(
            name=name,
            agent=found,
            schema=schema_of_agent(agent) if schema is None else schema,
            revision=next(self._revisions),
        )

    def get(self, name: str) -> StepAgent:
        """The agent of that name; `run_step` of it answers requests.

        Raises:
            AgentNotFoundError: There is none; `suggestions` has up to three similar names.
        """
        return self.find(name).agent

    def find(self, name: str) -> RegisteredAgent:
        """The agent of that name with what is known of it.

        Raises:
            AgentNotFoundError: There is none; `suggestions` has up to three similar names.
        """
        found = self._agents.get(name)
        if found is not None:
            return found
        near = self.similar(name)
        raise AgentNotFoundError(
            f"There is no agent '{name}'.{near_hint(near)} Agents are: "
            f"{', '.join(self._agents) or 'none'}.",
            suggestions=near,
        )

    def similar(self, name: str) -> tuple[str, ...]:
        """Up to three names of agents that look like `name`, best first."""
        return near_names(name, self._agents)

    def named(self) -> NamedAgents:
        """The agents for `Extensions(agents=…)`: the toolset `agents` runs them within a run.

        A recipe then has that run's journal, budget and rights; a function or an object is a step
        of it, and is called again if the process dies before it returned.
        """
        return RegisteredAgents(self.list, self.get)

    def list(self) -> tuple[str, ...]:
        """The names of all agents, in the order of their registration."""
        return tuple(self._agents)

    def __contains__(self, name: object) -> bool:
        return name in self._agents

    def __iter__(self) -> Iterator[str]:
        return iter(self.list())

    def __len__(self) -> int:
        return len(self._agents)


# --- the agents of a registry as recipes, so that a run can run them within itself ---------------


_REQUEST: Final = "requirements"


@frozen
class RegisteredAgents(NamedAgents):
    """The agents of a registry. A recipe is itself; another agent is a recipe of one step."""

    list: Callable[[], Sequence[str]]
    """The names, in the order of their registration."""
    get: Callable[[str], StepAgent]
    """The agent of a name; raises AgentNotFoundError."""

    def names(self) -> Sequence[str]:
        """The names that are registered now."""
        return self.list()

    def find(self, name: str) -> AgentRecipe:
        """The recipe of that name, loaded by the application of the registry, or made here."""
        agent = self.get(name)
        if isinstance(agent, RecipeAgent):
            return agent.host.load(agent.recipe)
        step = _AgentStep(name=name, agent=agent)
        inputs = {_REQUEST: InputSpec(schema={"type": "string"})}
        return AgentRecipe(id=name, description=_words_of(agent), inputs=inputs, steps=(step,))


@frozen(kw_only=True)
class _AgentStep(PythonStep[object]):
    """Gives the request to an agent that is no recipe."""

    name: str
    agent: StepAgent = field(eq=False)
    id: str = "answer"

    async def run(self, scope: StepScope) -> object:
        """What the agent returns; of a mapping with `content` that alone."""
        context = scope.context
        request = context.inputs[_REQUEST]
        blocking = context.blocking
        assert blocking is not None  # noqa: S101  # every run has one
        answer = await call_agent(self.agent, request, AgentMemory(), {}, blocking.run)
        return answer.get("content", answer) if isinstance(answer, dict) else answer


def _words_of(agent: StepAgent) -> str:
    """The first line of its documentation."""
    text = getattr(agent, "description", None) or getattr(agent.run_step, "__doc__", None) or ""
    return str(text).strip().partition("\n")[0]

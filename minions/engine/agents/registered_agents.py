"""The agents of a registry as recipes, so that a run can run them within itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from attrs import field, frozen

from minions.contracts.steps import PythonStep, StepScope
from minions.engine.agents.agents import StepAgent, call_agent
from minions.engine.compile.named_agents import NamedAgents
from minions.engine.context.agent_memory import AgentMemory
from minions.engine.sessions.recipe_agent import RecipeAgent
from minions.recipe.model import AgentRecipe, InputSpec

__all__ = ["RegisteredAgents"]

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

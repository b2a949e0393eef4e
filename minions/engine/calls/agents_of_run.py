"""Agents that a tool call runs: recipes within the run, with its journal, budget and rights."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from minions.contracts.agent_errors import AgentNotFoundError
from minions.contracts.executions import StepExecution
from minions.contracts.tools import AgentCalls, AgentInfo
from minions.data.codec import encode
from minions.data.errors import (
    LIMIT_REACHED,
    NEEDS_DECISION,
    FailureInfo,
    JournalError,
    MinionsError,
    StepFailedError,
    ToolError,
)
from minions.data.json_values import JsonValue, dumps
from minions.engine.compile.extensions import NamedAgents
from minions.engine.context.step_view import StepView
from minions.engine.services.event_loop import leading_error
from minions.recipe.inputs import no_text_input, text_input
from minions.recipe.model import AgentRecipe


class AgentsOfRun(AgentCalls):
    """The agents for one tool call, which knows what its agents did and what they wait for."""

    def __init__(self, view: StepView, key: str) -> None:
        """Nothing is looked up yet.

        Args:
            key: Of the tool call: the work of its agents is found again under it.
        """
        self._view = view
        self._context = view.context
        self._around = view.context.scope.recipes
        self._key = key
        self._count = 0
        self.executions: list[StepExecution[object]] = []
        """Executions of the agents' steps, in order of their end."""
        self.words_of: dict[str, None] | None = None
        """Whose words the agents have read, of those of strangers; None: none has run."""
        self._blocked_by: FailureInfo | None = None
        self._journal_error: JournalError | None = None

    def check(self) -> None:
        """Refuse to continue the step where that is not for a tool or a model to say.

        Raises:
            JournalError: A fact of an agent could not be stored: the run must stop.
            StepFailedError: An agent waits for a decision, or the run reached a limit.
        """
        if self._journal_error is not None:
            raise self._journal_error
        if self._blocked_by is not None:
            raise StepFailedError(self._blocked_by)

    def agents(self) -> Sequence[AgentInfo]:
        """All but the recipes that run around the call."""
        found = self._found()
        around = {recipe.id for recipe in self._around}
        recipes = ((name, _readable(found, name)) for name in sorted(found.names()))
        return [
            AgentInfo(name=name, description=recipe.description, inputs=_inputs(recipe))
            for name, recipe in recipes
            if recipe is not None and recipe.id not in around
        ]

    async def run_agent(self, name: str, requirements: str) -> JsonValue:
        """Run the agent's recipe to its end, under keys that are derived from the call's."""
        recipe = self._recipe(name)
        taken_by = text_input(recipe)
        if taken_by is None:
            raise ToolError(no_text_input(recipe), code="no-request-input")
        runner = self._context.recipe_runner
        assert runner is not None  # noqa: S101  # it found the recipe
        view, key = self._view, f"{self._view.key}#{self._place(name, requirements)}"
        # No secret goes along: a model that prints the name of one must not have it sent.
        secrets = view.secrets
        given = {taken_by: secrets.disarm(secrets.clean_text(requirements))}
        try:
            result = await runner.run(
                recipe,
                given,
                view.context,
                view.address,
                key,
                self.executions.extend,
                retry=view.retry,
            )
        except Exception as error:  # a group, where steps of the agent ran in parallel
            leading = leading_error(error)
            if isinstance(leading, JournalError):
                self._journal_error = leading
            if not isinstance(leading, MinionsError):
                raise
            raise ToolError(
                f"The agent '{name}' cannot run: {leading.message}", code=leading.error_code
            ) from error
        self.words_of = {**(self.words_of or {}), **dict.fromkeys(result.words_of)}
        if result.error is None:
            return encode(result.output)
        if result.error.code in (NEEDS_DECISION, LIMIT_REACHED):
            self._blocked_by = self._blocked_by or result.error
        raise ToolError(
            f"The agent '{name}' failed: {result.error.message}", code=result.error.code
        )

    def _place(self, name: str, requirements: str) -> str:
        """Unique in the step, and the same where the step is entered again and asks the same."""
        self._count += 1
        own = self._key.removeprefix(self._view.key)  # without a generation: see `scope_of`
        text = dumps([own, self._count, name, requirements]).encode("utf-8", "surrogatepass")
        return hashlib.blake2b(text, digest_size=6).hexdigest()

    def _found(self) -> NamedAgents:
        runner = self._context.recipe_runner
        if runner is None:
            raise ToolError(
                "Agents can be run only in a run of an AgentExecutor.", code="no-executor"
            )
        return runner.agents

    def _recipe(self, name: str) -> AgentRecipe:
        """The recipe of the agent.

        Raises:
            ToolError: There is none, it cannot be read, or it runs around this call already.
        """
        try:
            recipe = self._found().find(name)
        except AgentNotFoundError as error:
            raise ToolError(
                error.message, code=error.error_code, suggestions=error.suggestions
            ) from error
        except MinionsError as error:
            raise ToolError(
                f"The agent '{name}' cannot be read: {error.message}", code=error.error_code
            ) from error
        if any(each is recipe or each.id == recipe.id for each in self._around):
            names = " → ".join(each.id for each in (*self._around, recipe))
            raise ToolError(
                f"The agent '{name}' runs around this call already: {names}. Call another one, or "
                "do the work here.",
                code="recipe-cycle",
            )
        return recipe


def _readable(agents: NamedAgents, name: str) -> AgentRecipe | None:
    """The recipe of an agent; None: it has faults, or was removed meanwhile."""
    try:
        return agents.find(name)
    except MinionsError:
        return None


def _inputs(recipe: AgentRecipe) -> dict[str, JsonValue]:
    shown: dict[str, JsonValue] = {}
    for name, spec in recipe.inputs.items():
        schema: dict[str, JsonValue] = dict(spec.schema)
        if spec.description:
            schema["description"] = spec.description
        if spec.has_default:
            schema["default"] = None if spec.is_secret else spec.default
        shown[name] = schema
    return shown

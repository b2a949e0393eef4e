"""The part of `Minions` that captures recorded runs as recipes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from minions.app.runs.application_runs import ApplicationRuns

if TYPE_CHECKING:
    from minions.app.capturing.captures import Capture
    from minions.recipe.model import AgentRecipe


class ApplicationCaptures(ApplicationRuns):
    """Captures runs of this application's journal."""

    async def capture(
        self,
        *runs: str,
        recipe_id: str | None = None,
        answers: Mapping[str, str] | None = None,
        accepts: bool = False,
        on_surprise: str = "fail",
    ) -> Capture:
        """The recipe that does again what these runs did, with its proof; nothing is written.

        Args:
            runs: Ids of runs or sessions of the same kind of task, or unique starts of them.
            recipe_id: The id of the recipe; None: made of the agent's.
            answers: By place of `Capture.questions`, the chosen template.
            accepts: Whether the first choice counts where nobody chose.
            on_surprise: What becomes of a run in which something is as it was never seen: `agent`,
                `ask` or `fail`.
        Raises:
            NotFoundError, UsageError: There is no such run, it did not come to an end, was
                imported, or its recipe was made by code.
            RecipeError: What its recipe names is not registered any more.
        """
        from minions.app.capturing.captures import capture_runs
        from minions.capture.recipe_writing import Surprise

        return await capture_runs(
            runs,
            self._runtime,
            recipe_id=recipe_id,
            answers=answers,
            accepts=accepts,
            on_surprise=Surprise(on_surprise),
        )

    async def extend(
        self,
        recipe: AgentRecipe,
        *runs: str,
        answers: Mapping[str, str] | None = None,
        accepts: bool = False,
    ) -> Capture:
        """A captured recipe with the ways of further runs, proved on all; nothing is written.

        Args:
            runs: Runs of it in which something was a surprise, or runs of the agent.
            answers: As for `capture`.
            accepts: As for `capture`.
        Raises:
            UsageError: `not-captured`, or `other-task`; else as `capture`.
        """
        from minions.app.capturing.captures import extend_recipe

        return await extend_recipe(recipe, runs, self._runtime, answers=answers, accepts=accepts)

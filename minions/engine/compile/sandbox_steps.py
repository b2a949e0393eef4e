"""Steps of a recipe that are Python for a sandbox: there is none, so they are built and refused."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from attrs import frozen

from minions.contracts.errors import EnvironmentRefusedError
from minions.contracts.json_values import JsonValue
from minions.contracts.steps import PythonStep, StepScope
from minions.engine.compile.recipe_step import WrittenStep
from minions.recipe.expressions.template import Template, compile_template
from minions.recipe.kinds.code import CodeSpec
from minions.recipe.kinds.recipe import RecipeSpec
from minions.recipe.model import AgentRecipe

__all__ = ["CodeStep", "code_step", "refuse_code"]


@frozen(kw_only=True)
class CodeStep(WrittenStep, PythonStep[JsonValue]):
    """A `code:` step of a recipe: known for plans and pictures."""

    id: str
    spec: CodeSpec
    given: Mapping[str, Template]

    @property
    def templates(self) -> Sequence[Template]:
        """All that it renders."""
        return list(self.given.values())

    async def run(self, scope: StepScope) -> JsonValue:
        """Nothing: a run with such a step is refused before it begins.

        Raises:
            EnvironmentRefusedError: Always.
        """
        raise _refusal(self.spec)


def code_step(spec: CodeSpec) -> CodeStep:
    """The step of that spec."""
    given = {name: compile_template(value) for name, value in spec.given.items()}
    return CodeStep(id=spec.id, spec=spec, given=given)


def refuse_code(recipe: AgentRecipe, runs: Collection[str] | None = None) -> None:
    """Look for code, also in the recipes that are steps of this one.

    Args:
        runs: Ids of the steps that run; None: all of them.
    Raises:
        EnvironmentRefusedError: There is some (`no-sandbox`).
    """
    for step in recipe.steps:
        if runs is not None and step.id not in runs:
            continue
        if isinstance(step, CodeSpec):
            raise _refusal(step)
        if isinstance(step, RecipeSpec):
            refuse_code(step.recipe)


def _refusal(spec: CodeSpec) -> EnvironmentRefusedError:
    return EnvironmentRefusedError(
        f"Step '{spec.id}' is Python code, which runs only in a sandbox, and there is none "
        "here. Register a tool or a Step that does the same.",
        code="no-sandbox",
        where=str(spec.where),
    )

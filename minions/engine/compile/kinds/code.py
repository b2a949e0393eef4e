"""`code:` steps, Python for a sandbox: there is none, so they are built and refused."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from attrs import frozen

from minions.contracts.errors import (
    EnvironmentRefusedError,
)
from minions.contracts.json_values import JsonValue
from minions.contracts.steps import PythonStep, Step, StepScope
from minions.engine.compile.kinds.compiler import BuildParts, Planner, StepCompiler
from minions.engine.compile.planned_step import PlannedStep
from minions.engine.compile.recipe_step import (
    WrittenStep,
)
from minions.recipe.expressions.template import (
    Template,
    compile_template,
)
from minions.recipe.kinds.code import CodeSpec
from minions.recipe.model import AgentRecipe, StepSpec
from minions.recipe.steps_within import steps_within

__all__ = ["COMPILER", "CodeStep", "refuse_code"]


@frozen(kw_only=True)
class CodeStep(WrittenStep[JsonValue], PythonStep[JsonValue]):
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


def refuse_code(recipe: AgentRecipe, runs: Collection[str] | None = None) -> None:
    """Look for code, also in the recipes that are steps of this one.

    Args:
        runs: Ids of the steps that run; None: all of them.
    Raises:
        EnvironmentRefusedError: There is some (`no-sandbox`).
    """
    for path, _, step in steps_within(recipe):
        is_left_out = runs is not None and path.partition("/")[0] not in runs
        if not is_left_out and isinstance(step, StepSpec) and step.needs_sandbox:
            raise _refusal(step)


def _refusal(spec: StepSpec) -> EnvironmentRefusedError:
    return EnvironmentRefusedError(
        f"Step '{spec.id}' is Python code, which runs only in a sandbox, and there is none "
        "here. Register a tool or a Step that does the same.",
        code="no-sandbox",
        where=str(spec.where),
    )


class _CodeCompiler(StepCompiler[CodeSpec]):
    def build(self, spec: CodeSpec, parts: BuildParts) -> CodeStep:
        given = {name: compile_template(value) for name, value in spec.given.items()}
        return CodeStep(id=spec.id, spec=spec, given=given)

    def plan(self, spec: CodeSpec, step: Step[object], planner: Planner) -> PlannedStep:
        return PlannedStep(
            step_id=spec.id,
            kind="code",
            shown={name: planner.shown(value) for name, value in spec.given.items()},
            refused="there is no sandbox: the run is refused before it begins",
        )


COMPILER: Final = _CodeCompiler()

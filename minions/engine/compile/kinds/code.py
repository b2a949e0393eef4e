"""`code:` steps, Python for a sandbox: there is none yet, so a run with such a step is refused."""

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
    """A `code:` step: it can be planned and drawn, but not run."""

    id: str
    spec: CodeSpec
    given: Mapping[str, Template]

    @property
    def templates(self) -> Sequence[Template]:
        """The templates of the values that the code would receive."""
        return list(self.given.values())

    async def run(self, scope: StepScope) -> JsonValue:
        """Never called: a run with such a step is refused before it begins.

        Raises:
            EnvironmentRefusedError: Always.
        """
        raise _refusal(self.spec)


def refuse_code(recipe: AgentRecipe, runs: Collection[str] | None = None) -> None:
    """Refuse a recipe with code, also in its recipe steps.

    Args:
        runs: Ids of the steps that run; None: all of them.
    Raises:
        EnvironmentRefusedError: `no-sandbox`; a step that runs is code.
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

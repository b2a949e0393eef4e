"""`uses:` steps: a `Step` class that the operator registered."""

from __future__ import annotations

from typing import Final

from minions.contracts.steps import PythonStep, Step
from minions.engine.compile.kinds.compiler import BuildParts, Planner, StepCompiler
from minions.engine.compile.planned_step import PlannedStep
from minions.engine.compile.recipe_step import WrittenStep
from minions.engine.compile.registered_steps import used_step
from minions.recipe.kinds.uses_kind import UsesSpec


class _UsesCompiler(StepCompiler[UsesSpec]):
    def build(self, spec: UsesSpec, parts: BuildParts) -> WrittenStep[object]:
        return used_step(spec, parts.extensions.steps, parts.templates)

    def plan(self, spec: UsesSpec, step: Step[object], planner: Planner) -> PlannedStep:
        shown = {name: planner.shown(value) for name, value in spec.given.items()}
        return PlannedStep(
            step_id=spec.id,
            kind="uses",
            target=spec.uses,
            shown=shown,
            tools=tuple(sorted(step.available_tools)),
            model=None if isinstance(step, PythonStep) else planner.model(None),
        )


COMPILER: Final = _UsesCompiler()

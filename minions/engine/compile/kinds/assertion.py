"""`assert:` steps: conditions that must hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

from attrs import frozen

from minions.contracts.context import RunContext
from minions.contracts.steps import PythonStep, Step, StepScope
from minions.data.errors import FailureInfo, StepFailedError
from minions.data.json_values import JsonValue
from minions.engine.compile.engine_scope import render_beside
from minions.engine.compile.kinds.compiler import BuildParts, Planner, StepCompiler
from minions.engine.compile.planned_step import PlannedStep
from minions.engine.compile.recipe_step import Replayable, WrittenStep, as_text
from minions.engine.history.step_rows import StepRows
from minions.engine.services.event_loop import breathe
from minions.recipe.expressions.template import Condition, Template
from minions.recipe.expressions.values import Meter, Reference
from minions.recipe.kinds.assertion_kind import AssertSpec


@frozen(kw_only=True)
class AssertStep(WrittenStep[None], PythonStep[None], Replayable):
    """An `assert:` step: it fails if one of its conditions does not hold."""

    id: str
    spec: AssertSpec
    conditions: tuple[Condition, ...]
    message: Template | None

    @property
    def is_instant(self) -> bool:
        """Always true: one row records the step, since it cannot be interrupted."""
        return True

    @property
    def templates(self) -> Sequence[Template]:
        """The template of the message, if there is one."""
        return [self.message] if self.message is not None else []

    @property
    def references(self) -> Sequence[Reference]:
        """The values that the message and the conditions read."""
        own = [reference for condition in self.conditions for reference in condition.references]
        return [*super().references, *own]

    async def run(self, scope: StepScope) -> None:
        """Check the conditions.

        Raises:
            StepFailedError: `assertion-failed`; a condition does not hold.
        """
        values = scope.context.values
        for text, condition in zip(self.spec.conditions, self.conditions, strict=True):
            meter = Meter()
            is_met = await render_beside(
                scope, condition.references, partial(condition.holds, values, meter)
            )
            if meter.is_long:
                await breathe()
            if not is_met:
                raise StepFailedError(
                    FailureInfo(code="assertion-failed", message=self._words(text, values))
                )

    def _words(self, text: str, values: Mapping[str, JsonValue]) -> str:
        if self.message is not None:
            return as_text(self.message.render(values))
        return f"The condition '{text}' does not hold."

    def would_repeat(self, view: RunContext, recorded: StepRows) -> bool:
        """Always false: the conditions are checked again in a retry, which costs nothing."""
        return False


class _AssertCompiler(StepCompiler[AssertSpec]):
    def build(self, spec: AssertSpec, parts: BuildParts) -> AssertStep:
        return AssertStep(
            id=spec.id,
            spec=spec,
            conditions=tuple(parts.templates.compile_condition(text) for text in spec.conditions),
            message=parts.templates.compile(spec.message) if spec.message is not None else None,
        )

    def plan(self, spec: AssertSpec, step: Step[object], planner: Planner) -> PlannedStep:
        return PlannedStep(step_id=spec.id, kind="assert", shown=list(spec.conditions))


COMPILER: Final = _AssertCompiler()

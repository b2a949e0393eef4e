"""`set:` steps: values computed from templates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from attrs import frozen

from minions.contracts.context import RunContext
from minions.contracts.steps import PythonStep, Step, StepScope
from minions.data.json_values import JsonValue, dumps
from minions.engine.compile.kinds.compiler import BuildParts, Planner, StepCompiler
from minions.engine.compile.recipe_step import Replayable, WrittenStep
from minions.engine.services.event_loop import breathe
from minions.recipe.expressions.template import Template
from minions.recipe.expressions.values import Meter
from minions.recipe.kinds.set_kind import SetSpec

if TYPE_CHECKING:
    from minions.engine.compile.planned_step import PlannedStep
    from minions.engine.history.step_rows import StepRows


@frozen(kw_only=True)
class SetStep(WrittenStep[JsonValue], PythonStep[JsonValue], Replayable):
    """A `set:` step: its output is a value computed from templates."""

    id: str
    spec: SetSpec
    values: Template

    @property
    def is_instant(self) -> bool:
        """Always true: one row records the step, since it cannot be interrupted."""
        return True

    @property
    def templates(self) -> Sequence[Template]:
        """The template of the values."""
        return [self.values]

    async def run(self, scope: StepScope) -> JsonValue:
        """Render the values."""
        from minions.engine.compile.engine_scope import render_beside

        values, meter = scope.context.values, Meter()
        value = await render_beside(
            scope, self.references, lambda: self.values.render(values, meter)
        )
        if meter.is_long:
            await breathe()
        return value

    def bind(self, values: Mapping[str, JsonValue]) -> JsonValue:
        """Render the output from `values`, as `run` does, without a scope."""
        return self.values.render(values)

    def would_repeat(self, view: RunContext, recorded: StepRows) -> bool:
        """Whether the templates give the recorded output again."""
        if recorded.ended is None:
            return False
        return dumps(recorded.output) == dumps(self.values.render(view.values))


class _SetCompiler(StepCompiler[SetSpec]):
    def build(self, spec: SetSpec, parts: BuildParts) -> SetStep:
        return SetStep(id=spec.id, spec=spec, values=parts.templates.compile(spec.set))

    def plan(self, spec: SetSpec, step: Step[object], planner: Planner) -> PlannedStep:
        from minions.engine.compile.planned_step import PlannedStep

        return PlannedStep(step_id=spec.id, kind="set", shown=planner.shown(spec.set))

    def known_output(self, spec: SetSpec, planner: Planner) -> tuple[JsonValue, ...]:
        """The output, if all values that its templates read are known."""
        return (planner.shown(spec.set),) if planner.is_known(spec.set) else ()


COMPILER: Final = _SetCompiler()

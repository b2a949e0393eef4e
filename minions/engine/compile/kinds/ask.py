"""`ask:` steps: a question to a person."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from attrs import frozen

from minions.contracts.steps import PythonStep, Step, StepScope
from minions.data.json_values import JsonValue
from minions.engine.compile.engine_scope import Default, EngineScope, render_beside
from minions.engine.compile.kinds.compiler import BuildParts, Planner, StepCompiler
from minions.engine.compile.planned_step import PlannedStep
from minions.engine.compile.recipe_step import RecordedInParts, WrittenStep, as_text
from minions.recipe.expressions.template import Template
from minions.recipe.kinds.ask_kind import AskSpec


@frozen(kw_only=True)
class AskStep(WrittenStep[JsonValue], PythonStep[JsonValue], RecordedInParts):
    """An `ask:` step: its output is the answer of a person."""

    id: str
    spec: AskSpec
    question: Template

    @property
    def templates(self) -> Sequence[Template]:
        """The template of the question."""
        return [self.question]

    async def run(self, scope: StepScope) -> JsonValue:
        """Ask the question; it is asked once, however often the run is resumed.

        Raises:
            StepFailedError: There is no answer yet, or none came in time.
        """
        spec = self.spec
        question = await render_beside(
            scope, self.references, lambda: as_text(self.question.render(scope.context.values))
        )
        assert isinstance(scope, EngineScope)  # noqa: S101  # the engine runs these steps
        return await scope.ask_person(
            question,
            form=spec.form,
            default=Default(spec.default, spec.has_default),
            timeout_s=spec.waits_s,
        )


class _AskCompiler(StepCompiler[AskSpec]):
    def build(self, spec: AskSpec, parts: BuildParts) -> AskStep:
        return AskStep(id=spec.id, spec=spec, question=parts.templates.compile(spec.ask))

    def plan(self, spec: AskSpec, step: Step[object], planner: Planner) -> PlannedStep:
        shown: dict[str, JsonValue] = {"question": planner.shown(spec.ask)}
        if spec.form is not None:
            shown["form"] = dict(spec.form)
        if spec.has_default:
            shown["default"] = spec.default
        if spec.waits_s is not None:
            shown["timeout_s"] = spec.waits_s
        return PlannedStep(step_id=spec.id, kind="ask", shown=shown)


COMPILER: Final = _AskCompiler()

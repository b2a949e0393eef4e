"""`code:` steps: Python, executed in the sandbox that the recipe names."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import attrs
from attrs import frozen

from minions.contracts.context import RunContext
from minions.contracts.sandbox import NO_SANDBOX, CodeSandbox, unavailable
from minions.contracts.steps import PythonStep, Step, StepScope
from minions.data.errors import EnvironmentRefusedError
from minions.data.json_values import JsonValue
from minions.engine.compile.kinds.compiler import BuildParts, Planner, StepCompiler
from minions.engine.compile.recipe_step import Fingerprint, Fingerprinted, WrittenStep
from minions.recipe.expressions.template import (
    Template,
)
from minions.recipe.kinds.code_kind import CodeSpec
from minions.recipe.model import AgentRecipe
from minions.recipe.nested_recipes import steps_within

if TYPE_CHECKING:
    from minions.engine.compile.planned_step import PlannedStep


@frozen(kw_only=True)
class CodeStep(WrittenStep[JsonValue], PythonStep[JsonValue], Fingerprinted):
    """A `code:` step: its output is the value of its code."""

    id: str
    spec: CodeSpec
    given: Mapping[str, Template]
    sandbox: CodeSandbox | None
    """None: the sandbox that the recipe names is not registered; such a step never runs."""

    @property
    def templates(self) -> Sequence[Template]:
        """The templates of the values that the code receives."""
        return list(self.given.values())

    @property
    def sandbox_name(self) -> str | None:
        return self.sandbox.name if self.sandbox is not None else None

    async def run(self, scope: StepScope) -> JsonValue:
        """Render the values, then run the code in the sandbox.

        Raises:
            MissingValueError: A template reads a value that does not exist.
            StepFailedError: The code failed, or was stopped at a limit.
            EnvironmentRefusedError: There is no such sandbox.
        """
        from minions.engine.compile.engine_scope import render_beside

        if self.sandbox is None:
            raise _not_registered(self.spec)
        inputs = await render_beside(scope, self.references, lambda: self._inputs(scope.context))
        result = await self.sandbox.execute(self.spec.code, inputs, self.spec.sandbox_limits)
        return result.unwrap()

    def _inputs(self, view: RunContext) -> dict[str, JsonValue]:
        return {name: template.render(view.values) for name, template in self.given.items()}

    def fingerprint(self, view: RunContext) -> Fingerprint:
        """The code, where it runs, and the values that it receives."""
        asked: dict[str, JsonValue] = {
            "code": self.spec.code,
            "sandbox": self.spec.sandbox,
            "limits": attrs.asdict(self.spec.sandbox_limits),
            "inputs": self._inputs(view),
        }
        return Fingerprint(asked=asked, has_folder=False, asks_model=False)


def refuse_code(
    recipe: AgentRecipe,
    sandboxes: Mapping[str, CodeSandbox],
    runs: Collection[str] | None = None,
) -> None:
    """Refuse a recipe with code for a sandbox that does not hold here, also in its recipe steps.

    Args:
        sandboxes: The registered ones, by name.
        runs: Ids of the steps that run; None: all of them.
    Raises:
        EnvironmentRefusedError: `no-sandbox`; the message names what was tried.
    """
    for path, _, step in steps_within(recipe):
        is_left_out = runs is not None and path.partition("/")[0] not in runs
        if is_left_out or not isinstance(step, CodeSpec):
            continue
        refusal = _refusal(step, sandboxes.get(step.sandbox))
        if refusal is not None:
            raise refusal


def _refusal(spec: CodeSpec, sandbox: CodeSandbox | None) -> EnvironmentRefusedError | None:
    if sandbox is None:
        return _not_registered(spec)
    if all(probe.ok for probe in sandbox.probe()):
        return None
    return unavailable([sandbox], what=f"Step '{spec.id}' is Python code", where=str(spec.where))


def _not_registered(spec: CodeSpec) -> EnvironmentRefusedError:
    return EnvironmentRefusedError(
        f"Step '{spec.id}' is Python code, which runs only in a sandbox, and '{spec.sandbox}' is "
        "not registered here. Pass it to Extensions(sandboxes=…).",
        code=NO_SANDBOX,
        where=str(spec.where),
    )


class _CodeCompiler(StepCompiler[CodeSpec]):
    def build(self, spec: CodeSpec, parts: BuildParts) -> CodeStep:
        given = {name: parts.templates.compile(value) for name, value in spec.given.items()}
        sandbox = parts.extensions.sandboxes.get(spec.sandbox)
        return CodeStep(id=spec.id, spec=spec, given=given, sandbox=sandbox)

    def plan(self, spec: CodeSpec, step: Step[object], planner: Planner) -> PlannedStep:
        from minions.engine.compile.planned_step import PlannedStep

        sandbox = step.sandbox if isinstance(step, CodeStep) else None
        refusal = _refusal(spec, sandbox)
        return PlannedStep(
            step_id=spec.id,
            kind="code",
            target=spec.sandbox,
            shown={name: planner.shown(value) for name, value in spec.given.items()},
            refused=refusal.message if refusal is not None else None,
        )


COMPILER: Final = _CodeCompiler()

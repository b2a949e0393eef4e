"""`code:` steps: Python, executed in the sandbox that the recipe names."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import attrs
from attrs import frozen

from minions.contracts.context import RunContext
from minions.contracts.sandbox import CodeSandbox
from minions.contracts.steps import PythonStep, Step, StepScope
from minions.data.json_values import JsonValue
from minions.engine.compile.engine_scope import EngineScope, render_beside
from minions.engine.compile.kinds.compiler import BuildParts, Planner, StepCompiler, tool_names
from minions.engine.compile.programs import check_end, not_registered, run_program, sandbox_refusal
from minions.engine.compile.recipe_step import CacheableStep, Fingerprint, WrittenStep
from minions.recipe.expressions.template import Template
from minions.recipe.kinds.code_kind import CodeSpec
from minions.recipe.kinds.goal_kind import ProgramSpec
from minions.recipe.model import AgentRecipe
from minions.recipe.nested_recipes import steps_within

if TYPE_CHECKING:
    from minions.engine.compile.planned_step import PlannedStep


@frozen(kw_only=True)
class CodeStep(WrittenStep[JsonValue], PythonStep[JsonValue], CacheableStep):
    """A `code:` step: its output is the value of its code."""

    id: str
    spec: CodeSpec
    given: Mapping[str, Template]
    available_tools: frozenset[str]
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
        if self.sandbox is None:
            raise not_registered(self.spec)
        spec = self.spec
        inputs = await render_beside(scope, self.references, lambda: self._inputs(scope.context))
        if not spec.tools:
            result = await self.sandbox.execute(spec.code, inputs, spec.sandbox_limits)
            return result.unwrap()
        assert isinstance(scope, EngineScope)  # noqa: S101  # the engine runs these steps
        calls = scope.program_calls(sorted(self.available_tools), by_model=False)
        result = await run_program(calls, self.sandbox, spec.code, inputs, spec.sandbox_limits)
        check_end(calls, result)
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
        tools = sorted(self.available_tools)
        return Fingerprint(asked=asked, tools=tools, has_folder=bool(tools), asks_model=False)


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
        if is_left_out or not isinstance(step, CodeSpec | ProgramSpec):
            continue
        refusal = sandbox_refusal(step, sandboxes.get(step.sandbox))
        if refusal is not None:
            raise refusal


class _CodeCompiler(StepCompiler[CodeSpec]):
    def build(self, spec: CodeSpec, parts: BuildParts) -> CodeStep:
        given = {name: parts.templates.compile(value) for name, value in spec.given.items()}
        sandbox = parts.extensions.find_sandbox(spec.sandbox)
        return CodeStep(
            id=spec.id,
            spec=spec,
            given=given,
            available_tools=frozenset(tool_names(spec.tools, parts.tools)),
            sandbox=sandbox,
        )

    def plan(self, spec: CodeSpec, step: Step[object], planner: Planner) -> PlannedStep:
        from minions.engine.compile.planned_step import PlannedStep

        sandbox = step.sandbox if isinstance(step, CodeStep) else None
        refusal = sandbox_refusal(spec, sandbox)
        return PlannedStep(
            step_id=spec.id,
            kind="code",
            target=spec.sandbox,
            shown={name: planner.shown(value) for name, value in spec.given.items()},
            tools=spec.tools,
            refused=refusal.message if refusal is not None else None,
        )


COMPILER: Final = _CodeCompiler()

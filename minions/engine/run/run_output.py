"""What a run gives: the recipe's template, or the output of its last step."""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from minions.contracts.executions import StepExecution, StepStatus
from minions.data.codec import decode, encode
from minions.data.schema import SchemaValidator
from minions.engine.compile.build import BuiltRecipe
from minions.engine.compile.graph import DependencyStepGraph
from minions.engine.context.agent_context import AgentContext
from minions.recipe.expressions.values import MissingValueError


class RunOutput:
    """The output as the caller wants it."""

    def __init__(
        self,
        context: AgentContext,
        built: BuiltRecipe,
        output_class: type[object] | None,
        output_check: SchemaValidator | None,
        *,
        is_part: bool = False,
    ) -> None:
        """Read nothing yet.

        Args:
            output_check: Of what `output_class` says.
            is_part: Not all steps were asked for: what the template reads may not be there.
        """
        self._context = context
        self._built = built
        self._output_class = output_class
        self._output_check = output_check
        self._is_part = is_part

    def get(self) -> object:
        """The output of a run that came to its end.

        Raises:
            MinionsError: The recipe's template cannot be filled.
            ValueError: It is not what the caller wants.
        """
        output, is_checked = self._raw_output()
        return self._typed(output, is_checked=is_checked)

    def _raw_output(self) -> tuple[object, bool]:
        """The output, and whether its step declared and so checked it."""
        if self._built.output is not None:
            try:
                return self._built.output.render(self._context.values), False
            except MissingValueError:
                if not self._is_part:
                    raise
        for execution in self._last_first():
            if execution.status is StepStatus.COMPLETED and execution.pinned_from is None:
                return execution.output, execution.declares_output
        return None, False

    def _last_first(self) -> Iterator[StepExecution[object]]:
        """Of parallel steps the one written last counts, not the one that took longest."""
        manager, graph = self._context.step_manager, self._built.graph
        if not isinstance(graph, DependencyStepGraph):
            yield from reversed(manager.step_executions)
            return
        for step in reversed(graph.steps):
            if (execution := manager.latest(step.id)) is not None:
                yield execution

    def _typed(self, output: object, *, is_checked: bool) -> object:
        wanted = self._output_class
        if wanted is None:
            return output
        is_wanted = attrs.has(wanted) and isinstance(output, wanted)
        if is_wanted and is_checked:
            return output
        value = encode(output)
        if self._output_check is not None and (errors := self._output_check.errors(value)):
            raise ValueError(f"it does not fit {wanted}: {'; '.join(errors)}")
        return output if is_wanted else decode(value, wanted)

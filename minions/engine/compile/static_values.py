"""The values of a recipe that are known before it runs; others have no value here."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from minions.data.errors import MinionsError
from minions.data.json_values import JsonValue
from minions.engine.compile.recipe_step import as_text
from minions.recipe.artifacts import artifacts_of
from minions.recipe.expressions.template import Template, compile_condition, compile_template
from minions.recipe.expressions.values import MissingValueError, Reference

_EXPRESSION: Final = re.compile(r"\{\{(.*?)\}\}", re.DOTALL)


class KnownValues:
    """The known values of one recipe; a dry run adds outputs step by step."""

    def __init__(
        self,
        inputs: Mapping[str, JsonValue],
        open_inputs: Collection[str] = (),
        *,
        may_pass_by: bool,
    ) -> None:
        """Start with the inputs.

        Args:
            inputs: Checked inputs.
            open_inputs: Names of the inputs whose values only the run knows.
            may_pass_by: Whether a run may leave out steps: the recipe is a transition graph.
        """
        self._steps: dict[str, JsonValue] = {}
        self._values: dict[str, JsonValue] = {"inputs": dict(inputs), "steps": self._steps}
        self._open_inputs = frozenset(open_inputs)
        self._may_pass_by = may_pass_by
        self._settled: set[str] = set()

    def know(self, step_id: str, output: JsonValue, save_as: str | None = None) -> None:
        """Add the output of a step."""
        self._steps[step_id] = {
            "status": "completed",
            "output": output,
            "error": None,
            "artifacts": artifacts_of(output),
        }
        for name in (step_id, save_as):
            if name is not None:
                self._values[name] = output
                self._settled.add(name)

    def pass_over(self, step_id: str, save_as: str | None = None) -> None:
        """Note that a step is skipped and never has an output."""
        self._steps[step_id] = {"status": "skipped", "error": None}
        self._settled.update(name for name in (step_id, save_as) if name is not None)

    def find(self, step_id: str) -> tuple[JsonValue, ...] | None:
        """The output, or () for a step that never has one; None: only a run can know it."""
        if step_id not in self._settled:
            return None
        return (self._values[step_id],) if step_id in self._values else ()

    def render(self, template: Template) -> JsonValue:
        """Fill in a template as a run would.

        Raises:
            LookupError: It reads a value that only a run can know.
            MinionsError: It cannot be rendered.
        """
        if not self._are_certain(template.references):
            raise LookupError
        return template.render(self._values)

    def holds(self, condition: str) -> bool | None:
        """Whether the condition holds; None: only a run can know it."""
        compiled = compile_condition(condition)
        if not self._are_certain(compiled.references):
            return None
        try:
            return compiled.holds(self._values)
        except MinionsError:
            return None

    def is_known(self, value: JsonValue) -> bool:
        """Whether the value can be filled in now."""
        try:
            self.render(compile_template(value))
        except (LookupError, MinionsError):
            return False
        return True

    def shown(self, value: JsonValue) -> JsonValue:
        """The value with its templates filled in as far as possible; the rest as `<path>`."""
        if isinstance(value, Mapping):
            return {name: self.shown(item) for name, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.shown(item) for item in value]
        if not isinstance(value, str):
            return value
        try:
            return self.render(compile_template(value))
        except (LookupError, MissingValueError):
            return _EXPRESSION.sub(lambda found: self._piece(found[0], found[1]), value)
        except MinionsError as error:
            return f"<{error.message}>"

    def _piece(self, template: str, expression: str) -> str:
        try:
            return as_text(self.render(compile_template(template)))
        except (LookupError, MinionsError):
            return f"<{expression.strip()}>"

    def _are_certain(self, references: Iterable[Reference]) -> bool:
        return all(map(self._is_certain, references))

    def _is_certain(self, reference: Reference) -> bool:
        root, *rest = reference.path
        if root == "inputs":
            return rest[0] not in self._open_inputs if rest else not self._open_inputs
        if reference.is_guarded and self._may_pass_by:
            return False
        name = rest[0] if root == "steps" and rest else root
        return name in self._settled

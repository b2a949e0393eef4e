"""Which expressions of a step's texts hold untrusted text: prompts show it within a border.

Only what is declared counts here: tools whose `reads` says untrusted or private, and inputs.
"""

from __future__ import annotations

from collections.abc import Mapping

from attrs import evolve

from minions.contracts.tools import Reads, ToolSpec
from minions.recipe.catalog import Catalog
from minions.recipe.checks.carried_text import carried_by
from minions.recipe.checks.flows import untrusted_names
from minions.recipe.checks.text_edges import Names, StepReads
from minions.recipe.expressions.terms import Term
from minions.recipe.model import AgentRecipe, StepSpec
from minions.recipe.tool_specs import tool_specs


class UntrustedText:
    """The untrusted steps and inputs of one recipe."""

    def __init__(self, recipe: AgentRecipe, catalog: Catalog) -> None:
        """Find them; quick for a recipe that names no untrusted tool and no untrusted input."""
        self._tools = tool_specs(recipe, catalog)
        self._found = (
            untrusted_names(recipe, lambda one: _declared(tool_specs(one, catalog)))
            if any(map(self._may_begin, recipe.steps)) or _has_untrusted_input(recipe)
            else frozenset()
        )
        self._names = Names(recipe)

    def __bool__(self) -> bool:
        return bool(self._found)

    def is_in(self, step: StepSpec, term: Term) -> bool:
        """Whether the value of an expression in the step's texts may hold untrusted text."""
        if not self._found:
            return False
        references = tuple(carried_by(term))
        if any(each.path[0] == "feedback" for each in references):
            return True  # the message of an error may hold what a tool read
        reads = StepReads(self._names, step, self._tools)
        return any(source in self._found for source in reads.sources(references))

    def is_of(self, step_id: str) -> bool:
        """Whether the output of that step may hold untrusted text."""
        return self._names.ids.get(step_id) in self._found

    def _may_begin(self, step: object) -> bool:
        if not isinstance(step, StepSpec):
            return False
        named = (*step.called_tools, *step.offered_tools)
        found = (self._tools[name].reads for name in named if name in self._tools)
        return step.inner is not None or any(each in _SAID for each in found)


_SAID = frozenset({Reads.UNTRUSTED, Reads.PRIVATE})


def _has_untrusted_input(recipe: AgentRecipe) -> bool:
    return any(spec.is_untrusted for spec in recipe.inputs.values())


def _declared(specs: Mapping[str, ToolSpec]) -> Mapping[str, ToolSpec]:
    """The tools; those that do not say what they read count as trusted."""
    return {
        name: spec if spec.reads is not Reads.UNDECLARED else evolve(spec, reads=Reads.TRUSTED)
        for name, spec in specs.items()
    }

"""The input of a recipe that takes a text: where a recipe is run by its name and one text alone."""

from __future__ import annotations

from typing import Final

from minions.recipe.model import AgentRecipe, InputSpec

TEXT_INPUTS: Final = ("requirements", "task", "message")
"""Names of inputs that take the text where none is required, best first."""


def text_input(recipe: AgentRecipe) -> str | None:
    """The name of the input that takes the text; None: there is none.

    It is the only required input, or, where none is required, one of `TEXT_INPUTS`.
    """
    required = [name for name, spec in recipe.inputs.items() if not spec.has_default]
    names = required or [name for name in TEXT_INPUTS if name in recipe.inputs]
    if len(required) > 1 or not names:
        return None
    return names[0] if _takes_text(recipe.inputs[names[0]]) else None


def _takes_text(spec: InputSpec) -> bool:
    if spec.is_secret:
        return False
    kind = spec.schema.get("type", "string")
    return kind == "string" or (isinstance(kind, list | tuple) and "string" in kind)


def no_text_input(recipe: AgentRecipe) -> str:
    """Why a recipe without such an input cannot be run with a text alone."""
    inputs = ", ".join(
        name if spec.has_default else f"{name} (required)" for name, spec in recipe.inputs.items()
    )
    return (
        f"'{recipe.id}' cannot be run with a text alone: it needs exactly one required input, a "
        f"text, or an input called {', '.join(TEXT_INPUTS[:-1])} or {TEXT_INPUTS[-1]} and no "
        f"required one. Its inputs are: {inputs or 'none'}."
    )

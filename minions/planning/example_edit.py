"""Writes examples into the text of a recipe: one step changes, comments and layout stay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from minions.data.json_values import JsonValue
from minions.planning.step_edit import step_keys, with_step_keys


def examples_in(text: str, file: str, step_id: str) -> JsonValue:
    """What stands under `examples` of that step; None: nothing.

    Raises:
        RecipeError: The text is no YAML.
        NotFoundError: It has no such step.
    """
    return step_keys(text, file, step_id).get("examples")


def with_examples(
    text: str, file: str, step_id: str, examples: Sequence[Mapping[str, JsonValue]]
) -> str:
    """The recipe's text with these examples of a step, in place of those that it has.

    Args:
        examples: `{input, output}` each; none: the key is left out.
    Raises:
        RecipeError: The text is no YAML.
        NotFoundError: It has no such step.
        UsageError: `not-editable`; the step is written in a way that would change otherwise.
    """
    return with_step_keys(text, file, step_id, {"examples": list(examples) or None})

"""Checks of recipes that run as steps: inputs that fit, secrets, permissions."""

from __future__ import annotations

from collections.abc import Mapping

from minions.data.json_values import JsonValue
from minions.data.schema import JsonSchema
from minions.recipe.checks.tools import check_against_schema, is_constant
from minions.recipe.drafts import RecipeDraft, StepDraft
from minions.recipe.expressions.template import Templates
from minions.recipe.expressions.terms import Path
from minions.recipe.expressions.values import TemplateError
from minions.recipe.model import AgentRecipe
from minions.recipe.text.nodes import Entry, Node, to_plain
from minions.recipe.text.sections import Report, masked


def check_given(draft: RecipeDraft, step: StepDraft, recipe: AgentRecipe, report: Report) -> None:
    """Report unknown, missing and mismatched inputs of one recipe step, and
    secrets that are not secret inputs.
    """
    owner = f"the recipe '{recipe.id}'"
    node = step.section.mapping("with")
    given: dict[str, Entry] = {entry.key: entry for entry in node.entries} if node else {}
    properties: dict[str, JsonValue] = {
        name: {} if spec.is_secret else dict(spec.schema) for name, spec in recipe.inputs.items()
    }
    schema: JsonSchema = {"type": "object", "properties": properties, "additionalProperties": False}
    check_against_schema(schema, given, owner, report, {}, recipe.id)
    for name, entry in given.items():
        if name in recipe.inputs and recipe.inputs[name].is_secret:
            _check_secret(draft, owner, entry, report)
    if "with" not in step.section.refused:
        _check_missing(step, recipe, given, report)


def check_rights(draft: RecipeDraft, report: Report) -> None:
    """Warn where a nested recipe writes and the outer one does not allow it."""
    for step in draft.steps:
        inner = step.recipe
        if inner is None or not inner.permissions.allow_write or draft.permissions.allow_write:
            continue
        report(
            step.section.place_of("recipe").fault(
                "write-not-allowed",
                f"the recipe '{inner.id}' changes something, and in this one that will be refused",
                help="set permissions: {allow_write: true}",
                is_warning=True,
            )
        )


def _check_secret(draft: RecipeDraft, owner: str, entry: Entry, report: Report) -> None:
    """Report a secret of the nested recipe that is not bound to a secret input of this recipe.

    Secrets are chosen by whoever starts the run: no recipe picks a variable or a file.
    """
    secrets = [name for name, spec in draft.inputs.items() if spec.is_secret]
    name = _input_named_by(entry.value, draft.templates)
    if name in secrets or (name is not None and name not in draft.inputs):
        return  # an unknown input was reported already
    written = f"{{{{ inputs.{secrets[0]} }}}}" if secrets else "{{ inputs.NAME }}"
    declare = "" if secrets else "declare an input {type: string, secret: true} and "
    fault = entry.value.place.fault(
        "literal-secret",
        f"'{entry.key}' of {owner} is a secret, and takes only a secret input of this recipe",
        help=f'{declare}write "{written}"',
    )
    report(masked(fault) if is_constant(entry.value) else fault)


def _input_named_by(node: Node, compiled: Templates) -> str | None:
    """The input that the value consists of; None: the value is anything else."""
    value = to_plain(node)
    try:
        term = compiled.compile(value).term if isinstance(value, str) else None
    except TemplateError:
        return None
    path = term.reference.path if isinstance(term, Path) else ()
    return str(path[1]) if len(path) == 2 and path[0] == "inputs" else None


def _check_missing(
    step: StepDraft, recipe: AgentRecipe, given: Mapping[str, Entry], report: Report
) -> None:
    """Report inputs without a value. A secret's default counts only
    when its recipe is run by itself.
    """
    missing = [
        name
        for name, spec in recipe.inputs.items()
        if name not in given and (spec.is_secret or not spec.has_default)
    ]
    if missing:
        listed = ", ".join(f"'{name}'" for name in missing)
        report(
            step.section.place_of("recipe").fault(
                "missing-input",
                f"the recipe '{recipe.id}' needs {listed}",
                help=f"write it under with:; its inputs are: {', '.join(recipe.inputs)}",
            )
        )

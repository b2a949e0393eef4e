"""The declared output described in a prompt, and parsed from the model's answer."""

from __future__ import annotations

from typing import TypeVar

from returns.pipeline import is_successful
from returns.result import Failure, Result, Success

from minions.contracts.instructions import OutputFailure, OutputInstructions
from minions.data.json_values import JsonValue, dumps, find_json_value
from minions.data.schema import SchemaValidator

T = TypeVar("T")


def older_output_words(instructions: OutputInstructions[T]) -> str:
    """The description in the prompts of runs that were recorded before it was a list of fields."""
    words = (
        "Your final answer must be one JSON value that fits this JSON Schema, and nothing else:\n"
        f"{dumps(instructions.json_schema())}"
    )
    return "\n".join((*instructions.instructions, words))


def output_words(instructions: OutputInstructions[T]) -> str:
    """A description of the declared output, for the system message of every call of the step.

    The only one in the prompt: what constrains the answer goes beside the messages, or consists of
    a few words.
    """
    form = instructions.texts.get("form")
    if form is None:
        from minions.data.schema_words import schema_words

        form = instructions.texts["form"] = schema_words(instructions.json_schema())
    optional = ' ("?": may be left out)' if '"?: ' in form else ""
    words = f"Your final answer is one JSON value of this form{optional}, and nothing else:\n{form}"
    return "\n".join((*instructions.instructions, words))


def parse_text(
    instructions: OutputInstructions[T], validator: SchemaValidator, text: str
) -> Result[T, OutputFailure]:
    """The declared output found in a free text; the text itself where a string is declared."""
    try:
        value = find_json_value(text)
    except ValueError as error:
        refusal = OutputFailure(message=f"The answer holds no JSON: {error}.")
        return bare_text(instructions, validator, text, Failure(refusal))
    checked = checked_output(instructions, validator, value)
    if is_successful(checked):
        return checked
    return bare_text(instructions, validator, text, checked)


def bare_text(
    instructions: OutputInstructions[T],
    validator: SchemaValidator,
    text: str,
    otherwise: Result[T, OutputFailure],
) -> Result[T, OutputFailure]:
    """A text without quotes where a string is declared: models leave them out.

    Args:
        otherwise: The result if the text does not fit the schema.
    """
    stripped = text.strip()
    if not stripped or validator.errors(stripped):
        return otherwise
    return checked_output(instructions, validator, stripped)


def checked_output(
    instructions: OutputInstructions[T], validator: SchemaValidator, value: JsonValue
) -> Result[T, OutputFailure]:
    """`value` as the caller's type if it fits the schema and the
    class accepts it, else the failure.
    """
    if errors := validator.errors(value):
        return Failure(
            OutputFailure(
                message=f"The answer does not fit the output schema: {'; '.join(errors)}.",
                errors=errors,
                value=value,
            )
        )
    try:
        return Success(instructions.convert(value))
    except Exception as error:  # noqa: BLE001  # an application's converter may raise anything
        text = f"{type(instructions).__name__}.convert: {error}"
        return Failure(OutputFailure(message=f"The answer was refused: {text}.", errors=(text,)))

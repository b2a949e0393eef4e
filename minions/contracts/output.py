"""What `OutputInstructions` do: schema, words for the model, the way to the caller's type."""

from __future__ import annotations

import json
from typing import TypeVar, cast

from returns.result import Failure, Result, Success

from minions.contracts.calls import OutputFailure, OutputInstructions
from minions.contracts.errors import SchemaError
from minions.contracts.json_values import JsonValue, dumps, find_json_value
from minions.contracts.schema import JsonSchema, SchemaValidator, schema_of

__all__ = [
    "checked_output",
    "convert_output",
    "output_words",
    "parse_text",
    "schema_of_instructions",
]

T = TypeVar("T")


def schema_of_instructions(instructions: OutputInstructions[T]) -> JsonSchema:
    """The schema as a mapping, from its text, itself or the class.

    Raises:
        SchemaError: Neither schema nor class, or text that is no JSON object.
    """
    schema = instructions.schema
    if schema is None:
        if instructions.output_class is None:
            raise SchemaError("OutputInstructions need a schema or an output_class.")
        return schema_of(instructions.output_class)
    if not isinstance(schema, str):
        return schema
    try:
        parsed = json.loads(schema)
    except ValueError as error:
        raise SchemaError(f"The output schema is not JSON: {error}.") from error
    if not isinstance(parsed, dict):
        raise SchemaError(f"The output schema is {type(parsed).__name__}, not a JSON object.")
    return parsed


def convert_output(instructions: OutputInstructions[T], value: JsonValue) -> T:
    """As the output class; the value itself where none was given."""
    if instructions.output_class is None:
        return cast("T", value)  # no class: T is JSON
    from minions.contracts.codec import decode

    return decode(value, instructions.output_class)


def output_words(instructions: OutputInstructions[T]) -> str:
    """The declared output in words: for the system message of every call of the step."""
    own = "\n".join(instructions.instructions)
    words = (
        "Your final answer must be one JSON value that fits this JSON Schema, and nothing else:\n"
        f"{dumps(instructions.json_schema())}"
    )
    return f"{own}\n{words}" if own else words


def parse_text(
    instructions: OutputInstructions[T], validator: SchemaValidator, text: str
) -> Result[T, OutputFailure]:
    """The declared output inside a free text."""
    try:
        value = find_json_value(text)
    except ValueError as error:
        return Failure(OutputFailure(message=f"The answer holds no JSON: {error}."))
    return checked_output(instructions, validator, value)


def checked_output(
    instructions: OutputInstructions[T], validator: SchemaValidator, value: JsonValue
) -> Result[T, OutputFailure]:
    """`value` if it fits the schema and the class takes it."""
    if errors := validator.errors(value):
        return Failure(
            OutputFailure(
                message=f"The answer does not fit the output schema: {'; '.join(errors)}.",
                errors=errors,
            )
        )
    try:
        return Success(instructions.convert(value))
    except Exception as error:  # noqa: BLE001  # an application's converter may raise anything
        text = f"{type(instructions).__name__}.convert: {error}"
        return Failure(OutputFailure(message=f"The answer was refused: {text}.", errors=(text,)))

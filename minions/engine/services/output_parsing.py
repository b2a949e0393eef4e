"""The parser of JSON in free text; it needs no provider library."""

from __future__ import annotations

from typing import TypeVar

from returns.result import Failure, Result

from minions.contracts.calls import ModelCallResponse, OutputParser
from minions.contracts.instructions import OutputFailure, OutputInstructions, OutputMode
from minions.contracts.output import parse_text
from minions.data.json_values import dumps
from minions.data.schema import SchemaValidator

T = TypeVar("T")


class TextOutputParser(OutputParser):
    """Finds the JSON in the text of an answer; its requests constrain nothing."""

    def __init__(self) -> None:
        self._validators: dict[str, SchemaValidator] = {}

    def request(self, instructions: OutputInstructions[T], mode: OutputMode) -> None:
        """Always None: the prompt's text has the schema, and the request is not constrained."""

    def parse(
        self,
        instructions: OutputInstructions[T],
        response: ModelCallResponse,
        mode: OutputMode | None,
    ) -> Result[T, OutputFailure]:
        """Parse the JSON in the text, or in the arguments of a call that the model made instead."""
        text = response.text
        if text is None and response.tool_calls:
            text = response.tool_calls[0].arguments
        if not text:
            return Failure(OutputFailure(message="The answer is empty; JSON was expected."))
        return parse_text(instructions, self._validator(instructions), text)

    def _validator(self, instructions: OutputInstructions[T]) -> SchemaValidator:
        """The validator of a schema, made once per schema."""
        schema = instructions.json_schema()
        text = dumps(schema)
        validator = self._validators.get(text)
        if validator is None:
            validator = self._validators[text] = SchemaValidator(schema)
        return validator

"""A model brings along how outputs are asked of its server; nobody has to name a parser."""

from __future__ import annotations

from returns.result import Result

from builders import ConstrainingParser, answer_of, recipe_of, text_step
from minions.adapters.models.openai import OpenAIModel
from minions.adapters.models.scripted import ScriptedModel
from minions.adapters.models.structured_output import InstructorParser
from minions.contracts.calls import (
    DeltaSink,
    ModelCallResponse,
    ModelCapabilities,
    ModelFailure,
    OutputParser,
    Prompt,
)
from minions.contracts.instructions import OutputInstructions, OutputMode
from minions.engine.run.agent_executor import AgentExecutor
from minions.engine.services.run_services import Services, TextOutputParser


class OtherParser(TextOutputParser):
    """One that an application chose."""


class ModelWithParser(ScriptedModel):
    """It notes how its answers were constrained."""

    def __init__(self) -> None:
        super().__init__([answer_of('{"a": 1}')])
        self.modes: list[OutputMode | None] = []

    @property
    def capabilities(self) -> ModelCapabilities:
        return ModelCapabilities(output_mode=OutputMode.JSON_SCHEMA)

    @property
    def output_parser(self) -> OutputParser:
        return ConstrainingParser()

    async def complete(
        self, prompt: Prompt, on_delta: DeltaSink | None = None
    ) -> Result[ModelCallResponse, ModelFailure]:
        self.modes.append(None if (asked := prompt.output_request) is None else asked.mode)
        return await super().complete(prompt, on_delta)


async def modes_with(services: Services | None) -> list[OutputMode | None]:
    model = ModelWithParser()
    output = OutputInstructions[object](schema={"type": "object"})
    await AgentExecutor(model, services=services).execute(recipe_of([text_step(output=output)]))
    return model.modes


async def test_an_executor_of_one_model_constrains_as_its_model_says() -> None:
    """A-36."""
    assert await modes_with(None) == [OutputMode.JSON_SCHEMA]
    assert await modes_with(Services()) == [OutputMode.JSON_SCHEMA]


async def test_the_parser_of_an_application_wins() -> None:
    """A-36."""
    assert await modes_with(Services(parser=OtherParser())) == [None]


def test_a_model_behind_http_has_a_parser() -> None:
    model = OpenAIModel("m", base_url="http://127.0.0.1:1/v1")
    assert isinstance(model.output_parser, InstructorParser)

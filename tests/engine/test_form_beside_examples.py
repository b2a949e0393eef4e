"""Where a server holds answers to their schema, examples say the form: its words are not sent."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

import pytest
from attrs import evolve

from builders import deterministic_services
from lab_models import run
from minions.adapters.models.openai import OpenAIModel
from minions.adapters.models.structured_output import InstructorParser
from minions.contracts.calls import ModelCapabilities
from minions.contracts.instructions import OutputMode
from minions.contracts.model_profiles import Feature, ModelProfile, Support
from minions.data.json_values import JsonValue, as_object
from minions.engine.services.run_services import MemoryProfiles
from minions.recipe.catalog import Catalog
from minions.recipe.reading.load import recipe_from_document
from minions.testing import endpoint as fake

FORM: Final = "Your final answer is one JSON value of this form"
OUTPUT: Final[Mapping[str, JsonValue]] = {
    "type": "object",
    "properties": {"n": {"type": "integer"}},
    "required": ["n"],
    "additionalProperties": False,
}
EXAMPLES: Final[JsonValue] = [{"input": "two", "output": {"n": 2}}]


async def told(
    *answers: str, measured: Support | None, examples: JsonValue = EXAMPLES
) -> list[str]:
    """All texts of the system in each request."""
    step: dict[str, JsonValue] = {
        "id": "read", "system_prompt": "Count.", "goal": "one", "output": OUTPUT, "model": "lab/m"
    }  # fmt: skip
    if examples is not None:
        step["examples"] = examples
    recipe = recipe_from_document({"id": "r", "steps": [step]}, Catalog())
    profiles = MemoryProfiles()
    async with fake.ChatEndpoint(*map(fake.answer, answers)) as server:
        binds = ModelCapabilities(output_mode=OutputMode.JSON_SCHEMA)
        model = OpenAIModel("m", base_url=server.base_url, capabilities=binds)
        if measured is not None:
            profiles.keep(
                ModelProfile(
                    base_url=model.base_url or "",
                    model=model.name,
                    measured_at=datetime(2026, 1, 1, tzinfo=UTC),
                    features={Feature.JSON_SCHEMA: measured},
                )
            )
        services = evolve(deterministic_services(), parser=InstructorParser(), profiles=profiles)
        result = await run(recipe, services, m=model)
        await model.aclose()
    assert result.output == {"n": 1}
    return ["\n".join(system_texts(request.body["messages"])) for request in server.requests]


def system_texts(messages: JsonValue) -> list[str]:
    assert isinstance(messages, list)
    each_one = [as_object(each) for each in messages]
    return [str(each["content"]) for each in each_one if each["role"] == "system"]


async def test_examples_stand_alone_where_the_server_was_seen_to_bind() -> None:
    """A-180."""
    assert await told('{"n": 1}', measured=Support.BINDS) == ["Count."]


@pytest.mark.parametrize(
    ("measured", "examples"),
    [(Support.IGNORES, EXAMPLES), (None, EXAMPLES), (Support.BINDS, None)],
)
async def test_else_the_form_is_told(measured: Support | None, examples: JsonValue) -> None:
    (said,) = await told('{"n": 1}', measured=measured, examples=examples)
    assert FORM in said


async def test_a_repair_is_told_the_form() -> None:
    first, second = await told('{"n": "x"}', '{"n": 1}', measured=Support.BINDS)
    assert FORM not in first
    assert FORM in second

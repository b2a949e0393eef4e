"""`min_confidence`: an output of which the model is not sure enough is not taken. A-180."""

from __future__ import annotations

import pytest
from attrs import evolve

from builders import deterministic_services
from lab_models import GOOD, OUTPUT, UnavailableModel, executor_of, run
from minions.adapters.models.endpoints import OperatorModels, resolve_endpoint
from minions.adapters.models.openai import OpenAIModel
from minions.adapters.models.scripted import ScriptedModel
from minions.contracts.calls import Confidence, ModelCallResponse, ModelCapabilities
from minions.contracts.instructions import OutputRung
from minions.contracts.journal.facts import ModelCallFact
from minions.contracts.messages import assistant
from minions.contracts.runtime import PriceBook
from minions.data.errors import RecipeError, UsageError
from minions.data.json_values import JsonValue, as_object
from minions.engine.services.run_services import MemoryProfiles
from minions.engine.views.lookup import list_runs
from minions.engine.views.run_detail import show_run
from minions.recipe.catalog import Catalog
from minions.recipe.model import AgentRecipe
from minions.recipe.model_config import ModelConfig
from minions.recipe.reading.load import recipe_from_document
from minions.testing import endpoint as fake
from minions.testing.virtual_time import FakeClock
from mortal import KilledError, MortalJournal

COUNT: JsonValue = {"id": "s0", "goal": "Count.", "output": dict(OUTPUT)}
CASCADE: JsonValue = [{"name": "lab/small", "min_confidence": 0.5}, "lab/large"]


def sure(probability: float | None, text: str = GOOD) -> ModelCallResponse:
    confidence = None if probability is None else Confidence(probability, "$.n")
    return ModelCallResponse(message=assistant(text), confidence=confidence)


class FieldsModel(ScriptedModel):
    """A model that is asked for the wrong fields of an output alone."""

    @property
    def capabilities(self) -> ModelCapabilities:
        return ModelCapabilities(output_mode=None, output_rungs=(OutputRung.FIELDS,))


def recipe(model: JsonValue = CASCADE, **more: JsonValue) -> AgentRecipe:
    document: dict[str, JsonValue] = {"id": "r", "model": model, "steps": [COUNT], **more}
    return recipe_from_document(document, Catalog())


@pytest.mark.parametrize("probability", [0.5, 0.9, 1.0])
async def test_an_output_of_a_sure_model_is_taken(probability: float) -> None:
    large = ScriptedModel([])
    result = await run(recipe(), small=ScriptedModel([sure(probability)]), large=large)
    assert (result.output, large.prompts) == ({"n": 1}, [])


@pytest.mark.parametrize("probability", [0.499, 0.0, None])
async def test_the_next_model_is_asked_the_same_where_one_is_not_sure(
    probability: float | None,
) -> None:
    """A-180: what is not known is not sure; the larger model does not read the doubtful answer."""
    small, large = ScriptedModel([sure(probability)]), ScriptedModel(['{"n": 2}'])
    result = await run(recipe(), small=small, large=large)
    assert result.output == {"n": 2}
    assert large.prompts[0].messages == small.prompts[0].messages


@pytest.mark.parametrize(
    ("probability", "why"),
    [
        (0.25, "min_confidence is 0.5, and $.n has the probability 0.25."),
        (None, "min_confidence is 0.5, and the server told no probabilities of values"),
    ],
)
async def test_without_another_model_a_doubtful_output_fails_the_step(
    probability: float | None, why: str
) -> None:
    """A-180: it is never passed on as checked."""
    small = ScriptedModel([sure(probability)] * 3)
    result = await run(recipe({"name": "lab/small", "min_confidence": 0.5}), small=small)
    assert result.error is not None
    assert result.error.code == "low-confidence"
    assert why in result.error.message
    assert len(small.prompts) == 1


async def test_the_last_model_may_have_a_bound_of_its_own() -> None:
    both: JsonValue = [
        {"name": "lab/small", "min_confidence": 0.5},
        {"name": "lab/large", "min_confidence": 0.8},
    ]
    small, large = ScriptedModel([sure(0.1)]), ScriptedModel([sure(0.7)])
    result = await run(recipe(both), small=small, large=large)
    assert result.error is not None
    assert "lab/large" in result.error.message or "0.8" in result.error.message


async def test_a_repaired_output_counts_and_not_the_answer_before_it() -> None:
    small = ScriptedModel([sure(0.1, "no"), sure(0.9)])
    result = await run(recipe(), small=small, large=ScriptedModel([]))
    assert result.output == {"n": 1}


async def test_an_output_of_parts_is_as_sure_as_the_least_sure_part() -> None:
    """What was right of the first answer is kept, so what is known of that counts as well."""
    form: JsonValue = {
        "type": "object",
        "required": ["n", "m"],
        "properties": {"n": {"type": "integer"}, "m": {"type": "integer"}},
    }
    steps: JsonValue = [{"id": "s0", "goal": "Count.", "output": form}]
    for first, taken in ((0.1, {"n": 3, "m": 3}), (0.9, {"n": 1, "m": 2})):
        small = FieldsModel([sure(first, '{"n": 1, "m": "x"}'), sure(0.9, '{"m": 2}')])
        large = ScriptedModel(['{"n": 3, "m": 3}'])
        result = await run(recipe(steps=steps), small=small, large=large)
        assert result.output == taken, first


async def test_parts_of_which_one_is_unknown_are_not_sure() -> None:
    form: JsonValue = {
        "type": "object",
        "required": ["n", "m"],
        "properties": {"n": {"type": "integer"}, "m": {"type": "integer"}},
    }
    steps: JsonValue = [{"id": "s0", "goal": "Count.", "output": form}]
    small = FieldsModel([sure(None, '{"n": 1, "m": "x"}'), sure(0.9, '{"m": 2}')])
    large = ScriptedModel(['{"n": 3, "m": 3}'])
    result = await run(recipe(steps=steps), small=small, large=large)
    assert result.output == {"n": 3, "m": 3}


async def test_an_output_that_does_not_fit_is_told_as_that_and_not_as_doubtful() -> None:
    small = ScriptedModel([sure(0.1, "no")] * 2)
    result = await run(recipe({"name": "lab/small", "min_confidence": 0.5}), small=small)
    assert result.error is not None
    assert result.error.code == "invalid-output"


async def test_an_output_that_may_be_any_text_is_not_judged() -> None:
    steps: JsonValue = [
        {"id": "s0", "goal": "Count.", "output": dict(OUTPUT), "unfit_output": "text"}
    ]
    small = ScriptedModel([ModelCallResponse(message=assistant("Well."))])
    result = await run(recipe(steps=steps), small=small, large=ScriptedModel([]))
    assert result.output == "Well."


async def test_a_text_is_not_judged() -> None:
    text: JsonValue = [{"id": "s0", "goal": "Say it.", "completion": "text"}]
    result = await run(recipe(steps=text), small=ScriptedModel(["Well."]), large=ScriptedModel([]))
    assert result.output == "Well."


async def test_a_larger_model_that_cannot_be_paid_leaves_the_doubt() -> None:
    """A-180: the bound of money is checked before; the doubtful output is not taken for that."""

    class Prices(PriceBook):
        def cost_usd(
            self, model: str, usage: object, *, at: object, base_url: str | None = None
        ) -> float | None:
            return 10.0 if model == "lab/large" else 0.001

        def context_tokens(self, model: str, *, base_url: str | None = None) -> int | None:
            return None

    services = evolve(deterministic_services(), prices=Prices())
    large = ScriptedModel([GOOD], name="lab/large")
    small = ScriptedModel([sure(0.1)], name="lab/small")
    limited = recipe(limits={"max_cost_usd": 0.5})
    result = await run(limited, services, small=small, large=large)
    assert result.error is not None
    assert (result.error.code, large.prompts) == ("low-confidence", [])


@pytest.mark.parametrize(("probability", "asked"), [(0.1, 2), (0.9, 1)])
async def test_a_run_that_is_killed_at_any_fact_decides_the_same_and_asks_nobody_twice(
    probability: float, asked: int
) -> None:
    """A-180: how sure the model was is recorded with its answer."""

    def models() -> dict[str, ScriptedModel]:
        return {"small": ScriptedModel([sure(probability)]), "large": ScriptedModel([GOOD])}

    whole = deterministic_services(MortalJournal(FakeClock()))
    await run(recipe(), whole, **models())
    facts = len(await whole.journal.entries())
    for at in range(2, facts + 1):
        journal = MortalJournal(FakeClock())
        services = deterministic_services(journal)
        journal.dies_at = at
        with pytest.raises(KilledError):
            await run(recipe(), services, **models())
        journal.revive()
        recorded = [
            each for each in await journal.entries() if isinstance(each.fact, ModelCallFact)
        ]
        again = models()
        result = await executor_of(evolve(services, cooldowns={}), again).resume("run_1")
        assert result.output == {"n": 1}, at
        prompts = sum(len(each.prompts) for each in again.values())
        assert prompts == asked - len(recorded), at


async def test_the_record_says_how_sure_the_model_was_and_of_what() -> None:
    services = deterministic_services()
    await run(recipe(), services, small=ScriptedModel([sure(0.75)]), large=ScriptedModel([]))
    (summary,) = await list_runs(services.journal)
    detail = await show_run(services.journal, summary)
    metrics = [as_object(said["metrics"]) for _, said in detail.messages if "metrics" in said]
    assert [(each["confidence"], each["least_sure_of"]) for each in metrics] == [(0.75, "$.n")]


@pytest.mark.parametrize("value", [0, -0.1, 1.1, "high", True])
def test_a_bound_that_is_no_probability_is_refused(value: JsonValue) -> None:
    with pytest.raises(RecipeError, match="min_confidence"):
        recipe({"name": "lab/small", "min_confidence": value})


def test_a_form_without_probabilities_is_refused_before_anything_is_asked() -> None:
    """A-180: by name, at the key that asks for them."""
    for name in ("anthropic/claude-haiku-4-5", "gemini/gemini-2.5-flash"):
        config = ModelConfig(name=name, min_confidence=0.5)
        with pytest.raises(UsageError, match="tells no probabilities") as told:
            resolve_endpoint(name, config, {}, OperatorModels())
        assert told.value.error_code == "no-confidence"


async def test_a_fallback_stands_in_with_a_bound_of_its_own() -> None:
    model: JsonValue = {
        "name": "lab/small",
        "min_confidence": 0.5,
        "fallbacks": [{"name": "lab/large", "min_confidence": 0.9}],
    }
    large = ScriptedModel([sure(0.7)])
    result = await run(recipe(model), small=UnavailableModel("lab/small"), large=large)
    assert result.error is not None
    assert result.error.code == "low-confidence"


async def test_a_server_that_refuses_probabilities_is_told_and_nothing_else_is_doubted() -> None:
    """A-180: its words are the failure; it is not learned that it refuses schemas."""
    refusal = fake.status(400, fake.error_body("Unsupported parameter: 'logprobs'"))
    book = MemoryProfiles()
    async with fake.ChatEndpoint(default=refusal) as server:
        model = OpenAIModel("m", base_url=server.base_url, provider="lab")
        services = evolve(deterministic_services(), profiles=book)
        for _ in range(4):
            one: JsonValue = {"name": "lab/small", "min_confidence": 0.5}
            result = await run(recipe(one), services, small=model)
        asked = len(server.requests)
        await model.aclose()
    assert result.error is not None
    assert (result.error.code, asked) == ("bad-request", 4)
    assert "logprobs" in result.error.message
    assert [each.lessons for each in book.profiles()] == []

"""`fallbacks`: another model while the server of the first one is unavailable, and a cooldown."""

from __future__ import annotations

import pytest
from attrs import evolve

from builders import deterministic_services
from lab_models import GOOD, OUTPUT, UnavailableModel, executor_of, lab_recipe, run
from minions.adapters.models.scripted import ScriptedModel
from minions.analysis.bounds import AskingRecipe, KnownModel, StepCallBounds, spending
from minions.contracts.calls import ChatModel, ModelCapabilities
from minions.contracts.context import Limits
from minions.contracts.executions import RunStatus
from minions.contracts.journal.facts import ModelCallFact
from minions.contracts.run_events import ModelReplaced, RunEvent
from minions.data.errors import RecipeError
from minions.data.json_values import JsonValue
from minions.engine.services.run_pause import RunPause
from minions.engine.views.lookup import list_runs
from minions.engine.views.run_detail import show_run
from minions.recipe.catalog import Catalog
from minions.recipe.model import AgentRecipe
from minions.recipe.model_config import ModelConfig
from minions.recipe.reading.load import recipe_from_document
from minions.testing.virtual_time import FakeClock
from mortal import KilledError, MortalJournal

ONE: JsonValue = {"name": "lab/a", "fallbacks": ["lab/b"], "cooldown_s": 30}


class Blind(ScriptedModel):
    """A model that takes no images."""

    @property
    def capabilities(self) -> ModelCapabilities:
        return evolve(super().capabilities, takes_images=False)


def recipe(model: JsonValue = ONE, steps: int = 1, **more: JsonValue) -> AgentRecipe:
    return lab_recipe(model, steps, **more)


async def test_another_model_is_asked_before_a_run_pauses_for_its_server() -> None:
    pause = RunPause()
    services = evolve(deterministic_services(), pause=pause)
    first, other = (
        UnavailableModel("lab/a", "rate-limited", retry_after_s=300.0),
        ScriptedModel([GOOD] * 9),
    )
    result = await run(recipe(), services, a=first, b=other)
    assert (result.status, pause.until) == (RunStatus.COMPLETED, None)
    alone = await run(recipe("lab/a"), services, a=first)
    assert (alone.status, pause.until is None) == (RunStatus.NEEDS_DECISION, False)


@pytest.mark.parametrize(
    "code",
    ["model-unreachable", "model-unavailable", "model-timeout", "rate-limited", "circuit-open"],
)
async def test_another_model_is_asked_while_the_server_of_the_first_is_unavailable(
    code: str,
) -> None:
    clock = FakeClock()
    services = deterministic_services(clock=clock)
    first, other = UnavailableModel("lab/a", code), ScriptedModel([GOOD] * 9, name="lab/b")
    result = await run(recipe(steps=3), services, a=first, b=other)
    assert (result.status, result.output) == (RunStatus.COMPLETED, {"n": 1})
    asked = first.asked
    await clock.sleep(29)
    await run(recipe(), services, a=first, b=other)
    assert first.asked == asked
    await clock.sleep(2)
    await run(recipe(), services, a=first, b=other)
    assert first.asked > asked


async def test_an_output_that_does_not_fit_is_no_reason_for_a_fallback() -> None:
    """That is what tiers are for."""
    other = ScriptedModel([GOOD])
    result = await run(recipe(), a=ScriptedModel(["no", "no"]), b=other)
    assert result.error is not None
    assert (result.error.code, other.prompts) == ("invalid-output", [])
    large = ScriptedModel([GOOD])
    both: JsonValue = [ONE, {"name": "lab/c", "fallbacks": ["lab/d"]}]
    result = await run(recipe(both), a=ScriptedModel(["no", "no"]), b=other, c=large, d=other)
    assert (result.output, other.prompts) == ({"n": 1}, [])


async def test_each_tier_has_its_own_fallbacks() -> None:
    models: JsonValue = [ONE, {"name": "lab/c", "fallbacks": ["lab/d"]}]
    small, last = ScriptedModel(["no", "no"]), ScriptedModel([GOOD])
    result = await run(
        recipe(models), a=UnavailableModel("lab/a"), b=small, c=UnavailableModel("lab/c"), d=last
    )
    assert result.output == {"n": 1}
    assert (len(small.prompts), len(last.prompts)) == (2, 1)


async def test_where_all_are_unavailable_the_step_fails_with_the_last_reason() -> None:
    result = await run(
        recipe(), a=UnavailableModel("lab/a"), b=UnavailableModel("lab/b", "rate-limited")
    )
    assert result.error is not None
    assert result.error.code == "rate-limited"


async def test_a_replacement_is_an_event_and_stands_in_the_run() -> None:
    services = deterministic_services()
    models = {"a": UnavailableModel("lab/a"), "b": ScriptedModel([GOOD] * 2, name="lab/b")}
    prepared = executor_of(services, models).prepare(recipe(steps=2))
    seen: list[RunEvent] = []
    prepared.listen(seen.append)
    result = await prepared.execute()
    (event,) = [each for each in seen if isinstance(each, ModelReplaced)]
    assert (event.failed, event.instead, event.code, event.cooldown_s, event.address) == (
        "lab/a",
        "lab/b",
        "model-unreachable",
        30.0,
        "s0",
    )
    said = (
        "lab/a is unavailable (model-unreachable): lab/b is asked instead, and lab/a again after "
        "30 s"
    )
    assert [(each.code, each.message) for each in result.warnings] == [("model-replaced", said)]
    (summary,) = await list_runs(services.journal)
    notes = (await show_run(services.journal, summary)).notes
    assert [(note.kind, note.facts["message"]) for note in notes] == [("warning", said)]
    facts = [entry.fact for entry in await services.journal.entries()]
    assert [each.tier for each in facts if isinstance(each, ModelCallFact)] == [None, 1, 1]


async def test_a_model_that_takes_no_images_is_not_asked_instead(tmp_path: object) -> None:
    """The failure of the first stays, and it is said why nobody was asked instead."""
    from pathlib import Path

    folder = Path(str(tmp_path))
    (folder / "a.png").write_bytes(PNG)
    document: dict[str, JsonValue] = {
        "id": "r",
        "model": ONE,
        "steps": [{"id": "s0", "goal": "Look.", "images": ["a.png"], "output": dict(OUTPUT)}],
    }
    shown = recipe_from_document(document, Catalog(), directory=str(folder))
    other = Blind([GOOD], name="lab/b")
    result = await run(shown, a=UnavailableModel("lab/a"), b=other)
    assert result.error is not None
    assert (result.error.code, other.prompts) == ("model-unreachable", [])
    assert [each.message for each in result.warnings] == [
        "lab/b takes no images, and was not asked instead of lab/a"
    ]
    result = await run(shown, a=UnavailableModel("lab/a"), b=ScriptedModel([GOOD], name="lab/b"))
    assert result.status is RunStatus.COMPLETED


PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c4890000000d49444154789c63"
    "f8ffff3f0005fe02fea7352fe20000000049454e44ae426082"
)


async def test_a_run_that_is_killed_at_any_fact_ends_the_same_and_asks_the_first_again() -> None:
    """What failed before the kill says nothing of the server now."""
    whole = deterministic_services(MortalJournal(FakeClock()))
    await run(recipe(steps=2), whole, a=UnavailableModel("lab/a"), b=ScriptedModel([GOOD] * 2))
    facts = len(await whole.journal.entries())
    for at in range(2, facts + 1):
        journal = MortalJournal(FakeClock())
        services = deterministic_services(journal)
        journal.dies_at = at
        models: dict[str, ChatModel] = {
            "a": UnavailableModel("lab/a"),
            "b": ScriptedModel(lambda _prompt: GOOD),
        }
        with pytest.raises(KilledError):
            await run(recipe(steps=2), services, **models)
        journal.revive()
        fresh = evolve(services, cooldowns={})
        result = await executor_of(fresh, models).resume("run_1")
        assert result.output == {"n": 1}, at
        assert len({each.message for each in result.warnings}) == len(result.warnings), at


async def test_fallbacks_that_are_added_run_no_step_again() -> None:
    services = deterministic_services()
    first = ScriptedModel([GOOD])
    plain: JsonValue = {"name": "lab/a"}
    failed = await run(recipe(plain, 2), services, a=first)
    assert failed.status is RunStatus.FAILED
    other = ScriptedModel([GOOD], name="lab/b")
    again = executor_of(services, {"a": UnavailableModel("lab/a"), "b": other})
    done = await again.retry(failed.run_id, recipe=recipe(ONE, 2))
    assert (done.status, len(other.prompts)) == (RunStatus.COMPLETED, 1)


@pytest.mark.parametrize(
    ("fallbacks", "said"),
    [
        ([{"temperature": 0}], "a fallback needs a name"),
        ([["lab/b"]], "a fallback is one model"),
        ([{"name": "lab/b", "fallbacks": ["lab/c"]}], "a fallback is one model"),
        (["nothing"], "unknown model 'nothing'"),
        ("lab/b", "'fallbacks'"),
    ],
)
def test_what_is_no_fallback_is_refused(fallbacks: JsonValue, said: str) -> None:
    with pytest.raises(RecipeError, match=said):
        recipe({"name": "lab/a", "fallbacks": fallbacks})


def test_the_bound_of_the_cost_is_that_of_the_dearest_model() -> None:
    def know(config: ModelConfig) -> KnownModel:
        price = 1.0 if config.name == "lab/b" else 0.01
        return KnownModel(
            name=config.name,
            context_tokens=10,
            cost_usd=lambda usage: usage.total_tokens * price,
        )

    config = recipe({"name": "lab/a", "max_output_tokens": 5, "fallbacks": [
        {"name": "lab/b", "max_output_tokens": 5}]}).model  # fmt: skip
    bound = spending(
        AskingRecipe(parts=[StepCallBounds(config=config, calls=1)], limits=Limits()), know
    )
    assert bound.cost_usd.at_most == 15.0


async def test_a_failure_of_an_earlier_execution_begins_no_cooldown() -> None:
    """The server may be back when the run is resumed."""
    journal = MortalJournal(FakeClock())
    services = deterministic_services(journal)
    other = ScriptedModel(lambda _prompt: GOOD, name="lab/b")
    journal.dies_at = 5  # the call of the other model is recorded, its step has not ended
    with pytest.raises(KilledError):
        await run(recipe(steps=2), services, a=UnavailableModel("lab/a"), b=other)
    journal.revive()
    back = ScriptedModel(lambda _prompt: GOOD, name="lab/a")
    fresh = evolve(services, cooldowns={})
    result = await executor_of(fresh, {"a": back, "b": other}).resume("run_1")
    assert result.status is RunStatus.COMPLETED
    assert (len(back.prompts), fresh.cooldowns) == (1, {})

"""`model: [small, large]`: the next model where an output does not fit or a server fails. A-133."""

from __future__ import annotations

import pytest
from attrs import evolve

from builders import deterministic_services
from lab_models import GOOD, UnavailableModel, executor_of, lab_recipe, run
from minions.adapters.models.scripted import ScriptedModel
from minions.analysis.bounds import AskingRecipe, KnownModel, StepCallBounds, spending
from minions.contracts.calls import ChatModel, ModelCallResponse
from minions.contracts.context import Limits
from minions.contracts.executions import RunStatus
from minions.contracts.journal.facts import ModelCallFact
from minions.contracts.messages import TokenUsage, assistant
from minions.contracts.runtime import PriceBook
from minions.data.errors import RecipeError
from minions.data.json_values import JsonValue
from minions.engine.views.lookup import list_runs
from minions.engine.views.output_rungs import rungs_of_model
from minions.engine.views.run_detail import show_run
from minions.recipe.model import AgentRecipe
from minions.recipe.model_config import ModelConfig
from minions.testing.virtual_time import FakeClock
from mortal import KilledError, MortalJournal


def recipe(
    steps: int = 1, model: JsonValue = ("lab/small", "lab/large"), **more: JsonValue
) -> AgentRecipe:
    return lab_recipe(model, steps, **more)


async def test_the_larger_model_is_asked_where_the_output_of_the_small_one_does_not_fit() -> None:
    """A-133: with the question as it was, and none of the small one's mistakes."""
    small, large = ScriptedModel(["no", "no"]), ScriptedModel([GOOD])
    result = await run(recipe(), small=small, large=large)
    assert result.output == {"n": 1}
    (execution,) = result.executions
    assert [call.phase for call in execution.model_calls] == ["model", "repair", "tier"]
    assert large.prompts[0].messages == small.prompts[0].messages


async def test_an_output_that_fits_never_asks_the_larger_model() -> None:
    """A-133."""
    large = ScriptedModel([])
    result = await run(recipe(), small=ScriptedModel(["no", GOOD]), large=large)
    assert (result.output, large.prompts) == ({"n": 1}, [])


async def test_where_no_model_gives_the_output_the_step_fails_with_the_last_ones_reason() -> None:
    """A-38, A-133: never a loop."""
    small, large = ScriptedModel(["no"] * 9), ScriptedModel(["no", '{"n": "one"}', GOOD])
    result = await run(recipe(), small=small, large=large)
    assert result.error is not None
    assert result.error.code == "invalid-output"
    assert "'one' is not of type 'integer'" in result.error.message
    assert (len(small.prompts), len(large.prompts)) == (2, 2)


async def test_a_server_that_fails_is_passed_over_and_left_alone_for_a_while() -> None:
    """A-133: later steps begin with the other model."""
    clock = FakeClock()
    services = deterministic_services(clock=clock)
    small, large = UnavailableModel("lab/small"), ScriptedModel([GOOD] * 4)
    result = await run(recipe(3), services, small=small, large=large)
    assert result.status is RunStatus.COMPLETED
    assert small.asked == 1
    await clock.sleep(61)
    await run(recipe(), services, small=small, large=large)
    assert small.asked == 2


async def test_all_servers_that_fail_are_a_failure_of_the_step() -> None:
    """A-133."""
    small, large = UnavailableModel("lab/small"), UnavailableModel("lab/large")
    result = await run(recipe(), small=small, large=large)
    assert result.error is not None
    assert result.error.code == "model-unreachable"
    assert (small.asked, large.asked) == (1, 1)


async def test_the_budget_is_checked_before_the_larger_model_is_asked() -> None:
    """A-133: at its own price."""

    class Prices(PriceBook):
        def cost_usd(
            self, model: str, usage: TokenUsage, *, at: object, base_url: str | None = None
        ) -> float | None:
            return usage.total_tokens * (1.0 if model == "lab/large" else 0.001)

        def context_tokens(self, model: str, *, base_url: str | None = None) -> int | None:
            return None

    services = evolve(deterministic_services(), prices=Prices())
    large = ScriptedModel([GOOD], name="lab/large")
    limited = recipe(limits={"max_cost_usd": 0.5}, model=["lab/small", "lab/large"])
    small = ScriptedModel(["no", "no"], name="lab/small")
    result = await run(limited, services, small=small, large=large)
    assert result.error is not None
    assert (result.error.code, large.prompts) == ("invalid-output", [])


@pytest.mark.parametrize(("most", "is_asked"), [(0.021, False), (0.025, True)])
async def test_what_was_spent_before_counts_for_the_larger_model(
    most: float, is_asked: bool
) -> None:
    """A-133: an answer as long as the last one has to fit what is left."""

    class Prices(PriceBook):
        def cost_usd(
            self, model: str, usage: TokenUsage, *, at: object, base_url: str | None = None
        ) -> float | None:
            return usage.total_tokens * 0.001

        def context_tokens(self, model: str, *, base_url: str | None = None) -> int | None:
            return None

    services = evolve(deterministic_services(), prices=Prices())
    usage = TokenUsage(input_tokens=7, output_tokens=1)
    answers = [ModelCallResponse(message=assistant("no"), usage=usage) for _ in range(2)]
    small = ScriptedModel(answers, name="lab/small")
    good = ModelCallResponse(message=assistant(GOOD), usage=usage)
    large = ScriptedModel([good], name="lab/large")
    await run(recipe(limits={"max_cost_usd": most}), services, small=small, large=large)
    assert bool(large.prompts) is is_asked


async def test_rows_say_which_model_answered() -> None:
    """A-133."""
    services = deterministic_services()
    small, large = ScriptedModel(["no", "no"]), ScriptedModel([GOOD])
    await run(recipe(), services, small=small, large=large)
    facts = [entry.fact for entry in await services.journal.entries()]
    assert [each.tier for each in facts if isinstance(each, ModelCallFact)] == [None, None, 1]


async def test_a_run_that_is_killed_at_any_fact_ends_the_same_and_asks_nobody_twice() -> None:
    """A-133: also where the first model's server is back meanwhile."""
    whole = deterministic_services(MortalJournal(FakeClock()))
    await run(
        recipe(), whole, small=UnavailableModel("lab/small"), large=ScriptedModel(["no", GOOD])
    )
    facts = len(await whole.journal.entries())
    for at in range(2, facts + 1):
        journal = MortalJournal(FakeClock())
        services = deterministic_services(journal)
        journal.dies_at = at
        models: dict[str, ChatModel] = {
            "small": UnavailableModel("lab/small"),
            "large": ScriptedModel(lambda prompt: GOOD if len(prompt.messages) > 2 else "no"),
        }
        with pytest.raises(KilledError):
            await run(recipe(), services, **models)
        journal.revive()
        again = executor_of(evolve(services, cooldowns={}), models)
        result = await again.resume("run_1")
        assert result.output == {"n": 1}, at


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ([], "the list of models is empty"),
        ([["lab/a"]], "within a list"),
        (["lab/a", {"temperature": 0}], "needs a name"),
        (["lab/a", "nothing"], "unknown model 'nothing'"),
    ],
)
def test_a_list_of_models_that_is_none_is_refused(model: JsonValue, said: str) -> None:
    with pytest.raises(RecipeError, match=said):
        recipe(model=model)


def test_the_rungs_of_a_ladder_are_checked() -> None:
    found = recipe(model={"name": "lab/a", "output_ladder": ["tools", "md_json", "repair"]})
    assert found.model.output_ladder == ("tools", "md_json", "repair")
    with pytest.raises(RecipeError, match="'ladder' is no rung"):
        recipe(model={"name": "lab/a", "output_ladder": ["ladder"]})
    with pytest.raises(RecipeError, match="'json' stands twice"):
        recipe(model={"name": "lab/a", "output_ladder": ["json", "json"]})


async def test_a_recorded_run_says_which_rung_gave_the_output() -> None:
    """A-133: with what each took."""
    services = deterministic_services()
    small, large = ScriptedModel(["no", "no"]), ScriptedModel([GOOD])
    await run(recipe(), services, small=small, large=large)
    (summary,) = await list_runs(services.journal)
    detail = await show_run(services.journal, summary)
    assert [(each.step_id, each.rung, each.valid, each.calls) for each in detail.rungs] == [
        ("s0", "first", 0, 1),
        ("s0", "repair", 0, 1),
        ("s0", "tier", 1, 1),
    ]
    counts = await rungs_of_model(services.journal, small.name)
    assert [(each.rung, each.valid, each.calls) for each in counts] == [
        ("first", 0, 1),
        ("repair", 0, 1),
        ("tier", 1, 1),
    ]


def test_the_bound_of_the_cost_is_that_of_the_dearest_model() -> None:
    """A-133: which of them is asked is not known before."""

    def know(config: ModelConfig) -> KnownModel:
        price = 1.0 if config.name == "lab/large" else 0.01
        return KnownModel(
            name=config.name,
            context_tokens=10,
            cost_usd=lambda usage: usage.total_tokens * price,
        )

    small = ModelConfig(name="lab/small", max_output_tokens=5)
    large = ModelConfig(name="lab/large", max_output_tokens=5)
    asking = StepCallBounds(config=evolve(small, tiers=(large,)), calls=1)
    bound = spending(AskingRecipe(parts=[asking], limits=Limits()), know)
    assert (bound.cost_usd.at_most, bound.tokens.at_most) == (15.0, 15)
    unlimited = StepCallBounds(
        config=evolve(small, tiers=(ModelConfig(name="lab/large"),)), calls=1
    )
    open_end = spending(AskingRecipe(parts=[unlimited], limits=Limits()), know)
    assert open_end.cost_usd.at_most is None

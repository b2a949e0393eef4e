"""The search for the cheapest configuration: what it finds, and what it does not ask."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, TypeAlias

import pytest
from attrs import evolve, field, frozen
from hypothesis import given
from hypothesis import strategies as st

from minions.evaluation.cases import Part
from minions.evaluation.tuning import Configuration, Dimension, Measurement, Setting, StepSpace
from minions.evaluation.tuning_search import (
    Measures,
    Search,
    SearchResult,
    TrialVerdict,
    most_configurations,
    most_reflections,
)

CASES: Final = 20
HELD_OUT: Final = 10
AS_IT_IS: Final = Configuration()
World: TypeAlias = Callable[[Configuration, Part], tuple[float, float | None]]
"""From a configuration to its pass rate and the US dollars of one run; None: not known."""


@frozen
class FakeMeasures(Measures):
    """Answers from a world; counts the runs of each configuration and part."""

    world: World
    most_runs: int = 10**9
    """Runs after which it is stopped."""
    runs: dict[tuple[str, Part], int] = field(factory=dict)
    kept: list[Mapping[Configuration, int]] = field(factory=list)
    prices: Mapping[str, float] = field(factory=dict)
    """Expected US dollars of one run by the value of the model; `own`: of the recipe's own."""

    def expected_cost_usd(self, configuration: Configuration) -> float | None:
        named = [each.value for each in configuration.settings if each.dimension is Dimension.MODEL]
        found = [self.prices.get(name) for name in named or ["own"]]
        return sum(each for each in found if each is not None) if None not in found else None

    async def measure(
        self,
        configuration: Configuration,
        part: Part,
        count: int,
        *,
        runs_kept: Mapping[Configuration, int],
    ) -> Measurement:
        self.kept.append(runs_kept)
        key = (configuration.label, part)
        others = sum(runs for each, runs in self.runs.items() if each != key)
        if others + count > self.most_runs:
            return Measurement(problem="the budget is spent", is_stopped=True)
        self.runs[key] = max(count, self.runs.get(key, 0))
        rate, cost = self.world(configuration, part)
        failing = 1 - rate
        return Measurement(
            shares=tuple(1.0 - _steps(failing, index) for index in range(count)),
            costs=(cost,) * count,
            tokens=(100.0 * (1 + len(configuration.settings)),) * count,
        )


def _steps(failing: float, index: int) -> float:
    """1 for so large a share of the indexes, evenly spread."""
    return float(round((index + 1) * failing, 6) // 1 - round(index * failing, 6) // 1)


def setting(value: str, dimension: Dimension = Dimension.MODEL, step: str = "label") -> Setting:
    return Setting(step=step, dimension=dimension, value=value)


def space(step: str = "label", **values: tuple[str, ...]) -> StepSpace:
    options = {
        Dimension(name): tuple(setting(value, Dimension(name), step) for value in given)
        for name, given in values.items()
    }
    return StepSpace(step=step, options=options)


async def found(
    measures: FakeMeasures, *steps: StepSpace, at_least: float | None = None
) -> SearchResult:
    search = Search(steps, measures, cases=CASES, confirming=HELD_OUT, at_least=at_least)
    return await search.result()


def says(table: Mapping[str, tuple[float, float | None]]) -> World:
    return lambda configuration, _part: table[configuration.label]


async def test_the_cheapest_model_that_passes_is_chosen_and_confirmed() -> None:
    """A-142."""
    world = says(
        {
            "as it is": (0.95, 0.10),
            "label: small": (0.5, 0.01),
            "label: middle": (0.95, 0.03),
            "label: large": (1.0, 0.30),
        }
    )
    measures = FakeMeasures(world)
    result = await found(measures, space(model=("small", "middle", "large")))
    assert result.chosen.label == "label: middle"
    assert (result.is_passed, result.is_confirmed, result.is_cut) == (True, True, False)
    verdicts = {each.configuration.label: each.verdict for each in result.trials}
    assert verdicts == {
        "as it is": TrialVerdict.PASSED,
        "label: small": TrialVerdict.OUT_OF_REACH,
        "label: middle": TrialVerdict.PASSED,
        "label: large": TrialVerdict.DEARER,
    }
    assert measures.runs["label: small", Part.SEARCH] == 5
    assert measures.runs["label: large", Part.SEARCH] == 5
    assert measures.runs["as it is", Part.CONFIRMATION] == HELD_OUT


async def test_a_small_model_that_passes_only_with_examples_is_found() -> None:
    """A-142."""

    def world(configuration: Configuration, _part: Part) -> tuple[float, float]:
        own = configuration.of_step("label")
        count = int(own[Dimension.EXAMPLES].value) if Dimension.EXAMPLES in own else 0
        if Dimension.MODEL not in own:
            return 1.0, 0.1 + count / 100
        return min(1.0, 0.6 + count / 10), 0.01 + count / 1000

    result = await found(FakeMeasures(world), space(model=("small",), examples=("1", "2", "4")))
    assert result.chosen.label == "label: small, examples 4"


async def test_each_step_has_settings_of_its_own() -> None:
    def world(configuration: Configuration, _part: Part) -> tuple[float, float]:
        small = {each.step for each in configuration.settings}
        return (0.4 if "write" in small else 1.0), 0.2 - 0.05 * len(small)

    steps = (space("read", model=("small",)), space("write", model=("small",)))
    result = await found(FakeMeasures(world), *steps)
    assert result.chosen.label == "read: small"


async def test_without_a_wish_nothing_worse_than_the_recipe_is_chosen() -> None:
    world = says({"as it is": (0.8, 0.10), "label: small": (0.75, 0.01)})
    result = await found(FakeMeasures(world), space(model=("small",)))
    assert (result.chosen, result.bar) == (AS_IT_IS, 0.8)
    assert result.is_confirmed


async def test_a_recipe_that_misses_the_bar_is_improved() -> None:
    world = says({"as it is": (0.5, 0.01), "label: large": (0.95, 0.10)})
    result = await found(FakeMeasures(world), space(model=("large",)), at_least=0.9)
    assert result.chosen.label == "label: large"
    assert result.is_confirmed


async def test_where_nothing_passes_the_best_is_told_and_nothing_confirmed() -> None:
    world = says({"as it is": (0.5, 0.01), "label: large": (0.8, 0.10)})
    measures = FakeMeasures(world)
    result = await found(measures, space(model=("large",)), at_least=0.9)
    assert (result.chosen.label, result.is_passed) == ("label: large", False)
    assert all(part is Part.SEARCH for _, part in measures.runs)


async def test_what_passes_in_the_search_and_not_on_unseen_cases_is_not_chosen() -> None:
    """A-142."""

    def world(configuration: Configuration, part: Part) -> tuple[float, float]:
        if configuration.label == "label: lucky":
            return (1.0 if part is Part.SEARCH else 0.5), 0.01
        return {"as it is": (1.0, 0.10), "label: solid": (1.0, 0.02)}[configuration.label]

    result = await found(FakeMeasures(world), space(model=("lucky", "solid")))
    assert result.chosen.label == "label: solid"
    assert [each.label for each in result.confirmation] == [
        "as it is",
        "label: lucky",
        "label: solid",
    ]


async def test_where_none_passes_on_unseen_cases_it_says_so() -> None:
    def world(_: Configuration, part: Part) -> tuple[float, float]:
        return (1.0 if part is Part.SEARCH else 0.5), 0.01

    result = await found(FakeMeasures(world), at_least=0.9)
    assert (result.is_passed, result.is_confirmed) == (False, False)


async def test_what_is_dearer_on_unseen_cases_than_the_recipe_is_not_chosen() -> None:
    def world(configuration: Configuration, part: Part) -> tuple[float, float]:
        if configuration == AS_IT_IS:
            return 1.0, 0.05
        return 1.0, 0.01 if part is Part.SEARCH else 0.20

    result = await found(FakeMeasures(world), space(model=("other",)))
    assert result.chosen == AS_IT_IS


async def test_without_prices_tokens_count() -> None:
    world = says({"as it is": (1.0, 0.1), "label: local": (1.0, None)})
    result = await found(FakeMeasures(world), space(model=("local",)))
    assert not result.by_cost
    assert result.chosen == AS_IT_IS  # it has the fewest tokens


async def test_a_search_that_is_cut_tells_the_best_so_far() -> None:
    world = says({"as it is": (1.0, 0.1), "label: a": (1.0, 0.05), "label: b": (1.0, 0.01)})
    result = await found(FakeMeasures(world, most_runs=50), space(model=("a", "b")))
    assert (result.is_cut, result.is_passed, result.is_confirmed) == (True, True, False)
    assert result.chosen.label == "label: a"
    assert result.problem == "the budget is spent"


async def test_what_was_asked_in_part_is_not_told_as_the_best() -> None:
    def world(configuration: Configuration, _part: Part) -> tuple[float, float]:
        return (0.5, 0.1) if configuration == AS_IT_IS else (1.0, 0.01)

    class Halting(FakeMeasures):
        async def measure(
            self,
            configuration: Configuration,
            part: Part,
            count: int,
            *,
            runs_kept: Mapping[Configuration, int],
        ) -> Measurement:
            measured = await super().measure(configuration, part, count, runs_kept=runs_kept)
            is_part = configuration != AS_IT_IS
            problem = "the budget is spent" if is_part else None
            return evolve(measured, problem=problem, is_stopped=is_part)

    result = await found(Halting(world), space(model=("a",)), at_least=0.9)
    assert (result.chosen, result.is_passed, result.is_cut) == (AS_IT_IS, False, True)


async def test_budget_for_the_confirmation_is_kept_from_the_first_variant_on() -> None:
    world = says({"as it is": (1.0, 0.1), "label: a": (1.0, 0.05), "label: b": (1.0, 0.01)})
    measures = FakeMeasures(world)
    await found(measures, space(model=("a", "b")))
    first, *others = measures.kept[:7]
    assert first == {}
    kept = {AS_IT_IS: HELD_OUT, Configuration().plus(setting("a")): HELD_OUT}
    assert others[0] == kept  # that of what is asked now
    assert others[-1] == kept  # that of the best so far


async def test_a_recipe_that_passes_nothing_is_no_bar() -> None:
    measures = FakeMeasures(says({"as it is": (0.0, 0.1)}))
    result = await found(measures, space(model=("a",)))
    assert (result.is_passed, result.is_cut) == (False, True)
    assert "passes no case" in (result.problem or "")


_VALUES: Final = st.tuples(st.integers(0, CASES), st.integers(1, 50))


@given(
    table=st.fixed_dictionaries(
        {(model, count): _VALUES for model in ("", "a", "b") for count in ("", "1", "2")}
    ),
    at_least=st.none() | st.sampled_from([0.3, 0.6, 0.9]),
)
async def test_what_is_chosen_passes_and_nothing_cheaper_that_was_measured_does(
    table: dict[tuple[str, str], tuple[int, int]], at_least: float | None
) -> None:
    """A-142."""

    def world(configuration: Configuration, _part: Part) -> tuple[float, float]:
        own = {key: each.value for key, each in configuration.of_step("label").items()}
        passed, cents = table[own.get(Dimension.MODEL, ""), own.get(Dimension.EXAMPLES, "")]
        return passed / CASES, cents / 100

    steps = space(model=("a", "b"), examples=("1", "2"))
    measures = FakeMeasures(world)
    result = await found(measures, steps, at_least=at_least)
    again = await found(FakeMeasures(world), steps, at_least=at_least)
    assert again == result
    if not result.is_passed:
        return
    rate, cost = world(result.chosen, Part.SEARCH)
    assert rate >= result.bar - 1e-9
    assert result.is_confirmed
    for each in result.trials:
        other_rate, other_cost = world(each.configuration, Part.SEARCH)
        if each.verdict is TrialVerdict.PASSED:
            assert other_cost >= cost - 1e-9 or other_rate < result.bar
    assert len(result.trials) <= steps.most * 2


async def test_other_settings_of_a_model_that_is_dearer_are_not_tried() -> None:
    def world(configuration: Configuration, _part: Part) -> tuple[float, float]:
        return 1.0, 0.5 if Dimension.MODEL in configuration.of_step("label") else 0.1

    result = await found(FakeMeasures(world), space(model=("large",), examples=("1", "2")))
    labels = [each.configuration.label for each in result.trials]
    assert labels == ["as it is", "label: large", "label: examples 1", "label: examples 2"]


PRICES: Final = {"own": 0.10, "small": 0.01, "tiny": 0.005, "dear": 1.0}


def of_prices(*passing: str) -> World:
    """Configurations with these models pass; each costs what its model is expected to cost."""

    def world(configuration: Configuration, _part: Part) -> tuple[float, float]:
        own = configuration.of_step("label")
        name = own[Dimension.MODEL].value if Dimension.MODEL in own else "own"
        return (1.0 if name in passing else 0.2), PRICES[name] * (1 + 0.1 * (len(own) > 1))

    return world


def tried(result: SearchResult) -> list[str]:
    return [each.configuration.label.removeprefix("label: ") for each in result.trials]


def wide() -> StepSpace:
    return space(model=("dear", "small", "tiny"), output=("json",), examples=("1", "2"))


async def test_each_model_is_tried_as_the_recipe_is_before_other_settings_are() -> None:
    """A-142."""
    measures = FakeMeasures(of_prices("own", "small", "dear"), prices=PRICES)
    result = await found(measures, wide())
    assert tried(result)[:3] == ["as it is", "tiny", "small"]
    assert [each for each in tried(result) if not each.startswith(("tiny", "small"))] == [
        "as it is",
        "dear",  # what saves nothing comes last
    ]
    assert tried(result)[-1] == "dear"
    assert tried(result).index("tiny, examples 2") < tried(result).index("small, output json")


async def test_a_small_budget_is_spent_where_something_can_be_saved() -> None:
    """A-142."""
    world = of_prices("own", "small", "dear")
    most = CASES + 5 + CASES + 2 * HELD_OUT  # as it is, tiny, small, and both confirmed
    measures = FakeMeasures(world, prices=PRICES, most_runs=most)
    result = await found(measures, wide())
    assert tried(result)[:3] == ["as it is", "tiny", "small"]
    assert result.chosen.label == "label: small"


async def test_models_are_tried_in_the_order_of_their_price_and_unknown_ones_last() -> None:
    prices = {name: price for name, price in PRICES.items() if name != "tiny"}
    measures = FakeMeasures(of_prices("own"), prices=prices)
    result = await found(measures, space(model=("tiny", "dear", "small")))
    assert tried(result) == ["as it is", "small", "tiny", "dear"]


async def test_where_nothing_passes_dearer_models_are_tried_before_other_settings() -> None:
    measures = FakeMeasures(of_prices("dear"), prices=PRICES)
    result = await found(measures, wide(), at_least=0.9)
    assert tried(result)[:4] == ["as it is", "tiny", "small", "dear"]
    assert result.chosen.label == "label: dear"


async def test_models_of_all_steps_are_tried_before_other_settings_of_the_first_step() -> None:
    def world(configuration: Configuration, _part: Part) -> tuple[float, float]:
        models = [each for each in configuration.settings if each.dimension is Dimension.MODEL]
        return 1.0, 0.2 - 0.02 * len(models) + 0.01 * len(configuration.settings)

    steps = (
        space("read", model=("small",), examples=("1",)),
        space("write", model=("small",), examples=("1",)),
    )
    result = await found(FakeMeasures(world), *steps)
    assert tried(result)[:3] == ["as it is", "read: small", "read: small; write: small"]
    assert len(result.trials) <= most_configurations(steps)


async def test_a_recipe_that_was_not_measured_ends_in_no_choice_by_its_bar() -> None:
    """A-142."""

    class Outage(FakeMeasures):
        async def measure(
            self,
            configuration: Configuration,
            part: Part,
            count: int,
            *,
            runs_kept: Mapping[Configuration, int],
        ) -> Measurement:
            measured = await super().measure(configuration, part, count, runs_kept=runs_kept)
            if configuration != AS_IT_IS:
                return measured
            return evolve(measured, shares=(None, *measured.shares[1:]), problem="1 run failed")

    world = of_prices("own", "small")
    own = await found(Outage(world), space(model=("small",)))
    assert (own.is_passed, own.is_cut, len(own.trials)) == (False, True, 1)
    assert own.problem == "the recipe as it is was not measured: 1 run failed"
    told = await found(Outage(world), space(model=("small",)), at_least=0.9)
    assert (told.chosen.label, told.is_confirmed, told.is_cut) == ("label: small", True, True)
    assert told.problem == own.problem


async def test_under_a_bar_of_its_own_what_is_dearer_on_unseen_cases_is_not_chosen() -> None:
    def world(configuration: Configuration, part: Part) -> tuple[float, float]:
        if configuration == AS_IT_IS:
            return 1.0, 0.05
        return 1.0, 0.01 if part is Part.SEARCH else 0.20

    result = await found(FakeMeasures(world), space(model=("other",)), at_least=0.9)
    assert result.chosen == AS_IT_IS


def test_figures_of_a_search_that_was_cut_are_those_of_the_cases_that_count() -> None:
    cut = Measurement(
        shares=(1.0, None, 0.0, None), costs=(0.1, None, 0.3, None), tokens=(10.0, 0.0, 30.0, 0.0)
    )
    assert cut.cost_usd == pytest.approx(0.2)
    assert cut.tokens_each == 20.0
    unknown = Measurement(shares=(1.0, 1.0), costs=(0.1, None), tokens=(1.0, 1.0))
    assert unknown.cost_usd is None


async def test_what_could_not_be_compared_with_the_recipe_on_unseen_cases_is_no_whole_result() -> (
    None
):
    """A-142."""

    class LateOutage(FakeMeasures):
        async def measure(
            self,
            configuration: Configuration,
            part: Part,
            count: int,
            *,
            runs_kept: Mapping[Configuration, int],
        ) -> Measurement:
            measured = await super().measure(configuration, part, count, runs_kept=runs_kept)
            is_hit = configuration == AS_IT_IS and part is Part.CONFIRMATION
            return evolve(measured, problem="1 run failed") if is_hit else measured

    steps = space(model=("small",))
    passing = await found(LateOutage(of_prices("own", "small")), steps, at_least=0.9)
    assert (passing.chosen.label, passing.is_confirmed, passing.is_cut) == (
        "label: small",
        True,
        True,
    )
    assert passing.problem == "the recipe as it is was not measured: 1 run failed"
    missing = await found(LateOutage(of_prices("small")), steps, at_least=0.9)
    assert (missing.is_confirmed, missing.is_cut) == (True, False)  # the recipe is no alternative


# --- other words ----------------------------------------------------------------------------------


@frozen
class WrittenWords(FakeMeasures):
    """Words that pass the cases of a table, in the order in which they are written."""

    tables: Sequence[Collection[int]] = ()
    """By the number of the words, the cases of the search that pass; first those as it is."""
    parents: list[str] = field(factory=list)

    async def other_words(
        self, step: str, parent: Configuration, *, runs_kept: Mapping[Configuration, int]
    ) -> Setting | None:
        self.parents.append(parent.label)
        assert runs_kept
        number = len(self.parents)
        return setting(str(number), Dimension.WORDS) if number < len(self.tables) else None

    async def measure(
        self,
        configuration: Configuration,
        part: Part,
        count: int,
        *,
        runs_kept: Mapping[Configuration, int],
    ) -> Measurement:
        words = [int(each.value) for each in configuration.settings]
        passed = self.tables[words[0] if words else 0]
        if part is Part.CONFIRMATION:
            return Measurement(shares=(1.0,) * count, costs=(1.0,) * count, tokens=(1.0,) * count)
        shares = tuple(float(case in passed) for case in range(count))
        return Measurement(shares=shares, costs=(1.0,) * count, tokens=(1.0,) * count)


async def words_found(rounds: int, *tables: Collection[int]) -> tuple[SearchResult, list[str]]:
    measures = WrittenWords(lambda _, __: (0.0, None), tables=tables)
    step = evolve(space(), rounds=rounds)
    return await found(measures, step, at_least=0.8), measures.parents


async def test_words_that_no_others_surpass_on_every_case_take_turns() -> None:
    as_it_is, worse, other = range(2, 12), range(2, 6), range(10)
    _, parents = await words_found(5, as_it_is, worse, other, range(3), range(2), range(1))
    assert parents[:2] == ["as it is", "as it is"]  # the first words are as good on no case more
    assert parents[2:4] == ["label: words 2"] * 2  # they pass what is missed as it is


async def test_no_words_are_written_once_some_pass() -> None:
    result, parents = await words_found(5, range(10), range(18))
    assert parents == ["as it is"]
    assert result.chosen.label == "label: words 1"
    assert result.is_confirmed


async def test_a_turn_without_words_counts_as_one() -> None:
    result, parents = await words_found(3, range(10))
    assert len(parents) == 3
    assert not result.is_passed


async def test_no_search_writes_more_words_than_is_said_before() -> None:
    spaces = [evolve(space(model=("a", "b")), rounds=4)]
    assert most_reflections(spaces) == 12
    assert most_configurations(spaces) > most_configurations([space(model=("a", "b"))])

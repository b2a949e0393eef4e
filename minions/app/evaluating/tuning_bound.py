"""What a tuning asks and costs at most, said before anything is asked."""

from __future__ import annotations

from attrs import frozen

from minions.analysis.explanation import explain
from minions.analysis.spending import KnowModel, UpperBound
from minions.app.evaluating.tuning_runs import Tuning
from minions.app.wiring.runtime import Runtime
from minions.data.json_values import JsonValue
from minions.evaluation.case_parts import CaseParts
from minions.evaluation.tuning import Configuration
from minions.evaluation.tuning_search import most_configurations, most_confirmed
from minions.recipe.model import AgentRecipe
from minions.recipe.tool_specs import tool_specs


@frozen(kw_only=True)
class TuningBound:
    """Upper bounds of a tuning; as a rule most configurations are dropped early."""

    configurations: int
    runs: int
    """Without those of models that grade."""
    cost_usd: float | None
    """US dollars of these runs; None: there is no bound."""
    unbounded: tuple[str, ...]
    """Why not."""

    def to_json(self) -> dict[str, JsonValue]:
        """The bounds as JSON."""
        return {
            "configurations": self.configurations,
            "runs": self.runs,
            "cost_usd": self.cost_usd,
            "unbounded_because": list(self.unbounded),
        }


def tuning_bound(
    tuning: Tuning, runtime: Runtime, know: KnowModel, *, samples: int, max_cost_usd: float | None
) -> TuningBound:
    """The bounds of a tuning that was checked.

    Args:
        know: Prices and context lengths of models.
        max_cost_usd: The limit of the whole; None: there is none.
    """
    parts: CaseParts = tuning.parts
    configurations = most_configurations(tuning.space.steps)
    confirmed = min(configurations, most_confirmed())
    runs = samples * (configurations * len(parts.search) + confirmed * len(parts.confirmation))
    found = _of_run(tuning, runtime, know)
    cost = None if found.at_most is None else found.at_most * runs
    if max_cost_usd is not None:
        cost = max_cost_usd if cost is None else min(cost, max_cost_usd)
    return TuningBound(
        configurations=configurations,
        runs=runs,
        cost_usd=cost,
        unbounded=found.unbounded if cost is None else (),
    )


def _of_run(tuning: Tuning, runtime: Runtime, know: KnowModel) -> UpperBound:
    """What one run costs at most with the dearest choice for each step."""
    base = _cost(tuning.recipe_of(Configuration()), runtime, know)
    total = base.at_most
    unbounded = dict.fromkeys(base.unbounded)
    for space in tuning.space.steps:
        dearest = 0.0
        for setting in (each for own in space.options.values() for each in own):
            own = _cost(tuning.recipe_of(Configuration(frozenset((setting,)))), runtime, know)
            unbounded.update(dict.fromkeys(own.unbounded))
            if own.at_most is None or total is None or base.at_most is None:
                total = None
            else:
                dearest = max(dearest, own.at_most - base.at_most)
        total = None if total is None else total + dearest
    return UpperBound(at_most=total, unbounded=tuple(unbounded))


def _cost(recipe: AgentRecipe, runtime: Runtime, know: KnowModel) -> UpperBound:
    found = explain(
        recipe,
        tool_specs(recipe, runtime.catalog),
        know,
        tools_within=lambda inner: tool_specs(inner, runtime.catalog),
        kinds=runtime.extensions.steps,
    )
    return found.spending.cost_usd

"""The registry of all kinds of steps. A new kind is one line here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from minions.recipe.kinds.analyze_kind import ANALYZE
from minions.recipe.kinds.ask_kind import ASK
from minions.recipe.kinds.assertion_kind import ASSERT
from minions.recipe.kinds.code_kind import CODE
from minions.recipe.kinds.goal_kind import GOAL
from minions.recipe.kinds.kind import StepKind
from minions.recipe.kinds.plan_kind import PLAN
from minions.recipe.kinds.recipe_kind import RECIPE_STEP
from minions.recipe.kinds.set_kind import SET
from minions.recipe.kinds.tool_kind import TOOL
from minions.recipe.kinds.uses_kind import USES

STEP_KINDS: Final[tuple[StepKind, ...]] = (
    GOAL,
    TOOL,
    ANALYZE,
    SET,
    ASSERT,
    RECIPE_STEP,
    ASK,
    USES,
    CODE,
    PLAN,
)
"""All kinds, in the order in which messages and documents list them."""

KINDS: Final[Mapping[str, StepKind]] = {kind.name: kind for kind in STEP_KINDS}
"""The kinds by the key that makes a step one of them."""

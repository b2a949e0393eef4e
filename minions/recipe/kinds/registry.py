"""The registry of all kinds of steps. A new kind is one line here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from minions.recipe.kinds.analyze import ANALYZE
from minions.recipe.kinds.ask import ASK
from minions.recipe.kinds.assertion import ASSERT
from minions.recipe.kinds.code import CODE
from minions.recipe.kinds.goal import GOAL
from minions.recipe.kinds.kind import StepKind
from minions.recipe.kinds.plan import PLAN
from minions.recipe.kinds.recipe import RECIPE_STEP
from minions.recipe.kinds.set import SET
from minions.recipe.kinds.tool import TOOL
from minions.recipe.kinds.uses import USES

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

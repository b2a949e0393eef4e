"""All readers of strangers' data, by name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fuzz.journal_targets import journal_targets
from fuzz.model_targets import model_targets
from fuzz.plan_targets import plan_targets
from fuzz.recipe_targets import recipe_targets
from fuzz.server_target import server_targets
from fuzz.target import Target
from fuzz.tool_targets import tool_targets
from fuzz.weights_target import weights_targets

__all__ = ["all_targets"]


def all_targets(folder: Path) -> Mapping[str, Target]:
    """The targets by name, in the order in which they are run.

    Args:
        folder: An empty one, which files are written to and read from.
    """
    targets = (
        *recipe_targets(folder),
        *model_targets(folder),
        *journal_targets(),
        *plan_targets(folder),
        *tool_targets(folder),
        *server_targets(folder),
        *weights_targets(folder),
    )
    return {each.name: each for each in targets}

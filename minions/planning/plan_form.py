"""How a plan is made a recipe: the choices of whoever asks for it."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from attrs import field, frozen

from minions.contracts.json_values import JsonValue
from minions.contracts.protected_files import PROTECTED_FILES

__all__ = ["PROTECTED_IN_PLANS", "PlanForm", "Sharing"]

_OF_PACKAGES: Final = "pyproject.toml"
"""What a plan may write where it names it: a person sees it in the plan, and packages need it."""
PROTECTED_IN_PLANS: Final = tuple(each for each in PROTECTED_FILES if each != _OF_PACKAGES)
"""What no plan may write."""


class Sharing(StrEnum):
    """How a step sees the files that its dependencies made."""

    NAMES = "names"
    """Their paths only: fewest tokens."""
    OUTLINE = "outline"
    """Their signatures: a step that calls the code knows how."""
    WHOLE = "whole"
    """Their whole text."""


@frozen(kw_only=True)
class PlanForm:
    """How a plan is made a recipe."""

    workspace: str = "."
    """The folder that the recipe works in, as the default of its input `workspace`."""
    context: str = ""
    """What every step is told besides its own; the system context of the seed's planner."""
    share: Sharing = Sharing.OUTLINE
    max_file_characters: int = 24_000
    """Characters of files that one prompt shows."""
    max_repairs: int = 2
    """How often a failed validation goes back to a repair."""
    max_parallel: int = 4
    is_trusted: bool = False
    """Whether nobody but the user writes into the workspace: what is read there is then trusted."""
    results: Mapping[str, JsonValue] = field(factory=dict)
    """Results of steps of an earlier plan that steps of this one depend on, by their ids."""

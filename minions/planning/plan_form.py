"""How a plan is made a recipe: the choices of whoever asks for it."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from attrs import field, frozen

from minions.data.json_values import JsonValue


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
    allow_config: tuple[str, ...] = ()
    """Patterns of files that steps may write although they configure tools outside."""
    allow_secrets: tuple[str, ...] = ()
    """Patterns of files that steps may use although they are taken for secrets."""
    is_asked: bool = False
    """Whether a person approves the plan: then what it names is opened, too, and shown to them."""
    results: Mapping[str, JsonValue] = field(factory=dict)
    """Results of steps of an earlier plan that steps of this one depend on, by their ids."""

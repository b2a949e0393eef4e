"""The type of the fixture `scripted_model`."""

from __future__ import annotations

from typing import Protocol

from minions.adapters.models.script_items import Answer
from minions.adapters.models.scripted import ScriptedModel

__all__ = ["MakeScriptedModel"]


class MakeScriptedModel(Protocol):
    """Makes a scripted model of its answers."""

    def __call__(self, *answers: Answer) -> ScriptedModel:
        """A model that gives these answers in order."""

"""What the fixture `scripted_model` gives."""

from __future__ import annotations

from typing import Protocol

from minions.adapters.models.script_items import Answer
from minions.adapters.models.scripted import ScriptedModel

__all__ = ["MakeScriptedModel"]


class MakeScriptedModel(Protocol):
    """Makes a model of its answers."""

    def __call__(self, *answers: Answer) -> ScriptedModel:
        """A model that gives these answers in turn."""

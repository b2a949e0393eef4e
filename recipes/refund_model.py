"""The offline model of `refund`."""

from __future__ import annotations

from minions import Prompt, ScriptedModel
from minions.testing import Answer


def write(_prompt: Prompt) -> Answer:
    """The same sentence for everybody."""
    return {"text": "We are sorry for the trouble, and have paid you back."}


letters = ScriptedModel(write, name="scripted/refund")

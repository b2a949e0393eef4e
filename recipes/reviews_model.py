"""The offline model of `read_reviews`: finds the words of a review that say it."""

from __future__ import annotations

import re

from minions import Prompt, ScriptedModel
from minions.testing import Answer

_PRODUCTS = ("chair", "desk", "lamp", "shelf")
_UNHAPPY = r"angry|broke|disappointed|damaged|missing|nobody|not work|scratch|terrible|waste|wobbl"


def read(prompt: Prompt) -> Answer:
    """The first product that is named, and whether something is wrong with it."""
    text = (prompt.messages[-1].content or "").lower()
    product = next((name for name in _PRODUCTS if name in text), _PRODUCTS[0])
    return {"product": product, "mood": "unhappy" if re.search(_UNHAPPY, text) else "happy"}


reviews = ScriptedModel(read, name="scripted/read_reviews")

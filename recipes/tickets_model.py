"""The offline model of `classify_tickets`: reads the one ticket it is asked about."""

from __future__ import annotations

import re

from minions import Prompt, ScriptedModel
from minions.testing import Answer

_SIGNS = {
    "feature": r"would (be|love|like|help)|feature request|please add|could you (add|offer|support)"
    r"|i wish",
    "shipping": r"parcel|deliver|shipp|ship to|carrier|courier|tracking|return the|my return"
    r"|send the order|order myself",
    "billing": r"invoice|charge|refund|billed|payment|price|receipt|discount|credit card|pay once"
    r"|card was",
    "account": r"password|log ?in|account|two-factor|user|sign out|administrator|owner",
}
"""Class to what its tickets say, in the order in which they are asked; all else is a bug."""


def classify(prompt: Prompt) -> Answer:
    """The first class whose signs the text has."""
    question = prompt.messages[-1].content or ""
    text = question.rpartition("\nInput:\n")[2].lower()
    found = (name for name, sign in _SIGNS.items() if re.search(sign, text))
    return {"class": next(found, "bug")}


tickets = ScriptedModel(classify, name="scripted/classify_tickets")

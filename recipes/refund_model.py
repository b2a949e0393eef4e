"""The offline model of `refund`, and the tool that stands for the bank."""

from __future__ import annotations

from minions import Extensions, Prompt, ScriptedModel, tool
from minions.testing import Answer


@tool(effect="once")
def pay_back(order: str, amount: float) -> str:
    """Pay money back to the customer of an order."""
    return f"{amount:g} euros for order {order}"


def write(_prompt: Prompt) -> Answer:
    """The same sentence for everybody."""
    return {"text": "We are sorry for the trouble, and have paid you back."}


EXTENSIONS = Extensions(
    tools=[pay_back],
    models={"scripted/refund": ScriptedModel(write, name="scripted/refund")},
)

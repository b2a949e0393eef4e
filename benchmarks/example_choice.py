"""Counts how often the right label is among the examples that a question is shown with, and what
they cost: always the same four, or those nearest to the question.

python -m benchmarks.example_choice    prints the table of docs/step-examples.md

No model is asked. A scripted one answers as the shown example does that has most groups of three
letters in common with the question: another measure than that which chose the examples.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Final

from attrs import frozen

from minions import AgentExecutor, ScriptedModel
from minions.contracts.calls import Prompt
from minions.contracts.messages import MessageRole
from minions.data.json_values import JsonValue, as_object, parse_json
from minions.recipe.catalog import Catalog
from minions.recipe.model import AgentRecipe
from minions.recipe.reading.load import recipe_from_document

__all__ = ["CHOICES", "QUESTIONS", "Choice", "Measurement", "measured", "rows"]

_KNOWN: Final = 5
"""Of each label the first texts are the labelled ones, the others are asked."""
QUESTIONS: Final[Mapping[str, Sequence[str]]] = {
    "refund": (
        "I sent the shoes back two weeks ago and still wait for my money.",
        "When will I be refunded for the order I returned?",
        "Please give me my money back, the coat does not fit.",
        "The refund has not reached my bank account.",
        "You only refunded half of what I paid.",
        "My return arrived at your warehouse on Monday; where is the refund?",
        "I want my money back for this broken lamp.",
        "How long does a refund to a credit card take?",
        "I got a voucher, but I asked for the money.",
        "The bank says nothing came from you since I sent the boots back.",
        "Half of the amount is missing in what you paid back.",
    ),
    "invoice": (
        "I need an invoice with the address of my company.",
        "The invoice shows the wrong VAT number.",
        "Can you send me the invoice for March again?",
        "Where can I download my invoices?",
        "There is a second line on the bill that I cannot explain.",
        "Our accountants need the bill made out to the company.",
        "The VAT on the invoice is wrong.",
        "I lost the invoice of last month.",
        "Where do I find the bill as a PDF to download?",
        "What is the fee in the last line of my invoice?",
        "Please put our tax number on the bill.",
    ),
    "delivery_late": (
        "My parcel should have come on Friday and has not arrived.",
        "The delivery is three days late.",
        "Tracking has said 'in transit' for a week.",
        "When will my order finally arrive?",
        "The courier did not come at the agreed time.",
        "Still no parcel, and it was promised for yesterday.",
        "The tracking page has not changed since Tuesday.",
        "I waited all day and no courier came.",
        "My order is late again.",
        "It is a week over the date that you gave for delivery.",
        "Will the package arrive before the weekend? It should be here by now.",
    ),
    "delivery_address": (
        "Please send the parcel to my office instead.",
        "I moved; can you change the delivery address of my order?",
        "I typed the wrong house number in the address.",
        "The parcel went to my old flat.",
        "Can a neighbour take the parcel in?",
        "Please deliver to my new street, not the old one.",
        "There is a typo in the street of my order.",
        "Send it to the neighbour at number 12, I am away.",
        "Is it still possible to change where the order goes?",
        "I would rather have it at the office than at home.",
        "You shipped it to the flat that I moved out of.",
    ),
    "damaged": (
        "The vase was in pieces when I opened the box.",
        "The screen has a crack right across it.",
        "The box was crushed and the cups are broken.",
        "One leg of the table is bent.",
        "There is a scratch on the new phone.",
        "I opened the package and the plate is broken in two.",
        "The display came cracked.",
        "The chair has a bent leg, straight out of the box.",
        "It looks as if someone stood on the box; the glass is in pieces.",
        "Deep scratches all over the lid.",
        "The bottle broke on the way and everything is wet.",
    ),
    "wrong_item": (
        "I ordered a blue shirt and got a red one.",
        "You sent me size 38 instead of 42.",
        "This is not the book that I ordered.",
        "There is a toaster in the box, but I bought a kettle.",
        "Two of the three things belong to somebody else's order.",
        "The shirt is the wrong colour: I ordered blue.",
        "I bought size 42 and received another.",
        "Somebody else's order was in my box.",
        "A different book came than the one I ordered.",
        "Instead of the kettle there was a blender.",
        "What you sent me is not what I bought.",
    ),
    "password": (
        "I forgot my password.",
        "The link to reset the password does not work.",
        "It says that my password is wrong, but it is right.",
        "I never get the mail for a new password.",
        "How do I choose another password?",
        "Please reset my password.",
        "The reset mail does not come.",
        "My password is refused since this morning.",
        "The link in the mail says that it has expired.",
        "I cannot remember what I chose as a password.",
        "Where do I change my password?",
    ),
    "account_close": (
        "Please delete my account.",
        "I want all of my data removed.",
        "How can I close my account for good?",
        "Remove me from your customers, and delete my profile.",
        "I do not want to be a customer any more.",
        "Delete everything that you have stored about me.",
        "Close the account of my late father, please.",
        "I would like to leave and have my profile removed.",
        "How do I get rid of my account?",
        "Erase my data as the law says.",
        "I am no longer a customer: delete the account.",
    ),
    "newsletter": (
        "Stop sending me the newsletter.",
        "I unsubscribed and still get your advertising.",
        "Too many mails from you every week.",
        "How do I subscribe to the newsletter?",
        "The unsubscribe link leads nowhere.",
        "No more advertising mails, please.",
        "I would like to have the newsletter in French.",
        "Unsubscribe me.",
        "I still get offers each week, although I unsubscribed.",
        "Take my address off the list of the newsletter.",
        "Can I subscribe with a second address?",
    ),
    "payment": (
        "My credit card is refused at the checkout.",
        "Can I pay by bank transfer?",
        "I was charged twice for one order.",
        "The payment page does not load.",
        "Do you take gift cards as payment?",
        "The checkout refuses my card, although there is money on it.",
        "You charged my card two times.",
        "May I pay in instalments?",
        "Is it possible to pay with a gift card and a credit card at once?",
        "At the payment step the page stays white.",
        "A transfer would be easier for me than a card.",
    ),
    "stock": (
        "When will the green jacket be available again?",
        "Is the lamp in stock in your shop in Bonn?",
        "Your page says sold out; will there be more?",
        "Can you tell me when size 40 comes back?",
        "Do you still sell the old model of the kettle?",
        "Will the sold out tent come back?",
        "Is this jacket available in size M?",
        "Does the shop in Bonn have the chair in stock?",
        "I would like a message when the boots are available.",
        "Have you any of the old lamps left?",
        "Out of stock for a month now: when do you get new ones?",
    ),
    "cancel_order": (
        "Please cancel my order from this morning.",
        "I ordered by mistake, can I cancel?",
        "Cancel order 4711 before it is shipped.",
        "I clicked twice, so that one of the two orders is too many.",
        "I have changed my mind and do not want the order.",
        "Can the order of today still be cancelled?",
        "It was a mistake: do not ship it.",
        "There are two orders of mine, please cancel the second.",
        "I no longer want what I ordered an hour ago.",
        "Stop my order before it leaves.",
        "How do I cancel an order that is not shipped yet?",
    ),
}  # fmt: skip


@frozen(kw_only=True)
class Choice:
    """How the examples of a prompt are chosen."""

    name: str
    is_nearest: bool
    most: int


CHOICES: Final = (
    Choice(name="none", is_nearest=False, most=0),
    Choice(name="fixed, 4", is_nearest=False, most=4),
    Choice(name="fixed, one for each of the 12 labels", is_nearest=False, most=12),
    Choice(name="nearest, 2", is_nearest=True, most=2),
    Choice(name="nearest, 4", is_nearest=True, most=4),
)


@frozen(kw_only=True)
class Measurement:
    """What came of all questions with one choice."""

    choice: Choice
    questions: int
    shown: int
    """Questions whose own label is that of a shown example."""
    right: int
    """Questions that the scripted neighbour answered with their label."""
    tokens: float
    """Of a prompt, four characters each, on average."""
    equal: float
    """Those with which it begins as the prompt before it."""
    prompts: Sequence[Prompt]


def _recipe(choice: Choice) -> AgentRecipe:
    # As a file of labels is as a rule: in no order of labels.
    known: list[JsonValue] = [
        {"input": {"text": texts[at]}, "output": {"label": label}}
        for at in range(_KNOWN)
        for label, texts in QUESTIONS.items()
    ]
    examples: JsonValue = known[: choice.most]
    if choice.is_nearest:
        examples = {"choose": "nearest", "items": known, "max": choice.most}
    step: Mapping[str, JsonValue] = {
        "id": "sort",
        "system_prompt": "You sort what customers of a shop write.",
        "goal": "Which label has this message? {{ inputs.text }}",
        "output": {"label": {"type": "string", "enum": list(QUESTIONS)}},
        "examples": examples,
    }
    document: JsonValue = {"id": "sort", "inputs": {"text": "string"}, "steps": [step]}
    assert isinstance(document, dict)
    return recipe_from_document(document, Catalog())


def _threes(text: str) -> frozenset[str]:
    letters = f"  {text.lower()} "
    return frozenset(letters[at : at + 3] for at in range(len(letters) - 2))


def _neighbour(prompt: Prompt) -> tuple[str | None, frozenset[str]]:
    """The label of the shown example that is most like the question, and all labels shown."""
    turns = [each.content or "" for each in prompt.messages if each.is_example]
    goal = next(each for each in reversed(prompt.messages) if each.role is MessageRole.GOAL)
    asked = _threes(goal.content or "")
    best: tuple[float, str | None] = (0.0, None)
    labels = []
    for question, answer in zip(turns[::2], turns[1::2], strict=True):
        labels.append(str(as_object(parse_json(answer))["label"]))
        threes = _threes(question)
        best = max(
            best, (len(asked & threes) / len(asked | threes), labels[-1]), key=lambda e: e[0]
        )
    return best[1], frozenset(labels)


async def measured(choice: Choice) -> Measurement:
    """Ask all questions, each in a run of its own."""
    prompts: list[Prompt] = []

    def answer(prompt: Prompt) -> Mapping[str, JsonValue]:
        prompts.append(prompt)
        return {"label": _neighbour(prompt)[0] or next(iter(QUESTIONS))}

    executor = AgentExecutor(ScriptedModel(answer))
    recipe = _recipe(choice)
    asked = [(text, label) for label, texts in QUESTIONS.items() for text in texts[_KNOWN:]]
    shown = right = 0
    for text, label in asked:
        await executor.execute(recipe, {"text": text})
        found, labels = _neighbour(prompts[-1])
        shown += label in labels
        right += found == label
    texts = ["".join(each.content or "" for each in prompt.messages) for prompt in prompts]
    begins = [_equal_start(*pair) for pair in pairwise(texts)]
    return Measurement(
        choice=choice,
        questions=len(asked),
        shown=shown,
        right=right,
        tokens=sum(map(len, texts)) / len(texts) / 4,
        equal=sum(begins) / len(begins) / 4,
        prompts=prompts,
    )


def _equal_start(one: str, other: str) -> int:
    pairs = zip(one, other, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


async def rows() -> list[str]:
    """The rows of the table in docs/step-examples.md."""
    found = [await measured(choice) for choice in CHOICES]
    return [
        f"| {each.choice.name} | {each.shown / each.questions:.0%} | "
        f"{each.right / each.questions:.0%} | {each.tokens:.0f} | {each.equal:.0f} |"
        for each in found
    ]


if __name__ == "__main__":
    print("\n".join(asyncio.run(rows())))

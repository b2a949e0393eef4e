"""Short texts with known answers: five kinds of tasks, half of their texts from templates.

The other half is written freely: examples that are made from the same templates resemble the first
half only. Examples are never texts of the tasks.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Literal

from attrs import frozen

from minions.data.json_values import JsonValue

__all__ = ["KINDS", "Field", "Kind", "Task", "tasks_of"]

_DAYS: Final = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_COLORS: Final = ("red", "green", "blue", "black", "white")
_SEED: Final = 7
_MADE: Final = 6
"""Texts that are made from the templates of each kind."""


@frozen
class Field:
    """One field of an answer."""

    name: str
    kind: Literal["string", "integer", "boolean"]
    choices: tuple[str, ...] = ()

    def schema(self) -> dict[str, JsonValue]:
        """Its JSON Schema."""
        return {"type": self.kind, **({"enum": list(self.choices)} if self.choices else {})}


@frozen
class Task:
    """A text, and what is right."""

    text: str
    answer: Mapping[str, JsonValue]
    is_varied: bool

    def right(self, given: Mapping[str, JsonValue]) -> int:
        """How many fields of an answer are right; letters' case and blanks do not count."""
        return sum(_same(given.get(name), value) for name, value in self.answer.items())


def _same(given: JsonValue, right: JsonValue) -> bool:
    if isinstance(given, str) and isinstance(right, str):
        return given.strip().strip(".").lower() == right.lower()
    return type(given) is type(right) and given == right


@frozen(kw_only=True)
class Kind:
    """One question about many texts."""

    name: str
    ask: str
    fields: Sequence[Field]
    templates: Sequence[str]
    """Texts with the names of slots in braces; a slot `{a}` may be a field or not."""
    slots: Mapping[str, Sequence[tuple[str, Mapping[str, JsonValue]]]]
    """What may stand in a slot, with what it says of the answer."""
    varied: Sequence[tuple[str, tuple[JsonValue, ...]]]
    """Freely written texts with the values of the fields."""

    def schema(self) -> dict[str, JsonValue]:
        """The schema of an answer; all fields are required."""
        return {
            "type": "object",
            "properties": {each.name: each.schema() for each in self.fields},
            "required": [each.name for each in self.fields],
            "additionalProperties": False,
        }

    def made(self, seed: int) -> Iterator[Task]:
        """Texts from the templates, without end; other seeds give others."""
        chance = random.Random(f"{self.name}-{seed}")  # texts, not secrets
        while True:
            words: dict[str, str] = {}
            answer: dict[str, JsonValue] = {}
            for slot, choices in self.slots.items():
                words[slot], said = chance.choice(choices)
                answer.update(said)
            text = chance.choice(self.templates).format(**words)
            yield Task(text, {each.name: answer[each.name] for each in self.fields}, False)

    def tasks(self) -> list[Task]:
        """The texts of this kind."""
        made = self.made(_SEED)
        names = [each.name for each in self.fields]
        own = [Task(text, dict(zip(names, said, strict=True)), True) for text, said in self.varied]
        return [*(next(made) for _ in range(_MADE)), *own]

    def examples(self, count: int) -> list[Task]:
        """Texts from the templates that are none of the tasks."""
        tasks = {each.text for each in self.tasks()}
        found: list[Task] = []
        for each in self.made(_SEED + 1):
            if len(found) == count:
                break
            if each.text not in tasks and each.text not in {other.text for other in found}:
                found.append(each)
        return found


def _said(name: str, *values: JsonValue) -> list[tuple[str, dict[str, JsonValue]]]:
    """Slots that say the value of a field as it is."""
    return [(str(value), {name: value}) for value in values]


KINDS: Final = (
    Kind(
        name="ticket",
        ask="Sort this message of a customer.",
        fields=(
            Field("category", "string", ("billing", "delivery", "fault", "account")),
            Field("urgent", "boolean"),
            Field("order", "integer"),
        ),
        templates=(
            "Order {order}: {problem} {hurry}",
            "{problem} It is about order {order}. {hurry}",
            "Hello, {problem} My order number is {order}. {hurry}",
        ),
        slots={
            "order": _said("order", 4711, 1302, 9950, 2048, 7788, 6021, 3145, 8400),
            "problem": [
                ("I was charged twice.", {"category": "billing"}),
                ("The invoice shows a wrong amount.", {"category": "billing"}),
                ("My parcel has not arrived.", {"category": "delivery"}),
                ("The package went to the wrong address.", {"category": "delivery"}),
                ("The device does not switch on.", {"category": "fault"}),
                ("The screen is broken.", {"category": "fault"}),
                ("I cannot log in.", {"category": "account"}),
                ("I forgot my password.", {"category": "account"}),
            ],
            "hurry": [
                ("This is urgent!", {"urgent": True}),
                ("I need help at once!", {"urgent": True}),
                ("There is no hurry.", {"urgent": False}),
                ("Take your time.", {"urgent": False}),
            ],
        },
        varied=(
            (
                (
                    "Where are the shoes (no. 5512)? The courier says delivered, but nobody rang. "
                    "Party is tonight, please act now!"
                ),
                ("delivery", True, 5512),
            ),
            (
                "Whenever you find a moment: my bill for 3390 lists shipping that was free.",
                ("billing", False, 3390),
            ),
            (
                "Kettle from order 8216 leaks and smells of smoke - urgent, it is dangerous",
                ("fault", True, 8216),
            ),
            (
                "Please change the e-mail address of my profile, not urgent. Last order: 1077.",
                ("account", False, 1077),
            ),
            (
                "2954 came without its remote control working; batteries are new. No rush.",
                ("fault", False, 2954),
            ),
            (
                "You took 80 instead of 8 euros from my card for 6603. Fix it today, immediately!",
                ("billing", True, 6603),
            ),
        ),
    ),
    Kind(
        name="booking",
        ask="Read the booking out of this message.",
        fields=(
            Field("day", "string", _DAYS),
            Field("hour", "integer"),
            Field("people", "integer"),
        ),
        templates=(
            "A table for {people} on {day} at {hour}:00, please.",
            "We are {people} people and would like to come on {day} at {hour}:00.",
            "Please book {day}, {hour}:00, for {people} persons.",
        ),
        slots={
            "day": [(day.capitalize(), {"day": day}) for day in _DAYS],
            "hour": _said("hour", 11, 12, 13, 17, 18, 19, 20, 21),
            "people": _said("people", 2, 3, 4, 5, 6, 7, 8, 9),
        },
        varied=(
            (
                "Can you squeeze in 3 of us this Friday? 19:00 would be great.",
                ("friday", 19, 3),
            ),
            ("Family lunch, Sunday 12:00. There will be 10 guests.", ("sunday", 12, 10)),
            ("hi, 2 seats, wednesday 20:00, by the window if possible", ("wednesday", 20, 2)),
            ("Tuesday works better than Monday: 18:00, party of 6.", ("tuesday", 18, 6)),
            (
                "Our team of 12 celebrates on Thursday, doors at 17:00.",
                ("thursday", 17, 12),
            ),
            ("Saturday evening, 21:00 sharp, just me and 1 friend - so 2.", ("saturday", 21, 2)),
        ),
    ),
    Kind(
        name="review",
        ask="Read this review of a product.",
        fields=(
            Field("product", "string"),
            Field("mood", "string", ("good", "bad", "mixed")),
            Field("recommends", "boolean"),
        ),
        templates=(
            "I bought the {product}. {mood} {advice}",
            "About the {product}: {mood} {advice}",
        ),
        slots={
            "product": _said(
                "product", "lamp", "chair", "phone", "kettle", "jacket", "radio", "tent", "clock"
            ),
            "mood": [
                ("It is wonderful.", {"mood": "good"}),
                ("I love it.", {"mood": "good"}),
                ("It is terrible.", {"mood": "bad"}),
                ("It broke on the first day.", {"mood": "bad"}),
                ("Some parts are nice, some are not.", {"mood": "mixed"}),
                ("It has good and bad sides.", {"mood": "mixed"}),
            ],
            "advice": [
                ("I recommend it.", {"recommends": True}),
                ("Buy it.", {"recommends": True}),
                ("I do not recommend it.", {"recommends": False}),
                ("Do not buy it.", {"recommends": False}),
            ],
        },
        varied=(
            (
                "Two weeks with this vacuum and I still smile. Get one, you will not regret it!",
                ("vacuum", "good", True),
            ),
            ("Awful umbrella, gone with the first wind. Stay away.", ("umbrella", "bad", False)),
            (
                (
                    "The camera takes lovely pictures, yet the battery is a joke. For the price I "
                    "would still recommend it."
                ),
                ("camera", "mixed", True),
            ),
            (
                (
                    "What a disappointment this printer is: loud, slow, and it eats paper. I would "
                    "never recommend it to anyone."
                ),
                ("printer", "bad", False),
            ),
            ("Best backpack ever, I tell all my friends to buy it", ("backpack", "good", True)),
            (
                "The toaster looks great but burns everything. I cannot recommend it.",
                ("toaster", "mixed", False),
            ),
        ),
    ),
    Kind(
        name="purchase",
        ask="Read the order out of this sentence.",
        fields=(
            Field("item", "string"),
            Field("count", "integer"),
            Field("color", "string", _COLORS),
        ),
        templates=(
            "Please send me {count} {color} {item}.",
            "I would like to order {count} {item} in {color}.",
            "We need {count} {item}, color {color}.",
        ),
        slots={
            "item": _said(
                "item", "shirts", "cups", "pens", "chairs", "bags", "lamps", "caps", "boxes"
            ),
            "count": _said("count", 2, 3, 5, 6, 8, 10, 12, 20),
            "color": _said("color", *_COLORS),
        },
        varied=(
            ("For the kids: 4 blue balloons", ("balloons", 4, "blue")),
            (
                "Last time we took white plates; now green plates please, 24 of them.",
                ("plates", 24, "green"),
            ),
            ("15 umbrellas. Black, as ever.", ("umbrellas", 15, "black")),
            ("Could I have 1 red scarf wrapped as a gift?", ("scarf", 1, "red")),
            ("Our hotel is short of towels - white ones - and wants 60.", ("towels", 60, "white")),
            ("Add 7 candles to the basket, the red kind.", ("candles", 7, "red")),
        ),
    ),
    Kind(
        name="person",
        ask="Read who this sentence is about.",
        fields=(
            Field("name", "string"),
            Field("city", "string"),
            Field("age", "integer"),
        ),
        templates=(
            "{name} is {age} years old and lives in {city}.",
            "My friend {name} from {city} turned {age}.",
            "In {city} I met {name}, aged {age}.",
        ),
        slots={
            "name": _said("name", "Ada", "Ben", "Clara", "David", "Emma", "Felix", "Grace", "Hugo"),
            "city": _said(
                "city", "Paris", "Rome", "Berlin", "Madrid", "Vienna", "Oslo", "Lisbon", "Prague"
            ),
            "age": _said("age", 19, 23, 31, 38, 42, 56, 64, 71),
        },
        varied=(
            ("At 27, Ivan moved to Dublin and never looked back.", ("Ivan", "Dublin", 27)),
            (
                "Julia (45), a baker, opened her third shop in Athens last week.",
                ("Julia", "Athens", 45),
            ),
            (
                "The oldest runner in Boston this year was Karl; he is 83.",
                ("Karl", "Boston", 83),
            ),
            ("Lena grew up in Tokyo and turns 30 soon. Thirty, imagine!", ("Lena", "Tokyo", 30)),
            ("Cairo's youngest pilot, 22, is called Omar.", ("Omar", "Cairo", 22)),
            ("Ask Nina, she is 51 and knows all of Warsaw.", ("Nina", "Warsaw", 51)),
        ),
    ),
)


def tasks_of(kinds: Sequence[Kind] = KINDS) -> list[tuple[Kind, Task]]:
    """All tasks, kind after kind: as the steps of an application are asked."""
    return [(kind, task) for kind in kinds for task in kind.tasks()]

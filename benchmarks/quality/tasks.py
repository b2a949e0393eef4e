"""The questions with their right answers: fields of texts, schemas, word problems, tool loops.

Function calls are those of the Berkeley leaderboard: `function_calls.py`. What is made is made by a
seed, so that each run asks the same; answers of made questions are computed.
"""

from __future__ import annotations

import itertools
import json
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, Literal

from attrs import frozen

from minions.data.errors import ToolError
from minions.data.json_values import JsonValue
from minions.data.schema import JsonSchema, SchemaValidator

HERE: Final = Path(__file__).parent
SEED: Final = 20


class TaskFileError(Exception):
    """A line of a file of tasks is no task."""


@frozen(kw_only=True)
class Score:
    """How much of one answer is right."""

    right: int
    of: int
    confidence: float | None = None
    """How sure the model was; None: that was not asked."""


@frozen(kw_only=True)
class Question:
    """A question whose answer has a schema."""

    id: str
    """Unique among all questions."""
    group: str
    """What it is shown with in a table."""
    ask: str
    """The system text."""
    text: str
    """The user's text."""
    schema: JsonSchema
    right: Mapping[str, JsonValue] | None
    """The right answer; None: whatever fits the schema is one."""

    def score(self, answer: JsonValue) -> Score:
        """How many fields are right, or whether the answer fits; None as the answer: nothing."""
        if self.right is None:
            return Score(right=int(answer is not None and self.is_valid(answer)), of=1)
        given = answer if isinstance(answer, Mapping) else {}
        right = sum(same(given.get(name), value) for name, value in self.right.items())
        return Score(right=right, of=len(self.right))

    def is_valid(self, answer: JsonValue) -> bool:
        """Whether it fits the schema."""
        return not SchemaValidator(self.schema).errors(answer)


def same(given: JsonValue, right: JsonValue) -> bool:
    """Whether a field is right: case, blanks, a first article, marks around a text and the order of
    a list do not count; a number is right as a number only.
    """
    if isinstance(given, str) and isinstance(right, str):
        return _plain(given) == _plain(right)
    if isinstance(given, list) and isinstance(right, list):
        return sorted(map(_plain, map(str, given))) == sorted(map(_plain, map(str, right)))
    return type(given) is type(right) and given == right


def _plain(text: str) -> str:
    return re.sub(r"^(the|a|an) ", "", " ".join(text.casefold().split()).strip(" .,;:!?\"'"))


# --- fields of texts ----------------------------------------------------------------------------

Part = Literal["development", "held-out"]


@frozen(kw_only=True)
class FieldTask:
    """A line of `field_tasks.txt`."""

    question: Question
    part: Part
    evidence: Sequence[str]
    """Words of the text for each judged field, in order; `-`: the text says nothing of it."""


def field_tasks() -> list[FieldTask]:
    """All texts with the values of their fields.

    Raises:
        TaskFileError: A line is not as the beginning of the file says.
    """
    return list(_read_fields((HERE / "field_tasks.txt").read_text("utf-8")))


def _read_fields(text: str) -> Iterator[FieldTask]:
    kind, ask, part = "", "", None
    fields: dict[str, dict[str, JsonValue]] = {}
    count = 0
    for number, line in enumerate(text.splitlines(), 1):
        if not line or line.startswith("#"):
            continue
        if line.startswith("kind "):
            kind, _, ask = line.removeprefix("kind ").partition(": ")
            part, count = None, 0
        elif line.startswith("fields "):
            fields = {
                name: _field_schema(said)
                for name, _, said in (
                    each.partition(": ") for each in line.removeprefix("fields ").split("; ")
                )
            }
        elif line in ("development", "held-out"):
            part = line
        else:
            cells = [each.strip() for each in line.split("|")]
            judged = [name for name, said in fields.items() if _is_judged(said)]
            if part is None or len(cells) != 1 + len(fields) + bool(judged):
                raise TaskFileError(
                    f"Line {number} of field_tasks.txt has {len(cells)} cells under {part}, not the"
                    f" text, its {len(fields)} fields and the evidence: {line!r}"
                )
            count += 1
            values = zip(fields.items(), cells[1:], strict=False)
            yield FieldTask(
                question=Question(
                    id=f"{kind}-{count}",
                    group=kind,
                    ask=ask,
                    text=cells[0],
                    schema=object_of(fields),
                    right={name: _value(cell, said) for (name, said), cell in values},
                ),
                part=part,  # type: ignore[arg-type]  # one of two words
                evidence=cells[-1].split(" & ") if judged else (),
            )


def _field_schema(said: str) -> dict[str, JsonValue]:
    if said == "[string]":
        return {"type": "array", "items": {"type": "string"}}
    if "|" in said:
        return {"type": "string", "enum": [*said.split("|")]}
    return {"type": said}


def _is_judged(schema: Mapping[str, JsonValue]) -> bool:
    return "enum" in schema or schema["type"] == "boolean"


def _value(cell: str, schema: Mapping[str, JsonValue]) -> JsonValue:
    match schema["type"]:
        case "integer":
            return int(cell)
        case "boolean":
            return {"true": True, "false": False}[cell]
        case "array":
            return [*cell.split(", ")]
        case _:
            return cell


def object_of(fields: Mapping[str, JsonSchema]) -> dict[str, JsonValue]:
    """The schema of an object with just these fields."""
    return {
        "type": "object",
        "properties": {name: dict(each) for name, each in fields.items()},
        "required": [*fields],
        "additionalProperties": False,
    }


# --- schemas ------------------------------------------------------------------------------------


def schema_tasks() -> list[Question]:
    """Schemas with many keywords; a right answer is one that fits."""
    lines = (HERE / "schema_tasks.jsonl").read_text("utf-8").splitlines()
    return [
        Question(
            id=f"schema-{each['name']}",
            group=each["group"],
            ask="Answer with data that the text asks for.",
            text=each["text"],
            schema=each["schema"],
            right=None,
        )
        for each in map(json.loads, lines)
    ]


# --- word problems ------------------------------------------------------------------------------

_STORIES: Final[tuple[tuple[str, Callable[[int, int, int], int]], ...]] = (
    (
        "{a} crates hold {b} bottles each. {c} bottles break on the way. How many bottles arrive?",
        lambda a, b, c: a * b - c,
    ),
    (
        (
            "A bus leaves with {b} people. At the first stop {a} get on, at the second {c} get "
            "off. How many people are on the bus then?"
        ),
        lambda a, b, c: b + a - c,
    ),
    (
        (
            "Tickets cost {b} for adults and half of that for children. What do {a} adults and "
            "{c} children pay together?"
        ),
        lambda a, b, c: a * b + c * b // 2,
    ),
    (
        "A gardener plants {a} rows of {c} tulips and {b} roses besides. How many flowers is that?",
        lambda a, b, c: a * c + b,
    ),
    (
        (
            "A tank holds {b} litres. Each day {c} litres are used. How many litres are left after "
            "{a} days?"
        ),
        lambda a, b, c: b - a * c,
    ),
    (
        (
            "A baker makes {b} rolls. He sells them in bags of {c}, and {a} bags are bought. "
            "How many rolls remain?"
        ),
        lambda a, b, c: b - a * c,
    ),
    (
        (
            "Twins are {a} years old, their mother is {b}. How old will all three be together in "
            "{c} years?"
        ),
        lambda a, b, c: 2 * a + b + 3 * c,
    ),
)


def word_problems(part: Part) -> list[Question]:
    """Arithmetic in two or three operations, with numbers by the seed: one half of them."""
    chance = random.Random(SEED)  # questions, not secrets
    found = []
    for number in range(112):
        story, work = _STORIES[number % len(_STORIES)]
        a, c = chance.randint(2, 9), chance.randint(2, 9)
        b = chance.randrange(a * c + 2, a * c + 60, 2)
        found.append(
            Question(
                id=f"problem-{number + 1}",
                group="word problems",
                ask="Solve the problem.",
                text=story.format(a=a, b=b, c=c),
                schema=object_of({"answer": {"type": "integer"}}),
                right={"answer": work(a, b, c)},
            )
        )
    return found[:56] if part == "held-out" else found[56:]


# --- texts of templates -------------------------------------------------------------------------

_WORDS_OF_TEMPLATES: Final[Mapping[str, Sequence[str]]] = {
    "person": ("Ada Berg", "Tom Okafor", "Lucia Prado", "Emil Sand", "Noor Haddad", "Wei Lin"),
    "city": ("Porto", "Lille", "Graz", "Turku", "Gdynia", "Bergen", "Split", "Ghent"),
    "thing": ("towels", "lamps", "chairs", "candles", "plates", "blankets", "mirrors", "vases"),
    "company": ("Northwind", "Bluefin", "Harrow & Sons", "Alder Paper", "Quarry Foods"),
    "day": ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday"),
    "room": ("single", "double", "suite"),
    "way": ("ship", "train", "truck", "plane"),
}
_TEMPLATES: Final[Sequence[tuple[str, str, str, Mapping[str, str]]]] = (
    (
        "booking",
        "What is booked?",
        "Booking {number}: {person} takes a {room} room from {day} for {small} nights.",
        {"person": "string", "room": "room", "day": "day", "small": "integer"},
    ),
    (
        "invoice",
        "What does this invoice say?",
        "Invoice {number} of {company}: {small} {thing} for {amount} euros, {paid}.",
        {"company": "string", "thing": "string", "amount": "integer", "paid": "boolean"},
    ),
    (
        "parcel",
        "Where does this parcel go, and how?",
        "Parcel for {person}: from {city} to {city_2} by {way}, {amount} kilos.",
        {"city": "string", "city_2": "string", "way": "way", "amount": "integer"},
    ),
    (
        "basket",
        "Who orders what?",
        "{person} orders {thing}, {thing_2} and {thing_3}. To be delivered on {day}.",
        {"person": "string", "things": "[string]", "day": "day"},
    ),
)
"""Kind, question, text, and the type of each field: its own, or that of a list of words."""


def templated_texts() -> list[Question]:
    """Texts that differ in their words alone, filled by the seed: 25 of each kind."""
    chance = random.Random(SEED)  # questions, not secrets
    return [
        _filled(f"{kind}-t{number}", kind, ask, text, fields, chance)
        for kind, ask, text, fields in _TEMPLATES
        for number in range(1, 26)
    ]


def _filled(
    name: str,
    kind: str,
    ask: str,
    text: str,
    fields: Mapping[str, str],
    chance: random.Random,
) -> Question:
    values: dict[str, JsonValue] = {
        each: word
        for of, words in _WORDS_OF_TEMPLATES.items()
        for each, word in zip(
            (of, f"{of}_2", f"{of}_3"), chance.sample(words, min(3, len(words))), strict=True
        )
    }
    values |= {"number": chance.randint(1_000, 9_999), "small": chance.randint(2, 9)}
    values |= {"amount": chance.randint(11, 480), "paid": chance.random() < 0.5}
    values["things"] = [values["thing"], values["thing_2"], values["thing_3"]]
    said = {each: str(value).title() if each == "day" else value for each, value in values.items()}
    return Question(
        id=name,
        group=kind,
        ask=ask,
        text=text.format_map({**said, "paid": "paid" if values["paid"] else "still to be paid"}),
        schema=object_of({_NAMES.get(each, each): _type(said) for each, said in fields.items()}),
        right={_NAMES.get(each, each): values[each] for each in fields},
    )


_NAMES: Final = {"city": "from", "city_2": "to", "small": "count", "things": "items"}
"""How fields are called that are not called as what fills them."""


def _type(said: str) -> dict[str, JsonValue]:
    return _field_schema("|".join(_WORDS_OF_TEMPLATES.get(said, (said,))))


# --- tool loops ---------------------------------------------------------------------------------


@frozen(kw_only=True)
class Loop:
    """A way from place to place: each names the next, the last one has a word."""

    id: str
    part: Part
    hops: int
    tools: Sequence[tuple[str, str, str]]
    """Name, description and parameter; the first one is the one that is needed."""
    text: str
    places: Mapping[str, str]
    """What the first tool tells of each."""
    word: str

    def is_right(self, answer: str) -> bool:
        """Whether the answer names the word."""
        return self.word in answer.lower()

    def told(self, tool: str, arguments: Mapping[str, JsonValue]) -> str:
        """What a call gives.

        Raises:
            ToolError: There is no such place.
        """
        name, _, parameter = self.tools[0]
        if tool != name:
            return "It has nothing to do with it."
        place = str(arguments.get(parameter, "")).lower()
        if place not in self.places:
            raise ToolError(f"There is no {parameter} {place!r}.")
        return self.places[place]


_WAYS: Final = (
    (
        ("look", "What stands in a room.", "room"),
        (
            "Look into the room {}, then into the room that it names, and so on to the last one. "
            "Answer with the word that stands there."
        ),
        "The next room is {}.",
        "This is the last room. The word is {}.",
    ),
    (
        ("read_page", "The text of a page of the wiki.", "page"),
        (
            "Read the wiki page {} and follow each link to the next page until there is no more "
            "link. Which code does the last page state?"
        ),
        "See the page {}.",
        "No further link. The code is {}.",
    ),
    (
        ("ask_person", "Asks a person of the company.", "name"),
        (
            "Ask {} who has the key, then whom that person names, and so on. What is the number of "
            "the key?"
        ),
        "I gave it to {}.",
        "I have it. Its number is {}.",
    ),
)
"""The tool, the question, what a place says of the next one, and what the last one says."""
_THINGS: Final = ("amber", "basalt", "cedar", "dune", "ember", "fjord", "grove", "heron", "iris")
OTHER_TOOLS: Final = (
    ("weather", "The weather of a city.", "city"),
    ("translate", "A word in another language.", "word"),
    ("convert_money", "An amount in another currency.", "amount"),
    ("find_train", "The next train to a city.", "city"),
    ("read_mail", "The newest mail of a person.", "person"),
    ("open_door", "Opens the door of a building.", "building"),
    ("play_song", "Plays a song.", "title"),
    ("book_table", "Books a table in a restaurant.", "restaurant"),
)
"""Name, description and parameter of the tools that no loop needs."""


def loops() -> list[Loop]:
    """Ways of one, two, four and eight places, with no other tool and with eight: of both parts."""
    chance = random.Random(SEED)  # questions, not secrets
    found = []
    parts: tuple[Part, ...] = ("development", "held-out")
    for part, hops, others, way in itertools.product(parts, (1, 2, 4, 8), ((), OTHER_TOOLS), _WAYS):
        tool, text, onward, last = way
        names = chance.sample(_THINGS, hops)
        word = f"{chance.choice(_THINGS)}{chance.randint(10, 99)}"
        places = {one: onward.format(other) for one, other in itertools.pairwise(names)}
        found.append(
            Loop(
                id=f"loop-{part}-{tool[0]}-{hops}-{len(others)}",
                part=part,
                hops=hops,
                tools=(tool, *others),
                text=text.format(names[0]),
                places={**places, names[-1]: last.format(word)},
                word=word,
            )
        )
    return found

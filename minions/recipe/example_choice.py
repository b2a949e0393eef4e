"""Which of many examples a step's model is shown: few, short, and of every kind of answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, TypeAlias

from attrs import frozen

from minions.data.json_values import JsonValue, dumps
from minions.data.schema import JsonSchema
from minions.recipe.examples import CHARACTERS_PER_TOKEN, Example
from minions.recipe.expressions.values import as_text

_DEEPEST: Final = 20
"""Levels of an answer in which listed words are looked for."""

_Choice: TypeAlias = tuple[str, str]
"""A place in answers, and one of the values that the schema lists for it, as JSON."""


@frozen(kw_only=True)
class ExampleCandidate:
    """A question with its answer that could be an example."""

    example: Example
    input: JsonValue
    """As `input` of an example in a recipe: what the goal reads, by name."""
    origin: str
    """Where it comes from, for people: a test, or a step of a run."""
    inputs: Mapping[str, JsonValue]
    """The inputs of the run or test."""
    because: str = ""
    """Why it counts as good; empty: its author wrote it."""

    @property
    def size(self) -> int:
        """The characters of its two turns."""
        return _size(self.example)


def turn_tokens(candidates: Sequence[ExampleCandidate]) -> int:
    """The tokens of their turns, estimated."""
    return -(-sum(each.size for each in candidates) // CHARACTERS_PER_TOKEN)


def choose_examples(
    candidates: Sequence[ExampleCandidate],
    schema: JsonSchema | None,
    *,
    most: int,
    max_tokens: int,
    shown: Sequence[Example] = (),
) -> tuple[ExampleCandidate, ...]:
    """The examples that are shown, in the order of the candidates.

    Every value of the output that the schema lists (`enum`, `const`, true and false) is covered
    first, each with the shortest candidate that has the most of them; then others follow, with new
    answers before known ones and later candidates before earlier ones. Of several candidates with
    one question the last counts. The same candidates give the same examples.

    Args:
        candidates: Oldest first.
        schema: The declared output of the step; None: a text.
        most: Examples at most.
        max_tokens: Tokens of all their turns at most, estimated.
        shown: Examples that the step has already: they count against both, what they cover is
            covered, and their questions are not asked again.
    """
    asked = {each.question for each in shown}
    last = {
        each.example.question: at
        for at, each in enumerate(candidates)
        if each.example.question not in asked
    }
    left = {at: candidates[at] for at in sorted(last.values())}
    covered = {choice for each in shown for choice in _choices(each.answer, schema)}
    answers = {dumps(each.answer) for each in shown}
    room = max_tokens * CHARACTERS_PER_TOKEN - sum(map(_size, shown))
    chosen = list[int]()
    choices = {at: frozenset(_choices(each.example.answer, schema)) for at, each in left.items()}
    while len(shown) + len(chosen) < most:
        fitting = [at for at, each in left.items() if each.size <= room]
        if not fitting:
            break
        best = max(
            fitting,
            key=lambda at: _worth(left[at], len(choices[at] - covered), answers, at),
        )
        found = left.pop(best)
        covered |= choices[best]
        answers.add(dumps(found.example.answer))
        room -= found.size
        chosen.append(best)
    return tuple(candidates[at] for at in sorted(chosen))


def _size(example: Example) -> int:
    """The characters of its two turns."""
    return len(example.question) + len(as_text(example.answer))


def _worth(
    candidate: ExampleCandidate, uncovered: int, answers: set[str], at: int
) -> tuple[int, bool, int, int]:
    """More is better. The length counts only while there is something to cover."""
    is_new = dumps(candidate.example.answer) not in answers
    return (uncovered, is_new, -candidate.size if uncovered else 0, at)


def _choices(
    answer: JsonValue, schema: JsonValue, place: str = "", depth: int = 0
) -> Iterator[_Choice]:
    """The listed values that an answer has, with their places; items of a list share one."""
    if not isinstance(schema, Mapping) or depth > _DEEPEST:
        return
    types = schema.get("type")
    if "enum" in schema or "const" in schema or (isinstance(answer, bool) and types == "boolean"):
        yield place, dumps(answer)
    if isinstance(answer, Mapping):
        properties = schema.get("properties")
        for name, own in properties.items() if isinstance(properties, Mapping) else ():
            if name in answer:
                yield from _choices(answer[name], own, f"{place}.{name}", depth + 1)
    elif isinstance(answer, list | tuple):
        for item in answer:
            yield from _choices(item, schema.get("items"), f"{place}[]", depth + 1)
    for name in ("anyOf", "oneOf", "allOf"):
        branches = schema.get(name)
        for branch in branches if isinstance(branches, list | tuple) else ():
            yield from _choices(answer, branch, place, depth + 1)

"""The examples that are nearest to a question by its words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from minions.data.json_values import JsonValue
from minions.engine.compile.text_index import TextField, TextIndex, words_of
from minions.recipe.examples import (
    CHARACTERS_PER_TOKEN,
    Example,
    ExampleBounds,
    ExampleStepSpec,
    listed_values,
)
from minions.recipe.expressions.template import Template, Templates
from minions.recipe.expressions.terms import Term
from minions.recipe.expressions.values import as_text

_QUESTION: Final = "question"
_FIELDS: Final = {_QUESTION: TextField(most_words=2_000)}


class NearestExamples:
    """Chooses examples of one step for each of its questions: the same for equal questions.

    First comes, for each value that the step's output lists (`enum`, `const`, true and false), the
    nearest example that has it; then the nearest others. Near is what shares words with the values
    of the question, rare words more than frequent ones (BM25); those that share none stand behind,
    in their order. One without room is left out.
    """

    def __init__(self, spec: ExampleStepSpec, bounds: ExampleBounds, compiled: Templates) -> None:
        """Take the examples; they are read when the first question comes.

        Args:
            compiled: Compiles the texts of the recipe.
        """
        self._bounds = bounds
        self._question = compiled.compile(spec.example_question)
        self._schema = spec.output
        self._given: Sequence[Example] = spec.examples
        self._examples: Sequence[Example] = ()
        self._values: Sequence[frozenset[tuple[str, str]]] = ()
        """For each example the listed values that it has."""
        self._all_values: frozenset[tuple[str, str]] = frozenset()
        self._index: TextIndex | None = None

    def choose(
        self, values: Mapping[str, JsonValue], recorded: Sequence[Example] | None = None
    ) -> tuple[Example, ...]:
        """The examples for the question with these values, the farthest first.

        Args:
            recorded: Those of recorded runs that are pinned for this run; they are read again where
                they are others than those of the last question. None: those of the step.
        Raises:
            MissingValueError, EvaluationError: The question reads a value that does not exist, or
                is of the wrong type.
        """
        if recorded is not None and recorded != self._given:
            self._given, self._index = recorded, None
        if self._index is None:
            self._index = self._read_examples()
        words = dict.fromkeys(words_of(_values_of(self._question, values)), 1.0)
        scores = self._index.score(words)
        near = sorted(scores, key=lambda at: (-scores[at], at))
        asked = None if self._bounds.shows_asked else as_text(self._question.render(values))
        most, room = self._bounds.most, self._bounds.max_tokens * CHARACTERS_PER_TOKEN
        covered: set[tuple[str, str]] = set()
        chosen: set[int] = set()
        for covers_first in (True, False):
            for at in self._rank_examples(near, scores):
                if len(chosen) == most or (covers_first and covered == self._all_values):
                    break
                example = self._examples[at]
                if at in chosen or (covers_first and self._values[at] <= covered):
                    continue
                if example.size <= room and example.question != asked:
                    chosen.add(at)
                    covered |= self._values[at]
                    room -= example.size
        nearest_last = sorted(chosen, key=lambda at: (scores.get(at, 0.0), -at))
        return tuple(self._examples[at] for at in nearest_last)

    def _read_examples(self) -> TextIndex:
        # Of several with one question the last counts.
        self._examples = tuple({each.question: each for each in self._given}.values())
        self._values = [
            frozenset(listed_values(each.answer, self._schema)) for each in self._examples
        ]
        self._all_values = frozenset().union(*self._values)
        return TextIndex(_FIELDS, [{_QUESTION: words_of(each.question)} for each in self._examples])

    def _rank_examples(self, near: Sequence[int], scores: Mapping[int, float]) -> Iterator[int]:
        yield from near
        yield from (at for at in range(len(self._examples)) if at not in scores)


def _values_of(question: Template, values: Mapping[str, JsonValue]) -> str:
    """What questions differ in: the values, without the words around them."""
    found: list[str] = []

    def note(_: Term, value: JsonValue) -> str:
        found.append(as_text(value))
        return ""

    question.marked(values, note)
    return "\n".join(found)

"""Which origin or constant stands for a value, and why; what a person has to be asked."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

from attrs import evolve, frozen

from minions.capture.alignment import Column
from minions.capture.captured_program import Evidence, Question
from minions.capture.json_places import is_equal, keys_of, value_at
from minions.capture.known_runs import KnownRuns, words_in
from minions.capture.known_values import Sight, is_telling
from minions.capture.origins import Kind, Origin, origins_of
from minions.capture.seen_types import schema_at
from minions.capture.template_writing import constant_words, literal_templates
from minions.capture.traces import is_effect
from minions.data.json_values import JsonValue, dumps, texts_in
from minions.data.schema import JsonSchema

_FEW_WORDS: Final = 3
"""Words around known values, or of a constant, that may stand in what has an effect after one
trace: more are written by a model."""
_WORDS: Final = 8
"""Words of a constant in what changes nothing."""
_LONGEST_LIST: Final = 20
"""Items of a list of which each may have an origin of its own."""
_MOST_CHOICES: Final = 6
"""Choices that a person is shown."""
_NOTHING: Final = object()
_HOW: Final[Mapping[Kind, str]] = {
    Kind.PATH: "path",
    Kind.FILTER: "filter",
    Kind.LOOKUP: "lookup",
    Kind.COMPUTED: "computed",
    Kind.TEXT: "text",
}


Path: TypeAlias = tuple[str | int, ...]


@frozen(kw_only=True)
class ChosenTemplate:
    """What stands for a value of the traces."""

    template: JsonValue
    judged: tuple[Path, ...] = ()
    """Places in the value that a model step has to give: None stands there."""


class Choices:
    """Chooses what stands for each value, and keeps why."""

    def __init__(
        self,
        runs: KnownRuns,
        answers: Mapping[str, str],
        before: Mapping[str, str],
        *,
        accepts: bool,
    ) -> None:
        """Begin with nothing chosen.

        Args:
            runs: With all that is known.
            answers: To questions: by place the chosen template.
            before: By place the template of the recipe that is extended.
            accepts: Whether the proposed choice counts where no answer was given.
        """
        self._runs = runs
        self._loops = runs.loops
        self.answers = answers
        self.before = before
        self._accepts = accepts
        self.evidence: list[Evidence] = []
        self.questions: list[Question] = []

    def tell(self, place: str, how: str, source: str, because: str) -> None:
        """Keep where a value comes from, and why."""
        self.evidence.append(Evidence(place=place, how=how, source=source, because=because))

    def ask(self, place: str, choices: Sequence[str], *, value: JsonValue) -> None:
        """Keep a question, unless its first choice counts without one."""
        if not self._accepts:
            shown = tuple(choices[:_MOST_CHOICES])
            self.questions.append(Question(place=place, value=value, choices=shown))

    def choose_argument(
        self, column: Column, step: str, name: str, sights: Sequence[Sight]
    ) -> ChosenTemplate:
        """What stands for an argument of a step.

        Args:
            column: The calls of the step: each has the argument.
            step: The step's name.
            name: The argument's name.
            sights: The calls, with all their arguments as the value.
        """
        judged: list[Path] = []
        own = [evolve(each, value=value_at(each.value, (name,))) for each in sights]
        template = self._choose_part(column, step, (name,), own, judged)
        return ChosenTemplate(template=template, judged=tuple(judged))

    def _choose_part(
        self, column: Column, step: str, path: Path, sights: Sequence[Sight], judged: list[Path]
    ) -> JsonValue:
        place = ".".join((step, *map(str, path)))
        key = next(each for each in reversed(path) if isinstance(each, str))
        chosen = self.choose_origin(sights, key, place, column)
        if chosen is not None:
            return chosen
        values = [each.value for each in sights]

        def choose_at(part: str | int) -> JsonValue:
            below = [evolve(each, value=value_at(each.value, (part,))) for each in sights]
            return self._choose_part(column, step, (*path, part), below, judged)

        keys = keys_of(values[0])
        if all(isinstance(each, Mapping) and keys_of(each) == keys for each in values):
            return {part: choose_at(part) for part in keys}
        length = length_of_lists(values)
        if length is not None:
            return [choose_at(at) for at in range(length)]
        spec = self._runs.spec_of(column.tool)
        constant = self._constant_reason(sights, column, schema_at(spec, path))
        if constant is None:
            judged.append(path)
            return None
        self.tell(place, "constant", dumps(values[0]), constant)
        return literal_templates(values[0])

    def choose_origin(
        self, sights: Sequence[Sight], key: str, place: str, column: Column | None = None
    ) -> str | None:
        """The template that gives the value; None: none does, or it may not stand for it.

        Args:
            sights: Where the value was seen, at least one.
            key: The parameter or field that it is for.
            place: For people: `send_mail.body`.
            column: The calls whose argument it is; None: it is a part of the output.
        """
        value = sights[0].value
        if isinstance(value, bool) or value is None or value == "":
            return None
        found = self._without_same_lengths(self.origins_of(sights, key, column))
        if not found:
            return None
        if place in self.answers:
            template = self.answers[place]
            self.tell(place, "chosen", template, "a person chose it")
            return template
        before = self.before.get(place)
        kept = next((each for each in found if each.template == before), None)
        best = kept or found[0]
        if kept is None and len(found) > 1 and not _is_plain_choice(found):
            choices = [each.template for each in found]
            self.ask(place, choices, value=value)
            others = ", ".join(choices[1:_MOST_CHOICES])
            self.tell(place, "asked", best.template, f"it may also be {others}")
            return best.template
        times = f" in {len(sights)} places" if len(sights) > 1 else ""
        because = f"the task says it{times}" if best.is_said else f"it has that value{times}"
        self.tell(place, _HOW[best.kind], best.template, because)
        return best.template

    def origins_of(
        self, sights: Sequence[Sight], key: str, column: Column | None = None
    ) -> list[Origin]:
        """The origins that may stand for the value; for the arguments as `choose_origin`."""
        found = origins_of(sights, key, self._runs.values)
        return [each for each in found if self._may_stand(each, sights, column)]

    def _without_same_lengths(self, found: Sequence[Origin]) -> list[Origin]:
        """The choices without the lengths that always are that of one before: a loop gives as many
        results as its list has items.
        """
        lengths = {
            f"{{{{ {name} | length }}}}": f"{loop.source[:-3]} | length }}}}"
            for name, loop in self._loops.items()
        }
        same: dict[str, Origin] = {}
        for each in found:
            same.setdefault(lengths.get(each.template, each.template), each)
        return list(same.values())

    def _may_stand(self, origin: Origin, sights: Sequence[Sight], column: Column | None) -> bool:
        """Whether words around known values may be constant: not where they say much, nor where
        they are a stranger's and go into what has an effect.
        """
        words = constant_words(origin.template)
        if column is not None and self._runs.has_strangers_words(column, words):
            return False
        if _varies(sights) or " " not in str(sights[0].value).strip():
            return True
        return len(words_in(words)) <= _FEW_WORDS

    def _constant_reason(
        self, sights: Sequence[Sight], column: Column, schema: JsonSchema
    ) -> str | None:
        """Why a value that no expression gives is a constant; None: it is not."""
        value = sights[0].value
        if _varies(sights) or self._runs.is_judged(value):
            return None
        if isinstance(value, bool) or value is None or "enum" in schema or "const" in schema:
            return "a choice of few, the same in each run"
        if value == schema.get("default", _NOTHING):
            return "it is the default"
        text = value if isinstance(value, str) else " ".join(texts_in(value))
        runs = len(self._runs.runs)
        if len(sights) > 1 and runs > 1 and not self._runs.has_strangers_words(column, text):
            return f"the same in {runs} runs"
        effect = is_effect(self._runs.spec_of(column.tool))
        if isinstance(value, int | float):
            if effect and is_telling(value):
                return None
            return "a number that nothing known gives"
        if self._runs.is_said_by_author(text):
            return "the task or the recipe says it"
        if self._runs.is_exposed(column):
            return None
        if " " in text and (
            len(re.findall(r"\w+", text)) > (_FEW_WORDS if effect else _WORDS)
            or self._runs.comes_after_results(column)
        ):
            return None
        return "nothing known has it"


def length_of_lists(values: Sequence[JsonValue]) -> int | None:
    """The length of each value; None: one is no list, or it is too long to look at each item."""
    lengths = {len(each) if isinstance(each, list | tuple) else -1 for each in values}
    length = lengths.pop()
    return length if not lengths and 0 <= length <= _LONGEST_LIST else None


def _varies(sights: Sequence[Sight]) -> bool:
    return any(not is_equal(sights[0].value, each.value) for each in sights)


def _is_plain_choice(found: Sequence[Origin]) -> bool:
    """Whether the first is better than the others without a doubt: of one result alone, and the
    only one that has the parameter's name.
    """
    first = found[0]
    same = all(each.roots == first.roots for each in found)
    alike = sum(each.is_alike for each in found)
    is_of_item = first.roots == {"loop"} and any(each.roots != {"loop"} for each in found)
    return (same and first.is_alike and alike == 1) or is_of_item

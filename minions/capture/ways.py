"""Ways: conditions that tell apart the traces that made a call, and outputs where they differ."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from attrs import evolve, frozen

from minions.capture.alignment import Column
from minions.capture.captured_program import OUTPUT
from minions.capture.choices import Choices, ChosenTemplate, Path, length_of_lists
from minions.capture.json_places import is_equal, keys_of, value_at
from minions.capture.known_runs import KnownRuns
from minions.capture.known_values import STATES, Sight
from minions.capture.template_writing import as_expression, literal, literal_templates
from minions.data.json_values import JsonValue, dumps


@frozen(kw_only=True)
class Condition:
    """An expression that is true in some traces, and false in the others."""

    rank: int
    """The better the smaller: a truth value, a state, another word."""
    read: str
    """The expression of what it reads."""
    text: str


class Ways:
    """Where traces differ in their calls: by which condition."""

    def __init__(self, runs: KnownRuns, choices: Choices) -> None:
        self._runs = runs
        self._values = runs.values
        self._choices = choices
        self._before = choices.before
        self._found: dict[frozenset[int], str] = {}
        """By the traces that went there, the condition."""
        self.decisive: set[str] = set()
        """Names of fields that a condition reads."""

    def take_condition(self, present: frozenset[int], condition: str) -> None:
        """Take the condition of these traces from elsewhere: a model gives it."""
        self._found[present] = condition

    def find_condition(self, column: Column, step: str) -> str | None:
        """The condition under which the step is executed; None: nothing known tells it."""
        present = column.present
        if present in self._found:
            return self._found[present]
        place = f"{step}.when"
        found = self._dividing(present)
        if place in self._choices.answers:
            condition = self._choices.answers[place]
            self._choices.tell(place, "chosen", condition, "a person chose it")
        elif found:
            before = self._before.get(place)
            found = [each for each in found if each.text == before] or found
            best = found[0]
            if sum(each.rank == best.rank for each in found) > 1:
                self._choices.ask(place, [each.text for each in found], value=True)
            self._choices.tell(place, "condition", best.text, "it tells the traces apart")
            self.decisive.add(best.read.rpartition(".")[2])
            condition = best.text
        else:
            return None
        self._found[present] = condition
        return condition

    def _dividing(self, present: frozenset[int]) -> list[Condition]:
        """Conditions that hold in these traces alone, the best first."""
        runs = self._runs.runs
        found: list[Condition] = []
        for known in runs[0].known.values:
            if known.is_picked or not isinstance(known.value, str | bool):
                continue
            template = f"{{{{ {known.text} }}}}"
            values = [self._values.give(template, run.scope) for run in runs]
            inside = [value for at, value in enumerate(values) if at in present]
            outside = [value for at, value in enumerate(values) if at not in present]
            if any(type(each) is not type(known.value) for each in values) or any(
                is_equal(one, other) for one in inside for other in outside
            ):
                continue
            if isinstance(known.value, bool):
                text = known.text if inside[0] else f"not {known.text}"
                found.append(Condition(rank=0, read=known.text, text=text))
                continue
            if not all(re.fullmatch(r"[A-Za-z][A-Za-z_ -]*", str(each)) for each in values):
                continue
            is_state = known.label.lower() in STATES
            if not is_state and (
                len({str(each) for each in values}) == len(values)
                or any(run.says(value) for run, value in zip(runs, values, strict=True))
            ):
                continue  # a name of each trace's own says nothing of what kind it is
            words = [literal(each) for each in dict.fromkeys(str(each) for each in inside)]
            is_one = f"== {words[0]}" if len(words) == 1 else f"in [{', '.join(words)}]"
            rank = 1 if is_state else 2
            found.append(Condition(rank=rank, read=known.text, text=f"{known.text} {is_one}"))
        return sorted(found, key=lambda each: each.rank)

    # --- the output ------------------------------------------------------------------------------

    def choose_output(self) -> ChosenTemplate:
        """What stands for the output, where the traces went different ways a choice between what
        each of them gave.
        """
        judged: list[Path] = []
        template = self._choose_part((), self._runs.sights_of_output(), judged)
        return ChosenTemplate(template=template, judged=tuple(judged))

    def _choose_part(self, path: Path, sights: Sequence[Sight], judged: list[Path]) -> JsonValue:
        values = [each.value for each in sights]
        place = ".".join((OUTPUT, *map(str, path)))
        key = next((str(each) for each in reversed(path) if isinstance(each, str)), "")
        chosen = self._choices.choose_origin(sights, key, place)
        if chosen is not None:
            return chosen

        def choose_at(part: str | int) -> JsonValue:
            below = [evolve(each, value=value_at(each.value, (part,))) for each in sights]
            return self._choose_part((*path, part), below, judged)

        keys = keys_of(values[0])
        if all(isinstance(each, Mapping) and keys_of(each) == keys for each in values):
            return {part: choose_at(part) for part in keys}
        length = length_of_lists(values)
        if length is not None and len(values) > 1:
            return [choose_at(at) for at in range(length)]
        by_way = self._choose_by_way(sights, key)
        if by_way is not None:
            self._choices.tell(place, "condition", by_way, "the ways gave different outputs")
            return by_way
        same = all(is_equal(values[0], each) for each in values)
        if same and (len(values) > 1 or values[0] is None):
            self._choices.tell(place, "constant", dumps(values[0]), "the same in each run")
            return literal_templates(values[0])
        judged.append(path)
        return None

    def _choose_by_way(self, sights: Sequence[Sight], key: str) -> str | None:
        """A choice between what each way gave; None: no condition tells them apart."""
        for present, condition in self._found.items():
            parts: list[str] = []
            for is_inside in (True, False):
                own = [each for at, each in enumerate(sights) if (at in present) is is_inside]
                value = own[0].value
                found = self._choices.origins_of(own, key)
                if found and not isinstance(value, bool):
                    parts.append(as_expression(found[0].template))
                elif len(own) > 1 and all(is_equal(value, each.value) for each in own):
                    parts.append(literal(value))
            if len(parts) == 2:
                return f"{{{{ {parts[0]} if {condition} else {parts[1]} }}}}"
        return None

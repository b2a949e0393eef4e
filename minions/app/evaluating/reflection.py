"""Other words for the prompt of a step, which a model writes from answers that did not pass.

After Agrawal et al., "GEPA: Reflective Prompt Evolution Can Outperform Reinforcement Learning"
(arXiv 2507.19457): a model that reads what went wrong, in words, improves instructions with far
fewer runs than a search that only sees rates.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final

from attrs import field, frozen

from minions.app.settings.settings import masked
from minions.data.json_values import JsonValue, dumps
from minions.evaluation.cases import Case
from minions.evaluation.report import CaseOutcome, SampleOutcome
from minions.recipe.model import StepSpec

_KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "goal": ("goal", "system_prompt"),
    "analyze": ("analyze", "context"),
}
"""By the kind of a step, the keys whose words are written again; it has the first one at least."""
_MOST_SHOWN: Final = 4
"""Answers that one reflection reads: more say the same, and each is paid for."""
_LONGEST: Final = 1_200
"""Characters of an answer's inputs, output or reason."""
_GROWTH: Final = 3
"""Times its present length that a text may have."""
_ROOM: Final = 1_000
"""Characters that any text may have."""
_SHORTEST_QUOTE: Final = 24
"""Characters from which an input that stands in a prompt is quoted; shorter ones are words."""
_OF_ANSWERS: Final = ("max_output_tokens", "fallbacks", "cooldown_s", "output_mode")
"""Settings of a model that hold for the step's answers, not for texts that the model writes."""

_RECIPE: Final = """\
id: other-words
inputs:
  texts: {type: string}
  answers: {type: string, untrusted: true}
steps:
  - id: words
    goal: |-
      Below are the texts of a prompt, and answers to it that are wrong. Find out what the texts
      lack, and write them better.
      - Say what holds for all such questions. Quote no question and no answer.
      - Keep what stands in double braces exactly as it is, all of it: it is filled in later.
      - Every word is paid for each time. Leave out what does not help.

      The texts:
      {{ inputs.texts }}

      Wrong answers:
      {{ inputs.answers }}
"""


def words_problem(keys: Mapping[str, JsonValue], step: StepSpec) -> str | None:
    """Why no other words can be written for a step; None: they can.

    Args:
        keys: What stands in the step's text.
    """
    names = _KEYS.get(step.kind, ())
    if not names or not isinstance(keys.get(names[0]), str):
        return "its prompt does not stand in its own text"
    if "messages" in keys:
        return "its prompt is a list of messages"
    return None


def words_of_step(keys: Mapping[str, JsonValue], step: StepSpec) -> Mapping[str, str]:
    """The texts of a step's prompt by key, as far as they stand in its own text."""
    found = {name: keys.get(name) for name in _KEYS.get(step.kind, ())}
    return {name: text for name, text in found.items() if isinstance(text, str)}


@frozen(kw_only=True)
class Reflection:
    """One question to the model that writes: texts, and answers that were wrong with them."""

    words: Mapping[str, str]
    """The texts of the step's prompt, by key."""
    wrong: Sequence[CaseOutcome]
    """Cases of the search, each with an answer that did not pass."""
    model: Mapping[str, JsonValue] = field(factory=dict)
    """The settings of the model that writes; empty: what is configured."""
    asked: Collection[Case] = field(factory=tuple)
    """All cases that are asked, the held out ones included: no text may quote one."""

    @classmethod
    def next_of(
        cls,
        words: Mapping[str, str],
        outcomes: Sequence[CaseOutcome],
        *,
        number: int,
        model: Mapping[str, JsonValue],
        asked: Collection[Case],
    ) -> Reflection | None:
        """The reflection on the next of the answers that did not pass; None: all were read.

        Args:
            number: How many reflections there were on these answers: each reads others.
        """
        wrong = [each for each in outcomes if _find_miss(each) is not None]
        next_ = wrong[number * _MOST_SHOWN :][:_MOST_SHOWN]
        return cls(words=words, wrong=next_, model=model, asked=asked) if next_ else None

    @property
    def recipe(self) -> str:
        """The recipe that asks, as YAML."""
        longest = {name: _ROOM + _GROWTH * len(text) for name, text in self.words.items()}
        properties: dict[str, JsonValue] = {
            "cause": {
                "type": "string",
                "maxLength": _ROOM,
                "description": "what the texts lack, so that these answers are wrong",
            }
        }
        for name, most in longest.items():
            properties[name] = {"type": "string", "minLength": 1, "maxLength": most}
        schema: JsonValue = {
            "type": "object",
            "properties": properties,
            "required": list(properties),
            "additionalProperties": False,
        }
        kept = {key: value for key, value in self.model.items() if key not in _OF_ANSWERS}
        model = f"    model: {dumps(kept)}\n" if kept else ""
        return f'{_RECIPE}    output: {dumps(schema)}\n{model}output: "{{{{ words }}}}"\n'

    @property
    def inputs(self) -> Mapping[str, JsonValue]:
        """The inputs of the recipe."""
        texts = "\n".join(f"{name}: {text}" for name, text in self.words.items())
        return {"texts": texts, "answers": "\n".join(self._answers())}

    def _answers(self) -> Iterator[str]:
        for number, each in enumerate(self.wrong, 1):
            sample = _find_miss(each)
            assert sample is not None  # noqa: S101  # as `next_of` chose them
            yield f"{number}. inputs: {_shorten(dumps(dict(each.case.plain_inputs)))}"
            if sample.has_output:
                yield f"   answer: {_shorten(dumps(sample.output))}"
            if each.case.has_expected:
                yield f"   expected: {_shorten(dumps(each.case.wanted))}"
            yield f"   wrong because: {_shorten(sample.reason or 'it did not pass')}"

    def read(self, output: JsonValue) -> Mapping[str, str] | str:
        """The texts of an answer that differ from the present ones; or why it is not tried."""
        found = output if isinstance(output, Mapping) else {}
        new = {name: found.get(name) for name in self.words}
        texts = {name: text.strip() for name, text in new.items() if isinstance(text, str)}
        if len(texts) < len(self.words):
            return "its answer does not have all texts"
        if all(texts[name] == self.words[name].strip() for name in texts):
            return "it changes nothing"
        before, after = (_expressions(each.values()) for each in (self.words, texts))
        if before != after:
            odd = min(before ^ after)
            return f"it {'leaves out' if odd in before else 'adds'} {odd:.60}"
        quoted = _find_quote(texts.values(), self.words.values(), self.asked)
        if quoted is not None:
            return f"it quotes case {quoted}"
        if any(masked(text) != text for text in texts.values()):
            return "it holds what looks like a key"
        return texts


def _find_miss(outcome: CaseOutcome) -> SampleOutcome | None:
    """The first answer to a case that tells what its model answers, and did not pass."""
    told = (each for each in outcome.samples if each.is_measured and not each.is_passed)
    return next(told, None)


def _shorten(text: str) -> str:
    text = masked(text)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}… ({len(text)} characters)"


def _expressions(texts: Collection[str]) -> frozenset[str]:
    """What stands in double braces, without regard to white space."""
    begun = (part for text in texts for part in text.split("{{")[1:])
    parts = (each.partition("}}") for each in begun)
    return frozenset("".join(f"{{{{{inner}{end}".split()) for inner, end, _ in parts)


def _find_quote(
    texts: Collection[str], before: Collection[str], cases: Collection[Case]
) -> str | None:
    """The first case with a long text of its inputs that stands in the new texts only."""
    new, old = (_plain(" ".join(each)) for each in (texts, before))
    for case in cases:
        for text in _texts_in(dict(case.plain_inputs)):
            plain = _plain(text)
            if len(plain) >= _SHORTEST_QUOTE and plain in new and plain not in old:
                return case.name
    return None


def _plain(text: str) -> str:
    return " ".join(text.casefold().split())


def _texts_in(value: JsonValue) -> Iterator[str]:
    rest = [value]
    while rest:
        each = rest.pop()
        if isinstance(each, str):
            yield each
        elif isinstance(each, Mapping):
            rest += each.values()
        elif isinstance(each, list | tuple):
            rest += each

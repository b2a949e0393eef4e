"""Texts of an output that have to stand in the question: `x-quoted: 4`, at most so many words.

A server that holds answers to a schema is sent the groups of words that there are, as an
enumeration; the answer of any other one is checked. So no name comes out of an example, or out of
what the model was trained with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from itertools import takewhile
from typing import Final, TypeAlias, TypeVar

from attrs import define, field
from returns.result import Failure, Result, Success

from minions.contracts.calls import ModelCallResponse, OutputParser
from minions.contracts.instructions import (
    QUOTED,
    OutputFailure,
    OutputInstructions,
    OutputMode,
    OutputRequest,
)
from minions.contracts.messages import Message, MessageRole
from minions.data.json_values import JsonValue, as_object, find_json_value
from minions.data.schema import JsonSchema, SchemaValidator

T = TypeVar("T")
Form: TypeAlias = OutputInstructions[object]

_MARKS: Final = " \t\n.,;:!?\"'()[]{}“”‘’„«»…"
"""What stands around words and belongs to none of them."""
_MOST_VALUES: Final = 1_000
_MOST_CHARACTERS: Final = 15_000
"""Values of an enumeration and their characters; hosted models take no more. A longer text binds
nothing, and the answer is only checked."""
_OF_QUESTIONS: Final = (MessageRole.USER, MessageRole.GOAL)
_NOT_BOUND: Final = frozenset(("enum", "const", "pattern", "format", "$ref"))
_OF_NAMES: Final = ("properties", "$defs", "definitions")
_OF_SEVERAL: Final = ("anyOf", "allOf", "oneOf", "prefixItems")


@define(eq=False)
class QuotedParser(OutputParser):
    """Knows the question of a step, and what its tools gave: where quoted values have to stand."""

    _parser: OutputParser
    """Reads the answers."""
    shown: Callable[[str], str] | None = None
    """What models see of a text, where personal data are replaced; None: all of it."""
    texts: tuple[str, ...] | None = None
    """None: nothing was asked yet."""
    _bound: dict[int, tuple[Form, tuple[str, ...], Form]] = field(factory=dict)
    """By form: it, the texts, and what it was made into; a repair asks by the same."""

    def read(self, messages: Sequence[Message]) -> None:
        """Take the texts of the conversation that is about to be sent; what the engine itself asks
        later is none of them.
        """
        if self.texts is None:
            # Answers before the question are those of examples, or of earlier turns.
            said = takewhile(lambda each: each.role is not MessageRole.ASSISTANT, messages[::-1])
            asked = [each for each in said if each.role in _OF_QUESTIONS]
            self.texts = ("\n".join(each.content or "" for each in reversed(asked)),)
        given = [each.content or "" for each in messages if each.role is MessageRole.TOOL]
        self.texts = (self.texts[0], *given)

    def bound(self, form: Form) -> Form:
        """The form with the words of the texts in the place of its marks; the same one if it has
        none.
        """
        if not form.is_quoted:
            return form
        texts = self.texts or ()
        kept = self._bound.get(id(form))
        if kept is None or kept[1] != texts:
            # Not by value: a part of what is replaced as a whole would be sent.
            seen = texts if self.shown is None else [self.shown(each) for each in texts]
            schema = _bound_schema(form.json_schema(), seen)
            kept = form, texts, OutputInstructions(schema=schema, name=form.name)
            self._bound[id(form)] = kept
        return kept[2]

    def request(
        self, instructions: OutputInstructions[T], mode: OutputMode
    ) -> OutputRequest | None:
        return self._parser.request(self.bound(instructions), mode)

    def parse(
        self,
        instructions: OutputInstructions[T],
        response: ModelCallResponse,
        mode: OutputMode | None,
    ) -> Result[T, OutputFailure]:
        """The output in an answer, if what is quoted in it stands in the texts."""
        read = self._parser.parse(instructions, response, mode)
        if not isinstance(read, Success) or not instructions.is_quoted:
            return read
        value: object = read.unwrap()
        if not isinstance(value, dict | list | str):  # the caller's class
            calls = response.tool_calls
            value = find_json_value(calls[0].arguments if calls else response.text or "")
        texts = self.texts or ()
        if self.shown is not None:  # values may have been put back, and may not
            texts = (*texts, *map(self.shown, texts))
        plain = [_plain(each) for each in texts]
        schema = instructions.json_schema()
        errors = tuple(_errors(schema, value, plain, "$"))
        if not errors and _has_further_marks(schema):
            checked = as_object(_checked_part(schema, frozenset(_texts_in(value)), plain))
            errors = SchemaValidator(checked).errors(value)
        if not errors:
            return read
        message = f"The answer holds what does not stand in the text: {'; '.join(errors)}."
        return Failure(OutputFailure(message=message, errors=errors, value=value))


def _bound_schema(schema: JsonSchema, texts: Sequence[str]) -> dict[str, JsonValue]:
    sent = {name: _bound_part(name, each, texts) for name, each in schema.items() if name != QUOTED}
    most = schema.get(QUOTED)
    kinds = _kinds(schema)
    if not isinstance(most, int) or "string" not in kinds or not _NOT_BOUND.isdisjoint(schema):
        return sent
    values: list[JsonValue] = [*_word_groups(texts, most)]
    if not values or len(values) > _MOST_VALUES:
        return sent
    if sum(len(str(each)) for each in values) > _MOST_CHARACTERS:
        return sent
    kept = {name: each for name, each in sent.items() if name in ("type", "description", "title")}
    return {**kept, "enum": [*values, *([None] if "null" in kinds else [])]}


def _bound_part(name: str, value: JsonValue, texts: Sequence[str]) -> JsonValue:
    if name in _OF_NAMES and isinstance(value, Mapping):
        return {key: _bound_part("items", each, texts) for key, each in value.items()}
    if name in ("items", "additionalProperties") and isinstance(value, Mapping):
        return _bound_schema(value, texts)
    if name in _OF_SEVERAL and isinstance(value, list | tuple):
        return [_bound_part("items", each, texts) for each in value]
    return value


def _word_groups(texts: Sequence[str], most: int) -> Iterator[str]:
    """Each group of up to so many words that stand together, once, in the order of the texts."""
    seen = set[str]()
    for text in texts:
        words = text.split()
        for begin in range(len(words)):
            for end in range(begin + 1, min(begin + most, len(words)) + 1):
                group = " ".join(words[begin:end]).strip(_MARKS)
                if group and group not in seen:
                    seen.add(group)
                    yield group
        if len(seen) > _MOST_VALUES:
            return


def _errors(schema: JsonValue, value: JsonValue, texts: Sequence[str], place: str) -> Iterator[str]:
    if not isinstance(schema, Mapping):
        return
    most = schema.get(QUOTED)
    if isinstance(most, int) and isinstance(value, str):
        yield from (f"{place}: {value!r:.80} {each}" for each in _faults(value, most, texts))
    if isinstance(value, dict) and isinstance(own := schema.get("properties"), Mapping):
        for name, each in value.items():
            yield from _errors(own.get(name), each, texts, f"{place}.{name}")
    if isinstance(value, list):
        for at, each in enumerate(value):
            yield from _errors(schema.get("items"), each, texts, f"{place}[{at}]")


def _faults(value: str, most: int, texts: Sequence[str]) -> Iterator[str]:
    """Why a text is no quote; nothing: it is one."""
    if len(value.split()) > most:
        yield f"has more than {most} words"
    elif not any(_plain(value) in each for each in texts):
        yield "does not stand there"


def _has_further_marks(schema: JsonValue) -> bool:
    """Whether marks stand where `_errors` does not follow, as below `anyOf` or a `$ref`."""
    if not isinstance(schema, Mapping):
        return False
    own = schema.get("properties")
    parts = [*(own.values() if isinstance(own, Mapping) else ()), schema.get("items")]
    others = [each for name, each in schema.items() if name not in ("properties", "items", QUOTED)]
    return f"'{QUOTED}'" in str(others) or any(map(_has_further_marks, parts))


def _checked_part(node: JsonValue, found: Set[str], plain: Sequence[str]) -> JsonValue:
    """A part of a schema that takes of the texts `found` only quotes where it has a mark."""
    if isinstance(node, list | tuple):
        return [_checked_part(each, found, plain) for each in node]
    if not isinstance(node, Mapping):
        return node
    made = {name: _checked_part(each, found, plain) for name, each in node.items()}
    most = made.get(QUOTED)
    if not isinstance(most, int):
        return made
    quotes: list[JsonValue] = [each for each in found if not [*_faults(each, most, plain)]]
    takes: list[JsonValue] = [{"not": {"type": "string"}}, *({"const": each} for each in quotes)]
    others = made.get("allOf")
    made["allOf"] = [*(others if isinstance(others, list) else ()), {"anyOf": takes}]
    return made


def _texts_in(value: JsonValue) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list):
        for each in value.values() if isinstance(value, Mapping) else value:
            yield from _texts_in(each)


def _plain(text: str) -> str:
    return " ".join(text.casefold().split())


def _kinds(schema: JsonSchema) -> Sequence[JsonValue]:
    said = schema.get("type")
    return said if isinstance(said, list | tuple) else (said,)

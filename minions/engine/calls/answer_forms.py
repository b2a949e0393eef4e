"""Forms of questions: the fields of a flat one, answers typed as `field=value`, and an example."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from attrs import frozen

from minions.data.errors import did_you_mean
from minions.data.field_repr import FieldsRepr
from minions.data.json_values import JsonValue, dumps, parse_json
from minions.data.schema import JsonSchema, SchemaValidator

_PAIR: Final = re.compile(r"([^\s=]{1,200})=(.*)", re.DOTALL)
_NAME: Final = re.compile(r"[A-Za-z_][\w.-]*")
"""What looks like the name of a field."""
_SIMPLE: Final = frozenset({"string", "number", "integer", "boolean"})
_NOUNS: Final = {"integer": "whole number", "number": "number", "boolean": "yes or no"}
_EXAMPLES: Final = {"integer": "1", "number": "1.5", "boolean": "yes"}
_YES_NO: Final = {"yes": True, "y": True, "true": True, "no": False, "n": False, "false": False}
_MOST_FIELDS: Final = 50
_MOST_CHOICES: Final = 20
"""Choices that are shown."""


@frozen(kw_only=True)
class Choice(FieldsRepr):
    """A value that may be chosen."""

    value: str
    title: str | None = None


@frozen(kw_only=True)
class FormField(FieldsRepr):
    """A field of a flat form: one value."""

    name: str
    schema: JsonSchema
    is_required: bool

    @property
    def title(self) -> str | None:
        """What people call it."""
        return _text_of(self.schema, "title")

    @property
    def description(self) -> str | None:
        """What it is for, in words for people."""
        return _text_of(self.schema, "description")

    @property
    def is_list(self) -> bool:
        """Whether several choices may be made."""
        return self.schema.get("type") == "array"

    @property
    def choices(self) -> tuple[Choice, ...]:
        """What may be chosen; empty: it is no choice."""
        items = self.schema.get("items")
        schema = items if self.is_list and isinstance(items, Mapping) else self.schema
        return tuple(_choices_in(schema))

    @property
    def has_default(self) -> bool:
        """Whether the form proposes a value."""
        return "default" in self.schema

    @property
    def default(self) -> JsonValue:
        """The value that the form proposes."""
        return self.schema.get("default")

    @property
    def noun(self) -> str:
        """What fits, in words: `whole number`, `one of red, blue`."""
        if choices := self.choices:
            shown = ", ".join(each.value for each in choices[:_MOST_CHOICES])
            more = len(choices) - _MOST_CHOICES
            listed = f"{shown}, and {more} more" if more > 0 else shown
            return f"some of {listed}, with commas" if self.is_list else f"one of {listed}"
        wanted = _text_of(self.schema, "format")
        return _NOUNS.get(f"{self.schema.get('type')}", f"text, {wanted}" if wanted else "text")

    def value_of(self, text: str) -> JsonValue:
        """The value that was typed.

        Raises:
            ValueError: Says why it does not fit.
        """
        validator = SchemaValidator(self.schema)
        errors: Sequence[str] = ()
        for value in self._readings(text):
            found = validator.errors(value)
            if not found:
                return value
            errors = errors or found
        if self.choices:
            raise ValueError(f"{text[:80]!r} is not {self.noun}")
        raise ValueError("; ".join(each.removeprefix("$: ") for each in errors))

    def _readings(self, text: str) -> Iterator[JsonValue]:
        """The values that a text may stand for, the likeliest first."""
        if self.is_list:
            yield [each.strip() for each in text.split(",") if each.strip()]
        else:
            yield text
        yield from (each.value for each in self.choices if each.title == text)
        if self.schema.get("type") == "boolean" and text.casefold() in _YES_NO:
            yield _YES_NO[text.casefold()]
        try:
            yield parse_json(text)
        except ValueError:
            return


def _text_of(schema: JsonSchema, key: str) -> str | None:
    found = schema.get(key)
    return found if isinstance(found, str) and found.strip() else None


def _choices_in(schema: JsonSchema) -> Iterator[Choice]:
    values, names = schema.get("enum"), schema.get("enumNames")
    if isinstance(values, Sequence) and not isinstance(values, str):
        titles = names if isinstance(names, Sequence) and not isinstance(names, str) else ()
        for number, value in enumerate(values):
            title = titles[number] if number < len(titles) else None
            if isinstance(value, str):
                yield Choice(value=value, title=title if isinstance(title, str) else None)
        return
    for key in ("oneOf", "anyOf"):
        each = schema.get(key)
        for one in each if isinstance(each, Sequence) and not isinstance(each, str) else ():
            value = one.get("const") if isinstance(one, Mapping) else None
            if isinstance(one, Mapping) and isinstance(value, str):
                yield Choice(value=value, title=_text_of(one, "title"))


def fields_of(form: JsonSchema | None) -> tuple[FormField, ...]:
    """The fields of a form that is an object of simple values; empty: it is another one."""
    if form is None or form.get("type") != "object":
        return ()
    properties = form.get("properties")
    if not isinstance(properties, Mapping) or not 0 < len(properties) <= _MOST_FIELDS:
        return ()
    needed = form.get("required")
    required = needed if isinstance(needed, Sequence) else ()
    found = tuple(
        FormField(name=name, schema=schema, is_required=name in required)
        for name, schema in properties.items()
        if isinstance(schema, Mapping)
    )
    return found if len(found) == len(properties) and all(map(_is_simple, found)) else ()


def _is_simple(each: FormField) -> bool:
    return each.schema.get("type") in _SIMPLE or bool(each.choices)


def filled_in(value: JsonValue, form: JsonSchema | None) -> JsonValue:
    """The answer with the values that the form proposes for required fields which it leaves out."""
    if not isinstance(value, Mapping):
        return value
    missing = {
        each.name: each.default
        for each in fields_of(form)
        if each.is_required and each.has_default and each.name not in value
    }
    return {**value, **missing} if missing else value


def typed_fields(text: str, form: JsonSchema | None) -> dict[str, JsonValue] | None:
    """The object that `name=value name='a b'` stands for; None: the text is no such line, or the
    form is no flat one.

    Raises:
        ValueError: Says which field does not fit, and why, or which there is not.
    """
    fields = {each.name: each for each in fields_of(form)}
    pairs = _pairs_in(text, fields) if fields else None
    if pairs is None:
        return None
    found: dict[str, JsonValue] = {}
    for name, value in pairs:
        try:
            found[name] = fields[name].value_of(value)
        except ValueError as error:
            raise ValueError(f"$.{name}: {error}") from error
    return found


def _pairs_in(text: str, names: Mapping[str, FormField]) -> Sequence[tuple[str, str]] | None:
    try:
        words = shlex.split(text)
    except ValueError:
        words = [text]
    pairs = [_pair_in(word, names) for word in words]
    found = [pair for pair in pairs if pair is not None]
    if found and len(found) == len(pairs):
        return found
    if found:
        _refuse_unknown(words, names)
    # One value of several words, which a shell has taken the quotes from.
    whole = _pair_in(text.strip(), names)
    return [whole] if whole is not None and len(found) == 1 else None


def _refuse_unknown(words: Sequence[str], names: Mapping[str, FormField]) -> None:
    """Refuse what looks like a field that there is not: it is no part of the one before it."""
    for word in words:
        name, equals, _ = word.partition("=")
        if equals and name not in names and _NAME.fullmatch(name):
            raise ValueError(
                f"there is no field '{name[:80]}'.{did_you_mean(name, list(names))} Fields are "
                f"{', '.join(names)}. A value that has a = itself is given in JSON."
            )


def _pair_in(word: str, names: Mapping[str, FormField]) -> tuple[str, str] | None:
    found = _PAIR.fullmatch(word)
    return (found[1], found[2]) if found is not None and found[1] in names else None


def example_of(form: JsonSchema | None) -> str:
    """How an answer that fits is typed on a command line; `VALUE` where a text will do."""
    fields = fields_of(form)
    if not fields:
        return _example_of_value(form)
    asked = [each for each in fields if each.is_required] or fields[:1]
    return " ".join(shlex.quote(f"{each.name}={_example_of_field(each)}") for each in asked)


def _example_of_value(form: JsonSchema | None) -> str:
    if form is None:
        return "VALUE"
    field = FormField(name="", schema=form, is_required=True)
    if field.choices and not field.is_list:
        return shlex.quote(field.choices[0].value)
    return {"integer": "1", "number": "1.5", "boolean": "true"}.get(f"{form.get('type')}", "VALUE")


def _example_of_field(each: FormField) -> str:
    if each.has_default and each.default is not None and not each.is_list:
        return each.default if isinstance(each.default, str) else dumps(each.default)
    if each.choices:
        return each.choices[0].value
    return _EXAMPLES.get(f"{each.schema.get('type')}", "TEXT")

"""Secrets by reference: runs store, show and template a marker, never the value.

Values come from a `SecretSource` that is handed in; nothing is read here.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, ClassVar, Final, Protocol, TypeAlias
from urllib.parse import quote, quote_plus

import attrs
from attrs import Attribute, field, frozen

from minions.data.codec import encode
from minions.data.errors import EnvironmentRefusedError, UsageError
from minions.data.field_repr import FieldsRepr
from minions.data.json_values import JsonValue, dumps

_SOURCE: Final = re.compile(r"env:[A-Za-z_][A-Za-z0-9_]*|file:/[^\x00-\x1f\x7f]+")
_HEAD: Final = "${secret:"
_FEWEST_CHARACTERS: Final = 6


def _check_source(_ref: SecretRef, _attribute: Attribute[str], source: object) -> None:
    # The message does not repeat the text: it may be the secret itself, given by mistake.
    if not isinstance(source, str) or not _SOURCE.fullmatch(source):
        raise UsageError(
            "That is not a reference to a secret. Write env:NAME for an environment variable, or "
            "file:/absolute/path for a file.",
            code="bad-secret-ref",
        )


@frozen
class SecretRef(FieldsRepr):
    """The name of a secret, without its value."""

    source: str = field(validator=_check_source)
    """`env:NAME` or `file:/absolute/path` (a newline at the file's end does not count)."""

    @classmethod
    def parse(cls, text: str) -> SecretRef:
        """Parse a source or a marker.

        Raises:
            UsageError: `bad-secret-ref`; the message does not repeat the text, which may be a
                secret.
        """
        if text.startswith(_HEAD) and text.endswith("}"):
            text = text[len(_HEAD) : -1]
        return cls(text)

    @property
    def kind(self) -> str:
        """`env` or `file`."""
        return self.source.partition(":")[0]

    @property
    def name(self) -> str:
        """The variable's name or the file's path."""
        return self.source.partition(":")[2]

    @property
    def marker(self) -> str:
        """The text that stands for the value everywhere except in the call of a tool."""
        return f"{_HEAD}{self.source}}}"

    def __str__(self) -> str:
        return self.marker


SecretSource: TypeAlias = Callable[[SecretRef], str]
"""Looks up the value of a reference.

Raises:
    EnvironmentRefusedError: `missing-secret`; names the variable or file, never a value.
"""

InputValue: TypeAlias = JsonValue | SecretRef
"""A value of an input: JSON, or a reference where the recipe declares a secret."""


class DataclassValue(Protocol):
    """An object of a dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Any]]  # Any: as the standard library types it


class PydanticValue(Protocol):
    """An object of a Pydantic model."""

    def model_dump_json(self) -> str:
        """The object as JSON text."""


class StructValue(Protocol):
    """An object of a msgspec struct."""

    __struct_fields__: ClassVar[tuple[str, ...]]


ObjectValue: TypeAlias = attrs.AttrsInstance | DataclassValue | PydanticValue | StructValue
"""An object of a class with fields, which becomes a JSON object."""
GivenInputs: TypeAlias = Mapping[str, object] | ObjectValue
"""Inputs as a program gives them: values by name, in a mapping (a TypedDict, too) or as the fields
of an object. Each value is JSON, a `SecretRef`, or an object of a class, which becomes JSON."""


def plain_inputs(given: GivenInputs | None) -> Mapping[str, InputValue]:
    """The inputs by name, with objects of classes as JSON.

    Raises:
        UsageError: `bad-input`; they have no names, or a part is not representable in JSON.
    """
    plain: dict[str, InputValue] = {}
    for name, value in _values_by_name(given).items():
        try:
            plain[name] = value if isinstance(value, SecretRef) else encode(value)
        except (TypeError, ValueError) as error:
            message = f"The input '{name}' cannot be written as JSON: {error}."
            raise UsageError(message, code="bad-input") from error
    return plain


def _values_by_name(given: object) -> Mapping[str, object]:
    if given is None:
        return {}
    if isinstance(given, Mapping):
        return given
    kind: type[object] = type(given)
    names = getattr(kind, "__struct_fields__", None)
    if attrs.has(kind):
        names = [each.name for each in attrs.fields(kind)]
    elif is_dataclass(given):
        names = [each.name for each in fields(given)]
    if names is not None:
        return {name: getattr(given, name) for name in names}
    encoded: object = None
    if not isinstance(given, type):
        with contextlib.suppress(TypeError, ValueError):
            encoded = encode(given)
    if isinstance(encoded, Mapping):
        return encoded
    raise UsageError(
        "Inputs are values by name: give a mapping, or an object of attrs, dataclasses, Pydantic "
        f"or msgspec; this is of the class {kind.__name__}.",
        code="bad-input",
    )


class Secrets:
    """The declared secrets of one run: puts values in place of markers,
    and markers in place of values.
    """

    def __init__(self, values: Mapping[SecretRef, str] | None = None) -> None:
        """Prepare the replacements.

        Raises:
            EnvironmentRefusedError: `short-secret`: the value would be found in ordinary text.
        """
        values = values or {}
        _check_values(values)
        dead = {ref.marker: f"$(secret:{ref.source})" for ref in values}
        hidden = [(form, ref.marker) for ref, value in values.items() for form in _forms(value)]
        self._reveal = _Replacement({ref.marker: value for ref, value in values.items()})
        # If two references have the same value, it is replaced by the marker of the first.
        self._clean = _Replacement({**dict(reversed(hidden)), **dead})
        self._disarm = _Replacement(dead)

    @classmethod
    def resolve(cls, refs: Iterable[SecretRef], source: SecretSource) -> Secrets:
        """Look up all values at once, so that a missing one stops the run before it starts.

        Raises:
            EnvironmentRefusedError: As for `source`, or `short-secret`.
        """
        return cls({ref: source(ref) for ref in dict.fromkeys(refs)})

    def __bool__(self) -> bool:
        return bool(self._disarm.texts)

    def reveal(self, value: JsonValue) -> JsonValue:
        """`value` with each marker of a declared secret replaced by the
        secret; keys of objects stay.
        """
        return self._reveal.deep(value, with_keys=False)

    def clean(self, value: JsonValue) -> JsonValue:
        """An untrusted `value` with each secret replaced by its marker.

        Secrets are found as they are and as JSON, Python and URLs write them. Markers in the value
        are disarmed as by `disarm`.
        """
        return self._clean.deep(value)

    def clean_text(self, text: str) -> str:
        """As `clean`, for a text."""
        return self._clean.text(text)

    def disarm(self, value: JsonValue) -> JsonValue:
        """`value` with `$(secret:…)` in place of each marker; tool calls do not replace that
        form.

        For output of models: nobody may have a secret sent anywhere by making a model print its
        name.
        """
        return self._disarm.deep(value)

    def are_shown_in(self, value: JsonValue) -> bool:
        """Whether the value of a secret occurs anywhere in `value`, in any form in which it is
        found.
        """
        return self._clean.occurs_in(value) and self.clean(value) != self.disarm(value)

    def occur_in(self, text: str) -> bool:
        """Whether the value of a secret occurs in `text`, in any form in which it is found."""
        return self._clean.text(text) != self._disarm.text(text)

    def are_named_in(self, value: JsonValue) -> bool:
        """Whether a marker occurs anywhere in `value`."""
        return self._disarm.occurs_in(value)


def _check_values(values: Mapping[SecretRef, str]) -> None:
    markers = [ref.marker for ref in values]
    for ref, value in values.items():
        if len(value.strip()) < _FEWEST_CHARACTERS or any(value in marker for marker in markers):
            raise EnvironmentRefusedError(
                f"The secret {ref.source} is too short, or a part of its own name. A secret has "
                f"at least {_FEWEST_CHARACTERS} characters; else it could not be "
                "distinguished from other text and kept out of outputs. Use a longer one.",
                code="short-secret",
                where=ref.source,
            )


def _forms(value: str) -> Iterator[str]:
    """The value as it is, and as libraries write it into texts."""
    yield value
    yield repr(value)[1:-1]
    yield ascii(value)[1:-1]
    for safe in ("/", ""):
        yield quote(value, safe, errors="surrogatepass")
    yield quote_plus(value, errors="surrogatepass")
    for once in _in_json(value):
        yield once
        yield from _in_json(once)  # JSON text within JSON


def _in_json(text: str) -> tuple[str, str]:
    return json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1]


class _Replacement:
    """Replaces texts anywhere in a value; longest first, for one may contain another."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self.texts = texts
        ordered = sorted(texts, key=len, reverse=True)
        self._any = re.compile("|".join(map(re.escape, ordered)))

    def text(self, text: str) -> str:
        return self._any.sub(lambda found: self.texts[found[0]], text) if self.texts else text

    def occurs_in(self, value: JsonValue) -> bool:
        """Whether `deep` would replace anything."""
        if not self.texts or value is None or isinstance(value, bool):
            return False
        if isinstance(value, str):
            return self._any.search(value) is not None
        if isinstance(value, Mapping):
            return any(map(self.occurs_in, (*value, *value.values())))
        if isinstance(value, Sequence):
            return any(map(self.occurs_in, value))
        return self._any.search(dumps(value)) is not None

    def deep(self, value: JsonValue, *, with_keys: bool = True) -> JsonValue:
        if not self.texts or value is None or isinstance(value, bool):
            return value
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {
                self.text(key) if with_keys else key: self.deep(item, with_keys=with_keys)
                for key, item in value.items()
            }
        if isinstance(value, Sequence):
            return [self.deep(item, with_keys=with_keys) for item in value]
        digits = dumps(value)  # a secret of digits may come back as a number
        return self.text(digits) if self._any.search(digits) else value

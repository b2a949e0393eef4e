"""JSON Schemas: checked for safety, and used for validation."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias
from urllib.parse import unquote

import attrs
from attrs import field, frozen

from minions.data.errors import SchemaError
from minions.data.field_repr import FieldsRepr
from minions.data.json_values import JsonValue
from minions.data.patterns import IN_ALL_S, MatchTime, compile_time

if TYPE_CHECKING:
    from jsonschema.exceptions import ValidationError
    from jsonschema.protocols import Validator

    from minions.data.schema_keywords import CheckBudget


JsonSchema: TypeAlias = Mapping[str, JsonValue]


class SchemaValidator:
    """A compiled schema: validating takes microseconds."""

    def __init__(self, schema: JsonSchema) -> None:
        """Compile the schema.

        Raises:
            SchemaError: As for `check_schema`.
        """
        from minions.data.quick_schema import quick_check

        check_schema(schema)
        self.schema = schema
        self._unused: list[_FullCheck] = []
        """Made for the first value that the quick check does not find to fit; one a thread."""
        self._fits = quick_check(schema)

    def errors(self, value: JsonValue, *, limit: int = 5) -> tuple[str, ...]:
        """The errors of a value, one line per place (`$.a[0].b: …`); empty when it fits the
        schema.

        A check that exceeds its budget ends with a line that says so.
        """
        if self._fits is not None and self._fits(value):
            return ()
        try:
            full = self._unused.pop()
        except IndexError:
            full = _FullCheck(self.schema)
        try:
            return full.errors(value, limit)
        finally:
            self._unused.append(full)


class _FullCheck:
    """The library's check of a schema, for one value at a time."""

    def __init__(self, schema: JsonSchema) -> None:
        from minions.data.schema_keywords import CheckBudget

        self._budget = CheckBudget()
        self._validator = _compile(schema, self._budget)

    def errors(self, value: JsonValue, limit: int) -> tuple[str, ...]:
        from minions.data.schema_keywords import NoVerdictError

        found: list[str] = []
        self._budget.restart(value)
        try:
            for error in self._validator.iter_errors(value):  # stubs say Any for the instance
                path, message = _describe_error(error)
                found.append(f"{path}: {_shorten_message(_in_json_words(message))}")
                if len(found) == limit:
                    break
        except RecursionError:
            return ("$: it is nested too deep to be checked",)
        except NoVerdictError as error:
            return (*found, f"$: {error}")
        finally:
            self._budget.value = None  # do not keep the value alive after its check
        return tuple(found)


def load_validator() -> None:
    """Import what the first value that does not fit needs, so that no event loop waits for it."""
    import jsonschema.validators  # noqa: F401  # for those who come later


def _describe_error(error: ValidationError) -> tuple[str, str]:
    """The place and the message of an error; where no alternative of an `anyOf` or `oneOf` fits,
    what was expected there.
    """
    tried = error.context or ()
    wrong_types = {
        str(each.validator_value): each.message
        for each in tried
        if each.validator == "type" and not each.path
    }
    rest = [each for each in tried if each.validator != "type" or each.path]
    if wrong_types and not rest:
        first, *others = wrong_types
        return error.json_path, ", ".join([wrong_types[first], *(f"'{each}'" for each in others)])
    # The error of the schema `false` has no path.
    if len({next(iter(each.schema_path), None) for each in rest}) == 1:  # the one of its type
        return _describe_error(rest[0])
    return error.json_path, error.message


def _compile(schema: JsonSchema, budget: CheckBudget) -> Validator:
    from jsonschema import Draft202012Validator  # 80 ms to import: only when something validates
    from jsonschema.validators import extend
    from referencing import Registry

    from minions.data.schema_keywords import bounded_keywords

    checks = bounded_keywords(
        Draft202012Validator.VALIDATORS,
        budget,
        lambda reference: _resolve_reference(schema, "$", reference),
        has_pattern_properties="patternProperties" in str(schema),
    )
    kind: type[Validator] = extend(  # type: ignore[no-untyped-call]  # its stub has no types
        Draft202012Validator, checks
    )
    # Where it meets a `$schema` that it knows, the library would continue with a validator class
    # without these checks: also inside a value to which a `$ref` leads.
    kind.evolve = attrs.evolve  # type: ignore[method-assign,assignment]  # as its stub has it
    return kind(dict(schema), registry=Registry())  # the library's own asks the network


_LONGEST_MESSAGE: Final = 2_000
"""Characters of a message of the library, which quotes values; a part of it is shown."""
_PYTHON_WORDS: Final = {"None": "null", "True": "true", "False": "false"}
_WORD_OR_TEXT: Final = re.compile(
    r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|\b(?:None|True|False)\b""", re.DOTALL
)


def _in_json_words(message: str) -> str:
    """The library's message with JSON's spelling of values instead of Python's."""
    known = _shorten_message(message, _LONGEST_MESSAGE)
    return _WORD_OR_TEXT.sub(lambda found: _PYTHON_WORDS.get(found[0], found[0]), known)


def _shorten_message(message: str, most: int = 300) -> str:
    return message if len(message) <= most else f"{message[: most - 1]}…"


def check_schema(schema: JsonSchema) -> None:
    """Refuse a schema that is invalid, refers to other documents, or can block a validator.

    Raises:
        SchemaError: The message names the place as a JSON path.
    """
    try:
        _check(schema)
    except RecursionError:
        raise SchemaError("$: the schema is nested too deep to be checked") from None


def _check(schema: JsonSchema) -> None:
    from minions.data.schema_form import is_plain_schema

    targets: list[JsonValue] = []
    inner_id: str | None = None
    time = compile_time()
    for path, keyword, value in _walk(schema, "$"):
        if keyword in ("$ref", "$dynamicRef"):
            if isinstance(value, str):  # else it is a property named "$ref"
                targets.append(_resolve_reference(schema, path, value))
        elif keyword == "$id" and isinstance(value, str) and path != "$.$id":
            inner_id = path
        elif keyword == "pattern" and isinstance(value, str):
            _check_pattern(path, value, time)
        elif keyword == "patternProperties" and isinstance(value, Mapping):
            for pattern in value:
                _check_pattern(path, pattern, time)
    if targets:
        _check_ids(inner_id)
        _check_expansion(schema)
    if not is_plain_schema(schema):
        _check_by_metaschema(schema, "$")
    _check_targets(schema, targets)


def _check_targets(schema: JsonSchema, targets: Sequence[JsonValue]) -> None:
    """Check what references point to outside of known keywords, such as `#/components/A`: of that
    the metaschema says nothing.
    """
    from minions.data.schema_form import is_plain_schema

    known = {id(each) for each in _subschemas(schema)} if targets else set()
    for target in targets:
        if isinstance(target, Mapping) and id(target) not in known and not is_plain_schema(target):
            _check_by_metaschema(target, "$, in what a reference points to")


def _check_by_metaschema(schema: JsonSchema, place: str) -> None:
    from jsonschema import Draft202012Validator, FormatChecker
    from jsonschema.exceptions import SchemaError as Invalid

    try:
        # Without formats: its `regex` is that of Python, and a pattern was checked by its engine.
        Draft202012Validator.check_schema(dict(schema), format_checker=FormatChecker(()))
    except Invalid as error:
        message = _shorten_message(_in_json_words(error.message))
        raise SchemaError(f"{place}{error.json_path.removeprefix('$')}: {message}") from error


# Values below these keywords are data: what looks like a keyword there is none.
_DATA: Final = ("enum", "const", "default", "examples")
_BY_NAME: Final = ("$defs", "definitions", "dependentSchemas", "patternProperties", "properties")


def _walk(
    node: JsonValue, path: str, *, has_names: bool = False
) -> Iterator[tuple[str, str, JsonValue]]:
    """Path, name and value of every keyword below `node`.

    Args:
        has_names: The keys of `node` are names of properties or definitions, not keywords.
    """
    if isinstance(node, Mapping):
        for key, value in node.items():
            yield f"{path}.{key}", key, value
            if has_names or key not in _DATA:
                by_name = not has_names and key in _BY_NAME
                yield from _walk(value, f"{path}.{key}", has_names=by_name)
    elif isinstance(node, list | tuple):
        for index, value in enumerate(node):
            yield from _walk(value, f"{path}[{index}]")


def _check_expansion(schema: JsonSchema) -> None:
    expansion = Expansion(lambda reference: _resolve_reference(schema, "$", reference))
    expansion.check(schema, "$")
    for path, _, value in _walk(schema, "$"):
        if isinstance(value, Mapping):
            expansion.check(value, path)


def _check_ids(inner: str | None) -> None:
    """References below an inner `$id` start from there instead of from the whole schema."""
    if inner is not None:
        raise SchemaError(
            f"{inner}: an '$id' within a schema changes what its references point to. Leave it out."
        )


def _resolve_reference(schema: JsonSchema, path: str, value: str) -> JsonValue:
    """The schema that a reference points to, as the library finds it.

    Raises:
        SchemaError: The reference points to no schema here.
    """
    if not value.startswith("#"):
        raise SchemaError(
            f"{path}: the reference {value!r} points outside the schema; "
            "only local references (#/$defs/Name) are followed."
        )
    node: JsonValue = schema
    fragment = value.removeprefix("#")
    if fragment and not fragment.startswith("/"):
        return _find_anchor(schema, path, fragment)
    are_names = False
    for part in unquote(fragment[1:]).split("/") if fragment else ():
        key = part.replace("~1", "/").replace("~0", "~")
        is_data = not are_names and key in _DATA
        are_names = not are_names and key in _BY_NAME
        if isinstance(node, Mapping) and key in node and not is_data:
            node = node[key]
        elif isinstance(node, list) and key in map(str, range(len(node))):
            node = node[int(key)]
        else:
            raise SchemaError(f"{path}: the reference {value!r} points to nothing in this schema.")
    if are_names or not isinstance(node, Mapping | bool):
        raise SchemaError(f"{path}: what the reference {value!r} points to is no schema.")
    return node


def _find_anchor(schema: JsonSchema, path: str, name: str) -> JsonValue:
    """The schema with that `$anchor`.

    Raises:
        SchemaError: There is none.
    """
    for node in _subschemas(schema):
        if name in (node.get("$anchor"), node.get("$dynamicAnchor")):
            return node
    raise SchemaError(f"{path}: the reference '#{name}' points to no '$anchor' of this schema.")


_SUBSCHEMA: Final = frozenset(
    {
        *("additionalProperties", "contains", "contentSchema", "else", "if", "items", "not"),
        *("propertyNames", "then", "unevaluatedItems", "unevaluatedProperties"),
    }
)
_SUBSCHEMAS: Final = ("allOf", "anyOf", "oneOf", "prefixItems")


def _subschemas(schema: JsonValue) -> Iterator[JsonSchema]:
    """The schema and those within it, where the library looks for anchors: not in other data."""
    if not isinstance(schema, Mapping):
        return
    yield schema
    for keyword, value in schema.items():
        if keyword in _SUBSCHEMA:
            yield from _subschemas(value)
        elif keyword in _SUBSCHEMAS and isinstance(value, list | tuple):
            for each in value:
                yield from _subschemas(each)
        elif keyword in _BY_NAME and isinstance(value, Mapping):
            for each in value.values():
                yield from _subschemas(each)


def _check_pattern(path: str, pattern: str, time: MatchTime) -> None:
    try:
        time.compiled(pattern)
    except TimeoutError:
        raise SchemaError(
            f"{path}: the patterns of this schema take too long to be compiled: more than "
            f"{IN_ALL_S:g} s."
        ) from None
    except ValueError as error:
        shown = repr(pattern) if len(pattern) <= 200 else f"{pattern[:199]!r}…"
        raise SchemaError(f"{path}: not a regular expression: {shown} ({error}).") from error


# --- how many schemas apply to one value when `allOf`, `$ref` and the like are followed ----------


_SCHEMA: Final = ("not", "if", "then", "else")
_LISTS: Final = ("allOf", "anyOf", "oneOf")
_REFERENCES: Final = ("$ref", "$dynamicRef")
_MOST: Final = 5_000
"""Schemas for one value: some 100 ms of validation."""
_DEEPEST: Final = 40
"""Levels of nesting: each takes several frames of the validator's stack."""


@frozen
class Expansion(FieldsRepr):
    """Counts the schemas that apply to the same value as a given schema; each is counted once."""

    resolve: Callable[[str], JsonValue]
    """Looks up the target of a local reference."""
    _known: dict[int, int] = field(factory=dict)
    """Counts by identity of the schema, which lives at least as long as this object."""

    def check(self, node: Mapping[str, JsonValue], path: str) -> None:
        """Refuse a schema whose expansion is endless or too large.

        Raises:
            SchemaError: The message names `path`.
        """
        if self._count(node, path, ()) > _MOST:
            raise SchemaError(
                f"{path}: with its references followed, more than {_MOST} schemas apply to one "
                "value. Write it with fewer references to the same schema."
            )

    def _count(self, node: JsonValue, path: str, trail: tuple[int, ...]) -> int:
        if not isinstance(node, Mapping):
            return 1
        if id(node) in trail:
            raise SchemaError(
                f"{path}: its references form a cycle for the same value, which never ends. "
                "Refer to it under 'properties' or 'items'."
            )
        if len(trail) == _DEEPEST:
            raise SchemaError(f"{path}: more than {_DEEPEST} references and choices in each other.")
        if id(node) not in self._known:
            inner = (*trail, id(node))
            counts = (self._count(each, path, inner) for each in self._applied_schemas(node))
            self._known[id(node)] = 1 + sum(counts)
        return self._known[id(node)]

    def _applied_schemas(self, node: Mapping[str, JsonValue]) -> Iterator[JsonValue]:
        for keyword, value in node.items():
            if keyword in _REFERENCES and isinstance(value, str):
                yield self.resolve(value)
            elif keyword in _SCHEMA:
                yield value
            elif keyword in _LISTS and isinstance(value, list | tuple):
                yield from value
            elif keyword == "dependentSchemas" and isinstance(value, Mapping):
                yield from value.values()

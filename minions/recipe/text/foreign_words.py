"""Words of other tools, with what to write instead: hints for people who come from there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from minions.data.json_values import JsonValue, dumps

KEY_WORDS: Final[Mapping[str, tuple[str, ...]]] = {
    "prompt": ("goal",),
    "instructions": ("goal", "system_prompt"),
    "needs": ("depends_on",),
    "after": ("depends_on",),
    "dependsOn": ("depends_on",),
    "if": ("when",),
    "condition": ("when",),
    "for_each": ("loop",),
    "foreach": ("loop",),
    "forEach": ("loop",),
    "with_items": ("loop",),
    "run": ("tool", "code"),
    "script": ("tool", "code"),
    "name": ("id",),
}
"""The keys of the recipe language that a key of another tool stands for. It is a hint only where
one of them may stand.
"""

KEY_HINTS: Final[Mapping[str, str]] = {
    "env": "declare a secret input, such as inputs: {token: {type: string, secret: true}}",
}
"""What to write for a key of another tool that no single key stands for."""

MODEL_HINTS: Final[Mapping[str, str]] = {
    **{
        name: f"write it under `model`, as in model: {{{name}: {value}}}"
        for name, value in (
            ("temperature", "0.2"),
            ("top_p", "0.9"),
            ("seed", "7"),
            ("stop", "[END]"),
            ("reasoning_effort", "low"),
            ("max_output_tokens", "500"),
        )
    },
    **dict.fromkeys(
        ("max_tokens", "max_completion_tokens"),
        "write model: {max_output_tokens: 500} for an answer, limits: {max_tokens: 50000} for all",
    ),
    "options": "write model: {temperature: 0.2} for a model; choices are an output with an enum, "
    "as in output: {kind: {enum: [bug, feature]}}",
}
CHOICE_HINT: Final = "write form: {enum: [red, blue]}, with the answers that may be given"
"""What to write for the `options` of a question."""
"""What to write for a setting of a model, where the mapping has a `model` of its own."""

ON_HINTS: Final[Mapping[str, str]] = {
    "schedule": "write `schedule` for times; events from outside start a run through the server",
    "when": "write `when` for a condition, `on_error` for what follows a failure",
}
"""What to write for `on`, where the mapping may have that key."""

SIZE_WORDS: Final = frozenset({"length", "size", "count", "len", "Length", "Count"})
"""Members that lists and texts have in other languages: here it is a filter."""

SCHEMA_WORDS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("options", "choices", "values", "oneof", "allowed"), "write enum: [a, b]"),
    "nullable": 'write type: [string, "null"]',
    "discriminator": "write `const` for that field in each schema of `oneOf`",
    "dependencies": "write dependentRequired for names, dependentSchemas for schemas",
    "additionalItems": "write `items` beside prefixItems",
    "id": "write $id",
    "divisibleBy": "write multipleOf",
    "extends": "write allOf",
    "disallow": "write not: {type: ...}",
    "$recursiveRef": "write $dynamicRef",
    "$recursiveAnchor": "write $dynamicAnchor",
}
"""What to write for a keyword that JSON Schema does not have, or has no more: each promises a check
that would not be made."""
DESCRIBING_WORDS: Final = frozenset(
    """
    markdownDescription markdownEnumDescriptions enumDescriptions enumNames tsEnumNames tsType
    javaType defaultSnippets deprecationMessage doNotSuggest suggestSortText errorMessage example
    externalDocs xml propertyOrder headerTemplate placeholder tooltip allowComments
    allowTrailingCommas fileMatch faker
    """.split()  # noqa: SIM905  # fifty quotes would hide the words
)
"""Keywords of editors, generators and forms that describe, and promise no check."""
DESCRIBING_STARTS: Final = ("ui:", "meta:", "x_")
"""How such keywords begin beside `x-`, which is left as it is."""

TYPE_WORDS: Final[Mapping[str, str]] = {
    "float": "write number",
    "double": "write number",
    "int": "write integer",
    "str": "write string",
    "bool": "write boolean",
    "dict": "write object, or a mapping of its fields",
    "list": "write [string], with the type of its items",
}
"""What to write for a type of another language."""

NAME_WORDS: Final[Mapping[str, str]] = {"item": "loop.item", "index": "loop.index"}
"""The names in templates for names of other tools, in a step with `loop`."""

TYPE_NAMES: Final[Mapping[str, str]] = {
    **{name: name for name in ("string", "number", "integer", "boolean", "object", "null")},
    **dict.fromkeys(("float", "double"), "number"),
    "int": "integer",
    "str": "string",
    "bool": "boolean",
    "dict": "object",
    **dict.fromkeys(("none", "nil", "undefined"), "null"),
}
"""Names of types in this and other languages, each with that of JSON Schema."""
_MOST_WORDS: Final = 20


def type_hint(text: str) -> str | None:
    """What to write for a type such as `string?`, `int | null` or `bug | feature`; None: it is no
    such type.
    """
    words = [word.strip().strip("'\"") for word in text.removesuffix("?").split("|")]
    if not ("|" in text or text.endswith("?")) or not all(words) or len(words) > _MOST_WORDS:
        return None
    known = [TYPE_NAMES.get(word.casefold()) for word in words]
    if text.endswith("?"):
        known.append("null")
    names = [name for name in dict.fromkeys(known) if name is not None]
    if None not in known:
        listed = ", ".join('"null"' if name == "null" else name for name in names)
        return f"write {{type: [{listed}]}}"
    if not names and all(word.replace("-", "_").isidentifier() for word in words):
        return enum_hint(words)
    return None


def enum_hint(values: list[JsonValue] | list[str]) -> str | None:
    """What to write for a list of allowed values, such as `[bug, feature]`; None: it is none."""
    if not 0 < len(values) <= _MOST_WORDS or not all(
        isinstance(each, str | int | float) and len(str(each)) <= _MOST_WORDS * 2 for each in values
    ):
        return None
    listed = ", ".join(
        each if isinstance(each, str) and each.isidentifier() else dumps(each) for each in values
    )
    return f"write {{enum: [{listed}]}}"

"""Checks mappings of a recipe against their key tables: unknown keys, wrong types, and words of
other formats, one fault each.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from attrs import evolve
from msgspec import Struct, field

from minions.data.errors import Fault, UsageError
from minions.data.json_values import JsonValue, dumps
from minions.data.texts import seconds_of
from minions.recipe.expressions.values import nearest
from minions.recipe.text.key_types import Key, Table
from minions.recipe.text.nodes import (
    Entry,
    MappingNode,
    Node,
    Place,
    ScalarNode,
    SequenceNode,
    to_plain,
)

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


Report: TypeAlias = Callable[[Fault], None]
"""Called with each fault as it is found."""


class Texts(Struct, frozen=True, kw_only=True):
    """A text with its place."""

    text: str
    node: ScalarNode


class Section(Struct, frozen=True, kw_only=True):
    """A mapping with checked keys; holds only entries that are valid."""

    whole: Node
    entries: Mapping[str, Entry] = field(default_factory=dict)
    """Entries by the key's own name, also if an alias was written."""
    refused: Mapping[str, Node] = field(default_factory=dict)
    """Values of keys that were refused; faults that only follow from that are not reported."""

    @property
    def place(self) -> Place:
        """The place of the whole mapping."""
        return self.whole.place

    def node(self, name: str) -> Node | None:
        """The value of that key; None: there is none, or it was refused."""
        entry = self.entries.get(name)
        return entry.value if entry else None

    def refused_node(self, name: str) -> Node | None:
        """The value of that key where it was refused; None: it was not, or is not there."""
        return self.refused.get(name)

    def scalar(self, name: str) -> ScalarNode | None:
        """The value of that key if it is a scalar."""
        node = self.node(name)
        return node if isinstance(node, ScalarNode) else None

    def mapping(self, name: str) -> MappingNode | None:
        """The value of that key if it is a mapping."""
        node = self.node(name)
        return node if isinstance(node, MappingNode) else None

    def items(self, name: str) -> tuple[Node, ...]:
        """The items of the list under that key; empty: there is no list."""
        node = self.node(name)
        return node.items if isinstance(node, SequenceNode) else ()

    def text(self, name: str) -> str | None:
        """The text under that key; None: there is none."""
        node = self.scalar(name)
        return node.value if node and isinstance(node.value, str) else None

    def plain(self, name: str, default: JsonValue = None) -> JsonValue:
        """The value of that key as plain data."""
        node = self.node(name)
        return default if node is None else to_plain(node)

    def values(self) -> dict[str, JsonValue]:
        """All entries as plain data."""
        return {name: to_plain(entry.value) for name, entry in self.entries.items()}

    def place_of(self, name: str) -> Place:
        """The place of the key's value; of the whole section where there is none."""
        node = self.node(name)
        return node.place if node else self.place


def read_section(
    node: Node, table: Table, report: Report, owners: Mapping[str, str] | None = None
) -> Section:
    """Check the mapping `node` against `table`; entries that do not fit are reported and left
    out.

    Args:
        owners: Keys that belong to another kind of mapping, with the name of that kind.
    """
    if not isinstance(node, MappingNode):
        report(
            node.place.fault(
                "wrong-type",
                f"{table.name} is a mapping, but this is {type_of(node)}",
                help=f"keys are: {', '.join(table.names)}",
            )
        )
        return Section(whole=node)
    entries: dict[str, Entry] = {}
    refused: dict[str, Node] = {}
    for entry in node.entries:
        key = table.find(entry.key)
        if key is None:
            report(_unknown_key(entry, table, (owners or {}).get(entry.key)))
            near = foreign_keys(entry.key, table.spellings) or (
                nearest(entry.key, table.spellings),
            )
            if (meant := table.find(near[0] or "")) is not None:
                refused.setdefault(meant.name, entry.value)
        elif not key.is_served:
            report(later(entry.key_node.place, entry.key))
        elif key.name in entries:
            report(_given_twice(entry, entries[key.name]))
        elif (fault := check_value(entry.value, key)) is not None:
            report(fault)
            refused[key.name] = entry.value
        else:
            entries[key.name] = entry
    _check_required(node, table, refused, report)
    return Section(whole=node, entries=entries, refused=refused)


def later(place: Place, what: str) -> Fault:
    """The fault for something that a later version will support."""
    return place.fault("not-supported-yet", f"'{what}' is not supported yet")


def foreign_keys(word: str, spellings: tuple[str, ...]) -> tuple[str, ...]:
    """The keys among `spellings` that a key of another tool stands for; empty: none."""
    return tuple(key for key in KEY_WORDS.get(word, ()) if key in spellings)


def suggestion(name: str, options: tuple[str, ...]) -> str | None:
    """`did you mean 'x'?` for the fault's label; None: nothing is similar."""
    near = nearest(name, options)
    return f"did you mean '{near}'?" if near else None


def masked(fault: Fault) -> Fault:
    """The fault without the text that it is about, which may be a secret."""
    line = fault.source_line or ""
    hidden = line[: fault.column - 1] + "*" * len(line[fault.column - 1 :])
    return evolve(fault, source_line=hidden)


def _unknown_key(entry: Entry, table: Table, owner: str | None) -> Fault:
    if owner is not None:
        return entry.key_node.place.fault(
            "unknown-key",
            f"'{entry.key}' belongs to {owner}, but this is {table.name}",
            help=f"keys are: {', '.join(table.names)}",
        )
    meant = foreign_keys(entry.key, table.spellings)
    hint = f"write {' or '.join(map(repr, meant))}" if meant else _key_hint(entry.key, table)
    if hint is not None:
        message = f"unknown key '{entry.key}' in {table.name}"
        return entry.key_node.place.fault("unknown-key", message, label=hint)
    near = suggestion(entry.key, table.spellings)
    return entry.key_node.place.fault(
        "unknown-key",
        f"unknown key '{entry.key:.60}' in {table.name}",
        label=near,
        help=None if near else f"keys are: {', '.join(table.names)}",
    )


def _key_hint(word: str, table: Table) -> str | None:
    """What to write for a key that no single key of the table stands for; None: it is unknown."""
    if word == "on":
        return next((hint for key, hint in ON_HINTS.items() if key in table.spellings), None)
    if word in ("options", "choices") and "ask" in table.spellings:
        return CHOICE_HINT
    if word in MODEL_HINTS and "model" in table.spellings:
        return MODEL_HINTS[word]
    return KEY_HINTS.get(word)


def _given_twice(entry: Entry, first: Entry) -> Fault:
    return entry.key_node.place.fault(
        "duplicate-key",
        f"'{entry.key}' and '{first.key}' are the same key",
        label=f"first given at line {first.key_node.place.line}",
        help="keep one of the two",
    )


def _check_required(
    node: MappingNode, table: Table, refused: Mapping[str, Node], report: Report
) -> None:
    foreign = {key for entry in node.entries for key in foreign_keys(entry.key, table.spellings)}
    for key in table.keys:
        if key.name in refused and (key.name in foreign or not node.find(key.name)):
            continue  # misspelt, or written with a word of another tool, which was reported
        if key.is_required and not any(node.find(name) for name in (key.name, *key.aliases)):
            report(node.place.fault("missing-key", f"{table.name} needs the key '{key.name}'"))


_NAMES: Final[Mapping[str, str]] = {
    "string": "text",
    "boolean": "true or false",
    "number": "a number",
    "integer": "a whole number",
    "object": "a mapping",
    "array": "a list",
    "null": "nothing",
}


def type_of(node: Node) -> str:
    """The type of what is written there, for messages."""
    if isinstance(node, MappingNode):
        return "a mapping"
    if isinstance(node, SequenceNode):
        return "a list"
    if node.value is None:
        return "nothing"
    if isinstance(node.value, bool):
        return str(node.value).lower()
    if isinstance(node.value, str):
        return "text" if "{{" not in node.value else "a template"
    return f"the number {node.value}"


_TRUTHS: Final = {"yes": "true", "on": "true", "no": "false", "off": "false"}


def truth_help(node: Node) -> str | None:
    """A hint for words that older versions of YAML read as true or false; None for any other."""
    word = node.value if isinstance(node, ScalarNode) else None
    meant = _TRUTHS.get(word.casefold()) if isinstance(word, str) else None
    return f"write {meant}; in YAML 1.2 `{word}` is text" if meant else None


def _list_help(node: Node, key: Key) -> str | None:
    """A hint for one text where a list of texts is due."""
    text = node.value if isinstance(node, ScalarNode) else None
    is_word = isinstance(text, str) and text and not any(each in text for each in "{}[]\n")
    if key.types[:1] != ("array",) or not is_word:
        return None
    listed = ", ".join(word.strip() for word in f"{text}".split(",")[:5])
    return f"write {key.name}: [{listed:.80}]"


def check_value(node: Node, key: Key) -> Fault | None:
    """The fault of a value that its key does not take; None: it takes it."""
    if key.types and not any(is_of_type(node, kind) for kind in key.types):
        expected = " or ".join(_NAMES[kind] for kind in key.types)
        return node.place.fault(
            "wrong-type",
            f"'{key.name}' takes {expected}, but this is {type_of(node)}",
            help=truth_help(node) if "boolean" in key.types else _list_help(node, key),
        )
    if not isinstance(node, ScalarNode):
        return None
    if isinstance(node.value, str):
        return _check_text(node, node.value, key)
    if isinstance(node.value, int | float) and not isinstance(node.value, bool):
        return _check_range(node, node.value, key)
    return None


def is_of_type(node: Node, kind: str) -> bool:
    """Whether the node is of that JSON type; a whole number is a number too."""
    if not isinstance(node, ScalarNode):
        return kind == ("object" if isinstance(node, MappingNode) else "array")
    value = node.value
    if value is None:
        return kind == "null"
    if isinstance(value, bool):
        return kind == "boolean"
    kinds = {"string": str, "number": (int, float), "integer": int}
    return kind in kinds and isinstance(value, kinds[kind])  # type: ignore[arg-type]  # classes or tuples of them


def _check_text(node: ScalarNode, text: str, key: Key) -> Fault | None:
    if key.choices and text not in key.choices:
        return node.place.fault(
            "bad-value",
            f"'{key.name}' cannot be '{text}'",
            label=suggestion(text, key.choices),
            help=f"choices are: {', '.join(key.choices)}",
        )
    if key.pattern and not re.fullmatch(key.pattern, text):
        return node.place.fault(
            "bad-value",
            f"{_quote(key.name)} cannot be '{text:.60}'",
            help=f"it must match {key.pattern}",
        )
    return None


def _quote(name: str) -> str:
    return name if " " in name else f"'{name}'"


def _check_range(node: ScalarNode, number: float, key: Key) -> Fault | None:
    if key.minimum is not None and number < key.minimum:
        bound = f"at least {key.minimum:g}"
    elif key.above is not None and number <= key.above:
        bound = f"more than {key.above:g}"
    elif key.maximum is not None and number > key.maximum:
        bound = f"at most {key.maximum:g}"
    else:
        return None
    return node.place.fault("bad-value", f"'{key.name}' must be {bound}, not {number:g}")


def read_texts(nodes: tuple[Node, ...], what: str, report: Report) -> tuple[Texts, ...]:
    """The texts among `nodes`; anything else is reported."""
    texts = []
    for node in nodes:
        if isinstance(node, ScalarNode) and isinstance(node.value, str):
            texts.append(Texts(text=node.value, node=node))
        else:
            report(node.place.fault("wrong-type", f"{what} is text, but this is {type_of(node)}"))
    return tuple(texts)


def read_duration(section: Section, key: str, report: Report) -> float | None:
    """The seconds under a key; None: there are none, or none that can be read."""
    scalar = section.scalar(key)
    if scalar is None:
        return None
    try:
        return seconds_of(str(scalar.value))
    except UsageError as error:
        report(scalar.place.fault("bad-value", error.message.rstrip(".")))
        return None

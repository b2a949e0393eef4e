"""The type of a key of the recipe language, and constructors of common keys."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from attrs import field, frozen
from msgspec import Struct

from minions.contracts.context import snake_case
from minions.data.field_repr import FieldsRepr
from minions.data.json_values import JsonValue
from minions.data.schema import JsonSchema

NAME_PATTERN: Final = r"^[A-Za-z0-9_.-]{1,200}$"
"""Pattern of a recipe's id."""
STEP_PATTERN: Final = r"^[A-Za-z_][A-Za-z0-9_-]{0,199}$"
"""Pattern of names of steps, inputs, `save_as` and tool prefixes."""


class Key(Struct, frozen=True, kw_only=True):
    """One key: which values it takes and what it means."""

    name: str
    description: str = ""
    types: tuple[str, ...] = ()
    """JSON types that it takes; empty: any."""
    aliases: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    """The only texts that it takes; empty: any."""
    pattern: str | None = None
    minimum: float | None = None
    above: float | None = None
    """Exclusive minimum of a number."""
    maximum: float | None = None
    is_required: bool = False
    is_served: bool = True
    shape: JsonSchema | None = None
    """JSON Schema of what is inside a list or mapping, for editors."""

    def schema(self) -> dict[str, JsonValue]:
        """The values that the key takes, as JSON Schema."""
        schema: dict[str, JsonValue] = {}
        if self.types:
            schema["type"] = self.types[0] if len(self.types) == 1 else list(self.types)
        if self.choices:
            schema["enum"] = list(self.choices)
        limits = {
            "pattern": self.pattern,
            "minimum": self.minimum,
            "exclusiveMinimum": self.above,
            "maximum": self.maximum,
        }
        schema.update({name: value for name, value in limits.items() if value is not None})
        schema.update(self.shape or {})
        if self.description:
            schema["description"] = self.description
        return schema


@frozen
class Table(FieldsRepr):
    """The keys of one mapping."""

    name: str
    """What the mapping is, for messages: `a step`."""
    keys: tuple[Key, ...]
    camel_case: bool = False
    """Whether `maxSteps` is accepted for `max_steps`."""
    _by_name: dict[str, Key] = field(init=False, repr=False, eq=False)

    def __attrs_post_init__(self) -> None:
        names = {alias: key for key in self.keys for alias in (key.name, *key.aliases)}
        object.__setattr__(self, "_by_name", names)  # frozen: set once, here

    def find(self, name: str) -> Key | None:
        """The key of that name or alias; None: there is none."""
        return self._by_name.get(snake_case(name) if self.camel_case else name)

    @property
    def names(self) -> tuple[str, ...]:
        """The supported keys, in their own spelling."""
        return tuple(key.name for key in self.keys if key.is_served)

    @property
    def spellings(self) -> tuple[str, ...]:
        """Every supported name and alias."""
        return tuple(name for name, key in self._by_name.items() if key.is_served)

    def plus(self, other: Table) -> Table:
        """A table of these keys and those of `other`, under this table's name."""
        return Table(other.name, (*self.keys, *other.keys), self.camel_case)


def later_keys(names: str) -> tuple[Key, ...]:
    """Keys that a later version will support."""
    return tuple(Key(name=name, is_served=False) for name in names.split())


def text_key(name: str, description: str, *aliases: str, is_required: bool = False) -> Key:
    """A key that takes text."""
    return Key(
        name=name,
        description=description,
        types=("string",),
        aliases=aliases,
        is_required=is_required,
    )


def flag_key(name: str, description: str) -> Key:
    """A key that takes true or false."""
    return Key(name=name, description=description, types=("boolean",))


def count_key(name: str, description: str, minimum: int = 1, maximum: int | None = None) -> Key:
    """A key that takes a whole number."""
    return Key(
        name=name, description=description, types=("integer",), minimum=minimum, maximum=maximum
    )


def seconds_key(name: str, description: str) -> Key:
    """A key that takes a number of seconds."""
    return Key(name=name, description=description, types=("number",), above=0)


def choice_key(name: str, description: str, choices: Iterable[str]) -> Key:
    """A key that takes one of these texts."""
    return Key(name=name, description=description, types=("string",), choices=tuple(choices))


def mapping_key(name: str, description: str, *, is_required: bool = False) -> Key:
    """A key that takes a mapping."""
    return Key(name=name, description=description, types=("object",), is_required=is_required)


TEXTS: Final[JsonSchema] = {"items": {"type": "string"}}

MODEL_KEY: Final = Key(
    name="model",
    description="`provider/name`, a registered name, or a mapping with options. A list: the next "
    "model is asked where the output of one does not fit, or its server fails.",
    types=("string", "object", "array"),
    shape={
        "anyOf": [
            {"type": "string"},
            {"$ref": "#/$defs/model"},
            {
                "type": "array",
                "minItems": 1,
                "items": {"anyOf": [{"type": "string"}, {"$ref": "#/$defs/model"}]},
            },
        ]
    },
)
LIMITS_KEY: Final = Key(
    name="limits",
    description="Limits of the run.",
    types=("object",),
    shape={"$ref": "#/$defs/limits"},
)
STEP_LIMITS_KEY: Final = Key(
    name="limits",
    description="Limits of this step.",
    types=("object",),
    shape={"$ref": "#/$defs/step_limits"},
)
CACHE_KEY: Final = flag_key(
    "cache",
    "Whether the output is taken from an earlier run, if all that it depends on is the same. Only "
    "with tools that are declared pure.",
)
METADATA_KEY: Final = mapping_key(
    "metadata", "Values of the application's own; Minions ignores them."
)

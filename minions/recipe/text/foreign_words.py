"""Words of other tools, with what to write instead: hints for people who come from there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

__all__ = ["KEY_HINTS", "KEY_WORDS", "NAME_WORDS", "TYPE_WORDS"]

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

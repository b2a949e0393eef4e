"""Writes plain data as YAML that `read_document` reads as the same data."""

from __future__ import annotations

from typing import TYPE_CHECKING

from minions.data.json_values import JsonValue
from minions.recipe.text.yaml_reader import is_plain_text

if TYPE_CHECKING:
    import yaml


def yaml_text(value: JsonValue, *, width: int = 100) -> str:
    """The value as YAML, with mappings in their order.

    Args:
        width: Characters of a line, as far as texts can be folded.
    """
    import yaml

    class Dumper(yaml.SafeDumper):
        """Quotes what YAML 1.2 takes for a number: PyYAML writes YAML 1.1, where `1e0` is none."""

    Dumper.add_representer(str, _text)
    return yaml.dump(value, Dumper=Dumper, sort_keys=False, width=width, allow_unicode=True)


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = None if is_plain_text(text) else "'"
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)

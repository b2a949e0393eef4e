"""Writes the parts of the skill for coding agents that are made of the documentation and the code.

`python docs/generate_skill.py` rewrites them; `SKILL.md` and `examples.md` are written by hand.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import yaml

from minions.interfaces.cli.main import COMMAND_GROUPS

FOLDER: Final = Path(__file__).parents[1] / "minions" / "interfaces" / "skill"
_DOCS: Final = Path(__file__).parent
_GROUPS: Final = (
    *("The text of a recipe", "Steps, names and references of a recipe"),
    *("Recipes within recipes", "Inputs and secrets", "Finding a model and its key"),
    *("Calls of models", "Outputs and completion", "Calls of tools"),
    *("While a run is executed", "Approvals, questions, calls in doubt"),
)
"""The groups of faults that whoever writes and runs recipes meets."""
_MADE: Final = re.compile(r"<!-- generated: \w+ -->\n(.*?)<!-- end -->", re.DOTALL)
_LINK: Final = re.compile(r"\[([^\]]+)\]\([^)]+\)")


def pages() -> dict[str, str]:
    """The generated files of the skill, by name."""
    return {"keys.md": _keys(), "commands.md": _commands(), "faults.md": _faults()}


def _keys() -> str:
    """The tables of the page of recipes, with their headings."""
    text = (_DOCS / "recipes.md").read_text("utf-8")
    parts = ["# Every key"]
    for section in re.split(r"^(?=##+ )", text, flags=re.MULTILINE):
        made = [found.strip() for found in _MADE.findall(section)]
        if made:
            heading = section.partition("\n")[0]
            parts += [heading if heading.startswith("##") else "## Recipes", *made]
    return _LINK.sub(r"\1", "\n\n".join(parts)) + "\n"


def _commands() -> str:
    lines = ["# Every command", "", "`minions help COMMAND` has its options."]
    for group, commands in COMMAND_GROUPS.items():
        lines += ["", f"## {group}", ""]
        lines += [f"- `minions {name}`: {text}" for name, text in commands.items()]
    return "\n".join(lines) + "\n"


def _faults() -> str:
    known = yaml.safe_load((_DOCS / "reference" / "errors.yaml").read_text("utf-8"))
    lines = ["# Faults by code, and what to do"]
    for group in _GROUPS:
        lines += ["", f"## {group}", ""]
        lines += [f"- `{code}`: {text}" for code, text in known[group].items()]
    return _LINK.sub(r"\1", "\n".join(lines)) + "\n"


if __name__ == "__main__":
    for name, page in pages().items():
        (FOLDER / name).write_text(page, "utf-8")

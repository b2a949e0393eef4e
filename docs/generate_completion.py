"""Writes `minions/interfaces/cli/completion_table.json`: the options of every command.

`python docs/generate_completion.py` rewrites it; a shell that completes a line reads it, because
importing the commands themselves takes five times as long.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click

from minions.interfaces.cli.main import command as minions

TABLE: Final = Path(__file__).parents[1] / "minions/interfaces/cli/completion_table.json"
_KINDS: Final = {
    "recipe": "recipe",
    "recipes": "recipe",
    "ID": "run",
    "RUN": "run",
    "A": "run",
    "B": "run",
    "ID...": "run",
    "ID…": "run",
    "[ID]": "run",
    "[ID]…": "run",
    "STEP": "step",
    "STEP|SEQ": "step",
    "MODEL": "model",
    "model": "model",
}
"""Names and metavars of parameters to what completes them; all else is a file or free text."""
_FILES: Final = ("FILE", ".yaml", ".jsonl", ".py", "PATH", "DIR")


def table() -> dict[str, object]:
    """By command path, such as `sessions list`, its help and its parameters."""
    names = minions.context_settings["help_option_names"]
    context = click.Context(minions, info_name="minions", help_option_names=names)
    return dict(_commands(minions, context, ()))


def _commands(
    command: click.Command, context: click.Context, path: tuple[str, ...]
) -> Iterator[tuple[str, object]]:
    parameters = [each for each in map(_parameter, command.get_params(context)) if each]
    words = command.get_short_help_str(80)
    yield " ".join(path), {"help": words, "parameters": parameters}
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            if inner is not None:
                yield from _commands(inner, click.Context(inner, parent=context), (*path, name))


def _parameter(each: click.Parameter) -> dict[str, object]:
    if isinstance(each, click.Option):
        if each.hidden:
            return {}
        known: dict[str, object] = {"options": [*each.opts, *each.secondary_opts]}
        if each.is_flag or each.count:
            return {**known, "flag": True, "help": each.help or ""}
        known["help"] = each.help or ""
        known |= {"multiple": True} if each.multiple else {}
    else:
        known = {"argument": each.name, **({"nargs": each.nargs} if each.nargs != 1 else {})}
    return {**known, **_values(each)}


def _values(each: click.Parameter) -> dict[str, object]:
    if isinstance(each.type, click.Choice):
        return {"choices": list(each.type.choices)}
    metavar = each.metavar or each.name or ""
    kind = _KINDS.get(metavar) or _KINDS.get(each.name or "")
    if kind is None and any(mark in metavar for mark in _FILES):
        kind = "file"
    return {"kind": kind} if kind else {}


if __name__ == "__main__":
    lines = (f"{json.dumps(path)}: {json.dumps(known)}" for path, known in table().items())
    TABLE.write_text("{\n" + ",\n".join(lines) + "\n}\n", "utf-8")

"""Which values of inputs callers may choose: none that opens a tool on something else.

A recipe may make the options of its toolsets from inputs: the folder that tools read, the hosts
that they ask. On the command line the operator chooses; a caller takes what the operator offers.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Final

from attrs import frozen

from minions.contracts.errors import MinionsError
from minions.contracts.json_values import JsonValue
from minions.contracts.secrets import InputValue
from minions.interfaces.server.http.caller_way import OVER_HTTP, CallerWay
from minions.interfaces.server.http.problems import RefusedError
from minions.recipe.expressions.template import compile_template
from minions.recipe.kinds.plan import PlanSpec
from minions.recipe.model import AgentRecipe, InputSpec, StepSpec

__all__ = ["CallerInputs"]

_FOLDER_OPTIONS: Final = frozenset({"root"})
"""Options of toolsets that are folders."""


@frozen
class CallerInputs:
    """The folders beneath which a caller may choose one, where a recipe asks for a folder."""

    folders: tuple[str, ...]
    """Absolute, with links resolved; the first one is where relative paths start."""
    way: CallerWay = OVER_HTTP

    @classmethod
    def beneath(cls, *folders: str | Path, way: CallerWay = OVER_HTTP) -> CallerInputs:
        """The check with these folders; the first one is where relative paths start."""
        return cls(tuple(map(os.path.realpath, folders)), way)

    def check(self, recipe: AgentRecipe, given: Mapping[str, InputValue]) -> None:
        """Refuse values that choose an option of a toolset beyond what the operator offers.

        Args:
            recipe: One of the operator's.
        Raises:
            RefusedError: `input-refused`. Nothing was looked up: whether a path exists is not told.
        """
        if problems := list(self._problems(recipe, given)):
            raise RefusedError(HTTPStatus.FORBIDDEN, "input-refused", "\n".join(problems))

    def _problems(self, recipe: AgentRecipe, given: Mapping[str, InputValue]) -> Iterator[str]:
        for name, options in _chosen_by_inputs(recipe).items():
            spec = recipe.inputs.get(name)
            if spec is None or name not in given or _is_offered(spec, given[name], recipe):
                continue
            are_folders = options <= _FOLDER_OPTIONS
            if are_folders and self._is_beneath(given[name]):
                continue
            yield _refused(name, options, self.way, are_folders=are_folders)
        if not all(map(self._is_beneath, _composed_folders(recipe, given))):
            yield "The inputs together choose a folder that is not beneath those of the server."

    def _is_beneath(self, path: InputValue) -> bool:
        if not isinstance(path, str) or "\0" in path:
            return False
        start = self.folders[0] if self.folders else os.sep
        found = os.path.realpath(Path(start) / os.path.expanduser(path))  # noqa: PTH111  # never fails
        return any(os.path.commonpath([found, each]) == each for each in self.folders)


def _refused(name: str, options: frozenset[str], way: CallerWay, *, are_folders: bool) -> str:
    chosen = " and ".join(f"`{each}`" for each in sorted(options))
    folders = " or a folder beneath those of the server," if are_folders else ""
    return (
        f"The input '{name}' chooses {chosen} of a tool: {way.words} it takes the recipe's default,"
        f"{folders} or a value that its schema lists under `enum`. The operator offers more "
        f"folders with `{way.command} --allow-folder DIR`."
    )


def _is_offered(spec: InputSpec, value: InputValue, recipe: AgentRecipe) -> bool:
    """Whether the value opens nothing that the operator has not chosen."""
    if spec.is_secret or not _has_text(value):  # secrets have rules of their own
        return True
    if "enum" in spec.schema or "const" in spec.schema:
        return True
    return spec.has_default and value in _as_recorded(spec.default, recipe)


def _as_recorded(default: JsonValue, recipe: AgentRecipe) -> Sequence[JsonValue]:
    """The default as it is written, and as a run has it, where it is a path."""
    if not isinstance(default, str) or recipe.directory is None:
        return (default,)
    home = Path(recipe.directory).absolute()
    return default, str(home / os.path.expanduser(default))  # noqa: PTH111  # never fails


def _has_text(value: InputValue) -> bool:
    if isinstance(value, Mapping):
        return any(map(_has_text, value.values())) or bool(value)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return any(map(_has_text, value))
    return isinstance(value, str)


def _chosen_by_inputs(recipe: AgentRecipe) -> Mapping[str, frozenset[str]]:
    """By input: the options of toolsets, also of recipes within, that are made from it."""
    found = {
        name: frozenset({"root"})
        for name, spec in recipe.inputs.items()
        if spec.schema.get("format") == "path"  # wherever the recipe uses it
    }
    for use in recipe.tools:
        for option, value in use.options.items():
            for name in _inputs_in(value, recipe):
                found[name] = found.get(name, frozenset()) | {option}
    for step in recipe.steps:
        if isinstance(step, PlanSpec):
            for name in _inputs_in(step.workspace, recipe):
                found[name] = found.get(name, frozenset()) | _FOLDER_OPTIONS
        if isinstance(step, StepSpec) and step.inner is not None:
            for inner_name, options in _chosen_by_inputs(step.inner).items():
                for name in _inputs_in(step.inner_inputs.get(inner_name), recipe):
                    found[name] = found.get(name, frozenset()) | options
    return found


def _inputs_in(value: JsonValue, recipe: AgentRecipe) -> Iterator[str]:
    for reference in compile_template(value).references:
        if reference.path[0] == "inputs":
            yield from (str(each) for each in reference.path[1:2] or tuple(recipe.inputs))


def _composed_folders(recipe: AgentRecipe, given: Mapping[str, InputValue]) -> Iterator[str]:
    """The folders that options make of more than one given input, or of a part beside it."""
    known = {"inputs": {**{n: s.default for n, s in recipe.inputs.items()}, **given}}
    for use in recipe.tools:
        for option in _FOLDER_OPTIONS & use.options.keys():
            template = use.options[option]
            names = {*_inputs_in(template, recipe)} & given.keys()
            if names and not _is_lone(template):
                try:
                    folder = compile_template(template).render(known)  # type: ignore[arg-type]  # a reference to a secret is refused by the run
                except MinionsError:
                    continue  # the run says why
                yield str(folder)


def _is_lone(template: JsonValue) -> bool:
    """Whether the template is one reference: its value is checked by itself."""
    text = template.strip() if isinstance(template, str) else ""
    return text.startswith("{{") and text.find("}}") == len(text) - 2 and "~" not in text

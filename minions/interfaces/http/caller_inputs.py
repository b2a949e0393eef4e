"""Which values of inputs callers may choose: none that opens a tool on something else.

A recipe may make the options of its toolsets from inputs: the folder that tools read, the hosts
that they ask. On the command line the operator chooses; a caller takes what the operator offers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import Final

from attrs import frozen

from minions.contracts.offers import Offer
from minions.contracts.secrets import InputValue
from minions.data.errors import MinionsError
from minions.data.json_values import JsonValue
from minions.interfaces.http.caller_way import OVER_HTTP, CallerWay
from minions.interfaces.http.problems import RefusedError
from minions.recipe.inputs import is_operators_value
from minions.recipe.kinds.plan import PlanSpec
from minions.recipe.model import AgentRecipe, InputSpec, StepSpec

_FOLDER_OPTIONS: Final = frozenset({"root"})
"""Options of toolsets that are folders."""


@frozen
class CallerInputs:
    """The early check of what a caller gives: what a look at the recipe's templates can tell.

    What it cannot tell, such as values that are computed, is refused where it is opened.
    """

    offer: Offer
    way: CallerWay = OVER_HTTP

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
        return self.offer.place_of(path) is not None


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
    return not _may_open(value) or is_operators_value(recipe, spec, value)


def _may_open(value: InputValue) -> bool:
    """Whether the value may name something or switch it on: it is more than a number."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        return any(map(_may_open, value))
    return value is not None and type(value) not in (int, float)


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
    for reference in recipe.templates.compile(value).references:
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
                    compiled = recipe.templates.compile(template)
                    folder = compiled.render(known)  # type: ignore[arg-type]  # a reference to a secret is refused by the run
                except MinionsError:
                    continue  # the run says why
                yield str(folder)


def _is_lone(template: JsonValue) -> bool:
    """Whether the template is one reference: its value is checked by itself."""
    text = template.strip() if isinstance(template, str) else ""
    return text.startswith("{{") and text.find("}}") == len(text) - 2 and "~" not in text

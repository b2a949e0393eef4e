"""What an executor prepares for a recipe and reuses for its next run: graph, toolbox, checks."""

from __future__ import annotations

import weakref
from collections.abc import Collection, Mapping
from typing import Final

from minions.contracts.context import Limits
from minions.contracts.redaction import Redactor
from minions.contracts.secrets import Secrets
from minions.contracts.steps import Step
from minions.contracts.tools import Effect, Tool, Toolbox, Toolset
from minions.data.errors import EnvironmentRefusedError, SchemaError
from minions.data.hint_schemas import schema_of
from minions.data.json_values import JsonValue, as_object
from minions.data.schema import SchemaValidator, check_schema
from minions.engine.compile.build import BuiltRecipe, build_recipe
from minions.engine.compile.extensions import Extensions
from minions.engine.compile.opening_rights import OpeningRights
from minions.engine.services.secret_sources import hidden_errors, refuse_shown_secrets
from minions.recipe.model import AgentRecipe, StepSpec
from minions.recipe.nested_recipes import all_steps, needs_sandbox

_MOST_COMPILED: Final = 64
"""How many compiled recipes are kept, so that an application that makes recipes needs no more."""


class Preparation:
    """The compiled recipes and output checks of one executor, shared by all its runs."""

    def __init__(self, extensions: Extensions) -> None:
        self._extensions = extensions
        self._output_checks: dict[type[object], SchemaValidator] = {}
        self._compiled: dict[
            tuple[int, tuple[str, ...]], tuple[weakref.ref[AgentRecipe], BuiltRecipe]
        ] = {}

    @property
    def redactors(self) -> Mapping[str, Redactor]:
        """What finds personal data, by kind."""
        return self._extensions.redactors

    def output_check(self, output_class: type[object] | None) -> SchemaValidator | None:
        """The validator of an output class, made once per class; None: no class is wanted."""
        if output_class is None:
            return None
        check = self._output_checks.get(output_class)
        if check is None:
            check = self._output_checks[output_class] = SchemaValidator(schema_of(output_class))
        return check

    def planned_effects(self, recipe: AgentRecipe) -> Mapping[str, Effect]:
        """Effects of the tools of recipes that `plan:` steps make, by full name; empty without
        such steps.
        """
        planner = self._extensions.planner
        steps = all_steps(recipe)
        makes_recipes = any(isinstance(step, StepSpec) and step.makes_recipe for step in steps)
        return planner.effects if planner is not None and makes_recipes else {}

    def built(
        self, recipe: AgentRecipe, tools: Toolbox, runs: Collection[str] | None = None
    ) -> BuiltRecipe:
        """The compiled recipe; compiled once as long as the recipe lives and its tools have the
        same names.

        Args:
            runs: Ids of the steps that run; None: all of them. The whole recipe is built in either
                case.
        Raises:
            UsageError: Steps, tools or limits are wrong.
            EnvironmentRefusedError: A step that runs is code, and its sandbox does not hold here.
        """
        key = (id(recipe), tools.names)
        known = self._compiled.get(key)
        if known is not None and known[0]() is recipe:
            if known[1].has_code:
                self._refuse_code(recipe, runs)
            return known[1]
        if any(map(needs_sandbox, all_steps(recipe))):
            self._refuse_code(recipe, runs)
        built = build_recipe(recipe, tools, self._extensions)
        _check_steps(built, Limits.from_metadata(recipe.limits))
        if len(self._compiled) >= _MOST_COMPILED:
            self._compiled.clear()
        self._compiled[key] = (weakref.ref(recipe), built)
        return built

    def _refuse_code(self, recipe: AgentRecipe, runs: Collection[str] | None) -> None:
        from minions.engine.compile.kinds.code import refuse_code

        refuse_code(recipe, self._extensions.sandboxes, runs)

    def open_tools(
        self,
        recipe: AgentRecipe,
        known: Mapping[str, JsonValue],
        secrets: Secrets,
        *,
        rights: OpeningRights | None = None,
        are_called: bool = True,
    ) -> Toolbox:
        """The tools of the recipe's toolsets, and every tool that the operator registered.

        Args:
            known: The values that options may read: `inputs` and `run`.
            rights: What the caller who began the run was offered; None: the operator began it.
            are_called: False: what is missing here, such as a sandbox, refuses nothing.
        Raises:
            UsageError, EnvironmentRefusedError: A toolset does not exist or refuses its options, or
                opens what was not offered (`input-refused`).
        """
        if rights is not None:
            rights.check_recipe(recipe, as_object(known["inputs"]))
        opened, extensions = list[Tool](), self._extensions
        for use in recipe.tools:
            toolset = extensions.toolsets.get(use.name)
            if toolset is None:
                extensions.tools.get(use.name)  # registered, or a clear error
                continue
            written = recipe.templates.compile(use.options)
            options = as_object(written.render(known))
            if rights is not None:
                options = rights.checked(recipe, use, toolset, options)
            checked = as_object(secrets.reveal(options))
            with hidden_errors(secrets, f"Opening the toolset '{use.name}'"):
                opened += _open_toolset(toolset, use.prefix, checked, are_called=are_called)
        for tool in opened if secrets else ():
            refuse_shown_secrets(tool, secrets)
        own = extensions.tools
        return Toolbox(tuple(opened)).plus(own) if opened else own


def _open_toolset(
    toolset: Toolset, prefix: str | None, options: Mapping[str, JsonValue], *, are_called: bool
) -> tuple[Tool, ...]:
    try:
        return toolset.open_under(prefix, options)
    except EnvironmentRefusedError:
        if are_called:
            raise
        return toolset.described_under(prefix)


def _check_output(step: Step[object]) -> None:
    """Check the output declared by a step that was made by code.

    Raises:
        SchemaError: It has no schema, or one that is not safe.
    """
    try:
        output = step.output
        schema = output.json_schema() if output is not None else None
    except SchemaError:
        raise
    except Exception:  # noqa: BLE001  # an application's property: its error is the run's to report
        return
    if schema is not None:
        check_schema(schema)


def _check_steps(built: BuiltRecipe, base: Limits) -> None:
    """Check limits and declared outputs of every step, before the first one starts."""
    for step in built.graph.steps:
        Limits.of_step(step.metadata, base=base)
        if not built.controls and not step.is_code:
            _check_output(step)  # a loaded recipe's schemas are checked already

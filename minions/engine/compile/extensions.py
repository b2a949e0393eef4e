"""Extensions: what an operator registers by name, such as tools, agents, models and steps."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

from attrs import field, frozen

from minions.contracts.calls import ChatModel, ModelOptions
from minions.contracts.completion import CompletionLink
from minions.contracts.redaction import Redactor
from minions.contracts.sandbox import CodeSandbox
from minions.contracts.steps import Step
from minions.contracts.tools import Tool, Toolbox, Toolset
from minions.data.errors import UsageError, near_hint, near_names
from minions.data.field_repr import FieldsRepr
from minions.data.schema import JsonSchema
from minions.recipe.catalog import Catalog
from minions.recipe.kinds.plan_kind import RecipePlanner
from minions.recipe.model import AgentRecipe
from minions.recipe.model_config import ModelConfig

if TYPE_CHECKING:
    from minions.contracts.agent_errors import AgentNotFoundError
    from minions.engine.compile.function_steps import FunctionStep


class NamedAgents(ABC):
    """Agents by name, each as a recipe: whatever runs recipes can run it."""

    @abstractmethod
    def names(self) -> Sequence[str]:
        """The names of all agents; reads no recipe."""

    @abstractmethod
    def find(self, name: str) -> AgentRecipe:
        """The recipe of the agent of that name.

        Raises:
            AgentNotFoundError: There is none; `suggestions` has similar names.
            RecipeError, UsageError: Its recipe has faults, or cannot be read.
        """


@frozen(eq=False, repr=False)
class RecipeAgents(NamedAgents):
    """Recipes by name, such as those that an operator registers."""

    recipes: Mapping[str, AgentRecipe]

    def names(self) -> Sequence[str]:
        """The names of the mapping; its values are not looked at."""
        return tuple(self.recipes)

    def find(self, name: str) -> AgentRecipe:
        """The recipe of that name."""
        found = self.recipes.get(name)
        if found is None:
            raise unknown_agent(name, self.names())
        return found


@frozen(eq=False, repr=False)
class JoinedAgents(NamedAgents):
    """The agents of several sources; of equal names that of the first source counts."""

    sources: tuple[NamedAgents, ...]

    def names(self) -> Sequence[str]:
        """All names, each once."""
        return tuple(dict.fromkeys(name for each in self.sources for name in each.names()))

    def find(self, name: str) -> AgentRecipe:
        """The agent of the first source that has the name."""
        for source in self.sources:
            if name in source.names():
                return source.find(name)
        raise unknown_agent(name, self.names())


def unknown_agent(name: str, known: Sequence[str]) -> AgentNotFoundError:
    """The error for a name that no agent has."""
    from minions.contracts.agent_errors import AgentNotFoundError

    near = near_names(name, known)
    return AgentNotFoundError(
        f"There is no agent '{name:.100}'.{near_hint(near)} Agents are: "
        f"{', '.join(sorted(known)) or 'none'}.",
        suggestions=near,
    )


ModelSource: TypeAlias = Callable[[ModelConfig], ChatModel]
"""Returns the model of a configuration; the same object for the same configuration."""


class ModelChooser(ABC):
    """A `ModelSource` that may let another model answer than the one that a recipe names."""

    @abstractmethod
    def __call__(self, config: ModelConfig) -> ChatModel:
        """The model that answers; the same object for the same configuration."""

    @abstractmethod
    def options(self, config: ModelConfig) -> ModelOptions:
        """The options of its calls: those in the recipe are meant for the model named there."""


def _as_toolbox(tools: Iterable[Tool]) -> Toolbox:
    """The tools as a toolbox.

    Raises:
        UsageError: `bad-tools`; it is no list of tools, or two have the same name.
    """
    return tools if isinstance(tools, Toolbox) else Toolbox(checked_tools(tools, "Extensions"))


def checked_tools(tools: object, owner: str) -> tuple[Tool, ...]:
    """The tools that a program gives.

    Raises:
        UsageError: `bad-tools`; it is no list of tools.
    """
    if isinstance(tools, Tool) or not isinstance(tools, Iterable) or isinstance(tools, str):
        seen = f"{type(tools).__name__}"
        raise UsageError(
            f"{owner}(tools=…) takes a list of tools, not {seen}. Write tools=[…].",
            code="bad-tools",
        )
    found = tuple(tools)
    for each in found:
        if not isinstance(each, Tool):
            raise UsageError(
                f"{owner}(tools=…) takes tools, and this is of type {type(each).__name__}: "
                f"{each!r:.80}. `@minions.tool` makes a tool of a function.",
                code="bad-tools",
            )
    return found


def _step_classes(
    steps: Mapping[str, type[Step[object]] | FunctionStep[..., object]],
) -> Mapping[str, type[Step[object]]]:
    if not steps:
        return {}
    from minions.engine.compile.function_steps import step_classes  # few register any

    return step_classes(steps)


_KIND: Final = re.compile(r"[a-z][a-z0-9_-]{0,30}")


def _check_kinds(_: object, __: object, redactors: Mapping[str, Redactor]) -> None:
    for kind in redactors:
        if not _KIND.fullmatch(kind):
            raise UsageError(
                f"The redactor '{kind}' cannot be registered: a kind has up to 31 lower-case "
                "letters, digits, '_' and '-', and begins with a letter.",
                code="bad-redactor",
            )


@frozen(kw_only=True)
class Extensions(FieldsRepr):
    """What an operator registers for recipes to use, each by its name."""

    toolsets: Mapping[str, Toolset] = field(factory=dict)
    tools: Toolbox = field(factory=Toolbox, converter=_as_toolbox)
    links: Mapping[str, CompletionLink] = field(factory=dict)
    models: Mapping[str, ChatModel] = field(factory=dict)
    """Models by their full name, such as `scripted/demo`."""
    recipes: Mapping[str, AgentRecipe] = field(factory=dict)
    """Recipes made by code, which `recipe:` steps may name."""
    sandboxes: Mapping[str, CodeSandbox] = field(factory=dict)
    """Sandboxes for `code` steps, by the name that recipes use."""
    steps: Mapping[str, type[Step[object]]] = field(factory=dict, converter=_step_classes)
    """`Step` classes and `@step` functions for `uses:` steps. They are called with `id` and the
    arguments of `with`."""
    redactors: Mapping[str, Redactor] = field(factory=dict, validator=_check_kinds)
    """What finds personal data in prompts, by the name of its kind."""
    planner: RecipePlanner | None = None
    """Makes the recipes of `plan:` steps; None: there can be none."""
    agents: NamedAgents | None = None
    """What the toolset `agents` can run beside `recipes`, such as `AgentRegistry.named()`."""

    def named_agents(self) -> NamedAgents:
        """What is registered here and can be run by name: `recipes`, and then `agents`."""
        recipes = RecipeAgents(self.recipes)
        return recipes if self.agents is None else JoinedAgents((recipes, self.agents))

    def find_recipe(self, name: str) -> AgentRecipe | None:
        """The registered recipe of that name; None: there is none."""
        return self.recipes.get(name)

    def find_sandbox(self, name: str) -> CodeSandbox | None:
        """The sandbox of that name; None: there is none."""
        return self.sandboxes.get(name)

    def catalog(self) -> Catalog:
        """The declarations of everything that recipes may name, for the static checks."""
        parameters, outputs = _schemas_of_steps(self.steps) if self.steps else ({}, {})
        return Catalog(
            toolsets=self.toolsets,
            tools={tool.spec.name: tool.spec for tool in self.tools},
            links=frozenset(self.links),
            redactors=frozenset(self.redactors),
            models=frozenset(self.models),
            recipes=self.recipes,
            steps=parameters,
            step_outputs=outputs,
        )


def _schemas_of_steps(
    steps: Mapping[str, type[Step[object]]],
) -> tuple[Mapping[str, JsonSchema], Mapping[str, JsonSchema]]:
    """What each registered step takes, and what is known of the outputs of some, by name."""
    from minions.engine.compile.registered_steps import output_of, parameters_of

    outputs = {name: output_of(kind) for name, kind in steps.items()}
    return (
        {name: parameters_of(kind) for name, kind in steps.items()},
        {name: known for name, known in outputs.items() if known is not None},
    )

"""Everything that recipes may name: built-in tools and toolsets, and the operator's own."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import UTC, datetime
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar, cast

from msgspec.structs import replace

from minions.adapters.stores.memory_stores import MemoryState, StateStore
from minions.adapters.tools.default_tools import date_time_tools, state_tools
from minions.contracts.redaction import Redactor
from minions.contracts.sandbox import CodeSandbox
from minions.contracts.tools import Effect, Toolbox, Toolset, ToolSpec
from minions.data.json_values import JsonValue
from minions.data.schema import JsonSchema
from minions.recipe.catalog import Catalog
from minions.recipe.kinds.plan_kind import KeptPlan, PlanFit, RecipePlanner
from minions.recipe.model import AgentRecipe

if TYPE_CHECKING:
    from minions.engine.compile.extensions import Extensions
    from minions.recipe.text.sections import Report, Section


V = TypeVar("V")


def built_in_toolsets() -> Mapping[str, Toolset]:
    """The built-in toolsets by name; nothing is opened."""
    return BuiltInToolsets(lambda: datetime.now(UTC))


def built_in_tools(state: StateStore | None = None) -> Toolbox:
    """The tools that every recipe may use without naming their toolset; nothing is opened.

    Args:
        state: The store of `saveState`; None: in memory.
    """
    tools = (*state_tools(state or MemoryState()), *date_time_tools(lambda: datetime.now(UTC)))
    return Toolbox(tools)


def built_in_recipes() -> Mapping[str, AgentRecipe]:
    """The built-in recipes by name; none is read yet."""
    toolsets = built_in_toolsets()

    def catalog() -> Catalog:
        return Catalog(
            toolsets=toolsets, tools={tool.spec.name: tool.spec for tool in built_in_tools()}
        )

    return BuiltInRecipes(catalog)


def built_in_extensions(
    state: StateStore | None = None, servers: Mapping[str, Toolset] | None = None
) -> Extensions:
    """The built-in tools, toolsets, recipes and sandboxes; nothing is opened.

    Args:
        state: As for `built_in_tools`.
        servers: Toolsets of MCP servers; None: recipes can name none.
    """
    from minions.engine.compile.extensions import Extensions

    toolsets = built_in_toolsets()
    return Extensions(
        toolsets=joined_toolsets(servers, toolsets),
        tools=built_in_tools(state),
        recipes=built_in_recipes(),
        sandboxes=BuiltInSandboxes(),
        redactors=built_in_redactors(),
        planner=BuiltInPlanner(toolsets),
    )


def check_watch(
    watch: Section, output: JsonSchema, inputs: Collection[str], catalog: Catalog, report: Report
) -> None:
    """Report what is wrong with the scorers of a recipe's `watch`; see `CheckWatch`."""
    from minions.evaluation.scorer_checks import read_live_scorers  # few recipes have one

    read_live_scorers(watch, output, inputs, catalog, report)


def joined_toolsets(
    first: Mapping[str, Toolset] | None, second: Mapping[str, Toolset]
) -> Mapping[str, Toolset]:
    """Both in one mapping, none of them made; if both have a name, the first counts."""
    if first is None:
        return second
    return _join_mappings(first, second)


def _join_mappings(first: Mapping[str, V], second: Mapping[str, V]) -> Mapping[str, V]:
    # A ChainMap may be written to; nobody does.
    return ChainMap(*cast("tuple[dict[str, V], dict[str, V]]", (first, second)))


def extended(base: Extensions, own: Extensions) -> Extensions:
    """Both in one value; if both have a name, that of `own` counts."""
    from minions.engine.compile.extensions import Extensions

    kept = tuple(tool for tool in base.tools if tool.spec.name not in own.tools)
    return Extensions(
        toolsets=joined_toolsets(own.toolsets or None, base.toolsets),
        tools=own.tools.plus(kept),
        links={**base.links, **own.links},
        models={**base.models, **own.models},
        recipes=_join_mappings(own.recipes, base.recipes),
        steps={**base.steps, **own.steps},
        sandboxes={**base.sandboxes, **own.sandboxes} if own.sandboxes else base.sandboxes,
        redactors={**base.redactors, **own.redactors} if own.redactors else base.redactors,
        planner=own.planner or base.planner,
        agents=own.agents or base.agents,
    )


# --- the built-in toolsets, each made when it is first needed ------------------------------------


Now: TypeAlias = Callable[[], datetime]


class BuiltInToolsets(Mapping[str, Toolset]):
    """The built-in toolsets by name. Each is made on first use, since that takes milliseconds."""

    def __init__(self, now: Now) -> None:
        self._now = now
        self._made: dict[str, Toolset] = {}

    def __getitem__(self, name: str) -> Toolset:
        if name not in self._made:
            if name not in _TOOLSETS:
                raise KeyError(name)
            own = {"plans": self._plans, "documents": self._documents}.get(name)
            self._made[name] = self._adapter(name) if own is None else own()
        return self._made[name]

    def _adapter(self, name: str) -> Toolset:
        module = import_module(f"minions.adapters.tools.{_TOOLSETS[name]}")
        toolset: Toolset = getattr(module, f"built_in_{name}")(self._now)
        return toolset

    def _documents(self) -> Toolset:
        from minions.adapters.tools.documents_toolset import documents_toolset
        from minions.app.settings.user_folders import user_cache_folder

        return documents_toolset(self._now, user_cache_folder() / "documents")

    def _plans(self) -> Toolset:
        from minions.planning.plan_tools import plans_toolset
        from minions.recipe.catalog import Catalog

        return plans_toolset(lambda: Catalog(toolsets=self))

    def __contains__(self, name: object) -> bool:
        return name in _TOOLSETS

    def __iter__(self) -> Iterator[str]:
        return iter(_TOOLSETS)

    def __len__(self) -> int:
        return len(_TOOLSETS)


_TOOLSETS: Final = {
    "files": "files_toolset",
    "documents": "documents_toolset",
    "time": "time_toolset",
    "http": "http_toolset",
    "data": "data_toolset",
    "shell": "workspace_toolsets",
    "git": "workspace_toolsets",
    "plans": "",
    "agents": "agents_toolset",
}
"""A new toolset is one line here: its name, and its module in `adapters/tools`, which has a
function `built_in_` and the name. `plans` makes recipes, and so belongs to planning; `documents` is
told where the user's cache is."""


# --- the built-in recipes, each read when it is first needed -------------------------------------


BUILT_IN_RECIPES: Final[Mapping[str, tuple[str, str]]] = {
    "StepExecutor": ("minions.planning", "step_executor.yaml"),
}
"""A new recipe is one line here: its name, which is its id, to its package and its file."""


class BuiltInRecipes(Mapping[str, AgentRecipe]):
    """The built-in recipes by name: registered like those of an operator, whose own come first."""

    def __init__(self, catalog: Callable[[], Catalog]) -> None:
        """Nothing is read yet.

        Args:
            catalog: Everything that they may name.
        """
        self._catalog = catalog
        self._read: dict[str, AgentRecipe] = {}

    def __getitem__(self, name: str) -> AgentRecipe:
        if name not in self._read:
            from importlib.resources import files

            from minions.recipe.reading.load import load_recipe_text

            package, file = BUILT_IN_RECIPES[name]
            text = files(package).joinpath(file).read_text("utf-8")
            self._read[name] = load_recipe_text(text, file, self._catalog())
        return self._read[name]

    def __contains__(self, name: object) -> bool:
        return name in BUILT_IN_RECIPES

    def __iter__(self) -> Iterator[str]:
        return iter(BUILT_IN_RECIPES)

    def __len__(self) -> int:
        return len(BUILT_IN_RECIPES)


# --- the built-in sandboxes for code, each made when it is first needed --------------------------


_NAMES: Final = ("monty", "process")


class BuiltInSandboxes(Mapping[str, CodeSandbox]):
    """The built-in sandboxes by name. Nothing is loaded or tried before one is used."""

    def __getitem__(self, name: str) -> CodeSandbox:
        if name not in _NAMES:
            raise KeyError(name)
        from minions.adapters.sandboxes.python_sandboxes import MontySandbox, ProcessSandbox

        return MontySandbox() if name == "monty" else ProcessSandbox()

    def __contains__(self, name: object) -> bool:
        return name in _NAMES

    def __iter__(self) -> Iterator[str]:
        return iter(_NAMES)

    def __len__(self) -> int:
        return len(_NAMES)


# --- the built-in redactors ----------------------------------------------------------------------


_KINDS: Final = ("mail", "card", "iban")


class BuiltInRedactors(Mapping[str, Redactor]):
    """The built-in redactors by kind. Nothing is loaded before one is used."""

    def __getitem__(self, kind: str) -> Redactor:
        if kind not in _KINDS:
            raise KeyError(kind)
        from minions.adapters.redactors import CardRedactor, IbanRedactor, MailRedactor

        if kind == "mail":
            return MailRedactor()
        return CardRedactor() if kind == "card" else IbanRedactor()

    def __contains__(self, kind: object) -> bool:
        return kind in _KINDS

    def __iter__(self) -> Iterator[str]:
        return iter(_KINDS)

    def __len__(self) -> int:
        return len(_KINDS)


def built_in_redactors() -> Mapping[str, Redactor]:
    """The redactors by kind, none of them made."""
    return BuiltInRedactors()


def pattern_redactors(patterns: Mapping[str, str]) -> Mapping[str, Redactor]:
    """Those of an operator's patterns, by kind.

    Raises:
        UsageError: `bad-configuration`; one is no pattern.
    """
    if not patterns:
        return {}
    from minions.adapters.redactors import PatternRedactor

    return {kind: PatternRedactor(pattern) for kind, pattern in patterns.items()}


# --- `BuiltInPlanner` ----------------------------------------------------------------------------


_OPENED: Final = ("files", "shell", "plans")
"""The toolsets that the recipes of plans, and the recipe that writes them, open."""


class BuiltInPlanner(RecipePlanner):
    """Plans with the recipe `planning/plan.yaml`; its recipes use the tools `files` and `shell`."""

    def __init__(self, toolsets: Mapping[str, Toolset]) -> None:
        """Take the toolsets that recipes of plans may name."""
        self._catalog = Catalog(toolsets=toolsets)

    @cached_property
    def effects(self) -> Mapping[str, Effect]:
        """Those of the toolsets `files`, `shell` and `plans`.

        A command may be repeated: it tests, in a sandbox without network, and what it can change is
        the workspace alone.
        """
        toolsets = self._catalog.toolsets
        specs = [each for name in _OPENED for each in toolsets[name].specs_under(None)]
        effects = {each.name: each.effect for each in specs}
        return {**effects, "shell__run": Effect.IDEMPOTENT, "shell__exec": Effect.IDEMPOTENT}

    @cached_property
    def drafting(self) -> AgentRecipe:
        """The recipe that writes a plan."""
        from importlib.resources import files

        from minions.recipe.reading.load import load_recipe_text

        text = files("minions.planning").joinpath("plan.yaml").read_text("utf-8")
        return load_recipe_text(text, "planner.yaml", self._catalog)

    @property
    def checking_tool(self) -> str:
        """The tool of `planning/plan_tools.py`."""
        return "plans__check"

    def fit(self, kept: KeptPlan, inputs: Mapping[str, JsonValue]) -> PlanFit:
        """Where the tasks differ in names, numbers and paths alone."""
        from minions.planning.plan_fit import fit_plan

        return fit_plan(kept, inputs)

    def reads(self, text: str) -> bool:
        """Whether `read_plan` finds one."""
        from minions.planning.plan_json import read_plan

        return read_plan(text) is not None

    def recipe(self, text: str, tools: Mapping[str, ToolSpec]) -> AgentRecipe:
        """The recipe of a plan."""
        from minions.recipe.reading.load import load_recipe_text

        return load_recipe_text(text, "plan.yaml", replace(self._catalog, tools=tools))

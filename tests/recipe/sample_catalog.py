"""A catalog as an operator would hand in, and small helpers for the tests of this folder."""

from __future__ import annotations

from minions.app.wiring.built_in_extensions import check_watch
from minions.contracts.tools import Effect, Toolset, ToolSpec
from minions.data.errors import Fault
from minions.recipe.catalog import Catalog
from minions.recipe.model import AgentRecipe
from minions.recipe.reading.load import LoadedRecipe, check_recipe_text, load_recipe_text

READ = ToolSpec(
    name="read",
    parameters={
        "type": "object",
        "properties": {"path": {"type": "string"}, "max": {"type": "integer"}},
        "required": ["path"],
        "additionalProperties": False,
    },
    effect=Effect.PURE,
)
WRITE = ToolSpec(
    name="write",
    parameters={
        "type": "object",
        "properties": {"path": {"type": "string"}, "text": {"type": "string"}},
        "required": ["path", "text"],
        "additionalProperties": False,
    },
    effect=Effect.ONCE,
)
ADD = ToolSpec(
    name="add",
    parameters={
        "type": "object",
        "properties": {"a": {"type": "number"}, "b": {"type": "number"}},
        "required": ["a", "b"],
    },
)
FILES = Toolset(
    name="files",
    description="Files below one folder.",
    options={
        "type": "object",
        "properties": {"root": {"type": "string"}, "max_bytes": {"type": "integer"}},
        "additionalProperties": False,
    },
    specs=(READ, WRITE),
    open=lambda options, prefix: (),
)
CATALOG = Catalog(
    toolsets={"files": FILES},
    tools={"add": ADD},
    links=frozenset({"polite"}),
    models=frozenset({"demo"}),
    check_watch=check_watch,
)


def load(text: str) -> AgentRecipe:
    """The recipe, with the sample catalog."""
    return load_recipe_text(text, "/recipes/sample.yaml", CATALOG)


def check(text: str) -> LoadedRecipe:
    """Recipe or faults, with the sample catalog."""
    return check_recipe_text(text, "sample.yaml", CATALOG)


def shown(fault: Fault) -> str:
    """One fault on one line."""
    return (
        f"{fault.where} {fault.code} {fault.message} | {fault.label or '-'} | {fault.help or '-'}"
    )

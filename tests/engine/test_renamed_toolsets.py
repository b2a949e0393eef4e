"""A recipe within another has no more rights for giving its tools other names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from attrs import evolve, field, frozen

from builders import FakeTool, deterministic_services
from minions.adapters.models.scripted import ScriptedModel
from minions.contracts.decision_types import ApprovalRequest, Decider, Verdict
from minions.contracts.executions import AgentResult
from minions.contracts.tools import Effect, Tool, Toolbox, Toolset, ToolSpec
from minions.data.json_values import JsonValue
from minions.engine.compile.dry_run import planned_steps
from minions.engine.compile.extensions import Extensions
from minions.engine.run.agent_executor import AgentExecutor
from minions.recipe.kinds.recipe_kind import RecipeSpec
from minions.recipe.kinds.tool_kind import ToolSpecStep
from minions.recipe.model import AgentRecipe, Permissions, ToolsetUse

WRITE = ToolSpec(name="write", effect=Effect.ONCE)


@frozen
class Files:
    """A toolset that remembers which tool wrote."""

    written: list[str] = field(factory=list)

    def toolset(self, name: str = "files") -> Toolset:
        return Toolset(
            name=name,
            description="",
            options={"type": "object"},
            specs=(WRITE,),
            open=self._open,
        )

    def _open(self, _: Mapping[str, JsonValue], prefix: str) -> Sequence[Tool]:
        spec = evolve(WRITE, name=f"{prefix}__write")
        return [FakeTool(spec, lambda _: self.written.append(spec.name))]


@frozen
class Asked(Decider):
    """Consents to everything, and remembers to what."""

    tools: list[str] = field(factory=list)

    async def approve(self, request: ApprovalRequest) -> Verdict:
        self.tools.append(request.tool)
        return Verdict.APPROVED


def writing(prefix: str | None = None, *, toolset: str = "files") -> AgentRecipe:
    """Opens the toolset under that prefix and writes."""
    return AgentRecipe(
        id="inner",
        tools=(ToolsetUse(name=toolset, prefix=prefix),),
        permissions=Permissions(allow_write=True),
        steps=(ToolSpecStep(id="do", tool=f"{prefix or toolset}__write"),),
    )


def around(
    permissions: Permissions, inner: AgentRecipe, own: Sequence[ToolsetUse] = ()
) -> AgentRecipe:
    return AgentRecipe(
        id="outer",
        tools=tuple(own),
        permissions=permissions,
        steps=(RecipeSpec(id="call", name="inner", recipe=inner),),
    )


def extensions(files: Files) -> Extensions:
    toolsets = {name: files.toolset(name) for name in ("files", "other")}
    return Extensions(toolsets=toolsets)


async def ran(
    recipe: AgentRecipe, files: Files, decider: Decider | None = None
) -> AgentResult[object]:
    services = evolve(deterministic_services(), decider=decider or Asked())
    executor = AgentExecutor(ScriptedModel(()), extensions=extensions(files), services=services)
    return await executor.execute(recipe)


FILES = ToolsetUse(name="files")
AS_F1 = ToolsetUse(name="files", prefix="f1")


@pytest.mark.parametrize("inner", [None, "f2", "f1"])
@pytest.mark.parametrize(
    ("own", "names"),
    [
        ([FILES], ("files__write",)),
        ([AS_F1], ("f1__write",)),
        ([], ("files",)),
        ([], ("files__write",)),
    ],
)
async def test_consent_to_a_tool_is_consent_under_any_name(
    inner: str | None, own: list[ToolsetUse], names: tuple[str, ...]
) -> None:
    files, asked = Files(), Asked()
    permissions = Permissions(allow_write=True, requires_approval=names)
    await ran(around(permissions, writing(inner), own), files, asked)
    written = [f"{inner or 'files'}__write"]
    assert (asked.tools, files.written) == (written, written)


@pytest.mark.parametrize("inner", [None, "f2", "f1"])
@pytest.mark.parametrize(
    ("own", "name"), [([FILES], "files__write"), ([AS_F1], "f1__write"), ([], "files__write")]
)
async def test_a_tool_that_is_not_allowed_is_so_under_any_name(
    inner: str | None, own: list[ToolsetUse], name: str
) -> None:
    files = Files()
    permissions = Permissions(allow_write=True, tools={name: False})
    result = await ran(around(permissions, writing(inner), own), files)
    assert result.error is not None
    assert (result.error.code, files.written) == ("permission-denied", [])
    shown = f"'{inner or 'files'}__write' (permissions: allow_{name})"
    assert shown in result.error.message


@pytest.mark.parametrize(
    ("toolset", "prefix", "is_allowed"),
    [("files", "f2", True), ("files", None, True), ("other", "files", False)],
)
async def test_a_right_to_one_tool_is_one_to_that_tool_and_to_none_that_takes_its_name(
    toolset: str, prefix: str | None, is_allowed: bool
) -> None:
    files = Files()
    permissions = Permissions(tools={"files__write": True})
    result = await ran(around(permissions, writing(prefix, toolset=toolset), [FILES]), files)
    assert (result.error is None, bool(files.written)) == (is_allowed, is_allowed)


async def test_in_one_recipe_two_openings_of_a_toolset_have_rights_of_their_own() -> None:
    files, asked = Files(), Asked()
    recipe = AgentRecipe(
        id="both",
        tools=(FILES, AS_F1),
        permissions=Permissions(
            allow_write=True,
            tools={"files__write": False},
            requires_approval=("files__write",),
        ),
        steps=(ToolSpecStep(id="do", tool="f1__write"),),
    )
    result = await ran(recipe, files, asked)
    assert (result.error, asked.tools, files.written) == (None, [], ["f1__write"])


async def test_a_toolset_by_its_own_name_stands_for_all_its_openings() -> None:
    files, asked = Files(), Asked()
    recipe = evolve(
        writing("f2"), permissions=Permissions(allow_write=True, requires_approval=("files",))
    )
    await ran(recipe, files, asked)
    assert asked.tools == ["f2__write"]


def test_the_dry_run_tells_what_the_run_would_do() -> None:
    permissions = Permissions(allow_write=True, requires_approval=("files__write",))
    recipe = around(permissions, writing("f2"), [FILES])
    steps = planned_steps(recipe, {}, Toolbox(), extensions(Files()))
    assert [(each.step_id, each.needs_approval) for each in steps] == [
        ("call", ()),
        ("call/do", ("f2__write",)),
    ]
    refused = evolve(recipe, permissions=Permissions(tools={"files__write": False}))
    steps = planned_steps(refused, {}, Toolbox(), extensions(Files()))
    assert [each.denied for each in steps] == [(), ("f2__write",)]

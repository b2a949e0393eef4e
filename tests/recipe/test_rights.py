"""Whether a tool may be called, and whether somebody is asked, by the recipes around its call."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from minions.contracts.tools import Effect, ToolSpec
from minions.recipe.model import AgentRecipe, Permissions, ToolsetUse
from minions.recipe.permissions import Rights


def recipe(
    *,
    allow_write: bool = False,
    tools: Mapping[str, bool] | None = None,
    asks: tuple[str, ...] = (),
    opens: Mapping[str, str] | None = None,
) -> AgentRecipe:
    """Opens toolsets by the prefix that it gives them."""
    return AgentRecipe(
        id="recipe",
        permissions=Permissions(allow_write=allow_write, tools=tools or {}, requires_approval=asks),
        tools=tuple(ToolsetUse(name=name, prefix=p) for p, name in (opens or {}).items()),
        steps=(),
    )


def write(name: str = "files__write", origin: str | None = None) -> ToolSpec:
    return ToolSpec(name=name, effect=Effect.ONCE, origin=origin)


READ = ToolSpec(name="files__read", effect=Effect.PURE)
RENAMED = write("docs__write", "files__write")


# --- one recipe ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("permissions", "missing"),
    [
        (recipe(), "allow_write"),
        (recipe(allow_write=True), None),
        (recipe(tools={"files__write": True}), None),
        (recipe(tools={"files__read": True}), "allow_write"),
        (recipe(tools={"files": True}), "allow_write"),
        (recipe(tools={"files__write": False}), "allow_files__write"),
        (recipe(allow_write=True, tools={"files__write": False}), "allow_files__write"),
        (recipe(allow_write=True, tools={"files__read": False}), None),
        (recipe(allow_write=True, tools={"files": False}), None),
    ],
)
def test_a_write_needs_the_right_to_write_or_to_this_tool(
    permissions: AgentRecipe, missing: str | None
) -> None:
    rights = Rights.of(permissions)
    assert rights.missing(write()) == missing
    assert rights.allows(write()) == (missing is None)


def test_what_changes_nothing_may_be_called_unless_it_is_forbidden() -> None:
    assert Rights.of(recipe()).allows(READ)
    assert Rights.of(recipe(tools={"files__read": False})).missing(READ) == "allow_files__read"


@pytest.mark.parametrize(
    ("asks", "is_asked"),
    [
        (("files__write",), True),
        (("files",), True),
        (("files__read",), False),
        (("file",), False),
        (("write",), False),
        ((), False),
    ],
)
def test_consent_is_needed_to_the_tools_that_are_named_and_to_those_of_a_toolset(
    asks: tuple[str, ...], is_asked: bool
) -> None:
    assert Rights.of(recipe(asks=asks)).needs_approval(write()) == is_asked


# --- under another name --------------------------------------------------------------------------


@pytest.mark.parametrize("written", ["docs__write", "files__write"])
def test_a_restriction_holds_under_the_name_here_and_under_that_of_its_origin(
    written: str,
) -> None:
    rights = Rights.of(
        recipe(allow_write=True, tools={written: False}, asks=(written,), opens={"docs": "files"})
    )
    assert rights.missing(RENAMED) == f"allow_{written}"
    assert rights.needs_approval(RENAMED)


@pytest.mark.parametrize("written", ["docs", "files"])
def test_a_toolset_is_meant_by_the_name_here_and_by_its_own(written: str) -> None:
    assert Rights.of(recipe(asks=(written,), opens={"docs": "files"})).needs_approval(RENAMED)


@pytest.mark.parametrize("written", ["docs__write", "files__write"])
def test_a_right_is_given_under_either_name(written: str) -> None:
    assert Rights.of(recipe(tools={written: True}, opens={"docs": "files"})).allows(RENAMED)


def test_two_openings_of_a_toolset_have_rights_of_their_own() -> None:
    """A restriction of one is none of the other, in the recipe that opens both."""
    rights = Rights.of(
        recipe(
            allow_write=True,
            tools={"a__write": False},
            asks=("a", "a__write"),
            opens={"a": "files", "b": "files"},
        )
    )
    one, other = write("a__write", "files__write"), write("b__write", "files__write")
    assert (rights.missing(one), rights.missing(other)) == ("allow_a__write", None)
    assert (rights.needs_approval(one), rights.needs_approval(other)) == (True, False)


def test_a_right_to_one_opening_is_none_to_the_other() -> None:
    rights = Rights.of(recipe(tools={"a__write": True}, opens={"a": "files", "b": "files"}))
    assert rights.allows(write("a__write", "files__write"))
    assert not rights.allows(write("b__write", "files__write"))


def test_a_name_that_another_toolset_has_taken_over_restricts_that_one_here() -> None:
    rights = Rights.of(
        recipe(
            allow_write=True,
            tools={"files__write": False},
            opens={"files": "other", "docs": "files"},
        )
    )
    assert rights.allows(RENAMED)
    assert not rights.allows(write("files__write", "other__write"))


def test_a_name_that_is_forbidden_gives_no_right_either() -> None:
    """Not even to a tool whose origin had that name before."""
    opens = {"files": "other", "docs": "files"}
    rights = Rights.of(recipe(tools={"files__write": False}, opens=opens))
    assert rights.missing(RENAMED) == "allow_write"


# --- within another recipe -----------------------------------------------------------------------


def within(outer: AgentRecipe, inner: AgentRecipe) -> Rights:
    return Rights.of(outer).within(inner)


WRITER = recipe(allow_write=True, opens={"docs": "files"})


@pytest.mark.parametrize(
    ("outer", "inner", "may_write"),
    [(True, True, True), (True, False, False), (False, True, False), (False, False, False)],
)
def test_a_recipe_within_writes_only_where_both_may(
    outer: bool, inner: bool, may_write: bool
) -> None:
    rights = within(recipe(allow_write=outer), recipe(allow_write=inner))
    assert rights.may_write == may_write
    assert rights.allows(write()) == may_write


def test_the_outermost_recipe_that_does_not_give_a_right_is_named_first() -> None:
    inner = recipe(tools={"files__write": False})
    assert within(recipe(), inner).missing(write()) == "allow_write"
    assert within(recipe(allow_write=True), inner).missing(write()) == "allow_files__write"


@pytest.mark.parametrize(
    "outer",
    [
        recipe(allow_write=True, tools={"files__write": False}, asks=("files__write",)),
        recipe(
            allow_write=True,
            tools={"mine__write": False},
            asks=("mine__write",),
            opens={"mine": "files"},
        ),
        recipe(
            allow_write=True,
            tools={"docs__write": False},
            asks=("docs__write",),
            opens={"docs": "other"},
        ),
    ],
    ids=["by its origin", "by the name there", "by the name here"],
)
def test_what_the_recipe_around_says_of_a_tool_holds_under_every_name(outer: AgentRecipe) -> None:
    rights = within(outer, WRITER)
    assert not rights.allows(RENAMED)
    assert rights.needs_approval(RENAMED)


def test_consent_to_a_toolset_is_asked_for_within_under_every_name() -> None:
    outer = recipe(allow_write=True, asks=("mine",), opens={"mine": "files"})
    assert within(outer, WRITER).needs_approval(RENAMED)
    assert not within(recipe(allow_write=True, asks=("mine",)), WRITER).needs_approval(RENAMED)


def test_a_recipe_within_asks_for_itself() -> None:
    inner = recipe(allow_write=True, asks=("docs__write",), opens={"docs": "files"})
    assert within(recipe(allow_write=True), inner).needs_approval(RENAMED)


@pytest.mark.parametrize(
    ("opens", "is_granted"),
    [({}, True), ({"files": "files"}, True), ({"files": "other"}, False), ({"x": "files"}, True)],
)
def test_a_name_that_means_another_tool_around_gives_no_right_within(
    opens: Mapping[str, str], is_granted: bool
) -> None:
    outer = recipe(tools={"files__write": True}, opens=opens)
    assert within(outer, WRITER).allows(RENAMED) == is_granted


def test_the_name_around_gives_a_right_to_what_it_means_there() -> None:
    outer = recipe(tools={"mine__write": True}, opens={"mine": "files"})
    assert within(outer, WRITER).allows(RENAMED)
    assert within(outer, recipe(allow_write=True)).allows(write("files__write"))
    assert not within(outer, recipe(allow_write=True)).allows(write("mine__write"))


def test_the_longest_prefix_says_where_a_tool_comes_from() -> None:
    outer = recipe(tools={"a__b__write": True}, opens={"a": "one", "a__b": "two"})
    inner = recipe(allow_write=True)
    assert within(outer, inner).allows(write("two__write"))
    assert not within(outer, inner).allows(write("one__b__write"))


def test_a_prefix_ends_at_its_two_underscores() -> None:
    outer = recipe(tools={"filesystem__write": True}, opens={"files": "other"})
    assert within(outer, recipe(allow_write=True)).allows(write("filesystem__write"))

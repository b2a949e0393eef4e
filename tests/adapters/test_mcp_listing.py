"""Which tools of a list are taken: names, sizes and schemas are a stranger's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest
from attrs import evolve

from mcp_servers import fake_server
from minions.adapters.tools.mcp.listing import as_pinned, changes_of, listed_tools, pinned_tools
from minions.data.errors import ToolServerError, UsageError
from minions.data.json_values import JsonValue

if TYPE_CHECKING:
    from mcp import Client
    from mcp_types import Tool as ListedTool

pytest.importorskip("mcp_types", reason="mcp is not installed: pip install 'minions-engine[mcp]'")


def listed(name: str, **more: object) -> ListedTool:
    from mcp_types import Tool

    return Tool(**{"name": name, "inputSchema": {"type": "object"}, **more})  # type: ignore[arg-type]  # of a test


def faults(*tools: ListedTool, only: tuple[str, ...] = ()) -> list[str]:
    """What is said of each; the server is called `fake`."""
    with pytest.raises(UsageError) as refused:
        pinned_tools(evolve(fake_server(), only=only), tools)
    assert refused.value.error_code == "mcp-bad-tools"
    return [line.strip() for line in refused.value.message.splitlines()[1:-1]]


def names(*tools: ListedTool, only: tuple[str, ...] = ()) -> list[str]:
    return [tool.shown_as for tool in pinned_tools(evolve(fake_server(), only=only), tools)]


def test_two_tools_whose_names_are_shown_alike_are_refused() -> None:
    """A model would name one, and the other might be called."""
    assert faults(listed("a.b"), listed("c"), listed("a b")) == [
        "'a.b' and 'a b' would both be called 'a_b'"
    ]
    assert names(listed("a.b"), listed("a-b"), listed("A_b")) == ["A_b", "a-b", "a_b"]


def test_a_tool_that_is_not_wanted_collides_with_none() -> None:
    assert names(listed("a.b"), listed("a b"), only=("a b",)) == ["a_b"]


def test_only_the_tools_that_are_wanted_are_checked_and_used() -> None:
    bad = listed("bad", inputSchema={"type": "object", "properties": 7})
    assert names(listed("a"), bad, only=("a",)) == ["a"]
    assert faults(listed("a"), only=("a", "b")) == ["there is no tool 'b'."]
    assert faults(listed("a"), listed("a"), listed("b"), listed("b"), only=("b",)) == [
        "'b': 2 tools have this name"
    ]


def test_a_name_is_as_long_as_providers_take_it_with_its_servers() -> None:
    longest = "n" * (64 - len("fake__"))
    assert names(listed(longest)) == [longest]
    (fault,) = faults(listed(f"{longest}n"))
    assert fault.endswith("is longer than 64 characters")


def test_a_description_has_a_limit() -> None:
    assert names(listed("a", description="d" * 10_000)) == ["a"]
    (fault,) = faults(listed("a", description="d" * 10_001))
    assert fault == "'a': its description has more than 10,000 characters"


def test_schemas_have_a_limit_and_are_schemas() -> None:
    schema: dict[str, JsonValue] = {"type": "object", "description": ""}
    room = 100_000 - len('{"type":"object","description":""}')
    assert names(listed("a", inputSchema={**schema, "description": "d" * room})) == ["a"]
    (long,) = faults(listed("a", inputSchema={**schema, "description": "d" * (room + 1)}))
    assert (
        long
        == "'a': the schema of its parameters is not taken: it has more than 100,000 characters"
    )
    (wrong,) = faults(listed("a", outputSchema={"type": "object", "properties": 7}))
    assert wrong.startswith("'a': the schema of its results is not taken: ")
    (other,) = faults(listed("a", outputSchema={"type": "array"}))
    assert other.endswith("it is not of the type object")


def test_a_hint_is_one_only_where_it_is_given() -> None:
    plain, hinted = as_pinned(listed("a")), as_pinned(listed("a", annotations={}))
    assert not plain.is_read_only
    assert not plain.is_idempotent
    assert plain == hinted
    told = as_pinned(listed("a", annotations={"readOnlyHint": True, "idempotentHint": True}))
    assert (told.is_read_only, told.is_idempotent) == (True, True)
    assert as_pinned(listed("a", title="t")).description == "t"
    assert as_pinned(listed("a", title="t", description="d")).description == "d"


def test_a_change_of_any_part_of_a_tool_is_told() -> None:
    before = as_pinned(listed("a", description="d"))
    assert changes_of(before, before) is None
    assert changes_of(before, None) == "- the tool is not there any more"
    after = as_pinned(listed("a", description="e"))
    assert changes_of(before, after) == "  description:\n  -d\n  +e"


class Pages:
    """Lists tools page by page, and says of each page that there is one more."""

    def __init__(self, tools_of_page: int, pages: int | None) -> None:
        self.cursors: list[str | None] = []
        self._page = [listed("a")] * tools_of_page
        self._pages = pages

    @property
    def client(self) -> Client:
        return cast("Client", SimpleNamespace(session=SimpleNamespace(list_tools=self._list)))

    async def _list(self, *, params: object) -> object:
        self.cursors.append(getattr(params, "cursor", None))
        at = len(self.cursors)
        following = None if at == self._pages else f"page {at}"
        return SimpleNamespace(tools=self._page, next_cursor=following)


async def test_a_list_has_several_pages_and_ends() -> None:
    pages = Pages(10, 50)
    assert len(await listed_tools(fake_server(), pages.client)) == 500
    assert pages.cursors == [None, *(f"page {at}" for at in range(1, 50))]


@pytest.mark.parametrize(("pages", "asked"), [(Pages(0, None), 50), (Pages(501, 1), 1)])
async def test_a_list_without_end_is_given_up(pages: Pages, asked: int) -> None:
    with pytest.raises(ToolServerError, match="more than 500 tools"):
        await listed_tools(fake_server(), pages.client)
    assert len(pages.cursors) == asked

"""The tools and tasks of `workloads/tool_search`: sixty tools of eight servers, in our words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Final

import yaml
from attrs import frozen

from minions.contracts.tools import Effect, Reads, ToolSpec
from minions.data.json_values import JsonValue

_HERE: Final = Path(__file__).parent / "workloads" / "tool_search"
_WRITING: Final = (
    *("write", "edit", "create", "move", "commit", "add", "reset", "checkout", "fork", "update"),
    *("merge", "delete", "append", "post", "reply"),
)


@frozen
class SearchTask:
    """A task in plain words, and the tool that does it."""

    words: str
    tool: str


@cache
def server_specs() -> dict[str, tuple[ToolSpec, ...]]:
    """The tools of each server, by its name, with their short names."""
    servers: dict[str, dict[str, _Written]] = yaml.safe_load(_text("servers.yaml"))
    return {
        server: tuple(_spec(name, written) for name, written in tools.items())
        for server, tools in servers.items()
    }


@cache
def tool_specs() -> tuple[ToolSpec, ...]:
    """All tools, each under the name that a recipe gives it: `server__tool`."""
    return tuple(
        ToolSpec(
            name=f"{server}__{spec.name}",
            description=spec.description,
            parameters=spec.parameters,
            effect=spec.effect,
            reads=spec.reads,
        )
        for server, specs in server_specs().items()
        for spec in specs
    )


def tasks() -> dict[str, tuple[SearchTask, ...]]:
    """The tasks: `tuned`, with which the ranking was tuned, and `held_out`."""
    halves: dict[str, list[dict[str, str]]] = yaml.safe_load(_text("tasks.yaml"))
    return {
        half: tuple(SearchTask(each["task"], each["tool"]) for each in listed)
        for half, listed in halves.items()
    }


_Written = Mapping[str, object]


def _text(name: str) -> str:
    return (_HERE / name).read_text("utf-8")


def _spec(name: str, written: _Written) -> ToolSpec:
    taken = written["takes"]
    assert isinstance(taken, Mapping)  # the file is our own
    properties = dict(_property(each, str(said)) for each, said in taken.items())
    required: list[JsonValue] = [
        str(each) for each, said in taken.items() if str(said).split()[0].endswith("!")
    ]
    is_write = any(part in _WRITING for part in name.split("_"))
    return ToolSpec(
        name=name,
        description=str(written["does"]),
        parameters={"type": "object", "properties": properties, "required": required},
        effect=Effect.ONCE if is_write else Effect.PURE,
        reads=Reads.UNTRUSTED,
    )


def _property(name: str, said: str) -> tuple[str, JsonValue]:
    kind, _, words = said.partition(" ")
    return name, {**_type(kind.removesuffix("!")), "description": words}


def _type(kind: str) -> dict[str, JsonValue]:
    if kind.startswith("["):
        return {"type": "array", "items": {"type": kind.strip("[]")}}
    if "|" in kind:
        return {"type": "string", "enum": list(_choices(kind))}
    return {"type": kind}


def _choices(kind: str) -> Iterator[JsonValue]:
    yield from kind.split("|")

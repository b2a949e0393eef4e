"""What a tool is, what it may change, and the box that holds them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum

from attrs import evolve, field, frozen

from minions.contracts.errors import NotFoundError, UsageError, near_hint, near_names
from minions.contracts.json_values import JsonValue
from minions.contracts.runtime import Sleep
from minions.contracts.schema import JsonSchema
from minions.contracts.tool_parameters import sent_parameters

__all__ = ["Effect", "Tool", "ToolScope", "ToolSpec", "Toolbox", "Toolset"]


class Effect(StrEnum):
    """What happens outside when the tool runs: decides retries, permissions and recovery."""

    PURE = "pure"
    """Changes nothing: free to run again."""
    IDEMPOTENT = "idempotent"
    """A write that may be repeated under the same `ToolScope.idempotency_key`."""
    ONCE = "once"
    """A write that must not be repeated once started."""
    UNDECLARED = "undeclared"
    """Nobody said: a raised exception is retried, a crash in the middle is in doubt."""


def _any_object() -> JsonSchema:
    return {"type": "object"}


@frozen(kw_only=True)
class ToolSpec:
    """A tool as the model and the checks see it."""

    name: str
    """Stable; letters, digits, `_` and `-`, at most 64 characters (the providers' limit)."""
    description: str = ""
    parameters: JsonSchema = field(factory=_any_object)
    """JSON Schema of the arguments, an object."""
    effect: Effect = Effect.UNDECLARED
    timeout_s: float | None = None
    """None: the step's `tool_timeout_s`."""
    origin: str | None = None
    """`files__read`, where the toolset `files` was opened under another name; None: its name."""
    success_key: bool = True
    """A mapping result with `success: false` counts as failure; False switches that off."""

    @property
    def is_write(self) -> bool:
        """A declared write, which needs `permissions.allow_write`."""
        return self.effect in (Effect.IDEMPOTENT, Effect.ONCE)

    def to_message_dict(self) -> dict[str, JsonValue]:
        """OpenAI form; of the parameters see `sent_parameters`."""
        function: dict[str, JsonValue] = {
            "name": self.name,
            "description": self.description,
            "parameters": sent_parameters(self.parameters),
        }
        return {"type": "function", "function": function}


def _utc_now() -> datetime:
    return datetime.now(UTC)


async def _sleep(seconds: float) -> None:
    import asyncio  # here: checking a recipe needs no event loop

    await asyncio.sleep(seconds)


@frozen(kw_only=True)
class ToolScope:
    """What a running tool may know about its caller."""

    run_id: str
    step_id: str
    call_id: str
    idempotency_key: str
    """The same for every attempt at the same work, also after a crash."""
    max_result_bytes: int = 1_048_576
    """A longer result will be refused; a tool that can stop earlier should."""
    now: Callable[[], datetime] = _utc_now
    """The time of day by the run's clock, in UTC with its zone."""
    sleep: Sleep = _sleep
    """Waits that many seconds, by the run's own `sleep`."""


class Tool(ABC):
    """One thing that a step or a model can do."""

    @property
    @abstractmethod
    def spec(self) -> ToolSpec:
        """Name, parameters and effect. The same at every call."""

    @abstractmethod
    async def invoke(self, arguments: Mapping[str, JsonValue], scope: ToolScope) -> object:
        """Do it. `arguments` already fit `spec.parameters`.

        Returns:
            JSON, or attrs values that become JSON.
        Raises:
            ToolError: The model can mend it; the text is what it reads.
            Exception: Anything else is retried as `spec.effect` allows, then fails the call.
        """


@frozen(kw_only=True)
class Toolset:
    """A family of tools that a recipe asks for by name, with options."""

    name: str
    description: str
    options: JsonSchema
    """JSON Schema of the options, an object."""
    specs: tuple[ToolSpec, ...]
    """The tools it will give, under their short names (`read`); known without opening it."""
    open: Callable[[Mapping[str, JsonValue], str], Sequence[Tool]]
    """Options (already checked) and prefix to tools called `prefix__read`. Touches nothing yet."""

    def specs_under(self, prefix: str | None) -> tuple[ToolSpec, ...]:
        """The tools as they are called when it is opened under that prefix; None: its name."""
        prefix = prefix or self.name
        named = (evolve(spec, name=f"{prefix}__{spec.name}") for spec in self.specs)
        return tuple(self._with_origin(spec, prefix) for spec in named)

    def open_under(self, prefix: str | None, options: Mapping[str, JsonValue]) -> tuple[Tool, ...]:
        """As `open`; the tools tell where they come from, whatever they are called.

        Raises:
            Exception: What `open` raises.
        """
        prefix = prefix or self.name
        return tuple(self._telling(tool, prefix) for tool in self.open(options, prefix))

    def _telling(self, tool: Tool, prefix: str) -> Tool:
        spec = tool.spec
        told = self._with_origin(spec, prefix)
        return tool if told == spec else _ToolFrom(tool, told)

    def _with_origin(self, spec: ToolSpec, prefix: str) -> ToolSpec:
        origin = f"{self.name}__{spec.name.removeprefix(f'{prefix}__')}"
        return evolve(spec, origin=None if origin == spec.name else origin)


@frozen
class _ToolFrom(Tool):
    """A tool of a toolset that was opened under another name."""

    tool: Tool
    spec: ToolSpec

    async def invoke(self, arguments: Mapping[str, JsonValue], scope: ToolScope) -> object:
        """As the tool does."""
        return await self.tool.invoke(arguments, scope)


def _as_tools(tools: Iterable[Tool]) -> tuple[Tool, ...]:
    return tuple(tools)


@frozen
class Toolbox:
    """Tools by name, immutable."""

    tools: tuple[Tool, ...] = field(default=(), converter=_as_tools)
    _by_name: Mapping[str, Tool] = field(init=False, repr=False, eq=False)

    def __attrs_post_init__(self) -> None:
        by_name: dict[str, Tool] = {}
        for tool in self.tools:
            if by_name.setdefault(tool.spec.name, tool) is not tool:
                raise UsageError(
                    f"Two tools are called '{tool.spec.name}'. Rename one "
                    "(`as:` on a toolset, `name=` on a function).",
                    code="duplicate-tool",
                )
        object.__setattr__(self, "_by_name", by_name)  # frozen: set once, here

    def __iter__(self) -> Iterator[Tool]:
        return iter(self.tools)

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    @property
    def names(self) -> tuple[str, ...]:
        """In the order they were put in."""
        return tuple(self._by_name)

    def find(self, name: str) -> Tool | None:
        """The tool of exactly that name; None when there is none."""
        return self._by_name.get(name)

    def get(self, name: str) -> Tool:
        """As `find`.

        Raises:
            NotFoundError: With the near names.
        """
        if (tool := self.find(name)) is not None:
            return tool
        near = near_names(name, self.names)
        hint = near_hint(near)
        raise NotFoundError(
            f"There is no tool '{name}'.{hint} Tools are: {', '.join(self.names) or 'none'}.",
            code="unknown-tool",
            suggestions=near,
        )

    def subset(self, names: Iterable[str]) -> Toolbox:
        """Only these, in this box's order; names that are not here are left out."""
        wanted = frozenset(names)
        return Toolbox(tuple(tool for tool in self.tools if tool.spec.name in wanted))

    def plus(self, tools: Iterable[Tool]) -> Toolbox:
        """This box and more tools.

        Raises:
            UsageError: A name occurs twice.
        """
        return Toolbox((*self.tools, *tools))

"""Tools: what they do, what they may change, whom they may ask, and the toolbox that holds them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final, TypeAlias

import msgspec
from attrs import evolve, field, frozen
from msgspec import Struct

from minions.contracts.file_changes import ChangeRecorder
from minions.contracts.runtime import BlockingCalls, Sleep
from minions.data.errors import NotFoundError, ToolError, UsageError, near_hint, near_names
from minions.data.field_repr import FieldsRepr
from minions.data.json_values import JsonValue
from minions.data.schema import JsonSchema


class AgentInfo(Struct, frozen=True, kw_only=True):
    """An agent as a list shows it."""

    name: str
    description: str = ""
    inputs: Mapping[str, JsonValue] = msgspec.field(default_factory=dict)
    """JSON Schema of each input, by name; one that may be left out has a `default`."""


class AgentCalls(ABC):
    """Lists and runs agents: recipes, and other agents of the application.

    An agent has no more rights than the recipe whose step calls the tool. What it spends counts in
    the run, and what it did is recorded there: a call that was cut off and is made again does not
    repeat it.
    """

    @abstractmethod
    def agents(self) -> Sequence[AgentInfo]:
        """The agents that may be run here, sorted by name; a recipe that cannot be read is none."""

    @abstractmethod
    async def run_agent(self, name: str, requirements: str) -> JsonValue:
        """Give an agent a text, and return its output. Its time is not that of the tool.

        Raises:
            ToolError: There is no such agent (`agent-not-found`), it takes no text
                (`no-request-input`), it runs already around this call (`recipe-cycle`), or it
                failed.
        """


# --- questions that a tool asks a person in the middle of its call -------------------------------


DECLINED: Final = "question-declined"
"""Code of the error where a person declined to answer."""


class ToolQuestions(ABC):
    """Asks a person for one tool call.

    Each answer is recorded with the run. Where there is none yet, the run waits, the call ends, and
    a run that is resumed with the answer repeats it: then the question is asked again, and its
    answer is there.
    """

    @abstractmethod
    async def ask(self, text: str, form: JsonSchema | None = None) -> JsonValue:
        """The answer of a person. Its time is not that of the tool.

        Args:
            text: In words for people.
            form: JSON Schema that the answer has to fit; None: any text.
        Raises:
            ToolError: There is no answer yet (`needs-decision`), a person declined to give one
                (`question-declined`), or the answer is none.
        """


class Effect(StrEnum):
    """What a tool changes outside: decides about retries, permissions and recovery."""

    PURE = "pure"
    """Changes nothing: may be repeated freely."""
    IDEMPOTENT = "idempotent"
    """A write that may be repeated under the same `ToolScope.idempotency_key`."""
    ONCE = "once"
    """A write that must not be repeated once started."""
    UNDECLARED = "undeclared"
    """Not declared: exceptions are retried, a call that a crash interrupted is in doubt."""


class Reads(StrEnum):
    """Where the text in a tool's results comes from: decides what counts as untrusted."""

    TRUSTED = "trusted"
    """It adds no text of its own that a stranger may have written. Text from its arguments stays
    what it was: parsed untrusted text is untrusted.
    """
    UNTRUSTED = "untrusted"
    """Text that a stranger may have written: a web page, a mail, a file."""
    PRIVATE = "private"
    """As untrusted, and what it reads is not meant for others: files, a mailbox, a database."""
    UNDECLARED = "undeclared"
    """Not declared: untrusted, unless the tool declares a write; the result of a write is taken for
    a receipt.
    """


def _any_object() -> JsonSchema:
    return {"type": "object"}


@frozen(kw_only=True)
class ToolSpec(FieldsRepr):
    """A tool as the model and the checks see it: name, parameters and effect."""

    name: str
    """Stable; letters, digits, `_` and `-`, at most 64 characters (the providers' limit)."""
    description: str = ""
    parameters: JsonSchema = field(factory=_any_object)
    """JSON Schema of the arguments, of type object."""
    returns: JsonSchema | None = None
    """JSON Schema of the results: a result that does not fit fails its call. None: unknown."""
    effect: Effect = Effect.UNDECLARED
    timeout_s: float | None = None
    """Seconds per attempt; None: the step's `tool_timeout_s`."""
    origin: str | None = None
    """The name from its toolset (`files__read`) if that was opened
    under another prefix; None: `name`.
    """
    success_key: bool = True
    """Whether a mapping result with `success: false` counts as a failure."""
    reads: Reads = Reads.UNDECLARED
    """Where the text in its results comes from."""
    is_resumable: bool = False
    """Whether a call that was cut off may be made again, whatever `effect` is: all that it does is
    recorded by the run, as with `ToolScope.agents`, and is not done twice.
    """
    is_offered: bool = True
    """Whether the name of its toolset offers it to a model; else only its own name does."""
    is_contained: bool = False
    """Whether what it writes stays where only untrusted reads bring it back, such as the state of
    Minions: untrusted text may then be written without approval.
    """
    is_local: bool = False
    """Whether what it changes stays where its own toolset reads, as commands in the sandbox of a
    folder: what that toolset gave may then lead to a call without approval.
    """
    records_changes: bool = False
    """Whether it records all that it changes, so that a rollback of the run undoes it."""

    @property
    def is_untrusted(self) -> bool:
        """Whether its results may hold text that a stranger wrote."""
        if self.reads is Reads.UNDECLARED:
            return not self.is_write
        return self.reads is not Reads.TRUSTED

    @property
    def is_asking_others(self) -> bool:
        """Whether strangers answer it, who read its arguments: it says that they wrote what it
        reads.
        """
        return self.reads is Reads.UNTRUSTED and not self.is_contained

    @property
    def is_write(self) -> bool:
        """Whether it declares a write, which needs `permissions.allow_write`."""
        return self.effect in (Effect.IDEMPOTENT, Effect.ONCE)

    def to_message_dict(self) -> dict[str, JsonValue]:
        """OpenAI's form; `sent_parameters` explains how the parameters differ."""
        from minions.contracts.tool_parameters import sent_parameters

        function: dict[str, JsonValue] = {
            "name": self.name,
            "description": self.description,
            "parameters": sent_parameters(self.parameters),
        }
        return {"type": "function", "function": function}


CALLER_TOOLS: Final = ToolSpec(
    name="caller",
    description="Carried out by the caller of the run, which waits for the result.",
    effect=Effect.PURE,
    reads=Reads.UNTRUSTED,
)
"""What is known of each tool that the caller of a run brings, and stands for all of them in checks:
nothing happens before the caller gets the call, who reads its arguments and writes its result.
"""

ReportProgress: TypeAlias = Callable[[float, float | None, str | None], None]
"""Takes how much is done, out of how much (None: unknown), and words for people."""
StoreBlob: TypeAlias = Callable[[bytes], Awaitable[str]]


def _utc_now() -> datetime:
    return datetime.now(UTC)


async def _sleep(seconds: float) -> None:
    import asyncio  # here: checking a recipe needs no event loop

    await asyncio.sleep(seconds)


@frozen(kw_only=True)
class ToolScope(FieldsRepr):
    """What a running tool may know about its call."""

    run_id: str
    step_id: str
    call_id: str
    idempotency_key: str
    """The same for every attempt at the same work, also after a crash and resume."""
    max_result_bytes: int = 1_048_576
    """UTF-8 bytes; a longer result is refused, so a tool that can stop earlier should."""
    now: Callable[[], datetime] = _utc_now
    """The time of day of the run's clock, in UTC with its zone."""
    sleep: Sleep = _sleep
    """Waits that many seconds by the run's `sleep`."""
    blocking: BlockingCalls | None = None
    """Calls functions that block beside the event loop; None: the tool has its own way."""
    changes: ChangeRecorder | None = None
    """Records changes of files before they are made, for a rollback. None: there is no journal, or
    nobody who restores files.
    """
    agents: AgentCalls | None = None
    """Runs agents by name as part of the run; None: there is no run."""
    questions: ToolQuestions | None = None
    """Asks a person; None: there is no run that could wait for an answer."""
    report_progress: ReportProgress | None = None
    """Tells whoever follows the run how far the call is; must not be called more than ten times a
    second. None: nobody listens.
    """
    store_blob: StoreBlob | None = None
    """Stores bytes with the run, such as an image, and returns their SHA-256 in hex; None: there is
    no run.
    """
    trace_headers: Mapping[str, str] = field(factory=dict)
    """Headers that join what a server does for the call to the run's trace; empty: it has none."""


class Tool(ABC):
    """A function that a step or a model can call."""

    @property
    @abstractmethod
    def spec(self) -> ToolSpec:
        """Name, parameters and effect; the same at every access."""

    @abstractmethod
    async def invoke(self, arguments: Mapping[str, JsonValue], scope: ToolScope) -> object:
        """Execute the tool. `arguments` fit `spec.parameters`.

        Returns:
            JSON, or attrs values that are converted to JSON; as such it fits `spec.returns`.
        Raises:
            ToolError: The model can correct the call; it reads the message.
            Exception: Anything else is retried as `spec.effect` allows, then fails the call.
        """


@frozen(kw_only=True)
class Toolset(FieldsRepr):
    """A group of tools that a recipe requests by name, with options."""

    name: str
    description: str
    options: JsonSchema
    """JSON Schema of the options, of type object."""
    specs: tuple[ToolSpec, ...]
    """The tools under their short names (`read`); known without opening the toolset."""
    open: Callable[[Mapping[str, JsonValue], str], Sequence[Tool]]
    """Makes the tools, called `prefix__read`, from validated options
    and a prefix; opens no resource.
    """
    folder_options: frozenset[str] = frozenset({"root"})
    """Options that name a folder. In a run that a caller began, a value that the caller chose, or
    that was computed, opens a folder beneath those that are offered, and no other option that
    holds texts or switches may be chosen so."""
    operator_options: frozenset[str] = frozenset()
    """Options that a recipe in a caller's request may not switch on: they reach beyond what its
    other options say."""
    fixed_options: frozenset[str] = frozenset()
    """Options that a recipe says as they are, by which it opens what is closed otherwise: no value
    of a run decides about them, and explanations show them."""
    unverified: str | None = None
    """Why its tools are not known, and what to do; None: they are known."""

    def specs_under(self, prefix: str | None) -> tuple[ToolSpec, ...]:
        """The tools as they are named under that prefix; None: the toolset's own name."""
        prefix = prefix or self.name
        named = (evolve(spec, name=f"{prefix}__{spec.name}") for spec in self.specs)
        return tuple(self._with_origin(spec, prefix) for spec in named)

    def open_under(self, prefix: str | None, options: Mapping[str, JsonValue]) -> tuple[Tool, ...]:
        """The tools under that prefix, each with its original name as `origin`.

        Raises:
            Exception: Whatever `open` raises.
        """
        prefix = prefix or self.name
        return tuple(self._telling(tool, prefix) for tool in self.open(options, prefix))

    def described_under(self, prefix: str | None) -> tuple[Tool, ...]:
        """The tools under that prefix for whoever only looks at them: each refuses its calls."""
        return tuple(_DescribedTool(spec) for spec in self.specs_under(prefix))

    def _telling(self, tool: Tool, prefix: str) -> Tool:
        spec = tool.spec
        told = self._with_origin(spec, prefix)
        return tool if told == spec else _ToolFrom(tool, told)

    def _with_origin(self, spec: ToolSpec, prefix: str) -> ToolSpec:
        origin = f"{self.name}__{spec.name.removeprefix(f'{prefix}__')}"
        return evolve(spec, origin=None if origin == spec.name else origin)


@frozen
class _DescribedTool(FieldsRepr, Tool):
    """A tool of a toolset that was not opened."""

    spec: ToolSpec

    async def invoke(self, arguments: Mapping[str, JsonValue], scope: ToolScope) -> object:
        raise ToolError(f"The tool '{self.spec.name}' is only described here.")


@frozen
class _ToolFrom(FieldsRepr, Tool):
    """A tool of a toolset that was opened under another prefix."""

    tool: Tool
    spec: ToolSpec

    async def invoke(self, arguments: Mapping[str, JsonValue], scope: ToolScope) -> object:
        return await self.tool.invoke(arguments, scope)


def _as_tools(tools: Iterable[Tool]) -> tuple[Tool, ...]:
    return tuple(tools)


@frozen
class Toolbox(FieldsRepr):
    """An immutable collection of tools by name."""

    tools: tuple[Tool, ...] = field(default=(), converter=_as_tools)
    _by_name: Mapping[str, Tool] = field(init=False, repr=False, eq=False)
    memo: dict[object, object] = field(factory=dict, init=False, repr=False, eq=False)
    """What was made of these tools once, for all steps that use them."""

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
        """The names, in the order in which the tools were added."""
        return tuple(self._by_name)

    def find(self, name: str) -> Tool | None:
        """The tool of exactly that name; None: there is none."""
        return self._by_name.get(name)

    def get(self, name: str) -> Tool:
        """The tool of exactly that name.

        Raises:
            NotFoundError: There is none; the message suggests similar names.
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

    def subset(self, names: Collection[str]) -> Toolbox:
        """A toolbox of only these tools, in this one's order; unknown names are ignored."""
        if not names:
            return NO_TOOLS
        wanted = frozenset(names)
        return Toolbox(tuple(tool for tool in self.tools if tool.spec.name in wanted))

    def plus(self, tools: Iterable[Tool]) -> Toolbox:
        """A toolbox with more tools.

        Raises:
            UsageError: A name occurs twice.
        """
        return Toolbox((*self.tools, *tools))


NO_TOOLS: Final = Toolbox()
"""A toolbox without tools."""

"""The services that every run needs from outside, in one value, and the usual one of each."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import socket
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

from attrs import Factory, field, frozen
from msgspec import Struct
from returns.result import Failure, Result

from minions.contracts.calls import ChatModel, ModelCallResponse, OutputParser
from minions.contracts.decision_types import Decider, Deny
from minions.contracts.file_changes import FileRestorer
from minions.contracts.flow import FlowControl, Priority
from minions.contracts.instructions import OutputFailure, OutputInstructions, OutputMode
from minions.contracts.journal.chain import HeadKeeper
from minions.contracts.journal.facts import PinnedExample
from minions.contracts.journal.journal import Journal
from minions.contracts.metrics import Metrics
from minions.contracts.model_profiles import Feature, ModelProfile, ProfileBook
from minions.contracts.output import parse_text
from minions.contracts.runtime import (
    BlockingCalls,
    Clock,
    Ids,
    IsWorkerAlive,
    IsWorkerGone,
    Log,
    PriceBook,
    Random,
    Sleep,
    SystemClock,
)
from minions.contracts.secrets import SecretSource
from minions.contracts.steps import StepCache
from minions.data.field_repr import FieldsRepr
from minions.data.json_values import dumps
from minions.data.schema import SchemaValidator
from minions.engine.services.event_loop import DaemonPool, LoopTimer
from minions.engine.services.flow.flow_control import SharedFlowControl
from minions.engine.services.secret_sources import environment_and_files
from minions.recipe.model import OperatorRules

if TYPE_CHECKING:
    from minions.contracts.journal.child_run_links import ChildRunQueue
    from minions.contracts.patience import Patience
    from minions.contracts.tracing import Tracer
    from minions.engine.services.prompt_prefixes import PromptPrefixes
    from minions.engine.services.run_pause import RunPause
    from minions.engine.services.shared_budgets import SharedBudgets


def worker_name(part: str = "") -> str:
    """A name `host:pid:birth` for this process.

    A person sees from it who holds a run. `birth` distinguishes a later process with the same id;
    it is empty where the system has no /proc.

    Args:
        part: Names one of several workers of the process; it follows a `+`.
    """
    name = f"{socket.gethostname()}:{os.getpid()}:{_birth(os.getpid())}"
    return f"{name}+{part}" if part else name


def is_worker_gone(name: str) -> bool:
    """Whether that worker ran on this machine and its process has ended.

    A worker of another machine, or a name of another form, is never known to be dead.
    """
    pid = _pid_here(name)
    return pid is not None and not _is_process(pid, _birth_in(name))


def is_worker_alive(name: str) -> bool:
    """Whether that worker is another process of this machine, and it has not ended."""
    pid = _pid_here(name)
    return pid not in (None, os.getpid()) and _is_process(pid, _birth_in(name))


def _pid_here(name: str) -> int | None:
    """The worker's process id; None: it means nothing here."""
    host, _, pid = name.rpartition(":")[0].rpartition(":")
    if host != socket.gethostname() or not (pid.isascii() and pid.isdecimal() and len(pid) < 20):
        return None
    # Process ids of another namespace mean nothing here.
    here = _birth(os.getpid()).partition(".")[0]
    return int(pid) if _birth_in(name).partition(".")[0] == here else None


def _birth_in(name: str) -> str:
    return name.rpartition(":")[2].partition("+")[0]


def _is_process(pid: int, birth: str) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass  # alive, of another user
    return _birth(pid) == birth


def _birth(pid: int) -> str:
    """`namespace.ticks` since the machine's start; without ticks for a process that has ended."""
    try:
        namespace = str(Path("/proc/self/ns/pid").readlink()).strip("pid:[]")
        stat = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
    except OSError:
        return ""
    state, *fields = stat.rpartition(")")[2].split()
    return f"{namespace}." if state in "ZX" else f"{namespace}.{fields[18]}"


T = TypeVar("T")


class TextOutputParser(OutputParser):
    """Finds the JSON in the text of an answer; its requests constrain nothing."""

    def __init__(self) -> None:
        self._validators: dict[str, SchemaValidator] = {}

    def request(self, instructions: OutputInstructions[T], mode: OutputMode) -> None:
        """Always None: the prompt's text has the schema, and the request is not constrained."""

    def parse(
        self,
        instructions: OutputInstructions[T],
        response: ModelCallResponse,
        mode: OutputMode | None,
    ) -> Result[T, OutputFailure]:
        """Parse the JSON in the text, or in the arguments of a call that the model made instead."""
        text = response.text
        if text is None and response.tool_calls:
            text = response.tool_calls[0].arguments
        if not text:
            return Failure(OutputFailure(message="The answer is empty; JSON was expected."))
        return parse_text(instructions, self._validator(instructions), text)

    def _validator(self, instructions: OutputInstructions[T]) -> SchemaValidator:
        """The validator of a schema, made once per schema."""
        schema = instructions.json_schema()
        text = dumps(schema)
        validator = self._validators.get(text)
        if validator is None:
            validator = self._validators[text] = SchemaValidator(schema)
        return validator


_MOST: Final = 256
"""Steps whose examples are remembered."""

_Key: TypeAlias = tuple[str, str, str]
"""A recipe's id, a step's id, and a fingerprint of what decides."""


class ChosenExamples(Struct, frozen=True, eq=False):
    """The examples of one step, and what they were chosen from."""

    recipe: object
    judgements: object
    examples: tuple[PinnedExample, ...]

    def fits(self, recipe: object, judgements: object) -> bool:
        """Whether the same would be chosen: of the same recipe, and nobody has said more since."""
        return self.recipe is recipe and self.judgements == judgements


@frozen(eq=False)
class ExampleMemory(FieldsRepr):
    """What was chosen last for each step."""

    _chosen: dict[_Key, ChosenExamples] = field(factory=dict, init=False)

    def get(self, key: _Key) -> ChosenExamples | None:
        """What was chosen for the step; None: nothing so far."""
        return self._chosen.get(key)

    def keep(self, key: _Key, chosen: ChosenExamples) -> None:
        """Remember it; of too many, all others are forgotten."""
        if len(self._chosen) >= _MOST:
            self._chosen.clear()
        self._chosen[key] = chosen


_LOGGER: Final = logging.getLogger("minions.models")


class MemoryProfiles(ProfileBook):
    """The newest profile of each model and server; stores nothing."""

    def __init__(self) -> None:
        """Know no model yet."""
        self._known: dict[tuple[str, str], ModelProfile] = {}

    def find(self, model: ChatModel) -> ModelProfile | None:
        if not self._known or model.base_url is None:
            return None
        return self._known.get((model.base_url, model.name))

    def keep(self, profile: ModelProfile) -> None:
        self._known[profile.base_url, profile.model] = profile

    def learn(self, profile: ModelProfile, changed: Feature, *, is_told: bool) -> None:
        self._known[profile.base_url, profile.model] = profile
        if is_told:
            _LOGGER.warning("%s", profile.words_of(changed))

    def profiles(self) -> Sequence[ModelProfile]:
        return sorted(self._known.values(), key=lambda each: (each.model, each.base_url))


_AT_A_TIME: Final = 2
"""Threads that compute beside the event loop: each further one would make it wait longer."""
_MOST_ENDED: Final = 16
"""Of the default journal, so that a long-lived executor does not grow with every run."""


class NullLog:
    """Logs nothing: the library's default."""

    def info(self, event: str, /, **facts: object) -> None:
        """Discard the line."""

    def warning(self, event: str, /, **facts: object) -> None:
        """Discard the line."""


def _random_id(prefix: str) -> str:
    return f"{prefix}_{os.urandom(8).hex()}"


@cache
def _process_secret() -> bytes:
    return os.urandom(32)


def _own_journal(services: Services) -> Journal:
    from minions.engine.services.memory_journal import MemoryJournal

    return MemoryJournal(services.clock, most_ended=_MOST_ENDED)


def _own_flow(services: Services) -> FlowControl:
    warn = logging.getLogger("minions.models").warning
    return SharedFlowControl(services.clock, services.sleep, services.random, warn=warn)


def _new_random() -> Random:
    return random.Random().random  # noqa: S311  # jitter, not secrets


@frozen(kw_only=True)
class Services(FieldsRepr):
    """The parts that a run needs from outside; replace one to make runs repeatable or durable.

    The defaults are the system's clock, randomness and environment, and a journal in memory.
    """

    clock: Clock = field(factory=SystemClock)
    sleep: Sleep = asyncio.sleep
    random: Random = field(factory=_new_random)
    ids: Ids = _random_id
    journal: Journal = field(default=Factory(_own_journal, takes_self=True))
    """Default: in memory, where the newest 16 of the ended runs are kept; pass a `MemoryJournal` to
    keep all, or a journal on a database."""
    parser: OutputParser = field(factory=TextOutputParser)
    """How declared outputs are asked for and read. Left as it is, an executor with one model takes
    that model's own."""
    prices: PriceBook | None = None
    """The prices of model calls; None: the cost is known only where the server reports it."""
    cache: StepCache | None = None
    """Where outputs of steps with `cache: true` are stored; None: nowhere."""
    profiles: ProfileBook = field(factory=MemoryProfiles)
    """What servers were measured or seen to do with their models; the default knows nothing at
    first, and forgets with the process."""
    log: Log = field(factory=NullLog)
    has_log: bool = field(
        init=False,
        eq=False,
        repr=False,
        default=Factory(lambda self: not isinstance(self.log, NullLog), takes_self=True),
    )
    """Whether anybody reads the log."""
    metrics: Metrics = field(factory=Metrics)
    """Is told of runs, steps and calls that end; the default counts nothing."""
    tracer: Tracer | None = None
    """Opens a span around each run, step, model request and tool call; None: nothing is traced."""
    flow: FlowControl | None = field(default=Factory(_own_flow, takes_self=True))
    """Decides when a model call may begin: all runs with the same object share their servers'
    limits. None: nothing waits, and no circuit opens."""
    priority: Priority | None = None
    """Who goes first where calls wait for a server; None: turns of conversations before others."""
    blocking: BlockingCalls = field(factory=DaemonPool)
    """Calls synchronous tools; the default does so on ten threads, and further calls wait."""
    beside: BlockingCalls = field(factory=partial(DaemonPool, _AT_A_TIME), repr=False)
    """Does, on two threads, what is about so many values that it would hold the event loop."""
    file_restorer: FileRestorer | None = None
    """Restores the files that runs changed, for rollbacks. None: nobody does, and tools with `undo:
    true` refuse to write."""
    decider: Decider = field(factory=Deny)
    """Approves calls that need approval, and answers questions."""
    secrets: SecretSource = environment_and_files
    operator: OperatorRules | None = None
    """What counts of calls with strangers' words beside what recipes say; None: nothing does."""
    heads: HeadKeeper | None = None
    """Is told of the end of each execution, to keep heads of sessions elsewhere; None: nobody."""
    redact: tuple[str, ...] = ()
    """Kinds of personal data that are replaced in every prompt, beside those of the recipe."""
    retain_s: float | None = None
    """Seconds after their end for which runs that are started here stay in the journal, at most;
    None: as long as nobody removes them."""
    project: str | None = None
    """The folder of the project in which runs and sessions are made; what one project lists and
    continues is its own. None: of none."""
    worker_id: str = field(factory=worker_name)
    is_worker_gone: IsWorkerGone = is_worker_gone
    is_worker_alive: IsWorkerAlive = is_worker_alive
    budgets: SharedBudgets | None = None
    """What runs may spend together: all runs with the same object share its budgets of sessions,
    users and days. None: there are none."""
    children: ChildRunQueue | None = None
    """Queues the items of distributed steps as runs of their own, in a run that a worker executes.
    None: such steps are executed within their run."""
    pause: RunPause | None = field(default=None, eq=False)
    """Where this execution notes that it ends in order to wait for a time; None: it waits in its
    place."""
    patience: Patience | None = field(default=None, eq=False, repr=False)
    """Whether model calls may wait for batches of their providers, and until when; None: they are
    made at once."""
    lease_ttl_s: float = 60.0
    cooldowns: dict[tuple[str, str], float] = field(factory=dict, repr=False, eq=False)
    """Until when models are passed over whose servers failed, by base URL and name, on the clock's
    monotonic time; for steps that have another model."""
    prefixes: dict[tuple[str, str | None], PromptPrefixes] = field(
        factory=dict, repr=False, eq=False
    )
    """The beginnings of prompts that servers with a cache have seen, by model and base URL."""
    border_secret: Callable[[], bytes] = field(default=_process_secret, repr=False, eq=False)
    """What nobody outside of the installation knows: names of borders around data in prompts are
    made from it. The default is another one in each process."""
    chosen_examples: ExampleMemory = field(factory=ExampleMemory, repr=False, eq=False)
    """Which examples recorded runs gave, as long as nobody judges another one."""
    renewals: LoopTimer = field(factory=LoopTimer, repr=False, eq=False)
    """Renews the leases of all runs that are executed with these services."""
    executing: set[str] = field(factory=set, repr=False, eq=False)
    """Ids of the runs that are executed with these services now; a lease is the worker's, and does
    not tell two executions of one process apart."""


async def room_for_more(services: Services) -> None:
    """Wait, before a further part of a run is started, while very many model calls wait."""
    flow, priority = services.flow, services.priority or Priority.NORMAL
    if flow is not None and flow.is_congested(priority):
        await flow.room(priority)

"""The services that every run needs from outside, in one value."""

from __future__ import annotations

import asyncio
import logging
import os
import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from attrs import Factory, field, frozen

from minions.contracts.calls import ChatModel, OutputParser
from minions.contracts.decisions import Decider, Deny
from minions.contracts.file_changes import FileRestorer
from minions.contracts.flow import FlowControl, Priority
from minions.contracts.journal.journal import Journal
from minions.contracts.metrics import Metrics
from minions.contracts.model_profiles import Feature, ModelProfile, ProfileBook
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
from minions.contracts.step_cache import StepCache
from minions.contracts.tracing import Tracer
from minions.engine.services.chosen_examples import ExampleMemory
from minions.engine.services.daemon_pool import DaemonPool
from minions.engine.services.flow.flow_control import SharedFlowControl
from minions.engine.services.loop_timer import LoopTimer
from minions.engine.services.output_parsing import TextOutputParser
from minions.engine.services.secrets import environment_and_files
from minions.engine.services.worker_names import is_worker_alive, is_worker_gone, worker_name

if TYPE_CHECKING:
    from minions.contracts.journal.child_runs import ChildRunQueue
    from minions.engine.services.run_pause import RunPause
    from minions.engine.services.shared_budgets import SharedBudgets


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


def _process_secret() -> Callable[[], bytes]:
    secret = os.urandom(32)
    return lambda: secret


def _own_journal(services: Services) -> Journal:
    from minions.engine.services.memory_journal import MemoryJournal

    return MemoryJournal(services.clock, most_ended=_MOST_ENDED)


def _own_flow(services: Services) -> FlowControl:
    warn = logging.getLogger("minions.models").warning
    return SharedFlowControl(services.clock, services.sleep, services.random, warn=warn)


def _new_random() -> Random:
    return random.Random().random  # noqa: S311  # jitter, not secrets


@frozen(kw_only=True)
class Services:
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
    lease_ttl_s: float = 60.0
    cooldowns: dict[tuple[str, str], float] = field(factory=dict, repr=False, eq=False)
    """Until when models are passed over whose servers failed, by base URL and name, on the clock's
    monotonic time; for steps that have another model."""
    border_secret: Callable[[], bytes] = field(factory=_process_secret, repr=False, eq=False)
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

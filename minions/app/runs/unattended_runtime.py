"""Executors for runs at which no person sits: those of a server, and of a worker."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping
from datetime import datetime
from functools import cached_property
from typing import Final, TypeVar

from attrs import evolve

from minions.adapters.stores.memory_stores import NoStepCache
from minions.app.runs.deciders import named_policy
from minions.app.runs.run_needs import WorkerParts
from minions.app.runs.run_policy import RunPolicy
from minions.app.runs.run_queue import QueuedRun, RunQueue
from minions.app.settings.settings import Settings, bounded, within_share
from minions.app.wiring.configured_models import ModelChoice
from minions.app.wiring.configured_runtime import Runtime, ServiceChanges
from minions.app.wiring.patient_runtime import open_patient_calls
from minions.contracts.decision_types import Verdict
from minions.contracts.journal.child_run_links import ChildRunQueue
from minions.contracts.journal.start_note import QueuePlace
from minions.contracts.patience import Patience, PatientCalls, WakeRuns
from minions.contracts.runtime import BlockingCalls, Ids
from minions.data.errors import EnvironmentRefusedError, UsageError
from minions.data.json_parts import is_large
from minions.data.json_values import JsonValue
from minions.data.texts import shell_word
from minions.engine.compile.extensions import Extensions
from minions.engine.run.agent_executor import AgentExecutor
from minions.engine.run.recorded_run import RecordedRun, load_recorded_run
from minions.engine.services.event_loop import FEW_ROWS, beside
from minions.engine.services.run_pause import RunPause
from minions.engine.services.run_services import Services
from minions.recipe.catalog import Catalog
from minions.recipe.model import AgentRecipe

T = TypeVar("T")

_VERDICTS: Final[Mapping[str, Verdict]] = {
    "wait": Verdict.LATER,
    "ask": Verdict.LATER,  # there is no terminal: the run waits for a decision
    "deny": Verdict.REJECTED,
    "all": Verdict.APPROVED,
}


class UnattendedRuntime:
    """Makes an executor for each execution, with a worker name of its own; all share models.

    What a run may do is the operator's policy, and nothing that the record of a run says but its
    model, its limit on cost and whether it uses the cache.
    """

    def __init__(
        self,
        settings: Settings,
        runtime: Runtime,
        *,
        name: str,
        folder: str | None,
        takes_other_versions: bool = False,
    ) -> None:
        """Nothing is opened yet.

        Args:
            runtime: The parts that executions share; closed here.
            name: The start of the names of its workers, unique among all processes.
            folder: Where relative paths of tools start: runs that began elsewhere are refused.
                None: runs of all folders are executed here.
            takes_other_versions: Whether queued runs are executed here whose tools, code or
                package had another version where they were queued.
        Raises:
            UsageError: A setting is wrong.
        """
        self.settings = settings
        self.name = name
        self._runtime = runtime
        self._folder = folder
        self._takes_other_versions = takes_other_versions
        self._numbers = itertools.count(1)
        self._ended: set[str] = set()
        self._waves: PatientCalls | None = None
        self._wake: WakeRuns | None = None

    @cached_property
    def parts(self) -> WorkerParts:
        """What the process has of what queued runs need; taken where it is first asked for."""
        return WorkerParts.of(
            self.extensions, self._folder, takes_other_versions=self._takes_other_versions
        )

    async def has_news(self, run_id: str, waves: Collection[str]) -> bool:
        """Whether batches have ended for whose answers the run waits."""
        return await self.patient_calls.has_news(run_id, waves)

    @property
    def threads(self) -> BlockingCalls:
        """Do what would hold the event loop."""
        services = self.services
        return services.beside

    def has_ended(self, worker_id: str) -> None:
        """Note that a worker of this process has ended: its lease may be taken over."""
        self._ended.add(worker_id)

    def is_worker_gone(self, worker_id: str) -> bool:
        """Whether the worker's process has died, or this process has ended its execution."""
        return worker_id in self._ended or self.services.is_worker_gone(worker_id)

    async def aclose(self) -> None:
        """Close what was opened for the runs."""
        if self._waves is not None:
            await self._waves.aclose()
        await self._runtime.aclose()

    @property
    def patient_calls(self) -> PatientCalls:
        """The model calls of its runs that may wait, all together."""
        if self._waves is None:
            self._waves = open_patient_calls(self._runtime)
            if self._wake is not None:
                self._waves.wake_with(self._wake)
        return self._waves

    def wake_with(self, wake: WakeRuns) -> None:
        """Call `wake` with the runs that parked, when the answers that they wait for are there."""
        self._wake = wake

    @property
    def services(self) -> Services:
        """Journal, clock and others."""
        return self._runtime.services

    @property
    def extensions(self) -> Extensions:
        """Everything that recipes may name."""
        return self._runtime.extensions

    @property
    def catalog(self) -> Catalog:
        """Everything that recipes may name, for the static checks."""
        return self._runtime.catalog

    @property
    def shared(self) -> Runtime:
        """The parts that all its executions share."""
        return self._runtime

    def bounded(self, recipe: AgentRecipe) -> AgentRecipe:
        """The recipe with the operator's limits."""
        return bounded(recipe, self.settings)

    def executor_of(
        self,
        recipe: AgentRecipe,
        *,
        note: Mapping[str, JsonValue] | None = None,
        ids: Ids | None = None,
        children: ChildRunQueue | None = None,
        pause: RunPause | None = None,
        by: datetime | None = None,
    ) -> AgentExecutor:
        """An executor for one execution of that recipe.

        Args:
            note: The note of the run that is resumed; None: the run is new.
            ids: Makes the ids of the run; None: random ones.
            children: Where the items of distributed steps are queued; None: they are executed
                within the run.
            pause: Where the execution notes that it ends in order to wait for a time; None: it
                waits in its place.
            by: Until when its model calls may wait for batches of their providers, where they have
                some and its note says nothing; None: they do not.
        """
        began_with = RunPolicy.recorded(note or {})
        changes: ServiceChanges = {
            "worker_id": f"{self.name}.{next(self._numbers)}",
            "is_worker_gone": self.is_worker_gone,
            "pause": pause,
            "decider": named_policy(self.settings.approve or "wait", _VERDICTS),
        }
        if ids is not None:
            changes["ids"] = ids
        if children is not None:
            changes["children"] = children
        if (at := began_with.by or by) is not None:
            is_required = began_with.by is not None
            changes["patience"] = Patience(calls=self.patient_calls, by=at, is_required=is_required)
        if began_with.no_cache:
            changes["cache"] = NoStepCache()
        choice = ModelChoice(override=began_with.model, folder=began_with.folder)
        return self._runtime.evolve(**changes).executor(recipe, choice)

    # --- recorded runs --------------------------------------------------------------------------

    async def recorded(self, run_id: str, *, of_any_folder: bool = False) -> RecordedRun:
        """A run that may be resumed here.

        Args:
            of_any_folder: Also one that began elsewhere; `check_folder` is left to the caller.
        Raises:
            NotFoundError: There is no such run.
            UsageError: It was rejected, or belongs to another command.
            EnvironmentRefusedError: It began in another folder.
        """
        services = self.services
        recorded = await load_recorded_run(services.journal, run_id, threads=services.beside)
        command = recorded.noted.command
        if command is not None:
            raise UsageError(
                f"Run '{recorded.run_id}' was made by `minions {command}`, which cannot be "
                "resumed.",
                code="other-command",
            )
        if not of_any_folder:
            self.check_folder(recorded)
        return recorded

    def check_folder(self, recorded: RecordedRun) -> None:
        """Refuse a run that began in another folder.

        Raises:
            EnvironmentRefusedError: `other-folder`.
        """
        home = RunPolicy.recorded(recorded.note).cwd
        if home is not None and self._folder is not None and home != self._folder:
            raise EnvironmentRefusedError(
                f"Run '{recorded.run_id}' was started in {home}, where relative paths of its "
                f"tools start and its models are configured; this process runs in {self._folder}. "
                f"{self.in_other_folders(recorded.run_id, home)}",
                code="other-folder",
            )

    def in_other_folders(self, run_id: str, home: str) -> str:
        """What to do about a run that began in another folder."""
        return f"Resume it there: cd {shell_word(home)} && minions resume {shell_word(run_id)}"

    async def queue_again(
        self,
        recorded: RecordedRun,
        place: QueuePlace,
        queue: RunQueue,
        *,
        note: Mapping[str, JsonValue] | None = None,
    ) -> QueuedRun:
        """Put a recorded run into a queue again; what a worker does with it then, its record says.

        Args:
            note: Its note from now on; None: as it is.
        Raises:
            MinionsError: It could not be recorded; nothing was done.
        """
        recipe = self.own_recipe(recorded)
        executor = self.executor_of(recipe, note=recorded.note)
        return await queue.put(executor.prepare_resume(recorded, recipe=recipe, note=note), place)

    async def prepared(self, recorded: RecordedRun, prepare: Callable[[], T]) -> T:
        """What `prepare()` gives, which reads the recipe and the entries of the run: in a thread
        where they are many.

        Raises:
            Exception: Whatever `prepare` raises.
        """
        is_long = len(recorded.entries) > FEW_ROWS or is_large(recorded.document)
        is_long = is_long or is_large(recorded.inputs)
        return await beside(self.services.beside, is_long, prepare)

    def own_recipe(self, recorded: RecordedRun) -> AgentRecipe:
        """The recipe that is stored with the run, with the operator's limits.

        Raises:
            UsageError: It was made by code, or names something that is not registered here.
        """
        made = self.extensions.find_recipe(recorded.summary.recipe)
        if recorded.document is None and made is not None:
            recipe = made
        else:
            recipe = recorded.recipe(self.catalog)
        policy = RunPolicy.recorded(recorded.note)
        if policy.max_cost_usd is not None:
            recipe = bounded(recipe, evolve(self.settings, max_cost_usd=policy.max_cost_usd))
        else:
            recipe = self.bounded(recipe)
        return within_share(recipe, policy.child.limits) if policy.child is not None else recipe

"""The common part of `resume` and `retry`: the recorded run, its recipe, model and journal."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self, TextIO

import click
from attrs import evolve, frozen

from minions.adapters.stores.memory_stores import NoStepCache
from minions.app.runs.deciders import decider_for
from minions.app.runs.run_policy import QUEUE, RunPolicy
from minions.app.settings.settings import Settings, bounded
from minions.app.wiring.configured_models import ModelChoice
from minions.app.wiring.configured_runtime import ServiceChanges
from minions.app.wiring.databases import has_database
from minions.app.wiring.patient_runtime import open_patient_calls
from minions.contracts.approvals import DecisionMaker
from minions.contracts.journal.facts import DecisionWaiting
from minions.contracts.journal.start_note import MARKS, QueuePlace, StartNote
from minions.contracts.patience import Patience
from minions.data.errors import EnvironmentRefusedError, LeaseHeldError, RecipeError, UsageError
from minions.data.json_values import JsonValue
from minions.engine.history.recorder import refuse_if_renewed
from minions.engine.run.agent_executor import AgentExecutor
from minions.engine.run.agent_run import AgentRun
from minions.engine.run.queued_decisions import record_decisions
from minions.engine.run.recorded_run import RecordedRun, load_recorded_run
from minions.engine.services.run_services import Services
from minions.interfaces.cli.console.console import tell
from minions.interfaces.cli.options import (
    CacheOption,
    CassetteOptions,
    CommandContext,
    CommonOptions,
    EventsOption,
    naming_the_journal,
    option,
)
from minions.interfaces.cli.queue_options import QueueOptions, open_queue, report_queued
from minions.interfaces.cli.run_follower import Signals, follow, note_of, user_of_machine
from minions.recipe.model import AgentRecipe


@frozen(kw_only=True, slots=False, eq=False, repr=False)
class ResumeOptions(EventsOption):
    """Who works on a recorded run, and who approves."""

    model: str | None = option(
        "-m", "--model", metavar="MODEL", help="provider/name; else the run's own."
    )
    approve: str | None = option(
        "--approve", help="Who approves further calls: ask, deny, all or wait."
    )
    decider: str | None = option(
        "--as", metavar="NAME", help="Who decides; default: the user of this machine."
    )
    roles: tuple[str, ...] = option(
        "--role", multiple=True, metavar="ROLE", help="A role of whoever decides. Repeatable."
    )

    def maker(self, recorded: RecordedRun) -> DecisionMaker | None:
        """Who makes decisions with this command; None: nobody was named, and names count nowhere
        in what the run waits for.
        """
        counts = any(
            isinstance(each.fact, DecisionWaiting) and each.fact.rules is not None
            for each in recorded.entries
        )
        if not (counts or self.decider or self.roles):
            return None
        return DecisionMaker(name=self.decider or user_of_machine(), roles=self.roles, way="cli")


@frozen(kw_only=True, slots=False, eq=False, repr=False)
class RerunOptions(QueueOptions, ResumeOptions, CassetteOptions, CacheOption, CommonOptions):
    """What `resume` and `retry` take: limits from now on, and where the run is executed."""

    max_parallel: int | None = option(
        "--max-parallel", type=click.IntRange(min=1), help="Steps at a time."
    )
    timeout: str | None = option(
        "--timeout", metavar="TIME", help="Most time from now on: 90, 90s, 10m."
    )
    max_cost_usd: float | None = option(
        "--max-cost",
        type=float,
        metavar="USD",
        help="Most that the run may cost in total; default: as it was started.",
    )


class RecordedRunOpener:
    """Opens the journal and finds the run; closes everything at the end."""

    def __init__(
        self, context: CommandContext, name: str, *, model: str | None, needs_store: bool = True
    ) -> None:
        """Load the operator's code; nothing is opened yet.

        Args:
            needs_store: Whether there must be a stored run.
        Raises:
            UsageError: Nothing is stored here, or an extension cannot be loaded.
        """
        if context.settings.no_store and needs_store:
            raise UsageError(
                "Without a journal there is no run to resume: leave out --no-store "
                "(or `no_store` in the configuration).",
                code="no-store",
            )
        self.context = context
        is_there = has_database(context.settings, context.folder_of("db"))
        self.runtime = runtime = context.runtime(is_stored=is_there or not needs_store)
        self._journal = runtime.services.journal
        self._name = name
        self._model = model
        self._here = Path.cwd()
        self._command = "run"
        self._asked_as: str | None = None
        self._place: QueuePlace | None = None
        self._stack = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Open the journal, and find the run.

        Raises:
            NotFoundError, UsageError: There is no such run, or several.
            LeaseHeldError: Another worker executes it.
        """
        try:
            await self._open()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def _open(self) -> None:
        self._signals = self._stack.enter_context(Signals())
        await self._stack.enter_async_context(self.runtime)
        self._recorded = await self._find()
        if (command := self._noted.get("command")) is not None:
            raise UsageError(
                f"Run '{self.recorded.run_id}' was made by `minions {command}`, which cannot be "
                "resumed: run the command again.",
                code="other-command",
            )
        if self._recorded is not None and not self._recorded.has_ended:
            await _refuse_if_active(Services(journal=self._journal), self.recorded)

    async def _find(self) -> RecordedRun | None:
        with naming_the_journal(self.context):
            return await load_recorded_run(self._journal, self._name)

    @property
    def recorded(self) -> RecordedRun:
        """The recorded run; there must be one."""
        assert self._recorded is not None  # noqa: S101  # not asked for in a session without runs
        return self._recorded

    @property
    def has_recorded(self) -> bool:
        """Whether there is a recorded run."""
        return self._recorded is not None

    @property
    def _noted(self) -> Mapping[str, JsonValue]:
        """The note that the command of the run stored at its start."""
        return self._recorded.note if self._recorded is not None else {}

    @property
    def _began_with(self) -> RunPolicy:
        """The policy with which the run began."""
        return RunPolicy.recorded(self._noted)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close everything."""
        await self._stack.aclose()

    def own_recipe(self, *, tells: bool = True) -> AgentRecipe:
        """The recipe that is stored with the run, with the operator's limits; of code, which is not
        stored, the registered recipe of that id.

        Args:
            tells: Whether to print which extensions are missing.

        Raises:
            UsageError: It was made by code, or names something that is not registered here.
        """
        if self.recorded.document is None and (made := self._made_by_code()) is not None:
            return bounded(made, self.settings)
        try:
            recipe = self.recorded.recipe(self.runtime.catalog)
        except RecipeError:
            if tells:
                self._tell_extensions()
            raise
        return bounded(recipe, self.settings)

    def _made_by_code(self) -> AgentRecipe | None:
        """The registered recipe with the id of the run's; None: there is none."""
        extensions, summary = self.runtime.extensions, self.recorded.summary
        known, wanted = extensions.recipes, summary.recipe
        if wanted in known:
            return known[wanted]
        return next((each for each in known.values() if each.id == wanted), None)

    @property
    def settings(self) -> Settings:
        """The command's settings, with the `--max-cost` of the run's start unless one is given."""
        settings, began_with = self.context.settings, self._began_with.max_cost_usd
        if "max_cost_usd" in self.context.flags or began_with is None:
            return settings
        return evolve(settings, max_cost_usd=began_with)

    def _tell_extensions(self) -> None:
        """Print the extensions that the run had and this command lacks; a person may name them."""
        now = StartNote.of(note_of(self.context, None)).extensions
        before = StartNote.of(self._noted).extensions
        if missing := [name for name in before if name not in now]:
            flags = " ".join(f"--extensions {name}" for name in missing)
            tell(f"The run was started with {flags}. The recipe is stored with a run, code is not.")

    def note(self) -> Mapping[str, JsonValue]:
        """The note to store with the resumed run, for the next resume."""
        # From now on it belongs to this command line.
        note = {name: value for name, value in self._noted.items() if name not in MARKS}
        now = note_of(self.context, self._model)
        return {**note, **now, "cwd": note.get("cwd", now["cwd"])}

    @property
    def place(self) -> QueuePlace | None:
        """The queue in which the run is, or was before it waited; None: none."""
        return self._began_with.queue

    def queue_at(self, place: QueuePlace | None) -> None:
        """Queue the run there instead of executing it, with the labels that it had; None: execute
        it here.
        """
        if place is not None and self.place is not None:
            place = evolve(place, labels={**self.place.labels, **place.labels})
        self._place = place

    def executor(self, recipe: AgentRecipe) -> AgentExecutor:
        """An executor with the run's own model, or the one named now, in the folder where the run
        began.

        Raises:
            EnvironmentRefusedError: That folder does not exist any more.
        """
        self._go_home()
        services: ServiceChanges = {"decider": decider_for(self._policy(), tell)}
        if self._began_with.no_cache:
            services["cache"] = NoStepCache()
        by = self._began_with.by
        if by is not None and self._place is None:
            calls = open_patient_calls(self.runtime, tell)  # what was sent is not sent again
            self._stack.push_async_callback(calls.aclose)
            services["patience"] = Patience(calls=calls, by=by)
        return self.runtime.evolve(**services).executor(recipe, self._model_choice(recipe))

    def _model_choice(self, recipe: AgentRecipe) -> ModelChoice:
        """The model named now; else the one with which the run began, from its folder."""
        began_with = self._began_with
        return ModelChoice(
            override=self._model or began_with.model,
            folder=began_with.folder if self._model is None else None,
            asked_as=recipe.id if self._asked_as is None else self._asked_as,
            command=self._command,
        )

    def _policy(self) -> str | None:
        """The approval policy given now; else the one of the run's start."""
        return self.settings.approve or self._began_with.approve

    def _go_home(self) -> None:
        """Enter the folder where the run began: relative paths of its tools start there."""
        home = self._began_with.cwd
        if home is None:
            return
        try:
            self._stack.enter_context(contextlib.chdir(home))
        except OSError as error:
            raise EnvironmentRefusedError(
                f"Run '{self.recorded.run_id}' was started in {home}, where relative paths of its "
                f"tools start, and that cannot be entered: {error.strerror}. Make the folder "
                "again, or a link to where it is now.",
                code="folder-gone",
            ) from error

    async def queue_decisions(
        self, decisions: Mapping[str, str], decided_by: DecisionMaker | None, out: TextIO
    ) -> int:
        """Queue the run again with decisions, without what its recipe names; the exit code.

        Raises:
            MinionsError: It could not be recorded; nothing was done.
        """
        place = self._place or QueuePlace()
        kept = {name: value for name, value in self._noted.items() if name not in MARKS}
        note = {**kept, QUEUE: place.to_note()}
        services = self.runtime.services
        entry = await record_decisions(services, self.recorded, decisions, note, decided_by)
        async with open_queue(self.context, None) as queue:
            queued = await queue.submit(entry, place)
            return report_queued(queued, self.context, out, StartNote.of(note))

    async def follow(self, run: AgentRun, out: TextIO, *, edited: str | None = None) -> int:
        """Print what is replayed, resume the run, and return the exit code.

        Args:
            edited: The file of an edited recipe, for the command of a retry.
        """
        for line in run.preview():
            tell(line)
        if self._place is not None:
            async with open_queue(self.context, self.runtime.extensions) as queue:
                queued = await queue.put(run, self._place)
                return report_queued(queued, self.context, out, StartNote.of(run.note))
        if Path.cwd() != self._here:
            tell(f"  in {Path.cwd()}, where it was started")
        return await follow(
            run, self.context, out, self._signals, edited=edited, cassettes=self.runtime.cassettes
        )


async def _refuse_if_active(services: Services, recorded: RecordedRun) -> None:
    """Refuse a decision or resume of a run that is active elsewhere; the message names the worker.

    Raises:
        LeaseHeldError: Another worker executes the run, and is not known to be dead.
    """
    journal, summary = services.journal, recorded.summary
    await refuse_if_renewed(services, summary.session_id)
    try:
        lease = await journal.acquire(
            summary.session_id, summary.run_id, services.worker_id, services.lease_ttl_s
        )
    except LeaseHeldError as error:
        if services.is_worker_gone(error.worker_id) or error.run_id != summary.run_id:
            return  # the lease can be taken over, or another run of the session reports it
        begins = [
            row
            for row in recorded.entries
            if row.kind == "run" and row.state in ("started", "resumed")
        ]
        word = "resumed" if begins[-1].state == "resumed" else "started"
        raise LeaseHeldError(
            f"Nothing was done: run '{summary.run_id}' is active on worker '{error.worker_id}', "
            f"which {word} it at {begins[-1].at:%Y-%m-%d %H:%M:%S}Z. Wait for its end, or end that "
            "worker, and repeat the command if there is still something to do.",
            worker_id=error.worker_id,
            run_id=error.run_id,
        ) from error
    await journal.release(lease)

"""Executors for the server's runs: settings, models and services as on the command line."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Final

from attrs import evolve

from minions.adapters.stores.memory_step_cache import NoStepCache
from minions.contracts.decisions import Verdict
from minions.contracts.errors import (
    EnvironmentRefusedError,
    MinionsError,
    UsageError,
    near_names,
)
from minions.contracts.json_values import JsonValue
from minions.contracts.runtime import Ids
from minions.engine.compile.extensions import Extensions
from minions.engine.history.replay import OpenCall
from minions.engine.run.agent_executor import AgentExecutor
from minions.engine.run.recorded_run import RecordedRun, load_recorded_run
from minions.engine.services.services import Services
from minions.engine.services.worker_names import worker_name
from minions.interfaces.deciders import named_policy
from minions.interfaces.operator_limits import bounded
from minions.interfaces.run_policy import RunPolicy
from minions.interfaces.server.http.caller_inputs import CallerInputs
from minions.interfaces.server.http.caller_secrets import CallerSecrets
from minions.interfaces.server.http.problems import RefusedError
from minions.interfaces.settings import Settings
from minions.interfaces.wiring.models import ModelChoice
from minions.interfaces.wiring.runtime import Runtime, ServiceChanges
from minions.recipe.catalog import Catalog
from minions.recipe.model import AgentRecipe

__all__ = ["ServerRuntime", "ids_of_key"]

_VERDICTS: Final[Mapping[str, Verdict]] = {
    "wait": Verdict.LATER,
    "ask": Verdict.LATER,  # there is no terminal: the run waits for /approvals
    "deny": Verdict.REJECTED,
    "all": Verdict.APPROVED,
}


class ServerRuntime:
    """Makes an executor for each execution, with a worker name of its own; all share models."""

    def __init__(
        self,
        settings: Settings,
        runtime: Runtime,
        *,
        note: Mapping[str, JsonValue],
        folders: Sequence[str | Path] = (),
    ) -> None:
        """Nothing is opened yet.

        Args:
            runtime: The parts that executions share; closed here.
            note: Stored with each run's start, for a later resume.
            folders: Beneath these, and the folder of the note, callers may choose folders.
        Raises:
            UsageError: A setting is wrong.
        """
        self.settings = settings
        self._runtime = runtime
        self._note = note
        self._caller_secrets = CallerSecrets.of(settings.caller_secrets)
        self._caller_inputs = CallerInputs.beneath(str(note.get("cwd", ".")), *folders)
        self._numbers = itertools.count(1)
        self._name = runtime.services.ids("srv")
        self._ended: set[str] = set()

    def has_ended(self, worker_id: str) -> None:
        """Note that a worker of this process has ended: its lease may be taken over."""
        self._ended.add(worker_id)

    def is_worker_gone(self, worker_id: str) -> bool:
        """Whether the worker's process has died, or this process has ended its execution."""
        return worker_id in self._ended or self.services.is_worker_gone(worker_id)

    async def aclose(self) -> None:
        """Close what was opened for the runs."""
        await self._runtime.aclose()

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

    def bounded(self, recipe: AgentRecipe) -> AgentRecipe:
        """The recipe with the operator's limits."""
        return bounded(recipe, self.settings)

    def note(self, **more: JsonValue) -> dict[str, JsonValue]:
        """The note for the start of a new run."""
        return {**self._note, **more}

    def chosen_model(self, name: str) -> dict[str, JsonValue]:
        """The note of a run whose caller chose that model.

        Raises:
            RefusedError: `model-refused`; the operator does not list it.
        """
        known = self.settings.caller_models
        if name not in known:
            listed = ", ".join(known) or "none (`caller_models` in minions.toml)"
            raise RefusedError(
                HTTPStatus.FORBIDDEN,
                "model-refused",
                f"The model '{name[:100]}' may not be chosen here. Models are: {listed}.",
                suggestions=near_names(name, known),
            )
        return {"model": name, "folder": str(self._note.get("cwd", "."))}

    def check_inputs(
        self, recipe: AgentRecipe, inputs: Mapping[str, JsonValue], *, is_stored: bool = True
    ) -> None:
        """Refuse secrets and folders that callers may not choose.

        Args:
            is_stored: False: the caller sent the recipe, and with it the options of its tools.
        Raises:
            RefusedError: `secret-refused`, `input-refused`.
        """
        if is_stored:
            self._caller_inputs.check(recipe, inputs)
        self._caller_secrets.check(recipe, inputs, is_stored=is_stored)

    def executor(
        self,
        recipe: AgentRecipe,
        inputs: Mapping[str, JsonValue],
        *,
        is_stored: bool = True,
        note: Mapping[str, JsonValue] | None = None,
        ids: Ids | None = None,
    ) -> AgentExecutor:
        """An executor for one execution of that recipe.

        Args:
            inputs: The inputs of the execution, of which secrets and folders are checked here.
            is_stored: False: the caller sent the recipe.
            note: The note of the run that is resumed; None: the run is new.
            ids: Makes the ids of the run; None: random ones.
        Raises:
            RefusedError: `secret-refused`, `input-refused`.
        """
        self.check_inputs(recipe, inputs, is_stored=is_stored)
        began_with = RunPolicy.recorded(note or {})
        changes: ServiceChanges = {
            "worker_id": worker_name(f"{self._name}.{next(self._numbers)}"),
            "is_worker_gone": self.is_worker_gone,
            "decider": named_policy(self.settings.approve or "wait", _VERDICTS),
        }
        if ids is not None:
            changes["ids"] = ids
        if began_with.no_cache:
            changes["cache"] = NoStepCache()
        choice = ModelChoice(override=began_with.model, folder=began_with.folder)
        return self._runtime.evolve(**changes).executor(recipe, choice)

    # --- recorded runs --------------------------------------------------------------------------

    async def recorded(self, run_id: str) -> RecordedRun:
        """A run that may be resumed here.

        Raises:
            NotFoundError: There is no such run.
            UsageError: It was rejected, or belongs to another command.
            EnvironmentRefusedError: It began in another folder.
        """
        recorded = await load_recorded_run(self.services.journal, run_id)
        command, home = recorded.note.get("command"), RunPolicy.recorded(recorded.note).cwd
        if command is not None:
            raise UsageError(
                f"Run '{recorded.run_id}' was made by `minions {command}`, which cannot be "
                "resumed.",
                code="other-command",
            )
        if home is not None and home != self._note.get("cwd"):
            raise EnvironmentRefusedError(
                f"Run '{recorded.run_id}' was started in {home}, where relative paths of its "
                f"tools start; this server runs in {self._note.get('cwd')}. Use the command line "
                "there.",
                code="other-folder",
            )
        return recorded

    async def calls_in_doubt(self, run_id: str) -> Sequence[OpenCall]:
        """The calls of an interrupted run that a resume would ask about; nothing is executed.

        Empty also where the run cannot be resumed here.
        """
        try:
            recorded = await self.recorded(run_id)
            recipe = self.own_recipe(recorded)
            executor = self.executor(recipe, recorded.inputs, note=recorded.note)
            return executor.prepare_resume(recorded, recipe=recipe).calls_in_doubt
        except MinionsError as error:
            if error.error_code == "corrupt-entry":
                raise
            return ()

    def own_recipe(self, recorded: RecordedRun) -> AgentRecipe:
        """The recipe that is stored with the run, with the operator's limits.

        Raises:
            UsageError: It was made by code, or names something that is not registered here.
        """
        made = self.extensions.recipes.get(recorded.summary.recipe)
        if recorded.document is None and made is not None:
            recipe = made
        else:
            recipe = recorded.recipe(self.catalog)
        began_with = RunPolicy.recorded(recorded.note).max_cost_usd
        if began_with is not None:
            return bounded(recipe, evolve(self.settings, max_cost_usd=began_with))
        return self.bounded(recipe)


def ids_of_key(key: str, ids: Ids) -> Ids:
    """The ids of the run of an idempotency key, the same in every process.

    So two requests at the same time meet at one lease, and a restart finds the run by its id.
    """
    digest = hashlib.sha256(f"idempotency {key}".encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return lambda prefix: f"{prefix}_{digest}" if prefix in ("run", "ses") else ids(prefix)

"""Executors for the server's runs: settings, models and services, as the command line has them."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Final, cast

from attrs import evolve

from minions.adapters.stores.memory_step_cache import NoStepCache
from minions.contracts.decisions import Verdict
from minions.contracts.errors import EnvironmentRefusedError, UsageError
from minions.contracts.json_values import JsonValue
from minions.contracts.runtime import Ids
from minions.engine.compile.extensions import Extensions
from minions.engine.run.agent_executor import AgentExecutor
from minions.engine.run.recorded_run import RecordedRun, load_recorded_run
from minions.engine.services.services import Services
from minions.engine.services.worker_names import worker_name
from minions.interfaces.deciders import named_policy
from minions.interfaces.operator_limits import bounded
from minions.interfaces.server.http.caller_secrets import CallerSecrets
from minions.interfaces.settings import Settings
from minions.interfaces.wiring.models import ModelChoice
from minions.interfaces.wiring.runtime import Runtime, ServiceChanges
from minions.recipe.catalog import Catalog
from minions.recipe.model import AgentRecipe

__all__ = ["ServerRuntime", "ids_of_key"]

_VERDICTS: Final[Mapping[str, Verdict]] = {
    "wait": Verdict.LATER,
    "ask": Verdict.LATER,  # there is no terminal: the inbox is asked
    "deny": Verdict.REJECTED,
    "all": Verdict.APPROVED,
}


class ServerRuntime:
    """Makes an executor for each execution: each is a worker of its own, and all share models."""

    def __init__(
        self,
        settings: Settings,
        runtime: Runtime,
        *,
        note: Mapping[str, JsonValue],
    ) -> None:
        """Open nothing yet.

        Args:
            runtime: What executions share; closed here.
            note: What going on needs to know of this process; stored with each run's start.
        Raises:
            UsageError: A setting is wrong.
        """
        self.settings = settings
        self._runtime = runtime
        self._note = note
        self._caller_secrets = CallerSecrets.of(settings.caller_secrets)
        self._numbers = itertools.count(1)
        self._name = runtime.services.ids("srv")
        self._ended: set[str] = set()

    def has_ended(self, worker_id: str) -> None:
        """Take note that this worker of ours executes nothing more: its lease may be taken."""
        self._ended.add(worker_id)

    def is_worker_gone(self, worker_id: str) -> bool:
        """Whether its process has died, or it was one of ours and has ended."""
        return worker_id in self._ended or self.services.is_worker_gone(worker_id)

    async def aclose(self) -> None:
        """Close what was opened for the runs."""
        await self._runtime.aclose()

    @property
    def services(self) -> Services:
        """Journal, clock and the like."""
        return self._runtime.services

    @property
    def extensions(self) -> Extensions:
        """Everything that recipes may name."""
        return self._runtime.extensions

    @property
    def catalog(self) -> Catalog:
        """The same, for the static checks."""
        return self._runtime.catalog

    def bounded(self, recipe: AgentRecipe) -> AgentRecipe:
        """Under the operator's own limits."""
        return bounded(recipe, self.settings)

    def note(self, **more: JsonValue) -> dict[str, JsonValue]:
        """What is stored with the start of a new run."""
        return {**self._note, **more}

    def check_secrets(
        self, recipe: AgentRecipe, inputs: Mapping[str, JsonValue], *, is_stored: bool = True
    ) -> None:
        """As `CallerSecrets.check`.

        Raises:
            RefusedError: `secret-refused`.
        """
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
        """For one execution of that recipe.

        Args:
            inputs: What the execution is given. Only its secrets are looked at here: there is no
                executor for those that callers may not choose.
            is_stored: False: the caller brings the recipe.
            note: Of the run that goes on; None: it is new.
            ids: Where the run's are not by chance.
        Raises:
            RefusedError: `secret-refused`.
        """
        self.check_secrets(recipe, inputs, is_stored=is_stored)
        note = note or {}
        policy = self.settings.approve or cast("str | None", note.get("approve")) or "wait"
        changes: ServiceChanges = {
            "worker_id": worker_name(f"{self._name}.{next(self._numbers)}"),
            "is_worker_gone": self.is_worker_gone,
            "decider": named_policy(policy, _VERDICTS),
        }
        if ids is not None:
            changes["ids"] = ids
        if note.get("no_cache"):
            changes["cache"] = NoStepCache()
        choice = ModelChoice(
            override=cast("str | None", note.get("model")),
            folder=Path(cast("str", note.get("folder", "."))),
        )
        return self._runtime.evolve(**changes).executor(recipe, choice)

    # --- recorded runs --------------------------------------------------------------------------

    async def recorded(self, run_id: str) -> RecordedRun:
        """A run that may go on here.

        Raises:
            NotFoundError: No such run.
            UsageError: It never began, or it is one of another command.
            EnvironmentRefusedError: It began in another folder.
        """
        recorded = await load_recorded_run(self.services.journal, run_id)
        command, home = recorded.note.get("command"), recorded.note.get("cwd")
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

    def own_recipe(self, recorded: RecordedRun) -> AgentRecipe:
        """The recipe that travels with the run, under the operator's limits.

        Raises:
            UsageError: It was made by code, or names what is not here.
        """
        made = self.extensions.recipes.get(recorded.summary.recipe)
        if recorded.document is None and made is not None:
            recipe = made
        else:
            recipe = recorded.recipe(self.catalog)
        began_with = recorded.note.get("max_cost_usd")
        if isinstance(began_with, int | float):
            return bounded(recipe, evolve(self.settings, max_cost_usd=began_with))
        return self.bounded(recipe)


def ids_of_key(key: str, ids: Ids) -> Ids:
    """The ids of the run that an idempotency key stands for: the same in every process.

    Two that ask at the same time then meet at one lease, and a restart finds the run by its id.
    """
    digest = hashlib.sha256(f"idempotency {key}".encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return lambda prefix: f"{prefix}_{digest}" if prefix in ("run", "ses") else ids(prefix)

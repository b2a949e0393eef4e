"""Executors for the server's runs: settings, models and services as on the command line."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Final

from attrs import evolve

from minions.app.runs.unattended_runtime import UnattendedRuntime
from minions.app.settings.settings import Settings
from minions.app.wiring.runtime import Runtime
from minions.contracts.offers import Offer
from minions.contracts.runtime import Ids
from minions.data.errors import (
    MinionsError,
    near_names,
)
from minions.data.json_values import JsonValue
from minions.engine.history.open_calls import OpenCall
from minions.engine.run.agent_executor import AgentExecutor
from minions.engine.run.agent_run import AgentRun
from minions.engine.run.recorded_run import RecordedRun
from minions.engine.services.worker_names import worker_name
from minions.interfaces.http.caller_inputs import CallerInputs
from minions.interfaces.http.caller_secrets import CallerSecrets
from minions.interfaces.http.caller_way import OVER_HTTP, CallerWay
from minions.interfaces.http.problems import RefusedError
from minions.recipe.kinds.ask import AskSpec
from minions.recipe.kinds.assertion import AssertSpec
from minions.recipe.kinds.recipe import RecipeSpec
from minions.recipe.kinds.set import SetSpec
from minions.recipe.model import AgentRecipe


class ServerRuntime(UnattendedRuntime):
    """The executors of a server, which checks what callers give."""

    def __init__(
        self,
        settings: Settings,
        runtime: Runtime,
        *,
        note: Mapping[str, JsonValue],
        folders: Sequence[str | Path] = (),
        way: CallerWay = OVER_HTTP,
    ) -> None:
        """Nothing is opened yet.

        Args:
            runtime: The parts that executions share; closed here.
            note: Stored with each run's start, for a later resume.
            folders: Beneath these, and the folder of the note, callers may choose folders.
            way: How callers come in, for messages.
        Raises:
            UsageError: A setting is wrong.
        """
        folder = str(note.get("cwd", "."))
        name = worker_name(runtime.services.ids("srv"))
        super().__init__(settings, runtime, name=name, folder=folder)
        self._note = note
        self._offer = Offer.beneath((folder, *folders), way=way.name)
        self._caller_secrets = CallerSecrets.of(settings.caller_secrets, way)
        self._caller_inputs = CallerInputs(self._offer, way)

    def note(self, *, is_stored: bool = True) -> dict[str, JsonValue]:
        """The note for the start of a new run, with what its caller is offered.

        Args:
            is_stored: False: the caller sent the recipe.
        """
        return {**self._note, **evolve(self._offer, brings_recipe=not is_stored).to_note()}

    def note_of(self, recorded: RecordedRun) -> Mapping[str, JsonValue]:
        """The note with which a caller resumes a run, or answers its question: one that the
        operator began has from then on what callers are offered.
        """
        return {**self._offer.to_note(), **recorded.note}

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
        return self.executor_of(recipe, note=note, ids=ids)

    def resumable_recipe(self, recorded: RecordedRun) -> AgentRecipe:
        """The recipe that is stored with the run, if the run can be resumed in this folder.

        Raises:
            EnvironmentRefusedError: `other-folder`; it began elsewhere, and may open something
                there.
            UsageError: As `own_recipe`.
        """
        recipe = self.own_recipe(recorded)
        if _may_open(recipe):
            self.check_folder(recorded)
        return recipe

    async def resumed(
        self,
        recorded: RecordedRun,
        *,
        decisions: Mapping[str, str] | None = None,
        decided_by: str | None = None,
        note: Mapping[str, JsonValue] | None = None,
    ) -> AgentRun:
        """The run, prepared to be resumed.

        Args:
            note: `note_of` the run where a caller resumes it; None: the server does so by itself.
            decisions: As of `AgentExecutor.prepare_resume`.
            decided_by: As of `AgentExecutor.prepare_resume`.
        Raises:
            MinionsError: It cannot be resumed here.
        """

        def prepare() -> AgentRun:
            recipe = self.resumable_recipe(recorded)
            executor = self.executor(recipe, recorded.inputs, note=recorded.note)
            return executor.prepare_resume(
                recorded, recipe=recipe, decisions=decisions, decided_by=decided_by, note=note
            )

        return await self.prepared(recorded, prepare)

    async def calls_in_doubt(self, run_id: str) -> Sequence[OpenCall]:
        """The calls of an interrupted run that a resume would ask about; nothing is executed.

        Empty also where the run cannot be resumed here.
        """
        try:
            return (await self.resumed(await self.recorded(run_id))).calls_in_doubt
        except MinionsError as error:
            if error.error_code == "corrupt-entry":
                raise
            return ()


_OPEN_NOTHING: Final = (AskSpec, AssertSpec, RecipeSpec, SetSpec)
"""Steps that read no relative path, and ask no model, as long as nothing chooses what follows."""


def _may_open(recipe: AgentRecipe) -> bool:
    """Whether steps of the recipe may read a path that starts in the working folder, or ask a model
    that is configured there: what the run holds would go to another project's.
    """
    return bool(recipe.tools) or any(
        not isinstance(step, _OPEN_NOTHING)
        or step.decision_tool is not None
        or (isinstance(step, RecipeSpec) and _may_open(step.recipe))
        for step in recipe.steps
    )


def ids_of_key(key: str, ids: Ids) -> Ids:
    """The ids of the run of an idempotency key, the same in every process.

    So two requests at the same time meet at one lease, and a restart finds the run by its id.
    """
    digest = hashlib.sha256(f"idempotency {key}".encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return lambda prefix: f"{prefix}_{digest}" if prefix in ("run", "ses") else ids(prefix)

"""Executors for the server's runs: settings, models and services as on the command line."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from http import HTTPStatus
from pathlib import Path
from typing import Final

from attrs import frozen
from msgspec.structs import replace

from minions.app.runs.unattended_runtime import UnattendedRuntime
from minions.app.settings.settings import Settings
from minions.app.wiring.configured_runtime import Runtime
from minions.app.wiring.patient_runtime import deadline_of
from minions.contracts.approvals import DecisionMaker
from minions.contracts.journal.start_note import TOKEN, Offer, StartNote
from minions.contracts.runtime import Ids
from minions.contracts.secrets import InputValue, SecretRef
from minions.data.errors import MinionsError, UsageError, near_names
from minions.data.json_values import JsonValue
from minions.data.texts import seconds_of
from minions.engine.history.open_calls import OpenCall
from minions.engine.run.agent_executor import AgentExecutor
from minions.engine.run.agent_run import AgentRun
from minions.engine.run.recorded_run import RecordedRun
from minions.engine.services.run_services import worker_name
from minions.interfaces.http.http_answers import RefusedError
from minions.interfaces.http.tokens import OVER_HTTP, CallerWay
from minions.recipe.inputs import is_operators_value
from minions.recipe.kinds.ask_kind import AskSpec
from minions.recipe.kinds.assertion_kind import AssertSpec
from minions.recipe.kinds.plan_kind import PlanSpec
from minions.recipe.kinds.recipe_kind import RecipeSpec
from minions.recipe.kinds.set_kind import SetSpec
from minions.recipe.model import AgentRecipe, InputSpec, StepSpec


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
        folder = StartNote.of(note).cwd or "."
        name = worker_name(runtime.services.ids("srv"))
        super().__init__(settings, runtime, name=name, folder=folder)
        self._note = note
        self._folder = folder
        self._offer = Offer.beneath((folder, *folders), way=way.name)
        self._caller_secrets = CallerSecrets.of(settings.caller_secrets, way)
        self._caller_inputs = CallerInputs(self._offer, way)

    def note(self, *, is_stored: bool = True, token: str | None = None) -> dict[str, JsonValue]:
        """The note for the start of a new run, with what its caller is offered.

        Args:
            is_stored: False: the caller sent the recipe.
            token: The name of the caller's token; None: it has none.
        """
        named: dict[str, JsonValue] = {} if token is None else {TOKEN: token}
        offer = replace(self._offer, brings_recipe=not is_stored)
        return {**self._note, **offer.to_note(), **named}

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
        return StartNote(model=name, folder=self._folder).to_json()

    def chosen_deadline(self, by: str | None, patience: str | None) -> dict[str, JsonValue]:
        """The note of a run whose caller chose until when its model calls may wait for batches.

        Raises:
            RefusedError: `patience-refused`; the operator does not allow it, or not for so long.
            UsageError: `bad-deadline`, `bad-duration`; it is no such time.
        """
        if by is None and patience is None:
            return {}
        most, clock = self.settings.caller_patience, self.services.clock
        now = clock.now()
        at = deadline_of(by, patience, now, marks="")
        if most is None or at is None or at > now + timedelta(seconds=seconds_of(most)):
            allowed = "not at all" if most is None else f"for {most} at most"
            raise RefusedError(
                HTTPStatus.FORBIDDEN,
                "patience-refused",
                f"Model calls may wait for batches of their provider {allowed} here "
                "(`caller_patience` in minions.toml).",
            )
        return StartNote(by=at).to_json()

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
        decided_by: DecisionMaker | None = None,
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


# --- which values of inputs callers may choose ---------------------------------------------------


_FOLDER_OPTIONS: Final = frozenset({"root"})
"""Options of toolsets that are folders."""


@frozen
class CallerInputs:
    """The early check of what a caller gives: what a look at the recipe's templates can tell.

    What it cannot tell, such as values that are computed, is refused where it is opened.
    """

    offer: Offer
    way: CallerWay = OVER_HTTP

    def check(self, recipe: AgentRecipe, given: Mapping[str, InputValue]) -> None:
        """Refuse values that choose an option of a toolset beyond what the operator offers.

        Args:
            recipe: One of the operator's.
        Raises:
            RefusedError: `input-refused`. Nothing was looked up: whether a path exists is not told.
        """
        if problems := list(self._problems(recipe, given)):
            raise RefusedError(HTTPStatus.FORBIDDEN, "input-refused", "\n".join(problems))

    def _problems(self, recipe: AgentRecipe, given: Mapping[str, InputValue]) -> Iterator[str]:
        for name, options in _chosen_by_inputs(recipe).items():
            spec = recipe.inputs.get(name)
            if spec is None or name not in given or _is_offered(spec, given[name], recipe):
                continue
            are_folders = options <= _FOLDER_OPTIONS
            if are_folders and self._is_beneath(given[name]):
                continue
            yield _refusal(name, options, self.way, are_folders=are_folders)
        if not all(map(self._is_beneath, _composed_folders(recipe, given))):
            yield "The inputs together choose a folder that is not beneath those of the server."

    def _is_beneath(self, path: InputValue) -> bool:
        return self.offer.place_of(path) is not None


def _refusal(name: str, options: frozenset[str], way: CallerWay, *, are_folders: bool) -> str:
    chosen = " and ".join(f"`{each}`" for each in sorted(options))
    folders = " or a folder beneath those of the server," if are_folders else ""
    return (
        f"The input '{name}' chooses {chosen} of a tool: {way.words} it takes the recipe's default,"
        f"{folders} or a value that its schema lists under `enum`. The operator offers more "
        f"folders with `{way.command} --allow-folder DIR`."
    )


def _is_offered(spec: InputSpec, value: InputValue, recipe: AgentRecipe) -> bool:
    """Whether the value opens nothing that the operator has not chosen."""
    return not _may_name(value) or is_operators_value(recipe, spec, value)


def _may_name(value: InputValue) -> bool:
    """Whether the value may name something or switch it on: it is more than a number."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        return any(map(_may_name, value))
    return value is not None and type(value) not in (int, float)


def _chosen_by_inputs(recipe: AgentRecipe) -> Mapping[str, frozenset[str]]:
    """By input: the options of toolsets, also of recipes within, that are made from it."""
    found = {
        name: frozenset({"root"})
        for name, spec in recipe.inputs.items()
        if spec.schema.get("format") == "path"  # wherever the recipe uses it
    }
    for use in recipe.tools:
        for option, value in use.options.items():
            for name in _inputs_in(value, recipe):
                found[name] = found.get(name, frozenset()) | {option}
    for step in recipe.steps:
        if isinstance(step, PlanSpec):
            for name in _inputs_in(step.workspace, recipe):
                found[name] = found.get(name, frozenset()) | _FOLDER_OPTIONS
        if isinstance(step, StepSpec) and step.inner is not None:
            for inner_name, options in _chosen_by_inputs(step.inner).items():
                for name in _inputs_in(step.inner_inputs.get(inner_name), recipe):
                    found[name] = found.get(name, frozenset()) | options
    return found


def _inputs_in(value: JsonValue, recipe: AgentRecipe) -> Iterator[str]:
    for reference in recipe.templates.compile(value).references:
        if reference.path[0] == "inputs":
            yield from (str(each) for each in reference.path[1:2] or tuple(recipe.inputs))


def _composed_folders(recipe: AgentRecipe, given: Mapping[str, InputValue]) -> Iterator[str]:
    """The folders that options make of more than one given input, or of a part beside it."""
    known = {"inputs": {**{n: s.default for n, s in recipe.inputs.items()}, **given}}
    for use in recipe.tools:
        for option in _FOLDER_OPTIONS & use.options.keys():
            template = use.options[option]
            names = {*_inputs_in(template, recipe)} & given.keys()
            if names and not _is_lone(template):
                try:
                    compiled = recipe.templates.compile(template)
                    folder = compiled.render(known)  # type: ignore[arg-type]  # a reference to a secret is refused by the run
                except MinionsError:
                    continue  # the run says why
                yield str(folder)


def _is_lone(template: JsonValue) -> bool:
    """Whether the template is one reference: its value is checked by itself."""
    text = template.strip() if isinstance(template, str) else ""
    return text.startswith("{{") and text.find("}}") == len(text) - 2 and "~" not in text


# --- which secrets callers may refer to ----------------------------------------------------------


@frozen
class CallerSecrets:
    """The references that the operator lists; each secret input also takes its own default."""

    listed: frozenset[SecretRef]
    way: CallerWay = OVER_HTTP

    @classmethod
    def of(cls, references: Sequence[str], way: CallerWay = OVER_HTTP) -> CallerSecrets:
        """The references of the setting `caller_secrets`.

        Raises:
            UsageError: `bad-configuration`; one is not valid.
        """
        try:
            return cls(frozenset(map(SecretRef.parse, references)), way)
        except UsageError as error:
            raise UsageError(
                f"caller_secrets, or --allow-secret: {error.message}", code="bad-configuration"
            ) from error

    def check(
        self, recipe: AgentRecipe, given: Mapping[str, InputValue], *, is_stored: bool = True
    ) -> None:
        """Refuse references that the caller chose; texts that are no references are refused later.

        Args:
            is_stored: Whether the recipe is the operator's; False: the caller wrote its defaults,
                too.
        Raises:
            RefusedError: `secret-refused`; no secret was read, and the message does not say whether
                it exists.
        """
        if problems := list(self._problems(recipe, given, is_stored=is_stored)):
            raise RefusedError(HTTPStatus.FORBIDDEN, "secret-refused", "\n".join(problems))

    def _problems(
        self, recipe: AgentRecipe, given: Mapping[str, InputValue], *, is_stored: bool
    ) -> Iterator[str]:
        for name, spec in recipe.inputs.items():
            if not spec.is_secret:
                continue
            default = _reference(spec.default)
            ref = _reference(given[name]) if name in given else default
            # By input: the default of another one could be sent to a service that must not see it.
            if ref is None or ref in self.listed or (is_stored and ref == default):
                continue
            yield (
                f"The input '{name}' is secret: {self.way.words} it takes the recipe's default, or "
                f"a reference that the operator lists, and {ref.source} is neither. The operator "
                f"lists it with `{self.way.command} --allow-secret {ref.source}`, or under "
                "caller_secrets in minions.toml."
            )


def _reference(value: InputValue) -> SecretRef | None:
    """The reference; None: the value is none."""
    if isinstance(value, SecretRef):
        return value
    try:
        return SecretRef.parse(value) if isinstance(value, str) else None
    except UsageError:
        return None

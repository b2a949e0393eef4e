"""A run as the journal holds it: its recipe, inputs and entries, for a resume or a retry."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import attrs
from attrs import frozen
from msgspec.structs import replace

from minions.contracts.executions import RunStatus
from minions.contracts.journal.facts import RecipeChange, RunBeginning, given, inputs_in
from minions.contracts.journal.journal import Journal, JournalEntry
from minions.contracts.journal.start_note import StartNote
from minions.contracts.runtime import BlockingCalls
from minions.contracts.secrets import InputValue
from minions.data.errors import UsageError
from minions.data.json_values import JsonValue, as_object
from minions.data.texts import shell_word
from minions.engine.compile.selection import ChosenSteps
from minions.engine.run.recipe_changes import (
    changed_documents,
    changed_steps,
    decisive_parts,
    is_same_json,
    step_versions,
)
from minions.engine.services.event_loop import beside
from minions.engine.views.lookup import REJECTED, find_run, json_of_blob
from minions.engine.views.run_summary import RunSummary
from minions.recipe.catalog import Catalog
from minions.recipe.inputs import resolve_inputs
from minions.recipe.model import MESSAGE_INPUT, AgentRecipe
from minions.recipe.nested_recipes import BundledRecipes, bundle_of
from minions.recipe.reading.load import recipe_from_document


@frozen(kw_only=True)
class RecordedRun:
    """One run with all its journal entries."""

    summary: RunSummary
    entries: Sequence[JournalEntry]
    start: RunBeginning
    """The fact of its newest start or resume: recipe, inputs, note."""
    document: Mapping[str, JsonValue] | None
    """The recipe as it was read from its file; None: it was made by code."""
    bundle: Mapping[str, JsonValue]
    """The documents of the recipes that its steps are, by identity."""
    chosen: ChosenSteps | None = None
    """The steps that were asked for; None: all of the recipe."""

    @property
    def run_id(self) -> str:
        """`run_…`."""
        return self.summary.run_id

    @property
    def inputs(self) -> Mapping[str, JsonValue]:
        """The inputs, with defaults, as they were checked when the run began."""
        return self.start.inputs or {}

    @property
    def note(self) -> Mapping[str, JsonValue]:
        """What the caller stored with its start."""
        return self.start.note or {}

    @property
    def noted(self) -> StartNote:
        """What of its note the engine and its commands read."""
        return StartNote.of(self.start.note)

    @property
    def generation(self) -> int:
        """The number of its newest execution, from 1."""
        return max(entry.generation for entry in self.entries)

    @property
    def is_over(self) -> bool:
        """Whether it came to its output, so that there is nothing left to run."""
        return self.summary.status in (RunStatus.COMPLETED, RunStatus.PARTIAL)

    @property
    def has_ended(self) -> bool:
        """Whether its end is recorded, whatever its status."""
        return self.summary.has_ended

    def recipe(self, catalog: Catalog) -> AgentRecipe:
        """The recipe that travels with the run; no file is read.

        What the recipe of an imported run may do is decided here, so its tools need approval.

        Raises:
            UsageError: It was made by code.
            RecipeError: What it names is not registered any more.
        """
        if self.document is None:
            raise UsageError(
                f"Run '{self.run_id}' was started from Python, and code does not travel with a "
                "run. Resume it from Python: `AgentExecutor(…).resume(run_id, recipe=…)`.",
                code="recipe-needed",
            )
        catalog = replace(catalog, find_recipe=BundledRecipes(self.bundle))
        recipe = recipe_from_document(
            self.document,
            catalog,
            file=f"<recipe of {self.run_id}>",
            directory=given(self.start.directory),
        )
        if not self.noted.is_strangers:
            return recipe
        permissions = attrs.evolve(recipe.permissions, is_strangers=True)
        return attrs.evolve(recipe, permissions=permissions)

    def check_id(self, recipe: AgentRecipe) -> None:
        """Refuse a recipe of another id.

        Raises:
            UsageError: `other-recipe`.
        """
        if recipe.id != self.summary.recipe:
            raise UsageError(
                f"Run '{self.run_id}' belongs to the recipe '{self.summary.recipe}', not to "
                f"'{recipe.id}'.",
                code="other-recipe",
            )

    def check_asked_for(self, step_id: str) -> None:
        """Refuse to run a step that is no part of this run.

        Raises:
            UsageError: `not-asked-for`.
        """
        if self.chosen is not None and step_id not in self.chosen.runs:
            raise UsageError(
                f"Step '{step_id}' is no part of run '{self.run_id}', which was asked for: "
                f"{', '.join(sorted(self.chosen.runs))}. Run the recipe with that step.",
                code="not-asked-for",
            )

    def check_code(self, recipe: AgentRecipe) -> None:
        """Refuse a recipe whose work is not that of the run; limits and names may differ.

        Raises:
            UsageError: Another id, other steps, or a step of another version.
        """
        self.check_id(recipe)
        if self.document is not None:
            is_same = is_same_json(
                decisive_parts(self.document), decisive_parts(recipe.document or {})
            )
            if not is_same or not is_same_json(self.bundle, bundle_of(recipe)):
                raise UsageError(
                    f"The recipe differs from the one that run '{self.run_id}' was started with. "
                    "Resume without naming a recipe, or run the changed steps again: "
                    "`AgentExecutor(…).retry(run_id, recipe=…)`.",
                    code="other-recipe",
                )
            return
        recorded = self.start.steps or {}
        current = step_versions(recipe)
        differences = [
            f"'{step_id}' was {_version(recorded, step_id)} and is {_version(current, step_id)}"
            for step_id in {**recorded, **current}
            if recorded.get(step_id) != current.get(step_id)
        ]
        if differences:
            raise UsageError(
                f"The code differs from that of run '{self.run_id}': step "
                f"{'; step '.join(differences)}. Resume with the code that it was started with, or "
                "run changed steps again: `AgentExecutor(…).retry(run_id, recipe=…)`.",
                code="other-version",
            )

    def changed(self, before: AgentRecipe | None, after: AgentRecipe) -> frozenset[str]:
        """Ids of steps that are not the same as in this run.

        Args:
            before: The run's own recipe; None where it cannot be had.
        """
        if before is not None and self.document is not None:
            return changed_steps(before, after)
        if self.document is not None:
            return changed_documents(self.document, after)
        return self._changed_code(after)

    def _changed_code(self, recipe: AgentRecipe) -> frozenset[str]:
        """Steps of a recipe of Step objects whose `version` differs from the recorded one."""
        recorded = self.start.steps or {}
        now = step_versions(recipe)
        return frozenset(
            step_id for step_id in now if recorded.get(step_id, now[step_id]) != now[step_id]
        )


def _version(versions: Mapping[str, str], step_id: str) -> str:
    return f"version {versions[step_id]}" if step_id in versions else "not there"


async def load_recorded_run(
    journal: Journal, name: str, *, threads: BlockingCalls | None = None
) -> RecordedRun:
    """The run of that id, or of a unique start of it; a session's id means its last run.

    Args:
        threads: Compute beside the event loop where the run is long; None: they do not.
    Raises:
        NotFoundError, UsageError: As `find_run`; or its recipe was refused before it began.
        JournalError: `corrupt-entry`; an entry of it cannot be read.
    """
    summary = await find_run(journal, name)
    if summary.status == REJECTED:
        raise UsageError(
            f"Run '{summary.run_id}' never began: its recipe '{summary.recipe}' has faults "
            f"(`minions sessions show {shell_word(summary.run_id)}`). Mend them and run it.",
            code="run-rejected",
        )
    entries = await journal.entries(summary.session_id, run_id=summary.run_id)
    start = await beside(threads, len(entries), lambda: newest_start(entries))
    document = bundle = None
    if start.document is not None:
        document = await json_of_blob(journal, start.document, threads)
    if start.recipes is not None:
        bundle = await json_of_blob(journal, start.recipes, threads)
    return RecordedRun(
        summary=summary,
        entries=entries,
        start=start,
        document=None if document is None else as_object(document),
        bundle=as_object(bundle or {}),
        chosen=await ChosenSteps.load(start.part, journal),
    )


def newest_start(entries: Iterable[JournalEntry]) -> RunBeginning:
    """With the inputs, wherever they stand, and the recipe to which the run was moved since."""
    facts = [e.fact for e in entries if isinstance(e.fact, RunBeginning | RecipeChange)]
    starts = [each for each in facts if isinstance(each, RunBeginning)]
    newest, start = facts[-1], starts[-1]
    if isinstance(newest, RecipeChange):
        start = replace(
            start,
            document=newest.document,
            directory=newest.directory,
            recipes=newest.recipes,
            version=newest.version,
        )
    return replace(start, inputs=inputs_in(facts))


def edited_inputs(
    recorded: RecordedRun,
    before: AgentRecipe | None,
    after: AgentRecipe,
    other: Mapping[str, InputValue],
) -> Mapping[str, JsonValue]:
    """The run's inputs for an edited recipe: what was given stays, defaults are the edited ones.

    Args:
        before: The recipe they were for, where it can still be loaded.
        other: Inputs that replace those of the run.
    Raises:
        UsageError: They do not fit, or one is missing; or the message of a turn is replaced, which
            the session has already.
    """
    if MESSAGE_INPUT in other and recorded.start.thread is not None:
        raise UsageError(
            f"The message of run '{recorded.run_id}' is part of its session already: regenerate "
            "the session from it, or fork the session before it and send another one.",
            code="message-recorded",
        )
    given = {**given_inputs(recorded, before, after), **other}
    try:
        return resolve_inputs(after, given, from_text=False, base=Path.cwd())
    except UsageError as error:
        raise UsageError(
            f"The inputs of run '{recorded.run_id}' do not fit the recipe. {error.message} "
            "Retry with other inputs, or give a new one a default in the recipe.",
            code=error.error_code,
        ) from error


def given_inputs(
    recorded: RecordedRun, before: AgentRecipe | None, after: AgentRecipe
) -> Mapping[str, JsonValue]:
    """What the run was given, without its defaults, as far as `after` takes it; not checked.

    Args:
        before: As in `edited_inputs`.
    """
    usual = _defaults(before) if before is not None else {}
    return {
        name: value
        for name, value in recorded.inputs.items()
        if name in after.inputs and not (name in usual and is_same_json(usual[name], value))
    }


def _defaults(recipe: AgentRecipe) -> Mapping[str, JsonValue]:
    declared = {name: spec for name, spec in recipe.inputs.items() if spec.has_default}
    only = attrs.evolve(recipe, inputs=declared)
    return resolve_inputs(only, {}, from_text=False, base=Path.cwd())

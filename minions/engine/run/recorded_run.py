"""A run as the journal has it, and what of it is to be done when it goes on."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Final, cast

import attrs
from attrs import frozen

from minions.contracts.errors import NotFoundError, UsageError, near_names
from minions.contracts.executions import RunStatus
from minions.contracts.facts import RunBeginning, given
from minions.contracts.journal import Journal, JournalEntry
from minions.contracts.json_values import JsonValue
from minions.contracts.steps import PythonStep, Step
from minions.engine.compile.selection import ChosenSteps
from minions.engine.history.lookup import REJECTED, find_run
from minions.engine.history.replay import Replay
from minions.engine.history.run_summary import RunSummary
from minions.recipe.bundles import BundledRecipes, bundle_of
from minions.recipe.catalog import Catalog
from minions.recipe.graph_paths import GraphPaths
from minions.recipe.inputs import resolve_inputs
from minions.recipe.model import AgentRecipe, StepSpec
from minions.recipe.reading.load import recipe_from_document

__all__ = [
    "RecordedRun",
    "check_outputs",
    "edited_inputs",
    "given_inputs",
    "load_recorded_run",
    "steps_from",
]


@frozen(kw_only=True)
class RecordedRun:
    """All rows of one run."""

    summary: RunSummary
    entries: Sequence[JournalEntry]
    start: RunBeginning
    """Its newest start: recipe, inputs, note."""
    document: Mapping[str, JsonValue] | None
    """The recipe as it was read; None: it was made by code."""
    bundle: Mapping[str, JsonValue]
    """The recipes that its steps are."""
    chosen: ChosenSteps | None = None
    """The part of the recipe that it is; None: all of it."""

    @property
    def run_id(self) -> str:
        """`run_…`."""
        return self.summary.run_id

    @property
    def inputs(self) -> Mapping[str, JsonValue]:
        """Checked when the run began."""
        return self.start.inputs or {}

    @property
    def note(self) -> Mapping[str, JsonValue]:
        """What the caller left."""
        return self.start.note or {}

    @property
    def generation(self) -> int:
        """The newest."""
        return max(entry.generation for entry in self.entries)

    @property
    def is_over(self) -> bool:
        """Whether it came to its output."""
        return self.summary.status in (RunStatus.COMPLETED, RunStatus.PARTIAL)

    @property
    def has_ended(self) -> bool:
        """Whether its end is recorded, however it was."""
        return self.summary.has_ended

    def recipe(self, catalog: Catalog) -> AgentRecipe:
        """The recipe that travels with the run; no file is read.

        Raises:
            UsageError: It was made by code.
            RecipeError: What it names is not registered any more.
        """
        if self.document is None:
            raise UsageError(
                f"Run '{self.run_id}' was started from Python, and code does not travel with a "
                "run. Go on from Python: `AgentExecutor(…).resume(run_id, recipe=…)`.",
                code="recipe-needed",
            )
        catalog = attrs.evolve(catalog, find_recipe=BundledRecipes(self.bundle))
        return recipe_from_document(
            self.document,
            catalog,
            file=f"<recipe of {self.run_id}>",
            directory=given(self.start.directory),
        )

    def check_id(self, recipe: AgentRecipe) -> None:
        """Refuse a recipe that is another one altogether.

        Raises:
            UsageError: Another id.
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
            UsageError: It is none.
        """
        if self.chosen is not None and step_id not in self.chosen.runs:
            raise UsageError(
                f"Step '{step_id}' is no part of run '{self.run_id}', which was asked for: "
                f"{', '.join(sorted(self.chosen.runs))}. Run the recipe with that step.",
                code="not-asked-for",
            )

    def check_code(self, recipe: AgentRecipe) -> None:
        """Refuse a recipe that is not the one the run began with; other limits do not matter.

        Raises:
            UsageError: Another id, other steps, or a step of another version.
        """
        self.check_id(recipe)
        if self.document is not None:
            is_same = _is_same_json(_told(self.document), _told(recipe.document or {}))
            if not is_same or not _is_same_json(self.bundle, bundle_of(recipe)):
                raise UsageError(
                    f"The recipe differs from the one that run '{self.run_id}' goes on with. Leave "
                    "it out, or let what changed run again: "
                    "`AgentExecutor(…).retry(run_id, recipe=…)`.",
                    code="other-recipe",
                )
            return
        recorded = self.start.steps or {}
        now = _versions(recipe)
        differences = [
            f"'{step_id}' was {_version(recorded, step_id)} and is {_version(now, step_id)}"
            for step_id in {**recorded, **now}
            if recorded.get(step_id) != now.get(step_id)
        ]
        if differences:
            raise UsageError(
                f"The code differs from that of run '{self.run_id}': step "
                f"{'; step '.join(differences)}. Go on with the code it began with, or let changed "
                "steps run again: `AgentExecutor(…).retry(run_id, recipe=…)`.",
                code="other-version",
            )

    def changed(self, before: AgentRecipe | None, after: AgentRecipe) -> frozenset[str]:
        """Ids of steps that are not the same as in this run.

        Args:
            before: The run's own recipe; None where it cannot be had.
        """
        if before is not None and self.document is not None:
            return _changed_steps(before, after)
        if self.document is not None:
            return _changed_documents(self.document, after)
        return self._changed_code(after)

    def _changed_code(self, recipe: AgentRecipe) -> frozenset[str]:
        """Steps of a recipe of Step objects whose version is another now."""
        recorded = self.start.steps or {}
        now = _versions(recipe)
        return frozenset(
            step_id for step_id in now if recorded.get(step_id, now[step_id]) != now[step_id]
        )


def _objects(recipe: AgentRecipe) -> Sequence[Step[object]]:
    if recipe.graph is not None and not isinstance(recipe.graph, Mapping):
        return tuple(recipe.graph.steps)
    return tuple(step for step in recipe.steps if not isinstance(step, StepSpec))


def _versions(recipe: AgentRecipe) -> dict[str, str]:
    if recipe.graph is not None and not isinstance(recipe.graph, Mapping):
        return {step.id: step.version for step in recipe.graph.steps}
    # A spec that was made by code has no version; the step that is built of it has the usual one.
    return {step.id: "1" if isinstance(step, StepSpec) else step.version for step in recipe.steps}


def _version(versions: Mapping[str, str], step_id: str) -> str:
    return f"version {versions[step_id]}" if step_id in versions else "not there"


async def load_recorded_run(journal: Journal, name: str) -> RecordedRun:
    """The run of that id, or of a unique start of it; a session's id means its last run.

    Raises:
        NotFoundError, UsageError: As `find_run`; or its recipe was refused before it began.
        JournalError: `corrupt-entry`; an entry of it cannot be read.
    """
    summary = await find_run(journal, name)
    if summary.status == REJECTED:
        raise UsageError(
            f"Run '{summary.run_id}' never began: its recipe '{summary.recipe}' has faults "
            f"(`minions sessions show {summary.run_id}`). Mend them and run the recipe.",
            code="run-rejected",
        )
    entries = await journal.entries(summary.session_id, run_id=summary.run_id)
    start = _newest_start(entries)
    text = await journal.get_blob(start.document) if start.document is not None else None
    document = cast("Mapping[str, JsonValue]", json.loads(text)) if text is not None else None
    bundle = json.loads(await journal.get_blob(start.recipes)) if start.recipes is not None else {}
    return RecordedRun(
        summary=summary,
        entries=entries,
        start=start,
        document=document,
        bundle=bundle,
        chosen=await ChosenSteps.load(start.part, journal),
    )


def _newest_start(entries: Iterable[JournalEntry]) -> RunBeginning:
    return [entry.fact for entry in entries if isinstance(entry.fact, RunBeginning)][-1]


# --- what runs again -------------------------------------------------------------------------


_FREE: Final = (
    *("description", "enabled", "limits", "max_parallel", "metadata", "name", "permissions"),
    *("retry", "schedule"),
)
"""What a recipe says that may be another when its run is resumed."""


_LOOKED_AT: Final = ("steps", "inputs", "output", "goal", "system_prompt", "messages")
"""What is compared step by step, or in the prompts of the run."""


def _shared(document: Mapping[str, JsonValue]) -> JsonValue:
    """What several steps rest on: tools, model, templates."""
    free = (*_FREE, *_LOOKED_AT, "id", "version", "execution_mode", "on_failure")
    return {key: value for key, value in document.items() if key not in free}


def _told(document: Mapping[str, JsonValue]) -> JsonValue:
    return {key: value for key, value in document.items() if key not in _FREE}


_AROUND: Final = (
    "description",
    "depends_on",
    "declared",
    "after",
    "when",
    "save_as",
    "optional",
    "timeout_s",
    "cache",
    "route",
    "decision_tool",
)
"""What a step says of when and whether it runs: an answer that is there already stays as good."""


def _changed_steps(before: AgentRecipe, after: AgentRecipe, within: str = "") -> frozenset[str]:
    """Steps that are not the same in both; what they read is looked at in the run.

    Of a recipe that is a step, the steps that changed in it: `outer/inner`; those that are the
    same are kept.
    """
    old = {step.id: step for step in before.steps}
    changed: set[str] = set()
    for step in after.steps:
        was = old.get(step.id)
        if was is None or _is_same(before, was, after, step):
            continue
        changed.add(f"{within}{step.id}")
        inner_before, inner = _inner(was), _inner(step)
        if inner_before is not None and inner is not None:
            changed |= _changed_steps(inner_before, inner, f"{within}{step.id}/")
    return frozenset(changed)


def _inner(step: object) -> AgentRecipe | None:
    return step.inner if isinstance(step, StepSpec) else None


def _is_same(before: AgentRecipe, old: object, after: AgentRecipe, new: object) -> bool:
    if not isinstance(old, StepSpec) or not isinstance(new, StepSpec):
        return getattr(old, "version", None) == getattr(new, "version", None)
    if type(old) is not type(new) or not _is_same_json(_work_of(old), _work_of(new)):
        return False
    uses_tools = bool(new.called_tools or new.offered_tools)
    if uses_tools and not _is_same_json(_plain(before.tools), _plain(after.tools)):
        return False
    if not new.asks_model:
        return True
    own = new.own_model
    return (before.model.overlaid(own) if own else before.model) == (
        after.model.overlaid(own) if own else after.model
    )


def _work_of(spec: StepSpec) -> JsonValue:
    """What the step does, as plain data."""
    told = cast("dict[str, JsonValue]", _plain(spec))
    if (inner := spec.inner) is not None:
        told["recipe"] = [inner.document or dict(_versions(inner)), bundle_of(inner)]
    return {key: value for key, value in told.items() if key not in (*_AROUND, "where")}


def _plain(value: object) -> JsonValue:
    """Specs as data that can be compared to the last type: to `==`, 1 is true."""
    if attrs.has(type(value)):
        own = cast("attrs.AttrsInstance", value)
        return attrs.asdict(own, filter=lambda _, part: not isinstance(part, AgentRecipe))
    return [_plain(item) for item in cast("Iterable[object]", value)]


def _is_same_json(one: JsonValue, other: JsonValue) -> bool:
    return _text(one) == _text(other)


def _text(value: JsonValue) -> str:
    return json.dumps(value, sort_keys=True, default=str)


def _changed_documents(before: Mapping[str, JsonValue], after: AgentRecipe) -> frozenset[str]:
    """Likewise, for a recipe that cannot be loaded any more: what it names is gone."""
    document = after.document or {}
    ids = [step.id for step in after.steps]
    if not _is_same_json(_shared(before), _shared(document)):
        return frozenset(ids)
    known = {_text(step) for step in cast("Sequence[JsonValue]", before.get("steps") or ())}
    now = cast("Sequence[JsonValue]", document.get("steps") or [None] * len(ids))
    return frozenset(
        step_id for step_id, step in zip(ids, now, strict=True) if _text(step) not in known
    )


def edited_inputs(
    recorded: RecordedRun, before: AgentRecipe | None, after: AgentRecipe
) -> Mapping[str, JsonValue]:
    """The run's inputs for an edited recipe: what was given stays, defaults are the edited ones.

    Args:
        before: The recipe they were for, where it can still be loaded.
    Raises:
        UsageError: They do not fit, or one is missing.
    """
    given = given_inputs(recorded, before, after)
    try:
        return resolve_inputs(after, given, from_text=False, base=Path.cwd())
    except UsageError as error:
        raise UsageError(
            f"The inputs of run '{recorded.run_id}' do not fit the edited recipe. {error.message} "
            "A retry takes no other inputs: give a new one a default in the recipe.",
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
        if name in after.inputs and not (name in usual and _is_same_json(usual[name], value))
    }


def _defaults(recipe: AgentRecipe) -> Mapping[str, JsonValue]:
    declared = {name: spec for name, spec in recipe.inputs.items() if spec.has_default}
    only = attrs.evolve(recipe, inputs=declared)
    return resolve_inputs(only, {}, from_text=False, base=Path.cwd())


def check_outputs(recipe: AgentRecipe, replay: Replay, run_id: str) -> None:
    """Refuse steps that declare something else now than what they gave then.

    Raises:
        UsageError: Naming the first; its version is what should tell.
    """
    for step in _objects(recipe):
        if isinstance(step, PythonStep) or (output := step.output) is None:
            continue
        for value in replay.outputs_of(step.id):
            try:
                output.convert(value)
            except Exception as error:  # an application's class raises anything
                raise UsageError(
                    f"What step '{step.id}' gave in run '{run_id}' does not fit what it declares "
                    f"now: {error}. Give the step another version and let it run again: "
                    "`AgentExecutor(…).retry(run_id, recipe=…)`.",
                    code="other-version",
                ) from error


def steps_from(recipe: AgentRecipe, first: str) -> frozenset[str]:
    """That step and all that come after it: by dependency, in the graph, or in list order.

    Raises:
        NotFoundError: There is no such step.
    """
    ids = list(_versions(recipe)) or [step.id for step in recipe.steps]
    if first not in ids:
        raise NotFoundError(
            f"The recipe has no step '{first}'. Steps are: {', '.join(ids)}.",
            code="unknown-step",
            suggestions=near_names(first, ids),
        )
    specs = [step for step in recipe.steps if isinstance(step, StepSpec)]
    if not specs:
        return frozenset(ids[ids.index(first) :])
    if isinstance(recipe.graph, Mapping):
        after = GraphPaths.of(ids, recipe.graph).after(ids.index(first))
        return frozenset((first, *(ids[place] for place in after)))
    found = {first}
    for spec in _in_order(specs):
        if found.intersection((*spec.depends_on, *spec.after)):
            found.add(spec.id)
    return frozenset(found)


def _in_order(specs: Sequence[StepSpec]) -> Iterable[StepSpec]:
    """Dependencies first."""
    by_id = {spec.id: spec for spec in specs}
    needs = {spec.id: {*spec.depends_on, *spec.after} for spec in specs}
    return [by_id[step_id] for step_id in TopologicalSorter(needs).static_order()]

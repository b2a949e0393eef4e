"""Outputs of an earlier run, pinned for a run that does only a part of the recipe."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from attrs import evolve, field, frozen

from minions.contracts.executions import OPEN_STATES, RunState
from minions.contracts.journal.facts import StepEnd, StepFinished, StepSkipped, given
from minions.contracts.journal.journal import Journal, JournalEntry, refuse_damaged
from minions.contracts.journal.run_rows import RunFilter
from minions.data.errors import UsageError
from minions.data.json_values import JsonValue
from minions.engine.compile.selection import RunPart, choose_steps, missing_pins, needed_steps
from minions.engine.history.current_rows import visible
from minions.engine.history.entry_checks import unreadable_among
from minions.engine.history.keys import base_key, enclosing, step_of
from minions.engine.run.recorded_run import RecordedRun, given_inputs, load_recorded_run
from minions.engine.run.run_steps import WHEN_IS_FALSE
from minions.engine.views.lookup import find_run, list_runs
from minions.engine.views.run_summary import RunSummary
from minions.recipe.model import AgentRecipe

_MOST_RUNS: Final = 50
"""Of the recipe, the newest ones, that are looked at."""

_ENDED: Final = frozenset(RunState) - OPEN_STATES - {RunState.REJECTED}

OwnRecipe = Callable[[RecordedRun], "AgentRecipe | None"]
"""The recipe that travels with a run, where it can still be loaded."""


@frozen(kw_only=True)
class Pins:
    """A part of a run with all that it needs of an earlier one."""

    part: RunPart
    """The part that was asked for, with its pinned outputs."""
    run_id: str | None = None
    """The earlier run; None: none is needed."""
    inputs: Mapping[str, JsonValue] = field(factory=dict)
    """What it was given, as far as the recipe takes it."""
    edited: tuple[str, ...] = ()
    """Pinned steps that were other ones then."""


async def find_pins(
    journal: Journal,
    recipe: AgentRecipe,
    part: RunPart,
    *,
    run: str | None,
    asked_as: str,
    own_recipe: OwnRecipe,
    project: str | None = None,
) -> Pins:
    """From the run of that id, or the newest ended run of the recipe that has all that is needed.

    Args:
        asked_as: How the caller named the recipe, for commands to try.
        project: The folder of the project whose runs are looked through; None: all.
    Raises:
        NotFoundError: No such step or run.
        UsageError: No run has it, or the run is one of another recipe.
    """
    needs = needed_steps(recipe, choose_steps(recipe, part))
    required = [step_id for step_id in needs.required if step_id not in part.pinned]
    if run is None and not required:
        return Pins(part=part)
    if run is None:
        found = await _newest(journal, recipe, required, asked_as, project)
    else:
        found = await _named(journal, recipe, required, run, asked_as)
    recorded = await load_recorded_run(journal, found.run_id)
    given = _RecordedOutputs.of(recorded.entries)
    wanted = [step_id for step_id in (*required, *needs.welcome) if step_id not in part.pinned]
    outputs = {name: given.output(name) for name in wanted if given.has_output(name)}
    own = own_recipe(recorded)
    edited = recorded.changed(own, recipe)
    return Pins(
        part=evolve(
            part,
            pinned={**part.pinned, **outputs},
            passed_over=tuple(name for name in wanted if given.was_passed_over(name)),
            pinned_from=recorded.run_id,
        ),
        run_id=recorded.run_id,
        inputs=given_inputs(recorded, own, recipe),
        edited=tuple(name for name in outputs if name in edited),
    )


@frozen(kw_only=True)
class _RecordedOutputs:
    """What the steps of one run came to, as its rows tell."""

    latest: Mapping[str, JournalEntry]
    """The newest end of each step."""

    @classmethod
    def of(cls, entries: Sequence[JournalEntry]) -> _RecordedOutputs:
        """From the rows of the run."""
        ends = [
            entry
            for entry in visible(entries)
            if isinstance(entry.fact, StepEnd)
            and not any(enclosing(entry.key))  # not a step of a recipe within
            and base_key(entry.key).endswith("/0")  # not an item of a loop
        ]
        return cls(latest={step_of(entry.key): entry for entry in ends})

    def has_output(self, step_id: str) -> bool:
        """Whether that step COMPLETED."""
        return self.state(step_id) == "finished"

    def output(self, step_id: str) -> JsonValue:
        """The output of a step that COMPLETED."""
        fact = self.latest[step_id].fact
        return given(fact.output) if isinstance(fact, StepFinished) else None

    def was_passed_over(self, step_id: str) -> bool:
        """Whether that step was skipped by its own condition."""
        entry = self.latest.get(step_id)
        fact = entry.fact if entry is not None else None
        return isinstance(fact, StepSkipped) and fact.reason == WHEN_IS_FALSE

    def state(self, step_id: str) -> str:
        """How it ended, in a word."""
        entry = self.latest.get(step_id)
        return "not run" if entry is None else entry.state

    def missing(self, required: Sequence[str]) -> list[str]:
        """Those of which neither is known."""
        return [
            step_id
            for step_id in required
            if not (self.has_output(step_id) or self.was_passed_over(step_id))
        ]


async def _steps(journal: Journal, run: RunSummary) -> Sequence[JournalEntry]:
    return await journal.entries(
        run.session_id, run_id=run.run_id, kinds={"step"}, with_damaged=True
    )


async def _newest(
    journal: Journal,
    recipe: AgentRecipe,
    required: Sequence[str],
    asked_as: str,
    project: str | None,
) -> RunSummary:
    ended = RunFilter(recipe=recipe.id, statuses=_ENDED, project=project)
    fewest = required
    for run in await list_runs(journal, wanted=ended, limit=_MOST_RUNS):
        rows = await _steps(journal, run)
        if unreadable_among(rows) is not None:
            continue
        missing = _RecordedOutputs.of(rows).missing(required)
        if not missing:
            return run
        fewest = min(fewest, missing, key=len)
    why = f"no earlier run of '{recipe.id}' has {'all of it' if len(required) > 1 else 'it'}"
    raise missing_pins(asked_as, fewest, why)


async def _named(
    journal: Journal, recipe: AgentRecipe, required: Sequence[str], name: str, asked_as: str
) -> RunSummary:
    run = await find_run(journal, name)
    if run.recipe != recipe.id:
        raise UsageError(
            f"Run '{run.run_id}' belongs to the recipe '{run.recipe}', not to '{recipe.id}': name "
            "one of its own (`minions sessions list`).",
            code="other-recipe",
        )
    rows = await _steps(journal, run)
    refuse_damaged(rows)
    given = _RecordedOutputs.of(rows)
    if missing := given.missing(required):
        states = ", ".join(f"{step_id} {given.state(step_id)}" for step_id in missing)
        raise missing_pins(asked_as, missing, f"run '{run.run_id}' has it not ({states})")
    return run

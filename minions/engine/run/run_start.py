"""Where a run starts, and in words what it will do: a new one, a resumed one, or a retried one.

Nothing runs here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from minions.contracts.approvals import DecisionMaker
from minions.contracts.executions import RunStatus
from minions.contracts.journal.facts import RunBeginning
from minions.contracts.journal.start_note import starters_of
from minions.contracts.secrets import InputValue
from minions.contracts.steps import Step
from minions.contracts.tools import Effect, Toolbox
from minions.data.errors import RecipeError, UsageError
from minions.data.json_values import JsonValue
from minions.data.texts import shell_word
from minions.engine.compile.selection import ChosenSteps
from minions.engine.context.agent_context import AgentContext
from minions.engine.history.conversation import ConversationStart
from minions.engine.history.keys import base_key, execution_key, path_of
from minions.engine.services.spending import EarlierUsage
from minions.recipe.catalog import Catalog
from minions.recipe.model import AgentRecipe

if TYPE_CHECKING:
    from minions.contracts.decision_types import Decision
    from minions.engine.history.open_calls import OpenCall
    from minions.engine.history.replay import Replay
    from minions.engine.run.recorded_run import RecordedRun

_UNKNOWN: Final = DecisionMaker(way="library", is_claimed=True)
"""Who makes decisions where nobody says who."""


class ResumePlan(Struct, frozen=True, kw_only=True):
    """How a recorded run is resumed or retried."""

    retries: bool = False
    """Whether failed steps, and those that read something else now, run again."""
    anew: frozenset[str] = frozenset()
    """Ids of steps that run again whatever they left."""
    anew_at: frozenset[str] = frozenset()
    """Addresses of executions that run again, as `Replay.retry` takes them."""
    decisions: Mapping[str, Decision] = msgspec.field(default_factory=dict)
    """The decisions about calls in doubt, by the key of the call."""
    decided_by: DecisionMaker | None = None
    """Who made the decisions; None: it is not known."""
    doubt: tuple[OpenCall, ...] = ()
    """Calls that wait for a decision: until there is one, no new work starts."""


class RunStart(Struct, frozen=True, kw_only=True):
    """The recipe of a run, its inputs, and what earlier executions of it recorded."""

    recipe: AgentRecipe
    inputs: Mapping[str, JsonValue]
    """Checked, with defaults."""
    has_stored_inputs: bool = False
    """Whether they stand in an earlier start of the run."""
    run_id: str
    session_id: str
    note: Mapping[str, JsonValue] = msgspec.field(default_factory=dict)
    """What the caller wants to find when the run is resumed; stored with the start."""
    user: str | None = None
    """The label of the user for whom it runs; None: it has none."""
    project: str | None = None
    """The folder of the project in which a new run starts; None: of none."""
    starters: tuple[str, ...] = ()
    """Names of whoever started the run, as far as they are known."""
    replay: Replay | None = None
    """None: the run is new."""
    resume_plan: ResumePlan | None = None
    """None: the run is new."""
    is_over: bool = False
    """Whether the run came to its output before: it is replayed, and nothing is stored."""
    chosen: ChosenSteps | None = None
    """The steps that run; None: all."""
    earlier: EarlierUsage | None = None
    """What earlier executions used, which counts against the limits; None: the run is new."""
    makes_session: bool = False
    """Whether its own id and that of its session are new: nobody else can hold them."""
    live_conversation: ConversationStart | None = msgspec.field(default_factory=ConversationStart)
    """Where it continues the conversation of its session; None: the recorded run had none."""

    def with_doubt(self, tools: Toolbox, effects: Mapping[str, Effect]) -> RunStart:
        """With the calls that began, whose end is unknown, and that may not simply be repeated.

        Args:
            tools: The tools of the recipe and of the recipes that its steps name.
            effects: Effects of tools of recipes that are made in the run, by full name.
        Raises:
            UsageError: `bad-arguments`; edited arguments of an approval do not fit their tool.
        """
        from minions.engine.calls.resume_decisions import calls_in_doubt, check_edits

        if self.resume_plan is None or self.replay is None:
            return self
        check_edits(self.replay, self.resume_plan.decisions, tools)
        plan = replace(self.resume_plan, doubt=calls_in_doubt(self.replay, tools, effects))
        return replace(self, resume_plan=plan)


def resume_start(
    recorded: RecordedRun,
    catalog: Catalog,
    *,
    recipe: AgentRecipe | None,
    decisions: Mapping[str, str] | None,
    note: Mapping[str, JsonValue] | None,
    now: datetime,
    decided_by: DecisionMaker | None = None,
) -> RunStart:
    """Where a run that did not fail is resumed.

    Args:
        recipe: The run's own, perhaps with other limits; None: as it travels with the run.
        decisions: See `AgentExecutor.resume`.
        now: The time of the decisions.
        decided_by: Who made them; None: it is not known.
        note: Stored from now on; None: what was stored before.
    Raises:
        UsageError: It failed, the code differs, or a decision means nothing.
    """
    from minions.engine.calls.resume_decisions import checked_decisions
    from minions.engine.history.file_rollback import is_rolled_back
    from minions.engine.history.replay import Replay
    from minions.engine.run.recipe_changes import check_outputs

    if recorded.summary.status == RunStatus.FAILED and not decisions:
        raise UsageError(
            f"Run '{recorded.run_id}' failed; there is nothing to resume. "
            f"`minions retry {shell_word(recorded.run_id)}` runs what failed again.",
            code="run-failed",
        )
    if not recorded.is_over and is_rolled_back(recorded.entries):
        refuse_rolled_back(recorded, recipe or own_recipe(recorded, catalog))
    recipe = recipe or recorded.recipe(catalog)
    recorded.check_code(recipe)
    replay = Replay(recorded.entries, recorded.generation + 1)
    maker = decided_by or _UNKNOWN
    given = checked_decisions(decisions or {}, replay, maker, now)
    replay.decisions.update(given)
    replay.add_votes(given, maker, now)
    check_outputs(recipe, replay, recorded.run_id)
    plan = ResumePlan(decisions=given, decided_by=decided_by)
    return _start_of(recorded, recipe, recorded.inputs, replay, plan, note)


def retry_start(
    recorded: RecordedRun,
    catalog: Catalog,
    *,
    recipe: AgentRecipe | None,
    is_edited: bool,
    from_step: str | None,
    note: Mapping[str, JsonValue] | None,
    inputs: Mapping[str, InputValue] | None = None,
) -> RunStart:
    """Where failed, changed and named steps of a run, and those that read them, run again.

    Args:
        recipe: None: as it travels with the run.
        is_edited: Whether `recipe`, where one is given, is another than the run's own.
        from_step: The id of a step, or the address of an execution: it and all after it run
            again, too.
        note: Stored from now on; None: what was stored before.
        inputs: Inputs that replace those of the run: steps that read them run again.
    Raises:
        UsageError: It completed and nothing is named, the step is none of this run, or the inputs
            do not fit.
        NotFoundError: There is no such step or execution.
    """
    from minions.engine.history.file_rollback import rolled_back_within
    from minions.engine.history.replay import Replay
    from minions.engine.run.recipe_changes import steps_from
    from minions.engine.run.recorded_run import edited_inputs
    from minions.engine.run.retry_from import is_address, reruns_from

    given = recipe if is_edited else None
    is_whole = recorded.summary.status == RunStatus.COMPLETED
    if is_whole and given is None and from_step is None and not inputs:
        raise UsageError(
            f"Run '{recorded.run_id}' completed: nothing failed. Name a step to start from, other "
            "inputs, or an edited recipe.",
            code="nothing-to-retry",
        )
    after = recipe or recorded.recipe(catalog)
    recorded.check_id(after)
    own = own_recipe(recorded, catalog) if given is not None else after
    anew = recorded.changed(own, after)
    replay = Replay(recorded.entries, recorded.generation + 1)
    anew_at = frozenset(f"{each}/" for each in rolled_back_within(recorded.entries))
    if from_step is not None and is_address(from_step, after):
        anew_at |= reruns_from(after, replay, from_step)
    elif from_step is not None:
        found = _all_from(recorded, after, from_step) or steps_from(after, from_step)
        anew |= {*found, *(f"{step_id}/" for step_id in found)}  # with all within them
        recorded.check_asked_for(from_step)
    if not anew >= {f"{each}/" for each in _ids_of(recorded, after)}:
        refuse_rolled_back(recorded, after)
    replay.retry(anew, anew_at)
    known = recorded.inputs if given is None and not inputs else None
    taken = edited_inputs(recorded, own, after, inputs or {}) if known is None else known
    plan = ResumePlan(retries=True, anew=anew, anew_at=anew_at)
    return _start_of(recorded, after, taken, replay, plan, note)


def _all_from(recorded: RecordedRun, recipe: AgentRecipe, first: str) -> frozenset[str]:
    """All steps of a run that was rolled back, if `first` is the first of them; else none."""
    from minions.engine.history.file_rollback import is_rolled_back

    ids = _ids_of(recorded, recipe)
    is_whole = ids[:1] == (first,) and is_rolled_back(recorded.entries)
    return frozenset(ids) if is_whole else frozenset()


def refuse_rolled_back(recorded: RecordedRun, recipe: AgentRecipe | None) -> None:
    """Refuse to keep work of a run whose changes of files were undone.

    Raises:
        UsageError: `rolled-back`.
    """
    from minions.engine.history.file_rollback import is_rolled_back

    if not is_rolled_back(recorded.entries):
        return
    ids = _ids_of(recorded, recipe) if recipe is not None else ()
    again = (
        f"minions retry {shell_word(recorded.run_id)} --from {shell_word(ids[0])}"
        if ids
        else "minions run"
    )
    raise UsageError(
        f"The files that run '{recorded.run_id}' changed were rolled back, so the work that it "
        f"recorded cannot be kept. Run all of it again: {again}",
        code="rolled-back",
    )


def _ids_of(recorded: RecordedRun, recipe: AgentRecipe) -> tuple[str, ...]:
    """The steps of the recipe that the run was asked for, in order."""
    chosen = recorded.chosen
    return tuple(each.id for each in recipe.steps if chosen is None or each.id in chosen.runs)


def own_recipe(recorded: RecordedRun, catalog: Catalog) -> AgentRecipe | None:
    """The recipe that travels with the run; None where none does, or it cannot be loaded now."""
    if recorded.document is None:
        return None
    try:
        return recorded.recipe(catalog)
    except RecipeError:  # what it names is gone: perhaps why it was edited
        return None


def _starters_of(recorded: RecordedRun) -> tuple[str, ...]:
    """By its first start: whoever resumes it later did not start it."""
    first = next(e.fact for e in recorded.entries if isinstance(e.fact, RunBeginning))
    return starters_of(first.user, first.note or {})


def _start_of(
    recorded: RecordedRun,
    recipe: AgentRecipe,
    inputs: Mapping[str, JsonValue],
    replay: Replay,
    plan: ResumePlan,
    note: Mapping[str, JsonValue] | None,
) -> RunStart:
    from minions.engine.history.recorded_calls import earlier_usage

    replay.is_over = recorded.is_over and not plan.retries
    return RunStart(
        recipe=recipe,
        inputs=inputs,
        has_stored_inputs=inputs is recorded.start.inputs,
        run_id=recorded.run_id,
        session_id=recorded.summary.session_id,
        note=recorded.note if note is None else note,
        user=recorded.start.user,
        starters=_starters_of(recorded),
        replay=replay,
        resume_plan=plan,
        is_over=replay.is_over,
        chosen=recorded.chosen,
        earlier=earlier_usage(recorded.entries),
        live_conversation=ConversationStart.of_run(recorded.start, recorded.entries[0].position),
    )


_MOST_NAMES: Final = 8
"""Further ones are only counted."""


def preview_lines(
    context: AgentContext, start: RunStart, steps: Sequence[Step[object]]
) -> Iterator[str]:
    """What is replayed, resumed, pinned and run; no line for a whole, new run."""
    if start.replay is not None:
        yield from _of_recorded(context, start, steps, start.replay)
    elif start.chosen is not None:
        yield from _of_part(context, start.chosen, steps)


def _of_recorded(
    context: AgentContext, start: RunStart, steps: Sequence[Step[object]], replay: Replay
) -> Iterator[str]:
    if start.is_over:
        yield f"run {start.run_id} has its output; no step runs again"
        return
    replayed, begun, to_run = [], [], []
    for step in steps:
        if start.chosen is not None and step.id not in start.chosen.runs:
            continue
        rows = replay.newest_visit(step.id)
        if rows is not None and rows.ended is not None:
            replayed.append(step.id)
        elif rows is not None:
            begun.append(step.id)
        else:
            to_run.append(step.id)
    is_waiting = bool(context.progress.open_calls)
    yield f"run {start.run_id} {'waits for a decision' if is_waiting else 'resumes'}"
    if_unchanged = " (where their inputs are the same)" if replay.checks_inputs else ""
    for words, ids in ((f"replayed{if_unchanged}", replayed), ("begun", begun), ("to run", to_run)):
        if ids:
            yield f"  {words}: {_listed(ids)}"
    if (calls := _repeated_effects(context.tools, replay, to_run)) and not is_waiting:
        yield f"  may have their effect a second time: {_listed(calls)}"


def _of_part(
    context: AgentContext, chosen: ChosenSteps, steps: Sequence[Step[object]]
) -> Iterator[str]:
    ids = [step.id for step in steps]
    pinned = [step_id for step_id in ids if step_id in chosen.pinned]
    to_run = [step_id for step_id in ids if step_id in chosen.runs]
    others = [step_id for step_id in ids if step_id not in {*pinned, *to_run}]
    yield f"run {context.run_id} runs a part of '{context.recipe.id}'"
    if pinned:
        yield f"  pinned (as in {chosen.pinned_from}): {_listed(pinned)}"
    yield f"  to run: {_listed(to_run)}"
    if others:
        yield f"  not asked for: {_listed(others)}"


def _repeated_effects(tools: Toolbox, replay: Replay, step_ids: Sequence[str]) -> list[str]:
    """Tools that are not pure and were called in executions that run again, with their step."""
    found: dict[str, None] = {}
    for key, name in replay.begun_calls(step_ids):
        tool = tools.find(name)
        if tool is None or tool.spec.effect is not Effect.PURE:
            found[f"{name} in {path_of(base_key(execution_key(key)))}"] = None
    return list(found)


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")

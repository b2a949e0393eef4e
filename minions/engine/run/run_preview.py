"""What a resumed, retried or partial run is going to do, in lines for a person."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from minions.contracts.steps import Step
from minions.contracts.tools import Effect, Toolbox
from minions.engine.compile.selection import ChosenSteps
from minions.engine.context.agent_context import AgentContext
from minions.engine.history.keys import base_key, execution_key, path_of
from minions.engine.run.run_start import RunStart

if TYPE_CHECKING:
    from minions.engine.history.replay import Replay

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

"""How the outputs of a run were asked for, rung by rung, and which answers were valid: a fold over
the recorded calls.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from attrs import evolve, frozen

from minions.contracts.instructions import OutputMode
from minions.contracts.journal.facts import (
    ModelCallFact,
    ModelCallFinished,
    StepFailed,
    StepFinished,
)
from minions.contracts.journal.journal import Journal, JournalEntry
from minions.contracts.journal.run_rows import RunFilter
from minions.engine.history.current_rows import current_rows
from minions.engine.history.keys import execution_key
from minions.engine.history.recorded_calls import recorded_error, recorded_usage

_MOST_RUNS: Final = 20
_MENDING: Final = frozenset({"final", "repair", "fields", "split", "tier"})
"""Phases of calls that only a step with a declared output makes."""
_OF_MODE: Final = {
    OutputMode.JSON_SCHEMA.value: "constrained",
    OutputMode.JSON.value: "json",
    OutputMode.TOOLS.value: "tools",
    OutputMode.MD_JSON.value: "prompt",
}


@frozen(kw_only=True)
class RungCount:
    """The answers of one rung in one step, or in several runs."""

    step_id: str
    rung: str
    """`first` (as the model's declared capabilities say), `json`, `tools`, `prompt`, `repair`,
    `fields`, `split` or `tier`."""
    calls: int = 0
    valid: int = 0
    """How many of them were the declared output, or a right part of it."""
    tokens: int = 0
    cost_usd: float | None = None
    """What they cost; None: not known."""


def rungs_in(rows: Sequence[JournalEntry]) -> tuple[RungCount, ...]:
    """The rungs of all steps with a declared output, by step, in the order of their calls."""
    executions: dict[str, list[JournalEntry]] = {}
    for row in rows:
        if isinstance(row.fact, ModelCallFact | StepFinished | StepFailed):
            executions.setdefault(execution_key(row.key), []).append(row)
    found: dict[tuple[str, str], RungCount] = {}
    for own in executions.values():
        for each in _of_execution(own):
            known = found.get((each.step_id, each.rung))
            found[each.step_id, each.rung] = each if known is None else _add_counts(known, each)
    return tuple(found.values())


async def rungs_of_model(journal: Journal, model: str) -> tuple[RungCount, ...]:
    """The rungs of the newest runs with that model, as one count for each rung.

    Reads the calls of at most twenty runs, however many are stored.
    """
    rungs: list[RungCount] = []
    for run in await journal.runs(RunFilter(text=model), limit=_MOST_RUNS):
        if run.problem is None and model in (run.model or "").split(", "):
            kinds = {"model_call", "step"}
            rows = await journal.entries(run.session_id, run_id=run.run_id, kinds=kinds)
            rungs += rungs_in(current_rows(rows))
    return counted(rungs)


def counted(rungs: Iterable[RungCount]) -> tuple[RungCount, ...]:
    """One count for each rung of all steps."""
    found: dict[str, RungCount] = {}
    for each in rungs:
        known = found.get(each.rung)
        found[each.rung] = evolve(each, step_id="") if known is None else _add_counts(known, each)
    return tuple(found.values())


def _of_execution(rows: Sequence[JournalEntry]) -> Iterable[RungCount]:
    """The rungs of one execution; none where it declares no output."""
    calls = [row.fact for row in rows if isinstance(row.fact, ModelCallFact)]
    calls = [fact for fact in calls if fact.phase != "summary"]
    ends = [row.fact for row in rows if not isinstance(row.fact, ModelCallFact)]
    end = ends[-1] if ends else None
    if not calls or not _declares_output(calls, end):
        return
    is_valid = isinstance(end, StepFinished)
    for at, fact in enumerate(calls):
        is_last = at == len(calls) - 1
        asks_for_tools = isinstance(fact, ModelCallFinished) and fact.message.tool_calls
        if fact.phase == "model" and asks_for_tools and not is_last and fact.output_mode is None:
            continue  # work, no answer
        # Of the groups of a split each but a last wrong one was valid.
        is_part = fact.phase == "split" and (is_valid or not is_last)
        yield _count(fact, is_valid=(is_last and is_valid) or is_part)


def _declares_output(calls: Sequence[ModelCallFact], end: object) -> bool:
    if any(fact.phase in _MENDING or fact.output_mode is not None for fact in calls):
        return True
    if isinstance(end, StepFailed):
        return recorded_error(end.error).code == "invalid-output"
    return isinstance(end, StepFinished) and isinstance(end.output, dict | list)


def _count(fact: ModelCallFact, *, is_valid: bool) -> RungCount:
    usage = recorded_usage(fact.metrics) if isinstance(fact, ModelCallFinished) else None
    return RungCount(
        step_id=fact.step_id,
        rung=_rung_of(fact),
        calls=1,
        valid=int(is_valid),
        tokens=usage.total_tokens if usage is not None else 0,
        cost_usd=usage.cost_usd if usage is not None else None,
    )


def _rung_of(fact: ModelCallFact) -> str:
    if fact.phase in ("repair", "fields", "split", "tier"):
        return fact.phase
    usual = "constrained" if fact.phase == "final" else "first"
    return _OF_MODE.get(fact.output_mode or "", usual)


def _add_counts(one: RungCount, other: RungCount) -> RungCount:
    costs = [each.cost_usd for each in (one, other) if each.cost_usd is not None]
    return evolve(
        one,
        calls=one.calls + other.calls,
        valid=one.valid + other.valid,
        tokens=one.tokens + other.tokens,
        cost_usd=sum(costs) if costs else None,
    )

"""What holds of every run, whatever its server did."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, cast

import yaml

from chaos.play import PRICE, ChaosRun, usage_in
from chaos.shapes import ChaosShape
from crash.inspection import repeated_work
from minions.contracts.errors import FailureInfo
from minions.contracts.executions import AgentResult, RunStatus, StepExecution
from minions.contracts.facts import UnreadableFact
from minions.contracts.failure_categories import FailureCategory
from minions.engine.history.lookup import list_runs, show_run
from minions.recipe.model import StepSpec

__all__ = ["faults_of", "faults_of_seed"]

_WORDS: Final = Path(__file__).parents[2] / "docs" / "errors.yaml"
_GOOD_ENDS: Final = (RunStatus.COMPLETED, RunStatus.PARTIAL)


def faults_of_seed(seed: int) -> list[str]:
    """All that does not hold of the run of a seed."""
    run = ChaosRun.from_seed(seed)
    return faults_of(run)


def faults_of(run: ChaosRun) -> list[str]:
    """Play the run; all that does not hold of it."""
    try:
        run.play()
    except Exception as error:  # noqa: BLE001  # a run ends with a result, whatever happens
        return [f"{type(error).__name__} came out of the run: {error!s:.500}"]
    checks = (_leaks, _ends, _usage, _budget, _time, _journal)
    return [fault for check in checks for fault in check(run)]


def _leaks(run: ChaosRun) -> Iterator[str]:
    for number, leg in enumerate(run.legs):
        yield from (f"leg {number}: {leak}" for leak in leg.leaks)


# --- a typed end ---------------------------------------------------------------------------------


def _ends(run: ChaosRun) -> Iterator[str]:
    result = run.result
    if (result.error is None) is not (result.status in _GOOD_ENDS):
        yield f"the run is {result.status} and its error is {result.error}"
    for where, error in _errors(result):
        if not _is_listed(error.code):
            yield f"{where} failed with the code '{error.code}', which is listed nowhere"
        if error.category not in FailureCategory:
            yield f"{where} failed with '{error.code}' of the category {error.category}"
        if error.category is FailureCategory.INTERNAL and not _is_of_the_test(error):
            yield f"{where} failed with {error}"
        if not error.message.strip():
            yield f"{where} failed with '{error.code}' without a word"


def _errors(result: AgentResult[object]) -> Iterator[tuple[str, FailureInfo]]:
    if result.error is not None:
        yield "the run", result.error
    for execution in result.executions:
        yield from _step_errors(execution)


def _step_errors(execution: StepExecution[object]) -> Iterator[tuple[str, FailureInfo]]:
    if execution.error is not None:
        yield execution.address, execution.error
    for call in execution.calls:
        if (failure := getattr(call, "failure", None)) is not None:
            yield call.key, failure.info()
    for inner in (*execution.iterations, *execution.steps):
        yield from _step_errors(inner)


def _is_listed(code: str) -> bool:
    return code in _codes() or f"{code.partition('-')[0]}-…" in _codes()


def _codes() -> frozenset[str]:
    if not _KNOWN:
        groups: Mapping[str, Mapping[str, str]] = yaml.safe_load(_WORDS.read_text("utf-8"))
        _KNOWN.update(code for group in groups.values() for code in group)
    return frozenset(_KNOWN)


_KNOWN: Final[set[str]] = set()


def _is_of_the_test(error: FailureInfo) -> bool:
    """Whether a step of the tests raised it on purpose."""
    return error.code == "step-raised" and "it comes to nothing" in error.message


# --- usage and budget ----------------------------------------------------------------------------


def _usage(run: ChaosRun) -> Iterator[str]:
    """Each token that was reported to a living process is counted once."""
    served, found = run.endpoint.served, usage_in(run.entries)
    reported = served.usage.total_tokens - run.lost.total_tokens
    states = Counter(entry.state for entry in run.entries if entry.kind == "model_call")
    is_estimated = served.without_usage > 0
    may_be_less = states["interrupted"] > 0
    if found.total_tokens > reported and not is_estimated:
        yield f"{found.total_tokens} tokens are recorded, {reported} were reported"
    if found.total_tokens < reported and not may_be_less:
        yield f"{found.total_tokens} tokens are recorded, {reported} were reported"
    if run.result.usage.total_tokens != found.total_tokens:
        yield f"the result says {run.result.usage}, the journal {found}"


def _budget(run: ChaosRun) -> Iterator[str]:
    recipe, result = ChaosShape(run.seed).recipe(), run.result
    tokens, limits = result.usage.total_tokens, recipe.limits
    calls = [entry for entry in run.entries if entry.kind == "model_call"]
    last_calls = sum(
        1 for step in recipe.steps if isinstance(step, StepSpec) and "at_limit" in repr(step)
    )
    largest = max((usage_in([entry]).total_tokens for entry in calls), default=0)
    most_tokens = cast("int | None", limits.get("max_tokens"))
    most_cost = cast("float | None", limits.get("max_cost_usd"))
    most_calls = cast("int | None", limits.get("max_model_calls"))
    if most_cost is not None:
        most_tokens = min(most_tokens or 10**9, int(most_cost / PRICE))
    if most_tokens is not None and tokens > most_tokens:
        if tokens > most_tokens + largest * (1 + last_calls):
            yield f"{tokens} tokens were used of {most_tokens}, the largest call had {largest}"
        if not any(warning.code == "limit-exceeded" for warning in result.warnings):
            yield f"{tokens} tokens were used of {most_tokens}, and nobody said so"
    if most_calls is not None and len(calls) > most_calls + last_calls:
        yield f"{len(calls)} model calls were made of {most_calls}"


def _time(run: ChaosRun) -> Iterator[str]:
    limits = ChaosShape(run.seed).recipe().limits
    most = cast("float | None", limits.get("timeout_s"))
    for number, leg in enumerate(run.legs):
        if most is not None and leg.seconds > most + 1:
            yield f"leg {number} took {leg.seconds:g} s of {most:g} s"


# --- the journal ---------------------------------------------------------------------------------


def _journal(run: ChaosRun) -> Iterable[str]:
    for entry in run.entries:
        if isinstance(entry.fact, UnreadableFact):
            yield f"the entry {entry.position} is not readable: {entry.fact.problem}"
    yield from repeated_work(run.entries)
    yield from asyncio.run(_shown(run))


async def _shown(run: ChaosRun) -> Sequence[str]:
    (summary,) = await list_runs(run.journal)
    await show_run(run.journal, summary)
    if summary.status != run.result.status:
        return [f"the run is {run.result.status}, and its journal says {summary.status}"]
    return []

"""What holds of every run, whatever its server did."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, cast

import yaml
from attrs import frozen

from chaos.play import PRICE, ChaosRun, usage_in
from chaos.shapes import ChaosShape
from crash.inspection import repeated_work
from minions.contracts.executions import AgentResult, RunStatus, StepExecution
from minions.contracts.journal.facts import UnreadableFact
from minions.data.errors import FailureInfo
from minions.data.failure_categories import FailureCategory
from minions.data.json_values import JsonValue
from minions.engine.views.lookup import list_runs
from minions.engine.views.run_detail import show_run

__all__ = ["faults_of", "faults_of_seed"]

_WORDS: Final = Path(__file__).parents[2] / "docs" / "reference" / "errors.yaml"
_GOOD_ENDS: Final = (RunStatus.COMPLETED, RunStatus.PARTIAL)

_PATIENT_S: Final = 0.05
"""Real seconds without a byte after which time passes where a run seems to take too long."""


def faults_of_seed(seed: int) -> list[str]:
    """All that does not hold of the run of a seed."""
    run = ChaosRun.from_seed(seed)
    found = faults_of(run)
    if found and found == [*_time(run)]:  # time also passes while a busy machine lets bytes wait
        run = ChaosRun.from_seed(seed)
        run.time.quiet_s = _PATIENT_S
        return faults_of(run)
    return found


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
    limits = _Limits.of(ChaosShape(run.seed).recipe().limits)
    tokens = run.result.usage.total_tokens
    calls = [entry for entry in run.entries if entry.kind == "model_call"]
    # With `at_limit: answer` each execution of a step may make one more.
    last = Counter(entry.key for entry in calls if entry.body.get("phase") == "last")
    yield from (f"{key} was made {count} times" for key, count in last.items() if count > 1)
    if limits.tokens is not None and tokens > limits.tokens:
        largest = max((usage_in([entry]).total_tokens for entry in calls), default=0)
        if tokens > limits.tokens + largest * (1 + len(last)):
            yield f"{tokens} tokens were used of {limits.tokens}, the largest call had {largest}"
        if not any(warning.code == "limit-exceeded" for warning in run.result.warnings):
            yield f"{tokens} tokens were used of {limits.tokens}, and nobody said so"
    if limits.calls is not None and len({entry.key for entry in calls} - set(last)) > limits.calls:
        yield f"{len(calls)} model calls were made of {limits.calls}"


@frozen
class _Limits:
    """What the run may spend; None: without limit."""

    tokens: int | None
    """Also as far as its limit on cost allows."""
    calls: int | None

    @classmethod
    def of(cls, limits: Mapping[str, JsonValue]) -> _Limits:
        """The limits of a recipe."""
        tokens = cast("int | None", limits.get("max_tokens"))
        dollars = cast("float | None", limits.get("max_cost_usd"))
        paid = None if dollars is None else int(dollars / PRICE)
        known = [most for most in (tokens, paid) if most is not None]
        return cls(min(known, default=None), cast("int | None", limits.get("max_model_calls")))


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
    if not run.is_retried:
        yield from repeated_work(run.entries)
    yield from asyncio.run(_shown(run))


async def _shown(run: ChaosRun) -> Sequence[str]:
    (summary,) = await list_runs(run.journal)
    await show_run(run.journal, summary)
    if summary.status != run.result.status:
        return [f"the run is {run.result.status}, and its journal says {summary.status}"]
    return []

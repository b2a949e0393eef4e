"""Evaluations that were made: what each variant reached and each case showed, beside the journal.

The answers themselves are runs in the journal; a record names them and holds none of their words,
which are encrypted, kept for a time and removed with the runs. An evaluation that is continued
replaces its record.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

from attrs import field, frozen

from minions.adapters.stores.memory_stores import RESERVED, StateStore
from minions.app.runs.dated_texts import DatedTexts
from minions.contracts.runtime import BlockingCalls
from minions.data.codec import decode, encode
from minions.data.errors import MinionsError, NotFoundError
from minions.data.json_values import JsonValue, dumps, parse_json
from minions.evaluation.report import CaseOutcome, EvaluationReport

MOST_CASES: Final = 5_000
"""Cases of which it is kept what they showed, the first ones; rates count all."""
_LONGEST_REASON: Final = 200
_CASES: Final = f"{RESERVED}evaluation-cases:"


@frozen(kw_only=True)
class VariantRecord:
    """What a variant reached."""

    label: str
    recipe: str
    model: str | None = None
    """None: the recipe's own."""
    pass_rate: float | None = None
    """None: nothing counts."""
    low: float | None = None
    """The lower end of its interval at 95 %."""
    high: float | None = None
    scorers: Mapping[str, float] = field(factory=dict)
    """The share that passes each scorer."""
    failed: int = 0
    """Answers without an output."""
    tokens: int = 0
    cost_usd: float | None = None
    """None: it is not known."""
    median_ms: float | None = None
    """The median duration of its runs; None: none ended."""


@frozen(kw_only=True)
class CaseAnswer:
    """What one variant answered to one case."""

    passed: float | None = None
    """The share of the answers that passed; None: none counts."""
    reason: str | None = None
    """What the first one that did not pass missed: the name of a scorer, or the code of the run's
    error. No words of an output: these go with their run."""
    run_id: str | None = None
    """The run of that answer, else of the first one; None: none was started."""


@frozen(kw_only=True)
class CaseRecord:
    """What one case showed."""

    name: str
    answers: tuple[CaseAnswer, ...]
    """In the order of the variants."""

    @property
    def is_failed(self) -> bool:
        """Whether any variant did not pass it whole."""
        return any(each.passed is not None and each.passed < 1 for each in self.answers)

    @property
    def is_different(self) -> bool:
        """Whether variants differ."""
        return len({each.passed for each in self.answers}) > 1


@frozen(kw_only=True)
class EvaluationRecord:
    """An evaluation as it was when it ended."""

    id: str
    title: str
    """What was evaluated on what."""
    ended_at: datetime
    project: str | None = None
    """The folder of the project in which it was made."""
    case_count: int
    samples: int
    """How often each case was asked."""
    at_least: float | None = None
    is_passed: bool
    stopped: str | None = None
    """Why not all was asked; None: all was."""
    variants: tuple[VariantRecord, ...]
    comparisons: tuple[Mapping[str, JsonValue], ...] = ()
    """Each further variant beside the first one: `label`, `difference`, `low`, `high`, `p`, and how
    many cases are `better` and `worse`."""


def evaluation_id(identity: Sequence[JsonValue]) -> str:
    """The id of the evaluation of that name, of these recipes, models and cases."""
    digest = hashlib.sha256(dumps(list(identity)).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()[:16]


def record_of(
    report: EvaluationReport, evaluation: str, at: datetime, project: str | None
) -> EvaluationRecord:
    """The record of an evaluation that ended, without its cases."""
    variants = []
    for each in report.variants:
        rate, usage = each.rate, each.usage + each.grading
        variants.append(
            VariantRecord(
                label=each.variant.label,
                recipe=each.variant.recipe,
                model=each.variant.model,
                pass_rate=None if rate is None else rate.value,
                low=None if rate is None else rate.low,
                high=None if rate is None else rate.high,
                scorers=dict(each.rates_by_scorer),
                failed=each.failed,
                tokens=usage.total_tokens,
                cost_usd=usage.cost_usd,
                median_ms=each.duration_ms(0.5),
            )
        )
    return EvaluationRecord(
        id=evaluation,
        title=report.name,
        ended_at=at,
        project=project,
        case_count=report.cases,
        samples=report.samples,
        at_least=report.at_least,
        is_passed=report.is_passed,
        stopped=report.stopped,
        variants=tuple(variants),
        comparisons=tuple(
            {
                "label": each.label,
                "difference": each.difference.value,
                "low": each.difference.low,
                "high": each.difference.high,
                "p": each.probability,
                "better": len(each.better),
                "worse": len(each.worse),
            }
            for each in report.comparisons
        ),
    )


def cases_of(report: EvaluationReport) -> list[CaseRecord]:
    """What the first cases of an evaluation showed."""
    cases = zip(*(each.cases[:MOST_CASES] for each in report.variants), strict=True)
    return [
        CaseRecord(name=answers[0].case.name, answers=tuple(map(_answer_in, answers)))
        for answers in cases
    ]


def _answer_in(case: CaseOutcome) -> CaseAnswer:
    shown = next((each for each in case.counted if not each.is_passed), None)
    if shown is None and case.samples:
        shown = case.samples[0]
    return CaseAnswer(
        passed=case.share,
        reason=_reason_of(case),
        run_id=None if shown is None else shown.run_id,
    )


def _reason_of(case: CaseOutcome) -> str | None:
    shown = next((each for each in case.counted if not each.is_passed), None)
    if shown is None:
        return None if case.ungraded is None else "not graded"
    if not shown.has_output:
        return (shown.problem or shown.status).partition(":")[0][:_LONGEST_REASON]
    missed = next((each.scorer for each in shown.scores if not each.is_passed), None)
    return None if missed is None else missed[:_LONGEST_REASON]


class EvaluationRecords:
    """The evaluations of a database."""

    def __init__(self, state: StateStore) -> None:
        """Nothing is read yet.

        Args:
            state: The texts beside the journal.
        """
        self._state = state
        self._texts = DatedTexts(state, "evaluation")

    async def put(
        self, record: EvaluationRecord, cases: Sequence[CaseRecord], threads: BlockingCalls
    ) -> None:
        """Store it in place of an earlier one of its id.

        Args:
            cases: Stored apart, so that no list reads them.
            threads: Encode them: there may be thousands.
        Raises:
            JournalError: The database cannot be used.
        """
        text = await threads.run(lambda: dumps(encode(list(cases))))
        await self._state.put(_CASES + record.id, text)
        await self._texts.put(record.id, record.ended_at, dumps(encode(record)))

    async def page(self, limit: int, offset: int) -> tuple[Sequence[EvaluationRecord], int]:
        """A part of the evaluations, the newest first, and how many there are.

        Raises:
            JournalError: The database cannot be used.
        """
        texts, total = await self._texts.page(limit, offset)
        found = [_read(text) for _, text in texts]
        return [each for each in found if each is not None], total

    async def find(self, evaluation: str) -> EvaluationRecord:
        """The evaluation of that id.

        Raises:
            NotFoundError: There is none.
            JournalError: The database cannot be used.
        """
        text = await self._texts.find(evaluation)
        found = None if text is None else _read(text)
        if found is None:
            raise NotFoundError(
                f"There is no evaluation '{evaluation[:100]}'. GET /api/v1/evaluations lists them.",
                code="unknown-evaluation",
            )
        return found

    async def cases(self, evaluation: str, threads: BlockingCalls) -> Sequence[CaseRecord]:
        """The cases of an evaluation in their order; none where they cannot be read.

        Args:
            threads: Decode them.
        Raises:
            JournalError: The database cannot be used.
        """
        text = await self._state.get(_CASES + evaluation)
        return [] if text is None else await threads.run(lambda: _read_cases(text))


def _read_cases(text: str) -> list[CaseRecord]:
    try:
        return decode(parse_json(text), list[CaseRecord])
    except (MinionsError, ValueError):
        return []


def _read(text: str) -> EvaluationRecord | None:
    """What was stored; None: it is of another version."""
    try:
        return decode(parse_json(text), EvaluationRecord)
    except (MinionsError, ValueError):
        return None

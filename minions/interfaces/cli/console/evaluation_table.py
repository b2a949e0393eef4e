"""The report of an evaluation as text: a table of variants, then what differs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from minions.data.texts import shown_text, spoken
from minions.data.words import shell_word
from minions.evaluation.report import (
    Comparison,
    EvaluationReport,
    VariantOutcome,
)
from minions.interfaces.cli.console.money import dollars

_MOST_NAMED: Final = 5
_LONGEST: Final = 200
"""Characters of a reason."""
_HEAD: Final = (
    "variant",
    "passed",
    "95 % of",
    "score",
    "failed",
    "tokens",
    "cost",
    "median",
    "p95",
)
_FAILED: Final = _HEAD.index("failed") + 1
_NARROW: Final = 80
_UNGRADED: Final = (
    "Ungraded answers do not count: the model that grades gave no grade. Started again with "
    "--retry-failed, it is asked again."
)


def report_lines(report: EvaluationReport, width: int, *, database: str = "") -> Iterator[str]:
    """The lines for a terminal.

    Args:
        width: Its columns; below 80 each figure has a line.
        database: The option with which its runs are found, a blank before it; empty: none is
            needed.
    """
    times = "" if report.samples == 1 else f" × {report.samples} samples"
    noun = "case" if report.cases == 1 else "cases"
    yield f"{shown_text(report.name)}: {report.cases} {noun}{times}"
    asked = report.cases * report.samples * len(report.variants)
    if (ended := sum(len(each.samples) for each in report.variants)) < asked:
        yield f"{ended} of {asked} answers are there; the figures are of these."
    if waiting := [run_id for each in report.variants for run_id in each.waiting]:
        runs = "1 run waits" if len(waiting) == 1 else f"{len(waiting)} runs wait"
        show = f"minions sessions show {shell_word(waiting[0])}{database}"
        yield f"{runs} for a person: {show} says for what."
    has_ungraded = any(each.ungraded for each in report.variants)
    head = (*_HEAD[:_FAILED], "ungraded", *_HEAD[_FAILED:]) if has_ungraded else _HEAD
    rows = [_cells(each, has_ungraded=has_ungraded) for each in report.variants]
    yield from _table(head, rows) if width >= _NARROW else _listed(head, rows)
    for each in report.variants:
        yield from _by_scorer(each)
    for comparison in report.comparisons:
        yield from _compared(comparison)
    if has_ungraded:
        yield _UNGRADED
    if report.at_least is not None:
        told = "reached" if report.is_passed else "missed"
        if has_ungraded and report.is_reached:
            told = "not all is graded"
        yield f"wanted: {report.at_least:.0%} of the cases · {told}"


def case_lines(outcome: VariantOutcome, most: int) -> Iterator[str]:
    """The cases that did not pass, or were not graded, with the reasons, at most so many."""
    missed = [each for each in outcome.cases if each.reason is not None or each.ungraded]
    for each in missed[:most]:
        mark, why = "✗", each.reason
        if why is None:
            mark, why = "?", f"not graded: {each.ungraded}"
        yield f"{mark} {shown_text(each.case.name)}: {shown_text(why[:_LONGEST])}"
    if len(missed) > most:
        yield f"… and {len(missed) - most} more (--json and --page have all)"


def cost_words(cost_usd: float | None) -> str:
    """`$0.002`, or that the cost is not known."""
    return "unknown" if cost_usd is None else dollars(cost_usd)


def _cells(outcome: VariantOutcome, *, has_ungraded: bool) -> tuple[str, ...]:
    rate, usage = outcome.rate, outcome.usage
    count = len(outcome.samples)
    each = usage.total_tokens / count if count else 0
    cost = None if usage.cost_usd is None or not count else usage.cost_usd / count
    return (
        shown_text(outcome.variant.label),
        "-" if rate is None else f"{rate.value:.0%}",
        "-" if rate is None else f"{rate.low:.0%} to {rate.high:.0%}",
        "-" if outcome.score is None else f"{outcome.score:.2f}",
        str(outcome.failed),
        *((str(outcome.ungraded),) if has_ungraded else ()),
        f"{each:.0f}",
        cost_words(cost),
        _time(outcome.duration_ms(0.5)),
        _time(outcome.duration_ms(0.95)),
    )


def _time(milliseconds: float | None) -> str:
    return "-" if milliseconds is None else spoken(milliseconds)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    for cells in (head, *rows):
        first, *others = (cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
        right = [cell.strip().rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        yield "  ".join((first, *right)).rstrip()


def _listed(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    for name, *cells in rows:
        yield name
        yield from (f"  {word}: {cell}" for word, cell in zip(head[1:], cells, strict=True))


def _by_scorer(outcome: VariantOutcome) -> Iterator[str]:
    rates = outcome.rates_by_scorer
    if len(rates) > 1:
        told = ", ".join(f"{shown_text(name)} {rate:.0%}" for name, rate in rates.items())
        yield f"{shown_text(outcome.variant.label)} by scorer: {told}"


def _compared(found: Comparison) -> Iterator[str]:
    points = found.difference
    split = f"{len(found.better)} cases better, {len(found.worse)} worse"
    clear = "" if found.is_clear else "; that may be chance"
    yield (
        f"{shown_text(found.label)} against {shown_text(found.base)}: "
        f"{points.value * 100:+.0f} points "
        f"({points.low * 100:+.0f} to {points.high * 100:+.0f}), {split} "
        f"(p = {found.probability:.2g}{clear})"
    )
    for word, names in (("better", found.better), ("worse", found.worse)):
        if names:
            more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
            yield f"  {word}: {', '.join(map(shown_text, names[:_MOST_NAMED]))}{more}"

"""The reports of evaluations and tunings as text: what was asked, what passed, what it costs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from minions.app.evaluating.learning import TestComparison, used_by
from minions.app.evaluating.recipe_tests import TestOutcome
from minions.data.texts import shell_word, shown_text, spoken
from minions.evaluation.report import Comparison, EvaluationReport, VariantOutcome
from minions.evaluation.statistics import Interval
from minions.evaluation.tuning import Configuration, Measurement, Setting, StepSpace
from minions.evaluation.tuning_search import Trial, TrialVerdict, TuningReport
from minions.interfaces.cli.console.render import dollars

_NARROW: Final = 80
_TRIAL_HEAD: Final = ("configuration", "passed", "95 % of", "cost", "tokens", "median", "cases", "")
_MOST_REASONS: Final = 5
"""Reasons why configurations were not measured; `--json` has all."""
_MOST_TRIALS: Final = 40
"""Configurations in the table; `--json` has all."""


def space_lines(steps: Sequence[StepSpace]) -> Iterator[str]:
    """What there is to choose, and why there is nothing."""
    for space in steps:
        yield f"{space.step}:"
        for dimension, settings in space.options.items():
            yield f"  {dimension}: {', '.join(shown_text(each.value) for each in settings)}"
        if space.rounds:
            yield f"  words: written {space.rounds} times at most for each model that misses"
    yield from closed_lines(steps)


def closed_lines(steps: Sequence[StepSpace]) -> Iterator[str]:
    """What is not tried, each reason once, and what choices leave out."""
    found: dict[tuple[str, str], list[str]] = {}
    for space in steps:
        for dimension, why in space.closed.items():
            found.setdefault((dimension.value, why), []).append(space.step)
    for (what, why), names in found.items():
        named = shown_text(", ".join(names))
        yield f"{what}: nothing to choose for {named}: {shown_text(why)}"
    for space in steps:
        for setting, note in space.notes.items():
            yield _note_line(setting, note)


def _note_line(setting: Setting, note: str) -> str:
    return shown_text(f"{setting.step}: {setting}: {note}")


def tuning_lines(report: TuningReport, width: int) -> Iterator[str]:
    """The lines for a terminal.

    Args:
        width: Its columns; below 80, or where the table does not fit, each figure has a line.
    """
    result = report.result
    yield from _parts_lines(report)
    yield _describe_goal(report)
    rows = [_trial_cells(each, report) for each in result.trials[:_MOST_TRIALS]]
    table = list(_tabulate_trials(rows))
    is_wide = width >= max(_NARROW, *map(len, table))
    yield from table if is_wide else _list_trials(rows)
    if len(result.trials) > _MOST_TRIALS:
        yield f"… and {len(result.trials) - _MOST_TRIALS} more (--json has all)"
    yield from _unmeasured_lines(report)
    yield from _failure_lines(report)
    for why in dict.fromkeys(report.refused):
        yield f"other words were not tried: {shown_text(why)}"
    if not result.by_cost:
        yield "ranked by tokens: the price of a model is not known"
    yield from _chosen_lines(report)


def _describe_goal(report: TuningReport) -> str:
    if report.at_least is not None:
        return f"wanted: {report.at_least:.0%} of the cases"
    base = report.result.trials[0].measured
    rate = base.rate if base.is_whole else None
    if rate is None:
        return "wanted: what the recipe passes as it is, which is not known"
    return f"wanted: {rate.value:.0%} of the cases, as the recipe is"


def _parts_lines(report: TuningReport) -> Iterator[str]:
    """The parts of the cases."""
    times = "" if report.samples == 1 else f" × {report.samples} samples"
    shown = f"{report.shown} for examples, " if report.shown else ""
    yield f"{shown_text(report.name)}: {report.cases} cases{times}"
    yield (
        f"{shown}{report.searched} to search, {report.confirming} held out to confirm "
        f"(seed {report.seed})"
    )


def _trial_cells(trial: Trial, report: TuningReport) -> tuple[str, ...]:
    measured = trial.measured
    verdict = "" if trial.verdict is TrialVerdict.PASSED else trial.verdict.value
    return (
        shown_text(trial.configuration.label),
        *_figures(measured),
        f"{measured.counted} of {report.searched}",
        verdict,
    )


def _unmeasured_lines(report: TuningReport) -> Iterator[str]:
    """Why configurations were not measured; why the search was cut aside."""
    cut = report.result.problem or ""
    found: dict[str, list[str]] = {}
    for each in report.result.trials:
        why = each.measured.problem
        if why is not None and why not in cut:
            found.setdefault(why, []).append(each.configuration.label)
    yield from _reason_lines("not measured", found)


def _failure_lines(report: TuningReport) -> Iterator[str]:
    """Why runs that count as not passed have no output."""
    found: dict[str, list[str]] = {}
    for each in report.result.trials:
        why, count = each.measured.failure, each.measured.failed
        if why is not None:
            runs = f"{count} run{'s' * (count != 1)}"
            found.setdefault(why, []).append(f"{each.configuration.label} ({runs})")
    yield from _reason_lines("without an output", found)


def _reason_lines(what: str, found: Mapping[str, Sequence[str]]) -> Iterator[str]:
    for at, (why, labels) in enumerate(found.items()):
        if at == _MOST_REASONS:
            yield f"… and {len(found) - at} other reasons (--json has all)"
            return
        named = labels[0] if len(labels) == 1 else f"{labels[0]} and {len(labels) - 1} more"
        yield f"{what}: {shown_text(named)}: {shown_text(why)}"


def _figures(measured: Measurement) -> tuple[str, str, str, str, str]:
    rate, took = measured.rate, measured.duration_ms
    return (
        "-" if rate is None else f"{rate.value:.0%}",
        "-" if rate is None else _interval(rate),
        cost_words(measured.cost_usd),
        f"{measured.tokens_each:.0f}",
        "-" if took is None else spoken(took),
    )


def _interval(rate: Interval) -> str:
    return f"{rate.low:.0%} to {rate.high:.0%}"


def _tabulate_trials(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(_TRIAL_HEAD, *rows, strict=True)]
    for cells in (_TRIAL_HEAD, *rows):
        first, *others, verdict = cells
        right = [cell.rjust(width) for cell, width in zip(others, widths[1:-1], strict=True)]
        yield "  ".join((first.ljust(widths[0]), *right, verdict)).rstrip()


def _list_trials(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    for name, *cells, verdict in rows:
        yield name
        yield from (
            f"  {head}: {cell}" for head, cell in zip(_TRIAL_HEAD[1:-1], cells, strict=True)
        )
        if verdict:
            yield f"  {verdict}"


# --- what was chosen ------------------------------------------------------------------------------


def _chosen_lines(report: TuningReport) -> Iterator[str]:
    result, label = report.result, shown_text(report.result.chosen.label)
    if report.chosen is None:
        yield from _unconfirmed_lines(report, label)
        return
    if result.is_confirmed and result.is_passed:
        yield f"cheapest that passes: {label}"
        yield from _note_lines(report)
    else:
        yield f"nothing passes on the {report.confirming} cases held out; the best is: {label}"
    yield f"on the {report.confirming} cases held out:"
    for configuration in dict.fromkeys((Configuration(), result.chosen)):
        measured = result.confirmation.get(configuration)
        if measured is not None:
            rate, interval, cost, tokens, took = _figures(measured)
            words = f"{rate} ({interval}), {cost}, {tokens} tokens, {took}"
            yield f"  {shown_text(configuration.label)}: {words}"
    yield from _saving_lines(report)
    if not (result.is_confirmed and result.is_passed) and result.confirmation_bar is not None:
        yield from _miss_lines(report.chosen, result.confirmation_bar)


def _note_lines(report: TuningReport) -> Iterator[str]:
    """What the chosen configuration leaves out."""
    for space in report.steps:
        for setting, note in space.notes.items():
            if setting in report.result.chosen.settings:
                yield f"  {_note_line(setting, note)}"


def _unconfirmed_lines(report: TuningReport, label: str) -> Iterator[str]:
    """What the search says, where no case held out was asked."""
    measured = _find_measurement(report)
    if report.result.is_passed:
        yield f"passes in the search, and was not confirmed: {label}"
        yield from _note_lines(report)
    elif measured is None or not measured.counted or measured.problem is not None:
        yield "nothing is known to pass"
    else:
        yield f"nothing passes; the best is: {label}"
        yield from _miss_lines(measured, report.result.bar)


def _find_measurement(report: TuningReport) -> Measurement | None:
    found = (
        each.measured for each in report.result.trials if each.configuration == report.result.chosen
    )
    return next(found, None)


def _miss_lines(measured: Measurement | None, bar: float) -> Iterator[str]:
    rate = None if measured is None else measured.rate
    if rate is not None and rate.value < bar:
        points = (bar - rate.value) * 100
        yield f"it misses the {bar:.0%} that are wanted by {points:.0f} points"


def _saving_lines(report: TuningReport) -> Iterator[str]:
    base, chosen = report.base, report.chosen
    if base is None or chosen is None or base is chosen:
        return
    before, after, what = base.tokens_each, chosen.tokens_each, "tokens"
    if report.result.by_cost and base.cost_usd is not None and chosen.cost_usd is not None:
        before, after, what = base.cost_usd, chosen.cost_usd, "cost"
    if before > 0:
        yield f"  {what}: {(after - before) / before:+.0%}"


# --- the report of an evaluation as text ---------------------------------------------------------


_MOST_NAMED: Final = 5
_LONGEST: Final = 200
"""Characters of a reason."""
_VARIANT_HEAD: Final = (
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
_FAILED: Final = _VARIANT_HEAD.index("failed") + 1
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
    head = (
        (*_VARIANT_HEAD[:_FAILED], "ungraded", *_VARIANT_HEAD[_FAILED:])
        if has_ungraded
        else _VARIANT_HEAD
    )
    rows = [_variant_cells(each, has_ungraded=has_ungraded) for each in report.variants]
    yield from _tabulate_variants(head, rows) if width >= _NARROW else _list_variants(head, rows)
    for each in report.variants:
        yield from _by_scorer(each)
    for comparison in report.comparisons:
        yield from _compare(comparison)
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


def _variant_cells(outcome: VariantOutcome, *, has_ungraded: bool) -> tuple[str, ...]:
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


def _tabulate_variants(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    for cells in (head, *rows):
        first, *others = (cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
        right = [cell.strip().rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        yield "  ".join((first, *right)).rstrip()


def _list_variants(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    for name, *cells in rows:
        yield name
        yield from (f"  {word}: {cell}" for word, cell in zip(head[1:], cells, strict=True))


def _by_scorer(outcome: VariantOutcome) -> Iterator[str]:
    rates = outcome.rates_by_scorer
    if len(rates) > 1:
        told = ", ".join(f"{shown_text(name)} {rate:.0%}" for name, rate in rates.items())
        yield f"{shown_text(outcome.variant.label)} by scorer: {told}"


def _compare(found: Comparison) -> Iterator[str]:
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


# --- what a recipe's tests say before a change and after it, as text -----------------------------


def comparison_lines(compared: TestComparison, names: tuple[str, str]) -> Iterator[str]:
    """The lines of both sides, and the tests that differ.

    Args:
        names: What the recipe is called before the change and after it.
    """
    width = max(map(len, names)) + 1
    for name, outcomes in zip(names, (compared.before, compared.after), strict=True):
        yield f"tests {f'{name}:':{width}} {_side(outcomes)}"
    before = {each.test.name for each in compared.before if each.faults}
    after = {each.test.name for each in compared.after if each.faults}
    if better := before - after:
        yield f"  pass now: {', '.join(sorted(better))}"
    if worse := after - before:
        yield f"  fail now: {', '.join(sorted(worse))}"
    if compared.is_cut:
        yield "  not all tests were run: --max-cost is spent"


def _side(outcomes: Sequence[TestOutcome]) -> str:
    used, passed = used_by(outcomes), sum(not each.faults for each in outcomes)
    cost = dollars(used.cost_usd) if used.cost_usd is not None else "cost unknown"
    return (
        f"{passed} of {len(outcomes)} passed · {used.total_tokens:,} tokens "
        f"({used.input_tokens:,} in) · {cost}"
    )

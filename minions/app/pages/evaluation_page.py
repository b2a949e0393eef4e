"""An evaluation as one HTML file: variants side by side, then each case. No script, all as text."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator
from html import escape
from importlib import resources
from typing import Final

from attrs import frozen

from minions.app.settings.settings import masked
from minions.data.json_values import JsonValue
from minions.data.texts import shown_text, spoken
from minions.evaluation.report import (
    CaseOutcome,
    Comparison,
    EvaluationReport,
    SampleOutcome,
    VariantOutcome,
)
from minions.evaluation.statistics import Interval

_MOST_CHARACTERS: Final = 4_000
"""Characters of one value."""
_MOST_OPEN: Final = 20
"""Cases that did not pass everywhere whose answers are open at first."""


@frozen
class EvaluationPage:
    """Writes the page of one evaluation."""

    report: EvaluationReport

    def html(self) -> str:
        """The whole file."""
        folder = resources.files("minions.app.pages")
        styles = [
            (folder / name).read_text("utf-8") for name in ("run_page.css", "evaluation_page.css")
        ]
        hashes = " ".join(f"'sha256-{_digest(style)}'" for style in styles)
        policy = f"default-src 'none'; style-src {hashes}; base-uri 'none'; form-action 'none'"
        sheets = "".join(f"<style>{style}</style>\n" for style in styles)
        body = "\n".join(self._body())
        return (
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            '<meta name="referrer" content="no-referrer">\n'
            f"<title>{_text(self.report.name)}</title>\n{sheets}</head>\n<body>\n"
            f"{body}\n</body>\n</html>\n"
        )

    def _body(self) -> Iterator[str]:
        report = self.report
        times = "" if report.samples == 1 else f", each {report.samples} times"
        yield f"<h1>{_text(report.name)}</h1>"
        yield f'<p class="muted">{report.cases} cases{times}</p>'
        if report.stopped is not None:
            yield f'<p class="bad">Not all was asked: {_text(report.stopped)}</p>'
        if report.at_least is not None:
            word = "good" if report.is_passed else "bad"
            verb = "reached" if report.is_passed else "missed"
            if any(each.ungraded for each in report.variants) and report.is_reached:
                verb = "not all is graded"
            yield f'<p class="{word}">Wanted: {report.at_least:.0%} of the cases: {verb}.</p>'
        yield '<div class="variants">'
        yield from (_variant(each) for each in report.variants)
        yield "</div>"
        yield from (_comparison(each) for each in report.comparisons)
        yield "<h2>Cases</h2>"
        yield from self._cases()

    def _cases(self) -> Iterator[str]:
        labels = [each.variant.label for each in self.report.variants]
        opened = 0
        for outcomes in zip(*(each.cases for each in self.report.variants), strict=True):
            is_wrong = any(each.reason is not None or each.ungraded for each in outcomes)
            opened += is_wrong
            yield from _case(labels, outcomes, is_open=is_wrong and opened <= _MOST_OPEN)


def _variant(outcome: VariantOutcome) -> str:
    rate, usage, count = outcome.rate, outcome.usage, len(outcome.samples)
    facts = {
        "score": "-" if outcome.score is None else f"{outcome.score:.2f}",
        "without an output": str(outcome.failed),
        **({"ungraded, not counted": str(outcome.ungraded)} if outcome.ungraded else {}),
        "tokens each": f"{usage.total_tokens / count:.0f}" if count else "-",
        "cost each": _dollars(
            None if usage.cost_usd is None or not count else usage.cost_usd / count
        ),
        "median time": _time(outcome.duration_ms(0.5)),
        "95 % within": _time(outcome.duration_ms(0.95)),
    }
    if outcome.grading.total_tokens:
        facts["grading"] = f"{outcome.grading.total_tokens} tokens"
    rates = outcome.rates_by_scorer
    if len(rates) > 1:
        facts |= {name: f"{share:.0%}" for name, share in rates.items()}
    pairs = "".join(f"<div><dt>{_text(k)}</dt><dd>{_text(v)}</dd></div>" for k, v in facts.items())
    return (
        f"<section><h2>{_text(outcome.variant.label)}</h2>{_rate(rate)}<dl>{pairs}</dl></section>"
    )


def _rate(rate: Interval | None) -> str:
    if rate is None:
        return '<p class="rate">no case counts</p>'
    low, value, high = (round(each * 100, 1) for each in (rate.low, rate.value, rate.high))
    return (
        f'<p class="rate">{rate.value:.0%} <span class="muted">passed, '
        f"{rate.low:.0%} to {rate.high:.0%} at 95 %</span></p>"
        f'<svg class="bar" viewBox="0 0 100 8" preserveAspectRatio="none" role="img" '
        f'aria-label="{rate.value:.0%} passed"><rect class="back" width="100" height="8"/>'
        f'<rect class="fill" width="{value}" height="8"/>'
        f'<rect class="range" x="{low}" y="3" width="{max(0.5, high - low):.1f}" height="2"/></svg>'
    )


def _comparison(found: Comparison) -> str:
    points = found.difference
    chance = "" if found.is_clear else "; that may be chance"
    return (
        f"<p><b>{_text(found.label)}</b> against {_text(found.base)}: "
        f"<b>{points.value * 100:+.0f} points</b> ({points.low * 100:+.0f} to "
        f"{points.high * 100:+.0f}), {len(found.better)} cases better, {len(found.worse)} worse "
        f"(p = {found.probability:.2g}{chance})</p>"
    )


def _case(labels: list[str], outcomes: tuple[CaseOutcome, ...], *, is_open: bool) -> Iterator[str]:
    case = outcomes[0].case
    marks = "".join(_mark(each.share) for each in outcomes)
    yield f"<details{' open' if is_open else ''}><summary>{marks} {_text(case.name)}</summary>"
    yield f"<h3>Inputs</h3>{_value(dict(case.plain_inputs))}"
    if case.has_expected:
        yield f"<h3>Expected</h3>{_value(case.wanted)}"
    yield '<div class="variants">'
    for label, outcome in zip(labels, outcomes, strict=True):
        yield f"<div><h3>{_text(label)}</h3>"
        yield from (_sample(each) for each in outcome.samples)
        yield "</div>"
    yield "</div></details>"


def _sample(sample: SampleOutcome) -> str:
    parts = [_mark(float(sample.is_passed) if sample.counts else None)]
    if sample.duration_ms is not None:
        parts.append(_text(spoken(sample.duration_ms)))
    parts.append(f"{sample.usage.total_tokens} tokens")
    reasons = [f"{each.scorer}: {each.reason}" for each in sample.scores if each.reason]
    if sample.ungraded is not None:
        reasons.append(f"not graded: {sample.ungraded}")
    if not sample.has_output:
        reasons = [sample.problem or sample.status.replace("_", " ")]
    told = "".join(f'<p class="bad">{_text(reason)}</p>' for reason in reasons)
    shown = _value(sample.output) if sample.has_output else ""
    return f'<p class="muted">{" · ".join(parts)}</p>{told}{shown}'


def _mark(share: float | None) -> str:
    if share is None:
        return '<span class="mark muted">–</span>'
    if share in (0, 1):
        return f'<span class="mark {"good" if share else "bad"}">{"✓" if share else "✗"}</span>'
    return f'<span class="mark some">{share:.0%}</span>'


def _value(value: JsonValue) -> str:
    text = value if isinstance(value, str) else json.dumps(value, indent=1, ensure_ascii=False)
    if len(text) > _MOST_CHARACTERS:
        text = f"{text[: _MOST_CHARACTERS - 1]}…"
    return f"<pre>{_text(text)}</pre>"


def _text(text: str) -> str:
    """As text of the page: keys masked, hidden characters shown."""
    return escape(shown_text(masked(text)))


def _time(milliseconds: float | None) -> str:
    return "-" if milliseconds is None else spoken(milliseconds)


def _dollars(cost_usd: float | None) -> str:
    return "unknown" if cost_usd is None else f"${cost_usd:.6f}".rstrip("0").rstrip(".")


def _digest(style: str) -> str:
    return base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()

"""A recorded run as one HTML file: no script, nothing from elsewhere, all data as text."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from importlib import resources
from typing import Final

from attrs import frozen

from minions.analysis.pictures.picture import picture_of, with_statuses
from minions.analysis.pictures.svg import svg
from minions.app.settings.settings import masked
from minions.contracts.executions import RunState
from minions.contracts.journal.journal import Journal
from minions.contracts.messages import TokenUsage
from minions.contracts.runtime import BlockingCalls
from minions.contracts.secrets import SecretRef, Secrets, SecretSource
from minions.data.errors import MinionsError
from minions.data.json_values import JsonValue
from minions.data.texts import shown_text, spoken
from minions.engine.history.current_rows import current_rows
from minions.engine.run.recorded_run import load_recorded_run
from minions.engine.services.event_loop import beside
from minions.engine.views.run_detail import RunDetail, show_run
from minions.engine.views.run_items import usage_of
from minions.engine.views.run_summary import RunSummary
from minions.engine.views.step_details import StepDetail, steps_in
from minions.recipe.catalog import Catalog
from minions.recipe.model import AgentRecipe
from minions.recipe.permissions import tool_specs

_SVG_STYLE: Final = re.compile(r"<style>([^<]*)</style>")


async def load_run_page(
    journal: Journal,
    run: RunSummary,
    catalog: Catalog,
    source: SecretSource,
    *,
    threads: BlockingCalls | None = None,
) -> RunPage:
    """The page of a run as it is recorded.

    Args:
        catalog: What the run's recipe may name; without its recipe the page has no picture.
        source: Where secrets are looked up whose values the page must not show.
        threads: Compute beside the event loop; None: they do not.
    Raises:
        JournalError: `corrupt-entry`; the run cannot be read.
    """
    detail = await show_run(journal, run, threads=threads)
    # Only the thread has them at last, and frees them: very many hold the event loop for long.
    rows = [await journal.entries(run.session_id, run_id=run.run_id)]
    is_running = run.status == RunState.RUNNING
    is_long = threads is not None
    steps = await beside(
        threads, is_long, lambda: steps_in(current_rows(rows.pop()), is_running=is_running)
    )
    try:
        recorded = await load_recorded_run(journal, run.run_id, threads=threads)
        recipe = await beside(threads, is_long, lambda: recorded.recipe(catalog))
    except MinionsError:  # it was rejected, made by code, or names what is not registered here
        return RunPage(detail=detail, steps=steps)
    statuses = {step.step_id: step.status for step in detail.steps}

    def page() -> RunPage:
        picture = with_statuses(picture_of(recipe, tool_specs(recipe, catalog)), statuses)
        mask = _mask_of(recipe, recorded.inputs, source)
        return RunPage(detail=detail, steps=steps, picture=svg(picture), mask=mask)

    return await beside(threads, is_long, page)


def _mask_of(
    recipe: AgentRecipe, inputs: Mapping[str, JsonValue], source: SecretSource
) -> Callable[[str], str]:
    """Removes the values of the recipe's secrets, as far as they are known here, and keys."""
    known: list[Secrets] = []
    for name, spec in recipe.inputs.items():
        if spec.is_secret and isinstance(ref := inputs.get(name), str):
            with contextlib.suppress(MinionsError):
                known.append(Secrets.resolve([SecretRef.parse(ref)], source))

    def mask(text: str) -> str:
        for secrets in known:
            text = secrets.clean_text(text)
        return masked(text)

    return mask


@frozen(kw_only=True)
class RunPage:
    """Writes the page of one run."""

    detail: RunDetail
    steps: Mapping[str, StepDetail]
    """The steps and items by address, in the order of their start."""
    picture: str = ""
    """The SVG of the recipe; empty: there is none."""
    mask: Callable[[str], str] = masked
    """Removes secrets from a text."""

    def html(self) -> str:
        """The whole file."""
        body = "\n".join(self._body())
        style = (resources.files("minions.app.pages") / "run_page.css").read_text("utf-8")
        styles = [style, *_SVG_STYLE.findall(self.picture)]
        hashes = " ".join(f"'sha256-{_digest(style)}'" for style in styles)
        policy = f"default-src 'none'; style-src {hashes}; base-uri 'none'; form-action 'none'"
        summary = self.detail.summary
        title = self._text(f"{summary.recipe}: {summary.status}")
        return (
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            '<meta name="referrer" content="no-referrer">\n'
            f"<title>{title}</title>\n<style>{style}</style>\n</head>\n<body>\n"
            f"{body}\n</body>\n</html>\n"
        )

    def _body(self) -> Iterator[str]:
        run = self.detail.summary
        yield f"<h1>{self._text(run.recipe)} · {self._text(run.status.replace('_', ' '))}</h1>"
        yield from self._facts()
        if self.detail.error is not None:
            yield from self._value("Error", self.detail.error)
        if self.picture:
            yield f'<h2>Steps</h2><section class="picture">{self._text_of_svg()}</section>'
        yield from self._value("Inputs", self.detail.inputs)
        yield from self._value("Output", self.detail.output)
        yield "<h2>What each step did</h2>"
        for address, step in self.steps.items():
            yield from self._step(address, step)

    def _facts(self) -> Iterator[str]:
        run = self.detail.summary
        took = None if run.finished_at is None else run.finished_at - run.started_at
        facts = {
            "Run": run.run_id,
            "Session": run.session_id,
            "Model": run.model or "none",
            "Started": f"{run.started_at:%Y-%m-%d %H:%M:%S} UTC",
            "Duration": "–" if took is None else spoken(took.total_seconds() * 1000),
            **_describe_usage(usage_of(run.usage)),
        }
        pairs = (
            f"<div><dt>{self._text(k)}</dt><dd>{self._text(v)}</dd></div>" for k, v in facts.items()
        )
        yield f"<dl>{''.join(pairs)}</dl>"

    def _step(self, address: str, step: StepDetail) -> Iterator[str]:
        facts = step.summary.facts
        duration = facts.get("duration_ms")
        words = [step.summary.status.replace("_", " ")]
        words += [spoken(duration)] if isinstance(duration, int | float) else []
        attempts = step.summary.retried_attempts
        words += [f"{attempts} attempts"] if attempts else []
        usage = facts.get("usage")
        used = usage_of(usage if isinstance(usage, Mapping) else None)
        words += [f"{used.total_tokens:,} tokens"] if used.total_tokens else []
        is_open = " open" if step.summary.status == "failed" else ""
        line = f'<span class="muted">{self._text(" · ".join(words))}</span>'
        yield f"<details{is_open}><summary><b>{self._text(address)}</b> {line}</summary>"
        if step.summary.reason:
            yield f"<p>{self._text(step.summary.reason)}</p>"
        for message in step.messages:
            yield from self._message(message)
        if not step.messages or step.summary.status == "failed":
            yield from self._value("Output", step.summary.output, level=3)
        if facts.get("error") is not None:
            yield from self._value("Error", facts["error"], level=3)
        yield "</details>"

    def _message(self, message: Mapping[str, JsonValue]) -> Iterator[str]:
        role = " ".join(str(message[name]) for name in ("role", "name") if message.get(name))
        yield f"<h3>{self._text(role)}</h3>"
        if message.get("content"):
            yield f"<pre>{self._text(_laid_out(message['content']))}</pre>"
        calls = message.get("tool_calls")
        for call in calls if isinstance(calls, Sequence) and not isinstance(calls, str) else ():
            called = call.get("function", call) if isinstance(call, Mapping) else call
            yield f"<pre>{self._text(_laid_out(called))}</pre>"

    def _value(self, name: str, value: JsonValue, *, level: int = 2) -> Iterator[str]:
        if value is None or value == {}:
            return
        yield f"<h{level}>{name}</h{level}><pre>{self._text(_laid_out(value))}</pre>"

    def _text(self, text: str) -> str:
        """As text of the page: without secrets and hidden characters, and never markup."""
        shown = shown_text(self.mask(text)).encode("utf-8", "backslashreplace").decode()
        return escape(shown, quote=True)

    def _text_of_svg(self) -> str:
        """The picture, in whose texts secrets are masked; its texts are escaped already."""
        return self.mask(self.picture).encode("utf-8", "backslashreplace").decode()


def _describe_usage(usage: TokenUsage) -> Mapping[str, str]:
    if not usage.total_tokens:
        return {}
    cost = "unknown" if usage.cost_usd is None else f"${usage.cost_usd:.4f}"
    return {"Tokens": f"{usage.total_tokens:,}", "Cost": cost}


def _laid_out(value: JsonValue) -> str:
    """A text as it is, JSON with indents; JSON in a text is laid out, too."""
    if not isinstance(value, str):
        return json.dumps(value, ensure_ascii=False, indent=2, default=str)
    if not value.lstrip().startswith(("{", "[")):
        return value
    try:
        return json.dumps(json.loads(value), ensure_ascii=False, indent=2)
    except (ValueError, RecursionError):
        return value


def _digest(style: str) -> str:
    """The hash by which a Content-Security-Policy allows a style element."""
    return base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()

"""`minions deploy` and `minions deployments`: which version of a recipe new runs get."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, TextIO, TypeVar

import click
from attrs import frozen

from minions.data.errors import UsageError
from minions.data.json_values import JsonValue
from minions.data.texts import shell_word
from minions.interfaces.cli.console.console import json_text, say, say_table, tell
from minions.interfaces.cli.options import (
    CommandContext,
    CommonOptions,
    OutputOptions,
    command_context,
    naming_the_journal,
    option,
    takes_options,
)
from minions.interfaces.cli.recipe_argument import named_recipe
from minions.interfaces.cli.run_follower import user_of_machine

if TYPE_CHECKING:
    from datetime import datetime

    from minions.app.evaluating.canary_decisions import CanaryFindings
    from minions.app.runs.deployments import Deployment, DeploymentEvent, DeploymentStore
    from minions.contracts.journal.journal import Journal
    from minions.recipe.model import AgentRecipe

T = TypeVar("T")

_MOST_EVENTS: Final = 5
"""Events that `deployments list` shows of each; --json shows all."""
_MOST_DIGITS: Final = 6
"""Of the number of runs after which a canary is decided."""


@frozen(kw_only=True, slots=False, eq=False, repr=False)
class _DeployOptions(CommonOptions):
    """Under which name, and for which share of the runs."""

    called: str = option(
        "--as",
        required=True,
        metavar="NAME[@N]",
        help="The deployment; N says which number the version has to get.",
    )
    canary: str | None = option(
        "--canary", metavar="SHARE", help="Only for that share of new runs: 5%."
    )
    until: str | None = option(
        "--until", metavar="RUNS", help="Decide when so many of its runs have ended: 200."
    )
    bars: tuple[str, ...] = option(
        "--bar",
        multiple=True,
        metavar="CONDITION",
        help="What has to hold then: 'pass_rate >= 0.95'. Repeatable.",
    )


@frozen(kw_only=True, slots=False, eq=False, repr=False)
class _DatabaseOption(OutputOptions):
    """Where the deployments are."""

    db: str | None = option(
        "--db", metavar="PLACE", help="PATH of an SQLite file, or postgresql://USER@HOST/DATABASE."
    )


@click.command("deploy")
@click.argument("recipe")
@click.argument("unit", required=False, metavar="")
@takes_options(_DeployOptions)
def deploy_command(options: _DeployOptions, recipe: str, unit: str | None) -> int:
    """Store RECIPE, as it is now, as a version that new runs of NAME get.

    Without --canary all new runs get it at once. With it a share does, until servers and workers
    have measured enough runs: then it is promoted, or withdrawn. Runs that have begun keep their
    version. Start runs with NAME over HTTP, and with NAME@live or NAME@N here.
    """
    if unit not in (None, "runs"):
        raise click.UsageError(f"Got unexpected extra argument ({unit})")
    context = command_context(options)
    out = sys.stdout
    # What extensions print is no result: only we write to standard output.
    with contextlib.redirect_stdout(sys.stderr):
        return asyncio.run(_deploy(context, options, recipe, out))


@click.group("deployments")
def deployments_command() -> None:
    """Say which version of a recipe new runs get, and decide it by hand."""


@deployments_command.command("list")
@click.argument("name", required=False)
@takes_options(_DatabaseOption)
def list_(options: _DatabaseOption, name: str | None) -> int:
    """List deployments, or NAME: versions, what was measured of a canary, and what was decided."""
    from minions.app.evaluating.canary_decisions import CanaryMeasurement
    from minions.contracts.runtime import SystemClock

    context = command_context(options)

    async def look(
        store: DeploymentStore, journal: Journal
    ) -> list[tuple[Deployment, CanaryFindings | None]]:
        names = await store.names() if name is None else [name]
        found: list[tuple[Deployment, CanaryFindings | None]] = []
        for each in names:
            deployment = await store.get(each)
            canary = deployment.canary
            findings = None
            if canary is not None:
                measurement = CanaryMeasurement(journal, SystemClock())
                findings = await measurement.findings(deployment, canary)
            found.append((deployment, findings))
        return found

    found = asyncio.run(_with_store(context, look))
    if context.settings.json:
        documents = [
            {**each.to_json(), "measured": None if findings is None else findings.to_json()}
            for each, findings in found
        ]
        say(json_text({"deployments": documents}))
        return 0
    say_table(
        ("DEPLOYMENT", "RECIPE", "LIVE", "CANARY"),
        [_row(deployment) for deployment, _ in found],
        details=[_details(*each) for each in found],
    )
    if not found:
        tell("There is no deployment. Make one: minions deploy RECIPE --as NAME")
    return 0


@deployments_command.command("promote")
@click.argument("version")
@takes_options(_DatabaseOption)
def promote(options: _DatabaseOption, version: str) -> int:
    """Give the version NAME@N, its canary or an earlier one, to all new runs."""
    from minions.app.runs.deployments import split_name

    name, number = split_name(version) or (version, None)
    if number is None:
        raise UsageError(f"'{version:.100}' names no version. Name one: NAME@N, such as triage@2.")
    chosen = number
    return _change(
        options,
        name,
        lambda deployment, event: deployment.promoted(chosen, event),
        what="promoted",
        number=lambda _: chosen,
    )


@deployments_command.command("withdraw")
@click.argument("name")
@takes_options(_DatabaseOption)
def withdraw(options: _DatabaseOption, name: str) -> int:
    """Withdraw the canary of NAME: new runs get the live version again."""

    def canary_of(deployment: Deployment) -> int:
        if deployment.canary is None:
            raise UsageError(
                f"The deployment '{name}' has no canary. An earlier version is given to new runs "
                f"by: minions deployments promote {name}@N",
                code="no-canary",
            )
        return deployment.canary.number

    return _change(
        options,
        name,
        lambda deployment, event: deployment.withdrawn(event),
        what="withdrawn",
        number=canary_of,
    )


@deployments_command.command("remove")
@click.argument("name")
@takes_options(_DatabaseOption)
def remove(options: _DatabaseOption, name: str) -> int:
    """Remove the deployment NAME; runs that it began keep their recipe."""
    context = command_context(options)
    asyncio.run(_with_store(context, lambda store, _: store.remove(name)))
    return _report(context, {"name": name, "removed": True}, f"{name}  removed")


# --- deploy --------------------------------------------------------------------------------------


async def _deploy(context: CommandContext, options: _DeployOptions, name: str, out: TextIO) -> int:
    from minions.app.evaluating.canary_decisions import check_bars
    from minions.app.runs.deployments import DeploymentStore
    from minions.app.wiring.databases import state_beside

    if context.settings.no_store:
        raise UsageError(
            "Deployments are stored in a database: leave out --no-store.", code="no-store"
        )
    share, runs = _share(options), _runs(options)
    called, wanted = _split_called(options.called)
    async with context.runtime() as runtime:
        recipe = named_recipe(name, context, runtime)
        check_bars(recipe, options.bars)
        state = state_beside(runtime.services.journal)
        try:
            made = await DeploymentStore(state).change(
                called,
                _make_change(
                    recipe,
                    called,
                    wanted=wanted,
                    share=share,
                    runs=runs,
                    bars=options.bars,
                    now=runtime.services.clock.now(),
                ),
            )
        finally:
            await state.aclose()
    assert made is not None  # noqa: S101  # `_make_change` always makes one
    first = _line(made)
    _report(context, made.to_json(), first, out)
    database, code = context.flags_again
    tell(f"start a run: minions run {shell_word(called)}@live{database}{code}")
    return 0


def _make_change(
    recipe: AgentRecipe,
    called: str,
    *,
    wanted: int | None,
    share: float | None,
    runs: int | None,
    bars: Sequence[str],
    now: datetime,
) -> Callable[[Deployment | None], Deployment]:
    """What makes the deployment with that recipe of the one that is there."""
    from minions.app.runs.deployments import Canary, DeploymentEvent, first_deployment

    by = user_of_machine()

    def changed(before: Deployment | None) -> Deployment:
        if before is None:
            made, version = first_deployment(called, recipe, now, by)
        else:
            made, version = before.with_version(recipe)
        if wanted is not None and wanted != version.number:
            which = "is" if before is not None else "would be the first, and become"
            raise UsageError(
                f"--as {called}@{wanted}: this text of the recipe {which} version {version.number} "
                f"of the deployment. Say --as {called}@{version.number}, or leave the number out.",
                code="other-number",
            )
        if before is None:
            if share is not None:
                raise UsageError(
                    f"--canary: '{called}' has no live version beside which a canary could run. "
                    "Deploy the first version without --canary.",
                    code="no-live-version",
                )
            return made
        if share is None:
            event = DeploymentEvent(at=now, what="deployed", number=version.number, by=by)
            return made.promoted(version.number, event)
        if version.number == made.live:
            raise UsageError(
                f"--canary: version {version.number} of '{called}' is the live one: all new runs "
                "get it already.",
                code="is-live",
            )
        canary = Canary(number=version.number, share=share, runs=runs, bars=tuple(bars), since=now)
        event = DeploymentEvent(at=now, what="canary", number=version.number, by=by)
        return made.with_canary(canary, event)

    return changed


def _split_called(text: str) -> tuple[str, int | None]:
    from minions.app.runs.deployments import split_name

    named = split_name(text)
    if named is None:
        return text, None
    if named[1] is None:
        raise UsageError(f"--as {text:.100}: 'live' is no number of a version.", code="bad-name")
    return named


def _share(options: _DeployOptions) -> float | None:
    text = options.canary
    if text is None:
        if options.until is not None or options.bars:
            raise UsageError("--until and --bar are about a canary: add --canary 5%.")
        return None
    try:
        share = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise UsageError(f"--canary {text:.50}: a share of new runs, such as 5% or 0.05.")
    return share


def _runs(options: _DeployOptions) -> int | None:
    text = options.until
    if text is None:
        if options.bars:
            raise UsageError("--bar needs --until: after how many runs it has to hold.")
        return None
    if not options.bars:
        raise UsageError(
            f"--until needs --bar: what has to hold after {text:.50} runs, such as "
            "--bar 'error_rate <= 0.02'. Without both a person decides."
        )
    number, _, unit = text.partition(" ")
    is_number = number.isascii() and number.isdigit() and len(number) <= _MOST_DIGITS
    if not (is_number and int(number) > 0 and unit in ("", "runs")):
        raise UsageError(f"--until {text:.50}: a number of runs below a million, such as 200.")
    return int(number)


# --- what all of them do -------------------------------------------------------------------------


def _change(
    options: _DatabaseOption,
    name: str,
    changed: Callable[[Deployment, DeploymentEvent], Deployment],
    *,
    what: str,
    number: Callable[[Deployment], int],
) -> int:
    from minions.app.runs.deployments import DeploymentEvent
    from minions.contracts.runtime import SystemClock

    context = command_context(options)
    now, by = SystemClock().now(), user_of_machine()

    async def change(store: DeploymentStore, _: Journal) -> Deployment:
        await store.get(name)

        def replaced(before: Deployment | None) -> Deployment | None:
            if before is None:
                return None
            event = DeploymentEvent(at=now, what=what, number=number(before), by=by)
            return changed(before, event)

        return await store.change(name, replaced) or await store.get(name)

    made = asyncio.run(_with_store(context, change))
    return _report(context, made.to_json(), _line(made))


def _report(
    context: CommandContext,
    document: Mapping[str, JsonValue],
    words: str,
    out: TextIO | None = None,
) -> int:
    say(json_text(dict(document)) if context.settings.json else words, out or sys.stdout)
    return 0


def _row(deployment: Deployment) -> tuple[str, str, str, str]:
    """The name, the recipe, the version that is live, and the canary."""
    version = deployment.version(deployment.live)
    stated = "" if version.version is None else f"version {version.version}, "
    live, canary = f"@{deployment.live} ({stated}{version.digest})", deployment.canary
    share = "" if canary is None else f"@{canary.number} {canary.share * 100:.4g}% of new runs"
    return deployment.name, deployment.recipe, live, share


def _line(deployment: Deployment) -> str:
    """The same for a person, after a change."""
    name, recipe, live, canary = _row(deployment)
    return f"{name}  recipe {recipe}  live {live}" + (f"  canary {canary}" if canary else "")


def _details(deployment: Deployment, findings: CanaryFindings | None) -> list[str]:
    """The lines of its canary, and of the newest that was decided."""
    lines = list[str]()
    if findings is not None:
        lines.append(f"  canary: {findings.reason}")
        for name, figures in (("canary", findings.canary), ("live", findings.before)):
            values = ", ".join(
                f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}"
                for key, value in figures.values().items()
            )
            lines.append(f"  {name}: {values}")
    for event in deployment.history[-_MOST_EVENTS:]:
        by = "by its bars" if event.by is None else f"by {shell_word(event.by)}"
        reason = f": {event.reason}" if event.reason else ""
        lines.append(f"  {event.at:%Y-%m-%d %H:%M}Z @{event.number} {event.what} {by}{reason}")
    return lines


async def _with_store(
    context: CommandContext, use: Callable[[DeploymentStore, Journal], Awaitable[T]]
) -> T:
    from minions.app.runs.deployments import DeploymentStore
    from minions.app.wiring.databases import state_beside

    journal = context.known_journal()
    try:
        state = state_beside(journal)
        try:
            with naming_the_journal(context):
                return await use(DeploymentStore(state), journal)
        finally:
            await state.aclose()
    finally:
        await journal.aclose()

"""`minions inbox`: list what waits for a person; at a terminal, decide one after another."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final, TypeAlias

import click
from attrs import evolve, frozen
from msgspec.structs import replace

from minions.contracts.decision_types import Answer, Approve, Done, Fail, Redo, Reject, word_of
from minions.contracts.runtime import SystemClock
from minions.data.errors import MinionsError, UsageError
from minions.data.texts import shell_word, shown_text, spoken
from minions.engine.calls.inbox import InboxItem, ItemKind, list_inbox
from minions.engine.calls.pending_decisions import PendingDecision, shortest_command
from minions.interfaces.cli.commands.decision_commands import DecisionOptions, resume_with
from minions.interfaces.cli.console.console import (
    hanging,
    json_text,
    say,
    tell,
)
from minions.interfaces.cli.console.render import (
    dollars,
)
from minions.interfaces.cli.options import (
    AllProjectsOption,
    CommandContext,
    command_context,
    naming_the_journal,
    takes_options,
)

if TYPE_CHECKING:
    from minions.contracts.decision_types import Decision

_DAY_S: Final = 86_400
_NARROWEST: Final = 24
"""Columns below which words are not wrapped further."""
_KEYS: Final[Mapping[ItemKind, str]] = {
    ItemKind.APPROVAL: "y approve, n reject, e edit the arguments and approve",
    ItemKind.BUDGET: "y approve, n reject, e approve another limit",
    ItemKind.QUESTION: "y answer, e answer in the editor, n decline",
    ItemKind.CALL: "y give its result, e write it in the editor, n decline",
    ItemKind.PLAN: "y carry it out, n do not, e edit it and carry it out",
    ItemKind.DOUBT: "y it was made, n count it as failed, e make it again",
    ItemKind.UNREADABLE: "nothing decides it",
}

Decide: TypeAlias = Callable[[InboxItem, "Decision"], object]


@frozen(kw_only=True, slots=False, eq=False, repr=False)
class _InboxOptions(AllProjectsOption, DecisionOptions):
    """What is listed, and how the runs are resumed."""


@click.command("inbox")
@click.option(
    "--decide/--list",
    "decides",
    default=None,
    help="Ask about one after another, or only list; default: ask at a terminal.",
)
@takes_options(_InboxOptions)
def inbox_command(options: _InboxOptions, *, decides: bool | None) -> int:
    """List everything of this project that waits for a person; at a terminal, decide it.

    Approvals, questions, plans to review, budgets that ask, calls in doubt, and calls of a caller's
    tool whose result you may give in its place: the oldest first, by the hour in which they were
    asked; of the same hour what belongs to the dearest run.

    At a terminal they are asked one after another: y (yes), n (no), e (edit), s (skip), q (quit).
    The run of each is resumed with the decision; further ones wait, unless --approve says
    otherwise. Ctrl-C leaves what is not decided as it was. A project is the nearest folder with a
    minions.toml or .git, else the current one.
    """
    context = command_context(options)
    if decides and context.settings.json:
        raise UsageError("--json lists; decide with `minions inbox --decide` without it.")
    with naming_the_journal(context):
        found = asyncio.run(_items(context))
    items = [each for each in found if options.of_all or each.run.project == context.project]
    if context.settings.json:
        say(json_text({"items": [each.to_json() for each in items]}))
        return 0
    if len(found) > len(items):
        tell(f"{len(found) - len(items)} more in other projects: minions inbox --all")
    if not items:
        tell("Nothing waits for a person.")
        return 0
    is_terminal = sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()
    now = SystemClock().now()
    if decides is False or (decides is None and not is_terminal):
        for item in items:
            say("\n".join(lines_of(item, items, now)))
        return 0
    policy = context.settings.approve or "wait"
    settings = evolve(context.settings, approve=policy)
    deciding = replace(context, origin=replace(context.origin, settings=settings))

    def decide(item: InboxItem, decision: Decision) -> int:
        word = {item.key: word_of(decision)}
        return resume_with(deciding, item.run.run_id, options, lambda _: word)

    return decide_each(items, decide, sys.stdin.readline, now=now)


async def _items(context: CommandContext) -> Sequence[InboxItem]:
    journal = context.known_journal()
    try:
        return await list_inbox(journal)
    finally:
        await journal.aclose()


def lines_of(
    item: InboxItem, items: Sequence[InboxItem], now: datetime, width: int = 80
) -> Iterator[str]:
    """One item for a person: where it is and since when, what is asked, and what decides it.

    Args:
        items: All, of which those of the same run make the command longer.
        width: Columns into which the words are wrapped; the command stays in one piece.
    """
    age = f"asked {_time((now - item.asked_at).total_seconds())} ago"
    expiry = item.expires_at
    until = f", expires in {_time((expiry - now).total_seconds())}" if expiry is not None else ""
    step = f", step '{item.address}'" if item.address else ""
    cost = dollars(item.cost_usd) if item.cost_usd else "$0"
    yield f"{item.kind.value}: {item.run.recipe}, {item.run.run_id}{step}, {age}{until}, {cost}"
    yield hanging(f"  {shown_text(item.words)}", width)
    if item.pending is not None:
        own = [
            each.pending
            for each in items
            if each.pending is not None and each.run.run_id == item.run.run_id
        ]
        yield f"  {shortest_command(item.pending, own, item.run.run_id)}"
    elif item.call is not None:
        run, decide = shell_word(item.run.run_id), shell_word(item.call.key)
        yield f"  minions resume {run} --decide {decide}=done"


def _time(seconds: float) -> str:
    if seconds >= 2 * _DAY_S:
        return f"{seconds / _DAY_S:.0f} days"
    return f"{seconds / 3600:.0f} h" if seconds >= 7200 else spoken(max(seconds, 0) * 1000)


_WORDS: Final[Mapping[str, str]] = {
    "yes": "y", "edit": "e", "no": "n", "skip": "s", "quit": "q",
}  # fmt: skip
"""Keys as words. Nothing else that begins so is one: it may be an answer to another question."""


def decide_each(
    items: Sequence[InboxItem],
    decide: Decide,
    read_line: Callable[[], str],
    *,
    now: datetime,
    edit: Callable[[str], str | None] | None = None,
) -> int:
    """Ask about one after another until all are decided, skipped, or the person quits.

    Args:
        decide: Makes a decision and resumes its run.
        read_line: Waits for one line; an empty text: the input has ended.
        edit: Lets the person edit a text, None if it was not saved; None: the editor of the
            environment.
    """
    width = max(_NARROWEST, min(80, shutil.get_terminal_size().columns))
    for number, item in enumerate(items, start=1):
        tell(f"{number} of {len(items)}")
        for line in lines_of(item, items, now, width):
            tell(line)
        while True:
            tell(hanging(f"  {_KEYS[item.kind]}, s skip, q quit: ", width))
            key = read_line()
            word = key.strip().casefold()
            word = _WORDS.get(word, word)
            if not key or word == "q":
                return 0
            if word == "s":
                break
            try:
                decision = _decision(item, word, read_line, edit or _edit)
                if decision is None:
                    continue
                decide(item, decision)
            except (MinionsError, click.ClickException) as error:
                tell(f"  {error.message}")
                continue
            break
    return 0


def _edit(text: str) -> str | None:
    """The text as it was saved in the editor of the environment; None: it was not.

    Raises:
        UsageError: None is named, and the one of this machine would read its keys from a pipe.
    """
    if not sys.stdin.isatty() and not (os.environ.get("VISUAL") or os.environ.get("EDITOR")):
        raise UsageError(
            "Standard input is no terminal in which an editor could be used. Name one by VISUAL or "
            "EDITOR, or decide by `minions approve RUN --arguments JSON` or "
            "`minions answer RUN VALUE`; s leaves it for later."
        )
    return click.edit(text)


def _decision(
    item: InboxItem, word: str, read_line: Callable[[], str], edit: Callable[[str], str | None]
) -> Decision | None:
    """What a key decides; None: it is no key, or nothing was entered."""

    def line(prompt: str) -> str:
        tell(f"  {prompt}")
        return read_line().strip()

    match item.kind, word:
        case ((ItemKind.APPROVAL | ItemKind.BUDGET), "y"):
            return Approve()
        case ((ItemKind.APPROVAL | ItemKind.BUDGET), "n"):
            return Reject(reason=line("why not? (empty: no reason)") or None)
        case ((ItemKind.APPROVAL | ItemKind.BUDGET), "e"):
            edited = edit(f"{_of(item).fact.arguments}\n")
            return Approve(arguments=edited.strip()) if edited and edited.strip() else None
        case ItemKind.PLAN, ("y" | "n"):
            return Answer("yes" if word == "y" else line("what to do differently?") or "no")
        case ((ItemKind.PLAN | ItemKind.QUESTION | ItemKind.CALL), "e"):
            plan = _of(item).plan
            edited = edit(plan.text if plan is not None else "")
            return Answer(edited) if edited and edited.strip() else None
        case ((ItemKind.QUESTION | ItemKind.CALL), "y"):
            answer = line("your answer:")
            return Answer(answer) if answer else None
        case ((ItemKind.QUESTION | ItemKind.CALL), "n"):
            if not _of(item).can_decline:
                raise UsageError("This question needs an answer; s leaves it for later.")
            return Reject(reason=line("why not? (empty: no reason)") or None)
        case ItemKind.DOUBT, ("y" | "n" | "e"):
            return Done() if word == "y" else Fail() if word == "n" else Redo()
        case _:
            return None


def _of(item: InboxItem) -> PendingDecision:
    assert item.pending is not None  # noqa: S101  # its kind says so
    return item.pending

"""`minions inbox`: list what waits for a person; at a terminal, decide one after another.

`minions approve`, `reject` and `answer` make one decision of a run, and resume it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Final, TypeAlias

import click
from attrs import evolve, frozen
from msgspec.structs import replace

from minions.contracts.decision_types import (
    Answer,
    ApprovalClass,
    Approve,
    Decision,
    Done,
    Fail,
    Redo,
    Reject,
    name_of,
    parse_decision,
    word_of,
)
from minions.contracts.journal.start_note import QueuePlace
from minions.contracts.runtime import SystemClock
from minions.data.errors import MinionsError, RecipeError, UsageError
from minions.data.texts import shell_word, shown_text, spoken
from minions.engine.calls.inbox import InboxItem, ItemKind, list_inbox
from minions.engine.calls.pending_decisions import (
    PendingDecision,
    pending_decisions,
    shortest_command,
)
from minions.engine.history.approval_classes import checked_class, class_words
from minions.engine.history.replay import Replay
from minions.engine.run.recorded_run import RecordedRun
from minions.interfaces.cli.console.console import hanging, json_text, say, tell
from minions.interfaces.cli.console.render import dollars
from minions.interfaces.cli.options import (
    AllProjectsOption,
    CommandContext,
    CommonOptions,
    command_context,
    naming_the_journal,
    option,
    option_seconds,
    takes_options,
)
from minions.interfaces.cli.resume_plan import RecordedRunOpener, ResumeOptions
from minions.interfaces.cli.run_follower import refuse_two_outputs

# --- decisions of one run ------------------------------------------------------------------------


_PAIR: Final = re.compile(r"[^\s=\[\]{}\"]+=.*", re.DOTALL)
"""A field of a form with its value."""
_NEGATIVE: Final = re.compile(r"-\d+(\.\d+)?([eE][-+]?\d+)?")


@frozen(kw_only=True, slots=False, eq=False, repr=False)
class DecisionOptions(ResumeOptions, CommonOptions):
    """How the run is resumed."""

    detach: bool | None = option(
        "--detach/--no-detach",
        default=None,
        help="Leave the rest to a worker; default: where it was queued before.",
    )


@click.command("approve")
@click.argument("run", metavar="ID")
@click.argument("call", required=False, metavar="[ADDRESS]")
@click.option("--arguments", metavar="JSON", help="Call it with exactly these arguments instead.")
@click.option(
    "--all-like",
    "same",
    multiple=True,
    metavar="PLACE",
    help="Also all later calls of the tool in the step with the same value there: args.to. "
    "Repeatable.",
)
@click.option(
    "--like-when", metavar="CONDITION", help="Of these only where it is true: args.amount < 100."
)
@click.option("--like-count", type=click.IntRange(min=1), help="At most so many later calls.")
@click.option("--like-for", metavar="TIME", help="Only for so long: 90s, 2h; else the whole run.")
@takes_options(DecisionOptions)
def approve_command(
    options: DecisionOptions,
    run: str,
    call: str | None,
    *,
    arguments: str | None,
    same: tuple[str, ...],
    like_when: str | None,
    like_count: int | None,
    like_for: str | None,
) -> int:
    """Approve the call that run ID waits for, and resume it.

    It is made with exactly the arguments shown, or with those that you give.
    ADDRESS says which, if several wait: an address, a step, a tool or a key.

    With --all-like or --like-when later calls of the run that are like it are approved, too, as
    long as no other stranger's words may be in them.
    """
    is_class = bool(same) or like_when is not None
    if not is_class and (like_count is not None or like_for is not None):
        raise click.UsageError("--like-count and --like-for belong to --all-like or --like-when.")
    if is_class and arguments is not None:
        raise click.UsageError("--arguments is about one call, --all-like about several.")
    like = ApprovalClass(
        same=tuple(same),
        when=like_when,
        count=like_count,
        expires_s=option_seconds("--like-for", like_for) if like_for is not None else None,
    )
    decision = Approve(arguments=arguments, like=like if is_class else None)
    return _decide(run, call, decision, options)


@click.command("reject")
@click.argument("run", metavar="ID")
@click.argument("call", required=False, metavar="[ADDRESS]")
@click.option("--reason", metavar="TEXT", help="Why: the failure says it, and a model reads it.")
@takes_options(DecisionOptions)
def reject_command(options: DecisionOptions, run: str, call: str | None, reason: str | None) -> int:
    """Reject the call that run ID waits for, and resume it.

    The step of the call fails; under `tool_failure: report` the model reads the reason and
    continues. A question that a tool asks is declined: the tool is told so, and continues. ADDRESS
    says which, if several wait: an address, a step, a tool or a key.
    """
    return _decide(run, call, Reject(reason=reason or None), options)


class _WithNegativeNumbers(click.Command):
    """Accepts `-5` as a value, although it begins like an option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.ignore_unknown_options = any(map(_NEGATIVE.fullmatch, args))
        return super().parse_args(ctx, args)


@click.command("answer", cls=_WithNegativeNumbers)
@click.argument("run", metavar="ID")
@click.argument("words", nargs=-1, required=True, metavar="[ADDRESS] VALUE…")
@takes_options(DecisionOptions)
def answer_command(options: DecisionOptions, run: str, words: tuple[str, ...]) -> int:
    """Answer the question that run ID waits for, and resume it.

    ADDRESS says which, if several wait.

    VALUE is a text, or JSON if the question's form wants something else; of a form with fields
    each as FIELD=TEXT: minions answer ID town=Oslo count=2.
    """
    ctx = click.get_current_context()
    for word in words if ctx.ignore_unknown_options else ():
        if word.startswith("-") and not _NEGATIVE.fullmatch(word):
            raise click.NoSuchOption(word, ctx=ctx)
    step, value = _split_answer(words)
    return _decide(run, step, Answer(value), options)


def _split_answer(words: tuple[str, ...]) -> tuple[str | None, str]:
    """The address, if there is one, and the value.

    Raises:
        UsageError: There are several words that are no fields.
    """
    if len(words) == 1:
        return None, words[0]
    if all(map(_PAIR.fullmatch, words)):
        return None, shlex.join(words)
    if len(words) == 2 and not _PAIR.fullmatch(words[1]):
        return words[0], words[1]
    if all(map(_PAIR.fullmatch, words[1:])):
        return words[0], words[1] if len(words) == 2 else shlex.join(words[1:])
    raise click.UsageError("Quote a VALUE of several words: minions answer ID ADDRESS 'a b c'.")


# --- the decision ---------------------------------------------------------------------------------


def _decide(run: str, about: str | None, decision: Decision, options: DecisionOptions) -> int:
    """Make a decision that the run waits for, and resume it; the exit code.

    Args:
        about: An address, a tool, a step or a key; None: the only one that waits.
    """
    context = command_context(options)
    refuse_two_outputs(context.settings)

    def choose(recorded: RecordedRun) -> Mapping[str, str]:
        replay = Replay(recorded.entries, recorded.generation + 1)
        waiting = () if recorded.is_over else pending_decisions(replay)
        flags = "".join(context.flags_again)
        chosen = _choose(waiting, about, decision, recorded.run_id, flags)
        tell(f"{name_of(decision)}: {chosen.words}")
        if (digest := chosen.digest) is not None:
            tell(f"  bound to these arguments ({digest})")
        if isinstance(decision, Approve) and decision.arguments is not None:
            tell(f"  edited to {decision.arguments}")
        if isinstance(decision, Approve) and decision.like is not None:
            checked_class(decision.like, chosen.fact)  # before it is shown
            tell(f"  and {class_words(decision.like, chosen.fact)}")
        return {chosen.key: word_of(decision)}

    return resume_with(context, run, options, choose)


def resume_with(
    context: CommandContext,
    run: str,
    options: DecisionOptions,
    choose: Callable[[RecordedRun], Mapping[str, str]],
) -> int:
    """Resume a run with decisions; the exit code.

    Args:
        choose: The decisions by what they are about, as `AgentExecutor.resume` takes them.
    """
    out = sys.stdout

    async def resume() -> int:
        async with RecordedRunOpener(context, run, model=options.model) as opened:
            is_queued = options.detach or (options.detach is None and opened.place is not None)
            if is_queued:
                opened.queue_at(opened.place or QueuePlace())
            try:
                recipe = opened.own_recipe(tells=not is_queued)
            except (RecipeError, UsageError):
                if not is_queued:
                    raise
                chosen, maker = choose(opened.recorded), options.maker(opened.recorded)
                if not _are_free_of_code(chosen, opened.recorded):
                    raise
                return await opened.queue_decisions(chosen, maker, out)  # workers have its code
            prepared = opened.executor(recipe).prepare_resume(
                opened.recorded,
                recipe=recipe,
                decisions=choose(opened.recorded),
                note=opened.note(),
                decided_by=options.maker(opened.recorded),
            )
            return await opened.follow(prepared, out)

    with contextlib.redirect_stdout(sys.stderr):
        return asyncio.run(resume())


def _are_free_of_code(decisions: Mapping[str, str], recorded: RecordedRun) -> bool:
    """Whether nothing that the recipe names is needed to record them: edited arguments are checked
    by their tool, and a conversation by its steps.
    """
    given = map(parse_decision, decisions.values())
    is_edited = any(isinstance(each, Approve) and each.arguments is not None for each in given)
    return not is_edited and recorded.start.thread is None


def _choose(
    waiting: Sequence[PendingDecision],
    about: str | None,
    decision: Decision,
    run_id: str,
    options: str,
) -> PendingDecision:
    """The pending decision that is meant.

    Args:
        options: What commands about the run need to find it.
    Raises:
        UsageError: None is, or several are.
    """
    fitting = [each for each in waiting if _decides(decision, each)]
    found = [each for each in fitting if about is None or each.is_meant_by(about)]
    if len(found) == 1:
        return found[0]
    listed = "".join(f"\n  {_name(each, fitting)}: {each.words}" for each in fitting) or " none."
    if not fitting and waiting:
        listed += " It waits for other ones:" + "".join(
            f"\n  {each.words}: {shortest_command(each, waiting, run_id)}{options}"
            for each in waiting
        )
    named = "" if about is None else f"'{about}' means {len(found)} of them. "
    raise UsageError(
        f"{named}Run '{run_id}' waits for these decisions ({_KINDS[type(decision)]}):{listed}",
        code="unknown-call",
        suggestions=[_name(each, fitting) for each in fitting],
    )


def _decides(decision: Decision, each: PendingDecision) -> bool:
    if isinstance(decision, Reject):
        return each.can_reject
    return each.what == ("answer" if isinstance(decision, Answer) else "approval")


_KINDS: Final[Mapping[type[Decision], str]] = {
    Answer: "answer",
    Approve: "approval",
    Reject: "approval, or a question of a tool",
}


def _name(decision: PendingDecision, among: Sequence[PendingDecision]) -> str:
    """Its address; its key where the address means others of them, too."""
    found = [each for each in among if each.is_meant_by(decision.address)]
    return decision.address if len(found) == 1 else decision.key


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

"""`minions approve`, `reject` and `answer`: make a decision that a run waits for, and resume it."""

from __future__ import annotations

import asyncio
import contextlib
import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import click
from attrs import frozen

from minions.contracts.decision_types import (
    Answer,
    ApprovalClass,
    Approve,
    Decision,
    Reject,
    name_of,
    parse_decision,
    word_of,
)
from minions.contracts.journal.start_note import QueuePlace
from minions.data.errors import RecipeError, UsageError
from minions.engine.calls.pending_decisions import (
    PendingDecision,
    pending_decisions,
    shortest_command,
)
from minions.engine.history.approval_classes import checked_class, class_words
from minions.engine.history.replay import Replay
from minions.engine.run.recorded_run import RecordedRun
from minions.interfaces.cli.console.console import tell
from minions.interfaces.cli.options import (
    CommandContext,
    CommonOptions,
    command_context,
    option,
    option_seconds,
    takes_options,
)
from minions.interfaces.cli.resume_plan import RecordedRunOpener, ResumeOptions
from minions.interfaces.cli.run_follower import refuse_two_outputs

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

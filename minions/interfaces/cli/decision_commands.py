"""The common part of `approve`, `reject` and `answer`: find what waits, decide, resume the run."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

import click

from minions.contracts.decision_words import (
    Answer,
    Approve,
    Decision,
    Reject,
    name_of,
    word_of,
)
from minions.contracts.errors import UsageError
from minions.contracts.queue_places import QueuePlace
from minions.engine.calls.pending_decisions import (
    PendingDecision,
    pending_decisions,
    shortest_command,
)
from minions.engine.history.replay import Replay
from minions.interfaces.cli.console.console import tell
from minions.interfaces.cli.options import command_context, common_options
from minions.interfaces.cli.queue_options import settings_of
from minions.interfaces.cli.resume_plan import RecordedRunOpener
from minions.interfaces.cli.run_follower import refuse_two_outputs

__all__ = ["decide", "resume_options"]

F = TypeVar("F", bound=Callable[..., Any])  # Any: click passes options as it finds them


def resume_options(function: F) -> F:
    """The options of commands that resume a run."""
    for option in (
        click.option("-m", "--model", metavar="MODEL", help="provider/name; else the run's own."),
        click.option("--approve", help="Who approves further calls: ask, deny, all or wait."),
        click.option("--events", is_flag=True, help="Print one JSON event per line."),
        click.option(
            "--detach/--no-detach",
            default=None,
            help="Leave the rest to a worker; default: where it was queued before.",
        ),
        common_options,
    ):
        function = option(function)
    return function


def decide(run: str, about: str | None, decision: Decision, flags: dict[str, object]) -> int:
    """Make a decision that the run waits for, and resume it; the exit code.

    Args:
        about: An address, a tool, a step or a key; None: the only one that waits.
    """
    context = command_context(settings_of(flags))
    refuse_two_outputs(context.settings)
    model = flags["model"] if isinstance(flags["model"], str) else None
    out = sys.stdout

    async def resume() -> int:
        async with RecordedRunOpener(context, run, model=model) as opened:
            detach = flags["detach"]
            if detach or (detach is None and opened.place is not None):
                opened.queue_at(opened.place or QueuePlace())
            recipe = opened.own_recipe()
            replay = Replay(opened.recorded.entries, opened.recorded.generation + 1)
            waiting = () if opened.recorded.is_over else pending_decisions(replay)
            chosen = _chosen(
                waiting, about, decision, opened.recorded.run_id, "".join(context.flags_again)
            )
            tell(f"{name_of(decision)}: {chosen.words}")
            if (digest := chosen.digest) is not None:
                tell(f"  bound to these arguments ({digest})")
            if isinstance(decision, Approve) and decision.arguments is not None:
                tell(f"  edited to {decision.arguments}")
            prepared = opened.executor(recipe).prepare_resume(
                opened.recorded,
                recipe=recipe,
                decisions={chosen.key: word_of(decision)},
                note=opened.note(),
            )
            return await opened.follow(prepared, out)

    with contextlib.redirect_stdout(sys.stderr):
        return asyncio.run(resume())


def _chosen(
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

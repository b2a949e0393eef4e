"""`minions answer`: answers a question that a run waits for, and resumes the run."""

from __future__ import annotations

import re
from typing import Final

import click

from minions.contracts.decision_words import Answer
from minions.interfaces.cli.decision_commands import decide, resume_options

__all__ = ["command"]

_NEGATIVE: Final = re.compile(r"-\d+(\.\d+)?([eE][-+]?\d+)?")


class _WithNegativeNumbers(click.Command):
    """Accepts `-5` as a value, although it begins like an option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.ignore_unknown_options = any(map(_NEGATIVE.fullmatch, args))
        return super().parse_args(ctx, args)


@click.command("answer", cls=_WithNegativeNumbers)
@click.argument("run", metavar="ID")
@click.argument("words", nargs=-1, required=True, metavar="[ADDRESS] VALUE")
@resume_options
@click.pass_context
def command(ctx: click.Context, /, run: str, words: tuple[str, ...], **flags: object) -> int:
    """Answer the question that run ID waits for, and resume it.

    ADDRESS says which, if several wait.

    VALUE is a text, or JSON if the question's form wants something else.
    """
    for word in words if ctx.ignore_unknown_options else ():
        if word.startswith("-") and not _NEGATIVE.fullmatch(word):
            raise click.NoSuchOption(word, ctx=ctx)
    if len(words) > 2:
        raise click.UsageError("Quote a VALUE of several words: minions answer ID ADDRESS 'a b c'.")
    step = words[0] if len(words) == 2 else None
    return decide(run, step, Answer(words[-1]), "answer", flags)

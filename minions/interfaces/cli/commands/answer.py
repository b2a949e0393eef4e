"""`minions answer`: answers a question that a run waits for, and resumes the run."""

from __future__ import annotations

import re
import shlex
from typing import Final

import click

from minions.contracts.decision_words import Answer
from minions.interfaces.cli.decision_commands import decide, resume_options

__all__ = ["command"]

_PAIR: Final = re.compile(r"[^\s=\[\]{}\"]+=.*", re.DOTALL)
"""A field of a form with its value."""
_NEGATIVE: Final = re.compile(r"-\d+(\.\d+)?([eE][-+]?\d+)?")


class _WithNegativeNumbers(click.Command):
    """Accepts `-5` as a value, although it begins like an option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.ignore_unknown_options = any(map(_NEGATIVE.fullmatch, args))
        return super().parse_args(ctx, args)


@click.command("answer", cls=_WithNegativeNumbers)
@click.argument("run", metavar="ID")
@click.argument("words", nargs=-1, required=True, metavar="[ADDRESS] VALUE…")
@resume_options
@click.pass_context
def command(ctx: click.Context, /, run: str, words: tuple[str, ...], **flags: object) -> int:
    """Answer the question that run ID waits for, and resume it.

    ADDRESS says which, if several wait.

    VALUE is a text, or JSON if the question's form wants something else; of a form with fields
    each as FIELD=TEXT: minions answer ID town=Oslo count=2.
    """
    for word in words if ctx.ignore_unknown_options else ():
        if word.startswith("-") and not _NEGATIVE.fullmatch(word):
            raise click.NoSuchOption(word, ctx=ctx)
    step, value = _parted(words)
    return decide(run, step, Answer(value), flags)


def _parted(words: tuple[str, ...]) -> tuple[str | None, str]:
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

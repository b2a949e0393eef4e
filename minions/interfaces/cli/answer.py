"""`minions answer`: the answer to a question that a run waits for; the run goes on."""

from __future__ import annotations

import click

from minions.interfaces.cli.deciding import decide, going_on_options

__all__ = ["command"]


@click.command("answer")
@click.argument("run", metavar="ID")
@click.argument("words", nargs=-1, required=True, metavar="[STEP] VALUE")
@going_on_options
def command(run: str, words: tuple[str, ...], **flags: object) -> int:
    """Answer the question that run ID waits for; STEP says which, where several wait.

    VALUE is a text, or JSON where the question's form wants something else.
    """
    if len(words) > 2:
        raise click.UsageError("Quote a VALUE of several words: minions answer ID STEP 'a b c'.")
    step = words[0] if len(words) == 2 else None
    return decide(run, step, f"answer:{words[-1]}", "answer", flags)

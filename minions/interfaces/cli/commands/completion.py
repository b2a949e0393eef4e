"""`minions completion`: prints the script by which a shell completes command lines."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from minions.interfaces.cli.completion import VARIABLE
from minions.interfaces.cli.console.console import say


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> int:
    """Print a script that completes commands, options, recipes, steps and ids of runs.

    \b
    bash: eval "$(minions completion bash)" in ~/.bashrc
    zsh:  eval "$(minions completion zsh)" in ~/.zshrc
    fish: minions completion fish > ~/.config/fish/completions/minions.fish
    """  # noqa: D301  # click reads the \b
    kind = get_completion_class(shell)
    assert kind is not None  # noqa: S101  # click has these three
    made = kind(click.Command("minions"), {}, "minions", VARIABLE)
    say(made.source_template % made.source_vars())
    return 0

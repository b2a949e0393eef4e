"""`minions config`, `init`, `completion` and `help`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Final

import attrs
import click
from click.shell_completion import get_completion_class

from minions.adapters.stores.postgres_url import without_password
from minions.app.settings.setting_sources import ProjectFile
from minions.app.settings.settings import Settings
from minions.app.settings.user_folders import FolderTrust
from minions.data.codec import encode
from minions.data.errors import EnvironmentRefusedError, UsageError, did_you_mean
from minions.interfaces.cli.console.console import WHOLE_HELP, json_text, say, tell
from minions.interfaces.cli.options import CommonOptions, command_context, takes_options
from minions.interfaces.cli.shell_completion import VARIABLE
from minions.recipe.editor_schema import recipe_schema


@click.command("config")
@click.option("--show-origin", is_flag=True, help="Say where each value comes from.")
@takes_options(CommonOptions)
def config_command(options: CommonOptions, *, show_origin: bool) -> int:
    """Show every setting: flags, MINIONS_* environment, minions.toml, user file, defaults."""
    context = command_context(options)
    values = encode(_without_secrets(context.settings))
    assert isinstance(values, Mapping)  # noqa: S101  # an attrs class encodes to a mapping
    if context.settings.json:
        report = {
            key: {"value": value, "origin": context.origin.origins[key]}
            for key, value in values.items()
        }
        say(json_text(report))
        return 0
    for attribute in attrs.fields(Settings):
        value = json.dumps(values[attribute.name], ensure_ascii=False)
        origin = f"    # {context.origin.origins[attribute.name]}" if show_origin else ""
        say(f"{attribute.name} = {value}{origin}")
    return 0


def _without_secrets(settings: Settings) -> Settings:
    """The settings without the password of the database, and without texts that may be secrets:
    of these only references are shown.
    """
    providers = {
        name: attrs.evolve(each, headers=_references(each.headers))
        for name, each in settings.providers.items()
    }
    servers = {
        name: attrs.evolve(
            each,
            env=_references(each.env),
            headers=_references(each.headers),
            client_secret=_reference(each.client_secret),
            private_key=_reference(each.private_key),
        )
        for name, each in settings.mcp.items()
    }
    db = settings.db and without_password(settings.db)
    replica = settings.journal.replica and without_password(settings.journal.replica)
    journal = attrs.evolve(settings.journal, replica=replica)
    return attrs.evolve(settings, db=db, journal=journal, providers=providers, mcp=servers)


def _references(values: Mapping[str, str]) -> Mapping[str, str]:
    return {name: f"{_reference(value)}" for name, value in values.items()}


def _reference(value: str | None) -> str | None:
    return value if value is None or value.startswith(("env:", "file:/")) else "…"


# --- `minions init` ------------------------------------------------------------------------------


_STARTER: Final = "minions.interfaces.starter"
_SCHEMA: Final = Path("recipe.schema.json")
"""What the first line of a recipe names for editors; `minions schema` prints the same."""
_LEFT_OUT: Final = ("__init__.py", "__pycache__")


@click.command("init")
@click.argument("directory", default=".", metavar="[DIR]")
def init_command(directory: str) -> int:
    """Make a project in DIR (default: here). Overwrites nothing."""
    target = Path(directory)
    wanted = {path: found.read_bytes() for path, found in _starter_files(files(_STARTER), Path())}
    wanted[_SCHEMA] = json.dumps(recipe_schema(), ensure_ascii=False, indent=2).encode() + b"\n"
    taken = [str(target / path) for path in wanted if (target / path).exists()]
    if taken:
        raise UsageError(
            f"These files exist already and were not changed: {', '.join(taken)}. "
            "Choose another directory.",
            code="already-there",
        )
    try:
        for path, source in wanted.items():
            (target / path).parent.mkdir(parents=True, exist_ok=True)
            (target / path).write_bytes(source)
    except OSError as error:
        raise UsageError(f"{target}: {error.strerror}.", code="not-writable") from error
    _trust(target)
    say(f"Made {len(wanted)} files in {target.resolve()}.")
    go_there = f"cd {directory} && " if directory != "." else ""
    tell(f"Try it: {go_there}minions run hello")
    return 0


def _trust(target: Path) -> None:
    """Trust what was written; without a list of trusted files the user says so later."""
    file = ProjectFile.read(target.resolve() / "minions.toml")
    try:
        FolderTrust().add(file.path, file.content)
    except EnvironmentRefusedError as error:
        tell(f"note: its minions.toml does not count yet: {error.message}")


def _starter_files(folder: Traversable, path: Path) -> Iterator[tuple[Path, Traversable]]:
    for item in sorted(folder.iterdir(), key=lambda item: item.name):
        if item.name in _LEFT_OUT:
            continue
        if item.is_dir():
            yield from _starter_files(item, path / item.name)
        else:
            yield path / item.name, item


# --- `minions completion` ------------------------------------------------------------------------


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion_command(shell: str) -> int:
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


# --- help -----------------------------------------------------------------------------------------

_OPTIONS: Final = "options"
"""What `minions help` shows the common options by; no command has that name."""


@click.command("help")
@click.argument("names", nargs=-1, metavar="[COMMAND]...")
@click.option("--all", "is_whole", is_flag=True, help="Leave nothing out.")
@click.pass_context
def help_command(context: click.Context, names: tuple[str, ...], *, is_whole: bool) -> int:
    """Show the help of COMMAND, of all of them, or with OPTIONS as its name that of the options
    which most commands have.
    """
    root = context.find_root()
    root.meta[WHOLE_HELP] = is_whole
    if names == (_OPTIONS,):
        root.meta[WHOLE_HELP] = True
        say(_common_options(root))
        return 0
    shown = root
    for name in names:
        group = shown.command
        if not isinstance(group, click.Group):
            raise UsageError(f"'{shown.command_path}' has no commands of its own.", code="usage")
        own = group.get_command(shown, name)
        if own is None:
            near = did_you_mean(name, group.list_commands(shown))
            raise UsageError(f"No such command '{name}'.{near}", code="usage")
        shown = click.Context(own, info_name=name, parent=shown)
    say(shown.get_help())
    return 0


def _common_options(root: click.Context) -> str:
    """The help of the options that most commands have."""

    @click.command(_OPTIONS)
    @takes_options(CommonOptions)
    def command(_options: CommonOptions) -> int:
        return 0

    context = click.Context(command, parent=root)
    formatter = context.make_formatter()
    command.format_options(context, formatter)
    return formatter.getvalue().rstrip()

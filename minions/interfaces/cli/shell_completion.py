"""Completes a command line for a shell: commands, options, recipes, steps, models, ids of runs.

Commands are stand-ins made of a table: a shell waits for each completion, and importing the
commands themselves loads the engine. `python docs/generate_completion.py` writes the table.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from click.shell_completion import CompletionItem

from minions.data.bounded_files import read_regular

if TYPE_CHECKING:
    from minions.app.settings.setting_sources import Origin

VARIABLE: Final = "_MINIONS_COMPLETE"
"""The environment variable by which a shell's script asks for completions."""

_TABLE: Final = "completion_table.json"
_MOST_RUNS: Final = 50
_MOST_BYTES: Final = 1_048_576
"""Bytes of a recipe that are searched for steps."""
_STEP_ID: Final = re.compile(
    r"^[ \t]*-[ \t]+(?:\{[ \t]*)?id:[ \t]*[\"']?([A-Za-z0-9_-]+)", re.MULTILINE
)

_Known = dict[str, Any]  # Any: an entry of the table is JSON


def stand_in(name: str) -> click.Command | None:
    """A command with the parameters of the real one, which only completes; None: there is none."""
    table = _table()
    return _stand_in(name, table) if name in table else None


def _table() -> Mapping[str, _Known]:
    path = Path(__file__).with_name(_TABLE)
    table: Mapping[str, _Known] = json.loads(path.read_text("utf-8"))
    return table


def _stand_in(path: str, table: Mapping[str, _Known]) -> click.Command:
    """The stand-in of a command, or of a group with all that is in it.

    Args:
        path: Its words: `sessions list`.
    """
    known, name = table[path], path.rpartition(" ")[2]
    parameters = [_parameter(each) for each in known["parameters"]]
    inner = [other for other in table if other.rpartition(" ")[0] == path and other]
    if not inner:
        return click.Command(name, params=parameters, short_help=known["help"])
    commands = {each.rpartition(" ")[2]: _stand_in(each, table) for each in inner}
    return click.Group(name, commands, params=parameters, short_help=known["help"])


def _parameter(known: _Known) -> click.Parameter:
    kind = click.Choice(known["choices"]) if "choices" in known else None
    complete = _COMPLETERS.get(known.get("kind", ""))
    if "argument" in known:
        return click.Argument(
            [known["argument"]],
            nargs=known.get("nargs", 1),
            type=kind,
            required=False,
            shell_complete=complete,
        )
    return click.Option(
        known["options"],
        is_flag=known.get("flag", False),
        multiple=known.get("multiple", False),
        help=known["help"],
        type=kind,
        shell_complete=complete,
    )


# --- values ----------------------------------------------------------------------------------


def _recipes(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from minions.recipe.recipe_files import recipe_ids

    known = recipe_ids([Path("recipes")])
    found = [CompletionItem(name) for name in sorted(known) if name.startswith(incomplete)]
    return [CompletionItem(incomplete, type="file"), *found]


def _files(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(incomplete, type="file")]


def _steps(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The steps of the recipe that the line names, or of the run."""
    recipe = ctx.params.get("recipe") or _recipe_of(ctx)
    path = _recipe_file(str(recipe)) if recipe else None
    if path is None:
        return []
    with contextlib.suppress(OSError):
        text = read_regular(path, _MOST_BYTES).decode("utf-8", "replace")
        ids = dict.fromkeys(_STEP_ID.findall(text))
        return [CompletionItem(step_id) for step_id in ids if step_id.startswith(incomplete)]
    return []


def _recipe_file(name: str) -> Path | None:
    from minions.data.errors import MinionsError
    from minions.recipe.recipe_files import find_recipe

    try:
        return find_recipe(name, [Path("recipes")])
    except MinionsError:
        return None


def _recipe_of(ctx: click.Context) -> str | None:
    """The recipe of the run that the line names."""
    name = ctx.params.get("name") or ctx.params.get("run")
    if not name:
        return None
    return next((recipe for _, recipe, _ in _runs(ctx, str(name))), None)


def _run_ids(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    if incomplete.startswith("ses"):
        return [CompletionItem(session) for session in _sessions(ctx, incomplete)]
    return [
        CompletionItem(run_id, help=f"{recipe} {status}")
        for run_id, recipe, status in _runs(ctx, incomplete)
    ]


def _models(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Models that runs of this project had, newest first; then those that the configuration names,
    the model of this machine, and the providers that a name may begin with.
    """
    from minions.app.settings.settings import BUILT_IN_PROVIDERS
    from minions.data.errors import MinionsError

    names = [model for (model,) in _rows(ctx, _MODELS_OF_RUNS, "run_") if isinstance(model, str)]
    providers = set(BUILT_IN_PROVIDERS)
    with contextlib.suppress(MinionsError, OSError):
        settings = _origin(ctx).settings
        names += [settings.model] if settings.model else []
        names += sorted(settings.prices)
        providers |= set(settings.providers)
    names += ["local", *(f"{provider}/" for provider in sorted(providers))]
    return [CompletionItem(name) for name in dict.fromkeys(names) if name.startswith(incomplete)]


_MODELS_OF_RUNS: Final = (
    "SELECT json_extract(rest, '$[0]') FROM runs WHERE run_id >= ? AND run_id < ? "
    "AND project = ? ORDER BY started_at DESC LIMIT ?"
)


_COMPLETERS: Final[
    Mapping[str, Callable[[click.Context, click.Parameter, str], list[CompletionItem]]]
] = {"recipe": _recipes, "file": _files, "step": _steps, "run": _run_ids, "model": _models}


# --- the journal -----------------------------------------------------------------------------


def _runs(ctx: click.Context, start: str) -> Iterator[tuple[str, str, str]]:
    """Id, recipe and status of the newest runs whose ids begin so."""
    for run_id, recipe, status in _rows(
        ctx,
        "SELECT run_id, recipe, status FROM runs WHERE run_id >= ? AND run_id < ? "
        "AND project = ? ORDER BY started_at DESC LIMIT ?",
        start,
    ):
        yield str(run_id), str(recipe), str(status)


def _sessions(ctx: click.Context, start: str) -> Iterator[str]:
    for row in _rows(
        ctx,
        "SELECT session_id FROM sessions WHERE session_id >= ? AND session_id < ? "
        "AND project = ? ORDER BY updated_at DESC LIMIT ?",
        start,
    ):
        yield str(row[0])


def _rows(ctx: click.Context, question: str, start: str) -> list[tuple[object, ...]]:
    """Rows of an SQLite journal, which is only read; none where there is none, or on a server.

    Only those of this project.
    """
    import sqlite3

    from minions.data.errors import MinionsError
    from minions.recipe.recipe_files import project_of

    with contextlib.suppress(MinionsError, OSError, sqlite3.Error):
        path = _database(ctx)
        if path is None or not path.exists():
            return []
        uri = f"{path.as_uri()}?mode=ro"
        with contextlib.closing(sqlite3.connect(uri, uri=True, timeout=0.1)) as db:
            values = (start, start + "\U0010ffff", project_of(Path.cwd()), _MOST_RUNS)
            return db.execute(question, values).fetchall()
    return []


def _database(ctx: click.Context) -> Path | None:
    from minions.app.wiring.databases import database_of, postgres_of

    origin = _origin(ctx)
    if postgres_of(origin.settings) is not None:
        return None
    return database_of(origin.settings, origin.folder_of("db"))


def _origin(ctx: click.Context) -> Origin:
    from minions.app.settings.setting_sources import environment, load_settings, user_settings_file
    from minions.app.settings.user_folders import FolderTrust

    db = ctx.params.get("db")
    flags = {"db": db} if db else {}
    environ = environment()
    return load_settings(
        flags,
        environ,
        folder=Path.cwd(),
        user_file=user_settings_file(),
        trust=FolderTrust.of(environ),
    )

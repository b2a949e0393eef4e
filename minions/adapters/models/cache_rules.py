"""What providers say of their caches of prompts, with the day on which that was read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from hashlib import blake2b
from itertools import takewhile
from typing import Final
from urllib.parse import urlsplit

from msgspec.structs import replace

from minions.contracts.calls import Prompt
from minions.contracts.messages import MessageRole
from minions.contracts.model_endpoints import CacheRetention, ModelApi, PromptCacheRules
from minions.contracts.prompt_caches import PromptCache
from minions.data.errors import UsageError

_ANTHROPIC: Final = PromptCache(
    minimum_tokens=1_024,
    lifetime_s=300.0,
    reads_at=0.1,
    writes_at=1.25,
    includes_form=False,
    source="https://platform.claude.com/docs/en/build-with-claude/prompt-caching",
    read_on="2026-11-28",
)
_OPENAI: Final = PromptCache(
    minimum_tokens=1_024,
    step_tokens=128,
    lifetime_s=300.0,
    reads_at=0.1,
    source="https://developers.openai.com/api/docs/guides/prompt-caching",
    read_on="2026-11-28",
)
_GEMINI: Final = PromptCache(
    minimum_tokens=1_024,
    lifetime_s=180.0,
    reads_at=0.1,
    includes_form=False,
    source="https://ai.google.dev/gemini-api/docs/caching",
    read_on="2026-11-28",
)
_GEMINI_EXPLICIT: Final = replace(_GEMINI, lifetime_s=300.0, storage_usd_per_mtok_hour=1.0)
"""For so long a run asks for it. Price: https://ai.google.dev/gemini-api/docs/pricing, "Context
caching price", read on 2026-11-28."""
_PRO_STORAGE_USD: Final = 4.5
"""Of models that are called pro; source as above."""
LLAMA_CACHE: Final = PromptCache(
    minimum_tokens=1,
    lifetime_s=86_400.0,  # a slot keeps its prompt until it reads another one
    reads_at=1.0,
    asks_one_first=False,  # the others are read by other slots
    includes_form=False,
    source="llama.cpp, tools/server/README.md",
    read_on="2026-11-28",
)
UNKNOWN_CACHE: Final = PromptCache(
    minimum_tokens=1,
    lifetime_s=300.0,
    reads_at=1.0,
    asks_one_first=False,
    includes_form=False,
    is_known=False,
    source="",
    read_on="",
)
"""Of a server that may have a cache: nothing is asked of it, and nothing is waited for."""
_CACHES: Final[Mapping[PromptCacheRules, PromptCache | None]] = {
    PromptCacheRules.OPENAI: _OPENAI,
    PromptCacheRules.ANTHROPIC: _ANTHROPIC,
    PromptCacheRules.GEMINI: _GEMINI,
    PromptCacheRules.GEMINI_EXPLICIT: _GEMINI_EXPLICIT,
    PromptCacheRules.LLAMA_CPP: LLAMA_CACHE,
    PromptCacheRules.OFF: None,
}
_FORMS: Final = {
    PromptCacheRules.GEMINI_EXPLICIT: ModelApi.GEMINI,
    PromptCacheRules.LLAMA_CPP: ModelApi.CHAT,
}
"""What can be said in no other form."""
_HOSTS: Final = {
    "api.openai.com": _OPENAI,
    "api.anthropic.com": _ANTHROPIC,
    "generativelanguage.googleapis.com": _GEMINI,
}
_APIS: Final = {ModelApi.MESSAGES: _ANTHROPIC, ModelApi.GEMINI: _GEMINI}
"""Whoever implements the form of a provider keeps prompts as it does."""
_OTHER_MINIMA: Final = (
    (re.compile(r"claude-(opus-4-[567]|haiku-4-5)"), 4_096),
    (re.compile(r"claude-(3-5-haiku|3-haiku)"), 2_048),
    (re.compile(r"gemini-[23](\.\d+)?-pro"), 4_096),
)
LONG_WRITES_AT: Final = 2.0
"""Of Anthropic's cache of an hour. Source: as `_ANTHROPIC`, "Pricing"."""
_HOUR_S: Final = 3_600.0
_DAY_S: Final = 86_400.0
_TAKES_24H: Final = re.compile(
    r"gpt-(4\.1|5(\.[1-5])?(-pro|-codex(-max|-mini)?|-chat(-latest)?)?)(-\d{4}-\d\d-\d\d)?"
)
"""Models with `prompt_cache_retention: 24h`. Source: as `_OPENAI`, "Prompt cache retention"; later
models take the field and do not heed it."""
_ALWAYS_24H: Final = re.compile(r"gpt-5\.5\b")
_PAYS_FOR_WRITES: Final = re.compile(r"gpt-(5\.[6-9]|[6-9])")
"""They keep what they read for half an hour at least, and what they store costs a quarter more.
Source: as `_OPENAI`."""


def prompt_cache_of(
    model: str,
    base_url: str,
    api: ModelApi,
    chosen: PromptCacheRules | None,
    retention: CacheRetention = CacheRetention.SHORT,
) -> PromptCache | None:
    """How the server at that address keeps beginnings of prompts of the model; None: it does not.

    Args:
        model: The server's name of the model.
        chosen: The operator's word; None: by address, then by the form of requests.
        retention: For how long it is asked to keep them.
    Raises:
        UsageError: `no-long-retention`: it cannot be asked to keep those of the model for longer.
            `no-such-cache`: the form of requests has no cache of the chosen kind.
    """
    if chosen is not None:
        known = _CACHES[chosen]
        form = _FORMS.get(chosen, api)
        if api is not form:
            raise UsageError(
                f"`prompt_cache = \"{chosen}\"` is set for the server of '{model}', which is asked "
                f'in the form `{api}`: that has no such cache. Add `api = "{form}"`, or leave it '
                "out.",
                code="no-such-cache",
            )
    else:
        known = _HOSTS.get(urlsplit(base_url).hostname or "") or _APIS.get(api, UNKNOWN_CACHE)
    if retention is CacheRetention.LONG:
        known = _kept_long(known, model, api)
    if known is None:
        return None
    if takes_cache_key(known) and not known.is_long:
        if _ALWAYS_24H.match(model):
            return replace(known, lifetime_s=_DAY_S)
        if _PAYS_FOR_WRITES.match(model):
            return replace(known, lifetime_s=1_800.0, writes_at=1.25)
    if known.storage_usd_per_mtok_hour is not None and "pro" in re.split(r"\W", model):
        known = replace(known, storage_usd_per_mtok_hour=_PRO_STORAGE_USD)
    for pattern, minimum in _OTHER_MINIMA:
        if pattern.match(model):
            return replace(known, minimum_tokens=minimum)
    return known


def _kept_long(cache: PromptCache | None, model: str, api: ModelApi) -> PromptCache:
    """The same, kept for as long as the server can be asked to.

    Raises:
        UsageError: `no-long-retention`.
    """
    is_of_anthropic = cache is not None and cache.source == _ANTHROPIC.source
    if cache is not None and is_of_anthropic and api is ModelApi.MESSAGES:
        return replace(cache, lifetime_s=_HOUR_S, writes_at=LONG_WRITES_AT, is_long=True)
    has_field = takes_cache_key(cache) and api in (ModelApi.CHAT, ModelApi.RESPONSES)
    if cache is not None and has_field and _TAKES_24H.fullmatch(model):
        return replace(cache, lifetime_s=_DAY_S, is_long=True)
    if cache is not None and cache.storage_usd_per_mtok_hour is not None:
        return replace(cache, lifetime_s=_HOUR_S, is_long=True)
    raise UsageError(
        f"`prompt_cache_retention = \"long\"` is set for the server of '{model}', which cannot be "
        "asked to keep beginnings of its prompts for longer. Anthropic's models can in the form "
        "of messages, OpenAI's from GPT 4.1 to GPT 5.5 but for mini and nano, and Gemini with "
        '`prompt_cache = "gemini-explicit"`. Leave it out, or give models that can a '
        "[providers.NAME] of their own with the same `base_url`.",
        code="no-long-retention",
    )


def takes_cache_key(cache: PromptCache | None) -> bool:
    """Whether requests to that server may say which of them begin alike."""
    return cache is not None and cache.source == _OPENAI.source


def cache_key_of(prompt: Prompt) -> str:
    """The same text for all requests that begin alike, by which OpenAI sends them to one machine:
    made of the names of the tools, the system texts and what several steps read.
    """
    digest = blake2b(digest_size=12)
    for tool in prompt.tools:
        digest.update(tool.name.encode("utf-8", "replace"))
    first = takewhile(
        lambda each: each.role is MessageRole.SYSTEM or each.is_context, prompt.messages
    )
    for message in first:
        digest.update((message.content or "").encode("utf-8", "replace"))
    return f"minions-{digest.hexdigest()}"

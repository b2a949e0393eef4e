"""What servers say of themselves beside the chat: their version, and how long a context is.

Asked by a few GET requests whose answers are optional: a server that knows none of the paths says
nothing.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias
from urllib.parse import urlsplit, urlunsplit

from attrs import frozen

from minions.adapters.http.http_pool import HttpPool, NoAnswerError
from minions.adapters.http.http_response import BrokenBodyError

_MOST_BYTES: Final = 262_144
_SECONDS: Final = 3.0
"""Seconds for one answer."""

OpenPool: TypeAlias = Callable[[str], HttpPool]
"""A pool that asks for that URL by GET."""


@frozen(kw_only=True)
class ServerFacts:
    """What a server says of itself."""

    version: str | None = None
    """Its version, or the build; None: it does not say."""
    context_tokens: int | None = None
    """Tokens of context of the model; None: it does not say."""


async def server_facts(base_url: str, model: str, open_pool: OpenPool) -> ServerFacts:
    """Ask the paths of the known servers, one after another; what fails is left out.

    Args:
        base_url: The base URL of the chat completions; the other paths are beside it.
        model: The server's name of the model.
    """
    root = _root_of(base_url)
    models = await _document(f"{base_url}/models", open_pool)
    context = _context_of_model(models, model)
    version = None
    for path, find_version, find_context in _PATHS:
        found = await _document(f"{root}{path}", open_pool)
        if found is None:
            continue
        version = version or find_version(found)
        context = find_context(found) or context
    return ServerFacts(version=version, context_tokens=context)


async def slot_count(base_url: str, open_pool: OpenPool) -> int | None:
    """How many requests a server of llama.cpp answers at a time; None: it does not say.

    Args:
        base_url: As for `server_facts`.
    """
    found = await _document(f"{_root_of(base_url)}/props", open_pool)
    return None if found is None else _number(found.get("total_slots"))


def _root_of(base_url: str) -> str:
    parts = urlsplit(base_url)
    path = parts.path.rstrip("/").removesuffix("/v1")
    return urlunsplit((parts.scheme, parts.netloc, path, "", ""))


async def _document(url: str, open_pool: OpenPool) -> Mapping[str, object] | None:
    try:
        async with asyncio.timeout(_SECONDS):
            pool = open_pool(url)
            try:
                return await _fetch_facts(pool)
            finally:
                await pool.close()
    except (TimeoutError, NoAnswerError, BrokenBodyError, ValueError, RecursionError):
        return None


async def _fetch_facts(pool: HttpPool) -> Mapping[str, object] | None:
    response = await pool.post(b"")
    try:
        body = b""
        while chunk := await response.read():
            body += chunk
            if len(body) > _MOST_BYTES:
                return None
        if response.status != 200:
            return None
        document: object = json.loads(body)
        return document if isinstance(document, dict) else None
    finally:
        response.close()


# --- what the answers hold -----------------------------------------------------------------------


def _context_of_model(document: Mapping[str, object] | None, model: str) -> int | None:
    """`max_model_len` of vLLM, `context_length` of others, in the list of models."""
    listed = document.get("data") if document is not None else None
    for each in listed if isinstance(listed, list) else ():
        if isinstance(each, dict) and each.get("id") == model:
            places = (each, each.get("meta"))
            found = [
                _number(place.get(name))
                for place in places
                if isinstance(place, dict)
                for name in ("max_model_len", "context_length", "context_window", "n_ctx")
            ]
            return next(filter(None, found), None)
    return None


def _version(document: Mapping[str, object]) -> str | None:
    return _text(document.get("version"))


def _build(document: Mapping[str, object]) -> str | None:
    return _text(document.get("build_info"))


def _slot_context(document: Mapping[str, object]) -> int | None:
    """Of llama.cpp: what one of its slots has."""
    settings = document.get("default_generation_settings")
    return _number(settings.get("n_ctx")) if isinstance(settings, dict) else None


def _no_context(_: Mapping[str, object]) -> int | None:
    return None


_PATHS: Final = (
    ("/version", _version, _no_context),  # vLLM
    ("/api/version", _version, _no_context),  # Ollama
    ("/props", _build, _slot_context),  # llama.cpp
)


def _text(value: object) -> str | None:
    return value[:100] if isinstance(value, str) and value.strip() else None


def _number(value: object) -> int | None:
    is_count = isinstance(value, int) and not isinstance(value, bool) and value > 0
    return value if is_count and isinstance(value, int) else None

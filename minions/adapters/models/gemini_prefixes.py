"""Gemini's explicit caches: `cachedContents` that are made, renewed, used and deleted.

Source: https://ai.google.dev/api/caching and https://ai.google.dev/gemini-api/docs/caching, read on
2026-11-28.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Final

from returns.result import Failure, Result, Success

from minions.adapters.http.http_pool import ExchangeTimeoutError, NoAnswerError
from minions.adapters.http.http_response import BrokenBodyError
from minions.adapters.models.answer_fields import count_in, mapping_in, text_in
from minions.adapters.models.http_model import HttpModel
from minions.contracts.calls import ModelFailure, Prompt
from minions.contracts.prompt_caches import PromptCache
from minions.contracts.stored_prefixes import PrefixStorage, StoredPrefix

_NAME: Final = re.compile(r"cachedContents/[A-Za-z0-9_-]{1,128}")
_MISSING: Final = re.compile(r"cached ?content", re.IGNORECASE)
"""Of an expired one the server says 403, `CachedContent not found (or permission denied)`."""
_SECONDS: Final = 60.0
_MOST_BYTES: Final = 65_536


class GeminiPrefixes(PrefixStorage):
    """The caches of one model of Gemini."""

    def __init__(
        self, model: HttpModel, cache: PromptCache, beginning_of: Callable[[Prompt], bytes | None]
    ) -> None:
        """Nothing is asked yet.

        Args:
            cache: How long the server is asked to keep them, and at which price.
            beginning_of: As of the contract, in the form of requests.
        """
        self._model = model
        self._beginning_of = beginning_of
        self.lifetime_s = cache.lifetime_s
        self.usd_per_mtok_hour = cache.storage_usd_per_mtok_hour or 0.0
        self.minimum_tokens = cache.minimum_tokens

    def beginning_of(self, prompt: Prompt) -> bytes | None:
        return self._beginning_of(prompt)

    async def make(self, beginning: bytes) -> Result[StoredPrefix, ModelFailure]:
        head = json.dumps({"ttl": self._ttl, "displayName": "minions"})
        outcome = await self._ask(
            "POST", "cachedContents", head[:-1].encode() + b"," + beginning[1:]
        )
        if not isinstance(outcome, Success):
            return Failure(outcome.failure())
        made = outcome.unwrap()
        name = text_in(made, "name")
        if _NAME.fullmatch(name) is None:
            peer = self._model.peer
            return Failure(peer.malformed("it names no `cachedContents/…`", json.dumps(made)))
        tokens = count_in(mapping_in(made, "usageMetadata"), "totalTokenCount")
        return Success(StoredPrefix(name=name, tokens=tokens or len(beginning) // 4))

    async def renew(self, name: str) -> Result[None, ModelFailure]:
        body = json.dumps({"ttl": self._ttl}).encode()
        return (await self._ask("PATCH", f"{name}?updateMask=ttl", body)).map(lambda _: None)

    async def delete(self, name: str) -> Result[None, ModelFailure]:
        outcome = await self._ask("DELETE", name)
        if isinstance(outcome, Success) or self.is_missing(outcome.failure()):
            return Success(None)
        return Failure(outcome.failure())

    def is_missing(self, failure: ModelFailure) -> bool:
        is_refused = failure.status in (400, 403, 404)
        return is_refused and _MISSING.search(failure.message) is not None

    @property
    def _ttl(self) -> str:
        return f"{self.lifetime_s:g}s"

    async def _ask(
        self, method: str, path: str, content: bytes = b""
    ) -> Result[dict[str, object], ModelFailure]:
        """The document that answers one request."""
        model, peer = self._model, self._model.peer
        try:
            pool = model.open_other(f"{model.base_url}/{path}", method=method)
            try:
                response = await pool.post(content, within_s=_SECONDS)
                try:
                    body = b""
                    while len(body) < _MOST_BYTES and (chunk := await response.read()):
                        body += chunk
                finally:
                    response.close()
            finally:
                await pool.close()
        except NoAnswerError as error:
            return Failure(peer.unreachable(str(error)))
        except BrokenBodyError as error:
            return Failure(peer.interrupted(peer.clean(str(error))))
        except ExchangeTimeoutError:
            return Failure(peer.timed_out("did not answer within", _SECONDS, "the limit"))
        if not 200 <= response.status < 300:
            return Failure(model.refusal(response.status, response.headers, body))
        try:
            document: object = json.loads(body or b"{}")
        except (ValueError, RecursionError):
            document = None
        if not isinstance(document, dict):
            return Failure(peer.malformed("it is no JSON object", body.decode("utf-8", "replace")))
        return Success(document)

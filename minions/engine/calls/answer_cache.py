"""Answers of models by a hash of the whole request, in the cache that holds outputs of steps."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Final

from msgspec import Struct

from minions.contracts.calls import ChatModel, Confidence, ModelCall, ModelCallResponse, Prompt
from minions.contracts.messages import CUT_AT_LIMIT, Message, message_to_json, without_border_names
from minions.contracts.runtime import Log
from minions.contracts.secrets import Secrets
from minions.contracts.steps import CachedStep, StepCache
from minions.data.codec import decode, encode
from minions.data.errors import MinionsError, words_of
from minions.data.json_values import JsonValue
from minions.engine.context.step_view import StepView

_FORMAT: Final = "answer/1"
_NOT_ASKED: Final = ("cache", "context_tokens", "idle_timeout_s", "timeout_s")
"""Options that are no part of what the model is asked."""
_LATER: Final = ("min_confidence",)
"""Options that entries of earlier versions do not have: they count where they are set."""


class AnswerCache(Struct, frozen=True, kw_only=True):
    """The answers of one model that were given to the same request before."""

    cache: StepCache
    model: ChatModel
    run_id: str
    """The run for which it is asked."""
    secrets: Secrets
    """Those of the run: what names one is not cached."""
    asked: set[str]
    """Keys that were looked up in the run."""
    now: Callable[[], datetime]
    log: Log

    @classmethod
    def of(cls, prompt: Prompt, model: ChatModel | None, view: StepView) -> AnswerCache | None:
        """The cache for that prompt; None: its answer is not cached.

        An application's own way to carry out calls has no model, and so no honest key.
        """
        cache = view.context.scope.services.cache
        if not prompt.options.cache or cache is None or model is None:
            return None
        return cls(
            cache=cache,
            model=model,
            run_id=view.run_id,
            secrets=view.secrets,
            asked=view.context.progress.answers_asked,
            now=view.now,
            log=view.log,
        )

    def key(self, prompt: Prompt) -> str | None:
        """The hash of all that decides the answer; None: a secret is part of it.

        Args:
            prompt: With borders of any name: they differ from run to run and mean the same.
        """
        request, options = prompt.output_request, encode(prompt.options)
        assert isinstance(options, dict)  # noqa: S101  # of an attrs class
        messages = [*prompt.messages, *(request.messages if request is not None else ())]
        material: JsonValue = {
            "format": _FORMAT,
            "model": [self.model.name, self.model.base_url],
            "options": {
                name: options[name]
                for name in options
                if name not in _NOT_ASKED and (name not in _LATER or options[name] is not None)
            },
            "tools": [tool.to_message_dict() for tool in prompt.tools],
            "request": [request.mode.value, encode(request.body)] if request is not None else None,
            "schema": encode(prompt.instructions.json_schema()) if prompt.instructions else None,
            "messages": [dict(message_to_json(each)) for each in without_border_names(messages)],
        }
        if self.secrets.are_named_in(material):
            self.log.info("answer_not_cached", reason="a secret is part of the request")
            return None
        return hashlib.sha256(json.dumps(material, sort_keys=True).encode()).hexdigest()

    async def find(self, prompt: Prompt) -> ModelCallResponse | None:
        """The answer that was given before, without usage; None: none, or it cannot be read.

        None, too, if the run asked the same before: a further attempt wants another answer.
        """
        key = self.key(prompt)
        if key is None or key in self.asked:
            return None
        self.asked.add(key)
        try:
            kept = await self.cache.get(key)
            return _response(kept) if kept is not None else None
        except Exception as error:  # noqa: BLE001  # an application's store raises anything
            self._tell("answer_cache_unreadable", error)
            return None

    def note_replayed(self, prompt: Prompt) -> None:
        """Count a replayed call as asked in this run."""
        if (key := self.key(prompt)) is not None:
            self.asked.add(key)

    async def keep(self, calls: Iterable[ModelCall]) -> None:
        """Store the whole answers among these calls of a step that succeeded."""
        for call in calls:
            response = call.response
            is_whole = response is not None and response.finish_reason != CUT_AT_LIMIT
            if response is None or not is_whole or response.cached_from is not None:
                continue
            if (key := self.key(call.prompt)) is not None:
                await self._put(key, response)

    async def _put(self, key: str, response: ModelCallResponse) -> None:
        entry = CachedStep(
            output={
                "message": dict(message_to_json(response.message)),
                "finish_reason": response.finish_reason,
                "model_name": response.model_name,
                "provider": response.provider,
                **_confidence_form(response.confidence),
            },
            run_id=self.run_id,
            created_at=self.now(),
        )
        try:
            await self.cache.put(key, entry)
        except Exception as error:  # noqa: BLE001  # as for `get`
            self._tell("answer_cache_unwritable", error)

    def _tell(self, event: str, error: Exception) -> None:
        reason = error.message if isinstance(error, MinionsError) else words_of(error)
        self.log.warning(event, reason=reason)


def _response(kept: CachedStep) -> ModelCallResponse:
    """The answer as it was stored.

    Raises:
        ValueError: It was stored in another form.
    """
    stored = kept.output
    if not isinstance(stored, dict):
        raise ValueError("The cache holds something else under the key of an answer.")
    texts = {name: text for name, text in stored.items() if isinstance(text, str)}
    return ModelCallResponse(
        message=decode(stored.get("message"), Message),
        finish_reason=texts.get("finish_reason"),
        model_name=texts.get("model_name"),
        provider=texts.get("provider"),
        cached_from=kept.run_id,
        confidence=_confidence(stored),
    )


def _confidence_form(confidence: Confidence | None) -> dict[str, JsonValue]:
    if confidence is None:
        return {}
    return {"confidence": confidence.probability, "least_sure_of": confidence.at}


def _confidence(stored: Mapping[str, JsonValue]) -> Confidence | None:
    probability, at = stored.get("confidence"), stored.get("least_sure_of")
    if not isinstance(probability, float | int) or not isinstance(at, str):
        return None
    return Confidence(probability, at)

"""Errors of chat requests as `ModelFailure` values, with texts that a person can act on."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

from attrs import evolve, field, frozen

from minions.adapters.models.rate_limit_headers import rate_limits_of
from minions.contracts.calls import ModelFailure, context_exceeded
from minions.contracts.instructions import OutputMode
from minions.contracts.messages import TokenUsage, ToolCallRequest
from minions.contracts.retry_config import may_pass
from minions.data.errors import OUTPUT_TRUNCATED, UNREACHABLE
from minions.data.field_repr import FieldsRepr

_MOST_SHOWN: Final = 500
"""Characters of a server's message that are shown."""

_HEAD: Final = 200
"""Characters of an unreadable body that are shown."""


@frozen(kw_only=True)
class ChatPeer(FieldsRepr):
    """The server of a request; words every failure and keeps the key out of its text."""

    provider: str
    model: str
    base_url: str
    secret: str | None = field(default=None, repr=False)
    """The API key; None: none was sent."""
    other_secrets: tuple[str, ...] = field(default=(), repr=False)
    """Other values that were sent and that no message may show."""
    answer_words: str = "a chat completion"
    """What an answer in order is called in messages."""
    api_words: str = "an OpenAI-compatible API (often ends in /v1)"
    """What `base_url` has to lead to, in messages."""

    @property
    def name(self) -> str:
        """`provider/model`."""
        return f"{self.provider}/{self.model}"

    def clean(self, text: str, most: int = _MOST_SHOWN) -> str:
        """A server's text on one line without secrets, cut to `most` characters."""
        for secret in (self.secret, *self.other_secrets):
            if secret:
                text = text.replace(secret, "***")
        text = re.sub(r"[\s\x00-\x1f\x7f]+", " ", text[: most * 20]).strip()
        return text if len(text) <= most else f"{text[:most]}…"

    def unwritable(self, error: Exception) -> ModelFailure:
        """The failure of a prompt that cannot be written as a request."""
        what = f"The request to '{self.name}' cannot be written as JSON: {error}."
        return ModelFailure(code="bad-request", message=what)

    def malformed(self, what: str, body: str) -> ModelFailure:
        """The failure for a 200 whose body is not a chat completion."""
        head = self.clean(body, _HEAD)
        begin = f"It starts with: {head}" if head else "The body is empty."
        return ModelFailure(
            code="malformed-response",
            message=f"{self.base_url} answered for '{self.name}' without {self.answer_words}: "
            f"{self.clean(what, _HEAD)}. {begin}",
            is_retryable=True,
            suggestions=(f"check that base_url is {self.api_words}",),
        )

    def empty(
        self, finish_reason: str | None, usage: TokenUsage, *, others: Sequence[str] = ()
    ) -> ModelFailure:
        """The failure for an answer with neither text nor tool calls.

        Args:
            others: What it holds instead, such as calls of the provider's own tools.
        """
        held = self.clean(", ".join(others))
        instead = (
            f" It holds only {held}: the provider's own, which the recipe's tools cannot answer."
        )
        return ModelFailure(
            code="empty-response",
            message=f"'{self.name}' answered with neither text nor tool calls "
            f"(finish_reason: {finish_reason or 'none'}).{instead if others else ''}",
            is_retryable=True,
            usage=usage,
        )

    def truncated(
        self, usage: TokenUsage, text: str | None, *, calls: Sequence[ToolCallRequest] = ()
    ) -> ModelFailure:
        """The failure for the finish_reason `length`.

        Args:
            text: What had been said before the cut; None: tools were being called.
            calls: The tool calls that had begun.
        """
        return ModelFailure(
            code=OUTPUT_TRUNCATED,
            message=f"The answer of '{self.name}' was cut off at its token limit after "
            f"{usage.output_tokens} output tokens. Raise max_output_tokens, or ask for less.",
            usage=usage,
            suggestions=("raise max_output_tokens",),
            text=text if text and text.strip() else None,
            has_begun_call=bool(calls),
            begun_call=calls[0] if len(calls) == 1 else None,
        )

    def refused(self, words: str, usage: TokenUsage) -> ModelFailure:
        """The failure for a refusal, with the model's explanation."""
        return ModelFailure(
            code="refused",
            message=f"'{self.name}' refused to answer: {self.clean(words)}",
            usage=usage,
        )

    def filtered(self, usage: TokenUsage) -> ModelFailure:
        """The failure for the finish_reason `content_filter`."""
        return ModelFailure(
            code="content-filtered",
            message=f"The provider's content filter withheld the answer of '{self.name}'.",
            usage=usage,
        )

    def interrupted(self, what: str) -> ModelFailure:
        """The failure for a connection that was lost in the middle of an answer."""
        return ModelFailure(
            code="stream-interrupted",
            message=f"The answer of '{self.name}' from {self.base_url} broke off: {what}.",
            is_retryable=True,
        )

    def timed_out(self, what: str, seconds: float, option: str) -> ModelFailure:
        """The failure for a call that exceeded a time limit of `ModelOptions`."""
        return ModelFailure(
            code="model-timeout",
            message=f"'{self.name}' at {self.base_url} {what} {seconds:g} s. "
            f"Raise {option} if the model needs longer.",
            is_retryable=True,
            suggestions=(f"raise {option}",),
        )

    def too_large(self, most_bytes: int) -> ModelFailure:
        """The failure for an answer larger than `most_bytes`."""
        return ModelFailure(
            code="response-too-large",
            message=f"The answer of '{self.name}' from {self.base_url} is larger than "
            f"{most_bytes // 1_048_576} MiB and was refused.",
        )

    def unreachable(self, what: str) -> ModelFailure:
        """The failure for a server that could not be reached, or closed the
        connection without an answer.
        """
        if self.provider == "ollama":
            tries = ("start the server with `ollama serve`",)
        else:
            tries = ("check that the server is running and base_url is right",)
        return ModelFailure(
            code=UNREACHABLE,
            message=f"No answer from {self.base_url} for '{self.name}': {self.clean(what)}. "
            f"Is the server running? Try: {tries[0]}.",
            is_retryable=True,
            suggestions=tries,
        )


# --- HTTP status ---------------------------------------------------------------------------


def status_failure(
    peer: ChatPeer, status: int, headers: Mapping[str, str], body: bytes, now: datetime
) -> ModelFailure:
    """The failure for an HTTP status other than 2xx."""
    error = _error_of(body)
    said = peer.clean(_words_of(error) or body.decode("utf-8", errors="replace"))
    if 300 <= status < 400:
        return evolve(_redirect_failure(peer, status, headers.get("location", "")), status=status)
    said = said or "no message"
    heard = f"{peer.base_url} answered HTTP {status} for '{peer.name}': {said}"
    if request_id := _request_id(headers):
        heard += f" (request {peer.clean(request_id, _LONGEST_REQUEST_ID)})"
    failure = _classify_status(peer, status, heard, retry_after_s(headers, now), error)
    if headers.get("x-should-retry", "").strip().lower() == "false":
        failure = evolve(failure, is_retryable=False)
    return evolve(failure, status=status, rate_limits=rate_limits_of(headers, lambda: now))


_LONGEST_REQUEST_ID: Final = 100
"""Characters of a request's id that are shown."""


def _request_id(headers: Mapping[str, str]) -> str | None:
    """The provider's id of the request, which its support asks for."""
    return headers.get("request-id") or headers.get("x-request-id")


def error_failure(peer: ChatPeer, error: object) -> ModelFailure:
    """The failure for an error object inside a 200 or a stream."""
    said = peer.clean(_words_of(error) or json.dumps(error, default=str))
    heard = f"{peer.base_url} answered HTTP 200 with an error for '{peer.name}': {said}"
    return _classify_status(peer, _status_of(_code_of(error), error), heard, None, error)


def _classify_status(
    peer: ChatPeer, status: int, heard: str, wait_s: float | None, error: object
) -> ModelFailure:
    """The failure of an HTTP status.

    Args:
        status: The status that was sent, or the one that fits an error inside a 200.
        error: The error object of the answer.
    """
    code = _code_of(error)
    if status in (401, 403):
        return _auth_rejected(peer, heard)
    if status not in (404, 429) and _CONTEXT_WORDS.search(f"{code} {_type_of(error)} {heard}"):
        return context_exceeded(f"The prompt is longer than '{peer.name}' takes: {heard}")
    if status == 404 or (status in (400, 422) and _is_of_model(heard)):
        return _not_found(peer, heard)
    if status in _JUDGED and (found := _of_output(code, heard)) is not None:
        return found
    if status == 429 and code == "insufficient_quota":
        return ModelFailure(code="quota-exhausted", message=heard)
    if wait_s is not None:
        heard = f"{heard} (It asks to be left alone for {wait_s:g} s.)"
    if status == 429:
        return ModelFailure(
            code="rate-limited", message=heard, is_retryable=True, retry_after_s=wait_s
        )
    if may_pass(status):
        return ModelFailure(
            code="model-unavailable", message=heard, is_retryable=True, retry_after_s=wait_s
        )
    return _bad_request(heard)


_CONTEXT_WORDS: Final = re.compile(
    r"context[ _-](length|size|window)|exceed_context|prompt is too long|prompt too long|"
    r"input token count|reduce the length of the (messages|prompt|input)",
    re.IGNORECASE,
)
"""How servers say that a prompt is longer than the context, whatever the HTTP status."""


_JUDGED: Final = frozenset({400, 422, 500})
"""Statuses by which servers say that an answer is not what they were to hold it to, or that the
chat template of the model takes no such message."""

_MODEL_WORDS: Final = re.compile(
    r"\bmodel\b.{0,120}\b(not found|not exist|is not available)|"
    r"\b(unknown|no such|invalid|unsupported) model\b|model_not_found|invalid_model",
    re.IGNORECASE,
)
"""How servers say with another status than 404 that they have no such model."""

_REJECTED_WORDS: Final = re.compile(
    r"json_validate_failed|tool_use_failed|failed to (generate|validate) json|"
    r"(output|response|answer|generated \w+) (does|did) not (match|fit|conform|validate)",
    re.IGNORECASE,
)
"""How servers say that they checked the model's answer, and that it does not fit."""

_TEMPLATE_WORDS: Final = re.compile(
    r"system (role|message|prompt)s? (is |are )?(not supported|unsupported)|"
    r"does(n't| not) support (the )?system|roles must alternate|unsupported role",
    re.IGNORECASE,
)
"""How chat templates refuse system messages."""


def _is_of_model(heard: str) -> bool:
    """Whether a refusal says that there is no such model, not that the model lacks something."""
    return bool(_MODEL_WORDS.search(heard)) and not _PART_WORDS.search(heard)


_PART_WORDS: Final = re.compile(r"response_format|schema|json|tool|function", re.IGNORECASE)
"""Parts of a request that a model may lack."""


def _of_output(code: str, heard: str) -> ModelFailure | None:
    """The failure where the server judged an answer or its template a message; None: neither."""
    if _TEMPLATE_WORDS.search(heard):
        return ModelFailure(code="template-refused", message=heard)
    if _REJECTED_WORDS.search(f"{code} {heard}"):
        return ModelFailure(code="output-rejected", message=heard)
    return None


def _bad_request(heard: str) -> ModelFailure:
    if not re.search(r"response_format|json_schema", heard):
        return ModelFailure(code="bad-request", message=heard)
    modes = tuple(f"output_mode: {mode}" for mode in (OutputMode.JSON, OutputMode.MD_JSON))
    return ModelFailure(
        code="bad-request",
        message=f"{heard} (The server may not know JSON Schemas: under `model`, try "
        f"`{modes[0]}`, `{modes[1]}` or `output_mode: {OutputMode.TOOLS}`.)",
        suggestions=(*modes, f"output_mode: {OutputMode.TOOLS}"),
    )


def _auth_rejected(peer: ChatPeer, heard: str) -> ModelFailure:
    if peer.secret is not None:
        hint = "check that the key is valid and may use this model"
        return ModelFailure(code="auth-rejected", message=heard, suggestions=(hint,))
    return ModelFailure(
        code="auth-rejected",
        message=f"{heard} (No key was sent: keys go only to the provider's own URL, to one the "
        "operator configured, and to trusted hosts.)",
        suggestions=(
            f"set base_url and api_key_env of [providers.{peer.provider}] in minions.toml",
            "add the host to the operator's trusted hosts",
        ),
    )


def _not_found(peer: ChatPeer, heard: str) -> ModelFailure:
    tries = (f"ollama pull {peer.model}",) if peer.provider == "ollama" else ()
    return ModelFailure(
        code="model-not-found",
        message=f"There is no model '{peer.model}' at {peer.base_url}, or no chat completions "
        f"there: {heard}",
        suggestions=(*tries, "check the model's name and base_url"),
    )


def _redirect_failure(peer: ChatPeer, status: int, location: str) -> ModelFailure:
    target = peer.clean(re.sub(r"//[^/@]*@", "//", location.partition("?")[0])) or "nowhere"
    return ModelFailure(
        code="redirected",
        message=f"{peer.base_url} redirects (HTTP {status}) to {target}. Prompts and keys do not "
        "follow redirects; set base_url to the final address if you trust it.",
        suggestions=("set base_url to the final address",),
    )


# --- what servers say ----------------------------------------------------------------------


def _error_of(body: bytes) -> object:
    """The error object of a JSON body; None: there is none."""
    try:
        document: object = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(document, dict):
        return None
    return document.get("error") or document


def _words_of(error: object) -> str:
    """The message inside an error object, in the dialects of the known servers."""
    if isinstance(error, str):
        return error
    if not isinstance(error, dict):
        return ""
    for key in ("message", "error", "detail", "msg"):
        value = error.get(key)
        if value:
            return value if isinstance(value, str) else json.dumps(value, default=str)
    return ""


def _type_of(error: object) -> str:
    return str(error.get("type") or "") if isinstance(error, dict) else ""


def _code_of(error: object) -> str:
    """The error's code, else its type, as text."""
    if not isinstance(error, dict):
        return ""
    return str(error.get("code") or error.get("status") or error.get("type") or "")


_STATUS_BY_WORD: Final = (
    ("insufficient_quota", 429),
    ("rate_limit", 429),
    ("api_key", 401),
    ("authentication", 401),
    ("permission", 403),
    ("not_found", 404),
    ("invalid", 400),
    ("context_length", 400),
)


def _status_of(code: str, error: object) -> int:
    """The HTTP status that fits an error inside a 200; 500 where nothing in it decides."""
    if re.fullmatch(r"[45][0-9][0-9]", code):
        return int(code)
    kind = error.get("type") if isinstance(error, dict) else None
    words = f"{code} {kind}".lower()
    return next((status for word, status in _STATUS_BY_WORD if word in words), 500)


def retry_after_s(headers: Mapping[str, str], now: datetime) -> float | None:
    """Seconds to wait, from `retry-after-ms` or `Retry-After` (seconds
    or an HTTP date); None: not stated.
    """
    if (milliseconds := _number(headers.get("retry-after-ms"))) is not None:
        return milliseconds / 1000
    said = headers.get("retry-after")
    if said is None:
        return None
    if (seconds := _number(said)) is not None:
        return seconds
    from email.utils import parsedate_to_datetime  # 2 ms, for servers that say a date

    try:
        until = parsedate_to_datetime(said)
    except (TypeError, ValueError, OverflowError):
        return None
    if until.tzinfo is None:
        until = until.replace(tzinfo=now.tzinfo)
    return max(0.0, (until - now).total_seconds())


def _number(text: str | None) -> float | None:
    """A finite number; negative numbers become 0. None: it is not a number."""
    try:
        value = float(text or "")
    except ValueError:
        return None
    return max(0.0, value) if math.isfinite(value) else None

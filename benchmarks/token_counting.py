"""Tokens of requests: what is sent, how it is cut into tokens, and what a prefix cache saves."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Final, Protocol, TypeAlias, cast

from attrs import frozen

from minions.contracts.calls import Prompt
from minions.data.json_values import dumps

__all__ = [
    "Counts",
    "Request",
    "TokenizerMissingError",
    "cl100k",
    "counted",
    "estimate",
    "prefixes_read",
]

Tokens: TypeAlias = tuple[object, ...]
Tokenizer: TypeAlias = Callable[[str], Tokens]

VOCABULARY: Final = "9b5ad71b2ce5302211f9c61530b329a4922fc6a4"
"""The name under which tiktoken keeps the vocabulary of cl100k_base."""
HOW_TO_GET_IT: Final = (
    "Install the dependency group `bench`, which holds tiktoken. Its wheel lacks the vocabulary: "
    f"put the file {VOCABULARY} into a folder, and name that in TIKTOKEN_CACHE_DIR. The wheel of "
    "litellm holds the file in litellm/litellm_core_utils/tokenizers. Or count with --estimate: "
    "four characters are a token."
)
_CACHED_PRICE: Final = 0.1
_LEAST_CACHED: Final = 1_024
_CACHE_STEP: Final = 128


class TokenizerMissingError(Exception):
    """tiktoken or its vocabulary is not there; the message says how to get it."""


class _Encoding(Protocol):
    def encode(self, text: str, *, disallowed_special: Sequence[str]) -> list[int]: ...


def cl100k() -> Tokenizer:
    """The tokenizer `cl100k_base`; nothing is loaded from elsewhere.

    Raises:
        TokenizerMissingError: tiktoken or its vocabulary is not there.
    """
    folder = os.environ.get("TIKTOKEN_CACHE_DIR", "")
    if not folder or not (Path(folder) / VOCABULARY).is_file():
        raise TokenizerMissingError(f"The vocabulary of cl100k_base is missing. {HOW_TO_GET_IT}")
    try:
        module = importlib.import_module("tiktoken")
    except ImportError as error:
        raise TokenizerMissingError(f"tiktoken is missing. {HOW_TO_GET_IT}") from error
    encoding = cast(_Encoding, module.get_encoding("cl100k_base"))
    return cache(lambda text: tuple(encoding.encode(text, disallowed_special=())))


def estimate(text: str) -> Tokens:
    """Four characters are a token."""
    return tuple(text[at : at + 4] for at in range(0, len(text), 4))


@frozen(kw_only=True)
class Request:
    """One model call: the texts that it sends, in their order, and what the model wrote."""

    sent: tuple[str, ...]
    answer: tuple[str, ...]

    @classmethod
    def of(cls, prompt: Prompt, answer: Sequence[str], hidden: str) -> Request:
        """The request of a prompt.

        Args:
            hidden: A path that differs between runs; `/work` is counted in its place.
        """
        texts = [dumps([each.to_message_dict() for each in prompt.tools])] if prompt.tools else []
        if prompt.instructions is not None:  # as a server that binds the schema is sent it
            texts.append(dumps(prompt.instructions.json_schema()))
        asked = prompt.output_request
        for message in (*prompt.messages, *(asked.messages if asked is not None else ())):
            texts.append(f"{message.role.value}\n{message.content or ''}")
            texts += [f"{call.name}\n{call.arguments}" for call in message.tool_calls]
        return cls(
            sent=tuple(text.replace(hidden, "/work") for text in texts),
            answer=tuple(answer),
        )


@frozen(kw_only=True)
class Counts:
    """What the requests of one run cost."""

    calls: int
    input: int
    largest: int
    output: int
    price: float
    """Of the input with a prefix cache, in tokens at full price."""
    read: int = 0
    """Input tokens that are read from the cache."""
    stored: int = 0
    """Input tokens that are stored in it, of requests that are long enough."""

    @property
    def share_read(self) -> float:
        """The part of the input that is read from the cache."""
        return self.read / self.input if self.input else 0.0


def counted(
    requests: Sequence[Request], tokenizer: Tokenizer, before: Sequence[Request] = ()
) -> Counts:
    """Count the requests of one run, which were sent in this order.

    Args:
        before: Requests of earlier runs, which the server has in its cache.
    """
    known = [[tokenizer(text) for text in each.sent] for each in before]
    cut = [[tokenizer(text) for text in each.sent] for each in requests]
    sizes = [sum(map(len, parts)) for parts in cut]
    cached = [
        _from_cache(max((_shared(parts, earlier) for earlier in [*known, *cut[:at]]), default=0))
        for at, parts in enumerate(cut)
    ]
    saved = sum(cached)
    pairs = zip(sizes, cached, strict=True)
    return Counts(
        calls=len(requests),
        input=sum(sizes),
        largest=max(sizes, default=0),
        output=sum(len(tokenizer(text)) for each in requests for text in each.answer),
        price=sum(sizes) - saved * (1 - _CACHED_PRICE),
        read=saved,
        stored=sum(size - read for size, read in pairs if size >= _LEAST_CACHED),
    )


def prefixes_read(requests: Sequence[Request], tokenizer: Tokenizer) -> list[float]:
    """The part of each request that the next one reads from the cache, from where requests are long
    enough for one.
    """
    cut = [[tokenizer(text) for text in each.sent] for each in requests]
    shares = []
    for before, after in pairwise(cut):
        size = sum(map(len, before))
        if size >= _LEAST_CACHED:
            shares.append(_from_cache(_shared(after, before)) / size)
    return shares


def _shared(one: Sequence[Tokens], other: Sequence[Tokens]) -> int:
    """Tokens of the common prefix."""
    length = 0
    for left, right in zip(one, other, strict=False):
        if left == right:
            length += len(left)
            continue
        pairs = enumerate(zip(left, right, strict=False))
        return length + next((at for at, (a, b) in pairs if a != b), min(len(left), len(right)))
    return length


def _from_cache(shared: int) -> int:
    """Tokens that a server has in its cache."""
    return shared // _CACHE_STEP * _CACHE_STEP if shared >= _LEAST_CACHED else 0

"""The head of a file of weights, as a stranger may have written it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from attrs import frozen

from fuzz.target import Target
from local_engines import LLAMA, gguf
from minions.adapters.models.local.gguf import read_gguf_head
from minions.data.errors import UsageError

__all__ = ["weights_targets"]

_SEEDS: Final = (
    gguf(),
    gguf({**LLAMA, "general.languages": ["en", "de"], "tokenizer.ggml.tokens": ["a", "b"]}),
    gguf({"general.architecture": "x", "x.context_length": 2**31, "general.license": "é" * 40}),
    gguf({}, version=2),
)


def weights_targets(folder: Path) -> Sequence[Target]:
    """The target.

    Args:
        folder: An empty one, for files that are read.
    """
    words = ("GGUF", "llama.context_length", "general.license", "tokenizer.", "\0\0\0\0")
    check = _WeightsTarget(folder / "weights.gguf").check
    return (Target(name="weights", check=check, seeds=lambda: _SEEDS, words=words, few=300),)


@frozen
class _WeightsTarget:
    path: Path

    def check(self, data: bytes) -> None:
        """A head says what can be used, or is refused with the one code."""
        self.path.write_bytes(data)
        try:
            head = read_gguf_head(self.path)
        except UsageError as error:
            assert error.error_code == "bad-weights"
            return
        assert head.context_tokens is None or head.context_tokens > 0
        assert isinstance(head.bytes_per_token, int)

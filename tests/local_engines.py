"""Engines that need no weights: a small GGUF file, and a program that answers without a model."""

from __future__ import annotations

import json
import struct
import sys
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import cast

from returns.pipeline import is_successful

from minions.adapters.models.local.engines import (
    EngineParts,
    EngineSpec,
    LocalEngine,
    LocalEngines,
    Server,
)
from minions.adapters.models.local.local_model import LocalModel
from minions.adapters.models.openai import OpenAIModel
from minions.contracts.calls import ChatModel, ModelCapabilities, ModelFailure, Prompt
from minions.contracts.messages import Message, MessageRole

__all__ = [
    "answer_of",
    "ask",
    "failure_of",
    "fake_engine",
    "fake_parts",
    "gguf",
    "local_model",
    "spec_of",
    "wheel",
]

PROGRAM = str(Path(__file__).with_name("fake_engine_program.py"))
LLAMA: Mapping[str, str | int] = {
    "general.architecture": "llama",
    "general.license": "mit",
    "llama.context_length": 4096,
    "llama.block_count": 30,
    "llama.embedding_length": 576,
    "llama.attention.head_count": 9,
    "llama.attention.head_count_kv": 3,
}


def gguf(values: Mapping[str, str | int | Iterable[str]] = LLAMA, *, version: int = 3) -> bytes:
    """A GGUF file without weights."""

    def text(said: str) -> bytes:
        return struct.pack("<Q", len(said.encode())) + said.encode()

    def value(said: str | int | Iterable[str]) -> bytes:
        if isinstance(said, int):
            return struct.pack("<II", 4, said)
        if isinstance(said, str):
            return struct.pack("<I", 8) + text(said)
        items = [text(each) for each in said]
        return struct.pack("<IIQ", 9, 8, len(items)) + b"".join(items)

    body = b"".join(text(key) + value(said) for key, said in values.items())
    return b"GGUF" + struct.pack("<IQQ", version, 0, len(values)) + body


def wheel(path: Path, *files: tuple[str, bytes]) -> Path:
    """A wheel with these files."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files:
            archive.writestr(name, content)
    return path


def fake_parts(*how: str) -> EngineParts:
    """Parts that start the fake program."""
    command = (sys.executable, "-I", PROGRAM, *how)
    return EngineParts(command=lambda: command, available_memory=lambda: None, start_within_s=60)


def spec_of(weights: Path, name: str = "small") -> EngineSpec:
    weights.write_bytes(gguf())
    return EngineSpec(
        name=name, weights=weights, packages="", context_tokens=512, slots=2, threads=1
    )


def fake_engine(weights: Path, *how: str) -> LocalEngine:
    return LocalEngines(fake_parts(*how)).engine(spec_of(weights))


def local_model(engine: LocalEngine) -> LocalModel:
    return LocalModel(engine, _client, ModelCapabilities())


def _client(server: Server) -> ChatModel:
    return OpenAIModel("small", base_url=server.base_url, api_key=server.key, provider="local")


def ask(text: str) -> Prompt:
    return Prompt((Message(role=MessageRole.USER, content=text),))


async def answer_of(model: ChatModel, text: str = "hello") -> Mapping[str, object]:
    """What the fake engine says of itself."""
    outcome = await model.complete(ask(text))
    assert is_successful(outcome), outcome.failure()
    return cast("Mapping[str, object]", json.loads(outcome.unwrap().text or ""))


async def failure_of(model: ChatModel, text: str = "hello") -> ModelFailure:
    outcome = await model.complete(ask(text))
    assert not is_successful(outcome), outcome.unwrap().text
    return outcome.failure()

"""The real weights, in parts and from a server that breaks off: `make test-local`."""

from __future__ import annotations

import asyncio
import hashlib
import os
from pathlib import Path
from typing import Final

import pytest

from minions.adapters.models.local.gguf import read_gguf_head
from minions.adapters.models.local.weight_files import PullOptions, pull
from minions.adapters.models.local.weights import IN_THE_BOX, KnownWeights, WeightsStore
from minions.app.settings.user_folders import user_cache_folder
from minions.testing.endpoint import ChatEndpoint, Exchange

WEIGHTS: Final = user_cache_folder() / "models" / IN_THE_BOX.name / IN_THE_BOX.file
pytestmark = pytest.mark.skipif(
    os.environ.get("MINIONS_TEST_LOCAL") != "1",
    reason="it needs a real model, 130 MB: `make test-local` fetches it",
)


def no_pip(known: KnownWeights, folder: Path) -> Path:
    raise AssertionError("pip is not asked")


@pytest.fixture
def store(tmp_path: Path) -> WeightsStore:
    return WeightsStore(tmp_path / "models", lambda _: None)


def test_parts_of_a_model_make_the_model(store: WeightsStore, tmp_path: Path) -> None:
    folder = tmp_path / "parts"
    folder.mkdir()
    lines = [f"{IN_THE_BOX.sha256}  box.gguf"]
    with WEIGHTS.open("rb") as file:
        while piece := file.read(30_000_000):
            name = f"box.gguf.part-{len(lines):02}"
            (folder / name).write_bytes(piece)
            lines.append(f"{hashlib.sha256(piece).hexdigest()}  {name}")
    (folder / "SHA256SUMS").write_text("\n".join(lines))
    found = pull(store, str(folder), no_pip)
    assert (len(lines), found.sha256) == (5, IN_THE_BOX.sha256)
    assert read_gguf_head(found.path).architecture == "llama"


async def test_a_model_comes_over_a_connection_that_breaks(store: WeightsStore) -> None:
    data = await asyncio.to_thread(WEIGHTS.read_bytes)

    async def breaking(exchange: Exchange) -> None:
        at = int(exchange.request.headers.get("range", "bytes=0-")[6:-1])
        headers = {"Content-Length": str(len(data) - at)}
        if at:
            headers["Content-Range"] = f"bytes {at}-{len(data) - 1}/{len(data)}"
        await exchange.send_head(206 if at else 200, headers)
        await exchange.write(data[at : at + 40_000_000])
        exchange.drop()

    async with ChatEndpoint(default=breaking) as endpoint:
        address = f"http://{endpoint.host}/box.gguf"
        options = PullOptions(sha256=IN_THE_BOX.sha256)
        found = await asyncio.to_thread(pull, store, address, no_pip, options)
        assert [each.headers.get("range") for each in endpoint.requests] == [
            *(None, "bytes=40000000-", "bytes=80000000-"),
        ]
    assert found.sha256 == IN_THE_BOX.sha256

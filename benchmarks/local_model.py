"""The model that comes along beside the bare engine, as ratios within one run.

`python -m benchmarks.local_model` after `make demo-local`; it is no part of `make bench`.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from minions.adapters.models.local.engines import Server
from minions.adapters.models.local.local_model import LocalModel
from minions.adapters.models.openai import OpenAIModel
from minions.app.settings.settings import Settings
from minions.app.wiring.local_models import LocalModels, folder_of_package, weights_store
from minions.contracts.calls import ModelOptions, Prompt
from minions.contracts.messages import user

ROUNDS: Final = 5
TOKENS: Final = 120
QUESTION: Final = "Tell a long story about a cat."
RECIPE: Final = (
    f"id: r\nsteps:\n  - {{id: a, goal: {QUESTION}, completion: text, "
    "model: {max_output_tokens: 500, temperature: 0}}\n"
)
BARE: Final = """
import json, sys, urllib.request
sys.path.append(sys.argv[1])
import xllamacpp
params = xllamacpp.CommonParams()
params.model.path, params.n_ctx, params.n_parallel, params.port = sys.argv[2], 16384, 2, 0
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = int(sys.argv[3])
params.ui, params.verbosity = False, 0
server = xllamacpp.Server(params)
body = {"messages": [{"role": "user", "content": sys.argv[4]}], "max_tokens": 500, "stream": True}
request = urllib.request.Request(
    f"{server.listening_address}/v1/chat/completions", json.dumps(body).encode(),
    {"Content-Type": "application/json"},
)
for line in urllib.request.urlopen(request):
    if b'"content":"' in line:
        print("token", flush=True)
"""
"""The engine in a process of its own, asked without anything of ours."""


def until(command: list[str], is_there: Callable[[str], bool], folder: str) -> float:
    """Seconds from the start of a process to the first such line; it is killed then."""
    # Waiting threads that spin would make the bare engine slow, not us fast.
    environ = {**os.environ, "GOMP_SPINCOUNT": "0"}
    started = time.perf_counter()
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=folder,
        env=environ,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        for line in process.stdout:
            if is_there(line):
                took = time.perf_counter() - started
                process.kill()
                return took
    raise RuntimeError(f"{command[:4]} gave no token")


def first_tokens(folder: str) -> tuple[float, float]:
    """From process start to the first token: the bare engine, and `minions run -m local`."""
    Path(folder, "r.yaml").write_text(RECIPE, "utf-8")
    packages = folder_of_package("xllamacpp")
    assert packages is not None, "make demo-local installs the engine"
    weights = str(weights_store().require("smollm2").path)
    threads = str(len(os.sched_getaffinity(0)))
    bare = [sys.executable, "-c", BARE, str(packages.parent), weights, threads, QUESTION]
    ours = [
        sys.executable,
        "-m",
        "minions",
        "run",
        "r.yaml",
        "-m",
        "local",
        "--events",
        "--no-store",
    ]
    found: list[tuple[float, float]] = []
    for _ in range(ROUNDS):
        bare_s = until(bare, lambda line: "token" in line, folder)
        found.append((bare_s, until(ours, lambda line: '"step_delta"' in line, folder)))
    return _medians(found)


def raw_tokens_per_s(server: Server) -> float:
    """The rate of one stream that nobody but `urllib` reads."""
    body = {
        "messages": [{"role": "user", "content": QUESTION}],
        "max_tokens": TOKENS,
        "temperature": 0,
        "stream": True,
    }
    request = urllib.request.Request(
        f"{server.base_url}/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json", "Authorization": f"Bearer {server.key}"},
    )
    started = time.perf_counter()
    with urllib.request.urlopen(request) as answer:
        for _ in answer:
            pass
    return TOKENS / (time.perf_counter() - started)


async def our_tokens_per_s(model: LocalModel) -> float:
    """The rate of the same stream through the model."""
    options = ModelOptions(max_output_tokens=TOKENS, temperature=0)
    started = time.perf_counter()
    await model.complete(Prompt((user(QUESTION),), options), lambda _: None)
    return TOKENS / (time.perf_counter() - started)


@asynccontextmanager
async def model_in_the_box() -> AsyncIterator[tuple[LocalModel, Server]]:
    """The model that comes along, and the server that its engine is, as long as the block runs."""
    models = LocalModels(Settings(), folder_of=lambda _: Path.cwd())
    model = models.make("local", Path.cwd(), _client)
    try:
        server = await model._engine.server()  # noqa: SLF001  # to ask it directly
        assert isinstance(server, Server), server
        yield model, server
    finally:
        await model.aclose()
        await models.aclose()


async def rates() -> tuple[float, float, float, float]:
    """Tokens a second of the bare server and of ours; seconds to a warm first token; MiB."""
    async with model_in_the_box() as (model, server):
        found = []
        for _ in range(ROUNDS + 1):
            raw = await asyncio.to_thread(raw_tokens_per_s, server)
            found.append((raw, await our_tokens_per_s(model)))
        warm = (await model.complete(_asked(), lambda _: None)).unwrap().first_token_latency_ms or 0
        memory = _resident_mib(server.process.pid)
    return *_medians(found[1:]), warm / 1000, memory


def _client(name: str, server: Server, slots: int) -> OpenAIModel:
    return OpenAIModel(
        name, base_url=server.base_url, api_key=server.key, provider="local", max_requests=slots
    )


def _asked() -> Prompt:
    return Prompt((user("Say hello."),), ModelOptions(max_output_tokens=200, temperature=0))


def _resident_mib(pid: int | None) -> float:
    status = Path(f"/proc/{pid}/status").read_text("ascii")
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


def _medians(pairs: list[tuple[float, float]]) -> tuple[float, float]:
    return statistics.median(one for one, _ in pairs), statistics.median(two for _, two in pairs)


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, ".git").mkdir()
        bare_s, ours_s = first_tokens(folder)
    raw, ours, warm_s, memory = asyncio.run(rates())
    print(f"process start to first token: {ours_s / bare_s:.2f} x ({ours_s:.2f} s, {bare_s:.2f} s)")
    print(f"first token of a warm engine: {warm_s:.3f} s")
    print(f"tokens a second: {ours / raw:.2f} x the bare server ({ours:.0f}, {raw:.0f})")
    print(f"memory of the engine: {memory:.0f} MiB")


if __name__ == "__main__":
    main()

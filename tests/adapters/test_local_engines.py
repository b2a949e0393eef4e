"""The engine of `local/` models: started when it is needed, shared, ended; also when it dies."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from attrs import evolve

from local_engines import (
    answer_of,
    ask,
    failure_of,
    fake_engine,
    fake_parts,
    local_model,
    spec_of,
)
from minions.adapters.models.local.engines import LocalEngine, LocalEngines, Server
from minions.contracts.calls import ModelDelta
from minions.testing.processes import gone
from patience import HANG_S

linux_only = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="reads /proc")


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    return tmp_path / "small.gguf"


def pid_of(said: object) -> int:
    assert isinstance(said, int)
    return said


async def test_the_engine_starts_at_the_first_call_and_ends_at_the_end(weights: Path) -> None:
    """A-132."""
    engines = LocalEngines(fake_parts())
    model = local_model(engines.engine(spec_of(weights)))
    said = await answer_of(model)
    assert (said["weights"], said["name"], said["slots"]) == (str(weights), "small", 2)
    assert model.name == "local/small"
    assert model.prompt_cache.is_known
    await model.aclose()
    await engines.aclose()
    assert gone(frozenset({pid_of(said["pid"])}))


async def test_models_of_the_same_weights_share_a_process_and_start_it_once(
    weights: Path, tmp_path: Path
) -> None:
    engines = LocalEngines(fake_parts())
    spec = spec_of(weights)
    models = [local_model(engines.engine(each)) for each in (spec, evolve(spec), spec, spec)]
    models.append(local_model(engines.engine(spec_of(tmp_path / "other.gguf"))))
    said = await asyncio.gather(*(answer_of(model) for model in models))
    await engines.aclose()
    pids = [each["pid"] for each in said]
    assert len(set(pids[:4])) == 1
    assert pids[4] != pids[0]


async def test_a_cold_start_does_not_hold_the_event_loop(weights: Path, tmp_path: Path) -> None:
    engine = fake_engine(weights, "slow", str(tmp_path / "go"))
    warming = asyncio.ensure_future(local_model(engine).warm_up())
    await asyncio.sleep(0.05)
    assert not warming.done()
    (tmp_path / "go").touch()  # by the loop itself: it was free
    await warming
    engine.stop()


def shown_of(pid: int) -> list[bytes]:
    """What every program of the user sees of a process."""
    return [Path(f"/proc/{pid}/{name}").read_bytes() for name in ("cmdline", "environ")]


@linux_only
async def test_key_and_path_stand_neither_on_the_command_line_nor_in_the_environment(
    weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A-132."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-user")
    engines = LocalEngines(evolve(fake_parts(), new_key=lambda: "the-key-of-this-engine"))
    said = await answer_of(local_model(engines.engine(spec_of(weights))))
    seen = shown_of(pid_of(said["pid"]))
    await engines.aclose()
    for secret in (b"the-key-of-this-engine", b"small.gguf", b"sk-of-the-user"):
        assert all(secret not in each for each in seen)


async def test_an_answer_streams_as_from_any_server(weights: Path) -> None:
    engine = fake_engine(weights)
    deltas: list[ModelDelta] = []
    outcome = await local_model(engine).complete(ask("hello"), deltas.append)
    engine.stop()
    assert "".join(each.content or "" for each in deltas) == outcome.unwrap().text


async def test_a_crash_in_mid_call_is_a_failure_to_retry_and_the_next_call_starts_anew(
    weights: Path,
) -> None:
    """A-132."""
    engine = fake_engine(weights)
    model = local_model(engine)
    before = await answer_of(model)
    failure = await failure_of(model, "crash")
    assert (failure.code, failure.is_retryable) == ("engine-crashed", True)
    assert "SIGABRT" in failure.message
    assert "E something broke" in failure.message
    after = await answer_of(model)
    assert before["pid"] != after["pid"]
    engine.stop()


async def test_an_engine_that_died_while_idle_is_replaced_unnoticed(weights: Path) -> None:
    engine = fake_engine(weights)
    model = local_model(engine)
    pid = pid_of((await answer_of(model))["pid"])
    server = await engine.server()
    assert isinstance(server, Server)
    os.kill(pid, signal.SIGKILL)
    assert server.process.wait_for_end(60)
    assert (await answer_of(model))["pid"] != pid
    engine.stop()


async def test_after_three_crashes_in_a_row_nothing_is_started_for_a_minute(weights: Path) -> None:
    now = [100.0]
    engines = LocalEngines(evolve(fake_parts(), clock=lambda: now[0]))
    model = local_model(engines.engine(spec_of(weights)))
    assert [(await failure_of(model, "crash")).code for _ in range(4)] == [
        *("engine-crashed",) * 3,
        "engine-failed",
    ]
    last = await failure_of(model)
    assert "3 processes in a row failed" in last.message
    assert not last.is_retryable
    now[0] += 61
    assert (await answer_of(model))["name"] == "small"
    assert (await failure_of(model, "crash")).code == "engine-crashed"
    assert (await answer_of(model))["name"] == "small"
    await engines.aclose()


async def test_a_start_that_fails_is_told_with_the_end_of_its_log(weights: Path) -> None:
    failure = await failure_of(local_model(fake_engine(weights, "fail")))
    assert (failure.code, failure.is_retryable) == ("engine-failed", False)
    assert "no such architecture: 'odd'" in failure.message
    assert "and the key is ***" in failure.message
    assert str(weights) in failure.message


async def test_a_start_that_is_killed_says_so(weights: Path) -> None:
    failure = await failure_of(local_model(fake_engine(weights, "die")))
    assert "SIGKILL, perhaps for want of memory" in failure.message


async def test_a_start_that_hangs_is_ended_in_time(weights: Path) -> None:
    parts = evolve(fake_parts("hang"), start_within_s=0.2)
    started: list[subprocess.Popen[bytes]] = []

    def spawn(command: object) -> subprocess.Popen[bytes]:
        started.append(parts.spawn(parts.command()))
        return started[0]

    engine = LocalEngine(spec_of(weights), evolve(parts, spawn=spawn))
    failure = await failure_of(local_model(engine))
    assert failure.code == "engine-failed"
    assert "did not begin to serve within 0.2 s" in failure.message
    assert gone(frozenset({started[0].pid}))


async def test_an_engine_that_is_just_starting_is_ended_at_once(weights: Path) -> None:
    parts = fake_parts("hang")
    started = asyncio.Event()
    loop = asyncio.get_running_loop()

    def spawn(command: object) -> subprocess.Popen[bytes]:
        process = parts.spawn(parts.command())
        loop.call_soon_threadsafe(started.set)
        return process

    engines = LocalEngines(evolve(parts, spawn=spawn))
    call = asyncio.ensure_future(failure_of(local_model(engines.engine(spec_of(weights)))))
    await started.wait()
    await asyncio.wait_for(engines.aclose(), HANG_S)
    assert (await call).code == "engine-failed"


async def test_a_program_that_is_not_there_is_told(weights: Path) -> None:
    parts = evolve(fake_parts(), command=lambda: ("/nowhere/python",))
    failure = await failure_of(local_model(LocalEngine(spec_of(weights), parts)))
    assert "/nowhere/python: No such file" in failure.message


async def test_a_model_larger_than_the_free_memory_is_not_started(weights: Path) -> None:
    spec = evolve(spec_of(weights), context_bytes=2**20)
    parts = evolve(fake_parts("die"), available_memory=lambda: 2**29)
    failure = await failure_of(local_model(LocalEngine(spec, parts)))
    assert failure.code == "resource-limit"
    assert "1,024 MiB for 2 contexts of 512 tokens; 512 MiB are free here" in failure.message


async def test_a_cancelled_call_leaves_the_engine_to_others(weights: Path) -> None:
    engine = fake_engine(weights)
    model = local_model(engine)
    pid = (await answer_of(model))["pid"]
    call = asyncio.ensure_future(model.complete(ask("hello")))
    await asyncio.sleep(0)
    call.cancel()
    await asyncio.wait([call])
    assert call.cancelled()
    assert (await answer_of(model))["pid"] == pid
    engine.stop()


def test_event_loops_of_one_process_share_the_engine(weights: Path) -> None:
    engine = fake_engine(weights)
    pids = [asyncio.run(answer_of(local_model(engine)))["pid"] for _ in range(2)]
    engine.stop()
    assert pids[0] == pids[1]


_PARENT = """
import asyncio, sys, time
sys.path[:0] = [{tests!r}, {root!r}]
from pathlib import Path
from local_engines import answer_of, fake_engine, local_model
said = asyncio.run(answer_of(local_model(fake_engine(Path({weights!r})))))
print(said["pid"], flush=True)
{then}
"""


@pytest.mark.parametrize("then", ["time.sleep(600)", "raise SystemExit(3)", "raise OSError"])
def test_no_process_is_left_when_the_parent_ends(weights: Path, then: str) -> None:
    """A-132: killed, ended or failed, without a word of farewell."""
    tests = Path(__file__).parents[1]
    code = _PARENT.format(tests=str(tests), root=str(tests.parent), weights=str(weights), then=then)
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        if "sleep" in then:
            parent.kill()
    assert gone(frozenset({pid}))

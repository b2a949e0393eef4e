"""Models on whatever event loop there is: asyncio's and uvloop, kept, ended and in threads."""

from __future__ import annotations

import asyncio
import gc
import socket
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop

import minions as m
from chat_servers import served_models
from minions.adapters.models.openai import OpenAIModel
from minions.contracts.calls import Prompt
from minions.contracts.messages import user
from minions.testing import endpoint as fake

LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


def run_on(loop: str, work: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await work()

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(main())


def model_at(url: str) -> OpenAIModel:
    return OpenAIModel(provider="fake", model="m", base_url=url, api_key=None)


def sockets() -> int:
    """Open sockets of this process."""
    gc.collect()
    found = 0
    for each in Path("/proc/self/fd").iterdir():
        try:
            found += str(each.readlink()).startswith("socket:")
        except FileNotFoundError:
            continue
    return found


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_call_is_answered_on_each_loop(loop: str, host: str) -> None:
    """A-154."""
    answers: list[str | None] = []
    with served_models(fake.answer("Hello.")) as endpoint:
        url = endpoint.base_url.replace("127.0.0.1", host)

        async def work() -> None:
            model = model_at(url)
            outcome = await model.complete(Prompt((user("hi"),)))
            answers.append(outcome.unwrap().message.content)
            await model.aclose()

        run_on(loop, work)
    assert answers == ["Hello."]


@pytest.mark.parametrize("loop", LOOPS)
def test_an_address_that_does_not_answer_is_passed_over_on_each_loop(
    loop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A-154. Of a name with several addresses the first one that answers counts."""
    asked: list[str | None] = []
    with served_models(fake.answer("Hello.")) as endpoint:
        port = int(endpoint.base_url.rsplit(":", 1)[1].split("/")[0])

        async def work() -> None:
            running = asyncio.get_running_loop()
            kind = (socket.AF_INET, socket.SOCK_STREAM, 6, "")
            found = [(*kind, (address, port)) for address in ("127.9.9.9", "127.0.0.1")]

            look_up = running.getaddrinfo

            async def looked_up(host: str, *more: Any, **named: Any) -> object:  # Any: passed on
                return found if host == "several.example" else await look_up(host, *more, **named)

            monkeypatch.setattr(running, "getaddrinfo", looked_up)
            model = model_at(f"http://several.example:{port}/v1")
            outcome = await model.complete(Prompt((user("hi"),)))
            asked.append(outcome.unwrap().message.content)
            await model.aclose()

        run_on(loop, work)
    assert asked == ["Hello."]


@pytest.mark.parametrize("loop", LOOPS)
def test_a_model_that_nobody_closes_leaves_no_socket_when_its_loop_ends(loop: str) -> None:
    """A-154."""
    with served_models(fake.answer("Hello.")) as endpoint:
        kept: list[OpenAIModel] = []

        async def work() -> None:
            model = model_at(endpoint.base_url)
            kept.append(model)
            await model.complete(Prompt((user("hi"),)))

        run_on(loop, work)  # the first call opens what the process keeps
        before = sockets()
        for _ in range(5):
            run_on(loop, work)
        assert sockets() <= before


def test_runs_in_threads_leave_no_socket(tmp_path: Path) -> None:
    """A-154."""
    with served_models(fake.answer("Hello.")) as endpoint:
        model = model_at(endpoint.base_url)
        recipe = tmp_path / "r.yaml"
        recipe.write_text("id: r\nsteps: [{id: a, goal: Say hello.}]\n")
        outputs: list[object] = []

        def work() -> None:
            outputs.append(m.run(recipe, model=model).unwrap())

        def all_threads(count: int) -> None:
            threads = [threading.Thread(target=work) for _ in range(count)]
            for each in threads:
                each.start()
            for each in threads:
                each.join()

        all_threads(1)
        before = sockets()
        all_threads(10)
        assert len(outputs) == 11
        assert sockets() <= before


def test_another_kind_of_event_loop_is_told_what_to_do(tmp_path: Path) -> None:
    """A-154. As trio would drive the coroutine."""
    recipe = tmp_path / "r.yaml"
    recipe.write_text("id: r\nsteps: [{id: a, set: {n: 1}}]\n")
    work = m.arun(recipe)
    with pytest.raises(m.UsageError, match=r"trio\.to_thread"):
        work.send(None)

"""LiteLLM's providers: what it is asked, what its answers and exceptions become.

Most tests hand in a function in the place of `litellm.acompletion`; those at the end ask a server
through the package itself, where it is installed (`pip install 'minions-engine[litellm]'`).
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import math
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve, field, frozen
from returns.pipeline import is_successful

from minions.adapters.models.litellm_model import LiteLLMModel, secrets_of
from minions.app.settings.settings import ProviderSettings, Settings
from minions.app.wiring.configured_models import Models, model_check
from minions.contracts.calls import (
    Confidence,
    ModelCapabilities,
    ModelDelta,
    ModelFailure,
    ModelOptions,
    Prompt,
)
from minions.contracts.instructions import OutputInstructions, OutputMode, OutputRequest
from minions.contracts.messages import image_of, system, user
from minions.contracts.tools import ToolSpec
from minions.data.errors import EnvironmentRefusedError, UsageError
from minions.data.json_values import JsonValue
from minions.engine.compile.extensions import Extensions
from minions.recipe.model import AgentRecipe
from minions.recipe.model_config import ModelConfig
from minions.testing import ChatEndpoint, endpoint
from minions.testing.endpoint import Behaviour, chunks, completion

PROMPT = Prompt((system("Be brief."), user("Speak.")), ModelOptions(temperature=0.5))
KEY = "key-of-nobody-12345"
CALL: Mapping[str, JsonValue] = {
    "id": "c1",
    "type": "function",
    "function": {"name": "look", "arguments": '{"a": 1}'},
}


def ignore(delta: ModelDelta) -> None:
    """For streams whose fragments do not matter."""


@frozen
class Document:
    """A document as LiteLLM gives it: a model of pydantic."""

    members: Mapping[str, JsonValue]

    def model_dump(self) -> Mapping[str, JsonValue]:
        return self.members


@frozen
class FakeLiteLLM:
    """Stands for `litellm.acompletion`."""

    answer: Mapping[str, JsonValue] | BaseException
    pause_s: float = 0
    asked: list[dict[str, Any]] = field(factory=list)  # Any: arguments

    async def __call__(self, **arguments: Any) -> object:  # Any: arguments
        self.asked.append(arguments)
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self._pieces() if arguments.get("stream") else Document(self.answer)

    async def _pieces(self) -> AsyncIterator[object]:
        assert not isinstance(self.answer, BaseException)
        for piece in chunks(self.answer):
            await asyncio.sleep(self.pause_s)
            if piece != "[DONE]" and isinstance(piece, dict):
                yield Document(piece)


def fake(answer: Mapping[str, JsonValue] | BaseException) -> tuple[LiteLLMModel, FakeLiteLLM]:
    ask = FakeLiteLLM(answer)
    return LiteLLMModel("groq/tiny", ask=ask, secrets=(KEY,)), ask


async def failed(model: LiteLLMModel, prompt: Prompt = PROMPT) -> ModelFailure:
    outcome = await model.complete(prompt)
    assert not is_successful(outcome)
    return outcome.failure()


# --- what is asked ----------------------------------------------------------------------------


async def test_the_request_has_openais_form_and_no_retries() -> None:
    model, ask = fake(completion("Hi."))
    answer = (await model.complete(PROMPT)).unwrap()
    assert (answer.text, answer.usage.total_tokens > 0) == ("Hi.", True)
    assert ask.asked == [
        {
            "model": "groq/tiny",
            "messages": [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "Speak."},
            ],
            "temperature": 0.5,
            "timeout": 120.0,
            "num_retries": 0,
            "max_retries": 0,
        }
    ]
    assert model.name == "litellm/groq/tiny"
    assert model.base_url == "litellm:groq"


async def test_how_sure_the_model_was_is_asked_for_and_read_in_openais_form() -> None:
    """A-180."""
    document: dict[str, Any] = completion("7")  # Any: changed below
    document["choices"][0]["logprobs"] = {"content": [{"token": "7", "logprob": -0.5}]}
    form = OutputInstructions[object](schema={"type": "integer"})
    prompt = Prompt(PROMPT.messages, ModelOptions(min_confidence=0.5), form)
    model, ask = fake(document)
    answer = (await model.complete(prompt)).unwrap()
    assert answer.confidence == Confidence(math.exp(-0.5), "$")
    assert ask.asked[0]["logprobs"] is True


async def test_images_that_the_model_does_not_take_are_refused_before_anything_is_sent() -> None:
    image = image_of(b"\x89PNG\r\n\x1a\n" + bytes(30))
    ask = FakeLiteLLM(completion("Hi."))
    blind = LiteLLMModel("groq/tiny", ask=ask, capabilities=ModelCapabilities(takes_images=False))
    shown = Prompt((evolve(user("What?"), attachments=(image,)),))
    assert (await failed(blind, shown)).code == "images-not-taken"
    unloaded = Prompt((evolve(user("What?"), attachments=(evolve(image, data=None),)),))
    assert (await failed(LiteLLMModel("groq/tiny", ask=ask), unloaded)).code == "bad-request"
    assert ask.asked == []


async def test_tools_and_the_form_of_output_are_sent() -> None:
    model, ask = fake(completion(tool_calls=[CALL]))
    form: JsonValue = {"type": "json_object"}
    prompt = evolve(
        PROMPT,
        tools=(ToolSpec(name="look"),),
        output_request=OutputRequest(mode=OutputMode.JSON, body={"response_format": form}),
    )
    (call,) = (await model.complete(prompt)).unwrap().tool_calls
    assert (call.name, json.loads(call.arguments)) == ("look", {"a": 1})
    assert ask.asked[0]["tools"][0]["function"]["name"] == "look"
    assert ask.asked[0]["response_format"] == form


async def test_further_fields_of_a_recipe_are_no_arguments_of_litellm() -> None:
    """They could lead the operator's key to another address."""
    model, ask = fake(completion("Hi."))
    extra: JsonValue = {"api_base": "http://evil.example", "top_k": 5}
    await model.complete(Prompt((user("a"),), ModelOptions(extra={**extra})))  # type: ignore[dict-item]  # a mapping
    assert "api_base" not in ask.asked[0]
    assert ask.asked[0]["extra_body"] == extra


@pytest.mark.parametrize(
    "name", ["tiny", "", "huggingface/https://evil.example/x", "a//b", "a/b c", "a/", "custom/h:/x"]
)
def test_a_name_that_may_be_an_address_is_refused(name: str) -> None:
    with pytest.raises(UsageError) as caught:
        LiteLLMModel(name, ask=FakeLiteLLM(completion("x")))
    assert caught.value.error_code == "bad-model-name"


# --- what comes back --------------------------------------------------------------------------


async def test_a_stream_is_passed_on_and_put_together() -> None:
    model, ask = fake(completion("one two three"))
    pieces: list[ModelDelta] = []
    answer = (await model.complete(PROMPT, pieces.append)).unwrap()
    assert answer.text == "one two three"
    assert "".join(each.content or "" for each in pieces) == "one two three"
    assert ask.asked[0]["stream"] is True
    assert answer.usage.total_tokens > 0


async def test_a_key_in_an_answer_a_stream_or_an_error_is_masked() -> None:
    model, _ = fake(completion(f"It is {KEY}."))
    pieces: list[ModelDelta] = []
    assert (await model.complete(PROMPT)).unwrap().text == "It is ***."
    assert (await model.complete(PROMPT, pieces.append)).unwrap().text == "It is ***."
    assert KEY not in "".join(each.content or "" for each in pieces)
    refused, _ = fake(RaisedError(f"Wrong key {KEY}", 401))
    assert KEY not in (await failed(refused)).message
    environ = {"GROQ_API_KEY": KEY, "HF_TOKEN": "t", "HOME": "/root"}
    assert secrets_of(environ) == (KEY, "t")


class RaisedError(Exception):
    """As LiteLLM's exceptions: with a status, and the provider's answer."""

    def __init__(self, text: str, status: int | None = None, wait: str | None = None) -> None:
        super().__init__(text)
        self.status_code = status
        self.response = type("Response", (), {"headers": {"Retry-After": wait} if wait else {}})()


class ContextWindowExceededError(RaisedError):
    pass


class ContentPolicyViolationError(RaisedError):
    pass


class Timeout(RaisedError):  # LiteLLM's name
    pass


class APIConnectionError(RaisedError):
    pass


@pytest.mark.parametrize(
    ("error", "code", "is_retryable"),
    [
        (RaisedError("No such key.", 401), "auth-rejected", False),
        (RaisedError("Slow down.", 429), "rate-limited", True),
        (RaisedError("Broken.", 500), "model-unavailable", True),
        (RaisedError("No such model.", 404), "model-not-found", False),
        (RaisedError("Do not know response_format.", 400), "bad-request", False),
        (RaisedError("InternalServerError: Connection error.", 500), "model-unreachable", True),
        (RaisedError("GroqException - Cannot connect to host x", 500), "model-unreachable", True),
        (APIConnectionError("refused", 500), "model-unreachable", True),
        (ContextWindowExceededError("Long.", 400), "context-exceeded", False),
        (ContentPolicyViolationError("Bad.", 400), "content-filtered", False),
        (Timeout("Late.", 408), "model-timeout", True),
        (KeyError("own"), "model-raised", False),
    ],
)
async def test_what_litellm_raises_is_a_failure_of_ours(
    error: Exception, code: str, *, is_retryable: bool
) -> None:
    model, _ = fake(error)
    failure = await failed(model)
    assert (failure.code, failure.is_retryable) == (code, is_retryable)


async def test_the_time_that_a_server_asks_for_is_kept() -> None:
    model, _ = fake(RaisedError("Slow down.", 429, wait="7"))
    assert (await failed(model)).retry_after_s == 7.0


async def test_a_cancelled_call_is_cancelled() -> None:
    model, _ = fake(asyncio.CancelledError())
    with pytest.raises(asyncio.CancelledError):
        await model.complete(PROMPT)


async def test_a_silent_or_endless_answer_is_ended() -> None:
    slow = FakeLiteLLM(completion("one two three"), pause_s=30)
    model = LiteLLMModel("groq/tiny", ask=slow)
    silent = evolve(PROMPT, options=ModelOptions(idle_timeout_s=0.01))
    outcome = await model.complete(silent, ignore)
    assert "idle_timeout_s" in outcome.failure().message
    late = evolve(PROMPT, options=ModelOptions(timeout_s=0.01))
    outcome = await model.complete(late, ignore)
    assert "Raise timeout_s" in outcome.failure().message


# --- which one is asked -----------------------------------------------------------------------


def models(settings: Settings | None = None) -> Models:
    return Models(settings or Settings(), Extensions(), environ={}, folder_of=lambda _: Path())


def test_the_package_is_asked_unless_an_address_is_configured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: object())
    recipe = AgentRecipe(id="r", steps=[])
    own = models().source(recipe)(ModelConfig(name="litellm/groq/tiny"))
    assert isinstance(own, LiteLLMModel)
    proxy = ProviderSettings(base_url="http://127.0.0.1:4000/v1")
    behind = models(Settings(providers={"litellm": proxy})).source(recipe)
    assert behind(ModelConfig(name="litellm/groq/tiny")).base_url == "http://127.0.0.1:4000/v1"


def test_without_the_package_the_command_to_install_it_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(EnvironmentRefusedError, match=r"minions-engine\[litellm\]") as caught:
        models().source(AgentRecipe(id="r", steps=[]))(ModelConfig(name="litellm/groq/tiny"))
    assert caught.value.error_code == "missing-extra"


def test_a_recipe_is_checked_without_the_package() -> None:
    check = model_check(Settings(), {}, lambda _: Path())
    check(ModelConfig(name="litellm/groq/tiny"), "r.yaml")
    with pytest.raises(UsageError, match="litellm/PROVIDER/MODEL"):
        check(ModelConfig(name="litellm/tiny"), "r.yaml")
    with pytest.raises(UsageError, match="api_key_env"):
        check(ModelConfig(name="litellm/groq/tiny", api_key_env="MY_KEY"), "r.yaml")


# --- the package itself -----------------------------------------------------------------------

needs_litellm = pytest.mark.skipif(
    importlib.util.find_spec("litellm") is None,
    reason="needs the extra litellm: pip install 'minions-engine[litellm]'",
)


async def asked_of(behaviour: Behaviour, *, stream: bool) -> tuple[object, int]:
    """The text or the code of the failure, and the number of requests."""
    async with ChatEndpoint(default=behaviour) as server:
        model = LiteLLMModel("openai/tiny", base_url=server.base_url, api_key=KEY)
        outcome = await model.complete(PROMPT, ignore if stream else None)
        result = outcome.unwrap().text if is_successful(outcome) else outcome.failure().code
        return result, len(server.requests)


@needs_litellm
@pytest.mark.filterwarnings("ignore")  # LiteLLM's own, which it hides where nobody asks for them
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("behaviour", "result"),
    [
        (endpoint.answer("one two"), "one two"),
        (endpoint.answer("half", finish_reason="length"), "output-truncated"),
        (endpoint.status(401, b'{"error": {"message": "no such key"}}'), "auth-rejected"),
        (endpoint.status(429), "rate-limited"),
        (endpoint.status(500), "model-unavailable"),
        (endpoint.drop(), "model-unreachable"),
    ],
)
async def test_a_server_is_asked_once_through_litellm(
    behaviour: Behaviour, result: str, *, stream: bool
) -> None:
    assert await asked_of(behaviour, stream=stream) == (result, 1)


@needs_litellm
@pytest.mark.filterwarnings("ignore")  # LiteLLM's own, which it hides where nobody asks for them
async def test_tools_come_back_through_litellm() -> None:
    for sink in (None, ignore):
        async with ChatEndpoint(default=endpoint.answer(tool_calls=[CALL])) as server:
            model = LiteLLMModel("openai/tiny", base_url=server.base_url, api_key=KEY)
            prompt = evolve(PROMPT, tools=(ToolSpec(name="look"),))
            answer = (await model.complete(prompt, sink)).unwrap()
            assert [each.name for each in answer.tool_calls] == ["look"]
            assert json.loads(answer.tool_calls[0].arguments) == {"a": 1}
            assert answer.usage.total_tokens > 0


@needs_litellm
@pytest.mark.filterwarnings("ignore")  # LiteLLM's own, which it hides where nobody asks for them
def test_litellm_is_imported_late_asks_nobody_and_reads_no_env_file(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("FROM_ENV_FILE=1\n")
    code = (
        "import asyncio, os, socket, sys\n"
        "from minions.adapters.models.litellm_model import LiteLLMModel\n"
        "model = LiteLLMModel('openai/tiny')\n"
        "assert 'litellm' not in sys.modules\n"
        "def refuse(*arguments): raise SystemExit(f'asked {arguments}')\n"
        "socket.getaddrinfo = refuse\n"
        "socket.socket.connect = refuse\n"
        "asyncio.run(model.warm_up())\n"
        "assert 'litellm' in sys.modules\n"
        "assert 'FROM_ENV_FILE' not in os.environ\n"
        "print('quiet')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "quiet\n", done.stderr


def test_capabilities_are_those_of_a_chat_server() -> None:
    assert LiteLLMModel("a/b", ask=FakeLiteLLM(completion("x"))).capabilities == ModelCapabilities()

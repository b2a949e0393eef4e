"""`ScriptedModel`: a model with prepared answers, from Python or from a YAML file.

It serves tests, examples and recipes that must run offline, without network and randomness. The
form of the file is checked in `script_file`.
"""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, Self

from attrs import evolve
from returns.result import Failure, Result, Success

from minions.adapters.models.script_items import Answer, AnswerFunction, GoodAnswer, ScriptItem
from minions.contracts.calls import (
    ChatModel,
    DeltaSink,
    ModelCallResponse,
    ModelCapabilities,
    ModelDelta,
    ModelFailure,
    Prompt,
)
from minions.contracts.messages import Message, TokenUsage, ToolCallRequest, assistant
from minions.data.errors import UNREACHABLE, UsageError
from minions.data.json_values import JsonValue, dumps

_AT_ONCE: Final = 100
"""Words that are shown at once."""


def load_script(path: Path | str) -> tuple[ScriptItem, ...]:
    """The items of a script file, in file order.

    Raises:
        UsageError: `bad-script`: the file cannot be read, or has mistakes, which the message lists.
    """
    from minions.adapters.models.script_file import read_script

    return read_script(Path(path))


class ScriptedModel(ChatModel):
    """Answers in the order given, or by a function; records every prompt.

    Example:
        `ScriptedModel([tool_request("weather", {"city": "Bern"}), "It rains in Bern."])`

    Raises:
        UsageError: `answers` is a single text or mapping instead of a list.
    """

    def __init__(
        self, answers: Iterable[Answer] | AnswerFunction, *, name: str = "scripted/answers"
    ) -> None:
        if isinstance(answers, str | Mapping):
            raise UsageError(
                f"ScriptedModel takes a list of answers or a function, not one "
                f"{type(answers).__name__}. Write [{answers!r:.60}].",
                code="bad-script",
            )
        self._answer = answers if callable(answers) else _InTurn(answers)
        self._name = name
        self._used_ids: set[str] = set()
        self._last_id = 0
        self.prompts: list[Prompt] = []
        """Every prompt received, oldest first."""

    @classmethod
    def from_yaml(cls, path: Path | str) -> Self:
        """The model of a script file, named `scripted/<file name>`.

        Raises:
            UsageError: `bad-script`; the message lists all mistakes in the file.
        """
        return cls(_ByMatch(load_script(path)), name=f"scripted/{Path(path).name}")

    @classmethod
    def from_answers(cls, answers: Sequence[JsonValue], name: str = "scripted/answers") -> Self:
        """The model of a list of answers in the form of a script file.

        Raises:
            UsageError: `bad-script`; the message lists all mistakes.
        """
        from minions.adapters.models.script_file import script_items

        return cls(_ByMatch(script_items(answers)), name=name)

    def restarted(self) -> ScriptedModel:
        """A model with the same script, of which no answer is used; a model whose answers are a
        function or an iterable is itself, as there is no start to return to.
        """
        if not isinstance(self._answer, _ByMatch):
            return self
        return ScriptedModel(_ByMatch(self._answer.script), name=self._name)

    @property
    def name(self) -> str:
        return self._name

    @property
    def answers_left(self) -> int:
        """Number of prepared answers that were not used yet; 0 for a function."""
        return self._answer.left if isinstance(self._answer, _ByMatch) else 0

    @property
    def capabilities(self) -> ModelCapabilities:
        """No constrained answers: a script cannot follow a schema."""
        return ModelCapabilities(output_mode=None)

    async def complete(
        self, prompt: Prompt, on_delta: DeltaSink | None = None
    ) -> Result[ModelCallResponse, ModelFailure]:
        """The next answer, word by word if `on_delta` is given."""
        self.prompts.append(prompt)
        try:
            answer = self._answer(prompt)
            if inspect.isawaitable(answer):
                answer = await answer
        except Exception as error:  # noqa: BLE001  # a function may raise what a script may hold
            answer = error
        if isinstance(answer, BaseException):
            answer = _failure_of(answer)
        if isinstance(answer, ModelFailure):
            return Failure(answer)
        try:
            response = self._response(prompt, answer)
        except (TypeError, ValueError, UsageError) as error:
            return Failure(_failure_of(error))
        if on_delta is not None:
            for number, delta in enumerate(_deltas(response), 1):
                on_delta(delta)
                if number % _AT_ONCE == 0:
                    await asyncio.sleep(0)  # as while bytes are waited for
        return Success(response)

    def recall(self, prompt: Prompt) -> None:
        """Removes the answer from the script, because a recorded one was replayed in its place."""
        if isinstance(self._answer, _InTurn | _ByMatch):
            self._answer(prompt)

    def _response(self, prompt: Prompt, answer: GoodAnswer) -> ModelCallResponse:
        given = answer if isinstance(answer, ModelCallResponse) else None
        response = given or ModelCallResponse(message=_message(answer))
        self._used_ids.update(call.id for said in prompt.messages for call in said.tool_calls)
        calls = tuple(self._with_id(call) for call in response.tool_calls)
        message = evolve(response.message, tool_calls=calls)
        provider, _, model_name = self._name.partition("/")
        return evolve(
            response,
            message=message,
            usage=response.usage if response.usage != TokenUsage() else _estimate(prompt, message),
            finish_reason=response.finish_reason or ("tool_calls" if calls else "stop"),
            model_name=response.model_name or model_name or provider,
            provider=response.provider or provider,
        )

    def _with_id(self, call: ToolCallRequest) -> ToolCallRequest:
        while not call.id:
            self._last_id += 1
            if (fresh := f"call_{self._last_id}") not in self._used_ids:
                call = evolve(call, id=fresh)
        self._used_ids.add(call.id)
        return call


# --- where answers come from -------------------------------------------------------------------


class _InTurn:
    """Answers in order; the iterable may be endless."""

    def __init__(self, answers: Iterable[Answer]) -> None:
        self._answers: Iterator[Answer] = iter(answers)
        self._count = 0

    def __call__(self, prompt: Prompt) -> Answer:
        for answer in self._answers:
            self._count += 1
            return answer
        return _exhaustion_failure(f"it had {_count_answers(self._count)}, and all are used")


class _ByMatch:
    """For each prompt the first unused item that matches it."""

    def __init__(self, items: Sequence[ScriptItem]) -> None:
        self.script = tuple(items)
        self._items = list(items)
        self._count = len(items)

    @property
    def left(self) -> int:
        return len(self._items)

    def __call__(self, prompt: Prompt) -> Answer:
        text = "\n".join(message.content or "" for message in prompt.messages)
        for position, item in enumerate(self._items):
            if item.match is None or item.match in text:
                return self._items.pop(position).answer
        counted = _count_answers(self._count)
        if not self._items:
            return _exhaustion_failure(f"it had {counted}, and all are used")
        waiting = ", ".join(f"{item.match!r:.60}" for item in self._items[:3])
        return _exhaustion_failure(
            f"it had {counted}; {len(self._items)} are left, for prompts that hold {waiting}"
        )


def _count_answers(count: int) -> str:
    return f"{count} answer{'' if count == 1 else 's'}"


def _exhaustion_failure(why: str) -> ModelFailure:
    return ModelFailure(
        code="script-exhausted",
        message=f"The script has no answer for this prompt: {why}. Add one, or ask less often.",
        suggestions=("add an answer to the script",),
    )


def _failure_of(error: BaseException) -> ModelFailure:
    if not isinstance(error, Exception):
        raise error
    text = str(error) or type(error).__name__
    if isinstance(error, TimeoutError):
        return ModelFailure(code="model-timeout", message=text, is_retryable=True)
    if isinstance(error, ConnectionError):
        return ModelFailure(code=UNREACHABLE, message=text, is_retryable=True)
    return ModelFailure(code="scripted-error", message=f"{type(error).__name__}: {text}")


# --- what an answer becomes --------------------------------------------------------------------


def _message(answer: GoodAnswer) -> Message:
    match answer:
        case ModelCallResponse():
            return answer.message
        case Message():
            return answer
        case str():
            return assistant(answer)
        case ToolCallRequest():
            return assistant(tool_calls=(answer,))
        case Mapping():
            return assistant(dumps(answer))
        case Sequence():
            calls = [call for call in answer if isinstance(call, ToolCallRequest)]
            if len(calls) == len(answer):
                return assistant(tool_calls=calls)
    raise UsageError(
        f"A scripted answer is {answer!r:.80}. Expected text, a message, a response, a failure, "
        "an exception, a mapping, or tool calls made with tool_request().",
        code="bad-script",
    )


_CHARACTERS_PER_TOKEN: Final = 4


def _estimate(prompt: Prompt, answer: Message) -> TokenUsage:
    """Token counts that are the same in every run."""
    extra = prompt.output_request.messages if prompt.output_request is not None else ()
    asked = sum(_characters(message) for message in (*prompt.messages, *extra))
    return TokenUsage(
        input_tokens=max(1, asked // _CHARACTERS_PER_TOKEN),
        output_tokens=max(1, _characters(answer) // _CHARACTERS_PER_TOKEN),
    )


def _characters(message: Message) -> int:
    calls = sum(len(call.name) + len(call.arguments) for call in message.tool_calls)
    return len(message.content or "") + calls


def _deltas(response: ModelCallResponse) -> Iterator[ModelDelta]:
    """The text word by word, each tool call in two fragments."""
    for word in re.finditer(r"\S+\s*|\A\s+", response.text or ""):
        yield ModelDelta(content=word[0])
    for index, call in enumerate(response.tool_calls):
        half = len(call.arguments) // 2
        first: JsonValue = {"name": call.name, "arguments": call.arguments[:half]}
        begin: dict[str, JsonValue] = {"index": index, "id": call.id, "type": "function"}
        yield ModelDelta(tool_call={**begin, "function": first})
        yield ModelDelta(
            tool_call={"index": index, "function": {"arguments": call.arguments[half:]}}
        )

"""A prompt as the body of an OpenAI-compatible chat-completions request. Pure; nothing is sent."""

from __future__ import annotations

import json
import operator
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Final, Generic, TypeVar, cast

from attrs import define, field
from msgspec.json import Encoder

from minions.contracts.calls import ModelOptions, OutputRequest, Prompt
from minions.contracts.json_values import JsonValue
from minions.contracts.messages import Message, MessageRole, ToolCallRequest
from minions.contracts.tools import ToolSpec

__all__ = ["RequestWriter", "encode_body", "request_body"]

T = TypeVar("T")
Members = Mapping[bytes, bytes]
"""Keys and values of a JSON object, each written already."""


class RequestWriter:
    """Writes the requests to one model.

    All system messages become one leading message and neighbouring user messages one:
    the chat templates of small local models fail otherwise.

    The prompts of a conversation begin alike and messages never change, so each message is
    written once, and a turn costs what is new in it.
    """

    def __init__(self, *, provider: str, model: str, most_conversations: int = 256) -> None:
        """Write nothing yet.

        Args:
            most_conversations: Of which what was written is kept: as many as calls at a time.
        """
        self._most_conversations = most_conversations
        self._model = encode_body(model)
        self._options: _Recent[ModelOptions] = _Recent(
            lambda options: _members(_option_dict(options, provider))
        )
        self._tools = _Recent(_tool_members, _are_same)
        self._requests: _Recent[OutputRequest] = _Recent(lambda request: _members(request.body))
        self._kept: dict[int, _WrittenPrompt] = {}

    def write(self, prompt: Prompt, *, stream: bool) -> bytes:
        """The body, UTF-8 JSON.

        Raises:
            TypeError: Something in it is no JSON.
            ValueError: NaN, an infinity, or a circle.
        """
        request = prompt.output_request
        extra = request.messages if request is not None else ()
        body: dict[bytes, bytes] = {
            b'"model"': self._model,
            b'"messages"': self._conversation(prompt.messages, extra).written(),
            **self._options.of(prompt.options),
        }
        if prompt.tools:
            body.update(self._tools.of(prompt.tools))
        if stream:
            body.update(_STREAM)
        if request is not None:
            body.update(self._requests.of(request))
        members = chain.from_iterable((b",", key, b":", value) for key, value in body.items())
        next(members)  # no comma before the first
        return b"".join((b"{", *members, b"}"))

    def forget(self) -> None:
        """Give back what is kept for conversations to come."""
        self._kept.clear()

    def _conversation(self, messages: tuple[Message, ...], extra: Sequence[Message]) -> _Messages:
        written = self._written(messages)
        if not extra:
            return written
        own = written.copy()
        own.extend(extra)
        return own

    def _written(self, messages: tuple[Message, ...]) -> _Messages:
        """These messages, from what was written of the longest prompt that they begin with."""
        written = _Messages()
        if not messages:
            return written
        end = self._known_end(messages)
        if end == len(messages):
            return self._kept[id(messages[-1])].written
        if end:  # taken out: half extended it would be wrong for everyone
            written = self._kept.pop(id(messages[end - 1])).written
        written.extend(messages[end:])
        self._keep(messages, written)
        return written

    def _known_end(self, messages: tuple[Message, ...]) -> int:
        """How many of them, from the first on, are written; 0: none."""
        for end in range(len(messages), 0, -1):
            kept = self._kept.get(id(messages[end - 1]))
            if kept is not None and kept.is_of(messages, end):
                return end
        return 0

    def _keep(self, messages: tuple[Message, ...], written: _Messages) -> None:
        everything, key = self._kept, id(messages[-1])
        # Gone with the message, before another object can get the same id.
        last = weakref.ref(messages[-1], lambda _: everything.pop(key, None))
        if len(everything) >= self._most_conversations:
            del everything[next(iter(everything))]
        everything[key] = _WrittenPrompt(earlier=messages[:-1], last=last, written=written)


_STREAM: Final[Members] = {b'"stream"': b"true", b'"stream_options"': b'{"include_usage":true}'}


def request_body(
    prompt: Prompt, *, provider: str, model: str, stream: bool
) -> dict[str, JsonValue]:
    """The body for one request, as data."""
    written = RequestWriter(provider=provider, model=model).write(prompt, stream=stream)
    return cast("dict[str, JsonValue]", json.loads(written))


def encode_body(body: JsonValue) -> bytes:
    """UTF-8 JSON; half characters, which UTF-8 cannot say, become `?`.

    Raises:
        TypeError: Something in it is no JSON.
        ValueError: NaN, an infinity, or a circle.
    """
    return _ENCODER.encode(body).encode("utf-8", errors="replace")


def _plain(value: object) -> object:
    """Mappings and sequences that are no dict and no list."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence):
        return list(value)
    raise TypeError(f"{type(value).__module__}.{type(value).__qualname__} is not JSON")


_ENCODER: Final = json.JSONEncoder(
    ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=_plain
)
_TEXT_ENCODER: Final = Encoder()


# --- what goes with the messages -----------------------------------------------------------------


class _Recent(Generic[T]):
    """What was written of the last few values: the same few objects come with every call."""

    def __init__(
        self, write: Callable[[T], Members], is_same: Callable[[T, T], bool] = operator.is_
    ) -> None:
        self._write = write
        self._is_same = is_same
        self._known: list[tuple[T, Members]] = []

    def of(self, value: T) -> Members:
        """The same value is written once. By identity: to `==`, 1 is True."""
        for known, members in self._known:
            if self._is_same(known, value):
                return members
        members = self._write(value)
        self._known = [(value, members), *self._known[: _MOST_RECENT - 1]]
        return members


_MOST_RECENT: Final = 16


def _members(body: Mapping[str, JsonValue]) -> Members:
    return {encode_body(key): encode_body(value) for key, value in body.items()}


def _tool_members(tools: tuple[ToolSpec, ...]) -> Members:
    return _members({"tools": [tool.to_message_dict() for tool in tools]})


def _are_same(left: Sequence[object], right: Sequence[object]) -> bool:
    return len(left) == len(right) and all(map(operator.is_, left, right))


def _option_dict(options: ModelOptions, provider: str) -> dict[str, JsonValue]:
    # OpenAI's reasoning models refuse `max_tokens`; most other servers know only that.
    most_tokens = "max_completion_tokens" if provider == "openai" else "max_tokens"
    given: dict[str, JsonValue] = {
        "temperature": options.temperature,
        "top_p": options.top_p,
        most_tokens: options.max_output_tokens,
    }
    return {key: value for key, value in given.items() if value is not None}


# --- the messages ------------------------------------------------------------------------------


@define
class _Messages:
    """The messages of a prompt as they are sent; more can be added behind."""

    _systems: list[str] = field(factory=list)
    _others: list[bytes] = field(factory=list)
    """Written for good."""
    _last: dict[str, JsonValue] | None = None
    """A user's message at the end, whose text may go on."""

    def copy(self) -> _Messages:
        """Another one, to be extended on its own."""
        return _Messages(list(self._systems), list(self._others), self._last)

    def extend(self, messages: Iterable[Message]) -> None:
        """Add messages in their order."""
        for message in messages:
            if message.role is MessageRole.SYSTEM:
                self._systems += [message.content] if message.content else []
            else:
                self._add(_message_dict(message))

    def written(self) -> bytes:
        """A JSON array."""
        parts = list(self._others)
        if self._systems:
            leading: JsonValue = {"role": "system", "content": "\n\n".join(self._systems)}
            parts.insert(0, _encode_texts(leading))
        if self._last is not None:
            parts.append(_encode_texts(self._last))
        if not parts:
            return b"[]"
        parts[0] = b"[" + parts[0]  # here and not around the whole, which may be megabytes
        parts[-1] += b"]"
        return b",".join(parts)

    def _add(self, message: dict[str, JsonValue]) -> None:
        """Add a message, or its text to the last one where the same user goes on speaking."""
        last = self._last
        is_user = message["role"] == MessageRole.USER.value
        if last is not None and is_user and message.get("name") == last.get("name"):
            self._last = {**last, "content": f"{last['content']}\n\n{message['content']}"}
            return
        if last is not None:
            self._others.append(_encode_texts(last))
        self._last = message if is_user else None
        if not is_user:
            self._others.append(_encode_texts(message))


@define
class _WrittenPrompt:
    """What was written of one prompt, for the next of its conversation."""

    earlier: tuple[Message, ...]
    last: Callable[[], Message | None]
    """Weak: with it goes what is kept."""
    written: _Messages

    def is_of(self, messages: tuple[Message, ...], end: int) -> bool:
        """Whether it holds the first `end` of these messages."""
        return (
            self.last() is messages[end - 1]
            and len(self.earlier) == end - 1
            and self.earlier == messages[: end - 1]
        )


def _encode_texts(value: JsonValue) -> bytes:
    """As `encode_body`, for what holds no numbers; faster."""
    try:
        return _TEXT_ENCODER.encode(value)
    except (UnicodeEncodeError, TypeError):
        return encode_body(value)


def _message_dict(message: Message) -> dict[str, JsonValue]:
    result = message.to_message_dict()
    if message.tool_calls:
        result["tool_calls"] = [_sendable(call).to_message_dict() for call in message.tool_calls]
    else:
        result.setdefault("content", "")
    return result


def _sendable(call: ToolCallRequest) -> ToolCallRequest:
    """The call with arguments that are a JSON object.

    Local servers read them back from the history and answer 400 to anything else, which would
    end a conversation in which the model was about to mend its call.
    """
    try:
        is_object = isinstance(cast("object", json.loads(call.arguments)), dict)
    except (ValueError, RecursionError):
        is_object = False
    return call if is_object else ToolCallRequest(id=call.id, name=call.name, arguments="{}")

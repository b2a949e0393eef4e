"""Writes a prompt as the body of an OpenAI-compatible chat-completions
request. Nothing is sent here.
"""

from __future__ import annotations

import base64
import json
import operator
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Generic, TypeVar

from attrs import define, field
from msgspec import MsgspecError, Raw, Struct
from msgspec.json import Decoder, Encoder

from minions.contracts.calls import ModelOptions, Prompt
from minions.contracts.instructions import OutputRequest
from minions.contracts.messages import Attachment, Message, MessageRole, ToolCallRequest
from minions.contracts.tools import ToolSpec
from minions.data.json_values import JsonValue

T = TypeVar("T")
Members = Mapping[bytes, bytes]
"""Keys and values of a JSON object, each already encoded."""


class RequestWriter:
    """Writes the requests to one model.

    All system messages become one leading message and neighbouring user messages one: the chat
    templates of small local models fail otherwise.

    The prompts of a conversation share their start and messages are immutable, so each message is
    encoded once, and a turn costs as much as it adds.
    """

    def __init__(
        self,
        *,
        provider: str,
        model: str,
        takes_strict: bool = True,
        most_conversations: int = 256,
    ) -> None:
        """Prepare the cache of encoded messages.

        Args:
            takes_strict: Whether the server knows `strict` beside a schema.
            most_conversations: Conversations in the cache: as many as there are concurrent calls.
        """
        self._most_conversations = most_conversations
        self._model = encode_body(model)
        self._options: _Recent[ModelOptions] = _Recent(
            lambda options: _members(_option_dict(options, provider))
        )
        self._tools = _Recent(_tool_members, _are_same)
        self._requests: _Recent[OutputRequest] = _Recent(
            lambda request: _members(
                request.body if takes_strict else _without_strict(request.body)
            )
        )
        self._kept: dict[int, _WrittenPrompt] = {}

    def write(
        self,
        prompt: Prompt,
        *,
        stream: bool,
        cache_key: str | None = None,
        keeps_long: bool = False,
    ) -> bytes:
        """The body as UTF-8 JSON.

        Args:
            cache_key: What requests that begin alike have in common; None: none is sent.
            keeps_long: Whether the server is asked to keep the beginning for a day.
        Raises:
            TypeError: A part of the prompt is not representable in JSON.
            ValueError: It holds NaN, an infinity, or a reference cycle.
        """
        request = prompt.output_request
        extra = request.messages if request is not None else ()
        body: dict[bytes, bytes] = {
            **self._options.of(prompt.options),
            b'"model"': self._model,
            b'"messages"': self._conversation(prompt.messages, extra).written(),
        }
        if cache_key is not None:
            body[b'"prompt_cache_key"'] = encode_body(cache_key)
        if keeps_long:
            body.setdefault(b'"prompt_cache_retention"', b'"24h"')
        if prompt.tools:
            body.update(self._tools.of(prompt.tools))
        if stream:
            body.update(_STREAM)
        if prompt.is_judged:
            body[b'"logprobs"'] = b"true"
        if request is not None:
            body.update(self._requests.of(request))
        members = list[bytes]()
        for key, value in body.items():
            members += (b",", key, b":", value)
        members[0] = b"{"  # in place of the first comma
        members.append(b"}")
        return b"".join(members)

    def forget(self) -> None:
        """Clear the cache."""
        self._kept.clear()

    def _conversation(self, messages: tuple[Message, ...], extra: Sequence[Message]) -> _Messages:
        written = self._write_messages(messages)
        if not extra:
            return written
        own = written.copy()
        own.extend(extra)
        return own

    def _write_messages(self, messages: tuple[Message, ...]) -> _Messages:
        """The encoded messages, continuing the longest cached prompt that they start with."""
        written = _Messages()
        if not messages:
            return written
        end = self._known_end(messages)
        if end == len(messages):
            return self._kept[id(messages[-1])].written
        if (
            end
        ):  # removed first: an entry that is extended only in part would be wrong for every reader
            written = self._kept.pop(id(messages[end - 1])).written
        written.extend(messages[end:])
        self._keep(messages, written)
        return written

    def _known_end(self, messages: tuple[Message, ...]) -> int:
        """How many of the messages, from the first on, are in the cache; 0: none."""
        for end in range(len(messages), 0, -1):
            kept = self._kept.get(id(messages[end - 1]))
            if kept is not None and kept.is_of(messages, end):
                return end
        return 0

    def _keep(self, messages: tuple[Message, ...], written: _Messages) -> None:
        everything, key = self._kept, id(messages[-1])
        # Removed together with the message, before another object can have its id.
        last = weakref.ref(messages[-1], lambda _: everything.pop(key, None))
        if len(everything) >= self._most_conversations:
            del everything[next(iter(everything))]
        everything[key] = _WrittenPrompt(earlier=messages[:-1], last=last, written=written)


_STREAM: Final[Members] = {b'"stream"': b"true", b'"stream_options"': b'{"include_usage":true}'}


def request_body(
    prompt: Prompt, *, provider: str, model: str, stream: bool, takes_strict: bool = True
) -> dict[str, JsonValue]:
    """The body of one request as data."""
    writer = RequestWriter(provider=provider, model=model, takes_strict=takes_strict)
    written = writer.write(prompt, stream=stream)
    body: dict[str, JsonValue] = json.loads(written)
    return body


def encode_body(body: JsonValue) -> bytes:
    """UTF-8 JSON; unpaired surrogates, which UTF-8 cannot encode, become `?`.

    Raises:
        TypeError: A part is not representable in JSON.
        ValueError: It holds NaN, an infinity, or a reference cycle.
    """
    return _ENCODER.encode(body).encode("utf-8", errors="replace")


def _plain(value: object) -> object:
    """Mappings and sequences of other classes as dict and list, for the encoder."""
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
    """A cache of encodings of the most recent values: the same few objects come with every call."""

    def __init__(
        self, write: Callable[[T], Members], is_same: Callable[[T, T], bool] = operator.is_
    ) -> None:
        self._write = write
        self._is_same = is_same
        self._known: list[tuple[T, Members]] = []

    def of(self, value: T) -> Members:
        """The encoding of the value, made once. Compared by identity, because 1 == True."""
        for known, members in self._known:
            if self._is_same(known, value):
                return members
        members = self._write(value)
        self._known = [(value, members), *self._known[: _MOST_RECENT - 1]]
        return members


_MOST_RECENT: Final = 16


def _members(body: Mapping[str, JsonValue]) -> Members:
    return {encode_body(key): encode_body(value) for key, value in body.items()}


def _without_strict(body: Mapping[str, JsonValue]) -> Mapping[str, JsonValue]:
    """The body without `strict` beside the schema of an answer or of an answer's tool."""
    sent = dict(body)
    if isinstance(form := body.get("response_format"), Mapping):
        sent["response_format"] = {name: _not_strict(each) for name, each in form.items()}
    if isinstance(tools := body.get("tools"), list | tuple):
        sent["tools"] = [
            {name: _not_strict(each) for name, each in tool.items()}
            for tool in tools
            if isinstance(tool, Mapping)
        ]
    return sent


def _not_strict(part: JsonValue) -> JsonValue:
    if not isinstance(part, Mapping):
        return part
    return {name: each for name, each in part.items() if name != "strict"}


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
        "seed": options.seed,
        "reasoning_effort": options.reasoning_effort,
        "stop": list(options.stop) or None,
    }
    sent = {key: value for key, value in given.items() if value is not None}
    return {**options.extra, **sent}  # a field of ours is never replaced


# --- the messages ------------------------------------------------------------------------------


_USER: Final = MessageRole.USER.value


@define(eq=False, repr=False)
class _Messages:
    """The messages of a prompt in encoded form; more can be appended."""

    _systems: list[str] = field(factory=list)
    _others: list[bytes] = field(factory=list)
    """Encoded messages that will not change any more."""
    _last: dict[str, JsonValue] | None = None
    """A user message at the end, to whose text the next one may be appended."""

    def copy(self) -> _Messages:
        """An independent copy, to be extended."""
        return _Messages(list(self._systems), list(self._others), self._last)

    def extend(self, messages: Iterable[Message]) -> None:
        """Append messages."""
        for message in messages:
            if message.role is MessageRole.SYSTEM:
                self._systems += [message.content] if message.content else []
            else:
                self._add(_message_dict(message))

    def written(self) -> bytes:
        """The messages as a JSON array."""
        parts = list(self._others)
        if self._systems:
            leading: JsonValue = {"role": "system", "content": "\n\n".join(self._systems)}
            parts.insert(0, _encode_texts(leading))
        if self._last is not None:
            parts.append(_encode_texts(self._last))
        if not parts:
            return b"[]"
        parts[0] = b"[" + parts[0]  # added to a part: copying the whole may mean megabytes
        parts[-1] += b"]"
        return b",".join(parts)

    def _add(self, message: dict[str, JsonValue]) -> None:
        """Append a message, or its text to the last one if both are the same user's."""
        last = self._last
        is_user = message["role"] == _USER
        if last is not None and is_user and message.get("name") == last.get("name"):
            self._last = {**last, "content": _join_contents(last["content"], message["content"])}
            return
        if last is not None:
            self._others.append(_encode_texts(last))
        self._last = message if is_user else None
        if not is_user:
            self._others.append(_encode_texts(message))


class _WrittenPrompt(Struct):
    """The encoding of one prompt, for the next prompt of its conversation."""

    earlier: tuple[Message, ...]
    last: Callable[[], Message | None]
    """A weak reference to the last message: the cache entry disappears with it."""
    written: _Messages

    def is_of(self, messages: tuple[Message, ...], end: int) -> bool:
        """Whether it is the encoding of the first `end` of these messages."""
        return (
            self.last() is messages[end - 1]
            and len(self.earlier) == end - 1
            and self.earlier == messages[: end - 1]
        )


def _join_contents(one: JsonValue, other: JsonValue) -> JsonValue:
    """Two contents of a user as one: texts stay a text, parts a list of parts."""
    if isinstance(one, list) or isinstance(other, list):
        parts = [each if isinstance(each, list) else [_text_part(each)] for each in (one, other)]
        return [*parts[0], *parts[1]]
    return f"{one}\n\n{other}"


def _text_part(text: JsonValue) -> JsonValue:
    return {"type": "text", "text": text}


def _encode_texts(value: JsonValue) -> bytes:
    """`encode_body` for values without numbers; faster."""
    try:
        return _TEXT_ENCODER.encode(value)
    except (UnicodeEncodeError, TypeError):
        return encode_body(value)


def _message_dict(message: Message) -> dict[str, JsonValue]:
    result = message.to_message_dict()
    if message.is_example or message.is_context:  # some servers refuse a name
        del result["name"]
    if message.tool_calls:
        result["tool_calls"] = [_sendable(call).to_message_dict() for call in message.tool_calls]
    else:
        result.setdefault("content", "")
    if message.attachments:
        images = [_image_part(each) for each in message.attachments]
        texts = [_text_part(message.content)] if message.content else []
        result["content"] = [*images, *texts]
    return result


def _image_part(attachment: Attachment) -> JsonValue:
    encoded = base64.b64encode(attachment.data or b"").decode("ascii")
    url = f"data:{attachment.media_type};base64,{encoded}"
    if attachment.is_image:
        return {"type": "image_url", "image_url": {"url": url}}
    named: JsonValue = {"filename": attachment.name or "file", "file_data": url}
    return {"type": "file", "file": named}


def _sendable(call: ToolCallRequest) -> ToolCallRequest:
    """The call with arguments that are a JSON object.

    Local servers parse them when they are sent back and answer 400 to anything else, which would
    end a conversation in which the model was about to correct its call.
    """
    try:
        _OBJECTS.decode(call.arguments)
    except (MsgspecError, ValueError, RecursionError):
        pass  # or it is JSON in the wider sense of Python, such as `NaN`
    else:
        return call
    try:
        is_object = isinstance(json.loads(call.arguments), dict)
    except (ValueError, RecursionError):
        is_object = False
    return call if is_object else ToolCallRequest(id=call.id, name=call.name, arguments="{}")


_OBJECTS: Final = Decoder(dict[str, Raw])

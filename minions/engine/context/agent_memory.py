"""The memory of an agent step: messages that are copied for free and hashed once."""

from __future__ import annotations

import copy
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Final, Self, cast

from attrs import evolve, field, frozen

from minions.contracts.messages import (
    Message,
    MessageRole,
    border_words,
    message_from_dict,
    message_to_json,
    tool_result,
)
from minions.data.codec import encode
from minions.data.json_values import JsonValue, dumps
from minions.engine.compile.borders import as_text_data, border_of, within

_NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9_-]+")
_USER: Final = MessageRole.USER
_LONGEST_NAME: Final = 64
"""Characters of a message's name; with `_NOT_IN_NAMES` what every provider takes."""


@frozen(kw_only=True)
class AgentMessage(Message):
    """A message with metadata of the application, which no model is shown."""

    metadata: Mapping[str, JsonValue] = field(factory=dict, hash=False)


class _Entry:
    """A message and all before it. Never changed, so that memories share their entries."""

    __slots__ = ("count", "digest", "message", "previous")

    def __init__(self, message: Message, previous: _Entry | None) -> None:
        self.message = message
        self.previous = previous
        self.count: int = 1 if previous is None else previous.count + 1
        self.digest: bytes | None = None
        """The hash of this message and all before it; None: not asked for yet."""


class AgentMemory:
    """The messages that an agent is given, oldest first.

    A copy and a further message cost the same however long the memory is.
    """

    def __init__(self, messages: Iterable[Message | Mapping[str, JsonValue]] = ()) -> None:
        """Begin with these messages; a mapping is one in the provider's form (`role`, `content`).

        Raises:
            ValueError: A mapping is no message.
        """
        self._last: _Entry | None = None
        for message in messages:
            self.add_message(message)

    def __len__(self) -> int:
        return 0 if self._last is None else self._last.count

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)} messages)"

    @property
    def messages(self) -> tuple[Message, ...]:
        """All messages, oldest first."""
        return self.messages_after(0)

    def messages_after(self, count: int) -> tuple[Message, ...]:
        """The messages behind the first `count` ones, oldest first."""
        found: list[Message] = []
        entry = self._last
        while entry is not None and entry.count > count:
            found.append(entry.message)
            entry = entry.previous
        return tuple(reversed(found))

    def copy(self) -> Self:
        """A memory of its own with the same messages; neither sees what the other adds."""
        return copy.copy(self)

    def add_message(self, message: Message | Mapping[str, JsonValue]) -> None:
        """Add a message at the end.

        Raises:
            ValueError: A mapping that is no message in the provider's form.
        """
        if not isinstance(message, Message):
            message = message_from_dict(message)
        self._last = _Entry(message, self._last)

    def add_tool_result(self, result: object) -> None:
        """Add the result of a tool as data between borders, never as a system message.

        Args:
            result: As `execute_tool_calls` returns it, or anything else. With the `tool_call_id` of
                a call that waits for its result it becomes a tool message, else a message of the
                user with the tool's name.
        """
        shown = result if isinstance(result, Mapping) else {"result": result}
        name, call_id = str(shown.get("tool_name") or "tool"), shown.get("tool_call_id")
        text = self._as_data(f"Result of the tool '{name}'", shown)
        if isinstance(call_id, str) and call_id in self._pending_calls():
            self.add_message(tool_result(text, tool_call_id=call_id, name=message_name(name)))
        else:
            role = MessageRole.USER
            self.add_message(Message(role=role, content=text, name=message_name(name)))

    def commit(self, result: Mapping[str, object]) -> None:
        """Add the `memory_updates` of the result of an agent step.

        Raises:
            ValueError: They are no messages.
        """
        updates = cast("Iterable[Mapping[str, JsonValue]]", result.get("memory_updates") or ())
        for message in updates:
            self.add_message(message)

    def get_hash(self) -> str:
        """64 hex digits made of all messages; the same in every process.

        Raises:
            TypeError: The metadata of a message is not JSON.
        """
        new: list[_Entry] = []
        entry = self._last
        while entry is not None and entry.digest is None:
            new.append(entry)
            entry = entry.previous
        digest = (entry.digest if entry is not None else None) or b""
        for each in reversed(new):
            each.digest = digest = hashlib.sha256(digest + _bytes_of(each.message)).digest()
        return hashlib.sha256(digest).hexdigest()

    def as_text_data(self) -> str:
        """All messages as one text of data between borders; empty without messages."""
        shown = [message.to_message_dict() for message in self.messages]
        return self._border_text("Messages before this request", dumps(shown)) if shown else ""

    def _as_data(self, title: str, shown: Mapping[str, object]) -> str:
        if shown.get("error") is not None:
            return self._border_text(f"{title} (it failed)", as_text_data(_as_json(shown["error"])))
        return self._border_text(title, as_text_data(_as_json(shown.get("result", dict(shown)))))

    def _border_text(self, title: str, data: str) -> str:
        border = border_of("agent-memory", [data])
        return f"{title}. {border_words(border).content}\n{within(border, data)}"

    def _pending_calls(self) -> set[str]:
        """Ids of the calls of the last answer that wait for their results."""
        answered: set[str | None] = set()
        entry = self._last
        while entry is not None and entry.message.role is MessageRole.TOOL:
            answered.add(entry.message.tool_call_id)
            entry = entry.previous
        calls = entry.message.tool_calls if entry is not None else ()
        return {call.id for call in calls} - answered


def as_request_text(request: object) -> str:
    """The request as a model reads it: a text as it is, anything else as JSON where it can be."""
    value = _as_json(request)
    return value if isinstance(value, str) else dumps(value)


def attributed_request(sender: object, request: object) -> Message:
    """The request of another agent as a message of the user with the sender's name."""
    text = f"Request from {sender}: {as_request_text(request)}"
    return Message(role=MessageRole.USER, content=text, name=message_name(str(sender)))


def settled(messages: Sequence[Message]) -> Iterator[Message]:
    """The messages without tool calls that have no result, and with results of no call as messages
    of the user: a run must not make calls that others asked for, and no model accepts the rest.
    """
    waiting: set[str | None] = set()
    for index, message in enumerate(messages):
        if message.role is MessageRole.TOOL:
            is_known = message.tool_call_id in waiting
            waiting.discard(message.tool_call_id)
            yield message if is_known else evolve(message, role=_USER, tool_call_id=None)
        elif message.tool_calls:
            results = takewhile(lambda each: each.role is MessageRole.TOOL, messages[index + 1 :])
            waiting = {each.tool_call_id for each in results}
            calls = tuple(call for call in message.tool_calls if call.id in waiting)
            waiting &= {call.id for call in calls}
            if calls or message.content is not None:
                yield evolve(message, tool_calls=calls)
        else:
            waiting = set()
            yield message


def message_name(name: str) -> str:
    """The name with the characters that providers take in names of messages."""
    return _NOT_IN_NAMES.sub("_", name)[:_LONGEST_NAME] or "agent"


def _as_json(value: object) -> JsonValue:
    try:
        return encode(value)
    except (TypeError, ValueError, RecursionError):
        return str(value)


def _bytes_of(message: Message) -> bytes:
    value: dict[str, JsonValue] = message_to_json(message)
    if isinstance(message, AgentMessage) and message.metadata:
        value["metadata"] = encode(message.metadata)
    return json.dumps(value, sort_keys=True).encode()

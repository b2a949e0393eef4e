"""The first prompt of a model step: what it holds, in which order, and its row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from attrs import Factory, evolve, field, frozen

from minions.contracts.border_names import border_in, is_border_words, with_border_words
from minions.contracts.executions import StepExecution
from minions.contracts.instructions import OutputInstructions
from minions.contracts.journal.facts import ConversationStarted
from minions.contracts.messages import Conversation, Message, MessageRole, system, tool_result
from minions.contracts.output import output_words
from minions.contracts.verdicts import CompletionMode
from minions.engine.compile.completion import SIGNAL_WORDS
from minions.engine.context.step_view import StepView

Describe: TypeAlias = Callable[[OutputInstructions[object]], str]
"""The declared output of a step in words, for its model."""


@frozen(kw_only=True)
class Opening:
    """The first prompt of a model step, in three parts: a row holds no history of the session."""

    before: tuple[Message, ...] = ()
    history: tuple[Message, ...] = ()
    """What the session's conversation held when the run began."""
    after: tuple[Message, ...] = ()
    messages: Conversation = field(
        init=False,
        default=Factory(
            lambda self: Conversation.of((*self.before, *self.history, *self.after)),
            takes_self=True,
        ),
    )
    """All, oldest first."""

    @classmethod
    def split(cls, messages: Sequence[Message], history: tuple[Message, ...] = ()) -> Opening:
        """Split messages where the session's history belongs: behind the system texts."""
        first = 0
        for each in messages:
            if each.role is not MessageRole.SYSTEM:
                break
            first += 1
        return cls(before=tuple(messages[:first]), history=history, after=tuple(messages[first:]))

    @property
    def own(self) -> tuple[Message, ...]:
        """What the row of the step's start holds: all but the history."""
        return (*self.before, *self.after)  # a plain tuple, which is stored

    @property
    def history_place(self) -> tuple[int, int] | None:
        """Position of the history among the messages, and its number of messages."""
        return (len(self.before), len(self.history)) if self.history else None

    def said(self, messages: Sequence[Message]) -> tuple[Message, ...]:
        """The part of the step's conversation that a later step continues with."""
        first = len(self.before) + len(self.history)
        return tuple(
            each
            for at, each in enumerate(messages)
            if is_border_words(each) or (at >= first and each.role is not MessageRole.SYSTEM)
        )

    def said_in(self, execution: StepExecution[object]) -> tuple[Message, ...]:
        """The messages after the history, which a later step continues with.

        Of the system texts only those about borders, which the messages hold.
        """
        if not execution.model_calls:
            return ()
        last = execution.model_calls[-1]
        said = [*self.said(last.prompt.messages)]
        if last.response is not None:
            said.append(last.response.message)
        said += [
            tool_result(
                call.response.content if call.response is not None else "",
                tool_call_id=call.request.id,
                name=call.name,
            )
            for call in execution.last_tool_calls
        ]
        return tuple(said)


def opening_of(
    view: StepView,
    own: Sequence[Message],
    output: OutputInstructions[object] | None,
    mode: CompletionMode,
    *,
    said: Sequence[Message] = (),
    describe: Describe = output_words,
) -> Opening:
    """The first prompt, with the session's conversation if the step shares it."""
    live_conversation = view.live_conversation
    history = live_conversation.history if live_conversation is not None else ()
    has_prompt = bool(history) and history[0].role is MessageRole.SYSTEM
    words = opening_messages(
        view, own, output, mode, said=said, has_prompt=has_prompt, describe=describe
    )
    if live_conversation is not None and live_conversation.is_turn and not said:
        spoken = (m.content for m in reversed(history) if m.role is MessageRole.USER)
        query = next(spoken, None)
        asked = [m for m in words if m.role is not MessageRole.GOAL or m.content != query]
        if view.has_older_borders:
            return Opening(before=_as_guidance(asked), history=history)
        return _of_turn(asked, history)
    return Opening.split(words, history)


def _of_turn(asked: Sequence[Message], history: tuple[Message, ...]) -> Opening:
    """The prompt of a turn: what is equal in all turns comes first, so that a server finds it and
    the history in its cache; texts with data within a border follow the history.
    """
    names = dict.fromkeys(border_in([each]) for each in asked if is_border_words(each))
    tags = [f"<{name}" for name in names if name is not None]
    said = [each for each in asked if not is_border_words(each)]
    data = [
        each
        for each in said
        if each.role is not MessageRole.SYSTEM and any(tag in (each.content or "") for tag in tags)
    ]
    before = _as_guidance([each for each in said if each not in data])
    after = [
        evolve(each, role=MessageRole.USER) if each.role is MessageRole.GOAL else each
        for each in data
    ]
    if after:
        for name in names:
            if name is not None:
                after[0] = with_border_words(name, after[0])
    else:
        before = (*before, *(each for each in asked if is_border_words(each)))
    return Opening(before=before, history=history, after=tuple(after))


def _as_guidance(messages: Sequence[Message]) -> tuple[Message, ...]:
    """The goal as a system text: in a conversation the last message is the user's."""
    found = False
    result = []
    for message in messages:
        found = found or message.role is MessageRole.GOAL
        is_words = found and message.role in (MessageRole.GOAL, MessageRole.USER)
        result.append(evolve(message, role=MessageRole.SYSTEM) if is_words else message)
    return tuple(sorted(result, key=lambda message: message.role is not MessageRole.SYSTEM))


def opening_messages(
    view: StepView,
    own: Sequence[Message],
    output: OutputInstructions[object] | None,
    mode: CompletionMode,
    *,
    said: Sequence[Message] = (),
    has_prompt: bool = False,
    describe: Describe = output_words,
) -> tuple[Message, ...]:
    """The first prompt of a model step: system texts first, then aim and messages, oldest first.

    The agent's own prompt, goal and messages each stand in it once.

    Args:
        said: In the steps before, where the conversation is one; it begins with the agent's own.
        has_prompt: Whether the conversation begins with a stored system prompt: then none is added.
        describe: The declared output in words.
    """
    agent = view.context.agent
    agents = agent.recipe.messages.messages
    head = [system(agent.system_prompt)] if agent.system_prompt else []
    body = [Message(role=MessageRole.GOAL, content=agent.goal)] if agent.goal and not said else []
    borders = [message for message in said if is_border_words(message)] if said else []
    for message in agents:
        if message.role is MessageRole.SYSTEM:
            head.append(message)
        elif not said:
            body.append(message)
    if said:
        body += [message for message in said if message.role is not MessageRole.SYSTEM]
    for message in own:
        (head if message.role is MessageRole.SYSTEM else body).append(message)
    if any(is_border_words(message) for message in head) or borders:
        borders += [message for message in head if is_border_words(message)]
        head = [message for message in head if message not in borders]
    if has_prompt:
        head = []
    if output is not None:
        head.append(system(describe(output)))
    if mode is CompletionMode.SIGNAL:
        head.append(system(SIGNAL_WORDS))
    head += dict.fromkeys(borders)  # last: they differ from run to run, and end a cached start
    return (*head, *body)


async def open_conversation(view: StepView, key: str, opening: Sequence[Message]) -> None:
    """Record the first prompt and put it into memory."""
    begun = ConversationStarted(
        step_id=view.step_id,
        conversation=view.conversation_id,
        messages=tuple(opening),
    )
    await view.context.scope.recorder.record(key, begun)
    view.memory.save_prompt(view.conversation_id, opening)

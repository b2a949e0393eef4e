"""What a step does when it is executed: it asks a model, or it runs code.

Here is what both share, from the opening prompt to the ending and the outcome that is recorded.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final, Required, TypeAlias, TypedDict, Unpack

from attrs import Factory, evolve, field, frozen
from msgspec import Struct, UnsetType

from minions.contracts.calls import ModelOptions
from minions.contracts.context import ModelCallExecutorFactory, ToolCallExecutorFactory
from minions.contracts.executions import Completion, CompletionMode, StepExecution, StepStatus
from minions.contracts.instructions import OutputInstructions
from minions.contracts.journal.child_run_links import WAITS_FOR_RUNS
from minions.contracts.journal.facts import (
    ConversationStarted,
    StepFailed,
    StepFinished,
    StepInterrupted,
    StepSkipped,
)
from minions.contracts.journal.journal import JournalEntry
from minions.contracts.messages import (
    Conversation,
    Message,
    MessageRole,
    border_in,
    is_border_words,
    system,
    tool_result,
    user,
    with_border_words,
)
from minions.contracts.output import output_words
from minions.contracts.steps import Step
from minions.contracts.tools import Toolbox
from minions.data.errors import LIMIT_REACHED, NEEDS_DECISION, FailureInfo
from minions.data.failure_categories import RESOURCE_LIMIT
from minions.data.field_repr import FieldsRepr
from minions.data.json_values import JsonValue
from minions.engine.calls.trace import StepTrace
from minions.engine.compile.completion_links import SIGNAL_WORDS
from minions.engine.compile.recipe_step import Fingerprint
from minions.engine.context.agent_context import AgentContext
from minions.engine.context.step_view import StepView
from minions.engine.history.conversation import LiveConversation

if TYPE_CHECKING:
    from minions.engine.history.step_rows import StepRows


Describe: TypeAlias = Callable[[OutputInstructions[object]], str]
"""The declared output of a step in words, for its model."""


@frozen(kw_only=True)
class Opening(FieldsRepr):
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
        """Split messages where the session's history belongs: behind the system texts and what
        several steps read.
        """
        first = 0
        for each in messages:
            if each.role is not MessageRole.SYSTEM and not each.is_context:
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
    shares: bool = False,
    describe: Describe = output_words,
) -> Opening:
    """The first prompt, with the session's conversation if the step shares it."""
    live_conversation = view.live_conversation
    history = live_conversation.history if live_conversation is not None else ()
    has_prompt = bool(history) and history[0].role is MessageRole.SYSTEM
    words = opening_messages(
        view,
        own,
        output,
        mode,
        said=said,
        has_prompt=has_prompt,
        shares=shares,
        describe=describe,
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
        if each.role is not MessageRole.SYSTEM
        and not each.is_context
        and any(tag in (each.content or "") for tag in tags)
    ]
    before = _as_guidance([each for each in said if each not in data])
    context = "".join(each.content or "" for each in said if each.is_context)
    if any(tag in context for tag in tags):  # its data come before any other
        words = [each for each in asked if is_border_words(each)]
        first = sum(each.role is MessageRole.SYSTEM for each in before)
        before = (*before[:first], *words, *before[first:])
        names = {}
    after = [
        evolve(each, role=MessageRole.USER) if each.role is MessageRole.GOAL else each
        for each in data
    ]
    if after:
        for name in names:
            if name is not None:
                after[0] = with_border_words(name, after[0])
    elif names:
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
    shares: bool = False,
    describe: Describe = output_words,
) -> tuple[Message, ...]:
    """The first prompt of a model step: system texts first, then aim and messages, oldest first.

    The agent's own prompt, goal and messages each stand in it once. What several steps read comes
    behind the texts of the agent, and all texts of the step alone behind it: the prompts of these
    steps are equal up to there.

    Args:
        said: In the steps before, where the conversation is one; it begins with the agent's own.
        has_prompt: Whether the conversation begins with a stored system prompt: then none is added.
        shares: Whether the step has part in a conversation.
        describe: The declared output in words.
    """
    agent = view.context.agent
    agents = agent.recipe.messages.messages
    head = [system(agent.system_prompt)] if agent.system_prompt else []
    body = [Message(role=MessageRole.GOAL, content=agent.goal)] if agent.goal and not said else []
    borders = list(filter(is_border_words, said)) if said else []
    for message in agents:
        if message.role is MessageRole.SYSTEM:
            head.append(message)
        elif not said:
            body.append(message)
    if said:
        body += [message for message in said if message.role is not MessageRole.SYSTEM]
    shared = [message for message in own if message.is_context]
    # In a conversation they would be said, and stand before the answers of later steps.
    is_late = bool(shared) and not shares
    form = [] if output is None else [describe(output)]
    if mode is CompletionMode.SIGNAL:
        form.append(SIGNAL_WORDS)
    if is_late:
        systems = (each for each in own if each.role is MessageRole.SYSTEM)
        body += [user(each.content or "") for each in systems if not is_border_words(each)]
        body += map(user, form)
    for message in own:
        if message.role is not MessageRole.SYSTEM:
            body += () if message.is_context else (message,)
        elif not is_late or is_border_words(message):
            head.append(message)
    if borders or (head and any(map(is_border_words, head))):
        borders += filter(is_border_words, head)
        head = [message for message in head if message not in borders]
    if has_prompt:
        head = []
    if not is_late:
        head += map(system, form)
    if borders:  # last: they differ from run to run, and end a cached start
        head += dict.fromkeys(borders)
    return (*head, *shared, *body)


async def open_conversation(view: StepView, key: str, opening: Sequence[Message]) -> None:
    """Record the first prompt and put it into memory."""
    begun = ConversationStarted(
        step_id=view.step_id,
        conversation=view.conversation_id,
        messages=tuple(opening),
    )
    await view.context.scope.recorder.record(key, begun)
    view.memory.save_prompt(view.conversation_id, opening)


class Ending(Struct, frozen=True, kw_only=True):
    """How the work ended: an output, or an error."""

    output: object = None
    error: FailureInfo | None = None
    completion: Completion | None = None


RecordStart: TypeAlias = Callable[[Opening | None], Awaitable[datetime]]
"""Records that the step begins, with what a model is asked first; None: no model is. Returns when
it began, as an earlier execution of the run recorded it, if one did."""


class WorkParts(Struct, frozen=True, kw_only=True):
    """What the work of one execution is done with."""

    view: StepView
    trace: StepTrace
    recorded: StepRows | None
    """The entries that an earlier execution recorded of it; None: there are none."""
    output: OutputInstructions[object] | None
    options: ModelOptions | None
    models: ModelCallExecutorFactory
    tools: ToolCallExecutorFactory


class StepWork(ABC):
    """The work of one execution of a step. `CodeWork` and `ModelWork` are the two kinds."""

    is_code: bool
    """Whether Python code, not a model, decides what is called."""

    @abstractmethod
    def __init__(self, step: Step[object], parts: WorkParts) -> None:
        """Take the step; nothing is done."""

    @property
    def sandbox_name(self) -> str | None:
        """The sandbox that holds its code; None: there is none."""
        return None

    @staticmethod
    @abstractmethod
    def tools_of(step: Step[object], context: AgentContext) -> Toolbox:
        """The tools that the step may call."""

    @staticmethod
    @abstractmethod
    def conversation_of(step: Step[object], context: AgentContext) -> LiveConversation | None:
        """The session's conversation, where the step has part in it."""

    @staticmethod
    @abstractmethod
    def output_of(step: Step[object]) -> OutputInstructions[object] | None:
        """The output that a model has to give; None: none is declared."""

    def typed(self, value: JsonValue) -> object:
        """A recorded output without a declared form, as the step returned it."""
        return value

    @abstractmethod
    async def run(self, record_start: RecordStart) -> Ending:
        """Do it; what an earlier execution left in the middle is continued.

        Raises:
            Exception: Whatever the step's own code raises.
        """

    @abstractmethod
    def is_unchanged(self, rows: StepRows) -> bool:
        """Whether it would do now what these rows say it did. What cannot be known is False."""

    @abstractmethod
    def is_begun_otherwise(self, rows: StepRows) -> bool:
        """Whether it would begin otherwise than these rows do, which have no end."""

    @abstractmethod
    def fingerprint(self) -> Fingerprint:
        """What its output depends on, as far as it can tell.

        Raises:
            MinionsError: It cannot tell.
        """

    @abstractmethod
    def keep_conversation(self, execution: StepExecution[object]) -> None:
        """Share its conversation with later steps, if it shares one."""


CUT_OFF: Final = frozenset({"cancelled", LIMIT_REACHED, NEEDS_DECISION, WAITS_FOR_RUNS})
"""Codes of ends that came from outside: a resumed run continues such a step."""


class StepCourse(TypedDict, total=False):
    """Fields of `StepFinished` that say how the step ran."""

    step_id: Required[str]
    duration_ms: Required[float]
    index: int | None
    total: int | None
    usage: Mapping[str, JsonValue] | None
    model_calls: int | None
    tool_calls: int | None
    attempts: int | None
    output: JsonValue | UnsetType
    decided_by: str | None | UnsetType
    next_step_id: str | None
    sandbox: str | None


def step_over(
    error: FailureInfo | None, **course: Unpack[StepCourse]
) -> StepFinished | StepFailed | StepInterrupted:
    """The fact of the end of a step that had begun."""
    if error is None:
        return StepFinished(status=StepStatus.COMPLETED._value_, **course)
    status = end_status(error)._value_
    kind = StepInterrupted if error.code in CUT_OFF else StepFailed
    return kind(status=status, error=error.to_json(), reason=error.message, **course)


_COMPLETED: Final = StepStatus.COMPLETED


async def record_unexecuted(
    context: AgentContext,
    step: Step[object],
    key: str,
    fact: StepFinished | StepFailed | StepSkipped,
    *,
    output: JsonValue = None,
    error: FailureInfo | None = None,
    mode: CompletionMode = CompletionMode.SIGNAL,
    recorded: JournalEntry | None = None,
) -> StepExecution[object]:
    """Record the end of a step that needs no executor: it is bound, pinned, skipped or refused.

    Args:
        key: Of the execution.
        fact: Its end.
        recorded: The row of that end, where an earlier execution of the run recorded it: then
            nothing is stored.
    Raises:
        JournalError: The fact could not be stored.
    """
    recorder = context.scope.recorder
    if recorded is None:
        at = await recorder.record_later(key, fact)
    else:
        recorder.note_replayed(recorded)
        at = recorded.at
    finished = fact if isinstance(fact, StepFinished) else None
    execution: StepExecution[object] = StepExecution(
        id=f"{context.run_id}/{key}",
        step_id=step.id,
        status=_COMPLETED if finished is not None else StepStatus(fact.status),
        reason=fact.reason,
        output=output,
        error=error,
        optional=step.is_optional,
        started_at=at,
        completed_at=at,
        completion_mode=mode,
        duration_ms=0.0 if finished is None else finished.duration_ms or 0.0,
        pinned_from=finished.pinned_from if finished is not None else None,
    )
    context.step_manager.record(execution)
    return execution


def end_status(error: FailureInfo | None) -> StepStatus:
    """The status of the step; one that waits for a person or for child runs is IN_PROGRESS."""
    if error is None:
        return StepStatus.COMPLETED
    is_waiting = error.code in (NEEDS_DECISION, WAITS_FOR_RUNS)
    return StepStatus.IN_PROGRESS if is_waiting else StepStatus.FAILED


def all_waiting(errors: Iterable[FailureInfo]) -> FailureInfo:
    """The pending decisions of several steps as one failure: a line and a command each.

    Only where nobody has to decide anything, the failure is that of child runs.
    """
    found = list(errors)
    each = [error for error in found if error.code == NEEDS_DECISION]
    if found and not each:
        return evolve(found[0], message="\n".join(error.message for error in found))
    return FailureInfo(
        code=NEEDS_DECISION,
        message="\n".join(error.message for error in each),
        suggestions=tuple(command for error in each for command in error.suggestions),
    )


def cut_off(step_id: str, context: AgentContext) -> FailureInfo:
    """A step that was stopped from outside: by the run's own time, or by a person."""
    if context.progress.is_out_of_time:
        context.progress.budget.run_out_of_time()
        return context.progress.budget.failure()
    return FailureInfo(code="cancelled", message=f"Step '{step_id}' was cancelled.")


def lacks_memory(execution: StepExecution[object]) -> bool:
    """Whether a model call was refused for want of memory: so would each further one be."""
    failures = [call.failure for call in execution.model_calls[-1:]]
    return any(each is not None and each.code == RESOURCE_LIMIT for each in failures)

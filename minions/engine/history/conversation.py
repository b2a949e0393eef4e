"""The conversation of a session: read from the journal, and continued by a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from attrs import frozen

from minions.contracts.errors import UsageError
from minions.contracts.executions import RunStatus
from minions.contracts.facts import (
    RecordedConversation,
    RunBeginning,
    RunFinished,
    ToolCallFact,
    ToolCallFinished,
)
from minions.contracts.journal import Journal, JournalEntry
from minions.contracts.messages import Message, MessageRole, ToolCallRequest
from minions.contracts.sessions import SessionStep
from minions.contracts.tools import Effect, Toolbox
from minions.engine.history.entry_checks import fact_in, origin_of
from minions.engine.history.memory import tool_content
from minions.engine.history.session_messages import (
    CONVERSATION_KINDS,
    SessionConversation,
    sequence_of,
)

__all__ = [
    "MESSAGE_INPUT",
    "ConversationStart",
    "LiveConversation",
    "PendingCall",
    "open_conversation",
    "pending_calls",
    "read_conversation",
    "refuse_while_it_waits",
]

MESSAGE_INPUT: Final = "message"
"""The input of a recipe that is what the user says in a turn."""


@frozen(kw_only=True)
class ConversationStart:
    """Where a run takes up the conversation of its session."""

    keep: int | None = None
    """The messages that stay, from the first on; None: all."""
    continues: bool = False
    """Whether it goes on with what is there; else the input `message` comes first."""
    expects: int | None = None
    """How many messages there are; None: that is not known."""
    before: int | None = None
    """Only what the session held before this position counts; None: all of it."""

    def recorded(self) -> RecordedConversation:
        """For the run's row."""
        return RecordedConversation(keep=self.keep, continues=self.continues)

    @classmethod
    def of_run(cls, start: RunBeginning, position: int) -> ConversationStart | None:
        """Of a run that goes on; None where it knew of no conversation.

        Args:
            position: Of the run's first row.
        """
        found = start.thread
        if found is None:
            return None
        return cls(keep=found.keep, continues=found.continues, before=position)


@frozen(kw_only=True)
class PendingCall:
    """A tool call that the newest answer of the conversation asks for, and nobody answered."""

    request: ToolCallRequest
    name: str
    """Where it is asked for: session, position and number; runs that carry it out record it."""
    effect_key: str | None = None
    """The idempotency key under which it was begun before; None: it never was."""
    content: str | None = None
    """What came of it, where that is recorded."""


class LiveConversation:
    """The conversation as one run goes on with it."""

    def __init__(
        self,
        steps: Sequence[SessionStep] = (),
        *,
        pending: tuple[PendingCall, ...] = (),
        message: str | None = None,
        is_turn: bool = False,
        restores: int | None = None,
    ) -> None:
        """Take it up.

        Args:
            message: What the user says in this turn.
            is_turn: Whether it is a talk: the step's goal tells how to answer, and is not said.
            restores: How many messages there are again if the run fails: it is a retry.
        """
        self.history: tuple[Message, ...] = tuple(step.message for step in steps)
        self.pending = pending
        self.message = message
        self.is_turn = is_turn
        self.restores = restores
        self.count = self._kept = len(self.history)
        self._counts: dict[int, int] = {}
        self.pending_tools: frozenset[str] = frozenset()
        """Names of those that any step of the conversation may call."""

    def begin_step(self) -> None:
        """What a step before left unfinished is no part of the conversation."""
        self.count = self._kept
        self._counts = {}

    def end_step(self) -> None:
        """It came to its answer."""
        self._kept = self.count
        self.pending, self.message = (), None

    def say(self, message: Message) -> None:
        """Add what stands before the first step of the run."""
        self.history = (*self.history, message)
        self._kept = self.count = len(self.history)
        self.message = None

    def mark(self, position: int) -> None:
        """Remember how many messages there are at that place of the step's memory."""
        self._counts[position] = self.count

    def at_mark(self, position: int) -> int:
        """How many there were."""
        return self._counts[position]

    def follow(self, rows: Sequence[JournalEntry]) -> None:
        """Take note of what an earlier execution of the run recorded."""
        for row in rows:
            self.count = self.count if (at := sequence_of(row.fact)) is None else at


async def read_conversation(
    journal: Journal, session_id: str, *, until: int | None = None
) -> SessionConversation:
    """The conversation of that session; of a fork, with what it has from its parents.

    Args:
        until: Only rows up to this position.
    Raises:
        JournalError: `corrupt-entry`; an entry cannot be read, or it is a fork of itself.
    """
    levels: dict[str, Sequence[JournalEntry]] = {}
    found: str | None = session_id
    while found is not None:
        levels[found] = await journal.entries(found, kinds=CONVERSATION_KINDS, until=until)
        found, until = origin_of(levels[found], levels)
    live_conversation = SessionConversation(session_id)
    for rows in reversed(levels.values()):
        live_conversation.apply_all(rows)
    return live_conversation


def pending_calls(steps: Sequence[SessionStep]) -> tuple[tuple[int, ToolCallRequest], ...]:
    """Tool calls of the last assistant message without an answer, with their number in it.

    Raises:
        UsageError: Somebody spoke before they were answered: no model takes such a conversation.
    """
    answers: Counter[str | None] = Counter()
    has_spoken = False
    for step in reversed(steps):
        if step.is_tool_step():
            answers[step.tool_call_id] += 1
        elif step.is_assistant_step():
            break
        elif step.role is not MessageRole.SYSTEM:
            has_spoken = True
    else:
        return ()
    pending = []
    for number, call in enumerate(step.tool_calls):
        if answers[call.id]:
            answers[call.id] -= 1
        else:
            pending.append((number, call))
    if pending and has_spoken:
        raise UsageError(
            f"Message {step.sequence} of session '{step.session_id}' calls the tool "
            f"'{pending[0][1].name}', and a later message was stored before its answer. Delete the "
            f"messages from {step.sequence + 1} on, or store the answer right behind the call.",
            code="unanswered-tool-call",
        )
    return tuple(pending)


async def open_conversation(
    journal: Journal,
    session_id: str,
    start: ConversationStart,
    *,
    run_id: str,
    message: str | None,
    tools: Toolbox,
) -> tuple[LiveConversation, ConversationStart]:
    """The conversation for a run that has its lease, and the start with its numbers.

    Raises:
        UsageError: The session went on since the run began, or a call is in doubt.
    """
    if start.before is not None:
        await _refuse_what_went_on(journal, session_id, start.before, run_id)
    last_run = await _last_run(journal, session_id)
    if start.before is None and last_run is not None:
        refuse_while_it_waits(session_id, last_run)
    until = start.before - 1 if start.before is not None else None
    live_conversation = await read_conversation(journal, session_id, until=until)
    count = len(live_conversation.steps)
    if start.expects not in (None, count):
        raise UsageError(
            f"Session '{session_id}' went on meanwhile: it has {count} messages now, "
            f"not {start.expects}. Nothing was changed; look at it and say it again.",
            code="session-went-on",
        )
    total = len(live_conversation.steps)
    keep = total if start.keep is None else start.keep
    is_cut = keep < total
    if is_cut and last_run is not None and start.before is None:
        origin = live_conversation.origins[keep]
        after = origin.position - 1 if origin.session_id == session_id else 0
        await _refuse_what_is_in_doubt(journal, session_id, after, last_run.run_id, tools)
    live_conversation.cut(keep)
    pending = await _pending_calls(journal, live_conversation, tools, run_id=run_id, is_cut=is_cut)
    live = LiveConversation(
        live_conversation.steps,
        pending=pending,
        message=None if start.continues else message,
        is_turn=start.continues or message is not None,
        restores=total if is_cut else None,
    )
    return live, ConversationStart(keep=keep, continues=start.continues, before=start.before)


async def _last_run(journal: Journal, session_id: str) -> JournalEntry | None:
    """The newest row about a run as a whole."""
    rows = await journal.entries(session_id, kinds={"run"}, limit=1, newest_first=True)
    return rows[0] if rows else None


def refuse_while_it_waits(session_id: str, last: JournalEntry) -> None:
    """Refuse to go on beside a run that a person has to decide about: its answer would be lost.

    Args:
        last: The newest row about a run of the session.
    Raises:
        UsageError: It waits.
    """
    if not isinstance(last.fact, RunFinished) or last.fact.status != RunStatus.NEEDS_DECISION:
        return
    raise UsageError(
        f"Run '{last.run_id}' of session '{session_id}' waits for a decision. Decide first "
        f"(`minions sessions show {last.run_id}` tells what it waits for), or give it up: "
        f"`minions cancel {last.run_id}`.",
        code="decision-needed",
    )


async def _refuse_what_is_in_doubt(
    journal: Journal, session_id: str, after: int, run_id: str, tools: Toolbox
) -> None:
    """Of the last run, what a retry would take the place of, and may make again."""
    rows = await journal.entries(session_id, run_id=run_id, after=after, kinds={"tool_call"})
    by_key: dict[str, list[JournalEntry]] = {}
    for row in rows:
        by_key.setdefault(row.key, []).append(row)
    for key, own in by_key.items():
        request = ToolCallRequest(id="", name=_call_in(own[-1]).tool)
        _as_it_stands(key, request, own, tools, is_another_way=True)


async def _refuse_what_went_on(journal: Journal, session_id: str, after: int, run_id: str) -> None:
    rows = await journal.entries(session_id, kinds=CONVERSATION_KINDS, after=after)
    own = (row for row in rows if row.run_id != run_id and row.kind != "run")
    other = next((row for row in own if sequence_of(row.fact) is not None), None)
    if other is not None:
        raise UsageError(
            f"Session '{session_id}' went on after run '{run_id}' (from position {other.position} "
            "on): going on with that run now would take the place of what was said since. Go on "
            f"with the session instead, or fork it.",
            code="session-went-on",
        )


async def _pending_calls(
    journal: Journal,
    live_conversation: SessionConversation,
    tools: Toolbox,
    *,
    run_id: str,
    is_cut: bool,
) -> tuple[PendingCall, ...]:
    """With what other runs recorded of them so far; what this one did is fed back to it."""
    numbered = pending_calls(live_conversation.steps)
    if not numbered:
        return ()
    at = next(
        i
        for i in reversed(range(len(live_conversation.steps)))
        if live_conversation.steps[i].has_tool_calls()
    )
    origin = live_conversation.origins[at]
    rows = await journal.entries(origin.session_id, after=origin.position, kinds={"tool_call"})
    is_another_way = is_cut or origin.session_id != live_conversation.session_id
    pending = []
    for number, request in numbered:
        name = f"{origin.session_id}/{origin.position}/{number}"
        others = (row for row in rows if row.run_id != run_id)
        own = [row for row in others if _is_about(row, name, number, request, origin)]
        pending.append(_as_it_stands(name, request, own, tools, is_another_way=is_another_way))
    return tuple(pending)


def _is_about(
    row: JournalEntry, name: str, number: int, request: ToolCallRequest, origin: JournalEntry
) -> bool:
    call = _call_in(row)
    if row.run_id != origin.run_id or call.pending is not None:
        return call.pending == name
    return call.call_id == request.id and row.key.endswith(f"/{number}")


def _call_in(row: JournalEntry) -> ToolCallFact:
    return fact_in(row, ToolCallFact)


def _as_it_stands(
    name: str,
    request: ToolCallRequest,
    own: Sequence[JournalEntry],
    tools: Toolbox,
    *,
    is_another_way: bool,
) -> PendingCall:
    """What is recorded of the call.

    Args:
        is_another_way: In a fork or retry it is carried out anew, unless that must not be.
    """
    tool = tools.find(request.name)
    effect = tool.spec.effect if tool is not None else None
    facts = (row.fact for row in reversed(own))
    ended = next((each for each in facts if isinstance(each, ToolCallFinished)), None)
    if ended is not None and (effect is Effect.ONCE or not is_another_way):
        return PendingCall(name=name, request=request, content=tool_content(ended))
    if ended is not None or not own or own[-1].state == "failed":
        return PendingCall(name=name, request=request)
    run_id, key = own[-1].run_id, own[-1].key
    if effect in (Effect.PURE, Effect.IDEMPOTENT):
        return PendingCall(name=name, request=request, effect_key=f"{run_id}/{key}")
    raise UsageError(
        f"The tool call '{request.name}' of run '{run_id}' was begun, and nobody saw its end: "
        "it may have had its effect. Say what became of it first, with redo, done or fail: "
        f"`minions resume {run_id} --decide {key}=done`.",
        code="call-in-doubt",
    )

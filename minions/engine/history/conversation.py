"""The conversation of a session: read from the journal, and continued by a run."""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Sequence
from typing import Final
from weakref import WeakKeyDictionary

from msgspec import Struct

from minions.contracts.calls import ModelCall
from minions.contracts.executions import RunStatus
from minions.contracts.journal.facts import (
    RecordedConversation,
    RunBeginning,
    RunFinished,
    SessionForked,
    ToolCallFact,
    ToolCallFinished,
)
from minions.contracts.journal.journal import Journal, JournalEntry
from minions.contracts.messages import Message, MessageRole, ToolCallRequest
from minions.contracts.session_views import SessionStep
from minions.contracts.tool_search import FIND_TOOLS
from minions.contracts.tools import Effect, Toolbox
from minions.data.errors import UsageError
from minions.data.texts import shell_word
from minions.engine.history.entry_checks import fact_in, origin_of
from minions.engine.history.memory import READ_RESULT, tool_content
from minions.engine.history.session_messages import (
    CONVERSATION_KINDS,
    SessionConversation,
    sequence_of,
)

SUMMARY: Final = "summary"
"""The phase of a model call that summarises earlier messages of a conversation."""


class ConversationSummary(Struct, frozen=True, kw_only=True):
    """What a model wrote about the oldest messages of a conversation."""

    count: int
    """How many messages it is of."""
    text: str

    @classmethod
    def of(cls, call: ModelCall) -> ConversationSummary | None:
        """The summary that the call gave; None: it gave none."""
        if call.summarises is None or call.response is None:
            return None
        return cls(count=call.summarises, text=call.response.text or "")


class ConversationStart(Struct, frozen=True, kw_only=True):
    """The point at which a run joins the conversation of its session."""

    keep: int | None = None
    """How many messages of the session stay, counted from the first; None: all."""
    continues: bool = False
    """Whether the run answers the present messages; else it adds the input `message` first."""
    expects: int | None = None
    """How many messages the caller expects the session to have; None: not checked."""
    before: int | None = None
    """Only messages stored before this position of the session count; None: all of them."""

    def recorded(self) -> RecordedConversation:
        """The part that the run's start records."""
        return RecordedConversation(keep=self.keep, continues=self.continues)

    @classmethod
    def of_run(cls, start: RunBeginning, position: int) -> ConversationStart | None:
        """The start of a run that is resumed; None: the run had no conversation.

        Args:
            start: The recorded start of the run.
            position: Of the run's first row in the journal.
        """
        found = start.thread
        if found is None:
            return None
        return cls(keep=found.keep, continues=found.continues, before=position)


class PendingCall(Struct, frozen=True, kw_only=True):
    """A tool call that the newest answer asks for and that has no answer yet."""

    request: ToolCallRequest
    name: str
    """Names the request by session, position and number; runs that execute it record this name."""
    effect_key: str | None = None
    """The idempotency key under which the call was started before; None: it never was."""
    content: str | None = None
    """The recorded result as text; None: the call has no recorded end."""


class LiveConversation:
    """The conversation of a session while one run continues it."""

    def __init__(
        self,
        steps: Sequence[SessionStep] = (),
        *,
        pending: tuple[PendingCall, ...] = (),
        message: str | None = None,
        is_turn: bool = False,
        restores: int | None = None,
        summary: ConversationSummary | None = None,
    ) -> None:
        """Start with the messages that the session has.

        Args:
            steps: The messages of the session, oldest first.
            pending: Calls of the newest answer that the run executes first.
            message: What the user says in this turn.
            is_turn: Whether the run is a turn of a session: the step's goal then is a system prompt
                and no message of the conversation.
            restores: How many messages the session has again if the run fails; None: it is no
                retry.
            summary: The newest summary of the session's oldest messages; None: there is none.
        """
        self.summary = summary
        self.history: tuple[Message, ...] = tuple(step.message for step in steps)
        self.has_session_history = bool(steps)
        """Whether the session has messages of other runs."""
        self.pending = pending
        self.message = message
        self.is_turn = is_turn
        self.restores = restores
        self.count = self._finished_count = len(self.history)
        self._counts: dict[int, int] = {}
        self.pending_tools: frozenset[str] = frozenset()
        """The tools of pending calls: any step of the conversation may call these."""

    def begin_step(self) -> None:
        """Start a step from the last finished one: messages of an unfinished step do not count."""
        self.count = self._finished_count
        self._counts = {}

    def end_step(self) -> None:
        """Count the messages of the step that ended with an answer."""
        self._finished_count = self.count
        self.pending, self.message = (), None

    def say(self, message: Message) -> None:
        """Add a message that precedes the first step of the run."""
        self.history = (*self.history, message)
        self._finished_count = self.count = len(self.history)
        self.message = None

    def mark(self, position: int) -> None:
        """Remember how many messages there are at this position of the step's memory."""
        self._counts[position] = self.count

    def at_mark(self, position: int) -> int:
        """How many messages there were when `mark` was called with this position."""
        return self._counts[position]

    def follow(self, rows: Sequence[JournalEntry]) -> None:
        """Update the count by the rows that an earlier execution of the run recorded."""
        for row in rows:
            self.count = self.count if (at := sequence_of(row.fact)) is None else at


async def read_conversation(
    journal: Journal, session_id: str, *, until: int | None = None
) -> SessionConversation:
    """The conversation of a session; a fork begins with the messages of its parents.

    Args:
        until: Read only rows up to this position.
    Raises:
        JournalError: `corrupt-entry`; an entry cannot be read, or the session is a fork of itself.
    """
    if until is None and (known := await CONVERSATIONS.read(journal, session_id)) is not None:
        return known
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
    """Tool calls of the last assistant message that have no answer, with their index in it.

    Raises:
        UsageError: A later message precedes the answers: no model accepts such a conversation.
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
    """The conversation for a run that holds its lease, and the start with its numbers filled in.

    Raises:
        UsageError: The session has newer messages than the run, or a call is in doubt.
    """
    if start.before is not None:
        await _refuse_newer_messages(journal, session_id, start.before, run_id)
    last_run = await _last_run(journal, session_id)
    if start.before is None and last_run is not None:
        refuse_while_it_waits(session_id, last_run)
    until = start.before - 1 if start.before is not None else None
    live_conversation = await read_conversation(journal, session_id, until=until)
    count = len(live_conversation.steps)
    if start.expects not in (None, count):
        raise UsageError(
            f"Session '{session_id}' has changed: it has {count} messages now, "
            f"not {start.expects}. Nothing was stored; read it and send the message again.",
            code="session-went-on",
        )
    total = len(live_conversation.steps)
    keep = total if start.keep is None else start.keep
    is_cut = keep < total
    if is_cut and last_run is not None and start.before is None:
        origin = live_conversation.origins[keep]
        after = origin.position - 1 if origin.session_id == session_id else 0
        await _refuse_calls_in_doubt(journal, session_id, after, last_run.run_id, tools)
    live_conversation.cut(keep)
    pending = await _pending_calls(journal, live_conversation, tools, run_id=run_id, is_cut=is_cut)
    live = LiveConversation(
        live_conversation.steps,
        pending=pending,
        message=None if start.continues else message,
        is_turn=start.continues or message is not None,
        restores=total if is_cut else None,
        summary=_summary_in(live_conversation),
    )
    return live, ConversationStart(keep=keep, continues=start.continues, before=start.before)


def _summary_in(conversation: SessionConversation) -> ConversationSummary | None:
    found = conversation.summary
    return ConversationSummary(count=found[0], text=found[1]) if found is not None else None


async def _last_run(journal: Journal, session_id: str) -> JournalEntry | None:
    """The newest row about a run as a whole; None: nothing ran in the session."""
    rows = await journal.entries(session_id, kinds={"run"}, limit=1, newest_first=True)
    return rows[0] if rows else None


def refuse_while_it_waits(session_id: str, last: JournalEntry) -> None:
    """Refuse a new run while the last one waits for a person: its answer would be lost.

    Args:
        last: The newest row about a run of the session.
    Raises:
        UsageError: `decision-needed`; the run waits.
    """
    if not isinstance(last.fact, RunFinished) or last.fact.status != RunStatus.NEEDS_DECISION:
        return
    run = shell_word(last.run_id)
    raise UsageError(
        f"Run '{last.run_id}' of session '{session_id}' waits for a decision. Decide first "
        f"(`minions sessions show {run}` shows what it waits for), or cancel it: "
        f"`minions cancel {run}`.",
        code="decision-needed",
    )


async def _refuse_calls_in_doubt(
    journal: Journal, session_id: str, after: int, run_id: str, tools: Toolbox
) -> None:
    """Refuse a retry that replaces a call in doubt of the last run and may execute it again."""
    rows = await journal.entries(session_id, run_id=run_id, after=after, kinds={"tool_call"})
    by_key: dict[str, list[JournalEntry]] = {}
    for row in rows:
        by_key.setdefault(row.key, []).append(row)
    for key, own in by_key.items():
        request = ToolCallRequest(id="", name=_call_in(own[-1]).tool)
        _recorded_call(key, request, own, tools, is_another_way=True)


async def _refuse_newer_messages(
    journal: Journal, session_id: str, after: int, run_id: str
) -> None:
    rows = await journal.entries(session_id, kinds=CONVERSATION_KINDS, after=after)
    own = (row for row in rows if row.run_id != run_id and row.kind != "run")
    other = next((row for row in own if sequence_of(row.fact) is not None), None)
    if other is not None:
        raise UsageError(
            f"Session '{session_id}' has newer messages than run '{run_id}' (from position "
            f"{other.position} on): resuming that run would replace them. Continue "
            "the session instead, or fork it.",
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
    """Each pending call with what other runs recorded of it; rows of this run are replayed."""
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
        pending.append(_recorded_call(name, request, own, tools, is_another_way=is_another_way))
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


def _recorded_call(
    name: str,
    request: ToolCallRequest,
    own: Sequence[JournalEntry],
    tools: Toolbox,
    *,
    is_another_way: bool,
) -> PendingCall:
    """The call with its recorded result or idempotency key.

    Args:
        is_another_way: The call is repeated in a fork or retry: it is executed again, unless its
            tool has the effect `once`.
    Raises:
        UsageError: `call-in-doubt`; it was started, and its end is unknown.
    """
    tool = tools.find(request.name)
    effect = tool.spec.effect if tool is not None else None
    if tool is None and request.name in (READ_RESULT, FIND_TOOLS):  # the engine's own
        effect = Effect.PURE
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
        f"The tool call '{request.name}' of run '{run_id}' was started, and its end is unknown: "
        "it may have had its effect. Decide on it first, with redo, done or fail: "
        f"`minions resume {shell_word(run_id)} --decide {shell_word(key)}=done`.",
        code="call-in-doubt",
    )


# --- conversations that a process read before ----------------------------------------------------


_MOST: Final = 32
"""Conversations of one journal that are kept."""


class _KnownConversation(Struct):
    conversation: SessionConversation
    last: JournalEntry
    """The newest row that is in it."""


class ConversationCache:
    """Folded conversations by journal and session; rows are only ever added to a session.

    A session that was removed and created again has other rows, and all of them are read.
    """

    def __init__(self) -> None:
        self._journals: WeakKeyDictionary[Journal, OrderedDict[str, _KnownConversation]] = (
            WeakKeyDictionary()
        )
        self._changing = threading.Lock()

    async def read(self, journal: Journal, session_id: str) -> SessionConversation | None:
        """The conversation, which the caller may change; None: it is a fork, and is not kept.

        Raises:
            JournalError: `corrupt-entry`; an entry cannot be read.
        """
        known = self._of(journal).get(session_id)
        if known is not None:
            last = known.last
            rows = await journal.entries(
                session_id, kinds=CONVERSATION_KINDS, after=last.position - 1
            )
            if (found := self._continue_conversation(known, last, rows)) is not None:
                return found
        return self._keep_conversation(
            journal, session_id, await journal.entries(session_id, kinds=CONVERSATION_KINDS)
        )

    def _of(self, journal: Journal) -> OrderedDict[str, _KnownConversation]:
        return self._journals.setdefault(journal, OrderedDict())

    def _continue_conversation(
        self, known: _KnownConversation, last: JournalEntry, rows: Sequence[JournalEntry]
    ) -> SessionConversation | None:
        """With these rows; None where they do not continue it."""
        with self._changing:
            if known.last is not last or not rows or not _is_same(rows[0], last):
                return None
            known.conversation.apply_all(rows[1:])
            known.last = rows[-1]
            return known.conversation.copy()

    def _keep_conversation(
        self, journal: Journal, session_id: str, rows: Sequence[JournalEntry]
    ) -> SessionConversation | None:
        if rows and isinstance(rows[0].fact, SessionForked):
            return None
        conversation = SessionConversation(session_id)
        conversation.apply_all(rows)
        if rows:
            with self._changing:
                kept = self._of(journal)
                kept[session_id] = _KnownConversation(conversation, rows[-1])
                kept.move_to_end(session_id)
                while len(kept) > _MOST:
                    kept.popitem(last=False)
        return conversation.copy()


def _is_same(one: JournalEntry, other: JournalEntry) -> bool:
    def identity(entry: JournalEntry) -> tuple[object, ...]:
        return entry.position, entry.run_id, entry.generation, entry.key, entry.state, entry.at

    return identity(one) == identity(other)


CONVERSATIONS: Final = ConversationCache()
"""Those of this process; a journal that is no longer used takes its conversations along."""

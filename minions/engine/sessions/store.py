"""Creates, reads, forks and cuts sessions and their steps; everything is a row of the journal."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

from attrs import evolve

from minions.contracts.journal.facts import (
    MessageRecorded,
    RunBeginning,
    SavedMessage,
    SessionCut,
    SessionForked,
    SessionOpened,
)
from minions.contracts.journal.journal import EntryDraft, JournalEntry, Lease
from minions.contracts.journal.run_rows import LISTED, SessionFilter, SessionRow
from minions.contracts.session_views import Session, SessionStep
from minions.data.errors import NotFoundError, UsageError, near_names
from minions.data.json_values import JsonValue
from minions.engine.history.conversation import read_conversation, refuse_while_it_waits
from minions.engine.history.entry_checks import origin_of
from minions.engine.history.recorder import held_lease
from minions.engine.history.session_messages import SessionConversation, sequence_of
from minions.engine.services.run_services import Services
from minions.engine.views.lookup import UNREADABLE
from minions.engine.views.run_states import with_states

_COUNTED: Final = frozenset({"run", "session", "message", "model_call", "rollback"})


class StepRepository:
    """The sessions of one journal."""

    def __init__(self, services: Services | None = None) -> None:
        """Use the journal of these services; None: one in memory, lost with the object.

        Raises:
            UsageError: `bad-services`; something else was given, such as a journal.
        """
        if services is not None and not isinstance(services, Services):
            raise UsageError(
                f"StepRepository takes Services, not {type(services).__name__}. Write "
                "StepRepository(Services(journal=journal)).",
                code="bad-services",
            )
        self.services: Final = services or Services()
        self._journal = self.services.journal

    # --- sessions ---------------------------------------------------------------------------------

    async def create_session(
        self,
        recipe: str | None = None,
        *,
        name: str | None = None,
        inputs: Mapping[str, JsonValue] | None = None,
        session_id: str | None = None,
        user: str | None = None,
    ) -> Session:
        """Create a session without steps.

        Args:
            recipe: The id of the recipe that its turns run; None: not set.
            name: A title for people.
            inputs: Inputs of each turn besides the message.
            session_id: None: a new id.
            user: The label of the user to whom it belongs; None: it is the operator's.
        Raises:
            UsageError: `session-exists`.
        """
        session_id = session_id or self.services.ids("ses")
        async with self._writing(session_id) as lease:
            if await self._first_rows(session_id):
                raise UsageError(
                    f"There is a session '{session_id}' already.", code="session-exists"
                )
            opened = SessionOpened(
                recipe=recipe,
                name=name,
                inputs=dict(inputs or {}),
                user=user,
                project=self.services.project,
            )
            await self._write(lease, opened)
        return await self.get_session(session_id)

    async def get_session(self, session_id: str) -> Session:
        """The session with that id.

        Raises:
            NotFoundError: There is none.
        """
        (session,) = await self._with_states(lambda: self._recorded_session(session_id))
        return session

    async def _recorded_session(self, session_id: str) -> Sequence[Session]:
        journal = self._journal
        if rows := await journal.sessions(SessionFilter(session_ids=[session_id])):
            if rows[0].status == UNREADABLE:
                await journal.entries(session_id, kinds=LISTED)  # refuses what is damaged
            return await self._sessions(rows)
        if not (first := await self._first_rows(session_id)):
            known = await journal.sessions(limit=1000)
            near = near_names(session_id, [row.session_id for row in known])
            raise unknown_session(session_id, near)
        return [Session(id=session_id, created_at=first[0].at, updated_at=first[0].at)]

    async def _sessions(self, rows: Sequence[SessionRow]) -> list[Session]:
        return [await self._session(row) for row in rows]

    async def _session(self, row: SessionRow) -> Session:
        inputs: JsonValue = None
        if row.has_inputs:
            opened = await self._journal.entries(
                row.session_id, kinds={"session"}, limit=1, with_damaged=True
            )
            inputs = opened[0].body.get("inputs") if opened else None
        return Session(
            id=row.session_id,
            recipe=row.recipe,
            name=row.name,
            inputs=inputs if isinstance(inputs, Mapping) else {},
            created_at=row.created_at,
            updated_at=row.updated_at,
            parent_session_id=row.parent,
            forked_at_sequence=row.forked_at,
            last_run_id=row.last_run_id,
            status=row.status,
            user=row.user,
            project=row.project,
        )

    async def _with_states(self, read: Callable[[], Awaitable[Sequence[Session]]]) -> list[Session]:
        services = self.services

        async def recorded(_: frozenset[str]) -> Sequence[Session]:
            return await read()

        return await with_states(
            services.journal, services.is_worker_gone, recorded, lambda session: session.last_run_id
        )

    async def inputs_of(
        self, session_id: str
    ) -> tuple[Mapping[str, JsonValue], Mapping[str, JsonValue]]:
        """The inputs of the session, and those of its last run; a new fork has its parent's.

        Raises:
            JournalError: `corrupt-entry`; it is a fork of itself, or an entry cannot be read.
        """
        journal = self._journal
        own: Mapping[str, JsonValue] = {}
        found: str | None = session_id
        readers: set[str] = set()
        while found is not None:
            readers.add(found)
            opened = await journal.entries(found, kinds={"session"}, limit=1)
            beginning = opened[0].fact if opened else None
            if found == session_id and isinstance(beginning, SessionOpened | SessionForked):
                own = beginning.inputs or {}
            runs = await journal.entries(found, kinds={"run"}, limit=8, newest_first=True)
            recorded = (row.fact.inputs for row in runs if isinstance(row.fact, RunBeginning))
            if (inputs := next((each for each in recorded if each is not None), None)) is not None:
                return own, inputs
            found, _ = origin_of(opened, readers)
        return own, {}

    async def list_sessions(
        self,
        *,
        session_ids: Collection[str] | None = None,
        limit: int | None = None,
        offset: int = 0,
        text: str | None = None,
        user: str | None = None,
        project: str | None = None,
    ) -> tuple[Session, ...]:
        """Sessions, those first in which a run began or ended last.

        A damaged one has the state `unreadable` and hides no other.

        Args:
            session_ids: Only these; None: all.
            limit: At most so many.
            offset: Skip so many of the newest.
            text: Words, each of which is part of the name, the recipe or the id.
            user: Only those of that user; None: all.
            project: Only those of the project with that folder; None: all.
        """
        wanted = SessionFilter(session_ids=session_ids, text=text, user=user, project=project)

        async def recorded() -> Sequence[Session]:
            rows = await self._journal.sessions(wanted, limit=limit, offset=offset)
            return await self._sessions(rows)

        return tuple(await self._with_states(recorded))

    async def count_sessions(
        self,
        *,
        text: str | None = None,
        user: str | None = None,
        project: str | None = None,
        at_most: int | None = None,
    ) -> int:
        """How many sessions `list_sessions` returns without a limit.

        Args:
            at_most: Counting ends with this number; None: all of them are counted.
        """
        wanted = SessionFilter(text=text, user=user, project=project)
        return await self._journal.count_sessions(wanted, at_most=at_most)

    async def list_fork_tree(self, session_id: str) -> tuple[Session, ...]:
        """The root of the session's fork tree and all its forks, parents before their forks.

        A damaged journal may have sessions that are forks of each other; each is listed once.

        Raises:
            NotFoundError: There is no such session.
        """
        return tuple(await self._with_states(lambda: self._recorded_tree(session_id)))

    async def _recorded_tree(self, session_id: str) -> Sequence[Session]:
        (root,) = await self._recorded_session(session_id)
        forks: set[str] = set()
        while root.parent_session_id is not None and root.id not in forks:
            above = await self._listed(SessionFilter(session_ids=[root.parent_session_id]))
            if not above:
                break
            forks.add(root.id)
            root = above[0]
        tree = [root]
        for each in tree:  # grows while it is walked
            own = await self._listed(SessionFilter(parent=each.id))
            own.sort(key=lambda fork: fork.created_at)
            tree += [fork for fork in own if fork.id != root.id]
        return tree

    async def _listed(self, wanted: SessionFilter) -> list[Session]:
        return await self._sessions(await self._journal.sessions(wanted))

    async def fork(
        self,
        session_id: str,
        sequence: int,
        *,
        name: str | None = None,
        inputs: Mapping[str, JsonValue] | None = None,
    ) -> Session:
        """Create a session that begins with the steps up to `sequence`. Nothing is copied.

        Later steps of the one are not seen in the other.

        Args:
            name: A title for people.
            inputs: Inputs of its turns; they replace those of the parent.
        Raises:
            NotFoundError: There is no such session.
            UsageError: It has no step with that sequence.
        """
        services = self.services
        parent = await self.get_session(session_id)
        last = await self.get_step_count(session_id)
        _check_sequence(session_id, sequence, last, "fork at")
        newest = await services.journal.entries(
            session_id, limit=1, newest_first=True, with_damaged=True
        )
        forked = SessionForked(
            parent=session_id,
            sequence=sequence,
            position=newest[0].position,
            recipe=parent.recipe,
            name=name,
            inputs={**parent.inputs, **(inputs or {})},
            user=parent.user,
            project=parent.project or services.project,
        )
        fork_id = services.ids("ses")
        async with self._writing(fork_id) as lease:
            await self._write(lease, forked)
        return await self.get_session(fork_id)

    # --- steps ------------------------------------------------------------------------------------

    async def get_steps(
        self,
        session_id: str,
        start_seq: int | None = None,
        end_seq: int | None = None,
        limit: int | None = None,
    ) -> list[SessionStep]:
        """The steps in order; empty for a session that does not exist.

        Args:
            start_seq: The first step, included; None: from the beginning.
            end_seq: The last step, included; None: to the end.
            limit: At most so many, the first ones.
        """
        if limit is not None and limit < 0:
            raise UsageError(f"limit={limit}: at most so many steps, from 0 on.", code="bad-limit")
        steps = (await self._live_conversation(session_id)).steps
        first = max((start_seq or 1) - 1, 0)
        last = len(steps) if end_seq is None else max(end_seq, 0)
        return steps[first:last][:limit]

    async def get_step(self, session_id: str, sequence: int) -> SessionStep:
        """The step with that sequence.

        Raises:
            NotFoundError: There is none.
        """
        steps = await self.get_steps(session_id, sequence, sequence)
        if not steps or sequence < 1:
            count = await self.get_step_count(session_id)
            raise NotFoundError(
                f"Session '{session_id}' has no step {sequence}; it has {count}, numbered from 1.",
                code="unknown-step",
            )
        return steps[0]

    async def get_last_step(self, session_id: str) -> SessionStep | None:
        """The newest step; None: there is none."""
        steps = (await self._live_conversation(session_id)).steps
        return steps[-1] if steps else None

    async def get_step_count(self, session_id: str) -> int:
        """How many steps there are. The cost does not grow with the session."""
        journal = self._journal
        before: int | None = None
        limit = 4
        while True:  # rows without a sequence belong to steps outside the conversation
            rows = await journal.entries(
                session_id, kinds=_COUNTED, until=before, limit=limit, newest_first=True
            )
            for row in rows:
                sequence = sequence_of(row.fact)
                is_edit = isinstance(row.fact, MessageRecorded) and row.fact.replaces is not None
                if sequence is not None and not is_edit:
                    return sequence
            if len(rows) < limit:
                return 0
            before, limit = rows[-1].position - 1, limit * 4

    async def save_step(self, step: SessionStep) -> SessionStep:
        """Store one step; see `save_steps_batch`."""
        return (await self.save_steps_batch([step]))[0]

    async def save_steps_batch(self, steps: Sequence[SessionStep]) -> list[SessionStep]:
        """Store steps in order: new ones after the last, existing ones in place of their content.

        A step with sequence 0 gets the next one. A session that does not exist is created. A step
        whose id exists replaces that step. `created_at` is kept if it is set.

        Returns:
            The steps as stored, with their sequences and ids.
        Raises:
            UsageError: A sequence leaves a gap or has another id, or a value has the wrong type;
                nothing was stored.
            LeaseHeldError: A run of the session is active.
        """
        places: dict[str, list[int]] = {}
        for at, step in enumerate(steps):
            _check_step(step)
            places.setdefault(step.session_id, []).append(at)
        stored = list(steps)
        async with AsyncExitStack() as stack:
            leases, placed = {}, {}
            for session_id, own in places.items():  # check all before storing any
                leases[session_id] = await stack.enter_async_context(self._writing(session_id))
                known = (await self._live_conversation(session_id)).steps
                placed[session_id] = _placed([steps[at] for at in own], known)
            for session_id, lease in leases.items():
                if not await self._first_rows(session_id):
                    await self._write(lease, SessionOpened(recipe=None, name=None, inputs={}))
                for number, (step, is_new) in enumerate(placed[session_id], 1):
                    await self._save(lease, step, number, is_new=is_new)
        for session_id, own in places.items():
            now = (await self._live_conversation(session_id)).steps
            for at, (step, _) in zip(own, placed[session_id], strict=True):
                stored[at] = now[step.sequence - 1]
        return stored

    async def delete_steps(self, session_id: str, start_seq: int) -> int:
        """Remove a step and all after it from the conversation; return how many they were.

        Their rows stay in the journal, but no longer count.

        Raises:
            UsageError: `start_seq` is less than 1, or the last run waits for a decision.
            LeaseHeldError: A run of the session is active.
        """
        if start_seq < 1:
            raise UsageError(
                f"Steps are numbered from 1; there is no step {start_seq} to delete from.",
                code="sequence-out-of-range",
            )
        async with self._writing(session_id) as lease:
            runs = await self._journal.entries(
                session_id, kinds={"run"}, limit=1, newest_first=True
            )
            if runs:
                refuse_while_it_waits(session_id, runs[0])
            count = await self.get_step_count(session_id)
            if start_seq > count:
                return 0
            await self._write(lease, SessionCut(sequence=start_seq - 1))
        return count - start_seq + 1

    # --- rows -------------------------------------------------------------------------------------

    async def _live_conversation(self, session_id: str) -> SessionConversation:
        return await read_conversation(self._journal, session_id)

    async def _first_rows(self, session_id: str) -> Sequence[JournalEntry]:
        return await self._journal.entries(session_id, limit=1)

    @asynccontextmanager
    async def _writing(self, session_id: str) -> AsyncIterator[Lease]:
        """The lease of the session, for a change that is no run."""
        async with held_lease(self.services, session_id, self.services.ids("edit")) as lease:
            yield lease

    async def _write(self, lease: Lease, fact: SessionOpened | SessionForked | SessionCut) -> None:
        await self._journal.append(lease, EntryDraft(key="session", fact=fact))

    async def _save(self, lease: Lease, step: SessionStep, at: int, *, is_new: bool) -> None:
        saved = MessageRecorded(
            message=step.message,
            sequence=step.sequence,
            saved=SavedMessage(
                id=step.id or None,
                run_id=step.run_id or None,
                created_at=step.created_at.isoformat() if step.created_at is not None else None,
            ),
            metrics=step.metrics.to_json() or None,
            replaces=None if is_new else step.sequence,
        )
        await self._journal.append(lease, EntryDraft(key=f"saved/{at}", fact=saved))


def _placed(
    steps: Sequence[SessionStep], known: Sequence[SessionStep]
) -> list[tuple[SessionStep, bool]]:
    """Each step with its sequence, and whether it is new."""
    ids = {step.sequence: step.id for step in known}
    sequences = {step.id: step.sequence for step in known}
    count = len(known)
    placed = []
    for step in steps:
        sequence = step.sequence or sequences.get(step.id, count + 1)
        if sequence <= count:
            if step.id != ids[sequence]:
                raise UsageError(
                    f"Step {sequence} of session '{step.session_id}' is '{ids[sequence]}', not "
                    f"'{step.id}'. Store a new step with sequence {count + 1} (or 0), or delete "
                    f"the steps from {sequence} on first.",
                    code="sequence-taken",
                )
        elif sequence > count + 1:
            raise UsageError(
                f"Step {sequence} of session '{step.session_id}' would leave a gap: the next one "
                f"is {count + 1}.",
                code="sequence-out-of-range",
            )
        is_new = sequence > count
        count += is_new
        ids[sequence] = step.id
        if step.id:
            sequences[step.id] = sequence
        placed.append((evolve(step, sequence=sequence), is_new))
    return placed


def _check_step(step: SessionStep) -> None:
    """Refuse a step that could not be read again.

    Raises:
        UsageError: `bad-step`; a value has the wrong type.
    """
    wrong = [
        name
        for name in ("content", "tool_call_id", "name", "session_id", "id", "run_id")
        if not isinstance(getattr(step, name), str | None)
    ]
    if type(step.sequence) is not int or step.sequence < 0:
        wrong.append("sequence")
    if wrong or not step.session_id:
        raise UsageError(
            f"A step to be stored has {', '.join(wrong) or 'no session_id'} of the wrong type: "
            "texts are text or None, sequence is a whole number from 0 on, and session_id names "
            "the session. Nothing was stored.",
            code="bad-step",
        )


def _check_sequence(session_id: str, sequence: int, last: int, what: str) -> None:
    if 1 <= sequence <= last:
        return
    there = f"its steps are 1 to {last}" if last else "it has no steps"
    raise UsageError(
        f"Cannot {what} step {sequence} of session '{session_id}': {there}.",
        code="sequence-out-of-range" if last else "empty-session",
    )


def unknown_session(session_id: str, near: Sequence[str] = ()) -> NotFoundError:
    """The error for a session that is not there, or not there for whoever asks."""
    return NotFoundError(
        f"There is no session '{session_id}'.", code="unknown-session", suggestions=near
    )

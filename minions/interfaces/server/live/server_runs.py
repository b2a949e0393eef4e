"""Starts runs, and holds those alive in this process; a request that is repeated with its
idempotency key starts its run once.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Final
from weakref import WeakValueDictionary

from attrs import field, frozen, mutable

from minions.app.runs.deployments import DeploymentStore, split_name
from minions.app.runs.run_policy import RunPolicy
from minions.app.runs.run_queue import RunQueue
from minions.contracts.executions import AgentResult, RunStatus
from minions.contracts.journal.facts import RunBeginning, RunRejected
from minions.contracts.journal.start_note import (
    NO_CHOICE,
    CallerChoice,
    CallerTool,
    QueuePlace,
    StartNote,
)
from minions.contracts.run_events import RunEvent, RunFailed
from minions.contracts.runtime import BlockingCalls, Log
from minions.data.codec import encode
from minions.data.errors import (
    EnvironmentRefusedError,
    FencedError,
    LeaseHeldError,
    UsageError,
    words_of,
)
from minions.data.json_parts import encoded_parts, is_large
from minions.data.json_values import JsonValue, dumps
from minions.engine.run.agent_run import AgentRun
from minions.engine.services.event_loop import beside
from minions.engine.sessions.store import StepRepository
from minions.interfaces.http.http_answers import RefusedError
from minions.interfaces.server.live.channels import Channels
from minions.interfaces.server.recipe_store import RecipeStore
from minions.interfaces.server.server_runtime import ServerRuntime, ids_of_key
from minions.recipe.model import AgentRecipe

_MANY_STEPS: Final = 50
"""Steps of a recipe that are prepared at once."""
_LOOK_UP_NAMES_S: Final = 5.0
"""Seconds for which the names of deployments are not looked up again."""
LONGEST_KEY: Final = 255
"""The most characters of an idempotency key."""


@frozen(kw_only=True)
class RequestedRun:
    """A request for a run."""

    recipe: str | None
    """The id of a stored recipe; None: `recipe_text` is given."""
    recipe_text: str | None = None
    made: AgentRecipe | None = None
    """The recipe itself, where the server made it for this request."""
    version: int | None = None
    """The version of the deployment of that name by which the request was checked; None: it was not
    checked by one."""
    inputs: Mapping[str, JsonValue]
    session: str | None
    user: str | None = None
    """The label of the user for whom it runs; None: none was given."""
    key: str | None
    """The idempotency key of the request; None: it has none."""
    owner: str | None = None
    """The user to whom the caller's token is bound: the key is one of theirs, and another user's is
    another one. None: it is bound to nobody."""
    token: str | None = None
    """The name of the caller's token; None: it has none."""
    caller_tools: tuple[CallerTool, ...] = ()
    caller_choice: CallerChoice = NO_CHOICE
    """The tools that the caller brings."""
    by: str | None = None
    """When it is to be done, as the caller says it."""
    patience: str | None = None
    """The same as a duration."""

    @property
    def whole_key(self) -> str:
        """The key with its owner."""
        return self.key or "" if self.owner is None else f"{self.owner}\0{self.key}"


@frozen
class StartedRun:
    """The ids of a run that was started."""

    run_id: str
    session_id: str


@mutable
class _KeyLock:
    """A lock for requests with the same idempotency key, and how many use it."""

    lock: asyncio.Lock = field(factory=asyncio.Lock)
    count: int = 0


class RunStarter:
    """Starts runs of stored recipes, or of recipes in requests."""

    def __init__(
        self,
        recipe_store: RecipeStore,
        runtime: ServerRuntime,
        run_manager: RunManager,
        repository: StepRepository,
        *,
        deployments: DeploymentStore,
        allows_text: bool,
    ) -> None:
        """Start without runs.

        Args:
            deployments: Which versions of recipes new runs get.
            allows_text: Whether a request may contain a recipe.
        """
        self._recipe_store = recipe_store
        self._deployments = deployments
        self._deployed: frozenset[str] = frozenset()
        """The names of deployments, as they were last looked up."""
        self._looked_up_at: float | None = None
        self._runtime = runtime
        self._services = runtime.services
        self._run_manager = run_manager
        self._repository = repository
        self._journal = repository.services.journal
        self._allows_text = allows_text
        self._locks: dict[str, _KeyLock] = {}
        """The locks of idempotency keys that are in use."""

    @property
    def _threads(self) -> BlockingCalls:
        return self._services.beside

    async def begin(
        self, wanted: RequestedRun, on_prepared: Callable[[AgentRun], Awaitable[None]] | None = None
    ) -> StartedRun:
        """Start a run; returns when its start is stored. The same key and body mean the same run.

        Args:
            on_prepared: Called with a new run before it begins, so that none of its events is
                missed; None: nobody waits for them.
        Raises:
            NotFoundError: There is no such recipe or session.
            UsageError: Recipe or inputs are wrong, or the key was used for another request.
            RefusedError: A recipe in the request or a secret is not allowed, or too many runs are
                active.
            LeaseHeldError: Another run of the session is active.
        """
        if wanted.key is None:
            return await self._begin(wanted, on_prepared)
        _check_key(wanted.key)
        key = wanted.whole_key
        in_use = self._locks.setdefault(key, _KeyLock())
        in_use.count += 1
        try:
            async with in_use.lock:
                return await self._begin_once(wanted, on_prepared)
        finally:
            in_use.count -= 1
            if not in_use.count:
                del self._locks[key]

    async def _begin_once(
        self, wanted: RequestedRun, on_prepared: Callable[[AgentRun], Awaitable[None]] | None
    ) -> StartedRun:
        known = await self._known(wanted)
        if known is not None:
            return known
        try:
            return await self._begin(wanted, on_prepared)
        except LeaseHeldError:  # another process may have got the same request
            known = await self._known(wanted)
            if known is None:
                raise
            return known

    async def _known(self, wanted: RequestedRun) -> StartedRun | None:
        """The run that this key started, in any process; None: there is none.

        Raises:
            UsageError: The key was used for another request.
        """
        run_id = ids_of_key(wanted.whole_key, self._services.ids)("run")
        rows = await self._journal.entries(run_id=run_id, kinds={"run"}, limit=1)
        if not rows:
            return None
        begun = rows[0].fact
        note = begun.note if isinstance(begun, RunBeginning | RunRejected) else None
        if StartNote.of(note).asked != await self._digest(wanted):
            raise UsageError(
                f"The Idempotency-Key was used for run '{run_id}' with another body. Take a new "
                "key for a new run.",
                code="idempotency-mismatch",
            )
        return StartedRun(run_id, rows[0].session_id)

    async def _begin(
        self, wanted: RequestedRun, on_prepared: Callable[[AgentRun], Awaitable[None]] | None
    ) -> StartedRun:
        ids = self._services.ids
        recipe, noted = await self._recipe(wanted)
        if wanted.session is not None:
            await self._repository.get_session(wanted.session)
        note = self._runtime.note(is_stored=wanted.recipe is not None, token=wanted.token) | noted
        note |= self._runtime.chosen_deadline(wanted.by, wanted.patience)
        note |= StartNote(
            caller_tools=wanted.caller_tools, caller_choice=wanted.caller_choice
        ).to_json()
        if wanted.key is not None:
            ids = ids_of_key(wanted.whole_key, ids)
            note |= StartNote(asked=await self._digest(wanted)).to_json()

        def prepared() -> AgentRun[JsonValue]:
            executor = self._runtime.executor(
                recipe, wanted.inputs, is_stored=wanted.recipe is not None, note=note, ids=ids
            )
            return executor.prepare(
                recipe, wanted.inputs, session_id=wanted.session, note=note, user=wanted.user
            )

        is_long = len(recipe.steps) > _MANY_STEPS or is_large(wanted.inputs)
        run = await beside(self._threads, is_long, prepared, matches=True)
        if on_prepared is not None:
            await on_prepared(run)
        await self._run_manager.begin(run)
        return StartedRun(run.run_id, run.session_id)

    async def stored_recipe(
        self, name: str, *, session: str | None = None, key: str | None = None
    ) -> tuple[AgentRecipe, dict[str, JsonValue]]:
        """The recipe that a new run of that name gets, and what the run notes of a deployment.

        A deployment of that name says which version; else it is the recipe's file as it is now.

        Args:
            name: The id of a recipe, the name of a deployment, or `NAME@N`, one of its versions.
            session: The session that the run continues; None: a new one.
            key: Names the run for the share of a canary; None: a new name.
        Raises:
            NotFoundError: There is no such recipe, or version.
            RefusedError: The recipe has faults.
        """
        services = self._services
        asked, number = (split_name(name) if "@" in name else None) or (name, None)
        now = services.clock.monotonic()
        if self._looked_up_at is None or now - self._looked_up_at >= _LOOK_UP_NAMES_S:
            self._deployed = frozenset(await self._deployments.names())
            self._looked_up_at = now
        deployment = None
        if asked in self._deployed or asked is not name:
            deployment = await self._deployments.find(asked)
        if deployment is None:
            return await self._threads.run(lambda: self._recipe_store.get(name)), {}
        recipe, noted = await self._deployments.recipe_for(
            deployment,
            number,
            key or services.ids("run"),
            self._runtime.catalog,
            journal=services.journal,
            threads=services.beside,
            session=session,
        )
        return self._runtime.bounded(recipe), noted

    async def _recipe(self, wanted: RequestedRun) -> tuple[AgentRecipe, dict[str, JsonValue]]:
        if wanted.made is not None:
            return wanted.made, {}
        if (wanted.recipe is None) is (wanted.recipe_text is None):
            raise UsageError("Name the recipe: {'recipe': ID}.", code="bad-body")
        if wanted.recipe is not None:
            key = None if wanted.key is None else wanted.whole_key
            name = wanted.recipe
            if wanted.version is not None:
                name = f"{name.partition('@')[0]}@{wanted.version}"
            return await self.stored_recipe(name, session=wanted.session, key=key)
        if not self._allows_text:
            raise RefusedError(
                HTTPStatus.FORBIDDEN,
                "recipe-text-refused",
                "This server runs stored recipes only. `minions serve --allow-recipe-bodies` lets "
                "requests bring their own.",
            )
        text = wanted.recipe_text or ""
        return await self._threads.run(lambda: self._recipe_store.read_text(text)), {}

    async def _digest(self, wanted: RequestedRun) -> str:
        return await beside(self._threads, is_large(wanted.inputs), lambda: _digest(wanted))


def _check_key(key: str) -> None:
    if not key or len(key) > LONGEST_KEY or not (key.isascii() and key.isprintable()):
        raise UsageError(
            f"An Idempotency-Key has 1 to {LONGEST_KEY} printable ASCII characters.",
            code="bad-idempotency-key",
        )


def _digest(wanted: RequestedRun) -> str:
    """A digest of the request without its key."""
    body = {
        "recipe": wanted.recipe,
        "recipe_text": wanted.recipe_text,
        "inputs": _sort_keys(encode(wanted.inputs)),
        "session": wanted.session,
    }
    if wanted.made is not None:
        body["made"] = _sort_keys(dict(wanted.made.document or {}))
    if wanted.user is not None:
        body["user"] = wanted.user
    if wanted.caller_tools:
        body["caller_tools"] = [_sort_keys(each.to_note()) for each in wanted.caller_tools]
    if wanted.caller_choice != NO_CHOICE:
        body["caller_choice"] = wanted.caller_choice.to_note()
    body |= {
        name: each for name, each in (("by", wanted.by), ("patience", wanted.patience)) if each
    }
    digest = hashlib.sha256()
    for part in encoded_parts(body, dumps):
        digest.update(part.encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def _sort_keys(value: JsonValue) -> JsonValue:
    """The value with sorted keys: their order has no meaning."""
    if isinstance(value, Mapping):
        return {key: _sort_keys(value[key]) for key in sorted(value)}
    return [_sort_keys(each) for each in value] if isinstance(value, list) else value


# --- the run manager -----------------------------------------------------------------------------


@frozen(eq=False)
class Execution:
    """A run that this process executes now."""

    run: AgentRun
    task: asyncio.Task[AgentResult[object]]


class RunManager:
    """Executes runs in background tasks; no run is executed twice at a time."""

    def __init__(
        self,
        channels: Channels,
        log: Log,
        *,
        most: int,
        on_waiting: Callable[[str], None],
        on_ended: Callable[[AgentRun], None],
        queue: RunQueue,
        place: QueuePlace | None = None,
    ) -> None:
        """Start without runs.

        Args:
            queue: Where runs are queued that workers execute; closed here.
            place: Where all runs are queued; None: only those that were queued before.
            most: The most runs at a time.
            on_waiting: Called with the id of a run that has begun to wait for a person.
            on_ended: Called with a run that has ended.
        """
        self._on_waiting = on_waiting
        self._on_ended = on_ended
        self._queue = queue
        self._place = place
        self._channels = channels
        self._log = log
        self._most = most
        self._executions: dict[str, Execution] = {}
        self.is_closing = False
        self.lost: dict[str, str] = {}
        """By id of runs whose execution here ended without a recorded end, as when the journal was
        lost, the worker that executed them."""

    def find(self, run_id: str) -> Execution | None:
        """The execution of that run; None: this process does not execute it."""
        return self._executions.get(run_id)

    @property
    def count(self) -> int:
        """How many runs are executed now."""
        return len(self._executions)

    async def begin(self, run: AgentRun) -> None:
        """Start to execute a run in the background, or queue it for a worker; returns when its
        start is stored.

        Raises:
            RefusedError: It is active already, or there are too many runs.
            BudgetSpentError: It is new, and the budget of its session, user or day is spent.
            EnvironmentRefusedError: The server stops.
            LeaseHeldError, JournalError: The journal refused; nothing was done.
        """
        place = RunPolicy.recorded(run.note).queue or self._place
        if place is not None:
            await self._put(run, place)
            return
        await run.check_budgets()
        self._check_room(run.run_id)
        started: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def notice(_event: RunEvent) -> None:
            if not started.done():
                started.set_result(None)

        channel = self._channels.of(run.session_id)
        run.listen(channel.tell)
        run.listen(notice)
        channel.begin(run.run_id)
        task = asyncio.ensure_future(self._execute(run))
        execution = Execution(run, task)
        self._executions[run.run_id] = execution
        task.add_done_callback(lambda _: self._forget(run, has_begun=started.done()))
        await asyncio.wait((started, task), return_when=asyncio.FIRST_COMPLETED)
        if not started.done() and not task.cancelled() and (error := task.exception()) is not None:
            raise error

    async def _put(self, run: AgentRun, place: QueuePlace) -> None:
        self._check_open()
        queued = await self._queue.put(run, place)
        if queued.problem is not None:
            self._log.warning("job_not_submitted", run_id=run.run_id, reason=queued.problem)

    def _check_open(self) -> None:
        if self.is_closing:
            raise EnvironmentRefusedError(
                "The server is stopping; no run is started.", code="stopping"
            )

    def _check_room(self, run_id: str) -> None:
        self._check_open()
        if run_id in self._executions:
            raise RefusedError(
                HTTPStatus.CONFLICT, "run-active", f"Run '{run_id}' is executed already."
            )
        if self.count >= self._most:
            raise RefusedError(
                HTTPStatus.TOO_MANY_REQUESTS,
                "too-many-runs",
                f"{self.count} runs are executed, which is the limit.",
                headers={"retry-after": "5"},
            )

    async def _execute(self, run: AgentRun) -> AgentResult[object]:
        result = await run.execute()
        if run.has_recorded_end and result.status is RunStatus.NEEDS_DECISION:
            self._on_waiting(run.run_id)
        elif run.has_recorded_end:
            self._on_ended(run)
        if not run.has_recorded_end:
            self._lose(run)
            if _was_taken_over(result):  # followers read on what the other worker records
                return result
            # No row has the end, so followers get it here.
            now = run.context.scope.services.clock.now()
            error = result.error.to_document() if result.error is not None else None
            event = RunFailed(
                run_id=run.run_id,
                session_id=run.session_id,
                timestamp=now,
                status=result.status.value,
                data={"error": error},
            )
            self._channels.of(run.session_id).tell(event)
        return result

    def _forget(self, run: AgentRun, *, has_begun: bool) -> None:
        task = self._executions.pop(run.run_id).task
        error = None if task.cancelled() else task.exception()
        goes_on = not task.cancelled() and error is None and _was_taken_over(task.result())
        self._channels.of(run.session_id).end(run.run_id, ends_streams=has_begun and not goes_on)
        if error is not None and has_begun:  # else the caller of `begin` gets it
            self._log.warning("run_not_executed", run_id=run.run_id, error=words_of(error))
            self._lose(run)

    def _lose(self, run: AgentRun) -> None:
        self.lost[run.run_id] = run.context.scope.services.worker_id

    def cancel(self, run_id: str) -> bool:
        """Cancel that run; False: this process does not execute it."""
        execution = self._executions.get(run_id)
        if execution is not None:
            execution.run.cancel()
        return execution is not None

    async def aclose(self, grace_s: float) -> None:
        """Cancel all runs; every one of them can be resumed.

        Args:
            grace_s: How many seconds runs have to end; later ones are left as if they were killed.
        """
        self.is_closing = True
        tasks = [execution.task for execution in self._executions.values()]
        for execution in tuple(self._executions.values()):
            execution.run.cancel()
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=grace_s)
            for task in late:
                task.cancel()
        await self._queue.aclose()


def _was_taken_over(result: AgentResult[object]) -> bool:
    """Whether another worker executes the run, or did so: this one stood still for too long."""
    return result.error is not None and result.error.code == FencedError.code


# --- one lock for each run -----------------------------------------------------------------------


class RunLocks:
    """Locks by the id of their run, which exist as long as somebody uses them."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def of(self, run_id: str) -> asyncio.Lock:
        """The lock of that run."""
        return self._locks.setdefault(run_id, asyncio.Lock())

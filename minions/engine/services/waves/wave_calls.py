"""Model calls that may wait: asked together in the batches of providers, at a lower price.

Each run stands at its next call; a wave is what waits at one model. What was sent is known from the
journal: a fact of each call names its wave, and the wave's record, beside the journal, the batch.
"""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from datetime import datetime, timedelta
from hashlib import blake2b
from typing import Final, Never, TypeAlias

from attrs import evolve
from msgspec import Struct
from msgspec.structs import replace
from returns.result import Failure, Result, Success

from minions.contracts.batch_apis import BatchApi, BatchLine, BatchRequest, BatchStatus, LineEnd
from minions.contracts.budgets import BudgetStore
from minions.contracts.calls import ChatModel, ModelCallResponse, ModelFailure, Prompt
from minions.contracts.journal.facts import BatchCallExpired, BatchCallQueued, BatchCallSubmitted
from minions.contracts.patience import LateError, ParkedError, PatientCall, PatientCalls, WakeRuns
from minions.contracts.retry_config import RetryConfig
from minions.engine.services.run_services import Services, worker_name
from minions.engine.services.waves.wave_record import (
    StoredWatch,
    StoredWave,
    WaveRecord,
    WaveState,
    WaveWatch,
    is_watched,
    remove_old_waves,
    wave_start,
)

QUIET_S: Final = 2.0
"""Seconds without a further call after which a wave is sent, where every run waits."""
LONG_QUIET_S: Final = 60.0
"""Seconds without a further call after which it is sent although runs do other work."""
LONGEST_GATHER_S: Final = 600.0
"""Seconds after which a call is sent although others are added all the time."""
PARKED_QUIET_S: Final = 10.0
"""Seconds without a further call after which a wave of runs that are not executed is sent."""
FIRST_POLL_S: Final = 10.0
LAST_POLL_S: Final = 300.0
"""Seconds between two looks at a batch: at first, and at last."""
_POLL_GROWTH: Final = 1.5
_SETTLE_S: Final = 30.0
"""Seconds after which a list of batches has one that was created, if any."""
_SKEW: Final = timedelta(minutes=5)
"""By how much the clock of a provider may differ."""
_MOST_REFUSALS: Final = 8
"""Batches in a row that a provider refuses as a whole, each a quarter of the one before; then all
calls fail.
"""
_REFUSED_AS_A_WHOLE: Final = frozenset({400, 413, 422})
"""HTTP statuses of a creation that one request, or the size of all, may have caused."""
_MOST_UNKNOWN: Final = 4
"""How often in a row a provider may not know a batch that it created."""
_LEAST_READS: Final = 2
_MOST_READS: Final = 5
"""How often results are read that lack requests: at least, and at most where the provider counts
more than were found.
"""
_MOST_ROUNDS: Final = 5
"""Batches in which one call may remain without an answer, before it fails."""
_MOST_REQUESTS: Final = 15
"""Requests of one call in all processes, before the call fails."""
_SLOT_S: Final = 300.0
"""Runs that are to be done within so many seconds of each other share waves."""
_MOST_KEPT: Final = 67_108_864
"""Bytes of answers that are kept for runs which are resumed for them; others are read again."""
_RETRIES: Final = RetryConfig(initial_delay=5.0, max_delay=300.0)

ASSUMED_LIVE_S: Final = 30.0
"""Seconds that a call takes that is made alone, as long as none was measured."""
ASSUMED_AT_ONCE: Final = 16
"""Calls that are answered at the same time, where the server says nothing of it."""
_MARGIN_S: Final = 60.0
"""Seconds that are kept free before the time by which answers have to be there."""


class _Late(Struct, frozen=True):
    """A line is asked at once instead."""

    reason: str


class _Again(Struct, frozen=True):
    """A line has no answer: it is asked in another wave."""

    reason: str
    """`expired`, `cancelled`, `failed`, `missing` or `not-created`."""


_REFUSED: Final = "failed"
"""The reason of lines whose batch was refused as a whole."""

_End: TypeAlias = BatchLine | ModelFailure | _Late | _Again


class _Line(Struct, eq=False, kw_only=True):
    """One request that waits for its answer."""

    call: PatientCall
    custom_id: str
    attempt: int
    body: bytes
    request: str
    """A digest of the body: another prompt is another request, whatever its key."""
    answered: asyncio.Future[_End]
    batch_id: str | None = None
    """The batch in which it was answered; None: it was not."""
    since: float = 0.0
    """When it began to wait for a wave, by the monotonic clock."""
    keep: Callable[[str, _End, str | None], None] | None = None
    """Keeps its end, where its run has parked; None: the run waits for it."""

    def end(self, how: _End | BaseException) -> None:
        """Tell who waits; nobody does where the run was cancelled."""
        if self.answered.done():
            return
        if self.keep is not None:
            self.answered.cancel()
            if not isinstance(how, BaseException):
                self.keep(self.custom_id, how, self.batch_id)
        elif isinstance(how, BaseException):
            self.answered.set_exception(how)
        else:
            self.answered.set_result(how)


def custom_id_of(run_id: str, key: str, attempt: int) -> str:
    """The id of a request: the same in every process, and of no other call or attempt."""
    digest = blake2b(f"{run_id}\0{key}\0{attempt}".encode("utf-8", "surrogatepass"), digest_size=16)
    return f"m-{digest.hexdigest()}"


class WaveCalls(PatientCalls):
    """The calls of a process that wait, by model, and the waves that are under way."""

    def __init__(
        self,
        services: Services,
        store: BudgetStore,
        *,
        tell: Callable[[str], None] | None = None,
        close: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Nothing waits yet.

        Args:
            services: Clock, sleep, random and log are those of the runs.
            store: Keeps the records of waves, for every process of the journal.
            tell: Called with a line for people when a wave was sent, was answered, or is late;
                None: the log says it.
            close: Closes the store, at last; None: it is the caller's.
        """
        self.services = services
        self._clock = services.clock
        self._log = services.log
        self.store = store
        self.owner = worker_name(services.ids("wave"))
        self.tell = tell or (lambda line: services.log.info("batch_calls", line=line))
        self._expected_runs = 0
        self._close = close
        self._groups: dict[tuple[object, ...], _Group] = {}
        self._waves: dict[str, _Wave] = {}
        self._attempts: dict[tuple[str, str], int] = {}
        """Of calls that are asked again in this process: the newest attempt."""
        self._counts: dict[str, int] = {}
        """By run that is executed: how many calls it has asked."""
        self._begun = 0
        self._most_calls = 1
        self._live_s: float | None = None
        """Seconds of a call that is made alone, as measured."""
        self._kept: OrderedDict[str, _ParkedEnd] = OrderedDict()
        """By custom id: ends of calls whose runs have parked."""
        self._kept_bytes = 0
        self._wake: WakeRuns | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._without: set[str] = set()
        """Names of models without a batch API that were asked."""

    async def answer(
        self, model: ChatModel, api: BatchApi, prompt: Prompt, call: PatientCall
    ) -> Result[ModelCallResponse, ModelFailure]:
        if call.recorded is None:  # else a resumed run asks for it again
            self._count(call.run_id)
        written = api.write(prompt)
        if not isinstance(written, Success):
            return Failure(written.failure())
        group = self._group(model, api, call.by)
        place = (call.run_id, call.key)
        try:
            outcome = await self._answer_in(group, prompt, written.unwrap(), call)
        except (LateError, ParkedError):
            self._attempts.pop(place, None)
            raise
        if isinstance(outcome, Success):
            self._attempts.pop(place, None)
        return outcome

    async def _answer_in(
        self, group: _Group, prompt: Prompt, body: bytes, call: PatientCall
    ) -> Result[ModelCallResponse, ModelFailure]:
        request = blake2b(body, digest_size=16).hexdigest()
        place = (call.run_id, call.key)
        attempt = self._attempts.get(place)
        if attempt is None and call.recorded is not None:
            attempt, recorded = call.recorded.attempt, call.recorded
            if isinstance(recorded, BatchCallSubmitted) and recorded.request == request:
                line = self._line(call, attempt, body, request)
                end = self._take_kept(line)
                if end is None:
                    wave = await self._known_wave(recorded.wave, group, may_park=call.may_park)
                    end = await wave.end_of(line) if wave is not None else None
                if end is not None:
                    answered = await self._answer_from(group.api, prompt, line, end)
                    if answered is not None:
                        self._attempts[place] = attempt
                        return answered
        rounds = 0
        while rounds < _MOST_ROUNDS and (attempt or 0) < _MOST_REQUESTS:
            if group.is_late:
                group.tell_late()
                raise LateError
            attempt = (attempt or 0) + 1
            self._attempts[place] = attempt
            line = self._line(call, attempt, body, request)
            await call.record(
                BatchCallQueued(
                    step_id=call.step_id,
                    custom_id=line.custom_id,
                    attempt=attempt,
                    request=request,
                )
            )
            end = await (group.park(line) if call.may_park else group.add(line))
            answered = await self._answer_from(group.api, prompt, line, end)
            if answered is not None:
                return answered
            is_refusal = isinstance(end, _Again) and end.reason == _REFUSED
            rounds += not is_refusal  # of refusals the group keeps count
        what = f"{max(rounds, 1)} batches of '{group.model}' ended without an answer to this call."
        return Failure(ModelFailure(code="batch-failed", message=what))

    def note_without_batches(self, model: str) -> None:
        """As the contract says; it is told once."""
        if model not in self._without:
            self._without.add(model)
            self.tell(f"{model}: it has no batch API, its calls are made at once")

    def note_live(self, seconds: float) -> None:
        known = self._live_s
        self._live_s = seconds if known is None else known + (seconds - known) / 8

    def expect_runs(self, count: int) -> None:
        self._expected_runs = count

    def wake_with(self, wake: WakeRuns) -> None:
        self._wake = wake

    async def has_news(self, run_id: str, waves: Collection[str]) -> bool:
        now, is_gone = self._clock.now(), self.services.is_worker_gone
        for wave_id in waves:
            if (own := self._waves.get(wave_id)) is not None:
                own.add_run(run_id)
            elif not await is_watched(self.store, wave_id, now, is_gone):
                return True
        return False

    async def aclose(self) -> None:
        tasks = [*self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._close is not None:
            await self._close()

    # --- runs that have parked -------------------------------------------------------------------

    def keep(self, custom_id: str, end: _End, batch_id: str | None) -> None:
        """Keep the end of a line until its run is resumed; the oldest go where there are many."""
        before = self._kept.pop(custom_id, None)
        kept = self._kept[custom_id] = _ParkedEnd(end, batch_id)
        self._kept_bytes += kept.size - (0 if before is None else before.size)
        while self._kept_bytes > _MOST_KEPT:
            _, oldest = self._kept.popitem(last=False)
            self._kept_bytes -= oldest.size

    def _take_kept(self, line: _Line) -> _End | None:
        kept = self._kept.pop(line.custom_id, None)
        if kept is None:
            return None
        self._kept_bytes -= kept.size
        line.batch_id = kept.batch_id
        return kept.end

    async def wake(self, run_ids: Collection[str]) -> None:
        """Let these runs be resumed now; where that fails, they are looked at later."""
        if self._wake is None or not run_ids:
            return
        try:
            await self._wake(run_ids)
        except Exception as error:  # noqa: BLE001  # whatever the queue raises: the wave has ended
            self._log.warning("runs_not_woken", reason=str(error))

    # --- for groups and waves --------------------------------------------------------------------

    def begin(self, work: Awaitable[None]) -> None:
        """Do that beside others, until `aclose`."""

        async def done() -> None:
            await work

        task = asyncio.ensure_future(done())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def add_wave(self, wave: _Wave) -> None:
        """The wave is under way in this process."""
        self._waves[wave.id] = wave

    def remove_wave(self, wave: _Wave) -> None:
        """It is not any more."""
        self._waves.pop(wave.id, None)

    def all_wait(self) -> bool:
        """Whether every run that is executed waits for an answer of a batch."""
        waiting = {run_id for group in self._groups.values() for run_id in group.waiting_runs()}
        for wave in self._waves.values():
            waiting.update(line.call.run_id for line in wave.lines.values())
        return waiting >= self.services.executing

    def live_s(self, group: _Group) -> float:
        """Seconds that what is left would take, if its calls were made at once from now on."""
        self._forget_ended()
        waves = (wave for wave in self._waves.values() if wave.group is group)
        in_waves = (line.call.run_id for wave in waves for line in wave.lines.values())
        by_run = [
            max(1, self._most_calls - self._counts.get(run_id, 1) + 1)
            for run_id in {*group.waiting_runs(), *in_waves}
        ]
        later = max(0, self._expected_runs - self._begun) * self._most_calls
        each_s = self._live_s or ASSUMED_LIVE_S
        rounds = max(by_run, default=self._most_calls)
        return _MARGIN_S + each_s * (rounds + (sum(by_run) + later) / group.at_once)

    def _count(self, run_id: str) -> None:
        count = self._counts[run_id] = self._counts.get(run_id, 0) + 1
        self._begun += count == 1
        self._most_calls = max(self._most_calls, count)

    def _forget_ended(self) -> None:
        executing = self.services.executing
        if len(self._counts) > 2 * len(executing) + 100:
            self._counts = {run: count for run, count in self._counts.items() if run in executing}

    def _group(self, model: ChatModel, api: BatchApi, by: datetime) -> _Group:
        endpoint = model.endpoint
        by -= timedelta(seconds=by.timestamp() % _SLOT_S)
        key = (endpoint, model.name, by, asyncio.get_running_loop())
        group = self._groups.get(key)
        if group is None or group.api is not api:
            # Those of an earlier time wait for nothing: a long-lived process forgets them.
            self._groups = {own: each for own, each in self._groups.items() if not each.is_idle}
            limits = endpoint.limits if endpoint is not None else None
            most = limits.max_concurrency if limits is not None else None
            at_once = min(most or ASSUMED_AT_ONCE, ASSUMED_AT_ONCE)
            group = self._groups[key] = _Group(self, model.name, api, by, at_once)
        return group

    def _line(self, call: PatientCall, attempt: int, body: bytes, request: str) -> _Line:
        return _Line(
            call=call,
            custom_id=custom_id_of(call.run_id, call.key, attempt),
            attempt=attempt,
            body=body,
            request=request,
            answered=asyncio.get_running_loop().create_future(),
        )

    async def _answer_from(
        self, api: BatchApi, prompt: Prompt, line: _Line, end: _End
    ) -> Result[ModelCallResponse, ModelFailure] | None:
        """What the end of a line means to its call; None: it is asked again.

        Raises:
            LateError: It is asked at once.
        """
        if isinstance(end, BatchLine):
            return api.read(prompt, end).map(lambda each: evolve(each, batch=line.batch_id))
        if isinstance(end, ModelFailure):
            return Failure(end)
        call = line.call
        await call.record(
            BatchCallExpired(
                step_id=call.step_id,
                custom_id=line.custom_id,
                attempt=line.attempt,
                reason="late" if isinstance(end, _Late) else end.reason,
            )
        )
        if isinstance(end, _Late):
            raise LateError
        return None

    # --- waves of earlier processes --------------------------------------------------------------

    async def _known_wave(self, wave_id: str, group: _Group, *, may_park: bool) -> _Wave | None:
        """The wave that an earlier execution sent, or may have sent; None: it did not.

        Raises:
            LateError: Another process is about to create its batch, and it is too late to wait.
            ParkedError: Another process is about to create it, and the run may park.
        """
        while True:
            known = self._waves.get(wave_id)
            if known is not None:
                return known
            stored = await StoredWave.find(self.store, wave_id)
            known = self._waves.get(wave_id)  # another call has looked meanwhile
            if known is not None:
                return known
            if stored is None or stored.record.state is WaveState.DROPPED:
                return None
            record, now = stored.record, self._clock.now()
            if record.state is WaveState.CREATED:
                return _Wave(group, stored).start()
            if record.is_left(now, self.services.is_worker_gone):
                if record.state is WaveState.PREPARED:
                    dropped = replace(record, state=WaveState.DROPPED, custom_ids=())
                    await stored.replace(dropped)
                elif await stored.replace(replace(record, owner=self.owner, at=now)):
                    return _Wave(group, stored).start()
                continue
            if group.is_late:
                raise LateError
            if may_park:
                raise ParkedError(wave_id)
            await self.services.sleep(FIRST_POLL_S)


class _ParkedEnd(Struct, frozen=True):
    """The end of a call whose run has parked."""

    end: _End
    batch_id: str | None

    @property
    def size(self) -> int:
        """Bytes, about."""
        return 500 + (len(self.end.body) if isinstance(self.end, BatchLine) else 0)


class _Group:
    """The calls to one model that are to be done by the same time."""

    def __init__(
        self, calls: WaveCalls, model: str, api: BatchApi, by: datetime, at_once: int
    ) -> None:
        self.calls = calls
        self.model = model
        self.api = api
        self.by = by
        self.at_once = at_once
        self._services = calls.services
        self._clock = calls.services.clock
        self._limits = api.limits
        self._refusals = 0
        """Batches in a row that the provider refused as a whole."""
        self._most = self._limits.max_requests
        self._refused_size = self._most + 1
        """As many requests, or more, were refused."""
        self._sends_one = False
        """Whether a batch was refused beside others: each waits for the end of the one before."""
        self._waiting: list[_Line] = []
        self._open: _Wave | None = None
        """The wave that further calls of runs that park join."""
        self._waves = 0
        self._is_gathering = False
        self._is_late_told = False
        self._arrived_at = 0.0
        self._estimate_s = 0.0
        self._estimate_until = -math.inf

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits and no wave is under way."""
        return not self._waiting and not self._waves and self._open is None

    @property
    def left_s(self) -> float:
        """Seconds until all that is left has to be made at once; negative: since then."""
        clock = self._clock
        if clock.monotonic() >= self._estimate_until:  # all that waits is looked at
            self._estimate_s = self.calls.live_s(self)
            self._estimate_until = clock.monotonic() + QUIET_S
        return (self.by - clock.now()).total_seconds() - self._estimate_s

    @property
    def is_late(self) -> bool:
        """Whether no further batch is worth it: it would soon be cancelled."""
        return self.left_s <= self._limits.cancel_s

    def tell_late(self) -> None:
        """Say, once, that calls do not wait any more."""
        if not self._is_late_told:
            self._is_late_told = True
            by = self.by.astimezone()
            words = f"calls are made at once from now on, to be done by {by:%Y-%m-%d %H:%M}"
            self.calls.tell(f"{self.model}: {words}")

    def waiting_runs(self) -> Iterable[str]:
        """The runs with a call that is in no wave yet."""
        return (line.call.run_id for line in self._waiting if not line.answered.done())

    async def add(self, line: _Line) -> _End:
        """The end of the line, in one of the next waves."""
        self._waiting.append(line)
        self._arrived_at = line.since = self._clock.monotonic()
        if not self._is_gathering:
            self._is_gathering = True
            self.calls.begin(self._gather())
        return await line.answered

    async def park(self, line: _Line) -> Never:
        """Put the line into the wave that is gathered; its run may end its execution.

        The call is told of the wave while its run is executed, and the wave is sent without it.

        Raises:
            ParkedError: It is done.
        """
        size = len(line.body) + 200  # and what is around it
        wave = self._open
        if wave is None or not wave.has_room(size, self._most):
            wave = self._open = _Wave(self, StoredWave(self.calls.store, self._new_record()))
            self.calls.add_wave(wave)
            self.calls.begin(self._gather_parked(wave))
        await wave.join(line, size)
        raise ParkedError(wave.id)

    async def _gather_parked(self, wave: _Wave) -> None:
        """Send the wave when no further run comes."""
        try:
            await self._gather_until_due(wave)
            await wave.are_joined()
        except asyncio.CancelledError:
            await wave.leave()  # it was not sent, and other processes need not wait for this one
            raise
        self._waves += 1
        try:
            if self.is_late:
                wave.end_all(_Late("late"))
            wave.start()
            wave.is_told.set()
            await wave.has_ended.wait()
        finally:
            self._waves -= 1

    async def _gather_until_due(self, wave: _Wave) -> None:
        """Let runs join the wave until it is to be sent."""
        calls, begin = self.calls, self._clock.monotonic()
        try:
            await remove_old_waves(calls.store, self._clock.now())
            await wave.store()
            await wave.keep_watch()
            while self._open is wave or (self._sends_one and self._waves > 0):
                await self._services.sleep(QUIET_S if self._open is wave else LONG_QUIET_S)
                now = self._clock.monotonic()
                quiet_s = now - wave.arrived_at
                is_due = quiet_s >= PARKED_QUIET_S and calls.all_wait()
                is_due = is_due or quiet_s >= LONG_QUIET_S or now - begin >= LONGEST_GATHER_S
                if self._open is wave and (is_due or self.is_late):
                    self._open = None
                if self.is_late:
                    self.tell_late()
                    return
        except Exception as error:  # noqa: BLE001  # its runs are told, and ask again
            wave.fail(error)
        finally:
            self._open = None if self._open is wave else self._open

    async def _gather(self) -> None:
        """Send waves as long as something waits."""
        try:
            while True:
                is_held = self._sends_one and self._waves > 0
                await self._services.sleep(LONG_QUIET_S if is_held else QUIET_S)
                self._waiting = [each for each in self._waiting if not each.answered.done()]
                if not self._waiting:
                    return
                if self.is_late:
                    self.tell_late()
                    for line in self._waiting:
                        line.end(_Late("late"))
                    continue
                now = self._clock.monotonic()
                quiet_s = now - self._arrived_at
                is_due = quiet_s >= QUIET_S and self.calls.all_wait()
                is_due = is_due or quiet_s >= LONG_QUIET_S or len(self._waiting) >= self._most
                is_due = is_due or now - self._waiting[0].since >= LONGEST_GATHER_S
                if is_due and not (self._sends_one and self._waves > 0):
                    self._send()
        except Exception as error:  # noqa: BLE001  # whatever it is, runs must not wait for ever
            for line in self._waiting:
                line.end(error)
        finally:
            self._is_gathering = False

    def _send(self) -> None:
        """Begin a wave with as much of what waits as a batch holds."""
        size = 0
        taken: list[_Line] = []
        while self._waiting and len(taken) < self._most:
            size += len(self._waiting[0].body) + 200  # and what is around it
            if taken and size > self._limits.max_bytes:
                break
            taken.append(self._waiting.pop(0))
        self.calls.begin(self._wave(taken))

    async def _wave(self, lines: Sequence[_Line]) -> None:
        """Tell the calls of their wave, then create its batch."""
        store = self.calls.store
        record = self._new_record(tuple(line.custom_id for line in lines))
        self._waves += 1
        try:
            await remove_old_waves(store, record.at)
            wave = _Wave(self, StoredWave(store, record))
            await wave.store()
            for line in lines:
                wave.lines[line.custom_id] = line
            wave.start()
            told = (_tell_wave(line, record.id) for line in lines)
            outcomes = await asyncio.gather(*told, return_exceptions=True)
            for line, outcome in zip(lines, outcomes, strict=True):
                if isinstance(outcome, BaseException):
                    line.end(outcome)
            wave.is_told.set()
            await wave.has_ended.wait()
        except Exception as error:  # noqa: BLE001  # whatever it is, runs must not wait for ever
            for line in lines:
                line.end(error)
        finally:
            self._waves -= 1

    def _new_record(self, custom_ids: tuple[str, ...] = ()) -> WaveRecord:
        now = self._clock.now()
        return WaveRecord(
            id=self._services.ids(wave_start(now)),
            state=WaveState.PREPARED,
            model=self.model,
            owner=self.calls.owner,
            at=now,
            custom_ids=custom_ids,
        )

    @property
    def is_alone(self) -> bool:
        """Whether only one of its waves is under way."""
        return self._waves <= 1

    def note_taken(self, count: int) -> None:
        """The provider took a batch with so many requests."""
        self._refusals = 0
        self._most = min(max(self._most, 2 * count), self._refused_size - 1)

    def note_refusal(self, failure: ModelFailure, count: int, *, was_alone: bool) -> _End:
        """What becomes of the calls of a batch that was refused as a whole: they are asked again,
        fewer together, until the one is found that is to blame.

        Args:
            failure: Why it was refused.
            was_alone: Whether no other batch was under way; else all together may have been more
                than the provider takes at a time.
        """
        if not was_alone and not self._sends_one:
            self._sends_one = True
            return _Again(_REFUSED)
        self._refusals += 1
        if self._refusals >= _MOST_REFUSALS:
            for line in self._waiting:
                line.end(failure)
        if count == 1:
            self._refused_size = self._limits.max_requests + 1
        if count == 1 or self._refusals >= _MOST_REFUSALS:
            return failure
        self._refused_size = min(self._refused_size, count)
        self._most = max(1, count // 4)
        return _Again(_REFUSED)


async def _tell_wave(line: _Line, wave_id: str) -> None:
    """Record in which wave the line is, before anything is sent."""
    if not line.answered.done():  # else its run was cancelled, and has an end
        await line.call.record(
            BatchCallSubmitted(
                step_id=line.call.step_id,
                custom_id=line.custom_id,
                attempt=line.attempt,
                wave=wave_id,
                request=line.request,
            )
        )


class _Wave:
    """A wave that is under way: creates its batch, awaits its end, and hands out the answers."""

    def __init__(self, group: _Group, stored: StoredWave) -> None:
        self.group = group
        self._api = group.api
        self._limits = group.api.limits
        self._calls = group.calls
        self._services = services = group.calls.services
        self._clock = services.clock
        self._log = services.log
        self.id = stored.record.id
        self.lines: dict[str, _Line] = {}
        """Who waits, by custom id."""
        self.is_told = asyncio.Event()
        """Set when the calls of a new wave are told of it."""
        self.has_ended = asyncio.Event()
        self._size = 0
        """Bytes of its requests."""
        self._count = 0
        """Calls that joined it."""
        self.arrived_at = self._clock.monotonic()
        """When the last call joined it."""
        self._joining = 0
        self._is_stored = asyncio.Event()
        self._problem: Exception | None = None
        self._parked: set[str] = set()
        """The runs that are to be resumed when it has ended."""
        self._watch = StoredWatch(group.calls.store, stored.record.id)
        self._has_looked = asyncio.Event()
        """Set when the provider was asked for the first time, or will not be."""
        self._stored = stored
        self._is_new = stored.record.state is WaveState.PREPARED
        self._was_alone = True
        """Whether no other wave of the group was under way when the batch was created."""
        self._is_cancelled = False
        """Whether this process cancelled the batch, to be in time."""
        self._status: BatchStatus | None = None
        """That of the batch when it had ended; None: it has not."""

    @property
    def _record(self) -> WaveRecord:
        """What is known of it now."""
        return self._stored.record

    def start(self) -> _Wave:
        """Follow it from now on."""
        self._calls.add_wave(self)
        self._calls.begin(self._follow())
        return self

    async def end_of(self, line: _Line) -> _End:
        """The end of a line that an earlier execution put into the wave.

        Raises:
            ParkedError: The batch has not ended, and the run of the line may park.
        """
        self.lines[line.custom_id] = line
        if line.call.may_park:
            if self._record.state is WaveState.CREATED:
                await self._has_looked.wait()
            if self._status is None and not line.answered.done():
                self._add_parked(line)
                raise ParkedError(self.id)
        return await line.answered

    # --- calls of runs that park -----------------------------------------------------------------

    async def store(self) -> None:
        """Store the record of a new wave.

        Raises:
            RuntimeError: There is one of that id.
            JournalError: It could not be stored.
        """
        if not await self._stored.replace(self._record):
            raise RuntimeError(f"there is a wave {self.id} already")
        self._is_stored.set()

    def has_room(self, size: int, most: int) -> bool:
        """Whether a request of so many bytes fits into its batch, which has `most` of them."""
        limits = self._limits
        return self._count < min(most, limits.max_requests) and (
            self._count == 0 or self._size + size <= limits.max_bytes
        )

    async def join(self, line: _Line, size: int) -> None:
        """Add a call to a wave that is not sent yet, and record that.

        Raises:
            JournalError: A fact or the record could not be stored.
        """
        self._joining += 1
        self._count += 1
        self._size += size
        self.arrived_at = self._clock.monotonic()
        try:
            await self._is_stored.wait()
            if self._problem is not None:
                raise self._problem
            await _tell_wave(line, self.id)
            self._add_parked(line)
        finally:
            self._joining -= 1

    def fail(self, error: Exception) -> None:
        """The wave cannot be sent: who joins it is told why."""
        self._problem = error
        self._is_stored.set()

    async def are_joined(self) -> None:
        """Wait until all that join it have done so."""
        while self._joining:
            await self._services.sleep(0.1)

    def _add_parked(self, line: _Line) -> None:
        line.keep = self._calls.keep
        self.lines[line.custom_id] = line
        self._parked.add(line.call.run_id)

    def add_run(self, run_id: str) -> None:
        """Wake that run, too, which parked for the wave in an earlier process."""
        self._parked.add(run_id)

    async def keep_watch(self) -> None:
        """Let other processes know that this one looks at the batch."""
        await self._watch.keep(WaveWatch(self._calls.owner, self._clock.now()))

    # --- the way of a wave -----------------------------------------------------------------------

    async def _follow(self) -> None:
        try:
            if self._is_new:
                await self.is_told.wait()
                await self._create()
            elif self._record.state is WaveState.CREATING:
                await self._settle()
            while self._record.state is WaveState.CREATED and self._pending():
                await self._until_ended()
                if self._status is not None:
                    await self._read_results(self._status)
                elif self._pending():
                    self._go_live("the batch had not ended")
            self.end_all(_Again("not-created"))
        except Exception as error:  # noqa: BLE001  # whatever it is, runs must not wait for ever
            self.end_all(error)
        finally:
            self.has_ended.set()
            self._has_looked.set()
            self._calls.remove_wave(self)
            await self.leave()
        await self._calls.wake(self._parked)

    async def _create(self) -> None:
        """Create the batch, once: where nobody heard whether it was, it is looked for first."""
        group, api = self.group, self._api
        lines = self._pending()
        if not lines:
            await self._keep(state=WaveState.DROPPED)
            return
        requests = [BatchRequest(line.custom_id, line.body) for line in lines]
        custom_ids = tuple(each.custom_id for each in requests)
        failures = 0
        uploaded: Result[str | None, ModelFailure] | None = None
        while True:
            if not isinstance(uploaded, Success):  # else a further file would hide what was created
                uploaded = await api.upload(self.id, requests)
            outcome: Result[str, ModelFailure]
            if isinstance(uploaded, Success):
                file = uploaded.unwrap()
                is_kept = await self._keep(
                    state=WaveState.CREATING, uploaded=file, custom_ids=custom_ids
                )
                if not is_kept:
                    return  # another process took the wave for one of a dead process
                self._was_alone = group.is_alone
                outcome = await api.create(self.id, requests, file)
            else:
                outcome = Failure(uploaded.failure())
            if isinstance(outcome, Success):
                await self._note_batch(outcome.unwrap())
                return
            failure = outcome.failure()
            if not failure.is_retryable:
                await self._keep(state=WaveState.DROPPED)
                self.end_all(self._end_of_refusal(failure, len(requests)))
                return
            failures += 1
            if isinstance(uploaded, Success) and failure.status != 429:
                await self._settle(drops=False)
                if self._record.state is WaveState.CREATED or not self._pending():
                    return
            delay_s = failure.retry_after_s
            if delay_s is None:
                delay_s = _RETRIES.delay_s(failures, self._services.random())
            self._log.warning("batch_not_created", code=failure.code, delay_s=delay_s)
            if group.left_s <= delay_s:
                await self._keep(state=WaveState.DROPPED)
                self._go_live(failure.message)
                return
            await self._services.sleep(delay_s)

    def _end_of_refusal(self, failure: ModelFailure, count: int) -> _End:
        """What becomes of the calls of a batch that was not created."""
        if failure.status not in _REFUSED_AS_A_WHOLE:
            return failure
        return self.group.note_refusal(failure, count, was_alone=self._was_alone)

    async def _settle(self, *, drops: bool = True) -> None:
        """Find out whether the batch was created.

        Args:
            drops: Whether the wave is given up where it was not.
        """
        group, record = self.group, self._record
        sent_at, poll_s = record.sent_at or record.at, _SETTLE_S
        while True:
            await self._services.sleep(poll_s)
            found = await self._api.find(
                record.id, record.uploaded, record.custom_ids, sent_at - _SKEW
            )
            if isinstance(found, Success):
                batch_id = found.unwrap()
                if batch_id is not None:
                    await self._note_batch(batch_id)
                elif drops:
                    await self._keep(state=WaveState.DROPPED)
                return
            failure = found.failure()
            if not failure.is_retryable:
                self.end_all(failure)
                return
            if group.is_late:
                self._go_live(failure.message)
                return
            poll_s = min(poll_s * _POLL_GROWTH, LAST_POLL_S)

    async def _note_batch(self, batch_id: str) -> None:
        calls = self._calls
        count = len(self._record.custom_ids)
        if await self._keep(state=WaveState.CREATED, batch_id=batch_id, custom_ids=None):
            calls.tell(f"{self.group.model}: {count} calls in batch {batch_id}")
            return
        # Another process took this one for dead, and has found the batch, or looks for it, or not.
        stored = await StoredWave.find(calls.store, self.id)
        if stored is None or stored.record.state is WaveState.DROPPED:
            await self._api.cancel(batch_id)
            return
        self._stored = stored
        if stored.record.state is not WaveState.CREATED:
            await self._note_batch(batch_id)

    async def _until_ended(self) -> None:
        """Wait for the end of the batch, which is cancelled where it would be late."""
        group, batch_id = self.group, self._record.batch_id or ""
        poll_s, failures = FIRST_POLL_S, 0
        gives_up_at, unknown = 0.0, 0
        while self._status is None and self._pending():
            if self._parked:
                await self.keep_watch()
            asked_status = await self._api.status(batch_id)
            if isinstance(asked_status, Success):
                failures = unknown = 0
                status = asked_status.unwrap()
                if status.has_ended:
                    self._status = status
                    return
                self._has_looked.set()
            else:
                failure = asked_status.failure()
                unknown = unknown + 1 if failure.status == 404 else 0
                if unknown >= _MOST_UNKNOWN:
                    failure = self._unknown_batch(batch_id)
                if not failure.is_retryable and not 0 < unknown < _MOST_UNKNOWN:
                    self.end_all(failure)
                    return
                failures += 1
                self._has_looked.set()
                poll_s = max(poll_s, _RETRIES.delay_s(failures, self._services.random()))
                self._log.warning("batch_not_read", code=failure.code, batch=batch_id)
            left_s, cancel_s = group.left_s, self._limits.cancel_s
            if not self._is_cancelled and left_s <= cancel_s:
                asked = await self._api.cancel(batch_id)
                self._is_cancelled = isinstance(asked, Success)
                if self._is_cancelled:
                    self._calls.tell(f"{group.model}: batch {batch_id} is cancelled, to be in time")
                    poll_s, gives_up_at = FIRST_POLL_S, self._clock.monotonic() + cancel_s
            if self._is_cancelled:  # what it answers meanwhile need not be paid again
                left_s = max(left_s, gives_up_at - self._clock.monotonic())
            if left_s <= 0:
                return
            wait_s = min(poll_s, left_s if self._is_cancelled else max(left_s - cancel_s, 1.0))
            await self._services.sleep(max(wait_s, 0.1))
            poll_s = min(poll_s * _POLL_GROWTH, LAST_POLL_S)

    def _unknown_batch(self, batch_id: str) -> ModelFailure:
        what = (
            f"The provider of '{self.group.model}' knows no batch {batch_id} with this key, or not "
            "any more. If it was created with another key, use that one; without --by and "
            "--patience its calls are made again, at once."
        )
        return ModelFailure(code="batch-failed", message=what)

    async def _read_results(self, status: BatchStatus) -> None:
        """Hand out the answers; who waits then has none."""
        group, batch_id = self.group, self._record.batch_id or ""
        failures, reads = 0, 0
        count = len(self._record.custom_ids)
        if status.problem is not None:
            words = f"batch {batch_id} was refused: {status.problem}"
            self._calls.tell(f"{group.model}: {words}")
            failure = ModelFailure(code="batch-failed", message=f"{group.model}: {words}")
            self.end_all(group.note_refusal(failure, count, was_alone=self._was_alone))
            return
        group.note_taken(count)
        ended, own_ids = set[str](), set(self._record.custom_ids)
        if not self._is_new:
            await self._services.sleep(QUIET_S)  # other runs of the wave ask, too: it is read once
        while True:
            waiting = self._pending()
            failed: ModelFailure | None = None
            async for read in self._api.results(batch_id, status, self._record.custom_ids):
                if not isinstance(read, Success):
                    failed = read.failure()
                    break
                found = read.unwrap()
                is_end = found.end in (LineEnd.ANSWERED, LineEnd.REFUSED)
                if is_end:
                    ended.add(found.custom_id)
                line = self.lines.pop(found.custom_id, None)
                if line is None and self._parked and is_end and found.custom_id in own_ids:
                    self._calls.keep(found.custom_id, found, batch_id)
                if line is not None:
                    line.batch_id = batch_id
                    line.end(found if is_end else self._end_for(found.end.value))
            reads += failed is None
            left = [line for line in waiting if not line.answered.done()]
            most_reads = _MOST_READS if len(ended) < status.done else _LEAST_READS
            if failed is None and (not left or reads >= most_reads):
                break
            if failed is not None and not failed.is_retryable:
                self.end_all(self._unknown_batch(batch_id) if failed.status == 404 else failed)
                return
            failures += 1
            delay_s = _RETRIES.delay_s(failures, self._services.random())
            if failures >= _LEAST_READS and group.left_s <= delay_s:
                if failed is None:
                    break
                self.end_all(failed)
                return
            await self._services.sleep(delay_s)
        self._calls.tell(f"{group.model}: batch {batch_id} has ended, {len(ended)} answers")
        for line in left:
            line.end(self._end_for("missing"))
            self.lines.pop(line.custom_id, None)

    def _end_for(self, reason: str) -> _End:
        """What becomes of a line without an answer."""
        return _Late(reason) if self._is_cancelled else _Again(reason)

    # --- who waits -------------------------------------------------------------------------------

    def _pending(self) -> list[_Line]:
        """The lines for whose answer somebody waits."""
        self.lines = {key: line for key, line in self.lines.items() if not line.answered.done()}
        return [*self.lines.values()]

    def _go_live(self, reason: str) -> None:
        lines = self._pending()
        words = f"{len(lines)} calls are made at once, to be in time"
        self._calls.tell(f"{self.group.model}: {words} ({reason})")
        self.end_all(_Late(reason))

    def end_all(self, how: _End | BaseException) -> None:
        """Tell all who wait the same."""
        for line in self._pending():
            line.end(how)
        self.lines.clear()

    # --- the record ------------------------------------------------------------------------------

    async def leave(self) -> None:
        """Nobody of this process will create the batch, or look at it."""
        try:
            if self._record.state in (WaveState.PREPARED, WaveState.CREATING):
                await self._keep(owner="")
            await self._watch.end()
        except Exception as error:  # noqa: BLE001  # its calls were told; the record becomes stale
            self._log.warning("wave_not_left", wave=self.id, reason=str(error))

    async def _keep(
        self,
        *,
        state: WaveState | None = None,
        owner: str | None = None,
        uploaded: str | None = None,
        batch_id: str | None = None,
        custom_ids: tuple[str, ...] | None = None,
    ) -> bool:
        """Change the record; whether it still was as this process knew it."""
        known = self._record
        now = self._clock.now()
        is_creating = state is WaveState.CREATING
        return await self._stored.replace(
            replace(
                known,
                state=state or known.state,
                owner=known.owner if owner is None else owner,
                at=now if is_creating else known.at,
                sent_at=(known.sent_at or now) if is_creating else known.sent_at,
                custom_ids=known.custom_ids if custom_ids is None else custom_ids,
                uploaded=uploaded or known.uploaded,
                batch_id=batch_id or known.batch_id,
            )
        )

"""The world in which a run crashes: its journal, doubles of its tools and model, its processes.

One `CrashWorld` plays one story of one recipe, in virtual time and within this process. Nothing
outside of it is touched: a tool is a double made from its declaration, unless real ones are asked
for, and then only tools that change nothing are called. What stories are, `crash_stories` says;
what follows from them, `crash_findings`.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from datetime import datetime
from typing import ClassVar, Final, Never, TypeVar

from attrs import evolve, field, frozen, mutable
from returns.result import Failure, Result, Success

from minions.adapters.models.scripted import ScriptedModel
from minions.adapters.tools.default_tools import date_time_tools
from minions.adapters.tools.time_toolset import time_toolset
from minions.app.wiring.configured_runtime import Runtime
from minions.contracts.calls import (
    ChatModel,
    DeltaSink,
    ModelCallResponse,
    ModelCapabilities,
    ModelFailure,
    Prompt,
)
from minions.contracts.decision_types import (
    Answer,
    ApprovalRequest,
    Decider,
    Decision,
    NoAnswer,
    Question,
    Reject,
    Rejection,
    Verdict,
    said_decision,
)
from minions.contracts.executions import AgentResult, RunStatus, address_of, around
from minions.contracts.journal.facts import DecisionTaken, ToolCallStarted
from minions.contracts.journal.journal import EntryDraft, JournalEntry, Lease
from minions.contracts.messages import MessageRole, TokenUsage, ToolCallRequest, assistant
from minions.contracts.runtime import BlockingCalls, PriceBook
from minions.contracts.secrets import InputValue, SecretRef
from minions.contracts.steps import PythonStep, Step, StepScope
from minions.contracts.tools import Effect, Tool, Toolbox, ToolScope, Toolset, ToolSpec
from minions.data.codec import encode
from minions.data.errors import MinionsError, UsageError
from minions.data.json_values import JsonValue, dumps
from minions.engine.calls.resume_decisions import read_answer
from minions.engine.compile.preparation import Preparation
from minions.engine.run.agent_executor import AgentExecutor
from minions.engine.services.memory_journal import MemoryJournal
from minions.engine.services.run_services import Services
from minions.recipe.model import AgentRecipe, RecipeTest
from minions.testing.crash_stories import CrashStory, Mishap
from minions.testing.fault_plans import ServerFault
from minions.testing.plausible_answers import plausible_value
from minions.testing.virtual_time import HangError, VirtualTime, counting_ids

__all__ = ["CrashWorld", "CrashedRecipe", "Deed", "KilledError", "Moment"]

T = TypeVar("T")

_MOST_PROCESSES: Final = 40
_JUMP_S: Final = 3600.0
_LEASE_S: Final = 60.0
_MOST_SHOWN: Final = 60
"""Characters of what a tool has read."""
_SPENDING: Final = frozenset({"max_tokens", "max_cost_usd"})
"""Limits because of which stories tell what the model's server counts."""
_UNPRICED_USD: Final = 1e-6
"""US dollars of a token of a model whose price is not known."""


class KilledError(BaseException):
    """What stands for `kill -9` inside one process: nothing handles it."""


@frozen(kw_only=True)
class Deed:
    """An effect that a tool had in the world."""

    tool: str
    effect: Effect
    key: str
    """The idempotency key that the tool was given."""
    call: str
    """The key of the call in its run."""
    arguments: str
    """JSON text."""
    result: JsonValue = field(default=None, eq=False)

    @property
    def address(self) -> str:
        """The execution that made the call, without how often it was begun."""
        return address_of(self.call)


@frozen(kw_only=True)
class Moment:
    """One line of what happened."""

    who: str
    """`worker-1` …, or `person`."""
    what: str
    to: str | None = None
    """The tool that was called; None: it is about itself."""


class CrashedRecipe:
    """A recipe with doubles of its tools and its model, prepared once for all stories."""

    def __init__(
        self,
        recipe: AgentRecipe,
        runtime: Runtime,
        *,
        test: RecipeTest | None = None,
        real_tools: bool = False,
    ) -> None:
        """Take what all stories share.

        Args:
            test: Gives inputs, answers of the model, results of tools and decisions; None: they are
                made up from schemas.
            real_tools: Whether tools that declare to change nothing are called themselves.
        """
        self.recipe = recipe
        self.test = test
        self.inputs = {**_made_up_inputs(recipe), **(test.inputs if test is not None else {})}
        self.results: Mapping[str, JsonValue] = test.tools if test is not None else {}
        self.decisions: Mapping[str, str] = test.decisions if test is not None else {}
        self.limits = recipe.limits
        self.services = runtime.services
        self.has_real_tools = real_tools
        real = runtime.extensions
        own = [each for each in recipe.steps if isinstance(each, PythonStep)]
        if own and not real_tools:
            raise _own_code(own[0].id)
        begin = VirtualTime().now()
        clocks = {each.spec.name: each for each in date_time_tools(lambda: begin)}
        sets = dict(real.toolsets)
        if "time" in sets:
            sets["time"] = time_toolset(lambda: begin)
        self.extensions = evolve(
            real,
            steps=real.steps if real_tools else {n: _uncalled(x) for n, x in real.steps.items()},
            tools=Toolbox(
                tuple(self._double(x.spec, clocks.get(x.spec.name, x)) for x in real.tools)
            ),
            toolsets={name: self._double_set(each) for name, each in sets.items()},
        )
        self.preparation = Preparation(self.extensions)
        self.script = _offline_model(recipe, runtime) if test is None else None

    def _double(self, spec: ToolSpec, real: Tool | None) -> Tool:
        is_real = spec.is_resumable or (self.has_real_tools and spec.effect is Effect.PURE)
        named = next((n for n in (spec.name, spec.origin) if n and n in self.results), None)
        if named is not None:
            return _Double(spec, self.results[named], has_result=True)
        return _Double(spec, real=real if is_real else None)

    def _double_set(self, toolset: Toolset) -> Toolset:
        def opened(options: Mapping[str, JsonValue], prefix: str) -> Sequence[Tool]:
            real = {tool.spec.name: tool for tool in toolset.open(options, prefix)}
            return tuple(self._double(tool.spec, tool) for tool in real.values())

        def made(_options: Mapping[str, JsonValue], prefix: str) -> Sequence[Tool]:
            return tuple(self._double(spec, None) for spec in toolset.specs_under(prefix))

        is_opened = self.has_real_tools or any(spec.is_resumable for spec in toolset.specs)
        return evolve(toolset, open=opened if is_opened else made)

    def new_script(self) -> ScriptedModel | None:
        """The model's answers from the first one on; None: they are made up."""
        if self.test is not None and self.test.answers:
            return ScriptedModel.from_answers(self.test.answers)
        return self.script.restarted() if self.script is not None else None


def _own_code(name: str) -> UsageError:
    return UsageError(
        f"The step '{name}' is code of yours, which may do anything: a crash test runs it, again "
        "and again, with --real-tools (`real_tools=True`) only.",
        code="crash-own-code",
    )


def _uncalled(kind: type[Step[object]]) -> type[Step[object]]:
    """The same step, whose code is not run."""
    if not issubclass(kind, PythonStep):
        return kind

    async def run(self: PythonStep[object], _scope: StepScope) -> Never:
        raise _own_code(self.id)

    made: type[Step[object]] = type(kind.__name__, (kind,), {"run": run})
    return made


def _offline_model(recipe: AgentRecipe, runtime: Runtime) -> ScriptedModel | None:
    """The configured model where it is a script; another one is never asked."""
    try:
        model = runtime.named_model(recipe, recipe.model)
    except MinionsError:
        return None
    return model if isinstance(model, ScriptedModel) else None


def choose_test(recipe: AgentRecipe, wanted: str = "") -> RecipeTest | None:
    """The first test of the recipe that completes and whose name holds the text; None: it has none.

    Raises:
        UsageError: `no-tests`; a text was given, and no such test has it.
    """
    good = (RunStatus.COMPLETED, RunStatus.PARTIAL)
    found = (each for each in recipe.tests if each.status in good and wanted in each.name)
    test = next(found, None)
    if test is None and wanted:
        raise UsageError(
            f"No test of '{recipe.id}' that completes has '{wanted}' in its name.", code="no-tests"
        )
    return test


def _made_up_inputs(recipe: AgentRecipe) -> dict[str, InputValue]:
    """A value for each input that has no default."""
    rng = random.Random("inputs")  # noqa: S311  # a test
    return {
        name: SecretRef("env:CRASH_TEST") if spec.is_secret else plausible_value(spec.schema, rng)
        for name, spec in recipe.inputs.items()
        if not spec.has_default
    }


# --- one story -----------------------------------------------------------------------------------


@mutable(eq=False, repr=False)
class CrashWorld:
    """Plays a story to its end; afterwards its attributes tell what happened."""

    crashed: CrashedRecipe
    story: CrashStory
    facts: int = field(default=0, init=False)
    """Written by all processes, also those that were lost."""
    tool_calls: int = field(default=0, init=False)
    model_calls: int = field(default=0, init=False)
    deeds: list[Deed] = field(factory=list, init=False)
    in_doubt: list[tuple[str, str]] = field(factory=list, init=False)
    """Address and tool of each call about which a person was asked."""
    decided: list[tuple[str, str]] = field(factory=list, init=False)
    """Address and tool of each decision that was recorded; of a question it has no tool."""
    reads: dict[tuple[str, str], list[str]] = field(factory=dict, init=False)
    """What reading calls of real tools gave, in order, by tool and key of the call."""
    moments: list[Moment] = field(factory=list, init=False)
    used: TokenUsage = field(factory=TokenUsage, init=False)
    """What the model's server counted."""
    status: str = field(default="", init=False)
    """How the run ended; `hangs` and `no end` are no status of a run."""
    error: str | None = field(default=None, init=False)
    result: AgentResult[object] | None = field(default=None, init=False)

    begin: datetime = field(init=False)
    """What reading tools take for the time, so that they differ for their own reasons only."""
    time: VirtualTime = field(factory=lambda: VirtualTime(quiet_s=0.0, hang_s=5.0), init=False)
    _journal: _StoryJournal = field(init=False)
    _prices: _Prices = field(init=False)
    _services: Services = field(init=False)
    _dead: set[str] = field(factory=set, init=False)
    _stalled: str | None = field(default=None, init=False)
    _stall: asyncio.Event = field(factory=asyncio.Event, init=False)
    _wake: asyncio.Event = field(factory=asyncio.Event, init=False)
    _processes: int = field(default=0, init=False)
    _ends: int = field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        real = self.crashed.services
        self.begin = self.time.now()
        self._journal = _StoryJournal(self)
        self._prices = _Prices(real.prices)
        self._services = Services(
            clock=self.time,
            sleep=self.time.sleep,
            random=random.Random("crash").random,  # noqa: S311  # a test
            ids=counting_ids(),
            journal=self._journal,
            parser=real.parser,
            prices=self._prices,
            decider=_Person(self.crashed.decisions),
            secrets=lambda _ref: "secret of a crash test",
            operator=real.operator,
            blocking=_InlineCalls(),
            beside=_InlineCalls(),
            worker_id="worker-0",
            is_worker_gone=lambda name: name in self._dead,
            is_worker_alive=lambda _name: False,
            lease_ttl_s=_LEASE_S,
            border_secret=lambda: b"of crash tests",
        )

    def play(self) -> CrashWorld:
        """To its end, with new processes and a person's decisions where they are needed."""
        try:
            self.status = self.time.run(self._play())
        except HangError:
            self.status = "hangs"
        return self

    async def _play(self) -> str:
        decisions: Mapping[str, str] = {}
        is_retry = False
        while self._processes < _MOST_PROCESSES:
            # A process that dies behind the last fact leaves a run that has ended.
            status = None if is_retry else await self._recorded_failure()
            if status is None:
                try:
                    result = await self._process(decisions, is_retry=is_retry)
                except MinionsError as error:
                    self.error = error.message
                    return f"refused ({error.error_code})"
                decisions, is_retry = {}, False
                if result is None:
                    continue
                self.result, status = result, result.status
            if status is RunStatus.NEEDS_DECISION:
                decisions = await self._decisions()
                if decisions:
                    continue
            elif status is RunStatus.FAILED:
                self._ends += 1
                if self.story.happens(Mishap.RETRY, self._ends):
                    self.tell("person", "retries the failed run")
                    is_retry = True
                    continue
            return status.value
        return "no end"

    async def _recorded_failure(self) -> RunStatus | None:
        """`failed` where the journal says so: such a run cannot be resumed."""
        newest = None
        for entry in await self._journal.entries(kinds=("run",)):
            newest = entry
        is_failed = newest is not None and newest.body.get("status") == RunStatus.FAILED.value
        return RunStatus.FAILED if is_failed else None

    async def _process(
        self, decisions: Mapping[str, str], *, is_retry: bool
    ) -> AgentResult[object] | None:
        """What one process makes of the run; None: it died, or lost the run."""
        self._processes += 1
        worker = f"worker-{self._processes}"
        _PROCESS.set(_Process(self, worker, self.crashed.new_script()))
        work = asyncio.create_task(self._execute(worker, decisions, is_retry=is_retry))
        stall = asyncio.create_task(self._stall.wait())
        await asyncio.wait({work, stall}, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():  # it is stopped, and others think that it is dead
            self._stall.clear()
            self.time.advance(_LEASE_S + 1)
            await self._play()  # others bring the run to its end
            self.tell(worker, "continues, as if nothing had happened")
            self._stalled = None
            self._wake.set()
            await asyncio.wait({work})
            self._wake.clear()
            self.tell(worker, "has lost the run, and ends")
            work.exception()
            stall.cancel()
            return self.result
        stall.cancel()
        error = work.exception()
        if worker in self._dead:
            return None
        if error is not None:
            raise error
        return work.result()

    async def _execute(
        self, worker: str, decisions: Mapping[str, str], *, is_retry: bool
    ) -> AgentResult[object]:
        crashed = self.crashed
        services = evolve(
            self._services,
            worker_id=worker,
            executing=set(),
            cooldowns={},
            prefixes={},
            renewals=type(self._services.renewals)(),
            chosen_examples=type(self._services.chosen_examples)(),
        )
        executor = AgentExecutor(
            _DoubleModel(crashed.recipe.model.name or "scripted/crash"),
            extensions=crashed.extensions,
            services=services,
            preparation=crashed.preparation,
        )
        entries = await self._journal.entries()
        recipe = crashed.recipe
        if not entries:
            self.tell(worker, "begins the run")
            result = await executor.execute(recipe, crashed.inputs)
        else:
            own = recipe if recipe.document is None else None
            run_id = entries[0].run_id
            if is_retry:
                self.tell(worker, "runs the failed steps again")
                result = await executor.retry(run_id, recipe=own)
            else:
                self.tell(worker, "resumes the run")
                result = await executor.resume(run_id, recipe=own, decisions=decisions)
        code = f" ({result.error.code})" if result.error is not None else ""
        self.tell(worker, f"ends the run: {result.status.value}{code}")
        self.error = result.error.message if result.error is not None else None
        return result

    async def _decisions(self) -> Mapping[str, str]:
        """What a person says of calls in doubt who can look whether the effect is there."""
        entries = await self._journal.entries()
        newest = max(entry.generation for entry in entries)
        words = {}
        for entry in entries:
            if entry.state != "in_doubt" or entry.generation != newest:
                continue
            tool = str(entry.body.get("tool"))
            done = [deed for deed in self.deeds if deed.call == entry.key]
            words[entry.key] = f"done:{dumps(done[-1].result)}" if done else "redo"
            self.in_doubt.append((address_of(entry.key), tool))
            word = words[entry.key].partition(":")[0]
            self.tell("person", f"is asked whether the effect is there, and says {word}", tool)
        return words

    # --- what its processes do

    def tell(self, who: str, what: str, to: str | None = None) -> None:
        """Note a moment."""
        self.moments.append(Moment(who=who, what=what, to=to))

    async def check(self, worker: str) -> None:
        """Do nothing in a process that is dead, or as long as it is stopped.

        Raises:
            KilledError: It is dead.
        """
        if worker == self._stalled:
            await self._wake.wait()
        if worker in self._dead:
            raise KilledError

    def _kill(self, worker: str, what: str) -> Never:
        self._dead.add(worker)
        self.tell(worker, f"is killed {what}")
        raise KilledError

    async def write(
        self, lease: Lease, draft: EntryDraft, store: Callable[[], Awaitable[JournalEntry]]
    ) -> JournalEntry:
        """Store a fact, with all that goes wrong there."""
        worker, story = lease.worker_id, self.story
        await self.check(worker)
        self.facts += 1
        at, fact = self.facts, f"“{draft.kind} {draft.state}” of {draft.key}"
        if story.happens(Mishap.JUMP, at):
            self.time.advance(_JUMP_S)
            self.tell(worker, "sees the clock jump an hour ahead")
        if story.happens(Mishap.KILL_BEFORE, at):
            self._kill(worker, f"before {fact} is stored")
        entry = await store()
        if isinstance(draft.fact, DecisionTaken) and draft.fact.word.startswith(_GIVEN):
            address, tool = address_of(draft.key), draft.fact.tool
            self.decided.append((address, tool or ""))
            word = "answers" if tool is None else "approves"
            self.tell("person", f"{word} ({address})", tool)
        if isinstance(draft.fact, ToolCallStarted) and draft.fact.effect is not None:
            self.tell(worker, f"records that {draft.fact.tool} begins")
        if story.happens(Mishap.KILL, at):
            self._kill(worker, f"after {fact} is stored")
        if story.happens(Mishap.STALL, at) and self._stalled is None and not self._wake.is_set():
            self._stalled = worker
            self.tell(worker, f"stops after {fact} is stored, and its lease runs out")
            self._stall.set()
            await self._wake.wait()
        return entry

    async def use_tool(
        self,
        worker: str,
        spec: ToolSpec,
        scope: ToolScope,
        arguments: str,
        give: Callable[[], Awaitable[JsonValue]],
    ) -> JsonValue:
        """The result of a double, with all that goes wrong there."""
        await self.check(worker)
        self.tool_calls += 1
        at, story = self.tool_calls, self.story
        if story.happens(Mishap.DOWN, at):
            self.tell(worker, "is refused: the server is down", spec.name)
            raise ConnectionError("the server is down")
        result = await give()
        if spec.effect is not Effect.PURE:
            key = scope.idempotency_key
            call = key.partition("/")[2] or key
            is_known = spec.effect is Effect.IDEMPOTENT and any(x.key == key for x in self.deeds)
            self.deeds.append(
                Deed(
                    tool=spec.name,
                    effect=spec.effect,
                    key=key,
                    call=call,
                    arguments=arguments,
                    result=result,
                )
            )
            again = " again, under the same key: once" if is_known else ""
            self.tell(worker, f"has its effect{again} ({address_of(call)})", spec.name)
        if story.happens(Mishap.LOST_ANSWER, at):
            self.tell(worker, "gets no answer: the connection broke", spec.name)
            raise ConnectionError("the connection broke")
        if story.happens(Mishap.NO_ANSWER, at):
            self.tell(worker, "waits for an answer that never comes", spec.name)
            await self.time.sleep(86_400)
            raise TimeoutError("no answer")
        await self.check(worker)
        return result

    async def ask_model(
        self, process: _Process, prompt: Prompt, name: str
    ) -> Result[ModelCallResponse, ModelFailure]:
        """The model's answer, with all that its server does wrong."""
        await self.check(process.worker)
        self.model_calls += 1
        fault = self.story.server_fault(self.model_calls)
        if fault is not None:
            self.tell(process.worker, f"gets {fault.value} from the model's server")
        if fault in _SERVER_FAILURES:
            await self.time.sleep(60 if fault is ServerFault.NO_ANSWER else 0)
            return Failure(_SERVER_FAILURES[fault])
        outcome: Result[ModelCallResponse, ModelFailure] | None = None
        if fault is ServerFault.PROSE:
            outcome = Success(ModelCallResponse(message=assistant("Well, that depends.")))
        elif process.script is not None:
            outcome = await process.script.complete(prompt)
        if outcome is None or (
            isinstance(outcome, Failure) and outcome.failure().code == "script-exhausted"
        ):
            outcome = Success(_made_up(prompt))
        if isinstance(outcome, Failure):
            return outcome
        response = outcome.unwrap()
        said = sum(len(each.content or "") for each in prompt.messages)
        usage = TokenUsage(
            input_tokens=said // 4 + 1,
            output_tokens=len(response.message.content or "") // 4 + 8,
        )
        cost = self._prices.cost_usd(name, usage, at=self.time.now())
        self.used += evolve(usage, cost_usd=cost)
        if not _SPENDING.isdisjoint(self.crashed.limits):
            what = f"is answered by the model, which counts {usage.total_tokens} tokens"
            self.tell(process.worker, what)
        await self.check(process.worker)
        return Success(evolve(response, usage=usage))


_GIVEN: Final = ("approve", "answer")
"""Words of decisions with which a run continues."""


@frozen(eq=False)
class _Process:
    """The process in which a task works."""

    world: CrashWorld
    worker: str
    script: ScriptedModel | None


_PROCESS: ContextVar[_Process] = ContextVar("_PROCESS")


class _StoryJournal(MemoryJournal):
    """Outlives the processes that write it; of a dead or stopped one nothing arrives."""

    def __init__(self, world: CrashWorld) -> None:
        super().__init__(world.time)
        self._world = world

    async def append(self, lease: Lease, draft: EntryDraft) -> JournalEntry:
        store = super().append
        return await self._world.write(lease, draft, lambda: store(lease, draft))

    async def renew(self, lease: Lease, ttl_s: float) -> None:
        await self._world.check(lease.worker_id)
        await super().renew(lease, ttl_s)

    async def release(self, lease: Lease) -> None:
        await self._world.check(lease.worker_id)
        await super().release(lease)


class _InlineCalls(BlockingCalls):
    """Calls functions at once: in virtual time there is nothing that they would hold up."""

    async def run(self, function: Callable[[], T]) -> T:
        return function()


@frozen
class _Prices(PriceBook):
    """The known prices, and one for models that have none."""

    known: PriceBook | None

    def cost_usd(
        self, model: str, usage: TokenUsage, *, at: datetime, base_url: str | None = None
    ) -> float | None:
        known = self.known
        cost = known.cost_usd(model, usage, at=at, base_url=base_url) if known else None
        return usage.total_tokens * _UNPRICED_USD if cost is None else cost


# --- the doubles ---------------------------------------------------------------------------------


@frozen(eq=False)
class _Double(Tool):
    """Stands for a tool, and counts what it does to the world of the process that calls it."""

    spec: ToolSpec
    result: JsonValue = None
    has_result: bool = False
    real: Tool | None = None

    async def invoke(self, arguments: Mapping[str, JsonValue], scope: ToolScope) -> object:
        process, real, spec = _PROCESS.get(), self.real, self.spec
        if real is not None and spec.effect is not Effect.PURE:  # it only runs agents of the run
            return await real.invoke(arguments, scope)
        text = dumps(arguments)

        async def give() -> JsonValue:
            if real is None:
                return self.result if self.has_result else _made_up_result(spec, text)
            begin = process.world.begin
            given = encode(await real.invoke(arguments, evolve(scope, now=lambda: begin)))
            said = dumps(given)
            process.world.reads.setdefault((spec.name, scope.idempotency_key), []).append(said)
            shown = said if len(said) <= _MOST_SHOWN else f"{said[:_MOST_SHOWN]}…"
            process.world.tell(process.worker, f"reads {shown}", spec.name)
            return given

        return await process.world.use_tool(process.worker, spec, scope, text, give)


def _made_up_result(spec: ToolSpec, arguments: str) -> JsonValue:
    """The same for the same call."""
    if spec.returns is None:
        return "done"
    rng = random.Random(f"{spec.name} {arguments}")  # noqa: S311  # a test
    value = plausible_value(spec.returns, rng)
    if spec.success_key and isinstance(value, dict) and "success" in value:
        value["success"] = True
    return value


@frozen(eq=False)
class _DoubleModel(ChatModel):
    """Stands for all models: answers as the process's script says, or what fits the request."""

    model_name: str

    @property
    def name(self) -> str:
        return self.model_name

    @property
    def capabilities(self) -> ModelCapabilities:
        return ModelCapabilities(output_mode=None)

    async def complete(
        self, prompt: Prompt, on_delta: DeltaSink | None = None
    ) -> Result[ModelCallResponse, ModelFailure]:
        process = _PROCESS.get()
        return await process.world.ask_model(process, prompt, self.name)

    def recall(self, prompt: Prompt) -> None:
        script = _PROCESS.get().script
        if script is not None:
            script.recall(prompt)


def _made_up(prompt: Prompt) -> ModelCallResponse:
    """An answer that fits, the same for the same conversation: each tool is called once, and again
    if that failed; then what was asked for is said.
    """
    said = [[m.role.value, m.content] for m in prompt.messages if m.role is not MessageRole.TOOL]
    digest = hashlib.blake2b(dumps(said).encode("utf-8", "replace"), digest_size=8).hexdigest()
    rng = random.Random(digest)  # noqa: S311  # a test
    if prompt.output_request is None:
        called = Counter(call.name for m in prompt.messages for call in m.tool_calls)
        failed = {m.name for m in prompt.messages[-1:] if (m.content or "").startswith("Error")}
        for spec in prompt.tools:
            if called[spec.name] < (2 if spec.name in failed else 1):
                arguments = dumps(plausible_value(spec.parameters, rng))
                request = ToolCallRequest(
                    id=f"call_{sum(called.values()) + 1}", name=spec.name, arguments=arguments
                )
                return ModelCallResponse(message=assistant(tool_calls=[request]))
    if prompt.instructions is not None:
        value = plausible_value(prompt.instructions.json_schema(), rng)
        return ModelCallResponse(message=assistant(dumps(value)))
    return ModelCallResponse(message=assistant(f"Well, {digest}.\nstatus: done"))


def _failure(code: str, *, retries: bool = True, wait_s: float | None = None) -> ModelFailure:
    return ModelFailure(
        code=code, message="A crash test says so.", is_retryable=retries, retry_after_s=wait_s
    )


_SERVER_FAILURES: Final[Mapping[ServerFault | None, ModelFailure]] = {
    ServerFault.RATE_LIMITED_SECONDS: _failure("rate-limited", wait_s=7),
    ServerFault.UNAVAILABLE: _failure("model-unavailable"),
    ServerFault.NO_ANSWER: _failure("model-timeout"),
    ServerFault.CUT: _failure("stream-interrupted"),
    ServerFault.EMPTY_DOCUMENT: _failure("malformed-response"),
    ServerFault.REFUSED: _failure("refused", retries=False),
}


@frozen
class _Person(Decider):
    """Decides as the test says; else approves, and answers what fits."""

    stands_in: ClassVar[bool] = True

    decisions: Mapping[str, str]

    async def approve(self, request: ApprovalRequest) -> Verdict | Rejection:
        match self._said(*around(request.address), *around(request.step_id)):
            case Reject(None, reason):
                return Rejection(reason) if reason else Verdict.REJECTED
        return Verdict.APPROVED

    async def answer(self, question: Question) -> JsonValue | NoAnswer:
        match self._said(question.address, question.step_id):
            case Answer(text):
                return read_answer(text, question.form)
        if question.has_default:
            return question.default
        rng = random.Random(question.text)  # noqa: S311  # a test
        return plausible_value(question.form or {"type": "string"}, rng)

    def _said(self, *names: str) -> Decision | None:
        words = self.decisions
        word = next((words[name] for name in names if name in words), None)
        return None if word is None else said_decision(word)

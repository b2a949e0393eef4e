"""One run under chaos from a seed: its endpoint, its time, its deaths, and what became of it."""

from __future__ import annotations

import asyncio
import gc
import random
import warnings
from collections.abc import Mapping, Sequence

from attrs import field, frozen, mutable

from chaos.shapes import ChaosShape
from minions.adapters.models.openai import OpenAIModel
from minions.adapters.models.structured_output import InstructorParser
from minions.contracts.calls import ModelCapabilities
from minions.contracts.decision_types import ApprovalRequest, Decider, NoAnswer, Question, Verdict
from minions.contracts.executions import AgentResult, RunStatus
from minions.contracts.flow import CircuitState, FlowControl
from minions.contracts.instructions import OutputMode
from minions.contracts.journal.journal import JournalEntry
from minions.contracts.messages import TokenUsage
from minions.contracts.metrics import Metrics
from minions.contracts.run_events import RunEvent
from minions.contracts.tools import Toolbox
from minions.data.json_values import JsonValue
from minions.engine.compile.extensions import Extensions
from minions.engine.run.agent_executor import AgentExecutor
from minions.engine.services.run_services import Services
from minions.testing.chaos_endpoint import ChaosEndpoint
from minions.testing.fault_plans import FaultPlan
from minions.testing.virtual_time import VirtualTime, counting_ids
from mortal import KilledError, MortalJournal
from prices import FlatPrices

__all__ = ["PRICE", "ChaosRun", "Leg", "usage_in"]

_RUN = "run_1"
_MOST_LEGS = 6
PRICE = 1e-6
"""US dollars of each token."""


@frozen(kw_only=True)
class Leg:
    """One process's part of the run."""

    result: AgentResult[object] | None
    """None: the process died."""
    seconds: float
    """Virtual time that it took."""
    leaks: Sequence[str]
    """What was left behind, and what asyncio or Python complained of."""


@mutable
class _Circuits(Metrics):
    """Looks at the circuit of the server whenever an attempt at a model call has ended."""

    flow: FlowControl | None = None
    states: list[CircuitState] = field(factory=list)

    def model_attempt_ended(self, model: str, code: str | None, seconds: float) -> None:
        if self.flow is not None:
            self.states += [each.circuit for each in self.flow.states()]


@mutable
class ChaosRun:
    """Plays the run of a seed to its end."""

    seed: int
    plan: FaultPlan
    is_killed: bool
    """Whether a process dies on the way."""
    time: VirtualTime = field(factory=VirtualTime, init=False)
    journal: MortalJournal = field(init=False)
    endpoint: ChaosEndpoint = field(init=False)
    legs: list[Leg] = field(factory=list, init=False)
    lost: TokenUsage = field(factory=TokenUsage, init=False)
    """What the endpoint reported to processes that died before they recorded it."""
    entries: Sequence[JournalEntry] = field(factory=list, init=False)
    circuits: _Circuits = field(factory=_Circuits, init=False)

    is_retried: bool = field(default=False, init=False)
    """Whether a part was run again on request."""

    @journal.default
    def _mortal(self) -> MortalJournal:
        return MortalJournal(self.time)

    @endpoint.default
    def _chaotic(self) -> ChaosEndpoint:
        return ChaosEndpoint(self.plan, seed=self.seed, now=self.time.now)

    @classmethod
    def from_seed(cls, seed: int, plan: FaultPlan | None = None) -> ChaosRun:
        """The run with its own plan, or with another one."""
        outage = (
            random.Random(f"outage {seed}").randint(10, 25) if ChaosShape(seed).has_outage else 0
        )
        own = FaultPlan.from_seed(seed, outage=outage) if plan is None else plan
        return cls(seed, own, random.Random(f"kill {seed}").random() < 0.4)

    @property
    def result(self) -> AgentResult[object]:
        """How the run ended."""
        result = self.legs[-1].result
        assert result is not None
        return result

    @property
    def has_opened_and_closed_a_circuit(self) -> bool:
        """Whether calls were kept from a server that was down, and later ones were answered."""
        states = self.circuits.states
        if CircuitState.OPEN not in states:
            return False
        return CircuitState.CLOSED in states[states.index(CircuitState.OPEN) :]

    def play(self) -> None:
        """To its end, with a death and decisions on the way."""
        rng = random.Random(f"deaths {self.seed}")
        count = rng.choice((1, 1, 2)) if self.is_killed else 0
        deaths = [rng.randint(2, 25) for _ in range(count)]
        decisions: Mapping[str, str] = {}
        for number in range(_MOST_LEGS):
            self._leg(number, deaths.pop(0) if deaths else None, rng, decisions)
            result = self.legs[-1].result
            decisions = self._decisions(rng) if result is not None else {}
            if result is not None and not decisions:
                return
        if self.legs[-1].result is None:
            raise AssertionError("it dies again and again")

    def _leg(
        self, number: int, death: int | None, rng: random.Random, decisions: Mapping[str, str]
    ) -> None:
        begin, journal = self.time.monotonic(), self.journal
        journal.dies_at = None if death is None else journal.count + death
        journal.loses_last = rng.random() < 0.5
        leaks: list[str] = []
        result = None
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                result = self.time.run(self._within(number, decisions, leaks))
            except KilledError:
                leaks.clear()  # of a process that died nobody else has anything
            gc.collect()
        if result is not None:
            leaks += [f"{each.category.__name__}: {each.message}" for each in caught]
        self.time.run(self._read())
        journal.revive()
        if result is None:
            self.lost = _difference(self.endpoint.served.usage, usage_in(self.entries))
        seconds = self.time.monotonic() - begin
        self.legs.append(Leg(result=result, seconds=seconds, leaks=leaks))

    async def _read(self) -> None:
        self.journal.is_dead = False
        self.entries = await self.journal.entries()

    async def _within(
        self, number: int, decisions: Mapping[str, str], leaks: list[str]
    ) -> AgentResult[object]:
        def complain(_: asyncio.AbstractEventLoop, context: Mapping[str, object]) -> None:
            leaks.append(f"asyncio: {context.get('message')} {context.get('exception')!r}")

        asyncio.get_running_loop().set_exception_handler(complain)
        async with self.endpoint:
            model = self._model()
            try:
                result = await self._run(number, model, decisions)
            finally:
                await model.aclose()
            await asyncio.sleep(0)
            known = {asyncio.current_task(), *self.endpoint.tasks}
            leaks += [f"a task is left: {task}" for task in asyncio.all_tasks() - known]
        return result

    def _model(self) -> OpenAIModel:
        rng = random.Random(f"model {self.seed}")
        mode = rng.choice((*OutputMode, OutputMode.JSON_SCHEMA, OutputMode.JSON_SCHEMA, None))
        return OpenAIModel(
            "chaos-1",
            base_url=self.endpoint.base_url,
            capabilities=ModelCapabilities(output_mode=mode, tools_with_schema=rng.random() < 0.2),
            clock=self.time.monotonic,
            now=self.time.now,
            max_requests=rng.choice((1, 2, 64)),
            warn=lambda _: None,
        )

    async def _run(
        self, number: int, model: OpenAIModel, decisions: Mapping[str, str]
    ) -> AgentResult[object]:
        shape = ChaosShape(self.seed)
        executor = AgentExecutor(
            model,
            extensions=Extensions(tools=Toolbox(shape.tools())),
            services=self._services(model),
        )
        recipe = shape.recipe()
        if not await self.journal.entries():
            run = executor.prepare(recipe)
            if self.seed % 2:
                run.listen(_ignore)
            return await run.execute()
        own = recipe if recipe.document is None else None
        if self._has_failed():  # it died after that was recorded
            self.is_retried = True
            return await executor.retry(_RUN, recipe=own)
        return await executor.resume(_RUN, recipe=own, decisions=decisions)

    def _has_failed(self) -> bool:
        ends = [each for each in self.entries if (each.kind, each.state) == ("run", "finished")]
        return bool(ends) and ends[-1].body["status"] == RunStatus.FAILED.value

    def _services(self, model: OpenAIModel) -> Services:
        rng = random.Random(f"services {self.seed} {len(self.legs)}")
        services = Services(
            clock=self.time,
            sleep=self.time.sleep,
            random=rng.random,
            ids=counting_ids(),
            journal=self.journal,
            worker_id="worker",
            parser=InstructorParser(),
            prices=FlatPrices({model.name: PRICE}),
            decider=_Decider(rng),
            metrics=self.circuits,
        )
        self.circuits.flow = services.flow
        return services

    def _decisions(self, rng: random.Random) -> Mapping[str, str]:
        """What a person says to the calls that are in doubt."""
        if self.result.status is not RunStatus.NEEDS_DECISION:
            return {}
        newest = max(entry.generation for entry in self.entries)
        return {
            entry.key: rng.choice(("redo", "fail", 'done:{"n": 1}'))
            for entry in self.entries
            if entry.state == "in_doubt" and entry.generation == newest
        }


@frozen(eq=False)
class _Decider(Decider):
    """A person who now and then knows an answer."""

    rng: random.Random

    async def approve(self, request: ApprovalRequest) -> Verdict:
        return self.rng.choice(tuple(Verdict))

    async def answer(self, question: Question) -> JsonValue | NoAnswer:
        said: tuple[JsonValue | NoAnswer, ...] = ("an answer", *NoAnswer)
        return self.rng.choice(said)


def _ignore(event: RunEvent) -> None:
    """Listens, so that models stream."""


def usage_in(entries: Sequence[JournalEntry]) -> TokenUsage:
    """What the recorded model calls used, with their failed attempts."""
    return sum(map(_usage_of, entries), TokenUsage())


def _usage_of(entry: JournalEntry) -> TokenUsage:
    if entry.kind != "model_call":
        return TokenUsage()
    body = entry.body
    used = body.get("metrics") or body.get("usage")
    return _tokens(used) + _tokens(body.get("retried_usage"))


def _tokens(value: JsonValue) -> TokenUsage:
    if not isinstance(value, Mapping):
        return TokenUsage()
    return TokenUsage(
        input_tokens=int(str(value["input_tokens"])), output_tokens=int(str(value["output_tokens"]))
    )


def _difference(one: TokenUsage, other: TokenUsage) -> TokenUsage:
    return TokenUsage(
        input_tokens=one.input_tokens - other.input_tokens,
        output_tokens=one.output_tokens - other.output_tokens,
    )

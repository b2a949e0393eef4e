"""`PrometheusMetrics`: what runs do, as a page that Prometheus reads."""

from __future__ import annotations

import threading
from typing import Final

from minions.adapters.telemetry.series import Counter, Family, Gauge, Histogram, text_of
from minions.contracts.budgets import DayBudget
from minions.contracts.flow import CircuitState, FlowControl
from minions.contracts.metrics import Metrics
from minions.contracts.runtime import BlockingCalls

_OK: Final = "ok"


class PrometheusMetrics(Metrics):
    """Counts in memory, from the start of the process. Safe on several threads."""

    def __init__(self) -> None:
        """Nothing was counted."""
        self._lock = threading.Lock()
        self._active = 0
        self._runs = Counter("minions_runs_total", "Executions of runs that ended.", ["status"])
        self._run_s = Histogram("minions_run_seconds", "Time of an execution.", ["status"])
        self._steps = Counter(
            "minions_steps_total", "Steps and items of loops that ended.", ["status", "error"]
        )
        self._step_s = Histogram("minions_step_seconds", "Time of a step.", ["status"])
        self._requests = Counter(
            "minions_model_requests_total",
            "Requests to models by outcome: ok, or the category of the failure.",
            ["model", "outcome"],
        )
        self._request_s = Histogram(
            "minions_model_request_seconds", "Time of a request, without its wait.", ["model"]
        )
        self._wait_s = Histogram(
            "minions_model_wait_seconds", "Time that a request waited for its turn.", ["model"]
        )
        self._tokens = Counter(
            "minions_model_tokens_total", "Tokens of model calls.", ["model", "direction"]
        )
        self._cost = Counter(
            "minions_model_cost_usd_total", "Known cost of model calls, in US dollars.", ["model"]
        )
        self._rungs = Counter(
            "minions_output_rungs_total",
            "Answers checked against a declared output, by how they were asked for.",
            ["model", "rung", "outcome"],
        )
        self._rung_cost = Counter(
            "minions_output_rungs_cost_usd_total",
            "Known cost of these answers, in US dollars.",
            ["model", "rung"],
        )
        self._tools = Counter(
            "minions_tool_calls_total",
            "Tool calls by outcome: ok, or the code of the failure.",
            ["tool", "outcome"],
        )
        self._tool_s = Histogram(
            "minions_tool_call_seconds", "Time of a tool call with all attempts.", ["tool"]
        )
        self._retries = Counter("minions_retries_total", "Attempts beyond the first.", ["what"])
        self._refusals = Counter(
            "minions_budget_refusals_total", "Calls that a limit of their run refused.", ["limit"]
        )

    def run_began(self) -> None:
        with self._lock:
            self._active += 1

    def run_ended(self, status: str, seconds: float) -> None:
        with self._lock:
            self._active -= 1
            self._runs.add(status)
            self._run_s.observe(status, seconds=seconds)

    def step_ended(self, status: str, code: str | None, seconds: float) -> None:
        with self._lock:
            self._steps.add(status, code or "")
            self._step_s.observe(status, seconds=seconds)

    def model_attempt_ended(self, model: str, code: str | None, seconds: float) -> None:
        with self._lock:
            self._requests.add(model, code or _OK)
            self._request_s.observe(model, seconds=seconds)

    def model_call_waited(self, model: str, seconds: float) -> None:
        with self._lock:
            self._wait_s.observe(model, seconds=seconds)

    def model_tokens(
        self, model: str, input_tokens: int, output_tokens: int, cost_usd: float | None
    ) -> None:
        with self._lock:
            self._tokens.add(model, "input", amount=input_tokens)
            self._tokens.add(model, "output", amount=output_tokens)
            if cost_usd is not None:
                self._cost.add(model, amount=cost_usd)

    def output_checked(
        self, model: str, rung: str, cost_usd: float | None, *, is_valid: bool
    ) -> None:
        with self._lock:
            self._rungs.add(model, rung, _OK if is_valid else "invalid")
            if cost_usd is not None:
                self._rung_cost.add(model, rung, amount=cost_usd)

    def tool_call_ended(self, tool: str, code: str | None, seconds: float) -> None:
        with self._lock:
            self._tools.add(tool, code or _OK)
            self._tool_s.observe(tool, seconds=seconds)

    def retried(self, what: str) -> None:
        with self._lock:
            self._retries.add(what)

    def budget_refused(self, limit: str) -> None:
        with self._lock:
            self._refusals.add(limit)

    def text(
        self,
        flow: FlowControl | None = None,
        blocking: BlockingCalls | None = None,
        day: DayBudget | None = None,
    ) -> str:
        """The page.

        Args:
            flow: The flow control whose servers are shown; None: none are.
            blocking: What calls synchronous tools; None: its threads are not shown.
            day: The budget of the day; None: it is not shown.
        Raises:
            EnvironmentRefusedError: `missing-extra`; `prometheus-client` is not installed.
        """
        now = [] if blocking is None else _blocking(blocking)
        now += [] if day is None else _day(day)
        now += [] if flow is None else _flow(flow)
        with self._lock:
            active = Gauge(
                "minions_runs_active", "Runs that are executed now.", float(self._active)
            )
            return text_of([active, *self._counted(), *now])

    def _counted(self) -> tuple[Family, ...]:
        return (
            *(self._runs, self._run_s, self._steps, self._step_s),
            *(self._requests, self._request_s, self._wait_s, self._tokens, self._cost),
            *(self._rungs, self._rung_cost),
            *(self._tools, self._tool_s, self._retries, self._refusals),
        )


def _blocking(blocking: BlockingCalls) -> list[Family]:
    words = "Blocking tools that wait for a thread."
    return [
        Gauge("minions_blocking_threads", "Threads with blocking tools.", blocking.running),
        Gauge("minions_blocking_waiting", words, blocking.waiting),
    ]


def _day(day: DayBudget) -> list[Family]:
    families: list[Family] = []
    for unit, spent, most in (
        ("usd", day.cost_usd, day.most_cost_usd),
        ("tokens", day.tokens, day.most_tokens),
    ):
        if most is not None:
            name = f"minions_day_budget_{unit}"
            words = "What runs have spent of the day's budget, as far as this process knows."
            families += (
                Gauge(f"{name}_limit", "What all runs of a day may spend.", most),
                Gauge(f"{name}_spent", words, spent),
            )
    return families


def _flow(flow: FlowControl) -> list[Family]:
    states = flow.states()
    return [
        Gauge(
            "minions_endpoint_in_flight",
            "Requests in flight at a server.",
            {(each.origin,): each.in_flight for each in states},
            ("endpoint",),
        ),
        Gauge(
            "minions_endpoint_waiting",
            "Requests that wait for their turn at a server.",
            {(each.origin,): each.waiting for each in states},
            ("endpoint",),
        ),
        Gauge(
            "minions_endpoint_held_seconds",
            "Seconds for which a server asked to be left alone, from now on.",
            {(each.origin,): each.held_s for each in states},
            ("endpoint",),
        ),
        Gauge(
            "minions_endpoint_circuit",
            "1 for the state that the circuit of a server is in.",
            {
                (each.origin, state.value): float(each.circuit is state)
                for each in states
                for state in CircuitState
            },
            ("endpoint", "state"),
        ),
    ]

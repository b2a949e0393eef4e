"""`PrometheusMetrics`: what runs do, as a page that Prometheus reads."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from minions.contracts.budgets import DayBudget
from minions.contracts.flow import CircuitState, FlowControl
from minions.contracts.metrics import Metrics
from minions.contracts.runtime import BlockingCalls
from minions.data.errors import EnvironmentRefusedError

if TYPE_CHECKING:
    from prometheus_client.core import Metric

_OK: Final = "ok"


class PrometheusMetrics(Metrics):
    """Counts in memory, from the start of the process. Safe on several threads."""

    def __init__(self) -> None:
        """Nothing was counted."""
        self._lock = threading.Lock()
        self._active = 0
        self._runs = Counter("minions_runs_total", "Executions of runs that ended.", ["status"])
        self._recipe_runs = Counter(
            "minions_recipe_runs_total",
            "Executions of runs that ended, by recipe and its version.",
            ["recipe", "version", "status"],
        )
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
        self._cache = Counter(
            "minions_model_cache_tokens_total",
            "Input tokens that a server's cache of prompts read, was expected to read, or lost.",
            ["model", "kind"],
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

    def recipe_run_ended(self, recipe: str, version: str, status: str) -> None:
        with self._lock:
            self._recipe_runs.add(recipe, version, status)

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

    def model_cache(self, model: str, kind: str, tokens: int) -> None:
        with self._lock:
            self._cache.add(model, kind, amount=tokens)

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
        left: Mapping[str, int] | None = None,
        more: Sequence[Family] = (),
    ) -> str:
        """The page.

        Args:
            flow: The flow control whose servers are shown; None: none are.
            blocking: What calls synchronous tools; None: its threads are not shown.
            day: The budget of the day; None: it is not shown.
            left: How many queued runs no worker can execute, by queue.
            more: Families that others made.
        Raises:
            EnvironmentRefusedError: `missing-extra`; `prometheus-client` is not installed.
        """
        now = [] if blocking is None else _blocking(blocking)
        now += [] if day is None else _day(day)
        now += [] if flow is None else _flow(flow)
        now += [_left(left)] if left else []
        with self._lock:
            active = Gauge(
                "minions_runs_active", "Runs that are executed now.", float(self._active)
            )
            return text_of([active, *self._families(), *now, *more])

    def _families(self) -> tuple[Family, ...]:
        return (
            *(self._runs, self._recipe_runs, self._run_s, self._steps, self._step_s),
            *(self._requests, self._request_s, self._wait_s, self._tokens, self._cost),
            *(self._rungs, self._rung_cost),
            *(self._tools, self._tool_s, self._retries, self._refusals),
        )


def _left(left: Mapping[str, int]) -> Family:
    words = "Queued runs that no worker can execute: each lacks something, or none lives."
    counts: dict[tuple[str, ...], float] = {(queue,): float(count) for queue, count in left.items()}
    return Gauge("minions_runs_without_worker", words, counts, ["queue"])


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


# --- counters and histograms with a bounded number of series, in this process; nothing is globa---


CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_MOST_SERIES: Final = 200
"""Combinations of label values that a family keeps; what comes later is counted under `other`."""
_OTHER: Final = "other"
_LONGEST: Final = 120
"""Characters of a label value: names come from recipes and servers."""
SECONDS: Final = (
    *(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0),
    *(10.0, 30.0, 60.0, 120.0, 300.0),
)
"""Upper bounds of a histogram's buckets, in seconds."""


class Family:
    """A metric with its labels."""

    def __init__(self, name: str, help_: str, labels: Sequence[str]) -> None:
        """No series yet.

        Args:
            help_: What it counts, as a sentence.
        """
        self.name = name
        self.help = help_
        self.labels = tuple(labels)
        self._known: dict[tuple[str, ...], tuple[str, ...]] = {}

    def _key(self, values: tuple[str, ...]) -> tuple[str, ...]:
        """The series of these label values; of too many, the one of all others."""
        known = self._known.get(values)
        if known is not None:
            return known
        shown = tuple(_encodable(value[:_LONGEST]) for value in values)
        if shown not in self._known and len(self._known) >= _MOST_SERIES:
            return (_OTHER,) * len(self.labels)
        self._known[shown] = shown
        return shown

    def collected(self) -> Metric:
        """The family as it is now."""
        raise NotImplementedError


class Counter(Family):
    """A number that only grows."""

    def __init__(self, name: str, help_: str, labels: Sequence[str]) -> None:
        super().__init__(name, help_, labels)
        self._values: dict[tuple[str, ...], float] = {}

    def add(self, *values: str, amount: float = 1.0) -> None:
        """Add to the series of these label values."""
        key = self._key(values)
        self._values[key] = self._values.get(key, 0.0) + amount

    def collected(self) -> Metric:
        from prometheus_client.core import CounterMetricFamily

        family = CounterMetricFamily(self.name, self.help, labels=self.labels)
        for values, amount in self._values.items():
            family.add_metric(values, amount)
        return family


class Histogram(Family):
    """How long things took, in seconds."""

    def __init__(self, name: str, help_: str, labels: Sequence[str]) -> None:
        super().__init__(name, help_, labels)
        self._counts: dict[tuple[str, ...], list[int]] = {}
        self._sums: dict[tuple[str, ...], float] = {}

    def observe(self, *values: str, seconds: float) -> None:
        """Count one that took so long."""
        key = self._key(values)
        counts = self._counts.get(key)
        if counts is None:
            counts = self._counts[key] = [0] * (len(SECONDS) + 1)
            self._sums[key] = 0.0
        counts[bisect_left(SECONDS, seconds)] += 1
        self._sums[key] += seconds

    def collected(self) -> Metric:
        from prometheus_client.core import HistogramMetricFamily

        family = HistogramMetricFamily(self.name, self.help, labels=self.labels)
        bounds = [*map(repr, SECONDS), "+Inf"]
        for values, counts in self._counts.items():
            buckets, total = [], 0
            for bound, count in zip(bounds, counts, strict=True):
                total += count
                buckets.append((bound, float(total)))
            family.add_metric(values, buckets, self._sums[values])
        return family


class Gauge(Family):
    """Values as they are now."""

    def __init__(
        self,
        name: str,
        help_: str,
        values: Mapping[tuple[str, ...], float] | float,
        labels: Sequence[str] = (),
    ) -> None:
        """The values by those of their labels; a number: the one without labels."""
        super().__init__(name, help_, labels)
        self._values = values if isinstance(values, Mapping) else {(): float(values)}

    def collected(self) -> Metric:
        from prometheus_client.core import GaugeMetricFamily

        family = GaugeMetricFamily(self.name, self.help, labels=self.labels)
        for values, amount in self._values.items():
            family.add_metric([_encodable(value) for value in values], amount)
        return family


def text_of(families: Iterable[Family]) -> str:
    """The families as Prometheus text.

    Raises:
        EnvironmentRefusedError: `missing-extra`.
    """
    require_client()
    from prometheus_client import CollectorRegistry, generate_latest
    from prometheus_client.registry import Collector

    class Page(Collector):
        """These families; the library asks for them once."""

        def collect(self) -> Iterator[Metric]:
            return (each.collected() for each in families)

    registry = CollectorRegistry()
    registry.register(Page())
    return generate_latest(registry).decode()


def require_client() -> None:
    """Load what makes the text, which takes some 40 ms.

    Raises:
        EnvironmentRefusedError: `missing-extra`.
    """
    try:
        import prometheus_client  # noqa: F401  # whether it can be
    except ImportError as error:
        raise EnvironmentRefusedError(
            "A page of metrics needs the package 'prometheus_client', which is not installed. "
            "Install the extra: pip install 'minions-engine[server]'.",
            code="missing-extra",
        ) from error


def _encodable(text: str) -> str:
    """What UTF-8 lacks is replaced. A lone carriage return ends a line for some parsers."""
    return text.replace("\r", " ").encode("utf-8", "replace").decode("utf-8")

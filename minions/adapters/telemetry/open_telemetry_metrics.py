"""`OpenTelemetryMetrics`: counts and times for OpenTelemetry."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from minions.adapters.telemetry.genai_attributes import provider_name
from minions.contracts.metrics import Metrics

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider


_TOKENS: Final = (1, 4, 16, 64, 256, 1_024, 4_096, 16_384, 65_536, 262_144, 1_048_576, 4_194_304)
"""Upper bounds of buckets, in tokens; those of the GenAI conventions, as those of seconds are."""
_SECONDS: Final = (
    0.01,
    0.02,
    0.04,
    0.08,
    0.16,
    0.32,
    0.64,
    1.28,
    2.56,
    5.12,
    10.24,
    20.48,
    40.96,
    81.92,
)
_LONGEST: Final = 120
"""Characters of an attribute: names come from recipes and servers."""


class OpenTelemetryMetrics(Metrics):
    """Instruments of a meter; where their values go is decided by the meter provider."""

    def __init__(self, provider: MeterProvider | None = None) -> None:
        """Nothing was counted.

        Args:
            provider: None: the application's, as `opentelemetry` knows it.
        Raises:
            ImportError: The package `opentelemetry-api` is not installed.
        """
        from opentelemetry.metrics import get_meter

        meter = get_meter("minions", meter_provider=provider)
        self._token_usage = meter.create_histogram(
            "gen_ai.client.token.usage",
            unit="{token}",
            description="Tokens of model calls.",
            explicit_bucket_boundaries_advisory=_TOKENS,
        )
        self._request_s = meter.create_histogram(
            "gen_ai.client.operation.duration",
            unit="s",
            description="Time of a model request, without its wait.",
            explicit_bucket_boundaries_advisory=_SECONDS,
        )
        self._cost = meter.create_counter(
            "minions.model.cost", unit="{USD}", description="Known cost of model calls."
        )
        self._wait_s = meter.create_histogram(
            "minions.model.wait", unit="s", description="Time that a request waited for its turn."
        )
        self._active = meter.create_up_down_counter(
            "minions.runs.active", unit="{run}", description="Runs that are executed now."
        )
        self._run_s = meter.create_histogram(
            "minions.run.duration", unit="s", description="Time of an execution of a run."
        )
        self._step_s = meter.create_histogram(
            "minions.step.duration", unit="s", description="Time of a step."
        )
        self._tool_s = meter.create_histogram(
            "minions.tool.duration", unit="s", description="Time of a tool call, all attempts."
        )
        self._checked = meter.create_counter(
            "minions.output.checked",
            unit="{answer}",
            description="Answers checked against a declared output, by how they were asked for.",
        )
        self._retries = meter.create_counter(
            "minions.retries", unit="{attempt}", description="Attempts beyond the first."
        )
        self._refusals = meter.create_counter(
            "minions.budget.refusals", unit="{call}", description="Calls that a limit refused."
        )

    def run_began(self) -> None:
        self._active.add(1)

    def run_ended(self, status: str, seconds: float) -> None:
        self._active.add(-1)
        self._run_s.record(seconds, {"minions.run.status": status})

    def step_ended(self, status: str, code: str | None, seconds: float) -> None:
        self._step_s.record(seconds, _with_error({"minions.step.status": status}, code))

    def model_attempt_ended(self, model: str, code: str | None, seconds: float) -> None:
        self._request_s.record(seconds, _with_error(_of_model(model), code))

    def model_call_waited(self, model: str, seconds: float) -> None:
        self._wait_s.record(seconds, _of_model(model))

    def model_tokens(
        self, model: str, input_tokens: int, output_tokens: int, cost_usd: float | None
    ) -> None:
        of_model = _of_model(model)
        self._token_usage.record(input_tokens, {**of_model, "gen_ai.token.type": "input"})
        self._token_usage.record(output_tokens, {**of_model, "gen_ai.token.type": "output"})
        if cost_usd is not None:
            self._cost.add(cost_usd, of_model)

    def output_checked(
        self, model: str, rung: str, cost_usd: float | None, *, is_valid: bool
    ) -> None:
        told = {"minions.output.rung": rung, "minions.output.valid": "yes" if is_valid else "no"}
        self._checked.add(1, {**_of_model(model), **told})

    def tool_call_ended(self, tool: str, code: str | None, seconds: float) -> None:
        self._tool_s.record(seconds, _with_error({"gen_ai.tool.name": tool[:_LONGEST]}, code))

    def retried(self, what: str) -> None:
        self._retries.add(1, {"minions.what": what})

    def budget_refused(self, limit: str) -> None:
        self._refusals.add(1, {"minions.limit": limit[:_LONGEST]})


def _of_model(model: str) -> dict[str, str]:
    provider, _, name = model.partition("/")
    return {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": provider_name(provider)[:_LONGEST],
        "gen_ai.request.model": (name or provider)[:_LONGEST],
    }


def _with_error(attributes: dict[str, str], code: str | None) -> dict[str, str]:
    return attributes if code is None else {**attributes, "error.type": code[:_LONGEST]}

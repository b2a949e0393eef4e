"""What tracing costs: a call whose spans are made, encoded and sent, against one without."""

from __future__ import annotations

import logging
from functools import partial

from attrs import evolve

from benchmarks.clients import model_at
from benchmarks.endpoint import Endpoint
from benchmarks.measuring import Effort, Row, least_cpu_s, ratio_row
from benchmarks.model_call import RECIPE
from minions import AgentExecutor, Services
from minions.adapters.telemetry.open_telemetry import OpenTelemetryTracer
from minions.adapters.telemetry.otel_variables import OtlpTarget
from minions.adapters.telemetry.otlp import open_providers


async def measure(effort: Effort, endpoint: Endpoint) -> list[Row]:
    """One call of one step: three spans, and the header that joins the server's."""
    calls = effort.count(500)
    base_url = endpoint.base_url("plain")
    # It takes whatever is posted, as a collector does.
    target = OtlpTarget(traces_url=f"{base_url}/traces", metrics_url=None, service="benchmark")
    providers = open_providers(target, {}, logging.warning)
    tracer = OpenTelemetryTracer(providers.traces)
    traced = evolve(Services(), tracer=tracer)
    async with (
        model_at(base_url) as model,
        model_at(base_url, trace_headers=tracer.headers) as joined,
    ):
        works = {
            "plain": partial(_runs, AgentExecutor(model, services=Services()), calls),
            "traced": partial(_runs, AgentExecutor(joined, services=traced), calls),
        }
        taken = await least_cpu_s(effort, {**works, "again": works["plain"]})
    providers.close()
    plain = min(taken["plain"], taken["again"])
    return [
        ratio_row(
            "tracing",
            "a model call with tracing, its spans encoded and sent, against one without",
            ratio=taken["traced"] / plain,
            most=1.15,
            of="a call without",
            absolute=f"{taken['traced'] / calls * 1e6:.0f} µs; {plain / calls * 1e6:.0f} µs",
        )
    ]


async def _runs(executor: AgentExecutor, calls: int) -> None:
    for _ in range(calls):
        result = await executor.execute(RECIPE)
        assert result.output == "All is well.", result.error

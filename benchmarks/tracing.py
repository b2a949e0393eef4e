"""What tracing costs: a call whose spans are made, encoded and sent, against one without."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from attrs import evolve
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from benchmarks.clients import model_at
from benchmarks.endpoint import Endpoint
from benchmarks.measuring import Effort, Row, least_cpu_s, ratio_row
from benchmarks.model_call import RECIPE
from minions import AgentExecutor, Services
from minions.adapters.telemetry.open_telemetry import OpenTelemetryTracer


class _Encoded(SpanExporter):
    """Writes what would be sent, and sends it nowhere."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        encode_spans(spans).SerializeToString()
        return SpanExportResult.SUCCESS


async def measure(effort: Effort, endpoint: Endpoint) -> list[Row]:
    """One call of one step: three spans."""
    calls = effort.count(500)
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(_Encoded(), max_queue_size=100_000))
    traced = evolve(Services(), tracer=OpenTelemetryTracer(provider))
    async with model_at(endpoint.base_url("plain")) as model:
        works = {
            "plain": partial(_runs, AgentExecutor(model, services=Services()), calls),
            "traced": partial(_runs, AgentExecutor(model, services=traced), calls),
        }
        taken = await least_cpu_s(effort, {**works, "again": works["plain"]})
    provider.shutdown()
    plain = min(taken["plain"], taken["again"])
    return [
        ratio_row(
            "tracing",
            "a model call with tracing, its spans encoded, against one without",
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

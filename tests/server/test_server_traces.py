"""Runs of the server in the traces of their callers, and what the page of metrics then says."""

from __future__ import annotations

from attrs import evolve
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from asgi_client import TOKEN, Client
from minions.adapters.telemetry.open_telemetry import OpenTelemetryMetrics, OpenTelemetryTracer
from minions.app.settings.settings import Settings
from minions.engine.services.run_services import Services
from minions.interfaces.server.app import create_app
from minions.interfaces.server.server_options import ServerOptions

CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


async def test_a_run_is_in_the_trace_of_its_caller_and_of_no_other(recipes: object) -> None:
    """A-136."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    reader = InMemoryMetricReader()
    meters = MeterProvider([reader], shutdown_on_exit=False)
    services = evolve(
        Services(), tracer=OpenTelemetryTracer(provider), metrics=OpenTelemetryMetrics(meters)
    )
    app = create_app(
        ServerOptions(token=TOKEN, grace_s=1.0),
        recipes=[recipes],  # type: ignore[list-item]  # a fixture's folder
        settings=Settings(no_store=True),
        services=services,
    )
    client = Client(app)
    for headers in ({"traceparent": CALLER}, {}):
        body = {"recipe": "adds", "inputs": {"a": 2}}
        accepted = await client.post("/runs", body, **headers)
        await client.ended(accepted.json["run_id"])
    page = (await client.ask("GET", "/metrics")).body.decode()
    await app.aclose()
    runs = [each for each in exporter.get_finished_spans() if each.name == "invoke_workflow adds"]
    joined, alone = runs
    assert joined.parent is not None
    assert f"{joined.parent.span_id:016x}" == "b7ad6b7169203331"
    assert alone.parent is None
    assert 'minions_runs_total{status="completed"} 2' in page
    data = reader.get_metrics_data()
    assert data is not None
    names = {
        metric.name
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }
    assert {"minions.run.duration", "minions.step.duration", "minions.runs.active"} <= names

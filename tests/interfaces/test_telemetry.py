"""How an operator asks for traces and metrics, and what becomes of them."""

from __future__ import annotations

import socket
import sys
from collections.abc import Mapping

import pytest
from attrs import evolve

from command_line import Cli, Write
from minions.adapters.telemetry.open_telemetry import OpenTelemetryTracer
from minions.contracts.errors import EnvironmentRefusedError, MinionsError
from minions.interfaces.settings import Settings, TelemetrySettings
from minions.interfaces.wiring.telemetry import Telemetry, make_telemetry
from otlp_collector import collecting

RECIPE = """
id: talks
model: scripted/answers.yaml
steps:
  - {id: talk, goal: hi, completion: {mode: text}}
"""
ANSWERS = "answers: [well]\n"
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def refuse(line: str) -> None:
    pytest.fail(line)


def made(settings: TelemetrySettings, environ: Mapping[str, str]) -> Telemetry:
    telemetry = make_telemetry(Settings(telemetry=settings), environ, refuse)
    if telemetry.close is not None:
        telemetry.close()
    return telemetry


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")


def test_the_spans_and_metrics_of_a_command_arrive_at_the_collector(
    cli: Cli, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A-136."""
    write("talks.yaml", RECIPE)
    write("answers.yaml", ANSWERS)
    with collecting() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        monkeypatch.setenv("TRACEPARENT", PARENT)
        outcome = cli("run", "talks.yaml", "--no-store")
    assert outcome.code == 0, outcome.err
    by_name = {each.name: each for each in collector.spans}
    assert set(by_name) == {"invoke_workflow talks", "invoke_agent talk", "chat answers.yaml"}
    assert {each.trace_id for each in collector.spans} == {"0af7651916cd43dd8448eb211c80319c"}
    assert {each.service for each in collector.spans} == {"minions"}
    assert by_name["invoke_workflow talks"].parent_id == "b7ad6b7169203331"
    assert by_name["invoke_agent talk"].parent_id == by_name["invoke_workflow talks"].span_id
    assert by_name["chat answers.yaml"].parent_id == by_name["invoke_agent talk"].span_id
    assert {"gen_ai.client.token.usage", "gen_ai.client.operation.duration"} <= collector.metrics
    assert sorted({*collector.paths}) == ["/v1/metrics", "/v1/traces"]


@pytest.mark.parametrize(
    "variables",
    [
        {"OTEL_TRACES_SAMPLER": "always_off"},
        {"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.0"},
        {"TRACEPARENT": PARENT.removesuffix("01") + "00"},
    ],
)
def test_a_trace_that_is_not_sampled_sends_no_span(
    cli: Cli, write: Write, monkeypatch: pytest.MonkeyPatch, variables: Mapping[str, str]
) -> None:
    """A-136."""
    write("talks.yaml", RECIPE)
    write("answers.yaml", ANSWERS)
    with collecting() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        outcome = cli("run", "talks.yaml", "--no-store")
    assert outcome.code == 0, outcome.err
    assert collector.spans == []
    assert collector.paths == ["/v1/metrics"]


def test_the_variables_of_resource_compression_and_limits_count(
    cli: Cli, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("talks.yaml", RECIPE)
    write("answers.yaml", ANSWERS)
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "service.namespace=shop")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_COMPRESSION", "gzip")
    monkeypatch.setenv("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "2")
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "none")
    with collecting() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        outcome = cli("run", "talks.yaml", "--no-store")
    assert outcome.code == 0, outcome.err
    assert {each.namespace for each in collector.spans} == {"shop"}
    assert {len(each.attributes) for each in collector.spans} == {2}
    assert collector.encodings == {"gzip"}


def test_a_collector_that_refuses_is_told_with_its_status(
    cli: Cli, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("talks.yaml", RECIPE)
    write("answers.yaml", ANSWERS)
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "none")
    with collecting(status=401) as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        outcome = cli("run", "talks.yaml", "--no-store")
    assert outcome.code == 0
    assert "Spans could not be sent to http://127.0.0.1:" in outcome.err
    assert "the collector answers with status 401" in outcome.err


def test_the_settings_say_where_spans_go_and_what_they_are_called(
    cli: Cli, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("talks.yaml", RECIPE)
    write("answers.yaml", ANSWERS)
    monkeypatch.setenv("OTEL_SERVICE_NAME", "shop")
    with collecting() as collector:
        told = f'[telemetry]\ntraces = true\nendpoint = "{collector.url}/otlp/"\n'
        write("minions.toml", told)
        outcome = cli("run", "talks.yaml", "--no-store")
    assert outcome.code == 0, outcome.err
    assert {each.service for each in collector.spans} == {"shop"}
    assert collector.paths == ["/otlp/v1/traces"]


def test_without_a_collector_a_run_goes_on_and_the_command_says_so(
    cli: Cli, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("talks.yaml", RECIPE)
    write("answers.yaml", ANSWERS)
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
    outcome = cli("run", "talks.yaml", "--no-store")
    assert outcome.code == 0
    assert "were not sent" in outcome.err or "could not be sent" in outcome.err


@pytest.mark.parametrize(
    ("environ", "is_on"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://h:1"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://h:1/x"}, True),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://h:1", "OTEL_TRACES_EXPORTER": "none"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://h:1", "OTEL_SDK_DISABLED": "true"}, False),
    ],
)
def test_the_variables_of_opentelemetry_count(environ: Mapping[str, str], *, is_on: bool) -> None:
    assert (made(TelemetrySettings(), environ).tracer is not None) == is_on


@pytest.mark.parametrize(
    ("settings", "environ", "is_told"),
    [
        (TelemetrySettings(), {}, False),
        (TelemetrySettings(content=True), {}, True),
        (TelemetrySettings(), {"OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": "true"}, True),
        (
            TelemetrySettings(),
            {"OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": "no_content"},
            False,
        ),
        (
            TelemetrySettings(),
            {"OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": "event_only"},
            False,
        ),
    ],
)
def test_texts_are_told_only_when_somebody_asks(
    settings: TelemetrySettings, environ: Mapping[str, str], *, is_told: bool
) -> None:
    tracer = made(evolve(settings, traces=True), environ).tracer
    assert isinstance(tracer, OpenTelemetryTracer)
    assert tracer.has_content == is_told


def test_what_the_settings_ask_for_is_there_or_refused_by_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in [name for name in sys.modules if name.startswith("opentelemetry")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "minions.adapters.telemetry.otlp", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(EnvironmentRefusedError, match=r"minions-engine\[otel\]") as caught:
        made(TelemetrySettings(traces=True), {})
    assert caught.value.error_code == "missing-extra"
    told: list[str] = []
    environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://h:1"}
    assert make_telemetry(Settings(), environ, told.append) == Telemetry()
    (line,) = told
    assert "there is none" in line


@pytest.mark.parametrize(
    ("settings", "environ", "told"),
    [
        ({}, {"PROTOCOL": "grpc"}, "OTEL_EXPORTER_OTLP_PROTOCOL is 'grpc'; traces are sent"),
        ({}, {"TRACES_PROTOCOL": "grpc"}, "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL is 'grpc'"),
        ({"endpoint": "nowhere"}, {}, r"`endpoint` of \[telemetry\] is 'nowhere', which is not"),
        ({}, {"ENDPOINT": "h:1"}, "OTEL_EXPORTER_OTLP_ENDPOINT is 'h:1', which is not"),
        ({}, {"TRACES_ENDPOINT": "h"}, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT is 'h', which is not"),
        ({}, {"COMPRESSION": "zstd"}, "OTEL_EXPORTER_OTLP_COMPRESSION is 'zstd'; requests can"),
    ],
)
def test_spans_that_cannot_be_sent_as_asked_are_refused_by_name(
    settings: dict[str, str], environ: dict[str, str], told: str
) -> None:
    asked = TelemetrySettings(traces=True, metrics=False, endpoint=settings.get("endpoint"))
    with pytest.raises(MinionsError, match=told):
        made(asked, {f"OTEL_EXPORTER_OTLP_{name}": value for name, value in environ.items()})


@pytest.mark.parametrize("exporter", ["console", "OTLP", "otlp,console"])
def test_an_exporter_that_is_not_there_is_told_in_one_line(exporter: str) -> None:
    told: list[str] = []
    environ = {"OTEL_TRACES_EXPORTER": exporter, "OTEL_EXPORTER_OTLP_ENDPOINT": "http://h:1"}
    assert make_telemetry(Settings(), environ, told.append) == Telemetry()
    (line,) = told
    assert f"OTEL_TRACES_EXPORTER is '{exporter}'; traces are sent to a collector only" in line


def test_a_limit_that_the_sdk_refuses_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SPAN_LINK_COUNT_LIMIT", "few")
    with pytest.raises(EnvironmentRefusedError, match="OTEL_SPAN_LINK_COUNT_LIMIT must be") as it:
        made(TelemetrySettings(traces=True, metrics=False), {})
    assert it.value.error_code == "bad-telemetry"


def test_a_signals_own_address_counts_as_it_is() -> None:
    environ = {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://h:1/x/?a=b"}
    assert made(TelemetrySettings(traces=True, metrics=False), environ).tracer is not None

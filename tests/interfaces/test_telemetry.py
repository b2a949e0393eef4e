"""How an operator asks for traces and metrics, and what becomes of them."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Mapping

import pytest
from attrs import evolve

from command_line import Cli, Write
from minions.adapters.telemetry.open_telemetry import OpenTelemetryTracer
from minions.app.settings.settings import Settings, TelemetrySettings
from minions.app.wiring.configured_runtime import Telemetry, make_telemetry
from minions.data.errors import EnvironmentRefusedError, MinionsError
from otlp_collector import Received, collecting

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


ASKED = """
id: asked
steps:
  - {id: sure, ask: Really?, form: {type: boolean}}
"""
DECIDER = "00-11111111111111111111111111111111-2222222222222222-01"


@pytest.mark.parametrize("decider", [DECIDER, None])
def test_each_execution_at_a_worker_is_in_the_trace_of_the_command_that_queued_it(
    cli: Cli, write: Write, monkeypatch: pytest.MonkeyPatch, decider: str | None
) -> None:
    write("asked.yaml", ASKED)
    at = ("--db", "j.sqlite")

    def work(parent: str | None, *command: str) -> Received:
        """What the worker tells of the run after that command."""
        with collecting() as collector:
            monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
            if parent is not None:
                monkeypatch.setenv("TRACEPARENT", parent)
            assert cli(*command, *at).code == 0
            monkeypatch.delenv("TRACEPARENT", raising=False)
            assert cli("worker", "--once", *at).code == 0
        return next(each for each in collector.spans if each.name == "invoke_workflow asked")

    first = work(PARENT, "run", "asked.yaml", "--detach")
    assert first.parent_id == "b7ad6b7169203331"
    second = work(decider, "answer", "run_", "true")
    assert second.parent_id == ("2222222222222222" if decider is not None else "")
    assert second.links == {first.span_id}


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


def test_a_collector_that_refuses_metrics_is_told_with_its_status(
    cli: Cli, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("talks.yaml", RECIPE)
    write("answers.yaml", ANSWERS)
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
    with collecting(status=404) as collector:
        own = f"{collector.url}/own/metrics?key=hidden"
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", own)
        outcome = cli("run", "talks.yaml", "--no-store")
    assert outcome.code == 0
    told = f"Metrics could not be sent to {collector.url}/own/metrics: the collector answers with"
    assert f"{told} status 404." in outcome.err
    assert "hidden" not in outcome.err


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
    assert f"http://127.0.0.1:{port}/v1/traces: no collector takes them there" in outcome.err
    assert f"http://127.0.0.1:{port}/v1/metrics: no collector takes them there" in outcome.err


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
    # The SDK reads it of the process, where the program handed in other variables.
    with pytest.raises(EnvironmentRefusedError, match="OTEL_SPAN_LINK_COUNT_LIMIT must be") as it:
        made(TelemetrySettings(traces=True, metrics=False), {})
    assert it.value.error_code == "bad-telemetry"


@pytest.mark.parametrize(
    ("name", "value"),
    [("OTEL_PROPAGATORS", "b9"), ("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "x")],
)
def test_a_variable_that_the_sdk_cannot_be_imported_with_ends_no_command(
    write: Write, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    """In a process of its own: the SDK reads them once, while it is imported."""
    write("talks.yaml", RECIPE)
    write("answers.yaml", ANSWERS)
    monkeypatch.setenv(name, value)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    command = [sys.executable, "-m", "minions", "run", "talks.yaml", "--no-store"]
    ended = subprocess.run(command, check=False, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert "well" in ended.stdout
    (line,) = [each for each in ended.stderr.splitlines() if "OTEL_" in each]
    assert f"there is none: {name} is '{value}'" in line


WRONG = [
    ("OTEL_PROPAGATORS", "tracecontext,b9", "OTEL_PROPAGATORS is 'b9'; no installed package"),
    ("OTEL_PROPAGATORS", "tracecontext,", "OTEL_PROPAGATORS is ''"),
    ("OTEL_ATTRIBUTE_COUNT_LIMIT", "x", "is 'x', which is no whole number"),
    ("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "-1", "is '-1', which is no whole number"),
    ("OTEL_SPAN_EVENT_COUNT_LIMIT", "1.5", "is '1.5', which is no whole number"),
    ("OTEL_SPAN_LINK_COUNT_LIMIT", "few", "is 'few', which is no whole number"),
    ("OTEL_EVENT_ATTRIBUTE_COUNT_LIMIT", "x", "is 'x', which is no whole number"),
    ("OTEL_LINK_ATTRIBUTE_COUNT_LIMIT", "x", "is 'x', which is no whole number"),
    ("OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT", "x", "is 'x', which is no whole number"),
    ("OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT", "x", "is 'x', which is no whole number"),
    (
        "OTEL_TRACES_SAMPLER",
        "sometimes",
        "is 'sometimes'; expected is one of parentbased_always_on",
    ),
    ("OTEL_EXPORTER_OTLP_HEADERS", "nonsense", "Part 1 of OTEL_EXPORTER_OTLP_HEADERS is not"),
    ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "a=b,c", "Part 2 of OTEL_EXPORTER_OTLP_TRACES_HEADERS"),
    ("OTEL_EXPORTER_OTLP_METRICS_HEADERS", "a=x%0Ab", "Part 1 of OTEL_EXPORTER_OTLP_METRICS_"),
    ("OTEL_EXPORTER_OTLP_METRICS_TIMEOUT", "soon", "OTEL_EXPORTER_OTLP_METRICS_TIMEOUT is 'soon'"),
    ("OTEL_METRIC_EXPORT_INTERVAL", "x", "is 'x', which is no number of milliseconds"),
    ("OTEL_METRIC_EXPORT_INTERVAL", "0", "is '0', which is no number of milliseconds"),
    ("OTEL_METRIC_EXPORT_INTERVAL", "nan", "is 'nan', which is no number of milliseconds"),
    ("OTEL_METRIC_EXPORT_TIMEOUT", "inf", "is 'inf', which is no number of milliseconds"),
    ("OTEL_METRICS_EXEMPLAR_FILTER", "some", "is 'some'; expected is one of trace_based"),
    ("OTEL_RESOURCE_ATTRIBUTES", "nonsense", "has the part 'nonsense', which is not KEY=VALUE"),
    ("OTEL_RESOURCE_ATTRIBUTES", "a=b,=c", "has the part '=c', which is not KEY=VALUE"),
    ("OTEL_SDK_DISABLED", "maybe", "OTEL_SDK_DISABLED is 'maybe'; expected is one of true, false"),
]


@pytest.mark.parametrize(("name", "value", "words"), WRONG)
def test_a_variable_that_cannot_be_followed_is_told_or_refused_by_name(
    name: str, value: str, words: str
) -> None:
    told: list[str] = []
    environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://h:1", name: value}
    assert make_telemetry(Settings(), environ, told.append) == Telemetry()
    (line,) = told
    assert name in line
    assert words in line
    with pytest.raises(EnvironmentRefusedError) as caught:
        made(TelemetrySettings(traces=True, metrics=True), {name: value})
    assert caught.value.error_code == "bad-telemetry"
    assert words in caught.value.message


@pytest.mark.parametrize("argument", ["x", "1.5", "-0.1", "nan"])
@pytest.mark.parametrize("sampler", ["traceidratio", "parentbased_traceidratio"])
def test_a_ratio_of_traces_that_is_none_is_refused_by_name(sampler: str, argument: str) -> None:
    environ = {"OTEL_TRACES_SAMPLER": sampler, "OTEL_TRACES_SAMPLER_ARG": argument}
    with pytest.raises(EnvironmentRefusedError, match=r"OTEL_TRACES_SAMPLER_ARG is '.*no share"):
        made(TelemetrySettings(traces=True), environ)


@pytest.mark.parametrize(
    "environ",
    [
        {name: "" for name, _, _ in WRONG},
        {"OTEL_PROPAGATORS": "tracecontext, baggage"},
        {"OTEL_PROPAGATORS": "none,b9"},
        {"OTEL_TRACES_SAMPLER": "Always_On", "OTEL_TRACES_SAMPLER_ARG": "anything"},
        {"OTEL_TRACES_SAMPLER": "traceidratio"},
        {"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.5"},
        {"OTEL_SPAN_EVENT_COUNT_LIMIT": "0"},
        {"OTEL_METRIC_EXPORT_INTERVAL": "1000.5"},
        {"OTEL_RESOURCE_ATTRIBUTES": "a=b=c, d=,"},
        {"OTEL_EXPORTER_OTLP_HEADERS": "authorization=Bearer a=, x-b=,"},
        {"OTEL_SDK_DISABLED": "False"},
    ],
)
def test_variables_that_can_be_followed_are(environ: Mapping[str, str]) -> None:
    telemetry = made(TelemetrySettings(traces=True, metrics=True), environ)
    assert telemetry.tracer is not None
    assert telemetry.metrics is not None


def test_variables_of_a_signal_that_nobody_asks_for_are_not_read() -> None:
    of_metrics = {"OTEL_METRIC_EXPORT_INTERVAL": "x", "OTEL_METRICS_EXEMPLAR_FILTER": "x"}
    assert made(TelemetrySettings(traces=True, metrics=False), of_metrics).tracer is not None
    of_traces = {"OTEL_TRACES_SAMPLER": "sometimes"}
    assert made(TelemetrySettings(traces=False, metrics=True), of_traces).metrics is not None


def test_no_error_shows_what_a_header_would_have_been() -> None:
    environ = {"OTEL_EXPORTER_OTLP_HEADERS": "a=b,secret-key"}
    with pytest.raises(EnvironmentRefusedError) as caught:
        made(TelemetrySettings(traces=True), environ)
    assert "secret-key" not in caught.value.message


@pytest.mark.parametrize(
    ("name", "example"),
    [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "`http://localhost:4318`"),
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "`http://localhost:4318/v1/traces`"),
    ],
)
def test_an_address_without_a_scheme_is_refused_with_a_collectors(name: str, example: str) -> None:
    told: list[str] = []
    make_telemetry(Settings(), {name: "localhost:4318"}, told.append)
    (line,) = told
    assert f"{name} is 'localhost:4318', which is not a base URL" in line
    assert f"such as {example}." in line


def test_a_signals_own_address_counts_as_it_is() -> None:
    environ = {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://h:1/x/?a=b"}
    assert made(TelemetrySettings(traces=True, metrics=False), environ).tracer is not None

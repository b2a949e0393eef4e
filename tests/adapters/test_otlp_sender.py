"""What a collector is sent, and how often, and what is said where it does not arrive."""

from __future__ import annotations

import gzip
import socket
import ssl
import threading
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from attrs import define, field
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTracePartialSuccess,
    ExportTraceServiceResponse,
)

from minions.adapters.telemetry.otel_variables import OtlpTarget
from minions.adapters.telemetry.otlp import OtlpEndpoint, OtlpSender, open_providers
from minions.data.errors import EnvironmentRefusedError

PEM = Path(__file__).with_name("localhost.pem")
Answer = tuple[int, Mapping[str, str]]
OK: Answer = (200, {})


@define
class Collector:
    """Answers as it is told, the last answer again and again."""

    answers: list[Answer]
    says: bytes = b"{}" * 100
    url: str = ""
    bodies: list[bytes] = field(factory=list)
    headers: list[dict[str, str]] = field(factory=list)
    connections: set[int] = field(factory=set)


@contextmanager
def collector(*answers: Answer, tls: ssl.SSLContext | None = None) -> Iterator[Collector]:
    """A collector on this machine."""
    told = Collector(list(answers) or [OK])

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            told.connections.add(self.client_address[1])
            told.headers.append({name.lower(): value for name, value in self.headers.items()})
            told.bodies.append(self.rfile.read(int(self.headers["content-length"])))
            status, headers = told.answers[0] if len(told.answers) == 1 else told.answers.pop(0)
            body = told.says
            self.send_response(status)
            for name, value in {"content-length": str(len(body)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    scheme = "http"
    if tls is not None:
        server.socket, scheme = tls.wrap_socket(server.socket, server_side=True), "https"
    told.url = f"{scheme}://localhost:{server.server_port}/v1/traces"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield told
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class Waiting:
    """A clock that only moves while somebody sleeps."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return sum(self.slept)

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


def sender(
    url: str, waiting: Waiting | None = None, variables: Mapping[str, str] | None = None
) -> OtlpSender:
    waiting = waiting or Waiting()
    endpoint = OtlpEndpoint.of(url, variables or {}, "TRACES")
    return OtlpSender(
        endpoint, monotonic=waiting.monotonic, sleep=waiting.sleep, jitter=lambda: 0.5
    )


def test_requests_have_the_operators_headers_and_use_one_connection() -> None:
    with collector() as told:
        sending = sender(
            told.url,
            variables={
                "OTEL_EXPORTER_OTLP_HEADERS": "authorization=Bearer%20of%20all",
                "OTEL_EXPORTER_OTLP_TRACES_HEADERS": "authorization=Bearer%20of-traces,x-tenant=a",
            },
        )
        assert [sending.send(b"one"), sending.send(b"two")] == [None, None]
        sending.close()
    assert told.bodies == [b"one", b"two"]
    assert told.headers[0]["content-type"] == "application/x-protobuf"
    assert told.headers[0]["authorization"] == "Bearer of-traces"
    assert told.headers[0]["x-tenant"] == "a"
    assert len(told.connections) == 1


@pytest.mark.parametrize(
    ("name", "read"), [("gzip", gzip.decompress), ("deflate", zlib.decompress)]
)
def test_bodies_are_compressed_where_the_operator_says_so(name: str, read: object) -> None:
    with collector() as told:
        assert (
            sender(told.url, variables={"OTEL_EXPORTER_OTLP_COMPRESSION": name}).send(b"x" * 500)
            is None
        )
    assert told.headers[0]["content-encoding"] == name
    assert callable(read)
    assert read(told.bodies[0]) == b"x" * 500


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_what_a_collector_takes_later_is_sent_again(status: int) -> None:
    waiting = Waiting()
    answers: list[Answer] = [(status, {}), (status, {"retry-after": "2"}), (status, {}), OK]
    with collector(*answers) as told:
        assert sender(told.url, waiting).send(b"x") is None
    assert told.bodies == [b"x"] * 4
    assert waiting.slept == [1.0, 2.0, 4.0]


def test_a_collector_that_wants_more_time_than_there_is_is_given_up() -> None:
    waiting = Waiting()
    for wanted in ("11", "Fri, 31 Dec 2199 23:59:59 GMT"):
        with collector((503, {"retry-after": wanted})) as told:
            reason = sender(told.url, waiting).send(b"x")
        assert reason == "the collector answers with status 503"
        assert (len(told.bodies), waiting.slept) == (1, [])


def test_a_time_to_wait_that_is_over_or_cannot_be_read_is_none() -> None:
    for said, slept in (("Wed, 21 Oct 2015 07:28:00 GMT", [0.0]), ("soon", [1.0]), ("-3", [0.0])):
        waiting = Waiting()
        with collector((503, {"retry-after": said}), OK) as told:
            assert sender(told.url, waiting).send(b"x") is None
        assert waiting.slept == slept


def test_a_collector_that_never_takes_them_is_asked_for_as_long_as_the_operator_says() -> None:
    waiting = Waiting()
    with collector((503, {})) as told:
        sending = sender(told.url, waiting, variables={"OTEL_EXPORTER_OTLP_TIMEOUT": "100"})
        assert sending.send(b"x") is not None
    assert waiting.slept == [1.0, 2.0, 4.0, 8.0, 16.0]
    with collector((503, {})) as told:
        assert (
            sender(told.url, variables={"OTEL_EXPORTER_OTLP_TIMEOUT": "0.5"}).send(b"x") is not None
        )
    assert len(told.bodies) == 1


@pytest.mark.parametrize("status", [302, 400, 401, 404, 500])
def test_what_no_attempt_will_mend_is_sent_once_and_said(status: int) -> None:
    with collector((status, {"location": "/elsewhere"})) as told:
        assert sender(told.url).send(b"x") == f"the collector answers with status {status}"
    assert len(told.bodies) == 1


def test_what_a_collector_rejects_of_a_request_that_it_takes_is_said() -> None:
    """A-136."""
    with collector() as told:
        told.says = ExportTraceServiceResponse(
            partial_success=ExportTracePartialSuccess(rejected_spans=3, error_message="too many")
        ).SerializeToString()
        assert sender(told.url).send(b"x") == "the collector rejected 3 of them: too many"
        told.says = ExportTraceServiceResponse().SerializeToString()
        assert sender(told.url).send(b"x") is None
    assert len(told.bodies) == 2


def test_where_nobody_listens_is_said_and_tried_again() -> None:
    waiting = Waiting()
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    assert (
        sender(f"http://127.0.0.1:{port}/x", waiting).send(b"x") == "no collector takes them there"
    )
    assert waiting.slept == [1.0, 2.0, 4.0]


def test_while_it_waits_it_knows_why_the_last_attempt_failed() -> None:
    known: list[str] = []

    class Asking(Waiting):
        def sleep(self, seconds: float) -> None:
            known.append(sending.last_reason)
            super().sleep(seconds)

    with collector((503, {}), (429, {}), OK) as told:
        sending = sender(f"{told.url}?key=hidden", Asking())
        assert sending.last_reason == "the collector has not answered yet"
        assert sending.send(b"x") is None
    assert known == [f"the collector answers with status {status}" for status in (503, 429)]
    assert sending.last_reason == "the collector has not answered yet"
    assert sending.address == told.url


def test_the_end_of_a_process_says_what_was_not_sent_and_where_to() -> None:
    said: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        target = OtlpTarget(traces_url=f"{url}/t?key=hidden", metrics_url=f"{url}/m")
        providers = open_providers(target, {"OTEL_EXPORTER_OTLP_TIMEOUT": "5"}, said.append)
        assert providers.traces is not None
        assert providers.metrics is not None
        providers.traces.get_tracer("t").start_span("s").end()
        providers.metrics.get_meter("m").create_counter("c").add(1)
        providers.close(wait_s=0.05)
        providers.close(wait_s=0.05)
        reason = "the collector has not answered yet"
        what = f"spans ({url}/t: {reason}) and metrics ({url}/m: {reason})"
        assert said == [f"The last {what} were not sent within 0.05 s, and are given up."]


def test_certificates_of_both_sides_are_checked() -> None:
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(PEM))
    tls.load_cert_chain(PEM)
    tls.verify_mode = ssl.CERT_REQUIRED
    variables = {
        "OTEL_EXPORTER_OTLP_CERTIFICATE": str(PEM),
        "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE": str(PEM),
    }
    with collector(tls=tls) as told:
        assert sender(told.url, variables=variables).send(b"x") is None
        with_key = {**variables, "OTEL_EXPORTER_OTLP_CLIENT_KEY": str(PEM)}
        assert sender(told.url, variables=with_key).send(b"y") is None
        assert sender(told.url).send(b"z") is not None
    assert told.bodies == [b"x", b"y"]


def test_a_package_with_credentials_makes_the_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own-1.dist-info").mkdir()
    (tmp_path / "own-1.dist-info" / "METADATA").write_text("Name: own\nVersion: 1\n")
    entry = "[opentelemetry_otlp_credential_provider]\nmine = own_credentials:session\n"
    (tmp_path / "own-1.dist-info" / "entry_points.txt").write_text(entry)
    source = "import requests\ndef session():\n    s = requests.Session()\n"
    source += "    s.headers['authorization'] = 'mine'\n    return s\n"
    (tmp_path / "own_credentials.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    variable = "OTEL_PYTHON_EXPORTER_OTLP_HTTP_TRACES_CREDENTIAL_PROVIDER"
    with collector() as told:
        assert sender(told.url, variables={variable: "mine"}).send(b"x") is None
        assert told.headers[0]["authorization"] == "mine"
    with pytest.raises(EnvironmentRefusedError, match="is 'nobodys'; no installed package has"):
        sender("http://h:1", variables={variable: "nobodys"})


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("TIMEOUT", "soon", "OTEL_EXPORTER_OTLP_TIMEOUT is 'soon', which is no number of seconds"),
        ("TIMEOUT", "0", "is '0', which is no number of seconds above 0"),
        ("TIMEOUT", "nan", "is 'nan'"),
        ("COMPRESSION", "zstd", "OTEL_EXPORTER_OTLP_COMPRESSION is 'zstd'; requests can be sent"),
    ],
)
def test_a_variable_that_cannot_be_followed_is_refused_by_name(
    name: str, value: str, told: str
) -> None:
    with pytest.raises(EnvironmentRefusedError, match=told) as caught:
        sender("http://h:1", variables={f"OTEL_EXPORTER_OTLP_{name}": value})
    assert caught.value.error_code == "bad-telemetry"

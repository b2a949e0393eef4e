"""A collector on this machine that keeps the spans and metrics that it is sent."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from attrs import define, field, frozen
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@frozen
class Received:
    """A span as it arrived."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    links: frozenset[str]
    """The ids of the spans that it names."""
    service: str
    namespace: str
    attributes: frozenset[str]
    """Their names."""


@define
class Collector:
    """What arrived so far."""

    url: str
    spans: list[Received] = field(factory=list)
    metrics: set[str] = field(factory=set)
    paths: list[str] = field(factory=list)
    encodings: set[str] = field(factory=set)
    """Of the bodies of requests."""

    def take(self, path: str, body: bytes) -> None:
        """Keep the content of one request."""
        self.paths.append(path)
        if path.partition("?")[0].endswith("/metrics"):
            for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                for scope in resource.scope_metrics:
                    self.metrics.update(each.name for each in scope.metrics)
            return
        for spans in ExportTraceServiceRequest.FromString(body).resource_spans:
            named = {each.key: each.value.string_value for each in spans.resource.attributes}
            for scope in spans.scope_spans:
                self.spans += [
                    Received(
                        name=span.name,
                        trace_id=span.trace_id.hex(),
                        span_id=span.span_id.hex(),
                        parent_id=span.parent_span_id.hex(),
                        links=frozenset(each.span_id.hex() for each in span.links),
                        service=named["service.name"],
                        namespace=named.get("service.namespace", ""),
                        attributes=frozenset(each.key for each in span.attributes),
                    )
                    for span in scope.spans
                ]


@contextmanager
def collecting(status: int = 200) -> Iterator[Collector]:
    """A collector that takes OTLP over HTTP, and answers with that status."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            collector.encodings.add(self.headers.get("content-encoding", ""))
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            collector.take(self.path, body)
            self.send_response(status)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    collector = Collector(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield collector
    finally:
        server.shutdown()
        thread.join()
        server.server_close()

"""Traces and metrics on their way to a collector, by OTLP over HTTP, from threads of their own.

Needs the extra `otel`. What else OpenTelemetry's own variables say counts as they say it: service
name, sampler, headers, batches.
"""

from __future__ import annotations

import gzip
import logging
import math
import os
import random
import threading
import time
import weakref
import zlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Final

from attrs import define, field, frozen
from opentelemetry import context
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import (
    MetricExporter,
    MetricExportResult,
    MetricsData,
    PeriodicExportingMetricReader,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanLimits, TracerProvider

from minions.adapters.telemetry.otel_variables import OtlpTarget
from minions.adapters.telemetry.otlp_spans import (
    OtlpTracerProvider,
    SpanRecord,
    encode_request,
    encode_resource,
    rough_size,
)
from minions.data.errors import EnvironmentRefusedError

if TYPE_CHECKING:
    import requests

_PRODUCT: Final = "minions"
_LONGEST_CLOSE_S: Final = 3.0
"""Seconds that the end of a process waits for a collector."""


@frozen
class _Shutdown:
    """What sends what is left of one signal."""

    what: str
    """`spans` or `metrics`."""
    run: Callable[[], object]
    sender: OtlpSender

    def failure(self) -> str:
        """What is not sent yet, where it should have gone, and why it is not there."""
        return f"{self.what} ({self.sender.address}: {self.sender.last_reason})"


@define(kw_only=True)
class TelemetryProviders:
    """What makes spans and instruments, and sends them."""

    traces: OtlpTracerProvider | None
    metrics: MeterProvider | None
    _shutdowns: Sequence[_Shutdown]
    _warn: Callable[[str], None]
    _is_closed: bool = field(default=False, init=False)

    def close(self, wait_s: float = _LONGEST_CLOSE_S) -> None:
        """Send what is left, and warn where that takes longer. A second call does nothing."""
        if self._is_closed:
            return
        self._is_closed = True
        threads = [threading.Thread(target=each.run, daemon=True) for each in self._shutdowns]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + wait_s
        for thread in threads:
            thread.join(max(deadline - time.monotonic(), 0))
        ended = zip(self._shutdowns, threads, strict=True)
        if late := [each.failure() for each, thread in ended if thread.is_alive()]:
            self._warn(
                f"The last {' and '.join(late)} were not sent within {wait_s:g} s, "
                "and are given up."
            )


def open_providers(
    target: OtlpTarget, environ: Mapping[str, str], warn: Callable[[str], None]
) -> TelemetryProviders:
    """Providers whose spans and metrics go to a collector.

    Args:
        environ: OpenTelemetry's variables; what the SDK reads by itself it reads of the process.
        warn: Called, from a thread, with one line when a collector first cannot be reached.
    Raises:
        EnvironmentRefusedError: `bad-telemetry`; one of the variables cannot be as it is.
    """
    # Its exporters log every failed attempt; here there is one line for a person.
    logging.getLogger("opentelemetry").addHandler(logging.NullHandler())
    resource = _resource(target.service)
    traces = metrics = None
    shutdowns: list[_Shutdown] = []
    if target.traces_url is not None:
        sdk = _sdk_of(resource)
        sender = OtlpSender(OtlpEndpoint.of(target.traces_url, environ, "TRACES"))
        limits = SpanLimits()
        sending = _SpanSender(sender, sdk, limits.max_span_attribute_length, warn)
        queue = SpanQueue(sending.send, BatchLimits.of(environ), warn)
        traces = OtlpTracerProvider(queue, sampler=sdk.sampler, limits=limits)
        shutdowns.append(_Shutdown("spans", queue.close, sender))
    if target.metrics_url is not None:
        sender = OtlpSender(OtlpEndpoint.of(target.metrics_url, environ, "METRICS"))
        reader = PeriodicExportingMetricReader(_Metrics(sender, warn))
        metrics = MeterProvider([reader], resource=resource, shutdown_on_exit=False)
        shutdowns.append(_Shutdown("metrics", metrics.shutdown, sender))
    return TelemetryProviders(traces=traces, metrics=metrics, shutdowns=shutdowns, warn=warn)


def _sdk_of(resource: Resource) -> TracerProvider:
    """The SDK's provider, for what it reads of the variables: sampler, limits, resource."""
    try:
        return TracerProvider(resource=resource, shutdown_on_exit=False)
    except ValueError as error:
        raise EnvironmentRefusedError(
            f"OpenTelemetry refuses one of its variables: {error}.", code="bad-telemetry"
        ) from error


def _resource(service: str | None) -> Resource:
    if service is not None:
        return Resource.create({"service.name": service})
    found = Resource.create()
    if str(found.attributes.get("service.name", "")).startswith("unknown_service"):
        return found.merge(Resource({"service.name": _PRODUCT}))
    return found


class _Warning:
    """Tells once that nothing arrives."""

    def __init__(self, what: str, url: str, warn: Callable[[str], None]) -> None:
        self._words = f"{what} could not be sent to {url}"
        self._warn = warn
        self._is_told = False

    def tell(self, reason: str) -> None:
        if not self._is_told:
            self._is_told = True
            self._warn(f"{self._words}: {reason}.")


class _SpanSender:
    """Encodes and posts batches of spans, in the thread of their queue."""

    def __init__(
        self,
        sender: OtlpSender,
        sdk: TracerProvider,
        longest: int | None,
        warn: Callable[[str], None],
    ) -> None:
        self._sender = sender
        self._sdk = sdk
        self._longest = longest
        self._warning = _Warning("Spans", sender.address, warn)

    def send(self, spans: Sequence[SpanRecord]) -> None:
        resource = self._sdk.resource  # another one in a process that was forked
        told = encode_resource(resource.attributes, resource.schema_url)
        body = encode_request(told, spans, self._longest)
        # The span of this request would be a span to send, and so on.
        token = context.attach(context.set_value("suppress_instrumentation", True))
        try:
            reason = self._sender.send(body)
        finally:
            context.detach(token)
        if reason is not None:
            self._warning.tell(reason)


class _Metrics(MetricExporter):
    """Encodes and posts metrics, in the thread of their reader."""

    def __init__(self, sender: OtlpSender, warn: Callable[[str], None]) -> None:
        super().__init__()
        self._sender = sender
        self._warning = _Warning("Metrics", sender.address, warn)

    def export(
        self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: object
    ) -> MetricExportResult:
        # Loaded in the thread that sends: it takes time.
        from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics

        reason = self._sender.send(encode_metrics(metrics_data).SerializeToString())
        if reason is None:
            return MetricExportResult.SUCCESS
        self._warning.tell(reason)
        return MetricExportResult.FAILURE

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        return True  # nothing waits here

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: object) -> None:
        self._sender.close()


# --- `SpanQueue` ---------------------------------------------------------------------------------


_MOST_BYTES: Final = 64 << 20
"""Bytes of all spans that wait: texts of prompts may be among them."""
_MOST_BYTES_SENT: Final = 4 << 20
"""Bytes of one request, as long as it has more than one span: collectors refuse large ones."""


@frozen(kw_only=True)
class BatchLimits:
    """How spans are put together. The defaults are OpenTelemetry's."""

    most_waiting: int = 2_048
    """Spans of the queue."""
    most_sent: int = 512
    """Spans of one request. So many are sent at once, fewer after `delay_s`."""
    delay_s: float = 5.0

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> BatchLimits:
        """As the variables OTEL_BSP_* say.

        Raises:
            EnvironmentRefusedError: `bad-telemetry`; one of them is no number above 0, or a
                request is to have more spans than the queue.
        """
        usual = cls()
        most_waiting = _number(environ, "OTEL_BSP_MAX_QUEUE_SIZE", usual.most_waiting)
        usual_sent = min(usual.most_sent, most_waiting)
        limits = cls(
            most_waiting=most_waiting,
            most_sent=_number(environ, "OTEL_BSP_MAX_EXPORT_BATCH_SIZE", usual_sent),
            delay_s=_number(environ, "OTEL_BSP_SCHEDULE_DELAY", int(usual.delay_s * 1000)) / 1000,
        )
        if limits.most_sent > limits.most_waiting:
            raise EnvironmentRefusedError(
                f"OTEL_BSP_MAX_EXPORT_BATCH_SIZE is {limits.most_sent}, and the queue has room "
                f"for {limits.most_waiting}: OTEL_BSP_MAX_QUEUE_SIZE={limits.most_sent}, or more.",
                code="bad-telemetry",
            )
        return limits


class SpanQueue:
    """Takes spans from any thread. The thread that sends begins with the first span."""

    def __init__(
        self,
        send: Callable[[Sequence[SpanRecord]], None],
        limits: BatchLimits,
        warn: Callable[[str], None],
    ) -> None:
        """No thread runs.

        Args:
            send: Sends some spans, in the thread; raises nothing.
            warn: Called, from the thread, with one line when spans are first dropped, and at the
                end with their number.
        """
        self._send = send
        self._limits = limits
        self._warn = warn
        self._dropped = 0
        self._is_closed = False
        self._begin()
        if hasattr(os, "register_at_fork"):
            begin = weakref.WeakMethod(self._begin)
            os.register_at_fork(after_in_child=lambda: (again := begin()) and again())

    def _begin(self) -> None:
        """Nothing waits; also in a process that was forked: its parent sends what waited."""
        self._waiting: deque[tuple[SpanRecord, int]] = deque()
        """Spans with their rough sizes."""
        self._bytes = 0
        self._lock = threading.Lock()
        self._wakes = threading.Event()
        self._worker: threading.Thread | None = None

    @property
    def dropped(self) -> int:
        """Spans that were not sent because the queue was full."""
        return self._dropped

    def add(self, span: SpanRecord) -> None:
        """Let a span wait. Returns at once; a span that finds no room, or comes late, is lost."""
        size = rough_size(span)
        with self._lock:
            count = len(self._waiting)
            is_full = count >= self._limits.most_waiting or self._bytes + size > _MOST_BYTES
            if is_full or self._is_closed:
                self._dropped += 1
                return
            self._waiting.append((span, size))
            self._bytes += size
            if self._worker is None:
                self._start()
        if count + 1 == self._limits.most_sent:
            self._wakes.set()

    def close(self) -> None:
        """Send what waits, which takes as long as it takes. A second call does nothing."""
        with self._lock:
            self._is_closed = True
            thread = self._worker
        self._wakes.set()
        if thread is not None:
            thread.join()

    def _start(self) -> None:
        self._worker = threading.Thread(target=self._work, name="minions-spans", daemon=True)
        self._worker.start()

    def _work(self) -> None:
        is_told = False
        while not self._is_closed:
            is_woken = self._wakes.wait(self._limits.delay_s)
            self._wakes.clear()
            self._send_all(least=self._limits.most_sent if is_woken else 1)
            if self._dropped and not is_told:
                is_told = True
                self._warn(f"Spans are dropped: {self._reason()}")
        self._send_all(least=1)
        if self._dropped:
            self._warn(f"{self._dropped:,} spans were dropped: {self._reason()}")

    def _send_all(self, least: int) -> None:
        while len(self._waiting) >= least:
            self._send(self._take())

    def _take(self) -> list[SpanRecord]:
        """The oldest spans that one request has room for: one at least."""
        taken: list[SpanRecord] = []
        size = 0
        with self._lock:
            while self._waiting and len(taken) < self._limits.most_sent:
                span, own = self._waiting[0]
                if taken and size + own > _MOST_BYTES_SENT:
                    break
                size += own
                self._waiting.popleft()
                taken.append(span)
            self._bytes -= size
        return taken

    def _reason(self) -> str:
        return (
            f"more than {self._limits.most_waiting:,} (OTEL_BSP_MAX_QUEUE_SIZE), or 64 MiB of "
            "them, were waiting for the collector."
        )


def _number(environ: Mapping[str, str], name: str, usual: int) -> int:
    said = environ.get(name, "").strip()
    if not said:
        return usual
    if said.isascii() and said.isdigit() and len(said) < 10 and int(said):
        return int(said)
    raise EnvironmentRefusedError(
        f"{name} is '{said:.40}', which is no whole number above 0: {name}={usual}, or unset it.",
        code="bad-telemetry",
    )


# --- `OtlpSender` --------------------------------------------------------------------------------


_VARIABLE: Final = "OTEL_EXPORTER_OTLP_"
_COMPRESSIONS: Final = ("none", "gzip", "deflate")
_USUAL_TIMEOUT_S: Final = 10.0
_MOST_ATTEMPTS: Final = 6
_AGAIN: Final = frozenset((429, 502, 503, 504))
"""Statuses of a collector that takes the same later, as OTLP has them."""
_LINE_ENDS: Final = frozenset("\r\n\0")
"""Characters that no header can have."""
_LONGEST_ANSWER: Final = 64 * 1024
_CREDENTIALS: Final = "OTEL_PYTHON_EXPORTER_OTLP_HTTP_{}CREDENTIAL_PROVIDER"
_PROVIDERS: Final = "opentelemetry_otlp_credential_provider"
"""The group of entry points that make sessions with credentials."""


@frozen(kw_only=True)
class OtlpEndpoint:
    """Where and how requests are posted."""

    url: str
    headers: Mapping[str, str]
    timeout_s: float
    """Seconds of all attempts of one request together."""
    compression: str
    """`none`, `gzip` or `deflate`."""
    authority: str | None
    """File of certificates that the collector's is checked with; None: the usual ones."""
    certificate: str | None
    """File of the certificate that is shown to the collector."""
    key: str | None
    """File of that certificate's key."""
    credentials: EntryPoint | None
    """Where an installed package makes sessions with credentials."""

    @classmethod
    def of(cls, url: str, environ: Mapping[str, str], signal: str) -> OtlpEndpoint:
        """As the variables say.

        Args:
            signal: `TRACES` or `METRICS`: variables with that name come first.
        Raises:
            EnvironmentRefusedError: `bad-telemetry`; a timeout is no number above 0, or a
                compression is not one of OTLP, or headers are not NAME=VALUE.
        """

        def variable(name: str) -> str:
            own = f"{_VARIABLE}{signal}_{name}"
            return own if environ.get(own) else _VARIABLE + name

        def told(name: str) -> str:
            return environ.get(variable(name), "")

        return cls(
            url=url,
            headers=_headers(variable("HEADERS"), told("HEADERS")),
            timeout_s=_timeout_s(variable("TIMEOUT"), told("TIMEOUT")),
            compression=_compression(variable("COMPRESSION"), told("COMPRESSION")),
            authority=told("CERTIFICATE") or None,
            certificate=told("CLIENT_CERTIFICATE") or None,
            key=told("CLIENT_KEY") or None,
            credentials=_credentials(environ, signal),
        )


@frozen
class _Attempt:
    """How one attempt ended."""

    reason: str | None
    """Why it failed; None: it did not."""
    is_final: bool = True
    """Whether another attempt is of no use."""
    wait_s: float | None = None
    """Seconds until another attempt; None: the usual, which doubles each time."""


class OtlpSender:
    """Posts one request after the other over one connection. For one thread."""

    def __init__(
        self,
        endpoint: OtlpEndpoint,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """Nothing is opened, and the HTTP client not imported, which takes 100 ms."""
        self._endpoint = endpoint
        self._url = endpoint.url
        self._session: requests.Session | None = None
        self._last_reason: str | None = None
        self._monotonic = monotonic
        self._sleep = sleep
        self._jitter = jitter

    def send(self, body: bytes) -> str | None:
        """Post a message of OTLP, and wait for the answer. Raises nothing.

        Returns:
            Why it did not arrive, as a clause; None: it did.
        """
        data = self._compress(body)
        deadline = self._monotonic() + self._endpoint.timeout_s
        ended = _Attempt("no time was left")
        for number in range(_MOST_ATTEMPTS):
            ended = self._attempt(data, max(deadline - self._monotonic(), 0.001))
            self._last_reason = ended.reason
            if ended.is_final:
                break
            usual_s = 2**number * (0.8 + 0.4 * self._jitter())
            wait_s = ended.wait_s if ended.wait_s is not None else usual_s
            if self._monotonic() + wait_s > deadline or number + 1 == _MOST_ATTEMPTS:
                break
            self._sleep(wait_s)
        return ended.reason

    @property
    def address(self) -> str:
        """The URL without its query, which may have a key."""
        return self._url.partition("?")[0]

    @property
    def last_reason(self) -> str:
        """Why the newest attempt that ended had failed, as a clause. For any thread."""
        return self._last_reason or "the collector has not answered yet"

    def close(self) -> None:
        """Close the connection."""
        if self._session is not None:
            self._session.close()

    def _attempt(self, data: bytes, timeout_s: float) -> _Attempt:
        import requests

        try:
            return self._post(data, timeout_s)
        except requests.exceptions.SSLError as error:  # a ConnectionError, too
            return _Attempt(f"the certificates do not fit: {error!s:.300}")
        except (requests.ConnectionError, requests.Timeout):
            return _Attempt("no collector takes them there", is_final=False)
        except Exception as error:  # noqa: BLE001  # the thread's rim: proxies, others' credentials
            return _Attempt(f"{type(error).__name__}: {error!s:.200}")

    def _post(self, data: bytes, timeout_s: float) -> _Attempt:
        if self._session is None:
            self._session = _session(self._endpoint)
        answer = self._session.post(
            self._url,
            data=data,
            timeout=timeout_s,
            allow_redirects=False,
            stream=True,
            verify=self._session.verify,  # else REQUESTS_CA_BUNDLE would come before it
        )
        with answer:  # read, else the connection could not be used again
            told = answer.raw.read(_LONGEST_ANSWER)
        if answer.status_code // 100 == 2:
            is_plain = told and not answer.headers.get("content-encoding")
            return _Attempt(_partial_refusal(told) if is_plain else None)
        reason = f"the collector answers with status {answer.status_code}"
        if answer.status_code not in _AGAIN:
            return _Attempt(reason)
        return _Attempt(reason, is_final=False, wait_s=_wait_s(answer.headers.get("retry-after")))

    def _compress(self, body: bytes) -> bytes:
        if self._endpoint.compression == "gzip":
            return gzip.compress(body, 6)
        return zlib.compress(body) if self._endpoint.compression == "deflate" else body


def _partial_refusal(answer: bytes) -> str | None:
    """What a collector rejected of a request that it took, as a clause; None: nothing.

    Args:
        answer: A message `ExportTraceServiceResponse`. That of metrics has the same fields.
    """
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # no stubs
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

    try:
        found = ExportTraceServiceResponse.FromString(answer).partial_success
    except DecodeError:  # a page for people, say
        return None
    if not found.rejected_spans:
        return None
    words = f": {found.error_message:.200}" if found.error_message else ""
    return f"the collector rejected {found.rejected_spans:,} of them{words}"


def _session(endpoint: OtlpEndpoint) -> requests.Session:
    import requests

    own = endpoint.credentials
    session: requests.Session = own.load()() if own is not None else requests.Session()
    session.headers.update(
        {"content-type": "application/x-protobuf", "user-agent": "minions", **endpoint.headers}
    )
    if endpoint.compression != "none":
        session.headers.setdefault("content-encoding", endpoint.compression)
    session.verify = endpoint.authority or True
    if endpoint.certificate is not None:
        session.cert = endpoint.certificate
        if endpoint.key is not None:
            session.cert = endpoint.certificate, endpoint.key
    return session


def _wait_s(said: str | None) -> float | None:
    """Seconds of a header `Retry-After`, which says them or a date; None: neither."""
    if said is None:
        return None
    try:
        return max(float(int(said)), 0.0)
    except ValueError:
        pass
    try:
        until = parsedate_to_datetime(said)
    except (TypeError, ValueError, OverflowError):
        return None
    until = until if until.tzinfo is not None else until.replace(tzinfo=UTC)
    return max((until - datetime.now(UTC)).total_seconds(), 0.0)


def _credentials(environ: Mapping[str, str], signal: str) -> EntryPoint | None:
    for name in (_CREDENTIALS.format(""), _CREDENTIALS.format(f"{signal}_")):
        if provider := environ.get(name):
            found = next(iter(entry_points(group=_PROVIDERS, name=provider)), None)
            if found is not None:
                return found
            raise EnvironmentRefusedError(
                f"{name} is '{provider:.40}'; no installed package has an entry point of that name "
                f"in the group {_PROVIDERS}. Install it, or unset the variable.",
                code="bad-telemetry",
            )
    return None


def _headers(name: str, said: str) -> Mapping[str, str]:
    """Headers of a variable; no error shows its value, which may be a key."""
    from opentelemetry.util.re import parse_env_headers

    headers: dict[str, str] = {}
    for number, part in enumerate(said.split(","), 1):
        found = parse_env_headers(part, liberal=True)
        if part.strip() and (not found or any(set(text) & _LINE_ENDS for text in found.values())):
            raise EnvironmentRefusedError(
                f"Part {number} of {name} is not NAME=VALUE. Parts are separated by commas; other "
                f"characters of values are percent-encoded: {name}=x-tenant=shop,x-note=a%2Cb.",
                code="bad-telemetry",
            )
        headers |= found
    return headers


def _timeout_s(name: str, said: str) -> float:
    try:
        seconds = float(said or _USUAL_TIMEOUT_S)
    except ValueError:
        seconds = math.nan
    if 0 < seconds < math.inf:
        return seconds
    raise EnvironmentRefusedError(
        f"{name} is '{said:.40}', which is no number of seconds above 0: {name}=10, or unset it.",
        code="bad-telemetry",
    )


def _compression(name: str, said: str) -> str:
    compression = said.strip().lower() or "none"
    if compression in _COMPRESSIONS:
        return compression
    raise EnvironmentRefusedError(
        f"{name} is '{said:.40}'; requests can be sent with gzip, deflate or none: {name}=gzip.",
        code="bad-telemetry",
    )

"""`OtlpSender`: posts what was encoded to a collector, and tries again where that may help.

It does so as OpenTelemetry's variables OTEL_EXPORTER_OTLP_* say, and as its own exporters do.
"""

from __future__ import annotations

import gzip
import math
import random
import time
import zlib
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Final

from attrs import frozen

from minions.data.errors import EnvironmentRefusedError

if TYPE_CHECKING:
    import requests


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
        data = self._compressed(body)
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
        return self._endpoint.url.partition("?")[0]

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
            return self._posted(data, timeout_s)
        except requests.exceptions.SSLError as error:  # a ConnectionError, too
            return _Attempt(f"the certificates do not fit: {error!s:.300}")
        except (requests.ConnectionError, requests.Timeout):
            return _Attempt("no collector takes them there", is_final=False)
        except Exception as error:  # noqa: BLE001  # the thread's rim: proxies, others' credentials
            return _Attempt(f"{type(error).__name__}: {error!s:.200}")

    def _posted(self, data: bytes, timeout_s: float) -> _Attempt:
        if self._session is None:
            self._session = _session(self._endpoint)
        answer = self._session.post(
            self._endpoint.url,
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

    def _compressed(self, body: bytes) -> bytes:
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

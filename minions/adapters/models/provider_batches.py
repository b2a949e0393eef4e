"""The batch APIs of providers: OpenAI's, which compatible servers have too, Anthropic's, Gemini's.

Requests and answers are those of the model's own wire form; here stands how they are handed over
together, found again and read back. Which calls go there is the engine's.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Final, Protocol, TypeAlias
from urllib.parse import quote, urlsplit

from returns.result import Failure, Result, Success

from minions.adapters.http.http_pool import ExchangeTimeoutError, HttpPool, NoAnswerError
from minions.adapters.http.http_response import BrokenBodyError
from minions.adapters.models.answer_reader import WireForm
from minions.adapters.models.chat_failures import ChatPeer
from minions.contracts.batch_apis import (
    NO_BATCH_API,
    BatchApi,
    BatchLimits,
    BatchLine,
    BatchRequest,
    BatchStatus,
    LineEnd,
)
from minions.contracts.calls import ModelCallResponse, ModelFailure, Prompt
from minions.contracts.model_endpoints import ModelApi
from minions.data.json_values import JsonValue

_Object: TypeAlias = Mapping[str, object]

_MIB: Final = 1_048_576
_SHORT_S: Final = 60.0
"""Seconds for a request about a batch."""
_LONG_S: Final = 900.0
"""Seconds for one that hands over the requests of a batch, or reads their answers."""
_MOST_BYTES: Final = 20 * _MIB
"""Bytes of one answer, and of a document about batches."""
_MOST_RESULT_BYTES: Final = 512 * _MIB
"""Bytes of a document that holds all answers of a batch."""
_PAGES: Final = 1_000
"""Pages of a list of batches that are read to find one."""
_MOST_DIGITS: Final = 18
"""The longest number that is taken for a count."""


class BatchedServer(Protocol):
    """A model behind HTTP, as its batch API needs it; an `HttpModel` is one."""

    @property
    def name(self) -> str:
        """`provider/model`."""

    @property
    def base_url(self) -> str:
        """Base URL of the server."""

    @property
    def peer(self) -> ChatPeer:
        """The server, which words failures."""

    @property
    def wire(self) -> WireForm:
        """The form of its requests and answers."""

    def write_plain(self, prompt: Prompt) -> Result[bytes, ModelFailure]:
        """The body of a request whose answer is not streamed; or why it cannot be sent."""

    def read_plain(self, prompt: Prompt, body: bytes) -> Result[ModelCallResponse, ModelFailure]:
        """The answer with this body."""

    def refusal(self, status: int, headers: Mapping[str, str], body: bytes) -> ModelFailure:
        """The failure behind a status other than 2xx."""

    def open_other(
        self, url: str, *, method: str, headers: Mapping[str, str] | None = None
    ) -> HttpPool:
        """A pool that asks the same server for another URL."""


def provider_batches(model: BatchedServer) -> BatchApi:
    """The batch API of the model's wire form."""
    match model.wire.api:
        case ModelApi.MESSAGES:
            return AnthropicBatches(model)
        case ModelApi.GEMINI:
            return GeminiBatches(model)
        case ModelApi.CHAT | ModelApi.RESPONSES:
            return OpenAIBatches(model)


class _ProviderBatches(BatchApi):
    """Asks the server of a model, with its key, certificates and proxy."""

    def __init__(self, model: BatchedServer) -> None:
        self._model = model
        self._peer = model.peer
        self._path = model.wire.path

    def write(self, prompt: Prompt) -> Result[bytes, ModelFailure]:
        return self._model.write_plain(prompt)

    def read(self, prompt: Prompt, line: BatchLine) -> Result[ModelCallResponse, ModelFailure]:
        if line.end is LineEnd.ANSWERED:
            return self._model.read_plain(prompt, line.body)
        return Failure(self._model.refusal(line.status, {}, line.body))

    async def _ask(
        self,
        method: str,
        path: str,
        content: bytes = b"",
        *,
        headers: Mapping[str, str] | None = None,
        within_s: float = _SHORT_S,
        most_bytes: int = _MOST_BYTES,
    ) -> Result[_Object, ModelFailure]:
        """The JSON object that is the answer to one request. What is none says nothing: it may be
        the page of a proxy.

        Args:
            path: Behind the base URL; or a URL of the same server.
            headers: Over those of every request.
        """
        pieces: list[bytes] = []
        size = 0
        async for piece in self._read(method, path, content, headers=headers, within_s=within_s):
            if not isinstance(piece, Success):
                return Failure(piece.failure())
            pieces.append(piece.unwrap())
            size += len(pieces[-1])
            if size > most_bytes:
                return Failure(self._peer.too_large(most_bytes))
        body = b"".join(pieces)
        document = _object_in(body)
        if document is None:
            text = body.decode("utf-8", "replace")
            return Failure(self._peer.malformed("it is no JSON object", text))
        return Success(document)

    def _text_at(self, asked: Result[_Object, ModelFailure], key: str) -> Result[str, ModelFailure]:
        """The text that an answer has there."""
        if not isinstance(asked, Success):
            return Failure(asked.failure())
        found = asked.unwrap().get(key)
        if isinstance(found, str) and found:
            return Success(found)
        text = json.dumps(asked.unwrap())
        return Failure(self._peer.malformed(f"it has no {key}", text))

    async def _list(
        self, path: str, key: str, next_of: Callable[[_Object], str], *, may_lack: bool = False
    ) -> AsyncIterator[Result[_Object, ModelFailure]]:
        """The batches of the account, page by page; a failure is the last.

        Args:
            key: Where a page has them.
            next_of: What the query of the next page adds; empty: there is none.
            may_lack: Whether a page without batches may lack `key`.
        """
        more = ""
        for _ in range(_PAGES):
            asked = await self._ask("GET", f"{path}{more}")
            if not isinstance(asked, Success):
                yield Failure(asked.failure())
                return
            document = asked.unwrap()
            listed = document.get(key, [] if may_lack else None)
            if not isinstance(listed, list):
                text = json.dumps(document)
                yield Failure(self._peer.malformed(f"a list of batches has no {key}", text))
                return
            for each in _objects(listed):
                yield Success(each)
            more = next_of(document)
            if not more:
                return
        what = f"'{self._model.name}' has more than {_PAGES * 100} batches: the one that is looked "
        yield Failure(ModelFailure(code="batch-unknown", message=f"{what}for was not among them."))

    async def _lines(self, path: str) -> AsyncIterator[Result[bytes, ModelFailure]]:
        """The lines of a file of the server, without the blank ones."""
        rest = b""
        async for piece in self._read("GET", path, within_s=_LONG_S):
            if not isinstance(piece, Success):
                yield piece
                return
            *lines, rest = (rest + piece.unwrap()).split(b"\n")
            for line in lines:
                if line.strip():
                    yield Success(line)
            if len(rest) > _MOST_BYTES:
                yield Failure(self._peer.too_large(_MOST_BYTES))
                return
        if rest.strip():
            yield Success(rest)

    async def _read(
        self,
        method: str,
        path: str,
        content: bytes = b"",
        *,
        headers: Mapping[str, str] | None = None,
        within_s: float,
    ) -> AsyncIterator[Result[bytes, ModelFailure]]:
        """The body of one answer as it arrives; a failure is the last."""
        model = self._model
        url = path if "://" in path else f"{model.base_url}{path}"
        try:
            pool = model.open_other(url, method=method, headers=headers)
        except NoAnswerError as error:
            yield Failure(model.peer.unreachable(str(error)))
            return
        except ValueError as error:
            what = f"'{model.name}': the answers of a batch are elsewhere: {error}."
            yield Failure(ModelFailure(code="batch-failed", message=what))
            return
        try:
            response = await pool.post(content, within_s=within_s)
            try:
                if not 200 <= response.status < 300:
                    body = b""
                    while len(body) < 65_536 and (chunk := await response.read()):
                        body += chunk
                    yield Failure(self._refusal(response.status, response.headers, body, path))
                    return
                while chunk := await response.read():
                    yield Success(chunk)
            finally:
                response.close()
        except NoAnswerError as error:
            yield Failure(model.peer.unreachable(str(error)))
        except BrokenBodyError as error:
            yield Failure(model.peer.interrupted(model.peer.clean(str(error))))
        except ExchangeTimeoutError:
            yield Failure(model.peer.timed_out("did not answer within", within_s, "the limit"))
        finally:
            await pool.close()

    def _refusal(
        self, status: int, headers: Mapping[str, str], body: bytes, path: str
    ) -> ModelFailure:
        """The failure behind a status other than 2xx; of a path that is not there, named so."""
        if status not in (404, 405, 501):
            return self._model.refusal(status, headers, body)
        peer = self._peer
        said = peer.clean(body.decode("utf-8", "replace"), 200)
        return ModelFailure(
            code=NO_BATCH_API,
            message=f"{peer.base_url} answered HTTP {status} to a request for a batch of "
            f"'{peer.name}' ({urlsplit(path).path}): {said or 'no message'}. Where the server has "
            "no batch API, leave out --by and --patience: calls are then made at once.",
            status=status,
        )


# --- OpenAI, and servers that have `/v1/batches` too ---------------------------------------------


_ENDED: Final = frozenset({"completed", "failed", "expired", "cancelled"})
_NAME: Final = "minions_wave"
"""The key of a batch's name in its metadata."""


class OpenAIBatches(_ProviderBatches):
    """A file of requests, and a batch that names it.

    Source: OpenAI's Batch API: 50,000 requests and 200 MB in one batch, one model in each.
    """

    @property
    def limits(self) -> BatchLimits:
        return BatchLimits(max_requests=50_000, max_bytes=190_000_000, cancel_s=600.0)

    async def upload(
        self, name: str, requests: Sequence[BatchRequest]
    ) -> Result[str | None, ModelFailure]:
        url = self._endpoint.encode()
        lines = b"".join(
            b'{"custom_id":"%b","method":"POST","url":"%b","body":%b}\n'
            % (each.custom_id.encode(), url, each.body)
            for each in requests
        )
        border = hashlib.sha256(lines).hexdigest()[:32]
        content = (
            f'--{border}\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
            f'--{border}\r\nContent-Disposition: form-data; name="file"; '
            f'filename="{name}.jsonl"\r\nContent-Type: application/jsonl\r\n\r\n'
        ).encode()
        content += lines + f"\r\n--{border}--\r\n".encode()
        kind = {"Content-Type": f"multipart/form-data; boundary={border}"}
        asked = await self._ask("POST", "/files", content, headers=kind, within_s=_LONG_S)
        return self._text_at(asked, "id")

    async def create(
        self, name: str, requests: Sequence[BatchRequest], uploaded: str | None
    ) -> Result[str, ModelFailure]:
        body: dict[str, JsonValue] = {
            "input_file_id": uploaded,
            "endpoint": self._endpoint,
            "completion_window": "24h",
            "metadata": {_NAME: name},
        }
        return self._text_at(await self._ask("POST", "/batches", json.dumps(body).encode()), "id")

    async def find(
        self, name: str, uploaded: str | None, custom_ids: Sequence[str], since: datetime
    ) -> Result[str | None, ModelFailure]:
        async for each in self._list("/batches?limit=100", "data", _after("after")):
            if not isinstance(each, Success):
                return Failure(each.failure())
            batch = each.unwrap()
            metadata = batch.get("metadata")
            named = metadata.get(_NAME) if isinstance(metadata, Mapping) else None
            # Servers that keep no metadata keep the file.
            if named == name or (uploaded and batch.get("input_file_id") == uploaded):
                return self._text_at(each, "id")
            made_at = batch.get("created_at")
            if isinstance(made_at, int | float) and made_at < since.timestamp():
                break
        return Success(None)

    async def status(self, batch_id: str) -> Result[BatchStatus, ModelFailure]:
        asked = await self._ask("GET", f"/batches/{quote(batch_id, safe='')}")
        if not isinstance(asked, Success):
            return Failure(asked.failure())
        document = asked.unwrap()
        said, counts = document.get("status"), document.get("request_counts")
        if not isinstance(said, str):
            return Failure(self._peer.malformed("it has no status", str(document)))
        files = (document.get("output_file_id"), document.get("error_file_id"))
        problem = None
        if said == "failed":
            errors = document.get("errors")
            listed = errors.get("data") if isinstance(errors, Mapping) else None
            problem = "; ".join(
                f"{each.get('code')}: {each.get('message')}" for each in _objects(listed)
            )
            problem = self._peer.clean(problem) or "no reason was given"
        return Success(
            BatchStatus(
                has_ended=said in _ENDED,
                problem=problem,
                done=_sum_of(counts, ("completed", "failed")),
                results=tuple(each for each in files if isinstance(each, str)),
            )
        )

    async def results(
        self, batch_id: str, status: BatchStatus, custom_ids: Sequence[str]
    ) -> AsyncIterator[Result[BatchLine, ModelFailure]]:
        for file in status.results:
            async for line in self._lines(f"/files/{quote(file, safe='')}/content"):
                if not isinstance(line, Success):
                    yield Failure(line.failure())
                    return
                if (end := _openai_end(_object_in(line.unwrap()) or {})) is not None:
                    yield Success(end)

    async def cancel(self, batch_id: str) -> Result[None, ModelFailure]:
        asked = await self._ask("POST", f"/batches/{quote(batch_id, safe='')}/cancel")
        return _where_open(asked)

    @property
    def _endpoint(self) -> str:
        """The path as batches name it, wherever the server's base URL leads."""
        return f"/v1{self._path}"


def _openai_end(line: _Object) -> BatchLine | None:
    """How the request of a line of results ended; None: it is no such line."""
    custom_id, response, error = line.get("custom_id"), line.get("response"), line.get("error")
    if not isinstance(custom_id, str):
        return None
    if isinstance(response, Mapping):
        status, body = response.get("status_code"), response.get("body")
        code = status if isinstance(status, int) else 500
        end = LineEnd.ANSWERED if 200 <= code < 300 else LineEnd.REFUSED
        return BatchLine(custom_id=custom_id, end=end, body=json.dumps(body).encode(), status=code)
    said = error if isinstance(error, Mapping) else {}
    if said.get("code") == "batch_expired":
        return BatchLine(custom_id=custom_id, end=LineEnd.EXPIRED)
    if said.get("code") == "batch_cancelled":
        return BatchLine(custom_id=custom_id, end=LineEnd.CANCELLED)
    body_of_error = json.dumps({"error": said}).encode()
    return BatchLine(custom_id=custom_id, end=LineEnd.REFUSED, body=body_of_error, status=500)


# --- Anthropic -----------------------------------------------------------------------------------


_STATUS_OF_ERROR: Final = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "api_error": 500,
    "timeout_error": 504,
    "overloaded_error": 529,
}
"""Source: Anthropic's API errors."""


class AnthropicBatches(_ProviderBatches):
    """The requests go with the batch. Batches have no names: one is known by its custom ids, which
    can be read once it has ended.

    Source: Anthropic's Message Batches: 100,000 requests and 256 MB in one batch.
    """

    @property
    def limits(self) -> BatchLimits:
        return BatchLimits(max_requests=100_000, max_bytes=250_000_000, cancel_s=120.0)

    async def create(
        self, name: str, requests: Sequence[BatchRequest], uploaded: str | None
    ) -> Result[str, ModelFailure]:
        lines = b",".join(
            b'{"custom_id":"%b","params":%b}' % (each.custom_id.encode(), each.body)
            for each in requests
        )
        content = b'{"requests":[' + lines + b"]}"
        asked = await self._ask("POST", "/messages/batches", content, within_s=_LONG_S)
        return self._text_at(asked, "id")

    async def find(
        self, name: str, uploaded: str | None, custom_ids: Sequence[str], since: datetime
    ) -> Result[str | None, ModelFailure]:
        expected = set(custom_ids)
        path = "/messages/batches?limit=100"
        async for each in self._list(path, "data", _after("after_id")):
            if not isinstance(each, Success):
                return Failure(each.failure())
            batch = each.unwrap()
            if _time_in(batch.get("created_at")) < since:
                break
            if _sum_of(batch.get("request_counts")) != len(expected):
                continue
            same = await self._has_ids(str(batch.get("id")), batch, expected)
            if not isinstance(same, Success):
                return Failure(same.failure())
            if same.unwrap():
                return self._text_at(each, "id")
        return Success(None)

    async def _has_ids(
        self, batch_id: str, document: _Object, expected: set[str]
    ) -> Result[bool, ModelFailure]:
        """Whether the batch has these custom ids; one of them decides."""
        if document.get("processing_status") != "ended":
            what = (
                f"Batch {batch_id} of '{self._model.name}' may be the one whose creation got no "
                "answer; its ids can be read when it has ended."
            )
            return Failure(ModelFailure(code="batch-unknown", message=what, is_retryable=True))
        status = BatchStatus(has_ended=True, results=_results_of(document))
        async with aclosing(self.results(batch_id, status, ())) as lines:
            async for line in lines:
                return line.map(lambda found: found.custom_id in expected)
        return Success(False)

    async def status(self, batch_id: str) -> Result[BatchStatus, ModelFailure]:
        asked = await self._ask("GET", f"/messages/batches/{quote(batch_id, safe='')}")
        if not isinstance(asked, Success):
            return Failure(asked.failure())
        document = asked.unwrap()
        said, counts = document.get("processing_status"), document.get("request_counts")
        if not isinstance(said, str):
            what = "it has no processing_status"
            return Failure(self._peer.malformed(what, str(document)))
        ended = ("succeeded", "errored")
        return Success(
            BatchStatus(
                has_ended=said == "ended",
                done=_sum_of(counts, ended),
                results=_results_of(document),
            )
        )

    async def results(
        self, batch_id: str, status: BatchStatus, custom_ids: Sequence[str]
    ) -> AsyncGenerator[Result[BatchLine, ModelFailure]]:
        for url in status.results:
            async for line in self._lines(url):
                if not isinstance(line, Success):
                    yield Failure(line.failure())
                    return
                if (end := _anthropic_end(_object_in(line.unwrap()) or {})) is not None:
                    yield Success(end)

    async def cancel(self, batch_id: str) -> Result[None, ModelFailure]:
        asked = await self._ask("POST", f"/messages/batches/{quote(batch_id, safe='')}/cancel")
        return _where_open(asked)


def _results_of(document: _Object) -> tuple[str, ...]:
    url = document.get("results_url")
    return (url,) if isinstance(url, str) and url else ()


def _anthropic_end(line: _Object) -> BatchLine | None:
    """How the request of a line of results ended; None: it is no such line."""
    custom_id, result = line.get("custom_id"), line.get("result")
    if not isinstance(custom_id, str) or not isinstance(result, Mapping):
        return None
    match result.get("type"):
        case "succeeded":
            body = json.dumps(result.get("message")).encode()
            return BatchLine(custom_id=custom_id, end=LineEnd.ANSWERED, body=body)
        case "expired":
            return BatchLine(custom_id=custom_id, end=LineEnd.EXPIRED)
        case "canceled":
            return BatchLine(custom_id=custom_id, end=LineEnd.CANCELLED)
    error = result.get("error")
    inner = error.get("error") if isinstance(error, Mapping) else None
    kind = inner.get("type") if isinstance(inner, Mapping) else None
    status = _STATUS_OF_ERROR.get(str(kind), 500)
    body = json.dumps(error if isinstance(inner, Mapping) else {"error": error}).encode()
    return BatchLine(custom_id=custom_id, end=LineEnd.REFUSED, body=body, status=status)


# --- Gemini --------------------------------------------------------------------------------------


_HTTP_OF_RPC: Final = {3: 400, 4: 504, 5: 404, 7: 403, 8: 429, 9: 400, 11: 400, 16: 401}
"""HTTP statuses of the codes of google.rpc that are no fault of the server.

Source: google/rpc/code.proto."""
_FIRST_HTTP: Final = 100


class GeminiBatches(_ProviderBatches):
    """The requests go with the batch, which has a display name; its answers come in the order of
    the requests, with their keys where the server gives them back.

    Source: Gemini's Batch API: requests of 20 MB in all may go with the batch.
    """

    @property
    def limits(self) -> BatchLimits:
        return BatchLimits(max_requests=20_000, max_bytes=18_000_000, cancel_s=120.0)

    async def create(
        self, name: str, requests: Sequence[BatchRequest], uploaded: str | None
    ) -> Result[str, ModelFailure]:
        lines = b",".join(
            b'{"request":%b,"metadata":{"key":"%b"}}' % (each.body, each.custom_id.encode())
            for each in requests
        )
        begin = json.dumps({"display_name": name})[:-1].encode()
        content = b'{"batch":' + begin + b',"input_config":{"requests":{"requests":[' + lines
        path = self._path.replace(":generateContent", ":batchGenerateContent")
        asked = await self._ask("POST", path, content + b"]}}}}", within_s=_LONG_S)
        return self._text_at(asked, "name")

    async def find(
        self, name: str, uploaded: str | None, custom_ids: Sequence[str], since: datetime
    ) -> Result[str | None, ModelFailure]:
        path = "/batches?pageSize=100"
        async for each in self._list(path, "operations", _page_token, may_lack=True):
            if not isinstance(each, Success):
                return Failure(each.failure())
            metadata = each.unwrap().get("metadata")
            if isinstance(metadata, Mapping) and metadata.get("displayName") == name:
                return self._text_at(each, "name")
        return Success(None)

    async def status(self, batch_id: str) -> Result[BatchStatus, ModelFailure]:
        asked = await self._operation(batch_id)
        if not isinstance(asked, Success):
            return Failure(asked.failure())
        document = asked.unwrap()
        metadata = document.get("metadata")
        known = metadata if isinstance(metadata, Mapping) else {}
        state = str(known.get("state", "")).rpartition("_")[2]
        has_ended = document.get("done") is True or state in (
            *("SUCCEEDED", "FAILED", "CANCELLED", "EXPIRED"),
        )
        error = document.get("error")
        problem = None
        if state == "FAILED" or (isinstance(error, Mapping) and state not in _GEMINI_STOPPED):
            said = error.get("message") if isinstance(error, Mapping) else None
            problem = self._peer.clean(str(said or "no reason was given"))
        counts = ("successfulRequestCount", "failedRequestCount")
        done = _sum_of(known.get("batchStats"), counts)
        return Success(BatchStatus(has_ended=has_ended, problem=problem, done=done))

    async def results(
        self, batch_id: str, status: BatchStatus, custom_ids: Sequence[str]
    ) -> AsyncIterator[Result[BatchLine, ModelFailure]]:
        asked = await self._operation(batch_id, most_bytes=_MOST_RESULT_BYTES)
        if not isinstance(asked, Success):
            yield Failure(asked.failure())
            return
        response = asked.unwrap().get("response")
        listed = response.get("inlinedResponses") if isinstance(response, Mapping) else None
        if isinstance(listed, Mapping):
            listed = listed.get("inlinedResponses")
        for line in _gemini_ends(list(_objects(listed)), custom_ids):
            yield Success(line)

    async def cancel(self, batch_id: str) -> Result[None, ModelFailure]:
        return _where_open(await self._ask("POST", f"/{_gemini_path(batch_id)}:cancel"))

    async def _operation(
        self, batch_id: str, *, most_bytes: int = _MOST_RESULT_BYTES
    ) -> Result[_Object, ModelFailure]:
        path = f"/{_gemini_path(batch_id)}"
        asked = await self._ask("GET", path, within_s=_LONG_S, most_bytes=most_bytes)
        if not isinstance(asked, Success):
            return Failure(asked.failure())
        named = self._text_at(asked, "name")
        return asked if isinstance(named, Success) else Failure(named.failure())


_GEMINI_STOPPED: Final = ("CANCELLED", "EXPIRED")


def _page_token(document: _Object) -> str:
    token = document.get("nextPageToken")
    return f"&pageToken={quote(token, safe='')}" if isinstance(token, str) and token else ""


def _gemini_path(batch_id: str) -> str:
    """The path of a batch, whose id is `batches/…`; it leads to no other one."""
    return "/".join(quote(part, safe="") for part in batch_id.split("/"))


def _gemini_ends(responses: Sequence[_Object], custom_ids: Sequence[str]) -> Iterator[BatchLine]:
    for index, each in enumerate(responses):
        metadata = each.get("metadata")
        key = metadata.get("key") if isinstance(metadata, Mapping) else None
        if not isinstance(key, str):
            if len(responses) != len(custom_ids):
                continue  # nothing says whose answer it is
            key = custom_ids[index]
        answer, error = each.get("response"), each.get("error")
        if isinstance(answer, Mapping):
            body = json.dumps(answer).encode()
            yield BatchLine(custom_id=key, end=LineEnd.ANSWERED, body=body)
            continue
        code = error.get("code") if isinstance(error, Mapping) else None
        code = code if isinstance(code, int) else 13
        status = code if code >= _FIRST_HTTP else _HTTP_OF_RPC.get(code, 500)
        end = LineEnd.CANCELLED if code == 1 else LineEnd.REFUSED
        body = json.dumps({"error": error}).encode()
        yield BatchLine(custom_id=key, end=end, body=body, status=status)


# --- documents -----------------------------------------------------------------------------------


def _object_in(text: bytes) -> _Object | None:
    """The JSON object of a text; None: it is none."""
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _after(name: str) -> Callable[[_Object], str]:
    """What adds to a query, under that name, the last batch of a page that has a next one."""

    def next_of(document: _Object) -> str:
        found = list(_objects(document.get("data")))
        if not found or document.get("has_more") is not True:
            return ""
        return f"&{name}={quote(str(found[-1].get('id')), safe='')}"

    return next_of


def _objects(value: object) -> Iterator[_Object]:
    """The objects of a list; nothing where it is none."""
    for each in value if isinstance(value, list) else ():
        if isinstance(each, Mapping):
            yield each


def _sum_of(counts: object, names: Sequence[str] | None = None) -> int:
    """The sum of counts, some of which may be texts; of all where no names are given."""
    if not isinstance(counts, Mapping):
        return 0
    found = [str(counts.get(name)) for name in (counts if names is None else names)]
    return sum(int(each) for each in found if each.isdecimal() and len(each) <= _MOST_DIGITS)


def _time_in(value: object) -> datetime:
    """A date and time of ISO 8601; what is none counts as long ago."""
    try:
        found = datetime.fromisoformat(str(value))
    except ValueError:
        return datetime.fromtimestamp(0, UTC)
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def _where_open(asked: Result[_Object, ModelFailure]) -> Result[None, ModelFailure]:
    """The outcome of a cancellation: a batch that has ended need not be cancelled."""
    if isinstance(asked, Success):
        return Success(None)
    failure = asked.failure()
    if failure.status in (400, 404, 409):
        return Success(None)
    return Failure(failure)

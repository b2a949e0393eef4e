"""What is read out of the documents of providers about batches, and what says nothing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest
from attrs import field, frozen
from returns.result import Result, Success

from batch_worlds import model_of
from minions.adapters.models.http_model import HttpModel
from minions.adapters.models.provider_batches import (
    _after,
    _anthropic_end,
    _gemini_ends,
    _object_in,
    _objects,
    _openai_end,
    _page_token,
    _sum_of,
    _time_in,
    provider_batches,
)
from minions.contracts.batch_apis import BatchApi, BatchStatus, LineEnd
from minions.contracts.calls import ModelFailure
from minions.data.json_values import JsonValue
from minions.testing.batch_endpoint import BatchForm

SINCE: Final = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
EARLIER: Final = SINCE - timedelta(hours=1)
LATER: Final = SINCE + timedelta(hours=1)


@frozen
class Answer:
    """A response of the server."""

    status: int
    body: bytes
    headers: Mapping[str, str] = field(factory=dict)

    async def read(self) -> bytes:
        """All of it, once."""
        body = self.body
        object.__setattr__(self, "body", b"")
        return body

    def close(self) -> None:
        """Nothing is open."""


@frozen
class Pool:
    """Answers each request with what the table has for it."""

    said: JsonValue | bytes | int
    """A document, a text, or a status."""

    async def post(self, _content: bytes, *, within_s: float) -> Answer:
        """The answer."""
        if isinstance(self.said, int):
            return Answer(self.said, b'{"error": {"message": "no"}}')
        text = self.said if isinstance(self.said, bytes) else json.dumps(self.said).encode()
        return Answer(200, text)

    async def close(self) -> None:
        """Nothing is open."""


def api_of(
    form: BatchForm, said: Mapping[str, Any], monkeypatch: pytest.MonkeyPatch
) -> tuple[BatchApi, list[str]]:  # Any: JSON
    """The batch API at a server that says that, by the end of the URL; and what it was asked."""
    asked: list[str] = []

    def open_other(_model: HttpModel, url: str, **_other: object) -> Pool:
        asked.append(url)
        found = [name for name in said if url.endswith(name)]
        return Pool(said[max(found, key=len)] if found else 500)

    monkeypatch.setattr(HttpModel, "open_other", open_other)
    return provider_batches(model_of(form, "http://server/v1")), asked


def of(result: Result[Any, ModelFailure]) -> Any:  # Any: JSON
    """What it holds: the value, or the failure's code with whether it may pass."""
    if isinstance(result, Success):
        return result.unwrap()
    failure = result.failure()
    return failure.code, failure.is_retryable


def batch(number: int, **more: Any) -> dict[str, Any]:  # Any: JSON
    """A batch of OpenAI's list."""
    made = {"id": f"b{number}", "created_at": int(LATER.timestamp())}
    return {**made, "metadata": None, "input_file_id": f"f{number}", **more}


# --- find ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pages", "expected", "count"),
    [
        ([{"data": [batch(1), batch(2, metadata={"minions_wave": "w"})]}], "b2", 1),
        ([{"data": [batch(1, metadata={"minions_wave": "other"})]}], None, 1),
        ([{"data": [batch(1, metadata="w"), batch(7)]}], "b7", 1),
        ([{"data": [batch(7, metadata={"minions_wave": "other"})]}], "b7", 1),
        ([{"data": []}], None, 1),
        ([{"data": [batch(1), "odd", 3]}], None, 1),
        ([{"data": [batch(1, created_at=int(EARLIER.timestamp())), batch(7)]}], None, 1),
        ([{"data": [batch(1, created_at=int(SINCE.timestamp())), batch(7)]}], "b7", 1),
        ([{"data": [batch(1, created_at="then"), batch(7)]}], "b7", 1),
        ([{"data": [batch(1)], "has_more": True}, {"data": [batch(7)]}], "b7", 2),
        ([{"data": [batch(1)], "has_more": False}, {"data": [batch(7)]}], None, 1),
        ([{"data": [batch(1)], "has_more": "yes"}, {"data": [batch(7)]}], None, 1),
        ([{"data": [], "has_more": True}, {"data": [batch(7)]}], None, 1),
        ([{}], ("malformed-response", True), 1),
        ([{"data": {"b": 1}}], ("malformed-response", True), 1),
        ([b"<html>"], ("malformed-response", True), 1),
        ([[1]], ("malformed-response", True), 1),
        ([503], ("model-unavailable", True), 1),
        ([{"data": [batch(1)], "has_more": True}, 503], ("model-unavailable", True), 2),
        ([{"data": [batch(7, id=None)]}], ("malformed-response", True), 1),
    ],
)
def test_openai_finds_a_batch_by_its_name_or_its_file(
    pages: Sequence[Any], expected: object, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = {"limit=100": pages[0], "after=b1": pages[-1]}
    api, asked = api_of(BatchForm.OPENAI, said, monkeypatch)
    assert of(asyncio.run(api.find("w", "f7", ["m"], SINCE))) == expected
    assert len(asked) == count


def test_openai_finds_no_batch_by_a_file_that_it_does_not_know(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said = {"limit=100": {"data": [batch(1, input_file_id=None)]}}
    api, _ = api_of(BatchForm.OPENAI, said, monkeypatch)
    assert of(asyncio.run(api.find("w", None, ["m"], SINCE))) is None


def held(number: int, **more: Any) -> dict[str, Any]:  # Any: JSON
    """A batch of Anthropic's list, with two requests, that has ended."""
    made = {"id": f"b{number}", "created_at": LATER.isoformat(), "processing_status": "ended"}
    counts = {"succeeded": 1, "errored": 1}
    url = f"http://server/v1/r{number}"
    return {**made, "request_counts": counts, "results_url": url, **more}


OURS: Final = b'{"custom_id": "m1", "result": {"type": "expired"}}\n'
OTHERS: Final = OURS.replace(b"m1", b"x1")


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        ({"data": [held(1), held(2)]}, "b2"),
        ({"data": [held(1)]}, None),
        ({"data": [held(2, created_at=EARLIER.isoformat())]}, None),
        ({"data": [held(2, created_at=SINCE.isoformat())]}, "b2"),
        ({"data": [held(1, created_at="2026-02-01T00:00:00"), held(2)]}, None),
        ({"data": [held(1, created_at="then"), held(2)]}, None),
        ({"data": [held(2, request_counts={"succeeded": 3})]}, None),
        ({"data": [held(2, request_counts={"succeeded": 3}), held(2)]}, "b2"),
        ({"data": [held(2, processing_status="in_progress")]}, ("batch-unknown", True)),
        ({"data": [held(3)]}, ("model-unavailable", True)),
        ({"data": [held(4)]}, None),
        ({"data": [held(2, results_url=None)]}, None),
        ({"data": 5}, ("malformed-response", True)),
        (503, ("model-unavailable", True)),
    ],
)
def test_anthropic_finds_a_batch_by_its_requests(
    page: object, expected: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = {"limit=100": page, "r1": OTHERS, "r2": OURS + OTHERS, "r3": 503, "r4": b"\n{}\n"}
    api, _ = api_of(BatchForm.ANTHROPIC, said, monkeypatch)
    assert of(asyncio.run(api.find("w", None, ["m1", "m2"], SINCE))) == expected


@pytest.mark.parametrize(
    ("pages", "expected"),
    [
        ([{"operations": [{"name": "batches/1", "metadata": {"displayName": "w"}}]}], "batches/1"),
        ([{"operations": [{"name": "batches/1", "metadata": {"displayName": "v"}}]}], None),
        ([{"operations": [{"name": "batches/1", "metadata": "w"}]}], None),
        ([{}], None),
        ([{"operations": 1}], ("malformed-response", True)),
        ([b"<html>"], ("malformed-response", True)),
        ([503], ("model-unavailable", True)),
        (
            [
                {"nextPageToken": "t"},
                {"operations": [{"name": "batches/2", "metadata": {"displayName": "w"}}]},
            ],
            "batches/2",
        ),
    ],
)
def test_gemini_finds_a_batch_by_its_name(
    pages: Sequence[Any], expected: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = {"pageSize=100": pages[0], "pageToken=t": pages[-1]}
    api, _ = api_of(BatchForm.GEMINI, said, monkeypatch)
    assert of(asyncio.run(api.find("w", None, ["m"], SINCE))) == expected


def test_a_list_without_end_is_no_list_without_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minions.adapters.models.provider_batches._PAGES", 3)
    said = {"pageSize=100": {"nextPageToken": "t"}, "pageToken=t": {"nextPageToken": "t"}}
    api, asked = api_of(BatchForm.GEMINI, said, monkeypatch)
    assert of(asyncio.run(api.find("w", None, ["m"], SINCE))) == ("batch-unknown", False)
    assert len(asked) == 3


# --- status --------------------------------------------------------------------------------------


def status(**more: Any) -> BatchStatus:  # Any: as the fields
    return BatchStatus(**{"has_ended": True, **more})


@pytest.mark.parametrize(
    ("form", "document", "expected"),
    [
        ("openai", {"status": "in_progress"}, status(has_ended=False)),
        *(("openai", {"status": each}, status()) for each in ("completed", "expired", "cancelled")),
        ("openai", {"status": "failed"}, status(problem="no reason was given")),
        ("openai", {"status": "failed", "errors": []}, status(problem="no reason was given")),
        (
            "openai",
            {"status": "failed", "errors": {"data": [{"code": "a", "message": "b"}, 1]}},
            status(problem="a: b"),
        ),
        (
            "openai",
            {
                "status": "completed",
                "request_counts": {"total": 9, "completed": 3, "failed": 2},
                "output_file_id": "o",
                "error_file_id": None,
            },
            status(done=5, results=("o",)),
        ),
        ("openai", {"status": 5}, ("malformed-response", True)),
        ("openai", 503, ("model-unavailable", True)),
        ("anthropic", {"processing_status": "canceling"}, status(has_ended=False)),
        (
            "anthropic",
            {
                "processing_status": "ended",
                "request_counts": {"succeeded": 2, "errored": 1, "expired": 5, "canceled": 7},
                "results_url": "u",
            },
            status(done=3, results=("u",)),
        ),
        ("anthropic", {"processing_status": None}, ("malformed-response", True)),
        ("anthropic", 503, ("model-unavailable", True)),
        ("gemini", {"name": "b"}, status(has_ended=False)),
        ("gemini", {"name": "b", "done": True, "metadata": 5}, status()),
        ("gemini", {"name": "b", "metadata": {"state": "BATCH_STATE_SUCCEEDED"}}, status()),
        ("gemini", {"name": "b", "metadata": {"state": "JOB_STATE_EXPIRED"}}, status()),
        (
            "gemini",
            {"name": "b", "metadata": {"state": "JOB_STATE_FAILED"}},
            status(problem="no reason was given"),
        ),
        (
            "gemini",
            {"name": "b", "metadata": {"state": "X_FAILED"}, "error": {"message": "m"}},
            status(problem="m"),
        ),
        ("gemini", {"name": "b", "done": True, "error": {"message": "m"}}, status(problem="m")),
        (
            "gemini",
            {"name": "b", "metadata": {"state": "X_CANCELLED"}, "error": {"message": "m"}},
            status(),
        ),
        (
            "gemini",
            {
                "name": "b",
                "done": True,
                "metadata": {
                    "batchStats": {"successfulRequestCount": "4", "failedRequestCount": "1"}
                },
            },
            status(done=5),
        ),
        ("gemini", {"done": True}, ("malformed-response", True)),
        ("gemini", 503, ("model-unavailable", True)),
    ],
)
def test_what_a_provider_says_of_a_batch(
    form: str, document: object, expected: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    api, _ = api_of(BatchForm(form), {"batches/b": document}, monkeypatch)
    batch_id = "batches/b" if form == "gemini" else "b"
    assert of(asyncio.run(api.status(batch_id))) == expected


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({}, None),
        (400, None),
        (404, None),
        (409, None),
        (503, ("model-unavailable", True)),
        (401, ("auth-rejected", False)),
    ],
)
@pytest.mark.parametrize("form", BatchForm)
def test_a_batch_that_has_ended_need_not_be_cancelled(
    form: BatchForm, said: object, expected: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    api, _ = api_of(form, {"cancel": said}, monkeypatch)
    assert of(asyncio.run(api.cancel("b"))) == expected


# --- lines of results ----------------------------------------------------------------------------


def line_of(**more: Any) -> Any:  # Any: JSON
    found = _openai_end({"custom_id": "m", **more})
    assert found is not None
    return found.end, found.status, json.loads(found.body or b"null")


def test_lines_of_openai() -> None:
    def answered(status: object) -> Any:  # Any: JSON
        return line_of(response={"status_code": status, "body": {"a": 1}})

    assert answered(200) == (LineEnd.ANSWERED, 200, {"a": 1})
    assert answered(299)[0] is LineEnd.ANSWERED
    for code in (199, 300, 400):
        assert answered(code)[:2] == (LineEnd.REFUSED, code)
    assert answered("200")[:2] == (LineEnd.REFUSED, 500)
    assert line_of(error={"code": "batch_expired"})[0] is LineEnd.EXPIRED
    assert line_of(error={"code": "batch_cancelled"})[0] is LineEnd.CANCELLED
    said = {"code": "other"}
    assert line_of(error=said) == (LineEnd.REFUSED, 500, {"error": said})
    assert line_of(error="odd") == (LineEnd.REFUSED, 500, {"error": {}})
    assert line_of(response="odd") == (LineEnd.REFUSED, 500, {"error": {}})
    assert _openai_end({"custom_id": 5, "response": {"status_code": 200}}) is None


def test_lines_of_anthropic() -> None:
    def end(result: object) -> Any:  # Any: JSON
        found = _anthropic_end({"custom_id": "m", "result": result})
        return found and (found.end, found.status, json.loads(found.body or b"null"))

    assert end({"type": "succeeded", "message": {"a": 1}}) == (LineEnd.ANSWERED, 200, {"a": 1})
    assert end({"type": "expired"})[0] is LineEnd.EXPIRED
    assert end({"type": "canceled"})[0] is LineEnd.CANCELLED
    told = {"type": "error", "error": {"type": "overloaded_error"}}
    assert end({"type": "errored", "error": told}) == (LineEnd.REFUSED, 529, told)
    plain = {"type": "overloaded_error"}
    assert end({"type": "errored", "error": plain}) == (LineEnd.REFUSED, 500, {"error": plain})
    assert end({"type": "errored", "error": "odd"}) == (LineEnd.REFUSED, 500, {"error": "odd"})
    assert end("odd") is None
    assert _anthropic_end({"custom_id": 5, "result": {"type": "expired"}}) is None
    assert _anthropic_end({"custom_id": 5, "result": 5}) is None


def test_lines_of_gemini() -> None:
    def ends(*responses: dict[str, Any]) -> Any:  # Any: JSON
        found = _gemini_ends(responses, ["m1", "m2"])
        return [(line.custom_id, line.end, line.status) for line in found]

    keyed = {"metadata": {"key": "m9"}, "response": {}}
    assert ends(keyed) == [("m9", LineEnd.ANSWERED, 200)]
    assert ends({"response": {}}) == []
    assert ends({"response": {}}, {"metadata": 5, "error": {"code": 1}}) == [
        ("m1", LineEnd.ANSWERED, 200),
        ("m2", LineEnd.CANCELLED, 500),
    ]
    codes = {0: 500, 2: 500, 3: 400, 8: 429, 14: 500, 99: 500, 100: 100, 503: 503, "x": 500}
    for code, status_code in codes.items():
        refused = {"metadata": {"key": "m"}, "error": {"code": code}}
        assert ends(refused) == [("m", LineEnd.REFUSED, status_code)]
    assert ends({"metadata": {"key": "m"}, "error": "odd"}) == [("m", LineEnd.REFUSED, 500)]


# --- documents -----------------------------------------------------------------------------------


def test_parts_of_documents() -> None:
    assert _object_in(b'{"a": 1}') == {"a": 1}
    assert [_object_in(each) for each in (b"", b"[1]", b"\xff", b"[" * 100_000)] == [None] * 4
    assert list(_objects([{"a": 1}, 2, {"b": 2}])) == [{"a": 1}, {"b": 2}]
    assert list(_objects({"a": {}})) == []
    assert _sum_of({"a": "9" * 19, "b": 3, "c": None, "d": -1, "e": "4"}) == 7
    assert _sum_of({"a": "9" * 18}) == int("9" * 18)
    assert _sum_of({"a": "x" * 5_000, "b": 2}, ("b", "c")) == 2
    assert _sum_of([1]) == 0
    assert _time_in("2026-03-01T12:00:00") == SINCE
    assert _time_in("2026-03-01T13:00:00+01:00") == SINCE
    assert _time_in(None) == datetime.fromtimestamp(0, UTC)
    assert _page_token({"nextPageToken": "a b"}) == "&pageToken=a%20b"
    assert [_page_token({"nextPageToken": each}) for each in ("", 5, None)] == [""] * 3
    assert _after("after")({"data": [{"id": "a"}, {"id": "b/c"}], "has_more": True}) == (
        "&after=b%2Fc"
    )
    assert _after("after")({"data": [{"id": "a"}], "has_more": 1}) == ""

from __future__ import annotations

import gzip
import itertools
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minions.adapters.http.http_response import (
    BadResponseError,
    BrokenBodyError,
    ResponseReader,
)

BODY = b'{"said": "\xc3\xa4h, what?"}\r\n\r\n'
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n"


def with_length(body: bytes, *headers: bytes) -> bytes:
    lines = (b"HTTP/1.1 200 OK", *headers, b"Content-Length: %d" % len(body), b"", body)
    return b"\r\n".join(lines)


def body_of(*pieces: bytes, ends: bool = False) -> bytes:
    """What is read of a response that comes in pieces, each taken at once."""
    reader, found = ResponseReader(), []
    for piece in pieces:
        reader.feed(piece)
        while reader.head is not None and (data := reader.take()):
            found.append(data)
    if ends:
        reader.feed_end()
        while data := reader.take():
            found.append(data)
    assert reader.is_complete
    assert reader.is_at_end
    return b"".join(found)


# --- heads --------------------------------------------------------------------------------------


def test_the_head_has_status_reason_and_headers_by_lower_case_names() -> None:
    reader = ResponseReader()
    reader.feed(b"HTTP/1.1 429 Too Many\r\nRetry-After:  7 \r\nX-A: 1\r\nx-a: 2\r\n\r\n")
    assert reader.head is not None
    assert (reader.head.status, reader.head.reason) == (429, "Too Many")
    assert reader.head.headers == {"retry-after": "7", "x-a": "1, 2"}


def test_a_head_may_lack_reason_and_headers_and_end_its_lines_in_the_old_way() -> None:
    for text in (b"HTTP/1.1 200\r\n\r\n", b"HTTP/1.0 200 \n\n"):
        reader = ResponseReader()
        reader.feed(text)
        assert reader.head is not None
        assert (reader.head.status, reader.head.reason) == (200, "")


def test_a_header_on_two_lines_is_one_and_other_alphabets_break_no_line() -> None:
    reader = ResponseReader()
    reader.feed("HTTP/1.1 200 OK\r\nX-A: one\r\n  two\r\nX-B: \x85\x0b\r\n\r\n".encode("latin-1"))
    assert reader.head is not None
    assert reader.head.headers == {"x-a": "one  two", "x-b": "\x85\x0b"}


def test_what_tells_of_an_answer_to_come_is_passed_over() -> None:
    early = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"
    assert body_of(early + early + with_length(b"hi")) == b"hi"
    assert body_of(early, early, with_length(b"hi")) == b"hi"


@pytest.mark.parametrize(
    ("said", "keeps"),
    [
        (b"HTTP/1.1 200 OK\r\n", True),
        (b"HTTP/1.1 200 OK\r\nConnection: Close\r\n", False),
        (b"HTTP/1.0 200 OK\r\n", False),
        (b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\n", True),
    ],
)
def test_version_and_headers_say_whether_the_connection_is_kept(said: bytes, keeps: bool) -> None:
    reader = ResponseReader()
    reader.feed(said + b"Content-Length: 0\r\n\r\n")
    assert reader.head is not None
    assert reader.head.keeps_connection is keeps


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (b"SSH-2.0", "Expected HTTP"),
        (b"HTTP/1.1 two hundred\r\n\r\n", "status code"),
        (b"HTTP/2 200\r\n\r\n", "Expected dot"),
        (b"HTTP/1.1 200 OK\r\nnonsense\r\n\r\n", "header token"),
        (b"HTTP/1.1 101 Upgrade\r\n\r\n", "another protocol"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", "Content-Length"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", "Content-Length"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", "transfer encoding"),
        (b"HTTP/1.1 200 OK\r\nContent-Encoding: br\r\n\r\n", "content encoding"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 300_000, "larger than"),
        (CHUNKED + b"x5\r\n", "chunk size"),
        (CHUNKED + b"-5\r\n", "chunk size"),
        (CHUNKED + b"2\r\nhello\r\n", "after chunk data"),
    ],
)
def test_what_is_no_response_is_refused_and_not_quoted(said: bytes, why: str) -> None:
    with pytest.raises(BadResponseError, match=why) as refused:
        ResponseReader().feed(said)
    assert "nonsense" not in str(refused.value)


# --- bodies -------------------------------------------------------------------------------------


@given(st.lists(st.integers(min_value=1, max_value=200), max_size=6))
@pytest.mark.parametrize(
    "said",
    [
        with_length(BODY),
        with_length(gzip.compress(BODY, mtime=0), b"Content-Encoding: gzip"),
        with_length(zlib.compress(BODY), b"Content-Encoding: deflate"),
        CHUNKED + b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY),
        CHUNKED
        + b"1;a=b\r\n%s\r\n%X \r\n%s\r\n0\r\nX: y\r\n\r\n" % (BODY[:1], len(BODY) - 1, BODY[1:]),
    ],
)
def test_a_response_may_be_cut_into_pieces_anywhere(said: bytes, places: list[int]) -> None:
    cuts = [0, *sorted(places), len(said)]
    pieces = [said[begin:end] for begin, end in itertools.pairwise(cuts)]
    assert body_of(*pieces) == BODY
    assert body_of(*(bytes([byte]) for byte in said)) == BODY


@pytest.mark.parametrize("said", [CHUNKED + b"1;", CHUNKED + b"0\r\nX: "])
def test_framing_without_a_body_is_bounded(said: bytes) -> None:
    reader = ResponseReader()
    reader.feed(said)
    reader.feed(b"x" * 60_000)
    with pytest.raises(BadResponseError, match="hold no body"):
        reader.feed(b"x" * 10_000)


def test_a_body_without_a_length_ends_with_the_connection() -> None:
    assert body_of(b"HTTP/1.1 200 OK\r\n\r\none ", b"two", ends=True) == b"one two"


@pytest.mark.parametrize("said", [b"204 No Content", b"304 Not Modified"])
def test_some_responses_have_no_body_whatever_they_say(said: bytes) -> None:
    assert body_of(b"HTTP/1.1 %s\r\nContent-Length: 5\r\n\r\n" % said) == b""


def test_the_answer_to_connect_has_none_either() -> None:
    reader = ResponseReader(has_body=False)
    reader.feed(b"HTTP/1.1 200 Go on\r\n\r\n")
    assert reader.is_complete


@pytest.mark.parametrize("said", [with_length(b"hi"), CHUNKED + b"2\r\nhi\r\n0\r\n\r\n"])
def test_bytes_behind_the_body_are_noticed(said: bytes) -> None:
    for pieces in ((said,), (said, b"HTTP/1.1 200 OK"), (said + b"x",)):
        reader = ResponseReader()
        for piece in pieces:
            reader.feed(piece)
        assert reader.has_leftover is (pieces != (said,))


@pytest.mark.parametrize("said", [with_length(b"hello")[:-1], CHUNKED + b"5\r\nhell"])
def test_a_body_that_ends_too_soon_is_not_complete(said: bytes) -> None:
    reader = ResponseReader()
    reader.feed(said)
    assert not reader.feed_end()


def test_a_compressed_body_is_handed_over_in_pieces_and_no_faster_than_it_is_taken() -> None:
    reader = ResponseReader()
    reader.feed(with_length(gzip.compress(bytes(65_536 * 100)), b"Content-Encoding: gzip"))
    pieces = list(iter(reader.take, b""))
    assert [len(piece) for piece in pieces] == [65_536] * 100
    assert reader.is_at_end


@pytest.mark.parametrize("body", [b"not compressed", gzip.compress(b"x" * 99, mtime=0)[:-9]])
def test_a_compressed_body_that_cannot_be_read_is_broken(body: bytes) -> None:
    reader = ResponseReader()
    reader.feed(with_length(body, b"Content-Encoding: gzip"))
    with pytest.raises(BrokenBodyError, match="its compressed body"):
        list(iter(reader.take, b""))


def test_an_empty_body_needs_no_compression() -> None:
    assert body_of(with_length(b"", b"Content-Encoding: gzip")) == b""

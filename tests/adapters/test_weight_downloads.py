"""Weights of an address, and of parts: whole, with the hash that was named, or not there."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from local_engines import LLAMA, gguf
from minions.adapters.models.local.weight_files import (
    PullOptions,
    WeightDownload,
    check_address,
    pull,
)
from minions.adapters.models.local.weights import KnownWeights, Weights, WeightsStore
from minions.data.errors import EnvironmentRefusedError, MinionsError, UsageError
from minions.testing.endpoint import ChatEndpoint, Exchange

DATA = gguf() + bytes(range(256)) * 4_000
SHA = hashlib.sha256(DATA).hexdigest()
ROOM = 2**40


def no_pip(known: KnownWeights, folder: Path) -> Path:
    raise AssertionError("pip is not asked")


@pytest.fixture
def store(tmp_path: Path) -> WeightsStore:
    return WeightsStore(tmp_path / "models", lambda _: None)


def left_in(store: WeightsStore) -> list[str]:
    return sorted(path.name for path in store.folder.iterdir() if path.name != ".lock")


# --- of an address --------------------------------------------------------------------------------

Answer = Callable[[Exchange], Awaitable[None]]


def start_of(exchange: Exchange) -> int:
    said = exchange.request.headers.get("range", "bytes=0-")
    return int(said.removeprefix("bytes=").removesuffix("-"))


def gives(
    data: bytes = DATA,
    *,
    most: int | None = None,
    takes_ranges: bool = True,
    said: int | None = None,
) -> Answer:
    """A server of that file.

    Args:
        most: Bytes of the answer after which the connection is closed.
        said: The length that it states instead of its own.
    """

    async def answer(exchange: Exchange) -> None:
        at = start_of(exchange) if takes_ranges else 0
        body = data[at:]
        headers = {"Content-Length": str(len(body) if said is None else said)}
        if at:
            headers["Content-Range"] = f"bytes {at}-{len(data) - 1}/{len(data)}"
        await exchange.send_head(206 if at else 200, headers)
        await exchange.write(body[:most])
        if most is not None or said is not None:
            exchange.drop()

    return answer


def says(status: int, **headers: str) -> Answer:
    async def answer(exchange: Exchange) -> None:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        await exchange.send(b"no", status=status, headers=named)

    return answer


@asynccontextmanager
async def serving(*answers: Answer) -> AsyncIterator[tuple[ChatEndpoint, str]]:
    async with ChatEndpoint(*answers) as endpoint:
        yield endpoint, f"http://{endpoint.host}/org/Model-0.5B.gguf?sig=a"


async def pulled(
    store: WeightsStore,
    address: str,
    sha256: str | None = SHA,
    *,
    hosts: str = "",
    free: int = ROOM,
) -> Weights:
    options = PullOptions(
        sha256=sha256, redirect_hosts=frozenset(hosts.split()), free_bytes=lambda _: free
    )
    return await asyncio.to_thread(pull, store, address, no_pip, options)


async def refused(
    store: WeightsStore,
    address: str,
    sha256: str | None = SHA,
    *,
    hosts: str = "",
    free: int = ROOM,
) -> MinionsError:
    with pytest.raises(MinionsError) as caught:
        await pulled(store, address, sha256, hosts=hosts, free=free)
    assert store.all() == ()
    return caught.value


async def test_the_file_of_an_address_is_fetched_and_kept(store: WeightsStore) -> None:
    async with serving(gives()) as (endpoint, address):
        found = await pulled(store, address)
        assert found.path.read_bytes() == DATA
        assert (found.name, found.sha256, found.licence) == ("model-0.5b", SHA, "mit")
        assert left_in(store) == ["model-0.5b"]
        assert await pulled(store, address) == found
        (request,) = endpoint.requests
    assert (request.method, request.headers["accept-encoding"]) == ("GET", "identity")


async def test_a_download_that_breaks_off_is_continued_by_itself(store: WeightsStore) -> None:
    async with serving(gives(most=300_000), gives(most=300_000), gives()) as (endpoint, address):
        found = await pulled(store, address)
        starts = [each.headers.get("range") for each in endpoint.requests]
    assert found.path.read_bytes() == DATA
    assert starts == [None, "bytes=300000-", "bytes=600000-"]


async def test_what_came_is_continued_by_the_next_command(store: WeightsStore) -> None:
    async with serving(gives(most=300_000), says(503), gives()) as (endpoint, address):
        error = await refused(store, address)
        assert (error.error_code, "status 503" in str(error)) == ("download-failed", True)
        (begun,) = store.all_begun()
        assert begun.stat().st_size == 300_000
        found = await pulled(store, address)
        assert endpoint.requests[-1].headers["range"] == "bytes=300000-"
    assert (found.path.read_bytes(), store.all_begun()) == (DATA, ())


async def test_a_server_that_brings_nothing_more_is_given_up(store: WeightsStore) -> None:
    async with serving(gives(most=1_000), gives(most=0), gives()) as (endpoint, address):
        error = await refused(store, address)
        assert len(endpoint.requests) == 2
    assert "broke off at 0 MiB" in str(error)
    assert "Repeat the command to continue" in str(error)


async def test_a_server_without_ranges_begins_anew(store: WeightsStore) -> None:
    async with serving(gives(most=300_000), gives(takes_ranges=False)) as (_, address):
        assert (await pulled(store, address)).path.read_bytes() == DATA


async def test_a_pull_that_is_interrupted_leaves_no_half_model(store: WeightsStore) -> None:
    async def stall(exchange: Exchange) -> None:
        await exchange.send_head(200, {"Content-Length": str(len(DATA))})
        await exchange.write(DATA[:200_000])
        await exchange.until_client_leaves()

    async with serving(stall, gives()) as (endpoint, address):
        place = store.begun(SHA)
        store.folder.mkdir()
        download = WeightDownload(
            address=address, check_room=lambda _: None, tell=lambda _: None, idle_s=60
        )
        task = asyncio.create_task(download.fetch(place))
        while not place.exists() or place.stat().st_size == 0:  # noqa: ASYNC110  # a file
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert store.all() == ()
        found = await pulled(store, address)
        assert endpoint.requests[-1].headers["range"].startswith("bytes=")
    assert found.path.read_bytes() == DATA


async def test_what_came_whole_before_it_was_killed_is_not_asked_for_again(
    store: WeightsStore,
) -> None:
    store.folder.mkdir()
    store.begun(SHA).write_bytes(DATA)
    async with serving() as (endpoint, address):
        assert (await pulled(store, address)).path.read_bytes() == DATA
        assert endpoint.requests == []


async def test_another_file_than_the_one_named_is_not_kept(store: WeightsStore) -> None:
    other = gguf({**LLAMA, "general.license": "other"}) + b"x" * 300
    async with serving(gives(other)) as (_, address):
        error = await refused(store, address)
    assert error.error_code == "bad-weights"
    assert "expected " + SHA in str(error)
    assert "sig=a" not in str(error)
    assert left_in(store) == []


async def test_a_file_that_changes_meanwhile_is_not_kept(store: WeightsStore) -> None:
    changed = DATA[:-5] + b"other"
    async with serving(gives(most=300_000), gives(changed), gives()) as (_, address):
        assert (await refused(store, address)).error_code == "bad-weights"
        assert (await pulled(store, address)).sha256 == SHA


async def test_a_file_that_became_shorter_is_begun_anew(store: WeightsStore) -> None:
    async with serving(gives(most=300_000), says(416), gives()) as (endpoint, address):
        assert "of another file" in str(await refused(store, address))
        await pulled(store, address)
        assert "range" not in endpoint.requests[-1].headers


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (gives(DATA, said=len(DATA) + 1_000, takes_ranges=False), "broke off at 1 MiB"),
        (gives(b"<!doctype html><title>Log in</title>"), "gives no GGUF file"),
        (says(200, Content_Length="x"), "gives no answer"),
        (says(200, Content_Length=str(2**37)), "more than 65,536 MiB"),
        (says(200, Content_Encoding="gzip"), "compressed"),
        (says(404), "status 404"),
        (says(401), "login"),
        (says(206, Content_Range="bytes 0-1/9"), "where all from byte 0 on was wanted"),
        (says(302), "redirects more than 5 times"),
        (says(302, Location="file:///etc/passwd"), "redirects to what is no address"),
        (says(302, Location="https://me:pw@127.0.0.1/x.gguf"), "redirects to what is no address"),
        (says(302, Location="http://cdn.example/x.gguf"), "--redirect-host cdn.example"),
        (says(302, Location="//cdn.example/x.gguf"), "--redirect-host cdn.example"),
        (says(302, Location="http://127.0.0.1:9/x.gguf"), "another host, 127.0.0.1"),
    ],
)
async def test_what_a_server_does_wrong_is_told(
    store: WeightsStore, answer: Answer, words: str
) -> None:
    async with serving(*[answer] * 8) as (_, address):
        error = await refused(store, address)
    if words != "redirects to what is no address":
        assert error.error_code in ("download-failed", "bad-weights")
    assert words in str(error), str(error)
    assert "pw" not in str(error)


async def test_a_length_that_is_too_short_makes_another_hash(store: WeightsStore) -> None:
    async with serving(*[gives(DATA, said=700_000, takes_ranges=False)] * 3) as (_, address):
        assert (await refused(store, address)).error_code == "bad-weights"


async def test_a_file_whose_length_is_not_said_is_not_fetched(store: WeightsStore) -> None:
    async def chunked(exchange: Exchange) -> None:
        await exchange.begin_stream()
        await exchange.send_piece(DATA)
        await exchange.end_stream()

    async with serving(chunked) as (_, address):
        assert "no Content-Length" in str(await refused(store, address))


async def test_a_redirect_leads_to_hosts_that_were_named(store: WeightsStore) -> None:
    async with ChatEndpoint(gives(), gives()) as files:
        port = files.host.partition(":")[2]
        there = says(302, Location=f"http://localhost:{port}/blob/1")
        own = says(307, Location="/elsewhere/x.gguf")
        async with serving(there, own, there) as (endpoint, address):
            assert "--redirect-host localhost" in str(await refused(store, address))
            found = await pulled(store, address, hosts="localhost")
            assert [each.path for each in endpoint.requests][-1] == "/elsewhere/x.gguf"
    assert found.path.read_bytes() == DATA


def test_no_redirect_leaves_encryption() -> None:
    download = WeightDownload(
        address="https://a.example/x.gguf",
        hosts=frozenset({"b.example"}),
        check_room=lambda _: None,
        tell=lambda _: None,
    )
    there = {"location": "https://b.example/y"}
    assert download.next_address("https://a.example/x.gguf", there) == "https://b.example/y"
    for target in ("http://b.example/y", "http://a.example/x.gguf"):
        with pytest.raises(EnvironmentRefusedError, match="not encrypted"):
            download.next_address("https://a.example/x.gguf", {"location": target})


async def test_what_does_not_fit_the_disk_is_not_begun(store: WeightsStore) -> None:
    async with serving(gives(), gives()) as (_, address):
        error = await refused(store, address, free=256 * 2**20 + len(DATA) - 1)
        assert (error.error_code, left_in(store)) == ("disk-full", [])
        await pulled(store, address, free=256 * 2**20 + len(DATA))


@pytest.mark.parametrize(
    "address",
    ["ftp://a/x.gguf", "https:///x.gguf", "https://a b/x.gguf", "https://u@a/x", "https://a:x/y"],
)
def test_what_is_no_address_is_refused(store: WeightsStore, address: str) -> None:
    with pytest.raises(UsageError) as caught:
        check_address(address)
    assert caught.value.error_code == "bad-address"


def test_an_address_comes_with_the_hash_of_its_file(store: WeightsStore) -> None:
    with pytest.raises(UsageError, match="add --sha256 HASH") as caught:
        pull(store, "https://example.org/x.gguf", no_pip)
    assert caught.value.error_code == "bad-address"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (PullOptions(sha256="abc"), "is no SHA-256"),
        (PullOptions(name="../x"), "is no name"),
        (PullOptions(name=""), "is no name"),
    ],
)
def test_what_is_said_beside_is_checked(
    store: WeightsStore, options: PullOptions, words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        pull(store, "https://example.org/x.gguf", no_pip, options)


# --- of a file, and of parts ----------------------------------------------------------------------


def test_a_file_may_be_named_and_pinned(store: WeightsStore, tmp_path: Path) -> None:
    path = tmp_path / "two words.gguf"
    path.write_bytes(DATA)
    found = pull(store, str(path), no_pip, PullOptions(name="mine", sha256=SHA))
    assert (found.name, found.sha256) == ("mine", SHA)
    with pytest.raises(UsageError, match="expected " + "0" * 64):
        pull(store, str(path), no_pip, PullOptions(name="other", sha256="0" * 64))
    assert [each.name for each in store.all()] == ["mine"]


def test_a_file_of_several_is_none(store: WeightsStore, tmp_path: Path) -> None:
    path = tmp_path / "m-00001-of-00003.gguf"
    path.write_bytes(DATA)
    with pytest.raises(UsageError, match="llama-gguf-split --merge"):
        pull(store, str(path), no_pip)


@pytest.fixture
def parts(tmp_path: Path) -> Path:
    """As `split` and `sha256sum` make them."""
    folder = tmp_path / "parts"
    folder.mkdir()
    lines = [f"{SHA}  m.gguf"]
    for number, at in enumerate(range(0, len(DATA), 400_000)):
        piece = DATA[at : at + 400_000]
        (folder / f"m.gguf.part-a{'abc'[number]}").write_bytes(piece)
        lines.append(f"{hashlib.sha256(piece).hexdigest()} *m.gguf.part-a{'abc'[number]}")
    (folder / "SHA256SUMS").write_text("\n".join(lines) + "\n")
    return folder


def edit(folder: Path, change: Callable[[list[str]], list[str]]) -> None:
    sums = folder / "SHA256SUMS"
    sums.write_text("\n".join(change(sums.read_text().splitlines())))


def test_parts_make_one_file(store: WeightsStore, parts: Path) -> None:
    found = pull(store, str(parts), no_pip)
    assert (found.name, found.sha256, found.path.read_bytes()) == ("m", SHA, DATA)
    assert left_in(store) == ["m"]


def test_sums_may_name_files_as_find_does(store: WeightsStore, parts: Path) -> None:
    edit(parts, lambda lines: [f"{each[:66]}./{each[66:]}" for each in lines])
    assert pull(store, str(parts), no_pip).sha256 == SHA


def test_a_folder_may_hold_the_whole_file_alone(store: WeightsStore, parts: Path) -> None:
    edit(parts, lambda lines: lines[:1])
    (parts / "m.gguf").write_bytes(DATA)
    assert pull(store, str(parts), no_pip).sha256 == SHA


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda lines: lines[:3], "make a file with the SHA-256"),
        (lambda lines: [lines[0], lines[2], lines[1], lines[3]], "Their order is that of their"),
        (lambda lines: [*lines, lines[1]], "line 5 names 'm.gguf.part-aa' a second time"),
        (lambda lines: [*lines, "0" * 64 + "  m.gguf.part-ad"], "1 are not there: m.gguf.part-ad"),
        (lambda lines: [*lines, "0" * 64 + "  ../x"], "expected a file in this folder"),
        (lambda lines: [*lines, "0" * 64 + "  /etc/passwd"], "expected a file in this folder"),
        (lambda lines: [*lines, "0" * 64 + "  ./../x"], "expected a file in this folder"),
        (lambda lines: [*lines, "0" * 64 + "  ././x"], "expected a file in this folder"),
        (lambda lines: [*lines, "0" * 64 + "  ."], "expected a file in this folder"),
        (lambda lines: lines[1:], "it names 0 files that end in .gguf"),
        (lambda lines: [*lines, "0" * 64 + "  n.gguf"], "it names 2 files"),
        (lambda lines: [*lines, "no sum"], "line 5 is not `HASH  NAME`"),
        (lambda lines: [], "it names 0 files"),
        (lambda lines: [lines[0], "f" * 64 + lines[1][64:], *lines[2:]], "Fetch this part again"),
    ],
)
def test_what_is_wrong_with_parts_is_told(
    store: WeightsStore, parts: Path, change: Callable[[list[str]], list[str]], words: str
) -> None:
    edit(parts, change)
    with pytest.raises(UsageError, match=re.escape(words)) as caught:
        pull(store, str(parts), no_pip)
    assert caught.value.error_code == "bad-weights"
    assert (store.all(), left_in(store)) == ((), [])


def test_a_part_that_is_a_link_is_refused(store: WeightsStore, parts: Path, tmp_path: Path) -> None:
    part = parts / "m.gguf.part-aa"
    part.rename(tmp_path / "elsewhere")
    part.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match="is a link"):
        pull(store, str(parts), no_pip)


def test_parts_that_do_not_fit_the_disk_are_not_joined(store: WeightsStore, parts: Path) -> None:
    with pytest.raises(EnvironmentRefusedError) as caught:
        pull(store, str(parts), no_pip, PullOptions(free_bytes=lambda _: 1_000))
    assert (caught.value.error_code, left_in(store)) == ("disk-full", [])


def test_a_folder_without_sums_says_how_to_make_them(store: WeightsStore, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="split -b 1G"):
        pull(store, str(tmp_path), no_pip)


def test_parts_of_something_else_are_no_weights(store: WeightsStore, tmp_path: Path) -> None:
    folder = tmp_path / "other"
    folder.mkdir()
    (folder / "x.gguf").write_bytes(b"no model")
    digest = hashlib.sha256(b"no model").hexdigest()
    (folder / "SHA256SUMS").write_text(f"{digest}  x.gguf\n")
    with pytest.raises(UsageError, match="does not begin with the letters GGUF"):
        pull(store, str(folder), no_pip)
    assert left_in(store) == []

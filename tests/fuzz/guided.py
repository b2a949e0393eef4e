"""One target with inputs that `atheris` finds by the coverage of `minions`, in its own process.

libFuzzer never returns: what was found is written to a file before the process ends.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final, Protocol, cast

from fuzz.session import Session, SessionOptions

__all__ = ["is_guided_possible"]

_NAME: Final = "atheris"
_SLOWER: Final = 4.0
"""How much slower code is whose coverage is measured."""


class _Atheris(Protocol):
    """What is used of the module, which is not installed everywhere."""

    def instrument_imports(
        self, *, include: Sequence[str], enable_loader_override: bool
    ) -> AbstractContextManager[None]: ...

    def Mutate(self, data: bytes, most: int) -> bytes: ...  # noqa: N802  # its name

    def Setup(  # noqa: N802  # its name
        self,
        arguments: Sequence[str],
        run: Callable[[bytes], None],
        *,
        custom_mutator: Callable[[bytes, int, int], bytes],
    ) -> object: ...

    def Fuzz(self) -> None: ...  # noqa: N802  # its name


def is_guided_possible() -> bool:
    """Whether `atheris` is installed."""
    return importlib.util.find_spec(_NAME) is not None


def main(arguments: Sequence[str]) -> None:
    """Run the target of `arguments`: options as JSON."""
    options = SessionOptions.read(arguments[0])
    atheris = cast("_Atheris", importlib.import_module(_NAME))
    with atheris.instrument_imports(include=["minions"], enable_loader_override=False):
        from fuzz.mutator import Mutator
        from fuzz.targets import all_targets

        target = all_targets(options.folder)[options.target]
    session = Session(target, cpu_s=options.cpu_s * _SLOWER, findings=options.findings)
    seeds = [each[: target.most_bytes] for each in target.seeds()] or [b""]
    mutator = Mutator(random.Random(f"{target.name}-{options.seed}"), seeds, target)
    end = time.monotonic() + options.seconds

    def run(data: bytes) -> None:
        session.take(data)
        if time.monotonic() > end:
            options.report.write_text(json.dumps(session.report()), "utf-8")
            sys.stdout.flush()
            os._exit(0)

    def mutate(data: bytes, most: int, seed: int) -> bytes:
        mutator.chance.seed(seed)
        if mutator.chance.random() < 0.5:
            return atheris.Mutate(data, most)
        return mutator.changed(data)[:most]

    corpus = options.corpus or Path(tempfile.mkdtemp(prefix="corpus-", dir=options.folder))
    corpus.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(seeds):
        (corpus / f"seed-{number}").write_bytes(seed)
    flags = [f"-seed={options.seed + 1}", f"-max_len={target.most_bytes}", "-timeout=600"]
    quiet = ["-rss_limit_mb=0", "-print_final_stats=0", "-verbosity=0", "-detect_leaks=0"]
    atheris.Setup(["fuzz", *flags, *quiet, str(corpus)], run, custom_mutator=mutate)
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1:])

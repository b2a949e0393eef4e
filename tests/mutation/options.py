"""What the command takes, and the mutants that it means."""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from pathlib import Path

from attrs import frozen

from mutation.guards import EQUIVALENT, GUARDS
from mutation.mutants import Mutant, mutants_of

__all__ = ["Options", "chosen_mutants", "shown"]


@frozen(kw_only=True)
class Options:
    """As they were given."""

    modules: Sequence[str]
    """As `engine/services/budget.py`."""
    sample: int | None
    """So many of the mutants, by chance; None: all."""
    seed: int
    lists: bool
    """Whether the mutants are only shown."""

    @classmethod
    def read(cls, arguments: Sequence[str]) -> Options:
        """Of a command line.

        Raises:
            SystemExit: One of them is wrong, or a module is not in the table.
        """
        parser = argparse.ArgumentParser(prog="mutation")
        parser.add_argument(
            "--module", action="append", help="as engine/services/budget.py; repeatable"
        )
        parser.add_argument("--sample", type=int, help="so many mutants, by chance")
        parser.add_argument("--seed", type=int, default=0, help="of the sample and of the tests")
        parser.add_argument("--list", action="store_true", help="show the mutants only")
        given = parser.parse_args(arguments)
        modules: list[str] = given.module or list(GUARDS)
        if unknown := [path for path in modules if path not in GUARDS]:
            parser.error(
                f"{', '.join(unknown)} is not in the table GUARDS of tests/mutation/guards.py, "
                f"which says what tests concern a module. Known are: {', '.join(GUARDS)}."
            )
        return cls(modules=modules, sample=given.sample, seed=given.seed, lists=given.list)


def chosen_mutants(root: Path, options: Options) -> list[Mutant]:
    """Those of the modules that some test could notice."""
    found = [
        mutant
        for path in options.modules
        for mutant in mutants_of(path, (root / "minions" / path).read_text("utf-8"))
        if GUARDS[path].holds(mutant) and not any(each.is_about(mutant) for each in EQUIVALENT)
    ]
    if options.sample is None or options.sample >= len(found):
        return found
    places = sorted(random.Random(options.seed).sample(range(len(found)), options.sample))
    return [found[place] for place in places]


def shown(mutant: Mutant) -> str:
    """For a person."""
    place = f" in {mutant.place}" if mutant.place else ""
    return (
        f"minions/{mutant.path}:{mutant.first_line}{place}\n"
        f"    - {mutant.before}\n    + {mutant.after}"
    )

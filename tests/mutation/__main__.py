"""Changes the conditions of the guards one by one, and shows which change no test notices.

make mutants                                             all of them: some forty minutes
make mutants MUTANTS="--module engine/services/budget.py"         one module; repeatable
make mutants MUTANTS="--sample 100 --seed 7"             a sample, the same for the same seed
make mutants MUTANTS="--list"                            the changes alone; nothing is run

All is done in a copy of the tree, in the folder for temporary files; nothing is written here.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from mutation.options import Options, chosen_mutants, shown

_ROOT: Final = Path(__file__).resolve().parents[2]
_NOT_COPIED: Final = shutil.ignore_patterns(
    ".venv", ".git", "out", "build", "dist", ".*_cache", ".hypothesis"
)


def main(arguments: Sequence[str]) -> int:
    """Copy the tree and judge the mutants there."""
    options = Options.read(arguments)
    if options.lists:
        print("\n".join(map(shown, chosen_mutants(_ROOT, options))))
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the copy is removed
    with tempfile.TemporaryDirectory(prefix="minions-mutants-") as folder:
        copy = Path(folder).resolve() / "tree"
        shutil.copytree(_ROOT, copy, ignore=_NOT_COPIED)
        return _judge(copy, arguments)


def _judge(copy: Path, arguments: Sequence[str]) -> int:
    paths = os.pathsep.join((str(copy), str(copy / "tests")))
    surroundings = {
        **os.environ,
        "PYTHONPATH": paths,
        "PYTHONDONTWRITEBYTECODE": "1",
        # Each child makes a folder for its tests and removes none: they go with the copy.
        "PYTEST_DEBUG_TEMPROOT": str(copy.parent),
    }
    command = [sys.executable, "-m", "mutation.session", *arguments]
    process = subprocess.Popen(command, cwd=copy, env=surroundings, start_new_session=True)
    try:
        return process.wait()
    finally:
        # It ends its own children, which are not of its group.
        process.terminate()
        process.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""What mypy is told holds for pyright as well: the application of `tests/typing`, and the clients
that `minions stubs` writes of the shipped recipes.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from command_line import Cli

ROOT: Final = Path(__file__).parents[2]
RIGHT: Final = """\
from read_reviews_client import ReadReviews

done = ReadReviews().run(reviews=["It broke."])
assert done.output is not None
happy: int = done.output["happy"]
"""
WRONG: Final = """\
ReadReviews().run(reviews=[1])
ReadReviews().run(revews=["It broke."])
mood: str = done.output["happy"]
print(done.output["hapy"])
"""


class _Position(Struct):
    line: int


class _Range(Struct):
    start: _Position


class _Diagnostic(Struct):
    file: str
    message: str
    range: _Range


class _Report(Struct, rename="camel"):
    general_diagnostics: list[_Diagnostic]


def _checked(folder: Path, files: Sequence[str]) -> list[_Diagnostic]:
    """What a strict check of these files tells."""
    settings = {
        "include": list(files),
        "extraPaths": [str(ROOT)],
        "pythonVersion": "3.11",
        "typeCheckingMode": "strict",
    }
    (folder / "pyrightconfig.json").write_text(json.dumps(settings), "utf-8")
    arguments = ("-p", str(folder), "--pythonpath", sys.executable, "--outputjson")
    done = subprocess.run(
        [sys.executable, "-m", "basedpyright", *arguments],
        cwd=folder,
        capture_output=True,
        check=False,
    )
    return msgspec.json.decode(done.stdout, type=_Report).general_diagnostics


def test_an_application_and_the_clients_of_recipes_are_clean_and_a_wrong_use_is_an_error(
    cli: Cli, here: Path
) -> None:
    """A-139."""
    shutil.copy(ROOT / "tests" / "typing" / "api.py", here)
    names = [path.stem for path in sorted((ROOT / "recipes").glob("*.yaml"))]
    files = [f"{name}_client.py" for name in names]
    service = str(ROOT / "recipes" / "activity_service.py")
    made = [
        cli("stubs", str(ROOT / "recipes" / f"{name}.yaml"), "-o", f, "--extensions", service).code
        for name, f in zip(names, files, strict=True)
    ]
    assert set(made) == {0}
    (here / "use.py").write_text(RIGHT + WRONG, "utf-8")
    told = _checked(here, ["api.py", "use.py", *files])
    assert [each for each in told if not each.file.endswith("use.py")] == []
    first, last = RIGHT.count("\n"), (RIGHT + WRONG).count("\n")
    assert sorted({each.range.start.line for each in told}) == list(range(first, last))

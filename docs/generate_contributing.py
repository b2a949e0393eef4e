"""Fills the generated parts of `CONTRIBUTING.md`: the table of rooms and the order of reading.

`python docs/generate_contributing.py` rewrites the page. What a folder holds is the first sentence
of its package's docstring; what it may import is the contract that import-linter checks; the order
of reading is the stack of a run at the moment when it asks its model.
"""

from __future__ import annotations

import ast
import inspect
import re
import tempfile
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeAlias

from returns.result import Result

import minions
from minions.guide import DeltaSink

ROOT: Final = Path(__file__).resolve().parents[1]
PAGE: Final = ROOT / "CONTRIBUTING.md"
_MARK: Final = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
_RECIPE: Final = "id: one\nsteps: [{id: a, goal: Go.}]\n"

_Floors: TypeAlias = Sequence[Sequence[str]]
"""Modules from top to bottom; those of one floor do not import each other."""


def page(text: str) -> str:
    """The page with every generated part made again."""
    return _MARK.sub(lambda found: f"{found[1]}\n{_PARTS[found[2]]()}\n{found[3]}", text)


# --- rooms -------------------------------------------------------------------------------------


def rooms() -> str:
    """A row for each package down to the second level, from top to bottom."""
    rows = ["| folder | holds | may import |", "| --- | --- | --- |"]
    for layer, below in _packages("minions"):
        rows.append(f"| **`{_path(layer)}`** | {_first_sentence(layer)} | {below} |")
        for room, lower in _packages(layer):
            rows.append(f"| `{_path(room)}` | {_first_sentence(room)} | {lower} |")
    return "\n".join(rows) + "\n"


def _path(module: str) -> str:
    return module.replace(".", "/")


def _packages(parent: str) -> Sequence[tuple[str, str]]:
    """The packages within one, and what each may import of those beside it."""
    folder = ROOT.joinpath(*parent.split("."))
    names = {f"{parent}.{each.parent.name}" for each in folder.glob("*/__init__.py")}
    for floors in _contracts():
        if names & {name for floor in floors for name in floor}:
            break
    else:
        floors = ()
    ordered: list[tuple[str, str]] = []
    for at, floor in enumerate(floors):
        lower = [[name for name in each if name in names] for each in floors[at + 1 :]]
        first, *rest = [each for each in lower if each] or [[]]
        told = ", ".join(f"`{name.rpartition('.')[2]}`" for name in first) or "–"
        told += " and below" if rest else ""
        ordered += [(name, told) for name in floor if name in names]
    others = sorted(names - {name for name, _ in ordered})
    return [*ordered, *((name, "") for name in others)]


def _contracts() -> Sequence[_Floors]:
    """The layers of import-linter; a line of it is a floor."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    return [
        [[name.strip(" ()") for name in re.split(r"[|:]", line)] for line in contract["layers"]]
        for contract in project["tool"]["importlinter"]["contracts"]
        if contract["type"] == "layers"
    ]


def _first_sentence(module: str) -> str:
    place = ROOT.joinpath(*module.split("."))
    file = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    text = " ".join((ast.get_docstring(ast.parse(file.read_bytes())) or "").split())
    return re.split(r"(?<=[.]) (?=[A-Z`])", text)[0].replace("|", "\\|")


# --- the order of reading ----------------------------------------------------------------------


class _StackModel(minions.ChatModel):
    """Answers, and keeps through which modules it was asked."""

    def __init__(self) -> None:
        self.modules: Sequence[str] = ()

    async def complete(
        self, prompt: minions.Prompt, on_delta: DeltaSink | None = None
    ) -> Result[minions.ModelCallResponse, minions.ModelFailure]:
        """Called last by the engine: all modules that took part are on the stack."""
        own_frame, names = inspect.currentframe(), []
        frame = own_frame.f_back if own_frame else None
        while frame is not None and frame.f_globals["__name__"] != __name__:
            names.append(str(frame.f_globals["__name__"]))
            frame = frame.f_back
        own = [name for name in reversed(names) if name.startswith("minions.")]
        self.modules = list(dict.fromkeys(own))
        return await minions.ScriptedModel(["Done."]).complete(prompt)


def reading_order() -> str:
    """The modules from `minions.run` to the model, in the order in which they call each other."""
    model = _StackModel()
    with tempfile.TemporaryDirectory() as folder:
        recipe = Path(folder, "one.yaml")
        recipe.write_text(_RECIPE, "utf-8")
        minions.run(recipe, model=model).unwrap()
    return "".join(
        f"{number}. `{_path(name)}.py`: {_first_sentence(name)}\n"
        for number, name in enumerate(model.modules, start=1)
    )


_PARTS: Final[Mapping[str, Callable[[], str]]] = {"rooms": rooms, "reading": reading_order}


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text("utf-8")), "utf-8")

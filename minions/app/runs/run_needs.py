"""What a queued run needs of its worker, and what a worker lacks of it.

Needs are texts, `KIND:NAME` or `KIND:NAME@VERSION`, stored with the place of the run in its queue.
What travels with a run, such as its recipe, is none. What can be known only by trying, such as the
key of a model's server, is not here: a run that is refused for it is left to others as well.
"""

from __future__ import annotations

import hashlib
import inspect
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Final

from attrs import frozen

from minions.contracts.tools import Tool
from minions.data.json_values import JsonValue, dumps
from minions.engine.compile.extensions import Extensions
from minions.engine.history.approval_classes import digest_of, tool_digest
from minions.recipe.model import AgentRecipe, StepSpec

_DIGITS: Final = 12


def needs_of(
    recipe: AgentRecipe, cwd: str | None, extensions: Extensions, *, any_version: bool = False
) -> tuple[str, ...]:
    """What a worker needs for the run of a recipe; sorted.

    Args:
        cwd: The folder where the run began; None: it is not known.
        extensions: What its recipe may name, where it is queued.
        any_version: Whether tools of any version will do.
    """
    needs = {*_of_recipe(recipe, extensions), *_of_place(cwd)}
    if any_version:
        needs = {each.partition("@")[0] if each.startswith("tool:") else each for each in needs}
    return tuple(sorted(needs))


def needs_key(needs: Sequence[str]) -> str:
    """The key of what a run needs, equal for all that need the same; empty: it is not known."""
    return _digest(list(needs)) if needs else ""


def package_version() -> str:
    """The version of this program."""
    # The root of the package is loaded whenever this is; it is above the rooms, which do not
    # import it.
    return str(sys.modules[__name__.partition(".")[0]].__version__)


@cache
def build_version() -> str:
    """The same with twelve digits that are equal for equal code, wherever it is installed: two
    builds of one version are two, such as `0.2.0+3f0c9d1e8a72`. The first call reads all files of
    the package.
    """
    root = Path(str(sys.modules[__name__.partition(".")[0]].__file__)).parent
    return f"{package_version()}+{digest_of_files(root)}"


def digest_of_files(root: Path) -> str:
    """Twelve digits of the names and the contents of all files below a folder, but for compiled
    ones.
    """
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*")):
        if path.suffix != ".pyc" and path.is_file():
            digest.update(f"{path.relative_to(root).as_posix()}\0".encode())
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:_DIGITS]


def _of_place(cwd: str | None) -> Iterator[str]:
    yield f"package:{package_version()}"
    if cwd is not None:
        yield f"folder:{cwd}"


def _of_recipe(recipe: AgentRecipe, extensions: Extensions) -> Iterator[str]:
    if recipe.document is None:
        yield f"recipe:{recipe.id}@{digest_of(recipe)}"
    used = {each.name for each in recipe.tools}
    models = [recipe.model]
    for step in recipe.steps:
        if not isinstance(step, StepSpec):
            continue
        used |= {*step.called_tools, *step.offered_tools}
        if step.own_model is not None:
            models.append(step.own_model)
        if step.needs_sandbox:
            yield f"sandbox:{getattr(step, 'sandbox', '')}"
        if (name := step.registered_class) in extensions.steps:
            yield f"step:{name}"  # its version is checked where the run is resumed
        if step.inner is not None:
            yield from _of_recipe(step.inner, extensions)
    for name in used:
        toolset = name if name in extensions.toolsets else name.partition("__")[0]
        if (tool := extensions.tools.find(name)) is not None:
            yield f"tool:{name}@{_tool_version(tool)}".rstrip("@")
        elif toolset in extensions.toolsets:
            yield f"toolset:{toolset}"
    yield from (f"model:{each.name}" for each in models if each.name in extensions.models)


def _tool_version(tool: Tool) -> str:
    """Fingerprint of what a tool declares, and of the text of its function where there is one.

    Empty: it comes with the package, whose version counts.
    """
    function = getattr(tool, "__wrapped__", None)
    code = tool if function is None else function
    if getattr(code, "__module__", None) is None or _is_own(code.__module__):
        return ""
    return _digest([tool_digest(tool.spec), _source_of(function)])


def _is_own(module: str) -> bool:
    return module.partition(".")[0] == "minions"


def _source_of(code: object) -> str:
    try:
        return inspect.getsource(code)  # type: ignore[arg-type]  # anything else raises TypeError
    except (OSError, TypeError):
        return ""


def _digest(value: JsonValue) -> str:
    return hashlib.sha256(dumps(value).encode("utf-8", "surrogatepass")).hexdigest()[:_DIGITS]


def missing_words(parts: Sequence[str], nobody: str = "no worker") -> str:
    """Why nobody can execute a run, as one clause: `no worker has the tool 'price'`.

    Args:
        parts: What workers lack, as `lacking` says it, and sentences for which one refused the run.
    """
    needs = [each for each in parts if not each.endswith(".")]
    refusals = " ".join(each for each in parts if each.endswith("."))
    if not needs:
        return refusals
    words = f"{nobody} has {'all of: ' if len(needs) > 1 else ''}{'; '.join(needs)}"
    return f"{words}, or it refuses: {refusals}" if refusals else words


@frozen(kw_only=True)
class OfferedParts:
    """What a worker says of itself to others: what it has of what queued runs need."""

    versions: Mapping[str, str]
    """Of its parts by kind and name, as in `tool:greet`; empty: that part has none."""
    package: str
    folder: str | None
    """The folder whose runs it executes; None: those of all folders."""
    takes_other_versions: bool = False
    """Whether it takes runs that were queued with other versions of its parts."""

    def lacking(self, needs: Sequence[str]) -> tuple[str, ...]:
        """What it lacks of these needs, in words; empty: it has all of them."""
        found = (self._lacking(*each.partition(":")[::2]) for each in needs)
        return tuple(each for each in found if each is not None)

    def _lacking(self, kind: str, said: str) -> str | None:
        if kind == "package":
            is_older = _numbers(self.package) < _numbers(said) and not self.takes_other_versions
            return f"version {said} of the package or a newer one" if is_older else None
        if kind == "folder":
            is_here = self.folder in (None, said)
            return None if is_here else f"the folder {said}, or the option --any-folder"
        name, _, version = said.partition("@")
        here = self.version(kind, name)
        if here is None:
            return f"the {kind} '{name}'"
        if version and here != version and not self.takes_other_versions:
            return f"version {version} of the {kind} '{name}', or the option --any-version"
        return None

    def version(self, kind: str, name: str) -> str | None:
        """The version of a part, empty where it has none; None: the worker does not have it."""
        if kind not in _KINDS:  # of a later version, which the version of the package refuses
            return ""
        return self.versions.get(f"{kind}:{name}")

    def to_json(self) -> dict[str, JsonValue]:
        """The form in which it is stored."""
        return {
            "versions": dict(self.versions),
            "package": self.package,
            "folder": self.folder,
            "takes_other_versions": self.takes_other_versions,
        }

    @classmethod
    def of_json(cls, stored: JsonValue) -> OfferedParts | None:
        """What was stored; None: nothing was, or it is of another form."""
        versions = stored.get("versions") if isinstance(stored, dict) else None
        if not isinstance(stored, dict) or not isinstance(versions, dict):
            return None
        folder = stored.get("folder")
        return OfferedParts(
            versions={name: str(version) for name, version in versions.items()},
            package=str(stored.get("package", "")),
            folder=None if folder is None else str(folder),
            takes_other_versions=stored.get("takes_other_versions") is True,
        )


_KINDS: Final = frozenset({"tool", "step", "recipe", "sandbox", "toolset", "model"})


@frozen(kw_only=True)
class WorkerParts(OfferedParts):
    """What this process has as a worker. Versions are taken at its start: what files say later is
    not loaded.
    """

    extensions: Extensions
    home: str
    """The folder in which it works."""

    @classmethod
    def of(
        cls, extensions: Extensions, folder: str | None, *, takes_other_versions: bool = False
    ) -> WorkerParts:
        """The parts of this process, in its present folder."""
        versions = {f"tool:{each.spec.name}": _tool_version(each) for each in extensions.tools}
        versions |= {
            f"recipe:{name}": digest_of(recipe) for name, recipe in extensions.recipes.items()
        }
        for kind, names in (
            ("step", extensions.steps),
            ("toolset", extensions.toolsets),
            ("model", extensions.models),
        ):
            versions |= {f"{kind}:{name}": "" for name in names}
        return cls(
            extensions=extensions,
            versions=versions,
            package=package_version(),
            folder=folder,
            home=str(Path.cwd()),
            takes_other_versions=takes_other_versions,
        )

    @property
    def problem(self) -> str | None:
        """Why it can execute nothing at all; None: nothing is known."""
        try:
            is_there = os.path.samestat(os.stat(self.home), os.stat("."))  # noqa: PTH116  # no path
        except OSError:
            is_there = False
        return None if is_there else f"its folder {self.home}, which was removed or replaced"

    def lacking(self, needs: Sequence[str]) -> tuple[str, ...]:
        """What it lacks of these needs, in words; empty: it has all of them."""
        found = super().lacking(needs)
        return found if (problem := self.problem) is None else (problem, *found)

    def version(self, kind: str, name: str) -> str | None:
        """The version of a part; a sandbox is tried each time."""
        if kind != "sandbox":
            return super().version(kind, name)
        found = self.extensions.find_sandbox(name)
        return "" if found is not None and all(p.ok for p in found.probe()) else None

    @property
    def offered(self) -> OfferedParts:
        """What others may know of it, with the sandboxes that hold now."""
        held = {
            f"sandbox:{name}": ""
            for name in self.extensions.sandboxes
            if self.version("sandbox", name) is not None
        }
        return OfferedParts(
            versions={**self.versions, **held},
            package=self.package,
            folder=self.folder,
            takes_other_versions=self.takes_other_versions,
        )


def _numbers(version: str) -> list[int]:
    return [int(each) for each in re.findall(r"\d+", version.partition("+")[0])[:3]]

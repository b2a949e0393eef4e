"""Loads the operator's code: an `Extensions` object, or what a file defines at top level."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType

from minions.app.wiring.built_in_extensions import extended
from minions.contracts.calls import ChatModel
from minions.contracts.completion import CompletionLink
from minions.contracts.steps import Step
from minions.contracts.tools import Tool, Toolbox
from minions.data.errors import MinionsError, UsageError, words_of
from minions.engine.compile.extensions import Extensions
from minions.engine.compile.function_steps import FunctionStep
from minions.recipe.model import AgentRecipe


def load_extensions(names: Iterable[str], folder: Path | None, base: Extensions) -> Extensions:
    """The extensions in these files and modules, added to `base`.

    Args:
        names: `PATH.py` (relative to `folder`) or a module's dotted name.
        folder: Where modules are looked for, too; None: the names hold in every folder, so that
            nothing of the current one is loaded.
        base: The built-in extensions; a loaded tool of the same name replaces one of these.
    Raises:
        UsageError: A file is missing, raised an error while it was imported, or defines nothing.
    """
    own = Extensions()
    for name in names:
        module = _import(name, folder)
        found = _find(name, module)
        if not found:
            raise UsageError(
                f"{name}: nothing to use at its top level. Define `extensions = Extensions(…)`, "
                "@tool and @step functions, Step or CompletionLink subclasses.",
                code="empty-extension",
            )
        for extensions in found:
            own = _merge_extensions(own, extensions)
    return extended(base, own)


def _find(name: str, module: ModuleType) -> list[Extensions]:
    try:
        return list(_extensions_in(module))
    except MinionsError:
        raise
    except Exception as error:  # a tool or link of the operator may raise anything
        raise UsageError(
            f"The extension '{name}' defines something that cannot be used: {words_of(error)}.",
            code="broken-extension",
        ) from error


def _import(name: str, folder: Path | None) -> ModuleType:
    try:
        if name.endswith(".py"):
            return _import_file(((folder or Path("/")) / name).resolve())
        if folder is None:
            with _without_current_folder():
                return importlib.import_module(name)
        if str(folder) not in sys.path:
            sys.path.append(str(folder))  # last, so that nothing in it hides another module
        return importlib.import_module(name)
    except (UsageError, KeyboardInterrupt):
        raise
    except BaseException as error:  # an operator's file may raise anything while it is imported
        if isinstance(error, ModuleNotFoundError) and error.name in _parents(name):
            raise UsageError(
                f"There is no module '{name}'; name a file (PATH.py) or an importable module.",
                code="unknown-extension",
            ) from error
        raise UsageError(
            f"The extension '{name}' failed while it was loaded: {words_of(error)}.",
            code="broken-extension",
        ) from error


@contextlib.contextmanager
def _without_current_folder() -> Iterator[None]:
    """Modules are not looked for where a relative entry of `sys.path` or PYTHONPATH leads."""
    said = os.environ.get("PYTHONPATH", "")
    named = said.split(os.pathsep) if said else []
    refused = {os.path.abspath(each) for each in named if not os.path.isabs(each)}  # noqa: PTH100, PTH117
    taken = [
        (at, entry)
        for at, entry in enumerate(sys.path)
        if entry in refused or not os.path.isabs(entry)  # noqa: PTH117
    ]
    sys.path[:] = [entry for entry in sys.path if entry not in {each for _, each in taken}]
    importlib.invalidate_caches()
    try:
        yield
    finally:
        for at, entry in taken:
            sys.path.insert(at, entry)


def _parents(module: str) -> tuple[str, ...]:
    """The module `a.b.c` and its parents; empty for a file."""
    if module.endswith(".py"):
        return ()
    parts = module.split(".")
    return tuple(".".join(parts[: count + 1]) for count in range(len(parts)))


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise UsageError(f"The extension {path} does not exist.", code="unknown-extension")
    name = f"minions_extension_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"The extension {path} is not a Python file.", code="unknown-extension")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # classes and type hints of the file are looked up here
    spec.loader.exec_module(module)
    return module


def _extensions_in(module: ModuleType) -> Iterator[Extensions]:
    values = list(vars(module).values())
    explicit = [value for value in values if isinstance(value, Extensions)]
    if explicit:
        yield from explicit
        return
    tools = [value for value in values if isinstance(value, Tool)]
    links = {
        value.__name__: _make_link(value)
        for value in values
        if isinstance(value, type)
        and issubclass(value, CompletionLink)
        and value.__module__ == module.__name__
    }
    steps = {
        value.__name__: value
        for value in values
        if isinstance(value, type)
        and issubclass(value, Step)
        and value.__module__ == module.__name__
        and not inspect.isabstract(value)
    }
    steps |= {
        value.id: value.as_class()
        for value in values
        if isinstance(value, FunctionStep) and value.__wrapped__.__module__ == module.__name__
    }
    models = {value.name: value for value in values if isinstance(value, ChatModel)}
    recipes = {value.id: value for value in values if isinstance(value, AgentRecipe)}
    if tools or links or models or steps or recipes:
        yield Extensions(
            tools=Toolbox(tuple(tools)), links=links, models=models, steps=steps, recipes=recipes
        )


def _make_link(link: type[CompletionLink]) -> CompletionLink:
    try:
        return link()
    except TypeError as error:
        raise UsageError(
            f"The completion link {link.__name__} needs arguments ({error}). Put a finished one "
            f"into `extensions = Extensions(links={{'{link.__name__}': {link.__name__}(…)}})`.",
            code="broken-extension",
        ) from error


def _merge_extensions(own: Extensions, more: Extensions) -> Extensions:
    return Extensions(
        toolsets={**own.toolsets, **more.toolsets},
        tools=own.tools.plus(more.tools),
        links={**own.links, **more.links},
        models={**own.models, **more.models},
        recipes={**own.recipes, **more.recipes},
        steps={**own.steps, **more.steps},
        sandboxes={**own.sandboxes, **more.sandboxes},
        redactors={**own.redactors, **more.redactors},
    )

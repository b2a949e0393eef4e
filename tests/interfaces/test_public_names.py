"""The public modules show exactly their names, each found lazily; all of them stand in the docs."""

from __future__ import annotations

import importlib
import subprocess
import sys
import typing
from types import ModuleType
from typing import Final

import pytest

import minions
from minions import events

MODULES: Final = (
    "minions",
    *(
        f"minions.{name}"
        for name in (
            "batches",
            "caching",
            "decisions",
            "events",
            "guide",
            "mcp",
            "prices",
            "recipes",
            "sandboxes",
            "server",
            "services",
            "sessions",
            "testing",
        )
    ),
)
NAMES: Final = [
    (module, name) for module in MODULES for name in importlib.import_module(module).__all__
]
HEAVY: Final = (
    *("aiohttp", "attrs", "cattrs", "genai_prices", "instructor", "jsonschema", "litestar", "mcp"),
    *("minions.adapters", "minions.app", "minions.contracts", "minions.data", "minions.engine"),
    "minions.interfaces",
    *("openai", "psycopg", "pydantic", "pytest", "rich", "yaml"),
)


@pytest.fixture(params=MODULES)
def module(request: pytest.FixtureRequest) -> ModuleType:
    return importlib.import_module(request.param)


def test_all_is_sorted_and_is_what_is_visible(module: ModuleType) -> None:
    assert module.__all__ == sorted(module.__all__)
    assert dir(module) == module.__all__


def test_the_top_level_has_at_most_fifty_names() -> None:
    """A-131."""
    assert len(minions.__all__) <= 50


def test_every_public_name_is_found_where_type_checkers_see_it(module: ModuleType) -> None:
    homes = {name: importlib.import_module(module._HOME_OF[name]) for name in module.__all__}
    elsewhere = [
        name for name, home in homes.items() if getattr(home, name) is not getattr(module, name)
    ]
    assert elsewhere == []


def test_a_name_has_one_public_home() -> None:
    names = [name for _, name in NAMES]
    twice = {name for name in names if names.count(name) > 1}
    assert twice == {"ScriptedModel"}, "a test double, and the model of every first example"


def test_every_event_is_public() -> None:
    assert {kind.__name__ for kind in typing.get_args(minions.RunEvent)} <= set(events.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Minion'"):
        minions.Minion  # type: ignore[attr-defined]  # noqa: B018  # what is to be refused


def _loaded(code: str) -> set[str]:
    """Modules, and the packages that hold them, that are there after `code`."""
    code = f"import sys; {code}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_importing_a_public_module_loads_nothing_heavy() -> None:
    loaded = _loaded(f"import {', '.join(MODULES)}")
    assert loaded & set(HEAVY) == set()


@pytest.mark.parametrize(
    ("code", "spared"),
    [
        ("import minions; minions.Message", "minions.engine"),
        ("from minions.events import RunStarted", "minions.engine"),
        ("from minions.decisions import Verdict", "minions.engine"),
        ("from minions.testing import FakeClock", "minions.engine"),
        ("from minions.testing import ChatEndpoint", "aiohttp"),
        ("from minions.services import SystemClock", "minions.interfaces"),
        ("from minions import Minions", "litestar"),
        ("from minions.recipes import RunPart", "minions.interfaces"),
        ("from minions.server import ServerOptions", "litestar"),
        ("from minions.mcp import McpSettings", "minions.engine"),
        ("from minions.mcp import lock_servers", "mcp"),
    ],
)
def test_a_public_name_loads_only_what_it_needs(code: str, spared: str) -> None:
    assert spared not in _loaded(code)

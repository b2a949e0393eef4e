"""Every test runs away from the user's configuration, keys and journal."""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Final, cast

import pytest
from hypothesis import HealthCheck, settings

from postgres import PostgresServer, postgres_server, reason_without_postgres

# What a slow or busy machine takes says nothing about the code: figures are for the benchmarks.
_PATIENT: Final = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("suite", _PATIENT, max_examples=30)
settings.register_profile("search", _PATIENT, max_examples=2_000)  # of `make search`
settings.load_profile("suite")

# Hundreds of tests start programs: without stored bytecode each would compile all of its modules.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object | None:
    """Keep neighbours with one worker, which starts their browser or server once; share the rest
    out at the end.
    """
    if config.getoption("dist") != "load":
        return None
    scheduler: object = import_module("xdist.scheduler").WorkStealingScheduling(config, log)
    return scheduler


_ON_BOTH_LOOPS: Final = (
    *("test_http_pool", "test_http_connection", "test_openai_model", "test_wire_forms"),
    *("test_server_runs", "test_server_events", "test_server_sessions", "test_server_approvals"),
    *("test_server_changes", "test_application"),
)
"""Modules whose tests run on asyncio's event loop and on uvloop: models, server, streams."""


def pytest_asyncio_loop_factories(
    item: pytest.Item,
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The event loops that a test runs on. Where its clock leaps, it is asyncio's alone."""
    factories = {"asyncio": asyncio.new_event_loop}
    if item.path.stem in _ON_BOTH_LOOPS and "leap" not in _names_in(item):
        factories["uvloop"] = import_module("uvloop").new_event_loop
    return factories


def _names_in(item: pytest.Item) -> tuple[str, ...]:
    function = item.function if isinstance(item, pytest.Function) else None
    return () if function is None else function.__code__.co_names


def pytest_collection() -> None:
    """Search for no garbage meanwhile: ten thousand collected tests live to the end."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Search for garbage in what tests make only, and not after each seven hundred objects."""
    gc.freeze()  # without a search before it: that would take a second of each process
    gc.set_threshold(20_000, 20, 50)
    gc.enable()


@pytest.fixture(autouse=True, scope="session")
def _trust() -> Iterator[None]:
    """Folders of tests are their own, also those of servers that several tests share."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINIONS_TRUST", "1")
        yield


@pytest.fixture(autouse=True)
def _no_surroundings(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    home = _home(request)
    for name in (
        "OPENAI_API_KEY",
        "OPENAI_BASE_URL",
        "ANTHROPIC_API_KEY",
        "GEMINI_API_KEY",
        "OLLAMA_HOST",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / "config"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "cache"))
    monkeypatch.setenv("XDG_DATA_HOME", str(home / "data"))
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("NO_COLOR", "1")


def _home(request: pytest.FixtureRequest) -> Path:
    """The folder of the test; of one that uses none, a place of its own where nothing is yet."""
    if "tmp_path" in request.fixturenames:
        return cast("Path", request.getfixturevalue("tmp_path"))
    factory = cast("pytest.TempPathFactory", request.getfixturevalue("tmp_path_factory"))
    return factory.getbasetemp() / f"home-{next(_NUMBERS)}"


_NUMBERS: Final = itertools.count()


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """One PostgreSQL server for all tests; they are skipped where there is none."""
    if (reason := reason_without_postgres()) is not None:
        pytest.skip(reason)
    with postgres_server() as server:
        yield server


@pytest.fixture
def postgres_url(postgres: PostgresServer) -> Iterator[str]:
    """Of a database with a journal that holds nothing."""
    with postgres.journal() as url:
        yield url


@pytest.fixture
def empty_postgres_url(postgres: PostgresServer) -> Iterator[str]:
    """Of a database without tables."""
    with postgres.database() as url:
        yield url

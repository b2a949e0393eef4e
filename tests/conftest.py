"""Every test runs away from the user's configuration, keys and journal."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from postgres import PostgresServer, postgres_server, reason_without_postgres

# What a slow or busy machine takes says nothing about the code: figures are for the benchmarks.
settings.register_profile("suite", deadline=None, suppress_health_check=[HealthCheck.too_slow])
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


def pytest_collection_finish() -> None:
    """Search for garbage in what tests make only: ten thousand collected tests live to the end."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def _trust() -> Iterator[None]:
    """Folders of tests are their own, also those of servers that several tests share."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINIONS_TRUST", "1")
        yield


@pytest.fixture(autouse=True)
def _no_surroundings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in (
        "OPENAI_API_KEY",
        "OPENAI_BASE_URL",
        "ANTHROPIC_API_KEY",
        "GEMINI_API_KEY",
        "OLLAMA_HOST",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NO_COLOR", "1")


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """One PostgreSQL server for all tests; they are skipped where there is none."""
    if (reason := reason_without_postgres()) is not None:
        pytest.skip(reason)
    with postgres_server() as server:
        yield server


@pytest.fixture
def postgres_url(postgres: PostgresServer) -> Iterator[str]:
    """Of an empty database."""
    with postgres.database() as url:
        yield url

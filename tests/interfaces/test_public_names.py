"""`import minions` shows exactly its public names, each found lazily."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

import minions


def test_all_is_sorted_and_is_what_is_visible() -> None:
    assert minions.__all__ == sorted(minions.__all__)
    assert dir(minions) == sorted(minions.__all__)


@pytest.mark.parametrize("name", minions.__all__)
def test_every_public_name_is_found_where_type_checkers_see_it(name: str) -> None:
    value = getattr(minions, name)
    home = minions._HOME_OF[name]
    assert getattr(importlib.import_module(home), name) is value


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Minion'"):
        minions.Minion  # noqa: B018


def test_a_public_name_loads_only_what_it_needs() -> None:
    code = "import sys, minions; minions.Message; print('minions.engine' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"

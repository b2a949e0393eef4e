"""Where the user's own configuration and data are."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from platformdirs import user_config_path, user_data_path

from minions.interfaces.user_folders import user_config_folder, user_data_folder

ENVIRONMENTS: Mapping[str, Mapping[str, str]] = {
    "only a home": {"HOME": "/home/ada"},
    "folders of their own": {"HOME": "/home/ada", "XDG_CONFIG_HOME": "/c", "XDG_DATA_HOME": "/d/"},
    "empty ones": {"HOME": "/home/ada", "XDG_CONFIG_HOME": "", "XDG_DATA_HOME": ""},
    "relative ones": {"HOME": "/home/ada", "XDG_CONFIG_HOME": "c", "XDG_DATA_HOME": "./d"},
    "no home": {},
    "an empty home": {"HOME": ""},
    "a relative home": {"HOME": "ada"},
    "a home with a slash": {"HOME": "/home/ada/"},
    "a root": {"HOME": "/"},
}


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_the_folders_are_those_that_platformdirs_names(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(variable, raising=False)
    for variable, value in ENVIRONMENTS[name].items():
        monkeypatch.setenv(variable, value)
    assert user_config_folder() == user_config_path("minions")
    assert user_data_folder() == user_data_path("minions")

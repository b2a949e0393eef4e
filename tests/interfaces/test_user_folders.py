"""Where the user's own configuration and data are."""

from __future__ import annotations

import stat
from collections.abc import Mapping
from pathlib import Path

import pytest
from platformdirs import user_config_path, user_data_path

from minions.app.settings.user_folders import BorderSecret, user_config_folder, user_data_folder

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


def test_the_secret_of_the_installation_is_made_once_and_readable_by_its_user_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A-108: names of borders are made from it."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    secret = BorderSecret()()
    assert len(secret) == 32
    assert BorderSecret()() == secret
    (file,) = (tmp_path / "minions").iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    file.write_bytes(b"half")
    assert len(BorderSecret()()) == 32
    assert BorderSecret()() != b"half"


def test_without_a_folder_the_secret_is_that_of_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "minions").write_text("a file where the folder would be")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    made = BorderSecret()
    assert made() == made() != BorderSecret()()

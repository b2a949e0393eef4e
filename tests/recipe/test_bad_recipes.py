"""Every recipe in tests/bad_recipes shows exactly the faults in the file beside it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from minions.recipe.reading.load import check_recipe_text
from recipe.sample_catalog import CATALOG, shown

FOLDER = Path(__file__).parent.parent / "bad_recipes"


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.yaml")), ids=lambda path: path.stem)
def test_a_bad_recipe_shows_all_its_faults(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # nested recipes are looked for here: there are none
    loaded = check_recipe_text(path.read_bytes(), path.name, CATALOG)
    lines = [shown(fault) for fault in loaded.faults]
    expected = path.with_suffix(".expected")
    if os.environ.get("MINIONS_UPDATE_EXPECTED"):  # as `make update-expected` asks
        expected.write_text("".join(f"{line}\n" for line in lines), "utf-8")
    assert lines == expected.read_text("utf-8").splitlines()
    for fault in loaded.faults:
        assert fault.source_line is not None
        assert fault.column - 1 + fault.length <= max(1, len(fault.source_line) + 1)


def test_there_are_enough_of_them() -> None:
    assert len(list(FOLDER.glob("*.yaml"))) == len(list(FOLDER.glob("*.expected"))) >= 40

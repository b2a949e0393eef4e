"""The modules of the page, without a browser."""

from __future__ import annotations

import re
from graphlib import TopologicalSorter
from importlib import resources


def test_the_modules_of_the_page_import_each_other_in_one_direction() -> None:
    folder = resources.files("minions.interfaces.server") / "web"
    files = [each for each in folder.iterdir() if each.name.endswith(".js")]
    scripts = {each.name: each.read_text("utf-8") for each in files}
    of_import = re.compile(r'(?:from |import\()"\./(.+?)"')  # those that are loaded later, too
    imports = {name: of_import.findall(text) for name, text in scripts.items()}
    assert {"api.js", "run.js"} <= set(imports["app.js"])
    order = tuple(TopologicalSorter(imports).static_order())  # a ring raises
    assert set(order) == scripts.keys()

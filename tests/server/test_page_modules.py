"""The modules of the page, without a browser."""

from __future__ import annotations

import re
from graphlib import TopologicalSorter
from importlib import resources


def _scripts() -> dict[str, str]:
    folder = resources.files("minions.interfaces.server") / "web"
    return {
        each.name: each.read_text("utf-8") for each in folder.iterdir() if each.name.endswith(".js")
    }


def test_no_time_is_shown_by_a_formatter_of_its_own() -> None:
    made = {name: text.count("new Intl.DateTimeFormat") for name, text in _scripts().items()}
    assert {name: count for name, count in made.items() if count} == {"dom.js": 1}
    slow = re.compile(r"\.toLocale(?:Date|Time)?String\(")
    assert [name for name, text in _scripts().items() if slow.search(text)] == []


def test_the_modules_of_the_page_import_each_other_in_one_direction() -> None:
    scripts = _scripts()
    of_import = re.compile(r'(?:from |import\()"\./(.+?)"')  # those that are loaded later, too
    imports = {name: of_import.findall(text) for name, text in scripts.items()}
    assert {"api.js", "run.js"} <= set(imports["app.js"])
    order = tuple(TopologicalSorter(imports).static_order())  # a ring raises
    assert set(order) == scripts.keys()

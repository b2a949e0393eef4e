"""An overview shows all files of a small folder, and of a large one where the files are."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from minions.adapters.tools.files_toolset import named_files, overview_lines

_NAMES = st.sampled_from(["a", "b", "c", "data", "x.py", "y.py", "z.md", ".env", "Makefile"])
_PATHS = st.lists(st.lists(_NAMES, min_size=1, max_size=4).map("/".join), max_size=60).map(
    lambda paths: sorted(set(paths))
)


def _count(line: str) -> int:
    found = re.search(r"\((\d+) files: ", line)
    return int(found[1]) if found else 1


def test_few_files_are_all_shown() -> None:
    assert overview_lines(["a.py", "src/b.py"], most=2) == ["a.py", "src/b.py"]


def test_a_large_folder_is_a_count_and_small_ones_beside_it_are_shown() -> None:
    data = [f"data/{at}.csv" for at in range(9_000)]
    lines = overview_lines(sorted(["README.md", "src/a.py", "src/b.py", *data, "data/x.md"]), 300)
    assert lines == [
        "README.md",
        "data/ (9001 files: 9000 .csv, 1 .md)",
        "src/a.py",
        "src/b.py",
    ]


def test_folders_with_too_many_folders_stay_closed() -> None:
    deep = [f"deep/{at}/x.py" for at in range(500)]
    assert overview_lines(["a.py", *deep], most=100) == ["a.py", "deep/ (500 files: 500 .py)"]


def test_too_many_files_at_the_top_are_counted_with_their_endings() -> None:
    files = sorted([f"{at}.{end}" for at in range(20) for end in ("a", "b", "c", "d", "e")])
    assert overview_lines(files, most=10) == ["(100 files: 20 .a, 20 .b, 20 .c, 20 .d, …)"]


@given(_PATHS, st.integers(1, 30))
def test_every_file_counts_once_and_the_lines_stay_few(paths: list[str], most: int) -> None:
    lines = overview_lines(paths, most)
    assert sum(map(_count, lines)) == len(paths)
    assert len(lines) <= most or len(paths) > most
    assert len(lines) <= max(most, 1)


def test_files_that_a_text_names_are_found_by_path_name_or_stem() -> None:
    paths = ["a/orders.py", "b/users.py", "c/db.py", "d/x.txt"]
    named = named_files(paths, "Mend `a/orders.py`, and what Users need. The db is fine: x.txt.")
    assert named == ["a/orders.py", "b/users.py", "d/x.txt"]


def test_a_text_that_names_very_many_files_shows_the_first_fifty() -> None:
    assert len(named_files([f"{at}/main.py" for at in range(100)], "Change main.py")) == 50

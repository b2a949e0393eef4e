"""The documentation is true: code runs, commands print what it says, links lead somewhere."""

from __future__ import annotations

import contextlib
import io
import re
import runpy
import shlex
import sys
import tomllib
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, cast

import pytest

from docs.markdown_blocks import Block, anchors_of, blocks_of, links_of
from forked_commands import run_forked
from minions.app.wiring.built_in_extensions import built_in_extensions
from minions.app.wiring.extension_files import load_extensions
from minions.interfaces.cli.main import run_command_line
from minions.recipe.reading.load import check_recipe_text

ROOT: Final = Path(__file__).parents[2]
DOCS: Final = ROOT / "docs"
SKILL: Final = ROOT / "minions" / "interfaces" / "skill"
PAGES: Final = sorted(
    page
    for page in (
        *DOCS.rglob("*.md"),
        *SKILL.glob("*.md"),
        *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "AGENTS.md")),
    )
    if page.exists()
)
_RECIPE: Final = re.compile(r"^steps:", re.MULTILINE)


def _name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the reader of a page works."""
    place = tmp_path / "work"
    place.mkdir()
    monkeypatch.chdir(place)
    monkeypatch.setattr(sys, "argv", ["docs"])
    return place


_TUTORIAL: Final = [page for page in PAGES if page.parent == DOCS / "tutorial"]


@pytest.mark.parametrize("page", [page for page in PAGES if page not in _TUTORIAL], ids=_name)
def test_every_block_of_a_page_does_what_the_page_says(
    page: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks run in page order, in one folder and one Python module."""
    _check_blocks([page], folder, monkeypatch)


def test_each_part_of_the_tutorial_does_what_it_says_in_the_folder_of_the_part_before(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = [page for page in _TUTORIAL if page.name != "README.md"]
    assert [page.name[0] for page in parts] == ["1", "2", "3", "4", "5"]
    _check_blocks(parts, folder, monkeypatch)


def _check_blocks(pages: Sequence[Path], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("docs_page")
    monkeypatch.setitem(sys.modules, "docs_page", module)  # where type hints are looked up
    for page, block in ((each, block) for each in pages for block in blocks_of(each)):
        if not block.is_run:
            continue
        if block.file is not None:
            target = folder / block.file
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(block.text, "utf-8")
        place = f"{_name(page)}:{block.line}"
        if block.language == "python":
            exec(compile(block.text, place, "exec"), module.__dict__)  # our own pages
        elif block.language == "yaml" and _RECIPE.search(block.text):
            assert (_faults(block, folder) == []) is block.is_right, place
        elif block.language == "console":
            _check_console(block, place)


def _faults(block: Block, folder: Path) -> Sequence[str]:
    """With the tools and links that the page has defined so far."""
    files = [path.name for path in sorted(folder.glob("*.py"))]
    catalog = load_extensions(files, folder, built_in_extensions()).catalog()
    loaded = check_recipe_text(block.text, block.file or "recipe.yaml", catalog)
    return [f"{fault.where} {fault.message}" for fault in loaded.errors]


def _check_console(block: Block, place: str) -> None:
    """`$ minions …` and what it prints; `…` stands for any text, `; echo $?` for the exit code."""
    for command, expected in _commands(block.text):
        assert command.startswith("minions "), f"{place}: only minions commands can be run"
        printed = _printed(command)
        pattern = ".*".join(re.escape(part) for part in expected.rstrip("\n").split("…"))
        assert re.fullmatch(pattern, printed.rstrip("\n"), re.DOTALL), (
            f"{place}: `{command}` printed\n{printed}\nand the page says\n{expected}"
        )


def _commands(text: str) -> Sequence[tuple[str, str]]:
    parts = re.split(r"^\$ (.+)\n", text, flags=re.MULTILINE)[1:]
    return list(zip(parts[::2], parts[1::2], strict=True))


def _printed(command: str) -> str:
    words, echo, _ = command.partition("; echo $?")
    buffer = io.StringIO()
    with contextlib.redirect_stdout(buffer), contextlib.redirect_stderr(buffer):
        code = run_command_line(shlex.split(words)[1:])
    return buffer.getvalue() + (f"{code}\n" if echo else "")


@pytest.mark.parametrize("name", ["java", "mars", "v2", "agio", "streetrace"])
def test_each_design_that_this_one_continues_has_a_page_with_examples_that_run(name: str) -> None:
    """The examples of the documents themselves are run by `tests/designs`."""
    blocks = list(blocks_of(DOCS / "reference" / f"from-{name}.md"))
    assert any(block.is_run and block.language in ("python", "yaml") for block in blocks)


def _relative_links() -> Iterator[tuple[Path, str]]:
    """Each page with each of its links to a file or a heading."""
    for page in PAGES:
        yield from ((page, link) for link in links_of(page) if "://" not in link)


def test_every_relative_link_leads_to_a_file() -> None:
    missing = [
        (_name(page), link)
        for page, link in _relative_links()
        if (target := link.partition("#")[0]) and not (page.parent / target).exists()
    ]
    assert missing == []


def test_no_link_leads_to_a_file_that_the_site_has_not() -> None:
    """Folders that are copied, recipes and single files: see `docs/build_site.py`."""
    site = runpy.run_path(str(DOCS / "build_site.py"))
    known, copied = {*site["_FILES"]}, {*site["_FOLDERS"], "recipes"}
    own = ROOT.resolve()
    targets = {
        (page.parent / target).resolve()
        for page, link in _relative_links()
        if (target := link.partition("#")[0])
    }
    found = {str(each.relative_to(own)) for each in targets if each.suffix}
    assert {each for each in found if each.split("/")[0] not in copied} <= known


def test_every_link_to_a_heading_leads_to_one() -> None:
    missing = [
        (_name(page), link)
        for page, link in _relative_links()
        if "#" in link and not _is_heading(page, link)
    ]
    assert missing == []


def _is_heading(page: Path, link: str) -> bool:
    target, _, anchor = link.partition("#")
    led_to = page.parent / target if target else page
    return led_to.suffix != ".md" or anchor in anchors_of(led_to)


def test_the_index_of_questions_leads_to_every_page_for_users() -> None:
    index = DOCS / "how-to" / "README.md"
    rows = re.findall(r"^\| (.+\?) \|", index.read_text("utf-8"), re.MULTILINE)
    assert len(rows) == len(set(rows)) > 40
    linked = {(index.parent / link.partition("#")[0]).resolve() for link in links_of(index)}
    for_others = {"acceptance", "extending-minions", "index", "why"}
    missing = [
        _name(page)
        for folder in (DOCS, DOCS / "how-to", DOCS / "reference")
        for page in folder.glob("*.md")
        if page != index and page.stem not in for_others and page not in linked
    ]
    assert missing == []
    assert "docs/how-to/README.md" in (ROOT / "README.md").read_text("utf-8")


def test_the_first_page_of_the_documentation_leads_to_every_page() -> None:
    """Directly, or by the README of its folder: the menu of the site is made of it."""
    site = runpy.run_path(str(DOCS / "build_site.py"))
    shown: list[str] = []
    for group in site["index_groups"]():
        for pages in group.values():
            for page in pages:
                shown += [page] if isinstance(page, str) else next(iter(page.values()))
    assert sorted(shown) == sorted({*shown})
    missing = {_name(page) for page in PAGES} - {*shown, "README.md", "docs/index.md"}
    assert missing == set()
    assert "docs/index.md" in (ROOT / "README.md").read_text("utf-8")


def test_everybody_is_told_to_install_this_distribution() -> None:
    """`minions` is somebody else's on the public index; an extra has to exist, too."""
    root = DOCS.parent
    project = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]
    files = [
        *root.glob("*.md"),
        *(each for kind in ("md", "py", "js") for each in DOCS.rglob(f"*.{kind}")),
        *(each for kind in ("py", "js", "html") for each in (root / "minions").rglob(f"*.{kind}")),
    ]
    told = {
        (found[1], found[3])
        for file in files
        for found in re.finditer(
            r"pip install ['\"]?([a-z-]*minions[a-z-]*)(\[([a-z,]+)\])?", file.read_text("utf-8")
        )
    }
    assert told == {
        (project["name"], extra)
        for extra in (
            *(
                "dbos",
                "encrypt",
                "litellm",
                "local",
                "lsp",
                "mcp",
                "otel",
                "parquet",
                "pdf",
                "postgres",
                "sandbox",
                "server",
                "sign",
            ),
        )
    }
    assert {extra for _, extra in told} <= project["optional-dependencies"].keys()
    readme = (root / "README.md").read_text("utf-8")
    for name, extra in told:
        assert f"`{name}[{extra}]`" in readme


def _script(name: str) -> Mapping[str, Callable[..., object]]:
    return cast("Mapping[str, Callable[..., object]]", runpy.run_path(str(DOCS / name)))


def test_the_tables_of_the_recipe_page_are_those_of_the_loader() -> None:
    """If this fails: `python docs/generate_recipes.py`."""
    text = (DOCS / "recipes.md").read_text("utf-8")
    assert _script("generate_recipes.py")["page"](text) == text


def test_the_rooms_and_the_order_of_reading_are_those_of_the_tree() -> None:
    """A-162. If this fails: `python docs/generate_contributing.py`."""
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    assert _script("generate_contributing.py")["page"](text) == text
    rooms = re.findall(r"^\| \*{0,2}`(minions/[\w/]+)`", text, re.MULTILINE)
    packages = [each.parent for each in (ROOT / "minions").rglob("__init__.py")]
    top = {each for each in packages if 1 <= len(each.relative_to(ROOT).parts) - 1 <= 2}
    assert sorted(rooms) == sorted(_name(each) for each in top)
    assert len(re.findall(r"^\d+\. `minions/engine/", text, re.MULTILINE)) > 3


def test_the_acceptance_page_says_which_statements_are_covered() -> None:
    """If this fails: `python docs/generate_acceptance.py`."""
    text = (DOCS / "reference" / "acceptance.md").read_text("utf-8")
    rows = re.findall(r"^\| (A-\d+) \|.*\| (.+) \|$", text, re.MULTILINE)
    covered = cast("Mapping[str, object]", _script("generate_acceptance.py")["covered"]())
    assert len(rows) == 186
    assert {number for number, where in rows if where != "not yet"} == set(covered)


def test_every_public_name_stands_on_the_page_of_public_names() -> None:
    """A-131. If this fails: `python docs/generate_api.py`."""
    text = (DOCS / "reference" / "api.md").read_text("utf-8")
    assert _script("generate_api.py")["page"]() == text
    rows = re.findall(r"^\| `(?:await )?(\w+)[^`]*` \| (.*) \|$", text, re.MULTILINE)
    assert [name for name, words in rows if not words] == []
    assert "docs/reference/api.md" in (ROOT / "README.md").read_text("utf-8")


def test_the_readme_is_short_and_shows_and_says_first_why_to_use_it() -> None:
    lines = (ROOT / "README.md").read_text("utf-8").splitlines()
    assert len(lines) <= 150
    why = next(at for at, line in enumerate(lines) if line.startswith("**Use it when"))
    assert why < 10
    assert next(at for at, line in enumerate(lines) if line.startswith("![")) < why
    assert sum(line.startswith("- **") for line in lines[why:25]) >= 3


def test_the_pictures_of_the_readme_are_small_and_load_nothing() -> None:
    """If this fails: `python docs/generate_pictures.py`."""
    readme = (ROOT / "README.md").read_text("utf-8")
    pictures = re.findall(r"!\[.+?\]\((docs/pictures/.+?)\)", readme)
    assert pictures == ["docs/pictures/terminal.svg", "docs/pictures/page.png"]
    assert all((ROOT / each).stat().st_size <= 120 * 1024 for each in pictures)
    svg = (ROOT / pictures[0]).read_text("utf-8")
    assert re.findall(r"url\((?!#)|href=|@import", svg) == []


def test_the_gallery_shows_each_picture_once_with_words_and_none_is_large() -> None:
    """If this fails: `python docs/generate_pictures.py`, and a part in `docs/gallery.md`."""
    parts = (DOCS / "gallery.md").read_text("utf-8").split("\n## ")[1:]
    shown = [re.findall(r"!\[.{20,}\]\((pictures/.+?)\)", part) for part in parts]
    assert all(len(pictures) == 1 for pictures in shown), shown
    files = {path.relative_to(DOCS).as_posix() for path in (DOCS / "pictures").iterdir()}
    assert {each for pictures in shown for each in pictures} == files
    assert all((DOCS / each).stat().st_size <= 130_000 for each in files)
    assert [part for part in parts if not re.search(r"\]\([\w-]+\.md", part)] == []


def test_language_models_find_every_page_that_persons_find() -> None:
    made = runpy.run_path(str(DOCS / "build_site.py"))["for_models"]()
    assert set(made) == {"llms.txt", "llms-full.txt", "skill.md"}
    lines = made["llms.txt"].splitlines()
    assert (lines[0], lines[2][:2]) == ("# Minions", "> ")
    for name in ("docs/recipes/", "docs/versions/", "docs/how-to/"):
        assert f"]({name})" in made["llms.txt"]
    assert "# Recipes: every key" in made["llms-full.txt"]


def test_the_pages_of_the_skill_are_those_of_the_documentation_and_the_code() -> None:
    """If this fails: `python docs/generate_skill.py`."""
    pages = cast("Mapping[str, str]", _script("generate_skill.py")["pages"]())
    assert {name: (SKILL / name).read_text("utf-8") for name in pages} == pages


def test_every_code_of_an_error_stands_on_the_page_of_errors() -> None:
    """If this fails: describe it in `reference/errors.yaml`, `python docs/generate_errors.py`."""
    script = _script("generate_errors.py")
    codes = cast("Mapping[str, object]", script["codes_of"](ROOT / "minions"))
    groups = cast("Mapping[str, Mapping[str, str]]", script["words"]())
    described = [code for group in groups.values() for code in group]
    assert sorted(described) == sorted(codes)
    assert (DOCS / "reference" / "errors.md").read_text("utf-8") == script["page"]()


def test_a_code_is_found_wherever_the_source_gives_one(tmp_path: Path) -> None:
    source = """
NO_KEY: Final = "no-key"
REMEDIES = {"53100": ("by-table", "The disk is full.")}

class Fault:
    code = "by-class"

async def warn(self, code, message): ...

def refuse(error, status, wrong=None, *, code="by-default"):
    code = "by-choice" if wrong else "by-other-choice"
    raise Error("a message", code=NO_KEY)
    self.warn("by-place", "a message")
    Failure(code=f"http-{status}")
"""
    (tmp_path / "module.py").write_text(source, "utf-8")
    found = cast("Mapping[str, object]", _script("generate_errors.py")["codes_of"](tmp_path))
    by = {f"by-{each}" for each in ("class", "default", "choice", "other-choice", "place", "table")}
    assert set(found) == by | {"no-key", "http-…"}


def test_the_tests_of_the_page_about_testing_pass(tmp_path: Path) -> None:
    for block in blocks_of(DOCS / "testing.md"):
        if block.file is not None:
            (tmp_path / block.file).write_text(block.text, "utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "minions.testing.plugin"]
    command += ["-p", "no:cacheprovider"]
    done = run_forked(command, cwd=tmp_path, capture_output=True, text=True)
    assert "4 passed" in done.stdout, done.stdout

"""Builds the documentation site into `out/site`, or into `site` of a given folder: `make docs`.

The pages are copied with their places, so that a link holds in the repository and on the site. The
reference is made of the docstrings of the public modules. Whatever is wrong ends the build: a link
or an anchor that leads nowhere, a page that no menu has.
"""

from __future__ import annotations

import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import yaml

ROOT: Final = Path(__file__).resolve().parents[1]
_FOLDER_OF_PAGES: Final = "site-pages"
_CONFIGURATION: Final = ROOT / "docs" / "site.yml"
INDEX: Final = ROOT / "docs" / "index.md"
_LINK: Final = re.compile(r"\]\(([^)\s]+\.md)\)")
_LISTED: Final = re.compile(r"\[([^\]]+)\]\(([^)\s]+\.md)\)([^\n]*)")
_SUMMARY: Final = (
    "Minions runs LLM agent work as small, typed, recorded steps: recipes in YAML or Python, "
    "checked before they run, resumed after a kill, bounded in cost."
)
_FOLDERS: Final = ("docs",)
_FILES: Final = (
    *("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "LICENSE", "AGENTS.md"),
    *(f"minions/interfaces/skill/{name}.md" for name in ("SKILL", "examples", "keys")),
    *(f"minions/interfaces/skill/{name}.md" for name in ("commands", "faults")),
    *("benchmarks/RESULTS.md", "benchmarks/small_model.md", "tests/typing/api.py"),
    *("benchmarks/plan_reuse.md", "benchmarks/capture.md"),
    *("benchmarks/tool_search.md", "benchmarks/tokens.md"),
    *("benchmarks/agent_dojo.md", "benchmarks/agent_dojo.yaml"),
    *("benchmarks/quality/field_tasks.txt", "benchmarks/quality/schema_tasks.jsonl"),
    "release/surface.yaml",
)
_NOT_PAGES: Final = (
    *("generate_*.py", "build_site.py", "site.yml", "*.sqlite", "__pycache__"),
    *("node_modules", "dist"),
)
_REFERENCE: Final = "reference"
_HOW_TO: Final = ROOT / "docs" / "how-to" / "README.md"
_QUESTION: Final = re.compile(r"^\| (.+)\? \| .*?\]\(([^)#\s]+\.md)", re.MULTILINE)
_FOR_BUILDERS: Final = re.compile(
    r"docs/design/|docs/reference/|benchmarks/|minions/|CHANGELOG|CONTRIBUTING|AGENTS|SECURITY"
    r"|docs/(index|extending-minions|releasing|quality)\.md|docs/how-to/README\.md"
)
"""Pages that a search lists after those for users, which tell of the same things more shortly."""
_LATER: Final[dict[str, object]] = {"search": {"boost": 0.2}}
"""What such pages have; else a search for a command found every class that names it first."""


def main(out: Path) -> int:
    """Copy the pages, write the reference, build.

    Args:
        out: The folder of the site and of what it is made from.
    """
    pages = out / _FOLDER_OF_PAGES
    shutil.rmtree(pages, ignore_errors=True)
    for name in _FOLDERS:
        shutil.copytree(ROOT / name, pages / name, ignore=shutil.ignore_patterns(*_NOT_PAGES))
    for name in (*_FILES, *(f"recipes/{each.name}" for each in (ROOT / "recipes").glob("*.yaml"))):
        (pages / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, pages / name)
    _write_search_words(pages)
    modules = _public_modules()
    _write_reference(modules, pages / _REFERENCE)
    configuration = out / "site.yml"
    configuration.write_text(yaml.safe_dump(_configured(modules, out), sort_keys=False), "utf-8")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--clean", "-f"]
    done = subprocess.run([*command, str(configuration)], cwd=ROOT, check=False)  # noqa: S603  # our own words
    if done.returncode == 0:
        for name, text in for_models().items():
            (out / "site" / name).write_text(text, "utf-8")
    return done.returncode


def for_models() -> dict[str, str]:
    """`llms.txt`, a list of the pages as language models read it, and all pages in one text.

    The form of the first is that of llmstxt.org: a title, a summary, and lists of links.
    """
    skill = (ROOT / "minions" / "interfaces" / "skill" / "SKILL.md").read_text("utf-8")
    lines = [
        "# Minions",
        "",
        f"> {_SUMMARY}",
        "",
        "- [Skill](skill.md): how recipes are written and run",
    ]
    whole = [skill]
    for part in INDEX.read_text("utf-8").split("\n## ")[1:]:
        title, _, text = part.partition("\n")
        lines += ["", f"## {title}", ""]
        for name, link, rest in _LISTED.findall(text):
            page = (INDEX.parent / link).resolve()
            place = page.relative_to(ROOT).with_suffix("").as_posix()
            place = place.removesuffix("README").removesuffix("index").rstrip("/")
            lines.append(f"- [{name}]({place}/){rest}")
            whole.append(page.read_text("utf-8"))
    return {
        "llms.txt": "\n".join(lines) + "\n",
        "llms-full.txt": "\n\n".join(whole),
        "skill.md": skill,
    }


def search_words() -> dict[str, list[str]]:
    """By page: its title, and the questions that `docs/how-to/README.md` answers by it.

    The search weighs them most, so that a page is found by the words of those who need it: the
    words of a reader that are missing are added to that list, where readers see them, too.
    """
    words: dict[str, list[str]] = {}
    for question, link in _QUESTION.findall(_HOW_TO.read_text("utf-8")):
        page = (_HOW_TO.parent / link).resolve()
        name = page.relative_to(ROOT).as_posix()
        title = page.read_text("utf-8").partition("\n")[0].removeprefix("# ")
        words.setdefault(name, [title]).append(re.sub(r"[`(),…]", "", question))
    return {name: each for name, each in words.items() if not _FOR_BUILDERS.match(name)}


def _write_search_words(pages: Path) -> None:
    """Write at the head of each copied page what the search shall know of it."""
    words = search_words()
    for page in pages.rglob("*.md"):
        name = page.relative_to(pages).as_posix()
        later = _LATER if _FOR_BUILDERS.match(name) else {}
        known: dict[str, object] = {**later, **({"tags": words[name]} if name in words else {})}
        if known:
            page.write_text(_with_head(page.read_text("utf-8"), known), "utf-8")


def _with_head(text: str, known: dict[str, object]) -> str:
    """The page with these values in its head, beside those that it has."""
    own, body = "", text
    if text.startswith("---\n"):
        own, _, body = text.removeprefix("---\n").partition("\n---\n")
    head = {**(yaml.safe_load(own) or {}), **known}
    return f"---\n{yaml.safe_dump(head, sort_keys=False, allow_unicode=True)}---\n{body}"


def _public_modules() -> tuple[str, ...]:
    """Those of the page of public names."""
    modules: tuple[str, ...] = runpy.run_path(str(ROOT / "docs" / "generate_api.py"))["MODULES"]
    return modules


def _write_reference(modules: tuple[str, ...], folder: Path) -> None:
    folder.mkdir()
    links = "\n".join(f"- [`{name}`]({name}.md)" for name in modules)
    text = f"# Reference\n\nThe public modules, with what they hold.\n\n{links}\n"
    (folder / "index.md").write_text(text, "utf-8")
    for name in modules:
        page = _with_head(f"# `{name}`\n\n::: {name}\n", _LATER)
        (folder / f"{name}.md").write_text(page, "utf-8")


def _configured(modules: tuple[str, ...], out: Path) -> dict[str, Any]:  # Any: as the file has it
    """The configuration, with the menu that `docs/index.md` and the modules make."""
    configuration: dict[str, Any] = yaml.safe_load(_CONFIGURATION.read_text("utf-8"))
    pages = [{name: f"{_REFERENCE}/{name}.md"} for name in modules]
    reference: list[Any] = [f"{_REFERENCE}/index.md", *pages]
    nav: list[Any] = []
    for entry in configuration["nav"]:
        if entry == "INDEX":
            nav += index_groups()
        elif isinstance(entry, dict):
            nav += [{title: reference} for title in entry]
        else:
            nav.append(entry)
    configuration["nav"] = nav
    folders = {"docs_dir": out / _FOLDER_OF_PAGES, "site_dir": out / "site"}
    configuration |= {key: str(folder.resolve()) for key, folder in folders.items()}
    handler = configuration["plugins"][1]["mkdocstrings"]["handlers"]["python"]
    handler["paths"] = [str(ROOT)]
    return configuration


def index_groups() -> list[dict[str, list[Any]]]:  # Any: a page, or a title with its pages
    """The groups of `docs/index.md`, each with its pages in their order."""
    groups: list[dict[str, list[Any]]] = []
    for part in INDEX.read_text("utf-8").split("\n## ")[1:]:
        title, _, text = part.partition("\n")
        groups.append({title: [_with_folder(link) for link in _LINK.findall(text)]})
    return groups


def _with_folder(link: str) -> Any:  # Any: as in `index_groups`
    """A page; the README of a folder with the folder's other pages."""
    page = (INDEX.parent / link).resolve()
    name = page.relative_to(ROOT).as_posix()
    if page.name != "README.md":
        return name
    others = sorted(each.relative_to(ROOT).as_posix() for each in page.parent.glob("*.md"))
    title = page.read_text("utf-8").partition("\n")[0].removeprefix("# ")
    return {title: [name, *(each for each in others if each != name)]} if others[1:] else name


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if sys.argv[1:] else ROOT / "out"))

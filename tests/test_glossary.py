"""One concept has one word: retired words occur in no name, docstring or message."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from source_trees import PACKAGE as ROOT
from source_trees import module_paths, nodes_of

RETIRED: Final[Mapping[str, str]] = {
    "basis": "fingerprint",
    "gate": "access middleware",
    "hub": "run manager",
    "leg": "execution",
    "ledger": "budget",
    "misfit": "mismatch",
    "rooms": "application state",
    "shelf": "recipe store",
    "surroundings": "command context",
    "talk": "session",
    "talks": "sessions",
    "thread": "conversation (of a session), where no thread of the process is meant",
    "turns": "iterations, where no question and answer in a session is meant",
    "unanswered": "pending",
    "voice": "console",
    "workshop": "runtime",
}
"""Words in names of modules, classes, functions, arguments and attributes, and what to say."""

PHRASES: Final[Mapping[str, str]] = {
    "going_on": "resume plan",
    "way_back": "back edge",
    "ways_back": "back edges",
    "told_again": "replayed",
    "waiting_room": "waiters",
}

PARTICIPLES: Final = frozenset(
    {
        *("Attempted", "Begun", "Collected", "Decided", "Filtered", "Freed", "Given", "Kept"),
        *("Made", "Needed", "Parsed", "Retrying", "Said", "Shown", "Stored", "Tested", "Wanted"),
        "Warned",
    }
)
"""No class is called by one of these alone: classes are nouns of the domain."""

NOT_YET_VERBS: Final = (
    *("adapters/sandboxes", "adapters/stores", "app/capturing", "capture"),
    *("engine/calls", "engine/run", "engine/sessions", "app/evaluating/recipe_tests.py"),
    *("engine/step", "recipe/checks", "testing"),
    *("adapters/tools/mcp/login.py", "contracts/approvals.py", "contracts/protected_files.py"),
    *("contracts/journal/facts/rows.py", "engine/context/step_view.py"),
)
"""Folders and files with private functions that are called by a bare participle."""

_PARTICIPLE: Final = re.compile(
    r"_([a-z]+ed|begun|bound|built|done|found|given|gone|held|kept|made|paid|said|sent|shown|spent"
    r"|taken|told|understood|written)"
)
_VERBS: Final = frozenset({"_embed", "_exceed", "_feed", "_need", "_proceed", "_seed", "_shed"})

PROSE: Final[Mapping[str, str]] = {
    r"anew": "again; of parts of a run: retried, rerun",
    r"(go|goes|going|went) on": "continue; of a run: resume",
    r"going back|way back|ways back": "back edge",
    r"half done": "started",
    r"likewise": "a full statement",
    r"misfit": "mismatch",
    r"nobody (gave|said|can tell|knows)": "not known, pending",
    r"rests? on": "depend on",
    r"shelf": "recipe store",
    r"surroundings": "environment",
    r"(taken|takes|take) up(?! to\b)": "resumed",
    r"talk on": "continue",
    r"told again|fed back": "replayed",
    r"workshop": "runtime",
}
"""Words in docstrings and messages, as regular expressions, and what to say."""

OF_PAGES: Final[Mapping[str, str]] = {
    **PROSE,
    r"legs?": "execution of a run, generation",
    r"going on": "continuing; of a run: resuming",
    r"waiting room": "pending decisions",
    r"ledger": "budget",
    r"unanswered(?!-)": "pending",
}
"""The same for the documentation."""

_STUB: Final = re.compile(r"(Of|As|By) [^.:,]{1,24}\.|\w+[.]")
"""A docstring that says nothing alone, such as "Of the run's."."""

_NOT_YET: Final = ("adapters/stores", "adapters/daemon_thread.py")
"""Folders and files whose prose is not held to `PROSE` yet."""

_ALLOWED: Final = frozenset(
    {
        "thread",  # a key of rows that are stored
        "threadId",  # of AG-UI
        "Thread",
        "to_thread",
        "daemon_thread",
        "background_thread_stop_events",  # of DBOS
        "_NeedsThreadError",
        "OneThread",
        "_OwnThread",
        "current_thread",
        "main_thread",
        "run_in_daemon_thread",
        "import_in_daemon_thread",
        "turns",  # of a session
        "TURNS",
    }
)
"""Names that mean something else, mostly threads of the process."""


def _names(path: Path) -> Iterator[str]:
    yield path.stem
    for node in nodes_of(path):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def _words(name: str) -> list[str]:
    return [word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)]


def _retired_in(path: Path) -> Iterator[str]:
    for name in set(_names(path)) - _ALLOWED:
        for word in _words(name):
            if word in RETIRED:
                yield f"{name}: say {RETIRED[word]}"
        for phrase, better in PHRASES.items():
            if phrase in name.lower():
                yield f"{name}: say {better}"
        if name.lstrip("_") in PARTICIPLES:
            yield f"{name}: a class is a noun"


def test_a_base_name_tells_a_module_from_all_others() -> None:
    """A-162. Also from the public modules, which hand out what others define."""
    names = Counter(path.stem for path in module_paths())
    assert [name for name, count in names.items() if count > 1 and name != "__init__"] == []


def test_no_name_has_a_retired_word() -> None:
    found = {
        f"{path.relative_to(ROOT.parent)}: {each}"
        for path in module_paths()
        for each in _retired_in(path)
    }
    assert sorted(found) == []


def test_no_private_function_is_called_by_a_bare_participle() -> None:
    """`_opened` says neither what is done nor what comes of it: `_open_file` does."""
    found = [
        f"{path.relative_to(ROOT.parent)}:{node.lineno}: {node.name}: say a verb and what you get"
        for path in module_paths()
        if not path.relative_to(ROOT).as_posix().startswith(NOT_YET_VERBS)
        for node in nodes_of(path)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if _PARTICIPLE.fullmatch(node.name) and node.name not in _VERBS
        if not any("property" in ast.unparse(each) for each in node.decorator_list)
    ]
    assert found == []


def _docstring_constants(path: Path) -> Iterator[ast.Constant]:
    for node in nodes_of(path):
        body = getattr(node, "body", None)
        for each in body if isinstance(body, list) else ():
            if isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant):
                yield each.value


def _texts(path: Path) -> Iterator[ast.Constant]:
    """Docstrings, and parts of messages that are longer than a word."""
    for node in nodes_of(path):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node


def _swept() -> Iterator[Path]:
    for path in module_paths():
        place = path.relative_to(ROOT).as_posix()
        if not any(place == each or place.startswith(f"{each}/") for each in _NOT_YET):
            yield path


def test_no_docstring_or_message_has_a_retired_word() -> None:
    retired = {re.compile(rf"\b({each})\b", re.IGNORECASE): each for each in PROSE}
    found = [
        f"{path.relative_to(ROOT.parent)}:{text.lineno}: {match[0]}: say {PROSE[each]}"
        for path in _swept()
        for text in _texts(path)
        for pattern, each in retired.items()
        if (match := pattern.search(str(text.value)))
    ]
    assert found == []


def test_no_page_of_the_documentation_has_a_retired_word() -> None:
    retired = {re.compile(rf"\b({each})\b", re.IGNORECASE): each for each in OF_PAGES}
    repository = ROOT.parent
    pages = [*repository.glob("*.md"), *(repository / "docs").rglob("*.md")]
    pages += (repository / "docs").rglob("*.yaml")
    found = [
        f"{page.relative_to(repository)}:{number}: {match[0]}: say {OF_PAGES[each]}"
        for page in pages
        for number, line in enumerate(page.read_text("utf-8").splitlines(), start=1)
        for pattern, each in retired.items()
        if (match := pattern.search(line))
    ]
    assert found == []


def test_no_docstring_needs_its_neighbours_to_be_understood() -> None:
    found = [
        f"{path.relative_to(ROOT.parent)}:{text.lineno}: {text.value}"
        for path in _swept()
        for text in _docstring_constants(path)
        if isinstance(text.value, str) and _STUB.fullmatch(text.value.strip())
    ]
    assert found == []

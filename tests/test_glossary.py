"""One concept has one word: retired words occur in no name of the package."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1] / "minions"

RETIRED: Final[Mapping[str, str]] = {
    "basis": "fingerprint",
    "gate": "access middleware",
    "hub": "run manager",
    "inbox": "pending decisions",
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

_ALLOWED: Final = frozenset(
    {
        "thread",  # a key of rows that are stored
        "Thread",
        "to_thread",
        "daemon_thread",
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
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
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


def test_no_name_has_a_retired_word() -> None:
    found = {
        f"{path.relative_to(ROOT.parent)}: {each}"
        for path in ROOT.rglob("*.py")
        for each in _retired_in(path)
    }
    assert sorted(found) == []

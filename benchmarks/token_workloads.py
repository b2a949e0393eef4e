"""Workloads of the token benchmark: a workspace before and after the work, a task and its plan.

A workload is a folder: `work.yaml`, the workspace in `before`, and in `after` the files that the
work makes or changes.
"""

from __future__ import annotations

import difflib
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Final

import yaml
from attrs import frozen

__all__ = ["Edit", "Mistake", "NotDoneError", "PlannedWork", "Workload", "edits_between"]

FOLDER: Final = Path(__file__).parent / "workloads"
_CHANGING: Final = ("generate", "modify", "cleanup")


class NotDoneError(Exception):
    """A form did not do the work: its figure would say nothing."""


@frozen(kw_only=True)
class Edit:
    """A piece of a file, which is in it once, and what stands in its place."""

    path: str
    old: str
    new: str


@frozen(kw_only=True)
class Mistake:
    """What the model writes wrong at first."""

    path: str
    right: str
    wrong: str


@frozen(kw_only=True)
class PlannedWork:
    """A step of the plan, and what an agent with tools does in it."""

    id: str
    type: str
    goal: str
    dependencies: tuple[str, ...]
    artifacts: tuple[str, ...]
    reads: tuple[str, ...]
    """Files that an agent reads in it."""
    is_tested: bool
    """Whether the agent with the full history runs the tests after it."""

    @property
    def changes(self) -> bool:
        """Whether it writes files."""
        return self.type in _CHANGING


@frozen(kw_only=True)
class Workload:
    """One task with its workspace."""

    name: str
    title: str
    task: str
    looks: tuple[str, ...]
    """Folders that an agent lists first."""
    found: str
    """What the analysis answers."""
    command: str
    plan: Mapping[str, object]
    """The plan as the planner writes it."""
    steps: tuple[PlannedWork, ...]
    mistake: Mistake
    before: Mapping[str, str]
    """The files at first, by path."""
    after: Mapping[str, str]
    """All files at the end."""

    @classmethod
    def read(cls, name: str) -> Workload:
        """The workload in a folder below `workloads`."""
        folder = FOLDER / name
        document = yaml.safe_load((folder / "work.yaml").read_text("utf-8"))
        before = files_in(folder / "before")
        steps = tuple(_step(each, document) for each in document["plan"]["steps"])
        return cls(
            name=name,
            title=document["title"],
            task=document["task"],
            looks=tuple(document["looks"]),
            found=document["found"],
            command=next(
                each["command"] for each in document["plan"]["steps"] if "command" in each
            ),
            plan=document["plan"],
            steps=steps,
            mistake=Mistake(**document["mistake"]),
            before=before,
            after={**before, **files_in(folder / "after")},
        )

    def put(self, folder: Path) -> None:
        """Write the workspace as it is at first."""
        for path, text in self.before.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text, "utf-8")

    def drafts(self, step: PlannedWork) -> dict[str, str]:
        """The files that the model writes in a step, with its mistake."""
        texts = {path: self.after[path] for path in step.artifacts}
        if self.mistake.path in texts:
            text = texts[self.mistake.path]
            texts[self.mistake.path] = text.replace(self.mistake.right, self.mistake.wrong)
        return texts

    def edits(self, step: PlannedWork) -> list[Edit]:
        """The edits that the model makes in files that are there already."""
        return [
            edit
            for path, text in self.drafts(step).items()
            if path in self.before
            for edit in edits_between(path, self.before[path], text)
        ]

    def repair(self) -> list[Edit]:
        """The edits that mend the mistake."""
        path = self.mistake.path
        right = self.after[path]
        return edits_between(path, right.replace(self.mistake.right, self.mistake.wrong), right)

    def check(self, folder: Path) -> None:
        """See whether the work is done: the tests pass, and the files are as they should be.

        Raises:
            NotDoneError: They are not.
        """
        found = files_in(folder)
        wrong = sorted(
            path for path in {*found, *self.after} if found.get(path) != self.after.get(path)
        )
        if wrong:
            raise NotDoneError(f"{self.title}: these files are not as expected: {', '.join(wrong)}")
        if told := _told_by_tests(tuple(sorted(self.after.items()))):
            raise NotDoneError(f"{self.title}: the tests fail:\n{told}")


@cache  # each form of the work leaves the same files
def _told_by_tests(files: tuple[tuple[str, str], ...]) -> str:
    """What the tests among these files say; empty where they pass."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in files:
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")
        tests = subprocess.run(
            [sys.executable, "-m", "unittest", "-q"],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
    passes = tests.returncode == 0 and "Ran 0 tests" not in tests.stderr
    return "" if passes else tests.stderr


def _step(
    plan: Mapping[str, object], document: Mapping[str, Mapping[str, Sequence[str]]]
) -> PlannedWork:
    def listed(key: str) -> tuple[str, ...]:
        found = plan.get(key, ())
        assert isinstance(found, list | tuple)
        return tuple(map(str, found))

    step_id = str(plan["id"])
    return PlannedWork(
        id=step_id,
        type=str(plan["type"]),
        goal=str(plan["goal"]),
        dependencies=listed("dependencies"),
        artifacts=listed("artifacts"),
        reads=tuple(document["reads"].get(step_id, ())),
        is_tested="command" in plan or step_id in document.get("tested", ()),
    )


def files_in(folder: Path) -> dict[str, str]:
    """The texts of all files below a folder, by path; byte code is left out."""
    return {
        each.relative_to(folder).as_posix(): each.read_text("utf-8")
        for each in sorted(folder.rglob("*"))
        if each.is_file() and "__pycache__" not in each.parts
    }


def edits_between(path: str, before: str, after: str) -> list[Edit]:
    """Edits that make one text of another, each with three lines around it, or more where it would
    not be unique.
    """
    old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
    for around in range(3, len(old) + 3):
        made = list(_edits(path, old, new, around))
        if all(each.old and before.find(each.old) == before.rfind(each.old) for each in made):
            return made
    return [Edit(path=path, old=before, new=after)]


def _edits(path: str, old: Sequence[str], new: Sequence[str], around: int) -> Iterator[Edit]:
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    for group in matcher.get_grouped_opcodes(around):
        first, last = group[0], group[-1]
        yield Edit(
            path=path,
            old="".join(old[first[1] : last[2]]),
            new="".join(new[first[3] : last[4]]),
        )

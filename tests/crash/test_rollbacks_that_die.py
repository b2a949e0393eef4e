"""A run that is killed anywhere is taken back, by a rollback that is killed anywhere."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from attrs import field, frozen

from crash.rollbacks import DONE, KILLED, Order
from minions.data.codec import encode

TESTS = Path(__file__).parents[1]


@frozen
class Children:
    """Carries out orders, each in a process of its own."""

    process: subprocess.Popen[str] = field()

    def ended(self, order: Order) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(encode(order)) + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()


@pytest.fixture(scope="module")
def children() -> Iterator[Children]:
    command = [sys.executable, "-m", "crash.rollbacks"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=TESTS
    ) as process:
        yield Children(process)
        assert process.stdin is not None
        process.stdin.close()


def world(folder: Path) -> Path:
    root = folder / "root"
    (root / "there").mkdir(parents=True)
    (root / "a").write_text("old a")
    (root / "a").chmod(0o640)
    (root / "b").write_bytes(b"\0old b")
    (root / "there/other").write_text("not touched")
    return root


def state(root: Path) -> Mapping[str, tuple[int, bytes]]:
    """All files and folders with mode and content, also unfinished ones."""
    return {
        str(each.relative_to(root)): (
            each.stat().st_mode,
            each.read_bytes() if each.is_file() else b"",
        )
        for each in root.rglob("*")
    }


def rolled_back(children: Children, root: Path, database: str, chance: random.Random) -> int:
    """Roll back until it comes to its end; how often it was killed before."""
    killed = 0
    while True:
        dies_at = chance.randint(1, 60) if killed < 4 else None
        order = Order(what="rollback", root=str(root), database=database, dies_at=dies_at)
        ended = children.ended(order)
        if ended == DONE:
            return killed
        assert ended == KILLED
        killed += 1


@pytest.mark.parametrize("seed", range(int(os.environ.get("MINIONS_CRASH_ROLLBACKS", "30"))))
def test_a_killed_run_is_taken_back_by_rollbacks_that_are_killed(
    children: Children, tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    root, database = world(tmp_path), str(tmp_path / "j.db")
    before = state(root)
    for what in ("run", "resume")[: 1 + seed % 2]:
        # Late enough that a first change is recorded: before it there is nothing to roll back.
        dies_at = chance.randint(6, 90) if what == "run" else None
        order = Order(what=what, root=str(root), database=database, dies_at=dies_at)
        assert children.ended(order) in (KILLED, DONE)
    rolled_back(children, root, database, chance)
    assert state(root) == before


def test_the_seeds_do_kill_runs_and_rollbacks(children: Children, tmp_path: Path) -> None:
    root, database = world(tmp_path), str(tmp_path / "j.db")
    order = Order(what="run", root=str(root), database=database, dies_at=40)
    assert children.ended(order) == KILLED
    order = Order(what="rollback", root=str(root), database=database, dies_at=3)
    assert children.ended(order) == KILLED

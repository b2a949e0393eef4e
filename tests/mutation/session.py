"""Judges the mutants of the tree that this file belongs to, which has to be a copy."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from mutation.guards import GUARDS
from mutation.judging import KILLED, SURVIVED, TIMED_OUT, Judge, Question
from mutation.mutants import Mutant
from mutation.options import Options, chosen_mutants, shown

__all__ = ["judge"]


def judge(root: Path, options: Options) -> int:
    """Print survivors as they are found, then a table.

    Returns:
        0: all were judged.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that children are ended
    begin = time.monotonic()
    questions = [_question(mutant) for mutant in chosen_mutants(root, options)]
    verdicts: dict[str, Counter[str]] = {}
    out = os.fdopen(os.dup(1), "w", buffering=1)

    def tell(question: Question, verdict: str) -> None:
        verdicts.setdefault(question.mutant.path, Counter())[verdict] += 1
        if verdict != KILLED:
            print(f"{verdict}: {shown(question.mutant)}", file=out)

    log = root / "output.txt"
    _redirect_to(log)
    files = dict.fromkeys(test for each in questions for test in each.tests)
    code = pytest.main(_arguments(root, options, list(files)), [Judge(root, questions, tell)])
    is_whole = code == pytest.ExitCode.OK
    if not is_whole:
        print(f"{log.read_text('utf-8', 'replace')[-6000:]}\nOnly so far:", file=out)
    minutes = (time.monotonic() - begin) / 60
    print(f"\n{_table(verdicts)}\n\nIn {minutes:.1f} minutes, seed {options.seed}.", file=out)
    return 0 if is_whole else 1


def _question(mutant: Mutant) -> Question:
    tests = tuple(f"tests/{each}" for each in GUARDS[mutant.path].tests)
    return Question(mutant=mutant, tests=tests)


def _arguments(root: Path, options: Options, files: Sequence[str]) -> list[str]:
    seed = f"--hypothesis-seed={options.seed}"
    return ["-x", "-q", "-s", "-p", "no:randomly", f"--rootdir={root}", seed, *files]


def _redirect_to(log: Path) -> None:
    """What tests print."""
    target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(target, 1)
    os.dup2(target, 2)


def _table(verdicts: Mapping[str, Counter[str]]) -> str:
    rows = [
        "| module | mutants | killed | timed out | survived | killed or timed out |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    total = sum(verdicts.values(), Counter[str]())
    for name, counts in (*verdicts.items(), ("all", total)):
        percent = 100 * (1 - counts[SURVIVED] / max(counts.total(), 1))
        rows.append(
            f"| {name} | {counts.total()} | {counts[KILLED]} | {counts[TIMED_OUT]} "
            f"| {counts[SURVIVED]} | {percent:.1f} % |"
        )
    return "\n".join(rows)


if __name__ == "__main__":
    sys.exit(judge(Path.cwd(), Options.read(sys.argv[1:])))

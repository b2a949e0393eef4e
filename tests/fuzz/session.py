"""A target that is given many inputs, and what was found."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Self

import attrs
from attrs import frozen

from fuzz.examination import Finding, examined, reduced
from fuzz.target import Target

__all__ = ["Session", "SessionOptions"]


@frozen(kw_only=True)
class SessionOptions:
    """What a process of its own is told."""

    target: str
    seed: int
    seconds: float
    cpu_s: float
    folder: Path
    """An empty one, for files of targets."""
    findings: Path
    """The folder for inputs that break a contract."""
    report: Path
    """The file for the figures."""
    corpus: Path | None
    """The folder with the inputs that reach new code; None: they are thrown away."""

    def text(self) -> str:
        """As `read` takes it."""
        return json.dumps(attrs.asdict(self), default=str)

    @classmethod
    def read(cls, text: str) -> Self:
        """The options of such a text."""
        told = json.loads(text)
        paths = {name: Path(told[name]) for name in ("folder", "findings", "report")}
        corpus = None if told["corpus"] is None else Path(told["corpus"])
        return cls(**{**told, **paths, "corpus": corpus})


_MOST_SHOWN = 4_000
"""Characters of a finding that are printed; the whole of it is in the folder."""


class Session:
    """Counts inputs, and keeps one finding of each cause."""

    def __init__(self, target: Target, *, cpu_s: float | None, findings: Path | None) -> None:
        """Nothing is run yet.

        Args:
            cpu_s: The most CPU time that one input may take; None: any.
            findings: The folder for inputs that break a contract; None: they are only shown.
        """
        self._target = target
        self._cpu_s = cpu_s
        self._folder = findings
        self._began = time.monotonic()
        self.inputs = 0
        self.found: dict[tuple[str, str], Finding] = {}

    def take(self, data: bytes) -> Finding | None:
        """Give the target one input; returns a finding whose cause is new."""
        self.inputs += 1
        finding = examined(self._target, data, cpu_s=self._cpu_s)
        if finding is None or finding.key in self.found:
            return None
        finding = self.found[finding.key] = reduced(self._target, finding, cpu_s=self._cpu_s)
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
            name = f"{finding.target}-{hashlib.sha256(finding.data).hexdigest()[:12]}"
            (self._folder / name).write_bytes(finding.data)
            (self._folder / f"{name}.txt").write_text(finding.words(), "utf-8", "replace")
        words = finding.words()
        shown = words if len(words) <= _MOST_SHOWN else f"{words[:_MOST_SHOWN]}…"
        print(f"\n{shown}\n".encode("utf-8", "replace").decode(), flush=True)
        return finding

    def report(self) -> Mapping[str, float]:
        """The figures of the session."""
        seconds = time.monotonic() - self._began
        return {"inputs": self.inputs, "seconds": seconds, "findings": len(self.found)}

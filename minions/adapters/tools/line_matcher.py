"""Matches regular expressions against lines of text in a process that can be killed.

`re` holds the interpreter's lock while it matches: a pattern that never ends would block every task
of this process, and no thread could stop it.
"""

from __future__ import annotations

import json
import re
import select
import subprocess
import sys
from collections.abc import Sequence
from time import monotonic
from types import TracebackType
from typing import Final, Self, cast

from minions.data.errors import ToolError
from minions.data.patterns import refuse_large_pattern, without_warnings

__all__ = ["LineMatcher"]

_WORKER: Final = """
import json, re, sys
found = re.compile(json.loads(sys.stdin.readline())).search
for line in sys.stdin:
    hits = [i for i, text in enumerate(json.loads(line)) if found(text)]
    print(json.dumps(hits), flush=True)
"""


class LineMatcher:
    """Finds the lines that match a pattern; a context manager that ends its process."""

    def __init__(self, pattern: str, *, timeout_s: float = 5.0, in_all_s: float = 20.0) -> None:
        """Check the pattern; the process is started later.

        Args:
            timeout_s: Seconds for one batch of lines.
            in_all_s: Seconds for all of them.
        Raises:
            ToolError: It is not a regular expression, or too large.
        """
        _check(pattern)
        self._pattern = pattern
        self._timeout_s = timeout_s
        self._left_s = in_all_s

    def __enter__(self) -> Self:
        # -I and -S: no installed package is needed, so that it starts in 15 ms.
        self._process = subprocess.Popen(  # noqa: S603  # this interpreter, with the text above
            [sys.executable, "-I", "-S", "-c", _WORKER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self._send(self._pattern)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.communicate()

    def matching(self, lines: Sequence[str]) -> Sequence[int]:
        """Indices of the lines that match, from 0.

        Raises:
            ToolError: It took too long; this object cannot be used any more.
        """
        self._send(lines)
        output = self._process.stdout
        assert output is not None  # noqa: S101  # a pipe was asked for
        seconds, begin = max(0.0, min(self._timeout_s, self._left_s)), monotonic()
        ready, _, _ = select.select([output], [], [], seconds)
        answer = output.readline() if ready else b""
        self._left_s -= monotonic() - begin
        if not answer:
            raise ToolError(
                f"The pattern {self._pattern[:100]!r} takes too long: {len(lines)} lines were not "
                f"searched within {seconds:.3g} s. Write it without nested repetitions and with "
                "fewer `.*`, search fewer files, or search for plain text.",
                code="slow-pattern",
            )
        return cast("list[int]", json.loads(answer))

    def _send(self, value: str | Sequence[str]) -> None:
        pipe = self._process.stdin
        assert pipe is not None  # noqa: S101  # a pipe was asked for
        pipe.write(json.dumps(value).encode() + b"\n")
        pipe.flush()


def _check(pattern: str) -> None:
    try:
        refuse_large_pattern(pattern)
        with without_warnings():
            re.compile(pattern)
    except (re.error, ValueError) as error:
        raise ToolError(
            f"{pattern[:100]!r} is not a regular expression: {error}. Escape special characters "
            "with a backslash, or search for plain text with regex=false.",
            code="bad-pattern",
        ) from error

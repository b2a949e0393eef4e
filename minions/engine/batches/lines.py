"""The lines of a batch, and the ids of their runs, by which a batch finds them again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from attrs import field, frozen

from minions.contracts.secrets import InputValue, SecretRef
from minions.data.json_values import JsonValue

_NAME_DIGITS = 12
_INDEX_DIGITS = 6
_LINE_DIGITS = 14


@frozen(kw_only=True)
class BatchLine:
    """The inputs of one run of a batch."""

    index: int
    """Number of the line among the inputs, from 0."""
    inputs: Mapping[str, InputValue]
    """The given inputs, checked; defaults are not among them."""
    place: str
    """Where the line stands, for people: `items.jsonl:7`."""
    kept: Mapping[str, InputValue] = field(factory=dict)
    """What of the line stands beside its result; no input of the run."""


def line_of(run_id: str) -> int | None:
    """The index of the line whose run of a batch has that id; None: it is of another form."""
    start = len("run_") + _NAME_DIGITS
    try:
        return int(run_id[start : start + _INDEX_DIGITS], 16)
    except ValueError:
        return None


@frozen
class RunNames:
    """The ids of a batch's runs: made of the batch's name, the line's index and its inputs.

    They are the same in each process that executes the batch, so that no line has two runs.
    """

    batch: str
    """The name of the batch, any text."""

    @property
    def start(self) -> str:
        """The start of the ids of all its runs."""
        return f"run_{_digest(self.batch)[:_NAME_DIGITS]}"

    def start_of(self, line: BatchLine) -> str:
        """The start of the ids of all runs of the line, whatever its inputs were."""
        return f"{self.start}{line.index:0{_INDEX_DIGITS}x}"

    def run_id(self, line: BatchLine) -> str:
        """The id of the run of that line with its present inputs."""
        inputs = json.dumps(
            {name: _plain(value) for name, value in line.inputs.items()},
            sort_keys=True,
            ensure_ascii=True,
        )
        return f"{self.start_of(line)}{_digest(inputs)[:_LINE_DIGITS]}"

    def session_id(self, line: BatchLine) -> str:
        """The id of the session of that run, which has no other."""
        return f"ses_{self.run_id(line).removeprefix('run_')}"


def _plain(value: InputValue) -> JsonValue:
    return value.marker if isinstance(value, SecretRef) else value


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()

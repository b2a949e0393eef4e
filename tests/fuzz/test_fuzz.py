"""Each reader of strangers' data is given inputs that nobody thought of: a few, always the same.

`make fuzz` tries very many.
"""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import Mapping
from pathlib import Path

import pytest

from fuzz.examination import examined, reduced
from fuzz.mutator import inputs_of
from fuzz.session import Session
from fuzz.target import Target
from fuzz.targets import all_targets

NAMES = (
    *("recipe", "expression", "schema", "pattern", "duration"),
    *("stream", "stream-messages", "stream-responses", "stream-gemini", "damage"),
    *("response", "failure", "output", "script", "cassette"),
    *("row", "journal", "archive", "plan", "artifacts", "outline"),
    *(
        "tool",
        "csv",
        "items",
        "parquet",
        "pdf",
        "glob",
        "url",
        "settings",
        "decision",
        "masking",
        "server",
    ),
    "weights",
)
SEED = 20


@pytest.fixture
def targets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mapping[str, Target]:
    monkeypatch.chdir(tmp_path)
    return all_targets(tmp_path)


@pytest.mark.parametrize("name", NAMES)
def test_whatever_is_read_is_taken_or_refused_as_its_reader_says(
    targets: Mapping[str, Target], name: str
) -> None:
    target = targets[name]
    with contextlib.ExitStack() as stack:
        stack.callback(target.close)
        for data in itertools.islice(_sample(target), target.few // 2):
            finding = examined(target, data, cpu_s=None)
            assert finding is None, finding.words()


def _sample(target: Target) -> itertools.chain[bytes]:
    """A few of the seeds, so that not all of the inputs are, and changes of them."""
    inputs = inputs_of(target, SEED)
    seeds = list(itertools.islice(inputs, len(target.seeds())))
    few = random.Random(SEED).sample(seeds, min(len(seeds), target.few // 8))
    return itertools.chain(few, inputs)


def test_every_target_is_tried(targets: Mapping[str, Target]) -> None:
    assert tuple(targets) == NAMES


def test_a_seed_gives_the_same_inputs_each_time(targets: Mapping[str, Target]) -> None:
    def some(seed: int) -> list[bytes]:
        return list(itertools.islice(inputs_of(targets["schema"], seed), 200))

    assert some(1) == some(1)
    assert some(1) != some(2)
    assert max(map(len, some(1))) <= targets["schema"].most_bytes


def test_what_breaks_is_found_once_and_with_the_least_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def check(data: bytes) -> None:
        assert b"x" not in data

    target = Target(name="no-x", check=check, seeds=lambda: [b"axb"])
    finding = examined(target, b"many words before x and behind it", cpu_s=None)
    assert finding is not None
    assert reduced(target, finding, cpu_s=None).data == b"x"
    session = Session(target, cpu_s=None, findings=tmp_path)
    assert session.take(b"a b c") is None
    assert session.take(b"a x c") is not None
    assert session.take(b"more x") is None
    assert (session.inputs, len(session.found)) == (3, 1)
    assert [each.read_bytes() for each in tmp_path.iterdir() if not each.suffix] == [b"x"]
    assert "python -m fuzz no-x --input eA==" in capsys.readouterr().out

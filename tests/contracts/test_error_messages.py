"""Messages of errors are whole sentences, of whatever they are put together."""

from __future__ import annotations

import pytest

from minions.contracts.calls import ModelFailure
from minions.data.errors import FailureInfo, UsageError


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("It failed: no such file..", "It failed: no such file."),
        ("It failed: 'a'.. Try again.", "It failed: 'a'. Try again."),
        ("It failed (see above).. Nothing was done..", "It failed (see above). Nothing was done."),
        ("wait...", "wait..."),
        ("'..' leads out of the workspace.", "'..' leads out of the workspace."),
        ("../a and a/.. lead out", "../a and a/.. lead out"),
        ("the range 1..9", "the range 1..9"),
        ("a_..", "a_.."),
    ],
)
def test_a_sentence_within_another_leaves_one_period(message: str, said: str) -> None:
    error = UsageError(message)
    assert (error.message, str(error), error.info().message) == (said, said, said)
    assert FailureInfo(code="c", message=message).message == said
    assert ModelFailure(code="c", message=message).info().message == said

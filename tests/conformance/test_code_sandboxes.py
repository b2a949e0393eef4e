"""Each sandbox for code does what every one does: A-50."""

from __future__ import annotations

import pytest

from minions.adapters.sandboxes.python_sandboxes import MontySandbox, ProcessSandbox
from minions.contracts.sandbox import CodeSandbox, probe_words
from minions.testing.code_sandbox_suite import *  # noqa: F403  # the tests are its names


@pytest.fixture(params=[MontySandbox, ProcessSandbox])
def sandbox(request: pytest.FixtureRequest) -> CodeSandbox:
    made: CodeSandbox = request.param()
    probes = made.probe()
    if not all(probe.ok for probe in probes):
        pytest.skip(f"{made.name} does not hold here: {probe_words(probes)}")
    return made

"""Each sandbox for commands does what every one does: A-50."""

from __future__ import annotations

import pytest

from minions.adapters.sandboxes.workspaces import BubblewrapSandbox, LandlockSandbox
from minions.contracts.sandbox import CommandSandbox, probe_words
from minions.testing.command_sandbox_suite import *  # noqa: F403  # the tests are its names


@pytest.fixture(params=[BubblewrapSandbox, LandlockSandbox])
def sandbox(request: pytest.FixtureRequest) -> CommandSandbox:
    made: CommandSandbox = request.param()
    probes = made.probe()
    if not all(probe.ok for probe in probes):
        pytest.skip(f"{made.name} does not hold here: {probe_words(probes)}")
    return made

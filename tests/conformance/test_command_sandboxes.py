"""Each sandbox for commands does what every one does: A-50."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from minions.adapters.sandboxes.workspaces import BubblewrapSandbox, LandlockSandbox
from minions.contracts.sandbox import Command, CommandSandbox, probe_words
from minions.data.errors import EnvironmentRefusedError
from minions.testing.command_sandbox_suite import *  # noqa: F403  # the tests are its names
from minions.testing.command_sandbox_suite import LIMITS


@pytest.fixture(params=[BubblewrapSandbox, LandlockSandbox])
def sandbox(request: pytest.FixtureRequest) -> CommandSandbox:
    made: CommandSandbox = request.param()
    probes = made.probe()
    if not all(probe.ok for probe in probes):
        pytest.skip(f"{made.name} does not hold here: {probe_words(probes)}")
    return made


async def test_python_in_the_workspace_is_protected_or_refused(
    sandbox: CommandSandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = tmp_path / "workspace"
    environment = workspace / "tools" / "environment"
    environment.mkdir(parents=True)
    (environment / "made.txt").write_text("x")
    monkeypatch.setattr(sys, "prefix", str(environment))
    act = (
        "echo y > tools/environment/made.txt; mv tools/environment gone; mv tools gone; "
        "rm -rf tools; mkdir -p tools/environment; echo y > tools/environment/made.txt"
    )
    command = Command(argv=("/bin/sh", "-c", act), workspace=str(workspace))
    if isinstance(sandbox, LandlockSandbox):
        with pytest.raises(EnvironmentRefusedError, match="only bubblewrap can protect it"):
            await sandbox.run(command)
        return
    await sandbox.run(command)
    assert (environment / "made.txt").read_text() == "x"


async def test_a_link_to_python_in_the_workspace_is_put_back(
    sandbox: CommandSandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    link = workspace / "environment"
    link.symlink_to(sys.base_prefix)
    monkeypatch.setattr(sys, "prefix", str(link))
    act = "rm environment; mkdir environment"
    result = await sandbox.run(
        Command(argv=("/bin/sh", "-c", act), workspace=str(workspace)), LIMITS
    )
    assert result.restored == ("environment",)
    assert link.readlink() == Path(sys.base_prefix)


async def test_python_below_tmp_is_there(
    sandbox: CommandSandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = tmp_path / "environment"
    environment.mkdir()
    (environment / "made.txt").write_text("x")
    (workspace := tmp_path / "workspace").mkdir()
    monkeypatch.setattr(sys, "prefix", str(environment))
    command = Command(argv=("cat", str(environment / "made.txt")), workspace=str(workspace))
    result = await sandbox.run(command, LIMITS)
    assert (result.exit_code, result.stdout) == (0, "x")

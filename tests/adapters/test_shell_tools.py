"""The shell tools: what a model is told, and what its commands cannot do."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from builders import result_of
from minions.adapters.sandboxes.workspaces import (
    BubblewrapSandbox,
    LandlockSandbox,
    command_sandbox,
)
from minions.adapters.tools.workspace_toolsets import shell_toolset
from minions.contracts.sandbox import (
    COMMAND_LIMITS,
    Command,
    CommandSandbox,
    SandboxLimits,
    SandboxProbe,
    SandboxResult,
    probe_words,
)
from minions.contracts.tools import Effect, ToolScope
from minions.data.errors import EnvironmentRefusedError, UsageError
from minions.data.json_values import JsonValue
from minions.data.schema import SchemaValidator, check_schema

SCOPE = ToolScope(run_id="run_1", step_id="a", call_id="call_1", idempotency_key="k")


class Unsafe(CommandSandbox):
    """A sandbox that does not hold."""

    name = "unsafe"
    help = "Nothing helps."

    def probe(self) -> Sequence[SandboxProbe]:
        return (SandboxProbe(name="a socket", ok=False, detail="was possible"),)

    async def run(self, command: Command, limits: SandboxLimits = COMMAND_LIMITS) -> SandboxResult:
        raise AssertionError("nothing runs where a probe failed")


@pytest.fixture(params=[BubblewrapSandbox, LandlockSandbox])
def sandbox(request: pytest.FixtureRequest) -> CommandSandbox:
    made: CommandSandbox = request.param()
    if not all(probe.ok for probe in made.probe()):
        pytest.skip(f"{made.name} does not hold here: {probe_words(made.probe())}")
    return made


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


def names_in(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


async def call(
    sandbox: CommandSandbox,
    root: Path,
    name: str,
    options: dict[str, JsonValue],
    **given: JsonValue,
) -> JsonValue:
    tools = shell_toolset(lambda: sandbox).open({"root": str(root), **options}, "sh")
    (tool,) = (each for each in tools if each.spec.name == f"sh__{name}")
    return await result_of(tool, given, SCOPE)


def test_both_tools_are_writes_that_are_never_repeated() -> None:
    toolset = shell_toolset()
    assert {spec.name: spec.effect for spec in toolset.specs} == {
        "run": Effect.ONCE,
        "exec": Effect.ONCE,
    }
    for spec in toolset.specs:
        check_schema(spec.parameters)
        assert spec.description


@pytest.mark.parametrize(
    ("options", "is_valid"),
    [
        ({}, True),
        ({"root": "x", "timeout_s": 0.5, "network": True, "cpus": 1, "processes": 10}, True),
        ({"timeout_s": 0}, False),
        ({"memory_mb": 1}, False),
        ({"network": "yes"}, False),
        ({"sandbox": "none"}, False),
    ],
)
def test_options_are_checked_before_anything_runs(
    options: dict[str, JsonValue], is_valid: bool
) -> None:
    assert (SchemaValidator(shell_toolset().options).errors(options) == ()) is is_valid


async def test_the_result_tells_how_the_command_ended(sandbox: CommandSandbox, root: Path) -> None:
    done = await call(sandbox, root, "run", {}, command="echo out; echo err >&2; exit 3")
    assert done == {
        "exit_code": 3,
        "output": "out\nerr\n",
        "truncated": False,
        "timed_out": False,
        "stopped": None,
        "restored": [],
        "sandbox": sandbox.name,
    }


async def test_arguments_of_a_program_are_no_shell_text(
    sandbox: CommandSandbox, root: Path
) -> None:
    done = await call(sandbox, root, "exec", {}, argv=["echo", "$HOME;", "ls"])
    assert isinstance(done, dict)
    assert done["output"] == "$HOME; ls\n"


async def test_a_timeout_is_told_with_what_was_printed(sandbox: CommandSandbox, root: Path) -> None:
    done = await call(sandbox, root, "run", {}, command="echo begun; sleep 99", timeout_s=0.8)
    assert done == {
        "exit_code": None,
        "output": "begun\n",
        "truncated": False,
        "timed_out": True,
        "stopped": "What ran in the sandbox did not end within 0.8 s; it was stopped.",
        "restored": [],
        "sandbox": sandbox.name,
    }


async def test_the_option_bounds_the_time_that_a_model_asks_for(
    sandbox: CommandSandbox, root: Path
) -> None:
    done = await call(sandbox, root, "run", {"timeout_s": 0.8}, command="sleep 99", timeout_s=99.0)
    assert isinstance(done, dict)
    assert done["timed_out"] is True


async def test_a_long_output_is_cut_in_the_middle(sandbox: CommandSandbox, root: Path) -> None:
    options: dict[str, JsonValue] = {"max_output_bytes": 256}
    done = await call(sandbox, root, "run", options, command="echo first; seq 9999; echo last")
    assert isinstance(done, dict)
    assert done["truncated"] is True
    output = str(done["output"])
    assert (output.startswith("first\n"), output.endswith("last\n")) == (True, True)
    assert len(output) < 400


async def test_what_git_and_other_tools_trust_is_as_it_was(
    sandbox: CommandSandbox, root: Path
) -> None:
    """A-149"""
    (root / ".git" / "hooks").mkdir(parents=True)
    (root / ".git" / "config").write_text("[core]\n")
    command = (
        "echo id > .git/hooks/post-checkout; printf '[core]\\nfsmonitor = id\\n' > .git/config; "
        "echo id > Makefile; echo id > conftest.py"
    )
    done = await call(sandbox, root, "run", {"allow_config": ["conftest.py"]}, command=command)
    assert isinstance(done, dict)
    assert done["restored"] == ["Makefile"]
    assert (root / ".git" / "config").read_text() == "[core]\n"
    assert names_in(root / ".git" / "hooks") == []
    assert names_in(root) == [".git", "Makefile.refused", "conftest.py"]


async def test_space_is_limited_for_all_commands_of_a_run_together(
    sandbox: CommandSandbox, root: Path
) -> None:
    opened = shell_toolset(lambda: sandbox).open({"root": str(root), "disk_mb": 20}, "sh")
    run = next(each for each in opened if each.spec.name == "sh__run")

    async def stopped(command: str) -> str | None:
        done = await result_of(run, {"command": command}, SCOPE)
        assert isinstance(done, dict)
        return str(done["stopped"]) if done["stopped"] is not None else None

    assert await stopped("head -c 12000000 /dev/zero > a") is None
    assert "of the disk" in str(await stopped("head -c 12000000 /dev/zero > b"))
    assert await stopped("rm a b") is None
    assert await stopped("head -c 12000000 /dev/zero > a") is None


async def test_a_root_that_does_not_exist_is_told(sandbox: CommandSandbox, root: Path) -> None:
    with pytest.raises(UsageError, match="is not a directory"):
        await call(sandbox, root / "none", "run", {}, command="true")


def test_without_a_sandbox_the_toolset_is_refused_with_every_probe() -> None:
    toolset = shell_toolset(lambda: command_sandbox([Unsafe()]))
    with pytest.raises(EnvironmentRefusedError) as caught:
        toolset.open({}, "shell")
    assert caught.value.error_code == "no-sandbox"
    assert caught.value.message.startswith("The toolset 'shell' runs commands. ")
    assert "unsafe: a socket NOT OK (was possible). Nothing helps." in caught.value.message


def test_the_first_sandbox_that_holds_is_taken(sandbox: CommandSandbox) -> None:
    assert command_sandbox([Unsafe(), sandbox]) is sandbox

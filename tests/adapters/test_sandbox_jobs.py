"""What a sandbox of commands hides, shows and opens: the job that its supervisor is given."""

from __future__ import annotations

import os
import stat
import sys
import tempfile
from pathlib import Path

import pytest
from attrs import evolve

from minions.adapters.sandboxes import workspaces
from minions.adapters.sandboxes.workspaces import (
    BubblewrapSandbox,
    LandlockSandbox,
    _bubblewrap_job,
    _checked_workspace,
    _landlock_job,
    _lock_of,
)
from minions.contracts.sandbox import COMMAND_LIMITS, Command, SandboxProbe
from minions.data.errors import EnvironmentRefusedError

MIB = 1024 * 1024
NETWORK = [
    *("/etc/gai.conf", "/etc/hosts", "/etc/nsswitch.conf", "/etc/protocols"),
    *("/etc/resolv.conf", "/etc/services"),
]
ETC = [
    *("/etc/alternatives", "/etc/ld.so.cache", "/etc/localtime", "/etc/mime.types"),
    "/etc/ssl/certs",
]
SYSTEM = ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"]


def command(workspace: Path, *, network: bool = False, protected: tuple[str, ...] = ()) -> Command:
    return Command(argv=("true",), workspace=str(workspace), network=network, protected=protected)


def bound(argv: list[str], how: str) -> list[str]:
    """The places that are shown in that way."""
    return [argv[at + 2] for at, word in enumerate(argv) if word == how]


@pytest.fixture
def python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a Python outside of each workspace."""
    folder = tmp_path / "python"
    folder.mkdir()
    for name in ("prefix", "base_prefix"):
        monkeypatch.setattr(sys, name, str(folder))
    return folder


@pytest.fixture
def work(tmp_path: Path, python: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


# --- the workspace --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        *("/", "/usr", "/usr/lib", "/etc", "/etc/ssl", "/dev/shm", "/proc/self", "/sys", "/home"),
        *("/root", "~", "~/.."),
    ],
)
def test_no_folder_of_the_system_or_of_all_of_a_user_is_a_workspace(
    tmp_path: Path, path: str
) -> None:
    place = Path(path).expanduser()
    link = tmp_path / "link"
    link.symlink_to(place)
    for each in (place, link):
        with pytest.raises(EnvironmentRefusedError) as refused:
            _checked_workspace(command(each))
        assert refused.value.error_code == "bad-workspace"


def test_a_folder_of_a_project_is_a_workspace_without_its_links(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "link").symlink_to("own")
    assert _checked_workspace(command(tmp_path / "link")) == str(tmp_path / "own")
    assert _checked_workspace(command(Path.home() / "project")).endswith("/project")


def test_a_lock_lies_where_no_other_user_can_put_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder = tmp_path / f"minions-locks-{os.getuid()}"
    first = _lock_of("/work")
    assert Path(first).parent == folder
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert _lock_of("/work") == first != _lock_of("/other")
    with monkeypatch.context() as other:
        other.setattr(os, "getuid", lambda: 12345)
        (tmp_path / "minions-locks-12345").mkdir()
        with pytest.raises(EnvironmentRefusedError):
            _lock_of("/work")
    folder.rmdir()
    folder.symlink_to(tmp_path)
    with pytest.raises(EnvironmentRefusedError):
        _lock_of("/work")


# --- bubblewrap -----------------------------------------------------------------------------------


@pytest.mark.parametrize("network", [False, True])
def test_what_bubblewrap_shows(work: Path, python: Path, *, network: bool) -> None:
    job = _bubblewrap_job(command(work, network=network), COMMAND_LIMITS)
    argv = job["argv"]
    assert argv is not None
    assert ("--share-net" in argv, "--unshare-all" in argv) == (network, True)
    assert job["filter"] == ("mounts-with-network" if network else "mounts")
    links = [each for each in SYSTEM if Path(each).is_symlink()]
    assert bound(argv, "--symlink") == links
    shown = [each for each in SYSTEM if each not in links]
    assert bound(argv, "--ro-bind-try") == [*shown, *ETC, *(NETWORK if network else [])]
    assert bound(argv, "--ro-bind") == [str(python)]
    assert bound(argv, "--bind") == [str(work)]
    words = " ".join(argv)
    assert f"--proc /proc --dev /dev --remount-ro /dev --size {64 * MIB} --tmpfs /dev/shm" in words
    assert f"--remount-ro / --chdir {work} --seccomp  --setenv PATH {python}/bin:" in words
    assert words.endswith('-- /bin/sh -c exec "$@" sh true')
    assert "--setenv HOME /tmp " in words


def test_a_python_of_the_system_is_shown_already(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("prefix", "base_prefix"):
        monkeypatch.setattr(sys, name, "/usr")
    argv = _bubblewrap_job(command(work), COMMAND_LIMITS)["argv"]
    assert argv is not None
    assert bound(argv, "--ro-bind") == []


@pytest.mark.parametrize(
    ("memory", "sizes"),
    [(1024, (64, 192)), (512, (32, 96)), (4096, (64, 192))],
)
def test_the_temporary_folders_are_part_of_the_memory(
    work: Path, memory: int, sizes: tuple[int, int]
) -> None:
    limits = evolve(COMMAND_LIMITS, memory_bytes=memory * MIB)
    job = _bubblewrap_job(command(work), limits)
    argv = job["argv"]
    assert argv is not None
    found = [int(argv[at + 1]) for at, word in enumerate(argv) if word == "--size"]
    assert found == [each * MIB for each in sizes]
    assert job["limits"]["memory_bytes"] == (memory - sum(sizes)) * MIB


def test_bubblewrap_is_found_where_nobody_else_writes(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for found in ("/usr/bin/bwrap", None):
        monkeypatch.setattr(workspaces, "_bubblewrap", lambda found=found: found)
        argv = _bubblewrap_job(command(work), COMMAND_LIMITS)["argv"]
        assert argv is not None
        assert argv[0] == (found or "bwrap")


def test_the_python_of_minions_in_the_workspace_stays_as_it_is(
    work: Path, python: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (work / ".venv").mkdir()
    (work / "link").symlink_to(python)
    monkeypatch.setattr(sys, "prefix", str(work / ".venv"))
    monkeypatch.setattr(sys, "base_prefix", str(work / "link"))
    job = _bubblewrap_job(command(work, protected=("own",)), COMMAND_LIMITS)
    assert job["workspace"] is not None
    assert job["workspace"]["kept"] == [".venv"]
    assert job["protected"] == ["own", "link"]
    monkeypatch.setattr(sys, "base_prefix", str(python))
    (python.parent / "outer").symlink_to(python)
    monkeypatch.setattr(sys, "prefix", str(python.parent / "outer"))
    outside = _bubblewrap_job(command(work), COMMAND_LIMITS)
    assert outside["workspace"] is not None
    assert (outside["workspace"]["kept"], outside["protected"]) == ([], [])


# --- landlock -------------------------------------------------------------------------------------


@pytest.mark.parametrize("network", [False, True])
def test_what_landlock_opens(work: Path, python: Path, *, network: bool) -> None:
    job = _landlock_job(command(work, network=network), COMMAND_LIMITS, "/home-of-it")
    assert job["filter"] == ("commands-with-network" if network else "commands")
    assert job["confinement"] == {
        "read": [*SYSTEM, str(python), *ETC, *(NETWORK if network else []), str(work)],
        "write": ["/home-of-it"],
        "devices": ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"],
        "network": network,
    }
    assert job["env"]["HOME"] == "/home-of-it"


@pytest.mark.parametrize("how", ["itself", "by a link"])
def test_landlock_cannot_protect_a_python_in_the_workspace(
    work: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    inside = work / ".venv"
    inside.mkdir()
    outside = work.parent / "outer"
    outside.symlink_to(inside)
    monkeypatch.setattr(sys, "prefix", str(inside if how == "itself" else outside))
    with pytest.raises(EnvironmentRefusedError, match="lies in the workspace") as refused:
        _landlock_job(command(work), COMMAND_LIMITS, "/home-of-it")
    assert refused.value.error_code == "no-sandbox"


# --- both -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("sandbox", [BubblewrapSandbox(), LandlockSandbox()])
async def test_a_command_is_not_run_in_a_sandbox_that_does_not_hold(
    work: Path, monkeypatch: pytest.MonkeyPatch, sandbox: BubblewrapSandbox | LandlockSandbox
) -> None:
    async def supervise(_job: object) -> None:
        raise AssertionError("it was run")

    monkeypatch.setattr(workspaces, "supervise", supervise)
    broken = [SandboxProbe(name="escapes", ok=False, detail="it could")]
    monkeypatch.setattr(type(sandbox), "probe", lambda _: broken)
    with pytest.raises(EnvironmentRefusedError):
        await sandbox.run(command(work))


@pytest.mark.parametrize("sandbox", [BubblewrapSandbox(), LandlockSandbox()])
async def test_what_a_command_did_is_told_as_of_a_command(
    work: Path, monkeypatch: pytest.MonkeyPatch, sandbox: BubblewrapSandbox | LandlockSandbox
) -> None:
    told: list[bool] = []

    async def supervise(_job: object) -> None:
        pass

    monkeypatch.setattr(workspaces, "supervise", supervise)
    monkeypatch.setattr(workspaces, "result_of", lambda *_, is_code: told.append(is_code))
    monkeypatch.setattr(type(sandbox), "require", lambda _: None)
    await sandbox.run(command(work))
    assert told == [False]

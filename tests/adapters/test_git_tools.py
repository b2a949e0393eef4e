"""The Git tools: fixed commands, of which nothing in the repository runs code outside a sandbox."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from builders import result_of
from minions.adapters.sandboxes.workspaces import BubblewrapSandbox, LandlockSandbox
from minions.adapters.tools.workspace_toolsets import git_toolset
from minions.contracts.sandbox import CommandSandbox, probe_words
from minions.contracts.tools import Effect, ToolScope
from minions.data.errors import ToolError
from minions.data.json_values import JsonValue
from minions.data.schema import SchemaValidator, check_schema

SCOPE = ToolScope(run_id="run_1", step_id="a", call_id="call_1", idempotency_key="k")


def configure(root: Path, name: str, value: str) -> None:
    subprocess.run(["git", "-C", str(root), "config", name, value], check=True)


def call_git(root: Path, *arguments: str) -> str:
    """As a person would."""
    person = ["-c", "user.name=Eva", "-c", "user.email=eva@example.com"]
    command = ["git", "-C", str(root), *person, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def changed_at(folder: Path) -> dict[str, int]:
    """When each file and folder below was changed last."""
    return {str(each): each.stat().st_mtime_ns for each in (folder, *folder.rglob("*"))}


def names_in(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


class Git:
    """The tools as a caller sees them."""

    def __init__(self, sandbox: CommandSandbox, root: Path) -> None:
        opened = git_toolset(lambda: sandbox).open({"root": str(root)}, "git")
        self._tools = {each.spec.name: each for each in opened}

    async def __call__(self, name: str, **given: JsonValue) -> str:
        done = await result_of(self._tools[f"git__{name}"], given, SCOPE)
        assert isinstance(done, dict)
        return str(done["output"])


IN_EACH_SANDBOX = pytest.mark.parametrize(
    "sandbox", [BubblewrapSandbox, LandlockSandbox], indirect=True
)
"""For what the sandbox refuses; what the tools say is the same in each."""


@pytest.fixture
def sandbox(request: pytest.FixtureRequest) -> CommandSandbox:
    """The one that the test names; else the first that holds here."""
    kinds = [request.param] if hasattr(request, "param") else [BubblewrapSandbox, LandlockSandbox]
    candidates: list[CommandSandbox] = [kind() for kind in kinds]
    for each in candidates:
        if all(probe.ok for probe in each.probe()):
            return each
    words = "; ".join(f"{each.name}: {probe_words(each.probe())}" for each in candidates)
    pytest.skip(f"no sandbox holds here: {words}")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    subprocess.run(["git", "init", "-q", "-b", "main", str(folder)], check=True)
    (folder / "a.txt").write_text("one\n")
    return folder


@pytest.fixture
def git(sandbox: CommandSandbox, root: Path) -> Git:
    return Git(sandbox, root)


def test_the_tools_say_what_they_change() -> None:
    toolset = git_toolset()
    assert {spec.name: spec.effect for spec in toolset.specs} == {
        "status": Effect.PURE,
        "diff": Effect.PURE,
        "log": Effect.PURE,
        "show": Effect.PURE,
        "add": Effect.IDEMPOTENT,
        "commit": Effect.ONCE,
    }
    for spec in toolset.specs:
        check_schema(spec.parameters)
        assert spec.description


async def test_a_change_is_seen_staged_and_committed(git: Git, root: Path) -> None:
    assert await git("status") == "## No commits yet on main\n?? a.txt\n"
    await git("add", paths=["."])
    assert "+one\n" in await git("diff", staged=True)
    await git("commit", message="Begin\n\nWith one file.")
    (root / "a.txt").write_text("two\n")
    assert "-one\n+two\n" in await git("diff")
    assert "+two" in await git("diff", revision="HEAD", paths=["a.txt"])
    assert (await git("log")).endswith(" Minions: Begin\n")
    assert "With one file." in await git("show")
    assert await git("status") == "## main\n M a.txt\n"


@pytest.mark.parametrize("revision", ["--output=x", "-p", "a b", ""])
def test_a_revision_cannot_be_an_option(revision: str) -> None:
    for spec in git_toolset().specs:
        if spec.name in ("diff", "log", "show"):
            assert SchemaValidator(spec.parameters).errors({"revision": revision})


async def test_a_path_cannot_be_an_option(git: Git, root: Path) -> None:
    await git("add", paths=["."])
    await git("commit", message="Begin")
    for name in ("diff", "log", "show"):
        await git(name, paths=["--output=made"])
    with pytest.raises(ToolError, match="--output=made"):
        await git("add", paths=["--output=made"])
    assert names_in(root) == [".git", "a.txt"]


async def test_what_git_refuses_is_told_to_the_model(git: Git) -> None:
    with pytest.raises(ToolError, match=r"git log failed: .*nosuch") as caught:
        await git("log", revision="nosuch")
    assert caught.value.error_code == "git-failed"


@IN_EACH_SANDBOX
async def test_nothing_that_the_repository_names_is_executed(git: Git, root: Path) -> None:
    await git("add", paths=["."])
    await git("commit", message="Begin")
    run = root / "run.sh"
    run.write_text(f"#!/bin/sh\ntouch {root}/executed\ncat\n")
    run.chmod(0o755)
    settings = (
        "core.fsmonitor",
        "core.pager",
        "pager.log",
        "pager.diff",
        "core.editor",
        "diff.external",
        "credential.helper",
        "gpg.program",
        "core.sshCommand",
        "core.alternateRefsCommand",
        "diff.x.command",
        "diff.x.textconv",
        "alias.status",
        "alias.log",
    )
    for name in settings:
        configure(root, name, str(run))
    for name in ("commit.gpgSign", "log.showSignature"):
        configure(root, name, "true")
    hooks = root / ".git" / "hooks"
    for hook in (
        "pre-commit",
        "commit-msg",
        "post-commit",
        "post-index-change",
        "prepare-commit-msg",
    ):
        (hooks / hook).write_text(run.read_text())
        (hooks / hook).chmod(0o755)
    (root / ".gitattributes").write_text("* diff=x\n")
    (root / "a.txt").write_text("two\n")
    await git("status")
    await git("diff")
    await git("add", paths=["."])
    await git("commit", message="Go on")
    await git("log")
    await git("show")
    assert not (root / "executed").exists()


@IN_EACH_SANDBOX
async def test_a_filter_of_the_repository_is_kept_in_the_sandbox(git: Git, root: Path) -> None:
    (root.parent / "secret.txt").write_text("sesame")
    made = root.parent / "made"
    command = f"cat ../secret.txt; touch {made}; cat"
    configure(root, "filter.x.clean", command)
    (root / ".gitattributes").write_text("*.txt filter=x\n")
    await git("add", paths=["."])
    assert "sesame" not in await git("diff", staged=True)
    assert not made.exists()


@IN_EACH_SANDBOX
async def test_a_repository_above_the_root_is_not_used(sandbox: CommandSandbox, root: Path) -> None:
    below = root / "below"
    below.mkdir()
    with pytest.raises(ToolError, match="not a git repository"):
        await Git(sandbox, below)("status")


@IN_EACH_SANDBOX
async def test_a_filter_changes_nothing_that_git_trusts(git: Git, root: Path) -> None:
    """A filter may be a program of the workspace, which a model has written (A-149)."""
    (root / "clean.sh").write_text(
        "mkdir -p .git/hooks .git/worktrees .git/objects/info sub/.git\n"
        "for f in config config.worktree commondir hooks/pre-commit info/attributes gitdir "
        "objects/info/alternates; do echo evil >> .git/$f; done 2>/dev/null\n"
        "ln -s /tmp .git/modules; mv .git other; mv .git/config .git/index.lock; cat\n"
    )
    configure(root, "filter.x.clean", "sh clean.sh")
    (root / ".gitattributes").write_text("*.txt filter=x\n")
    trusted = {
        name: (root / ".git" / name).read_text() for name in ("config", "info/exclude", "HEAD")
    }
    before = names_in(root / ".git")
    await git("add", paths=["."])
    await git("commit", message="Begin")
    assert {name: (root / ".git" / name).read_text() for name in trusted} == trusted
    written = {"index", "logs", "COMMIT_EDITMSG"}
    assert set(names_in(root / ".git")) <= {*before, *written}
    assert not (root / ".git" / "hooks" / "pre-commit").exists()
    assert not (root / ".git" / "info" / "attributes").exists()
    assert not (root / ".git" / "objects" / "info" / "alternates").exists()
    assert not (root / "sub" / ".git").exists()
    assert "Begin" in await git("log")


@IN_EACH_SANDBOX
async def test_the_tools_that_read_change_nothing_in_the_repository(git: Git, root: Path) -> None:
    await git("add", paths=["."])
    await git("commit", message="Begin")
    configure(root, "filter.x.clean", "touch .git/made .git/hooks/made; cat")
    (root / ".git" / "info" / "attributes").write_text("* filter=x\n")
    (root / "a.txt").write_text("two\n")
    before = changed_at(root / ".git")
    for name in ("status", "diff", "log", "show"):
        await git(name)
    assert changed_at(root / ".git") == before


SECRET_NAMES = (".env", "deploy.PEM", "a/.aws/credentials", "id_rsa")


@pytest.fixture
def secrets(root: Path) -> None:
    """Secrets that somebody committed, and changed since."""
    for text in ("sesame", "sesame two"):
        for name in SECRET_NAMES:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(f"{text}\n")
        (root / "a.txt").write_text(f"{text.replace('sesame', 'plain')}\n")
        (root / ".env.example").write_text("KEY=\n")
        if text == "sesame":
            call_git(root, "add", ".")
            call_git(root, "commit", "-qm", "Begin")


@pytest.mark.usefixtures("secrets")
async def test_secrets_are_neither_shown_nor_staged(git: Git, root: Path) -> None:
    shown = [
        await git("diff"),
        await git("diff", revision="HEAD"),
        await git("show"),
        await git("show", paths=["."]),
        await git("log"),
    ]
    assert "sesame" not in "".join(shown)
    assert "+plain two" in shown[0]
    assert ".env.example" in shown[2]
    await git("add", paths=["."])
    assert "sesame" not in await git("diff", staged=True)
    assert call_git(root, "diff", "--cached", "--name-only").split() == ["a.txt"]
    for name in SECRET_NAMES:
        assert "sesame" not in await git("diff", revision="HEAD", paths=[name])


@pytest.mark.usefixtures("secrets")
async def test_a_secret_is_not_shown_by_the_name_of_its_content(git: Git, root: Path) -> None:
    blob = call_git(root, "rev-parse", "HEAD:.env").strip()
    for revision in ("HEAD:.env", blob, f"{blob}..{blob}", ":.env", ":0:.env", "HEAD:./.env"):
        for name in ("show", "diff"):
            with pytest.raises(ToolError) as caught:
                await git(name, revision=revision)
            assert "sesame" not in str(caught.value)


@IN_EACH_SANDBOX
@pytest.mark.usefixtures("secrets")
async def test_a_secret_is_opened_by_its_name(sandbox: CommandSandbox, root: Path) -> None:
    opened = git_toolset(lambda: sandbox).open(
        {"root": str(root), "allow_secrets": ["id_rsa"]}, "git"
    )
    diff = next(each for each in opened if each.spec.name == "git__diff")
    done = await result_of(diff, {}, SCOPE)
    assert isinstance(done, dict)
    assert "id_rsa" in str(done["output"])
    assert ".env" not in str(done["output"])
    assert done["sandbox"] == sandbox.name


async def test_ranges_and_tags_are_revisions(git: Git, root: Path) -> None:
    for text in ("one", "two"):
        (root / "a.txt").write_text(f"{text}\n")
        await git("add", paths=["."])
        await git("commit", message=text)
    call_git(root, "tag", "first", "HEAD~1")
    assert "-one\n+two\n" in await git("diff", revision="first..HEAD")
    assert "-one\n+two\n" in await git("diff", revision="first...")
    assert "+one" in await git("show", revision="first")

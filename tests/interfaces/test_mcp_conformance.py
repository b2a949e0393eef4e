"""The official conformance suite of MCP for our client and our server.

It is a program for Node 22 or newer. `make conformance-mcp` says how to get it; without it these
tests are skipped.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from patience import HANG_S

TESTS = Path(__file__).parents[1]
FOLDER = os.environ.get("MINIONS_MCP_CONFORMANCE")
"""The folder into which the suite was installed."""

pytestmark = pytest.mark.skipif(
    FOLDER is None,
    reason="the conformance suite is not installed: `make conformance-mcp` says how to get it",
)

CLIENT = (
    *("initialize", "tools_call", "elicitation-sep1034-client-defaults", "sse-retry"),
    *("auth/metadata-default", "auth/metadata-var1", "auth/metadata-var2", "auth/metadata-var3"),
    *("auth/basic-cimd", "auth/pre-registration", "auth/resource-mismatch"),
    *("auth/scope-from-www-authenticate", "auth/scope-from-scopes-supported"),
    *("auth/scope-omitted-when-undefined", "auth/scope-step-up", "auth/scope-retry-limit"),
    *("auth/token-endpoint-auth-basic", "auth/token-endpoint-auth-post"),
    *("auth/token-endpoint-auth-none", "auth/2025-03-26-oauth-endpoint-fallback"),
    *("auth/offline-access-scope", "auth/offline-access-not-supported"),
    *("auth/client-credentials-basic", "auth/client-credentials-jwt"),
)
"""The scenarios for clients. Not among them: `auth/cross-app-access-complete-flow`, which is not
built, and `auth/2025-03-26-oauth-metadata-backcompat`, whose metadata names another issuer than
where it was found, which the SDK refuses (RFC 8414, 3.3)."""
SERVER = (
    *("server-initialize", "ping", "tools-list", "tools-call-simple-text", "tools-call-error"),
    *("tools-call-with-progress", "server-sse-multiple-streams", "dns-rebinding-protection"),
)
"""The scenarios for servers about what is offered: recipes as tools. Resources, prompts, sampling,
logging and tools that give images are not."""
RECIPES = {
    "test_simple_text": """
steps: [{id: said, set: {text: This is a simple text response for testing.}}]
output: "{{ said.text }}"
""",
    "test_error_handling": """
steps: [{id: fails, assert: "{{ false }}", message: This tool intentionally returns an error}]
""",
    "test_tool_with_progress": """
steps:
  - {id: a, tool: moment}
  - {id: b, tool: moment, depends_on: [a]}
  - {id: c, tool: moment, depends_on: [b]}
output: done
""",
}


def suite(*arguments: str) -> subprocess.CompletedProcess[str]:
    folder = Path(f"{FOLDER}") / "node_modules"
    own = folder / ".bin" / "node"  # a newer one than the machine's may lie beside the suite
    node = str(own) if own.exists() else shutil.which("node")
    assert node is not None, "the suite needs Node 22 or newer"
    program = folder / "@modelcontextprotocol" / "conformance" / "dist" / "index.js"
    environment = {**os.environ, "PYTHONPATH": f"{TESTS}:{TESTS.parent}"}
    return subprocess.run(
        [node, str(program), *arguments],
        capture_output=True,
        text=True,
        env=environment,
        timeout=HANG_S,
        cwd=FOLDER,
        check=False,
    )


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of our server."""
    folder = tmp_path_factory.mktemp("recipes")
    for name, text in RECIPES.items():
        (folder / f"{name}.yaml").write_text(f"id: {name}\n{text}")
    process = subprocess.Popen(
        [sys.executable, str(TESTS / "mcp_conformance_server.py"), str(folder)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{TESTS}:{TESTS.parent}"},
    )
    assert process.stdout is not None
    yield f"http://127.0.0.1:{process.stdout.readline().strip()}/mcp"
    process.terminate()
    process.stdout.close()
    process.wait(HANG_S)


@pytest.mark.parametrize("scenario", CLIENT)
def test_our_client_passes(scenario: str) -> None:
    """A-135."""
    command = f"{sys.executable} {TESTS / 'mcp_conformance_client.py'}"
    done = suite("client", "--command", command, "--scenario", scenario)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("scenario", SERVER)
def test_our_server_passes(url: str, scenario: str) -> None:
    """A-135."""
    done = suite("server", "--url", url, "--scenario", scenario)
    assert done.returncode == 0, done.stdout + done.stderr

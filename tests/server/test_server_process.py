"""`minions serve` as a process: how it begins, how it ends, what is left."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from forked_commands import PROGRAM, run_forked
from patience import HANG_S
from served import RECIPES
from serving import EXTENSIONS, Serving


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A project with recipes and tools."""
    here = tmp_path / "here"
    (here / "recipes").mkdir(parents=True)
    (here / ".git").mkdir()
    (here / "own.py").write_text(EXTENSIONS)
    for name, text in RECIPES.items():
        (here / "recipes" / f"{name}.yaml").write_text(text)
    (here / "recipes" / "stuck.yaml").write_text("id: stuck\nsteps: [{id: a, tool: blocks}]\n")
    return here


def serving(folder: Path, *arguments: str) -> Serving:
    return Serving(folder, "--extensions", "own.py", "--db", "j.sqlite", *arguments)


def reached(folder: Path) -> None:
    while not (folder / "reached").exists():
        time.sleep(0.01)


def refused(folder: Path, *arguments: str) -> tuple[int, str]:
    done = run_forked(
        [*PROGRAM, "serve", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_streams_and_leaves_every_run_resumable(
    folder: Path, number: signal.Signals, code: int
) -> None:
    with serving(folder) as server:
        run = server.ask("POST", "/runs", {"recipe": "waits"})
        with server.follow(f"/runs/{run['run_id']}/events") as events:
            assert next(events).type == "run_started"
            reached(folder)
            server.process.send_signal(number)
            last = list(events)[-1]
        assert server.process.wait(HANG_S) == code
        assert (last.type, last.data["status"]) == ("run_failed", "cancelled")
    (folder / "open").touch()
    resumed = run_forked(
        [
            *(*PROGRAM, "resume", run["run_id"], "--json"),
            *("--db", "j.sqlite", "--extensions", "own.py"),
        ],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=True,
    )
    assert json.loads(resumed.stdout)["output"] == "through"


def test_code_that_does_not_let_go_is_left(folder: Path) -> None:
    with serving(folder) as server:
        connection = server.connection()
        connection.request(
            "POST",
            "/api/v1/runs",
            json.dumps({"recipe": "stuck"}),
            {"Authorization": f"Bearer {server.token}", "Content-Type": "application/json"},
        )
        reached(folder)
        code, _ = server.end()
        connection.close()
        assert code == 143


def test_a_killed_server_comes_again_with_keys_events_and_runs(folder: Path) -> None:
    body, key = {"recipe": "waits"}, {"Idempotency-Key": "once"}
    with serving(folder) as server:
        run = server.ask("POST", "/runs", body, key)
        with server.follow(f"/runs/{run['run_id']}/events") as events:
            seen = [next(events) for _ in range(3)]
        reached(folder)
        server.process.kill()
    (folder / "open").touch()
    with serving(folder) as second:
        again = second.ask("POST", "/runs", body, key)
        assert again["run_id"] == run["run_id"]
        with second.follow(f"/runs/{run['run_id']}/events", seen[-1].id) as events:
            rest = list(events)
        assert rest[-1].data["data"]["response"] == "through"
        ids = [event.id for event in (*seen, *rest) if event.id is not None]
        assert ids == sorted(set(ids))
        assert second.end()[0] == 143


def test_the_token_is_kept_in_a_file_that_nobody_else_may_read(folder: Path) -> None:
    file = folder / "token"
    with serving(folder, "--token-file", "token") as server:
        token = file.read_text().strip()
        assert file.stat().st_mode & 0o777 == 0o600
        assert token not in server.line
        server.token = token
        assert server.ask("GET", "/runs")["total"] == 0
        _, err = server.end()
        assert token not in err
    with serving(folder, "--token-file", "token") as server:
        server.token = token
        assert server.ask("GET", "/runs")["total"] == 0
    file.chmod(0o644)
    assert refused(folder, "--token-file", "token")[0] == 4


def test_a_taken_port_is_refused_in_a_line(folder: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        code, err = refused(folder, "--port", str(taken.getsockname()[1]))
    assert code == 4
    assert err.startswith("error[port-taken]: The server cannot listen on 127.0.0.1:")


def test_a_folder_that_is_none_is_refused(folder: Path) -> None:
    code, err = refused(folder, "--recipes", "nowhere")
    assert (code, "no such folder" in err) == (2, True)


@pytest.mark.parametrize("words", [["serve"], ["schema", "api"]])
def test_without_the_extra_it_says_how_to_install_it(folder: Path, words: list[str]) -> None:
    program = (
        "import sys; sys.modules['litestar'] = None\n"
        "import importlib.util as u; find = u.find_spec\n"
        "u.find_spec = lambda name, *rest: None if name == 'litestar' else find(name, *rest)\n"
        "from minions.interfaces.cli.main import run_command_line\n"
        f"sys.exit(run_command_line({words}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    assert done.returncode == 4
    assert "pip install 'minions-engine[server]'" in done.stderr


@pytest.mark.parametrize(
    "words", ["import minions", "import minions.interfaces.cli.commands.serve_command"]
)
def test_the_servers_libraries_are_loaded_by_the_server_alone(words: str) -> None:
    program = f"import sys; {words}; print({{'litestar', 'uvicorn'}} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=HANG_S, check=True
    )
    assert done.stdout.strip() == "set()"


_LOADED_BY_A_RECIPE = """
import asyncio, sys
from minions.recipe.catalog import Catalog
from minions.recipe.reading.load import load_recipe_text
from minions.server import ServerOptions, create_app

async def main():
    app = create_app(ServerOptions(token="t" * 32))
    await app.start()
    before = set(sys.modules)
    load_recipe_text(sys.argv[1], "r.yaml", Catalog())
    print(sorted(set(sys.modules) - before))
    await app.aclose()

asyncio.run(main())
"""


def test_a_server_that_has_started_loads_no_module_to_check_a_recipe(tmp_path: Path) -> None:
    """A-152: where files run out later, no module can be loaded."""
    recipe = (
        "id: r\ninputs: {n: integer}\ngraph: {a: [b]}\nsteps:\n"
        "  - {id: a, set: {n: '{{ inputs.n }}'}}\n"
        "  - {id: b, goal: 'Say {{ inputs.n }}.', output: {n: integer}}\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", _LOADED_BY_A_RECIPE, recipe],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=True,
    )
    assert done.stdout == "[]\n"


def test_headers_that_are_too_long_are_refused(folder: Path) -> None:
    with serving(folder) as server:
        connection = server.connection()
        connection.request("GET", "/api/v1/health", headers={"X-Long": "x" * 100_000})
        with connection.getresponse() as response:
            assert response.status in (400, 431)
        connection.close()
        assert server.ask("GET", "/health")["status"] == "ok"


def test_a_link_opens_the_page_with_the_token_in_its_fragment(folder: Path) -> None:
    with serving(folder) as server:
        assert server.process.stdout is not None
        line = server.process.stdout.readline()
        assert line == f"open the page: {server.url}/#token={server.token}\n"

"""The examples for applications run as they stand."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import json
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from minions import ScriptedModel
from minions.app.settings.settings import Settings
from minions.data.json_values import JsonValue
from minions.server import create_app

EXAMPLES: Final = Path(__file__).parents[2] / "docs" / "examples"
SPAM: Final[dict[str, JsonValue]] = {"spam": True, "reason": "boats"}


def _imported(file: str, monkeypatch: pytest.MonkeyPatch) -> Any:  # Any: a module of any names
    spec = importlib.util.spec_from_file_location("docs_example", EXAMPLES / file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "docs_example", module)  # where type hints are looked up
    spec.loader.exec_module(module)
    return module


def _client(file: str, site: Any) -> Any:  # Any: as above
    if file.startswith("fastapi"):
        return importlib.import_module("fastapi.testclient").TestClient(site)
    from litestar.testing import TestClient

    return TestClient(site)


@pytest.fixture(params=["web_application.py", "fastapi_application.py"])
def client(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Any]:  # Any: as above
    model, journal = ScriptedModel([SPAM]), str(tmp_path / "journal.sqlite")
    site = _imported(request.param, monkeypatch).site_of(model, journal)
    with _client(request.param, site) as opened:
        yield opened


def test_a_web_application_keeps_one_object_and_answers(client: Any) -> None:  # Any: as above
    """A-129."""
    answer = client.post("/judge", json={"text": "You won a boat!"})
    assert (answer.status_code, answer.json()) == (201, SPAM)


def test_a_web_application_streams_the_events_of_a_run(client: Any) -> None:  # Any: as above
    answer = client.post("/judge/events", json={"text": "You won a boat!"})
    told = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]
    types = [json.loads(line)["type"] for line in told]
    assert (types[0], types[-1]) == ("run_started", "run_completed")


def test_a_mounted_server_answers_under_the_names_of_the_site(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ask.yaml").write_text("id: ask\nsteps: [{id: a, set: {n: 1}}]\n", "utf-8")
    example = _imported("mounted_application.py", monkeypatch)
    token = "a-token-of-the-example"
    headers = {"Authorization": f"Bearer {token}"}
    settings = Settings(no_store=True)
    monkeypatch.setattr(example, "create_app", partial(create_app, settings=settings))
    site = example.site_of(example.minions_of(token, tmp_path))
    client = importlib.import_module("fastapi.testclient").TestClient
    with client(site, base_url="https://board.example") as opened:
        assert opened.get("/").json() == {"minions": "/minions/"}
        assert "<html" in opened.get("/minions/").text
        begun = opened.post("/minions/api/v1/runs", json={"recipe": "ask"}, headers=headers)
        assert begun.status_code == 202
        events = opened.get(begun.json()["links"]["events"], headers=headers)
        assert "event: run_completed" in events.text
        page = {**headers, "Origin": "https://board.example"}
        assert opened.get("/minions/api/v1/runs", headers=page).status_code == 200
        strange = {**headers, "Host": "evil.example"}
        assert opened.get("/minions/api/v1/runs", headers=strange).status_code == 400
    unnamed = example.site_of(example.minions_of(token, tmp_path, ["localhost"]))
    with client(unnamed, base_url="https://board.example") as opened:
        refused = opened.get("/minions/api/v1/health")
        assert (refused.status_code, refused.json()["code"]) == (421, "wrong-host")


async def test_the_cells_of_the_notebook_run_in_one_running_loop() -> None:
    """A-129."""
    notebook = json.loads((EXAMPLES / "notebook.ipynb").read_text("utf-8"))
    names: dict[str, object] = {}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            text = "".join(cell["source"])
            flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
            waits = eval(compile(text, "notebook", "exec", flags=flags), names)
            if inspect.isawaitable(waits):
                await waits
    assert names["spam"] == SPAM

"""A page of another origin in a browser: it asks with a token where its origin is listed."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Final

import pytest

from serving import EXTENSIONS, Serving

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytest.importorskip("playwright.sync_api", reason="the Python package playwright is missing")

_RECIPE: Final = """
id: talks
inputs: {message: {type: string}}
steps: [{id: a, goal: "Answer the user.", memory: conversation}]
"""
_STREAM: Final = """
async ([url, token, model]) => {
  const headers = {
    Authorization: `Bearer ${token}`, 'Content-Type': 'application/json', 'X-Stainless-Lang': 'js',
  };
  const messages = [{role: 'user', content: 'Hello'}];
  const body = JSON.stringify({model, messages, stream: true});
  const answer = await fetch(`${url}/v1/chat/completions`, {method: 'POST', headers, body});
  const named = ['X-Minions-Run', 'X-Minions-Session', 'Content-Security-Policy'];
  const read = named.map((name) => answer.headers.has(name));
  return [answer.status, read, await answer.text()];
}
"""
_REFUSED: Final = """
async ([url, token, credentials]) => {
  const headers = {Authorization: `Bearer ${token}`};
  try {
    return (await fetch(`${url}/api/v1/runs`, {headers, credentials})).status;
  } catch (error) {
    return error.name;
  }
}
"""


class _Blank(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>chat</title>")

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # Any: the library's own
        """Say nothing."""


@pytest.fixture(scope="module")
def origins() -> Iterator[tuple[str, str]]:
    """Two places that serve an empty page."""
    servers = [ThreadingHTTPServer(("127.0.0.1", 0), _Blank) for _ in range(2)]
    threads = [threading.Thread(target=each.serve_forever, daemon=True) for each in servers]
    for thread in threads:
        thread.start()
    first, second = (f"http://127.0.0.1:{each.server_address[1]}" for each in servers)
    yield first, second
    for each in servers:
        each.shutdown()
        each.server_close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, origins: tuple[str, str]) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("others")
    (folder / "recipes").mkdir()
    (folder / ".git").mkdir()
    (folder / "own.py").write_text(EXTENSIONS)
    (folder / "recipes" / "talks.yaml").write_text(_RECIPE)
    with Serving(
        folder, "--extensions", "own.py", "--no-store", "--allow-origin", origins[0]
    ) as serving:
        yield serving


def _page_at(browser: Browser, origin: str) -> Page:
    page = browser.new_page()
    page.goto(origin)
    return page


def test_a_page_of_a_listed_origin_streams_an_answer(
    browser: Browser, server: Serving, origins: tuple[str, str]
) -> None:
    page = _page_at(browser, origins[0])
    status, read, text = page.evaluate(_STREAM, [server.url, server.token, "talks"])
    assert (status, read) == (200, [True, True, False])
    assert text.endswith("data: [DONE]\n\n")
    said = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    words = [each["choices"][0]["delta"].get("content") or "" for each in said]
    assert "".join(words) == "said"
    status, _, text = page.evaluate(_STREAM, [server.url, "not-the-token-of-it", "talks"])
    assert (status, json.loads(text)["error"]["code"]) == (401, "invalid_api_key")
    status, _, text = page.evaluate(_STREAM, [server.url, server.token, "none"])
    assert (status, json.loads(text)["error"]["code"]) == (404, "model_not_found")
    page.close()


def test_a_page_of_another_origin_and_one_with_cookies_read_nothing(
    browser: Browser, server: Serving, origins: tuple[str, str]
) -> None:
    for origin, credentials, found in (
        (origins[0], "omit", 200),
        (origins[0], "include", "TypeError"),
        (origins[1], "omit", "TypeError"),
    ):
        page = _page_at(browser, origin)
        asked = [server.url, server.token, credentials]
        assert page.evaluate(_REFUSED, asked) == found
        page.close()

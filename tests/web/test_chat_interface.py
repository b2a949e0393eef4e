"""A chat UI of others, Gradio's, in front of a server: it streams, follows up and shows errors."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import pytest

from serving import Serving

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Route

pytest.importorskip("playwright.sync_api", reason="the Python package playwright is missing")

from playwright.sync_api import expect

_TELLS: Final = """
from minions import ScriptedModel

def tell(prompt):
    said = [each.content for each in prompt.messages if each.role in ("user", "assistant")]
    return " / ".join(said)

answers = ScriptedModel(tell, name="scripted/answers")
"""
_RECIPES: Final = {
    "talks": 'goal: "Answer the user.", memory: conversation',
    "fails": 'assert: "1 == 2"',
}
_INTERFACE: Final = """
import sys, time, gradio
root, token, model = sys.argv[1:]
interface = gradio.load_chat(f"{root}/v1", model=model, token=token)
_, address, _ = interface.launch(
    server_name="127.0.0.1", prevent_thread_lock=True, quiet=True, show_error=True
)
print("at", address, flush=True)
sys.stdin.read()
"""


def _python() -> str:
    """The Python that has Gradio."""
    named = os.environ.get("MINIONS_GRADIO_PYTHON", sys.executable)
    program = (
        "import importlib.util as u; exit(not (u.find_spec('gradio') and u.find_spec('openai')))"
    )
    if subprocess.run([named, "-c", program], capture_output=True, check=False).returncode:
        pytest.skip("the package gradio is missing here, or in the Python MINIONS_GRADIO_PYTHON")
    return named


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    _python()  # else nothing is started
    folder = tmp_path_factory.mktemp("chat")
    (folder / "recipes").mkdir()
    (folder / ".git").mkdir()
    (folder / "own.py").write_text(_TELLS)
    for name, step in _RECIPES.items():
        text = f"id: {name}\ninputs: {{message: {{type: string}}}}\nsteps: [{{id: a, {step}}}]\n"
        (folder / "recipes" / f"{name}.yaml").write_text(text)
    with Serving(folder, "--extensions", "own.py", "--no-store") as serving:
        yield serving


def _interface(server: Serving, model: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "GRADIO_ANALYTICS_ENABLED": "False", "HF_HUB_OFFLINE": "1"}
    return subprocess.Popen(
        [_python(), "-c", _INTERFACE, server.url, server.token, model],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment,
    )


def _open(browser: Browser, interface: subprocess.Popen[str]) -> Page:
    assert interface.stdout is not None
    address = next(line.split()[1] for line in interface.stdout if line.startswith("at "))

    def stay_here(route: Route) -> None:
        is_here = urlsplit(route.request.url).hostname == "127.0.0.1"
        route.continue_() if is_here else route.abort()

    page = browser.new_page()
    page.route("**/*", stay_here)
    page.goto(address)
    return page


def _say(page: Page, text: str) -> None:
    page.get_by_role("textbox").first.fill(text)
    page.get_by_role("textbox").first.press("Enter")


def test_a_chat_ui_shows_the_answer_and_follows_up(browser: Browser, server: Serving) -> None:
    """A-185."""
    with _interface(server, "talks") as interface:
        page = _open(browser, interface)
        _say(page, "one two")
        expect(page.get_by_test_id("bot")).to_have_text("one two")
        _say(page, "three")
        expect(page.get_by_test_id("bot").last).to_have_text("one two / one two / three")
        page.close()
        interface.terminate()


def test_a_chat_ui_shows_why_a_run_failed(browser: Browser, server: Serving) -> None:
    with _interface(server, "fails") as interface:
        page = _open(browser, interface)
        _say(page, "one")
        expect(page.get_by_text("The condition '1 == 2' does not hold.")).to_be_visible()
        page.close()
        interface.terminate()

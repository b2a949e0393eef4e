"""Makes the pictures of the README and of `docs/gallery.md`, but for the trace.

`python docs/generate_pictures.py`. Those of pages need Chromium and the Python package playwright.
All show recipes of this checkout, with scripted models; ids and times differ with each execution.
"""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.text import Text

ROOT: Final = Path(__file__).parents[1]
PICTURES: Final = ROOT / "docs" / "pictures"
CHROMIUM: Final = "/usr/bin/chromium"
COMMANDS: Final = (
    "minions validate typo",
    "minions run label -p text='I was charged twice.'",
    "minions batch label tickets.csv -o labels.jsonl",
)
_STYLES: Final = (
    (r"^\$ .+", "bold"),
    (r"^ +✓.*", "green"),
    (r"^ +✗.*", "red"),
    (r"error\[.+?\]", "bold red"),
    (r"\^+ .+", "yellow"),
    (r"^(completed|help|session|results|retry|see them).*", "dim"),
)
_WIDTH: Final = 100
_FILES: Final = {
    "minions.toml": 'model = "scripted/answers.yaml"\n[prices."scripted/answers.yaml"]\n'
    "input_per_mtok = 0.5\noutput_per_mtok = 1.5\n",
    "tickets.csv": "text\nI was charged twice.\nThe page stays white.\nThank you!\n",
    "answers.yaml": "answers:\n"
    "  - {match: charged, json: {class: billing, urgent: true}}\n"
    "  - {match: white, json: {class: bug, urgent: true}}\n"
    "  - {match: Thank, json: {class: other, urgent: false}}\n",
    "recipes/label.yaml": """\
id: label
inputs: {text: string}
steps:
  - id: label
    analyze: Which class does this ticket belong to?
    input: "{{ inputs.text }}"
    output: {class: {enum: [billing, bug, other]}, urgent: boolean}
  - {id: known, assert: "label.class in ['billing', 'bug', 'other']"}
output: "{{ label }}"
""",
    "recipes/typo.yaml": """\
id: typo
inputs: {text: string}
steps:
  - id: label
    analyze: Which class does this ticket belong to?
    input: "{{ inputs.txt }}"
output: "{{ label }}"
""",
}


def terminal() -> str:
    """The commands and what they print, as SVG without a font from elsewhere."""
    console = Console(record=True, width=_WIDTH, file=io.StringIO())
    with tempfile.TemporaryDirectory() as name:
        for file, text in _FILES.items():
            path = Path(name, file)
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, "utf-8")
        for command in COMMANDS:
            console.print(_styled(f"$ {command}\n{_printed(command, Path(name))}"))
    svg = console.export_svg(title="minions", unique_id="terminal")
    return re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)


def _printed(command: str, folder: Path) -> str:
    """Progress before the result, as a terminal shows it."""
    done = subprocess.run(  # noqa: S603  # our own commands
        [sys.executable, "-m", *shlex.split(command)],
        cwd=folder,
        env=_environ(folder),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.stdout


def _environ(folder: Path) -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "MINIONS_TRUST": "1",
        "PYTHONUNBUFFERED": "1",
        "COLUMNS": str(_WIDTH),
        "MINIONS_DB": str(folder / "journal.sqlite"),
    }


def _styled(text: str) -> Text:
    shown = Text(text)
    for pattern, style in _STYLES:
        shown.highlight_regex(re.compile(pattern, re.MULTILINE), style)
    return shown


# --- the page -------------------------------------------------------------------------------------

_TOKEN: Final = "a-token-for-the-picture"  # noqa: S105  # of a server that ends here


def pages() -> dict[str, bytes]:
    """Views of the server's page, and of a page that an evaluation writes, as PNG, by file name."""
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as name, _served(Path(name)) as url:
        run_id = _ended_run(url, "repository_triage")
        _ended_run(url, "refund", {"amount": 300})  # it waits for a decision
        start = f"{url}/#token={_TOKEN}&"
        views = {
            "page.png": (f"{start}/runs/{run_id}", "completed", _DESK),
            "approvals.png": (f"{start}/approvals", "Approve", _DESK),
            "phone.png": (f"{start}/runs/{run_id}", "completed", (390, 760)),
            "evaluation.png": (_evaluation(Path(name)).as_uri(), "passed", _DESK),
        }
        with sync_playwright() as playwright:
            flags = ["--no-sandbox", "--disable-gpu"]
            browser = playwright.chromium.launch(executable_path=CHROMIUM, args=flags)
            taken: dict[str, bytes] = {}
            for file, (address, words, (width, height)) in views.items():
                window = browser.new_page(viewport={"width": width, "height": height})
                window.goto(address)
                window.get_by_text(words).first.wait_for()
                window.wait_for_timeout(500)
                taken[file] = window.screenshot()
                window.close()
            browser.close()
            return taken


_DESK: Final = (1200, 760)


def _evaluation(folder: Path) -> Path:
    """The page of an evaluation of two scripted models."""
    for file, text in _FILES.items():
        path = folder / file
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, "utf-8")
    hasty = _FILES["answers.yaml"].replace("class: bug", "class: other")
    (folder / "hasty.yaml").write_text(hasty, "utf-8")
    cases = "name,text,expected.class,expected.urgent\ntwice,I was charged twice.,billing,true\n"
    cases += "white,The page stays white.,bug,true\nthanks,Thank you!,other,false\n"
    (folder / "cases.csv").write_text(cases, "utf-8")
    models = "-m scripted/answers.yaml -m scripted/hasty.yaml"
    _printed(f"minions eval label cases.csv {models} --page evaluation.html", folder)
    return folder / "evaluation.html"


def graph() -> str:
    """A recipe's steps and what waits for what, as SVG."""
    return _printed("minions graph recipes/repository_triage.yaml -f svg", ROOT)


@contextmanager
def _served(folder: Path) -> Iterator[str]:
    """The address of a server over this checkout's recipes."""
    token = folder / "token"
    token.write_text(_TOKEN, "utf-8")
    token.chmod(0o600)
    flags = ["--port", "0", "--recipes", "recipes", "--token-file", str(token)]
    command = [sys.executable, "-m", "minions", "serve", *flags]
    environ = _environ(folder)
    server = subprocess.Popen(  # noqa: S603  # our own command
        command, cwd=ROOT, env=environ, stdout=subprocess.PIPE, text=True
    )
    try:
        line = "" if server.stdout is None else server.stdout.readline()
        yield line.split()[2]
    finally:
        server.terminate()
        server.wait()


def _ended_run(url: str, recipe: str, inputs: Mapping[str, object] | None = None) -> str:
    """The id of a run that has ended, or waits."""
    start = {"recipe": recipe, "inputs": inputs or {}}
    run_id = str(_asked(f"{url}/api/v1/runs", start)["run_id"])
    while _asked(f"{url}/api/v1/runs/{run_id}")["status"] == "running":
        time.sleep(0.1)
    return run_id


def _asked(url: str, body: object = None) -> dict[str, object]:
    headers = {"Authorization": f"Bearer {_TOKEN}", "Content-Type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(url, data, headers)) as answer:  # noqa: S310  # this machine
        found: dict[str, object] = json.load(answer)
        return found


if __name__ == "__main__":
    PICTURES.mkdir(exist_ok=True)
    (PICTURES / "terminal.svg").write_text(terminal(), "utf-8")
    (PICTURES / "graph.svg").write_text(graph(), "utf-8")
    for file, picture in pages().items():
        (PICTURES / file).write_bytes(picture)

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
from typing import Final, NamedTuple

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


class View(NamedTuple):
    """A picture to take."""

    address: str
    words: str
    """What stands there when it is whole."""
    size: tuple[int, int] = (1280, 760)
    scroll_to: str = ""
    """A heading that is to be at the top; empty: the top of the page."""


def pages() -> dict[str, bytes]:
    """Views of the server's page, and of a page that an evaluation writes, as PNG, by file name."""
    with tempfile.TemporaryDirectory() as name, _served(Path(name), ROOT) as url:
        run_id = _ended_run(url, "repository_triage")
        _ended_run(url, "refund", {"amount": 300})  # it waits for a decision
        start = f"{url}/#token={_TOKEN}&"
        return _taken(
            {
                "page.png": View(f"{start}/runs/{run_id}", "completed"),
                "approvals.png": View(f"{start}/approvals", "Approve"),
                "phone.png": View(f"{start}/runs/{run_id}", "completed", (390, 760)),
                "evaluation.png": View(_evaluation(Path(name)).as_uri(), "passed"),
            }
        )


def office() -> dict[str, bytes]:
    """Views of what goes on in a project with batches, queues and schedules."""
    with tempfile.TemporaryDirectory() as name, _served(folder := _support(Path(name))) as url:
        lines = [*_TEXTS * 12, "Hello?", *_TEXTS]  # there is no answer to that one: it fails
        (folder / "march.csv").write_text("\n".join(["text", *lines, ""]), "utf-8")
        _printed("minions batch label march.csv -o march.jsonl", folder)
        for schedule in ("morning", "cleanup"):
            _printed(f"minions schedules add recipes/{schedule}.yaml", folder)
        _printed("minions schedules pause cleanup", folder)
        _printed("minions run label -p text=Thanks! --detach --queue nightly", folder)
        for model in ("answers", "friendly"):
            command = f"minions run reply -m scripted/{model}.yaml -p text='I was charged twice.'"
            _printed(command, folder)
        ended = _asked(f"{url}/api/v1/runs?recipe=reply&status=completed")["runs"]
        other, one = (run["run_id"] for run in ended)  # type: ignore[attr-defined]  # two
        start = f"{url}/#token={_TOKEN}&"
        (batch,) = _asked(f"{url}/api/v1/batches")["batches"]  # type: ignore[misc]  # one
        with _working(folder, url):
            return _taken(
                {
                    "runs.png": View(f"{start}/runs?q=charged", "with these filters", (1280, 420)),
                    "batch.png": View(f"{start}/batches/{batch['id']}", "of 40", _LOW),
                    "work.png": View(f"{start}/work", "no living worker", _LOW),
                    "schedules.png": View(f"{start}/schedules", "paused", (1280, 400)),
                    "compare.png": View(
                        f"{start}/compare?a={one}&b={other}", "Step by step", scroll_to="Output"
                    ),
                }
            )


_LOW: Final = (1280, 600)
_TEXTS: Final = ("I was charged twice.", "The page stays white.", "Thank you!")
_HEAD, _ANSWERS = _FILES["answers.yaml"].split("\n", 1)


def _support(folder: Path) -> Path:
    """A project with recipes that answer tickets."""
    project = folder / "support"
    for file, text in (_FILES | _SUPPORT).items():
        path = project / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    (project / "recipes" / "typo.yaml").unlink()
    return project


_SUPPORT: Final = {
    "minions.toml": _FILES["minions.toml"] + '[prices."scripted/friendly.yaml"]\n'
    "input_per_mtok = 5.0\noutput_per_mtok = 15.0\n",
    "answers.yaml": f"{_HEAD}\n  - match: Write a short reply\n    text: >-\n"
    "      We have found the second charge of your order and pay it back. You will see it\n"
    "      within three days. Please write to us if it is not there by then.\n"
    + _ANSWERS
    * (len(_TEXTS) * 5),  # each answers once
    "friendly.yaml": "answers:\n  - match: Write a short reply\n    text: >-\n"
    "      We are sorry! We have found the second charge of your order and paid it back today.\n"
    "      You will see it within three working days. Please write to us if it is not there.\n",
    "recipes/reply.yaml": """\
id: reply
description: A draft of an answer to a ticket.
inputs: {text: string}
steps:
  - id: write
    goal: "Write a short reply to this ticket: {{ inputs.text }}"
output: "{{ write }}"
""",
    "recipes/morning.yaml": """\
id: morning
description: What came in since yesterday.
schedule: {cron: "0 8 * * 1-5", timezone: Europe/Zurich}
steps: [{id: count, set: {tickets: 3}}]
""",
    "recipes/cleanup.yaml": """\
id: cleanup
description: Old drafts are removed.
schedule: {cron: "30 2 * * 0", timezone: UTC}
steps: [{id: count, set: {drafts: 0}}]
""",
}


@contextmanager
def _working(folder: Path, url: str) -> Iterator[None]:
    """While a worker of the default queue lives."""
    command = [sys.executable, "-m", "minions", "worker", "--slots", "4"]
    worker = subprocess.Popen(  # noqa: S603  # our own command
        command, cwd=folder, env=_environ(folder), stdout=subprocess.DEVNULL
    )
    try:
        while not _asked(f"{url}/api/v1/workers")["workers"]:
            time.sleep(0.1)
        yield
    finally:
        worker.terminate()
        worker.wait()


def _taken(views: Mapping[str, View]) -> dict[str, bytes]:
    from playwright.sync_api import sync_playwright

    taken: dict[str, bytes] = {}
    with sync_playwright() as playwright:
        flags = ["--no-sandbox", "--disable-gpu"]
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=flags)
        for file, view in views.items():
            width, height = view.size
            window = browser.new_page(
                viewport={"width": width, "height": height}, color_scheme="light"
            )
            window.goto(view.address)
            window.get_by_text(view.words).first.wait_for()
            window.wait_for_timeout(500)
            if view.scroll_to:
                heading = window.get_by_role("heading", name=view.scroll_to).first
                heading.evaluate("each => scrollTo(0, each.getBoundingClientRect().top - 80)")
                window.wait_for_timeout(200)
            taken[file] = window.screenshot()
            window.close()
        browser.close()
    return taken


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
def _served(folder: Path, project: Path | None = None) -> Iterator[str]:
    """The address of a server over the recipes of a project, with its journal in that folder.

    Args:
        project: None: that folder.
    """
    token = folder / "token"
    token.write_text(_TOKEN, "utf-8")
    token.chmod(0o600)
    flags = ["--port", "0", "--recipes", "recipes", "--token-file", str(token)]
    command = [sys.executable, "-m", "minions", "serve", *flags]
    environ = _environ(folder)
    server = subprocess.Popen(  # noqa: S603  # our own command
        command, cwd=project or folder, env=environ, stdout=subprocess.PIPE, text=True
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
    for file, picture in (pages() | office()).items():
        (PICTURES / file).write_bytes(picture)

"""The command `minions lsp` and its surroundings: what it needs, and what does not need it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GOOD = "steps:\n  - id: one\n    goal: Say hello.\n"


def test_other_commands_load_no_protocol_of_editors(tmp_path: Path) -> None:
    recipe = tmp_path / "one.yaml"
    recipe.write_text(GOOD, "utf-8")
    code = (
        "import sys\nfrom minions.interfaces.cli.main import run_command_line\n"
        f"for words in (['--help'], ['validate', {str(recipe)!r}], ['format', {str(recipe)!r}]):\n"
        "    try:\n        run_command_line(words)\n    except SystemExit:\n        pass\n"
        "print({'pygls', 'lsprotocol'} & set(sys.modules))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "set()"


def test_without_the_extra_it_is_named(tmp_path: Path) -> None:
    code = (
        "import sys\nsys.modules['pygls'] = None\nimport importlib.util\n"
        "importlib.util.find_spec = lambda name: None\n"
        "from minions.interfaces.cli.main import run_command_line\n"
        "sys.exit(run_command_line(['lsp']))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 4
    assert "pip install 'minions-engine[lsp]'" in done.stderr


def test_the_extension_of_vs_code_starts_the_server() -> None:
    folder = ROOT / "editors" / "vscode"
    package = json.loads((folder / "package.json").read_text("utf-8"))
    command = package["contributes"]["configuration"]["properties"]["minions.command"]
    assert command["default"] == ["minions", "lsp"]
    assert command["scope"] == "machine"  # no folder names a program
    assert (folder / package["main"]).is_file()
    if (node := shutil.which("node")) is not None:
        subprocess.run([node, "--check", folder / package["main"]], check=True)

"""What models write in plans and answers: plans, artifacts, edits, source files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from fuzz.target import Target, text_of
from minions.adapters.tools.many_files import FileContent, FileEdit, ManyFileTools, outline_of
from minions.adapters.tools.text_files import FileOptions, TextFiles
from minions.app.wiring.built_in_extensions import built_in_toolsets
from minions.contracts.plan_diffs import PlanDiff, diff_plans
from minions.contracts.plans import Plan
from minions.data.errors import ToolError
from minions.data.json_values import JsonValue, dumps
from minions.data.schema import SchemaValidator
from minions.planning.plan_checks import check_plan
from minions.planning.plan_json import PlanForm, read_plan
from minions.planning.plan_recipe import recipe_document
from minions.recipe.artifacts import artifacts_of, artifacts_schema, missing_artifacts
from minions.recipe.catalog import Catalog
from minions.recipe.reading.load import check_recipe_text
from minions.recipe.text.yaml_reader import yaml_text

__all__ = ["plan_targets"]


def plan_targets(folder: Path) -> Sequence[Target]:
    """The targets.

    Args:
        folder: An empty one, for files that are changed.
    """
    return (
        Target(
            name="plan",
            check=_PlanTarget().check,
            seeds=lambda: [each.encode() for each in _PLANS],
            words=_PLAN_WORDS,
            few=120,
        ),
        Target(
            name="artifacts",
            check=_ArtifactsTarget(folder).check,
            seeds=lambda: [each.encode() for each in _ANSWERS],
            words=_ANSWER_WORDS,
            most_bytes=65_536,
            few=240,
        ),
        Target(
            name="outline",
            check=check_outline,
            seeds=_sources,
            words=(
                "def ",
                "class ",
                "@x\n",
                "async ",
                "lambda: ",
                '"""',
                "export function ",
                "fn ",
            ),
            most_bytes=65_536,
            few=180,
        ),
    )


# --- plans --------------------------------------------------------------------------------------

_PLANS: Final = (
    """PLAN: Shop
DESCRIPTION: A shop

STEP: look
TYPE: analyze
FILES: README.md, a.py:10-60
GOAL: Understand it
...

STEP: make
TYPE: generate
DEPENDENCIES: look
ARTIFACTS: shop/model.py, notes
TOOLS: look
GOAL: Make it
  in two lines

STEP: test
TYPE: validate
DEPENDENCIES: [make]
COMMAND: `make test`
GOAL: Test it
END_PLAN
""",
    (
        "Sure!\n```\n**PLAN:** x\n- **STEP:** 1. A b\n  **TYPE**: *modify*\n"
        "  FILES: `a.py` (lines 1-2)\n```"
    ),
    json.dumps(
        {
            "id": "p",
            "name": "P",
            "steps": [
                {"id": "a", "type": "generate", "goal": "G {{ x }}", "artifacts": ["a/b.py"]},
                {
                    "id": "b",
                    "type": "validate",
                    "goal": "T",
                    "dependencies": ["a"],
                    "files": ["a/b.py:outline"],
                    "command": "pytest",
                },
                {"id": "c", "type": "cleanup", "goal": "C", "files": ["a/b.py"], "tools": ["look"]},
            ],
        }
    ),
)
_PLAN_WORDS: Final = (
    *(
        "PLAN: ",
        "STEP: ",
        "TYPE: ",
        "GOAL: ",
        "FILES: ",
        "DEPENDENCIES: ",
        "ARTIFACTS: ",
        "TOOLS: ",
    ),
    *(
        "COMMAND: ",
        "NAME: ",
        "DESCRIPTION: ",
        "END_PLAN",
        "analyze",
        "generate",
        "modify",
        "validate",
    ),
    *(
        "cleanup",
        "**",
        "- ",
        "1. ",
        "```",
        "none",
        ":outline",
        ":1-2",
        "{% raw %}",
        "{{",
        "}}",
        "./",
    ),
    *(
        "files__read",
        "shell__run",
        "look",
        "*.py",
        "a/../b",
        ".git/x",
        "inputs",
        "steps",
        "feedback",
    ),
)


class _PlanTarget:
    """Texts become a plan or none; a plan without faults becomes a recipe without faults."""

    def __init__(self) -> None:
        from minions.contracts.tools import ToolSpec

        self._catalog = Catalog(
            toolsets=built_in_toolsets(),
            tools={name: ToolSpec(name=name) for name in ("look", "ask")},
        )

    def check(self, data: bytes) -> None:
        """One answer of a planner: a text, or JSON."""
        text = text_of(data)
        for answer in (text, _json(text)):
            plan = read_plan(answer)  # as `plan_tools` reads it
            if plan is not None:
                self._check_plan(plan)

    def _check_plan(self, plan: Plan) -> None:
        assert Plan.from_json(json.loads(json.dumps(plan.to_json()))).to_json() == plan.to_json()
        difference = diff_plans(plan, plan)
        assert PlanDiff.from_json(difference.to_json()) == difference
        checked = check_plan(plan, files=("README.md", "a.py"), tools=("look", "ask"))
        plan.to_text()
        if checked.faults:
            return
        for form in (PlanForm(), PlanForm(is_trusted=True, context="{{ x }}")):
            document = recipe_document(checked.plan, form)
            loaded = check_recipe_text(yaml_text(document), "plan.yaml", self._catalog)
            assert not loaded.errors, loaded.errors


def _json(text: str) -> JsonValue:
    try:
        value: JsonValue = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value


# --- answers with artifacts, and edits ----------------------------------------------------------

_ANSWERS: Final = (
    "Here:\n\n`shop/model.py`:\n```python\n# shop/model.py\nclass A: ...\n```\nStatus: passed\n",
    "a.py\n<<<<<<< SEARCH\nx = 1\n=======\nx = 2\n>>>>>>> REPLACE\n",
    '```python title="b.py"\n<<<<<<< SEARCH\n=======\nnew\n>>>>>>> REPLACE\n```\n',
    (
        '```json\n{"a": [1, 2.5], "b": null}\n```\n~~~~yaml\na: &x [1]\nb: *x\n~~~~\n'
        "```toml\na = 1979-05-27\n```"
    ),
    json.dumps({"validation": "failed", "text": "see (src/a.ts), ./b/c.md and http://x.y/z.py"}),
)
_ANSWER_WORDS: Final = (
    *(
        "```",
        "~~~",
        "```python ",
        "```yaml\n",
        "```toml\n",
        "```json\n",
        "<<<<<<< SEARCH\n",
        "=======\n",
    ),
    *(
        ">>>>>>> REPLACE\n",
        "File: a.py",
        "a.py",
        "path=",
        "Verdict: ",
        "passed",
        "failed",
        "# ",
        "<!-- ",
    ),
    *("&a [*a]", "*a", "nan", "inf", "1979-05-27T07:32:00Z", "{", "}", "[", "]", "..", "./", "**"),
)


class _ArtifactsTarget:
    """Answers have artifacts of one shape; their edits are prepared or refused."""

    def __init__(self, folder: Path) -> None:
        (folder / "a.py").write_text("x = 1\ny = 2\n", "utf-8")
        self._validator = SchemaValidator(artifacts_schema())
        self._tools = ManyFileTools(TextFiles(FileOptions(root=str(folder))))

    def check(self, data: bytes) -> None:
        """One answer: a text, or JSON with texts in it."""
        text = text_of(data)
        for output in (text, _json(text)):
            found = artifacts_of(output)
            if len(data) < 4_096:  # validating takes longer than finding
                assert self._validator.errors(found) == ()
            if output is text:
                dumps(found)
            assert isinstance(missing_artifacts(["files", "a.py"], found), list)
            self._check_changes(found)

    def _check_changes(self, found: dict[str, JsonValue]) -> None:
        files, edits = found["files"], found["edits"]
        assert isinstance(files, list)
        assert isinstance(edits, list)
        try:
            prepared = self._tools.prepare_changes(
                files=[FileContent(path=each["path"], text=each["text"]) for each in files],
                edits=[
                    FileEdit(path=each["path"], old=each["old"], new=each["new"]) for each in edits
                ],
                allowed=["*.py", "shop/**"],
            )
        except ToolError:
            return
        assert len(prepared.files) == len({each.path for each in prepared.files})


# --- source files -------------------------------------------------------------------------------


def _sources() -> Sequence[bytes]:
    package = Path(__file__).resolve().parents[2] / "minions"
    names = ("contracts/plans.py", "adapters/tools/data_toolset.py", "interfaces/server/web/app.js")
    read = [package / name for name in names]
    other = (
        b"export class A extends B {\n  async run(x) {}\n}\npub fn f() -> u8 {}\nfunc G(a int) {}\n"
    )
    return [*(each.read_bytes()[:6_000] for each in read if each.is_file()), other]


def check_outline(data: bytes) -> None:
    """An outline, whatever the file holds."""
    text = text_of(data)
    for path in ("a.py", "a.ts"):
        assert isinstance(outline_of(path, text).text, str)

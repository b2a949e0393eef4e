"""Artifacts are taken from an output deterministically: A-95."""

from __future__ import annotations

from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minions.data.json_values import JsonValue
from minions.data.schema import SchemaValidator
from minions.recipe.artifacts import artifacts_of, artifacts_schema, missing_artifacts

ANSWER: Final = """\
I changed `src/shop/models.py` and docs/guide.md, see (tests/test_models.py) as well.
Version 1.2.3 of node.js, e.g. the one from https://example.com/a/b.html, is not needed.

src/shop/models.py
```python
class Item:
    pass
```

```json
{"debug": true, "level": 3}
```

**VERDICT:** PASS, all 12 tests
"""


def test_the_artifacts_of_an_answer() -> None:
    """A-95."""
    assert artifacts_of(ANSWER) == {
        "result": ANSWER,
        "code_blocks": [
            {
                "language": "python",
                "content": "class Item:\n    pass\n",
                "path": "src/shop/models.py",
            },
            {"language": "json", "content": '{"debug": true, "level": 3}\n', "path": None},
        ],
        "files": [{"path": "src/shop/models.py", "text": "class Item:\n    pass\n"}],
        "edits": [],
        "file_paths": ["docs/guide.md", "src/shop/models.py", "tests/test_models.py"],
        "config": {"debug": True, "level": 3},
        "validation": {"passed": True, "text": "**VERDICT:** PASS, all 12 tests"},
        "is_cut": False,
    }


def test_an_answer_without_anything_has_its_text_only() -> None:
    found = artifacts_of("Nothing to do.")
    assert found.pop("result") == "Nothing to do."
    assert not any(found.values())


@pytest.mark.parametrize(
    "opening",
    [
        "```python users/models.py",
        "```users/models.py",
        "```python:users/models.py",
        '```python title="users/models.py"',
        "```python path=users/models.py",
        "```python {filename=users/models.py}",
        "~~~python users/models.py",
        "users/models.py\n```python",
        "**users/models.py**\n\n```python",
        "`users/models.py`:\n```python",
        "### users/models.py\n```python",
        "### `users/models.py`\n```python",
        "File: users/models.py\n```python",
        "1. ignored\n- **File:** `users/models.py`\n```python",
        "./users/models.py\n```python",
    ],
)
def test_a_block_belongs_to_the_path_that_is_given_with_it(opening: str) -> None:
    fence = "~~~" if "~~~" in opening else "```"
    found = artifacts_of(f"{opening}\nx = 1\n{fence}\n")
    assert found["files"] == [{"path": "users/models.py", "text": "x = 1\n"}]


@pytest.mark.parametrize("comment", ["# {}", "// {}", "<!-- {} -->", "/* {} */", "-- {}"])
def test_a_first_comment_may_name_the_path(comment: str) -> None:
    first = comment.format("users/models.py")
    found = artifacts_of(f"```\n{first}\nx = 1\n```\n")
    assert found["files"] == [{"path": "users/models.py", "text": f"{first}\nx = 1\n"}]


@pytest.mark.parametrize(
    "text",
    [
        "See users/models.py for more.\n```python\nx = 1\n```",
        "users/models.py\n\nIt has a model:\n```python\nx = 1\n```",
        "```python\n# of users/models.py\nx = 1\n```",
        "../users/models.py\n```python\nx = 1\n```",
        "/etc/passwd\n```python\nx = 1\n```",
    ],
)
def test_a_block_that_no_path_is_given_with_is_no_file(text: str) -> None:
    assert artifacts_of(text)["files"] == []


def test_a_file_without_an_extension_is_known_by_its_name() -> None:
    assert files_of("Makefile\n```make\nall:\n```") == {"Makefile": "all:\n"}
    assert files_of(".dockerignore\n```\nout\n```") == {".dockerignore": "out\n"}


def test_a_name_behind_a_fence_may_be_a_language() -> None:
    assert files_of("deploy/Dockerfile\n```Dockerfile\nFROM a\n```") == {
        "deploy/Dockerfile": "FROM a\n"
    }


def files_of(text: str) -> dict[str, str]:
    files = artifacts_of(text)["files"]
    assert isinstance(files, list)
    return {each["path"]: each["text"] for each in files}


def test_a_path_announces_one_block_only() -> None:
    found = artifacts_of("a/b.py\n```\nx\n```\n```\ny\n```\n")
    assert found["files"] == [{"path": "a/b.py", "text": "x\n"}]


def test_a_longer_fence_holds_fences() -> None:
    found = artifacts_of("````md docs/a.md\n# A\n```python\nx\n```\n````\n")
    assert found["files"] == [{"path": "docs/a.md", "text": "# A\n```python\nx\n```\n"}]


def test_the_last_block_of_a_path_counts() -> None:
    found = artifacts_of("```py a/b.py\n1\n```\nBetter:\n```py a/b.py\n2\n```\n")
    assert found["files"] == [{"path": "a/b.py", "text": "2\n"}]


def test_an_answer_that_was_cut_off_says_so() -> None:
    found = artifacts_of("```py a/b.py\n1\n")
    assert found["is_cut"] is True
    assert found["files"] == [{"path": "a/b.py", "text": "1\n"}]


EDIT: Final = """\
<<<<<<< SEARCH
x = 1
y = 2
=======
x = 2
>>>>>>> REPLACE
"""


@pytest.mark.parametrize(
    "text",
    [
        f"a/b.py\n{EDIT}",
        f"a/b.py\n```python\n{EDIT}```\n",
        f"```python a/b.py\n{EDIT}```\n",
        f"```\na/b.py\n{EDIT}```\n",
        f"I change it.\n\n### a/b.py\n\n```diff\n{EDIT}```\nDone.",
    ],
)
def test_an_edit_is_read_in_and_outside_of_fences(text: str) -> None:
    found = artifacts_of(text)
    assert found["edits"] == [{"path": "a/b.py", "old": "x = 1\ny = 2", "new": "x = 2"}]
    assert (found["files"], found["file_paths"]) == ([], ["a/b.py"])


def test_several_edits_follow_one_path_or_name_their_own() -> None:
    found = artifacts_of(f"a/b.py\n```\n{EDIT}{EDIT}c/d.py\n{EDIT}```\n")
    edits = found["edits"]
    assert isinstance(edits, list)
    assert [each["path"] for each in edits if isinstance(each, dict)] == [
        *("a/b.py", "a/b.py", "c/d.py")
    ]


def test_lines_that_are_removed_go_with_their_line_ends() -> None:
    found = artifacts_of("a/b.py\n<<<<<<< SEARCH\nx\n=======\n>>>>>>> REPLACE\n")
    assert found["edits"] == [{"path": "a/b.py", "old": "x\n", "new": ""}]


def test_an_edit_that_searches_nothing_is_a_new_file() -> None:
    found = artifacts_of("a/b.py\n<<<<<<< SEARCH\n=======\nx\n>>>>>>> REPLACE\n")
    assert found["files"] == [{"path": "a/b.py", "text": "x\n"}]


def test_an_edit_that_was_cut_off_is_none() -> None:
    found = artifacts_of("a/b.py\n<<<<<<< SEARCH\nx\n=======\ny\n")
    assert (found["edits"], found["is_cut"]) == ([], True)


@pytest.mark.parametrize(
    ("text", "paths"),
    [
        ("Look at src/a.py, docs/b.md.", ["docs/b.md", "src/a.py"]),
        ('the file "src/main.rs"!', ["src/main.rs"]),
        ("(see config/app.custom)", ["config/app.custom"]),
        ("README.md and setup.cfg", ["README.md", "setup.cfg"]),
        ("https://a.b/c.html www.a.de/b.html a@b.de/c.d", []),
        ("1.2.3 v1.2.3 e.g. i.e. and/or os.path self.name 3.14 24/7", []),
        ("../up.py /etc/passwd.txt", []),
        ("Dockerfile src/", []),
    ],
)
def test_paths_are_found_in_prose(text: str, paths: list[str]) -> None:
    assert artifacts_of(text)["file_paths"] == paths


@pytest.mark.parametrize(
    ("block", "config"),
    [
        ('```json\n{"a": 1}\n```', {"a": 1}),
        ('```\n{"a": 1}\n```', {"a": 1}),
        ("```yaml\na: 1\nb: [x]\n```", {"a": 1, "b": ["x"]}),
        ("```toml\n[a]\nb = 1\n```", {"a": {"b": 1}}),
        ("config/app.toml\n```\nb = 1\n```", {"b": 1}),
        ("```json\n[1]\n```", None),
        ("```json\n{oops\n```", None),
        ("```yaml\na: &a [*a]\n```", None),
        ("```python\nx = {}\n```", None),
        ('```json\n{"a": 1}\n```\n```json\n{"a": 2}\n```\n```json\n[]\n```', {"a": 2}),
    ],
)
def test_the_configuration_is_the_last_block_that_is_a_mapping(
    block: str, config: JsonValue
) -> None:
    assert artifacts_of(block)["config"] == config


@pytest.mark.parametrize(
    ("output", "passed"),
    [
        ("VERDICT: PASS", True),
        ("Verdict: failed, two tests", False),
        ("**Status:** ✅ passed", True),
        ("- validation_result: `FAIL`", False),
        ({"passed": True, "findings": []}, True),
        ({"verdict": "fail"}, False),
        ({"text": "VERDICT: FAIL"}, False),
        ("VERDICT: PASS\nVERDICT: FAIL", None),
        ("VERDICT: perhaps", None),
        ("All is well.", None),
        ("```\nVERDICT: PASS\n```", None),
        ("The verdict: pass", None),
    ],
)
def test_a_verdict_is_a_key_with_a_word(output: JsonValue, *, passed: bool | None) -> None:
    found = artifacts_of(output)["validation"]
    assert (found["passed"] if isinstance(found, dict) else None) is passed


def test_texts_of_a_structured_output_are_looked_through() -> None:
    found = artifacts_of({"a": ["```py a/b.py\nx\n```"], "b": "see c/d.py", "c": 1})
    assert found["files"] == [{"path": "a/b.py", "text": "x\n"}]
    assert found["file_paths"] == ["a/b.py", "c/d.py"]


def test_declared_artifacts_that_an_answer_lacks() -> None:
    found = artifacts_of(f"{ANSWER}\nc/d.py\n{EDIT}")
    assert missing_artifacts(["src/shop/models.py", "c/d.py", "config", "validation"], found) == []
    assert missing_artifacts(["docs/guide.md", "edits", "other.py"], found) == [
        *("docs/guide.md", "other.py")
    ]
    assert missing_artifacts(["config", "files"], artifacts_of("Hm.")) == ["config", "files"]


lines = st.sampled_from(
    [
        *("```", "````", "~~~", "```python a/b.py", "a/b.py", "<<<<<<< SEARCH", "=======", "x = 1"),
        *(">>>>>>> REPLACE", "VERDICT: PASS", "", "File: c.md", '{"a": 1}', "# d/e.py"),
    ]
)


@given(st.lists(lines).map("\n".join) | st.text())
def test_the_artifacts_of_any_text_are_of_the_declared_form_and_always_the_same(text: str) -> None:
    found = artifacts_of(text)
    assert not SchemaValidator(artifacts_schema()).errors(found)
    assert artifacts_of(text) == found


names = st.from_regex(r"[a-z]{1,5}/[a-z]{1,5}\.py", fullmatch=True)
contents = st.lists(st.text("abc = 1()#'", max_size=10).map(str.rstrip), max_size=5)


@given(st.dictionaries(names, contents, max_size=5))
def test_files_in_fences_are_found_as_they_are(files: dict[str, list[str]]) -> None:
    bodies = {path: "".join(f"{line}\n" for line in body) for path, body in files.items()}
    text = "\n".join(f"{path}\n```python\n{body}```" for path, body in bodies.items())
    assert artifacts_of(text)["files"] == [
        {"path": path, "text": body} for path, body in bodies.items()
    ]

"""`minions validate --output-format`: the same faults for programs."""

from __future__ import annotations

import json
from typing import cast

from command_line import Cli, Write
from minions.data.json_values import JsonValue

BAD = "id: bad\nsteps:\n  - {id: a, set: {x: '{{ inputs.no }}'}}\n  - {id: b, goal: x, ouput: {}}\n"


def test_annotations_name_file_line_and_column_and_encode_what_would_break_them(
    cli: Cli, write: Write
) -> None:
    write("r,1.yaml", BAD)
    done = cli("validate", "r,1.yaml", "--output-format", "github")
    assert done.code == 2
    first, second = done.out.splitlines()
    assert first == (
        "::error file=r%2C1.yaml,line=3,col=26,endColumn=34,title=unknown-reference::"
        "unknown input 'no'; help: no inputs are declared"
    )
    assert second == (
        "::error file=r%2C1.yaml,line=4,col=22,endColumn=26,title=unknown-key::"
        "unknown key 'ouput' in a goal step; did you mean 'output'?"
    )


def test_sarif_has_a_rule_for_each_code_and_a_region_for_each_fault(cli: Cli, write: Write) -> None:
    write("r.yaml", BAD)
    done = cli("validate", "r.yaml", "--output-format", "sarif")
    assert json.loads(done.out)["$schema"].endswith("/sarif-2.1.0.json")
    assert done.code == 2
    (run,) = cast("list[dict[str, JsonValue]]", done.json["runs"])
    driver = cast("dict[str, dict[str, JsonValue]]", run["tool"])["driver"]
    assert driver["rules"] == [{"id": "unknown-reference"}, {"id": "unknown-key"}]
    results = cast("list[dict[str, JsonValue]]", run["results"])
    assert [result["ruleIndex"] for result in results] == [0, 1]
    assert results[0]["locations"] == [
        {
            "physicalLocation": {
                "artifactLocation": {"uri": "r.yaml"},
                "region": {"startLine": 3, "startColumn": 26, "endColumn": 35},
            }
        }
    ]


def test_a_sound_recipe_has_no_results(cli: Cli, write: Write) -> None:
    write("r.yaml", "id: r\nsteps: [{id: a, set: {x: 1}}]\n")
    assert cli("validate", "r.yaml", "--output-format", "github").out == ""
    assert '"results": []' in cli("validate", "r.yaml", "--output-format", "sarif").out
    assert cli("validate", "r.yaml", "--output-format", "json").json == {
        "recipes": [{"recipe": "r.yaml", "ok": True, "faults": []}]
    }


def test_a_pattern_that_cannot_be_compiled_is_a_fault_with_its_place(
    cli: Cli, write: Write
) -> None:
    write(
        "big.yaml",
        'id: big\ninputs:\n  a: {type: string, pattern: "a{99999999999}"}\n'
        "steps:\n  - {id: s, goal: x, completion: {mode: text, patterns: ['a{99999999999}']}}\n",
    )
    done = cli("validate", "big.yaml")
    assert done.code == 2
    assert "big.yaml:3" in done.err + done.out
    assert "big.yaml:5" in done.err + done.out
    assert "the repetition number is too large" in done.err + done.out

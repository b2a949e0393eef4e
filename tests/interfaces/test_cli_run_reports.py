"""`minions run --junit` and its annotations, as continuous integration reads them."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from command_line import Cli, Write
from minions.contracts.executions import AgentResult, RunStatus, StepExecution, StepStatus
from minions.data.errors import FailureInfo, JournalError
from minions.engine.run.agent_run import AgentRun
from minions.interfaces.cli.console.junit_reports import junit_xml, run_annotations, run_suite
from minions.recipe.model import AgentRecipe
from patience import HANG_S

INNER = """
id: inner
inputs: {n: {type: integer}}
steps:
  - {id: check, assert: ["inputs.n < 2"]}
output: "{{ inputs.n }}"
"""
OUTER = """
id: outer
steps:
  - {id: first, set: {n: 1}}
  - id: each
    recipe: inner.yaml
    with: {n: "{{ loop.item }}"}
    loop: [1, 2]
  - {id: maybe, set: {n: 1}, when: "false"}
  - {id: last, set: {n: "{{ each }}"}}
"""


@pytest.fixture(autouse=True)
def _outside_of_a_workflow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)


def suite_in(path: str) -> ElementTree.Element:
    suite = ElementTree.parse(path).getroot().find("testsuite")
    assert suite is not None
    return suite


def cases_in(path: str) -> dict[str, str]:
    """What became of each case, by its name."""
    return {
        case.attrib["name"]: next((each.tag for each in case), "passed")
        for case in suite_in(path).iter("testcase")
    }


def test_each_step_is_a_case_and_a_step_within_has_its_address(cli: Cli, write: Write) -> None:
    write("inner.yaml", INNER)
    write("outer.yaml", OUTER)
    outcome = cli("run", "outer.yaml", "--junit", "report.xml")
    assert outcome.code == 1
    assert cases_in("report.xml") == {
        "first": "passed",
        "each": "failure",
        "each[0]": "passed",
        "each[0]/check": "passed",
        "each[1]": "failure",
        "each[1]/check": "failure",
        "last": "skipped",
        "maybe": "skipped",
    }
    suite = suite_in("report.xml")
    counts = {name: suite.attrib[name] for name in ("tests", "failures", "errors", "skipped")}
    assert counts == {"tests": "8", "failures": "3", "errors": "0", "skipped": "2"}
    assert suite.attrib["name"] == "outer"


def test_a_failure_has_message_category_code_and_place(cli: Cli, write: Write) -> None:
    write("inner.yaml", INNER)
    write("outer.yaml", OUTER)
    cli("run", "outer.yaml", "--junit", "report.xml")
    case = next(
        case for case in suite_in("report.xml") if case.attrib.get("name") == "each[1]/check"
    )
    failure = case[0]
    assert "inputs.n < 2" in failure.attrib["message"]
    assert failure.attrib["type"] == "contract"
    assert (failure.text or "").startswith("error[assertion-failed]: ")
    assert float(case.attrib["time"]) >= 0


def test_a_skipped_step_says_why(cli: Cli, write: Write) -> None:
    write("r.yaml", "id: r\nsteps:\n  - {id: a, set: {n: 1}, when: 'false'}\n")
    cli("run", "r.yaml", "--junit", "report.xml")
    skipped = suite_in("report.xml").find("testcase/skipped")
    assert skipped is not None
    assert "condition" in skipped.attrib["message"]


def test_a_failure_in_spite_of_which_the_run_completed_is_no_failure_of_the_report(
    cli: Cli, write: Write
) -> None:
    write(
        "r.yaml",
        "id: r\nsteps:\n  - {id: a, assert: ['1 > 2'], optional: true}\n  - {id: b, set: {n: 1}}\n",
    )
    outcome = cli("run", "r.yaml", "--junit", "report.xml", "--annotations")
    assert outcome.code == 0
    assert cases_in("report.xml") == {"a": "skipped", "b": "passed"}
    assert "::warning file=r.yaml,line=3,title=assertion-failed::" in outcome.out
    assert "::error" not in outcome.out


def test_a_run_that_a_limit_ended_has_an_error_although_no_step_failed(
    cli: Cli, write: Write
) -> None:
    write(
        "r.yaml",
        "id: r\nlimits: {max_steps: 1}\nsteps:\n"
        "  - {id: a, set: {n: 1}}\n  - {id: b, set: {n: 1}}\n",
    )
    outcome = cli("run", "r.yaml", "--junit", "report.xml")
    assert outcome.code == 5
    assert cases_in("report.xml")["r"] == "error"
    assert suite_in("report.xml").attrib["errors"] == "1"


def test_a_run_that_waits_for_a_person_is_an_error_of_the_report(cli: Cli, write: Write) -> None:
    write("r.yaml", "id: r\nsteps:\n  - {id: who, ask: 'Who?'}\n")
    outcome = cli("run", "r.yaml", "--approve", "wait", "--junit", "report.xml")
    assert outcome.code == 3
    error = suite_in("report.xml").find("testcase/error")
    assert error is not None
    assert error.attrib["type"] == "permission"


def test_a_run_whose_journal_fails_has_a_report_with_the_error(
    cli: Cli, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(self: AgentRun) -> AgentResult[object]:
        raise JournalError("The disk is full.", code="disk-full")

    write("r.yaml", "id: r\nsteps:\n  - {id: a, set: {n: 1}}\n")
    monkeypatch.setattr(AgentRun, "execute", broken)
    outcome = cli("run", "r.yaml", "--junit", "report.xml")
    assert outcome.code != 0
    assert cases_in("report.xml") == {"r": "error"}


@pytest.mark.parametrize("name", ["nowhere/report.xml", ".", "r.yaml/report.xml"])
def test_a_file_that_cannot_be_written_is_refused_before_the_run(
    cli: Cli, write: Write, name: str
) -> None:
    write("r.yaml", "id: r\nsteps:\n  - {id: a, set: {n: 1}}\n")
    outcome = cli("run", "r.yaml", "--junit", name)
    assert outcome.code == 4
    assert "error[junit-file]" in outcome.err
    assert "Nothing was started" in outcome.err
    assert cli("sessions", "list", "--json").out.strip() in ("[]", "")


def test_the_report_takes_the_place_of_an_older_one_as_a_whole(
    cli: Cli, write: Write, here: Path
) -> None:
    write("r.yaml", "id: r\nsteps:\n  - {id: a, set: {n: 1}}\n")
    write("real.xml", "old")
    (here / "real.xml").chmod(0o640)
    (here / "report.xml").symlink_to("real.xml")
    cli("run", "r.yaml", "--junit", "report.xml")
    assert cases_in("real.xml") == {"a": "passed"}
    assert (here / "report.xml").is_symlink()
    assert stat.S_IMODE((here / "real.xml").stat().st_mode) == 0o640
    assert not list(here.glob(".*part-*"))


def test_a_dry_run_writes_no_report(cli: Cli, write: Write, here: Path) -> None:
    write("r.yaml", "id: r\nsteps:\n  - {id: a, set: {n: 1}}\n")
    outcome = cli("run", "r.yaml", "--dry-run", "--junit", "report.xml")
    assert outcome.code == 2
    assert not (here / "report.xml").exists()


# --- annotations ----------------------------------------------------------------------------------


def test_in_a_workflow_the_innermost_failure_is_annotated_at_its_step(
    cli: Cli, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    write("inner.yaml", INNER)
    write("outer.yaml", OUTER)
    lines = [line for line in cli("run", "outer.yaml").out.splitlines() if line.startswith("::")]
    assert len(lines) == 1
    assert lines[0].startswith("::error file=")
    assert "inner.yaml,line=5,title=assertion-failed::step 'each[1]/check' of" in lines[0]


def test_no_annotations_without_a_workflow_or_where_they_are_not_wanted(
    cli: Cli, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("r.yaml", "id: r\nsteps:\n  - {id: a, assert: ['1 > 2']}\n")
    assert "::" not in cli("run", "r.yaml").out
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    assert "::error" in cli("run", "r.yaml").out
    assert "::" not in cli("run", "r.yaml", "--no-annotations").out


def test_annotations_are_never_mixed_into_json(cli: Cli, write: Write) -> None:
    write("r.yaml", "id: r\nsteps:\n  - {id: a, assert: ['1 > 2']}\n")
    outcome = cli("run", "r.yaml", "--json", "--annotations")
    assert outcome.json["status"] == "failed"
    assert "::error file=r.yaml,line=3," in outcome.err
    events = cli("run", "r.yaml", "--events", "--annotations")
    assert all(json.loads(line) for line in events.out.splitlines())


def test_the_faults_of_a_refused_recipe_are_annotated(cli: Cli, write: Write) -> None:
    write("r.yaml", "id: r\nsteps:\n  - {id: a, sett: {n: 1}}\n")
    outcome = cli("run", "r.yaml", "--annotations")
    assert outcome.code == 2
    assert outcome.out.startswith("::error file=r.yaml,line=3,")


def failed(text: str) -> AgentResult[object]:
    """A run with that text wherever an application may put its own."""
    step_id = text.replace("~", "").replace("/", "")
    error = FailureInfo(code=text, message=text, where=text)
    step: StepExecution[object] = StepExecution(
        id=f"run_1/{step_id}/1/0",
        step_id=step_id,
        status=StepStatus.FAILED,
        error=error,
        reason=text,
    )
    return AgentResult(
        run_id=text,
        session_id=text,
        recipe_id=text,
        status=RunStatus.FAILED,
        executions=(step,),
        step_ids={step_id: 0},
        error=error,
    )


@given(st.text(st.characters(codec=None), min_size=1))
def test_no_character_breaks_the_xml_or_adds_a_line_to_an_annotation(text: str) -> None:
    result = failed(text)
    root = ElementTree.fromstring(junit_xml([run_suite(result)]))
    assert [each.tag for each in root.iter("failure")] == ["failure"]
    for line in run_annotations(result, AgentRecipe(id="r", steps=())):
        assert not {"\n", "\r"} & set(line)


INTERRUPTING = """
import asyncio, os, signal
from minions import tool

@tool()
async def interrupt() -> str:
    '''Ctrl-C, while the step works.'''
    os.kill(os.getpid(), signal.SIGINT)
    await asyncio.sleep(3_600)
    return ""
"""


def test_a_cancelled_run_has_a_report(write: Write, here: Path) -> None:
    write("own.py", INTERRUPTING)
    write("r.yaml", "id: r\nsteps:\n  - {id: a, set: {n: 1}}\n  - {id: b, tool: interrupt}\n")
    command = "-m minions run r.yaml --extensions own.py --junit report.xml --db r.sqlite"
    done = subprocess.run(
        [sys.executable, *command.split()],
        cwd=here,
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    assert done.returncode == 130, done.stderr
    assert cases_in(str(here / "report.xml")) == {"a": "passed", "b": "failure"}

"""`approve`, `reject`, `answer` and `--approve`: what a person decides at the command line."""

from __future__ import annotations

from pathlib import Path

import pytest
from attrs import evolve

from command_line import Cli, Write
from minions.app.runs.deciders import TerminalDecider, decider_for
from minions.contracts.decision_types import ApprovalRequest, NoAnswer, Question, Rejection, Verdict
from minions.data.errors import UsageError
from minions.data.json_values import JsonValue

TOOLS = """
from minions import tool

@tool(effect="once")
def send(to: str) -> str:
    '''Sends.'''
    return f"sent to {to}"
"""
RECIPE = """
id: mail
permissions: {allow_write: true, requires_approval: [send]}
steps:
  - {id: who, ask: "To whom?", form: {type: string, minLength: 2}}
  - {id: mail, tool: send, params: {to: "{{ who }}"}}
output: "{{ mail }}"
"""
STORE = ("--db", "j.db", "--extensions", "own.py")


@pytest.fixture(autouse=True)
def _files(write: Write) -> None:
    write("own.py", TOOLS)
    write("mail.yaml", RECIPE)


def test_a_run_waits_for_an_answer_and_then_for_consent(cli: Cli, here: Path) -> None:
    """A-71: under `wait` it ends with 3 and continues after each decision."""
    first = cli("run", "mail.yaml", "--approve", "wait", *STORE)
    assert first.code == 3
    assert "it asks: To whom?" in first.err
    assert "minions answer run_" in first.err.splitlines()[-1]
    refused = cli("answer", "run_", "x", *STORE)
    assert refused.code == 2
    assert "'x' is no answer to that question: $: 'x' is too short" in refused.err
    second = cli("answer", "run_", "who", "Ada", *STORE)
    assert second.code == 3
    assert 'send({"to":"Ada"}) needs approval' in second.err
    assert "minions approve run_" in second.err.splitlines()[-1]
    third = cli("approve", "run_", "send", *STORE)
    assert (third.code, third.out) == (0, "sent to Ada\n")
    assert "bound to these arguments" in third.err


def test_a_rejected_call_fails_the_run(cli: Cli, here: Path) -> None:
    cli("run", "mail.yaml", "--approve", "wait", *STORE)
    cli("answer", "run_", "Ada", *STORE)
    done = cli("reject", "run_", *STORE)
    assert done.code == 1
    assert "error[approval-denied]" in done.err


def test_the_reason_of_a_rejection_is_told_and_shown(cli: Cli, here: Path) -> None:
    """A-118."""
    cli("run", "mail.yaml", "--approve", "wait", *STORE)
    cli("answer", "run_", "Ada", *STORE)
    done = cli("reject", "run_", "send", "--reason", "Ada is on leave", *STORE)
    assert "it was rejected: Ada is on leave. It was not called." in done.err
    shown = cli("sessions", "show", "run_", "--db", "j.db")
    assert 'rejected: send({"to":"Ada"}) · Ada is on leave' in shown.out


def test_an_approval_may_edit_the_arguments(cli: Cli, here: Path) -> None:
    """A-118."""
    cli("run", "mail.yaml", "--approve", "wait", *STORE)
    cli("answer", "run_", "Ada", *STORE)
    refused = cli("approve", "run_", "--arguments", '{"to": 7}', *STORE)
    assert (refused.code, "error[bad-arguments]" in refused.err) == (2, True)
    done = cli("approve", "run_", "--arguments", '{"to": "Bob"}', *STORE)
    assert (done.code, done.out) == (0, "sent to Bob\n")
    shown = cli("sessions", "show", "run_", "--db", "j.db")
    assert 'approved: send({"to":"Ada"}) · edited to {"to":"Bob"}' in shown.out


def test_off_a_terminal_nobody_consents_unless_all_is_said(
    cli: Cli, write: Write, here: Path
) -> None:
    """A-71: `deny` is the default."""
    write("mail.yaml", RECIPE.replace("  - {id: who, ask", "  # ").replace("{{ who }}", "Ada"))
    denied = cli("run", "mail.yaml", *STORE)
    assert (denied.code, "error[approval-denied]" in denied.err) == (1, True)
    allowed = cli("run", "mail.yaml", "--approve", "all", *STORE)
    assert (allowed.code, allowed.out) == (0, "sent to Ada\n")


def test_a_decision_about_nothing_says_what_waits(cli: Cli, here: Path) -> None:
    cli("run", "mail.yaml", "--approve", "wait", *STORE)
    done = cli("approve", "run_", *STORE)
    assert done.code == 2
    assert "waits for these decisions (approval): none." in done.err
    assert "It waits for other ones:\n  step 'who' asks: " in done.err
    assert ": minions answer run_" in done.err


EACH = """
id: mails
permissions: {allow_write: true, requires_approval: [send]}
steps:
  - {id: who, ask: "To whom, beside {{ loop.item }}?", loop: [Ada, Bob]}
  - {id: mail, tool: send, params: {to: "{{ loop.item }}"}, loop: [Cy, Di], depends_on: [who]}
output: "{{ who.results }}"
"""


def test_a_decision_is_named_by_its_address_where_several_wait(
    cli: Cli, write: Write, here: Path
) -> None:
    """A-115: the printed commands are the shortest that work."""
    write("mails.yaml", EACH)
    first = cli("run", "mails.yaml", "--approve", "wait", *STORE)
    lines = [line.split() for line in first.err.splitlines() if line.startswith("  minions")]
    assert [line[1:2] + line[3:] for line in lines] == [
        ["answer", "'who[0]'", "VALUE", *STORE],
        ["answer", "'who[1]'", "VALUE", *STORE],
    ]
    run = lines[0][2]
    assert 8 <= len(run) <= 10  # `run_4cb6`, not the whole id
    both = cli("answer", run, "who", "x", *STORE)
    assert "'who' means 2 of them." in both.err
    assert "  who[1]: step 'who[1]' asks: To whom, beside Bob?" in both.err
    second = cli("answer", run, "who[1]", "Eve", *STORE)
    assert [line for line in second.err.splitlines() if line.startswith("  minions")] == [
        f"  minions answer {run} VALUE {' '.join(STORE)}"
    ]
    third = cli("answer", run, "Flo", *STORE)
    assert f"  minions approve {run} 'mail[0]'" in third.err
    assert "step 'mail[1]' needs" not in third.err
    fourth = cli("approve", run, "mail[0]", *STORE)
    assert 'approve: send({"to":"Cy"}) in step \'mail[0]\' needs approval' in fourth.err
    done = cli("reject", run, "--reason", "no", *STORE)
    assert (done.code, "loop-failed" in done.err) == (1, True)


# --- at the terminal -----------------------------------------------------------------------------

REQUEST = ApprovalRequest(
    key="mail/1/0/call/1/approval",
    run_id="run_1",
    step_id="mail",
    tool="send",
    arguments='{"to":"Ada"}',
    digest="d",
)


def typed(*lines: str) -> tuple[TerminalDecider, list[str]]:
    """Somebody who types these lines."""
    waiting, said = iter(lines), list[str]()
    return TerminalDecider(said.append, lambda: next(waiting, "")), said


@pytest.mark.parametrize(
    ("line", "verdict"),
    [
        ("y\n", Verdict.APPROVED),
        ("YES\n", Verdict.APPROVED),
        ("\n", Verdict.REJECTED),
        ("what?\n", Verdict.REJECTED),
        ("", Verdict.LATER),
    ],
)
async def test_only_a_clear_yes_is_consent(line: str, verdict: Verdict) -> None:
    decider, said = typed(line)
    assert await decider.approve(REQUEST) is verdict
    assert said[:2] == ["step 'mail' wants to call send with", '  {"to":"Ada"}']


async def test_who_consents_is_told_what_a_model_made_of_the_arguments() -> None:
    """A-155."""
    decider, said = typed("y\n")
    await decider.approve(evolve(REQUEST, filled=("to", "text")))
    assert said[2] == "  made by a model: to, text"


async def test_who_says_no_is_asked_for_the_reason() -> None:
    """A-118."""
    decider, said = typed("n\n", "not on a Friday\n")
    assert await decider.approve(REQUEST) == Rejection("not on a Friday")
    assert said[-1] == "why not? (empty: no reason) "
    silent, _ = typed("n\n", "\n")
    assert await silent.approve(REQUEST) is Verdict.REJECTED


async def test_an_answer_is_asked_for_until_it_fits() -> None:
    form: dict[str, JsonValue] = {"type": "integer", "enum": [1, 2]}
    question = Question(key="k", run_id="run_1", step_id="s", text="One or two?", form=form)
    decider, said = typed("three\n", "2\n")
    assert await decider.answer(question) == 2
    assert said[1] == "  (one of 1, 2)"
    assert len([line for line in said if line.startswith("'three' is no answer")]) == 1


ORDER: dict[str, JsonValue] = {
    "type": "object",
    "properties": {
        "color": {"type": "string", "title": "Colour", "description": "Of the lamp\u202e."},
        "count": {"type": "integer", "default": 1},
        "size": {"type": "string", "oneOf": [{"const": "s", "title": "small"}, {"const": "l"}]},
        "gift": {"type": "boolean", "title": "Gift"},
        "note": {"type": "string"},
    },
    "required": ["color", "count", "gift"],
}


def order(*, can_decline: bool = True) -> Question:
    return Question(
        key="k", run_id="r", step_id="s", text="Which?", form=ORDER, can_decline=can_decline
    )


async def test_a_form_is_asked_for_field_by_field_until_each_fits() -> None:
    """A-135."""
    decider, said = typed("red\n", "\n", "small\n", "perhaps\n", "yes\n", "\n")
    answer = await decider.answer(order())
    assert answer == {"color": "red", "count": 1, "size": "s", "gift": True}
    assert "  color (Colour): Of the lamp\\u202e.\n    text: " in said
    assert "  count\n    whole number [1]: " in said
    assert "  gift\n    yes or no: " in said  # its title says nothing more
    assert "  size\n    one of s, l (s = small), optional: " in said
    assert "  'perhaps' is not of type 'boolean'" in said


@pytest.mark.parametrize(
    ("lines", "answer"),
    [
        (['{"color": "red", "gift": true}\n'], {"color": "red", "gift": True, "count": 1}),
        (["red\n", "/decline\n"], NoAnswer.DECLINED),
        (["red\n", ""], NoAnswer.LATER),
    ],
)
async def test_a_form_takes_one_object_and_may_be_declined(
    lines: list[str], answer: JsonValue | NoAnswer
) -> None:
    """A-135."""
    decider, _ = typed(*lines)
    assert await decider.answer(order()) == answer


async def test_only_a_question_of_a_tool_is_declined() -> None:
    """A-135."""
    decider, said = typed("/decline\n", "\n", "\n", "no\n", "\n")
    answer = await decider.answer(order(can_decline=False))
    assert answer == {"color": "/decline", "count": 1, "gift": False}
    assert not any("declines" in line for line in said)
    text = Question(key="k", run_id="r", step_id="s", text="Who?", can_decline=True)
    assert await typed("/decline\n")[0].answer(text) is NoAnswer.DECLINED


async def test_an_empty_line_is_the_default_and_no_line_at_all_is_no_answer() -> None:
    question = Question(
        key="k", run_id="run_1", step_id="s", text="Who?", default="Ada", has_default=True
    )
    decider, _ = typed("\n")
    assert await decider.answer(question) == "Ada"
    gone, _ = typed("")
    assert await gone.answer(question) is NoAnswer.LATER


def test_a_policy_that_is_none_is_refused() -> None:
    with pytest.raises(UsageError, match="approve='maybe' is no policy"):
        decider_for("maybe", print)


@pytest.mark.parametrize(
    ("given", "output"), [("-5", "-5\n"), ("-1.5e3", "-1500.0\n"), ("-.5", "")]
)
def test_an_answer_may_be_a_negative_number(
    cli: Cli, write: Write, here: Path, given: str, output: str
) -> None:
    write("n.yaml", "steps: [{id: n, ask: How many?, form: {type: number}}]\noutput: '{{ n }}'")
    cli("run", "n.yaml", *STORE)
    done = cli("answer", "run_", "n", given, "--approve", "deny", *STORE)
    if output:
        assert (done.code, done.out) == (0, output), done.err
    else:
        assert "No such option" in done.err


def test_a_wrong_option_of_answer_is_told_as_such(cli: Cli, here: Path) -> None:
    done = cli("answer", "run_", "n", "5", "--modle", "x")
    assert (done.code, "No such option" in done.err) == (2, True)
    done = cli("answer", "run_", "n", "-5", "--modle", "x")
    assert (done.code, "No such option" in done.err) == (2, True)


QUEUED = ("--db", "j.db")


def test_a_queued_run_is_decided_without_the_code_that_its_workers_have(cli: Cli) -> None:
    run_id = cli("run", "mail.yaml", "--detach", *STORE).out.strip()
    work = ("worker", "--once", "--approve", "wait", *STORE)
    assert cli(*work).code == 0
    answered = cli("answer", run_id, "Ada", *QUEUED)
    assert (answered.code, answered.out) == (0, f"{run_id}\n")
    assert "code is not" not in answered.err
    cli(*work)
    edited = cli("approve", run_id, "--arguments", '{"to": "Bo"}', *QUEUED)
    assert (edited.code, "Unknown tool 'send'" in edited.err or "send" in edited.err) == (2, True)
    approved = cli("approve", run_id, "--as", "Eva", *QUEUED)
    assert approved.code == 0
    assert cli("approve", run_id, *QUEUED).code == 2  # nothing waits any more
    cli(*work)
    assert cli("resume", run_id, *STORE).out == "sent to Ada\n"


def test_a_queued_run_that_nobody_here_could_execute_is_rejected(cli: Cli) -> None:
    run_id = cli("run", "mail.yaml", "--detach", *STORE).out.strip()
    work = ("worker", "--once", "--approve", "wait", *STORE)
    cli(*work)
    cli("answer", run_id, "Ada", *QUEUED)
    cli(*work)
    here = cli("reject", run_id, "--no-detach", *QUEUED)
    assert (here.code, "code is not" in here.err) == (2, True)
    assert cli("reject", run_id, "--reason", "no", *QUEUED).code == 0
    cli(*work)
    assert "failed" in cli("sessions", "list", *QUEUED).out

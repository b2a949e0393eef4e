"""Runs under kills and faults: what can happen twice or be lost, in the shortest story."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Final

import pytest

from minions import Extensions, StepScope, step, tool
from minions.data.errors import UsageError
from minions.data.json_values import JsonValue
from minions.testing.crash_findings import CrashReport, FindingKind
from minions.testing.crash_stories import CrashStory
from minions.testing.recipe_runner import RecipeCrasher


@tool(effect="once")
def pay(amount: int) -> str:
    """Pay."""
    raise AssertionError("a double is called instead")


@tool
def mail(text: str) -> str:
    """Send a mail."""
    raise AssertionError("a double is called instead")


@tool(effect="idempotent")
def book(text: str) -> str:
    """Book."""
    raise AssertionError("a double is called instead")


@tool(effect="pure")
def look(n: int) -> int:
    """Look."""
    raise AssertionError("a double is called instead")


TOOLS = (pay, mail, book, look)
FEW: Final = 60
"""Stories: all with one fault, and some with two."""


def _recipe(steps: str, head: str = "") -> str:
    return f"id: shop\npermissions: {{allow_write: true}}\n{head}\nsteps:\n{steps}"


def _codes(report: CrashReport) -> dict[tuple[str, str], str]:
    return {(f.kind.value, f"{f.step} {f.tool}".strip()): str(f.story) for f in report.findings}


def test_the_shortest_story_that_doubles_an_effect_is_found_and_replays(
    crash_recipe: RecipeCrasher,
) -> None:
    """A-183."""
    recipe = _recipe(
        "  - {id: seen, tool: look, params: {n: 1}}\n"
        "  - {id: told, tool: mail, params: {text: 'It is {{ seen }}.'}}\n"
    )
    report = crash_recipe(recipe, tools=TOOLS, results={"look": 3}, stories=FEW)
    (doubled,) = [each for each in report.findings if each.kind is FindingKind.DOUBLED]
    assert (doubled.step, doubled.tool) == ("told", "mail")
    assert str(doubled.story) == "lost-answer@2"
    assert "idempotency_key" in doubled.advice
    again = crash_recipe(recipe, tools=TOOLS, results={"look": 3}, story=doubled.story)
    assert (doubled.kind, doubled.step, doubled.tool) in {
        (each.kind, each.step, each.tool) for each in again.findings
    }
    assert again.moments == doubled.moments
    assert sum("has its effect" in moment.what for moment in again.moments) == 2
    calm = crash_recipe(recipe, tools=TOOLS, results={"look": 3}, story="")
    assert not calm.findings, calm


# --- each kind of finding ------------------------------------------------------------------------


def test_a_call_that_counts_each_time_is_in_doubt_and_doubled_by_a_retry(
    crash_recipe: RecipeCrasher,
) -> None:
    report = crash_recipe(
        _recipe("  - {id: paid, tool: pay, params: {amount: 3}}\n"), tools=TOOLS, stories=FEW
    )
    found = _codes(report)
    assert set(found) == {("effect-in-doubt", "paid pay"), ("effect-doubled", "paid pay")}
    assert found["effect-in-doubt", "paid pay"].startswith("kill")
    assert found["effect-doubled", "paid pay"] == "no-tool-answer@1 retry@1"


@pytest.mark.parametrize("place", range(1, 14))
def test_a_worker_that_stood_still_calls_nothing_that_another_has_called(
    crash_recipe: RecipeCrasher, place: int
) -> None:
    """Wherever it stops, it looks whether the run is still its own before it calls."""
    recipe = _recipe("  - {id: paid, tool: pay, params: {amount: 3}}\n")
    report = crash_recipe(recipe, tools=TOOLS, story=f"stall@{place}")
    assert {each.kind for each in report.findings} <= {FindingKind.IN_DOUBT}


def test_an_effect_under_a_key_is_doubled_where_the_run_goes_back_over_it(
    crash_recipe: RecipeCrasher,
) -> None:
    recipe = _recipe(
        "  - {id: booked, tool: book, params: {text: lamp}}\n"
        "  - {id: seen, tool: look, params: {n: 1}, depends_on: [booked], "
        "on_error: {goto: booked, max: 2}}\n",
        "limits: {max_tool_call_retries: 0}",
    )
    report = crash_recipe(recipe, tools=TOOLS, results={"look": 1}, stories=FEW)
    assert _codes(report) == {("effect-doubled", "booked book"): "tool-down@2"}
    (finding,) = report.findings
    assert "goes back" in finding.advice


def test_an_effect_is_lost_where_a_model_may_finish_in_spite_of_its_failure(
    crash_recipe: RecipeCrasher,
) -> None:
    recipe = _recipe(
        "  - {id: told, goal: Book it., tools: [book], completion: text, tool_failure: report}\n",
        "limits: {max_tool_call_retries: 0}",
    )
    call: JsonValue = {"name": "book", "arguments": {"text": "lamp"}}
    answers: list[JsonValue] = [{"tool_calls": [call]}, {"text": "Booked."}]
    report = crash_recipe(recipe, tools=TOOLS, answers=answers, stories=200)
    found = _codes(report)
    assert found["effect-lost", "told book"] == "tool-down@1"
    # Retried, the model begins anew, and what it had booked is booked under another key.
    assert found == {**found, ("effect-doubled", "told book"): "retry@1 refused@2"}
    assert len(found) == 2


def test_an_approval_is_asked_again_where_the_run_goes_back_over_it(
    crash_recipe: RecipeCrasher,
) -> None:
    recipe = _recipe(
        "  - {id: ready, ask: 'Ready?'}\n"
        "  - {id: seen, tool: look, params: {n: 1}, depends_on: [ready], "
        "on_error: {goto: ready, max: 2}}\n",
        "limits: {max_tool_call_retries: 0}",
    )
    report = crash_recipe(recipe, tools=TOOLS, results={"look": 1}, stories=FEW)
    assert _codes(report) == {("approval-asked-again", "ready"): "tool-down@1"}
    (finding,) = report.findings
    asked = [each.what for each in finding.moments if each.who == "person"]
    assert asked == ["answers (ready)"] * 2


def test_a_story_shows_each_approval_of_a_call(crash_recipe: RecipeCrasher) -> None:
    head = "id: shop\npermissions: {allow_write: true, requires_approval: [pay]}\nsteps:\n"
    recipe = f"{head}  - {{id: paid, tool: pay, params: {{amount: 3}}}}\n"
    report = crash_recipe(recipe, tools=TOOLS, stories=FEW)
    (finding,) = [each for each in report.findings if each.kind is FindingKind.ASKED_AGAIN]
    asked = [(each.what, each.to) for each in finding.moments if each.who == "person"]
    approved = ("approves (paid)", "pay")
    assert asked == [approved, ("retries the failed run", None), approved]


@pytest.mark.parametrize("most", [20, 10])  # a run without faults uses 12
def test_a_budget_is_exceeded_where_paid_answers_are_lost(
    crash_recipe: RecipeCrasher, most: int
) -> None:
    recipe = _recipe(
        "  - {id: said, goal: Say a word., completion: text}\n", f"limits: {{max_tokens: {most}}}"
    )
    report = crash_recipe(recipe, answers=[{"text": "word"}], stories=FEW)
    (finding,) = report.findings
    assert (finding.kind, finding.step) == (FindingKind.BUDGET, "")
    assert str(finding.story).startswith("kill")
    assert finding.what.startswith(
        f"The run spends more than it may: 24 were used of max_tokens: {most}, and the run counts "
        "12"
    )
    paid = [each.what for each in finding.moments if "tokens" in each.what]
    assert paid == ["is answered by the model, which counts 12 tokens"] * 2


def test_a_read_that_takes_something_away_is_not_repeatable(crash_recipe: RecipeCrasher) -> None:
    queue = iter(range(10_000_000))

    @tool(effect="pure")
    def next_job() -> int:
        """The next job."""
        return next(queue)

    recipe = _recipe("  - {id: job, tool: next_job}\n")
    report = crash_recipe(recipe, tools=[next_job], real_tools=True, stories=FEW)
    assert _codes(report) == {("read-not-repeatable", "job next_job"): "lost-answer@1"}
    (finding,) = report.findings
    first, lost, second = [each.what for each in finding.moments if each.to == "next_job"]
    assert lost == "gets no answer: the connection broke"
    assert int(first.removeprefix("reads ")) + 1 == int(second.removeprefix("reads "))
    assert not crash_recipe(
        recipe, tools=[next_job], stories=FEW
    ).findings  # its double cannot know


OFFER = """
  - {id: begun, uses: begin}
  - {id: seen, tool: look, params: {n: 1}}
  - {id: ended, uses: end, with: {begun: "{{ begun }}"}}
"""


@step
async def begin(scope: StepScope) -> str:
    """Open an offer."""
    return scope.now().isoformat()


@step
async def end(begun: str, scope: StepScope) -> str:
    """Take an offer that holds for thirty seconds."""
    if scope.now() > datetime.fromisoformat(begun) + timedelta(seconds=30):
        raise TimeoutError("the offer is over")
    return "taken"


def test_a_run_whose_code_cannot_wait_for_another_process_ends_otherwise(
    crash_recipe: RecipeCrasher,
) -> None:
    extensions = Extensions(steps={"begin": begin, "end": end}, tools=TOOLS)
    with pytest.raises(UsageError, match="is code of yours"):
        crash_recipe(_recipe(OFFER), extensions=extensions)
    own = Extensions(steps={"begin": begin, "end": end}, tools=(look,))
    report = crash_recipe(
        _recipe(OFFER), results={"look": 1}, extensions=own, real_tools=True, stories=FEW
    )
    (finding,) = report.findings
    assert finding.kind is FindingKind.OTHER_END
    assert str(finding.story).startswith("stall@")


# --- what does not happen ------------------------------------------------------------------------


def _ten_steps() -> str:
    steps = [
        "  - {id: s0, goal: Say., output: {text: string}}\n",
        *(f"  - {{id: s{n}, tool: look, params: {{n: {n}}}}}\n" for n in range(1, 6)),
        *(
            f"  - {{id: s{n}, tool: book, params: {{text: 'Seen {{{{ s{n - 4} }}}}.'}}}}\n"
            for n in (6, 7)
        ),
        "  - {id: s8, goal: 'Sum up {{ s0.text }}.', output: {text: string}}\n",
        "  - {id: s9, tool: book, params: {text: '{{ s8.text }}'}}\n",
    ]
    return _recipe("".join(steps))


def test_a_recipe_whose_effects_have_keys_has_no_findings(crash_recipe: RecipeCrasher) -> None:
    report = crash_recipe(_ten_steps(), tools=TOOLS, stories=150)
    assert not report.findings, report


def test_the_same_seed_gives_the_same_report_byte_for_byte(crash_recipe: RecipeCrasher) -> None:
    recipe = _recipe("  - {id: paid, tool: pay, params: {amount: 3}}\n")
    first, second, other = (
        crash_recipe(recipe, tools=TOOLS, stories=60, seed=seed) for seed in (7, 7, 8)
    )
    assert (text := json.dumps(first.to_json())) == json.dumps(second.to_json())
    assert "sequenceDiagram" in text
    # Both play all stories with one fault.
    assert (
        _codes(first)["effect-in-doubt", "paid pay"]
        == (_codes(other)["effect-in-doubt", "paid pay"])
    )


# --- stories -------------------------------------------------------------------------------------


def test_a_story_is_text_and_back() -> None:
    text = "429-seconds@1 lost-answer@2 kill@7"
    assert str(CrashStory.parse(text)) == text


@pytest.mark.parametrize("word", ["kil@7", "kill", "kill@0", "kill@x"])
def test_a_word_that_is_no_event_is_refused(word: str) -> None:
    with pytest.raises(UsageError) as caught:
        CrashStory.parse(word)
    assert caught.value.error_code == "bad-story"


def test_a_story_is_shrunk_until_nothing_can_be_left_out_or_come_earlier() -> None:
    story = CrashStory.parse("kill@9 stall@4 lost-answer@3 retry@1")

    def shows(other: CrashStory) -> bool:
        kills = [event.at for event in other.events if str(event).startswith("kill@")]
        return any(at >= 5 for at in kills) and "lost-answer" in str(other)

    assert str(story.shrunk(shows)) == "lost-answer@1 kill@5"


@pytest.mark.parametrize(
    ("long", "shortest"),
    [
        ("lost-answer@1 retry@1 tool-down@4", "retry@1 tool-down@3"),
        ("lost-answer@1 tool-down@5 retry@1 lost-answer@2", "retry@1 tool-down@3"),
        ("kill@2 retry@1 tool-down@4", "retry@1 tool-down@3"),
    ],
)
def test_what_only_moves_the_place_of_something_else_is_left_out_of_a_story(
    long: str, shortest: str
) -> None:
    def shows(other: CrashStory) -> bool:
        words = str(other).split()
        again = sum(word.startswith(("lost-answer", "kill")) for word in words)  # calls more
        return "retry@1" in words and f"tool-down@{3 + again}" in words

    story = CrashStory.parse(long)
    assert str(story.shrunk(shows)) == shortest


def test_a_run_that_fails_when_nothing_goes_wrong_is_refused(crash_recipe: RecipeCrasher) -> None:
    recipe = _recipe("  - {id: told, goal: Say., output: {n: integer}}\n")
    with pytest.raises(UsageError) as caught:
        crash_recipe(recipe, answers=[{"fail": "server"}])
    assert caught.value.error_code == "crash-test-fails"

"""`minions watch`: a sample of runs is scored beside them, and worse ones raise an alarm."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest

from command_line import Cli, Write
from minions.app.evaluating.live_scores import is_sampled
from minions.evaluation.statistics import difference_of_groups, rate_interval

OWN: Final = """
from minions import Effect, Message, ModelCallResponse, ScriptedModel, tool
from minions.guide import TokenUsage

def answer(prompt):
    text = prompt.messages[-1].content
    if "Grade the answer" in text:
        said = '{"reason": "short", "grade": %s}' % (0.2 if "bad" in text else 0.9)
    else:
        said = text.splitlines()[-1]
    usage = TokenUsage(input_tokens=10, output_tokens=5, cost_usd=0.01)
    return ModelCallResponse(message=Message(role="assistant", content=said), usage=usage)

own = ScriptedModel(answer, name="scripted/own")

@tool(effect=Effect.PURE)
def fails(output: str) -> bool:
    '''Fails.'''
    raise RuntimeError("no such thing")

@tool(effect=Effect.PURE)
def odd(output: str) -> str:
    '''Says no number.'''
    return "yes"
"""
RECIPE: Final = """
id: echo
model: scripted/own
inputs: {text: string}
watch: %s
steps: [{id: a, goal: "{{ inputs.text }}", completion: text}]
"""
GOOD: Final = "{sample: 100%, scorers: [{holds: \"output != 'bad'\"}]}"


class Bench:
    """A recipe with runs."""

    def __init__(self, cli: Cli, write: Write) -> None:
        self.cli = cli
        self.write = write
        write("own.py", OWN)
        self.count = 0

    def recipe(self, watch: str = GOOD) -> None:
        self.write("echo.yaml", RECIPE % watch)

    def run(self, *texts: str) -> None:
        self.count += 1
        name = f"lines{self.count}.jsonl"
        self.write(name, "".join(json.dumps({"text": each}) + "\n" for each in texts))
        done = self.cli("batch", "echo.yaml", name, "--extensions", "own.py", "-j", "1")
        assert done.code == 0, done.err

    def watch(self, *more: str) -> dict[str, Any]:
        done = self.cli("watch", "echo.yaml", "--extensions", "own.py", "--json", *more)
        assert done.code in (0, 1), done.err
        found = done.json
        assert (done.code == 1) == found["alarm"]
        return dict(found)


@pytest.fixture
def bench(cli: Cli, write: Write) -> Bench:
    bench = Bench(cli, write)
    bench.recipe()
    return bench


def newest_run(bench: Bench) -> str:
    (newest, *_) = json.loads(bench.cli("sessions", "list", "--json").out)
    return str(newest["run_id"])


def test_each_run_of_the_sample_is_scored_once(bench: Bench) -> None:
    bench.run("good", "bad")
    first = bench.watch()
    assert (first["sampled"], first["new"], first["alarm"]) == (2, 2, False)
    assert bench.watch()["new"] == 0
    bench.run("another")
    assert bench.watch()["new"] == 1


def test_a_score_stands_beside_its_run(bench: Bench) -> None:
    bench.run("bad")
    assert bench.watch("--no-scoring")["new"] == 0
    bench.watch()
    run_id = newest_run(bench)
    shown = bench.cli("sessions", "show", run_id)
    assert "holds output != 'bad': 0" in shown.out, shown.out


def test_runs_that_got_worse_are_an_alarm(bench: Bench) -> None:
    bench.recipe("{sample: 1, window: 12, scorers: [{holds: \"output != 'bad'\"}]}")
    bench.run(*[f"good {number}" for number in range(24)])
    (before,) = bench.watch()["scorers"]
    assert (before["scored"], before["alarm"], before["recent"][0]) == (24, False, 1.0)
    assert before["compared"] == 12
    bench.run(*["bad"] * 9)
    (after,) = bench.watch()["scorers"]
    assert (after["alarm"], after["recent"][0], after["before"][0]) == (True, 0.25, 1.0)
    assert after["change"][2] < 0
    said = bench.cli("watch", "echo.yaml", "--extensions", "own.py")
    assert (said.code, "ALARM holds output" in said.out) == (1, True)
    assert "25% (9% to 53%) of the newest 12 of 33 scored runs pass" in " ".join(said.out.split())


def test_gauges_are_written_for_prometheus(bench: Bench) -> None:
    bench.run("good", "bad")
    bench.watch("--metrics", "watch.prom")
    text = Path("watch.prom").read_text("utf-8")
    own = f'project="{Path.cwd()}",recipe="echo"'
    labels = f"""{{{own},scorer="holds output != 'bad'"}}"""
    assert f"minions_watch_pass_rate{labels} 0.5\n" in text
    assert f"minions_watch_alarm{labels} 0.0\n" in text
    assert f"minions_watch_scored_runs{labels} 2.0\n" in text
    refused = bench.cli("watch", "echo.yaml", "--metrics", "no/such/folder.prom")
    assert (refused.code, "error[unwritable-file]" in refused.err) == (4, True)


def test_few_runs_are_no_alarm(bench: Bench) -> None:
    bench.recipe("{sample: 1, at_least: 0.9, scorers: [{holds: \"output != 'bad'\"}]}")
    bench.run(*["bad"] * 9)
    assert bench.watch()["alarm"] is False
    bench.run("bad again", "bad")
    assert bench.watch()["alarm"] is True


def test_a_scorer_that_fails_harms_only_its_own_score(bench: Bench) -> None:
    bench.recipe('{sample: 1, scorers: [{tool: fails}, {tool: odd}, {holds: "true"}]}')
    bench.run("good")
    failing, odd, holding = bench.watch()["scorers"]
    assert (failing["scored"], failing["failed"], failing["recent"]) == (0, 1, None)
    assert (odd["failed"], holding["recent"][0]) == (1, 1.0)
    shown = bench.cli("sessions", "show", newest_run(bench)).out
    assert "tool fails: no score: it raised RuntimeError: no such thing" in shown
    assert bench.watch()["new"] == 0


def test_a_model_that_grades_is_counted_and_bounded(bench: Bench) -> None:
    bench.write(
        "minions.toml", '[prices."scripted/own"]\ninput_per_mtok = 1\noutput_per_mtok = 1\n'
    )
    bench.recipe(
        "{sample: 1, max_cost_usd_per_day: 0.025, "
        "scorers: [{graded: It is good., model: scripted/own}]}"
    )
    bench.run("good", "bad", "fine", "more")
    found = bench.watch()
    assert found["new"] == 3
    assert found["usage"]["cost_usd"] == pytest.approx(0.03)
    assert "$0.025 a day" in str(found["left"])
    (graded,) = found["scorers"]
    assert (graded["scored"], graded["recent"][0]) == (3, pytest.approx(2 / 3))
    assert bench.watch()["new"] == 0
    assert bench.cli("watch", "echo.yaml", "--extensions", "own.py").code == 0


def test_tokens_bound_what_has_no_price(bench: Bench) -> None:
    bench.recipe(
        "{sample: 1, max_tokens_per_day: 20, "
        "scorers: [{graded: It is good., model: scripted/own}, {holds: 'true'}]}"
    )
    bench.run("good", "bad", "fine", "more")
    found = bench.watch()
    graded, held = found["scorers"]
    assert (graded["scored"], held["scored"]) == (2, 4)
    assert "20 tokens a day" in found["left"]


def test_the_sample_is_chosen_by_the_runs_id(bench: Bench) -> None:
    bench.recipe('{sample: 30%, scorers: [{holds: "true"}]}')
    bench.run(*[f"text {number}" for number in range(40)])
    found = bench.watch()
    assert 0 < found["sampled"] < 40
    assert found["new"] == found["sampled"]
    ids = [f"run_{number}" for number in range(4_000)]
    chosen = {each for each in ids if is_sampled(each, 0.05)}
    assert chosen == {each for each in ids if is_sampled(each, 0.05)}
    assert 150 < len(chosen) < 250
    assert chosen < {each for each in ids if is_sampled(each, 0.1)}
    assert all(is_sampled(each, 1.0) for each in ids)


@pytest.mark.parametrize(
    ("watch", "words"),
    [
        ("{sample: 1, scorers: [exact]}", "compares with a known answer"),
        ('{sample: 1, scorers: [{holds: "output == expected"}]}', "compares with a known answer"),
        ("{sample: 1, scorers: [{number: 1}]}", "compares with a known answer"),
        ("{sample: 1, scorers: [{hold: x}]}", "a scorer has one of"),
        ("{sample: 1, scorers: [{tool: nothing}]}", "no tool 'nothing' is registered"),
        ("{sample: 0%, scorers: [{holds: 'true'}]}", "a sample is a share of the runs"),
        ("{sample: often, scorers: [{holds: 'true'}]}", "a sample is a share of the runs"),
        ("{sample: 2, scorers: [{holds: 'true'}]}", "a sample is a share of the runs"),
        ("{sample: 5%, scorers: []}", "1 to 20 scorers"),
        ("{sample: 5%}", "scorers"),
        ("5%", "watch"),
        ("{sample: 5%, scorers: [{holds: 'true'}], every: 1}", "every"),
    ],
)
def test_what_is_wrong_with_a_watch_is_told(bench: Bench, watch: str, words: str) -> None:
    bench.recipe(watch)
    done = bench.cli("watch", "echo.yaml", "--extensions", "own.py")
    assert done.code == 2, done.err
    assert words in done.err


def test_validate_tells_the_place_of_what_is_wrong_with_a_scorer(cli: Cli, write: Write) -> None:
    write("echo.yaml", RECIPE % '{sample: 1, scorers: [{holds: "outptu"}, {tool: nothing}]}')
    done = cli("validate", "echo.yaml", "--output-format", "github")
    assert done.code == 2
    assert "file=echo.yaml,line=5,col=39" in done.out, done.out
    assert "unknown name 'outptu'" in done.out
    assert "line=5,col=56" in done.out


def test_a_recipe_without_a_watch_says_how_to_add_one(cli: Cli, write: Write) -> None:
    write("plain.yaml", "id: p\nsteps: [{id: a, set: {x: 1}}]\n")
    done = cli("watch", "plain.yaml")
    assert (done.code, "error[no-watch]" in done.err) == (2, True)


def test_a_score_of_an_imported_run_counts_for_nothing(bench: Bench, tmp_path: Path) -> None:
    bench.run("bad")
    bench.watch()
    run_id = newest_run(bench)
    exported = bench.cli("sessions", "export", run_id, "-o", "run.jsonl")
    assert exported.code == 0, exported.err
    taken = bench.cli("sessions", "import", "run.jsonl", "--db", "other.sqlite")
    assert taken.code == 0, taken.err
    found = bench.watch("--db", "other.sqlite")
    (scorer,) = found["scorers"]
    assert (found["new"], scorer["scored"]) == (0, 0)


# --- the interval ---------------------------------------------------------------------------------


def test_the_difference_of_two_groups_is_newcombes() -> None:
    """The example of the source: 56 of 70 against 48 of 80, 0.20 (0.0524 to 0.3339)."""
    found = difference_of_groups([True] * 48 + [False] * 32, [True] * 56 + [False] * 14)
    assert found is not None
    assert found.value == pytest.approx(0.2)
    assert found.low == pytest.approx(0.0524, abs=2e-4)
    assert found.high == pytest.approx(0.3339, abs=2e-4)
    assert difference_of_groups([], [True]) is None
    assert rate_interval([]) is None

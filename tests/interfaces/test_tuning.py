"""`Minions.tune`: tuning of an application's recipes; and how a tuning is told."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from attrs import evolve

from minions import (
    Extensions,
    Message,
    Minions,
    ModelCallResponse,
    ModelFailure,
    Prompt,
    ScriptedModel,
    Services,
    UsageError,
)
from minions.app.application.application import EnvironmentModels
from minions.app.evaluating.tuning_runs import Tuning, TuningPlan
from minions.app.evaluating.tuning_space import SpaceOptions
from minions.app.wiring.configured_runtime import Runtime
from minions.contracts.messages import TokenUsage
from minions.data.json_values import JsonValue
from minions.evaluation.cases import Part
from minions.evaluation.tuning_search import TrialVerdict
from minions.evaluations import (
    Case,
    Configuration,
    Dimension,
    Exact,
    GradedBy,
    Measurement,
    TuningReport,
)
from minions.interfaces.cli.console.console import hanging
from minions.interfaces.cli.console.evaluation_tables import tuning_lines
from minions.testing.endpoint import ChatEndpoint, Exchange, answer

RECIPE = """\
id: talks
inputs: {text: string}
steps:
  - id: talk
    goal: '{{ inputs.text }}'
    model: scripted/large
"""
CASES = [{"text": f"number {at}", "expected": f"number {at}!"} for at in range(20)]


def model(name: str, cost: float, calls: list[str], wrong: tuple[str, ...] = ()) -> ScriptedModel:
    """Answers with an exclamation mark, but for texts that end so."""

    def answer(prompt: Prompt) -> ModelCallResponse:
        text = (prompt.messages[-1].content or "").splitlines()[0]
        calls.append(name)
        mark = "?" if text.endswith(wrong) else "!"
        usage = TokenUsage(input_tokens=10, output_tokens=5, cost_usd=cost)
        message = Message(role="assistant", content=f"{text}{mark}")
        return ModelCallResponse(message=message, usage=usage)

    return ScriptedModel(answer, name=name)


async def tuned(journal: Path, calls: list[str]) -> TuningReport:
    models = [
        model("scripted/cheap", 0.001, calls, wrong=("1", "2", "3", "4")),
        model("scripted/middle", 0.002, calls),
        model("scripted/dear", 0.2, calls),
    ]
    own = model("scripted/own", 0.01, calls)
    async with Minions(model=own, journal=journal) as app:
        return await app.tune(
            RECIPE, CASES, models=models, over=["model"], scorers=[Exact()], name="mine"
        )


async def test_models_that_are_objects_are_chosen_by_their_names(tmp_path: Path) -> None:
    """A-142."""
    calls: list[str] = []
    report = await tuned(tmp_path / "j.sqlite", calls)
    assert report.is_passed
    assert report.result.chosen.label == "talk: scripted/middle"
    assert report.text == RECIPE.replace("scripted/large", "scripted/middle")
    assert report.base is not None
    assert report.chosen is not None
    assert (report.base.cost_usd, report.chosen.cost_usd) == (0.01, 0.002)
    assert calls.count("scripted/dear") < 8
    before = len(calls)
    again = await tuned(tmp_path / "j.sqlite", calls)
    assert len(calls) == before
    assert again.spent_usd == pytest.approx(report.spent_usd)
    assert again.diff == report.diff


async def test_a_recipe_that_was_tuned_says_the_model_in_its_own_text(tmp_path: Path) -> None:
    report = await tuned(tmp_path / "j.sqlite", [])
    assert "+    model: scripted/middle" in report.diff
    changed = tmp_path / "talks.yaml"
    changed.write_text(report.text)
    async with Minions() as app:
        assert app.load(changed).id == "talks"


async def test_what_does_not_pass_is_told_and_not_written_down() -> None:
    """A-142."""
    calls: list[str] = []
    own = model("scripted/own", 0.01, calls, wrong=("1", "2", "3", "4", "5"))
    better = model("scripted/better", 0.01, calls, wrong=("19",))
    async with Minions(model=own) as app:
        report = await app.tune(RECIPE, CASES, models=[better], over=["model"], at_least=1.0)
    assert (report.is_passed, report.result.chosen.label) == (False, "talk: scripted/better")
    assert (report.diff, report.text) == ("", RECIPE)


async def test_a_tuning_without_grades_says_so() -> None:
    """A-142."""
    down = ScriptedModel(
        [ModelFailure(code="refused", message="No judge.")] * 99, name="scripted/j"
    )
    scorer = GradedBy(rubric="Is it loud?", model="scripted/j")
    own, better = model("scripted/own", 0.01, []), model("scripted/better", 0.01, [])
    async with Minions(model=own, extensions=Extensions(models={"scripted/j": down})) as app:
        report = await app.tune(
            RECIPE, CASES, models=[better], over=["model"], scorers=[scorer], at_least=0.5
        )
    assert not report.is_passed
    told = " ".join(str(each.measured.problem) for each in report.result.trials)
    assert "not graded, refused: No judge. (--retry-failed has them graded again)" in told


async def test_what_cannot_be_chosen_is_refused_by_name() -> None:
    async with Minions(model=model("scripted/own", 0.0, [])) as app:
        with pytest.raises(UsageError, match="takes some of model, form, output, examples"):
            await app.tune(RECIPE, CASES, over=["modle"])


async def test_a_path_is_tuned_like_its_text(tmp_path: Path) -> None:
    path = tmp_path / "talks.yaml"
    path.write_text(RECIPE)
    calls: list[str] = []
    async with Minions(model=model("scripted/own", 0.01, calls)) as app:
        report = await app.tune(
            path,
            CASES,
            models=[model("scripted/middle", 0.002, calls)],
            over=[Dimension.MODEL],
            at_least=1.0,
        )
    assert report.diff.startswith(f"--- {path}")
    assert path.read_text() == RECIPE


async def test_a_narrow_terminal_shows_every_figure(tmp_path: Path) -> None:
    report = await tuned(tmp_path / "j.sqlite", [])
    lines = [line for text in tuning_lines(report, 40) for line in hanging(text, 40).splitlines()]
    assert max(map(len, lines)) <= 40
    text = "\n".join(lines)
    assert "talk: scripted/middle\n  passed: 100%\n" in text
    assert "  tokens: 15" in text
    assert "  cannot reach the bar" in text
    assert "  cost: -80%" in text


async def test_a_report_is_json(tmp_path: Path) -> None:
    report = await tuned(tmp_path / "j.sqlite", [])
    told = report.to_json()
    chosen: JsonValue = [{"step": "talk", "dimension": "model", "value": "scripted/middle"}]
    assert told["chosen"] == {
        "configuration": chosen,
        "label": "talk: scripted/middle",
        "is_confirmed": True,
    }
    assert (told["passed"], told["ranked_by"], told["at_least"]) == (True, "cost", None)


async def test_a_search_that_ended_before_anything_was_known_says_so(tmp_path: Path) -> None:
    report = await tuned(tmp_path / "j.sqlite", [])
    base = evolve(report.result.trials[0], measured=Measurement(shares=(None,) * 12, problem="no"))
    result = evolve(
        report.result, trials=(base,), chosen=Configuration(), confirmation={}, is_passed=False
    )
    lines = list(tuning_lines(evolve(report, result=result), 200))
    assert "wanted: what the recipe passes as it is, which is not known" in lines
    assert "0 of 12" in lines[-3]
    assert lines[-2] == "not measured: as it is: no"
    assert lines[-1] == "nothing is known to pass"
    half = evolve(base, measured=Measurement(shares=(1.0, None)))
    passing = evolve(result, trials=(half,), is_passed=True)
    told = list(tuning_lines(evolve(report, result=passing), 200))[-1]
    assert told == "passes in the search, and was not confirmed: as it is"


async def test_a_tuning_that_is_cancelled_tells_what_it_has(tmp_path: Path) -> None:
    calls: list[str] = []
    plan = TuningPlan(
        name="mine",
        title="talks",
        file="<recipe>",
        text=RECIPE.replace("large", "own"),
        cases=tuple(
            Case(index=at, name=str(at), inputs={"text": f"{at}"}, expected=f"{at}!")
            for at in range(20)
        ),
        scorers=(Exact(),),
        options=SpaceOptions(models=("scripted/other",), dimensions=frozenset({Dimension.MODEL})),
    )
    own, other = (model(f"scripted/{name}", 0.01, calls) for name in ("own", "other"))
    extensions = Extensions(models={each.name: each for each in (own, other)})
    models = EnvironmentModels(extensions)
    runtime = Runtime(models=models.source, extensions=extensions, services=Services())
    tuning = Tuning(runtime, plan)
    trials: list[str] = []

    def on_trial(configuration: Configuration, part: Part, count: int) -> None:
        trials.append(configuration.label)
        if len(trials) == 2:
            tuning.cancel()

    tuning.listen(on_trial)
    report = await tuning.report()
    assert trials == ["as it is", "talk: scripted/other"]
    assert (report.is_passed, report.result.is_cut) == (False, True)
    assert report.result.problem == "The tuning was cancelled."
    assert set(calls) == {"scripted/own"}
    await runtime.aclose()


async def test_the_output_mode_that_a_server_needs_is_found() -> None:
    """A-142: this server's answers are right where any JSON object is asked for."""

    async def by_form(exchange: Exchange) -> None:
        body = exchange.request.body
        form = body.get("response_format")
        is_right = isinstance(form, Mapping) and form.get("type") == "json_object"
        text = str(exchange.request.messages[-1]["content"])
        kind = "bug" if is_right and "page" in text else "other"
        await answer(json.dumps({"kind": kind}))(exchange)

    cases = [
        {"text": f"{'page' if at % 2 else 'hello'} {at}", "expected": {"kind": kind}}
        for at in range(16)
        for kind in ["bug" if at % 2 else "other"]
    ]
    async with ChatEndpoint(default=by_form) as server, Minions() as app:
        recipe = (
            "id: triage\ninputs: {text: string}\nsteps:\n  - id: label\n"
            f"    model: {{name: ollama/m, base_url: '{server.base_url}'}}\n"
            "    goal: '{{ inputs.text }}'\n    output: {kind: {enum: [bug, other]}}\n"
        )
        report = await app.tune(recipe, cases, over=["output"], at_least=0.9)
    assert report.is_passed
    assert report.result.chosen.label == "label: output json"
    assert 'output_mode: "json"}' in report.diff


async def test_cases_that_say_nothing_tell_no_models_apart() -> None:
    calls: list[str] = []
    async with Minions(model=model("scripted/large", 0.1, calls)) as app:
        with pytest.raises(UsageError, match="every configuration would pass") as refused:
            await app.tune(RECIPE, [{"text": f"number {at}"} for at in range(20)])
    assert (refused.value.error_code, calls) == ("bad-items", [])


def failing(own: ScriptedModel, texts: set[str], calls: list[str]) -> ScriptedModel:
    """The model behind a server that answers these texts with an error, the first time."""

    async def answer(prompt: Prompt) -> ModelCallResponse | ModelFailure:
        text = (prompt.messages[-1].content or "").splitlines()[0]
        if text in texts:
            texts.remove(text)
            calls.append(f"{own.name} down")
            return ModelFailure(code="model-unavailable", message="HTTP 500, busy.")
        return (await own.complete(prompt)).unwrap()

    return ScriptedModel(answer, name=own.name)


async def tuned_in_outage(
    journal: Path, own: ScriptedModel, other: ScriptedModel, at_least: float | None = None
) -> TuningReport:
    async with Minions(model=own, journal=journal) as app:
        return await app.tune(
            RECIPE,
            CASES,
            models=[other],
            over=["model"],
            scorers=[Exact()],
            name="mine",
            at_least=at_least,
        )


@pytest.mark.parametrize("at_least", [None, 0.9])
async def test_an_outage_of_the_recipes_own_server_chooses_nothing_until_it_is_over(
    tmp_path: Path, at_least: float | None
) -> None:
    """A-142."""
    journal, calls = tmp_path / "j.sqlite", list[str]()
    down = {each["text"] for each in CASES[:10]}
    own = failing(model("scripted/own", 0.01, calls), down, calls)
    other = model("scripted/other", 0.001, calls)
    report = await tuned_in_outage(journal, own, other, at_least)
    assert not report.is_passed
    base = report.result.trials[0]
    failed = 12 - base.measured.counted
    assert 1 < failed < 10
    assert (base.verdict, base.measured.cost_usd) == (TrialVerdict.NOT_MEASURED, 0.01)
    assert base.measured.tokens_each == 15
    assert f"{failed} of 12 runs have no answer of the model" in (report.result.problem or "")
    assert "started again, it repeats them" in (report.result.problem or "")
    assert "model-unavailable: HTTP 500, busy." in (report.result.problem or "")
    lines = "\n".join(tuning_lines(report, 200))
    assert "ranked by tokens" not in lines
    assert ("nothing is known to pass" in lines) == (at_least is None)
    down.clear()
    before = calls.count("scripted/own")
    again = await tuned_in_outage(journal, own, other, at_least)
    assert again.is_passed
    assert again.result.bar == (at_least or 1.0)
    assert again.result.chosen.label == "talk: scripted/other"
    assert again.base is not None
    # Under a bar of its own the search went on to the cases held out, and these failed, too.
    held_out = 8 if at_least is None else calls.count("scripted/own down") - failed
    assert calls.count("scripted/own") - before == failed + held_out


async def test_a_candidate_whose_server_failed_is_measured_by_the_next_start(
    tmp_path: Path,
) -> None:
    """A-142."""
    journal, calls = tmp_path / "j.sqlite", list[str]()
    down = {each["text"] for each in CASES}
    own = model("scripted/own", 0.01, calls)
    other = failing(model("scripted/other", 0.001, calls), down, calls)
    report = await tuned_in_outage(journal, own, other)
    assert report.result.chosen == Configuration()
    lines = "\n".join(tuning_lines(report, 200))
    assert "not measured: talk: scripted/other: 4 of 4 runs have no answer" in lines
    down.clear()
    again = await tuned_in_outage(journal, own, other)
    assert again.result.chosen.label == "talk: scripted/other"
    assert calls.count("scripted/own") == 20


async def test_a_step_that_may_fail_is_no_answer_of_the_model_where_its_server_fails(
    tmp_path: Path,
) -> None:
    """A-142."""
    recipe = RECIPE + "    optional: true\noutput: \"{{ talk | default('-') }}\"\n"
    journal, calls = tmp_path / "j.sqlite", list[str]()
    down = {each["text"] for each in CASES[:10]}
    own = failing(model("scripted/own", 0.01, calls), down, calls)
    reports = []
    for _ in range(3):
        async with Minions(model=own, journal=journal) as app:
            report = await app.tune(recipe, CASES, over=["model"], scorers=[Exact()], name="mine")
        reports.append(report)
        down.clear()
    first, second, third = reports
    assert "have no answer of the model" in (first.result.problem or "")
    assert second.is_passed
    assert third.is_passed
    assert calls.count("scripted/own") == 20


async def test_a_model_that_fails_by_its_own_answers_counts(tmp_path: Path) -> None:
    refusing = ScriptedModel(
        lambda _: ModelFailure(code="refused", message="No."), name="scripted/other"
    )
    own = model("scripted/own", 0.01, [])
    report = await tuned_in_outage(tmp_path / "j.sqlite", own, refusing)
    assert report.is_passed
    assert report.result.trials[1].verdict is TrialVerdict.OUT_OF_REACH
    assert report.result.by_cost
    told = report.result.trials[1].measured.to_json()
    assert (told["failed"], told["failure"]) == (4, "refused: No.")
    lines = list(tuning_lines(report, 200))
    assert "without an output: talk: scripted/other (4 runs): refused: No." in lines


async def test_the_failure_that_is_told_first_is_not_that_calls_were_held_back(
    tmp_path: Path,
) -> None:
    calls: list[str] = []

    def answer(_: Prompt) -> ModelFailure:
        calls.append("own")
        if len(calls) == 1:
            return ModelFailure(code="circuit-open", message="It is left alone.")
        return ModelFailure(code="model-timeout", message="Too late.")

    own = ScriptedModel(answer, name="scripted/own")
    report = await tuned_in_outage(tmp_path / "j.sqlite", own, model("scripted/other", 0.01, []))
    assert "model-timeout: Too late." in (report.result.problem or "")


async def test_a_partial_run_that_was_repeated_is_judged_by_its_last_execution(
    tmp_path: Path,
) -> None:
    recipe = RECIPE + "    optional: true\noutput: \"{{ talk | default('-') }}\"\n"
    calls: list[str] = []
    codes = ["model-unavailable"]

    def answer(prompt: Prompt) -> ModelFailure | str:
        text = (prompt.messages[-1].content or "").splitlines()[0]
        calls.append(text)
        return ModelFailure(code=codes[-1], message="No.") if text in failing_ones else f"{text}!"

    failing_ones = {each["text"] for each in CASES[:10]}
    own = ScriptedModel(answer, name="scripted/own")
    reports, counts = list[TuningReport](), list[int]()
    for code in ("model-unavailable", "refused", "refused"):
        codes.append(code)
        async with Minions(model=own, journal=tmp_path / "j.sqlite") as app:
            report = await app.tune(recipe, CASES, over=["model"], scorers=[Exact()], name="mine")
        reports.append(report)
        counts.append(len(calls))
    assert "have no answer of the model" in (reports[0].result.problem or "")
    assert reports[1].result.problem is None
    assert reports[2].result.bar == reports[1].result.bar < 1
    assert counts[2] == counts[1]


async def test_a_run_that_failed_before_it_used_anything_leaves_the_cost_known(
    tmp_path: Path,
) -> None:
    """A-142."""
    whole = model("scripted/own", 0.01, [])

    async def answer(prompt: Prompt) -> ModelCallResponse | ModelFailure:
        if "number 7" in (prompt.messages[-1].content or ""):
            return ModelFailure(code="refused", message="No.")
        return (await whole.complete(prompt)).unwrap()

    own = ScriptedModel(answer, name="scripted/own")
    other = model("scripted/other", 0.02, [])
    report = await tuned_in_outage(tmp_path / "j.sqlite", own, other, 0.5)
    assert report.result.by_cost
    base = report.result.trials[0].measured
    assert base.failed + (0 if report.base is None else report.base.failed) == 1
    assert base.cost_usd == pytest.approx(0.01 * (12 - base.failed) / 12)

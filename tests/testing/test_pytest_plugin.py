"""The fixtures that applications test their recipes with."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from attrs import frozen

import minions as m
from chat_servers import served_models
from forked_commands import run_forked
from minions.events import RunCompleted
from minions.testing import (
    Answer,
    CassetteModels,
    FakeClock,
    MakeScriptedModel,
    RecipeRunner,
    endpoint,
    tool_request,
)
from minions.testing.cassettes import cassette_path
from minions.testing.endpoint import Exchange

RECIPE = """\
id: greet
inputs: {name: string}
steps:
  - id: greeting
    goal: "Greet {{ inputs.name }}."
    output: {words: string}
"""


@frozen
class Greeting:
    """What comes back."""

    words: str


@m.tool(effect="once")
def send(text: str) -> str:
    """Send it."""
    return f"sent {text}"


def test_a_recipe_runs_with_scripted_answers(run_recipe: RecipeRunner) -> None:
    result = run_recipe(
        RECIPE, {"name": "Ann"}, answers=[{"words": "Hello, Ann"}], output_class=Greeting
    )
    assert result.unwrap() == Greeting(words="Hello, Ann")
    assert isinstance(run_recipe.events[-1], RunCompleted)


async def test_a_recipe_runs_inside_an_event_loop(run_recipe: RecipeRunner) -> None:
    assert run_recipe(RECIPE, {"name": "Ann"}, answers=[{"words": "Hi"}]).unwrap() == {
        "words": "Hi"
    }


def test_two_runs_of_one_test_are_the_same() -> None:
    def once() -> object:
        runner = RecipeRunner()
        runner(RECIPE, {"name": "Ann"}, answers=[{"words": "Hi"}])
        return runner.events

    assert once() == once()


def test_calls_that_need_approval_are_made_unless_the_test_says_otherwise(
    run_recipe: RecipeRunner,
) -> None:
    step = m.DefaultStep(
        id="tell",
        messages=m.MessageBundle.of(goal="Send hello."),
        available_tools=frozenset({"send"}),
        completion_criteria=m.CompletionCriteria(mode=m.CompletionMode.TEXT),
    )
    rights = m.Permissions(allow_write=True, requires_approval=("send",))
    recipe = m.AgentRecipe(id="tell", steps=[step], permissions=rights)
    answers: list[Answer] = [tool_request("send", {"text": "hello"}), "Done."]
    assert run_recipe(recipe, answers=answers, tools=[send]).unwrap() == "Done."
    waits = run_recipe(recipe, answers=answers, tools=[send], approve="wait")
    assert waits.status is m.RunStatus.NEEDS_DECISION


def test_a_scripted_model_is_made_of_its_answers(
    run_recipe: RecipeRunner, scripted_model: MakeScriptedModel
) -> None:
    model = scripted_model({"words": "Hi"})
    run_recipe(RECIPE, {"name": "Ann"}, model=model)
    assert any("Greet Ann." in (each.content or "") for each in model.prompts[0].messages)


def test_retries_wait_no_time(run_recipe: RecipeRunner) -> None:
    busy = m.ModelFailure(code="busy", message="Later.", is_retryable=True, retry_after_s=30)
    result = run_recipe(RECIPE, {"name": "Ann"}, answers=[busy, {"words": "Hi"}])
    assert result.status is m.RunStatus.COMPLETED
    assert run_recipe.clock.monotonic() >= 30


async def test_a_fake_clock_moves_only_when_something_sleeps() -> None:
    clock = FakeClock()
    before = clock.now()
    await clock.sleep(90)
    assert (clock.now() - before).total_seconds() == 90


def test_a_project_may_import_the_suites_where_its_fixtures_are(tmp_path: Path) -> None:
    """Their assertions show values, whatever part of the project is tested."""
    inner = tmp_path / "inner"
    inner.mkdir()
    (inner / "conftest.py").write_text("import minions.testing.journal_suite\n", "utf-8")
    (inner / "test_it.py").write_text("def test_it() -> None: ...\n", "utf-8")
    (tmp_path / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n", "utf-8")
    # Found by its name alone, as where Minions is not installed but lies in the path.
    environ = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    environ["PYTHONPATH"] = str(Path(m.__file__).parents[1])
    command = [sys.executable, "-m", "pytest", "-p", "minions.testing.plugin", "-q", "inner"]
    command += ["-p", "no:cacheprovider"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False
    )
    assert "1 passed" in done.stdout, done.stdout + done.stderr


def test_the_plugin_loads_nothing_heavy() -> None:
    code = "import sys, minions.testing.plugin; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = {"minions.engine", "minions.contracts", "attrs", "aiohttp", "yaml"}
    assert heavy & set(done.stdout.split()) == set()


# --- cassettes --------------------------------------------------------------------------------

TESTS = """
import minions as m

RECIPE = '''
id: ask
steps:
  - {id: a, goal: "QUESTION"}
'''


def model():
    return m.OpenAIModel("tiny", base_url="URL")


def test_answers(run_recipe, cassette):
    assert run_recipe(RECIPE, model=cassette(model)).unwrap() == "Hi."


class TestMore:
    def test_again(self, run_recipe, cassette):
        for _ in range(2):
            run_recipe(RECIPE, model=cassette(model))  # whatever came, nothing is asserted
"""


def pytest_of(folder: Path, *arguments: str) -> str:
    """What pytest prints for the tests in a folder."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    command += ["-p", "minions.testing.plugin", "-c", "/dev/null", "--rootdir", "."]
    environ = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # others take seconds to load
    done = run_forked(command, cwd=folder, capture_output=True, text=True, env=environ)
    return done.stdout + done.stderr


def test_a_recorded_test_needs_no_server_and_a_changed_prompt_fails_it(tmp_path: Path) -> None:
    """A-137."""
    file = tmp_path / "test_it.py"
    with served_models(endpoint.answer("Hi.")) as server:
        text = TESTS.replace("URL", server.base_url)
        file.write_text(text.replace("QUESTION", "Who?"))
        assert "2 passed" in pytest_of(tmp_path, "--minions-record")
        asked = len(server.requests)
    assert asked == 3
    made = sorted(path.name for path in (tmp_path / "cassettes" / "test_it").iterdir())
    assert made == ["TestMore.test_again.jsonl", "test_answers.jsonl"]
    assert "2 passed" in pytest_of(tmp_path)
    file.write_text(text.replace("QUESTION", "What?"))
    changed = pytest_of(tmp_path)
    assert "1 failed, 1 passed, 2 errors" in changed
    assert "-Who?\n+What?" in changed


def test_a_test_without_a_cassette_says_how_to_record_it(tmp_path: Path) -> None:
    cassette = CassetteModels(tmp_path / "c.jsonl", is_recording=False)
    with pytest.raises(m.UsageError, match="--minions-record"):
        cassette("openai/gpt-5-mini")
    cassette.close()


def test_models_are_recorded_by_their_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = cassette_path(tmp_path / "test_x.py", "test_it[a/b]")
    assert path.name.startswith("test_it-a-b--")
    with served_models(endpoint.answer("Hi.")) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        monkeypatch.setenv("OPENAI_API_KEY", "key-of-nobody-1")
        cassette = CassetteModels(path, is_recording=True)
        recorded = RecipeRunner()("id: r\nsteps: [{id: a, goal: Hi}]", model=cassette("openai/x"))
        cassette.close()
    monkeypatch.delenv("OPENAI_API_KEY")
    cassette = CassetteModels(path, is_recording=False)
    replayed = RecipeRunner()("id: r\nsteps: [{id: a, goal: Hi}]", model=cassette("openai/x"))
    cassette.close()
    assert recorded.unwrap() == replayed.unwrap() == "Hi."


BY_NAME = """
RECIPE = "id: r\\nsteps: [{id: a, goal: Hi}]"


def test_answers(run_recipe, cassette):
    assert run_recipe(RECIPE, model=cassette("lab/tiny")).unwrap() == "Hi."
"""


def settings_of(server: str) -> str:
    return f'model = "lab/tiny"\n[providers.lab]\nbase_url = "{server}"\n'


def test_a_model_that_the_project_configures_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A-137."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_it.py").write_text(BY_NAME)
    with served_models(endpoint.answer("Hi.")) as server:
        (tmp_path / "minions.toml").write_text(settings_of(server.base_url))
        monkeypatch.setenv("MINIONS_TRUST", "0")
        untrusted = pytest_of(tmp_path, "--minions-record", "tests")
        assert "1 failed" in untrusted
        assert "is not trusted, so these keys of it were not read: providers" in untrusted
        monkeypatch.setenv("MINIONS_TRUST", "1")
        assert "1 passed" in pytest_of(tmp_path, "--minions-record", "tests")
    monkeypatch.setenv("MINIONS_TRUST", "0")  # what was recorded is replayed without it
    assert "1 passed" in pytest_of(tmp_path, "tests")


def recorded_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> bytes:
    """The content of a cassette of one call."""
    with served_models(endpoint.answer("Hi.")) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        monkeypatch.setenv("OPENAI_API_KEY", "key-of-nobody-1")
        cassette = CassetteModels(path, is_recording=True)
        RecipeRunner()("id: r\nsteps: [{id: a, goal: Hi}]", model=cassette("openai/x"))
        cassette.close()
    return path.read_bytes()


def test_a_recording_that_failed_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A-137."""
    path = tmp_path / "c.jsonl"
    cassette = CassetteModels(path, is_recording=True)
    with pytest.raises(m.MinionsError):
        cassette("nobody/tiny")
    cassette.close()
    assert not path.exists()
    before = recorded_once(path, monkeypatch)
    for model in ("nobody/tiny", "openai/x"):
        cassette = CassetteModels(path, is_recording=True)
        with contextlib.suppress(m.MinionsError):
            cassette(model)
        cassette.close()  # nothing was asked
        assert path.read_bytes() == before
    assert recorded_once(path, monkeypatch).count(b'"call":') == 1


def test_failures_are_recorded_with_the_answer_that_follows_them_alone(tmp_path: Path) -> None:
    """A-137."""
    path = tmp_path / "c.jsonl"
    down = m.ModelFailure(code="unreachable", message="No answer.", is_retryable=True)
    text = "id: r\nsteps: [{id: a, goal: Hi}]"
    cassette = CassetteModels(path, is_recording=True)
    RecipeRunner()(text, model=cassette(m.ScriptedModel([down] * 9)))
    cassette.close()
    assert not path.exists()
    cassette = CassetteModels(path, is_recording=True)
    recorded = RecipeRunner()(text, model=cassette(m.ScriptedModel([down, "Hi."], name="own/x")))
    cassette.close()
    replay = CassetteModels(path, is_recording=False)
    replayed = RecipeRunner()(text, model=replay(m.ScriptedModel([], name="own/x")))
    assert recorded.unwrap() == replayed.unwrap() == "Hi."
    assert (path.read_text().count('"failure":'), replay.misses) == (1, [])


LATER = """
import minions as m


def model():
    return m.OpenAIModel("tiny", base_url="URL")


def test_it(run_recipe, cassette):
    asked = cassette(model)
    assert run_recipe("id: a\\nsteps: [{id: a, goal: First}]", model=asked).unwrap() == "FIRST"
    run_recipe("id: b\\nsteps: [{id: b, goal: Second}]", model=asked).unwrap()
"""


def test_a_recording_replaces_the_cassette_only_if_the_test_passes(tmp_path: Path) -> None:
    """A-137."""
    file, path = tmp_path / "test_it.py", tmp_path / "cassettes" / "test_it" / "test_it.jsonl"
    new = path.with_name("test_it.jsonl.new")
    said = iter(["Hi.", "Hi.", "Ho.", None, "Ho.", "Ho."])

    async def answers(exchange: Exchange) -> None:
        word = next(said)
        await (endpoint.status(400) if word is None else endpoint.answer(word))(exchange)

    with served_models(answers) as server:
        text = LATER.replace("URL", server.base_url)
        file.write_text(text.replace("FIRST", "Hi."))
        assert "1 passed" in pytest_of(tmp_path, "--minions-record")
        good = path.read_bytes()
        file.write_text(text.replace("FIRST", "Ho."))
        failed = pytest_of(tmp_path, "--minions-record")  # the second answer is an error
        assert "1 failed" in failed
        assert f"The cassette {path} stays as it was, since the test did not pass." in failed
        assert f"The new recording is {new}." in failed
        assert path.read_bytes() == good
        assert '"failure":' in new.read_text()
        assert "1 passed" in pytest_of(tmp_path, "--minions-record")
    assert not new.exists()
    assert path.read_text().count('"call":') == 2
    file.write_text("".join(text.replace("FIRST", "Ho.").splitlines(keepends=True)[:-1]))
    less = pytest_of(tmp_path)
    assert "1 passed, 1 warning" in less
    assert "UserWarning:" in less
    assert "test_it.jsonl: 1 recorded call was not asked for. The first is call 2, of " in less


def recording_of(path: Path, *answers: Answer, has_passed: bool = True) -> None:
    """Record a test that asks for each answer."""
    cassette = CassetteModels(path, is_recording=True)
    model = cassette(m.ScriptedModel(answers, name="own/x"))
    for goal, _ in zip(("One", "Two", "Three"), answers, strict=False):
        RecipeRunner()(f"id: r\nsteps: [{{id: a, goal: {goal}}}]", model=model)
    cassette.close(has_passed=has_passed)


def test_a_first_recording_is_kept_although_its_test_fails(tmp_path: Path) -> None:
    """What was paid for can be replayed once the test is right."""
    path = tmp_path / "c.jsonl"
    recording_of(path, "1", has_passed=False)
    assert replayed(path, "One").misses == []
    assert list(tmp_path.iterdir()) == [path]


def test_a_recording_in_which_no_model_answers_says_that_it_is_none(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    recording_of(path, "1")
    before = path.read_bytes()
    down = m.ModelFailure(code="refused", message="No.")
    for has_passed in (True, False):
        with pytest.warns(UserWarning, match="no model has answered, so nothing was recorded"):
            recording_of(path, down, has_passed=has_passed)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def replayed(path: Path, *goals: str) -> CassetteModels:
    """The cassette of a test that asks these."""
    cassette = CassetteModels(path, is_recording=False)
    model = cassette(m.ScriptedModel([], name="own/x"))
    for goal in goals:
        RecipeRunner()(f"id: r\nsteps: [{{id: a, goal: {goal}}}]", model=model)
    return cassette


def test_recorded_calls_that_a_test_does_not_ask_for_are_told(tmp_path: Path) -> None:
    """A-137."""
    path = tmp_path / "c.jsonl"
    recording_of(path, "1", "2", "3")
    unused = replayed(path, "Three").unused
    assert unused is not None
    assert "2 recorded calls were not asked for. The first is call 1, of 'own/x'." in unused
    assert unused.endswith("Its last message begins: One")
    assert replayed(path, "One", "Two", "Three").unused is None
    assert replayed(path, "One", "Else").unused is None  # the miss says what differs


def test_a_recording_without_a_call_is_no_file(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    cassette = CassetteModels(path, is_recording=True)
    cassette(m.ScriptedModel(["Hi."]))
    cassette.close()
    assert not path.exists()


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ('{"cassette": 1, "recording": 1}\n', "has no call: nothing was recorded"),
        ("{}\n", "c.jsonl:1 cannot be used"),
    ],
)
def test_a_cassette_of_pytest_is_recorded_again_by_pytest(
    tmp_path: Path, content: str, told: str
) -> None:
    path = tmp_path / "c.jsonl"
    path.write_text(content)
    cassette = CassetteModels(path, is_recording=False)
    with pytest.raises(m.UsageError, match="Record it again with `pytest --minions-record`") as no:
        cassette("openai/x")
    assert told in no.value.message
    cassette.close()
    cassette = CassetteModels(path, is_recording=True)
    recorded = cassette(m.ScriptedModel(["Hi."]))
    RecipeRunner()("id: r\nsteps: [{id: a, goal: Hi}]", model=recorded)
    cassette.close()
    assert path.read_text().startswith('{"cassette":1,"recording":1}\n')

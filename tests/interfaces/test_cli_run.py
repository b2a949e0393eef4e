"""`minions run` as a person and as a program meet it."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import cast

import pytest

from command_line import Cli, Write
from minions import run
from minions.data.json_values import JsonValue

GOAL = """
id: greet
inputs:
  who: {type: string, default: you}
  times: {type: integer, default: 1}
steps:
  - id: hello
    goal: Say hello to {{ inputs.who }} {{ inputs.times }} times.
"""
SET = "id: bind\nsteps:\n  - {id: a, set: {n: 1, text: grüezi}}\n"


def script(*answers: JsonValue) -> str:
    return json.dumps({"answers": list(answers)})


def test_the_result_goes_to_standard_output_and_everything_else_to_standard_error(
    cli: Cli, write: Write
) -> None:
    write("greet.yaml", GOAL)
    write("s.yaml", script("Hello!"))
    outcome = cli("run", "greet.yaml", "-m", "scripted/s.yaml")
    assert (outcome.code, outcome.out) == (0, "Hello!\n")
    assert "recipe greet · model scripted/s.yaml (scripted: no real model is asked)" in outcome.err
    assert "▸ hello" in outcome.err
    assert "✓ hello" in outcome.err
    assert "cost unknown" in outcome.err
    assert "minions sessions show run_" in outcome.err


def test_json_prints_one_object_with_the_stable_fields(cli: Cli, write: Write) -> None:
    write("greet.yaml", GOAL)
    write("s.yaml", script("Hello!"))
    result = cli("run", "greet.yaml", "-m", "scripted/s.yaml", "--json").json
    assert {"run_id", "session_id", "recipe", "status", "output", "steps", "usage", "error"} <= set(
        result
    )
    assert result["status"] == "completed"
    assert result["error"] is None
    step = cast("list[Mapping[str, JsonValue]]", result["steps"])[0]
    assert set(step) == {
        "id", "status", "reason", "output", "error", "model_calls", "tool_calls", "attempts",
        "usage", "duration_ms", "cached_from", "pinned_from", "partial", "iterations",
    }  # fmt: skip
    assert set(cast("Mapping[str, JsonValue]", step["usage"])) == {
        "input_tokens", "output_tokens", "cached_tokens", "total_tokens", "cost_usd",
    }  # fmt: skip


def test_events_prints_one_json_event_per_line_in_order(cli: Cli, write: Write) -> None:
    write("greet.yaml", GOAL)
    write("s.yaml", script("Hello there!"))
    outcome = cli("run", "greet.yaml", "-m", "scripted/s.yaml", "--events")
    events = [json.loads(line) for line in outcome.out.splitlines()]
    types = [event["type"] for event in events]
    assert types[0] == "run_started"
    assert types[-1] == "run_completed"
    assert "step_delta" in types
    positions = [event["position"] for event in events if "position" in event]
    assert positions == sorted(set(positions))
    text = "".join(e["delta"].get("content", "") for e in events if e["type"] == "step_delta")
    assert text == "Hello there!"


def test_inputs_are_coerced_only_where_the_schema_says_so(cli: Cli, write: Write) -> None:
    write("r.yaml", "id: r\ninputs: {n: {type: integer}, t: {type: string}}\n"
          "steps: [{id: a, set: {n: '{{ inputs.n }}', t: '{{ inputs.t }}'}}]\n")  # fmt: skip
    outcome = cli("run", "r.yaml", "-p", "n=3", "-p", "t=3", "--json")
    assert outcome.json["output"] == {"n": 3, "t": "3"}


def test_a_wrong_input_is_named_with_the_near_name(cli: Cli, write: Write) -> None:
    write("greet.yaml", GOAL)
    outcome = cli("run", "greet.yaml", "-p", "whoo=me", "-p", "times=many")
    assert outcome.code == 2
    assert "error[bad-input]" in outcome.err
    assert "who" in outcome.err
    assert "times" in outcome.err


def test_an_input_that_is_given_twice_is_refused(cli: Cli, write: Write) -> None:
    write("greet.yaml", GOAL)
    outcome = cli("run", "greet.yaml", "-p", "who=me", "-p", "who=you")
    assert outcome.code == 2
    assert "-p who=… is given twice" in outcome.err


@pytest.mark.parametrize(
    ("name", "why"),
    [("sub", "it is a folder"), ("/dev/null", "it is no regular file"), ("x", "no such file")],
)
def test_what_is_no_recipe_is_told(cli: Cli, here: Path, name: str, why: str) -> None:
    (here / "sub").mkdir()
    outcome = cli("validate", name)
    assert outcome.code == 2
    assert f"There is no recipe '{name}': {why}" in outcome.err


def test_params_come_from_a_file_and_flags_win(cli: Cli, write: Write) -> None:
    write("r.yaml", "id: r\ninputs: {a: {type: integer}, b: {type: integer}}\n"
          "steps: [{id: s, set: {a: '{{ inputs.a }}', b: '{{ inputs.b }}'}}]\n")  # fmt: skip
    write("p.yaml", "a: 1\nb: 2\n")
    outcome = cli("run", "r.yaml", "--params", "p.yaml", "-p", "b=5", "--json")
    assert outcome.json["output"] == {"a": 1, "b": 5}


ECHO = "id: r\ninputs: {x: null}\nsteps: [{id: s, set: {x: '{{ inputs.x }}'}}]\n"


def test_params_in_a_json_file_are_read_as_json(cli: Cli, write: Write) -> None:
    write("r.yaml", ECHO)
    write("p.json", '\ufeff{"x": "party \\ud83c\\udf89 yes: no\\u2028"}')
    outcome = cli("run", "r.yaml", "--params", "p.json", "--json")
    assert outcome.json["output"] == {"x": "party 🎉 yes: no\u2028"}


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("p.json", '{"x": 1, "x": 2}', "the key 'x' is given twice"),
        ("p.json", '{"x": "\\ud83c"}', "half a character"),
        ("p.json", '{"x": 1e400}', "1e400 is not a number that JSON can express"),
        ("p.json", '{"x": NaN}', "NaN is not a number that JSON can express"),
        ("p.json", '{"x": ', "not JSON: Expecting value: line 1 column 7"),
        ("p.json", "[" * 100_000, "nested too deep"),
        ("p.json", "[]", "a mapping of inputs was expected, not a list"),
        ("p.json", " ", "the file is empty; a mapping of inputs was expected"),
        ("p.yaml", "", "the file is empty; a mapping of inputs was expected"),
        ("p.yaml", "# nothing", "the file is empty; a mapping of inputs was expected"),
        ("p.yaml", "x: [", "p.yaml:2:1: not YAML"),
        ("p.yaml", "x: 1e400", "p.yaml:1:4: 1e400 is too large for a number"),
        ("p.yaml", "text", "a mapping of inputs was expected, not a text"),
    ],
)
def test_a_wrong_params_file_is_a_wrong_input(
    cli: Cli, write: Write, name: str, text: str, words: str
) -> None:
    write("r.yaml", ECHO)
    write(name, text)
    outcome = cli("run", "r.yaml", "--params", name)
    assert outcome.code == 2
    assert outcome.err.startswith("error[bad-input]: --params ")
    assert words in outcome.err
    assert "steps" not in outcome.err


def test_an_infinite_number_is_a_wrong_input(cli: Cli, write: Write) -> None:
    write("r.yaml", ECHO.replace("null", "{type: number}"))
    outcome = cli("run", "r.yaml", "-p", "x=1e400")
    assert outcome.code == 2
    assert "error[bad-input]: The input 'x' does not fit: $: '1e400'" in outcome.err


@pytest.mark.parametrize("at", [0, 150, 500, 990])
def test_a_fault_in_a_very_long_line_is_shown_with_its_caret(
    cli: Cli, write: Write, at: int
) -> None:
    keys = ", ".join(f"k{n:04}: '{{{{ inputs.x }}}}'" for n in range(at))
    write("r.yaml", f"inputs: {{x: 1}}\nsteps: [{{id: s, set: {{{keys}}}, extra: 1, id: s}}]\n")
    outcome = cli("validate", "r.yaml")
    shown, caret = next(
        (line, below)
        for line, below in zip(outcome.err.splitlines(), outcome.err.splitlines()[1:], strict=False)
        if "^" in below
    )
    assert len(shown) <= 210
    start = caret.index("^")
    assert shown[start : start + caret.count("^")] == "id"


def test_a_key_of_the_environment_is_not_sent_because_a_recipe_says_so(
    cli: Cli, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("OLLAMA_HOST", "127.0.0.1:9")
    model = "model: {name: ollama/m, api_key_env: AWS_SECRET_ACCESS_KEY}"
    write("r.yaml", f"{model}\nsteps: [{{id: a, goal: A}}]\n")
    outcome = cli("run", "r.yaml")
    assert outcome.code == 2
    assert "error[key-not-allowed]" in outcome.err
    assert 'recipe_key_variables = ["AWS_SECRET_ACCESS_KEY"]' in outcome.err
    monkeypatch.setenv("MINIONS_RECIPE_KEY_VARIABLES", "AWS_SECRET_ACCESS_KEY")
    outcome = cli("run", "r.yaml", "--timeout", "1s")
    assert "key-not-allowed" not in outcome.err


def test_without_any_model_it_leaves_with_4_and_four_commands_to_try(
    cli: Cli, write: Write
) -> None:
    write("greet.yaml", GOAL)
    outcome = cli("run", "greet.yaml")
    assert outcome.code == 4
    assert outcome.err.count("minions run greet.yaml") == 4
    assert outcome.out == ""


def test_a_recipe_without_model_steps_needs_no_model(cli: Cli, write: Write) -> None:
    write("bind.yaml", SET)
    outcome = cli("run", "bind.yaml")
    assert outcome.code == 0
    assert json.loads(outcome.out) == {"n": 1, "text": "grüezi"}


def test_an_id_is_found_under_recipes(cli: Cli, write: Write) -> None:
    write("recipes/bind.yaml", SET)
    assert cli("run", "bind").code == 0
    outcome = cli("run", "bnid")
    assert outcome.code == 2
    assert "bind" in outcome.err


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        ({"fail": "auth-rejected", "message": "the key was refused"}, 1),
        ({"fail": "refused", "message": "no"}, 1),
    ],
)
def test_a_failed_step_is_exit_code_1_with_its_code(
    cli: Cli, write: Write, answer: JsonValue, code: int
) -> None:
    write("greet.yaml", GOAL)
    write("s.yaml", script(answer))
    outcome = cli("run", "greet.yaml", "-m", "scripted/s.yaml", "--json")
    assert outcome.code == code
    error = cast("Mapping[str, JsonValue]", outcome.json["error"])
    assert error["code"] == cast("Mapping[str, JsonValue]", answer)["fail"]
    assert error["where"] == "hello"


def test_a_reached_limit_is_exit_code_5_and_keeps_what_was_done(cli: Cli, write: Write) -> None:
    write("r.yaml", "id: r\nlimits: {max_steps: 1}\n"
          "steps: [{id: a, set: {n: 1}}, {id: b, set: {n: 2}}]\n")  # fmt: skip
    outcome = cli("run", "r.yaml", "--json")
    assert outcome.code == 5
    assert outcome.json["status"] == "limit_reached"
    steps = cast("list[Mapping[str, JsonValue]]", outcome.json["steps"])
    assert [(step["id"], step["status"]) for step in steps] == [
        ("a", "completed"),
        ("b", "skipped"),
    ]


def test_an_invalid_recipe_is_exit_code_2_with_every_fault(cli: Cli, write: Write) -> None:
    write("r.yaml", "id: r\nsteps:\n  - id: a\n    gaol: x\n  - id: a\n    tool: nope\n")
    outcome = cli("run", "r.yaml")
    assert outcome.code == 2
    assert "r.yaml:4:5" in outcome.err
    assert "did you mean 'goal'" in outcome.err
    assert "duplicate-id" in outcome.err
    assert "Traceback" not in outcome.err


def test_no_store_writes_no_database(cli: Cli, write: Write, here: Path) -> None:
    write("bind.yaml", SET)
    assert cli("run", "bind.yaml", "--no-store", "--db", "j.sqlite").code == 0
    assert not (here / "j.sqlite").exists()


def test_a_stored_run_is_listed_and_shown_by_the_start_of_its_id(cli: Cli, write: Write) -> None:
    write("greet.yaml", GOAL)
    write("s.yaml", script("Hello!"))
    run_id = cli(
        "run", "greet.yaml", "-m", "scripted/s.yaml", "--db", "j.sqlite", "--json"
    ).json["run_id"]  # fmt: skip
    assert str(run_id) in cli("sessions", "list", "--db", "j.sqlite").out
    shown = cli("sessions", "show", str(run_id)[:10], "--db", "j.sqlite", "--messages")
    assert shown.code == 0
    assert "Say hello to you 1 times." in shown.out
    assert "Hello!" in shown.out
    assert cli("sessions", "show", "run_zzz", "--db", "j.sqlite").code == 2


def test_the_database_file_is_for_its_owner_only(cli: Cli, write: Write, here: Path) -> None:
    write("bind.yaml", SET)
    cli("run", "bind.yaml", "--db", "j.sqlite")
    assert (here / "j.sqlite").stat().st_mode & 0o777 == 0o600
    with contextlib.closing(sqlite3.connect(here / "j.sqlite")) as database:
        assert database.execute("select count(*) from entries").fetchone()[0] >= 3


def test_the_configuration_file_names_model_and_extensions(cli: Cli, write: Write) -> None:
    write("greet.yaml", GOAL)
    write("s.yaml", script("From the file"))
    write("minions.toml", 'model = "scripted/s.yaml"\n')
    assert cli("run", "greet.yaml").out == "From the file\n"
    shown = cli("config", "--show-origin")
    assert 'model = "scripted/s.yaml"' in shown.out
    assert "minions.toml" in shown.out


def test_the_environment_wins_over_the_file_and_a_flag_over_both(
    cli: Cli, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("greet.yaml", GOAL)
    for name in ("file", "environment", "flag"):
        write(f"{name}.yaml", script(name))
    write("minions.toml", 'model = "scripted/file.yaml"\n')
    monkeypatch.setenv("MINIONS_MODEL", "scripted/environment.yaml")
    assert cli("run", "greet.yaml").out == "environment\n"
    assert cli("run", "greet.yaml", "-m", "scripted/flag.yaml").out == "flag\n"


def test_an_unknown_configuration_key_is_refused_with_the_near_name(cli: Cli, write: Write) -> None:
    write("bind.yaml", SET)
    write("minions.toml", 'modle = "x"\n')
    outcome = cli("run", "bind.yaml")
    assert outcome.code == 2
    assert "Did you mean 'model'?" in outcome.err


def test_extensions_bring_tools_links_and_models(cli: Cli, write: Write) -> None:
    write("own.py", """
from minions import Completion, CompletionLink, ScriptedModel, tool

@tool(effect="pure")
def double(n: int) -> int:
    '''Twice n.'''
    return 2 * n

class SaysBye(CompletionLink):
    def check(self, execution):
        text = execution.last_text or ""
        return Completion.complete("bye") if "bye" in text else Completion.UNDECIDED

model = ScriptedModel(["thinking", "bye"], name="scripted/own")
""")  # fmt: skip
    write("r.yaml", """
id: r
model: scripted/own
steps:
  - {id: twice, tool: double, params: {n: 21}}
  - {id: talk, goal: talk, completion: {mode: signal, links: [SaysBye]}}
output: "{{ twice }} {{ talk }}"
""")  # fmt: skip
    outcome = cli("run", "r.yaml", "--extensions", "own.py")
    assert (outcome.code, outcome.out) == (0, "42 bye\n")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("raise RuntimeError('boom')", "RuntimeError: boom"),
        ("x = 1", "nothing to use"),
        ("def broken(:", "SyntaxError"),
    ],
)
def test_a_broken_extension_is_one_clear_error(
    cli: Cli, write: Write, text: str, words: str
) -> None:
    write("bind.yaml", SET)
    write("own.py", text)
    outcome = cli("run", "bind.yaml", "--extensions", "own.py")
    assert outcome.code == 2
    assert words in outcome.err
    assert "Traceback" not in outcome.err


HURTFUL = """
import time
from minions import tool

@tool
def raises() -> int:
    raise RuntimeError("it broke")

@tool(timeout_s=0.1)
def hangs() -> int:
    time.sleep(3600)
    return 1

@tool
def floods() -> str:
    return "x" * 50_000_000

@tool
def odd() -> object:
    return object()

@tool
def nan() -> float:
    return float("nan")
"""


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("raises", "tool-failed"),
        ("hangs", "tool-timeout"),
        ("floods", "tool-result-too-large"),
        ("odd", "tool-result-not-json"),
        ("nan", "tool-result-not-json"),
    ],
)
def test_a_hurtful_tool_ends_its_step_with_one_clear_error(
    cli: Cli, write: Write, name: str, code: str
) -> None:
    write("own.py", HURTFUL)
    write("r.yaml", "id: r\nretry: {initial_delay: 0}\n"
          f"steps: [{{id: before, set: {{n: 1}}}}, {{id: t, tool: {name}}}]\n")  # fmt: skip
    outcome = cli("run", "r.yaml", "--extensions", "own.py", "--json")
    assert outcome.code == 1
    assert cast("Mapping[str, JsonValue]", outcome.json["error"])["code"] == code
    steps = cast("list[Mapping[str, JsonValue]]", outcome.json["steps"])
    assert steps[0]["output"] == {"n": 1}
    assert "Traceback" not in outcome.err


def test_a_write_tool_is_refused_without_the_permission(cli: Cli, write: Write, here: Path) -> None:
    """A-71: before the start where the call is certain, else when it is made."""
    recipe = (
        "id: r\ntools: [files: {root: .}]\n%s"
        "steps: [{id: w, tool: files__write, params: {path: a.txt, text: hi}%s}]\n"
    )
    write("certain.yaml", recipe % ("", ""))
    write("no.yaml", recipe % ("", ", when: true"))
    write("yes.yaml", recipe % ("permissions: {allow_write: true}\n", ""))
    refused = cli("run", "certain.yaml")
    assert (refused.code, "error[write-not-allowed]" in refused.err) == (2, True)
    outcome = cli("run", "no.yaml", "--json")
    assert outcome.code == 1
    error = cast("Mapping[str, JsonValue]", outcome.json["error"])
    assert error["code"] == "permission-denied"
    assert not (here / "a.txt").exists()
    assert cli("run", "yes.yaml").code == 0
    assert (here / "a.txt").read_text() == "hi"


def test_json_and_events_exclude_each_other(cli: Cli, write: Write) -> None:
    write("bind.yaml", SET)
    assert cli("run", "bind.yaml", "--json", "--events").code == 2


def test_an_internal_error_is_exit_code_70_without_a_traceback(
    cli: Cli, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("bind.yaml", SET)

    def broken(*_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr("minions.interfaces.cli.recipe_argument.find_recipe", broken)
    outcome = cli("run", "bind.yaml")
    assert outcome.code == 70
    assert "This is a bug in minions" in outcome.err
    assert "Traceback" not in outcome.err


def test_paths_of_a_configuration_file_start_at_that_file(
    cli: Cli, write: Write, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("bind.yaml", SET)
    write("minions.toml", 'db = "beside.sqlite"\n')
    below = here / "below"
    below.mkdir()
    monkeypatch.chdir(below)
    assert cli("run", "../bind.yaml").code == 0
    assert (here / "beside.sqlite").exists()
    assert not (below / "beside.sqlite").exists()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[providers.mine]\nbase_url = 5\n", "[providers.mine]: 'base_url' is 5; a text was"),
        ('[providers.mine]\napi_key_env = "X"\n', "[providers.mine]: 'base_url' is missing"),
        (
            '[providers.mine]\nbase_url = "http://127.0.0.1:1"\ntools_with_schema = "no"\n',
            "true or false",
        ),
        ("max_parallel = 0\n", "max_parallel"),
        ("broken = [\n", "not readable as TOML"),
    ],
)
def test_a_wrong_configuration_is_one_clear_error(
    cli: Cli, write: Write, text: str, words: str
) -> None:
    write("bind.yaml", SET)
    write("minions.toml", text)
    outcome = cli("run", "bind.yaml")
    assert outcome.code == 2
    assert words in outcome.err
    assert "bug" not in outcome.err


def test_an_extension_that_misses_a_package_says_which(cli: Cli, write: Write) -> None:
    write("bind.yaml", SET)
    write("own.py", "import no_such_package_at_all\n")
    outcome = cli("run", "bind.yaml", "--extensions", "own.py")
    assert outcome.code == 2
    assert "error[broken-extension]" in outcome.err
    assert "no_such_package_at_all" in outcome.err
    assert "error[unknown-extension]" in cli("run", "bind.yaml", "--extensions", "nomod").err


def test_config_shows_where_a_header_is_from_and_no_value(cli: Cli, write: Write) -> None:
    write(
        "minions.toml",
        '[providers.lab]\nbase_url = "http://127.0.0.1:1"\n'
        'headers = {X-Gate = "env:GATE", X-Key = "s3cret"}\n',
    )
    for outcome in (cli("config"), cli("config", "--json")):
        assert "env:GATE" in outcome.out
        assert "s3cret" not in outcome.out


@pytest.mark.parametrize("option", ["-i", "--input", "--inputs", "--var"])
def test_an_option_of_other_programs_names_ours(
    cli: Cli, write: Write, here: Path, option: str
) -> None:
    write("r.yaml", "steps: [{id: a, set: {x: 1}}]")
    done = cli("run", "r.yaml", option, "t=1")
    assert done.code == 2
    assert "-p NAME=VALUE, or as --params FILE" in done.err
    assert "Did you mean" not in done.err


def test_an_input_without_its_option_is_told_how_to_give_it(cli: Cli, write: Write) -> None:
    write("r.yaml", "steps: [{id: a, set: {x: 1}}]")
    done = cli("run", "r.yaml", "t=1")
    assert (done.code, "-p NAME=VALUE" in done.err) == (2, True)
    assert "-p NAME=VALUE" not in cli("run", "r.yaml", "again").err
    assert "-p NAME=VALUE" not in cli("sessions", "list", "t=1").err


def test_inputs_as_the_value_of_params_are_told_how_to_give_them(
    cli: Cli, write: Write, here: Path
) -> None:
    write("r.yaml", "inputs: {t: string}\nsteps: [{id: a, set: {x: '{{ inputs.t }}'}}]")
    done = cli("run", "r.yaml", "--params", '{"t": "x"}')
    assert (done.code, "--params takes a file, and this is its text" in done.err) == (2, True)
    assert "-p NAME=VALUE" in done.err


@pytest.mark.parametrize("command", ["validate", "explain", "graph"])
def test_what_agents_list_knows_can_be_looked_at_by_name(
    cli: Cli, here: Path, command: str
) -> None:
    assert "StepExecutor" in cli("agents", "list").out
    done = cli(command, "StepExecutor")
    assert (done.code, done.err) == (0, "")
    assert done.out


def test_a_recipe_in_one_line_of_json_is_a_recipe(cli: Cli, here: Path) -> None:
    text = '{"id": "j", "steps": [{"id": "a", "set": {"x": 1}}]}'
    assert cli("validate", text).out.endswith(": ok\n")
    assert json.loads(cli("run", text, "--no-store").out) == {"x": 1}
    wrong = cli("validate", text.replace("set", "sett"))
    assert wrong.code == 2
    assert "did you mean 'set'?" in wrong.err + wrong.out
    assert run(text).output == {"x": 1}

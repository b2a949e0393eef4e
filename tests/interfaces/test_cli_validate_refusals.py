"""`minions validate` refuses what `minions run` would refuse before its first call."""

from __future__ import annotations

import pytest

from command_line import Cli, Write

STEPS = "steps: [{id: a, goal: Say hello}]\n"


def test_a_provider_that_nobody_configured_is_an_error_with_the_near_name(
    cli: Cli, write: Write
) -> None:
    write("r.yaml", f"model: opnai/gpt-5-mini\n{STEPS}")
    done = cli("validate", "r.yaml")
    assert done.code == 2
    assert "error[unknown-provider]: There is no model provider 'opnai'" in done.err
    assert "r.yaml:1:8" in done.err
    assert "Did you mean 'openai'?" in done.err


def test_a_provider_of_the_configuration_is_known(cli: Cli, write: Write) -> None:
    write("minions.toml", '[providers.house]\nbase_url = "https://models.example/v1"\n')
    write("r.yaml", f"model: house/large\n{STEPS}")
    assert cli("validate", "r.yaml").code == 0


def test_a_key_variable_that_recipes_may_not_name_is_an_error_at_its_place(
    cli: Cli, write: Write
) -> None:
    write("r.yaml", f"model: {{name: openai/gpt-5-mini, api_key_env: AWS_SECRET}}\n{STEPS}")
    done = cli("validate", "r.yaml")
    assert done.code == 2
    assert "error[key-not-allowed]" in done.err
    assert "r.yaml:1:47" in done.err
    write("minions.toml", 'recipe_key_variables = ["AWS_SECRET"]\n')
    assert cli("validate", "r.yaml").code == 0


@pytest.mark.parametrize("model", ["openai/gpt-5-mini", "ollama/llama3.2"])
def test_a_key_or_a_server_that_is_missing_here_is_no_fault_of_the_recipe(
    cli: Cli, write: Write, model: str
) -> None:
    write("r.yaml", f"model: {model}\n{STEPS}")
    assert cli("validate", "r.yaml").code == 0


def test_a_write_that_nothing_allows_is_an_error_for_validate_and_for_run(
    cli: Cli, write: Write
) -> None:
    step = "{id: a, tool: files__write, params: {path: a, text: b}}"
    recipe = f"tools: [{{files: {{root: .}}}}]\nsteps: [{step}]\n"
    write("r.yaml", recipe)
    for command in ("validate", "run"):
        done = cli(command, "r.yaml")
        assert (done.code, "error[write-not-allowed]" in done.err) == (2, True)
    write("r.yaml", f"permissions: {{allow_files__write: true}}\n{recipe}")
    assert cli("validate", "r.yaml").err == ""


def test_a_write_that_a_run_may_do_without_is_a_warning(cli: Cli, write: Write) -> None:
    step = "{id: a, tool: files__write, params: {path: a, text: b}, optional: true}"
    write("r.yaml", f"tools: [{{files: {{root: .}}}}]\nsteps: [{step}]\n")
    done = cli("validate", "r.yaml")
    assert (done.code, "warning[write-not-allowed]" in done.err) == (0, True)


def test_a_script_that_the_recipe_names_has_to_be_there(cli: Cli, write: Write) -> None:
    """It lies beside the recipe, so that a run would be refused wherever the recipe is."""
    write("parts/r.yaml", f"model: scripted/a.yaml\n{STEPS}")
    done = cli("validate", "parts/r.yaml")
    assert done.code == 2
    assert "error[bad-script]: There is no script 'parts/a.yaml'" in done.err
    assert "parts/r.yaml:1:8" in done.err
    write("parts/a.yaml", "answers: [Hello]\n")
    assert cli("validate", "parts/r.yaml").code == 0


def test_an_unknown_key_with_a_near_name_is_told_without_the_list_of_keys(
    cli: Cli, write: Write
) -> None:
    write("near.yaml", "id: near\nsteps:\n  - {id: a, set: {n: 1}, wen: x}\n")
    err = cli("validate", "near.yaml").err
    assert "did you mean 'when'?" in err
    assert "keys are" not in err
    write("far.yaml", "id: far\nsteps:\n  - {id: a, set: {n: 1}, zzzzzz: x}\n")
    assert "keys are: id, " in cli("validate", "far.yaml").err


def test_values_of_unknown_type_are_told_and_refused_where_types_are_strict(
    cli: Cli, write: Write
) -> None:
    write(
        "r.yaml",
        "inputs: {text: string}\ntools: [data]\nsteps:\n"
        "  - {id: a, tool: data__parse_json, params: {text: '{{ inputs.text }}'}}\n"
        "  - {id: b, set: {x: '{{ a.title }}'}}\n",
    )
    done = cli("validate", "r.yaml")
    assert done.code == 0
    assert "note: r.yaml: 1 value is unchecked: 'a'" in done.err
    strict = cli("validate", "--strict-types", "r.yaml")
    assert strict.code == 2
    assert "error[unknown-type]: 'a' has no known type, so 'title' of it" in strict.err
    assert "returns: {field: type}" in strict.err


def test_what_may_be_missing_is_a_warning_and_refused_where_types_are_strict(
    cli: Cli, write: Write
) -> None:
    write(
        "r.yaml",
        "steps:\n  - {id: a, goal: Go, output: {note?: string}}\n"
        "  - {id: b, set: {x: '{{ a.note }}'}}\n",
    )
    done = cli("validate", "r.yaml")
    assert done.code == 0
    assert "warning[may-be-missing]: 'a.note' may be missing" in done.err
    assert "a.note | default('…'); or do this only when: a.note is defined" in done.err
    strict = cli("validate", "--strict-types", "r.yaml")
    assert strict.code == 2
    assert "error[may-be-missing]: 'a.note' may be missing" in strict.err

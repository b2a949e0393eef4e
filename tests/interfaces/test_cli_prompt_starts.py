"""`explain --prompts`: with what prompts begin alike, and what a server's cache saves."""

from __future__ import annotations

import pytest

from command_line import Cli, Outcome, Write
from minions.data.json_values import as_object, as_objects

NOTES = "A note about parcels and orders.\n" * 300
RECIPE = """
id: notes
model: mine/m1
system_prompt: You are careful.
context: [{file: notes.md}]
steps:
  - {id: first, goal: What?, output: {answer: string}}
  - {id: each, loop: [a, b, c], goal: "Is {{ loop.item }} true?", output: {ok: boolean}}
  - {id: last, system_prompt: Be short., goal: "Go: {{ first.answer }}", output: {ok: boolean}}
"""
SETTINGS = """
[providers.mine]
base_url = "http://127.0.0.1:9/v1"
prompt_cache = "RULES"
[prices."mine/m1"]
input_per_mtok = 1000.0
cached_input_per_mtok = 100.0
cache_write_per_mtok = 1250.0
output_per_mtok = 1.0
"""


@pytest.fixture
def told(cli: Cli, write: Write) -> Cli:
    """`explain` of the recipe, by whose rules, with further options."""
    write("notes.md", NOTES)
    write("notes.yaml", RECIPE)

    def explain(rules: str, *options: str) -> Outcome:
        write("minions.toml", SETTINGS.replace("RULES", rules))
        return cli("explain", "notes.yaml", "--trust", *options)

    return explain


def test_prompts_are_a_tree_of_what_they_begin_with(told: Cli) -> None:
    """A-176"""
    done = told("anthropic", "--prompts")
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    start = lines.index("what they begin with, in tokens:")
    assert [line.split(":")[0] for line in lines[start + 1 :]] == [
        "  system 4, context 2,475",
        "    first",
        "    each (for 3 items)",
        "    last",
        "  first prompts of mine/m1",
        "      instead of $12.52",
    ]
    assert "at most:" not in done.out
    starts = as_objects(told("anthropic", "--prompts", "--json").json["prompt_starts"])
    assert [each["steps"] for each in starts] == [["first", "each", "last"]]
    assert [each["steps"] for each in as_objects(starts[0]["then"])] == [
        ["first"],
        ["each"],
        ["last"],
    ]


@pytest.mark.parametrize(
    ("rules", "cached"),
    [
        ("anthropic", 2 * 2_479 + 2 * 2_499),
        # The form of an answer comes before all texts there, and the first step has its own.
        ("openai", 2_432 + 2 * 2_432),
        ("off", 0),
    ],
)
def test_money_is_foretold_with_and_without_a_cache(told: Cli, rules: str, cached: int) -> None:
    (forecast,) = as_objects(told(rules, "--json").json["caches"])
    total = forecast["input_tokens"]
    assert isinstance(total, int)
    assert forecast["cached_tokens"] == cached
    assert forecast["cost_usd"] == pytest.approx(total / 1_000)
    written = (total - cached) * 1.25 if rules == "anthropic" else total - cached
    assert forecast["cached_cost_usd"] == pytest.approx((written + cached / 10) / 1_000)


def test_what_gemini_keeps_under_a_name_is_foretold_with_its_storage(told: Cli) -> None:
    """A-176"""
    (plain,) = as_objects(told("gemini", "--json").json["caches"])
    form = 'gemini-explicit"\napi = "gemini'
    (stored,) = as_objects(told(form, "--json").json["caches"])
    assert stored["cached_tokens"] == plain["cached_tokens"]
    more = float(str(stored["cached_cost_usd"])) - float(str(plain["cached_cost_usd"]))
    longest = 2_499  # what the items of the loop begin with
    assert more == pytest.approx(longest * 100 / 1e6 + longest / 1e6 * 300 / 3_600)


def test_what_is_kept_for_longer_is_foretold_at_its_price(
    told: Cli, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A-176"""
    retention = 'RULES"\nprompt_cache_retention = "long'
    monkeypatch.setitem(globals(), "SETTINGS", SETTINGS.replace("RULES", retention))
    form = 'anthropic"\napi = "messages'
    (forecast,) = as_objects(told(form, "--json").json["caches"])
    total, cached = forecast["input_tokens"], forecast["cached_tokens"]
    assert isinstance(total, int)
    assert isinstance(cached, int)
    cost = ((total - cached) * 2 + cached / 10) / 1_000
    assert forecast["cached_cost_usd"] == pytest.approx(cost)
    refused = told("openai", "--json")
    assert refused.code == 2
    assert "no-long-retention" in refused.out
    assert "'m1'" in refused.out


def test_examples_that_are_chosen_for_each_question_are_no_beginning(
    cli: Cli, write: Write
) -> None:
    step = "goal: Sort., examples: {choose: nearest, items: [{input: a, output: b}]}"
    write("near.yaml", f"id: near\nsteps: [{{id: a, {step}}}, {{id: b, {step}}}]")
    starts = as_objects(cli("explain", "near.yaml", "--prompts", "--json").json["prompt_starts"])
    assert [each["steps"] for each in starts] == [["a"], ["b"]]


def test_what_is_not_known_is_said(told: Cli) -> None:
    done = told("off", "--prompts")
    assert "first prompts of mine/m1: 12,519 tokens, no cache is known" in done.out
    assert "no cache" not in told("off").out
    done = told("gemini")
    assert "of them from the cache" in done.out
    assert as_object(told("gemini", "--json").json)["recipe"] == "notes"

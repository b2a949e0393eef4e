"""What model calls cost: own prices, bundled ones, and what is not known."""

from __future__ import annotations

import subprocess
import sys
import threading
from datetime import UTC, datetime

import pytest
from attrs import evolve
from genai_prices import Usage
from genai_prices.data_snapshot import get_snapshot
from hypothesis import given
from hypothesis.strategies import builds, integers

from minions.adapters.models.openai import OpenAIModel
from minions.adapters.models.price_books import GenaiPriceBook, OwnPrice
from minions.contracts.messages import TokenUsage
from patience import HANG_S, work_of

AT = datetime(2026, 11, 1, tzinfo=UTC)
USAGE = TokenUsage(input_tokens=1_000_000, output_tokens=1_000_000)
OPENAI = "https://api.openai.com/v1"
BOOK = GenaiPriceBook()


def cost(model: str, base_url: str | None = None, usage: TokenUsage = USAGE) -> float | None:
    return GenaiPriceBook().cost_usd(model, usage, at=AT, base_url=base_url)


# --- bundled -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "base_url"),
    [
        ("openai/gpt-4.1-mini", None),
        ("openai/gpt-4.1-mini", OPENAI),
        ("mine/gpt-4.1-mini", OPENAI),
    ],
)
def test_a_listed_model_has_its_price_where_its_provider_answers(
    model: str, base_url: str | None
) -> None:
    assert cost(model, base_url) == pytest.approx(0.40 + 1.60)


@pytest.mark.parametrize(
    ("model", "base_url"),
    [
        ("openai/gpt-4.1-mini", "https://proxy.example/v1"),
        ("openai/gpt-4.1-mini", "http://127.0.0.1:8000/v1"),
        ("openai/no-such-model", OPENAI),
        ("openai/no-such-model", None),
        ("my-openai/gpt-4.1-mini", None),
        ("ollama/llama3.2", None),
        ("scripted/quickstart", None),
        ("gpt-4.1-mini", None),
        ("openai/", None),
        ("", None),
    ],
)
def test_what_is_not_known_is_unknown_and_never_free(model: str, base_url: str | None) -> None:
    assert cost(model, base_url) is None


def test_a_model_that_is_not_priced_by_tokens_has_no_price() -> None:
    by_the_minute = [
        f"{provider.id}/{model.id}"
        for provider in get_snapshot().providers
        for model in provider.models
        if model.get_prices(AT).input_mtok is None
    ]
    book = GenaiPriceBook()
    assert by_the_minute
    assert {book.cost_usd(model, USAGE, at=AT) for model in by_the_minute} == {None}


_SIZES = ((1000, 200, 150, 300), (300_000, 0, 0, 5), (1_500_000, 900_000, 9_000, 9))


def test_every_listed_price_is_what_the_library_makes_of_it() -> None:
    """Tiers, input from and into the cache, and fees per request included."""
    book = GenaiPriceBook()
    wrong = []
    for provider in get_snapshot().providers:
        for model in provider.models:
            for asked, cached, written, said in _SIZES:
                usage = TokenUsage(
                    input_tokens=asked,
                    output_tokens=said,
                    cached_tokens=cached,
                    cache_write_tokens=written,
                )
                found = book.cost_usd(f"{provider.id}/{model.id}", usage, at=AT)
                if found is None:
                    continue
                counts = Usage(
                    input_tokens=asked,
                    cache_read_tokens=cached,
                    cache_write_tokens=written,
                    output_tokens=said,
                )
                listed = provider.find_model(model.id, all_providers=get_snapshot().providers)
                assert listed is not None
                price = listed.calc_price(counts, provider, genai_request_timestamp=AT).total_price
                if found != pytest.approx(float(price)):
                    wrong.append((provider.id, model.id, found, price))
    assert wrong == []


def test_the_context_is_listed_too() -> None:
    book = GenaiPriceBook({"lab/some": OwnPrice(input_per_mtok=1, output_per_mtok=1)})
    assert book.context_tokens("openai/gpt-4.1-mini") == 1_000_000
    assert book.context_tokens("lab/some") is None


def test_a_known_model_is_not_searched_for_again() -> None:
    book = GenaiPriceBook()

    def ask() -> object:
        return book.cost_usd("openai/gpt-4.1-mini", USAGE, at=AT, base_url=OPENAI)

    assert work_of(ask) < 100


# --- the operator's ----------------------------------------------------------------------------


def test_an_own_price_wins_wherever_the_model_is() -> None:
    own = OwnPrice(input_per_mtok=1.0, output_per_mtok=2.0)
    book = GenaiPriceBook({"openai/gpt-4.1-mini": own})
    usage = TokenUsage(input_tokens=500_000, output_tokens=250_000, cached_tokens=100_000)
    for base_url in (None, OPENAI, "http://127.0.0.1:8000/v1"):
        found = book.cost_usd("openai/gpt-4.1-mini", usage, at=AT, base_url=base_url)
        assert found == pytest.approx(0.5 + 0.5)


def test_cached_input_has_its_own_price_where_there_is_one() -> None:
    own = OwnPrice(input_per_mtok=1.0, output_per_mtok=2.0, cached_input_per_mtok=0.1)
    usage = TokenUsage(input_tokens=500_000, cached_tokens=400_000)
    assert own.cost_usd(usage) == pytest.approx(0.1 + 0.04)


def test_input_that_is_stored_in_the_cache_has_its_own_price_where_there_is_one() -> None:
    own = OwnPrice(input_per_mtok=1.0, output_per_mtok=2.0, cache_write_per_mtok=2.0)
    usage = TokenUsage(input_tokens=500_000, cached_tokens=300_000, cache_write_tokens=100_000)
    assert own.cost_usd(usage) == pytest.approx(0.3 + 0.1 + 0.2)
    assert evolve(own, cache_write_per_mtok=None).cost_usd(usage) == pytest.approx(0.5)


def test_input_that_is_stored_for_an_hour_has_its_own_price() -> None:
    """A-176: of an own price twice that of other input, if nothing else is said."""
    own = OwnPrice(input_per_mtok=1.0, output_per_mtok=2.0, cache_write_per_mtok=1.25)
    usage = TokenUsage(
        input_tokens=300_000, cache_write_tokens=200_000, long_cache_write_tokens=100_000
    )
    assert own.cost_usd(usage) == pytest.approx(0.1 + 0.125 + 0.2)
    assert evolve(own, long_cache_write_per_mtok=3.0).cost_usd(usage) == pytest.approx(0.525)
    more = TokenUsage(input_tokens=1_000, cache_write_tokens=1_000)
    long = evolve(more, long_cache_write_tokens=1_000)
    book = GenaiPriceBook()
    for model, factor in (("anthropic/claude-sonnet-4-5", 2 / 1.25), ("openai/gpt-4.1", 2.0)):
        usual = book.cost_usd(model, more, at=AT)
        assert usual is not None
        assert book.cost_usd(model, long, at=AT) == pytest.approx(usual * factor)


@given(
    usage=builds(
        TokenUsage,
        input_tokens=integers(0, 10**6),
        cached_tokens=integers(0, 10**6),
        cache_write_tokens=integers(0, 10**6),
        long_cache_write_tokens=integers(0, 10**6),
    )
)
def test_whatever_a_server_counts_input_is_paid_once(usage: TokenUsage) -> None:
    own = OwnPrice(
        input_per_mtok=1.0,
        output_per_mtok=0.0,
        cached_input_per_mtok=1.0,
        cache_write_per_mtok=1.0,
        long_cache_write_per_mtok=1.0,
    )
    assert own.cost_usd(usage) == pytest.approx(usage.input_tokens / 1_000_000)


def test_an_own_price_may_be_zero() -> None:
    book = GenaiPriceBook({"lab/some": OwnPrice(input_per_mtok=0, output_per_mtok=0)})
    assert book.cost_usd("lab/some", USAGE, at=AT) == 0.0


def test_a_model_behind_a_server_tells_where_it_is() -> None:
    model = OpenAIModel(provider="openai", model="gpt-4.1-mini", base_url=OPENAI, api_key=None)
    assert model.base_url == OPENAI
    assert cost(model.name, model.base_url) is not None


# --- what it loads -----------------------------------------------------------------------------


def test_expecting_a_listed_model_loads_beside_the_caller() -> None:
    book = GenaiPriceBook()
    book.expect("openai/gpt-4.1-mini", base_url=OPENAI)
    book.expect("openai/gpt-4.1-mini", base_url=OPENAI)
    for thread in threading.enumerate():
        if thread.name == "minions-prices":
            thread.join(HANG_S)
    assert book.cost_usd("openai/gpt-4.1-mini", USAGE, at=AT, base_url=OPENAI) is not None


def test_models_of_this_machine_and_own_prices_load_no_data() -> None:
    check = """
import sys
from datetime import UTC, datetime
from minions.adapters.models.price_books import GenaiPriceBook, OwnPrice
from minions.contracts.messages import TokenUsage

book = GenaiPriceBook({"openai/mine": OwnPrice(input_per_mtok=1, output_per_mtok=1)})
usage, at = TokenUsage(input_tokens=1), datetime.now(UTC)
for model, url in (
    ("scripted/a", None), ("ollama/b", "http://127.0.0.1:11434/v1"),
    ("openai/c", "http://[::1]/v1"),
    ("lab/d", "http://10.0.0.7:8000/v1"), ("openai/mine", "https://api.openai.com/v1"),
):
    book.expect(model, base_url=url)
    book.cost_usd(model, usage, at=at, base_url=url)
print([name for name in ("genai_prices", "pydantic", "httpx2") if name in sys.modules])
"""
    done = subprocess.run(
        [sys.executable, "-c", check], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")


@pytest.mark.parametrize(
    ("model", "base_url"),
    [
        ("openai/gpt-4.1-mini", None),
        ("openai/gpt-4.1-mini", "https://api.openai.com/v1"),
        ("anthropic/claude-haiku-4-5", "https://api.anthropic.com/v1"),
        ("gemini/gemini-2.5-flash", "https://generativelanguage.googleapis.com/v1beta"),
    ],
)
def test_a_batch_costs_half_at_the_providers_own_server(model: str, base_url: str | None) -> None:
    """A-177."""
    usage = TokenUsage(input_tokens=1_000, output_tokens=200)
    alone = BOOK.cost_usd(model, usage, at=AT, base_url=base_url)
    assert alone is not None
    assert BOOK.batch_cost_usd(model, usage, at=AT, base_url=base_url) == pytest.approx(alone / 2)


def test_cached_input_is_discounted_in_batches_as_each_provider_says() -> None:
    usage = TokenUsage(input_tokens=1_000, cached_tokens=1_000)
    google = "https://generativelanguage.googleapis.com/v1beta"
    for model, base_url, factor in (
        ("openai/gpt-4.1-mini", "https://api.openai.com/v1", 0.5),
        ("anthropic/claude-haiku-4-5", "https://api.anthropic.com/v1", 0.5),
        ("gemini/gemini-2.5-flash", google, 1.0),
    ):
        alone = BOOK.cost_usd(model, usage, at=AT, base_url=base_url)
        assert alone is not None
        batched = BOOK.batch_cost_usd(model, usage, at=AT, base_url=base_url)
        assert batched == pytest.approx(alone * factor)


def test_a_batch_at_another_server_costs_the_full_price_unless_the_operator_says_otherwise() -> (
    None
):
    usage = TokenUsage(input_tokens=1_000_000, output_tokens=1_000_000)
    full = OwnPrice(input_per_mtok=1, output_per_mtok=2)
    own = {"lab/m": full, "lab/n": evolve(full, batch_factor=0.25), "openai/x": full}
    book = GenaiPriceBook(own)
    there = "https://lab.example/v1"
    assert book.batch_cost_usd("lab/m", usage, at=AT, base_url=there) == 3
    assert book.batch_cost_usd("lab/n", usage, at=AT, base_url=there) == 0.75
    assert book.batch_cost_usd("openai/x", usage, at=AT) == 1.5
    assert book.batch_cost_usd("lab/unknown", usage, at=AT, base_url=there) is None

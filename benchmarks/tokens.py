"""Counts the tokens of the same work done by one agent, by agents step by step, and by a plan.

python -m benchmarks.tokens             all workloads; writes tokens.md, also into RESULTS.md
python -m benchmarks.tokens --estimate  counts four characters as a token, printed only
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Final

from attrs import evolve, frozen

from benchmarks.token_counting import (
    Counts,
    TokenizerMissingError,
    cl100k,
    counted,
    estimate,
    prefixes_read,
)
from benchmarks.token_forms import Form, requests_of
from benchmarks.token_parts import Part, chat_requests, parts, rows
from benchmarks.token_workloads import NotDoneError, Workload
from minions.adapters.models.price_books import GenaiPriceBook
from minions.contracts.messages import TokenUsage

__all__ = ["Table", "goals", "measured", "page"]

WORKLOADS: Final = ("users", "pipeline", "currencies")
_HERE: Final = Path(__file__).parent
_PRICED: Final = (Form.HISTORY, Form.AGENTS, Form.PLANNED, Form.PLANNED_WHOLE)
"""Forms of which the cost in money is shown, also that of a second run."""
_OUTPUT_PRICE: Final = 5
"""A token of output costs about five times as much as one of input."""


@frozen(kw_only=True)
class Table:
    """The figures of one workload, by form."""

    work: Workload
    counts: Mapping[Form, Counts]
    again: Mapping[Form, Counts]
    """Of a second run right after the first, of the forms that are priced."""

    def fewer(self, form: Form) -> float:
        """Input tokens that a form saves against the full history."""
        return 1 - self.counts[form].input / self.counts[Form.HISTORY].input

    def cheaper(self, form: Form) -> float:
        """What it saves of the price of the input, with a prefix cache."""
        return 1 - self.counts[form].price / self.counts[Form.HISTORY].price

    def cheaper_in_all(self, form: Form) -> float:
        """What it saves of the bill, output included."""
        return 1 - _bill(self.counts[form]) / _bill(self.counts[Form.HISTORY])


def _bill(counts: Counts) -> float:
    return counts.price + counts.output * _OUTPUT_PRICE


@frozen(kw_only=True)
class Goal:
    """A goal of the first workload."""

    words: str
    measured: str
    is_met: bool


async def measured(name: str, *, estimated: bool) -> Table:
    """Do the work of a workload in all forms, and count.

    Raises:
        NotDoneError: A form did not do the work.
        TokenizerMissingError: tiktoken or its vocabulary is not there.
    """
    tokenizer = estimate if estimated else cl100k()
    work = Workload.read(name)
    counts: dict[Form, Counts] = {}
    again: dict[Form, Counts] = {}
    for form in Form:
        requests = await requests_of(work, form)
        counts[form] = counted(requests, tokenizer)
        if form in _PRICED:
            again[form] = counted(await requests_of(work, form), tokenizer, requests)
    return Table(work=work, counts=counts, again=again)


def goals(table: Table) -> list[Goal]:
    """The goals, with what was measured."""
    planned = table.counts[Form.PLANNED].input
    again = table.again[Form.AGENTS].share_read
    found = [
        _share("agents with shared context: money for input saved", table.cheaper(Form.AGENTS), 0),
        _share("agents, a second run: input read from the cache", again, 0.7),
        _share("planned recipe: input tokens saved", table.fewer(Form.PLANNED), 0.93),
        _share("planned recipe: money for input saved", table.cheaper(Form.PLANNED), 0.6),
        _share("with code passed along: tokens saved", table.fewer(Form.PLANNED_WHOLE), 0.85),
    ]
    if table.work.name == WORKLOADS[0]:
        found.append(
            Goal(
                words="planned recipe: input tokens in all, at most 4,000",
                measured=f"{planned:,}",
                is_met=planned <= 4_000,
            )
        )
    return found


def _share(words: str, share: float, least: float) -> Goal:
    return Goal(
        words=f"{words}, at least {least:.0%}", measured=f"{share:.1%}", is_met=share >= least
    )


def page(
    tables: Sequence[Table], found: Sequence[Part], turns: Sequence[float], *, estimated: bool
) -> str:
    """The page with all figures.

    Args:
        turns: The part of each request of a chat that the next one reads from the cache.
    """
    return "\n".join(
        [
            *_head(estimated),
            *_rows(tables),
            *(line for table in tables for line in _goal_rows(table)),
            *_chat_rows(turns),
            *_losses(tables),
            *_PARTS.splitlines(),
            *rows(found),
            *_money(tables),
        ]
    )


def _head(estimated: bool) -> list[str]:
    tokenizer = "estimated: four characters are a token" if estimated else "tokenizer cl100k_base"
    return _HEAD.format(tokenizer=tokenizer).splitlines()


_HEAD: Final = """\
# Tokens

The same work in several forms. A scripted model plays all of them: it writes the same files in
each, makes one mistake that the tests find, and repairs it. At the end the same tests pass and
the files are the same; a form that fails makes the benchmark fail. Counted is what every request
sends: messages, tool calls, tool results, and schemas of tools and answers
({tokenizer}).

Input with cache: a prefix of at least 1,024 tokens that an earlier request had, in steps of 128,
costs a tenth. Bill: with output at five times the price of input. Savings are against one agent
with full history that makes one call a turn. `make tokens` writes this page.

"""


def _rows(tables: Sequence[Table]) -> Iterator[str]:
    heads = ("calls", "input", "largest prompt", "output", "input with cache")
    savings = ("input saved", "input with cache saved", "bill saved")
    yield f"| work | form | {' | '.join((*heads, *savings))} |"
    yield "|---|---|" + "--:|" * len((*heads, *savings))
    for table in tables:
        for form, counts in table.counts.items():
            if form is Form.ALONE:
                continue
            sizes = (counts.calls, counts.input, counts.largest, counts.output, counts.price)
            shares = (table.fewer(form), table.cheaper(form), table.cheaper_in_all(form))
            cells = [*(f"{each:,.0f}" for each in sizes), *map(_saved, shares)]
            is_base = form is Form.HISTORY
            cells[5:] = ["", "", ""] if is_base else cells[5:]
            yield f"| {table.work.title} | {form.value} | {' | '.join(cells)} |"


def _saved(share: float) -> str:
    return f"{share:.1%}" if share >= 0 else f"**{share:.0%}**"


def _goal_rows(table: Table) -> Iterator[str]:
    yield from ("", f"| goal ({table.work.title}) | measured | met |", "|---|--:|---|")
    for goal in goals(table):
        yield f"| {goal.words} | {goal.measured} | {'yes' if goal.is_met else '**no**'} |"


def _chat_rows(turns: Sequence[float]) -> Iterator[str]:
    goal = _share("each request reads of the one before it", min(turns, default=0), 0.9)
    mean = sum(turns) / max(len(turns), 1)
    yield from ("", f"| goal (a chat, {len(turns)} requests) | measured | met |", "|---|--:|---|")
    words = f"{goal.measured}; on average {mean:.1%}"
    yield f"| {goal.words} | {words} | {'yes' if goal.is_met else '**no**'} |"


def _losses(tables: Sequence[Table]) -> list[str]:
    """What the figures do not say for themselves."""
    if len(tables) < len(WORKLOADS):
        return []
    small, large = tables[:-1], tables[-1]
    text = _LOSSES.format(
        alone=_each(small, Form.ALONE, Table.cheaper),
        alone_large=f"{large.cheaper(Form.ALONE):.0%}",
        again=", ".join(f"{each.again[Form.AGENTS].share_read:.0%}" for each in tables),
        fewer=_each(tables, Form.PLANNED, Table.fewer),
        cheaper=_each(tables, Form.PLANNED, Table.cheaper),
        whole_cheaper=_each(tables, Form.PLANNED_WHOLE, Table.cheaper),
        bill=_each(tables, Form.PLANNED, Table.cheaper_in_all),
        batched=_against_batches(tables, Form.PLANNED),
        whole_batched=_against_batches(tables, Form.PLANNED_WHOLE),
        large=f"{large.counts[Form.PLANNED].input:,}",
        largest=f"{large.counts[Form.PLANNED].largest:,}",
    )
    return text.splitlines()


_LOSSES: Final = """
Where steps lose, or save less than it seems (figures: user management, pipeline, change):

- Agents that work step by step pay more than one agent where the server has a cache, the work is
  small, and each reads by itself what it needs (saved: {alone}; {alone_large} where the one
  conversation gets long): they have only the schemas of the tools in common. In the row above they
  read the files that were there in the `context` of the recipe, and what earlier steps wrote in
  their own, in the order of writing: each prompt begins with the one before. In a second run of the
  recipe {again} of their input is read from the cache.
- A cache does nothing for a plan: no two of its requests begin with the same 1,024 tokens. So the
  planned recipe saves {fewer} of the input tokens, but {cheaper} of their price; where
  code is passed along, {whole_cheaper}.
- What models write is about the same in all forms, and costs more a token than what they read: of
  the whole bill the planned recipe saves {bill}.
- An agent that makes several calls in a turn sends its history less often. Against that one the
  planned recipe saves {batched} of the price of the input with a cache; where code is
  passed along, {whole_batched}.
- `share: names` needs a planner that writes the interfaces into the goals, as this one does: a step
  sees no line of what others wrote. `outline`, the default, shows signatures; `whole` everything.
- Where files are changed, each step has to see those that it changes, whole: the change across a
  repository takes {large} tokens. Its largest request, {largest} tokens, is the repair after a
  failed test that covers everything that was changed.
- The model is scripted: nothing here says how well a model works with less before its eyes.
"""


_PARTS: Final = """
What is left out of prompts, one thing at a time: the same work without it and with it. What a goal
does not read of earlier steps (`share`, templates) shows in the rows of the planned recipe above.
A prefix cache counts as there. Where all of a long result is needed, reading it in pieces costs
more than reading it at once: raise `max_tool_result_characters` for such a step.

"""
_LISTS: Final = ("openai/gpt-5", "anthropic/claude-haiku-4-5", "google/gemini-2.5-flash")


def _money(tables: Sequence[Table]) -> Iterator[str]:
    """What the work costs by the price lists of today."""
    prices = GenaiPriceBook()
    yield from _MONEY.format(version=version("genai-prices")).splitlines()
    for model in _LISTS:
        yield from ("", f"| work | {model} | no cache | cache | second run | batch |")
        yield "|---|---|--:|--:|--:|--:|"
        for table in tables:
            for form in _PRICED:
                costs = _costs(table, form, model, prices)
                cells = " | ".join(f"${each:.4f}" for each in costs)
                yield f"| {table.work.title} | {form.value} | {cells} |"


def _costs(table: Table, form: Form, model: str, prices: GenaiPriceBook) -> list[float]:
    """US dollars without a cache, with one, in a second run, and through batches."""
    first, again = table.counts[form], table.again[form]
    stores = model.startswith("anthropic/")  # whoever else has a cache stores for nothing
    plain = TokenUsage(input_tokens=first.input, output_tokens=first.output)
    usages = [plain]
    usages += [
        evolve(plain, cached_tokens=each.read, cache_write_tokens=each.stored if stores else 0)
        for each in (first, again)
    ]
    costs = [prices.cost_usd(model, each, at=datetime.now(UTC)) or 0.0 for each in usages]
    return [*costs, costs[0] * _BATCH_PRICE]


_BATCH_PRICE: Final = 0.5
"""All three sell answers within a day for half the price."""
_MONEY: Final = """
In US dollars, by the prices of genai-prices {version}. A second run is one of the same recipe
within the time for which the server keeps prompts; `batch` is `--patience`: half of the price
without a cache, for what a batch reads from one is not promised.
"""


def _each(tables: Sequence[Table], form: Form, share: Callable[[Table, Form], float]) -> str:
    return ", ".join(f"{share(table, form):.0%}" for table in tables)


def _against_batches(tables: Sequence[Table], form: Form) -> str:
    shares = (1 - each.counts[form].price / each.counts[Form.BATCHED].price for each in tables)
    return ", ".join(f"{share:.0%}" for share in shares)


def main(arguments: Sequence[str]) -> None:
    """Count and print; write only figures of the tokenizer."""
    parser = argparse.ArgumentParser(description="Tokens of the same work in several forms.")
    parser.add_argument("--estimate", action="store_true", help="four characters are a token")
    options = parser.parse_args(arguments)
    try:
        tables = [asyncio.run(measured(name, estimated=options.estimate)) for name in WORKLOADS]
        tokenizer = estimate if options.estimate else cl100k()
        found = asyncio.run(parts(tokenizer, [table.work for table in tables]))
        turns = prefixes_read(asyncio.run(chat_requests()), tokenizer)
    except (TokenizerMissingError, NotDoneError) as error:
        sys.exit(f"error: {error}")
    text = page(tables, found, turns, estimated=options.estimate)
    print(text)
    if not options.estimate:
        (_HERE / "tokens.md").write_text(f"{text}\n", "utf-8")
        results = _HERE / "RESULTS.md"
        results.write_text(_with_section(results.read_text("utf-8"), f"#{text}"), "utf-8")


def _with_section(results: str, section: str) -> str:
    """The results with the section in place of the earlier one, or at the end."""
    title = section.partition("\n")[0]
    before, _, rest = results.partition(f"{title}\n")
    _, heading, after = rest.partition("\n## ")
    kept = f"\n{heading.strip()} {after}" if heading else ""
    return f"{before.rstrip()}\n\n{section.rstrip()}\n{kept}"


if __name__ == "__main__":
    main(sys.argv[1:])

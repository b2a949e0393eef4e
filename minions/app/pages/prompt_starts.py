"""With what the prompts of a recipe begin alike, and what that saves where a server has a cache."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, takewhile

from attrs import frozen

from minions.analysis.bounds import KnowModel, KnownModel
from minions.contracts.messages import TokenUsage
from minions.contracts.prompt_caches import PromptCache
from minions.engine.compile.planned_step import PlannedStep
from minions.engine.compile.prompt_sections import (
    CHARACTERS_PER_TOKEN,
    PromptPart,
    PromptSection,
    section_tokens,
)

_VARYING = (PromptSection.GOAL, PromptSection.OUTPUTS)
"""What differs from item to item of a loop."""


@frozen(kw_only=True)
class SharedStart:
    """What several prompts have next, behind all that comes before it."""

    sections: Mapping[str, int]
    """Tokens by section, estimated."""
    steps: tuple[str, ...]
    """Whose first prompts have it."""
    then: tuple[SharedStart, ...]
    """What comes next in some of them; of a single step, nothing."""


def shared_starts(prompts: Sequence[PlannedStep]) -> tuple[SharedStart, ...]:
    """The first prompts of steps as a tree: what they begin with alike, then what they have next.

    Args:
        prompts: Steps with a prompt, in the order of the run.
    """
    return tuple(_branches([(each.step_id, _parts_of(each)) for each in prompts], 0))


def _parts_of(step: PlannedStep) -> tuple[PromptPart, ...]:
    return step.prompt.parts if step.prompt is not None else ()


def _branches(
    prompts: Sequence[tuple[str, tuple[PromptPart, ...]]], at: int
) -> Iterator[SharedStart]:
    """What the prompts have from that part on, each group that has the same as one."""
    groups: dict[tuple[PromptPart, str], list[tuple[str, tuple[PromptPart, ...]]]] = {}
    for step_id, parts in prompts:
        if len(parts) > at:
            key = (parts[at], step_id if _is_open(parts[at]) else "")
            groups.setdefault(key, []).append((step_id, parts))
    for group in groups.values():
        whole = len(group[0][1])
        end = _equal_until([parts for _, parts in group], at) if len(group) > 1 else whole
        yield SharedStart(
            sections=section_tokens(group[0][1][at:end]),
            steps=tuple(step_id for step_id, _ in group),
            then=tuple(_branches(group, end)) if len(group) > 1 else (),
        )


def _equal_until(prompts: Sequence[tuple[PromptPart, ...]], start: int) -> int:
    """Up to which part the prompts are equal."""
    places = zip(*(parts[start:] for parts in prompts), strict=False)
    alike = takewhile(lambda each: len(set(each)) == 1 and not _is_open(each[0]), places)
    return start + sum(1 for _ in alike)


def _is_open(part: PromptPart) -> bool:
    """Whether only its length is known: what stands there is chosen for each question or run."""
    return part.text.isspace()


@frozen(kw_only=True)
class CacheForecast:
    """What the first prompts of one run cost at one model, each step once and each known item."""

    model: str | None
    cache: PromptCache | None
    """How its server keeps beginnings of prompts; None: it is not known."""
    input_tokens: int
    cached_tokens: int
    """What begins like an earlier prompt, and is so long that the server keeps it."""
    cost_usd: float | None
    """Of the input without a cache; None: the price is not known."""
    cached_cost_usd: float | None
    """Of the input with the cache, that is empty at first."""


def forecast_caches(prompts: Sequence[PlannedStep], know: KnowModel) -> list[CacheForecast]:
    """What the first prompts cost with and without a cache, by model."""
    known = [(know(each.prompt.config), each) for each in prompts if each.prompt is not None]
    by_name = sorted(known, key=lambda each: each[0].name or "")
    found = []
    for name, group in groupby(by_name, key=lambda each: each[0].name):
        own = list(group)
        model = own[0][0]
        total, cached, longest = _count([step for _, step in own], model.cache)
        written = 0
        if model.cache is not None and model.cache.writes_at != 1.0:
            written = total - cached
        plain = TokenUsage(input_tokens=total)
        reading = TokenUsage(
            input_tokens=total,
            cached_tokens=cached,
            cache_write_tokens=written,
            long_cache_write_tokens=written
            if model.cache is not None and model.cache.is_long
            else 0,
        )
        found.append(
            CacheForecast(
                model=name,
                cache=model.cache,
                input_tokens=total,
                cached_tokens=cached,
                cost_usd=model.cost_usd(plain),
                cached_cost_usd=_with_storage(model.cost_usd(reading), longest, model),
            )
        )
    return found


def _with_storage(cost_usd: float | None, tokens: int, model: KnownModel) -> float | None:
    """The cost with that of keeping so many tokens under a name for its time, and of the first
    call, which reads them there as all others do.
    """
    cache = model.cache
    if cache is None or cache.storage_usd_per_mtok_hour is None or cost_usd is None:
        return cost_usd
    storage = tokens / 1_000_000 * cache.storage_usd_per_mtok_hour * cache.lifetime_s / 3_600
    read = model.cost_usd(TokenUsage(input_tokens=tokens, cached_tokens=tokens))
    return cost_usd + storage + (read or 0.0)


def _count(steps: Sequence[PlannedStep], cache: PromptCache | None) -> tuple[int, int, int]:
    """The input tokens of the first prompts, those of them that are read from the cache, and those
    of the longest beginning that is.
    """
    total = cached = longest = 0
    seen: dict[str, list[tuple[PromptPart, ...]]] = {}
    for step in steps:
        parts, times = _parts_of(step), step.items if step.items is not None else 1
        total += _tokens(parts) * times
        if cache is None or step.prompt is None or not times:
            continue
        alike = seen.setdefault(step.prompt.form if cache.includes_form else "", [])
        shared = max((_equal_until([parts, each], 0) for each in alike), default=0)
        kept = cache.kept_of(_tokens(parts[:shared]))
        fixed = [*takewhile(lambda e: e.section not in _VARYING and not _is_open(e), parts)]
        again = cache.kept_of(_tokens(fixed)) if times > 1 else 0
        cached += kept + (times - 1) * again
        longest = max(longest, kept, again)
        alike.append(parts)
    return total, cached, longest


def _tokens(parts: Sequence[PromptPart]) -> int:
    return sum(len(each.text) for each in parts) // CHARACTERS_PER_TOKEN

"""Beginnings of prompts that a run has its provider keep under a name, where that pays: made, used,
renewed and deleted, each recorded after it was done.

A process that dies between making one and recording it leaves one that ends by its time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from datetime import timedelta
from hashlib import blake2b
from typing import Final

from attrs import evolve
from returns.result import Success

from minions.contracts.calls import ChatModel, ModelCall, ModelFailure
from minions.contracts.journal.facts import (
    StoredPrefixDeleted,
    StoredPrefixFact,
    StoredPrefixLost,
    StoredPrefixMade,
    StoredPrefixRenewed,
)
from minions.contracts.journal.journal import JournalEntry
from minions.contracts.messages import TokenUsage
from minions.contracts.stored_prefixes import PrefixStorage, PrefixStoreModel, StoredPrefix
from minions.engine.context.agent_context import AgentContext
from minions.engine.context.run_progress import LoopItem, RunPrefix
from minions.engine.context.step_view import StepView
from minions.engine.services.pricing import with_cost
from minions.recipe.kinds.goal_kind import GoalSpec

_BYTES_PER_TOKEN: Final = 4
_RENEWED_SHARE: Final = 0.25
"""The part of its time that is left when it is renewed."""
_FEWEST_USES: Final = 2
_MTOK: Final = 1_000_000
_DELETED_WITHIN_S: Final = 20.0
"""Seconds for which the end of a run waits for all deletions."""


async def with_stored_prefix(
    call: ModelCall, model: ChatModel, view: StepView
) -> tuple[ModelCall, RunPrefix | None]:
    """The call as it is to be made: with the name of its stored beginning, if it has one, or one is
    made now because the calls that are planned save more than it costs.
    """
    scope = view.context.scope
    storage = model.prefix_storage if isinstance(model, PrefixStoreModel) else None
    if storage is None or scope.redaction is not None or scope.services.patience is not None:
        return call, None  # it would hold what is replaced; and answers come when its time is over
    beginning = storage.beginning_of(call.prompt)
    if beginning is None or len(beginning) < storage.minimum_tokens * _BYTES_PER_TOKEN:
        return call, None
    prefix = _prefix_of(beginning, model, view.context)
    prefix.storage = storage
    async with prefix.turn:  # of calls that begin alike one makes it
        now = scope.services.clock.now()
        if prefix.stored is not None and prefix.until is not None:
            left_s = (prefix.until - now).total_seconds()
            if left_s <= 0:
                await _lose(prefix, "expired", view.context)
            elif left_s < storage.lifetime_s * _RENEWED_SHARE:
                await _renew(prefix, prefix.stored, model, view)
        if prefix.stored is None and not prefix.is_given_up:
            await _make(prefix, beginning, model, view)
        if prefix.stored is None:
            return call, None
        prefix.uses += 1
        prompt = evolve(call.prompt, stored_prefix=prefix.stored.name)
        return evolve(call, prompt=prompt), prefix


async def without_stored_prefix(
    call: ModelCall, prefix: RunPrefix, failure: ModelFailure, view: StepView
) -> ModelCall | None:
    """The call without its stored beginning, which the provider does not have any more; None: that
    is not why the call failed.
    """
    name = call.prompt.stored_prefix
    if name is None or prefix.storage is None or not prefix.storage.is_missing(failure):
        return None
    async with prefix.turn:
        if prefix.stored is not None and prefix.stored.name == name:
            await _lose(prefix, "missing", view.context, failure)
    return evolve(call, prompt=evolve(call.prompt, stored_prefix=None))


async def delete_stored_prefixes(context: AgentContext) -> None:
    """Have the provider keep nothing of the run any more. What cannot be deleted, or is of a model
    that this execution did not ask, ends by its time.
    """
    kept = [each for each in context.progress.prefixes.values() if each.stored and each.storage]
    try:
        async with asyncio.timeout(_DELETED_WITHIN_S):
            for prefix in kept:
                await _delete(prefix, context)
    except TimeoutError:
        for prefix in kept:
            if prefix.stored is not None:
                await _lose(prefix, "not-deleted", context)


async def _delete(prefix: RunPrefix, context: AgentContext) -> None:
    stored, storage = prefix.stored, prefix.storage
    if stored is None or storage is None:
        return
    outcome = await storage.delete(stored.name)
    if isinstance(outcome, Success):
        prefix.stored = None
        await _record(prefix, StoredPrefixDeleted(model=prefix.model, name=stored.name), context)
    else:
        await _lose(prefix, "not-deleted", context, outcome.failure())


def restore_prefixes(entries: Iterable[JournalEntry], context: AgentContext) -> None:
    """Know of what earlier executions of the run had stored, and count what that cost."""
    known = context.progress.prefixes
    for entry in entries:
        fact = entry.fact
        if not isinstance(fact, StoredPrefixFact):
            continue
        key = entry.key.rpartition("/")[0]
        prefix = known.get(key)
        if prefix is None:
            prefix = known[key] = RunPrefix(key=key, model=fact.model)
        prefix.take(fact, entry.at)
        if isinstance(fact, StoredPrefixMade | StoredPrefixRenewed):
            tokens = fact.tokens if isinstance(fact, StoredPrefixMade) else 0
            usage = TokenUsage(input_tokens=tokens, cost_usd=fact.cost_usd)
            context.progress.budget.spend_beside_calls(usage, is_replayed=True)


def _prefix_of(beginning: bytes, model: ChatModel, context: AgentContext) -> RunPrefix:
    digest = blake2b(digest_size=8)
    for part in (model.name.encode(), (model.base_url or "").encode(), beginning):
        digest.update(len(part).to_bytes(8, "big") + part)
    key = f"prompt_cache/{digest.hexdigest()}"
    known = context.progress.prefixes
    return known.setdefault(key, RunPrefix(key=key, model=model.name))


async def _make(prefix: RunPrefix, beginning: bytes, model: ChatModel, view: StepView) -> None:
    """Have it kept, if that pays and the budget has room for it."""
    storage, context = prefix.storage, view.context
    assert storage is not None  # noqa: S101  # a call is about it
    tokens = len(beginning) // _BYTES_PER_TOKEN
    services, budget = context.scope.services, context.progress.budget
    cost = with_cost(TokenUsage(input_tokens=tokens), model, services).cost_usd
    saved = _saved_by_reading(tokens, model, view)
    if cost is None or saved is None:
        return  # nobody knows whether it pays
    cost += _storage_cost(tokens, storage)
    if saved * _planned_calls(view) <= cost:
        return
    if not budget.has_room_beside_calls(TokenUsage(input_tokens=tokens, cost_usd=cost)):
        return
    outcome = await storage.make(beginning)
    if not isinstance(outcome, Success):
        await _lose(prefix, "refused", context, outcome.failure())
        return
    stored = outcome.unwrap()
    read = with_cost(TokenUsage(input_tokens=stored.tokens), model, services)
    cost = (read.cost_usd or 0.0) + _storage_cost(stored.tokens, storage)
    budget.spend_beside_calls(evolve(read, cost_usd=cost))
    fact = StoredPrefixMade(
        model=prefix.model,
        name=stored.name,
        tokens=stored.tokens,
        ttl_s=storage.lifetime_s,
        usd_per_mtok_hour=storage.usd_per_mtok_hour,
        cost_usd=cost,
    )
    prefix.stored, prefix.uses = stored, 0
    prefix.until = services.clock.now() + timedelta(seconds=storage.lifetime_s)
    await _record(prefix, fact, context)


async def _renew(prefix: RunPrefix, stored: StoredPrefix, model: ChatModel, view: StepView) -> None:
    """Have it kept for longer, if the calls after this one save more than that costs."""
    storage, context = prefix.storage, view.context
    assert storage is not None  # noqa: S101  # a call is about it
    cost = _storage_cost(stored.tokens, storage)
    saved = _saved_by_reading(stored.tokens, model, view)
    if saved is None or saved * (_planned_calls(view) - 1) <= cost:
        return
    budget = context.progress.budget
    if not budget.has_room_beside_calls(TokenUsage(cost_usd=cost)):
        return
    outcome = await storage.renew(stored.name)
    if not isinstance(outcome, Success):
        if storage.is_missing(outcome.failure()):
            await _lose(prefix, "missing", context, outcome.failure())
        return  # else it is used until its time is over
    budget.spend_beside_calls(TokenUsage(cost_usd=cost))
    now = context.scope.services.clock.now()
    prefix.until = now + timedelta(seconds=storage.lifetime_s)
    fact = StoredPrefixRenewed(
        model=prefix.model, name=stored.name, ttl_s=storage.lifetime_s, cost_usd=cost
    )
    await _record(prefix, fact, context)


async def _lose(
    prefix: RunPrefix, reason: str, context: AgentContext, failure: ModelFailure | None = None
) -> None:
    """Make calls without it from now on."""
    stored, prefix.stored = prefix.stored, None
    # One that ended before a second call used it cost more than it saved.
    prefix.is_given_up = reason != "expired" or prefix.uses < _FEWEST_USES
    fact = StoredPrefixLost(
        model=prefix.model,
        name="" if stored is None else stored.name,
        reason=reason,
        message=None if failure is None else failure.message,
    )
    await _record(prefix, fact, context)


async def _record(
    prefix: RunPrefix,
    fact: StoredPrefixMade | StoredPrefixRenewed | StoredPrefixDeleted | StoredPrefixLost,
    context: AgentContext,
) -> None:
    prefix.facts += 1
    await context.scope.recorder.record(f"{prefix.key}/{prefix.facts}", fact)


def _storage_cost(tokens: int, storage: PrefixStorage) -> float:
    return tokens / _MTOK * storage.usd_per_mtok_hour * storage.lifetime_s / 3_600


def _saved_by_reading(tokens: int, model: ChatModel, view: StepView) -> float | None:
    """US dollars that each call saves; None: the price is not known."""
    services = view.context.scope.services
    whole = with_cost(TokenUsage(input_tokens=tokens), model, services).cost_usd
    read = with_cost(TokenUsage(input_tokens=tokens, cached_tokens=tokens), model, services)
    return None if whole is None or read.cost_usd is None else whole - read.cost_usd


def _planned_calls(view: StepView) -> int:
    """How many calls will begin so at least, with this one: those of the loop's further items, and
    one of each further step, or of its items if their number is known, that has the same context,
    tools and model and no condition.
    """
    context = view.context
    sizes = context.progress.loop_sizes
    own, item = view.own_id, view.item
    done = item.index if isinstance(item, LoopItem) else 0
    count = max(1, sizes.get(own, 1) - done)
    steps = [each for each in context.recipe.steps if isinstance(each, GoalSpec)]
    mine = next((each for each in steps if each.id == own), None)
    if mine is None or not mine.context:
        return count
    ended = {execution.step_id for execution in context.step_manager.step_executions}
    for step in steps:
        is_alike = (step.context, step.tools, step.model) == (mine.context, mine.tools, mine.model)
        if step.id != own and step.id not in ended and step.when is None and is_alike:
            count += sizes.get(step.id, 1)
    return count

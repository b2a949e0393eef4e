"""The models of one run: which one each step asks, and that it is loaded before it is asked."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from typing import Final

from minions.contracts.calls import ChatModel, ModelOptions, OutputParser
from minions.contracts.context import ModelCallExecutorFactory
from minions.contracts.model_endpoints import is_loopback_url
from minions.contracts.steps import Step
from minions.data.codec import encode
from minions.data.errors import EnvironmentRefusedError
from minions.data.json_values import JsonValue
from minions.engine.calls.model_executors import ModelCallExecutors, warm_up
from minions.engine.compile.build import BuiltRecipe, asking_within
from minions.engine.compile.extensions import ModelChooser, ModelSource
from minions.engine.context.agent_context import AgentContext
from minions.engine.services.pricing import check_price
from minions.recipe.model import UntrustedRule
from minions.recipe.model_config import ModelConfig
from minions.recipe.permissions import PrivateReaders

_MOST_OPTIONS: Final = 256
"""Configurations whose options are remembered."""


class RunModels:
    """One way to call a model per configuration."""

    def __init__(
        self,
        context: AgentContext,
        built: BuiltRecipe,
        source: ModelSource,
        own_factory: ModelCallExecutorFactory | None,
        loaded: dict[tuple[int, bool], ChatModel],
        options: dict[ModelConfig, ModelOptions],
    ) -> None:
        """Look up no model yet.

        Args:
            own_factory: An application's; None: the models of `source`.
            loaded: Models that need no more loading; shared by the runs of one executor.
            options: Those of configurations that were asked for, by any run of the executor.
        """
        self._context = context
        self._progress = context.progress
        self._scope = context.scope
        self._services = context.scope.services
        self._built = built
        self._source = source
        self._own_factory = own_factory
        self._loaded = loaded
        self._factories: dict[ModelConfig, ModelCallExecutors] = {}
        self._warm: dict[tuple[int, bool], asyncio.Future[None]] = {}
        """Models that are loading, by factory and whether answers are constrained."""
        self._names: str | None = None
        self._named = 0
        """Of how many configurations the names are known."""
        self._options = options
        self._newest: tuple[ModelConfig | None, ModelOptions] = (None, ModelOptions())
        """The configuration whose options were asked for last."""
        self._code_factory: ModelCallExecutorFactory | None = None

    @property
    def names(self) -> str | None:
        """Which models answer, as far as is known; None when none is needed."""
        if self._named != len(self._factories):
            self._named = len(self._factories)
            found = [each for one in self._factories.values() for each in (one, *one.tiers)]
            self._names = ", ".join(dict.fromkeys([each.model.name for each in found])) or None
        return self._names

    def of(self, step: Step[object]) -> ModelCallExecutorFactory:
        """How this step's model is called; made once per configuration.

        Raises:
            EnvironmentRefusedError: No model is configured, or its key is missing.
        """
        if self._own_factory is not None:
            return self._own_factory
        return self._executors(self._model_config(step))

    def require(self, config: ModelConfig) -> None:
        """Make sure before the run that there is one, and that its price is known where it must be.

        Raises:
            EnvironmentRefusedError: No model is configured, its key is missing, or cost is limited
                and its price not known.
        """
        if self._own_factory is not None:
            return
        factory, services = self._executors(config), self._services
        budget = self._progress.budget
        if budget.cost_limit is None and services.budgets is None:
            return
        for each in (factory, *factory.tiers):
            check_price(each.model, budget, services)

    def require_batches(self, configs: Iterable[ModelConfig]) -> None:
        """Make sure, where calls may wait, that there is a model whose provider has batches.

        Raises:
            EnvironmentRefusedError: `no-batch-api`; there is none among those of the recipe.
        """
        patience = self._services.patience
        if self._own_factory is not None or patience is None or not patience.is_required:
            return
        from minions.contracts.batch_apis import batch_api_of

        found = [each.model for each in map(self._executors, configs)]
        if found and all(batch_api_of(each) is None for each in found):
            names = ", ".join(dict.fromkeys(each.name for each in found))
            raise EnvironmentRefusedError(
                f"Calls are to go through the batches of a provider (--by, --patience), and none "
                f"of the models has a batch API: {names}. Leave the option out, or take a model "
                "of a provider that has one.",
                code="no-batch-api",
            )

    def _executors(self, config: ModelConfig) -> ModelCallExecutors:
        factory = self._factories.get(config)
        if factory is None:
            model = self._source(config)
            tiers = list(self._others(config))
            # A model that a command has chosen answers in place of all.
            others = [each for each in tiers if each.model is not model]
            private = self._private_rule(config, model)
            factory = ModelCallExecutors(
                model, tiers=others, cooldown_s=config.cooldown_s, private=private
            )
            self._factories[config] = factory
        return factory

    def _others(self, config: ModelConfig) -> Iterator[ModelCallExecutors]:
        """The models that may be asked after the first one, each with its fallbacks behind it."""
        for fallback in config.fallbacks or ():
            yield self._other(fallback, is_fallback=True)
        for tier in config.tiers or ():
            yield self._other(tier)
            for fallback in tier.fallbacks or ():
                yield self._other(fallback, is_fallback=True)

    def _private_rule(self, config: ModelConfig, model: ChatModel) -> UntrustedRule:
        """What becomes of calls of that model with private data in their prompts."""
        if self._context.words is None or model.name.partition("/")[0] != config.provider:
            return UntrustedRule.ALLOW  # none is known, or a command chose the model
        if model.base_url is not None and is_loopback_url(model.base_url):
            return UntrustedRule.ALLOW
        scope = self._scope
        readers = PrivateReaders.of(scope.recipes[0], scope.services.operator)
        return readers.rule(config, scope.rights)

    def _other(self, config: ModelConfig, *, is_fallback: bool = False) -> ModelCallExecutors:
        model = self._source(config)
        return ModelCallExecutors(
            model,
            private=self._private_rule(config, model),
            options=self._options_of(config),
            is_fallback=is_fallback,
            cooldown_s=config.cooldown_s,
        )

    def _model_config(self, step: Step[object]) -> ModelConfig:
        return self._built.model_config(self._scope.base_model, step.id)

    def facts(self, step: Step[object]) -> JsonValue:
        """Models and options of the step, for its cache key; None: an application's own.

        Raises:
            EnvironmentRefusedError: As `of`.
        """
        from minions.engine.compile.kinds.recipe import RecipeStep

        if self._own_factory is not None:
            return None
        config = self._model_config(step)
        configs = [config]
        if isinstance(step, RecipeStep):
            configs = [config.overlaid(step.recipe.model), *asking_within(step.recipe, config)]
        return [[self._name_of(each), _asked(each)] for each in dict.fromkeys(configs)]

    def _name_of(self, config: ModelConfig) -> str:
        return self._executors(config).model.name

    async def ready(
        self, step: Step[object], *, constrains: bool | None = None
    ) -> ModelCallExecutorFactory:
        """The step's way to its model, loaded before the step's clock starts.

        Args:
            constrains: Whether answers have a declared form; None: where the step has an output.
        """
        factory = self.of(step)
        constrains = step.output is not None if constrains is None else constrains
        if not isinstance(factory, ModelCallExecutors):
            return factory
        model = factory.model
        if (id(model), constrains) in self._loaded:
            return factory
        loading = self._warm.get((id(factory), constrains))
        if loading is None:
            # In a task also where nothing is loaded: others have a turn before the first call, such
            # as whoever follows the run and leaves it. One turn: a start that waits for the next
            # fact then still waits.
            parser = self._services.parser
            loading = asyncio.ensure_future(self._load(factory, parser, constrains=constrains))
            self._warm[id(factory), constrains] = loading
            await asyncio.sleep(0)
        if loading.done():
            loading.result()
        else:
            await asyncio.shield(loading)  # parallel steps wait for the same loading
        self._loaded[id(model), constrains] = model
        return factory

    async def _load(
        self, factory: ModelCallExecutorFactory, parser: OutputParser, *, constrains: bool
    ) -> None:
        """Warm the model up; the run's own timeout is suspended meanwhile."""
        loop, deadline = asyncio.get_running_loop(), self._progress.deadline
        begin, end = loop.time(), deadline.when() if deadline is not None else None
        if deadline is None or end is None:
            await warm_up(factory, parser, constrains=constrains)
            return
        deadline.reschedule(None)
        try:
            await warm_up(factory, parser, constrains=constrains)
        finally:
            if not deadline.expired():
                deadline.reschedule(end + loop.time() - begin)

    def of_code(self) -> ModelCallExecutorFactory:
        """A Python step's model is looked for only when it asks one."""
        if self._code_factory is None:
            base = self._scope.base_model
            self._code_factory = self._own_factory or ModelCallExecutors(
                lambda: self._executors(base).model
            )
        return self._code_factory

    def options(self, step: Step[object]) -> ModelOptions:
        """What goes with each call of the step."""
        config, (known, options) = self._model_config(step), self._newest
        if config is not known:  # else another item of the step, or a step with the same model
            options = self._options_of(config)
            self._newest = (config, options)
        return options

    def _options_of(self, config: ModelConfig) -> ModelOptions:
        options = self._options.get(config)
        if options is None:
            if len(self._options) >= _MOST_OPTIONS:
                self._options.clear()
            source = self._source
            chosen = source.options(config) if isinstance(source, ModelChooser) else None
            options = self._options[config] = chosen or config.options()
        return options


def _asked(config: ModelConfig) -> JsonValue:
    """What decides the answers: whether they are cached does not, nor does a cooldown."""
    known = encode(config)
    assert isinstance(known, dict)  # noqa: S101  # of an attrs class
    return {
        name: known[name]
        for name in known
        if name not in ("cache", "cooldown_s") and (name not in _LATER or known[name] is not None)
    }


_LATER = frozenset({"fallbacks", "output_ladder", "tiers"})
"""Settings that are left out where they are not said: keys of before stay as they are."""

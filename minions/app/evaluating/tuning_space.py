"""What can be chosen for the steps of a recipe, and the recipe's text with each choice."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final, TypeAlias

from attrs import field, frozen

from minions.app.evaluating.learning import examples_problem, shows_key
from minions.app.evaluating.reflection import words_problem
from minions.contracts.instructions import OutputMode
from minions.data.errors import NotFoundError, UsageError, near_names
from minions.data.json_values import JsonValue, parse_json
from minions.data.schema import JsonSchema, SchemaValidator
from minions.evaluation.cases import Case
from minions.evaluation.tuning import USUAL_DIMENSIONS, Configuration, Dimension, Setting, StepSpace
from minions.planning.step_edit import recipe_diff, step_keys, with_step_keys
from minions.recipe.examples import (
    MOST_EXAMPLE_TOKENS,
    ExampleCandidate,
    ExampleStepSpec,
    choose_examples,
)
from minions.recipe.kinds.analyze_kind import AnalyzeSpec
from minions.recipe.kinds.goal_kind import GoalSpec
from minions.recipe.model import AgentRecipe, RecipeTest, StepSpec
from minions.recipe.model_config import ModelConfig
from minions.recipe.reading.tested_examples import asked_questions, case_examples

MOST_ROUNDS: Final = 20
"""How often words are written for a model of a step at most."""
_PROMPT_KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "goal": ("goal", "system_prompt", "messages"),
    "analyze": ("analyze", "context", "input"),
}
"""By the kind of a step, the keys that make its prompt."""
_OF_PROVIDER: Final = ("base_url", "api_key_env", "extra")
"""Settings of a model that hold for another one only where that is of the same provider."""
_OF_SEVERAL: Final = ("fallbacks", "cooldown_s")
"""Settings of a model that others follow: a candidate is tried alone."""


@frozen(kw_only=True)
class RecipeVersion:
    """Another version of the recipe, whose prompts are tried."""

    name: str
    recipe: AgentRecipe


@frozen(kw_only=True)
class SpaceOptions:
    """What is tried."""

    models: tuple[str, ...] = ()
    """Beside those that the recipe names, cheapest first."""
    configured: str | None = None
    """The model that answers steps which name none; None: none is configured."""
    versions: tuple[RecipeVersion, ...] = ()
    dimensions: frozenset[Dimension] = frozenset(USUAL_DIMENSIONS)
    steps: tuple[str, ...] = ()
    """Ids of the steps; empty: each that a model answers."""
    reflector: str | None = None
    """The model that writes other words; None: the one that answers the step."""
    rounds: int = 3
    """How often it writes for each model of a step."""
    has_bar: bool = True
    """Whether a pass rate is wanted; else the recipe as it is sets it, and passes."""


@frozen(kw_only=True)
class _Edit:
    """What a setting writes into its step."""

    keys: Mapping[str, JsonValue | None] = field(factory=dict)
    """Keys with their values; None: the key is left out."""
    model: JsonValue = None
    """The value of `model`; None: it is not changed."""
    mode: OutputMode | None = None
    note: str | None = None
    """What of the step's model it leaves out, for people; None: nothing."""


@frozen(kw_only=True)
class TuningSpace:
    """The choices for the steps of a recipe."""

    file: str
    text: str
    """The recipe as it is."""
    steps: tuple[StepSpace, ...]
    edits: dict[Setting, _Edit] = field(repr=False)

    def text_of(self, configuration: Configuration) -> str:
        """The recipe's text with that configuration; comments and layout stay.

        Raises:
            UsageError: `not-editable`; the step is written in a way that would change otherwise.
        """
        text = self.text
        for step in dict.fromkeys(each.step for each in sorted(configuration.settings)):
            chosen = configuration.of_step(step)
            edits = [self.edits[chosen[each]] for each in Dimension if each in chosen]
            text = with_step_keys(text, self.file, step, self._changes(step, edits))
        return text

    def with_words(self, step: str, words: Mapping[str, str]) -> Setting | None:
        """The setting that gives a step these texts, from now on one of the space; None: there is
        one.

        Args:
            words: By key of the step.
        """
        known = [
            edit.keys
            for setting, edit in self.edits.items()
            if (setting.step, setting.dimension) == (step, Dimension.WORDS)
        ]
        if words in known:
            return None
        setting = Setting(step=step, dimension=Dimension.WORDS, value=str(1 + len(known)))
        self.edits[setting] = _Edit(keys=dict(words))
        return setting

    def _changes(self, step: str, edits: Sequence[_Edit]) -> dict[str, JsonValue | None]:
        changes: dict[str, JsonValue | None] = {}
        own = step_keys(self.text, self.file, step).get("model")
        model = next((each.model for each in edits if each.model is not None), own)
        mode = next((each.mode for each in edits if each.mode is not None), None)
        if mode is not None:
            model = _with_mode(model, mode)
        if model != own:
            changes["model"] = model
        for each in edits:
            changes.update(each.keys)
        return changes

    def diff(self, configuration: Configuration) -> str:
        """The change as a unified diff; empty: there is none."""
        return recipe_diff(self.text, self.text_of(configuration), self.file)


def takes_cases(recipe: AgentRecipe, text: str, file: str, options: SpaceOptions) -> bool:
    """Whether cases may become examples of a step, so that some have to be held out."""
    if Dimension.EXAMPLES not in options.dimensions:
        return False
    return any(
        case_problem(recipe, step, keys.get("examples")) is None
        for step, keys in _tune(recipe, text, file, options)
        if keys is not None
    )


def tuning_space(
    recipe: AgentRecipe, text: str, file: str, options: SpaceOptions, held_out: HeldOutCases
) -> TuningSpace:
    """The choices for each step that a model answers.

    Raises:
        NotFoundError: `unknown-step`; there is no such step.
    """
    builder = _Builder(recipe, text, file, options, held_out)
    steps = tuple(builder.space(step, keys) for step, keys in _tune(recipe, text, file, options))
    return TuningSpace(file=file, text=text, steps=steps, edits=builder.edits)


_Keys: TypeAlias = Mapping[str, JsonValue]


def _tune(
    recipe: AgentRecipe, text: str, file: str, options: SpaceOptions
) -> Iterator[tuple[GoalSpec | AnalyzeSpec, _Keys | None]]:
    """The steps with their own keys; None: the step does not stand in the text."""
    steps = {each.id: each for each in recipe.steps if isinstance(each, GoalSpec | AnalyzeSpec)}
    for name in options.steps or steps:
        if name not in steps:
            raise NotFoundError(
                f"The recipe has no step '{name}' that a model answers. Such steps are: "
                f"{', '.join(steps) or 'none'}.",
                code="unknown-step",
                suggestions=near_names(name, list(steps)),
            )
        try:
            keys = step_keys(text, file, name)
        except NotFoundError:
            keys = None
        yield steps[name], keys


class _Builder:
    """Makes the spaces of steps, and remembers what each setting writes."""

    def __init__(
        self,
        recipe: AgentRecipe,
        text: str,
        file: str,
        options: SpaceOptions,
        held_out: HeldOutCases,
    ) -> None:
        """Nothing is made yet."""
        self._recipe = recipe
        self._model = recipe.model
        self._text = text
        self._file = file
        self._options = options
        self._held_out = held_out
        self.edits: dict[Setting, _Edit] = {}

    def space(self, step: GoalSpec | AnalyzeSpec, keys: _Keys | None) -> StepSpace:
        """The choices for one step.

        Args:
            keys: Its own keys in the text; None: it stands elsewhere.
        """
        options: dict[Dimension, tuple[Setting, ...]] = {}
        notes: dict[Setting, str] = {}
        closed: dict[Dimension, str] = {}
        for dimension in Dimension:
            if dimension not in self._options.dimensions:
                continue
            if keys is None:
                closed[dimension] = "the step stands in another file"
                continue
            if dimension is Dimension.WORDS:
                has_others = Dimension.MODEL in options
                why = self._words_problem(step, keys, has_others=has_others)
                if why is not None:
                    closed[dimension] = why
                continue
            edits, problem = self._edits_of(dimension, step, keys)
            made = {
                Setting(step=step.id, dimension=dimension, value=value): edit
                for value, edit in edits.items()
            }
            writable = {
                setting: edit for setting, edit in made.items() if self._is_writable(setting, edit)
            }
            self.edits.update(writable)
            notes.update({each: edit.note for each, edit in writable.items() if edit.note})
            if writable:
                options[dimension] = tuple(writable)
            if left_out := [each.value for each in made if each not in writable]:
                closed[dimension] = (
                    f"the step's text cannot be changed alone (for {', '.join(left_out)})"
                )
            elif not made:
                closed[dimension] = problem or "there is one way"
        has_words = Dimension.WORDS in self._options.dimensions and Dimension.WORDS not in closed
        rounds = self._options.rounds if has_words else 0
        return StepSpace(step=step.id, options=options, closed=closed, notes=notes, rounds=rounds)

    def _words_problem(
        self, step: GoalSpec | AnalyzeSpec, keys: _Keys, *, has_others: bool
    ) -> str | None:
        """Why no other words are written for the step; None: they are.

        Args:
            has_others: Whether other models are tried, which may miss what the present one reaches.
        """
        if not self._options.has_bar and not has_others:
            return (
                "the recipe as it is sets the pass rate that is wanted: say a higher one, "
                "--at-least 0.9, or name other models with -m MODEL"
            )
        if (why := words_problem(keys, step)) is not None:
            return why
        setting = Setting(step=step.id, dimension=Dimension.WORDS, value="0")
        if not self._is_writable(setting, _Edit(keys={step.kind: f"{keys[step.kind]} x"})):
            return "the step's text cannot be changed alone"
        return None

    def _is_writable(self, setting: Setting, edit: _Edit) -> bool:
        alone = TuningSpace(file=self._file, text=self._text, steps=(), edits={setting: edit})
        try:
            alone.text_of(Configuration(frozenset((setting,))))
        except UsageError:
            return False
        return True

    def _edits_of(
        self, dimension: Dimension, step: GoalSpec | AnalyzeSpec, keys: _Keys
    ) -> tuple[Mapping[str, _Edit], str | None]:
        """What each value of a dimension writes, or why there is none."""
        match dimension:
            case Dimension.MODEL:
                return self._models(step, keys)
            case Dimension.FORM:
                return self._forms(step, keys)
            case Dimension.OUTPUT:
                return self._modes(step)
            case Dimension.EXAMPLES:
                return self._examples(step, keys)
            case Dimension.WORDS:
                return {}, None

    def _config(self, step: GoalSpec | AnalyzeSpec) -> ModelConfig:
        """The model settings that hold for the step."""
        own = step.own_model
        return self._model if own is None else self._model.overlaid(own)

    # --- models -----------------------------------------------------------------------------------

    def _models(
        self, step: GoalSpec | AnalyzeSpec, keys: _Keys
    ) -> tuple[Mapping[str, _Edit], str | None]:
        config = self._config(step)
        has_own = step.own_model is not None and step.own_model.name is not None
        of_recipe = (self._recipe.document or {}).get("model")
        named = _named_models(keys.get("model") if has_own else of_recipe, config)
        edits = {name: _Edit(model=value) for name, value in named}
        settings = model_settings(of_recipe, keys.get("model"))
        present = config.name or self._options.configured
        for name in self._options.models:
            if name != present or config.tiers:
                edits.setdefault(name, _rename(settings, present, name))
        if self._options.models:
            return edits, f"{present} answers it already, and no other model is given"
        return edits, "no other model is given: name some with -m MODEL"

    # --- prompts ----------------------------------------------------------------------------------

    def _forms(
        self, step: GoalSpec | AnalyzeSpec, keys: _Keys
    ) -> tuple[Mapping[str, _Edit], str | None]:
        found: dict[str, _Edit] = {}
        for version in self._options.versions:
            other = _document_of(version.recipe, step)
            names = _PROMPT_KEYS[step.kind]
            if other is None or names[0] not in other:
                continue
            changes = {name: other.get(name) for name in names if other.get(name) != keys.get(name)}
            if changes:
                found[version.name] = _Edit(keys=changes)
        if self._options.versions:
            return found, "no other version of the recipe has another prompt for it"
        return found, "no other version is given: name some with --against RECIPE"

    # --- outputs ----------------------------------------------------------------------------------

    def _modes(self, step: GoalSpec | AnalyzeSpec) -> tuple[Mapping[str, _Edit], str | None]:
        config = self._config(step)
        if step.declared_output is None:
            return {}, "it declares no output"
        if config.output_ladder is not None:
            return {}, "its `output_ladder` says how output is asked for"
        # Unless told otherwise a server is asked by schema first.
        present = config.output_mode or OutputMode.JSON_SCHEMA
        return {each.value: _Edit(mode=each) for each in OutputMode if each is not present}, None

    # --- examples ---------------------------------------------------------------------------------

    def _examples(
        self, step: GoalSpec | AnalyzeSpec, keys: _Keys
    ) -> tuple[Mapping[str, _Edit], str | None]:
        found = example_sets(self._recipe, step, keys.get("examples"), self._held_out)
        return {
            str(count): _Edit(keys={"examples": list(examples) or None})
            for count, examples in found.sets.items()
        }, found.problem


def _named_models(written: JsonValue, config: ModelConfig) -> Iterator[tuple[str, JsonValue]]:
    """Each model that stands under `model` beside the first one, alone, as it is written there; of
    tiers the first one, too.
    """
    items = list(written) if isinstance(written, list | tuple) else [written]
    for item in items:
        if config.tiers and (name := _name_of(item)):
            yield name, item
        for other in _items(item.get("fallbacks")) if isinstance(item, Mapping) else ():
            if name := _name_of(other):
                yield name, other


def model_settings(of_recipe: JsonValue, own: JsonValue) -> Mapping[str, JsonValue]:
    """The settings of the step's model as they are written, of several models the first one's."""
    base, added = (_settings_of(each) for each in (of_recipe, own))
    is_other = added.get("name") not in (None, base.get("name"))
    return added if is_other else {**base, **added}


def _settings_of(written: JsonValue) -> Mapping[str, JsonValue]:
    first = written[0] if isinstance(written, list | tuple) and written else written
    if isinstance(first, Mapping):
        return first
    return {"name": first} if isinstance(first, str) else {}


def _rename(settings: Mapping[str, JsonValue], present: str | None, name: str) -> _Edit:
    """The model of that name with the settings of the present one, but for those that it cannot
    have.
    """
    has_provider = present is not None and _provider(present) == _provider(name)
    foreign = [each for each in _OF_PROVIDER if each in settings and not has_provider]
    followers = [each for each in _OF_SEVERAL if each in settings]
    left_out = ("name", *foreign, *followers)
    kept = {key: value for key, value in settings.items() if key not in left_out}
    value: JsonValue = {"name": name, **kept} if kept else name
    return _Edit(model=value, note=_note(foreign, followers, present))


def _provider(name: str) -> str:
    return name.partition("/")[0]


def _note(foreign: Sequence[str], followers: Sequence[str], present: str | None) -> str | None:
    whose = f"of {present}" if present is not None else "of the recipe"
    parts = []
    if foreign:
        parts.append(f"{_quote_names(foreign)} {whose} left out: another provider's")
    if followers:
        parts.append(f"{_quote_names(followers)} {whose} left out: it is tried alone")
    return "; ".join(parts) or None


def _quote_names(names: Sequence[str]) -> str:
    return ", ".join(f"`{each}`" for each in names)


def _name_of(item: JsonValue) -> str | None:
    name = item.get("name") if isinstance(item, Mapping) else item
    return name if isinstance(name, str) else None


def _items(value: JsonValue) -> Sequence[JsonValue]:
    return value if isinstance(value, list | tuple) else ()


def _with_mode(model: JsonValue, mode: OutputMode) -> JsonValue:
    """The value of `model` with that way to ask for output; of several models the first has it."""
    if isinstance(model, list | tuple):
        first, *others = model
        return [_with_mode(first, mode), *others]
    if isinstance(model, Mapping):
        return {**model, "output_mode": mode.value}
    own: dict[str, JsonValue] = {} if model is None else {"name": model}
    return {**own, "output_mode": mode.value}


def _document_of(recipe: AgentRecipe, step: StepSpec) -> Mapping[str, JsonValue] | None:
    """The step of that id and kind in another recipe, as it is written; None: there is none."""
    specs = {each.id: each for each in recipe.steps if isinstance(each, StepSpec)}
    if step.id not in specs or specs[step.id].kind != step.kind:
        return None
    steps = (recipe.document or {}).get("steps")
    for each in steps if isinstance(steps, list | tuple) else ():
        if isinstance(each, Mapping) and each.get("id") == step.id:
            return each
    return None


# --- examples that a tuner may give a step -------------------------------------------------------


EXAMPLE_COUNTS: Final = (0, 1, 2, 4)
"""How many examples a step is given: more than four gain little."""
_WORDS: Final[Mapping[str, JsonValue]] = {"yes": True, "true": True, "no": False, "false": False}


@frozen(kw_only=True)
class HeldOutCases:
    """The cases that may become examples, and what is asked in the others."""

    cases: Sequence[tuple[Case, Mapping[str, JsonValue]]]
    """Each with its inputs as the recipe takes them."""
    asked: Collection[Mapping[str, JsonValue]]
    """The inputs of each case that is asked."""


@frozen(kw_only=True)
class ExampleSets:
    """Sets of examples that are tried, by their number; the present number is not among them."""

    sets: Mapping[int, Sequence[Mapping[str, JsonValue]]]
    """`{input, output}` each, as in a recipe."""
    problem: str | None = None
    """Why there is none; None: there is one."""


def case_problem(recipe: AgentRecipe, step: StepSpec, written: JsonValue) -> str | None:
    """Why cases cannot become examples of a step; None: they can.

    Args:
        written: What stands under its `examples`; None: nothing.
    """
    if not isinstance(step, ExampleStepSpec):
        return f"a step of the kind `{step.kind}` takes none"
    problem = examples_problem(step, written)
    return problem or case_examples(recipe, step, (), asked=()).problem


def example_sets(
    recipe: AgentRecipe, step: StepSpec, written: JsonValue, held_out: HeldOutCases
) -> ExampleSets:
    """The sets that are tried: as many as 0, 1, 2 and 4, of those that the step has and, beyond
    them, of the cases held out. No question that is asked in a case is among them.

    Args:
        written: What stands under its `examples`; None: nothing.
    """
    problem = case_problem(recipe, step, written)
    if not isinstance(step, ExampleStepSpec):
        return ExampleSets(sets={}, problem=problem)
    own = list(_own(recipe, step, written, held_out))
    if problem is not None and not own:
        return ExampleSets(sets={}, problem=problem)
    tests = [_as_test(*each, step.output) for each in held_out.cases if each[0].has_expected]
    found = case_examples(recipe, step, tests, asked=held_out.asked).candidates
    free = [each for each in found if not shows_key(each)]
    sets: dict[int, Sequence[Mapping[str, JsonValue]]] = {}
    for count in EXAMPLE_COUNTS:
        chosen = _choose(step, own, free, count)
        if len(chosen) == count != len(step.examples):
            sets[count] = [{"input": each.input, "output": each.example.answer} for each in chosen]
    if not sets:
        return ExampleSets(sets={}, problem="no case held out gives a whole output that fits")
    return ExampleSets(sets=sets)


def _choose(
    step: ExampleStepSpec,
    own: Sequence[ExampleCandidate],
    free: Sequence[ExampleCandidate],
    count: int,
) -> Sequence[ExampleCandidate]:
    """So many examples: of those that the step has, then of the cases."""
    kept = choose_examples(own, step.output, most=count, max_tokens=MOST_EXAMPLE_TOKENS)
    more = choose_examples(
        free,
        step.output,
        most=count,
        max_tokens=MOST_EXAMPLE_TOKENS,
        shown=[each.example for each in kept],
    )
    return (*kept, *more)


def _own(
    recipe: AgentRecipe, step: ExampleStepSpec, written: JsonValue, held_out: HeldOutCases
) -> Iterator[ExampleCandidate]:
    """The examples that stand in the step, without those whose question is asked in a case."""
    if not isinstance(written, list | tuple):
        return
    asked = asked_questions(recipe, step, held_out.asked)
    for example, each in zip(step.examples, written, strict=True):
        given = each.get("input") if isinstance(each, Mapping) else None
        if example.question not in asked:
            yield ExampleCandidate(example=example, input=given, origin="the recipe", inputs={})


def _as_test(case: Case, inputs: Mapping[str, JsonValue], schema: JsonSchema | None) -> RecipeTest:
    return RecipeTest(name=case.name, inputs=inputs, output=_answer(case, schema), has_output=True)


def _answer(case: Case, schema: JsonSchema | None) -> JsonValue:
    """What is expected; texts of CSV become what the schema declares, where it declares no text."""
    wanted = case.wanted
    if not case.is_text or schema is None or not SchemaValidator(schema).errors(wanted):
        return wanted
    properties = schema.get("properties")
    if not isinstance(wanted, Mapping) or not isinstance(properties, Mapping):
        return _meant(wanted, schema)
    return {name: _meant(value, properties.get(name)) for name, value in wanted.items()}


def _meant(value: JsonValue, schema: JsonValue) -> JsonValue:
    if not isinstance(value, str) or not isinstance(schema, Mapping):
        return value
    if not SchemaValidator(schema).errors(value):
        return value
    try:
        return parse_json(value.strip())
    except ValueError:
        return _WORDS.get(value.strip().casefold(), value)

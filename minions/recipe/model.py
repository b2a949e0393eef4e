"""The recipe as immutable values: the single source of the loader, the editor schema and the docs.

Also how a step is repeated, what is next, and when a recipe is due; the settings of a model are in
`model_config`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import ClassVar, Final, TypeAlias

import msgspec
from attrs import evolve, field, frozen
from attrs.converters import optional
from attrs.validators import ge
from msgspec import Struct

from minions.contracts.approvals import ApprovalRule
from minions.contracts.executions import RunStatus
from minions.contracts.messages import MessageBundle
from minions.contracts.retry_config import NOTHING_STATED, RetryConfig
from minions.contracts.steps import Step, StepGraph
from minions.contracts.tools import Reads, ToolSpec
from minions.data.field_repr import FieldsRepr
from minions.data.json_values import JsonValue
from minions.data.schema import JsonSchema
from minions.recipe.expressions.template import Templates
from minions.recipe.model_config import ModelConfig


class MissedRuns(StrEnum):
    """What happens to due times at which no worker was there."""

    SKIP = "skip"
    """They are left out."""
    ONCE = "once"
    """One run is started for all of them."""
    ALL = "all"
    """One run is started for each, for the newest 100 at most."""


class Overlap(StrEnum):
    """What happens at a due time while an earlier run of the schedule has not ended."""

    SKIP = "skip"
    """It is left out."""
    QUEUE = "queue"
    """Its run is started when the earlier one has ended; at most 100 wait."""
    ALLOW = "allow"
    """Its run is started nevertheless."""


@frozen(kw_only=True)
class ScheduleSpec(FieldsRepr):
    """When a recipe is due, with which inputs."""

    cron: str
    """Five fields (minute, hour, day of month, month, day of week), or `@daily` and the like."""
    timezone: str = "UTC"
    """An IANA time zone: `Europe/Zurich`."""
    missed: MissedRuns = field(default=MissedRuns.ONCE, converter=MissedRuns)
    overlap: Overlap = field(default=Overlap.SKIP, converter=Overlap)
    inputs: Mapping[str, JsonValue] = field(factory=dict)
    """Inputs of its runs; those that are not named have their defaults."""
    patience: str | None = None
    """How long after its time a run is to be done, as a duration: until then its model calls may
    wait for batches of their providers. None: they do not wait."""

    def to_json(self) -> dict[str, JsonValue]:
        """The form in which it is stored and written in recipes."""
        said: dict[str, JsonValue] = {
            "cron": self.cron,
            "timezone": self.timezone,
            "missed": self.missed.value,
            "overlap": self.overlap.value,
            "inputs": dict(self.inputs),
        }
        return said if self.patience is None else {**said, "patience": self.patience}


class WatchSpec(Struct, frozen=True, kw_only=True):
    """Which of a recipe's runs are scored after their end, by what, and when that is an alarm."""

    sample: float
    """The share of the runs that is scored, above 0 to 1: which ones is decided by their ids."""
    scorers: tuple[JsonValue, ...]
    """As in an evaluation, and as written: the recipe's language does not know them."""
    at_least: float | None = None
    """The share of runs that each scorer has to pass, from 0 to 1; None: that of the first ones."""
    window: int = 50
    """Scored runs that are compared, the newest."""
    max_tokens_per_day: int = 200_000
    """Tokens that models that grade may use within 24 hours; the last answer may exceed it."""
    max_cost_usd_per_day: float | None = None
    """What they may cost; None: tokens alone bound it. Their prices have to be known then."""


class OnItemError(StrEnum):
    """What becomes of a loop some of whose items fail."""

    FAIL = "fail"
    """The loop fails, after all items were tried."""
    COLLECT = "collect"
    """The loop completes with the results that there are, and the run is partial."""


class LoopSpec(Struct, frozen=True, kw_only=True):
    """A loop: the step is executed once for each item of a list."""

    over: JsonValue
    """The list, or a template of it."""
    aggregate: bool = False
    """Whether the output is the list of the items' outputs; else an
    object that also has their errors.
    """
    max_parallel: int = 1
    """Items that are executed at the same time."""
    most_queued: int | None = None
    """Items of a distributed loop that wait or run as child runs at the same time: `max_parallel`
    as the recipe states it; None: it states none.
    """
    on_item_error: OnItemError = OnItemError.FAIL
    min_successful: int = 1
    """With `collect`: items that have to succeed, where there are any items at all."""


class WhileSpec(Struct, frozen=True, kw_only=True):
    """A `while` loop: the step is repeated as long as a condition holds."""

    condition: str
    """The condition, evaluated after each attempt."""
    max_iterations: int = 10
    """Most attempts; the step fails if the condition still holds after the last one."""
    allow_repeats: bool = False
    """Whether an attempt may return the same output as an earlier
    one; else the step fails as stuck.
    """
    aggregate: bool = False
    """Whether the output is the list of what all attempts gave; else it is that of the last one."""


class OnError(StrEnum):
    """What happens to the run when a step fails."""

    FAIL = "fail"
    CONTINUE = "continue"
    """The step counts as optional; steps that only have to come after it run."""
    GOTO = "goto"
    """An earlier step runs again and is told the error."""


class OnErrorSpec(Struct, frozen=True, kw_only=True):
    """The `on_error` of one step."""

    action: OnError = OnError.FAIL
    goto: str | None = None
    """Target of the back edge: this step, or one that it depends on."""
    max_times: int = 2
    """How often the back edge is taken; after that the step has failed."""


MOST_ROUTING_CALLS: Final = 2
"""Model calls for one choice of the next step: the answer and one repair."""


class DecisionToolSpec(Struct, frozen=True, kw_only=True):
    """A tool call whose result names the next step."""

    tool: str
    params: Mapping[str, JsonValue] = msgspec.field(default_factory=dict)
    """Arguments; their templates are rendered when the step has ended."""


def _empty() -> Mapping[str, JsonValue]:
    return {}


class Where(Struct, frozen=True):
    """A place in a recipe's text."""

    file: str = "<recipe>"
    line: int = 1
    column: int = 1

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


class ExecutionMode(StrEnum):
    """The order in which the steps of a dependency graph run."""

    SEQUENTIAL = "sequential"
    """In the order of the file, one at a time."""
    PLANNED = "planned"
    """In topological order, ties in the order of the file, one at a time."""
    PARALLEL = "parallel"
    """Ready steps at the same time, at most `max_parallel`."""


class OnFailure(StrEnum):
    """What happens to the other steps when a required step fails."""

    STOP = "stop"
    CONTINUE = "continue"


class UntrustedRule(StrEnum):
    """What becomes of a call with an effect whose arguments may hold strangers' words."""

    ALLOW = "allow"
    """It is made."""
    ASK = "ask"
    """It needs approval."""
    REFUSE = "refuse"
    """It is not made."""


class Reviewer(Struct, frozen=True, kw_only=True):
    """A recipe that may reject calls, and passes the others to a person."""

    name: str
    """The recipe's name or path, as written."""
    recipe: AgentRecipe

    @property
    def bounded(self) -> AgentRecipe:
        """The recipe with the limits of one review, where it says nothing else."""
        return evolve(self.recipe, limits={**_REVIEW_LIMITS, **self.recipe.limits})


_REVIEW_LIMITS: Final[Mapping[str, JsonValue]] = {
    "max_model_calls": 5,
    "max_tokens": 20_000,
    "timeout_s": 120,
}


class CallRule(Struct, frozen=True, kw_only=True):
    """Who may approve calls of some tools, and until when."""

    tools: tuple[str, ...]
    """Full names of the tools."""
    when: str | None = None
    """A condition over `args` and `inputs`; None: it holds for every call."""
    rule: ApprovalRule
    reviewer: Reviewer | None = None
    """What looks at each call before a person is asked; None: nothing does."""


@frozen(kw_only=True)
class Permissions(FieldsRepr):
    """What the run is allowed to change."""

    allow_write: bool = False
    tools: Mapping[str, bool] = field(factory=dict)
    """YAML keys `allow_<tool>`: permissions by full name of the
    tool; they override `allow_write`.
    """
    requires_approval: tuple[str, ...] = ()
    """Full names of tools of which every call needs approval."""
    approval_timeout_s: float | None = None
    """Seconds after which a call that nobody approved counts as rejected; None: it waits for as
    long as it takes."""
    remind_every_s: float | None = None
    """Seconds after which hooks are reminded of what waits, until it is decided; None: never."""
    approval_when: Mapping[str, tuple[str, ...]] = field(factory=dict)
    """By full name of a tool: conditions over `args` and `inputs`. A call of which one is true, or
    cannot be told, needs approval."""
    approval_rules: tuple[CallRule, ...] = field(default=())
    """Who may approve calls that need approval by `requires_approval` or `approval_when`; all that
    hold for a call have to be fulfilled."""
    policies: Mapping[str, str] = field(factory=dict)
    """By full name of a tool: a condition over `args`, `inputs` and whose words are in which
    argument. A call of which it is true is made also where those are of strangers."""
    untrusted: UntrustedRule | None = field(default=None, converter=optional(UntrustedRule))
    """What becomes of a call that writes, sends or spends, and whose arguments may hold strangers'
    words; None: the recipe does not say."""
    private_models: tuple[str, ...] = ()
    """Models, `provider` or `provider/name`, beside the run's own that private data may reach."""

    @approval_rules.validator
    def _check_rules(self, _attribute: object, rules: tuple[CallRule, ...]) -> None:
        for each in rules:
            for name in each.tools:
                if name in self.requires_approval or each.when in self.approval_when.get(name, ()):
                    continue
                raise ValueError(f"there is a rule of '{name}', which needs no approval")

    is_strangers: bool = False
    """Whether a stranger granted them, as in a run that was imported: then each call that reads or
    changes anything outside of the run needs approval. No recipe can say so.
    """


@frozen(kw_only=True)
class OperatorRules(FieldsRepr):
    """What an operator says of calls with strangers' words in all recipes; the stricter of this and
    of what a recipe says counts.
    """

    untrusted: UntrustedRule | None = None
    """What becomes of a call that writes, sends or spends, and whose arguments may hold strangers'
    words; None: recipes decide."""
    policies: Mapping[str, str] = field(factory=dict)
    """By a tool's own name, `toolset__tool`: as those of a recipe, without inputs. Of a call of
    which it is not true a person is asked, where `untrusted` says nothing; one of which it is true
    is made, unless a recipe objects."""
    private_models: frozenset[str] = frozenset()
    """Models, `provider` or `provider/name`, that private data may reach in every recipe."""
    templates: Templates = field(factory=Templates, eq=False, repr=False)
    """Compiles the conditions, once for all runs."""

    @property
    def judges_calls(self) -> bool:
        """Whether anything is said of calls with strangers' words."""
        return self.untrusted is not None or bool(self.policies)


class ToolsetUse(Struct, frozen=True, kw_only=True):
    """A toolset with its options, or a registered tool."""

    name: str
    options: Mapping[str, JsonValue] = msgspec.field(default_factory=_empty)
    """Options of the toolset; templates over `inputs` are rendered before the run."""
    prefix: str | None = None
    """YAML key `as`: the tools are named `prefix__name`; None: the toolset's own name."""
    reads: Reads | None = None
    """Where the text comes from that its tools read, in place of what they declare; None: as
    declared.
    """


MESSAGE_INPUT: Final = "message"
"""The name of the recipe input that holds the user's message of a turn."""


@frozen(kw_only=True)
class InputSpec(FieldsRepr):
    """One input that the recipe declares."""

    schema: JsonSchema
    """JSON Schema of the value; `format: path` makes a text an absolute path."""
    default: JsonValue = None
    has_default: bool = False
    description: str = ""
    is_secret: bool = False
    """Whether it takes a `SecretRef`: `inputs` holds the marker,
    and only tools receive the value.
    """
    is_untrusted: bool = False
    is_influenced: bool = False
    """Whether a step around the recipe gives it a value that strangers' words influence; no recipe
    says so.
    """
    """Whether a stranger may have written its text (YAML key `untrusted`, or `private`)."""
    is_private: bool = False
    """Whether it is meant for nobody else, as what a tool declares that `reads` private."""


class MessageSpec(Struct, frozen=True, kw_only=True):
    """A message of a goal step; its content is a template."""

    role: str
    content: str
    files: tuple[str, ...] = ()
    """Paths of images and PDF files that its model sees before the text; templates."""


class ContextPart(Struct, frozen=True, kw_only=True):
    """What several steps read, at the same place of their prompts."""

    text: str
    """A template; of a file its content."""
    file: str | None = None
    """The path as the recipe names it; None: the text stands in the recipe."""


class PersonQuestion(Struct, frozen=True, kw_only=True):
    """What a step asks a person."""

    text: str
    """The question; a template."""
    form: JsonSchema | None
    """JSON Schema of the answer; None: any text."""
    timeout_s: float | None
    """Seconds to wait for an answer; None: without limit."""
    default: JsonValue = None
    has_default: bool = False


# One object for all steps without the key: a long recipe has fewer objects for the collector.
_FAILS: Final = OnErrorSpec()
_NOWHERE: Final = Where()


@frozen(kw_only=True)
class StepSpec(FieldsRepr):
    """A step of a recipe: the keys that all kinds share, and questions that can be asked of any
    step.

    A kind of step (`minions.recipe.kinds`) subclasses it, adds its own keys as fields, and
    overrides what differs.
    """

    kind: ClassVar[str]
    """The key that makes a step one of its kind; its name in pictures."""
    asks_model: ClassVar[bool] = False
    """Whether the step's work is done by a model."""
    fills_in: ClassVar[bool] = False
    """Whether a model is called only for parameters that have no arguments."""
    asks_person: ClassVar[bool] = False
    """Whether a person answers the step."""
    calls_tools: ClassVar[bool] = False
    """Whether it may call tools, and so need approval."""
    makes_recipe: ClassVar[bool] = False
    """Whether it runs a recipe that is made in the run: what that does is not known before."""
    needs_sandbox: ClassVar[bool] = False
    """Whether it is code that runs only in a sandbox."""

    id: str
    description: str = ""
    depends_on: tuple[str, ...] = ()
    """Ids of the steps it depends on: `depends_on` with `save_as` names resolved, and
    the steps that its templates read.
    """
    declared: tuple[str, ...] = ()
    """The part of `depends_on` that the recipe states: only outputs
    of these may be shown to a model.
    """
    after: tuple[str, ...] = ()
    """Ids of steps that only have to end first: every reference to them has a default."""
    when: str | None = None
    """A condition; the step is SKIPPED if it is false. None: the step always runs."""
    loop: LoopSpec | None = None
    repeat: WhileSpec | None = None
    """The `while` loop of the step (YAML key `while`)."""
    on_error: OnErrorSpec = _FAILS
    route: str | None = None
    """In a transition graph: a template of the next step's id, or a question to a model."""
    decision_tool: DecisionToolSpec | None = None
    save_as: str | None = None
    optional: bool = False
    endorse: tuple[str, ...] = ()
    """What of the step is taken as not influenced by strangers' words: `output`, `output.FIELD`,
    `when`, `loop`, `route`; each a choice among few.
    """
    timeout_s: float | None = None
    cache: bool = False
    """Whether an output is taken from the cache, also from other runs, if all
    that it depends on is unchanged.
    """
    idle_timeout_s: float | None = None
    """Seconds without a byte from the step's model; None: as set for the model."""
    retry: RetryConfig | None = None
    """Retries of the step's calls; None: as set for the recipe."""
    distribute: bool = False
    """Whether workers execute each item of the loop, or the nested recipe, as a run of its own."""
    limits: Mapping[str, JsonValue] = field(factory=_empty)
    metadata: Mapping[str, JsonValue] = field(factory=_empty)
    where: Where = field(default=_NOWHERE, eq=False)

    @property
    def own_model(self) -> ModelConfig | None:
        """The model settings of the step itself; None: it has none."""
        return None

    @property
    def carries_out_plans(self) -> bool:
        """Whether it writes files and runs commands that a model plans."""
        return False

    @property
    def called_tools(self) -> tuple[str, ...]:
        """Full names of the tools that the step calls itself."""
        return ()

    @property
    def own_source(self) -> ToolSpec | None:
        """What the step itself reads of what others wrote, as a tool would declare it."""
        return None

    @property
    def sources(self) -> Sequence[JsonValue]:
        """Values whose templates give the step what it works on: not its conditions and loops."""
        return ()

    @property
    def checks(self) -> Sequence[str]:
        """Conditions that have to hold, or the step fails."""
        return ()

    @property
    def declared_output(self) -> JsonSchema | None:
        """JSON Schema of what it answers, for one item of its loop; None: none is declared."""
        return None

    @property
    def offered_tools(self) -> tuple[str, ...]:
        """Full names of the tools that the step offers to its model."""
        return ()

    @property
    def offers_caller_tools(self) -> bool:
        """Whether it also offers the tools that the caller of the run brings."""
        return False

    @property
    def inner(self) -> AgentRecipe | None:
        """The nested recipe that the step runs; None: it is not a recipe step."""
        return None

    @property
    def inner_inputs(self) -> Mapping[str, JsonValue]:
        """Templates of the nested recipe's inputs, by name."""
        return {}

    @property
    def registered_class(self) -> str | None:
        """Name of the registered `Step` class that the step runs; None: it runs none."""
        return None

    @property
    def question(self) -> PersonQuestion | None:
        """What the step asks a person; None: nothing."""
        return None

    @property
    def shares_conversation(self) -> bool:
        """Whether the step continues the conversation of the steps before it."""
        return False

    @property
    def content(self) -> str:
        """What the step does, in the text of its kind's key; empty: nothing to show."""
        return ""

    @property
    def label(self) -> str:
        """The step's text in pictures: its description, else its content."""
        return self.description or self.content

    def may_ask_model(self, tools: Mapping[str, ToolSpec]) -> bool:
        """Whether the step may call a model; False for a registered class, of which it is not
        known here.

        Args:
            tools: The tools of its recipe, by full name.
        """
        return self.asks_model


def _as_steps(
    steps: Iterable[StepSpec | Step[object]],
) -> tuple[StepSpec | Step[object], ...]:
    return tuple(steps)


class RecordedCall(Struct, frozen=True, kw_only=True):
    """A tool call as it was recorded, for a test."""

    tool: str
    """The tool's full name."""
    arguments: Mapping[str, JsonValue] = msgspec.field(default_factory=_empty)
    result: JsonValue = None
    error: str | None = None
    """The message with which it failed; None: it gave `result`."""


@frozen(kw_only=True)
class RecipeTest(FieldsRepr):
    """A test of the recipe: a run with scripted answers, and the expected result."""

    name: str
    inputs: Mapping[str, JsonValue] = field(factory=_empty)
    answers: tuple[JsonValue, ...] = ()
    """The model's answers, in the form of a script file."""
    model: str | None = None
    tools: Mapping[str, JsonValue] = field(factory=_empty)
    """Results of tools by full name; these tools are not called."""
    calls: tuple[RecordedCall, ...] = ()
    """Recorded calls: their tools are not called, each call has to be one of them, and those with
    an effect have to be made, in this order."""
    calls_file: str | None = None
    """A file beside the recipe that holds them, one JSON object in each line; it is read when the
    test is run. None: they are in `calls`."""
    decisions: Mapping[str, str] = field(factory=dict)
    status: RunStatus = field(default=RunStatus.COMPLETED, converter=RunStatus)
    output: JsonValue = None
    has_output: bool = False
    """Whether the output has to equal `output`."""
    fields: Mapping[str, JsonValue] = field(factory=_empty)
    """What the output has to have, by path; other fields are not compared."""
    error: str | None = None
    holds: tuple[str, ...] = ()
    prompt_tokens_max: Mapping[str, int] = field(factory=dict)
    """Most tokens of each prompt by step; under the empty name that of every prompt."""
    prompt_contains: Mapping[str, tuple[str, ...]] = field(factory=dict)
    """Texts that the first prompt of a step holds."""
    prompt_excludes: Mapping[str, tuple[str, ...]] = field(factory=dict)
    """Texts that no prompt of a step holds."""
    where: Where = field(factory=Where, eq=False)


Edges: TypeAlias = Mapping[str, Sequence[str]]


@frozen(kw_only=True)
class AgentRecipe(FieldsRepr):
    """Everything that a run needs to know before it starts.

    Steps are specs (from YAML: a dependency graph, or a transition graph where `graph` is given) or
    `Step` objects (from Python: a transition graph, in list order unless `graph` says otherwise).
    """

    id: str
    version: str = "1"
    name: str = ""
    """The name shown to people; empty: the id is shown."""
    description: str = ""
    inputs: Mapping[str, InputSpec] = field(factory=dict)
    system_prompt: str | None = None
    """Part of the first prompt of each model step."""
    goal: str | None = None
    """The agent's aim: part of the first prompt of each model step."""
    messages: MessageBundle = field(default=MessageBundle())
    """Further messages for every model step, such as the user's."""
    model: ModelConfig = field(factory=ModelConfig)
    tools: tuple[ToolsetUse, ...] = ()
    permissions: Permissions = field(factory=Permissions)
    limits: Mapping[str, JsonValue] = field(factory=_empty)
    """Limits of the run; they become `AgentContext.metadata`."""
    redact: tuple[str, ...] = ()
    """Kinds of personal data that are replaced in prompts, of it and of recipes within."""
    restore: bool = False
    """Whether answers get the values back in place of placeholders."""
    retain_s: float | None = None
    """Seconds for which its runs stay in the journal after their end, the shortest that it or a
    recipe within says; None: none does."""
    retry: RetryConfig = NOTHING_STATED
    templates: Templates = field(factory=Templates, eq=False, repr=False)
    """Its texts as they were compiled when it was read; whoever compiles one does it here."""
    execution_mode: ExecutionMode = field(default=ExecutionMode.SEQUENTIAL, converter=ExecutionMode)
    max_parallel: int = field(default=16, validator=ge(1))
    on_failure: OnFailure = field(default=OnFailure.STOP, converter=OnFailure)
    on_surprise: str | None = None
    """The id of the step that is executed only where another one fails for what it was given or
    got: it does what is left, and its output is that of the run. None: there is none."""
    strict: bool = False
    """Whether the recipe is refused where untrusted text can reach a tool that writes, sends or
    spends; else that is a warning.
    """
    steps: tuple[StepSpec | Step[object], ...] = field(converter=_as_steps)
    graph: Edges | StepGraph | None = None
    """Transitions: step id to ids of next steps. For Step objects None is the
    list order and {} means no edges.
    """
    output: JsonValue = None
    """A template of the run's output; None: the output of the last completed step."""
    known_output: JsonSchema = field(factory=_empty, eq=False, repr=False)
    """What is known of the run's output, as JSON Schema; {}: nothing."""
    tests: tuple[RecipeTest, ...] = ()
    """The tests that `minions test` runs."""
    enabled: bool = True
    """Whether its schedule is carried out at once when it is added; else it is paused."""
    schedule: JsonValue = None
    """When it is due, as written."""
    schedules: tuple[ScheduleSpec, ...] = ()
    """When it is due: workers start runs of it then, after `minions schedules add`."""
    watch: WatchSpec | None = None
    """How its runs are judged after their end; None: they are not."""
    metadata: Mapping[str, JsonValue] = field(factory=_empty)
    """Values of the application's own."""
    document: Mapping[str, JsonValue] | None = field(default=None, eq=False, repr=False)
    """The recipe as it was read; stored with the run, so that resume needs no file."""
    directory: str | None = field(default=None, eq=False)
    """The folder of the recipe's file, which relative paths start from; None: there is no file."""

    @property
    def offers_caller_tools(self) -> bool:
        """Whether a step of it, or of a recipe within it, offers the tools that the caller of the
        run brings.
        """
        specs = [each for each in self.steps if isinstance(each, StepSpec)]
        return any(
            each.offers_caller_tools or (each.inner is not None and each.inner.offers_caller_tools)
            for each in specs
        )

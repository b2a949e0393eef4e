"""The recipe as frozen values: the single source of the loader, the editor schema and the docs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import ClassVar, Final, TypeAlias, TypeVar

import attrs
from attrs import field, frozen
from attrs.validators import ge

from minions.contracts.calls import ModelOptions, OutputMode
from minions.contracts.executions import RunStatus
from minions.contracts.graph import StepGraph
from minions.contracts.json_values import JsonValue
from minions.contracts.messages import MessageBundle
from minions.contracts.retry import RetryConfig
from minions.contracts.schema import JsonSchema
from minions.contracts.steps import Step
from minions.contracts.tools import ToolSpec

__all__ = [
    "MOST_ROUTING_CALLS",
    "AgentRecipe",
    "DecisionToolSpec",
    "ExecutionMode",
    "InputSpec",
    "LoopSpec",
    "MessageSpec",
    "ModelConfig",
    "OnError",
    "OnErrorSpec",
    "OnFailure",
    "Permissions",
    "PersonQuestion",
    "RecipeTest",
    "StepSpec",
    "ToolsetUse",
    "Where",
    "WhileSpec",
]

T = TypeVar("T")


def _empty() -> Mapping[str, JsonValue]:
    return {}


@frozen
class Where:
    """A place in a recipe's text."""

    file: str = "<recipe>"
    line: int = 1
    column: int = 1

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


class ExecutionMode(StrEnum):
    """In which order the steps of a dependency graph run."""

    SEQUENTIAL = "sequential"
    """YAML order, one at a time."""
    PLANNED = "planned"
    """Topological, stable in YAML order, one at a time."""
    PARALLEL = "parallel"
    """Ready steps together, at most `max_parallel`."""


class OnFailure(StrEnum):
    """What a failed required step does to the others."""

    STOP = "stop"
    CONTINUE = "continue"


@frozen(kw_only=True)
class ModelConfig:
    """Which model answers, and how it is asked."""

    name: str | None = None
    base_url: str | None = None
    temperature: float | None = None
    top_p: float | None = None
    max_output_tokens: int | None = None
    timeout_s: float | None = None
    idle_timeout_s: float | None = None
    api_key_env: str | None = None
    output_mode: OutputMode | None = None

    def overlaid(self, own: ModelConfig) -> ModelConfig:
        """These settings with what `own` says over them. Another model starts from `own` alone."""
        if own.name is not None and own.name != self.name:
            return own
        said = {name: value for name, value in attrs.asdict(own).items() if value is not None}
        return attrs.evolve(self, **said)

    def options(self) -> ModelOptions:
        """What goes with each call."""
        defaults = ModelOptions()
        return ModelOptions(
            temperature=self.temperature,
            top_p=self.top_p,
            max_output_tokens=self.max_output_tokens,
            timeout_s=self.timeout_s or defaults.timeout_s,
            idle_timeout_s=self.idle_timeout_s or self.timeout_s or defaults.idle_timeout_s,
        )


@frozen(kw_only=True)
class Permissions:
    """What the run may change."""

    allow_write: bool = False
    tools: Mapping[str, bool] = field(factory=dict)
    """YAML keys `allow_<tool>`: full names; over `allow_write`."""
    requires_approval: tuple[str, ...] = ()
    """Full names of tools whose every call needs somebody's consent."""


@frozen(kw_only=True)
class ToolsetUse:
    """A toolset with options, or a registered tool by its name."""

    name: str
    options: Mapping[str, JsonValue] = field(factory=_empty)
    """Templates over `inputs` are rendered before the run."""
    prefix: str | None = None
    """YAML key `as`: tools are called `prefix__name`; None: the toolset's own name."""


@frozen(kw_only=True)
class InputSpec:
    """One declared input."""

    schema: JsonSchema
    """JSON Schema; `format: path` makes text an absolute path."""
    default: JsonValue = None
    has_default: bool = False
    description: str = ""
    is_secret: bool = False
    """Takes a `SecretRef`; in `inputs` stands its marker, and only tools get the value."""


@frozen(kw_only=True)
class MessageSpec:
    """A message of a goal step; `content` is a template."""

    role: str
    content: str


@frozen(kw_only=True)
class LoopSpec:
    """A step that is done for each item of a list."""

    over: JsonValue
    """A template that gives a list, or the list."""
    aggregate: bool = False
    """The output is the list of the items' outputs; else an envelope that also has the errors."""
    max_parallel: int = 1
    """Items that are done together."""


@frozen(kw_only=True)
class WhileSpec:
    """A step that is done again as long as a condition holds."""

    condition: str
    """Looked at after each attempt."""
    max_iterations: int = 10
    """Attempts; when the condition still holds after the last, the step fails."""
    allow_repeats: bool = False
    """An attempt may give what an earlier one gave; else that fails the step: it is stuck."""


class OnError(StrEnum):
    """What becomes of the run when a step fails."""

    FAIL = "fail"
    CONTINUE = "continue"
    """It counts as optional, and what only has to come after it goes on."""
    GOTO = "goto"
    """An earlier step runs again and is told what went wrong."""


@frozen(kw_only=True)
class OnErrorSpec:
    """Of one step."""

    action: OnError = OnError.FAIL
    goto: str | None = None
    """The step to go back to: this one, or one that it depends on."""
    max_times: int = 2
    """How often; after that the step has failed."""


MOST_ROUTING_CALLS: Final = 2
"""Model calls for one choice of a next step: the answer, and one repair of it."""


@frozen(kw_only=True)
class DecisionToolSpec:
    """A tool whose result names the next step."""

    tool: str
    params: Mapping[str, JsonValue] = field(factory=_empty)
    """Templates are filled in when the step has ended."""


@frozen(kw_only=True)
class PersonQuestion:
    """What a step asks a person."""

    text: str
    """A template."""
    form: JsonSchema | None
    """JSON Schema of the answer; None: any text."""
    timeout_s: float | None
    """Seconds; None: as long as it takes."""
    default: JsonValue = None
    has_default: bool = False


@frozen(kw_only=True)
class StepSpec:
    """What every kind of step may say, and what can be asked of any step without running it.

    A kind of step (`minions.recipe.kinds`) subclasses it, adds its own keys as fields, and
    overrides what differs for its steps.
    """

    kind: ClassVar[str]
    """The key that makes a step one of its kind; the word in pictures."""
    asks_model: ClassVar[bool] = False
    """Whether its work is to ask a model."""
    fills_in: ClassVar[bool] = False
    """Whether a model is asked only for what the step's parameters leave open."""
    asks_person: ClassVar[bool] = False
    """Whether a person answers it."""
    calls_tools: ClassVar[bool] = False
    """Whether it may call tools: a person can be asked to consent."""
    needs_sandbox: ClassVar[bool] = False
    """Whether it is code that runs in a sandbox only."""

    id: str
    description: str = ""
    depends_on: tuple[str, ...] = ()
    """Step ids, after `save_as` names were resolved; with those whose values templates read."""
    declared: tuple[str, ...] = ()
    """Those of `depends_on` that the author wrote there: only they may be shown to a model."""
    after: tuple[str, ...] = ()
    """Steps that only have to end first: every reference to them can do without."""
    when: str | None = None
    """A condition; false means SKIPPED."""
    loop: LoopSpec | None = None
    repeat: WhileSpec | None = None
    """YAML key `while`."""
    on_error: OnErrorSpec = field(factory=OnErrorSpec)
    route: str | None = None
    """In a transition graph: a template that gives the next step's id, or a question to a model."""
    decision_tool: DecisionToolSpec | None = None
    save_as: str | None = None
    optional: bool = False
    timeout_s: float | None = None
    cache: bool = False
    """An output that rests on the same is not asked for again, in whatever run."""
    idle_timeout_s: float | None = None
    """Longest silence of the step's model; None: the model's own."""
    retry: RetryConfig | None = None
    """None: the recipe's."""
    limits: Mapping[str, JsonValue] = field(factory=_empty)
    metadata: Mapping[str, JsonValue] = field(factory=_empty)
    where: Where = field(factory=Where, eq=False)

    @property
    def own_model(self) -> ModelConfig | None:
        """What it says of the model that it asks; None: nothing."""
        return None

    @property
    def called_tools(self) -> tuple[str, ...]:
        """Full names of the tools that it calls itself."""
        return ()

    @property
    def offered_tools(self) -> tuple[str, ...]:
        """Full names of the tools that it offers to its model."""
        return ()

    @property
    def inner(self) -> AgentRecipe | None:
        """The recipe that is its work; None: it is no such step."""
        return None

    @property
    def inner_inputs(self) -> Mapping[str, JsonValue]:
        """What that recipe is given: templates by the names of its inputs."""
        return {}

    @property
    def registered_class(self) -> str | None:
        """The name of the registered `Step` class that is its work; None: it is no such step."""
        return None

    @property
    def question(self) -> PersonQuestion | None:
        """What a person is asked; None: nobody is."""
        return None

    @property
    def shares_conversation(self) -> bool:
        """Whether it goes on with what was said in the steps before it."""
        return False

    @property
    def content(self) -> str:
        """What it does, in the words of its own key; empty: nothing to show."""
        return ""

    @property
    def label(self) -> str:
        """What pictures show of it: the description, else its content."""
        return self.description or self.content

    def may_ask_model(self, tools: Mapping[str, ToolSpec]) -> bool:
        """Whether its work may ask a model; of a registered class nobody knows it here.

        Args:
            tools: Those that its recipe can reach, by full name.
        """
        return self.asks_model


def _as_steps(
    steps: Iterable[StepSpec | Step[object]],
) -> tuple[StepSpec | Step[object], ...]:
    return tuple(steps)


@frozen(kw_only=True)
class RecipeTest:
    """A run with scripted answers, and what has to come out."""

    name: str
    inputs: Mapping[str, JsonValue] = field(factory=_empty)
    answers: tuple[JsonValue, ...] = ()
    """As in a script file."""
    model: str | None = None
    tools: Mapping[str, JsonValue] = field(factory=_empty)
    """Full names of tools that are not called, to what they give."""
    decisions: Mapping[str, str] = field(factory=dict)
    status: RunStatus = field(default=RunStatus.COMPLETED, converter=RunStatus)
    output: JsonValue = None
    has_output: bool = False
    """Whether the output is expected to be just `output`."""
    error: str | None = None
    holds: tuple[str, ...] = ()
    where: Where = field(factory=Where, eq=False)


Edges: TypeAlias = Mapping[str, Sequence[str]]


@frozen(kw_only=True)
class AgentRecipe:
    """Everything a run needs to know beforehand.

    Steps are specs (from YAML: a dependency graph, or a transition graph where `graph` is given)
    or `Step` objects (from Python: a transition graph, in list order unless `graph` says
    otherwise).
    """

    id: str
    version: str = "1"
    name: str = ""
    """What people call it; empty: its id."""
    description: str = ""
    inputs: Mapping[str, InputSpec] = field(factory=dict)
    system_prompt: str | None = None
    """In the first prompt of each model step, once."""
    goal: str | None = None
    """The agent's aim: likewise."""
    messages: MessageBundle = field(default=MessageBundle())
    """Further messages for every model step, such as the user's."""
    model: ModelConfig = field(factory=ModelConfig)
    tools: tuple[ToolsetUse, ...] = ()
    permissions: Permissions = field(factory=Permissions)
    limits: Mapping[str, JsonValue] = field(factory=_empty)
    """Become `AgentContext.metadata`."""
    retry: RetryConfig = field(factory=RetryConfig)
    execution_mode: ExecutionMode = field(default=ExecutionMode.SEQUENTIAL, converter=ExecutionMode)
    max_parallel: int = field(default=16, validator=ge(1))
    on_failure: OnFailure = field(default=OnFailure.STOP, converter=OnFailure)
    steps: tuple[StepSpec | Step[object], ...] = field(converter=_as_steps)
    graph: Edges | StepGraph | None = None
    """Transitions, step id to next ids; of Step objects None is list order, {} no edges."""
    output: JsonValue = None
    """A template of the run's result; None: the last completed step's output."""
    tests: tuple[RecipeTest, ...] = ()
    """What `minions test` runs."""
    enabled: bool = True
    """For whatever runs recipes by a plan."""
    schedule: JsonValue = None
    """When it is to run, as it is written: likewise."""
    metadata: Mapping[str, JsonValue] = field(factory=_empty)
    """Whatever the application wants to keep beside the recipe."""
    document: Mapping[str, JsonValue] | None = field(default=None, eq=False, repr=False)
    """The recipe as it was read; travels with the run so that resume needs no file."""
    directory: str | None = field(default=None, eq=False)
    """Of the recipe's file: where its own relative paths start."""

"""The facts of runs and sessions: how they begin and end, what was decided, and remarks on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import ClassVar, Final, Literal

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from minions.contracts.approvals import AskedRule, DecisionMaker
from minions.contracts.decision_types import Answer, Approve, Decision, Done, Reject, parse_decision
from minions.contracts.executions import RunStatus
from minions.contracts.journal.facts.step_facts import FactOfStep, FactShape, MessageCount, Object
from minions.data.errors import Fault
from minions.data.json_values import JsonValue


class RecordedProposal(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A plan that a person is asked about."""

    text: str
    """The whole plan, as it may be edited and given as the answer."""
    notes: Sequence[str] | None = None
    faults: Sequence[str] | None = None
    """Why it cannot be carried out as it is; None: it can."""
    diff: Object | None = None
    """What differs from the plan that failed, as `PlanDiff` writes it; None: there was none."""


class RecordedVote(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What one person said of a call."""

    word: str
    """Text form of the decision."""
    at: str
    """When, in ISO 8601."""
    by: str | None = None
    """The person, or the name of their token; None: not known."""
    person: str | None = None
    """The user of the token; None: it has none."""
    roles: tuple[str, ...] = ()
    way: str | None = None
    """By which way: `cli`, `http`, `library` or `run`."""


class RecordedReview(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What a reviewing recipe said of a call."""

    recipe: str
    """The recipe's id."""
    verdict: Literal["reject", "pass", "failed"]
    """`failed`: it came to no verdict, so that a person is asked as after `pass`."""
    reason: str | None = None
    """Why, in its words; of a failed one what went wrong."""


class RecordedClass(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Which later calls a decision covers, with all that it is bound to."""

    tool: str
    step_id: str
    same: Mapping[str, JsonValue] = {}
    """The values of arguments that are equal, by place: `json.amount`."""
    when: str | None = None
    """A condition over `args` that is true."""
    words_of: tuple[str, ...] = ()
    """Whose words may be in the arguments: nobody else's, as these were shown."""
    count: int | None = None
    """How many later calls at the most; None: all of the run."""
    until: str | None = None
    """The time, in ISO 8601, until which it covers calls; None: until the run ends."""
    tool_digest: str
    """Fingerprint of the tool: another one is not covered."""
    recipe_digest: str
    """Fingerprint of the recipe that makes the call."""


class DecisionFact(FactShape, frozen=True, kw_only=True):
    """A decision of a person that a step needs to continue."""

    kind: ClassVar[str] = "decision"

    what: Literal["approval", "answer"]
    step_id: str
    path: str | None = None
    """The step as people see it: `outer/step[2]`."""
    tool: str | None = None
    """The tool of the call that needs approval; of an answer the caller's tool whose result it is.
    """
    arguments: str | None = None
    filled: Sequence[str] | None = None
    """The parameters that a model filled in, of the call of a tool step; None: none."""
    words_of: Sequence[str] | None = None
    """Whose words may be in the arguments, of those that strangers may have written; None: nobody
    is asked for their sake."""
    digest: str | None = None
    """Fingerprint of tool and arguments: an approval covers exactly these."""
    question: str | None = None
    form: Object | None = None
    """JSON Schema of the answer."""
    default: JsonValue | UnsetType = UNSET
    timeout_s: float | None = None
    plan: RecordedProposal | None = None
    """The plan that the question is about; None: it is about something else."""
    rules: tuple[AskedRule, ...] | None = None
    """Who may decide, and how far that came; None: anybody, alone."""
    reviews: tuple[RecordedReview, ...] | None = None
    """What reviewing recipes said of the call; None: none was asked."""
    remind_every_s: float | None = None
    """Seconds after which hooks are reminded, until it is decided; None: they are told once."""


class DecisionWaiting(DecisionFact, frozen=True, kw_only=True):
    """The decision is pending."""

    kind: ClassVar[str] = "decision"
    state: ClassVar[str] = "waiting"


class DecisionTaken(DecisionFact, frozen=True, kw_only=True):
    """The decision was made."""

    word: str
    """Text form of the decision: `approve:DIGEST`, `reject:DIGEST` or `answer:JSON`."""
    is_default: bool = False
    """Whether the default counted because the time for an answer was over."""
    reason: str | None = None
    """Why the call was rejected; None: no reason was given."""
    edited_arguments: str | None = None
    """The arguments with which the tool is called instead of those shown, as JSON text; None: the
    call was approved as shown.
    """
    edited_digest: str | None = None
    """Fingerprint of the tool and the edited arguments."""
    votes: tuple[RecordedVote, ...] | None = None
    """The votes that decided it; None: it has no rules."""
    like: RecordedClass | None = None
    """Which later calls are approved with it; None: this one alone."""
    by_class: str | None = None
    """The key of the decision that approved all calls like this one; None: it was decided alone."""

    def __post_init__(self) -> None:
        _stored_decision(self.word)

    @property
    def decision(self) -> Decision:
        """The decision that `word` stands for, with what was said beside it."""
        decision = parse_decision(self.word)
        match decision:
            case Approve():
                return replace(decision, arguments=self.edited_arguments)
            case Reject():
                return replace(decision, reason=self.reason)
            case _:
                return decision


class DecisionRecorded(DecisionTaken, frozen=True, kw_only=True):
    """The decision was made in this journal."""

    kind: ClassVar[str] = "decision"
    state: ClassVar[str] = "recorded"


class DecisionImported(DecisionTaken, frozen=True, kw_only=True):
    """The decision was made in another journal: it is shown, and decides nothing here."""

    kind: ClassVar[str] = "decision"
    state: ClassVar[str] = "imported"


class BackEdge(FactShape, frozen=True, kw_only=True):
    """The run takes a back edge because a step failed."""

    kind: ClassVar[str] = "goto"
    state: ClassVar[str] = "recorded"

    step: str | None = None
    to: str
    code: str | None = None
    message: str | None = None
    attempt: int
    step_id: str


class PlanReplaced(FactOfStep, frozen=True, kw_only=True):
    """A plan took the place of one that failed, and nobody was asked about it."""

    kind: ClassVar[str] = "plan"
    state: ClassVar[str] = "replaced"

    text: str
    """What differs, in words for people."""
    diff: Object
    """What differs, as `PlanDiff` writes it."""


class PlanLookup(FactOfStep, frozen=True, kw_only=True):
    """A plan of an earlier run was searched for that serves the task of this one."""

    kind: ClassVar[str] = "plan"
    state: ClassVar[str] = "looked_up"

    text: str
    """What came of it, in words for people."""
    run: str | None = None
    """The run whose plan is used; None: none serves the task."""
    plan: Object | None = None
    """That plan as it is used, as `Plan` writes it."""


class RouteFinished(FactOfStep, frozen=True, kw_only=True):
    """A model chose the next step."""

    kind: ClassVar[str] = "route"
    state: ClassVar[str] = "finished"

    output: str
    reason: str | None = None


class RouteFailed(FactOfStep, frozen=True, kw_only=True):
    """The model could not choose the next step."""

    kind: ClassVar[str] = "route"
    state: ClassVar[str] = "failed"

    error: Object | None = None
    reason: str | None = None


def _stored_decision(word: str) -> None:
    """Refuse a text that is not a decision.

    Raises:
        ValueError: It is not a decision, or holds invalid JSON where it must hold JSON.
    """
    decision = parse_decision(word)
    if isinstance(decision, Answer | Done):
        try:
            _ = decision.value
        except ValueError as error:
            raise ValueError(f"`{word:.40}` holds no JSON: {error}") from error


_STATUSES: Final = tuple(each.value for each in RunStatus)


class RecordedConversation(Struct, frozen=True, kw_only=True, gc=False):
    """How much of the session's conversation a run starts with."""

    keep: int | None
    """Number of messages that stay, counted from the first; None: all."""
    continues: bool
    """Whether the run continues the conversation as it is; else it appends the input `message`."""


class RecordedItem(Struct, frozen=True, kw_only=True, gc=False):
    """What a child run executes of a distributed step."""

    index: int | None = None
    """The index of the item in its loop, from 0; None: the step has no loop."""
    value: JsonValue = None
    """What templates read as `loop.item`."""


class RecordedPart(Struct, frozen=True, kw_only=True, gc=False):
    """Which steps of the recipe were selected, and the recorded outputs of the others."""

    runs: Sequence[str]
    passed_over: Sequence[str]
    pinned_from: str
    pinned: str
    """Digest of a blob: a JSON object of outputs by step id. Of a child run it has what templates
    read as `steps`."""
    item: RecordedItem | None = None
    """Of a child run: what it executes of its one step; None: it is no child run."""


def digest_of_recipe(document: str | None, recipes: str | None) -> str | None:
    """The first digits of what names the texts of a recipe and of those within; None: none do."""
    if document is None or recipes is None:
        return document and document[:12]
    return f"{document[:6]}{recipes[:6]}"


class RunBeginning(FactShape, frozen=True, kw_only=True):
    """The start of an execution of a run."""

    recipe: str
    """The recipe's id."""
    version: str | None = None
    """The version that the recipe itself states."""
    inputs: Object | None = None
    """The validated inputs; secrets as references. None: those of the start before, where they are
    long: a run that is resumed often stores them once."""
    model: str | None | UnsetType = UNSET
    """The models that the run calls, as far as known at the start."""
    user: str | None = None
    """The label of the user for whom it runs; None: none was given."""
    note: Object | None = None
    """What the caller wants to find again: flags of the command line, the server's mark."""
    thread: RecordedConversation | None = None
    part: RecordedPart | None = None
    """The selected part of the recipe; None: all of it."""
    document: str | None = None
    """Digest of a blob: the resolved recipe. A recipe built in code has `steps` instead."""
    directory: str | None | UnsetType = UNSET
    """The folder of the recipe's file, which relative paths start from."""
    recipes: str | None = None
    """Digest of a blob: the nested recipes."""
    steps: Mapping[str, str] | None = None
    """Versions of the steps' code, by step id."""
    queued: bool | None = None
    """Whether nothing is executed yet: the run waits in a queue for a worker, which resumes it."""
    retain_s: float | None = None
    """Seconds after its end for which the run may stay in the journal: the shortest that its
    operator, its recipe and those within say; None: none says it."""
    trace: Mapping[str, str] | None = None
    """`traceparent` and `tracestate` of the span of this execution or, where the run is queued, of
    whoever queued it; None: nothing was traced."""

    def __post_init__(self) -> None:
        if self.document is None and self.steps is None:
            raise ValueError("neither `document` nor `steps` defines the steps of the run")

    @property
    def recipe_digest(self) -> str | None:
        """Twelve digits, equal for all runs of the same text of the recipe and those within; None:
        it was made by code.
        """
        return digest_of_recipe(self.document, self.recipes)


class RunStarted(RunBeginning, frozen=True, kw_only=True):
    """The first execution of a run starts."""

    kind: ClassVar[str] = "run"
    state: ClassVar[str] = "started"

    project: str | None = None
    """The folder of the project in which it was started; None: of none."""


class RunResumed(RunBeginning, frozen=True, kw_only=True):
    """A later execution of a run starts: by `resume`, `retry` or a decision."""

    kind: ClassVar[str] = "run"
    state: ClassVar[str] = "resumed"

    retries: bool | None = None
    """Whether failed steps are retried."""
    anew: Sequence[str] | None = None
    """Steps that are rerun although they have outputs: `outer/inner`,
    or `outer/` with all steps within.
    """
    anew_at: Sequence[str] | None = None
    """Addresses of executions that are rerun: `outer[1]/inner[2]` alone, or
    `outer[1]/inner/` with its iterations and all within.
    """
    decisions: Mapping[str, str] | None = None
    """Decisions made with the resume: their text forms by the key of the decision or tool call."""
    by: str | None = None
    """Who made them, as they say themselves; None: it is not known."""
    person: str | None = None
    """The user of the token with which they were made; None: it has none."""
    roles: tuple[str, ...] | None = None
    """The roles of whoever made them; None: none."""
    way: str | None = None
    """By which way they were made: `cli`, `http` or `library`; None: not known."""
    is_claimed: bool | None = None
    """Whether `by` is only what a caller says, so that it counts nowhere that names count."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for word in (self.decisions or {}).values():
            _stored_decision(word)

    @property
    def maker(self) -> DecisionMaker:
        """Who made the decisions."""
        return DecisionMaker(
            name=self.by,
            user=self.person,
            roles=self.roles or (),
            way=self.way or "library",
            is_claimed=self.is_claimed is True or self.way is None,
        )

    @property
    def decided(self) -> Mapping[str, Decision]:
        """Decisions made with the resume, by the key of the decision or tool call."""
        return {key: parse_decision(word) for key, word in (self.decisions or {}).items()}


class RunFinished(FactShape, frozen=True, kw_only=True):
    """An execution of a run ended; its status tells whether the run can be resumed."""

    kind: ClassVar[str] = "run"
    state: ClassVar[str] = "finished"

    status: str
    output: JsonValue | UnsetType = UNSET
    usage: Object | None = None
    """What all executions of the run used; `discarded_tokens` and `discarded_cost_usd` in it are
    of calls that a retry ran again.
    """
    spent: Object | None = None
    """`tokens` and `cost_usd` that the run itself spent, where `usage` has those of its child runs,
    too; of older versions also where `usage` lacked the calls that a retry ran again. None: what
    `usage` says.
    """
    error: Object | None | UnsetType = UNSET
    sequence: MessageCount | None = None
    """The session's last message that counts again after a failed
    retry; None: nothing is restored.
    """
    waiting: Sequence[Object] | None = None
    """The pending decisions of a run that waits: `key`, `step_id`, `what`, and `tool` with its
    `digest` or `question`; None: it does not wait, or an older version recorded its end.
    """

    resumes_at: str | None = None
    """Of a run that waits: the first time, in ISO 8601, at which it can be resumed without a
    decision, because a question's time is over or a server may be asked again; None: there is none.
    """
    remind_every_s: float | None = None
    """Of a run that waits: seconds after which hooks are reminded; None: they are told once."""

    def __post_init__(self) -> None:
        if self.resumes_at is not None:
            datetime.fromisoformat(self.resumes_at)
        if self.status not in _STATUSES:
            raise ValueError(
                f"`{self.status:.40}` is not a status; expected: {', '.join(_STATUSES)}"
            )


class RunLimitReached(FactShape, frozen=True, kw_only=True):
    """A limit of the run is reached, so that no further work starts."""

    kind: ClassVar[str] = "run"
    state: ClassVar[str] = "limit_reached"

    limit: str | None
    message: str


class RunRejected(FactShape, frozen=True, kw_only=True):
    """The recipe has faults, so that the run never started."""

    kind: ClassVar[str] = "run"
    state: ClassVar[str] = "rejected"

    recipe: str
    project: str | None = None
    """The folder of the project in which it was refused; None: of none."""
    note: Object | None = None
    error: Object | None = None
    faults: tuple[Fault, ...]


def inputs_in(beginnings: Sequence[RunBeginning | RecipeChange]) -> Mapping[str, JsonValue]:
    """The newest inputs in the starts and moves of a run, which are in order."""
    return next((each.inputs for each in reversed(beginnings) if each.inputs is not None), {})


class WarningRecorded(FactShape, frozen=True, kw_only=True):
    """Something that a person should know and that does not stop the run."""

    kind: ClassVar[str] = "warning"
    state: ClassVar[str] = "recorded"

    code: str
    message: str


class StoredPrefixFact(FactShape, frozen=True, kw_only=True):
    """A beginning of prompts that a provider keeps under a name, paid by the hour."""

    kind: ClassVar[str] = "prompt_cache"

    model: str
    """`provider/model`, whose prompts begin so."""
    name: str = ""
    """Its name at the provider; empty: it was not made."""


class StoredPrefixMade(StoredPrefixFact, frozen=True, kw_only=True):
    """The provider keeps it from now on."""

    kind: ClassVar[str] = "prompt_cache"
    state: ClassVar[str] = "made"

    tokens: int
    ttl_s: float
    """Seconds until it ends by itself."""
    usd_per_mtok_hour: float
    """The price of storage."""
    cost_usd: float | None = None
    """What reading it and keeping it for `ttl_s` costs; None: the model's price is not known."""


class StoredPrefixRenewed(StoredPrefixFact, frozen=True, kw_only=True):
    """The provider keeps it for `ttl_s` from now on."""

    kind: ClassVar[str] = "prompt_cache"
    state: ClassVar[str] = "renewed"

    ttl_s: float
    cost_usd: float
    """What keeping it for so much longer costs."""


class StoredPrefixDeleted(StoredPrefixFact, frozen=True, kw_only=True):
    """The provider does not keep it any more."""

    kind: ClassVar[str] = "prompt_cache"
    state: ClassVar[str] = "deleted"


class StoredPrefixLost(StoredPrefixFact, frozen=True, kw_only=True):
    """It is not used any more: calls are made without it."""

    kind: ClassVar[str] = "prompt_cache"
    state: ClassVar[str] = "lost"

    reason: str
    """`refused`: it was not made; `missing`: the provider did not have it; `expired`: its time was
    over; `not-deleted`: it ends by itself."""
    message: str | None = None
    """What the provider said."""


class PinnedExample(Struct, frozen=True, kw_only=True, gc=False):
    """A question with its answer, taken from a recorded run."""

    question: str
    answer: JsonValue
    run: str
    """The id of the run."""
    address: str
    """The address of the step or item in it."""


class ExamplesPinned(FactShape, frozen=True, kw_only=True):
    """The examples from recorded runs that a step's model is shown, in every call of this run."""

    kind: ClassVar[str] = "examples"
    state: ClassVar[str] = "pinned"

    recipe: str
    """The id of the recipe that has the step: the run's own, or a nested one."""
    step: str
    """The id of the step in that recipe."""
    fingerprint: str
    """Of the step's goal, output and bounds, as far as they decide which examples fit."""
    examples: tuple[PinnedExample, ...] = ()
    """In the order in which they are shown."""


class MarkFact(FactShape, frozen=True, kw_only=True):
    """What a person says of the work of a run: it is good, or bad."""

    kind: ClassVar[str] = "mark"

    verdict: Literal["good", "bad"]
    address: str | None = None
    """The address of the step or item that is meant; None: the whole run."""
    note: str | None = None
    """Why, in the person's words; None: nothing was said."""
    by: str | None = None
    """Who marked it, as they say themselves; None: it is not known."""


class MarkRecorded(MarkFact, frozen=True, kw_only=True):
    """The mark was set in this journal."""

    state: ClassVar[str] = "recorded"


class MarkImported(MarkFact, frozen=True, kw_only=True):
    """The mark was set in another journal: it is shown, and counts for nothing here."""

    state: ClassVar[str] = "imported"


class RecipeFact(FactShape, frozen=True, kw_only=True):
    """A person decided with which version of its recipe a run that is not over continues."""

    kind: ClassVar[str] = "recipe"

    document: str
    """Digest of a blob: the resolved recipe with which it continues."""
    by: str | None = None
    """Who decided it, as they say themselves; None: it is not known."""


class RecipeChange(RecipeFact, frozen=True, kw_only=True):
    """The run continues with another version. All that its newest start says else still holds."""

    directory: str | None | UnsetType = UNSET
    """The folder of the recipe's file."""
    recipes: str | None = None
    """Digest of a blob: the nested recipes."""
    version: str | None = None
    """The version that the recipe itself states."""
    inputs: Object | None = None
    """The inputs with the defaults of that version."""

    @property
    def recipe_digest(self) -> str | None:
        """Twelve digits, as those of a start: equal for all runs of the same text."""
        return digest_of_recipe(self.document, self.recipes)


class RecipeMoved(RecipeChange, frozen=True, kw_only=True):
    """Steps that ended keep what they came to, whatever the new version says of them."""

    state: ClassVar[str] = "moved"

    before: str
    """Digest of the document with which the run would have continued."""
    anew: Sequence[str] = ()
    """Paths of steps that had begun, not ended, and differ: they begin again."""


class RecipeMovedBack(RecipeChange, frozen=True, kw_only=True):
    """The newest move is undone: nothing of the run was executed since."""

    state: ClassVar[str] = "moved_back"


class RecipePinned(RecipeFact, frozen=True, kw_only=True):
    """The run stays with its version until somebody moves it by name."""

    state: ClassVar[str] = "pinned"


class ScoreFact(FactShape, frozen=True, kw_only=True):
    """What a scorer of the recipe's `watch` says of the output of a run that completed."""

    kind: ClassVar[str] = "score"

    scorer: str
    """Its name, as in evaluations: `graded RUBRIC`."""
    value: float | None = None
    """From 0 to 1; None: it gave no score, `reason` says why."""
    is_passed: bool = False
    reason: str | None = None
    """Why the output did not pass, or has no score; None: it passed."""
    input_tokens: int = 0
    """What a model that graded has read; 0: none did."""
    output_tokens: int = 0
    cost_usd: float | None = None
    """US dollars; None: nothing, or not known."""


class ScoreRecorded(ScoreFact, frozen=True, kw_only=True):
    """The score was given here."""

    state: ClassVar[str] = "recorded"


class ScoreImported(ScoreFact, frozen=True, kw_only=True):
    """The score was given in another journal: it is shown, and counts for nothing here."""

    state: ClassVar[str] = "imported"


class SessionOpened(FactShape, frozen=True, kw_only=True):
    """A new session, without messages."""

    kind: ClassVar[str] = "session"
    state: ClassVar[str] = "opened"

    recipe: str | None | UnsetType = UNSET
    name: str | None | UnsetType = UNSET
    inputs: Object | None = None
    user: str | None = None
    """The label of the user to whom the session belongs; None: it is the operator's."""
    project: str | None = None
    """The folder of the project in which it was made; None: of none."""


class SessionForked(FactShape, frozen=True, kw_only=True):
    """A new session that starts with the messages of another one."""

    kind: ClassVar[str] = "session"
    state: ClassVar[str] = "forked"

    parent: str
    sequence: MessageCount
    """Sequence of the last message that is taken from the parent."""
    position: int
    """Position of the last entry that is read from the parent."""
    recipe: str | None | UnsetType = UNSET
    name: str | None | UnsetType = UNSET
    inputs: Object | None = None
    user: str | None = None
    """The label of the user to whom the session belongs; None: it is the operator's."""
    project: str | None = None
    """The folder of the project in which it was made; None: of none."""


class SessionCut(FactShape, frozen=True, kw_only=True):
    """Messages after `sequence` leave the conversation."""

    kind: ClassVar[str] = "session"
    state: ClassVar[str] = "cut"

    sequence: MessageCount

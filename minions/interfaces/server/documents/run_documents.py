"""Bodies of requests and responses about runs and decisions, as classes."""

from __future__ import annotations

import hashlib
from datetime import datetime
from typing import TYPE_CHECKING, ClassVar, Final, Literal

from attrs import field, frozen

from minions.contracts.file_changes import RollbackReport
from minions.data.json_values import JsonValue, dumps
from minions.engine.calls.inbox import ItemKind
from minions.engine.sessions.marking import LONGEST_NOTE
from minions.interfaces.http.http_answers import FaultView
from minions.interfaces.server.documents.shared_documents import (
    MAYBE_TEXT,
    STATE,
    USER,
    CutPart,
    CutQuery,
    JsonObject,
    Page,
    number_schema,
    text_schema,
)

if TYPE_CHECKING:
    from minions.app.capturing.captures import Capture


@frozen(kw_only=True)
class RunsPage:
    """Which part of the list of runs to return, and a filter."""

    limit: int = field(default=100, metadata=number_schema(1, 1_000))
    offset: int = field(default=0, metadata=number_schema(0))
    recipe: str | None = field(default=None, metadata=MAYBE_TEXT)
    status: str | None = field(default=None, metadata=STATE)
    session: str | None = field(default=None, metadata=MAYBE_TEXT)
    user: str | None = field(default=None, metadata=MAYBE_TEXT)
    """The label that the run was begun with."""
    project: str | None = field(default=None, metadata=MAYBE_TEXT)
    """The folder of the project in which the run was started."""
    text: str | None = field(default=None, metadata=MAYBE_TEXT)
    """Words, each of which is part of the recipe, the model, the state, the id of run or session,
    the first words of the inputs, or the error."""
    q: str | None = field(default=None, metadata=text_schema(1_000, "null"))
    """A search: words, `"words in a row"`, `status:failed`, `recipe:`, `user:`, `project:`,
    `session:`, `since:2d`, `cost>0.01`, `tokens>=1000`; all of its terms hold."""


# --- runs -----------------------------------------------------------------------------------------


@frozen(kw_only=True)
class RunRequest:
    """A run to begin."""

    schema_variants: ClassVar[JsonObject] = {
        "StoredRecipeRequest": {
            "recipe": text_schema()["schema"],
            "recipe_text": {"type": "null"},
        },
        "RecipeTextRequest": {
            "recipe": {"type": "null"},
            "recipe_text": text_schema(500_000)["schema"],
        },
    }
    """For the OpenAPI document, what no single field says: one of the two recipes is given."""

    recipe: str | None = field(default=None, metadata=MAYBE_TEXT)
    """The id of a stored recipe; None: `recipe_text` is given."""
    recipe_text: str | None = field(default=None, metadata=text_schema(500_000, "null"))
    """The YAML of a recipe instead of a stored one, if the operator allows it."""
    inputs: JsonObject = field(factory=dict)
    session: str | None = field(default=None, metadata=MAYBE_TEXT)
    """The session that the run belongs to; None: a new one."""
    user: str | None = field(default=None, metadata=USER)
    """The label of the user for whom it runs, whose daily budget it spends from; None: none."""
    by: str | None = field(default=None, metadata=text_schema(60, "null"))
    """When it is to be done, a time of day or a date and time, in UTC where no zone is named: until
    then its model calls may wait for batches of their providers, if the operator allows it."""
    patience: str | None = field(default=None, metadata=text_schema(20, "null"))
    """The same, as a duration from now on, such as 8h."""


@frozen(kw_only=True)
class Links:
    """Addresses of the run and related resources."""

    run: str
    events: str
    cancel: str
    session: str


@frozen(kw_only=True)
class RunAccepted:
    """A run that was started and continues in the background."""

    run_id: str
    session_id: str
    status: str = field(metadata=STATE)
    """One of `RunState`, as in every response about the run."""
    links: Links


@frozen(kw_only=True)
class CancelView:
    """A run that was asked to stop."""

    run_id: str
    status: str = field(metadata=STATE)
    """`running` until it has stopped; `cancelled` at once if this process did not execute it."""


@frozen(kw_only=True)
class CaptureRequest:
    """How a run is captured as a recipe."""

    runs: tuple[str, ...] = ()
    """Ids of further runs of the same kind of task."""
    recipe_id: str | None = field(default=None, metadata=MAYBE_TEXT)
    """The id of the recipe; None: made of the agent's."""
    answers: dict[str, str] = field(factory=dict)
    """By place of a question, the chosen template."""
    accept: bool = False
    """Take the first choice where nobody chose."""
    on_surprise: Literal["agent", "ask", "fail"] = "fail"
    """What becomes of a run in which something is as it was never seen."""


@frozen(kw_only=True)
class ValueOrigin:
    """Where one value of a captured recipe comes from."""

    place: str
    how: str
    source: str
    because: str


@frozen(kw_only=True)
class OriginQuestion:
    """A value that may have come from several places."""

    place: str
    value: str
    """The value in the first run, as JSON."""
    choices: tuple[str, ...]
    """Templates, the proposed one first."""


@frozen(kw_only=True)
class CallLeftOut:
    """A call that a captured recipe does not make."""

    tool: str
    arguments: JsonObject
    reason: str


@frozen(kw_only=True)
class CaptureView:
    """A recipe that was captured from runs; nothing is stored."""

    recipe: str
    """The recipe's text, as YAML."""
    files: dict[str, str]
    """Files that belong beside it, by name."""
    proved: bool
    problems: tuple[str, ...]
    """Why it is not proved; empty: it is."""
    evidence: tuple[ValueOrigin, ...]
    questions: tuple[OriginQuestion, ...]
    left_out: tuple[CallLeftOut, ...]
    agent_model_calls: int
    """Model calls of the run that had the most."""
    recipe_model_calls: int
    """Steps of the recipe that ask a model."""
    agent_tokens: int
    """Tokens that a run used on average."""
    picture: str | None
    """Its steps, as SVG; None: it has faults."""

    @classmethod
    def of(cls, capture: Capture, picture: str | None) -> CaptureView:
        """The capture for a response."""
        return cls(
            recipe=capture.text,
            files=dict(capture.files),
            proved=capture.is_proved,
            problems=capture.problems,
            evidence=tuple(
                ValueOrigin(place=x.place, how=x.how, source=x.source, because=x.because)
                for x in capture.evidence
            ),
            questions=tuple(
                OriginQuestion(place=x.place, value=dumps(x.value), choices=x.choices)
                for x in capture.questions
            ),
            left_out=tuple(
                CallLeftOut(tool=x.call.tool, arguments=dict(x.call.arguments), reason=x.reason)
                for x in capture.program.left_out
            ),
            agent_model_calls=max(each.model_calls for each in capture.traces),
            recipe_model_calls=capture.judgements,
            agent_tokens=capture.usage_before.total_tokens,
            picture=picture,
        )


@frozen(kw_only=True)
class RollbackRequest:
    """How a run is rolled back."""

    dry_run: bool = False
    """Only report what would be restored."""


@frozen(kw_only=True)
class FileOfRollback:
    """What became of one file, or of a folder (with `/` at the end) that the run made."""

    root: str
    path: str
    outcome: Literal["restored", "removed", "unchanged", "changed_since", "refused"]
    """`changed_since`: somebody else changed it, so it is left as it is."""
    reason: str | None
    """Why it is not as before; None: it is."""


@frozen(kw_only=True)
class CallOfRollback:
    """A call with an effect that a rollback does not undo."""

    key: str
    tool: str
    address: str
    effect: str


@frozen(kw_only=True)
class RollbackView:
    """What a rollback did, or, of a dry run, would do."""

    run_id: str
    dry_run: bool
    complete: bool
    """Whether each recorded file is as it was before the run."""
    files: tuple[FileOfRollback, ...]
    not_reversible: tuple[CallOfRollback, ...]

    @classmethod
    def of(cls, report: RollbackReport) -> RollbackView:
        """The report for a response."""
        return cls(
            run_id=report.run_id,
            dry_run=report.is_dry_run,
            complete=report.is_complete,
            files=tuple(
                FileOfRollback(
                    root=each.root,
                    path=each.path,
                    outcome=each.outcome.value,
                    reason=each.reason,
                )
                for each in report.files
            ),
            not_reversible=tuple(
                CallOfRollback(
                    key=each.key, tool=each.tool, address=each.address, effect=each.effect
                )
                for each in report.not_reversible
            ),
        )


@frozen(kw_only=True)
class RunRow:
    """A run in the list."""

    run_id: str
    session_id: str
    recipe: str
    status: str = field(metadata=STATE)
    is_active: bool
    """Whether this process executes the run now."""
    model: str | None
    started_at: datetime
    finished_at: datetime | None
    usage: JsonObject
    problem: str | None = None
    """Which entry of an unreadable run is damaged, and how; None: the run is readable."""
    about: str | None = None
    """The first words of its inputs; None: it has none, or was listed before they were kept."""
    user: str | None = None
    """The label of the user for whom it runs; None: it has none."""
    project: str | None = None
    """The folder of the project in which it was started; None: it is not known, or not told to a
    token that sees one user's runs alone."""
    version: str | None = None
    """The version that its recipe states, as of its last execution; None: not known."""
    digest: str | None = None
    """Twelve digits that are equal for all runs of that text of the recipe; None: of code."""


@frozen(kw_only=True)
class Runs:
    """A part of the list of runs, the newest first."""

    runs: tuple[RunRow, ...]
    total: int
    total_is_minimum: bool
    """Whether counting ended there: it ends at a full thousand behind the part."""
    limit: int
    offset: int


@frozen(kw_only=True)
class StepOfRun:
    """A step of a run."""

    id: str
    status: str
    reason: str | None
    output: JsonValue
    is_waiting: bool
    kept_as: str | None
    """`pinned` or `cached`, if the output was taken from another run; None: the step was run."""
    facts: JsonObject
    """Usage, counts, duration in ms, error."""
    position: int


@frozen(kw_only=True)
class MessageOfRun:
    """A message of a step, as the model's provider saw it."""

    step_id: str
    message: JsonObject


@frozen(kw_only=True)
class PromptOfRun:
    """The prompt of one answered model call."""

    step_id: str
    key: str
    phase: str | None
    sections: JsonObject
    """Input tokens by section: `system`, `context`, `examples`, `goal`, `step_outputs`, `schema`,
    `tools`, `history`. They add up to the tokens of the prompt, which are divided by characters."""
    input_tokens: int
    cache_read_tokens: int
    """Input tokens that the server read from its cache of prompts."""
    prefix: JsonObject
    """What was known of that cache: `expected_tokens` were to be read, as a prompt of the step
    `after` began so; `written_tokens` were stored; the prompt `differs` in this place, and
    `lost_tokens` behind it that are equal are paid again."""


@frozen(kw_only=True)
class NoteOfRun:
    """An event between the steps: a back edge, a decision, a failed choice of route, a rollback, a
    mark.
    """

    kind: str
    step_id: str
    state: str
    facts: JsonObject
    position: int


@frozen(kw_only=True)
class PlanOfApproval:
    """A plan that a person is asked about."""

    text: str
    """The whole plan, as it may be edited and sent as the answer."""
    notes: tuple[str, ...]
    """What was added to it."""
    faults: tuple[str, ...]
    """Why it cannot be carried out as it is; empty: it can."""
    diff: JsonObject | None
    """What differs from the plan that failed: `name`, `changes` of the plan itself and `steps`,
    each with `id`, `type`, `change` (`kept`, `done`, `added`, `removed`, `changed`), `status` (how
    it ended), `changes` (`key`, `before`, `after`) and, where it is added, `step`. None: no plan
    was carried out before."""


@frozen(kw_only=True)
class VoteView:
    """What one person said of a call."""

    decision: Literal["approve", "reject"]
    by: str | None
    roles: tuple[str, ...]
    way: str
    """By which way: `cli`, `http`, `library` or `run`."""
    at: datetime


def id_of(run_id: str, key: str) -> str:
    """The id of the decision of a run with that key."""
    return f"{run_id}.{hashlib.sha256(key.encode()).hexdigest()[:12]}"


def run_of(approval_id: str) -> str:
    """The id of the run that the decision belongs to."""
    return approval_id.rpartition(".")[0]


@frozen(kw_only=True)
class ApprovalView:
    """A decision that a run waits for."""

    id: str
    """The id for `POST /approvals/{id}`."""
    run_id: str
    session_id: str
    recipe: str
    key: str
    step_id: str
    address: str
    """The address of what waits, `sub[1]/each[2]`; empty: it cannot be read."""
    what: Literal["approval", "answer", "doubt", "unreadable"]
    """`doubt`: a call was cut off and may have had its effect. `unreadable`: an entry of the run is
    damaged, so that its pending decisions are not known; `words` says which."""
    kind: Literal["approval", "question", "call", "plan", "budget", "doubt", "unreadable"]
    """As `what`, with the plans among the questions and the budgets among the approvals apart."""
    words: str
    """The decision in words for a person."""
    asked_at: datetime
    """When it was asked; of a call in doubt when its run stopped or began."""
    expires_at: datetime | None = None
    """When its time is over; null: it waits for as long as it takes."""
    cost_usd: float = 0.0
    """What the run cost so far, in US dollars, as far as it is known."""
    who: str = ""
    """Who may decide and what is missing: `1 of 2 approvals (ann), of ann or role:finance`; empty:
    anybody, alone."""
    deciders: tuple[str, ...] = ()
    """Who is asked now: persons, and `role:NAME`; empty: anybody."""
    votes: tuple[VoteView, ...] = ()
    """What persons said so far, where not everybody decides alone."""
    tool: str | None = None
    arguments: str | None = None
    """The arguments of the call, as JSON text."""
    digest: str | None = None
    """The digest of tool and arguments: an approval is bound to exactly these."""
    filled: tuple[str, ...] = ()
    """The parameters that a model filled in, of the call of a tool step."""
    words_of: tuple[str, ...] = ()
    """Whose words may be in the arguments, of those that strangers may have written: the tool and
    the step that read them, or the untrusted input."""
    question: str | None = None
    form: JsonObject | None = None
    """JSON Schema of the answer; None: any text."""
    default: JsonValue = None
    plan: PlanOfApproval | None = None
    """The plan that the question is about; None: it is about something else."""
    can_decline: bool = False
    """Whether `reject` declines to answer: a tool asks."""


@frozen(kw_only=True)
class RunView:
    """A run with steps, messages, output and pending decisions."""

    run_id: str
    session_id: str
    recipe: str
    status: str = field(metadata=STATE)
    is_active: bool
    model: str | None
    started_at: datetime
    finished_at: datetime | None
    usage: JsonObject
    inputs: JsonValue
    output: JsonValue
    error: JsonValue
    steps: tuple[StepOfRun, ...]
    messages: tuple[MessageOfRun, ...]
    prompts: tuple[PromptOfRun, ...]
    notes: tuple[NoteOfRun, ...]
    faults: tuple[FaultView, ...]
    waiting: tuple[ApprovalView, ...]
    has_file_changes: bool
    """Whether the run recorded changes of files that a rollback undoes."""
    links: Links
    worker: str | None = None
    """The worker that executes it now."""
    lacks: tuple[str, ...] = ()
    """What a queued run needs and no worker of its queue has, in words."""
    paused: str | None = None
    """Why no worker takes a queued run now, in words; None: its queue is not paused."""
    cut: tuple[CutPart, ...] = ()
    """What `?cut=` left out."""
    version: str | None = None
    """The version that its recipe states; None: not known."""
    digest: str | None = None
    """Twelve digits that are equal for all runs of that text of the recipe; None: of code."""


@frozen(kw_only=True)
class RunParts(CutQuery):
    """How much of a run to return."""

    parts: Literal["all", "steps"] = "all"
    """`steps`: without `messages` and `prompts`, which `GET /runs/{run_id}/steps` has of one step.
    """


# --- marks ----------------------------------------------------------------------------------------


@frozen(kw_only=True)
class MarkRequest:
    """What a person says of an output."""

    verdict: Literal["good", "bad"]
    address: str | None = field(default=None, metadata=text_schema(1_000, "null"))
    """The step or item whose output is meant (`sub[1]/each[2]`); None: all outputs of the run."""
    note: str | None = field(default=None, metadata=text_schema(LONGEST_NOTE, "null"))
    """Why, for others who look at the run."""
    by: str | None = field(default=None, metadata=USER)
    """Who says so; a token with a name marks as that, and as nobody else."""


@frozen(kw_only=True)
class MarkView:
    """A mark that was recorded."""

    run_id: str
    verdict: Literal["good", "bad"]
    address: str | None
    note: str | None
    by: str | None
    at: datetime
    position: int
    """The position of its entry: of two marks of one output the later one counts."""


# --- decisions ------------------------------------------------------------------------------------


@frozen(kw_only=True)
class ApprovalsPage(Page):
    """Which part of the list of pending decisions to return, and a filter."""

    project: str | None = field(default=None, metadata=MAYBE_TEXT)
    """The folder of the project in which the run was started."""
    recipe: str | None = field(default=None, metadata=MAYBE_TEXT)
    kind: str | None = field(
        default=None,
        metadata={"schema": {"type": "string", "enum": [each.value for each in ItemKind]}},
    )
    """One of the kinds of `ApprovalView`."""


@frozen(kw_only=True)
class Approvals:
    """A part of the list of pending decisions: the oldest first, by the hour in which they were
    asked; of the same hour those of the dearest run.
    """

    approvals: tuple[ApprovalView, ...]
    total: int
    limit: int
    offset: int


@frozen(kw_only=True)
class CallsAlike:
    """Later calls of the same tool in the same step that are approved with the one shown, as long
    as no other stranger's words may be in them.
    """

    same: tuple[str, ...] = ()
    """Places of arguments that are as in the call shown: `to`, `json.amount`."""
    when: str | None = field(default=None, metadata=text_schema(1_000, "null"))
    """A condition over `args` that is true: `args.amount < 100`; null: there is none."""
    count: int | None = field(default=None, metadata=number_schema(1, 1_000_000))
    """How many at the most; null: all of the run."""
    expires_s: float | None = None
    """For how many seconds; null: until the run ends."""


_APPROVES: Final[JsonObject] = {
    "decision": {"const": "approve"},
    "digest": text_schema()["schema"],
}
_DECIDES_OTHERWISE: Final[JsonObject] = {
    "decision": {"enum": ["reject", "answer", "redo", "done", "fail"]}
}


@frozen(kw_only=True)
class DecisionRequest:
    """The decision of a person."""

    schema_variants: ClassVar[JsonObject] = {
        "ApproveRequest": _APPROVES,
        "OtherDecisionRequest": _DECIDES_OTHERWISE,
    }
    """For the OpenAPI document: an approval names what it is about."""

    decision: Literal["approve", "reject", "answer", "redo", "done", "fail"]
    """`approve` or `reject` an approval, `answer` a question (`reject` declines to answer one that
    `can_decline`); the others decide on a call in doubt."""
    digest: str | None = field(default=None, metadata=MAYBE_TEXT)
    """The digest as it was shown; needed to approve or reject a call."""
    value: JsonValue = None
    """The answer; for a call that is `done` its result."""
    arguments: JsonObject | None = None
    """Edited arguments of a call that is approved: exactly these are called; None: those shown."""
    all_like: CallsAlike | None = None
    """Which later calls of the run are approved with this one; null: none."""
    reason: str | None = field(default=None, metadata=text_schema(10_000, "null"))
    """Why it is rejected: the failure says it, and the model may read it."""
    by: str | None = field(default=None, metadata=USER)
    """Who decides, for others who look at the run. A token with a name decides as that, and as
    nobody else; with the only token of a server it is not checked. None: it is not told."""


@frozen(kw_only=True)
class RunDecisionRequest(DecisionRequest):
    """The decision of a person about what a run waits for."""

    schema_variants: ClassVar[JsonObject] = {
        "ApproveInRunRequest": _APPROVES,
        "OtherDecisionInRunRequest": _DECIDES_OTHERWISE,
    }

    address: str | None = field(default=None, metadata=MAYBE_TEXT)
    """What is decided, by its address (`sub[1]/each[2]`), step, tool or key; None: the only
    decision that waits."""


# --- bodies of responses about one step of a run, and about the items of a loop, as classes ------


@frozen(kw_only=True)
class ItemsPage:
    """Which part of the items of a loop to return."""

    step: str = field(metadata=text_schema(1_000))
    """The address of the loop, as in its events: `each`, `outer[1]/each`."""
    status: Literal["running", "interrupted", "completed", "failed", "in_progress"] | None = None
    """`in_progress`: the item waits for a decision, or was cut off."""
    limit: int = field(default=100, metadata=number_schema(1, 1_000))
    offset: int = field(default=0, metadata=number_schema(0))


@frozen(kw_only=True)
class StepAddress(CutQuery):
    """Which step of a run to return."""

    address: str = field(metadata=text_schema(1_000))
    """`step`, `outer/inner`, or of an item `each[3]`, `sub[1]/each[2]`."""


@frozen(kw_only=True)
class ItemRow:
    """One item of a loop, or one iteration of a `while`."""

    index: int
    address: str
    """For `GET /runs/{run_id}/steps?address=`, which has its prompt and answer."""
    status: str
    words: str
    """The first words that set its prompt apart from those of other items, else the arguments of
    its first tool call; empty: it has neither."""
    error: JsonValue
    usage: JsonObject
    duration_ms: float | None
    model_calls: int
    tool_calls: int


@frozen(kw_only=True)
class ItemTotalsView:
    """How far a loop has come."""

    total: int | None
    """The number of items; None: it is not known, as of a `while`."""
    ended: int
    failed: int
    usage: JsonObject
    """The usage of the items that have ended."""


@frozen(kw_only=True)
class Items:
    """A part of the items of a loop, by index."""

    items: tuple[ItemRow, ...]
    totals: ItemTotalsView
    """Of all items, whatever the filter."""
    total: int
    limit: int
    offset: int


@frozen(kw_only=True)
class RunStepView:
    """One step of a run, or one item of a loop, with what it sent and received."""

    step: StepOfRun
    messages: tuple[JsonObject, ...]
    """As the model's provider saw them, in the order of recording."""
    prompts: tuple[PromptOfRun, ...]
    cut: tuple[CutPart, ...] = ()
    """What `?cut=` left out."""


@frozen(kw_only=True)
class SearchQuery:
    """What to search in a run."""

    text: str = field(metadata=text_schema())
    """The text, in any case."""
    limit: int = field(default=100, metadata=number_schema(1, 1_000))


@frozen(kw_only=True)
class SearchHitView:
    """One place where the text occurs."""

    address: str | None
    """The step or item; None: the run's inputs, output or error."""
    part: str
    """`prompt`, `response`, `tools`, `output`, `attempts`, or `run`."""
    before: str
    match: str
    """The text as it stands there."""
    after: str


@frozen(kw_only=True)
class SearchHits:
    """The places where the text occurs, in the order of recording."""

    hits: tuple[SearchHitView, ...]
    has_more: bool
    """Whether there are more than the limit."""


# --- the body of a request for a plan, as a class ------------------------------------------------


@frozen(kw_only=True)
class PlanRequest:
    """A task to plan and to carry out."""

    requirements: str = field(metadata=text_schema(100_000))
    """What is to be done."""
    workspace: str | None = field(default=None, metadata=MAYBE_TEXT)
    """The folder: one that the operator offers, or a path below one; None: the first of them."""
    context: str | None = field(default=None, metadata=text_schema(20_000, "null"))
    """What every step is told besides its own; None: nothing."""
    share: str = field(
        default="outline", metadata={"schema": {"enum": ["names", "outline", "whole"]}}
    )
    """How steps see the files that earlier ones made."""
    form: str = field(default="structured", metadata={"schema": {"enum": ["structured", "text"]}})
    """How the model writes the plan."""
    approval: str = field(default="required", metadata={"schema": {"enum": ["required", "none"]}})
    """Whether the run waits until a person approves the plan."""
    execute: bool = True
    """Whether the plan is carried out; false: it is the run's output."""
    session: str | None = field(default=None, metadata=MAYBE_TEXT)
    """The session that the run belongs to; None: a new one."""
    user: str | None = field(default=None, metadata=USER)
    """The label of the user for whom it runs, whose daily budget it spends from; None: none."""

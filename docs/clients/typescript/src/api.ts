// Made by `python docs/generate_typescript.py` from the OpenAPI document; do not edit.

/** What JSON can say. */
export type JsonValue =
  | string
  | number
  | boolean
  | null
  | readonly JsonValue[]
  | { readonly [key: string]: JsonValue };

/** What every operation takes beside its own arguments. */
export type CallOptions = { readonly signal?: AbortSignal | undefined };

/** A request as an operation describes it. */
export type Call = {
  readonly method: string;
  readonly path: string;
  readonly query?: { readonly [name: string]: string | number | boolean | undefined };
  readonly headers?: { readonly [name: string]: string | undefined };
  readonly body?: unknown;
  readonly signal: AbortSignal | undefined;
};

/** Which steps to run again. */
export type AgainRequest = {
  readonly from_step?: string | null;
  readonly inputs?: { readonly [key: string]: JsonValue };
};

/** A recipe as an agent that is called by its name. */
export type AgentView = {
  readonly name: string;
  readonly description: string;
  readonly is_chat: boolean;
  readonly takes_tools: boolean;
  readonly links: { readonly [key: string]: string };
};

/** A part of the list of agents, ordered by name. */
export type Agents = {
  readonly agents: readonly AgentView[];
  readonly total: number;
  readonly limit: number;
  readonly offset: number;
};

/** A decision that a run waits for. */
export type ApprovalView = {
  readonly id: string;
  readonly run_id: string;
  readonly session_id: string;
  readonly recipe: string;
  readonly key: string;
  readonly step_id: string;
  readonly address: string;
  readonly what: "approval" | "answer" | "doubt" | "unreadable";
  readonly kind: "approval" | "question" | "call" | "plan" | "budget" | "doubt" | "unreadable";
  readonly words: string;
  readonly asked_at: string;
  readonly expires_at?: string | null;
  readonly cost_usd?: number;
  readonly who?: string;
  readonly deciders?: readonly string[];
  readonly votes?: readonly VoteView[];
  readonly tool?: string | null;
  readonly arguments?: string | null;
  readonly digest?: string | null;
  readonly filled?: readonly string[];
  readonly words_of?: readonly string[];
  readonly question?: string | null;
  readonly form?: { readonly [key: string]: JsonValue } | null;
  readonly default?: JsonValue;
  readonly plan?: PlanOfApproval | null;
  readonly can_decline?: boolean;
};

/** A part of the list of pending decisions: the oldest first, by the hour in which they were asked; of the same hour those of the dearest run. */
export type Approvals = {
  readonly approvals: readonly ApprovalView[];
  readonly total: number;
  readonly limit: number;
  readonly offset: number;
};

/** The decision of a person about what a run waits for. */
export type ApproveInRunRequest = {
  readonly decision: "approve";
  readonly digest: string;
  readonly value?: JsonValue;
  readonly arguments?: { readonly [key: string]: JsonValue } | null;
  readonly all_like?: CallsAlike | null;
  readonly reason?: string | null;
  readonly by?: string | null;
  readonly address?: string | null;
};

/** The decision of a person. */
export type ApproveRequest = {
  readonly decision: "approve";
  readonly digest: string;
  readonly value?: JsonValue;
  readonly arguments?: { readonly [key: string]: JsonValue } | null;
  readonly all_like?: CallsAlike | null;
  readonly reason?: string | null;
  readonly by?: string | null;
};

/** An image or a file that is a part of a message. Rows hold the digest, not the content. */
export type Attachment = {
  readonly media_type: string;
  readonly digest: string;
  readonly size: number;
  readonly name?: string | null;
  readonly data?: string | null;
};

/** An attempt at a call failed and will be retried. Not stored on its own. */
export type AttemptFailed = {
  readonly type: "retrying";
  readonly run_id: string;
  readonly session_id: string;
  readonly timestamp: string;
  readonly position?: number;
  readonly step_id: string;
  readonly address?: string;
  readonly what: string;
  readonly attempt: number;
  readonly delay_s: number;
  readonly error: { readonly [key: string]: JsonValue };
};

/** A run of a batch. */
export type BatchItem = {
  readonly line: number | null;
  readonly run_id: string;
  readonly status: RunState;
  readonly about: string | null;
  readonly started_at: string;
  readonly finished_at: string | null;
  readonly usage: { readonly [key: string]: JsonValue };
  readonly problem: string | null;
};

/** A batch with a part of its runs, those that started last first. */
export type BatchItems = {
  readonly batch: BatchRow;
  readonly items: readonly BatchItem[];
  readonly total: number;
  readonly limit: number;
  readonly offset: number;
};

/** A batch with what came of its lines. */
export type BatchRow = {
  readonly id: string;
  readonly title: string;
  readonly recipe: string;
  readonly lines: number;
  readonly begun: number;
  readonly ended: number;
  readonly failed: number;
  readonly states: { readonly [key: string]: number };
  readonly tokens: number;
  readonly cost_usd: number;
  readonly began_at: string;
  readonly project: string | null;
};

/** A part of the list of batches, the newest first. */
export type Batches = {
  readonly batches: readonly BatchRow[];
  readonly total: number;
  readonly limit: number;
  readonly offset: number;
};

/** A call that a captured recipe does not make. */
export type CallLeftOut = {
  readonly tool: string;
  readonly arguments: { readonly [key: string]: JsonValue };
  readonly reason: string;
};

/** A call with an effect that a rollback does not undo. */
export type CallOfRollback = {
  readonly key: string;
  readonly tool: string;
  readonly address: string;
  readonly effect: string;
};

/** Who sends the request, by a token or a proxy, and what they may do. */
export type CallerView = {
  readonly name: string | null;
  readonly is_user: boolean;
  readonly role: "viewer" | "approver" | "operator" | null;
  readonly scopes: readonly ("read" | "run" | "decide" | "admin" | "all")[];
  readonly user: string | null;
  readonly expires: string | null;
};

/** Later calls of the same tool in the same step that are approved with the one shown, as long as no other stranger's words may be in them. */
export type CallsAlike = {
  readonly same?: readonly string[];
  readonly when?: string | null;
  readonly count?: number;
  readonly expires_s?: number | null;
};

/** A version that gets a share of the new runs until it is decided about. */
export type CanaryRow = {
  readonly number: number;
  readonly share: number;
  readonly runs: number | null;
  readonly bars: readonly string[];
  readonly since: string;
};

/** A run that was asked to stop. */
export type CancelView = {
  readonly run_id: string;
  readonly status: RunState;
};

/** How a run is captured as a recipe. */
export type CaptureRequest = {
  readonly runs?: readonly string[];
  readonly recipe_id?: string | null;
  readonly answers?: { readonly [key: string]: string };
  readonly accept?: boolean;
  readonly on_surprise?: "agent" | "ask" | "fail";
};

/** A recipe that was captured from runs; nothing is stored. */
export type CaptureView = {
  readonly recipe: string;
  readonly files: { readonly [key: string]: string };
  readonly proved: boolean;
  readonly problems: readonly string[];
  readonly evidence: readonly ValueOrigin[];
  readonly questions: readonly OriginQuestion[];
  readonly left_out: readonly CallLeftOut[];
  readonly agent_model_calls: number;
  readonly recipe_model_calls: number;
  readonly agent_tokens: number;
  readonly picture: string | null;
};

/** What one variant answered to one case. */
export type CaseAnswer = {
  readonly passed?: number | null;
  readonly reason?: string | null;
  readonly run_id?: string | null;
};

/** What one case showed. */
export type CaseRecord = {
  readonly name: string;
  readonly answers: readonly CaseAnswer[];
};

/** The context that a model gets of the session, and a summary. */
export type ContextView = {
  readonly session_id: string;
  readonly messages: readonly ({ readonly [key: string]: JsonValue })[];
  readonly summary: { readonly [key: string]: JsonValue };
};

/** A text, list or object of which the response has only the beginning. */
export type CutPart = {
  readonly path: string;
  readonly shown: number;
  readonly total: number;
  readonly digest: string;
};

/** The steps that were removed from the conversation. */
export type CutView = {
  readonly deleted_count: number;
  readonly session_id: string;
  readonly start_seq: number;
};

/** The decision of a person. */
export type DecisionRequest = ApproveRequest | OtherDecisionRequest;

/** Which versions of a recipe new runs get; of a damaged one no more is known than `problem`. */
export type DeploymentRow = {
  readonly name: string;
  readonly recipe: string | null;
  readonly live: number | null;
  readonly canary: CanaryRow | null;
  readonly versions: readonly VersionRow[];
  readonly changed_at: string | null;
  readonly change: string | null;
  readonly changed_by: string | null;
  readonly reason: string | null;
  readonly problem: string | null;
};

/** A part of the list of deployments, by name. */
export type Deployments = {
  readonly deployments: readonly DeploymentRow[];
  readonly total: number;
  readonly limit: number;
  readonly offset: number;
};

/** An evaluation with a part of its cases. */
export type EvaluationCases = {
  readonly evaluation: EvaluationRow;
  readonly cases: readonly CaseRecord[];
  readonly total: number;
  readonly limit: number;
  readonly offset: number;
};

/** An evaluation, without its cases. */
export type EvaluationRow = {
  readonly id: string;
  readonly title: string;
  readonly ended_at: string;
  readonly project: string | null;
  readonly case_count: number;
  readonly samples: number;
  readonly at_least: number | null;
  readonly is_passed: boolean;
  readonly stopped: string | null;
  readonly variants: readonly VariantRecord[];
  readonly comparisons: readonly ({ readonly [key: string]: JsonValue })[];
};

/** A part of the list of evaluations, the newest first. */
export type Evaluations = {
  readonly evaluations: readonly EvaluationRow[];
  readonly total: number;
  readonly limit: number;
  readonly offset: number;
};

/** A fault of a recipe. */
export type FaultView = {
  readonly code: string;
  readonly message: string;
  readonly file: string;
  readonly line: number;
  readonly column: number;
  readonly label?: string | null;
  readonly help?: string | null;
};

/** The figures of a recipe, model, user or project, and of each part of the period. */
export type FigureGroup = {
  readonly name: string;
  readonly total: Figures;
  readonly parts: readonly Figures[];
};

/** What some runs used, as far as their ends say it. */
export type Figures = {
  readonly runs?: number;
  readonly ended?: number;
  readonly failed?: number;
  readonly tokens?: number;
  readonly cost_usd?: number;
  readonly unpriced?: number;
  readonly median_ms?: number | null;
  readonly slow_ms?: number | null;
};

/** What became of one file, or of a folder (with `/` at the end) that the run made. */
export type FileOfRollback = {
  readonly root: string;
  readonly path: string;
  readonly outcome: "restored" | "removed" | "unchanged" | "changed_since" | "refused";
  readonly reason: string | null;
};

/** The last step that the fork has in common with its parent. */
export type ForkRequest = {
  readonly sequence: number;
  readonly name?: string | null;
};

/** A new session that was forked from another one. */
export type ForkView = {
  readonly new_session_id: string;
  readonly original_session_id: string;
  readonly forked_at_sequence: number;
  readonly copied_steps: number;
};

/** The state of the server. */
export type Health = {
  readonly status: "ok" | "stopping";
  readonly version: string;
};

/** A declared input of a recipe. */
export type InputView = {
  readonly name: string;
  readonly schema: { readonly [key: string]: JsonValue };
  readonly required: boolean;
  readonly secret: boolean;
  readonly default?: JsonValue;
  readonly description?: string;
};

/** One item of a loop, or one iteration of a `while`. */
export type ItemRow = {
  readonly index: number;
  readonly address: string;
  readonly status: string;
  readonly words: string;
  readonly error: JsonValue;
  readonly usage: { readonly [key: string]: JsonValue };
  readonly duration_ms: number | null;
  readonly model_calls: number;
  readonly tool_calls: number;
};

/** How far a loop has come. */
export type ItemTotalsView = {
  readonly total: number | null;
  readonly ended: number;
  readonly failed: number;
  readonly usage: { readonly [key: string]: JsonValue };
};

/** A part of the items of a loop, by index. */
export type Items = {
  readonly items: readonly ItemRow[];
  readonly totals: ItemTotalsView;
  readonly total: number;
  readonly limit: number;
  readonly offset: number;
};

/** A limit of the run is reached; no further work starts. */
export type LimitReached = {
  readonly type: "limit_reached";
  readonly run_id: string;
  readonly session_id: string;
  readonly timestamp: string;
  readonly position?: number;
  readonly limit: string;
  readonly message: string;
};

/** Addresses of the run and related resources. */
export type Links = {
  readonly run: string;
  readonly events: string;
  readonly cancel: string;
  readonly session: string;
};

/** What a person says of an output. */
export type MarkRequest = {
  readonly verdict: "good" | "bad";
  readonly address?: string | null;
  readonly note?: string | null;
  readonly by?: string | null;
};

/** A mark that was recorded. */
export type MarkView = {
  readonly run_id: string;
  readonly verdict: "good" | "bad";
  readonly address: string | null;
  readonly note: string | null;
  readonly by: string | null;
  readonly at: string;
  readonly position: number;
};

/** A message of a step, as the model's provider saw it. */
export type MessageOfRun = {
  readonly step_id: string;
  readonly message: { readonly [key: string]: JsonValue };
};

/** A message of the user. */
export type MessageRequest = {
  readonly content: string;
  readonly model?: string | null;
  readonly user?: string | null;
};

/** The server of a model failed, and another model is asked instead. Not stored on its own. */
export type ModelReplaced = {
  readonly type: "model_replaced";
  readonly run_id: string;
  readonly session_id: string;
  readonly timestamp: string;
  readonly position?: number;
  readonly step_id: string;
  readonly address?: string;
  readonly failed: string;
  readonly instead: string;
  readonly code: string;
  readonly cooldown_s: number;
};

/** A session to create. */
export type NewSession = {
  readonly recipe: string;
  readonly inputs?: { readonly [key: string]: JsonValue };
  readonly name?: string | null;
  readonly user?: string | null;
};

/** An event between the steps: a back edge, a decision, a failed choice of route, a rollback, a mark. */
export type NoteOfRun = {
  readonly kind: string;
  readonly step_id: string;
  readonly state: string;
  readonly facts: { readonly [key: string]: JsonValue };
  readonly position: number;
};

/** A value that may have come from several places. */
export type OriginQuestion = {
  readonly place: string;
  readonly value: string;
  readonly choices: readonly string[];
};

/** The decision of a person about what a run waits for. */
export type OtherDecisionInRunRequest = {
  readonly decision: "reject" | "answer" | "redo" | "done" | "fail";
  readonly digest?: string | null;
  readonly value?: JsonValue;
  readonly arguments?: { readonly [key: string]: JsonValue } | null;
  readonly all_like?: CallsAlike | null;
  readonly reason?: string | null;
  readonly by?: string | null;
  readonly address?: string | null;
};

/** The decision of a person. */
export type OtherDecisionRequest = {
  readonly decision: "reject" | "answer" | "redo" | "done" | "fail";
  readonly digest?: string | null;
  readonly value?: JsonValue;
  readonly arguments?: { readonly [key: string]: JsonValue } | null;
  readonly all_like?: CallsAlike | null;
  readonly reason?: string | null;
  readonly by?: string | null;
};

/** An answer was checked against the output that its step declares. Not stored on its own. */
export type OutputChecked = {
  readonly type: "output_checked";
  readonly run_id: string;
  readonly session_id: string;
  readonly timestamp: string;
  readonly position?: number;
  readonly step_id: string;
  readonly address?: string;
  readonly rung: string;
  readonly model: string;
  readonly is_valid: boolean;
  readonly confidence?: number;
  readonly reason?: string;
  readonly usage?: { readonly [key: string]: JsonValue };
};

/** A plan of an earlier run was searched for that serves the task of this one. */
export type PlanLookup = {
  readonly type: "plan_lookup";
  readonly run_id: string;
  readonly session_id: string;
  readonly timestamp: string;
  readonly position?: number;
  readonly step_id: string;
  readonly address?: string;
  readonly text: string;
  readonly kept_run?: string;
};

/** A plan that a person is asked about. */
export type PlanOfApproval = {
  readonly text: string;
  readonly notes: readonly string[];
  readonly faults: readonly string[];
  readonly diff: { readonly [key: string]: JsonValue } | null;
};

/** A plan took the place of one that failed, and nobody was asked about it. */
export type PlanReplaced = {
  readonly type: "plan_replaced";
  readonly run_id: string;
  readonly session_id: string;
  readonly timestamp: string;
  readonly position?: number;
  readonly step_id: string;
  readonly address?: string;
  readonly text: string;
  readonly diff: { readonly [key: string]: JsonValue };
};

/** A task to plan and to carry out. */
export type PlanRequest = {
  readonly requirements: string;
  readonly workspace?: string | null;
  readonly context?: string | null;
  readonly share?: "names" | "outline" | "whole";
  readonly form?: "structured" | "text";
  readonly approval?: "required" | "none";
  readonly execute?: boolean;
  readonly session?: string | null;
  readonly user?: string | null;
};

/** Why a request was refused. */
export type Problem = {
  readonly type: string;
  readonly title: string;
  readonly status: number;
  readonly detail: string;
  readonly code: string;
  readonly category: string;
  readonly suggestions?: readonly string[];
  readonly instance: string;
  readonly faults?: readonly FaultView[];
};

/** A pending decision of a run of one of the projects. */
export type ProjectApproval = {
  readonly project: string;
  readonly approval: ApprovalView;
  readonly url: string;
};

/** A part of the pending decisions of all projects, those that were asked first before. */
export type ProjectApprovals = {
  readonly approvals: readonly ProjectApproval[];
  readonly total: number;
  readonly limit: number;
  readonly next: string | null;
  readonly unreachable: readonly UnreachableProject[];
};

/** A project of the server. */
export type ProjectRow = {
  readonly name: string;
  readonly is_default: boolean;
  readonly database: string;
  readonly is_reachable: boolean;
  readonly problem: string | null;
  readonly url: string;
};

/** A run of one of the projects. */
export type ProjectRunRow = {
  readonly project: string;
  readonly run_id: string;
  readonly session_id: string;
  readonly recipe: string;
  readonly status: RunState;
  readonly user: string | null;
  readonly started_at: string;
  readonly url: string;
};

/** A part of the runs of all projects, the newest first. A run that is in several projects, as one of a session that was imported, is on one page in all of them. */
export type ProjectRuns = {
  readonly runs: readonly ProjectRunRow[];
  readonly limit: number;
  readonly offset: number;
  readonly has_more: boolean;
  readonly next: string | null;
  readonly unreachable: readonly UnreachableProject[];
};

/** A session of one of the projects. */
export type ProjectSessionRow = {
  readonly project: string;
  readonly session_id: string;
  readonly name: string | null;
  readonly recipe: string | null;
  readonly user: string | null;
  readonly updated_at: string;
  readonly url: string;
};

/** A part of the sessions of all projects, those first in which a run started or ended last. */
export type ProjectSessions = {
  readonly sessions: readonly ProjectSessionRow[];
  readonly limit: number;
  readonly offset: number;
  readonly has_more: boolean;
  readonly unreachable: readonly UnreachableProject[];
};

/** The projects that the caller may look at. */
export type Projects = {
  readonly projects: readonly ProjectRow[];
};

/** The prompt of one answered model call. */
export type PromptOfRun = {
  readonly step_id: string;
  readonly key: string;
  readonly phase: string | null;
  readonly sections: { readonly [key: string]: JsonValue };
  readonly input_tokens: number;
  readonly cache_read_tokens: number;
  readonly prefix: { readonly [key: string]: JsonValue };
};

/** What a provider wants back unchanged with an answer of its model: signatures, encrypted thoughts, and where they stood among the texts and calls. */
export type ProviderData = {
  readonly source: string;
  readonly content: string;
};

/** A queue, with its limits over all workers and the number of its runs. */
export type QueueRow = {
  readonly name: string;
  readonly has_limits: boolean;
  readonly concurrency: number | null;
  readonly per_worker: number | null;
  readonly rate: RateView | null;
  readonly waiting: number;
  readonly delayed: number;
  readonly taken: number | null;
  readonly is_partial: boolean;
  readonly oldest_at: string | null;
  readonly workers: number;
  readonly paused: string | null;
};

/** A run that waits in a queue, and why no worker has begun with it. */
export type QueuedRow = {
  readonly run_id: string;
  readonly recipe: string;
  readonly queue: string;
  readonly since: string;
  readonly not_before: string | null;
  readonly reason: string;
  readonly lacks: readonly string[];
};

/** A part of the runs that wait in queues, those that wait longest first. */
export type QueuedRuns = {
  readonly runs: readonly QueuedRow[];
  readonly total: number;
  readonly limit: number;
  readonly offset: number;
};

/** A part of the list of queues, by name. */
export type Queues = {
  readonly queues: readonly QueueRow[];
  readonly total: number;
  readonly limit: number;
  readonly offset: number;
};

/** How many runs of a queue may begin in a time. */
export type RateView = {
  readonly starts: number;
  readonly period_s: number;
};

/** The server takes runs. */
export type Ready = {
  readonly status: "ready";
};

/** A recipe in the list. */
export type RecipeRow = {
  readonly id: string;
  readonly ok: boolean;
  readonly version?: string | null;
  readonly name?: string;
  readonly description?: string;
  readonly steps?: number;
  readonly is_agent?: boolean;
  readonly fault_count?: number;
  readonly warnings?: readonly FaultView[];
  readonly watch?: WatchView | null;
};

/** A run to begin. */
export type RecipeTextRequest = {
  readonly recipe?: null;
  readonly recipe_text: string;
  readonly inputs?: { readonly [key: string]: JsonValue };
  readonly session?: string | null;
  readonly user?: string | null;
  readonly by?: string | null;
  readonly patience?: string | null;
};

/** A recipe with its inputs and steps. */
export type RecipeView = {
  readonly id: string;
  readonly version: string;
  readonly name: string;
  readonly description: string;
  readonly is_agent: boolean;
  readonly inputs: readonly InputView[];
  readonly steps: readonly StepOfRecipe[];
  readonly warnings: readonly FaultView[];
  readonly links: { readonly [key: string]: string };
  readonly watch?: WatchView | null;
};

/** A part of the list of recipes, ordered by id. */
export type Recipes = {
  readonly recipes: readonly RecipeRow[];
  readonly total: number;
  readonly limit: number;
  readonly offset: number;
};

/** The first message to regenerate. */
export type RetryRequest = {
  readonly sequence: number;
  readonly user?: string | null;
};

/** How a run is rolled back. */
export type RollbackRequest = {
  readonly dry_run?: boolean;
};

/** What a rollback did, or, of a dry run, would do. */
export type RollbackView = {
  readonly run_id: string;
  readonly dry_run: boolean;
  readonly complete: boolean;
  readonly files: readonly FileOfRollback[];
  readonly not_reversible: readonly CallOfRollback[];
};

/** A run that was started and continues in the background. */
export type RunAccepted = {
  readonly run_id: string;
  readonly session_id: string;
  readonly status: RunState;
  readonly links: Links;
};

/** The last event of a run that completed. */
export type RunCompleted = {
  readonly type: "run_completed";
  readonly run_id: string;
  readonly session_id: string;
  readonly timestamp: string;
  readonly position?: number;
  readonly status: RunState;
  readonly data?: { readonly [key: string]: JsonValue };
};

/** The decision of a person about what a run waits for. */
export type RunDecisionRequest = ApproveInRunRequest | OtherDecisionInRunRequest;

/** An event of a run, told apart by `type`. */
export type RunEvent = RunStarted | StepStarted | StepDeltaEvent | StepCompleted | ToolStarted | ToolFinished | ToolProgress | AttemptFailed | ModelReplaced | ServerWait | OutputChecked | StepFinished | StepWaiting | PlanLookup | PlanReplaced | LimitReached | RunCompleted | RunWaiting | RunFailed;

/** The last event of a run that ended without an output; one that waits has `run_waiting`. */
export type RunFailed = {
  readonly type: "run_failed";
  readonly run_id: string;
  readonly session_id: string;
  readonly timestamp: string;
  readonly position?: number;
  readonly status: RunState;
  readonly data?: { readonly [key: string]: JsonValue };
};

/** The figures of a period: of all runs together, and in groups. */
export type RunFigures = {
  readonly since: string;
  readonly part_s: number;
  readonly counted: number;
  readonly counted_since?: string | null;
  readonly all: FigureGroup;
  readonly groups?: readonly FigureGroup[];
};

/** A run to begin. */
export type RunRequest = StoredRecipeRequest | RecipeTextRequest;

/** A run in the list. */
export type RunRow = {
  readonly run_id: string;
  readonly session_id: string;
  readonly recipe: string;
  readonly status: RunState;
  readonly is_active: boolean;
  readonly model: string | null;
  readonly started_at: string;
  readonly finished_at: string | null;
  readonly usage: { readonly [key: string]: JsonValue };
  readonly problem?: string | null;
  readonly about?: string | null;
  readonly user?: string | null;
  readonly project?: string | null;
  readonly version?: string | null;
  readonly digest?: string | null;
};

/** The first event of a run. */
export type RunStarted = {
  readonly type: "run_started";
  readonly run_id: string;
  readonly session_id: string;
  readonly timestamp: string;
  readonly position?: number;
  readonly recipe: string;
  readonly status?: RunState;
  readonly model_name?: string;
  readonly data?: { readonly [key: string]: JsonValue };
};

/** The state of a run. */
export type RunState = "queued" | "running" | "interrupted" | "completed" | "partial" | "failed" | "limit_reached" | "needs_decision" | "cancelled" | "rejected" | "unreadable";

/** One step of a run, or one item of a loop, with what it sent and received. */
export type RunStepView = {
  readonly step: StepOfRun;
  readonly messages: readonly ({ readonly [key: string]: JsonValue })[];
  readonly prompts: readonly PromptOfRun[];
  readonly cut?: readonly CutPart[];
};

/** A run with steps, messages, output and pending decisions. */
export type RunView = {
  readonly run_id: string;
  readonly session_id: string;
  readonly recipe: string;
  readonly status: RunState;
  readonly is_active: boolean;
  readonly model: string | null;
  readonly started_at: string;
  readonly finished_at: string | null;
  readonly usage: { readonly [key: string]: JsonValue };
  readonly inputs: JsonValue;
  readonly output: JsonValue;
  readonly error: JsonValue;
  readonly steps: readonly StepOfRun[];
  readonly messages: readonly MessageOfRun[];
  readonly prompts: readonly PromptOfRun[];
  readonly notes: readonly NoteOfRun[];
  readonly faults: readonly FaultView[];
  readonly waiting: readonly ApprovalView[];
  readonly has_file_changes: boolean;
  readonly links: Links;
  readonly worker?: string | null;
  readonly lacks?: readonly string[];
  readonly paused?: string | null;
  readonly cut?: readonly CutPart[];
  readonly version?: string | null;
  readonly digest?: string | null;
};

/** The last event of an execution after which the run waits for a person; it is no failure. */
export type RunWaiting = {
  readonly type: "run_waiting";
  readonly run_id: string;
  readonly session_id: string;
  readonly timestamp: string;
  readonly position?: number;
  readonly status: RunState;
  readonly data?: { readonly [key: string]: JsonValue };
};

/** A part of the list of runs, the newest first. */
export type Runs = {
  readonly runs: readonly RunRow[];
  readonly total: number;
  readonly total_is_minimum: boolean;
  readonly limit: number;
  readonly offset: number;
};

/** A schedule with what came of it; of a damaged one no more is known than `problem`. */
export type ScheduleRow = {
  readonly name: string;
  readonly recipe: string | null;
  readonly cron: string | null;
  readonly timezone: string | null;
  readonly queue: string | null;
  readonly is_paused: boolean;
  readonly missed: string | null;
  readonly overlap: string | null;
  readonly next: readonly string[];
  readonly last_run: string | null;
  readonly last_status: string | null;
  readonly waiting: readonly string[];
  readonly skipped: string | null;
  readonly reason: string | null;
  readonly skipped_count: number;
  readonly problem: string | null;
};

/** A part of the list of schedules, by name. */
export type Schedules = {
  readonly schedules: readonly ScheduleRow[];
  readonly total: number;
  readonly limit: number;
  readonly offset: number;
};

/** One place where the text occurs. */
export type SearchHitView = {
  readonly address: string | null;
  readonly part: string;
  readonly before: string;
  readonly match: string;
  readonly after: string;
};

/** The places where the text occurs, in the order of recording. */
export type SearchHits = {
  readonly hits: readonly SearchHitView[];
  readonly has_more: boolean;
};

/** A model call waits because its server is not asked for a while. Not stored on its own. */
export type ServerWait = {
  readonly type: "server_wait";
  readonly run_id: string;
  readonly session_id: string;
  readonly timestamp: string;
  readonly position?: number;
  readonly step_id: string;
  readonly address?: string;
  readonly model: string;
  readonly server: string;
  readonly until: string;
};

/** One message of a session in the provider's form, with its place, time and metrics. */
export type SessionStep = {
  readonly session_id: string;
  readonly role: "system" | "user" | "assistant" | "tool" | "goal";
  readonly content?: string;
  readonly tool_calls?: readonly ({
    readonly id: string;
    readonly type: "function";
    readonly function: {
      readonly name: string;
      readonly arguments: string;
    };
  })[];
  readonly tool_call_id?: string;
  readonly name?: string;
  readonly sequence?: number;
  readonly id?: string;
  readonly run_id?: string;
  readonly metrics?: StepMetrics;
  readonly created_at?: string | null;
  readonly is_truncated?: boolean;
  readonly reasoning?: string;
  readonly provider_data?: ProviderData | null;
  readonly attachments?: readonly Attachment[];
};

/** A session. Unknown values are absent. */
export type SessionView = {
  readonly id: string;
  readonly recipe?: string | null;
  readonly name?: string | null;
  readonly inputs?: { readonly [key: string]: JsonValue };
  readonly created_at: string;
  readonly updated_at: string;
  readonly parent_session_id?: string | null;
  readonly forked_at_sequence?: number | null;
  readonly last_run_id?: string | null;
  readonly status?: RunState;
  readonly is_active: boolean;
  readonly step_count?: number | null;
  readonly position?: number | null;
  readonly user?: string | null;
  readonly project?: string | null;
};

/** A part of the list of sessions, the newest first. */
export type Sessions = {
  readonly sessions: readonly SessionView[];
  readonly total: number;
  readonly total_is_minimum: boolean;
  readonly limit: number;
  readonly offset: number;
};

/** A message of a conversation was recorded. */
export type StepCompleted = {
  readonly type: "step_completed";
  readonly run_id: string;
  readonly session_id: string;
  readonly timestamp: string;
  readonly position?: number;
  readonly step_id: string;
  readonly address?: string;
  readonly snapshot: SessionStep;
};

/** A fragment of a streamed answer. */
export type StepDelta = {
  readonly content?: string;
  readonly tool_calls?: readonly ({ readonly [key: string]: JsonValue })[];
  readonly reasoning?: string;
};

/** A fragment of a streamed answer arrived. Never stored, and may be dropped. */
export type StepDeltaEvent = {
  readonly type: "step_delta";
  readonly run_id: string;
  readonly session_id: string;
  readonly timestamp: string;
  readonly position?: number;
  readonly step_id: string;
  readonly address?: string;
  readonly delta: StepDelta;
};

/** A step of the recipe ended. */
export type StepFinished = {
  readonly type: "step_finished";
  readonly run_id: string;
  readonly session_id: string;
  readonly timestamp: string;
  readonly position?: number;
  readonly step_id: string;
  readonly address?: string;
  readonly status: string;
  readonly reason?: string;
  readonly error?: { readonly [key: string]: JsonValue };
  readonly usage?: { readonly [key: string]: JsonValue };
  readonly duration_ms?: number;
  readonly model_calls?: number;
  readonly tool_calls?: number;
  readonly attempts?: number;
  readonly index?: number;
  readonly cached_from?: string;
  readonly pinned_from?: string;
  readonly partial?: boolean;
};

/** Tokens, cost and time of one message; None where it does not apply or was not counted. */
export type StepMetrics = {
  readonly duration_ms?: number;
  readonly first_token_latency_ms?: number;
  readonly input_tokens?: number;
  readonly output_tokens?: number;
  readonly total_tokens?: number;
  readonly cached_tokens?: number;
  readonly cost_usd?: number;
  readonly model_name?: string;
  readonly provider?: string;
  readonly waited_ms?: number;
  readonly cached_from?: string;
  readonly batch?: string;
  readonly confidence?: number;
  readonly least_sure_of?: string;
  readonly tool_exec_time_ms?: number;
};

/** A step of a recipe. */
export type StepOfRecipe = {
  readonly id: string;
  readonly kind: string;
  readonly description: string;
  readonly depends_on: readonly string[];
};

/** A step of a run. */
export type StepOfRun = {
  readonly id: string;
  readonly status: string;
  readonly reason: string | null;
  readonly output: JsonValue;
  readonly is_waiting: boolean;
  readonly kept_as: string | null;
  readonly facts: { readonly [key: string]: JsonValue };
  readonly position: number;
};

/** A step of the recipe begins. */
export type StepStarted = {
  readonly type: "step_started";
  readonly run_id: string;
  readonly session_id: string;
  readonly timestamp: string;
  readonly position?: number;
  readonly step_id: string;
  readonly address?: string;
  readonly index?: number;
  readonly total?: number;
};

/** A message of a session. Unknown values are absent. */
export type StepView = {
  readonly session_id: string;
  readonly id?: string | null;
  readonly run_id?: string | null;
  readonly sequence?: number | null;
  readonly role: string;
  readonly content?: string | null;
  readonly tool_calls?: readonly ({ readonly [key: string]: JsonValue })[];
  readonly tool_call_id?: string | null;
  readonly name?: string | null;
  readonly metrics?: { readonly [key: string]: JsonValue };
  readonly created_at?: string | null;
};

/** A step waits for a person: for an approval or an answer. */
export type StepWaiting = {
  readonly type: "waiting";
  readonly run_id: string;
  readonly session_id: string;
  readonly timestamp: string;
  readonly position?: number;
  readonly step_id: string;
  readonly address?: string;
  readonly key: string;
  readonly what: string;
  readonly data?: { readonly [key: string]: JsonValue };
};

/** A part of the steps, in order. */
export type Steps = {
  readonly steps: readonly StepView[];
  readonly total: number;
  readonly session_id: string;
};

/** A run to begin. */
export type StoredRecipeRequest = {
  readonly recipe: string;
  readonly recipe_text?: null;
  readonly inputs?: { readonly [key: string]: JsonValue };
  readonly session?: string | null;
  readonly user?: string | null;
  readonly by?: string | null;
  readonly patience?: string | null;
};

/** What the server runs with and executes now. */
export type SystemView = {
  readonly version: string;
  readonly journal: string;
  readonly project?: string | null;
  readonly project_name?: string | null;
  readonly started_at: string;
  readonly active_runs: number;
  readonly max_runs: number;
  readonly followers?: number | null;
  readonly models: readonly string[];
  readonly caller: CallerView;
};

/** A task for an agent. */
export type TaskRequest = {
  readonly message?: string | null;
  readonly inputs?: { readonly [key: string]: JsonValue };
  readonly session?: string | null;
  readonly user?: string | null;
};

/** A tool call ended, with a result or an error. */
export type ToolFinished = {
  readonly type: "tool_finished";
  readonly run_id: string;
  readonly session_id: string;
  readonly timestamp: string;
  readonly position?: number;
  readonly step_id: string;
  readonly address?: string;
  readonly call_id: string;
  readonly tool: string;
  readonly duration_ms: number;
  readonly error?: { readonly [key: string]: JsonValue };
};

/** A tool says how far its call is; it is not stored. */
export type ToolProgress = {
  readonly type: "tool_progress";
  readonly run_id: string;
  readonly session_id: string;
  readonly timestamp: string;
  readonly position?: number;
  readonly step_id: string;
  readonly address?: string;
  readonly tool: string;
  readonly call: string;
  readonly progress: number;
  readonly total?: number;
  readonly message?: string;
};

/** A tool call was recorded and starts. */
export type ToolStarted = {
  readonly type: "tool_started";
  readonly run_id: string;
  readonly session_id: string;
  readonly timestamp: string;
  readonly position?: number;
  readonly step_id: string;
  readonly address?: string;
  readonly call_id: string;
  readonly tool: string;
  readonly arguments: JsonValue;
};

/** A project of which nothing is in the list. */
export type UnreachableProject = {
  readonly project: string;
  readonly problem: string;
};

/** Where one value of a captured recipe comes from. */
export type ValueOrigin = {
  readonly place: string;
  readonly how: string;
  readonly source: string;
  readonly because: string;
};

/** A value of a run in whole. */
export type ValueView = {
  readonly value: JsonValue;
};

/** What a variant reached. */
export type VariantRecord = {
  readonly label: string;
  readonly recipe: string;
  readonly model?: string | null;
  readonly pass_rate?: number | null;
  readonly low?: number | null;
  readonly high?: number | null;
  readonly scorers?: { readonly [key: string]: number };
  readonly failed?: number;
  readonly tokens?: number;
  readonly cost_usd?: number | null;
  readonly median_ms?: number | null;
};

/** A version of a deployment. */
export type VersionRow = {
  readonly number: number;
  readonly version: string | null;
  readonly digest: string;
};

/** What one person said of a call. */
export type VoteView = {
  readonly decision: "approve" | "reject";
  readonly by: string | null;
  readonly roles: readonly string[];
  readonly way: string;
  readonly at: string;
};

/** What the last look at the recipe's runs found, in any process of the database. */
export type WatchView = {
  readonly looked_at: string;
  readonly scorers: readonly WatchedScorerView[];
};

/** What one scorer of a `watch` says of the recipe's newest scored runs. */
export type WatchedScorerView = {
  readonly scorer: string;
  readonly scored: number;
  readonly failed: number;
  readonly rate?: number | null;
  readonly low?: number | null;
  readonly high?: number | null;
  readonly before?: number | null;
  readonly alarm_since?: string | null;
  readonly run_id?: string | null;
};

/** A worker, as it last said of itself. */
export type WorkerRow = {
  readonly name: string;
  readonly is_alive: boolean;
  readonly queues: readonly string[];
  readonly version: string | null;
  readonly slots: number | null;
  readonly taken: number | null;
  readonly started_at: string | null;
  readonly seen_at: string | null;
  readonly lacks: readonly string[];
  readonly problem: string | null;
};

/** A part of the list of workers that are or were alive lately, by name. */
export type Workers = {
  readonly workers: readonly WorkerRow[];
  readonly total: number;
  readonly limit: number;
  readonly offset: number;
};

const part = (value: string | number): string => encodeURIComponent(value);

/** The operations of the server; how they are sent is the subclass's. */
export abstract class Operations {
  /** Send a call and read its answer: JSON, a text, or nothing. */
  protected abstract send<T>(call: Call): Promise<T>;

  /** Send a call and read the events of its answer as they come. */
  protected abstract stream(call: Call): AsyncGenerator<RunEvent, void, undefined>;

  /** Whether the server answers; needs no token. */
  getHealth(options: CallOptions = {}): Promise<Health> {
    return this.send({
      method: "GET",
      path: "/api/v1/health",
      signal: options.signal,
    });
  }

  /** Whether the server takes runs: its database answers; needs no token. */
  getReady(options: CallOptions = {}): Promise<Ready> {
    return this.send({
      method: "GET",
      path: "/api/v1/ready",
      signal: options.signal,
    });
  }

  /** List the stored recipes; those with faults have no version and no steps. */
  listRecipes(
    options: { readonly limit?: number; readonly offset?: number } & CallOptions = {},
  ): Promise<Recipes> {
    return this.send({
      method: "GET",
      path: "/api/v1/recipes",
      query: { limit: options.limit, offset: options.offset },
      signal: options.signal,
    });
  }

  /** One recipe: its inputs, its steps, and what its check warns of. */
  getRecipe(recipeId: string, options: CallOptions = {}): Promise<RecipeView> {
    return this.send({
      method: "GET",
      path: `/api/v1/recipes/${part(recipeId)}`,
      signal: options.signal,
    });
  }

  /** The graph of the recipe's steps. */
  drawRecipe(
    recipeId: string,
    options: { readonly format?: "json" | "svg" | "mermaid" } & CallOptions = {},
  ): Promise<{ readonly [key: string]: JsonValue } | string> {
    return this.send({
      method: "GET",
      path: `/api/v1/recipes/${part(recipeId)}/graph`,
      query: { format: options.format },
      signal: options.signal,
    });
  }

  /** The JSON Schema of the recipe's inputs. */
  getInputsSchema(
    recipeId: string,
    options: CallOptions = {},
  ): Promise<{ readonly [key: string]: JsonValue }> {
    return this.send({
      method: "GET",
      path: `/api/v1/recipes/${part(recipeId)}/schema`,
      signal: options.signal,
    });
  }

  /** List the recipes as agents: chat agents take a message, others inputs. */
  listAgents(
    options: { readonly limit?: number; readonly offset?: number } & CallOptions = {},
  ): Promise<Agents> {
    return this.send({
      method: "GET",
      path: "/api/v1/agents",
      query: { limit: options.limit, offset: options.offset },
      signal: options.signal,
    });
  }

  /** Start a task of an agent; it continues in the background. */
  runAgent(
    name: string,
    body: TaskRequest = {},
    options: { readonly idempotencyKey?: string } & CallOptions = {},
  ): Promise<RunAccepted> {
    return this.send({
      method: "POST",
      path: `/api/v1/agents/${part(name)}/run`,
      headers: { "idempotency-key": options.idempotencyKey },
      body,
      signal: options.signal,
    });
  }

  /** Plan a task and carry the plan out, as a run that continues in the background. It waits for the answer to its plan under `/approvals`, unless `approval` is `none`. */
  startPlan(
    body: PlanRequest,
    options: { readonly idempotencyKey?: string } & CallOptions = {},
  ): Promise<RunAccepted> {
    return this.send({
      method: "POST",
      path: "/api/v1/plans",
      headers: { "idempotency-key": options.idempotencyKey },
      body,
      signal: options.signal,
    });
  }

  /** List all runs, the newest first. */
  listRuns(
    options: { readonly limit?: number; readonly offset?: number; readonly recipe?: string; readonly status?: RunState; readonly session?: string; readonly user?: string; readonly project?: string; readonly text?: string; readonly q?: string } & CallOptions = {},
  ): Promise<Runs> {
    return this.send({
      method: "GET",
      path: "/api/v1/runs",
      query: { limit: options.limit, offset: options.offset, recipe: options.recipe, status: options.status, session: options.session, user: options.user, project: options.project, text: options.text, q: options.q },
      signal: options.signal,
    });
  }

  /** Start a run of a stored recipe; it continues in the background. */
  startRun(
    body: RunRequest,
    options: { readonly idempotencyKey?: string } & CallOptions = {},
  ): Promise<RunAccepted> {
    return this.send({
      method: "POST",
      path: "/api/v1/runs",
      headers: { "idempotency-key": options.idempotencyKey },
      body,
      signal: options.signal,
    });
  }

  /** One run: steps, messages, output, pending decisions. */
  getRun(
    runId: string,
    options: { readonly cut?: number; readonly parts?: "all" | "steps" } & CallOptions = {},
  ): Promise<RunView> {
    return this.send({
      method: "GET",
      path: `/api/v1/runs/${part(runId)}`,
      query: { cut: options.cut, parts: options.parts },
      signal: options.signal,
    });
  }

  /** Cancel the run; it can be resumed. */
  cancelRun(runId: string, options: CallOptions = {}): Promise<CancelView> {
    return this.send({
      method: "POST",
      path: `/api/v1/runs/${part(runId)}/cancel`,
      signal: options.signal,
    });
  }

  /** The run's events: first the stored ones, then live ones until it ends or waits. */
  followRun(
    runId: string,
    options: { readonly after?: number } & CallOptions = {},
  ): AsyncGenerator<RunEvent, void, undefined> {
    return this.stream({
      method: "GET",
      path: `/api/v1/runs/${part(runId)}/events`,
      query: { after: options.after },
      signal: options.signal,
    });
  }

  /** List the items of a loop, by index; none where the run has no such loop. */
  listRunItems(
    runId: string,
    options: { readonly step: string; readonly status?: "running" | "interrupted" | "completed" | "failed" | "in_progress"; readonly limit?: number; readonly offset?: number } & CallOptions,
  ): Promise<Items> {
    return this.send({
      method: "GET",
      path: `/api/v1/runs/${part(runId)}/items`,
      query: { step: options.step, status: options.status, limit: options.limit, offset: options.offset },
      signal: options.signal,
    });
  }

  /** One step or one item of a loop: output, messages, sections of its prompts. */
  getRunStep(
    runId: string,
    options: { readonly cut?: number; readonly address: string } & CallOptions,
  ): Promise<RunStepView> {
    return this.send({
      method: "GET",
      path: `/api/v1/runs/${part(runId)}/steps`,
      query: { cut: options.cut, address: options.address },
      signal: options.signal,
    });
  }

  /** One value of a run or a step in whole, which `?cut=` had cut. */
  getRunValue(
    runId: string,
    options: { readonly at: string; readonly address?: string } & CallOptions,
  ): Promise<ValueView> {
    return this.send({
      method: "GET",
      path: `/api/v1/runs/${part(runId)}/value`,
      query: { at: options.at, address: options.address },
      signal: options.signal,
    });
  }

  /** Search a text in the prompts, answers, calls, outputs and errors of a run. */
  searchRun(
    runId: string,
    options: { readonly text: string; readonly limit?: number } & CallOptions,
  ): Promise<SearchHits> {
    return this.send({
      method: "GET",
      path: `/api/v1/runs/${part(runId)}/search`,
      query: { text: options.text, limit: options.limit },
      signal: options.signal,
    });
  }

  /** All entries of the run's journal as JSON lines, those of superseded executions, too. */
  getRunJournal(runId: string, options: CallOptions = {}): Promise<string> {
    return this.send({
      method: "GET",
      path: `/api/v1/runs/${part(runId)}/journal`,
      signal: options.signal,
    });
  }

  /** The run as one HTML file without scripts, to send to somebody; secrets are masked. */
  exportRun(runId: string, options: CallOptions = {}): Promise<string> {
    return this.send({
      method: "GET",
      path: `/api/v1/runs/${part(runId)}/export.html`,
      signal: options.signal,
    });
  }

  /** Resume a run that was killed, cancelled or stopped. */
  resumeRun(runId: string, options: CallOptions = {}): Promise<RunAccepted> {
    return this.send({
      method: "POST",
      path: `/api/v1/runs/${part(runId)}/resume`,
      signal: options.signal,
    });
  }

  /** Retry failed steps, a step and all after it, or what reads other inputs. */
  retryRun(
    runId: string,
    body: AgainRequest = {},
    options: CallOptions = {},
  ): Promise<RunAccepted> {
    return this.send({
      method: "POST",
      path: `/api/v1/runs/${part(runId)}/retry`,
      body,
      signal: options.signal,
    });
  }

  /** Restore the files that the run changed, as far as its tools recorded it. */
  rollBackFiles(
    runId: string,
    body: RollbackRequest = {},
    options: CallOptions = {},
  ): Promise<RollbackView> {
    return this.send({
      method: "POST",
      path: `/api/v1/runs/${part(runId)}/rollback`,
      body,
      signal: options.signal,
    });
  }

  /** The recipe that does again what the run did, with its proof; nothing is stored. */
  captureRun(
    runId: string,
    body: CaptureRequest = {},
    options: CallOptions = {},
  ): Promise<CaptureView> {
    return this.send({
      method: "POST",
      path: `/api/v1/runs/${part(runId)}/capture`,
      body,
      signal: options.signal,
    });
  }

  /** The graph of the run's own recipe. */
  drawRun(
    runId: string,
    options: { readonly format?: "json" | "svg" | "mermaid" } & CallOptions = {},
  ): Promise<{ readonly [key: string]: JsonValue } | string> {
    return this.send({
      method: "GET",
      path: `/api/v1/runs/${part(runId)}/graph`,
      query: { format: options.format },
      signal: options.signal,
    });
  }

  /** Mark the outputs of the run, or of one of its steps, as good or bad; the last mark counts. */
  markOutput(runId: string, body: MarkRequest, options: CallOptions = {}): Promise<MarkView> {
    return this.send({
      method: "POST",
      path: `/api/v1/runs/${part(runId)}/marks`,
      body,
      signal: options.signal,
    });
  }

  /** List all sessions, the newest first. */
  listSessions(
    options: { readonly limit?: number; readonly offset?: number; readonly text?: string; readonly project?: string; readonly tree?: string } & CallOptions = {},
  ): Promise<Sessions> {
    return this.send({
      method: "GET",
      path: "/api/v1/sessions",
      query: { limit: options.limit, offset: options.offset, text: options.text, project: options.project, tree: options.tree },
      signal: options.signal,
    });
  }

  /** Create a session of a recipe that can be talked with. */
  createSession(body: NewSession, options: CallOptions = {}): Promise<SessionView> {
    return this.send({
      method: "POST",
      path: "/api/v1/sessions",
      body,
      signal: options.signal,
    });
  }

  /** One session. */
  getSession(sessionId: string, options: CallOptions = {}): Promise<SessionView> {
    return this.send({
      method: "GET",
      path: `/api/v1/sessions/${part(sessionId)}`,
      signal: options.signal,
    });
  }

  /** Forget the session and all its runs. */
  forgetSession(sessionId: string, options: CallOptions = {}): Promise<void> {
    return this.send({
      method: "DELETE",
      path: `/api/v1/sessions/${part(sessionId)}`,
      signal: options.signal,
    });
  }

  /** The events of all its runs: first the stored ones, then live ones. */
  followSession(
    sessionId: string,
    options: { readonly after?: number } & CallOptions = {},
  ): AsyncGenerator<RunEvent, void, undefined> {
    return this.stream({
      method: "GET",
      path: `/api/v1/sessions/${part(sessionId)}/events`,
      query: { after: options.after },
      signal: options.signal,
    });
  }

  /** List messages of the session, in order. */
  listSteps(
    sessionId: string,
    options: { readonly start_seq?: number; readonly end_seq?: number; readonly limit?: number } & CallOptions = {},
  ): Promise<Steps> {
    return this.send({
      method: "GET",
      path: `/api/v1/sessions/${part(sessionId)}/steps`,
      query: { start_seq: options.start_seq, end_seq: options.end_seq, limit: options.limit },
      signal: options.signal,
    });
  }

  /** Remove a step and all after it from the conversation. */
  deleteSteps(
    sessionId: string,
    options: { readonly start_seq: number } & CallOptions,
  ): Promise<CutView> {
    return this.send({
      method: "DELETE",
      path: `/api/v1/sessions/${part(sessionId)}/steps`,
      query: { start_seq: options.start_seq },
      signal: options.signal,
    });
  }

  /** One message of the session. */
  getStep(sessionId: string, sequence: number, options: CallOptions = {}): Promise<StepView> {
    return this.send({
      method: "GET",
      path: `/api/v1/sessions/${part(sessionId)}/steps/${part(sequence)}`,
      signal: options.signal,
    });
  }

  /** The conversation in the provider's form, and a summary. */
  getContext(sessionId: string, options: CallOptions = {}): Promise<ContextView> {
    return this.send({
      method: "GET",
      path: `/api/v1/sessions/${part(sessionId)}/context`,
      signal: options.signal,
    });
  }

  /** Fork the session after a step. */
  forkSession(sessionId: string, body: ForkRequest, options: CallOptions = {}): Promise<ForkView> {
    return this.send({
      method: "POST",
      path: `/api/v1/sessions/${part(sessionId)}/fork`,
      body,
      signal: options.signal,
    });
  }

  /** Send a message: one turn of the session, as events. */
  sendMessage(
    sessionId: string,
    body: MessageRequest,
    options: CallOptions = {},
  ): AsyncGenerator<RunEvent, void, undefined> {
    return this.stream({
      method: "POST",
      path: `/api/v1/sessions/${part(sessionId)}/messages`,
      body,
      signal: options.signal,
    });
  }

  /** Regenerate the session from a step on, as events. */
  retrySession(
    sessionId: string,
    body: RetryRequest,
    options: CallOptions = {},
  ): AsyncGenerator<RunEvent, void, undefined> {
    return this.stream({
      method: "POST",
      path: `/api/v1/sessions/${part(sessionId)}/retry`,
      body,
      signal: options.signal,
    });
  }

  /** Resume the session, as events. */
  resumeSession(
    sessionId: string,
    options: CallOptions = {},
  ): AsyncGenerator<RunEvent, void, undefined> {
    return this.stream({
      method: "POST",
      path: `/api/v1/sessions/${part(sessionId)}/resume`,
      signal: options.signal,
    });
  }

  /** List the decisions that runs wait for: approvals, questions, plans, budgets that ask, and calls in doubt. */
  listApprovals(
    options: { readonly limit?: number; readonly offset?: number; readonly project?: string; readonly recipe?: string; readonly kind?: "approval" | "question" | "call" | "plan" | "budget" | "doubt" | "unreadable" } & CallOptions = {},
  ): Promise<Approvals> {
    return this.send({
      method: "GET",
      path: "/api/v1/approvals",
      query: { limit: options.limit, offset: options.offset, project: options.project, recipe: options.recipe, kind: options.kind },
      signal: options.signal,
    });
  }

  /** Make a decision and resume the run; the first one counts. */
  decide(
    approvalId: string,
    body: DecisionRequest,
    options: CallOptions = {},
  ): Promise<RunAccepted> {
    return this.send({
      method: "POST",
      path: `/api/v1/approvals/${part(approvalId)}`,
      body,
      signal: options.signal,
    });
  }

  /** Make a decision that the run waits for, named by its address, and resume the run. */
  decideRun(
    runId: string,
    body: RunDecisionRequest,
    options: CallOptions = {},
  ): Promise<RunAccepted> {
    return this.send({
      method: "POST",
      path: `/api/v1/runs/${part(runId)}/decisions`,
      body,
      signal: options.signal,
    });
  }

  /** List the workers that are or were alive lately, with their load and version. */
  listWorkers(
    options: { readonly limit?: number; readonly offset?: number } & CallOptions = {},
  ): Promise<Workers> {
    return this.send({
      method: "GET",
      path: "/api/v1/workers",
      query: { limit: options.limit, offset: options.offset },
      signal: options.signal,
    });
  }

  /** List the queues, with their limits and the number of their runs. */
  listQueues(
    options: { readonly limit?: number; readonly offset?: number } & CallOptions = {},
  ): Promise<Queues> {
    return this.send({
      method: "GET",
      path: "/api/v1/queues",
      query: { limit: options.limit, offset: options.offset },
      signal: options.signal,
    });
  }

  /** List the runs that wait in queues, those that wait longest first, and why. */
  listQueuedRuns(
    options: { readonly limit?: number; readonly offset?: number } & CallOptions = {},
  ): Promise<QueuedRuns> {
    return this.send({
      method: "GET",
      path: "/api/v1/queues/runs",
      query: { limit: options.limit, offset: options.offset },
      signal: options.signal,
    });
  }

  /** List the batches, the newest first, with what came of their lines. */
  listBatches(
    options: { readonly limit?: number; readonly offset?: number } & CallOptions = {},
  ): Promise<Batches> {
    return this.send({
      method: "GET",
      path: "/api/v1/batches",
      query: { limit: options.limit, offset: options.offset },
      signal: options.signal,
    });
  }

  /** One batch with a part of its runs, those that started last first. */
  getBatch(
    batchId: string,
    options: { readonly limit?: number; readonly offset?: number; readonly status?: RunState } & CallOptions = {},
  ): Promise<BatchItems> {
    return this.send({
      method: "GET",
      path: `/api/v1/batches/${part(batchId)}`,
      query: { limit: options.limit, offset: options.offset, status: options.status },
      signal: options.signal,
    });
  }

  /** List the evaluations, the newest first: what each variant reached. */
  listEvaluations(
    options: { readonly limit?: number; readonly offset?: number } & CallOptions = {},
  ): Promise<Evaluations> {
    return this.send({
      method: "GET",
      path: "/api/v1/evaluations",
      query: { limit: options.limit, offset: options.offset },
      signal: options.signal,
    });
  }

  /** One evaluation with a part of its cases, in their order. */
  getEvaluation(
    evaluationId: string,
    options: { readonly limit?: number; readonly offset?: number; readonly show?: "all" | "failed" | "different" } & CallOptions = {},
  ): Promise<EvaluationCases> {
    return this.send({
      method: "GET",
      path: `/api/v1/evaluations/${part(evaluationId)}`,
      query: { limit: options.limit, offset: options.offset, show: options.show },
      signal: options.signal,
    });
  }

  /** Costs, tokens, failures and times of runs over time, by recipe, model, user or project. */
  getCosts(
    options: { readonly period?: "day" | "week" | "month"; readonly by?: "recipe" | "model" | "user" | "project"; readonly recipe?: string; readonly project?: string } & CallOptions = {},
  ): Promise<RunFigures> {
    return this.send({
      method: "GET",
      path: "/api/v1/costs",
      query: { period: options.period, by: options.by, recipe: options.recipe, project: options.project },
      signal: options.signal,
    });
  }

  /** List the deployments: which version new runs get, the canary, and what was decided last. */
  listDeployments(
    options: { readonly limit?: number; readonly offset?: number } & CallOptions = {},
  ): Promise<Deployments> {
    return this.send({
      method: "GET",
      path: "/api/v1/deployments",
      query: { limit: options.limit, offset: options.offset },
      signal: options.signal,
    });
  }

  /** List the schedules: when each is due next, what became of its last run, what was left out. */
  listSchedules(
    options: { readonly limit?: number; readonly offset?: number } & CallOptions = {},
  ): Promise<Schedules> {
    return this.send({
      method: "GET",
      path: "/api/v1/schedules",
      query: { limit: options.limit, offset: options.offset },
      signal: options.signal,
    });
  }

  /** Start no more runs of the schedule until it is resumed; times meanwhile are left out. */
  pauseSchedule(schedule: string, options: CallOptions = {}): Promise<ScheduleRow> {
    return this.send({
      method: "POST",
      path: `/api/v1/schedules/${part(schedule)}/pause`,
      signal: options.signal,
    });
  }

  /** Start runs of the schedule again, from its next due time on. */
  resumeSchedule(schedule: string, options: CallOptions = {}): Promise<ScheduleRow> {
    return this.send({
      method: "POST",
      path: `/api/v1/schedules/${part(schedule)}/resume`,
      signal: options.signal,
    });
  }

  /** List the projects of a server that has several. */
  listProjects(options: CallOptions = {}): Promise<Projects> {
    return this.send({
      method: "GET",
      path: "/api/v1/projects",
      signal: options.signal,
    });
  }

  /** List the runs of all projects of a server that has several, the newest first. */
  listProjectRuns(
    options: { readonly id?: string; readonly session?: string; readonly recipe?: string; readonly status?: RunState; readonly user?: string; readonly text?: string; readonly limit?: number; readonly offset?: number; readonly after?: string } & CallOptions = {},
  ): Promise<ProjectRuns> {
    return this.send({
      method: "GET",
      path: "/api/v1/projects/runs",
      query: { id: options.id, session: options.session, recipe: options.recipe, status: options.status, user: options.user, text: options.text, limit: options.limit, offset: options.offset, after: options.after },
      signal: options.signal,
    });
  }

  /** List the sessions of all projects of a server that has several, the newest first. */
  listProjectSessions(
    options: { readonly user?: string; readonly text?: string; readonly limit?: number; readonly offset?: number } & CallOptions = {},
  ): Promise<ProjectSessions> {
    return this.send({
      method: "GET",
      path: "/api/v1/projects/sessions",
      query: { user: options.user, text: options.text, limit: options.limit, offset: options.offset },
      signal: options.signal,
    });
  }

  /** List the pending decisions of all projects of a server that has several. */
  listProjectApprovals(
    options: { readonly recipe?: string; readonly kind?: "approval" | "question" | "call" | "plan" | "budget" | "doubt" | "unreadable"; readonly limit?: number; readonly after?: string } & CallOptions = {},
  ): Promise<ProjectApprovals> {
    return this.send({
      method: "GET",
      path: "/api/v1/projects/approvals",
      query: { recipe: options.recipe, kind: options.kind, limit: options.limit, after: options.after },
      signal: options.signal,
    });
  }

  /** The server's version, journal and load. */
  getSystem(options: CallOptions = {}): Promise<SystemView> {
    return this.send({
      method: "GET",
      path: "/api/v1/system",
      signal: options.signal,
    });
  }
}

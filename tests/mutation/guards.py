"""The modules whose conditions must be pinned by tests, with the tests that concern each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from attrs import frozen

from mutation.mutants import Mutant

__all__ = ["EQUIVALENT", "GUARDS", "Equivalent", "Guard"]


@frozen(kw_only=True)
class Guard:
    """One module."""

    tests: Sequence[str]
    """Files and folders, from the folder of the tests."""
    places: frozenset[str] = frozenset()
    """The functions and classes that guard something; empty: all of it."""

    def holds(self, mutant: Mutant) -> bool:
        """Whether the change is within what guards something."""
        return not self.places or any(
            mutant.place == place or mutant.place.startswith(f"{place}.") for place in self.places
        )


@frozen
class Equivalent:
    """A change that no test can notice."""

    path: str
    place: str
    before: str
    after: str
    reason: str

    def is_about(self, mutant: Mutant) -> bool:
        """Whether it is that change."""
        said = (self.path, self.place, self.before, self.after)
        return said == (mutant.path, mutant.place, mutant.before, mutant.after)


def _engine(*names: str) -> tuple[str, ...]:
    return tuple(f"engine/test_{name}.py" for name in names)


_APPROVALS: Final = (
    "contracts/test_approval_tallies.py",
    *_engine("approval_votes", "approval_classes", "approval_reviewers", "approval_deciders"),
    *_engine("decisions", "recorded_decisions", "tool_batch"),
)
_DECISIONS: Final = _engine(
    "decisions",
    "checked_decisions",
    "recorded_decisions",
    "pending_calls",
    "pending_decisions",
    "going_on_again",
    "resume",
)
_LIMITS: Final = _engine("budget", "limits", "costs", "recipe_steps", "recipe_calls")
_RIGHTS: Final = _engine("decisions", "renamed_toolsets", "recipe_steps", "recipe_calls")
_RESUMED: Final = _engine(
    "resume",
    "resume_edges",
    "retry_of_runs",
    "going_on_again",
    "on_error",
    "run_parts",
    "decisions",
    "recorded_decisions",
)
_JOURNAL: Final = (
    "conformance/test_journals.py",
    "conformance/test_journal_clock.py",
    "conformance/test_journal_of_sessions.py",
    "conformance/test_journal_against_an_oracle.py",
)
_CONTEXT: Final = _engine(
    "run_context",
    "limits",
    "costs",
    "recipe_steps",
    "decisions",
    "renamed_toolsets",
    "on_error",
    "secrets_in_runs",
    "graph_and_routing",
    "resume",
    "loops",
    "prompts",
    "recipe_calls",
    "events",
    "rims",
    "used_steps",
)
_SQLITE: Final = (
    *_JOURNAL,
    "conformance/test_journal_chains.py",
    "adapters/test_sqlite_journal.py",
    "adapters/test_bad_databases.py",
)

_FLOW: Final = _engine(
    "call_interval",
    "circuit_breaker",
    "endpoint_limiter",
    "flow_control",
    "flow_of_runs",
    "limited_servers",
)

_DISPATCH: Final = ("adapters/test_local_dispatch.py", "conformance/test_dispatch.py")
_WORKER: Final = (
    "interfaces/test_worker_runs.py",
    "interfaces/test_waiting_for_times.py",
    "interfaces/test_cli_workers.py",
    "workers/test_distributed_loops.py",
)

_SUPERVISOR: Final = "adapters/sandboxes/supervisor"

_WATCH: Final = ("interfaces/test_cli_watch.py", "interfaces/test_background_scores.py")

_DEPLOYMENTS: Final = (
    "interfaces/test_deployments.py",
    "interfaces/test_cli_deploy.py",
    "server/test_server_deployments.py",
)

GUARDS: Final[Mapping[str, Guard]] = {
    "adapters/models/answer_confidence.py": Guard(tests=("adapters/test_answer_confidence.py",)),
    "engine/step/model_work.py": Guard(
        tests=_engine("confidence", "answer_at_limit", "model_tiers"),
        places=frozenset({"ModelLoop._doubt", "ModelLoop._confidence", "ModelLoop._can_pay_next"}),
    ),
    "app/evaluating/canary_decisions.py": Guard(
        tests=_DEPLOYMENTS,
        places=frozenset(
            {
                *("VersionFigures.of", "VersionFigures.values", "Bar", "findings_of"),
                *("CanaryMeasurement", "CanaryDecisions", "_change_of", "check_bars", "_FEWEST"),
            }
        ),
    ),
    "app/runs/deployments.py": Guard(
        tests=_DEPLOYMENTS,
        places=frozenset(
            {
                *("Deployment", "DeploymentStore.change", "DeploymentStore.recipe_for"),
                *("split_name", "deployment_noted", "first_deployment"),
            }
        ),
    ),
    "app/evaluating/live_scores.py": Guard(
        tests=_WATCH,
        places=frozenset(
            {
                *("is_sampled", "is_foreign", "_FEWEST"),
                *("Watch.report", "Watch._used_up", "Watch._scorer"),
            }
        ),
    ),
    "app/evaluating/background_scores.py": Guard(
        tests=_WATCH,
        places=frozenset(
            {
                *("LiveScores.run_ended", "LiveScores._look", "LiveScores._look_at"),
                "_MOST_RUNS",
            }
        ),
    ),
    f"{_SUPERVISOR}/workspace_guard.py": Guard(
        tests=("adapters/test_workspace_guard.py", "adapters/test_put_back_files.py"),
        places=frozenset(
            {
                *("_MOST_KEPT_BYTES", "_DEEPEST", "ProtectedFiles", "_write"),
                *("WorkspaceGuard", "mounts_of", "outermost", "_is_same", "_put_aside"),
                "_parts_of_repository",
            }
        ),
    ),
    f"{_SUPERVISOR}/workspace_folders.py": Guard(
        tests=(
            *("adapters/test_workspace_guard.py", "adapters/test_disk_space.py"),
            "adapters/test_put_back_files.py",
        ),
        places=frozenset(
            {
                *("WalkedFolder", "walk", "_above", "_opened", "_opened_by_owner"),
                *("_RIGHTS", "opened", "opened_in", "status_of", "change_mode", "remove"),
                *("_entered", "_emptied", "write_file"),
                *("_UNTOLD", "DiskSpace", "_tells_free_space"),
            }
        ),
    ),
    f"{_SUPERVISOR}/git_trust.py": Guard(
        tests=("adapters/test_workspace_guard.py",),
        places=frozenset(
            {
                *("is_repository", "trusted_by_git", "_within", "_tops", "_followed", "_configs"),
                *("_on_the_way", "_meant", "_of_repository_above", "_with_included", "_named_in"),
                *("_words", "_variables", "_unquoted", "_at_home", "_text"),
            }
        ),
    ),
    f"{_SUPERVISOR}/file_requests.py": Guard(
        tests=("adapters/test_file_requests.py",),
        places=frozenset({"FileRequests", "_Call", "_above", "_kind", "_refuse_present"}),
    ),
    f"{_SUPERVISOR}/seccomp.py": Guard(
        tests=("adapters/test_system_call_filters.py",),
        places=frozenset({"has_filter", "bpf_program", "_begin", "_Filter"}),
    ),
    "engine/services/flow/call_interval.py": Guard(tests=_FLOW),
    "engine/services/flow/endpoint_limiter.py": Guard(tests=_FLOW),
    "engine/services/flow/flow_control.py": Guard(tests=_FLOW),
    "engine/services/flow/model_pace.py": Guard(tests=_FLOW),
    "adapters/dispatch/left_jobs.py": Guard(tests=("adapters/test_left_jobs.py",)),
    "app/runs/run_needs.py": Guard(
        tests=("interfaces/test_run_needs.py",),
        places=frozenset({"OfferedParts", "WorkerParts", "_of_place"}),
    ),
    "app/runs/left_runs.py": Guard(
        tests=("interfaces/test_left_runs.py",),
        places=frozenset({"WorkerRecord", "left_runs", "LeftRuns"}),
    ),
    "contracts/journal/start_note.py": Guard(
        tests=("contracts/test_start_note.py", "server/test_opening_rights.py"),
        places=frozenset({"StartNote", "Offer"}),
    ),
    "analysis/contract_changes.py": Guard(tests=("interfaces/test_cli_check.py",)),
    "contracts/protected_files.py": Guard(
        tests=("contracts/test_protected_files.py",),
        places=frozenset(
            {
                *("GIT_NAMES", "folded_name", "_is_unseen", "is_git_name", "configures"),
                *("entry_configures", "_is_entry", "is_secret"),
                *("_is_meant", "_opens", "matches_any", "_Names", "_Patterns"),
            }
        ),
    ),
    "adapters/tools/confined_folder.py": Guard(
        tests=("adapters/test_file_tools.py",),
        places=frozenset(
            {
                "ConfinedFolder.place",
                "ConfinedFolder.check_writable",
                "ConfinedFolder._is_led_to",
                "ConfinedFolder._hides",
            }
        ),
    ),
    "engine/calls/pending_decisions.py": Guard(tests=_DECISIONS),
    "engine/calls/resume_decisions.py": Guard(tests=_DECISIONS),
    "engine/calls/call_approvals.py": Guard(tests=_APPROVALS),
    "engine/history/approval_classes.py": Guard(tests=_APPROVALS),
    "contracts/approvals.py": Guard(tests=_APPROVALS),
    "engine/services/budget.py": Guard(tests=_LIMITS),
    "engine/compile/opening_rights.py": Guard(
        tests=("engine/test_offered_options.py", "server/test_opening_rights.py")
    ),
    "recipe/permissions.py": Guard(
        tests=(
            "recipe/test_rights.py",
            "engine/test_private_models.py",
            *_RIGHTS,
            *_engine("approval_votes", "approval_classes", "approval_reviewers", "decisions"),
            "engine/test_strangers_words.py",
        )
    ),
    "engine/context/agent_context.py": Guard(tests=_CONTEXT),
    "engine/context/run_progress.py": Guard(tests=_CONTEXT),
    "engine/context/scope.py": Guard(tests=_CONTEXT),
    "engine/history/replay.py": Guard(
        tests=(*_engine("replay"), *_RESUMED, *_engine("while", "loops", "tool_batch"))
    ),
    "engine/history/open_calls.py": Guard(
        tests=(*_engine("replay"), *_RESUMED, *_engine("while", "loops", "tool_batch"))
    ),
    "engine/history/current_rows.py": Guard(
        tests=(*_engine("replay"), *_RESUMED), places=frozenset({"visible"})
    ),
    "engine/history/step_rows.py": Guard(
        tests=(*_engine("replay"), *_RESUMED, *_engine("while", "loops", "cached_steps"))
    ),
    "engine/history/recorder.py": Guard(
        tests=_engine(
            "recorder", "events", "resume", "cancelled_from_outside", "clock_jumps", "rims"
        )
    ),
    "engine/run/walk.py": Guard(
        tests=_engine("transition_recipes"),
        places=frozenset({"Routes", "_Choice", "_form"}),
    ),
    "engine/step/next_step.py": Guard(tests=_engine("graph_and_routing", "transition_recipes")),
    "engine/run/scheduler.py": Guard(
        tests=_engine(
            "dependency_walk",
            "scheduling",
            "graph_properties",
            "on_error",
            "skip_checks",
            "decisions",
            "run_steps",
        )
        + _RESUMED
    ),
    "engine/run/run_steps.py": Guard(
        tests=(
            *_engine("run_steps", "scheduling", "cached_steps", "limits", "used_steps"),
            *_RESUMED,
        )
    ),
    "engine/step/work.py": Guard(
        tests=(*_engine("endings", "limits", "cancelled_from_outside"), *_DECISIONS)
    ),
    "engine/services/waves/wave_calls.py": Guard(
        tests=_engine("waves"),
        places=frozenset(
            {
                "_Group.note_refusal",
                "_Group.note_taken",
                "_Wave._end_of_refusal",
            }
        ),
    ),
    "engine/services/waves/wave_record.py": Guard(
        tests=("engine/test_wave_records.py",),
        places=frozenset({"WaveRecord", "StoredWave", "StoredWatch", "is_watched"}),
    ),
    "adapters/models/provider_batches.py": Guard(
        tests=("adapters/test_provider_batches.py",),
        places=frozenset(
            {
                *("OpenAIBatches.find", "OpenAIBatches.status"),
                *("AnthropicBatches.find", "AnthropicBatches._has_ids", "AnthropicBatches.status"),
                *("GeminiBatches.find", "GeminiBatches.status", "_ProviderBatches._list"),
                *("_openai_end", "_anthropic_end", "_gemini_ends", "_object_in", "_objects"),
                *("_after", "_page_token", "_sum_of", "_time_in", "_where_open"),
            }
        ),
    ),
    "engine/step/code_scope.py": Guard(
        tests=_engine("code_with_tools"),
        places=frozenset({"_JournalledCalls", "_recorded_calls", "_sorted"}),
    ),
    "adapters/sandboxes/supervisor/program_tools.py": Guard(
        tests=("adapters/test_program_channel.py", "testing/test_unconfined_sandbox.py"),
        # What else is there changes the whole process, and is tested in processes of its own.
        places=frozenset(
            {"ToolChannel", "ToolCaller", "ToolError", "tools_module", "fitting_answer"}
        ),
    ),
    "engine/compile/programs.py": Guard(tests=_engine("code_with_tools", "program_words")),
    "engine/calls/questions_of_call.py": Guard(
        tests=(
            *_engine("tools_of_callers", "questions_of_calls", "tool_batch"),
            "server/test_caller_tools.py",
        )
    ),
    "interfaces/server/documents/caller_tool_documents.py": Guard(
        tests=("server/test_caller_tools.py", "server/test_ag_ui.py")
    ),
    "interfaces/server/routes/asked_runs.py": Guard(
        tests=(
            *("server/test_caller_tools.py", "server/test_ag_ui.py"),
            *("server/test_openai_requests.py", "server/test_openai_answers.py"),
        )
    ),
    "engine/calls/tool_batch.py": Guard(
        tests=(
            *_DECISIONS,
            *_engine(
                "tool_batch",
                "retries_and_memory",
                "step_executor",
                "graph_and_routing",
                "resume_edges",
            ),
            "interfaces/test_cli_imported_consent.py",
        )
    ),
    "engine/compile/offered_tools.py": Guard(
        tests=_engine("tool_ranking", "tool_search"),
        places=frozenset(
            {
                *("searches", "first_specs", "SearchedTools", "FindTools", "ToolIndex"),
                *("_query_words", "_parameter_words", "_alike_words"),
                *("_FIELDS", "_ALIKE", "_MOST_QUERY", "_LEAST_SHARE"),
            }
        ),
    ),
    "engine/compile/nearest_examples.py": Guard(tests=_engine("nearest_examples")),
    "contracts/tool_search.py": Guard(
        tests=_engine("tool_search"), places=frozenset({"found_names"})
    ),
    "engine/history/entry_checks.py": Guard(
        tests=_engine("entry_checks", "archives", "journal_fold", "run_states")
    ),
    "engine/history/imported_entries.py": Guard(
        tests=(
            *_engine("imported_entries", "archives"),
            "interfaces/test_cli_imported_consent.py",
        )
    ),
    "data/bounded_files.py": Guard(
        tests=("interfaces/test_bounded_input.py",),
        places=frozenset({"open_regular", "read_regular", "BoundedLines"}),
    ),
    "interfaces/http/connections.py": Guard(
        tests=(
            *("server/test_acceptor.py", "server/test_connections.py"),
            "server/test_slow_clients.py",
        ),
        places=frozenset(
            {
                *(
                    "Rarely",
                    "Acceptor",
                    "_AT_ONCE",
                    "_REST_S",
                    "_NO_ROOM",
                    "_EVERY_S",
                ),
                "Connections",
            }
        ),
    ),
    "interfaces/server/live/channels.py": Guard(
        tests=("server/test_stream_places.py",),
        places=frozenset({"_LEFT", "_SHARE", "StreamPlaces"}),
    ),
    "interfaces/server/app.py": Guard(
        tests=(
            "server/test_recovery_rules.py",
            "server/test_server_recovery.py",
            "server/test_server_run_states.py",
        ),
        places=frozenset({"Recovery"}),
    ),
    "app/wiring/local_models.py": Guard(
        tests=("interfaces/test_local_models.py",),
        places=frozenset({"check_local_name"}),
    ),
    "app/wiring/configured_models.py": Guard(
        tests=("interfaces/test_local_models.py",), places=frozenset({"is_local"})
    ),
    "interfaces/server/server_runtime.py": Guard(
        tests=(
            *("server/test_caller_inputs.py", "server/test_caller_secrets.py"),
            "server/test_server_secrets.py",
        ),
        places=frozenset(
            {
                *("CallerInputs", "_refusal", "_is_offered", "_may_name"),
                *("_chosen_by_inputs", "_inputs_in", "_composed_folders", "_is_lone"),
                *("CallerSecrets", "_reference"),
            }
        ),
    ),
    "engine/services/memory_journal.py": Guard(
        tests=_JOURNAL,
        places=frozenset(
            {
                "MemoryJournal.acquire",
                "MemoryJournal.renew",
                "MemoryJournal.release",
                "MemoryJournal.held_leases",
                "MemoryJournal.append",
                "MemoryJournal.adopt",
                "MemoryJournal.remove_session",
                "MemoryJournal._refuse_to_touch",
                "MemoryJournal._own_lease",
                "_refuse_if_active",
                "_when_free",
                "_fence_error",
            }
        ),
    ),
    "adapters/stores/sqlite_journal.py": Guard(
        tests=_SQLITE,
        places=frozenset(
            {
                "SqliteJournal.acquire",
                "SqliteJournal.open_run",
                "SqliteJournal.renew",
                "SqliteJournal.release",
                "adopt_entries",
                "remove_session",
            }
        ),
    ),
    "adapters/stores/sqlite_leases.py": Guard(
        tests=_SQLITE,
        places=frozenset(
            {
                "acquire_lease",
                "_acquire_after_others",
                "insert_first_lease",
                "release_if_owned",
                "check_owner",
                "list_held_leases",
                "find_lease",
                "read_head",
                "refuse_if_active",
                "release_lease",
                "renew_lease",
            }
        ),
    ),
    "adapters/stores/sqlite_entries.py": Guard(
        tests=_SQLITE,
        places=frozenset(
            {
                "_insert_if_owned",
                "_insert_after",
                "_entries_of",
                "append_entries",
                "_append_at_once",
                "insert_entry",
                "open_session",
            }
        ),
    ),
    "contracts/journal/chain.py": Guard(tests=("conformance/test_journal_chains.py",)),
    "app/wiring/signed_heads.py": Guard(tests=("interfaces/test_cli_signed_heads.py",)),
    "adapters/head_signing.py": Guard(tests=("interfaces/test_cli_signed_sessions.py",)),
    "data/patterns.py": Guard(
        tests=("contracts/test_schemas.py", "engine/test_slow_patterns.py"),
        places=frozenset({"MatchTime", "match_time", "match_beside_loop", "refuse_large_pattern"}),
    ),
    "data/quick_schema.py": Guard(
        tests=("contracts/test_quick_schema.py",), places=frozenset({"_Compiler._definition"})
    ),
    "data/schema_keywords.py": Guard(
        tests=("contracts/test_schemas.py", "contracts/test_quick_schema.py"),
        places=frozenset({"CheckBudget.matches", "_count_evaluations", "_Patterns"}),
    ),
    "adapters/tools/mcp/program.py": Guard(
        tests=("adapters/test_mcp_programs.py", "interfaces/test_cli_mcp.py"),
        places=frozenset(
            {
                *("ServerProgram", "ProgramChange", "ProgramCheck", "find_program", "safe_folders"),
                *("_also", "_may_others_write", "_named_code", "_texts_in", "_file", "_holds_code"),
                *("_first_files", "digest_of_file"),
            }
        ),
    ),
    "adapters/tools/mcp/elicitation.py": Guard(
        tests=("adapters/test_mcp_requests.py",),
        places=frozenset({"asked_words", "_secrets_in", "_about", "_secret_word"}),
    ),
    "adapters/tools/mcp/login.py": Guard(
        tests=("interfaces/test_cli_mcp_login.py",),
        places=frozenset({"_GuardedLogin._checked_address", "_nearness", "_peer_of"}),
    ),
    "data/csv_lines.py": Guard(
        tests=("adapters/test_data_tools.py",), places=frozenset({"_safe_cell"})
    ),
    "app/settings/user_folders.py": Guard(
        tests=(
            "interfaces/test_folder_trust.py",
            "interfaces/test_rights_shown.py",
            "interfaces/test_cli_mcp.py",
        ),
        places=frozenset(
            {
                *("harmless_keys", "_names_weights", "FolderTrust.of", "FolderTrust.holds"),
                *("FolderTrust.knows", "FolderTrust.rights_shown", "FolderTrust.programs_seen"),
                *("FolderTrust.add", "FolderTrust.remove", "FolderTrust._known"),
                "FolderTrust._read",
            }
        ),
    ),
    "app/settings/setting_rights.py": Guard(tests=("interfaces/test_rights_shown.py",)),
    "recipe/checks/sources.py": Guard(
        tests=("recipe/test_carried_text.py",),
        places=frozenset(
            {
                *("carried_by", "_gives_no_text", "may_hold_text"),
                *("is_closed", "_is_bounded", "_has_open_member"),
            }
        ),
    ),
    # --- keys, headers, and who comes in ---
    "adapters/models/endpoints.py": Guard(tests=("adapters/test_model_endpoints.py",)),
    "contracts/model_endpoints.py": Guard(
        tests=("adapters/test_model_endpoints.py",), places=frozenset({"is_loopback_url"})
    ),
    "adapters/http/request_rules.py": Guard(
        tests=("adapters/test_model_endpoints.py",),
        places=frozenset(
            {
                *("server_address", "origin_of", "ollama_url", "_OWN_HEADERS"),
                *("check_key", "check_header", "check_header_name"),
            }
        ),
    ),
    "interfaces/server/access.py": Guard(
        tests=(
            *("server/test_access.py", "server/test_cross_origin.py"),
            "server/test_server_gate.py",
            "server/test_token_scopes.py",
            "server/test_roles.py",
        )
    ),
    "interfaces/server/server_options.py": Guard(
        tests=("server/test_cross_origin.py",),
        places=frozenset({"_check_origins"}),
    ),
    "interfaces/http/tokens.py": Guard(
        tests=(
            *("server/test_token_scopes.py", "server/test_server_gate.py"),
            *("server/test_owners.py", "server/test_roles.py"),
        ),
        places=frozenset(
            {
                *("Caller", "_own", "caller_of", "Rights", "rights_of"),
                *("_SHORTEST", "_as_scopes", "_check_name", "check_digest", "_check_rights"),
                *("check_token", "ROLES"),
            }
        ),
    ),
    "interfaces/http/token_file.py": Guard(
        tests=("server/test_token_scopes.py", "server/test_roles.py")
    ),
    "interfaces/http/proxy_access.py": Guard(tests=("server/test_roles.py",)),
    # --- budgets of many runs ---
    "contracts/budgets.py": Guard(tests=("engine/test_shared_budgets.py",)),
    "engine/batches/batch.py": Guard(
        tests=("engine/test_batch_budget.py",), places=frozenset({"BatchBudget"})
    ),
    "engine/services/shared_budgets.py": Guard(
        tests=("engine/test_shared_budgets.py", "engine/test_budget_thresholds.py")
    ),
    "engine/services/budget_records.py": Guard(tests=("engine/test_budget_thresholds.py",)),
    "engine/services/budget_rules.py": Guard(tests=("engine/test_budget_thresholds.py",)),
    # --- dispatch and workers ---
    "adapters/dispatch/local_dispatch.py": Guard(tests=_DISPATCH),
    "contracts/dispatch.py": Guard(tests=("adapters/test_local_dispatch.py",)),
    "adapters/dispatch/job_server.py": Guard(
        tests=("adapters/test_job_server.py",),
        places=frozenset(
            f"JobServer.{name}"
            for name in ("hear", "note_look", "not_begun", "_look_when_due", "_room", "_note_end")
        ),
    ),
    "adapters/dispatch/postgres_news.py": Guard(
        tests=("adapters/test_job_server.py",), places=frozenset({"JobNews"})
    ),
    "app/runs/unexecuted_runs.py": Guard(
        tests=(
            "interfaces/test_unexecuted_runs.py",
            "server/test_recovery_rules.py",
            "server/test_server_deciders.py",
            "interfaces/test_worker_runs.py",
        )
    ),
    "interfaces/worker/run_execution.py": Guard(
        tests=_WORKER,
        places=frozenset(
            {
                *("_BUSY_S", "_AGAIN_S", "_MOST_TRIES", "_MOST_TRIES_AT_WORK", "MOST_PAUSES"),
                *("_FINISHED", "RunExecution", "_pause_of", "_has_progress", "Reconciliation"),
            }
        ),
    ),
    # --- plans ---
    "planning/plan_checks.py": Guard(
        tests=("planning/test_plan_checks.py",),
        places=frozenset(
            {
                *(
                    "_LONGEST_TEXT",
                    "_LONGEST_PLAN",
                    "_LONGEST_NAME",
                    "check_plan",
                    "_describe_openings",
                ),
                *("without_completed", "_is_same_work", "_seeing", "configuring_files"),
                *("_seen_and_changed", "_faults_of_ids", "_faults_of_sizes", "_faults_of_steps"),
                *("_faults_of_paths", "_bad_lines", "_secret", "_unusable", "_faults_of_tools"),
                *("refusal_of", "_faults_of_order", "_circle"),
            }
        ),
    ),
    "planning/plan_fit.py": Guard(tests=("planning/test_plan_fit.py",)),
    "engine/views/kept_plans.py": Guard(
        tests=("engine/test_plan_reuse.py",), places=frozenset({"kept_plans", "_plans_in"})
    ),
    # --- captures ---
    "capture/alignment.py": Guard(
        tests=("capture/test_alignment.py", "capture/test_program_building.py")
    ),
    "capture/origins.py": Guard(
        tests=("capture/test_origins.py",),
        places=frozenset(
            {
                *("origins_of", "_examples", "_is_usable", "_paths", "_lookups", "_by_which"),
                *("_results", "_texts", "_may_stand_in"),
            }
        ),
    ),
    "capture/known_values.py": Guard(
        tests=("capture/test_origins.py",),
        places=frozenset({"Values.holds", "is_telling", "is_alike"}),
    ),
    "capture/known_runs.py": Guard(
        tests=("capture/test_program_building.py", "capture/test_task_inputs.py"),
        places=frozenset(
            {
                *("KnownRun.late_after", "KnownRun.says", "KnownRuns.is_said_by_author"),
                *("KnownRuns.is_judged", "KnownRuns.is_exposed", "KnownRuns.strangers_words"),
                *("KnownRuns._is_strange", "_without_echoes"),
            }
        ),
    ),
    "capture/choices.py": Guard(
        tests=("capture/test_program_building.py",),
        places=frozenset(
            {
                *("_FEW_WORDS", "_WORDS", "Choices.ask", "Choices.choose_origin"),
                *("Choices._may_stand", "Choices._constant_reason", "_is_plain_choice"),
            }
        ),
    ),
    "app/capturing/proofs.py": Guard(tests=("capture/test_proofs.py",)),
    "app/evaluating/reflection.py": Guard(
        tests=("interfaces/test_tuned_words.py",),
        places=frozenset({"Reflection", "_find_miss", "_find_quote"}),
    ),
    "app/evaluating/recipe_tests.py": Guard(
        tests=("capture/test_proofs.py",),
        places=frozenset(
            {"ArgumentMutation", "_with_part", "_FakedTools", "_RecordedCalls", "_plain"}
        ),
    ),
    # --- trust ---
    "recipe/checks/flows.py": Guard(
        tests=("recipe/test_untrusted_flows.py", "recipe/test_untrusted_text.py"),
        places=frozenset(
            {
                *("check_untrusted_flows", "_check_recorded_examples", "_check_system_prompt"),
                *("UntrustedText", "_has_untrusted_input", "_declared", "_endorsement_problems"),
            }
        ),
    ),
    "engine/context/strangers_words.py": Guard(
        tests=("engine/test_strangers_words.py", "engine/test_private_models.py"),
        places=frozenset(
            {
                *("StrangersWords.read", "StrangersWords.reaching", "StrangersWords.in_arguments"),
                *("StrangersWords.results", "StrangersWords.deciding", "StrangersWords._collect"),
                *("StrangersWords.private_among", "StrangersWords.foreign_among"),
            }
        ),
    ),
    "recipe/checks/text_edges.py": Guard(
        tests=("recipe/test_untrusted_flows.py", "engine/test_strangers_words.py"),
        places=frozenset(
            {
                *("_chosen", "_may_end_without", "_can_refuse", "_truth"),
            }
        ),
    ),
    # --- servers of tools ---
    "adapters/tools/mcp/mcp_failures.py": Guard(
        tests=("adapters/test_mcp_bounds.py",),
        places=frozenset(
            {
                *("_UNCOUNTED_BYTES", "_MOST_SIGNS", "_MOST_PARTS", "_BURST", "_PER_S"),
                *("_MOST_GARBAGE", "Inflow", "too_many_values", "too_many_parts"),
            }
        ),
    ),
    "adapters/tools/mcp/listing.py": Guard(
        tests=("adapters/test_mcp_listing.py",),
        places=frozenset(
            {
                *("_MOST_TOOLS", "_MOST_PAGES", "_MOST_NAME", "_MOST_DESCRIPTION", "_MOST_SCHEMA"),
                *("listed_tools", "pinned_tools", "repeated_names", "as_pinned", "_faults"),
                *("_fault_of", "_collisions", "changes_of"),
            }
        ),
    ),
    # --- sandboxes ---
    "adapters/sandboxes/workspaces.py": Guard(
        tests=("adapters/test_sandbox_jobs.py",),
        places=frozenset(
            {
                *("_TEMPORARY_SHARE", "_MOST_TEMPORARY_BYTES", "_links_in", "_checked_workspace"),
                *("_bubblewrap_job", "_namespaces", "_shown", "_job", "_lock_of"),
                *("_landlock_job", "BubblewrapSandbox", "LandlockSandbox"),
            }
        ),
    ),
}

_HOLDING: Final = "A session in memory is only made with a holding; the type allows for none."

EQUIVALENT: Final[Sequence[Equivalent]] = (
    Equivalent(
        "engine/compile/nearest_examples.py",
        "NearestExamples.choose",
        "if len(chosen) == most or (covers_first and covered == self._all_values):",
        "if (len(chosen) == most):",
        "Once all values are covered, none of the others covers one: the walk ends sooner.",
    ),
    Equivalent(
        "contracts/dispatch.py",
        "DEFAULT_SLOTS",
        "DEFAULT_SLOTS: Final = 4",
        "DEFAULT_SLOTS: Final = 3",
        "No child sees it: the default was set when the module was loaded. A test of it pins it.",
    ),
    Equivalent(
        "contracts/dispatch.py",
        "DEFAULT_SLOTS",
        "DEFAULT_SLOTS: Final = 4",
        "DEFAULT_SLOTS: Final = 5",
        "No child sees it: the default was set when the module was loaded. A test of it pins it.",
    ),
    Equivalent(
        "contracts/dispatch.py",
        "WorkerPlan",
        "ends_when_idle: bool = False",
        "ends_when_idle: bool = True",
        "No child sees it: the default was set when the module was loaded. A test of it pins it.",
    ),
    Equivalent(
        "contracts/dispatch.py",
        "DispatchEngine",
        "is_shared: bool = False",
        "is_shared: bool = True",
        "No child sees it: the default was set when the module was loaded. A test of it pins it.",
    ),
    Equivalent(
        "interfaces/worker/run_execution.py",
        "Reconciliation._submit",
        "if job is not None:",
        "if (job is None):",
        "It is only logged.",
    ),
    Equivalent(
        "app/runs/unexecuted_runs.py",
        "RunPages.read_next",
        "found += (row for row in rows if row.mark == self._mark)",
        "found += (row for row in rows if (True))",
        "A short cut: the record of the run is asked for its queue, too.",
    ),
    Equivalent(
        "interfaces/worker/run_execution.py",
        "Reconciliation.submit_missing",
        "missing = [row for row in rows if row.run_id not in known]",
        "missing = [row for row in rows if (True)]",
        "A short cut: the engine has the job, and takes no second one.",
    ),
    Equivalent(
        "interfaces/worker/run_execution.py",
        "Reconciliation._submit",
        "place = RunPolicy.recorded(fact.note or {}).queue",
        "place = RunPolicy.recorded((fact.note)).queue",
        "What is queued has a note; the type allows for none.",
    ),
    Equivalent(
        "adapters/dispatch/local_dispatch.py",
        "LocalDispatch._first",
        "return entries[0]",
        "pass",
        "A short cut: the least of all is looked for then.",
    ),
    Equivalent(
        "adapters/dispatch/local_dispatch.py",
        "LocalDispatch._news",
        "await asyncio.gather(*waits, return_exceptions=True)",
        "pass",
        "They end by themselves a moment later.",
    ),
    Equivalent(
        "adapters/models/endpoints.py",
        "_KeyHost",
        "may_be_plain: bool = False",
        "may_be_plain: bool = True",
        "It stands for the own addresses of providers alone: https, or this machine.",
    ),
    Equivalent(
        "adapters/models/endpoints.py",
        "_known_homes",
        "if not said or known.base_url_env is None:",
        "if (not said):",
        "A provider without such a variable has no value of it; the type allows for one.",
    ),
    Equivalent(
        "interfaces/server/routes/asked_runs.py",
        "begin_decided_run",
        "reads_earlier=False,",
        "reads_earlier=True,",
        "It is read of runs that a question begins, not of those that continue with results.",
    ),
    Equivalent(
        "interfaces/server/routes/asked_runs.py",
        "_answered_before",
        "reads_earlier=False,",
        "reads_earlier=True,",
        "It is read of runs that a question begins, not of those that continue with results.",
    ),
    Equivalent(
        "interfaces/server/routes/asked_runs.py",
        "_run_of_caller",
        "if name_noted(note or {}, TOKEN) != request.caller.name:",
        "if name_noted((note), TOKEN) != request.caller.name:",
        "A run that waits for a caller's tool has noted the tool.",
    ),
    Equivalent(
        "interfaces/server/access.py",
        "_unmounted_scope",
        'if root and (path == root or path.startswith(f"{root}/")):',
        "if (path == root or path.startswith(f'{root}/')):",
        "Of no root nothing is cut off.",
    ),
    Equivalent(
        "interfaces/http/token_file.py",
        "read_token_file",
        "text = known.read(_MOST_BYTES + 1).decode()",
        "text = known.read(_MOST_BYTES + 2).decode()",
        "What is longer by one byte or more is refused, and nothing of it is used.",
    ),
    Equivalent(
        "engine/services/shared_budgets.py",
        "_Account.is_spent",
        "return (self.spending.reached or self.spending.used_up()) is not None",
        "return ((self.spending.used_up())) is not None",
        "What was reached stays spent.",
    ),
    Equivalent(
        "engine/services/shared_budgets.py",
        "_refusal",
        'name = spending.reached or spending.used_up() or ""',
        "name = (spending.used_up() or '')",
        "What was reached stays spent.",
    ),
    Equivalent(
        "engine/services/shared_budgets.py",
        "_refusal",
        'name = spending.reached or spending.used_up() or ""',
        "name = (spending.reached or spending.used_up())",
        "It is asked of a budget that is spent; the type allows for another.",
    ),
    Equivalent(
        "engine/services/shared_budgets.py",
        "SharedBudgets._forget_idle",
        "if more <= 0:",
        "if (more < 0):",
        "A short cut: of no account too many none is dropped.",
    ),
    Equivalent(
        "engine/services/shared_budgets.py",
        "SharedBudgets._forget_idle",
        "if more <= 0:",
        "if more <= -1:",
        "A short cut: of no account too many none is dropped.",
    ),
    Equivalent(
        "engine/batches/batch.py",
        "BatchBudget._fits",
        "return self.expected <= self.left + _ROUNDING",
        "return (self.expected < self.left + _ROUNDING)",
        "Sums that differ by a billionth of a dollar are the same.",
    ),
    Equivalent(
        "adapters/dispatch/local_dispatch.py",
        "_QueuedJob",
        "job: Job = field(order=False)",
        "job: Job = field(order=True)",
        "Numbers are unique: nothing after them is compared.",
    ),
    Equivalent(
        "adapters/dispatch/local_dispatch.py",
        "_QueuedJob",
        "due: float = field(order=False)",
        "due: float = field(order=True)",
        "Numbers are unique: nothing after them is compared.",
    ),
    Equivalent(
        "adapters/dispatch/local_dispatch.py",
        "LocalDispatch.submit",
        "order = 2 * job.priority + (0 if job.number else 1) # what was put back goes first",
        "order = 3 * job.priority + (0 if job.number else 1) # what was put back goes first",
        "Two places for each priority are needed; a third one stays empty.",
    ),
    Equivalent(
        f"{_SUPERVISOR}/workspace_guard.py",
        "ProtectedFiles._put_back",
        "if is_same and (before is not None or not self._is_hidden(path)):",
        "if is_same and ((not self._is_hidden(path))):",
        "A short cut: what is there is hidden by nothing.",
    ),
    Equivalent(
        f"{_SUPERVISOR}/workspace_guard.py",
        "ProtectedFiles._entry",
        "return _Entry(mode, {key: each for key, each in found.items() if each is not None})",
        "return _Entry(mode, {key: each for key, each in found.items() if (True)})",
        "It was listed a moment before; the commands have ended by then.",
    ),
    Equivalent(
        f"{_SUPERVISOR}/workspace_guard.py",
        "ProtectedFiles._bytes",
        "data = file.read(self._left + 1)",
        "data = file.read(self._left + 2)",
        "What is longer by one byte or more is refused, and nothing of it is used.",
    ),
    Equivalent(
        f"{_SUPERVISOR}/workspace_folders.py",
        "_entered",
        "change_mode(found, 0o700) # it is about to be removed",
        "pass # it is about to be removed",
        "Rights stop no tests of root; as another user a test of them pins it.",
    ),
    Equivalent(
        f"{_SUPERVISOR}/workspace_folders.py",
        "_emptied",
        "return [each.name for each in entries if each.is_dir(follow_symlinks=False)]",
        "return [each.name for each in entries if each.is_dir(follow_symlinks=True)]",
        "Links are gone by then.",
    ),
    Equivalent(
        "recipe/checks/flows.py",
        "UntrustedText._may_begin",
        "return False",
        "return True",
        "A short cut: where it says yes, what is untrusted is looked for.",
    ),
    Equivalent(
        "recipe/checks/flows.py",
        "UntrustedText._may_begin",
        "is_own = step.inner is not None or step.own_source is not None",
        "is_own = (step.inner is None) or step.own_source is not None",
        "A short cut: where it says yes, what is untrusted is looked for.",
    ),
    Equivalent(
        "recipe/checks/flows.py",
        "UntrustedText._may_begin",
        "return is_own or step.offers_caller_tools or any(each in _SAID for each in found)",
        "return is_own or step.offers_caller_tools or all(each in _SAID for each in found)",
        "A short cut: where it says yes, what is untrusted is looked for.",
    ),
    Equivalent(
        "planning/plan_checks.py",
        "without_completed",
        "break",
        "pass",
        "It only saves time: steps are looked at as often as there are any.",
    ),
    Equivalent(
        "planning/plan_checks.py",
        "without_completed",
        "if each.id not in done and _is_same_work(each, known.get(each.id)) and all(before in "
        "done or before not in names for before in each.dependencies)",
        "if (_is_same_work(each, known.get(each.id)) and all((before in done or before not in "
        "names for before in each.dependencies)))",
        "It only saves time: steps are looked at as often as there are any.",
    ),
    Equivalent(
        "planning/plan_checks.py",
        "_bad_lines",
        "if use.form is FileForm.LINES and (use.last or 0) < max(use.first or 0, 1):",
        "if use.form is FileForm.LINES and ((use.last)) < max(use.first or 0, 1):",
        "Lines have a first and a last one; the type allows for none.",
    ),
    Equivalent(
        "planning/plan_checks.py",
        "_bad_lines",
        "if use.form is FileForm.LINES and (use.last or 0) < max(use.first or 0, 1):",
        "if use.form is FileForm.LINES and (use.last or 0) < max((use.first), 1):",
        "Lines have a first and a last one; the type allows for none.",
    ),
    Equivalent(
        "data/quick_schema.py",
        "_Compiler._definition",
        "raise _UnknownWordError",
        "pass",
        "What is no match has no parts: the TypeError leads to the full check, too.",
    ),
    Equivalent(
        "data/schema_keywords.py",
        "_count_evaluations.counted",
        "if budget.used > budget.most:",
        "if (budget.used >= budget.most):",
        "It only asks `spend`, which compares again.",
    ),
    Equivalent(
        "data/schema_keywords.py",
        "_count_evaluations.counted",
        "for error in check(validator, wanted, instance, schema) or ():",
        "for error in (check(validator, wanted, instance, schema)):",
        "The library lets a keyword return None; in its present version none does.",
    ),
    Equivalent(
        "contracts/protected_files.py",
        "_is_unseen",
        'return is_mark or 0xFE00 <= code <= 0xFE0F or unicodedata.category(character) == "Cf"',
        'return is_mark or 0xFE00 <= code <= 65040 or unicodedata.category(character) == "Cf"',
        "U+FE10 was replaced by a comma before.",
    ),
    Equivalent(
        "contracts/protected_files.py",
        "_opens",
        "return _compiled(wanted).first_match(names, 0, is_folder=True) is not None",
        "return _compiled(wanted).first_match(names, 0, is_folder=False) is not None",
        "All of these patterns are of folders, which a file of that name matches, too.",
    ),
    *(
        Equivalent(
            "contracts/protected_files.py",
            "_Patterns.__init__",
            before,
            after,
            "A name that no pattern ends with is left out by `_last`; one with `/` matches none.",
        )
        for before, after in (
            (
                'single = [each for each in given if "/" not in each[:-1]]',
                "single = [each for each in given if (True)]",
            ),
            (
                'self._folders = _Names(each[:-1] for each in single if each.endswith("/"))',
                "self._folders = _Names(each[:-1] for each in single if True)",
            ),
            (
                'self._files = _Names(each for each in single if not each.endswith("/"))',
                "self._files = _Names(each for each in single if (True))",
            ),
            ('if "/" in each[:-1]', "if (True)"),
        )
    ),
    Equivalent(
        "contracts/protected_files.py",
        "_Patterns._matches_at",
        "return self._last.match(name) and ( self._folders.match(name) or (not is_folder and "
        "self._files.match(name)) or self._is_path(names, at, is_file=not is_folder) )",
        "return (self._folders.match(name) or (not is_folder and self._files.match(name)) or "
        "self._is_path(names, at, is_file=not is_folder))",
        "It only saves time.",
    ),
    *(
        Equivalent(
            f"{_SUPERVISOR}/workspace_guard.py",
            place,
            before,
            before.replace("False", "True"),
            "What was a folder when it was listed is looked at without following a link in any "
            "case; tests put a link there meanwhile.",
        )
        for place, before in (
            ("WorkspaceGuard._note", "status = entry.stat(follow_symlinks=False)"),
            (
                "WorkspaceGuard._check_entry",
                "aside = self._check_folder(folder, name, path, entry.stat(follow_symlinks=False))",
            ),
        )
    ),
    Equivalent(
        f"{_SUPERVISOR}/git_trust.py",
        "_text",
        "data = file.read(_MOST_BYTES + 1)",
        "data = file.read(_MOST_BYTES + 2)",
        "What is longer by one byte or more is refused, and nothing of it is used.",
    ),
    Equivalent(
        "adapters/sandboxes/supervisor/seccomp.py",
        "_Filter._if_argument",
        "return",
        "pass",
        "Every call that is decided by an argument exists on each architecture.",
    ),
    Equivalent(
        "recipe/checks/sources.py",
        "carried_by",
        "return",
        "pass",
        "Nothing follows the branches.",
    ),
    Equivalent(
        "app/settings/setting_rights.py",
        "_flag",
        "return lambda _place, value: [yes if value else no]",
        "return lambda _place, value: [yes if not (value) else no]",
        "No child sees it: the function was made when the module was loaded. A test of `no_store` "
        "pins it.",
    ),
    Equivalent(
        "recipe/permissions.py",
        "_OwnRights._is_about",
        "called, meant = {tool.name, tool.origin or tool.name}, {written, origin or written}",
        "called, meant = {tool.name, tool.origin or tool.name}, {written, (origin)}",
        "None is the name of no tool; it only adds a text to the set.",
    ),
    Equivalent(
        "engine/services/memory_journal.py",
        "MemoryJournal.release",
        "if session and session.holding and session.holding.lease.epoch == lease.epoch:",
        "if (session and session.holding.lease.epoch == lease.epoch):",
        _HOLDING,
    ),
    Equivalent(
        "engine/services/memory_journal.py",
        "MemoryJournal.held_leases",
        "if each is not None and each.deadline is not None",
        "if (each.deadline is not None)",
        _HOLDING,
    ),
    Equivalent(
        "engine/services/memory_journal.py",
        "MemoryJournal._refuse_to_touch",
        "if session is not None and session.holding is not None:",
        "if (session is not None):",
        _HOLDING,
    ),
    Equivalent(
        "engine/services/memory_journal.py",
        "MemoryJournal._own_lease",
        "session is None or holding is None or holding.deadline is None "
        "or holding.lease.epoch != lease.epoch or holding.lease.run_id != lease.run_id",
        "(holding is None or holding.deadline is None or holding.lease.epoch != lease.epoch "
        "or (holding.lease.run_id != lease.run_id))",
        _HOLDING,
    ),
    Equivalent(
        "engine/services/memory_journal.py",
        "MemoryJournal._own_lease",
        "session is None or holding is None or holding.deadline is None "
        "or holding.lease.epoch != lease.epoch or holding.lease.run_id != lease.run_id",
        "(session is None or holding.deadline is None or holding.lease.epoch != lease.epoch "
        "or (holding.lease.run_id != lease.run_id))",
        _HOLDING,
    ),
    Equivalent(
        "engine/context/agent_context.py",
        "RunValues.withdraw",
        "if name is not None and name not in _RESERVED:",
        "if (name not in _RESERVED):",
        "Nothing is named None; what is not there is forgotten already.",
    ),
    Equivalent(
        "engine/context/agent_context.py",
        "RunValues._publish_status",
        'if status is StepStatus.SKIPPED and "output" in before:',
        "if (status is StepStatus.SKIPPED):",
        "Without an output before, both write the same.",
    ),
    Equivalent(
        "engine/context/agent_context.py",
        "RunValues.publish",
        "if self._has_secrets and not isinstance(step, PythonStep):",
        "if (not isinstance(step, PythonStep)):",
        "A short cut: without secrets there is nothing to disarm.",
    ),
    Equivalent(
        "engine/history/recorder.py",
        "_AppendQueue.wait",
        "if waiter.done() and not waiter.cancelled(): # it came at the same moment",
        "if (not waiter.cancelled()): # it came at the same moment",
        "A cancelled writer has a future that is cancelled, or that is done.",
    ),
    Equivalent(
        "engine/history/recorder.py",
        "Recorder.record",
        "return await self._append_beside_others(self._lease or await self.open(), draft)",
        "return await self._append_beside_others((await self.open()), draft)",
        "A short cut: opened again it gives the same lease.",
    ),
    Equivalent(
        "engine/history/recorder.py",
        "Recorder._publish",
        "if self._events.is_watched and (event := self._maker.event_of(entry)) is not None:",
        "if ((event := self._maker.event_of(entry)) is not None):",
        "A short cut: an event that nobody watches is told to nobody.",
    ),
    Equivalent(
        "engine/run/scheduler.py",
        "DependencyWalk.__init__",
        "self._has_gaps = False",
        "self._has_gaps = True",
        "A short cut: without gaps the long way comes to the same.",
    ),
    Equivalent(
        "engine/calls/tool_batch.py",
        "ToolBatch._judged",
        "is_told = call.failure is not None and self.reports_failures",
        "is_told = (self.reports_failures)",
        "A call that was decided and has no failure is completed already.",
    ),
    Equivalent(
        "engine/history/step_rows.py",
        "StepRows.was_not_enough",
        "if not self.has_failed or self.ended is None:",
        "if (not self.has_failed):",
        "What has failed has an end; the type allows for none.",
    ),
    Equivalent(
        "engine/run/run_steps.py",
        "RunSteps._told",
        "if status is StepStatus.FAILED and self.back_edges.plan(step, execution):",
        "if (self.back_edges.plan(step, execution)):",
        "A short cut: what did not fail has no error, or one that cut it off.",
    ),
    Equivalent(
        "app/evaluating/live_scores.py",
        "is_sampled",
        "return int.from_bytes(digest[:8]) < share * 2**64",
        "return (int.from_bytes(digest[:8]) <= share * 2 ** 64)",
        "One digest of 2**64 lies on the border.",
    ),
    Equivalent(
        "app/evaluating/live_scores.py",
        "Watch.report",
        "self._passed_over.intersection_update(run.run_id for run in runs)",
        "pass",
        "Frees memory: of runs that are not looked at nothing is asked.",
    ),
    Equivalent(
        "engine/run/scheduler.py",
        "RecipeBackEdges.plan",
        "is_past = before is not None and before.position < retried_at",
        "is_past = before is not None and (before.position <= retried_at)",
        "Between the row of a retry and a back edge stands the failure.",
    ),
    Equivalent(
        "engine/run/scheduler.py",
        "RecipeBackEdges.plan",
        "if rule.goto is None or error is None or error.code in CUT_OFF:",
        "if (rule.goto is None or error.code in CUT_OFF):",
        "What failed has an error; the type allows for none.",
    ),
    Equivalent(
        "engine/run/run_steps.py",
        "RunSteps._is_outdated",
        "return self._has_redone or rows.rows[0].position < self._newest_end",
        "return self._has_redone or (rows.rows[0].position <= self._newest_end)",
        "A row is the beginning of one step or the end of another.",
    ),
    Equivalent(
        "engine/run/walk.py",
        "Routes.choose",
        "if execution is None or not execution.is_complete:",
        "if (not execution.is_complete):",
        "Asked of a step that has ended; the type allows for none.",
    ),
    Equivalent(
        "engine/run/walk.py",
        "Routes._scope",
        "declares_output=True,",
        "declares_output=False,",
        "No execution is made of the trace of a choice.",
    ),
    Equivalent(
        "engine/calls/tool_batch.py",
        "ToolBatch._mismatch",
        "return None # an application's own: what it makes of the arguments only it knows",
        "pass # an application's own: what it makes of the arguments only it knows",
        "It has no such method, which the next lines pass over.",
    ),
    Equivalent(
        "engine/calls/tool_batch.py",
        "ToolBatch._not_as_decided",
        "if replay is None or not isinstance(replay.decisions.get(call.key), Redo):",
        "if (replay is None):",
        "A call that nobody decided has a key that tells what it asks.",
    ),
    Equivalent(
        "engine/calls/tool_batch.py",
        "ToolBatch._not_as_decided",
        "if shown is None or consent_digest(shown.tool, shown.arguments) == consent_digest( "
        "call.request.name, call.request.arguments ):",
        "if (consent_digest(shown.tool, shown.arguments) == consent_digest(call.request.name, "
        "call.request.arguments)):",
        "Only what was begun can be decided; the type allows for none.",
    ),
    Equivalent(
        "engine/history/current_rows.py",
        "visible",
        'if entry.kind == "step" and entry.state != "skipped":',
        "if (entry.state != 'skipped'):",
        "Keys of calls and decisions are longer than those of executions: none is looked up.",
    ),
)

"""The category of a failure: ten kinds that say what may help, whatever the code is.

A code is precise and there are hundreds; a program that reacts to failures asks for the category.
`CATEGORY_OF` is the only table; the column in `docs/reference/errors.md` is made of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Final

RESOURCE_LIMIT: Final = "resource-limit"
"""Code of work that ran out of memory; it is not tried again."""


class FailureCategory(StrEnum):
    """What kind of failure it is."""

    TRANSIENT = "transient"
    """The same call may succeed later: connection lost, server overloaded, database busy."""
    RATE_LIMIT = "rate_limit"
    """There were too many calls; wait as long as the server asks."""
    TIMEOUT = "timeout"
    """A limit of time passed; the work was cancelled."""
    RESOURCE = "resource"
    """A limit of size, memory, money or number was reached."""
    CONTRACT = "contract"
    """What was given or answered does not fit what was declared: recipe, input, output."""
    TOOL = "tool"
    """A tool was called as declared, and failed."""
    PERMISSION = "permission"
    """It is not allowed here, or a person has to decide."""
    REFUSAL = "refusal"
    """The model or its provider declined to answer."""
    TERMINAL = "terminal"
    """The same call fails again until something outside is changed: a key, a model, a server."""
    INTERNAL = "internal"
    """Code raised what nobody expected: the application's, an extension's or the engine's."""


_CODES: Final[Mapping[FailureCategory, str]] = {
    FailureCategory.TRANSIENT: """
        download-failed engine-crashed batch-unknown
        circuit-open model-unreachable model-unavailable empty-response stream-interrupted cut-off
        dispatch-unreachable waits-for-runs
        file-changed fenced lease-held run-active session-went-on run-went-on database-unreachable
        database-lost database-busy database-slow server-overloaded too-many-connections slow-head
        too-many-followers stopping stream-cut mcp-server-ended
    """,
    FailureCategory.RATE_LIMIT: "budget-spent queue-full rate-limited too-many-runs",
    FailureCategory.TIMEOUT: """
        call-ended model-timeout tool-timeout step-timeout ask-timeout sandbox-timeout
    """,
    FailureCategory.RESOURCE: """
        sandbox-cpu sandbox-disk sandbox-memory sandbox-output sandbox-processes request-too-large
        resource-limit limit-reached recipe-limit-reached max-model-calls context-exceeded
        output-truncated response-too-large tool-result-too-large answer-too-large file-too-large
        too-large too-deep too-long too-many-values message-too-long key-too-long body-too-large
        headers-too-large
        while-exhausted disk-full quota-exhausted slow-pattern mcp-server-flooded slow-search
        slow-file
    """,
    FailureCategory.TOOL: """
        code-diverged sandbox-code-failed git-failed too-many-files tool-error tool-failed
        tool-unsuccessful
        tool-result-not-json bad-result no-such-file no-such-root not-a-file file-exists
        no-unique-match not-text bad-changes http-… too-many-redirects damaged-state decided-failed
        mcp-refused mcp-bad-result tool-server bad-parquet bad-pdf encrypted-pdf no-such-column
    """,
    FailureCategory.PERMISSION: """
        sandbox-calls sandbox-denied request-refused permission-denied untrusted-flow
        untrusted-system-text
        untrusted-examples untrusted-policy private-flow private-data
        write-not-allowed not-a-decider
        approval-denied untrusted-words question-declined needs-decision
        decision-needed in-doubt
        call-in-doubt
        not-agreed auth-rejected mcp-login-needed key-not-allowed insecure-base-url
        host-refused address-refused
        redirect-refused reserved-key outside-root outside-project excluded-path file-refused
        secret-refused secret-shown model-refused patience-refused recipe-text-refused plans-refused
        workspace-refused unauthorized wrong-host wrong-origin
        missing-scope missing-role token-expired proxy-refused other-name other-user other-project
        unknown-project input-refused
        open-key-file bad-signature
        open-token-file not-permitted not-writable read-only real-model not-faked
        secret-in-file secret-file protected-path weights-refused
        mcp-tools-changed mcp-program-replaced mcp-not-locked no-person mcp-unknown-asker
        mcp-page-asked
    """,
    FailureCategory.REFUSAL: "refused content-filtered non-recoverable plan-rejected",
    FailureCategory.TERMINAL: """
        given-up child-run-stopped needs-workers journal-key-missing journal-key-wrong
        engine-failed bad-weights bad-address missing-weights
        sandbox-cancelled no-event-loop no-model no-key bad-key unknown-provider unknown-model
        model-not-found
        bad-base-url no-header-value no-long-retention no-such-cache unknown-price unknown-client
        bad-request redirected images-not-taken mcp-needs-handshake
        template-refused
        bad-cassette cassette-miss cassette-refused
        script-exhausted bad-script cancelled no-executor no-sandbox no-recipe folder-gone
        environment system missing-package missing-extra unknown-dbos unknown-database
        newer-database bad-projects pooler-mode replica-behind not-a-replica
        not-a-journal no-wal bad-encoding io-error cannot-open not-a-database port-taken no-folder
        token-file bad-configuration bad-telemetry unknown-extension agent-execution run-failed
        run-rejected run-ended run-over step-failed step-… agent-step-failed loop-failed while-stuck
        no-store no-full-text no-output junit-file unwritable-file unreadable file-not-found no-file
        not-comparable
        recipe-unreadable database-gone undo-unavailable trust-store no-configuration
        mcp-server-failed bad-mcp-lock no-batch-api batch-failed
    """,
    FailureCategory.INTERNAL: """
        sandbox-failed sandbox-unchecked internal run-raised step-raised model-raised
        scripted-error minions-error
        failed bad-link bad-verdict broken-extension recipe-not-checked journal corrupt-entry
        broken-chain corrupt-database duplicate-entry body-not-json unknown-blob stale-snapshot
    """,
    FailureCategory.CONTRACT: """
        mcp-unknown-server mcp-bad-tools
        bad-label not-given-up queue-not-paused
        bad-queue-name unknown-queue queue-in-use no-shared-queues bad-schedule no-schedule
        bad-watch no-watch
        bad-code bad-workspace sandbox-result duplicate-call too-many-tool-calls invalid-output
        low-confidence no-confidence
        malformed-response output-rejected no-tool-call no-server
        not-complete missing-artifacts bad-plan plan-failed no-planner bad-arguments
        missing-param unknown-tool unknown-toolset duplicate-tool
        bad-input assertion-failed missing-value template-failed expression-budget
        loop-not-a-list repeated-step
        not-found usage secret-in-error bad-id bad-path bad-pattern bad-range bad-url bad-csv
        bad-delimiter bad-rows bad-json bad-time bad-search unknown-timezone state-not-json bad-text
        bad-model-name bad-header unknown-link invalid-recipe empty-recipe bad-yaml bad-character
        not-utf-8 several-documents unknown-key duplicate-key missing-key wrong-type bad-value
        bad-context late-constants bad-example no-examples bad-image unknown-redactor bad-redactor
        kind-missing kind-conflict not-supported-yet bad-schema bad-template unknown-template cycle
        bad-metadata bad-graph unknown-scorer duplicate-id duplicate-recipe reserved-name
        name-clash ambiguous-name
        unknown-reference unknown-type unknown-step forward-dependency type-mismatch may-be-skipped
        may-be-missing
        may-not-have-run never-run unreachable-step bad-goto bad-endorsement bad-next-step bad-route
        bad-surprise
        no-choice no-end
        duplicate-successor cache-skips-effect bad-distribution
        unknown-step-class bad-step-arguments unknown-kind unknown-…
        unknown-recipe recipe-not-found bad-reviewer
        bad-recipe recipe-cycle missing-input recipe-needed
        bad-recipe-source literal-secret bad-secret-ref missing-secret short-secret
        bad-answer bad-decision unknown-call unknown-approval other-arguments already-decided
        approval-expired bad-class
        message-recorded
        unknown-batch unknown-run nothing-to-retry nothing-moved moved-and-run other-recipe
        unknown-deployment unknown-version unknown-evaluation other-deployment other-number
        no-live-version is-live no-canary bad-bar bad-name
        other-version other-command other-folder part
        nothing-recorded rolled-back nothing-to-mark bad-note not-editable not-finished
        imported-run plan-run program-run trace-too-long not-captured other-task bad-calls
        not-proved
        not-recorded recorded-failure
        empty-part no-parts no-conversation nothing-pinned not-asked-for unknown-session
        bad-key-file bad-journal-key-file not-encrypted unknown-user
        empty-session session-exists session-differs not-a-conversation bad-message bad-sequence
        sequence-out-of-range sequence-taken unanswered-tool-call nothing-left bad-session-name
        has-forks run-exists bad-archive newer-archive bad-entries empty-extension bad-tool
        bad-tool-name bad-tools bad-limit already-there bad-items no-text empty no-tests
        crash-test-fails crash-own-code bad-story
        only-planned unknown-value no-such-path method-not-allowed bad-body unsupported-parameter
        unknown-method no-push-notifications unsupported-content unsupported-protocol
        not-json bad-query
        bad-last-event-id bad-idempotency-key idempotency-mismatch bad-token bad-origin closed
        run-has-begun
        run-not-over no-body bad-step bad-services executor-needed other-journal agent-not-found
        bad-agent bad-user bad-deadline bad-join bad-request-value no-recipe-host no-request-input
    """,
}


def _by_code() -> Iterator[tuple[str, FailureCategory]]:
    for category, codes in _CODES.items():
        for code in codes.split():
            yield code, category


CATEGORY_OF: Final[Mapping[str, FailureCategory]] = dict(_by_code())
"""Code to category; `…` stands for a number or a state, as in the codes' page."""


def category_of(
    code: str, *, unlisted: FailureCategory = FailureCategory.TERMINAL
) -> FailureCategory:
    """The category of a code.

    Args:
        unlisted: The category of a code of an application's own.
    """
    listed = CATEGORY_OF.get(code)
    if listed is None and "-" in code:
        listed = CATEGORY_OF.get(f"{code.partition('-')[0]}-…")
    return listed or unlisted


_OUTSIDE: Final = frozenset(
    (FailureCategory.TRANSIENT, FailureCategory.RATE_LIMIT, FailureCategory.TIMEOUT)
)
_OUTSIDE_CODES: Final = frozenset(
    {
        *("auth-rejected", "bad-key", "disk-full", "malformed-response", "model-not-found"),
        *("no-key", "quota-exhausted"),
    }
)


def is_outage(code: str, category: FailureCategory) -> bool:
    """Whether a run that failed so says nothing of what its model answers: the server, the account
    or a limit of time is the reason.

    Args:
        category: That of the failure; an application's own code does not tell it.
    """
    return category in _OUTSIDE or code in _OUTSIDE_CODES

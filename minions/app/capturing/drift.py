"""Drift: whether the newest runs of a captured recipe are still what it was captured from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from enum import StrEnum
from statistics import median
from typing import Final

from attrs import field, frozen

from minions.app.capturing.proofs import Proof, prove_recipe
from minions.app.capturing.recorded_traces import traces_of_tests
from minions.app.wiring.configured_runtime import Runtime
from minions.contracts.decision_types import Reject
from minions.contracts.executions import RunStatus, StepStatus, address_of
from minions.contracts.journal.facts import DecisionTaken, StepFailed
from minions.contracts.journal.journal import JournalEntry
from minions.contracts.journal.run_rows import RunFilter, RunRow
from minions.data.failure_categories import FailureCategory, category_of
from minions.data.json_values import JsonValue
from minions.data.texts import shell_word
from minions.engine.history.current_rows import current_rows
from minions.engine.services.event_loop import breathe
from minions.engine.views.run_items import usage_of
from minions.recipe.model import AgentRecipe

MOST_RUNS: Final = 50
"""Runs that are looked at where nobody says another number."""
_KINDS: Final = frozenset({"step", "decision", "run"})
_OFTEN: Final = 0.5
"""Share of runs with a surprise from which on the recipe is not worth extending."""


class Advice(StrEnum):
    """What to do with a captured recipe."""

    KEEP = "keep"
    """Its runs are what it was captured from."""
    EXTEND = "extend"
    """Something else came up that the agent brought to its end."""
    RECAPTURE = "re-capture"
    """Its proof fails, or most runs are another task by now."""


@frozen(kw_only=True)
class SurpriseSeen:
    """One surprise, with the runs in which it came up."""

    step_id: str
    code: str
    message: str
    """What the first of these runs failed with."""
    runs: tuple[str, ...]
    solved: tuple[str, ...]
    """The runs that came to their output all the same."""


@frozen(kw_only=True)
class Drift:
    """What the newest runs of a recipe say of it."""

    recipe: str
    proof: Proof
    runs: int
    statuses: Mapping[str, int]
    surprises: tuple[SurpriseSeen, ...]
    rejected: int
    """Calls that a person rejected."""
    tokens: float | None
    """Median over the runs; None: there are none."""
    tokens_before: float | None
    """Median of the older half of the runs; None: there are none."""
    advice: Advice
    because: str
    next_commands: tuple[str, ...] = field(default=())

    def to_json(self) -> dict[str, JsonValue]:
        """The drift as `--json` prints it."""
        return {
            "recipe": self.recipe,
            "advice": self.advice.value,
            "because": self.because,
            "commands": list(self.next_commands),
            "runs": self.runs,
            "statuses": dict(self.statuses),
            "rejected": self.rejected,
            "tokens": {"median": self.tokens, "older_half": self.tokens_before},
            "surprises": [
                {
                    "step": each.step_id,
                    "code": each.code,
                    "message": each.message,
                    "runs": list(each.runs),
                    "solved": list(each.solved),
                }
                for each in self.surprises
            ],
            "proof": self.proof.to_json(),
        }


async def find_drift(
    recipe: AgentRecipe, runtime: Runtime, *, most: int = MOST_RUNS, file: str
) -> Drift:
    """Look at the newest runs of a recipe, and prove it again.

    Args:
        most: How many runs are looked at.
        file: The recipe's file, for commands.
    Raises:
        UsageError: `not-captured`; the recipe was not captured.
        JournalError: The journal cannot be read.
    """
    traces_of_tests(recipe)
    proof = await prove_recipe(recipe, runtime)
    journal, project = runtime.services.journal, runtime.services.project
    rows = await journal.runs(RunFilter(recipe=recipe.id, project=project), limit=most)
    counted = [each for each in rows if each.ended_at is not None and each.problem is None]
    found: dict[tuple[str, str], list[tuple[str, str, bool]]] = {}
    rejected = 0
    for run in counted:
        entries = await journal.entries(run.session_id, run_id=run.run_id, kinds=_KINDS)
        await breathe()
        now = current_rows(entries)
        rejected += sum(_is_rejection(each) for each in now)
        for step_id, code, message in _surprises(now, recipe):
            solved = run.status in (RunStatus.COMPLETED.value, RunStatus.PARTIAL.value)
            found.setdefault((step_id, code), []).append((run.run_id, message, solved))
    surprises = tuple(
        SurpriseSeen(
            step_id=step_id,
            code=code,
            message=seen[0][1],
            runs=tuple(run for run, _, _ in seen),
            solved=tuple(run for run, _, solved in seen if solved),
        )
        for (step_id, code), seen in sorted(found.items(), key=lambda each: -len(each[1]))
    )
    tokens = [usage_of(each.usage).total_tokens for each in counted]
    older = tokens[len(tokens) // 2 :]
    advice, because, commands = _advice(recipe, proof, surprises, counted, rejected, file)
    return Drift(
        recipe=recipe.id,
        proof=proof,
        runs=len(counted),
        statuses=dict(Counter(str(each.status) for each in counted)),
        surprises=surprises,
        rejected=rejected,
        tokens=median(tokens) if tokens else None,
        tokens_before=median(older) if older else None,
        advice=advice,
        because=because,
        next_commands=commands,
    )


def _is_rejection(row: JournalEntry) -> bool:
    fact = row.fact
    return isinstance(fact, DecisionTaken) and isinstance(fact.decision, Reject)


def _surprises(rows: Sequence[JournalEntry], recipe: AgentRecipe) -> list[tuple[str, str, str]]:
    """The steps that failed for what they were given or got: id, code and message."""
    found = []
    for row in rows:
        fact = row.fact
        if not isinstance(fact, StepFailed) or fact.status != StepStatus.FAILED:
            continue
        code, message = str(fact.error.get("code")), str(fact.error.get("message"))
        is_surprise = category_of(code) in (FailureCategory.CONTRACT, FailureCategory.TOOL)
        if is_surprise and fact.step_id != recipe.on_surprise:
            found.append((address_of(row.key).partition("[")[0], code, message))
    return found


def _advice(
    recipe: AgentRecipe,
    proof: Proof,
    surprises: Sequence[SurpriseSeen],
    runs: Sequence[RunRow],
    rejected: int,
    file: str,
) -> tuple[Advice, str, tuple[str, ...]]:
    surprised = {run for each in surprises for run in each.runs}
    name = shell_word(file)
    if not proof.is_proved:
        return Advice.RECAPTURE, "it is not proved any more: its tools or its text changed", ()
    if not runs:
        return Advice.KEEP, "it is proved, and has not run yet", ()
    if len(surprised) / len(runs) > _OFTEN:
        words = f"{len(surprised)} of {len(runs)} runs came upon what it had never seen"
        return Advice.RECAPTURE, words, ()
    solved = {each.step_id: each.solved[0] for each in surprises if each.solved}
    if solved:
        commands = tuple(
            f"minions capture {run} --extend {name} -o {name}" for run in solved.values()
        )
        words = f"{len(solved)} surprises were brought to their end in another way"
        return Advice.EXTEND, words, commands
    if surprises:
        help_ = "" if recipe.on_surprise else "; `on_surprise` could let the agent continue"
        return Advice.KEEP, f"{len(surprised)} of {len(runs)} runs failed as they should{help_}", ()
    if rejected:
        return Advice.KEEP, f"persons rejected {rejected} of its calls: look at these runs", ()
    return Advice.KEEP, "its runs are what it was captured from", ()

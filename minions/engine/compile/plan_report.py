"""How a plan ended, step by step: for the planner, for programs, and for people.

A step of a plan is several steps of its recipe. What failed is told by the step of the plan, with
the cause that a person looks for: of a test its command, exit code and the end of its output.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, cast

from attrs import evolve

from minions.contracts.executions import StepExecution, StepStatus
from minions.contracts.file_changes import RollbackReport
from minions.data.errors import FailureInfo
from minions.data.json_values import JsonValue
from minions.engine.compile.recipe_step import as_text, bounded

_CHANGING: Final = ("generate", "modify", "cleanup")
_MOST_OUTPUT: Final = 2_000
"""Characters of a command's output, or of a message, that a report tells."""
_MOST_ANSWER: Final = 20_000
"""Characters of an answer that a report tells."""
_MOST_COMMAND: Final = 200
_MOST_TOLD: Final = 5
"""Failed steps that the failure of a plan tells in detail."""
_PARTS: Final = {
    "files": "Its files could not be read: ",
    "run": "Its command could not be run: ",
    "repair": "",
    "": "",
    "verdict": "",
    "changes": "",
    "written": "Its files could not be written: ",
}
"""Steps of the recipe that a step of a plan consists of, by the end of their ids, and what the
failure of each means."""


def plan_report(
    plan: JsonValue, executions: Iterable[StepExecution[object]]
) -> list[dict[str, JsonValue]]:
    """How each step of a plan ended, in the order of the plan.

    Args:
        plan: The plan as JSON.
        executions: Of the plan's recipe: the latest of each of its steps counts.
    """
    ended = list(executions)
    steps = plan.get("steps") if isinstance(plan, Mapping) else ()
    return [
        _StepReport(step, ended).to_json()
        for step in (steps if isinstance(steps, list | tuple) else ())
        if isinstance(step, Mapping)
    ]


def plan_steps(report: Iterable[Mapping[str, JsonValue]]) -> list[Mapping[str, JsonValue]]:
    """The steps as results of runs tell them, each with the same keys."""
    return [{**_TOLD, **{key: each[key] for key in _TOLD if key in each}} for each in report]


_TOLD: Final[Mapping[str, JsonValue]] = {
    **dict.fromkeys(("id", "type", "status")),
    "files": [],
    "answer": None,
    "error": None,
}


class _StepReport:
    """How one step of a plan ended."""

    def __init__(
        self, step: Mapping[str, JsonValue], executions: Iterable[StepExecution[object]]
    ) -> None:
        self._step = step
        self._id = str(step["id"])
        self._latest: dict[str, StepExecution[object]] = {}
        """The latest execution of each of its parts, by the end of its id."""
        self._files: dict[str, None] = {}
        """What it wrote, in order, also for a repair."""
        self._run: Mapping[str, JsonValue] | None = None
        """What the last execution of its command gave; None: it has not ended."""
        for each in executions:
            owner, _, part = each.step_id.partition("__")
            if owner == self._id:
                self._latest[part] = each
                if part == "run" and isinstance(each.output, Mapping):
                    self._run = each.output
                if part == "written" and each.is_complete:
                    self._files |= dict.fromkeys(_paths(each.output))

    def to_json(self) -> dict[str, JsonValue]:
        """The report for programs."""
        told: dict[str, JsonValue] = {"id": self._id, "type": self._step["type"]}
        told["status"] = self._status().value
        if told["status"] == StepStatus.FAILED.value:
            told |= self._failure()
        if self._files:
            told["files"] = list(self._files)
        if (answer := self._answer()) is not None:
            told["answer"] = answer
        if self._step.get("artifacts"):
            told["artifacts"] = self._step["artifacts"]
        return told

    def _answer(self) -> str | None:
        """What it found out: the text of an analysis, a verdict, or what its command printed."""
        if self._step["type"] == "analyze":
            found = self._latest.get("")
        elif self._step["type"] == "validate":
            if self._run is not None:
                return _end(str(self._run.get("output", "")).strip(), _MOST_OUTPUT)
            found = self._latest.get("verdict")
        else:
            return None
        if found is None:
            return None
        output = cast("JsonValue", found.output) if found.output is not None else found.last_text
        return None if output is None else _beginning(as_text(output), _MOST_ANSWER)

    def _status(self) -> StepStatus:
        if any(each.status is StepStatus.FAILED for each in self._latest.values()):
            return StepStatus.FAILED
        last = self._latest.get("written" if self._step["type"] in _CHANGING else "")
        return StepStatus.SKIPPED if last is None else last.status

    def _failure(self) -> dict[str, JsonValue]:
        command = self._step.get("command")
        if not isinstance(command, str) or self._run is None or self._run.get("exit_code") == 0:
            return {"error": "\n".join(self._messages(_PARTS))}
        why = [_command_words(command, self._run)]
        repair = [*self._messages(("files", "repair", "changes", "written"))]
        if repair:
            why.append("Its repair failed: " + "\n".join(repair))
        ran: dict[str, JsonValue] = {"command": command, "exit_code": self._run.get("exit_code")}
        return {"error": "\n".join(why), **ran}

    def _messages(self, parts: Iterable[str]) -> Iterator[str]:
        """Why those of the parts failed that did."""
        for part in parts:
            ended = self._latest.get(part)
            if ended is not None and ended.status is StepStatus.FAILED and ended.error is not None:
                yield f"{_PARTS[part]}{_beginning(ended.error.message, _MOST_OUTPUT)}"


def _paths(output: object) -> Iterator[str]:
    """The paths in what `write_many` gave."""
    files = output.get("files") if isinstance(output, Mapping) else None
    for each in files if isinstance(files, list | tuple) else ():
        if isinstance(each, Mapping):
            yield str(each.get("path"))


def _command_words(command: str, run: Mapping[str, JsonValue]) -> str:
    """The command, how it ended, and the end of what it printed."""
    code, stopped = run.get("exit_code"), run.get("stopped")
    how = f"ended with exit code {code}" if code is not None else f"was stopped: {stopped}"
    output = _end(str(run.get("output", "")).strip(), _MOST_OUTPUT)
    printed = f"\n{output}" if output else " It printed nothing."
    first = _beginning(" ".join(command.split()), _MOST_COMMAND)
    return f"`{first}` {str(how).removesuffix('.')}{':' if output else '.'}{printed}"


def _beginning(text: str, most: int) -> str:
    text = text.strip()
    return text if len(text) <= most else f"{text[:most]}… ({len(text) - most} more characters)"


def _end(text: str, most: int) -> str:
    left_out = len(text) - most
    if left_out <= 0:
        return text
    return f"({left_out} characters before this are left out) …{text[-most:]}"


def report_text(report: Sequence[Mapping[str, JsonValue]]) -> str:
    """The report for the planner."""
    lines: list[str] = []
    for each in report:
        made = each.get("artifacts")
        wrote = f", made {', '.join(map(str, made))}" if isinstance(made, list) else ""
        error = bounded(str(each.get("error", ""))).replace("\n", "\n  ")
        why = f": {error}" if error else ""
        lines.append(f"- {each['id']} ({each['type']}): {each['status']}{wrote}{why}")
    return "\n".join(lines)


def rollback_words(report: RollbackReport) -> str:
    """What a rollback did, for a person."""
    left = [f"{each.path} ({each.outcome.value})" for each in report.files if not each.is_as_before]
    done = sum(each.is_as_before for each in report.files)
    words = f"Rolled back {done} files and folders."
    if left:
        words += f" Left as they are: {', '.join(left)}."
    if report.not_reversible:
        calls = (f"{each.tool} in {each.address}" for each in report.not_reversible)
        words += f" Not reversible: {', '.join(dict.fromkeys(calls))}."
    return words


def plan_failure(
    error: FailureInfo, report: Sequence[Mapping[str, JsonValue]], undone: str
) -> FailureInfo:
    """The failure of a plan, with the ids of its steps and why they failed.

    Args:
        error: The failure of its recipe.
        undone: What a rollback did, for a person; empty: there was none.
    """
    ids = {
        status: [str(each["id"]) for each in report if each["status"] == status]
        for status in ("failed", "completed", "skipped")
    }
    head = (
        f"The plan failed at {', '.join(ids['failed']) or 'its recipe'}. "
        f"Done: {', '.join(ids['completed']) or 'nothing'}. "
        f"Skipped: {', '.join(ids['skipped']) or 'nothing'}."
    )
    causes = [f"Step '{each['id']}': {each['error']}" for each in report if each.get("error")]
    parts = [head, *(causes[:_MOST_TOLD] or [error.message]), undone]
    message = "\n".join(filter(None, parts))
    return evolve(error, code="plan-failed", message=message, where=_where(error, ids["failed"]))


def _where(error: FailureInfo, failed: Sequence[str]) -> str | None:
    """The place of the step of the plan, where that of a step of its recipe is told."""
    outer, slash, inner = (error.where or "").rpartition("/")
    owner = inner.partition("__")[0]
    return f"{outer}{slash}{owner}" if owner in failed else error.where

"""A run's result as JSON, as text, and as an exit code."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

from minions.contracts.executions import AgentResult, RunStatus, StepExecution, StepStatus
from minions.contracts.messages import TokenUsage, usage_document
from minions.data.codec import encode
from minions.data.errors import EnvironmentRefusedError
from minions.data.json_values import JsonValue
from minions.interfaces.cli.console.console import json_text
from minions.interfaces.cli.console.render import dollars, painter

if TYPE_CHECKING:
    from minions.engine.views.output_rungs import RungCount

EXIT_CODES: Final = {
    RunStatus.COMPLETED: 0,
    RunStatus.PARTIAL: 0,
    RunStatus.FAILED: 1,
    RunStatus.NEEDS_DECISION: 3,
    RunStatus.LIMIT_REACHED: 5,
    RunStatus.CANCELLED: 130,
}


def result_to_json(result: AgentResult[object]) -> dict[str, JsonValue]:
    """The result as JSON; these keys are stable."""
    return {
        "run_id": result.run_id,
        "session_id": result.session_id,
        "recipe": result.recipe_id,
        "status": result.status.value,
        "model": result.model_name,
        "output": encode(result.output),
        "steps": [_step_to_json(execution) for execution in result.executions],
        **({"plan": list(result.plan)} if result.plan else {}),
        "usage": usage_document(result.usage, result.discarded_usage),
        "error": dict(result.error.to_document()) if result.error else None,
        "warnings": [{"code": item.code, "message": item.message} for item in result.warnings],
    }


def _step_to_json(execution: StepExecution[object]) -> dict[str, JsonValue]:
    return {
        "id": execution.step_id,
        "status": execution.status.value,
        "reason": execution.reason,
        "output": encode(execution.output),
        "error": dict(execution.error.to_document()) if execution.error else None,
        "model_calls": len(execution.model_calls),
        "tool_calls": len(execution.tool_calls),
        "attempts": execution.attempts,
        "usage": execution.usage.to_json(),
        "duration_ms": execution.duration_ms,
        "cached_from": execution.cached_from,
        "pinned_from": execution.pinned_from,
        "partial": execution.is_partial,
        **({"sandbox": execution.sandbox} if execution.sandbox is not None else {}),
        "iterations": [_iteration_to_json(each) for each in execution.iterations],
    }


def _iteration_to_json(execution: StepExecution[object]) -> dict[str, JsonValue]:
    return {
        "status": execution.status.value,
        "output": encode(execution.output),
        "error": dict(execution.error.to_document()) if execution.error else None,
        "usage": execution.usage.to_json(),
    }


def output_text(output: object) -> str:
    """The output as it is printed: a text as it is, everything else as JSON."""
    value = encode(output)
    return value if isinstance(value, str) else json_text(value, indent=2)


def summary_lines(
    result: AgentResult[object], paint: painter, time: str | None = None
) -> Iterator[str]:
    """Lines on how the run ended, what it used, and what went wrong.

    Args:
        time: How long it took, for people; None: that is not said.
    """
    used = usage_document(result.usage, result.discarded_usage)
    color = {0: "green", 5: "yellow"}.get(EXIT_CODES[result.status], "red")
    counts = " · ".join(
        part
        for part in (_counted_steps(result), time, usage_text(result.usage), discarded_text(used))
        if part
    )
    yield f"{paint(result.status.value, color)} · {counts}"
    if result.error is not None:
        where = result.error.where
        where = f" ({'step ' if where in result.step_ids else ''}{where})" if where else ""
        yield f"{paint(f'error[{result.error.code}]', 'red')}: {result.error.message}{where}"
    for warning in result.warnings:
        yield f"{paint(f'warning[{warning.code}]', 'yellow')}: {warning.message}"


def recorded_usage_text(usage: Mapping[str, JsonValue]) -> str:
    """The usage of a recorded run in words; empty: it used no tokens."""
    count = usage.get("total_tokens")
    if not (isinstance(count, int) and count):
        return ""
    parts = [f"{count} tokens", _dollars_of(usage.get("cost_usd")), discarded_text(usage)]
    return " · ".join(filter(None, parts))


def rung_words(count: RungCount) -> str:
    """How many answers of a rung were valid, and what they took."""
    price = "" if count.cost_usd is None else f", {dollars(count.cost_usd)}"
    return f"{count.rung} {count.valid} of {count.calls} valid ({count.tokens} tokens{price})"


def discarded_text(usage: Mapping[str, JsonValue]) -> str:
    """The part of a run's usage that belongs to no step of its result; empty: none does."""
    count = usage.get("discarded_tokens")
    if not (isinstance(count, int) and count):
        return ""
    cost = _dollars_of(usage.get("discarded_cost_usd"))
    return f"{count} tokens{f' ({cost})' if cost else ''} of it in discarded parts"


def _dollars_of(cost: JsonValue) -> str:
    return dollars(cost) if isinstance(cost, int | float) else ""


def usage_text(usage: TokenUsage) -> str:
    """Tokens and cost in words; an unknown cost is called unknown."""
    if usage.total_tokens == 0:
        return "no tokens"
    cost = "unknown" if usage.cost_usd is None else dollars(usage.cost_usd)
    return f"{usage.input_tokens} in + {usage.output_tokens} out tokens · cost {cost}"


def _word_for(execution: StepExecution[object]) -> str:
    """The status of an execution, or `pinned` or `cached` if it took no work."""
    if execution.pinned_from is not None:
        return "pinned"
    if execution.status is StepStatus.IN_PROGRESS:
        return "waiting"
    if execution.is_partial:
        return "partial"
    return "cached" if execution.cached_from is not None else execution.status.value


def _counted_steps(result: AgentResult[object]) -> str:
    by_status: dict[str, int] = {}
    for at in result.step_ids.values():  # of a step with several executions the last one counts
        word = _word_for(result.executions[at])
        by_status[word] = by_status.get(word, 0) + 1
    return ", ".join(f"{count} {status}" for status, count in by_status.items()) or "no steps"


# --- files that are written as a whole, so that no reader finds a part of one --------------------


def write_whole(path: Path, content: bytes) -> None:
    """Write the file whole or not at all; a link is followed, and the rights of a file stay.

    Raises:
        OSError: It cannot be written; what was there is unchanged.
    """
    target = path.resolve()
    if target.exists() and not target.is_file():  # such as /dev/stdout: nothing can take its place
        target.write_bytes(content)
        return
    with _part_of(target) as (part, stream):
        stream.write(content)
        stream.close()
        if target.exists():
            part.chmod(target.stat().st_mode & 0o777)
        part.replace(target)


@contextmanager
def _part_of(target: Path) -> Iterator[tuple[Path, BinaryIO]]:
    """A new file beside the target, which is gone at the end unless it was moved."""
    part = target.with_name(f".{target.name[:100]}.part-{os.getpid()}")
    opened = os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
    try:
        with os.fdopen(opened, "wb") as stream:
            yield part, stream
    finally:
        part.unlink(missing_ok=True)


def check_writable(path: Path, option: str, *, code: str) -> None:
    """Refuse a file that could not be written later; nothing of it changes.

    Args:
        option: How the user named it, for the message.
    Raises:
        EnvironmentRefusedError: With that code.
    """
    try:
        _try(path)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise EnvironmentRefusedError(
            f"{option} {path}: it cannot be written: {reason}. Nothing was started.", code=code
        ) from error


def _try(path: Path) -> None:
    target = path.resolve()
    if target.is_dir():
        raise IsADirectoryError(0, "it is a folder")
    if target.exists() and not os.access(target, os.W_OK):
        raise PermissionError(0, "it may not be changed")
    if target.is_file() or not target.exists():
        with _part_of(target):
            pass

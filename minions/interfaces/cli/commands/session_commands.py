"""`minions sessions`: shows, follows and marks runs and sessions; the rest is beside it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Final, TextIO, cast

import click
from attrs import evolve, frozen

from minions.app.runs.remote_deltas import remote_deltas, remote_deltas_of
from minions.app.runs.work_lists import RunHindrance
from minions.app.wiring.logs import make_log
from minions.contracts.executions import RunState
from minions.contracts.journal.journal import Journal, JournalEntry
from minions.contracts.run_events import RunCompleted, RunEvent, RunFailed, RunWaiting
from minions.contracts.session_views import Session, SessionStep
from minions.data.codec import encode
from minions.data.errors import UsageError
from minions.data.json_values import JsonValue, as_array, as_count, as_object, as_objects
from minions.data.texts import shell_word, spoken
from minions.engine.compile.prompt_sections import section_words
from minions.engine.services.run_services import Services
from minions.engine.services.secret_sources import environment_and_files
from minions.engine.sessions.marking import Verdict, mark_run
from minions.engine.sessions.store import StepRepository
from minions.engine.views.child_run_states import ChildRun, ChildRunStates
from minions.engine.views.lookup import REJECTED, find_run
from minions.engine.views.output_rungs import RungCount
from minions.engine.views.run_detail import RunDetail, SentPrompt, StepSummary, show_run
from minions.engine.views.run_notes import RunNote
from minions.engine.views.run_summary import RunSummary
from minions.engine.views.step_details import StepDetail, require_step
from minions.engine.views.stored_events import StoredEvents
from minions.interfaces.cli.commands.personal_data_commands import rekey
from minions.interfaces.cli.commands.session_archives import export, gc, import_, rm, verify
from minions.interfaces.cli.commands.session_lists import diff, list_
from minions.interfaces.cli.console.console import counted, hanging, json_text, log_line, say, tell
from minions.interfaces.cli.console.live_progress import item_lines
from minions.interfaces.cli.console.printed_results import (
    EXIT_CODES,
    output_text,
    recorded_usage_text,
    rung_words,
)
from minions.interfaces.cli.console.render import faults_lines, painter
from minions.interfaces.cli.options import (
    CommandContext,
    DatabaseOption,
    command_context,
    naming_the_journal,
    option,
    takes_options,
)
from minions.interfaces.cli.queue_options import hindrance_lines, run_hindrance, tell_worker
from minions.interfaces.cli.run_follower import EventPrinter, progress_of, refuse_two_outputs
from minions.interfaces.cli.session_choice import (
    find_session,
    is_session_named,
    message_text,
    what_it_cost,
)

_ENDS: Final = (RunCompleted, RunWaiting, RunFailed)


@frozen(kw_only=True, slots=False, eq=False, repr=False)
class _FollowOptions(DatabaseOption):
    """How events are printed, and where the journal is."""

    events: bool = option("--events", is_flag=True, help="Print one JSON event per line.")


@click.command("follow")
@click.argument("name", metavar="RUN")
@takes_options(_FollowOptions)
def follow(options: _FollowOptions, name: str) -> int:
    """Show what was stored of RUN and what other processes store, until it ends or waits.

    The result goes to standard output, and the exit code is that of the run, as for `minions run`.
    Ctrl-C ends the following alone.
    """
    context = command_context(options)
    refuse_two_outputs(context.settings)
    return asyncio.run(_follow(context, name, sys.stdout))


async def _follow(context: CommandContext, name: str, out: TextIO) -> int:
    journal = context.known_journal()
    try:
        with naming_the_journal(context):
            run = await find_run(journal, name)
            if run.status != REJECTED:
                await _show_events(context, journal, run, out)
            detail = await show_run(journal, await find_run(journal, run.run_id))
        return _report(context, detail, out)
    finally:
        await journal.aclose()


async def _show_events(
    context: CommandContext, journal: Journal, run: RunSummary, out: TextIO
) -> None:
    """Until an event after which nobody executes the run."""
    progress, printer = progress_of(context), EventPrinter(out)

    def show(event: RunEvent) -> None:
        progress.on_event(event)
        if context.settings.events:
            printer(event)

    stored = StoredEvents(journal, run.session_id, run.run_id)
    try:
        async with (
            _deltas(context, journal, run, show) as note_stored,
            contextlib.aclosing(stored.follow()) as events,
        ):
            async for event in events:
                show(event)
                note_stored(event)
                if printer.error is not None:
                    raise printer.error
                if isinstance(event, _ENDS) and await _is_last(journal, event, run):
                    return
    finally:
        progress.close()


@contextlib.asynccontextmanager
async def _deltas(
    context: CommandContext, journal: Journal, run: RunSummary, show: Callable[[RunEvent], None]
) -> AsyncIterator[Callable[[RunEvent], None]]:
    """Show the pieces of answers within the block, each in its place among the stored events.

    Gives what has to be told of each stored event after it was shown.
    """
    log = make_log(context.settings, log_line)
    remote = remote_deltas(context.settings, journal, log, environment_and_files)
    try:
        deltas = remote_deltas_of(remote, run.session_id, show, run_id=run.run_id)
        async with deltas as note_stored:
            yield lambda event: note_stored(event.position, getattr(event, "address", None))
    finally:
        if remote is not None:
            await remote.aclose()


async def _is_last(journal: Journal, event: RunEvent, run: RunSummary) -> bool:
    """Whether the run was not resumed since."""
    newest = await journal.entries(
        run.session_id, run_id=run.run_id, kinds={"run"}, limit=1, newest_first=True
    )
    return bool(newest) and newest[0].position == event.position


def _report(context: CommandContext, detail: RunDetail, out: TextIO) -> int:
    run = detail.summary
    if context.settings.json:
        say(json_text(encode(detail)), out)
    elif not context.settings.events and detail.output is not None:
        say(output_text(detail.output), out, is_output=True)
    database, _ = context.flags_again
    tell(
        f"{run.run_id} · {run.status} · see it: "
        f"minions sessions show {shell_word(run.run_id)}{database}"
    )
    return next((code for status, code in EXIT_CODES.items() if status == run.status), 1)


_FILES_SHOWN: Final = 5
_READ_SHARE: Final = 0.8
"""A server that reads less than so much of what was to be expected has lost some of it; its tokens
are counted in other steps than ours are estimated."""
"""Changed files that are named."""


@click.group("sessions")
def sessions_command() -> None:
    """List, show, mark and compare runs and sessions; export, import and remove them."""


for each in (list_, follow, diff, verify, export, import_, rm, gc, rekey):
    sessions_command.add_command(each)


@sessions_command.command("show")
@click.argument("name", metavar="ID")
@click.argument("address", required=False, metavar="[ADDRESS]")
@click.option("--messages", is_flag=True, help="Show every message, too.")
@click.option("--items", is_flag=True, help="Show every item of long loops, too.")
@click.option("--cache", is_flag=True, help="Show what servers read from their caches of prompts.")
@takes_options(DatabaseOption)
def show(
    options: DatabaseOption,
    name: str,
    address: str | None,
    *,
    messages: bool,
    items: bool,
    cache: bool,
) -> int:
    """Show one run, or a session with its messages: ID is a run's or a session's.

    A unique start of an id is enough. A session without messages means its last run. ADDRESS
    shows one step or item of a run with all its messages: `each[2]`, `sub[1]/each[2]`.
    """
    context = command_context(options)
    if address is not None:
        step = asyncio.run(_show_step(context, name, address))
        if context.settings.json:
            say(json_text(encode(step)))
        for line in () if context.settings.json else _detail_lines(step, shows_cache=cache):
            say(line)
        return 0
    found, hindrance = asyncio.run(_show(context, name))
    if context.settings.json:
        say(json_text(found.to_json() if isinstance(found, SessionDetail) else encode(found)))
        return 0
    if isinstance(found, SessionDetail):
        lines = found.lines()
    else:
        lines = _lines(found, hindrance, messages=messages, shows_all=items, shows_cache=cache)
    for line in lines:
        say(line)
    if hindrance is not None:
        tell_worker(context, hindrance)
    return 0


async def _show(
    context: CommandContext, name: str
) -> tuple[RunDetail | SessionDetail, RunHindrance | None]:
    """The run or session, and of a queued run what keeps workers from it."""
    journal = context.known_journal()
    try:
        with naming_the_journal(context):
            if (session := await find_session_detail(journal, name)) is not None:
                return session, None
            run = await find_run(journal, name)
        detail = await show_run(journal, run)
        if run.status not in (RunState.QUEUED, RunState.INTERRUPTED):
            return detail, None
        found = await run_hindrance(context, journal, run.run_id)
        detail = evolve(detail, lacks=found.lacks, paused=found.not_taken, takers=found.takers)
        return detail, found
    finally:
        await journal.aclose()


async def _show_step(context: CommandContext, name: str, address: str) -> StepDetail:
    journal = context.known_journal()
    try:
        with naming_the_journal(context):
            run = await find_run(journal, name)
        return await require_step(journal, run, address)
    finally:
        await journal.aclose()


def _detail_lines(step: StepDetail, *, shows_cache: bool) -> Iterator[str]:
    yield hanging(_step_line(step.summary))
    yield from _prompt_lines(step.prompts)
    if shows_cache:
        yield from _cache_lines(step.prompts)
    for message in step.messages:
        yield from _message_lines(step.summary.step_id, message)
    error = step.summary.facts.get("error")
    if isinstance(error, Mapping):
        yield f"error[{error.get('code')}]: {error.get('message')}"
    if step.summary.output is not None:
        yield "output:"
        yield output_text(step.summary.output)


def _use(detail: RunDetail) -> Iterator[str]:
    """The files that the run changed, and what its model calls used."""
    run = detail.summary
    if detail.changed_files:
        yield hanging(
            f"changed {_some(detail.changed_files)} · undo: "
            f"minions rollback {shell_word(run.run_id)}"
        )
    if used := recorded_usage_text(run.usage):
        yield f"used {used}"


def _lines(
    detail: RunDetail,
    hindrance: RunHindrance | None,
    *,
    messages: bool,
    shows_all: bool,
    shows_cache: bool,
) -> Iterator[str]:
    run = detail.summary
    yield f"{run.run_id} · session {run.session_id}"
    version = "" if run.digest is None else f" · version {run.version} ({run.digest})"
    yield f"recipe {run.recipe}{version} · model {run.model or 'none'} · {run.status}"
    yield f"started {run.started_at:%Y-%m-%d %H:%M:%S}Z"
    if detail.worker is not None:
        yield f"executed by {detail.worker}"
    if hindrance is not None:
        yield from hindrance_lines(hindrance)
    if detail.resumes_at is not None:
        yield f"resumes at {detail.resumes_at:%Y-%m-%d %H:%M:%S}Z"
    yield from _use(detail)
    if detail.inputs:
        yield f"inputs {json.dumps(detail.inputs, ensure_ascii=False)}"
    shown: list[StepSummary | RunNote] = [*detail.steps, *detail.notes]
    for one in sorted(shown, key=lambda one: one.position):
        line = _step_line(one) if isinstance(one, StepSummary) else f"- {_note_line(one)}"
        indent = f"  {'  ' * _depth(one)}"
        yield hanging(f"{indent}{line}")
        if isinstance(one, StepSummary):
            yield from _lines_below(detail, one.step_id, f"{indent}  ", shows_all=shows_all)
    yield from _prompt_lines(detail.prompts)
    if shows_cache:
        yield from _cache_lines(detail.prompts)
    yield from _rung_lines(detail.rungs)
    if messages:
        for step_id, message in detail.messages:
            yield from _message_lines(step_id, message)
    if detail.faults:
        yield from faults_lines(detail.faults, painter(is_on=False))
    elif detail.error is not None:
        error = as_object(detail.error)
        yield f"error[{error.get('code')}]: {error.get('message')}"
    if detail.output is not None:
        yield "output:"
        yield output_text(detail.output)


def _lines_below(detail: RunDetail, step_id: str, indent: str, *, shows_all: bool) -> Iterator[str]:
    """The items or the child runs of the step."""
    loop, children = detail.loops.get(step_id), detail.child_runs.get(step_id)
    if loop is not None and loop.totals.total is not None:  # attempts of a `while` are steps
        yield from item_lines(step_id, loop, indent, shows_all=shows_all)
    for line in child_run_lines(children) if children is not None else ():
        yield hanging(f"{indent}{line}")


def _some(files: Sequence[str]) -> str:
    left = len(files) - _FILES_SHOWN
    shown = ", ".join(files[:_FILES_SHOWN])
    return f"{shown} and {left} more" if left > 0 else shown


def _prompt_lines(prompts: Sequence[SentPrompt]) -> Iterator[str]:
    """For each step the input tokens of all its calls, by section."""
    steps: dict[str, list[SentPrompt]] = {}
    for each in prompts:
        steps.setdefault(each.step_id, []).append(each)
    if steps:
        yield "prompts:"
    for step_id, calls in steps.items():
        for each in calls:
            if each.cached_from is not None:
                yield f"  {step_id}: answer from the cache, of {each.cached_from}"
        for batch, count in Counter(each.batch for each in calls if each.batch).items():
            yield f"  {step_id}: {counted(count, 'answer')} in batch {batch}"
        sent = [each.sections for each in calls if each.cached_from is None]
        if sent:
            yield hanging(f"  {step_id}{_sent_words(sent)}")


def _cache_lines(prompts: Sequence[SentPrompt]) -> Iterator[str]:
    """For each call what its server read from its cache of prompts, and where its prompt departs
    from an earlier one.
    """
    sent = [each for each in prompts if each.cached_from is None]
    asked, read = (
        sum(each.input_tokens for each in sent),
        sum(each.cache_read_tokens for each in sent),
    )
    share = f" ({100 * read // asked} %)" if asked else ""
    yield f"cache of prompts: {read:,} of {asked:,} input tokens were read from it{share}"
    for each in sent:
        yield hanging(f"  {each.address}: {_cache_words(each)}")


def _cache_words(prompt: SentPrompt) -> str:
    prefix = prompt.prefix
    expected, written = (
        int(as_count(prefix.get(f"{name}_tokens") or 0)) for name in ("expected", "written")
    )
    words = [f"{prompt.input_tokens:,} in", f"{prompt.cache_read_tokens:,} read"]
    if expected:
        words.append(f"{expected:,} expected")
    if written:
        words.append(f"{written:,} stored")
    if expected and prompt.cache_read_tokens < expected * _READ_SHARE:
        words.append("the server has dropped it, or another of its machines was asked")
    differs, after = prefix.get("differs"), prefix.get("after")
    if differs is not None:
        words.append(f"differs from {after or 'the call before'} in {differs}")
    if lost := int(as_count(prefix.get("lost_tokens") or 0)):
        words.append(f"{lost:,} equal tokens behind that are paid again")
    return " · ".join(words)


def _rung_lines(rungs: Sequence[RungCount]) -> Iterator[str]:
    """How outputs were asked for, of steps where the first answer was not the output."""
    mended = {each.step_id for each in rungs if each.valid < each.calls}
    if mended:
        yield "outputs:"
    for step_id in dict.fromkeys(each.step_id for each in rungs if each.step_id in mended):
        own = [each for each in rungs if each.step_id == step_id]
        yield hanging(f"  {step_id}: {', '.join(map(rung_words, own))}")


def _sent_words(sent: Sequence[Mapping[str, JsonValue]]) -> str:
    sections: Counter[str] = Counter()
    for each in sent:
        sections.update({name: int(as_count(n)) for name, n in each.items()})
    calls = f" in {len(sent)} calls" if len(sent) > 1 else ""
    return f"{calls}: {section_words(sections)}"


def _depth(one: StepSummary | RunNote) -> int:
    """The level of indentation: steps of a recipe step and iterations are below their step."""
    is_attempt = isinstance(one, StepSummary) and "index" in one.facts
    return one.step_id.count("/") + is_attempt


def _step_line(step: StepSummary) -> str:
    duration = step.facts.get("duration_ms")
    pinned, cached = step.facts.get("pinned_from"), step.facts.get("cached_from")
    is_waiting = step.is_waiting or step.waits_for_runs
    status = "waits" if is_waiting else step.status
    parts = [f"{step.step_id}: {'pinned' if pinned else 'cached' if cached else status}"]
    if pinned or cached:
        parts.append(f"from {pinned or cached}")
    elif isinstance(duration, int | float):
        parts.append(spoken(duration))
    if attempts := step.retried_attempts:
        parts.append(f"{attempts} attempts")
    if step.reason and not is_waiting:  # the next line says what it waits for
        parts.append(step.reason)
    if "next" in step.facts:
        parts.append(f"then {step.facts['next']}: {step.facts['next_because']}")
    return " · ".join(parts)


def _note_line(note: RunNote) -> str:
    facts = note.facts
    if note.kind == "goto":
        return f"{note.step_id} failed: back to {facts['to']} ({facts['attempt']})"
    if note.kind == "file_rollback":
        return _rollback_words(note)
    if note.kind == "plan" and note.state == "looked_up":
        return f"{note.step_id}: {facts['text']}"
    if note.kind == "plan":
        counts = "".join(str(facts["text"]).splitlines()[1:2]).strip()
        return f"{note.step_id}: planned again: {counts}"
    if note.kind == "route":
        return f"{note.step_id}: the next step could not be chosen: {facts.get('reason')}"
    if note.kind == "mark":
        return _mark_words(note)
    if note.kind == "score":
        return _score_words(note)
    if note.kind == "warning":
        return f"warning[{facts['code']}]: {facts['message']}"
    if note.kind == "prompt_cache":
        return _stored_prefix_words(note)
    if note.kind == "examples":
        return _example_words(note)
    if note.kind == "recipe":
        return _version_words(note)
    return f"{note.step_id}: {_decision_words(note)}"


def _score_words(note: RunNote) -> str:
    facts = note.facts
    value, reason = facts.get("value"), facts.get("reason")
    said = "no score" if value is None else f"{value:g}"
    where = ", given elsewhere" if note.state == "imported" else ""
    return f"{facts['scorer']}: {said}{where}" + (f": {reason}" if reason else "")


def _stored_prefix_words(note: RunNote) -> str:
    facts = note.facts
    words = f"{facts['model']}: a beginning of prompts was {note.state}"
    if note.state == "made":
        words += f" as {facts['name']}: {facts['tokens']:,} tokens for {facts['ttl_s']:g} s"
    elif note.state == "lost":
        words += f" ({facts['reason']})"
    cost = facts.get("cost_usd")
    return words if cost is None else f"{words}, ${cost:.4g}"


def _example_words(note: RunNote) -> str:
    examples = as_objects(note.facts.get("examples") or [])
    if not examples:
        return f"{note.step_id}: no recorded run gives an example yet"
    count = f"{len(examples)} example{'s' if len(examples) > 1 else ''}"
    origins = ", ".join(f"{each['run']} {each['address']}" for each in examples)
    return f"{note.step_id}: shown {count} from {origins}"


def _version_words(note: RunNote) -> str:
    facts = note.facts
    by = f" · by {facts['by']}" if facts.get("by") else ""
    if note.state == "pinned":
        return f"it stays with the version of its recipe{by}"
    back = "back " if note.state == "moved_back" else ""
    again = ", ".join(map(str, as_array(facts.get("anew") or ())))
    begins = f" · begins again: {again}" if again else ""
    return f"moved {back}to version {facts.get('version')} of its recipe{begins}{by}"


def _mark_words(note: RunNote) -> str:
    facts = note.facts
    where = " where it was exported from" if note.state == "imported" else ""
    by = f" · by {facts['by']}" if facts.get("by") else ""
    because = f" · {' '.join(str(facts['note']).split())}" if facts.get("note") else ""
    return f"{note.step_id or 'the run'} is marked {facts['verdict']}{where}{because}{by}"


def _rollback_words(note: RunNote) -> str:
    facts = note.facts
    what = f"work of {facts['within']}" if facts.get("within") else "run"
    at = datetime.fromisoformat(str(facts["at"]))
    if note.state == "started":
        return f"the rollback of this {what} was begun {at:%Y-%m-%d %H:%M:%S}Z and did not end"
    files = as_objects(facts["files"])
    counts = Counter(str(each.get("outcome")).replace("_", " ") for each in files)
    told = ", ".join(f"{count} {outcome}" for outcome, count in counts.items())
    return f"this {what} was rolled back {at:%Y-%m-%d %H:%M:%S}Z: {told}"


def _decision_words(note: RunNote) -> str:
    facts = note.facts
    call = f"{facts.get('tool')}({facts.get('arguments')})"
    by = f" · by {facts['by']}" if facts.get("by") else ""
    if note.state == "waiting" and facts.get("what") == "approval":
        return f"needs approval: {call}"
    if note.state == "waiting":
        return f"asks: {' '.join(str(facts.get('question')).split())}"
    if note.state in ("answer", "default"):
        who = "answered" if note.state == "answer" else "no answer in time; the default is"
        return f"{who} {json.dumps(facts.get('answer'), ensure_ascii=False)}{by}"
    edited = f" · edited to {facts['edited_arguments']}" if "edited_arguments" in facts else ""
    because = f" · {facts['reason']}" if facts.get("reason") else ""
    return f"{_DECIDED.get(note.state, note.state)}: {call}{because}{edited}{by}"


_DECIDED: Final = {
    "approve": "approved",
    "reject": "rejected",
    "redo": "to be called again",
    "done": "declared done",
    "fail": "declared failed",
}
"""The decisions on a call, in words."""


def _message_lines(step_id: str, message: Mapping[str, JsonValue]) -> Iterator[str]:
    yield f"[{step_id}] {message.get('role')}:"
    if message.get("reasoning"):
        yield f"  thinks: {message['reasoning']}"
    if message.get("content"):
        yield f"  {message['content']}"
    for call in as_objects(message.get("tool_calls") or []):
        yield f"  calls {json.dumps(call.get('function', call), ensure_ascii=False)}"


@sessions_command.command("mark")
@click.argument("name", metavar="RUN")
@click.argument("verdict", type=click.Choice(["good", "bad"]))
@click.option(
    "--step",
    "address",
    metavar="ADDRESS",
    help="Only the output of this step or item: `sort`, `each[2]`, `sub[1]/each[2]`.",
)
@click.option("--note", metavar="TEXT", help="Why; shown with the run.")
@takes_options(DatabaseOption)
def mark(
    options: DatabaseOption, name: str, verdict: str, *, address: str | None, note: str | None
) -> int:
    """Mark the outputs of RUN, or of one of its steps, as good or bad.

    Good outputs can be examples for later runs: `examples: {from: journal}`. The last mark counts,
    and earlier ones stay on record. Where a step is run again, its new output is not marked.
    """
    context = command_context(options)
    entry = asyncio.run(_mark(context, name, cast("Verdict", verdict), address=address, note=note))
    if context.settings.json:
        place = {"run_id": entry.run_id, "session_id": entry.session_id}
        say(json_text({**place, "position": entry.position, "mark": dict(entry.body)}))
    again = "".join(context.flags_again)
    what = f"{address} of {entry.run_id}" if address is not None else entry.run_id
    tell(
        f"{what} is marked {verdict} · show: "
        f"minions sessions show {shell_word(entry.run_id)}{again}"
    )
    return 0


async def _mark(
    context: CommandContext, name: str, verdict: Verdict, *, address: str | None, note: str | None
) -> JournalEntry:
    if context.settings.no_store:
        raise UsageError("Without a journal there is no run to mark: leave out --no-store.")
    journal = context.known_journal()
    try:
        with naming_the_journal(context):
            services = Services(journal=journal)
            return await mark_run(services, name, verdict, address=address, note=note)
    finally:
        await journal.aclose()


@frozen(kw_only=True)
class SessionDetail:
    """A session with its messages, and the other sessions of its fork tree."""

    session: Session
    steps: Sequence[SessionStep]
    tree: Sequence[Session]
    """All sessions of the fork tree, parents first."""

    def to_json(self) -> dict[str, JsonValue]:
        """The session as `--json` prints it."""
        return {
            "session": self.session.to_json(),
            "steps": [step.to_json() for step in self.steps],
            "tree": [each.to_json() for each in self.tree],
        }

    def lines(self) -> Iterator[str]:
        """The session as lines of text."""
        session = self.session
        name = f" ({session.name})" if session.name and session.name != session.id else ""
        yield f"session {session.id}{name} · recipe {session.recipe or 'none'}"
        if session.last_run_id is not None:
            yield f"last run {session.last_run_id} · {session.status}"
        yield f"{len(self.steps)} messages · {what_it_cost(self.steps)}"
        for step in self.steps:
            yield hanging(f"{step.sequence:>4}  {_line(step)}")
        if len(self.tree) > 1:
            yield "branches:"
            yield from self._branches()

    def _branches(self) -> Iterator[str]:
        depth = {self.tree[0].id: 0}
        for each in self.tree:
            parent = each.parent_session_id or ""
            depth[each.id] = depth.get(parent, -1) + 1
        for each in _by_branch(self.tree):
            at = f" at {each.forked_at_sequence}" if each.parent_session_id in depth else ""
            mark = "  ← this one" if each.id == self.session.id else ""
            yield f"  {'  ' * depth[each.id]}{each.id}{at}{mark}"


def _by_branch(tree: Sequence[Session]) -> Iterator[Session]:
    """The sessions of a tree, each directly below its parent."""
    forks: dict[str | None, list[Session]] = {}
    for each in tree[1:]:
        forks.setdefault(each.parent_session_id, []).append(each)
    pending = [tree[0]]
    while pending:
        each = pending.pop()
        yield each
        pending += reversed(forks.get(each.id, []))


def _line(step: SessionStep) -> str:
    who = f"{step.role} {step.name}" if step.is_tool_step() and step.name else str(step.role)
    return f"{who}: {message_text(step)}"


async def find_session_detail(journal: Journal, name: str) -> SessionDetail | None:
    """The session with that name or id, if it has messages; None: it has none, or the id is a
    run's.

    Raises:
        UsageError: Several sessions have it.
    """
    if not await is_session_named(journal, name):
        return None
    session = await find_session(journal, name)
    repository = StepRepository(Services(journal=journal))
    steps = await repository.get_steps(session.id)
    if not steps:
        return None
    return SessionDetail(
        session=session, steps=steps, tree=await repository.list_fork_tree(session.id)
    )


# --- the child runs of a distributed step, in words for the terminal -----------------------------


def child_run_lines(children: ChildRunStates) -> Iterator[str]:
    """A line with the counts by state, and a line for each of the first that failed or wait."""
    yield _totals(children)
    for each in children.listed:
        yield _describe_child(each)
    if children.unlisted:
        yield f"and {children.unlisted} more"


def _totals(children: ChildRunStates) -> str:
    count = sum(children.counts.values())
    runs = f"{count} child run{'' if count == 1 else 's'}"
    if children.total is not None and count < children.total:
        runs += f" of {children.total} items"
    states = ", ".join(f"{number} {status}" for status, number in children.counts.items())
    return f"{runs}: {states}" if states else runs


def _describe_child(child: ChildRun) -> str:
    reason = f" · {' '.join(child.reason.split())}" if child.reason else ""
    return f"{child.address}: {child.status} · {child.run_id}{reason}"

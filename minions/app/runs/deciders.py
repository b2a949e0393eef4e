"""The deciders of the command line: a policy, or the person at the terminal."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from minions.adapters.daemon_thread import run_in_daemon_thread
from minions.contracts.decision_types import (
    ApprovalRequest,
    Decider,
    Deny,
    NoAnswer,
    Question,
    Rejection,
    Verdict,
)
from minions.data.errors import UsageError, near_names
from minions.data.json_values import JsonValue, dumps
from minions.data.patterns import match_beside_loop
from minions.data.texts import one_line, shown_text

if TYPE_CHECKING:
    from minions.engine.calls.answer_forms import FormField

POLICIES: Final = ("ask", "deny", "all", "wait")
_YES: Final = ("y", "yes")
_EDIT: Final = ("e", "edit")
_SHOW: Final = ("s", "show")
_DECLINE: Final = "/decline"
_MOST_PROMPT: Final = 2_000
"""Characters of what is said of one field, which a stranger may have written."""


class Policy(Decider):
    """Gives the same verdict on every call; questions wait."""

    def __init__(self, verdict: Verdict) -> None:
        self._verdict = verdict

    async def approve(self, request: ApprovalRequest) -> Verdict:
        """The configured verdict."""
        return self._verdict


class TerminalDecider(Decider):
    """Asks at the terminal, one question at a time; the progress pauses meanwhile."""

    def __init__(
        self,
        write: Callable[[str], None],
        read_line: Callable[[], str] = sys.stdin.readline,
        *,
        approvals: Decider | None = None,
        edit: Callable[[str], str | None] | None = None,
        width: Callable[[], int] | None = None,
    ) -> None:
        """Nothing is asked yet.

        Args:
            write: Prints one line.
            read_line: Waits for one line; an empty text: the input has ended.
            approvals: Approves calls; None: the person does that, too.
            edit: Lets the person edit a text and gives it back, None if it was not saved, a
                UsageError if that failed; None: the editor of the environment.
            width: The columns of the terminal; None: as the environment says.
        """
        self._write = write
        self._read_line = read_line
        self._approvals = approvals
        self._edit = edit or _edit_text
        self._width = width or _terminal_width
        self._asking = asyncio.Lock()
        self.pausing: Callable[[], AbstractContextManager[object]] = nullcontext
        """A context in which the progress does not draw over the question."""

    async def approve(self, request: ApprovalRequest) -> Verdict | Rejection:
        """Ask for yes or no, and for the reason of a no; any other answer than yes is no. The run
        waits if the input has ended.
        """
        if self._approvals is not None:
            return await self._approvals.approve(request)
        async with self._asking:
            with self.pausing():
                self._write(f"step '{request.address}' wants to call {request.tool} with")
                self._write(f"  {request.arguments}")
                if request.filled:
                    self._write(f"  made by a model: {', '.join(request.filled)}")
                if request.words_of:
                    self._write(f"  words in it may be of: {', '.join(request.words_of)}")
                return await self._verdict()

    async def _verdict(self) -> Verdict | Rejection:
        line = await self._line("allow it? [y/N] ")
        if line is None:
            return Verdict.LATER
        if line.casefold() in _YES:
            return Verdict.APPROVED
        reason = await self._line("why not? (empty: no reason) ")
        return Rejection(reason) if reason else Verdict.REJECTED

    async def answer(self, question: Question) -> JsonValue | NoAnswer:
        """Ask until the answer fits the form, field by field where it has some; an empty line is
        the default.
        """
        from minions.engine.calls.answer_forms import fields_of

        async with self._asking:
            with self.pausing():
                self._write(_format_question(question, self._width()))
                if fields := fields_of(question.form):
                    return await self._fill_form(question, fields)
                if question.form is not None:
                    self._write(f"  ({_describe_form(question.form)})")
                if question.can_decline:
                    self._write(f"  ({_DECLINE} declines to answer)")
                return await self._fitting(question)

    async def _fill_form(
        self, question: Question, fields: Sequence[FormField]
    ) -> JsonValue | NoAnswer:
        """The answer of a form with fields; an object as JSON may stand for all of them."""
        declines = f"{_DECLINE} declines; " if question.can_decline else ""
        self._write(f"  ({declines}an empty line leaves out what is optional)")
        answer: dict[str, JsonValue] = {}
        for each in fields:
            found = await self._value_of(question, each, is_first=each is fields[0])
            if isinstance(found, NoAnswer | _Whole):
                return found if isinstance(found, NoAnswer) else found.value
            if found is not None:
                answer[each.name] = found.value
        return answer

    async def _value_of(
        self, question: Question, each: FormField, *, is_first: bool
    ) -> _One | _Whole | NoAnswer | None:
        """What was typed for a field; None: it is left out."""
        from minions.engine.calls.resume_decisions import read_answer

        while True:
            line = await self._line(_prompt_of(each))
            if line is None or (question.can_decline and line.casefold() == _DECLINE):
                return NoAnswer.LATER if line is None else NoAnswer.DECLINED
            if not line and (each.has_default or not each.is_required):
                return _One(each.default) if each.has_default else None
            try:
                if is_first and line.startswith("{"):
                    return _Whole(
                        await match_beside_loop(partial(read_answer, line, question.form))
                    )
                return _One(await match_beside_loop(partial(each.value_of, line)))
            except UsageError as error:
                self._write(f"  {shown_text(error.message)}")
            except ValueError as error:
                self._write(f"  {shown_text(str(error))}")

    async def _fitting(self, question: Question) -> JsonValue | NoAnswer:
        from minions.engine.calls.resume_decisions import read_answer

        default = f" [{dumps(question.default)}]" if question.has_default else ""
        plan = question.plan
        if plan is not None:
            show = "show for the whole plan, " if plan.diff is not None else ""
            default = f" (yes, no, edit, {show}or what to do differently)"
        while True:
            line = await self._line(f"your answer{default}: ")
            if line is None:
                return NoAnswer.LATER
            if question.can_decline and line.casefold() == _DECLINE:
                return NoAnswer.DECLINED
            if plan is not None and line.casefold() in _EDIT:
                edited = await self._edit_text(plan.text)
                if edited is not None and edited.strip():
                    return edited
                continue
            if plan is not None and plan.diff is not None and line.casefold() in _SHOW:
                self._write(plan.text.strip())
                continue
            if not line and question.has_default:
                return question.default
            try:
                return await match_beside_loop(partial(read_answer, line, question.form))
            except UsageError as error:
                self._write(error.message)

    async def _edit_text(self, plan: str) -> str | None:
        """The text as the person saved it; None: they did not, or the editor failed."""
        try:
            return await run_in_daemon_thread(lambda: self._edit(plan))
        except UsageError as error:
            self._write(error.message)
            return None

    async def _line(self, prompt: str) -> str | None:
        """The line that was typed; None: the input has ended."""
        self._write(prompt)
        line = await run_in_daemon_thread(self._read_line)
        return line.strip() if line else None


class _One(Struct, frozen=True):
    """The value of one field."""

    value: JsonValue


class _Whole(Struct, frozen=True):
    """The answer of the whole form."""

    value: JsonValue


def _prompt_of(each: FormField) -> str:
    """The name of a field, what it is for, and what fits."""
    title = each.title if (each.title or "").casefold() != each.name.casefold() else None
    about = f" ({title})" if title is not None else ""
    more = f": {each.description}" if each.description is not None else ""
    optional = "" if each.is_required or each.has_default else ", optional"
    default = f" [{dumps(each.default)}]" if each.has_default else ""
    titled = ", ".join(f"{one.value} = {one.title}" for one in each.choices if one.title)
    named = f" ({titled})" if titled else ""
    what, fits = f"{each.name}{about}{more}", f"{each.noun}{named}{optional}{default}"
    return f"  {one_line(what)[:_MOST_PROMPT]}\n    {one_line(fits)[:_MOST_PROMPT]}: "


def _format_question(question: Question, width: int) -> str:
    """The question; what differs between plans is wrapped, so that its indents can be seen."""
    if question.plan is None or question.plan.diff is None:
        return question.text
    import textwrap

    lines: list[str] = []
    for line in question.text.splitlines():
        indent = " " * (len(line) - len(line.lstrip()) + 2)
        lines += textwrap.wrap(line, width, subsequent_indent=indent, break_on_hyphens=False)
    return "\n".join(lines)


def _terminal_width() -> int:
    import shutil  # here: it brings compressors along

    return shutil.get_terminal_size().columns


def _edit_text(text: str) -> str | None:
    """The text as it was saved in the editor of the environment; None: it was not.

    Raises:
        UsageError: The editor is not there, or failed.
    """
    import click

    try:
        return click.edit(text, extension=".txt")
    except click.ClickException as error:
        message = f"The editor failed: {error.message}. EDITOR or VISUAL names the one to use."
        raise UsageError(message) from error


def _describe_form(form: Mapping[str, JsonValue]) -> str:
    choices = form.get("enum")
    if isinstance(choices, list | tuple):
        return f"one of {', '.join(dumps(choice) for choice in choices)}"
    return dumps(form)


def named_policy(approve: str, verdicts: Mapping[str, Verdict]) -> Policy:
    """The policy with that name.

    Raises:
        UsageError: It is none of `verdicts`.
    """
    if approve not in verdicts:
        raise _unknown_policy(approve, verdicts)
    return Policy(verdicts[approve])


def decider_for(policy: str | None, write: Callable[[str], None]) -> Decider:
    """The decider of a policy; without one it is the person at a terminal, else calls are denied.

    Raises:
        UsageError: There is no such policy.
    """
    is_terminal = sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()
    chosen = policy or "ask"
    if chosen not in POLICIES:
        raise _unknown_policy(chosen, POLICIES)
    if chosen == "wait":
        return Policy(Verdict.LATER)
    verdicts = {"deny": Policy(Verdict.REJECTED), "all": Policy(Verdict.APPROVED)}
    if is_terminal:
        return TerminalDecider(write, approvals=verdicts.get(chosen))
    return verdicts.get(chosen, Deny())


def _unknown_policy(approve: str, policies: Iterable[str]) -> UsageError:
    known = tuple(policies)
    return UsageError(
        f"approve={approve!r} is no policy. Policies are: {', '.join(known)}.",
        code="bad-configuration",
        suggestions=near_names(approve, known),
    )

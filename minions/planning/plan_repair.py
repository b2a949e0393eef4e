"""Which files the repair of a failed validation sees."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from attrs import frozen

from minions.contracts.plans import FileForm, FileUse, PlanStep
from minions.data.json_values import JsonValue
from minions.planning.plan_form import PlanForm, Sharing
from minions.planning.template_text import listed, literals, quoted

_MOST_CHOSEN: Final = 60
"""Files among which a repair's are chosen; an expression holds a few hundred words."""
_TEST: Final = re.compile(r"(?:^|[/_.-])(?:tests?|specs?)(?:[/_.-]|$)", re.IGNORECASE)
"""The name of a file of tests, in any language: `test_a.py`, `a.spec.ts`, `tests/a.rs`."""


@frozen
class _Group:
    """Files of one step that a repair may see."""

    files: Sequence[str]
    names: Sequence[str]
    """Paths in a failure for which it sees them: the files, and tests that another step made."""


@frozen(kw_only=True)
class RepairFiles:
    """What a repair may change: the validation's own files, and what earlier steps made.

    The first of several repairs sees the files of those steps that the failure names, as a
    traceback or a compiler does, and what the tests import that it names, and of the others what
    steps share. Where the failure names none, and in later repairs, all files are seen whole; what
    those tests import comes first.
    """

    step: PlanStep
    """The validation."""
    earlier: Sequence[PlanStep]
    """All steps that it depends on, in the order of the plan."""
    form: PlanForm

    @property
    def files(self) -> list[FileUse]:
        """All of them, whole."""
        made = [path for each in self.earlier for path in each.made_files]
        paths = dict.fromkeys((*(each.path for each in self.step.files), *made))
        return [FileUse(path=path) for path in paths]

    @property
    def is_chosen(self) -> bool:
        """Whether a step of its own chooses what the first repair sees."""
        return len(self._groups()) > 1

    def chosen(self, step_id: str, waits: list[JsonValue]) -> Iterator[dict[str, JsonValue]]:
        """The step of that id that chooses, after a failure; none where nothing is to choose."""
        groups = self._groups()
        if len(groups) < 2:
            return
        everything = [path for group in groups for path in group.files]
        named = f"{listed(everything)} | select('in', {self.output})"
        yield {
            "id": step_id,
            **({"depends_on": waits} if waits else {}),
            "when": "{{ feedback }}",
            "set": {
                "is_named": f"{{{{ feedback.attempt == 1 and ({named} | length) > 0 }}}}",
                **{
                    f"files_{number}": self._choice(group)
                    for number, group in enumerate(groups, start=1)
                },
            },
        }

    def shown(self, chosen: str) -> JsonValue:
        """The files to read, after the step `chosen` where there is one."""
        every = [str(each) for each in self.files]
        if not self.is_chosen:
            return literals(every)
        parts = (f"{chosen}.files_{at}" for at in range(1, len(self._groups()) + 1))
        return f"{{{{ {' + '.join(parts)} if {chosen}.is_named else {listed(every)} }}}}"

    def _groups(self) -> list[_Group]:
        """The files by the step that made them; those that none made first.

        None where a repair sees all files from the start.
        """
        left = [each.path for each in self.files]
        few = self.form.max_repairs < 2 or len(left) > _MOST_CHOSEN
        if few or self.form.share is Sharing.WHOLE:
            return []
        groups: list[_Group] = []
        for each in self.earlier:
            own = [path for path in left if path in each.made_files]
            left = [path for path in left if path not in each.made_files]
            groups.append(_Group(own, [*own, *self._tests(each)]))
        return [each for each in (_Group(left, left), *groups) if each.files]

    def _tests(self, step: PlanStep) -> Iterator[str]:
        """Files of tests that other steps made for what the step made."""
        for each in self.earlier:
            if step.id in each.dependencies and all(map(_is_test, each.made_files)):
                yield from each.made_files

    def _choice(self, group: _Group) -> JsonValue:
        passing: list[str] = []
        if self.form.share is Sharing.OUTLINE:
            passing = [str(FileUse(path=path, form=FileForm.OUTLINE)) for path in group.files]
        is_named = f"({listed(group.names)} | select('in', {self.output}) | length) > 0"
        return f"{{{{ {listed(group.files)} if {is_named} else {listed(passing)} }}}}"

    @property
    def output(self) -> str:
        """An expression for what the command printed, without the command, which may name files."""
        return f"feedback.message | replace({quoted(self.step.command or '')}, '')"


def _is_test(path: str) -> bool:
    return _TEST.search(path) is not None

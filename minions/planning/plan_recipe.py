"""A plan as a recipe: reading, writing and testing are `tool` steps, and models get text.

That form is what makes a plan cheap: a model step is one call with the files that it needs, no tool
schemas and no history. The recipe is plain YAML: it is checked, shown, saved and run as any other.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from attrs import frozen

from minions.contracts.plans import FileForm, FileUse, Plan, PlanStep, PlanStepType, steps_before
from minions.data.json_values import JsonValue
from minions.planning.plan_checks import configuring_files
from minions.planning.plan_json import PlanForm, Sharing

SYSTEM: Final = (
    "You carry out one step of a plan as a careful software engineer. Do what it says and no more. "
    "Keep to the names, style and interfaces of the files that you see."
)
_CHANGES: Final = """\
Answer with changes only. For each change write the path alone on a line, then
<<<<<<< SEARCH
lines of the file, copied exactly, enough to be found once
=======
the lines to put in their place
>>>>>>> REPLACE
A new file stands whole in a fenced code block, its path alone on the line before."""
INSTRUCTIONS: Final[Mapping[PlanStepType, str]] = {
    PlanStepType.ANALYZE: (
        "Answer in at most 150 words with what later steps have to know: exact names, signatures, "
        "paths. No code."
    ),
    PlanStepType.GENERATE: (
        "Answer with the whole text of each file in a fenced code block, its path alone on the "
        "line before, and nothing else."
    ),
    PlanStepType.MODIFY: _CHANGES,
    PlanStepType.CLEANUP: f"{_CHANGES}\nIf there is nothing to do, write: nothing to change.",
    PlanStepType.VALIDATE: (
        "Judge whether the work does what is asked. Name what is wrong, one line each. End with "
        "one line `VERDICT: PASS` or `VERDICT: FAIL`."
    ),
}
"""What the model of a step of each type is told."""

_REPAIR: Final = (
    "Repair the cause. Never weaken a test. If the cause is not in these files, write: nothing to "
    "change."
)
_OPENED: Final = ("files__", "shell__")
"""Tools of the toolsets that every recipe of a plan opens."""
_WITH_TOOLS: Final[JsonValue] = {"max_model_calls_per_step": 10}
_CACHED: Final[Mapping[str, JsonValue]] = {"cache": True}
_MOST_RESULT: Final = 2_000
"""Characters of an analysis that the steps after it get."""
_MOST_OUTPUT: Final = 6_000
"""Characters of a failed command's output that the repair gets."""


def recipe_document(plan: Plan, form: PlanForm) -> dict[str, JsonValue]:
    """The recipe of a plan without faults, as a YAML file would hold it."""
    made = _Steps(plan, form)
    offered = [name for each in plan.steps for name in each.tools]
    uses_shell = any(each.command for each in plan.steps)
    uses_shell |= any(name.startswith("shell__") for name in offered)
    folder: dict[str, JsonValue] = {"root": "{{ inputs.workspace }}"}
    if form.is_trusted:
        folder["reads"] = "trusted"
    named = configuring_files(plan, form) if form.is_asked else []
    # A name in brackets is a name: as a pattern it would be one of many characters.
    opened: list[JsonValue] = [*form.allow_config, *(each.replace("[", "[[]") for each in named)]
    config: dict[str, JsonValue] = {"allow_config": opened} if opened else {}
    files: dict[str, JsonValue] = {**folder, "create": True, "undo": True, **config}
    if form.allow_secrets:
        files["allow_secrets"] = [*form.allow_secrets]
    tools: list[JsonValue] = [{"files": files}]
    system = f"{SYSTEM}\n\n{literal(form.context)}" if form.context.strip() else SYSTEM
    return {
        "id": plan.id,
        **({"name": plan.name} if plan.name and plan.name != plan.id else {}),
        **({"description": plan.description} if plan.description else {}),
        "inputs": {
            "workspace": {
                "type": "string",
                "format": "path",
                "default": form.workspace,
                "description": "The folder to work in.",
            }
        },
        "system_prompt": system,
        "tools": [
            *tools,
            *([{"shell": {**folder, **config}}] if uses_shell else []),
            *dict.fromkeys(name for name in offered if not name.startswith(_OPENED)),
        ],
        # It writes where the plan says, which is shown to a person.
        "permissions": {"allow_write": True, "untrusted": "allow"},
        "limits": {"max_model_calls_per_step": 2},
        "execution_mode": "parallel",
        "max_parallel": form.max_parallel,
        "on_failure": "continue",
        "steps": [
            *made.results(),
            *(each for step in plan.steps for each in made.of(step)),
        ],
        "output": {step.id: f"{{{{ steps.{made.last(step)}.status }}}}" for step in plan.steps},
    }


@frozen
class _Steps:
    """The steps of the recipe of one plan."""

    plan: Plan
    form: PlanForm

    def results(self) -> Iterator[dict[str, JsonValue]]:
        """What steps of an earlier plan gave, for those of this one that depend on them."""
        known = {each.id for each in self.plan.steps}
        wanted = dict.fromkeys(
            each for step in self.plan.steps for each in step.dependencies if each not in known
        )
        for each in wanted:
            text = str(self.form.result_of(each))
            yield {"id": each, "set": {"result": literal(text)}}

    def of(self, step: PlanStep) -> Iterator[dict[str, JsonValue]]:
        """The recipe's steps for one step of the plan."""
        match step.type:
            case PlanStepType.VALIDATE:
                yield from self._validation(step)
            case PlanStepType.ANALYZE:
                yield from self._read(step)
                yield self._model(step, step.id, self._texts(step))
            case _:
                yield from self._read(step)
                yield self._change(step)
                yield from _write(step, step.id, _list_allowed(step))

    def last(self, step: PlanStep) -> str:
        """The id of the recipe's step after which the plan's step is done."""
        return f"{step.id}__written" if step.type.changes_files else step.id

    # --- what a model is shown ------------------------------------------------------------------

    def _read(self, step: PlanStep) -> Iterator[dict[str, JsonValue]]:
        """Reads the step's files, or waits for what it depends on and does not show."""
        files = self._files(step)
        unread = [self._wait(each) for each in step.dependencies if not self._is_shown(each)]
        if files:
            yield {
                "id": f"{step.id}__files",
                **({"depends_on": self._waits(step)} if step.dependencies else {}),
                "tool": "files__read_many",
                "params": {
                    "files": literals(files),
                    "max_characters": self.form.max_file_characters,
                },
            }
        elif unread:
            yield {"id": f"{step.id}__ready", "depends_on": unread, "set": {"ready": True}}

    def _files(self, step: PlanStep) -> list[FileUse]:
        """Those that the step names, then those that its dependencies made."""
        named = {each.path: each for each in step.files}
        if self.form.share is not Sharing.NAMES:
            for each in self._dependencies(step):
                for path in each.made_files:
                    named.setdefault(path, _choose_form(path, self.form.share))
        changed = step.made_files if step.type is not PlanStepType.GENERATE else ()
        for path in changed:
            if any(path in each.made_files for each in self._earlier(step)) or path in named:
                named[path] = FileUse(path=path)
        return list(named.values())

    def _texts(self, step: PlanStep) -> list[str]:
        """The parts of the prompt of a model step."""
        parts: list[str] = []
        if self._files(step):
            parts.append(f"{{{{ {step.id}__files.text }}}}")
        for each in step.dependencies:
            parts += self._result(each)
        parts.append(literal(step.goal))
        if step.description:
            parts.append(literal(step.description))
        names = [each for each in step.artifacts if each not in step.made_files]
        if step.made_files:
            verb = "Write" if step.type is PlanStepType.GENERATE else "Change"
            parts.append(f"{verb}: {literal(', '.join(step.made_files))}")
        if names:
            parts.append(f"Give: {literal(', '.join(names))}")
        return parts

    def _result(self, dependency: str) -> list[str]:
        """What a step shows of one that it depends on, besides its files."""
        step = self.plan.step(dependency)
        if step is None:
            return [f"From step {dependency}:\n{{{{ {dependency}.result }}}}"]
        if step.type is PlanStepType.ANALYZE:
            shown = f"{step.id} | truncate({_MOST_RESULT})"
            return [f"From step {dependency}:\n{{{{ {shown} }}}}"]
        if step.type.changes_files and (self.form.share is Sharing.NAMES or not step.made_files):
            written = f"{self.last(step)}.files | map(attribute='path') | join(', ')"
            return [f"Step {dependency} wrote: {{{{ {written} }}}}"]
        return []

    def _is_shown(self, dependency: str) -> bool:
        return bool(self._result(dependency))

    # --- steps of a model -----------------------------------------------------------------------

    def _model(
        self, step: PlanStep, step_id: str, texts: Sequence[str], **keys: JsonValue
    ) -> dict[str, JsonValue]:
        waits = not self._files(step) and not all(map(self._is_shown, step.dependencies))
        ready = {"when": f"{{{{ {step.id}__ready.ready }}}}"} if waits else {}
        return {
            "id": step_id,
            "description": step.name or _first_line(step.goal),
            **ready,
            "system_prompt": INSTRUCTIONS[step.type],
            "goal": "\n\n".join(texts),
            **({"tools": list(step.tools), "limits": _WITH_TOOLS} if step.tools else _CACHED),
            **keys,
        }

    def _change(self, step: PlanStep) -> dict[str, JsonValue]:
        """The model step whose answer is written to files."""
        artifacts: list[JsonValue] = list(step.made_files)
        if not artifacts:
            artifacts = ["files"] if step.type is PlanStepType.GENERATE else ["changes"]
        declared = {"artifacts": artifacts} if step.type is not PlanStepType.CLEANUP else {}
        again: dict[str, JsonValue] = {"on_error": {"goto": step.id, "max": 1}} if declared else {}
        return {**self._model(step, step.id, self._texts(step)), **declared, **again}

    # --- validation -----------------------------------------------------------------------------

    def _validation(self, step: PlanStep) -> Iterator[dict[str, JsonValue]]:
        if step.command is None:
            yield from self._judgement(step)
            return
        repair = RepairFiles(step=step, earlier=self._earlier(step), form=self.form)
        has_repair = bool(repair.files) and self.form.max_repairs > 0
        if has_repair:
            yield from self._repair(step, repair)
        waits = self._waits(step)
        run, written = f"{step.id}__run", f"steps.{step.id}__written"
        yield {
            "id": run,
            **({"depends_on": waits} if waits else {}),
            **({"when": f"{{{{ {written}.status != 'failed' }}}}"} if has_repair else {}),
            "tool": "shell__run",
            "params": {"command": literal(step.command)},
        }
        first = "named" if repair.is_chosen else "files"
        back: JsonValue = {"goto": f"{step.id}__{first}", "max": self.form.max_repairs}
        yield {
            "id": step.id,
            "depends_on": [run],
            "description": step.name or _first_line(step.goal),
            "assert": f"{{{{ {run}.exit_code == 0 }}}}",
            "message": (
                f"{literal(step.command)} ended with {{{{ {run}.exit_code }}}}:\n"
                f"{{{{ {run}.output | truncate({_MOST_OUTPUT}) }}}}"
            ),
            **({"on_error": back} if has_repair else {}),
        }

    def _repair(self, step: PlanStep, files: RepairFiles) -> Iterator[dict[str, JsonValue]]:
        """Steps that run only when the command has failed: choose, read, change, write."""
        chosen, repair = f"{step.id}__named", f"{step.id}__repair"
        waits = self._waits(step)
        yield from files.chosen(chosen, waits)
        waits = [chosen] if files.is_chosen else waits
        yield {
            "id": f"{step.id}__files",
            **({"depends_on": waits} if waits else {}),
            "when": "{{ feedback }}",
            "tool": "files__read_many",
            "params": {
                "files": files.shown(chosen),
                "max_characters": self.form.max_file_characters,
                # What the command printed, without the command, which may name files.
                "failure": f"{{{{ {files.output} }}}}",
                "among": literals(each.path for each in files.files),
            },
        }
        texts = [
            f"{{{{ {step.id}__files.text }}}}",
            f"{literal(step.goal)}\n\nIt failed:\n{{{{ feedback.message }}}}",
            _REPAIR,
        ]
        yield {
            "id": repair,
            "depends_on": [f"{step.id}__files"],
            "description": f"Repairs what {step.id} found.",
            "system_prompt": INSTRUCTIONS[PlanStepType.MODIFY],
            "goal": "\n\n".join(texts),
        }
        yield from _write(step, repair, [each.path for each in files.files])

    def _judgement(self, step: PlanStep) -> Iterator[dict[str, JsonValue]]:
        """A validation without a command: the model's verdict."""
        verdict = f"{step.id}__verdict"
        yield from self._read(step)
        yield self._model(step, verdict, self._texts(step), artifacts=["validation"])
        changed = [each.id for each in self._earlier(step) if each.type.changes_files]
        back: JsonValue = {"goto": changed[-1] if changed else "", "max": self.form.max_repairs}
        yield {
            "id": step.id,
            "description": step.name or _first_line(step.goal),
            "assert": f"{{{{ steps.{verdict}.artifacts.validation.passed }}}}",
            "message": f"{{{{ {verdict} | truncate({_MOST_RESULT}) }}}}",
            **({"on_error": back} if changed and self.form.max_repairs else {}),
        }

    # --- order ----------------------------------------------------------------------------------

    def _dependencies(self, step: PlanStep) -> list[PlanStep]:
        found = (self.plan.step(each) for each in step.dependencies)
        return [each for each in found if each is not None]

    def _earlier(self, step: PlanStep) -> list[PlanStep]:
        """All steps that it depends on, in the order of the plan."""
        before = steps_before(self.plan.steps, step.id)
        return [each for each in self.plan.steps if each.id in before]

    def _wait(self, dependency: str) -> str:
        step = self.plan.step(dependency)
        return dependency if step is None else self.last(step)

    def _waits(self, step: PlanStep) -> list[JsonValue]:
        return [self._wait(each) for each in step.dependencies]


def _write(step: PlanStep, answered: str, allowed: Sequence[str]) -> Iterator[dict[str, JsonValue]]:
    """Checks and writes the files and edits in an answer."""
    changes = f"{step.id}__changes"
    yield {
        "id": changes,
        "tool": "files__prepare_changes",
        "params": {
            "files": f"{{{{ steps.{answered}.artifacts.files }}}}",
            "edits": f"{{{{ steps.{answered}.artifacts.edits }}}}",
            "allowed": literals(each.replace("[", "[[]") for each in allowed),  # globs
        },
        "on_error": {"goto": answered},
    }
    yield {
        "id": f"{step.id}__written",
        "tool": "files__write_many",
        "params": {"files": f"{{{{ {changes}.files }}}}"},
    }


def _list_allowed(step: PlanStep) -> list[str]:
    """The files that a step may change; empty: any in the workspace."""
    if step.type is PlanStepType.GENERATE:
        return list(step.made_files)
    return list(dict.fromkeys((*step.made_files, *(each.path for each in step.files))))


def _choose_form(path: str, share: Sharing) -> FileUse:
    form = FileForm.OUTLINE if share is Sharing.OUTLINE else FileForm.WHOLE
    return FileUse(path=path, form=form)


def _first_line(text: str) -> str:
    return text.partition("\n")[0][:100]


# --- which files the repair of a failed validation sees ------------------------------------------


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


# --- text within the templates and expressions of a recipe that code writes ----------------------


_BRACES: Final = re.compile(r"[{}]+[%#]?")
_MARKS: Final = re.compile(r"\{\{|\}\}|\{%|\{#")
"""What a template reads as more than text."""


def literal(text: str) -> str:
    """The text for a template that gives just this text: a planner's words are no templates.

    Braces side by side are replaced together: one that was left could begin another mark.
    """
    return _BRACES.sub(lambda found: _plain(found[0]), text)


def literals(texts: Iterable[object]) -> list[JsonValue]:
    """The texts for a list of templates."""
    return [literal(str(each)) for each in texts]


def _plain(braces: str) -> str:
    return f"{{{{ '{braces}' }}}}" if _MARKS.search(braces) else braces


def quoted(text: str) -> str:
    """A text of an expression."""
    return json.dumps(text, ensure_ascii=False)


def listed(texts: Iterable[str]) -> str:
    """A list of texts of an expression."""
    return f"[{', '.join(map(quoted, texts))}]"

"""`plan:` steps: a recipe writes the plan, a person approves it, and the plan's recipe is run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, cast

from attrs import evolve, frozen

from minions.contracts.executions import StepExecution, StepStatus
from minions.contracts.file_changes import RollbackReport
from minions.contracts.plan_diffs import PlanDiff, PlanProposal, diff_plans
from minions.contracts.plans import Plan, json_object
from minions.contracts.steps import PythonStep, Step, StepScope
from minions.contracts.tools import ToolSpec
from minions.data.errors import FailureInfo, StepFailedError, UsageError
from minions.data.failure_categories import FailureCategory
from minions.data.json_values import JsonValue, as_array, as_object, dumps
from minions.engine.compile.engine_scope import Default, EngineScope, NestedOutcome, render_beside
from minions.engine.compile.kinds.compiler import BuildParts, Planner, StepCompiler
from minions.engine.compile.opening_rights import MadeOf
from minions.engine.compile.planned_step import PlannedStep
from minions.engine.compile.recipe_step import RecordedInParts, WrittenStep, as_text, bounded
from minions.recipe.expressions.template import Template
from minions.recipe.kinds.plan_kind import QUESTION, KeptPlan, PlanFit, PlanSpec, RecipePlanner

_YES: Final = ("yes", "y", "ok", "run", "true")
_NO: Final = ("no", "n", "stop", "false", "")
_LONGEST_TASK: Final = 200_000
"""Characters of a task; it stands in prompts, and may be the goal of a step."""
_KEPT: Final = "kept_run"
"""The run whose plan is used again, in the output and beside the draft."""
_MOST_CHANGES: Final = 20
"""How often a person may have one plan changed."""
_HOPELESS: Final = frozenset(
    {
        FailureCategory.TRANSIENT,
        FailureCategory.RATE_LIMIT,
        FailureCategory.RESOURCE,
        FailureCategory.PERMISSION,
        FailureCategory.INTERNAL,
    }
)
"""Failures that another plan would meet as well."""
_BY_ANOTHER_PLAN: Final = ("file-too-large",)
"""Codes of such categories that another plan may avoid: it can name lines of a file."""


@frozen(kw_only=True)
class PlanningStep(WrittenStep[object], PythonStep[object], RecordedInParts):
    """A `plan:` step of a recipe."""

    id: str
    spec: PlanSpec
    texts: Mapping[str, Template]
    """Templates of the task, the workspace, the context and the command."""
    planner: RecipePlanner
    tools: Mapping[str, ToolSpec]
    """Tools that steps of the plan may be offered, by name."""

    @property
    def templates(self) -> Sequence[Template]:
        return list(self.texts.values())

    @property
    def made_of(self) -> MadeOf:
        """Where the workspace comes from."""
        return {"workspace": self.texts["workspace"].inputs_read()}

    async def run(self, scope: StepScope) -> object:
        """Plan, ask for approval, run; after a failure plan what is left, within `max_replans`.

        Raises:
            MissingValueError: A template reads a value that does not exist.
            StepFailedError: `empty`: the task or the workspace is; `too-long`: the task is;
                `bad-plan`: the plan has faults that the planner did not mend; `plan-rejected`: a
                person rejected it; `plan-failed`: steps of it failed.
        """
        values = scope.context.values
        given = await render_beside(
            scope,
            self.references,
            lambda: {name: template.render(values) for name, template in self.texts.items()},
        )
        spec = self.spec
        inputs: dict[str, JsonValue] = {
            "task": _task(as_text(given["task"])),
            "workspace": _workspace(as_text(given["workspace"])),
            "context": as_text(given["context"]),
            "command": as_text(given["command"]) if given["command"] is not None else None,
            "form": spec.form,
            "share": spec.share,
            "repairs": spec.max_repairs,
            "trusted": spec.is_trusted,
            "tools": {name: tool.description for name, tool in self.tools.items()},
            "allow_config": list(spec.allow_config),
            "allow_secrets": list(spec.allow_secrets),
            # A plan that is only written is read by whoever runs it.
            "asked": spec.opens_named and (spec.needs_approval or not spec.is_run),
        }
        plan = as_text(given["given"]) if given["given"] is not None else ""
        if plan and not self.planner.reads(plan):
            message = (
                f"`given` of step '{self.id}' holds no plan. Write PLAN, STEP, TYPE and GOAL, or "
                "JSON with `steps`, each with `id`, `type` and `goal`."
            )
            raise StepFailedError(FailureInfo(code="bad-plan", message=message))
        assert isinstance(scope, EngineScope)  # noqa: S101  # the engine runs these steps
        return await _Planning(self, scope, inputs, plan).run()


def _task(text: str) -> str:
    if not text.strip():
        message = "The task is empty. Say what is to be done."
        raise StepFailedError(FailureInfo(code="empty", message=message))
    if len(text) > _LONGEST_TASK:
        message = (
            f"The task has {len(text)} characters; at most {_LONGEST_TASK} are planned. Put long "
            "texts into files of the workspace, and name them."
        )
        raise StepFailedError(FailureInfo(code="too-long", message=message))
    return text


def _workspace(text: str) -> str:
    if not text.strip():  # the current folder is not meant by a value that was forgotten
        message = "The workspace is empty. Name the folder to work in; `.` is the current one."
        raise StepFailedError(FailureInfo(code="empty", message=message))
    return text


class _Planning:
    """One execution of a `plan:` step."""

    def __init__(
        self, step: PlanningStep, scope: EngineScope, inputs: Mapping[str, JsonValue], given: str
    ) -> None:
        self._given = given
        self._step = step
        self._spec = step.spec
        self._planner = step.planner
        self._scope = scope
        self._inputs = inputs
        self._drafts = 0
        self._done: dict[str, JsonValue] = {}
        self._completed: dict[str, JsonValue] = {}
        """The completed steps as their plans had them, by id."""
        self._report: list[dict[str, JsonValue]] = []
        self._before: Plan | None = None
        """The plan that failed last; None: none did."""

    async def run(self) -> object:
        spec = self._spec
        plan = await self._approve_plan("")
        if not spec.is_run:
            return plan
        for number in range(spec.max_replans + 1):
            outcome = await self._carried_out(plan, number)
            if outcome.error is None:
                done = {"plan": plan["plan"], "steps": self._report, "replans": number}
                return {**done, _KEPT: plan[_KEPT]} if _KEPT in plan else done
            if number == spec.max_replans or _is_hopeless(outcome.error):
                undone = await self._rolled_back(number)
                raise StepFailedError(plan_failure(outcome.error, self._report, undone))
            self._before = Plan.from_json(json_object(plan["plan"]))
            plan = await self._approve_plan(report_text(self._report))
        raise AssertionError  # the last round returns or raises

    async def _carried_out(self, plan: Mapping[str, JsonValue], number: int) -> NestedOutcome:
        before = self._report

        def keep(executions: Sequence[StepExecution[object]]) -> None:
            planned = plan["plan"]
            self._keep(before, plan_report(planned, executions), executions)
            steps = {each.id: each for each in Plan.from_json(json_object(planned)).steps}
            self._completed = {
                str(each["id"]): steps[str(each["id"])].to_json()
                if str(each["id"]) in steps
                else self._completed[str(each["id"])]
                for each in self._report
                if each["status"] == "completed"
            }

        recipe = self._planner.recipe(str(plan["recipe"]), self._step.tools)
        inputs = {"workspace": self._inputs["workspace"]}
        return await self._scope.try_recipe(
            recipe,
            inputs,
            f"work-{number}",
            model=self._spec.model,
            made_of=self._step.made_of,
            tell=keep,
        )

    async def _rolled_back(self, number: int) -> str:
        """Take the files back, if that is asked for; what was done, for a person."""
        if not self._spec.rolls_back:
            return ""
        places = [f"work-{each}" for each in range(number, -1, -1)]
        return "\n".join(rollback_words(each) for each in await self._scope.roll_back(places))

    # --- planning and approval ------------------------------------------------------------------

    async def _approve_plan(self, earlier: str) -> Mapping[str, JsonValue]:
        """A plan without faults that a person approved, where that is asked for."""
        given = self._given if self._before is None else ""
        plan = await self._find_kept_plan() if self._before is None else None
        plan = plan or await self._draft_plan(earlier=earlier, given=given)
        if not self._spec.needs_approval or not self._spec.is_run:
            return await self._record_new_plan(_right(plan, is_given=bool(given)))
        for _ in range(_MOST_CHANGES):
            proposal = _proposal(plan, self._diff(plan))
            answer = await self._scope.ask_person(
                _question(proposal),
                form=None,
                default=Default(),
                timeout_s=None,
                place=f"approval-{self._drafts}",
                plan=proposal,
            )
            said = str(answer).strip()
            if said.casefold() in _YES and plan["ok"] is True:
                return plan
            if said.casefold() in _NO:
                break
            plan = await self._change_plan(said, plan, earlier)
            if plan["ok"] is True and self._planner.reads(said):
                return plan
        message = "The plan was rejected. Nothing of it was carried out."
        raise StepFailedError(FailureInfo(code="plan-rejected", message=message))

    async def _find_kept_plan(self) -> Mapping[str, JsonValue] | None:
        """The plan of an earlier run that serves the task, checked as any other; None: none does,
        or none is wanted.
        """
        spec, planner = self._spec, self._planner
        tool = planner.checking_tool if spec.reuses else None
        if tool is None:
            return None
        inputs = self._inputs

        def fit(kept: KeptPlan) -> PlanFit:
            is_elsewhere = kept.inputs.get("workspace") != inputs["workspace"]
            if is_elsewhere and spec.is_run and not spec.needs_approval:
                # The files there may have been a stranger's, and nobody sees the plan before it
                # is carried out here.
                reason = "it was made in another folder, and nobody is asked about it"
                return PlanFit(plan=None, reason=reason)
            return planner.fit(kept, inputs)

        found = await self._scope.look_up_plan(str(inputs["task"]), tool, fit, place="kept-plan")
        if found.plan is None or found.run is None:
            return None
        plan = await self._draft_plan(earlier="", given=dumps(found.plan))
        if plan["ok"] is True:
            return {**plan, "notes": [found.text, *as_array(plan["notes"])], _KEPT: found.run}
        text = f"The plan of run {found.run} is not used: it has faults here.\n{_faults_of(plan)}"
        await self._scope.refuse_plan(text, place="kept-plan-faults")
        return None

    async def _record_new_plan(self, plan: Mapping[str, JsonValue]) -> Mapping[str, JsonValue]:
        """The plan, after what differs from the one that failed is recorded for people."""
        if (diff := self._diff(plan)) is not None:
            await self._scope.record_new_plan(diff, place=f"new-plan-{self._drafts}")
        return plan

    def _diff(self, plan: Mapping[str, JsonValue]) -> PlanDiff | None:
        """What differs from the plan that failed; None: none did."""
        if self._before is None:
            return None
        statuses = {str(each["id"]): str(each["status"]) for each in self._report}
        return diff_plans(self._before, Plan.from_json(json_object(plan["plan"])), statuses)

    async def _change_plan(
        self, said: str, plan: Mapping[str, JsonValue], earlier: str
    ) -> Mapping[str, JsonValue]:
        """The plan as a person edited it, or as the planner changed it."""
        if said.casefold() in _YES:  # it has faults: the planner has to mend them
            said = "A plan without these faults: " + _faults_of(plan)
        if self._planner.reads(said):
            return await self._draft_plan(earlier=earlier, given=said)
        return await self._draft_plan(earlier=_join_plans(earlier, plan), wish=said)

    async def _draft_plan(
        self, *, earlier: str, wish: str = "", given: str = ""
    ) -> Mapping[str, JsonValue]:
        """A plan with its recipe, or with its faults."""
        self._drafts += 1
        inputs = {
            **self._inputs,
            "earlier": earlier,
            "done": self._done,
            "completed": [*self._completed.values()],
            "wish": wish,
            "given": given,
        }
        outcome = await self._scope.try_recipe(
            self._planner.drafting,
            inputs,
            f"plan-{self._drafts}",
            model=self._spec.model,
            made_of=self._step.made_of,
        )
        if outcome.error is not None:
            raise StepFailedError(_with_form(outcome.error, str(self._inputs["form"])))
        return as_object(outcome.output)

    def _keep(
        self,
        before: Sequence[Mapping[str, JsonValue]],
        steps: Sequence[dict[str, JsonValue]],
        executions: Sequence[StepExecution[object]],
    ) -> None:
        """Keep what is done, however the plan's recipe ended: its results are there for a plan of
        the rest.
        """
        again = {each["id"] for each in steps}
        earlier = [
            dict(each)
            for each in before
            if each["status"] == "completed" and each["id"] not in again
        ]
        self._report = [*earlier, *steps]
        self._scope.show_plan(plan_steps(self._report))
        outputs = {each.step_id: each.output for each in executions if each.is_complete}
        for each in steps:
            if each["status"] == "completed":
                step_id = str(each["id"])
                output = outputs.get(step_id)
                self._done[step_id] = bounded(output) if isinstance(output, str) else "done"


def _with_form(error: FailureInfo, form: str) -> FailureInfo:
    """The failure of a draft; of a model that gives no structure with what may help."""
    if error.code != "invalid-output" or form == "text":
        return error
    advice = "A weak model writes the plan as text: form: text, or --form text."
    return evolve(error, message=f"{error.message} {advice}")


def _is_hopeless(error: FailureInfo) -> bool:
    return error.category in _HOPELESS and error.code not in _BY_ANOTHER_PLAN


def _right(plan: Mapping[str, JsonValue], *, is_given: bool) -> Mapping[str, JsonValue]:
    """The plan.

    Raises:
        StepFailedError: `bad-plan`; it has faults.
    """
    if plan["ok"] is True:
        return plan
    if is_given:
        message = f"The plan that was given has faults:\n{_faults_of(plan)}"
        raise StepFailedError(FailureInfo(code="bad-plan", message=message))
    message = (
        "The planner's plan has faults, also after it was told them:\n"
        f"{_faults_of(plan)}\nTry a larger "
        "model, say more exactly what is to be done, or write the plan yourself where you are "
        "asked to approve it."
    )
    raise StepFailedError(FailureInfo(code="bad-plan", message=message))


def _proposal(plan: Mapping[str, JsonValue], diff: PlanDiff | None) -> PlanProposal:
    return PlanProposal(
        text=str(plan["text"]),
        notes=tuple(map(str, as_array(plan["notes"]))),
        faults=() if plan["ok"] is True else _listed_faults(plan),
        diff=diff,
    )


def _question(plan: PlanProposal) -> str:
    """The plan, or what differs from the one before it, as a person is asked about it."""
    parts = [plan.text.strip() if plan.diff is None else plan.diff.to_text()]
    parts += [f"Note: {each}" for each in plan.notes]
    if plan.faults:
        faults = "\n".join(f"- {each}" for each in plan.faults)
        parts += ["It has faults and cannot be carried out as it is:", faults]
    return "\n".join([*parts, QUESTION])


def _faults_of(plan: Mapping[str, JsonValue]) -> str:
    return "\n".join(f"- {each}" for each in _listed_faults(plan))


def _listed_faults(plan: Mapping[str, JsonValue]) -> tuple[str, ...]:
    return tuple(map(str, as_array(plan["faults"])))


def _join_plans(earlier: str, plan: Mapping[str, JsonValue]) -> str:
    return f"{earlier}\nThe plan that the person read:\n{plan['text']}".strip()


class _PlanCompiler(StepCompiler[PlanSpec]):
    def build(self, spec: PlanSpec, parts: BuildParts) -> PlanningStep:
        planner = parts.extensions.planner
        if planner is None:
            raise UsageError(
                f"Step '{spec.id}' makes a plan, and there is no planner here. Give "
                "Extensions(planner=…), or use minions.Minions.",
                code="no-planner",
            )
        texts = {
            "task": parts.templates.compile(spec.plan),
            "workspace": parts.templates.compile(spec.workspace),
            "context": parts.templates.compile(spec.context),
            "command": parts.templates.compile(spec.command),
            "given": parts.templates.compile(spec.given),
        }
        tools = {name: parts.tools.get(name).spec for name in spec.tools}
        return PlanningStep(id=spec.id, spec=spec, texts=texts, planner=planner, tools=tools)

    def plan(self, spec: PlanSpec, step: Step[object], planner: Planner) -> PlannedStep:
        shown: dict[str, JsonValue] = {
            "task": planner.shown(spec.plan),
            "workspace": planner.shown(spec.workspace),
        }
        return PlannedStep(
            step_id=spec.id, kind="plan", shown=shown, target=planner.model(spec.model)
        )


COMPILER: Final = _PlanCompiler()


# --- how a plan ended, step by step: for the planner, for programs, and for people ---------------
# A step of a plan is several steps of its recipe. What failed is told by the step of the plan, with
# the cause that a person looks for: of a test its command, exit code and the end of its output.


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

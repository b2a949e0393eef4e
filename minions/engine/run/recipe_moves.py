"""What becomes of recorded runs under another version of their recipe, and moving them to it.

A move is a fact of the journal: what ended keeps what it came to, the rest follows the new version.
Which runs are meant, and what a person is told, is not known here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Literal, TypeAlias

from attrs import field, frozen
from msgspec.structs import astuple

from minions.contracts.journal.facts import (
    RecipeFact,
    RecipeMoved,
    RecipeMovedBack,
    RecipePinned,
    RunResumed,
    StepFailed,
    StepFinished,
    ToolCallStarted,
    given,
)
from minions.contracts.journal.journal import EntryDraft, JournalEntry
from minions.data.errors import JournalError, UsageError
from minions.data.json_values import JsonValue, dumps
from minions.data.schema import SchemaValidator
from minions.data.texts import shell_word
from minions.engine.compile.recipe_step import step_named
from minions.engine.history.keys import base_key, enclosing, execution_key, head_of, path_of
from minions.engine.history.recorder import acquire_lease
from minions.engine.history.replay import Replay
from minions.engine.history.step_rows import StepRows
from minions.engine.run.recipe_changes import is_same_json, is_same_step
from minions.engine.run.recorded_run import RecordedRun, edited_inputs, newest_start
from minions.engine.services.run_services import Services
from minions.recipe.expressions.values import PathPart, Reference
from minions.recipe.model import AgentRecipe, StepSpec
from minions.recipe.nested_recipes import bundle_of

Fate: TypeAlias = Literal["goes_on", "moves", "breaks"]


@frozen(kw_only=True)
class RunFate:
    """What becomes of a run under a version of its recipe."""

    fate: Fate
    """`goes_on`: it has that version, or was pinned; `moves`: it can be moved to it; `breaks`: it
    cannot, and continues with its own."""
    reason: str
    step: str | None = None
    """The path of the step that breaks it: `outer/inner`; None: none does, or no step alone."""
    anew: tuple[str, ...] = ()
    """Paths of steps that had begun and differ: they begin again when it is moved."""
    inputs: Mapping[str, JsonValue] = field(factory=dict)
    """Its inputs for that version."""


def fate_of(recorded: RecordedRun, own: AgentRecipe | None, after: AgentRecipe) -> RunFate:
    """What becomes of a recorded run under `after`. Nothing is executed or stored.

    Args:
        own: The recipe that travels with it; None: it cannot be read here.
        after: Another version of it, with the same id.
    """
    if recorded.document is None:
        return _breaks("it was started from Python, and code does not travel with a run")
    is_same = is_same_json(recorded.document, after.document or {})
    if is_same and is_same_json(recorded.bundle, bundle_of(after)):
        return RunFate(fate="goes_on", reason="it has this version")
    if own is None:
        return _breaks("what its own version names is not registered here: name --extensions")
    if recorded.chosen is not None:
        return _breaks("it runs a part of the recipe")
    return _Comparison(recorded, own, after).fate()


def is_pinned(recorded: RecordedRun) -> bool:
    """Whether the run stays with its version until somebody moves it by name."""
    newest = [each.fact for each in recorded.entries if isinstance(each.fact, RecipeFact)][-1:]
    return any(isinstance(each, RecipePinned) for each in newest)


def _iterations(step: StepSpec) -> JsonValue:
    """What decides which executions a step has, and what they make up together."""
    parts: list[JsonValue] = [step.distribute]
    if (loop := step.loop) is not None:
        parts += [loop.over, loop.aggregate, loop.on_item_error.value, loop.min_successful]
    return [*parts, *(astuple(step.repeat) if step.repeat is not None else ())]


def _breaks(reason: str, step: str | None = None) -> RunFate:
    return RunFate(fate="breaks", reason=reason, step=step)


@frozen
class _Pair:
    """A step in both versions, with the recipes that have it."""

    before: AgentRecipe
    old: StepSpec
    after: AgentRecipe | None
    new: StepSpec | None
    """None: it was removed, or a step around it."""

    @property
    def is_same(self) -> bool:
        """Whether it does the same under the same condition, the steps within it aside."""
        if self.after is None or self.new is None or self.old.when != self.new.when:
            return False
        return is_same_step(self.before, self.old, self.after, self.new, with_inner=False)


class _Comparison:
    """One run, its own version, and another one."""

    def __init__(self, recorded: RecordedRun, own: AgentRecipe, after: AgentRecipe) -> None:
        self._recorded = recorded
        self._own = own
        self._after = after
        self._replay = Replay(recorded.entries, recorded.generation + 1)
        self._anew: dict[str, None] = {}
        self._pairs: dict[str, _Pair | None] = {}
        self._edited: frozenset[str] = frozenset()
        """Names of the inputs whose values are others in the new version."""

    def fate(self) -> RunFate:
        """The first break, else that it moves."""
        if not is_same_json(_order(self._own), _order(self._after)):
            return _breaks("the transitions of its graph differ")
        try:
            inputs = edited_inputs(self._recorded, self._own, self._after, {})
        except UsageError as error:
            return _breaks(error.message)
        was = self._recorded.inputs
        self._edited = frozenset(
            name for name in inputs if name not in was or not is_same_json(was[name], inputs[name])
        )
        for base in self._replay.bases():
            rows = self._replay.execution(base)
            broken = None if rows is None else self._break_at(base, rows)
            if broken is not None:
                return broken
        if (broken := next(self._missing(), None)) is not None:
            return broken
        anew = tuple(self._anew)
        again = f"; what had begun begins again: {', '.join(anew)}" if anew else ""
        return RunFate(fate="moves", reason=f"what ended is kept{again}", anew=anew, inputs=inputs)

    # --- executions -------------------------------------------------------------------------------

    def _pair(self, path: str) -> _Pair | None:
        """The step at that path; None: its own version has none, it was made in the run."""
        if path not in self._pairs:
            self._pairs[path] = self._found(path)
        return self._pairs[path]

    def _found(self, path: str) -> _Pair | None:
        before: AgentRecipe | None = self._own
        after: AgentRecipe | None = self._after
        old = new = None
        for name in path.split("/"):
            old, new = _step(before, name), _step(after, name)
            if before is None or old is None:
                return None
            pair = _Pair(before, old, after if new is not None else None, new)
            before, after = old.inner, new.inner if new is not None else None
        return pair

    def _break_at(self, base: str, rows: StepRows) -> RunFate | None:
        """Why the new version does not fit an execution; None: it does."""
        around = (self._replay.execution(each) for each in enclosing(base))
        if any(each is not None and each.ended is not None for each in around):
            return None  # what the step around it came to counts
        path = path_of(base)
        pair = self._pair(path)
        if pair is None:  # within a recipe that was made in the run: the step around it counts
            return None
        if (name := self._edited_input(path, pair, has_ended=rows.ended is not None)) is not None:
            return _breaks(f"what it executes is decided by inputs.{name}, which differs", path)
        if rows.ended is None:
            return None if pair.is_same else self._break_of_begun(base, path, pair)
        if pair.is_same:
            return None
        if self._replay.back_edges(base) is not None:
            return _breaks("its failure led back to an earlier step, and it differs", path)
        if pair.new is None or pair.after is None or not isinstance(rows.end, StepFinished):
            return None  # nobody reads what was removed; a failure stays one
        return self._break_of_ended(base, path, rows.end, pair.old, pair.new)

    def _edited_input(self, path: str, pair: _Pair, *, has_ended: bool) -> str | None:
        """An input that decides which executions there are in a step, and differs; None: none does.

        A loop is looked through again also where it ended, and the recipe that a step runs is given
        its inputs again where it has not: what was done there has to be in its place.
        """
        new, after = pair.new, pair.after
        if new is None or after is None:
            return None
        edited = self._edited
        if "/" in path:  # what a recipe within is given is compared by the step that runs it
            was = pair.before.inputs
            edited = frozenset(
                name
                for name, spec in after.inputs.items()
                if name not in was or not is_same_json(was[name].default, spec.default)
            )
        if not edited:
            return None
        given = [] if new.inner is None or has_ended else [*new.sources]
        items = [] if new.loop is None else [new.loop.over]
        repeat = [] if new.repeat is None else [new.repeat.condition]
        conditions = (after.templates.compile_condition(each).references for each in repeat)
        for reference in chain(after.templates.compile([*items, *given]).references, *conditions):
            if reference.path[0] == "inputs":
                names = edited.intersection(map(str, reference.path[1:2] or edited))
                if names:
                    return min(names)
        return None

    def _break_of_ended(
        self, base: str, path: str, end: StepFinished, old: StepSpec, new: StepSpec
    ) -> RunFate | None:
        """Why what an execution came to is not what the changed step says; None: it is."""
        if type(old) is not type(new):
            return _breaks(f"it ended as a step `{old.kind}:` and is one `{new.kind}:` now", path)
        if not is_same_json(_iterations(old), _iterations(new)):
            return _breaks("it ended with other iterations than it has now", path)
        if old.when != new.when:
            return _breaks(f"it ran when: {old.when or 'true'}, which differs", path)
        schema = new.declared_output
        is_item = not base.endswith("/0")
        if schema is None or (not is_item and (new.loop is not None or new.repeat is not None)):
            return None
        if errors := SchemaValidator(schema).errors(given(end.output)):
            return _breaks(f"its output does not fit what it declares now: {errors[0]}", path)
        return None

    def _break_of_begun(self, base: str, path: str, pair: _Pair) -> RunFate | None:
        """Why a step that began and differs cannot begin again; None: it can, or was removed."""
        replay = self._replay
        done = 0
        for each in replay.bases():
            rows = replay.execution(each)
            if rows is None or not _is_within(each, base):
                continue
            done += each != base and isinstance(rows.end, StepFinished)
            for entry in rows.rows:
                if isinstance(entry.fact, ToolCallStarted):
                    what = f"it began and has called {entry.fact.tool}"
                    return _breaks(f"{what}, and it differs", path)
            if rows.start is not None and rows.start.distributed is not None:
                return _breaks("its items are runs of their own, and it differs", path)
        for key, fact in replay.waiting():
            if _is_within(base_key(execution_key(key)), base):
                return _breaks(f"it waits for a decision ({fact.what} {key}), and it differs", path)
        if done:
            return _breaks(f"{done} of its executions are done, and it differs", path)
        if pair.new is not None:
            self._anew[path] = None
        return None

    # --- references -------------------------------------------------------------------------------

    def _missing(self) -> Iterator[RunFate]:
        """Steps that have to run and read what recorded outputs do not have."""
        saved = {each.save_as: each.id for each in _specs(self._after) if each.save_as}
        templates = self._after.templates
        for step in _specs(self._after):
            pair = self._pair(step.id)
            is_same = pair is not None and pair.is_same
            texts = [each for each in (step.when, step.repeat and step.repeat.condition) if each]
            conditions = (templates.compile_condition(text).references for text in texts)
            loop = [] if step.loop is None else [step.loop.over]
            read = templates.compile([*step.sources, *loop]).references
            for reference in chain(*conditions, read):
                if not self._has_ended(step.id):
                    yield from self._unread(reference, saved, step.id, is_same=is_same)
                elif not is_same and not reference.is_guarded:
                    source = self._replay.newest_visit(step_named(reference, saved))
                    if source is not None and isinstance(source.end, StepFailed):
                        name = step_named(reference, saved)
                        yield _breaks(f"it ended, and now reads '{name}', which failed", step.id)
        if self._after.output is not None:
            is_same = is_same_json(self._own.output, self._after.output)
            for reference in templates.compile(self._after.output).references:
                yield from self._unread(reference, saved, None, is_same=is_same)

    def _unread(
        self, reference: Reference, saved: Mapping[str, str], by: str | None, *, is_same: bool
    ) -> Iterator[RunFate]:
        if reference.is_guarded or reference.is_conditional:
            return
        name = step_named(reference, saved)
        rows = self._replay.newest_visit(name)
        if rows is None or not isinstance(end := rows.end, StepFinished):
            return
        source = self._pair(name)
        if is_same and source is not None and source.is_same:
            return  # as it was before: it is none of the new version's faults
        path = reference.path[1:]
        if reference.path[0] == "steps":
            if reference.path[2:3] != ("output",):
                return
            path = reference.path[3:]
        if not _has(given(end.output), path):
            reader = "its output" if by is None else f"step '{by}'"
            yield _breaks(f"{reader} reads {reference.text}, which '{name}' did not give", by)

    def _has_ended(self, step_id: str) -> bool:
        rows = self._replay.newest_visit(step_id)
        return rows is not None and rows.ended is not None


def _order(recipe: AgentRecipe) -> JsonValue:
    return (recipe.document or {}).get("graph")


def _specs(recipe: AgentRecipe) -> Sequence[StepSpec]:
    return [each for each in recipe.steps if isinstance(each, StepSpec)]


def _step(recipe: AgentRecipe | None, name: str) -> StepSpec | None:
    specs = () if recipe is None else _specs(recipe)
    return next((each for each in specs if each.id == name), None)


def _is_within(base: str, around: str) -> bool:
    """Whether it is that execution, an iteration of it, or within one of these."""
    head = head_of(around)
    return any(head_of(each) == head for each in (base, *enclosing(base)))


def _has(value: JsonValue, path: Sequence[PathPart]) -> bool:
    """Whether the value has that path; a part that is not known counts as there."""
    for part in path:
        if isinstance(value, Mapping):
            if part not in value:
                return False
            value = value[str(part)]
        elif isinstance(value, list | tuple):
            if not isinstance(part, int):
                return True
            if not -len(value) <= part < len(value):
                return False
            value = value[part]
        else:
            return False
    return True


# --- moving --------------------------------------------------------------------------------------


async def move_run(
    services: Services, recorded: RecordedRun, after: AgentRecipe, fate: RunFate, by: str | None
) -> JournalEntry:
    """Record that the run continues with `after`; nothing is executed.

    Args:
        fate: As `fate_of` gave it: `moves`.
    Raises:
        LeaseHeldError: It is being executed, or another run of its session.
        JournalError: It was resumed since it was read, or the journal refuses; nothing was done.
    """
    journal = services.journal
    bundle = bundle_of(after)
    assert recorded.start.document is not None  # noqa: S101  # of code no run moves
    moved = RecipeMoved(
        document=await journal.put_blob(dumps(after.document).encode()),
        directory=after.directory,
        recipes=await journal.put_blob(dumps(bundle).encode()) if bundle else None,
        version=after.version,
        inputs=dict(fate.inputs),
        by=by,
        before=recorded.start.document,
        anew=fate.anew,
    )
    return await _append(services, recorded, moved)


async def pin_run(services: Services, recorded: RecordedRun, by: str | None) -> JournalEntry:
    """Record that the run stays with its version.

    Raises:
        LeaseHeldError, JournalError: As `move_run`.
        UsageError: It was started from Python.
    """
    if recorded.start.document is None:
        raise UsageError(f"Run '{recorded.run_id}' was started from Python: it has no version.")
    return await _append(services, recorded, RecipePinned(document=recorded.start.document, by=by))


async def move_back(services: Services, recorded: RecordedRun, by: str | None) -> JournalEntry:
    """Undo the newest move of a run of which nothing was executed since.

    Raises:
        UsageError: `nothing-moved`; there is no such move. `moved-and-run`; it was executed since.
        LeaseHeldError, JournalError: As `move_run`.
    """
    moves: list[JournalEntry] = []
    for entry in recorded.entries:
        if isinstance(entry.fact, RecipeMoved):
            moves.append(entry)
        elif isinstance(entry.fact, RecipeMovedBack) and moves:
            moves.pop()
    name = shell_word(recorded.run_id)
    if not moves:
        raise UsageError(
            f"Run '{recorded.run_id}' was not moved to another version: there is nothing to undo.",
            code="nothing-moved",
        )
    since = (e.fact for e in recorded.entries if e.position > moves[-1].position)
    if not all(_executes_nothing(fact) for fact in since):
        raise UsageError(
            f"Run '{recorded.run_id}' was executed since it was moved, so the move stays. Move it "
            f"to the version before by name: minions upgrade OLD.yaml --move --only {name}",
            code="moved-and-run",
        )
    earlier = [each for each in recorded.entries if each.position < moves[-1].position]
    start = newest_start(earlier)
    assert start.document is not None  # noqa: S101  # of code no run moves
    back = RecipeMovedBack(
        document=start.document,
        directory=start.directory,
        recipes=start.recipes,
        version=start.version,
        inputs=start.inputs,
        by=by,
    )
    return await _append(services, recorded, back)


async def _append(
    services: Services,
    recorded: RecordedRun,
    fact: RecipeMoved | RecipeMovedBack | RecipePinned,
) -> JournalEntry:
    journal, run_id, session_id = services.journal, recorded.run_id, recorded.summary.session_id
    lease = await acquire_lease(services, session_id, run_id)
    try:
        newest = max(entry.position for entry in recorded.entries)
        if await journal.entries(session_id, run_id=run_id, after=newest):
            raise JournalError(
                f"Run '{run_id}' has new entries since it was read. Nothing was done: repeat the "
                "command.",
                code="run-went-on",
            )
        count = sum(isinstance(each.fact, RecipeFact) for each in recorded.entries)
        return await journal.append(lease, EntryDraft(key=f"recipe/{count + 1}", fact=fact))
    finally:
        await journal.release(lease)


def _executes_nothing(fact: object) -> bool:
    return isinstance(fact, RecipeFact) or (isinstance(fact, RunResumed) and bool(fact.queued))

"""What crashes can do to a recipe: its run is played under many stories, and what happened is
compared with a run in which nothing went wrong.

    report = find_crash_faults(CrashedRecipe(recipe, runtime), stories=500)
    report.findings[0].story         # the shortest one that shows it
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Final

from attrs import field, frozen

from minions.contracts.executions import RunStatus, address_of
from minions.contracts.tools import Effect
from minions.data.errors import UsageError
from minions.data.json_values import JsonValue, parse_json
from minions.testing.crash_stories import CrashStory, Mishap, StorySize, draw_stories
from minions.testing.crash_world import CrashedRecipe, CrashWorld, Deed, Moment

__all__ = [
    "CrashFinding",
    "CrashReport",
    "FindingKind",
    "StoryFile",
    "crash_lines",
    "find_crash_faults",
    "read_story",
    "replay_story",
    "write_stories",
]

_ENDED_WELL: Final = (RunStatus.COMPLETED.value, RunStatus.PARTIAL.value)
_PROCESSES_DIE: Final = frozenset({Mishap.KILL, Mishap.KILL_BEFORE, Mishap.STALL})


class FindingKind(StrEnum):
    """What can happen to a recipe."""

    DOUBLED = "effect-doubled"
    LOST = "effect-lost"
    IN_DOUBT = "effect-in-doubt"
    READ = "read-not-repeatable"
    BUDGET = "budget-exceeded"
    ASKED_AGAIN = "approval-asked-again"
    OTHER_END = "other-end"


@frozen(kw_only=True)
class _Place:
    """What can happen, and where."""

    kind: FindingKind
    step: str
    """The address of the execution, without indices; empty: the whole run."""
    tool: str = ""


@frozen(kw_only=True)
class CrashFinding:
    """One thing that can happen, with the shortest story in which it does."""

    kind: FindingKind
    step: str
    """The path of the step by ids, `outer/inner`; empty: the whole run."""
    tool: str
    """Empty: it is about no tool."""
    what: str
    """What can happen, in a sentence."""
    advice: str
    """What to do about it."""
    story: CrashStory
    moments: tuple[Moment, ...]
    """What happened in that story, in order."""

    @property
    def where(self) -> str:
        """The place in words."""
        step = f"step '{self.step}'" if self.step else "the run"
        return f"{step}, tool '{self.tool}'" if self.tool else step

    def to_json(self) -> dict[str, JsonValue]:
        """`code`, `step`, `tool`, `what`, `advice`, `story`, `timeline` and `mermaid`."""
        return {
            "code": self.kind.value,
            "step": self.step or None,
            "tool": self.tool or None,
            "what": self.what,
            "advice": self.advice,
            "story": str(self.story),
            "timeline": list(timeline(self.moments)),
            "mermaid": mermaid(self.moments),
        }


@frozen(kw_only=True)
class CrashReport:
    """What so many stories of a recipe have shown."""

    recipe: str
    test: str | None
    """The name of the test that gave inputs, answers and results; None: they were made up."""
    real_tools: bool
    """Whether tools that declare to change nothing were called themselves."""
    seed: int | None
    """None: one story was played again."""
    stories: int
    played: int
    """Stories that were played in all, with those by which others were made shorter."""
    size: StorySize
    findings: tuple[CrashFinding, ...] = ()
    moments: tuple[Moment, ...] = ()
    """What happened in the one story that was played again."""

    def __str__(self) -> str:
        """As a terminal shows it, for the message of an assertion."""
        return "\n".join(crash_lines(self.recipe, self))

    def to_json(self) -> dict[str, JsonValue]:
        """The same for the same recipe and seed, byte for byte."""
        return {
            "recipe": self.recipe,
            "test": self.test,
            "real_tools": self.real_tools,
            "seed": self.seed,
            "stories": self.stories,
            "facts": self.size.facts,
            "tool_calls": self.size.tool_calls,
            "model_calls": self.size.model_calls,
            "findings": [each.to_json() for each in self.findings],
        }


def find_crash_faults(crashed: CrashedRecipe, *, stories: int = 500, seed: int = 0) -> CrashReport:
    """Play so many stories, and make those shorter in which something happens.

    Raises:
        UsageError: `crash-test-fails`; the run does not come to its end when nothing goes wrong.
    """
    search = _Search(crashed)
    for story in draw_stories(seed, stories, search.size):
        for place in search.places(story):
            search.found.setdefault(place, story)
    findings = [search.finding(place, story) for place, story in search.found.items()]
    order = list(FindingKind)
    findings.sort(key=lambda each: (order.index(each.kind), each.step, each.tool))
    return search.report(stories=stories, seed=seed, findings=tuple(findings))


def replay_story(crashed: CrashedRecipe, story: CrashStory) -> CrashReport:
    """What happens in one story, which is not made shorter.

    Raises:
        UsageError: As above.
    """
    search = _Search(crashed)
    world = CrashWorld(crashed, story).play()
    findings = tuple(
        _finding(place, story, world, search.calm) for place in _places(world, search.calm)
    )
    return search.report(stories=1, seed=None, findings=findings, moments=tuple(world.moments))


class _Search:
    """Plays stories, each once."""

    def __init__(self, crashed: CrashedRecipe) -> None:
        self._crashed = crashed
        self.known: dict[CrashStory, tuple[_Place, ...]] = {}
        self.found: dict[_Place, CrashStory] = {}
        self.calm = calm = CrashWorld(crashed, CrashStory()).play()
        if calm.status not in _ENDED_WELL:
            why = f": {calm.error}" if calm.error else ""
            raise UsageError(
                f"The run of '{crashed.recipe.id}' ends {calm.status} although nothing goes wrong"
                f"{why} A crash test needs a run that completes: write one under `tests:`, with "
                "`answers` of the model and results of `tools`.",
                code="crash-test-fails",
            )

        self.size = StorySize(
            facts=calm.facts, tool_calls=calm.tool_calls, model_calls=calm.model_calls
        )

    def report(
        self,
        *,
        stories: int,
        seed: int | None,
        findings: tuple[CrashFinding, ...],
        moments: tuple[Moment, ...] = (),
    ) -> CrashReport:
        crashed = self._crashed
        return CrashReport(
            recipe=crashed.recipe.id,
            test=crashed.test.name if crashed.test is not None else None,
            real_tools=crashed.has_real_tools,
            seed=seed,
            stories=stories,
            played=len(self.known),
            size=self.size,
            findings=findings,
            moments=moments,
        )

    def places(self, story: CrashStory) -> tuple[_Place, ...]:
        known = self.known.get(story)
        if known is None:
            world = CrashWorld(self._crashed, story).play()
            known = self.known[story] = tuple(_places(world, self.calm))
        return known

    def finding(self, place: _Place, story: CrashStory) -> CrashFinding:
        shortest = story.shrunk(lambda other: place in self.places(other))
        world = CrashWorld(self._crashed, shortest).play()
        return _finding(place, shortest, world, self.calm)


# --- what happened -------------------------------------------------------------------------------


def _places(world: CrashWorld, calm: CrashWorld) -> Iterator[_Place]:
    found: dict[_Place, None] = {}
    for kind, address, tool in (
        *_doubled(world, calm),
        *_lost(world, calm),
        *((FindingKind.IN_DOUBT, address, tool) for address, tool in world.in_doubt),
        *_changed_reads(world),
        *_asked_again(world, calm),
        *_of_run(world, calm),
    ):
        found[_Place(kind=kind, step=_path(address), tool=tool)] = None
    yield from found


_Seen = tuple[FindingKind, str, str]


def _path(address: str) -> str:
    """Without the indices of items."""
    return "/".join(part.partition("[")[0] for part in address.split("/"))


def _effects(deeds: Iterable[Deed]) -> Counter[tuple[str, str]]:
    """How often each counts, by address and tool: an idempotent one once for each key."""
    seen: set[tuple[str, str]] = set()
    counts: Counter[tuple[str, str]] = Counter()
    for deed in deeds:
        if deed.effect is Effect.IDEMPOTENT:
            if (deed.tool, deed.key) in seen:
                continue
            seen.add((deed.tool, deed.key))
        counts[deed.address, deed.tool] += 1
    return counts


def _doubled(world: CrashWorld, calm: CrashWorld) -> Iterator[_Seen]:
    usual = _effects(calm.deeds)
    for (address, tool), count in _effects(world.deeds).items():
        if count > max(usual[address, tool], 1):
            yield FindingKind.DOUBLED, address, tool


def _lost(world: CrashWorld, calm: CrashWorld) -> Iterator[_Seen]:
    """Effects that are missing although the run says that all of it was done."""
    if world.status != RunStatus.COMPLETED.value:
        return
    counts = _effects(world.deeds)
    for address, tool in _effects(calm.deeds):
        if not counts[address, tool]:
            yield FindingKind.LOST, address, tool


def _changed_reads(world: CrashWorld) -> Iterator[_Seen]:
    for (tool, key), given in world.reads.items():
        if len(set(given)) > 1:
            yield FindingKind.READ, address_of(key.partition("/")[2] or key), tool


def _asked_again(world: CrashWorld, calm: CrashWorld) -> Iterator[_Seen]:
    usual = Counter(calm.decided)
    for (address, tool), count in Counter(world.decided).items():
        if count > max(usual[address, tool], 1):
            yield FindingKind.ASKED_AGAIN, address, tool


def _of_run(world: CrashWorld, calm: CrashWorld) -> Iterator[_Seen]:
    if any(True for _ in _exceeded(world, calm)):
        yield FindingKind.BUDGET, "", ""
    is_stuck = world.status in ("hangs", "no end") or world.status.startswith("refused")
    if is_stuck or (world.story.kinds <= _PROCESSES_DIE and world.status != calm.status):
        yield FindingKind.OTHER_END, "", ""


def _exceeded(world: CrashWorld, calm: CrashWorld) -> Iterator[str]:
    """Limits below what was used, although the run counts less. A run's last call may exceed them
    without any fault: then what was used is compared with that.
    """
    if world.result is None:
        return
    limits, used, told = world.crashed.recipe.limits, world.used, world.result.usage
    figures: Mapping[str, tuple[float, float, float]] = {
        "max_tokens": (used.total_tokens, told.total_tokens, calm.used.total_tokens),
        "max_cost_usd": (used.cost_usd or 0.0, told.cost_usd or 0.0, calm.used.cost_usd or 0.0),
    }
    for name, (real, counted, usual) in figures.items():
        most = limits.get(name)
        if isinstance(most, int | float) and real > max(most, usual) >= counted:
            yield f"{real:g} were used of {name}: {most:g}, and the run counts {counted:g}"


# --- what is said about it -----------------------------------------------------------------------


def _finding(place: _Place, story: CrashStory, world: CrashWorld, calm: CrashWorld) -> CrashFinding:
    what, advice = _words(place, world, calm)
    return CrashFinding(
        kind=place.kind,
        step=place.step,
        tool=place.tool,
        what=what,
        advice=advice,
        story=story,
        moments=tuple(world.moments),
    )


_ADVICE: Final[Mapping[FindingKind, str]] = {
    FindingKind.LOST: "Let the step fail where its call fails (`tool_failure: fail`), or look in "
    "an `assert` step behind it whether the effect is there.",
    FindingKind.IN_DOUBT: "Declare `effect: idempotent` and hand `scope.idempotency_key` to the "
    "service, so that it does the same call once; or look there first whether it was done.",
    FindingKind.READ: "Declare its effect, or let it read by a position that the recipe passes.",
    FindingKind.BUDGET: "A call that was cut off is paid and not counted: leave room for one call "
    "of each crash, or set a limit at the provider.",
    FindingKind.ASKED_AGAIN: "Put what asks in front of the step to which the run goes back.",
    FindingKind.OTHER_END: "Look at where the story stops: code of a step may not do the same each "
    "time.",
}
_ADVICE_OF_SECOND_CALL: Final = (
    "Put the call behind all that the run goes back over, or let the service find what was done by "
    "something that stays the same, such as an order number among the arguments."
)


def _words(place: _Place, world: CrashWorld, calm: CrashWorld) -> tuple[str, str]:
    """What can happen, and what to do about it."""
    tool, advice = place.tool, _ADVICE.get(place.kind, "")
    match place.kind:
        case FindingKind.DOUBLED:
            return _words_of_doubled(place, world)
        case FindingKind.LOST:
            what = f"The run completes, and '{tool}' never had its effect."
        case FindingKind.IN_DOUBT:
            what = (
                f"A process that dies while '{tool}' is called leaves it open whether the effect "
                "is there: the run waits for a person, whose `redo` doubles it and whose `done` "
                "loses it if they are wrong."
            )
        case FindingKind.READ:
            what = (
                f"'{tool}' declares to change nothing, but gives something else when a call that "
                "was cut off is made again: what it gave first is lost."
            )
        case FindingKind.BUDGET:
            what = f"The run spends more than it may: {'; '.join(_exceeded(world, calm))}."
        case FindingKind.ASKED_AGAIN:
            about = f"about '{tool}'" if tool else "the same question"
            what = f"A person is asked {about} again, although the decision was recorded."
        case FindingKind.OTHER_END:
            what = f"The run ends {world.status}, where it completes if no process dies."
    return what, advice


def _words_of_doubled(place: _Place, world: CrashWorld) -> tuple[str, str]:
    tool = place.tool
    counts: Counter[str] = Counter()
    effect = Effect.UNDECLARED
    for deed in world.deeds:
        if deed.tool == tool and _path(deed.address) == place.step:
            counts[deed.key] += 1
            effect = deed.effect
    most = max(counts.values())
    if effect is not Effect.IDEMPOTENT and most > 1:
        declared = "declares no effect" if effect is Effect.UNDECLARED else f"is `{effect.value}`"
        return (
            f"'{tool}' {declared}, and its effect happens {most} times for one call.",
            _ADVICE[FindingKind.IN_DOUBT],
        )
    what = (
        f"The effect of '{tool}' happens {len(counts)} times, under as many keys: the run comes to "
        "the call again after it had its effect."
    )
    return what, _ADVICE_OF_SECOND_CALL


# --- pictures ------------------------------------------------------------------------------------


def timeline(moments: Iterable[Moment]) -> Iterator[str]:
    """One line for each moment: who, and what."""
    for moment in moments:
        tool = f" {moment.to}:" if moment.to else ""
        yield f"{moment.who:<9} |{tool} {moment.what}"


def mermaid(moments: Iterable[Moment]) -> str:
    """A sequence diagram for Mermaid."""
    names: dict[str, str] = {}
    lines = []
    for moment in moments:
        who = names.setdefault(moment.who, f"p{len(names) + 1}")
        text = moment.what.translate(_CODES)
        if moment.to is None:
            lines.append(f"  Note over {who}: {text}")
        else:
            to = names.setdefault(moment.to, f"p{len(names) + 1}")
            lines.append(f"  {who}->>{to}: {text}")
    declared = [f"  participant {short} as {name}" for name, short in names.items()]
    return "\n".join(["sequenceDiagram", *declared, *lines]) + "\n"


_CODES: Final = str.maketrans({sign: f"#{ord(sign)};" for sign in "\"#&'<>\\`;:"})


def crash_lines(name: str, report: CrashReport) -> Iterator[str]:
    """The report for a terminal."""
    told = "" if report.test is None else f" of test '{report.test}'"
    if report.seed is None:
        yield f"{name}: one story{told}, {_count(len(report.findings), 'finding')}"
        yield from (f"    {line}" for line in timeline(report.moments))
    else:
        yield (
            f"{name}: {report.stories} stories{told} (seed {report.seed}), "
            f"{_count(len(report.findings), 'finding')}"
        )
    for each in report.findings:
        yield f"{each.kind.value}: {each.where}"
        yield f"  {each.what}"
        yield f"  {each.advice}"
        if report.seed is not None:
            yield f"  story: {each.story}"
            yield from (f"    {line}" for line in timeline(each.moments))


def _count(number: int, what: str) -> str:
    return f"{number or 'no'} {what}{'s' if number != 1 else ''}"


# --- stories in files ----------------------------------------------------------------------------


def write_stories(folder: Path, reports: Iterable[CrashReport]) -> Iterator[Path]:
    """Write each finding's story to a file of its own; the files, as they are written.

    Raises:
        UsageError: `unwritable-file`.
    """
    for report in reports:
        for each in report.findings:
            step = each.step.replace("/", ".")
            parts = (report.recipe, each.kind.value, step, each.tool)
            path = folder / f"{'-'.join(filter(None, parts))}.crash.json"
            document = {
                "recipe": report.recipe,
                "test": report.test,
                "real_tools": report.real_tools,
                **each.to_json(),
            }
            try:
                folder.mkdir(parents=True, exist_ok=True)
                path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
            except OSError as error:
                raise UsageError(
                    f"{path} cannot be written: {error}.", code="unwritable-file"
                ) from error
            yield path


@frozen(kw_only=True)
class StoryFile:
    """A story with what it was played with."""

    story: CrashStory = field(factory=CrashStory)
    recipe: str = ""
    """The id of the recipe whose run it is; empty: any."""
    test: str = ""
    """Empty: without a test."""
    real_tools: bool = False


def read_story(path: Path) -> StoryFile:
    """The story of such a file.

    Raises:
        UsageError: `bad-story`; it cannot be read, or holds none.
    """
    try:
        document = parse_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read: {error}.", code="bad-story") from error
    found = document if isinstance(document, dict) else {}
    story, test, recipe = found.get("story"), found.get("test") or "", found.get("recipe") or ""
    if not (isinstance(story, str) and isinstance(test, str) and isinstance(recipe, str)):
        raise UsageError(
            f'{path}: expected an object with a `story` such as "kill@7", as `minions test '
            "RECIPE --crash 500 --write-stories DIR` writes.",
            code="bad-story",
        )
    return StoryFile(
        story=CrashStory.parse(story),
        recipe=recipe,
        test=test,
        real_tools=found.get("real_tools") is True,
    )

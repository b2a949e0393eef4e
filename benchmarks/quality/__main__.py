"""`make quality`: ask all questions by all arms, and write the page.

QUALITY_MODEL, QUALITY_BASE_URL, QUALITY_API_KEY   a server; without: the model in the box
QUALITY_TASKS=n      at most so many questions of each group, chosen by a seed
QUALITY_ONLY=a,b     only these parts: fields, examples, calls, more-calls, schemas, problems,
                     loops, confidence, templated
QUALITY_PART=development   questions that are not held out
QUALITY_ABLATION=1   Minions alone, on questions that are not held out, with each lever for weak
                     models alone, with none and with all; a section of docs/quality.md
QUALITY_PAGE=FILE    where the page is written, in which other parts stay as they are; default:
                     docs/quality.md for all parts, else nowhere
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from attrs import evolve, field, frozen

from benchmarks.counting_proxy import Counted, counting_proxy
from benchmarks.local_model import model_in_the_box
from benchmarks.quality.arms import SDK_CALLS, Arms, arms_at, probed
from benchmarks.quality.function_calls import Call, CallQuestion, call_questions, cross_check
from benchmarks.quality.levers import LEVERS, only, ways
from benchmarks.quality.page import (
    OURS,
    Row,
    Setting,
    levers_section,
    page,
    with_sections,
    write_rows,
)
from benchmarks.quality.tasks import (
    SEED,
    Loop,
    Part,
    Question,
    Score,
    field_tasks,
    loops,
    schema_tasks,
    templated_texts,
    word_problems,
)
from minions.data.json_values import JsonValue

ROOT: Final = Path(__file__).parents[2]
PARTS: Final = (
    *("fields", "templated", "examples", "calls", "more-calls", "schemas", "problems", "loops"),
    "confidence",
)
PEERS: Final = ROOT / ".venv-quality"
T = TypeVar("T")


@frozen(kw_only=True)
class Options:
    """What the environment says."""

    parts: Sequence[str] = PARTS
    tasks: int | None = None
    """At most so many questions of each group; None: all."""
    texts: Part = "held-out"
    is_ablation: bool = False
    """Whether the levers are asked about, and not the others."""
    base_url: str | None = None
    """None: the model in the box."""
    api_key: str | None = None
    model: str = "local"
    page: Path | None = None
    command: str = "make quality"


def read_options(environ: Mapping[str, str]) -> Options:
    """The options of the variables that begin with `QUALITY_`.

    Raises:
        SystemExit: A variable is unknown or has a value that it cannot have.
    """
    said = {name: value for name, value in environ.items() if name.startswith("QUALITY_") and value}
    known = ("MODEL", "BASE_URL", "API_KEY", "TASKS", "ONLY", "PART", "PAGE", "ABLATION")
    unknown = [name for name in said if name.removeprefix("QUALITY_") not in known]
    if unknown:
        raise SystemExit(
            f"{unknown[0]} is no setting. There are: QUALITY_{', QUALITY_'.join(known)}."
        )
    is_ablation = said.get("QUALITY_ABLATION") == "1"
    if "QUALITY_ABLATION" in said and not is_ablation:
        raise SystemExit(f"QUALITY_ABLATION is {said['QUALITY_ABLATION']!r}, not '1'.")
    usual = tuple(LEVERS) if is_ablation else PARTS
    parts = tuple(said.get("QUALITY_ONLY", ",".join(usual)).split(","))
    if is_ablation and not set(parts) <= set(LEVERS):
        raise SystemExit(f"There are levers for {' and '.join(LEVERS)}, not for all of {parts}.")
    if not set(parts) <= set(PARTS):
        raise SystemExit(f"QUALITY_ONLY is {said['QUALITY_ONLY']!r}; parts are {', '.join(PARTS)}.")
    tasks = said.get("QUALITY_TASKS")
    if tasks is not None and not (tasks.isdecimal() and int(tasks)):
        raise SystemExit(f"QUALITY_TASKS is {tasks!r}, not a whole number from 1.")
    texts = said.get("QUALITY_PART", "development" if is_ablation else "held-out")
    if is_ablation and texts != "development":
        raise SystemExit("Levers are chosen by questions that are not held out: no QUALITY_PART.")
    part: Part | None = _PARTS_OF_TASKS.get(texts)
    if part is None:
        raise SystemExit(f"QUALITY_PART is {texts!r}, neither 'held-out' nor 'development'.")
    if ("QUALITY_BASE_URL" in said) is not ("QUALITY_MODEL" in said):
        raise SystemExit("QUALITY_MODEL and QUALITY_BASE_URL go together: a model and its server.")
    whole = set(parts) == set(usual) and (texts == "held-out" or is_ablation)
    at = said.get("QUALITY_PAGE") or (str(ROOT / "docs" / "quality.md") if whole else None)
    shown = [f"{name}={value}" for name, value in said.items() if name in _SHOWN]
    return Options(
        parts=parts,
        tasks=None if tasks is None else int(tasks),
        texts=part,
        is_ablation=is_ablation,
        base_url=said.get("QUALITY_BASE_URL"),
        api_key=said.get("QUALITY_API_KEY"),
        model=said.get("QUALITY_MODEL", "local"),
        page=None if at is None else Path(at),
        command=" ".join(["make quality", *shown]),
    )


_PARTS_OF_TASKS: Final[Mapping[str, Part]] = {
    "held-out": "held-out",
    "development": "development",
}
_SHOWN: Final = (
    *("QUALITY_MODEL", "QUALITY_BASE_URL", "QUALITY_TASKS", "QUALITY_PART", "QUALITY_ABLATION"),
)
"""What the command on the page repeats; a key is none of it."""


@frozen(kw_only=True)
class Measured:
    """What was asked, and the calls that models answered."""

    rows: list[Row] = field(factory=list)
    calls: list[tuple[str, Sequence[Call]]] = field(factory=list)


@frozen(kw_only=True)
class Tasks:
    """The questions of one run."""

    questions: Mapping[str, Sequence[Question]]
    """By part: `fields`, `schemas`, `problems`."""
    calls: Sequence[CallQuestion]
    loops: Sequence[Loop]
    more_calls: Sequence[CallQuestion] = ()
    """Those that need a call, for the arms that have any of them right."""
    alike: Sequence[tuple[Question, Sequence[Question]]] = ()
    """Texts, each with answered ones of its kind from the other half."""
    judged: Sequence[Question] = ()
    """Texts whose fields are asked for with how sure the model is."""


def chosen_tasks(options: Options, data: Path | None) -> Tasks:
    """The questions that the options ask for.

    Args:
        data: The folder of BFCL's data; None: there are no calls.
    """
    texts = [each.question for each in field_tasks() if each.part == options.texts]
    others = [each.question for each in field_tasks() if each.part != options.texts]
    sample = _sample(texts, lambda each: each.group, options.tasks)
    asked = {
        "fields": texts,
        "templated": templated_texts(),
        "schemas": schema_tasks(),
        "problems": word_problems(options.texts),
    }
    has_calls = data is not None and not {"calls", "more-calls"}.isdisjoint(options.parts)
    calls = call_questions(data) if data is not None and has_calls else []
    calls = [each for at, each in enumerate(calls) if at % 2 == (options.texts == "held-out")]
    calls = _sample(calls, lambda each: each.group, options.tasks)
    walks = loops() if "loops" in options.parts else []
    walks = [each for each in walks if each.part == options.texts]
    return Tasks(
        questions={
            part: _sample(found, lambda each: each.group, options.tasks)
            for part, found in asked.items()
            if part in options.parts
        },
        calls=calls if "calls" in options.parts else [],
        more_calls=[each for each in calls if each.truth] if "more-calls" in options.parts else [],
        loops=_sample(walks, lambda each: f"{each.hops} {len(each.tools)}", options.tasks),
        alike=[(each, [one for one in others if one.group == each.group]) for each in sample]
        if "examples" in options.parts
        else [],
        judged=sample if "confidence" in options.parts else [],
    )


def _sample(found: Sequence[T], group_of: Callable[[T], str], count: int | None) -> list[T]:
    groups: dict[str, list[T]] = {}
    for each in found:
        groups.setdefault(group_of(each), []).append(each)
    chance = random.Random(SEED)  # questions, not secrets
    sampled: list[T] = []
    for group in groups.values():
        kept = range(len(group))
        chosen = kept if count is None else sorted(chance.sample(kept, min(count, len(group))))
        sampled += [group[at] for at in chosen]
    return sampled


@frozen(kw_only=True)
class _Asking:
    """One question by one arm."""

    part: str
    group: str
    question: str
    arm: str
    answer: Callable[[], Awaitable[Score]]
    of: int = 1
    """What can be right."""


async def measure(
    tasks: Tasks, arms: Arms, counted: Counted, say: Callable[[str], None]
) -> Measured:
    """Ask all questions by all arms, one after another.

    Args:
        say: Takes a line about each part and arm that is done.
    """
    measured = Measured()
    for (part, arm), askings in itertools.groupby(
        _askings(tasks, arms, measured.calls), lambda each: (each.part, each.arm)
    ):
        for each in askings:
            measured.rows.append(await _asked(each, counted))
        say(_line(measured.rows, part, arm))
    return measured


def _askings(
    tasks: Tasks, arms: Arms, calls: list[tuple[str, Sequence[Call]]]
) -> Iterator[_Asking]:
    """All of them, part by part and in it arm by arm.

    Args:
        calls: Takes what models call.
    """
    for part, questions in tasks.questions.items():
        ways = {**arms.questions, **(arms.problems if part == "problems" else {})}
        if part == "templated":
            ways = {arm: way for arm, way in ways.items() if arm not in _NEVER_RIGHT}
        for arm, way in ways.items():
            for each in questions:
                yield _of_question(part, arm, each, partial(_score, each, partial(way, each)))
    for arm, alike in arms.examples.items():
        for each, known in tasks.alike:
            answer = partial(_score, each, partial(alike, each, known))
            yield _of_question("examples", arm, each, answer)
    for part, arm, asked in (
        *(("calls", arm, tasks.calls) for arm in arms.calls),
        *(("more-calls", arm, tasks.more_calls) for arm in (OURS, SDK_CALLS)),
    ):
        for question in asked:
            answer = partial(_score_calls, question, arms.calls[arm], calls)
            yield _Asking(
                part=part, group=question.group, question=question.id, arm=arm, answer=answer
            )
    for arm, walking in arms.loops.items():
        for loop in tasks.loops:
            answer = partial(_score_loop, loop, walking)
            hops = f"{loop.hops} of {len(loop.tools)}"
            yield _Asking(part="loops", group=hops, question=loop.id, arm=arm, answer=answer)
    for each in tasks.judged:
        yield _of_question("confidence", OURS, each, partial(_score_judged, each, arms))


def _of_question(
    part: str, arm: str, question: Question, answer: Callable[[], Awaitable[Score]]
) -> _Asking:
    return _Asking(
        part=part,
        group=question.group,
        question=question.id,
        arm=arm,
        answer=answer,
        of=len(question.right or "1"),
    )


async def _score(question: Question, answer: Callable[[], Awaitable[JsonValue]]) -> Score:
    return question.score(await answer())


async def _score_judged(question: Question, arms: Arms) -> Score:
    answer, confidence = await arms.judged(question)
    return evolve(question.score(answer), confidence=confidence.probability)


async def _score_calls(
    question: CallQuestion, calling: _Calls, calls: list[tuple[str, Sequence[Call]]]
) -> Score:
    made = await calling(question)
    calls.append((question.id, made))
    return Score(right=int(question.is_right(made)), of=1)


async def _score_loop(loop: Loop, walking: _Walks) -> Score:
    return Score(right=int(loop.is_right(await walking(loop))), of=1)


async def _asked(asking: _Asking, counted: Counted) -> Row:
    counted.reset()
    began = time.monotonic()
    failure = None
    try:
        score = await asking.answer()
    except Exception as error:  # noqa: BLE001  # each library has failures of its own
        failure = f"{type(error).__name__}: {error!s:.300}"
        score = Score(right=0, of=asking.of)
    return Row(
        part=asking.part,
        group=asking.group,
        question=asking.question,
        arm=asking.arm,
        right=score.right,
        of=score.of,
        failure=failure,
        requests=counted.requests,
        input_tokens=counted.input_tokens,
        output_tokens=counted.output_tokens,
        seconds=round(time.monotonic() - began, 3),
        confidence=score.confidence,
    )


async def measure_levers(
    tasks: Tasks, arms: Arms, counted: Counted, say: Callable[[str], None]
) -> Measured:
    """Ask the questions by Minions alone, once for each way that `levers.ways` has of their part.

    Args:
        say: As for `measure`.
    """
    measured = Measured()
    asked: dict[str, Tasks] = {
        part: Tasks(questions={part: found}, calls=[], loops=[])
        for part, found in tasks.questions.items()
    }
    if tasks.calls:
        asked["calls"] = Tasks(questions={}, calls=tasks.calls, loops=[])
    ours = evolve(
        arms,
        questions={OURS: arms.questions[OURS]},
        calls={OURS: arms.calls[OURS]},
    )
    for part, some in asked.items():
        for name, standing in ways(part):
            with only(part, standing):
                found = await measure(some, ours, counted, lambda _: None)
            measured.rows.extend(evolve(each, arm=name) for each in found.rows)
            say(_line(measured.rows, part, name))
    return measured


_NEVER_RIGHT: Final = ("SDK, tools=", "SDK, read out of text")
"""Arms that have no field of varied texts right."""
_Calls = Callable[[CallQuestion], Awaitable[Sequence[Call]]]
_Walks = Callable[[Loop], Awaitable[str]]


def _line(rows: Sequence[Row], part: str, arm: str) -> str:
    found = [each for each in rows if (each.part, each.arm) == (part, arm)]
    right, of = sum(each.right for each in found), sum(each.of for each in found)
    seconds = sum(each.seconds for each in found)
    return f"{part}: {arm}: {right} of {of} right, {len(found)} questions, {seconds:.0f} s"


def _data_of(environment: Path) -> Path | None:
    return next(environment.glob("lib/python*/site-packages/bfcl_eval/data"), None)


def _versions(python: Path) -> Iterator[str]:
    names = {
        "instructor": "instructor",
        "pydantic-ai-slim": "Pydantic AI",
        "langchain-openai": "LangChain's OpenAI part",
    }
    script = f"import importlib.metadata as m; print(*map(m.version, {[*names]}))"
    found = subprocess.run([python, "-c", script], capture_output=True, text=True, check=True)
    for label, version in zip(names.values(), found.stdout.split(), strict=True):
        yield f"{label} {version}"


async def _main(options: Options) -> None:
    python, data = PEERS / "bin" / "python", _data_of(PEERS)
    if data is None:
        raise SystemExit(f"{PEERS} does not hold the libraries of others: `make quality` makes it.")
    tasks = chosen_tasks(options, data)
    peers = None if options.is_ablation else python
    async with AsyncExitStack() as stack:
        base_url, key, name = options.base_url, options.api_key, options.model
        if base_url is None:
            _, server = await stack.enter_async_context(model_in_the_box())
            base_url, key, name = server.base_url, server.key, "local"
        profile = await probed(base_url, key, name)
        counted = await stack.enter_async_context(counting_proxy(base_url, key))
        arms = await stack.enter_async_context(arms_at(counted.base_url, name, profile, peers))
        ask = measure_levers if options.is_ablation else measure
        measured = await ask(tasks, arms, counted, lambda line: print(line, flush=True))
    out = ROOT / "out" / ("levers.jsonl" if options.is_ablation else "quality.jsonl")
    out.parent.mkdir(exist_ok=True)
    out.write_text(write_rows(measured.rows), "utf-8")
    checked = "BFCL's own scoring was not compared."
    if (tasks.calls or tasks.more_calls) and not options.is_ablation:
        found = cross_check(call_questions(data), data, measured.calls)
        print(*found.differ[:10], sep="\n")
        checked = (
            f"The scoring of calls is our own: {found.compared} answers, changed right ones "
            f"and those above, were scored by the package as well; {len(found.differ)} differ, and "
            f"at {found.failed} the package breaks off."
        )
    if options.is_ablation:
        _write_levers(options, levers_section(measured.rows, options.command))
        return
    setting = Setting(
        command=options.command,
        model="`local`, SmolLM2-135M-Instruct" if options.base_url is None else f"`{name}`",
        peers=", ".join(_versions(python)),
        cross_check=checked,
    )
    before = options.page.read_text("utf-8") if options.page and options.page.exists() else ""
    text = with_sections(before, page(measured.rows, setting))
    if options.page is None:
        print(text)
    else:
        options.page.write_text(text, "utf-8")
        print(f"{options.page} is written; each answer's row is in {out}.")


def _write_levers(options: Options, section: str) -> None:
    if options.page is None:
        print(section)
        return
    options.page.write_text(with_sections(options.page.read_text("utf-8"), section), "utf-8")
    print(f"{options.page} has the section about levers.")


if __name__ == "__main__":
    asyncio.run(_main(read_options(os.environ)))

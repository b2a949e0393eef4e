"""Rows of what was asked, and the page about them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from attrs import asdict, frozen

from minions.evaluation.statistics import Interval, difference, rate_interval

OURS: Final = "Minions"


@frozen(kw_only=True)
class Row:
    """One question by one arm."""

    part: str
    """One of `make quality`'s."""
    group: str
    question: str
    arm: str
    right: int
    of: int
    failure: str | None
    """Why the arm says that it has no answer; None: it has one."""
    requests: int
    input_tokens: int
    output_tokens: int
    seconds: float
    confidence: float | None = None
    """How sure the model was of its answer; None: that was not asked."""

    @property
    def share(self) -> float:
        """How much is right, from 0 to 1."""
        return self.right / self.of


def write_rows(rows: Sequence[Row]) -> str:
    """One JSON object a line."""
    return "".join(json.dumps(asdict(each)) + "\n" for each in rows)


def read_rows(text: str) -> list[Row]:
    """The rows of such a text."""
    return [Row(**json.loads(line)) for line in text.splitlines()]


@frozen(kw_only=True)
class Setting:
    """What the page says of how it was made."""

    command: str
    model: str
    peers: str
    """Their versions."""
    cross_check: str
    """A sentence about the two scorings of calls."""


def page(rows: Sequence[Row], setting: Setting) -> str:
    """The page, as Markdown.

    Raises:
        ValueError: Two arms of a part were not asked the same questions.
    """
    parts: dict[str, list[Row]] = {}
    for each in rows:
        parts.setdefault(each.part, []).append(each)
    sections = [
        f"## {_TITLES[part]}\n\n{_WORDS[part]}\n\n{_tables(part, found)}\n\n"
        + (f"{setting.cross_check}\n\n" if part in ("calls", "more-calls") else "")
        + f"`{setting.command.replace('make quality', f'make quality QUALITY_ONLY={part}')}`"
        for part, found in parts.items()
    ]
    text = "\n\n".join([_INTRODUCTION.format(**asdict(setting)), *sections, _END])
    return text.strip() + "\n"


_LEVERS: Final = "## Levers"
_LEVERS_WORDS: Final = (
    "What the parts for weak models add, each alone and all together, on questions that are not "
    "held out: these decide what is kept.\n`{command}` asks again and writes this section."
)


_TRIED: Final = """Tried with SmolLM2-135M on development questions and left out, each by a small
sample:

- The tool chosen by its number: never none of them (0 of 8, by name 6), and among several tools
  right for 4 of 8 (by name 6).
- `none` first in the list, or the list in the user's message: 22 of 32 choices right, 27 as it is.
  A second question whether the chosen tool fits: 8.
- How many calls a question needs, as a number: 1 for 22 of 24 questions, though 12 need two to
  four. A list of calls of any length: 0 of 24 right, most with the most calls that are allowed.
  With the right count given, 1 of 12. So one call is made at a time.
- The same list with the tool's name in each item, equal calls and those with values that do not
  stand in the question left out: two or more calls are left for 5 of 12 questions that need them
  and for 1 of 12 that do not, but none of the 12 is right. Whether another call is needed, as yes
  or no: yes for 1 of 10.
- The tool's parameters in a short form: 10 to 12 of 30 calls right, 14 as JSON. The question
  before them instead of behind them: 14 as well, with 8 % more tokens.
- A second look at fields of low probability, each asked for alone and the surer one taken: of 126
  fields below 0.3, 45 right instead of 40; of 180 below 0.45, 73 instead of 66; one more request
  for each. `min_confidence` asks another model instead.
- Enumerations by the number of a value: 23 of 76 right, 29 by the value; each asked for alone, 29.
- Whether a tool is about the question, as the probability of yes: in three wordings it puts 55 to
  59 % of pairs of 35 questions that need a tool and 30 that do not in the right order; chance, 50.
- A worked example of a call before the arguments: 14 and 17 of 40 calls right in two wordings, 16
  without.
- In loops, what tools gave as one list in the question instead of turns: the word is named in 9 of
  24 last answers, as turns in 14. Worked examples of choices: the next tool is right for 3 to 8 of
  12 states and the end for 1 to 8, and twice the tokens. Arguments out of the words in sight alone:
  2 of 18 loops right, with 18 requests each.
- Examples with four of the same kind, on development texts without quotes (SDK by hand 219 of 330
  fields): as it was 211; without the words about the form 213, with 48 tokens less; and quoted 231;
  both 237. Answers with blanks as the SDK has them: 240 quoted, with 27 tokens more. The most alike
  example last: 108 of 165, 107 as they stand. All in one text instead of turns: 82. What was lost
  against the SDK stood in texts: names out of an example, or out of no text at all.
- Values of a list divided by how probable they are for the text `N/A`: 64 of 120 right, 67 without;
  by how probable they are on the average of the texts: 73, which needs the texts of others.
- Several calls as the usual loop, each with the earlier ones in sight, five turns: one call for
  each of seven questions that need two to four.
- Other words by `minions tune --over words`, written by the model itself: refused for the kind that
  was tried, since they leave out the text. A larger reflector was not on the machine.
- Optional parameters only where a word of them stands in the question: 14 of 30 instead of 11, and
  11 % fewer tokens. But it hangs on the language of the question, and loses what was asked for in
  other words."""


def levers_section(rows: Sequence[Row], command: str) -> str:
    """The section about levers, as Markdown."""
    parts: dict[str, list[Row]] = {}
    for each in rows:
        parts.setdefault(each.part, []).append(each)
    text = [_LEVERS, _LEVERS_WORDS.format(command=command)]
    for part, found in parts.items():
        text += [f"{_TITLES[part]}:", _levers_table(found)]
    text.append(_TRIED)
    return "\n\n".join(text)


def _levers_table(rows: Sequence[Row]) -> str:
    ways: dict[str, list[Row]] = {}
    for each in rows:
        ways.setdefault(each.arm, []).append(each)
    none = next(iter(ways.values()))
    groups = list(dict.fromkeys(each.group for each in rows))
    head = ["levers", "right", "better than none by", "told", "requests", "input", "output"]
    lines = [
        f"| {' | '.join([*head, *groups])} |",
        f"|---|{'--:|' * (len(head) - 1 + len(groups))}",
    ]
    for way, found in ways.items():
        count = len(found)
        cells = [way, _interval(rate_interval([each.share for each in found]))]
        cells.append("" if found is none else _points(_difference(none, found)))
        cells.append(str(sum(each.failure is not None for each in found)))
        cells.append(f"{sum(each.requests for each in found) / count:.1f}")
        cells.append(f"{sum(each.input_tokens for each in found) / count:.0f}")
        cells.append(f"{sum(each.output_tokens for each in found) / count:.0f}")
        cells += [f"{_mean([one for one in found if one.group == each]):.0%}" for each in groups]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def with_sections(before: str, after: str) -> str:
    """The page `after` with the sections of `before` that it does not have, each in its place.

    Args:
        before: A page, or sections of one; empty: there is none.
        after: As well; its introduction is kept, or else that of `before`.
    """
    old, new = _sections(before), _sections(after)
    order = ["", *(f"## {each}" for each in _TITLES.values()), _LEVERS, _INJECTIONS]
    found = {**old, **{title: text for title, text in new.items() if text or title}}
    if goals := "\n".join(_goal_rows(found)):
        found[_GOALS] = f"{_GOALS}\n\n{_GOALS_HEAD}\n{goals}\n\n{_GOALS_WORDS}"
    order.insert(1, _GOALS)
    parts = [found[title] for title in sorted(found, key=order.index)]
    return "\n\n".join(filter(None, parts)) + "\n"


_GOALS: Final = "## Goals"
_SAID: Final = re.compile(r"^Minions.*: ([\d.]+) × .*?; (\w+, .* points)\.$", re.MULTILINE)
_GOALS_HEAD: Final = "| | goal | measured | met |\n|---|---|---|---|"
_GOALS_WORDS: Final = """"Level": these questions do not tell the two apart. What was tried stands
[below](#levers); what is missed by the model in the box, and why, as far as it is known:

- **85 % of fields with four examples**: quoted, 78 % of texts are right (61 by the SDK), of numbers
  95 (97), of yes and no 62 (50), and of values of an enumeration 46 (45), which is little more than
  chance. These are judgements, and no form of the question has changed them. `min_confidence`
  leaves them to a larger model.
- **Valid outputs**: of one text in a hundred there is none, and the step says so.
- **Tokens of templated texts**: a fifth of the texts is asked for a second time, and the output is
  described. None of the others asks again, and 13 of 100 texts have no output there.
- **Several calls at once**: 8 of 50 are right as a list by the SDK, and none by Minions, which
  makes one call at a time. Asked for in six other ways; the list is wrong for nearly all single
  calls, and nothing tells beforehand which of the two a question needs.
- **Calls where none is right**: the model says what chance would say.
- **A larger model**: none was on the machine; `QUALITY_MODEL=` asks one."""


@frozen(kw_only=True)
class _Goal:
    """What is wanted of a part."""

    part: str
    what: str
    """The head of its line."""
    least: float
    find: Callable[[str], tuple[float, str] | None]
    """How much was reached by its section, and in words; None: that was not asked."""
    beside: str = ""
    """A further part that it is about."""
    words: str = "≥ {:g} ×"


def _times(section: str) -> tuple[float, str] | None:
    """How many times what the best of the others has right."""
    said = _SAID.search(section)
    return None if said is None else (float(said[1]), f"{said[1]} ×; {said[2]}")


def _lead(sections: str) -> tuple[float, str] | None:
    """The lowest end of the intervals of that difference, in points, where all texts are enough."""
    lows, counts, words = list[float](), list[int](), list[str]()
    for section in re.split(r"^(?=## )", sections, flags=re.MULTILINE):
        said, rows = _SAID.search(section), _read_table(section)
        low = None if said is None else re.search(r"\(([+-]\d+) to", said[2])
        if said is None or low is None or not rows:
            continue
        lows.append(float(low[1]))
        counts.append(int(rows[0]["wholly"].partition(" of ")[2]))
        words.append(f"{said[2].partition(', ')[2].removesuffix(' points')} on {counts[-1]}")
    if not lows:
        return None
    return min(lows) if sum(counts) >= _ENOUGH_TEXTS else 0, "; ".join(words)


_ENOUGH_TEXTS: Final = 200


def _share(section: str) -> tuple[float, str] | None:
    """What Minions' best arm has right."""
    best = _best_of(section, ours=True)
    return None if best is None else (_percent(best), best["right"])


def _tokens(section: str) -> tuple[float, str] | None:
    """How many times as many tokens the thriftiest of the others needs for what is right."""
    rows = [each for each in _read_table(section) if each["tokens per right"] != "-"]
    ours = [int(each["tokens per right"]) for each in rows if each[_WHO].startswith(OURS)]
    others = [int(each["tokens per right"]) for each in rows if not each[_WHO].startswith(OURS)]
    if not ours or not others:
        return None
    return min(others) / min(ours), f"{min(ours)}, {min(others)} by the thriftiest of the others"


def _valid(section: str) -> tuple[float, str] | None:
    """Of how many texts Minions' best arm has a valid output."""
    best = _best_of(section, ours=True)
    if best is None:
        return None
    count = int(best["wholly"].partition(" of ")[2])
    return 100 * (1 - int(best["told"]) / count), f"{count - int(best['told'])} of {count}"


def _checked(section: str) -> tuple[float, str] | None:
    """How much of what Minions passes on fits its schema."""
    best = _best_of(section, ours=True)
    if best is None:
        return None
    right, count = map(int, best["wholly"].split(" of "))
    passed = count - int(best["told"])
    return 100 * right / max(1, passed), f"{right} of {passed} that were passed on fit"


_WHO: Final = "who asks"


def _read_table(section: str) -> list[dict[str, str]]:
    """The first table of a section: a row by its heads."""
    lines = [each for each in section.splitlines() if each.startswith("|")]
    if len(lines) < 3:
        return []
    cells = [[one.strip() for one in each.strip("|").split("|")] for each in lines]
    head, _, *rows = cells
    return [dict(zip(head, each, strict=True)) for each in rows if len(each) == len(head)]


def _best_of(section: str, *, ours: bool) -> dict[str, str] | None:
    rows = [each for each in _read_table(section) if each[_WHO].startswith(OURS) is ours]
    return max(rows, key=_percent, default=None)


def _percent(row: Mapping[str, str]) -> float:
    return float(row["right"].partition("%")[0])


_GOALS_OF: Final = (
    _Goal(part="fields", what="Fields of varied texts", least=1.2, find=_times),
    _Goal(part="templated", what="Fields of templated texts", least=1.2, find=_times),
    _Goal(
        part="fields",
        beside="templated",
        what="Both, whole intervals",
        least=1,
        find=_lead,
        words="> 0 points on ≥ 200 texts that decided nothing",
    ),
    _Goal(part="examples", what="Fields with examples", least=1.08, find=_times),
    _Goal(part="examples", what="The same, share", least=85, find=_share, words="≥ {:g} %"),
    _Goal(part="calls", what="Function calls", least=1.25, find=_times),
    _Goal(part="more-calls", what="More function calls", least=1.25, find=_times),
    _Goal(part="fields", what="Valid outputs", least=99.5, find=_valid, words="≥ {:g} %"),
    _Goal(
        part="examples",
        what="Valid outputs with examples",
        least=99.5,
        find=_valid,
        words="≥ {:g} %",
    ),
    _Goal(
        part="schemas", what="Checked outputs that do not fit", least=100, find=_checked, words="0"
    ),
    _Goal(part="fields", what="Tokens per right field", least=1, find=_tokens, words="fewest"),
    _Goal(
        part="templated", what="The same of templated texts", least=1, find=_tokens, words="fewest"
    ),
    _Goal(
        part="examples",
        what="The same with examples",
        least=1,
        find=_tokens,
        words="fewest",
    ),
)


def _goal_rows(sections: Mapping[str, str]) -> Iterator[str]:
    """A line for each goal whose part was measured against others."""
    for each in _GOALS_OF:
        section = sections.get(f"## {_TITLES[each.part]}", "")
        if _best_of(section, ours=False) is None:
            continue
        beside = sections.get(f"## {_TITLES[each.beside]}", "") if each.beside else ""
        if (found := each.find(f"{section}\n\n{beside}")) is None:
            continue
        reached, words = found
        is_level = "; level, " in words
        met = "**no**" if reached < each.least else "yes, but level" if is_level else "yes"
        yield f"| {each.what} | {each.words.format(each.least)} | {words} | {met} |"


def _sections(text: str) -> dict[str, str]:
    """The sections of a page by their first lines; what stands before them by an empty one."""
    first, *others = re.split(r"^(?=## )", text, flags=re.MULTILINE)
    return {"": first.strip(), **{each.partition("\n")[0]: each.strip() for each in others}}


_INTRODUCTION: Final = """# Quality

What a model gets right by whoever asks it: the same questions to the same server, greedily, with
200 tokens for each answer, one after another. Model: {model}. Others: {peers}.
`make quality` asks again and writes this page; it needs no network once the environment is there.
With `QUALITY_MODEL=NAME QUALITY_BASE_URL=http://…/v1` it asks another model, with `QUALITY_TASKS=5`
at most five questions of each kind, chosen by a seed, with `QUALITY_ONLY=fields,calls` parts.

A share has Wilson's interval at 95 %, or that of the means of questions where a question has
several fields. "Better by" is Minions' share less the other's, in points, on the same questions,
with Newcombe's interval for pairs: where it holds nought, the questions do not tell the two apart.
"Told": there was no answer, and the arm said so. Tokens and requests are those of one question."""
_INJECTIONS: Final = "## Injections"
_END: Final = f"""{_INJECTIONS}

What becomes of injections is counted [on a page of its own](../benchmarks/agent_dojo.md):
`make agent-dojo`."""
_TITLES: Final = {
    "fields": "Fields of varied texts",
    "templated": "Fields of templated texts",
    "examples": "Fields with examples",
    "calls": "Function calls",
    "more-calls": "More function calls",
    "schemas": "Schemas",
    "problems": "Word problems",
    "loops": "Tool loops",
    "confidence": "Confidence",
}
_WORDS: Final = {
    "fields": (
        "Texts of ten kinds, each written by itself ([all of them]"
        "(../benchmarks/quality/field_tasks.txt)), without examples. The held-out half; the other "
        "one is for development. Case, marks around a text and the order of a list do not count."
    ),
    "templated": (
        "Texts of four templates, filled by a seed, without examples: none of them decided "
        "anything. For those who have any field of varied texts right."
    ),
    "examples": (
        "The varied texts with four examples of the same kind, which are of the other half: the "
        "first four of its ten, or of all ten one for each value that the output lists and those "
        "that share most words with the question (`choose: nearest`). Quoted: the recipe says that "
        "a text is at most four words of the question (`x-quoted: 4`). Whoever sends turns before "
        "the question sends what the SDK does here."
    ),
    "calls": (
        "Questions of the Berkeley Function Calling Leaderboard, version 4: one function, several, "
        "several calls, and functions that are not about the question. Right calls are those of "
        "the first three; to call nothing is right in the last, which a server that drops "
        "`tools=` in silence gives to everybody whose model sees none. Every other question; the "
        "others are for development."
    ),
    "more-calls": (
        "More of the same questions that need a call, for the two who have any of them right."
    ),
    "schemas": (
        "Schemas with the keywords that are used most ([all of them]"
        "(../benchmarks/quality/schema_tasks.jsonl)). An answer counts if it fits; what it says "
        "does not. instructor takes classes and no schemas."
    ),
    "problems": (
        "Arithmetic in two or three operations, made by a seed, the answers computed: one prompt; "
        "steps, of which the first works in at most three short lines and the second reads the "
        "number; and a calculation that the model reads and the recipe computes. The held-out half."
    ),
    "loops": (
        "A way of one, two, four or eight calls of one tool, each of which names the next, alone "
        "and beside eight tools that have nothing to do with it: of three kinds, the held-out "
        "half. In steps: a recipe calls the tool, and in a step of its own the model reads one "
        "word out of what it gave, until the tool does not know the word. The recipe's author has "
        "chosen the tool there, and the others are not offered."
    ),
    "confidence": (
        "The fields of varied texts once more, by Minions with `min_confidence`, in the order of "
        "how sure the model was of the value that it was least sure of: what each fifth of the "
        "answers is right in, and what is right of those that are kept where the less sure ones "
        "are left to another model."
    ),
}


_BY_GROUP: Final = ("fields", "templated", "examples", "more-calls", "loops")


def _tables(part: str, rows: Sequence[Row]) -> str:
    if part == "confidence":
        return _confidence_table(rows)
    if part != "calls":
        return _table(rows, by_group=part in _BY_GROUP)
    right = [each for each in rows if each.group != "irrelevance"]
    nothing = [each for each in rows if each.group == "irrelevance"]
    tables = [_table(right, by_group=True)] if right else []
    if nothing:
        tables.append("Where no call is right:\n\n" + _table(nothing, by_group=False))
    return "\n\n".join(tables)


def _confidence_table(rows: Sequence[Row]) -> str:
    """Fifths of the answers, the least sure ones first; what has no answer is in none of them."""
    told = sorted(
        (each for each in rows if each.confidence is not None),
        key=lambda each: each.confidence or 0,
    )
    lines = ["| answers | confidence | right | wholly | right of these and surer ones |"]
    lines.append("|---|--:|--:|--:|--:|")
    for number in range(_FIFTHS):
        begin, end = (len(told) * at // _FIFTHS for at in (number, number + 1))
        found, surer = told[begin:end], told[begin:]
        if not found:
            continue
        cells = [
            f"fifth {number + 1}, the {'least' if not number else 'most'} sure"
            if number in (0, _FIFTHS - 1)
            else f"fifth {number + 1}",
            f"{found[0].confidence:.2f} to {found[-1].confidence:.2f}",
            _interval(rate_interval([each.share for each in found])),
            f"{sum(each.right == each.of for each in found)} of {len(found)}",
            _interval(rate_interval([each.share for each in surer])),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    missing = len(rows) - len(told)
    return "\n".join([*lines, "", f"Without an answer whose confidence is known: {missing}."])


_FIFTHS: Final = 5


def _table(rows: Sequence[Row], *, by_group: bool) -> str:
    arms: dict[str, list[Row]] = {}
    for each in rows:
        arms.setdefault(each.arm, []).append(each)
    asked = {arm: [each.question for each in found] for arm, found in arms.items()}
    if len({tuple(each) for each in asked.values()}) > 1:
        counts = {arm: len(each) for arm, each in asked.items()}
        raise ValueError(f"the arms were not asked the same questions: {counts}")
    own = {arm: found for arm, found in arms.items() if arm.startswith(OURS)}
    best = max(own.values(), key=_mean) if own else []
    groups = list(dict.fromkeys(each.group for each in rows)) if by_group else []
    head = ["who asks", "right", "wholly", f"{best[0].arm} better by" if best else "", "told"]
    head += ["requests", "input", "output", "tokens per right", "s", *groups]
    lines = [f"| {' | '.join(head)} |", f"|---|{'--:|' * (len(head) - 1)}"]
    for arm, found in arms.items():
        cells = [arm, _interval(rate_interval([each.share for each in found]))]
        cells.append(str(sum(each.right == each.of for each in found)) + f" of {len(found)}")
        cells.append("" if not best or found is best else _points(_difference(found, best)))
        cells.append(str(sum(each.failure is not None for each in found)))
        count = len(found)
        cells.append(f"{sum(each.requests for each in found) / count:.1f}")
        cells.append(f"{sum(each.input_tokens for each in found) / count:.0f}")
        cells.append(f"{sum(each.output_tokens for each in found) / count:.0f}")
        right = sum(each.right for each in found)
        tokens = sum(each.input_tokens + each.output_tokens for each in found)
        cells.append(f"{tokens / right:.0f}" if right else "-")
        cells.append(f"{sum(each.seconds for each in found) / count:.2f}")
        cells += [f"{_mean([one for one in found if one.group == each]):.0%}" for each in groups]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", *_verdict(arms, best)])


def _verdict(arms: dict[str, list[Row]], best: Sequence[Row]) -> Iterator[str]:
    """One sentence: Minions' best arm against the best of the others."""
    others = [found for arm, found in arms.items() if not arm.startswith(OURS)]
    if not best or not others:
        return
    other = max(others, key=_mean)
    found = _difference(other, best)
    assert found is not None
    said = "level" if found.low <= 0 <= found.high else "ahead" if found.value > 0 else "behind"
    if not _mean(other):
        yield f"{best[0].arm}: {_points(found)} points; the others have nothing right."
        return
    times = f"{_mean(best) / _mean(other):.2f} × "
    yield (
        f"{best[0].arm}: {times}the best of the others ({other[0].arm}); {said}, "
        f"{_points(found)} points."
    )


def _mean(rows: Sequence[Row]) -> float:
    return sum(each.share for each in rows) / len(rows)


def _difference(other: Sequence[Row], ours: Sequence[Row]) -> Interval | None:
    return difference([each.share for each in other], [each.share for each in ours])


def _interval(found: Interval | None, scale: Callable[[float], str] = "{:.0%}".format) -> str:
    if found is None:
        return "-"
    return f"{scale(found.value)} ({scale(found.low)} to {scale(found.high)})"


def _points(found: Interval | None) -> str:
    return _interval(found, lambda value: f"{100 * value:+.0f}")

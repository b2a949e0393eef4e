"""Checks the scorers of an evaluation against its cases and recipes, before anything is asked."""

from __future__ import annotations

from collections.abc import Sequence

from minions.data.errors import UsageError, did_you_mean
from minions.evaluation.cases import Case, NotGiven, refuse_cases
from minions.evaluation.possible_outputs import why_never, why_unreadable
from minions.evaluation.scorers import Fields, Holds, Parts, Scorer, value_at
from minions.evaluation.suites import AnyScorer
from minions.recipe.model import AgentRecipe

__all__ = ["check_scorers"]


def check_scorers(
    scorers: Sequence[AnyScorer],
    cases: Sequence[Case],
    recipes: Sequence[AgentRecipe],
    *,
    are_recorded: bool = False,
) -> tuple[AnyScorer, ...]:
    """The scorers, or `fields` where there are none and cases say what is expected.

    Args:
        recipes: Those that are asked; a fault is one that is certain for all of them.
        are_recorded: Whether what is expected are recorded outputs: those of an earlier version may
            be others than those of today.
    Raises:
        UsageError: `bad-items`; a scorer reads what no output has, a case does not say what a
            scorer needs, or expects what no recipe can give.
    """
    if not scorers:
        says = any(case.has_expected or case.has_cells for case in cases)
        scorers = (Fields(),) if says else ()
    for scorer in scorers:
        if isinstance(scorer, Scorer):
            _check_readable(scorer, recipes)
            _check_expected(scorer, cases)
            if not are_recorded:
                _check_possible(scorer, cases, recipes)
    return tuple(scorers)


def _check_readable(scorer: Scorer, recipes: Sequence[AgentRecipe]) -> None:
    """Refuse a scorer that reads what no output, and no input, of any of the recipes has."""
    reasons = [why_unreadable(each.known_output, scorer) for each in recipes]
    if reasons and (reason := reasons[0]) is not None and None not in reasons:
        raise UsageError(f"{reason[:1].upper()}{reason[1:]}", code="bad-items")
    known = [name for each in recipes for name in each.inputs]
    for name in scorer.input_names if isinstance(scorer, Holds) and recipes else ():
        if name not in known:
            raise UsageError(
                f"The scorer '{scorer.name}' reads the input '{name}', and the recipe has no such "
                f"input.{did_you_mean(name, known)}",
                code="bad-items",
            )


def _check_expected(scorer: Scorer, cases: Sequence[Case]) -> None:
    """Refuse a case that does not say what the scorer compares with."""
    if scorer.needs_expected:
        without = [case for case in cases if not case.has_expected]
        if without:
            said = "its cells are empty" if without[0].has_cells else "the case says nothing of it"
            raise UsageError(
                f"{_place(without[0])}: the scorer '{scorer.name}' compares with what is expected, "
                f"and {said}{_more(without)}. Write `expected`, or score by `holds`, `regex`, "
                "`schema` or `graded`.",
                code="bad-items",
            )
    for path in scorer.expected_paths:
        dotted = ".".join(map(str, path))
        without = [case for case in cases if isinstance(value_at(case.wanted, dotted), NotGiven)]
        if without:
            raise UsageError(
                f"{_place(without[0])}: the scorer '{scorer.name}' compares with '{dotted}', and "
                f"the case does not say what is expected of it{_more(without)}."
                f"{_near(path, cases)}",
                code="bad-items",
            )


def _check_possible(scorer: Scorer, cases: Sequence[Case], recipes: Sequence[AgentRecipe]) -> None:
    """Refuse cases that no output of any of the recipes could pass."""
    faults: list[str] = []
    for case in cases:
        reasons = [why_never(each.known_output, case, scorer) for each in recipes]
        if reasons and (reason := reasons[0]) is not None and None not in reasons:
            faults.append(f"{_place(case)}: {reason}")
    refuse_cases(faults)


def _place(case: Case) -> str:
    return case.place or case.name


def _more(cases: Sequence[Case]) -> str:
    return f" (and {len(cases) - 1} more)" if len(cases) > 1 else ""


def _near(path: Parts, cases: Sequence[Case]) -> str:
    """Fields that are expected with a name like that."""
    known = dict.fromkeys(name for case in cases for name in case.expected_fields)
    return did_you_mean(str(path[0]), list(known)) if str(path[0]) not in known else ""

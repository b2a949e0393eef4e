"""What is changed in a module, and that the table of the guards is up to date."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from mutation.guards import EQUIVALENT, GUARDS, Guard
from mutation.mutants import Mutant, mutants_of
from mutation.options import Options, chosen_mutants

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def mutants() -> Mapping[str, Sequence[Mutant]]:
    """Of every guard."""
    return {path: mutants_of(path, (ROOT / "minions" / path).read_text("utf-8")) for path in GUARDS}


def changes(source: str) -> set[str]:
    """The changed lines of each mutant."""
    return {mutant.after for mutant in mutants_of("module.py", source)}


@pytest.mark.parametrize(
    ("line", "changed"),
    [
        ("a = b == c", {"a = (b != c)"}),
        ("A: Final = {b: c, d: e}", {"A: Final = {d: e}", "A: Final = {b: c}"}),
        ("A: Final = 30", {"A: Final = 31", "A: Final = 29"}),
        ("a = b is None", {"a = (b is not None)"}),
        ("a = b <= c", {"a = (b < c)"}),
        ("a = b and c", {"a = (b or c)", "a = (b)", "a = (c)"}),
        ("a = not b", {"a = (b)"}),
        ("a = b in (C, D)", {"a = (b not in (C, D))", "a = b in (D,)", "a = b in (C,)"}),
        ("a = frozenset({B, C})", {"a = frozenset({B})", "a = frozenset({C})"}),
        ("a = b if c else d", {"a = b if not (c) else d"}),
        ("a = len(b) > 2", {"a = (len(b) >= 2)", "a = len(b) > 3", "a = len(b) > 1"}),
        ("a = max(b, c)", {"a = min(b, c)"}),
        ("a = call(b=True)", {"a = call(b=False)"}),
        ("check(a)", {"pass"}),
        ("log = self.log.info(a)", set()),
        ("self.log.info(a)", set()),
        ("self._log.warning(a)", set()),
        ("a = f'{b == c}'", set()),
        ("a = b[:2]", set()),
    ],
)
def test_a_condition_is_changed_in_every_way_that_matters(line: str, changed: set[str]) -> None:
    assert changes(line) == changed


def test_an_early_return_is_left_out() -> None:
    assert changes("def f(a):\n    if a:\n        return 1\n    return 2\n") == {
        "if not (a):",
        "pass",
    }


def test_a_default_is_flipped() -> None:
    assert changes("def f(*, a=False): ...\n") == {"def f(*, a=True): ..."}


def test_documents_and_types_stay_as_they_are() -> None:
    assert changes('"""a == b"""\ndef f(a: X[True]) -> None:\n    """Not b."""\n') == set()


def test_every_guard_and_its_tests_exist() -> None:
    """A module that is not in the table is refused, so the table has to hold."""
    missing = [path for path in GUARDS if not (ROOT / "minions" / path).is_file()]
    missing += [
        test
        for guard in GUARDS.values()
        for test in guard.tests
        if not (ROOT / "tests" / test).exists()
    ]
    assert missing == []


def test_every_place_that_a_guard_names_has_mutants(
    mutants: Mapping[str, Sequence[Mutant]],
) -> None:
    missing = {
        (path, place)
        for path, guard in GUARDS.items()
        for place in guard.places
        if not any(Guard(tests=(), places=frozenset({place})).holds(m) for m in mutants[path])
    }
    assert missing == set()


def test_every_change_that_is_called_equivalent_is_one_of_the_mutants(
    mutants: Mapping[str, Sequence[Mutant]],
) -> None:
    stale = [
        each for each in EQUIVALENT if not any(each.is_about(one) for one in mutants[each.path])
    ]
    assert stale == []


def test_the_same_seed_chooses_the_same_mutants() -> None:
    def sample(seed: str) -> list[str]:
        options = Options.read(
            ["--module", "engine/services/budget.py", "--sample", "5", "--seed", seed]
        )
        return [mutant.text for mutant in chosen_mutants(ROOT, options)]

    assert sample("1") == sample("1")
    assert sample("1") != sample("2")


def test_mutants_are_programs() -> None:
    for mutant in chosen_mutants(ROOT, Options.read(["--sample", "50"])):
        compile(mutant.text, mutant.path, "exec")


def test_a_module_without_an_entry_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        Options.read(["--module", "engine/history/memory.py"])
    assert "engine/history/memory.py is not in the table GUARDS" in capsys.readouterr().err

"""A session of pytest that runs the tests of many mutants, each in a forked child of its own.

The tests are collected once; a child puts the change into the loaded module and runs those that
run the changed lines. The file is changed meanwhile, too, for tests that start processes. So this
belongs into a copy of the tree.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import shutil
import signal
import sys
import threading
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from pathlib import Path
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Final, TypeAlias

import pytest
from attrs import field, frozen, mutable

from mutation.mutants import Mutant

if TYPE_CHECKING:
    from _typeshed import TraceFunction

__all__ = ["KILLED", "SURVIVED", "TIMED_OUT", "Judge", "Question"]

SURVIVED: Final = "survived"
KILLED: Final = "killed"
TIMED_OUT: Final = "timed out"

_GRACE_S: Final = 10.0
"""What each test has beside ten times what it takes."""
_LONGEST_S: Final = 600.0
_BROKEN: Final = 70
"""The exit code of a child that did not come to its tests."""
_NEEDS_SERVER: Final = "postgres"
"""In the id of a test: it starts a server, and looks at none of the modules here."""

_Lines: TypeAlias = Mapping[str, frozenset[int]]
"""By module: the lines that a test ran."""


@frozen(kw_only=True)
class Question:
    """A mutant, and the tests that concern its module."""

    mutant: Mutant
    tests: tuple[str, ...]
    """The beginnings of their ids."""


@frozen(kw_only=True)
class _Baseline:
    """What the tests do with the tree as it is."""

    seconds: Mapping[str, float]
    lines: Mapping[str, _Lines]

    def tests_of(self, question: Question) -> list[str]:
        """Those that run the changed lines, the quickest first.

        What is evaluated at import concerns every test that runs anything of the module.
        """
        mutant = question.mutant
        changed = range(mutant.first_line, mutant.last_line + 1)
        is_at_import = mutant.in_signature or not mutant.is_in_function
        found = [
            test
            for test, ran in self.lines.items()
            if test.startswith(question.tests)
            if (known := ran.get(mutant.path)) and (is_at_import or not known.isdisjoint(changed))
        ]
        return sorted(found, key=lambda test: (self.seconds[test], test))


@mutable(eq=False)
class Judge:
    """A plugin of pytest, in place of the loop that runs the tests."""

    root: Path
    """Of the copy."""
    questions: Sequence[Question]
    tell: Callable[[Question, str], None]
    """Called with each verdict."""
    _items: dict[str, pytest.Item] = field(factory=dict, init=False)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Judge one after the other.

        Raises:
            UsageError: A test fails without any mutant.
        """
        self._items = {
            item.nodeid: item for item in session.items if _NEEDS_SERVER not in item.nodeid
        }
        baseline = self._baseline(session)
        for question in self.questions:
            self.tell(question, self._verdict(session, baseline, question))
        return True

    def _baseline(self, session: pytest.Session) -> _Baseline:
        log = self.root / "baseline.json"
        paths = {
            str(self.root / "minions" / path): path
            for path in {each.mutant.path for each in self.questions}
        }
        tracer = _Tracer(paths)

        def trace() -> int:
            session.config.pluginmanager.register(tracer)
            items = list(self._items.values())
            code = _run(session, items, [_LONGEST_S] * len(items))
            log.write_text(json.dumps({"seconds": tracer.seconds, "lines": tracer.found()}))
            return code

        if _in_child(trace) != 0:
            raise pytest.UsageError("The tests fail without any mutant; see the output above.")
        stored = json.loads(log.read_text("utf-8"))
        lines = {
            test: {path: frozenset(ran) for path, ran in by_path.items()}
            for test, by_path in stored["lines"].items()
        }
        return _Baseline(seconds=stored["seconds"], lines=lines)

    def _verdict(self, session: pytest.Session, baseline: _Baseline, question: Question) -> str:
        mutant = question.mutant
        tests = baseline.tests_of(question)
        if not tests:
            return SURVIVED

        def run() -> int:
            gc.disable()  # what a mutant leaves must not be finalized in the midst of a report
            try:
                _put_into(_module(mutant.path), mutant)
            except _NotPatchedError:
                raise
            except Exception:  # noqa: BLE001  # a module that cannot be loaded fails every test
                return 1
            limits = [_GRACE_S + 10 * baseline.seconds[test] for test in tests]
            return _run(session, [self._items[test] for test in tests], limits)

        shutil.rmtree(self.root / ".hypothesis", ignore_errors=True)
        with _changed(self.root / "minions" / mutant.path, mutant.text):
            code = _in_child(run)
        if code == _BROKEN:
            raise pytest.UsageError(
                f"{mutant.path}:{mutant.first_line} could not be judged; see above."
            )
        if code == -signal.SIGALRM:
            return TIMED_OUT
        return SURVIVED if code == 0 else KILLED


def _run(session: pytest.Session, items: Sequence[pytest.Item], limits: Sequence[float]) -> int:
    """1 once one fails. One that takes longer than its limit, in seconds, ends the process."""
    for item, following, limit_s in zip(items, [*items[1:], None], limits, strict=True):
        signal.setitimer(signal.ITIMER_REAL, limit_s)
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if session.testsfailed:
            return 1
    return 0


# --- children ------------------------------------------------------------------------------------


def _in_child(action: Callable[[], int]) -> int:
    """What it gives; negative: the signal that ended it. Nothing that it started is left."""
    child = os.fork()
    if child == 0:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        code = _BROKEN
        try:
            code = action()
        except BaseException:  # noqa: BLE001  # nothing may return into the parent's code
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    try:
        _, status = os.waitpid(child, 0)
        return os.waitstatus_to_exitcode(status)
    finally:
        _kill(child)


def _kill(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
        os.waitpid(group, 0)
    except (ProcessLookupError, ChildProcessError):
        return


# --- the change ----------------------------------------------------------------------------------


class _NotPatchedError(Exception):
    """The change cannot be put into a module that is loaded."""


@frozen
class _changed:  # noqa: N801  # a context manager
    path: Path
    text: str
    _before: list[bytes] = field(factory=list, init=False)

    def __enter__(self) -> None:
        at = self.path.stat().st_mtime
        self._before.append(self.path.read_bytes())
        self.path.write_text(self.text, "utf-8")
        # Bytecode counts as that of a file by its time, in seconds, and by its size.
        os.utime(self.path, (at + 60, at + 60))

    def __exit__(self, *_: object) -> None:
        at = self.path.stat().st_mtime
        self.path.write_bytes(self._before.pop())
        os.utime(self.path, (at - 60, at - 60))


def _module(path: str) -> ModuleType:
    name = path.removesuffix(".py").replace("/", ".")
    return importlib.import_module(f"minions.{name}")


def _put_into(module: ModuleType, mutant: Mutant) -> None:
    """Give what is loaded the code, the defaults and the constants of the changed text."""
    fresh = ModuleType(module.__name__)
    fresh.__dict__.update(__file__=module.__file__, __package__=module.__package__)
    assert module.__file__ is not None
    exec(compile(mutant.text, module.__file__, "exec", dont_inherit=True), fresh.__dict__)
    if not isinstance(vars(module)[mutant.place.partition(".")[0]], (type, FunctionType)):
        _replace_constants(module, fresh)
        return
    old: object = module
    new: object = fresh
    for name in mutant.place.split("."):
        owner, old, new = old, vars(old)[name], vars(new)[name]
        pairs = list(zip(_functions(old), _functions(new), strict=True))
        for function, changed in pairs:
            _patch(owner, function, changed)
        if pairs:
            return
    if not isinstance(old, type):
        raise _NotPatchedError(mutant.place)
    old.__init__ = new.__init__  # type: ignore[misc]  # the defaults of its fields


def _patch(owner: object, function: FunctionType, changed: FunctionType) -> None:
    function.__defaults__ = changed.__defaults__
    function.__kwdefaults__ = changed.__kwdefaults__
    if function.__code__.co_freevars == changed.__code__.co_freevars:
        function.__code__ = changed.__code__
    elif vars(owner).get(function.__name__) is function:
        setattr(owner, function.__name__, _with_code(function, changed.__code__))
    else:
        raise _NotPatchedError(function.__qualname__)


def _with_code(function: FunctionType, code: CodeType) -> FunctionType:
    """Where a change drops a name of the class around, such as that of `super()`."""
    known = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    closure = tuple(known[name] for name in code.co_freevars)
    return FunctionType(
        code, function.__globals__, function.__name__, function.__defaults__, closure
    )


def _functions(value: object) -> list[FunctionType]:
    """Those behind a name: of a property all that it has."""
    if isinstance(value, property):
        parts: tuple[object, ...] = (value.fget, value.fset, value.fdel)
    elif isinstance(value, (classmethod, staticmethod)):
        parts = (value.__func__,)
    else:
        parts = (value,)
    unwrapped = [getattr(part, "__wrapped__", part) for part in parts]
    return [part for part in unwrapped if isinstance(part, FunctionType)]


def _replace_constants(module: ModuleType, fresh: ModuleType) -> None:
    """Also where other modules have imported them."""
    for name, new in vars(fresh).items():
        old = vars(module).get(name)
        if name.startswith("__") or isinstance(new, (type, FunctionType, ModuleType)):
            continue
        if old is new or type(old) is not type(new):
            continue
        for each in [each for each in sys.modules.values() if _is_ours(each)]:
            if vars(each).get(name) is old:
                setattr(each, name, new)


def _is_ours(module: object) -> bool:
    return isinstance(module, ModuleType) and module.__name__.startswith("minions")


# --- which lines a test runs ---------------------------------------------------------------------


class _Tracer:
    """Notes for each test how long it takes and which lines of the modules it runs."""

    def __init__(self, paths: Mapping[str, str]) -> None:
        self.seconds: dict[str, float] = {}
        self._paths = paths
        self._lines: dict[str, dict[str, set[int]]] = {}
        self._now: dict[str, set[int]] = defaultdict(set)

    def found(self) -> dict[str, dict[str, Iterable[int]]]:
        """By test and module."""
        return {
            test: {path: sorted(ran) for path, ran in by_path.items()}
            for test, by_path in self._lines.items()
        }

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Around setup, test and teardown."""
        self._now = self._lines[item.nodeid] = defaultdict(set)
        begin = time.perf_counter()
        threading.settrace(self._trace)
        sys.settrace(self._trace)
        try:
            return (yield)
        finally:
            sys.settrace(None)
            self.seconds[item.nodeid] = round(time.perf_counter() - begin, 4)

    def _trace(self, frame: FrameType, event: str, argument: object) -> TraceFunction | None:
        path = self._paths.get(frame.f_code.co_filename)
        if path is None:
            return None
        lines = self._now[path]

        def note(frame: FrameType, event: str, argument: object) -> TraceFunction:
            lines.add(frame.f_lineno)
            return note

        lines.add(frame.f_lineno)
        return note

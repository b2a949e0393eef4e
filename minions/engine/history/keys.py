"""Keys of work: the place of a piece of work in its run, and how to read it from the key.

A key is `step/visit/iteration`. A prefix names the enclosing recipe steps in the same form, with
`~` for `/` (`each~1~2~say/1/0`); a suffix names what the execution did (`…/model/1`). `@generation`
marks an execution that was begun again in a later execution of the run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

_WITHIN: Final = "~"
_QUESTION: Final = re.compile(r"/question/[0-9]{1,9}-[0-9a-f]{8}\Z")
_BUDGET: Final = "/budget"
RESERVED_SIGNS: Final = "/~"
"""Characters that no step id may contain."""


def execution_key(key: str) -> str:
    """The key of the execution, `step/visit/iteration` with `@generation`, of a key below it."""
    parts = key.split("/", 3)
    if len(parts) < 3:
        return key
    return "/".join((*parts[:2], parts[2].partition("#")[0]))


def base_key(key: str) -> str:
    """The key without `@generation`, which only its last part has; `#place` behind it stays."""
    head, slash, last = key.rpartition("/")
    iteration, _, rest = last.partition("@")
    _, sign, place = rest.partition("#")
    return f"{head}{slash}{iteration}{sign}{place}"


def scope_of(key: str) -> str:
    """The prefix of all keys within the recipe that the execution `key` runs.

    It has no generation: steps that finished in a failed execution are replayed in the next one.
    """
    return f"{base_key(key).replace('/', _WITHIN)}{_WITHIN}"


def outermost(key: str) -> str:
    """The id of the run's own step that encloses the work of `key`."""
    return key.partition(_WITHIN)[0].partition("/")[0]


def step_of(key: str) -> str:
    """The step's id, with the prefix of the enclosing recipe steps."""
    return key.partition("/")[0]


def head_of(base: str) -> str:
    """`step/visit`, which all iterations of one visit share."""
    return base.rpartition("/")[0]


def enclosing(base: str) -> Iterator[str]:
    """Keys of the executions that enclose this one, the outermost first."""
    *outer, _ = base.split(_WITHIN)
    before = ""
    for step, visit, iteration in zip(outer[::3], outer[1::3], outer[2::3], strict=True):
        yield f"{before}{step}/{visit}/{iteration.partition('#')[0]}"
        before += f"{_WITHIN.join((step, visit, iteration))}{_WITHIN}"


def path_of(base: str) -> str:
    """The path of the step by ids alone: `outer/inner`."""
    *outer, own = base.split(_WITHIN)
    return "/".join((*outer[::3], own.partition("/")[0]))


def question_key(call_key: str, name: str) -> str:
    """The key of a question that a tool call asks."""
    return f"{call_key}/question/{name}"


def budget_key(call_key: str) -> str:
    """The key of the decision about a budget, at whose threshold a model call waits."""
    return f"{call_key}{_BUDGET}"


def is_budget_key(key: str) -> bool:
    """Whether the key is that of a decision about a budget."""
    return key.endswith(_BUDGET)


def is_question_key(key: str) -> bool:
    """Whether the key is that of a question that a tool call asks."""
    return _QUESTION.search(key) is not None

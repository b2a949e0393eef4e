"""Examples of the document on the module of the step executor, run with other imports alone."""

from __future__ import annotations

import asyncio
import logging
import textwrap
import time
import typing
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

from minions import guide
from minions.engine.context.agent_memory import AgentMessage
from minions.guide import AgentSandbox, AgentStepExecutor

Kind = type[AgentStepExecutor]


def names() -> dict[str, object]:
    """What the examples import: the words of the document, and what they stand for here."""
    return {
        **{name: getattr(guide, name) for name in guide.__all__},
        "StepExecutor": AgentStepExecutor,
        "Message": AgentMessage,
        "Sandbox": AgentSandbox,
        "asyncio": asyncio,
        "time": time,
        "ThreadPoolExecutor": ThreadPoolExecutor,
        "Any": Any,
        "Dict": dict,
        "List": list,
        "Optional": typing.Optional,
        "Callable": Callable,
        "logger": logging.getLogger("mars"),
    }


def class_of(code: str, name: str) -> Kind:
    """The class that an example defines."""
    known = names()
    exec(code, known)
    return cast("Kind", known[name])


def with_method(code: str) -> Kind:
    """An executor with the one method that an example defines."""
    return class_of(f"class Mine(StepExecutor):\n{textwrap.indent(code, '    ')}", "Mine")


async def variables_of(code: str, **known: object) -> Mapping[str, Any]:  # Any: of the example
    """What the variables of an example that awaits are at its end."""
    space = names() | known
    exec(f"async def example():\n{textwrap.indent(code, '    ')}    return locals()", space)
    example = cast("Callable[[], Any]", space["example"])
    return cast("Mapping[str, Any]", await example())

"""Finds the compiler of a kind; its module is loaded when a recipe has such a step."""

from __future__ import annotations

from importlib import import_module
from typing import cast

from minions.data.errors import UsageError
from minions.engine.compile.kinds.compiler import StepCompiler
from minions.recipe.kinds.kind_registry import KINDS
from minions.recipe.model import StepSpec

_PACKAGE = __name__.rpartition(".")[0]


def compiler_of(spec: StepSpec) -> StepCompiler[StepSpec]:
    """The compiler of a spec's kind, from the module with the kind's name.

    Raises:
        UsageError: `unknown-kind`; the kind is not registered.
    """
    kind = KINDS.get(spec.kind)
    if kind is None or not isinstance(spec, kind.spec):
        raise UsageError(
            f"Step '{spec.id}' is of a kind that is not registered: {type(spec).__name__}. Kinds "
            f"are: {', '.join(KINDS)}.",
            code="unknown-kind",
        )
    module = import_module(f"{_PACKAGE}.{kind.module}")
    return cast("StepCompiler[StepSpec]", module.COMPILER)

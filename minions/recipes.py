"""The parts of recipes, and their faults.

Each name is imported when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from minions._lazy import home_of, lazy_names

if TYPE_CHECKING:
    from minions.contracts.retry_config import CircuitPolicy, RetryConfig
    from minions.contracts.secrets import InputValue
    from minions.data.errors import Fault, NotFoundError
    from minions.data.json_values import JsonValue
    from minions.engine.compile.function_steps import FunctionStep
    from minions.engine.compile.selection import RunPart
    from minions.engine.run.questions import analyze_data, extract_params
    from minions.recipe.model import InputSpec, StepSpec
    from minions.recipe.model_config import ModelConfig


__all__ = [
    "CircuitPolicy",
    "Fault",
    "FunctionStep",
    "InputSpec",
    "InputValue",
    "JsonValue",
    "ModelConfig",
    "NotFoundError",
    "RetryConfig",
    "RunPart",
    "StepSpec",
    "analyze_data",
    "extract_params",
]

_HOMES: Final = {
    "minions.data.errors": (
        "Fault",
        "NotFoundError",
    ),
    "minions.data.json_values": ("JsonValue",),
    "minions.contracts.retry_config": (
        "CircuitPolicy",
        "RetryConfig",
    ),
    "minions.contracts.secrets": ("InputValue",),
    "minions.engine.compile.function_steps": ("FunctionStep",),
    "minions.engine.compile.selection": ("RunPart",),
    "minions.engine.run.questions": (
        "analyze_data",
        "extract_params",
    ),
    "minions.recipe.model": (
        "InputSpec",
        "StepSpec",
    ),
    "minions.recipe.model_config": ("ModelConfig",),
}
_HOME_OF: Final = home_of(_HOMES)

if not TYPE_CHECKING:  # a checker shall find a misspelled name
    __getattr__, __dir__ = lazy_names(__name__, _HOME_OF)

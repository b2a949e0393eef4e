"""What a value must be besides its type, said where the type is said."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from attrs import frozen


@frozen
class Constraint:
    """Refuses some values of a type: `Annotated[int, Constraint(is_positive, "a number above 0")]`.

    `minions.data.codec.decode` checks it wherever the type occurs.
    """

    holds: Callable[[Any], bool]  # Any: a value of the annotated type
    """Whether a value of that type will do."""
    expected: str
    """What was expected, for messages."""

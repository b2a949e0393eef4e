"""How the work of a step ended."""

from __future__ import annotations

from attrs import frozen

from minions.contracts.verdicts import Completion
from minions.data.errors import FailureInfo


@frozen(kw_only=True)
class Ending:
    """How the work ended: an output, or an error."""

    output: object = None
    error: FailureInfo | None = None
    completion: Completion | None = None

"""Where a recipe stands in its run: its keys and paths begin with this."""

from __future__ import annotations

from attrs import frozen

__all__ = ["Scope"]


@frozen(kw_only=True)
class Scope:
    """Where a recipe stands in its run."""

    keys: str = ""
    """Before each of its steps' keys: `outer~1~0~`."""
    path: str = ""
    """Before each of its steps' names: `outer/`."""

"""The built-in sandboxes for code, each made when it is first needed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from minions.contracts.sandbox import CodeSandbox

_NAMES: Final = ("monty", "process")


class BuiltInSandboxes(Mapping[str, CodeSandbox]):
    """The built-in sandboxes by name. Nothing is loaded or tried before one is used."""

    def __getitem__(self, name: str) -> CodeSandbox:
        if name not in _NAMES:
            raise KeyError(name)
        from minions.adapters.sandboxes.python_sandboxes import MontySandbox, ProcessSandbox

        return MontySandbox() if name == "monty" else ProcessSandbox()

    def __contains__(self, name: object) -> bool:
        return name in _NAMES

    def __iter__(self) -> Iterator[str]:
        return iter(_NAMES)

    def __len__(self) -> int:
        return len(_NAMES)

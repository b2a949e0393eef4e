"""The log of one run: each line says of which run, and of which step, it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from msgspec import Struct

from minions.contracts.runtime import Log
from minions.contracts.secrets import Secrets
from minions.data.json_values import JsonValue


class RunLog(Struct, frozen=True):
    """Passes lines on with the facts that are bound; secrets of the run become markers."""

    log: Log
    facts: Mapping[str, object]
    secrets: Secrets

    def info(self, event: str, /, **facts: object) -> None:
        """Log an event of the run."""
        self.log.info(event, **self._bind_facts(facts))

    def warning(self, event: str, /, **facts: object) -> None:
        """Log an event of the run that someone should look at."""
        self.log.warning(event, **self._bind_facts(facts))

    def _bind_facts(self, facts: dict[str, object]) -> dict[str, object]:
        if self.secrets:
            facts = {name: self._clean_value(value) for name, value in facts.items()}
        return {**self.facts, **facts}

    def _clean_value(self, value: object) -> object:
        if isinstance(value, str):
            return self.secrets.clean_text(value)
        if isinstance(value, dict | list):
            return self.secrets.clean(cast("JsonValue", value))
        return value

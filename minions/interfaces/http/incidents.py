"""Unexpected errors: logged under a number, which is all that a caller learns."""

from __future__ import annotations

import logging
import traceback
from http import HTTPStatus
from typing import Final

from minions.contracts.runtime import Ids, Log
from minions.data.errors import MinionsError, words_of
from minions.interfaces.http.problems import RefusedError


class StandardLog:
    """The logger `minions.server` of the standard library, which an application configures."""

    def __init__(self) -> None:
        self._logger = logging.getLogger("minions.server")

    def info(self, event: str, /, **facts: object) -> None:
        """Log one line."""
        self._logger.info(_line(event, facts))

    def warning(self, event: str, /, **facts: object) -> None:
        """Log one line as a warning."""
        self._logger.warning(_line(event, facts))


def _line(event: str, facts: dict[str, object]) -> str:
    return " ".join((event, *(f"{name}={value!r}" for name, value in facts.items())))


_OPERATORS: Final = frozenset(
    {"bad-configuration", "broken-extension", "empty-extension", "unknown-extension"}
)
"""Codes of faults in files of the operator, whose content and place a caller does not learn."""


class Incidents:
    """Reports unexpected errors."""

    def __init__(self, log: Log, ids: Ids, token: str) -> None:
        """Log to `log`.

        Args:
            token: The server's token, which is removed from what is logged; empty: there is none.
        """
        self._log = log
        self._ids = ids
        self._token = token

    def report(self, error: BaseException) -> MinionsError:
        """Log an unexpected error, and return the error for the caller; ours are returned as they
        are.
        """
        if isinstance(error, MinionsError):
            return self._of_operator(error) if error.error_code in _OPERATORS else error
        number = self._ids("err")
        frames = traceback.extract_tb(error.__traceback__)
        trace = " < ".join(f"{each.filename}:{each.lineno}" for each in reversed(frames))
        words = words_of(error)
        if self._token:
            words = words.replace(self._token, "***")
        self._log.warning("unexpected_error", id=number, error=words, trace=trace)
        return RefusedError(
            HTTPStatus.INTERNAL_SERVER_ERROR,
            "internal",
            f"An unexpected error happened. The server's log has it under '{number}'.",
            instance=f"urn:minions:incident:{number}",
        )

    def _of_operator(self, error: MinionsError) -> MinionsError:
        number = self._ids("err")
        self._log.warning("operators_fault", id=number, error=error.message, where=error.where)
        return RefusedError(
            HTTPStatus.INTERNAL_SERVER_ERROR,
            error.error_code,
            "The configuration of this server, or an extension of it, has a fault. The log has it "
            f"under '{number}'.",
            instance=f"urn:minions:incident:{number}",
        )

"""Redactors of mail addresses, payment cards, IBANs, and of what an operator's pattern says."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from minions.contracts.redaction import Finding, Redactor
from minions.data.errors import UsageError
from minions.data.patterns import compiled_pattern

_MAIL: Final = re.compile(
    r"(?<![\w.%+'-])[\w.%+'-]{1,64}@(?:[\w-]{1,63}\.){1,8}[^\W\d_]{2,63}(?![\w-])"
)
_DIGITS: Final = re.compile(r"(?<!\d)\d(?:[ -]?\d){12,18}(?!\d)")
_IBAN: Final = re.compile(r"(?<![A-Za-z0-9])[A-Za-z]{2}\d{2}(?: ?[A-Za-z0-9]){11,30}")
_SHORTEST_IBAN: Final = 15
_PATTERN_S: Final = 1.0


class MailRedactor(Redactor):
    """Mail addresses, as people write them; none in quotes or with comments."""

    def find(self, text: str) -> Sequence[Finding]:
        """The addresses; a text without `@` is not searched."""
        return [Finding(*found.span()) for found in _MAIL.finditer(text)] if "@" in text else []


class CardRedactor(Redactor):
    """Numbers of payment cards: 13 to 19 digits, in groups or not, with a right last digit."""

    def find(self, text: str) -> Sequence[Finding]:
        """The numbers whose last digit is right."""
        return [Finding(*found.span()) for found in _DIGITS.finditer(text) if _fits_luhn(found[0])]


class IbanRedactor(Redactor):
    """International bank account numbers, in groups or not, with right check digits."""

    def find(self, text: str) -> Sequence[Finding]:
        """The numbers whose check digits are right, each as long as it can be."""
        findings = list[Finding]()
        behind = 0
        while (found := _IBAN.search(text, behind)) is not None:
            length = _iban_length(text, *found.span())
            behind = found.start() + (length or 4)
            if length:
                findings.append(Finding(found.start(), behind))
        return findings


class PatternRedactor(Redactor):
    """What a regular expression of the operator matches, within a second for each text: who writes
    the text could else keep the process busy. Beyond that the call fails, and nothing is sent.
    """

    def __init__(self, pattern: str) -> None:
        """Compile it.

        Raises:
            UsageError: `bad-configuration`; it is no pattern, or matches an empty text.
        """
        try:
            self._pattern = compiled_pattern(pattern)
        except ValueError as error:
            raise UsageError(
                f"The pattern {pattern!r} of [redaction.patterns] cannot be read: {error}.",
                code="bad-configuration",
            ) from error
        if self._pattern.search("") is not None:
            raise UsageError(
                f"The pattern {pattern!r} of [redaction.patterns] matches an empty text.",
                code="bad-configuration",
            )

    def find(self, text: str) -> Sequence[Finding]:
        """Its matches that are not empty.

        Raises:
            TimeoutError: It takes too long.
        """
        found = self._pattern.finditer(text, timeout=_PATTERN_S)
        return [Finding(*each.span()) for each in found if each[0]]


def _fits_luhn(text: str) -> bool:
    total = 0
    for number, digit in enumerate(int(each) for each in reversed(text) if each.isdigit()):
        doubled = digit * 2 if number % 2 else digit
        total += doubled - 9 if doubled > 9 else doubled
    return total % 10 == 0 and total > 0


def _iban_length(text: str, start: int, end: int) -> int:
    """How many characters of the candidate are an IBAN, the longest one; 0: none is."""
    for last in range(end, start, -1):
        inner = text[start:last]
        if not inner[-1].isalnum() or text[last : last + 1].isalnum():
            continue
        compact = inner.replace(" ", "").upper()
        if len(compact) < _SHORTEST_IBAN:
            return 0
        turned = compact[4:] + compact[:4]
        if turned.isascii() and int("".join(str(int(each, 36)) for each in turned)) % 97 == 1:
            return last - start
    return 0

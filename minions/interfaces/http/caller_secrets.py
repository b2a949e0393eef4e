"""Which secrets callers may refer to: a caller must not choose what the server reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from http import HTTPStatus

from attrs import frozen

from minions.contracts.secrets import InputValue, SecretRef
from minions.data.errors import UsageError
from minions.interfaces.http.caller_way import OVER_HTTP, CallerWay
from minions.interfaces.http.problems import RefusedError
from minions.recipe.model import AgentRecipe


@frozen
class CallerSecrets:
    """The references that the operator lists; each secret input also takes its own default."""

    listed: frozenset[SecretRef]
    way: CallerWay = OVER_HTTP

    @classmethod
    def of(cls, references: Sequence[str], way: CallerWay = OVER_HTTP) -> CallerSecrets:
        """The references of the setting `caller_secrets`.

        Raises:
            UsageError: `bad-configuration`; one is not valid.
        """
        try:
            return cls(frozenset(map(SecretRef.parse, references)), way)
        except UsageError as error:
            raise UsageError(
                f"caller_secrets, or --allow-secret: {error.message}", code="bad-configuration"
            ) from error

    def check(
        self, recipe: AgentRecipe, given: Mapping[str, InputValue], *, is_stored: bool = True
    ) -> None:
        """Refuse references that the caller chose; texts that are no references are refused later.

        Args:
            is_stored: Whether the recipe is the operator's; False: the caller wrote its defaults,
                too.
        Raises:
            RefusedError: `secret-refused`; no secret was read, and the message does not say whether
                it exists.
        """
        if problems := list(self._problems(recipe, given, is_stored=is_stored)):
            raise RefusedError(HTTPStatus.FORBIDDEN, "secret-refused", "\n".join(problems))

    def _problems(
        self, recipe: AgentRecipe, given: Mapping[str, InputValue], *, is_stored: bool
    ) -> Iterator[str]:
        for name, spec in recipe.inputs.items():
            if not spec.is_secret:
                continue
            default = _reference(spec.default)
            ref = _reference(given[name]) if name in given else default
            # By input: the default of another one could be sent to a service that must not see it.
            if ref is None or ref in self.listed or (is_stored and ref == default):
                continue
            yield (
                f"The input '{name}' is secret: {self.way.words} it takes the recipe's default, or "
                f"a reference that the operator lists, and {ref.source} is neither. The operator "
                f"lists it with `{self.way.command} --allow-secret {ref.source}`, or under "
                "caller_secrets in minions.toml."
            )


def _reference(value: InputValue) -> SecretRef | None:
    """The reference; None: the value is none."""
    if isinstance(value, SecretRef):
        return value
    try:
        return SecretRef.parse(value) if isinstance(value, str) else None
    except UsageError:
        return None

"""The errors that callers of the account service may see."""

from __future__ import annotations


class AccountError(Exception):
    """An error with the HTTP status that the API answers with."""

    status = 400


class InvalidFieldError(AccountError):
    """A field of a request does not hold what it should."""

    def __init__(self, field: str, why: str) -> None:
        super().__init__(f"{field}: {why}")
        self.field = field


class UnknownUserError(AccountError):
    """There is no such user."""

    status = 404


class DuplicateError(AccountError):
    """Somebody else has that name or address."""

    status = 409


class NotAuthenticatedError(AccountError):
    """The password is wrong, or the session is over."""

    status = 401

"""Passwords and sessions."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable
from dataclasses import dataclass

from accounts.errors import InvalidFieldError, NotAuthenticatedError, UnknownUserError
from accounts.users import User, Users

ROUNDS = 600_000
LIFETIME_S = 12 * 3600.0


def hash_password(password: str, rounds: int = ROUNDS) -> str:
    """A salted hash as `rounds$salt$digest`."""
    salt = secrets.token_bytes(16)
    digest = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, rounds)
    return f"{rounds}${salt.hex()}${digest.hex()}"


def is_password(password: str, secret: str) -> bool:
    """Whether the hash is of this password; takes the same time for right and wrong ones."""
    rounds, salt, digest = secret.split("$")
    found = hashlib.pbkdf2_hmac("sha256", password.encode(), bytes.fromhex(salt), int(rounds))
    return hmac.compare_digest(found.hex(), digest)


@dataclass(frozen=True)
class Session:
    """A login; the token is known to its user only."""

    token: str
    name: str
    ends: float


class Auth:
    """Logs users in and out."""

    def __init__(self, users: Users, now: Callable[[], float], rounds: int = ROUNDS) -> None:
        self._users = users
        self._now = now
        self._rounds = rounds
        self._sessions: dict[str, Session] = {}

    def register(self, name: str, email: str, password: str) -> User:
        """Add a user with a password of at least ten characters."""
        if len(password) < 10:
            raise InvalidFieldError("password", "has fewer than ten characters")
        return self._users.add(name, email, hash_password(password, self._rounds))

    def login(self, name: str, password: str) -> Session:
        """Start a session; raises NotAuthenticatedError, whatever was wrong."""
        try:
            user = self._users.find(name)
        except UnknownUserError:
            raise NotAuthenticatedError("name or password is wrong") from None
        if not user.is_active or not is_password(password, user.secret):
            raise NotAuthenticatedError("name or password is wrong")
        token = secrets.token_urlsafe(24)
        session = Session(token=token, name=name, ends=self._now() + LIFETIME_S)
        self._sessions[token] = session
        return session

    def user_of(self, token: str) -> User:
        """The user of a session that is not over; raises NotAuthenticatedError."""
        session = self._sessions.get(token)
        if session is None or session.ends <= self._now():
            raise NotAuthenticatedError("the session is over")
        return self._users.find(session.name)

    def logout_everywhere(self, name: str) -> int:
        """End all sessions of a user; how many there were."""
        ended = [token for token, each in self._sessions.items() if each.name == name]
        for token in ended:
            del self._sessions[token]
        return len(ended)

"""Users and the directory that keeps them."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

from accounts.errors import DuplicateError, InvalidFieldError, UnknownUserError
from accounts.store import Store

_NAME = re.compile(r"[a-z][a-z0-9_-]{2,31}")
_EMAIL = re.compile(r"[^@\s]+@[^@\s]+\.[^@\s]+")


@dataclass(frozen=True)
class User:
    """A user as the store keeps it; `secret` is the hash of the password, never the password."""

    name: str
    email: str
    secret: str
    created: float
    is_active: bool = True

    def shown(self) -> dict[str, object]:
        """What others may see."""
        return {"name": self.name, "email": self.email, "is_active": self.is_active}


class Users:
    """The users in a store, by name."""

    def __init__(self, store: Store, now: Callable[[], float]) -> None:
        self._store = store
        self._now = now

    def add(self, name: str, email: str, secret: str) -> User:
        """Add a user; raises InvalidFieldError or DuplicateError."""
        if not _NAME.fullmatch(name):
            raise InvalidFieldError("name", "3 to 32 of a-z, 0-9, _ and -, first a letter")
        self._check_email(email)
        if self._store.get(name) is not None:
            raise DuplicateError(f"the name {name} is taken")
        user = User(name=name, email=email.lower(), secret=secret, created=self._now())
        self._store.put(name, asdict(user))
        return user

    def find(self, name: str) -> User:
        """The user of that name; raises UnknownUserError."""
        record = self._store.get(name)
        if record is None:
            raise UnknownUserError(f"there is no user {name}")
        return User(**record)

    def all(self) -> list[User]:
        """All users, the oldest first."""
        return [User(**each) for each in self._store.all()]

    def change(self, name: str, **fields: object) -> User:
        """Change fields of a user; name and created stay."""
        for field in fields:
            if field not in ("email", "secret", "is_active"):
                raise InvalidFieldError(field, "cannot be changed")
        if "email" in fields:
            self._check_email(str(fields["email"]), other_than=name)
        user = replace(self.find(name), **fields)
        self._store.put(name, asdict(user))
        return user

    def remove(self, name: str) -> None:
        """Remove a user; raises UnknownUserError."""
        if not self._store.delete(name):
            raise UnknownUserError(f"there is no user {name}")

    def _check_email(self, email: str, other_than: str | None = None) -> None:
        if not _EMAIL.fullmatch(email):
            raise InvalidFieldError("email", "is no address")
        taken = (each for each in self.all() if each.name != other_than)
        if any(each.email == email.lower() for each in taken):
            raise DuplicateError("the address is taken")

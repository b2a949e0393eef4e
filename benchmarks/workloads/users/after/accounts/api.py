"""The API: requests as dictionaries in, a status and a dictionary out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from accounts.auth import Auth, hash_password
from accounts.errors import AccountError, InvalidFieldError
from accounts.users import User, Users

Body: TypeAlias = Mapping[str, object]
Answer: TypeAlias = tuple[int, dict[str, object]]


class Api:
    """Answers requests; a server in front of it reads and writes JSON."""

    def __init__(self, users: Users, auth: Auth) -> None:
        self._users = users
        self._auth = auth
        self._routes: dict[tuple[str, str], Callable[[Body, str], Answer]] = {
            ("POST", "/users"): self._register,
            ("GET", "/users"): self._list,
            ("POST", "/sessions"): self._login,
            ("GET", "/me"): self._me,
            ("PATCH", "/me"): self._change,
            ("DELETE", "/me"): self._remove,
        }

    def handle(self, method: str, path: str, body: Body | None = None, token: str = "") -> Answer:
        """The answer to one request; errors become their status with a message."""
        route = self._routes.get((method, path))
        if route is None:
            return 404, {"error": f"there is no {method} {path}"}
        try:
            return route(body or {}, token)
        except AccountError as error:
            return error.status, {"error": str(error)}

    def _register(self, body: Body, _token: str) -> Answer:
        fields = [_text(body, key) for key in ("name", "email", "password")]
        return 201, self._auth.register(*fields).shown()

    def _list(self, _body: Body, token: str) -> Answer:
        self._auth.user_of(token)
        return 200, {"users": [each.shown() for each in self._users.all()]}

    def _login(self, body: Body, _token: str) -> Answer:
        session = self._auth.login(_text(body, "name"), _text(body, "password"))
        return 201, {"token": session.token, "ends": session.ends}

    def _me(self, _body: Body, token: str) -> Answer:
        return 200, self._auth.user_of(token).shown()

    def _change(self, body: Body, token: str) -> Answer:
        user = self._auth.user_of(token)
        fields: dict[str, object] = {}
        if "email" in body:
            fields["email"] = _text(body, "email")
        if "password" in body:
            fields["secret"] = hash_password(_text(body, "password"))
        return 200, self._users.change(user.name, **fields).shown()

    def _remove(self, _body: Body, token: str) -> Answer:
        user: User = self._auth.user_of(token)
        self._auth.logout_everywhere(user.name)
        self._users.remove(user.name)
        return 200, {"removed": user.name}


def _text(body: Body, key: str) -> str:
    value = body.get(key)
    if not isinstance(value, str):
        raise InvalidFieldError(key, "a text is expected")
    return value

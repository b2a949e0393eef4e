import unittest

from accounts.api import Api
from accounts.auth import Auth
from accounts.store import Store
from accounts.users import Users

ADA = {"name": "ada", "email": "ada@example.org", "password": "correct horse"}


class ApiTest(unittest.TestCase):
    def setUp(self) -> None:
        users = Users(Store(), now=lambda: 0.0)
        self.api = Api(users, Auth(users, now=lambda: 0.0, rounds=1))
        status, _ = self.api.handle("POST", "/users", ADA)
        self.assertEqual(status, 201)
        _, answer = self.api.handle("POST", "/sessions", ADA)
        self.token = answer["token"]

    def test_a_user_sees_and_changes_itself(self) -> None:
        status, me = self.api.handle("GET", "/me", token=self.token)
        self.assertEqual((status, me["email"]), (200, "ada@example.org"))
        _, me = self.api.handle("PATCH", "/me", {"email": "new@example.org"}, self.token)
        self.assertEqual(me["email"], "new@example.org")

    def test_errors_are_answers(self) -> None:
        for request, expected in (
            (("GET", "/nothing"), 404),
            (("POST", "/users", ADA), 409),
            (("POST", "/users", {"name": "bob"}), 400),
            (("GET", "/users", {}, "wrong"), 401),
        ):
            self.assertEqual(self.api.handle(*request)[0], expected)

    def test_a_removed_user_is_logged_out(self) -> None:
        self.assertEqual(self.api.handle("DELETE", "/me", token=self.token)[0], 200)
        self.assertEqual(self.api.handle("GET", "/me", token=self.token)[0], 401)

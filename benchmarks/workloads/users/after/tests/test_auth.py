import unittest

from accounts.auth import LIFETIME_S, Auth, hash_password, is_password
from accounts.errors import InvalidFieldError, NotAuthenticatedError
from accounts.store import Store
from accounts.users import Users

PASSWORD = "correct horse"


class AuthTest(unittest.TestCase):
    def setUp(self) -> None:
        self.time = 0.0
        self.users = Users(Store(), now=lambda: self.time)
        self.auth = Auth(self.users, now=lambda: self.time, rounds=1)
        self.auth.register("ada", "ada@example.org", PASSWORD)

    def test_a_hash_is_of_one_password(self) -> None:
        secret = hash_password(PASSWORD, rounds=1)
        self.assertTrue(is_password(PASSWORD, secret))
        self.assertFalse(is_password("wrong horse", secret))

    def test_a_short_password_is_refused(self) -> None:
        with self.assertRaises(InvalidFieldError):
            self.auth.register("bob", "bob@example.org", "short")

    def test_a_session_ends(self) -> None:
        token = self.auth.login("ada", PASSWORD).token
        self.assertEqual(self.auth.user_of(token).name, "ada")
        self.time = LIFETIME_S
        with self.assertRaises(NotAuthenticatedError):
            self.auth.user_of(token)

    def test_wrong_passwords_and_inactive_users_are_refused(self) -> None:
        with self.assertRaises(NotAuthenticatedError):
            self.auth.login("ada", "wrong horse")
        self.users.change("ada", is_active=False)
        with self.assertRaises(NotAuthenticatedError):
            self.auth.login("ada", PASSWORD)

    def test_all_sessions_of_a_user_are_ended(self) -> None:
        for _ in range(2):
            self.auth.login("ada", PASSWORD)
        self.assertEqual(self.auth.logout_everywhere("ada"), 2)
        self.assertEqual(self.auth.logout_everywhere("ada"), 0)

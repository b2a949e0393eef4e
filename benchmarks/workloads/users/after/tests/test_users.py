import unittest

from accounts.errors import DuplicateError, InvalidFieldError, UnknownUserError
from accounts.store import Store
from accounts.users import Users


class UsersTest(unittest.TestCase):
    def setUp(self) -> None:
        self.users = Users(Store(), now=lambda: 5.0)
        self.ada = self.users.add("ada", "Ada@example.org", "hash")

    def test_a_user_is_found_by_name(self) -> None:
        self.assertEqual(self.users.find("ada"), self.ada)
        self.assertEqual(self.ada.created, 5.0)
        with self.assertRaises(UnknownUserError):
            self.users.find("bob")

    def test_names_and_addresses_are_checked(self) -> None:
        for name, email in (("x", "x@example.org"), ("bob", "nobody")):
            with self.assertRaises(InvalidFieldError):
                self.users.add(name, email, "hash")

    def test_names_and_addresses_are_unique(self) -> None:
        for name, email in (("ada", "b@example.org"), ("bob", "ada@example.org")):
            with self.assertRaises(DuplicateError):
                self.users.add(name, email, "hash")

    def test_a_user_is_changed_and_removed(self) -> None:
        self.assertFalse(self.users.change("ada", is_active=False).is_active)
        with self.assertRaises(InvalidFieldError):
            self.users.change("ada", created=1.0)
        self.users.remove("ada")
        self.assertEqual(self.users.all(), [])

    def test_the_secret_is_not_shown(self) -> None:
        self.assertNotIn("hash", self.ada.shown().values())

import unittest
from datetime import date

from shop import discounts, shipping, tax
from shop.cart import Cart
from shop.discounts import Coupon
from shop.errors import CouponError, ShopError
from shop.items import Catalog
from shop.money import Money

ROWS = [
    {"sku": "t", "name": "Green tea", "price": "1070", "grams": "250", "tax_class": "reduced"},
    {"sku": "p", "name": "Iron pot", "price": "4760", "grams": "11000"},
]
DAY = date(2026, 3, 1)


class PricesTest(unittest.TestCase):
    def setUp(self) -> None:
        self.cart = Cart(Catalog.from_rows(ROWS))

    def test_amounts_are_shown_with_their_sign(self) -> None:
        self.assertEqual(str(Money(-1005)), "-€10.05")
        self.assertEqual(Money(333).percent(10), Money(33))

    def test_a_cart_has_a_price_and_a_weight(self) -> None:
        self.cart.put("t", 3)
        self.cart.put("t", -1)
        self.assertEqual(self.cart.goods, Money(2140))
        self.assertEqual(self.cart.grams, 500)
        with self.assertRaises(ShopError):
            self.cart.put("t", 98)

    def test_a_coupon_applies_from_a_price_on(self) -> None:
        coupon = Coupon("TEN", percent=10, amount=Money(100), least=Money(1000))
        self.assertEqual(coupon.discount(Money(2000), DAY), Money(300))
        with self.assertRaisesRegex(CouponError, "€10.00 and more"):
            coupon.discount(Money(999), DAY)
        self.assertEqual(discounts.best([coupon], Money(500), DAY), Money(0))

    def test_prices_include_tax(self) -> None:
        self.cart.put("t")
        self.cart.put("p")
        self.assertEqual(
            tax.by_class(self.cart.lines), {"reduced": Money(70), "standard": Money(760)}
        )

    def test_shipping_is_free_unless_it_is_heavy(self) -> None:
        self.assertEqual(shipping.fee(Money(4999), 100), Money(490))
        self.assertEqual(shipping.fee(Money(5000), 100), Money(0))
        self.assertEqual(shipping.fee(Money(5000), 10_000), Money(980))
        self.assertEqual(shipping.missing(Money(4000)), Money(1000))

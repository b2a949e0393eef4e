import unittest
from datetime import date

from shop.cart import Cart
from shop.discounts import Coupon
from shop.errors import NotInStockError
from shop.export import table
from shop.invoices import invoice
from shop.items import Catalog, Item
from shop.money import Money
from shop.orders import Orders
from shop.reports import best_sellers, months
from shop.stock import Stock

TEA = Item("t", "Green tea", Money(1070), 250, "reduced")


class OrdersTest(unittest.TestCase):
    def setUp(self) -> None:
        self.stock = Stock({"t": 5})
        self.orders = Orders(self.stock)
        self.cart = Cart(Catalog([TEA]))
        self.cart.put("t", 2)
        coupons = [Coupon("TEN", percent=10)]
        self.order = self.orders.place(self.cart, date(2026, 3, 1), coupons)

    def test_an_order_takes_from_the_stock(self) -> None:
        self.assertEqual(self.stock.left("t"), 3)
        self.cart.put("t", 2)
        with self.assertRaises(NotInStockError):
            self.orders.place(self.cart, date(2026, 3, 2))
        self.orders.cancel(1)
        self.assertEqual(self.stock.left("t"), 5)

    def test_the_invoice_shows_all_amounts(self) -> None:
        lines = invoice(self.order).splitlines()
        self.assertEqual(lines[0], "Invoice 00001 of 2026-03-01 in EUR")
        amounts = [line.split()[-1] for line in lines if "€" in line]
        self.assertEqual(amounts, ["€21.40", "-€2.14", "€4.90", "€24.16", "€1.40"])

    def test_cancelled_orders_are_in_no_report(self) -> None:
        [month] = months(self.orders.all())
        self.assertEqual((month.name, month.orders, month.revenue), ("2026-03", 1, Money(2416)))
        self.assertEqual(best_sellers(self.orders.all()), [("Green tea", 2)])
        self.orders.cancel(1)
        self.assertEqual(months(self.orders.all()), [])

    def test_the_accountant_gets_cents(self) -> None:
        [_, row] = table(self.orders.all()).splitlines()
        self.assertEqual(row, "1,2026-03-01,paid,EUR,2140,214,490,2416,140")

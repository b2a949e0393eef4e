"""Prices, orders and invoices of the shop."""
